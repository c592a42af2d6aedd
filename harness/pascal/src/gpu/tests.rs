use std::io::Read;

use proptest::prelude::*;

use vfio_user::ServerBackend;

use super::*;
use crate::server::Served;
use crate::testing::{Board, ram};

mod engine;

const USERD_AT: u64 = 0x4000;
const RING: u64 = 0x10_0000;
const COMMANDS: u64 = 0x20_0000;
const SEMAPHORE: u64 = 0x30_0000;
/// The runlist's address in video memory.
const RUNLIST: u64 = 0x70_0000;
/// Offset of channel 5's ring from channel 3's ring.
const OTHER_RING: u64 = 0x800;
const START: u32 = 0x400;

fn set(gpu: &mut Gpu, register: u32, value: u32) {
    gpu.write(u64::from(register), &value.to_le_bytes());
}

fn get(gpu: &mut Gpu, register: u32) -> u32 {
    let mut data = [0; 4];
    gpu.read(u64::from(register), &mut data);
    u32::from_le_bytes(data)
}

fn bar1(gpu: &mut Gpu, at: u64) -> u32 {
    let mut data = [0; 4];
    gpu.bar1_read(at, &mut data);
    u32::from_le_bytes(data)
}

/// A GPU with page tables for BAR1 and a ring for channel 3. Returns BAR1's root directory
/// and the PTE of its page 0x8000.
fn gpu() -> (Gpu, Place, Place) {
    let (gpu, bar1, _) = gpu_and_channel();
    (gpu, bar1.root, bar1.entry)
}

/// The root directory of some page tables, and the PTE of a page.
struct Mapped {
    root: Place,
    entry: Place,
}

/// As [`gpu`]. Also returns the PTE of the channel's semaphore.
fn gpu_and_channel() -> (Gpu, Mapped, Mapped) {
    let mut board = Board::new();
    let (instance, root) = board.instance(0xfff_ffff);
    for page in 0..8 {
        let to = Place::vram(0x80_0000 + (page << 12));
        board.map(root, USERD_AT + (page << 12), 12, to, 0);
    }
    let entry = board.entry(root, 0x8000, 12);
    let (channel, tables) = board.instance((1 << 47) - 1);
    board.map(tables, RING, 12, ram(0), 0);
    board.map(tables, COMMANDS, 12, ram(0x1000), 0);
    board.map(tables, SEMAPHORE, 12, ram(0x2000), 0);
    let semaphore = board.entry(tables, SEMAPHORE, 12);
    board.set(channel.after(0x48), RING | 4 << 48);
    // Channel 5 has the same page tables, and its ring follows channel 3's.
    let (other, _) = board.instance((1 << 47) - 1);
    board.set(other.after(0x200), board.get(channel.after(0x200)));
    board.set(other.after(0x48), (RING + OTHER_RING) | 4 << 48);
    // Group 9 has channel 3, and group 3 channel 5.
    let entries = [1 << 26 | 1 << 13 | 9, 3, 1 << 26 | 1 << 13 | 3, 5];
    for (n, entry) in (0..).zip(entries) {
        board.set(Place::vram(RUNLIST + n * 8), entry);
    }
    let witness = Witness::new(None, false).unwrap();
    let mut gpu = Gpu::new(board.vram, witness);
    gpu.memory = board.memory;
    let block = r::BLOCK_VIRTUAL | (instance.address >> 12) as u32;
    set(&mut gpu, r::BAR1_BLOCK, block);
    set(&mut gpu, r::BAR2_BLOCK, block);
    set(&mut gpu, r::USERD, 1 << 28 | (USERD_AT >> 12) as u32);
    set(&mut gpu, r::RUNLIST, (RUNLIST >> 12) as u32);
    set(&mut gpu, r::RUNLIST_LENGTH, entries.len() as u32);
    for (chid, instance) in [(3, channel), (5, other)] {
        let slot = r::CHANNELS + chid * 8;
        set(&mut gpu, slot, 1 << 31 | (instance.address >> 12) as u32);
        set(&mut gpu, slot + 4, START);
    }
    let channel = Mapped {
        root: tables,
        entry: semaphore,
    };
    (gpu, Mapped { root, entry }, channel)
}

