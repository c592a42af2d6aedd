//! Transfers between two queue pairs: data, completions and errors.

use std::time::Duration;

use crate::device::Scheme;
use crate::device::mkey::Mkey;
use crate::layout::{Layouts, mkey_to_idx};
use crate::testing::{PAGE, Pair, Testbed, VRAM};

/// Two queue pairs, with a page and a key at each end.
struct Ends {
    bench: Testbed,
    pair: Pair,
    from: u64,
    to: u64,
    from_key: u32,
    to_key: u32,
}

impl Ends {
    fn new() -> Option<Self> {
        let mut bench = Testbed::new(Scheme::Transport)?;
        let pair = Pair::new(&mut bench);
        let (from, to) = (bench.alloc(2 * PAGE), VRAM + 0x3000);
        bench.put(from, &(0..=255).cycle().take(8192).collect::<Vec<u8>>());
        let from_key = bench.mtt(0x10_0000, &[from, from + PAGE]);
        let to_key = bench.mtt(0x20_0000, &[to, to + PAGE]);
        Some(Self {
            bench,
            pair,
            from,
            to,
            from_key,
            to_key,
        })
    }

    /// The key of the other end.
    fn key(&mut self) -> &mut Mkey {
        let keys = &mut self.bench.device.mkeys;
        keys.get_mut(&mkey_to_idx(self.to_key)).unwrap()
    }

    /// Writes `len` bytes from one end to the other with these keys, and runs.
    fn write(&mut self, local_key: u32, key: u32, va: u64, len: u64) {
        let local = self.bench.data(local_key, 0x10_0000, len);
        let remote = self.bench.remote(key, va);
        let opcode = self.bench.device.c.opcodes.rdma_write;
        self.bench
            .post(&mut self.pair.a, opcode, 0, &[remote, local]);
        self.bench.settle();
    }

    /// Moves the first one of a message's two packets.
    fn begin_message(&mut self) {
        let data = self.bench.data(self.to_key, 0x20_0000, 2 * PAGE);
        self.bench.receive(&mut self.pair.b, &[data]);
        let local = self.bench.data(self.from_key, 0x10_0000, 2 * PAGE);
        let opcode = self.bench.device.c.opcodes.send;
        self.bench.post(&mut self.pair.a, opcode, 0, &[local]);
        self.bench.device.run().unwrap();
    }

    fn syndrome(&mut self) -> u64 {
        let cqe = self.bench.poll(&mut self.pair.a_cq).expect("a completion");
        cqe.syndrome
    }

    /// Checks that the request failed with this syndrome, that later requests are flushed, and
    /// whether the remote end has failed too.
    fn failed_with(&mut self, syndrome: u64, other: bool) {
        assert_eq!(self.syndrome(), syndrome);
        self.write(self.from_key, self.to_key, 0x20_0000, 8);
        assert_eq!(self.syndrome(), self.bench.device.c.syndromes.wr_flush_err);
        assert!(self.bench.poll(&mut self.pair.a_cq).is_none());
        let kind = self.bench.device.c.events.wq_access_error;
        let event = self.bench.event_of(kind);
        let of = event.map(|event| self.bench.device.l.eqe.qp_srq_n.get(&event) as u32);
        assert_eq!(of, other.then_some(self.pair.b.qpn));
        // No data has moved, not even later.
        assert_eq!(self.bench.get(self.to, 8), [0; 8]);
        // The remote end's receive requests are flushed if it has failed.
        let data = self.bench.data(self.to_key, 0x20_0000, 8);
        self.bench.receive(&mut self.pair.b, &[data]);
        let limit = Duration::from_millis(if other { 5000 } else { 10 });
        let (mut cqe, cq) = (None, &mut self.pair.b_cq);
        self.bench.wait(limit, |bench| {
            cqe = bench.poll(cq);
            cqe.is_some()
        });
        let flush = self.bench.device.c.syndromes.wr_flush_err;
        assert_eq!(cqe.map(|cqe| cqe.syndrome), other.then_some(flush));
    }
}

