// SPDX-License-Identifier: GPL-2.0

//! QEMU's `edu` device: registers and DMA engine.
//!
//! The engine copies between memory and a buffer inside the device, one transfer at a time, each
//! taking 100 ms. The CPU cannot see the buffer. So to get the bytes in or out, there is another
//! transfer, to or from a page that the driver owns.
//!
//! Reference: <https://www.qemu.org/docs/master/specs/edu.html>

use kernel::{
    device::Bound,
    dma::{
        Coherent,
        DmaAddress, //
    },
    io::{
        io_project,
        poll::read_poll_timeout,
        register,
        Io, //
    },
    mm::hmm::dma::Mapping,
    pci,
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    },
};

pub(crate) const VENDOR: pci::Vendor = pci::Vendor::from_raw(0x1234);
pub(crate) const DEVICE: u32 = 0x11e8;

mod regs {
    use super::*;

    register! {
        /// Identification.
        pub(super) ID(u32) @ 0x00 {
            31:24 major;
            23:16 minor;
            7:0 magic;
        }

        /// Where a transfer reads: an address in memory, or `BUFFER` plus an offset.
        pub(super) DMA_SRC(u64) @ 0x80 {
            63:0 addr;
        }

        /// Where a transfer writes: an address in memory, or `BUFFER` plus an offset.
        pub(super) DMA_DST(u64) @ 0x88 {
            63:0 addr;
        }

        /// How many bytes a transfer copies.
        pub(super) DMA_COUNT(u32) @ 0x90 {
            31:0 bytes;
        }

        /// Starts a transfer, and tells when it is complete.
        pub(super) DMA_CMD(u32) @ 0x98 {
            /// Written 1 to start; reads 0 when complete.
            0:0 run;
            /// Whether memory is the destination and the buffer the source.
            1:1 to_memory;
        }
    }

    /// Size of the part of the BAR that is used.
    pub(super) const END: usize = 0xa0;

    /// Value of `ID.magic`.
    pub(super) const MAGIC: u32 = 0xed;

    /// The device's own address of its buffer.
    pub(super) const BUFFER: u64 = 0x40000;

    register! {
        /// The command register in PCI configuration space.
        pub(super) PCI_COMMAND(u16) @ 0x4 {
            2:2 bus_master;
        }
    }
}

/// Size of the buffer in bytes.
const BUFFER_SIZE: usize = 4096;

/// How long a transfer takes.
const TRANSFER_TIME: Delta = Delta::from_millis(100);
/// How long to wait before looking again whether a transfer that takes longer is complete.
const POLL_TIME: Delta = Delta::from_millis(5);
/// How long a transfer may take until the device is given up.
const TIMEOUT: Delta = Delta::from_secs(5);

/// The DMA engine.
///
/// Whoever has `&mut Engine` has the engine and the buffer. A function that starts a transfer
/// returns when it is complete, or can never complete because the device has lost access to the
/// bus.
pub(crate) struct Engine<'bound> {
    pdev: &'bound pci::Device<Bound>,
    bar: pci::Bar<'bound, { regs::END }>,
    page: Coherent<[u8]>,
    max_transfer: usize,
    /// The device does not react any more.
    failed: bool,
}

impl<'bound> Engine<'bound> {
    /// `max_transfer`: how many bytes of the buffer to use.
    pub(crate) fn new(pdev: &'bound pci::Device<Bound>, max_transfer: usize) -> Result<Self> {
        if !(1..=BUFFER_SIZE).contains(&max_transfer) {
            dev_err!(pdev, "max_transfer is not in 1..={}\n", BUFFER_SIZE);
            return Err(EINVAL);
        }

        let bar = pdev.iomap_region_sized::<{ regs::END }>(0, c"p2ptest_nic")?;

        if bar.read(regs::ID).magic() != regs::MAGIC {
            dev_err!(pdev, "not an edu device\n");
            return Err(ENODEV);
        }

        let engine = Self {
            pdev,
            bar,
            page: Coherent::zeroed_slice(pdev.as_ref(), BUFFER_SIZE, GFP_KERNEL)?,
            max_transfer,
            failed: false,
        };

        // A previous driver may have given the device up with a transfer pending.
        engine.wait()?;
        Ok(engine)
    }

