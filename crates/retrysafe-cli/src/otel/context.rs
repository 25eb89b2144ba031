//! In whose trace does a request come, and how is the trace passed on? (W3C Trace Context)

use http::header::{HeaderMap, HeaderName, HeaderValue};
use retrysafe_core::trace::{TracedSpan, bytes_of};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// How much of what vendors have added is passed on; the specification asks for as much.
const STATE_BYTES_MAX: usize = 512;

/// The flag by which a caller says that it records the trace.
const SAMPLED: u8 = 1;

/// What a caller says of its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallersContext {
    /// The caller's own span.
    pub span: TracedSpan,
    pub is_sampled: bool,
    /// What vendors have added.
    pub state: Option<Box<str>>,
}

impl CallersContext {
    /// What a request says. None if it says nothing that can be read in one way only: then a trace begins here.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let line = lines.next().filter(|_| lines.next().is_none())?;
        let (span, flags) = parse(line.to_str().ok()?)?;
        Some(Self { span, is_sampled: flags & SAMPLED != 0, state: state(headers) })
    }
}

/// `VERSION-TRACE-SPAN-FLAGS`. A version of the future may have more behind that, version 00 may not.
fn parse(line: &str) -> Option<(TracedSpan, u8)> {
    let mut parts = line.split('-');
    let [version]: [u8; 1] = bytes_of(parts.next()?)?;
    let trace_id = bytes_of(parts.next()?)?;
    let span_id = bytes_of(parts.next()?)?;
    let [flags]: [u8; 1] = bytes_of(parts.next()?)?;
    let is_known = version != 0xff && (version != 0 || parts.next().is_none());
    let span = TracedSpan::new(trace_id, span_id)?;
    is_known.then_some((span, flags))
}

/// What vendors have added, in one line.
fn state(headers: &HeaderMap) -> Option<Box<str>> {
    let lines: Option<Vec<&str>> =
        headers.get_all(TRACESTATE).iter().map(|line| line.to_str().ok()).collect();
    let joined = lines?.join(",");
    (1..=STATE_BYTES_MAX).contains(&joined.len()).then(|| joined.into())
}

/// Names a span as the parent of whatever the receiver does. Whatever the caller has said is replaced.
pub(super) fn put(
    headers: &mut HeaderMap,
    span: TracedSpan,
    is_sampled: bool,
    state: Option<&str>,
) {
    let flags = if is_sampled { "01" } else { "00" };
    if let Ok(line) = HeaderValue::try_from(format!("00-{span}-{flags}")) {
        headers.insert(TRACEPARENT, line);
    }
    match state.and_then(|state| HeaderValue::from_str(state).ok()) {
        Some(state) => headers.insert(TRACESTATE, state),
        None => headers.remove(TRACESTATE),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn read(lines: &[(&'static str, &str)]) -> Option<CallersContext> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        CallersContext::read(&headers)
    }

    #[test]
    fn a_callers_span_is_read_and_passed_on() {
        let line = format!("00-{TRACE}-{SPAN}-01");
        let read = read(&[("traceparent", &line), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let read = read.unwrap();
        assert!(read.is_sampled);
        assert_eq!(read.state.as_deref(), Some("a=1,b=2"));
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", "forged=1".parse().unwrap());
        put(&mut headers, read.span, true, None);
        assert_eq!(headers["traceparent"], line);
        assert!(!headers.contains_key("tracestate"));
    }

    #[test]
    fn flags_and_versions_of_the_future_are_read_as_the_specification_says() {
        let of = |line: &str| read(&[("traceparent", line)]).map(|context| context.is_sampled);
        assert_eq!(of(&format!("00-{TRACE}-{SPAN}-00")), Some(false));
        assert_eq!(of(&format!("00-{TRACE}-{SPAN}-03")), Some(true));
        assert_eq!(of(&format!("01-{TRACE}-{SPAN}-01-more")), Some(true));
        for wrong in [
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}{SPAN}-01"),
            String::from("nonsense"),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
        let line = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(read(&[("traceparent", &line), ("traceparent", &line)]), None, "twice");
    }
}
