//! How fast the NIC reaches memory in the GPU, by three ways side by side, as the selftest
//! `hmm_p2p_verbs_speed_test` prints it: in place; home to host memory, and back to the GPU;
//! and through a dma-buf, if the GPU's driver exports its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use plot::{Chart, Line};
use serde::Serialize;

use super::table::markdown;
use results::report::Outcome;

/// The picture, in build/results.
pub const PICTURE: &str = "hw-speed.svg";

/// The ways and operations, in the order of the table.
const WAYS: [&str; 3] = ["in-place", "home", "dma-buf"];
const OPERATIONS: [&str; 2] = ["WRITE", "READ"];

/// One line of the selftest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// One of [`WAYS`].
    pub way: &'static str,
    /// One of [`OPERATIONS`].
    pub operation: &'static str,
    /// The size of a transfer.
    pub bytes: u64,
    /// The median of the rounds.
    pub seconds: f64,
    /// How many transfers were timed.
    pub rounds: u32,
    /// Pages that the kernel counted as reached in the GPU.
    pub peer: u64,
    /// Pages that the kernel counted as brought home.
    pub home: u64,
}

impl Speed {
    /// `speed WAY OPERATION BYTES SECONDS ROUNDS peer=PAGES home=PAGES`
    fn read(line: &str) -> Option<Self> {
        let words = Vec::from_iter(line.trim_start_matches(['#', ' ']).split(' '));
        let ["speed", way, operation, bytes, seconds, rounds, peer, home] = words[..] else {
            return None;
        };
        let known = |names: &[&'static str], word| names.iter().copied().find(|n| *n == word);
        let speed = Self {
            way: known(&WAYS, way)?,
            operation: known(&OPERATIONS, operation)?,
            bytes: bytes.parse().ok()?,
            seconds: seconds.parse().ok()?,
            rounds: rounds.parse().ok()?,
            peer: peer.strip_prefix("peer=")?.parse().ok()?,
            home: home.strip_prefix("home=")?.parse().ok()?,
        };
        (speed.bytes > 0 && speed.seconds > 0.0 && speed.seconds.is_finite()).then_some(speed)
    }

    fn microseconds(&self) -> f64 {
        self.seconds * 1e6
    }

    fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }
}

/// All lines that the tests printed.
pub fn read(outcomes: &[Outcome]) -> Vec<Speed> {
    let lines = outcomes.iter().flat_map(|outcome| &outcome.log);
    lines.filter_map(|line| Speed::read(line)).collect()
}

/// A table and the picture, as Markdown. Empty if nothing was measured.
pub fn table(speeds: &[Speed]) -> String {
    if speeds.is_empty() {
        return String::new();
    }
    let mut table = markdown(["operation", "bytes", WAYS[0], WAYS[1], WAYS[2]]);
    for operation in OPERATIONS {
        let of_operation = || speeds.iter().filter(|speed| speed.operation == operation);
        for bytes in BTreeSet::from_iter(of_operation().map(|speed| speed.bytes)) {
            let cell = |way| {
                let mut all = of_operation();
                let found = all.find(|speed| speed.bytes == bytes && speed.way == way);
                found.map_or("-".to_owned(), |speed| {
                    let (time, rate) = (speed.microseconds(), speed.megabytes_per_second());
                    format!("{time:.1} us, {rate:.0} MB/s")
                })
            };
            let ways = WAYS.map(cell);
            table.add_row([operation, &bytes.to_string(), &ways[0], &ways[1], &ways[2]]);
        }
    }
    format!(
        "\nThe median of one RDMA transfer at a time, to or from memory in the GPU. `in-place`: \
         without page faults. `home`: the pages come home, and move to the GPU again. `-`: was \
         not measured; see the tests.\n\n{table}\n\n![latency and bandwidth]({PICTURE})\n"
    )
}

/// Draws latency and bandwidth by size. Draws nothing if nothing was measured.
pub fn draw(file: &Path, speeds: &[Speed]) -> Result<()> {
    if speeds.is_empty() {
        return Ok(());
    }
    let chart = |caption, unit, value| Chart {
        caption,
        axes: ["KiB", unit],
        lines: lines(speeds, value),
    };
    let charts = [
        chart("latency by size of the transfer", "us", Speed::microseconds),
        chart(
            "bandwidth by size of the transfer",
            "MB/s",
            Speed::megabytes_per_second,
        ),
    ];
    plot::draw(file, &charts)
}

