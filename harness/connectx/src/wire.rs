//! A wire that joins the ports of two devices. A packet finds its device by the port's LID, and
//! there the queue pair by its number.
//!
//! Both devices are in this process, below one lock: whoever uses one of them has locked both.
//! So a packet reads one end's keys and writes the other end's memory in one step, as in a
//! loopback, and no thread ever takes a second lock. The device in use owns the other one
//! ([`Device::far`]). [`turn`] exchanges the two. The far device's own `far` is empty, so nothing
//! that a device does for the other one can come back to it: it returns, or leaves a message in
//! a queue ([`Device::queue`], `Faults::answered`) for the other one's next step.
//!
//! A thread that asks QEMU must unlock the device meanwhile ([`crate::bus`]). Only one device
//! stops then, so two that are joined cannot ask.

use std::mem;

use crate::device::Device;
use crate::qp::{Send, Wait};

/// Joins two devices, whose LIDs must differ. The first one is in use.
pub fn join(mut near: Box<Device>, far: Box<Device>) -> Box<Device> {
    near.far = Some(far);
    near
}

/// Uses the other device, if there is one.
pub fn turn(device: &mut Box<Device>) {
    if let Some(mut far) = device.far.take() {
        mem::swap(device, &mut far);
        device.far = Some(far);
    }
}

impl Device {
    /// Whether the port with this LID is at the other end of the wire.
    pub(crate) fn is_far(&self, lid: u16) -> bool {
        let far = self.far.as_ref();
        far.is_some_and(|far| far.options.lid == lid)
    }

    /// The device of the port with this LID.
    pub(crate) fn at(&self, lid: u16) -> Option<&Self> {
        if lid == self.options.lid {
            return Some(self);
        }
        let far = self.far.as_deref();
        far.filter(|far| far.options.lid == lid)
    }

    /// The device of a message's remote end, which exists.
    pub(crate) fn end(&mut self, send: &Send) -> &mut Self {
        if self.is_far(send.remote_lid) {
            return self.far.as_deref_mut().expect("its LID was compared");
        }
        self
    }

    /// The other device drops its page faults: no answer to them will come. Whoever waits tries
    /// again.
    pub(crate) fn stop_waiting(&mut self) {
        self.faults.answered.clear();
        let mut stopped = Vec::new();
        for (qpn, qp) in &mut self.qps {
            if matches!(qp.wait, Wait::Fault { is_far: true, .. }) {
                qp.wait = Wait::No;
                stopped.push(*qpn);
            }
        }
        for qpn in stopped {
            self.queue(qpn);
        }
    }
}
