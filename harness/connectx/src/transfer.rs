//! Work requests: what a send queue does, packet by packet.
//!
//! Both ends are queue pairs of this device. A step moves at most one packet, so
//! that what one queue pair sends, the changes of keys that another one makes, and
//! commands come in between each other. Each packet is translated when it moves; no
//! translation is kept from one packet to the next.

use std::time::{Duration, Instant};

use crate::device::{Device, FLUSH_AGAIN};
use crate::fault::{Missing, Pending, Side};
use crate::memory::Refused;
use crate::mkey::{Piece, Stop, Want};
use crate::qp::{Receive, Segment, Send, State, WQEBB, Wait};
use crate::queue::Completion;
use crate::witness::Dma;

/// Bytes of a packet.
const MTU: u64 = 4096;
/// A datagram leaves room for a header that InfiniBand may have.
const GRH: u64 = 40;
/// How long the other end is given to take requests.
const NOT_READY: Duration = Duration::from_micros(200);
/// How long until it counts as absent.
const ABSENT: Duration = Duration::from_millis(500);
/// Retries without an end.
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
    /// Memory is not there.
    Fault(Side, Missing),
    /// The other end has no receive request, or is not there.
    NotReady {
        /// It is there.
        exists: bool,
    },
    /// The request fails, with the sender's syndrome.
    Error(u64),
    /// It fails because of the other end, which fails as well: the sender's syndrome, and
    /// the receiver's if a receive request fails with it.
    Both(u64, Option<u64>),
}

impl Device {
    /// The driver has posted work requests.
    pub(crate) fn send_doorbell(&mut self, page: u64, qpn: u32) {
        let doorbell = match self.qps.get(&qpn) {
            Some(qp) if qp.uar == page => qp.doorbell,
            _ => {
                return self.note(&format!(
                    "UAR {page}: a doorbell of queue pair {qpn:#x}, which is not there"
                ));
            }
        };
        // The second counter is that of the send queue (`MLX5_SND_DBR`).
        let at = doorbell + 4 * self.c.misc.snd_dbr;
        match self.memory.read_u32(at) {
            Ok(counter) => {
                if let Some(qp) = self.qps.get_mut(&qpn) {
                    qp.posted = counter as u16;
                }
                self.queue(qpn);
            }
            Err(refused) => self.witness.violation(&format!(
                "doorbell record of queue pair {qpn:#x}: {refused:?}"
            )),
        }
    }

