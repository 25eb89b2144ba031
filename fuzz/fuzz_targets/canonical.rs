//! Does a document's form stay the same when it is written again, by us and by others?

#![no_main]

use libfuzzer_sys::fuzz_target;
use retrysafe_core::canonical::{Bounds, Pointer, Selection, canonical, canonicalise, canonicalise_rounding};

fuzz_target!(|text: &[u8]| {
    let form = canonicalise(text);
    let rounded = canonicalise_rounding(text);

    // Parts that do not count are read by other code, which must agree on what is JSON and where it ends.
    if text.len() < 1024 {
        let nested = [b"{\"keep\":1,\"drop\":", text, b"}"].concat();
        let selection = Selection::default().exclude(Pointer::parse("/drop").expect("a pointer"));
        let rest = canonical(&nested, &selection, Bounds::default());
        if rounded.is_some() && !is_deep(text) {
            assert_eq!(rest.as_deref(), Some(&b"{\"keep\":1}"[..]), "dropped what is JSON");
        }
    }

    let Some(form) = form else { return };
    // Lossless means that rounding loses nothing, and that the form is its own form.
    assert_eq!(rounded.as_ref(), Some(&form));
    assert_eq!(canonicalise(&form).as_ref(), Some(&form));

    // Written again by another printer, compact and with spaces, it has the same form. The other parser is less deep and
    // may round a number wrongly, so only what it prints back exactly is compared.
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(&form) else {
        assert!(is_deep(&form), "the form is JSON");
        return;
    };
    let compact = serde_json::to_vec(&value).expect("a value prints");
    let pretty = serde_json::to_vec_pretty(&value).expect("a value prints");
    assert_eq!(canonicalise(&compact), canonicalise(&pretty));
    if holds_only_integers(&value) {
        assert_eq!(canonicalise(&compact), Some(form));
    }
});

/// Deeper than other parsers go.
fn is_deep(text: &[u8]) -> bool {
    text.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > 100
}

fn holds_only_integers(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => number.is_i64() || number.is_u64(),
        Value::Array(elements) => elements.iter().all(holds_only_integers),
        Value::Object(members) => members.values().all(holds_only_integers),
    }
}
