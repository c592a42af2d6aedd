// SPDX-License-Identifier: GPL-2.0

//! The file `/dev/p2ptest_nic<N>` and its calls.

use super::{
    handles::Key,
    pinned::{
        Copy,
        Pinned, //
    },
    region::{
        Permissions,
        Region, //
    },
    transfer::{
        Direction,
        Transfer, //
    },
    Nic, //
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
        _IOW,
        _IOWR, //
    },
    miscdevice::{
        MiscDevice,
        MiscDeviceRegistration, //
    },
    mm::hmm::registration::Options,
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
argument!(PinArg, p2ptest_nic_pin);
argument!(UnpinArg, p2ptest_nic_unpin);
argument!(CopyArg, p2ptest_nic_copy);
argument!(PinnedArg, p2ptest_nic_pinned);

const REG: u32 = _IOWR::<Reg>(uapi::P2PTEST_NIC_IOC_MAGIC, 0);
const DEREG: u32 = _IOW::<Dereg>(uapi::P2PTEST_NIC_IOC_MAGIC, 1);
const XFER: u32 = _IOWR::<Xfer>(uapi::P2PTEST_NIC_IOC_MAGIC, 2);
const QUERY: u32 = _IOW::<Query>(uapi::P2PTEST_NIC_IOC_MAGIC, 3);
const PIN: u32 = _IOWR::<PinArg>(uapi::P2PTEST_NIC_IOC_MAGIC, 4);
const UNPIN: u32 = _IOW::<UnpinArg>(uapi::P2PTEST_NIC_IOC_MAGIC, 5);
const COPY: u32 = _IOWR::<CopyArg>(uapi::P2PTEST_NIC_IOC_MAGIC, 6);
const PINNED: u32 = _IOWR::<PinnedArg>(uapi::P2PTEST_NIC_IOC_MAGIC, 7);

