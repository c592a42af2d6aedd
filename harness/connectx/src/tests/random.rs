//! The model handles any guest input: it never panics, never loops forever and never takes
//! more memory than the guest has filled.
//!
//! Each property runs with [`CASES`] inputs, or `PROPTEST_CASES` if set. README.md lists how
//! long a million takes. A failure prints its smallest input and writes no files.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRunner};

use crate::device::Scheme;
use crate::device::command::Status;
use crate::testing::{PAGE, RAM, Testbed, VRAM};

mod memory;
mod queues;
mod resize;

/// Inputs of a property, unless `PROPTEST_CASES` is set.
const CASES: u32 = 2000;
/// Limit of processor time for one input. More means a loop.
const LONG: Duration = Duration::from_secs(20);

/// Processor time of this thread. Wall-clock time would include other threads' work.
fn worked() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    Duration::from_nanos(first.and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// Runs a property if there is a kernel.
fn check<S: Strategy>(input: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    if crate::testing::headers().is_none() {
        return;
    }
    let mut config = Config {
        failure_persistence: None,
        max_shrink_iters: 2000,
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let outcome = TestRunner::new(config).run(input, |value| {
        let begin = worked();
        test(value)?;
        prop_assert!(worked().saturating_sub(begin) < LONG, "it takes too long");
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// Numbers that are typical corner cases, and others.
fn number() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX - 1),
        Just(1 << 31),
        Just(1 << 32),
        Just(1 << 63),
        (0u32..64).prop_map(|bit| 1u64 << bit),
        0..0x200u64,
        0..RAM,
        VRAM..VRAM + (1 << 20),
        any::<u64>(),
    ]
}

/// A number below `below`, or any number.
fn mostly(below: u64) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![3 => 0..below, 1 => number()]
}

/// Bytes: all random, few nonzero, or all ones.
fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..most),
        4 => (0..most, prop::collection::vec((0..most.max(1), any::<u8>()), 0..40)).prop_map(
            |(len, some)| {
                let mut all = vec![0; len];
                for (at, byte) in some {
                    if let Some(old) = all.get_mut(at) {
                        *old = byte;
                    }
                }
                all
            }
        ),
        1 => (0..most).prop_map(|len| vec![0xff; len]),
    ]
}

/// Commands: the opcode by its index among the known ones, the contents, the size of the
/// answer, and whether to extend both to their minimum sizes.
fn commands() -> impl Strategy<Value = Vec<(usize, Vec<u8>, usize, bool)>> {
    let out = prop_oneof![Just(16), Just(4112), 0usize..600, Just(1 << 20)];
    // Mostly long enough, as the device refuses short commands at once.
    let command = (
        any::<prop::sample::Index>(),
        bytes(900),
        out,
        prop::bool::weighted(0.8),
    );
    let command =
        command.prop_map(|(index, body, out, pad)| (index.index(1 << 16), body, out, pad));
    prop::collection::vec(command, 1..12)
}

#[test]
fn any_command_is_answered() {
    check(&commands(), |commands| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let opcodes: Vec<u64> = bench.device.names.keys().copied().collect();
        for (index, mut input, out, pad) in commands {
            let opcode = opcodes.get(index % (opcodes.len() + 1)).copied();
            let sizes = opcode.and_then(|opcode| bench.device.sizes.get(&opcode).copied());
            let (least_in, least_out) = sizes.unwrap_or_default();
            if pad {
                input.resize(input.len().max(least_in), 0);
            }
            input.resize(input.len().max(16), 0);
            // An opcode that no header defines.
            let number = opcode.unwrap_or(0xfff0);
            bench.device.l.mbox_in.opcode.set(&mut input, number);
            let mut out = vec![0; out.max(if pad { least_out } else { 0 })];
            let answer = bench.device.execute(&input, &mut out);
            if opcode.is_none() {
                prop_assert_eq!(answer, Err(Status::BadOp));
            } else if input.len() < least_in {
                prop_assert_eq!(answer, Err(Status::BadLength));
            } else if out.len() < least_out {
                prop_assert_eq!(answer, Err(Status::BadOutLength));
            }
            bench.settle();
        }
        // The device still answers a valid command.
        let nop = bench.command("NOP", &[], |_, _| {});
        prop_assert!(nop.is_ok());
        Ok(())
    });
}

