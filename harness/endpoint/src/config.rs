//! PCI configuration space.

/// Size of configuration space with the extended capabilities.
pub const CONFIG_SIZE: usize = 4096;

/// The command register.
pub const COMMAND: usize = 0x04;
/// The device responds to accesses to its BARs.
pub const COMMAND_MEMORY: u8 = 1 << 1;
/// The device may do DMA.
pub const COMMAND_MASTER: u8 = 1 << 2;
/// The first BAR.
pub const BAR0: usize = 0x10;
/// Pointer to the first capability.
pub const CAPABILITIES: usize = 0x34;

/// The capability of PCI Express, and the offsets of its registers.
const PCIE_ID: u8 = 0x10;
const DEVICE_CAPABILITIES: usize = 4;
const DEVICE_CONTROL: usize = 8;
const LINK_CONTROL: usize = 16;
/// In the last byte of Device Capabilities: the function has a function level reset.
const HAS_FLR: u8 = 1 << 4;
/// In the last byte of Device Control: starts this reset. It always reads 0.
const INITIATE_FLR: u8 = 1 << 7;
/// What a function level reset must not change, of the fields that a driver can change here:
/// Max_Payload_Size in Device Control; in Link Control the control of ASPM, the Read Completion
/// Boundary, the common clock and Extended Synch. Source: PCI Express 6.0, 6.6.2.
const KEPT: [(usize, u8); 2] = [(DEVICE_CONTROL, 0xe0), (LINK_CONTROL, 0xcb)];

/// The part of configuration space that a model handles. QEMU itself handles MSI, MSI-X and
/// the sizing of BARs.
pub struct Config {
    bytes: [u8; CONFIG_SIZE],
    /// The bits that a driver may change.
    writable: [u8; CONFIG_SIZE],
}

impl Config {
    /// The configuration space of a device with a capability list.
    pub fn new(vendor: u16, device: u16) -> Self {
        let mut config = Self {
            bytes: [0; CONFIG_SIZE],
            writable: [0; CONFIG_SIZE],
        };
        config.set(0x00, &vendor.to_le_bytes());
        config.set(0x02, &device.to_le_bytes());
        // Status: the capability list is present.
        config.set(0x06, &[1 << 4]);
        // Command: memory space, bus mastering, INTx disable.
        config.allow(COMMAND, &[COMMAND_MEMORY | COMMAND_MASTER, 1 << 2]);
        // Cache line, latency, interrupt line.
        config.allow(0x0c, &[0xff, 0xff]);
        config.allow(0x3c, &[0xff]);
        config
    }