/// How many pages are described at a time.
const BATCH: usize = PAGE_SIZE / size_of::<uapi::p2ptest_nic_page>();

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
            PIN => Self::pin,
            UNPIN => Self::unpin,
            COPY => Self::copy,
            PINNED => Self::pinned,
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

        let key = nic.regions.add(self.id, || nic.new_id(), region)?;
        reg.0.handle = key.handle;
        writer.write(&reg).inspect_err(|_| nic.regions.end(key))
    }

    fn dereg(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let dereg: Dereg = arg.reader().read()?;
        if dereg.0.pad != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let key = self.key(dereg.0.handle);
        nic.regions.get(key, task.mm().ok_or(EPERM)?)?;
        nic.regions.end(key);
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
        let region = nic.regions.get(self.key(xfer.0.handle), mm)?;
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
        let region = nic
            .regions
            .get(self.key(query.0.handle), task.mm().ok_or(EPERM)?)?;
        let addrs = bytes(query.0.addr, query.0.len)?;
        let pages = region.range();
        if addrs.start < pages.start || addrs.end > pages.end {
            return Err(EINVAL);
        }

        let pages = region.index(addrs.start)..region.index(addrs.end - 1) + 1;
        write_pages(
            UserPtr::from_addr(query.0.pages.try_into()?),
            pages,
            |mut part, push| {
                let table = region.lock();
                part.try_for_each(|page| push(table.describe(page)))
            },
        )
    }

    fn pin(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        const FLAGS: u32 = uapi::P2PTEST_NIC_MR_WRITE
            | uapi::P2PTEST_NIC_MR_NO_P2P
            | uapi::P2PTEST_NIC_PIN_RESIDENT;
        let (mut reader, mut writer) = arg.reader_writer();
        let mut pin: PinArg = reader.read()?;

        if pin.0.flags & !FLAGS != 0 {
            return Err(EINVAL);
        }
        let options = Options {
            write: pin.0.flags & uapi::P2PTEST_NIC_MR_WRITE != 0,
            p2p: pin.0.flags & uapi::P2PTEST_NIC_MR_NO_P2P == 0,
            resident: pin.0.flags & uapi::P2PTEST_NIC_PIN_RESIDENT != 0,
        };

        let task = current!();
        let pinned = Pinned::new(
            nic.pdev.as_ref(),
            task.mm().ok_or(EPERM)?,
            pin.0.addr.try_into()?,
            pin.0.len.try_into()?,
            options,
        )?;

        let key = nic.pinned.add(self.id, || nic.new_id(), pinned)?;
        pin.0.handle = key.handle;
        writer.write(&pin).inspect_err(|_| nic.pinned.end(key))
    }

    fn unpin(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let unpin: UnpinArg = arg.reader().read()?;
        if unpin.0.pad != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let key = self.key(unpin.0.handle);
        nic.pinned.get(key, task.mm().ok_or(EPERM)?)?;
        nic.pinned.end(key);
        Ok(())
    }

    fn copy(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let (mut reader, mut writer) = arg.reader_writer();
        let mut copy: CopyArg = reader.read()?;
        let from = bytes(copy.0.src_offset, copy.0.len)?;
        let to = bytes(copy.0.dst_offset, copy.0.len)?;

        let task = current!();
        let mm = task.mm().ok_or(EPERM)?;
        let src = nic.pinned.get(self.key(copy.0.src), mm)?;
        let dst = nic.pinned.get(self.key(copy.0.dst), mm)?;
        if copy.0.pad != 0 || from.end > src.len() || to.end > dst.len() {
            return Err(EINVAL);
        }
        if !dst.options().write {
            return Err(EPERM);
        }

        let go_on = || go_on(&self.gate);
        let mut run = Copy {
            nic,
            mm,
            go_on: &go_on,
            src: &src,
            dst: &dst,
            done: 0,
            remapped: 0,
        };
        let result = run.run(from.start, to.start, from.end - from.start);

        copy.0.done = run.done as u64;
        copy.0.remapped = run.remapped;
        writer.write(&copy)?;
        result
    }

    fn pinned(&self, nic: &Nic<'_>, arg: UserSlice) -> Result {
        let (mut reader, mut writer) = arg.reader_writer();
        let mut query: PinnedArg = reader.read()?;
        if query.0.pad != 0 {
            return Err(EINVAL);
        }

        let task = current!();
        let key = self.key(query.0.handle);
        let pinned = nic.pinned.get(key, task.mm().ok_or(EPERM)?)?;
        let (stats, runs) = pinned.stats();
        let room = usize::try_from(query.0.nr)?.min(pinned.pages());

        query.0.nr = pinned.pages() as u64;
        query.0.runs = runs as u64;
        query.0.mapped = stats.mapped;
        query.0.revocations = stats.revocations;
        query.0.revoked = stats.revoked;
        writer.write(&query)?;

        let pages = UserPtr::from_addr(query.0.pages.try_into()?);
        write_pages(pages, 0..room, |part, push| pinned.describe(part, push))
    }

    fn key(&self, handle: u32) -> Key {
        Key {
            file: self.id,
            handle,
        }
    }
}

type Push<'a> = &'a mut dyn FnMut(uapi::p2ptest_nic_page) -> Result;

/// Writes a description of each page of `pages` to `to`. `describe` pushes the descriptions of some
/// pages, and may hold a lock meanwhile.
fn write_pages(
    to: UserPtr,
    pages: Range<usize>,
    describe: impl Fn(Range<usize>, Push<'_>) -> Result,
) -> Result {
    let len = pages.end - pages.start;
    // The lock must not be held while user memory is accessed, so go through a buffer.
    let mut buf = KVec::with_capacity(BATCH.min(len), GFP_KERNEL)?;
    let mut writer = UserSlice::new(to, len * size_of::<uapi::p2ptest_nic_page>()).writer();

    for first in pages.clone().step_by(BATCH) {
        buf.clear();
        describe(first..pages.end.min(first + BATCH), &mut |page| {
            buf.push_within_capacity(Page(page)).map_err(|_| ENOMEM)
        })?;
        for page in &buf {
            writer.write(page)?;
        }
    }
    Ok(())
}
