use super::*;

use std::fs;

use tempfile::TempDir;

const PAGES: usize = 8;

struct Vram {
    dir: TempDir,
    bytes: Vec<u8>,
}

impl Vram {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bytes = (0..PAGES * PAGE).map(|i| (i * 7 % 251) as u8).collect();
        let vram = Self { dir, bytes };
        vram.write();
        vram
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("vram0")
    }

    fn write(&self) {
        fs::write(self.path(), &self.bytes).unwrap();
    }

    fn put(&mut self, number: usize, content: &[u8]) {
        self.bytes[number * PAGE..][..PAGE].copy_from_slice(content);
        self.write();
    }

    fn judge(&self) -> Judge {
        Judge::new(vec![self.path()])
    }
}

const SNAPSHOT: &str = r#"{"op":"snapshot","gpu":0}"#;

/// Page 2 holds page 5 of seed 9, and page 3 was freed.
const CHECK: &str =
    r#"{"op":"check","gpu":0,"pages":[{"off":8192,"seed":9,"index":5}],"freed":[12288]}"#;

fn good() -> (Vram, Judge) {
    let mut vram = Vram::new();
    let mut judge = vram.judge();
    assert_eq!(judge.answer(SNAPSHOT), "ok");
    vram.put(2, &pattern::page(9, 5));
    vram.put(3, &[POISON; PAGE]);
    (vram, judge)
}

#[test]
fn what_is_right_is_ok() {
    let (_vram, mut judge) = good();
    assert_eq!(judge.answer(CHECK), "ok");
}

#[test]
fn a_wrong_byte_anywhere_is_seen() {
    let (mut vram, mut judge) = good();
    // A prime step visits every page and, over time, every offset in a page.
    for byte in (0..PAGES * PAGE).step_by(509).chain([PAGES * PAGE - 1]) {
        vram.bytes[byte] ^= 1;
        vram.write();
        let answer = judge.answer(CHECK);
        let page = format!("{:#x}", byte / PAGE * PAGE);
        assert!(answer.starts_with("fail "), "byte {byte}: {answer}");
        assert!(answer.contains(&page), "byte {byte}: {answer}");
        assert!(
            answer.contains(&format!("byte {},", byte % PAGE)),
            "{answer}"
        );
        vram.bytes[byte] ^= 1;
    }
    vram.write();
    assert_eq!(judge.answer(CHECK), "ok");
}

#[test]
fn the_wrong_page_of_the_right_seed_is_seen() {
    let (mut vram, mut judge) = good();
    vram.put(2, &pattern::page(9, 6));
    assert!(judge.answer(CHECK).starts_with("fail "));
    vram.put(2, &pattern::page(8, 5));
    assert!(judge.answer(CHECK).starts_with("fail "));
}

#[test]
fn contains_does_not_look_elsewhere() {
    let (mut vram, mut judge) = good();
    vram.bytes[0] ^= 1;
    vram.write();
    let ask = r#"{"op":"contains","gpu":0,"pages":[{"off":8192,"seed":9,"index":5}]}"#;
    assert_eq!(judge.answer(ask), "ok");
    vram.bytes[2 * PAGE + 100] ^= 1;
    vram.write();
    assert!(judge.answer(ask).starts_with("fail "));
}

#[test]
fn questions_that_make_no_sense_fail() {
    let (_vram, mut judge) = good();
    for ask in [
        "",
        "hello",
        r#"{"op":"forget","gpu":0}"#,
        r#"{"op":"snapshot","gpu":1}"#,
        r#"{"op":"contains","gpu":0,"pages":[{"off":1,"seed":9,"index":5}]}"#,
        r#"{"op":"contains","gpu":0,"pages":[{"off":32768,"seed":9,"index":5}]}"#,
        r#"{"op":"contains","gpu":0,"pages":[{"off":18446744073709547520,"seed":9,"index":5}]}"#,
        r#"{"op":"check","gpu":0,"pages":[],"freed":[12288,12288]}"#,
        r#"{"op":"check","gpu":0,"pages":[{"off":8192,"seed":9,"index":5}],"freed":[8192]}"#,
    ] {
        assert!(judge.answer(ask).starts_with("fail "), "{ask}");
    }
}

#[test]
fn a_check_needs_a_snapshot() {
    let vram = Vram::new();
    let answer = vram.judge().answer(CHECK);
    assert!(answer.contains("no snapshot"), "{answer}");
}

#[test]
fn a_file_that_shrinks_fails() {
    let (mut vram, mut judge) = good();
    vram.bytes.truncate(7 * PAGE);
    vram.write();
    assert!(judge.answer(CHECK).starts_with("fail "));
}

#[test]
fn lines_are_answered_in_order() {
    let (_vram, mut judge) = good();
    let mut answers = Vec::new();
    let asked = format!("{CHECK}\n\nnonsense\n{CHECK}\n");
    let answer = |question: &str| judge.answer(question);
    serve(answer, asked.as_bytes(), &mut answers, |_, _| ()).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    let answers: Vec<_> = answers.lines().collect();
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0], "ok");
    assert!(answers[1].starts_with("fail not a question"));
    assert_eq!(answers[2], "ok");
}

