//! What does the admin API say, as far as pages show it?

use serde::Deserialize;
use serde_json::{Map, Value};

use super::shown_house::ShownEvent;

/// Whoever is logged in.
#[derive(Deserialize)]
pub(super) struct Reader {
    pub name: String,
    pub role: String,
}

impl Reader {
    /// Whether forms that decide are of any use to this reader. The API judges all the same.
    pub(super) fn may_decide(&self) -> bool {
        self.role != "read"
    }
}

/// A page of keys.
#[derive(Deserialize)]
pub(super) struct KeyList {
    /// The list of what is unknown has its own name.
    #[serde(alias = "unknown")]
    pub keys: Vec<ShownKey>,
    #[serde(default)]
    pub damaged: Vec<String>,
    pub cursor: Option<String>,
    /// Whether there are more than were read: then these are the oldest of those.
    #[serde(default)]
    pub cut: bool,
}

/// A key in a list, and the head of its story.
#[derive(Deserialize)]
pub(super) struct ShownKey {
    pub id: String,
    pub state: String,
    pub method: String,
    pub route: String,
    pub path: String,
    pub scope: String,
    pub scope_hex: String,
    pub key: String,
    pub request_id: Option<String>,
    pub fence: u64,
    pub attempts: u32,
    pub created_at: String,
    pub expires_at: Option<String>,
    pub since: Option<String>,
    pub doubt: Option<String>,
    pub lookups: Option<u32>,
    pub status: Option<u16>,
    pub response_bytes: Option<u64>,
    pub original_status: Option<u16>,
    pub lease_until: Option<String>,
    pub settled_at: Option<String>,
    pub fingerprint: Option<String>,
    #[serde(default)]
    pub response_headers: Vec<String>,
    #[serde(default)]
    pub timeline: Vec<ShownMoment>,
    pub retry_gets: Option<String>,
    #[serde(default)]
    pub dead_lettered: bool,
    pub lookups_planned: Option<u32>,
    pub last_lookup: Option<ShownLookup>,
    /// Events of webhooks that are about it, and effects that its request has staged; none where the store keeps no such thing.
    pub events: Option<Vec<ShownEvent>>,
    pub effects: Option<Vec<ShownEffect>>,
    #[serde(default)]
    pub commands: Vec<ShownCommand>,
}

/// What the last look-up found.
#[derive(Deserialize)]
pub(super) struct ShownLookup {
    pub at: String,
    pub found: String,
}

#[derive(Deserialize)]
pub(super) struct ShownCommand {
    pub when: String,
    pub command: String,
}

/// What happened to a key at one time.
#[derive(Deserialize)]
pub(super) struct ShownMoment {
    pub at: String,
    pub fence: u64,
    pub what: String,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl ShownKey {
    /// The first digits of the id: enough to be found again.
    pub(super) fn short_id(&self) -> &str {
        self.id.get(..12).unwrap_or(&self.id)
    }

    /// Its caller, as a search takes it.
    pub(super) fn scope_filter(&self) -> String {
        format!("hex:{}", self.scope_hex)
    }

    pub(super) fn events(&self) -> &[ShownEvent] {
        self.events.as_deref().unwrap_or_default()
    }

    pub(super) fn effects(&self) -> &[ShownEffect] {
        self.effects.as_deref().unwrap_or_default()
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.state == "unknown"
    }

    /// What may be typed into a shell, each with when it is right.
    pub(super) fn command_lines(&self) -> Vec<String> {
        self.commands.iter().map(|one| format!("# {}\n{}", one.when, one.command)).collect()
    }

    /// Whether a late result is there whose answer could be replayed.
    pub(super) fn has_late_result(&self) -> bool {
        self.timeline.iter().any(|moment| moment.what == "late_result")
    }
}

impl ShownMoment {
    /// What is known of it besides its name, as one line.
    pub(super) fn details(&self) -> String {
        let parts = self.more.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{}: {text}", name.replace('_', " "))
        });
        parts.collect::<Vec<_>>().join(" · ")
    }

    pub(super) fn name(&self) -> String {
        self.what.replace('_', " ")
    }
}

/// What a decision would change.
#[derive(Deserialize)]
pub(super) struct ShownPreview {
    pub state: String,
    pub fence: u64,
    pub would: Option<ShownChange>,
    pub refused: Option<ShownRefusal>,
    pub retry_gets: String,
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct ShownChange {
    pub state: String,
    pub evidence: Option<String>,
    pub expires_at: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ShownRefusal {
    pub code: String,
    pub detail: String,
}

/// How the kinds of effects stand.
#[derive(Default, Deserialize)]
pub(super) struct ShownKinds {
    pub kinds: Vec<ShownKind>,
    pub held_until: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ShownKind {
    pub kind: String,
    pub waiting: u64,
    pub ready: u64,
    pub leased: u64,
    pub unknown: u64,
    pub dead: u64,
    pub oldest_ready_seconds: Option<f64>,
    pub paused_at: Option<String>,
    pub paused_by: Option<String>,
    pub pause_reason: Option<String>,
}

impl ShownKind {
    pub(super) fn oldest(&self) -> String {
        self.oldest_ready_seconds.map_or_else(|| "–".to_owned(), super::meters::seconds)
    }
}

/// A page of effects.
#[derive(Default, Deserialize)]
pub(super) struct EffectList {
    pub effects: Vec<ShownEffect>,
    pub cursor: Option<i64>,
}

/// An effect in a list, or by itself.
#[derive(Deserialize)]
pub(super) struct ShownEffect {
    pub id: i64,
    pub state: String,
    pub kind: String,
    pub lane: Option<String>,
    pub key: String,
    pub destination: Option<String>,
    pub failures: u32,
    pub crashes: u32,
    pub last_error: Option<String>,
    pub fence: i64,
    pub staged_at: String,
    pub reference: Option<String>,
    /// The record whose request has staged it.
    pub record: Option<String>,
    pub was_sent: Option<bool>,
    pub payload_head: Option<String>,
    #[serde(default)]
    pub may: Vec<String>,
    #[serde(default)]
    pub decisions: Vec<ShownDecision>,
}

#[derive(Deserialize)]
pub(super) struct ShownDecision {
    pub at: String,
    pub verb: String,
    pub who: String,
    pub reason: String,
}
