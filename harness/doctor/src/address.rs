//! PCI addresses, versions and sizes, and their text forms.

use std::fmt;

/// A PCI address. Addresses sort in the order of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Address {
    /// Reads `0000:01:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        if domain.len() < 4 || bus.len() != 2 || device.len() != 2 || function.len() != 1 {
            return None;
        }
        let hex = |text: &str| u8::from_str_radix(text, 16).ok();
        let address = Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: hex(bus)?,
            device: hex(device).filter(|device| *device < 32)?,
            function: hex(function).filter(|function| *function < 8)?,
        };
        // This rejects other forms, e.g. with a sign.
        (address.to_string() == text.to_lowercase()).then_some(address)
    }

    /// Whether both are functions of one device.
    pub(crate) fn is_same_card(self, other: Self) -> bool {
        let place = |a: Self| (a.domain, a.bus, a.device);
        place(self) == place(other)
    }

    /// Whether this is device 0, function 0 of its bus.
    pub(crate) fn is_first(self) -> bool {
        self.device == 0 && self.function == 0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A size in readable units.
pub fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mib if mib % 1024 == 0 => format!("{} GiB", mib / 1024),
        mib => format!("{mib} MiB"),
    }
}
