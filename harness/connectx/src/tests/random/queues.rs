//! Random bytes as requests in real queues.

use proptest::prelude::*;

use super::{bytes, check, mostly, number};
use crate::device::{Device, Scheme};
use crate::layout::{Layouts, idx_to_mkey, mkey_to_idx};
use crate::qp::{State, Wait};
use crate::testing::{LOG_SEND, PAGE, Pair, TestQp, Testbed, structure};

/// Valid parts of requests, which the tests combine at random.
#[derive(Clone, Debug)]
enum Part {
    Remote(usize, u64),
    Data(usize, u64, u64),
    Inline(u64, Vec<u8>),
    Umr {
        flags: u64,
        octwords: u64,
        offset: u64,
        high: u64,
        mask: u64,
    },
    Bytes(Vec<u8>),
}

fn part() -> impl Strategy<Value = Part> {
    let (va, len) = (mostly(0x6000), mostly(0x3000));
    let mask = prop_oneof![
        Just(0),
        Just(1 << 29),
        Just(1),
        (0..64u32).prop_map(|bit| 1 << bit),
        any::<u64>()
    ];
    prop_oneof![
        4 => (0..6usize, va.clone()).prop_map(|(key, va)| Part::Remote(key, va)),
        4 => (0..6usize, va, len).prop_map(|(key, va, len)| Part::Data(key, va, len)),
        1 => (0..0x500u64, bytes(64)).prop_map(|(len, data)| Part::Inline(len, data)),
        3 => (0..256u64, prop_oneof![0..9u64, Just(0xffff)], prop_oneof![0..9u64, Just(0xffff)], prop_oneof![9 => Just(0u64), 1 => number()], mask).prop_map(
            |(flags, octwords, offset, high, mask)| Part::Umr { flags, octwords, offset, high, mask }
        ),
        1 => bytes(200).prop_map(Part::Bytes),
    ]
}

/// A request: the opcode's index, the index of the key in the immediate, a wrong count of
/// 16-byte units if any, and the parts.
type Request = (usize, usize, Option<u64>, Vec<Part>);

fn request() -> impl Strategy<Value = Request> {
    let lie = prop::option::weighted(0.15, 0..64u64);
    (
        0..16usize,
        0..6usize,
        lie,
        prop::collection::vec(part(), 0..5),
    )
}

fn opcode(device: &Device, n: usize) -> u64 {
    let c = &device.c.opcodes;
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
        c.umr,
        c.rdma_write,
        c.rdma_read,
        c.send,
    ];
    known.get(n).copied().unwrap_or(n as u64)
}

/// Keys of all kinds: pages, some absent; keys of keys; a loop; a free key.
fn keys(bench: &mut Testbed) -> Vec<u32> {
    let at = bench.alloc(4 * PAGE);
    let c = bench.device.c.mode;
    let pages = [at | 3, (at + PAGE) | 1, 0, (at + 3 * PAGE) | 3];
    let mtt = bench.key(c.mtt, (0, 4 * PAGE, 12), &pages, |_, _| {});
    let gone = bench.key(c.mtt, (0, PAGE, 12), &[1 << 40 | 3], |_, _| {});
    let low = u64::from(mtt);
    let ksm = bench.key(c.ksm, (0, 2 * PAGE, 12), &[low, PAGE, low, 0], |_, _| {});
    let klm = bench.key(
        c.klms,
        (0, PAGE, 0),
        &[100 << 32 | low, 8, 4000 << 32 | low, 16],
        |_, _| {},
    );
    let free = |l: &Layouts, context: &mut [u8]| l.mkc.free.set(context, 1);
    let free = bench.key(c.mtt, (0, 4 * PAGE, 12), &pages, free);
    let own = u64::from(idx_to_mkey(
        bench.device.next_number + 1,
        crate::testing::LOW,
    ));
    let circle = bench.key(c.ksm, (0, u64::MAX, 0), &[own, 0, own, 0], |_, _| {});
    vec![mtt, gone, ksm, klm, free, circle]
}