fn poke(gpu: &Gpu, place: Place, value: u64) {
    gpu.space().write(place, &value.to_le_bytes()).unwrap();
}

#[test]
fn bar1_leads_through_its_tables() {
    let (mut gpu, ..) = gpu();
    gpu.bar1_write(0x8010, &[1, 2, 3, 4]);
    let mut data = [0; 4];
    gpu.vram.read(0x80_4010, &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 4]);
    assert_eq!(bar1(&mut gpu, 0x8010), 0x0403_0201);
    assert_eq!(gpu.witness.totals.violations, 0);
    let mut data = [0; 4];
    gpu.bar2_read(0x8010, &mut data);
    assert_eq!(data, [1, 2, 3, 4]);
}

#[test]
fn what_is_not_mapped_in_bar1_is_a_violation() {
    let (mut gpu, root, entry) = gpu();
    assert_eq!(bar1(&mut gpu, 0x10_0000), !0);
    assert_eq!(gpu.witness.totals.violations, 1);
    bar1(&mut gpu, 0x8000);
    poke(&gpu, entry, 0);
    gpu.bar1_write(0x8000, &[0; 4]);
    assert_eq!(gpu.witness.totals.violations, 2);
    let last = gpu.witness.first_violations.last().unwrap();
    assert!(
        last.contains("no page at 0x8000; it was vram 0x804000, used from "),
        "{last}"
    );
    // The numbers are lines of the log.
    invalidate(&mut gpu, root, FLUSH);
    let line = gpu.witness.event(&Event::Power { what: "" }) - 1;
    bar1(&mut gpu, 0x8000);
    let last = gpu.witness.first_violations.last().unwrap();
    let flush = format!("gone by line {line}, invalidated last in line {line}");
    assert!(last.ends_with(&flush), "{last}");
    set(&mut gpu, r::BAR1_BLOCK, 0);
    assert_eq!(bar1(&mut gpu, 0x8000), !0);
    assert_eq!(gpu.witness.totals.violations, 4);
}

/// The driver switches BAR2 off by one bit, and the page tables stay.
#[test]
fn bar2_that_is_off_is_a_violation() {
    let (mut gpu, ..) = gpu();
    let block = get(&mut gpu, r::BAR2_BLOCK);
    set(&mut gpu, r::BAR2_BLOCK, block & !r::BLOCK_VIRTUAL);
    let mut data = [0; 4];
    gpu.bar2_read(0x8000, &mut data);
    assert_eq!(data, [NOTHING; 4]);
    assert_eq!(gpu.witness.totals.violations, 1);
    gpu.bar2_write(0x8000, &[1; 4]);
    gpu.vram.read(0x80_4000, &mut data).unwrap();
    assert_eq!(data, [0; 4]);
    let what = "BAR2 is off, and was used at 0x8000, 4 bytes";
    assert_eq!(gpu.witness.first_violations, [what, what]);
}

fn invalidate(gpu: &mut Gpu, root: Place, what: u32) {
    let system = match root.aperture {
        Aperture::Vram => 0,
        Aperture::System => 2,
    };
    let tables = root.address >> 12 << 4 | system;
    set(gpu, r::INVALIDATE_TABLES, tables as u32);
    set(gpu, r::INVALIDATE_TABLES_HIGH, (tables >> 32) as u32);
    set(gpu, r::INVALIDATE, what);
}

/// As `gp100_vmm_flush()` writes it.
const FLUSH: u32 = 0x8000_0005;

