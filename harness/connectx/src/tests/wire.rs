//! Two devices that are joined by a wire: transfers, page faults, and ends that vanish.

use crate::device::Scheme;
use crate::testing::wired::{START, Wired};
use crate::testing::{LID, PAGE, Pair};

const LEN: u64 = PAGE + 0x100;

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|n| (n % 251) as u8 ^ seed).collect()
}

fn wired() -> Option<Wired> {
    let mut t = Wired::new(Scheme::Transport)?;
    t.put(0, &pattern(1));
    t.put(1, &pattern(2));
    Some(t)
}

/// The `dir` of each DMA in an end's log, without repetitions.
fn moved(t: &mut Wired, n: usize) -> Vec<String> {
    let lines = t.at(n).lines();
    let dmas = lines.iter().filter(|line| line["event"] == "dma");
    let mut all = Vec::from_iter(dmas.map(|line| line["dir"].as_str().unwrap().to_owned()));
    all.dedup();
    all
}

#[test]
fn each_port_has_an_address_of_its_own() {
    let Some(mut t) = wired() else { return };
    let seen = [0, 1].map(|n| {
        let bench = t.at(n);
        let out = bench.command("QUERY_HCA_VPORT_CONTEXT", &[], |_, _| {});
        let (out, l) = (out.unwrap(), &bench.device.l.vport_context);
        [l.lid, l.port_guid, l.node_guid].map(|field| field.get(&out))
    });
    let [a, b] = seen;
    assert!(a.iter().zip(b).all(|(a, b)| *a != b), "{seen:?}");
    let seen = [0, 1].map(|n| {
        let bench = t.at(n);
        let (mut input, mut out) = ([0; 64], [0; 64]);
        let opcode = bench.opcodes["QUERY_HCA_VPORT_GID"];
        bench.device.l.mbox_in.opcode.set(&mut input, opcode);
        bench.device.execute(&input, &mut out).unwrap();
        out
    });
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn writes_and_reads_cross_the_wire_in_both_directions() {
    for n in [0, 1] {
        let Some(mut t) = wired() else { return };
        let c = t.at(n).device.c.opcodes;
        let (mine, theirs) = (pattern(1 + n as u8), pattern(2 - n as u8));
        t.post(n, c.rdma_write, LEN);
        assert_eq!(t.syndrome(n), 0);
        assert_eq!(t.get(1 - n, LEN as usize), mine);
        assert_eq!(t.get(n, LEN as usize), mine);
        assert!(t.poll(1 - n).is_none());
        // Each device logs what it does in its own memory.
        assert_eq!(
            (moved(&mut t, n), moved(&mut t, 1 - n)),
            (vec!["read".into()], vec!["write".into()])
        );
        t.put(1 - n, &theirs);
        t.post(n, c.rdma_read, LEN);
        assert_eq!(t.syndrome(n), 0);
        assert_eq!(t.get(n, LEN as usize), theirs);
        assert_eq!(moved(&mut t, 1 - n), ["write", "read"]);
    }
}

#[test]
fn messages_cross_the_wire() {
    let Some(mut t) = wired() else { return };
    let c = t.at(0).device.c.opcodes;
    t.receive(1, LEN);
    t.post(0, c.send, LEN);
    assert_eq!(t.syndrome(0), 0);
    let cqe = t.poll(1).unwrap();
    assert_eq!(
        (cqe.opcode, cqe.bytes),
        (t.at(1).device.c.cqe.resp_send, LEN)
    );
    assert_eq!(t.get(1, LEN as usize), pattern(1));
    // The completion says who has sent it.
    let (entry, slid) = (t.cqs[1].entry(0), t.at(1).device.l.cqe.slid);
    let entry = t.at(1).get(entry, crate::device::queue::CQE);
    assert_eq!(slid.get(&entry), u64::from(LID));
}

#[test]
fn atomics_cross_the_wire() {
    let Some(mut t) = wired() else { return };
    t.put(1, &7u64.to_le_bytes());
    let c = t.at(0).device.c.opcodes;
    let mut qp = t.qps[0].clone();
    let keys = t.keys;
    let bench = t.at(0);
    let mut segment = vec![0; bench.device.l.atomic.size];
    bench.device.l.atomic.swap_add.set(&mut segment, 5);
    let remote = bench.remote(keys[1], START);
    let local = bench.data(keys[0], START, 8);
    bench.post(&mut qp, c.atomic_fa, 0, &[remote, segment, local]);
    assert_eq!(t.syndrome(0), 0);
    assert_eq!(t.get(0, 8), 7u64.to_le_bytes());
    assert_eq!(t.get(1, 8), 12u64.to_le_bytes());
}

#[test]
fn datagrams_cross_the_wire() {
    let Some(mut t) = wired() else { return };
    let ends = [0, 1].map(|n| {
        let cq = t.cqs[n].clone();
        let bench = t.at(n);
        let ud = bench.device.c.qp_st.ud;
        let qp = bench.qp(&cq, |l, context| l.qpc.st.set(context, ud));
        bench.connect(&qp, 0, 7);
        qp
    });
    let keys = t.keys;
    let [mut from, mut to] = ends;
    let data = t.at(1).data(keys[1], START, PAGE);
    t.at(1).receive(&mut to, &[data]);
    let bench = t.at(0);
    // Nobody has the first LID.
    for lid in [LID + 2, LID + 1] {
        let l = bench.device.l.base_av;
        let mut address = vec![0; l.size];
        l.dqp_dct.set(&mut address, u64::from(to.qpn));
        l.rlid.set(&mut address, u64::from(lid));
        let opcode = bench.device.c.opcodes.send;
        let data = bench.data(keys[0], START, u64::from(lid));
        bench.post(&mut from, opcode, 0, &[address, data]);
    }
    assert_eq!((t.syndrome(0), t.syndrome(0)), (0, 0));
    let cqe = t.poll(1).unwrap();
    assert_eq!((cqe.syndrome, cqe.bytes), (0, 40 + 2));
    assert_eq!(t.get(1, 42)[40..], pattern(1)[..2]);
    assert!(t.poll(1).is_none());
}

/// Both devices have queue pairs of these numbers.
#[test]
fn a_loopback_stays_at_its_end() {
    let Some(mut t) = wired() else { return };
    for n in [0, 1] {
        let pair = Pair::new(t.at(n));
        let (key, at) = (t.keys[n], t.pages[n]);
        let Pair {
            mut a, mut a_cq, ..
        } = pair;
        let bench = t.at(n);
        let opcode = bench.device.c.opcodes.rdma_write;
        let (to, from) = (bench.remote(key, START), bench.data(key, START + PAGE, 8));
        bench.put(at + PAGE, &[9 + n as u8; 8]);
        bench.post(&mut a, opcode, 0, &[to, from]);
        t.settle();
        assert_eq!(t.at(n).poll(&mut a_cq).unwrap().syndrome, 0);
        assert_eq!(t.get(n, 8), [9 + n as u8; 8]);
        assert_eq!(t.get(1, 8) == pattern(2)[..8], n == 0);
    }
    assert_eq!(t.get(0, 8), [9; 8]);
}

/// Both ends have a queue pair of the right number, but one of the two names another port.
#[test]
fn ports_that_do_not_name_each_other_are_not_connected() {
    for (n, lid) in [(0, LID + 2), (1, LID + 1)] {
        let Some(mut t) = wired() else { return };
        let (qpn, rlid) = (t.qps[n].qpn, t.at(n).device.l.qpc.rlid);
        let qp = t.at(n).device.qps.get_mut(&qpn).unwrap();
        rlid.set(&mut qp.context, u64::from(lid));
        let opcode = t.at(0).device.c.opcodes.rdma_write;
        t.post(0, opcode, LEN);
        let gone = t.at(0).device.c.syndromes.transport_retry_exc_err;
        assert_eq!(t.syndrome(0), gone);
        assert_eq!(t.get(1, LEN as usize), pattern(2));
        assert_eq!(t.get(0, LEN as usize), pattern(1));
    }
}

#[test]
fn a_message_waits_for_a_receive_request_at_the_other_end() {
    for rnr_retry in [7, 2] {
        let Some(mut t) = wired() else { return };
        let (qpn, field) = (t.qps[0].qpn, t.at(0).device.l.qpc.rnr_retry);
        let qp = t.at(0).device.qps.get_mut(&qpn).unwrap();
        field.set(&mut qp.context, rnr_retry);
        let opcode = t.at(0).device.c.opcodes.send;
        t.post(0, opcode, LEN);
        if rnr_retry == 2 {
            let ended = t.at(0).device.c.syndromes.rnr_retry_exc_err;
            assert_eq!(t.syndrome(0), ended);
            continue;
        }
        t.settle();
        assert!(t.poll(0).is_none());
        t.receive(1, LEN);
        assert_eq!((t.syndrome(0), t.syndrome(1)), (0, 0));
        assert_eq!(t.get(1, LEN as usize), pattern(1));
    }
}

/// The driver of the end whose page is absent hears of it, and the other one does not.
#[test]
fn a_page_fault_goes_to_the_driver_of_its_end() {
    for scheme in [Scheme::Transport, Scheme::Memory] {
        for absent in [0, 1] {
            for name in ["write", "read", "send"] {
                let Some(mut t) = Wired::new(scheme) else {
                    return;
                };
                t.put(0, &pattern(1));
                t.put(1, &pattern(2));
                let c = t.at(0).device.c.opcodes;
                t.page(absent, false);
                t.receive(1, LEN);
                let opcode = match name {
                    "write" => c.rdma_write,
                    "read" => c.rdma_read,
                    _ => c.send,
                };
                t.post(0, opcode, LEN);
                t.settle();
                assert_eq!(t.fault(1 - absent), None, "{name}");
                let token = t.fault(absent).expect(name);
                assert!(t.poll(0).is_none());
                t.page(absent, true);
                t.at(absent).resume(token, false).unwrap();
                assert_eq!(t.syndrome(0), 0, "{name}");
                let (to, seed) = if name == "read" { (0, 2) } else { (1, 1) };
                assert_eq!(t.get(to, LEN as usize), pattern(seed), "{name}");
                assert_eq!(t.fault(0).or(t.fault(1)), None);
            }
        }
    }
}

#[test]
fn a_page_that_never_comes_fails_at_both_ends() {
    for (opcode, receives) in [("write", false), ("send", true)] {
        let Some(mut t) = wired() else { return };
        let (c, s) = (t.at(0).device.c.opcodes, t.at(0).device.c.syndromes);
        t.page(1, false);
        if receives {
            t.receive(1, LEN);
        }
        t.post(0, if receives { c.send } else { c.rdma_write }, LEN);
        t.settle();
        let token = t.fault(1).expect(opcode);
        t.at(1).resume(token, true).unwrap();
        if receives {
            assert_eq!(t.syndrome(0), s.remote_op_err);
            assert_eq!(t.syndrome(1), s.local_prot_err);
        } else {
            assert_eq!(t.syndrome(0), s.remote_access_err);
            let kind = t.at(1).device.c.events.wq_access_error;
            assert!(t.at(1).event_of(kind).is_some());
            assert!(t.at(0).event_of(kind).is_none());
        }
        // The other end's queue pair is in error as well.
        t.receive(1, 8);
        assert_eq!(t.syndrome(1), s.wr_flush_err);
    }
}

/// The queue pair has waited for a page of the other end, and now waits for one of its own.
#[test]
fn an_answer_that_comes_late_changes_nothing() {
    let Some(mut t) = wired() else { return };
    let c = t.at(0).device.c.opcodes;
    t.page(1, false);
    t.post(0, c.rdma_write, LEN);
    t.settle();
    let old = t.fault(1).unwrap();
    let mut qp = t.qps[0].clone();
    t.at(0).modify("2RST_QP", &qp, &[]).unwrap();
    let qpn = qp.qpn;
    t.at(0).connect_to(&qp, (LID + 1, qpn), 7);
    (qp.posted, qp.received) = (0, 0);
    t.qps[0] = qp;
    t.page(1, true);
    t.page(0, false);
    t.post(0, c.rdma_write, LEN);
    t.settle();
    let own = t.fault(0).unwrap();
    assert_eq!(own, old);
    t.at(1).resume(old, true).unwrap();
    t.settle();
    assert!(t.poll(0).is_none() && t.fault(0).is_none());
    t.page(0, true);
    t.at(0).resume(own, false).unwrap();
    assert_eq!(t.syndrome(0), 0);
    assert_eq!(t.get(1, LEN as usize), pattern(1));
}

/// An answer for the other end's queue pair is none for the own one of that number.
#[test]
fn an_end_that_fails_keeps_the_page_faults_of_the_other_one() {
    let Some(mut t) = wired() else { return };
    let c = t.at(0).device.c.opcodes;
    t.page(1, false);
    t.post(0, c.rdma_write, LEN);
    t.settle();
    let token = t.fault(1).unwrap();
    t.fail(1);
    t.at(1).resume(token, false).unwrap();
    let gone = t.at(0).device.c.syndromes.transport_retry_exc_err;
    assert_eq!(t.syndrome(0), gone);
}

#[test]
fn whoever_asks_an_end_that_has_vanished_gets_an_error() {
    for how in ["queue pair", "in error", "function", "teardown"] {
        for has_begun in [false, true] {
            let Some(mut t) = wired() else { return };
            let opcode = t.at(0).device.c.opcodes.rdma_write;
            if has_begun {
                // It waits for a page when the other end vanishes.
                t.page(1, false);
                t.post(0, opcode, LEN);
                t.settle();
                assert!(t.fault(1).is_some());
            }
            let qp = t.qps[1].clone();
            let bench = t.at(1);
            match how {
                "queue pair" => bench.destroy(&qp),
                "in error" => bench.modify("2ERR_QP", &qp, &[]).unwrap(),
                "function" => bench.function_reset(),
                _ => drop(bench.command("TEARDOWN_HCA", &[], |_, _| {}).unwrap()),
            }
            if has_begun && ["queue pair", "in error"].contains(&how) {
                // The driver is still there, and answers.
                t.at(1).resume(1, false).unwrap();
            }
            if !has_begun {
                t.post(0, opcode, LEN);
            }
            let s = t.at(0).device.c.syndromes;
            assert_eq!(t.syndrome(0), s.transport_retry_exc_err, "{how}");
            assert_eq!(t.get(1, LEN as usize), pattern(2));
            // Its queue pair is in error, and the device goes on.
            t.post(0, opcode, LEN);
            assert_eq!(t.syndrome(0), s.wr_flush_err);
            assert_eq!(t.at(0).device.witness.totals.violations, 0);
        }
    }
}

/// The driver does not answer for a receiver that it does not find any more.
#[test]
fn a_receiver_that_has_vanished_needs_no_page() {
    for is_destroyed in [false, true] {
        let Some(mut t) = wired() else { return };
        t.page(1, false);
        t.receive(1, LEN);
        let opcode = t.at(0).device.c.opcodes.send;
        t.post(0, opcode, LEN);
        t.settle();
        assert!(t.fault(1).is_some());
        let qp = t.qps[1].clone();
        if is_destroyed {
            t.at(1).destroy(&qp);
        } else {
            t.at(1).modify("2RST_QP", &qp, &[]).unwrap();
        }
        let gone = t.at(0).device.c.syndromes.transport_retry_exc_err;
        assert_eq!(t.syndrome(0), gone);
    }
}

#[test]
fn a_receive_request_that_the_other_end_has_begun_is_flushed() {
    let Some(mut t) = wired() else { return };
    t.begin_message(LEN);
    t.fail(1);
    let flushed = t.at(1).device.c.syndromes.wr_flush_err;
    assert_eq!(t.syndrome(1), flushed);
    assert!(t.poll(1).is_none());
}

/// A queue pair of the other end has the same number as the receiver, and fails.
#[test]
fn a_receive_request_is_not_taken_for_another_ends() {
    let Some(mut t) = wired() else { return };
    let cqs = t.cqs.clone();
    let rc = |_: &crate::layout::Layouts, _: &mut [u8]| {};
    let (fails, mut from) = (t.at(0).qp(&cqs[0], rc), t.at(0).qp(&cqs[0], rc));
    let mut to = t.at(1).qp(&cqs[1], rc);
    assert_eq!(fails.qpn, to.qpn);
    t.at(0).connect_to(&from, (LID + 1, to.qpn), 7);
    t.at(1).connect_to(&to, (LID, from.qpn), 7);
    let (c, keys) = (t.at(0).device.c.opcodes, t.keys);
    let data = t.at(1).data(keys[1], START, LEN);
    t.at(1).receive(&mut to, &[data]);
    let data = t.at(0).data(keys[0], START, LEN);
    t.at(0).post(&mut from, c.send, 0, &[data]);
    // Move one packet of two.
    t.at(0).device.run().unwrap();
    t.at(0).modify("2ERR_QP", &fails, &[]).unwrap();
    assert_eq!((t.syndrome(0), t.syndrome(1)), (0, 0));
    assert_eq!(t.get(1, LEN as usize), pattern(1));
}

#[test]
fn a_receive_request_is_flushed_if_the_device_of_its_sender_is_reset() {
    let Some(mut t) = wired() else { return };
    t.begin_message(LEN);
    t.at(0).function_reset();
    t.settle();
    assert!(t.poll(1).is_none());
    t.fail(1);
    let flushed = t.at(1).device.c.syndromes.wr_flush_err;
    assert_eq!(t.syndrome(1), flushed);
    assert!(t.poll(1).is_none());
}

#[test]
fn a_message_that_its_sender_cuts_off_ends_the_other_end() {
    let Some(mut t) = wired() else { return };
    t.begin_message(LEN);
    t.fail(0);
    let s = t.at(0).device.c.syndromes;
    assert_eq!(t.syndrome(0), s.wr_flush_err);
    assert_eq!(t.syndrome(1), s.remote_aborted_err);
    t.receive(1, 8);
    assert_eq!(t.syndrome(1), s.wr_flush_err);
}
