//! What is kept of a provider's raw answer?
//!
//! An operator who decides by hand wants to see what the provider said. Its first bytes are kept, made readable: a control character
//! or a byte that is no UTF-8 must not reach a terminal. A provider may repeat what it was asked with, so the secrets of
//! the question are blotted out.

/// How many bytes of an answer are kept.
pub const EXCERPT_BYTES_MAX: usize = 1_024;

/// The fewest characters of a text that counts as a secret. A shorter one would blot out what it has nothing to do with.
const SECRET_CHARS_MIN: usize = 4;

/// The first bytes of an answer's body, readable, without these secrets.
pub fn excerpt(body: &[u8], secrets: &[&str]) -> String {
    // All of the body is blotted out before it is cut. A secret that lies across a cut would be kept in half, and every secret that is
    // blotted out before it moves the cut. The longest goes first: another one may be a part of it.
    let mut text = String::from_utf8_lossy(body).into_owned();
    let is_secret = |secret: &&&str| secret.chars().count() >= SECRET_CHARS_MIN;
    let mut secrets: Vec<&str> = secrets.iter().filter(is_secret).copied().collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in secrets {
        text = text.replace(secret, "…");
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let readable: String = match character {
            '\n' | '\r' | '\t' => " ".into(),
            character if character.is_control() => "\u{fffd}".into(),
            character => character.into(),
        };
        if shown.len() + readable.len() > EXCERPT_BYTES_MAX {
            break;
        }
        shown.push_str(&readable);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each secret that is blotted out makes room for what stood behind the cut. Half a secret stood there.
    #[test]
    fn no_part_of_a_secret_is_kept_wherever_it_stands() {
        let secret = "sk_live_0123456789abcdef0123456789abcdef";
        for before in 0..secret.len() * 2 {
            let body = format!("{}{}", "x".repeat(before), secret.repeat(64));
            let shown = excerpt(body.as_bytes(), &[secret]);
            assert!(!shown.contains("sk_l"), "{before}: {shown}");
            assert!(shown.len() <= EXCERPT_BYTES_MAX);
        }
        let bearer = format!("Bearer {secret}");
        let shown = excerpt(format!("{bearer}, {secret}").as_bytes(), &[secret, &bearer]);
        assert_eq!(shown, "…, …");
    }
}
