//! Page faults: the events, and the effects of the driver's answers.

use std::time::Duration;

use crate::device::Scheme;
use crate::layout::{Layouts, mkey_to_idx, mkey_variant};
use crate::qp::State;
use crate::testing::{LID, LOW, PAGE, Pair, Testbed};

/// Two pages at each end. The second page of one end is absent.
struct Ends {
    bench: Testbed,
    pair: Pair,
    pages: [u64; 4],
    keys: [u32; 2],
}

/// Start address of each end's key.
const START: [u64; 2] = [0x10_0000, 0x20_0000];
/// The end whose second page is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absent {
    Requester,
    Responder,
    Receiver,
}

impl Ends {
    fn new(scheme: Scheme, absent: Absent) -> Option<Self> {
        let mut bench = Testbed::new(scheme)?;
        let pair = Pair::new(&mut bench);
        let at = bench.alloc(4 * PAGE);
        let pages = [0, 1, 2, 3].map(|n| at + n * PAGE);
        bench.put(at, &[0xaa; 2 * PAGE as usize]);
        let mode = bench.device.c.mode.mtt;
        let keys = [0, 1].map(|end| {
            let is_absent = (end == 0) == (absent == Absent::Requester);
            let second = if is_absent { 0 } else { pages[2 * end + 1] | 3 };
            let entries = [pages[2 * end] | 3, second];
            bench.key(mode, (START[end], 2 * PAGE, 12), &entries, |_, _| {})
        });
        let mut ends = Self {
            bench,
            pair,
            pages,
            keys,
        };
        let local = ends.bench.data(ends.keys[0], START[0], 2 * PAGE);
        let c = ends.bench.device.c.opcodes;
        if absent == Absent::Receiver {
            let data = ends.bench.data(ends.keys[1], START[1], 2 * PAGE);
            ends.bench.receive(&mut ends.pair.b, &[data]);
            ends.bench.post(&mut ends.pair.a, c.send, 0, &[local]);
        } else {
            let remote = ends.bench.remote(ends.keys[1], START[1]);
            ends.bench
                .post(&mut ends.pair.a, c.rdma_write, 0, &[remote, local]);
        }
        ends.bench.settle();
        Some(ends)
    }

    /// Makes the absent page present.
    fn page_in(&mut self, absent: Absent) {
        let end = usize::from(absent != Absent::Requester);
        let mkey = self
            .bench
            .device
            .mkeys
            .get_mut(&mkey_to_idx(self.keys[end]))
            .unwrap();
        mkey.entries
            .write(8, &(self.pages[2 * end + 1] | 3).to_be_bytes());
    }
}

