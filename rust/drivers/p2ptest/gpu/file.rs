// SPDX-License-Identifier: GPL-2.0

//! The file `/dev/p2ptest_gpu<N>` and its calls.

use super::{
    access::Reached,
    Gpu,
    CHUNK_SIZE, //
};
use core::ops::Range;
use kernel::{
    current,
    fs::File,
    ioctl::{
        _IOC_SIZE,
        _IOR,
        _IOW,
        _IOWR, //
    },
    miscdevice::{
        MiscDevice,
        MiscDeviceRegistration, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        gate::Gate,
        Arc, //
    },
    transmute::{
        AsBytes,
        FromBytes, //
    },
    types::ForLt,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

type GpuGate = Gate<ForLt!(Gpu<'_>)>;

const NAMES: [&CStr; 4] = [
    c"p2ptest_gpu0",
    c"p2ptest_gpu1",
    c"p2ptest_gpu2",
    c"p2ptest_gpu3",
];

kernel::sync::global_lock! {
    /// The GPUs by number: what an open of a file finds.
    // SAFETY: Initialised when the module is.
    pub(crate) unsafe(uninit) static SLOTS: Mutex<[Option<Arc<GpuGate>>; 4]> = [const { None }; 4];
}

/// The number of a GPU.
///
/// # Invariants
///
/// `SLOTS` has the GPU at index `.0`, which is less than 4, and nobody else has this number.
pub(crate) struct Slot(usize);

impl Slot {
    /// Gives a GPU the lowest number that is free.
    pub(crate) fn claim(gate: Arc<GpuGate>) -> Result<Self> {
        let mut slots = SLOTS.lock();
        let index = slots.iter().position(Option::is_none).ok_or(ENOSPC)?;

        slots[index] = Some(gate);
        // INVARIANT: The slot was free, and is taken now.
        Ok(Self(index))
    }

    /// Returns the name of the file.
    pub(crate) fn name(&self) -> &'static CStr {
        NAMES[self.0]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let gate = SLOTS.lock()[self.0].take();
        drop(gate);
    }
}

/// Defines a type for a C structure that is copied from and to user space.
macro_rules! argument {
    ($name:ident, $c:ident) => {
        #[repr(transparent)]
        struct $name(uapi::$c);

        // SAFETY: A structure of integers; all bit patterns are valid.
        unsafe impl FromBytes for $name {}
        // SAFETY: It has neither padding, which the header makes explicit, nor interior mutability.
        unsafe impl AsBytes for $name {}
    };
}

argument!(Info, p2ptest_gpu_info);
argument!(Migrate, p2ptest_gpu_migrate);
argument!(Access, p2ptest_gpu_access);
argument!(Lookup, p2ptest_gpu_lookup);
argument!(Window, p2ptest_gpu_window);

const INFO: u32 = _IOR::<Info>(uapi::P2PTEST_GPU_IOC_MAGIC, 0);
const MIGRATE: u32 = _IOWR::<Migrate>(uapi::P2PTEST_GPU_IOC_MAGIC, 1);
const ACCESS: u32 = _IOWR::<Access>(uapi::P2PTEST_GPU_IOC_MAGIC, 2);
const LOOKUP: u32 = _IOW::<Lookup>(uapi::P2PTEST_GPU_IOC_MAGIC, 3);
const WINDOW: u32 = _IOW::<Window>(uapi::P2PTEST_GPU_IOC_MAGIC, 4);
const INJECT_BAD_ALIAS: u32 = _IOW::<u32>(uapi::P2PTEST_GPU_IOC_MAGIC, 5);

/// An open file.
pub(crate) struct GpuFile {
    gate: Arc<GpuGate>,
}

#[vtable]
impl MiscDevice for GpuFile {
    type Ptr = KBox<Self>;

    fn open(_file: &File, misc: &MiscDeviceRegistration<Self>) -> Result<KBox<Self>> {
        let name = misc.device().name();
        let index = NAMES.iter().position(|n| *n == name).ok_or(ENODEV)?;
        let gate = SLOTS.lock()[index].clone().ok_or(ENODEV)?;

        Ok(KBox::new(Self { gate }, GFP_KERNEL)?)
    }

    fn ioctl(this: &Self, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        let arg = UserSlice::new(UserPtr::from_addr(arg), _IOC_SIZE(cmd));

        let call = match cmd {
            INFO => Self::info,
            MIGRATE => Self::migrate,
            ACCESS => Self::access,
            LOOKUP => Self::lookup,
            WINDOW => Self::window,
            INJECT_BAD_ALIAS => Self::inject_bad_alias,
            _ => return Err(ENOTTY),
        };
        this.gate
            .with(|gpu| call(this, gpu.get_ref(), arg))
            .ok_or(ENODEV)??;
        Ok(0)
    }
}

impl GpuFile {
    /// Tells a call that takes long whether to go on.
    fn go_on(&self) -> Result {
        if !self.gate.is_open() {
            Err(ENODEV)
        } else if current!().signal_pending() {
            Err(EINTR)
        } else {
            Ok(())
        }
    }

    fn info(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let window = gpu.map.pool().range();
        let usage = gpu.map.pool().usage();
        let used = gpu.map.nr_in_use();
        let counters = &gpu.map.counters;

        arg.writer().write(&Info(uapi::p2ptest_gpu_info {
            vram_size: (gpu.map.nr_pages() * PAGE_SIZE) as u64,
            window_start: window.start,
            window_size: window.end - window.start,
            chunk_size: CHUNK_SIZE as u64,
            pages_free: (gpu.map.nr_pages() - used) as u64,
            pages_used: used as u64,
            migrated_in: counters.migrated_in.get(),
            migrated_out: counters.migrated_out.get(),
            cpu_faults: counters.cpu_faults.get(),
            evicted: counters.evicted.get(),
            windows_used: usage.used as u64,
            windows_idle: usage.idle as u64,
        }))
    }

    fn migrate(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let (mut reader, mut writer) = arg.reader_writer();
        let mut migrate: Migrate = reader.read()?;
        let range = pages(migrate.0.addr, migrate.0.len)?;
        if migrate.0.pad != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let mm = task.mm().ok_or(EPERM)?;
        let moved = match migrate.0.dir {
            uapi::P2PTEST_GPU_TO_VRAM => gpu.to_vram(mm, range, &|| self.go_on())?,
            uapi::P2PTEST_GPU_TO_HOST => gpu.to_host(mm, range, &|| self.go_on())?,
            _ => return Err(EINVAL),
        };

        migrate.0.pages = moved as u64;
        writer.write(&migrate)
    }

    fn access(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let (mut reader, mut writer) = arg.reader_writer();
        let mut access: Access = reader.read()?;
        let range = bytes(access.0.addr, access.0.len)?;
        if access.0.pad != 0 || access.0.flags & !uapi::P2PTEST_GPU_ACCESS_WRITE != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let mm = task.mm().ok_or(EPERM)?;
        let mut reached = Reached::default();
        gpu.access(
            mm,
            range,
            UserPtr::from_addr(access.0.buf.try_into()?),
            access.0.flags & uapi::P2PTEST_GPU_ACCESS_WRITE != 0,
            &mut reached,
            &|| self.go_on(),
        )?;

        access.0.vram_pages = reached.vram_pages;
        access.0.host_pages = reached.host_pages;
        writer.write(&access)
    }

    fn lookup(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let lookup: Lookup = arg.reader().read()?;
        let range = pages(lookup.0.addr, lookup.0.len)?;
        let locs = UserPtr::from_addr(lookup.0.locs.try_into()?);

        let task = current!();
        gpu.lookup(task.mm().ok_or(EPERM)?, range, locs, &|| self.go_on())
    }

    fn window(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let Window(window) = arg.reader().read()?;
        let end = window.start.checked_add(window.size).ok_or(EINVAL)?;
        let chunk = CHUNK_SIZE as u64;
        if end > (gpu.map.nr_pages() * PAGE_SIZE) as u64
            || window.start % chunk != 0
            || window.size % chunk != 0
        {
            return Err(EINVAL);
        }

        // Nobody takes pages meanwhile.
        let _moving = gpu.moving.lock();
        if gpu.map.nr_in_use() > 0 {
            return Err(EBUSY);
        }
        gpu.map.pool().set_range(window.start..end)
    }

    fn inject_bad_alias(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        match arg.reader().read::<u32>()? {
            0 => gpu.map.set_bad_alias(false),
            1 => gpu.map.set_bad_alias(true),
            _ => return Err(EINVAL),
        }
        Ok(())
    }
}

/// Returns a range of user addresses, if it is one.
fn bytes(addr: u64, len: u64) -> Result<Range<usize>> {
    let start = usize::try_from(addr)?;
    let end = start.checked_add(usize::try_from(len)?).ok_or(EINVAL)?;
    if start == end {
        return Err(EINVAL);
    }
    Ok(start..end)
}

/// Returns a range of whole pages, if it is one.
fn pages(addr: u64, len: u64) -> Result<Range<usize>> {
    let range = bytes(addr, len)?;
    if range.start % PAGE_SIZE != 0 || range.end % PAGE_SIZE != 0 {
        return Err(EINVAL);
    }
    Ok(range)
}
