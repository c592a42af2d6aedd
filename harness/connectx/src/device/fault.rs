//! Page faults: memory of a work request is absent, so the device sends an event to the
//! driver, and the queue pair waits for the driver's answer.

use std::collections::{HashMap, HashSet};

use crate::device::{Device, Scheme};
use crate::layout::Field;

/// The owner of the absent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The work request in progress.
    Requester,
    /// A receive request.
    Receiver {
        /// Its queue pair.
        qpn: u32,
        /// Its shared receive queue.
        srqn: Option<u32>,
        /// Its number.
        counter: u16,
    },
    /// The remote memory that the work request names.
    Remote {
        /// Start address of the operation.
        va: u64,
        /// Key.
        key: u32,
    },
}

/// A page fault that the driver has not answered.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The queue pair that waits: always the sender.
    pub qpn: u32,
    /// It belongs to the device at the other end of the wire.
    pub is_far: bool,
    /// The owner of the absent memory.
    pub side: Side,
}

/// The driver's answer to a page fault.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The page fault.
    pub token: u64,
    /// What waits for the answer.
    pub pending: Pending,
    /// There will be no memory.
    pub error: bool,
}

/// The page faults that the driver has not answered.
#[derive(Default)]
pub struct Faults {
    pending: HashMap<u64, Pending>,
    /// Those that do not wait any more. The driver answers them nevertheless.
    dropped: HashSet<u64>,
    last: u64,
    /// Answers that have come to the device at the other end of the wire.
    pub answered: Vec<Answered>,
}

/// The absent memory, and the access to it.
pub struct Missing {
    /// The key that has no translation.
    pub mkey: u32,
    /// The address in the key.
    pub va: u64,
    /// Bytes of this packet.
    pub len: usize,
    /// Bytes of the operation that are done.
    pub done: u64,
    /// Bytes of the whole operation.
    pub total: u64,
    /// Whether the access is a write.
    pub write: bool,
}

/// The last event of a fault (`MLX5_MEMORY_PAGE_FAULT_FLAGS_LAST`). Only the driver defines it.
pub const LAST_EVENT: u64 = 1 << 7;

/// Tokens have 24 bits.
const TOKENS: u64 = 1 << 24;

impl Faults {
    /// Drops the faults of a queue pair of this device.
    pub fn forget(&mut self, qpn: u32) {
        let dropped = &mut self.dropped;
        self.pending.retain(|token, pending| {
            let stays = pending.is_far || pending.qpn != qpn;
            stays || !dropped.insert(*token)
        });
    }
}

impl Device {
    /// Reports a page fault. Returns the token that the driver will answer with.
    pub fn fault(&mut self, pending: Pending, missing: &Missing) -> u64 {
        let Pending { qpn, side, .. } = pending;
        self.faults.last = (self.faults.last + 1) % TOKENS;
        let token = self.faults.last;
        self.faults.pending.insert(token, pending);
        let kind = match (self.options.scheme, side) {
            (Scheme::Memory, _) => "memory",
            (_, Side::Requester) => "requester",
            (_, Side::Receiver { .. }) => "receiver",
            (_, Side::Remote { .. }) => "rdma",
        };
        let &Missing { mkey, va, len, .. } = missing;
        self.witness.fault(kind, token, mkey, va, len);
        let event = self.c.events.page_fault;
        let (sub, fields) = match self.options.scheme {
            Scheme::Memory => (self.c.pfault.memory, self.memory_fault(token, missing)),
            Scheme::Transport => self.transport_fault(token, qpn, side, missing),
        };
        self.event(event, sub as u8, |_, entry| {
            for (field, value) in &fields {
                field.set(entry, *value);
            }
        });
        token
    }

