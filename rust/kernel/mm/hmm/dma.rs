// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of the memory that HMM found.
//!
//! [`DmaMap`] has a slot per page of a range of user addresses. A slot is filled from a
//! [`Valid`], that is, under the user lock and after a successful validation, and
//! holds the address that a device uses to reach the page. It is emptied by the driver's
//! [`Ops::invalidate`](crate::mm::notifier::Ops::invalidate).
//!
//! To make that so, the map belongs into the data that the user lock protects,
//! [`Ops::Protected`](crate::mm::notifier::Ops::Protected). All its functions that change something
//! take `&mut self` and thus need the lock. The types cannot see an address that the driver gave to
//! its device: the driver must stop the device from using it before
//! [`Ops::invalidate`](crate::mm::notifier::Ops::invalidate) returns.
//!
//! In C, a range fault may write its result to the map's own array, in which pages are marked that
//! are mapped for DMA already. That array is then accessed without the lock. Here a range fault has
//! its own [`PfnBuf`](super::PfnBuf), and only what was validated gets to the map. So a
//! fault that fails or has to be retried changes nothing in it, and cannot bring back an entry that
//! an invalidation just removed.
//!
//! C header: [`include/linux/hmm-dma.h`](srctree/include/linux/hmm-dma.h)

use super::{
    flag,
    Pfn,
    Valid,
    DEVICE_PRIVATE,
    ERROR,
    FLAGS,
    P2P_ALIAS,
    VALID,
    WRITE, //
};
use crate::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    dma::DmaAddress,
    error::to_result,
    io::PhysAddr,
    page::PAGE_SIZE,
    prelude::*, //
};
use core::{
    marker::PhantomData,
    ops::Range,
    slice, //
};

const DMA_MAPPED: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_DMA_MAPPED);
const P2PDMA: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_P2PDMA);
const P2PDMA_BUS: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_P2PDMA_BUS);

/// The flags that say how a slot is mapped, as opposed to what it refers to.
const MAPPING: usize = DMA_MAPPED | P2PDMA | P2PDMA_BUS;

/// How a device reaches a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The page is in host memory.
    Host,
    /// The page is in a peer below the same switch; the address is one on the bus.
    BusAddr,
    /// The page is in a peer, through the host bridge.
    HostBridge,
}

/// Where a device finds a page.
///
/// # Invariants
///
/// `entry` is a slot of a [`DmaMap`] that is mapped.
#[derive(Debug, Clone, Copy)]
pub struct Mapping<'a> {
    addr: DmaAddress,
    entry: usize,
    _map: PhantomData<&'a ()>,
}

impl Mapping<'_> {
    /// Returns the address of the page for the device.
    ///
    /// The device must not use it after the user lock was released, unless
    /// [`Ops::invalidate`](crate::mm::notifier::Ops::invalidate) makes it stop.
    pub fn addr(&self) -> DmaAddress {
        self.addr
    }

    /// Returns the address of the page as the CPU sees it, which is none for DMA.
    ///
    /// The memory of a peer must not be accessed by it.
    pub fn phys(&self) -> PhysAddr {
        // SAFETY: Computes from the value only, which is a valid PFN as it is mapped.
        unsafe { bindings::hmm_pfn_to_phys(self.entry) }
    }

    /// Returns how the device reaches the page.
    pub fn route(&self) -> Route {
        if self.entry & P2PDMA_BUS != 0 {
            Route::BusAddr
        } else if self.entry & P2PDMA != 0 {
            Route::HostBridge
        } else {
            Route::Host
        }
    }

    /// Returns whether the device may write to the page.
    pub fn writable(&self) -> bool {
        self.entry & WRITE != 0
    }
}

