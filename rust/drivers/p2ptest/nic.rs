// SPDX-License-Identifier: GPL-2.0

//! The NIC, as long as its device is bound, and the list of its regions.

use kernel::{
    device::Bound,
    mm::{
        notifier::IntervalNotifier,
        MmWithUser, //
    },
    new_mutex,
    pci,
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

pub(crate) mod edu;
pub(crate) mod file;
pub(crate) mod region;
pub(crate) mod transfer;

use edu::Engine;
use region::Region;

/// Names a region: the file that it was registered with, and the handle given to user space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionKey {
    pub(crate) file: u64,
    pub(crate) handle: u32,
}

type Regions<'bound> = RBTree<RegionKey, Arc<IntervalNotifier<Region<'bound>>>>;

/// What a device has as long as it is bound.
#[pin_data]
pub(crate) struct Nic<'bound> {
    // Before the engine, so that regions are unmapped while the registers are still there.
    #[pin]
    regions: Mutex<Regions<'bound>>,
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
                regions <- new_mutex!(RBTree::new(), "p2ptest_nic::regions"),
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

    /// Gives a region a handle.
    fn add_region(
        &self,
        file: u64,
        region: Arc<IntervalNotifier<Region<'bound>>>,
    ) -> Result<RegionKey> {
        let mut regions = self.regions.lock();

        // Handles wrap around, so the next one may be in use.
        loop {
            let key = RegionKey {
                file,
                // CAST: Truncates.
                handle: self.new_id() as u32,
            };
            if regions.get(&key).is_none() {
                regions.try_create_and_insert(key, region, GFP_KERNEL)?;
                return Ok(key);
            }
        }
    }

    /// Returns a region, if it is one of `mm`.
    fn region(
        &self,
        key: RegionKey,
        mm: &MmWithUser,
    ) -> Result<Arc<IntervalNotifier<Region<'bound>>>> {
        let region = self.regions.lock().get(&key).cloned().ok_or(ENOENT)?;
        if region.mm().as_raw() != mm.as_raw() {
            return Err(EPERM);
        }
        Ok(region)
    }

    /// Ends a region, when the transfers that use it are over.
    fn end_region(&self, key: RegionKey) {
        let node = self.regions.lock().remove_node(&key);
        // Removes the notifier, which may sleep for long. So not under the lock.
        drop(node);
    }

    /// Ends all regions of a file.
    fn end_file(&self, file: u64) {
        loop {
            let first = RegionKey { file, handle: 0 };
            let key = match self.regions.lock().cursor_lower_bound(&first) {
                Some(cursor) if cursor.current().0.file == file => *cursor.current().0,
                _ => return,
            };
            self.end_region(key);
        }
    }
}
