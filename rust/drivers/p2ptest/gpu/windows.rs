// SPDX-License-Identifier: GPL-2.0

//! BAR windows: what the window pool needs to know about the BAR.

use super::{
    CHUNK_SIZE,
    REGS_BAR,
    VRAM_BAR, //
};
use core::ops::Range;
use kernel::{
    device::Core,
    gpu::window::Hardware,
    mm::pagemap::Alias,
    pci::{
        self,
        p2pdma::{
            AliasRange,
            Provider, //
        },
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The BAR of the device.
///
/// It shows all of the memory, and every chunk at its own place. So a chunk can have its window
/// only there, and what takes the place of mapping it is to register that part of the BAR as a
/// range that peers may reach. A chunk outside of the bytes from `start` to `end` gets no window,
/// as if the BAR did not show it.
pub(crate) struct Bar<'bound> {
    // `Gpu::moving` orders these with the mapping of windows.
    start: Atomic<u64>,
    end: Atomic<u64>,
    /// The BAR of the memory, and another one, in which nothing is registered. [`None`] if the
    /// kernel does not do peer-to-peer DMA. Then there are no windows.
    providers: Option<[Provider<'bound>; 2]>,
    /// Aliases are in the other BAR, to see that HMM refuses what is outside of the windows.
    bad_alias: Atomic<bool>,
}

impl<'bound> Bar<'bound> {
    pub(crate) fn new(pdev: &'bound pci::Device<Core<'_>>, visible: Range<u64>) -> Result<Self> {
        let providers = match Provider::new(pdev, VRAM_BAR) {
            Err(EOPNOTSUPP) => None,
            vram => Some([vram?, Provider::new(pdev, REGS_BAR)?]),
        };

        Ok(Self {
            start: Atomic::new(visible.start),
            end: Atomic::new(visible.end),
            providers,
            bad_alias: Atomic::new(false),
        })
    }

    /// Returns which bytes of the memory peers may reach.
    ///
    /// Callers hold [`Gpu::moving`](super::Gpu::moving).
    pub(crate) fn visible(&self) -> Range<u64> {
        self.start.load(Relaxed)..self.end.load(Relaxed)
    }

    /// Changes which bytes of the memory peers may reach. Windows that are mapped stay.
    ///
    /// Callers hold [`Gpu::moving`](super::Gpu::moving).
    pub(crate) fn set_visible(&self, visible: Range<u64>) {
        self.start.store(visible.start, Relaxed);
        self.end.store(visible.end, Relaxed);
    }

    /// Makes all aliases wrong, or right again.
    pub(crate) fn set_bad_alias(&self, bad: bool) {
        self.bad_alias.store(bad, Relaxed);
    }

    /// Returns the alias of a page that is at `position` of the BAR.
    pub(crate) fn alias(&self, position: u64, pages: Range<usize>) -> Option<Alias<'_>> {
        let [vram, other] = self.providers.as_ref()?;

        if self.bad_alias.load(Relaxed) {
            return Alias::new(other, 0, pages);
        }
        Alias::new(vram, position, pages)
    }
}

impl<'bound> Hardware for Bar<'bound> {
    /// The offset of the chunk in the memory.
    type Chunk = u64;
    type Mapping = AliasRange<'bound>;

    fn map(&self, offset: &u64) -> Result<(AliasRange<'bound>, u64)> {
        let [vram, _] = self.providers.ok_or(EOPNOTSUPP)?;
        if !self.visible().contains(offset) {
            return Err(ERANGE);
        }

        // Adjacent windows are ranges of their own. A folio is never in two of them.
        //
        // SAFETY: The pool keeps it and does not leak it. The pool is part of the data behind the
        // gate, which is dropped before `'bound` ends, and so are the windows that refer to it.
        let range = unsafe { vram.register_range(*offset, CHUNK_SIZE as u64)? };
        Ok((range, *offset))
    }
}
