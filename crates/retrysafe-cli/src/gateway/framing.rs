//! Where does a message end?
//!
//! The HTTP client is lenient with answers: beside a transfer coding it ignores a length, and it
//! takes any coding that it does not know for "until the connection ends". Whoever reads the answer
//! after us may decide otherwise, and would then take the rest of one caller's answer for the next
//! caller's. So an answer that can be read in two ways is refused, and no framing is copied in either
//! direction: it is written anew from the body that travels on.

use http::header::{self, Entry, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode, Version};

/// What the connection of an answer is good for, once the answer was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// The next request may use it.
    Reused,
    /// It is closed: bytes may follow that belong to no answer.
    Closed,
}

/// Takes the framing off an answer's head. The answer to `HEAD`, and a 304, keep the length of what
/// they describe. The version goes as well: an answer in HTTP/1.0 would be written without any framing,
/// and its caller could not tell its end from a broken connection.
///
/// # Errors
///
/// Why nobody can say where the answer ends.
pub(crate) fn take<B>(
    asked: &Method,
    response: &mut Response<B>,
) -> Result<Afterwards, &'static str> {
    *response.version_mut() = Version::HTTP_11;
    let status = response.status();
    let headers = response.headers_mut();
    let length = take_length(headers);
    let coding = take_coding(headers);
    let is_description = *asked == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    if is_description {
        if let (Coding::None, Length::Is(length)) = (coding, length) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        let may_follow = *asked != Method::HEAD && coding != Coding::None;
        return Ok(if may_follow { Afterwards::Closed } else { Afterwards::Reused });
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Afterwards::Closed);
    }
    if status == StatusCode::NO_CONTENT {
        let is_empty = matches!(length, Length::None | Length::Is(0)) && coding == Coding::None;
        return Ok(if is_empty { Afterwards::Reused } else { Afterwards::Closed });
    }
    match (coding, length) {
        (Coding::None, Length::None | Length::Is(_)) | (Coding::Chunked, Length::None) => {
            Ok(Afterwards::Reused)
        }
        (Coding::None, Length::Unclear) => Err("the answer has a length that is no number"),
        (Coding::Chunked, Length::Is(_) | Length::Unclear) => {
            Err("the answer has a length and a transfer coding")
        }
        (Coding::Other, _) => Err("the answer has a transfer coding other than chunked"),
    }
}

