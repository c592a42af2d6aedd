//! The witness: logs the device's actions in order for the judge, one line of JSON each.

use std::collections::HashSet;
use std::ops::Not;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use endpoint::log::Log;
use serde::Serialize;

use crate::posted::Posted;
use crate::space::Place;

/// An event in the log.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// A driver reads the device's identity for the first time since power on.
    Probe,
    /// A register, method or page kind that the model does not know. Logged once.
    Unknown {
        /// `register`, `method` or `kind`.
        kind: &'a str,
        /// `read` or `write`, or `page` for a kind.
        dir: &'a str,
        /// The address, or the number.
        at: u32,
        /// The written value. For a kind, the lower half of an address in such a page.
        value: u32,
    },
    /// A channel began or ended.
    Channel {
        /// The channel's number.
        chid: u32,
        /// What happened to the channel.
        what: &'a str,
    },
    /// The copy engine moved data.
    Copy {
        /// The channel.
        chid: u32,
        /// The source. A virtual address if it has no physical place.
        from: Place,
        /// The destination.
        to: Place,
        /// Bytes.
        len: u64,
        /// The copy was delayed on request, so it was not done when the doorbell was answered.
        #[serde(skip_serializing_if = "Not::not")]
        late: bool,
    },
    /// A semaphore was released after copies from video memory to host memory.
    Home {
        /// The channel.
        chid: u32,
        /// The number of copies.
        copies: u64,
        /// Bytes of all of them.
        len: u64,
        /// Microseconds since the doorbell of the first copy.
        took_us: u128,
    },
    /// The copy engine filled memory.
    Fill {
        /// The channel.
        chid: u32,
        /// The destination.
        to: Place,
        /// Bytes.
        len: u64,
        /// The fill was delayed on request, as for a copy.
        #[serde(skip_serializing_if = "Not::not")]
        late: bool,
    },
    /// A page of BAR1 was used for the first time since the last invalidation.
    Bar1 {
        /// Offset in the BAR.
        at: u64,
        /// The place that the page maps to.
        place: Place,
        /// Whether it was written.
        write: bool,
    },
    /// The device entered D3 and lost its state.
    Power {
        /// `off`, or the error.
        what: &'a str,
    },
    /// The driver has invalidated translations.
    Invalidate {
        /// The root directory, as the driver has written it.
        tables: u64,
        /// The written value of the INVALIDATE register.
        what: u32,
    },
    /// A rule was broken.
    Violation {
        /// The rule and the place.
        what: &'a str,
    },
    /// The last line.
    End {
        /// The totals.
        #[serde(flatten)]
        totals: &'a Totals,
    },
}

/// The totals.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Totals {
    /// Reads and writes of registers.
    pub registers: u64,
    /// Uses of registers, methods and page kinds that the model does not know.
    pub unknown: u64,
    /// Reads and writes of BAR1, except doorbells.
    pub bar1_accesses: u64,
    /// Bytes of these accesses.
    pub bar1_bytes: u64,
    /// Reads and writes of BAR2.
    pub bar2_accesses: u64,
    /// Doorbells.
    pub doorbells: u64,
    /// Methods of channels.
    pub methods: u64,
    /// Bytes that the copy engine moved from host memory to video memory.
    pub to_vram: u64,
    /// Bytes that the copy engine moved from video memory to host memory.
    pub from_vram: u64,
    /// Bytes that the copy engine filled.
    pub filled: u64,
    /// Invalidations of translations.
    pub invalidations: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Channels that ended by an error.
    pub dead_channels: u64,
    /// Rules that were broken.
    pub violations: u64,
}

/// Unknown accesses that are allowed, by kind, direction and address. Each line names the
/// driver's file and says why zero is a correct answer. Any other unknown access is a
/// violation: a new kernel may need a feature that the model lacks.
const KNOWN: &[(&str, &str, u32)] = &[];

/// Writes the log.
pub struct Witness {
    log: Log,
    /// Whether to report channels, unknown accesses and violations on standard error.
    verbose: bool,
    known: &'static [(&'static str, &'static str, u32)],
    unknown: HashSet<(&'static str, &'static str, u32)>,
    /// The writes that may be late.
    pub posted: Posted,
    /// The totals.
    pub totals: Totals,
    /// The first violations, for people.
    pub first_violations: Vec<String>,
}

/// The number of violations to report. Further ones are only counted.
const TOLD: usize = 10;

impl Witness {
    /// Creates the witness. Without a file it only counts.
    pub fn new(log: Option<&Path>, verbose: bool) -> Result<Self> {
        Ok(Self {
            log: Log::new(log)?,
            verbose,
            known: KNOWN,
            unknown: HashSet::new(),
            posted: Posted::default(),
            totals: Totals::default(),
            first_violations: Vec::new(),
        })
    }

    /// The time from which the lines count microseconds.
    pub fn begin(&self) -> Instant {
        self.log.begin()
    }

    /// Writes a line and returns its number.
    pub fn event(&mut self, event: &Event<'_>) -> u64 {
        self.log.line(event)
    }

    /// Records an unknown access. Only the first one is logged.
    pub fn unknown(&mut self, kind: &'static str, dir: &'static str, at: u32, value: u32) {
        self.totals.unknown += 1;
        if !self.unknown.insert((kind, dir, at)) {
            return;
        }
        self.event(&Event::Unknown {
            kind,
            dir,
            at,
            value,
        });
        let what = format!("unknown {kind} {at:#x}: {dir} {value:#x}");
        if !self.known.contains(&(kind, dir, at)) {
            self.violation(&what);
        } else if self.verbose {
            eprintln!("pascal: {what}");
        }
    }

    /// A channel began or ended.
    pub fn channel(&mut self, chid: u32, what: &str) {
        if self.verbose {
            eprintln!("pascal: channel {chid}: {what}");
        }
        self.event(&Event::Channel { chid, what });
    }

    /// A rule was broken.
    pub fn violation(&mut self, what: &str) {
        self.totals.violations += 1;
        if self.first_violations.len() < TOLD {
            if self.verbose {
                eprintln!("pascal: violation: {what}");
            }
            self.first_violations.push(what.to_owned());
        }
        self.event(&Event::Violation { what });
    }

    /// Flushes all lines to the file.
    pub fn flush(&mut self) {
        self.log.flush();
    }

    /// Writes the last line.
    pub fn end(&mut self) {
        let totals = self.totals.clone();
        self.event(&Event::End { totals: &totals });
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_a_violation_unless_it_is_listed() {
        let mut witness = Witness::new(None, false).unwrap();
        witness.known = &[("register", "read", 0x1000)];
        witness.unknown("register", "read", 0x1000, 0);
        assert_eq!(witness.totals.violations, 0);
        let others = [
            ("register", "write", 0x1000, 7),
            ("method", "read", 0x1000, 0),
            ("register", "read", 0x1004, 0),
        ];
        for _ in 0..2 {
            for (kind, dir, at, value) in others {
                witness.unknown(kind, dir, at, value);
            }
        }
        let told = "unknown register 0x1000: write 0x7";
        assert_eq!(witness.first_violations[0], told);
        assert_eq!(witness.totals.violations, 3);
        assert_eq!(witness.totals.unknown, 7);
    }
}
