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
            Invalidation,
            SeqSet,
            SetSeq,
            WouldBlock, //
        },
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        lock::mutex::MutexBackend,
        Arc, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    },
};

const PROT_READ_WRITE: usize = 3;
const MAP_PRIVATE_ANONYMOUS: usize = 0x22;

/// What the page holds.
const CONTENT: u8 = 0xa5;

/// When things happened for the last time: 1 is the first of them, 0 is never.
struct Log {
    now: Atomic<u32>,
    invalidated: Atomic<u32>,
    copied: Atomic<u32>,
    freed: Atomic<u32>,
    unregistered: Atomic<u32>,
    /// Whether the pagemap was there when the data of the driver went.
    pagemap_left: Atomic<bool>,
}

impl Log {
    fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                now: Atomic::new(0),
                invalidated: Atomic::new(0),
                copied: Atomic::new(0),
                freed: Atomic::new(0),
                unregistered: Atomic::new(0),
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
#[pin_data]
struct Client {
    #[pin]
    lock: Mutex<()>,
    log: Arc<Log>,
}

// SAFETY: There is one lock.
unsafe impl crate::mm::notifier::Ops for Client {
    type Protected = ();
    type Backend = MutexBackend;

    fn user_lock(&self) -> &Mutex<()> {
        &self.lock
    }

    fn invalidate<'a>(
        &'a self,
        inv: &Invalidation<'a>,
        seq: SetSeq<'a, Self>,
    ) -> Result<SeqSet<'a>, WouldBlock> {
        let guard = inv.lock(&self.lock)?;

        self.log.note(&self.log.invalidated);
        Ok(seq.set(&guard))
    }
}

/// A driver whose memory is one byte for each page.
struct Driver {
    log: Arc<Log>,
    content: Atomic<u32>,
    pfn: Atomic<usize>,
}

#[vtable]
// SAFETY: There are no aliases.
unsafe impl Ops for Driver {
    fn copy_to_host(&self, _first: usize, dst: &mut HostFolio) -> Result {
        let byte = self.content.load(Relaxed) as u8;

        self.log.note(&self.log.copied);
        dst.with_page(0, |bytes| bytes.fill(byte)).ok_or(EINVAL)
    }

    fn folio_free(&self, _first: usize, _order: u32) {
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

#[macros::kunit_tests(rust_mm_pagemap_teardown)]
mod suite {
    use super::*;

    #[test]
    fn order_of_teardown() -> Result {
        // SAFETY: Called in the context of a KUnit test, which ends what it begins.
        to_result(unsafe { bindings::kunit_attach_mm() })?;

        // SAFETY: No file is involved.
        let start = unsafe {
            bindings::vm_mmap(
                core::ptr::null_mut(),
                0,
                PAGE_SIZE,
                PROT_READ_WRITE,
                MAP_PRIVATE_ANONYMOUS,
                0,
            )
        };
        let range = start..start.checked_add(PAGE_SIZE).ok_or(ENOMEM)?;
        let user = UserPtr::from_addr(start);
        UserSlice::new(user, 1).writer().write(&CONTENT)?;

        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let log = Log::new()?;
        let told = log.clone();
        let client = Arc::pin_init(
            IntervalNotifier::new(
                mm,
                range.clone(),
                pin_init!(Client {
                    lock <- new_mutex!(()),
                    log: told,
                }),
            ),
            GFP_KERNEL,
        )?;
        let registration = faux::Registration::new(c"rust_mm_pagemap", None)?;
        let device: &faux::Device<Bound> = registration.as_ref();
        let driver = Driver {
            log: log.clone(),
            content: Atomic::new(0),
            pfn: Atomic::new(0),
        };
        let map = KBox::pin_init(
            // SAFETY: It is dropped below, or when this returns, before `registration` is.
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

        {
            let mmap = mm.mmap_read_lock();
            let (migration, _) = Migration::to_device(&map, &mmap, range.start, range.end)?;
            let copied = migration.copy(|source| {
                let byte = source.with_page(0, |bytes| bytes.map_or(0, |bytes| bytes[0]));

                map.content.store(byte.unwrap_or(0).into(), Relaxed);
                if let Some(folio) = map.alloc_in(0..PMD_PAGES, 0) {
                    let _ = source.migrate_to(folio);
                }
            });
            assert_eq!(copied.pages().nr_moved(), 1);
        }
        assert_eq!(map.nr_in_use(), 1);
        assert_eq!(log.freed.load(Relaxed), 0);

        let before = log.now.load(Relaxed);
        drop(map);

        let invalidated = log.invalidated.load(Relaxed);
        let copied = log.copied.load(Relaxed);
        let freed = log.freed.load(Relaxed);
        let unregistered = log.unregistered.load(Relaxed);
        assert!(before < invalidated);
        assert!(invalidated < copied);
        assert!(copied < freed);
        assert!(freed < unregistered);
        assert!(!log.pagemap_left.load(Relaxed));

        // The process does not notice.
        assert_eq!(UserSlice::new(user, 1).reader().read::<u8>()?, CONTENT);
        drop(client);
        Ok(())
    }
}
