//! The device: its registers, its objects, and the thread that moves data.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Result;
use endpoint::config::Config;
use endpoint::irq::Irqs;
use endpoint::proxy::Answer;

use crate::bus::Bus;
use crate::device::command::Status;
use crate::device::fault::Faults;
use crate::device::mkey::Mkey;
use crate::device::queue::{Cq, Eq};
use crate::layout::{Constants, Headers, Layouts};
use crate::memory::{Memory, Refused, Target};
use crate::pci;
use crate::qp::{Qp, Srq};
use crate::witness::{Dma, Witness};

pub mod command;
pub mod fault;
pub mod mkey;
pub mod queue;

/// How the device reports page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scheme {
    /// By work request, as ConnectX-4 to 6 do.
    Transport,
    /// By key and address, as ConnectX-7 and later do.
    Memory,
}

/// Options of the device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How the device reports page faults.
    pub scheme: Scheme,
    /// The LID of its port. The GUID contains it.
    pub lid: u16,
    /// Report refused commands and other oddities on standard error.
    pub verbose: bool,
}

/// The first UAR. The init segment and QEMU's MSI-X table are below it.
pub const FIRST_UAR: u64 = 8;

/// log2 of the size of a BlueFlame register, a doorbell for requests to send.
pub const LOG_BLUE_FLAME: u64 = 9;

/// The doorbells of event queues in a UAR (`MLX5_EQ_DOORBELL_OFFSET`): the first one also arms the
/// queue. Only the driver's sources define them, which the model does not read; a test does.
pub const EQ_ARM: u64 = 0x40;
/// As [`EQ_ARM`], and leaves the queue as it is.
pub const EQ_UPDATE: u64 = EQ_ARM + 8;

/// log2 of the number of commands and of a command's size, as in the register.
const COMMANDS: u32 = 5;
const COMMAND_STRIDE: u32 = 6;

/// The numbers that [`Device::number`] returns are above this one.
const FIRST_NUMBER: u32 = 0x100;
const LAST_NUMBER: u32 = 0xff_ffff;
/// Limit of the number of objects.
const MAX_OBJECTS: usize = 1 << 20;

/// How often to check a queue pair in error for requests to flush.
pub const FLUSH_AGAIN: Duration = Duration::from_millis(5);

/// The definitions from the headers.
#[derive(Clone)]
pub struct Definitions {
    l: Layouts,
    c: Constants,
    names: BTreeMap<u64, String>,
    sizes: BTreeMap<u64, (usize, usize)>,
}

impl Definitions {
    /// Looks up the definitions.
    pub fn load(headers: &Headers) -> Result<Self> {
        Ok(Self {
            l: Layouts::load(headers)?,
            c: Constants::load(headers)?,
            names: headers.ops(),
            sizes: headers.op_sizes(),
        })
    }
}

/// The device.
pub struct Device {
    /// Layouts of structures.
    pub l: Layouts,
    /// Constants.
    pub c: Constants,
    pub(crate) names: BTreeMap<u64, String>,
    pub(crate) sizes: BTreeMap<u64, (usize, usize)>,
    /// Options.
    pub options: Options,
    /// The device at the other end of the wire, while this one is in use ([`crate::wire`]).
    pub far: Option<Box<Device>>,
    /// The memory that QEMU shares.
    pub memory: Memory,
    /// The memory that QEMU accesses for the device.
    pub bus: Bus,
    /// Configuration space.
    pub config: Config,
    /// Interrupts.
    pub irqs: Irqs,
    /// The log.
    pub witness: Witness,
    begin: Instant,
    /// Its address. The bits below a page hold the state of the interface.
    command_queue: (u32, u32),
    pub(crate) caps: BTreeMap<u64, Vec<u8>>,
    pub(crate) max_caps: BTreeMap<u64, Vec<u8>>,
    pub(crate) pages: Vec<u64>,
    pub(crate) eqs: BTreeMap<u32, Eq>,
    pub(crate) cqs: HashMap<u32, Cq>,
    pub(crate) qps: HashMap<u32, Qp>,
    pub(crate) srqs: HashMap<u32, Srq>,
    pub(crate) mkeys: HashMap<u32, Mkey>,
    pub(crate) simple: HashSet<(Simple, u32)>,
    /// The members of multicast groups: queue pair and group.
    pub(crate) groups: HashSet<(u32, Gid)>,
    /// `cap_mask1`: the port capabilities that the driver has set.
    pub(crate) port_capabilities: u64,
    pub(crate) next_number: u32,
    pub(crate) faults: Faults,
    pub(crate) reserved_lkey: u32,
    pub(crate) null_mkey: u32,
    /// The DMA of the current packet. Dropped if the packet begins again.
    pub(crate) moved: Vec<(Dma, Result<Target, Refused>)>,
    runnable: VecDeque<u32>,
    timers: Vec<(Instant, u32)>,
}

