// SPDX-License-Identifier: GPL-2.0

//! A pool of BAR windows.
//!
//! Video memory that other devices are to reach has to be visible in a BAR, and the BAR is often
//! smaller than the memory. So a driver maps the memory in chunks and gives each chunk a *window*,
//! a range of bytes in the BAR, while it needs one. Mapping and unmapping is slow: it writes page
//! tables of the GPU and waits for a flush.
//!
//! [`WindowPool`] decides which chunks have a window. Where in the BAR it is, is up to the driver.
//!
//! - A window that is no longer used stays mapped. It is *idle*, and if the chunk is used again
//!   soon, nothing has to be done. (This is called lazy unmapping elsewhere.)
//! - When there are as many windows as the pool may have, idle ones go, those first that were used
//!   least recently.
//! - A window in use is never unmapped or moved. If all windows are in use, there is none for the
//!   chunk, which is not an error: the memory can be used without.
//! - The BAR may be shared with others who map things there. When they leave no room, idle windows
//!   go as well, and then [`Hardware::make_room`] asks the others. [`WindowPool::reclaim`] gives
//!   them room.
//!
//! Start at [`WindowPool::new`]. [`Hardware`] is what a driver has to supply. For each chunk it
//! creates a [`Window`] once. When pages of the chunk come into use, it calls [`Window::acquire`],
//! and [`Window::release`] when they are free, which can be done in atomic context. In between
//! [`Window::position`] tells where the window is, for the price of a load.
//!
//! # Locks
//!
//! The pool's mutex protects which windows are mapped. The spinlock of a window protects the number
//! of its users, and is taken inside the mutex. The number becomes other than 0 only with the mutex
//! held, and goes down without it, because pages are freed in atomic context. So whoever has the
//! mutex and sees a window without users knows that it stays so.

use crate::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        static_lock_class,
        Arc,
        LockClassKey,
        Mutex,
        SpinLock, //
    }, //
};

/// [`Window::position`] of a chunk that has no window, or no users.
const NOWHERE: u64 = u64::MAX;

/// Ticks whenever a window becomes idle. It is common to all pools because only the order matters.
static CLOCK: Atomic<u64> = Atomic::new(1);

/// What a driver does to map windows.
pub trait Hardware: Send + Sync {
    /// The driver's name of a chunk.
    type Chunk: Send + Sync;

    /// A window that is mapped. It is unmapped by dropping this. May sleep.
    type Mapping: Send;

    /// Maps a chunk, and returns also where in the BAR. May sleep.
    ///
    /// [`ENOSPC`] means that others who use the BAR have left no room: the pool then unmaps idle
    /// windows, one at a time, and tries again. After any other error there is no window.
    fn map(&self, chunk: &Self::Chunk) -> Result<(Self::Mapping, u64)>;

    /// Lets others who use the BAR give something up, because [`map`](Self::map) has found no room
    /// for a chunk and no window is idle any more. Returns whether they did. May sleep.
    fn make_room(&self, chunk: &Self::Chunk) -> bool {
        let _ = chunk;
        false
    }
}

struct Users {
    nr: usize,
    /// When `nr` became 0 for the last time.
    idle_since: u64,
}

/// What the pool and the [`Window`] know of a chunk.
#[pin_data]
struct Seat<C> {
    chunk: C,
    /// The position that users see. It is read without a lock.
    position: Atomic<u64>,
    #[pin]
    users: SpinLock<Users>,
}

/// A chunk that is mapped, until this is dropped.
struct Mapped<H: Hardware> {
    seat: Arc<Seat<H::Chunk>>,
    position: u64,
    _mapping: H::Mapping,
}

