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
}
