//! What does the admin API say about everything but keys and effects, as far as pages show it?

use serde::Deserialize;
use serde_json::{Map, Value};

use super::meters;
use crate::percent::encoded;

/// A page of events.
#[derive(Default, Deserialize)]
pub(super) struct EventList {
    pub events: Vec<ShownEvent>,
    pub cursor: Option<i64>,
}

/// An event of a webhook, in a list or by itself.
#[derive(Deserialize)]
pub(super) struct ShownEvent {
    pub id: i64,
    pub state: String,
    pub provider: String,
    pub event_id: String,
    pub received_at: String,
    pub happened_at: Option<String>,
    pub copies: u64,
    #[serde(default)]
    pub names: Vec<String>,
    /// What it was about: `record …` or `effect …`.
    pub matched: Option<String>,
    pub fence: Option<i64>,
    pub reason: Option<String>,
    pub ended_at: Option<String>,
    pub wait_until: Option<String>,
    pub looks: Option<u64>,
    pub payload_bytes: Option<u64>,
    pub payload_head: Option<String>,
    /// Beside a record: `unclear` if it may be about another caller's request.
    pub owner: Option<String>,
}

impl ShownEvent {
    /// Whether it may be about another caller's request.
    pub(super) fn is_owner_unclear(&self) -> bool {
        self.owner.as_deref() == Some("unclear")
    }

    /// The page of what it was about.
    pub(super) fn matched_page(&self) -> Option<String> {
        match self.matched.as_deref().and_then(|matched| matched.split_once(' ')) {
            Some(("record", id)) => Some(format!("/keys/{}", encoded(id))),
            Some(("effect", id)) => Some(format!("/outbox/{}", encoded(id))),
            Some(_) => None,
            // Nothing was decided by it, but it may name a record.
            None => {
                let id = self.names.iter().find_map(|name| name.strip_prefix("id:"))?;
                Some(format!("/keys/{}", encoded(id)))
            }
        }
    }

    /// What it was about, in a word.
    pub(super) fn matched_word(&self) -> &str {
        self.matched.as_deref().and_then(|matched| matched.split(' ').next()).unwrap_or("record")
    }

    /// Whether it may be judged once more. The API judges that, too.
    pub(super) fn is_replayable(&self) -> bool {
        !matches!(self.state.as_str(), "applied" | "agrees")
    }
}

/// What is known of the store.
#[derive(Deserialize)]
pub(super) struct ShownStore {
    pub kind: String,
    pub url: String,
    pub durable: String,
    pub now: String,
    pub records: Option<f64>,
    pub bytes: Option<f64>,
    pub unknown: f64,
    pub unknown_since: Option<String>,
    pub sweep_every_seconds: f64,
    pub reap_every_seconds: f64,
    pub at_start: ShownStart,
}

/// What was found at the start of the process.
#[derive(Deserialize)]
pub(super) struct ShownStart {
    pub at: String,
    pub left_running: u64,
    pub unknown: u64,
    pub records: Option<f64>,
}

impl ShownStore {
    pub(super) fn count(&self) -> String {
        self.records.map_or_else(|| "not counted by this store".to_owned(), meters::count)
    }

    pub(super) fn size(&self) -> String {
        self.bytes.map_or_else(|| "not measured by this store".to_owned(), meters::bytes)
    }

    /// How many bytes a record takes up, on average. Of few records that would be the size of the store itself.
    pub(super) fn bytes_each(&self) -> Option<String> {
        let records = self.records.filter(|records| *records >= 1_000.0)?;
        Some(meters::bytes(self.bytes? / records))
    }
}

/// An upstream whose health is checked.
pub(super) struct ShownUpstream {
    pub name: String,
    pub is_healthy: bool,
}

impl ShownUpstream {
    /// Those that readiness tells of.
    pub(super) fn all(readiness: &Value) -> Vec<Self> {
        let told = readiness.get("upstreams").and_then(Value::as_object).into_iter().flatten();
        told.map(|(name, word)| Self { name: name.clone(), is_healthy: word == "ok" }).collect()
    }
}

/// The configuration that holds.
#[derive(Deserialize)]
pub(super) struct ShownSettings {
    pub version: String,
    pub file: Option<String>,
    pub read_at: String,
    pub settings: Map<String, Value>,
    pub toml: String,
    /// What was changed and holds after the next start.
    #[serde(default)]
    pub waits_for_restart: Vec<ShownWaiting>,
}

/// A setting that waits for a restart.
#[derive(Deserialize)]
pub(super) struct ShownWaiting {
    pub setting: String,
    holds: Value,
    after_restart: Value,
}

impl ShownWaiting {
    pub(super) fn now(&self) -> String {
        set_to(&self.holds)
    }

    pub(super) fn then(&self) -> String {
        set_to(&self.after_restart)
    }
}

/// What a setting is set to.
fn set_to(value: &Value) -> String {
    if value.is_null() { "not set".to_owned() } else { text(value) }
}

/// The policy of a route.
pub(super) struct ShownRoute {
    pub path: String,
    pub rules: Vec<(String, String)>,
}

