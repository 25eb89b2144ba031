//! What is a valid key, and how may a log show it?
//!
//! A caller names its request with `Idempotency-Key`, or another header that the policy names. The draft wants a structured-field String
//! (`"k-1"`), everybody sends the bare form (`k-1`); both name the same key here. Parameters after
//! the String are ignored, because other senders may add some. Two header lines, an empty value or
//! anything outside printable ASCII is refused: a key that two parsers could read differently is
//! not a key.
//!
//! A key may be guessable or hold personal data, so it is never stored or shown: a [`KeyDigest`]
//! stands for it.

use std::fmt;

use http::HeaderName;
use sha2::{Digest as _, Sha256};

/// The most characters a key may have. The field's implementers agree on 255 more than on any
/// other number, and Stripe's clients rely on it.
pub const KEY_CHARS_MAX: usize = 255;

/// The header that names a request, unless another one is set.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A header's name as people write it: `idempotency-key` as `Idempotency-Key`.
pub fn show_header_name(name: &HeaderName) -> String {
    let mut shown = String::with_capacity(name.as_str().len());
    for character in name.as_str().chars() {
        let is_first = shown.is_empty() || shown.ends_with('-');
        shown.push(if is_first { character.to_ascii_uppercase() } else { character });
    }
    shown
}

/// A key as the caller sent it, checked. It is hashed once, when it is made.
///
/// ```
/// use retrysafe_core::Key;
///
/// let key = Key::new("order-17")?;
/// assert_eq!(key.as_str(), "order-17");
/// assert_ne!(key.digest(), Key::new("order-18")?.digest());
/// # Ok::<(), retrysafe_core::key::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    text: Box<str>,
    digest: KeyDigest,
}

/// Which spellings of the header are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KeySyntax {
    /// A quoted String or the bare form.
    #[default]
    Lenient,
    /// A structured-field String only, as the draft demands.
    Quoted,
    /// Either form, and its content is a UUID.
    Uuid,
}

/// Why a header does not name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no such header.
    Missing,
    /// There is more than one such header line.
    Repeated,
    /// The value, or the String in it, is empty.
    Empty,
    /// The key has more than [`KEY_CHARS_MAX`] characters.
    TooLong,
    /// The key has fewer characters than the route demands.
    TooShort,
    /// A character that the bare form does not allow; quoting may help.
    Character,
    /// Not a well-formed structured-field String.
    NotAString,
    /// The route takes UUIDs only.
    NotAUuid,
}

/// What stands for a key wherever it is kept, compared or shown: its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyDigest([u8; 32]);

impl Key {
    /// Reads the key from all lines of its header.
    ///
    /// # Errors
    ///
    /// See [`KeyError`]; `Missing` if there is no line at all.
    pub fn parse_lines<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
        syntax: KeySyntax,
    ) -> Result<Self, KeyError> {
        let mut lines = lines.into_iter();
        let line = lines.next().ok_or(KeyError::Missing)?;
        if lines.next().is_some() {
            return Err(KeyError::Repeated);
        }
        let value = trim_spaces(line);
        let text = match (syntax, value.first()) {
            (_, None) => return Err(KeyError::Empty),
            (_, Some(b'"')) => quoted(value)?,
            (KeySyntax::Quoted, Some(_)) => return Err(KeyError::NotAString),
            (KeySyntax::Lenient | KeySyntax::Uuid, Some(_)) => bare(value)?,
        };
        let key = Self::checked(text)?;
        if syntax == KeySyntax::Uuid && !is_uuid(key.as_str()) {
            return Err(KeyError::NotAUuid);
        }
        Ok(key)
    }

    /// Takes a key that did not come from a header, such as one that a client has made.
    ///
    /// # Errors
    ///
    /// `Empty`, `TooLong`, or `Character` for anything but printable ASCII.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.bytes().any(|b| !(0x20..=0x7e).contains(&b)) {
            return Err(KeyError::Character);
        }
        Self::checked(text.into())
    }

    /// Demands at least `chars` characters.
    ///
    /// # Errors
    ///
    /// `TooShort`.
    pub fn at_least(self, chars: usize) -> Result<Self, KeyError> {
        if self.text.len() < chars { Err(KeyError::TooShort) } else { Ok(self) }
    }

    /// The key itself. Not for logs: use [`Key::digest`].
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What stands for this key outside the request.
    pub const fn digest(&self) -> KeyDigest {
        self.digest
    }

    fn checked(text: Box<str>) -> Result<Self, KeyError> {
        match text.len() {
            0 => Err(KeyError::Empty),
            n if n > KEY_CHARS_MAX => Err(KeyError::TooLong),
            _ => Ok(Self { digest: KeyDigest::of(&text), text }),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.digest())
    }
}

impl KeyDigest {
    fn of(key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"retrysafe key v1\0");
        hash.update(key.as_bytes());
        Self(hash.finalize().into())
    }

    /// The digest whose bytes a store has kept.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// All 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The short form that logs show: twelve hexadecimal digits, enough to follow one request.
impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex::hex(self.0.first_chunk::<6>().unwrap_or(&[0; 6])))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({self})")
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the key is missing",
            Self::Repeated => "the key was sent more than once",
            Self::Empty => "the key is empty",
            Self::TooLong => "the key is longer than 255 characters",
            Self::TooShort => "the key is shorter than this route demands",
            Self::Character => {
                "a bare key may hold visible ASCII characters except \" , ; and \\; in double quotes it may hold any printable ASCII"
            }
            Self::NotAString => "the value is not a well-formed structured-field String",
            Self::NotAUuid => "this route takes UUIDs as keys",
        })
    }
}

