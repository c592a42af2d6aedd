//! Event queues and completion queues: when they interrupt, and what happens if the driver
//! does not read them.

use crate::device::command::Status;
use crate::device::{EQ_UPDATE, LOG_BLUE_FLAME, Scheme};
use crate::testing::{Pair, TestQp, Testbed};

fn nop(bench: &mut Testbed, qp: &mut TestQp) {
    let opcode = bench.device.c.opcodes.nop;
    bench.post(qp, opcode, 0, &[]);
    bench.settle();
}

#[test]
fn an_armed_queue_interrupts_once() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mut pair = Pair::new(&mut bench);
    // Neither queue is armed: a completion, and no event.
    nop(&mut bench, &mut pair.a);
    assert!(bench.poll(&mut pair.a_cq).is_some());
    assert_eq!((bench.event(), bench.interrupts()), (None, 0));
    // Only the completion queue is armed: an event, and no interrupt.
    bench.arm_cq(&pair.a_cq, false);
    nop(&mut bench, &mut pair.a);
    nop(&mut bench, &mut pair.a);
    assert_eq!(bench.interrupts(), 0);
    // Arming the event queue with an unread event interrupts at once, and leaves it unarmed.
    bench.arm_eq();
    assert_eq!(bench.interrupts(), 1);
    let event = bench.event_of(bench.device.c.events.comp).unwrap();
    assert_eq!(
        bench.device.l.eqe.comp_cqn.get(&event) as u32,
        pair.a_cq.cqn
    );
    // A second completion causes no second event.
    assert_eq!(bench.event(), None);
    bench.arm_eq();
    assert_eq!(bench.interrupts(), 1);
    // Arming the completion queue with an unread completion causes an event at once.
    bench.arm_cq(&pair.a_cq, false);
    assert!(bench.event().is_some());
    assert_eq!(bench.interrupts(), 2);
    // There is no further event until the queue is armed again.
    while bench.poll(&mut pair.a_cq).is_some() {}
    bench.arm_cq(&pair.a_cq, false);
    nop(&mut bench, &mut pair.a);
    assert!(bench.event().is_some());
    assert_eq!(bench.interrupts(), 2);
}

#[test]
fn a_queue_armed_for_solicited_completions_ignores_others() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mut pair = Pair::new(&mut bench);
    bench.arm_cq(&pair.a_cq, true);
    nop(&mut bench, &mut pair.a);
    assert_eq!(bench.event(), None);
    // An error counts as solicited.
    bench.post(&mut pair.a, 0x7f, 0, &[]);
    bench.settle();
    assert!(bench.event().is_some());
}

#[test]
fn a_completion_queue_that_overruns_ends_with_an_event() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mut cq = bench.cq(1);
    let mut qp = bench.qp(&cq, |_, _| {});
    bench.connect(&qp, 0, 7);
    for _ in 0..2 {
        nop(&mut bench, &mut qp);
    }
    assert_eq!(bench.event(), None);
    nop(&mut bench, &mut qp);
    let event = bench.event_of(bench.device.c.events.cq_error).unwrap();
    let l = &bench.device.l.eqe;
    assert_eq!(l.cq_err_cqn.get(&event) as u32, cq.cqn);
    assert_eq!(l.cq_err_syndrome.get(&event), 1);
    assert!(bench.poll(&mut cq).is_some());
    assert!(bench.poll(&mut cq).is_some());
    // The queue stays broken, even with another buffer.
    nop(&mut bench, &mut qp);
    assert_eq!((bench.poll(&mut cq), bench.event()), (None, None));
    let resized = bench.resize(&cq, 3, 0);
    assert_eq!(resized.err(), Some(Status::Outstanding));
    assert_eq!(bench.device.witness.totals.violations, 0);
}

#[test]
fn a_completion_queue_goes_round() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mut cq = bench.cq(0);
    let mut qp = bench.qp(&cq, |_, _| {});
    bench.connect(&qp, 0, 7);
    for n in 0..40 {
        nop(&mut bench, &mut qp);
        assert_eq!(bench.poll(&mut cq).map(|cqe| cqe.counter), Some(n));
        assert_eq!(bench.poll(&mut cq), None);
    }
}

#[test]
fn an_event_queue_that_overruns_is_a_violation() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mut pair = Pair::new(&mut bench);
    for _ in 0..129 {
        bench.arm_cq(&pair.a_cq, false);
        nop(&mut bench, &mut pair.a);
        bench.poll(&mut pair.a_cq).unwrap();
    }
    assert_eq!(bench.device.witness.totals.violations, 1);
}

#[test]
fn a_doorbell_record_that_is_gone_is_a_violation() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let cq = bench.cq(2);
    let mut qp = bench.qp(&cq, |_, _| {});
    bench.connect(&qp, 0, 7);
    let cqn = cq.cqn;
    bench.device.cqs.get_mut(&cqn).unwrap().doorbell = u64::MAX - 1;
    nop(&mut bench, &mut qp);
    assert_eq!(bench.device.witness.totals.violations, 1);
    bench.device.qps.get_mut(&qp.qpn).unwrap().doorbell = 1 << 40;
    bench.ring(&qp);
    assert_eq!(bench.device.witness.totals.violations, 2);
}

#[test]
fn only_doorbells_ring() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mut pair = Pair::new(&mut bench);
    let uar = bench.device.c.uar;
    let (half, full) = (1 << (LOG_BLUE_FLAME - 1), 1 << LOG_BLUE_FLAME);
    // mlx5 uses the halves of a BlueFlame register in turn.
    for right in [0, half, full, (uar.blue_flames - 1) * full + half] {
        // The doorbell of this request is for a queue pair that is not there.
        let mut nobody = TestQp {
            qpn: 0,
            ..pair.a.clone()
        };
        let opcode = bench.device.c.opcodes.nop;
        bench.post(&mut nobody, opcode, 0, &[]);
        pair.a.posted = nobody.posted;
        let mut bytes = [0; 8];
        bytes[4..].copy_from_slice(&(pair.a.qpn << 8).to_be_bytes());
        for at in [
            uar.blue_flame + 8,
            uar.blue_flame + half / 2,
            uar.blue_flame - half,
        ] {
            bench.doorbell(at, &bytes);
            bench.settle();
            assert_eq!(bench.poll(&mut pair.a_cq), None, "{at:#x}");
        }
        bench.doorbell(uar.blue_flame + right, &bytes);
        bench.settle();
        assert!(bench.poll(&mut pair.a_cq).is_some(), "{right:#x}");
    }
    // The second doorbell of an event queue does not arm it.
    let value = bench.eqn << 24;
    bench.doorbell(EQ_UPDATE, &value.to_be_bytes());
    bench.arm_cq(&pair.a_cq, false);
    nop(&mut bench, &mut pair.a);
    assert_eq!(bench.interrupts(), 0);
}