#[test]
fn a_write_arrives_and_completes() {
    let Some(mut t) = Ends::new() else { return };
    t.write(t.from_key, t.to_key, 0x20_0010, 0x1800);
    let cqe = t.bench.poll(&mut t.pair.a_cq).unwrap();
    assert_eq!((cqe.opcode, cqe.counter), (t.bench.device.c.cqe.req, 0));
    assert_eq!(cqe.qpn, u64::from(t.pair.a.qpn) & 0xff_ffff);
    assert!(t.bench.poll(&mut t.pair.b_cq).is_none());
    assert_eq!(
        t.bench.get(t.to + 0x10, 0x1800),
        t.bench.get(t.from, 0x1800)
    );
    assert_eq!(t.bench.get(t.to, 0x10), [0; 0x10]);
    // The witness has logged the bytes' target and translation.
    let lines = t.bench.lines();
    let dmas: Vec<_> = lines.iter().filter(|line| line["event"] == "dma").collect();
    let peer: u64 = dmas
        .iter()
        .filter(|dma| dma["to"] == "vram0" && dma["dir"] == "write")
        .map(|dma| dma["len"].as_u64().unwrap())
        .sum();
    assert_eq!(peer, 0x1800);
    assert_eq!(t.bench.device.witness.totals.peer_bytes, 0x1800);
    assert_eq!(t.bench.device.witness.totals.ram_bytes, 0x1800);
    let first = dmas.iter().find(|dma| dma["to"] == "vram0").unwrap();
    assert_eq!(first["addr"], t.to + 0x10);
    assert_eq!(first["va"], 0x20_0010);
    let change = lines.iter().find(|line| line["n"] == first["umr"]).unwrap();
    assert_eq!(
        (&change["event"], &change["mkey"]),
        (&"umr".into(), &t.to_key.into())
    );
}

/// The contents of `done` lines: operation, bytes, and `direct`.
fn completed(bench: &mut Testbed) -> Vec<(String, u64, bool)> {
    let lines = bench.lines();
    let done = lines.iter().filter(|line| line["event"] == "done");
    done.map(|line| {
        assert!(line["took"].is_u64(), "{line}");
        (
            line["op"].as_str().unwrap().to_owned(),
            line["len"].as_u64().unwrap(),
            line["direct"].as_bool().unwrap(),
        )
    })
    .collect()
}

#[test]
fn the_log_tells_which_latencies_are_those_of_a_request_alone() {
    let Some(mut t) = Ends::new() else { return };
    let c = t.bench.device.c.opcodes;
    let segments = |t: &Ends| {
        let local = t.bench.data(t.from_key, 0x10_0000, PAGE);
        [t.bench.remote(t.to_key, 0x20_0000), local]
    };
    let write = |direct| ("rdma_write".to_owned(), PAGE, direct);
    t.write(t.from_key, t.to_key, 0x20_0000, PAGE);
    t.write(t.from_key, t.to_key, 0x20_0000, PAGE);
    assert_eq!(completed(&mut t.bench), [write(true), write(true)]);
    // The second request arrives while the first one is in the queue.
    for _ in 0..2 {
        let segments = segments(&t);
        t.bench.post(&mut t.pair.a, c.rdma_write, 0, &segments);
    }
    t.bench.settle();
    assert_eq!(completed(&mut t.bench)[2..], [write(false), write(false)]);
    // Two requests with one doorbell.
    let mut both = Vec::new();
    for n in 0..2 {
        let l = &t.bench.device.l.ctrl;
        let mut wqe = vec![0; l.size];
        let index = u64::from(t.pair.a.posted) + n;
        l.opmod_idx_opcode.set(&mut wqe, index << 8 | c.rdma_write);
        l.qpn_ds.set(&mut wqe, u64::from(t.pair.a.qpn) << 8 | 3);
        l.fm_ce_se.set(&mut wqe, t.bench.device.c.misc.cq_update);
        wqe.extend(segments(&t).concat());
        wqe.resize(64, 0);
        both.extend(wqe);
    }
    t.bench.post_bytes(&mut t.pair.a, &both);
    t.bench.settle();
    assert_eq!(completed(&mut t.bench)[4..], [write(false), write(false)]);
    // The queue is empty again.
    let segments = segments(&t);
    t.bench.post(&mut t.pair.a, c.rdma_read, 0, &segments);
    t.bench.settle();
    let read = ("rdma_read".to_owned(), PAGE, true);
    assert_eq!(completed(&mut t.bench)[6..], [read]);
    // The remote end is not ready.
    let data = t.bench.data(t.from_key, 0x10_0000, 8);
    t.bench.post(&mut t.pair.a, c.send, 0, &[data]);
    t.bench.settle();
    let data = t.bench.data(t.to_key, 0x20_0000, 8);
    t.bench.receive(&mut t.pair.b, &[data]);
    let cq = &mut t.pair.b_cq;
    assert!(
        t.bench
            .wait(Duration::from_secs(5), |bench| bench.poll(cq).is_some())
    );
    assert_eq!(
        completed(&mut t.bench)[7..],
        [("send".to_owned(), 8, false)]
    );
}