/// DMA mappings of a range of user addresses for one device, a page each.
///
/// # Examples
///
/// A device that reaches memory of a process where it is, as long as it is there:
///
/// ```
/// use kernel::{
///     device::{
///         Bound,
///         Device, //
///     },
///     mm::{
///         hmm::{
///             dma::DmaMap,
///             Access,
///             PfnBuf,
///             Request, //
///         },
///         notifier::{
///             IntervalNotifier,
///             Invalidation,
///             Ops, //
///         },
///         MmWithUser, //
///     },
///     page::{
///         PAGE_SHIFT,
///         PAGE_SIZE, //
///     },
///     prelude::*, //
/// };
///
/// struct Mirror<'bound> {
///     nic: &'bound Device<Bound>,
///     start: usize,
/// }
///
/// impl<'bound> Ops for Mirror<'bound> {
///     type Protected = DmaMap<'bound>;
///
///     fn invalidate(&self, dma: &mut DmaMap<'bound>, inv: &Invalidation<'_>) {
///         let range = inv.range();
///
///         // First make the device stop to use these pages.
///         dma.unmap(
///             (range.start - self.start) >> PAGE_SHIFT
///                 ..(range.end - self.start).div_ceil(PAGE_SIZE),
///         );
///     }
/// }
///
/// fn fault(mirror: &IntervalNotifier<Mirror<'_>>, mm: &MmWithUser, buf: &mut PfnBuf) -> Result {
///     let request = Request::new(Access::Write).try_p2p(mirror.nic);
///
///     loop {
///         let faulted = mirror.fault(mm, mirror.range(), &request, buf)?;
///         let mut guard = mirror.lock();
///
///         let Ok((valid, dma)) = faulted.validate(&mut guard) else {
///             // Something was invalidated meanwhile.
///             continue;
///         };
///
///         dma.fill(valid)
///             .map_range(0..valid.len(), 0)
///             .map_err(|not_mapped| not_mapped.error)?;
///         for page in 0..valid.len() {
///             let _addr = dma.get(page).map(|mapping| mapping.addr());
///             // Tell the device. It uses the address until `invalidate` makes it stop.
///         }
///         return Ok(());
///     }
/// }
/// ```
///
/// # Invariants
///
/// - `map` is allocated for `dev` with `addrs.len()` entries of a page.
/// - An entry of `map.pfn_list` has `HMM_PFN_DMA_MAPPED` exactly if it has `HMM_PFN_VALID`, and
///   `addrs` then holds its address; otherwise it is 0.
/// - `mapped` is how many entries have `HMM_PFN_DMA_MAPPED`.
pub struct DmaMap<'bound> {
    dev: &'bound Device<Bound>,
    map: bindings::hmm_dma_map,
    addrs: KVVec<DmaAddress>,
    mapped: usize,
}

// SAFETY: The C functions on the map may be called by any thread, one at a time.
unsafe impl Send for DmaMap<'_> {}

// SAFETY: `&self` only reads the arrays of the map, which `&mut self` writes.
unsafe impl Sync for DmaMap<'_> {}

impl<'bound> DmaMap<'bound> {
    /// Allocates an empty map of `pages` slots.
    ///
    /// Fails with [`EOPNOTSUPP`] if DMA of `dev` to memory of a process would need copying, because
    /// the device cannot address all memory or is not coherent.
    ///
    /// # Safety
    ///
    /// The map must not be leaked, as by [`core::mem::forget`], but dropped before `'bound` ends:
    /// otherwise the device keeps its way to memory of the process, and the driver after this one
    /// has it.
    pub unsafe fn new(dev: &'bound Device<Bound>, pages: usize) -> Result<Self> {
        if pages == 0 || pages.checked_mul(PAGE_SIZE).is_none() {
            return Err(EINVAL);
        }

        let addrs = KVVec::from_elem(0, pages, GFP_KERNEL)?;
        let mut map = bindings::hmm_dma_map::default();

        // SAFETY: `dev` is bound, so it is valid; one without DMA is refused. `map` is zeroed. The
        // number of pages is not 0 and their size does not overflow.
        to_result(unsafe {
            bindings::hmm_dma_map_alloc(dev.as_raw(), &mut map, pages, PAGE_SIZE)
        })?;

        // INVARIANT: Just allocated; the C function zeroed `pfn_list`.
        Ok(Self {
            dev,
            map,
            addrs,
            mapped: 0,
        })
    }

