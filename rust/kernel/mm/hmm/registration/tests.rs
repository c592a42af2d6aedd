// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of registrations, with a device that does nothing.

use super::{
    super::{
        dma::tests::enable_dma,
        tests::{
            map,
            remap,
            unmap,
            PAGES,
            PROT_READ_WRITE, //
        }, //
    },
    *, //
};
use crate::{
    bindings,
    current,
    error::to_result,
    faux,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The pages of the last call of the driver, and how often it was called.
#[derive(Default)]
struct Told {
    revoked: Option<Range<usize>>,
    calls: usize,
    /// How many of the pages were still mapped.
    mapped: usize,
}

/// A driver that records its calls. Revoked pages are counted outside as well.
struct Recorder<'a>(&'a Atomic<usize>);

impl Ops for Recorder<'_> {
    type State = Told;

    fn revoke(&self, told: &mut Told, part: &Part<'_>) {
        told.calls += 1;
        told.mapped = part.pages().filter(|p| part.get(*p).is_some()).count();
        told.revoked = Some(part.pages());
        self.0.fetch_add(told.mapped, Relaxed);
        assert!(part.get(part.pages().end).is_none());
    }
}

type Test<'a> = Registration<'a, Recorder<'a>>;

/// A driver that calls its registration from [`Ops::revoke`], which it must not.
struct Reentrant<'a> {
    /// The address of the registration.
    own: &'a Atomic<usize>,
    mm: &'a MmWithUser,
    /// How often that was refused.
    refused: &'a Atomic<usize>,
}