#[test]
fn a_page_that_moves_without_an_invalidation_is_a_violation() {
    let (mut gpu, root, entry) = gpu();
    bar1(&mut gpu, 0x8000);
    poke(&gpu, entry, 0x90_0000 >> 4 | 1);
    invalidate(&mut gpu, root, FLUSH);
    bar1(&mut gpu, 0x8000);
    assert_eq!(gpu.witness.totals.violations, 0);
    poke(&gpu, entry, 0x91_0000 >> 4 | 1);
    bar1(&mut gpu, 0x8000);
    let told = gpu.witness.first_violations.last().unwrap();
    let what = "BAR1 at 0x8000 is vram 0x910000; it was vram 0x900000, used from ";
    assert!(told.starts_with(what), "{told}");
    assert_eq!(gpu.witness.totals.violations, 1);
    // Invalidating other tables has no effect, nor do writes without the start bit or without
    // all pages.
    let in_system = Place {
        aperture: Aperture::System,
        ..root
    };
    let commands = [
        (Place::vram(0x1000), FLUSH),
        (in_system, FLUSH),
        (root, FLUSH & !r::INVALIDATE_NOW),
        (root, FLUSH & !r::INVALIDATE_PAGES),
    ];
    for (n, (tables, what)) in (1..).zip(commands) {
        poke(&gpu, entry, (0x90_0000 + (n << 12)) >> 4 | 1);
        invalidate(&mut gpu, tables, what);
        let before = gpu.witness.totals.violations;
        bar1(&mut gpu, 0x8000);
        assert_eq!(gpu.witness.totals.violations, before + 1);
    }
    assert_eq!(gpu.witness.totals.unknown, 2);
    // Invalidating all tables has an effect.
    poke(&gpu, entry, 0x80_0000 >> 4 | 1);
    invalidate(&mut gpu, Place::vram(0), FLUSH | r::INVALIDATE_ALL);
    let before = gpu.witness.totals.violations;
    bar1(&mut gpu, 0x8000);
    assert_eq!(gpu.witness.totals.violations, before);
}

#[test]
fn with_a_cache_a_page_that_moves_is_found_in_the_old_place_until_it_is_invalidated() {
    let (mut gpu, root, entry) = gpu();
    gpu.tlb.is_used = true;
    poke(&gpu, Place::vram(0x80_4000), 11);
    poke(&gpu, Place::vram(0x90_0000), 22);
    let both = |gpu: &mut Gpu| {
        let first = bar1(gpu, 0x8000);
        let mut data = [0; 4];
        gpu.bar2_read(0x8000, &mut data);
        (first, u32::from_le_bytes(data))
    };
    assert_eq!(both(&mut gpu), (11, 11));
    poke(&gpu, entry, 0x90_0000 >> 4 | 1);
    assert_eq!(both(&mut gpu), (11, 11));
    let told = &gpu.witness.first_violations;
    assert_eq!(gpu.witness.totals.violations, 2);
    assert!(
        told[0].starts_with("BAR1 at 0x8000 is vram 0x900000; it was vram 0x804000"),
        "{told:?}"
    );
    assert!(told[1].starts_with("BAR2 at 0x8000 is vram 0x900000; it was vram 0x804000"));
    poke(&gpu, entry, 0);
    assert_eq!(both(&mut gpu), (11, 11));
    invalidate(&mut gpu, root, FLUSH);
    assert_eq!(both(&mut gpu), (!0, !0));
    poke(&gpu, entry, 0x90_0000 >> 4 | 1);
    assert_eq!(both(&mut gpu), (22, 22));
    // A reset clears the TLB: nothing is stale after it.
    poke(&gpu, entry, 0x80_4000 >> 4 | 1);
    let block = get(&mut gpu, r::BAR1_BLOCK);
    let violations = gpu.witness.totals.violations;
    gpu.reset();
    set(&mut gpu, r::BAR1_BLOCK, block);
    assert_eq!(bar1(&mut gpu, 0x8000), 11);
    assert_eq!(gpu.witness.totals.violations, violations);
}

