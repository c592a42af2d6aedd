// SPDX-License-Identifier: GPL-2.0

//! A pool of BAR windows.
//!
//! Video memory that other devices are to reach has to be visible in a BAR, and the BAR is often
//! smaller than the memory. So a driver maps the memory in chunks and gives each chunk a *window*,
//! a range of bytes in the BAR, while it needs one. Mapping and unmapping is slow: it writes page
//! tables of the GPU and waits for a flush.
//!
//! [`WindowPool`] decides which chunks have a window, and where:
//!
//! - A window that is no longer used stays mapped. It is *idle*, and if the chunk is used again
//!   soon, nothing has to be done. (This is called lazy unmapping elsewhere.)
//! - When there is no room for a new window, idle ones go, those first that were used least
//!   recently.
//! - A window in use is never unmapped or moved. If the room is taken by such windows, there is no
//!   window for the chunk, which is not an error: the memory can be used without.
//! - The BAR may be shared with others who map things there. When they leave no room, idle windows
//!   go as well, and then [`Hardware::make_room`] asks the others. [`WindowPool::reclaim`] gives
//!   them room.
//!
//! Start at [`WindowPool::new`]. [`Hardware`] is what a driver has to supply. For each chunk it
//! asks [`WindowPool::window`] for a [`Window`] once, and [`WindowPool::acquire`] for the right to
//! use it whenever the first page of the chunk comes into use. What it gets is an [`Active`] to be
//! dropped when the last page is free, which can be done in atomic context. In between
//! [`Window::position`] tells where the window is, for the price of a load. [`Occupancy`] does this
//! for chunks whose pages come and go one by one.
//!
//! # Where windows are put
//!
//! Chunks may differ in size. A new window is put at the first place that is free. If there is
//! none, each place is considered that only idle windows are in the way of, and the one is taken
//! where the most recently used of these windows has been idle for the longest time. With chunks of
//! one size this is plain LRU; with different sizes it unmaps no window that need not go, and
//! nothing at all if that would not be enough.
//!
//! Some hardware chooses the place in the BAR itself. Then the places that the pool chooses only
//! limit how much is mapped, and [`Hardware::located`] tells the real ones.
//!
//! # Locks
//!
//! The pool's mutex protects where windows are, and the number of users of a window only ever goes
//! up under it. It goes down, and the time stamp is set, without a lock. So whoever has the mutex
//! and sees a window without users knows that it stays so.

use crate::{
    prelude::*,
    ptr::{
        Alignable,
        Alignment, //
    },
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
        Mutex, //
    }, //
};
use core::ops::Range;

mod occupancy;
pub use self::occupancy::Occupancy;

/// [`Window::position`] of a window that is not mapped.
const UNMAPPED: u64 = u64::MAX;

/// Ticks whenever a window becomes idle. It is common to all pools because only the order matters.
static CLOCK: Atomic<u64> = Atomic::new(1);

/// Where the window of a chunk may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Placement {
    /// The pool chooses.
    Anywhere,
    /// Only here. If that is outside of what the pool manages, the chunk gets no window.
    Fixed(u64),
}

/// What a driver does to map windows.
pub trait Hardware: Send + Sync {
    /// The driver's name of a chunk.
    type Chunk: Send + Sync;

    /// A window that is mapped. It is unmapped by dropping this. May sleep.
    type Mapping: Send;

    /// Restricts where the window of a chunk may be.
    fn placement(&self, chunk: &Self::Chunk) -> Placement {
        let _ = chunk;
        Placement::Anywhere
    }

    /// Maps a chunk of `size` bytes at `position` of the BAR. May sleep.
    ///
    /// When this is called, nothing is mapped there. [`ENOSPC`] means that others who use the BAR
    /// have left no room: the pool then unmaps idle windows, one at a time, and tries again.
    fn map(&self, chunk: &Self::Chunk, position: u64, size: u64) -> Result<Self::Mapping>;

    /// Lets others who use the BAR give something up, because [`map`](Self::map) has found no room
    /// for a chunk and no window is idle any more. Returns whether they did. May sleep.
    fn make_room(&self, chunk: &Self::Chunk) -> bool {
        let _ = chunk;
        false
    }

    /// Returns where in the BAR a mapping is that was asked for at `position`.
    ///
    /// To be implemented for hardware that chooses the place itself.
    fn located(&self, mapping: &Self::Mapping, position: u64) -> u64 {
        let _ = mapping;
        position
    }
}

