//! Registers in BAR0, by the name of what nouveau does with them. Paths are below
//! `drivers/gpu/drm/nouveau/nvkm/`.

/// Identity: `engine/device/base.c`.
pub const BOOT_0: u32 = 0x00_0000;
/// GP106, revision A1.
pub const GP106: u32 = 0x1360_00a1;

/// Pending interrupts, two registers: `subdev/mc/nv04.c`.
pub const INTR: u32 = 0x00_0100;
/// The second one.
pub const INTR_1: u32 = 0x00_0104;
/// Lets interrupts through: `subdev/mc/gp100.c`.
pub const INTR_ALLOW: u32 = 0x00_0160;
/// Holds them back.
pub const INTR_BLOCK: u32 = 0x00_0180;
/// Asks for the next message: `subdev/pci/gp100.c`.
pub const MSI_REARM: u32 = 0x08_8704;

/// The instance block of BAR1: `subdev/bar/gf100.c`.
pub const BAR1_BLOCK: u32 = 0x00_1704;
/// And of BAR2.
pub const BAR2_BLOCK: u32 = 0x00_1714;
/// In both: addresses are translated.
pub const BLOCK_VIRTUAL: u32 = 1 << 31;
/// In both: the instance block's address, by pages.
pub const BLOCK_POINTER: u32 = 0x0fff_ffff;

/// What is seen through [`PRAMIN`], in units of 64 KiB: `subdev/instmem/nv50.c`.
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
/// The upper half.
pub const TIME_HIGH: u32 = 0x00_9410;

/// Number of PBDMAs: `engine/fifo/gm200.c`.
pub const PBDMAS: u32 = 0x00_2004;
/// Number of channels: `engine/fifo/gm200.c`.
pub const CHANNEL_COUNT: u32 = 0x00_2008;
/// Interrupts of the host engine: `engine/fifo/gk104.c`.
pub const FIFO_INTR: u32 = 0x00_2100;
/// Which ones are let through.
pub const FIFO_INTR_ENABLE: u32 = 0x00_2140;
/// A method NON_STALL_INTERRUPT was executed.
pub const FIFO_NON_STALL: u32 = 1 << 31;
/// A page fault of a part is described in four registers.
pub const FIFO_MMU_FAULT: u32 = 1 << 28;
/// A PBDMA has an interrupt: `engine/fifo/gk104.c`.
pub const FIFO_PBDMA: u32 = 1 << 29;
/// Which PBDMA has one: `engine/fifo/gf100.c`.
pub const PBDMAS_INTR: u32 = 0x00_25a0;
/// The command that a PBDMA complains of, and its data: `engine/fifo/gf100.c`. The driver
/// writes the first one to go on.
pub const PBDMA_METHOD: u32 = 0x04_00c0;
/// Its data.
pub const PBDMA_DATA: u32 = 0x04_00c4;
/// What it complains of: a bit that is written is handled.
pub const PBDMA_INTR: u32 = 0x04_0108;
/// Which bits are let through.
pub const PBDMA_INTR_ENABLE: u32 = 0x04_010c;
/// The channel that it reads.
pub const PBDMA_CHANNEL: u32 = 0x04_0120;
/// Interrupts of another kind, which the model does not have: `engine/fifo/gk104.c`.
pub const PBDMA_INTR_1: u32 = 0x04_0148;
/// In PBDMA_INTR, as all that follow: a word is no header.
pub const PBDMA_PBENTRY: u32 = 1 << 18;
/// A method is none.
pub const PBDMA_ILLEGAL_METHOD: u32 = 1 << 21;
/// Nor is an operation of a semaphore.
pub const PBDMA_SEMAPHORE: u32 = 1 << 25;
/// Which parts have one: `engine/fifo/gf100.c`.
pub const FAULT_UNITS: u32 = 0x00_259c;
/// Where the four registers of each part are: instance, address, address, what it was.
pub const FAULT_INFO: u32 = 0x00_2800;
/// The first register after them.
pub const FAULT_INFO_END: u32 = 0x00_2a00;
/// Whether the driver has brought about a page fault of engine 0, to stop it:
/// `engine/fifo/gf100.c`. A write, which does, is not modelled.
pub const FAULT_TRIGGERED: u32 = 0x00_2a30;
/// Where in BAR1 the channels' USERD is: `engine/fifo/gk104.c`.
pub const USERD: u32 = 0x00_2254;
/// Which runlists a PBDMA serves: `engine/fifo/gk104.c`.
pub const PBDMA_RUNLISTS: u32 = 0x00_2390;
/// Takes a channel off its engine: `engine/fifo/gk110.c`. Bit 20: not done yet.
pub const PREEMPT: u32 = 0x00_2634;
/// In it: the number is that of a group of channels.
pub const PREEMPT_GROUP: u32 = 1 << 24;
/// The runlist's address: `engine/fifo/gk104.c`.
pub const RUNLIST: u32 = 0x00_2270;
/// Its length, by which it is submitted.
pub const RUNLIST_LENGTH: u32 = 0x00_2274;
/// Two registers of each channel: `engine/fifo/gk104.c`.
pub const CHANNELS: u32 = 0x80_0000;

