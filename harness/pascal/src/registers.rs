//! Registers in BAR0, named by how nouveau uses them. Paths are relative to
//! `drivers/gpu/drm/nouveau/nvkm/`.

/// Identity: `engine/device/base.c`.
pub const BOOT_0: u32 = 0x00_0000;
/// GP106, revision A1.
pub const GP106: u32 = 0x1360_00a1;

/// Pending interrupts, in two registers: `subdev/mc/nv04.c`.
pub const INTR: u32 = 0x00_0100;
/// The second one.
pub const INTR_1: u32 = 0x00_0104;
/// Unmasks interrupts: `subdev/mc/gp100.c`.
pub const INTR_ALLOW: u32 = 0x00_0160;
/// Masks interrupts.
pub const INTR_BLOCK: u32 = 0x00_0180;
/// Rearms the MSI: `subdev/pci/gp100.c`.
pub const MSI_REARM: u32 = 0x08_8704;

/// The instance block of BAR1: `subdev/bar/gf100.c`.
pub const BAR1_BLOCK: u32 = 0x00_1704;
/// The instance block of BAR2.
pub const BAR2_BLOCK: u32 = 0x00_1714;
/// In both: addresses are translated.
pub const BLOCK_VIRTUAL: u32 = 1 << 31;
/// In both: the instance block's page number.
pub const BLOCK_POINTER: u32 = 0x0fff_ffff;

/// The base of the [`PRAMIN`] window, in units of 64 KiB: `subdev/instmem/nv50.c`.
pub const WINDOW: u32 = 0x00_1700;
/// A window on video memory.
pub const PRAMIN: u32 = 0x70_0000;
/// The first register after it.
pub const PRAMIN_END: u32 = 0x80_0000;

/// The VBIOS: `subdev/bios/shadowrom.c`.
pub const PROM: u32 = 0x30_0000;
/// The first register after it.
pub const PROM_END: u32 = 0x40_0000;

/// Time in nanoseconds: `subdev/timer/nv04.c`.
pub const TIME_LOW: u32 = 0x00_9400;
/// The upper half of the time.
pub const TIME_HIGH: u32 = 0x00_9410;

/// Number of PBDMAs: `engine/fifo/gm200.c`.
pub const PBDMAS: u32 = 0x00_2004;
/// Number of channels: `engine/fifo/gm200.c`.
pub const CHANNEL_COUNT: u32 = 0x00_2008;
/// Interrupts of the host engine: `engine/fifo/gk104.c`.
pub const FIFO_INTR: u32 = 0x00_2100;
/// The unmasked interrupts of the host engine.
pub const FIFO_INTR_ENABLE: u32 = 0x00_2140;
/// In FIFO_INTR: a channel has executed NON_STALL_INTERRUPT.
pub const FIFO_NON_STALL: u32 = 1 << 31;
/// In FIFO_INTR: a unit has a page fault, which four registers describe.
pub const FIFO_MMU_FAULT: u32 = 1 << 28;
/// In FIFO_INTR: a PBDMA has an interrupt: `engine/fifo/gk104.c`.
pub const FIFO_PBDMA: u32 = 1 << 29;
/// The PBDMAs with an interrupt: `engine/fifo/gf100.c`.
pub const PBDMAS_INTR: u32 = 0x00_25a0;
/// The method that caused a PBDMA interrupt: `engine/fifo/gf100.c`. The driver writes the
/// register to let the PBDMA continue.
pub const PBDMA_METHOD: u32 = 0x04_00c0;
/// The data of that method.
pub const PBDMA_DATA: u32 = 0x04_00c4;
/// Interrupts of a PBDMA. Writing a bit clears it.
pub const PBDMA_INTR: u32 = 0x04_0108;
/// The unmasked interrupts of a PBDMA.
pub const PBDMA_INTR_ENABLE: u32 = 0x04_010c;
/// The channel that the PBDMA runs.
pub const PBDMA_CHANNEL: u32 = 0x04_0120;
/// Further PBDMA interrupts, which the model does not raise: `engine/fifo/gk104.c`.
pub const PBDMA_INTR_1: u32 = 0x04_0148;
/// In PBDMA_INTR: a word is not a valid header.
pub const PBDMA_PBENTRY: u32 = 1 << 18;
/// In PBDMA_INTR: a method is invalid.
pub const PBDMA_ILLEGAL_METHOD: u32 = 1 << 21;
/// In PBDMA_INTR: a semaphore operation is invalid.
pub const PBDMA_SEMAPHORE: u32 = 1 << 25;
/// The units with a page fault: `engine/fifo/gf100.c`.
pub const FAULT_UNITS: u32 = 0x00_259c;
/// Four registers for each unit: instance, address low, address high, reason.
pub const FAULT_INFO: u32 = 0x00_2800;
/// The first register after them.
pub const FAULT_INFO_END: u32 = 0x00_2a00;
/// Whether the driver has triggered a page fault of engine 0 to stop it:
/// `engine/fifo/gf100.c`. The write that triggers it is not modelled.
pub const FAULT_TRIGGERED: u32 = 0x00_2a30;
/// The channels' USERD area in BAR1: `engine/fifo/gk104.c`.
pub const USERD: u32 = 0x00_2254;
/// The runlists that a PBDMA serves: `engine/fifo/gk104.c`.
pub const PBDMA_RUNLISTS: u32 = 0x00_2390;
/// Preempts a channel: `engine/fifo/gk110.c`. Bit 20: the preemption is pending.
pub const PREEMPT: u32 = 0x00_2634;
/// In PREEMPT: the number names a channel group.
pub const PREEMPT_GROUP: u32 = 1 << 24;
/// The runlist's address: `engine/fifo/gk104.c`.
pub const RUNLIST: u32 = 0x00_2270;
/// The runlist's length. Writing it submits the runlist.
pub const RUNLIST_LENGTH: u32 = 0x00_2274;
/// Two registers of each channel: `engine/fifo/gk104.c`.
pub const CHANNELS: u32 = 0x80_0000;

