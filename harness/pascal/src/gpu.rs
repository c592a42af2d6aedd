//! The device: reads and writes of its BARs.

use std::collections::HashMap;
use std::time::Instant;

use endpoint::config::Config;
use endpoint::irq::Irqs;
use endpoint::memory::Memory;

use crate::host::{Host, World};
use crate::inject::Inject;
use crate::interrupt::{self, Pmc};
use crate::mmu::Tables;
use crate::registers as r;
use crate::runlist::{self, Runlist};
use crate::space::{Aperture, Fault, Place, Space, Vram};
use crate::tlb::Tlb;
use crate::witness::{Event, Witness};
use crate::{pci, vbios};

/// The value of reads where nothing is.
const NOTHING: u8 = 0xff;

/// A GP106.
pub struct Gpu {
    /// Configuration space.
    pub config: Config,
    /// Host memory, reached by DMA.
    pub memory: Memory,
    /// Interrupts.
    pub irqs: Irqs,
    /// The log.
    pub witness: Witness,
    /// The requested errors of the copy engine.
    pub inject: Inject,
    /// The VBIOS.
    pub vbios: Vec<u8>,
    /// The TLB.
    pub tlb: Tlb,
    vram: Vram,
    state: State,
}

/// The state that a reset clears.
struct State {
    pmc: Pmc,
    host: Host,
    stored: HashMap<u32, u32>,
    begin: Instant,
    /// The clock's value at `begin`.
    time: u64,
    /// The program that initialises the board has run.
    is_initialised: bool,
    /// A driver has read the device's identity.
    is_probed: bool,
}

impl State {
    fn new(is_initialised: bool) -> Self {
        Self {
            pmc: Pmc::default(),
            host: Host::default(),
            stored: HashMap::new(),
            begin: Instant::now(),
            time: 0,
            is_initialised,
            is_probed: false,
        }
    }

    fn get(&self, register: u32) -> u32 {
        self.stored.get(&register).copied().unwrap_or(0)
    }

    /// The time in nanoseconds. The lowest five bits are zero.
    fn now(&self) -> u64 {
        let passed = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.time.wrapping_add(passed) & !0x1f
    }
}

/// An access to a range.
enum Access<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Access<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Read(data) => data.len(),
            Self::Write(data) => data.len(),
        }
    }
}

impl Gpu {
    /// The device after power on.
    pub fn new(vram: Vram, witness: Witness) -> Self {
        Self {
            config: pci::config(),
            memory: Memory::default(),
            irqs: Irqs::default(),
            tlb: Tlb::new(witness.begin()),
            witness,
            inject: Inject::default(),
            vbios: vbios::image(),
            vram,
            // The machine's firmware has initialised the board.
            state: State::new(true),
        }
    }

    /// Resets the device with the machine. Video memory keeps its contents.
    pub fn reset(&mut self) {
        self.config = pci::config();
        self.memory.is_bus_master = false;
        self.state = State::new(true);
        self.inject.reset();
        self.tlb.forget();
        self.witness.posted.forget();
    }

    /// Writes to configuration space.
    pub fn config_write(&mut self, at: u64, data: &[u8]) {
        let was_on = self.is_on();
        self.config.write(at, data);
        if was_on && !self.is_on() {
            self.power_off();
        }
        self.memory.is_bus_master = self.config.is_bus_master();
    }

    fn is_on(&self) -> bool {
        let mut power = [0];
        self.config.read(pci::POWER as u64, &mut power);
        power[0] & 3 == 0
    }

    /// In D3 the device loses all state except configuration space, as at power off.
    fn power_off(&mut self) {
        self.state = State::new(false);
        self.inject.reset();
        self.tlb.forget();
        self.witness.posted.forget();
        let lost = self.vram.clear();
        let what = lost.map_or_else(|error| error.to_string(), |()| "off".to_owned());
        self.witness.event(&Event::Power { what: &what });
    }

    /// Whether the device is in D3 and does not respond. An access in D3 is a violation: the
    /// driver does not know that the device is off.
    pub fn is_silent(&mut self, bar: &str, at: u64) -> bool {
        let is_off = !self.is_on();
        if is_off {
            let what = format!("{bar} was used at {at:#x} in D3");
            self.witness.violation(&what);
        }
        is_off
    }

