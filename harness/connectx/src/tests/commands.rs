//! The command ring, refused commands, and the state after a reset.

use std::fs::File;

use crate::device::Scheme;
use crate::device::command::Status;
use crate::layout::Layouts;
use crate::testing::{PAGE, Pair, Testbed};

/// A command ring in host memory: its address, and its mailboxes.
struct Ring {
    at: u64,
    boxes: Vec<u64>,
}

impl Ring {
    fn new(bench: &mut Testbed, boxes: usize) -> Self {
        let at = bench.alloc(PAGE);
        let l = bench.device.l.init_seg;
        let bytes = [(at >> 32) as u32, at as u32]
            .map(u32::to_be_bytes)
            .concat();
        let register = l.cmdq_addr_h.byte() as u64;
        bench.device.write(register, &bytes);
        let boxes = (0..boxes).map(|_| bench.alloc(PAGE)).collect();
        Self { at, boxes }
    }

    /// Links the mailboxes `which` into a chain.
    fn chain(&self, bench: &Testbed, which: &[usize]) {
        let l = bench.device.l.block;
        for (number, pair) in which
            .windows(2)
            .chain([&[which[which.len() - 1], 99][..]])
            .enumerate()
        {
            let mut block = bench.get(self.boxes[pair[0]], l.size);
            l.next
                .set(&mut block, self.boxes.get(pair[1]).copied().unwrap_or(0));
            l.block_num.set(&mut block, number as u64);
            bench.put(self.boxes[pair[0]], &block);
        }
    }

    /// Puts a command in slot 3, rings the doorbell, and returns the entry.
    fn run(&self, bench: &mut Testbed, fill: impl FnOnce(&Layouts, &mut [u8])) -> Vec<u8> {
        let l = bench.device.l.cmd;
        let mut entry = vec![0; l.size];
        l.status_own.set(&mut entry, 1);
        fill(&bench.device.l, &mut entry);
        let at = self.at + 3 * 64;
        bench.put(at, &entry);
        let register = bench.device.l.init_seg.cmd_dbell.byte() as u64;
        bench.device.write(register, &8u32.to_be_bytes());
        bench.get(at, l.size)
    }
}

#[test]
fn a_command_goes_through_the_ring_and_its_mailboxes() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let ring = Ring::new(&mut bench, 10);
    ring.chain(&bench, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let opcode = bench.opcodes["QUERY_HCA_CAP"];
    let len = bench.device.sizes[&opcode].1;
    let boxes = ring.boxes.clone();
    let entry = ring.run(&mut bench, |l, entry| {
        l.cmd.inlen.set(entry, 16);
        l.cmd.outlen.set(entry, len as u64);
        l.cmd.out_ptr.set(entry, boxes[0]);
        let input = &mut entry[l.cmd.input.byte()..];
        l.mbox_in.opcode.set(input, opcode);
        l.mbox_in.op_mod.set(input, 1);
    });
    let l = &bench.device.l;
    assert_eq!(l.cmd.status_own.get(&entry), 0);
    assert_eq!(l.mbox_out.status.get(&entry[l.cmd.out.byte()..]), 0);
    let answer: Vec<u8> = boxes[..9]
        .iter()
        .flat_map(|at| bench.get(*at, 512))
        .collect();
    let at = l.query_hca_cap_out.capability.byte() - 16;
    assert_eq!(l.cap.log_max_qp.get(&answer[at..]), 18);
    // There is an event queue, so the device sends an event.
    let event = bench.event_of(bench.device.c.events.cmd).unwrap();
    assert_eq!(bench.device.l.eqe.cmd_vector.get(&event), 8);
    let lines = bench.lines();
    let last = lines
        .iter()
        .rfind(|line| line["event"] == "command")
        .unwrap();
    assert_eq!(
        (&last["name"], &last["status"]),
        (&"QUERY_HCA_CAP".into(), &0.into())
    );
}

