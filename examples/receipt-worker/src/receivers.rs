//! Who receives what, and what does an answer mean?

use std::time::Duration;

use retrysafe::outbox::{Delivered, Delivery, DeliveryEnd, DeliveryError, Receiver};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A delivery is cut off after this long; its lease is three times as long.
const DEADLINE: Duration = Duration::from_secs(5);

/// For how long whoever pushes remembers a key: a lease, a deadline, and five seconds in which a push is sent again.
const SHORT_MEMORY: Duration = Duration::from_secs(25);

/// The kinds, and what their receivers promise.
pub(crate) fn all() -> [(&'static str, Receiver); 3] {
    let receivers = [
        ("receipt", Receiver::remembers_keys_for(DAY)),
        ("message", Receiver::takes_no_key()),
        ("push", Receiver::remembers_keys_for(SHORT_MEMORY).margin(Duration::ZERO)),
    ];
    receivers.map(|(kind, receiver)| {
        let pauses = (Duration::from_millis(100), Duration::from_secs(10));
        (kind, receiver.deadline(DEADLINE).backoff(pauses.0, pauses.1))
    })
}

/// Sends an effect to its destination, once.
pub(crate) async fn deliver(
    client: reqwest::Client,
    delivery: Delivery,
) -> Result<DeliveryEnd, DeliveryError> {
    let Some(destination) = delivery.destination() else {
        return Ok(DeliveryEnd::rejected("it was staged without a destination"));
    };
    let mut request = client.post(destination).header("idempotency-key", delivery.key());
    if let Some(content_type) = delivery.content_type() {
        request = request.header("content-type", content_type);
    }
    let answer = match request.body(delivery.payload().clone()).send().await {
        Ok(answer) => answer,
        // There was no connection, so not a byte has left.
        Err(error) if error.is_connect() => return Ok(DeliveryEnd::no_effect(error)),
        Err(error) => return Ok(DeliveryEnd::unknown(error)),
    };
    let status = answer.status();
    Ok(match status.as_u16() {
        200..=299 => DeliveryEnd::Delivered(reference(answer).await),
        429 => DeliveryEnd::no_effect(format!("it answered {status}")),
        400 | 402 | 422 => DeliveryEnd::rejected(format!("it answered {status}")),
        _ => DeliveryEnd::unknown(format!("it answered {status}")),
    })
}

/// What the receiver calls it. An answer that cannot be read to its end confirms all the same.
async fn reference(answer: reqwest::Response) -> Delivered {
    let body = answer.bytes().await.unwrap_or_default();
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = document.get("charge").and_then(serde_json::Value::as_str);
    name.map_or_else(Delivered::default, Delivered::known_as)
}
