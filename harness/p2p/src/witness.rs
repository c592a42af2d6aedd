//! What a model of a ConnectX did, by its own log (harness/connectx/src/witness.rs). The
//! model knows of no claim: it moves bytes, and the log says where they were.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::topology::Requests;
use crate::vm::indent;

/// A line of the log. Fields that are not named here do not matter here.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Dma {
        to: String,
        len: u64,
        ats: bool,
        ro: bool,
    },
    Command {
        name: String,
    },
    End {
        ram_bytes: u64,
        peer_bytes: u64,
        #[serde(default)]
        bus_bytes: u64,
    },
    #[serde(other)]
    Other,
}

/// Bytes of data that were read or written at one place, and the first lines about it.
#[derive(Debug, Default)]
struct Moved {
    bytes: u64,
    lines: Vec<String>,
}

/// What the queue pairs of one process moved: by place, `ram`, `vram0` and so on.
#[derive(Debug, Default)]
pub struct Conversation(BTreeMap<String, Moved>);

/// How many lines tell of a place.
const LINES: usize = 3;

/// The command by which a conversation is over: a process had all it asked for by then.
const LAST: &str = "DESTROY_QP";

/// Takes a whole log apart into conversations, which must have come one after the other.
pub fn conversations(log: &str) -> Result<Vec<Conversation>> {
    let mut all = vec![Conversation::default()];
    let mut end = None;
    for (number, line) in log.lines().enumerate() {
        let event = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        match event {
            Event::Dma { to, len, .. } => {
                let current = all.last_mut().expect("it is never empty");
                let moved = current.0.entry(to).or_default();
                moved.bytes += len;
                if moved.lines.len() < LINES {
                    moved.lines.push(line.to_owned());
                }
            }
            // Each queue pair ends by one; between two of a process is nothing.
            Event::Command { name } if name == LAST => all.push(Conversation::default()),
            Event::End {
                ram_bytes,
                peer_bytes,
                bus_bytes,
            } => end = Some((ram_bytes, peer_bytes + bus_bytes)),
            Event::Command { .. } | Event::Other => {}
        }
    }
    all.retain(|conversation| !conversation.0.is_empty());
    let Some(counted) = end else {
        bail!("it has no last line");
    };
    let sum = |is_there: fn(&str) -> bool| all.iter().map(|one| one.bytes(is_there)).sum();
    let listed = (sum(is_ram), sum(is_vram));
    if counted != listed {
        bail!(
            "it lists {} bytes of RAM and {} of VRAM, and counts {} and {}",
            listed.0,
            listed.1,
            counted.0,
            counted.1
        );
    }
    Ok(all)
}

/// How requests of a NIC go against what they may be in its topology, with the log's lines;
/// or why its log does not tell.
pub fn forbidden(log: &Path, may: Requests) -> Option<String> {
    let read = || -> Result<_> {
        let mut all = BTreeMap::<_, (usize, Vec<String>)>::new();
        for line in BufReader::new(File::open(log)?).lines() {
            let line = line?;
            // Logs are long, and few requests are anything but plain.
            if !line.contains("true") {
                continue;
            }
            let Event::Dma { to, ats, ro, .. } = serde_json::from_str(&line)? else {
                continue;
            };
            let broken = [
                (ats && !may.ats, "ATS"),
                (
                    ro && !may.relaxed_at_peer && is_vram(&to),
                    "relaxed ordering at a peer",
                ),
            ];
            for (_, what) in broken.iter().filter(|(is_broken, _)| *is_broken) {
                let (count, lines) = all.entry(*what).or_default();
                *count += 1;
                if lines.len() < LINES {
                    lines.push(line.clone());
                }
            }
        }
        Ok(all)
    };
    let told = match read() {
        Ok(all) => Vec::from_iter(all.iter().map(|(what, (count, lines))| {
            let lines = indent(&lines.join("\n"));
            format!("{count} DMAs with {what}, which this topology excludes:\n{lines}")
        })),
        Err(error) => vec![format!("{}: {error:#}", log.display())],
    };
    (!told.is_empty()).then(|| told.join("\n"))
}

fn is_ram(place: &str) -> bool {
    place == "ram"
}

/// `bus` is what QEMU reached for the NIC: the BAR of a GPU that is a model.
fn is_vram(place: &str) -> bool {
    place.starts_with("vram") || place == "bus"
}

impl Conversation {
    fn bytes(&self, is_there: impl Fn(&str) -> bool) -> u64 {
        let there = self.0.iter().filter(|(place, _)| is_there(place));
        there.map(|(_, moved)| moved.bytes).sum()
    }