/// The table of engines: `subdev/top/gk104.c`.
pub const TOP: u32 = 0x02_2700;
/// The first register after them.
pub const TOP_END: u32 = 0x02_2800;
/// The copy engine's bit in [`INTR`], which the model never sets.
const CE_INTR: u32 = 5;
/// The copy engine's bit in [`ENABLE`].
const CE_RESET: u32 = 6;
/// The units that are out of reset: `subdev/mc/nv04.c`.
pub const ENABLE: u32 = 0x00_0200;
/// In ENABLE: the copy engine.
pub const ENABLE_CE: u32 = 1 << CE_RESET;
/// The unit number of the copy engine's page faults.
pub const CE_FAULT: u32 = 0x15;
/// The base of the copy engine's registers.
const CE_BASE: u32 = 0x10_4000;
/// One engine: copy engine 0 on runlist 0.
pub const ENGINES: [u32; 3] = [
    // Enumeration: engine, runlist, interrupt and reset are all valid; more follows.
    1 << 31 | CE_INTR << 15 | CE_RESET << 9 | 0x3c | 2,
    // Data: instance 0, the fault unit is valid; more follows.
    1 << 31 | CE_BASE | CE_FAULT << 3 | 4 | 1,
    // Type: a logical copy engine.
    0x13 << 2 | 3,
];

/// The state of the MMU: `subdev/mmu/vmmgf100.c`.
pub const MMU_CONTROL: u32 = 0x10_0c80;
/// In MMU_CONTROL: the queue has room for invalidations, and none is in flight.
pub const MMU_READY: u32 = 0x00ff_8000;
/// The root directory to invalidate: `subdev/mmu/vmmgp100.c`.
pub const INVALIDATE_TABLES: u32 = 0x10_0cb8;
/// The upper half of the root directory.
pub const INVALIDATE_TABLES_HIGH: u32 = 0x10_0cec;
/// Starts an invalidation.
pub const INVALIDATE: u32 = 0x10_0cbc;
/// In INVALIDATE: start. Without this bit nothing happens.
pub const INVALIDATE_NOW: u32 = 1 << 31;
/// In INVALIDATE: all pages. nouveau never invalidates a single page.
pub const INVALIDATE_PAGES: u32 = 1 << 0;
/// In INVALIDATE: all page tables, not only those of the named root directory.
pub const INVALIDATE_ALL: u32 = 1 << 1;

