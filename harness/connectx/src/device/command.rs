//! Commands, by which the driver creates and changes objects. The driver's command ring
//! holds the beginning of a command and of its answer, and chains of mailboxes the rest.

use std::ops::Range;

use crate::device::{Device, FIRST_UAR, Simple};
use crate::layout::{Field, idx_to_mkey};
use crate::memory::Refused;
use crate::pci::BAR_SIZE;

mod objects;
pub(crate) mod port;
mod qp;

use objects::numbers;

/// Bytes of a command or an answer in the ring.
const HEAD: usize = 16;
/// Limit of a command's length.
const MAX_LEN: usize = 4 << 20;
/// Pages that the device requests to boot and to initialise.
const BOOT_PAGES: u64 = 8;
const INIT_PAGES: u64 = 100;
/// Limit of the pages that the device accepts, requested or not.
const MAX_PAGES: usize = 1 << 16;
/// Alignment of mailboxes.
const ALIGNMENT: u64 = 512;

/// Why the transfer of a command or its answer failed.
#[derive(Debug)]
enum Undelivered {
    /// A DMA failed.
    Refused(Refused),
    /// The command is malformed: `MLX5_CMD_DELIVERY_STAT_*`, which the driver's cmd.c
    /// defines, not a header.
    Malformed(u8),
}

const BAD_BLOCK_NUMBER: u8 = 3;
const BAD_OUT_POINTER: u8 = 4;
const BAD_IN_POINTER: u8 = 5;
const FIRMWARE_ERROR: u8 = 6;
const BAD_IN_LENGTH: u8 = 7;
const BAD_OUT_LENGTH: u8 = 8;

impl From<Refused> for Undelivered {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Why a command was refused: the status in the manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `MLX5_CMD_STAT_BAD_OP_ERR`
    BadOp,
    /// `MLX5_CMD_STAT_BAD_PARAM_ERR`
    BadParam,
    /// `MLX5_CMD_STAT_BAD_RES_ERR`: there is no such object.
    BadResource,
    /// `MLX5_CMD_STAT_RES_BUSY`
    Busy,
    /// `MLX5_CMD_STAT_BAD_QP_STATE_ERR`
    BadState,
    /// `MLX5_CMD_STAT_NO_RES_ERR`: there are too many already.
    NoResources,
    /// `MLX5_CMD_STAT_BAD_INP_LEN_ERR`
    BadLength,
    /// `MLX5_CMD_STAT_BAD_SIZE_OUTS_CQES_ERR`: the completions do not fit.
    Outstanding,
    /// `MLX5_CMD_STAT_BAD_OUTP_LEN_ERR`
    BadOutLength,
}

type Answer = Result<(), Status>;

impl Device {
    /// Executes the command in a slot.
    pub(crate) fn command(&mut self, at: u64, slot: u32) {
        let reports = self.reports_commands();
        let status = match self.try_command(at) {
            Ok(()) => 0,
            Err(Undelivered::Malformed(status)) => {
                self.note(&format!(
                    "command in slot {slot}: not well formed ({status})"
                ));
                status
            }
            Err(Undelivered::Refused(refused)) => {
                self.witness
                    .violation(&format!("command in slot {slot}: {refused:?}"));
                FIRMWARE_ERROR
            }
        };
        // The last byte returns the entry to the driver. If this write fails too, the driver
        // cannot see any answer.
        let owner = at + self.l.cmd.status_own.byte() as u64;
        if self.memory.write(owner, &[status << 1]).is_err() {
            return;
        }
        // The driver polls for the command that creates the event queue.
        if reports && self.reports_commands() {
            self.event(self.c.events.cmd, 0, |device, entry| {
                device.l.eqe.cmd_vector.set(entry, 1 << slot);
            });
        }
    }