/// Objects whose contexts are valid except for a few fields.
#[test]
fn sizes_that_a_guest_makes_up_are_refused_or_held() {
    let names = [
        "CREATE_EQ",
        "CREATE_CQ",
        "CREATE_QP",
        "CREATE_XRC_SRQ",
        "CREATE_RMP",
        "CREATE_MKEY",
    ];
    let field = (0..24usize, number());
    let input = (
        0..names.len(),
        prop::collection::vec(field, 0..8),
        prop::collection::vec(number(), 0..40),
    );
    check(&input, |(kind, fields, list)| {
        let mut bench = Testbed::new(Scheme::Memory).unwrap();
        let eqn = u64::from(bench.eqn);
        let before = bench.device.eqs.len();
        let answer = bench.command(names[kind], &list, |l, input| {
            let (at, table): (usize, Vec<crate::layout::Field>) = match kind {
                0 => {
                    let l = &l.create_eq_in;
                    (
                        0,
                        vec![
                            l.log_eq_size,
                            l.log_page_size,
                            l.page_offset,
                            l.intr,
                            l.event_bitmask,
                        ],
                    )
                }
                1 => {
                    let c = &l.cqc;
                    let all = vec![
                        c.log_cq_size,
                        c.log_page_size,
                        c.page_offset,
                        c.cqe_sz,
                        c.dbr_addr,
                    ];
                    let context = &mut input[l.create_cq_in.cq_context.byte()..];
                    c.c_eqn_or_apu_element.set(context, eqn);
                    (l.create_cq_in.cq_context.byte(), all)
                }
                2 => {
                    let q = &l.qpc;
                    let all = vec![
                        q.log_sq_size,
                        q.log_rq_size,
                        q.log_rq_stride,
                        q.log_page_size,
                        q.page_offset,
                        q.no_sq,
                        q.rq_type,
                        q.st,
                        q.dbr_addr,
                        q.srqn,
                    ];
                    (l.create_qp_in.qpc.byte(), all)
                }
                3 => {
                    let x = &l.xrc_srqc;
                    let all = vec![
                        x.log_xrc_srq_size,
                        x.log_rq_stride,
                        x.log_page_size,
                        x.page_offset,
                        x.lwm,
                        x.db_record_addr_h,
                        x.db_record_addr_l,
                        x.user_index,
                    ];
                    (l.create_xrc_srq_in.context.byte(), all)
                }
                4 => {
                    let w = &l.wq;
                    let all = vec![
                        w.log_wq_sz,
                        w.log_wq_stride,
                        w.log_wq_pg_sz,
                        w.page_offset,
                        w.lwm,
                    ];
                    (l.create_rmp_in.wq.byte(), all)
                }
                _ => {
                    let m = &l.mkc;
                    let all = vec![
                        m.start_addr,
                        m.len,
                        m.log_page_size,
                        m.translations_octword_size,
                        m.access_mode_1_0,
                        m.access_mode_4_2,
                        m.length64,
                    ];
                    let words = l.create_mkey_in.translations_octword_actual_size;
                    words.set(input, fields.first().map_or(0, |(_, value)| *value));
                    (l.create_mkey_in.context.byte(), all)
                }
            };
            for (index, value) in &fields {
                table[index % table.len()].set(&mut input[at..], *value);
            }
        });
        // An accepted buffer is no larger than its list.
        let pages = |buffer: &crate::memory::Buffer| buffer.pages.len() <= list.len();
        prop_assert!(
            bench
                .device
                .eqs
                .values()
                .skip(before)
                .all(|eq| pages(&eq.buffer))
        );
        prop_assert!(bench.device.cqs.values().all(|cq| pages(&cq.buffer)));
        prop_assert!(
            bench
                .device
                .srqs
                .values()
                .all(|srq| pages(&srq.ring.buffer))
        );
        let held: usize = bench
            .device
            .mkeys
            .values()
            .map(|mkey| mkey.entries.len())
            .sum();
        prop_assert!(held <= list.len() * 8);
        if let Err(status) = answer {
            let known = [Status::BadLength, Status::BadParam, Status::BadResource];
            prop_assert!(known.contains(&status), "{status:?}");
        }
        Ok(())
    });
}