impl Ops for Reentrant<'_> {
    type State = ();

    fn revoke(&self, (): &mut (), _: &Part<'_>) {
        // SAFETY: The registration stores its own address before anything is mapped, and it calls.
        let reg = unsafe { &*(self.own.load(Relaxed) as *const Registration<'_, Self>) };

        if reg.map(self.mm, 0..1).err() == Some(EDEADLK) {
            self.refused.fetch_add(1, Relaxed);
        }
    }
}

const WRITE: Options = Options {
    write: true,
    p2p: false,
    resident: false,
};

/// Runs `test` with a registration of `PAGES` pages of writable memory.
fn with_registration(
    options: Options,
    test: impl FnOnce(Pin<KBox<Test<'_>>>, &MmWithUser, Range<usize>, &Atomic<usize>) -> Result,
) -> Result {
    let range = map(PROT_READ_WRITE)?;
    let task = current!();
    let mm = task.mm().ok_or(EINVAL)?;
    let device = faux::Registration::new(c"rust_mm_hmm_registration", None)?;
    let device: &faux::Device<Bound> = device.as_ref();
    let revoked = Atomic::new(0);

    enable_dma(device.as_ref())?;
    let registration = KBox::pin_init(
        // SAFETY: `test` drops it.
        unsafe {
            Test::new(
                device.as_ref(),
                mm,
                range.clone(),
                options,
                Recorder(&revoked),
                Told::default(),
            )
        },
        GFP_KERNEL,
    )?;
    test(registration, mm, range, &revoked)
}

#[macros::kunit_tests(rust_mm_hmm_registration)]
mod suite {
    use super::*;

    #[test]
    fn revoked_before_unmapped() -> Result {
        with_registration(WRITE, |reg, mm, range, _| {
            {
                let table = reg.map(mm, 0..PAGES)?;

                assert!((0..PAGES).all(|p| table.get(p).is_some_and(|m| m.writable())));
                assert_eq!(table.runs(0..PAGES).map(|r| r.pages).sum::<usize>(), PAGES);
                assert_eq!(table.stats().mapped, PAGES as u64);
                assert_eq!(table.state().calls, 0);
            }
            {
                let mut table = reg.lock();
                let (told, addrs) = table.state_and_addrs(0..PAGES)?;

                assert_eq!(told.calls, 0);
                let addrs = [addrs[0], addrs[PAGES - 1]];
                assert_eq!(table.get(0).map(|m| m.addr()), Some(addrs[0]));
                assert_eq!(table.get(PAGES - 1).map(|m| m.addr()), Some(addrs[1]));
            }

            unmap(range.start + PAGE_SIZE..range.start + 3 * PAGE_SIZE)?;

            let mut table = reg.lock();
            // Nobody gets the address of a page that was revoked.
            assert_eq!(table.state_and_addrs(0..PAGES).err(), Some(EINVAL));
            assert_eq!(table.state_and_addrs(0..1)?.1.len(), 1);
            assert_eq!(table.state().calls, 1);
            assert_eq!(table.state().revoked, Some(1..3));
            // When the driver was called, the device could still use them.
            assert_eq!(table.state().mapped, 2);
            assert!(table.get(0).is_some());
            assert!(table.get(1).is_none());
            assert!(table.get(2).is_none());
            assert!(table.get(3).is_some());
            assert_eq!(
                table.stats(),
                Stats {
                    mapped: PAGES as u64,
                    revocations: 1,
                    revoked: 2,
                }
            );
            Ok(())
        })
    }

    /// The OOM reaper must not wait for a device.
    #[test]
    fn not_revoked_without_sleep() -> Result {
        with_registration(WRITE, |reg, mm, range, _| {
            drop(reg.map(mm, 0..PAGES)?);

            let mut reaper = bindings::mmu_notifier_range {
                mm: mm.as_raw(),
                start: range.start,
                end: range.end,
                ..Default::default()
            };
            // SAFETY: The range is one of `mm`, whose users the caller keeps. Its flags do not
            // allow to sleep, and it is refused, so that it does not begin.
            let ret = unsafe { bindings::__mmu_notifier_invalidate_range_start(&mut reaper) };

            assert_eq!(to_result(ret), Err(EAGAIN));
            let table = reg.lock();
            assert_eq!(table.state().calls, 0);
            assert!((0..PAGES).all(|p| table.get(p).is_some()));
            Ok(())
        })
    }

    /// Unmapped pages need no revocation, and revoked pages no second one.
    #[test]
    fn revoked_once() -> Result {
        with_registration(WRITE, |reg, mm, range, _| {
            drop(reg.map(mm, 0..1)?);
            unmap(range.start + PAGE_SIZE..range.end)?;
            assert_eq!(reg.lock().state().calls, 0);

            unmap(range.clone())?;
            unmap(range)?;
            assert_eq!(reg.lock().state().calls, 1);
            Ok(())
        })
    }

    /// Other memory at the same address is found by the next transfer, and no old address is left.
    #[test]
    fn mapped_again() -> Result {
        with_registration(WRITE, |reg, mm, range, _| {
            let phys = |index| Ok::<_, Error>(reg.map(mm, 0..PAGES)?.get(index).map(|m| m.phys()));
            let before = phys(0)?;

            assert!(before.is_some());
            unmap(range.clone())?;
            assert_eq!(reg.map(mm, 0..PAGES).err(), Some(EFAULT));
            assert!((0..PAGES).all(|p| reg.lock().get(p).is_none()));

            remap(range)?;
            assert!(phys(0)?.is_some());
            assert_eq!(reg.lock().stats().mapped, 2 * PAGES as u64);
            // Nothing moved: it is at hand.
            assert!(phys(0)?.is_some());
            assert_eq!(reg.lock().stats().mapped, 2 * PAGES as u64);
            Ok(())
        })
    }

    /// What is mapped already is found, and does not count again.
    #[test]
    fn mapped_in_parts() -> Result {
        with_registration(WRITE, |reg, mm, range, _| {
            drop(reg.map(mm, 1..2)?);
            drop(reg.map(mm, 0..PAGES)?);
            assert_eq!(reg.lock().stats().mapped, PAGES as u64);

            unmap(range.start..range.start + PAGE_SIZE)?;
            drop(reg.map(mm, 1..PAGES)?);
            assert_eq!(reg.lock().stats().mapped, PAGES as u64);
            assert_eq!(reg.map(mm, 0..PAGES).err(), Some(EFAULT));
            Ok(())
        })
    }

    /// A page keeps its result until a fault of it meets something.
    #[test]
    fn results_stay() -> Result {
        const NONE: u8 = P2pResult::None as u8;
        const FAR: u8 = P2pResult::Topology as u8;
        const FORBIDDEN: u8 = P2pResult::Policy as u8;

        with_registration(WRITE, |reg, mm, range, _| {
            let mut buf = PfnBuf::new(PAGES, GFP_KERNEL)?;
            let request = Request::new(Access::Write);

            for (found, known) in [
                ([NONE, FAR, NONE, NONE], [NONE, FAR, NONE, NONE]),
                ([FAR, FAR, FORBIDDEN, FAR], [FAR, FAR, FORBIDDEN, FAR]),
                (
                    [NONE, NONE, NONE, FORBIDDEN],
                    [FAR, FAR, FORBIDDEN, FORBIDDEN],
                ),
            ] {
                let faulted = reg.notifier.fault(mm, range.clone(), &request, &mut buf)?;
                let mut guard = reg.notifier.lock();
                let (valid, table) = faulted.validate(&mut guard).map_err(|_| EAGAIN)?;
                let valid = Valid {
                    results: &found,
                    ..valid
                };

                assert_eq!(table.fill(0, valid, WRITE)?, None);
                assert_eq!(table.results[..], known);
            }
            Ok(())
        })
    }

    #[test]
    fn closed() -> Result {
        with_registration(WRITE, |reg, mm, range, revoked| {
            drop(reg.map(mm, 0..PAGES)?);
            reg.close();
            assert_eq!(revoked.load(Relaxed), PAGES);
            assert_eq!(reg.lock().runs(0..PAGES).count(), 0);
            assert_eq!(reg.map(mm, 0..PAGES).err(), Some(ESHUTDOWN));

            unmap(range)?;
            reg.close();
            assert_eq!(reg.lock().state().calls, 1);
            Ok(())
        })
    }

    /// A driver that asks for the pages while it has to give them back is refused.
    #[test]
    fn revoke_does_not_map() -> Result {
        let range = map(PROT_READ_WRITE)?;
        let task = current!();
        let mm = task.mm().ok_or(EINVAL)?;
        let device = faux::Registration::new(c"rust_mm_hmm_reentrant", None)?;
        let device: &faux::Device<Bound> = device.as_ref();
        let driver = Reentrant {
            own: &Atomic::new(0),
            mm,
            refused: &Atomic::new(0),
        };
        let (own, refused) = (driver.own, driver.refused);

        enable_dma(device.as_ref())?;
        let reg = KBox::pin_init(
            // SAFETY: It is dropped at the end of the test.
            unsafe { Registration::new(device.as_ref(), mm, range.clone(), WRITE, driver, ()) },
            GFP_KERNEL,
        )?;
        own.store(&raw const *reg as usize, Relaxed);

        drop(reg.map(mm, 0..PAGES)?);
        unmap(range.clone())?;
        assert_eq!(refused.load(Relaxed), 1);
        // Nobody revokes any more.
        remap(range)?;
        drop(reg.map(mm, 0..PAGES)?);
        reg.close();
        assert_eq!(refused.load(Relaxed), 2);
        Ok(())
    }

    #[test]
    fn dropped() -> Result {
        with_registration(WRITE, |reg, mm, _, revoked| {
            drop(reg.map(mm, 1..PAGES)?);
            drop(reg);
            assert_eq!(revoked.load(Relaxed), PAGES - 1);
            Ok(())
        })
    }

    #[test]
    fn host_memory_is_not_resident() -> Result {
        let options = Options {
            p2p: true,
            resident: true,
            ..WRITE
        };

        with_registration(options, |reg, mm, range, _| {
            // Neither where nobody has touched it, nor elsewhere.
            assert_eq!(reg.map(mm, 0..PAGES).err(), Some(EINVAL));
            crate::uaccess::UserSlice::new(crate::uaccess::UserPtr::from_addr(range.start), 1)
                .writer()
                .write(&1u8)?;
            assert_eq!(reg.map(mm, 0..PAGES).err(), Some(EINVAL));
            assert_eq!(reg.lock().runs(0..PAGES).count(), 0);
            Ok(())
        })
    }

    #[test]
    fn bad_input() -> Result {
        with_registration(WRITE, |reg, mm, range, revoked| {
            let device = faux::Registration::new(c"rust_mm_hmm_bad_input", None)?;
            let device: &faux::Device<Bound> = device.as_ref();
            enable_dma(device.as_ref())?;
            let new = |range: Range<usize>| {
                KBox::pin_init(
                    // SAFETY: It is dropped right away.
                    unsafe {
                        Test::new(
                            device.as_ref(),
                            mm,
                            range,
                            WRITE,
                            Recorder(revoked),
                            Told::default(),
                        )
                    },
                    GFP_KERNEL,
                )
                .err()
            };

            assert_eq!(new(range.start..range.start), Some(EINVAL));
            assert_eq!(new(range.end..range.start), Some(EINVAL));
            assert_eq!(new(range.start + 1..range.end), Some(EINVAL));
            assert_eq!(new(range.start..range.end - 1), Some(EINVAL));
            // On 32-bit, the address space is smaller than that.
            #[cfg(CONFIG_64BIT)]
            assert_eq!(new(0..(MAX_PAGES + 1) * PAGE_SIZE), Some(E2BIG));

            assert_eq!(reg.map(mm, 0..PAGES + 1).err(), Some(EINVAL));
            assert_eq!(reg.map(mm, PAGES..PAGES).err(), Some(EINVAL));
            assert_eq!(reg.lock().get(PAGES).map(|m| m.addr()), None);
            Ok(())
        })
    }
}
