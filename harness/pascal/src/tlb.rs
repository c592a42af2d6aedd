//! The translation cache. Hardware may use a translation until the driver invalidates
//! it, whatever the page tables say by then.
//!
//! By itself the model goes where the tables lead, and only tells of a translation that a
//! cache might still have had. With `--tlb` the old translation is used, as the worst
//! hardware would: the driver then finds its data in the wrong place.
//!
//! A translation is kept after it was invalidated, for a violation to tell what an address
//! was.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use crate::mmu::{Page, Tables};
use crate::space::{Fault, Place, Space};

/// log2 of the sizes that a page can have; the last three are of sparse ones.
const SHIFTS: [u32; 6] = [12, 16, 21, 29, 38, 47];

/// A translation that was used.
struct Entry {
    page: Page,
    /// When it was used for the first and for the last time, in microseconds. The first
    /// one is that of the mapping, not that since an invalidation.
    first: u128,
    last: u128,
    /// The numbers of its parts of 4 KiB that were used.
    parts: HashSet<u64>,
    /// How often the tables had been invalidated.
    invalidations: usize,
    /// The first invalidation by which the tables led elsewhere, or nowhere: its line.
    gone: Option<u64>,
}

/// What is known of some tables.
#[derive(Default)]
struct Known {
    /// By log2 of the size, and number.
    pages: HashMap<(u32, u64), Entry>,
    /// The lines of the log that tell of an invalidation.
    invalidations: Vec<u64>,
}

impl Known {
    fn entries(&self, va: u64) -> impl Iterator<Item = &Entry> {
        let at = move |shift| self.pages.get(&(shift, va >> shift));
        SHIFTS.into_iter().filter_map(at)
    }

    /// What a cache would have.
    fn valid(&mut self, va: u64) -> Option<&mut Entry> {
        let now = self.invalidations.len();
        let is_valid = |entry: &&Entry| entry.invalidations == now;
        let shift = self.entries(va).find(is_valid)?.page.shift;
        self.pages.get_mut(&(shift, va >> shift))
    }

    /// What an address was.
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

/// Translations, by the tables' first directory.
pub struct Tlb {
    /// Old translations lead, and not the tables.
    pub is_used: bool,
    begin: Instant,
    tables: HashMap<Place, Known>,
    stale: Vec<String>,
    kinds: Vec<(u8, u64)>,
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The page.
    pub page: Page,
    /// It was not used since the last invalidation.
    pub is_first: bool,
}

impl Tlb {
    /// An empty one; `begin`: from when on microseconds count.
    pub fn new(begin: Instant) -> Self {
        Self {
            is_used: false,
            begin,
            tables: HashMap::new(),
            stale: Vec::new(),
            kinds: Vec::new(),
        }
    }

    /// The power was off.
    pub fn forget(&mut self) {
        self.tables.clear();
    }

    /// The driver has invalidated the translations of the tables with this directory, or
    /// all. `line`: where the log says so.
    pub fn invalidate(&mut self, root: Option<Place>, line: u64) {
        for (at, known) in &mut self.tables {
            if root.is_none_or(|root| root == *at) {
                known.invalidations.push(line);
            }
        }
    }

    /// Marks what is gone from these tables, which were invalidated.
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

    /// What an address was when it was used last, for people.
    pub fn history(&self, tables: &Tables, va: u64) -> String {
        let known = self.tables.get(&tables.root);
        known.unwrap_or(&Known::default()).history(va)
    }

    /// What was stale since this was asked last.
    pub fn take_stale(&mut self) -> Vec<String> {
        std::mem::take(&mut self.stale)
    }

    /// The kinds of pages that were found since this was asked last, other than zero, and
    /// an address of each.
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
            // Who has asked tells of a fault.
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

    /// Calls `each` for what is in one page, with its virtual address, and the part of
    /// `len` bytes.
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

    /// Where the first byte is.
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
