// SPDX-License-Identifier: GPL-2.0

//! Test NIC: DMA to the memory of a process by user address, on QEMU's `edu` device.
//!
//! It does what an RDMA NIC does with on-demand paging, as far as the kernel is concerned. A
//! process registers a range of its addresses, a *memory region*, without anything being pinned.
//! When a process starts a transfer, the NIC faults the pages in, asking for peer addresses where
//! they are in the memory of another device, maps them for DMA, and reuses the mappings until the
//! kernel invalidates them. The NIC has no network: it copies to and from the caller's buffer. The
//! bytes pass through a buffer inside the device in between, so it really was the device which
//! accessed the memory.
//!
//! It exists to test the peer-to-peer support of `hmm_range_fault()`. It is not an example of a
//! fast driver: the device copies 2 or 4 KiB in 100 ms.
//!
//! - [`nic::edu`]: the device, its registers and its DMA engine.
//! - [`nic::region`]: memory regions, their page tables, faults and invalidations.
//! - [`nic::transfer`]: reading and writing a region.
//! - [`nic::pinned`]: registered buffers, which the NIC copies as a card without page faults does.
//! - [`nic::file`]: `/dev/p2ptest_nic<N>` and its calls, which
//!   [`include/uapi/linux/p2ptest.h`](srctree/include/uapi/linux/p2ptest.h) defines.
//!
//! # Lifetimes
//!
//! [`nic::Nic`] has everything that ends when the device is unbound: the registers and all regions
//! of all processes. Files can outlive it, so they reach it through a [`Gate`](kernel::sync::gate).
//! A region is ended by the process or by unbinding the device, whichever is first. That removes
//! its notifier, unmaps its pages, and frees its page table, in this order.
//!
//! # Locks
//!
//! From the outside in:
//!
//! - The gate, for a whole call.
//! - The engine's mutex, for a chunk of a transfer. Nobody who holds it touches user memory.
//! - A region's mutex, the *user lock* in terms of [`kernel::mm::notifier`]. Held while its pages
//!   are mapped and while the device uses them, so an invalidation, which takes it, waits for the
//!   DMA in flight. As invalidations happen in memory reclaim, nobody who holds it may reclaim.
//!
//! - Or a registered buffer's mutex, which is the same for [`kernel::mm::hmm::registration`].
//!
//! The mutexes of the lists of both are not held together with these.

use kernel::{
    device::Core,
    dma::{
        Device,
        DmaMask, //
    },
    driver,
    miscdevice::{
        MiscDeviceOptions,
        MiscDeviceRegistration, //
    },
    pci,
    prelude::*,
    sync::gate::Gated,
    types::ForLt, //
};

#[macro_use]
mod files;
mod nic;

use nic::{
    file::{
        NicFile,
        Slot, //
    },
    Nic, //
};

/// The data of a bound device, ended from top to bottom: nobody can open the file, then nobody can
/// find the NIC, then everybody has left the NIC and it is gone.
#[pin_data]
struct NicDriver<'bound> {
    #[pin]
    _misc: MiscDeviceRegistration<NicFile>,
    _slot: Slot,
    _nic: Gated<'bound, ForLt!(Nic<'_>)>,
}

kernel::pci_device_table!(
    PCI_TABLE,
    <NicDriver<'_> as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(nic::edu::VENDOR, nic::edu::DEVICE),
        ()
    )]
);

impl pci::Driver for NicDriver<'_> {
    type IdInfo = ();
    type Data<'bound> = NicDriver<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let bits = module_parameters::dma_bits.value();
            let mask = DmaMask::try_new(bits)?;
            let max_transfer = module_parameters::max_transfer.value() as usize;

            pdev.enable_device_mem()?;
            // SAFETY: Nothing of this device is allocated or mapped for DMA yet.
            unsafe { pdev.dma_set_mask_and_coherent(mask)? };

            // SAFETY: It becomes part of the bus device private data below, which the driver core
            // drops before `'bound` ends; if that fails, it is dropped right away.
            let nic = unsafe { Gated::new(Nic::new(pdev, max_transfer))? };
            let slot = Slot::claim(nic.gate())?;
            let options = MiscDeviceOptions { name: slot.name() };

            // Not before a transfer of a previous driver has come to nothing, see `Engine::new()`.
            pdev.set_master();

            Ok(try_pin_init!(NicDriver {
                _misc <- MiscDeviceRegistration::register(options),
                _slot: slot,
                _nic: nic,
            }? Error))
        })
    }
}

#[pin_data]
struct NicModule {
    #[pin]
    _driver: driver::Registration<pci::Adapter<NicDriver<'static>>>,
}

impl kernel::InPlaceModule for NicModule {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Called once per load of the module, before the driver can use it.
        unsafe { nic::file::SLOTS.init() };

        try_pin_init!(Self {
            _driver <- driver::Registration::new(
                <Self as kernel::ModuleMetadata>::NAME,
                module,
            ),
        })
    }
}

module! {
    type: NicModule,
    name: "p2ptest_nic",
    authors: ["The p2ptest authors"],
    description: "Peer-to-peer DMA test NIC (QEMU edu)",
    license: "GPL",
    params: {
        dma_bits: u32 {
            default: 64,
            description: "Bits of a DMA address that the device supports, like its dma_mask",
        },
        max_transfer: u32 {
            default: 2048,
            description: "Bytes that it transfers at a time, up to 4096 (QEMU before 10.0: 2048)",
        },
    },
}
