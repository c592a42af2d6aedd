// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the BAR window pool.
//!
//! The hardware is a list of what is mapped. The long runs compare the pool with a model that is so
//! simple that it can be seen to be right.

use super::*;
use crate::new_mutex;

/// What is mapped in the BAR.
#[pin_data]
struct Bar {
    /// Chunks.
    #[pin]
    mapped: Mutex<KVec<usize>>,
    /// Mappings made so far.
    maps: Atomic<u32>,
    /// Whether to refuse the next mapping.
    fail: Atomic<bool>,
    /// How many mappings others leave room for.
    room: Atomic<usize>,
    /// How many mappings more they leave room for when they are asked to, one at a time.
    spare: Atomic<usize>,
}

impl Bar {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init::pin_init!(Bar {
                mapped <- new_mutex!(KVec::new()),
                maps: Atomic::new(0),
                fail: Atomic::new(false),
                room: Atomic::new(usize::MAX),
                spare: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    fn is_mapped(&self, chunk: usize) -> bool {
        self.mapped.lock().contains(&chunk)
    }
}

struct Mock(Arc<Bar>);

struct MockMapping {
    bar: Arc<Bar>,
    chunk: usize,
}

impl Drop for MockMapping {
    fn drop(&mut self) {
        self.bar.mapped.lock().retain(|chunk| *chunk != self.chunk);
    }
}

impl Hardware for Mock {
    type Chunk = usize;
    type Mapping = MockMapping;

    fn map(&self, chunk: &usize) -> Result<(MockMapping, u64)> {
        let bar = &self.0;

        if bar.fail.xchg(false, Relaxed) {
            return Err(EIO);
        }

        let mut mapped = bar.mapped.lock();
        if mapped.len() >= bar.room.load(Relaxed) {
            return Err(ENOSPC);
        }
        // A chunk is mapped only once.
        assert!(!mapped.contains(chunk));
        mapped.push(*chunk, GFP_KERNEL)?;
        bar.maps.add(1, Relaxed);

        let mapping = MockMapping {
            bar: bar.clone(),
            chunk: *chunk,
        };
        Ok((mapping, position(*chunk)))
    }

    fn make_room(&self, _chunk: &usize) -> bool {
        let spare = self.0.spare.load(Relaxed);

        if spare > 0 {
            self.0.spare.store(spare - 1, Relaxed);
            self.0.room.add(1, Relaxed);
        }
        spare > 0
    }
}

/// Where a chunk is.
fn position(chunk: usize) -> u64 {
    chunk as u64 * 4096
}

type Pool = Arc<WindowPool<Mock>>;
type Windows = KVec<Window<Mock>>;

/// Creates a pool of up to `max` windows, for `nr` chunks.
fn pool(max: usize, nr: usize) -> Result<(Pool, Windows, Arc<Bar>)> {
    let bar = Bar::new()?;
    let pool = WindowPool::new(Mock(bar.clone()), max)?;
    let mut windows = KVec::with_capacity(nr, GFP_KERNEL)?;

    for chunk in 0..nr {
        windows.push(Window::new(&pool, chunk)?, GFP_KERNEL)?;
    }
    Ok((pool, windows, bar))
}

/// A pseudo-random sequence that is the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // A remainder of 64 bits does not link on 32-bit ARM.
        (self.0 as usize).checked_rem(limit).unwrap_or(0)
    }
}

/// Who is mapped, in the order of last use, and who uses what.
struct Model {
    /// Chunks. Idle ones are in the order in which they became idle.
    mapped: KVec<usize>,
    /// Number of users of each chunk, and whether they have a window.
    users: KVec<(usize, bool)>,
}

impl Model {
    fn find(&self, chunk: usize) -> Option<usize> {
        self.mapped.iter().position(|c| *c == chunk)
    }