    fn try_command(&mut self, at: u64) -> Result<(), Undelivered> {
        let l = self.l.cmd;
        let mut entry = vec![0; l.size];
        self.memory.read(at, &mut entry)?;
        let len = |field: Field| (field.get(&entry) as usize).max(HEAD);
        let (in_len, out_len) = (len(l.inlen), len(l.outlen));
        let (in_ptr, out_ptr) = (l.in_ptr.get(&entry), l.out_ptr.get(&entry));
        for (is_bad, status) in [
            (in_len > MAX_LEN, BAD_IN_LENGTH),
            (out_len > MAX_LEN, BAD_OUT_LENGTH),
            (in_len > HEAD && in_ptr % ALIGNMENT != 0, BAD_IN_POINTER),
            (out_len > HEAD && out_ptr % ALIGNMENT != 0, BAD_OUT_POINTER),
        ] {
            if is_bad {
                return Err(Undelivered::Malformed(status));
            }
        }
        let head = l.input.byte();
        let mut input = entry[head..head + HEAD].to_vec();
        self.chain(in_ptr, in_len - HEAD, |_, block, part| {
            input.extend_from_slice(&block[..part.len()]);
            Ok(())
        })?;
        let mut output = vec![0; out_len];
        let status = self.execute(&input, &mut output);
        let opcode = self.l.mbox_in.opcode.get(&input);
        let name = self.names.get(&opcode).cloned();
        let name = name.unwrap_or_else(|| format!("{opcode:#x}"));
        if let Err(status) = status {
            output.fill(0);
            self.note(&format!("{name}: {status:?}"));
        }
        let number = status.err().map_or(0, |status| self.status(status));
        self.l.mbox_out.status.set(&mut output, number);
        self.witness.command(&name, number);
        self.chain(out_ptr, out_len - HEAD, |address, _, part| {
            self.memory.write(address, &output[HEAD..][part]).map(drop)
        })?;
        let head = l.out.byte();
        self.memory.write(at + head as u64, &output[..HEAD])?;
        Ok(())
    }

    fn reports_commands(&self) -> bool {
        let bit = 1 << self.c.events.cmd;
        self.eqs.values().any(|eq| eq.mask[0] & bit != 0)
    }

    /// Calls `each` for the mailboxes that hold `len` bytes: the mailbox's address, its contents,
    /// and its range of the bytes. Mailboxes are numbered, so none can appear twice.
    fn chain(
        &self,
        mut at: u64,
        len: usize,
        mut each: impl FnMut(u64, &[u8], Range<usize>) -> Result<(), Refused>,
    ) -> Result<(), Undelivered> {
        let l = &self.l.block;
        let size = self.c.misc.cmd_block as usize;
        let mut block = vec![0; l.size];
        for (number, done) in (0..).zip((0..len).step_by(size)) {
            self.memory.read(at, &mut block)?;
            if l.block_num.get(&block) != number {
                return Err(Undelivered::Malformed(BAD_BLOCK_NUMBER));
            }
            each(at, &block, done..len.min(done + size))?;
            at = l.next.get(&block);
        }
        Ok(())
    }

    fn status(&self, status: Status) -> u64 {
        let s = &self.c.status;
        match status {
            Status::BadOp => s.bad_op,
            Status::BadParam => s.bad_param,
            Status::BadResource => s.bad_resource,
            Status::Busy => s.busy,
            Status::BadState => s.bad_qp_state,
            Status::NoResources => s.no_resources,
            Status::BadLength => s.bad_input_len,
            Status::Outstanding => s.outstanding,
            Status::BadOutLength => s.bad_output_len,
        }
    }

