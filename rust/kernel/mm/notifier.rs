// SPDX-License-Identifier: GPL-2.0

//! Interval notifiers: being told before the CPU page tables of a process change.
//!
//! A device that uses the memory of a process without pinning it must stop using a page before the
//! kernel moves, unmaps or write-protects it. [`IntervalNotifier`] subscribes to such events for a
//! range of user addresses; its [`Ops::invalidate`] callback is where the device stops.
//!
//! The other direction, looking up what is behind an address, races with these events. It follows
//! a protocol of two parties, held together by a sequence number and a lock of the driver, the
//! *user lock*:
//!
//! - Whoever looks pages up notes the sequence number, looks, takes the user lock, and asks whether
//!   the number is still the same. Only then may the device use what was found, and only as long as
//!   the lock is held or until the next invalidation. [`hmm`](super::hmm) implements this party.
//! - The callback takes the user lock, stores the new sequence number, makes the device forget the
//!   range, and unlocks. This module implements this party.
//!
//! Start at [`Ops`], the trait that a driver implements. The compiler checks that the callback
//! stores the sequence number under a lock: it is handed a [`SetSeq`] that can only be exchanged
//! for the [`SeqSet`] that it must return by presenting a lock guard.
//!
//! This is the subscription to a range of addresses, not `struct mmu_notifier`, which covers a
//! whole address space and also reports accesses.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use crate::{
    bindings,
    container_of,
    error::to_result,
    mm::{
        Mm,
        MmWithUser, //
    },
    prelude::*,
    sync::lock::{
        Backend,
        Guard,
        Lock, //
    },
    types::Opaque, //
};
use core::{
    marker::PhantomData,
    ops::{
        Deref,
        Range, //
    },
    ptr, //
};

/// Callbacks of an [`IntervalNotifier`].
///
/// # Examples
///
/// A mirror that only counts how often its range was invalidated.
///
/// ```
/// use kernel::{
///     mm::notifier::{
///         Invalidation,
///         Ops,
///         SeqSet,
///         SetSeq,
///         WouldBlock, //
///     },
///     new_mutex,
///     prelude::*,
///     sync::{
///         lock::mutex::MutexBackend,
///         Mutex, //
///     }, //
/// };
///
/// #[pin_data]
/// struct Mirror {
///     #[pin]
///     invalidations: Mutex<usize>,
/// }
///
/// impl Mirror {
///     fn new() -> impl PinInit<Self> {
///         pin_init!(Self {
///             invalidations <- new_mutex!(0),
///         })
///     }
/// }
///
/// // SAFETY: There is one lock.
/// unsafe impl Ops for Mirror {
///     type Protected = usize;
///     type Backend = MutexBackend;
///
///     fn user_lock(&self) -> &Mutex<usize> {
///         &self.invalidations
///     }
///
///     fn invalidate<'a>(
///         &'a self,
///         inv: &Invalidation<'a>,
///         seq: SetSeq<'a, Self>,
///     ) -> Result<SeqSet<'a>, WouldBlock> {
///         let mut count = inv.lock(&self.invalidations)?;
///         let done = seq.set(&count);
///         *count += 1;
///         Ok(done)
///     }
/// }
/// ```
///
/// # Safety
///
/// [`Ops::user_lock`] must return the same lock each time.
pub unsafe trait Ops: Sync {
    /// What the user lock protects.
    type Protected: Send;

    /// The kind of the user lock.
    type Backend: Backend;

    /// Returns the user lock of this notifier, each time the same one.
    ///
    /// Several notifiers may share a lock.
    fn user_lock(&self) -> &Lock<Self::Protected, Self::Backend>;

