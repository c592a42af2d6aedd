// SPDX-License-Identifier: GPL-2.0

//! Device private memory.
//!
//! Memory of a device that the CPU can not reach, such as the video memory of a GPU, can hold pages
//! of a process all the same. Such a page has a `struct page` with a physical address that nothing
//! decodes, and the page tables of the process have a special entry for it, which makes a CPU
//! access fault. The device accesses the page where it is; when the CPU touches it, the driver has
//! to bring it home.
//!
//! - [`PageMap`] is a piece of such memory, the C side's `struct dev_pagemap` of type
//!   `MEMORY_DEVICE_PRIVATE`. Start here.
//! - [`Ops`] is what the driver knows how to do with it: copy a page home, and, optionally, tell
//!   where peers can reach a page by DMA.
//! - [`DeviceFolio`] is a free piece of the memory that was just taken and holds no page of a
//!   process yet. It is neither a [`Page`] nor a kernel address: nothing can be read from it by the
//!   CPU.
//! - [`mm::migrate`] moves pages of a process into a [`DeviceFolio`] and back.
//!
//! Pages are named by their index in the pagemap throughout, so that no driver has to do arithmetic
//! on the made-up physical addresses.
//!
//! # Folios
//!
//! A folio is a single page or, where the architecture can have it, as many as a huge page has
//! ([`PMD_ORDER`]). The core may split a large one at any time. This needs no call to the driver
//! here because a pagemap keeps no data per folio; the driver sees it when the parts are freed one
//! by one, see [`Ops::folio_free`].
//!
//! # Teardown
//!
//! When a [`PageMap`] is dropped, all its pages are moved home first. This invalidates every
//! mapping that another device has of them, as any migration does. So what such mappings lead to,
//! for instance an `AliasRange` of a BAR, has to be dropped after the pagemap; [`Ops`]
//! implementations are dropped after it and are a good place to keep it.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)
//!
//! [`mm::migrate`]: kernel::mm::migrate
//! [`Page`]: kernel::page::Page

use crate::{
    bindings,
    container_of,
    device::{
        Bound,
        Device, //
    },
    error::from_err_ptr,
    io::PhysAddr,
    mm::migrate::{
        self,
        Fault,
        HostFolio, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        new_mutex,
        new_spinlock,
        Mutex,
        SpinLock, //
    },
    types::Opaque, //
};
use core::{
    marker::PhantomData,
    ops::{
        Deref,
        Range, //
    },
    ptr::NonNull, //
};

#[cfg(CONFIG_PCI)]
use crate::pci::p2pdma::Provider;

mod in_use;

use in_use::InUse;

/// The order of a large folio: it has `1 << PMD_ORDER` pages.
pub const PMD_ORDER: u32 = bindings::PMD_ORDER;

/// The number of pages in a large folio.
pub const PMD_PAGES: usize = 1 << PMD_ORDER;

/// What a driver does with the pages of its [`PageMap`].
///
/// An implementation is also the driver's data for the pagemap. It lives as long as that.
#[vtable]
pub trait Ops: Send + Sync + Sized {
    /// Copies the content of device pages to host memory.
    ///
    /// The pages are those from `first` on, as many as `dst` has. No CPU can access them meanwhile,
    /// but the device and its peers still could: a driver that lets them has to end that with its
    /// MMU notifier, whose invalidation precedes this call.
    ///
    /// May sleep, but must not [evict](PageMap::evict) pages. If this fails, the pages stay where
    /// they are, except while the pagemap is being dropped: then a large folio is tried again page
    /// by page, and the content of a single page is lost and reads as zero. So does what this does
    /// not fill.
    fn copy_to_host(&self, first: usize, dst: &mut HostFolio) -> Result;

    /// Called when a folio, or a part that a folio was split into, is no longer used.
    ///
    /// The pages are those from `first` on, `1 << order` of them. They are not handed out again
    /// before this returns, so this is the place to scrub them.
    ///
    /// May be called with spinlocks held: must not sleep. It can be called from within all other
    /// methods and functions that move pages.
    fn folio_free(&self, first: usize, order: u32);

