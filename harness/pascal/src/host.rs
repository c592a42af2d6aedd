//! The host engine, which nouveau calls FIFO: channels and their interrupts
//! (`engine/fifo/gk104.c`, `gm200.c`, `gp100.c`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::channel::{Bad, Channel, Death, Stop};
use crate::copy::Context;
use crate::home::Home;
use crate::inject::Inject;
use crate::registers::{
    CE_FAULT, FAULT_INFO, FIFO_MMU_FAULT, FIFO_NON_STALL, FIFO_PBDMA, PREEMPT_GROUP,
};
use crate::runlist::{CHANNELS, Runlist};
use crate::space::{Fault, Space};
use crate::tlb::Tlb;
use crate::witness::Witness;

/// Bytes of each channel's USERD.
pub const USERD_SIZE: u64 = 0x200;
/// In USERD: the ring's get index, which the device writes.
const USERD_GET: u64 = 0x88;
/// In USERD: the ring's put index. A write to it is the doorbell.
const USERD_PUT: u64 = 0x8c;

/// In a channel's first register: the channel is bound to an instance block.
const BOUND: u32 = 1 << 31;
/// In a channel's second register: start, stop, and the bit that a running channel reads as.
const START: u32 = 0x400;
const STOP: u32 = 0x800;
const ENABLED: u32 = 1;

/// The unit number of the host's page faults (`gp100_fifo_mmu_fault_engine`).
const HOST_FAULT: u32 = 0x06;

#[derive(Default)]
struct Slot {
    bound: u32,
    channel: Option<Channel>,
    is_dead: bool,
    /// The driver has stopped the channel while its transfer is in flight.
    is_stopped: bool,
    home: Home,
}

impl Slot {
    fn runs(&self) -> bool {
        self.channel.is_some() && !self.is_dead && !self.is_stopped
    }
}

/// The engine is busy with a transfer. All channels wait, as they share a runlist, a PBDMA
/// and the engine.
struct Busy {
    chid: u32,
    /// When the transfer ends. None if the engine hangs.
    until: Option<Instant>,
}

/// The error that the PBDMA reports. The PBDMA stops until the driver has acknowledged it.
#[derive(Default)]
pub struct Pbdma {
    /// `NV_PPBDMA_INTR_0`.
    pub pending: u32,
    /// The unmasked bits of `pending`.
    pub enabled: u32,
    /// The subchannel and the method.
    pub method: u32,
    /// The method's data.
    pub data: u32,
    /// The channel.
    pub chid: u32,
}

impl Pbdma {
    /// Whether the PBDMA has an unmasked interrupt.
    pub fn interrupts(&self) -> bool {
        self.pending & self.enabled != 0
    }
}

/// The state of the host engine.
#[derive(Default)]
pub struct Host {
    slots: BTreeMap<u32, Slot>,
    busy: Option<Busy>,
    /// The one PBDMA.
    pub pbdma: Pbdma,
    /// New get indexes that are not written to USERD yet, by their address in BAR1.
    gets: BTreeMap<u64, u32>,
    /// `NV_PFIFO_INTR`, without the PBDMA bit.
    pub pending: u32,
    /// The unmasked interrupts.
    pub enabled: u32,
    /// The register with USERD's place in BAR1.
    pub userd: u32,
    /// Units with a page fault, one bit each.
    pub fault_units: u32,
    faults: BTreeMap<u32, u32>,
}

/// The parts of the device that the host engine uses.
pub struct World<'a> {
    /// Memory.
    pub space: Space<'a>,
    /// The TLB.
    pub tlb: &'a mut Tlb,
    /// The GPU's time.
    pub now: u64,
    /// The requested errors of the copy engine.
    pub inject: &'a mut Inject,
    /// The log.
    pub witness: &'a mut Witness,
}

impl Host {
    /// Reads a channel's register. `at`: the offset from the first channel's registers.
    pub fn read(&self, at: u32) -> u32 {
        let slot = self.slots.get(&(at / 8));
        match at % 8 {
            0 => slot.map_or(0, |slot| slot.bound),
            _ => slot.map_or(0, |slot| {
                let is_enabled = slot.channel.is_some() && !slot.is_stopped;
                if is_enabled { ENABLED } else { 0 }
            }),
        }
    }

    /// Pending interrupts, including the PBDMA's.
    pub fn interrupts(&self) -> u32 {
        let of_pbdma = if self.pbdma.interrupts() {
            FIFO_PBDMA
        } else {
            0
        };
        self.pending | of_pbdma
    }

