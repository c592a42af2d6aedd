//! Capabilities: the features that the device reports to the driver.

use std::collections::BTreeMap;

use crate::device::command::Status;
use crate::device::command::port::MAX_MEMBERS;
use crate::device::{Device, LOG_BLUE_FLAME, Scheme};

/// Size of a capability group.
const CAP_SIZE: usize = 4096;

impl Device {
    /// The maximum capabilities, by group.
    pub(crate) fn capabilities(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut caps = BTreeMap::new();
        let c = &self.c.cap;
        let mut general = vec![0; CAP_SIZE];
        self.general(&mut general);
        caps.insert(c.general, general);
        let mut odp = vec![0; CAP_SIZE];
        self.odp(&mut odp);
        caps.insert(c.odp, odp);
        let mut atomic = vec![0; CAP_SIZE];
        let a = &self.l.atomic_caps;
        a.supported_atomic_req_8b_endianness_mode_1
            .set(&mut atomic, 1);
        // Compare and swap, fetch and add, of 8 bytes.
        a.atomic_operations.set(&mut atomic, 0b11);
        a.atomic_size_qp.set(&mut atomic, 1 << 3);
        caps.insert(c.atomic, atomic);
        caps
    }

    fn general(&self, cap: &mut [u8]) {
        let l = &self.l.cap;
        for (field, value) in [
            (l.vhca_id, 1),
            (l.log_max_srq_sz, 15),
            (l.log_max_qp_sz, 15),
            (l.log_max_qp, 18),
            (l.log_max_srq, 16),
            // rdma-core's tests create queues of the maximum size, which is slow in a guest.
            (l.log_max_cq_sz, 16),
            (l.log_max_cq, 18),
            (l.log_max_eq_sz, 22),
            (l.log_max_mkey, 24),
            (l.log_max_eq, 7),
            (l.max_indirection, 4),
            (l.fixed_buffer_size, 1),
            (l.log_max_mrw_sz, 64),
            (l.umr_extended_translation_offset, 1),
            (l.null_mkey, 1),
            (l.log_max_klm_list_size, 15),
            (l.log_max_ra_req_qp, 4),
            (l.log_max_ra_res_qp, 4),
            // 128 entries, the minimum of the field. More entries mean more commands at
            // each probe.
            (l.pkey_table_size, 0),
            (l.ib_virt, 1),
            (l.local_ca_ack_delay, 16),
            (l.num_ports, 1),
            (l.log_max_msg, 30),
            (l.cqe_version, 1),
            (l.compact_address_vector, 1),
            (l.pg, 1),
            (l.atomic, 1),
            (l.cq_moderation, 1),
            (l.cq_resize, 1),
            (l.umr_ptr_rlky, 1),
            (l.xrc, 1),
            (l.ud, 1),
            (l.uc, 1),
            (l.rc, 1),
            (l.log_pg_sz, 12),
            (l.uar_sz, 13),
            (l.bf, 1),
            (l.log_bf_reg_size, LOG_BLUE_FLAME),
            (l.max_wqe_sz_sq, 1024),
            (l.max_wqe_sz_rq, 512),
            (l.log_max_pd, 23),
            (l.log_max_xrcd, 23),
            (l.log_max_rmp, 16),
            (l.basic_cyclic_rcv_wqe, 0),
            (l.log_max_wq_sz, 15),
            (l.max_qp_mcg, MAX_MEMBERS),
            (l.log_max_mcg, 8),
            (l.relaxed_ordering_write, 1),
            (l.relaxed_ordering_read, 1),
            (l.relaxed_ordering_write_umr, 1),
            (l.relaxed_ordering_read_umr, 1),
            (l.ats, 1),
            (l.max_num_eqs, 64),
            (l.num_of_uars_per_page, 1),
        ] {
            field.set(cap, value);
        }
    }

    fn odp(&self, cap: &mut [u8]) {
        let l = &self.l.odp_cap;
        let all = [
            l.rc_send,
            l.rc_receive,
            l.rc_write,
            l.rc_read,
            l.rc_atomic,
            l.rc_srq,
            l.ud_send,
        ];
        let memory = [
            l.mem_rc_send,
            l.mem_rc_receive,
            l.mem_rc_write,
            l.mem_rc_read,
            l.mem_rc_atomic,
            l.mem_rc_srq,
            l.mem_ud_send,
        ];
        let fields = match self.options.scheme {
            Scheme::Transport => all,
            Scheme::Memory => {
                l.mem_page_fault.set(cap, 1);
                l.mem_page_prefetch.set(cap, 1);
                memory
            }
        };
        for field in fields {
            field.set(cap, 1);
        }
    }

    /// The current capabilities before the driver sets any, by group.
    pub(crate) fn defaults(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut caps = self.max_caps.clone();
        if let Some(odp) = caps.get_mut(&self.c.cap.odp) {
            self.l.odp_cap.mem_page_fault.set(odp, 0);
        }
        caps
    }

    /// Returns a capability group: its current or its maximum values.
    pub(crate) fn query_cap(&self, input: &[u8], out: &mut [u8]) -> Result<(), Status> {
        let op_mod = self.l.mbox_in.op_mod.get(input);
        let caps = if op_mod & 1 == self.c.cap.current {
            &self.caps
        } else {
            &self.max_caps
        };
        let cap = caps.get(&(op_mod >> 1)).ok_or(Status::BadParam)?;
        let at = self.l.query_hca_cap_out.capability.byte();
        let to = out.get_mut(at..).ok_or(Status::BadOutLength)?;
        for (to, from) in to.iter_mut().zip(cap) {
            *to = *from;
        }
        Ok(())
    }

    /// Sets the current values of a capability group.
    pub(crate) fn set_cap(&mut self, input: &[u8]) -> Result<(), Status> {
        let group = self.l.mbox_in.op_mod.get(input) >> 1;
        let at = self.l.set_hca_cap_in.capability.byte();
        let from = input.get(at..).ok_or(Status::BadLength)?;
        let cap = self.caps.get_mut(&group).ok_or(Status::BadParam)?;
        if group == self.c.cap.atomic {
            // The driver leaves all other fields zero, so they keep their values.
            let mode = self.l.atomic_caps.atomic_req_8b_endianness_mode;
            mode.set(cap, mode.get(from));
            return Ok(());
        }
        for (to, from) in cap.iter_mut().zip(from) {
            *to = *from;
        }
        Ok(())
    }
}
