//! The pages that the copy engine of a model of a GPU moved, by the model's log
//! (harness/pascal/src/witness.rs). nouveau counts no migrations, and a program in the guest
//! misses a page that leaves VRAM and is back when the program looks.

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
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Aperture {
    Vram,
    System,
}

/// Bytes that went to VRAM, and then home.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    there: u64,
    home: u64,
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
        let Round { there, home } = rounds[number];
        let bytes = (played.peer_pages + played.migrations) * 4096;
        ((there, home) != (bytes, bytes)).then(|| {
            format!(
                "the GPU copied {there} bytes to VRAM and {home} home, instead of {bytes}: \
                 {} pages that the NIC reached, and {} that migrated before",
                played.peer_pages, played.migrations
            )
        })
    }
}

fn rounds(log: &str) -> Result<Vec<Round>> {
    let mut rounds = Vec::<Round>::new();
    let mut is_whole = false;
    for (number, line) in log.lines().enumerate() {
        let event = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        let (from, to, len) = match event {
            Event::Copy { from, to, len } => (from.aperture, to.aperture, len),
            Event::End => {
                is_whole = true;
                continue;
            }
            Event::Other => continue,
        };
        match (from, to) {
            (Aperture::System, Aperture::Vram) => match rounds.last_mut() {
                Some(Round { there, home: 0 }) => *there += len,
                _ => rounds.push(Round {
                    there: len,
                    home: 0,
                }),
            },
            (Aperture::Vram, Aperture::System) => {
                let round = rounds.last_mut();
                let round = round.with_context(|| format!("line {}: nothing is there", number + 1));
                round?.home += len;
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

    /// A log in the model's format with these copies.
    fn log(copies: &[((&str, &str), u64)]) -> String {
        let copies = copies.iter().map(|((from, to), len)| {
            format!(
                r#"{{"n":2,"us":5,"event":"copy","chid":2,"from":{{"aperture":"{from}","address":4096}},"to":{{"aperture":"{to}","address":8192}},"len":{len}}}"#
            ) + "\n"
        });
        let first = "{\"n\":1,\"us\":4,\"event\":\"probe\"}\n";
        let end = "{\"n\":9,\"us\":9,\"event\":\"end\",\"registers\":9,\"to_vram\":4096}\n";
        format!("{first}{}{end}", copies.collect::<String>())
    }

    fn copies(copies: &[((&str, &str), u64)]) -> Copies {
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
            (THERE, 4096),
            (THERE, 4096),
            (HOME, 4096),
            (("vram", "vram"), 65536),
            (HOME, 4096),
            (THERE, 2 << 20),
            (HOME, 2 << 20),
        ]);
        assert_eq!(seen.contradicts(0, 2, &played(1, 1)), None);
        assert_eq!(seen.contradicts(1, 2, &played(0, 512)), None);
        let told = seen.contradicts(1, 2, &played(511, 0)).unwrap();
        let expected = "the GPU copied 2097152 bytes to VRAM and 2097152 home, instead of 2093056";
        assert!(told.starts_with(expected), "{told}");
        // Nothing was copied for the third.
        let told = seen.contradicts(0, 3, &played(1, 1)).unwrap();
        assert!(told.contains("2 rounds"), "{told}");
    }

    #[test]
    fn a_migration_that_the_guest_missed_is_seen() {
        // A page went home and was back before the guest looked.
        let again = copies(&[(THERE, 8192), (HOME, 4096), (THERE, 4096), (HOME, 8192)]);
        assert!(again.contradicts(0, 1, &played(2, 0)).is_some());
        // A page that went home twice without being copied to VRAM again.
        let twice = copies(&[(THERE, 8192), (HOME, 8192), (HOME, 4096)]);
        assert!(twice.contradicts(0, 1, &played(2, 0)).is_some());
        // A page that never came home, and one that the guest did not see there.
        let lost = copies(&[(THERE, 8192), (HOME, 4096)]);
        assert!(lost.contradicts(0, 1, &played(2, 0)).is_some());
        let unseen = copies(&[(THERE, 12288), (HOME, 12288)]);
        assert!(unseen.contradicts(0, 1, &played(2, 0)).is_some());
    }

    #[test]
    fn a_log_that_does_not_tell_is_an_error() {
        let told = |log: &str| format!("{:#}", rounds(log).unwrap_err());
        assert_eq!(told(""), "it has no last line");
        assert!(told("nonsense\n").starts_with("line 1: "));
        assert_eq!(told(&log(&[(HOME, 4096)])), "line 2: nothing is there");
        let ran = RunResult::quiet(Path::new("/nonexistent"));
        let told = Copies::read(&ran).contradicts(0, 1, &played(1, 0)).unwrap();
        assert!(told.contains("/nonexistent/pascal0.log"), "{told}");
    }
}
