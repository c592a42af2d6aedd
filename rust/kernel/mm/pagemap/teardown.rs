// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of pages of a process that are in device private memory: how they move home, and the
//! order in which such memory goes away.
//!
//! `Documentation/mm/hmm.rst` demands that order: clients are notified, pages come home and are
//! freed, the pagemap goes, and only then what the driver keeps for it, such as the ranges of its
//! BAR.

use super::*;
use crate::{
    current,
    error::to_result,
    faux,
    mm::{
        migrate::Migration,
        notifier::{
            IntervalNotifier,
            Invalidation, //
        },
    },
    sizes::SZ_32M,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    },
};

const PROT_READ_WRITE: usize = 3;
const MAP_PRIVATE_ANONYMOUS: usize = 0x22;

/// The content of the first page. The next one holds one more.
const CONTENT: u8 = 0xa5;

/// As many pages as a test has at most.
const MAX_PAGES: usize = 2;

/// When things happened for the last time: 1 is the first of them, 0 is never.
struct Log {
    now: Atomic<u32>,
    invalidated: Atomic<u32>,
    copied: [Atomic<u32>; MAX_PAGES],
    freed: Atomic<u32>,
    unregistered: Atomic<u32>,
    /// Whether a page could be taken again before the driver learnt that it is free.
    taken_early: Atomic<bool>,
    /// Whether the pagemap was there when the data of the driver went.
    pagemap_left: Atomic<bool>,
}

impl Log {
    fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                now: Atomic::new(0),
                invalidated: Atomic::new(0),
                copied: [Atomic::new(0), Atomic::new(0)],
                freed: Atomic::new(0),
                unregistered: Atomic::new(0),
                taken_early: Atomic::new(false),
                pagemap_left: Atomic::new(false),
            },
            GFP_KERNEL,
        )?)
    }

    fn note(&self, event: &Atomic<u32>) {
        event.store(self.now.fetch_add(1, Relaxed) + 1, Relaxed);
    }
}

/// A client of the memory.
struct Client(Arc<Log>);

impl crate::mm::notifier::Ops for Client {
    type Protected = ();

    fn invalidate(&self, _protected: &mut (), _inv: &Invalidation<'_>) {
        self.0.note(&self.0.invalidated);
    }
}

/// A driver whose memory is one byte for each page.
struct Driver {
    log: Arc<Log>,
    content: [Atomic<u32>; MAX_PAGES],
    pfn: Atomic<usize>,
    /// Address of the pagemap.
    map: Atomic<usize>,
    /// Address of a folio that somebody has locked until the second page moves, or 0.
    locked: Atomic<usize>,
    /// Whether pages can not be read.
    broken: Atomic<bool>,
    /// Whether a large folio can not be read in one piece.
    broken_if_large: Atomic<bool>,
}

#[vtable]
impl Ops for Driver {
    fn copy_to_host(&self, first: usize, dst: &mut HostFolio) -> Result {
        // The pages of a large folio count as the first one, if it is in one piece.
        let page = first.min(MAX_PAGES - 1);
        let byte = self.content[page].load(Relaxed) as u8;

        let large = dst.order() > 0;

        if self.broken.load(Relaxed) || (large && self.broken_if_large.load(Relaxed)) {
            return Err(EIO);
        }
        self.log.note(&self.log.copied[page]);
        if first == 1 {
            let locked = self.locked.xchg(0, Relaxed);

            if locked != 0 {
                // SAFETY: The test took the lock, and the folio is in use until it has moved.
                unsafe { bindings::folio_unlock(locked as *mut bindings::folio) };
            }
        }
        dst.with_page(0, |bytes| bytes.fill(byte)).ok_or(EINVAL)
    }

