//! Commands of objects: event and completion queues, keys, shared receive queues.

use super::{Answer, Status};
use crate::device::mkey::Mkey;
use crate::device::queue::{Arm, CQE, Completion, Cq, EQE, Eq};
use crate::device::{Device, Scheme};
use crate::layout::{Field, idx_to_mkey};
use crate::memory::Buffer;
use crate::qp::{Ring, Srq};
use crate::table::Table;

/// Limits of log2 of a queue's entries: events and completions, receive
/// requests.
const LOG_ENTRIES: u32 = 22;
const LOG_REQUESTS: u32 = 15;
/// Limit of log2 of a receive request's bytes.
const LOG_STRIDE: u32 = 12;
/// Limit of the bytes of all keys' translations: enough for 256 GiB in pages of 4 KiB.
const TRANSLATIONS: usize = 1 << 29;

impl Device {
    pub(super) fn create_eq(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_eq_in;
        let log_size = log(l.log_eq_size.get(input), LOG_ENTRIES)?;
        let bytes = (EQE as u64) << log_size;
        let page_size = l.log_page_size.get(input);
        let buffer = buffer(input, l.pas, bytes, page_size, l.page_offset.get(input))?;
        let mut mask = [0; 4];
        for (n, word) in mask.iter_mut().enumerate() {
            *word = l.event_bitmask.nth(n).get(input);
        }
        // The doorbell has eight bits for the number.
        let eqn = (1..256).find(|eqn| !self.eqs.contains_key(eqn));
        let eqn = eqn.ok_or(Status::NoResources)?;
        let eq = Eq {
            buffer,
            log_size,
            vector: l.intr.get(input) as u32,
            mask,
            produced: 0,
            consumed: 0,
            is_armed: false,
        };
        self.eqs.insert(eqn, eq);
        self.l.create_eq_out.eq_number.set(out, u64::from(eqn));
        Ok(())
    }

    pub(super) fn create_cq(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_cq_in;
        let c = &self.l.cqc;
        let context = slice(input, l.cq_context, c.size)?;
        let page_size = c.log_page_size.get(context);
        let log_size = log(c.log_cq_size.get(context), LOG_ENTRIES)?;
        let stride = match c.cqe_sz.get(context) {
            0 => CQE,
            // Entries of 128 bytes, and of 64 bytes padded to 128.
            1 | 2 => 2 * CQE,
            _ => return Err(Status::BadParam),
        };
        let bytes = (stride as u64) << log_size;
        let offset = c.page_offset.get(context);
        let eqn = c.c_eqn_or_apu_element.get(context) as u32;
        if !self.eqs.contains_key(&eqn) {
            return Err(Status::BadResource);
        }
        let cq = Cq {
            buffer: buffer(input, l.pas, bytes, page_size, offset)?,
            context: context.to_vec(),
            log_size,
            stride,
            eqn,
            doorbell: c.dbr_addr.get(context),
            produced: 0,
            arm: Arm::No,
            is_broken: false,
        };
        let cqn = self.number()?;
        self.cqs.insert(cqn, cq);
        self.l.create_cq_out.cqn.set(out, u64::from(cqn));
        Ok(())
    }

