//! The witness: logs each DMA of data, each change of a translation and each page fault in
//! order, for the judge to read.
//!
//! Each event is a line of JSON, and `n` counts events. A DMA names the change (`umr`) that
//! wrote its translation, so the numbers alone show whether the DMA came before or after an
//! invalidation. The log leaves out DMA to queues, completions and mailboxes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Result;
use endpoint::log::Log;
use serde::Serialize;

use crate::layout::mkey_to_idx;
use crate::memory::{Refused, Target};

/// The state of a key's entry at the time when it translated an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The key.
    pub mkey: u32,
    /// The entry.
    pub entry: u64,
    /// The change that wrote the entry.
    pub umr: u64,
    /// The last change of the key itself.
    pub key_umr: u64,
}

/// A DMA of data, or an attempt.
#[derive(Clone, Debug, Serialize)]
pub struct Dma {
    /// `read` or `write`, as the device sees it.
    pub dir: &'static str,
    /// The address on the bus.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// The queue pair.
    pub qpn: u32,
    /// The key that translated the address.
    pub mkey: u32,
    /// The address in that key.
    pub va: u64,
    /// ATS: the IOMMU has translated the address beforehand.
    pub ats: bool,
    /// Relaxed ordering.
    pub ro: bool,
    /// The change that wrote this translation.
    pub umr: u64,
    /// All entries that led to the address.
    #[serde(skip)]
    pub used: Vec<Used>,
}

/// A request that has completed.
#[derive(Clone, Debug, Serialize)]
pub struct Done {
    /// The queue pair.
    pub qpn: u32,
    /// The operation.
    pub op: &'static str,
    /// Bytes.
    pub len: u64,
    /// Microseconds since the last doorbell of its queue.
    pub took: u128,
    /// The request was alone in its queue and waited for nothing.
    pub direct: bool,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Dma {
        #[serde(flatten)]
        dma: &'a Dma,
        to: String,
    },
    /// Entries `first..first + count` of a key's translations were written, and `cleared`
    /// of them are absent now. If `count` is 0, the key itself changed: its rights, or
    /// whether it is in use.
    Umr {
        mkey: u32,
        first: u64,
        count: u64,
        cleared: u64,
    },
    Fault {
        kind: &'a str,
        token: u64,
        mkey: u32,
        va: u64,
        len: usize,
    },
    Resume {
        token: u64,
        error: bool,
    },
    Done {
        #[serde(flatten)]
        done: &'a Done,
    },
    Command {
        name: &'a str,
        status: u64,
    },
    /// The function was reset, by its driver or by QEMU.
    Reset,
    Violation {
        what: &'a str,
    },
    End {
        #[serde(flatten)]
        totals: &'a Totals,
        peak_kib: Option<u64>,
    },
}

/// The totals, for the last line.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Totals {
    /// Bytes read from and written to host memory.
    pub ram_bytes: u64,
    /// Bytes read from and written to BARs of peers.
    pub peer_bytes: u64,
    /// Bytes that QEMU read and wrote for the device.
    pub bus_bytes: u64,
    /// The part of these bytes that used ATS.
    pub ats_bytes: u64,
    /// Page faults.
    pub faults: u64,
    /// Changes of translations.
    pub umrs: u64,
    /// Commands.
    pub commands: u64,
    /// Rules that were broken.
    pub violations: u64,
}

/// The changes of a key, by their numbers.
#[derive(Default)]
struct Written {
    /// The change that wrote each range of entries: first entry to (end, change).
    rows: BTreeMap<u64, (u64, u64)>,
    /// The last change of the key itself.
    key: u64,
}

impl Written {
    fn by(&self, entry: u64) -> Option<u64> {
        let (_, (end, n)) = self.rows.range(..=entry).next_back()?;
        (*end > entry).then_some(*n)
    }

    /// Records that change `n` wrote the entries from `first` on. Absent entries have no writer.
    fn write(&mut self, first: u64, entries: &[bool], n: u64) {
        let to = first.saturating_add(entries.len() as u64);
        let before = self.rows.range(..first).next_back();
        let inside = self.rows.range(first..to);
        let touched = Vec::from_iter(
            before
                .into_iter()
                .chain(inside)
                .map(|(at, row)| (*at, *row)),
        );
        for (at, (end, by)) in touched {
            self.rows.remove(&at);
            if at < first {
                self.rows.insert(at, (end.min(first), by));
            }
            if end > to {
                self.rows.insert(to, (end, by));
            }
        }
        let mut at = first;
        for row in entries.chunk_by(|one, next| one == next) {
            let end = at.saturating_add(row.len() as u64);
            if row[0] {
                self.rows.insert(at, (end, n));
            }
            at = end;
        }
    }
}

