//! Does a provider's webhook decide what nobody knows: once, rightly, or not at all?
//!
//! Each path to a decision is played over the disk store, which has no inbox, and over PostgreSQL, which has one.

mod attacks;
mod decisions;
mod desk;
mod effects;
mod inbox;
mod pages;
mod stripe;

use serde_json::Value;

use super::kit::{Gateway, Message, send};

/// Delivers an event of a provider that has the first secret, with a header of the sender's own.
pub(crate) fn deliver(
    gateway: &Gateway,
    provider: &str,
    id: &str,
    note: &str,
    event: &Value,
) -> Message {
    let body = event.to_string();
    let path = format!("/hooks/{provider}");
    let signed = desk::signed(&path, desk::SECRET, id, desk::now(), body.as_bytes());
    let line_end = signed.windows(2).position(|bytes| bytes == b"\r\n").unwrap();
    let (line, rest) = signed.split_at(line_end);
    send(gateway.address, &[line, format!("\r\nX-Note: {note}").as_bytes(), rest].concat())
}
