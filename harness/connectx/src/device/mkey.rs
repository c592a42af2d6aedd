//! Memory keys: the translation of addresses in work requests.

use std::ops::Range;

use crate::device::Device;
use crate::layout::{mkey_to_idx, mkey_variant};
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

/// A requested access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The access is a write.
    pub write: bool,
    /// The access comes from the remote end, not from the queue's owner.
    pub remote: bool,
    /// The access is an atomic operation.
    pub atomic: bool,
}

/// Memory that is contiguous on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// The key that translated the address.
    pub mkey: u32,
    /// The address in that key.
    pub va: u64,
    /// The key uses ATS: the IOMMU translates addresses beforehand.
    pub ats: bool,
    /// Relaxed ordering for this direction.
    pub ro: bool,
    /// The entries that led to the address. The entry of `mkey` is the last.
    pub used: Vec<Used>,
}

/// Why a translation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The page is absent, which is a page fault.
    Fault {
        /// The key that has no translation.
        mkey: u32,
        /// The address in the key.
        va: u64,
    },
    /// The key does not allow the access.
    Denied(String),
}

/// Limit of nested keys, because keys that point to keys can form a loop.
const DEPTH: usize = 4;
/// Limit of the entries visited by one translation. Lists with one entry per byte that point
/// to long lists of empty entries would otherwise take too long.
const STEPS: usize = 1 << 18;

/// Bits of an MTT below the address (`MLX5_IB_MTT_READ` and `_WRITE`). Only the driver's own
/// header defines them, which the model does not read; a test does.
pub const MTT_READ: u64 = 1;
pub const MTT_WRITE: u64 = 2;
const MTT_FLAGS: u64 = 0xfff;

/// A UMR writes blocks of this many bytes.
pub const BLOCK: usize = 64;

fn denied<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Denied(why))
}

/// A key that the walk visits.
#[derive(Clone, Copy)]
struct Named<'a> {
    key: u32,
    mkey: &'a Mkey,
}

/// The walk from a key to the pieces.
struct Walk<'a> {
    device: &'a Device,
    want: Want,
    pd: Option<u32>,
    /// The entries of the parent keys.
    above: Vec<Used>,
    steps: usize,
    pieces: Vec<Piece>,
}

impl Device {
    /// Checks that a queue pair may name this key in a request. The reserved key stands for all
    /// addresses. The driver gives it to its own queue pairs alone, by `rlky`.
    pub fn check_reserved(&self, qpn: u32, key: u32) -> Result<(), Stop> {
        let is_allowed = self.l.qpc.rlky.get(&self.qps[&qpn].context) != 0;
        if key == self.reserved_lkey && !is_allowed {
            return denied(format!("the reserved key {key:#x} is not for this queue"));
        }
        Ok(())
    }

    /// Translates `len` bytes at `va` of a key into pieces.
    ///
    /// Only the named key's rights count. A key that it points to must be in use and in the
    /// same protection domain. The hardware's checks of such keys are not published.
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
        let Some(mkey) = device.mkeys.get(&mkey_to_idx(key)) else {
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

    /// Checks that the key allows the access.
    fn check(&self, Named { key, mkey }: Named<'_>, va: u64, len: usize) -> Result<(), Stop> {
        let l = &self.device.l.mkc;
        let get = |field: crate::layout::Field| field.get(&mkey.context);
        if get(l.free) != 0 {
            return denied(format!("key {key:#x} is not in use"));
        }
        if get(l.mkey_7_0) != u64::from(mkey_variant(key)) {
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

    /// Counts a visited entry.
    fn look(&mut self, key: u32) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps > STEPS {
            return denied(format!("key {key:#x}: too many entries on the way"));
        }
        Ok(())
    }

    /// Continues with the key that this entry of `from` names.
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

    /// Calls `each` for the pages of a key with one entry per page: entry, address, bytes.
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
            // A key without bounds may wrap around to 0.
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
        // An entry beyond the table is absent.
        let entry = named.mkey.entries.entry(number, l.size);
        let mtt = entry.map_or(0, |entry| l.ptag.get(entry));
        if mtt & needed == 0 {
            let mkey = named.key;
            return Err(Stop::Fault { mkey, va });
        }
        // Bits of the entry below the key's page size do not count.
        let addr = (mtt & !MTT_FLAGS & !self.page_mask(named)) | self.inside(named, va);
        self.piece(named, addr, len, number, va);
        Ok(())
    }

    /// The bits of an address that are its offset in a page.
    fn page_mask(&self, named: Named<'_>) -> u64 {
        mask(self.device.l.mkc.log_page_size.get(&named.mkey.context))
    }

    /// Offset of an address in its page.
    fn inside(&self, named: Named<'_>, va: u64) -> u64 {
        va & self.page_mask(named)
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
    /// Which of these entries are present, for the witness. An MTT is present if it can be read
    /// or written.
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

    /// The first page past the end of a key in use that still has a translation.
    ///
    /// This only checks the key's last block, because a write of the last entry writes its whole
    /// block, and the entries that the request has written. Other blocks may be left over from an
    /// earlier, longer use of a key from the driver's pool. The length of a key that is not in use
    /// may be left over too.
    pub fn past_the_end(&self, mkey: &Mkey, written: Range<u64>) -> Option<u64> {
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
        let later = written.start.max(end)..written.end;
        (first..end).chain(later).find(|number| {
            let entry = mkey.entries.entry(*number, size).unwrap_or_default();
            self.present(&mkey.context, entry).contains(&true)
        })
    }
}

/// The mask of offsets in a page of 2^shift bytes. All bits if shift is 64 or more.
fn mask(shift: u64) -> u64 {
    1u64.checked_shl(shift as u32)
        .map_or(u64::MAX, |size| size - 1)
}

/// The page number of an address.
fn at(va: u64, shift: u64) -> u64 {
    va.checked_shr(shift as u32).unwrap_or(0)
}

/// How many of `len` bytes are in the page of `va`.
fn part(va: u64, len: usize, mask: u64) -> usize {
    let rest = (mask - (va & mask)).saturating_add(1);
    usize::try_from(rest).unwrap_or(usize::MAX).min(len)
}
