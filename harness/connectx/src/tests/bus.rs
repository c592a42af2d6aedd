//! Memory that QEMU accesses for the device: a packet that waits for an answer begins again.

use crate::device::Scheme;
use crate::testing::{PAGE, Pair, Testbed};

/// An address that nobody has mapped.
const BUS: u64 = 0x70_0000_0000;

/// A page of RAM and one that must be asked for, with their keys.
struct Ends {
    bench: Testbed,
    pair: Pair,
    ram: u64,
    ram_key: u32,
    bus_key: u32,
}

impl Ends {
    fn new() -> Option<Self> {
        let mut bench = Testbed::new(Scheme::Transport)?;
        bench.device.bus.is_on = true;
        let pair = Pair::new(&mut bench);
        let ram = bench.alloc(PAGE);
        let (ram_key, bus_key) = (bench.mtt(0, &[ram]), bench.mtt(0, &[BUS]));
        Some(Self {
            bench,
            pair,
            ram,
            ram_key,
            bus_key,
        })
    }

    /// The `dir` and `to` of each DMA in the log.
    fn moved(&mut self) -> Vec<(String, String)> {
        let lines = self.bench.lines();
        let dmas = lines.iter().filter(|line| line["event"] == "dma");
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        dmas.map(|line| (text(&line["dir"]), text(&line["to"])))
            .collect()
    }
}

#[test]
fn an_atomic_is_logged_once_if_its_result_must_be_asked_for() {
    let Some(mut t) = Ends::new() else { return };
    t.bench.put(t.ram, &7u64.to_le_bytes());
    let l = t.bench.device.l.atomic;
    let mut atomic = vec![0; l.size];
    l.swap_add.set(&mut atomic, 5);
    let segments = [
        t.bench.remote(t.ram_key, 0),
        atomic,
        t.bench.data(t.bus_key, 0, 8),
    ];
    let opcode = t.bench.device.c.opcodes.atomic_fa;
    t.bench.post(&mut t.pair.a, opcode, 0, &segments);
    t.bench.device.run().unwrap();
    assert!(t.bench.device.bus.is_asking());
    t.bench.device.answered(Ok(Vec::new()));
    assert_eq!(t.bench.poll(&mut t.pair.a_cq).unwrap().syndrome, 0);
    assert_eq!(t.bench.get(t.ram, 8), 12u64.to_le_bytes());
    let expected = [("read", "ram"), ("write", "ram"), ("write", "bus")];
    let expected = expected.map(|(dir, to)| (dir.to_owned(), to.to_owned()));
    assert_eq!(t.moved(), expected);
}

/// The guest writes to the source of a request at any time.
#[test]
fn what_was_asked_with_counts_if_the_source_changes_meanwhile() {
    let Some(mut t) = Ends::new() else { return };
    let segments = [t.bench.remote(t.bus_key, 0), t.bench.data(t.ram_key, 0, 8)];
    let opcode = t.bench.device.c.opcodes.rdma_write;
    t.bench.post(&mut t.pair.a, opcode, 0, &segments);
    t.bench.device.run().unwrap();
    assert!(t.bench.device.bus.is_asking());
    t.bench.put(t.ram, &[9; 8]);
    t.bench.device.answered(Ok(Vec::new()));
    assert!(!t.bench.device.bus.is_asking());
    assert_eq!(t.bench.poll(&mut t.pair.a_cq).unwrap().syndrome, 0);
    assert_eq!(t.moved().len(), 2);
}
