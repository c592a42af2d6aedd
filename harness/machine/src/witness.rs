//! Reads the log of a ConnectX model (harness/connectx/src/witness.rs). The model does not
//! know the guest's claims. It moves bytes, and the log says where they were.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use host::proc::indent;
use plan::topology::Requests;

/// A line of the log. Other fields do not matter here.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Dma {
        to: String,
        #[serde(default)]
        dir: String,
        len: u64,
        ats: bool,
        ro: bool,
    },
    Command {
        name: String,
    },
    Done {
        op: String,
        len: u64,
        took: u64,
        direct: bool,
    },
    End {
        ram_bytes: u64,
        peer_bytes: u64,
        #[serde(default)]
        bus_bytes: u64,
        peak_kib: Option<u64>,
    },
    #[serde(other)]
    Other,
}

/// The number of bytes that were read or written at one place, and the first lines about them.
#[derive(Debug, Default)]
struct Moved {
    bytes: u64,
    lines: Vec<String>,
}

/// The bytes that the queue pairs of one process moved, by place: `ram`, `vram0` and so on.
#[derive(Debug, Default)]
pub struct Conversation(BTreeMap<String, Moved>);

/// How many lines to keep for each place.
const LINES: usize = 3;

/// This command ends a conversation. The process has everything that it asked for by then.
const LAST: &str = "DESTROY_QP";

/// Splits a whole log into conversations. They must not overlap.
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
            // Each queue pair ends with this command. Empty conversations are dropped below.
            Event::Command { name } if name == LAST => all.push(Conversation::default()),
            Event::End {
                ram_bytes,
                peer_bytes,
                bus_bytes,
                ..
            } => end = Some((ram_bytes, peer_bytes + bus_bytes)),
            Event::Command { .. } | Event::Done { .. } | Event::Other => {}
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

/// Requests of a NIC that its topology forbids, with lines of the log. If the log cannot
/// be read, returns the reason.
pub fn forbidden(log: &Path, may: &Requests) -> Option<String> {
    let read = || -> Result<_> {
        let mut all = BTreeMap::<String, (usize, Vec<String>)>::new();
        for line in BufReader::new(File::open(log)?).lines() {
            let line = line?;
            // Logs are long, and nearly all requests are plain, so most lines need no parsing.
            let is_odd = |to| line.contains("true") || may_not_reach(to, may);
            if !place(&line).is_some_and(is_odd) {
                continue;
            }
            let Event::Dma { to, ats, ro, .. } = serde_json::from_str(&line)? else {
                continue;
            };
            let broken = [
                (ats && !may.ats, "with ATS".to_owned()),
                (
                    ro && !may.relaxed_at_peer && is_vram(&to),
                    "with relaxed ordering at a peer".to_owned(),
                ),
                (may_not_reach(&to, may), format!("at {to}")),
            ];
            for (_, what) in broken.into_iter().filter(|(is_broken, _)| *is_broken) {
                let (count, lines) = all.entry(what).or_default();
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
            format!("{count} DMAs {what}, which this topology excludes:\n{lines}")
        })),
        Err(error) => vec![format!("{}: {error:#}", log.display())],
    };
    (!told.is_empty()).then(|| told.join("\n"))
}

/// The place in a DMA line.
fn place(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(r#""to":""#)?;
    rest.split('"').next()
}

/// Whether the place is memory of a GPU that no NIC reaches in this topology.
fn may_not_reach(place: &str, may: &Requests) -> bool {
    match place.strip_prefix("vram") {
        Some(number) => number.parse().map_or(true, |n| !may.peers.contains(&n)),
        None => place == BUS && may.peers.is_empty(),
    }
}

/// The places that the NIC has not both read and written.
pub fn unused(log: &Path, places: &[String]) -> Result<Vec<String>> {
    let ways = |place: &String| ["read", "written"].map(|way| (place.clone(), way));
    let mut missing = BTreeSet::from_iter(places.iter().flat_map(ways));
    for line in BufReader::new(File::open(log)?).lines() {
        if missing.is_empty() {
            break;
        }
        let line = line?;
        if place(&line).is_none_or(|to| missing.iter().all(|(place, _)| place != to)) {
            continue;
        }
        if let Event::Dma { to, dir, len, .. } = serde_json::from_str(&line)?
            && len > 0
        {
            missing.remove(&(to, if dir == "read" { "read" } else { "written" }));
        }
    }
    let missing = missing.into_iter();
    Ok(Vec::from_iter(missing.map(|(place, way)| {
        format!("the NIC has not {way} {place}")
    })))
}

/// How fast and how small a model was, and how much QEMU did for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The median time of 4 KiB RDMA writes between resident pages, from doorbell to
    /// completion, in microseconds. `None` if there were none.
    pub write_us: Option<u64>,
    /// The number of those writes.
    pub writes: usize,
    /// Peak memory of the model, if it is known.
    pub peak_kib: Option<u64>,
    /// Bytes that QEMU read and wrote for the NIC.
    pub bus_bytes: u64,
}

