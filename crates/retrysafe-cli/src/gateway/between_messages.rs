//! Does hyper stand between two messages?
//!
//! Whoever answers a request in hyper's place must be sure that hyper holds nothing: no byte of a request that it has not read, and no
//! byte of an answer that it has not sent. hyper does not say so. But it reads and writes through us, and that is enough to prove it. The
//! names below are those of `proto/h1` in hyper 1.12 (`dispatch.rs`, `conn.rs`, `io.rs`), for a server that permits a half-closed connection
//! and does not pipeline its flushes. With another version of hyper, read them again; a random test in `same_bytes.rs` compares with hyper alone.
//!
//! 1. We see every byte that hyper is given, and take note of it only if it is one whole request whose end every reader sees in the same
//!    place ([`Read::Whole`]): with a `Content-Length` or without a body, in HTTP/1.1, with lines that end in CR LF, not chunked, without
//!    `Expect` and `Upgrade`. Where the scan here and hyper's parser could differ in anything else, hyper refuses the request, answers 400
//!    and reads no more (`on_read_head_error` closes the reading side).
//! 2. hyper asks for more bytes in two states alone: within a body (`Reading::Body`, and its decoder lacks bytes), or when it waits for a
//!    head (`Reading::Init`, from `Buffered::parse` or `maybe_notify`, and it holds no whole head). While an answer is on its way it asks
//!    for none: `mid_message_detect_eof` does not read where half-closed connections are permitted. Having been given whole requests alone,
//!    hyper cannot lack bytes of a body, nor hold a part of a head. So if it asks, it is in `Reading::Init` with an empty buffer.
//! 3. After a request, `Reading::Init` is reached in `State::idle` alone, which needs `Writing::KeepAlive`: the answer was written to
//!    hyper's own buffer to its end, and the connection goes on. A connection that must not go on is closed there, and never read again.
//! 4. `Buffered::poll_flush` passes a flush on only when that buffer is empty. So when hyper flushes after the last answer's body was
//!    dropped, which is when hyper has taken its last byte, the answer is with us. A write after that takes the proof back.
//!
//! So hyper stands between two messages when it has been given one whole request ([`Stand::Given`]), then flushes while no request is
//! under way ([`Stand::Flushed`]), and then asks for more ([`Stand::Between`]). Anything else that happens on the way makes the stand
//! [`Stand::Unproven`], for as long as the connection lives: then nobody answers in hyper's place.

use memchr::memchr;

/// What some bytes are that begin where a message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// One request, whole, and nothing else.
    Whole,
    /// The head of a request, whole, and a body that lacks so many bytes.
    Lacks(usize),
    /// Anything else: a part of a head, more than one request, or one whose end could be seen in two places.
    Odd,
}

/// Where hyper stands, as far as it is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// Between two messages, or before the first: it holds nothing, and waits for a head.
    Between,
    /// It was given the head of a request, and so many bytes of the body are still to come.
    Lacking(usize),
    /// It was given a whole request.
    Given,
    /// It has answered that request, and has sent all of the answer.
    Flushed,
    /// Nobody knows.
    Unproven,
}

impl Read {
    /// Looks at bytes that begin where a message begins.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let Some((body, length)) = body_of(bytes) else { return Self::Odd };
        match length.checked_sub(body.len()) {
            Some(0) => Self::Whole,
            Some(lacks) => Self::Lacks(lacks),
            None => Self::Odd,
        }
    }
}

impl Stand {
    /// hyper asks for bytes.
    pub(super) fn asked(self) -> Self {
        match self {
            Self::Between | Self::Flushed => Self::Between,
            Self::Lacking(lacks) => Self::Lacking(lacks),
            Self::Given | Self::Unproven => Self::Unproven,
        }
    }

    /// hyper is given bytes, or the end of the connection.
    pub(super) fn given(self, bytes: &[u8]) -> Self {
        match self {
            Self::Between => match Read::of(bytes) {
                Read::Whole => Self::Given,
                Read::Lacks(lacks) => Self::Lacking(lacks),
                Read::Odd => Self::Unproven,
            },
            Self::Lacking(lacks) if !bytes.is_empty() => match lacks.checked_sub(bytes.len()) {
                Some(0) => Self::Given,
                Some(lacks) => Self::Lacking(lacks),
                None => Self::Unproven,
            },
            Self::Lacking(_) | Self::Given | Self::Flushed | Self::Unproven => Self::Unproven,
        }
    }

