// SPDX-License-Identifier: GPL-2.0

//! Which pages of a pagemap are in use.

use crate::{
    bitmap::BitmapVec,
    prelude::*, //
};
use core::ops::Range;

/// Which pages are in use.
pub(in crate::mm) struct InUse {
    map: BitmapVec,
    count: usize,
}

impl InUse {
    /// Keeps track of `nr` pages, which are free.
    pub(super) fn new(nr: usize) -> Result<Self> {
        Ok(Self {
            map: BitmapVec::new(nr, GFP_KERNEL)?,
            count: 0,
        })
    }

    /// Returns how many pages are in use.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Finds and takes `nr` free pages within `range`, aligned to their number.
    pub(super) fn take(&mut self, range: Range<usize>, nr: usize) -> Option<usize> {
        let mut first = range.start.checked_next_multiple_of(nr)?;

        while first.checked_add(nr)? <= range.end {
            // Skip what is used at once: there may be much of it, and this is under a spinlock.
            let free = self.map.next_zero_bit(first)?;
            if free >= first + nr {
                first = free / nr * nr;
                continue;
            }
            match self.map.next_bit(first) {
                Some(used) if used < first + nr => first = (used + 1).next_multiple_of(nr),
                _ => {
                    for page in first..first + nr {
                        self.map.set_bit(page);
                    }
                    self.count += nr;
                    return Some(first);
                }
            }
        }

        None
    }

    pub(super) fn give_back(&mut self, first: usize, nr: usize) {
        for page in first..first + nr {
            self.map.clear_bit(page);
        }
        self.count -= nr;
    }

    /// Writes the indices of used pages in `range` to `out`, and returns how many there are.
    pub(in crate::mm) fn list(&self, range: Range<usize>, out: &mut [usize]) -> usize {
        let mut from = range.start;
        let mut n = 0;

        while n < out.len() && from < range.end {
            match self.map.next_bit(from) {
                Some(used) if used < range.end => {
                    out[n] = used;
                    n += 1;
                    from = used + 1;
                }
                _ => break,
            }
        }

        n
    }
}

#[cfg(CONFIG_RUST_PAGEMAP_KUNIT_TEST)]
#[macros::kunit_tests(rust_mm_pagemap)]
mod tests {
    use super::{
        super::PMD_PAGES,
        *, //
    };

    #[test]
    fn take_is_first_fit_and_aligned() -> Result {
        let mut used = InUse::new(4 * PMD_PAGES)?;

        assert_eq!(used.take(0..4 * PMD_PAGES, 1), Some(0));
        assert_eq!(used.take(0..4 * PMD_PAGES, 1), Some(1));
        // The first huge page is spoiled.
        assert_eq!(used.take(0..4 * PMD_PAGES, PMD_PAGES), Some(PMD_PAGES));
        assert_eq!(used.take(0..4 * PMD_PAGES, 1), Some(2));
        assert_eq!(used.count, PMD_PAGES + 3);

        used.give_back(1, 1);
        assert_eq!(used.take(0..4 * PMD_PAGES, 1), Some(1));
        Ok(())
    }

    #[test]
    fn take_stays_in_range() -> Result {
        let mut used = InUse::new(2 * PMD_PAGES)?;

        // A range that does not begin at a multiple has one huge page less.
        assert_eq!(used.take(1..2 * PMD_PAGES, PMD_PAGES), Some(PMD_PAGES));
        assert_eq!(used.take(1..2 * PMD_PAGES, PMD_PAGES), None);
        assert_eq!(used.take(PMD_PAGES..2 * PMD_PAGES, 1), None);
        assert_eq!(used.take(0..0, 1), None);
        assert_eq!(used.take(usize::MAX - 1..usize::MAX, PMD_PAGES), None);

        for i in 0..PMD_PAGES {
            assert_eq!(used.take(0..2 * PMD_PAGES, 1), Some(i));
        }
        assert_eq!(used.take(0..2 * PMD_PAGES, 1), None);
        assert_eq!(used.count, 2 * PMD_PAGES);
        Ok(())
    }

    #[test]
    fn list_gives_used_pages() -> Result {
        let mut used = InUse::new(256)?;
        let mut out = [0; 4];

        assert_eq!(used.list(0..256, &mut out), 0);
        for page in [3, 64, 65, 200, 255] {
            assert_eq!(used.take(page..page + 1, 1), Some(page));
        }
        assert_eq!(used.list(4..256, &mut out), 4);
        assert_eq!(out, [64, 65, 200, 255]);
        assert_eq!(used.list(0..65, &mut out), 2);
        assert_eq!(out[..2], [3, 64]);
        Ok(())
    }
}