/// Gives chunks of video memory windows in a BAR. See [the module](self).
///
/// # Examples
///
/// ```
/// use kernel::{
///     gpu::window::{
///         Hardware,
///         Window,
///         WindowPool, //
///     },
///     prelude::*,
///     sizes::*, //
/// };
///
/// /// Stands for a GPU that has each chunk at its own place in the BAR.
/// struct Gpu;
///
/// struct Mapping;
///
/// impl Drop for Mapping {
///     fn drop(&mut self) {
///         // Clear the page table of the BAR and flush.
///     }
/// }
///
/// impl Hardware for Gpu {
///     type Chunk = u64;
///     type Mapping = Mapping;
///
///     fn map(&self, offset: &u64) -> Result<(Mapping, u64)> {
///         // Write the page table of the BAR.
///         Ok((Mapping, *offset))
///     }
/// }
///
/// // There are never more than two windows.
/// let pool = WindowPool::new(Gpu, 2)?;
/// let chunks = [
///     Window::new(&pool, 0)?,
///     Window::new(&pool, SZ_2M as u64)?,
///     Window::new(&pool, SZ_4M as u64)?,
/// ];
///
/// // One page of the first chunk comes into use, and two of the second.
/// chunks[0].acquire(1);
/// chunks[1].acquire(2);
/// assert_eq!(chunks[1].position(), Some(SZ_2M as u64));
///
/// // Both windows are in use.
/// chunks[2].acquire(1);
/// assert_eq!(chunks[2].position(), None);
/// chunks[2].release(1);
///
/// // The second becomes idle, and makes room.
/// chunks[1].release(1);
/// chunks[1].release(1);
/// chunks[2].acquire(1);
/// assert_eq!(chunks[2].position(), Some(SZ_4M as u64));
/// # chunks[2].release(1);
/// # chunks[0].release(1);
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct WindowPool<H: Hardware> {
    #[pin]
    mapped: Mutex<KVec<Mapped<H>>>,
    max: usize,
    /// Declared after `mapped`, whose mappings may need it.
    hw: H,
}

/// Returns the lock classes of all pools and windows, and their names.
///
/// Neither generic nor inlined: there is one class, in whatever module a pool is, and lockdep wants
/// its name to be one object, too.
#[inline(never)]
fn lock_classes() -> [(&'static CStr, Pin<&'static LockClassKey>); 2] {
    [
        (c"WindowPool::mapped", static_lock_class!()),
        (c"Window::users", static_lock_class!()),
    ]
}

