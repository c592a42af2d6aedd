//! Executes the work requests of send queues, packet by packet.
//!
//! The remote end is a queue pair of this device or of the one at the other end of the wire:
//! [`Device::end`]. A step moves at most one packet, so sends of
//! one queue pair interleave with commands and with other queue pairs' changes of keys. Each
//! packet translates its addresses when it moves and keeps no translation for the next
//! packet.

use std::time::{Duration, Instant};

use crate::device::Device;
use crate::device::fault::{Missing, Pending, Side};
use crate::device::mkey::{Piece, Stop, Want};
use crate::memory::{Refused, Target};
use crate::qp::{Segment, Send, State, Wait};
use crate::witness::Dma;

mod end;
mod receive;
mod request;

/// Bytes of a packet.
const MTU: u64 = 4096;
/// Bytes of a message (`log_max_msg`).
const MAX_MESSAGE: u64 = 1 << 30;
/// Size of the GRH. A datagram leaves room for it in the receive buffer.
const GRH: u64 = 40;
/// How long to wait before a retry if the remote end is not ready.
const NOT_READY: Duration = Duration::from_micros(200);
/// How long until the remote end counts as absent.
const ABSENT: Duration = Duration::from_millis(500);
/// The retry count that stands for unlimited retries.
const FOR_EVER: u64 = 7;

const READ: Want = Want {
    write: false,
    remote: false,
    atomic: false,
};
const WRITE: Want = Want {
    write: true,
    ..READ
};
const REMOTE_READ: Want = Want {
    remote: true,
    ..READ
};
const REMOTE_WRITE: Want = Want {
    remote: true,
    ..WRITE
};
const REMOTE_ATOMIC: Want = Want {
    atomic: true,
    ..REMOTE_WRITE
};

/// Why a packet did not move.
enum Halt {
    /// Memory is absent.
    Fault(Side, Missing),
    /// The remote end has no receive request, or does not exist.
    NotReady {
        /// The remote end exists.
        exists: bool,
    },
    /// The request fails, with the sender's syndrome.
    Error(u64),
    /// The request fails because of the remote end, which fails as well: the sender's syndrome,
    /// and the receiver's syndrome if a receive request fails too.
    Both(u64, Option<u64>),
}

impl Device {
    /// Handles a send doorbell: the driver has posted work requests.
    pub(crate) fn send_doorbell(&mut self, page: u64, qpn: u32) {
        let doorbell = match self.qps.get(&qpn) {
            Some(qp) if qp.uar == page => qp.doorbell,
            _ => {
                return self.note(&format!(
                    "UAR {page}: a doorbell of queue pair {qpn:#x}, which is not there"
                ));
            }
        };
        // The doorbell record's second counter belongs to the send queue (`MLX5_SND_DBR`).
        let at = doorbell.wrapping_add(4 * self.c.misc.snd_dbr);
        match self.memory.read_u32(at) {
            Ok(counter) => {
                if let Some(qp) = self.qps.get_mut(&qpn) {
                    let is_idle = qp.current.is_none() && qp.sent == qp.posted;
                    qp.rung_at = is_idle.then_some(qp.sent);
                    qp.posted = counter as u16;
                    qp.rung = Instant::now();
                }
                self.queue(qpn);
            }
            Err(refused) => self.witness.violation(&format!(
                "doorbell record of queue pair {qpn:#x}: {refused:?}"
            )),
        }
    }

