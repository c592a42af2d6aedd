//! Requests that change keys: checks, masks, tables and offsets.

use crate::device::Scheme;
use crate::device::mkey::Want;
use crate::layout::{Field, Layouts, mkey_to_idx};
use crate::testing::{LOW, PAGE, Pair, Testbed, structure};

const START: u64 = 0x10_0000;

/// A request that changes a key.
#[derive(Clone, Default)]
struct Umr {
    flags: u64,
    mask: u64,
    /// Fields of the new context.
    fields: Vec<(Field, u64)>,
    /// The first entry in units of 16 bytes.
    offset: u64,
    entries: Vec<u64>,
}

struct Ends {
    bench: Testbed,
    pair: Pair,
    at: u64,
    key: u32,
    /// The source of translations, its key, and its address in the key.
    list: u64,
    list_key: u32,
    list_va: u64,
}

impl Ends {
    fn new() -> Option<Self> {
        let mut bench = Testbed::new(Scheme::Transport)?;
        let pair = Pair::new(&mut bench);
        let at = bench.alloc(8 * PAGE);
        let pages = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| at + n * PAGE);
        let key = bench.mtt(START, &pages);
        let list = bench.alloc(PAGE);
        let list_key = bench.mtt(0, &[list]);
        Some(Self {
            bench,
            pair,
            at,
            key,
            list,
            list_key,
            list_va: 0,
        })
    }

    /// Posts a UMR and returns its syndrome.
    fn umr(&mut self, key: u32, umr: &Umr) -> u64 {
        let l = &self.bench.device.l;
        let octwords = (umr.entries.len() as u64).div_ceil(2);
        let control = [
            (l.umr.flags, umr.flags),
            (l.umr.mkey_mask, umr.mask),
            (l.umr.xlt_octowords, octwords),
            (l.umr.xlt_offset, umr.offset),
        ];
        let control = structure(l.umr.size, &control);
        let context = structure(l.mkc.size, &umr.fields);
        let bytes: Vec<u8> = umr.entries.iter().flat_map(|e| e.to_be_bytes()).collect();
        let is_inline = umr.flags & self.bench.device.c.umr.inline != 0;
        let last = if is_inline {
            bytes
        } else {
            self.bench.put(self.list, &bytes);
            let len = bytes.len() as u64;
            self.bench.data(self.list_key, self.list_va, len)
        };
        let opcode = self.bench.device.c.opcodes.umr;
        self.bench
            .post(&mut self.pair.a, opcode, key, &[control, context, last]);
        self.bench.settle();
        self.bench.poll(&mut self.pair.a_cq).unwrap().syndrome
    }

    /// Writes two entries. `offset`: in units of 16 bytes.
    fn change(&mut self, key: u32, flags: u64, offset: u64, entries: [u64; 2]) {
        let umr = Umr {
            flags,
            offset,
            entries: entries.to_vec(),
            ..Umr::default()
        };
        assert_eq!(self.umr(key, &umr), 0);
    }

    fn context(&self, field: Field) -> u64 {
        field.get(&self.bench.device.mkeys[&mkey_to_idx(self.key)].context)
    }

    fn entries(&self) -> Vec<u64> {
        let entries = &self.bench.device.mkeys[&mkey_to_idx(self.key)].entries;
        entries
            .entries(8)
            .map(|b| u64::from_be_bytes(b.try_into().unwrap()))
            .collect()
    }
}

#[test]
fn translations_come_by_the_reserved_key_for_the_driver_alone() {
    let Some(mut t) = Ends::new() else { return };
    let qp = t.bench.device.qps.get_mut(&t.pair.a.qpn).unwrap();
    let rlky = t.bench.device.l.qpc.rlky;
    rlky.set(&mut qp.context, 1);
    t.list_key = t.bench.device.reserved_lkey;
    t.list_va = t.list;
    t.change(t.key, 0, 0, [0x1003, 0x2003]);
    assert_eq!(t.entries()[..2], [0x1003, 0x2003]);

    let qp = t.bench.device.qps.get_mut(&t.pair.a.qpn).unwrap();
    rlky.set(&mut qp.context, 0);
    let umr = Umr {
        entries: vec![0x3003, 0x4003],
        ..Umr::default()
    };
    assert_ne!(t.umr(t.key, &umr), 0);
    assert_eq!(t.entries()[..2], [0x1003, 0x2003]);
}

