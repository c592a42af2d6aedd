// SPDX-License-Identifier: GPL-2.0

//! Heterogeneous memory management (HMM): looking up the memory behind user addresses.
//!
//! A device that shares the address space of a process needs to know which memory is behind an
//! address, with no pin on it: the page may move at any time, and the device follows. HMM walks the
//! page tables of the process, faults pages in where they are missing, and reports what it found as
//! page frame numbers (PFNs), one per page.
//!
//! The result may be outdated by the time it is returned. So there are three steps, and the types
//! do not let one be skipped:
//!
//! 1. [`IntervalNotifier::fault`] fills a [`PfnBuf`] as a [`Request`] says, and returns a
//!    [`Faulted`], which tells nothing yet.
//! 2. The driver takes its user lock by [`IntervalNotifier::lock`].
//! 3. [`Faulted::validate`] asks whether anything was invalidated since, and gives a [`Valid`] if
//!    not, or a [`Retry`]. A [`Valid`] reads the PFNs and lives as long as the lock is held.
//!
//! A PFN is one of three kinds that must not be confused, see [`Pfn`]. Host memory is ordinary.
//! Device private memory is not addressable; only its owner can tell what a PFN of it means, and
//! only the owner gets to see it. An alias is memory of another device, a *peer*, that can be
//! reached by DMA through a window in the peer's PCI BAR. It is reported if the caller names the
//! device that will do the DMA, see [`Request::try_p2p`], and if that device can reach it. In all
//! other cases the page is migrated to host memory. With [`Access::Snapshot`] it stays where it is,
//! and is [`Pfn::None`].
//!
//! Start at [`IntervalNotifier::fault`], and see [`dma`] for turning the result into addresses that
//! a device can use. [`DmaMap`](dma::DmaMap) has an example of all steps. The driver of a device
//! that has no page faults starts at [`registration`].
//!
//! C headers: [`include/linux/hmm.h`](srctree/include/linux/hmm.h),
//! [`include/linux/hmm-dma.h`](srctree/include/linux/hmm-dma.h)
//!
//! Reference: <https://docs.kernel.org/mm/hmm.html>

use crate::{
    alloc::Flags,
    bindings,
    device::{
        Bound,
        Device, //
    },
    error::to_result,
    ffi::{
        c_int,
        c_long, //
    },
    io::PhysAddr,
    mm::{
        notifier::{
            IntervalNotifier,
            Ops, //
        },
        MmWithUser, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::MutexGuard,
    time::msecs_to_jiffies,
};
use core::{
    marker::PhantomData,
    ops::Range,
    ptr, //
};

#[cfg(all(CONFIG_DEVICE_PRIVATE, not(CONFIG_PPC_BOOK3S_64)))]
use crate::mm::pagemap::{
    self,
    PageMap, //
};

pub mod dma;
pub mod registration;

/// Returns a flag of `enum hmm_pfn_flags` as it is in a PFN.
#[allow(clippy::unnecessary_cast)]
const fn flag(raw: bindings::hmm_pfn_flags) -> usize {
    // CAST: A PFN is an unsigned long, and so are its flags, but on 32-bit the type of the enum is
    // an unsigned int, which is as large.
    raw as usize
}

const VALID: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_VALID);
const WRITE: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_WRITE);
const ERROR: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_ERROR);
const P2P_ALIAS: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_P2P_ALIAS);
const DEVICE_PRIVATE: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_DEVICE_PRIVATE);
const FLAGS: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_FLAGS);

const REQ_FAULT: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT);
const REQ_WRITE: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_REQ_WRITE);
const REQ_TRY_P2P: usize = flag(bindings::hmm_pfn_flags_HMM_PFN_REQ_TRY_P2P);

/// What the pages of a range have to allow after [`IntervalNotifier::fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing: report the pages as they are, and fault none in.
    Snapshot,
    /// Every page is readable, or the fault fails.
    Read,
    /// Every page is readable and writable, or the fault fails.
    Write,
}

/// What an [`IntervalNotifier::fault`] is to find, for whom.
///
/// # Examples
///
/// ```
/// use kernel::{
///     device::{
///         Bound,
///         Device, //
///     },
///     mm::hmm::{
///         Access,
///         Request, //
///     }, //
/// };
///
/// // What a NIC asks for that wants to write to memory, wherever it is.
/// fn nic_write(nic: &Device<Bound>) -> Request<'_> {
///     Request::new(Access::Write).try_p2p(nic)
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Request<'a> {
    access: Access,
    peer: Option<&'a Device<Bound>>,
    owner: *mut c_void,
}