    /// Returns the number of slots.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.addrs.len()
    }

    /// Returns how many slots have a mapping.
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    /// Begins to fill slots from what a range fault found.
    ///
    /// `valid` must have been validated under the user lock that protects this map.
    pub fn fill<'a>(&'a mut self, valid: Valid<'a>) -> Fill<'a, 'bound> {
        Fill {
            map: self,
            valid,
            state: bindings::pci_p2pdma_map_state::default(),
        }
    }

    /// Returns the mapping in slot `index`, or [`None`] if the slot is empty.
    pub fn get(&self, index: usize) -> Option<Mapping<'_>> {
        let addr = *self.addrs.get(index)?;

        // SAFETY: By the type invariants `pfn_list` has an entry for each element of `addrs`.
        let entry = unsafe { *self.map.pfn_list.add(index) };
        if entry & DMA_MAPPED == 0 {
            return None;
        }

        // INVARIANT: It is mapped.
        Some(Mapping {
            addr,
            entry,
            _map: PhantomData,
        })
    }

    /// Tells whether slot `index` has a mapping.
    pub fn is_mapped(&self, index: usize) -> bool {
        // SAFETY: As in `get`.
        index < self.len() && unsafe { *self.map.pfn_list.add(index) } & DMA_MAPPED != 0
    }

    /// Returns the first of the slots `range` that is empty, if there is one.
    pub fn first_empty(&self, range: Range<usize>) -> Option<usize> {
        if self.mapped == self.len() {
            return None;
        }
        (range.start..range.end.min(self.len())).find(|index| !self.is_mapped(*index))
    }

    /// Returns the addresses in the slots `range`, or [`None`] unless each of them has a mapping.
    pub fn addrs(&self, range: Range<usize>) -> Option<&[DmaAddress]> {
        let addrs = self.addrs.get(range.clone())?;

        match self.first_empty(range) {
            Some(_) => None,
            None => Some(addrs),
        }
    }

    /// Empties the slots `range`, and returns how many of them were not empty.
    ///
    /// The device must have stopped to use them.
    pub fn unmap(&mut self, range: Range<usize>) -> usize {
        let range = range.start..range.end.min(self.len());
        if range.is_empty() {
            return 0;
        }

        // SAFETY: The map is allocated for `dev` and has the slots `range` by the type invariants.
        let unmapped = unsafe {
            bindings::hmm_dma_unmap_range(
                self.dev.as_raw(),
                &mut self.map,
                range.start,
                range.len(),
            )
        };

        for index in range {
            // INVARIANT: The slot is unmapped, if it was not before.
            // SAFETY: `pfn_list` has an entry `index` by the type invariants.
            unsafe { *self.map.pfn_list.add(index) = 0 };
        }

        self.mapped -= unmapped;
        unmapped
    }
}

impl Drop for DmaMap<'_> {
    fn drop(&mut self) {
        self.unmap(0..self.len());

        // SAFETY: The map was allocated for `dev`, which is still bound, and nothing is mapped.
        unsafe { bindings::hmm_dma_map_free(self.dev.as_raw(), &mut self.map) };
    }
}

/// Fills slots of a [`DmaMap`], from a range fault that is valid during `'a`.
pub struct Fill<'a, 'bound> {
    map: &'a mut DmaMap<'bound>,
    valid: Valid<'a>,
    // Caches the way to the last peer. That is allowed during `'a`: an alias that is valid keeps
    // its provider from going away, see `Documentation/mm/hmm.rst` and `pagemap::Alias`.
    state: bindings::pci_p2pdma_map_state,
}

impl Fill<'_, '_> {
    /// Maps page `page` of the range fault for DMA, and stores it in slot `index`.
    ///
    /// If the slot has this page already, its permission is updated. Fails with
    ///
    /// - [`EINVAL`] if there is no such slot or page, or nothing that can be mapped behind it,
    /// - [`EIO`] if the mapping failed. The slot is then empty. If the page is an alias, the driver
    ///   should ask for host memory instead, see [`PfnBuf::host_only`](super::PfnBuf::host_only).
    pub fn map(&mut self, page: usize, index: usize) -> Result<Mapping<'_>> {
        self.map.mapped -= usize::from(self.take_over(page, index)?);

