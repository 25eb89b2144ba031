//! Which configuration holds?
//!
//! The whole of it, defaults filled in, as `retrysafe config print` would write it: secrets are blotted out before it comes here. A reload
//! takes all of a new configuration but the table `log`, which is read once: of that table the old one is shown, and what waits for a
//! restart is told beside it.

use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use retrysafe_core::store::Store;
use serde_json::{Value, json};

use super::Shared;
use crate::config::{File, Loaded, LogFile};

/// The configuration that holds, as far as operators see it. A reload exchanges it.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    file: Option<String>,
    read_at: Timestamp,
    /// All settings that are set, as a document and as the text of a file.
    whole: Value,
    text: String,
    /// The table `log`, as this process has started with it.
    log: LogFile,
    waiting: Vec<WaitingSetting>,
    pub(super) sweep_every: Duration,
    pub(super) reap_every: Duration,
    /// Where comparisons of ledgers leave what they have found.
    pub(super) ledger_reports: Vec<PathBuf>,
}

/// A setting that was changed and holds after the next start. Both values as a document has them; null where nobody has set it.
#[derive(Debug, PartialEq, Eq)]
struct WaitingSetting {
    name: String,
    holds: Value,
    after_restart: Value,
}

impl Settings {
    /// What the configuration says with which the process starts.
    pub(crate) fn of(loaded: &Loaded) -> Self {
        Self::holding(loaded, loaded.whole.log.clone(), Vec::new())
    }

    /// What holds once a reload has taken this configuration.
    pub(crate) fn reloaded(&self, loaded: &Loaded) -> Self {
        let waiting = waiting(&self.log, &loaded.whole.log);
        Self::holding(loaded, self.log.clone(), waiting)
    }

    fn holding(loaded: &Loaded, log: LogFile, waiting: Vec<WaitingSetting>) -> Self {
        let whole = File { log: log.clone(), ..loaded.whole.clone() };
        let mut document = serde_json::to_value(&whole).unwrap_or_default();
        drop_unset(&mut document);
        let admin = loaded.config.admin.as_ref();
        Self {
            file: loaded.file.as_ref().map(|file| file.display().to_string()),
            read_at: Timestamp::now(),
            whole: document,
            text: toml::to_string(&whole).unwrap_or_default(),
            log,
            waiting,
            sweep_every: loaded.config.sweep_every,
            reap_every: loaded.config.reap_every,
            ledger_reports: admin.map(|admin| admin.ledger_reports.clone()).unwrap_or_default(),
        }
    }

    /// The settings that wait for a restart.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &str> {
        self.waiting.iter().map(|setting| setting.name.as_str())
    }
}

/// The settings in which two tables `log` differ.
fn waiting(holds: &LogFile, after_restart: &LogFile) -> Vec<WaitingSetting> {
    let members = |file: &LogFile| match serde_json::to_value(file) {
        Ok(Value::Object(members)) => members,
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let mut next = members(after_restart);
    let differing = members(holds).into_iter().filter_map(|(name, holds)| {
        let after_restart = next.remove(&name).unwrap_or_default();
        let name = format!("log.{name}");
        (holds != after_restart).then_some(WaitingSetting { name, holds, after_restart })
    });
    differing.collect()
}

/// Takes what nobody has set from a document, and the tables that are empty then.
fn drop_unset(value: &mut Value) {
    if let Value::Object(members) = value {
        members.values_mut().for_each(drop_unset);
        members.retain(|_, member| !member.is_null() && *member != json!({}));
    }
    if let Value::Array(items) = value {
        items.iter_mut().for_each(drop_unset);
    }
}

pub(super) async fn show<S: Store>(State(admin): Shared<S>) -> Json<Value> {
    let settings = admin.settings.load();
    let waiting = settings.waiting.iter().map(|it| {
        let WaitingSetting { name, holds, after_restart } = it;
        json!({"setting": name, "holds": holds, "after_restart": after_restart})
    });
    let waiting: Vec<Value> = waiting.collect();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "file": settings.file,
        "read_at": format!("{:.3}", settings.read_at),
        "settings": settings.whole,
        "toml": settings.text,
        "waits_for_restart": waiting,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_set_is_left_out() {
        let mut whole =
            json!({"a": null, "b": {"c": null}, "d": [{"e": null, "f": false}], "g": 0});
        drop_unset(&mut whole);
        assert_eq!(whole, json!({"d": [{"f": false}], "g": 0}));
    }

    #[test]
    fn what_differs_waits_and_nothing_else() {
        let file = |level: &str, requests| LogFile {
            level: Some(level.into()),
            requests,
            ..LogFile::default()
        };
        let told = waiting(&file("info", None), &file("debug", Some(false)));
        let of = |name: &str, holds, after_restart| WaitingSetting {
            name: name.into(),
            holds,
            after_restart,
        };
        assert_eq!(
            told,
            [
                of("log.level", json!("info"), json!("debug")),
                of("log.requests", Value::Null, json!(false)),
            ]
        );
        assert_eq!(waiting(&file("info", None), &file("info", None)), []);
    }
}