/// The judge relies on these bits of each request. The driver sets them in the key.
#[test]
fn the_log_tells_of_ats_and_of_relaxed_ordering_for_each_direction() {
    let Some(mut t) = Ends::new() else { return };
    let l = &t.bench.device.l.mkc;
    let cases = [
        (None, (false, false)),
        (Some(l.ma_translation_mode), (true, false)),
        (Some(l.relaxed_ordering_write), (false, true)),
        (Some(l.relaxed_ordering_read), (false, false)),
    ];
    for (field, expected) in cases {
        let before = t.key().context.clone();
        if let Some(field) = field {
            field.set(&mut t.key().context, 1);
        }
        t.write(t.from_key, t.to_key, 0x20_0000, 8);
        let lines = t.bench.lines();
        let last = lines.iter().rfind(|line| line["dir"] == "write").unwrap();
        assert_eq!(
            (&last["ats"], &last["ro"]),
            (&expected.0.into(), &expected.1.into())
        );
        t.key().context = before;
    }
}

#[test]
fn a_read_fetches() {
    let Some(mut t) = Ends::new() else { return };
    t.bench.put(t.to, b"from the other end");
    let segments = [
        t.bench.remote(t.to_key, 0x20_0000),
        t.bench.data(t.from_key, 0x10_0004, 18),
    ];
    let opcode = t.bench.device.c.opcodes.rdma_read;
    t.bench.post(&mut t.pair.a, opcode, 0, &segments);
    t.bench.settle();
    assert_eq!(t.syndrome(), 0);
    assert_eq!(t.bench.get(t.from + 4, 18), b"from the other end");
}

#[test]
fn a_message_fills_a_receive_request() {
    let Some(mut t) = Ends::new() else { return };
    let parts = [
        t.bench.data(t.to_key, 0x20_0000, 4),
        t.bench.data(t.to_key, 0x20_0100, 100),
    ];
    t.bench.receive(&mut t.pair.b, &parts);
    let local = t.bench.data(t.from_key, 0x10_0001, 10);
    let opcode = t.bench.device.c.opcodes.send_imm;
    t.bench.post(&mut t.pair.a, opcode, 0x1234_5678, &[local]);
    t.bench.settle();
    assert_eq!(t.syndrome(), 0);
    let cqe = t.bench.poll(&mut t.pair.b_cq).unwrap();
    assert_eq!(cqe.opcode, t.bench.device.c.cqe.resp_send_imm);
    assert_eq!((cqe.bytes, cqe.imm, cqe.counter), (10, 0x1234_5678, 0));
    assert_eq!(t.bench.get(t.to, 4), [1, 2, 3, 4]);
    assert_eq!(t.bench.get(t.to + 0x100, 7), [5, 6, 7, 8, 9, 10, 0]);
}

/// A message takes a key of its receiver out of use, if the key allows that.
#[test]
fn a_message_invalidates_a_key_of_its_receiver() {
    type Change = fn(&Layouts, &mut [u8]);
    let cases: [(&str, bool, u32, Change); 4] = [
        ("allowed", true, 0, |l, context| {
            l.mkc.en_rinval.set(context, 1);
        }),
        ("not allowed", false, 0, |_, _| {}),
        ("of an earlier use", false, 1, |l, context| {
            l.mkc.en_rinval.set(context, 1);
        }),
        ("of another domain", false, 0, |l, context| {
            l.mkc.en_rinval.set(context, 1);
            l.mkc.pd.set(context, 0x77);
        }),
    ];
    for (what, is_allowed, other, set) in cases {
        println!("{what}");
        let Some(mut t) = Ends::new() else { return };
        let (c, s) = (t.bench.device.c.opcodes, t.bench.device.c.syndromes);
        let (mode, entries) = (t.bench.device.c.mode.mtt, [t.to | 3]);
        let key = t.bench.key(mode, (0x20_0000, PAGE, 12), &entries, set);
        let data = t.bench.data(t.to_key, 0x20_0000, 8);
        t.bench.receive(&mut t.pair.b, &[data]);
        let local = t.bench.data(t.from_key, 0x10_0000, 8);
        let before = t.bench.lines().len();
        let opcode = c.send_inval;
        t.bench.post(&mut t.pair.a, opcode, key ^ other, &[local]);
        t.bench.settle();
        let lines = t.bench.lines().split_off(before);
        let umrs = lines.iter().filter(|line| line["event"] == "umr");
        let umrs = Vec::from_iter(umrs.map(|line| (&line["mkey"], &line["count"])));
        let cqe = t.bench.poll(&mut t.pair.b_cq).unwrap();
        if is_allowed {
            assert_eq!(t.syndrome(), 0);
            assert_eq!(cqe.opcode, t.bench.device.c.cqe.resp_send_inv);
            assert_eq!(cqe.imm, u64::from(key));
            assert_eq!(umrs, [(&key.into(), &0.into())]);
            t.write(t.from_key, key, 0x20_0000, 8);
        } else {
            assert_eq!(cqe.syndrome, s.local_prot_err);
            assert_eq!(umrs, []);
        }
        assert_eq!(t.syndrome(), s.remote_access_err);
    }
}

