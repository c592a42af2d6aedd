use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::home::Home;
use crate::inject::Inject;
use crate::space::Aperture;
use crate::testing::{self, Board, ram};
use crate::tlb::Tlb;
use crate::witness::Witness;

/// Virtual addresses: the ring, the commands, and memory for semaphores.
const RING: u64 = 0x10_0000;
const COMMANDS: u64 = 0x20_0000;
const SEMAPHORE: u64 = 0x30_0000;

struct Driver {
    board: Board,
    channel: Channel,
    tlb: Tlb,
    inject: Inject,
    home: Home,
    witness: Witness,
}

fn method(subchannel: u32, method: u32, data: &[u32]) -> Vec<u32> {
    let header = 1 << 29 | (data.len() as u32) << 16 | subchannel << 13 | method >> 2;
    [&[header], data].concat()
}

impl Driver {
    fn new() -> Self {
        let mut board = Board::new();
        let (instance, root) = board.instance((1 << 47) - 1);
        board.map(root, RING, 12, ram(0), 0);
        board.map(root, COMMANDS, 12, ram(0x1000), 0);
        board.map(root, SEMAPHORE, 12, ram(0x2000), 0);
        // 16 entries.
        board.set(instance.after(RAMFC_GPFIFO), RING | 4 << 48);
        let channel = Channel::load(board.space(), instance.address).unwrap();
        Self {
            board,
            channel,
            tlb: Tlb::new(Instant::now()),
            inject: Inject::default(),
            home: Home::default(),
            witness: Witness::new(None, false).unwrap(),
        }
    }

    fn run(&mut self) -> Stop {
        self.with(Channel::run)
    }