    /// Executes a command and fills in its answer.
    pub(crate) fn execute(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let opcode = self.l.mbox_in.opcode.get(input);
        let Some(name) = self.names.get(&opcode).cloned() else {
            return Err(Status::BadOp);
        };
        let (least_in, least_out) = self.sizes.get(&opcode).copied().unwrap_or_default();
        if input.len() < least_in {
            return Err(Status::BadLength);
        }
        if out.len() < least_out {
            return Err(Status::BadOutLength);
        }
        let l = &self.l;
        match name.as_str() {
            "ENABLE_HCA" | "DISABLE_HCA" | "INIT_HCA" | "SET_ISSI" | "NOP"
            | "SET_DRIVER_VERSION" => Ok(()),
            "TEARDOWN_HCA" => {
                self.teardown();
                Ok(())
            }
            "QUERY_ISSI" => {
                // The driver only knows ISSI 1.
                l.query_issi.supported_issi_dw0.set(out, 1 << 1);
                Ok(())
            }
            "QUERY_PAGES" => {
                let wanted = match l.mbox_in.op_mod.get(input) {
                    kind if kind == self.c.pages.boot => BOOT_PAGES,
                    kind if kind == self.c.pages.init => INIT_PAGES,
                    _ => 0,
                };
                l.query_pages.num_pages.set(out, wanted);
                Ok(())
            }
            "MANAGE_PAGES" => self.manage_pages(input, out),
            "QUERY_HCA_CAP" => self.query_cap(input, out),
            "SET_HCA_CAP" => self.set_cap(input),
            "QUERY_ADAPTER" => {
                l.query_adapter.ieee_vendor_id.set(out, 0x02c9);
                Ok(())
            }
            "ACCESS_REG" | "ACCESS_REGISTER_USER" => self.access_register(input, out),
            "MAD_IFC" => self.mad_ifc(input, out),
            "QUERY_SPECIAL_CONTEXTS" => {
                let l = &l.special_contexts;
                l.resd_lkey.set(out, u64::from(self.reserved_lkey));
                l.null_mkey.set(out, u64::from(self.null_mkey));
                Ok(())
            }
            "QUERY_HCA_VPORT_CONTEXT" => {
                self.vport_context(out);
                Ok(())
            }
            "MODIFY_HCA_VPORT_CONTEXT" => self.modify_vport(input),
            "QUERY_HCA_VPORT_GID" => {
                if l.vport_gid_in.gid_index.get(input) == 0 {
                    let gid = half(l.vport_gid_out.gid);
                    gid.set(out, 0xfe80 << 48);
                    gid.nth(1).set(out, self.guid());
                }
                l.vport_gid_out.gids_num.set(out, 1);
                Ok(())
            }
            "QUERY_HCA_VPORT_PKEY" => {
                if l.vport_pkey_in.pkey_index.get(input) == 0 {
                    l.vport_pkey_out.pkey.set(out, 0xffff);
                }
                Ok(())
            }
            "ATTACH_TO_MCG" => self.join(input),
            "DETACH_FROM_MCG" => self.leave(input),
            "ALLOC_PD" => self.allocate(Simple::Pd, l.alloc_pd.pd, out),
            "ALLOC_XRCD" => self.allocate(Simple::Xrcd, l.alloc_xrcd.xrcd, out),
            "ALLOC_UAR" => self.alloc_uar(out),
            "DEALLOC_PD" => self.release(Simple::Pd, l.dealloc_pd.pd.get(input)),
            "DEALLOC_XRCD" => self.release(Simple::Xrcd, l.dealloc_xrcd.xrcd.get(input)),
            "DEALLOC_UAR" => self.release(Simple::Uar, l.dealloc_uar.uar.get(input)),
            "CREATE_EQ" => self.create_eq(input, out),
            "DESTROY_EQ" => {
                let eqn = l.destroy_eq.eq_number.get(input) as u32;
                if self.cqs.values().any(|cq| cq.eqn == eqn) {
                    return Err(Status::Busy);
                }
                self.eqs.remove(&eqn).map(drop).ok_or(Status::BadResource)
            }
            "CREATE_CQ" => self.create_cq(input, out),
            "QUERY_CQ" => self.query_cq(input, out),
            "MODIFY_CQ" => self.modify_cq(input),
            "DESTROY_CQ" => {
                let cqn = l.destroy_cq.cqn.get(input) as u32;
                let mut qps = self.qps.values();
                let used = qps.any(|qp| qp.cqn.0 == cqn || qp.cqn.1 == cqn);
                if used || self.srqs.values().any(|srq| srq.cqn == cqn) {
                    return Err(Status::Busy);
                }
                self.cqs.remove(&cqn).map(drop).ok_or(Status::BadResource)
            }
            "CREATE_MKEY" => self.create_mkey(input, out),
            "QUERY_MKEY" => self.query_mkey(input, out),
            "DESTROY_MKEY" => {
                let index = l.destroy_mkey.mkey_index.get(input) as u32;
                let mkey = self.mkeys.remove(&index).ok_or(Status::BadResource)?;
                let low = self.l.mkc.mkey_7_0.get(&mkey.context) as u32;
                self.witness.forget(idx_to_mkey(index, low));
                Ok(())
            }
            "PAGE_FAULT_RESUME" => self.page_fault_resume(input),
            "CREATE_QP" => self.create_qp(input, out),
            "QUERY_QP" => self.query_qp(input, out),
            "DESTROY_QP" => {
                let qpn = l.destroy_qp.qpn.get(input) as u32;
                self.disconnect(qpn);
                self.groups.retain(|(member, _)| *member != qpn);
                self.qps.remove(&qpn).map(drop).ok_or(Status::BadResource)
            }
            "CREATE_XRC_SRQ" => self.create_xrc_srq(input, out),
            "CREATE_RMP" => self.create_rmp(input, out),
            "DESTROY_XRC_SRQ" => self.destroy_srq(l.destroy_xrc_srq.xrc_srqn.get(input)),
            "DESTROY_RMP" => self.destroy_srq(l.destroy_rmp.rmpn.get(input)),
            "ARM_XRC_SRQ" => {
                let l = &l.arm_xrc_srq;
                self.arm_srq(l.xrc_srqn.get(input), l.lwm.get(input))
            }
            "MODIFY_RMP" => {
                let l = &l.modify_rmp;
                self.arm_srq(l.rmpn.get(input), l.lwm.get(input))
            }
            "QUERY_XRC_SRQ" => {
                let srqn = l.query_xrc_srq_in.xrc_srqn.get(input) as u32;
                let srq = self.srqs.get(&srqn).ok_or(Status::BadResource)?;
                l.query_xrc_srq_out.lwm.set(out, u64::from(srq.limit));
                Ok(())
            }
            "QUERY_RMP" => {
                let srqn = l.query_rmp_in.rmpn.get(input) as u32;
                let srq = self.srqs.get(&srqn).ok_or(Status::BadResource)?;
                l.query_rmp_out.lwm.set(out, u64::from(srq.limit));
                Ok(())
            }
            name => self.modify_qp(name, input),
        }
    }