/// The window of a chunk, mapped or not.
pub struct Window<C> {
    chunk: C,
    size: u64,
    /// Address of the pool, to recognise windows of others. Not used to access it.
    pool: usize,
    position: Atomic<u64>,
    users: Atomic<u32>,
    idle_since: Atomic<u64>,
}

impl<C> Window<C> {
    /// Returns the driver's name of the chunk.
    #[inline]
    pub fn chunk(&self) -> &C {
        &self.chunk
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns where in the BAR the chunk is mapped.
    ///
    /// The answer can be relied on only while there is an [`Active`] for this window: it does not
    /// change then. Can be called in any context.
    #[inline]
    pub fn position(&self) -> Option<u64> {
        match self.position.load(Acquire) {
            UNMAPPED => None,
            position => Some(position),
        }
    }

    fn in_use(&self) -> bool {
        // Pairs with `put()`: what a user did happened before the window is unmapped.
        self.users.load(Acquire) > 0
    }

    /// Takes a user off. Returns false if there was none.
    fn put(&self) -> bool {
        // Before the number goes down, so that whoever sees an idle window sees this as well.
        self.idle_since.store(CLOCK.fetch_add(1, Relaxed), Relaxed);

        let mut users = self.users.load(Relaxed);
        while users > 0 {
            match self.users.cmpxchg(users, users - 1, Release) {
                Ok(_) => return true,
                Err(now) => users = now,
            }
        }
        false
    }
}

/// The right to use a window.
///
/// While this exists, the window is mapped and does not move. It may be dropped in atomic context.
pub struct Active<C> {
    window: Arc<Window<C>>,
    position: u64,
}

impl<C> Active<C> {
    /// Returns where in the BAR the chunk is mapped.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the window.
    #[inline]
    pub fn window(&self) -> &Arc<Window<C>> {
        &self.window
    }
}

impl<C> Drop for Active<C> {
    fn drop(&mut self) {
        crate::warn_on!(!self.window.put());
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

struct Mapped<H: Hardware> {
    window: Arc<Window<H::Chunk>>,
    /// What it takes of the pool's range; `Window::position` is where it really is.
    start: u64,
    end: u64,
    mapping: H::Mapping,
}

impl<H: Hardware> Mapped<H> {
    fn unmap(self) {
        self.window.position.store(UNMAPPED, Release);
        drop(self.mapping);
    }
}

/// # Invariants
///
/// `mapped` is sorted by `start`. Its ranges do not overlap, and are within `range`.
struct State<H: Hardware> {
    range: Range<u64>,
    mapped: KVec<Mapped<H>>,
}

/// A place for a window, and which windows are in the way, as indices in `State::mapped`.
#[derive(Debug, Eq, PartialEq)]
struct Place {
    position: u64,
    obstacles: Range<usize>,
}

impl<H: Hardware> State<H> {
    /// Finds out what it takes to put a window at `position`. `from` is the index of the first
    /// mapped window that may end behind it.
    ///
    /// Returns the place and when the most recently used obstacle became idle, 0 if there is none.
    fn consider(&self, position: u64, size: u64, from: usize) -> Option<(Place, u64)> {
        let end = position.checked_add(size)?;
        if position < self.range.start || end > self.range.end {
            return None;
        }

        let mut recent = 0;
        let mut obstacles = from..from;

        for mapped in &self.mapped[from..] {
            if mapped.start >= end {
                break;
            }
            if mapped.window.in_use() {
                return None;
            }
            recent = recent.max(mapped.window.idle_since.load(Relaxed));
            obstacles.end += 1;
        }

        Some((
            Place {
                position,
                obstacles,
            },
            recent,
        ))
    }

    /// Chooses the place for a window.
    fn place(&self, placement: Placement, size: u64, align: Alignment) -> Option<Place> {
        if let Placement::Fixed(position) = placement {
            let from = self.mapped.partition_point(|m| m.end <= position);
            return self.consider(position, size, from).map(|(place, _)| place);
        }

        // A window can as well be moved down to the end of the window below it. So it is enough to
        // look at these places.
        let mut best: Option<(Place, u64)> = None;

        for below in 0..=self.mapped.len() {
            let position = match below {
                0 => self.range.start,
                _ => self.mapped[below - 1].end,
            };
            let position = position.align_up(align)?;

            // Windows can be behind this one and before the aligned position.
            let mut from = below;
            while self.mapped.get(from).is_some_and(|m| m.end <= position) {
                from += 1;
            }

            if let Some((place, recent)) = self.consider(position, size, from) {
                if recent == 0 {
                    return Some(place);
                }
                if best.as_ref().is_none_or(|(_, before)| recent < *before) {
                    best = Some((place, recent));
                }
            }
        }

        best.map(|(place, _)| place)
    }

    fn unmap(&mut self, which: Range<usize>) {
        for _ in which.clone() {
            if let Ok(mapped) = self.mapped.remove(which.start) {
                mapped.unmap();
            }
        }
    }

    /// Unmaps the idle window that was used least recently. Returns false if there is none.
    fn reclaim(&mut self) -> bool {
        let oldest = self
            .mapped
            .iter()
            .enumerate()
            .filter(|(_, m)| !m.window.in_use())
            .min_by_key(|(_, m)| m.window.idle_since.load(Relaxed))
            .map(|(i, _)| i);

        match oldest {
            Some(i) => {
                self.unmap(i..i + 1);
                true
            }
            None => false,
        }
    }
}

/// Gives chunks of video memory windows in a BAR. See [the module](self).
///
/// # Examples
///
/// ```
/// use kernel::{
///     gpu::window::{
///         Hardware,
///         WindowPool, //
///     },
///     prelude::*,
///     ptr::Alignment,
///     sizes::*, //
/// };
///
/// /// Stands for a GPU that can map any chunk anywhere.
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
///     fn map(&self, _offset: &u64, _position: u64, _size: u64) -> Result<Mapping> {
///         // Write the page table of the BAR.
///         Ok(Mapping)
///     }
/// }
///
/// // The BAR has room for two chunks.
/// let range = 0..SZ_4M as u64;
/// let pool = KBox::pin_init(
///     WindowPool::new(Gpu, range, Alignment::new::<SZ_2M>()),
///     GFP_KERNEL,
/// )?;
/// let chunks = [
///     pool.window(0, SZ_2M as u64)?,
///     pool.window(SZ_2M as u64, SZ_2M as u64)?,
///     pool.window(SZ_4M as u64, SZ_2M as u64)?,
/// ];
///
/// let first = pool.acquire(&chunks[0])?;
/// let second = pool.acquire(&chunks[1])?.ok_or(ENOSPC)?;
/// assert_eq!(second.position(), SZ_2M as u64);
///
/// // Both windows are in use.
/// assert!(pool.acquire(&chunks[2])?.is_none());
///
/// // The second becomes idle, and makes room.
/// drop(second);
/// assert_eq!(chunks[1].position(), Some(SZ_2M as u64));
/// let third = pool.acquire(&chunks[2])?.ok_or(ENOSPC)?;
/// assert_eq!(third.position(), SZ_2M as u64);
/// assert_eq!(chunks[1].position(), None);
/// # drop(first);
/// # Ok::<(), Error>(())
/// ```
#[pin_data(PinnedDrop)]
pub struct WindowPool<H: Hardware> {
    #[pin]
    state: Mutex<State<H>>,
    align: Alignment,
    /// Declared after `state`, whose mappings may need it.
    hw: H,
}

/// Returns the lock class of all pools, and its name.
///
/// Neither generic nor inlined: there is one class, in whatever module a pool is, and lockdep wants
/// its name to be one object, too.
#[inline(never)]
fn lock_class() -> (&'static CStr, Pin<&'static LockClassKey>) {
    (c"WindowPool", static_lock_class!())
}

impl<H: Hardware> WindowPool<H> {
    /// Creates a pool that manages the bytes `range` of a BAR.
    ///
    /// Windows begin at multiples of `align`, except those with a [`Placement::Fixed`].
    pub fn new(hw: H, range: Range<u64>, align: Alignment) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            state <- {
                let (name, key) = lock_class();

                Mutex::new(
                    State {
                        range,
                        mapped: KVec::new(),
                    },
                    name,
                    key,
                )
            },
            align,
            hw,
        })
    }

