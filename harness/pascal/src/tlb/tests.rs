use super::*;
use crate::testing::{Board, READ_ONLY, ram};

/// Two sets of page tables that map one page each at the same address, and their TLB.
struct Setting {
    board: Board,
    one: Tables,
    other: Tables,
    tlb: Tlb,
}

const VA: u64 = 0x40_0000;
const OLD: u64 = 0x80_0000;
const NEW: u64 = 0xa0_0000;

impl Setting {
    fn new(is_used: bool) -> Self {
        let mut board = Board::new();
        let mut tables = || {
            let (instance, root) = board.instance((1 << 47) - 1);
            board.map(root, VA, 21, Place::vram(OLD), 0);
            Tables::of(board.space(), instance.address).unwrap()
        };
        let (one, other) = (tables(), tables());
        let mut tlb = Tlb::new(Instant::now());
        tlb.is_used = is_used;
        Self {
            board,
            one,
            other,
            tlb,
        }
    }

    fn place(&mut self, tables: Tables, va: u64) -> Result<Option<Place>, Fault> {
        self.tlb.place(&tables, self.board.space(), va)
    }

    fn is_first(&mut self, va: u64) -> bool {
        let found = self.tlb.translate(&self.one, self.board.space(), va);
        found.unwrap().is_first
    }

    fn is_old(&mut self, tables: Tables) -> bool {
        match self.place(tables, VA + 8) {
            Ok(Some(place)) if place == Place::vram(OLD + 8) => true,
            Ok(Some(place)) if place == Place::vram(NEW + 8) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Maps both to the new place, after the old translation was used.
    fn remap(&mut self) {
        for tables in [self.one, self.other] {
            assert!(self.is_old(tables));
            self.board.map(tables.root, VA, 21, Place::vram(NEW), 0);
        }
    }
}

#[test]
fn a_stale_translation_is_used_until_it_is_invalidated() {
    let mut setting = Setting::new(true);
    setting.remap();
    let (one, other) = (setting.one, setting.other);
    assert!(setting.is_old(one) && setting.is_old(one));
    let told = setting.tlb.take_stale();
    assert_eq!(told.len(), 2);
    assert!(
        told[0].starts_with("0x400008 is vram 0xa00008; it was vram 0x800008, used from "),
        "{}",
        told[0]
    );
    assert!(
        told[0].ends_with(" us, there at each invalidation, never invalidated"),
        "{told:?}"
    );
    setting.tlb.invalidate(Some(one.root), 7);
    assert!(!setting.is_old(one));
    assert!(setting.tlb.take_stale().is_empty());
    // The entries of other tables stay.
    assert!(setting.is_old(other));
    setting.tlb.invalidate(None, 8);
    assert!(!setting.is_old(other) && !setting.is_old(one));
}

#[test]
fn the_tables_lead_if_no_one_wants_a_cache() {
    let mut setting = Setting::new(false);
    setting.remap();
    let one = setting.one;
    assert!(!setting.is_old(one));
    assert_eq!(setting.tlb.take_stale().len(), 1);
    // It is reported once: then the TLB has the new translation, whatever its page size.
    assert!(!setting.is_old(one));
    assert!(setting.tlb.take_stale().is_empty());
    let entry = setting.board.entry(one.root, VA, 21);
    setting.board.set(entry, 0);
    for (shift, to) in [(12, ram(0)), (21, Place::vram(OLD))] {
        setting.board.map(one.root, VA, shift, to, 0);
        for told in [1, 0] {
            assert_eq!(setting.place(one, VA), Ok(Some(to)));
            assert_eq!(setting.tlb.take_stale().len(), told);
        }
    }
}

#[test]
fn a_page_that_is_gone_or_read_only_is_stale() {
    let mut setting = Setting::new(true);
    let one = setting.one;
    assert!(setting.is_old(one));
    let entry = setting.board.entry(one.root, VA, 21);
    setting.board.set(entry, 0);
    assert!(setting.is_old(one));
    assert!(setting.tlb.take_stale()[0].contains("no page table for 0x400008"));
    let to = Place::vram(OLD);
    setting.board.map(one.root, VA, 21, to, READ_ONLY);
    let space = setting.board.space();
    assert_eq!(setting.tlb.write(&one, space, VA, &[1]), Ok(()));
    setting.tlb.invalidate(Some(one.root), 7);
    let written = setting.tlb.write(&one, space, VA, &[1]);
    assert_eq!(written, Err(Fault::ReadOnly(VA)));
}

#[test]
fn a_page_of_another_size_does_not_hide_what_is_stale() {
    let mut setting = Setting::new(true);
    let one = setting.one;
    setting.remap();
    let entry = setting.board.entry(one.root, VA, 21);
    setting.board.set(entry, 0);
    setting.board.map(one.root, VA, 12, ram(0), 0);
    assert!(setting.is_old(one));
    setting.tlb.invalidate(Some(one.root), 7);
    assert_eq!(setting.place(one, VA + 8), Ok(Some(ram(8))));
    // The history reports the last page, and not the larger page before it.
    let told = setting.tlb.history(&one, VA + 8);
    assert!(told.starts_with("it was system 0x10000008"), "{told}");
}

#[test]
fn each_part_of_a_page_has_a_first_time() {
    let mut setting = Setting::new(false);
    assert!(setting.is_first(VA) && setting.is_first(VA + 0x1000));
    assert!(!setting.is_first(VA + 8) && !setting.is_first(VA + 0x1ff8));
    setting.tlb.invalidate(Some(setting.one.root), 7);
    assert!(setting.is_first(VA + 8));
}

#[test]
fn what_an_address_was_is_told_after_invalidations() {
    let mut setting = Setting::new(true);
    let (one, other) = (setting.one, setting.other);
    let history = |setting: &Setting| setting.tlb.history(&one, VA);
    assert_eq!(history(&setting), "it was never used, never invalidated");
    assert!(setting.is_old(one));
    let invalidate = |setting: &mut Setting, tables: Tables, line| {
        setting.tlb.invalidate(Some(tables.root), line);
        setting.tlb.look(&tables, setting.board.space(), line);
    };
    let since = |setting: &Setting| {
        let told = history(setting);
        let (what, since) = told.split_once(" us, ").unwrap();
        let begin = "it was vram 0x800000, used from ";
        assert!(what.starts_with(begin), "{told}");
        since.to_owned()
    };
    invalidate(&mut setting, one, 7);
    let there = "there at each invalidation, invalidated last in line 7";
    assert_eq!(since(&setting), there);
    // A translation that is still mapped keeps the time of its first use.
    let first = |setting: &Setting| history(setting).split_once(" to ").unwrap().0.to_owned();
    let mapped = first(&setting);
    std::thread::sleep(std::time::Duration::from_micros(1));
    setting.remap();
    assert_eq!(first(&setting), mapped);
    invalidate(&mut setting, other, 8);
    assert_eq!(since(&setting), there);
    invalidate(&mut setting, one, 9);
    invalidate(&mut setting, one, 10);
    let gone = "gone by line 9, invalidated last in line 10";
    assert_eq!(since(&setting), gone);
    // A new mapping starts a new history, even if it leads to the same place as the old one.
    setting.board.map(one.root, VA, 21, Place::vram(OLD), 0);
    assert!(setting.is_old(one));
    assert_ne!(first(&setting), mapped);
    assert!(since(&setting).starts_with("there at each"));
    let never = setting.tlb.history(&one, VA + (1 << 21));
    assert_eq!(never, "it was never used, invalidated last in line 10");
    setting.tlb.forget();
    assert_eq!(history(&setting), "it was never used, never invalidated");
}
