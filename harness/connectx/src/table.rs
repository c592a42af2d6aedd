//! The translations of a key. A region with on-demand paging has an entry for each possible
//! page, and few entries are present. So blocks of zeros take no memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Size of a block: a multiple of every entry size.
const BLOCK: usize = 4096;
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// A sparse array of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    blocks: BTreeMap<usize, Box<[u8; BLOCK]>>,
    len: usize,
}

impl Table {
    /// The length written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// An entry of `size` bytes.
    pub fn entry(&self, number: u64, size: usize) -> Option<&[u8]> {
        let at = usize::try_from(number).ok()?.checked_mul(size)?;
        let end = at.checked_add(size).filter(|end| *end <= self.len)?;
        self.block(at).get(at % BLOCK..at % BLOCK + (end - at))
    }

    /// All entries of `size` bytes.
    pub fn entries(&self, size: usize) -> impl Iterator<Item = &[u8]> {
        let count = (self.len / size) as u64;
        (0..count).filter_map(move |number| self.entry(number, size))
    }

    /// Writes at `at`. Fills any gap after the current end with zeros.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        for (number, inside, part) in pieces(at, bytes.len()) {
            let bytes = &bytes[part];
            let is_new = !self.blocks.contains_key(&number);
            if is_new && bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let block = self.blocks.entry(number).or_insert_with(|| Box::new(ZEROS));
            block[inside..inside + bytes.len()].copy_from_slice(bytes);
            if **block == ZEROS {
                self.blocks.remove(&number);
            }
        }
        self.len = self.len.max(at + bytes.len());
    }

    /// Copies the beginning of the table.
    pub fn read(&self, out: &mut [u8]) {
        let len = out.len().min(self.len);
        for (number, _, part) in pieces(0, len) {
            let bytes = &self.block(number * BLOCK)[..part.len()];
            out[part].copy_from_slice(bytes);
        }
    }

    fn block(&self, at: usize) -> &[u8; BLOCK] {
        self.blocks.get(&(at / BLOCK)).map_or(&ZEROS, |block| block)
    }
}

impl From<&[u8]> for Table {
    fn from(bytes: &[u8]) -> Self {
        let mut table = Self::default();
        table.write(0, bytes);
        table
    }
}

/// Splits `len` bytes at `at` by blocks: the block's number, the offset in it, and the range
/// of bytes.
fn pieces(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (number, inside) = ((at + done) / BLOCK, (at + done) % BLOCK);
        let part = done..len.min(done + BLOCK - inside);
        done = part.end;
        (!part.is_empty()).then_some((number, inside, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// All bytes of the table.
    fn bytes(table: &Table) -> Vec<u8> {
        let mut all = vec![0xff; table.len()];
        table.read(&mut all);
        all
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut table = Table::default();
        table.write(1 << 20, &[0; 1 << 20]);
        assert_eq!((table.len(), table.blocks.len()), (2 << 20, 0));
        table.write(0x12_3456, &[7]);
        assert_eq!(table.blocks.len(), 1);
        assert_eq!(table.entry(0x12_3456 / 8, 8).unwrap()[6], 7);
        table.write(0x12_3450, &[0; 16]);
        assert_eq!(table.blocks.len(), 0);
        assert_eq!(table.entry(0x12_3456 / 8, 8).unwrap(), [0; 8]);
        assert_eq!(table.len(), 2 << 20);
    }

    #[test]
    fn beyond_its_end_there_is_nothing() {
        let table = Table::from(&[1; 24][..]);
        assert_eq!(table.entry(2, 8).unwrap(), [1; 8]);
        assert_eq!(table.entry(1, 16), None);
        assert_eq!(table.entries(16).count(), 1);
        for number in [3, u64::MAX / 8, u64::MAX] {
            assert_eq!(table.entry(number, 8), None);
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_was_written(
            writes in prop::collection::vec((0..3 * BLOCK, 1..2 * BLOCK, 0u8..3), 1..8),
        ) {
            let (mut table, mut plain) = (Table::default(), Vec::new());
            for (at, len, byte) in writes {
                let new = vec![byte; len];
                table.write(at, &new);
                if plain.len() < at + len {
                    plain.resize(at + len, 0);
                }
                plain[at..at + len].copy_from_slice(&new);
            }
            prop_assert_eq!(bytes(&table), plain.clone());
            let entries = Vec::from_iter(plain.chunks_exact(8));
            prop_assert_eq!(Vec::from_iter(table.entries(8)), entries);
            prop_assert!(table.blocks.values().all(|block| **block != ZEROS));
        }
    }
}
