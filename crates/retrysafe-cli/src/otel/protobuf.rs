//! How do spans look as protocol buffers? (OTLP 1.x, `opentelemetry/proto/trace/v1/trace.proto`)
//!
//! A message is a list of fields, each with its number. Only three forms of field are needed here, so they are written by hand.

use super::span::{Attribute, AttributeValue, FinishedSpan, nanoseconds};
use super::variables::Resource;

/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;

/// The body of one request to a collector.
pub(super) fn encode(resource: &Resource, spans: &[FinishedSpan]) -> Vec<u8> {
    let mut about = Message::default();
    for (key, value) in &resource.0 {
        about.message(1, &text(key, value));
    }
    let mut scope = Message::default();
    scope.bytes(1, b"retrysafe");
    scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    let mut of_scope = Message::default();
    of_scope.message(1, &scope);
    for span in spans {
        of_scope.message(2, &encode_span(span));
    }
    let mut of_resource = Message::default();
    of_resource.message(1, &about);
    of_resource.message(2, &of_scope);
    let mut request = Message::default();
    request.message(1, &of_resource);
    request.0
}

fn encode_span(span: &FinishedSpan) -> Message {
    let mut out = Message::default();
    out.bytes(1, &span.span.trace_id);
    out.bytes(2, &span.span.span_id);
    if let Some(state) = &span.state {
        out.bytes(3, state.as_bytes());
    }
    if let Some(parent) = &span.parent {
        out.bytes(4, parent);
    }
    out.bytes(5, span.name.as_bytes());
    out.number(6, span.kind as u64);
    out.fixed(7, nanoseconds(span.started));
    out.fixed(8, nanoseconds(span.ended));
    for attribute in &span.attributes {
        out.message(9, &encode_attribute(attribute));
    }
    if let Some(link) = &span.link {
        let mut linked = Message::default();
        linked.bytes(1, &link.trace_id);
        linked.bytes(2, &link.span_id);
        out.message(13, &linked);
    }
    if let Some(why) = span.error {
        let mut status = Message::default();
        status.bytes(2, why.as_bytes());
        status.number(3, ERROR);
        out.message(15, &status);
    }
    out
}

fn encode_attribute((name, value): &Attribute) -> Message {
    match value {
        AttributeValue::Text(value) => text(name, value),
        AttributeValue::Number(value) => {
            let mut number = Message::default();
            // A negative number travels as the 64 bits that it has.
            number.number(3, u64::from_ne_bytes(value.to_ne_bytes()));
            let mut out = Message::default();
            out.bytes(1, name.as_bytes());
            out.message(2, &number);
            out
        }
    }
}

fn text(name: &str, value: &str) -> Message {
    let mut string = Message::default();
    string.bytes(1, value.as_bytes());
    let mut out = Message::default();
    out.bytes(1, name.as_bytes());
    out.message(2, &string);
    out
}

/// Fields, one after the other.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Seven bits a byte, the lowest first.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn fixed(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn message(&mut self, field: u64, value: &Self) {
        self.bytes(field, &value.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retrysafe_core::trace::TracedSpan;

    use super::super::span::{self, SpanKind};
    use super::*;

    /// What OpenTelemetry's own classes for Python (`opentelemetry-proto` of PyPI) write for the same span.
    const OF_PYTHON: &str = "\
        0ae0010a170a150a0c736572766963652e6e616d6512050a0370617912c4010a120a09726574727973616665\
        1205302e312e3012ad010a10abababababababababababababababab1208cdcdcdcdcdcdcdcd1a03613d3122\
        08efefefefefefefef2a09504f5354202f7061793002397b002a36fe9c971741c8cbc471fe9c97174a120a08\
        75726c2e7061746812060a042f7061794a200a19687474702e726573706f6e73652e7374617475735f636f64\
        65120318f7036a1c0a1012121212121212121212121212121212120834343434343434347a0d120969742066\
        61696c65641802";

    #[test]
    fn a_span_has_the_bytes_that_others_write() {
        // The version stands in the bytes.
        assert_eq!(env!("CARGO_PKG_VERSION"), "0.1.0", "make the bytes anew");
        let resource = Resource(vec![("service.name".into(), "pay".into())]);
        let span = FinishedSpan {
            span: TracedSpan { trace_id: [0xab; 16], span_id: [0xcd; 8] },
            parent: Some([0xef; 8]),
            state: Some("a=1".into()),
            name: "POST /pay".into(),
            kind: SpanKind::Server,
            started: Duration::from_nanos(1_700_000_000_000_000_123),
            ended: Duration::from_nanos(1_700_000_001_000_000_456),
            attributes: vec![
                span::text("url.path", "/pay"),
                span::number("http.response.status_code", 503),
            ],
            link: Some(TracedSpan { trace_id: [0x12; 16], span_id: [0x34; 8] }),
            error: Some("it failed"),
        };
        let bytes = encode(&resource, &[span]);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, OF_PYTHON);
    }
}
