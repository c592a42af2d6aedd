//! vfio-user: what QEMU asks, and the thread that works beside it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;
use endpoint::server;
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend};

use crate::device::Device;
use crate::pci::{BAR_SIZE, VECTORS};

/// Listens.
pub fn listen(socket: &Path) -> Result<Server> {
    server::listen(socket, &[(VFIO_PCI_BAR0_REGION_INDEX, BAR_SIZE)], VECTORS)
}

/// The device, for QEMU's thread and for the one that moves data.
#[derive(Clone)]
pub struct Shared(Arc<(Mutex<State>, Condvar)>);

struct State {
    device: Device,
    is_over: bool,
}

/// The device, locked.
pub struct Locked<'a>(MutexGuard<'a, State>);

impl std::ops::Deref for Locked<'_> {
    type Target = Device;
    fn deref(&self) -> &Device {
        &self.0.device
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.0.device
    }
}

/// How long the thread sleeps if there is nothing that it waits for.
const IDLE: Duration = Duration::from_secs(1);

impl Shared {
    /// To be shared.
    pub fn new(device: Device) -> Self {
        let state = State {
            device,
            is_over: false,
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .0
            .lock()
            .expect("a thread that panicked has ended the process")
    }

    /// The device.
    pub fn lock(&self) -> Locked<'_> {
        Locked(self.state())
    }

    /// Moves data, a packet at a time, until it is over. The lock is free between two
    /// packets: commands and changes of keys come in between.
    pub fn work(&self) {
        let mut state = self.state();
        while !state.is_over {
            state = match state.device.run() {
                Ok(()) => {
                    drop(state);
                    self.state()
                }
                Err(until) => {
                    state.device.witness.flush();
                    let now = Instant::now();
                    let pause = until.map_or(IDLE, |until| until.saturating_duration_since(now));
                    let waited = self.0.1.wait_timeout(state, pause);
                    waited.expect("as above").0
                }
            };
        }
    }

    /// QEMU has gone.
    pub fn stop(&self) {
        self.state().is_over = true;
        self.0.1.notify_all();
    }
}

impl ServerBackend for Shared {
    fn region_read(&mut self, region: u32, at: u64, data: &mut [u8]) -> io::Result<()> {
        let device = self.lock();
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => device.config.read(at, data),
            VFIO_PCI_BAR0_REGION_INDEX => device.read(at, data),
            _ => data.fill(0xff),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, at: u64, data: &[u8]) -> io::Result<()> {
        let mut device = self.lock();
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => device.config_write(at, data),
            VFIO_PCI_BAR0_REGION_INDEX => device.write(at, data),
            _ => {}
        }
        drop(device);
        self.0.1.notify_all();
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
        let memory = &mut self.lock().memory;
        server::dma_map(memory, flags, offset, address, size, file)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        server::dma_unmap(&mut self.lock().memory, flags, address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.lock().reset();
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
        let irqs = &mut self.lock().irqs;
        VECTORS.set(irqs, index, flags, start, count, files);
        Ok(())
    }
}