    /// Called when the CPU touched a page. The driver must bring it home.
    ///
    /// See [`Fault`] for how. After an error the process gets a signal: it is killed after
    /// [`ENOMEM`] if nothing else helps, and gets `SIGBUS` after any other error.
    fn migrate_to_ram(map: &PageMap<'_, Self>, fault: Fault<'_>) -> Result;

    /// Returns the alias of a page: where in a BAR peers can reach it, and how far around the page
    /// this is the same arithmetic.
    ///
    /// [`None`] means that there is no alias. Peers then get the page migrated to host memory.
    ///
    /// This is called by [`hmm_range_fault()`] for a page in use, without a lock or a reference
    /// that belongs to it, under the RCU read lock. So it must not sleep or take locks but compute
    /// the answer from the index and, at most, an atomic variable.
    ///
    /// The answer must not change while the page is in use, that is, between the
    /// [`PageMap::alloc_in`] and the [`folio_free`](Self::folio_free) that include it. Aliases must
    /// be contiguous within a folio, and lie in a range that was registered as
    /// `kernel::pci::p2pdma::AliasRange`; others are refused.
    ///
    /// [`hmm_range_fault()`]: srctree/mm/hmm.c
    fn device_private_dma_phys(&self, index: usize) -> Option<Alias<'_>> {
        let _ = index;
        build_error!(crate::error::VTABLE_DEFAULT_ERROR)
    }
}

/// Where peers can reach a page.
///
/// # Invariants
///
/// `phys` is in a BAR of a device that stays bound to its driver during `'a`.
pub struct Alias<'a> {
    phys: PhysAddr,
    pages: Range<usize>,
    _dev: PhantomData<&'a Device<Bound>>,
}

#[cfg(CONFIG_PCI)]
impl<'a> Alias<'a> {
    /// Creates the alias of a page that is at byte `offset` of a BAR, if the BAR is that large.
    ///
    /// `pages` are the pages around it whose aliases are in a row with this one, and hold as long
    /// as this one does, whether they are in use or not. A page that is not in this range is asked
    /// for again, so that an empty range is right, too, just slow.
    ///
    /// # Examples
    ///
    /// Memory that is in a BAR as a whole, each page at a place of its own:
    ///
    /// ```
    /// use kernel::{
    ///     mm::pagemap::Alias,
    ///     page::PAGE_SIZE,
    ///     pci::p2pdma::Provider, //
    /// };
    ///
    /// struct Vram<'bound> {
    ///     bar: Provider<'bound>,
    ///     nr_pages: usize,
    /// }
    ///
    /// impl Vram<'_> {
    ///     fn alias(&self, index: usize) -> Option<Alias<'_>> {
    ///         // All pages have aliases in one row.
    ///         Alias::new(&self.bar, (index * PAGE_SIZE) as u64, 0..self.nr_pages)
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn new(bar: &Provider<'a>, offset: u64, pages: Range<usize>) -> Option<Self> {
        // INVARIANT: By the type invariants of `Provider`, whose device is bound during `'a`.
        Some(Self {
            phys: bar.address(offset)?,
            pages,
            _dev: PhantomData,
        })
    }
}

/// A range of physical addresses that nothing decodes.
///
/// # Invariants
///
/// `res` was returned by `request_free_mem_region()` and not released yet.
struct FreeMemRegion {
    res: NonNull<bindings::resource>,
}

impl FreeMemRegion {
    // Not generic and never inlined, so that modules need not link with the C function.
    #[inline(never)]
    fn request(size: usize, name: &'static CStr) -> Result<Self> {
        // SAFETY: `iomem_resource` is the root of all memory resources. `name` lives forever, the
        // resource keeps a pointer to it.
        let res = from_err_ptr(unsafe {
            bindings::request_free_mem_region(
                &raw mut bindings::iomem_resource,
                size,
                name.as_char_ptr(),
            )
        })?;

        // INVARIANT: The region was requested just now.
        Ok(Self {
            res: NonNull::new(res).ok_or(ENOMEM)?,
        })
    }

