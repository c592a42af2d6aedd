// SPDX-License-Identifier: GPL-2.0

//! Reading and writing by user address as a GPU does, and looking where pages are.

use super::Gpu;
use core::ops::Range;
use kernel::{
    mm::{
        hmm::{
            Access,
            P2pResult,
            Pfn,
            PfnBuf,
            Request,
            Valid, //
        },
        notifier::{
            IntervalNotifier,
            Invalidation,
            Ops, //
        },
        MmWithUser, //
    },
    new_mutex,
    page::{
        page_align,
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

/// How many pages to access under the lock.
const ACCESS_BATCH: usize = 16;

/// How many pages to look up at a time.
const LOOKUP_BATCH: usize = PAGE_SIZE / size_of::<u64>();

// CAST: The values have 64 bits. For the bindings, they are small negative numbers.
const LOC_NONE: u64 = uapi::P2PTEST_LOC_NONE as u64;
const LOC_HOST: u64 = uapi::P2PTEST_LOC_HOST as u64;
const LOC_OTHER: u64 = uapi::P2PTEST_LOC_OTHER as u64;

/// A look at some addresses of a process, for the duration of a call.
///
/// There is nothing to be invalidated: pages are accessed only while the lock is held, and an
/// invalidation waits for that.
struct View;

impl View {
    fn new(mm: &MmWithUser, range: Range<usize>) -> Result<Pin<KBox<IntervalNotifier<Self>>>> {
        let lock = new_mutex!((), "p2ptest_gpu::view");

        // SAFETY: Callers drop it before they return from a call of user space.
        KBox::pin_init(
            unsafe { IntervalNotifier::new(mm, range, Self, lock) },
            GFP_KERNEL,
        )
    }
}

impl Ops for View {
    type Protected = ();

    fn invalidate(&self, _protected: &mut (), _inv: &Invalidation<'_>) {}
}

/// Faults `range` and calls `f` with what is there, while nothing of it changes.
fn with_pages<R>(
    view: &IntervalNotifier<View>,
    mm: &MmWithUser,
    range: Range<usize>,
    request: &Request<'_>,
    buf: &mut PfnBuf,
    go_on: &dyn Fn() -> Result,
    f: impl FnOnce(Valid<'_>) -> R,
) -> Result<R> {
    buf.reset();

    loop {
        go_on()?;

        let faulted = match view.fault(mm, range.clone(), request, buf) {
            Ok(faulted) => faulted,
            // The range changes all the time. It is up to the caller how long to go on.
            Err(EBUSY) => continue,
            Err(err) => return Err(err),
        };

        let mut guard = view.lock();
        if let Ok((valid, ())) = faulted.validate(&mut guard) {
            return Ok(f(valid));
        }
    }
}

/// What an access reached.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reached {
    pub(crate) vram_pages: u64,
    pub(crate) host_pages: u64,
}

/// Why pages could not be accessed.
enum Refused {
    /// A page on the device can not be written to because it is shared, as after `fork()`. HMM
    /// tells the owner about such a page even if write access was asked for.
    ReadOnly,
    Error(Error),
}

impl From<Error> for Refused {
    fn from(err: Error) -> Self {
        Self::Error(err)
    }
}

impl Gpu<'_> {
    /// Reads from `range` of a process to its buffer `buf`, or writes what is there to `range`.
    pub(crate) fn access(
        &self,
        mm: &MmWithUser,
        range: Range<usize>,
        buf: UserPtr,
        write: bool,
        reached: &mut Reached,
        go_on: &dyn Fn() -> Result,
    ) -> Result {
        let pages = (range.start & PAGE_MASK)..page_align(range.end).ok_or(EINVAL)?;
        let view = View::new(mm, pages)?;
        let host = Request::new(if write { Access::Write } else { Access::Read });
        let anywhere = host.device_private_of(&self.map);
        let mut pfns = PfnBuf::new(ACCESS_BATCH, GFP_KERNEL)?;
        let mut bytes = KVec::from_elem(0u8, ACCESS_BATCH * PAGE_SIZE, GFP_KERNEL)?;
        let (mut reader, mut writer) = UserSlice::new(buf, range.len()).reader_writer();
        let mut addr = range.start;

        while addr < range.end {
            let first = addr & PAGE_MASK;
            let end = range
                .end
                .min(first.saturating_add(ACCESS_BATCH * PAGE_SIZE));
            let pages = first..page_align(end).ok_or(EINVAL)?;
            let bytes = &mut bytes[..end - addr];

            // User memory can not be touched under the lock, nor while pages are being looked up.
            if write {
                reader.read_slice(bytes)?;
            }

            let mut attempt = |request| {
                with_pages(
                    &view,
                    mm,
                    pages.clone(),
                    request,
                    &mut pfns,
                    go_on,
                    |valid| self.access_pages(valid, addr - first, bytes, write),
                )
            };
            let result = match attempt(&anywhere)? {
                // As seen from anybody else, the page is written to by the process: it comes home,
                // and the process gets a copy of its own.
                Err(Refused::ReadOnly) => attempt(&host)?,
                result => result,
            };
            match result {
                Ok(part) => {
                    reached.vram_pages += part.vram_pages;
                    reached.host_pages += part.host_pages;
                }
                Err(Refused::ReadOnly) => return Err(EPERM),
                Err(Refused::Error(err)) => return Err(err),
            }

            if !write {
                writer.write_slice(bytes)?;
            }
            addr = end;
        }

        Ok(())
    }

    /// Reads or writes `bytes`, from `offset` of the first page on.
    fn access_pages(
        &self,
        valid: Valid<'_>,
        mut offset: usize,
        bytes: &mut [u8],
        write: bool,
    ) -> Result<Reached, Refused> {
        let mut reached = Reached::default();
        let mut done = 0;

        for pfn in valid.iter() {
            let len = (bytes.len() - done).min(PAGE_SIZE - offset);
            let part = &mut bytes[done..done + len];

            match pfn {
                Pfn::Host(pfn) => {
                    reached.host_pages += 1;
                    if write {
                        pfn.write(offset, part)?;
                    } else {
                        pfn.read(offset, part)?;
                    }
                }
                Pfn::DevicePrivate(pfn) => {
                    let index = self.map.index(pfn.pfn()).ok_or(EIO)?;

                    reached.vram_pages += 1;
                    if !write {
                        self.map.read(index, offset, part)?;
                    } else if pfn.writable() {
                        self.map.write(index, offset, part)?;
                    } else {
                        return Err(Refused::ReadOnly);
                    }
                }
                // A fault that succeeded leaves no holes, and aliases were not asked for.
                _ => return Err(EFAULT.into()),
            }
            done += len;
            offset = 0;
        }

        Ok(reached)
    }

    /// Writes to `locs` where each page of `range` is, without moving any.
    pub(crate) fn lookup(
        &self,
        mm: &MmWithUser,
        range: Range<usize>,
        locs: UserPtr,
        go_on: &dyn Fn() -> Result,
    ) -> Result {
        let view = View::new(mm, range.clone())?;
        // Asking for aliases is how to recognise the memory of other devices. It does not matter
        // whether this device can reach it.
        let request = Request::new(Access::Snapshot)
            .device_private_of(&self.map)
            .try_p2p(self.pdev.as_ref());
        let mut pfns = PfnBuf::new(LOOKUP_BATCH, GFP_KERNEL)?;
        let mut found = KVec::with_capacity(LOOKUP_BATCH, GFP_KERNEL)?;
        let nr = range.len() >> PAGE_SHIFT;
        let mut writer = UserSlice::new(locs, nr * size_of::<u64>()).writer();
        let mut addr = range.start;

        while addr < range.end {
            let end = range.end.min(addr.saturating_add(LOOKUP_BATCH * PAGE_SIZE));

            found.clear();
            with_pages(&view, mm, addr..end, &request, &mut pfns, go_on, |valid| {
                for i in 0..valid.len() {
                    found
                        .push_within_capacity(self.locate(&valid, i))
                        .map_err(|_| ENOMEM)?;
                }
                Ok::<_, Error>(())
            })??;
            for loc in &found {
                writer.write(loc)?;
            }
            addr = end;
        }

        Ok(())
    }

    /// Returns where a page is, as `struct p2ptest_gpu_lookup` has it.
    fn locate(&self, valid: &Valid<'_>, i: usize) -> u64 {
        match valid.get(i) {
            Pfn::Host(_) => LOC_HOST,
            Pfn::DevicePrivate(pfn) => match self.map.index(pfn.pfn()) {
                Some(index) => {
                    let readonly = if pfn.writable() {
                        0
                    } else {
                        uapi::P2PTEST_LOC_RDONLY
                    };
                    (index * PAGE_SIZE) as u64 | readonly
                }
                None => LOC_OTHER,
            },
            Pfn::Alias(_) => LOC_OTHER,
            Pfn::None | Pfn::Error => match valid.p2p_result(i) {
                P2pResult::None => LOC_NONE,
                _ => LOC_OTHER,
            },
        }
    }
}