    /// Forgets the idle window that was used least recently. Returns false if there is none.
    fn forget_oldest(&mut self) -> bool {
        let users = &self.users;

        match self.mapped.iter().position(|c| users[*c].0 == 0) {
            Some(i) => self.mapped.remove(i).is_ok(),
            None => false,
        }
    }

    fn acquire(&mut self, chunk: usize, nr: usize, room: usize) -> Result {
        if self.users[chunk].0 > 0 {
            self.users[chunk].0 += nr;
            return Ok(());
        }
        if self.find(chunk).is_none() {
            while self.mapped.len() >= room && self.forget_oldest() {}
            if self.mapped.len() < room {
                self.mapped.push(chunk, GFP_KERNEL)?;
            }
        }
        self.users[chunk] = (nr, self.find(chunk).is_some());
        Ok(())
    }

    fn release(&mut self, chunk: usize, nr: usize) -> Result {
        self.users[chunk].0 -= nr;

        // The one that was used last is at the end.
        if self.users[chunk].0 == 0 {
            self.users[chunk].1 = false;
            if let Some(i) = self.find(chunk) {
                let _ = self.mapped.remove(i);
                self.mapped.push(chunk, GFP_KERNEL)?;
            }
        }
        Ok(())
    }
}

/// Pages come and go in random order, in twice as many chunks as there are windows at most. Others
/// take and leave room in the BAR.
///
/// If others take room, the pool gives up a window when it maps the next one, not at once.
fn run(max: usize, steps: usize, seed: u64) -> Result {
    let nr = 2 * max;
    let (pool, windows, bar) = pool(max, nr)?;
    let mut random = Random(seed);
    let mut room = max;
    let mut model = Model {
        mapped: KVec::new(),
        users: KVec::from_elem((0, false), nr, GFP_KERNEL)?,
    };

    for _ in 0..steps {
        let chunk = random.below(nr);
        let pages = random.below(3) + 1;
        let (users, told) = model.users[chunk];

        match random.below(100) {
            // Few chunks have many users, many have few or none.
            0..45 => {
                windows[chunk].acquire(pages);
                model.acquire(chunk, pages, room)?;
            }
            45..50 => {
                assert_eq!(windows[chunk].acquire_again(pages), users > 0);
                if users > 0 {
                    model.acquire(chunk, pages, room)?;
                }
            }
            50..97 => {
                assert_eq!(windows[chunk].release(pages), users >= pages);
                if users >= pages {
                    model.release(chunk, pages)?;
                }
            }
            97 => {
                room = random.below(max) + 1;
                bar.room.store(room, Relaxed);
            }
            98 => assert_eq!(pool.reclaim(), model.forget_oldest()),
            // All at once, now and then, or else the BAR stays full of windows in use.
            _ => {
                for chunk in 0..nr {
                    let (users, _) = model.users[chunk];

                    if users > 0 {
                        assert!(windows[chunk].release(users));
                        model.release(chunk, users)?;
                    }
                }
            }
        }

        // The position stays the same as long as the chunk has users.
        if users > 0 && model.users[chunk].0 > 0 {
            assert_eq!(model.users[chunk].1, told);
        }
        assert_eq!(windows[chunk].position().is_some(), model.users[chunk].1);
    }

    for (chunk, window) in windows.iter().enumerate() {
        let (_, told) = model.users[chunk];

        assert_eq!(window.position(), told.then_some(position(chunk)));
        assert_eq!(bar.is_mapped(chunk), model.find(chunk).is_some());
    }
    assert_eq!(
        pool.usage().used,
        model.users.iter().filter(|u| u.1).count()
    );

    for (window, (users, _)) in windows.iter().zip(&model.users) {
        assert!(window.release(*users));
    }
    drop(windows);
    assert!(bar.mapped.lock().is_empty());
    Ok(())
}

#[macros::kunit_tests(rust_gpu_window)]
mod suite {
    use super::*;