    fn with(&mut self, work: fn(&mut Channel, &mut Context<'_>) -> Stop) -> Stop {
        let mut context = Context {
            space: self.board.space(),
            tables: self.channel.tables(),
            chid: 1,
            now: 0x1234_5678_9abc_def0,
            tlb: &mut self.tlb,
            inject: &mut self.inject,
            home: &mut self.home,
            witness: &mut self.witness,
        };
        work(&mut self.channel, &mut context)
    }

    /// Writes commands and a ring entry that points to them.
    fn push(&mut self, words: &[u32]) -> Stop {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.board.space().write(ram(0x1000), &bytes).unwrap();
        let entry = COMMANDS | (words.len() as u64) << 42;
        self.board.set(ram(u64::from(self.channel.put) * 8), entry);
        self.channel.put = (self.channel.put + 1) % 16;
        self.run()
    }

    fn semaphore(&self) -> [u64; 2] {
        [self.board.get(ram(0x2000)), self.board.get(ram(0x2008))]
    }
}

/// The PBDMA's interrupt bit, the method and its data.
fn bad(stop: Stop) -> (u32, u32, u32) {
    match stop {
        Stop::Dead(Death::Command(bad)) => (bad.interrupt, bad.method.method, bad.method.data),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_semaphore_is_released_with_the_time() {
    let mut driver = Driver::new();
    let release = method(0, 0x10, &[0, SEMAPHORE as u32, 42, RELEASE]);
    assert_eq!(driver.push(&release), Stop::Idle);
    assert_eq!(driver.semaphore(), [42, 0x1234_5678_9abc_def0]);
    assert_eq!(driver.channel.get, 1);
    let short = method(0, 0x10, &[0, SEMAPHORE as u32 + 4, 7, RELEASE | 1 << 24]);
    assert_eq!(driver.push(&short), Stop::Idle);
    assert_eq!(driver.semaphore()[0], 7 << 32 | 42);
}

#[test]
fn the_ring_wraps_around() {
    let mut driver = Driver::new();
    for value in 0..40 {
        let release = method(0, 0x10, &[0, SEMAPHORE as u32, value, RELEASE]);
        assert_eq!(driver.push(&release), Stop::Idle);
        assert_eq!(driver.semaphore()[0], u64::from(value));
    }
}

#[test]
fn a_channel_that_is_loaded_again_goes_on() {
    let mut driver = Driver::new();
    let mut release = method(0, 0x10, &[0, SEMAPHORE as u32, 1, RELEASE]);
    release.extend(method(4, SET_OBJECT, &[0xc1b5]));
    assert_eq!(driver.push(&release), Stop::Idle);
    let instance = driver.channel.instance.address;
    driver.channel = Channel::load(driver.board.space(), instance).unwrap();
    assert_eq!((driver.channel.get, driver.channel.put), (1, 1));
    assert_eq!(driver.channel.objects[4], 0xc1b5);
    driver.board.set(ram(0x2000), 0);
    assert_eq!(driver.run(), Stop::Idle);
    assert_eq!(driver.semaphore()[0], 0);
}

#[test]
fn a_channel_waits_for_a_semaphore_and_goes_on() {
    let mut driver = Driver::new();
    let mut words = method(0, 0x10, &[0, SEMAPHORE as u32, 5, ACQUIRE_GREATER_OR_EQUAL]);
    words.extend(method(0, 0x20, &[0]));
    assert_eq!(driver.push(&words), Stop::Waiting);
    assert!(driver.channel.has_work() && !driver.channel.interrupts);
    driver.board.set(ram(0x2000), 4);
    assert_eq!(driver.run(), Stop::Waiting);
    driver.board.set(ram(0x2000), 6);
    assert_eq!(driver.run(), Stop::Idle);
    assert!(driver.channel.interrupts);
    // Counters wrap around.
    driver.board.set(ram(0x2000), 2);
    let words = method(
        0,
        0x10,
        &[0, SEMAPHORE as u32, u32::MAX, ACQUIRE_GREATER_OR_EQUAL],
    );
    assert_eq!(driver.push(&words), Stop::Idle);
}

#[test]
fn methods_go_to_the_engine_of_their_subchannel() {
    let mut driver = Driver::new();
    let mut words = method(4, SET_OBJECT, &[0xc1b5]);
    // Immediate data: from and to physical memory.
    words.extend([4 << 29 | 1 << 16 | 4 << 13 | 0x260 >> 2]);
    words.extend([4 << 29 | 4 << 13 | 0x264 >> 2]);
    let from = ram(0x3000).address as u32;
    words.extend(method(4, 0x400, &[0, from, 0, 0x10_0000, 8, 8, 8, 2]));
    words.extend(method(4, 0x300, &[1 << 13 | 1 << 12 | 1 << 9 | 3 << 7 | 2]));
    driver.board.set(ram(0x3000), 11);
    driver.board.set(ram(0x3008), 12);
    assert_eq!(driver.push(&words), Stop::Idle);
    assert_eq!(driver.board.get(Place::vram(0x10_0000)), 11);
    assert_eq!(driver.board.get(Place::vram(0x10_0008)), 12);
    assert_eq!(driver.witness.totals.to_vram, 16);
}

#[test]
fn steps_of_methods() {
    let mut driver = Driver::new();
    // Increment once: A, then B for the rest. Never increment: C three times. Then increment
    // on each word.
    let mut words = vec![5 << 29 | 3 << 16 | 0x10 >> 2, 1, 2, SEMAPHORE as u32];
    words.extend([3 << 29 | 3 << 16 | 0x18 >> 2, 7, 8, 9]);
    words.extend(method(0, 0x10, &[0]));
    words.extend(method(0, 0x1c, &[RELEASE]));
    assert_eq!(driver.push(&words), Stop::Idle);
    assert_eq!(driver.semaphore()[0], 9);
}

#[test]
fn the_end_of_a_segment() {
    let mut driver = Driver::new();
    let mut words = vec![0, 7 << 29];
    words.extend(method(0, 0x20, &[0]));
    assert_eq!(driver.push(&words), Stop::Idle);
    assert!(!driver.channel.interrupts);
}

#[test]
fn what_is_no_command_ends_the_channel() {
    let push = |words: &[u32]| bad(Driver::new().push(words));
    assert_eq!(push(&[6 << 29]), (r::PBDMA_PBENTRY, 0, 6 << 29));
    let nobody = method(4, 0x300, &[7]);
    assert_eq!(push(&nobody), (r::PBDMA_ILLEGAL_METHOD, 0x300, 7));
    let operation = method(0, 0x10, &[0, SEMAPHORE as u32, 1, 3]);
    assert_eq!(push(&operation), (r::PBDMA_SEMAPHORE, SEMAPHORE_D, 3));
    let mut linear = method(4, SET_OBJECT, &[0xc1b5]);
    linear.extend(method(4, 0x300, &[2]));
    assert_eq!(push(&linear), (r::PBDMA_ILLEGAL_METHOD, 0x300, 2));
}

#[test]
fn a_semaphore_with_bits_that_are_not_modelled_is_told_as_unknown() {
    let unknown = |bits| {
        let mut driver = Driver::new();
        let words = method(0, 0x10, &[0, SEMAPHORE as u32, 1, RELEASE | bits]);
        assert_eq!(driver.push(&words), Stop::Idle);
        assert_eq!(driver.semaphore()[0], 1);
        driver.witness.totals.unknown
    };
    assert_eq!(unknown(1 << 12 | 1 << 20 | 1 << 24), 0);
    for bit in [4, 25, 31] {
        assert_eq!(unknown(1 << bit), 1, "{bit}");
    }
}

#[test]
fn commands_in_the_wrong_order() {
    // A launch before its addresses moves nothing, and one before its object ends the channel.
    let object = method(4, SET_OBJECT, &[0xc1b5]);
    let launch = method(4, 0x300, &[3 << 7 | 2]);
    let mut driver = Driver::new();
    let words = [object.clone(), launch.clone()].concat();
    assert_eq!(driver.push(&words), Stop::Idle);
    let totals = &driver.witness.totals;
    assert_eq!((totals.to_vram, totals.from_vram, totals.filled), (0, 0, 0));
    let stop = Driver::new().push(&[launch, object].concat());
    assert_eq!(bad(stop), (r::PBDMA_ILLEGAL_METHOD, 0x300, 3 << 7 | 2));
    // A release before its address goes to address 0, where no page is.
    let stop = Driver::new().push(&method(0, SEMAPHORE_D, &[RELEASE]));
    assert_eq!(stop, Stop::Dead(Death::Host(Fault::NoPage(0))));
}

#[test]
fn what_is_outside_of_memory_ends_the_channel() {
    // Neither memory has anything at its end.
    let ends = [Place::vram(testing::VRAM), ram(testing::RAM)];
    for end in ends {
        let mut driver = Driver::new();
        let root = driver.channel.tables.root;
        driver.board.map(root, COMMANDS, 12, end, 0);
        driver.board.set(ram(0), COMMANDS | 1 << 42);
        driver.channel.put = 1;
        match driver.run() {
            Stop::Dead(Death::Host(Fault::Nothing(place, _))) => assert_eq!(place, end),
            other => panic!("{other:?}"),
        }
        // From there, and to there, by physical addresses.
        for out in [false, true] {
            let mut driver = Driver::new();
            let mode = u32::from(end.aperture == Aperture::System);
            let (there, here) = (end.address as u32, ram(0x3000).address as u32);
            let (modes, addresses) = match out {
                false => ([mode, 1], [0, there, 0, here]),
                true => ([1, mode], [0, here, 0, there]),
            };
            let mut words = method(4, SET_OBJECT, &[0xc1b5]);
            words.extend(method(4, 0x260, &modes));
            words.extend(method(4, 0x400, &[&addresses[..], &[8, 8, 8, 1]].concat()));
            words.extend(method(4, 0x300, &[1 << 13 | 1 << 12 | 3 << 7 | 2]));
            match driver.push(&words) {
                Stop::Dead(Death::Engine(Fault::Nothing(place, _))) => assert_eq!(place, end),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_launch_that_takes_its_time_is_carried_out_once() {
    let time = Duration::from_millis(3);
    let mut driver = Driver::new();
    driver.inject.slow = Some((1, time));
    let mut words = method(4, SET_OBJECT, &[0xc1b5]);
    let from = SEMAPHORE as u32 + 0x10;
    words.extend(method(4, 0x400, &[0, from, 0, from + 8, 8, 8, 8, 1]));
    words.extend(method(4, 0x300, &[3 << 7 | 2]));
    words.extend(method(0, 0x20, &[0]));
    driver.board.set(ram(0x2010), 7);
    assert_eq!(driver.push(&words), Stop::Busy(Some(time)));
    assert_eq!(driver.board.get(ram(0x2018)), 0);
    assert_eq!(driver.with(Channel::finish), Stop::Idle);
    assert_eq!(driver.board.get(ram(0x2018)), 7);
    assert!(driver.channel.has_work() && !driver.channel.interrupts);
    driver.board.set(ram(0x2010), 8);
    assert_eq!(driver.with(Channel::finish), Stop::Idle);
    assert_eq!(driver.run(), Stop::Idle);
    assert!(driver.channel.interrupts && !driver.channel.has_work());
    assert_eq!(driver.board.get(ram(0x2018)), 7);
}

#[test]
fn what_is_not_mapped_ends_the_channel() {
    let mut driver = Driver::new();
    driver.board.set(ram(0), 0x40_0000 | 1 << 42);
    driver.channel.put = 1;
    let fault = Fault::NoTable(0x40_0000);
    assert_eq!(driver.run(), Stop::Dead(Death::Host(fault)));
    let mut driver = Driver::new();
    let mut words = method(4, SET_OBJECT, &[0xc0b5]);
    words.extend(method(
        4,
        0x400,
        &[0, 0x50_0000, 0, SEMAPHORE as u32, 4, 4, 4, 1],
    ));
    words.extend(method(4, 0x300, &[3 << 7 | 2]));
    let fault = Fault::NoTable(0x50_0000);
    assert_eq!(driver.push(&words), Stop::Dead(Death::Engine(fault)));
}

proptest! {
    #[test]
    fn random_words_do_not_end_the_model(words in prop::collection::vec(any::<u32>(), 0..200)) {
        let mut driver = Driver::new();
        driver.push(&words);
    }

    /// Nearly valid commands get further than random words.
    #[test]
    fn random_methods_do_not_end_the_model(
        methods in prop::collection::vec((0..0x1000u32, any::<u32>(), any::<bool>()), 0..60),
    ) {
        let mut driver = Driver::new();
        let mut words = method(4, SET_OBJECT, &[0xc1b5]);
        for (at, data, is_small) in methods {
            let known = [0x10, 0x14, 0x18, 0x1c, 0x260, 0x264, 0x300, 0x400, 0x404, 0x408,
                0x40c, 0x410, 0x414, 0x418, 0x41c, 0x700, 0x704, 0x708, 0x240, 0x244];
            let at = if at & 1 == 0 { known[(at / 2) as usize % known.len()] } else { at & 0xffc };
            let data = if is_small { data % 0x4000 } else { data };
            words.extend(method(4, at, &[data]));
        }
        driver.push(&words);
    }
}