/// The GID of a port or a multicast group.
pub type Gid = [u8; 16];

/// Objects that only consist of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Simple {
    /// Protection domain.
    Pd,
    /// Doorbell page.
    Uar,
    /// XRC domain.
    Xrcd,
}

impl Device {
    /// Creates a device in its state after power on.
    pub fn new(
        definitions: Definitions,
        options: Options,
        memory: Memory,
        witness: Witness,
    ) -> Self {
        let mut device = Self {
            l: definitions.l,
            c: definitions.c,
            names: definitions.names,
            sizes: definitions.sizes,
            options,
            far: None,
            memory,
            bus: Bus::default(),
            moved: Vec::new(),
            config: pci::config(),
            irqs: Irqs::default(),
            witness,
            begin: Instant::now(),
            command_queue: (0, 0),
            caps: BTreeMap::new(),
            max_caps: BTreeMap::new(),
            pages: Vec::new(),
            eqs: BTreeMap::new(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            mkeys: HashMap::new(),
            simple: HashSet::new(),
            groups: HashSet::new(),
            port_capabilities: 0,
            next_number: FIRST_NUMBER,
            faults: Faults::default(),
            // CREATE_MKEY returns neither of these keys.
            reserved_lkey: 0x300,
            null_mkey: 0x400,
            runnable: VecDeque::new(),
            timers: Vec::new(),
        };
        device.command_queue = device.no_commands();
        device.max_caps = device.capabilities();
        device.caps = device.defaults();
        device
    }

    /// Returns to the state after power on. Mappings and interrupts belong to QEMU and stay.
    pub fn reset(&mut self) {
        self.teardown();
        self.config = pci::config();
        self.memory.is_bus_master = false;
        self.command_queue = self.no_commands();
        self.pages.clear();
        self.caps = self.defaults();
        self.port_capabilities = 0;
        self.witness.reset();
    }

    /// The command queue after a reset. The interface is disabled until the driver writes an
    /// address: by that the driver notices a reset that it has not asked for.
    fn no_commands(&self) -> (u32, u32) {
        let c = &self.c.misc;
        (0, (c.interface_disabled << c.interface_shift) as u32)
    }

    /// Destroys all objects.
    pub(crate) fn teardown(&mut self) {
        let sends = self.qps.values_mut().filter_map(|qp| qp.current.take());
        for send in Vec::from_iter(sends) {
            self.give_back(&send);
        }
        if let Some(far) = &mut self.far {
            far.stop_waiting();
        }
        self.eqs.clear();
        self.cqs.clear();
        self.qps.clear();
        self.srqs.clear();
        self.mkeys.clear();
        self.simple.clear();
        self.groups.clear();
        self.faults = Faults::default();
        self.bus.forget();
        self.witness.forget_all();
        self.runnable.clear();
        self.timers.clear();
    }

    /// Reports an oddity that breaks no rule.
    pub(crate) fn note(&self, what: &str) {
        if self.options.verbose {
            eprintln!("connectx: {what}");
        }
    }

    /// A number for a new object. Numbers are reused as late as possible, so a destroyed object
    /// is not mistaken for a new one.
    pub(crate) fn number(&mut self) -> Result<u32, Status> {
        let queues = self.cqs.len() + self.qps.len() + self.srqs.len();
        if queues + self.mkeys.len() + self.simple.len() >= MAX_OBJECTS {
            return Err(Status::NoResources);
        }
        loop {
            self.next_number = match self.next_number {
                LAST_NUMBER => FIRST_NUMBER + 1,
                number => number + 1,
            };
            let n = self.next_number;
            let is_used = self.cqs.contains_key(&n)
                || self.qps.contains_key(&n)
                || self.srqs.contains_key(&n)
                || self.mkeys.contains_key(&n)
                || self.simple.contains(&(Simple::Pd, n))
                || self.simple.contains(&(Simple::Xrcd, n));
            if !is_used {
                return Ok(n);
            }
        }
    }

    /// Writes to configuration space. Returns whether that was a function level reset.
    pub fn config_write(&mut self, at: u64, data: &[u8]) -> bool {
        let is_reset = self.config.starts_flr(at, data);
        if is_reset {
            let config = self.config.after_flr(pci::config());
            self.reset();
            self.config = config;
        } else {
            self.config.write(at, data);
        }
        self.memory.is_bus_master = self.config.is_bus_master();
        self.witness.bus_master(self.memory.is_bus_master);
        is_reset
    }

    /// Reads registers.
    pub fn read(&self, at: u64, data: &mut [u8]) {
        for (n, byte) in data.iter_mut().enumerate() {
            let at = at.wrapping_add(n as u64);
            let register = self.register(at & !3);
            *byte = register.to_be_bytes()[(at & 3) as usize];
        }
    }

    fn register(&self, at: u64) -> u32 {
        let l = &self.l.init_seg;
        let is = |field: crate::layout::Field| field.byte() as u64 == at;
        let us = self.begin.elapsed().as_micros() as u64;
        if is(l.fw_rev) {
            // 20.43.0
            43 << 16 | 20
        } else if is(l.cmdif_rev_fw_sub) {
            5 << 16
        } else if is(l.cmdq_addr_h) {
            self.command_queue.0
        } else if is(l.cmdq_addr_l_sz) {
            self.command_queue.1 | COMMANDS << 4 | COMMAND_STRIDE
        } else if is(l.internal_timer_h) {
            (us >> 32) as u32
        } else if is(l.internal_timer_l) {
            us as u32
        } else if is(l.health_counter) {
            (us / 1000) as u32
        } else {
            0
        }
    }

    /// Writes registers and doorbells.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        let number = |data: &[u8]| {
            let mut bytes = [0; 4];
            let len = data.len().min(4);
            bytes[..len].copy_from_slice(&data[..len]);
            u32::from_be_bytes(bytes)
        };
        let first = number(data);
        let second = number(data.get(4..).unwrap_or_default());
        let c = self.c.uar;
        let page = at >> c.page_shift;
        if page < FIRST_UAR {
            let l = &self.l.init_seg;
            let is = |field: crate::layout::Field| field.byte() as u64 == at;
            if is(l.cmdq_addr_h) {
                self.command_queue.0 = first;
                if data.len() == 8 {
                    self.command_queue.1 = second & !0xff;
                }
            } else if is(l.cmdq_addr_l_sz) {
                self.command_queue.1 = first & !0xff;
            } else if is(l.cmd_dbell) {
                self.commands(first);
            }
            return;
        }
        let uar = u32::try_from(page).unwrap_or(u32::MAX);
        if !self.simple.contains(&(Simple::Uar, uar)) {
            return self.note(&format!("a doorbell in UAR {page}, which is not allocated"));
        }
        let offset = at & ((1 << c.page_shift) - 1);
        // A driver uses the two halves of a BlueFlame register in turn.
        let is_half = |at: u64| {
            at >> LOG_BLUE_FLAME < c.blue_flames && at.is_multiple_of(1 << (LOG_BLUE_FLAME - 1))
        };
        match offset {
            EQ_ARM => self.eq_doorbell(first, true),
            EQ_UPDATE => self.eq_doorbell(first, false),
            _ if data.len() < 8 => {}
            _ if offset == c.cq => self.cq_doorbell(first, second),
            // BlueFlame: the first eight bytes of a work request. The rest of the request is also
            // in memory.
            _ if offset.checked_sub(c.blue_flame).is_some_and(is_half) => {
                self.send_doorbell(page, second >> self.c.misc.qpn_shift);
            }
            _ => {}
        }
    }

    /// Executes the commands in these slots.
    fn commands(&mut self, slots: u32) {
        let (high, low) = self.command_queue;
        // The driver writes the address of a page, which enables the interface.
        if low & 0xfff != 0 {
            return self.note("commands for an interface that is disabled");
        }
        let base = u64::from(high) << 32 | u64::from(low);
        for slot in 0..1 << COMMANDS {
            if slots & 1 << slot != 0 {
                self.command(base + (u64::from(slot) << COMMAND_STRIDE), slot);
            }
        }
    }

    /// Puts a queue pair into the run queue.
    pub(crate) fn queue(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn)
            && !qp.is_queued
        {
            qp.is_queued = true;
            self.runnable.push_back(qpn);
        }
    }

    /// Starts a queue pair's timer, which replaces its earlier timer.
    pub(crate) fn queue_later(&mut self, qpn: u32, after: Duration) {
        self.timers.retain(|(_, of)| *of != qpn);
        self.timers.push((Instant::now() + after, qpn));
    }

    /// Handles QEMU's answer: runs the packet that asked again.
    pub fn answered(&mut self, answer: Answer) {
        if let Some(qpn) = self.bus.answer(answer) {
            self.step(qpn);
        }
    }

    /// Runs one step of one queue pair. If there is none to run, returns the time of the next
    /// timer.
    pub fn run(&mut self) -> Result<(), Option<Instant>> {
        for answer in std::mem::take(&mut self.faults.answered) {
            self.resumed(answer);
        }
        let now = Instant::now();
        let mut due = Vec::new();
        self.timers.retain(|(at, qpn)| {
            if *at <= now {
                due.push(*qpn);
            }
            *at > now
        });
        for qpn in due {
            self.timer(qpn);
        }
        let Some(qpn) = self.runnable.pop_front() else {
            return Err(self.timers.iter().map(|(at, _)| *at).min());
        };
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.is_queued = false;
            self.step(qpn);
        }
        Ok(())
    }
}