/// The engines there are: `subdev/top/gk104.c`.
pub const TOP: u32 = 0x02_2700;
/// The first register after them.
pub const TOP_END: u32 = 0x02_2800;
/// The bit that the copy engine would have in [`INTR`].
const CE_INTR: u32 = 5;
/// And in [`ENABLE`].
const CE_RESET: u32 = 6;
/// Which parts are not held in reset: `subdev/mc/nv04.c`.
pub const ENABLE: u32 = 0x00_0200;
/// In it: the copy engine.
pub const ENABLE_CE: u32 = 1 << CE_RESET;
/// What a page fault of it is reported as.
pub const CE_FAULT: u32 = 0x15;
/// Where its registers are.
const CE_BASE: u32 = 0x10_4000;
/// One engine: number 0, on runlist 0, a copy engine.
pub const ENGINES: [u32; 3] = [
    // Enumeration: all of engine, runlist, interrupt, reset are given; more follows.
    1 << 31 | CE_INTR << 15 | CE_RESET << 9 | 0x3c | 2,
    // Data: instance 0, the fault's number is given; more follows.
    1 << 31 | CE_BASE | CE_FAULT << 3 | 4 | 1,
    // Type: a logical copy engine.
    0x13 << 2 | 3,
];

/// The state of the MMU: `subdev/mmu/vmmgf100.c`.
pub const MMU_CONTROL: u32 = 0x10_0c80;
/// In it: invalidations can be queued, and none is on its way.
pub const MMU_READY: u32 = 0x00ff_8000;
/// The directory to invalidate: `subdev/mmu/vmmgp100.c`.
pub const INVALIDATE_TABLES: u32 = 0x10_0cb8;
/// Its upper half.
pub const INVALIDATE_TABLES_HIGH: u32 = 0x10_0cec;
/// Invalidates.
pub const INVALIDATE: u32 = 0x10_0cbc;
/// In it: does so. Without it nothing happens.
pub const INVALIDATE_NOW: u32 = 1 << 31;
/// All pages. A single one is not what nouveau asks for.
pub const INVALIDATE_PAGES: u32 = 1 << 0;
/// Of all tables, and not only of those with the directory that is named.
pub const INVALIDATE_ALL: u32 = 1 << 1;

/// Size of video memory: `subdev/fb/gp102.c`.
pub const VRAM_SIZE: u32 = 0x10_0ce0;
/// Whether protected memory needs scrubbing, in bit 4: `subdev/fb/gp102.c`.
pub const SCRUB: u32 = 0x10_0cd0;

/// Starts the PMU: `subdev/devinit/gm200.c`.
pub const PMU_START: u32 = 0x10_a100;
/// In it: start.
pub const PMU_START_NOW: u32 = 1 << 1;
/// What the driver and a program of the PMU tell each other.
pub const PMU_MAILBOX: u32 = 0x10_a040;
/// In it: the program has initialised the board.
pub const PMU_DONE: u32 = 0x2000;
/// Bit 1: the board was initialised: `subdev/devinit/gf100.c`.
pub const DEVINIT: u32 = 0x02_240c;
/// Fuses: copy engines that are missing: `subdev/devinit/gm107.c`.
pub const FUSE_CE: u32 = 0x02_1c00;
/// Fuses: in bit 0, whether the display is missing.
pub const FUSE_DISPLAY: u32 = 0x02_1c04;