    fn transport_fault(
        &self,
        token: u64,
        qpn: u32,
        side: Side,
        missing: &Missing,
    ) -> (u64, Vec<(Field, u64)>) {
        let l = &self.l.eqe;
        let pf = &self.c.pfault;
        let len = missing.len as u64;
        let (kind, wq, counter) = match side {
            Side::Remote { va, key } => {
                // The driver only logs the write bit.
                let kind = if missing.write {
                    pf.is_rdma | pf.is_write
                } else {
                    pf.is_rdma
                };
                return (
                    pf.rdma,
                    vec![
                        (l.rdma_bytes_committed, missing.done),
                        (l.rdma_r_key, u64::from(key)),
                        (l.rdma_packet_length, len),
                        (l.rdma_op_len, missing.total),
                        (l.rdma_va, va),
                        (l.rdma_pftype_token, kind << 24 | token),
                    ],
                );
            }
            Side::Requester => {
                let counter = self
                    .qps
                    .get(&qpn)
                    .and_then(|qp| qp.current.as_ref())
                    .map_or(0, |send| send.counter);
                let kind = if missing.write {
                    pf.requester_read
                } else {
                    pf.requester_send
                };
                (kind, qpn, counter)
            }
            Side::Receiver {
                srqn: Some(srqn),
                counter,
                ..
            } => (pf.rmp, srqn, counter),
            Side::Receiver { qpn, counter, .. } => (pf.responder, qpn, counter),
        };
        let fields = vec![
            (l.wqe_bytes_committed, missing.done),
            (l.wqe_index, u64::from(counter)),
            (l.wqe_packet_length, len),
            (l.wqe_token, token),
            (l.wqe_pftype_wq, kind << 24 | u64::from(wq)),
        ];
        (pf.wqe, fields)
    }

    fn memory_fault(&self, token: u64, missing: &Missing) -> Vec<(Field, u64)> {
        const PAGE: u64 = 4096;
        const AT_ONCE: u64 = 1 << 20;
        let l = &self.l.eqe;
        // Most likely the rest of the operation is absent as well, so report it too. The driver
        // ignores any part beyond the region.
        let rest = missing.total.saturating_sub(missing.done);
        let rest = rest.clamp(missing.len as u64, AT_ONCE);
        let first = missing.va & !(PAGE - 1);
        let pages = (missing.va - first + rest).div_ceil(PAGE);
        vec![
            (l.memory_flags, LAST_EVENT),
            (l.memory_token_31_0, token & 0xffff_ffff),
            (l.memory_token_47_32, token >> 32),
            (l.memory_pages, pages << 12),
            (l.memory_mkey, u64::from(missing.mkey)),
            (l.memory_va, first),
        ]
    }

    /// A queue pair does not receive any more. The driver will not answer the page faults of its
    /// receive requests, so whoever waits for one tries again, and finds nobody.
    pub fn stop_receiving(&mut self, receiver: u32) {
        let pending = self.faults.pending.iter();
        let ended = pending.filter(
            |(_, pending)| matches!(pending.side, Side::Receiver { qpn, .. } if qpn == receiver),
        );
        for token in Vec::from_iter(ended.map(|(token, _)| *token)) {
            self.faults.dropped.insert(token);
            self.answer(token, false);
        }
    }

    /// Handles the driver's answer. Returns whether the token is valid.
    pub fn resume(&mut self, token: u64, error: bool) -> bool {
        self.witness.resume(token, error);
        if self.faults.dropped.remove(&token) || self.answer(token, error) {
            return true;
        }
        self.witness.violation(&format!(
            "nobody waits for an answer to page fault {token:#x}"
        ));
        false
    }

    fn answer(&mut self, token: u64, error: bool) -> bool {
        let Some(pending) = self.faults.pending.remove(&token) else {
            return false;
        };
        let answer = Answered {
            token,
            pending,
            error,
        };
        match &mut self.far {
            // Later, because what the queue pair does then can concern this device.
            Some(far) if pending.is_far => far.faults.answered.push(answer),
            _ => self.resumed(answer),
        }
        true
    }
}