/// Reads them from a log.
pub fn figures(log: &Path) -> Result<Figures> {
    let mut took = Vec::new();
    let mut end = None;
    for line in BufReader::new(File::open(log)?).lines() {
        let line = line?;
        if !line.contains(r#""op":"rdma_write""#) && !line.contains(r#""event":"end""#) {
            continue;
        }
        match serde_json::from_str(&line)? {
            Event::Done {
                op,
                len: 4096,
                took: us,
                direct: true,
            } if op == "rdma_write" => took.push(us),
            Event::End {
                peak_kib,
                bus_bytes,
                ..
            } => end = Some((peak_kib, bus_bytes)),
            _ => {}
        }
    }
    let Some((peak_kib, bus_bytes)) = end else {
        bail!("it has no last line");
    };
    took.sort_unstable();
    Ok(Figures {
        write_us: took.get(took.len() / 2).copied(),
        writes: took.len(),
        peak_kib,
        bus_bytes,
    })
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.write_us {
            Some(us) => write!(f, "RDMA writes of 4 KiB: median {us} us of {}", self.writes)?,
            None => write!(f, "no RDMA writes of 4 KiB")?,
        }
        match self.peak_kib {
            Some(kib) => write!(f, "; memory of the model: {:.1} MiB", kib as f64 / 1024.0),
            None => write!(f, "; memory of the model: not known"),
        }
    }
}

fn is_ram(place: &str) -> bool {
    place == "ram"
}

/// The place of bytes that QEMU moved for the NIC: the BAR of a GPU model.
pub const BUS: &str = "bus";

fn is_vram(place: &str) -> bool {
    place.starts_with("vram") || place == BUS
}

impl Conversation {
    fn bytes(&self, is_there: impl Fn(&str) -> bool) -> u64 {
        let there = self.0.iter().filter(|(place, _)| is_there(place));
        there.map(|(_, moved)| moved.bytes).sum()
    }

    /// Why the log contradicts that at least `least` and at most `most` bytes of VRAM were read
    /// and written. No byte counts twice: before the model moves a packet of a connection, it has
    /// the addresses of both ends, so a packet that waits for a page has moved nothing.
    pub fn contradicts(&self, least: u64, most: u64) -> Option<String> {
        let seen = self.bytes(is_vram);
        if (least..=most).contains(&seen) {
            return None;
        }
        let claimed = if least == most {
            least.to_string()
        } else {
            format!("{least} to {most}")
        };
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

    /// A log in the model's format. One process moves pages from RAM to VRAM, then another
    /// moves pages within RAM.
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
        assert_eq!(all[0].contradicts(4096, 4096), None);
        assert!(all[0].contradicts(0, 0).is_some());
    }

    #[test]
    fn what_is_claimed_is_what_was_moved() {
        let all = conversations(LOG).unwrap();
        assert_eq!(all[0].contradicts(4096, 4096), None);
        assert_eq!(all[0].contradicts(0, 4096), None);
        assert_eq!(all[0].contradicts(4096, 8192), None);
        assert_eq!(all[1].contradicts(0, 0), None);
        let missing = all[0].contradicts(8192, 8192).unwrap();
        assert!(missing.contains("claimed 8192 bytes"), "{missing}");
        assert!(missing.contains(r#""n":4,"us":13"#), "{missing}");
        let excess = all[0].contradicts(64, 4095).unwrap();
        assert!(excess.contains("claimed 64 to 4095 bytes"), "{excess}");
        assert!(all[0].contradicts(0, 0).is_some());
        assert!(all[1].contradicts(1, 1).is_some());
    }

    fn file(log: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), log).unwrap();
        file
    }

    fn forbidden_in(log: &str, may: &Requests) -> Option<String> {
        forbidden(file(log).path(), may)
    }

    /// The GPU of the log may be reached.
    fn plain() -> Requests {
        Requests {
            ats: false,
            relaxed_at_peer: false,
            peers: vec![1],
        }
    }

