// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of a pool that shares its BAR with others.

use super::*;

/// Runs a pool whose room in the BAR changes all the time, and compares it with the model.
///
/// What others take away goes when the pool wants to map something the next time, not at once.
fn run_shared(bar_size: u64, steps: usize, seed: u64) -> Result {
    let (pool, bar) = pool(0..bar_size)?;
    let most = (bar_size / CHUNK) as usize;
    let nr = 2 * most;
    let windows = windows(&pool, nr, CHUNK)?;
    let mut held: KVec<(usize, Active<Placement>)> = KVec::new();
    let mut model = Model {
        mapped: KVec::new(),
        room: most,
    };
    let mut random = Random(seed);

    for _ in 0..steps {
        match random.below(100) {
            0..48 => {
                let w = random.below(nr as u64) as usize;

                if model.find(w).is_none() {
                    model.shrink();
                }
                let expected = model.acquire(w)?;
                let active = pool.acquire(&windows[w])?;
                assert_eq!(active.is_some(), expected);
                if let Some(active) = active {
                    held.push((w, active), GFP_KERNEL)?;
                }
            }
            48..92 if !held.is_empty() => {
                let i = random.below(held.len() as u64) as usize;

                if let Ok((w, active)) = held.remove(i) {
                    drop(active);
                    model.release(w)?;
                }
            }
            92..96 => {
                let room = random.below(most as u64 + 1) as usize;

                model.room = room;
                bar.room.store(room as u32, Relaxed);
            }
            96..98 => assert_eq!(pool.reclaim(), model.forget_oldest()),
            98.. => {
                let w = random.below(nr as u64) as usize;

                match model.find(w) {
                    Some(i) if model.mapped[i].1 > 0 => {
                        assert_eq!(pool.unmap(&windows[w]), Err(EBUSY));
                    }
                    found => {
                        pool.unmap(&windows[w])?;
                        if let Some(i) = found {
                            drop(model.mapped.remove(i));
                        }
                    }
                }
            }
            _ => (),
        }

        for (_, active) in held.iter() {
            assert_eq!(active.window().position(), Some(active.position()));
        }
    }

    for (w, window) in windows.iter().enumerate() {
        assert_eq!(window.position().is_some(), model.find(w).is_some());
    }
    assert_eq!(bar.overlap.load(Relaxed), 0);
    assert_eq!(bar.mapped.lock().len(), model.mapped.len());
    Ok(())
}

impl Model {
    /// Forgets the idle window that was used least recently. Returns false if there is none.
    fn forget_oldest(&mut self) -> bool {
        match self.mapped.iter().position(|(_, users)| *users == 0) {
            Some(i) => self.mapped.remove(i).is_ok(),
            None => false,
        }
    }

    /// Makes room for one more, after others took some.
    fn shrink(&mut self) {
        while self.mapped.len() >= self.room && self.forget_oldest() {}
    }
}

#[macros::kunit_tests(rust_gpu_window_shared)]
mod suite {
    use super::*;

    #[test]
    fn idle_windows_go_when_others_leave_no_room() -> Result {
        let (pool, bar) = pool(0..4 * CHUNK)?;
        let windows = windows(&pool, 4, CHUNK)?;
        let mut held = KVec::new();

        for window in &windows[..3] {
            held.push(pool.acquire(window)?, GFP_KERNEL)?;
        }
        // The pool's range has room for a fourth, the BAR has not. 1 is idle before 0 is.
        bar.room.store(3, Relaxed);
        held[1] = None;
        held[0] = None;

        let fourth = pool.acquire(&windows[3])?;
        assert!(fourth.is_some());
        assert_eq!(windows[1].position(), None);
        assert!(windows[0].position().is_some());
        assert_eq!(pool.usage(), Usage { used: 2, idle: 1 });

        // Others took even more: what is idle goes, and it is not enough.
        bar.room.store(1, Relaxed);
        assert!(pool.acquire(&windows[1])?.is_none());
        assert_eq!(windows[0].position(), None);
        assert_eq!(pool.usage(), Usage { used: 2, idle: 0 });
        Ok(())
    }

