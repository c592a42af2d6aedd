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
use crate::wire;

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

/// A device, shared by QEMU's thread and the thread that moves data. A device at the other end
/// of a wire is below the same lock.
#[derive(Clone)]
pub struct Shared {
    state: Arc<(Mutex<State>, Condvar)>,
    client: Option<Arc<Client>>,
    /// Its LID.
    lid: u16,
}

struct State {
    device: Box<Device>,
    /// The number of devices that QEMU is connected to, or will be.
    connections: usize,
    /// Register writes that arrived while a packet waited for QEMU's answer.
    put_off: Vec<(u64, Vec<u8>)>,
}

impl State {
    /// Uses the device with this LID.
    fn face(&mut self, lid: u16) {
        if self.device.is_far(lid) {
            wire::turn(&mut self.device);
        }
    }

    /// Runs one step of each device. If there is none to run, returns the time of the next
    /// timer.
    fn run(&mut self) -> Result<(), Option<Instant>> {
        let near = self.device.run();
        if self.device.far.is_none() {
            return near;
        }
        wire::turn(&mut self.device);
        match (near, self.device.run()) {
            (Err(near), Err(far)) => Err(near.into_iter().chain(far).min()),
            _ => Ok(()),
        }
    }
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
    pub fn new(device: Box<Device>, client: Option<Arc<Client>>) -> Self {
        let lid = device.options.lid;
        let state = State {
            connections: 1 + device.far.iter().len(),
            device,
            put_off: Vec::new(),
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        Self { state, client, lid }
    }

    /// The device at the other end of the wire.
    pub fn far(&self) -> Option<Self> {
        let lid = self.lock().far.as_ref()?.options.lid;
        Some(Self {
            lid,
            ..self.clone()
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.state.0.lock();
        let mut state = state.expect("a thread that panicked has ended the process");
        state.face(self.lid);
        state
    }

    /// The device.
    pub fn lock(&self) -> Locked<'_> {
        Locked(self.state())
    }

    /// Moves data, one packet of each device at a time, until [`Self::stop`]. The lock is free
    /// between two such steps, so that commands can run.
    pub fn work(&self) {
        let mut state = self.state();
        while state.connections > 0 {
            state = match state.run() {
                Ok(()) => {
                    drop(self.ask(state));
                    self.state()
                }
                Err(until) => {
                    state.device.witness.flush();
                    if let Some(far) = &mut state.device.far {
                        far.witness.flush();
                    }
                    let now = Instant::now();
                    let pause = until.map_or(IDLE, |until| until.saturating_duration_since(now));
                    let waited = self.state.1.wait_timeout(state, pause);
                    waited.expect("as above").0
                }
            };
        }
    }

    /// Sends a stopped packet's questions to QEMU until the packet is done. The device is
    /// unlocked meanwhile: QEMU may hold the lock with which an access to this device waits.
    fn ask<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(client) = &self.client else {
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

    /// QEMU has disconnected. Stops the thread, unless QEMU uses the device at the other end of
    /// the wire: then nobody is at this end.
    pub fn stop(&self) {
        let mut state = self.state();
        state.connections -= 1;
        if state.connections > 0 {
            state.device.teardown();
        }
        drop(state);
        self.state.1.notify_all();
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
        self.state.1.notify_all();
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
        drop(state);
        self.state.1.notify_all();
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
    use crate::testing::wired::Wired;
    use crate::testing::{PAGE, Pair, Testbed};
    use std::thread;

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

    /// Each connection has its own device, and the thread runs both. If one of them ends, nobody is
    /// at its end of the wire.
    #[test]
    fn two_devices_are_joined_by_a_wire() {
        let Some(mut t) = Wired::new(Scheme::Transport) else {
            return;
        };
        let bar = VFIO_PCI_BAR0_REGION_INDEX;
        let uar = t.at(1).uar << t.at(1).device.c.uar.page_shift;
        let at = uar | t.at(1).device.c.uar.blue_flame;
        t.put(0, &[0; 8]);
        t.put(1, &[7; 8]);
        let c = t.at(1).device.c.opcodes;
        let joined = t.take();
        let near = Shared::new(joined, None);
        let mut far = near.far().unwrap();
        assert_eq!(near.lock().options.lid, 1);
        assert_eq!(far.lock().options.lid, 2);
        assert_eq!(far.far().unwrap().lid, 1);
        let engine = thread::spawn({
            let near = near.clone();
            move || near.work()
        });
        let mut bell = [0; 8];
        bell[4..].copy_from_slice(&(t.qps[1].qpn << 8).to_be_bytes());
        t.post(1, c.rdma_write, 8);
        far.region_write(bar, at, &bell).unwrap();
        assert_eq!(t.syndrome(1), 0);
        assert_eq!(t.get(0, 8), [7; 8]);
        // One QEMU is gone.
        near.stop();
        assert!(near.lock().qps.is_empty());
        assert!(!far.lock().qps.is_empty());
        t.post(1, c.rdma_write, 8);
        far.region_write(bar, at, &bell).unwrap();
        let gone = far.lock().c.syndromes.transport_retry_exc_err;
        assert_eq!(t.syndrome(1), gone);
        assert!(!engine.is_finished());
        far.stop();
        engine.join().unwrap();
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
