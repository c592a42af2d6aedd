//! Test support: a device whose memory is files, and a driver for it.
//!
//! As in the real driver, commands create objects, requests are bytes in memory, and
//! doorbells are register writes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use tempfile::NamedTempFile;

use crate::device::command::Status;
use crate::device::queue::CQE;
use crate::device::{Definitions, Device, Options, Scheme};
use crate::layout::{Field, Headers, Layouts, idx_to_mkey};
use crate::memory::Memory;
use crate::witness::Witness;

mod traffic;
pub mod wired;

/// Size of host memory, which begins at address 0.
pub const RAM: u64 = 16 << 20;
/// Address and size of the peer's BAR.
pub const VRAM: u64 = 0x8_0000_0000;
pub const VRAM_SIZE: u64 = 1 << 20;
pub const PAGE: u64 = 4096;
/// The LID of a port.
pub const LID: u16 = 1;
/// The low byte of the keys here.
pub const LOW: u32 = 0x42;

/// The kernel in `LINUX_TREE`, or the one that the harness has built.
pub fn tree() -> PathBuf {
    let tree = std::env::var_os("LINUX_TREE").map(PathBuf::from);
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../build/linux");
    tree.unwrap_or_else(beside)
}

/// Returns the path of one of mlx5's headers.
pub fn header(name: &str) -> PathBuf {
    tree().join("include/linux/mlx5").join(name)
}

/// The headers of that kernel. Without a kernel, the tests that need headers print a warning
/// and pass.
pub fn headers() -> Option<&'static Headers> {
    static HEADERS: OnceLock<Option<Headers>> = OnceLock::new();
    let read = || {
        let dir = header("");
        if dir.exists() {
            return Some(Headers::read(&dir).unwrap());
        }
        // Not eprintln, as a passing test hides its output.
        let what = format!(
            "NOT TESTED: no kernel in {}: set LINUX_TREE\n",
            dir.display()
        );
        io::stderr().write_all(what.as_bytes()).unwrap();
        None
    };
    HEADERS.get_or_init(read).as_ref()
}

/// A completion queue, as the driver knows it.
#[derive(Clone, Debug)]
pub struct TestCq {
    pub cqn: u32,
    pub at: u64,
    pub doorbell: u64,
    pub log_size: u32,
    /// Bytes from one entry to the next. The completion is in the last 64 of them.
    pub stride: u64,
    pub consumed: u32,
}

impl TestCq {
    /// Address of an entry, by its number since the queue was created.
    pub fn entry(&self, number: u32) -> u64 {
        let index = u64::from(number) % (1 << self.log_size);
        self.at + (index + 1) * self.stride - CQE as u64
    }

    /// Whether the device has written this entry.
    pub fn is_owned(&self, number: u32, last: u64) -> bool {
        last >> 4 != 0xf && last & 1 == u64::from(number >> self.log_size) & 1
    }
}

/// A queue pair, as the driver knows it.
#[derive(Clone, Debug)]
pub struct TestQp {
    pub qpn: u32,
    pub receive_at: u64,
    pub send_at: u64,
    pub doorbell: u64,
    pub posted: u16,
    pub received: u16,
}

/// The contents of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    pub opcode: u64,
    pub syndrome: u64,
    pub counter: u64,
    pub bytes: u64,
    pub imm: u64,
    pub qpn: u64,
}

/// log2 of the blocks of a send queue, of the requests of a receive queue and of a
/// request's size.
pub const LOG_SEND: u64 = 4;
pub const LOG_RECEIVE: u64 = 4;
pub const LOG_STRIDE: u64 = 6;
const LOG_EQ: u64 = 7;

