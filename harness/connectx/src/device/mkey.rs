//! Memory keys: what an address in a work request stands for.

use crate::device::Device;
use crate::table::Table;
use crate::witness::Used;

/// A key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// Its context (`mkc`).
    pub context: Vec<u8>,
    /// Its translations, as the driver wrote them: MTTs, KLMs or KSMs.
    pub entries: Table,
}

/// What somebody wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// To write it.
    pub write: bool,
    /// A peer on the network wants it, and not the queue's owner.
    pub remote: bool,
    /// It is an atomic operation.
    pub atomic: bool,
}

/// Memory that is contiguous on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// The key whose translation gave it.
    pub mkey: u32,
    /// The address in that key.
    pub va: u64,
    /// The key says that addresses are translated beforehand.
    pub ats: bool,
    /// Relaxed ordering for this direction.
    pub ro: bool,
    /// The entries by which it was found, that of the key last.
    pub used: Vec<Used>,
}

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The page is not there: the driver is to be asked.
    Fault {
        /// The key that has no translation.
        mkey: u32,
        /// The address in it.
        va: u64,
    },
    /// It is not allowed.
    Denied(String),
}

/// Keys point to keys, and a chain of them may be a circle.
const DEPTH: usize = 4;
/// Entries that are looked at for one piece of memory. Lists of one byte each, of lists
/// that are empty up to their end, would take for ever.
const STEPS: usize = 1 << 18;

/// Bits of an MTT below the address (`MLX5_IB_MTT_READ` and `_WRITE`; the driver's own
/// header has them, and not one of those that are read).
const MTT_READ: u64 = 1;
const MTT_WRITE: u64 = 2;
const MTT_FLAGS: u64 = 0xfff;

/// A UMR writes blocks of so many bytes.
pub const BLOCK: usize = 64;

fn denied<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Denied(why))
}

/// A key on the way to the pieces.
#[derive(Clone, Copy)]
struct Named<'a> {
    key: u32,
    mkey: &'a Mkey,
}

/// The way from a key to the pieces.
struct Walk<'a> {
    device: &'a Device,
    want: Want,
    pd: Option<u32>,
    /// Entries of keys above.
    above: Vec<Used>,
    steps: usize,
    pieces: Vec<Piece>,
}

impl Device {
    /// The pieces of `len` bytes at `va` of a key.
    ///
    /// Rights are those of the key that was named; a key that it points to must be in
    /// use and of the same protection domain. What the hardware checks there is not
    /// published.
    pub fn translate(
        &self,
        key: u32,
        va: u64,
        len: usize,
        want: Want,
        pd: Option<u32>,
    ) -> Result<Vec<Piece>, Stop> {
        let mut walk = Walk {
            device: self,
            want,
            pd,
            above: Vec::new(),
            steps: 0,
            pieces: Vec::new(),
        };
        walk.key(key, va, len)?;
        Ok(walk.pieces)
    }
}