#[test]
fn a_message_in_the_request_itself_arrives() {
    let Some(mut t) = Ends::new() else { return };
    let data = t.bench.data(t.to_key, 0x20_0000, 16);
    t.bench.receive(&mut t.pair.b, &[data]);
    let mut inline = (t.bench.device.c.misc.inline_seg as u32 | 5)
        .to_be_bytes()
        .to_vec();
    inline.extend(b"hello");
    let opcode = t.bench.device.c.opcodes.send;
    t.bench.post(&mut t.pair.a, opcode, 0, &[inline]);
    t.bench.settle();
    assert_eq!(t.syndrome(), 0);
    assert_eq!(t.bench.poll(&mut t.pair.b_cq).unwrap().bytes, 5);
    assert_eq!(t.bench.get(t.to, 6), b"hello\0");
}

#[test]
fn inline_data_to_read_into_are_an_error() {
    let Some(mut t) = Ends::new() else { return };
    let mut inline = (t.bench.device.c.misc.inline_seg as u32 | 12)
        .to_be_bytes()
        .to_vec();
    inline.resize(16, 0);
    let segments = [
        t.bench.remote(t.to_key, 0x20_0000),
        inline,
        t.bench.data(t.from_key, 0x10_0000, 12),
    ];
    let opcode = t.bench.device.c.opcodes.rdma_read;
    t.bench.post(&mut t.pair.a, opcode, 0, &segments);
    t.bench.settle();
    assert_eq!(t.syndrome(), t.bench.device.c.syndromes.local_qp_op_err);
}

#[test]
fn atomics_change_and_tell_what_was() {
    let Some(mut t) = Ends::new() else { return };
    let c = t.bench.device.c.opcodes;
    let l = t.bench.device.l.atomic;
    t.bench.put(t.to, &7u64.to_le_bytes());
    let mut segment = vec![0; l.size];
    l.compare.set(&mut segment, 12);
    for (opcode, operand, before, after) in [
        (c.atomic_fa, 5, 7, 12),
        (c.atomic_cs, 5, 12, 5),
        // The value differs from the comparison value.
        (c.atomic_cs, 9, 5, 5),
    ] {
        l.swap_add.set(&mut segment, operand);
        let segments = [
            t.bench.remote(t.to_key, 0x20_0000),
            segment.clone(),
            t.bench.data(t.from_key, 0x10_0000, 8),
        ];
        t.bench.post(&mut t.pair.a, opcode, 0, &segments);
        t.bench.settle();
        assert_eq!(t.syndrome(), 0);
        assert_eq!(t.bench.get(t.from, 8), u64::to_le_bytes(before));
        assert_eq!(t.bench.get(t.to, 8), u64::to_le_bytes(after));
    }
    let segments = [
        t.bench.remote(t.to_key, 0x20_0000),
        segment.clone(),
        t.bench.data(t.from_key, 0x10_0000, 4),
    ];
    t.bench.post(&mut t.pair.a, c.atomic_fa, 0, &segments);
    t.bench.settle();
    assert_eq!(t.syndrome(), t.bench.device.c.syndromes.local_length_err);
}

#[test]
fn a_message_waits_for_a_receive_request() {
    let Some(mut t) = Ends::new() else { return };
    let local = t.bench.data(t.from_key, 0x10_0000, 8);
    let opcode = t.bench.device.c.opcodes.send;
    t.bench.post(&mut t.pair.a, opcode, 0, &[local]);
    assert!(!t.bench.wait(Duration::from_millis(3), |_| false));
    assert!(t.bench.poll(&mut t.pair.a_cq).is_none());
    let data = t.bench.data(t.to_key, 0x20_0000, 8);
    t.bench.receive(&mut t.pair.b, &[data]);
    let mut cqe = None;
    let pair = &mut t.pair;
    t.bench.wait(Duration::from_secs(1), |bench| {
        cqe = bench.poll(&mut pair.a_cq);
        cqe.is_some()
    });
    assert_eq!(cqe.unwrap().syndrome, 0);
    assert_eq!(t.bench.poll(&mut t.pair.b_cq).unwrap().bytes, 8);
}