    /// A moment has passed.
    pub(crate) fn timer(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            if qp.wait == Wait::Timer {
                qp.wait = Wait::No;
            }
            self.queue(qpn);
        }
    }

    /// Does one step of a queue pair.
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
                Err((blocks, why)) => return self.bad_request(qpn, blocks, &why),
            },
        };
        let moved = self.packet(qpn, &mut send);
        match moved {
            Ok(()) if send.done >= send.total => self.finish(qpn, &send),
            Ok(()) => self.keep(qpn, send, Wait::No),
            Err(Halt::Fault(side, missing)) => {
                self.keep(qpn, send, Wait::No);
                let token = self.fault(qpn, side, &missing);
                if let Some(qp) = self.qps.get_mut(&qpn) {
                    qp.wait = Wait::Fault(token);
                }
                return;
            }
            Err(Halt::NotReady { exists }) => return self.not_ready(qpn, send, exists),
            Err(Halt::Error(syndrome)) => return self.fail(qpn, &send, syndrome),
            Err(Halt::Both(ours, theirs)) => return self.fail_both(qpn, &send, ours, theirs),
        }
        self.queue(qpn);
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
        send.retries += 1;
        let since = *send.not_ready_since.get_or_insert_with(Instant::now);
        let is_over = if exists {
            limit != FOR_EVER && u64::from(send.retries) > limit
        } else {
            since.elapsed() > ABSENT
        };
        if is_over {
            return self.fail(qpn, &send, syndrome);
        }
        self.keep(qpn, send, Wait::Timer);
        self.queue_later(qpn, NOT_READY);
    }

    /// Reads the next work request.
    fn fetch(&self, qpn: u32) -> Result<Send, (u16, String)> {
        let qp = &self.qps[&qpn];
        let ring = qp.send.as_ref().ok_or((1, "no send queue".to_owned()))?;
        let size = WQEBB << ring.log_size;
        let read = |at: u64, len: usize| -> Result<Vec<u8>, Refused> {
            // A request that reaches the end goes on at the begin.
            let mut data = vec![0; len];
            let first = usize::try_from(size - at).unwrap_or(len).min(len);
            let (head, tail) = data.split_at_mut(first);
            ring.buffer.read(&self.memory, ring.offset + at, head)?;
            ring.buffer.read(&self.memory, ring.offset, tail)?;
            Ok(data)
        };
        let at = u64::from(qp.sent) * WQEBB % size;
        let unread = |refused: Refused| (1, format!("{refused:?}"));
        let l = &self.l.ctrl;
        let head = read(at, WQEBB as usize).map_err(unread)?;
        let count = (l.qpn_ds.get(&head) & self.c.misc.ds_mask) as usize;
        let len = count * 16;
        let blocks = len.div_ceil(WQEBB as usize).max(1) as u16;
        if qp.posted.wrapping_sub(qp.sent) < blocks {
            return Err((
                1,
                "a request that is longer than what was posted".to_owned(),
            ));
        }
        let wqe = read(at, len).map_err(unread)?;
        self.parse(qpn, &wqe, blocks).map_err(|why| (blocks, why))
    }

    /// Takes a work request apart.
    pub(crate) fn parse(&self, qpn: u32, wqe: &[u8], blocks: u16) -> Result<Send, String> {
        let qp = &self.qps[&qpn];
        let (l, c, st) = (&self.l, &self.c.opcodes, &self.c.qp_st);
        if wqe.len() < l.ctrl.size {
            return Err("a request without a control segment".to_owned());
        }
        let opcode = l.ctrl.opmod_idx_opcode.get(wqe) & 0xff;
        let flags = l.ctrl.fm_ce_se.get(wqe);
        let mut rest = &wqe[l.ctrl.size..];
        let mut take = |len: usize| -> Result<&[u8], String> {
            let (taken, left) = rest
                .split_at_checked(len)
                .ok_or("a request that is cut off")?;
            rest = left;
            Ok(taken)
        };
        let mut remote_qpn = l.qpc.remote_qpn.get(&qp.context) as u32;
        let mut remote_srqn = None;
        if qp.service == st.xrc {
            let xrc = take(l.xrc.size)?;
            remote_srqn = Some(l.xrc.xrc_srqn.get(xrc) as u32 & 0xff_ffff);
        }
        if qp.service == st.ud || qp.service == st.qp1 {
            let base = take(l.base_av.size)?;
            let to = l.base_av.dqp_dct.get(base) as u32;
            remote_qpn = to & 0xff_ffff;
            // The longer form of an address (`MLX5_EXTENDED_UD_AV`).
            if to & 1 << 31 != 0 {
                take(l.av.size - l.base_av.size)?;
            }
        }
        let mut remote = (0, 0);
        let is_atomic = opcode == c.atomic_cs || opcode == c.atomic_fa;
        if [c.rdma_write, c.rdma_write_imm, c.rdma_read].contains(&opcode) || is_atomic {
            let segment = take(l.raddr.size)?;
            remote = (l.raddr.raddr.get(segment), l.raddr.rkey.get(segment) as u32);
        }
        let mut atomic = (0, 0);
        if is_atomic {
            let segment = take(l.atomic.size)?;
            atomic = (
                l.atomic.swap_add.get(segment),
                l.atomic.compare.get(segment),
            );
        }
        let known = [
            c.rdma_write,
            c.rdma_write_imm,
            c.rdma_read,
            c.atomic_cs,
            c.atomic_fa,
            c.send,
            c.send_imm,
            c.send_inval,
            c.nop,
            c.umr,
        ];
        if !known.contains(&opcode) {
            return Err(format!("opcode {opcode:#x} is not modelled"));
        }
        let local = if opcode == c.umr || opcode == c.nop {
            // What follows is for umr.rs.
            vec![Segment::Inline(rest.to_vec())]
        } else {
            self.segments(rest, false)
        };
        let total: u64 = local.iter().map(Segment::len).sum();
        let imm = l.ctrl.imm.get(wqe) as u32;
        Ok(Send {
            counter: qp.sent,
            blocks,
            opcode: opcode as u8,
            is_signaled: flags & self.c.misc.cq_update != 0,
            is_solicited: flags & self.c.misc.solicited != 0,
            imm: imm.to_be_bytes(),
            remote_qpn,
            remote_srqn,
            remote,
            atomic,
            local,
            total: if is_atomic { 8 } else { total },
            done: 0,
            receive: None,
            retries: 0,
            not_ready_since: None,
            found: None,
        })
    }

    /// The list of memory at the end of a request.
    fn segments(&self, mut bytes: &[u8], is_receive: bool) -> Vec<Segment> {
        let l = &self.l.data;
        let mut segments = Vec::new();
        while bytes.len() >= l.size {
            let count = l.byte_count.get(bytes);
            if count & self.c.misc.inline_seg != 0 {
                let len = (count & 0x3ff) as usize;
                let data = bytes.get(4..4 + len).unwrap_or_default();
                segments.push(Segment::Inline(data.to_vec()));
                let used = (4 + len).next_multiple_of(16);
                bytes = bytes.get(used..).unwrap_or_default();
                continue;
            }
            let key = l.lkey.get(bytes) as u32;
            let va = l.addr.get(bytes);
            bytes = &bytes[l.size..];
            if is_receive && count == 0 {
                // The end of a list that is shorter than its request.
                break;
            }
            // 2 GiB do not fit into 31 bits.
            let len = if count == 0 { 1 << 31 } else { count };
            segments.push(Segment::Data { key, va, len });
        }
        segments
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
        let peer = self.peer(qpn, send)?;
        let len = (send.total - send.done).min(MTU) as usize;
        if opcode == c.rdma_read {
            let from = self.remote(peer, send, len, REMOTE_READ)?;
            let to = self.local(qpn, send, len, WRITE)?;
            let data = self.dma_read(peer, &from, len)?;
            self.dma_write(qpn, &to, &data)?;
        } else if opcode == c.atomic_cs || opcode == c.atomic_fa {
            self.atomic(qpn, peer, send)?;
        } else if opcode == c.rdma_write || opcode == c.rdma_write_imm {
            if opcode == c.rdma_write_imm {
                self.take_receive(peer, send)?;
            }
            if len > 0 {
                let (from, data) = self.gather(qpn, send, len)?;
                let to = self.remote(peer, send, len, REMOTE_WRITE)?;
                let data = self.data(qpn, &from, data, len)?;
                self.dma_write(peer, &to, &data)?;
            }
        } else {
            self.take_receive(peer, send)?;
            if len > 0 {
                let (from, data) = self.gather(qpn, send, len)?;
                let to = self.scatter(peer, send, send.done, len)?;
                let data = self.data(qpn, &from, data, len)?;
                self.dma_write(peer, &to, &data)?;
            }
        }
        send.done += len as u64;
        Ok(())
    }

    /// The queue pair at the other end, if it listens.
    fn peer(&self, qpn: u32, send: &Send) -> Result<u32, Halt> {
        let peer = self.qps.get(&send.remote_qpn);
        let listens = peer.is_some_and(|peer| {
            matches!(peer.state, State::Rtr | State::Rts)
                && self.l.qpc.remote_qpn.get(&peer.context) == u64::from(qpn)
        });
        if listens {
            Ok(send.remote_qpn)
        } else {
            Err(Halt::NotReady { exists: false })
        }
    }

    /// Memory that the other end names.
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
        let here = va
            .checked_add(send.done)
            .ok_or_else(|| Halt::Both(self.c.syndromes.remote_access_err, None))?;
        let pd = Some(self.qps[&peer].pd);
        match self.translate(key, here, len, want, pd) {
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

    /// Memory of the request itself, from where it is now.
    fn local(&self, qpn: u32, send: &Send, len: usize, want: Want) -> Result<Vec<Piece>, Halt> {
        self.list(self.qps[&qpn].pd, &send.local, send.done, len, want)
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

    /// The pieces of `len` bytes of a list, `skip` bytes from its begin.
    fn list(
        &self,
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
                pieces.extend(self.translate(*key, va.wrapping_add(skip), here, want, Some(pd))?);
            }
            skip = 0;
            len -= here;
        }
        Ok(pieces)
    }

    /// What is sent: pieces, or the bytes that are in the request itself.
    fn gather(
        &self,
        qpn: u32,
        send: &Send,
        len: usize,
    ) -> Result<(Vec<Piece>, Option<Vec<u8>>), Halt> {
        let is_inline = |segment: &Segment| matches!(segment, Segment::Inline(_));
        if !send.local.iter().any(is_inline) {
            return Ok((self.local(qpn, send, len, READ)?, None));
        }
        // A list has inline data alone, or none: so libmlx5 writes it.
        let mut all = Vec::new();
        for segment in &send.local {
            match segment {
                Segment::Inline(bytes) => all.extend_from_slice(bytes),
                Segment::Data { .. } => return Err(Halt::Error(self.c.syndromes.local_qp_op_err)),
            }
        }
        let from = usize::try_from(send.done).unwrap_or(usize::MAX);
        Ok((Vec::new(), Some(all[from..from + len].to_vec())))
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
            None => self.dma_read(qpn, from, len),
        }
    }

    /// Takes a receive request of the other end for this message, unless it has one.
    fn take_receive(&mut self, peer: u32, send: &mut Send) -> Result<(), Halt> {
        if send.receive.is_none() {
            let srqn = send.remote_srqn.or(self.qps[&peer].srqn);
            let receive = match srqn {
                Some(srqn) => self.take_shared(srqn),
                None => self.take_own(peer),
            };
            let receive = receive.ok_or(Halt::NotReady { exists: true })?;
            send.retries = 0;
            send.receive = Some(receive);
        }
        let room: u64 = send
            .receive
            .iter()
            .flat_map(|r| &r.segments)
            .map(Segment::len)
            .sum();
        let is_send = u64::from(send.opcode) != self.c.opcodes.rdma_write_imm;
        if is_send && send.total > room {
            let s = &self.c.syndromes;
            return Err(Halt::Both(s.remote_inval_req_err, Some(s.local_length_err)));
        }
        Ok(())
    }

    fn take_own(&mut self, qpn: u32) -> Option<Receive> {
        let qp = self.qps.get(&qpn)?;
        let ring = qp.receive.as_ref()?;
        let posted = self.memory.read_u32(qp.doorbell).ok()? & 0xffff;
        if posted == qp.received & 0xffff {
            return None;
        }
        let counter = qp.received as u16;
        let mut wqe = vec![0; 1 << ring.log_stride];
        ring.buffer
            .read(&self.memory, ring.at(qp.received), &mut wqe)
            .ok()?;
        let segments = self.segments(&wqe, true);
        self.qps.get_mut(&qpn)?.received += 1;
        Some(Receive {
            srqn: None,
            counter,
            segments,
        })
    }

    fn take_shared(&mut self, srqn: u32) -> Option<Receive> {
        let srq = self.srqs.get(&srqn)?;
        let posted = self.memory.read_u32(srq.doorbell).ok()? as u16;
        if posted == srq.used {
            return None;
        }
        let head = srq.head;
        let mut wqe = vec![0; 1 << srq.ring.log_stride];
        let at = srq.ring.at(u32::from(head));
        srq.ring.buffer.read(&self.memory, at, &mut wqe).ok()?;
        let next = self.l.srq_next.next_wqe_index.get(&wqe) as u16;
        let segments = self.segments(wqe.get(self.l.srq_next.size..)?, true);
        let srq = self.srqs.get_mut(&srqn)?;
        srq.head = next;
        srq.used = srq.used.wrapping_add(1);
        let left = posted.wrapping_sub(srq.used);
        if srq.limit != 0 && left < srq.limit {
            srq.limit = 0;
            let kind = self.c.events.srq_rq_limit;
            self.event(kind, 0, |device, entry| {
                device.l.eqe.qp_srq_n.set(entry, u64::from(srqn));
            });
        }
        Some(Receive {
            srqn: Some(srqn),
            counter: head,
            segments,
        })
    }

    /// Memory of the receive request, from `skip` on.
    fn scatter(&self, peer: u32, send: &Send, skip: u64, len: usize) -> Result<Vec<Piece>, Halt> {
        let Some(receive) = &send.receive else {
            return Ok(Vec::new());
        };
        let shared = receive.srqn.and_then(|srqn| self.srqs.get(&srqn));
        let pd = shared.map_or(self.qps[&peer].pd, |srq| srq.pd);
        self.list(pd, &receive.segments, skip, len, WRITE)
            .map_err(|stop| match stop {
                Stop::Fault { mkey, va } => Halt::Fault(
                    Side::Receiver {
                        qpn: peer,
                        srqn: receive.srqn,
                        counter: receive.counter,
                    },
                    Missing {
                        mkey,
                        va,
                        len,
                        done: skip,
                        total: send.total,
                        write: true,
                    },
                ),
                Stop::Denied(why) => {
                    self.note(&format!("queue pair {peer:#x}: {why}"));
                    let s = &self.c.syndromes;
                    Halt::Both(s.remote_op_err, Some(s.local_prot_err))
                }
            })
    }

    /// A datagram arrives whole, or not at all, and the sender never learns of it.
    fn datagram(&mut self, qpn: u32, send: &mut Send) -> Result<(), Halt> {
        let len = usize::try_from(send.total).unwrap_or(usize::MAX);
        if send.total > MTU {
            return Err(Halt::Error(self.c.syndromes.local_length_err));
        }
        let (from, data) = self.gather(qpn, send, len)?;
        let peer = send.remote_qpn;
        let listens = self.qps.get(&peer).is_some_and(|peer| {
            let is_datagram = [self.c.qp_st.ud, self.c.qp_st.qp1].contains(&peer.service);
            is_datagram && matches!(peer.state, State::Rtr | State::Rts)
        });
        if listens && self.take_receive(peer, send).is_ok() {
            let to = self.scatter(peer, send, GRH, len)?;
            let data = self.data(qpn, &from, data, len)?;
            self.dma_write(peer, &to, &data)?;
        } else {
            send.receive = None;
        }
        send.done = send.total;
        Ok(())
    }

    /// Numbers are the host's, as the driver has asked for (`atomic_req_8B_endianness_mode`).
    fn atomic(&mut self, qpn: u32, peer: u32, send: &mut Send) -> Result<(), Halt> {
        let to = self.local(qpn, send, 8, WRITE)?;
        let found = match send.found {
            Some(found) => found,
            None => {
                if send.remote.0 % 8 != 0 {
                    return Err(Halt::Both(self.c.syndromes.remote_inval_req_err, None));
                }
                let at = self.remote(peer, send, 8, REMOTE_ATOMIC)?;
                let old = self.dma_read(peer, &at, 8)?;
                let found = u64::from_le_bytes(old.try_into().unwrap_or_default());
                let (operand, compare) = send.atomic;
                let new = if u64::from(send.opcode) == self.c.opcodes.atomic_fa {
                    Some(found.wrapping_add(operand))
                } else {
                    (found == compare).then_some(operand)
                };
                if let Some(new) = new {
                    self.dma_write(peer, &at, &new.to_le_bytes())?;
                }
                send.found = Some(found);
                found
            }
        };
        self.dma_write(qpn, &to, &found.to_le_bytes())
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
            umr: self.witness.writer(piece.mkey, piece.entry),
        }
    }

    /// Reads; a refusal is a completion with an error, as on hardware.
    fn dma_read(&mut self, qpn: u32, pieces: &[Piece], len: usize) -> Result<Vec<u8>, Halt> {
        let mut data = vec![0; len];
        let mut rest = &mut data[..];
        for piece in pieces {
            let (here, left) = rest.split_at_mut(piece.len.min(rest.len()));
            rest = left;
            let done = self.memory.read(piece.addr, here);
            let dma = self.describe(qpn, piece, "read");
            self.witness.dma(&dma, &done);
            done.map_err(|_| Halt::Error(self.c.syndromes.local_prot_err))?;
        }
        Ok(data)
    }

    fn dma_write(&mut self, qpn: u32, pieces: &[Piece], data: &[u8]) -> Result<(), Halt> {
        let mut rest = data;
        for piece in pieces {
            let (here, left) = rest.split_at(piece.len.min(rest.len()));
            rest = left;
            let done = self.memory.write(piece.addr, here);
            let dma = self.describe(qpn, piece, "write");
            self.witness.dma(&dma, &done);
            done.map_err(|_| Halt::Error(self.c.syndromes.local_prot_err))?;
        }
        Ok(())
    }

    /// A request is done: it completes, and so does the receive request that it took.
    fn finish(&mut self, qpn: u32, send: &Send) {
        let c = self.c.opcodes;
        let opcode = u64::from(send.opcode);
        if let Some(receive) = &send.receive {
            let r = &self.c.cqe;
            let kind = match opcode {
                _ if opcode == c.rdma_write_imm => r.resp_wr_imm,
                _ if opcode == c.send_imm => r.resp_send_imm,
                _ if opcode == c.send_inval => r.resp_send_inv,
                _ => r.resp_send,
            };
            let service = self.qps[&qpn].service;
            let is_datagram = service == self.c.qp_st.ud || service == self.c.qp_st.qp1;
            let header = if is_datagram { GRH } else { 0 };
            let completion = Completion {
                opcode: kind as u8,
                bytes: (send.total + header) as u32,
                imm: send.imm,
                source_qpn: qpn,
                is_solicited: send.is_solicited,
                ..Completion::default()
            };
            let receive = receive.clone();
            self.complete_receive(send.remote_qpn, &receive, completion);
        }
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        qp.sent = qp.sent.wrapping_add(send.blocks);
        if send.is_signaled {
            let cqn = qp.cqn.0;
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
        }
    }

    fn complete_receive(&mut self, qpn: u32, receive: &Receive, mut completion: Completion) {
        let Some(qp) = self.qps.get(&qpn) else {
            return;
        };
        completion.qpn = qpn;
        completion.wqe_counter = receive.counter;
        completion.user_index = qp.user_index;
        let mut cqn = qp.cqn.1;
        if let Some(srq) = receive.srqn.and_then(|srqn| self.srqs.get(&srqn)) {
            // A shared queue is what user space looks up, if it has an index of its own.
            if qp.service == self.c.qp_st.xrc {
                cqn = srq.cqn;
                completion.user_index = srq.user_index;
            }
        }
        self.complete(cqn, &completion);
    }

    /// A request fails: it completes with an error, and the queue pair is in error.
    fn fail(&mut self, qpn: u32, send: &Send, syndrome: u64) {
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
        self.to_error(qpn);
    }

    /// The other end fails as well. A receive request completes with its error; without
    /// one, an event tells.
    fn fail_both(&mut self, qpn: u32, send: &Send, ours: u64, theirs: Option<u64>) {
        let peer = send.remote_qpn;
        match (theirs, &send.receive) {
            (Some(syndrome), Some(receive)) => {
                let completion = Completion {
                    opcode: self.c.cqe.resp_err as u8,
                    syndrome: syndrome as u8,
                    ..Completion::default()
                };
                let receive = receive.clone();
                self.complete_receive(peer, &receive, completion);
            }
            _ => {
                let kind = self.c.events.wq_access_error;
                self.event(kind, 0, |device, entry| {
                    device.l.eqe.qp_srq_n.set(entry, u64::from(peer));
                });
            }
        }
        self.fail(qpn, send, ours);
        self.to_error(peer);
    }

    /// A request that cannot be understood.
    fn bad_request(&mut self, qpn: u32, blocks: u16, why: &str) {
        self.note(&format!("queue pair {qpn:#x}: {why}"));
        let send = self.placeholder(qpn, blocks);
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
            remote_qpn: 0,
            remote_srqn: None,
            remote: (0, 0),
            atomic: (0, 0),
            local: Vec::new(),
            total: 0,
            done: 0,
            receive: None,
            retries: 0,
            not_ready_since: None,
            found: None,
        }
    }

    /// The queue pair is in error: what is posted will be flushed.
    pub(crate) fn to_error(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.state = State::Err;
            qp.wait = Wait::No;
            self.faults.forget(qpn);
            self.queue(qpn);
        }
    }

    /// Completes what is posted with the error of a flush. Receive requests have no
    /// doorbell, so the queue pair is looked at again as long as it is in error.
    fn flush(&mut self, qpn: u32) {
        let flushed = self.c.syndromes.wr_flush_err;
        if let Some(send) = self.qps.get_mut(&qpn).and_then(|qp| qp.current.take()) {
            if let Some(receive) = &send.receive {
                // Its message was cut off in the middle.
                let completion = Completion {
                    opcode: self.c.cqe.resp_err as u8,
                    syndrome: self.c.syndromes.remote_aborted_err as u8,
                    ..Completion::default()
                };
                let receive = receive.clone();
                self.complete_receive(send.remote_qpn, &receive, completion);
                self.to_error(send.remote_qpn);
            }
            self.fail(qpn, &send, flushed);
            return;
        }
        let qp = &self.qps[&qpn];
        if qp.sent != qp.posted {
            let (blocks, opcode) = match self.fetch(qpn) {
                Ok(send) => (send.blocks, send.opcode),
                Err((blocks, _)) => (blocks, 0),
            };
            let mut send = self.placeholder(qpn, blocks);
            send.opcode = opcode;
            self.fail(qpn, &send, flushed);
            return;
        }
        while let Some(receive) = self.take_own(qpn) {
            let completion = Completion {
                opcode: self.c.cqe.resp_err as u8,
                syndrome: flushed as u8,
                ..Completion::default()
            };
            self.complete_receive(qpn, &receive, completion);
        }
        self.queue_later(qpn, FLUSH_AGAIN);
    }

    /// The driver has answered a page fault.
    pub(crate) fn resumed(&mut self, pending: Pending, error: bool) {
        let Some(qp) = self.qps.get_mut(&pending.qpn) else {
            return;
        };
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