impl std::error::Error for KeyError {}

/// A structured-field Item whose value is a String, with its parameters ignored.
fn quoted(value: &[u8]) -> Result<Box<str>, KeyError> {
    let item: sfv::Item =
        sfv::Parser::new(value).parse::<sfv::Item>().map_err(|_| KeyError::NotAString)?;
    item.bare_item.as_string().map(|text| text.as_str().into()).ok_or(KeyError::NotAString)
}

/// The form everybody uses. A comma could be two header lines that a proxy has joined, a semicolon
/// could be a parameter, and a quote or a backslash half a String: those need the quoted form.
fn bare(value: &[u8]) -> Result<Box<str>, KeyError> {
    let allowed = |b: u8| (0x21..=0x7e).contains(&b) && !matches!(b, b'"' | b',' | b';' | b'\\');
    if !value.iter().all(|&b| allowed(b)) {
        return Err(KeyError::Character);
    }
    std::str::from_utf8(value).map(Into::into).map_err(|_| KeyError::Character)
}

fn trim_spaces(mut value: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = value {
        value = rest;
    }
    value
}

/// Eight, four, four, four and twelve hexadecimal digits; any version and variant.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, syntax: KeySyntax) -> Result<String, KeyError> {
        Key::parse_lines([line.as_bytes()], syntax).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn quoted_and_bare_name_the_same_key() {
        for spelling in ["k-1", "\"k-1\"", "  k-1 ", "\"k-1\";v=1;w", " \"k-1\""] {
            assert_eq!(parse(spelling, KeySyntax::Lenient).as_deref(), Ok("k-1"), "{spelling}");
        }
    }

    #[test]
    fn quoting_carries_what_the_bare_form_cannot() {
        assert_eq!(
            parse(r#""'; drop, \"a\" \\ b""#, KeySyntax::Lenient).as_deref(),
            Ok(r#"'; drop, "a" \ b"#)
        );
        assert_eq!(parse("../{tag}'", KeySyntax::Lenient).as_deref(), Ok("../{tag}'"));
    }

    #[test]
    fn malformed_values_are_refused_by_name() {
        let cases = [
            ("", KeyError::Empty),
            ("   ", KeyError::Empty),
            ("\"\"", KeyError::Empty),
            ("\"open", KeyError::NotAString),
            ("\"bad\\x\"", KeyError::NotAString),
            ("\"a\", \"b\"", KeyError::NotAString),
            ("\"a\" b", KeyError::NotAString),
            ("a b", KeyError::Character),
            ("a,b", KeyError::Character),
            ("a;v=1", KeyError::Character),
            ("tab\tin", KeyError::Character),
            ("\tlead", KeyError::Character),
            ("caf\u{e9}", KeyError::Character),
            ("back\\slash", KeyError::Character),
            ("mid\"quote", KeyError::Character),
        ];
        for (value, error) in cases {
            assert_eq!(parse(value, KeySyntax::Lenient), Err(error), "{value:?}");
        }
        assert_eq!(
            Key::parse_lines([b"\x80\xff".as_slice()], KeySyntax::Lenient),
            Err(KeyError::Character)
        );
    }

    #[test]
    fn header_lines_are_counted() {
        assert_eq!(Key::parse_lines([], KeySyntax::Lenient), Err(KeyError::Missing));
        let twice = [b"a".as_slice(), b"a".as_slice()];
        assert_eq!(Key::parse_lines(twice, KeySyntax::Lenient), Err(KeyError::Repeated));
    }

    #[test]
    fn length_is_bounded_after_unquoting() {
        let longest = "k".repeat(KEY_CHARS_MAX);
        assert!(parse(&longest, KeySyntax::Lenient).is_ok());
        assert!(parse(&format!("\"{longest}\""), KeySyntax::Lenient).is_ok());
        assert_eq!(parse(&format!("{longest}k"), KeySyntax::Lenient), Err(KeyError::TooLong));
        assert_eq!(
            parse(&format!("\"{}\"", "k".repeat(1024)), KeySyntax::Lenient),
            Err(KeyError::TooLong)
        );
        assert_eq!(Key::new("abc").and_then(|key| key.at_least(4)), Err(KeyError::TooShort));
    }

    #[test]
    fn stricter_syntaxes_refuse_what_they_name() {
        assert_eq!(parse("k-1", KeySyntax::Quoted), Err(KeyError::NotAString));
        assert_eq!(parse("?1", KeySyntax::Quoted), Err(KeyError::NotAString));
        assert!(parse("\"k-1\"", KeySyntax::Quoted).is_ok());
        let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        assert!(parse(uuid, KeySyntax::Uuid).is_ok());
        assert!(parse(&format!("\"{uuid}\""), KeySyntax::Uuid).is_ok());
        assert_eq!(
            parse("8e03978e40d543ddbc936894a57f9324", KeySyntax::Uuid),
            Err(KeyError::NotAUuid)
        );
    }

    #[test]
    fn keys_differ_by_case_and_are_shown_as_digests_only() {
        let (lower, upper) = (Key::new("alice@x").unwrap(), Key::new("Alice@x").unwrap());
        assert_ne!(lower.digest(), upper.digest());
        assert!(!format!("{lower:?} {}", lower.digest()).contains("alice"));
        assert_eq!(lower.digest().to_string().len(), 12);
    }
}