#[test]
fn retries_end_if_nobody_receives_or_is_there() {
    let Some(mut t) = Ends::new() else { return };
    let s = t.bench.device.c.syndromes;
    let (cq, rc) = (t.pair.a_cq.clone(), |_: &Layouts, _: &mut [u8]| {});
    for (exists, syndrome) in [
        (true, s.rnr_retry_exc_err),
        (false, s.transport_retry_exc_err),
    ] {
        let mut a = t.bench.qp(&cq, rc);
        let b = t.bench.qp(&cq, rc);
        t.bench.connect(&a, b.qpn, 2);
        if exists {
            t.bench.connect(&b, a.qpn, 2);
        }
        let local = t.bench.data(t.from_key, 0x10_0000, 8);
        let opcode = t.bench.device.c.opcodes.send;
        t.bench.post(&mut a, opcode, 0, &[local]);
        let mut cqe = None;
        let cq = &mut t.pair.a_cq;
        t.bench.wait(Duration::from_secs(2), |bench| {
            cqe = bench.poll(cq);
            cqe.is_some()
        });
        assert_eq!(cqe.unwrap().syndrome, syndrome);
    }
}

#[test]
fn a_message_that_is_too_long_fails_at_both_ends() {
    let Some(mut t) = Ends::new() else { return };
    let data = t.bench.data(t.to_key, 0x20_0000, 7);
    t.bench.receive(&mut t.pair.b, &[data]);
    let local = t.bench.data(t.from_key, 0x10_0000, 8);
    let opcode = t.bench.device.c.opcodes.send;
    t.bench.post(&mut t.pair.a, opcode, 0, &[local]);
    t.bench.settle();
    let s = t.bench.device.c.syndromes;
    assert_eq!(t.syndrome(), s.remote_inval_req_err);
    assert_eq!(
        t.bench.poll(&mut t.pair.b_cq).unwrap().syndrome,
        s.local_length_err
    );
}

#[test]
fn what_the_other_end_does_not_allow_fails_at_both_ends() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    type Change = fn(&mut Ends) -> (u32, u64);
    let cases: [(&str, Change); 6] = [
        ("no such key", |_| (0xff_0042, 0x20_0000)),
        ("a key of an earlier use", |t| (t.to_key ^ 1, 0x20_0000)),
        ("below its begin", |t| (t.to_key, 0x20_0000 - 1)),
        ("beyond its end", |t| (t.to_key, 0x20_0000 + 2 * PAGE - 7)),
        ("no right", |t| {
            let mode = t.bench.device.c.mode.mtt;
            let entries = [t.to | 3];
            let set = |l: &Layouts, context: &mut [u8]| l.mkc.rw.set(context, 0);
            let key = t.bench.key(mode, (0x20_0000, PAGE, 12), &entries, set);
            (key, 0x20_0000)
        }),
        ("another protection domain", |t| {
            let mode = t.bench.device.c.mode.mtt;
            let entries = [t.to | 3];
            let set = |l: &Layouts, context: &mut [u8]| l.mkc.pd.set(context, 0x77);
            let key = t.bench.key(mode, (0x20_0000, PAGE, 12), &entries, set);
            (key, 0x20_0000)
        }),
    ];
    for (what, change) in cases {
        println!("{what}");
        let mut t = Ends::new().unwrap();
        let (key, va) = change(&mut t);
        t.write(t.from_key, key, va, 8);
        let syndrome = t.bench.device.c.syndromes.remote_access_err;
        t.failed_with(syndrome, true);
    }
}

#[test]
fn a_key_that_is_free_is_refused_at_both_ends() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for is_local in [false, true] {
        let mut t = Ends::new().unwrap();
        let (mode, page) = (t.bench.device.c.mode.mtt, t.from);
        let set = |l: &Layouts, context: &mut [u8]| l.mkc.free.set(context, 1);
        let start = if is_local { 0x10_0000 } else { 0x20_0000 };
        let free = t.bench.key(mode, (start, PAGE, 12), &[page | 3], set);
        let s = t.bench.device.c.syndromes;
        if is_local {
            t.write(free, t.to_key, 0x20_0000, 8);
            t.failed_with(s.local_prot_err, false);
        } else {
            t.write(t.from_key, free, 0x20_0000, 8);
            t.failed_with(s.remote_access_err, true);
        }
    }
}

