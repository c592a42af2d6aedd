// SPDX-License-Identifier: GPL-2.0

//! Folios of host memory, as the destination of a migration.

use super::raw::{
    pfn_entry,
    PFN_COMPOUND, //
};
use crate::{
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};
use core::ptr::NonNull;

/// Releases the lock of a folio and a reference to it.
///
/// # Safety
///
/// The caller must own the lock and a reference of `folio`, and gives both up.
pub(in crate::mm) unsafe fn unlock_and_put(folio: *mut bindings::folio) {
    // SAFETY: The caller owns the lock.
    unsafe { bindings::folio_unlock(folio) };

    // SAFETY: The caller owns the reference.
    unsafe { bindings::folio_put(folio) };
}

/// Runs `f` with the address of the page `nth` of a folio.
///
/// The address is valid while `f` runs, and what is there are initialised bytes.
///
/// # Safety
///
/// The folio must be in host memory and have more than `nth` pages.
pub(super) unsafe fn with_folio_page<R>(
    folio: NonNull<bindings::folio>,
    nth: usize,
    f: impl FnOnce(*mut [u8; PAGE_SIZE]) -> R,
) -> R {
    // SAFETY: The folio has this page, and it is in host memory.
    let addr = unsafe { bindings::kmap_local_page(bindings::folio_page(folio.as_ptr(), nth)) };

    let ret = f(addr.cast());

    // SAFETY: `addr` came from `kmap_local_page()`. What `f` mapped in between, it has unmapped:
    // Rust offers such mappings only to closures, as here, so that they nest.
    unsafe { bindings::kunmap_local(addr) };

    ret
}

/// A folio of host memory that is about to receive pages from the device.
///
/// # Invariants
///
/// `folio` is in host memory, of order `order`, and locked. This object owns the lock and the only
/// reference.
pub struct HostFolio {
    folio: NonNull<bindings::folio>,
    order: u32,
}

impl HostFolio {
    /// # Safety
    ///
    /// `folio` must be null or a folio that was just allocated with the given order.
    unsafe fn from_new(folio: *mut bindings::folio, order: u32) -> Option<Self> {
        let folio = NonNull::new(folio)?;

        // SAFETY: The folio is valid. Nobody else has it, so that this does not wait.
        unsafe { bindings::folio_lock(folio.as_ptr()) };

        // INVARIANT: We own the folio by the safety requirements, and locked it.
        Some(Self { folio, order })
    }

    /// Allocates a large folio if that is easy, or a single page.
    ///
    /// The process must not see what others left in a page that the driver does not fill.
    const fn gfp(order: u32) -> bindings::gfp_t {
        bindings::__GFP_ZERO
            | if order == 0 {
                bindings::GFP_HIGHUSER_MOVABLE
            } else {
                bindings::GFP_TRANSHUGE | bindings::__GFP_NOWARN
            }
    }

    /// Allocates a folio for an address of a process.
    ///
    /// # Safety
    ///
    /// `vma` must be valid, with the mmap lock held, and contain the folio at `addr`.
    pub(super) unsafe fn for_vma(
        vma: *mut bindings::vm_area_struct,
        addr: usize,
        order: u32,
    ) -> Option<Self> {
        // SAFETY: By the safety requirements. Orders are small.
        unsafe {
            Self::from_new(
                bindings::vma_alloc_folio(Self::gfp(order), order as c_int, vma, addr),
                order,
            )
        }
    }

    /// Allocates a folio for nobody in particular. A single page always succeeds with `nofail`.
    pub(super) fn anywhere(order: u32, nofail: bool) -> Option<Self> {
        let mut gfp = Self::gfp(order);
        if nofail && order == 0 {
            gfp |= bindings::__GFP_NOFAIL;
        }

        // SAFETY: A folio can be allocated with these flags in any process context.
        unsafe { Self::from_new(bindings::folio_alloc(gfp, order), order) }
    }

    /// Returns the order: the folio has `1 << order` pages.
    #[inline]
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Returns the number of pages.
    #[inline]
    pub fn nr_pages(&self) -> usize {
        1 << self.order
    }

    /// Runs `f` with the content of page `nth` of the folio, for the driver to fill.
    ///
    /// Initially it is all zeroes. Returns [`None`] if the folio has no such page.
    pub fn with_page<R>(
        &mut self,
        nth: usize,
        f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R,
    ) -> Option<R> {
        if nth >= self.nr_pages() {
            return None;
        }

        // SAFETY: We checked `nth`, and the folio is in host memory by the type invariants.
        Some(unsafe {
            with_folio_page(self.folio, nth, |bytes| {
                // SAFETY: The address is valid. Nobody else has a reference to the folio by the
                // type invariants, and `self` is borrowed mutably.
                f(&mut *bytes)
            })
        })
    }

    pub(super) fn zero(&mut self) {
        for i in 0..self.nr_pages() {
            self.with_page(i, |bytes| bytes.fill(0));
        }
    }

    /// Gives up the ownership and returns an entry for the `dst` array.
    pub(super) fn into_entry(self) -> usize {
        // SAFETY: The folio is valid by the type invariants.
        let pfn = unsafe { bindings::page_to_pfn(self.folio.as_ptr().cast()) };
        let compound = if self.order > 0 { PFN_COMPOUND } else { 0 };

        core::mem::forget(self);
        pfn_entry(pfn) | compound
    }
}

impl Drop for HostFolio {
    fn drop(&mut self) {
        // SAFETY: By the type invariants we own the lock and the reference.
        unsafe { unlock_and_put(self.folio.as_ptr()) };
    }
}

#[cfg(CONFIG_RUST_PAGEMAP_KUNIT_TEST)]
#[macros::kunit_tests(rust_mm_host_folio)]
mod tests {
    use super::*;

    /// A page that the driver does not fill has no data of earlier owners.
    #[test]
    fn new_is_zero() -> Result {
        let mut folios = KVec::new();

        // The second time, these are pages that were freed just now.
        for _ in 0..2 {
            for _ in 0..64 {
                let mut folio = HostFolio::anywhere(0, false).ok_or(ENOMEM)?;

                folio.with_page(0, |bytes| {
                    assert!(bytes.iter().all(|byte| *byte == 0));
                    bytes.fill(0xff);
                });
                // There is no other page.
                assert!(folio.with_page(1, |_| ()).is_none());
                folios.push(folio, GFP_KERNEL)?;
            }
            folios.clear();
        }
        Ok(())
    }
}