    /// Returns how many bytes a transfer can copy.
    pub(crate) fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// Copies `data` to the device's buffer.
    pub(crate) fn load(&mut self, data: &[u8]) -> Result {
        let page = io_project!(self.page, [try: ..data.len()]);
        page.copy_from_slice(data);
        self.transfer(page.dma_address(), regs::BUFFER, data.len(), false)
    }

    /// Copies from the device's buffer to `data`.
    pub(crate) fn unload(&mut self, data: &mut [u8]) -> Result {
        self.transfer(
            regs::BUFFER,
            io_project!(self.page, [try: ..data.len()]).dma_address(),
            data.len(),
            true,
        )?;
        io_project!(self.page, [try: ..data.len()]).copy_to_slice(data);
        Ok(())
    }

    /// Copies `len` bytes from `offset` in a page of a process to the device's buffer.
    pub(crate) fn read(&mut self, from: &Mapping<'_>, offset: usize, len: usize) -> Result {
        self.transfer(from.addr() + offset as u64, regs::BUFFER, len, false)
    }

    /// Copies `len` bytes from the device's buffer to `offset` in a page of a process.
    pub(crate) fn write(&mut self, to: &Mapping<'_>, offset: usize, len: usize) -> Result {
        if !to.writable() {
            return Err(EPERM);
        }
        self.transfer(regs::BUFFER, to.addr() + offset as u64, len, true)
    }

    /// Copies `len` bytes from an address that the device has to the device's buffer.
    pub(crate) fn fetch(&mut self, from: DmaAddress, len: usize) -> Result {
        self.transfer(from, regs::BUFFER, len, false)
    }

    /// Copies `len` bytes from the device's buffer to an address that the device has.
    pub(crate) fn store(&mut self, to: DmaAddress, len: usize) -> Result {
        self.transfer(regs::BUFFER, to, len, true)
    }

    fn transfer(&mut self, src: u64, dst: u64, len: usize, to_memory: bool) -> Result {
        if self.failed {
            return Err(EIO);
        }
        if len == 0 || len > self.max_transfer {
            return Err(EINVAL);
        }

        self.bar
            .try_write_reg(regs::DMA_SRC::zeroed().with_addr(src))?;
        self.bar
            .try_write_reg(regs::DMA_DST::zeroed().with_addr(dst))?;
        self.bar
            .write_reg(regs::DMA_COUNT::zeroed().with_bytes(len as u32));
        self.bar.write_reg(
            regs::DMA_CMD::zeroed()
                .with_run(true)
                .with_to_memory(to_memory),
        );

        fsleep(TRANSFER_TIME);
        self.wait().inspect_err(|_| self.give_up())
    }

    /// Waits until no transfer is pending.
    ///
    /// The registers of a device that does not answer are no evidence: they read as ones, and with
    /// QEMU as zeros.
    fn wait(&self) -> Result {
        read_poll_timeout(
            || Ok(self.bar.read(regs::DMA_CMD)),
            |cmd| !bool::from(cmd.run()),
            POLL_TIME,
            TIMEOUT,
        )
        .map_err(|_| EIO)?;

        if self.bar.read(regs::ID).magic() != regs::MAGIC {
            return Err(EIO);
        }
        Ok(())
    }

    /// Takes the bus away from the device, so that a pending transfer cannot reach memory which may
    /// have another use soon.
    fn give_up(&mut self) {
        dev_err!(self.pdev, "DMA does not complete, giving up\n");

        self.failed = true;
        let config = self.pdev.config_space();
        config.update(regs::PCI_COMMAND, |cmd| cmd.with_bus_master(false));
        // Reading it back makes sure that the device got it.
        let _ = config.read(regs::PCI_COMMAND);
    }
}