    #[test]
    fn exhaustion() -> Result {
        let (pool, windows, bar) = pool(16, 17)?;

        for window in &windows {
            window.acquire(1);
        }
        assert_eq!(windows[15].position(), Some(position(15)));
        assert_eq!(windows[16].position(), None);
        assert_eq!(pool.usage(), Usage { used: 16, idle: 0 });

        // Another user of a window that is in use always gets it.
        windows[3].acquire(1);
        assert_eq!(windows[3].position(), Some(position(3)));
        assert_eq!(bar.maps.load(Relaxed), 16);

        for window in &windows {
            window.release(1);
        }
        assert_eq!(pool.usage(), Usage { used: 1, idle: 15 });
        windows[3].release(1);
        Ok(())
    }

    #[test]
    fn no_windows_at_all() -> Result {
        let (_pool, windows, bar) = pool(0, 1)?;

        windows[0].acquire(1);
        assert_eq!(windows[0].position(), None);
        assert_eq!(bar.maps.load(Relaxed), 0);
        assert!(windows[0].release(1));
        Ok(())
    }

    #[test]
    fn idle_window_is_reused() -> Result {
        let (pool, windows, bar) = pool(2, 2)?;

        windows[0].acquire(1);
        windows[0].release(1);
        // It stays mapped, but nobody gets the position.
        assert_eq!(windows[0].position(), None);
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });

        windows[1].acquire(1);
        windows[0].acquire(1);
        assert_eq!(windows[0].position(), Some(position(0)));
        assert_eq!(bar.maps.load(Relaxed), 2);
        assert_eq!(pool.usage(), Usage { used: 2, idle: 0 });

        windows[0].release(1);
        windows[1].release(1);
        Ok(())
    }

    #[test]
    fn least_recently_used_goes_first() -> Result {
        let (_pool, windows, bar) = pool(4, 6)?;

        for window in &windows[..4] {
            window.acquire(1);
        }
        for i in [2, 0, 3, 1] {
            windows[i].release(1);
        }

        windows[4].acquire(1);
        assert!(!bar.is_mapped(2));
        assert!(bar.is_mapped(0));

        // Use makes 0 the most recent one.
        windows[0].acquire(1);
        windows[0].release(1);
        windows[5].acquire(1);
        assert!(!bar.is_mapped(3));
        assert!(bar.is_mapped(0));
        assert!(bar.is_mapped(1));

        windows[4].release(1);
        windows[5].release(1);
        Ok(())
    }

    #[test]
    fn window_stays_until_the_last_user_left() -> Result {
        let (pool, windows, bar) = pool(1, 2)?;

        windows[0].acquire(512);
        assert!(windows[0].acquire_again(1));
        assert!(windows[0].release(512));
        assert_eq!(windows[0].position(), Some(position(0)));

        // The only window is taken.
        windows[1].acquire(1);
        assert_eq!(windows[1].position(), None);
        assert!(windows[1].release(1));
        assert!(!pool.reclaim());

        assert!(windows[0].release(1));
        windows[1].acquire(1);
        assert_eq!(windows[1].position(), Some(position(1)));
        assert!(!bar.is_mapped(0));
        assert!(windows[1].release(1));
        Ok(())
    }

    #[test]
    fn no_window_comes_while_someone_was_told_there_is_none() -> Result {
        let (_pool, windows, _bar) = pool(1, 2)?;

        windows[0].acquire(1);
        windows[1].acquire(1);
        assert!(windows[0].release(1));

        // There would be room now.
        windows[1].acquire(1);
        assert_eq!(windows[1].position(), None);
        assert!(windows[1].release(2));

        windows[1].acquire(1);
        assert_eq!(windows[1].position(), Some(position(1)));
        assert!(windows[1].release(1));
        Ok(())
    }

    #[test]
    fn one_release_too_many_is_refused() -> Result {
        let (pool, windows, _bar) = pool(1, 1)?;

        assert!(!windows[0].release(1));
        assert!(!windows[0].acquire_again(1));

        windows[0].acquire(2);
        assert!(!windows[0].release(3));
        assert_eq!(pool.usage(), Usage { used: 1, idle: 0 });
        assert!(windows[0].release(2));
        assert!(!windows[0].release(1));
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });
        Ok(())
    }

    #[test]
    fn failed_mapping_leaves_no_window() -> Result {
        let (pool, windows, bar) = pool(2, 2)?;

        windows[0].acquire(1);
        windows[0].release(1);
        bar.fail.store(true, Relaxed);
        windows[1].acquire(1);
        assert_eq!(windows[1].position(), None);
        // Only a full BAR makes idle windows go.
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });
        windows[1].release(1);

        windows[1].acquire(1);
        assert_eq!(windows[1].position(), Some(position(1)));
        windows[1].release(1);
        Ok(())
    }

    #[test]
    fn idle_windows_go_when_others_leave_no_room() -> Result {
        let (pool, windows, bar) = pool(4, 4)?;

        for window in &windows[..3] {
            window.acquire(1);
        }
        // The pool may have a fourth, the BAR has no room for it. 1 is idle before 0 is.
        bar.room.store(3, Relaxed);
        windows[1].release(1);
        windows[0].release(1);

        windows[3].acquire(1);
        assert_eq!(windows[3].position(), Some(position(3)));
        assert!(!bar.is_mapped(1));
        assert!(bar.is_mapped(0));

        // Others took even more: what is idle goes, and it is not enough.
        bar.room.store(1, Relaxed);
        windows[1].acquire(1);
        assert_eq!(windows[1].position(), None);
        assert!(!bar.is_mapped(0));
        assert_eq!(pool.usage(), Usage { used: 2, idle: 0 });

        for window in &windows[1..] {
            window.release(1);
        }
        Ok(())
    }

    #[test]
    fn others_make_room_once_no_window_is_idle() -> Result {
        let (pool, windows, bar) = pool(4, 4)?;

        windows[0].acquire(1);
        windows[1].acquire(1);
        windows[1].release(1);
        bar.room.store(2, Relaxed);
        bar.spare.store(1, Relaxed);

        // The idle one goes first, and that is enough.
        windows[2].acquire(1);
        assert!(!bar.is_mapped(1));
        assert_eq!(bar.spare.load(Relaxed), 1);

        windows[1].acquire(1);
        assert_eq!(bar.spare.load(Relaxed), 0);
        assert_eq!(pool.usage(), Usage { used: 3, idle: 0 });

        windows[3].acquire(1);
        assert_eq!(windows[3].position(), None);
        for window in &windows {
            window.release(1);
        }
        Ok(())
    }

    #[test]
    fn reclaim_takes_only_idle_windows() -> Result {
        let (pool, windows, bar) = pool(4, 3)?;

        assert!(!pool.reclaim());
        for window in &windows {
            window.acquire(1);
        }
        windows[2].release(1);
        windows[1].release(1);

        assert!(pool.reclaim());
        assert!(!bar.is_mapped(2));
        assert!(pool.reclaim());
        assert!(!bar.is_mapped(1));
        assert!(!pool.reclaim());
        assert!(bar.is_mapped(0));
        windows[0].release(1);
        Ok(())
    }

    #[test]
    fn dropped_window_is_unmapped() -> Result {
        let (pool, mut windows, bar) = pool(2, 2)?;

        for window in &windows {
            window.acquire(1);
            window.release(1);
        }
        drop(windows.pop());
        assert!(!bar.is_mapped(1));
        assert!(bar.is_mapped(0));
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });
        Ok(())
    }

    #[test]
    fn pages_of_16_windows() -> Result {
        run(16, 50_000, 0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn pages_of_128_windows() -> Result {
        run(128, 20_000, 0xd1b5_4a32_d192_ed03)
    }
}
