// SPDX-License-Identifier: GPL-2.0

//! Registrations: memory of a process for a device that has no page faults.
//!
//! Such a device asks for the addresses of a buffer once, keeps them from one transfer to the next,
//! and needs a notice before they become invalid. With `get_user_pages()` a driver pins host memory
//! for that. A [`Registration`] pins nothing, and thus serves memory of a GPU as well:
//!
//! - [`Registration::map`] resolves every page: to the alias of device private memory that the
//!   device can reach, or else to host memory. It maps the pages for DMA, and returns the
//!   [`Table`], which has the addresses, and for each page the reason if it is in host memory
//!   although it was in a GPU.
//! - [`Ops::revoke`] is called before any page moves, or changes in another way. When it returns,
//!   the device has stopped to use these pages. Then they are unmapped, and then they move.
//! - The next [`Registration::map`] brings revoked pages back, wherever they are by then. If the
//!   process has other memory there meanwhile, it gets that memory.
//!
//! A registration ends with [`Registration::close`] or by being dropped. It survives the memory,
//! the process and the GPU: they revoke pages, and [`Registration::map`] fails as long as there is
//! nothing to map.
//!
//! # Locks and lifetimes
//!
//! A registration is an [`IntervalNotifier`] whose user lock protects the [`Table`]. The rules of a
//! user lock hold for it: nobody who has it may allocate memory with `GFP_KERNEL`, access user
//! memory, or wait for someone who does.
//!
//! - Addresses are valid while the lock is held, and afterwards until [`Ops::revoke`] returns. The
//!   notifier calls us with the lock held, before the page tables change and with the sequence
//!   number stored, so whoever faulted the pages before finds out, and whoever has the lock is done
//!   first.
//! - A provider of aliases that goes away evicts its pages first, which revokes them.
//! - The device is bound as long as anything is mapped: `'bound` outlives the registration, or the
//!   driver calls [`Registration::close`] before it unbinds.
//! - The process may exit at any time: the notifier holds the `mm_struct`, not its users, and
//!   receives a last invalidation.
//!
//! Drivers in C have `include/linux/hmm-registration.h`.

use super::{
    dma::{
        DmaMap,
        Mapping,
        NotMapped, //
    },
    Access,
    P2pResult,
    Pfn,
    PfnBuf,
    Request,
    Retry,
    Valid, //
};
use crate::{
    current,
    device::{
        Bound,
        Device, //
    },
    dma::DmaAddress,
    mm::{
        notifier::{
            self,
            IntervalNotifier,
            Invalidation, //
        },
        Mm,
        MmWithUser, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        static_lock_class,
        LockClassKey,
        Mutex,
        MutexGuard, //
    }, //
};
use core::ops::{
    Deref,
    Range, //
};

#[cfg(CONFIG_64BIT)]
mod c;

/// How many pages to fault at a time.
const BATCH: usize = 512;

/// The largest number of pages of a registration.
const MAX_PAGES: usize = 1 << 24;

/// How often to begin again in front, because pages move all the time.
const ROUNDS: usize = 100;

/// What the driver of a device does about its registrations.
///
/// # Examples
///
/// A device that keeps a list of addresses, and stops to use those that are taken from the list:
///
/// ```
/// use kernel::{
///     dma::DmaAddress,
///     mm::hmm::registration::{
///         Ops,
///         Part, //
///     },
///     prelude::*, //
/// };
///
/// struct Card;
///
/// impl Ops for Card {
///     type State = KVVec<Option<DmaAddress>>;
///
///     fn revoke(&self, list: &mut Self::State, part: &Part<'_>) {
///         list[part.pages()].fill(None);
///         // Here it waits for the transfers that use one of them.
///     }
/// }
/// ```
pub trait Ops: Sync {
    /// The driver's data beside the table, under the same lock. For example the addresses that the
    /// device has.
    type State: Send + Unpin;

    /// Makes the device stop to use some pages.
    ///
    /// When this returns, the device must not access them any more, and never again by the
    /// addresses that it has. They are still mapped meanwhile.
    ///
    /// It may be called at any time from the first [`Registration::map`] on, also while the driver
    /// waits for a transfer, but not while the driver holds the lock. It may sleep until
    /// DMA is complete. It must not wait for anything else, not for a GPU either: see
    /// [`notifier::Ops::invalidate`].
    ///
    /// The lock is held, as by any other holder of a [`Guard`]. [`Registration::lock`],
    /// [`Registration::close`] and dropping the registration wait for themselves here; lockdep
    /// reports it. Only [`Registration::map`] has an error for that.
    fn revoke(&self, state: &mut Self::State, part: &Part<'_>);
}

/// What a device may do with a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Write to the memory.
    pub write: bool,
    /// Ask for aliases.
    pub p2p: bool,
    /// Leave pages where they are: fault nothing in, and refuse what is no alias.
    pub resident: bool,
}