    /// The CPU page tables of [`inv.range()`](Invalidation::range) are about to change.
    ///
    /// When this returns success, nothing may use the memory behind the range any more: neither the
    /// device, nor anyone who found it through the notifier before. To get it back, it has to be
    /// looked up again, which waits until the change is complete.
    ///
    /// This may sleep if [`inv.blockable()`](Invalidation::blockable), but it runs with locks of
    /// the memory management held and possibly within memory reclaim. So neither here nor anywhere
    /// else under the user lock may anything allocate memory with `GFP_KERNEL`, access user memory,
    /// or wait for someone who does.
    ///
    /// If it must not sleep and would have to, it returns [`WouldBlock`] and changes nothing. The
    /// kernel then gives the change up or tries later. [`WouldBlock`] from a call that may sleep is
    /// a bug, and does not stop the change: the kernel warns, and takes the user lock, so that
    /// nobody is left who still uses what was looked up.
    fn invalidate<'a>(
        &'a self,
        inv: &Invalidation<'a>,
        seq: SetSeq<'a, Self>,
    ) -> Result<SeqSet<'a>, WouldBlock>;
}

/// An [`Ops::invalidate`] that must not sleep would have had to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WouldBlock;

/// Why a range is invalidated.
///
/// Corresponds to the C `enum mmu_notifier_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The range is unmapped or moved to another address.
    Unmap,
    /// Page table entries are cleared, for one of many reasons.
    Clear,
    /// The protection of the mapping changes, as by `mprotect()`.
    ProtectionVma,
    /// The protection of single pages changes, as by `fork()`.
    ProtectionPage,
    /// Soft-dirty accounting starts over.
    SoftDirty,
    /// The address space goes away.
    Release,
    /// Pages migrate from or to device private memory.
    Migrate,
    /// Pages become exclusive to a device.
    Exclusive,
    /// Something that this abstraction does not know of.
    Other,
}

/// The range that an [`Ops::invalidate`] is about, and the circumstances.
pub struct Invalidation<'a> {
    raw: &'a bindings::mmu_notifier_range,
    interval: &'a Range<usize>,
}

impl Invalidation<'_> {
    /// Returns the addresses to invalidate, clipped to those of the notifier.
    pub fn range(&self) -> Range<usize> {
        self.raw.start.max(self.interval.start)..self.raw.end.min(self.interval.end)
    }

    /// Returns why the range is invalidated.
    pub fn event(&self) -> Event {
        match self.raw.event {
            bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP => Event::Unmap,
            bindings::mmu_notifier_event_MMU_NOTIFY_CLEAR => Event::Clear,
            bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA => Event::ProtectionVma,
            bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE => Event::ProtectionPage,
            bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY => Event::SoftDirty,
            bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE => Event::Release,
            bindings::mmu_notifier_event_MMU_NOTIFY_MIGRATE => Event::Migrate,
            bindings::mmu_notifier_event_MMU_NOTIFY_EXCLUSIVE => Event::Exclusive,
            _ => Event::Other,
        }
    }

    /// Returns whether the callback may sleep.
    pub fn blockable(&self) -> bool {
        // SAFETY: `self.raw` is a valid range by its type.
        unsafe { bindings::mmu_notifier_range_blockable(self.raw) }
    }

    /// Takes a lock if that is possible here.
    ///
    /// Sleeps until `lock` is free if the callback may sleep. Otherwise takes it if it is free now.
    pub fn lock<'l, T: ?Sized, B: Backend>(
        &self,
        lock: &'l Lock<T, B>,
    ) -> Result<Guard<'l, T, B>, WouldBlock> {
        if self.blockable() {
            Ok(lock.lock())
        } else {
            lock.try_lock().ok_or(WouldBlock)
        }
    }
}

