//! Mappings and keys, compared with simple reference models.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::check;
use crate::device::Scheme;
use crate::device::mkey::{Stop, Want};
use crate::layout::{Layouts, idx_to_mkey, mkey_to_idx};
use crate::memory::{Memory, Refused};
use crate::testing::Testbed;

/// Size of the address space in bytes.
const SPACE: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Map {
        at: u64,
        size: u64,
        file: usize,
        offset: u64,
        writable: bool,
    },
    NoFile {
        at: u64,
        size: u64,
    },
    Unmap {
        at: u64,
        size: u64,
    },
    Write {
        at: u64,
        len: usize,
    },
    Read {
        at: u64,
        len: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![0..24u64, Just(u64::MAX)];
    prop_oneof![
        3 => (0..SPACE, 0..24u64, 0..2usize, 0..32u64, any::<bool>()).prop_map(
            |(at, size, file, offset, writable)| Step::Map { at, size, file, offset, writable }
        ),
        1 => (0..SPACE, 0..24u64).prop_map(|(at, size)| Step::NoFile { at, size }),
        1 => (0..SPACE, size).prop_map(|(at, size)| Step::Unmap { at, size }),
        3 => (0..SPACE, 0..40usize).prop_map(|(at, len)| Step::Write { at, len }),
        3 => (0..SPACE, 0..40usize).prop_map(|(at, len)| Step::Read { at, len }),
    ]
}

/// The translation of one address.
#[derive(Clone, Copy)]
struct Byte {
    /// The mapping's number. A mapping that overlaps a new one is removed as a whole.
    mapping: usize,
    /// File and offset.
    to: Option<(usize, usize)>,
    writable: bool,
}

#[test]
fn mappings_are_those_of_a_table_of_bytes() {
    check(&prop::collection::vec(step(), 1..60), |steps| {
        let files: Vec<File> = (0..2).map(|_| tempfile::tempfile().unwrap()).collect();
        let mut contents = [[0u8; 64], [0u8; 64]];
        for file in &files {
            file.set_len(64).unwrap();
        }
        let mut memory = Memory::default();
        memory.is_bus_master = true;
        let mut table: HashMap<u64, Byte> = HashMap::new();
        let forget = |table: &mut HashMap<u64, Byte>, at: u64, size: u64| {
            let inside = |address: &u64| *address >= at && *address - at < size;
            let gone: Vec<usize> = table
                .iter()
                .filter(|(a, _)| inside(a))
                .map(|(_, b)| b.mapping)
                .collect();
            table.retain(|_, byte| !gone.contains(&byte.mapping));
        };
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Map {
                    at,
                    size,
                    file,
                    offset,
                    writable,
                } => {
                    let real = files[file].try_clone().unwrap();
                    let done = memory.map(at, size, Some(real), offset, writable);
                    prop_assert_eq!(done.is_ok(), size > 0);
                    forget(&mut table, at, size);
                    for n_ in 0..size {
                        let to = Some((file, (offset + n_) as usize));
                        table.insert(
                            at + n_,
                            Byte {
                                mapping: n,
                                to,
                                writable,
                            },
                        );
                    }
                }
                Step::NoFile { at, size } => {
                    prop_assert_eq!(memory.map(at, size, None, 0, true).is_ok(), size > 0);
                    forget(&mut table, at, size);
                    for n_ in 0..size {
                        table.insert(
                            at + n_,
                            Byte {
                                mapping: n,
                                to: None,
                                writable: true,
                            },
                        );
                    }
                }
                Step::Unmap { at, size } => {
                    memory.unmap(at, size);
                    forget(&mut table, at, size);
                }
                Step::Write { at, len } => {
                    let data: Vec<u8> = (0..len).map(|k| (n + k) as u8 | 1).collect();
                    let done = memory.write(at, &data);
                    let mut wrong = None;
                    for (address, value) in (at..).zip(&data) {
                        let byte = table.get(&address);
                        match byte {
                            None => wrong = Some(Refused::Unmapped(address)),
                            Some(Byte { to: None, .. }) => {
                                wrong = Some(Refused::NotShared(address))
                            }
                            Some(Byte {
                                writable: false, ..
                            }) => wrong = Some(Refused::ReadOnly(address)),
                            Some(Byte {
                                to: Some((file, offset)),
                                ..
                            }) => {
                                contents[*file][*offset] = *value;
                            }
                        }
                        if wrong.is_some() {
                            break;
                        }
                    }
                    prop_assert_eq!(done.err(), wrong);
                }
                Step::Read { at, len } => {
                    let mut data = vec![0; len];
                    let done = memory.read(at, &mut data);
                    let bytes: Option<Vec<u8>> = (at..at + len as u64)
                        .map(|address| {
                            let (file, offset) = table.get(&address)?.to?;
                            Some(contents[file][offset])
                        })
                        .collect();
                    prop_assert_eq!(done.ok().map(|_| data), bytes);
                }
            }
        }
        for (file, content) in files.iter().zip(contents) {
            let mut real = [0; 64];
            file.read_exact_at(&mut real, 0).unwrap();
            prop_assert_eq!(real, content);
        }
        Ok(())
    });
}