    /// Returns the first address and the last one.
    fn bounds(&self) -> (u64, u64) {
        let res = self.res.as_ptr();

        // SAFETY: `res` is valid by the type invariants. The bounds of a region do not change; its
        // other members do, so there is no reference to all of it.
        unsafe { ((*res).start, (*res).end) }
    }
}

impl Drop for FreeMemRegion {
    #[inline(never)]
    fn drop(&mut self) {
        let (start, end) = self.bounds();

        // SAFETY: By the type invariants this region was requested and is released only here.
        unsafe { bindings::release_mem_region(start, end - start + 1) };
    }
}

// SAFETY: A region may be released from any thread.
unsafe impl Send for FreeMemRegion {}

// SAFETY: A shared reference only allows to read the bounds, which do not change.
unsafe impl Sync for FreeMemRegion {}

/// Device private memory.
///
/// # Invariants
///
/// - `pgmap` is initialised and pinned, so that `container_of!` leads from it to `Self`.
/// - While the pagemap exists, `memremap_pages()` has created `nr_pages` pages of device private
///   memory from the page frame `first_pfn` on, whose pagemap is `pgmap`.
/// - A page is in use, which is to say that it was initialised by `zone_device_folio_init()` and
///   not freed since, only if its bit in `in_use` is set.
///
/// # Examples
///
/// ```
/// use kernel::{
///     device::{
///         Bound,
///         Device, //
///     },
///     mm::{
///         migrate::{
///             Fault,
///             HostFolio, //
///         },
///         pagemap::{
///             self,
///             PageMap, //
///         },
///     },
///     prelude::*,
///     sizes::SZ_64M, //
/// };
///
/// struct Vram;
///
/// #[vtable]
/// impl pagemap::Ops for Vram {
///     fn copy_to_host(&self, first: usize, dst: &mut HostFolio) -> Result {
///         for i in 0..dst.nr_pages() {
///             dst.with_page(i, |bytes| {
///                 // Read page `first + i` of the device into `bytes`.
/// #               let _ = first;
/// #               bytes.fill(0);
///             });
///         }
///         Ok(())
///     }
///
///     fn folio_free(&self, _first: usize, _order: u32) {}
///
///     fn migrate_to_ram(map: &PageMap<'_, Self>, fault: Fault<'_>) -> Result {
///         fault.setup(map)?.copy()?.pages();
///         Ok(())
///     }
/// }
///
/// fn create<'bound>(dev: &'bound Device<Bound>) -> Result<Pin<KBox<PageMap<'bound, Vram>>>> {
///     let vram = Ok::<_, Error>(Vram);
///
///     // SAFETY: It becomes part of the data of a driver, which is dropped before `'bound` ends.
///     KBox::pin_init(unsafe { PageMap::new(dev, c"example", SZ_64M, vram) }, GFP_KERNEL)
/// }
/// ```
#[pin_data(PinnedDrop)]
pub struct PageMap<'bound, T: Ops> {
    #[pin]
    pgmap: Opaque<bindings::dev_pagemap>,
    #[pin]
    pub(super) in_use: SpinLock<InUse>,
    /// Arrays for [`PageMap::evict`], which must not fail for want of memory when this is dropped.
    #[pin]
    pub(super) evict_arrays: Mutex<migrate::Arrays>,
    first_pfn: usize,
    nr_pages: usize,
    /// Declared after `pgmap`: the addresses are released when there are no pages left.
    _region: FreeMemRegion,
    /// Declared last: callbacks use it until there are no pages left.
    #[pin]
    data: T,
    _dev: PhantomData<&'bound Device<Bound>>,
}

// SAFETY: A pagemap can be used and destroyed by any thread, and `T: Send`.
unsafe impl<T: Ops> Send for PageMap<'_, T> {}

// SAFETY: What a shared reference allows is protected by locks, by the C side, or does not change,
// and `T: Sync`.
unsafe impl<T: Ops> Sync for PageMap<'_, T> {}

// These are neither generic nor inlined: each lock is of one class, in whatever module the pagemap
// is, and lockdep wants its name to be one object, too.