    /// hyper writes.
    pub(super) fn wrote(self) -> Self {
        match self {
            Self::Lacking(lacks) => Self::Lacking(lacks),
            Self::Given | Self::Flushed => Self::Given,
            // Nobody has asked it for anything.
            Self::Between | Self::Unproven => Self::Unproven,
        }
    }

    /// hyper has flushed all that it has written.
    pub(super) fn flushed(self, is_nothing_under_way: bool) -> Self {
        if self == Self::Given && is_nothing_under_way { Self::Flushed } else { self }
    }
}

/// What follows a head, and how many bytes of it are the body. None for what is not read here.
fn body_of(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (request_line, mut rest) = split_line(bytes)?;
    if !request_line.ends_with(b" HTTP/1.1") || request_line.starts_with(b"CONNECT ") {
        return None;
    }
    let mut length = None;
    loop {
        let (line, after) = split_line(rest)?;
        rest = after;
        if line.is_empty() {
            return Some((rest, length.unwrap_or(0)));
        }
        let (name, value) = line.split_at_checked(memchr(b':', line)?)?;
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        match name.len() {
            6 if is(b"expect") => return None,
            7 if is(b"upgrade") => return None,
            17 if is(b"transfer-encoding") => return None,
            10 if is(b"connection") && !value_of(value).eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            14 if is(b"content-length") => {
                let former = length.replace(number_of(value_of(value))?);
                if former.is_some() {
                    return None;
                }
            }
            _ => {}
        }
    }
}

/// A line without its end, which must be CR LF, and what follows it.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (line, rest) = bytes.split_at_checked(memchr(b'\n', bytes)?)?;
    Some((line.strip_suffix(b"\r")?, rest.get(1..)?))
}

/// The value behind a colon.
fn value_of(behind_name: &[u8]) -> &[u8] {
    behind_name.strip_prefix(b":").unwrap_or_default().trim_ascii()
}

/// A number of digits alone, which a body could have as its length.
fn number_of(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Read {
        Read::of(text.as_bytes())
    }

    #[test]
    fn one_request_with_nothing_behind_it_is_whole() {
        for whole in [
            "GET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
            "POST / HTTP/1.1\r\ncontent-LENGTH:  2 \r\nConnection: Keep-Alive\r\n\r\nab",
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        ] {
            assert_eq!(read(whole), Read::Whole, "{whole:?}");
            assert_eq!(read(&format!("{whole}G")), Read::Odd, "{whole:?}");
            assert_eq!(read(&format!("{whole}{whole}")), Read::Odd, "{whole:?}");
        }
        assert_eq!(read("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"), Read::Lacks(7));
    }

    #[test]
    fn whatever_could_end_elsewhere_is_odd() {
        for odd in [
            "",
            "\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\n\n",
            "GET / HTTP/1.1\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: \r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
            "GET / HTTP/1.1\r\nUpgrade: x\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: keep-alive, close\r\n\r\n",
        ] {
            assert_eq!(read(odd), Read::Odd, "{odd:?}");
        }
    }

    const WHOLE: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab";

    #[test]
    fn the_stand_is_proven_by_a_request_a_flush_and_a_question() {
        let given = Stand::Between.asked().given(WHOLE);
        assert_eq!(given, Stand::Given);
        assert_eq!(given.wrote().flushed(true).asked(), Stand::Between);
        // It may flush before it has answered, and write in several pieces.
        let answering = given.flushed(false).wrote().wrote().flushed(false);
        assert_eq!(answering, Stand::Given);
        assert_eq!(answering.wrote().flushed(true).asked().asked(), Stand::Between);
        let (start, end) = WHOLE.split_at(WHOLE.len() - 1);
        let in_two = Stand::Between.given(start).asked().given(end);
        assert_eq!(in_two, Stand::Given);
    }

    #[test]
    fn whatever_else_happens_is_no_proof_ever_again() {
        let given = Stand::Given;
        for lost in [
            given.asked(),
            given.wrote().asked(),
            given.flushed(false).asked(),
            // An answer that was flushed, and then something was added to it.
            given.wrote().flushed(true).wrote().asked(),
            given.given(WHOLE),
            given.flushed(true).given(WHOLE),
            Stand::Between.wrote(),
            Stand::Between.given(b""),
            Stand::Between.given(b"GET /"),
            Stand::Lacking(1).given(b"aG"),
            Stand::Lacking(1).given(b""),
        ] {
            assert_eq!(lost, Stand::Unproven);
            let later = lost.asked().given(WHOLE).wrote().flushed(true).asked();
            assert_eq!(later, Stand::Unproven);
        }
    }
}