impl<'a> Request<'a> {
    /// Creates a request for host memory.
    pub const fn new(access: Access) -> Self {
        Self {
            access,
            peer: None,
            owner: ptr::null_mut(),
        }
    }

    /// Permits aliases that `dev` can reach, where a page is device private memory of someone else.
    ///
    /// It is a permission, not a demand. A page that `dev` cannot reach is migrated to host memory,
    /// or is [`Pfn::None`] with [`Access::Snapshot`]. [`Valid::p2p_result`] tells why.
    pub const fn try_p2p(mut self, dev: &'a Device<Bound>) -> Self {
        self.peer = Some(dev);
        self
    }

    /// Permits device private memory of `map`.
    #[cfg(all(CONFIG_DEVICE_PRIVATE, not(CONFIG_PPC_BOOK3S_64)))]
    pub fn device_private_of<T: pagemap::Ops>(mut self, map: &'a PageMap<'_, T>) -> Self {
        self.owner = map.owner();
        self
    }

    /// Returns the request flag that pages have which a peer may reach where they are.
    fn p2p_flag(&self) -> usize {
        if self.peer.is_some() {
            REQ_TRY_P2P
        } else {
            0
        }
    }

    /// Returns the request flags that all pages have in common, whether a peer may reach them or
    /// not.
    fn all_flags(&self) -> usize {
        match self.access {
            Access::Snapshot => 0,
            Access::Read => REQ_FAULT,
            Access::Write => REQ_FAULT | REQ_WRITE,
        }
    }
}

/// How a page fared that [`Request::try_p2p`] was asked for.
///
/// Corresponds to the C `enum hmm_p2p_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum P2pResult {
    /// There was nothing to resolve: the page was not device private.
    None = bindings::hmm_p2p_result_HMM_P2P_NONE as u8,
    /// Resolved: the devices share a switch.
    BusAddr = bindings::hmm_p2p_result_HMM_P2P_BUS_ADDR as u8,
    /// Resolved: the traffic passes the host bridge.
    HostBridge = bindings::hmm_p2p_result_HMM_P2P_HOST_BRIDGE as u8,
    /// The memory's provider does not offer aliases.
    NoOp = bindings::hmm_p2p_result_HMM_P2P_NO_OP as u8,
    /// The provider has no alias for this page now.
    NoAlias = bindings::hmm_p2p_result_HMM_P2P_NO_ALIAS as u8,
    /// The provider's alias was refused: it is outside of every registered range.
    Unregistered = bindings::hmm_p2p_result_HMM_P2P_UNREGISTERED as u8,
    /// There is no path between the devices.
    Topology = bindings::hmm_p2p_result_HMM_P2P_TOPOLOGY as u8,
    /// The page must not be written to where it is, or userfaultfd has to see the access.
    ReadOnly = bindings::hmm_p2p_result_HMM_P2P_READ_ONLY as u8,
    /// The alias could not be mapped for DMA.
    MapFailed = bindings::hmm_p2p_result_HMM_P2P_MAP_FAILED as u8,
    /// The administrator forbids it.
    Policy = bindings::hmm_p2p_result_HMM_P2P_POLICY as u8,
}

impl P2pResult {
    fn from_raw(raw: u8) -> Self {
        match bindings::hmm_p2p_result::from(raw) {
            bindings::hmm_p2p_result_HMM_P2P_BUS_ADDR => Self::BusAddr,
            bindings::hmm_p2p_result_HMM_P2P_HOST_BRIDGE => Self::HostBridge,
            bindings::hmm_p2p_result_HMM_P2P_NO_OP => Self::NoOp,
            bindings::hmm_p2p_result_HMM_P2P_NO_ALIAS => Self::NoAlias,
            bindings::hmm_p2p_result_HMM_P2P_UNREGISTERED => Self::Unregistered,
            bindings::hmm_p2p_result_HMM_P2P_TOPOLOGY => Self::Topology,
            bindings::hmm_p2p_result_HMM_P2P_READ_ONLY => Self::ReadOnly,
            bindings::hmm_p2p_result_HMM_P2P_MAP_FAILED => Self::MapFailed,
            bindings::hmm_p2p_result_HMM_P2P_POLICY => Self::Policy,
            _ => Self::None,
        }
    }
}