/// The pages that are about to be revoked.
pub struct Part<'a> {
    pages: Range<usize>,
    dma: &'a DmaMap<'a>,
}

impl Part<'_> {
    /// Returns which pages of the registration they are.
    pub fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// Returns the mapping of page `index`, if it is one of these and mapped.
    pub fn get(&self, index: usize) -> Option<Mapping<'_>> {
        if self.pages.contains(&index) {
            self.dma.get(index)
        } else {
            None
        }
    }
}

/// Pages that are contiguous for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The address of the first.
    pub addr: DmaAddress,
    /// The first page.
    pub first: usize,
    /// How many they are.
    pub pages: usize,
}

/// What happened to a registration so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that were mapped.
    pub mapped: u64,
    /// Calls of [`Ops::revoke`].
    pub revocations: u64,
    /// Pages that were revoked.
    pub revoked: u64,
}

/// The addresses of a registration: an entry for each page.
pub struct Table<'bound, S> {
    /// [`None`] when the registration is closed.
    dma: Option<DmaMap<'bound>>,
    /// A [`P2pResult`] per page: the last one of the page that was not `None`.
    results: KVVec<u8>,
    stats: Stats,
    state: S,
}

impl<'bound, S> Table<'bound, S> {
    /// Returns the number of pages.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Returns where the device finds page `index`, or [`None`] if it is not mapped.
    pub fn get(&self, index: usize) -> Option<Mapping<'_>> {
        self.dma.as_ref()?.get(index)
    }

    fn is_mapped(&self, index: usize) -> bool {
        self.dma.as_ref().is_some_and(|dma| dma.is_mapped(index))
    }

    /// Returns how page `index` fared when a peer's address was asked for.
    pub fn p2p_result(&self, index: usize) -> P2pResult {
        self.results
            .get(index)
            .map_or(P2pResult::None, |raw| P2pResult::from_raw(*raw))
    }

    /// Returns what happened so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns what the driver keeps here.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Iterates over the mapped pages of `pages`, in runs as large as they are contiguous.
    pub fn runs(&self, pages: Range<usize>) -> impl Iterator<Item = Run> + use<'_, 'bound, S> {
        let end = pages.end.min(self.len());
        let mut next = pages.start;
        let addr = |page| self.get(page).map(|mapping| mapping.addr());

        core::iter::from_fn(move || {
            let first = (next..end).find(|page| addr(*page).is_some())?;
            let start = addr(first)?;

            next = first + 1;
            // CAST: Not to `u64`: on 32-bit, an address for DMA may have 32 bits.
            while next < end
                && addr(next) == Some(start + ((next - first) * PAGE_SIZE) as DmaAddress)
            {
                next += 1;
            }
            Some(Run {
                addr: start,
                first,
                pages: next - first,
            })
        })
    }

    /// Makes the driver give back `pages`, and unmaps them.
    fn revoke<T: Ops<State = S>>(&mut self, driver: &T, pages: Range<usize>) {
        let Some(dma) = &mut self.dma else {
            return;
        };
        // The device cannot use a page whose address it never got.
        if !pages.clone().any(|page| dma.is_mapped(page)) {
            return;
        }

        // The device stops first. The other way round it would use what is mapped to something
        // else by then.
        driver.revoke(
            &mut self.state,
            &Part {
                pages: pages.clone(),
                dma,
            },
        );
        self.stats.revocations += 1;
        self.stats.revoked += dma.unmap(pages) as u64;
    }

    /// Maps what a fault found, with page `first` in front.
    ///
    /// Returns the page of the fault whose alias cannot be mapped, if there is one.
    fn fill(&mut self, first: usize, valid: Valid<'_>, options: Options) -> Result<Option<usize>> {
        let dma = self.dma.as_mut().ok_or(ESHUTDOWN)?;
        let pages = first..first + valid.len();
        let before = dma.mapped();
        let results = self.results.get_mut(pages).ok_or(EINVAL)?;
        let mut fill = dma.fill(valid);
        let mut next = 0;
        let mut refused = Ok(None);

        // Of memory in a GPU, every page has one, and they are copied at once.
        if valid.results.contains(&(P2pResult::None as u8)) {
            for (new, known) in valid.results.iter().zip(results) {
                if *new != P2pResult::None as u8 {
                    *known = *new;
                }
            }
        } else {
            // The lengths are the same, but `copy_from_slice()` would keep its panic.
            for (new, known) in valid.results.iter().zip(results) {
                *known = *new;
            }
        }
        if options.resident {
            for page in 0..valid.len() {
                Self::is_resident(valid.get(page), valid.p2p_result(page), options.write)?;
            }
        }

        while let Err(NotMapped { page, error }) = fill.map_range(next..valid.len(), first + next) {
            if options.resident || !matches!(valid.get(page), Pfn::Alias(_)) {
                refused = Err(error);
                break;
            }
            refused = refused.map(|other| other.or(Some(page)));
            next = page + 1;
        }

        self.stats.mapped += (dma.mapped() - before) as u64;
        refused
    }

    /// Says whether a page is what [`Options::resident`] asks for.
    fn is_resident(pfn: Pfn<'_>, result: P2pResult, write: bool) -> Result {
        match pfn {
            Pfn::Alias(alias) if write && !alias.writable() => Err(EPERM),
            Pfn::Alias(_) => Ok(()),
            // The two that have a path were found before the page came home.
            _ => match result {
                P2pResult::None | P2pResult::BusAddr | P2pResult::HostBridge => Err(EINVAL),
                _ => Err(EOPNOTSUPP),
            },
        }
    }
}

