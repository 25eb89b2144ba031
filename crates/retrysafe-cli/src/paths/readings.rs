//! Which paths may a request ask for?
//!
//! The upstream may read a path more generously than we do, or less: `//pay`, `/./pay`, `/%70ay`,
//! `/pay;x=1`, `/pay%3fx` and `/PAY` reach the same handler in many frameworks, and `/pay/../x` reaches
//! `/pay/{*rest}` in those that leave dot segments alone. So rules are looked up under every reading
//! that a server might use, all without regard to case. The path itself is passed on as it came: only
//! the choice of the rule depends on this.

use std::borrow::Cow;

/// The readings of a path, in lower case and without empty segments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Readings<'a> {
    /// One of them.
    pub first: Cow<'a, str>,
    /// The others, as far as there are any.
    pub others: Vec<String>,
}

impl Readings<'_> {
    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.first).chain(self.others.iter().map(String::as_str))
    }
}

/// How many readings a path may have. An ordinary one has one, an encoded one two; whoever needs more
/// than this wants to confuse somebody.
const READINGS_MAX: usize = 64;

/// How long all readings of a path may be together, so that a long path costs little more than its
/// own length.
const READINGS_BYTES_MAX: usize = 256 << 10;

/// Reads a path in every way.
///
/// # Errors
///
/// Why no server should be asked for it.
pub(crate) fn read(path: &str) -> Result<Readings<'_>, &'static str> {
    if !path.starts_with('/') {
        return Err("the target is not a path");
    }
    if is_ordinary(path.as_bytes()) {
        let is_lower = !path.bytes().any(|b| b.is_ascii_uppercase());
        let first = if is_lower { path.into() } else { path.to_ascii_lowercase().into() };
        return Ok(Readings { first, others: Vec::new() });
    }
    if path.bytes().any(|b| b == b'\\' || !(0x21..=0x7e).contains(&b)) {
        return Err("the path has a character that no path has");
    }
    decode(path, |_| true)?;
    let mut forms = forms(path)?.into_iter().map(|form| without_empty_segments(&form));
    let first = forms.next().unwrap_or_default();
    let mut others = Vec::new();
    for form in forms {
        if form != first && !others.contains(&form) {
            others.push(form);
        }
    }
    Ok(Readings { first: first.into(), others })
}

/// The reading that RFC 3986 prescribes: what needs no encoding decoded, dot segments resolved.
///
/// # Errors
///
/// Why no server should be asked for it.
pub(crate) fn plain(path: &str) -> Result<String, &'static str> {
    Ok(without_empty_segments(&resolve(&decode(path, is_unreserved)?)?))
}

/// Everything that a path turns into when some of the steps that servers take are taken, in any
/// order and as often as they change something. Each step makes a path shorter or removes a kind of
/// character, so there is an end to it.
fn forms(path: &str) -> Result<Vec<String>, &'static str> {
    let mut forms = vec![path.to_ascii_lowercase()];
    let mut bytes = path.len();
    let mut taken = 0;
    while let Some(form) = forms.get(taken).cloned() {
        taken += 1;
        let decoded = [decode(&form, is_unreserved), decode(&form, |_| true)];
        let steps = [
            resolve(&form)?,
            without_parameters(&form),
            without_query(&form),
            form.replace('\\', "/"),
        ];
        // What a server decodes for the second time may be nonsense, which no server serves.
        for step in decoded.into_iter().flatten().chain(steps) {
            if forms.contains(&step) {
                continue;
            }
            bytes += step.len();
            if forms.len() >= READINGS_MAX || bytes > READINGS_BYTES_MAX {
                return Err("the path can be read in too many ways");
            }
            forms.push(step);
        }
    }
    Ok(forms)
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
    let text = String::from_utf8(out)
        .unwrap_or_else(|raw| String::from_utf8_lossy(raw.as_bytes()).into_owned());
    Ok(text.to_lowercase())
}

/// Resolves dot segments. To one server a step up leaves the empty segment before it, to another the
/// one before that: such a path is refused.
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
    // A dot segment at the end leaves its slash.
    if path.ends_with("/.") || path.ends_with("/..") {
        segments.push("");
    }
    Ok(format!("/{}", segments.join("/")))
}

/// A path without the parameters of its segments.
fn without_parameters(path: &str) -> String {
    let names = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    names.collect::<Vec<_>>().join("/")
}

/// A path up to a mark at which a server that decodes too early sees a query or a fragment.
fn without_query(path: &str) -> String {
    path.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// A path without its empty segments; a slash at the end stays.
fn without_empty_segments(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        out.push('/');
        out.push_str(segment);
    }
    if out.is_empty() || path.ends_with('/') {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Vec<String> {
        read(path).unwrap().all().map(str::to_owned).collect()
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
        assert!(matches!(read("/a/b-c_d.e~f/1:2@3").unwrap().first, Cow::Borrowed(_)));
        assert_eq!(readings("/"), ["/"]);
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
            "/pay%2fx",
            "/pay%5Cx",
            "/pay;v=1/x",
            "/pay/x;y",
            "/%2570ay/x",
            "/a%2f..%2fpay/x",
            "/pay/x%3fy",
            "/pay/x%23y",
            "/pay%2fx%253f/y",
        ] {
            assert!(readings(spelling).contains(&"/pay/x".into()), "{:?}", readings(spelling));
        }
        assert_eq!(readings("/pay/."), ["/pay/.", "/pay/"]);
        assert_eq!(readings("/a/.."), ["/a/..", "/"]);
        assert_eq!(readings("/a%20b"), ["/a%20b", "/a b"]);
    }

    /// Some servers resolve before they decode, some decode only what needs no encoding, some do both
    /// or neither.
    #[test]
    fn steps_are_taken_in_any_order() {
        let path = "/a/../pay/%2e%2e/x";
        let taken = readings(path);
        for reading in ["/a/../pay/%2e%2e/x", "/pay/%2e%2e/x", "/pay/../x", "/a/../pay/../x", "/x"]
        {
            assert!(taken.contains(&reading.into()), "{reading} is not among {taken:?}");
        }
        let taken = readings("/pay%2f%3bx/y");
        for reading in ["/pay%2f%3bx/y", "/pay/;x/y", "/pay/y"] {
            assert!(taken.contains(&reading.into()), "{reading} is not among {taken:?}");
        }
    }

    #[test]
    fn a_path_that_is_meant_to_confuse_is_refused() {
        let chain = format!("/{}", "%25".repeat(READINGS_MAX + 1));
        for path in [
            format!("/%{}41", "25".repeat(READINGS_MAX)),
            format!("/{}%2541", "a".repeat(READINGS_BYTES_MAX / 2)),
        ] {
            assert_eq!(read(&path), Err("the path can be read in too many ways"));
        }
        // Long, or encoded throughout, is not confusing.
        for path in [format!("/{}%20", "a".repeat(60_000)), chain] {
            assert!(read(&path).is_ok());
        }
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
