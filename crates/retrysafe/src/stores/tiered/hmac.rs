//! Is this copy one that somebody with the database's secret has made?
//!
//! HMAC-SHA-256 (RFC 2104). Whoever can write to Redis can put anything there; only who can read the
//! secret in the database can make a copy that is served.

use sha2::{Digest as _, Sha256};

/// The length of a block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// The length of a code.
pub(super) const CODE_BYTES: usize = 32;

/// The code of these parts. Each is counted with its length, so that borders cannot be moved.
pub(super) fn code(secret: &[u8; 32], parts: &[&[u8]]) -> [u8; CODE_BYTES] {
    let padded = |fill: u8| {
        let mut block = [fill; BLOCK_BYTES];
        for (byte, key) in block.iter_mut().zip(secret) {
            *byte ^= key;
        }
        block
    };
    let mut inner = Sha256::new();
    inner.update(padded(0x36));
    for part in parts {
        inner.update((part.len() as u64).to_be_bytes());
        inner.update(part);
    }
    let mut outer = Sha256::new();
    outer.update(padded(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// Whether two codes are the same, in a time that does not tell where they differ.
pub(super) fn is_same(one: &[u8; CODE_BYTES], two: &[u8]) -> bool {
    two.len() == CODE_BYTES && one.iter().zip(two).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_that_of_the_standard() {
        // Computed by another implementation over the same bytes: the length, then the text.
        let text = b"what do ya want for nothing?";
        let mut secret = [0; 32];
        secret[..4].copy_from_slice(b"Jefe");
        let hex: String = code(&secret, &[text]).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "f80838b2e599dfbe7a38f7a7a17809946762357529df986b87919b732a79be43";
        assert_eq!(hex, expected);
    }

    #[test]
    fn every_part_and_every_border_counts() {
        let secret = [7; 32];
        let all = code(&secret, &[b"ab", b"c"]);
        for other in [
            code(&[8; 32], &[b"ab", b"c"]),
            code(&secret, &[b"a", b"bc"]),
            code(&secret, &[b"ab", b"d"]),
            code(&secret, &[b"abc"]),
        ] {
            assert!(!is_same(&all, &other));
        }
        assert!(is_same(&all, &all));
        assert!(!is_same(&all, &all[..31]));
    }
}
