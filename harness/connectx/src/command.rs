//! Commands: how the driver asks for objects. A command and its answer are in a ring
//! of the driver, and what does not fit there in a chain of mailboxes.

use crate::device::{Device, FIRST_UAR, Simple};
use crate::layout::Field;
use crate::memory::{Buffer, Refused};
use crate::mkey::Mkey;
use crate::pci::BAR_SIZE;
use crate::qp::{Qp, Ring, Srq, State, Wait};
use crate::queue::{Arm, CQE, Cq, Eq};

/// Bytes of a command and of an answer that are in the ring.
const HEAD: usize = 16;
/// A longer chain of mailboxes is a circle, or nonsense.
const MAX_LEN: usize = 4 << 20;
/// Pages that the device wants before it starts, and for its own use.
const BOOT_PAGES: u64 = 8;
const INIT_PAGES: u64 = 100;

/// Why a command was refused: a status as the manual has it.
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
    /// `MLX5_CMD_STAT_BAD_INP_LEN_ERR`
    BadLength,
}

type Answer = Result<(), Status>;

impl Device {
    /// Carries out the command of a slot.
    pub(crate) fn command(&mut self, at: u64, slot: u32) {
        if let Err(refused) = self.try_command(at, slot) {
            self.witness
                .violation(&format!("command in slot {slot}: {refused:?}"));
        }
    }

    fn try_command(&mut self, at: u64, slot: u32) -> Result<(), Refused> {
        let l = self.l.cmd;
        let mut entry = vec![0; l.size];
        self.memory.read(at, &mut entry)?;
        let len = |field: Field| (field.get(&entry) as usize).clamp(HEAD, MAX_LEN);
        let (in_len, out_len) = (len(l.inlen), len(l.outlen));
        let head = l.input.byte();
        let mut input = entry[head..head + HEAD].to_vec();
        self.chain(
            l.in_ptr.get(&entry),
            in_len - HEAD,
            |device, block, part| {
                let mut data = vec![0; part.len()];
                device.memory.read(block, &mut data)?;
                input.extend(data);
                Ok(())
            },
        )?;
        let mut output = vec![0; out_len];
        let reports = self.reports_commands();
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
        self.chain(
            l.out_ptr.get(&entry),
            out_len - HEAD,
            |device, block, part| device.memory.write(block, &output[HEAD..][part]).map(drop),
        )?;
        let head = l.out.byte();
        self.memory.write(at + head as u64, &output[..HEAD])?;
        // The last byte hands it back: no error of delivery, and not the device's.
        self.memory.write(at + l.status_own.byte() as u64, &[0])?;
        // The driver polls for the command that makes the queue.
        if reports && self.reports_commands() {
            self.event(self.c.events.cmd, 0, |device, entry| {
                device.l.eqe.cmd_vector.set(entry, 1 << slot);
            });
        }
        Ok(())
    }

    fn reports_commands(&self) -> bool {
        let bit = 1 << self.c.events.cmd;
        self.eqs.values().any(|eq| eq.mask[0] & bit != 0)
    }

