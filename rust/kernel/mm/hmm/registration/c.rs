// SPDX-License-Identifier: GPL-2.0

//! Registrations for drivers in C.
//!
//! C header: [`include/linux/hmm-registration.h`](srctree/include/linux/hmm-registration.h)

use super::{
    Ops,
    Options,
    Part,
    Registration, //
};
use crate::{
    bindings,
    current,
    device::Device,
    error::from_result,
    ffi::{
        c_int,
        c_uint,
        c_ulong, //
    },
    mm::hmm::dma::Route,
    prelude::*, //
};

const WRITE: u32 = bindings::hmm_registration_flags_HMM_REGISTRATION_WRITE;
const P2P: u32 = bindings::hmm_registration_flags_HMM_REGISTRATION_P2P;
const RESIDENT: u32 = bindings::hmm_registration_flags_HMM_REGISTRATION_RESIDENT;

/// A driver in C.
struct Driver {
    ops: *const bindings::hmm_registration_ops,
    data: *mut c_void,
}

// SAFETY: The caller of `hmm_registration_create()` allows calls by any thread.
unsafe impl Send for Driver {}
// SAFETY: As above; and calls are made one at a time, with the lock held.
unsafe impl Sync for Driver {}

impl Ops for Driver {
    type State = ();

    fn revoke(&self, (): &mut (), part: &Part<'_>) {
        let pages = part.pages();

        // SAFETY: The caller of `hmm_registration_create()` keeps `ops` and `data` valid as long as
        // the registration exists.
        unsafe {
            if let Some(revoke) = (*self.ops).revoke {
                revoke(self.data, pages.start, pages.end - pages.start);
            }
        }
    }
}

type Handle = Registration<'static, Driver>;

/// Returns the registration behind a handle.
///
/// # Safety
///
/// `reg` must be what `hmm_registration_create()` returned, and not be destroyed during `'a`.
unsafe fn borrow<'a>(reg: *mut bindings::hmm_registration) -> &'a Handle {
    // SAFETY: It is a `Pin<KBox<Handle>>`, by the requirements of this function.
    unsafe { &*reg.cast() }
}

/// See `hmm_registration_create()` in `include/linux/hmm-registration.h`.
///
/// # Safety
///
/// As above.
#[export]
unsafe extern "C" fn hmm_registration_create(
    dev: *mut bindings::device,
    start: c_ulong,
    len: c_ulong,
    flags: c_uint,
    ops: *const bindings::hmm_registration_ops,
    data: *mut c_void,
) -> *mut bindings::hmm_registration {
    let create = || {
        if flags & !(WRITE | P2P | RESIDENT) != 0 {
            return Err(EINVAL);
        }
        let options = Options {
            write: flags & WRITE != 0,
            p2p: flags & P2P != 0,
            resident: flags & RESIDENT != 0,
        };
        let end = start.checked_add(len).ok_or(EINVAL)?;
        let task = current!();
        let mm = task.mm().ok_or(EPERM)?;
        // SAFETY: The caller passes a device that is bound until the registration is closed, which
        // is also until when it is used.
        let dev = unsafe { Device::<crate::device::Normal>::from_raw(dev).as_bound() };

        KBox::pin_init(
            // SAFETY: The caller destroys it before `ops`, `data` and its module end, and closes it
            // before the device is unbound.
            unsafe { Handle::new(dev, mm, start..end, options, Driver { ops, data }, ()) },
            GFP_KERNEL,
        )
    };

    match create() {
        Ok(reg) => {
            // SAFETY: It is not moved: what is behind the pointer is only used in place.
            KBox::into_raw(unsafe { Pin::into_inner_unchecked(reg) }).cast()
        }
        Err(err) => err.to_ptr(),
    }
}

/// See `hmm_registration_map()` in `include/linux/hmm-registration.h`.
///
/// # Safety
///
/// `reg` must be a registration that is not destroyed meanwhile, and `pages` an array of `nr`.
#[export]
unsafe extern "C" fn hmm_registration_map(
    reg: *mut bindings::hmm_registration,
    first: c_ulong,
    nr: c_ulong,
    pages: *mut bindings::hmm_registration_page,
) -> c_int {
    from_result(|| {
        // SAFETY: By the requirements of this function.
        let reg = unsafe { borrow(reg) };
        let end = first.checked_add(nr).ok_or(EINVAL)?;
        // The callback has the lock, under which the process must not end.
        if reg.notifier.is_revoking() {
            return Err(EDEADLK);
        }
        // Dropped last, not under the lock: it may be the end of the process.
        let mm = reg.mm().mmget_not_zero().ok_or(ESRCH)?;
        let table = reg.map(&mm, first..end)?;

        for index in first..end {
            let mapping = table.get(index).ok_or(EIO)?;
            let page = bindings::hmm_registration_page {
                addr: mapping.addr(),
                phys: mapping.phys(),
                peer: mapping.route() != Route::Host,
                result: table.p2p_result(index) as u8,
                writable: mapping.writable(),
            };
            // SAFETY: The caller passes an array of `nr` elements.
            unsafe { pages.add(index - first).write(page) };
        }
        drop(table);
        Ok(0)
    })
}

/// See `hmm_registration_close()` in `include/linux/hmm-registration.h`.
///
/// # Safety
///
/// `reg` must be a registration that is not destroyed meanwhile.
#[export]
unsafe extern "C" fn hmm_registration_close(reg: *mut bindings::hmm_registration) {
    // SAFETY: By the requirements of this function.
    unsafe { borrow(reg) }.close();
}

/// See `hmm_registration_destroy()` in `include/linux/hmm-registration.h`.
///
/// # Safety
///
/// `reg` must be a registration, and nobody may use it any more.
#[export]
unsafe extern "C" fn hmm_registration_destroy(reg: *mut bindings::hmm_registration) {
    // SAFETY: It is what `hmm_registration_create()` made of a `Pin<KBox<Handle>>`, and nobody else
    // uses it.
    drop(unsafe { Pin::new_unchecked(KBox::<Handle>::from_raw(reg.cast())) });
}
