// SPDX-License-Identifier: GPL-2.0

//! Migration because of an access by the CPU.

use super::{
    raw::Raw,
    Collected,
    HostFolio,
    Migration,
    ToHost, //
};
use crate::{
    bindings,
    mm::pagemap::{
        Ops,
        PageMap,
        PMD_ORDER,
        PMD_PAGES, //
    },
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*,
    types::NotThreadSafe, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// An access of the CPU to a page that is on the device.
///
/// Given to [`Ops::migrate_to_ram`].
///
/// # Invariants
///
/// `vmf` is valid for `'a`, describes a fault on a page of device private memory, and this exists
/// only within the `migrate_to_ram()` callback for it.
pub struct Fault<'a> {
    vmf: NonNull<bindings::vm_fault>,
    _nts: NotThreadSafe,
    _callback: PhantomData<&'a ()>,
}

impl<'a> Fault<'a> {
    /// # Safety
    ///
    /// `vmf` must be what the C side calls a `migrate_to_ram()` callback with, and `'a` must not
    /// last longer than that callback.
    pub(in crate::mm) unsafe fn from_raw(vmf: *mut bindings::vm_fault) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            // SAFETY: `vmf` is valid.
            vmf: unsafe { NonNull::new_unchecked(vmf) },
            _nts: NotThreadSafe,
            _callback: PhantomData,
        }
    }

    fn vma(&self) -> *mut bindings::vm_area_struct {
        // SAFETY: `vmf` is valid by the type invariants.
        unsafe { self.vmf.as_ref().__bindgen_anon_1.vma }
    }

    /// Returns the address that the CPU accessed.
    pub fn address(&self) -> usize {
        // SAFETY: `vmf` is valid by the type invariants.
        unsafe { self.vmf.as_ref().__bindgen_anon_1.address }
    }

    /// Begins to bring the page home, or the whole huge page if it is mapped as one.
    ///
    /// `map` is the pagemap that [`Ops::migrate_to_ram`] was called with.
    ///
    /// The page need not be among those collected. Somebody else may just be moving it. Then
    /// nothing is left to do, and the access is repeated.
    pub fn setup<T: Ops>(
        self,
        map: &'a PageMap<'_, T>,
    ) -> Result<Migration<'a, T, ToHost, Collected>> {
        let mut start = self.address() & PAGE_MASK;
        let mut pages = 1;
        let mut flags = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE;
        let first = self.host_folio_for_pmd();

        if first.is_some() {
            start &= !(PMD_PAGES * PAGE_SIZE - 1);
            pages = PMD_PAGES;
            flags |= bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND;
        }

        // SAFETY:
        // - Faults on device private memory are handled with the mmap lock held. It is held until
        //   the callback returns, and `'a` does not last longer.
        // - The page is the one that the callback is called for.
        // - The owner is that of a pagemap.
        let raw = unsafe {
            Raw::setup(
                self.vma(),
                start..start + pages * PAGE_SIZE,
                map.owner(),
                flags,
                self.vmf.as_ref().page,
            )
        }?;

        Ok(Migration::new(raw, map, first))
    }

    /// If the fault is for a huge page, returns where it can move to in one piece.
    ///
    /// Without that, the core splits the huge page when the migration is set up, and a page of it
    /// moves.
    fn host_folio_for_pmd(&self) -> Option<HostFolio> {
        // SAFETY: `vmf` is valid by the type invariants.
        let vmf = unsafe { self.vmf.as_ref() };

        // A fault handler of page table entries leaves a pointer to the entry.
        if !vmf.pte.is_null() {
            return None;
        }

        // SAFETY: The fault handler holds a reference to the page and the lock of its folio, so
        // that the order does not change.
        let order = unsafe { bindings::folio_order(bindings::page_folio(vmf.page)) };
        if order != PMD_ORDER {
            return None;
        }

        // SAFETY: The VMA is valid, and the mmap lock is held. The huge page is mapped at the huge
        // page boundary below the address.
        unsafe {
            HostFolio::for_vma(
                self.vma(),
                self.address() & !(PMD_PAGES * PAGE_SIZE - 1),
                PMD_ORDER,
            )
        }
    }
}