/// Writes the log.
pub struct Witness {
    log: Log,
    /// By key index: the low byte of a key may change while its translations stay.
    written: HashMap<u32, Written>,
    /// The totals.
    pub totals: Totals,
    /// The first violations, for people.
    pub first_violations: Vec<String>,
    /// The violations since bus mastering went off. `None` while it is on.
    held: Option<Vec<String>>,
}

/// The number of violations to report. Further ones are only counted.
const TOLD: usize = 10;

impl Witness {
    /// Creates the witness. Without a file it only counts.
    pub fn new(log: Option<&Path>) -> Result<Self> {
        Ok(Self {
            log: Log::new(log)?,
            written: HashMap::new(),
            totals: Totals::default(),
            first_violations: Vec::new(),
            held: None,
        })
    }

    fn line(&mut self, event: Event<'_>) -> u64 {
        self.log.line(&event)
    }

    /// The current state of a key's entry.
    pub fn used(&self, mkey: u32, entry: u64) -> Used {
        let written = self.written.get(&mkey_to_idx(mkey));
        let umr = written.and_then(|written| written.by(entry));
        Used {
            mkey,
            entry,
            umr: umr.unwrap_or(0),
            key_umr: written.map_or(0, |written| written.key),
        }
    }

    /// Records a DMA. A refused DMA is a violation.
    ///
    /// A DMA whose translation has changed since the lookup is also a violation. Once the driver
    /// knows that a change has completed, no DMA may use the old translation, because the page
    /// may have a new owner. Here a change and its completion happen in the same step.
    pub fn dma(&mut self, dma: &Dma, done: &Result<Target, Refused>) {
        let to = match done {
            Ok(Target::Ram) => {
                self.totals.ram_bytes += dma.len as u64;
                "ram".to_owned()
            }
            Ok(Target::Peer(n)) => {
                self.totals.peer_bytes += dma.len as u64;
                format!("vram{n}")
            }
            Ok(Target::Bus) => {
                self.totals.bus_bytes += dma.len as u64;
                "bus".to_owned()
            }
            Err(refused) => format!("{refused:?}"),
        };
        if dma.ats && done.is_ok() {
            self.totals.ats_bytes += dma.len as u64;
        }
        self.line(Event::Dma {
            dma,
            to: to.clone(),
        });
        if done.is_err() {
            self.violation(&format!(
                "DMA {} of {} bytes at {:#x} by key {:#x}: {to}",
                dma.dir, dma.len, dma.addr, dma.mkey
            ));
        }
        let ended = dma.used.iter().find(|u| self.used(u.mkey, u.entry) != **u);
        if let Some(Used { mkey, entry, .. }) = ended {
            self.violation(&format!(
                "DMA {} of {} bytes at {:#x} by key {:#x}: entry {entry} of key {mkey:#x} was \
                 changed before",
                dma.dir, dma.len, dma.addr, dma.mkey
            ));
        }
    }

    /// Records that translations were written, or that the key itself changed if there are none.
    pub fn umr(&mut self, mkey: u32, first: u64, entries: &[bool]) {
        self.totals.umrs += 1;
        let count = entries.len() as u64;
        let cleared = entries.iter().filter(|present| !**present).count() as u64;
        let n = self.line(Event::Umr {
            mkey,
            first,
            count,
            cleared,
        });
        let written = self.written.entry(mkey_to_idx(mkey)).or_default();
        if entries.is_empty() {
            written.key = n;
        }
        written.write(first, entries, n);
    }

    /// Records that a key was destroyed.
    pub fn forget(&mut self, mkey: u32) {
        self.written.remove(&mkey_to_idx(mkey));
    }

    /// Records that all keys were destroyed.
    pub fn forget_all(&mut self) {
        self.written.clear();
    }

    /// Bus mastering is on or off. While it is off, a device cannot work for its driver, which is
    /// a violation, unless a reset follows. The kernel switches it off just before a reset,
    /// whatever the driver does, and a driver may stop its device that way.
    pub fn bus_master(&mut self, is_on: bool) {
        if !is_on {
            self.held.get_or_insert_default();
            return;
        }
        for what in self.held.take().unwrap_or_default() {
            self.violation(&what);
        }
    }