impl Walk<'_> {
    fn key(&mut self, key: u32, va: u64, len: usize) -> Result<(), Stop> {
        let device = self.device;
        if key == device.reserved_lkey && !self.want.remote {
            self.pieces.push(Piece {
                addr: va,
                len,
                mkey: key,
                va,
                ats: false,
                ro: false,
                used: Vec::new(),
            });
            return Ok(());
        }
        if key == device.null_mkey {
            return Err(Stop::Fault { mkey: key, va });
        }
        let Some(mkey) = device.mkeys.get(&(key >> 8)) else {
            return denied(format!("key {key:#x} does not exist"));
        };
        let named = Named { key, mkey };
        self.check(named, va, len)?;
        let l = &device.l.mkc;
        let get = |field: crate::layout::Field| field.get(&mkey.context);
        let mode = get(l.access_mode_4_2) << 2 | get(l.access_mode_1_0);
        if mode == device.c.mode.pa {
            self.piece(named, va, len, 0, va);
            Ok(())
        } else if mode == device.c.mode.mtt {
            self.pages(named, va, len, Self::mtt)
        } else if mode == device.c.mode.ksm {
            self.pages(named, va, len, Self::ksm)
        } else if mode == device.c.mode.klms {
            self.klms(named, va.wrapping_sub(get(l.start_addr)), len)
        } else {
            denied(format!(
                "key {key:#x} has access mode {mode}, which is not modelled"
            ))
        }
    }

    /// Whether this may be done with the key at all.
    fn check(&self, Named { key, mkey }: Named<'_>, va: u64, len: usize) -> Result<(), Stop> {
        let l = &self.device.l.mkc;
        let get = |field: crate::layout::Field| field.get(&mkey.context);
        if get(l.free) != 0 {
            return denied(format!("key {key:#x} is not in use"));
        }
        if get(l.mkey_7_0) != u64::from(key & 0xff) {
            return denied(format!("key {key:#x} is of an earlier use"));
        }
        if self.pd.is_some_and(|pd| get(l.pd) != u64::from(pd)) {
            return denied(format!("key {key:#x} is of another protection domain"));
        }
        if self.above.is_empty() {
            let want = self.want;
            let right = match want {
                Want { atomic: true, .. } => l.a,
                Want {
                    remote: true,
                    write: true,
                    ..
                } => l.rw,
                Want { remote: true, .. } => l.rr,
                Want { write: true, .. } => l.lw,
                _ => l.lr,
            };
            if get(right) == 0 {
                return denied(format!("key {key:#x} does not allow {want:?}"));
            }
        }
        let start = get(l.start_addr);
        let end = va.checked_add(len as u64);
        let is_inside =
            get(l.length64) != 0 || va >= start && end.is_some_and(|end| end - start <= get(l.len));
        if !is_inside {
            return denied(format!("key {key:#x}: {va:#x} + {len:#x} is outside"));
        }
        Ok(())
    }

    /// Counts what is looked at.
    fn look(&mut self, key: u32) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps > STEPS {
            return denied(format!("key {key:#x}: too many entries on the way"));
        }
        Ok(())
    }

    /// Goes on at the key that this entry of `from` names.
    fn down(
        &mut self,
        (from, entry): (u32, u64),
        key: u32,
        va: u64,
        len: usize,
    ) -> Result<(), Stop> {
        if self.above.len() == DEPTH {
            return denied(format!("key {from:#x}: too many levels"));
        }
        self.above.push(self.device.witness.used(from, entry));
        let found = self.key(key, va, len);
        self.above.pop();
        found
    }

    /// Goes through the pages of a key that has an entry for each: entry, address, bytes.
    fn pages(
        &mut self,
        named: Named<'_>,
        mut va: u64,
        mut len: usize,
        each: fn(&mut Self, Named<'_>, u64, u64, usize) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let l = &self.device.l.mkc;
        let get = |field: crate::layout::Field| field.get(&named.mkey.context);
        let (start, shift) = (get(l.start_addr), get(l.log_page_size));
        while len > 0 {
            self.look(named.key)?;
            let here = part(va, len, mask(shift));
            let entry = at(va, shift).wrapping_sub(at(start, shift));
            each(self, named, entry, va, here)?;
            // A key without bounds may go on at 0.
            va = va.wrapping_add(here as u64);
            len -= here;
        }
        Ok(())
    }

    fn ksm(&mut self, named: Named<'_>, number: u64, va: u64, len: usize) -> Result<(), Stop> {
        let l = self.device.l.klm;
        let key = named.key;
        let Some(entry) = named.mkey.entries.entry(number, l.size) else {
            return denied(format!("key {key:#x} has no entry {number}"));
        };
        let va = l.va.get(entry).wrapping_add(self.inside(named, va));
        self.down((key, number), l.key.get(entry) as u32, va, len)
    }

    fn mtt(&mut self, named: Named<'_>, number: u64, va: u64, len: usize) -> Result<(), Stop> {
        let l = self.device.l.mtt;
        let needed = if self.want.write { MTT_WRITE } else { MTT_READ };
        // Beyond the table there is none.
        let entry = named.mkey.entries.entry(number, l.size);
        let mtt = entry.map_or(0, |entry| l.ptag.get(entry));
        if mtt & needed == 0 {
            let mkey = named.key;
            return Err(Stop::Fault { mkey, va });
        }
        let addr = (mtt & !MTT_FLAGS).wrapping_add(self.inside(named, va));
        self.piece(named, addr, len, number, va);
        Ok(())
    }

    /// Where an address is in its page.
    fn inside(&self, named: Named<'_>, va: u64) -> u64 {
        va & mask(self.device.l.mkc.log_page_size.get(&named.mkey.context))
    }

    fn klms(&mut self, named: Named<'_>, mut offset: u64, mut len: usize) -> Result<(), Stop> {
        let Named { key, mkey } = named;
        let l = self.device.l.klm;
        for (number, entry) in (0..).zip(mkey.entries.entries(l.size)) {
            if len == 0 {
                break;
            }
            self.look(key)?;
            let count = l.bcount.get(entry);
            if offset >= count {
                offset -= count;
                continue;
            }
            let here = usize::try_from(count - offset)
                .unwrap_or(usize::MAX)
                .min(len);
            let next = l.key.get(entry) as u32;
            let va = l.va.get(entry).wrapping_add(offset);
            self.down((key, number), next, va, here)?;
            offset = 0;
            len -= here;
        }
        if len > 0 {
            return denied(format!("key {key:#x} is shorter than it says"));
        }
        Ok(())
    }

    fn piece(
        &mut self,
        Named { key, mkey }: Named<'_>,
        addr: u64,
        len: usize,
        entry: u64,
        va: u64,
    ) {
        let l = &self.device.l.mkc;
        let ro = if self.want.write {
            l.relaxed_ordering_write
        } else {
            l.relaxed_ordering_read
        };
        let mut used = self.above.clone();
        used.push(self.device.witness.used(key, entry));
        self.pieces.push(Piece {
            addr,
            len,
            mkey: key,
            va,
            ats: l.ma_translation_mode.get(&mkey.context) != 0,
            ro: ro.get(&mkey.context) != 0,
            used,
        });
    }
}

