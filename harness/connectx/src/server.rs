//! vfio-user: what QEMU asks, and the thread that works beside it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::device::Device;
use crate::pci::{BAR_SIZE, CONFIG_SIZE, VECTORS};
use crate::proxy::{Client, Proxy};

/// Listens. `bus`: with a proxy before the server, by which QEMU can be asked as well.
pub fn listen(socket: &Path, bus: bool) -> Result<(Server, Option<Proxy>)> {
    let region = |index: u32| {
        let size = match index {
            VFIO_PCI_BAR0_REGION_INDEX => BAR_SIZE,
            VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
            _ => 0,
        };
        let flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                index,
                size,
                flags: if size == 0 { 0 } else { flags },
                ..Default::default()
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        }
    };
    let irq = |index: u32| {
        let is_msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
        IrqInfo {
            index,
            flags: if is_msix {
                VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE
            } else {
                0
            },
            count: if is_msix { u32::from(VECTORS) } else { 0 },
        }
    };
    if socket.exists() {
        bail!(
            "{} exists: another model listens there, or has left it; remove it if none does",
            socket.display()
        );
    }
    let irqs = (0..VFIO_PCI_NUM_IRQS).map(irq).collect();
    let regions = (0..VFIO_PCI_NUM_REGIONS).map(region).collect();
    if bus {
        let (proxy, behind) = Proxy::new(socket)?;
        let server = Server::from_owned_fd(behind, true, irqs, regions);
        return Ok((server, Some(proxy)));
    }
    let server = Server::new(socket, true, irqs, regions)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("cannot listen at {}", socket.display()))?;
    Ok((server, None))
}

/// The device, for QEMU's thread and for the one that moves data.
#[derive(Clone)]
pub struct Shared(Arc<(Mutex<State>, Condvar)>, Option<Arc<Client>>);

struct State {
    device: Device,
    is_over: bool,
    /// Writes to registers that came while a packet waited for QEMU's answer.
    put_off: Vec<(u64, Vec<u8>)>,
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
    /// To be shared. `client`: the way to ask QEMU.
    pub fn new(device: Device, client: Option<Arc<Client>>) -> Self {
        let state = State {
            device,
            is_over: false,
            put_off: Vec::new(),
        };
        Self(Arc::new((Mutex::new(state), Condvar::new())), client)
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
                    drop(self.ask(state));
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

    /// Asks QEMU what a packet has stopped for, until it is done. QEMU may hold a lock that
    /// an access to this device waits with, so the device is not locked meanwhile.
    fn ask<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(client) = &self.1 else {
            return state;
        };
        while let Some(question) = state.device.bus.question().cloned() {
            drop(state);
            let answer = client.ask(&question);
            state = self.state();
            state.device.answered(answer);
        }
        for (at, data) in std::mem::take(&mut state.put_off) {
            state.device.write(at, &data);
        }
        state
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
        let mut state = self.state();
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => state.device.config_write(at, data),
            VFIO_PCI_BAR0_REGION_INDEX if state.device.bus.is_asking() => {
                state.put_off.push((at, data.to_vec()));
            }
            VFIO_PCI_BAR0_REGION_INDEX => state.device.write(at, data),
            _ => {}
        }
        drop(state);
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
        let is_writable = flags.contains(DmaMapFlags::WRITE);
        let memory = &mut self.lock().memory;
        memory.map(address, size, file, offset, is_writable)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let memory = &mut self.lock().memory;
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            memory.unmap(0, u64::MAX);
            // The range that a size can say lacks the last byte.
            memory.unmap(u64::MAX, 1);
        } else {
            memory.unmap(address, size);
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        let mut state = self.state();
        state.put_off.clear();
        state.device.reset();
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
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let mut device = self.lock();
        if count == 0 && flags & VFIO_IRQ_SET_DATA_NONE != 0 {
            device.irqs.clear();
            return Ok(());
        }
        let mut files = files.into_iter();
        for vector in start..start.saturating_add(count).min(u32::from(VECTORS)) {
            device.irqs.set(vector, files.next());
        }
        Ok(())
    }
}
