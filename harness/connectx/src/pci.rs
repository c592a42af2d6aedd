//! Configuration space: what a driver finds before it knows the device.

/// Size of configuration space with the extended capabilities.
pub const CONFIG_SIZE: usize = 4096;
/// Size of BAR 0: 8192 UARs of 4 KiB each.
pub const BAR_SIZE: u64 = 32 << 20;
/// Interrupt vectors.
pub const VECTORS: u16 = 64;

const COMMAND: usize = 0x04;
const COMMAND_MEMORY: u8 = 1 << 1;
const COMMAND_MASTER: u8 = 1 << 2;
const BAR0: usize = 0x10;
const PCIE: usize = 0x60;
const MSIX: usize = 0x9c;
const ATS: usize = 0x100;

/// Configuration space, as far as the model answers for it. QEMU keeps MSI-X and
/// the sizing of BARs to itself.
pub struct Config {
    bytes: [u8; CONFIG_SIZE],
}

impl Config {
    /// A ConnectX-6 on InfiniBand.
    pub fn new() -> Self {
        let mut config = Self {
            bytes: [0; CONFIG_SIZE],
        };
        config.set(0x00, &0x15b3u16.to_le_bytes());
        config.set(0x02, &0x101bu16.to_le_bytes());
        // Capabilities are there.
        config.set(0x06, &[1 << 4]);
        // Class: network controller, InfiniBand.
        config.set(0x0a, &[0x07, 0x02]);
        // A 64-bit prefetchable BAR.
        config.set(BAR0, &[0x0c]);
        config.set(0x2c, &0x15b3u16.to_le_bytes());
        config.set(0x2e, &0x0001u16.to_le_bytes());
        config.set(0x34, &[PCIE as u8]);
        // PCI Express, version 2, endpoint.
        config.set(PCIE, &[0x10, MSIX as u8, 0x02, 0x00]);
        // Device capabilities: 512 bytes of payload, extended tags, reset of the function.
        config.set(PCIE + 4, &(0x1000_8022u32).to_le_bytes());
        // Device control: relaxed ordering, as after a reset.
        config.set(PCIE + 8, &(0x0010u16).to_le_bytes());
        // Link: 8 GT/s, 16 lanes.
        config.set(PCIE + 0x0c, &(0x0000_0103u32).to_le_bytes());
        config.set(PCIE + 0x12, &(0x0103u16).to_le_bytes());
        config.set(MSIX, &[0x11, 0x00]);
        config.set(MSIX + 2, &(VECTORS - 1).to_le_bytes());
        config.set(MSIX + 4, &0x2000u32.to_le_bytes());
        config.set(MSIX + 8, &0x3000u32.to_le_bytes());
        // Address Translation Services, version 1, the last one; page aligned requests.
        config.set(ATS, &0x0001_000fu32.to_le_bytes());
        config.set(ATS + 4, &(1u16 << 5).to_le_bytes());
        config
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether the driver lets the device do DMA.
    pub fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & COMMAND_MASTER != 0
    }

    /// Reads; what is beyond reads as zero.
    pub fn read(&self, at: u64, data: &mut [u8]) {
        for (n, byte) in data.iter_mut().enumerate() {
            let at = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(n);
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Writes those bits that a driver may change.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        for (n, byte) in data.iter().enumerate() {
            let at = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(n);
            let writable: u8 = match at {
                COMMAND => COMMAND_MEMORY | COMMAND_MASTER,
                // Interrupts off.
                0x05 => 1 << 2,
                // Latency, cache line, interrupt line.
                0x0c | 0x0d | 0x3c => 0xff,
                _ if at == PCIE + 8 => 0xff,
                _ if at == PCIE + 9 => 0x7f,
                // Link control, device control 2.
                _ if at == PCIE + 0x10 || at == PCIE + 0x28 || at == PCIE + 0x29 => 0xff,
                // MSI-X enable and function mask; QEMU has its own copy.
                _ if at == MSIX + 3 => 0xc0,
                _ if at == ATS + 6 => 0x1f,
                _ if at == ATS + 7 => 0x80,
                _ => 0,
            };
            if let Some(old) = self.bytes.get_mut(at) {
                *old = (*old & !writable) | (byte & writable);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_change_changes() {
        let mut config = Config::new();
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

    #[test]
    fn the_capabilities_are_a_list_that_ends() {
        let config = Config::new();
        let mut at = usize::from(config.bytes[0x34]);
        let mut found = Vec::new();
        while at != 0 {
            found.push(config.bytes[at]);
            at = usize::from(config.bytes[at + 1]);
        }
        assert_eq!(found, [0x10, 0x11]);
    }
}
