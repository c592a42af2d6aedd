use std::time::Instant;

use super::*;
use crate::testing::{Board, ram};

struct Engine {
    board: Board,
    tables: Tables,
    root: Place,
    engine: CopyEngine,
    tlb: Tlb,
    inject: Inject,
    home: Home,
    witness: Witness,
}

/// LAUNCH_DMA: not pipelined, pitch on both sides.
const PLAIN: u32 = 2 | SRC_IS_PITCH | DST_IS_PITCH;

impl Engine {
    fn new() -> Self {
        let mut board = Board::new();
        let (instance, root) = board.instance((1 << 47) - 1);
        Self {
            tables: Tables::of(board.space(), instance.address).unwrap(),
            board,
            root,
            engine: CopyEngine::default(),
            tlb: Tlb::new(Instant::now()),
            inject: Inject::default(),
            home: Home::default(),
            witness: Witness::new(None, false).unwrap(),
        }
    }

    fn methods(&mut self, methods: &[(u32, u32)]) -> Result<bool, Refused> {
        let mut context = Context {
            space: self.board.space(),
            tables: self.tables,
            chid: 0,
            now: 32,
            tlb: &mut self.tlb,
            inject: &mut self.inject,
            home: &mut self.home,
            witness: &mut self.witness,
        };
        for (method, data) in methods {
            if !self.engine.method(&mut context, *method, *data)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[test]
fn lines_have_a_pitch_of_their_own() {
    let mut engine = Engine::new();
    let data: Vec<u8> = (0..64).collect();
    let to = Place::vram(0x10_0000);
    engine.board.space().write(to, &data).unwrap();
    let done = engine.methods(&[
        (SET_SRC_PHYS_MODE, 0),
        (SET_DST_PHYS_MODE, 1),
        (OFFSET_IN_LOWER, 0x10_0000),
        (OFFSET_OUT_LOWER, ram(0).address as u32),
        (PITCH_IN, 16),
        (PITCH_OUT, 4),
        (LINE_LENGTH_IN, 2),
        (LINE_COUNT, 3),
        (
            LAUNCH_DMA,
            PLAIN | MULTI_LINE | SRC_IS_PHYSICAL | DST_IS_PHYSICAL,
        ),
    ]);
    assert_eq!(done, Ok(true));
    assert_eq!(
        engine.board.ram_at(0, 12),
        [0, 1, 0, 0, 16, 17, 0, 0, 32, 33, 0, 0]
    );
    assert_eq!(engine.witness.totals.from_vram, 6);
}

#[test]
fn without_lines_the_count_does_not_matter() {
    // As nvc0b5_migrate_clear() does after nvc0b5_migrate_copy().
    let mut engine = Engine::new();
    let place = Place::vram(0x20_0000);
    engine.board.set(place, u64::MAX);
    engine.board.set(place.after(8), u64::MAX);
    engine.board.set(place.after(16), u64::MAX);
    let done = engine.methods(&[
        (LINE_COUNT, 512),
        (SET_REMAP_CONST_A, 0x1122_3344),
        (SET_REMAP_CONST_B, 0x5566_7788),
        (SET_REMAP_COMPONENTS, 1 << 24 | 3 << 16 | 5 << 4 | 4),
        (OFFSET_OUT_LOWER, 0x20_0000),
        (LINE_LENGTH_IN, 2),
        (LAUNCH_DMA, PLAIN | REMAP | DST_IS_PHYSICAL),
    ]);
    assert_eq!(done, Ok(true));
    let filled = 0x5566_7788_1122_3344;
    assert_eq!(engine.board.get(place), filled);
    assert_eq!(engine.board.get(place.after(8)), filled);
    assert_eq!(engine.board.get(place.after(16)), u64::MAX);
    assert_eq!(engine.witness.totals.filled, 16);
}

#[test]
fn virtual_addresses_and_a_semaphore() {
    let mut engine = Engine::new();
    let root = engine.root;
    engine.board.map(root, 0x1000, 12, ram(0x1000), 0);
    engine
        .board
        .map(root, 0x2000, 12, Place::vram(0x30_0000), 0);
    engine.board.set(ram(0x1ff8), 77);
    let done = engine.methods(&[
        (OFFSET_IN_LOWER, 0x1ff8),
        (OFFSET_OUT_LOWER, 0x2000),
        (LINE_LENGTH_IN, 8),
        (SET_SEMAPHORE_B, 0x1000),
        (SET_SEMAPHORE_PAYLOAD, 9),
        (LAUNCH_DMA, PLAIN | 2 << 3),
    ]);
    assert_eq!(done, Ok(true));
    assert_eq!(engine.board.get(Place::vram(0x30_0000)), 77);
    assert_eq!(engine.board.get(ram(0x1000)), 9);
    assert_eq!(engine.board.get(ram(0x1008)), 32);
}

#[test]
fn large_copies_are_whole() {
    let mut engine = Engine::new();
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 7) as u8).collect();
    engine.board.space().write(ram(0), &data).unwrap();
    let done = engine.methods(&[
        (SET_SRC_PHYS_MODE, 1),
        (OFFSET_IN_LOWER, ram(0).address as u32),
        (OFFSET_OUT_LOWER, 0x100_0000),
        (PITCH_IN, 4096),
        (PITCH_OUT, 4096),
        (LINE_LENGTH_IN, 4096),
        (LINE_COUNT, 768),
        (
            LAUNCH_DMA,
            PLAIN | MULTI_LINE | SRC_IS_PHYSICAL | DST_IS_PHYSICAL,
        ),
    ]);
    assert_eq!(done, Ok(true));
    let mut copied = vec![0; data.len()];
    let read = engine
        .board
        .space()
        .read(Place::vram(0x100_0000), &mut copied);
    assert!(read.is_ok() && copied == data);
}

#[test]
fn what_is_not_modelled_is_refused() {
    let launch = |launch| Engine::new().methods(&[(LAUNCH_DMA, launch)]);
    let is_unsupported = |done| matches!(done, Err(Refused::Unsupported(_)));
    assert!(is_unsupported(launch(2 | SRC_IS_PITCH)));
    assert!(is_unsupported(launch(3 << 3)));
    let done = Engine::new().methods(&[(LINE_LENGTH_IN, 1), (LAUNCH_DMA, PLAIN | REMAP)]);
    assert!(is_unsupported(done));
    let huge = [(LINE_LENGTH_IN, !0), (LINE_COUNT, !0)];
    let done = Engine::new().methods(&[huge[0], huge[1], (LAUNCH_DMA, PLAIN | MULTI_LINE)]);
    assert!(is_unsupported(done));
    assert_eq!(Engine::new().methods(&[(0x304, 0)]), Ok(false));
}

#[test]
fn a_launch_with_bits_that_are_not_modelled_is_told_as_unknown() {
    let unknown = |bits| {
        let mut engine = Engine::new();
        let done = engine.methods(&[(LAUNCH_DMA, PLAIN | bits)]);
        assert_eq!(done, Ok(true));
        engine.witness.totals.unknown
    };
    // FLUSH_ENABLE, BYPASS_L2.
    assert_eq!(unknown(1 << 2 | 1 << 11), 0);
    // INTERRUPT_TYPE, SEMAPHORE_REDUCTION, SEMAPHORE_REDUCTION_ENABLE.
    for bit in [5, 6, 14, 17, 19, 31] {
        assert_eq!(unknown(1 << bit), 1, "{bit}");
    }
}

#[test]
fn transfers_fail_when_there_are_none_left() {
    let mut engine = Engine::new();
    engine.inject.fails_after = Some(1);
    let setup = [(OFFSET_OUT_LOWER, 0x20_0000), (LINE_LENGTH_IN, 8)];
    let launch = (LAUNCH_DMA, PLAIN | SRC_IS_PHYSICAL | DST_IS_PHYSICAL);
    assert_eq!(engine.methods(&[setup[0], setup[1], launch]), Ok(true));
    let injected = Err(Refused::Fault(Fault::Injected));
    assert_eq!(engine.methods(&[launch]), injected);
}

#[test]
fn a_transfer_before_earlier_writes_have_arrived_is_a_violation() {
    const PLACE: u32 = 0x10_0000;
    // Aperture and address
    let (vram, host) = ((0, PLACE), (1, ram(0).address as u32));
    let copy = |from: (u32, u32), to: (u32, u32)| {
        [
            (SET_SRC_PHYS_MODE, from.0),
            (OFFSET_IN_LOWER, from.1),
            (SET_DST_PHYS_MODE, to.0),
            (OFFSET_OUT_LOWER, to.1),
            (LINE_LENGTH_IN, 4),
            (LAUNCH_DMA, PLAIN | SRC_IS_PHYSICAL | DST_IS_PHYSICAL),
        ]
    };
    let fill = [
        (SET_DST_PHYS_MODE, 0),
        (OFFSET_OUT_LOWER, PLACE),
        (SET_REMAP_CONST_A, 0),
        (SET_REMAP_COMPONENTS, 3 << 16 | 4),
        (LINE_LENGTH_IN, 1),
        (LAUNCH_DMA, PLAIN | REMAP | DST_IS_PHYSICAL),
    ];
    for methods in [copy(vram, host), copy(host, vram), fill] {
        let mut engine = Engine::new();
        engine.witness.posted.is_watched = true;
        engine.witness.posted.write(Place::vram(PLACE.into()), 4);
        assert_eq!(engine.methods(&methods), Ok(true));
        assert_eq!(engine.witness.totals.violations, 1, "{methods:?}");
        engine.witness.posted.begin_flush();
        engine.witness.posted.end_flush();
        assert_eq!(engine.methods(&methods), Ok(true));
        assert_eq!(engine.witness.totals.violations, 1, "{methods:?}");
    }
}
