//! The pages that the copy engine of a model of a GPU moved, by the model's log
//! (harness/pascal/src/witness.rs). nouveau counts no migrations, and a program in the guest
//! misses a page that leaves VRAM and is back when the program looks.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use machine::vm::RunResult;
use plan::topology::pascal;

use super::Played;

/// A line of the log. Other fields do not matter here.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Copy {
        from: Place,
        to: Place,
        len: u64,
    },
    End,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Place {
    aperture: Aperture,
    address: u64,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Aperture {
    Vram,
    System,
}

const PAGE: u64 = 4096;

/// How often each page of VRAM, by its address, was copied to and then home from.
#[derive(Debug, Default)]
struct Round {
    there: BTreeMap<u64, u64>,
    home: BTreeMap<u64, u64>,
}

/// Counts the pages of a copy.
fn add(pages: &mut BTreeMap<u64, u64>, address: u64, len: u64) {
    for page in address / PAGE..(address + len).div_ceil(PAGE) {
        *pages.entry(page * PAGE).or_default() += 1;
    }
}

/// The rounds of a machine, or why the log cannot be read.
pub struct Copies(Result<Vec<Round>, String>);

impl Copies {
    /// Reads the log of a machine with one GPU.
    pub fn read(ran: &RunResult) -> Self {
        let file = ran.dir.join(format!("{}.log", pascal(0)));
        let text = fs::read_to_string(&file).map_err(Into::into);
        let read = text.and_then(|text| rounds(&text));
        let read = read.with_context(|| file.display().to_string());
        Self(read.map_err(|error| format!("the GPU's log is no witness: {error:#}")))
    }

    /// Why the log contradicts scenario `number` of `count`. Each page goes to VRAM once, and
    /// home once: because of the NIC, or at the end, when the CPU reads the buffer.
    pub fn contradicts(&self, number: usize, count: usize, played: &Played) -> Option<String> {
        let rounds = match &self.0 {
            Ok(rounds) => rounds,
            Err(error) => return Some(error.clone()),
        };
        if rounds.len() != count {
            return Some(format!(
                "the GPU's log has {} rounds of copies to VRAM and home, for {count} scenarios",
                rounds.len()
            ));
        }
        let Round { there, home } = &rounds[number];
        let pages = played.peer_pages + played.migrations;
        let [to, from] = [there, home].map(|side| side.values().sum::<u64>());
        if (to, from) != (pages, pages) {
            return Some(format!(
                "the GPU copied {to} pages to VRAM and {from} home, instead of {pages}: \
                 {} that the NIC reached, and {} that migrated before",
                played.peer_pages, played.migrations
            ));
        }
        let mut all = there.keys().chain(home.keys());
        let times = |side: &BTreeMap<u64, u64>, page| side.get(page).copied().unwrap_or_default();
        let odd = all.find(|page| times(there, page) != 1 || times(home, page) != 1)?;
        Some(format!(
            "the GPU copied {} times to page {odd:#x} of VRAM, and {} times home from there",
            times(there, odd),
            times(home, odd)
        ))
    }
}

fn rounds(log: &str) -> Result<Vec<Round>> {
    let mut rounds = Vec::<Round>::new();
    let mut is_whole = false;
    for (number, line) in log.lines().enumerate() {
        let event = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        let (from, to, len) = match event {
            Event::Copy { from, to, len } => (from, to, len),
            Event::End => {
                is_whole = true;
                continue;
            }
            Event::Other => continue,
        };
        match (from.aperture, to.aperture) {
            (Aperture::System, Aperture::Vram) => {
                if rounds.last().is_none_or(|round| !round.home.is_empty()) {
                    rounds.push(Round::default());
                }
                let round = rounds.last_mut().expect("there is one");
                add(&mut round.there, to.address, len);
            }
            (Aperture::Vram, Aperture::System) => {
                let round = rounds.last_mut();
                let round = round.with_context(|| format!("line {}: nothing is there", number + 1));
                add(&mut round?.home, from.address, len);
            }
            _ => {}
        }
    }
    ensure!(is_whole, "it has no last line");
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use serde_json::json;

    const THERE: (&str, &str) = ("system", "vram");
    const HOME: (&str, &str) = ("vram", "system");

    /// A log in the model's format with these copies: their way, the first page of VRAM, and
    /// how many pages.
    fn log(copies: &[((&str, &str), u64, u64)]) -> String {
        let copies = copies.iter().map(|((from, to), page, pages)| {
            // Pages of host memory are in no order.
            let address = |aperture: &str| match aperture {
                "vram" => page * PAGE,
                _ => (99 - page % 7) * PAGE,
            };
            let (source, target, len) = (address(from), address(to), pages * PAGE);
            format!(
                r#"{{"n":2,"us":5,"event":"copy","chid":2,"from":{{"aperture":"{from}","address":{source}}},"to":{{"aperture":"{to}","address":{target}}},"len":{len}}}"#
            ) + "\n"
        });
        let first = "{\"n\":1,\"us\":4,\"event\":\"probe\"}\n";
        let end = "{\"n\":9,\"us\":9,\"event\":\"end\",\"registers\":9,\"to_vram\":4096}\n";
        format!("{first}{}{end}", copies.collect::<String>())
    }

    fn copies(copies: &[((&str, &str), u64, u64)]) -> Copies {
        Copies(Ok(rounds(&log(copies)).unwrap()))
    }

    fn played(peer: u64, migrations: u64) -> Played {
        serde_json::from_value(json!({
            "map_type": "bus_addr", "translated": false, "peer_pages": peer,
            "home_pages": migrations, "migrations": migrations, "bytes": 0, "faults": 0,
            "retries": 0, "intact": true, "judged": true, "reasons": {}, "error": "",
        }))
        .unwrap()
    }

    #[test]
    fn each_page_goes_there_and_home_once() {
        let seen = copies(&[
            (THERE, 8, 1),
            (THERE, 5, 1),
            (HOME, 5, 1),
            (("vram", "vram"), 64, 16),
            (HOME, 8, 1),
            // All at once, and home in two copies.
            (THERE, 512, 512),
            (HOME, 512, 100),
            (HOME, 612, 412),
        ]);
        assert_eq!(seen.contradicts(0, 2, &played(1, 1)), None);
        assert_eq!(seen.contradicts(1, 2, &played(0, 512)), None);
        let told = seen.contradicts(1, 2, &played(511, 0)).unwrap();
        let expected = "the GPU copied 512 pages to VRAM and 512 home, instead of 511";
        assert!(told.starts_with(expected), "{told}");
        // Nothing was copied for the third.
        let told = seen.contradicts(0, 3, &played(1, 1)).unwrap();
        assert!(told.contains("2 rounds"), "{told}");
    }

    #[test]
    fn a_migration_that_the_guest_missed_is_seen() {
        // A page went home and was back before the guest looked.
        let again = copies(&[(THERE, 0, 2), (HOME, 0, 1), (THERE, 0, 1), (HOME, 0, 2)]);
        assert!(again.contradicts(0, 1, &played(2, 0)).is_some());
        // A page that went home twice without being copied to VRAM again.
        let twice = copies(&[(THERE, 0, 2), (HOME, 0, 2), (HOME, 0, 1)]);
        assert!(twice.contradicts(0, 1, &played(2, 0)).is_some());
        // A page that never came home, and one that the guest did not see there.
        let lost = copies(&[(THERE, 0, 2), (HOME, 0, 1)]);
        assert!(lost.contradicts(0, 1, &played(2, 0)).is_some());
        let unseen = copies(&[(THERE, 0, 3), (HOME, 0, 3)]);
        assert!(unseen.contradicts(0, 1, &played(2, 0)).is_some());
    }

    #[test]
    fn pages_are_compared_one_by_one() {
        // As many pages in each direction, and one of them is another one.
        let told = |log: &[_]| copies(log).contradicts(0, 1, &played(2, 0)).unwrap();
        let twice = told(&[(THERE, 4, 2), (HOME, 4, 1), (HOME, 4, 1)]);
        assert!(twice.contains("1 times to page 0x4000 of VRAM, and 2 times home"));
        let other = told(&[(THERE, 4, 2), (HOME, 5, 1), (HOME, 6, 1)]);
        assert!(other.contains("1 times to page 0x4000 of VRAM, and 0 times home"));
        let same = told(&[(THERE, 4, 1), (THERE, 4, 1), (HOME, 4, 2)]);
        assert!(same.contains("2 times to page 0x4000 of VRAM, and 1 times home"));
        let not_there = told(&[(THERE, 4, 1), (THERE, 4, 1), (HOME, 4, 1), (HOME, 4, 1)]);
        assert!(not_there.contains("2 times to page 0x4000 of VRAM, and 2 times home"));
    }

    #[test]
    fn a_log_that_does_not_tell_is_an_error() {
        let told = |log: &str| format!("{:#}", rounds(log).unwrap_err());
        assert_eq!(told(""), "it has no last line");
        assert!(told("nonsense\n").starts_with("line 1: "));
        assert_eq!(told(&log(&[(HOME, 0, 1)])), "line 2: nothing is there");
        let ran = RunResult::quiet(Path::new("/nonexistent"));
        let told = Copies::read(&ran).contradicts(0, 1, &played(1, 0)).unwrap();
        assert!(told.contains("/nonexistent/pascal0.log"), "{told}");
    }
}