fn wqe(bench: &Testbed, keys: &[u32], qp: &TestQp, request: &Request) -> Vec<u8> {
    let (op, key, lie, parts) = request;
    let l = &bench.device.l;
    let mut all = vec![0; l.ctrl.size];
    for part in parts {
        match part {
            Part::Remote(key, va) => all.extend(bench.remote(keys[*key], *va)),
            Part::Data(key, va, len) => all.extend(bench.data(keys[*key], *va, *len)),
            Part::Inline(len, data) => {
                let count = bench.device.c.misc.inline_seg as u32 | *len as u32;
                all.extend(count.to_be_bytes());
                all.extend(data);
                all.resize(all.len().next_multiple_of(16), 0);
            }
            Part::Umr {
                flags,
                octwords,
                offset,
                high,
                mask,
            } => {
                let u = &l.umr;
                let control = [
                    (u.flags, *flags),
                    (u.xlt_octowords, *octwords),
                    (u.xlt_offset, *offset),
                    (u.xlt_offset_47_16, *high),
                    (u.mkey_mask, *mask),
                ];
                all.extend(structure(u.size, &control));
                let m = &l.mkc;
                let context = [
                    (m.len, octwords << 9),
                    (m.log_page_size, *offset),
                    (m.lr, 1),
                ];
                all.extend(structure(m.size, &context));
            }
            Part::Bytes(data) => {
                all.extend(data);
                all.resize(all.len().next_multiple_of(16), 0);
            }
        }
    }
    all.truncate(1008);
    let count = lie.unwrap_or(all.len() as u64 / 16);
    let number = u64::from(qp.qpn) << 8 | count;
    l.ctrl
        .opmod_idx_opcode
        .set(&mut all, opcode(&bench.device, *op));
    l.ctrl.qpn_ds.set(&mut all, number);
    l.ctrl.fm_ce_se.set(&mut all, bench.device.c.misc.cq_update);
    l.ctrl.imm.set(&mut all, u64::from(keys[*key]));
    all
}

/// Answers the page faults in order with these answers.
fn answer(bench: &mut Testbed, errors: &[bool]) {
    for error in errors {
        let kind = bench.device.c.events.page_fault;
        let Some(event) = bench.event_of(kind) else {
            return;
        };
        bench.resume(bench.token(&event), *error).unwrap();
    }
}

#[test]
fn any_request_of_a_real_send_queue_is_carried_out_or_fails() {
    let requests = prop::collection::vec(request(), 1..8);
    let receive = (0..6usize, mostly(0x3000), mostly(0x2000));
    let receives = prop::collection::vec(receive, 0..4);
    let answers = prop::collection::vec(any::<bool>(), 0..6);
    let input = (requests, receives, answers, any::<bool>(), any::<u16>());
    check(&input, |(requests, receives, answers, memory, begin)| {
        let scheme = if memory {
            Scheme::Memory
        } else {
            Scheme::Transport
        };
        let mut bench = Testbed::new(scheme).unwrap();
        let mut pair = Pair::new(&mut bench);
        let keys = keys(&mut bench);
        // Start anywhere in the ring, so that requests wrap around.
        pair.a.posted = begin;
        bench.device.qps.get_mut(&pair.a.qpn).unwrap().sent = begin;
        for (key, va, len) in receives {
            let data = bench.data(keys[key], va, len & 0x8fff_ffff);
            bench.receive(&mut pair.b, &[data]);
        }
        for request in &requests {
            let bytes = wqe(&bench, &keys, &pair.a, request);
            let before = pair.a.posted;
            bench.post_bytes(&mut pair.a, &bytes);
            // The device executes no more than a whole ring at once.
            if pair.a.posted.wrapping_sub(before) <= 1 << LOG_SEND {
                bench.settle();
            }
            answer(&mut bench, &answers);
        }
        bench.settle();
        // All requests have completed, or the queue pair waits or retries.
        let qp = &bench.device.qps[&pair.a.qpn];
        let is_done = qp.sent == qp.posted && qp.current.is_none();
        prop_assert!(is_done || qp.wait != Wait::No, "{:?}", qp.state);
        if qp.state == State::Err {
            prop_assert!(is_done);
            let mut syndromes = Vec::new();
            while let Some(cqe) = bench.poll(&mut pair.a_cq) {
                syndromes.push(cqe.syndrome);
            }
            let failed = syndromes.iter().position(|syndrome| *syndrome != 0);
            let flush = bench.device.c.syndromes.wr_flush_err;
            if let Some(failed) = failed {
                prop_assert!(
                    syndromes[failed + 1..]
                        .iter()
                        .all(|syndrome| *syndrome == flush)
                );
            }
        }
        Ok(())
    });
}

#[test]
fn any_bytes_in_the_queues_are_survived() {
    // Large counters are rare: flushing up to 65535 requests one by one is slow.
    let counter = || prop_oneof![199 => 0..40u16, 1 => any::<u16>()];
    let input = (bytes(1024), bytes(1024), counter(), counter(), 0..4u64);
    check(&input, |(sends, receives, posted, received, log_size)| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let cq = bench.cq(6);
        let small = |l: &Layouts, context: &mut [u8]| l.qpc.log_sq_size.set(context, log_size);
        let (a, b) = (bench.qp(&cq, small), bench.qp(&cq, |_, _| {}));
        bench.connect(&a, b.qpn, 1);
        bench.connect(&b, a.qpn, 1);
        bench.put(a.send_at, &sends);
        bench.put(b.receive_at, &receives);
        bench.put(b.doorbell, &u32::from(received).to_be_bytes());
        bench.ring(&TestQp {
            posted,
            ..a.clone()
        });
        bench.settle();
        // A queue pair in error must not fail on such counters either.
        bench.modify("2ERR_QP", &b, &[]).unwrap();
        bench.settle();
        Ok(())
    });
}