/// A device ignores them. A driver that sets them gets the page, and not the byte that it meant.
#[test]
fn bits_of_a_translation_below_the_page_size_do_not_count() {
    let Some(mut t) = Ends::new() else { return };
    let log_huge = 21;
    let mode = t.bench.device.c.mode.mtt;
    let (page, offset) = (0x4000_0000, 0x5234);
    for entry in [page, page + 0x10_0000] {
        let of_key = (0, 1 << log_huge, log_huge);
        let key = t.bench.key(mode, of_key, &[entry | 3], |_, _| {});
        let pd = Some(t.bench.pd);
        let want = Want {
            write: false,
            remote: false,
            atomic: false,
        };
        let pieces = t.bench.device.translate(key, offset, 8, want, pd);
        assert_eq!(pieces.unwrap()[0].addr, page + offset, "{entry:#x}");
    }
}

#[test]
fn only_the_fields_of_the_mask_change() {
    let Some(mut t) = Ends::new() else { return };
    let l = t.bench.device.l.mkc;
    let m = t.bench.device.c.mkey_mask;
    let umr = Umr {
        mask: m.start_addr | m.rw | m.key,
        fields: vec![
            (l.start_addr, 0x5000),
            (l.rw, 0),
            (l.rr, 0),
            (l.len, 1),
            (l.pd, 0x99),
            (l.mkey_7_0, 0x43),
        ],
        ..Umr::default()
    };
    let before = t.entries();
    let len = t.context(l.len);
    assert_eq!(t.umr(t.key, &umr), 0);
    assert_eq!((t.context(l.start_addr), t.context(l.rw)), (0x5000, 0));
    assert_eq!((t.context(l.rr), t.context(l.len)), (1, len));
    assert_eq!(t.context(l.pd), u64::from(t.bench.pd));
    assert_eq!(t.context(l.mkey_7_0), 0x43);
    assert_eq!(t.entries(), before);
    // The translations still come from the same change.
    let of = |key| t.bench.device.witness.used(key, 3).umr;
    assert_ne!(of(t.key), 0);
    assert_eq!(of(t.key ^ u32::from(LOW as u8 ^ 0x43)), of(t.key));
}

#[test]
fn a_check_that_fails_changes_nothing() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for (check_free, is_free) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut t = Ends::new().unwrap();
        let l = t.bench.device.l.mkc;
        let u = t.bench.device.c.umr;
        let m = t.bench.device.c.mkey_mask;
        let free = Umr {
            mask: m.free,
            fields: vec![(l.free, u64::from(is_free))],
            ..Umr::default()
        };
        assert_eq!(t.umr(t.key, &free), 0);
        let umr = Umr {
            flags: if check_free {
                u.check_free
            } else {
                u.check_not_free
            },
            mask: m.len,
            fields: vec![(l.len, 5)],
            ..Umr::default()
        };
        // "Fail if free", "fail if not free".
        let fails = check_free == is_free;
        let syndrome = t.umr(t.key, &umr);
        let bind = t.bench.device.c.syndromes.mw_bind_err;
        assert_eq!(
            syndrome,
            if fails { bind } else { 0 },
            "{check_free} {is_free}"
        );
        assert_eq!(t.context(l.len), if fails { 8 * PAGE } else { 5 });
    }
}

#[test]
fn entries_are_written_where_the_offset_says() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    for inline in [false, true] {
        let mut t = Ends::new().unwrap();
        let u = t.bench.device.c.umr;
        let before = t.entries();
        let umr = Umr {
            flags: u.translation_offset_en | if inline { u.inline } else { 0 },
            offset: 2,
            entries: vec![0, 0x77_7003],
            ..Umr::default()
        };
        assert_eq!(t.umr(t.key, &umr), 0);
        let mut expected = before.clone();
        expected[4] = 0;
        expected[5] = 0x77_7003;
        assert_eq!(t.entries(), expected);
        // Without the flag the offset is ignored.
        let umr = Umr {
            flags: umr.flags & !u.translation_offset_en,
            entries: vec![0x11_1003, 0],
            ..umr
        };
        assert_eq!(t.umr(t.key, &umr), 0);
        expected[0] = 0x11_1003;
        expected[1] = 0;
        assert_eq!(t.entries(), expected);
        // A zapped entry leads to a page fault, and the witness has logged the change.
        let lines = t.bench.lines();
        let umr = lines.iter().rfind(|line| line["event"] == "umr").unwrap();
        assert_eq!((&umr["first"], &umr["count"]), (&0.into(), &2.into()));
        assert_eq!(umr["cleared"], 1);
        let of = |entry| t.bench.device.witness.used(t.key, entry).umr;
        assert_eq!((of(1), of(4)), (0, 0));
        assert_eq!(Some(of(0)), umr["n"].as_u64());
        let segments = [
            t.bench.remote(t.key, START + PAGE),
            t.bench.data(t.list_key, 0, 8),
        ];
        let opcode = t.bench.device.c.opcodes.rdma_write;
        t.bench.post(&mut t.pair.a, opcode, 0, &segments);
        t.bench.settle();
        assert_eq!(t.bench.device.witness.totals.faults, 1);
        assert_eq!(t.bench.get(t.at + PAGE, 8), [0; 8]);
    }
}

