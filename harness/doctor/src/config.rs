//! The parts of a device's configuration space that matter for peer-to-peer DMA.

use std::collections::BTreeMap;

/// ACS control: requests to a peer go to the root complex.
pub const REQUEST_REDIRECT: u16 = 0x04;
/// ACS control: completions from a peer go to the root complex.
pub const COMPLETION_REDIRECT: u16 = 0x08;
/// ACS control: for each peer, the port looks up whether requests may pass.
pub const EGRESS_CONTROL: u16 = 0x20;
/// ACS control: requests with translated addresses go straight to the peer.
pub const DIRECT_TRANSLATED: u16 = 0x40;
/// If any of these is set, p2pdma treats a port as redirecting.
pub const REDIRECTS: u16 = REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL;

/// The size of the whole space, including extended capabilities.
const WHOLE: usize = 4096;
/// The part that users other than root can read.
const HEADER: usize = 64;

const PCI_EXPRESS: u8 = 0x10;
const ACS: u16 = 0x0d;
const ATS: u16 = 0x0f;
const RESIZABLE_BAR: u16 = 0x15;
const VENDOR_SPECIFIC: u8 = 0x09;
const VPD: u8 = 0x03;

/// The kind of a port, from its PCI Express capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A port of the root complex.
    Root,
    /// A switch port towards the root complex.
    Upstream,
    /// A switch port towards devices.
    Downstream,
    /// Anything else.
    Other,
}

/// The state of a device's ACS control register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acs {
    /// Its value. 0 if the device has no ACS.
    Control(u16),
    /// This user cannot read it.
    Unreadable,
}

/// A configuration space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config(Vec<u8>);

impl Config {
    /// Takes the bytes that could be read.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn word(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    fn long(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Whether capabilities could be read.
    pub fn is_readable(&self) -> bool {
        self.0.len() > HEADER
    }

    /// The offset and ID of each capability. Limited, in case the chain is a loop.
    fn capabilities(&self) -> impl Iterator<Item = (usize, u8)> {
        let first = self.byte(0x34).map(usize::from);
        std::iter::successors(first, |at| Some(self.byte(at + 1)?.into()))
            .map(|at| at & !3)
            .take_while(|at| *at >= HEADER)
            .take(48)
            .filter_map(|at| Some((at, self.byte(at)?)))
    }

    /// The same for extended capabilities.
    fn extended(&self) -> impl Iterator<Item = (usize, u16)> {
        let heads = std::iter::successors(Some(0x100), |at| {
            Some(usize::from(self.word(at + 2)? >> 4) & !3)
        });
        heads
            .take_while(|at| *at >= 0x100)
            .take(1024)
            .filter_map(|at| Some((at, self.word(at)?)))
            .take_while(|(_, id)| *id != 0 && *id != 0xffff)
    }

    fn express(&self) -> Option<usize> {
        let mut all = self.capabilities();
        Some(all.find(|(_, id)| *id == PCI_EXPRESS)?.0)
    }

    fn find(&self, id: u16) -> Option<usize> {
        Some(self.extended().find(|(_, other)| *other == id)?.0)
    }

    /// The kind of port. `None` if it cannot be read, or if the device is not PCI Express.
    pub fn port(&self) -> Option<Port> {
        let flags = self.word(self.express()? + 2)?;
        Some(match flags >> 4 & 0xf {
            4 => Port::Root,
            5 => Port::Upstream,
            6 => Port::Downstream,
            _ => Port::Other,
        })
    }

    /// Whether requests may use relaxed ordering.
    pub fn relaxed_ordering(&self) -> bool {
        let control = self.express().and_then(|at| self.word(at + 8));
        control.is_some_and(|control| control & 0x10 != 0)
    }

    /// The state of ACS.
    pub fn acs(&self) -> Acs {
        if !self.is_readable() {
            return Acs::Unreadable;
        }
        let control = self.find(ACS).and_then(|at| self.word(at + 6));
        Acs::Control(control.unwrap_or_default())
    }

    /// Whether ATS is enabled.
    pub fn ats(&self) -> bool {
        let control = self.find(ATS).and_then(|at| self.word(at + 6));
        control.is_some_and(|control| control & 0x8000 != 0)
    }

    /// The sizes that the Resizable BAR capability allows for a BAR: bit n is 2^n MiB.
    pub fn sizes(&self, bar: usize) -> Option<u64> {
        let at = self.find(RESIZABLE_BAR)?;
        let count = usize::try_from(self.long(at + 8)? >> 5 & 7).ok()?;
        let mut entries = (0..count).map(|n| at + 4 + 8 * n);
        entries.find_map(|entry| {
            let control = self.long(entry + 4)?;
            let is_it = usize::try_from(control & 7).ok()? == bar;
            let high = u64::from(control >> 16) << 28;
            is_it.then_some(u64::from(self.long(entry)? >> 4) | high)
        })
    }

