use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::testing::{self, Board, ram};
use crate::tlb::Tlb;

const LIMIT_AT: u64 = (1 << 47) - 1;

fn board() -> (Board, Tables, Place) {
    let mut board = Board::new();
    let (instance, root) = board.instance(LIMIT_AT);
    let tables = Tables::of(board.space(), instance.address).unwrap();
    assert_eq!(tables.root, root);
    (board, tables, root)
}

fn place(board: &Board, tables: &Tables, va: u64) -> Result<Place, Fault> {
    let page = tables.translate(board.space(), va)?;
    Ok(page.at(va).unwrap())
}

fn tlb() -> Tlb {
    Tlb::new(Instant::now())
}

#[test]
fn pages_of_each_size_lead_where_their_entries_say() {
    let (mut board, tables, root) = board();
    board.map(root, 0x1000, 12, Place::vram(0x5000), 0);
    board.map(root, 0x40_0000, 21, Place::vram(0x80_0000), 0xfe << 56);
    board.map(root, 0x61_0000, 16, ram(0x2_0000), 0);
    board.map(root, 0x7fff_ffff_f000, 12, ram(0), 0);
    let at = |va| place(&board, &tables, va);
    assert_eq!(at(0x1234), Ok(Place::vram(0x5234)));
    assert_eq!(at(0x5f_ffff), Ok(Place::vram(0x9f_ffff)));
    assert_eq!(at(0x61_fedc), Ok(ram(0x2_fedc)));
    assert_eq!(at(0x7fff_ffff_ffff), Ok(ram(0xfff)));
    let kind = |va| tables.translate(board.space(), va).unwrap().kind;
    assert_eq!((kind(0x1000), kind(0x40_0000)), (0, 0xfe));
    let left = |va| tables.translate(board.space(), va).unwrap().left(va);
    assert_eq!((left(0x1001), left(0x61_0000)), (0xfff, 0x1_0000));
}

#[test]
fn what_is_not_mapped_is_a_fault() {
    let (mut board, tables, root) = board();
    board.map(root, 0x1000, 12, Place::vram(0x5000), testing::READ_ONLY);
    let read = |va, len| tlb().read(&tables, board.space(), va, &mut vec![0; len]);
    assert_eq!(read(0x2000, 1), Err(Fault::NoPage(0x2000)));
    assert_eq!(read(0x1fff, 2), Err(Fault::NoPage(0x2000)));
    assert_eq!(read(0x40_0000, 1), Err(Fault::NoTable(0x40_0000)));
    assert_eq!(read(LIMIT_AT + 1, 1), Err(Fault::Limit(LIMIT_AT + 1)));
    assert_eq!(read(u64::MAX, 2), Err(Fault::Limit(u64::MAX)));
    let write = tlb().write(&tables, board.space(), 0x1000, &[1]);
    assert_eq!(write, Err(Fault::ReadOnly(0x1000)));
}

#[test]
fn an_entry_for_a_large_page_decides_about_the_small_ones() {
    let (mut board, tables, root) = board();
    board.map(root, 0x1_0000, 12, Place::vram(0x5000), 0);
    let large = board.entry(root, 0x1_0000, 16);
    assert_eq!(place(&board, &tables, 0x1_0000), Ok(Place::vram(0x5000)));
    board.set(large, testing::PRIVILEGED);
    assert!(place(&board, &tables, 0x1_0000).is_err());
    board.set(large, testing::VOLATILE);
    let mut data = [1; 4];
    tlb()
        .read(&tables, board.space(), 0x1_0000, &mut data)
        .unwrap();
    assert_eq!(data, [0; 4]);
    tlb()
        .write(&tables, board.space(), 0x1_0000, &data)
        .unwrap();
    board.map(root, 0x1_0000, 16, Place::vram(0x3_0000), 0);
    assert_eq!(place(&board, &tables, 0x1_1000), Ok(Place::vram(0x3_1000)));
}

#[test]
fn data_crosses_pages() {
    let (mut board, tables, root) = board();
    board.map(root, 0x1000, 12, Place::vram(0x5000), 0);
    board.map(root, 0x2000, 12, ram(0x3000), 0);
    tlb()
        .write(&tables, board.space(), 0x1ffe, &[1, 2, 3, 4])
        .unwrap();
    assert_eq!(board.ram_at(0x3000, 2), [3, 4]);
    let mut data = [0; 4];
    tlb()
        .read(&tables, board.space(), 0x1ffe, &mut data)
        .unwrap();
    assert_eq!(data, [1, 2, 3, 4]);
}

#[test]
fn tables_of_the_first_version_are_refused() {
    let mut board = Board::new();
    let (instance, root) = board.instance(LIMIT_AT);
    board.set(instance.after(0x200), root.address);
    let tables = Tables::of(board.space(), instance.address);
    assert_eq!(tables, Err(Fault::Version(instance.address)));
    assert!(Tables::of(board.space(), testing::VRAM).is_err());
}

