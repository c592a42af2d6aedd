//! vfio-user: what QEMU asks. All is done before the answer, so there is one thread.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::Result;
use endpoint::server;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR1_REGION_INDEX, VFIO_PCI_BAR3_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend};

use crate::gpu::Gpu;
use crate::pci::{BAR0_SIZE, BAR2_SIZE, VECTORS};

/// Listens. `bar1`: its size.
pub fn listen(socket: &Path, bar1: u64) -> Result<Server> {
    let bars = [
        (VFIO_PCI_BAR0_REGION_INDEX, BAR0_SIZE),
        (VFIO_PCI_BAR1_REGION_INDEX, bar1),
        (VFIO_PCI_BAR3_REGION_INDEX, BAR2_SIZE),
    ];
    server::listen(socket, &bars, VECTORS)
}

/// What nouveau calls the BAR of a region: BAR1 is of 64 bits, and BAR2 comes after it.
fn bar(region: u32) -> &'static str {
    match region {
        VFIO_PCI_BAR0_REGION_INDEX => "BAR0",
        VFIO_PCI_BAR1_REGION_INDEX => "BAR1",
        _ => "BAR2",
    }
}

/// The device, as vfio-user sees it.
pub struct Served(pub Gpu);

impl ServerBackend for Served {
    fn region_read(&mut self, region: u32, at: u64, data: &mut [u8]) -> io::Result<()> {
        let gpu = &mut self.0;
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => gpu.config.read(at, data),
            _ if gpu.is_silent(bar(region), at) => data.fill(0xff),
            VFIO_PCI_BAR0_REGION_INDEX => gpu.read(at, data),
            VFIO_PCI_BAR1_REGION_INDEX => gpu.bar1_read(at, data),
            VFIO_PCI_BAR3_REGION_INDEX => gpu.bar2_read(at, data),
            _ => data.fill(0xff),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, at: u64, data: &[u8]) -> io::Result<()> {
        let gpu = &mut self.0;
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => gpu.config_write(at, data),
            _ if gpu.is_silent(bar(region), at) => {}
            VFIO_PCI_BAR0_REGION_INDEX => gpu.write(at, data),
            VFIO_PCI_BAR1_REGION_INDEX => gpu.bar1_write(at, data),
            VFIO_PCI_BAR3_REGION_INDEX => gpu.bar2_write(at, data),
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let memory = &mut self.0.memory;
        server::dma_map("pascal", memory, flags, offset, address, size, file)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        server::dma_unmap(&mut self.0.memory, flags, address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.0.reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        VECTORS.set(&mut self.0.irqs, index, flags, start, count, files);
        Ok(())
    }
}
