// SPDX-License-Identifier: GPL-2.0

//! The file `/dev/p2ptest_nic<N>` and its calls.

use super::{
    region::{
        Permissions,
        Region, //
    },
    transfer::{
        Direction,
        Transfer, //
    },
    Nic,
    RegionKey, //
};
use crate::files::{
    bytes,
    go_on, //
};

use kernel::{
    current,
    fs::File,
    ioctl::{
        _IOC_SIZE,
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

type NicGate = Gate<ForLt!(Nic<'_>)>;

slots!(
    NicGate,
    [
        c"p2ptest_nic0",
        c"p2ptest_nic1",
        c"p2ptest_nic2",
        c"p2ptest_nic3",
    ]
);

argument!(Reg, p2ptest_nic_reg);
argument!(Dereg, p2ptest_nic_dereg);
argument!(Xfer, p2ptest_nic_xfer);
argument!(Query, p2ptest_nic_query);
argument!(Page, p2ptest_nic_page);

const REG: u32 = _IOWR::<Reg>(uapi::P2PTEST_NIC_IOC_MAGIC, 0);
const DEREG: u32 = _IOW::<Dereg>(uapi::P2PTEST_NIC_IOC_MAGIC, 1);
const XFER: u32 = _IOWR::<Xfer>(uapi::P2PTEST_NIC_IOC_MAGIC, 2);
const QUERY: u32 = _IOW::<Query>(uapi::P2PTEST_NIC_IOC_MAGIC, 3);

/// An open file.
pub(crate) struct NicFile {
    gate: Arc<NicGate>,
    id: u64,
}

#[vtable]
impl MiscDevice for NicFile {
    type Ptr = KBox<Self>;

    fn open(_file: &File, misc: &MiscDeviceRegistration<Self>) -> Result<KBox<Self>> {
        let gate = Slot::find(misc.device().name())?;
        let id = gate.with(|nic| nic.new_id()).ok_or(ENODEV)?;

        Ok(KBox::new(Self { gate, id }, GFP_KERNEL)?)
    }

    fn ioctl(file: &Self, _: &File, cmd: u32, arg: usize) -> Result<isize> {
        let arg = UserSlice::new(UserPtr::from_addr(arg), _IOC_SIZE(cmd));

        let call = match cmd {
            REG => Self::reg,
            DEREG => Self::dereg,
            XFER => Self::xfer,
            QUERY => Self::query,
            _ => return Err(ENOTTY),
        };
        file.gate
            .with(|nic| call(file, nic.get_ref(), arg))
            .ok_or(ENODEV)??;
        Ok(0)
    }
}

impl Drop for NicFile {
    fn drop(&mut self) {
        // If the NIC is gone, so are the regions.
        let _ = self.gate.with(|nic| nic.end_file(self.id));
    }
}

impl NicFile {
    fn reg(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let (mut reader, mut writer) = arg.reader_writer();
        let mut reg: Reg = reader.read()?;

        if reg.0.flags & !(uapi::P2PTEST_NIC_MR_WRITE | uapi::P2PTEST_NIC_MR_NO_P2P) != 0 {
            return Err(EINVAL);
        }
        let permissions = Permissions {
            write: reg.0.flags & uapi::P2PTEST_NIC_MR_WRITE != 0,
            p2p: reg.0.flags & uapi::P2PTEST_NIC_MR_NO_P2P == 0,
        };

        let task = current!();
        let mm = task.mm().ok_or(EPERM)?;
        let region = Region::register(
            nic.pdev.as_ref(),
            mm,
            reg.0.addr.try_into()?,
            reg.0.len.try_into()?,
            permissions,
        )?;

        let key = nic.add_region(self.id, region)?;
        reg.0.handle = key.handle;
        writer.write(&reg).inspect_err(|_| nic.end_region(key))
    }

    fn dereg(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let dereg: Dereg = arg.reader().read()?;
        if dereg.0.pad != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let key = self.key(dereg.0.handle);
        nic.region(key, task.mm().ok_or(EPERM)?)?;
        nic.end_region(key);
        Ok(())
    }

    fn xfer(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let (mut reader, mut writer) = arg.reader_writer();
        let mut xfer: Xfer = reader.read()?;

        if xfer.0.flags & !uapi::P2PTEST_NIC_XFER_WRITE != 0 {
            return Err(EINVAL);
        }
        let direction = if xfer.0.flags & uapi::P2PTEST_NIC_XFER_WRITE != 0 {
            Direction::Write
        } else {
            Direction::Read
        };

        let task = current!();
        let mm = task.mm().ok_or(EPERM)?;
        let region = nic.region(self.key(xfer.0.handle), mm)?;
        let addrs = bytes(xfer.0.addr, xfer.0.len)?;
        if addrs.start < region.addrs().start || addrs.end > region.addrs().end {
            return Err(EINVAL);
        }
        if direction == Direction::Write && !region.permissions().write {
            return Err(EPERM);
        }

        let go_on = || go_on(&self.gate);
        let mut transfer = Transfer::new(nic, &region, mm, addrs, direction, &go_on)?;
        let result = transfer.run(UserPtr::from_addr(xfer.0.buf.try_into()?));

        let stats = transfer.stats();
        xfer.0.done = stats.done as u64;
        xfer.0.faults = stats.faults;
        xfer.0.retries = stats.retries;
        writer.write(&xfer)?;
        result
    }

    fn query(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let query: Query = arg.reader().read()?;
        if query.0.pad != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let region = nic.region(self.key(query.0.handle), task.mm().ok_or(EPERM)?)?;
        let addrs = bytes(query.0.addr, query.0.len)?;
        let pages = region.range();
        if addrs.start < pages.start || addrs.end > pages.end {
            return Err(EINVAL);
        }

        // The lock must not be held while user memory is accessed, so go through a buffer.
        const BATCH: usize = PAGE_SIZE / size_of::<uapi::p2ptest_nic_page>();
        let first = region.index(addrs.start);
        let end = region.index(addrs.end - 1) + 1;
        let mut buf = KVec::with_capacity(BATCH.min(end - first), GFP_KERNEL)?;
        let mut writer = UserSlice::new(
            UserPtr::from_addr(query.0.pages.try_into()?),
            (end - first) * size_of::<uapi::p2ptest_nic_page>(),
        )
        .writer();

        for first in (first..end).step_by(BATCH) {
            buf.clear();
            {
                let table = region.lock();
                for index in first..end.min(first + BATCH) {
                    buf.push_within_capacity(Page(table.describe(index)))
                        .map_err(|_| ENOMEM)?;
                }
            }
            for page in &buf {
                writer.write(page)?;
            }
        }
        Ok(())
    }

    fn key(&self, handle: u32) -> RegionKey {
        RegionKey {
            file: self.id,
            handle,
        }
    }
}
