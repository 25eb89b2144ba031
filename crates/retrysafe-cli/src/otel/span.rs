//! What is told about a span?

use std::time::Duration;

use retrysafe_core::trace::TracedSpan;

/// The longest text of an attribute, in bytes. A path may be longer.
const TEXT_BYTES_MAX: usize = 1_024;

/// Whose work a span is, by OpenTelemetry's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttributeValue {
    Text(Box<str>),
    Number(i64),
}

/// Something that is said about a span.
pub(super) type Attribute = (&'static str, AttributeValue);

/// A span that is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FinishedSpan {
    pub span: TracedSpan,
    pub parent: Option<[u8; 8]>,
    pub state: Option<Box<str>>,
    pub name: Box<str>,
    pub kind: SpanKind,
    /// Since 1970.
    pub started: Duration,
    pub ended: Duration,
    pub attributes: Vec<Attribute>,
    /// The execution whose answer this is.
    pub link: Option<TracedSpan>,
    /// What went wrong, if something did.
    pub error: Option<&'static str>,
}

/// An attribute that is a text.
pub(super) fn text(name: &'static str, value: &str) -> Attribute {
    let end = value.floor_char_boundary(TEXT_BYTES_MAX);
    (name, AttributeValue::Text(value.get(..end).unwrap_or_default().into()))
}

/// An attribute that is a number.
pub(super) fn number(name: &'static str, value: impl Into<i64>) -> Attribute {
    (name, AttributeValue::Number(value.into()))
}

/// Nanoseconds since 1970, as they travel.
pub(super) fn nanoseconds(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}