        // SAFETY: The map is allocated for the device, and slot `index` has a valid PFN of host
        // memory or an alias. The latter stays valid as long as `self.valid`, so the provider that
        // `state` may refer to does, too.
        let addr = unsafe {
            bindings::hmm_dma_map_pfn(
                self.map.dev.as_raw(),
                &mut self.map.map,
                index,
                &mut self.state,
            )
        };
        if addr == DmaAddress::MAX {
            // INVARIANT: Not mapped, so the entry must not be valid either.
            // SAFETY: `pfn_list` has an entry `index` by the type invariants of `DmaMap`.
            unsafe { *self.map.map.pfn_list.add(index) = 0 };
            return Err(EIO);
        }

        // INVARIANT: A direct mapping needs no unmapping, but `hmm_dma_map_pfn()` marks it as
        // mapped nevertheless. It was not counted, or not any more.
        self.map.addrs[index] = addr;
        self.map.mapped += 1;
        self.map.get(index).ok_or(EIO)
    }

    /// Maps `pages` of the range fault for DMA, and stores them in the slots from `index` on.
    ///
    /// This is faster than [`Fill::map`] for each of them, as adjacent pages are mapped at once.
    /// It ends at the first page for which that would fail; those before it are mapped. The
    /// driver may go on behind it.
    pub fn map_range(&mut self, pages: Range<usize>, index: usize) -> Result<(), NotMapped> {
        let mut result = Ok(());
        let mut end = index;
        let mut before = 0;

        if self.take_over_aliases(pages.clone(), index) {
            end += pages.len();
        } else {
            for page in pages.clone() {
                match self.take_over(page, end) {
                    Ok(mapped) => before += usize::from(mapped),
                    Err(error) => {
                        result = Err(NotMapped { page, error });
                        break;
                    }
                }
                end += 1;
            }
        }
        if end == index {
            return result;
        }

        // SAFETY: As in `map`, for all slots from `index` to `end`. `take_over` saw that the map
        // has them, and `addrs` has as many elements.
        let done = unsafe {
            bindings::hmm_dma_map_range(
                self.map.dev.as_raw(),
                &mut self.map.map,
                index,
                end - index,
                &mut self.state,
                self.map.addrs.as_mut_ptr().add(index),
            )
        };

        let mut mapped = done;
        for slot in index + done..end {
            // SAFETY: `pfn_list` has an entry `slot` by the type invariants of `DmaMap`.
            let entry = unsafe { &mut *self.map.map.pfn_list.add(slot) };
            if *entry & DMA_MAPPED == 0 {
                // INVARIANT: Not mapped, so the entry must not be valid either.
                *entry = 0;
            } else {
                mapped += 1;
            }
        }
        // INVARIANT: All other slots are mapped, and the C function stored their addresses. Those
        // that were mapped before still are.
        self.map.mapped += mapped - before;
        if index + done == end {
            return result;
        }

        Err(NotMapped {
            page: pages.start + done,
            error: EIO,
        })
    }

    /// Does what [`Self::take_over`] does for each of `pages`, with slot `index` in front, if they
    /// are all aliases and the slots are all empty. Returns whether it did.
    ///
    /// This is much faster: there is no page to compare with, and none to set dirty.
    fn take_over_aliases(&mut self, pages: Range<usize>, index: usize) -> bool {
        const ALIAS: usize = VALID | P2P_ALIAS;

        let Some(pfns) = self.valid.pfns.get(pages) else {
            return false;
        };
        // HMM stores no alias that is something else, too, nor a flag of `MAPPING`.
        if P2P_ALIAS == 0 || pfns.iter().fold(ALIAS, |all, pfn| all & pfn) != ALIAS {
            return false;
        }
        if index > self.map.len() || pfns.len() > self.map.len() - index {
            return false;
        }

        // SAFETY: By the type invariants of `DmaMap`, `pfn_list` has these entries, and they are
        // initialized. They are only accessed through `&self.map` and `&mut self.map`, and we have
        // the latter.
        let slots =
            unsafe { slice::from_raw_parts_mut(self.map.map.pfn_list.add(index), pfns.len()) };
        if self.map.mapped != 0 && slots.iter().any(|slot| *slot != 0) {
            return false;
        }
        slots.copy_from_slice(pfns);
        true
    }

    /// Puts page `page` of the range fault in slot `index`, which is to be mapped next. Returns
    /// whether the slot is mapped already.
    fn take_over(&mut self, page: usize, index: usize) -> Result<bool> {
        let new = self.valid.raw(page).ok_or(EINVAL)? & !MAPPING;
        if index >= self.map.len() || new & VALID == 0 || new & (ERROR | DEVICE_PRIVATE) != 0 {
            return Err(EINVAL);
        }

        // SAFETY: `pfn_list` has an entry `index` by the type invariants of `DmaMap`; it is only
        // accessed through `&self.map` and `&mut self.map`, and we have the latter.
        let entry = unsafe { &mut *self.map.map.pfn_list.add(index) };

        // The page in a slot can only change by an invalidation, which empties the slot. If that
        // did not happen, someone forgot to; do not make it worse.
        let page_bits = P2P_ALIAS | !FLAGS;
        if crate::warn_on!(*entry & DMA_MAPPED != 0 && (*entry ^ new) & page_bits != 0) {
            return Err(EIO);
        }

        *entry = new | (*entry & MAPPING);
        if let Pfn::Host(host) = self.valid.get(page) {
            if host.writable() {
                host.set_dirty();
            }
        }
        Ok(*entry & DMA_MAPPED != 0)
    }
}