    fn folio_free(&self, first: usize, _order: u32) {
        // SAFETY: The test stored the address, and the pagemap exists as long as there are
        // callbacks.
        let map = unsafe { &*(self.map.load(Relaxed) as *const PageMap<'_, Self>) };

        if map.in_use.lock().list(first..first + 1, &mut [0]) == 0 {
            self.log.taken_early.store(true, Relaxed);
        }
        self.log.note(&self.log.freed);
    }

    fn migrate_to_ram(map: &PageMap<'_, Self>, fault: Fault<'_>) -> Result {
        fault.setup(map)?.copy()?.pages();
        Ok(())
    }
}

/// Stands for what unregisters the range of the BAR.
impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: Any number will do. If there is a pagemap, its reference is leaked: the test has
        // failed then.
        let pgmap = unsafe { bindings::get_dev_pagemap(self.pfn.load(Relaxed)) };

        self.log.pagemap_left.store(!pgmap.is_null(), Relaxed);
        self.log.note(&self.log.unregistered);
    }
}

/// Has a process with `nr` folios, all of them in device memory, and gives `test` the pagemap to
/// drop, and the addresses. Fails with [`EBUSY`] if not all of them get there, with [`EIO`] if the
/// process notices.
///
/// A large folio is one that the process has not used before. It holds the first page.
fn process_in_device_memory(
    nr: usize,
    order: u32,
    log: &Arc<Log>,
    test: impl FnOnce(Pin<KBox<PageMap<'_, Driver>>>, Range<usize>) -> Result,
) -> Result {
    // SAFETY: Called in the context of a KUnit test, which ends what it begins.
    to_result(unsafe { bindings::kunit_attach_mm() })?;

    let folio_size = PAGE_SIZE << order;
    // SAFETY: No file is involved.
    let start = unsafe {
        bindings::vm_mmap(
            core::ptr::null_mut(),
            0,
            // There is room to begin at a multiple of the size of a folio.
            (nr + 1) * folio_size,
            PROT_READ_WRITE,
            MAP_PRIVATE_ANONYMOUS,
            0,
        )
    };
    let start = start.checked_next_multiple_of(folio_size).ok_or(ENOMEM)?;
    let range = start..start.checked_add(nr * folio_size).ok_or(ENOMEM)?;
    let user = |page| UserSlice::new(UserPtr::from_addr(start + page * PAGE_SIZE), 1);
    if order == 0 {
        for page in 0..nr {
            user(page).writer().write(&(CONTENT + page as u8))?;
        }
    }

    let task = current!();
    let mm = task.mm().ok_or(EINVAL)?;
    let client = Arc::pin_init(
        // SAFETY: It is dropped below.
        unsafe { IntervalNotifier::new(mm, range.clone(), Client(log.clone()), new_mutex!(())) },
        GFP_KERNEL,
    )?;
    let registration = faux::Registration::new(c"rust_mm_pagemap", None)?;
    let device: &faux::Device<Bound> = registration.as_ref();
    let driver = Driver {
        log: log.clone(),
        content: [Atomic::new(0), Atomic::new(0)],
        pfn: Atomic::new(0),
        map: Atomic::new(0),
        locked: Atomic::new(0),
        broken: Atomic::new(false),
        broken_if_large: Atomic::new(false),
    };
    let map = KBox::pin_init(
        // SAFETY: It is dropped by `test`, or when this returns, before `registration` is.
        unsafe {
            PageMap::<'_, Driver>::new(
                device.as_ref(),
                c"rust_mm_pagemap",
                PMD_PAGES * PAGE_SIZE,
                Ok::<_, Error>(driver),
            )
        },
        GFP_KERNEL,
    )?;
    map.pfn.store(map.pfn(0), Relaxed);
    map.map.store(core::ptr::from_ref(&*map).addr(), Relaxed);

    {
        let mmap = mm.mmap_read_lock();
        let (migration, _) = Migration::to_device(&map, &mmap, range.start, range.end)?;
        let copied = migration.copy(|source| {
            let byte = source.with_page(0, |bytes| bytes.map_or(CONTENT, |bytes| bytes[0]));

            if let Some(folio) = map.alloc_in(0..PMD_PAGES, source.order()) {
                map.content[folio.first()].store(byte.unwrap_or(0).into(), Relaxed);
                let _ = source.migrate_to(folio);
            }
        });
        if copied.pages().nr_moved() != nr << order {
            return Err(EBUSY);
        }
    }

    test(map, range)?;

    for page in 0..nr {
        if user(page).reader().read::<u8>()? != CONTENT + page as u8 {
            return Err(EIO);
        }
    }
    drop(client);
    Ok(())
}