    /// Reads registers.
    pub fn read(&mut self, at: u64, data: &mut [u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = at.wrapping_add(done as u64);
            let inside = (at % 4) as usize;
            let here = (4 - inside).min(data.len() - done);
            let value = u32::try_from(at & !3).map_or(0, |register| self.register(register));
            let part = &value.to_le_bytes()[inside..inside + here];
            data[done..done + here].copy_from_slice(part);
            done += here;
        }
    }

    /// Writes registers. A partial write keeps the other bytes if the register stores its
    /// value.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = at.wrapping_add(done as u64);
            let inside = (at % 4) as usize;
            let here = (4 - inside).min(data.len() - done);
            if let Ok(register) = u32::try_from(at & !3) {
                let mut value = self.state.get(register).to_le_bytes();
                value[inside..inside + here].copy_from_slice(&data[done..done + here]);
                self.set_register(register, u32::from_le_bytes(value));
            }
            done += here;
        }
        self.interrupt();
    }

    fn register(&mut self, register: u32) -> u32 {
        self.witness.totals.registers += 1;
        if register == r::BOOT_0 && !std::mem::replace(&mut self.state.is_probed, true) {
            self.witness.event(&Event::Probe);
        }
        let state = &self.state;
        match register {
            r::BOOT_0 => r::GP106,
            r::INTR => state.pmc.pending,
            r::FUSE_CE => u32::from(self.inject.has_no_copy_engine),
            // The model has made all writes through a BAR by the time that it is asked.
            r::BAR_FLUSH => {
                self.witness.posted.end_flush();
                0
            }
            r::INTR_1 | r::SCRUB | r::MSI_REARM | r::PBDMA_INTR_1 => 0,
            r::INTR_ALLOW | r::INTR_BLOCK => state.pmc.allowed(),
            r::TIME_LOW => state.now() as u32,
            r::TIME_HIGH => (state.now() >> 32) as u32,
            // One PBDMA, which serves runlist 0.
            r::PBDMAS | r::PBDMA_RUNLISTS | r::LTC_COUNT | r::FUSE_DISPLAY => 1,
            r::CHANNEL_COUNT => runlist::CHANNELS,
            r::FIFO_INTR => state.host.interrupts(),
            r::PBDMAS_INTR => u32::from(state.host.pbdma.interrupts()),
            r::PBDMA_INTR => state.host.pbdma.pending,
            r::PBDMA_INTR_ENABLE => state.host.pbdma.enabled,
            r::PBDMA_METHOD => state.host.pbdma.method,
            r::PBDMA_DATA => state.host.pbdma.data,
            r::PBDMA_CHANNEL => state.host.pbdma.chid,
            r::FIFO_INTR_ENABLE => state.host.enabled,
            r::FAULT_UNITS => state.host.fault_units,
            r::FAULT_INFO..r::FAULT_INFO_END => state.host.fault(register),
            r::USERD => state.host.userd,
            r::PREEMPT => state.get(r::PREEMPT) & !(1 << 20),
            r::TOP..r::TOP_END => {
                let entry = ((register - r::TOP) / 4) as usize;
                r::ENGINES.get(entry).copied().unwrap_or(0)
            }
            r::MMU_CONTROL => state.get(r::MMU_CONTROL) | r::MMU_READY,
            r::VRAM_SIZE => r::vram_size(self.vram.size()).unwrap_or(0),
            r::DEVINIT => u32::from(state.is_initialised) << 1,
            r::PMU_START | r::FAULT_TRIGGERED => 0,
            r::PMU_MAILBOX => state.get(register),
            r::LTC_SLICES => 1 << 28,
            r::FAULT_ENTRIES => 128,
            r::BAR1_BLOCK
            | r::BAR2_BLOCK
            | r::WINDOW
            | r::INVALIDATE_TABLES
            | r::INVALIDATE_TABLES_HIGH => state.get(register),
            // An invalidation completes before its write is answered.
            r::INVALIDATE => 0,
            r::PROM..r::PROM_END => {
                let at = (register - r::PROM) as usize;
                let bytes = self.vbios.get(at..at + 4);
                bytes.map_or(!0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            }
            r::PRAMIN..r::PRAMIN_END => {
                let mut data = [0; 4];
                let at = self.pramin(register);
                if let Err(error) = self.vram.read(at, &mut data) {
                    self.witness
                        .violation(&format!("PRAMIN at {at:#x}: {error}"));
                }
                u32::from_le_bytes(data)
            }
            r::CHANNELS.. if register < r::CHANNELS + 8 * runlist::CHANNELS => {
                state.host.read(register - r::CHANNELS)
            }
            _ if r::is_stored(register) => state.get(register),
            _ => {
                self.witness.unknown("register", "read", register, 0);
                0
            }
        }
    }

    fn set_register(&mut self, register: u32, value: u32) {
        self.witness.totals.registers += 1;
        let state = &mut self.state;
        match register {
            r::INTR_ALLOW => state.pmc.allow(value),
            r::INTR_BLOCK => state.pmc.block(value),
            r::MSI_REARM => state.pmc.rearm(),
            r::TIME_LOW => self.set_time(0xffff_ffff, u64::from(value)),
            r::TIME_HIGH => self.set_time(0xffff_ffff << 32, u64::from(value) << 32),
            r::FIFO_INTR => state.host.pending &= !value,
            r::FIFO_INTR_ENABLE => state.host.enabled = value,
            r::FAULT_UNITS => {
                state.host.fault_units &= !value;
                if state.host.fault_units == 0 {
                    state.host.pending &= !r::FIFO_MMU_FAULT;
                }
            }
            r::USERD => state.host.userd = value,
            r::PBDMA_INTR => {
                state.host.pbdma.pending &= !value;
                self.with_host(|_, _| {});
            }
            r::PBDMA_INTR_ENABLE => state.host.pbdma.enabled = value,
            r::PBDMA_METHOD => state.host.pbdma.method = value,
            // The bit is pending as long as the PBDMA has an interrupt.
            r::PBDMAS_INTR | r::PBDMA_INTR_1 => {}
            r::ENABLE => {
                state.stored.insert(register, value);
                if value & r::ENABLE_CE == 0 {
                    self.with_host(Host::reset_engine);
                }
            }
            r::PREEMPT => {
                let runlist = [r::RUNLIST, r::RUNLIST_LENGTH].map(|at| state.get(at));
                let runlist = Runlist::new(runlist[0], runlist[1]);
                state.stored.insert(register, value);
                self.with_host(|host, world| host.preempt(world, value, runlist));
            }
            // Set the results of the program, which does not run.
            r::PMU_START if value & r::PMU_START_NOW != 0 => {
                let mailbox = state.get(r::PMU_MAILBOX) | r::PMU_DONE;
                state.stored.insert(r::PMU_MAILBOX, mailbox);
                state.is_initialised = true;
            }
            r::PMU_START => {}
            r::BAR_FLUSH => self.witness.posted.begin_flush(),
            r::INVALIDATE => self.invalidate(value),
            r::MMU_CONTROL
            | r::BAR1_BLOCK
            | r::BAR2_BLOCK
            | r::WINDOW
            | r::SCRUB
            | r::PMU_MAILBOX
            | r::INVALIDATE_TABLES
            | r::INVALIDATE_TABLES_HIGH => {
                state.stored.insert(register, value);
            }
            r::PRAMIN..r::PRAMIN_END => {
                let at = self.pramin(register);
                if let Err(error) = self.vram.write(at, &value.to_le_bytes()) {
                    self.witness
                        .violation(&format!("PRAMIN at {at:#x}: {error}"));
                }
            }
            r::CHANNELS.. if register < r::CHANNELS + 8 * runlist::CHANNELS => {
                let at = register - r::CHANNELS;
                self.with_host(|host, world| host.write(world, at, value));
            }
            _ if r::is_stored(register) => {
                state.stored.insert(register, value);
            }
            _ => self.witness.unknown("register", "write", register, value),
        }
    }

    /// Runs `work` on the host engine, then publishes its results.
    fn with_host(&mut self, work: impl FnOnce(&mut Host, &mut World<'_>)) {
        let space = Space {
            vram: &self.vram,
            memory: &self.memory,
        };
        let mut world = World {
            space,
            tlb: &mut self.tlb,
            now: self.state.now(),
            inject: &mut self.inject,
            witness: &mut self.witness,
        };
        let host = &mut self.state.host;
        work(host, &mut world);
        // A semaphore that one channel has released may let others continue.
        host.retry(&mut world);
        for (at, get) in host.take_gets() {
            if let Ok(tables) = self.tables(r::BAR1_BLOCK) {
                // If USERD is not mapped, nobody reads it.
                let space = Space {
                    vram: &self.vram,
                    memory: &self.memory,
                };
                let _ = self.tlb.write(&tables, space, at, &get.to_le_bytes());
            }
        }
        self.tell_stale("BAR1");
    }

    /// When the delayed transfer is due.
    pub fn due(&self) -> Option<Instant> {
        self.state.host.due()
    }

    /// Finishes the delayed transfer if it is due, and continues.
    pub fn go_on(&mut self) {
        self.with_host(Host::go_on);
        self.interrupt();
    }

    /// Sets one half of the clock and keeps the other.
    fn set_time(&mut self, mask: u64, value: u64) {
        let now = self.state.now();
        let time = (now & !mask) | value;
        self.state.time = self.state.time.wrapping_add(time.wrapping_sub(now));
    }

    /// The video memory address of a register of the PRAMIN window.
    fn pramin(&self, register: u32) -> u64 {
        // Bits 24 and 25 would select host memory.
        let base = u64::from(self.state.get(r::WINDOW) & 0x00ff_ffff) << 16;
        base + u64::from(register - r::PRAMIN)
    }

    fn invalidate(&mut self, what: u32) {
        let low = self.state.get(r::INVALIDATE_TABLES);
        let high = self.state.get(r::INVALIDATE_TABLES_HIGH);
        let tables = u64::from(high) << 32 | u64::from(low);
        self.witness.totals.invalidations += 1;
        let line = self.witness.event(&Event::Invalidate { tables, what });
        if what & r::INVALIDATE_NOW == 0 || what & r::INVALIDATE_PAGES == 0 {
            self.witness
                .unknown("register", "write", r::INVALIDATE, what);
            return;
        }
        // The directory's page number begins at bit 4 of the register.
        let aperture = match tables & 3 {
            0 => Aperture::Vram,
            _ => Aperture::System,
        };
        let root = Place {
            aperture,
            address: (tables >> 4) << 12,
        };
        let is_all = what & r::INVALIDATE_ALL != 0;
        self.tlb.invalidate((!is_all).then_some(root), line);
        // Peers keep BAR1 addresses for a long time.
        let bar1 = self.tables(r::BAR1_BLOCK);
        if let Some(tables) = bar1.ok().filter(|tables| is_all || tables.root == root) {
            let space = Space {
                vram: &self.vram,
                memory: &self.memory,
            };
            self.tlb.look(&tables, space, line);
        }
    }

    fn space(&self) -> Space<'_> {
        Space {
            vram: &self.vram,
            memory: &self.memory,
        }
    }

    /// The page tables of a BAR.
    fn tables(&self, block: u32) -> Result<Tables, Fault> {
        let instance = u64::from(self.state.get(block) & r::BLOCK_POINTER) << 12;
        Tables::of(self.space(), instance)
    }

    /// Reads through BAR1: video memory, or other mapped memory.
    pub fn bar1_read(&mut self, at: u64, data: &mut [u8]) {
        self.bar1(at, Access::Read(data));
    }

    /// Writes through BAR1, and runs the channel if the write is a doorbell.
    pub fn bar1_write(&mut self, at: u64, data: &[u8]) {
        self.bar1(at, Access::Write(data));
        let chid = self.state.host.doorbell(at, data.len());
        self.with_host(|host, world| {
            if let (Some(chid), Ok(put)) = (chid, data.try_into()) {
                host.ring(world, chid, u32::from_le_bytes(put));
            }
        });
        self.interrupt();
    }

    /// Whether a BAR does not translate addresses. Then an access is a violation and does
    /// nothing.
    fn is_off(&mut self, bar: &str, block: u32, at: u64, access: &mut Access<'_>) -> bool {
        let is_off = self.state.get(block) & r::BLOCK_VIRTUAL == 0;
        if is_off {
            let len = access.len();
            let what = format!("{bar} is off, and was used at {at:#x}, {len} bytes");
            self.witness.violation(&what);
            if let Access::Read(data) = access {
                data.fill(NOTHING);
            }
        }
        is_off
    }

    fn bar1(&mut self, at: u64, mut access: Access<'_>) {
        let len = access.len() as u64;
        self.witness.totals.bar1_accesses += 1;
        self.witness.totals.bar1_bytes += len;
        let write = matches!(access, Access::Write(_));
        if self.is_off("BAR1", r::BAR1_BLOCK, at, &mut access) {
            return;
        }
        let space = Space {
            vram: &self.vram,
            memory: &self.memory,
        };
        let instance = u64::from(self.state.stored[&r::BAR1_BLOCK] & r::BLOCK_POINTER) << 12;
        let (tlb, witness) = (&mut self.tlb, &mut self.witness);
        let tables = Tables::of(space, instance);
        let done = tables.clone().and_then(|tables| {
            tlb.pieces(&tables, space, (at, len), write, |found, at, part| {
                let Some(place) = found.page.at(at) else {
                    return Ok(());
                };
                if found.is_first {
                    witness.event(&Event::Bar1 { at, place, write });
                }
                match &mut access {
                    Access::Read(data) => space.read(place, &mut data[part]),
                    Access::Write(data) => {
                        witness.posted.write(place, part.len() as u64);
                        space.write(place, &data[part])
                    }
                }
            })
        });
        self.tell_stale("BAR1");
        if let Err(fault) = done {
            let history = |tables| format!("; {}", self.tlb.history(&tables, at));
            let history = tables.map_or(String::new(), history);
            let verb = if write { "written" } else { "read" };
            let what = format!("BAR1 was {verb} at {at:#x}, {len} bytes: {fault}{history}");
            self.witness.violation(&what);
            if let Access::Read(data) = access {
                data.fill(NOTHING);
            }
        }
    }

    fn tell_stale(&mut self, bar: &str) {
        for what in self.tlb.take_stale() {
            self.witness.violation(&format!("{bar} at {what}"));
        }
        // This includes pages that a channel used: an unknown kind does not name its user.
        for (kind, at) in self.tlb.take_kinds() {
            self.witness.unknown("kind", "page", kind.into(), at as u32);
        }
    }

    /// Reads instance memory through BAR2.
    pub fn bar2_read(&mut self, at: u64, data: &mut [u8]) {
        self.bar2(at, Access::Read(data));
    }

    /// Writes instance memory through BAR2.
    pub fn bar2_write(&mut self, at: u64, data: &[u8]) {
        self.bar2(at, Access::Write(data));
    }

    fn bar2(&mut self, at: u64, mut access: Access<'_>) {
        self.witness.totals.bar2_accesses += 1;
        // Without BAR2, nouveau uses PRAMIN.
        if self.is_off("BAR2", r::BAR2_BLOCK, at, &mut access) {
            return;
        }
        let tables = self.tables(r::BAR2_BLOCK);
        let space = Space {
            vram: &self.vram,
            memory: &self.memory,
        };
        let done = match (tables, access) {
            (Ok(tables), Access::Write(data)) => self.tlb.write(&tables, space, at, data),
            (Ok(tables), Access::Read(data)) => {
                let read = self.tlb.read(&tables, space, at, data);
                if read.is_err() {
                    data.fill(NOTHING);
                }
                read
            }
            (Err(fault), _) => Err(fault),
        };
        self.tell_stale("BAR2");
        if let Err(fault) = done {
            self.witness.violation(&format!("BAR2 at {at:#x}: {fault}"));
        }
    }

    /// Sends an MSI if one is due.
    fn interrupt(&mut self) {
        let state = &mut self.state;
        let is_pending = state.host.interrupts() & state.host.enabled != 0;
        state.pmc.pending = if is_pending { interrupt::FIFO } else { 0 };
        if state.pmc.take() {
            self.witness.totals.interrupts += 1;
            self.irqs.trigger(0);
        }
    }
}

#[cfg(test)]
mod tests;
