//! The VBIOS: either the model's own minimal image or a file. The own image has only what
//! nouveau needs to start.
//!
//! The own image has no scripts, because the device starts initialised. It has no tables for
//! display, clocks or voltages, and nouveau works without them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::pci::{DEVICE, VENDOR};
use crate::registers::{PROM, PROM_END};

/// Size in bytes. `shadow_image()` in `bios/shadow.c` reads at least this much.
pub const SIZE: usize = 4096;

/// Maximum size: the window that the driver reads.
const LIMIT: u64 = (PROM_END - PROM) as u64;

/// Offsets of the parts.
const PCIR: usize = 0x40;
const BIT: usize = 0x80;
const VERSION: usize = 0x100;
const INIT: usize = 0x120;
const PERFORMANCE: usize = 0x140;
const PMU: usize = 0x1c0;
const PMU_TABLE: usize = 0x1d0;
const RAM_MAP: usize = 0x200;
/// The program of the PMU table. It never runs, as the device starts initialised.
const PMU_PROGRAM: usize = 0x240;

/// What is wrong with a VBIOS, for a driver to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flaw {
    /// It does not begin as a VBIOS does: `nvbios_shadow()` finds none.
    Signature,
    /// It ends before its tables, and its checksum is wrong. `shadow_image()` accepts that,
    /// and `gm200_devinit_post()` finds no scripts.
    Tables,
}

/// Gives the image this flaw.
pub fn spoil(image: &mut [u8], flaw: Flaw) {
    match flaw {
        Flaw::Signature => image.iter_mut().take(2).for_each(|byte| *byte = !*byte),
        // Erased, as a flash ROM is.
        Flaw::Tables => image.iter_mut().skip(BIT).for_each(|byte| *byte = 0xff),
    }
}

/// An entry of the BIT, the table of tables (`bios/bit.c`).
struct Entry {
    id: u8,
    version: u8,
    length: u16,
    offset: usize,
}

/// Reads an image from a file, without checks. The driver decides whether it is valid.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut image = Vec::new();
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    // The file may be endless, such as a device.
    let read = file.take(LIMIT + 1).read_to_end(&mut image);
    let read = read.with_context(named)?;
    if read as u64 > LIMIT {
        bail!(
            "{} has more than the {} KiB that a driver can see",
            named(),
            LIMIT >> 10
        );
    }
    // The driver reads words of four bytes.
    image.resize(read.next_multiple_of(4), 0xff);
    Ok(image)
}