#[macros::kunit_tests(rust_mm_pagemap_teardown)]
mod suite {
    use super::*;

    #[test]
    fn order_of_teardown() -> Result {
        let log = Log::new()?;

        process_in_device_memory(1, 0, &log, |map, _| {
            let before = log.now.load(Relaxed);
            assert_eq!(map.nr_in_use(), 1);
            assert_eq!(log.freed.load(Relaxed), 0);
            drop(map);

            let invalidated = log.invalidated.load(Relaxed);
            let copied = log.copied[0].load(Relaxed);
            let freed = log.freed.load(Relaxed);
            let unregistered = log.unregistered.load(Relaxed);
            assert!(before < invalidated);
            assert!(invalidated < copied);
            assert!(copied < freed);
            assert!(freed < unregistered);
            assert!(!log.taken_early.load(Relaxed));
            assert!(!log.pagemap_left.load(Relaxed));
            Ok(())
        })
    }

    /// A page that somebody has locked, as a fault does, moves later, and is not left behind.
    #[test]
    fn pages_in_use_move_later() -> Result {
        let log = Log::new()?;

        process_in_device_memory(2, 0, &log, |map, _| {
            // SAFETY: The page is in use: the process has it.
            let folio = unsafe { bindings::page_folio(map.page(0)) };
            // SAFETY: As above.
            assert!(unsafe { bindings::folio_trylock(folio) });
            map.locked.store(folio.addr(), Relaxed);
            drop(map);

            let [first, second] = [0, 1].map(|page| log.copied[page].load(Relaxed));
            assert!(second < first);
            Ok(())
        })
    }

    /// [`PageMap::evict_all`] reports how many pages it waits for.
    #[test]
    fn waiting_is_told() -> Result {
        let log = Log::new()?;

        process_in_device_memory(1, 0, &log, |map, _| {
            let mut told = 0;

            // SAFETY: The page is in use: the process has it.
            let folio = unsafe { bindings::page_folio(map.page(0)) };
            // SAFETY: As above.
            assert!(unsafe { bindings::folio_trylock(folio) });
            map.evict_all(|left| {
                told += left;
                // SAFETY: We took the lock, which is why the page has not moved.
                unsafe { bindings::folio_unlock(folio) };
            });
            assert_eq!(told, 1);
            Ok(())
        })
    }

    /// Whether there are folios of [`PMD_ORDER`] that are no burden: where pages have 64 KiB, two
    /// of them are 1 GiB.
    fn large_folios() -> bool {
        cfg!(CONFIG_TRANSPARENT_HUGEPAGE) && PMD_PAGES * PAGE_SIZE <= SZ_32M
    }

    /// Who wants to have a part of a large folio gets all of it.
    #[test]
    fn part_of_a_large_folio() -> Result {
        let log = Log::new()?;

        if !large_folios() {
            return Ok(());
        }
        process_in_device_memory(1, PMD_ORDER, &log, |map, _| {
            assert_eq!(map.nr_in_use(), PMD_PAGES);
            assert_eq!(map.evict(PMD_PAGES..PMD_PAGES), 0);
            assert_eq!(map.evict(7..7), 0);

            // If there is no large folio in host memory, the first attempt only splits it.
            let moved = map.evict(7..8) + map.evict(7..8);
            assert_eq!(moved, PMD_PAGES);
            assert_eq!(map.nr_in_use(), 0);
            Ok(())
        })
    }

    /// A page of a large folio that can not be read does not take the others with it.
    #[test]
    fn large_folio_page_by_page() -> Result {
        if !large_folios() {
            return Ok(());
        }
        process_in_device_memory(1, PMD_ORDER, &Log::new()?, |map, _| {
            map.broken_if_large.store(true, Relaxed);
            // Afterwards the process has what was in its first page.
            drop(map);
            Ok(())
        })
    }
}

#[macros::kunit_tests(rust_mm_migrate)]
mod migrate_suite {
    use super::*;