    #[test]
    fn ats_is_told_where_a_topology_excludes_it() {
        assert_eq!(forbidden_in(LOG, &plain()), None);
        let log = LOG.replace(r#""ats":false"#, r#""ats":true"#);
        let told = forbidden_in(&log, &plain()).unwrap();
        assert!(told.starts_with("4 DMAs with ATS, "), "{told}");
        assert!(
            told.contains(r#"    {"n":3,"us":12,"event":"dma""#),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1 + LINES, "{told}");
        let may = Requests {
            ats: true,
            ..plain()
        };
        assert_eq!(forbidden_in(&log, &may), None);
    }

    #[test]
    fn relaxed_ordering_is_told_only_at_a_peer() {
        let log = LOG.replace(r#""ro":false"#, r#""ro":true"#);
        for place in ["vram1", "bus"] {
            let told = forbidden_in(&log.replace("vram1", place), &plain()).unwrap();
            assert!(told.starts_with("1 DMAs with relaxed ordering"), "{told}");
            assert!(
                told.contains(r#"    {"n":4,"us":13,"event":"dma""#),
                "{told}"
            );
            assert_eq!(told.lines().count(), 2, "{told}");
        }
        assert_eq!(forbidden_in(&log.replace("vram1", "ram"), &plain()), None);
        let may = Requests {
            relaxed_at_peer: true,
            ..plain()
        };
        assert_eq!(forbidden_in(&log, &may), None);
    }

    #[test]
    fn a_gpu_that_is_out_of_reach_is_not_reached() {
        let nowhere = Requests {
            peers: Vec::new(),
            ..plain()
        };
        for place in ["vram1", "vram12", "bus"] {
            let log = LOG.replace("vram1", place);
            let told = forbidden_in(&log, &nowhere).unwrap();
            let begin = format!("1 DMAs at {place}, which this topology excludes:\n    {{\"n\":4,");
            assert!(told.starts_with(&begin), "{told}");
        }
        let other = Requests {
            peers: vec![0],
            ..plain()
        };
        assert!(forbidden_in(LOG, &other).unwrap().contains("at vram1"));
        // The log does not say whose BAR it is.
        assert_eq!(forbidden_in(&LOG.replace("vram1", "bus"), &other), None);
        assert_eq!(forbidden_in(&LOG.replace("vram1", "ram"), &nowhere), None);
    }

    #[test]
    fn a_gpu_that_is_not_used_is_told() {
        let log = file(LOG);
        let told = |places: &[&str]| {
            let places = Vec::from_iter(places.iter().map(|place| (*place).to_owned()));
            unused(log.path(), &places).unwrap()
        };
        assert_eq!(told(&["vram1"]), ["the NIC has not read vram1"]);
        assert_eq!(
            told(&["ram", "vram0"]),
            [
                "the NIC has not read vram0",
                "the NIC has not written vram0"
            ]
        );
        assert!(told(&[]).is_empty());
        let none = file(&LOG.replace(r#""len":4096"#, r#""len":0"#));
        assert_eq!(unused(none.path(), &["vram1".to_owned()]).unwrap().len(), 2);
        assert!(unused(Path::new("/nowhere/log"), &["vram1".to_owned()]).is_err());
    }

    #[test]
    fn the_median_is_that_of_writes_between_resident_pages() {
        let done = |op: &str, len: u64, took: u64, direct: bool| {
            format!(
                "{{\"n\":1,\"event\":\"done\",\"qpn\":1,\"op\":\"{op}\",\"len\":{len},\
                 \"took\":{took},\"direct\":{direct}}}\n"
            )
        };
        let all = [
            done("rdma_write", 4096, 90, true),
            done("rdma_write", 4096, 30, true),
            done("rdma_write", 4096, 50, true),
            // This write waited. The next lines have another size or other operations.
            done("rdma_write", 4096, 1, false),
            done("rdma_write", 4095, 2, true),
            done("rdma_read", 4096, 3, true),
            done("umr", 4096, 4, true),
        ];
        let read = |lines: &[String], end: &str| figures(file(&(lines.concat() + end)).path());
        let end = r#"{"event":"end","ram_bytes":0,"peer_bytes":0,"bus_bytes":8,"peak_kib":2560}"#;
        let seen = read(&all, end).unwrap();
        let expected = Figures {
            write_us: Some(50),
            writes: 3,
            peak_kib: Some(2560),
            bus_bytes: 8,
        };
        assert_eq!(seen, expected);
        assert_eq!(
            seen.to_string(),
            "RDMA writes of 4 KiB: median 50 us of 3; memory of the model: 2.5 MiB"
        );
        let none = read(&all[3..], r#"{"event":"end","ram_bytes":0,"peer_bytes":0}"#).unwrap();
        assert_eq!(none, Figures::default());
        assert!(none.to_string().starts_with("no RDMA writes of 4 KiB; "));
        assert!(none.to_string().ends_with("not known"));
        assert!(read(&all, "").is_err());
    }

    #[test]
    fn a_log_that_cannot_be_read_says_nothing_good() {
        let told = forbidden(Path::new("/nowhere/log"), &plain()).unwrap();
        assert!(told.starts_with("/nowhere/log: "), "{told}");
        let told = forbidden_in(r#"{"event":"dma","to":"ram","ro":true}"#, &plain()).unwrap();
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