#[test]
fn contents_that_are_somewhere() {
    let mut vram = Vram::new();
    let mut judge = vram.judge();
    let ask = |pages: &str| format!(r#"{{"op":"somewhere","gpu":0,"pages":[{pages}]}}"#);
    let (five, six) = (r#"{"seed":9,"index":5}"#, r#"{"seed":9,"index":6}"#);
    assert_eq!(judge.answer(&ask("")), "ok");
    let told = judge.answer(&ask(five));
    assert!(told.contains("0 of 1 pages; page 5 of seed 0x9"), "{told}");
    vram.put(7, &pattern::page(9, 5));
    assert_eq!(judge.answer(&ask(five)), "ok");
    assert!(
        judge
            .answer(&ask(&format!("{five},{six}")))
            .contains("1 of 2")
    );
    // The same content twice needs two pages.
    assert!(
        judge
            .answer(&ask(&format!("{five},{five}")))
            .contains("1 of 2")
    );
    vram.put(0, &pattern::page(9, 5));
    vram.put(1, &pattern::page(9, 6));
    assert_eq!(judge.answer(&ask(&format!("{five},{six},{five}"))), "ok");
    // The content is after a hole.
    let file = fs::File::options().write(true).open(vram.path()).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(&pattern::page(3, 4), 1 << 30).unwrap();
    assert_eq!(judge.answer(&ask(r#"{"seed":3,"index":4}"#)), "ok");
    assert!(judge.answer(&ask(five)).contains("0 of 1"));
}

/// Page tables for one page, in the format of nouveau's `vmmgp100.c`. Pages 0 to 4 are the
/// levels, starting with the first directory.
const VA: u64 = 0x7f12_3456_7000;

/// The bit of an entry that forbids writes.
const READ_ONLY: u64 = 1 << 6;

fn map(vram: &mut Vram, to: usize) {
    map_with(vram, to, 0);
}

fn map_with(vram: &mut Vram, to: usize, bits: u64) {
    let mut set = |table: usize, at: u64, entry: u64| {
        let at = table * PAGE + at as usize;
        vram.bytes[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    };
    let index = |shift: u32, bits: u32| (VA >> shift) & ((1 << bits) - 1);
    // Bits 1 and 2: the next table is in VRAM. The entry holds the address shifted right
    // by four.
    let table = |number: usize| (number as u64) << 8 | 1 << 1;
    set(0, index(47, 2) * 8, table(1));
    set(1, index(38, 9) * 8, table(2));
    set(2, index(29, 9) * 8, table(3));
    set(3, index(21, 8) * 16 + 8, table(4));
    set(4, index(12, 9) * 8, (to as u64) << 8 | bits | 1);
    vram.write();
}

#[test]
fn where_page_tables_lead() {
    let mut vram = Vram::new();
    vram.bytes.fill(0);
    vram.put(6, &pattern::page(9, 5));
    let mut judge = vram.judge();
    let ask = |va: u64, content: &str| {
        format!(r#"{{"op":"mapped","gpu":0,"pages":[{{"va":{va},"content":{content}}}]}}"#)
    };
    let (five, six) = (r#"{"seed":9,"index":5}"#, r#"{"seed":9,"index":6}"#);
    assert_eq!(judge.answer(&ask(VA, "null")), "ok");
    let told = judge.answer(&ask(VA, five));
    assert!(told.ends_with("0x7f1234567000 is not mapped"), "{told}");

    map(&mut vram, 6);
    assert_eq!(judge.answer(&ask(VA, five)), "ok");
    let zeros = ask(VA, "null,\"zeros\":true");
    let told = judge.answer(&zeros);
    assert!(told.ends_with("which is not a page of zeros"), "{told}");
    map(&mut vram, 5);
    assert_eq!(judge.answer(&zeros), "ok");
    map_with(&mut vram, 5, READ_ONLY);
    let told = judge.answer(&zeros);
    assert!(
        told.ends_with("0x7f1234567000 is mapped read-only"),
        "{told}"
    );
    map(&mut vram, 6);
    for content in [six, "null"] {
        let told = judge.answer(&ask(VA, content));
        assert!(told.contains("is mapped to vram 0x6000"), "{told}");
    }
    assert_eq!(judge.answer(&ask(VA + PAGE as u64, "null")), "ok");
    // All address spaces count. This adds another one with the same tables.
    let root = vram.bytes[..PAGE].to_vec();
    vram.put(7, &root);
    assert_eq!(judge.answer(&ask(VA, five)), "ok");
    vram.bytes[..PAGE].fill(0);
    vram.write();
    assert_eq!(judge.answer(&ask(VA, five)), "ok");
    map(&mut vram, 5);
    let told = judge.answer(&ask(VA, five));
    assert!(told.contains("vram 0x5000, which is not page 5"), "{told}");
}

#[test]
fn what_is_neither_free_nor_new() {
    let mut vram = Vram::new();
    let found = |vram: &Vram| neither_free_nor_new(&vram.path()).unwrap();
    assert_eq!(found(&vram).len(), PAGES);
    for number in 0..PAGES {
        let byte = if number < 3 { POISON } else { 0 };
        vram.put(number, &[byte; PAGE]);
    }
    assert_eq!(found(&vram), [0u64; 0]);
    // A byte that came late.
    for (number, byte) in [(1, 0), (7, POISON)] {
        let mut page = vram.bytes[number * PAGE..][..PAGE].to_vec();
        page[PAGE - 1] = byte;
        vram.put(number, &page);
    }
    assert_eq!(found(&vram), [PAGE as u64, 7 * PAGE as u64]);
    assert!(neither_free_nor_new(Path::new("/nowhere/vram0")).is_err());
}