/// Memory to fault a range into, reusable for any number of faults.
///
/// It is private to its fault: unlike the array in `struct hmm_dma_map`, nothing else reads or
/// writes it while HMM does, and no fault that fails or has to be retried leaves anything behind
/// that could be taken for a valid PFN.
///
/// # Invariants
///
/// - `pfns` and `results` have the same length.
/// - No element of `pfns` has a flag that a range fault leaves alone.
/// - `host_only` if an element of `results` is [`P2pResult::MapFailed`].
pub struct PfnBuf {
    pfns: KVVec<usize>,
    results: KVVec<u8>,
    host_only: bool,
}

impl PfnBuf {
    /// Allocates memory for ranges of up to `pages` pages.
    pub fn new(pages: usize, flags: Flags) -> Result<Self> {
        // INVARIANT: Both have `pages` elements, without any flag or result.
        Ok(Self {
            pfns: KVVec::from_elem(0, pages, flags)?,
            results: KVVec::from_elem(P2pResult::None as u8, pages, flags)?,
            host_only: false,
        })
    }

    /// Returns the number of pages that fit.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.pfns.len()
    }

    /// Forgets [`Self::host_only`] and all [`Valid::p2p_result`], to be used for another range.
    ///
    /// Not to be called between a fault and its retry: a page that was migrated to host memory by
    /// the first is host memory for the second, which then does not know why.
    pub fn reset(&mut self) {
        self.results.fill(P2pResult::None as u8);
        self.host_only = false;
    }

    /// Makes further faults ask for host memory for page `index`, whatever [`Request::try_p2p`]
    /// says.
    ///
    /// For a page whose alias could not be mapped for DMA. The other pages are not affected.
    /// [`Valid::p2p_result`] is going to report [`P2pResult::MapFailed`].
    pub fn host_only(&mut self, index: usize) {
        if let Some(result) = self.results.get_mut(index) {
            // A fault never stores this result, and none at all where it asks for no alias.
            *result = P2pResult::MapFailed as u8;
            self.host_only = true;
        }
    }
}

/// Something in the range was invalidated; what was found must not be used. Fault it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry;

/// A range that was faulted in, but may be outdated.
///
/// # Invariants
///
/// `pfns` and `results` are what a successful `hmm_range_fault_unlocked_timeout()` stored for a
/// range of `notifier` and the sequence number `seq`. `pfns` has no flag that it leaves alone.
#[must_use = "tells nothing before it is validated"]
pub struct Faulted<'a, T: Ops> {
    notifier: &'a IntervalNotifier<T>,
    seq: usize,
    pfns: &'a [usize],
    results: &'a [u8],
}

impl<T: Ops> IntervalNotifier<T> {
    /// Looks up what is behind the addresses `range`, and faults it in if the request says so.
    ///
    /// `mm` must be the address space of the notifier, and `range` a non-empty part of its
    /// addresses that is aligned to pages and not larger than `buf`.
    ///
    /// This takes the `mmap_lock`, sleeps, and must not be called with the user lock held. It
    /// returns when the range was stable for the time of a walk over it, or with an error:
    ///
    /// - [`EINVAL`]: bad arguments.
    /// - [`EFAULT`]: there is nothing behind an address, or nothing that devices can share.
    /// - [`EPERM`]: write access was asked for and the process has none.
    /// - [`EBUSY`]: the range changed again and again for `HMM_RANGE_DEFAULT_TIMEOUT`.
    /// - [`EINTR`]: a fatal signal is pending.
    /// - [`ENOMEM`]: out of memory.
    pub fn fault<'a>(
        &'a self,
        mm: &MmWithUser,
        range: Range<usize>,
        request: &Request<'_>,
        buf: &'a mut PfnBuf,
    ) -> Result<Faulted<'a, T>> {
        let interval = self.range();
        let pages = range.end.checked_sub(range.start).ok_or(EINVAL)? >> PAGE_SHIFT;

        if mm.as_raw() != self.mm().as_raw()
            || range.start < interval.start
            || range.end > interval.end
            || range.start % PAGE_SIZE != 0
            || range.end % PAGE_SIZE != 0
            || pages == 0
            || pages > buf.len()
        {
            return Err(EINVAL);
        }

        // Only if it is the same for all pages, HMM has a short way for pages in a row.
        let flag = request.p2p_flag();
        let by_page = if buf.host_only { flag } else { 0 };

        // Otherwise `pfn_flags_mask` hides what the last fault stored there.
        if by_page != 0 {
            for (pfn, result) in buf.pfns[..pages].iter_mut().zip(&buf.results) {
                let host_only = *result == P2pResult::MapFailed as u8;

                *pfn = if host_only { 0 } else { by_page };
            }
        }

        let mut raw = bindings::hmm_range {
            notifier: self.as_raw(),
            notifier_seq: 0,
            start: range.start,
            end: range.end,
            hmm_pfns: buf.pfns.as_mut_ptr(),
            default_flags: request.all_flags() | (flag ^ by_page),
            // Without a `dma_dev`, the flag must not even be considered.
            pfn_flags_mask: by_page,
            dev_private_owner: request.owner,
            dma_dev: request.peer.map_or(ptr::null_mut(), |dev| dev.as_raw()),
            p2p_results: buf.results.as_mut_ptr(),
        };

        // SAFETY:
        // - `raw.notifier` is inserted by the type invariants of `IntervalNotifier`, and covers the
        //   range. Its `mm` is `mm`, which has users.
        // - `raw.hmm_pfns` and `raw.p2p_results` have room for the pages of the range by the type
        //   invariants of `PfnBuf`; nothing else accesses them, as `buf` is a mutable reference.
        // - `raw.dma_dev` is bound and thus valid, or null. If it is null, `flag` is 0 and no page
        //   has `HMM_PFN_REQ_TRY_P2P`.
        // - `raw.dev_private_owner` is only compared.
        to_result(unsafe {
            bindings::hmm_range_fault_unlocked_timeout(
                &mut raw,
                msecs_to_jiffies(bindings::HMM_RANGE_DEFAULT_TIMEOUT),
            )
        })?;

        // INVARIANT: The call above was successful, and no entry had a flag that it leaves alone.
        Ok(Faulted {
            notifier: self,
            seq: raw.notifier_seq,
            pfns: &buf.pfns[..pages],
            results: &buf.results[..pages],
        })
    }
}