#[test]
fn what_a_request_may_not_do_to_a_key_is_refused() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    type Change = fn(&mut Ends) -> (u32, Umr);
    let cases: [(&str, Change); 7] = [
        ("no such key", |_| (0xff_0000, Umr::default())),
        ("an unknown bit of the mask", |t| {
            let mask = 1 << 63;
            (
                t.key,
                Umr {
                    mask,
                    ..Umr::default()
                },
            )
        }),
        ("beyond the table", |t| {
            let flags = t.bench.device.c.umr.translation_offset_en;
            let umr = Umr {
                flags,
                offset: 4,
                entries: vec![3, 3],
                ..Umr::default()
            };
            (t.key, umr)
        }),
        ("far beyond the table", |t| {
            let flags = t.bench.device.c.umr.translation_offset_en;
            let umr = Umr {
                flags,
                offset: 0xffff,
                entries: vec![3, 3],
                ..Umr::default()
            };
            (t.key, umr)
        }),
        ("inline, and cut off", |t| {
            let flags = t.bench.device.c.umr.inline;
            let l = t.bench.device.l.umr;
            // The count exceeds the list: set by hand below.
            let _ = l;
            (
                t.key,
                Umr {
                    flags,
                    entries: vec![3; 200],
                    ..Umr::default()
                },
            )
        }),
        ("a key that no request may change", |t| {
            let mode = t.bench.device.c.mode.mtt;
            let set = |l: &Layouts, context: &mut [u8]| l.mkc.umr_en.set(context, 0);
            let key = t.bench.key(mode, (START, PAGE, 12), &[3], set);
            (key, Umr::default())
        }),
        ("translations that cannot be read", |t| {
            let gone = t.list;
            t.list_key = t.bench.mtt(0, &[1 << 40]);
            t.list = gone;
            (
                t.key,
                Umr {
                    entries: vec![3, 3],
                    ..Umr::default()
                },
            )
        }),
    ];
    for (what, change) in cases {
        println!("{what}");
        let mut t = Ends::new().unwrap();
        let before = t.entries();
        let (key, umr) = change(&mut t);
        let syndrome = if umr.entries.len() == 200 {
            cut_off(&mut t, key, &umr)
        } else {
            t.umr(key, &umr)
        };
        assert_eq!(syndrome, t.bench.device.c.syndromes.mw_bind_err);
        assert_eq!(t.entries(), before);
        let is_dma = what.ends_with("cannot be read");
        assert_eq!(t.bench.device.witness.totals.violations, u64::from(is_dma));
    }
}

/// Posts a request with fewer inline entries than it announces.
fn cut_off(t: &mut Ends, key: u32, umr: &Umr) -> u64 {
    let l = &t.bench.device.l;
    let octwords = umr.entries.len() as u64 / 2;
    let control = [(l.umr.flags, umr.flags), (l.umr.xlt_octowords, octwords)];
    let control = structure(l.umr.size, &control);
    let context = vec![0; l.mkc.size];
    let opcode = t.bench.device.c.opcodes.umr;
    t.bench
        .post(&mut t.pair.a, opcode, key, &[control, context, vec![0; 64]]);
    t.bench.settle();
    t.bench.poll(&mut t.pair.a_cq).unwrap().syndrome
}

#[test]
fn the_keys_together_have_no_more_translations_than_there_is_room() {
    let Some(mut t) = Ends::new() else { return };
    let mode = t.bench.device.c.mode.mtt;
    // A table of 2^32 - 1 units. Only its end is written.
    let set = |l: &Layouts, context: &mut [u8]| {
        l.mkc
            .translations_octword_size
            .set(context, u64::from(u32::MAX));
    };
    let key = t.bench.key(mode, (0, u64::MAX, 12), &[], set);
    let l = t.bench.device.l.umr;
    let flags = t.bench.device.c.umr.translation_offset_en;
    let control = [
        (l.flags, flags),
        (l.xlt_octowords, 1),
        (l.xlt_offset_47_16, 0xfff0),
    ];
    let control = structure(l.size, &control);
    let context = vec![0; t.bench.device.l.mkc.size];
    let data = t.bench.data(t.list_key, 0, 16);
    let opcode = t.bench.device.c.opcodes.umr;
    t.bench
        .post(&mut t.pair.a, opcode, key, &[control, context, data]);
    t.bench.settle();
    let syndrome = t.bench.poll(&mut t.pair.a_cq).unwrap().syndrome;
    assert_eq!(syndrome, t.bench.device.c.syndromes.mw_bind_err);
    assert!(t.bench.device.mkeys[&mkey_to_idx(key)].entries.len() == 0);
}