#[test]
fn a_mapping_that_is_gone_is_an_error_and_a_violation() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for is_local in [false, true] {
        let mut t = Ends::new().unwrap();
        let at = if is_local { t.from } else { t.to };
        t.bench.device.memory.unmap(VRAM, 1);
        if is_local {
            t.bench.map();
            // Map all of RAM again, without this page.
            let ram = t.bench.ram.try_clone().unwrap();
            let memory = &mut t.bench.device.memory;
            memory.map(0, at, Some(ram), 0, true).unwrap();
            let ram = t.bench.ram.try_clone().unwrap();
            let rest = at + 2 * PAGE;
            let size = crate::testing::RAM - rest;
            memory.map(rest, size, Some(ram), rest, true).unwrap();
        }
        t.write(t.from_key, t.to_key, 0x20_0000, 8);
        let s = t.bench.device.c.syndromes;
        let syndrome = if is_local {
            s.local_prot_err
        } else {
            s.remote_op_err
        };
        assert_eq!(t.syndrome(), syndrome);
        assert_eq!(t.bench.device.witness.totals.violations, 1);
        let lines = t.bench.lines();
        let to = lines.iter().rfind(|line| line["event"] == "dma").unwrap();
        assert_eq!(to["to"], format!("Unmapped({at})"));
    }
}

#[test]
fn without_bus_mastering_nothing_moves() {
    let Some(mut t) = Ends::new() else { return };
    t.bench.bus_master(false);
    t.write(t.from_key, t.to_key, 0x20_0000, 8);
    assert_eq!(t.bench.get(t.to, 8), [0; 8]);
    assert!(t.bench.poll(&mut t.pair.a_cq).is_none());
    t.bench.bus_master(true);
    assert!(t.bench.device.witness.totals.violations > 0);
    let pair = t.pair.a.clone();
    t.bench.ring(&pair);
    t.bench.settle();
    assert_eq!(t.syndrome(), 0);
}

/// The kernel switches bus mastering off before it resets a device, and the driver may not know.
#[test]
fn a_reset_excuses_what_was_busy_until_then() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for end in ["end", "reset", "function level reset"] {
        let mut t = Ends::new().unwrap();
        t.bench.bus_master(false);
        t.write(t.from_key, t.to_key, 0x20_0000, 8);
        match end {
            "end" => {}
            "reset" => t.bench.device.reset(),
            _ => t.bench.function_reset(),
        }
        let witness = &mut t.bench.device.witness;
        witness.end();
        assert_eq!(witness.totals.violations > 0, end == "end", "{end}");
    }
}

#[test]
fn a_receive_request_that_a_message_has_begun_is_flushed() {
    let Some(mut t) = Ends::new() else { return };
    t.begin_message();
    let b = t.pair.b.clone();
    t.bench.modify("2ERR_QP", &b, &[]).unwrap();
    t.bench.settle();
    let cqe = t.bench.poll(&mut t.pair.b_cq).expect("a flush");
    assert_eq!(cqe.syndrome, t.bench.device.c.syndromes.wr_flush_err);
    assert!(t.bench.poll(&mut t.pair.b_cq).is_none());
}

/// The receiver has begun the request, and no sender completes it.
#[test]
fn a_receive_request_is_flushed_if_its_sender_has_gone() {
    for how in ["2RST_QP", "DESTROY_QP", "a request that fails"] {
        println!("{how}");
        let Some(mut t) = Ends::new() else { return };
        t.begin_message();
        let (a, b) = (t.pair.a.clone(), t.pair.b.clone());
        match how {
            "2RST_QP" => t.bench.modify(how, &a, &[]).unwrap(),
            "DESTROY_QP" => t.bench.destroy(&a),
            _ => {
                let index = mkey_to_idx(t.from_key);
                t.bench.device.mkeys.remove(&index).unwrap();
                t.bench.settle();
                assert_eq!(t.syndrome(), t.bench.device.c.syndromes.local_prot_err);
            }
        }
        t.bench.settle();
        assert!(t.bench.poll(&mut t.pair.b_cq).is_none());
        t.bench.modify("2ERR_QP", &b, &[]).unwrap();
        t.bench.settle();
        let cqe = t.bench.poll(&mut t.pair.b_cq).expect("a flush");
        assert_eq!(cqe.syndrome, t.bench.device.c.syndromes.wr_flush_err);
        assert_eq!(cqe.counter, 0);
        assert!(t.bench.poll(&mut t.pair.b_cq).is_none());
    }
}

