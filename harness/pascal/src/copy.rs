//! The copy engine: the methods of classes A0B5 to C1B5 that nouveau uses
//! (`nouveau_dmem.c`, `nouveau_boa0b5.c`; `include/nvhw/class/cla0b5.h`).

use std::collections::HashMap;
use std::time::Duration;

use crate::home::Home;
use crate::inject::{Fate, Inject};
use crate::mmu::Tables;
use crate::space::{Aperture, Fault, Place, Space};
use crate::tlb::Tlb;
use crate::witness::{Event, Witness};

/// Copy engine classes: Kepler, Maxwell, and two of Pascal.
pub const CLASSES: [u32; 4] = [0xa0b5, 0xb0b5, 0xc0b5, 0xc1b5];

const SET_SEMAPHORE_A: u32 = 0x240;
const SET_SEMAPHORE_B: u32 = 0x244;
const SET_SEMAPHORE_PAYLOAD: u32 = 0x248;
const SET_SRC_PHYS_MODE: u32 = 0x260;
const SET_DST_PHYS_MODE: u32 = 0x264;
const LAUNCH_DMA: u32 = 0x300;
const OFFSET_IN_UPPER: u32 = 0x400;
const OFFSET_IN_LOWER: u32 = 0x404;
const OFFSET_OUT_UPPER: u32 = 0x408;
const OFFSET_OUT_LOWER: u32 = 0x40c;
const PITCH_IN: u32 = 0x410;
const PITCH_OUT: u32 = 0x414;
const LINE_LENGTH_IN: u32 = 0x418;
const LINE_COUNT: u32 = 0x41c;
const SET_REMAP_CONST_A: u32 = 0x700;
const SET_REMAP_CONST_B: u32 = 0x704;
const SET_REMAP_COMPONENTS: u32 = 0x708;

/// How long nouveau waits for a fence: `nouveau_fence.c`.
const PATIENCE: Duration = Duration::from_secs(15);

/// In LAUNCH_DMA.
const TRANSFER_TYPE: u32 = 3;
const SRC_IS_PITCH: u32 = 1 << 7;
const DST_IS_PITCH: u32 = 1 << 8;
const MULTI_LINE: u32 = 1 << 9;
const REMAP: u32 = 1 << 10;
const SRC_IS_PHYSICAL: u32 = 1 << 12;
const DST_IS_PHYSICAL: u32 = 1 << 13;
/// Interrupts, and semaphores that compute.
const NOT_MODELLED: u32 = 3 << 5 | !0 << 14;

/// Bytes moved at a time.
const CHUNK: u64 = 1 << 20;
/// Limit of one launch: more than any driver requests.
const MAX_BYTES: u64 = 64 << 30;

/// The parts of the device that a launch uses.
pub struct Context<'a> {
    /// Memory.
    pub space: Space<'a>,
    /// The channel's page tables.
    pub tables: Tables,
    /// The TLB.
    pub tlb: &'a mut Tlb,
    /// The channel.
    pub chid: u32,
    /// The GPU's time.
    pub now: u64,
    /// The requested errors of the engine.
    pub inject: &'a mut Inject,
    /// The channel's copies to host memory.
    pub home: &'a mut Home,
    /// The log.
    pub witness: &'a mut Witness,
}

impl Context<'_> {
    /// Reads from a virtual address.
    pub fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.tlb.read(&self.tables, self.space, va, data)
    }

    /// Writes to a virtual address.
    pub fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.tlb.write(&self.tables, self.space, va, data)
    }
}

/// The state that methods set.
#[derive(Default)]
pub struct CopyEngine {
    state: HashMap<u32, u32>,
}