/// The model's own image.
pub fn image() -> Vec<u8> {
    let mut image = vec![0; SIZE];
    let mut set = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);

    // The header of an expansion ROM (`bios/image.c`).
    set(0, &[0x55, 0xaa, (SIZE / 512) as u8]);
    set(0x18, &(PCIR as u16).to_le_bytes());
    // The PCI data structure (`bios/pcir.c`): the size, code type x86, the last image.
    set(PCIR, b"PCIR");
    set(PCIR + 0x04, &VENDOR.to_le_bytes());
    set(PCIR + 0x06, &DEVICE.to_le_bytes());
    set(PCIR + 0x0a, &0x18u16.to_le_bytes());
    set(PCIR + 0x0f, &[0x03]);
    set(PCIR + 0x10, &((SIZE / 512) as u16).to_le_bytes());
    set(PCIR + 0x15, &[0x80]);

    let entries = [
        // The version (`bios/base.c`). `parse_bit_i_tbl_entry()` of `nouveau_bios.c`
        // requires this length.
        Entry {
            id: b'i',
            version: 2,
            length: 15,
            offset: VERSION,
        },
        // Scripts: `gm200_devinit_post()` requires version 1 and at least this length.
        Entry {
            id: b'I',
            version: 1,
            length: 0x1c,
            offset: INIT,
        },
        // Performance: `gp100_ram_init()` requires the RAM map (`bios/rammap.c`).
        Entry {
            id: b'P',
            version: 2,
            length: 0x80,
            offset: PERFORMANCE,
        },
        // PMU programs: `gm200_devinit_post()` requires number 4 (`bios/pmu.c`).
        Entry {
            id: b'p',
            version: 2,
            length: 4,
            offset: PMU,
        },
    ];
    set(BIT, b"\xff\xb8BIT\0");
    set(BIT + 6, &[0x00, 0x01, 12, 6, entries.len() as u8]);
    for (n, entry) in entries.iter().enumerate() {
        let at = BIT + 12 + n * 6;
        set(at, &[entry.id, entry.version]);
        set(at + 2, &entry.length.to_le_bytes());
        set(at + 4, &(entry.offset as u16).to_le_bytes());
    }
    // The version's major number, the fourth byte, is 0, so `nouveau_bios_init()` runs no
    // scripts.
    set(VERSION, &[0x01, 0x00, 0x06, 0x00]);
    set(PERFORMANCE + 4, &(RAM_MAP as u32).to_le_bytes());
    // Version, length of this header, length and number of entries; no scripts at +14.
    set(RAM_MAP, &[0x11, 0x15, 0, 0, 0, 0]);
    set(PMU, &(PMU_TABLE as u32).to_le_bytes());
    set(PMU_TABLE, &[1, 4, 6, 1]);
    set(PMU_TABLE + 4, &[0x04]);
    set(PMU_TABLE + 6, &(PMU_PROGRAM as u32).to_le_bytes());

    let sum = image.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    image[SIZE - 1] = sum.wrapping_neg();
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u16_at(image: &[u8], at: usize) -> usize {
        usize::from(u16::from_le_bytes([image[at], image[at + 1]]))
    }

    /// `bit_entry()` of `bios/bit.c`.
    fn entry(image: &[u8], id: u8) -> Option<(u8, usize, usize)> {
        let bit = image.windows(5).position(|w| w == b"\xff\xb8BIT")?;
        let size = usize::from(image[bit + 9]);
        (0..usize::from(image[bit + 10]))
            .map(|n| bit + 12 + n * size)
            .find(|at| image[*at] == id)
            .map(|at| (image[at + 1], u16_at(image, at + 2), u16_at(image, at + 4)))
    }

    #[test]
    fn the_image_is_one_that_nouveau_takes() {
        let image = image();
        assert_eq!(u16_at(&image, 0), 0xaa55);
        assert_eq!(image.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)), 0);
        let pcir = u16_at(&image, 0x18);
        assert_eq!(&image[pcir..pcir + 4], b"PCIR");
        assert_eq!(u16_at(&image, pcir + 0x10) * 512, image.len());
        assert_eq!(image[pcir + 0x15] & 0x80, 0x80);
    }

    #[test]
    fn a_flaw_is_one_that_nouveau_notices() {
        let flawed = |flaw| {
            let mut image = image();
            spoil(&mut image, flaw);
            image
        };
        // `nvbios_imagen()` knows these.
        let signature = u16_at(&flawed(Flaw::Signature), 0);
        assert!(![0xaa55, 0xbb77, 0x4e56].contains(&signature));

        let image = flawed(Flaw::Tables);
        let pcir = u16_at(&image, 0x18);
        assert_eq!(u16_at(&image, 0), 0xaa55);
        assert_eq!(&image[pcir..pcir + 4], b"PCIR");
        assert_eq!(u16_at(&image, pcir + 0x10) * 512, image.len());
        assert_ne!(image.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)), 0);
        assert!(entry(&image, b'I').is_none());

        // A file may be shorter than what is changed.
        for flaw in Flaw::value_variants() {
            spoil(&mut [], *flaw);
            spoil(&mut [0; 1], *flaw);
        }
    }

    #[test]
    fn a_file_is_taken_as_it_is_if_it_fits() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rom");
        std::fs::write(&file, [1, 2, 3, 4, 5]).unwrap();
        assert_eq!(read(&file).unwrap(), [1, 2, 3, 4, 5, 0xff, 0xff, 0xff]);
        std::fs::write(&file, vec![0; LIMIT as usize]).unwrap();
        assert_eq!(read(&file).unwrap().len() as u64, LIMIT);
        for large in [dir.path().join("large"), "/dev/zero".into()] {
            if large.starts_with(dir.path()) {
                std::fs::write(&large, vec![0; LIMIT as usize + 1]).unwrap();
            }
            let told = format!("{:#}", read(&large).unwrap_err());
            assert!(told.contains("more than the 1024 KiB"), "{told}");
        }
        let told = format!("{:#}", read(&dir.path().join("none")).unwrap_err());
        assert!(told.contains("none: No such file"), "{told}");
    }

    #[test]
    fn the_tables_are_found() {
        let image = image();
        let (version, length, _) = entry(&image, b'I').unwrap();
        assert!(version == 1 && length >= 0x1c);
        let (version, _, at) = entry(&image, b'P').unwrap();
        let map = u16_at(&image, at + 4);
        assert!(version == 2 && image[map] == 0x11 && image[map + 1] >= 0x15);
        let (version, length, at) = entry(&image, b'p').unwrap();
        let table = u16_at(&image, at);
        assert!(version == 2 && length >= 4);
        let first = table + usize::from(image[table + 1]);
        assert_eq!((image[first], image[table + 3]), (4, 1));
        assert_ne!(u16_at(&image, first + 2), 0);
        assert!(entry(&image, b'M').is_none());
    }
}
