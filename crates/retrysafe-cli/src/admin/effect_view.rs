//! How is an effect shown to an operator?
//!
//! Of its payload the beginning is shown: it is what tells one receipt from another. Times are RFC 3339, by the
//! database's clock.

use retrysafe::outbox::{EffectDetails, EffectStanding, EffectVerb, OutboxStats, ShownEffect};
use serde_json::{Map, Value, json};

use super::view::{printable, time};

/// An effect in a list.
pub(crate) fn summary(effect: &ShownEffect) -> Value {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Value| {
        shown.insert(name.into(), value);
    };
    put("id", effect.id.into());
    put("state", effect.standing.name().into());
    put("kind", effect.kind.as_str().into());
    put("lane", effect.lane.as_deref().into());
    put("name", effect.name.as_deref().into());
    put("key", effect.key.as_str().into());
    put("destination", effect.destination.as_deref().into());
    put("failures", effect.failures.into());
    put("crashes", effect.crashes.into());
    put("last_error", effect.last_error.as_deref().map(clean).into());
    put("fence", effect.fence.into());
    put("staged_at", time(effect.staged_at).into());
    put("record", effect.record.as_deref().into());
    let moment = match effect.standing {
        EffectStanding::Waiting | EffectStanding::Ready => "due_at",
        EffectStanding::Leased => "lease_until",
        EffectStanding::Unknown
        | EffectStanding::Dead
        | EffectStanding::Delivered
        | EffectStanding::Cancelled => "since",
    };
    put(moment, time(effect.at).into());
    if effect.standing.is_over() {
        put("reference", effect.reference.as_deref().map(clean).into());
    } else {
        put("was_sent", effect.marked_by.is_some().into());
        put("resend_until", effect.resend_until.map(time).into());
        put("content_type", effect.content_type.as_deref().into());
        put("payload_bytes", effect.payload_bytes.into());
    }
    Value::Object(shown)
}

/// An effect by itself: with the beginning of its payload, what was decided about it, and what may be done now.
pub(crate) fn whole(details: &EffectDetails) -> Value {
    let mut shown = summary(&details.effect);
    let decisions = details.decisions.iter().map(|it| {
        json!({"at": time(it.at), "verb": it.verb, "who": clean(&it.who), "reason": clean(&it.reason)})
    });
    let may = details.effect.may(details.now).into_iter().map(EffectVerb::name);
    if let Some(members) = shown.as_object_mut() {
        members.insert("waits_for".into(), details.waits_for.into());
        members.insert("paused".into(), details.is_paused.into());
        members.insert("payload_head".into(), printable(&details.payload_head).into());
        members.insert("may".into(), may.collect::<Vec<_>>().into());
        members.insert("decisions".into(), decisions.collect::<Vec<_>>().into());
    }
    shown
}

/// How the kinds stand.
pub(crate) fn stats(stats: &OutboxStats) -> Value {
    let kinds = stats.kinds.iter().map(|kind| {
        json!({
            "kind": kind.kind,
            "waiting": kind.waiting,
            "ready": kind.ready,
            "leased": kind.leased,
            "unknown": kind.unknown,
            "dead": kind.dead,
            "oldest_ready_seconds": kind.oldest_ready_at.map(|at| stats.now.since(at).as_secs_f64()),
            "oldest_unknown_seconds": kind.oldest_unknown_at.map(|at| stats.now.since(at).as_secs_f64()),
            "paused_at": kind.paused_at.map(time),
            "paused_by": kind.paused_by,
            "pause_reason": kind.pause_reason,
        })
    });
    json!({
        "kinds": kinds.collect::<Vec<_>>(),
        "held_until": stats.held_until.map(time),
    })
}

fn clean(text: &str) -> String {
    printable(text.as_bytes())
}
