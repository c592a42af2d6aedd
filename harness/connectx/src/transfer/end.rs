//! The end of requests: by completion, by error or by flush.

use super::GRH;
use super::request::Bad;
use crate::device::fault::{Answered, Side};
use crate::device::queue::Completion;
use crate::device::{Device, FLUSH_AGAIN};
use crate::layout::{Field, mkey_to_idx, mkey_variant};
use crate::qp::{Receive, Send, State, Wait};
use crate::witness::Done;

impl Device {
    /// Completes a request, and the receive request that it took.
    pub(super) fn finish(&mut self, qpn: u32, send: &Send) {
        let c = self.c.opcodes;
        let opcode = u64::from(send.opcode);
        if let Some(receive) = &send.receive {
            let service = self.qps[&qpn].service;
            let is_datagram = service == self.c.qp_st.ud || service == self.c.qp_st.qp1;
            // A datagram invalidates nothing, and its receiver may be gone.
            let invalidates = opcode == c.send_inval && !is_datagram;
            if invalidates && !self.end(send).invalidate(send) {
                let s = self.c.syndromes;
                let theirs = Some(s.local_prot_err);
                return self.fail_both(qpn, send, s.remote_access_err, theirs);
            }
            let r = &self.c.cqe;
            let kind = match opcode {
                _ if opcode == c.rdma_write_imm => r.resp_wr_imm,
                _ if opcode == c.send_imm => r.resp_send_imm,
                _ if opcode == c.send_inval => r.resp_send_inv,
                _ => r.resp_send,
            };
            let header = if is_datagram { GRH } else { 0 };
            let completion = Completion {
                opcode: kind as u8,
                bytes: (send.total + header) as u32,
                imm: send.imm,
                source_lid: self.options.lid,
                source_qpn: qpn,
                is_solicited: send.is_solicited,
                ..Completion::default()
            };
            let receive = receive.clone();
            let end = self.end(send);
            end.complete_receive(send.remote_qpn, &receive, completion);
        }
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        qp.sent = qp.sent.wrapping_add(send.blocks);
        if send.is_signaled {
            let (cqn, rung) = (qp.cqn.0, qp.rung);
            let is_alone = qp.rung_at == Some(send.counter) && qp.sent == qp.posted;
            let completion = Completion {
                opcode: self.c.cqe.req as u8,
                qpn,
                user_index: qp.user_index,
                wqe_counter: send.counter,
                bytes: send.total as u32,
                send_opcode: send.opcode,
                ..Completion::default()
            };
            self.complete(cqn, &completion);
            let done = Done {
                qpn,
                op: self.op(opcode),
                len: send.total,
                took: rung.elapsed().as_micros(),
                direct: is_alone && !send.has_waited,
            };
            self.witness.done(&done);
        }
    }

    /// Takes the key that a message names out of use. Returns whether the key allows that.
    fn invalidate(&mut self, send: &Send) -> bool {
        let key = u32::from_be_bytes(send.imm);
        let pd = self.domain(send.remote_qpn, send.remote_srqn);
        let l = &self.l.mkc;
        let Some(mkey) = self.mkeys.get_mut(&mkey_to_idx(key)) else {
            return false;
        };
        let get = |field: Field| field.get(&mkey.context);
        let is_named = get(l.mkey_7_0) == u64::from(mkey_variant(key));
        if !is_named || get(l.pd) != u64::from(pd) || get(l.en_rinval) == 0 {
            self.note(&format!("key {key:#x} may not be invalidated by a message"));
            return false;
        }
        l.free.set(&mut mkey.context, 1);
        self.witness.umr(key, 0, &[]);
        true
    }