#[inline(never)]
fn new_in_use(in_use: InUse) -> impl PinInit<SpinLock<InUse>> {
    new_spinlock!(in_use, "PageMap::in_use")
}

#[inline(never)]
fn new_evict_arrays(arrays: migrate::Arrays) -> impl PinInit<Mutex<migrate::Arrays>> {
    new_mutex!(arrays, "PageMap::evict_arrays")
}

impl<'bound, T: Ops> PageMap<'bound, T> {
    /// Creates device private memory of `size` bytes, a multiple of the size of a huge page.
    ///
    /// `name` appears in `/proc/iomem`.
    ///
    /// # Safety
    ///
    /// The initialised pagemap must not be leaked, as by [`core::mem::forget`], but dropped before
    /// `'bound` ends: `data` may borrow from devices, and is used as long as the pagemap is there.
    pub unsafe fn new<E>(
        dev: &'bound Device<Bound>,
        name: &'static CStr,
        size: usize,
        data: impl PinInit<T, E>,
    ) -> impl PinInit<Self, Error>
    where
        Error: From<E>,
    {
        // SAFETY: `dev` is a valid device.
        let nid = unsafe { bindings::dev_to_node(dev.as_raw()) };

        try_pin_init!(&this in Self {
            _region: {
                if size == 0 || size % (PMD_PAGES * PAGE_SIZE) != 0 {
                    return Err(EINVAL);
                }
                FreeMemRegion::request(size, name)?
            },
            nr_pages: size >> PAGE_SHIFT,
            first_pfn: (_region.bounds().0 >> PAGE_SHIFT) as usize,
            in_use <- new_in_use(InUse::new(size >> PAGE_SHIFT)?),
            evict_arrays <- new_evict_arrays(migrate::Arrays::new(PMD_PAGES)?),
            data <- data,
            // Last, because from here on it has to be undone by `memunmap_pages()`.
            pgmap <- Opaque::try_ffi_init(|ptr: *mut bindings::dev_pagemap| {
                let (start, end) = _region.bounds();

                // SAFETY: `ptr` is valid for writes, and all-zeroes is a valid `dev_pagemap`.
                unsafe { ptr.write_bytes(0, 1) };

                // SAFETY: `ptr` is valid, and nobody else has it yet.
                unsafe {
                    (*ptr).type_ = bindings::memory_type_MEMORY_DEVICE_PRIVATE;
                    (*ptr).ops = Self::OPS;
                    (*ptr).owner = this.as_ptr().cast();
                    (*ptr).nr_range = 1;
                    *(*ptr).__bindgen_anon_1.range.as_mut() = bindings::range { start, end };
                }

                // SAFETY: `ptr` points to a `dev_pagemap` with all that device private memory
                // needs. It stays in place because it is pinned, until `memunmap_pages()`.
                from_err_ptr(unsafe { bindings::memremap_pages(ptr, nid) }).map(drop)
            }),
            _dev: PhantomData,
        })
    }