impl<T: Ops> Faulted<'_, T> {
    /// Gives access to what was found, and to what the user lock protects, if nothing changed.
    ///
    /// `guard` must be one of [`IntervalNotifier::lock`].
    ///
    /// The kernel invalidates the range before it changes it, and that waits for the user lock. So
    /// the result holds while `guard` is held. A result that the driver takes over to the protected
    /// data, like addresses in the page tables of a device, holds until [`Ops::invalidate`] is
    /// called, and no longer.
    pub fn validate<'g>(
        self,
        guard: &'g mut MutexGuard<'_, T::Protected>,
    ) -> Result<(Valid<'g>, &'g mut T::Protected), Retry>
    where
        Self: 'g,
    {
        if self.notifier.read_retry(self.seq, guard) {
            return Err(Retry);
        }

        // INVARIANT: The user lock is held for `'g`, because `guard` is borrowed for that, and
        // nothing was invalidated since the PFNs were stored.
        let valid = Valid {
            pfns: self.pfns,
            results: self.results,
        };
        Ok((valid, &mut **guard))
    }
}

/// The pages of a range as they are, for as long as the user lock is held.
///
/// # Invariants
///
/// - `pfns` was stored by a successful range fault, and nothing that it reports changes during
///   `'a`. It has no flag that a range fault leaves alone.
/// - `results` has the same length as `pfns`.
#[derive(Clone, Copy)]
pub struct Valid<'a> {
    pfns: &'a [usize],
    results: &'a [u8],
}

impl<'a> Valid<'a> {
    /// Returns the number of pages, which is never 0.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.pfns.len()
    }

    /// Returns what is behind page `index` of the range; [`Pfn::None`] if it is not in the range.
    pub fn get(&self, index: usize) -> Pfn<'a> {
        match self.pfns.get(index) {
            // SAFETY: By the type invariants the PFN is what a range fault stored, and holds for
            // `'a`.
            Some(raw) => unsafe { Pfn::from_raw(*raw) },
            None => Pfn::None,
        }
    }

    /// Iterates over the pages of the range.
    pub fn iter(&self) -> impl Iterator<Item = Pfn<'a>> + use<'a> {
        let valid = *self;
        (0..valid.len()).map(move |i| valid.get(i))
    }

    /// Returns how page `index` fared with [`Request::try_p2p`], since the last [`PfnBuf::reset`].
    pub fn p2p_result(&self, index: usize) -> P2pResult {
        self.results
            .get(index)
            .map_or(P2pResult::None, |raw| P2pResult::from_raw(*raw))
    }

    /// Returns the C representation of page `index`.
    fn raw(&self, index: usize) -> Option<usize> {
        self.pfns.get(index).copied()
    }
}