#[test]
fn what_is_not_well_formed_is_handed_back_so() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let ring = Ring::new(&mut bench, 3);
    // A loop.
    ring.chain(&bench, &[0, 1, 0]);
    let first = ring.boxes[0];
    type Fill = Box<dyn Fn(&Layouts, &mut [u8])>;
    let set = move |inlen: u64, input: u64, outlen: u64, out: u64| -> Fill {
        Box::new(move |l: &Layouts, entry: &mut [u8]| {
            l.cmd.inlen.set(entry, inlen);
            l.cmd.in_ptr.set(entry, input);
            l.cmd.outlen.set(entry, outlen);
            l.cmd.out_ptr.set(entry, out);
        })
    };
    for (what, fill, status, violations) in [
        ("nothing", set(0, 0, 0, 0), 0, 0),
        ("in a circle", set(4096, first, 16, 0), 3, 0),
        ("out a circle", set(16, 0, 4096, first), 3, 0),
        ("out misaligned", set(16, 0, 4096, first + 8), 4, 0),
        ("in misaligned", set(4096, first + 8, 16, 0), 5, 0),
        ("too long", set(1 << 31, first, 16, 0), 7, 0),
        (
            "the answer too long",
            set(16, 0, u64::from(u32::MAX), first),
            8,
            0,
        ),
        ("nowhere", set(4096, !511, 16, 0), 6, 1),
        ("the answer nowhere", set(16, 0, 4096, !511), 6, 1),
    ] {
        println!("{what}");
        let before = bench.device.witness.totals.violations;
        let entry = ring.run(&mut bench, fill);
        assert_eq!(entry[bench.device.l.cmd.status_own.byte()], status << 1);
        assert_eq!(bench.device.witness.totals.violations - before, violations);
        let kind = bench.device.c.events.cmd;
        assert!(bench.event_of(kind).is_some());
    }
}

#[test]
fn commands_that_are_too_short_or_too_large_are_refused() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let opcode = bench.opcodes["CREATE_MKEY"];
    let (least_in, least_out) = bench.device.sizes[&opcode];
    let mut input = vec![0; least_in];
    bench.device.l.mbox_in.opcode.set(&mut input, opcode);
    let device = &mut bench.device;
    let mut out = vec![0; least_out];
    assert_eq!(
        device.execute(&input[..least_in - 1], &mut out),
        Err(Status::BadLength)
    );
    let mut short = vec![0; least_out - 1];
    assert_eq!(
        device.execute(&input, &mut short),
        Err(Status::BadOutLength)
    );
    assert_eq!(device.execute(&input, &mut out), Ok(()));
    // The queue needs more pages than the list has.
    let set = |l: &Layouts, input: &mut [u8]| l.create_eq_in.log_eq_size.set(input, 10);
    assert_eq!(
        bench.command("CREATE_EQ", &[0], set),
        Err(Status::BadLength)
    );
    let set = |l: &Layouts, input: &mut [u8]| l.create_eq_in.log_eq_size.set(input, 23);
    assert_eq!(bench.command("CREATE_EQ", &[0], set), Err(Status::BadParam));
    let give = bench.device.c.pages.give;
    let set = |l: &Layouts, input: &mut [u8]| {
        l.mbox_in.op_mod.set(input, give);
        l.manage_pages_in.input_num_entries.set(input, 1 << 31);
    };
    assert_eq!(
        bench.command("MANAGE_PAGES", &[1, 2], set),
        Err(Status::BadLength)
    );
    assert!(bench.device.pages.is_empty());
}

