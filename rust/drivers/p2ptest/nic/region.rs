// SPDX-License-Identifier: GPL-2.0

//! Memory regions: what the NIC knows about the addresses of a process.

use core::{
    marker::PhantomData,
    ops::Range, //
};

use kernel::{
    device::{
        Bound,
        Device, //
    },
    mm::{
        hmm::{
            dma::{
                DmaMap,
                Mapping,
                Route, //
            },
            P2pResult,
            Pfn,
            Valid, //
        },
        notifier::{
            IntervalNotifier,
            Invalidation,
            Ops, //
        },
        MmWithUser, //
    },
    new_mutex,
    page::{
        page_align,
        PAGE_MASK,
        PAGE_SHIFT, //
    },
    prelude::*,
    sync::Arc,
    uapi, //
};

/// The longest region, as the page table is allocated with it.
const MAX_LEN: usize = 1 << 30;

/// What a process permits the NIC to do with a region.
#[derive(Clone, Copy)]
pub(crate) struct Permissions {
    /// Write to it.
    pub(crate) write: bool,
    /// Ask for peer addresses.
    pub(crate) p2p: bool,
}

/// The page table of the NIC for a region.
///
/// A page is in `dma` from the moment it was faulted in until it is invalidated. As the lock around
/// this is the user lock, what is there is valid.
pub(crate) struct PageTable<'bound> {
    dma: DmaMap<'bound>,
    /// A [`P2pResult`] per page: the last one of the page that was not `None`.
    reasons: KVVec<u8>,
}

/// Why a page could not be mapped for the NIC.
pub(crate) enum MapError {
    /// The NIC cannot use the peer's memory, but it may be able to use host memory.
    Alias,
    /// The NIC cannot use host memory.
    Host(Error),
}

impl PageTable<'_> {
    /// Returns where the NIC finds page `index`, if it can use it.
    pub(crate) fn get(&self, index: usize, write: bool) -> Option<Mapping<'_>> {
        self.dma
            .get(index)
            .filter(|mapping| mapping.writable() || !write)
    }

    /// Takes over what a fault found, starting with page `first`.
    ///
    /// Fails if that page cannot be mapped. Others that cannot are left out; the NIC gets to them
    /// when it needs them.
    pub(crate) fn fill(&mut self, first: usize, valid: Valid<'_>) -> Result<(), MapError> {
        for page in 0..valid.len() {
            let result = valid.p2p_result(page);
            if result != P2pResult::None {
                self.reasons[first + page] = result as u8;
            }
        }

        let mut fill = self.dma.fill(valid);
        let mut page = 0;

        while let Err(not) = fill.map_range(page..valid.len(), first + page) {
            if not.page == 0 {
                return Err(match valid.get(0) {
                    Pfn::Alias(_) => MapError::Alias,
                    _ => MapError::Host(not.error),
                });
            }
            page = not.page + 1;
        }

        Ok(())
    }

    /// Describes page `index` for user space.
    pub(crate) fn describe(&self, index: usize) -> uapi::p2ptest_nic_page {
        let mapping = self.dma.get(index);

        uapi::p2ptest_nic_page {
            kind: match mapping.map(|mapping| mapping.route()) {
                None => uapi::P2PTEST_PAGE_UNMAPPED,
                Some(Route::Host) => uapi::P2PTEST_PAGE_HOST,
                Some(Route::BusAddr) => uapi::P2PTEST_PAGE_BUS_ADDR,
                Some(Route::HostBridge) => uapi::P2PTEST_PAGE_HOST_BRIDGE,
            } as u8,
            reason: self.reasons[index],
            writable: mapping.is_some_and(|mapping| mapping.writable()).into(),
            pad: 0,
        }
    }
}

/// A range of addresses of a process that the NIC may use.
pub(crate) struct Region<'bound> {
    /// The addresses that were registered; the notifier has them rounded to pages.
    addrs: Range<usize>,
    permissions: Permissions,
    _table: PhantomData<PageTable<'bound>>,
}

impl<'bound> Region<'bound> {
    /// Registers `len` bytes at `addr` in `mm`.
    pub(crate) fn register(
        dev: &'bound Device<Bound>,
        mm: &MmWithUser,
        addr: usize,
        len: usize,
        permissions: Permissions,
    ) -> Result<Arc<IntervalNotifier<Self>>> {
        let end = addr.checked_add(len).ok_or(EINVAL)?;
        let pages = (addr & PAGE_MASK)..page_align(end).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        if len > MAX_LEN {
            return Err(E2BIG);
        }
        let nr = (pages.end - pages.start) >> PAGE_SHIFT;

        let table = PageTable {
            // SAFETY: It becomes part of the region, which ends before `'bound` does, see below.
            dma: unsafe { DmaMap::new(dev, nr)? },
            reasons: KVVec::from_elem(P2pResult::None as u8, nr, GFP_KERNEL)?,
        };
        let region = Self {
            addrs: addr..end,
            permissions,
            _table: PhantomData,
        };
        let lock = new_mutex!(table, "p2ptest_nic::region");

        // SAFETY: References to a region are in `Nic::regions`, and with those who are behind the
        // gate of that `Nic`. Both end before `'bound` does. Neither leaks one.
        Arc::pin_init(
            unsafe { IntervalNotifier::new(mm, pages, region, lock) },
            GFP_KERNEL,
        )
    }

    /// Returns the addresses that were registered.
    pub(crate) fn addrs(&self) -> &Range<usize> {
        &self.addrs
    }

    /// Returns what the process permitted.
    pub(crate) fn permissions(&self) -> Permissions {
        self.permissions
    }

    /// Returns the index in the page table for an address of the region.
    pub(crate) fn index(&self, addr: usize) -> usize {
        (addr - (self.addrs.start & PAGE_MASK)) >> PAGE_SHIFT
    }
}

impl<'bound> Ops for Region<'bound> {
    type Protected = PageTable<'bound>;

    fn invalidate(&self, table: &mut PageTable<'bound>, inv: &Invalidation<'_>) {
        // The device uses addresses only while the lock is held. As we have it, the DMA to this
        // region that was in flight is complete.
        let range = inv.range();
        let first = self.index(range.start);
        let last = self.index(range.end - 1);
        table.dma.unmap(first..last + 1);
    }
}