    /// Writes a channel's register.
    pub fn write(&mut self, world: &mut World<'_>, at: u32, value: u32) {
        let chid = at / 8;
        if chid >= CHANNELS {
            world.witness.channel(chid, "there is no such channel");
            return;
        }
        let is_busy = self.is_busy_with(chid);
        if at.is_multiple_of(8) {
            if is_busy {
                self.take_off(world, chid);
            }
            let slot = self.slots.entry(chid).or_default();
            slot.bound = value;
            slot.channel = None;
            slot.is_dead = false;
            let what = if value & BOUND == 0 {
                "unbound"
            } else {
                "bound"
            };
            world.witness.channel(chid, what);
            return;
        }
        let slot = self.slots.entry(chid).or_default();
        if value & STOP != 0 && is_busy {
            // The engine continues the transfer until the driver preempts the channel.
            slot.is_stopped = true;
            let what = "stopped, and a transfer of it is on its way";
            world.witness.channel(chid, what);
        } else if value & STOP != 0 && slot.channel.take().is_some() {
            world.witness.channel(chid, "stopped");
        }
        if value & START != 0 && std::mem::take(&mut slot.is_stopped) {
            world.witness.channel(chid, "started, and goes on");
        }
        if value & START != 0 && slot.bound & BOUND != 0 && slot.channel.is_none() {
            let instance = u64::from(slot.bound & 0x0fff_ffff) << 12;
            match Channel::load(world.space, instance) {
                Ok(channel) => {
                    slot.channel = Some(channel);
                    slot.home = Home::default();
                    world.witness.channel(chid, "started");
                }
                Err(fault) => {
                    slot.is_dead = true;
                    world
                        .witness
                        .channel(chid, &format!("not started: {fault}"));
                }
            }
        }
    }

    /// Preempts a channel or a group of channels. A channel that the driver has stopped before
    /// loses its transfer. Any other channel would run next again.
    pub fn preempt(&mut self, world: &mut World<'_>, what: u32, runlist: Runlist) {
        let chids = if what & PREEMPT_GROUP == 0 {
            vec![what & 0xfff]
        } else {
            runlist.channels(world.space, what & 0xfff)
        };
        for chid in chids {
            let slot = self.slots.get(&chid);
            if self.is_busy_with(chid) && slot.is_some_and(|slot| slot.is_stopped) {
                self.take_off(world, chid);
            }
        }
    }

    fn is_busy_with(&self, chid: u32) -> bool {
        self.busy.as_ref().is_some_and(|busy| busy.chid == chid)
    }

    fn take_off(&mut self, world: &mut World<'_>, chid: u32) {
        self.busy = None;
        if let Some(slot) = self.slots.get_mut(&chid) {
            slot.channel = None;
            slot.is_stopped = false;
        }
        let what = "off the engine: its transfer is dropped";
        world.witness.channel(chid, what);
    }

    /// Resets the copy engine. The transfer in flight is lost. Its channel continues with the
    /// next command, unless the driver has stopped the channel.
    pub fn reset_engine(&mut self, world: &mut World<'_>) {
        world.inject.reset();
        let Some(Busy { chid, .. }) = self.busy.take() else {
            return;
        };
        world
            .witness
            .channel(chid, "the copy engine is reset: a transfer is lost");
        if let Some(slot) = self.slots.get_mut(&chid) {
            if let Some(channel) = &mut slot.channel {
                channel.reset_engine();
            }
            if std::mem::take(&mut slot.is_stopped) {
                slot.channel = None;
            }
        }
    }

    /// When the delayed transfer is due.
    pub fn due(&self) -> Option<Instant> {
        self.busy.as_ref()?.until
    }

    /// Finishes the delayed transfer if it is due. The channel continues, unless the driver has
    /// stopped it.
    pub fn go_on(&mut self, world: &mut World<'_>) {
        if self.due().is_none_or(|due| due > Instant::now()) {
            return;
        }
        let Some(Busy { chid, .. }) = self.busy.take() else {
            return;
        };
        self.with(world, chid, Channel::finish);
        if let Some(slot) = self.slots.get_mut(&chid)
            && std::mem::take(&mut slot.is_stopped)
        {
            slot.channel = None;
        }
    }

    /// A register that describes a page fault.
    pub fn fault(&self, register: u32) -> u32 {
        self.faults.get(&register).copied().unwrap_or(0)
    }

    /// The channel whose doorbell this BAR1 write rings, if any.
    pub fn doorbell(&self, at: u64, len: usize) -> Option<u32> {
        // Bit 28: USERD is enabled.
        let base = u64::from(self.userd & 0x0fff_ffff) << 12;
        if self.userd & 1 << 28 == 0 || at < base {
            return None;
        }
        let chid = u32::try_from((at - base) / USERD_SIZE).ok()?;
        let inside = (at - base) % USERD_SIZE;
        (chid < CHANNELS && inside == USERD_PUT && len == 4).then_some(chid)
    }

    /// Rings a channel's doorbell: the driver has added work.
    pub fn ring(&mut self, world: &mut World<'_>, chid: u32, put: u32) {
        world.witness.totals.doorbells += 1;
        let Some(slot) = self.slots.get_mut(&chid) else {
            return;
        };
        let runs = slot.runs();
        let Some(channel) = slot.channel.as_mut().filter(|_| runs) else {
            world
                .witness
                .channel(chid, "doorbell of a channel that does not run");
            return;
        };
        channel.put = put;
        slot.home.ring();
        self.run(world, chid);
    }

