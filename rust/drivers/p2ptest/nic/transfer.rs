// SPDX-License-Identifier: GPL-2.0

//! Transfers: the NIC reads or writes a region.

use core::ops::Range;

use super::{
    edu::Engine,
    region::{
        MapError,
        PageTable,
        Region, //
    },
    Nic, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    mm::{
        hmm::{
            Access,
            PfnBuf,
            Request,
            Retry, //
        },
        notifier::IntervalNotifier,
        MmWithUser, //
    },
    page::{
        page_align,
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::MutexGuard,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
};

/// How many pages to fault at a time.
const BATCH: usize = 512;

/// Which way a transfer goes, seen from the NIC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The NIC reads memory.
    Read,
    /// The NIC writes memory.
    Write,
}

/// What a transfer took.
#[derive(Default)]
pub(crate) struct Stats {
    /// Bytes transferred.
    pub(crate) done: usize,
    /// Range faults.
    pub(crate) faults: u32,
    /// Times that a page moved between fault and DMA.
    pub(crate) retries: u32,
}

/// A transfer in progress.
pub(crate) struct Transfer<'a, 'bound> {
    nic: &'a Nic<'bound>,
    region: &'a IntervalNotifier<Region<'bound>>,
    mm: &'a MmWithUser,
    /// Whether to go on; asked between any two chunks or faults.
    go_on: &'a dyn Fn() -> Result,
    direction: Direction,
    /// The addresses to transfer.
    addrs: Range<usize>,
    request: Request<'a>,
    pfns: PfnBuf,
    /// How many pages to fault at a time.
    batch: usize,
    /// The end of what was faulted in so far.
    faulted: usize,
    stats: Stats,
}

impl<'a, 'bound> Transfer<'a, 'bound> {
    /// Prepares a transfer to or from `addrs`, which must be in the region.
    pub(crate) fn new(
        nic: &'a Nic<'bound>,
        region: &'a IntervalNotifier<Region<'bound>>,
        mm: &'a MmWithUser,
        addrs: Range<usize>,
        direction: Direction,
        go_on: &'a dyn Fn() -> Result,
    ) -> Result<Self> {
        let dev: &'a Device<Bound> = nic.pdev.as_ref();
        let mut request = Request::new(match direction {
            Direction::Read => Access::Read,
            Direction::Write => Access::Write,
        });
        if region.permissions().p2p {
            request = request.try_p2p(dev);
        }

        let pages =
            (page_align(addrs.end).ok_or(EINVAL)? - (addrs.start & PAGE_MASK)) >> PAGE_SHIFT;
        let batch = pages.min(BATCH);

        Ok(Self {
            nic,
            region,
            mm,
            go_on,
            direction,
            faulted: addrs.start & PAGE_MASK,
            addrs,
            request,
            pfns: PfnBuf::new(batch, GFP_KERNEL)?,
            batch,
            stats: Stats::default(),
        })
    }

    /// Returns what the transfer took so far.
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Does the transfer, to or from the caller's buffer `buf`.
    pub(crate) fn run(&mut self, buf: UserPtr) -> Result {
        let len = self.addrs.end - self.addrs.start;
        let (mut reader, mut writer) = UserSlice::new(buf, len).reader_writer();
        let max = self.nic.engine.lock().max_transfer();
        let mut data = KVec::from_elem(0u8, max, GFP_KERNEL)?;

        while self.stats.done < len {
            (self.go_on)()?;

            let addr = self.addrs.start + self.stats.done;
            let len = (self.addrs.end - addr)
                .min(PAGE_SIZE - addr % PAGE_SIZE)
                .min(max);
            let data = &mut data[..len];

            if self.direction == Direction::Write {
                reader.read_slice(data)?;
            }
            self.chunk(addr, data)?;
            if self.direction == Direction::Read {
                writer.write_slice(data)?;
            }

            self.stats.done += len;
        }

        Ok(())
    }

    /// Transfers a part of a page.
    fn chunk(&mut self, addr: usize, data: &mut [u8]) -> Result {
        let index = self.region.index(addr);
        let nic = self.nic;
        let region = self.region;

        {
            let mut engine = nic.engine.lock();
            let table = region.lock();
            if table
                .get(index, self.direction == Direction::Write)
                .is_some()
            {
                return self.copy(&mut engine, table, addr, data);
            }
        }

        if addr < self.faulted {
            self.stats.retries += 1;
        }
        self.pfns.reset();

        loop {
            (self.go_on)()?;

            let start = addr & PAGE_MASK;
            let end = page_align(self.addrs.end)
                .ok_or(EINVAL)?
                .min(start.saturating_add(self.batch * PAGE_SIZE));

            self.stats.faults += 1;
            let faulted = match region.fault(self.mm, start..end, &self.request, &mut self.pfns) {
                Ok(faulted) => faulted,
                // The range changes all the time. It is up to the caller how long to go on.
                Err(EBUSY) => {
                    self.stats.retries += 1;
                    continue;
                }
                // A page is not there, or must not be written. If it is not this one, get as far as
                // possible. Other errors are not about a page: fewer of them are no way out.
                Err(EFAULT | EPERM) if end - start > PAGE_SIZE => {
                    self.batch = 1;
                    continue;
                }
                Err(err) => return Err(err),
            };

            // From here on the page cannot move until the copy is done. In particular, there is no
            // gap in which somebody who invalidates it all the time could prevent all progress.
            let mut engine = nic.engine.lock();
            let mut table = region.lock();
            let result = match faulted.validate(&mut table) {
                Ok((valid, table)) => table.fill(index, valid),
                Err(Retry) => {
                    self.stats.retries += 1;
                    continue;
                }
            };

            match result {
                Ok(()) => {
                    self.faulted = self.faulted.max(end);
                    return self.copy(&mut engine, table, addr, data);
                }
                Err(MapError::Alias) => self.pfns.host_only(0),
                Err(MapError::Host(err)) => return Err(err),
            }
        }
    }

    /// Makes the engine transfer a part of a page that is in the page table.
    fn copy(
        &self,
        engine: &mut Engine<'_>,
        table: MutexGuard<'_, PageTable<'bound>>,
        addr: usize,
        data: &mut [u8],
    ) -> Result {
        let index = self.region.index(addr);
        let offset = addr % PAGE_SIZE;
        let write = self.direction == Direction::Write;
        let mapping = table.get(index, write).ok_or(EIO)?;

        if write {
            engine.load(data)?;
            engine.write(&mapping, offset, data.len())
        } else {
            engine.read(&mapping, offset, data.len())?;
            // The bytes are in the device. The page may go.
            drop(table);
            engine.unload(data)
        }
    }
}
