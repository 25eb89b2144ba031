//! Is whatever is taken for a key one that every reader agrees on?

#![no_main]

use libfuzzer_sys::fuzz_target;
use retrysafe_core::key::{KEY_CHARS_MAX, Key, KeySyntax};

fuzz_target!(|header: &[u8]| {
    let parse = |line: &[u8], syntax| Key::parse_lines([line], syntax);
    let lenient = parse(header, KeySyntax::Lenient);
    let quoted = parse(header, KeySyntax::Quoted);
    let uuid = parse(header, KeySyntax::Uuid);

    for key in [&lenient, &quoted, &uuid].into_iter().flatten() {
        let text = key.as_str();
        assert!((1..=KEY_CHARS_MAX).contains(&text.len()));
        assert!(text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        // Written as a structured-field String, every key reads back as itself.
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        let again = parse(format!("\"{escaped}\"").as_bytes(), KeySyntax::Quoted);
        assert_eq!(again.as_ref().map(Key::as_str), Ok(text));
    }
    // A stricter syntax takes fewer headers and never another key.
    for strict in [&quoted, &uuid] {
        if let Ok(key) = strict {
            assert_eq!(lenient.as_ref().map(Key::as_str), Ok(key.as_str()));
        }
    }
    // Two lines are never a key.
    assert!(Key::parse_lines([header, header], KeySyntax::Lenient).is_err());
});
