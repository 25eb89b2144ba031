//! Is a row what was written?
//!
//! Every row carries a seal. The writer sums up what it knows, and the server binds its own numbers
//! to that sum: the version, the fence and the times. Both halves are made of functions that the
//! server has too, so that it can seal what it writes without a program: SHA-256 over the content,
//! and the server's hash of a number for each number.

use retrysafe_core::scope::Id;
use sha2::{Digest as _, Sha256};

/// What the writer of a row knows: all but the numbers that only the server can fill in.
pub(super) struct Content<'a> {
    pub(super) id: &'a Id,
    pub(super) state: i16,
    pub(super) status: Option<i16>,
    pub(super) request: &'a [u8],
    pub(super) detail: &'a [u8],
    /// Without the fence and the time of its last moment.
    pub(super) timeline: &'a [u8],
    pub(super) headers: Option<&'a [u8]>,
    pub(super) body: Option<&'a [u8]>,
}

/// What the server fills in.
pub(super) struct Numbers {
    pub(super) version: i64,
    pub(super) fence: i64,
    pub(super) created_at: i64,
    pub(super) since: i64,
    /// The end of the lease or of the retention.
    pub(super) until: Option<i64>,
    pub(super) last_fence: i64,
    pub(super) last_at: i64,
}

impl Content<'_> {
    /// The sum that the server seals: the first eight bytes of a SHA-256. Every field has its length,
    /// so that none runs into the next.
    pub(super) fn sum(&self) -> i64 {
        let mut hash = Sha256::new();
        hash.update(self.id.as_bytes());
        hash.update(self.state.to_be_bytes());
        hash.update(self.status.unwrap_or(-1).to_be_bytes());
        let fields = [Some(self.request), Some(self.detail), Some(self.timeline)];
        for field in fields.into_iter().chain([self.headers, self.body]) {
            let length = field.map_or(-1, |bytes| bytes.len().cast_signed() as i64);
            hash.update(length.to_be_bytes());
            hash.update(field.unwrap_or_default());
        }
        let digest: [u8; 32] = hash.finalize().into();
        digest.first_chunk::<8>().map_or(0, |first| i64::from_be_bytes(*first))
    }
}

impl Numbers {
    /// The same as `retrysafe.seal` in the migrations.
    pub(super) fn seal(&self, sum: i64) -> i64 {
        let numbers = [
            self.last_at,
            self.last_fence,
            self.until.unwrap_or(-1),
            self.since,
            self.created_at,
            self.fence,
            self.version,
        ];
        numbers.into_iter().fold(sum, |seed, number| hash_number(number, seed))
    }
}

/// The server's `hashint8extended`. Tables that are partitioned by hash rest on it, so it stays.
fn hash_number(number: i64, seed: i64) -> i64 {
    const START: u32 = 0x9e37_79b9_u32.wrapping_add(4).wrapping_add(3_923_095);
    let number = number.cast_unsigned();
    let (low, high) = (number as u32, (number >> 32) as u32);
    let folded = low ^ if number >> 63 == 0 { high } else { !high };
    let seed = seed.cast_unsigned();
    let mut words = [START; 3];
    if seed != 0 {
        let [a, b, _] = &mut words;
        *a = a.wrapping_add((seed >> 32) as u32);
        *b = b.wrapping_add(seed as u32);
        mix(&mut words);
    }
    let [high, low] = finish(words, folded);
    (u64::from(high) << 32 | u64::from(low)).cast_signed()
}

fn mix([a, b, c]: &mut [u32; 3]) {
    for turns in [[4, 6, 8], [16, 19, 4]] {
        let [first, second, third] = turns;
        *a = a.wrapping_sub(*c) ^ c.rotate_left(first);
        *c = c.wrapping_add(*b);
        *b = b.wrapping_sub(*a) ^ a.rotate_left(second);
        *a = a.wrapping_add(*c);
        *c = c.wrapping_sub(*b) ^ b.rotate_left(third);
        *b = b.wrapping_add(*a);
    }
}

fn finish([a, mut b, mut c]: [u32; 3], folded: u32) -> [u32; 2] {
    let mut a = a.wrapping_add(folded);
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    c = (c ^ b).wrapping_sub(b.rotate_left(24));
    [b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_hashed_as_the_server_does() {
        // SELECT hashint8extended(number, seed), on PostgreSQL 15.
        for (number, seed, hash) in [
            (0, 0, 4_154_612_158_245_552_303),
            (1, 0, -3_670_598_878_359_251_130),
            (-1, 7, 8_228_280_636_233_252_028),
            (i64::MAX, -5, 5_695_659_297_123_186_832),
            (1_700_000_000_000, 1_234_567_890_123_456_789, 8_588_025_620_317_032_692),
            (-4_294_967_297, i64::MIN, 3_477_135_350_615_318_280),
        ] {
            assert_eq!(hash_number(number, seed), hash, "{number} {seed}");
        }
    }

    #[test]
    fn every_number_and_every_field_counts() {
        let numbers = |at: usize| {
            let one = |number: usize| i64::from(at == number);
            Numbers {
                version: one(0),
                fence: one(1),
                created_at: one(2),
                since: one(3),
                until: Some(one(4)),
                last_fence: one(5),
                last_at: one(6),
            }
        };
        let seals: std::collections::HashSet<i64> = (0..8).map(|at| numbers(at).seal(9)).collect();
        assert_eq!(seals.len(), 8);
        let id = Id::from_bytes([0; 32]);
        let content = |at: usize| {
            let text = |number: usize| if at == number { &b"a"[..] } else { &b""[..] };
            Content {
                id: &id,
                state: i16::from(at == 0),
                status: (at != 1).then_some(0),
                request: text(2),
                detail: text(3),
                timeline: text(4),
                headers: (at != 5).then(|| text(6)),
                body: (at != 7).then(|| text(8)),
            }
        };
        let sums: std::collections::HashSet<i64> = (0..10).map(|at| content(at).sum()).collect();
        assert_eq!(sums.len(), 10);
    }
}