/// The driver, and what does not change in a registration.
struct Inner<'bound, T: Ops> {
    driver: T,
    dev: &'bound Device<Bound>,
    /// The first address.
    start: usize,
    options: Options,
    /// The address of the task that is in [`Ops::revoke`], or 0.
    revoking: Atomic<usize>,
}

impl<'bound, T: Ops> Inner<'bound, T> {
    /// As [`Table::revoke`]; meanwhile [`Self::is_revoking`] knows the task.
    fn revoke(&self, table: &mut Table<'bound, T::State>, pages: Range<usize>) {
        // The lock is held, so there is one such task at a time.
        self.revoking.store(current!().as_ptr() as usize, Relaxed);
        table.revoke(&self.driver, pages);
        self.revoking.store(0, Relaxed);
    }

    /// Returns whether the calling task is in [`Ops::revoke`], and thus has the lock.
    ///
    /// Nobody else stores or clears the address of this task, so a race with others has no effect.
    fn is_revoking(&self) -> bool {
        self.revoking.load(Relaxed) == current!().as_ptr() as usize
    }
}

impl<'bound, T: Ops> notifier::Ops for Inner<'bound, T> {
    type Protected = Table<'bound, T::State>;

    fn invalidate(&self, table: &mut Self::Protected, inv: &Invalidation<'_>) {
        let addrs = inv.range();
        let first = (addrs.start - self.start) >> PAGE_SHIFT;
        let last = (addrs.end - 1 - self.start) >> PAGE_SHIFT;

        self.revoke(table, first..last + 1);
    }
}

/// The lock of a registration, held, and access to what it protects.
///
/// There is no `DerefMut`: a table that is swapped for the table of another registration would be
/// revoked for the wrong memory.
#[must_use = "the lock unlocks immediately when the guard is unused"]
pub struct Guard<'a, 'bound, S>(MutexGuard<'a, Table<'bound, S>>);

impl<S: Unpin> Guard<'_, '_, S> {
    /// Returns what the driver keeps with the table, to be changed, and the addresses of `pages`.
    ///
    /// Fails with [`EINVAL`] unless all of these pages are mapped, as they are when
    /// [`Registration::map`] returns the guard for them.
    pub fn state_and_addrs(&mut self, pages: Range<usize>) -> Result<(&mut S, &[DmaAddress])> {
        let table: &mut Table<'_, S> = &mut self.0;
        let dma = table.dma.as_ref().ok_or(EINVAL)?;

        Ok((&mut table.state, dma.addrs(pages).ok_or(EINVAL)?))
    }
}

impl<'bound, S> Deref for Guard<'_, 'bound, S> {
    type Target = Table<'bound, S>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A range of addresses of a process that a device may use.
///
/// Dropping it closes it, and sleeps until revocations that are running in the process have
/// returned. It must therefore not be dropped with a lock held that [`Ops::revoke`] of any
/// registration of the process takes, nor from there. [`close`](Self::close) waits only for
/// revocations of the registration itself: a driver can call that with such a lock held, and have
/// the registration dropped by a work item.
#[pin_data(PinnedDrop)]
pub struct Registration<'bound, T: Ops> {
    #[pin]
    notifier: IntervalNotifier<Inner<'bound, T>>,
}

