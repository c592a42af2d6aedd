// SPDX-License-Identifier: GPL-2.0

//! BAR windows: what the window pool needs to know about the BAR.

use super::VRAM_BAR;
use kernel::{
    gpu::window::{
        Hardware,
        Placement, //
    },
    pci::p2pdma::{
        AliasRange,
        Provider, //
    },
    prelude::*, //
};

/// The BAR of the device.
///
/// It shows all of the memory, and every chunk at its own place. So a chunk can have its window
/// only there, and what takes the place of mapping it is to register that part of the BAR as a
/// range that peers may reach. How small the BAR seems to be is up to the range that the pool
/// manages: a chunk whose place is outside gets no window.
pub(crate) struct Bar<'bound> {
    provider: Option<Provider<'bound>>,
}

impl<'bound> Bar<'bound> {
    /// `provider` is [`None`] if the kernel does not do peer-to-peer DMA. Then there are no
    /// windows.
    pub(crate) fn new(provider: Option<Provider<'bound>>) -> Self {
        Self { provider }
    }
}

impl<'bound> Hardware for Bar<'bound> {
    /// The offset of the chunk in the memory.
    type Chunk = u64;
    type Mapping = AliasRange<'bound>;

    fn placement(&self, offset: &u64) -> Placement {
        Placement::Fixed(*offset)
    }

    fn map(&self, _offset: &u64, position: u64, size: u64) -> Result<AliasRange<'bound>> {
        // Adjacent windows are ranges of their own. A folio is never in two of them.
        let provider = self.provider.ok_or(EOPNOTSUPP)?;

        // SAFETY: The pool keeps it and does not leak it. The pool is part of the data behind the
        // gate, which is dropped before `'bound` ends.
        unsafe { provider.register_range(VRAM_BAR, position, size) }
    }
}