    fn manage_pages(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l;
        let count = l.manage_pages_in.input_num_entries.get(input) as usize;
        match l.mbox_in.op_mod.get(input) {
            way if way == self.c.pages.give => {
                let field = l.manage_pages_in.pas;
                let given = numbers(input, field, count)?;
                if self.pages.len() + given.len() > MAX_PAGES {
                    return Err(Status::NoResources);
                }
                self.pages.extend(given);
            }
            way if way == self.c.pages.take => {
                let field = l.manage_pages_out.pas;
                let room = out.len().saturating_sub(field.byte()) / 8;
                let count = count.min(room).min(self.pages.len());
                let taken = self.pages.split_off(self.pages.len() - count);
                for (n, page) in taken.iter().enumerate() {
                    field.nth(n).set(out, *page);
                }
                l.manage_pages_out.output_num_entries.set(out, count as u64);
            }
            // The driver reports that it has no pages to give.
            _ => {}
        }
        Ok(())
    }

    fn access_register(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l;
        let r = &self.c.regs;
        let register = l.access_register_in.register_id.get(input);
        let at = l.access_register_out.register_data.byte();
        let data = out.get_mut(at..).ok_or(Status::BadOutLength)?;
        if register == r.ptys {
            // 4 lanes of EDR.
            l.ptys.ib_link_width_oper.set(data, 1 << 1);
            l.ptys.ib_proto_oper.set(data, 1 << 5);
        } else if register == r.pmtu {
            l.pmtu.max_mtu.set(data, 4096);
            l.pmtu.admin_mtu.set(data, 4096);
            l.pmtu.oper_mtu.set(data, 4096);
        } else if register == r.pvlc {
            // Only virtual lane 0.
            l.pvlc.vl_hw_cap.set(data, 1);
        } else if register == r.node_desc || register == r.host_endianness {
        } else {
            self.note(&format!("register {register:#x} is not modelled"));
            return Err(Status::BadParam);
        }
        Ok(())
    }

    /// Answers each management datagram of the port with an empty response.
    fn mad_ifc(&self, input: &[u8], out: &mut [u8]) -> Answer {
        /// Bytes of the datagram up to its attribute data.
        const HEADER: usize = 24;
        let from = self.l.mad_ifc_in.mad.byte();
        let to = self.l.mad_ifc_out.response_mad_packet.byte();
        let header = input.get(from..from + HEADER).ok_or(Status::BadLength)?;
        let answer = out.get_mut(to..to + HEADER).ok_or(Status::BadOutLength)?;
        answer.copy_from_slice(header);
        // GetResp with status 0.
        answer[3] = 0x81;
        answer[4..6].fill(0);
        Ok(())
    }

    fn allocate(&mut self, kind: Simple, field: Field, out: &mut [u8]) -> Answer {
        let number = self.number()?;
        self.simple.insert((kind, number));
        field.set(out, u64::from(number));
        Ok(())
    }

    /// Allocates a UAR, a page of the BAR. UARs are few, so a freed one is reused at once.
    fn alloc_uar(&mut self, out: &mut [u8]) -> Answer {
        let mut all = FIRST_UAR as u32..(BAR_SIZE >> self.c.uar.page_shift) as u32;
        let free = all.find(|page| !self.simple.contains(&(Simple::Uar, *page)));
        let page = free.ok_or(Status::NoResources)?;
        self.simple.insert((Simple::Uar, page));
        self.l.alloc_uar.uar.set(out, u64::from(page));
        Ok(())
    }

    fn release(&mut self, kind: Simple, number: u64) -> Answer {
        let number = number as u32;
        let is_used = match kind {
            Simple::Pd => {
                let of_mkey = self.l.mkc.pd;
                let mut mkeys = self.mkeys.values();
                self.qps.values().any(|qp| qp.pd == number)
                    || self.srqs.values().any(|srq| srq.pd == number)
                    || mkeys.any(|mkey| of_mkey.get(&mkey.context) == u64::from(number))
            }
            Simple::Uar => self.qps.values().any(|qp| qp.uar == u64::from(number)),
            Simple::Xrcd => false,
        };
        if is_used {
            return Err(Status::Busy);
        }
        let was_there = self.simple.remove(&(kind, number));
        was_there.then_some(()).ok_or(Status::BadResource)
    }
}

/// The first eight bytes of a GID.
fn half(gid: Field) -> Field {
    Field { bits: 64, ..gid }
}