/// What is behind a user address.
#[derive(Clone, Copy)]
pub enum Pfn<'a> {
    /// No page, or one that would have to be faulted in. Only a [`Access::Snapshot`] reports this.
    None,
    /// Nothing that a device can use: poisoned or special memory, or no mapping at all. Only a
    /// [`Access::Snapshot`] reports this.
    Error,
    /// Host memory, or what looks like it.
    Host(HostPfn<'a>),
    /// Memory of a peer, reachable by DMA of the device given to [`Request::try_p2p`] only.
    Alias(AliasPfn<'a>),
    /// Device private memory of the pagemap given to `Request::device_private_of`.
    DevicePrivate(DevicePrivatePfn<'a>),
}

impl Pfn<'_> {
    /// # Safety
    ///
    /// `raw` must be an element of `hmm_range.hmm_pfns` after a successful range fault, and hold
    /// for the returned lifetime.
    unsafe fn from_raw(raw: usize) -> Self {
        // INVARIANT: The caller guarantees that `raw` holds. The flags tell the kind.
        if raw & ERROR != 0 {
            Self::Error
        } else if raw & VALID == 0 {
            Self::None
        } else if raw & P2P_ALIAS != 0 {
            Self::Alias(AliasPfn(raw, PhantomData))
        } else if raw & DEVICE_PRIVATE != 0 {
            Self::DevicePrivate(DevicePrivatePfn(raw, PhantomData))
        } else {
            Self::Host(HostPfn(raw, PhantomData))
        }
    }

    /// Returns whether the page may be written to.
    pub fn writable(&self) -> bool {
        match self {
            Self::None | Self::Error => false,
            Self::Host(pfn) => pfn.writable(),
            Self::Alias(pfn) => pfn.writable(),
            Self::DevicePrivate(pfn) => pfn.writable(),
        }
    }
}

macro_rules! impl_pfn {
    ($ty:ident) => {
        impl $ty<'_> {
            /// Returns whether the page may be written to.
            pub fn writable(&self) -> bool {
                self.0 & WRITE != 0
            }
        }
    };
}

/// A page of host memory, or what the process has mapped as if it were.
///
/// The latter is memory of a device that has a `struct page` and that the CPU can access, as DAX
/// and the PCI peer-to-peer memory of `pci_p2pdma_add_resource()` have it.
///
/// # Invariants
///
/// Holds a valid HMM PFN with a `struct page` of memory that is neither an alias nor device
/// private, and that stays what it is during `'a`.
#[derive(Clone, Copy)]
pub struct HostPfn<'a>(usize, PhantomData<&'a ()>);
impl_pfn!(HostPfn);

impl HostPfn<'_> {
    /// Copies bytes from the page, from `offset` on, as a device does that reads it.
    ///
    /// The process may write at the same time. Then each byte is either the old or the new one.
    /// Fails with [`EINVAL`] if that is not within the page, and with [`EFAULT`] if the CPU must
    /// not access it, as with `memfd_secret()`.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result {
        self.with_bytes(offset, dst.len(), |bytes| {
            // SAFETY: `dst` is valid for writes of as many bytes as it has. `bytes` may be read
            // from without being valid, and is not in `dst`, which is a mutable reference to kernel
            // memory. The copy is made by C code, for which it is no undefined behaviour that the
            // process changes its memory.
            unsafe { bindings::copy_from_kernel_nofault(dst.as_mut_ptr().cast(), bytes, dst.len()) }
        })
    }

    /// Copies bytes to the page, from `offset` on, as a device does that writes to it.
    ///
    /// Fails with [`EINVAL`] if that is not within the page, with [`EPERM`] if the page is not
    /// [`Self::writable`], and with [`EFAULT`] if the CPU must not access it.
    pub fn write(&self, offset: usize, src: &[u8]) -> Result {
        if !self.writable() {
            return Err(EPERM);
        }

        self.with_bytes(offset, src.len(), |bytes| {
            self.set_dirty();
            // SAFETY: As for `read`, the other way round, and the page is mapped writable by the
            // process, so it may be written to until it is invalidated.
            unsafe { bindings::copy_to_kernel_nofault(bytes, src.as_ptr().cast(), src.len()) }
        })
    }

    /// Marks the page as changed.
    ///
    /// It may be clean although it can be written to, as after `MADV_FREE`. It does not become so
    /// again without being invalidated, so that once is enough for a device that writes to it.
    fn set_dirty(&self) {
        // SAFETY: By the type invariants there is a page behind the PFN, which stays what it is.
        unsafe { bindings::set_page_dirty(bindings::hmm_pfn_to_page(self.0)) };
    }

    /// Runs `f` with the address of a byte of the page. The CPU may be kept from accessing it, as
    /// with `memfd_secret()`: `f` must be prepared for that.
    fn with_bytes(
        &self,
        offset: usize,
        len: usize,
        f: impl FnOnce(*mut c_void) -> c_long,
    ) -> Result {
        if offset.checked_add(len).is_none_or(|end| end > PAGE_SIZE) {
            return Err(EINVAL);
        }

        // SAFETY: By the type invariants there is a page behind the PFN that the CPU can access.
        let addr = unsafe { bindings::kmap_local_page(bindings::hmm_pfn_to_page(self.0)) };

        let ret = f(addr.wrapping_byte_add(offset));
        // SAFETY: `addr` is what was mapped last: `f` maps nothing.
        unsafe { bindings::kunmap_local(addr) };
        // CAST: An error number, or 0.
        to_result(ret as c_int)
    }
}

