//! Where does a JSON string end, what does it say, and which of two comes first?
//!
//! Strings are looked at where they stand in the text; nothing is decoded unless an escape demands it.

use std::cmp::Ordering;

/// Where the run of plain bytes ends that begins at `from`: at a quote, a backslash, a control character, which JSON forbids
/// inside a string, or the end of the text.
///
/// Eight bytes at a time. Each test can mark a byte wrongly only after one that it marked rightly (a borrow passes
/// upwards), so the lowest mark is true.
#[inline]
pub(super) fn plain_run(text: &[u8], from: usize) -> usize {
    const QUOTES: u64 = u64::from_ne_bytes([b'"'; 8]);
    const BACKSLASHES: u64 = u64::from_ne_bytes([b'\\'; 8]);
    const SPACES: u64 = u64::from_ne_bytes([b' '; 8]);
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);

    let mut at = from;
    while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ QUOTES;
        let backslash = word ^ BACKSLASHES;
        let marks = ((quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(SPACES) & !word))
            & HIGHS;
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(byte) = text.get(at)
        && !matches!(byte, b'"' | b'\\' | 0..b' ')
    {
        at += 1;
    }
    at
}

/// One escape sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// It is spelt the canonical way already.
    Canonical,
    /// It means this character, which has another canonical spelling.
    Means(char),
    /// One half of a surrogate pair without the other.
    Lone,
}

/// Reads the escape at the start of `text`, and how many bytes it takes. `None` if JSON has no such escape.
pub(super) fn escape(text: &[u8]) -> Option<(Escape, usize)> {
    match text.get(1)? {
        b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' => Some((Escape::Canonical, 2)),
        b'/' => Some((Escape::Means('/'), 2)),
        b'u' => {
            let high = hex(text.get(2..6)?)?;
            if let Some(alone) = char::from_u32(high) {
                return Some((Escape::Means(alone), 6));
            }
            let low = match text.get(6..12) {
                Some([b'\\', b'u', digits @ ..]) => hex(digits)?,
                _ => return Some((Escape::Lone, 6)),
            };
            if (0xD800..0xDC00).contains(&high) && (0xDC00..0xE000).contains(&low) {
                let both = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                return Some((Escape::Means(char::from_u32(both)?), 12));
            }
            Some((Escape::Lone, 6))
        }
        _ => None,
    }
}

fn hex(digits: &[u8]) -> Option<u32> {
    let mut value = 0;
    for digit in digits {
        value = value * 16 + char::from(*digit).to_digit(16)?;
    }
    Some(value)
}

/// Appends a character as RFC 8785 spells it inside a string.
pub(super) fn push_char(out: &mut Vec<u8>, meant: char) {
    match meant {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\u{8}' => out.extend_from_slice(b"\\b"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\u{c}' => out.extend_from_slice(b"\\f"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\0'..='\u{1f}' => out.extend_from_slice(format!("\\u{:04x}", u32::from(meant)).as_bytes()),
        _ => out.extend_from_slice(meant.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// The order of two names by UTF-16 code units, as RFC 8785 sorts members. Both are given as they stand in the
/// text, between the quotes; neither holds an escape.
///
/// UTF-8 sorts the same way with one exception: characters beyond U+FFFF, which are surrogates in UTF-16, come
/// before U+E000–U+FFFF. Only the first byte of a character tells which it is.
pub(super) fn order(left: &[u8], right: &[u8]) -> Ordering {
    let weight = |byte: u8| if byte == 0xEE || byte == 0xEF { byte + 0x10 } else { byte };
    match left.iter().zip(right).find(|(l, r)| l != r) {
        Some((l, r)) => weight(*l).cmp(&weight(*r)),
        None => left.len().cmp(&right.len()),
    }
}

/// The same order for names of which at least one holds an escape.
pub(super) fn order_escaped(left: &str, right: &str) -> Ordering {
    units(left).cmp(units(right))
}

/// What a name says, once its escapes are resolved.
pub(super) fn decode(name: &str) -> String {
    char::decode_utf16(units(name))
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// The UTF-16 code units of a string as it stands in the text, between the quotes. Its escapes are known to be valid.
fn units(name: &str) -> impl Iterator<Item = u16> {
    let mut rest = name.chars();
    let mut second = None;
    std::iter::from_fn(move || {
        if let Some(unit) = second.take() {
            return Some(unit);
        }
        let character = match rest.next()? {
            '\\' => match rest.next()? {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let digits = rest.as_str().get(..4)?;
                    rest = rest.as_str().get(4..)?.chars();
                    return u16::from_str_radix(digits, 16).ok();
                }
                itself => itself,
            },
            plain => plain,
        };
        let mut pair = [0; 2];
        character.encode_utf16(&mut pair);
        let [first, low] = pair;
        second = (character.len_utf16() == 2).then_some(low);
        Some(first)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_run_ends_at_the_first_special_byte_wherever_it_stands() {
        for len in 0..40 {
            let plain = "a\u{7f}é".repeat(len).into_bytes();
            for special in (0..b' ').chain([b'"', b'\\']) {
                for tail in ["", "\"\\\u{1}", "01234567\u{0}"] {
                    let text = [&plain, &[special][..], tail.as_bytes()].concat();
                    assert_eq!(plain_run(&text, 0), plain.len());
                    assert_eq!(plain_run(&text, plain.len()), plain.len());
                }
            }
            assert_eq!(plain_run(&plain, 0), plain.len(), "a string that does not end");
        }
    }

    #[test]
    fn escapes_are_read_to_the_letter() {
        assert_eq!(escape(br"\n"), Some((Escape::Canonical, 2)));
        assert_eq!(escape(br"\/"), Some((Escape::Means('/'), 2)));
        assert_eq!(escape(br"\u00E9"), Some((Escape::Means('é'), 6)));
        assert_eq!(escape(br"\ud83d\uDE00"), Some((Escape::Means('😀'), 12)));
        for lone in
            [&br"\ud83d"[..], br"\ude00", br"\ud83d\ud83d", br"\ud83d\u0041", br"\ud83dx12345"]
        {
            assert_eq!(escape(lone), Some((Escape::Lone, 6)));
        }
        for wrong in
            [&br"\x"[..], br"\", br"\u12", br"\u+123", br"\u12G4", br"\'", br"\ud83d\uXXXX"]
        {
            assert_eq!(escape(wrong), None);
        }
    }

    proptest! {
        #[test]
        fn names_are_ordered_by_utf16_units(left in any::<String>(), right in any::<String>()) {
            let strip = |name: &str| name.replace('\\', "");
            let (left, right) = (strip(&left), strip(&right));
            let meant = left.encode_utf16().cmp(right.encode_utf16());
            prop_assert_eq!(order(left.as_bytes(), right.as_bytes()), meant);
            prop_assert_eq!(order_escaped(&left, &right), meant);
        }

        #[test]
        fn escaped_names_are_ordered_by_what_they_say(left in any::<String>(), right in any::<String>()) {
            let spell = |name: &str| -> String {
                name.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect()
            };
            let meant = left.encode_utf16().cmp(right.encode_utf16());
            prop_assert_eq!(order_escaped(&spell(&left), &spell(&right)), meant);
            prop_assert_eq!(decode(&spell(&left)), left);
        }
    }
}
