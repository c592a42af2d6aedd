//! Reads and parses work requests of the send queue.

use crate::device::Device;
use crate::qp::{Segment, Send, WQEBB};

/// A request that cannot be read or parsed.
pub(super) struct Bad {
    /// The number of its basic blocks.
    pub blocks: u16,
    /// Why.
    pub why: String,
    /// The request could not be read from memory.
    pub is_refused: bool,
}

impl Bad {
    fn new(blocks: u16, why: String) -> Self {
        Self {
            blocks,
            why,
            is_refused: false,
        }
    }
}

impl Device {
    /// Reads the next work request.
    pub(super) fn fetch(&self, qpn: u32) -> Result<Send, Bad> {
        let bad = |why: &str| Bad::new(1, why.to_owned());
        let qp = &self.qps[&qpn];
        let ring = qp.send.as_ref().ok_or_else(|| bad("no send queue"))?;
        let size = ring.bytes();
        let read = |at: u64, len: usize| -> Result<Vec<u8>, Bad> {
            // A request that reaches the end of the ring wraps around to the start.
            let mut data = vec![0; len];
            let first = usize::try_from(size - at).unwrap_or(len).min(len);
            let (head, tail) = data.split_at_mut(first);
            let both = [(ring.offset + at, head), (ring.offset, tail)];
            for (at, part) in both {
                let done = ring.buffer.read(&self.memory, at, part);
                done.map_err(|refused| Bad {
                    is_refused: true,
                    ..bad(&format!("{refused:?}"))
                })?;
            }
            Ok(data)
        };
        let at = u64::from(qp.sent) * WQEBB % size;
        let l = &self.l.ctrl;
        let head = read(at, WQEBB as usize)?;
        let count = (l.qpn_ds.get(&head) & self.c.misc.ds_mask) as usize;
        let len = count * 16;
        let blocks = len.div_ceil(WQEBB as usize).max(1) as u16;
        if qp.posted.wrapping_sub(qp.sent) < blocks || len as u64 > size {
            return Err(bad("a request that is longer than what was posted"));
        }
        let wqe = read(at, len)?;
        self.parse(qpn, &wqe, blocks)
            .map_err(|why| Bad::new(blocks, why))
    }

    /// Parses a work request.
    fn parse(&self, qpn: u32, wqe: &[u8], blocks: u16) -> Result<Send, String> {
        let qp = &self.qps[&qpn];
        let (l, c, st) = (&self.l, &self.c.opcodes, &self.c.qp_st);
        if wqe.len() < l.ctrl.size {
            return Err("a request without a control segment".to_owned());
        }
        let opcode = l.ctrl.opmod_idx_opcode.get(wqe) & self.c.misc.opcode_mask;
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
        let mut remote_lid = l.qpc.rlid.get(&qp.context) as u16;
        let mut remote_srqn = None;
        if qp.service == st.xrc {
            let xrc = take(l.xrc.size)?;
            remote_srqn = Some(l.xrc.xrc_srqn.get(xrc) as u32 & 0xff_ffff);
        }
        if qp.service == st.ud || qp.service == st.qp1 {
            let base = take(l.base_av.size)?;
            let to = l.base_av.dqp_dct.get(base);
            remote_qpn = to as u32 & 0xff_ffff;
            remote_lid = l.base_av.rlid.get(base) as u16;
            // The longer form of an address.
            if to & self.c.misc.extended_av != 0 {
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
            // umr.rs parses the rest.
            vec![Segment::Inline(rest.to_vec())]
        } else {
            self.segments(rest, false)?
        };
        let inline = local.iter().filter(|segment| segment.is_inline()).count();
        // A list has only inline data or none, as libmlx5 writes it.
        let may_be_inline = opcode != c.rdma_read && !is_atomic && inline == local.len();
        if inline > 0 && !may_be_inline {
            return Err("inline data where there is none".to_owned());
        }
        let total: u64 = local.iter().map(Segment::len).sum();
        let imm = l.ctrl.imm.get(wqe) as u32;
        Ok(Send {
            counter: qp.sent,
            blocks,
            opcode: opcode as u8,
            is_signaled: flags & self.c.misc.cq_update != 0,
            is_solicited: flags & self.c.misc.solicited != 0,
            imm: imm.to_be_bytes(),
            remote_lid,
            remote_qpn,
            remote_srqn,
            remote,
            atomic,
            local,
            total: if is_atomic { 8 } else { total },
            done: 0,
            receive: None,
            retries: 0,
            has_waited: false,
            absent_since: None,
            found: None,
        })
    }

    /// Parses the list of segments at the end of a request.
    pub(super) fn segments(
        &self,
        mut bytes: &[u8],
        is_receive: bool,
    ) -> Result<Vec<Segment>, &'static str> {
        let l = &self.l.data;
        let mut segments = Vec::new();
        while bytes.len() >= l.size {
            let count = l.byte_count.get(bytes);
            if count & self.c.misc.inline_seg != 0 {
                let len = (count & self.c.misc.inline_len) as usize;
                let data = bytes.get(4..4 + len);
                let data = data.ok_or("inline data that are cut off")?;
                if is_receive {
                    return Err("inline data to receive into");
                }
                segments.push(Segment::Inline(data.to_vec()));
                let used = (4 + len).next_multiple_of(16);
                bytes = bytes.get(used..).unwrap_or_default();
                continue;
            }
            let key = l.lkey.get(bytes) as u32;
            let va = l.addr.get(bytes);
            bytes = &bytes[l.size..];
            if is_receive && count == 0 {
                // A zero byte count ends a list that is shorter than its request.
                break;
            }
            // 2 GiB does not fit into 31 bits, so 0 stands for it.
            let len = if count == 0 { 1 << 31 } else { count };
            segments.push(Segment::Data { key, va, len });
        }
        Ok(segments)
    }
}