    /// The parts that may be published: headers of capabilities, and the registers that
    /// the doctor uses. Serial numbers and vendor-specific data are left out.
    pub fn without_secrets(&self) -> (usize, BTreeMap<String, String>) {
        let mut keep = vec![false; self.0.len()];
        let mut show = |at: usize, count: usize| {
            let end = keep.len().min(at.saturating_add(count));
            if let Some(part) = keep.get_mut(at.min(end)..end) {
                part.fill(true);
            }
        };
        show(0, HEADER);
        for (at, id) in self.capabilities() {
            show(
                at,
                match id {
                    PCI_EXPRESS => 0x3c,
                    VPD | VENDOR_SPECIFIC => 2,
                    _ => 4,
                },
            );
        }
        for (at, id) in self.extended() {
            show(
                at,
                match id {
                    ACS | ATS => 8,
                    RESIZABLE_BAR => 4 + 6 * 8,
                    _ => 4,
                },
            );
        }
        let shown: Vec<u8> = self
            .0
            .iter()
            .zip(&keep)
            .map(|(byte, keep)| if *keep { *byte } else { 0 })
            .collect();
        (shown.len(), pack(&shown))
    }
}

/// Lines of 16 bytes. Lines with only zeros are left out.
fn pack(bytes: &[u8]) -> BTreeMap<String, String> {
    bytes
        .chunks(16)
        .enumerate()
        .filter(|(_, line)| line.iter().any(|byte| *byte != 0))
        .map(|(n, line)| {
            let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            (format!("{:03x}", n * 16), hex.join(" "))
        })
        .collect()
}

/// Reverses [`pack`]. Ignores invalid numbers and offsets that are too large.
pub fn unpack(size: usize, lines: &BTreeMap<String, String>) -> Vec<u8> {
    let mut bytes = vec![0; size.min(WHOLE)];
    for (at, line) in lines {
        let Ok(at) = usize::from_str_radix(at, 16) else {
            continue;
        };
        for (n, word) in line.split_whitespace().enumerate() {
            let place = at.checked_add(n).and_then(|at| bytes.get_mut(at));
            if let (Some(place), Ok(byte)) = (place, u8::from_str_radix(word, 16)) {
                *place = byte;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_not_shown() {
        let mut bytes = vec![0; WHOLE];
        bytes[0x34] = 0x40;
        // A vendor-specific capability, then PCI Express.
        bytes[0x40..0x48].copy_from_slice(&[0x09, 0x50, 8, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa]);
        bytes[0x50..0x54].copy_from_slice(&[0x10, 0x00, 0x62, 0x01]);
        // Device Serial Number, then ACS.
        bytes[0x100..0x104].copy_from_slice(&0x1101_0003_u32.to_le_bytes());
        bytes[0x104..0x10c].fill(0xaa);
        bytes[0x110..0x118].copy_from_slice(&[0x0d, 0, 1, 0, 0xff, 0, 0x1d, 0]);
        let config = Config::new(bytes);
        assert_eq!(config.acs(), Acs::Control(0x1d));
        let (size, lines) = config.without_secrets();
        let shown = Config::new(unpack(size, &lines));
        assert!(!shown.0.contains(&0xaa), "{lines:?}");
        assert_eq!(shown.acs(), config.acs());
        assert_eq!(shown.port(), Some(Port::Downstream));
    }

    #[test]
    fn a_chain_that_bites_its_tail_ends() {
        let mut bytes = vec![0; WHOLE];
        bytes[0x34] = 0x40;
        bytes[0x40..0x42].copy_from_slice(&[0x01, 0x40]);
        bytes[0x100..0x104].copy_from_slice(&0x1001_0003_u32.to_le_bytes());
        let config = Config::new(bytes);
        assert_eq!(config.port(), None);
        assert_eq!(config.acs(), Acs::Control(0));
        assert_eq!(Config::new(vec![0; 64]).acs(), Acs::Unreadable);
        assert_eq!(Config::default().acs(), Acs::Unreadable);
    }

    #[test]
    fn sizes_of_a_bar_that_can_be_resized() {
        let mut bytes = vec![0; WHOLE];
        bytes[0x100..0x104].copy_from_slice(&0x0001_0015_u32.to_le_bytes());
        // 256 MiB to 16 GiB, for one BAR, which is BAR 1.
        bytes[0x104..0x108].copy_from_slice(&0x0007_f000_u32.to_le_bytes());
        bytes[0x108..0x10c].copy_from_slice(&0x0000_0821_u32.to_le_bytes());
        let config = Config::new(bytes);
        assert_eq!(config.sizes(1), Some(0x7f00));
        assert_eq!(config.sizes(0), None);
    }
}