#[test]
fn a_way_that_is_too_long_is_refused() {
    let Some(mut bench) = Testbed::new(Scheme::Transport) else {
        return;
    };
    let mode = bench.device.c.mode;
    let page = bench.alloc(PAGE);
    let last = u64::from(bench.mtt(0, &[page]));
    // A list with only its last entry in use, and a key with an entry for each byte that
    // points to that list.
    let mut list = vec![0; 8000];
    list.extend([PAGE << 32 | last, 0]);
    let klm = u64::from(bench.key(mode.klms, (0, PAGE, 0), &list, |_, _| {}));
    let each: Vec<u64> = (0..PAGE).flat_map(|va| [klm, va]).collect();
    let ksm = bench.key(mode.ksm, (0, PAGE, 0), &each, |_, _| {});
    let want = crate::device::mkey::Want {
        write: false,
        remote: false,
        atomic: false,
    };
    let pd = Some(bench.pd);
    let few = bench.device.translate(ksm, 0, 16, want, pd).unwrap();
    assert_eq!(few.len(), 16);
    let all = bench.device.translate(ksm, 0, PAGE as usize, want, pd);
    assert!(
        matches!(all, Err(crate::device::mkey::Stop::Denied(_))),
        "{all:?}"
    );
}

/// The witness enforces this rule itself and does not rely on the order of lookups.
#[test]
fn a_dma_by_a_translation_that_has_ended_is_a_violation() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    type Change = fn(&mut Ends, u32);
    let cases: [(&str, bool, Change); 7] = [
        ("nothing", true, |_, _| {}),
        ("the pages beside", true, |t, _| {
            let flags = t.bench.device.c.umr.translation_offset_en;
            t.change(t.key, flags, 1, [t.at | 3, 0]);
        }),
        ("the page", false, |t, _| {
            t.change(t.key, 0, 0, [t.at | 3, 0])
        }),
        ("no page any more", false, |t, _| {
            t.change(t.key, 0, 0, [0, 0]);
        }),
        ("the key above", false, |t, above| {
            t.change(above, 0, 0, [u64::from(t.key), START + PAGE]);
        }),
        ("a key that is not in use", false, |t, _| {
            let umr = Umr {
                mask: t.bench.device.c.mkey_mask.free,
                fields: vec![(t.bench.device.l.mkc.free, 1)],
                ..Umr::default()
            };
            assert_eq!(t.umr(t.key, &umr), 0);
        }),
        ("no key any more", false, |t, _| {
            let index = u64::from(mkey_to_idx(t.key));
            let set = |l: &Layouts, input: &mut [u8]| l.destroy_mkey.mkey_index.set(input, index);
            t.bench.command("DESTROY_MKEY", &[], set).unwrap();
        }),
    ];
    for (what, is_right, change) in cases {
        let mut t = Ends::new().unwrap();
        let mode = t.bench.device.c.mode.ksm;
        let entries = [u64::from(t.key), START, 0, 0, 0, 0, 0, 0];
        let above = t.bench.key(mode, (0, PAGE, 12), &entries, |_, _| {});
        let want = crate::device::mkey::Want {
            write: true,
            remote: true,
            atomic: false,
        };
        let device = &t.bench.device;
        let pieces = device.translate(above, 8, 8, want, None).unwrap();
        change(&mut t, above);
        let device = &mut t.bench.device;
        device.dma_write(t.pair.a.qpn, &pieces, &[1; 8]).unwrap();
        device.report();
        let told = &device.witness.first_violations;
        assert_eq!(told.is_empty(), is_right, "{what}: {told:?}");
        assert!(told.iter().all(|told| told.ends_with("was changed before")));
    }
}

