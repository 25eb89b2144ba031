//! Which text does nothing to a terminal?
//!
//! Keys, paths, reasons and names are written by others. A control character among them could move the cursor, hide a line or answer for
//! the operator; one that turns the direction of writing could show one id and mean another.

/// Whether a character only shows itself.
pub(crate) fn is_harmless(character: char) -> bool {
    !character.is_control() && !is_direction(character)
}

/// The text, with whatever a terminal would obey replaced. Line breaks stay if they may.
pub(crate) fn harmless(text: &str, may_break: bool) -> String {
    let shown = |character: char| {
        let stays = is_harmless(character) || (may_break && character == '\n');
        if stays { character } else { char::REPLACEMENT_CHARACTER }
    };
    text.chars().map(shown).collect()
}

/// A JSON text in which every such character is an escape. They can stand in its strings only.
pub(crate) fn harmless_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_harmless(character) || character == '\n' {
            shown.push(character);
        } else {
            shown.push_str(&format!("\\u{:04x}", u32::from(character)));
        }
    }
    shown
}

/// Marks that turn the direction of writing, or separate lines where a terminal shows none.
fn is_direction(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "a\u{1b}[2J\r\u{9b}31m\u{7}\u{202e}b\u{2066}\u{7f}ü漢\n<b>";

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(
            harmless(NASTY, true),
            "a\u{fffd}[2J\u{fffd}\u{fffd}31m\u{fffd}\u{fffd}b\u{fffd}\u{fffd}ü漢\n<b>"
        );
        assert!(!harmless(NASTY, false).contains('\n'));
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = serde_json::json!({ NASTY: [NASTY] }).to_string();
        let shown = harmless_json(&text);
        assert!(shown.chars().all(is_harmless), "{shown}");
        let (one, other): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&text).unwrap(), serde_json::from_str(&shown).unwrap());
        assert_eq!(one, other);
    }
}
