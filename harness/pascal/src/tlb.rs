//! The TLB. Hardware may use a cached translation until the driver invalidates it, even if
//! the page tables have changed.
//!
//! By default the model follows the page tables and only reports a translation that a TLB
//! could still hold. With `--tlb` the model uses the old translation, as the worst hardware
//! would, and the driver finds its data in the wrong place.
//!
//! The model keeps invalidated translations, so that a violation can report what an address
//! was.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use crate::mmu::{Page, Tables};
use crate::space::{Fault, Place, Space};

/// log2 of the possible page sizes. The last three are for sparse pages.
const SHIFTS: [u32; 6] = [12, 16, 21, 29, 38, 47];

/// A cached translation.
struct Entry {
    page: Page,
    /// The times of the first and the last use, in microseconds. The first use counts from the
    /// mapping, not from the last invalidation.
    first: u128,
    last: u128,
    /// The numbers of the used 4 KiB parts.
    parts: HashSet<u64>,
    /// The number of invalidations before the entry was cached.
    invalidations: usize,
    /// The log line of the first invalidation at which the tables no longer had this
    /// translation.
    gone: Option<u64>,
}

/// The history of one set of page tables.
#[derive(Default)]
struct History {
    /// Entries by log2 of the page size and by page number.
    pages: HashMap<(u32, u64), Entry>,
    /// The log lines of the invalidations.
    invalidations: Vec<u64>,
}

impl History {
    fn entries(&self, va: u64) -> impl Iterator<Item = &Entry> {
        let at = move |shift| self.pages.get(&(shift, va >> shift));
        SHIFTS.into_iter().filter_map(at)
    }

    /// The entry that a TLB could still hold.
    fn valid(&mut self, va: u64) -> Option<&mut Entry> {
        let now = self.invalidations.len();
        let is_valid = |entry: &&Entry| entry.invalidations == now;
        let shift = self.entries(va).find(is_valid)?.page.shift;
        self.pages.get_mut(&(shift, va >> shift))
    }

    /// Describes the last translation of an address.
    fn history(&self, va: u64) -> String {
        let invalidated = match self.invalidations.last() {
            Some(line) => format!("invalidated last in line {line}"),
            None => "never invalidated".to_owned(),
        };
        let age = |entry: &&Entry| (entry.invalidations, entry.last);
        let Some(entry) = self.entries(va).max_by_key(age) else {
            return format!("it was never used, {invalidated}");
        };
        let what = match entry.page.at(va) {
            Some(place) => place.to_string(),
            None => "sparse".to_owned(),
        };
        let gone = match entry.gone {
            Some(line) => format!("gone by line {line}"),
            None => "there at each invalidation".to_owned(),
        };
        let (first, last) = (entry.first, entry.last);
        format!("it was {what}, used from {first} to {last} us, {gone}, {invalidated}")
    }

    fn insert(&mut self, page: Page, va: u64, now: u128) {
        let key = (page.shift, va >> page.shift);
        let same = self.pages.get(&key);
        let same = same.filter(|entry| entry.page == page && entry.gone.is_none());
        let entry = Entry {
            page,
            first: same.map_or(now, |entry| entry.first),
            last: now,
            parts: HashSet::from([va >> SHIFTS[0]]),
            invalidations: self.invalidations.len(),
            gone: None,
        };
        self.pages.insert(key, entry);
    }
}

/// The TLB: translations by the page tables' root directory.
pub struct Tlb {
    /// Whether cached translations take precedence over the page tables (`--tlb`).
    pub is_used: bool,
    begin: Instant,
    tables: HashMap<Place, History>,
    stale: Vec<String>,
    kinds: Vec<(u8, u64)>,
}

/// The translation of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The page.
    pub page: Page,
    /// Whether this is the first use since the last invalidation.
    pub is_first: bool,
}

impl Tlb {
    /// An empty TLB. `begin`: the time from which microseconds count.
    pub fn new(begin: Instant) -> Self {
        Self {
            is_used: false,
            begin,
            tables: HashMap::new(),
            stale: Vec::new(),
            kinds: Vec::new(),
        }
    }

    /// Drops all entries, as after power off.
    pub fn forget(&mut self) {
        self.tables.clear();
    }

    /// Invalidates the translations of the tables with this root directory, or all. `line`: the
    /// invalidation's log line.
    pub fn invalidate(&mut self, root: Option<Place>, line: u64) {
        for (at, known) in &mut self.tables {
            if root.is_none_or(|root| root == *at) {
                known.invalidations.push(line);
            }
        }
    }