#[test]
fn what_is_in_use_stays() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let pair = Pair::new(&mut bench);
    let (cqn, uar, pd) = (u64::from(pair.a_cq.cqn), bench.uar, u64::from(bench.pd));
    let busy = Err(Status::Busy);
    let cq = |l: &Layouts, input: &mut [u8]| l.destroy_cq.cqn.set(input, cqn);
    assert_eq!(bench.command("DESTROY_CQ", &[], cq), busy);
    let set = |l: &Layouts, input: &mut [u8]| l.dealloc_uar.uar.set(input, uar);
    assert_eq!(bench.command("DEALLOC_UAR", &[], set), busy);
    let set = |l: &Layouts, input: &mut [u8]| l.dealloc_pd.pd.set(input, pd);
    assert_eq!(bench.command("DEALLOC_PD", &[], set), busy);
    for qpn in [pair.a.qpn, pair.b.qpn] {
        let set = |l: &Layouts, input: &mut [u8]| l.destroy_qp.qpn.set(input, u64::from(qpn));
        bench.command("DESTROY_QP", &[], set).unwrap();
        assert_eq!(
            bench.command("DESTROY_QP", &[], set),
            Err(Status::BadResource)
        );
    }
    bench.command("DESTROY_CQ", &[], cq).unwrap();
    // Keys are in the domain, too.
    bench.mtt(0, &[PAGE]);
    let set = |l: &Layouts, input: &mut [u8]| l.dealloc_pd.pd.set(input, pd);
    assert_eq!(bench.command("DEALLOC_PD", &[], set), busy);
    let eqn = u64::from(bench.device.cqs.values().next().unwrap().eqn);
    let set = |l: &Layouts, input: &mut [u8]| l.destroy_eq.eq_number.set(input, eqn);
    assert_eq!(bench.command("DESTROY_EQ", &[], set), busy);
}

#[test]
fn a_group_has_members_that_exist() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let pair = Pair::new(&mut bench);
    let member = |qpn: u32, group: u8| {
        move |l: &Layouts, input: &mut [u8]| {
            l.mcg.qpn.set(input, u64::from(qpn));
            input[l.mcg.multicast_gid.byte() + 15] = group;
        }
    };
    let missing = Err(Status::BadResource);
    let (a, b) = (pair.a.qpn, pair.b.qpn);
    let mut run = |what: &str, qpn, group| bench.command(what, &[], member(qpn, group));
    assert_eq!(run("ATTACH_TO_MCG", 0x00ff_fff0, 1), missing);
    run("ATTACH_TO_MCG", a, 1).unwrap();
    assert_eq!(run("DETACH_FROM_MCG", a, 2), missing);
    assert_eq!(run("DETACH_FROM_MCG", b, 1), missing);
    run("DETACH_FROM_MCG", a, 1).unwrap();
    assert_eq!(run("DETACH_FROM_MCG", a, 1), missing);
    run("ATTACH_TO_MCG", b, 1).unwrap();
    let destroy = |l: &Layouts, input: &mut [u8]| l.destroy_qp.qpn.set(input, u64::from(b));
    bench.command("DESTROY_QP", &[], destroy).unwrap();
    assert_eq!(bench.device.groups.len(), 0);

    bench.device.groups.extend((0..8).map(|n| (n, [7; 16])));
    let full = |l: &Layouts, input: &mut [u8]| {
        l.mcg.qpn.set(input, u64::from(a));
        let at = l.mcg.multicast_gid.byte();
        input[at..at + 16].fill(7);
    };
    let answer = bench.command("ATTACH_TO_MCG", &[], full);
    assert_eq!(answer, Err(Status::NoResources));
}

#[test]
fn the_port_keeps_what_the_driver_may_change() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let change = |select: u64, value: u64| {
        move |l: &Layouts, input: &mut [u8]| {
            l.modify_vport.cap_mask1_field_select.set(input, select);
            l.modify_vport.cap_mask1.set(input, value);
        }
    };
    let mut modify = |select, value| {
        let answer = bench.command("MODIFY_HCA_VPORT_CONTEXT", &[], change(select, value));
        let out = bench
            .command("QUERY_HCA_VPORT_CONTEXT", &[], |_, _| {})
            .unwrap();
        (
            answer.map(drop),
            bench.device.l.vport_context.cap_mask1.get(&out),
        )
    };
    assert_eq!(modify(1 << 16, 1 << 16), (Ok(()), 1 << 16));
    assert_eq!(modify(0, 0), (Ok(()), 1 << 16));
    assert_eq!(modify(1 << 17, 1 << 17), (Err(Status::BadParam), 1 << 16));
    assert_eq!(modify(1 << 16, 1 << 3), (Ok(()), 0));
}

