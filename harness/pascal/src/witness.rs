//! The witness: writes down what the device did, in the order in which it did it, for a
//! judge to read: a line of JSON each.

use std::collections::HashSet;
use std::ops::Not;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use endpoint::log::Log;
use serde::Serialize;

use crate::space::Place;

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// A driver asks what device this is, for the first time since it has power.
    Probe,
    /// A register, a method, or a kind of page that the model does not know: told once.
    Unknown {
        /// `register`, `method` or `kind`.
        kind: &'a str,
        /// `read` or `write`; `page` of a kind.
        dir: &'a str,
        /// Its address, or its number.
        at: u32,
        /// What was written; the lower half of an address in such a page.
        value: u32,
    },
    /// A channel began or ended.
    Channel {
        /// Its number.
        chid: u32,
        /// What became of it.
        what: &'a str,
    },
    /// The copy engine moved data.
    Copy {
        /// The channel.
        chid: u32,
        /// From, a virtual address if it has no place.
        from: Place,
        /// To.
        to: Place,
        /// Bytes.
        len: u64,
        /// It was not done before the doorbell was answered, as was asked for.
        #[serde(skip_serializing_if = "Not::not")]
        late: bool,
    },
    /// A semaphore was released after copies from video memory to the host's.
    Home {
        /// The channel.
        chid: u32,
        /// How many.
        copies: u64,
        /// Bytes of all of them.
        len: u64,
        /// Microseconds since the doorbell of the first one.
        took_us: u128,
    },
    /// The copy engine filled memory.
    Fill {
        /// The channel.
        chid: u32,
        /// What memory.
        to: Place,
        /// Bytes.
        len: u64,
        /// As of a copy.
        #[serde(skip_serializing_if = "Not::not")]
        late: bool,
    },
    /// A page of BAR1 was used for the first time since the last invalidation.
    Bar1 {
        /// Offset in the BAR.
        at: u64,
        /// What is there.
        place: Place,
        /// Whether it was written.
        write: bool,
    },
    /// The device went to D3, and has lost all.
    Power {
        /// `off`, or why that failed.
        what: &'a str,
    },
    /// The driver has invalidated translations.
    Invalidate {
        /// As the driver has written it: the address of a directory.
        tables: u64,
        /// What is invalidated.
        what: u32,
    },
    /// A rule was broken.
    Violation {
        /// Which, where.
        what: &'a str,
    },
    /// The last line.
    End {
        /// What was counted.
        #[serde(flatten)]
        totals: &'a Totals,
    },
}

/// What was counted.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Totals {
    /// Reads and writes of registers.
    pub registers: u64,
    /// Uses of registers, methods and kinds of pages that the model does not know.
    pub unknown: u64,
    /// Reads and writes of BAR1, but for the doorbells.
    pub bar1_accesses: u64,
    /// Bytes of these.
    pub bar1_bytes: u64,
    /// Reads and writes of BAR2.
    pub bar2_accesses: u64,
    /// Times that a driver said that there is work.
    pub doorbells: u64,
    /// Methods of channels.
    pub methods: u64,
    /// Bytes that the copy engine moved from the host's memory to video memory.
    pub to_vram: u64,
    /// And back.
    pub from_vram: u64,
    /// Bytes that it filled.
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

/// What the model may do without knowing, by kind, direction, and address: a line each,
/// with the file of the driver and why zero is a good answer. Anything else that is not
/// known is a violation: a new kernel may do what the model does not.
const KNOWN: &[(&str, &str, u32)] = &[];

/// Writes the log.
pub struct Witness {
    log: Log,
    /// Tell of violations and of what is unknown on standard error.
    verbose: bool,
    known: &'static [(&'static str, &'static str, u32)],
    unknown: HashSet<(&'static str, &'static str, u32)>,
    /// What was counted.
    pub totals: Totals,
    /// What was broken first, for people.
    pub first_violations: Vec<String>,
}

/// More are counted and not told.
const TOLD: usize = 10;

impl Witness {
    /// Without a file it only counts.
    pub fn new(log: Option<&Path>, verbose: bool) -> Result<Self> {
        Ok(Self {
            log: Log::new(log)?,
            verbose,
            known: KNOWN,
            unknown: HashSet::new(),
            totals: Totals::default(),
            first_violations: Vec::new(),
        })
    }

    /// From when on the lines count microseconds.
    pub fn begin(&self) -> Instant {
        self.log.begin()
    }

    /// Writes a line; gives its number.
    pub fn event(&mut self, event: &Event<'_>) -> u64 {
        self.log.line(event)
    }

    /// Something that the model does not know; told the first time.
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

    /// Lets the reader see all of it.
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