/// The duty to store the sequence number of an invalidation.
///
/// [`Ops::invalidate`] gets one and can return successfully only by giving it up. The lifetime `'a`
/// is that of one callback: neither this nor the [`SeqSet`] can be kept for another.
///
/// # Invariants
///
/// `notifier` points to the inserted C notifier whose `invalidate` callback was called with
/// `cur_seq` and is running for `'a`. It belongs to the [`IntervalNotifier`] that contains `ops`.
pub struct SetSeq<'a, T: Ops + ?Sized> {
    notifier: *mut bindings::mmu_interval_notifier,
    ops: &'a T,
    cur_seq: usize,
    _callback: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl<'a, T: Ops + ?Sized> SetSeq<'a, T> {
    /// Stores the sequence number, so that everything looked up before is found to be outdated.
    ///
    /// `guard` must be one of [`Ops::user_lock`]. If it is not, the kernel warns, and this takes
    /// that lock, so that nobody is left who still uses what was looked up.
    pub fn set(self, guard: &Guard<'_, T::Protected, T::Backend>) -> SeqSet<'a> {
        let lock = self.ops.user_lock();
        let _guard = crate::warn_on!(!ptr::eq(guard.lock_ref(), lock)).then(|| lock.lock());

        // SAFETY: By the type invariants the notifier is valid and `cur_seq` is what its running
        // `invalidate` callback got.
        unsafe { bindings::mmu_interval_set_seq(self.notifier, self.cur_seq) };
        SeqSet(PhantomData)
    }
}

/// Proof that an [`Ops::invalidate`] dealt with its [`SetSeq`].
#[must_use = "has to be returned from `Ops::invalidate`"]
pub struct SeqSet<'a>(PhantomData<fn(&'a ()) -> &'a ()>);

/// A subscription to changes of a range of user addresses.
///
/// It owns the driver's data, which is reachable through [`Deref`], and calls its
/// [`Ops::invalidate`]. Dropping it ends the subscription before the data is dropped, so the data
/// can rely on nobody calling it any more.
///
/// Dropping it sleeps until callbacks that are running have returned. It must therefore not be
/// dropped with the user lock or any other lock held that a callback takes, nor from a callback.
///
/// # Invariants
///
/// - `inner` is inserted, with `VTABLE`, for the addresses `range`, until [`Drop`].
/// - `inner` is embedded in `Self`, and `data` and `range` are initialised as long as it is
///   inserted.
#[pin_data(PinnedDrop)]
pub struct IntervalNotifier<T: Ops> {
    #[pin]
    data: T,
    range: Range<usize>,
    #[pin]
    inner: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: A notifier may be removed by another thread than the one that inserted it.
unsafe impl<T: Ops + Send> Send for IntervalNotifier<T> {}

// SAFETY: `&self` gives access to `data`, which is `Sync`, and to functions of the C notifier that
// may be called concurrently.
unsafe impl<T: Ops> Sync for IntervalNotifier<T> {}

impl<T: Ops> IntervalNotifier<T> {
    const VTABLE: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        invalidate_start: None,
        invalidate_finish: None,
    };