impl Device {
    /// Which of these entries are present, for the witness: those of MTTs that can be read.
    pub fn present(&self, context: &[u8], entries: &[u8]) -> Vec<bool> {
        let mode = self.l.mkc.access_mode_1_0.get(context);
        let (size, field, bits) = if mode == self.c.mode.mtt {
            (self.l.mtt.size, self.l.mtt.ptag, MTT_READ | MTT_WRITE)
        } else {
            (self.l.klm.size, self.l.klm.key, u64::MAX)
        };
        let entries = entries.chunks_exact(size);
        entries.map(|entry| field.get(entry) & bits != 0).collect()
    }

    /// The first page past the end of a key in use that has a translation nevertheless.
    ///
    /// Only the block with the end is looked at: who writes the last entry writes all of it.
    /// Blocks after it may be of an earlier use, when a key of the driver's pool was longer.
    /// While a key is not in use, so may be its length.
    pub fn past_the_end(&self, mkey: &Mkey) -> Option<u64> {
        let l = &self.l.mkc;
        let get = |field: crate::layout::Field| field.get(&mkey.context);
        let mode = get(l.access_mode_4_2) << 2 | get(l.access_mode_1_0);
        if mode != self.c.mode.mtt || get(l.free) != 0 || get(l.length64) != 0 {
            return None;
        }
        let (start, shift) = (get(l.start_addr), get(l.log_page_size));
        let last = start.checked_add(get(l.len).checked_sub(1)?)?;
        let first = (at(last, shift) - at(start, shift)).checked_add(1)?;
        let size = self.l.mtt.size;
        let end = first.checked_next_multiple_of((BLOCK / size) as u64)?;
        (first..end).find(|number| {
            let entry = mkey.entries.entry(*number, size).unwrap_or_default();
            self.present(&mkey.context, entry).contains(&true)
        })
    }
}

/// The bits within a page of 2^shift bytes; of one beyond all memory, all bits.
fn mask(shift: u64) -> u64 {
    1u64.checked_shl(shift as u32)
        .map_or(u64::MAX, |size| size - 1)
}

/// Which page an address is in.
fn at(va: u64, shift: u64) -> u64 {
    va.checked_shr(shift as u32).unwrap_or(0)
}

/// How much of `len` bytes is in the page of `va`.
fn part(va: u64, len: usize, mask: u64) -> usize {
    let rest = (mask - (va & mask)).saturating_add(1);
    usize::try_from(rest).unwrap_or(usize::MAX).min(len)
}