/// The event's subtype and token, and its other fields by name.
fn told(t: &mut Ends) -> (u64, u64, Vec<(&'static str, u64)>) {
    let event = t.bench.event_of(t.bench.device.c.events.page_fault);
    let event = event.expect("a page fault");
    assert_eq!(t.bench.event_of(t.bench.device.c.events.page_fault), None);
    let l = &t.bench.device.l.eqe;
    let pf = &t.bench.device.c.pfault;
    let get = |field: crate::layout::Field| field.get(&event);
    let sub = get(l.sub_type);
    let of = if sub == pf.memory {
        vec![
            ("mkey", get(l.memory_mkey)),
            ("va", get(l.memory_va)),
            ("pages", get(l.memory_pages) >> 12),
        ]
    } else if sub == pf.rdma {
        vec![
            ("committed", get(l.rdma_bytes_committed)),
            ("key", get(l.rdma_r_key)),
            ("va", get(l.rdma_va)),
            ("packet", get(l.rdma_packet_length)),
            ("op", get(l.rdma_op_len)),
        ]
    } else {
        vec![
            ("committed", get(l.wqe_bytes_committed)),
            ("kind", get(l.wqe_pftype_wq) >> 24),
            ("wq", get(l.wqe_pftype_wq) & 0xff_ffff),
            ("index", get(l.wqe_index)),
        ]
    };
    (sub, t.bench.token(&event), of)
}

fn expected(t: &Ends, absent: Absent) -> (u64, Vec<(&'static str, u64)>) {
    let pf = &t.bench.device.c.pfault;
    let end = usize::from(absent != Absent::Requester);
    if t.bench.device.options.scheme == Scheme::Memory {
        let of = vec![
            ("mkey", u64::from(t.keys[end])),
            ("va", START[end] + PAGE),
            ("pages", 1),
        ];
        return (pf.memory, of);
    }
    match absent {
        Absent::Requester => (
            pf.wqe,
            vec![
                ("committed", PAGE),
                ("kind", pf.requester_send),
                ("wq", u64::from(t.pair.a.qpn)),
                ("index", 0),
            ],
        ),
        Absent::Receiver => (
            pf.wqe,
            vec![
                ("committed", PAGE),
                ("kind", pf.responder),
                ("wq", u64::from(t.pair.b.qpn)),
                ("index", 0),
            ],
        ),
        Absent::Responder => (
            pf.rdma,
            vec![
                ("committed", PAGE),
                ("key", u64::from(t.keys[1])),
                ("va", START[1]),
                ("packet", PAGE),
                ("op", 2 * PAGE),
            ],
        ),
    }
}

const SCHEMES: [Scheme; 2] = [Scheme::Transport, Scheme::Memory];
const ALL: [Absent; 3] = [Absent::Requester, Absent::Responder, Absent::Receiver];

#[test]
fn the_driver_is_asked_and_its_answer_lets_the_rest_arrive() {
    for (scheme, absent) in SCHEMES.iter().flat_map(|s| ALL.map(|a| (*s, a))) {
        println!("{scheme:?} {absent:?}");
        let Some(mut t) = Ends::new(scheme, absent) else {
            return;
        };
        let (sub, token, of) = told(&mut t);
        assert_eq!((sub, of), expected(&t, absent));
        // The data before the absent page has arrived, and nothing has completed yet.
        assert_eq!(
            t.bench.get(t.pages[2], PAGE as usize),
            [0xaa; PAGE as usize]
        );
        assert_eq!(t.bench.get(t.pages[3], PAGE as usize), [0; PAGE as usize]);
        assert!(t.bench.poll(&mut t.pair.a_cq).is_none());
        // An answer without the page leads to another page fault.
        t.bench.resume(token, false).unwrap();
        let (_, next, _) = told(&mut t);
        assert_ne!(next, token);
        t.page_in(absent);
        t.bench.resume(next, false).unwrap();
        assert_eq!(t.bench.poll(&mut t.pair.a_cq).unwrap().syndrome, 0);
        // The driver causes its latency, so it is not direct.
        let lines = t.bench.lines();
        let done = lines.iter().rfind(|line| line["event"] == "done").unwrap();
        assert_eq!(done["direct"], false);
        assert_eq!(
            t.bench.get(t.pages[3], PAGE as usize),
            [0xaa; PAGE as usize]
        );
        let received = t.bench.poll(&mut t.pair.b_cq).map(|cqe| cqe.bytes);
        assert_eq!(received, (absent == Absent::Receiver).then_some(2 * PAGE));
        let totals = &t.bench.device.witness.totals;
        assert_eq!((totals.faults, totals.violations), (2, 0));
        let lines = t.bench.lines();
        let resumes = lines.iter().filter(|line| line["event"] == "resume");
        assert_eq!(resumes.count(), 2);
    }
}

#[test]
fn an_answer_that_there_is_no_page_ends_the_request() {
    for (scheme, absent) in SCHEMES.iter().flat_map(|s| ALL.map(|a| (*s, a))) {
        println!("{scheme:?} {absent:?}");
        let Some(mut t) = Ends::new(scheme, absent) else {
            return;
        };
        let (_, token, _) = told(&mut t);
        t.bench.resume(token, true).unwrap();
        let s = t.bench.device.c.syndromes;
        let (ours, theirs) = match absent {
            Absent::Requester => (s.local_prot_err, None),
            Absent::Responder => (s.remote_access_err, None),
            Absent::Receiver => (s.remote_op_err, Some(s.local_prot_err)),
        };
        assert_eq!(t.bench.poll(&mut t.pair.a_cq).unwrap().syndrome, ours);
        let received = t.bench.poll(&mut t.pair.b_cq).map(|cqe| cqe.syndrome);
        assert_eq!(received, theirs);
        assert_eq!(t.bench.get(t.pages[3], PAGE as usize), [0; PAGE as usize]);
    }
}

#[test]
fn an_answer_to_no_question_is_refused() {
    let Some(mut t) = Ends::new(Scheme::Transport, Absent::Requester) else {
        return;
    };
    let answer = t.bench.resume(0xff_ff00, false);
    assert_eq!(answer, Err(crate::device::command::Status::BadParam));
}

#[test]
fn a_page_fault_is_answered_once() {
    let Some(mut t) = Ends::new(Scheme::Transport, Absent::Receiver) else {
        return;
    };
    let (_, token, _) = told(&mut t);
    let violations = |t: &Ends| t.bench.device.witness.totals.violations;
    t.bench.resume(token, false).unwrap();
    assert_eq!(violations(&t), 0);
    let again = t.bench.resume(token, false);
    assert_eq!(again, Err(crate::device::command::Status::BadParam));
    assert_eq!(violations(&t), 1);
}

/// The driver does not answer for a receiver that it does not find any more.
#[test]
fn a_sender_does_not_wait_for_a_receiver_that_has_gone() {
    for name in ["2RST_QP", "DESTROY_QP"] {
        for is_answered in [false, true] {
            let Some(mut t) = Ends::new(Scheme::Transport, Absent::Receiver) else {
                return;
            };
            let (_, token, _) = told(&mut t);
            let b = t.pair.b.clone();
            if name == "2RST_QP" {
                t.bench.modify(name, &b, &[]).unwrap();
            } else {
                t.bench.destroy(&b);
            }
            // An answer that comes late touches neither end.
            if is_answered {
                t.bench.resume(token, true).unwrap();
            }
            let (mut cqe, cq) = (None, &mut t.pair.a_cq);
            t.bench.wait(Duration::from_secs(5), |bench| {
                cqe = bench.poll(cq);
                cqe.is_some()
            });
            let gone = t.bench.device.c.syndromes.transport_retry_exc_err;
            assert_eq!(cqe.expect(name).syndrome, gone);
            assert!(t.bench.poll(&mut t.pair.b_cq).is_none());
            let state = t.bench.device.qps.get(&b.qpn).map(|qp| qp.state);
            assert!(state.is_none_or(|state| state == State::Reset));
        }
    }
}

#[test]
fn the_key_that_is_never_there_faults() {
    let Some(mut t) = Ends::new(Scheme::Memory, Absent::Requester) else {
        return;
    };
    let (_, token, _) = told(&mut t);
    t.page_in(Absent::Requester);
    t.bench.resume(token, false).unwrap();
    assert_ne!(mkey_variant(t.keys[0]), 0);
    assert_eq!(mkey_variant(t.keys[0]), LOW);
    let null = t.bench.device.null_mkey;
    let segments = [
        t.bench.remote(null, 0x5000),
        t.bench.data(t.keys[0], START[0], 8),
    ];
    let opcode = t.bench.device.c.opcodes.rdma_write;
    t.bench.post(&mut t.pair.a, opcode, 0, &segments);
    t.bench.settle();
    let (_, _, of) = told(&mut t);
    assert_eq!(
        of,
        [("mkey", u64::from(null)), ("va", 0x5000), ("pages", 1)]
    );
}

#[test]
fn a_datagram_that_waits_for_a_page_says_how_much_is_missing() {
    let Some(mut bench) = Testbed::new(Scheme::Memory) else {
        return;
    };
    let cq = bench.cq(4);
    let ud = bench.device.c.qp_st.ud;
    let service = |l: &Layouts, context: &mut [u8]| l.qpc.st.set(context, ud);
    let (mut a, mut b) = (bench.qp(&cq, service), bench.qp(&cq, service));
    bench.connect(&a, 0, 7);
    bench.connect(&b, 0, 7);
    let page = bench.alloc(PAGE);
    let mode = bench.device.c.mode.mtt;
    let key = bench.mtt(0, &[page]);
    let absent = bench.key(mode, (0, PAGE, 12), &[0], |_, _| {});
    let data = bench.data(absent, 0, PAGE);
    bench.receive(&mut b, &[data]);
    let mut address = vec![0; bench.device.l.base_av.size];
    let to = bench.device.l.base_av.dqp_dct;
    to.set(&mut address, u64::from(b.qpn));
    let lid = bench.device.l.base_av.rlid;
    lid.set(&mut address, u64::from(LID));
    let opcode = bench.device.c.opcodes.send;
    let data = bench.data(key, 0, 8);
    bench.post(&mut a, opcode, 0, &[address, data]);
    bench.settle();
    let event = bench.event_of(bench.device.c.events.page_fault).unwrap();
    let l = &bench.device.l.eqe;
    assert_eq!(l.memory_mkey.get(&event), u64::from(absent));
    assert_eq!(l.memory_pages.get(&event) >> 12, 1);
}