    /// Resizes a completion queue: a last entry in the old buffer announces the new buffer. Other
    /// changes are ignored: moderation only affects the time of events.
    pub(super) fn modify_cq(&mut self, input: &[u8]) -> Answer {
        let l = &self.l.modify_cq;
        let cqn = l.cqn.get(input) as u32;
        let cq = self.cqs.get(&cqn).ok_or(Status::BadResource)?;
        if self.l.mbox_in.op_mod.get(input) != self.c.misc.cq_resize {
            return Ok(());
        }
        let c = self.l.cqc;
        let context = slice(input, l.cq_context, c.size)?;
        let log_size = log(c.log_cq_size.get(context), LOG_ENTRIES)?;
        let bytes = (cq.stride as u64) << log_size;
        let page_size = c.log_page_size.get(context);
        let offset = c.page_offset.get(context);
        let buffer = buffer(input, l.pas, bytes, page_size, offset)?;
        // The unread completions and the entry that announces the new buffer must fit into both
        // buffers, because the driver loops until it finds that entry.
        let unread = self.unread(cq);
        if cq.is_broken || unread >= 1 << log_size || unread >= 1 << cq.log_size {
            return Err(Status::Outstanding);
        }
        let last = Completion {
            opcode: self.c.cqe.resize_cq as u8,
            ..Completion::default()
        };
        self.complete(cqn, &last);
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.buffer = buffer;
            cq.log_size = log_size;
            for field in [c.log_cq_size, c.log_page_size, c.page_offset] {
                field.set(&mut cq.context, field.get(context));
            }
        }
        Ok(())
    }

    pub(super) fn query_cq(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let cqn = self.l.query_cq_in.cqn.get(input) as u32;
        let cq = self.cqs.get(&cqn).ok_or(Status::BadResource)?;
        let context = slice_mut(out, self.l.query_cq_out.cq_context, self.l.cqc.size)?;
        context.copy_from_slice(&cq.context);
        let produced = u64::from(cq.produced);
        self.l.cqc.producer_counter.set(context, produced);
        Ok(())
    }

    pub(super) fn create_mkey(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_mkey_in;
        let context = slice(input, l.context, self.l.mkc.size)?.to_vec();
        let words = l.translations_octword_actual_size.get(input) as usize;
        let at = l.translations.byte();
        // In the memory scheme, the implicit key's count exceeds its list. Missing entries are
        // absent.
        let given = input.get(at..).unwrap_or_default();
        let entries = &given[..given.len().min(words * 16)];
        if !self.has_room(entries.len()) {
            return Err(Status::NoResources);
        }
        let index = self.number()?;
        let key = idx_to_mkey(index, self.l.mkc.mkey_7_0.get(&context) as u32);
        let present = self.present(&context, entries);
        if !present.is_empty() {
            self.witness.umr(key, 0, &present);
        }
        let entries = Table::from(entries);
        self.mkeys.insert(index, Mkey { context, entries });
        self.l.create_mkey_out.mkey_index.set(out, u64::from(index));
        Ok(())
    }

    pub(super) fn query_mkey(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let index = self.l.query_mkey_in.mkey_index.get(input) as u32;
        let mkey = self.mkeys.get(&index).ok_or(Status::BadResource)?;
        let l = &self.l.query_mkey_out;
        slice_mut(out, l.context, self.l.mkc.size)?.copy_from_slice(&mkey.context);
        let to = out.get_mut(l.translations.byte()..).unwrap_or_default();
        mkey.entries.read(to);
        Ok(())
    }

    pub(super) fn page_fault_resume(&mut self, input: &[u8]) -> Answer {
        let l = &self.l.resume;
        let (token, error) = match self.options.scheme {
            Scheme::Memory => (
                l.token_31_0.get(input) | l.token_47_32.get(input) << 32,
                l.memory_error.get(input),
            ),
            Scheme::Transport => (l.token.get(input), l.error.get(input)),
        };
        let known = self.resume(token, error != 0);
        known.then_some(()).ok_or(Status::BadParam)
    }

    pub(super) fn create_xrc_srq(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_xrc_srq_in;
        let x = self.l.xrc_srqc;
        let context = slice(input, l.context, x.size)?;
        let get = |field: Field| field.get(context);
        let mut ring = ring(get(x.log_xrc_srq_size), get(x.log_rq_stride) + 4)?;
        let page_size = get(x.log_page_size);
        ring.buffer = buffer(input, l.pas, ring.bytes(), page_size, get(x.page_offset))?;
        let srqn = self.number()?;
        let has_own_index = get(x.user_index_equal_xrc_srqn) == 0;
        let user_index = if has_own_index {
            get(x.user_index) as u32
        } else {
            srqn
        };
        let srq = Srq {
            ring,
            pd: get(x.pd) as u32,
            // The low part omits the two lowest bits.
            doorbell: get(x.db_record_addr_h) << 32 | get(x.db_record_addr_l) << 2,
            user_index,
            cqn: get(x.cqn) as u32,
            head: 0,
            used: 0,
            limit: get(x.lwm) as u16,
        };
        self.srqs.insert(srqn, srq);
        self.l.create_xrc_srq_out.xrc_srqn.set(out, u64::from(srqn));
        Ok(())
    }

    pub(super) fn create_rmp(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_rmp_in;
        let w = self.l.wq;
        let wq = slice(input, l.wq, w.size)?;
        let get = |field: Field| field.get(wq);
        let mut ring = ring(get(w.log_wq_sz), get(w.log_wq_stride))?;
        let page_size = get(w.log_wq_pg_sz);
        ring.buffer = buffer(input, l.pas, ring.bytes(), page_size, get(w.page_offset))?;
        let srqn = self.number()?;
        let srq = Srq {
            ring,
            pd: get(w.pd) as u32,
            doorbell: get(w.dbr_addr),
            user_index: srqn,
            cqn: 0,
            head: 0,
            used: 0,
            limit: get(w.lwm) as u16,
        };
        self.srqs.insert(srqn, srq);
        self.l.create_rmp_out.rmpn.set(out, u64::from(srqn));
        Ok(())
    }

    pub(super) fn destroy_srq(&mut self, srqn: u64) -> Answer {
        let srqn = srqn as u32;
        if self.qps.values().any(|qp| qp.srqn == Some(srqn)) {
            return Err(Status::Busy);
        }
        self.srqs.remove(&srqn).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn arm_srq(&mut self, srqn: u64, limit: u64) -> Answer {
        let srq = self
            .srqs
            .get_mut(&(srqn as u32))
            .ok_or(Status::BadResource)?;
        srq.limit = limit as u16;
        Ok(())
    }

    /// Whether the limit allows this many more bytes of translations.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let all = self.mkeys.values().map(|mkey| mkey.entries.len());
        all.sum::<usize>().saturating_add(more) <= TRANSLATIONS
    }
}

