//! Which path does a request really ask for?
//!
//! The upstream may read a path more generously than we do: `//pay`, `/./pay`, `/%70ay`, `/pay;x=1`
//! and `/PAY` reach the same handler in many frameworks. So rules are looked up under several
//! readings, the one that RFC 3986 prescribes and those that a generous server might use, all without
//! regard to case. The path itself is passed on as it came: only the choice of the rule depends on this.

use std::borrow::Cow;

/// The readings of a path, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Readings<'a> {
    /// Unreserved characters decoded, dot segments resolved, empty segments dropped.
    pub plain: Cow<'a, str>,
    /// Decoded once, twice and so on, backslashes taken for slashes, parameters dropped: as far as
    /// they differ.
    pub generous: Vec<String>,
}

/// How often a generous server might decode. Some do it twice by mistake.
const DECODES_MAX: usize = 3;

/// Reads a path.
///
/// # Errors
///
/// Why no server should be asked for it.
pub(crate) fn read(path: &str) -> Result<Readings<'_>, &'static str> {
    if !path.starts_with('/') {
        return Err("the target is not a path");
    }
    if is_ordinary(path.as_bytes()) {
        let plain = match path.bytes().any(|b| b.is_ascii_uppercase()) {
            true => Cow::Owned(path.to_ascii_lowercase()),
            false => Cow::Borrowed(path),
        };
        return Ok(Readings { plain, generous: Vec::new() });
    }
    if path.bytes().any(|b| b == b'\\' || !(0x21..=0x7e).contains(&b)) {
        return Err("the path has a character that no path has");
    }
    let mut decoded = decode(path, is_unreserved)?;
    let plain = resolve(&decoded)?;
    let mut generous = Vec::new();
    for _ in 0..=DECODES_MAX {
        let reading = resolve(&without_parameters(&decoded))?;
        if reading != plain && !generous.contains(&reading) {
            generous.push(reading);
        }
        match decode(&decoded, |_| true) {
            Ok(once) if once != decoded => decoded = once,
            Ok(_) | Err(_) => break,
        }
    }
    Ok(Readings { plain: Cow::Owned(plain), generous })
}

/// A path without the parameters of its segments, backslashes taken for slashes.
fn without_parameters(path: &str) -> String {
    let segments = path.split(['/', '\\']);
    let names = segments.map(|segment| segment.split(';').next().unwrap_or_default());
    names.collect::<Vec<_>>().join("/")
}

/// Whether there is only one way to read a path, but for its case.
fn is_ordinary(path: &[u8]) -> bool {
    let mut after_slash = false;
    for &b in path {
        match b {
            b'/' | b'.' if after_slash => return false,
            b'/' => after_slash = true,
            _ if is_unreserved(b) => after_slash = false,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@' => {
                after_slash = false;
            }
            _ => return false,
        }
    }
    true
}

fn is_unreserved(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')
}

/// Decodes the octets that `which` admits. Control characters are refused in any spelling: a server
/// that cuts a path at an encoded NUL would see another one.
fn decode(path: &str, which: impl Fn(u8) -> bool) -> Result<String, &'static str> {
    let mut bytes = path.bytes();
    let mut out = Vec::with_capacity(path.len());
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let digit = |b: Option<u8>| char::from(b?).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return Err("a percent sign in the path is not followed by two hexadecimal digits");
        };
        let octet = high * 16 + low;
        if octet < 0x20 || octet == 0x7f {
            return Err("the path encodes a control character");
        }
        if which(octet) {
            out.push(octet);
        } else {
            out.extend_from_slice(format!("%{octet:02x}").as_bytes());
        }
    }
    Ok(String::from_utf8(out).unwrap_or_else(|raw| String::from_utf8_lossy(raw.as_bytes()).into()))
}

/// Resolves dot segments and drops empty ones; a slash at the end stays. To one server a step up
/// leaves the empty segment before it, to another the one before that: such a path is refused.
fn resolve(path: &str) -> Result<String, &'static str> {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." if segments.pop() == Some("") => {
                return Err("the path steps up over an empty segment");
            }
            ".." => {}
            other => segments.push(other),
        }
    }
    segments.retain(|segment| !segment.is_empty());
    let ends_open = path.ends_with(['/']) || path.ends_with("/.") || path.ends_with("/..");
    let mut out = String::with_capacity(path.len());
    for segment in &segments {
        out.push('/');
        out.push_str(&segment.to_lowercase());
    }
    if segments.is_empty() || ends_open {
        out.push('/');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(path: &str) -> String {
        read(path).unwrap().plain.into_owned()
    }

    fn generous(path: &str) -> String {
        let mut readings = read(path).unwrap();
        readings.generous.pop().unwrap_or_else(|| readings.plain.into_owned())
    }

    #[test]
    fn a_step_up_over_an_empty_segment_is_refused() {
        for path in [
            "/deep//../only",
            "/a//./../b",
            "/a//b/../../c",
            "/pay//..",
            "//../pay",
            "/a/%2f../b",
            "/a/;x/../b",
            "/a/%252f%252e%252e/b",
        ] {
            assert!(read(path).is_err(), "{path}");
        }
        for path in ["/a//b/../c", "/a/../..", "/a/..//b", "//a/../b"] {
            assert!(read(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn ordinary_paths_are_not_copied() {
        assert!(matches!(read("/a/b-c_d.e~f/1:2@3").unwrap().plain, Cow::Borrowed(_)));
        assert_eq!(plain("/"), "/");
    }

    #[test]
    fn other_spellings_read_the_same() {
        for spelling in [
            "//pay/x",
            "/./pay/x",
            "/%70ay/x",
            "/a/../pay/x",
            "/a/%2e%2e/pay/x",
            "/PAY/x",
            "/../pay/x",
            "/pay//x",
            "/pay/./x",
            "/a/.%2E/pay/x",
            "/%50ay/%78",
        ] {
            assert_eq!(plain(spelling), "/pay/x", "{spelling}");
        }
        for spelling in
            ["/pay%2fx", "/pay%5Cx", "/pay;v=1/x", "/pay/x;y", "/%2570ay/x", "/a%2f..%2fpay/x"]
        {
            assert_eq!(generous(spelling), "/pay/x", "{spelling}");
        }
        assert_eq!(plain("/pay/"), "/pay/");
        assert_eq!(plain("/a/.."), "/");
    }

    #[test]
    fn nonsense_is_refused() {
        for path in
            ["", "pay", "/a\\b", "/a%00", "/a%0d%0a", "/a%7f", "/a%zz", "/a%4", "/caf\u{e9}"]
        {
            assert!(read(path).is_err(), "{path}");
        }
        // Double encoding that ends in a control character is only what a generous server sees.
        assert!(read("/a%2500").is_ok());
    }
}