/// The address of a peer's memory in its PCI BAR.
///
/// There is no `struct page` for it and the CPU must not touch it.
///
/// # Invariants
///
/// Holds a valid HMM PFN that is an alias during `'a`.
#[derive(Clone, Copy)]
pub struct AliasPfn<'a>(usize, PhantomData<&'a ()>);
impl_pfn!(AliasPfn);

impl AliasPfn<'_> {
    /// Returns the address as the CPU sees it.
    ///
    /// It is no DMA address; see [`dma::DmaMap`] for that.
    pub fn phys(&self) -> PhysAddr {
        // SAFETY: Computes from the value only, which is valid by the type invariants.
        unsafe { bindings::hmm_pfn_to_phys(self.0) }
    }
}

/// A page of device private memory of the caller of the range fault.
///
/// # Invariants
///
/// Holds a valid HMM PFN of a device private page that stays what it is during `'a`.
#[derive(Clone, Copy)]
pub struct DevicePrivatePfn<'a>(usize, PhantomData<&'a ()>);
impl_pfn!(DevicePrivatePfn);

impl DevicePrivatePfn<'_> {
    /// Returns the page frame number, from which the owner computes where in the device it is.
    pub fn pfn(&self) -> usize {
        self.0 & !FLAGS
    }
}

#[cfg(CONFIG_RUST_MM_HMM_KUNIT_TEST)]
#[macros::kunit_tests(rust_mm_hmm)]
mod tests {
    use super::*;
    use crate::{
        current,
        mm::notifier::Invalidation,
        new_mutex,
        sync::Arc,
        uaccess::{
            UserPtr,
            UserSlice, //
        },
    };

    pub(super) const PAGES: usize = 4;
    const PROT_READ: usize = 1;
    pub(super) const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS: usize = 0x22;

    /// Records the last invalidation.
    struct Recorder;

    impl Ops for Recorder {
        type Protected = Option<Range<usize>>;

        fn invalidate(&self, last: &mut Self::Protected, inv: &Invalidation<'_>) {
            *last = Some(inv.range());
        }
    }

    /// Runs `f` and returns its result, and how often the kernel would have warned meanwhile.
    pub(super) fn count_warnings<R>(f: impl FnOnce() -> R) -> (R, usize) {
        // SAFETY: Called by the thread of a test, which is `test`, and nothing else in it
        // suppresses warnings.
        unsafe {
            let test = bindings::kunit_get_current_test();
            let suppressed = bindings::kunit_start_suppress_warning(test);
            let result = f();
            let count = bindings::kunit_suppressed_warning_count(suppressed);

            bindings::kunit_end_suppress_warning(test, suppressed);
            (result, count as usize)
        }
    }

    /// Maps `PAGES` pages of anonymous memory, in an address space that ends with the test.
    pub(super) fn map(prot: usize) -> Result<Range<usize>> {
        // SAFETY: Called by the thread of a test, which has no address space of its own.
        to_result(unsafe { bindings::kunit_attach_mm() })?;

        map_at(0, prot)
    }

    /// Maps `PAGES` pages more at `addr`, or where there is room if that is 0.
    fn map_at(addr: usize, prot: usize) -> Result<Range<usize>> {
        // SAFETY: The thread has an address space, and no file is mapped.
        let addr = unsafe {
            bindings::vm_mmap(
                ptr::null_mut(),
                addr,
                PAGES * PAGE_SIZE,
                prot,
                MAP_PRIVATE_ANONYMOUS,
                0,
            )
        };
        if addr == 0 || addr % PAGE_SIZE != 0 {
            return Err(ENOMEM);
        }
        Ok(addr..addr + PAGES * PAGE_SIZE)
    }

