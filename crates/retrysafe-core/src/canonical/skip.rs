//! Where does a value end that does not count?
//!
//! Such a value must be JSON; nothing else is asked of it. It may hold numbers that no double can, repeated members
//! and lone surrogates.

use super::{DEPTH_MAX, number, string};

/// Reads past the value that begins at `at`, which may hold `depth_left` levels. Returns where it ends.
pub(super) fn value(text: &[u8], at: usize, depth_left: usize) -> Option<usize> {
    // One bit per open level, the innermost lowest: whether it is an object.
    const _: () = assert!(DEPTH_MAX <= u128::BITS as usize, "every level has a bit");
    let mut objects = 0u128;
    let mut depth = 0;
    let mut at = at;
    loop {
        match text.get(at)? {
            opening @ (b'{' | b'[') => {
                if depth == depth_left {
                    return None;
                }
                depth += 1;
                let is_object = *opening == b'{';
                objects = objects << 1 | u128::from(is_object);
                at = space(text, at + 1);
                let closing = if is_object { b'}' } else { b']' };
                if *text.get(at)? != closing {
                    at = name(text, at, is_object)?;
                    continue;
                }
            }
            b'"' => at = string(text, at)?,
            b't' => at = literal(text, at, b"true")?,
            b'f' => at = literal(text, at, b"false")?,
            b'n' => at = literal(text, at, b"null")?,
            _ => at += number::read(text.get(at..)?)?.1,
        }
        // What follows a value: closing brackets, each of which ends a value too, or a comma.
        loop {
            if depth == 0 {
                return Some(at);
            }
            at = space(text, at);
            let is_object = objects & 1 == 1;
            match (text.get(at)?, is_object) {
                (b',', _) => {
                    at = name(text, space(text, at + 1), is_object)?;
                    break;
                }
                (b'}', true) | (b']', false) => {
                    at += 1;
                    depth -= 1;
                    objects >>= 1;
                }
                _ => return None,
            }
        }
    }
}

/// Where the space that stands at `at` ends, if there is any.
#[inline]
pub(super) fn space(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while matches!(text.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// Where the literal that stands at `at` ends.
#[inline]
pub(super) fn literal(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    text.get(at..)?.starts_with(word).then_some(at + word.len())
}

/// In an object a value is preceded by its name.
fn name(text: &[u8], at: usize, is_object: bool) -> Option<usize> {
    if !is_object {
        return Some(at);
    }
    if *text.get(at)? != b'"' {
        return None;
    }
    let colon = space(text, string(text, at)?);
    (*text.get(colon)? == b':').then(|| space(text, colon + 1))
}

fn string(text: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at = string::plain_run(text, at);
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += string::escape(text.get(at..)?)?.1,
            _ => return None,
        }
    }
}
