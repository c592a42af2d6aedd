// SPDX-License-Identifier: GPL-2.0

//! Who uses a chunk, and whether it has a window for that.

use super::{
    Active,
    Hardware,
    Window,
    WindowPool,
    UNMAPPED, //
};
use crate::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        static_lock_class,
        Arc,
        LockClassKey,
        Mutex,
        SpinLock, //
    }, //
};

struct State<C> {
    users: usize,
    active: Option<Active<C>>,
}

/// A chunk whose pages come into use and are freed one by one.
///
/// The first user decides whether the chunk has a window, and that is kept until the last one has
/// left. It matters in both directions:
///
/// - A chunk with a window keeps it while anyone is there, whether he came first or last.
/// - A chunk that got none remains without, even if there would be room for one later. Someone who
///   was told that there is no window would otherwise see it come, and would not be known to the
///   window as a user when it goes again.
///
/// So the answer of [`Occupancy::position`] is the same for as long as a user is there.
///
/// # Examples
///
/// ```
/// # use kernel::{
/// #     gpu::window::{Hardware, Occupancy, WindowPool},
/// #     prelude::*,
/// #     ptr::Alignment,
/// #     sizes::*,
/// # };
/// # struct Gpu;
/// #
/// # impl Hardware for Gpu {
/// #     type Chunk = u64;
/// #     type Mapping = ();
/// #
/// #     fn map(&self, _offset: &u64, _position: u64, _size: u64) -> Result {
/// #         Ok(())
/// #     }
/// # }
/// let size = SZ_2M as u64;
/// let pool = KBox::pin_init(
///     WindowPool::new(Gpu, 0..size, Alignment::new::<SZ_2M>()),
///     GFP_KERNEL,
/// )?;
/// let chunk = KBox::pin_init(Occupancy::new(pool.window(0, size)?), GFP_KERNEL)?;
///
/// // Two pages come into use, and are freed.
/// chunk.enter(&pool);
/// chunk.enter(&pool);
/// assert_eq!(chunk.position(), Some(0));
/// chunk.leave();
/// assert_eq!(chunk.position(), Some(0));
/// chunk.leave();
/// assert_eq!(chunk.position(), None);
/// # Ok::<(), Error>(())
/// ```
///
/// # Locks
///
/// `first` makes whoever comes next wait until the first user has a window or knows that there is
/// none. It is taken before the pool's mutex. Everything else happens under `state`, a spin lock,
/// because pages are freed, and folios split, in atomic context.
#[pin_data]
pub struct Occupancy<C> {
    window: Arc<Window<C>>,
    /// A copy of the position of `State::active`, to be read without a lock.
    position: Atomic<u64>,
    #[pin]
    first: Mutex<()>,
    #[pin]
    state: SpinLock<State<C>>,
}

/// Returns the lock classes, as [`super::lock_class`] does.
#[inline(never)]
fn lock_classes() -> [(&'static CStr, Pin<&'static LockClassKey>); 2] {
    [
        (c"Occupancy::first", static_lock_class!()),
        (c"Occupancy::state", static_lock_class!()),
    ]
}

impl<C> Occupancy<C> {
    /// Creates the state of a chunk that nobody uses yet.
    pub fn new(window: Arc<Window<C>>) -> impl PinInit<Self> {
        let [first, state] = lock_classes();

        pin_init!(Self {
            window,
            position: Atomic::new(UNMAPPED),
            first <- Mutex::new((), first.0, first.1),
            state <- SpinLock::new(
                State {
                    users: 0,
                    active: None,
                },
                state.0,
                state.1,
            ),
        })
    }

    /// Returns the window. It may be mapped or not.
    #[inline]
    pub fn window(&self) -> &Arc<Window<C>> {
        &self.window
    }

    /// Returns where in the BAR the chunk is, or [`None`] if nobody uses it or it has no window.
    ///
    /// Does not change while there is a user. Can be called in any context.
    #[inline]
    pub fn position(&self) -> Option<u64> {
        match self.position.load(Acquire) {
            UNMAPPED => None,
            position => Some(position),
        }
    }

    /// Adds a user. The first one gets a window from `pool`, if there is room.
    ///
    /// May sleep.
    pub fn enter<H: Hardware<Chunk = C>>(&self, pool: &WindowPool<H>) {
        if self.enter_again() {
            return;
        }

        let _first = self.first.lock();
        if self.enter_again() {
            return;
        }

        // Nobody is there, and nobody can come because of `first`. Without memory to keep track of
        // a window, there is none.
        let active = pool.acquire(&self.window).unwrap_or(None);

        let mut state = self.state.lock();
        if let Some(active) = &active {
            self.position.store(active.position(), Release);
        }
        state.active = active;
        state.users = 1;
    }

    /// Adds a user to those that are there already. Returns false if there are none.
    ///
    /// Can be called in atomic context.
    pub fn enter_again(&self) -> bool {
        let mut state = self.state.lock();

        if state.users == 0 {
            return false;
        }
        state.users += 1;
        true
    }

    /// Takes a user off. Returns false if there was none.
    ///
    /// When the last one leaves, the window becomes idle. Can be called in atomic context.
    pub fn leave(&self) -> bool {
        let mut state = self.state.lock();

        match state.users {
            0 => return false,
            1 => self.position.store(UNMAPPED, Release),
            _ => (),
        }
        state.users -= 1;

        // Still under the lock, so that the next first user finds the window idle.
        if state.users == 0 {
            state.active = None;
        }
        true
    }

    /// Takes all users off, and returns how many there were.
    ///
    /// For the end, when nothing is left that could be in use.
    pub fn clear(&self) -> usize {
        let mut state = self.state.lock();

        self.position.store(UNMAPPED, Release);
        state.active = None;
        core::mem::take(&mut state.users)
    }
}

#[cfg(CONFIG_RUST_WINDOW_KUNIT_TEST)]
mod tests;
