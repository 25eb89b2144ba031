//! How do spans look in OTLP's JSON?

use serde_json::{Value, json};

use super::span::{Attribute, AttributeValue, FinishedSpan, nanoseconds};
use super::variables::Resource;

/// The body of one request to a collector.
pub(super) fn encode(resource: &Resource, spans: &[FinishedSpan]) -> Vec<u8> {
    let attributes = resource.0.iter().map(|(key, value)| text(key, value));
    let document = json!({
        "resourceSpans": [{
            "resource": {"attributes": attributes.collect::<Vec<_>>()},
            "scopeSpans": [{
                "scope": {"name": "retrysafe", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans.iter().map(span).collect::<Vec<_>>(),
            }],
        }],
    });
    document.to_string().into_bytes()
}

fn span(span: &FinishedSpan) -> Value {
    let mut document = json!({
        "traceId": span.span.trace_hex(),
        "spanId": span.span.span_hex(),
        "name": span.name,
        "kind": span.kind as u8,
        // 64 bits are texts in the JSON of protocol buffers.
        "startTimeUnixNano": nanoseconds(span.started).to_string(),
        "endTimeUnixNano": nanoseconds(span.ended).to_string(),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    let mut put = |name: &str, value: Option<Value>| {
        if let (Some(members), Some(value)) = (document.as_object_mut(), value) {
            members.insert(name.to_owned(), value);
        }
    };
    let parent = |id: [u8; 8]| format!("{:016x}", u64::from_be_bytes(id)).into();
    put("parentSpanId", span.parent.map(parent));
    put("traceState", span.state.as_deref().map(Value::from));
    put(
        "links",
        span.link.map(|link| json!([{"traceId": link.trace_hex(), "spanId": link.span_hex()}])),
    );
    put("status", span.error.map(|why| json!({"code": 2, "message": why})));
    document
}

fn attribute((name, value): &Attribute) -> Value {
    match value {
        AttributeValue::Text(value) => text(name, value),
        AttributeValue::Number(value) => {
            json!({"key": name, "value": {"intValue": value.to_string()}})
        }
    }
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}
