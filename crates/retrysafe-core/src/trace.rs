//! In which trace was a request executed, and how does its record keep that?
//!
//! A begin leaves one text on its record's timeline: the id of its request. Where the request is traced, the span in which
//! it is executed stands behind that id, after a line's end, which no header can hold. So every store keeps it, in the form
//! that it has always had, and a replay can be linked to the execution that it repeats.

use std::fmt;

use crate::hex::hex;

/// How long the text that a begin leaves may be, in bytes.
pub const BEGIN_TEXT_BYTES_MAX: usize = 128;

/// What stands between the id of a request and its span.
const SEPARATOR: char = '\n';

/// One span of a trace, as W3C Trace Context and OpenTelemetry name them.
///
/// ```
/// use retrysafe_core::trace::TracedSpan;
///
/// let text = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
/// assert_eq!(TracedSpan::parse(text).map(|span| span.to_string()).as_deref(), Some(text));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TracedSpan {
    /// The trace. Never all zeros.
    pub trace_id: [u8; 16],
    /// The span within it. Never all zeros.
    pub span_id: [u8; 8],
}

/// Which request began an execution, as far as the begin has kept it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeginOrigin<'a> {
    /// The id by which logs know the request.
    pub request_id: Option<&'a str>,
    /// The span in which it was executed, if it was traced.
    pub span: Option<TracedSpan>,
}

impl TracedSpan {
    /// The span of its two ids; none if one of them is all zeros, which is no id.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8]) -> Option<Self> {
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id })
    }

    /// Reads `TRACE-SPAN`, 32 and 16 hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let (trace_id, span_id) = text.split_once('-')?;
        Self::new(bytes_of(trace_id)?, bytes_of(span_id)?)
    }

    /// The trace's id, in hexadecimal digits.
    pub fn trace_hex(&self) -> String {
        hex(&self.trace_id)
    }

    /// The span's id, in hexadecimal digits.
    pub fn span_hex(&self) -> String {
        hex(&self.span_id)
    }
}

/// `TRACE-SPAN`.
impl fmt::Display for TracedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.trace_hex(), self.span_hex())
    }
}

/// Hexadecimal digits in lower case, as W3C Trace Context demands, as bytes.
pub fn bytes_of<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *byte = value(high)? << 4 | value(low)?;
    }
    Some(bytes)
}

/// What a begin keeps of a traced request. An id that leaves no room for the span is kept alone: logs are searched for it.
pub fn begin_text(request_id: Option<&str>, span: TracedSpan) -> Box<str> {
    let request_id = request_id.unwrap_or_default();
    let text = format!("{request_id}{SEPARATOR}{span}");
    if text.len() <= BEGIN_TEXT_BYTES_MAX { text.into() } else { request_id.into() }
}

/// Reads what a begin has kept.
pub fn read_begin_text(text: &str) -> BeginOrigin<'_> {
    let split = text.split_once(SEPARATOR);
    match split.map(|(id, span)| (id, TracedSpan::parse(span))) {
        Some((id, Some(span))) => {
            BeginOrigin { request_id: (!id.is_empty()).then_some(id), span: Some(span) }
        }
        Some((_, None)) | None => BeginOrigin { request_id: Some(text), span: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

    #[test]
    fn what_a_begin_keeps_is_read_again() {
        let span = TracedSpan::parse(SPAN).unwrap();
        for request_id in [None, Some("r-1"), Some("a-b/c=d")] {
            let text = begin_text(request_id, span);
            assert_eq!(read_begin_text(&text), BeginOrigin { request_id, span: Some(span) });
        }
    }

    #[test]
    fn an_id_that_leaves_no_room_is_kept_alone() {
        let span = TracedSpan::parse(SPAN).unwrap();
        let room = BEGIN_TEXT_BYTES_MAX - SPAN.len() - 1;
        let fits = "x".repeat(room);
        assert_eq!(read_begin_text(&begin_text(Some(&fits), span)).span, Some(span));
        let long = "x".repeat(room + 1);
        assert_eq!(&*begin_text(Some(&long), span), long);
    }

    #[test]
    fn what_is_no_span_belongs_to_the_id() {
        for text in ["r-1", "a\nb", "a\n4bf9-00f0", &format!("a\n{}", SPAN.to_uppercase())] {
            assert_eq!(read_begin_text(text), BeginOrigin { request_id: Some(text), span: None });
        }
    }

    #[test]
    fn zeros_are_no_ids() {
        for text in [
            "00000000000000000000000000000000-00f067aa0ba902b7",
            "4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000",
            "4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7",
            "4bf92f3577b34da6a3ce929d0e0e4736",
        ] {
            assert_eq!(TracedSpan::parse(text), None, "{text}");
        }
    }
}
