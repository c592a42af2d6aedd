// SPDX-License-Identifier: GPL-2.0

//! Gates: reaching data from places that live longer than it.
//!
//! The data of a driver ends when its device is unbound, and it borrows from the device until then.
//! A file that user space has opened does not end with it. It cannot borrow the data; it can hold a
//! [`Gate`], which lets it in while the data is there, and refuses afterwards.
//!
//! [`Gated`] owns the data and is for the short-lived side, for instance a field of the driver's
//! bus device private data. Dropping it closes the gate, waits until everyone has left, and drops
//! the data.
//!
//! This is what [`Devres`](crate::devres::Devres) does for resources that are accessed in a short
//! atomic section. Behind a gate one may sleep, and be there for long; see [`Gate::is_open`].
//! It is the same as `drm_dev_enter()` and `drm_dev_unplug()` in C.

use crate::{
    new_srcu,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Srcu, //
    },
    types::ForLt, //
};
use core::ptr::NonNull;

/// A way to data that may be gone.
///
/// # Examples
///
/// ```
/// use kernel::{
///     sync::gate::Gated,
///     types::ForLt, //
/// };
///
/// let value = 42;
/// // SAFETY: `gated` is dropped below.
/// let gated = unsafe { Gated::<ForLt!(&u32)>::new(Ok::<_, Error>(&value))? };
/// let gate = gated.gate();
///
/// assert_eq!(gate.with(|data| **data), Some(42));
/// drop(gated);
/// assert_eq!(gate.with(|data| **data), None);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `data` points to the data of the [`Gated`] as long as `open` was read to be true in a read-side
/// critical section of `srcu` that has not ended.
#[pin_data]
pub struct Gate<F: ForLt> {
    #[pin]
    srcu: Srcu,
    open: Atomic<bool>,
    // The lifetime is not the real one, which `Gate::with` takes into account.
    data: NonNull<F::Of<'static>>,
}

// SAFETY: `data` does not own anything.
unsafe impl<F: ForLt> Send for Gate<F> where for<'a> F::Of<'a>: Sync {}

// SAFETY: A gate gives shared access to `data`, which permits that.
unsafe impl<F: ForLt> Sync for Gate<F> where for<'a> F::Of<'a>: Sync {}

impl<F: ForLt> Gate<F> {
    /// Calls `f` with the data, or returns [`None`] if it is gone.
    ///
    /// `f` may sleep. The data stays for as long as `f` runs: whoever drops it waits. So `f` must
    /// not be what drops it, nor wait for that.
    pub fn with<R>(&self, f: impl for<'a> FnOnce(Pin<&F::Of<'a>>) -> R) -> Option<R> {
        let _guard = self.srcu.read_lock();
        if !self.is_open() {
            return None;
        }

        // SAFETY: The gate is open and `_guard` is dropped after the reference, so by the type
        // invariants it is valid. `f` chooses neither lifetime, and does not know that one is as
        // long as the other: it can not put the reference to where the data has its own. Lifetimes
        // do not affect layout.
        let data = unsafe { self.data.cast::<F::Of<'_>>().as_ref() };

        // SAFETY: `Gated` pins its data.
        Some(f(unsafe { Pin::new_unchecked(data) }))
    }

    /// Returns whether the data is still there.
    ///
    /// For those who are in and take long: if not, someone waits for them to leave.
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }
}

/// Data behind a [`Gate`].
///
/// # Invariants
///
/// `gate.data` points to `_data`.
pub struct Gated<'a, F: ForLt> {
    gate: Arc<Gate<F>>,
    // Dropped by `Drop::drop`'s caller, when the gate is closed and everyone has left.
    _data: Pin<KBox<F::Of<'a>>>,
}

/// Initialises the SRCU domain of a gate.
///
/// Neither generic nor inlined: all gates are of one lock class, in whatever module they are, and
/// lockdep wants its name to be one object, too.
#[inline(never)]
fn gate_srcu() -> impl PinInit<Srcu, Error> {
    new_srcu!("Gate")
}

impl<'a, F: ForLt> Gated<'a, F> {
    /// Puts `data` behind a new gate.
    ///
    /// # Safety
    ///
    /// The returned value must not be leaked, as by [`core::mem::forget`], but dropped before `'a`
    /// ends.
    pub unsafe fn new(data: impl PinInit<F::Of<'a>, Error>) -> Result<Self> {
        let data = KBox::pin_init(data, GFP_KERNEL)?;
        let ptr = NonNull::from(Pin::get_ref(data.as_ref())).cast();

        // INVARIANT: `data` is dropped by the drop of `Gated`, after that has set `open` to false
        // and waited for all critical sections which may not have seen it.
        let gate = Arc::pin_init(
            try_pin_init!(Gate {
                srcu <- gate_srcu(),
                open: Atomic::new(true),
                data: ptr,
            }? Error),
            GFP_KERNEL,
        )?;

        // INVARIANT: As initialised above. `data` is pinned.
        Ok(Self { gate, _data: data })
    }

    /// Returns the gate.
    pub fn gate(&self) -> Arc<Gate<F>> {
        self.gate.clone()
    }
}

impl<F: ForLt> Drop for Gated<'_, F> {
    fn drop(&mut self) {
        self.gate.open.store(false, Relaxed);

        // Whoever enters from now on sees the store; SRCU orders that. Wait for the others.
        self.gate.srcu.synchronize();
    }
}
