//! Handles QEMU's vfio-user requests, and runs the thread that moves data.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;
use endpoint::proxy::{Client, Proxy};
use endpoint::server;
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend};

use crate::device::Device;
use crate::pci::{BAR_SIZE, VECTORS};

/// Listens on `socket`. `bus`: with a proxy in front of the server, which can also send
/// requests to QEMU.
pub fn listen(socket: &Path, bus: bool) -> Result<(Server, Option<Proxy>)> {
    let bars = [(VFIO_PCI_BAR0_REGION_INDEX, BAR_SIZE)];
    if bus {
        let (server, proxy) = server::listen_by_proxy(socket, &bars, VECTORS)?;
        return Ok((server, Some(proxy)));
    }
    Ok((server::listen(socket, &bars, VECTORS)?, None))
}

/// The device, shared by QEMU's thread and the thread that moves data.
#[derive(Clone)]
pub struct Shared(Arc<(Mutex<State>, Condvar)>, Option<Arc<Client>>);

struct State {
    device: Device,
    is_over: bool,
    /// Register writes that arrived while a packet waited for QEMU's answer.
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

/// How long the thread sleeps if no timer is pending.
const IDLE: Duration = Duration::from_secs(1);

impl Shared {
    /// Shares the device. `client`: sends questions to QEMU.
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

    /// Moves data, one packet at a time, until [`Self::stop`]. The lock is free between two
    /// packets, so that commands can run.
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

    /// Sends a stopped packet's questions to QEMU until the packet is done. The device is
    /// unlocked meanwhile: QEMU may hold the lock with which an access to this device waits.
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

    /// Stops the thread after QEMU has disconnected.
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
            VFIO_PCI_CONFIG_REGION_INDEX => {
                let is_reset = state.device.config_write(at, data);
                if is_reset {
                    state.put_off.clear();
                }
            }
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
        let memory = &mut self.lock().memory;
        server::dma_map("connectx", memory, flags, offset, address, size, file)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        server::dma_unmap(&mut self.lock().memory, flags, address, size);
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
        let irqs = &mut self.lock().irqs;
        VECTORS.set(irqs, index, flags, start, count, files);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Scheme;
    use crate::pci::DEVICE_CONTROL;
    use crate::testing::{PAGE, Pair, Testbed};

    /// No command comes between the translation of an address and its use. QEMU holds a lock,
    /// so it must not wait for a packet that waits for QEMU.
    #[test]
    fn registers_are_not_written_while_qemu_is_asked() {
        let Some(bench) = Testbed::bare(Scheme::Transport) else {
            return;
        };
        let register = bench.device.l.init_seg.cmdq_addr_h.byte() as u64;
        let mut shared = Shared::new(bench.device, None);
        let (bar, config) = (VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX);
        let seen = |shared: &mut Shared| {
            let mut data = [0; 4];
            shared.region_read(bar, register, &mut data).unwrap();
            u32::from_be_bytes(data)
        };
        shared.lock().bus.begin(1);
        assert!(shared.lock().bus.read(0x1000, &mut [0]).is_err());
        shared.region_write(bar, register, &[0, 0, 0, 7]).unwrap();
        assert_eq!(seen(&mut shared), 0);
        // Writes to configuration space are not deferred: bus mastering ends at once.
        shared.region_write(config, 4, &[6, 0]).unwrap();
        assert!(shared.lock().memory.is_bus_master);
        shared.lock().answered(Ok(vec![0]));
        assert_eq!(shared.state().put_off, [(register, vec![0, 0, 0, 7])]);
        // A reset drops the deferred writes.
        shared.reset().unwrap();
        assert!(shared.state().put_off.is_empty());
        shared.region_write(bar, register, &[0, 0, 0, 8]).unwrap();
        assert_eq!(seen(&mut shared), 8);
    }

    /// The packet that waits for QEMU is gone, with what it moved before.
    #[test]
    fn a_function_level_reset_while_qemu_is_asked() {
        let Some(mut bench) = Testbed::new(Scheme::Transport) else {
            return;
        };
        bench.device.bus.is_on = true;
        let mut pair = Pair::new(&mut bench);
        let (from, to) = (bench.alloc(PAGE), 0x70_0000_0000);
        let (from, to) = (bench.mtt(0, &[from]), bench.mtt(0, &[to]));
        let segments = [bench.remote(to, 0), bench.data(from, 0, 8)];
        let opcode = bench.device.c.opcodes.rdma_write;
        bench.post(&mut pair.a, opcode, 0, &segments);
        bench.device.run().unwrap();
        assert!(bench.device.bus.is_asking());
        let log = bench.log;
        let mut shared = Shared::new(bench.device, None);
        let bar = VFIO_PCI_BAR0_REGION_INDEX;
        shared.region_write(bar, 0, &[0; 4]).unwrap();
        assert_eq!(shared.state().put_off.len(), 1);
        let (config, control) = (VFIO_PCI_CONFIG_REGION_INDEX, DEVICE_CONTROL as u64);
        shared.region_write(config, control, &[0x1f, 0x80]).unwrap();
        assert!(shared.state().put_off.is_empty());
        let mut data = [0; 2];
        shared.region_read(config, control, &mut data).unwrap();
        assert_eq!(data, [0x10, 0]);
        // The guest goes on at once, and QEMU's answer comes late.
        shared.region_write(config, 4, &[6, 0]).unwrap();
        shared.region_write(bar, 0, &[0; 4]).unwrap();
        assert!(shared.state().put_off.is_empty());
        let mut device = shared.lock();
        device.answered(Ok(Vec::new()));
        assert_eq!(device.run(), Err(None));
        device.witness.flush();
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(!text.contains(r#""event":"dma""#), "{text}");
        assert!(text.ends_with("\"event\":\"reset\"}\n"), "{text}");
    }
}
