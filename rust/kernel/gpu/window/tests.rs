// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the BAR window pool.
//!
//! The hardware is a list of what is mapped, which complains about an overlap. The long runs
//! compare the pool with a model that is so simple that it can be seen to be right.

use super::*;
use crate::new_mutex;
use crate::{
    alloc::KVec,
    sizes::*, //
};

mod shared;

pub(super) const MIB: u64 = SZ_1M as u64;
const GIB: u64 = SZ_1G as u64;
pub(super) const CHUNK: u64 = 2 * MIB;

/// What is mapped in the BAR.
#[pin_data]
pub(super) struct Bar {
    #[pin]
    pub(super) mapped: Mutex<KVec<(u64, u64)>>,
    /// Mappings made so far.
    pub(super) maps: Atomic<u32>,
    /// Whether to refuse the next mapping.
    fail: Atomic<u32>,
    /// Set when something was mapped over something else.
    pub(super) overlap: Atomic<u32>,
    /// How many mappings others leave room for.
    pub(super) room: Atomic<u32>,
    /// How many mappings more they leave room for when they are asked to, one at a time.
    pub(super) spare: Atomic<u32>,
    /// Added to positions, as by hardware that chooses them itself.
    pub(super) skew: Atomic<u64>,
}

impl Bar {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init::pin_init!(Bar {
                mapped <- new_mutex!(KVec::new()),
                maps: Atomic::new(0),
                fail: Atomic::new(0),
                overlap: Atomic::new(0),
                room: Atomic::new(u32::MAX),
                spare: Atomic::new(0),
                skew: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

pub(super) struct Mock {
    bar: Arc<Bar>,
}

pub(super) struct MockMapping {
    bar: Arc<Bar>,
    position: u64,
}

impl Drop for MockMapping {
    fn drop(&mut self) {
        self.bar
            .mapped
            .lock()
            .retain(|(position, _)| *position != self.position);
    }
}

impl Hardware for Mock {
    type Chunk = Placement;
    type Mapping = MockMapping;

    fn placement(&self, chunk: &Placement) -> Placement {
        *chunk
    }

    fn map(&self, _chunk: &Placement, position: u64, size: u64) -> Result<MockMapping> {
        if self.bar.fail.xchg(0, Relaxed) != 0 {
            return Err(EIO);
        }

        let mut mapped = self.bar.mapped.lock();
        if mapped.len() >= self.bar.room.load(Relaxed) as usize {
            return Err(ENOSPC);
        }
        if mapped
            .iter()
            .any(|(p, s)| *p < position + size && position < *p + *s)
        {
            self.bar.overlap.store(1, Relaxed);
        }
        mapped.push((position, size), GFP_KERNEL)?;
        self.bar.maps.add(1, Relaxed);
        Ok(MockMapping {
            bar: self.bar.clone(),
            position,
        })
    }

    fn make_room(&self, _chunk: &Placement) -> bool {
        let spare = self.bar.spare.load(Relaxed);

        if spare > 0 {
            self.bar.spare.store(spare - 1, Relaxed);
            self.bar.room.add(1, Relaxed);
        }
        spare > 0
    }

    fn located(&self, _mapping: &MockMapping, position: u64) -> u64 {
        position + self.bar.skew.load(Relaxed)
    }
}

pub(super) type Pool = Pin<KBox<WindowPool<Mock>>>;
type Seat = Arc<Window<Placement>>;

pub(super) fn pool(range: Range<u64>) -> Result<(Pool, Arc<Bar>)> {
    let bar = Bar::new()?;
    let hw = Mock { bar: bar.clone() };
    let pool = KBox::pin_init(
        WindowPool::new(hw, range, Alignment::new::<SZ_2M>()),
        GFP_KERNEL,
    )?;

    Ok((pool, bar))
}

pub(super) fn windows(pool: &Pool, nr: usize, size: u64) -> Result<KVec<Seat>> {
    let mut all = KVec::with_capacity(nr, GFP_KERNEL)?;

    for _ in 0..nr {
        all.push(pool.window(Placement::Anywhere, size)?, GFP_KERNEL)?;
    }
    Ok(all)
}

/// A pseudo-random sequence that is the same in each run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(limit).unwrap_or(0)
    }
}

/// A model for chunks of one size: who is mapped, in the order of last use, and how often in use.
struct Model {
    /// Window and number of users. Idle ones are in the order in which they became idle.
    mapped: KVec<(usize, u32)>,
    room: usize,
}

impl Model {
    fn find(&self, window: usize) -> Option<usize> {
        self.mapped.iter().position(|(w, _)| *w == window)
    }

