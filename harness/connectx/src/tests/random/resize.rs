//! Resizes completion queues while requests complete.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::check;
use crate::device::Scheme;
use crate::device::command::Status;
use crate::device::queue::CQE;
use crate::layout::Layouts;
use crate::testing::{LOG_SEND, TestCq, TestQp, Testbed};

#[derive(Clone, Debug)]
enum Step {
    /// Post as many requests as fit, up to this number.
    Post { qp: usize, count: usize },
    /// The device runs this many steps.
    Run(usize),
    /// The driver reads up to this many completions.
    Poll(usize),
    /// Resize into a new buffer, which begins `offset` times 64 bytes into its first page.
    Resize { log_size: u32, offset: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2usize, 1..10usize).prop_map(|(qp, count)| Step::Post { qp, count }),
        3 => (1..12usize).prop_map(Step::Run),
        2 => (1..12usize).prop_map(Step::Poll),
        2 => (0..6u32, 0..64u64).prop_map(|(log_size, offset)| Step::Resize { log_size, offset }),
    ]
}

/// A driver of two queue pairs whose requests complete in the same queue.
struct Driver {
    bench: Testbed,
    cq: TestCq,
    qps: [TestQp; 2],
    /// The consumer index that the driver last reported to the device.
    told: u32,
    /// Queue pair and number of each completion read.
    read: Vec<(u64, u64)>,
    /// The old buffers, and their contents at the time of the resize.
    left: Vec<(u64, Vec<u8>)>,
}

impl Driver {
    fn new(log_size: u32, is_wide: bool) -> Self {
        let mut bench = Testbed::new(Scheme::Transport).unwrap();
        let cq = bench.cq_of(log_size, CQE as u64 * (1 + u64::from(is_wide)));
        let qps = [0, 1].map(|_| bench.qp(&cq, |_, _| {}));
        for qp in &qps {
            bench.connect(qp, 0, 7);
        }
        Self {
            bench,
            cq,
            qps,
            told: 0,
            read: Vec::new(),
            left: Vec::new(),
        }
    }

    fn posted(&self, qp: usize) -> usize {
        usize::from(self.qps[qp].posted)
    }

    /// Number of requests of a queue pair whose completions are not read.
    fn due(&self, qp: usize) -> usize {
        let qpn = u64::from(self.qps[qp].qpn);
        let read = self.read.iter().filter(|(of, _)| *of == qpn);
        self.posted(qp) - read.count()
    }

    /// Number of entries in use once all requests are done, if the driver does not report a new
    /// consumer index.
    fn held(&self) -> usize {
        self.due(0) + self.due(1) + (self.cq.consumed - self.told) as usize
    }

    fn post(&mut self, qp: usize, count: usize) {
        let nop = self.bench.device.c.opcodes.nop;
        for _ in 0..count {
            if self.held() == 1 << self.cq.log_size || self.due(qp) == 1 << LOG_SEND {
                return;
            }
            self.bench.post(&mut self.qps[qp], nop, 0, &[]);
        }
    }

    fn poll(&mut self, count: usize) {
        for _ in 0..count {
            let Some(cqe) = self.bench.poll(&mut self.cq) else {
                return;
            };
            self.told = self.cq.consumed;
            self.read.push((cqe.qpn, cqe.counter));
        }
    }

    fn last_byte(&self, number: u32) -> u64 {
        let entry = self.bench.get(self.cq.entry(number), CQE);
        self.bench.device.l.cqe.op_own.get(&entry)
    }

    /// Number of entries that the device has written and the driver has not released.
    fn unread(&self) -> usize {
        let all = self.cq.consumed..self.cq.consumed + (1 << self.cq.log_size);
        let new = all.take_while(|n| self.cq.is_owned(*n, self.last_byte(*n)));
        new.count() + (self.cq.consumed - self.told) as usize
    }

