// SPDX-License-Identifier: GPL-2.0

//! What the files of the test GPU and the test NIC have in common: which device is behind which
//! file, and the arguments of their calls. The crate of each has a copy of this module.

use core::ops::Range;
use kernel::{
    current,
    prelude::*,
    sync::gate::Gate,
    types::ForLt, //
};

/// Defines `SLOTS`, the devices of a driver by number, and `Slot`, such a number.
///
/// `$gate` is the type of the gate in front of a device, `$names` are the names of the files.
macro_rules! slots {
    ($gate:ty, $names:expr) => {
        const NAMES: [&CStr; 4] = $names;

        kernel::sync::global_lock! {
            /// The devices by number: what an open of a file finds.
            // SAFETY: Initialised when the module is.
            pub(crate) unsafe(uninit) static SLOTS: Mutex<[Option<Arc<$gate>>; 4]> =
                [const { None }; 4];
        }

        /// The number of a device.
        ///
        /// # Invariants
        ///
        /// `SLOTS` has the device at index `.0`, which is less than 4, and nobody else has this
        /// number.
        pub(crate) struct Slot(usize);

        impl Slot {
            /// Gives a device the lowest number that is free.
            pub(crate) fn claim(gate: Arc<$gate>) -> Result<Self> {
                let mut slots = SLOTS.lock();
                let index = slots.iter().position(Option::is_none).ok_or(ENOSPC)?;

                slots[index] = Some(gate);
                // INVARIANT: The slot was free, and is taken now.
                Ok(Self(index))
            }

            /// Returns the name of the file.
            pub(crate) fn name(&self) -> &'static CStr {
                NAMES[self.0]
            }

            /// Returns the device behind the file of this name.
            fn find(name: &CStr) -> Result<Arc<$gate>> {
                let index = NAMES.iter().position(|n| *n == name).ok_or(ENODEV)?;

                SLOTS.lock()[index].clone().ok_or(ENODEV)
            }
        }

        impl Drop for Slot {
            fn drop(&mut self) {
                let gate = SLOTS.lock()[self.0].take();
                drop(gate);
            }
        }
    };
}

/// Defines a type for a C structure that is copied from and to user space.
macro_rules! argument {
    ($name:ident, $c:ident) => {
        #[repr(transparent)]
        struct $name(kernel::uapi::$c);

        // SAFETY: A structure of integers; all bit patterns are valid.
        unsafe impl kernel::transmute::FromBytes for $name {}
        // SAFETY: It has neither padding, which the header makes explicit, nor interior mutability.
        unsafe impl kernel::transmute::AsBytes for $name {}
    };
}

/// Returns a range of user addresses, if it is one.
pub(crate) fn bytes(addr: u64, len: u64) -> Result<Range<usize>> {
    let start = usize::try_from(addr)?;
    let end = start.checked_add(usize::try_from(len)?).ok_or(EINVAL)?;
    if start == end {
        return Err(EINVAL);
    }
    Ok(start..end)
}

/// Tells a call that takes long whether to go on.
///
/// A signal may be none that the process gets to know of: the freezer's, before a suspend. Then
/// the call begins again.
pub(crate) fn go_on<T: ForLt>(gate: &Gate<T>) -> Result {
    if !gate.is_open() {
        Err(ENODEV)
    } else if current!().signal_pending() {
        Err(ERESTARTSYS)
    } else {
        Ok(())
    }
}
