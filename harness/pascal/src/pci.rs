//! Configuration space of a GP106: the parts that nouveau and the PCI core read.

use endpoint::config::{BAR0, CAPABILITIES, Config};
use endpoint::server::Vectors;
use vfio_bindings::bindings::vfio::VFIO_PCI_MSI_IRQ_INDEX;

/// NVIDIA.
pub const VENDOR: u16 = 0x10de;
/// A GeForce GTX 1060. Any ID works unless nouveau's table has a special case for it.
pub const DEVICE: u16 = 0x1c03;

/// Registers.
pub const BAR0_SIZE: u64 = 16 << 20;
/// The window on instance memory. nouveau calls it BAR2; its PCI number is 3. Hardware has 32
/// MiB. nouveau saves and restores the page tables of all of it, word by word, in each suspend.
pub const BAR2_SIZE: u64 = 4 << 20;

/// One MSI message.
pub const VECTORS: Vectors = Vectors {
    index: VFIO_PCI_MSI_IRQ_INDEX,
    count: 1,
};

/// Power management.
pub const PM: usize = 0x60;
/// The register with the power state in its lowest two bits: 3 is D3.
pub const POWER: usize = PM + 4;
const MSI: usize = 0x68;
const PCIE: usize = 0x78;

/// Configuration space after a reset.
pub fn config() -> Config {
    let mut config = Config::new(VENDOR, DEVICE);
    // Revision; class: display controller, VGA.
    config.set(0x08, &[0xa1, 0x00, 0x00, 0x03]);
    // BAR 0 of 32 bits; BARs 1 and 3 of 64 bits, prefetchable.
    config.set(BAR0, &[0x00]);
    config.set(BAR0 + 4, &[0x0c]);
    config.set(BAR0 + 12, &[0x0c]);
    config.set(0x2c, &VENDOR.to_le_bytes());
    config.set(0x2e, &DEVICE.to_le_bytes());
    config.set(CAPABILITIES, &[PM as u8]);
    // Power management, version 3; state D0 or D3hot without a reset.
    config.set(PM, &[0x01, MSI as u8, 0x03, 0x00]);
    config.set(POWER, &[0x08, 0x00]);
    config.allow(POWER, &[0x03, 0x01]);
    // MSI: one message, 64-bit address. QEMU has its own copy.
    config.set(MSI, &[0x05, PCIE as u8, 0x80, 0x00]);
    config.allow(MSI + 2, &[0x71, 0x00]);
    config.allow(MSI + 4, &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    config.allow(MSI + 12, &[0xff, 0xff]);
    // PCI Express, version 2, endpoint.
    config.set(PCIE, &[0x10, 0x00, 0x02, 0x00]);
    // Device capabilities: 256 bytes of payload, extended tags.
    config.set(PCIE + 4, &0x0000_8021u32.to_le_bytes());
    config.set(PCIE + 8, &0x0010u16.to_le_bytes());
    config.allow(PCIE + 8, &[0xff, 0x7f]);
    // Link: 8 GT/s, 16 lanes.
    config.set(PCIE + 0x0c, &0x0000_0103u32.to_le_bytes());
    config.set(PCIE + 0x12, &0x0103u16.to_le_bytes());
    config.allow(PCIE + 0x10, &[0xff]);
    config.allow(PCIE + 0x28, &[0xff, 0xff]);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_are_a_list_that_ends() {
        let found = config().capabilities();
        assert_eq!(found, [(PM, 0x01), (MSI, 0x05), (PCIE, 0x10)]);
    }
}
