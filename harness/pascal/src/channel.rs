//! A channel and the PBDMA that reads its commands (`nvif/chan906f.c`,
//! `engine/fifo/gk104.c`; `include/nvhw/class/cl906f.h`).

use std::time::Duration;

use crate::commands::{Commands, Method};
use crate::copy::{self, CLASSES, Context, CopyEngine, Refused};
use crate::mmu::Tables;
use crate::registers as r;
use crate::space::{Fault, Place, Space};

/// In the instance block: the ring's get index. The driver saves the block before the
/// device loses power, so the channel continues where it was.
const RAMFC_GET: u64 = 0x14;
/// In the instance block: the classes of the subchannels. The model chose this offset; the
/// driver does not use it.
const RAMFC_OBJECTS: u64 = 0x1c0;
/// In the instance block: the GPFIFO's address and log2 of the number of entries.
const RAMFC_GPFIFO: u64 = 0x48;

/// Host methods, which all subchannels have.
const SET_OBJECT: u32 = 0x00;
const NOP: u32 = 0x08;
const SEMAPHORE_A: u32 = 0x10;
const SEMAPHORE_D: u32 = 0x1c;
const NON_STALL_INTERRUPT: u32 = 0x20;
const FB_FLUSH: u32 = 0x24;
const SET_REFERENCE: u32 = 0x50;
/// The first engine method.
const FIRST_OF_ENGINES: u32 = 0x100;

/// In SEMAPHORE_D.
const ACQUIRE: u32 = 1;
const RELEASE: u32 = 2;
const ACQUIRE_GREATER_OR_EQUAL: u32 = 4;
const ACQUIRE_AND: u32 = 8;
const RELEASE_4_BYTES: u32 = 1 << 24;
/// The known bits. Two have no effect in the model: ACQUIRE_SWITCH (12) lets other channels
/// run meanwhile, and RELEASE_WFI (20) waits for the engine, which never is behind.
const SEMAPHORE_KNOWN: u32 = 0xf | 1 << 12 | 1 << 20 | RELEASE_4_BYTES;

/// Where a channel stopped reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// The ring is empty.
    Idle,
    /// The channel waits for a semaphore.
    Waiting,
    /// The transfer takes this long. Without a time, it never ends.
    Busy(Option<Duration>),
    /// A command failed.
    Dead(Death),
}

impl From<Death> for Stop {
    fn from(death: Death) -> Self {
        Self::Dead(death)
    }
}

/// Why a channel ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Death {
    /// The PBDMA faulted on an access.
    Host(Fault),
    /// The copy engine faulted on an access.
    Engine(Fault),
    /// The command is invalid.
    Command(Bad),
}

/// An invalid command, as the PBDMA reports it.
#[derive(Debug, PartialEq, Eq)]
pub struct Bad {
    /// The interrupt bit.
    pub interrupt: u32,
    /// The method. For an invalid header, the data is that word.
    pub method: Method,
    /// A description for people.
    pub what: String,
}

impl Bad {
    fn death(interrupt: u32, method: Method, what: impl Into<String>) -> Death {
        Death::Command(Self {
            interrupt,
            method,
            what: what.into(),
        })
    }

    fn header(word: u32) -> Death {
        let method = Method {
            subchannel: 0,
            method: 0,
            data: word,
        };
        Self::death(r::PBDMA_PBENTRY, method, format!("header {word:#010x}"))
    }
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    va: u64,
    payload: u32,
    operation: u32,
}

/// A channel that the driver has started.
pub struct Channel {
    instance: Place,
    tables: Tables,
    ring: u64,
    mask: u32,
    /// The index of the next ring entry to read.
    pub get: u32,
    /// The index where the ring ends.
    pub put: u32,
    commands: Commands,
    objects: [u32; 8],
    semaphore: [u32; 3],
    wait: Option<Wait>,
    engine: CopyEngine,
    /// The delayed launch and its duration.
    launched: Option<(Method, Duration)>,
    /// The channel has executed NON_STALL_INTERRUPT.
    pub interrupts: bool,
}