    /// Subscribes to changes of `range` in `mm`.
    ///
    /// [`Ops::invalidate`] may be called before this returns. Fails with [`EINVAL`] if the range is
    /// empty.
    ///
    /// This takes the `mmap_lock` of `mm` for writing if it is the first notifier there.
    pub fn new<'a, E>(
        mm: &'a MmWithUser,
        range: Range<usize>,
        data: impl PinInit<T, E> + 'a,
    ) -> impl PinInit<Self, Error> + 'a
    where
        T: 'static,
        Error: From<E>,
        E: 'a,
    {
        // SAFETY: `T: 'static`: nothing that the callback uses ends before the memory of the
        // notifier is freed, which does not happen without running `Drop`, as it is pinned.
        unsafe { Self::new_scoped(mm, range, data) }
    }

    /// Like [`IntervalNotifier::new`], for data that borrows from something.
    ///
    /// # Safety
    ///
    /// The notifier must not be leaked, as by [`core::mem::forget`], but dropped before anything
    /// that `T` borrows ends.
    pub unsafe fn new_scoped<'a, E>(
        mm: &'a MmWithUser,
        range: Range<usize>,
        data: impl PinInit<T, E> + 'a,
    ) -> impl PinInit<Self, Error> + 'a
    where
        T: 'a,
        Error: From<E>,
        E: 'a,
    {
        let (start, end) = (range.start, range.end);

        // INVARIANT: `inner` is initialised last, when `data` and `range` are, and inserted for
        // `range` by that. If that fails, initialisation fails, too.
        try_pin_init!(Self {
            data <- data,
            range: range,
            inner <- Opaque::try_ffi_init(move |slot| {
                let length = end.checked_sub(start).filter(|l| *l != 0).ok_or(EINVAL)?;

                // SAFETY:
                // - `slot` is valid for writes, pinned, and removed in `Drop` before it is freed.
                // - `mm` is valid and has users.
                // - The callback of `VTABLE` may run from now on. `slot` is embedded in `Self`,
                //   whose other fields are initialised.
                // - The caller guarantees that the callback is not called after anything that
                //   `data` borrows ended.
                to_result(unsafe {
                    bindings::mmu_interval_notifier_insert(
                        slot,
                        mm.as_raw(),
                        start,
                        length,
                        &Self::VTABLE,
                    )
                })
            }),
        }? Error)
    }

    /// Returns the address space that the notifier belongs to.
    pub fn mm(&self) -> &Mm {
        // SAFETY: By the type invariants the C notifier is inserted; it then has a reference to the
        // address space in `mm` and does not change it.
        unsafe { Mm::from_raw((*self.inner.get()).mm) }
    }

    /// Returns the addresses that the notifier covers.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the C notifier.
    #[cfg(CONFIG_HMM_MIRROR)]
    pub(super) fn as_raw(&self) -> *mut bindings::mmu_interval_notifier {
        self.inner.get()
    }

    /// Returns whether something in the range was invalidated since the sequence number was `seq`.
    ///
    /// `guard` must be one of [`Ops::user_lock`]. If it is not, the kernel warns and the answer is
    /// yes, as a no cannot be relied on.
    #[cfg(CONFIG_HMM_MIRROR)]
    pub(super) fn read_retry(
        &self,
        seq: usize,
        guard: &Guard<'_, T::Protected, T::Backend>,
    ) -> bool {
        if crate::warn_on!(!ptr::eq(guard.lock_ref(), self.data.user_lock())) {
            return true;
        }

        // SAFETY: By the type invariants the C notifier is inserted. The lock that `invalidate`
        // stores sequence numbers under is held.
        unsafe { bindings::mmu_interval_read_retry(self.inner.get(), seq) }
    }

    /// # Safety
    ///
    /// To be called as `mmu_interval_notifier_ops.invalidate` of the `inner` of an
    /// `IntervalNotifier<T>` only.
    unsafe extern "C" fn invalidate_callback(
        notifier: *mut bindings::mmu_interval_notifier,
        raw: *const bindings::mmu_notifier_range,
        cur_seq: usize,
    ) -> bool {
        // SAFETY: `notifier` is the `inner` of an `IntervalNotifier<T>`.
        let this = unsafe { container_of!(Opaque::cast_from(notifier), Self, inner) };

        // SAFETY: The notifier is inserted, as it calls us, so by the type invariants `data` is
        // initialised; it stays so until `Drop` has removed the notifier, which waits for us.
        let ops = unsafe { &(*this).data };

        let inv = Invalidation {
            // SAFETY: The C side passes a range that is valid and constant during the call.
            raw: unsafe { &*raw },
            // SAFETY: As for `data`.
            interval: unsafe { &(*this).range },
        };

        // INVARIANT: This is the callback of `notifier`, whose `IntervalNotifier` contains `ops`.
        let seq = SetSeq {
            notifier,
            ops,
            cur_seq,
            _callback: PhantomData,
        };

        match ops.invalidate(&inv, seq) {
            Ok(_) => true,
            // The C side frees the pages nevertheless.
            Err(WouldBlock) if crate::warn_on!(inv.blockable()) => {
                let _guard = ops.user_lock().lock();

                // SAFETY: This is the callback of `notifier`, called with `cur_seq`.
                unsafe { bindings::mmu_interval_set_seq(notifier, cur_seq) };
                true
            }
            Err(WouldBlock) => false,
        }
    }
}

impl<T: Ops> Deref for IntervalNotifier<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

#[pinned_drop]
impl<T: Ops> PinnedDrop for IntervalNotifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants the notifier is inserted. After this no callback runs, so
        // the fields can be dropped.
        unsafe { bindings::mmu_interval_notifier_remove(self.inner.get()) };
    }
}
