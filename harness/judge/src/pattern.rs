//! The bytes that test programs write: page `index` of a `seed`.
//!
//! The same stream as in tools/testing/selftests/p2pdma/p2ptest.h. The code is written
//! from the description of that stream, so that a mistake on one side cannot hide on the
//! other.

/// The size of a page in bytes.
pub const PAGE: usize = 4096;

/// The value of every byte in a freed VRAM page.
pub const POISON: u8 = 0x5a;

/// Page `index` of `seed`: word k is splitmix64(seed + index · 512 + k),
/// 64-bit little endian.
pub fn page(seed: u64, index: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    let first = seed.wrapping_add(index.wrapping_mul(512));
    for (k, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&splitmix64(first.wrapping_add(k as u64)).to_le_bytes());
    }
    bytes
}

fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values_of_splitmix64() {
        // The generator's state after n steps from 0 is n times the constant.
        let step = 0x9e37_79b9_7f4a_7c15u64;
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(step), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(splitmix64(step.wrapping_mul(2)), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn pages_continue_the_stream() {
        let first = page(7, 0);
        let second = page(7, 1);
        assert_eq!(&first[..8], &splitmix64(7).to_le_bytes());
        assert_eq!(&first[4088..], &splitmix64(7 + 511).to_le_bytes());
        assert_eq!(&second[..8], &splitmix64(7 + 512).to_le_bytes());
    }

    #[test]
    fn seeds_near_the_end_wrap() {
        assert_eq!(&page(u64::MAX, 0)[8..16], &splitmix64(0).to_le_bytes());
    }
}
