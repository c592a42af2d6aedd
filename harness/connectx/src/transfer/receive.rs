//! The remote end of a message: receive requests, from a queue pair's own or a shared queue.

use super::{Halt, WRITE};
use crate::device::Device;
use crate::device::fault::{Missing, Side};
use crate::device::mkey::{Piece, Stop};
use crate::device::queue::Completion;
use crate::memory::Refused;
use crate::qp::{Receive, Segment, Send};

/// Why a receive queue is unusable.
pub(super) enum Broken {
    /// The queue cannot be read.
    Refused(Refused),
    /// The contents are malformed.
    Bad(&'static str),
}

impl From<Refused> for Broken {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl Device {
    /// Takes a receive request at the remote end for this message, unless the message already
    /// has one. `header`: bytes that precede the message.
    pub(super) fn take_receive(
        &mut self,
        peer: u32,
        send: &mut Send,
        header: u64,
    ) -> Result<(), Halt> {
        if send.receive.is_none() {
            if send.done > 0 {
                // The remote end has been reset, so it does not expect the rest of the message.
                return Err(Halt::Error(self.c.syndromes.transport_retry_exc_err));
            }
            let srqn = send.remote_srqn.or(self.qps[&peer].srqn);
            let receive = match srqn {
                Some(srqn) => self.take_shared(srqn),
                None => self.take_own(peer),
            };
            let receive = receive.map_err(|broken| {
                let of = format!("receive queue of queue pair {peer:#x}");
                match broken {
                    Broken::Refused(refused) => {
                        self.witness.violation(&format!("{of}: {refused:?}"));
                    }
                    Broken::Bad(why) => self.note(&format!("{of}: {why}")),
                }
                Halt::Both(self.c.syndromes.remote_op_err, None)
            })?;
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
        if is_send && send.total + header > room {
            let s = &self.c.syndromes;
            return Err(Halt::Both(s.remote_inval_req_err, Some(s.local_length_err)));
        }
        Ok(())
    }

    /// The next request of a queue pair's own receive queue.
    pub(super) fn take_own(&mut self, qpn: u32) -> Result<Option<Receive>, Broken> {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return Ok(None);
        };
        let Some(ring) = &qp.receive else {
            return Ok(None);
        };
        let counter = qp.received as u16;
        if self.memory.read_u32(qp.doorbell)? as u16 == counter {
            return Ok(None);
        }
        let mut wqe = vec![0; 1 << ring.log_stride];
        let at = ring.at(qp.received);
        ring.buffer.read(&self.memory, at, &mut wqe)?;
        qp.received = qp.received.wrapping_add(1);
        // A malformed list has room for nothing, but its request still completes.
        let segments = self.segments(&wqe, true).unwrap_or_default();
        Ok(Some(Receive {
            srqn: None,
            counter,
            segments,
        }))
    }

    /// The next request of a shared receive queue.
    fn take_shared(&mut self, srqn: u32) -> Result<Option<Receive>, Broken> {
        let Some(srq) = self.srqs.get(&srqn) else {
            return Ok(None);
        };
        let posted = self.memory.read_u32(srq.doorbell)? as u16;
        if posted == srq.used {
            return Ok(None);
        }
        let head = srq.head;
        if head >> srq.ring.log_size != 0 {
            return Err(Broken::Bad("its list leads out of it"));
        }
        let mut wqe = vec![0; 1 << srq.ring.log_stride];
        let at = srq.ring.at(u32::from(head));
        srq.ring.buffer.read(&self.memory, at, &mut wqe)?;
        let next = self.l.srq_next.next_wqe_index.get(&wqe) as u16;
        let list = wqe.get(self.l.srq_next.size..).unwrap_or_default();
        let segments = self.segments(list, true).unwrap_or_default();
        let srq = self.srqs.get_mut(&srqn).expect("it was there");
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
        Ok(Some(Receive {
            srqn: Some(srqn),
            counter: head,
            segments,
        }))
    }

    /// Translates the memory of the receive request, from `skip` on.
    pub(super) fn scatter(
        &self,
        peer: u32,
        send: &Send,
        skip: u64,
        len: usize,
    ) -> Result<Vec<Piece>, Halt> {
        let Some(receive) = &send.receive else {
            return Ok(Vec::new());
        };
        let pd = self.domain(peer, receive.srqn);
        self.list(peer, pd, &receive.segments, skip, len, WRITE)
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

    /// Completes a receive request. Fills in the fields that all such completions share.
    pub(super) fn complete_receive(
        &mut self,
        qpn: u32,
        receive: &Receive,
        mut completion: Completion,
    ) {
        let Some(qp) = self.qps.get(&qpn) else {
            return;
        };
        completion.qpn = qpn;
        completion.wqe_counter = receive.counter;
        completion.user_index = qp.user_index;
        let mut cqn = qp.cqn.1;
        if let Some(srq) = receive.srqn.and_then(|srqn| self.srqs.get(&srqn)) {
            // User space looks up the shared queue, if the queue has its own index.
            if qp.service == self.c.qp_st.xrc {
                cqn = srq.cqn;
                completion.user_index = srq.user_index;
            }
        }
        self.complete(cqn, &completion);
    }
}