/// A line for each way and operation.
fn lines(speeds: &[Speed], value: fn(&Speed) -> f64) -> Vec<Line> {
    let mut lines: BTreeMap<_, BTreeMap<u64, f64>> = BTreeMap::new();
    for speed in speeds {
        let line = lines.entry((speed.way, speed.operation)).or_default();
        line.insert(speed.bytes, value(speed));
    }
    let line = |((way, operation), points): (_, BTreeMap<u64, f64>)| {
        let points = points.into_iter();
        let points = points.map(|(bytes, value)| (bytes as f64 / 1024.0, value));
        (format!("{way}, {operation}"), points.collect())
    };
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "# speed in-place READ 4096 0.000003120 21 peer=1 home=0";

    #[test]
    fn lines_of_the_selftest() {
        let speed = Speed::read(LINE).unwrap();
        let expected = Speed {
            way: "in-place",
            operation: "READ",
            bytes: 4096,
            seconds: 3.12e-6,
            rounds: 21,
            peer: 1,
            home: 0,
        };
        assert_eq!(speed, expected);
        assert_eq!(Speed::read(LINE.trim_start_matches("# ")), Some(expected));
        for (good, bad) in [
            ("speed", "sped"),
            ("in-place", "elsewhere"),
            ("READ", "SEND"),
            ("4096", "0"),
            ("4096", "-4096"),
            ("0.000003120", "0.0"),
            ("0.000003120", "inf"),
            ("21", "many"),
            ("peer=1", "home=1"),
            ("home=0", "home="),
            ("home=0", "home=0 more=1"),
            (" home=0", ""),
        ] {
            let line = LINE.replacen(good, bad, 1);
            assert_eq!(Speed::read(&line), None, "{line}");
        }
    }

    fn speeds(lines: &[(&str, &str, u64, &str)]) -> Vec<Speed> {
        let mut outcome = Outcome::passed("hw/selftest", "speed");
        outcome.log.push("# something else".to_owned());
        outcome
            .log
            .extend(lines.iter().map(|(way, operation, bytes, seconds)| {
                format!("# speed {way} {operation} {bytes} {seconds} 21 peer=0 home=0")
            }));
        read(&[Outcome::passed("hw/selftest", "other"), outcome])
    }

    #[test]
    fn ways_are_side_by_side() {
        let speeds = speeds(&[
            ("in-place", "READ", 65536, "0.00001"),
            ("in-place", "WRITE", 4096, "0.000002"),
            ("in-place", "WRITE", 16384, "0.000004"),
            ("home", "WRITE", 4096, "0.0005"),
            ("dma-buf", "READ", 65536, "0.000008"),
        ]);
        assert_eq!(speeds.len(), 5);
        let text = table(&speeds);
        let rows = text.lines().filter(|line| line.starts_with('|')).skip(2);
        let rows = Vec::from_iter(rows.map(|row| row.replace(' ', "")));
        assert_eq!(
            rows,
            [
                "|WRITE|4096|2.0us,2048MB/s|500.0us,8MB/s|-|",
                "|WRITE|16384|4.0us,4096MB/s|-|-|",
                "|READ|65536|10.0us,6554MB/s|-|8.0us,8192MB/s|",
            ]
        );
        assert!(text.contains("](hw-speed.svg)"), "{text}");
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn each_way_and_operation_is_a_line() {
        let speeds = speeds(&[
            ("home", "READ", 16384, "0.5"),
            ("in-place", "READ", 4096, "0.25"),
            ("home", "READ", 4096, "0.125"),
        ]);
        let expected = [
            ("home, READ".to_owned(), vec![(4.0, 0.125), (16.0, 0.5)]),
            ("in-place, READ".to_owned(), vec![(4.0, 0.25)]),
        ];
        assert_eq!(lines(&speeds, |speed| speed.seconds), expected);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.svg");
        draw(&file, &[]).unwrap();
        assert!(!file.exists());
        draw(&file, &speeds).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches("home, READ").count(), 2, "{text}");
    }
}
