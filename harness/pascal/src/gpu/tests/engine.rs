//! The copy engine hangs, is slow or gets invalid commands. The tests access the same
//! registers as nouveau does in each case.

use std::time::Duration;

use super::*;

const STOP: u32 = 0x800;

fn method(subchannel: u32, method: u32, data: &[u32]) -> Vec<u32> {
    let header = 1 << 29 | (data.len() as u32) << 16 | subchannel << 13 | method >> 2;
    [&[header], data].concat()
}

/// A fence, as `nvc0_fence_emit32()` emits it. Each channel has its own.
fn fence(chid: u32, value: u32) -> Vec<u32> {
    let at = SEMAPHORE as u32 + chid * 16;
    method(0, 0x10, &[0, at, value, 2, 0])
}

/// Copies eight bytes from 0x90_0000 to host memory as `nvc0b5_migrate_copy()` does, and
/// emits a fence.
fn home(chid: u32, value: u32) -> Vec<u32> {
    let to = ram(0x3000 + u64::from(value) * 8).address as u32;
    let mut words = method(4, 0, &[0xc1b5]);
    words.extend(method(4, 0x260, &[0]));
    words.extend(method(4, 0x264, &[1]));
    words.extend(method(4, 0x400, &[0, 0x90_0000, 0, to, 8, 8, 8, 1]));
    words.extend(method(4, 0x300, &[1 << 13 | 1 << 12 | 1 << 9 | 3 << 7 | 2]));
    words.extend(fence(chid, value));
    words
}

/// Fills the ring entry with this number and rings the doorbell.
fn push(gpu: &mut Gpu, chid: u32, number: u64, words: &[u32]) {
    // Each entry has its own commands, as the device may read them late.
    let ring = if chid == 3 { 0 } else { OTHER_RING };
    let commands = ring + number * 0x100;
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let bytes = bytes.collect::<Vec<_>>();
    gpu.memory
        .write(ram(0x1000 + commands).address, &bytes)
        .unwrap();
    let entry = (COMMANDS + commands) | (words.len() as u64) << 42;
    poke(gpu, ram(ring + number * 8), entry);
    let doorbell = USERD_AT + u64::from(chid) * 0x200 + 0x8c;
    gpu.bar1_write(doorbell, &(number as u32 + 1).to_le_bytes());
}

/// The last fence of a channel.
fn fenced(gpu: &Gpu, chid: u64) -> u64 {
    gpu.space().read_u64(ram(0x2000 + chid * 16)).unwrap()
}

/// The data that the copy with this fence wrote to host memory.
fn came(gpu: &Gpu, value: u64) -> u64 {
    gpu.space().read_u64(ram(0x3000 + value * 8)).unwrap()
}

/// `nvkm_mask()` of a channel's second register.
fn mask(gpu: &mut Gpu, chid: u32, bits: u32) {
    let register = r::CHANNELS + chid * 8 + 4;
    let value = get(gpu, register) | bits;
    set(gpu, register, value);
}

/// `gk110_cgrp_preempt()`, `gf100_runl_preempt_pending()`.
fn preempt(gpu: &mut Gpu, group: u32) {
    set(gpu, r::PREEMPT, 1 << 24 | group);
    assert_eq!(get(gpu, r::PREEMPT) & 1 << 20, 0);
}

/// The log's text.
fn logged(gpu: &mut Gpu, log: &std::path::Path) -> String {
    gpu.witness.flush();
    std::fs::read_to_string(log).unwrap()
}

fn gpu_with_log() -> (Gpu, tempfile::NamedTempFile) {
    let (mut gpu, ..) = gpu();
    let log = tempfile::NamedTempFile::new().unwrap();
    gpu.witness = Witness::new(Some(log.path()), false).unwrap();
    poke(&gpu, Place::vram(0x90_0000), 77);
    (gpu, log)
}