    fn resize(&mut self, log_size: u32, offset: u64) -> Result<(), TestCaseError> {
        let size = 1 << log_size;
        let is_refused = self.unread() >= size || self.unread() >= 1 << self.cq.log_size;
        if !is_refused && self.held() >= size {
            // The requests in flight would overrun the queue, which is correct.
            return Ok(());
        }
        let answer = self.bench.resize(&self.cq, log_size, offset);
        if is_refused {
            prop_assert_eq!(answer.err(), Some(Status::Outstanding));
            return Ok(());
        }
        prop_assert!(answer.is_ok(), "{:?}", answer);
        self.move_to(answer.unwrap())
    }

    /// Moves the unread completions as `mlx5_cq_resize_copy_cqes()` of libmlx5 does: one entry
    /// later in the new buffer, since the entry that ends the old buffer counts too. The driver
    /// reports its consumer index only when it reads the next completion.
    fn move_to(&mut self, new: TestCq) -> Result<(), TestCaseError> {
        let end = self.bench.device.c.cqe.resize_cq;
        let mut number = self.cq.consumed;
        loop {
            let last = self.last_byte(number);
            prop_assert!(self.cq.is_owned(number, last), "the old buffer has no end");
            if last >> 4 == end {
                break;
            }
            let mut entry = self.bench.get(self.cq.entry(number), CQE);
            number += 1;
            let owner = u64::from(number >> new.log_size) & 1;
            let op_own = self.bench.device.l.cqe.op_own;
            op_own.set(&mut entry, last & !1 | owner);
            self.bench.put(new.entry(number), &entry);
        }
        let len = self.cq.stride << self.cq.log_size;
        let content = self.bench.get(self.cq.at, len as usize);
        self.left.push((self.cq.at, content));
        self.cq = TestCq {
            consumed: self.cq.consumed + 1,
            ..new
        };
        Ok(())
    }

    /// Checks that each posted request has completed once, in the order of the device's log.
    fn end(mut self) -> Result<(), TestCaseError> {
        self.bench.settle();
        self.poll(usize::MAX);
        for (at, content) in &self.left {
            let now = self.bench.get(*at, content.len());
            prop_assert!(now == *content, "an old buffer was written");
        }
        for (n, qp) in self.qps.iter().enumerate() {
            let of_it = self.read.iter().filter(|(of, _)| *of == u64::from(qp.qpn));
            let numbers = Vec::from_iter(of_it.map(|(_, number)| *number as usize));
            prop_assert_eq!(numbers, Vec::from_iter(0..self.posted(n)));
        }
        let lines = self.bench.lines();
        let done = lines.iter().filter(|line| line["event"] == "done");
        let order = done.map(|line| line["qpn"].as_u64().unwrap());
        prop_assert!(order.eq(self.read.iter().map(|(qpn, _)| *qpn)));
        prop_assert_eq!(self.bench.event(), None);
        prop_assert_eq!(self.bench.device.witness.totals.violations, 0);
        let cqn = u64::from(self.cq.cqn);
        let set = |l: &Layouts, input: &mut [u8]| l.query_cq_in.cqn.set(input, cqn);
        let out = self.bench.command("QUERY_CQ", &[], set).unwrap();
        let l = &self.bench.device.l;
        let context = &out[l.query_cq_out.cq_context.byte()..];
        let size = l.cqc.log_cq_size.get(context);
        prop_assert_eq!(size, u64::from(self.cq.log_size));
        Ok(())
    }
}

#[test]
fn completions_outlive_their_buffers() {
    let steps = prop::collection::vec(step(), 1..60);
    let input = (0..6u32, any::<bool>(), steps);
    check(&input, |(log_size, is_wide, steps)| {
        let mut driver = Driver::new(log_size, is_wide);
        for step in steps {
            match step {
                Step::Post { qp, count } => driver.post(qp, count),
                Step::Run(count) => {
                    for _ in 0..count {
                        let _ = driver.bench.device.run();
                    }
                }
                Step::Poll(count) => driver.poll(count),
                Step::Resize { log_size, offset } => driver.resize(log_size, offset)?,
            }
        }
        driver.end()
    });
}
