//! The runlist that the driver has submitted: the channels of each group
//! (`engine/fifo/gk110.c`, `gp100.c`). The model does not schedule by it, but nouveau
//! preempts groups, and a group and its channel have different numbers.

use crate::space::{Aperture, Place, Space};

/// Number of channels. Hardware has 4096, and each takes memory from BAR1.
pub const CHANNELS: u32 = 64;

/// In the first word of an entry: the number of the channel or group.
const NUMBER: u32 = 0xfff;
/// The entry begins a group. The group's channels follow; their count starts at bit 26.
const GROUP: u32 = 1 << 13;
const GROUP_COUNT: u32 = 26;
const ENTRY: u64 = 8;

/// A runlist, as its two registers describe it.
#[derive(Clone, Copy, Debug)]
pub struct Runlist {
    start: Place,
    entries: u64,
}

impl Runlist {
    /// `address`, `length`: the values that `gk104_runl_commit()` writes.
    pub fn new(address: u32, length: u32) -> Self {
        let aperture = match address >> 28 {
            0 => Aperture::Vram,
            _ => Aperture::System,
        };
        Self {
            start: Place {
                aperture,
                address: u64::from(address & 0x0fff_ffff) << 12,
            },
            // The driver may write any length. At most, each channel has its own group.
            entries: u64::from(length & 0xf_ffff).min(2 * u64::from(CHANNELS)),
        }
    }

    /// The channels of a group.
    pub fn channels(self, space: Space<'_>, group: u32) -> Vec<u32> {
        let mut entries = (0..self.entries).filter_map(|n| {
            let entry = space.read_u64(self.start.after(n * ENTRY)).ok()?;
            Some(entry as u32)
        });
        let is_it = |entry: &u32| entry & GROUP != 0 && entry & NUMBER == group;
        let Some(count) = entries.find(is_it).map(|entry| entry >> GROUP_COUNT) else {
            return Vec::new();
        };
        entries
            .take(count as usize)
            .map(|entry| entry & NUMBER)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Board, ram};

    #[test]
    fn a_group_has_the_channels_that_follow_it() {
        let board = Board::new();
        // As gk110_runl_insert_cgrp() and gp100_runl_insert_chan(), which also writes the instance.
        let group = |count: u64, id: u64| count << 26 | 128 << 18 | 3 << 14 | 0x2000 | id;
        let list = [group(1, 7), 2 | 5 << 32, group(2, 4), 7, 9 | 1 << 14];
        for start in [Place::vram(0x5000), ram(0x2000)] {
            for (n, entry) in (0..).zip(list) {
                board.set(start.after(n * ENTRY), entry);
            }
            let target = if start.aperture == Aperture::Vram {
                0
            } else {
                3
            };
            let address = target << 28 | (start.address >> 12) as u32;
            let channels = |length, group| {
                let runlist = Runlist::new(address, length);
                runlist.channels(board.space(), group)
            };
            assert_eq!(channels(5, 7), [2]);
            assert_eq!(channels(5, 4), [7, 9]);
            assert!(channels(5, 2).is_empty());
            assert_eq!(channels(4, 4), [7]);
            assert!(channels(0, 7).is_empty());
        }
        // No memory is there.
        let nowhere = Runlist::new(0x0fff_ffff, !0);
        assert!(nowhere.channels(board.space(), 0).is_empty());
    }
}