#[test]
fn any_shared_receive_queue_is_survived() {
    let next = prop::collection::vec(prop_oneof![0..8u16, any::<u16>()], 8);
    let input = (
        next,
        any::<u16>(),
        0..20usize,
        0..6usize,
        mostly(4),
        any::<bool>(),
    );
    check(&input, |(next, posted, sends, key, len, limit)| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let keys = keys(&mut bench);
        let (at, doorbell) = (bench.alloc(PAGE), bench.alloc(PAGE));
        let l = bench.device.l.srq_next;
        for (n, to) in next.iter().enumerate() {
            let mut wqe = vec![0; l.size];
            l.next_wqe_index.set(&mut wqe, u64::from(*to));
            wqe.extend(bench.data(keys[key], 0, len));
            bench.put(at + n as u64 * 32, &wqe);
        }
        bench.put(doorbell, &u32::from(posted).to_be_bytes());
        let cq = bench.cq(6);
        let limit = u64::from(limit) * 5;
        let (mut a, _, srqn) = bench.shared([&cq, &cq], (at, doorbell), 3, limit);
        for _ in 0..sends {
            let data = bench.data(keys[0], 0, 4);
            let opcode = bench.device.c.opcodes.send;
            bench.post(&mut a, opcode, 0, &[data]);
            bench.settle();
        }
        // A list that leads out of the queue stops the queue pair that follows it, unless the
        // queue pair still waits for a page.
        let srq = &bench.device.srqs[&(srqn as u32)];
        let sender = &bench.device.qps[&a.qpn];
        if srq.head >> 3 != 0 && sends > usize::from(srq.used) && posted != srq.used {
            prop_assert!(sender.state != State::Rts || sender.wait != Wait::No);
        }
        Ok(())
    });
}

#[test]
fn doorbells_of_queues_that_are_gone_are_survived() {
    let step = (0..8usize, number());
    check(&prop::collection::vec(step, 1..40), |steps| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let mut pair = Pair::new(&mut bench);
        let keys = keys(&mut bench);
        for (kind, value) in steps {
            match kind {
                0 => {
                    let qpn = u64::from(if value % 2 == 0 {
                        pair.a.qpn
                    } else {
                        pair.b.qpn
                    });
                    let set = |l: &Layouts, input: &mut [u8]| l.destroy_qp.qpn.set(input, qpn);
                    let _ = bench.command("DESTROY_QP", &[], set);
                }
                1 => {
                    let cqn = u64::from(pair.a_cq.cqn);
                    let set = |l: &Layouts, input: &mut [u8]| l.destroy_cq.cqn.set(input, cqn);
                    let _ = bench.command("DESTROY_CQ", &[], set);
                }
                2 => {
                    let eqn = u64::from(bench.eqn);
                    let set =
                        |l: &Layouts, input: &mut [u8]| l.destroy_eq.eq_number.set(input, eqn);
                    let _ = bench.command("DESTROY_EQ", &[], set);
                }
                3 => {
                    let index = u64::from(mkey_to_idx(keys[value as usize % keys.len()]));
                    let set =
                        |l: &Layouts, input: &mut [u8]| l.destroy_mkey.mkey_index.set(input, index);
                    let _ = bench.command("DESTROY_MKEY", &[], set);
                }
                4 => {
                    let name = ["2ERR_QP", "2RST_QP", "RST2INIT_QP"][value as usize % 3];
                    let qp = if value % 5 < 3 {
                        pair.a.clone()
                    } else {
                        pair.b.clone()
                    };
                    let _ = bench.modify(name, &qp, &[]);
                }
                5 => {
                    let segments = [
                        bench.remote(keys[0], value & 0x3fff),
                        bench.data(keys[2], 0, 0x1800),
                    ];
                    let c = bench.device.c.opcodes;
                    let opcode = [c.rdma_write, c.rdma_read, c.send][value as usize % 3];
                    let segments = if opcode == c.send {
                        &segments[1..]
                    } else {
                        &segments[..]
                    };
                    bench.post(&mut pair.a, opcode, 0, segments);
                }
                6 => {
                    bench.arm_cq(&pair.a_cq, value % 2 == 0);
                    bench.arm_eq();
                    bench.ring(&pair.b);
                }
                _ => {
                    let _ = bench.device.run();
                }
            }
        }
        bench.settle();
        Ok(())
    });
}