    /// Why it cannot be that so many bytes of VRAM were read and written, or none.
    pub fn contradicts(&self, claimed: u64) -> Option<String> {
        let seen = self.bytes(is_vram);
        // More is possible: what is asked for again is moved again.
        if seen >= claimed && (claimed > 0 || seen == 0) {
            return None;
        }
        let places = self.0.iter().map(|(place, moved)| {
            let lines = indent(&moved.lines.join("\n"));
            format!("{place}: {} bytes, beginning with\n{lines}", moved.bytes)
        });
        Some(format!(
            "DMA of VRAM: claimed {claimed} bytes, but the NIC has moved {seen}\n{}",
            Vec::from_iter(places).join("\n")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the model writes it: pages from RAM to VRAM by one process, then within RAM by
    /// another.
    const LOG: &str = r#"{"n":1,"us":10,"event":"command","name":"CREATE_QP","status":0}
{"n":2,"us":11,"event":"umr","mkey":9,"first":0,"count":2,"cleared":0}
{"n":3,"us":12,"event":"dma","dir":"read","addr":4096,"len":4096,"qpn":1,"mkey":8,"va":0,"ats":false,"ro":false,"umr":2,"to":"ram"}
{"n":4,"us":13,"event":"dma","dir":"write","addr":8192,"len":4096,"qpn":2,"mkey":9,"va":0,"ats":false,"ro":false,"umr":2,"to":"vram1"}
{"n":5,"us":14,"event":"command","name":"DESTROY_QP","status":0}
{"n":6,"us":15,"event":"command","name":"DESTROY_QP","status":0}
{"n":7,"us":16,"event":"fault","kind":"rdma","token":1,"mkey":9,"va":0,"len":64}
{"n":8,"us":17,"event":"dma","dir":"read","addr":4096,"len":64,"qpn":1,"mkey":8,"va":0,"ats":false,"ro":false,"umr":2,"to":"ram"}
{"n":9,"us":18,"event":"dma","dir":"write","addr":4096,"len":64,"qpn":1,"mkey":8,"va":0,"ats":false,"ro":false,"umr":2,"to":"ram"}
{"n":10,"us":19,"event":"end","ram_bytes":4224,"peer_bytes":4096,"ats_bytes":0,"faults":1,"umrs":1,"commands":3,"violations":0}
"#;

    #[test]
    fn conversations_are_told_apart() {
        let all = conversations(LOG).unwrap();
        assert_eq!(all.len(), 2);
        let bytes = |place: &str| all.iter().map(|one| one.0[place].bytes).sum::<u64>();
        assert_eq!(bytes("ram"), 4224);
        assert_eq!(all[0].bytes(is_vram), 4096);
        assert_eq!(all[1].bytes(is_vram), 0);
    }

    #[test]
    fn a_bar_that_is_a_model_is_vram() {
        let log = LOG
            .replace(r#""to":"vram1""#, r#""to":"bus""#)
            .replace(r#""peer_bytes":4096"#, r#""peer_bytes":0,"bus_bytes":4096"#);
        let all = conversations(&log).unwrap();
        assert_eq!(all[0].contradicts(4096), None);
        assert!(all[0].contradicts(0).is_some());
    }

    #[test]
    fn what_is_claimed_is_what_was_moved() {
        let all = conversations(LOG).unwrap();
        assert_eq!(all[0].contradicts(4096), None);
        assert_eq!(all[0].contradicts(2048), None);
        assert_eq!(all[1].contradicts(0), None);
        let missing = all[0].contradicts(8192).unwrap();
        assert!(missing.contains("claimed 8192 bytes"), "{missing}");
        assert!(missing.contains(r#""n":4,"us":13"#), "{missing}");
        assert!(all[0].contradicts(0).is_some());
        assert!(all[1].contradicts(1).is_some());
    }

    fn forbidden_in(log: &str, may: Requests) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), log).unwrap();
        forbidden(file.path(), may)
    }

    const PLAIN: Requests = Requests {
        ats: false,
        relaxed_at_peer: false,
    };

    #[test]
    fn ats_is_told_where_a_topology_excludes_it() {
        assert_eq!(forbidden_in(LOG, PLAIN), None);
        let log = LOG.replace(r#""ats":false"#, r#""ats":true"#);
        let told = forbidden_in(&log, PLAIN).unwrap();
        assert!(told.starts_with("4 DMAs with ATS, "), "{told}");
        assert!(
            told.contains(r#"    {"n":3,"us":12,"event":"dma""#),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1 + LINES, "{told}");
        let may = Requests { ats: true, ..PLAIN };
        assert_eq!(forbidden_in(&log, may), None);
    }

    #[test]
    fn relaxed_ordering_is_told_only_at_a_peer() {
        let log = LOG.replace(r#""ro":false"#, r#""ro":true"#);
        for place in ["vram1", "bus"] {
            let told = forbidden_in(&log.replace("vram1", place), PLAIN).unwrap();
            assert!(told.starts_with("1 DMAs with relaxed ordering"), "{told}");
            assert!(
                told.contains(r#"    {"n":4,"us":13,"event":"dma""#),
                "{told}"
            );
            assert_eq!(told.lines().count(), 2, "{told}");
        }
        assert_eq!(forbidden_in(&log.replace("vram1", "ram"), PLAIN), None);
        let may = Requests {
            relaxed_at_peer: true,
            ..PLAIN
        };
        assert_eq!(forbidden_in(&log, may), None);
    }

    #[test]
    fn a_log_that_cannot_be_read_says_nothing_good() {
        let told = forbidden(Path::new("/nowhere/log"), PLAIN).unwrap();
        assert!(told.starts_with("/nowhere/log: "), "{told}");
        let told = forbidden_in(r#"{"event":"dma","ro":true}"#, PLAIN).unwrap();
        assert!(told.contains("missing field"), "{told}");
    }

    #[test]
    fn a_log_that_is_not_whole_is_no_evidence() {
        let (cut, _) = LOG.split_once(r#"{"n":10,"#).unwrap();
        let told = |log: &str| format!("{:#}", conversations(log).unwrap_err());
        assert_eq!(told(cut), "it has no last line");
        assert_eq!(told(""), "it has no last line");
        assert!(told(&LOG[..LOG.len() - 20]).contains("line 10"));
        let fewer = Vec::from_iter(LOG.lines().filter(|line| !line.contains(r#""n":4"#)));
        let told = told(&fewer.join("\n"));
        assert!(
            told.contains("0 of VRAM, and counts 4224 and 4096"),
            "{told}"
        );
    }
}
