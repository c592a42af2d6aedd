// SPDX-License-Identifier: GPL-2.0

//! The NIC as a card without page faults, which copies from one registered buffer to another.
//!
//! A process registers a source and a destination once. The card gets the addresses of all pages,
//! and keeps them in a list of its own from one copy to the next. It uses nothing but this list. So
//! if anybody forgot to take an address from the list, the card would go on using it, as a real one
//! does.

use super::{
    edu::Engine,
    handles::InMm,
    Nic, //
};
use core::ops::Range;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::DmaAddress,
    mm::{
        hmm::{
            dma::Route,
            registration::{
                Guard,
                Ops,
                Options,
                Part,
                Registration,
                Stats, //
            }, //
        },
        Mm,
        MmWithUser, //
    },
    page::{
        page_align,
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc,
    uapi, //
};

/// The longest buffer, as the list is allocated with it.
const MAX_LEN: usize = 1 << 30;

/// The card's side of a registration.
pub(crate) struct Card;

/// What the card knows of a buffer: the address of each page that it may use, or [`NONE`].
type List = KVVec<DmaAddress>;

/// `DMA_MAPPING_ERROR`, which is no address.
const NONE: DmaAddress = DmaAddress::MAX;

impl Ops for Card {
    type State = List;

    fn revoke(&self, list: &mut List, part: &Part<'_>) {
        // The card uses an address only while the lock is held. As we have it, the DMA that was in
        // flight is complete.
        list[part.pages()].fill(NONE);
    }
}

/// A registered buffer.
#[pin_data]
pub(crate) struct Pinned<'bound> {
    #[pin]
    registration: Registration<'bound, Card>,
    /// The addresses that were registered; the registration has them rounded to pages.
    addrs: Range<usize>,
}

impl InMm for Pinned<'_> {
    fn mm(&self) -> &Mm {
        self.registration.mm()
    }
}

impl<'bound> Pinned<'bound> {
    /// Registers `len` bytes at `addr` in `mm`, and tells the card all addresses.
    pub(crate) fn new(
        dev: &'bound Device<Bound>,
        mm: &MmWithUser,
        addr: usize,
        len: usize,
        options: Options,
    ) -> Result<Arc<Self>> {
        let end = addr.checked_add(len).ok_or(EINVAL)?;
        let range = (addr & PAGE_MASK)..page_align(end).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        if len > MAX_LEN {
            return Err(E2BIG);
        }
        let pages = (range.end - range.start) >> PAGE_SHIFT;
        let list = KVVec::from_elem(NONE, pages, GFP_KERNEL)?;

        // SAFETY: References to it are in `Nic::pinned`, and with those who are behind the gate of
        // that `Nic`. Both end before `'bound` does. Neither leaks one.
        let registration = unsafe { Registration::new(dev, mm, range, options, Card, list) };
        let pinned = Arc::pin_init(
            try_pin_init!(Self {
                registration <- registration,
                addrs: addr..end,
            }? Error),
            GFP_KERNEL,
        )?;

        pinned.tell(mm, 0..pages)?;
        Ok(pinned)
    }

    /// Returns how many bytes were registered.
    pub(crate) fn len(&self) -> usize {
        self.addrs.end - self.addrs.start
    }