/// Size of video memory: `subdev/fb/gp102.c`.
pub const VRAM_SIZE: u32 = 0x10_0ce0;
/// Bit 4: protected memory needs scrubbing: `subdev/fb/gp102.c`.
pub const SCRUB: u32 = 0x10_0cd0;

/// Starts the PMU: `subdev/devinit/gm200.c`.
pub const PMU_START: u32 = 0x10_a100;
/// In PMU_START: start.
pub const PMU_START_NOW: u32 = 1 << 1;
/// Mailbox between the driver and a program of the PMU.
pub const PMU_MAILBOX: u32 = 0x10_a040;
/// In PMU_MAILBOX: the program has initialised the board.
pub const PMU_DONE: u32 = 0x2000;
/// Bit 1: the board is initialised: `subdev/devinit/gf100.c`.
pub const DEVINIT: u32 = 0x02_240c;
/// Fuses: the missing copy engines: `subdev/devinit/gm107.c`.
pub const FUSE_CE: u32 = 0x02_1c00;
/// Fuses: bit 0: the display is missing.
pub const FUSE_DISPLAY: u32 = 0x02_1c04;

/// Waits for writes through a BAR: `subdev/bar/g84.c`. The driver writes the register, and
/// then reads it until the writes have arrived.
pub const BAR_FLUSH: u32 = 0x07_0000;

/// Number of level 2 cache partitions: `subdev/ltc/gp100.c`.
pub const LTC_COUNT: u32 = 0x12_006c;
/// Slices of each partition, from bit 28 on: `subdev/ltc/gp100.c`.
pub const LTC_SLICES: u32 = 0x17_e280;

/// Entries of the replayable fault buffer: `subdev/fault/gp100.c`.
pub const FAULT_ENTRIES: u32 = 0x00_2a78;

/// Ranges of registers, first and last, that keep the written value and have no effect. They
/// read as zero until written.
const STORED: &[(u32, u32)] = &[
    // Strap, crystal: engine/device/base.c, subdev/fb/base.c.
    (0x10_1000, 0x10_1000),
    // The second identity register: engine/device/base.c.
    (0x00_0004, 0x00_0004),
    // Legacy interrupts, enable bits of units: subdev/mc/nv04.c, nv50.c.
    (0x00_0140, 0x00_0144),
    // Masks of the second interrupt register, which is always zero: subdev/mc/gp100.c.
    (0x00_0164, 0x00_0164),
    (0x00_0184, 0x00_0184),
    (0x00_0200, 0x00_0204),
    // The bus's interrupts: subdev/bus/gf100.c.
    (0x00_1100, 0x00_1100),
    (0x00_1140, 0x00_1140),
    // Whether a BAR's instance block is still being changed: subdev/bar/gm107.c.
    (0x00_1710, 0x00_1710),
    // Waiting for the level 2 cache: subdev/ltc/gf100.c.
    (0x07_0004, 0x07_0010),
    // The alarm, which only serves to watch the temperature: subdev/timer/nv04.c.
    (0x00_9100, 0x00_9100),
    (0x00_9140, 0x00_9140),
    (0x00_9200, 0x00_9210),
    (0x00_9420, 0x00_9420),
    // The runlist. The model reads only its groups: engine/fifo/gk104.c.
    (0x00_2270, 0x00_228c),
    // Scheduling of runlists: engine/fifo/gk104.c.
    (0x00_262c, 0x00_2630),
    // Status of the engines: engine/fifo/gk104.c.
    (0x00_2640, 0x00_267c),
    // Interrupts of runlists, of binding, of channel switches: engine/fifo/gk104.c.
    (0x00_252c, 0x00_256c),
    (0x00_2a00, 0x00_2a04),
    // The fault buffer, which stays empty: subdev/fault/gp100.c.
    (0x00_2a70, 0x00_2a74),
    (0x00_2a7c, 0x00_2a80),
    // Other PBDMA registers: engine/fifo/gf100.c, gk104.c, gk208.c.
    (0x04_0100, 0x04_0160),
    // Configuration space, and whether the ROM is shadowed: subdev/pci/base.c; the
    // register that `nouveau_pmops_runtime_resume()` writes.
    (0x08_8488, 0x08_8488),
    (0x08_8050, 0x08_8050),
    // Temperature: subdev/therm/gp100.c.
    (0x02_0460, 0x02_0460),
    // GPIO: subdev/gpio/gk104.c.
    (0x00_dc00, 0x00_dc08),
    (0x00_dc80, 0x00_dc88),
    // I2C interrupts: subdev/i2c/gk104.c.
    (0x00_dc60, 0x00_dc68),
    // The frame buffer: subdev/fb/gf100.c, gm200.c, gp100.c, ramgp100.c.
    (0x10_0c10, 0x10_0c14),
    (0x10_0cc4, 0x10_0ccc),
    (0x10_ecc0, 0x10_ecc0),
    (0x9a_0160, 0x9a_0160),
    (0x9a_0584, 0x9a_0584),
    (0x9a_065c, 0x9a_065c),
    // Programs of the PMU, which are not run: subdev/devinit/gm200.c, falcon/gm200.c.
    (0x10_a010, 0x10_a014),
    (0x10_a048, 0x10_a048),
    (0x10_a084, 0x10_a084),
    (0x10_a104, 0x10_a10c),
    (0x10_a180, 0x10_a188),
    (0x10_a1c0, 0x10_a1c4),
    (0x10_a3c0, 0x10_a3c0),
    // Clearing of the level 2 cache's tag RAM: subdev/ltc/gm107.c, gp102.c.
    (0x17_e204, 0x17_e204),
    (0x17_e338, 0x17_e34c),
    // Index and data of the VGA CRTC: subdev/bios, engine/disp/vga.c.
    (0x60_13c0, 0x60_13d8),
];

