//! How does a value stand in an error?

/// How much of it, in characters.
const QUOTED_MAX: usize = 60;

/// Between quotes, without what would do something to a terminal, and not too long.
pub(super) fn quoted(value: &str) -> String {
    let mut shown: String = value.chars().take(QUOTED_MAX).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_nothing_to_a_terminal() {
        assert_eq!(quoted("a\x1b[2J\"b"), r#""a\u{1b}[2J\"b""#);
        assert_eq!(quoted(&"x".repeat(100)).chars().count(), QUOTED_MAX + 3);
    }
}
