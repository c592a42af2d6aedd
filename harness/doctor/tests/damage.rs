//! The doctor must not panic, whatever a dump or a host contains.

use std::collections::BTreeMap;

use doctor::picture::Entry;
use doctor::report::{Effect, PairKind};
use doctor::rules::Verdict;
use doctor::text::{self, Paper};
use doctor::{Host, Known, Picture, diagnose};
use proptest::prelude::*;

mod common;

/// Does everything that the doctor does with a picture. The output does not matter.
fn examine(picture: Picture, width: usize) {
    let dump = picture.dump().unwrap();
    assert_eq!(Picture::parse(&dump).unwrap().dump().unwrap(), dump);
    let host = Host::new(picture);
    let report = diagnose::diagnose(&host, &Known::read().unwrap());
    for colour in [false, true] {
        text::render(&host, &report, Paper { width, colour });
    }
    serde_json::to_string(&report).unwrap();
}

fn host() -> impl Strategy<Value = String> {
    prop::sample::select(common::names())
}

/// Words that files may contain. The doctor must not trust them.
fn garbage() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("0xffffffffffffffffffff".to_owned()),
        Just("-1".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("[".to_owned()),
        Just("]auto[".to_owned()),
        Just("0xffffffffffffffff 0x0 0x0\n0x0 0xffffffffffffffff".to_owned()),
        Just("pci:".to_owned()),
        Just("/sys/devices/pci0000:00/ffff:ff:1f.7/0000:03:00.0".to_owned()),
        Just("/sys/devices/pciffff:ff/0000:04:00.0".to_owned()),
        Just("GenuineIntel\u{1b}[31m".to_owned()),
        any::<String>(),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| format!("{n:#x}")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_dump_with_other_letters(
        name in host(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..8),
        end in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut letters: Vec<char> = common::dump(&name).chars().collect();
        for (at, letter) in changes {
            let at = at.index(letters.len());
            letters[at] = letter;
        }
        if is_cut {
            letters.truncate(end.index(letters.len()));
        }
        let text: String = letters.into_iter().collect();
        if let Ok(picture) = Picture::parse(&text) {
            examine(picture, 80);
        }
    }

    #[test]
    fn files_with_garbage_or_without(
        name in host(),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), garbage(), 0..4),
            1..12,
        ),
        width in 1_usize..200,
    ) {
        let mut picture = common::picture(&name);
        for (folder, file, text, how) in changes {
            let folders = picture.folders.len();
            let Some((path, entries)) = picture.folders.iter().nth(folder.index(folders)) else {
                continue;
            };
            let files: Vec<_> = entries.keys().cloned().collect();
            if files.is_empty() {
                continue;
            }
            let path = format!("{path}/{}", file.get(&files));
            picture.put(&path, match how {
                0 => Entry::Text(text),
                1 => Entry::Link { link: text },
                2 => Entry::Unreadable { unreadable: "not readable as this user".to_owned() },
                _ => {
                    let lines = text.chars().map(|c| {
                        (format!("{:x}", u32::from(c)), format!("{text} ff 0d 00"))
                    });
                    Entry::Config { size: usize::MAX, bytes: lines.collect() }
                }
            });
        }
        examine(picture, width);
    }

    #[test]
    fn configuration_spaces_of_noise(
        name in host(),
        bytes in prop::collection::vec(any::<u8>(), 0..4200),
        which in any::<prop::sample::Index>(),
    ) {
        let mut picture = common::picture(&name);
        let devices: Vec<_> = picture.list(doctor::capture::DEVICES).map(str::to_owned).collect();
        let path = format!("{}/{}/config", doctor::capture::DEVICES, which.get(&devices));
        let (size, bytes) = doctor::config::Config::new(bytes).without_secrets();
        picture.put(&path, Entry::Config { size, bytes });
        examine(picture, 100);
    }
}

/// What a report says of each pair: its verdict, or the verdicts that are possible.
fn said(picture: Picture) -> BTreeMap<(PairKind, String, String), Vec<Verdict>> {
    let (report, _) = common::report(picture);
    let pairs = report.pairs.into_iter();
    pairs
        .map(|pair| {
            let mut effects = pair
                .obstacles
                .iter()
                .map(|id| report.obstacles[id - 1].effect);
            let is_said = effects.any(|effect| effect <= Effect::Unknown);
            assert!(
                is_said || pair.verdict != Verdict::Unknown,
                "says not why: {pair:?}"
            );
            let verdicts = match pair.verdict {
                Verdict::Unknown => pair.possible,
                known => vec![known],
            };
            ((pair.kind, pair.provider, pair.client), verdicts)
        })
        .collect()
}

/// Each file of each host is missing once. Then less may be known, and nothing else may be said.
#[test]
fn a_missing_file_makes_no_verdict_wrong() {
    let mut seen = 0;
    for name in common::names() {
        let whole = common::picture(&name);
        let before = said(whole.clone());
        for (folder, entries) in &whole.folders {
            for file in entries.keys() {
                let mut picture = whole.clone();
                picture.folders.get_mut(folder).unwrap().remove(file);
                for (pair, verdicts) in said(picture.clone()) {
                    let Some(expected) = before.get(&pair) else {
                        continue;
                    };
                    assert!(
                        expected.iter().all(|verdict| verdicts.contains(verdict)),
                        "{name} without {folder}/{file}: {pair:?}: {verdicts:?}, not {expected:?}"
                    );
                    seen += 1;
                }
                examine(picture, 100);
            }
        }
    }
    assert!(seen > 1000, "{seen}");
}