/// Whether a register keeps the written value.
pub fn is_stored(register: u32) -> bool {
    let is_in = |(first, last): &(u32, u32)| (*first..=*last).contains(&register);
    STORED.iter().any(is_in)
}

/// The minimum of video memory. nouveau allocates 256 MiB for device private pages at once,
/// and needs memory for itself.
pub const VRAM_MIN: u64 = 512 << 20;

/// The value of [`VRAM_SIZE`] for a size, or none if the register cannot express it.
pub fn vram_size(bytes: u64) -> Option<u32> {
    (0..16u32).find_map(|scale| {
        let unit = 1u64 << (scale + 20);
        let magnitude = u32::try_from(bytes / unit).ok()?;
        let fits = bytes.is_multiple_of(unit) && (1..64).contains(&magnitude);
        fits.then_some(magnitude << 4 | scale)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_video_memory() {
        // gp102_fb_vidmem_size()
        let back = |value: u32| u64::from((value >> 4) & 0x3f) << ((value & 0xf) + 20);
        for size in [1 << 20, 512 << 20, 6 << 30, 63 << 25] {
            assert_eq!(back(vram_size(size).unwrap()), size);
        }
        assert_eq!(vram_size(0), None);
        assert_eq!(vram_size(4096), None);
        assert_eq!(vram_size(65 << 20), None);
    }

    #[test]
    fn the_engine_is_found() {
        // gk104_top_parse()
        let [enumeration, data, kind] = ENGINES;
        assert_eq!(enumeration & 3, 2);
        assert_eq!(
            (enumeration & 0x3c00_0000, enumeration & 0x01e0_0000),
            (0, 0)
        );
        assert_eq!((enumeration & 0x000f_8000) >> 15, CE_INTR);
        assert_eq!((enumeration & 0x3e00) >> 9, CE_RESET);
        assert_eq!((data & 3, (data & 0x3f8) >> 3), (1, CE_FAULT));
        assert_eq!(data & 0x00ff_f000, CE_BASE);
        assert_eq!((kind & 3, (kind & 0x7fff_fffc) >> 2), (3, 0x13));
        assert_eq!(kind & 1 << 31, 0);
    }
}