    /// Retries the channels that wait for a semaphore or could not run before.
    pub fn retry(&mut self, world: &mut World<'_>) {
        let has_work = |slot: &Slot| slot.channel.as_ref().is_some_and(Channel::has_work);
        let waiting: Vec<u32> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.runs() && has_work(slot))
            .map(|(chid, _)| *chid)
            .collect();
        for chid in waiting {
            self.run(world, chid);
        }
    }

    /// Takes the new get indexes, by the BAR1 address at which the driver reads them.
    pub fn take_gets(&mut self) -> BTreeMap<u64, u32> {
        std::mem::take(&mut self.gets)
    }

    fn run(&mut self, world: &mut World<'_>, chid: u32) {
        if self.busy.is_none() && self.pbdma.pending == 0 {
            self.with(world, chid, Channel::run);
        }
    }

    /// Runs `work` on a channel and handles the result.
    fn with(
        &mut self,
        world: &mut World<'_>,
        chid: u32,
        work: fn(&mut Channel, &mut Context<'_>) -> Stop,
    ) {
        let Some(slot) = self.slots.get_mut(&chid) else {
            return;
        };
        let Some(channel) = slot.channel.as_mut() else {
            return;
        };
        let mut context = Context {
            space: world.space,
            tables: channel.tables(),
            tlb: world.tlb,
            chid,
            now: world.now,
            inject: world.inject,
            home: &mut slot.home,
            witness: world.witness,
        };
        let before = channel.get;
        let stop = work(channel, &mut context);
        for what in world.tlb.take_stale() {
            let what = format!("channel {chid} used {what}");
            world.witness.violation(&what);
        }
        if std::mem::take(&mut channel.interrupts) {
            self.pending |= FIFO_NON_STALL;
        }
        if channel.get != before {
            let base = u64::from(self.userd & 0x0fff_ffff) << 12;
            let at = base + u64::from(chid) * USERD_SIZE + USERD_GET;
            self.gets.insert(at, channel.get);
        }
        match stop {
            Stop::Idle | Stop::Waiting => {}
            Stop::Busy(time) => self.begin(world, chid, time),
            Stop::Dead(death) => self.end(world, chid, death),
        }
    }

    fn begin(&mut self, world: &mut World<'_>, chid: u32, time: Option<Duration>) {
        let what = match time {
            Some(time) => format!("a transfer takes {} ms", time.as_millis()),
            None => "the copy engine hangs".to_owned(),
        };
        world.witness.channel(chid, &what);
        // If the end time overflows, the transfer never ends.
        let until = time.and_then(|time| Instant::now().checked_add(time));
        self.busy = Some(Busy { chid, until });
    }

    /// Ends a channel after an error.
    fn end(&mut self, world: &mut World<'_>, chid: u32, death: Death) {
        let slot = self.slots.entry(chid).or_default();
        slot.is_dead = true;
        let bound = slot.bound;
        world.witness.totals.dead_channels += 1;
        let (unit, fault) = match death {
            Death::Host(fault) => (HOST_FAULT, fault),
            Death::Engine(fault) => (CE_FAULT, fault),
            Death::Command(bad) => {
                let what = format!("dead: {}", bad.what);
                world.witness.channel(chid, &what);
                self.complain(chid, &bad);
                return;
            }
        };
        world.witness.channel(chid, &format!("dead: {fault}"));
        self.report(unit, bound, &fault);
    }

    /// Reports an invalid command as `gf100_runq_intr()` reads it. The driver then stops the
    /// channel.
    fn complain(&mut self, chid: u32, bad: &Bad) {
        self.pbdma = Pbdma {
            pending: bad.interrupt,
            method: (bad.method.subchannel as u32) << 16 | bad.method.method,
            data: bad.method.data,
            chid,
            ..self.pbdma
        };
    }

    /// Reports a page fault as `gp100_fifo_intr_mmu_fault_unit()` reads it.
    fn report(&mut self, unit: u32, bound: u32, fault: &Fault) {
        let (va, reason) = match fault {
            Fault::NoTable(va) => (*va, 0x00),
            Fault::NoPage(va) => (*va, 0x02),
            Fault::Limit(va) => (*va, 0x03),
            Fault::ReadOnly(va) => (*va, 0x06),
            Fault::Peer(va) => (*va, 0x0a),
            Fault::Version(va) => (*va, 0x04),
            Fault::Injected => (0, 0x02),
            Fault::Nothing(place, _) => (place.address, 0x0d),
        };
        let at = FAULT_INFO + unit * 0x10;
        self.faults.insert(at, bound & 0x0fff_ffff);
        self.faults.insert(at + 4, va as u32);
        self.faults.insert(at + 8, (va >> 32) as u32);
        // Bit 20: the client is not part of the graphics engine.
        self.faults.insert(at + 12, 1 << 20 | reason);
        self.fault_units |= 1 << unit;
        self.pending |= FIFO_MMU_FAULT;
    }
}