    /// Returns what the card may do.
    pub(crate) fn options(&self) -> Options {
        self.registration.options()
    }

    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.registration.len()
    }

    /// Maps pages, and tells the card where they are.
    fn tell(&self, mm: &MmWithUser, pages: Range<usize>) -> Result {
        let mut table = self.registration.map(mm, pages.clone())?;
        let (list, addrs) = table.state_and_addrs(pages.clone())?;

        list[pages].copy_from_slice(addrs);
        Ok(())
    }

    /// Has the card do something with the address for byte `at`. False if it has none.
    fn dma(&self, at: usize, f: impl FnOnce(DmaAddress) -> Result) -> Result<bool> {
        let (page, offset) = self.place(at);
        let table = self.registration.lock();

        match table.state()[page] {
            NONE => Ok(false),
            addr => f(addr + offset as u64).map(|()| true),
        }
    }

    /// Returns the page that has byte `at`, and where it is there.
    fn place(&self, at: usize) -> (usize, usize) {
        let addr = (self.addrs.start % PAGE_SIZE) + at;
        (addr >> PAGE_SHIFT, addr % PAGE_SIZE)
    }

    /// Returns what happened so far, and in how many runs the pages are for the card.
    pub(crate) fn stats(&self) -> (Stats, usize) {
        let table = self.registration.lock();
        (table.stats(), table.runs(0..table.len()).count())
    }

    /// Describes some pages for user space.
    pub(crate) fn describe(
        &self,
        mut pages: Range<usize>,
        push: &mut dyn FnMut(Description) -> Result,
    ) -> Result {
        let table = self.registration.lock();
        pages.try_for_each(|page| push(describe(&table, page)))
    }
}

type Description = uapi::p2ptest_nic_page;

fn describe(table: &Guard<'_, '_, List>, page: usize) -> Description {
    // A page that is not in the card's list is not mapped for the card.
    let mapping = table.get(page).filter(|_| table.state()[page] != NONE);

    Description {
        kind: match mapping.map(|mapping| mapping.route()) {
            None => uapi::P2PTEST_PAGE_UNMAPPED,
            Some(Route::Host) => uapi::P2PTEST_PAGE_HOST,
            Some(Route::BusAddr) => uapi::P2PTEST_PAGE_BUS_ADDR,
            Some(Route::HostBridge) => uapi::P2PTEST_PAGE_HOST_BRIDGE,
        } as u8,
        reason: table.p2p_result(page) as u8,
        writable: mapping.is_some_and(|mapping| mapping.writable()).into(),
        pad: 0,
    }
}

/// A copy in progress, from `src` to `dst`.
pub(crate) struct Copy<'a, 'bound> {
    pub(crate) nic: &'a Nic<'bound>,
    pub(crate) mm: &'a MmWithUser,
    /// Whether to go on; asked between any two chunks.
    pub(crate) go_on: &'a dyn Fn() -> Result,
    pub(crate) src: &'a Pinned<'bound>,
    pub(crate) dst: &'a Pinned<'bound>,
    /// Bytes copied.
    pub(crate) done: usize,
    /// Times that the card lacked a page that was revoked.
    pub(crate) remapped: u32,
}

impl Copy<'_, '_> {
    /// Copies `len` bytes from `from` in the source to `to` in the destination.
    pub(crate) fn run(&mut self, from: usize, to: usize, len: usize) -> Result {
        let max = self.nic.engine.lock().max_transfer();

        while self.done < len {
            let (from, to) = (from + self.done, to + self.done);
            let chunk = (len - self.done)
                .min(max)
                .min(PAGE_SIZE - self.src.place(from).1)
                .min(PAGE_SIZE - self.dst.place(to).1);

            self.chunk(from, to, chunk)?;
            self.done += chunk;
        }
        Ok(())
    }

    /// Copies a part of a page, and brings pages back that the card lacks.
    fn chunk(&mut self, from: usize, to: usize, len: usize) -> Result {
        loop {
            (self.go_on)()?;

            let (lacks, at) = {
                // Held over both steps, as the bytes are in the card in between. A step holds the
                // lock of one registration.
                let mut engine = self.nic.engine.lock();
                let engine: &mut Engine<'_> = &mut engine;

                if !self.src.dma(from, |addr| engine.fetch(addr, len))? {
                    (self.src, from)
                } else if !self.dst.dma(to, |addr| engine.store(addr, len))? {
                    (self.dst, to)
                } else {
                    return Ok(());
                }
            };

            // Not with the engine, which others need: it may take long to fault a page in.
            let page = lacks.place(at).0;
            lacks.tell(self.mm, page..page + 1)?;
            self.remapped += 1;
        }
    }
}