    /// Marks the entries that these tables no longer map. Called after an invalidation.
    pub fn look(&mut self, tables: &Tables, space: Space<'_>, line: u64) {
        let Some(known) = self.tables.get_mut(&tables.root) else {
            return;
        };
        for ((shift, number), entry) in &mut known.pages {
            if entry.gone.is_none() && tables.translate(space, number << shift) != Ok(entry.page) {
                entry.gone = Some(line);
            }
        }
    }

    /// Describes, for people, the translation of an address at its last use.
    pub fn history(&self, tables: &Tables, va: u64) -> String {
        let known = self.tables.get(&tables.root);
        known.unwrap_or(&History::default()).history(va)
    }

    /// The stale uses since the last call.
    pub fn take_stale(&mut self) -> Vec<String> {
        std::mem::take(&mut self.stale)
    }

    /// The nonzero page kinds found since the last call, and an address of each.
    pub fn take_kinds(&mut self) -> Vec<(u8, u64)> {
        std::mem::take(&mut self.kinds)
    }

    fn translate(&mut self, tables: &Tables, space: Space<'_>, va: u64) -> Result<Found, Fault> {
        let walked = tables.translate(space, va);
        let now = self.begin.elapsed().as_micros();
        let known = self.tables.entry(tables.root).or_default();
        let Some(entry) = known.valid(va) else {
            let page = walked?;
            known.insert(page, va, now);
            if page.kind != 0 {
                self.kinds.push((page.kind, va));
            }
            return Ok(Found {
                page,
                is_first: true,
            });
        };
        let page = entry.page;
        if walked == Ok(page) {
            entry.last = now;
            let is_first = entry.parts.insert(va >> SHIFTS[0]);
            return Ok(Found { page, is_first });
        }
        let leads = match &walked {
            Ok(page) => page.at(va).map(|place| place.to_string()),
            Err(fault) => Some(fault.to_string()),
        };
        let leads = leads.unwrap_or("sparse".to_owned());
        let history = known.history(va);
        let found = if self.is_used {
            page
        } else {
            // The caller reports a fault.
            let new = walked?;
            known.pages.remove(&(page.shift, va >> page.shift));
            known.insert(new, va, now);
            if new.kind != 0 {
                self.kinds.push((new.kind, va));
            }
            new
        };
        self.stale.push(format!("{va:#x} is {leads}; {history}"));
        Ok(Found {
            page: found,
            is_first: false,
        })
    }

    /// Calls `each` for each piece that lies in one page, with its virtual address and its
    /// range within the `len` bytes.
    pub fn pieces(
        &mut self,
        tables: &Tables,
        space: Space<'_>,
        (va, len): (u64, u64),
        write: bool,
        mut each: impl FnMut(Found, u64, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let va = va.checked_add(done).ok_or(Fault::Limit(u64::MAX))?;
            let found = self.translate(tables, space, va)?;
            if write && !found.page.is_writable {
                return Err(Fault::ReadOnly(va));
            }
            let here = found.page.left(va).min(len - done);
            each(found, va, done as usize..(done + here) as usize)?;
            done += here;
        }
        Ok(())
    }

    /// The physical place of the first byte.
    pub fn place(
        &mut self,
        tables: &Tables,
        space: Space<'_>,
        va: u64,
    ) -> Result<Option<Place>, Fault> {
        Ok(self.translate(tables, space, va)?.page.at(va))
    }

    /// Reads.
    pub fn read(
        &mut self,
        tables: &Tables,
        space: Space<'_>,
        va: u64,
        data: &mut [u8],
    ) -> Result<(), Fault> {
        let range = (va, data.len() as u64);
        self.pieces(tables, space, range, false, |found, va, part| {
            match found.page.at(va) {
                Some(place) => space.read(place, &mut data[part]),
                None => {
                    data[part].fill(0);
                    Ok(())
                }
            }
        })
    }

    /// Writes.
    pub fn write(
        &mut self,
        tables: &Tables,
        space: Space<'_>,
        va: u64,
        data: &[u8],
    ) -> Result<(), Fault> {
        let range = (va, data.len() as u64);
        self.pieces(tables, space, range, true, |found, va, part| {
            let place = found.page.at(va);
            place.map_or(Ok(()), |place| space.write(place, &data[part]))
        })
    }
}

#[cfg(test)]
mod tests;