/// Why [`Fill::map_range`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotMapped {
    /// The page that is not mapped.
    pub page: usize,
    /// What [`Fill::map`] would fail with.
    pub error: Error,
}

#[cfg(CONFIG_RUST_MM_HMM_KUNIT_TEST)]
#[macros::kunit_tests(rust_mm_hmm_dma)]
pub(super) mod tests {
    use super::{
        super::{
            tests::{
                count_warnings,
                map,
                unmap,
                PAGES,
                PROT_READ_WRITE, //
            },
            Access,
            PfnBuf,
            Request, //
        },
        *, //
    };
    use crate::{
        current,
        faux,
        mm::{
            notifier::{
                IntervalNotifier,
                Invalidation,
                Ops, //
            },
            MmWithUser, //
        },
        new_mutex,
        page::PAGE_SHIFT, //
    };

    /// Makes a device ready for DMA to all memory.
    pub(in crate::mm::hmm) fn enable_dma(device: &Device<Bound>) -> Result {
        let dev = device.as_raw();

        // SAFETY: The device belongs to the test, and nothing else does DMA with it.
        to_result(unsafe {
            // `hmm_dma_map_alloc()` refuses devices that are not coherent.
            (*dev).flags[0] |= 1 << bindings::struct_device_flags_DEV_FLAG_DMA_COHERENT;
            (*dev).dma_mask = &raw mut (*dev).coherent_dma_mask;
            bindings::dma_set_mask_and_coherent(dev, u64::MAX)
        })
    }