    /// Maps other memory where some was unmapped. Nothing else is there, so the hint is enough.
    pub(super) fn remap(range: Range<usize>) -> Result {
        if map_at(range.start, PROT_READ_WRITE)? != range {
            return Err(EINVAL);
        }
        Ok(())
    }

    pub(super) fn unmap(range: Range<usize>) -> Result {
        // SAFETY: The thread has an address space that nothing but the test uses.
        to_result(unsafe { bindings::vm_munmap(range.start, range.end - range.start) })
    }

    fn watch(mm: &MmWithUser, range: Range<usize>) -> Result<Arc<IntervalNotifier<Recorder>>> {
        Arc::pin_init(
            // SAFETY: No test leaks it.
            unsafe { IntervalNotifier::new(mm, range, Recorder, new_mutex!(None)) },
            GFP_KERNEL,
        )
    }

    #[test]
    fn fault_for_write() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let notifier = watch(mm, range.clone())?;
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;

        let request = Request::new(Access::Write);
        let faulted = notifier.fault(mm, range.clone(), &request, &mut buf)?;
        let mut guard = notifier.lock();
        let (valid, _) = faulted.validate(&mut guard).map_err(|_| EAGAIN)?;

        assert_eq!(valid.len(), PAGES);
        for (i, pfn) in valid.iter().enumerate() {
            assert!(pfn.writable());
            assert_eq!(valid.p2p_result(i), P2pResult::None);
            let Pfn::Host(pfn) = pfn else {
                return Err(EINVAL);
            };
            let mut zero = [1];
            pfn.read(PAGE_SIZE - 1, &mut zero)?;
            assert_eq!(zero, [0]);
            pfn.write(0, &[i as u8 + 1])?;
            assert_eq!(pfn.write(PAGE_SIZE, &[1]), Err(EINVAL));
        }
        assert!(matches!(valid.get(PAGES), Pfn::None));
        drop(guard);

