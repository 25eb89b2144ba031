//! What does an operator need to know about one key, on one screen?
//!
//! The record with its timeline, how far its flow has come, whether anybody still looks it up, what providers have told about it, what its
//! request has staged, what a retry gets, and commands that are ready to paste. The commands hold ids and numbers alone, never a word that a caller has chosen.

use retrysafe::outbox::{EffectStanding, Operator, ShownEffect};
use retrysafe::webhooks::{EventAbout, EventStanding};
use retrysafe_core::flow::{FlowProgress, RecoveryPoint};
use retrysafe_core::record::{Record, Standing, State};
use retrysafe_core::store::Store;
use serde_json::{Map, Value, json};

use super::evidence::late_successes;
use super::{Admin, effect_view, event_view, view};

/// How many events and how many effects of one record are shown: more than a person reads.
const NEIGHBOURS_MAX: usize = 50;

/// What is known of a record beside it. None where the store keeps no such thing, or could not be asked.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    events: Option<Vec<EventAbout>>,
    effects: Option<Vec<ShownEffect>>,
}

impl Neighbours {
    /// Reads what providers have told about a record, and what its request has staged. A record is shown without them rather than not
    /// at all.
    pub(crate) async fn read<S: Store>(admin: &Admin<S>, record: &Record) -> Self {
        let Some(store) = &admin.outbox else { return Self::default() };
        let webhooks = admin.webhooks.load_full();
        let events = webhooks.events_about(record, NEIGHBOURS_MAX).await;
        let operator = Operator::of_store(store.clone(), "admin");
        let effects = operator.staged_by(record, NEIGHBOURS_MAX).await;
        let warn = |what: &str, error: &dyn std::fmt::Display| {
            tracing::warn!(target: "retrysafe", what, %error, "admin_neighbours_unread");
        };
        Self {
            events: events.unwrap_or_else(|error| {
                warn("events", &error);
                None
            }),
            effects: effects.map_err(|error| warn("effects", &error)).ok(),
        }
    }

    /// Commands that lead to what somebody should look at.
    fn commands(&self) -> Vec<Value> {
        let command = |when: &str, text: String| json!({"when": when, "command": text});
        let events = self.events.iter().flatten().map(|about| &about.event);
        let events = events.filter_map(|event| match event.standing {
            EventStanding::Waiting => Some(("an event waits", event.id)),
            EventStanding::Contradicts => Some(("an event contradicts what was decided", event.id)),
            EventStanding::Unmatched => Some(("an event has waited in vain", event.id)),
            EventStanding::Applied
            | EventStanding::Agrees
            | EventStanding::Ignored
            | EventStanding::Malformed => None,
        });
        let effects = self.effects.iter().flatten().filter_map(|effect| match effect.standing {
            EffectStanding::Unknown => Some(("an effect may have been done", effect.id)),
            EffectStanding::Dead => Some(("an effect was given up", effect.id)),
            EffectStanding::Waiting
            | EffectStanding::Ready
            | EffectStanding::Leased
            | EffectStanding::Delivered
            | EffectStanding::Cancelled => None,
        });
        let events = events.map(|(when, id)| command(when, format!("retrysafe inbox show {id}")));
        let effects =
            effects.map(|(when, id)| command(when, format!("retrysafe outbox show {id}")));
        events.chain(effects).collect()
    }
}

/// A record with everything that is known about it. `planned` says how many lookups its schedule has, where it has one.
pub(crate) fn story(record: &Record, planned: Option<u32>, beside: &Neighbours) -> Value {
    let mut shown = view::whole(record);
    if let Some(members) = shown.as_object_mut() {
        put_reconciliation(members, record, planned);
        members.insert("flow".into(), record.flow.as_deref().map(flow).into());
        // By its own state, not by a clock: what has expired is not shown at all.
        let retry = view::retry_gets(record, record.created_at);
        members.insert("retry_gets".into(), retry.into());
        let events = beside
            .events
            .as_ref()
            .map(|events| events.iter().map(event_view::about).collect::<Vec<_>>());
        let effects = beside
            .effects
            .as_ref()
            .map(|effects| effects.iter().map(effect_view::summary).collect::<Vec<_>>());
        members.insert("events".into(), events.into());
        members.insert("effects".into(), effects.into());
        let mut commands = commands(record, planned);
        commands.extend(beside.commands());
        members.insert("commands".into(), commands.into());
    }
    shown
}

/// How far the lookups of an unknown record have come.
pub(crate) fn put_reconciliation(
    members: &mut Map<String, Value>,
    record: &Record,
    planned: Option<u32>,
) {
    if let State::Unknown { lookups, .. } = &record.state {
        members.insert("lookups_planned".into(), planned.into());
        let is_dead_lettered = have_given_up(*lookups, planned) == Some(true);
        members.insert("dead_lettered".into(), is_dead_lettered.into());
        members.insert("last_lookup".into(), view::last_lookup(record));
    }
}

/// Whether the lookups of a record have given up: a person must decide. None where this process does not look it up. Another process may
/// do so, or nobody ever did.
pub(crate) fn have_given_up(lookups: u32, planned: Option<u32>) -> Option<bool> {
    planned.map(|planned| lookups >= planned)
}

fn flow(flow: &FlowProgress) -> Value {
    let (phase, is_calling) = match flow.recovery_point() {
        RecoveryPoint::Before(phase) => (phase, false),
        RecoveryPoint::Calling(phase) => (phase, true),
    };
    json!({
        "name": flow.flow().name,
        "version": flow.flow().version,
        "phase": phase,
        "calling": is_calling,
        "phases_done": flow.outputs().len(),
    })
}

/// What may be done about a record now, each with when it is right.
fn commands(record: &Record, planned: Option<u32>) -> Vec<Value> {
    let id = record.id.to_string();
    let id = id.get(..view::SHORT_ID_DIGITS).unwrap_or(&id);
    let fence = record.fence.0;
    let command = |when: &str, text: String| json!({"when": when, "command": text});
    match record.standing() {
        Standing::Unknown => {
            let about = format!("{id} --fence {fence}");
            let mut told = Vec::new();
            if planned.is_some() {
                told.push(command(
                    "ask the upstream once more, now",
                    format!("retrysafe unknown poll {id}"),
                ));
            }
            if late_successes(record).next().is_some() {
                told.push(command(
                    "the late result is the answer",
                    format!("retrysafe unknown resolve {about} --outcome completed --use late-result --reason '…'"),
                ));
            }
            told.push(command(
                "it was executed, and you have its answer",
                format!(
                    "retrysafe unknown resolve {about} --outcome completed --status 201 --header 'Content-Type: application/json' --body-file answer.json --reason '…'"
                ),
            ));
            if record.flow.is_none() {
                told.push(command(
                    "it was executed, and nobody has its answer",
                    format!("retrysafe unknown resolve {about} --outcome completed --reason '…'"),
                ));
            }
            told.push(command(
                "it surely was not executed: see first what would happen",
                format!("retrysafe unknown release {about} --reason '…' --preview"),
            ));
            told
        }
        Standing::Completed | Standing::FailedRetryable if !record.holds_work() => vec![command(
            "it is to be forgotten before its time",
            format!("retrysafe keys expire {id} --fence {fence} --reason '…' --preview"),
        )],
        Standing::Completed | Standing::FailedRetryable | Standing::InProgress => Vec::new(),
    }
}