/// The buffers belong to the driver again once it has reset the receiver.
#[test]
fn a_message_does_not_go_on_if_its_receiver_was_reset() {
    for was_in_error in [false, true] {
        let Some(mut t) = Ends::new() else { return };
        t.begin_message();
        let mut b = t.pair.b.clone();
        if was_in_error {
            t.bench.modify("2ERR_QP", &b, &[]).unwrap();
            // Let it flush its receive request.
            while t.bench.poll(&mut t.pair.b_cq).is_none() {
                t.bench.device.run().unwrap();
            }
        }
        t.bench.modify("2RST_QP", &b, &[]).unwrap();
        t.bench.connect(&b, t.pair.a.qpn, 7);
        (b.posted, b.received) = (0, 0);
        let data = t.bench.data(t.to_key, 0x20_0000, 2 * PAGE);
        t.bench.receive(&mut b, &[data]);
        let (mut cqe, cq) = (None, &mut t.pair.a_cq);
        t.bench.wait(Duration::from_secs(5), |bench| {
            cqe = bench.poll(cq);
            cqe.is_some()
        });
        let gone = t.bench.device.c.syndromes.transport_retry_exc_err;
        assert_eq!(cqe.unwrap().syndrome, gone);
        assert_eq!(t.bench.get(t.to + PAGE, 8), [0; 8]);
        assert!(t.bench.poll(&mut t.pair.b_cq).is_none());
        // The new receive request is untouched.
        assert_eq!(t.bench.device.qps[&b.qpn].received, 0);
    }
}

/// A write with immediate data takes a receive request before it is refused.
#[test]
fn a_receive_request_is_flushed_if_its_write_is_refused() {
    let Some(mut t) = Ends::new() else { return };
    let data = t.bench.data(t.to_key, 0x20_0000, 8);
    t.bench.receive(&mut t.pair.b, &[data]);
    let segments = [
        t.bench.remote(t.to_key ^ 1, 0x20_0000),
        t.bench.data(t.from_key, 0x10_0000, 8),
    ];
    let c = t.bench.device.c.opcodes;
    t.bench.post(&mut t.pair.a, c.rdma_write_imm, 0, &segments);
    t.bench.settle();
    let s = t.bench.device.c.syndromes;
    assert_eq!(t.syndrome(), s.remote_access_err);
    let cqe = t.bench.poll(&mut t.pair.b_cq).expect("a flush");
    assert_eq!((cqe.syndrome, cqe.counter), (s.wr_flush_err, 0));
}

#[test]
fn a_request_that_makes_no_sense_ends_the_queue() {
    let Some(mut t) = Ends::new() else { return };
    t.bench.post(&mut t.pair.a, 0x7f, 0, &[]);
    t.bench.settle();
    let syndrome = t.bench.device.c.syndromes.local_qp_op_err;
    t.failed_with(syndrome, false);
}

#[test]
fn a_queue_pair_allows_what_it_was_told_to() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for right in 0..3 {
        let mut t = Ends::new().unwrap();
        let (q, c) = (t.bench.device.l.qpc, t.bench.device.c.opcodes);
        let field = [q.rre, q.rwe, q.rae][right];
        let peer = t.bench.device.qps.get_mut(&t.pair.b.qpn).unwrap();
        field.set(&mut peer.context, 0);
        let remote = t.bench.remote(t.to_key, 0x20_0000);
        let atomic = vec![0; t.bench.device.l.atomic.size];
        let local = t.bench.data(t.from_key, 0x10_0000, 8);
        let all = [
            (c.rdma_read, vec![remote.clone(), local.clone()]),
            (c.rdma_write, vec![remote.clone(), local.clone()]),
            (c.atomic_fa, vec![remote, atomic, local]),
        ];
        // Post the other two first, as the one that fails comes last.
        for other in [(right + 1) % 3, (right + 2) % 3, right] {
            let (opcode, segments) = &all[other];
            t.bench.post(&mut t.pair.a, *opcode, 0, segments);
            t.bench.settle();
            let denied = t.bench.device.c.syndromes.remote_access_err;
            assert_eq!(t.syndrome(), if other == right { denied } else { 0 });
        }
    }
}