/// Checks a logarithm that the driver has chosen.
pub(super) fn log(value: u64, most: u32) -> Result<u32, Status> {
    let value = u32::try_from(value).map_err(|_| Status::BadParam)?;
    (value <= most).then_some(value).ok_or(Status::BadParam)
}

/// A receive ring without a buffer yet.
pub(super) fn ring(log_size: u64, log_stride: u64) -> Result<Ring, Status> {
    Ok(Ring {
        log_size: log(log_size, LOG_REQUESTS)?,
        log_stride: log(log_stride, LOG_STRIDE)?,
        ..Ring::default()
    })
}

/// A structure within a command.
pub(super) fn slice(input: &[u8], at: Field, size: usize) -> Result<&[u8], Status> {
    input
        .get(at.byte()..at.byte() + size)
        .ok_or(Status::BadLength)
}

pub(super) fn slice_mut(out: &mut [u8], at: Field, size: usize) -> Result<&mut [u8], Status> {
    out.get_mut(at.byte()..at.byte() + size)
        .ok_or(Status::BadOutLength)
}

/// A list of 64-bit numbers.
pub(super) fn numbers(input: &[u8], field: Field, count: usize) -> Result<Vec<u64>, Status> {
    let room = input.len().saturating_sub(field.byte()) / 8;
    if count > room {
        return Err(Status::BadLength);
    }
    Ok((0..count).map(|n| field.nth(n).get(input)).collect())
}

/// The buffer for a queue of `bytes` bytes, in the pages that a command lists.
/// `log_page_size` is relative to 4 KiB. `offset` is in units of 1/64 page.
pub(super) fn buffer(
    input: &[u8],
    pas: Field,
    bytes: u64,
    log_page_size: u64,
    offset: u64,
) -> Result<Buffer, Status> {
    /// The driver has no larger pages. With the offset, larger ones would overflow 64 bits.
    const LOG_LARGEST: u32 = 44;
    let page_shift = 12 + log(log_page_size, LOG_LARGEST)?;
    let offset = (offset & 63) << (page_shift - 6);
    let pages = (offset + bytes).div_ceil(1u64 << page_shift);
    let pages = usize::try_from(pages).map_err(|_| Status::BadLength)?;
    Ok(Buffer {
        pages: numbers(input, pas, pages)?,
        page_shift,
        offset,
    })
}