    #[test]
    fn others_make_room_once_no_window_is_idle() -> Result {
        let (pool, bar) = pool(0..4 * CHUNK)?;
        let windows = windows(&pool, 4, CHUNK)?;
        let mut held = KVec::new();

        held.push(pool.acquire(&windows[0])?, GFP_KERNEL)?;
        drop(pool.acquire(&windows[1])?);
        bar.room.store(2, Relaxed);
        bar.spare.store(1, Relaxed);

        // The idle one goes first, and that is enough.
        held.push(pool.acquire(&windows[2])?, GFP_KERNEL)?;
        assert_eq!(windows[1].position(), None);
        assert_eq!(bar.spare.load(Relaxed), 1);

        held.push(pool.acquire(&windows[1])?, GFP_KERNEL)?;
        assert_eq!(bar.spare.load(Relaxed), 0);
        assert_eq!(pool.usage(), Usage { used: 3, idle: 0 });

        assert!(pool.acquire(&windows[3])?.is_none());
        assert_eq!(pool.usage(), Usage { used: 3, idle: 0 });
        Ok(())
    }

    #[test]
    fn reclaim_takes_only_idle_windows() -> Result {
        let (pool, bar) = pool(0..4 * CHUNK)?;
        let windows = windows(&pool, 3, CHUNK)?;

        assert!(!pool.reclaim());
        let kept = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        drop(pool.acquire(&windows[2])?);
        drop(pool.acquire(&windows[1])?);

        assert!(pool.reclaim());
        assert_eq!(windows[2].position(), None);
        assert!(windows[1].position().is_some());
        assert!(pool.reclaim());
        assert_eq!(windows[1].position(), None);
        assert!(!pool.reclaim());
        assert_eq!(windows[0].position(), Some(kept.position()));
        assert_eq!(bar.mapped.lock().len(), 1);
        Ok(())
    }

    #[test]
    fn unmap_refuses_window_in_use() -> Result {
        let (pool, bar) = pool(0..4 * CHUNK)?;
        let (other, _bar) = super::pool(0..CHUNK)?;
        let window = pool.window(Placement::Anywhere, CHUNK)?;

        // Not mapped at all.
        pool.unmap(&window)?;

        let active = pool.acquire(&window)?.ok_or(ENOSPC)?;
        assert_eq!(pool.unmap(&window), Err(EBUSY));
        assert_eq!(window.position(), Some(active.position()));
        drop(active);
        assert_eq!(other.unmap(&window), Err(EINVAL));
        pool.unmap(&window)?;
        assert_eq!(window.position(), None);
        assert!(bar.mapped.lock().is_empty());

        // It can be mapped again.
        assert!(pool.acquire(&window)?.is_some());
        Ok(())
    }

    #[test]
    fn hardware_chooses_the_place() -> Result {
        let (pool, bar) = pool(0..CHUNK)?;
        let windows = windows(&pool, 2, CHUNK)?;

        bar.skew.store(7 * CHUNK, Relaxed);
        let active = pool.acquire(&windows[0])?.ok_or(ENOSPC)?;
        assert_eq!(active.position(), 7 * CHUNK);
        assert_eq!(windows[0].position(), Some(7 * CHUNK));

        // That is outside of the pool's range, which limits the sum nevertheless.
        assert!(pool.acquire(&windows[1])?.is_none());
        drop(active);
        assert!(pool.acquire(&windows[1])?.is_some());
        assert_eq!(windows[0].position(), None);
        Ok(())
    }

    #[test]
    fn shared_32_mib() -> Result {
        run_shared(32 * MIB, 50_000, 0x6a09_e667_f3bc_c908)
    }

    #[test]
    fn shared_256_mib() -> Result {
        run_shared(256 * MIB, 10_000, 0xbb67_ae85_84ca_a73b)
    }
}
