//! Commands of queue pairs.

use std::collections::VecDeque;
use std::time::Instant;

use super::objects::{buffer, ring, slice, slice_mut};
use super::{Answer, Status, half};
use crate::device::Device;
use crate::layout::Field;
use crate::qp::{Qp, Ring, State, Wait};

/// log2 of a basic block of the send queue.
const LOG_WQEBB: u64 = 6;

impl Device {
    pub(super) fn create_qp(&mut self, input: &[u8], out: &mut [u8]) -> Answer {
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
        let receive = ring(get(q.log_rq_size), get(q.log_rq_stride) + 4)?;
        let send = ring(get(q.log_sq_size), LOG_WQEBB)?;
        let receive_bytes = if has_receive { receive.bytes() } else { 0 };
        let send_bytes = if has_send { send.bytes() } else { 0 };
        let buffer = buffer(
            input,
            l.pas,
            receive_bytes + send_bytes,
            get(q.log_page_size),
            get(q.page_offset),
        )?;
        let send = Ring {
            buffer: buffer.clone(),
            offset: receive_bytes,
            ..send
        };
        let cqn = (get(q.cqn_snd) as u32, get(q.cqn_rcv) as u32);
        let has_cq = |cqn: u32| cqn == 0 || self.cqs.contains_key(&cqn);
        if !has_cq(cqn.0) || !has_cq(cqn.1) {
            return Err(Status::BadResource);
        }
        let srqn = (rq_type == self.c.misc.srq_rq).then(|| get(q.srqn) as u32);
        if srqn.is_some_and(|srqn| !self.srqs.contains_key(&srqn)) {
            return Err(Status::BadResource);
        }
        let qp = Qp {
            state: State::Reset,
            service,
            pd: get(q.pd) as u32,
            uar: get(q.uar_page),
            user_index: get(q.user_index) as u32,
            cqn,
            doorbell: get(q.dbr_addr),
            srqn,
            receive: has_receive.then_some(Ring { buffer, ..receive }),
            received: 0,
            begun: VecDeque::new(),
            send: has_send.then_some(send),
            sent: 0,
            posted: 0,
            rung: Instant::now(),
            rung_at: None,
            current: None,
            wait: Wait::No,
            is_queued: false,
            context,
        };
        let qpn = self.number()?;
        self.qps.insert(qpn, qp);
        self.l.create_qp_out.qpn.set(out, u64::from(qpn));
        Ok(())
    }

    pub(super) fn query_qp(&self, input: &[u8], out: &mut [u8]) -> Answer {
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

    /// Executes a command that changes a queue pair's state. Any other name is an error.
    pub(super) fn modify_qp(&mut self, name: &str, input: &[u8]) -> Answer {
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
            self.enter_error(qpn);
            return Ok(());
        }
        if to == Reset {
            self.disconnect(qpn);
            let qp = self.qps.get_mut(&qpn).expect("it was there");
            qp.state = Reset;
            qp.wait = Wait::No;
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

    /// The fields to take from the new context: the transition's required fields, and the
    /// fields that its options name.
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
}
