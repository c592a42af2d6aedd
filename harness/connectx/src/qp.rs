//! Queue pairs and shared receive queues: their rings and their state.

use std::collections::VecDeque;
use std::time::Instant;

use crate::memory::Buffer;

/// Size of a basic block of the send queue.
pub const WQEBB: u64 = 64;

/// The state of a queue pair: what it may do.
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
    /// Nothing: its requests are flushed.
    Err,
}

/// A ring of receive requests.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// The buffer.
    pub buffer: Buffer,
    /// Offset of the ring in the buffer.
    pub offset: u64,
    /// log2 of the number of requests.
    pub log_size: u32,
    /// log2 of the size of a request.
    pub log_stride: u32,
}

impl Ring {
    /// Size of the ring in bytes.
    pub fn bytes(&self) -> u64 {
        1 << (self.log_size + self.log_stride)
    }

    /// Offset of a request in the buffer.
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
    /// In memory.
    Data {
        /// Key.
        key: u32,
        /// Address in the key.
        va: u64,
        /// Bytes.
        len: u64,
    },
}

impl Segment {
    /// Whether the data is in the request itself.
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
    /// The request's shared receive queue, if it has one.
    pub srqn: Option<u32>,
    /// Its number in the ring.
    pub counter: u16,
    /// Where the message goes.
    pub segments: Vec<Segment>,
}

/// A work request of the send queue in progress.
#[derive(Clone, Debug)]
pub struct Send {
    /// Its number: the basic block counter at its start.
    pub counter: u16,
    /// Basic blocks.
    pub blocks: u16,
    /// `MLX5_OPCODE_*`
    pub opcode: u8,
    /// Whether it writes a completion.
    pub is_signaled: bool,
    /// Whether the receiver's completion is solicited.
    pub is_solicited: bool,
    /// Immediate data, or a key.
    pub imm: [u8; 4],
    /// The LID of the destination's port.
    pub remote_lid: u16,
    /// The destination queue pair.
    pub remote_qpn: u32,
    /// The destination shared receive queue (XRC).
    pub remote_srqn: Option<u32>,
    /// Address and key at the remote end.
    pub remote: (u64, u32),
    /// Operands of an atomic operation: swap or add, compare.
    pub atomic: (u64, u64),
    /// Memory at this end.
    pub local: Vec<Segment>,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that have arrived.
    pub done: u64,
    /// The receive request that it has taken.
    pub receive: Option<Receive>,
    /// How often the remote end was not ready.
    pub retries: u32,
    /// Whether it has waited for a page or for the remote end.
    pub has_waited: bool,
    /// The time since when the remote end is absent.
    pub absent_since: Option<Instant>,
    /// The old value that an atomic operation found. The operation runs only once, even if
    /// its answer waits for a page several times.
    pub found: Option<u64>,
}

/// What a send queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    No,
    /// The answer of a driver to a page fault.
    Fault {
        /// The page fault.
        token: u64,
        /// The device at the other end of the wire has reported it.
        is_far: bool,
    },
    /// A timer.
    Timer,
}

/// A queue pair.
pub struct Qp {
    /// Its context (`qpc`), for queries and rarely used fields.
    pub context: Vec<u8>,
    /// What it may do.
    pub state: State,
    /// `MLX5_QP_ST_*`
    pub service: u64,
    /// Protection domain.
    pub pd: u32,
    /// The UAR of its doorbells.
    pub uar: u64,
    /// Its number in user space.
    pub user_index: u32,
    /// Completion queues of the send and the receive queue.
    pub cqn: (u32, u32),
    /// Address of the doorbell record, in which the driver stores its counters.
    pub doorbell: u64,
    /// The shared receive queue.
    pub srqn: Option<u32>,
    /// The receive queue, if it has its own.
    pub receive: Option<Ring>,
    /// Number of receive requests used.
    pub received: u32,
    /// The receive requests of messages that have ended before their last packet.
    pub begun: VecDeque<Receive>,
    /// The send queue. Its stride is a basic block.
    pub send: Option<Ring>,
    /// Number of basic blocks executed.
    pub sent: u16,
    /// Number of basic blocks that the driver has posted.
    pub posted: u16,
    /// The time of the last doorbell.
    pub rung: Instant,
    /// Where the blocks of that doorbell begin, if the queue was empty before.
    pub rung_at: Option<u16>,
    /// The request in progress.
    pub current: Option<Send>,
    /// What the request in progress waits for.
    pub wait: Wait,
    /// Whether the queue pair is in the device's run queue.
    pub is_queued: bool,
}

/// A shared receive queue.
pub struct Srq {
    /// The ring.
    pub ring: Ring,
    /// Protection domain.
    pub pd: u32,
    /// Address of the doorbell record, in which the driver stores its counter.
    pub doorbell: u64,
    /// Its number in user space.
    pub user_index: u32,
    /// The completion queue (XRC).
    pub cqn: u32,
    /// The next request. The requests form a linked list.
    pub head: u16,
    /// Number of requests used.
    pub used: u16,
    /// The device sends an event when fewer requests are left. 0: no event.
    pub limit: u16,
}