    /// Begins to move a range home, and gives `f` the migration.
    fn to_host<R>(
        map: &PageMap<'_, Driver>,
        range: &Range<usize>,
        f: impl FnOnce(Migration<'_, Driver, migrate::ToHost, migrate::Collected>) -> R,
    ) -> Result<R> {
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let mmap = mm.mmap_read_lock();
        let (migration, end) = Migration::to_host(map, &mmap, range.start, range.end)?;

        assert_eq!(end, range.end);
        Ok(f(migration))
    }

    /// Reads a byte as the process does.
    fn touch(addr: usize) -> Result<u8> {
        UserSlice::new(UserPtr::from_addr(addr), 1).reader().read()
    }

    #[test]
    fn home_on_request() -> Result {
        process_in_device_memory(2, 0, &Log::new()?, |map, range| {
            let addrs = [range.start, range.start + PAGE_SIZE];
            let mut moved = [0; 2];
            let mut nr = 0;

            to_host(&map, &range, |migration| {
                assert_eq!(migration.nr_collected(), 2);
                migration.copy()?.pages().moved(|addr, pages| {
                    assert_eq!(pages, 1);
                    moved[nr] = addr;
                    nr += 1;
                });
                Ok::<_, Error>(())
            })??;
            assert_eq!(moved, addrs);
            assert_eq!(map.nr_in_use(), 0);

            // Nothing is left to move.
            let left = to_host(&map, &range, |migration| migration.copy().map(|_| ()))?;
            assert_eq!(left, Ok(()));
            Ok(())
        })
    }

    #[test]
    fn home_when_touched() -> Result {
        let log = Log::new()?;

        process_in_device_memory(2, 0, &log, |map, range| {
            assert_eq!(touch(range.start + PAGE_SIZE)?, CONTENT + 1);
            // Only that page came.
            assert_eq!(map.nr_in_use(), 1);
            assert_eq!(log.copied[0].load(Relaxed), 0);
            assert_eq!(touch(range.start)?, CONTENT);
            assert_eq!(map.nr_in_use(), 0);
            Ok(())
        })
    }

    /// The pages of a migration that is dropped before they move stay where they are.
    #[test]
    fn stays_if_given_up() -> Result {
        process_in_device_memory(2, 0, &Log::new()?, |map, range| {
            to_host(&map, &range, |migration| drop(migration))?;
            assert_eq!(map.nr_in_use(), 2);
            to_host(&map, &range, |migration| migration.copy().map(drop))??;
            assert_eq!(map.nr_in_use(), 2);
            Ok(())
        })
    }

    /// Nothing is lost when pages can not be read, as long as the device is there.
    #[test]
    fn stays_if_not_copied() -> Result {
        process_in_device_memory(1, 0, &Log::new()?, |map, range| {
            map.broken.store(true, Relaxed);
            let copied = to_host(&map, &range, |migration| migration.copy().map(drop))?;
            assert_eq!(copied, Err(EIO));
            assert_eq!(map.evict(0..1), 0);
            assert!(touch(range.start).is_err());
            assert_eq!(map.nr_in_use(), 1);

            map.broken.store(false, Relaxed);
            assert_eq!(map.evict(0..1), 1);
            Ok(())
        })
    }

    /// A page goes to a page of the same size, and a folio that was not used is free again.
    #[test]
    fn to_a_folio_that_fits() -> Result {
        process_in_device_memory(1, 0, &Log::new()?, |map, range| {
            assert_eq!(map.evict(0..1), 1);

            let task = current!();
            let mm = task.mm().ok_or(EINVAL)?;
            let mmap = mm.mmap_read_lock();
            let (migration, _) = Migration::to_device(&map, &mmap, range.start, range.end)?;
            let copied = migration.copy(|source| {
                let folio = map.alloc_in(0..PMD_PAGES, PMD_ORDER);

                assert_eq!(source.address(), range.start);
                assert_eq!(source.order(), 0);
                assert_eq!(
                    folio.map(|folio| source.migrate_to(folio)),
                    Some(Err(EINVAL))
                );
            });
            assert_eq!(copied.pages().nr_moved(), 0);
            assert_eq!(map.nr_in_use(), 0);
            Ok(())
        })
    }
}