    /// Records a reset of the function.
    pub fn reset(&mut self) {
        self.held = None;
        self.line(Event::Reset);
        self.bus_master(false);
    }

    /// A page fault was reported.
    pub fn fault(&mut self, kind: &str, token: u64, mkey: u32, va: u64, len: usize) {
        self.totals.faults += 1;
        self.line(Event::Fault {
            kind,
            token,
            mkey,
            va,
            len,
        });
    }

    /// The driver has answered a page fault.
    pub fn resume(&mut self, token: u64, error: bool) {
        self.line(Event::Resume { token, error });
    }

    /// A request has completed.
    pub fn done(&mut self, done: &Done) {
        self.line(Event::Done { done });
    }

    /// A command was carried out.
    pub fn command(&mut self, name: &str, status: u64) {
        self.totals.commands += 1;
        self.line(Event::Command { name, status });
    }

    /// A rule was broken.
    pub fn violation(&mut self, what: &str) {
        if let Some(held) = &mut self.held {
            held.push(what.to_owned());
            return;
        }
        self.totals.violations += 1;
        if self.first_violations.len() < TOLD {
            self.first_violations.push(what.to_owned());
        }
        self.line(Event::Violation { what });
    }

    /// Flushes all lines to the file.
    pub fn flush(&mut self) {
        self.log.flush();
    }

    /// Writes the last line.
    pub fn end(&mut self) {
        self.bus_master(true);
        let totals = self.totals.clone();
        self.line(Event::End {
            totals: &totals,
            peak_kib: peak_kib(),
        });
        self.flush();
    }
}

/// Peak memory of this process. It excludes the machine's memory, which the model accesses
/// as a file.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn dma(addr: u64) -> Dma {
        Dma {
            dir: "write",
            addr,
            len: 8,
            qpn: 1,
            mkey: 0x100,
            va: 0,
            ats: false,
            ro: false,
            umr: 1,
            used: Vec::new(),
        }
    }

    #[test]
    fn what_is_refused_is_a_violation() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut witness = Witness::new(Some(log.path())).unwrap();
        witness.umr(0x100, 0, &[true, false]);
        assert_eq!(witness.used(0x100, 0).umr, 1);
        assert_eq!(witness.used(0x100, 1).umr, 0);
        witness.dma(&dma(0x1000), &Ok(Target::Peer(0)));
        witness.dma(&dma(0x2000), &Err(Refused::Unmapped(0x2000)));
        witness.end();
        let text = std::fs::read_to_string(log.path()).unwrap();
        let events: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let names: Vec<_> = events
            .iter()
            .map(|e| e["event"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["umr", "dma", "dma", "violation", "end"]);
        assert_eq!(events[1]["to"], "vram0");
        assert_eq!(events[4]["peer_bytes"], 8);
        assert_eq!(events[4]["violations"], 1);
        assert!(events[4]["peak_kib"].as_u64().unwrap() > 1000);
    }

    #[test]
    fn a_translation_that_ended_has_no_writer() {
        let mut witness = Witness::new(None).unwrap();
        witness.umr(1, 4, &[true, true]);
        witness.umr(1, 4, &[false, true]);
        assert_eq!((witness.used(1, 4).umr, witness.used(1, 5).umr), (0, 2));
        witness.forget(1);
        assert_eq!(witness.used(1, 5).umr, 0);
    }
    #[test]
    fn who_wrote_many_in_a_row_takes_little_memory() {
        let mut witness = Witness::new(None).unwrap();
        witness.umr(0x100, 0, &[true; 65536]);
        witness.umr(0x100, 30, &[true, false, false, true]);
        assert_eq!(witness.written[&1].rows.len(), 4);
        let by = [29, 30, 31, 33, 34, 65535, 65536].map(|entry| witness.used(0x100, entry).umr);
        assert_eq!(by, [1, 2, 0, 2, 1, 1, 0]);
    }

    proptest! {
        #[test]
        fn each_entry_has_its_last_writer(
            writes in prop::collection::vec((0..40u64, prop::collection::vec(any::<bool>(), 1..20)), 1..20),
        ) {
            let (mut written, mut plain) = (Written::default(), [0; 64]);
            for (n, (first, entries)) in (1..).zip(writes) {
                written.write(first, &entries, n);
                for (entry, present) in (first as usize..).zip(entries) {
                    plain[entry] = if present { n } else { 0 };
                }
            }
            let seen = Vec::from_iter((0..64).map(|entry| written.by(entry).unwrap_or(0)));
            prop_assert_eq!(seen, plain);
        }
    }
}