/// Neither generic nor inlined: there is one class, in whatever module a registration is, and
/// lockdep wants its name to be one object, too.
#[inline(never)]
fn lock_class() -> (&'static CStr, Pin<&'static LockClassKey>) {
    (c"Registration::table", static_lock_class!())
}

impl<'bound, T: Ops> Registration<'bound, T> {
    /// Registers the addresses `range` of `mm`, aligned to pages, for DMA by `dev`.
    ///
    /// Nothing is faulted in or mapped before [`Self::map`]. There need not be any memory yet.
    ///
    /// - [`EINVAL`]: the range is empty, or not aligned.
    /// - [`E2BIG`]: the range is too large.
    /// - [`EOPNOTSUPP`]: the device cannot address all memory, or is not coherent.
    /// - [`ENOMEM`], or [`EINTR`] if the thread has a signal: see [`IntervalNotifier::new`].
    ///
    /// # Safety
    ///
    /// The registration must not be leaked, but dropped before anything that `T` or its state
    /// borrows ends, and before the module of the driver is unloaded. Before `'bound` ends, it must
    /// be dropped or closed, and no [`Self::map`] may run any more.
    pub unsafe fn new<'a>(
        dev: &'bound Device<Bound>,
        mm: &'a MmWithUser,
        range: Range<usize>,
        options: Options,
        driver: T,
        state: T::State,
    ) -> impl PinInit<Self, Error> + 'a
    where
        'bound: 'a,
        T: 'a,
    {
        pin_init::pin_init_scope(move || {
            let len = range.end.checked_sub(range.start).ok_or(EINVAL)?;
            if len == 0 || range.start % PAGE_SIZE != 0 || range.end % PAGE_SIZE != 0 {
                return Err(EINVAL);
            }
            let pages = len >> PAGE_SHIFT;
            if pages > MAX_PAGES {
                return Err(E2BIG);
            }

            let table = Table {
                // SAFETY: The caller drops or closes the registration, and thereby the map, before
                // `'bound` ends.
                dma: Some(unsafe { DmaMap::new(dev, pages)? }),
                results: KVVec::from_elem(P2pResult::None as u8, pages, GFP_KERNEL)?,
                stats: Stats::default(),
                state,
            };
            let inner = Inner {
                driver,
                dev,
                start: range.start,
                options,
                revoking: Atomic::new(0),
            };
            let (name, key) = lock_class();
            let lock = Mutex::new(table, name, key);

            Ok(try_pin_init!(Self {
                // SAFETY: As for this function.
                notifier <- unsafe { IntervalNotifier::new(mm, range, inner, lock) },
            }? Error))
        })
    }

    /// Returns the number of pages.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        let range = self.notifier.range();
        (range.end - range.start) >> PAGE_SHIFT
    }

    /// Returns the address space that the registration belongs to.
    pub fn mm(&self) -> &Mm {
        self.notifier.mm()
    }

    /// Returns what the device may do.
    pub fn options(&self) -> Options {
        self.notifier.options
    }

    /// Takes the lock.
    ///
    /// Whoever has it already, which includes [`Ops::revoke`] of this registration, waits forever.
    pub fn lock(&self) -> Guard<'_, 'bound, T::State> {
        Guard(self.notifier.lock())
    }

    /// Maps the pages `pages` that are not mapped, and returns when all of them are at the same
    /// time, with the lock held.
    ///
    /// `mm` must be the address space of the registration. As long as the lock is held, no page
    /// moves, so this is the time to give the device the addresses. Mapped pages stay mapped
    /// afterwards, also after an error, until they are revoked.
    ///
    /// This must not be called with any lock held that [`Ops::revoke`] of any registration takes:
    /// it allocates memory, and reclaim may revoke what others have registered.
    ///
    /// - [`EINVAL`]: there are no such pages. With [`Options::resident`]: it is no memory of
    ///   another device, or about to move.
    /// - [`EOPNOTSUPP`]: with [`Options::resident`]: the device cannot reach a page where it is.
    /// - [`EPERM`]: another address space, or the process must not write to the memory. With
    ///   [`Options::resident`] also: the write would need a fault first, as after `fork()`.
    /// - [`EFAULT`]: there is no memory, or none that devices can share.
    /// - [`EBUSY`]: pages move all the time.
    /// - [`EDEADLK`]: [`Ops::revoke`] of this registration calls it.
    /// - [`EINTR`]: not all pages are mapped, and the calling task has a fatal signal pending.
    /// - [`ESHUTDOWN`]: the registration is closed.
    /// - [`EIO`]: a page of host memory cannot be mapped for DMA. With [`Options::resident`]: an
    ///   alias cannot.
    /// - [`ENOMEM`]: out of memory.
    pub fn map(&self, mm: &MmWithUser, pages: Range<usize>) -> Result<Guard<'_, 'bound, T::State>> {
        if pages.start >= pages.end || pages.end > self.len() {
            return Err(EINVAL);
        }
        if mm.as_raw() != self.mm().as_raw() {
            return Err(EPERM);
        }
        if self.notifier.is_revoking() {
            return Err(EDEADLK);
        }

        let mut buf: Option<PfnBuf> = None;
        let mut guard = self.notifier.lock();
        let (mut rounds, mut next) = (0, pages.start);
        loop {
            let dma = guard.dma.as_ref().ok_or(ESHUTDOWN)?;
            // What was mapped last still is, as the lock was held since. Behind it; then in front
            // of it, where pages may have been revoked.
            let found = dma
                .first_empty(next..pages.end)
                .or_else(|| dma.first_empty(pages.start..next));
            let Some(first) = found else {
                return Ok(Guard(guard));
            };
            drop(guard);

            // Each step maps pages, but beginning in front again has no end by itself.
            rounds += usize::from(first < next);
            if rounds == ROUNDS {
                return Err(EBUSY);
            }

            let buf = match &mut buf {
                Some(buf) => {
                    buf.reset();
                    buf
                }
                none => none.insert(PfnBuf::new(BATCH.min(pages.end - pages.start), GFP_KERNEL)?),
            };
            next = pages.end.min(first + buf.len());
            guard = self.fill(mm, first..next, buf)?;
        }
    }

    /// Faults and maps pages, and returns with the lock held and them mapped.
    ///
    /// `buf` is new, or was reset.
    fn fill(
        &self,
        mm: &MmWithUser,
        pages: Range<usize>,
        buf: &mut PfnBuf,
    ) -> Result<MutexGuard<'_, Table<'bound, T::State>>> {
        let Inner {
            dev,
            start,
            options,
            ..
        } = *self.notifier;
        let mut request = Request::new(match options {
            Options { resident: true, .. } => Access::Snapshot,
            Options { write: true, .. } => Access::Write,
            _ => Access::Read,
        });
        if options.p2p {
            request = request.try_p2p(dev);
        }
        let addrs = start + (pages.start << PAGE_SHIFT)..start + (pages.end << PAGE_SHIFT);

        let mut rounds = 0;
        loop {
            // A fault asks only if it has to wait. Here nothing is locked, and what is mapped so
            // far is in the table.
            if current!().fatal_signal_pending() {
                return Err(EINTR);
            }
            let faulted = self.notifier.fault(mm, addrs.clone(), &request, buf)?;
            let mut guard = self.notifier.lock();
            let refused = match faulted.validate(&mut guard) {
                Ok((valid, table)) => table.fill(pages.start, valid, options)?,
                Err(Retry) if rounds < ROUNDS => {
                    rounds += 1;
                    continue;
                }
                Err(Retry) => return Err(EBUSY),
            };

            match refused {
                None => return Ok(guard),
                // The device can have what is not mapped now from host memory.
                Some(page) => {
                    for other in pages.clone().filter(|p| !guard.is_mapped(*p)) {
                        buf.host_only(other - pages.start);
                    }
                    drop(guard);
                    buf.host_only(page);
                }
            }
        }
    }

    /// Makes the device give back all pages, for good.
    ///
    /// Afterwards nothing is mapped, and [`Ops::revoke`] is not called any more. `'bound` may end
    /// when no [`Self::map`] runs any more.
    ///
    /// This takes the lock, so it must not be called from [`Ops::revoke`] of any registration, nor
    /// with any lock held that [`Ops::revoke`] takes: two callbacks that close each other's
    /// registration would wait for each other. Let a work item do it there.
    pub fn close(&self) {
        // From `Ops::revoke` this never returns. To return with pages still mapped would be worse:
        // the caller may unbind the device next, or free the registration.
        let mut guard = self.notifier.lock();
        let pages = 0..guard.len();

        self.notifier.revoke(&mut guard, pages);
        guard.dma = None;
    }
}

#[pinned_drop]
impl<T: Ops> PinnedDrop for Registration<'_, T> {
    fn drop(self: Pin<&mut Self>) {
        // Only then the notifier goes, and with it the driver.
        self.close();
    }
}

#[cfg(CONFIG_RUST_MM_HMM_KUNIT_TEST)]
mod tests;
