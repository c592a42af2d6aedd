//! Queue pairs and shared receive queues: their rings and their state.

use std::time::Instant;

use crate::memory::Buffer;

/// Size of a basic block of the send queue.
pub const WQEBB: u64 = 64;

/// What a queue pair may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Reset,
    /// Take receive requests.
    Init,
    /// Receive.
    Rtr,
    /// Receive and send.
    Rts,
    /// Its requests are flushed.
    Err,
}

/// A ring of receive requests.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the ring begins in it.
    pub offset: u64,
    /// log2 of the number of requests.
    pub log_size: u32,
    /// log2 of the size of one.
    pub log_stride: u32,
}

impl Ring {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        1 << (self.log_size + self.log_stride)
    }

    /// Where a request is.
    pub fn at(&self, counter: u32) -> u64 {
        let index = u64::from(counter) & ((1u64 << self.log_size) - 1);
        self.offset + (index << self.log_stride)
    }
}

/// A part of the memory that a work request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// In the request itself.
    Inline(Vec<u8>),
    /// Elsewhere.
    Data {
        /// Key.
        key: u32,
        /// Address in it.
        va: u64,
        /// Bytes.
        len: u64,
    },
}

impl Segment {
    /// Whether it needs no memory.
    pub fn is_inline(&self) -> bool {
        matches!(self, Self::Inline(_))
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Data { len, .. } => *len,
        }
    }
}

/// A receive request that a message has taken.
#[derive(Clone, Debug)]
pub struct Receive {
    /// The shared queue it is of, if it is.
    pub srqn: Option<u32>,
    /// Its number in the ring.
    pub counter: u16,
    /// Where the message goes.
    pub segments: Vec<Segment>,
}

/// A work request of the send queue that is being carried out.
#[derive(Clone, Debug)]
pub struct Send {
    /// Its number: the counter of basic blocks at its begin.
    pub counter: u16,
    /// Basic blocks.
    pub blocks: u16,
    /// `MLX5_OPCODE_*`
    pub opcode: u8,
    /// Whether it completes with an entry.
    pub is_signaled: bool,
    /// Whether the receiver is to get an event.
    pub is_solicited: bool,
    /// Immediate data, or a key.
    pub imm: [u8; 4],
    /// The queue pair it is for.
    pub remote_qpn: u32,
    /// The shared receive queue it is for (XRC).
    pub remote_srqn: Option<u32>,
    /// Address and key at the other end.
    pub remote: (u64, u32),
    /// Operands of an atomic operation: swap or add, compare.
    pub atomic: (u64, u64),
    /// Memory at this end.
    pub local: Vec<Segment>,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that have arrived.
    pub done: u64,
    /// The receive request it has taken.
    pub receive: Option<Receive>,
    /// How often the other end was not ready.
    pub retries: u32,
    /// Whether it has waited, for a page or for the other end.
    pub has_waited: bool,
    /// Since when there has been no other end.
    pub absent_since: Option<Instant>,
    /// What an atomic operation found, once it was done: it is done once, however often
    /// the answer has to wait for a page.
    pub found: Option<u64>,
}

/// What a send queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    No,
    /// The driver's answer to a page fault.
    Fault(u64),
    /// A moment.
    Timer,
}

/// A queue pair.
pub struct Qp {
    /// Its context (`qpc`), for queries and for what is rarely looked at.
    pub context: Vec<u8>,
    /// What it may do.
    pub state: State,
    /// `MLX5_QP_ST_*`
    pub service: u64,
    /// Protection domain.
    pub pd: u32,
    /// The UAR whose doorbells count.
    pub uar: u64,
    /// As user space knows it.
    pub user_index: u32,
    /// Completion queues of sender and receiver.
    pub cqn: (u32, u32),
    /// Where the driver keeps its counters.
    pub doorbell: u64,
    /// The shared receive queue.
    pub srqn: Option<u32>,
    /// Receive requests, if there are any.
    pub receive: Option<Ring>,
    /// Receive requests that were used.
    pub received: u32,
    /// The send queue; its stride is a basic block.
    pub send: Option<Ring>,
    /// Basic blocks that were carried out.
    pub sent: u16,
    /// Basic blocks that the driver has posted.
    pub posted: u16,
    /// When it last said so.
    pub rung: Instant,
    /// What was posted then begins here, if there was nothing else.
    pub rung_at: Option<u16>,
    /// What is being sent.
    pub current: Option<Send>,
    /// What that waits for.
    pub wait: Wait,
    /// The page fault of its receive queue that a sender waits for is not here: the
    /// sender waits.
    pub is_queued: bool,
}

/// A shared receive queue.
pub struct Srq {
    /// The ring.
    pub ring: Ring,
    /// Protection domain.
    pub pd: u32,
    /// Where the driver keeps its counter.
    pub doorbell: u64,
    /// As user space knows it.
    pub user_index: u32,
    /// For XRC: where completions go.
    pub cqn: u32,
    /// The next request: requests are a list.
    pub head: u16,
    /// Requests that were used.
    pub used: u16,
    /// An event comes when fewer are left; 0: none.
    pub limit: u16,
}
