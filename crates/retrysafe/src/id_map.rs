//! How is a record found by its id, in memory?
//!
//! An id is a digest, so it needs no hash function of its own, and a map by ids is asked several times for each request. But whoever
//! chooses keys can look for ids that begin alike. So their beginning is mixed with a number of this process that nobody
//! else knows.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use retrysafe_core::scope::Id;

/// A map by ids.
pub(crate) type IdMap<T> = HashMap<Id, T, IdHashing>;

/// Makes hashes of ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdHashing(u64);

/// The hash of one id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdHasher {
    secret: u64,
    mixed: u64,
}

/// A number without a pattern, by which a product reaches all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Default for IdHashing {
    fn default() -> Self {
        static SECRET: OnceLock<u64> = OnceLock::new();
        Self(*SECRET.get_or_init(|| RandomState::new().hash_one(SPREAD)))
    }
}

impl BuildHasher for IdHashing {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { secret: self.0, mixed: 0 }
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.write_u64(u64::from_le_bytes(word));
            // An id is as different from others in its first bytes as in all of them.
            if bytes.len() == 32 {
                return;
            }
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(word ^ self.mixed ^ self.secret) * u128::from(SPREAD);
        self.mixed = (product >> 64) as u64 ^ product as u64;
    }

    /// The length that stands before the bytes is that of all ids.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.mixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_that_differ_in_their_first_bytes_spread() {
        let hashing = IdHashing::default();
        let hashes = |at: usize| -> HashSet<u64> {
            let ids = (0..=255).map(|byte| {
                let mut bytes = [7; 32];
                bytes[at] = byte;
                Id::from_bytes(bytes)
            });
            ids.map(|id| hashing.hash_one(id) & 0xffff).collect()
        };
        for at in 0..8 {
            assert!(hashes(at).len() > 200, "the low bits of byte {at}");
        }
        let mut map = IdMap::default();
        for byte in 0..=255 {
            map.insert(Id::from_bytes([byte; 32]), byte);
        }
        assert_eq!((map.len(), map.get(&Id::from_bytes([9; 32]))), (256, Some(&9)));
    }
}
