// SPDX-License-Identifier: GPL-2.0

//! The NIC, as long as its device is bound, and the lists of what is registered with it.

use kernel::{
    device::Bound,
    mm::{
        notifier::IntervalNotifier,
        Mm, //
    },
    new_mutex,
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Mutex, //
    }, //
};

pub(crate) mod edu;
pub(crate) mod file;
pub(crate) mod handles;
pub(crate) mod pinned;
pub(crate) mod region;
pub(crate) mod transfer;

use edu::Engine;
use handles::{
    Handles,
    InMm, //
};
use pinned::Pinned;
use region::Region;

impl InMm for IntervalNotifier<Region<'_>> {
    fn mm(&self) -> &Mm {
        IntervalNotifier::mm(self)
    }
}

/// What a device has as long as it is bound.
#[pin_data]
pub(crate) struct Nic<'bound> {
    // Before the engine, so that these are unmapped while the registers are still there.
    #[pin]
    regions: Handles<IntervalNotifier<Region<'bound>>>,
    #[pin]
    pinned: Handles<Pinned<'bound>>,
    #[pin]
    engine: Mutex<Engine<'bound>>,
    pdev: &'bound pci::Device<Bound>,
    last_id: Atomic<u64>,
}

impl<'bound> Nic<'bound> {
    pub(crate) fn new(
        pdev: &'bound pci::Device<Bound>,
        max_transfer: usize,
    ) -> impl PinInit<Self, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let engine = Engine::new(pdev, max_transfer)?;

            Ok(try_pin_init!(Self {
                regions <- Handles::new(),
                pinned <- Handles::new(),
                engine <- new_mutex!(engine, "p2ptest_nic::engine"),
                pdev,
                last_id: Atomic::new(0),
            }? Error))
        })
    }

    /// Returns a number that was not returned before.
    fn new_id(&self) -> u64 {
        self.last_id.fetch_add(1, Relaxed) + 1
    }

    /// Ends all that belongs to a file.
    fn end_file(&self, file: u64) {
        self.regions.end_file(file);
        self.pinned.end_file(file);
    }
}