/// A key of the reference model, which translates each address.
#[derive(Clone, Debug)]
enum Table {
    /// Pages. Some are absent or read-only.
    Mtt { shift: u64, pages: Vec<(u64, u64)> },
    /// Child keys, each for one page's size.
    Ksm { shift: u64, to: Vec<(usize, u64)> },
    /// Child keys, each for its own number of bytes.
    Klm { to: Vec<(usize, u64, u64)> },
}

#[derive(Clone, Debug)]
struct Spec {
    start: u64,
    table: Table,
}

impl Spec {
    fn len(&self) -> u64 {
        match &self.table {
            Table::Mtt { shift, pages } => (pages.len() as u64) << shift,
            Table::Ksm { shift, to } => (to.len() as u64) << shift,
            Table::Klm { to } => to.iter().map(|(_, _, len)| len).sum(),
        }
    }
}

fn spec() -> impl Strategy<Value = Spec> {
    let page = (0..0x40u64, 0..4u64);
    let mtt = (12..14u64, prop::collection::vec(page, 1..5)).prop_map(|(shift, pages)| {
        let pages = pages
            .into_iter()
            .map(|(n, rights)| (n << shift, rights))
            .collect();
        Table::Mtt { shift, pages }
    });
    let ksm = (
        4..13u64,
        prop::collection::vec((0..8usize, 0..0x3000u64), 1..6),
    )
        .prop_map(|(shift, to)| Table::Ksm { shift, to });
    let klm = prop::collection::vec((0..8usize, 0..0x3000u64, 0..0x1800u64), 1..6)
        .prop_map(|to| Table::Klm { to });
    (0..4u64, prop_oneof![2 => mtt, 1 => ksm, 1 => klm]).prop_map(|(page, table)| Spec {
        start: page * 0x4000,
        table,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteResult {
    Bus(u64),
    Fault(usize, u64),
    Denied,
}

/// The location of one byte. `depth`: the number of parent keys.
fn byte(specs: &[Spec], key: usize, va: u64, write: bool, depth: u32) -> ByteResult {
    let spec = &specs[key];
    let Some(offset) = va
        .checked_sub(spec.start)
        .filter(|offset| *offset < spec.len())
    else {
        return ByteResult::Denied;
    };
    let down = |to: usize, va: u64| {
        if depth == 4 {
            return ByteResult::Denied;
        }
        byte(specs, to % specs.len(), va, write, depth + 1)
    };
    match &spec.table {
        Table::Mtt { shift, pages } => {
            let (page, rights) = pages[(offset >> shift) as usize];
            let needed = if write { 2 } else { 1 };
            if rights & needed == 0 {
                return ByteResult::Fault(key, va);
            }
            ByteResult::Bus(page + (offset & ((1 << shift) - 1)))
        }
        Table::Ksm { shift, to } => {
            let (to, base) = to[(offset >> shift) as usize];
            down(to, base + (offset & ((1 << shift) - 1)))
        }
        Table::Klm { to } => {
            let mut before = 0;
            for (to, base, len) in to {
                if offset - before < *len {
                    return down(*to, base + offset - before);
                }
                before += len;
            }
            ByteResult::Denied
        }
    }
}

#[test]
fn keys_translate_as_a_walk_byte_by_byte_says() {
    // A negative offset from a key at 0 wraps around to the end of the address space.
    let offset = prop_oneof![9 => 0..0x9000i64, 1 => -8..8i64];
    let access = (0..8usize, offset, 1..0x1000usize, any::<bool>());
    let input = (
        prop::collection::vec(spec(), 1..7),
        prop::collection::vec(access, 1..6),
    );
    check(&input, |(specs, accesses)| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        // Key numbers are consecutive, so the keys are known before they are created.
        let first_number = bench.device.next_number + 1;
        let name =
            |n: usize| idx_to_mkey(first_number + (n % specs.len()) as u32, crate::testing::LOW);
        let mode = bench.device.c.mode;
        for (n, spec) in specs.iter().enumerate() {
            let klm = |key: usize, va: u64, len: u64| [len << 32 | u64::from(name(key)), va];
            let (mode, shift, entries): (u64, u64, Vec<u64>) = match &spec.table {
                Table::Mtt { shift, pages } => (
                    mode.mtt,
                    *shift,
                    pages.iter().map(|(page, rights)| page | rights).collect(),
                ),
                Table::Ksm { shift, to } => (
                    mode.ksm,
                    *shift,
                    to.iter().flat_map(|(key, va)| klm(*key, *va, 0)).collect(),
                ),
                Table::Klm { to } => (
                    mode.klms,
                    0,
                    to.iter()
                        .flat_map(|(key, va, len)| klm(*key, *va, *len))
                        .collect(),
                ),
            };
            let key = bench.key(mode, (spec.start, spec.len(), shift), &entries, |_, _| {});
            prop_assert_eq!(key, name(n));
        }
        for (key, offset, len, write) in accesses {
            let key = key % specs.len();
            let va = specs[key].start.wrapping_add_signed(offset);
            let want = Want {
                write,
                remote: true,
                atomic: false,
            };
            let found = bench
                .device
                .translate(name(key), va, len, want, Some(bench.pd));
            let before = va.checked_sub(specs[key].start);
            let end = before.and_then(|before| before.checked_add(len as u64));
            let is_inside = end.is_some_and(|end| end <= specs[key].len());
            let ends: Vec<ByteResult> = (0..len as u64)
                .map(|n| byte(&specs, key, va.wrapping_add(n), write, 0))
                .collect();
            let wrong = ends.iter().find(|end| !matches!(end, ByteResult::Bus(_)));
            match found {
                Ok(pieces) => {
                    let all = pieces
                        .iter()
                        .flat_map(|p| (0..p.len as u64).map(move |n| ByteResult::Bus(p.addr + n)));
                    prop_assert!(all.eq(ends));
                }
                Err(Stop::Fault { mkey, va }) => {
                    let first = ends.iter().find(|end| matches!(end, ByteResult::Fault(..)));
                    let found = ByteResult::Fault((mkey_to_idx(mkey) - first_number) as usize, va);
                    prop_assert_eq!(first.copied(), Some(found));
                }
                Err(Stop::Denied(why)) => {
                    let denied = ends.contains(&ByteResult::Denied) || !is_inside;
                    prop_assert!(denied, "{}: {:?}", why, wrong);
                }
            }
        }
        Ok(())
    });
}

/// Keys that point to themselves, with pages of one byte and empty lists.
#[test]
fn circles_and_lists_of_nothing_come_to_an_end() {
    let entry = (
        any::<prop::sample::Index>(),
        super::number(),
        prop_oneof![Just(0u64), Just(1), 0..64u64, Just(0xffff_ffff)],
    );
    let key = (
        0..4u64,
        super::number(),
        super::number(),
        0..64u64,
        prop::collection::vec(entry, 0..200),
        any::<bool>(),
    );
    let access = (
        0..6usize,
        super::number(),
        prop_oneof![Just(4096usize), Just(1 << 20), 1..5000usize],
    );
    let input = (
        prop::collection::vec(key, 1..6),
        prop::collection::vec(access, 1..6),
    );
    check(&input, |(keys, accesses)| {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let first = bench.device.next_number + 1;
        let count = keys.len();
        let name = |n: usize| idx_to_mkey(first + (n % count) as u32, crate::testing::LOW);
        for (mode, start, len, shift, entries, length64) in keys {
            let list: Vec<u64> = entries
                .iter()
                .flat_map(|(key, va, len)| [len << 32 | u64::from(name(key.index(count))), *va])
                .collect();
            let set = |l: &Layouts, context: &mut [u8]| {
                l.mkc.length64.set(context, u64::from(length64));
            };
            bench.key(mode, (start, len, shift), &list, set);
        }
        for (key, va, len) in accesses {
            let want = Want {
                write: false,
                remote: false,
                atomic: false,
            };
            let found = bench.device.translate(name(key), va, len, want, None);
            if let Ok(pieces) = found {
                prop_assert_eq!(pieces.iter().map(|piece| piece.len).sum::<usize>(), len);
            }
        }
        Ok(())
    });
}