fn read_u32(context: &mut Context<'_>, va: u64) -> Result<u32, Fault> {
    let mut data = [0; 4];
    context.read(va, &mut data)?;
    Ok(u32::from_le_bytes(data))
}

impl Channel {
    /// Loads the channel from its instance block.
    pub fn load(space: Space<'_>, instance: u64) -> Result<Self, Fault> {
        let tables = Tables::of(space, instance)?;
        let ring = space.read_u64(Place::vram(instance).after(RAMFC_GPFIFO))?;
        // The size has five bits.
        let log2 = (ring >> 48) & 0x1f;
        let mask = ((1u64 << log2) - 1) as u32;
        let mut get = [0; 4];
        let instance = Place::vram(instance);
        space.read(instance.after(RAMFC_GET), &mut get)?;
        let get = u32::from_le_bytes(get) & mask;
        let mut objects = [0; 8];
        for (n, object) in (0..).zip(&mut objects) {
            let mut data = [0; 4];
            space.read(instance.after(RAMFC_OBJECTS + n * 4), &mut data)?;
            *object = u32::from_le_bytes(data);
        }
        Ok(Self {
            instance,
            tables,
            ring: ring & ((1 << 40) - 1),
            mask,
            get,
            put: get,
            commands: Commands::default(),
            objects,
            semaphore: [0; 3],
            wait: None,
            engine: CopyEngine::default(),
            launched: None,
            interrupts: false,
        })
    }

    /// The channel's page tables.
    pub fn tables(&self) -> Tables {
        self.tables
    }

    /// Whether there may be work: the channel waits, or has commands.
    pub fn has_work(&self) -> bool {
        self.wait.is_some() || !self.commands.is_empty() || self.get != self.put & self.mask
    }

    /// Carries out the delayed transfer, and nothing else.
    pub fn finish(&mut self, context: &mut Context<'_>) -> Stop {
        let Some((launch, time)) = self.launched.take() else {
            return Stop::Idle;
        };
        let finished = self.engine.finish(context, launch.data, time);
        finished.map_or_else(|refused| refused_at(refused, launch), |()| Stop::Idle)
    }

    /// Drops the delayed transfer, as an engine reset does.
    pub fn reset_engine(&mut self) {
        self.launched = None;
    }

    /// Runs commands until the channel stops.
    pub fn run(&mut self, context: &mut Context<'_>) -> Stop {
        let ran = self.run_all(context);
        // The write cannot fail: `load` has read the block.
        let get = self.get.to_le_bytes();
        let _ = context.space.write(self.instance.after(RAMFC_GET), &get);
        let objects = self.objects.map(u32::to_le_bytes).concat();
        let place = self.instance.after(RAMFC_OBJECTS);
        let _ = context.space.write(place, &objects);
        match ran {
            Ok(true) => Stop::Idle,
            Ok(false) => Stop::Waiting,
            Err(stop) => stop,
        }
    }

    /// Returns false if the channel waits.
    fn run_all(&mut self, context: &mut Context<'_>) -> Result<bool, Stop> {
        loop {
            if let Some(wait) = self.wait {
                if !is_over(wait, read_u32(context, wait.va).map_err(Death::Host)?) {
                    return Ok(false);
                }
                self.wait = None;
            }
            if let Some(method) = self.commands.next_method().map_err(Bad::header)? {
                self.method(context, method)?;
            } else if self.get == self.put & self.mask {
                return Ok(true);
            } else {
                self.fetch(context)?;
            }
        }
    }

    /// Reads a ring entry and the commands that it points to.
    fn fetch(&mut self, context: &mut Context<'_>) -> Result<(), Death> {
        let mut entry = [0; 8];
        let va = self.ring + u64::from(self.get) * 8;
        let read = context.read(va, &mut entry);
        read.map_err(Death::Host)?;
        self.get = (self.get + 1) & self.mask;
        let entry = u64::from_le_bytes(entry);
        let va = entry & 0xff_ffff_fffc;
        let words = (entry >> 42) & 0x1f_ffff;
        let mut data = vec![0; words as usize * 4];
        let read = context.read(va, &mut data);
        read.map_err(Death::Host)?;
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.commands.extend(data.chunks_exact(4).map(word));
        Ok(())
    }