    /// Returns whether there is a window.
    fn acquire(&mut self, window: usize) -> Result<bool> {
        if let Some(i) = self.find(window) {
            self.mapped[i].1 += 1;
            return Ok(true);
        }
        if self.mapped.len() >= self.room {
            match self.mapped.iter().position(|(_, users)| *users == 0) {
                Some(i) => drop(self.mapped.remove(i)),
                None => return Ok(false),
            }
        }
        self.mapped.push((window, 1), GFP_KERNEL)?;
        Ok(true)
    }

    fn release(&mut self, window: usize) -> Result {
        let i = self.find(window).ok_or(EINVAL)?;

        // The one that was used last is at the end.
        if let Ok((window, users)) = self.mapped.remove(i) {
            self.mapped.push((window, users - 1), GFP_KERNEL)?;
        }
        Ok(())
    }
}

/// Chunks of one size, one and a half times as many as the BAR has room for.
fn run_uniform(bar_size: u64, chunk: u64, steps: usize, seed: u64) -> Result {
    let (pool, bar) = pool(0..bar_size)?;
    let room = (bar_size / chunk) as usize;
    let nr = room + room / 2;
    let windows = windows(&pool, nr, chunk)?;
    let mut held: KVec<(usize, Active<Placement>)> = KVec::new();
    let mut model = Model {
        mapped: KVec::new(),
        room,
    };
    let mut random = Random(seed);

    for _ in 0..steps {
        // Slightly more is acquired than released, so that the BAR fills up with windows in use;
        // then everything is released, now and then.
        match random.below(100) {
            0..53 => {
                let w = random.below(nr as u64) as usize;
                let active = pool.acquire(&windows[w])?;

                assert_eq!(active.is_some(), model.acquire(w)?);
                if let Some(active) = active {
                    assert_eq!(windows[w].position(), Some(active.position()));
                    held.push((w, active), GFP_KERNEL)?;
                }
            }
            53..99 if !held.is_empty() => {
                let i = random.below(held.len() as u64) as usize;

                if let Ok((w, active)) = held.remove(i) {
                    assert_eq!(windows[w].position(), Some(active.position()));
                    drop(active);
                    model.release(w)?;
                }
            }
            99 if random.below(20) == 0 => {
                while let Some((w, active)) = held.pop() {
                    drop(active);
                    model.release(w)?;
                }
            }
            _ => (),
        }
    }

    for (w, window) in windows.iter().enumerate() {
        assert_eq!(window.position().is_some(), model.find(w).is_some());
    }
    for (_, active) in held.iter() {
        assert_eq!(active.window().position(), Some(active.position()));
    }
    assert_eq!(bar.overlap.load(Relaxed), 0);
    assert_eq!(bar.mapped.lock().len(), model.mapped.len());

    drop(held);
    drop(pool);
    assert!(bar.mapped.lock().is_empty());
    Ok(())
}

/// Whether `size` bytes fit somewhere between the windows in use.
fn fits(held: &[Active<Placement>], bar_size: u64, size: u64) -> bool {
    (0..bar_size / CHUNK)
        .map(|i| i * CHUNK)
        .take_while(|position| position + size <= bar_size)
        .any(|position| {
            held.iter().all(|active| {
                let start = active.position();

                start >= position + size || start + active.window().size() <= position
            })
        })
}

/// Chunks of 2 to 16 MiB.
fn run_mixed(bar_size: u64, nr: usize, steps: usize, seed: u64) -> Result {
    let (pool, bar) = pool(0..bar_size)?;
    let mut random = Random(seed);
    let mut windows = KVec::with_capacity(nr, GFP_KERNEL)?;
    let mut held: KVec<Active<Placement>> = KVec::new();

    for _ in 0..nr {
        let size = CHUNK << random.below(4);
        windows.push(pool.window(Placement::Anywhere, size)?, GFP_KERNEL)?;
    }

    for _ in 0..steps {
        if random.below(100) < 52 {
            let window = &windows[random.below(nr as u64) as usize];
            let before = window.position();

            match pool.acquire(window)? {
                Some(active) => {
                    // An idle window is found again where it was.
                    assert!(before.is_none_or(|position| position == active.position()));
                    assert_eq!(active.position() % CHUNK, 0);
                    assert!(active.position() + window.size() <= bar_size);
                    held.push(active, GFP_KERNEL)?;
                }
                None => {
                    assert!(before.is_none());
                    assert!(!fits(&held, bar_size, window.size()));
                }
            }
        } else if !held.is_empty() {
            let _ = held.remove(random.below(held.len() as u64) as usize);
        }

        for active in held.iter() {
            assert_eq!(active.window().position(), Some(active.position()));
        }
    }

    assert_eq!(bar.overlap.load(Relaxed), 0);
    Ok(())
}

#[macros::kunit_tests(rust_gpu_window)]
mod suite {
    use super::*;

