// SPDX-License-Identifier: GPL-2.0

//! Test GPU: device private memory with DMA aliases, on QEMU's `ivshmem-plain` device.
//!
//! The device has memory in a BAR and nothing else. This driver uses it as the video memory (VRAM)
//! of a GPU: it moves pages of a process there, where the CPU can not access them any more, and
//! brings them home when the CPU touches them or somebody asks for it. Peers, such as the [test
//! NIC](srctree/drivers/misc/p2ptest/p2ptest_nic.rs), can reach the pages by DMA where they are, as
//! far as there are BAR windows for them.
//!
//! It exists to test the peer-to-peer support of `hmm_range_fault()`. It differs from a real GPU:
//! the CPU reads and writes by user address and copies pages, through its mapping of the BAR; and
//! the BAR always shows all of the memory, so that a window is only the permission to be reached
//! there. Like a real driver's, its windows come from a pool that keeps idle ones, and the part of
//! the BAR that the pool may use can be made as small as one likes.
//!
//! - [`gpu::vram`]: the memory: access to it, which of it is free, and the aliases.
//! - [`gpu::windows`]: what the window pool needs to know about the BAR.
//! - [`gpu::moving`]: moving pages of a process to the memory and home, and making room.
//! - [`gpu::access`]: reading and writing by user address, and looking where pages are.
//! - [`gpu::file`]: `/dev/p2ptest_gpu<N>` and its calls, which
//!   [`include/uapi/linux/p2ptest.h`](srctree/include/uapi/linux/p2ptest.h) defines.
//!
//! # Where a page is
//!
//! Page `i` of the pagemap is the memory from byte `i * PAGE_SIZE` on, always. Memory is managed in
//! chunks of 2 MiB, which is also what a window covers and the size of a huge page. A chunk gets
//! its window when the first of its pages is taken, and gives it up when the last one is free: so
//! the alias of a page does not change while the page is in use, as HMM demands.
//!
//! # Teardown
//!
//! Files can outlive the device, so they reach [`gpu::Gpu`] through a [`Gate`](kernel::sync::gate).
//! When the device is unbound, this happens in this order:
//!
//! 1. The gate closes, and everybody leaves. There are no new migrations from now on.
//! 2. The pagemap moves all pages home. That invalidates all mappings of them that peers have.
//! 3. The pages are gone, and with them the callbacks: no alias is computed any more.
//! 4. The windows are unmapped, which is to say that the ranges of the BAR are unregistered.
//! 5. The BAR is unmapped.
//!
//! # Locks
//!
//! From the outside in:
//!
//! - The gate, for a whole call.
//! - [`gpu::Gpu::moving`], a mutex: everything that takes pages or changes the windows. User memory
//!   is not accessed while it is held, and it is never taken in a callback.
//! - The `mmap_lock`, and the page locks that migrations take.
//! - The mutex of the window pool.
//! - The spinlocks of the pagemap and of the windows. They are the only locks taken when a page is
//!   freed, which can happen under page table locks.

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
mod gpu;

use gpu::{
    file::{
        GpuFile,
        Slot, //
    },
    Gpu, //
};

/// The data of a bound device, ended from top to bottom: nobody can open the file, then nobody can
/// find the GPU, then everybody has left the GPU and it is gone.
#[pin_data]
struct GpuDriver<'bound> {
    #[pin]
    _misc: MiscDeviceRegistration<GpuFile>,
    _slot: Slot,
    _gpu: Gated<'bound, ForLt!(Gpu<'_>)>,
}

kernel::pci_device_table!(
    PCI_TABLE,
    <GpuDriver<'_> as pci::Driver>::IdInfo,
    [(pci::DeviceId::from_id(gpu::VENDOR, gpu::DEVICE), ())]
);

impl pci::Driver for GpuDriver<'_> {
    type IdInfo = ();
    type Data<'bound> = GpuDriver<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            pdev.enable_device_mem()?;
            // SAFETY: Nothing of this device is allocated or mapped for DMA yet.
            unsafe { pdev.dma_set_mask_and_coherent(DmaMask::new::<64>())? };

            // Negative for all of the memory.
            let window = u64::try_from(module_parameters::window.value()).ok();

            // SAFETY: It becomes part of the bus device private data below, which the driver core
            // drops before `'bound` ends; if that fails, it is dropped right away.
            let gpu = unsafe { Gated::new(Gpu::new(pdev, window)?)? };
            let slot = Slot::claim(gpu.gate())?;
            let options = MiscDeviceOptions { name: slot.name() };

            Ok(try_pin_init!(GpuDriver {
                _misc <- MiscDeviceRegistration::register(options),
                _slot: slot,
                _gpu: gpu,
            }? Error))
        })
    }
}

#[pin_data]
struct GpuModule {
    #[pin]
    _driver: driver::Registration<pci::Adapter<GpuDriver<'static>>>,
}

impl kernel::InPlaceModule for GpuModule {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Called once per load of the module, before the driver can use it.
        unsafe { gpu::file::SLOTS.init() };

        try_pin_init!(Self {
            _driver <- driver::Registration::new(
                <Self as kernel::ModuleMetadata>::NAME,
                module,
            ),
        })
    }
}

module! {
    type: GpuModule,
    name: "p2ptest_gpu",
    authors: ["The p2ptest authors"],
    description: "Peer-to-peer DMA test GPU (QEMU ivshmem)",
    license: "GPL",
    params: {
        window: i64 {
            default: -1,
            description: "MiB of video memory, from its start on, that peers may reach (-1: all)",
        },
    },
}