    /// Sets initial bytes.
    pub fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets the bits that a driver may change.
    pub fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// Whether the driver allows the device to do DMA.
    pub fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & COMMAND_MASTER != 0
    }

    /// Reads. Bytes beyond the end read as zero.
    pub fn read(&self, at: u64, data: &mut [u8]) {
        for (n, byte) in data.iter_mut().enumerate() {
            let at = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(n);
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Writes the bits that a driver may change.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        for (n, byte) in data.iter().enumerate() {
            let at = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(n);
            if let (Some(old), Some(writable)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *old = (*old & !writable) | (byte & writable);
            }
        }
    }

    /// Whether this write starts a function level reset, of a function that announces one.
    pub fn starts_flr(&self, at: u64, data: &[u8]) -> bool {
        let Some(pcie) = self.pcie() else {
            return false;
        };
        let index = ((pcie + DEVICE_CONTROL + 1) as u64).checked_sub(at);
        let byte = index.and_then(|index| data.get(usize::try_from(index).ok()?));
        self.bytes[pcie + DEVICE_CAPABILITIES + 3] & HAS_FLR != 0
            && byte.is_some_and(|byte| byte & INITIATE_FLR != 0)
    }

    /// Configuration space after a function level reset: `fresh`, with what such a reset keeps.
    #[must_use]
    pub fn after_flr(&self, mut fresh: Self) -> Self {
        if let Some(pcie) = self.pcie() {
            for (register, kept) in KEPT {
                let at = pcie + register;
                fresh.bytes[at] = fresh.bytes[at] & !kept | self.bytes[at] & kept;
            }
        }
        fresh
    }

    /// Where the capability of PCI Express begins.
    fn pcie(&self) -> Option<usize> {
        let all = self.capabilities();
        all.iter().find(|(_, id)| *id == PCIE_ID).map(|(at, _)| *at)
    }

    /// The capabilities in list order: the offset and the number of each.
    pub fn capabilities(&self) -> Vec<(usize, u8)> {
        let mut found = Vec::new();
        let mut at = usize::from(self.bytes[CAPABILITIES]);
        // 256 bytes hold at most 64 capabilities: a longer list is a loop.
        while at != 0 && found.len() < 64 {
            found.push((at, self.bytes[at]));
            at = usize::from(self.bytes[at + 1]);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_change_changes() {
        let mut config = Config::new(0x15b3, 0x101b);
        assert!(!config.is_bus_master());
        config.write(COMMAND as u64, &[0xff, 0xff]);
        assert!(config.is_bus_master());
        config.write(0, &[0; 4]);
        let mut id = [0; 4];
        config.read(0, &mut id);
        assert_eq!(id, [0xb3, 0x15, 0x1b, 0x10]);
        config.write(CONFIG_SIZE as u64 - 1, &[1, 2]);
        config.read(u64::MAX, &mut id);
        assert_eq!(id, [0; 4]);
    }

    const PCIE: usize = 0x60;

    /// A function whose Device Capabilities end with this byte.
    fn endpoint(capabilities: u8) -> Config {
        let mut config = Config::new(0x15b3, 0x101b);
        config.set(CAPABILITIES, &[PCIE as u8]);
        config.set(PCIE, &[PCIE_ID, 0]);
        config.set(PCIE + DEVICE_CAPABILITIES + 3, &[capabilities]);
        config.allow(PCIE + DEVICE_CONTROL, &[0xff, 0x7f]);
        config.allow(PCIE + LINK_CONTROL, &[0xff]);
        config
    }

    #[test]
    fn a_reset_is_started_by_one_bit_of_a_function_that_has_it() {
        let (config, control) = (endpoint(HAS_FLR), (PCIE + DEVICE_CONTROL) as u64);
        assert!(config.starts_flr(control, &[0, INITIATE_FLR]));
        assert!(config.starts_flr(control, &[0, 0xff, 0, 0]));
        assert!(config.starts_flr(control + 1, &[INITIATE_FLR]));
        assert!(config.starts_flr(control - 2, &[0, 0, 0, INITIATE_FLR]));
        for (at, data) in [
            (control, &[0xff, !INITIATE_FLR][..]),
            (control, &[0xff]),
            (control + 2, &[0xff, 0xff]),
            (0, &[0xff; 4]),
            (u64::MAX, &[0xff; 4]),
        ] {
            assert!(!config.starts_flr(at, data), "{at:#x} {data:?}");
        }
        assert!(!endpoint(!HAS_FLR).starts_flr(control, &[0, INITIATE_FLR]));
        assert!(!Config::new(0, 0).starts_flr(control, &[0, INITIATE_FLR]));
    }

    #[test]
    fn a_function_level_reset_leaves_the_link_alone() {
        let mut config = endpoint(HAS_FLR);
        for at in [COMMAND, PCIE + DEVICE_CONTROL, PCIE + LINK_CONTROL] {
            config.write(at as u64, &[0xff, 0xff]);
        }
        let config = config.after_flr(endpoint(HAS_FLR));
        let read = |at: usize| {
            let mut data = [0; 2];
            config.read(at as u64, &mut data);
            data
        };
        assert!(!config.is_bus_master());
        assert_eq!(read(PCIE + DEVICE_CONTROL), [0xe0, 0]);
        assert_eq!(read(PCIE + LINK_CONTROL), [0xcb, 0]);
    }
}