/// Writes the framing of a request. `length` is that of its body, if it is known beforehand.
pub(crate) fn put(asked: &Method, length: Option<u64>, headers: &mut HeaderMap) {
    let was_stated = headers.remove(header::CONTENT_LENGTH).is_some();
    let is_expected = [Method::POST, Method::PUT, Method::PATCH].contains(asked);
    headers.remove(header::TRANSFER_ENCODING);
    match length {
        // The client would take a body whose length nobody knows for none at all, if the method were
        // GET, unless it is told.
        None => {
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Some(0) if !was_stated && !is_expected => {}
        Some(length) => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    None,
    /// One coding, which every recipient knows.
    Chunked,
    /// Another one, or several.
    Other,
}

fn take_coding(headers: &mut HeaderMap) -> Coding {
    let Entry::Occupied(field) = headers.entry(header::TRANSFER_ENCODING) else {
        return Coding::None;
    };
    let mut lines = field.iter();
    let is_chunked = |line: &HeaderValue| line.as_bytes().eq_ignore_ascii_case(b"chunked");
    let coding = match (lines.next(), lines.next()) {
        (Some(line), None) if is_chunked(line) => Coding::Chunked,
        (Some(_) | None, _) => Coding::Other,
    };
    field.remove();
    coding
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    None,
    /// Stated once, or several times alike (RFC 9110 §8.6).
    Is(u64),
    /// Stated differently, or not as a number.
    Unclear,
}

fn take_length(headers: &mut HeaderMap) -> Length {
    let Entry::Occupied(field) = headers.entry(header::CONTENT_LENGTH) else {
        return Length::None;
    };
    let mut lines = field.iter();
    let found = match (lines.next().and_then(|line| number(line.as_bytes())), lines.next()) {
        (Some(length), None) => Length::Is(length),
        (Some(_) | None, _) => length(field.iter()),
    };
    field.remove();
    found
}

/// The length that several statements agree about.
fn length<'a>(lines: impl Iterator<Item = &'a HeaderValue>) -> Length {
    let mut found = Length::None;
    for stated in lines.flat_map(|line| line.as_bytes().split(|b| *b == b',')) {
        let length = match number(stated.trim_ascii()) {
            Some(length) => Length::Is(length),
            None => Length::Unclear,
        };
        match found {
            Length::None => found = length,
            Length::Is(_) | Length::Unclear if found == length => {}
            Length::Is(_) | Length::Unclear => return Length::Unclear,
        }
    }
    found
}

/// Digits alone: a sign, which Rust would take, is none.
fn number(digits: &[u8]) -> Option<u64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of an answer with these fields, and the length that is left in its head.
    fn taken(
        asked: Method,
        status: u16,
        fields: &[(&'static str, &'static str)],
    ) -> (Result<Afterwards, &'static str>, Option<String>) {
        let mut response = Response::builder().status(status).version(Version::HTTP_10);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let mut response = response.body(()).unwrap();
        let taken = take(&asked, &mut response);
        assert_eq!(response.version(), Version::HTTP_11);
        let headers = response.headers();
        assert!(!headers.contains_key(header::TRANSFER_ENCODING));
        let left = headers.get(header::CONTENT_LENGTH).map(|left| left.to_str().unwrap().into());
        (taken, left)
    }

    const CHUNKED: (&str, &str) = ("transfer-encoding", "Chunked");

    #[test]
    fn one_framing_is_enough_and_is_not_copied() {
        for fields in [
            &[][..],
            &[CHUNKED],
            &[("content-length", "2")],
            &[("content-length", "002")],
            &[("content-length", "2"), ("content-length", "02")],
            &[("content-length", "2, 2")],
        ] {
            assert_eq!(
                taken(Method::GET, 200, fields),
                (Ok(Afterwards::Reused), None),
                "{fields:?}"
            );
        }
    }

    #[test]
    fn two_framings_are_refused_in_any_order() {
        for fields in [
            &[CHUNKED, ("content-length", "2")][..],
            &[("content-length", "2"), CHUNKED],
            &[("content-length", "x"), CHUNKED],
            &[("content-length", "2"), ("content-length", "3")],
            &[("content-length", "2,3")],
            &[("content-length", "")],
            &[("content-length", "+2")],
            &[("content-length", "18446744073709551616")],
            &[CHUNKED, CHUNKED],
            &[("transfer-encoding", "chunked, chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "gzip"), CHUNKED],
            &[("transfer-encoding", "identity")],
            &[("transfer-encoding", "identity"), ("content-length", "2")],
            &[("transfer-encoding", "")],
        ] {
            assert!(taken(Method::POST, 201, fields).0.is_err(), "{fields:?}");
        }
    }

    #[test]
    fn a_description_keeps_its_length_and_nothing_else() {
        let kept = |asked, status, fields: &[_]| taken(asked, status, fields);
        let reused = Ok(Afterwards::Reused);
        for (asked, status) in [(Method::HEAD, 200), (Method::HEAD, 304), (Method::GET, 304)] {
            let fields = &[("content-length", "007")];
            assert_eq!(kept(asked.clone(), status, fields), (reused, Some("7".into())));
            assert_eq!(kept(asked.clone(), status, &[("content-length", "x")]), (reused, None));
            assert_eq!(kept(asked, status, &[]), (reused, None));
        }
        assert_eq!(kept(Method::HEAD, 200, &[CHUNKED]), (reused, None));
        let both = &[CHUNKED, ("content-length", "2")];
        assert_eq!(kept(Method::HEAD, 200, both), (reused, None));
    }

    #[test]
    fn a_body_that_may_not_be_there_ends_the_connection() {
        let closed = (Ok(Afterwards::Closed), None);
        for fields in [&[CHUNKED][..], &[("content-length", "2")], &[("content-length", "x")]] {
            assert_eq!(taken(Method::POST, 204, fields), closed, "{fields:?}");
        }
        assert_eq!(taken(Method::GET, 304, &[CHUNKED]), closed);
        for fields in [&[][..], &[("content-length", "0")]] {
            assert_eq!(taken(Method::POST, 204, fields), (Ok(Afterwards::Reused), None));
        }
    }

    #[test]
    fn a_request_is_framed_in_one_way() {
        let framed = |asked: Method, length, stated: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in stated {
                headers.append(header::CONTENT_LENGTH, HeaderValue::from_static(value));
            }
            put(&asked, length, &mut headers);
            let fields = headers.iter().map(|(name, value)| format!("{name}: {value:?}"));
            fields.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(framed(Method::GET, Some(0), &[]), "");
        assert_eq!(framed(Method::GET, Some(0), &["000"]), "content-length: \"0\"");
        assert_eq!(framed(Method::POST, Some(0), &[]), "content-length: \"0\"");
        assert_eq!(framed(Method::POST, Some(5), &["5", "5"]), "content-length: \"5\"");
        assert_eq!(framed(Method::GET, Some(5), &["005"]), "content-length: \"5\"");
        for asked in [Method::GET, Method::HEAD, Method::PUT] {
            assert_eq!(framed(asked, None, &["5"]), "transfer-encoding: \"chunked\"");
        }
    }
}