    #[test]
    fn exhaustion() -> Result {
        let (pool, bar) = pool(0..32 * MIB)?;
        let windows = windows(&pool, 17, CHUNK)?;
        let mut held = KVec::new();

        for window in &windows[..16] {
            held.push(pool.acquire(window)?.ok_or(ENOSPC)?, GFP_KERNEL)?;
        }
        assert!(pool.acquire(&windows[16])?.is_none());
        assert_eq!(windows[16].position(), None);
        assert_eq!(pool.usage(), Usage { used: 16, idle: 0 });
        assert_eq!(bar.maps.load(Relaxed), 16);

        // Another user of a window that is in use always gets it.
        let again = pool.acquire(&windows[3])?.ok_or(ENOSPC)?;
        assert_eq!(again.position(), held[3].position());

        let _ = held.remove(7);
        assert!(pool.acquire(&windows[16])?.is_some());
        Ok(())
    }

    #[test]
    fn idle_window_is_reused() -> Result {
        let (pool, bar) = pool(0..32 * MIB)?;
        let windows = windows(&pool, 2, CHUNK)?;

        let position = pool.acquire(&windows[0])?.ok_or(ENOSPC)?.position();
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });
        let other = pool.acquire(&windows[1])?.ok_or(ENOSPC)?;
        assert_ne!(other.position(), position);

