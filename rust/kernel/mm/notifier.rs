// SPDX-License-Identifier: GPL-2.0

//! Interval notifiers: callbacks before the CPU page tables of a process change.
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
//!   the lock is held or until the next invalidation. `mm::hmm` implements this party.
//! - The callback takes the user lock, stores the new sequence number, makes the device forget the
//!   range, and unlocks. This module implements this party, and the driver what makes the device
//!   forget.
//!
//! Start at [`Ops`], the trait that a driver implements. An [`IntervalNotifier`] owns the user
//! lock. It takes the lock and stores the sequence number before it calls the driver, which can
//! thus forget neither.
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
    sync::{
        Mutex,
        MutexGuard, //
    },
    types::Opaque, //
};
use core::ops::{
    Deref,
    Range, //
};

/// What a driver does with its [`IntervalNotifier`].
///
/// # Examples
///
/// A mirror that only counts how often its range was invalidated.
///
/// ```
/// use kernel::{
///     mm::{
///         notifier::{
///             IntervalNotifier,
///             Invalidation,
///             Ops, //
///         },
///         MmWithUser, //
///     },
///     new_mutex,
///     prelude::*, //
/// };
///
/// struct Mirror;
///
/// impl Ops for Mirror {
///     type Protected = usize;
///
///     fn invalidate(&self, count: &mut usize, _inv: &Invalidation<'_>) {
///         *count += 1;
///     }
/// }
///
/// /// Returns how often memory was invalidated while `f` ran.
/// fn count(mm: &MmWithUser, range: core::ops::Range<usize>, f: impl FnOnce()) -> Result<usize> {
///     let notifier = KBox::pin_init(
///         // SAFETY: It is dropped below.
///         unsafe { IntervalNotifier::new(mm, range, Mirror, new_mutex!(0)) },
///         GFP_KERNEL,
///     )?;
///
///     f();
///     let count = *notifier.lock();
///     Ok(count)
/// }
/// ```
pub trait Ops: Sync {
    /// What the user lock protects.
    type Protected: Send + Unpin;

    /// The CPU page tables of [`inv.range()`](Invalidation::range) are about to change.
    ///
    /// When this returns, nothing may use the memory behind the range any more: neither the device,
    /// nor anyone who found it through the notifier before. To get it back, it has to be looked up
    /// again, which waits until the change is complete.
    ///
    /// This is called with the user lock held, which protects `protected`. It may sleep, but it
    /// runs with locks of the memory management held and possibly within memory reclaim. So neither
    /// here nor anywhere else under the user lock may anything allocate memory with `GFP_KERNEL`,
    /// access user memory, or wait for someone who does.
    ///
    /// A change that must not sleep is refused without a call, as mlx5 and `drm_gpusvm` refuse
    /// it. Only the OOM reaper and `process_mrelease()` make such changes. They leave the memory to
    /// the exiting process.
    fn invalidate(&self, protected: &mut Self::Protected, inv: &Invalidation<'_>);
}

/// What an [`Ops::invalidate`] is about.
pub struct Invalidation<'a> {
    raw: &'a bindings::mmu_notifier_range,
    interval: &'a Range<usize>,
}

impl Invalidation<'_> {
    /// Returns the addresses to invalidate, clipped to the range of the notifier.
    pub fn range(&self) -> Range<usize> {
        self.raw.start.max(self.interval.start)..self.raw.end.min(self.interval.end)
    }
}