/// Parts of the level 2 cache: `subdev/ltc/gp100.c`.
pub const LTC_COUNT: u32 = 0x12_006c;
/// Slices of each, from bit 28 on: `subdev/ltc/gp100.c`.
pub const LTC_SLICES: u32 = 0x17_e280;

/// Entries of the buffer for page faults that can be replayed: `subdev/fault/gp100.c`.
pub const FAULT_ENTRIES: u32 = 0x00_2a78;

/// Registers that read as what was written, and have no effect; the first and the last.
/// What is not written reads as zero.
const STORED: &[(u32, u32)] = &[
    // Strap, crystal: engine/device/base.c, subdev/fb/base.c.
    (0x10_1000, 0x10_1000),
    // The second half of the identity: engine/device/base.c.
    (0x00_0004, 0x00_0004),
    // Interrupts by the old way, enable bits of parts: subdev/mc/nv04.c, nv50.c.
    (0x00_0140, 0x00_0144),
    // Lets interrupts of the second register through, where none are: subdev/mc/gp100.c.
    (0x00_0164, 0x00_0164),
    (0x00_0184, 0x00_0184),
    (0x00_0200, 0x00_0204),
    // The bus's interrupts: subdev/bus/gf100.c.
    (0x00_1100, 0x00_1100),
    (0x00_1140, 0x00_1140),
    // Whether a BAR's instance block is still being changed: subdev/bar/gm107.c.
    (0x00_1710, 0x00_1710),
    // Waiting for writes through a BAR: subdev/bar/g84.c.
    (0x07_0000, 0x07_0000),
    // Waiting for the level 2 cache: subdev/ltc/gf100.c.
    (0x07_0004, 0x07_0010),
    // The alarm, which only serves to watch the temperature: subdev/timer/nv04.c.
    (0x00_9100, 0x00_9100),
    (0x00_9140, 0x00_9140),
    (0x00_9200, 0x00_9210),
    (0x00_9420, 0x00_9420),
    // The runlist, of which the model reads only the groups: engine/fifo/gk104.c.
    (0x00_2270, 0x00_228c),
    // Scheduling of runlists: engine/fifo/gk104.c.
    (0x00_262c, 0x00_2630),
    // What engines are busy with: engine/fifo/gk104.c.
    (0x00_2640, 0x00_267c),
    // Interrupts of runlists, of binding, of channel switches: engine/fifo/gk104.c.
    (0x00_252c, 0x00_256c),
    (0x00_2a00, 0x00_2a04),
    // The buffer for page faults, which stays empty: subdev/fault/gp100.c.
    (0x00_2a70, 0x00_2a74),
    (0x00_2a7c, 0x00_2a80),
    // What else a PBDMA has: engine/fifo/gf100.c, gk104.c, gk208.c.
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
    // Interrupts of I2C: subdev/i2c/gk104.c.
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
    // Clearing of the level 2 cache's tables: subdev/ltc/gm107.c, gp102.c.
    (0x17_e204, 0x17_e204),
    (0x17_e338, 0x17_e34c),
    // Index and data of a VGA's CRTC: subdev/bios, engine/disp/vga.c.
    (0x60_13c0, 0x60_13d8),
];

/// Whether a register reads as what was written.
pub fn is_stored(register: u32) -> bool {
    let is_in = |(first, last): &(u32, u32)| (*first..=*last).contains(&register);
    STORED.iter().any(is_in)
}

/// Less video memory is of no use: nouveau takes 256 MiB for pages of device private memory
/// at once, besides what it needs itself.
pub const VRAM_MIN: u64 = 512 << 20;

/// The size of video memory as [`VRAM_SIZE`] has it; none if it cannot say that.
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
