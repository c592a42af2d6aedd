//! With `--posted`: writes through BAR1 reach video memory late, unless the driver waits for
//! them. The model writes at once. If the copy engine reads or writes where such a write may
//! still be on its way, that is a violation.

use std::collections::BTreeSet;

use crate::space::{Aperture, Place};

const PAGE: u64 = 4096;

/// The pages of video memory that were written through BAR1, until the driver has waited.
#[derive(Debug, Default)]
pub struct Posted {
    /// Whether the rule holds.
    pub is_watched: bool,
    pages: BTreeSet<u64>,
    /// The pages that were written before the driver began to wait.
    flushing: BTreeSet<u64>,
}

fn pages(place: Place, len: u64) -> std::ops::Range<u64> {
    place.address / PAGE..place.address.saturating_add(len).div_ceil(PAGE)
}

impl Posted {
    /// BAR1 was written.
    pub fn write(&mut self, place: Place, len: u64) {
        if self.is_watched && place.aperture == Aperture::Vram {
            self.pages.extend(pages(place, len));
        }
    }

    /// The driver begins to wait for all writes until now. Later writes need another flush.
    pub fn begin_flush(&mut self) {
        self.flushing.append(&mut self.pages);
    }

    /// The driver has seen that the writes for which it waits have arrived.
    pub fn end_flush(&mut self) {
        self.flushing.clear();
    }

    /// A device that loses its state has no writes to wait for.
    pub fn forget(&mut self) {
        self.pages.clear();
        self.flushing.clear();
    }

    /// Why the copy engine may have read old data.
    pub fn read_early(&self, from: Place, len: u64) -> Option<String> {
        self.late(from, len, "copied")
    }

    /// Why what the copy engine writes may be overwritten.
    pub fn written_early(&self, to: Place, len: u64) -> Option<String> {
        self.late(to, len, "filled")
    }

    fn late(&self, place: Place, len: u64, was: &str) -> Option<String> {
        if place.aperture != Aperture::Vram {
            return None;
        }
        let first = |set: &BTreeSet<u64>| set.range(pages(place, len)).next().copied();
        let page = first(&self.pages).or_else(|| first(&self.flushing))?;
        Some(format!(
            "{} was {was}, and the driver has not waited for what was written there through BAR1",
            Place::vram(page * PAGE)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::testing::ram;

    #[test]
    fn pages_are_late_until_the_driver_waits() {
        let mut posted = Posted::default();
        posted.write(Place::vram(0x5ffc), 8);
        assert_eq!(posted.read_early(Place::vram(0x5000), 4096), None);
        posted.is_watched = true;
        posted.write(Place::vram(0x5ffc), 8);
        posted.write(ram(0), 8);
        let is_late = |posted: &Posted, page: u64, pages: u64| {
            let late = posted.read_early(Place::vram(page * PAGE), pages * PAGE);
            late.is_some()
        };
        for (page, pages, late) in [(4, 1, false), (5, 1, true), (6, 1, true), (7, 9, false)] {
            assert_eq!(is_late(&posted, page, pages), late, "{page}");
        }
        assert!(is_late(&posted, 0, 16));
        assert!(posted.written_early(Place::vram(0x5000), PAGE).is_some());
        assert_eq!(posted.read_early(ram(0), 4096), None);
        posted.begin_flush();
        assert!(is_late(&posted, 5, 1));
        // A second flush may begin before the first one ends.
        posted.write(Place::vram(0x8000), 8);
        posted.begin_flush();
        assert!(is_late(&posted, 5, 1) && is_late(&posted, 8, 1));
        posted.write(Place::vram(0x5000), 8);
        posted.end_flush();
        assert!(is_late(&posted, 5, 1) && !is_late(&posted, 6, 10));
        posted.begin_flush();
        posted.write(Place::vram(0x6000), 8);
        posted.forget();
        assert!(!is_late(&posted, 0, 16));
    }
}