    /// Handles the expiry of a queue pair's timer.
    pub(crate) fn timer(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            if qp.wait == Wait::Timer {
                qp.wait = Wait::No;
            }
            self.queue(qpn);
        }
    }

    /// Runs one step of a queue pair.
    pub(crate) fn step(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        match qp.state {
            State::Err => return self.flush(qpn),
            State::Rts if qp.wait == Wait::No => {}
            _ => return,
        }
        let mut send = match qp.current.take() {
            Some(send) => send,
            None if qp.sent == qp.posted => return,
            None => match self.fetch(qpn) {
                Ok(send) => send,
                Err(bad) => return self.bad_request(qpn, &bad),
            },
        };
        self.bus.begin(qpn);
        let moved = self.packet(qpn, &mut send);
        if self.bus.is_asking() {
            // The packet begins again once the answer is there.
            self.moved.clear();
            return self.keep(qpn, send, Wait::No);
        }
        self.bus.forget();
        self.report();
        if let Some(far) = &mut self.far {
            far.report();
        }
        match moved {
            Ok(()) if send.done >= send.total => self.finish(qpn, &send),
            Ok(()) => self.keep(qpn, send, Wait::No),
            Err(Halt::Fault(side, missing)) => {
                send.has_waited = true;
                let is_far = side != Side::Requester && self.is_far(send.remote_lid);
                self.keep(qpn, send, Wait::No);
                let pending = Pending { qpn, side, is_far };
                let token = match &mut self.far {
                    Some(far) if is_far => far.fault(pending, &missing),
                    _ => self.fault(pending, &missing),
                };
                if let Some(qp) = self.qps.get_mut(&qpn) {
                    qp.wait = Wait::Fault { token, is_far };
                }
                return;
            }
            Err(Halt::NotReady { exists }) => return self.not_ready(qpn, send, exists),
            Err(Halt::Error(syndrome)) => return self.fail(qpn, &send, syndrome),
            Err(Halt::Both(ours, theirs)) => return self.fail_both(qpn, &send, ours, theirs),
        }
        self.queue(qpn);
    }

    /// Logs the packet's DMA.
    pub(crate) fn report(&mut self) {
        for (dma, done) in std::mem::take(&mut self.moved) {
            self.witness.dma(&dma, &done);
        }
    }

    fn keep(&mut self, qpn: u32, send: Send, wait: Wait) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.current = Some(send);
            qp.wait = wait;
        }
    }

    fn not_ready(&mut self, qpn: u32, mut send: Send, exists: bool) {
        let l = &self.l.qpc;
        let context = &self.qps[&qpn].context;
        let (limit, syndrome) = if exists {
            (l.rnr_retry.get(context), self.c.syndromes.rnr_retry_exc_err)
        } else {
            (FOR_EVER, self.c.syndromes.transport_retry_exc_err)
        };
        let is_over = if exists {
            send.absent_since = None;
            send.retries = send.retries.saturating_add(1);
            limit != FOR_EVER && u64::from(send.retries) > limit
        } else {
            send.absent_since.get_or_insert_with(Instant::now).elapsed() > ABSENT
        };
        if is_over {
            return self.fail(qpn, &send, syndrome);
        }
        send.has_waited = true;
        self.keep(qpn, send, Wait::Timer);
        self.queue_later(qpn, NOT_READY);
    }

    /// Moves the next packet of a request.
    fn packet(&mut self, qpn: u32, send: &mut Send) -> Result<(), Halt> {
        let c = self.c.opcodes;
        let opcode = u64::from(send.opcode);
        if opcode == c.nop {
            send.done = send.total;
            return Ok(());
        }
        if opcode == c.umr {
            self.umr(qpn, send).map_err(|why| {
                self.note(&format!("queue pair {qpn:#x}: {why}"));
                Halt::Error(self.c.syndromes.mw_bind_err)
            })?;
            send.done = send.total;
            return Ok(());
        }
        let service = self.qps[&qpn].service;
        let is_datagram = service == self.c.qp_st.ud || service == self.c.qp_st.qp1;
        if is_datagram {
            return self.datagram(qpn, send);
        }
        if send.total > MAX_MESSAGE {
            return Err(Halt::Error(self.c.syndromes.local_length_err));
        }
        let peer = self.peer(qpn, send)?;
        let len = (send.total - send.done).min(MTU) as usize;
        if opcode == c.rdma_read {
            let from = self.end(send).remote(peer, send, len, REMOTE_READ)?;
            let to = self.local(qpn, send, len, WRITE)?;
            let data = self.end(send).dma_read(peer, &from, len);
            let data = data.map_err(|_| self.theirs(send))?;
            self.dma_write(qpn, &to, &data).map_err(|_| self.ours())?;
        } else if opcode == c.atomic_cs || opcode == c.atomic_fa {
            self.atomic(qpn, peer, send)?;
        } else if opcode == c.rdma_write || opcode == c.rdma_write_imm {
            if opcode == c.rdma_write_imm {
                self.end(send).take_receive(peer, send, 0)?;
            }
            if len > 0 {
                let (from, data) = self.gather(qpn, send, len)?;
                let to = self.end(send).remote(peer, send, len, REMOTE_WRITE)?;
                let data = self.data(qpn, &from, data, len)?;
                let done = self.end(send).dma_write(peer, &to, &data);
                done.map_err(|_| self.theirs(send))?;
            }
        } else {
            self.end(send).take_receive(peer, send, 0)?;
            if len > 0 {
                let (from, data) = self.gather(qpn, send, len)?;
                let to = self.end(send).scatter(peer, send, send.done, len)?;
                let data = self.data(qpn, &from, data, len)?;
                let done = self.end(send).dma_write(peer, &to, &data);
                done.map_err(|_| self.theirs(send))?;
            }
        }
        send.done += len as u64;
        Ok(())
    }

    /// The queue pair at the remote end, if it can receive.
    fn peer(&self, qpn: u32, send: &Send) -> Result<u32, Halt> {
        let end = self.at(send.remote_lid);
        let peer = end.and_then(|end| end.qps.get(&send.remote_qpn));
        let service = self.qps.get(&qpn).map(|qp| qp.service);
        let listens = peer.is_some_and(|peer| {
            matches!(peer.state, State::Rtr | State::Rts)
                && service == Some(peer.service)
                && self.l.qpc.remote_qpn.get(&peer.context) == u64::from(qpn)
                && self.l.qpc.rlid.get(&peer.context) == u64::from(self.options.lid)
        });
        if listens {
            Ok(send.remote_qpn)
        } else {
            Err(Halt::NotReady { exists: false })
        }
    }

    /// The protection domain at the remote end. The target of an XRC connection has a domain of
    /// the driver's own. The domain of the shared queue that the request names counts instead.
    fn domain(&self, peer: u32, srqn: Option<u32>) -> u32 {
        let shared = srqn.and_then(|srqn| self.srqs.get(&srqn));
        shared.map_or(self.qps[&peer].pd, |srq| srq.pd)
    }

    /// Translates the memory at the remote end.
    fn remote(&self, peer: u32, send: &Send, len: usize, want: Want) -> Result<Vec<Piece>, Halt> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let (va, key) = send.remote;
        let context = &self.qps[&peer].context;
        let l = &self.l.qpc;
        let enabled = match want {
            Want { atomic: true, .. } => l.rae,
            Want { write: true, .. } => l.rwe,
            _ => l.rre,
        };
        let refused = Halt::Both(self.c.syndromes.remote_access_err, None);
        if enabled.get(context) == 0 {
            self.note(&format!("queue pair {peer:#x} does not allow {want:?}"));
            return Err(refused);
        }
        let Some(here) = va.checked_add(send.done) else {
            return Err(refused);
        };
        let pd = self.domain(peer, send.remote_srqn);
        match self.translate(key, here, len, want, Some(pd)) {
            Ok(pieces) => Ok(pieces),
            Err(Stop::Fault { mkey, va: missing }) => Err(Halt::Fault(
                Side::Remote { va, key },
                Missing {
                    mkey,
                    va: missing,
                    len,
                    done: send.done,
                    total: send.total,
                    write: want.write,
                },
            )),
            Err(Stop::Denied(why)) => {
                self.note(&format!("queue pair {peer:#x}: {why}"));
                Err(refused)
            }
        }
    }

    /// Translates the local memory of the request, from the current position on.
    fn local(&self, qpn: u32, send: &Send, len: usize, want: Want) -> Result<Vec<Piece>, Halt> {
        self.list(qpn, self.qps[&qpn].pd, &send.local, send.done, len, want)
            .map_err(|stop| match stop {
                Stop::Fault { mkey, va } => Halt::Fault(
                    Side::Requester,
                    Missing {
                        mkey,
                        va,
                        len,
                        done: send.done,
                        total: send.total,
                        write: want.write,
                    },
                ),
                Stop::Denied(why) => {
                    self.note(&format!("queue pair {qpn:#x}: {why}"));
                    Halt::Error(self.c.syndromes.local_prot_err)
                }
            })
    }

    /// Translates `len` bytes of a list that a queue pair names, `skip` bytes from its start.
    fn list(
        &self,
        qpn: u32,
        pd: u32,
        segments: &[Segment],
        mut skip: u64,
        mut len: usize,
        want: Want,
    ) -> Result<Vec<Piece>, Stop> {
        let mut pieces = Vec::new();
        for segment in segments {
            if len == 0 {
                break;
            }
            if skip >= segment.len() {
                skip -= segment.len();
                continue;
            }
            let here = usize::try_from(segment.len() - skip)
                .unwrap_or(usize::MAX)
                .min(len);
            if let Segment::Data { key, va, .. } = segment {
                self.check_reserved(qpn, *key)?;
                pieces.extend(self.translate(*key, va.wrapping_add(skip), here, want, Some(pd))?);
            }
            skip = 0;
            len -= here;
        }
        Ok(pieces)
    }

    /// The data to send: pieces, or the inline bytes of the request.
    fn gather(
        &self,
        qpn: u32,
        send: &Send,
        len: usize,
    ) -> Result<(Vec<Piece>, Option<Vec<u8>>), Halt> {
        if !send.local.iter().any(Segment::is_inline) {
            return Ok((self.local(qpn, send, len, READ)?, None));
        }
        let bytes = send.local.iter().filter_map(|segment| match segment {
            Segment::Inline(bytes) => Some(bytes.as_slice()),
            Segment::Data { .. } => None,
        });
        let rest = bytes.flatten().skip(send.done as usize);
        Ok((Vec::new(), Some(rest.take(len).copied().collect())))
    }

    fn data(
        &mut self,
        qpn: u32,
        from: &[Piece],
        inline: Option<Vec<u8>>,
        len: usize,
    ) -> Result<Vec<u8>, Halt> {
        match inline {
            Some(bytes) => Ok(bytes),
            None => self.dma_read(qpn, from, len).map_err(|_| self.ours()),
        }
    }

    /// Sends a datagram. It arrives whole or not at all, and the sender gets no error.
    fn datagram(&mut self, qpn: u32, send: &mut Send) -> Result<(), Halt> {
        let len = usize::try_from(send.total).unwrap_or(usize::MAX);
        if send.total > MTU {
            return Err(Halt::Error(self.c.syndromes.local_length_err));
        }
        let (from, data) = self.gather(qpn, send, len)?;
        let peer = send.remote_qpn;
        let end = self.at(send.remote_lid);
        let listens = end.and_then(|end| end.qps.get(&peer)).is_some_and(|peer| {
            let is_datagram = [self.c.qp_st.ud, self.c.qp_st.qp1].contains(&peer.service);
            is_datagram && matches!(peer.state, State::Rtr | State::Rts)
        });
        let data = self.data(qpn, &from, data, len)?;
        if listens {
            match self.end(send).deliver(peer, send, &data) {
                // Without a receive request the datagram is lost.
                Ok(()) | Err(Halt::NotReady { .. }) => {}
                Err(Halt::Both(_, theirs)) if !self.bus.is_asking() => {
                    self.end(send).fail_receive(peer, send, theirs);
                }
                Err(halt) => return Err(halt),
            }
        }
        send.done = send.total;
        Ok(())
    }

    fn deliver(&mut self, peer: u32, send: &mut Send, data: &[u8]) -> Result<(), Halt> {
        self.take_receive(peer, send, GRH)?;
        let to = self.scatter(peer, send, GRH, data.len())?;
        let done = self.dma_write(peer, &to, data);
        done.map_err(|_| self.theirs(send))
    }

    /// Carries out an atomic operation. Its numbers have the host's byte order, as the driver
    /// has requested (`atomic_req_8B_endianness_mode`).
    fn atomic(&mut self, qpn: u32, peer: u32, send: &mut Send) -> Result<(), Halt> {
        if send.local.iter().map(Segment::len).sum::<u64>() < 8 {
            return Err(Halt::Error(self.c.syndromes.local_length_err));
        }
        let to = self.local(qpn, send, 8, WRITE)?;
        let found = match send.found {
            Some(found) => found,
            None => {
                if !send.remote.0.is_multiple_of(8) {
                    return Err(Halt::Both(self.c.syndromes.remote_inval_req_err, None));
                }
                let at = self.end(send).remote(peer, send, 8, REMOTE_ATOMIC)?;
                let old = self.end(send).dma_read(peer, &at, 8);
                let old = old.map_err(|_| self.theirs(send))?;
                let found = u64::from_le_bytes(old.try_into().unwrap_or_default());
                let (operand, compare) = send.atomic;
                let new = if u64::from(send.opcode) == self.c.opcodes.atomic_fa {
                    Some(found.wrapping_add(operand))
                } else {
                    (found == compare).then_some(operand)
                };
                if let Some(new) = new {
                    let new = new.to_le_bytes();
                    let done = self.end(send).dma_write(peer, &at, &new);
                    done.map_err(|_| self.theirs(send))?;
                }
                send.found = Some(found);
                // If the result waits for an answer of QEMU, the packet begins again without
                // this part, which is done.
                self.report();
                self.bus.forget();
                found
            }
        };
        let done = self.dma_write(qpn, &to, &found.to_le_bytes());
        done.map_err(|_| self.ours())
    }

    /// The error for a failed DMA to local memory.
    fn ours(&self) -> Halt {
        Halt::Error(self.c.syndromes.local_prot_err)
    }

    /// The error for a failed DMA to memory at the remote end.
    fn theirs(&self, send: &Send) -> Halt {
        let s = &self.c.syndromes;
        let receive = send.receive.as_ref().map(|_| s.local_prot_err);
        Halt::Both(s.remote_op_err, receive)
    }

    fn describe(&self, qpn: u32, piece: &Piece, dir: &'static str) -> Dma {
        Dma {
            dir,
            addr: piece.addr,
            len: piece.len,
            qpn,
            mkey: piece.mkey,
            va: piece.va,
            ats: piece.ats,
            ro: piece.ro,
            umr: piece.used.last().map_or(0, |used| used.umr),
            used: piece.used.clone(),
        }
    }

    /// Whether QEMU has not shared this memory, but can access it for the device.
    fn is_elsewhere(&self, done: &Result<Target, Refused>) -> bool {
        self.bus.is_on && matches!(done, Err(Refused::Unmapped(_)))
    }

    /// Records a DMA to log once the packet is done.
    fn moved(
        &mut self,
        qpn: u32,
        piece: &Piece,
        dir: &'static str,
        done: Result<Target, Refused>,
    ) -> Result<(), Refused> {
        let dma = self.describe(qpn, piece, dir);
        self.moved.push((dma, done.clone()));
        done.map(drop)
    }

    /// Reads. A refused DMA leads to a completion with an error, as on hardware.
    fn dma_read(&mut self, qpn: u32, pieces: &[Piece], len: usize) -> Result<Vec<u8>, Refused> {
        let mut data = vec![0; len];
        let mut rest = &mut data[..];
        for piece in pieces {
            let (here, left) = rest.split_at_mut(piece.len.min(rest.len()));
            rest = left;
            let mut done = self.memory.read(piece.addr, here);
            if self.is_elsewhere(&done) {
                done = self.bus.read(piece.addr, here);
            }
            self.moved(qpn, piece, "read", done)?;
        }
        Ok(data)
    }

    pub(crate) fn dma_write(
        &mut self,
        qpn: u32,
        pieces: &[Piece],
        data: &[u8],
    ) -> Result<(), Refused> {
        let mut rest = data;
        for piece in pieces {
            let (here, left) = rest.split_at(piece.len.min(rest.len()));
            rest = left;
            let mut done = self.memory.write(piece.addr, here);
            if self.is_elsewhere(&done) {
                done = self.bus.write(piece.addr, here);
            }
            self.moved(qpn, piece, "write", done)?;
        }
        Ok(())
    }
}