#[test]
fn with_a_cache_a_channel_uses_what_was_not_invalidated() {
    let (mut gpu, _, Mapped { root, entry }) = gpu_and_channel();
    gpu.tlb.is_used = true;
    let release = |gpu: &mut Gpu, value: u32| {
        let words = [1 << 29 | 4 << 16 | 0x10 >> 2, 0, SEMAPHORE as u32, value, 2];
        let bytes = words.map(u32::to_le_bytes).concat();
        gpu.memory.write(ram(0x1000).address, &bytes).unwrap();
        poke(gpu, ram(u64::from(value - 1) * 8), COMMANDS | 5 << 42);
        gpu.bar1_write(USERD_AT + 3 * 0x200 + 0x8c, &value.to_le_bytes());
        [0x2000, 0x3000].map(|at| gpu.space().read_u64(ram(at)).unwrap() as u32)
    };
    assert_eq!(release(&mut gpu, 1), [1, 0]);
    poke(&gpu, entry, ram(0x3000).address >> 4 | 2 << 1 | 1);
    assert_eq!(release(&mut gpu, 2), [2, 0]);
    let told = gpu.witness.first_violations.last().unwrap();
    assert!(told.starts_with("channel 3 used 0x300000 is"), "{told}");
    invalidate(&mut gpu, root, FLUSH);
    assert_eq!(release(&mut gpu, 3), [2, 3]);
    assert_eq!(gpu.witness.totals.violations, 1);
}

#[test]
fn a_doorbell_is_work_and_an_interrupt() {
    let (mut gpu, ..) = gpu();
    let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd: std::os::fd::OwnedFd = theirs.into();
    gpu.irqs.set(0, Some(fd.into()));
    set(&mut gpu, r::FIFO_INTR_ENABLE, !0);
    set(&mut gpu, r::INTR_ALLOW, interrupt::FIFO);
    let words = [1 << 29 | 5 << 16 | 0x10 >> 2, 0, SEMAPHORE as u32, 42, 2, 0];
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word: &u32| word.to_le_bytes())
        .collect();
    gpu.memory.write(ram(0x1000).address, &bytes).unwrap();
    poke(&gpu, ram(0), COMMANDS | 6 << 42);
    gpu.bar1_write(USERD_AT + 3 * 0x200 + 0x8c, &1u32.to_le_bytes());
    let mut data = [0; 4];
    gpu.memory.read(ram(0x2000).address, &mut data).unwrap();
    assert_eq!(u32::from_le_bytes(data), 42);
    assert_eq!(bar1(&mut gpu, USERD_AT + 3 * 0x200 + 0x88), 1);
    assert_eq!(get(&mut gpu, r::INTR), interrupt::FIFO);
    assert_eq!(get(&mut gpu, r::FIFO_INTR), r::FIFO_NON_STALL);
    let mut message = [0; 8];
    (&ours).read_exact(&mut message).unwrap();
    assert_eq!(gpu.witness.totals.interrupts, 1);
    set(&mut gpu, r::FIFO_INTR, r::FIFO_NON_STALL);
    assert_eq!(get(&mut gpu, r::INTR), 0);
}

#[test]
fn a_fault_of_a_channel_is_reported() {
    let (mut gpu, ..) = gpu();
    poke(&gpu, ram(0), 0x77_0000 | 6 << 42);
    gpu.bar1_write(USERD_AT + 3 * 0x200 + 0x8c, &1u32.to_le_bytes());
    assert_eq!(gpu.witness.totals.dead_channels, 1);
    assert_eq!(get(&mut gpu, r::FIFO_INTR), r::FIFO_MMU_FAULT);
    let units = get(&mut gpu, r::FAULT_UNITS);
    let unit = units.trailing_zeros();
    assert_eq!(get(&mut gpu, r::FAULT_INFO + unit * 0x10 + 4), 0x77_0000);
    set(&mut gpu, r::FAULT_UNITS, units);
    assert_eq!(get(&mut gpu, r::FIFO_INTR), 0);
    // The dead channel does not run.
    gpu.bar1_write(USERD_AT + 3 * 0x200 + 0x8c, &2u32.to_le_bytes());
    assert_eq!(gpu.witness.totals.dead_channels, 1);
}