/// What a driver writes for a page.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Page {
        to: Place,
        is_writable: bool,
        kind: u8,
    },
    Sparse,
    /// No page, and of a large one: no small pages behind it either.
    Hidden,
}

fn entry() -> impl Strategy<Value = Entry> {
    let to = (1..16u64, any::<bool>()).prop_map(|(to, is_ram)| match is_ram {
        false => Place::vram(to << 21),
        true => Place {
            aperture: Aperture::System,
            address: to << 40,
        },
    });
    let kind = prop_oneof![Just(0u8), any::<u8>()];
    let page = (to, any::<bool>(), kind).prop_map(|(to, is_writable, kind)| Entry::Page {
        to,
        is_writable,
        kind,
    });
    prop_oneof![4 => page, 1 => Just(Entry::Sparse), 1 => Just(Entry::Hidden)]
}

/// An address, log2 of a page size, and its entry. There are few regions, so pages of
/// different sizes meet.
fn page() -> impl Strategy<Value = (u64, u32, Entry)> {
    let region = prop_oneof![Just(0u64), Just(0x2000_0000), Just(0x4000_0000_0000)];
    let shift = prop_oneof![Just(12u32), Just(16), Just(21)];
    let all = (region, shift, 0..3u64, 0..40u64, entry());
    all.prop_map(|(region, shift, block, page, entry)| {
        let inside = (page << shift) & 0x1f_ffff;
        (region + (block << 21) + inside, shift, entry)
    })
}

fn write(board: &mut Board, root: Place, va: u64, shift: u32, entry: Entry) {
    match entry {
        Entry::Page {
            to,
            is_writable,
            kind,
        } => {
            let read_only = if is_writable { 0 } else { testing::READ_ONLY };
            let bits = read_only | u64::from(kind) << 56;
            board.map(root, va, shift, to, bits);
        }
        Entry::Sparse | Entry::Hidden => {
            let bits = match entry {
                Entry::Sparse => testing::VOLATILE,
                _ => testing::PRIVILEGED,
            };
            let at = board.entry(root, va, shift);
            board.set(at, bits);
        }
    }
}

/// The page that a simple map says is there: the largest that is mapped.
fn look_up(simple: &BTreeMap<(u32, u64), Entry>, va: u64) -> Option<Page> {
    for shift in [21, 16, 12] {
        match simple.get(&(shift, va >> shift)) {
            Some(Entry::Page {
                to,
                is_writable,
                kind,
            }) => {
                return Some(Page {
                    start: Some(*to),
                    shift,
                    is_writable: *is_writable,
                    kind: *kind,
                });
            }
            Some(Entry::Sparse) => return Some(sparse(shift)),
            Some(Entry::Hidden) => return None,
            None => {}
        }
    }
    None
}

proptest! {
    /// Compares the walk with a simple map.
    #[test]
    fn random_tables_lead_where_a_simple_map_says(
        pages in prop::collection::vec(page(), 1..24),
        offsets in prop::collection::vec(0..0x20_0000u64, 4),
        limit in prop_oneof![Just(LIMIT_AT), 0..0x60_0000u64],
    ) {
        let (mut board, mut tables, root) = board();
        tables.limit = limit;
        let mut simple: BTreeMap<(u32, u64), Entry> = BTreeMap::new();
        for (va, shift, entry) in pages {
            // A driver does not replace a 2 MiB page with tables, or tables with a 2 MiB page.
            let is_free = simple.keys().all(|(s, n)| (n << s) >> 21 != va >> 21);
            if simple.contains_key(&(21, va >> 21)) || (shift == 21 && !is_free) {
                continue;
            }
            write(&mut board, root, va, shift, entry);
            simple.insert((shift, va >> shift), entry);
        }
        for (shift, number) in simple.keys() {
            let within = offsets.iter().map(|offset| offset & ((1 << shift) - 1));
            let here = within.map(|offset| (number << shift) + offset);
            let block = (number << shift) & !0x1f_ffff;
            for va in here.chain(offsets.iter().map(|offset| block + offset)) {
                let seen = tables.translate(board.space(), va);
                let expected = look_up(&simple, va).filter(|_| va <= limit);
                prop_assert_eq!(seen.ok(), expected, "{:#x}", va);
            }
        }
    }

    /// Invalid entries lead to a fault or a place, and never crash the model.
    #[test]
    fn random_entries_do_not_end_the_model(
        entries in prop::collection::vec(any::<u64>(), 16),
        va in any::<u64>(),
    ) {
        let (mut board, tables, root) = board();
        let va = va & LIMIT_AT;
        let slot = board.entry(root, va, 12);
        let large = board.entry(root, va, 16);
        for entry in entries {
            board.set(slot, entry);
            let _ = tlb().read(&tables, board.space(), va, &mut [0; 16]);
            board.set(large, entry.rotate_left(7));
            let _ = tlb().write(&tables, board.space(), va, &[0; 16]);
            board.set(root.after(((va >> 47) & 3) * 8), entry.rotate_left(13));
            let _ = tlb().read(&tables, board.space(), va, &mut [0; 16]);
        }
    }
}
