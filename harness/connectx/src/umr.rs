//! UMR: a work request that changes a memory key's context and translations.

use std::ops::Range;

use crate::device::Device;
use crate::device::mkey::{BLOCK, Want};
use crate::layout::{Field, mkey_to_idx};
use crate::qp::{Segment, Send};

impl Device {
    /// Carries out the request. On an error the key is unchanged.
    pub(crate) fn umr(&mut self, qpn: u32, send: &Send) -> Result<(), String> {
        let Some(Segment::Inline(body)) = send.local.first() else {
            return Err("a UMR without a body".to_owned());
        };
        let l = &self.l;
        let key = u32::from_be_bytes(send.imm);
        let (control, rest) = body
            .split_at_checked(l.umr.size)
            .ok_or("a UMR without its control segment")?;
        let (context, rest) = rest
            .split_at_checked(l.mkc.size)
            .ok_or("a UMR without a context")?;
        let flags = l.umr.flags.get(control);
        let mask = l.umr.mkey_mask.get(control);
        let mkey = self
            .mkeys
            .get(&mkey_to_idx(key))
            .ok_or(format!("a UMR of key {key:#x}, which does not exist"))?;
        if l.mkc.umr_en.get(&mkey.context) == 0 {
            return Err(format!("key {key:#x} does not allow UMR"));
        }
        let is_free = l.mkc.free.get(&mkey.context) != 0;
        let check = flags & (self.c.umr.check_free | self.c.umr.check_not_free);
        // In the driver's terms: "fail if free", "fail if not free".
        if check == self.c.umr.check_free && is_free {
            return Err(format!("a UMR of key {key:#x}, which is not in use"));
        }
        if check == self.c.umr.check_not_free && !is_free {
            return Err(format!("a UMR of key {key:#x}, which is in use"));
        }
        let changed = self.masked(mask)?;
        let count = l.umr.xlt_octowords.get(control) as usize * 16;
        let mut first = 0;
        if flags & self.c.umr.translation_offset_en != 0 {
            let low = l.umr.xlt_offset.get(control);
            first = (low | l.umr.xlt_offset_47_16.get(control) << 16) as usize * 16;
        }
        let entries = if count == 0 {
            Vec::new()
        } else if flags & self.c.umr.inline != 0 {
            // Inline translations begin at a multiple of 64 bytes.
            rest.get(..count)
                .ok_or("inline translations that are cut off")?
                .to_vec()
        } else {
            self.gather_entries(qpn, rest, count)?
        };
        let l = &self.l;
        let mkey = self.mkeys.get(&mkey_to_idx(key)).expect("it was there");
        // A table ends with a whole block.
        let size = l.mkc.translations_octword_size.get(&mkey.context) as usize * 16;
        let size = size.next_multiple_of(BLOCK);
        if first.saturating_add(entries.len()) > size {
            return Err(format!(
                "key {key:#x} has {size} bytes of translations, and {} at {first} are none of them",
                entries.len()
            ));
        }
        let more = (first + entries.len()).saturating_sub(mkey.entries.len());
        if !entries.is_empty() && !self.has_room(more) {
            return Err(format!(
                "key {key:#x}: {more} bytes of translations more are too many"
            ));
        }
        let present = self.present(&mkey.context, &entries);
        let stride = entries.len() / present.len().max(1);
        let mkey = self.mkeys.get_mut(&mkey_to_idx(key)).expect("it was there");
        for field in &changed {
            field.set(&mut mkey.context, field.get(context));
        }
        if !changed.is_empty() {
            self.witness.umr(key, 0, &[]);
        }
        let number = (first / stride.max(1)) as u64;
        if !entries.is_empty() {
            mkey.entries.write(first, &entries);
            self.witness.umr(key, number, &present);
        }
        self.check_the_end(qpn, key, number..number + present.len() as u64);
        Ok(())
    }

    /// Reports a translation past the end of a key. No invalidation removes such a translation,
    /// and only the key's length stops the device from using its page.
    fn check_the_end(&mut self, qpn: u32, key: u32, written: Range<u64>) {
        // On other queue pairs, kernel users leave earlier translations there, and user space
        // may write anything.
        if self.qps[&qpn].service != self.c.qp_st.reg_umr {
            return;
        }
        let mkey = &self.mkeys[&mkey_to_idx(key)];
        if let Some(entry) = self.past_the_end(mkey, written) {
            let len = self.l.mkc.len.get(&mkey.context);
            self.witness.violation(&format!(
                "UMR of key {key:#x}: entry {entry} is present, past the end of {len} bytes"
            ));
        }
    }

    fn gather_entries(&mut self, qpn: u32, rest: &[u8], count: usize) -> Result<Vec<u8>, String> {
        let l = &self.l.data;
        let want = Want {
            write: false,
            remote: false,
            atomic: false,
        };
        if rest.len() < l.size {
            return Err("a UMR that says nowhere where its translations are".to_owned());
        }
        let (key, va) = (l.lkey.get(rest) as u32, l.addr.get(rest));
        if (l.byte_count.get(rest) as usize) < count {
            return Err("translations that are shorter than their number".to_owned());
        }
        let pd = Some(self.qps[&qpn].pd);
        let pieces = self
            .check_reserved(qpn, key)
            .and_then(|()| self.translate(key, va, count, want, pd));
        let pieces = pieces.map_err(|stop| format!("translations at {va:#x}: {stop:?}"))?;
        let mut data = vec![0; count];
        let mut rest = &mut data[..];
        for piece in pieces {
            let (here, left) = rest.split_at_mut(piece.len);
            rest = left;
            if let Err(refused) = self.memory.read(piece.addr, here) {
                let why = format!("translations at {va:#x}: {refused:?}");
                self.witness.violation(&why);
                return Err(why);
            }
        }
        Ok(data)
    }

    /// The fields that a mask names. An unknown field is an error, because the model would
    /// otherwise carry out only a part of the request.
    fn masked(&self, mask: u64) -> Result<Vec<Field>, String> {
        let (l, m) = (&self.l.mkc, &self.c.mkey_mask);
        let table: [(u64, &[Field]); 18] = [
            (m.len, &[l.len, l.length64]),
            (m.page_size, &[l.log_page_size]),
            (m.page_size_5, &[l.log_page_size]),
            (m.start_addr, &[l.start_addr]),
            (m.pd, &[l.pd]),
            (m.en_rinval, &[l.en_rinval]),
            (m.bsf_en, &[l.bsf_en]),
            (m.key, &[l.mkey_7_0]),
            (m.qpn, &[l.qpn]),
            (m.lr, &[l.lr]),
            (m.lw, &[l.lw]),
            (m.rr, &[l.rr]),
            (m.rw, &[l.rw]),
            (m.a, &[l.a]),
            (m.small_fence, &[l.small_fence_on_rdma_read_response]),
            (m.relaxed_ordering_write, &[l.relaxed_ordering_write]),
            (m.relaxed_ordering_read, &[l.relaxed_ordering_read]),
            (m.free, &[l.free]),
        ];
        let known = table.iter().fold(0, |known, (bit, _)| known | bit);
        if mask & !known != 0 {
            return Err(format!(
                "bits {:#x} of a mask are not modelled",
                mask & !known
            ));
        }
        let chosen = table.iter().filter(|(bit, _)| mask & bit != 0);
        Ok(chosen
            .flat_map(|(_, fields)| fields.iter().copied())
            .collect())
    }
}
