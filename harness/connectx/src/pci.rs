//! PCI configuration space of the device.

use endpoint::config::{BAR0, CAPABILITIES, Config};
use endpoint::server::Vectors;
use vfio_bindings::bindings::vfio::VFIO_PCI_MSIX_IRQ_INDEX;

/// Size of BAR 0: 8192 UARs of 4 KiB each.
pub const BAR_SIZE: u64 = 32 << 20;
/// Interrupt vectors.
pub const VECTORS: Vectors = Vectors {
    index: VFIO_PCI_MSIX_IRQ_INDEX,
    count: 64,
};

const PCIE: usize = 0x60;
/// Device Control of PCI Express.
pub const DEVICE_CONTROL: usize = PCIE + 8;
const MSIX: usize = 0x9c;
const ATS: usize = 0x100;

/// A ConnectX-6 on InfiniBand.
pub fn config() -> Config {
    let mut config = Config::new(0x15b3, 0x101b);
    // Class: network controller, InfiniBand.
    config.set(0x0a, &[0x07, 0x02]);
    // A 64-bit prefetchable BAR.
    config.set(BAR0, &[0x0c]);
    config.set(0x2c, &0x15b3u16.to_le_bytes());
    config.set(0x2e, &0x0001u16.to_le_bytes());
    config.set(CAPABILITIES, &[PCIE as u8]);
    // PCI Express, version 2, endpoint.
    config.set(PCIE, &[0x10, MSIX as u8, 0x02, 0x00]);
    // Device capabilities: 512 bytes of payload, extended tags, function level reset.
    config.set(PCIE + 4, &(0x1000_8022u32).to_le_bytes());
    // Device control: relaxed ordering, as after a reset.
    config.set(DEVICE_CONTROL, &(0x0010u16).to_le_bytes());
    config.allow(DEVICE_CONTROL, &[0xff, 0x7f]);
    // Link: 8 GT/s, 16 lanes.
    config.set(PCIE + 0x0c, &(0x0000_0103u32).to_le_bytes());
    config.set(PCIE + 0x12, &(0x0103u16).to_le_bytes());
    // Link control, device control 2.
    config.allow(PCIE + 0x10, &[0xff]);
    config.allow(PCIE + 0x28, &[0xff, 0xff]);
    config.set(MSIX, &[0x11, 0x00]);
    config.set(MSIX + 2, &(VECTORS.count as u16 - 1).to_le_bytes());
    // MSI-X enable and function mask; QEMU has its own copy.
    config.allow(MSIX + 3, &[0xc0]);
    config.set(MSIX + 4, &0x2000u32.to_le_bytes());
    config.set(MSIX + 8, &0x3000u32.to_le_bytes());
    // Address Translation Services, version 1, the last capability; page aligned requests.
    config.set(ATS, &0x0001_000fu32.to_le_bytes());
    config.set(ATS + 4, &(1u16 << 5).to_le_bytes());
    config.allow(ATS + 6, &[0x1f, 0x80]);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_are_a_list_that_ends() {
        assert_eq!(config().capabilities(), [(PCIE, 0x10), (MSIX, 0x11)]);
    }
}
