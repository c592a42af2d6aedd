// SPDX-License-Identifier: GPL-2.0

//! What processes registered with the NIC, by the handles that user space has.

use kernel::{
    mm::{
        Mm,
        MmWithUser, //
    },
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Names an object: the file that it was registered with, and the handle given to user space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) file: u64,
    pub(crate) handle: u32,
}

/// Something in an address space.
pub(crate) trait InMm {
    /// Returns the address space.
    fn mm(&self) -> &Mm;
}

/// All objects of a kind.
#[pin_data]
pub(crate) struct Handles<T> {
    #[pin]
    objects: Mutex<RBTree<Key, Arc<T>>>,
}

impl<T: InMm> Handles<T> {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            objects <- new_mutex!(RBTree::new(), "p2ptest_nic::handles"),
        })
    }

    /// Gives an object a handle. `new_id` returns numbers that it did not return before.
    pub(crate) fn add(&self, file: u64, new_id: impl Fn() -> u64, object: Arc<T>) -> Result<Key> {
        let mut objects = self.objects.lock();

        // Handles wrap around, so the next one may be in use.
        loop {
            let key = Key {
                file,
                // CAST: Truncates.
                handle: new_id() as u32,
            };
            if objects.get(&key).is_none() {
                objects.try_create_and_insert(key, object, GFP_KERNEL)?;
                return Ok(key);
            }
        }
    }

    /// Returns an object, if it is one of `mm`.
    pub(crate) fn get(&self, key: Key, mm: &MmWithUser) -> Result<Arc<T>> {
        let object = self.objects.lock().get(&key).cloned().ok_or(ENOENT)?;
        if object.mm().as_raw() != mm.as_raw() {
            return Err(EPERM);
        }
        Ok(object)
    }

    /// Ends an object, when the transfers that use it are over.
    pub(crate) fn end(&self, key: Key) {
        let node = self.objects.lock().remove_node(&key);
        // Removes the notifier, which may sleep for long. So not under the lock.
        drop(node);
    }

    /// Ends all objects of a file.
    pub(crate) fn end_file(&self, file: u64) {
        loop {
            let first = Key { file, handle: 0 };
            let key = match self.objects.lock().cursor_lower_bound(&first) {
                Some(cursor) if cursor.current().0.file == file => *cursor.current().0,
                _ => return,
            };
            self.end(key);
        }
    }
}