    /// Calls `each` for the mailboxes that hold `len` bytes.
    fn chain(
        &self,
        mut block: u64,
        len: usize,
        mut each: impl FnMut(&Self, u64, std::ops::Range<usize>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let size = self.c.misc.cmd_block as usize;
        let mut done = 0;
        while done < len {
            let part = done..len.min(done + size);
            done = part.end;
            each(self, block, part)?;
            let mut next = [0; 8];
            self.memory
                .read(block + self.l.block.next.byte() as u64, &mut next)?;
            block = u64::from_be_bytes(next);
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
            Status::BadLength => s.bad_input_len,
        }
    }

    /// Does what a command says, and fills its answer.
    pub(crate) fn execute(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let opcode = self.l.mbox_in.opcode.get(input);
        let Some(name) = self.names.get(&opcode).cloned() else {
            return Err(Status::BadOp);
        };
        let l = &self.l;
        match name.as_str() {
            "ENABLE_HCA" | "DISABLE_HCA" | "INIT_HCA" | "SET_ISSI" | "NOP"
            | "SET_DRIVER_VERSION" | "ATTACH_TO_MCG" | "DETACH_FROM_MCG" => Ok(()),
            "TEARDOWN_HCA" => {
                self.teardown();
                Ok(())
            }
            "QUERY_ISSI" => {
                // ISSI 1 is all that the driver knows.
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
            "MODIFY_HCA_VPORT_CONTEXT" => Ok(()),
            "QUERY_HCA_VPORT_GID" => {
                if l.vport_gid_in.gid_index.get(input) == 0 {
                    let gid = half(l.vport_gid_out.gid);
                    gid.set(out, 0xfe80 << 48);
                    gid.nth(1).set(out, GUID);
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
            "ALLOC_PD" => self.allocate(Simple::Pd, l.alloc_pd.pd, out),
            "ALLOC_XRCD" => self.allocate(Simple::Xrcd, l.alloc_xrcd.xrcd, out),
            "ALLOC_UAR" => self.alloc_uar(out),
            "DEALLOC_PD" => self.release(Simple::Pd, l.dealloc_pd.pd.get(input)),
            "DEALLOC_XRCD" => self.release(Simple::Xrcd, l.dealloc_xrcd.xrcd.get(input)),
            "DEALLOC_UAR" => self.release(Simple::Uar, l.dealloc_uar.uar.get(input)),
            "CREATE_EQ" => self.create_eq(input, out),
            "DESTROY_EQ" => {
                let eqn = l.destroy_eq.eq_number.get(input) as u32;
                self.eqs.remove(&eqn).map(drop).ok_or(Status::BadResource)
            }
            "CREATE_CQ" => self.create_cq(input, out),
            "QUERY_CQ" => self.query_cq(input, out),
            "MODIFY_CQ" => {
                let cqn = l.modify_cq.cqn.get(input) as u32;
                // Moderation changes when, not what.
                self.cqs
                    .contains_key(&cqn)
                    .then_some(())
                    .ok_or(Status::BadResource)
            }
            "DESTROY_CQ" => {
                let cqn = l.destroy_cq.cqn.get(input) as u32;
                let used = self
                    .qps
                    .values()
                    .any(|qp| qp.cqn.0 == cqn || qp.cqn.1 == cqn);
                if used {
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
                self.witness.forget(index << 8 | low);
                Ok(())
            }
            "PAGE_FAULT_RESUME" => self.page_fault_resume(input),
            "CREATE_QP" => self.create_qp(input, out),
            "QUERY_QP" => self.query_qp(input, out),
            "DESTROY_QP" => {
                let qpn = l.destroy_qp.qpn.get(input) as u32;
                self.faults.forget(qpn);
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
            // The driver says that it has none.
            _ => {}
        }
        Ok(())
    }

    fn access_register(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l;
        let r = &self.c.regs;
        let register = l.access_register_in.register_id.get(input);
        let at = l.access_register_out.register_data.byte();
        let data = out.get_mut(at..).ok_or(Status::BadLength)?;
        if register == r.ptys {
            // 4 lanes of EDR.
            l.ptys.ib_link_width_oper.set(data, 1 << 1);
            l.ptys.ib_proto_oper.set(data, 1 << 5);
        } else if register == r.pmtu {
            l.pmtu.max_mtu.set(data, 4096);
            l.pmtu.admin_mtu.set(data, 4096);
            l.pmtu.oper_mtu.set(data, 4096);
        } else if register == r.pvlc {
            // Virtual lane 0 alone.
            l.pvlc.vl_hw_cap.set(data, 1);
        } else if register == r.node_desc || register == r.host_endianness {
        } else {
            self.note(&format!("register {register:#x} is not modelled"));
            return Err(Status::BadParam);
        }
        Ok(())
    }

    /// Management datagrams of the port: an empty answer to each question.
    fn mad_ifc(&self, input: &[u8], out: &mut [u8]) -> Answer {
        /// Up to its attribute.
        const HEADER: usize = 24;
        let from = self.l.mad_ifc_in.mad.byte();
        let to = self.l.mad_ifc_out.response_mad_packet.byte();
        let header = input.get(from..from + HEADER).ok_or(Status::BadLength)?;
        let answer = out.get_mut(to..to + HEADER).ok_or(Status::BadLength)?;
        answer.copy_from_slice(header);
        // GetResp, of status 0.
        answer[3] = 0x81;
        answer[4..6].fill(0);
        Ok(())
    }

    fn vport_context(&self, out: &mut [u8]) {
        let l = &self.l.vport_context;
        // Active, link up.
        l.vport_state.set(out, 4);
        l.port_physical_state.set(out, 5);
        l.port_guid.set(out, GUID);
        l.node_guid.set(out, GUID);
        l.system_image_guid.set(out, GUID);
        l.lid.set(out, 1);
        l.sm_lid.set(out, 1);
        l.subnet_timeout.set(out, 18);
        // The driver says that there is a communication manager.
        l.cap_mask1_field_select.set(out, 1 << 16);
    }

    fn allocate(&mut self, kind: Simple, field: Field, out: &mut [u8]) -> Answer {
        let number = self.number();
        self.simple.insert((kind, number));
        field.set(out, u64::from(number));
        Ok(())
    }

    /// A page of the BAR: these are few, so they are used again.
    fn alloc_uar(&mut self, out: &mut [u8]) -> Answer {
        let mut all = FIRST_UAR as u32..(BAR_SIZE >> 12) as u32;
        let free = all.find(|page| !self.simple.contains(&(Simple::Uar, *page)));
        let page = free.ok_or(Status::BadResource)?;
        self.simple.insert((Simple::Uar, page));
        self.l.alloc_uar.uar.set(out, u64::from(page));
        Ok(())
    }

    fn release(&mut self, kind: Simple, number: u64) -> Answer {
        let number = number as u32;
        let is_used = match kind {
            Simple::Pd => self.qps.values().any(|qp| qp.pd == number),
            Simple::Uar => self.qps.values().any(|qp| qp.uar == u64::from(number)),
            Simple::Xrcd => false,
        };
        if is_used {
            return Err(Status::Busy);
        }
        let was_there = self.simple.remove(&(kind, number));
        was_there.then_some(()).ok_or(Status::BadResource)
    }

    fn create_eq(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_eq_in;
        let page_shift = 12 + l.log_page_size.get(input) as u32;
        let log_size = l.log_eq_size.get(input) as u32;
        let bytes = 64u64 << log_size;
        let buffer = buffer(input, l.pas, bytes, page_shift, l.page_offset.get(input))?;
        let mut mask = [0; 4];
        for (n, word) in mask.iter_mut().enumerate() {
            *word = l.event_bitmask.nth(n).get(input);
        }
        // Eight bits, of which the driver's doorbell has no more.
        let eqn = (1..256).find(|eqn| !self.eqs.contains_key(eqn));
        let eqn = eqn.ok_or(Status::BadResource)?;
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

    fn create_cq(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_cq_in;
        let c = &self.l.cqc;
        let context = slice(input, l.cq_context, c.size)?;
        let page_shift = 12 + c.log_page_size.get(context) as u32;
        let log_size = c.log_cq_size.get(context) as u32;
        let stride = match c.cqe_sz.get(context) {
            0 => CQE,
            // 128 bytes, and 64 that are padded to it.
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
            buffer: buffer(input, l.pas, bytes, page_shift, offset)?,
            context: context.to_vec(),
            log_size,
            stride,
            eqn,
            doorbell: c.dbr_addr.get(context),
            produced: 0,
            arm: Arm::No,
            is_broken: false,
        };
        let cqn = self.number();
        self.cqs.insert(cqn, cq);
        self.l.create_cq_out.cqn.set(out, u64::from(cqn));
        Ok(())
    }

    fn query_cq(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let cqn = self.l.query_cq_in.cqn.get(input) as u32;
        let cq = self.cqs.get(&cqn).ok_or(Status::BadResource)?;
        let context = slice_mut(out, self.l.query_cq_out.cq_context, self.l.cqc.size)?;
        context.copy_from_slice(&cq.context);
        let produced = u64::from(cq.produced);
        self.l.cqc.producer_counter.set(context, produced);
        Ok(())
    }

    fn create_mkey(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_mkey_in;
        let context = slice(input, l.context, self.l.mkc.size)?.to_vec();
        let words = l.translations_octword_actual_size.get(input) as usize;
        let at = l.translations.byte();
        // The implicit key of memory scheme says more than it gives: the rest is absent.
        let given = input.get(at..).unwrap_or_default();
        let entries = given[..given.len().min(words * 16)].to_vec();
        let index = self.number();
        let key = index << 8 | self.l.mkc.mkey_7_0.get(&context) as u32;
        let mkey = Mkey { context, entries };
        let present = self.present(&mkey, &mkey.entries);
        if !present.is_empty() {
            self.witness.umr(key, 0, &present);
        }
        self.mkeys.insert(index, mkey);
        self.l.create_mkey_out.mkey_index.set(out, u64::from(index));
        Ok(())
    }

    fn query_mkey(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let index = self.l.query_mkey_in.mkey_index.get(input) as u32;
        let mkey = self.mkeys.get(&index).ok_or(Status::BadResource)?;
        let l = &self.l.query_mkey_out;
        slice_mut(out, l.context, self.l.mkc.size)?.copy_from_slice(&mkey.context);
        let to = out.get_mut(l.translations.byte()..).unwrap_or_default();
        for (to, from) in to.iter_mut().zip(&mkey.entries) {
            *to = *from;
        }
        Ok(())
    }

    fn page_fault_resume(&mut self, input: &[u8]) -> Answer {
        let l = &self.l.resume;
        let (token, error) = match self.options.scheme {
            crate::device::Scheme::Memory => (
                l.token_31_0.get(input) | l.token_47_32.get(input) << 32,
                l.memory_error.get(input),
            ),
            crate::device::Scheme::Transport => (l.token.get(input), l.error.get(input)),
        };
        let known = self.resume(token, error != 0);
        known.then_some(()).ok_or(Status::BadParam)
    }

    fn create_qp(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_qp_in;
        let q = &self.l.qpc;
        let context = slice(input, l.qpc, q.size)?.to_vec();
        let get = |field: Field| field.get(&context);
        let st = &self.c.qp_st;
        let service = get(q.st);
        let known = [st.rc, st.uc, st.ud, st.xrc, st.qp0, st.qp1, st.reg_umr];
        if !known.contains(&service) {
            return Err(Status::BadParam);
        }
        let rq_type = get(q.rq_type);
        let has_receive = rq_type == self.c.misc.non_zero_rq;
        let has_send = get(q.no_sq) == 0;
        let ring = Ring {
            buffer: Buffer::default(),
            offset: 0,
            log_size: get(q.log_rq_size) as u32,
            log_stride: get(q.log_rq_stride) as u32 + 4,
        };
        let receive_bytes = if has_receive {
            1u64 << (ring.log_size + ring.log_stride)
        } else {
            0
        };
        let log_send = get(q.log_sq_size) as u32;
        let send_bytes = if has_send { 64u64 << log_send } else { 0 };
        let buffer = buffer(
            input,
            l.pas,
            receive_bytes + send_bytes,
            12 + get(q.log_page_size) as u32,
            get(q.page_offset),
        )?;
        let send = Ring {
            buffer: buffer.clone(),
            offset: receive_bytes,
            log_size: log_send,
            log_stride: 6,
        };
        let cqn = (get(q.cqn_snd) as u32, get(q.cqn_rcv) as u32);
        let has_cq = |cqn: u32| cqn == 0 || self.cqs.contains_key(&cqn);
        if !has_cq(cqn.0) || !has_cq(cqn.1) {
            return Err(Status::BadResource);
        }
        let srqn = (rq_type == self.c.misc.srq_rq).then(|| get(q.srqn) as u32);
        let qp = Qp {
            state: State::Reset,
            service,
            pd: get(q.pd) as u32,
            uar: get(q.uar_page),
            user_index: get(q.user_index) as u32,
            cqn,
            doorbell: get(q.dbr_addr),
            srqn,
            receive: has_receive.then_some(Ring { buffer, ..ring }),
            received: 0,
            send: has_send.then_some(send),
            sent: 0,
            posted: 0,
            current: None,
            wait: Wait::No,
            is_queued: false,
            context,
        };
        let qpn = self.number();
        self.qps.insert(qpn, qp);
        self.l.create_qp_out.qpn.set(out, u64::from(qpn));
        Ok(())
    }

    fn query_qp(&self, input: &[u8], out: &mut [u8]) -> Answer {
        let qpn = self.l.query_qp_in.qpn.get(input) as u32;
        let qp = self.qps.get(&qpn).ok_or(Status::BadResource)?;
        let context = slice_mut(out, self.l.query_qp_out.qpc, self.l.qpc.size)?;
        context.copy_from_slice(&qp.context);
        let q = &self.l.qpc;
        q.state.set(context, self.state_number(qp.state));
        q.hw_sq_wqebb_counter.set(context, u64::from(qp.sent));
        q.sw_sq_wqebb_counter.set(context, u64::from(qp.posted));
        q.hw_rq_counter.set(context, u64::from(qp.received));
        Ok(())
    }

    fn state_number(&self, state: State) -> u64 {
        let s = &self.c.qp_state;
        match state {
            State::Reset => s.rst,
            State::Init => s.init,
            State::Rtr => s.rtr,
            State::Rts => s.rts,
            State::Err => s.err,
        }
    }

    /// The commands that take a queue pair from one state to another; any other one is
    /// not known.
    fn modify_qp(&mut self, name: &str, input: &[u8]) -> Answer {
        use State::{Err as Failed, Init, Reset, Rtr, Rts};
        let (from, to): (&[State], State) = match name {
            "RST2INIT_QP" => (&[Reset], Init),
            "INIT2INIT_QP" => (&[Init], Init),
            "INIT2RTR_QP" => (&[Init], Rtr),
            "RTR2RTS_QP" => (&[Rtr], Rts),
            "RTS2RTS_QP" => (&[Rts], Rts),
            "2ERR_QP" => (&[Reset, Init, Rtr, Rts, Failed], Failed),
            "2RST_QP" => (&[Reset, Init, Rtr, Rts, Failed], Reset),
            _ => return Err(Status::BadOp),
        };
        let l = self.l.modify_qp;
        let qpn = l.qpn.get(input) as u32;
        let qp = self.qps.get(&qpn).ok_or(Status::BadResource)?;
        if !from.contains(&qp.state) {
            return Err(Status::BadState);
        }
        if to == Failed {
            self.to_error(qpn);
            return Ok(());
        }
        if to == Reset {
            self.faults.forget(qpn);
            let qp = self.qps.get_mut(&qpn).expect("it was there");
            qp.state = Reset;
            qp.wait = Wait::No;
            qp.current = None;
            (qp.sent, qp.posted, qp.received) = (0, 0, 0);
            return Ok(());
        }
        let new = slice(input, l.qpc, self.l.qpc.size)?.to_vec();
        let options = l.opt_param_mask.get(input);
        let fields = self.taken_over(name, options);
        let qp = self.qps.get_mut(&qpn).expect("it was there");
        for field in fields {
            field.set(&mut qp.context, field.get(&new));
        }
        qp.pd = self.l.qpc.pd.get(&qp.context) as u32;
        qp.state = to;
        self.queue(qpn);
        Ok(())
    }

    /// The fields of the new context that count: those that the transition needs, and
    /// those that its options name.
    fn taken_over(&self, name: &str, options: u64) -> Vec<Field> {
        let q = &self.l.qpc;
        let o = &self.c.optpar;
        let mut fields: Vec<Field> = match name {
            "RST2INIT_QP" => vec![
                q.pd,
                q.pm_state,
                q.rre,
                q.rwe,
                q.rae,
                q.pkey_index,
                q.port,
                q.q_key,
            ],
            "INIT2RTR_QP" => vec![
                q.mtu,
                q.log_msg_max,
                q.remote_qpn,
                q.next_rcv_psn,
                q.log_rra_max,
                q.min_rnr_nak,
                q.rlid,
                q.grh,
                q.hop_limit,
                q.sl,
                q.mlid,
                q.src_addr_index,
                q.tclass,
                q.stat_rate,
                half(q.rgid),
                half(q.rgid).nth(1),
            ],
            "RTR2RTS_QP" => vec![
                q.next_send_psn,
                q.log_sra_max,
                q.retry_count,
                q.rnr_retry,
                q.ack_timeout,
            ],
            _ => Vec::new(),
        };
        let optional = [
            (o.rre, q.rre),
            (o.rwe, q.rwe),
            (o.rae, q.rae),
            (o.pkey_index, q.pkey_index),
            (o.q_key, q.q_key),
            (o.rnr_timeout, q.min_rnr_nak),
            (o.retry_count, q.retry_count),
            (o.rnr_retry, q.rnr_retry),
            (o.ack_timeout, q.ack_timeout),
            (o.pm_state, q.pm_state),
        ];
        let chosen = optional.iter().filter(|(bit, _)| options & bit != 0);
        fields.extend(chosen.map(|(_, field)| *field));
        fields
    }

    fn create_xrc_srq(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_xrc_srq_in;
        let x = self.l.xrc_srqc;
        let context = slice(input, l.context, x.size)?;
        let get = |field: Field| field.get(context);
        let log_size = get(x.log_xrc_srq_size) as u32;
        let log_stride = get(x.log_rq_stride) as u32 + 4;
        let bytes = 1u64 << (log_size + log_stride);
        let page_shift = 12 + get(x.log_page_size) as u32;
        let buffer = buffer(input, l.pas, bytes, page_shift, get(x.page_offset))?;
        let srqn = self.number();
        let has_own_index = get(x.user_index_equal_xrc_srqn) == 0;
        let user_index = if has_own_index {
            get(x.user_index) as u32
        } else {
            srqn
        };
        let srq = Srq {
            ring: Ring {
                buffer,
                offset: 0,
                log_size,
                log_stride,
            },
            pd: get(x.pd) as u32,
            // The low part has no two lowest bits.
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

    fn create_rmp(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
        let l = &self.l.create_rmp_in;
        let w = self.l.wq;
        let wq = slice(input, l.wq, w.size)?;
        let get = |field: Field| field.get(wq);
        let log_size = get(w.log_wq_sz) as u32;
        let log_stride = get(w.log_wq_stride) as u32;
        let bytes = 1u64 << (log_size + log_stride);
        let page_shift = 12 + get(w.log_wq_pg_sz) as u32;
        let buffer = buffer(input, l.pas, bytes, page_shift, get(w.page_offset))?;
        let srqn = self.number();
        let srq = Srq {
            ring: Ring {
                buffer,
                offset: 0,
                log_size,
                log_stride,
            },
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

    fn destroy_srq(&mut self, srqn: u64) -> Answer {
        let srqn = srqn as u32;
        if self.qps.values().any(|qp| qp.srqn == Some(srqn)) {
            return Err(Status::Busy);
        }
        self.srqs.remove(&srqn).map(drop).ok_or(Status::BadResource)
    }

    fn arm_srq(&mut self, srqn: u64, limit: u64) -> Answer {
        let srq = self
            .srqs
            .get_mut(&(srqn as u32))
            .ok_or(Status::BadResource)?;
        srq.limit = limit as u16;
        Ok(())
    }
}

/// The port's, and the node's.
const GUID: u64 = 0x0002_c903_0000_0001;

/// The first eight bytes of a GID.
fn half(gid: Field) -> Field {
    Field { bits: 64, ..gid }
}

/// A structure inside of a command.
fn slice(input: &[u8], at: Field, size: usize) -> Result<&[u8], Status> {
    input
        .get(at.byte()..at.byte() + size)
        .ok_or(Status::BadLength)
}

fn slice_mut(out: &mut [u8], at: Field, size: usize) -> Result<&mut [u8], Status> {
    out.get_mut(at.byte()..at.byte() + size)
        .ok_or(Status::BadLength)
}

/// A list of numbers of 64 bits.
fn numbers(input: &[u8], field: Field, count: usize) -> Result<Vec<u64>, Status> {
    let room = input.len().saturating_sub(field.byte()) / 8;
    if count > room {
        return Err(Status::BadLength);
    }
    Ok((0..count).map(|n| field.nth(n).get(input)).collect())
}

/// A queue of `bytes` bytes in the pages that a command lists. `offset` counts 64ths of
/// a page.
fn buffer(
    input: &[u8],
    pas: Field,
    bytes: u64,
    page_shift: u32,
    offset: u64,
) -> Result<Buffer, Status> {
    let offset = offset << (page_shift - 6);
    let pages = (offset + bytes).div_ceil(1u64 << page_shift);
    let pages = usize::try_from(pages).map_err(|_| Status::BadLength)?;
    Ok(Buffer {
        pages: numbers(input, pas, pages)?,
        page_shift,
        offset,
    })
}