#[test]
fn a_vbios_is_served_as_it_is() {
    let (mut gpu, ..) = gpu();
    gpu.vbios = vec![1, 2, 3, 4, 5, 6, 7, 0xff];
    assert_eq!(get(&mut gpu, r::PROM), 0x0403_0201);
    assert_eq!(get(&mut gpu, r::PROM + 4), 0xff07_0605);
    assert_eq!(get(&mut gpu, r::PROM + 8), !0);
    gpu.vbios = Vec::new();
    assert_eq!(get(&mut gpu, r::PROM), !0);
}

#[test]
fn registers_and_windows() {
    let (mut gpu, ..) = gpu();
    assert_eq!(get(&mut gpu, r::BOOT_0), r::GP106);
    assert_eq!(get(&mut gpu, r::PROM) & 0xffff, 0xaa55);
    assert_eq!(get(&mut gpu, r::PROM_END - 4), !0);
    set(&mut gpu, r::WINDOW, 0x90_0000 >> 16);
    set(&mut gpu, r::PRAMIN + 0x10, 0x1234);
    let mut data = [0; 2];
    gpu.vram.read(0x90_0010, &mut data).unwrap();
    assert_eq!(data, [0x34, 0x12]);
    assert_eq!(get(&mut gpu, r::PRAMIN + 0x10), 0x1234);
    let time = get(&mut gpu, r::TIME_LOW);
    std::thread::sleep(std::time::Duration::from_micros(1));
    assert_ne!(get(&mut gpu, r::TIME_LOW), time);
    set(&mut gpu, r::TIME_HIGH, 7);
    assert_eq!(get(&mut gpu, r::TIME_HIGH), 7);
    assert_eq!(get(&mut gpu, 0x40_0000), 0);
    assert_eq!(gpu.witness.totals.unknown, 1);
    let told = "unknown register 0x400000: read 0x0";
    assert_eq!(gpu.witness.first_violations, [told]);
    // A partial write to a register that keeps the written value.
    set(&mut gpu, 0x60_13d4, 0x1122_3344);
    gpu.write(0x60_13d5, &[0x55]);
    assert_eq!(get(&mut gpu, 0x60_13d4), 0x1122_5544);
    let mut byte = [0];
    gpu.read(0x60_13d6, &mut byte);
    assert_eq!(byte, [0x22]);
}

#[test]
fn without_power_all_is_lost() {
    let (mut gpu, ..) = gpu();
    assert_eq!(get(&mut gpu, r::DEVINIT), 2);
    gpu.bar1_write(0x8000, &[1; 4]);
    gpu.config_write(pci::POWER as u64, &[3, 0]);
    gpu.config_write(pci::POWER as u64, &[0, 0]);
    assert_eq!(get(&mut gpu, r::BAR1_BLOCK), 0);
    let mut data = [1; 4];
    gpu.vram.read(0x80_4000, &mut data).unwrap();
    assert_eq!(data, [0; 4]);
    assert_eq!(get(&mut gpu, r::DEVINIT), 0);
    set(&mut gpu, r::PMU_START, r::PMU_START_NOW);
    assert_eq!(get(&mut gpu, r::PMU_MAILBOX) & r::PMU_DONE, r::PMU_DONE);
    assert_eq!(get(&mut gpu, r::DEVINIT), 2);
}

