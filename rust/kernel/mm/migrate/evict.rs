// SPDX-License-Identifier: GPL-2.0

//! Migration because the device needs the room, or goes away.

use super::{
    raw::{
        entry_page,
        PFN_COMPOUND,
        PFN_MIGRATE, //
    },
    HostFolio, //
};
use crate::{
    bindings,
    mm::pagemap::{
        Ops,
        PageMap,
        PMD_ORDER,
        PMD_PAGES, //
    },
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    },
};
use core::{
    ops::Range,
    ptr::NonNull, //
};

/// How often [`PageMap::evict_all`] tries before it complains.
const STUCK_AFTER: u64 = 10_000;

/// Splits a large folio of device private memory, if nobody else is using it right now.
///
/// Not generic and never inlined, because the C function is not available to modules.
///
/// # Safety
///
/// `page` must be a page of device private memory whose pagemap exists, and the first of a large
/// folio, or have been so a moment ago.
#[inline(never)]
unsafe fn split_device_folio(page: *mut bindings::page) {
    // SAFETY: There is a `struct page` to look at by the safety requirements. It may belong to
    // another folio by now, or to none, but it has always been the first page of it.
    let folio = unsafe { bindings::page_folio(page) };

    // SAFETY: As above. This fails if the page is free.
    if !unsafe { bindings::folio_try_get(folio) } {
        return;
    }

    // SAFETY: We have a reference.
    if unsafe { bindings::folio_trylock(folio) } {
        // SAFETY: The folio is locked, and we have a reference. It is checked to be large first; by
        // now it may have been split or become another folio.
        if unsafe { bindings::folio_order(folio) } > 0 {
            // Failure means that somebody else is using it. The caller tries again.
            //
            // SAFETY: As above.
            let _ = unsafe { bindings::split_folio(folio) };
        }
        // SAFETY: We took the lock. After a split, it is the lock of the folio with the first page,
        // and our reference is for that folio.
        unsafe { bindings::folio_unlock(folio) };
    }

    // SAFETY: We took the reference.
    unsafe { bindings::folio_put(folio) };
}

impl<T: Ops> PageMap<'_, T> {
    /// Moves pages to host memory, whatever process they belong to.
    ///
    /// As large folios move as a whole, `range` is extended to multiples of [`PMD_PAGES`]. Returns
    /// the number of pages that moved. Pages that somebody else is using right now are left out. If
    /// host memory has no large folio for a large folio, that one is only split, and the next call
    /// moves its pages. Only dropping the pagemap ensures that all pages are gone. May sleep.
    ///
    /// May be called while pages are being moved to the pagemap, but not within
    /// [`Migration::copy`](super::Migration::copy) or [`Ops::copy_to_host`].
    pub fn evict(&self, range: Range<usize>) -> usize {
        self.evict_steps(range, false)
    }

    /// Moves all pages to host memory, and waits for those that others are using.
    ///
    /// Calls `stuck` with the number of pages that are left, after each [`STUCK_AFTER`] attempts,
    /// which take at least as many milliseconds.
    pub(in crate::mm) fn evict_all(&self, mut stuck: impl FnMut(usize)) {
        for attempt in 1u64.. {
            self.evict_steps(0..self.nr_pages(), true);

            // The pages left belong to a fault, a migration, or a process that is being forked or
            // is exiting. That will end, unless a driver has leaked a folio.
            let left = self.nr_in_use();
            if left == 0 {
                return;
            }
            if attempt % STUCK_AFTER == 0 {
                stuck(left);
            }
            fsleep(Delta::from_millis(1));
        }
    }

    fn evict_steps(&self, range: Range<usize>, last: bool) -> usize {
        let end = range.end.min(self.nr_pages());
        if range.start >= end {
            return 0;
        }

        // A step is a huge page, so that no folio is in two steps.
        (range.start / PMD_PAGES..end.div_ceil(PMD_PAGES))
            .map(|i| self.evict_step(i * PMD_PAGES..(i + 1) * PMD_PAGES, last))
            .sum()
    }

    fn evict_step(&self, range: Range<usize>, last: bool) -> usize {
        let mut arrays = self.evict_arrays.lock();
        let arrays = &mut *arrays;
        let nr = self.in_use.lock().list(range, &mut arrays.src);
        if nr == 0 {
            return 0;
        }

        for entry in &mut arrays.src[..nr] {
            *entry = self.pfn(*entry);
        }
        arrays.dst[..nr].fill(0);

        // SAFETY: The array has `nr` page frame numbers, all of device private memory whose pagemap
        // exists. Pages that are free by now are recognised by the function.
        unsafe { bindings::migrate_device_pfns(arrays.src.as_mut_ptr(), nr) };

        let mut too_large = None;
        let mut i = 0;
        while i < nr {
            let src = arrays.src[i];
            let Some(page) = entry_page(src).filter(|_| src & PFN_MIGRATE != 0) else {
                i += 1;
                continue;
            };
            let order = if src & PFN_COMPOUND != 0 {
                PMD_ORDER
            } else {
                0
            };

            match self.evict_copy(page, order, last) {
                Some(folio) => arrays.dst[i] = folio.into_entry(),
                None if order > 0 => too_large = Some(page),
                None => (),
            }
            i += 1 << order;
        }

        // SAFETY: The arrays have `nr` entries, which are as `migrate_device_pfns()` left them,
        // with locked folios of the same order as destination.
        unsafe {
            bindings::migrate_device_pages(arrays.src.as_mut_ptr(), arrays.dst.as_mut_ptr(), nr)
        };

        let mut moved = 0;
        arrays.for_each_moved(nr, |_, pages| moved += pages);

        // SAFETY: As above.
        unsafe {
            bindings::migrate_device_finalize(arrays.src.as_mut_ptr(), arrays.dst.as_mut_ptr(), nr)
        };

        // Host memory had no huge page, or not all of this one can be read. The next attempt finds
        // single pages.
        if let Some(page) = too_large {
            // SAFETY: The page is of this pagemap, and we just saw a large folio there.
            unsafe { split_device_folio(page.as_ptr()) };
        }
        moved
    }

    fn evict_copy(
        &self,
        page: NonNull<bindings::page>,
        order: u32,
        last: bool,
    ) -> Option<HostFolio> {
        // SAFETY: The page is valid, the migration holds a reference to it.
        let pfn = unsafe { bindings::page_to_pfn(page.as_ptr()) };
        let index = self.index(pfn)?;
        let mut folio = HostFolio::anywhere(order, last)?;

        match self.copy_to_host(index, &mut folio) {
            Ok(()) => Some(folio),
            Err(_) if last && order == 0 => {
                pr_err!("device private memory: content of page {} lost\n", index);
                folio.zero();
                Some(folio)
            }
            Err(_) => None,
        }
    }
}
