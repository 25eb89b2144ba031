//! How does a timeline tell what a lookup has found?
//!
//! In one text: what was learned, in words, and on the next line the beginning of the raw answer, where there was one. An
//! operator who decides by hand wants to see both.

use super::REASON_BYTES_MAX;

/// The longest note about a lookup, in bytes: a reason, and a kilobyte of what was answered. A timeline full of them stays below 32 KiB.
pub const LOOKUP_BYTES_MAX: usize = REASON_BYTES_MAX + 1_100;

/// A note: what was learned, and the raw answer.
pub fn lookup_note(found: &str, answer: Option<&str>) -> Box<str> {
    let found = start_of(found, REASON_BYTES_MAX).replace('\n', " ");
    match answer {
        Some(answer) => start_of(&format!("{found}\n{answer}"), LOOKUP_BYTES_MAX).into(),
        None => found.into(),
    }
}

/// What a note tells: what was learned, and the raw answer if there was one.
pub fn read_lookup_note(note: &str) -> (&str, Option<&str>) {
    match note.split_once('\n') {
        Some((found, answer)) => (found, Some(answer)),
        None => (note, None),
    }
}

/// The first bytes of a text, cut between characters.
pub(super) fn start_of(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_what_was_learned_and_what_was_answered() {
        assert_eq!(read_lookup_note(&lookup_note("pending", None)), ("pending", None));
        let note = lookup_note("no\nrule fits", Some("200 {}\nmore"));
        assert_eq!(read_lookup_note(&note), ("no rule fits", Some("200 {}\nmore")));
        let long = lookup_note(&"ü".repeat(1_000), Some(&"漢".repeat(1_000)));
        let (found, answer) = read_lookup_note(&long);
        assert_eq!(found.len(), REASON_BYTES_MAX);
        assert!(long.len() <= LOOKUP_BYTES_MAX && answer.is_some_and(|text| text.len() > 1_000));
    }
}
