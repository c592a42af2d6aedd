//! Two devices that are joined by a wire, and their drivers. Queue pairs of both are connected
//! and have the same number.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use super::{Cqe, LID, PAGE, TestCq, TestQp, Testbed};
use crate::device::{Device, Scheme};
use crate::layout::mkey_to_idx;
use crate::wire;

/// Where the keys begin.
pub const START: u64 = 0x10_0000;
/// Pages of each key.
pub const PAGES: u64 = 2;

/// Two ends of a wire. Each has a queue pair, a completion queue, and a key for two pages of its
/// own memory.
pub struct Wired {
    /// The one in use has both devices. The other one has a device that nobody uses.
    benches: [Testbed; 2],
    used: usize,
    pub qps: [TestQp; 2],
    pub cqs: [TestCq; 2],
    pub keys: [u32; 2],
    pub pages: [u64; 2],
}

impl Wired {
    pub fn new(scheme: Scheme) -> Option<Self> {
        let mut benches = [Testbed::bare(scheme)?, Testbed::bare(scheme)?];
        benches[1].device.options.lid = LID + 1;
        for bench in &mut benches {
            bench.start();
        }
        let mut cqs = benches.each_mut().map(|bench| bench.cq(6));
        let qps = [0, 1].map(|n| benches[n].qp(&cqs[n], |_, _| {}));
        // Only the LID tells the ends apart.
        assert_eq!(qps[0].qpn, qps[1].qpn);
        for n in 0..2 {
            let lid = benches[1 - n].device.options.lid;
            benches[n].connect_to(&qps[n], (lid, qps[1 - n].qpn), 7);
            cqs[n].consumed = 0;
        }
        let pages = benches.each_mut().map(|bench| bench.alloc(PAGES * PAGE));
        let keys = [0, 1].map(|n| benches[n].mtt(START, &[pages[n], pages[n] + PAGE]));
        let nobody = Testbed::bare(scheme)?.device;
        let far = mem::replace(&mut benches[1].device, nobody);
        let nobody = Testbed::bare(scheme)?.device;
        let near = mem::replace(&mut benches[0].device, nobody);
        benches[0].device = wire::join(near, far);
        Some(Self {
            benches,
            used: 0,
            qps,
            cqs,
            keys,
            pages,
        })
    }

    /// One end.
    pub fn at(&mut self, n: usize) -> &mut Testbed {
        if self.used != n {
            let [a, b] = &mut self.benches;
            mem::swap(&mut a.device, &mut b.device);
            wire::turn(&mut self.benches[n].device);
            self.used = n;
        }
        &mut self.benches[n]
    }

    /// Takes the devices. What the ends post then waits for somebody else's doorbell.
    pub fn take(&mut self) -> Box<Device> {
        let nobody = Testbed::bare(Scheme::Transport)
            .expect("there are headers")
            .device;
        mem::replace(&mut self.at(0).device, nobody)
    }

    /// Writes to an end's memory.
    pub fn put(&mut self, n: usize, data: &[u8]) {
        let at = self.pages[n];
        self.at(n).put(at, data);
    }

    /// Reads from an end's memory.
    pub fn get(&mut self, n: usize, len: usize) -> Vec<u8> {
        let at = self.pages[n];
        self.at(n).get(at, len)
    }

    /// Posts a request of `len` bytes between the memory of both ends, or a message.
    pub fn post(&mut self, n: usize, opcode: u64, len: u64) {
        let c = self.at(n).device.c.opcodes;
        let (mine, theirs) = (self.keys[n], self.keys[1 - n]);
        let mut qp = self.qps[n].clone();
        let bench = self.at(n);
        let mut segments = Vec::new();
        if opcode != c.send {
            segments.push(bench.remote(theirs, START));
        }
        segments.push(bench.data(mine, START, len));
        bench.post(&mut qp, opcode, 0, &segments);
        self.qps[n] = qp;
    }

    /// Posts a receive request.
    pub fn receive(&mut self, n: usize, len: u64) {
        let mut qp = self.qps[n].clone();
        let key = self.keys[n];
        let bench = self.at(n);
        let data = bench.data(key, START, len);
        bench.receive(&mut qp, &[data]);
        self.qps[n] = qp;
    }

    /// An end's queue pair enters the error state.
    pub fn fail(&mut self, n: usize) {
        let qp = self.qps[n].clone();
        self.at(n).modify("2ERR_QP", &qp, &[]).unwrap();
    }

    /// The first end has sent the first one of a message's packets, and the other end has a
    /// receive request for it.
    pub fn begin_message(&mut self, len: u64) {
        let opcode = self.at(0).device.c.opcodes.send;
        self.receive(1, len);
        self.post(0, opcode, len);
        self.at(0).device.run().unwrap();
    }

    /// Runs both devices until there is no step to run now.
    pub fn settle(&mut self) {
        loop {
            let near = self.at(0).device.run();
            let far = self.at(1).device.run();
            if near.is_err() && far.is_err() {
                return;
            }
        }
    }

    /// An end's next completion.
    pub fn poll(&mut self, n: usize) -> Option<Cqe> {
        let mut cq = self.cqs[n].clone();
        let cqe = self.at(n).poll(&mut cq);
        self.cqs[n] = cq;
        cqe
    }

    /// Waits for an end's next completion, and returns its syndrome.
    pub fn syndrome(&mut self, n: usize) -> u64 {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            self.settle();
            if let Some(cqe) = self.poll(n) {
                return cqe.syndrome;
            }
            thread::sleep(Duration::from_micros(100));
        }
        panic!("no completion");
    }

    /// The token of an end's page fault.
    pub fn fault(&mut self, n: usize) -> Option<u64> {
        let bench = self.at(n);
        let event = bench.event_of(bench.device.c.events.page_fault)?;
        Some(bench.token(&event))
    }

    /// Takes an end's first page away, or gives it back. No change of a key is logged.
    pub fn page(&mut self, n: usize, is_present: bool) {
        let (key, at) = (self.keys[n], self.pages[n]);
        let entry = if is_present { at | 3 } else { 0 };
        let mkey = self.at(n).device.mkeys.get_mut(&mkey_to_idx(key)).unwrap();
        mkey.entries.write(0, &entry.to_be_bytes());
    }
}
