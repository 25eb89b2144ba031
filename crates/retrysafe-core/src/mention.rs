//! Which record does a person mean?
//!
//! Whoever looks for a record has what stood in a log line or in a mail: the key itself, the first
//! digits of a digest, the id of a request. All of that may be text of the same shape, so a text is
//! taken for everything that it can be.

use crate::key::{Key, KeyDigest};
use crate::record::{Record, request_id};

/// The fewest digits that stand for a digest. With fewer, a store of thousands has many that fit.
pub const DIGITS_MIN: usize = 6;

/// The first digits of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestPrefix {
    low: [u8; 32],
    high: [u8; 32],
}

/// What a person has in hand of a record, but for its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The digest of the text as a key, if it can be one.
    pub key: Option<KeyDigest>,
    /// The text as the first digits of a key's digest.
    pub key_digits: Option<DigestPrefix>,
    /// The text as the id of a request, or of a trace.
    pub request_id: Option<Box<str>>,
}

impl DigestPrefix {
    /// The digests that begin with these hexadecimal digits, [`DIGITS_MIN`] at least.
    pub fn parse(digits: &str) -> Option<Self> {
        if digits.len() < DIGITS_MIN {
            return None;
        }
        let mut prefix = Self { low: [0; 32], high: [0xff; 32] };
        for (at, digit) in digits.chars().enumerate() {
            let digit = digit.to_digit(16)? as u8;
            let (low, high) = (prefix.low.get_mut(at / 2)?, prefix.high.get_mut(at / 2)?);
            if at % 2 == 0 {
                *low = digit << 4;
                *high = digit << 4 | 0x0f;
            } else {
                *low |= digit;
                *high = *high & 0xf0 | digit;
            }
        }
        Some(prefix)
    }

    /// Whether a digest begins so.
    pub fn contains(&self, digest: &[u8; 32]) -> bool {
        self.low <= *digest && *digest <= self.high
    }

    /// The least digest that begins so.
    pub fn low(&self) -> &[u8; 32] {
        &self.low
    }

    /// The greatest digest that begins so.
    pub fn high(&self) -> &[u8; 32] {
        &self.high
    }
}

impl Mention {
    /// Everything that a text can be.
    pub fn parse(text: &str) -> Self {
        let key = Key::parse_lines([text.as_bytes()], Default::default());
        let key = key.or_else(|_| Key::new(text)).ok();
        Self {
            key: key.map(|key| key.digest()),
            key_digits: DigestPrefix::parse(text),
            request_id: request_id(text),
        }
    }

    /// Whether a record is meant.
    pub fn is_of(&self, record: &Record) -> bool {
        self.key == Some(record.key)
            || self.key_digits.is_some_and(|digits| digits.contains(record.key.as_bytes()))
            || self.request_id.as_deref().is_some_and(|text| is_origin(record, text))
    }
}

/// Whether a text is the id of a request that began, or of the trace in which it was executed.
fn is_origin(record: &Record, text: &str) -> bool {
    record.origins().any(|origin| {
        origin.request_id == Some(text)
            || origin.span.is_some_and(|span| span.trace_hex().as_str() == text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_stand_for_the_digests_that_begin_with_them() {
        let digest: [u8; 32] = std::array::from_fn(|at| at as u8 * 7 + 3);
        let digits = crate::hex::hex(&digest);
        for length in DIGITS_MIN..=64 {
            let prefix = DigestPrefix::parse(&digits[..length]).unwrap();
            assert!(prefix.contains(&digest), "{length}");
            assert!(!prefix.contains(&[0; 32]) && !prefix.contains(&[0xff; 32]));
            let mut other = digest;
            other[(length - 1) / 2] ^= if length % 2 == 1 { 0x10 } else { 0x01 };
            assert!(!prefix.contains(&other), "{length}");
        }
        assert_eq!(DigestPrefix::parse(&digits.to_uppercase()), DigestPrefix::parse(&digits));
        for text in ["", "03", "03g3f1", &format!("{digits}0"), "0x0a11", "+0a111"] {
            assert_eq!(DigestPrefix::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_is_taken_for_everything_that_it_can_be() {
        let key = Key::new("abc-1").unwrap().digest();
        assert_eq!(Mention::parse("abc-1").key, Some(key));
        assert_eq!(Mention::parse("\"abc-1\"").key, Some(key), "as it stands in the header");
        let digits = Mention::parse("deadbeef");
        assert!(digits.key.is_some() && digits.key_digits.is_some() && digits.request_id.is_some());
        let nothing = Mention::parse("");
        assert_eq!(nothing, Mention { key: None, key_digits: None, request_id: None });
    }
}