/// An entry of the command ring, and mailboxes that point anywhere.
#[test]
fn any_entry_of_the_ring_is_handed_back() {
    let link = (0..8usize, number(), 0..8u64, any::<bool>());
    let entry = (bytes(64), number(), number(), mostly(3000), mostly(3000));
    let input = (
        prop::collection::vec(link, 8),
        entry,
        any::<prop::sample::Index>(),
    );
    check(
        &input,
        |(links, (raw, in_ptr, out_ptr, inlen, outlen), index)| {
            let mut bench = Testbed::new(Scheme::Transport).unwrap();
            let opcodes: Vec<u64> = bench.device.names.keys().copied().collect();
            let at = bench.alloc(PAGE);
            let boxes = bench.alloc(8 * PAGE);
            let l = bench.device.l.block;
            for (n, (to, anywhere, number, is_right)) in links.iter().enumerate() {
                let mut block = vec![0; l.size];
                let next = if *is_right {
                    boxes + *to as u64 * PAGE
                } else {
                    *anywhere
                };
                l.next.set(&mut block, next);
                l.block_num
                    .set(&mut block, if *is_right { n as u64 } else { *number });
                bench.put(boxes + n as u64 * PAGE, &block);
            }
            let l = bench.device.l.cmd;
            let mut entry = vec![0; l.size];
            entry[..raw.len()].copy_from_slice(&raw);
            let pointer = |at: u64| if at.is_multiple_of(3) { at } else { boxes };
            l.in_ptr.set(&mut entry, pointer(in_ptr));
            l.out_ptr.set(&mut entry, pointer(out_ptr));
            l.inlen.set(&mut entry, inlen);
            l.outlen.set(&mut entry, outlen);
            let opcode = opcodes[index.index(opcodes.len())];
            bench
                .device
                .l
                .mbox_in
                .opcode
                .set(&mut entry[l.input.byte()..], opcode);
            l.status_own.set(&mut entry, 1);
            bench.put(at, &entry);
            let init = bench.device.l.init_seg;
            let base = [(at >> 32) as u32, at as u32]
                .map(u32::to_be_bytes)
                .concat();
            bench.device.write(init.cmdq_addr_h.byte() as u64, &base);
            bench
                .device
                .write(init.cmd_dbell.byte() as u64, &1u32.to_be_bytes());
            // The answer may overwrite the entry itself.
            let answer = bench.get(at + l.status_own.byte() as u64, 1)[0];
            let is_over = (at..at + PAGE).contains(&(pointer(out_ptr) & !511));
            prop_assert!(is_over || answer & 1 == 0, "{answer:#x}");
            bench.settle();
            Ok(())
        },
    );
}

#[test]
fn any_access_to_a_register_is_survived() {
    let write = (
        prop_oneof![0..0x2000u64, 0x8000..0xc000u64, number()],
        prop::collection::vec(any::<u8>(), 1..64),
    );
    check(&prop::collection::vec(write, 1..60), |writes| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let pair = crate::testing::Pair::new(&mut bench);
        for (at, data) in writes {
            // Some inputs use the numbers of real queues.
            let mut data = data;
            if data.len() >= 8 && data[0] % 3 == 0 {
                let number = if at & bench.device.c.uar.blue_flame == 0 {
                    pair.a_cq.cqn
                } else {
                    pair.a.qpn << 8
                };
                data[4..8].copy_from_slice(&number.to_be_bytes());
            }
            bench.device.write(at, &data);
            bench.device.read(at, &mut data);
            bench.device.config_write(at, &data);
            bench.device.config.read(at, &mut data);
            bench.bus_master(true);
        }
        bench.settle();
        Ok(())
    });
}
