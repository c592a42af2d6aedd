// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of chunks that are used page by page.

use super::{
    super::{
        tests::{
            pool,
            Pool,
            Random,
            CHUNK,
            MIB, //
        },
        Placement,
        Usage, //
    },
    *,
};
use crate::sync::atomic::Relaxed;

type Chunk = Pin<KBox<Occupancy<Placement>>>;

fn chunks(pool: &Pool, nr: usize) -> Result<KVec<Chunk>> {
    let mut all = KVec::with_capacity(nr, GFP_KERNEL)?;

    for _ in 0..nr {
        let window = pool.window(Placement::Anywhere, CHUNK)?;
        all.push(
            KBox::pin_init(Occupancy::new(window), GFP_KERNEL)?,
            GFP_KERNEL,
        )?;
    }
    Ok(all)
}

/// Pages come and go in random order in twice as many chunks as there are windows.
///
/// The model is what each user was told when he came: it has to hold until the last one leaves. The
/// BAR's room for others changes, too.
fn run_pages(bar_size: u64, steps: usize, seed: u64) -> Result {
    let (pool, bar) = pool(0..bar_size)?;
    let most = bar_size / CHUNK;
    let chunks = chunks(&pool, 2 * most as usize)?;
    let mut told: KVec<(usize, Option<u64>)> = KVec::new();
    let mut random = Random(seed);

    told.extend_with(chunks.len(), (0, None), GFP_KERNEL)?;
    for _ in 0..steps {
        let c = random.below(chunks.len() as u64) as usize;
        let (users, before) = told[c];

        match random.below(100) {
            // Of any two pages one goes again: few chunks have many users, many have one or none.
            0..45 => {
                chunks[c].enter(&pool);
                let now = chunks[c].position();
                if users > 0 {
                    assert_eq!(now, before);
                }
                told[c] = (users + 1, now);
            }
            45..50 => {
                assert_eq!(chunks[c].enter_again(), users > 0);
                if users > 0 {
                    told[c].0 += 1;
                }
            }
            50..98 => {
                assert_eq!(chunks[c].leave(), users > 0);
                told[c] = match users {
                    0 | 1 => (0, None),
                    _ => (users - 1, before),
                };
            }
            98 => bar.room.store(random.below(most + 1) as u32 + 1, Relaxed),
            _ => drop(pool.reclaim()),
        }

        for (chunk, (_, position)) in chunks.iter().zip(&told) {
            assert_eq!(chunk.position(), *position);
            // It is really mapped, and the pool knows.
            if position.is_some() {
                assert_eq!(chunk.window().position(), *position);
            }
        }
    }

    let with = told.iter().filter(|(_, position)| position.is_some());
    assert_eq!(pool.usage().used, with.count());
    assert_eq!(bar.overlap.load(Relaxed), 0);

    for (chunk, (users, _)) in chunks.iter().zip(&told) {
        assert_eq!(chunk.clear(), *users);
    }
    assert_eq!(pool.usage().used, 0);
    Ok(())
}

#[macros::kunit_tests(rust_gpu_window_occupancy)]
mod suite {
    use super::*;

    #[test]
    fn window_stays_until_the_last_user_left() -> Result {
        let (pool, _bar) = pool(0..CHUNK)?;
        let chunks = chunks(&pool, 2)?;

        chunks[0].enter(&pool);
        chunks[0].enter(&pool);
        assert!(chunks[0].enter_again());
        assert_eq!(chunks[0].position(), Some(0));
        assert!(chunks[0].leave());
        assert!(chunks[0].leave());
        assert_eq!(pool.usage(), Usage { used: 1, idle: 0 });

        // Its only window is taken.
        chunks[1].enter(&pool);
        assert_eq!(chunks[1].position(), None);
        assert!(chunks[1].leave());

        assert_eq!(chunks[0].position(), Some(0));
        assert!(chunks[0].leave());
        assert_eq!(chunks[0].position(), None);
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });

        chunks[1].enter(&pool);
        assert_eq!(chunks[1].position(), Some(0));
        assert!(chunks[1].leave());
        Ok(())
    }

    #[test]
    fn no_window_comes_while_someone_was_told_there_is_none() -> Result {
        let (pool, _bar) = pool(0..CHUNK)?;
        let chunks = chunks(&pool, 2)?;

        chunks[0].enter(&pool);
        chunks[1].enter(&pool);
        assert!(chunks[0].leave());

        // There would be room now. But if the second user got a window, it would go with him while
        // the first is still there.
        chunks[1].enter(&pool);
        assert_eq!(chunks[1].position(), None);
        assert!(chunks[1].leave());
        assert!(chunks[1].leave());

        chunks[1].enter(&pool);
        assert_eq!(chunks[1].position(), Some(0));
        assert!(chunks[1].leave());
        Ok(())
    }

    #[test]
    fn one_leave_too_many_is_refused() -> Result {
        let (pool, _bar) = pool(0..CHUNK)?;
        let chunks = chunks(&pool, 1)?;

        assert!(!chunks[0].leave());
        assert!(!chunks[0].enter_again());
        assert_eq!(chunks[0].clear(), 0);

        chunks[0].enter(&pool);
        assert!(chunks[0].leave());
        assert!(!chunks[0].leave());
        assert_eq!(pool.usage(), Usage { used: 0, idle: 1 });

        chunks[0].enter(&pool);
        assert_eq!(pool.usage(), Usage { used: 1, idle: 0 });
        assert!(chunks[0].leave());
        Ok(())
    }

    #[test]
    fn clear_frees_the_window() -> Result {
        let (pool, bar) = pool(0..CHUNK)?;
        let chunks = chunks(&pool, 1)?;

        chunks[0].enter(&pool);
        chunks[0].enter(&pool);
        assert_eq!(pool.unmap(chunks[0].window()), Err(EBUSY));
        assert_eq!(chunks[0].clear(), 2);
        assert_eq!(chunks[0].position(), None);
        pool.unmap(chunks[0].window())?;
        assert!(bar.mapped.lock().is_empty());
        Ok(())
    }

    #[test]
    fn pages_32_mib() -> Result {
        run_pages(32 * MIB, 30_000, 0x3c6e_f372_fe94_f82b)
    }

    #[test]
    fn pages_256_mib() -> Result {
        run_pages(256 * MIB, 5_000, 0xa54f_f53a_5f1d_36f1)
    }
}
