// SPDX-License-Identifier: GPL-2.0

//! Peer-to-peer DMA: let other devices reach a part of a BAR.
//!
//! A device whose memory is visible in a BAR can let a peer, such as a NIC, read and write that
//! memory directly. The C side calls the device that owns the BAR the *provider* and decides for
//! each peer whether and how it gets there: below a common switch, through the host bridge, or not
//! at all.
//!
//! Interfaces that hand out plain addresses of a peer's memory do so only for addresses in a range
//! that the provider registered before. `hmm_range_fault()` is one: it asks the owner of a device
//! private page for the page's address in the BAR, see [`mm::pagemap`]. The registration is what
//! keeps a wrong answer of the owner from making other memory reachable.
//!
//! Start at [`Provider`], which a PCI driver creates in `probe()`, and register ranges with
//! [`Provider::register_range`].
//!
//! # Order of teardown
//!
//! An [`AliasRange`] must be the last thing to go: no peer may have a mapping of it left, and none
//! may come to be. For device private memory that means to drop the pagemap first, which evicts
//! all pages and thereby makes every peer give up its mappings. A struct that has both as fields
//! declares the pagemap before the ranges. With another order peers can reach memory of the device,
//! but never memory of the host, so this order is not a matter of memory safety. An [`AliasRange`]
//! must end before its provider: that order is.
//!
//! C header: [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)
//!
//! [`mm::pagemap`]: kernel::mm::pagemap

use crate::{
    bindings,
    device::{
        Bound,
        Core, //
    },
    error::{
        from_err_ptr,
        to_result, //
    },
    io::PhysAddr,
    pci,
    prelude::*, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// A memory BAR that peers can get access to.
///
/// This is a cheap handle: it can be copied, and creating it again for the same BAR is allowed.
///
/// # Invariants
///
/// - `pcim_p2pdma_init()` succeeded for `pdev` since it was bound to its driver.
/// - `bar` is a memory BAR of `pdev`. It begins at the CPU physical address `start` and is `size`
///   bytes long.
///
/// # Examples
///
/// ```
/// use kernel::{
///     device::Core,
///     pci::{
///         self,
///         p2pdma::{
///             AliasRange,
///             Provider, //
///         },
///     },
///     prelude::*,
///     sizes::SZ_2M, //
/// };
///
/// const VRAM_BAR: u32 = 2;
///
/// /// Makes the first 2 MiB of the video memory reachable.
/// fn first_window<'bound>(
///     pdev: &'bound pci::Device<Core<'_>>,
/// ) -> Result<AliasRange<'bound>> {
///     let provider = Provider::new(pdev, VRAM_BAR)?;
///     // SAFETY: It becomes part of the data of a driver, which is dropped before `'bound` ends.
///     unsafe { provider.register_range(0, SZ_2M as u64) }
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Provider<'bound> {
    pdev: &'bound pci::Device<Bound>,
    bar: c_int,
    start: PhysAddr,
    size: PhysAddr,
}

impl<'bound> Provider<'bound> {
    /// Makes a BAR of `pdev` a provider.
    ///
    /// Fails with [`EOPNOTSUPP`] for devices whose BARs can not be mapped, and in a kernel without
    /// `CONFIG_PCI_P2PDMA`; with [`EINVAL`] if there is no such BAR, or if it is of I/O ports.
    ///
    /// The C function does not expect to race with itself. That is why this takes a device in the
    /// [`Core`] context, which only one thread at a time can have.
    pub fn new(pdev: &'bound pci::Device<Core<'_>>, bar: u32) -> Result<Self> {
        // Other resources, such as a ROM, have no provider.
        if bar >= bindings::PCI_STD_NUM_BARS {
            return Err(EINVAL);
        }
        let (start, size) = (pdev.resource_start(bar)?, pdev.resource_len(bar)?);
        let bar = bar.try_into()?;

        // SAFETY:
        // - `pdev.as_raw()` is valid by the type invariants of `pci::Device`.
        // - The device is bound to a driver, so that the device managed resources that this call
        //   allocates are released again.
        // - The `Core` context guarantees that no other thread makes this call for the device.
        to_result(unsafe { bindings::pcim_p2pdma_init(pdev.as_raw()) })?;

        // SAFETY: `pdev.as_raw()` is valid, `pcim_p2pdma_init()` was called, and `bar` is one of
        // the BARs that it has set up.
        if unsafe { bindings::pcim_p2pdma_provider(pdev.as_raw(), bar) }.is_null() {
            return Err(EINVAL);
        }

        // INVARIANT: We just called `pcim_p2pdma_init()`. The provider is released with the device
        // managed resources, after `'bound`. A BAR that has a provider is of memory, and it does
        // not move while a driver is bound, unless that driver moves it.
        Ok(Self {
            pdev,
            bar,
            start,
            size,
        })
    }

    /// Returns the CPU physical address of byte `offset`, if the BAR has it.
    #[inline]
    pub fn address(&self, offset: u64) -> Option<PhysAddr> {
        // An address may have 32 bits only.
        #[allow(clippy::useless_conversion)]
        let offset: PhysAddr = offset.try_into().ok()?;

        (offset < self.size).then(|| self.start + offset)
    }

    /// Lets peers reach `size` bytes of the BAR, from `offset` on.
    ///
    /// Both have to be multiples of the page size. The range ends when the returned value is
    /// dropped. Fails with [`EINVAL`] if the range is empty, misaligned or not inside the BAR, and
    /// with [`EEXIST`] if it overlaps a range that is registered already.
    ///
    /// # Safety
    ///
    /// The returned value must not be leaked, as by [`core::mem::forget`], but dropped before
    /// `'bound` ends: the range refers to the provider, which ends then.
    pub unsafe fn register_range(&self, offset: u64, size: u64) -> Result<AliasRange<'bound>> {
        // SAFETY:
        // - `self.pdev.as_raw()` is valid by the type invariants of `pci::Device`.
        // - `pcim_p2pdma_init()` was called, by the type invariants of `Self`.
        // - The function checks `offset` and `size`.
        let range = from_err_ptr(unsafe {
            bindings::pci_p2pdma_register_range(self.pdev.as_raw(), self.bar, offset, size)
        })?;

        // INVARIANT: The range was registered just now and is unregistered only by
        // `AliasRange::drop()`.
        Ok(AliasRange {
            range: NonNull::new(range).ok_or(EINVAL)?,
            _dev: PhantomData,
        })
    }
}

/// A part of a BAR that peers may reach.
///
/// Created by [`Provider::register_range`]. The range is unregistered when this is dropped, which
/// may sleep; see [the module](self) for what has to be gone by then. It can not outlive the
/// binding of the device to its driver.
///
/// # Invariants
///
/// `range` was returned by `pci_p2pdma_register_range()` and is still registered.
pub struct AliasRange<'bound> {
    range: NonNull<bindings::p2pdma_range>,
    _dev: PhantomData<&'bound pci::Device<Bound>>,
}

// SAFETY: A range can be unregistered from any thread.
unsafe impl Send for AliasRange<'_> {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl Sync for AliasRange<'_> {}

impl Drop for AliasRange<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the range is registered. The device is still bound
        // because of `'bound`, so that the provider that the range refers to exists.
        unsafe { bindings::pci_p2pdma_unregister_range(self.range.as_ptr()) };
    }
}
