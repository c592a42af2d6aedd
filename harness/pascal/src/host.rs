//! The host engine, which nouveau calls FIFO: channels and their interrupts
//! (`engine/fifo/gk104.c`, `gm200.c`, `gp100.c`).

use std::collections::BTreeMap;

use crate::channel::{Channel, Death, Stop};
use crate::copy::Context;
use crate::registers::{CE_FAULT, FAULT_INFO, FIFO_MMU_FAULT, FIFO_NON_STALL};
use crate::space::{Fault, Space};
use crate::tlb::Tlb;
use crate::witness::Witness;

/// Channels. A device has 4096; memory for each is taken from BAR1.
pub const CHANNELS: u32 = 64;
/// Bytes of each channel's USERD.
pub const USERD_SIZE: u64 = 0x200;
/// In it: how far the device has read the ring.
const USERD_GET: u64 = 0x88;
/// And where the ring ends; a write of it is the doorbell.
const USERD_PUT: u64 = 0x8c;

/// In a channel's first register: it is bound to an instance block.
const BOUND: u32 = 1 << 31;
/// In its second register: start, stop, and what it reads as.
const START: u32 = 0x400;
const STOP: u32 = 0x800;
const ENABLED: u32 = 1;

/// What a page fault of the host is reported as (`gp100_fifo_mmu_fault_engine`).
const HOST_FAULT: u32 = 0x06;

#[derive(Default)]
struct Slot {
    bound: u32,
    channel: Option<Channel>,
    is_dead: bool,
}

/// The state of the host engine.
#[derive(Default)]
pub struct Host {
    slots: BTreeMap<u32, Slot>,
    /// `NV_PFIFO_INTR`.
    pub pending: u32,
    /// And which ones are let through.
    pub enabled: u32,
    /// Where USERD is in BAR1, as the driver has written it.
    pub userd: u32,
    /// Parts that have a page fault, a bit each.
    pub fault_units: u32,
    faults: BTreeMap<u32, u32>,
}

/// What the host engine works with.
pub struct World<'a> {
    /// Memory.
    pub space: Space<'a>,
    /// Translations.
    pub tlb: &'a mut Tlb,
    /// The GPU's time.
    pub now: u64,
    /// How many more transfers are carried out.
    pub transfers: &'a mut u64,
    /// The log.
    pub witness: &'a mut Witness,
}

impl Host {
    /// Reads a channel's register; `at` counts from the first channel's.
    pub fn read(&self, at: u32) -> u32 {
        let slot = self.slots.get(&(at / 8));
        match at % 8 {
            0 => slot.map_or(0, |slot| slot.bound),
            _ => slot.map_or(0, |slot| if slot.channel.is_some() { ENABLED } else { 0 }),
        }
    }

    /// Writes a channel's register.
    pub fn write(&mut self, world: &mut World<'_>, at: u32, value: u32) {
        let chid = at / 8;
        if chid >= CHANNELS {
            world.witness.channel(chid, "there is no such channel");
            return;
        }
        let slot = self.slots.entry(chid).or_default();
        if at.is_multiple_of(8) {
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
        if value & STOP != 0 && slot.channel.take().is_some() {
            world.witness.channel(chid, "stopped");
        }
        if value & START != 0 && slot.bound & BOUND != 0 && slot.channel.is_none() {
            let instance = u64::from(slot.bound & 0x0fff_ffff) << 12;
            match Channel::load(world.space, instance) {
                Ok(channel) => {
                    slot.channel = Some(channel);
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

    /// A register that describes a page fault.
    pub fn fault(&self, register: u32) -> u32 {
        self.faults.get(&register).copied().unwrap_or(0)
    }

    /// Where in BAR1 a write is a doorbell: the channel that it is for.
    pub fn doorbell(&self, at: u64, len: usize) -> Option<u32> {
        // Bit 28: the area is in use.
        let base = u64::from(self.userd & 0x0fff_ffff) << 12;
        if self.userd & 1 << 28 == 0 || at < base {
            return None;
        }
        let chid = u32::try_from((at - base) / USERD_SIZE).ok()?;
        let inside = (at - base) % USERD_SIZE;
        (chid < CHANNELS && inside == USERD_PUT && len == 4).then_some(chid)
    }

    /// The driver has more work for a channel. Gives how far the ring was read, and
    /// where in BAR1 the driver looks for that.
    pub fn ring(&mut self, world: &mut World<'_>, chid: u32, put: u32) -> Option<(u64, u32)> {
        world.witness.totals.doorbells += 1;
        let slot = self.slots.get_mut(&chid)?;
        let Some(channel) = slot.channel.as_mut().filter(|_| !slot.is_dead) else {
            world
                .witness
                .channel(chid, "doorbell of a channel that does not run");
            return None;
        };
        channel.put = put;
        self.run(world, chid);
        // What it released may be what others wait for.
        self.retry(world);
        let get = self.slots.get(&chid)?.channel.as_ref()?.get;
        let base = u64::from(self.userd & 0x0fff_ffff) << 12;
        Some((base + u64::from(chid) * USERD_SIZE + USERD_GET, get))
    }

    /// Looks whether channels that wait can go on.
    pub fn retry(&mut self, world: &mut World<'_>) {
        let is_waiting = |slot: &Slot| slot.channel.as_ref().is_some_and(Channel::is_waiting);
        let waiting: Vec<u32> = self
            .slots
            .iter()
            .filter(|(_, slot)| !slot.is_dead && is_waiting(slot))
            .map(|(chid, _)| *chid)
            .collect();
        for chid in waiting {
            self.run(world, chid);
        }
    }

    fn run(&mut self, world: &mut World<'_>, chid: u32) {
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
            transfers: world.transfers,
            witness: world.witness,
        };
        let stop = channel.run(&mut context);
        for what in world.tlb.take_stale() {
            let what = format!("channel {chid} used {what}");
            world.witness.violation(&what);
        }
        if std::mem::take(&mut channel.interrupts) {
            self.pending |= FIFO_NON_STALL;
        }
        let Stop::Dead(death) = stop else {
            return;
        };
        slot.is_dead = true;
        let bound = slot.bound;
        world.witness.totals.dead_channels += 1;
        let (unit, fault) = match death {
            Death::Host(fault) => (HOST_FAULT, fault),
            Death::Engine(fault) => (CE_FAULT, fault),
            Death::Command(what) => {
                world.witness.channel(chid, &format!("dead: {what}"));
                return;
            }
        };
        world.witness.channel(chid, &format!("dead: {fault}"));
        self.report(unit, bound, &fault);
    }

    /// Describes a page fault as `gp100_fifo_intr_mmu_fault_unit()` reads it.
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
        // Bit 20: of a client that is not a part of the graphics engine.
        self.faults.insert(at + 12, 1 << 20 | reason);
        self.fault_units |= 1 << unit;
        self.pending |= FIFO_MMU_FAULT;
    }
}
