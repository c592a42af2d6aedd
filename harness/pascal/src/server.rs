//! Handles QEMU's vfio-user requests. One thread suffices for these: each request is done
//! before its answer. A second thread finishes transfers that `--slow` delays, as they may
//! end when no request arrives.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::Result;
use endpoint::server;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR1_REGION_INDEX, VFIO_PCI_BAR3_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend};

use crate::gpu::Gpu;
use crate::pci::{BAR0_SIZE, BAR2_SIZE, VECTORS};

/// Listens on `socket`. `bar1`: the size of BAR1.
pub fn listen(socket: &Path, bar1: u64) -> Result<Server> {
    let bars = [
        (VFIO_PCI_BAR0_REGION_INDEX, BAR0_SIZE),
        (VFIO_PCI_BAR1_REGION_INDEX, bar1),
        (VFIO_PCI_BAR3_REGION_INDEX, BAR2_SIZE),
    ];
    server::listen(socket, &bars, VECTORS)
}

/// nouveau's name for the BAR of a region. BAR1 has 64 bits, so PCI BAR 3 is its BAR2.
fn bar(region: u32) -> &'static str {
    match region {
        VFIO_PCI_BAR0_REGION_INDEX => "BAR0",
        VFIO_PCI_BAR1_REGION_INDEX => "BAR1",
        _ => "BAR2",
    }
}

/// The device, shared by the vfio-user server and the thread that finishes transfers.
#[derive(Clone)]
pub struct Served(Arc<Shared>);

struct Shared {
    gpu: Mutex<Gpu>,
    /// Signals that a transfer is delayed, or that QEMU has disconnected.
    changed: Condvar,
    /// QEMU has disconnected. The flag is set with the device locked, so the thread cannot miss
    /// it between its check and its sleep.
    is_over: AtomicBool,
}

/// A panic in any thread ends the model.
const NO_PANIC: &str = "no thread that panicked goes on";

impl Served {
    /// Wraps the device for the server.
    pub fn new(gpu: Gpu) -> Self {
        Self(Arc::new(Shared {
            gpu: Mutex::new(gpu),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
        }))
    }

    /// The device.
    pub fn gpu(&self) -> MutexGuard<'_, Gpu> {
        self.0.gpu.lock().expect(NO_PANIC)
    }

    /// Finishes each delayed transfer when it is due, until QEMU disconnects.
    pub fn wait(&self) {
        let Shared {
            changed, is_over, ..
        } = &*self.0;
        let mut gpu = self.gpu();
        while !is_over.load(Ordering::Relaxed) {
            let left = gpu
                .due()
                .map(|due| due.saturating_duration_since(Instant::now()));
            gpu = match left {
                None => changed.wait(gpu).expect(NO_PANIC),
                Some(left) if !left.is_zero() => changed.wait_timeout(gpu, left).expect(NO_PANIC).0,
                Some(_) => {
                    gpu.go_on();
                    gpu
                }
            };
        }
    }

    /// Stops the thread after QEMU has disconnected.
    pub fn stop(&self) {
        let gpu = self.gpu();
        self.0.is_over.store(true, Ordering::Relaxed);
        drop(gpu);
        self.0.changed.notify_all();
    }
}

impl ServerBackend for Served {
    fn region_read(&mut self, region: u32, at: u64, data: &mut [u8]) -> io::Result<()> {
        let mut gpu = self.gpu();
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => gpu.config.read(at, data),
            _ if gpu.is_silent(bar(region), at) => data.fill(0xff),
            VFIO_PCI_BAR0_REGION_INDEX => gpu.read(at, data),
            VFIO_PCI_BAR1_REGION_INDEX => gpu.bar1_read(at, data),
            VFIO_PCI_BAR3_REGION_INDEX => gpu.bar2_read(at, data),
            _ => data.fill(0xff),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, at: u64, data: &[u8]) -> io::Result<()> {
        let mut gpu = self.gpu();
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => gpu.config_write(at, data),
            _ if gpu.is_silent(bar(region), at) => {}
            VFIO_PCI_BAR0_REGION_INDEX => gpu.write(at, data),
            VFIO_PCI_BAR1_REGION_INDEX => gpu.bar1_write(at, data),
            VFIO_PCI_BAR3_REGION_INDEX => gpu.bar2_write(at, data),
            _ => {}
        }
        // Most writes delay nothing, and a system call for each takes time.
        let is_delayed = gpu.due().is_some();
        drop(gpu);
        if is_delayed {
            self.0.changed.notify_all();
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let memory = &mut self.gpu().memory;
        server::dma_map("pascal", memory, flags, offset, address, size, file)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        server::dma_unmap(&mut self.gpu().memory, flags, address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.gpu().reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        let irqs = &mut self.gpu().irqs;
        VECTORS.set(irqs, index, flags, start, count, files);
        Ok(())
    }
}