    fn method(&mut self, context: &mut Context<'_>, whole: Method) -> Result<(), Stop> {
        let Method {
            subchannel,
            method,
            data,
        } = whole;
        context.witness.totals.methods += 1;
        if method >= FIRST_OF_ENGINES {
            return self.method_of_engine(context, whole);
        }
        match method {
            SET_OBJECT => self.objects[subchannel] = data & 0xffff,
            NOP | FB_FLUSH | SET_REFERENCE => {}
            SEMAPHORE_A..SEMAPHORE_D => {
                self.semaphore[((method - SEMAPHORE_A) / 4) as usize] = data;
            }
            SEMAPHORE_D => self.semaphore(context, whole)?,
            NON_STALL_INTERRUPT => self.interrupts = true,
            _ => context.witness.unknown("method", "write", method, data),
        }
        Ok(())
    }

    fn semaphore(&mut self, context: &mut Context<'_>, whole: Method) -> Result<(), Death> {
        let what = whole.data;
        if what & !SEMAPHORE_KNOWN != 0 {
            let witness = &mut context.witness;
            witness.unknown("method", "write", SEMAPHORE_D, what);
        }
        let [upper, lower, payload] = self.semaphore;
        let va = u64::from(upper & 0xff) << 32 | u64::from(lower & !3);
        match what & 0xf {
            RELEASE => copy::release(context, va, payload, what & RELEASE_4_BYTES == 0)
                .map_err(Death::Host),
            operation @ (ACQUIRE | ACQUIRE_GREATER_OR_EQUAL | ACQUIRE_AND) => {
                self.wait = Some(Wait {
                    va,
                    payload,
                    operation,
                });
                Ok(())
            }
            _ => {
                let told = format!("semaphore operation {what:#x}");
                Err(Bad::death(r::PBDMA_SEMAPHORE, whole, told))
            }
        }
    }

    fn method_of_engine(&mut self, context: &mut Context<'_>, whole: Method) -> Result<(), Stop> {
        let Method {
            subchannel,
            method,
            data,
        } = whole;
        let class = self.objects[subchannel];
        if !CLASSES.contains(&class) {
            // Hardware reports this with a bit that lets the driver carry out the method itself.
            // nouveau would ignore the method. The model ends the channel instead, which shows the
            // error.
            let told = format!(
                "method {method:#x} of subchannel {subchannel}, which has class {class:#x}"
            );
            return Err(Bad::death(r::PBDMA_ILLEGAL_METHOD, whole, told).into());
        }
        match self.engine.method(context, method, data) {
            Ok(true) => Ok(()),
            Ok(false) => {
                context.witness.unknown("method", "write", method, data);
                Ok(())
            }
            Err(refused) => {
                if let Refused::Busy(Some(time)) = refused {
                    self.launched = Some((whole, time));
                }
                Err(refused_at(refused, whole))
            }
        }
    }
}

/// The stop that follows from a method that the engine refused.
fn refused_at(refused: Refused, method: Method) -> Stop {
    match refused {
        Refused::Fault(fault) => Death::Engine(fault).into(),
        Refused::Unsupported(what) => Bad::death(r::PBDMA_ILLEGAL_METHOD, method, what).into(),
        Refused::Busy(time) => Stop::Busy(time),
    }
}

fn is_over(wait: Wait, value: u32) -> bool {
    match wait.operation {
        ACQUIRE => value == wait.payload,
        // The comparison allows counters to wrap around.
        ACQUIRE_GREATER_OR_EQUAL => value.wrapping_sub(wait.payload) as i32 >= 0,
        _ => value & wait.payload != 0,
    }
}

#[cfg(test)]
mod tests;