    /// The log's name of an operation.
    fn op(&self, opcode: u64) -> &'static str {
        let c = self.c.opcodes;
        match opcode {
            _ if opcode == c.rdma_write || opcode == c.rdma_write_imm => "rdma_write",
            _ if opcode == c.rdma_read => "rdma_read",
            _ if opcode == c.umr => "umr",
            _ if opcode == c.nop => "nop",
            _ if opcode == c.atomic_cs || opcode == c.atomic_fa => "atomic",
            _ => "send",
        }
    }

    /// Completes a request with an error, and puts the queue pair in error.
    pub(super) fn fail(&mut self, qpn: u32, send: &Send, syndrome: u64) {
        self.give_back(send);
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        qp.sent = qp.sent.wrapping_add(send.blocks);
        let cqn = qp.cqn.0;
        let completion = Completion {
            opcode: self.c.cqe.req_err as u8,
            qpn,
            user_index: qp.user_index,
            wqe_counter: send.counter,
            send_opcode: send.opcode,
            syndrome: syndrome as u8,
            ..Completion::default()
        };
        self.complete(cqn, &completion);
        self.enter_error(qpn);
    }

    /// Fails a request and the remote end. The receive request completes with an error. Without
    /// a receive request, the device sends an event.
    pub(super) fn fail_both(&mut self, qpn: u32, send: &Send, ours: u64, theirs: Option<u64>) {
        let peer = send.remote_qpn;
        // The remote end may have been destroyed while the driver handled a page fault.
        if self.peer(qpn, send).is_err() {
            return self.fail(qpn, send, ours);
        }
        let mut send = send.clone();
        self.end(&send).fail_receive(peer, &mut send, theirs);
        self.fail(qpn, &send, ours);
    }

    /// Fails the remote end.
    pub(super) fn fail_receive(&mut self, peer: u32, send: &mut Send, syndrome: Option<u64>) {
        if let Some(syndrome) = syndrome
            && let Some(receive) = send.receive.take()
        {
            let completion = Completion {
                opcode: self.c.cqe.resp_err as u8,
                syndrome: syndrome as u8,
                ..Completion::default()
            };
            self.complete_receive(peer, &receive, completion);
        } else {
            let kind = self.c.events.wq_access_error;
            self.event(kind, 0, |device, entry| {
                device.l.eqe.qp_srq_n.set(entry, u64::from(peer));
            });
        }
        self.enter_error(peer);
    }

    /// Fails a malformed request.
    pub(super) fn bad_request(&mut self, qpn: u32, bad: &Bad) {
        let what = format!("work request of queue pair {qpn:#x}: {}", bad.why);
        if bad.is_refused {
            self.witness.violation(&what);
        } else {
            self.note(&what);
        }
        let send = self.placeholder(qpn, bad.blocks);
        self.fail(qpn, &send, self.c.syndromes.local_qp_op_err);
    }

    fn placeholder(&self, qpn: u32, blocks: u16) -> Send {
        Send {
            counter: self.qps[&qpn].sent,
            blocks,
            opcode: 0,
            is_signaled: true,
            is_solicited: false,
            imm: [0; 4],
            remote_lid: 0,
            remote_qpn: 0,
            remote_srqn: None,
            remote: (0, 0),
            atomic: (0, 0),
            local: Vec::new(),
            total: 0,
            done: 0,
            receive: None,
            retries: 0,
            has_waited: false,
            absent_since: None,
            found: None,
        }
    }

    /// Puts the queue pair in error. Its posted requests will be flushed.
    pub(crate) fn enter_error(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.state = State::Err;
            qp.wait = Wait::No;
            self.faults.forget(qpn);
            self.queue(qpn);
        }
    }

    /// Completes the posted requests with a flush error. Receive requests have no doorbell, so
    /// the device checks the queue pair again as long as it is in error.
    pub(super) fn flush(&mut self, qpn: u32) {
        let flushed = self.c.syndromes.wr_flush_err;
        if let Some(mut send) = self.qps.get_mut(&qpn).and_then(|qp| qp.current.take()) {
            if self.peer(qpn, &send).is_ok()
                && let Some(receive) = send.receive.take()
            {
                // The message was cut off in the middle.
                let completion = Completion {
                    opcode: self.c.cqe.resp_err as u8,
                    syndrome: self.c.syndromes.remote_aborted_err as u8,
                    ..Completion::default()
                };
                let end = self.end(&send);
                end.complete_receive(send.remote_qpn, &receive, completion);
                end.enter_error(send.remote_qpn);
            }
            self.fail(qpn, &send, flushed);
            return;
        }
        let qp = &self.qps[&qpn];
        if qp.sent != qp.posted {
            let (blocks, opcode) = match self.fetch(qpn) {
                Ok(send) => (send.blocks, send.opcode),
                Err(bad) => (bad.blocks, 0),
            };
            let mut send = self.placeholder(qpn, blocks);
            send.opcode = opcode;
            self.fail(qpn, &send, flushed);
            return;
        }
        let taken = match self.begun(qpn) {
            Some(receive) => Some(receive),
            // A queue that cannot be read may have been freed by the driver.
            None => self.take_own(qpn).unwrap_or(None),
        };
        let Some(receive) = taken else {
            return self.queue_later(qpn, FLUSH_AGAIN);
        };
        let completion = Completion {
            opcode: self.c.cqe.resp_err as u8,
            syndrome: flushed as u8,
            ..Completion::default()
        };
        self.complete_receive(qpn, &receive, completion);
        self.queue(qpn);
    }

    /// Takes the receive request of a partly received message, from its sender if the sender is
    /// still there. The request ends together with its queue pair, not when the sender notices.
    fn begun(&mut self, qpn: u32) -> Option<Receive> {
        let left = self.qps.get_mut(&qpn).and_then(|qp| qp.begun.pop_front());
        if left.is_some() {
            return left;
        }
        let lid = self.options.lid;
        let far = self.far.iter_mut().flat_map(|far| far.qps.values_mut());
        let sends = self.qps.values_mut().chain(far);
        sends
            .filter_map(|qp| qp.current.as_mut())
            .filter(|send| (send.remote_lid, send.remote_qpn) == (lid, qpn))
            .find_map(|send| send.receive.take())
    }

    /// A message ends before its last packet. Nobody completes the receive request that it has
    /// begun, until its queue pair flushes it.
    pub(crate) fn give_back(&mut self, send: &Send) {
        if let Some(receive) = &send.receive
            && let Some(peer) = self.end(send).qps.get_mut(&send.remote_qpn)
        {
            peer.begun.push_back(receive.clone());
        }
    }

    /// Ends what a queue pair has in progress, before it is reset or destroyed.
    pub(crate) fn disconnect(&mut self, qpn: u32) {
        self.faults.forget(qpn);
        self.stop_receiving(qpn);
        if let Some(send) = self.qps.get_mut(&qpn).and_then(|qp| qp.current.take()) {
            self.give_back(&send);
        }
        // The driver takes back the memory of its receive requests, so no message goes on there.
        while self.begun(qpn).is_some() {}
    }

    /// Handles a driver's answer to a page fault. The queue pair may wait no longer.
    pub(crate) fn resumed(&mut self, answered: Answered) {
        let Answered {
            token,
            pending,
            error,
        } = answered;
        let is_far = pending.is_far;
        let Some(qp) = self.qps.get_mut(&pending.qpn) else {
            return;
        };
        if qp.wait != (Wait::Fault { token, is_far }) {
            return;
        }
        qp.wait = Wait::No;
        if !error {
            return self.queue(pending.qpn);
        }
        let Some(send) = qp.current.take() else {
            return;
        };
        let s = self.c.syndromes;
        match pending.side {
            Side::Requester => self.fail(pending.qpn, &send, s.local_prot_err),
            Side::Receiver { .. } => {
                self.fail_both(pending.qpn, &send, s.remote_op_err, Some(s.local_prot_err));
            }
            Side::Remote { .. } => {
                self.fail_both(pending.qpn, &send, s.remote_access_err, None);
            }
        }
    }
}