impl ShownSettings {
    /// All routes, and at the end what holds for everything else.
    pub(super) fn routes(&self) -> Vec<ShownRoute> {
        let routes = self.settings.get("route").and_then(Value::as_array).into_iter().flatten();
        let named = routes.filter_map(Value::as_object).map(|rules| {
            let path = rules.get("path").map(text).unwrap_or_default();
            ShownRoute { path, rules: rows(rules) }
        });
        let defaults = self.settings.get("defaults").and_then(Value::as_object);
        let otherwise = defaults
            .map(|rules| ShownRoute { path: "everything else".to_owned(), rules: rows(rules) });
        named.chain(otherwise).collect()
    }
}

impl ShownRoute {
    pub(super) fn rule(&self, name: &str) -> &str {
        let found = self.rules.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| value)
    }
}

fn rows(rules: &Map<String, Value>) -> Vec<(String, String)> {
    let set = rules.iter().filter(|(name, _)| *name != "path");
    set.map(|(name, value)| (name.clone(), text(value))).collect()
}

/// A value as a person would write it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// What the last comparisons of ledgers found, file by file.
#[derive(Deserialize)]
pub(super) struct LedgerList {
    pub reports: Vec<LedgerFile>,
}

#[derive(Deserialize)]
#[serde(from = "LedgerFileSaid")]
pub(super) struct LedgerFile {
    pub file: String,
    pub report: Option<ShownLedger>,
    pub error: Option<String>,
}

/// The same as the API says it. Anybody may have written the file, so what it holds is read by itself: one that cannot be shown hides no
/// other.
#[derive(Deserialize)]
struct LedgerFileSaid {
    file: String,
    report: Option<Value>,
    error: Option<String>,
}

impl From<LedgerFileSaid> for LedgerFile {
    fn from(said: LedgerFileSaid) -> Self {
        let LedgerFileSaid { file, report, error } = said;
        match report.map(serde_json::from_value::<ShownLedger>).transpose() {
            Ok(report) => Self { file, report, error },
            Err(why) => {
                let error = Some(format!("not a report of a comparison: {why}"));
                Self { file, report: None, error }
            }
        }
    }
}

/// What a comparison found.
#[derive(Deserialize)]
pub(super) struct ShownLedger {
    #[serde(default)]
    pub name: String,
    pub compared_at: String,
    pub equal: bool,
    pub lines: LedgerLines,
    #[serde(default)]
    pub without_key: u64,
    pub same: u64,
    pub missing_here: u64,
    pub missing_there: u64,
    pub different: u64,
    #[serde(default)]
    pub sums: Vec<LedgerSum>,
    #[serde(default)]
    pub differences: Vec<LedgerDifference>,
    #[serde(default)]
    pub more: u64,
}

#[derive(Deserialize)]
pub(super) struct LedgerLines {
    pub ours: u64,
    pub theirs: u64,
}

#[derive(Deserialize)]
pub(super) struct LedgerSum {
    pub currency: Option<String>,
    pub ours: String,
    pub theirs: String,
    pub ours_minus_theirs: String,
}

#[derive(Deserialize)]
pub(super) struct LedgerDifference {
    pub key: String,
    pub kind: String,
    #[serde(default)]
    pub columns: Vec<String>,
    pub ours: Option<LedgerEntry>,
    pub theirs: Option<LedgerEntry>,
}

#[derive(Deserialize)]
pub(super) struct LedgerEntry {
    pub at: Option<String>,
    pub amount: Option<String>,
    pub currency: Option<String>,
    #[serde(default)]
    pub fields: Map<String, Value>,
}

impl LedgerDifference {
    pub(super) fn what(&self) -> String {
        if self.columns.is_empty() { self.kind.replace('_', " ") } else { self.columns.join(", ") }
    }
}

impl LedgerEntry {
    /// What is known of it, in one line.
    pub(super) fn line(&self) -> String {
        let money = [self.amount.as_deref(), self.currency.as_deref()].into_iter().flatten();
        let money = money.collect::<Vec<_>>().join(" ");
        let fields = self.fields.iter().map(|(name, value)| format!("{name}: {}", text(value)));
        let place = self.at.iter().cloned();
        let parts = std::iter::once(money).chain(fields).chain(place);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_each_route_is_shown_and_the_defaults_last() {
        let shown: ShownSettings = serde_json::from_value(serde_json::json!({
            "version": "1", "file": null, "read_at": "now", "toml": "",
            "settings": {
                "defaults": {"ttl": "24h", "methods": ["POST", "PATCH"]},
                "route": [{"path": "/pay", "strict": true}],
            },
        }))
        .unwrap();
        let routes = shown.routes();
        let paths: Vec<&str> = routes.iter().map(|route| route.path.as_str()).collect();
        assert_eq!(paths, ["/pay", "everything else"]);
        assert_eq!((routes[0].rule("strict"), routes[1].rule("methods")), ("true", "POST, PATCH"));
        assert_eq!(routes[0].rule("ttl"), "");
    }
}