#[derive(Clone, Copy, PartialEq)]
enum WayToEnd {
    Teardown,
    /// As QEMU resets the device.
    Reset,
    /// As the guest does.
    FunctionReset,
}

#[test]
fn resets_and_a_teardown_forget_everything() {
    let Some(bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    drop(bench);
    for end in [WayToEnd::Teardown, WayToEnd::Reset, WayToEnd::FunctionReset] {
        let is_reset = end != WayToEnd::Teardown;
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let mut pair = Pair::new(&mut bench);
        let ring = Ring::new(&mut bench, 0);
        let page = bench.alloc(PAGE);
        let mode = bench.device.c.mode.mtt;
        let key = bench.key(mode, (0, 2 * PAGE, 12), &[page | 3, 0], |_, _| {});
        // One request waits for a page, the other for a receive request.
        let (remote, data) = (bench.remote(key, PAGE), bench.data(key, 0, 8));
        let c = bench.device.c.opcodes;
        bench.post(&mut pair.a, c.rdma_write, 0, &[remote, data.clone()]);
        bench.post(&mut pair.b, c.send, 0, &[data]);
        bench.settle();
        assert_eq!(bench.device.witness.totals.faults, 1);
        assert_ne!(bench.device.witness.used(key, 0).umr, 0);
        match end {
            WayToEnd::Teardown => drop(bench.command("TEARDOWN_HCA", &[], |_, _| {}).unwrap()),
            WayToEnd::Reset => bench.device.reset(),
            WayToEnd::FunctionReset => bench.function_reset(),
        }
        let resets = bench
            .lines()
            .iter()
            .filter(|l| l["event"] == "reset")
            .count();
        assert_eq!(resets, usize::from(is_reset));
        let device = &mut bench.device;
        assert_eq!(device.witness.used(key, 0).umr, 0);
        assert_eq!(device.memory.is_bus_master, !is_reset);
        assert!(device.qps.is_empty() && device.cqs.is_empty() && device.eqs.is_empty());
        assert!(device.mkeys.is_empty() && device.srqs.is_empty() && device.simple.is_empty());
        assert_eq!(device.run(), Err(None));
        let interrupts = bench.interrupts();
        bench.ring(&pair.a);
        bench.arm_cq(&pair.a_cq, false);
        bench.arm_eq();
        bench.settle();
        assert_eq!(bench.interrupts(), interrupts);
        if is_reset {
            let register = bench.device.l.init_seg.cmdq_addr_l_sz.byte() as u64;
            let mut address = [0xff; 4];
            bench.device.read(register, &mut address);
            assert_eq!(u32::from_be_bytes(address) >> 8, 1);
        }
        // After a reset there is no command ring, and the device leaves memory alone.
        bench.bus_master(true);
        bench.put(0, &[0xa5; PAGE as usize]);
        let entry = ring.run(&mut bench, |_, _| {});
        let owner = bench.device.l.cmd.status_own.get(&entry);
        assert_eq!(owner & 1, u64::from(is_reset));
        let first = bench.get(0, PAGE as usize);
        assert!(first.iter().all(|byte| *byte == 0xa5));
        assert_eq!(bench.device.witness.totals.violations, 0);
        // The device starts again.
        bench.start();
        Pair::new(&mut bench);
    }
}

#[test]
fn a_number_is_not_given_twice() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let cq = bench.cq(0);
    bench.device.next_number = 0xff_fffe;
    let numbers: Vec<u32> = (0..4).map(|_| bench.device.number().unwrap()).collect();
    assert_eq!(numbers[0], 0xff_ffff);
    assert!(
        numbers[1..]
            .iter()
            .all(|n| *n > 0x100 && *n != cq.cqn && *n != bench.pd)
    );
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_the_device() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    drop(full);
    let mut witness = crate::witness::Witness::new(Some("/dev/full".as_ref())).unwrap();
    for _ in 0..10_000 {
        witness.violation("x");
    }
    witness.end();
    assert_eq!(witness.totals.violations, 10_000);
}