#[test]
fn an_engine_that_hangs_does_nothing_until_it_is_reset() {
    let (mut gpu, log) = gpu_with_log();
    gpu.inject.hangs_after = Some(1);
    push(&mut gpu, 3, 0, &home(3, 1));
    assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (1, 77));
    set(&mut gpu, r::FIFO_INTR, !0);
    push(&mut gpu, 3, 1, &home(3, 2));
    push(&mut gpu, 3, 2, &fence(3, 3));
    // Other channels do not run either.
    push(&mut gpu, 5, 0, &fence(5, 50));
    gpu.go_on();
    let state = |gpu: &mut Gpu| {
        let fences = (fenced(gpu, 3), fenced(gpu, 5));
        (fences, came(gpu, 2), get(gpu, r::FIFO_INTR))
    };
    assert_eq!(state(&mut gpu), ((1, 0), 0, 0));
    assert_eq!(gpu.due(), None);
    // As nvkm_uchan_fini(): nvkm_chan_block(), nvkm_chan_remove(), with a check after each
    // step. A group's number is not a channel's number.
    preempt(&mut gpu, 9);
    mask(&mut gpu, 3, STOP);
    assert_eq!(get(&mut gpu, r::CHANNELS + 3 * 8 + 4), 0);
    preempt(&mut gpu, 3);
    assert_eq!(state(&mut gpu), ((1, 0), 0, 0));
    preempt(&mut gpu, 9);
    assert_eq!(state(&mut gpu), ((1, 50), 0, r::FIFO_NON_STALL));
    set(&mut gpu, r::RUNLIST_LENGTH, 2);
    assert_eq!(get(&mut gpu, 0x2284) & 1 << 20, 0);
    // The queued commands are lost with the channel.
    set(&mut gpu, r::CHANNELS + 3 * 8, 0);
    gpu.go_on();
    assert_eq!((fenced(&gpu, 3), came(&gpu, 2)), (1, 0));
    // The engine still hangs, also for other channels.
    push(&mut gpu, 5, 1, &home(5, 4));
    push(&mut gpu, 5, 2, &fence(5, 51));
    assert_eq!((fenced(&gpu, 5), came(&gpu, 4)), (50, 0));
    // nvkm_mc_reset(): the transfer is lost, but the commands after it run.
    set(&mut gpu, r::ENABLE, !r::ENABLE_CE);
    set(&mut gpu, r::ENABLE, !0);
    assert_eq!((fenced(&gpu, 5), came(&gpu, 4)), (51, 0));
    push(&mut gpu, 5, 3, &home(5, 5));
    assert_eq!((fenced(&gpu, 5), came(&gpu, 5)), (5, 77));
    assert_eq!(gpu.witness.totals.violations, 0);
    let log = logged(&mut gpu, log.path());
    assert_eq!(log.matches(r#""what":"the copy engine hangs""#).count(), 2);
    assert_eq!(log.matches(r#""event":"copy""#).count(), 2, "{log}");
}

/// Page 0x8000 of BAR1 leads to video memory from 0x80_4000 on.
#[test]
fn a_driver_waits_for_writes_through_bar1() {
    let copy = |before: &[&str], from: u32| {
        let (mut gpu, _log) = gpu_with_log();
        gpu.witness.posted.is_watched = true;
        for step in before {
            match *step {
                "write" => gpu.bar1_write(0x8000, &[7; 8]),
                // The two parts of g84_bar_flush()
                "flush" => set(&mut gpu, 0x07_0000, 1),
                _ => assert_eq!(get(&mut gpu, 0x07_0000) & 2, 0),
            }
        }
        let words = home(3, 1);
        let words = words.iter().map(|&w| if w == 0x90_0000 { from } else { w });
        push(&mut gpu, 3, 0, &words.collect::<Vec<_>>());
        assert_eq!(fenced(&gpu, 3), 1);
        gpu.witness.first_violations
    };
    let too_early: [&[&str]; 4] = [
        &["write"],
        &["write", "flush"],
        &["write", "read"],
        &["write", "flush", "write", "read"],
    ];
    for steps in too_early {
        let told = copy(steps, 0x80_4000);
        assert_eq!(told.len(), 1, "{steps:?}");
        assert!(
            told[0].starts_with("vram 0x804000 was copied, "),
            "{told:?}"
        );
    }
    assert!(copy(&["write", "flush", "read"], 0x80_4000).is_empty());
    assert!(copy(&["write"], 0x90_0000).is_empty());
}

#[test]
fn without_power_an_engine_does_not_hang() {
    for power in [false, true] {
        let (mut gpu, _log) = gpu_with_log();
        gpu.inject.hangs_after = Some(0);
        push(&mut gpu, 3, 0, &home(3, 1));
        if power {
            gpu.config_write(pci::POWER as u64, &[3, 0]);
        } else {
            gpu.reset();
        }
        assert_eq!(gpu.inject.fate(), crate::inject::Fate::Works);
        gpu.memory.is_bus_master = true;
        gpu.go_on();
        assert_eq!(fenced(&gpu, 3), 0);
    }
}

#[test]
fn a_slow_transfer_is_late_and_what_follows_waits() {
    let (mut gpu, log) = gpu_with_log();
    gpu.inject.slow = Some((1, Duration::ZERO));
    push(&mut gpu, 3, 0, &home(3, 1));
    push(&mut gpu, 3, 1, &home(3, 2));
    push(&mut gpu, 5, 0, &fence(5, 50));
    assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (0, 0));
    assert_eq!((fenced(&gpu, 5), came(&gpu, 2)), (0, 0));
    assert!(gpu.due().unwrap() <= Instant::now());
    gpu.go_on();
    assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (2, 77));
    assert_eq!((fenced(&gpu, 5), came(&gpu, 2)), (50, 77));
    assert_eq!(bar1(&mut gpu, USERD_AT + 3 * 0x200 + 0x88), 2);
    assert_eq!(gpu.due(), None);
    let log = logged(&mut gpu, log.path());
    let copies = log.lines().filter(|line| line.contains(r#""copy""#));
    let late: Vec<bool> = copies.map(|line| line.contains(r#""late":true"#)).collect();
    assert_eq!(late, [true, false], "{log}");
    // The delayed copy has no `home` event.
    assert_eq!(log.matches(r#""event":"home""#).count(), 1, "{log}");
    // The transfer does not end before it is due.
    let (mut gpu, _log) = gpu_with_log();
    gpu.inject.slow = Some((1, Duration::from_secs(3600)));
    push(&mut gpu, 3, 0, &home(3, 1));
    gpu.go_on();
    assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (0, 0));
    assert!(gpu.due().unwrap() > Instant::now());
}

#[test]
fn a_slow_transfer_is_dropped_if_its_channel_is_taken_off() {
    // Three ways to preempt: by group, by channel number, by unbinding the instance block.
    let ways: [fn(&mut Gpu); 3] = [
        |gpu| preempt(gpu, 9),
        |gpu| set(gpu, r::PREEMPT, 3),
        |gpu| set(gpu, r::CHANNELS + 3 * 8, 0),
    ];
    for take_off in ways {
        let (mut gpu, log) = gpu_with_log();
        gpu.inject.slow = Some((1, Duration::ZERO));
        push(&mut gpu, 3, 0, &home(3, 1));
        mask(&mut gpu, 3, STOP);
        take_off(&mut gpu);
        assert_eq!(gpu.due(), None);
        gpu.go_on();
        assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (0, 0));
        let log = logged(&mut gpu, log.path());
        assert!(
            log.contains("off the engine: its transfer is dropped"),
            "{log}"
        );
    }
}

#[test]
fn to_stop_a_channel_does_not_stop_its_transfer() {
    let (mut gpu, log) = gpu_with_log();
    gpu.inject.slow = Some((1, Duration::ZERO));
    push(&mut gpu, 3, 0, &home(3, 1));
    mask(&mut gpu, 3, STOP);
    // A stopped channel runs no further commands.
    push(&mut gpu, 3, 1, &fence(3, 2));
    gpu.go_on();
    assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (0, 77));
    assert!(logged(&mut gpu, log.path()).contains(r#""late":true"#));
    // A channel that is started again continues, even if it was preempted meanwhile.
    let (mut gpu, _log) = gpu_with_log();
    gpu.inject.slow = Some((1, Duration::ZERO));
    push(&mut gpu, 3, 0, &home(3, 1));
    mask(&mut gpu, 3, STOP);
    mask(&mut gpu, 3, START);
    preempt(&mut gpu, 9);
    gpu.go_on();
    assert_eq!((fenced(&gpu, 3), came(&gpu, 1)), (1, 77));
}

#[test]
fn a_slow_transfer_ends_while_nobody_asks_for_anything() {
    let (mut gpu, _log) = gpu_with_log();
    gpu.inject.slow = Some((1, Duration::from_millis(20)));
    let served = Served::new(gpu);
    let waiting = std::thread::spawn({
        let served = served.clone();
        move || served.wait()
    });
    push(&mut served.gpu(), 3, 0, &home(3, 1));
    served.clone().region_write(1, 0x8000, &[0; 4]).unwrap();
    let begin = Instant::now();
    while fenced(&served.gpu(), 3) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    served.stop();
    waiting.join().unwrap();
}

#[test]
fn a_bad_command_is_reported_as_nouveau_reads_it() {
    let (mut gpu, ..) = gpu();
    // gf100_runq_init(), gk104_runq_init().
    set(&mut gpu, r::PBDMA_INTR, !0);
    set(&mut gpu, r::PBDMA_INTR_ENABLE, 0xffff_feff);
    set(&mut gpu, r::PBDMA_INTR_1, !0);
    assert_eq!(get(&mut gpu, r::FIFO_INTR), 0);
    push(&mut gpu, 3, 0, &method(4, 0x304, &[0x1234]));
    assert_eq!(gpu.witness.totals.dead_channels, 1);
    // gk104_fifo_intr(), gf100_fifo_intr_pbdma(), gf100_runq_intr(), gk104_runq_intr_1().
    assert_eq!(get(&mut gpu, r::FIFO_INTR), r::FIFO_PBDMA);
    assert_eq!(get(&mut gpu, r::PBDMAS_INTR), 1);
    let pending = get(&mut gpu, r::PBDMA_INTR);
    // The driver kills the channel for these bits.
    assert_ne!(pending & 0xc67f_e000, 0);
    assert_eq!(get(&mut gpu, r::PBDMA_METHOD) & 0x7_3ffc, 4 << 16 | 0x304);
    assert_eq!(get(&mut gpu, r::PBDMA_DATA), 0x1234);
    assert_eq!(get(&mut gpu, r::PBDMA_CHANNEL), 3);
    assert_eq!(get(&mut gpu, r::PBDMA_INTR_1), 0);
    // No channel runs before the driver has acknowledged the interrupt.
    push(&mut gpu, 5, 0, &fence(5, 50));
    assert_eq!(fenced(&gpu, 5), 0);
    mask(&mut gpu, 3, STOP);
    preempt(&mut gpu, 9);
    set(&mut gpu, r::PBDMA_METHOD, 0x8060_0008);
    set(&mut gpu, r::PBDMA_INTR, pending);
    set(&mut gpu, r::PBDMAS_INTR, 1);
    assert_eq!(get(&mut gpu, r::FIFO_INTR), r::FIFO_NON_STALL);
    assert_eq!(fenced(&gpu, 5), 50);
    // The channel is dead.
    push(&mut gpu, 3, 1, &fence(3, 1));
    assert_eq!(fenced(&gpu, 3), 0);
    assert_eq!(gpu.witness.totals.violations, 0);
}

#[test]
fn a_page_of_a_kind_is_told_as_unknown() {
    let (mut gpu, root, entry) = gpu();
    poke(&gpu, entry, 0x90_0000 >> 4 | 1 | 0xdb << 56);
    for _ in 0..2 {
        bar1(&mut gpu, 0x8000);
    }
    let told = "unknown kind 0xdb: page 0x8000";
    assert_eq!(gpu.witness.first_violations, [told]);
    assert_eq!(gpu.witness.totals.unknown, 1);
    // A new use counts again, but is not reported again.
    invalidate(&mut gpu, root, FLUSH);
    bar1(&mut gpu, 0x8000);
    let totals = &gpu.witness.totals;
    assert_eq!((totals.unknown, totals.violations), (2, 1));
    // The kind is also found by a channel, and without an invalidation.
    let (mut gpu, _, Mapped { entry, .. }) = gpu_and_channel();
    push(&mut gpu, 3, 0, &fence(3, 1));
    poke(&gpu, entry, ram(0x2000).address >> 4 | 2 << 1 | 1 | 1 << 56);
    push(&mut gpu, 3, 1, &fence(3, 2));
    let told = "unknown kind 0x1: page 0x300030";
    assert_eq!(gpu.witness.first_violations.last().unwrap(), told);
}

#[test]
fn the_log_has_what_took_how_long() {
    let (mut gpu, log) = gpu_with_log();
    for _ in 0..2 {
        get(&mut gpu, r::BOOT_0);
    }
    push(&mut gpu, 3, 0, &home(3, 1));
    push(&mut gpu, 3, 1, &fence(3, 2));
    let told = logged(&mut gpu, log.path());
    assert_eq!(told.matches(r#""event":"probe"}"#).count(), 1, "{told}");
    let home = r#""event":"home","chid":3,"copies":1,"len":8,"took_us":"#;
    assert_eq!(told.matches(home).count(), 1, "{told}");
    assert!(!told.contains("late"), "{told}");
    // A driver probes again after a reset.
    gpu.reset();
    get(&mut gpu, r::BOOT_0);
    let told = logged(&mut gpu, log.path());
    assert_eq!(told.matches(r#""event":"probe"}"#).count(), 2, "{told}");
}