    const OPS: &'static bindings::dev_pagemap_ops = &bindings::dev_pagemap_ops {
        folio_free: Some(Self::folio_free_callback),
        migrate_to_ram: Some(Self::migrate_to_ram_callback),
        memory_failure: None,
        // The default of the core is right for folios without data of their own.
        folio_split: None,
        device_private_dma_phys: if T::HAS_DEVICE_PRIVATE_DMA_PHYS {
            Some(Self::dma_phys_callback)
        } else {
            None
        },
    };

    /// Returns the pagemap that `page` belongs to.
    ///
    /// # Safety
    ///
    /// `page` must be a page of a `PageMap<'_, T>` that exists for all of `'a`. It must be in use,
    /// or the caller must know otherwise that its folio does not go away.
    unsafe fn from_page<'a>(page: *mut bindings::page) -> &'a Self {
        // SAFETY: `page` is a valid page of device memory by the safety requirements, whose pagemap
        // is the field of a `PageMap<'_, T>`, which is valid for `'a`.
        unsafe { Self::from_raw(bindings::page_pgmap(page)) }
    }

    /// # Safety
    ///
    /// `pgmap` must be the field of a `PageMap<'_, T>` that exists for all of `'a`.
    unsafe fn from_raw<'a>(pgmap: *mut bindings::dev_pagemap) -> &'a Self {
        // SAFETY: By the safety requirements.
        unsafe { &*container_of!(Opaque::cast_from(pgmap), Self, pgmap) }
    }

    /// # Safety
    ///
    /// Called by the C side only: `folio` must be a folio of a `PageMap<'_, T>` that was just
    /// freed.
    unsafe extern "C" fn folio_free_callback(folio: *mut bindings::folio) {
        // SAFETY: `folio` is valid by the safety requirements.
        let (page, order) =
            unsafe { (bindings::folio_page(folio, 0), bindings::folio_order(folio)) };

        // SAFETY: Nobody but this function can hand out the folio again. The pagemap exists: it is
        // not destroyed before `memunmap_pages()` has seen the end of this callback.
        let map = unsafe { Self::from_page(page) };

        // SAFETY: `page` is valid.
        let first = unsafe { bindings::page_to_pfn(page) } - map.first_pfn;

        map.data.folio_free(first, order);

        // From here on, the pages can be taken again. The C side looks at none of them after this
        // callback.
        map.in_use.lock().give_back(first, 1 << order);
    }

    /// # Safety
    ///
    /// Called by the C side only: `vmf` must be for a page of a `PageMap<'_, T>`, with what
    /// `migrate_to_ram()` is promised in `struct dev_pagemap_ops`.
    unsafe extern "C" fn migrate_to_ram_callback(
        vmf: *mut bindings::vm_fault,
    ) -> bindings::vm_fault_t {
        // SAFETY: The fault handler holds a reference to the page, so that the page stays in use.
        // This keeps the pagemap from being destroyed, too.
        let map = unsafe { Self::from_page((*vmf).page) };

        // SAFETY: The requirements are the same.
        let fault = unsafe { Fault::from_raw(vmf) };

        match T::migrate_to_ram(map, fault) {
            Ok(()) => 0,
            Err(e) if e == ENOMEM => bindings::vm_fault_reason_VM_FAULT_OOM,
            Err(_) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }

    /// # Safety
    ///
    /// Called by the C side only: `pgmap` must be the field of a `PageMap<'_, T>`, and the caller
    /// must be in an RCU read side critical section in which it found a device private entry for
    /// the page `pfn` of it. `row` must be valid for writes.
    unsafe extern "C" fn dma_phys_callback(
        pgmap: *mut bindings::dev_pagemap,
        pfn: c_ulong,
        row: *mut bindings::range,
    ) -> bindings::phys_addr_t {
        // SAFETY: The page was in use when the caller found the entry. `memunmap_pages()` waits for
        // a grace period when all pages are gone, so the pagemap outlives the read side section.
        let map = unsafe { Self::from_raw(pgmap) };

        // The alias is valid as long as the page is in use: the device that has the BAR is bound as
        // long as `map.data` may be borrowed, and `map.data` is dropped when no page is in use any
        // more. Nobody has changed or replaced `map.data` by then, because only shared references
        // are given out.
        let Some(alias) = map
            .index(pfn)
            .and_then(|index| map.data.device_private_dma_phys(index))
        else {
            // This is `DEVICE_PRIVATE_NO_ALIAS`.
            return PhysAddr::MAX;
        };

        let end = alias.pages.end.min(map.nr_pages);
        if alias.pages.start < end {
            // SAFETY: `row` is valid by the safety requirements.
            unsafe {
                (*row).start = map.pfn(alias.pages.start) as u64;
                (*row).end = map.pfn(end - 1) as u64;
            }
        }
        alias.phys
    }

    pub(super) fn page(&self, index: usize) -> *mut bindings::page {
        // SAFETY: Only arithmetic.
        unsafe { bindings::pfn_to_page(self.first_pfn + index) }
    }

    pub(super) fn pfn(&self, index: usize) -> usize {
        self.first_pfn + index
    }

    /// Returns the index of the page with the page frame number `pfn`, if it is one of this
    /// pagemap.
    #[inline]
    pub fn index(&self, pfn: usize) -> Option<usize> {
        pfn.checked_sub(self.first_pfn)
            .filter(|index| *index < self.nr_pages)
    }

    /// Returns what names this pagemap as the owner of its pages, for `hmm_range_fault()` and
    /// migrations.
    ///
    /// It is never dereferenced.
    #[inline]
    pub(super) fn owner(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the number of pages.
    #[inline]
    pub fn nr_pages(&self) -> usize {
        self.nr_pages
    }

    /// Returns how many pages are in use.
    pub fn nr_in_use(&self) -> usize {
        self.in_use.lock().count()
    }

    /// Takes the first free folio in a range of pages.
    ///
    /// `order` is 0 or [`PMD_ORDER`]. Returns [`None`] if there is no such folio, or no such order.
    /// May sleep.
    pub fn alloc_in(&self, range: Range<usize>, order: u32) -> Option<DeviceFolio<'_, T>> {
        if order != 0 && order != PMD_ORDER {
            return None;
        }

        let range = range.start..range.end.min(self.nr_pages);
        if range.is_empty() {
            return None;
        }

        let first = self.in_use.lock().take(range, 1 << order)?;

        // SAFETY:
        // - The pages belong to this pagemap, and are not in use: their bits were not set before we
        //   set them just now.
        // - The folio is aligned, because `first_pfn` is, and of an order that can be.
        // - The pagemap is alive: no reference to it exists any more when it is destroyed.
        unsafe {
            bindings::zone_device_folio_init(self.page(first).cast(), self.pgmap.get(), order)
        };

        // INVARIANT: The folio was initialised just now, which locks it and makes us the owner of
        // its only reference.
        Some(DeviceFolio {
            map: self,
            first,
            order,
        })
    }
}

