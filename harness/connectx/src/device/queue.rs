//! Event queues and completion queues: rings in host memory that the device fills.
//!
//! An entry's last byte holds the owner bit, which flips on each pass over the ring. The
//! device writes this byte last, because the driver reads the ring at the same time.

use crate::device::Device;
use crate::memory::{Buffer, Refused};

/// Size of an event.
pub const EQE: usize = 64;
/// Size of a completion. In an entry of 128 bytes, the completion is at the end.
pub const CQE: usize = 64;

/// An event queue.
pub struct Eq {
    /// The ring.
    pub buffer: Buffer,
    /// log2 of the number of entries.
    pub log_size: u32,
    /// The interrupt vector.
    pub vector: u32,
    /// Types of events, a bit each, 64 to a word.
    pub mask: [u64; 4],
    /// Entries written.
    pub produced: u32,
    /// Entries read, as the driver last reported.
    pub consumed: u32,
    /// Whether the next event interrupts.
    pub is_armed: bool,
}

/// The completions for which a completion queue sends an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Nothing.
    No,
    /// A solicited completion, or an error.
    Solicited,
    /// Any.
    Next,
}

/// A completion queue.
pub struct Cq {
    /// The ring.
    pub buffer: Buffer,
    /// Its context, for queries.
    pub context: Vec<u8>,
    /// log2 of the number of entries.
    pub log_size: u32,
    /// Size of an entry.
    pub stride: usize,
    /// The event queue.
    pub eqn: u32,
    /// Address of the doorbell record, in which the driver stores its consumer index.
    pub doorbell: u64,
    /// Entries written.
    pub produced: u32,
    /// Which completion sends an event.
    pub arm: Arm,
    /// The queue overran and takes no more completions.
    pub is_broken: bool,
}

/// The contents of a completion.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// `MLX5_CQE_*`
    pub opcode: u8,
    /// The queue pair.
    pub qpn: u32,
    /// The queue pair's number in user space.
    pub user_index: u32,
    /// The work request's counter.
    pub wqe_counter: u16,
    /// Bytes moved.
    pub bytes: u32,
    /// Immediate data, or the invalidated key.
    pub imm: [u8; 4],
    /// The opcode of the work request, for a requester.
    pub send_opcode: u8,
    /// The LID of the sender's port.
    pub source_lid: u16,
    /// The sender of a datagram.
    pub source_qpn: u32,
    /// The sender asked for an event.
    pub is_solicited: bool,
    /// `MLX5_CQE_SYNDROME_*`, for an error.
    pub syndrome: u8,
}

/// `a - b` for 24-bit counters.
fn distance(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & 0xff_ffff
}

impl Device {
    /// Writes an event to each event queue that takes its type.
    pub fn event(&mut self, kind: u64, sub_kind: u8, fill: impl Fn(&Device, &mut [u8])) {
        let word = (kind / 64) as usize;
        let wants = |eq: &Eq| {
            eq.mask
                .get(word)
                .is_some_and(|m| m & (1 << (kind % 64)) != 0)
        };
        let found = self.eqs.iter().find(|(_, eq)| wants(eq)).map(|(n, _)| *n);
        match found {
            Some(eqn) => self.event_to(eqn, kind, sub_kind, fill),
            None => self.note(&format!("no event queue takes events of type {kind:#x}")),
        }
    }

    /// Writes an event to this queue.
    pub fn event_to(
        &mut self,
        eqn: u32,
        kind: u64,
        sub_kind: u8,
        fill: impl Fn(&Device, &mut [u8]),
    ) {
        let mut entry = [0; EQE];
        self.l.eqe.kind.set(&mut entry, kind);
        self.l.eqe.sub_type.set(&mut entry, u64::from(sub_kind));
        fill(self, &mut entry);
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        if distance(eq.produced, eq.consumed) >= 1 << eq.log_size {
            self.witness
                .violation(&format!("event queue {eqn} overran"));
            return;
        }
        let at = u64::from(eq.produced & ((1 << eq.log_size) - 1)) * EQE as u64;
        let owner = ((eq.produced >> eq.log_size) & 1) as u8;
        self.l.eqe.owner.set(&mut entry, u64::from(owner));
        let written = put(
            &self.memory,
            &eq.buffer,
            at,
            &entry,
            self.l.eqe.owner.byte(),
        );
        eq.produced = eq.produced.wrapping_add(1) & 0xff_ffff;
        let interrupt = eq.is_armed.then_some(eq.vector);
        eq.is_armed = false;
        if let Err(refused) = written {
            self.witness
                .violation(&format!("event queue {eqn}: {refused:?}"));
        }
        if let Some(vector) = interrupt {
            self.irqs.trigger(vector);
        }
    }

    /// Handles an event queue doorbell: the consumer index, and whether to arm the queue.
    pub fn eq_doorbell(&mut self, value: u32, arm: bool) {
        let Some(eq) = self.eqs.get_mut(&(value >> 24)) else {
            self.note(&format!(
                "a doorbell of event queue {}, which is none",
                value >> 24
            ));
            return;
        };
        eq.consumed = value & 0xff_ffff;
        if !arm {
            return;
        }
        if distance(eq.produced, eq.consumed) == 0 {
            eq.is_armed = true;
        } else {
            eq.is_armed = false;
            let vector = eq.vector;
            self.irqs.trigger(vector);
        }
    }