/// A subscription to changes of a range of user addresses.
///
/// It owns the driver's data, which is reachable through [`Deref`], and the user lock, and calls
/// [`Ops::invalidate`]. Dropping it ends the subscription before the data is dropped, so the data
/// can rely on nobody calling it any more.
///
/// Dropping it sleeps until callbacks that are running have returned. It must therefore not be
/// dropped with the user lock or any other lock held that a callback takes, nor from a callback.
///
/// # Invariants
///
/// - `inner` is inserted, with `VTABLE`, for the addresses `range`, until [`Drop`].
/// - `inner` is embedded in `Self`, and the other fields are initialised as long as it is inserted.
/// - Sequence numbers are stored in `inner` under `lock` only.
#[pin_data(PinnedDrop)]
pub struct IntervalNotifier<T: Ops> {
    #[pin]
    data: T,
    #[pin]
    lock: Mutex<T::Protected>,
    range: Range<usize>,
    #[pin]
    inner: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: A notifier may be removed by another thread than the one that inserted it.
unsafe impl<T: Ops + Send> Send for IntervalNotifier<T> {}

// SAFETY: `&self` gives access to `data` and `lock`, which are `Sync`, and to functions of the C
// notifier that may be called concurrently.
unsafe impl<T: Ops> Sync for IntervalNotifier<T> {}

impl<T: Ops> IntervalNotifier<T> {
    const VTABLE: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate_callback),
        invalidate_start: None,
        invalidate_finish: None,
    };

    /// Subscribes to changes of `range` in `mm`. `lock` is the user lock.
    ///
    /// [`Ops::invalidate`] may be called before this returns. Fails with [`EINVAL`] if the range is
    /// empty.
    ///
    /// If it is the first notifier there, this takes the `mmap_lock` of `mm` for writing, and can
    /// fail with [`ENOMEM`], or with [`EINTR`] if the thread has a signal or is to be frozen.
    ///
    /// # Safety
    ///
    /// The notifier must not be leaked, as by [`core::mem::forget`], but dropped before anything
    /// that `T` or what the lock protects borrows ends, and before the module that has the callback
    /// is unloaded.
    pub unsafe fn new<'a, E>(
        mm: &'a MmWithUser,
        range: Range<usize>,
        data: impl PinInit<T, E> + 'a,
        lock: impl PinInit<Mutex<T::Protected>> + 'a,
    ) -> impl PinInit<Self, Error> + 'a
    where
        T: 'a,
        Error: From<E>,
        E: 'a,
    {
        let (start, end) = (range.start, range.end);

        // INVARIANT: `inner` is initialised last, when the other fields are, and inserted for
        // `range` by that. If that fails, initialisation fails, too.
        try_pin_init!(Self {
            data <- data,
            lock <- lock,
            range: range,
            // SAFETY: This is for `inner`, and the other fields are initialised.
            inner <- unsafe { Self::insert(mm, start, end) },
        }? Error)
    }

    /// Inserts the C notifier.
    ///
    /// A function of its own, because `new` has the types of initialisers in its name. With those
    /// of a closure in it on top, names of symbols would get too long.
    ///
    /// # Safety
    ///
    /// To be used by `new` only, for `inner`, when the other fields are initialised.
    unsafe fn insert<'a>(
        mm: &'a MmWithUser,
        start: usize,
        end: usize,
    ) -> impl PinInit<Opaque<bindings::mmu_interval_notifier>, Error> + 'a
    where
        T: 'a,
    {
        Opaque::try_ffi_init(move |slot| {
            let length = end.checked_sub(start).filter(|l| *l != 0).ok_or(EINVAL)?;

            // SAFETY:
            // - `slot` is valid for writes, pinned, and removed in `Drop` before it is freed.
            // - `mm` is valid and has users.
            // - The callback of `VTABLE` may run from now on. `slot` is embedded in `Self`, whose
            //   other fields are initialised.
            // - The caller of `new` guarantees that the callback is not called after anything that
            //   it uses ended.
            to_result(unsafe {
                bindings::mmu_interval_notifier_insert(
                    slot,
                    mm.as_raw(),
                    start,
                    length,
                    &Self::VTABLE,
                )
            })
        })
    }

    /// Takes the user lock.
    pub fn lock(&self) -> MutexGuard<'_, T::Protected> {
        self.lock.lock()
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
    /// `guard` must be one of [`IntervalNotifier::lock`]. If it is of another notifier, the kernel
    /// warns and the answer is yes, as a no cannot be relied on.
    #[cfg(CONFIG_HMM_MIRROR)]
    pub(super) fn read_retry(&self, seq: usize, guard: &MutexGuard<'_, T::Protected>) -> bool {
        if crate::warn_on!(!core::ptr::eq(guard.lock_ref(), &self.lock)) {
            return true;
        }

        // SAFETY: By the type invariants the C notifier is inserted. The lock that sequence numbers
        // are stored under is held.
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
        // SAFETY: The C side passes a range that is valid and constant during the call.
        let raw = unsafe { &*raw };

        // SAFETY: As above.
        if !unsafe { bindings::mmu_notifier_range_blockable(raw) } {
            return false;
        }

        // SAFETY: `notifier` is the `inner` of an `IntervalNotifier<T>`.
        let this = unsafe { container_of!(Opaque::cast_from(notifier), Self, inner) };

        // SAFETY: The notifier is inserted, as it calls us, so by the type invariants these fields
        // are initialised; they stay so until `Drop` has removed the notifier, which waits for us.
        let (data, lock, interval) = unsafe { (&(*this).data, &(*this).lock, &(*this).range) };

        let inv = Invalidation { raw, interval };
        let mut guard = lock.lock();

        // SAFETY: This is the callback of `notifier`, called with `cur_seq`.
        unsafe { bindings::mmu_interval_set_seq(notifier, cur_seq) };

        data.invalidate(&mut guard, &inv);
        true
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