impl<T: Ops> Deref for PageMap<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

#[pinned_drop]
impl<T: Ops> PinnedDrop for PageMap<'_, T> {
    fn drop(self: Pin<&mut Self>) {
        // Nobody can take new pages: that needs a reference to the pagemap. Callbacks for pages in
        // use still come until there are none left.
        self.evict_all(|left| pr_warn!("device private memory: waiting for {} pages\n", left));

        // SAFETY: By the type invariants `memremap_pages()` succeeded. This waits until all pages
        // are free, which they are, or are just about to be.
        unsafe { bindings::memunmap_pages(self.pgmap.get()) };
    }
}

/// A folio of device private memory that holds no page of a process.
///
/// Fill it by means of the device and give it to a [migration](kernel::mm::migrate). If it is
/// dropped instead, it becomes free again.
///
/// # Invariants
///
/// The pages of `map` from `first` on, `1 << order` of them, are a folio, which is locked. This
/// object owns the lock and the only reference.
pub struct DeviceFolio<'a, T: Ops> {
    map: &'a PageMap<'a, T>,
    first: usize,
    order: u32,
}

impl<'a, T: Ops> DeviceFolio<'a, T> {
    /// Returns the index of the first page.
    #[inline]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns the order: the folio has `1 << order` pages.
    #[inline]
    pub fn order(&self) -> u32 {
        self.order
    }

    /// Returns the indices of all pages.
    #[inline]
    pub fn pages(&self) -> Range<usize> {
        self.first..self.first + (1 << self.order)
    }

    /// Returns the pagemap that it belongs to.
    #[inline]
    pub fn map(&self) -> &'a PageMap<'a, T> {
        self.map
    }

    /// Gives up the ownership and returns the page frame number of the first page.
    ///
    /// The lock and the reference have to be released by other means.
    pub(super) fn into_pfn(self) -> usize {
        let pfn = self.map.pfn(self.first);
        core::mem::forget(self);
        pfn
    }
}

impl<T: Ops> Drop for DeviceFolio<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants we own the lock and a reference.
        unsafe { migrate::unlock_and_put(self.map.page(self.first).cast()) };
    }
}

#[cfg(CONFIG_RUST_PAGEMAP_KUNIT_TEST)]
mod teardown;
