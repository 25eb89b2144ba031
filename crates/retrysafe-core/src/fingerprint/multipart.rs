//! How is a form made comparable?
//!
//! A client draws a new boundary whenever it sends a `multipart/form-data` body, so a retry never has the bytes of the first
//! request. A [`Form`] is such a body with its boundary taken out and nothing else: the parts in their order, each with its
//! header lines and its content byte for byte. Boundary and form together give the body back, so no two bodies with
//! one boundary are the same form.
//!
//! Servers read odd bodies differently: one takes a bare line feed for a line end, one skips what stands ahead of the first
//! part, one finds a boundary in the middle of a line. A body in which any of that could matter is no form here, and counts
//! byte by byte.

use memchr::memmem;

/// More parts than any form that people fill in, and few enough that reading one takes little memory. A body with more
/// of them counts byte by byte.
const PARTS_MAX: usize = 4_096;

/// The most characters of a boundary (RFC 2046 §5.1.1).
const BOUNDARY_CHARS_MAX: usize = 70;

/// The parameters of a `multipart/form-data` media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormType<'a> {
    boundary: &'a [u8],
    /// Every other parameter, in order: its name in lower case, and its value as spelt.
    others: Vec<(Vec<u8>, &'a [u8])>,
}

impl<'a> FormType<'a> {
    /// Reads a `Content-Type` that names a form and one boundary, in a way that every server reads alike.
    #[must_use]
    pub fn read(content_type: &'a [u8]) -> Option<Self> {
        let essence_end = content_type.iter().position(|byte| *byte == b';')?;
        let (essence, mut rest) = content_type.split_at_checked(essence_end)?;
        if !essence.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
            return None;
        }
        let mut boundary = None;
        let mut others = Vec::new();
        while !rest.is_empty() {
            let (name, value, after) = parameter(rest)?;
            if name != b"boundary" {
                others.push((name, value));
            } else if boundary.replace(boundary_of(value)?).is_some() {
                return None;
            }
            rest = after;
        }
        Some(Self { boundary: boundary?, others })
    }

    /// The boundary, without quotes.
    #[must_use]
    pub fn boundary(&self) -> &'a [u8] {
        self.boundary
    }

    /// Every parameter but the boundary.
    pub(super) fn others(&self) -> &[(Vec<u8>, &'a [u8])] {
        &self.others
    }
}

/// Takes `; name=value` from the front: the name in lower case, the value as spelt, and the rest.
fn parameter(text: &[u8]) -> Option<(Vec<u8>, &[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b";")?.trim_ascii_start();
    let name_end = text.iter().position(|byte| !is_token(*byte))?;
    let (name, text) = text.split_at_checked(name_end)?;
    let text = text.strip_prefix(b"=")?;
    let value_end = match text.strip_prefix(b"\"") {
        // A backslash escapes in some readers, and is a character in others.
        Some(quoted) => {
            let end = quoted.iter().position(|byte| *byte == b'"')?;
            let is_plain =
                quoted.get(..end)?.iter().all(|byte| matches!(byte, 0x20..=0x5b | 0x5d..=0x7e));
            is_plain.then_some(end + 2)?
        }
        None => text.iter().position(|byte| !is_token(*byte)).unwrap_or(text.len()),
    };
    let (value, rest) = text.split_at_checked(value_end)?;
    let is_whole = !name.is_empty() && !value.is_empty();
    is_whole.then(|| (name.to_ascii_lowercase(), value, rest.trim_ascii_start()))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The boundary that a parameter's value names, if its characters are a boundary's. A space, which the RFC permits inside,
/// is lost by some readers.
fn boundary_of(value: &[u8]) -> Option<&[u8]> {
    let quoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let boundary = quoted.unwrap_or(value);
    let is_fit = (1..=BOUNDARY_CHARS_MAX).contains(&boundary.len())
        && boundary
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(byte));
    is_fit.then_some(boundary)
}

/// A body without its boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form<'a> {
    /// Its parts, in order.
    pub parts: Vec<Part<'a>>,
    /// Whether a line end follows the last boundary. Clients differ in it; a retry does not.
    pub ends_with_line: bool,
}

/// One part of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its header lines, with the line ends between them.
    pub head: &'a [u8],
    /// Its content.
    pub content: &'a [u8],
}

impl<'a> Form<'a> {
    /// Reads a body, if every server reads it alike.
    ///
    /// The delimiter, `--` and the boundary, stands at the very beginning, then only at the beginning of lines, and nowhere
    /// else; every line outside the contents ends with CR LF; nothing follows the last delimiter but one line end.
    #[must_use]
    pub fn read(boundary: &[u8], body: &'a [u8]) -> Option<Self> {
        let delimiter = [b"--", boundary].concat();
        let finder = memmem::Finder::new(&delimiter);
        let mut parts = Vec::new();
        let mut after_delimiter = body.strip_prefix(delimiter.as_slice())?;
        loop {
            match after_delimiter {
                b"--" => return Some(Self { parts, ends_with_line: false }),
                b"--\r\n" => return Some(Self { parts, ends_with_line: true }),
                _ => {}
            }
            let text = after_delimiter.strip_prefix(b"\r\n")?;
            let (part, rest) = text.split_at_checked(finder.find(text)?)?;
            if parts.len() == PARTS_MAX {
                return None;
            }
            parts.push(Part::read(part.strip_suffix(b"\r\n")?)?);
            after_delimiter = rest.get(delimiter.len()..)?;
        }
    }
}