    /// Handles a completion queue doorbell: arms the queue for the next completion after those
    /// that the driver has seen.
    pub fn cq_doorbell(&mut self, first: u32, cqn: u32) {
        let cqn = cqn & 0xff_ffff;
        let seen = first & 0xff_ffff;
        let arm = if u64::from(first) & self.c.uar.cq_solicited != 0 {
            Arm::Solicited
        } else {
            Arm::Next
        };
        let Some(cq) = self.cqs.get_mut(&cqn) else {
            self.note(&format!(
                "a doorbell of completion queue {cqn:#x}, which is none"
            ));
            return;
        };
        cq.arm = arm;
        // Completions came before the doorbell. The device does not know any more whether one of
        // them was solicited, but a spurious event does no harm.
        if distance(cq.produced, seen) > 0 {
            self.cq_event(cqn);
        }
    }

    fn cq_event(&mut self, cqn: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn) else {
            return;
        };
        cq.arm = Arm::No;
        let eqn = cq.eqn;
        let kind = self.c.events.comp;
        self.event_to(eqn, kind, 0, |device, entry| {
            device.l.eqe.comp_cqn.set(entry, u64::from(cqn));
        });
    }

    /// Number of completions that the driver has not read, by its consumer index in memory.
    pub(crate) fn unread(&self, cq: &Cq) -> u32 {
        let consumed = self.memory.read_u32(cq.doorbell);
        consumed.map_or(u32::MAX, |consumed| distance(cq.produced, consumed))
    }

    /// Writes a completion.
    pub fn complete(&mut self, cqn: u32, what: &Completion) {
        let Some(cq) = self.cqs.get(&cqn) else {
            self.note(&format!("a completion for queue {cqn:#x}, which is none"));
            return;
        };
        if cq.is_broken {
            return;
        }
        // The driver stores the consumer index in memory.
        match self.memory.read_u32(cq.doorbell) {
            Ok(consumed) if distance(cq.produced, consumed) < 1 << cq.log_size => {}
            Ok(_) => return self.cq_overrun(cqn),
            Err(refused) => {
                self.witness
                    .violation(&format!("doorbell record of queue {cqn:#x}: {refused:?}"));
                return self.cq_overrun(cqn);
            }
        }
        let is_error = what.syndrome != 0;
        let mut entry = [0; CQE];
        let l = &self.l.cqe;
        l.srqn_uidx.set(&mut entry, u64::from(what.user_index));
        l.wqe_counter.set(&mut entry, u64::from(what.wqe_counter));
        let qpn = u64::from(what.send_opcode) << 24 | u64::from(what.qpn);
        l.sop_drop_qpn.set(&mut entry, qpn);
        if is_error {
            let l = &self.l.err_cqe;
            l.syndrome.set(&mut entry, u64::from(what.syndrome));
            l.s_wqe_opcode_qpn.set(&mut entry, qpn);
        } else {
            l.byte_cnt.set(&mut entry, u64::from(what.bytes));
            l.imm
                .set(&mut entry, u64::from(u32::from_be_bytes(what.imm)));
            l.slid.set(&mut entry, u64::from(what.source_lid));
            l.flags_rqpn.set(&mut entry, u64::from(what.source_qpn));
        }
        let owner = ((cq.produced >> cq.log_size) & 1) as u8;
        let solicited = u8::from(what.is_solicited) << 1;
        let last = what.opcode << 4 | solicited | owner;
        l.op_own.set(&mut entry, u64::from(last));
        let index = u64::from(cq.produced & ((1 << cq.log_size) - 1));
        let at = index * cq.stride as u64 + (cq.stride - CQE) as u64;
        let owner_at = self.l.cqe.op_own.byte();
        let written = put(&self.memory, &cq.buffer, at, &entry, owner_at);
        let notify = match cq.arm {
            Arm::No => false,
            Arm::Next => true,
            Arm::Solicited => what.is_solicited || is_error,
        };
        let cq = self.cqs.get_mut(&cqn).expect("it was there");
        cq.produced = cq.produced.wrapping_add(1) & 0xff_ffff;
        if let Err(refused) = written {
            self.witness
                .violation(&format!("completion queue {cqn:#x}: {refused:?}"));
        }
        if notify {
            self.cq_event(cqn);
        }
    }

    fn cq_overrun(&mut self, cqn: u32) {
        self.note(&format!("completion queue {cqn:#x} overran"));
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.is_broken = true;
        }
        let kind = self.c.events.cq_error;
        self.event(kind, 0, |device, entry| {
            device.l.eqe.cq_err_cqn.set(entry, u64::from(cqn));
            device.l.eqe.cq_err_syndrome.set(entry, 1);
        });
    }
}

/// Writes an entry. The byte with the owner bit comes last.
fn put(
    memory: &crate::memory::Memory,
    buffer: &Buffer,
    at: u64,
    entry: &[u8],
    owner: usize,
) -> Result<(), Refused> {
    buffer.write(memory, at, &entry[..owner])?;
    buffer.write(memory, at + owner as u64, &entry[owner..])
}