#[test]
fn in_d3_nothing_answers() {
    let (mut gpu, ..) = gpu();
    gpu.config_write(pci::POWER as u64, &[3, 0]);
    let mut power = [0; 2];
    gpu.config.read(pci::POWER as u64, &mut power);
    assert_eq!(power, [0x0b, 0]);
    let mut served = Served::new(gpu);
    for (bar, at) in [(3, 0x8000), (1, 0x8000), (0, u64::from(r::BOOT_0))] {
        let mut data = [0; 4];
        served.region_read(bar, at, &mut data).unwrap();
        assert_eq!(data, [0xff; 4]);
    }
    for (bar, at) in [(3, 0x8000), (1, 0x8000), (0, u64::from(r::WINDOW))] {
        served.region_write(bar, at, &[1, 0, 0, 0]).unwrap();
    }
    let mut gpu = served.gpu();
    let told = &gpu.witness.first_violations;
    assert_eq!(told.len(), 6);
    assert_eq!(told[1], "BAR1 was used at 0x8000 in D3");

    gpu.config_write(pci::POWER as u64, &[0, 0]);
    assert_eq!(get(&mut gpu, r::BOOT_0), r::GP106);
    assert_eq!(get(&mut gpu, r::WINDOW), 0);
    assert_eq!(gpu.witness.totals.violations, 6);
}

proptest! {
    #[test]
    fn any_vbios_can_be_read(
        image in prop::collection::vec(any::<u8>(), 0..64),
        reads in prop::collection::vec((0..80u32, 1..9usize), 1..20),
    ) {
        let (mut gpu, ..) = gpu();
        gpu.vbios = image;
        // Of a word that is not there as a whole, no byte is.
        let whole = gpu.vbios.len() / 4 * 4;
        for (at, len) in reads {
            let mut data = [0; 8];
            gpu.read(u64::from(r::PROM + at), &mut data[..len]);
            for (at, byte) in (at as usize..).zip(&data[..len]) {
                let there = gpu.vbios[..whole].get(at).copied();
                prop_assert_eq!(*byte, there.unwrap_or(0xff));
            }
        }
        // Near the end of the window, where there is none of it.
        let mut data = [0; 4];
        gpu.read(u64::from(r::PROM_END - 4), &mut data);
        prop_assert_eq!(data, [0xff; 4]);
    }

    #[test]
    fn random_accesses_do_not_end_the_model(
        accesses in prop::collection::vec(
            (0..12u8, any::<u32>(), any::<u64>(), 1..9usize), 1..100
        ),
        cached in any::<bool>(),
    ) {
        let (mut gpu, ..) = gpu();
        gpu.tlb.is_used = cached;
        gpu.witness.posted.is_watched = true;
        for (kind, at, value, len) in accesses {
            let data = &value.to_le_bytes()[..len];
            let near = u64::from(at % 0x1_0000);
            match kind {
                0 => gpu.write(u64::from(at & 0xff_ffff), data),
                1 => gpu.read(u64::from(at & 0xff_ffff), &mut [0; 8][..len]),
                2 => gpu.bar1_write(near, data),
                3 => gpu.bar1_read(near, &mut [0; 8][..len]),
                4 => gpu.bar2_write(near, data),
                5 => gpu.bar2_read(near, &mut [0; 8][..len]),
                6 => gpu.config_write(near % 0x100, data),
                // D0 to D3, mostly D0, and a reset.
                7 => gpu.config_write(pci::POWER as u64, &[at.is_multiple_of(8) as u8 * 3, 0]),
                8 if at.is_multiple_of(8) => gpu.reset(),
                9 => gpu.bar1_write(USERD_AT + u64::from(at % 64) * 0x200 + 0x8c, &data[..len.min(4)]),
                _ => {
                    let known = [
                        r::BAR1_BLOCK, r::USERD, r::WINDOW, r::CHANNELS, r::CHANNELS + 4,
                        r::CHANNELS + 24, r::CHANNELS + 28, r::PREEMPT, r::RUNLIST,
                        r::RUNLIST_LENGTH, r::ENABLE, r::PBDMA_INTR,
                    ];
                    set(&mut gpu, known[at as usize % known.len()], value as u32);
                }
            }
        }
    }
}