/// Registers memory as the driver does: in parts, by its own queue pair, and with a key that
/// had another length before.
#[test]
fn a_translation_past_the_end_of_a_key_is_a_violation() {
    let Some(t) = Ends::new() else { return };
    drop(t);
    let dirty = || vec![0, 0, 0, 0, 0x5003, 0x6003, 0, 0];
    // Entry 5 is past the end, as five pages are registered.
    let clean = || vec![0x1003, 0, 0, 0, 0x5003, 0, 0, 0];
    type Change = fn(&mut Ends, Umr, Vec<u64>) -> Umr;
    let eighth = Some("entry 8 is present, past the end of 32768 bytes");
    let eleventh = Some("entry 11 is present, past the end of 12296 bytes");
    let fifth = Some("entry 5 is present, past the end of 12296 bytes");
    let cases: [(&str, Vec<u64>, Option<&str>, Change); 10] = [
        ("the last part", dirty(), fifth, |_, umr, _| umr),
        ("the last part, cleared", clean(), None, |_, umr, _| umr),
        ("the queue of somebody else", dirty(), None, |t, umr, _| {
            t.pair.a = t.bench.qp(&t.pair.a_cq, |_, _| {});
            t.bench.connect(&t.pair.a, 0, 7);
            umr
        }),
        (
            "a part before the last one",
            dirty(),
            None,
            |t, umr, clean| {
                let first = Umr {
                    mask: 0,
                    ..umr.clone()
                };
                assert_eq!(t.umr(t.key, &first), 0);
                Umr {
                    entries: clean,
                    ..umr
                }
            },
        ),
        ("not in use any more", dirty(), None, |t, umr, _| Umr {
            mask: umr.mask & !t.bench.device.c.mkey_mask.free,
            ..umr
        }),
        ("all there is", dirty(), None, |t, mut umr, _| {
            umr.fields.push((t.bench.device.l.mkc.length64, 1));
            umr
        }),
        ("blocks of an earlier use", clean(), None, |t, umr, _| {
            let longer = Umr {
                mask: 0,
                offset: 4,
                flags: t.bench.device.c.umr.translation_offset_en,
                entries: vec![0x9003; 8],
                ..Umr::default()
            };
            assert_eq!(t.umr(t.key, &longer), 0);
            umr
        }),
        ("nothing but the length", dirty(), fifth, |t, umr, _| {
            let free = Umr {
                mask: 0,
                ..umr.clone()
            };
            assert_eq!(t.umr(t.key, &free), 0);
            Umr {
                entries: Vec::new(),
                ..umr
            }
        }),
        ("a whole block", dirty(), eighth, |t, mut umr, _| {
            let l = t.bench.device.l.mkc;
            umr.fields = vec![(l.len, 8 * PAGE), (l.start_addr, START)];
            umr.entries = vec![0x1003; 16];
            umr
        }),
        ("only later blocks", dirty(), eleventh, |t, umr, clean| {
            let first = Umr {
                entries: clean,
                ..umr
            };
            assert_eq!(t.umr(t.key, &first), 0);
            Umr {
                flags: t.bench.device.c.umr.translation_offset_en,
                offset: 4,
                entries: vec![0, 0, 0, 0x9003, 0, 0, 0, 0],
                ..Umr::default()
            }
        }),
    ];
    for (what, entries, expected, change) in cases {
        let mut t = Ends::new().unwrap();
        let l = t.bench.device.l.mkc;
        let m = t.bench.device.c.mkey_mask;
        let service = t.bench.device.c.qp_st.reg_umr;
        let set = |l: &Layouts, context: &mut [u8]| l.qpc.st.set(context, service);
        t.pair.a = t.bench.qp(&t.pair.a_cq, set);
        t.bench.connect(&t.pair.a, 0, 7);
        // The key has room for 16 pages, and is not in use.
        let (mode, all) = (t.bench.device.c.mode.mtt, [0; 16]);
        let set = |l: &Layouts, context: &mut [u8]| l.mkc.free.set(context, 1);
        t.key = t.bench.key(mode, (START, PAGE, 12), &all, set);
        // The first and the last page are registered in part.
        let umr = Umr {
            mask: m.len | m.start_addr | m.free,
            fields: vec![(l.len, 3 * PAGE + 8), (l.start_addr, START + PAGE - 4)],
            entries,
            ..Umr::default()
        };
        let umr = change(&mut t, umr, clean());
        assert_eq!(t.umr(t.key, &umr), 0, "{what}");
        let told = &t.bench.device.witness.first_violations;
        let told = told.iter().map(|told| told.split_once(": ").unwrap().1);
        assert_eq!(Vec::from_iter(told), Vec::from_iter(expected), "{what}");
    }
}
