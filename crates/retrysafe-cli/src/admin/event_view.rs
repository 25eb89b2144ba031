//! How is an event of a provider shown to an operator?

use retrysafe::webhooks::{EventAbout, EventDetails, ShownEvent};
use serde_json::{Map, Value};

use super::view::{printable, time};

/// An event in a list.
pub(crate) fn summary(event: &ShownEvent) -> Map<String, Value> {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Value| {
        shown.insert(name.into(), value);
    };
    let clean = |text: &String| printable(text.as_bytes());
    put("id", event.id.into());
    put("state", event.standing.name().into());
    put("provider", event.provider.as_str().into());
    put("event_id", clean(&event.event_id).into());
    put("received_at", time(event.received_at).into());
    put("happened_at", event.happened_at.map(time).into());
    put("copies", event.copies.into());
    put("names", event.names.iter().map(clean).collect::<Vec<_>>().into());
    put("matched", event.matched.as_deref().into());
    put("fence", event.fence.into());
    put("reason", event.reason.as_ref().map(clean).into());
    match event.ended_at {
        Some(at) => put("ended_at", time(at).into()),
        None => put("wait_until", time(event.wait_until).into()),
    }
    shown
}

/// An event in the story of a record.
pub(crate) fn about(about: &EventAbout) -> Value {
    let mut shown = summary(&about.event);
    shown.insert("owner".into(), if about.is_sure { "this" } else { "unclear" }.into());
    Value::Object(shown)
}

/// An event by itself, with the beginning of its payload.
pub(crate) fn whole(details: &EventDetails) -> Value {
    let mut shown = summary(&details.event);
    shown.insert("looks".into(), details.event.looks.into());
    shown.insert("payload_bytes".into(), details.event.payload_bytes.into());
    shown.insert("payload_head".into(), printable(&details.payload_head).into());
    Value::Object(shown)
}