impl<'a> Part<'a> {
    fn read(text: &'a [u8]) -> Option<Self> {
        if let Some(content) = text.strip_prefix(b"\r\n") {
            return Some(Self { head: b"", content });
        }
        let head_end = memmem::find(text, b"\r\n\r\n")?;
        let (head, rest) = text.split_at_checked(head_end)?;
        // Header lines are short, so looking at them once more costs nothing.
        let mut lines = head.split(|byte| *byte == b'\n');
        let last = lines.next_back()?;
        let all_end_well = lines.all(|line| line.strip_suffix(b"\r").is_some_and(is_header_line));
        // A form inside a form has a boundary of its own, and readers differ in what they do with it.
        let is_nested = head.to_ascii_lowercase().windows(10).any(|word| word == b"multipart/");
        let is_plain = all_end_well && is_header_line(last) && !is_nested;
        is_plain.then_some(Self { head, content: rest.get(4..)? })
    }
}

/// Whether a line has the form `name: value` and no control character. Names of files are often UTF-8.
fn is_header_line(line: &[u8]) -> bool {
    let name_end = line.iter().position(|byte| !is_token(*byte));
    name_end.is_some_and(|end| end > 0 && line.get(end) == Some(&b':'))
        && line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundary(content_type: &str) -> Option<String> {
        let form_type = FormType::read(content_type.as_bytes())?;
        Some(String::from_utf8(form_type.boundary().to_vec()).unwrap())
    }

    #[test]
    fn a_boundary_is_read_as_clients_write_it() {
        for (content_type, wanted) in [
            (
                "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxk",
                "----WebKitFormBoundary7MA4YWxk",
            ),
            ("multipart/form-data;boundary=0f1e2d", "0f1e2d"),
            ("Multipart/Form-Data ; Boundary=\"a:b=c\"", "a:b=c"),
            ("multipart/form-data; charset=UTF-8; boundary=x", "x"),
            ("multipart/form-data; boundary=x;charset=\"utf-8\" ", "x"),
        ] {
            assert_eq!(boundary(content_type).as_deref(), Some(wanted), "{content_type}");
        }
    }

    #[test]
    fn what_servers_read_differently_names_no_boundary() {
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for content_type in [
            "multipart/form-data",
            "multipart/form-data;",
            "multipart/mixed; boundary=x",
            "application/json; boundary=x",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=x; boundary=x",
            "multipart/form-data; boundary=x; Boundary=y",
            "multipart/form-data; boundary=x;",
            "multipart/form-data; boundary = x",
            "multipart/form-data; boundary=a b",
            "multipart/form-data; boundary=\"a b\"",
            "multipart/form-data; boundary=\"a\\b\"",
            "multipart/form-data; boundary=\"x",
            "multipart/form-data; boundary=x\"",
            "multipart/form-data; boundary=a,b",
            "multipart/form-data; boundary=a/b",
            "multipart/form-data, boundary=x",
            "multipart/form-data; charset; boundary=x",
            "multipart/form-data; boundary=caf\u{e9}",
            long.as_str(),
        ] {
            assert_eq!(boundary(content_type), None, "{content_type}");
        }
    }

    #[test]
    fn parts_are_read_byte_for_byte() {
        let body = b"--b\r\nA: 1\r\nB: \xc3\xa9\r\n\r\nx\n\r\n--\r\n--b\r\n\r\n\r\n--b--\r\n";
        let form = Form::read(b"b", body).unwrap();
        assert_eq!(form.parts.len(), 2);
        assert_eq!(form.parts[0], Part { head: b"A: 1\r\nB: \xc3\xa9", content: b"x\n\r\n--" });
        assert_eq!(form.parts[1], Part { head: b"", content: b"" });
        assert!(form.ends_with_line);
        assert!(!Form::read(b"b", b"--b--").unwrap().ends_with_line);
    }

    #[test]
    fn odd_bodies_are_no_forms() {
        for body in [
            &b""[..],
            b"x",
            b"--b",
            b"--b\r\n",
            b"\r\n--b--\r\n",
            b"preamble\r\n--b\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\n\r\nx\r\n--b--\r\nepilogue",
            b"--b\r\n\r\nx\r\n--b--\r\n\r\n",
            b"--b\r\n\r\nx\r\n--b--\n",
            b"--b\n\nx\n--b--\n",
            b"--b\r\nA: 1\n\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nA: 1\nB: 2\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nA: 1\r\nB\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nA: 1\r\n folded\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nA: \x00\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nA: 1\r\rB: 2\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nA: 1\r\n--b--\r\n",
            b"--b\r\n\r\n--b--\r\n",
            b"--b\r\n\r\nx\n--b--\r\n",
            b"--b\r\n\r\nx--b\r\n--b--\r\n",
            b"--b\r\nA: --b\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\n\r\nx\r\n--bb\r\n\r\ny\r\n--b--\r\n",
            b"--b \r\n\r\nx\r\n--b--\r\n",
            b"--b\r\nContent-Type: Multipart/mixed; boundary=c\r\n\r\nx\r\n--b--\r\n",
            b"--b\r\n\r\nx\r\n--c\r\n--b",
        ] {
            assert_eq!(Form::read(b"b", body), None, "{}", body.escape_ascii());
        }
        let many = |count: usize| [b"--b\r\n\r\n\r\n".repeat(count).as_slice(), b"--b--"].concat();
        assert!(Form::read(b"b", &many(PARTS_MAX)).is_some());
        assert!(Form::read(b"b", &many(PARTS_MAX + 1)).is_none());
    }
}
