// SPDX-License-Identifier: GPL-2.0

//! The file `/dev/p2ptest_gpu<N>` and its calls.

use super::{
    access::Reached,
    Gpu,
    CHUNK_SIZE, //
};
use crate::files::{
    bytes,
    go_on, //
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
    types::ForLt,
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

type GpuGate = Gate<ForLt!(Gpu<'_>)>;

slots!(
    GpuGate,
    [
        c"p2ptest_gpu0",
        c"p2ptest_gpu1",
        c"p2ptest_gpu2",
        c"p2ptest_gpu3",
    ]
);

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
        let gate = Slot::find(misc.device().name())?;

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
    fn info(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let window = {
            // Its two ends change one after the other.
            let _moving = gpu.moving.lock();
            gpu.map.pool().hardware().visible()
        };
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
            uapi::P2PTEST_GPU_TO_VRAM => gpu.to_vram(mm, range, &|| go_on(&self.gate))?,
            uapi::P2PTEST_GPU_TO_HOST => gpu.to_host(mm, range, &|| go_on(&self.gate))?,
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
            &|| go_on(&self.gate),
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
        gpu.lookup(task.mm().ok_or(EPERM)?, range, locs, &|| go_on(&self.gate))
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

        let pool = gpu.map.pool();
        pool.hardware().set_visible(window.start..end);
        // None is in use.
        while pool.reclaim() {}
        Ok(())
    }

    fn inject_bad_alias(&self, gpu: &Gpu<'_>, arg: UserSlice) -> Result {
        let bad = match arg.reader().read::<u32>()? {
            0 => false,
            1 => true,
            _ => return Err(EINVAL),
        };
        gpu.map.pool().hardware().set_bad_alias(bad);
        Ok(())
    }
}

/// Returns a range of whole pages, if it is one.
fn pages(addr: u64, len: u64) -> Result<Range<usize>> {
    let range = bytes(addr, len)?;
    if range.start % PAGE_SIZE != 0 || range.end % PAGE_SIZE != 0 {
        return Err(EINVAL);
    }
    Ok(range)
}