    /// Returns the hardware that windows are mapped with.
    #[inline]
    pub fn hardware(&self) -> &H {
        &self.hw
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Creates the window for a chunk of `size` bytes. It is not mapped yet.
    pub fn window(&self, chunk: H::Chunk, size: u64) -> Result<Arc<Window<H::Chunk>>> {
        if size == 0 {
            return Err(EINVAL);
        }

        Ok(Arc::new(
            Window {
                chunk,
                size,
                pool: self.address(),
                position: Atomic::new(UNMAPPED),
                users: Atomic::new(0),
                idle_since: Atomic::new(0),
            },
            GFP_KERNEL,
        )?)
    }

    /// Makes sure that a window is mapped, and stays so.
    ///
    /// Returns [`None`] if all the room is taken by windows in use. May sleep.
    pub fn acquire(&self, window: &Arc<Window<H::Chunk>>) -> Result<Option<Active<H::Chunk>>> {
        if window.pool != self.address() {
            return Err(EINVAL);
        }

        let mut state = self.state.lock();

        let position = match window.position() {
            Some(position) => position,
            None => match self.map_somewhere(&mut state, window)? {
                Some(position) => position,
                None => return Ok(None),
            },
        };

        // Only here the number of users goes up: under the mutex, and of a mapped window.
        window.users.add(1, Relaxed);
        Ok(Some(Active {
            window: window.clone(),
            position,
        }))
    }

    fn map_somewhere(
        &self,
        state: &mut State<H>,
        window: &Arc<Window<H::Chunk>>,
    ) -> Result<Option<u64>> {
        loop {
            let placement = self.hw.placement(&window.chunk);
            let Some(place) = state.place(placement, window.size, self.align) else {
                return Ok(None);
            };

            match self.map(state, window, place) {
                // Each turn something is unmapped, so this ends.
                Err(e) if e == ENOSPC => {
                    if !state.reclaim() && !self.hw.make_room(&window.chunk) {
                        return Ok(None);
                    }
                }
                result => return result.map(Some),
            }
        }
    }

    fn map(
        &self,
        state: &mut State<H>,
        window: &Arc<Window<H::Chunk>>,
        place: Place,
    ) -> Result<u64> {
        let Place {
            position,
            obstacles,
        } = place;

        // First what can fail without having changed anything.
        state.mapped.reserve(1, GFP_KERNEL)?;

        let index = obstacles.start;
        state.unmap(obstacles);

        let mapping = self.hw.map(&window.chunk, position, window.size)?;
        let located = self.hw.located(&mapping, position);
        let mapped = Mapped {
            mapping,
            window: window.clone(),
            start: position,
            end: position + window.size,
        };

        // INVARIANT: `index` is that of the first window behind the position, and what was in the
        // way is gone.
        state
            .mapped
            .insert_within_capacity(index, mapped)
            .map_err(|_| ENOMEM)?;
        window.position.store(located, Release);
        Ok(located)
    }

    /// Unmaps the idle window that was used least recently, for others who need room in the BAR.
    ///
    /// Returns false if there is none. May sleep. Not to be called by [`Hardware::map`], nor with
    /// locks held that it takes.
    pub fn reclaim(&self) -> bool {
        self.state.lock().reclaim()
    }

    /// Unmaps a window, if it is mapped. For a chunk that goes away.
    ///
    /// Fails with [`EBUSY`] if the window is in use. May sleep.
    pub fn unmap(&self, window: &Arc<Window<H::Chunk>>) -> Result {
        if window.pool != self.address() {
            return Err(EINVAL);
        }

        let mut state = self.state.lock();

        if window.in_use() {
            return Err(EBUSY);
        }
        if let Some(i) = state
            .mapped
            .iter()
            .position(|m| Arc::ptr_eq(&m.window, window))
        {
            state.unmap(i..i + 1);
        }
        Ok(())
    }

    /// Changes what part of the BAR the pool manages. Unmaps all windows.
    ///
    /// Fails with [`EBUSY`] if a window is in use.
    pub fn set_range(&self, range: Range<u64>) -> Result {
        let mut state = self.state.lock();

        if state.mapped.iter().any(|m| m.window.in_use()) {
            return Err(EBUSY);
        }

        let all = 0..state.mapped.len();
        state.unmap(all);
        // INVARIANT: There are no windows.
        state.range = range;
        Ok(())
    }

    /// Returns what part of the BAR the pool manages.
    pub fn range(&self) -> Range<u64> {
        self.state.lock().range.clone()
    }

    /// Returns how many windows are mapped.
    pub fn usage(&self) -> Usage {
        let state = self.state.lock();
        let used = state.mapped.iter().filter(|m| m.window.in_use()).count();

        Usage {
            used,
            idle: state.mapped.len() - used,
        }
    }
}

#[pinned_drop]
impl<H: Hardware> PinnedDrop for WindowPool<H> {
    fn drop(self: Pin<&mut Self>) {
        let mut state = self.state.lock();
        let all = 0..state.mapped.len();

        // The owner of the pool has to see to it that nobody uses a window any more.
        crate::warn_on!(state.mapped.iter().any(|m| m.window.in_use()));
        state.unmap(all);
    }
}

#[cfg(CONFIG_RUST_WINDOW_KUNIT_TEST)]
mod tests;
