// SPDX-License-Identifier: GPL-2.0

//! KUnit test of the order in which device private memory goes away, which
//! `Documentation/mm/hmm.rst` demands: clients are told, pages are moved home and freed, the
//! pagemap goes, and only then what the driver keeps for it, such as the ranges of its BAR.

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

/// What the first page holds. The next one holds one more.
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
    /// Whether a page could be taken again before the driver was told that it is free.
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
}

#[vtable]
// SAFETY: There are no aliases.
unsafe impl Ops for Driver {
    fn copy_to_host(&self, first: usize, dst: &mut HostFolio) -> Result {
        // The pages of a large folio count as the first one, if it is in one piece.
        let page = first.min(MAX_PAGES - 1);
        let byte = self.content[page].load(Relaxed) as u8;

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
/// drop. Fails with [`EBUSY`] if not all of them get there, with [`EIO`] if the process notices.
///
/// A large folio is one that the process has not used before. It holds the first page.
fn process_in_device_memory(
    nr: usize,
    order: u32,
    log: &Arc<Log>,
    test: impl FnOnce(Pin<KBox<PageMap<'_, Driver>>>) -> Result,
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

    test(map)?;

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

        process_in_device_memory(1, 0, &log, |map| {
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

    /// What somebody has locked, as a fault does, moves later, and is not left behind.
    #[test]
    fn pages_in_use_move_later() -> Result {
        let log = Log::new()?;

        process_in_device_memory(2, 0, &log, |map| {
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

    /// Who drops a pagemap is told what it waits for.
    #[test]
    fn waiting_is_told() -> Result {
        let log = Log::new()?;

        process_in_device_memory(1, 0, &log, |map| {
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

    /// Who wants to have a part of a large folio gets all of it.
    #[test]
    fn part_of_a_large_folio() -> Result {
        let log = Log::new()?;

        if !cfg!(CONFIG_TRANSPARENT_HUGEPAGE) {
            return Ok(());
        }
        process_in_device_memory(1, PMD_ORDER, &log, |map| {
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
}