        // These are the pages that the process has at these addresses.
        for i in 0..PAGES {
            let addr = UserPtr::from_addr(range.start + i * PAGE_SIZE);
            assert_eq!(UserSlice::new(addr, 1).reader().read::<u8>()?, i as u8 + 1);
        }
        Ok(())
    }

    #[test]
    fn snapshot_faults_nothing() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let notifier = watch(mm, range.clone())?;
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;

        let second = UserPtr::from_addr(range.start + PAGE_SIZE);
        UserSlice::new(second, 1).writer().write(&1u8)?;

        let request = Request::new(Access::Snapshot);
        let faulted = notifier.fault(mm, range, &request, &mut buf)?;
        let mut guard = notifier.lock();
        let (valid, _) = faulted.validate(&mut guard).map_err(|_| EAGAIN)?;

        assert!(matches!(valid.get(0), Pfn::None));
        assert!(matches!(valid.get(1), Pfn::Host(_)));
        assert!(matches!(valid.get(2), Pfn::None));
        Ok(())
    }

    #[test]
    fn outdated_is_refused() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        // Without the first page, which is unmapped as well.
        let watched = range.start + PAGE_SIZE..range.end;
        let notifier = watch(mm, watched.clone())?;
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;

        let request = Request::new(Access::Read);
        let faulted = notifier.fault(mm, watched.clone(), &request, &mut buf)?;
        unmap(range.start..range.start + 2 * PAGE_SIZE)?;

        let mut guard = notifier.lock();
        assert!(matches!(faulted.validate(&mut guard), Err(Retry)));

        // The callback saw the part that the notifier is for.
        let expected = watched.start..watched.start + PAGE_SIZE;
        assert_eq!(guard.take(), Some(expected));
        drop(guard);

        // The next fault sees the hole, and what is left.
        assert!(matches!(
            notifier.fault(mm, watched.clone(), &request, &mut buf),
            Err(EFAULT)
        ));
        let left = watched.start + PAGE_SIZE..watched.end;
        let faulted = notifier.fault(mm, left, &request, &mut buf)?;
        let mut guard = notifier.lock();
        assert!(faulted.validate(&mut guard).is_ok());
        Ok(())
    }

    /// What the last fault stored in the buffer is neither reported nor asked for again.
    #[test]
    fn buffer_is_used_again() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let notifier = watch(mm, range.clone())?;
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;

        let request = Request::new(Access::Write);
        let _ = notifier.fault(mm, range.clone(), &request, &mut buf)?;
        assert!(buf
            .pfns
            .iter()
            .all(|pfn| *pfn & (VALID | WRITE) == VALID | WRITE));
        unmap(range.clone())?;
        remap(range.clone())?;

        let request = Request::new(Access::Snapshot);
        let faulted = notifier.fault(mm, range, &request, &mut buf)?;
        let mut guard = notifier.lock();
        let (valid, _) = faulted.validate(&mut guard).map_err(|_| EAGAIN)?;
        assert!(valid.iter().all(|pfn| matches!(pfn, Pfn::None)));
        Ok(())
    }

    /// The lock of another notifier of the same kind does not do.
    #[test]
    fn lock_of_another() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let notifier = watch(mm, range.clone())?;
        let other = watch(mm, range.clone())?;
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;

        let request = Request::new(Access::Read);
        let faulted = notifier.fault(mm, range, &request, &mut buf)?;
        // Counting allocates memory, which is not done under the lock.
        let (valid, warnings) = count_warnings(|| faulted.validate(&mut other.lock()).is_ok());
        assert!(!valid);
        assert_eq!(warnings, usize::from(cfg!(CONFIG_BUG)));
        Ok(())
    }

    #[test]
    fn read_only_memory() -> Result {
        let range = map(PROT_READ)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let notifier = watch(mm, range.clone())?;
        let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;

        let request = Request::new(Access::Write);
        assert!(matches!(
            notifier.fault(mm, range.clone(), &request, &mut buf),
            Err(EPERM)
        ));

        let request = Request::new(Access::Read);
        let faulted = notifier.fault(mm, range, &request, &mut buf)?;
        let mut guard = notifier.lock();
        let (valid, _) = faulted.validate(&mut guard).map_err(|_| EAGAIN)?;
        let Pfn::Host(pfn) = valid.get(0) else {
            return Err(EINVAL);
        };
        assert!(!pfn.writable());
        assert_eq!(pfn.write(0, &[1]), Err(EPERM));
        Ok(())
    }

    #[test]
    fn bad_ranges() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let notifier = watch(mm, range.clone())?;
        let request = Request::new(Access::Read);

        // One page too small.
        let mut buf = PfnBuf::new(PAGES - 1, GFP_KERNEL)?;
        for bad in [
            range.clone(),
            range.start..range.start,
            range.start + PAGE_SIZE..range.start,
            range.start + 1..range.start + PAGE_SIZE,
            range.start..range.start + 1,
            range.start - PAGE_SIZE..range.start + PAGE_SIZE,
            range.end - PAGE_SIZE..range.end + PAGE_SIZE,
        ] {
            assert!(matches!(
                notifier.fault(mm, bad, &request, &mut buf),
                Err(EINVAL)
            ));
        }

        assert!(watch(mm, range.start..range.start).is_err());
        Ok(())
    }

    #[test]
    fn kinds_are_told_apart() {
        let pfn = VALID | WRITE | 0x1234;

        // SAFETY: The values are only decoded.
        let decode = |raw| unsafe { Pfn::from_raw(raw) };

        assert!(matches!(decode(0), Pfn::None));
        assert!(matches!(decode(ERROR), Pfn::Error));
        assert!(matches!(decode(pfn), Pfn::Host(_)));
        if P2P_ALIAS != 0 {
            let Pfn::Alias(alias) = decode(pfn | P2P_ALIAS) else {
                return assert!(false);
            };
            assert_eq!(alias.phys() as usize, 0x1234 << PAGE_SHIFT);
        }
        if DEVICE_PRIVATE != 0 {
            let Pfn::DevicePrivate(private) = decode(pfn | DEVICE_PRIVATE) else {
                return assert!(false);
            };
            assert_eq!(private.pfn(), 0x1234);
            assert!(private.writable());
        }
    }

    #[test]
    fn host_only_is_per_page() -> Result {
        let mut buf = PfnBuf::new(2, GFP_KERNEL)?;

        // Out of range: nothing happens.
        buf.host_only(2);
        assert!(!buf.host_only);
        buf.host_only(1);
        assert!(buf.host_only);

        let valid = Valid {
            pfns: &buf.pfns,
            results: &buf.results,
        };
        assert_eq!(valid.p2p_result(0), P2pResult::None);
        assert_eq!(valid.p2p_result(1), P2pResult::MapFailed);

        buf.reset();
        assert!(!buf.host_only);
        assert_eq!(buf.results[1], P2pResult::None as u8);
        Ok(())
    }
}