    /// What a driver does with a map of the whole range.
    struct Mirror<'bound> {
        start: usize,
        _map: PhantomData<DmaMap<'bound>>,
    }

    impl<'bound> Ops for Mirror<'bound> {
        type Protected = DmaMap<'bound>;

        fn invalidate(&self, dma: &mut DmaMap<'bound>, inv: &Invalidation<'_>) {
            let range = inv.range();

            dma.unmap(
                (range.start - self.start) >> PAGE_SHIFT..(range.end - self.start) >> PAGE_SHIFT,
            );
        }
    }

    /// Runs `test` with a mirror of `PAGES` pages of writable memory.
    fn with_mirror(
        test: impl FnOnce(&IntervalNotifier<Mirror<'_>>, &MmWithUser) -> Result,
    ) -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let registration = faux::Registration::new(c"rust_mm_hmm_dma", None)?;
        let device: &faux::Device<Bound> = registration.as_ref();
        enable_dma(device.as_ref())?;

        let mirror = Mirror {
            start: range.start,
            _map: PhantomData,
        };
        // SAFETY: It is dropped with the notifier, before `registration`.
        let dma = unsafe { DmaMap::new(device.as_ref(), PAGES)? };
        let notifier = KBox::pin_init(
            // SAFETY: It is dropped below.
            unsafe { IntervalNotifier::new(mm, range, mirror, new_mutex!(dma)) },
            GFP_KERNEL,
        )?;

        test(&notifier, mm)
    }

    /// Faults all of the mirror in, and gives `f` what was found, and the map.
    fn fault<R>(
        mirror: &IntervalNotifier<Mirror<'_>>,
        mm: &MmWithUser,
        access: Access,
        f: impl FnOnce(Valid<'_>, &mut DmaMap<'_>) -> R,
    ) -> Result<R> {
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;
        let faulted = mirror.fault(mm, mirror.range(), &Request::new(access), &mut buf)?;
        let mut guard = mirror.lock();
        let (valid, dma) = faulted.validate(&mut guard).map_err(|_| EAGAIN)?;
        let result = f(valid, &mut *dma);

        let mapped = (0..PAGES).filter(|p| dma.get(*p).is_some()).count();
        assert_eq!(dma.mapped, mapped);
        Ok(result)
    }

    #[test]
    fn filled_until_invalidated() -> Result {
        with_mirror(|mirror, mm| {
            fault(mirror, mm, Access::Write, |valid, dma| {
                let mut fill = dma.fill(valid);

                for page in 0..PAGES {
                    let mapping = fill.map(page, page)?;
                    assert_eq!(mapping.route(), Route::Host);
                    assert!(mapping.writable());
                }
                Ok::<_, Error>(())
            })??;

            {
                let dma = mirror.lock();
                let addr = |page| dma.get(page).map(|mapping| mapping.addr());

                for page in 0..PAGES {
                    assert!(addr(page).is_some());
                    assert!((0..page).all(|other| addr(other) != addr(page)));
                }
                assert!(addr(PAGES).is_none());
            }

            let range = mirror.range();
            unmap(range.start + PAGE_SIZE..range.start + 3 * PAGE_SIZE)?;

            let mut dma = mirror.lock();
            assert!(dma.get(0).is_some());
            assert!(dma.get(1).is_none());
            assert!(dma.get(2).is_none());
            assert!(dma.get(3).is_some());
            assert_eq!(dma.mapped, 2);
            // Empty slots do not count, nor do those that are not there.
            assert_eq!(dma.unmap(0..usize::MAX), 2);
            assert_eq!(dma.unmap(0..PAGES), 0);
            Ok(())
        })
    }

    /// Many addresses are told at once, and only if there are so many.
    #[test]
    fn addresses_at_once() -> Result {
        with_mirror(|mirror, mm| {
            fault(mirror, mm, Access::Write, |valid, dma| {
                let get = |dma: &DmaMap<'_>, slot| dma.get(slot).map(|m| m.addr());

                assert_eq!(dma.first_empty(0..PAGES), Some(0));
                // Also if it is mapped more than once.
                for _ in 0..PAGES {
                    dma.fill(valid).map(0, 0)?;
                    assert_eq!(dma.fill(valid).map_range(1..2, 1), Ok(()));
                }
                assert_eq!(dma.first_empty(0..PAGES), Some(2));
                assert_eq!(dma.first_empty(0..2), None);
                assert_eq!(dma.first_empty(3..PAGES), Some(3));
                assert!(dma.addrs(1..3).is_none());
                assert_eq!(
                    dma.addrs(1..2).map(|a| a.first().copied()),
                    Some(get(dma, 1))
                );

                assert_eq!(dma.fill(valid).map_range(0..PAGES, 0), Ok(()));
                assert_eq!(dma.first_empty(0..usize::MAX), None);
                let addrs = dma.addrs(0..PAGES).ok_or(EINVAL)?;
                assert!((0..PAGES).all(|p| get(dma, p) == Some(addrs[p])));
                assert!(dma.addrs(0..PAGES + 1).is_none());

                assert_eq!(dma.unmap(3..PAGES), 1);
                assert_eq!(dma.first_empty(0..usize::MAX), Some(3));
                assert!(dma.addrs(0..PAGES).is_none());
                Ok::<_, Error>(())
            })?
        })
    }

    /// A range has the same addresses as its pages, and any of them can be unmapped.
    #[test]
    fn range_is_its_pages() -> Result {
        with_mirror(|mirror, mm| {
            fault(mirror, mm, Access::Write, |valid, dma| {
                let mut addrs = [0; PAGES];

                for (page, addr) in addrs.iter_mut().enumerate() {
                    *addr = dma.fill(valid).map(page, page)?.addr();
                }
                // Once with a page that is mapped, and once more after it is not.
                assert_eq!(dma.unmap(1..PAGES), PAGES - 1);
                for _ in 0..2 {
                    assert_eq!(dma.fill(valid).map_range(0..PAGES, 0), Ok(()));
                    for (page, addr) in addrs.iter().enumerate() {
                        assert!(dma.get(page).is_some_and(|m| m.addr() == *addr));
                    }
                    assert_eq!(dma.unmap(1..2), 1);
                    assert!(dma.get(1).is_none());
                    assert_eq!(dma.unmap(0..PAGES), PAGES - 1);
                }
                Ok::<_, Error>(())
            })?
        })
    }

    /// A range ends at what can not be mapped.
    #[test]
    fn range_ends() -> Result {
        with_mirror(|mirror, mm| {
            fault(mirror, mm, Access::Write, |valid, dma| {
                let page = |page| valid.raw(page).unwrap_or(0);
                let pfns = [page(0), 0, page(2)];
                let hole = Valid {
                    pfns: &pfns,
                    results: &[0; 3],
                };
                let not = |page| {
                    Err(NotMapped {
                        page,
                        error: EINVAL,
                    })
                };

                assert_eq!(dma.fill(hole).map_range(0..3, 0), not(1));
                assert!(dma.get(0).is_some());
                assert!(dma.get(1).is_none());
                assert!(dma.get(2).is_none());
                assert_eq!(dma.fill(hole).map_range(1..3, 1), not(1));
                assert_eq!(dma.fill(hole).map_range(2..3, 2), Ok(()));
                assert_eq!(dma.fill(hole).map_range(2..3, PAGES), not(2));
                assert_eq!(dma.unmap(0..PAGES), 2);
            })
        })
    }

    /// A page that the C side refuses ends the range, too. Its slot stays empty. Mapped pages
    /// behind it stay mapped, and the others do not look as if they were mapped.
    #[test]
    fn range_ends_at_refused_page() -> Result {
        if P2P_ALIAS == 0 {
            return Ok(());
        }
        with_mirror(|mirror, mm| {
            fault(mirror, mm, Access::Write, |valid, dma| {
                let page = |page| valid.raw(page).unwrap_or(0);
                // An alias in no range that is registered. It goes to slot 1, and so on.
                let pfns = [page(1) | P2P_ALIAS, page(2), page(3)];
                let refused = Valid {
                    pfns: &pfns,
                    results: &[0; 3],
                };
                let not = |page| Err(NotMapped { page, error: EIO });
                let raw = |dma: &DmaMap<'_>, slot| {
                    // SAFETY: The map has `PAGES` slots.
                    unsafe { *dma.map.pfn_list.add(slot) }
                };

                let addr = dma.fill(valid).map(2, 2)?.addr();
                assert_eq!(dma.fill(refused).map_range(0..3, 1), not(0));
                assert!(dma.get(1).is_none());
                assert!(dma.get(2).is_some_and(|m| m.addr() == addr));
                assert!(dma.get(3).is_none());
                assert_eq!([raw(dma, 1), raw(dma, 3)], [0, 0]);

                // In front of it all is well; the page is named by its place in the fault.
                let pfns = [page(0), page(1), page(2) | P2P_ALIAS];
                let refused = Valid {
                    pfns: &pfns,
                    results: &[0; 3],
                };
                assert_eq!(dma.unmap(2..3), 1);
                assert_eq!(dma.fill(refused).map_range(1..3, 1), not(2));
                assert!(dma.get(1).is_some());
                assert!(dma.get(2).is_none());
                assert_eq!(raw(dma, 2), 0);
                assert_eq!(dma.unmap(0..PAGES), 1);

                // An empty slot has nothing of the page that was there.
                assert_eq!(raw(dma, 1), 0);
                Ok::<_, Error>(())
            })?
        })
    }

    /// Aliases are taken over at once. That is no way around what each page is asked for.
    #[test]
    fn aliases_at_once() -> Result {
        if P2P_ALIAS == 0 {
            return Ok(());
        }
        with_mirror(|mirror, mm| {
            // Counting allocates memory, which is not done under the lock.
            let (result, warnings) = count_warnings(|| {
                fault(mirror, mm, Access::Write, |valid, dma| {
                    let page = |page| valid.raw(page).unwrap_or(0);
                    let not = |page, error| Err(NotMapped { page, error });
                    let raw = |dma: &DmaMap<'_>, slot| {
                        // SAFETY: The map has `PAGES` slots.
                        unsafe { *dma.map.pfn_list.add(slot) }
                    };
                    let map = |dma: &mut DmaMap<'_>, pfns: &[usize; 2], slot| {
                        let aliases = Valid {
                            pfns,
                            results: &[0; 2],
                        };
                        dma.fill(aliases).map_range(0..2, slot)
                    };

                    // They are in no range that is registered, so nothing is mapped, or stays.
                    let aliases = [page(0) | P2P_ALIAS, page(1) | P2P_ALIAS];
                    assert_eq!(map(dma, &aliases, 0), not(0, EIO));
                    assert_eq!([raw(dma, 0), raw(dma, 1)], [0, 0]);
                    // There are not so many slots.
                    assert_eq!(map(dma, &aliases, PAGES), not(0, EINVAL));
                    // There are no such pages.
                    let nothing = [P2P_ALIAS, P2P_ALIAS];
                    assert_eq!(map(dma, &nothing, 0), not(0, EINVAL));

                    // A slot has another page.
                    let addr = dma.fill(valid).map(3, 3)?.addr();
                    assert_eq!(map(dma, &aliases, 2), not(0, EIO));
                    assert!(dma.get(3).is_some_and(|m| m.addr() == addr));
                    assert_eq!(raw(dma, 2), 0);
                    Ok::<_, Error>(())
                })
            });

            assert_eq!(warnings, usize::from(cfg!(CONFIG_BUG)));
            result?
        })
    }

    #[test]
    fn what_can_not_be_mapped() -> Result {
        with_mirror(|mirror, mm| {
            // Nobody has touched the memory.
            fault(mirror, mm, Access::Snapshot, |valid, dma| {
                assert_eq!(dma.fill(valid).map(0, 0).err(), Some(EINVAL));
                assert!(dma.get(0).is_none());
            })?;

            fault(mirror, mm, Access::Read, |valid, dma| {
                let mut fill = dma.fill(valid);

                assert_eq!(fill.map(PAGES, 0).err(), Some(EINVAL));
                assert_eq!(fill.map(0, PAGES).err(), Some(EINVAL));

                // The driver's own memory is no host memory.
                let private = Valid {
                    pfns: &[valid.raw(0).unwrap_or(0) | DEVICE_PRIVATE],
                    results: &[0],
                };
                if DEVICE_PRIVATE != 0 {
                    assert_eq!(dma.fill(private).map(0, 0).err(), Some(EINVAL));
                }
                assert!(dma.get(0).is_none());
            })
        })
    }

    /// A page that is mapped already gets the permission of the last fault.
    #[test]
    fn permission_follows() -> Result {
        with_mirror(|mirror, mm| {
            let read = fault(mirror, mm, Access::Write, |valid, dma| {
                let pfns = [valid.raw(0).unwrap_or(0) & !WRITE];
                let read_only = Valid {
                    pfns: &pfns,
                    results: &[0],
                };
                let mapping = dma
                    .fill(read_only)
                    .map(0, 0)
                    .map(|m| (m.addr(), m.writable()));

                Ok::<_, Error>((mapping?, dma.fill(valid).map(0, 0)?.addr()))
            })??;
            let ((addr, writable), again) = read;

            assert!(!writable);
            assert_eq!(addr, again);
            assert!(mirror.lock().get(0).is_some_and(|m| m.writable()));
            Ok(())
        })
    }

    /// A slot has one page until it is emptied. To give it another one is a bug of the driver.
    #[test]
    fn slot_is_taken() -> Result {
        with_mirror(|mirror, mm| {
            // Counting allocates memory, which is not done under the lock.
            let (result, warnings) = count_warnings(|| {
                fault(mirror, mm, Access::Write, |valid, dma| {
                    let first = dma.fill(valid).map(0, 0)?.addr();

                    assert_eq!(dma.fill(valid).map(1, 0).err(), Some(EIO));
                    assert_eq!(dma.get(0).map(|m| m.addr()), Some(first));
                    Ok::<_, Error>(())
                })
            });

            assert_eq!(warnings, usize::from(cfg!(CONFIG_BUG)));
            result?
        })
    }
}
