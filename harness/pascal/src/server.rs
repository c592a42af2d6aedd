//! vfio-user: what QEMU asks. All is done before the answer, so there is one thread; but a
//! transfer that takes its time, as was asked for, is over when nobody asks for anything,
//! and has a thread to wait for that.

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

/// Listens. `bar1`: its size.
pub fn listen(socket: &Path, bar1: u64) -> Result<Server> {
    let bars = [
        (VFIO_PCI_BAR0_REGION_INDEX, BAR0_SIZE),
        (VFIO_PCI_BAR1_REGION_INDEX, bar1),
        (VFIO_PCI_BAR3_REGION_INDEX, BAR2_SIZE),
    ];
    server::listen(socket, &bars, VECTORS)
}

/// What nouveau calls the BAR of a region: BAR1 is of 64 bits, and BAR2 comes after it.
fn bar(region: u32) -> &'static str {
    match region {
        VFIO_PCI_BAR0_REGION_INDEX => "BAR0",
        VFIO_PCI_BAR1_REGION_INDEX => "BAR1",
        _ => "BAR2",
    }
}

/// The device, as vfio-user sees it, and the thread that waits.
#[derive(Clone)]
pub struct Served(Arc<Shared>);

struct Shared {
    gpu: Mutex<Gpu>,
    /// Something was written, or QEMU has gone.
    changed: Condvar,
    /// QEMU has gone. It is written with the device locked, so that the thread does not miss
    /// it between a look and its sleep.
    is_over: AtomicBool,
}

/// Each thread that panics ends the model.
const NO_PANIC: &str = "no thread that panicked goes on";

impl Served {
    /// To be served.
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

    /// Ends each transfer that takes its time, until QEMU has gone.
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

    /// QEMU has gone.
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
        drop(gpu);
        self.0.changed.notify_all();
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