        let again = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        assert_eq!(again.position(), position);
        assert_eq!(bar.maps.load(Relaxed), 2);
        assert_eq!(pool.usage(), Usage { used: 2, idle: 0 });
        Ok(())
    }

    #[test]
    fn least_recently_used_goes_first() -> Result {
        let (pool, _bar) = pool(0..4 * CHUNK)?;
        let windows = windows(&pool, 6, CHUNK)?;
        let mut held = KVec::new();

        for window in &windows[..4] {
            held.push(pool.acquire(window)?, GFP_KERNEL)?;
        }
        // They become idle in the order 2, 0, 3, 1.
        for i in [2, 0, 3, 1] {
            held[i] = None;
        }

        let first = pool.acquire(&windows[4])?.ok_or(ENOSPC)?;
        assert_eq!(windows[2].position(), None);
        assert_eq!(first.position(), 2 * CHUNK);

        // Use makes 0 the most recent one.
        drop(pool.acquire(&windows[0])?);
        let second = pool.acquire(&windows[5])?.ok_or(ENOSPC)?;
        assert_eq!(windows[3].position(), None);
        assert_eq!(second.position(), 3 * CHUNK);
        assert_eq!(windows[0].position(), Some(0));
        assert_eq!(windows[1].position(), Some(CHUNK));
        Ok(())
    }

    #[test]
    fn window_in_use_stays() -> Result {
        let (pool, _bar) = pool(0..2 * CHUNK)?;
        let windows = windows(&pool, 4, CHUNK)?;

        let kept = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        for window in &windows[1..] {
            let active = pool.acquire(window)?.ok_or(ENOSPC)?;
            assert_eq!(active.position(), CHUNK);
            assert_eq!(windows[0].position(), Some(kept.position()));
        }

        // Two users: one is enough to keep it.
        let second = pool.acquire(&windows[0])?;
        drop(kept);
        drop(pool.acquire(&windows[1])?);
        drop(pool.acquire(&windows[2])?);
        assert_eq!(windows[0].position(), Some(0));
        drop(second);
        drop(pool.acquire(&windows[1])?);
        drop(pool.acquire(&windows[3])?);
        assert_eq!(windows[0].position(), None);
        Ok(())
    }

    #[test]
    fn large_window_takes_the_oldest_place() -> Result {
        let (pool, bar) = pool(0..6 * CHUNK)?;
        let small = windows(&pool, 6, CHUNK)?;
        let large = pool.window(Placement::Anywhere, 2 * CHUNK)?;
        let mut held = KVec::new();

        for window in &small {
            held.push(pool.acquire(window)?, GFP_KERNEL)?;
        }
        // 2 stays in use. The oldest window, 1, has a neighbour that is recent; 3 and 4 are both
        // older than that.
        for i in [1, 3, 4, 0, 5] {
            held[i] = None;
        }

        let active = pool.acquire(&large)?.ok_or(ENOSPC)?;
        assert_eq!(active.position(), 3 * CHUNK);
        assert_eq!(small[1].position(), Some(CHUNK));

        // Nothing is unmapped for a window that does not fit anyway.
        let huge = pool.window(Placement::Anywhere, 3 * CHUNK)?;
        assert!(pool.acquire(&huge)?.is_none());
        assert_eq!(small[0].position(), Some(0));
        assert_eq!(small[5].position(), Some(5 * CHUNK));
        assert_eq!(bar.overlap.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn window_before_the_place_stays() -> Result {
        let (pool, _bar) = pool(0..2 * CHUNK)?;
        let first = pool.window(Placement::Fixed(0), CHUNK / 2)?;
        let between = pool.window(Placement::Fixed(CHUNK / 2), CHUNK / 4)?;
        let obstacle = pool.window(Placement::Fixed(CHUNK), CHUNK)?;
        let window = pool.window(Placement::Anywhere, CHUNK)?;

        let _held = pool.acquire(&first)?.ok_or(ENOSPC)?;
        // The most recent obstacle counts: to take the other one as well makes no difference to it.
        drop(pool.acquire(&between)?.ok_or(ENOSPC)?);
        drop(pool.acquire(&obstacle)?.ok_or(ENOSPC)?);
        let active = pool.acquire(&window)?.ok_or(ENOSPC)?;
        assert_eq!(active.position(), CHUNK);
        assert_eq!(between.position(), Some(CHUNK / 2));
        assert_eq!(obstacle.position(), None);
        Ok(())
    }

    #[test]
    fn double_release_is_refused() -> Result {
        let (pool, _bar) = pool(0..CHUNK)?;
        let windows = windows(&pool, 2, CHUNK)?;

        let active = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        let second = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        drop(active);
        // `second` still has it.
        assert!(pool.acquire(&windows[1])?.is_none());
        drop(second);

        // Nobody has it: one release too many changes nothing, and the pool goes on.
        assert!(!windows[0].put());
        assert!(!windows[0].in_use());
        let active = pool.acquire(&windows[1])?.ok_or(ENOSPC)?;
        assert!(pool.acquire(&windows[0])?.is_none());
        drop(active);
        assert!(pool.acquire(&windows[0])?.is_some());
        Ok(())
    }

    #[test]
    fn fixed_placement() -> Result {
        // Only chunks 4 to 7 are visible.
        let (pool, bar) = pool(4 * CHUNK..8 * CHUNK)?;
        let inside = pool.window(Placement::Fixed(5 * CHUNK), CHUNK)?;
        let below = pool.window(Placement::Fixed(3 * CHUNK), CHUNK)?;
        let above = pool.window(Placement::Fixed(8 * CHUNK), CHUNK)?;
        let across = pool.window(Placement::Fixed(7 * CHUNK), 2 * CHUNK)?;
        let endless = pool.window(Placement::Fixed(u64::MAX - CHUNK), 2 * CHUNK)?;
        let anywhere = pool.window(Placement::Anywhere, 2 * CHUNK)?;

        for outside in [&below, &above, &across, &endless] {
            assert!(pool.acquire(outside)?.is_none());
        }
        let active = pool.acquire(&inside)?.ok_or(ENOSPC)?;
        assert_eq!(active.position(), 5 * CHUNK);

        // The place is taken, until that window is idle.
        let same = pool.window(Placement::Fixed(5 * CHUNK), CHUNK)?;
        assert!(pool.acquire(&same)?.is_none());
        assert_eq!(
            pool.acquire(&anywhere)?.ok_or(ENOSPC)?.position(),
            6 * CHUNK
        );
        drop(active);
        let active = pool.acquire(&same)?.ok_or(ENOSPC)?;
        assert_eq!(active.position(), 5 * CHUNK);
        assert_eq!(inside.position(), None);
        assert_eq!(bar.overlap.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn range_changes_only_when_idle() -> Result {
        let (pool, bar) = pool(0..4 * CHUNK)?;
        let window = pool.window(Placement::Fixed(2 * CHUNK), CHUNK)?;

        let active = pool.acquire(&window)?;
        assert!(active.is_some());
        assert_eq!(pool.set_range(0..0), Err(EBUSY));
        drop(active);

        pool.set_range(0..2 * CHUNK)?;
        assert!(bar.mapped.lock().is_empty());
        assert_eq!(window.position(), None);
        assert!(pool.acquire(&window)?.is_none());

        pool.set_range(2 * CHUNK..4 * CHUNK)?;
        assert!(pool.acquire(&window)?.is_some());

        // Nothing fits into an empty range.
        pool.set_range(0..0)?;
        let anywhere = pool.window(Placement::Anywhere, CHUNK)?;
        assert!(pool.acquire(&anywhere)?.is_none());
        Ok(())
    }

    /// The range begins and ends between two aligned positions.
    #[test]
    fn windows_are_aligned() -> Result {
        let (pool, _bar) = pool(CHUNK / 2..3 * CHUNK + CHUNK / 2)?;
        let windows = windows(&pool, 3, CHUNK)?;

        let first = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        let second = pool.acquire(&windows[1])?.ok_or(ENOSPC)?;
        assert_eq!(first.position(), CHUNK);
        assert_eq!(second.position(), 2 * CHUNK);
        assert!(pool.acquire(&windows[2])?.is_none());
        Ok(())
    }

    #[test]
    fn failed_mapping_leaves_no_window() -> Result {
        let (pool, bar) = pool(0..CHUNK)?;
        let windows = windows(&pool, 2, CHUNK)?;

        drop(pool.acquire(&windows[0])?);
        bar.fail.store(1, Relaxed);
        assert!(pool.acquire(&windows[1]).is_err());
        assert_eq!(windows[1].position(), None);
        assert_eq!(pool.usage(), Usage::default());
        assert!(pool.acquire(&windows[1])?.is_some());
        Ok(())
    }

    #[test]
    fn foreign_window_is_refused() -> Result {
        let (one, _bar) = pool(0..CHUNK)?;
        let (other, _bar) = pool(0..CHUNK)?;
        let window = one.window(Placement::Anywhere, CHUNK)?;

        assert!(matches!(other.acquire(&window), Err(e) if e == EINVAL));
        assert!(matches!(one.window(Placement::Anywhere, 0), Err(e) if e == EINVAL));
        Ok(())
    }

    #[test]
    fn uniform_32_mib() -> Result {
        run_uniform(32 * MIB, CHUNK, 50_000, 0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn uniform_256_mib() -> Result {
        run_uniform(256 * MIB, CHUNK, 20_000, 0xd1b5_4a32_d192_ed03)
    }

    #[test]
    fn uniform_16_gib() -> Result {
        // Room for 1024 windows, so that there are enough steps to fill it many times.
        run_uniform(16 * GIB, 16 * MIB, 20_000, 0x2545_f491_4f6c_dd1d)
    }

    #[test]
    fn mixed_32_mib() -> Result {
        run_mixed(32 * MIB, 24, 20_000, 0x8538_ecb5_bd45_6ea3)
    }

    #[test]
    fn mixed_256_mib() -> Result {
        run_mixed(256 * MIB, 120, 10_000, 0xff51_afd7_ed55_8ccd)
    }
}
