//! Requests, completions and events in the queues of a [`Testbed`].

use std::thread;
use std::time::{Duration, Instant};

use super::{Cqe, LOG_EQ, LOG_RECEIVE, LOG_SEND, LOG_STRIDE, TestCq, TestQp, Testbed, structure};
use crate::device::command::Status;
use crate::device::queue::CQE;
use crate::device::{EQ_ARM, Scheme};
use crate::layout::Layouts;

impl Testbed {
    pub fn data(&self, key: u32, va: u64, len: u64) -> Vec<u8> {
        let l = &self.device.l.data;
        let key = u64::from(key);
        structure(l.size, &[(l.byte_count, len), (l.lkey, key), (l.addr, va)])
    }

    pub fn remote(&self, key: u32, va: u64) -> Vec<u8> {
        let l = &self.device.l.raddr;
        structure(l.size, &[(l.rkey, u64::from(key)), (l.raddr, va)])
    }

    /// Posts a request with a completion to the send queue, and rings the doorbell.
    pub fn post(&mut self, qp: &mut TestQp, opcode: u64, imm: u32, segments: &[Vec<u8>]) {
        let l = &self.device.l.ctrl;
        let mut wqe = vec![0; l.size];
        wqe.extend(segments.concat());
        let count = wqe.len().div_ceil(16) as u64;
        l.opmod_idx_opcode
            .set(&mut wqe, u64::from(qp.posted) << 8 | opcode);
        l.qpn_ds.set(&mut wqe, u64::from(qp.qpn) << 8 | count);
        l.fm_ce_se.set(&mut wqe, self.device.c.misc.cq_update);
        l.imm.set(&mut wqe, u64::from(imm));
        self.post_bytes(qp, &wqe);
    }

    pub fn post_bytes(&mut self, qp: &mut TestQp, wqe: &[u8]) {
        for block in wqe.chunks(64) {
            let at = u64::from(qp.posted) % (1 << LOG_SEND) * 64;
            self.put(qp.send_at + at, block);
            qp.posted = qp.posted.wrapping_add(1);
        }
        self.ring(qp);
    }

    pub fn ring(&mut self, qp: &TestQp) {
        self.put_u32(qp.doorbell + 4, u32::from(qp.posted));
        let mut bytes = [0; 8];
        bytes[4..].copy_from_slice(&(qp.qpn << 8).to_be_bytes());
        self.doorbell(self.device.c.uar.blue_flame, &bytes);
    }

    /// Posts a receive request.
    pub fn receive(&mut self, qp: &mut TestQp, segments: &[Vec<u8>]) {
        let mut wqe = segments.concat();
        wqe.resize(1 << LOG_STRIDE, 0);
        let at = (u64::from(qp.received) % (1 << LOG_RECEIVE)) << LOG_STRIDE;
        self.put(qp.receive_at + at, &wqe);
        qp.received = qp.received.wrapping_add(1);
        self.put_u32(qp.doorbell, u32::from(qp.received));
    }

    /// Runs until there is no step to run now.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if self.device.run().is_err() {
                return;
            }
        }
        panic!("the device never comes to rest");
    }

    /// Runs until `done` or for this long.
    pub fn wait(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            self.settle();
            if done(self) {
                return true;
            }
            thread::sleep(Duration::from_micros(100));
        }
        false
    }

    /// The next completion.
    pub fn poll(&mut self, cq: &mut TestCq) -> Option<Cqe> {
        let l = &self.device.l.cqe;
        let entry = self.get(cq.entry(cq.consumed), CQE);
        let last = l.op_own.get(&entry);
        if !cq.is_owned(cq.consumed, last) {
            return None;
        }
        cq.consumed += 1;
        self.put_u32(cq.doorbell, cq.consumed);
        let is_error =
            [self.device.c.cqe.req_err, self.device.c.cqe.resp_err].contains(&(last >> 4));
        let syndrome = self.device.l.err_cqe.syndrome.get(&entry);
        Some(Cqe {
            opcode: last >> 4,
            syndrome: if is_error { syndrome } else { 0 },
            counter: l.wqe_counter.get(&entry),
            bytes: if is_error { 0 } else { l.byte_cnt.get(&entry) },
            imm: if is_error { 0 } else { l.imm.get(&entry) },
            qpn: l.sop_drop_qpn.get(&entry) & 0xff_ffff,
        })
    }

    /// The next event: its type and its bytes.
    pub fn event(&mut self) -> Option<(u64, Vec<u8>)> {
        let l = &self.device.l.eqe;
        let index = u64::from(self.eq_consumed) % (1 << LOG_EQ);
        let entry = self.get(self.eq_at + index * 64, 64);
        let owner = l.owner.get(&entry);
        if owner & 0xfe != 0 || owner & 1 != u64::from(self.eq_consumed >> LOG_EQ) & 1 {
            return None;
        }
        self.eq_consumed += 1;
        let kind = l.kind.get(&entry);
        Some((kind, entry))
    }

    /// The next event of this type.
    pub fn event_of(&mut self, kind: u64) -> Option<Vec<u8>> {
        loop {
            let (found, entry) = self.event()?;
            if found == kind {
                return Some(entry);
            }
        }
    }

    /// The token of a page fault's event.
    pub fn token(&self, event: &[u8]) -> u64 {
        let (l, kinds) = (&self.device.l.eqe, &self.device.c.pfault);
        match l.sub_type.get(event) {
            sub if sub == kinds.rdma => l.rdma_pftype_token.get(event) & 0xff_ffff,
            sub if sub == kinds.wqe => l.wqe_token.get(event),
            _ => l.memory_token_31_0.get(event),
        }
    }

    /// Answers a page fault.
    pub fn resume(&mut self, token: u64, error: bool) -> Result<(), Status> {
        let l = &self.device.l.resume;
        let (token_at, error_at) = match self.device.options.scheme {
            Scheme::Transport => (l.token, l.error),
            Scheme::Memory => (l.token_31_0, l.memory_error),
        };
        let set = |_: &Layouts, input: &mut [u8]| {
            token_at.set(input, token);
            error_at.set(input, u64::from(error));
        };
        self.command("PAGE_FAULT_RESUME", &[], set)?;
        self.settle();
        Ok(())
    }

    /// Reports the read events to the device, and arms the event queue.
    pub fn arm_eq(&mut self) {
        let value = self.eqn << 24 | self.eq_consumed;
        self.doorbell(EQ_ARM, &value.to_be_bytes());
    }

    /// Writes to a doorbell of the driver's UAR.
    pub fn doorbell(&mut self, offset: u64, bytes: &[u8]) {
        let page = self.uar << self.device.c.uar.page_shift;
        self.device.write(page | offset, bytes);
    }

    pub fn arm_cq(&mut self, cq: &TestCq, solicited: bool) {
        let first = cq.consumed | u32::from(solicited) << 24;
        let mut bytes = first.to_be_bytes().to_vec();
        bytes.extend(cq.cqn.to_be_bytes());
        self.doorbell(self.device.c.uar.cq, &bytes);
    }
}