/// A structure of `size` bytes with these fields.
pub fn structure(size: usize, fields: &[(Field, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (field, value) in fields {
        field.set(&mut bytes, *value);
    }
    bytes
}

/// A device and its driver.
pub struct Testbed {
    pub device: Box<Device>,
    pub ram: File,
    pub vram: NamedTempFile,
    pub log: NamedTempFile,
    /// Eight bytes are written to it for each interrupt.
    pub interrupts: File,
    pub opcodes: HashMap<String, u64>,
    pub uar: u64,
    pub pd: u32,
    pub eqn: u32,
    eq_at: u64,
    eq_consumed: u32,
    next: u64,
}

impl Testbed {
    /// A device with memory, before the driver has done anything.
    pub fn bare(scheme: Scheme) -> Option<Self> {
        static DEFINITIONS: OnceLock<Definitions> = OnceLock::new();
        let headers = headers()?;
        let definitions = DEFINITIONS.get_or_init(|| Definitions::load(headers).unwrap());
        let ram = tempfile::tempfile().unwrap();
        ram.set_len(RAM).unwrap();
        let vram = NamedTempFile::new().unwrap();
        vram.as_file().set_len(VRAM_SIZE).unwrap();
        let log = NamedTempFile::new().unwrap();
        let memory = Memory::new(vec![vram.path().to_owned()]);
        let witness = Witness::new(Some(log.path())).unwrap();
        let options = Options {
            scheme,
            lid: LID,
            verbose: std::env::var_os("CONNECTX_VERBOSE").is_some(),
        };
        let device = Device::new(definitions.clone(), options, memory, witness);
        let mut device = Box::new(device);
        let interrupts = tempfile::tempfile().unwrap();
        device.irqs.set(0, Some(interrupts.try_clone().unwrap()));
        let opcodes = device.names.iter();
        let mut bench = Self {
            opcodes: opcodes.map(|(op, name)| (name.clone(), *op)).collect(),
            device,
            ram,
            vram,
            log,
            interrupts,
            uar: 0,
            pd: 0,
            eqn: 0,
            eq_at: 0,
            eq_consumed: 0,
            next: PAGE,
        };
        bench.map();
        bench.bus_master(true);
        Some(bench)
    }

    /// As [`Self::bare`], with what a driver needs before it creates queues: a UAR, a
    /// protection domain and an event queue for all events.
    pub fn new(scheme: Scheme) -> Option<Self> {
        let mut bench = Self::bare(scheme)?;
        bench.start();
        Some(bench)
    }

    pub fn start(&mut self) {
        let out = self.command("ALLOC_UAR", &[], |_, _| {}).unwrap();
        self.uar = self.device.l.alloc_uar.uar.get(&out);
        let out = self.command("ALLOC_PD", &[], |_, _| {}).unwrap();
        self.pd = self.device.l.alloc_pd.pd.get(&out) as u32;
        self.eq_at = self.alloc(64 << LOG_EQ);
        self.eq_consumed = 0;
        self.put(self.eq_at, &[0xff; 64 << LOG_EQ]);
        let pages = self.pages(self.eq_at, 64 << LOG_EQ);
        let set = |l: &Layouts, input: &mut [u8]| {
            let l = &l.create_eq_in;
            l.log_eq_size.set(input, LOG_EQ);
            for word in 0..4 {
                l.event_bitmask.nth(word).set(input, u64::MAX);
            }
        };
        let out = self.command("CREATE_EQ", &pages, set).unwrap();
        self.eqn = self.device.l.create_eq_out.eq_number.get(&out) as u32;
    }

    /// Maps memory as QEMU does.
    pub fn map(&mut self) {
        let memory = &mut self.device.memory;
        let ram = self.ram.try_clone().unwrap();
        memory.map(0, RAM, Some(ram), 0, true).unwrap();
        let vram = self.vram.reopen().unwrap();
        memory.map(VRAM, VRAM_SIZE, Some(vram), 0, true).unwrap();
    }

    pub fn bus_master(&mut self, on: bool) {
        self.device.config_write(4, &[if on { 6 } else { 2 }, 0]);
    }

    /// Resets the function as a guest does: by Initiate Function Level Reset.
    pub fn function_reset(&mut self) {
        let control = crate::pci::DEVICE_CONTROL as u64;
        let mut data = [0; 2];
        self.device.config.read(control, &mut data);
        assert!(
            self.device
                .config_write(control, &[data[0], data[1] | 0x80])
        );
    }

    /// Allocates host memory.
    pub fn alloc(&mut self, len: u64) -> u64 {
        let at = self.next;
        self.next += len.next_multiple_of(PAGE);
        assert!(self.next <= RAM, "the tests' memory is used up");
        at
    }

    pub fn put(&self, at: u64, data: &[u8]) {
        if at >= VRAM {
            self.vram.as_file().write_all_at(data, at - VRAM).unwrap();
        } else {
            self.ram.write_all_at(data, at).unwrap();
        }
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        if at >= VRAM {
            self.vram
                .as_file()
                .read_exact_at(&mut data, at - VRAM)
                .unwrap();
        } else {
            self.ram.read_exact_at(&mut data, at).unwrap();
        }
        data
    }

    fn put_u32(&self, at: u64, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    /// Addresses of the pages of a range.
    pub fn pages(&self, at: u64, len: u64) -> Vec<u64> {
        (at..at + len).step_by(PAGE as usize).collect()
    }

    /// Executes a command with a list at its end.
    pub fn command(
        &mut self,
        name: &str,
        list: &[u64],
        fill: impl FnOnce(&Layouts, &mut [u8]),
    ) -> Result<Vec<u8>, Status> {
        let opcode = self.opcodes[name];
        let (size_in, size_out) = self.device.sizes[&opcode];
        let mut input = vec![0; size_in.max(16)];
        self.device.l.mbox_in.opcode.set(&mut input, opcode);
        fill(&self.device.l, &mut input);
        input.extend(list.iter().flat_map(|number| number.to_be_bytes()));
        let mut out = vec![0; size_out.max(16)];
        self.device.execute(&input, &mut out)?;
        Ok(out)
    }

    pub fn cq(&mut self, log_size: u32) -> TestCq {
        self.cq_of(log_size, CQE as u64)
    }

    pub fn cq_of(&mut self, log_size: u32, stride: u64) -> TestCq {
        let len = stride << log_size;
        let at = self.alloc(len);
        let doorbell = self.alloc(PAGE);
        self.put(at, &vec![0xff; len as usize]);
        let pages = self.pages(at, len);
        let eqn = u64::from(self.eqn);
        let set = |l: &Layouts, input: &mut [u8]| {
            let context = &mut input[l.create_cq_in.cq_context.byte()..];
            l.cqc.log_cq_size.set(context, u64::from(log_size));
            l.cqc.cqe_sz.set(context, stride / CQE as u64 - 1);
            l.cqc.c_eqn_or_apu_element.set(context, eqn);
            l.cqc.dbr_addr.set(context, doorbell);
        };
        let out = self.command("CREATE_CQ", &pages, set).unwrap();
        TestCq {
            cqn: self.device.l.create_cq_out.cqn.get(&out) as u32,
            at,
            doorbell,
            log_size,
            stride,
            consumed: 0,
        }
    }

    /// Resizes a completion queue into a new buffer, which starts `offset` times 64 bytes into
    /// its first page. Returns the new queue. The caller moves the unread completions.
    pub fn resize(&mut self, cq: &TestCq, log_size: u32, offset: u64) -> Result<TestCq, Status> {
        let len = offset * 64 + (cq.stride << log_size);
        let at = self.alloc(len);
        self.put(at, &vec![0xff; len as usize]);
        let pages = self.pages(at, len);
        let (cqn, op_mod) = (u64::from(cq.cqn), self.device.c.misc.cq_resize);
        let set = |l: &Layouts, input: &mut [u8]| {
            l.mbox_in.op_mod.set(input, op_mod);
            l.modify_cq.cqn.set(input, cqn);
            let context = &mut input[l.modify_cq.cq_context.byte()..];
            l.cqc.log_cq_size.set(context, u64::from(log_size));
            l.cqc.page_offset.set(context, offset);
        };
        self.command("MODIFY_CQ", &pages, set)?;
        Ok(TestCq {
            at: at + offset * 64,
            log_size,
            ..cq.clone()
        })
    }

    /// Creates a queue pair in state Reset. `set` may change the context last.
    pub fn qp(&mut self, cq: &TestCq, set: impl FnOnce(&Layouts, &mut [u8])) -> TestQp {
        let receive = 1 << (LOG_RECEIVE + LOG_STRIDE);
        let len = receive + (64 << LOG_SEND);
        let receive_at = self.alloc(len);
        let doorbell = self.alloc(PAGE);
        let pages = self.pages(receive_at, len);
        let (uar, pd, rc) = (self.uar, self.pd, self.device.c.qp_st.rc);
        let cqn = u64::from(cq.cqn);
        let fill = |l: &Layouts, input: &mut [u8]| {
            let q = &l.qpc;
            let context = &mut input[l.create_qp_in.qpc.byte()..];
            for (field, value) in [
                (q.st, rc),
                (q.pd, u64::from(pd)),
                (q.uar_page, uar),
                (q.log_rq_size, LOG_RECEIVE),
                (q.log_rq_stride, LOG_STRIDE - 4),
                (q.log_sq_size, LOG_SEND),
                (q.cqn_snd, cqn),
                (q.cqn_rcv, cqn),
                (q.dbr_addr, doorbell),
            ] {
                field.set(context, value);
            }
            set(l, context);
        };
        let out = self.command("CREATE_QP", &pages, fill).unwrap();
        TestQp {
            qpn: self.device.l.create_qp_out.qpn.get(&out) as u32,
            receive_at,
            send_at: receive_at + receive,
            doorbell,
            posted: 0,
            received: 0,
        }
    }

    /// Creates two queue pairs. The second one receives through a shared queue of 2^log_size
    /// requests of 32 bytes at `at`. Also returns the queue's number.
    pub fn shared(
        &mut self,
        cqs: [&TestCq; 2],
        (at, doorbell): (u64, u64),
        log_size: u64,
        limit: u64,
    ) -> (TestQp, TestQp, u64) {
        let pd = u64::from(self.pd);
        let set = |l: &Layouts, input: &mut [u8]| {
            let wq = &mut input[l.create_rmp_in.wq.byte()..];
            for (field, value) in [
                (l.wq.pd, pd),
                (l.wq.dbr_addr, doorbell),
                (l.wq.log_wq_sz, log_size),
                (l.wq.log_wq_stride, 5),
                (l.wq.lwm, limit),
            ] {
                field.set(wq, value);
            }
        };
        let out = self.command("CREATE_RMP", &[at], set).unwrap();
        let srqn = self.device.l.create_rmp_out.rmpn.get(&out);
        let kind = self.device.c.misc.srq_rq;
        let a = self.qp(cqs[0], |_, _| {});
        let b = self.qp(cqs[1], |l, context| {
            l.qpc.rq_type.set(context, kind);
            l.qpc.srqn.set(context, srqn);
        });
        self.connect(&a, b.qpn, 0);
        self.connect(&b, a.qpn, 0);
        (a, b, srqn)
    }

    /// Changes a queue pair's state by the command with this name.
    pub fn modify(
        &mut self,
        name: &str,
        qp: &TestQp,
        fields: &[(Field, u64)],
    ) -> Result<(), Status> {
        let qpn = u64::from(qp.qpn);
        let pd = u64::from(self.pd);
        let set = |l: &Layouts, input: &mut [u8]| {
            l.modify_qp.qpn.set(input, qpn);
            if input.len() > l.modify_qp.qpc.byte() {
                let context = &mut input[l.modify_qp.qpc.byte()..];
                l.qpc.pd.set(context, pd);
                for (field, value) in fields {
                    field.set(context, *value);
                }
            }
        };
        self.command(name, &[], set).map(drop)
    }

    /// Destroys a queue pair.
    pub fn destroy(&mut self, qp: &TestQp) {
        let qpn = u64::from(qp.qpn);
        let set = |l: &Layouts, input: &mut [u8]| l.destroy_qp.qpn.set(input, qpn);
        self.command("DESTROY_QP", &[], set).unwrap();
    }

    /// Connects a queue pair to another one of this device, and takes it to state RTS.
    pub fn connect(&mut self, qp: &TestQp, to: u32, rnr_retry: u64) {
        self.connect_to(qp, (self.device.options.lid, to), rnr_retry);
    }

    /// As [`Self::connect`], to a queue pair behind the port with this LID.
    pub fn connect_to(&mut self, qp: &TestQp, (lid, to): (u16, u32), rnr_retry: u64) {
        let q = self.device.l.qpc;
        let rights = [(q.rre, 1), (q.rwe, 1), (q.rae, 1)];
        self.modify("RST2INIT_QP", qp, &rights).unwrap();
        let to = [(q.remote_qpn, u64::from(to)), (q.rlid, u64::from(lid))];
        self.modify("INIT2RTR_QP", qp, &to).unwrap();
        let retry = (q.rnr_retry, rnr_retry);
        self.modify("RTR2RTS_QP", qp, &[retry]).unwrap();
    }

    /// Creates a key. `set` may change the context last.
    pub fn key(
        &mut self,
        mode: u64,
        (start, len, log_page_size): (u64, u64, u64),
        entries: &[u64],
        set: impl FnOnce(&Layouts, &mut [u8]),
    ) -> u32 {
        let pd = u64::from(self.pd);
        let octwords = (entries.len() as u64).div_ceil(2);
        let fill = |l: &Layouts, input: &mut [u8]| {
            let at = l.create_mkey_in.translations_octword_actual_size;
            at.set(input, octwords);
            let context = &mut input[l.create_mkey_in.context.byte()..][..l.mkc.size];
            let l_ = &l.mkc;
            for right in [l_.a, l_.rw, l_.rr, l_.lw, l_.lr, l_.umr_en] {
                right.set(context, 1);
            }
            for (field, value) in [
                (l_.access_mode_1_0, mode & 3),
                (l_.access_mode_4_2, mode >> 2),
                (l_.mkey_7_0, u64::from(LOW)),
                (l_.pd, pd),
                (l_.start_addr, start),
                (l_.len, len),
                (l_.translations_octword_size, octwords),
                (l_.log_page_size, log_page_size),
            ] {
                field.set(context, value);
            }
            set(l, context);
        };
        let out = self.command("CREATE_MKEY", entries, fill).unwrap();
        idx_to_mkey(
            self.device.l.create_mkey_out.mkey_index.get(&out) as u32,
            LOW,
        )
    }

    /// Creates a key of these 4 KiB pages, all readable and writable.
    pub fn mtt(&mut self, start: u64, pages: &[u64]) -> u32 {
        let entries: Vec<u64> = pages.iter().map(|page| page | 3).collect();
        let mode = self.device.c.mode.mtt;
        self.key(
            mode,
            (start, pages.len() as u64 * PAGE, 12),
            &entries,
            |_, _| {},
        )
    }

    pub fn interrupts(&self) -> u64 {
        self.interrupts.metadata().unwrap().len() / 8
    }

    /// The witness's log lines so far.
    pub fn lines(&mut self) -> Vec<serde_json::Value> {
        self.device.witness.flush();
        let text = std::fs::read_to_string(self.log.path()).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Two connected queue pairs, each with its own completion queue.
pub struct Pair {
    pub a: TestQp,
    pub b: TestQp,
    pub a_cq: TestCq,
    pub b_cq: TestCq,
}

impl Pair {
    pub fn new(bench: &mut Testbed) -> Self {
        let (a_cq, b_cq) = (bench.cq(6), bench.cq(6));
        let (a, b) = (bench.qp(&a_cq, |_, _| {}), bench.qp(&b_cq, |_, _| {}));
        // 7: unlimited retries.
        bench.connect(&a, b.qpn, 7);
        bench.connect(&b, a.qpn, 7);
        Self { a, b, a_cq, b_cq }
    }
}