impl<H: Hardware> WindowPool<H> {
    /// Creates a pool of up to `max` windows.
    pub fn new(hw: H, max: usize) -> Result<Arc<Self>> {
        let [(name, key), _] = lock_classes();

        Arc::pin_init(
            pin_init!(Self {
                mapped <- Mutex::new(KVec::new(), name, key),
                max,
                hw,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the hardware that windows are mapped with.
    #[inline]
    pub fn hardware(&self) -> &H {
        &self.hw
    }

    /// Returns where the chunk of `seat` is mapped. Maps it before, if there is room.
    fn map(&self, mapped: &mut KVec<Mapped<H>>, seat: &Arc<Seat<H::Chunk>>) -> Result<u64> {
        if let Some(mapped) = mapped.iter().find(|m| Arc::ptr_eq(&m.seat, seat)) {
            return Ok(mapped.position);
        }

        // First what can fail without having changed anything.
        mapped.reserve(1, GFP_KERNEL)?;
        if mapped.len() >= self.max && !Self::unmap_oldest(mapped) {
            return Err(ENOSPC);
        }

        // Each turn somebody gives something up, so this ends.
        let (mapping, position) = loop {
            match self.hw.map(&seat.chunk) {
                Err(ENOSPC) if Self::unmap_oldest(mapped) || self.hw.make_room(&seat.chunk) => (),
                result => break result?,
            }
        };

        let new = Mapped {
            seat: seat.clone(),
            position,
            _mapping: mapping,
        };
        mapped.push_within_capacity(new).map_err(|_| ENOMEM)?;
        Ok(position)
    }

    /// Unmaps the idle window that was used least recently. Returns false if there is none.
    fn unmap_oldest(mapped: &mut KVec<Mapped<H>>) -> bool {
        let idle = mapped.iter().enumerate().filter_map(|(i, m)| {
            let users = m.seat.users.lock();

            (users.nr == 0).then_some((users.idle_since, i))
        });

        // It stays idle: the caller has the mutex, which `mapped` is protected by.
        match idle.min() {
            Some((_, i)) => mapped.remove(i).is_ok(),
            None => false,
        }
    }

    /// Unmaps the idle window that was used least recently, for others who need room in the BAR.
    ///
    /// Returns false if there is none. May sleep. Not to be called by [`Hardware`], nor with locks
    /// held that it takes.
    pub fn reclaim(&self) -> bool {
        Self::unmap_oldest(&mut self.mapped.lock())
    }

    /// Returns how many windows are mapped.
    pub fn usage(&self) -> Usage {
        let mapped = self.mapped.lock();
        let used = mapped.iter().filter(|m| m.seat.users.lock().nr > 0);
        let used = used.count();

        Usage {
            used,
            idle: mapped.len() - used,
        }
    }
}

/// How many windows are mapped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Windows that somebody uses.
    pub used: usize,
    /// Windows that are mapped though nobody uses them.
    pub idle: usize,
}

/// The window of a chunk, mapped or not.
///
/// Its users are pages of the chunk, which come into use and are freed one by one. The first user
/// decides whether the chunk has a window, and that is kept until the last one has left. It matters
/// in both directions:
///
/// - A chunk with a window keeps it while anyone is there, whether he came first or last.
/// - A chunk that got none remains without, even if there is room for one later. Otherwise a window
///   would appear for a user that has already seen that there is none.
///
/// When this is dropped, the window is unmapped, which may sleep. There must be no users left.
pub struct Window<H: Hardware> {
    pool: Arc<WindowPool<H>>,
    seat: Arc<Seat<H::Chunk>>,
}

impl<H: Hardware> Window<H> {
    /// Creates the window of a chunk. It is not mapped yet.
    pub fn new(pool: &Arc<WindowPool<H>>, chunk: H::Chunk) -> Result<Self> {
        let [_, (name, key)] = lock_classes();
        let users = Users {
            nr: 0,
            idle_since: 0,
        };

        Ok(Self {
            pool: pool.clone(),
            seat: Arc::pin_init(
                pin_init!(Seat {
                    chunk,
                    position: Atomic::new(NOWHERE),
                    users <- SpinLock::new(users, name, key),
                }),
                GFP_KERNEL,
            )?,
        })
    }

    /// Returns where in the BAR the chunk is, or [`None`] if nobody uses it or it has no window.
    ///
    /// Does not change while there is a user. Can be called in any context.
    #[inline]
    pub fn position(&self) -> Option<u64> {
        match self.seat.position.load(Acquire) {
            NOWHERE => None,
            position => Some(position),
        }
    }

    /// Adds `nr` users, at least one. If they are the first, maps the window if there is room.
    ///
    /// May sleep.
    pub fn acquire(&self, nr: usize) {
        if self.acquire_again(nr) {
            return;
        }

        let mut mapped = self.pool.mapped.lock();
        if self.acquire_again(nr) {
            return;
        }

        // Nobody is there, and nobody can come because of the mutex. After an error there is no
        // window, for whatever reason.
        let position = self.pool.map(&mut mapped, &self.seat).unwrap_or(NOWHERE);

        let mut users = self.seat.users.lock();
        self.seat.position.store(position, Release);
        users.nr = nr;
    }

    /// Adds `nr` users, at least one, to those that are there already. Returns false if there are
    /// none.
    ///
    /// Can be called in atomic context.
    pub fn acquire_again(&self, nr: usize) -> bool {
        let mut users = self.seat.users.lock();

        if users.nr == 0 {
            return false;
        }
        users.nr += nr;
        true
    }

    /// Takes `nr` users off, at least one. Returns false, and takes none off, if there are not as
    /// many.
    ///
    /// When the last one leaves, the window becomes idle. Can be called in atomic context.
    pub fn release(&self, nr: usize) -> bool {
        let mut users = self.seat.users.lock();

        let Some(left) = users.nr.checked_sub(nr) else {
            return false;
        };
        users.nr = left;
        if left == 0 {
            users.idle_since = CLOCK.fetch_add(1, Relaxed);
            // Still under the lock, so that the next first user does not see this.
            self.seat.position.store(NOWHERE, Release);
        }
        true
    }
}

impl<H: Hardware> Drop for Window<H> {
    fn drop(&mut self) {
        let mut mapped = self.pool.mapped.lock();

        // If somebody uses the chunk, that is a bug, but it goes away and must not stay visible.
        crate::warn_on!(self.seat.users.lock().nr > 0);
        mapped.retain(|m| !Arc::ptr_eq(&m.seat, &self.seat));
    }
}

#[cfg(CONFIG_RUST_WINDOW_KUNIT_TEST)]
mod tests;
