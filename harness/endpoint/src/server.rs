//! The vfio-user server code that every device model shares.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process;

use anyhow::{Context, Result, bail};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerRegion};

use crate::config::CONFIG_SIZE;
use crate::irq::Irqs;
use crate::memory::Memory;
use crate::proxy::Proxy;

/// The kind and number of a device's interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// `VFIO_PCI_MSI_IRQ_INDEX` or another one.
    pub index: u32,
    /// Number of vectors.
    pub count: u32,
}

impl Vectors {
    /// Sets the event files of vectors, as QEMU requests.
    pub fn set(
        self,
        irqs: &mut Irqs,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) {
        if index != self.index {
            return;
        }
        if count == 0 && flags & VFIO_IRQ_SET_DATA_NONE != 0 {
            irqs.clear();
            return;
        }
        let mut files = files.into_iter();
        for vector in start..start.saturating_add(count).min(self.count) {
            irqs.set(vector, files.next());
        }
    }
}

/// Listens on `socket`. `bars`: the number and the size of each BAR.
pub fn listen(socket: &Path, bars: &[(u32, u64)], vectors: Vectors) -> Result<Server> {
    check_free(socket)?;
    let (irqs, regions) = describe(bars, vectors);
    Server::new(socket, true, irqs, regions)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("cannot listen at {}", socket.display()))
}

/// Listens with a proxy in front of the server. The proxy can also send requests to QEMU.
pub fn listen_by_proxy(
    socket: &Path,
    bars: &[(u32, u64)],
    vectors: Vectors,
) -> Result<(Server, Proxy)> {
    check_free(socket)?;
    let (irqs, regions) = describe(bars, vectors);
    let (proxy, behind) = Proxy::new(socket)?;
    let server = Server::from_owned_fd(behind, true, irqs, regions);
    Ok((server, proxy))
}

fn check_free(socket: &Path) -> Result<()> {
    if socket.exists() {
        bail!(
            "{} exists: another model listens there, or has left it; remove it if none does",
            socket.display()
        );
    }
    Ok(())
}

fn describe(bars: &[(u32, u64)], vectors: Vectors) -> (Vec<IrqInfo>, Vec<ServerRegion>) {
    let region = |index: u32| {
        let bar = bars.iter().find(|(bar, _)| *bar == index);
        let size = match index {
            VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
            _ => bar.map_or(0, |(_, size)| *size),
        };
        let flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                index,
                size,
                flags: if size == 0 { 0 } else { flags },
                ..Default::default()
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        }
    };
    let irq = |index: u32| {
        let is_there = index == vectors.index;
        IrqInfo {
            index,
            flags: if is_there {
                VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE
            } else {
                0
            },
            count: if is_there { vectors.count } else { 0 },
        }
    };
    let irqs = (0..VFIO_PCI_NUM_IRQS).map(irq).collect();
    let regions = (0..VFIO_PCI_NUM_REGIONS).map(region).collect();
    (irqs, regions)
}

/// The exit status of a model that refuses to serve a machine whose RAM is not shared.
const NOT_SHARED: i32 = 3;

/// Maps a part of the machine's memory for DMA.
///
/// RAM begins at address 0, and QEMU maps it first. If RAM is not shared, the model cannot
/// serve this machine and exits: `vfio_user` would only return an error, which QEMU ignores.
/// No IOMMU translates at that point, and Linux does not map address 0 later. ROM is not
/// shared either, but it is not writable.
pub fn dma_map(
    model: &str,
    memory: &mut Memory,
    flags: DmaMapFlags,
    offset: u64,
    address: u64,
    size: u64,
    file: Option<File>,
) -> io::Result<()> {
    let is_writable = flags.contains(DmaMapFlags::WRITE);
    if address == 0 && is_writable && file.is_none() {
        eprintln!(
            "{model}: RAM is not shared memory: give QEMU \
             -object memory-backend-memfd,id=ram,share=on,size=... -machine memory-backend=ram"
        );
        process::exit(NOT_SHARED);
    }
    memory.map(address, size, file, offset, is_writable)
}

/// Unmaps a range that QEMU takes back.
pub fn dma_unmap(memory: &mut Memory, flags: DmaUnmapFlags, address: u64, size: u64) {
    if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
        memory.unmap(0, u64::MAX);
        // A size of u64::MAX leaves out the last byte.
        memory.unmap(u64::MAX, 1);
    } else {
        memory.unmap(address, size);
    }
}
