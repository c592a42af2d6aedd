//! The log: one line of JSON for each event of a model, in order.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes the lines, or only numbers them if there is no file.
pub struct Log {
    out: Option<BufWriter<File>>,
    begin: Instant,
    n: u64,
}

#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    n: u64,
    us: u128,
    #[serde(flatten)]
    event: &'a T,
}

impl Log {
    /// Creates the log. Without a file it writes nothing.
    pub fn new(file: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| File::create(path).with_context(|| path.display().to_string());
        Ok(Self {
            out: file.map(open).transpose()?.map(BufWriter::new),
            begin: Instant::now(),
            n: 0,
        })
    }

    /// The time from which microseconds count.
    pub fn begin(&self) -> Instant {
        self.begin
    }

    /// Writes an event with its number and the microseconds since the start. Returns the number.
    pub fn line(&mut self, event: &impl Serialize) -> u64 {
        self.n += 1;
        if let Some(out) = &mut self.out {
            let us = self.begin.elapsed().as_micros();
            let line = Line {
                n: self.n,
                us,
                event,
            };
            // A full disk must not end the device. The judge notices that the last line is missing.
            if serde_json::to_writer(&mut *out, &line).is_err() || out.write_all(b"\n").is_err() {
                self.out = None;
            }
        }
        self.n
    }

    /// Flushes all lines to the file.
    pub fn flush(&mut self) {
        if let Some(out) = &mut self.out {
            // As in `line`.
            let _ = out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_numbers_in_their_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = Log::new(Some(file.path())).unwrap();
        assert_eq!(log.line(&serde_json::json!({ "event": "a" })), 1);
        assert_eq!(log.line(&serde_json::json!({ "event": "b" })), 2);
        log.flush();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (&lines[1]["n"], &lines[1]["event"]),
            (&2.into(), &"b".into())
        );
    }

    #[test]
    fn a_full_disk_does_not_end_the_device() {
        let mut log = Log::new(Some(Path::new("/dev/full"))).unwrap();
        for n in 1..10_000 {
            assert_eq!(log.line(&serde_json::json!({ "event": "a" })), n);
        }
        log.flush();
    }
}