#[test]
fn only_queues_of_the_driver_may_name_the_reserved_key() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for (sender, receiver) in [(false, true), (true, false), (true, true)] {
        let mut t = Ends::new().unwrap();
        let (key, rlky) = (t.bench.device.reserved_lkey, t.bench.device.l.qpc.rlky);
        for (qpn, is_allowed) in [(t.pair.a.qpn, sender), (t.pair.b.qpn, receiver)] {
            let qp = t.bench.device.qps.get_mut(&qpn).unwrap();
            rlky.set(&mut qp.context, u64::from(is_allowed));
        }
        let before = t.bench.get(t.to, 8);
        let (from, to) = (t.bench.data(key, t.from, 8), t.bench.data(key, t.to, 8));
        t.bench.receive(&mut t.pair.b, &[to]);
        let opcode = t.bench.device.c.opcodes.send;
        t.bench.post(&mut t.pair.a, opcode, 0, &[from]);
        t.bench.settle();
        let s = t.bench.device.c.syndromes;
        let (syndrome, found) = match (sender, receiver) {
            (true, true) => (0, t.bench.get(t.from, 8)),
            (true, false) => (s.remote_op_err, before),
            (false, _) => (s.local_prot_err, before),
        };
        assert_eq!(t.syndrome(), syndrome);
        assert_eq!(t.bench.get(t.to, 8), found);
    }
}

#[test]
fn a_receive_request_that_makes_no_sense_completes() {
    let Some(mut t) = Ends::new() else { return };
    let mut inline = (t.bench.device.c.misc.inline_seg as u32 | 12)
        .to_be_bytes()
        .to_vec();
    inline.resize(16, 0);
    t.bench.receive(&mut t.pair.b, &[inline]);
    let local = t.bench.data(t.from_key, 0x10_0000, 8);
    let opcode = t.bench.device.c.opcodes.send;
    t.bench.post(&mut t.pair.a, opcode, 0, &[local]);
    t.bench.settle();
    let s = t.bench.device.c.syndromes;
    assert_eq!(t.syndrome(), s.remote_inval_req_err);
    let cqe = t.bench.poll(&mut t.pair.b_cq).unwrap();
    assert_eq!(cqe.syndrome, s.local_length_err);
}

#[test]
fn a_shared_queue_whose_list_leads_out_of_it_ends_who_uses_it() {
    let Some(mut t) = Ends::new() else { return };
    let (at, doorbell) = (t.bench.alloc(PAGE), t.bench.alloc(PAGE));
    let l = t.bench.device.l.srq_next;
    let mut wqe = vec![0; l.size];
    // Write the second request of two.
    l.next_wqe_index.set(&mut wqe, 2);
    wqe.extend(t.bench.data(t.to_key, 0x20_0000, 8));
    t.bench.put(at, &wqe);
    t.bench.put(doorbell, &2u32.to_be_bytes());
    let cqs = [&t.pair.a_cq, &t.pair.b_cq];
    let (mut a, b, srqn) = t.bench.shared(cqs, (at, doorbell), 1, 2);
    let opcode = t.bench.device.c.opcodes.send;
    for _ in 0..2 {
        let local = t.bench.data(t.from_key, 0x10_0000, 8);
        t.bench.post(&mut a, opcode, 0, &[local]);
        t.bench.settle();
    }
    assert_eq!(t.syndrome(), 0);
    assert_eq!(t.bench.poll(&mut t.pair.b_cq).unwrap().bytes, 8);
    // Fewer requests than the limit are left.
    let kind = t.bench.device.c.events.srq_rq_limit;
    let event = t.bench.event_of(kind).unwrap();
    assert_eq!(t.bench.device.l.eqe.qp_srq_n.get(&event), srqn);
    let syndrome = t.bench.device.c.syndromes.remote_op_err;
    assert_eq!(t.syndrome(), syndrome);
    let state = t.bench.device.qps[&b.qpn].state;
    assert_eq!(state, crate::qp::State::Err);
}

#[test]
fn a_request_that_is_longer_than_its_queue_ends_it() {
    let Some(mut t) = Ends::new() else { return };
    // The memory after the queue holds no requests, whatever the counter's value.
    let small = t.bench.device.qps.get_mut(&t.pair.a.qpn).unwrap();
    small.send.as_mut().unwrap().log_size = 0;
    let opcode = t.bench.device.c.opcodes.nop;
    t.bench.post(&mut t.pair.a, opcode, 0, &[vec![0; 112]]);
    t.bench.settle();
    let syndrome = t.bench.device.c.syndromes.local_qp_op_err;
    assert_eq!(t.syndrome(), syndrome);
}