/// Why the engine refused a method.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// An address faulted.
    Fault(Fault),
    /// The model does not support the method.
    Unsupported(&'static str),
    /// The transfer takes this long. Without a time, it never ends.
    Busy(Option<Duration>),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// An address, as methods set it.
#[derive(Clone, Copy)]
enum Address {
    Physical(Place),
    Virtual(u64),
}

impl Address {
    fn after(self, bytes: u64) -> Self {
        match self {
            Self::Physical(place) => Self::Physical(place.after(bytes)),
            Self::Virtual(va) => Self::Virtual(va.wrapping_add(bytes)),
        }
    }

    /// The physical place of the first byte.
    fn place(self, context: &mut Context<'_>) -> Result<Place, Fault> {
        match self {
            Self::Physical(place) => Ok(place),
            Self::Virtual(va) => {
                let Context { tables, space, .. } = *context;
                let place = context.tlb.place(&tables, space, va)?;
                place.ok_or(Fault::NoPage(va))
            }
        }
    }

    fn read(self, context: &mut Context<'_>, data: &mut [u8]) -> Result<(), Fault> {
        match self {
            Self::Physical(place) => context.space.read(place, data),
            Self::Virtual(va) => context.read(va, data),
        }
    }

    fn write(self, context: &mut Context<'_>, data: &[u8]) -> Result<(), Fault> {
        match self {
            Self::Physical(place) => context.space.write(place, data),
            Self::Virtual(va) => context.write(va, data),
        }
    }
}

impl CopyEngine {
    fn get(&self, method: u32) -> u32 {
        self.state.get(&method).copied().unwrap_or(0)
    }

    /// An address from two methods. The upper half has 17 bits from Pascal on.
    fn wide(&self, upper: u32, lower: u32) -> u64 {
        u64::from(self.get(upper) & 0x1_ffff) << 32 | u64::from(self.get(lower))
    }

    fn address(&self, upper: u32, lower: u32, mode: Option<u32>) -> Address {
        let address = self.wide(upper, lower);
        let Some(mode) = mode else {
            return Address::Virtual(address);
        };
        let aperture = match self.get(mode) & 3 {
            0 => Aperture::Vram,
            _ => Aperture::System,
        };
        Address::Physical(Place { aperture, address })
    }

    /// Carries out a method. Returns false if the method is unknown.
    pub fn method(
        &mut self,
        context: &mut Context<'_>,
        method: u32,
        data: u32,
    ) -> Result<bool, Refused> {
        match method {
            LAUNCH_DMA => self.launch(context, data, false)?,
            SET_SEMAPHORE_A..=SET_SEMAPHORE_PAYLOAD
            | SET_SRC_PHYS_MODE
            | SET_DST_PHYS_MODE
            | OFFSET_IN_UPPER..=LINE_COUNT
            | SET_REMAP_CONST_A..=SET_REMAP_COMPONENTS => {
                self.state.insert(method, data);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Carries out a launch that was delayed by `time`. A driver whose wait timed out reuses the
    /// destination, so it must have stopped the channel first.
    pub fn finish(
        &self,
        context: &mut Context<'_>,
        launch: u32,
        time: Duration,
    ) -> Result<(), Refused> {
        if time > PATIENCE {
            context
                .witness
                .violation("a transfer that --slow delayed was not stopped");
        }
        self.launch(context, launch, true)
    }

    fn launch(&self, context: &mut Context<'_>, launch: u32, is_late: bool) -> Result<(), Refused> {
        if launch & NOT_MODELLED != 0 {
            let witness = &mut context.witness;
            witness.unknown("method", "write", LAUNCH_DMA, launch);
        }
        if launch & TRANSFER_TYPE != 0 {
            self.transfer(context, launch, is_late)?;
        }
        let four_words = match (launch >> 3) & 3 {
            0 => return Ok(()),
            1 => false,
            2 => true,
            _ => return Err(Refused::Unsupported("a semaphore of type 3")),
        };
        let va = self.wide(SET_SEMAPHORE_A, SET_SEMAPHORE_B);
        let payload = self.get(SET_SEMAPHORE_PAYLOAD);
        release(context, va, payload, four_words)?;
        Ok(())
    }

    fn transfer(
        &self,
        context: &mut Context<'_>,
        launch: u32,
        is_late: bool,
    ) -> Result<(), Refused> {
        if launch & DST_IS_PITCH == 0 || launch & (SRC_IS_PITCH | REMAP) == 0 {
            return Err(Refused::Unsupported("block linear memory"));
        }
        let mode = |bit, method| (launch & bit != 0).then_some(method);
        let from = mode(SRC_IS_PHYSICAL, SET_SRC_PHYS_MODE);
        let from = self.address(OFFSET_IN_UPPER, OFFSET_IN_LOWER, from);
        let to = mode(DST_IS_PHYSICAL, SET_DST_PHYS_MODE);
        let to = self.address(OFFSET_OUT_UPPER, OFFSET_OUT_LOWER, to);
        let lines = if launch & MULTI_LINE == 0 {
            1
        } else {
            u64::from(self.get(LINE_COUNT))
        };
        let length = u64::from(self.get(LINE_LENGTH_IN));
        if lines * length > MAX_BYTES {
            return Err(Refused::Unsupported("so much data"));
        }
        if lines * length == 0 {
            return Ok(());
        }
        if !is_late {
            match context.inject.fate() {
                Fate::Works => {}
                Fate::Fails => return Err(Fault::Injected.into()),
                Fate::Hangs => return Err(Refused::Busy(None)),
                Fate::Takes(time) => return Err(Refused::Busy(Some(time))),
            }
        }
        let pitch_in = u64::from(self.get(PITCH_IN));
        let pitch_out = u64::from(self.get(PITCH_OUT));
        if launch & REMAP != 0 {
            let pattern = self.pattern()?;
            let bytes = length * pattern.len() as u64;
            for line in 0..lines {
                let to = to.after(line * pitch_out);
                fill(context, to, &pattern, bytes, is_late)?;
            }
        } else if pitch_in == length && pitch_out == length {
            copy(context, from, to, lines * length, is_late)?;
        } else {
            for line in 0..lines {
                let from = from.after(line * pitch_in);
                let to = to.after(line * pitch_out);
                copy(context, from, to, length, is_late)?;
            }
        }
        Ok(())
    }

    /// The fill pattern. The model only supports components that are constants.
    fn pattern(&self) -> Result<Vec<u8>, Refused> {
        let components = self.get(SET_REMAP_COMPONENTS);
        let size = ((components >> 16) & 3) as usize + 1;
        let count = ((components >> 24) & 3) + 1;
        let mut pattern = Vec::new();
        for n in 0..count {
            let constant = match (components >> (4 * n)) & 7 {
                4 => self.get(SET_REMAP_CONST_A),
                5 => self.get(SET_REMAP_CONST_B),
                _ => return Err(Refused::Unsupported("components of the source")),
            };
            pattern.extend_from_slice(&constant.to_le_bytes()[..size]);
        }
        Ok(pattern)
    }
}

/// Releases a semaphore: writes its value, and the time if there is room.
pub fn release(
    context: &mut Context<'_>,
    va: u64,
    payload: u32,
    four_words: bool,
) -> Result<(), Fault> {
    let mut data = [0; 16];
    data[..4].copy_from_slice(&payload.to_le_bytes());
    data[8..].copy_from_slice(&context.now.to_le_bytes());
    let len = if four_words { 16 } else { 4 };
    context.write(va, &data[..len])?;
    if let Some(event) = context.home.released(context.chid) {
        context.witness.event(&event);
    }
    Ok(())
}

fn chunks(len: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..len)
        .step_by(CHUNK as usize)
        .map(move |at| (at, CHUNK.min(len - at) as usize))
}

/// Checks that no write through BAR1 comes after the copy engine's although it was earlier.
fn will_write(context: &mut Context<'_>, to: Address, len: u64) {
    if let Address::Physical(place) = to
        && let Some(why) = context.witness.posted.written_early(place, len)
    {
        context.witness.violation(&why);
    }
}

fn copy(
    context: &mut Context<'_>,
    from: Address,
    to: Address,
    len: u64,
    late: bool,
) -> Result<(), Fault> {
    // nouveau copies pages of processes by physical addresses. It orders what it writes to
    // buffers by other means.
    if let Address::Physical(place) = from
        && let Some(why) = context.witness.posted.read_early(place, len)
    {
        context.witness.violation(&why);
    }
    will_write(context, to, len);
    let mut data = vec![0; CHUNK.min(len) as usize];
    for (at, here) in chunks(len) {
        from.after(at).read(context, &mut data[..here])?;
        to.after(at).write(context, &data[..here])?;
    }
    let (from, to) = (from.place(context)?, to.place(context)?);
    let totals = &mut context.witness.totals;
    match (from.aperture, to.aperture) {
        (Aperture::System, Aperture::Vram) => totals.to_vram += len,
        (Aperture::Vram, Aperture::System) => {
            totals.from_vram += len;
            context.home.copied(len);
        }
        _ => {}
    }
    if late {
        context.home.forget();
    }
    let chid = context.chid;
    context.witness.event(&Event::Copy {
        chid,
        from,
        to,
        len,
        late,
    });
    Ok(())
}

fn fill(
    context: &mut Context<'_>,
    to: Address,
    pattern: &[u8],
    len: u64,
    late: bool,
) -> Result<(), Fault> {
    will_write(context, to, len);
    // A chunk's size need not be a multiple of the pattern, which may have 3 bytes.
    let room = (CHUNK.min(len) as usize).next_multiple_of(pattern.len());
    let data: Vec<u8> = pattern.iter().copied().cycle().take(room).collect();
    let mut at = 0;
    while at < len {
        let here = (room as u64).min(len - at);
        to.after(at).write(context, &data[..here as usize])?;
        at += here;
    }
    let to = to.place(context)?;
    context.witness.totals.filled += len;
    let chid = context.chid;
    context.witness.event(&Event::Fill {
        chid,
        to,
        len,
        late,
    });
    Ok(())
}

#[cfg(test)]
mod tests;
