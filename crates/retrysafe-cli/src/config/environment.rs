//! Which settings come from the environment?
//!
//! Every plain setting has a variable: `RETRYSAFE_`, its table and its name, in capitals
//! (`RETRYSAFE_UPSTREAM`, `RETRYSAFE_DEFAULTS_TTL`). Lists are separated by commas. Whatever may hold
//! a secret can also come from a file: `RETRYSAFE_ADMIN_TOKEN_FILE`, `RETRYSAFE_JWT_SECRET_FILE`,
//! `RETRYSAFE_STORE_FILE`, `RETRYSAFE_UPSTREAM_FILE`. A variable that names no setting draws a warning, never
//! an error: it may belong to another program. What orchestrators invent for a service of our name
//! (`RETRYSAFE_SERVICE_HOST`, `RETRYSAFE_PORT_8080_TCP`) draws none.

use std::collections::BTreeMap;

use serde_json::Value;

use super::file::File;
use super::source::{self, Complaint, Origin, Origins};
use super::unreadable;

const PREFIX: &str = "RETRYSAFE_";

/// Lays the environment over a file, notes which settings it has replaced, and gives what is wrong
/// with variables. A variable that is wrong leaves its setting as it was.
pub(crate) fn overlay(
    file: &mut File,
    variables: &BTreeMap<String, String>,
    origins: &mut Origins,
) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut table = match toml::Table::try_from(&*file) {
        Ok(table) => table,
        Err(error) => return vec![Complaint::new("", error.to_string())],
    };
    for setting in settings() {
        let Some((variable, text)) = value_of(&setting, variables, &mut complaints) else {
            continue;
        };
        let origin = Origin::Variable(variable);
        let name = setting.path();
        let mut candidate = table.clone();
        put(&mut candidate, &setting, &text);
        match candidate.clone().try_into::<File>() {
            Ok(replaced) => {
                (table, *file) = (candidate, replaced);
                origins.replace(&name, origin);
            }
            Err(error) => {
                let what = error.message().to_owned();
                complaints.push(Complaint { origin, setting: name, what });
            }
        }
    }
    complaints
}

/// The variable that names the configuration file.
pub(crate) const CONFIG_VARIABLE: &str = "RETRYSAFE_CONFIG";

/// Variables that name no setting: the command line reads them.
pub(crate) const OF_COMMANDS: [&str; 4] =
    [CONFIG_VARIABLE, "RETRYSAFE_ADMIN_URL", "RETRYSAFE_ADMIN_TOKEN", "RETRYSAFE_ADMIN_TOKEN_FILE"];

/// A warning for every variable that looks like ours and is none.
pub(crate) fn warnings(variables: &BTreeMap<String, String>) -> Vec<String> {
    let mut known: Vec<String> = settings().into_iter().map(|setting| setting.variable).collect();
    known.extend(BY_FILE.map(|variable| format!("{variable}_FILE")));
    known.extend(OF_COMMANDS.map(str::to_owned));
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let ours = variables.keys().filter(|name| name.starts_with(PREFIX));
    let unknown = ours.filter(|name| !known.contains(&name.as_str()) && !is_invented(name));
    unknown
        .map(|name| match source::nearest(name, &known) {
            Some(near) => format!("{name} names no setting and is ignored; did you mean {near}?"),
            None => {
                format!("{name} names no setting and is ignored; see `retrysafe config schema`")
            }
        })
        .collect()
}

/// Whether an orchestrator invents such a variable for each of its services, such as
/// `X_SERVICE_HOST`, `X_SERVICE_PORT_HTTP`, `X_PORT` and `X_PORT_8080_TCP_ADDR`.
fn is_invented(name: &str) -> bool {
    let of_port = |(_, rest): (&str, &str)| {
        let number = rest.strip_prefix('_').map(str::as_bytes);
        rest.is_empty() || number.and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit)
    };
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split_once("_PORT").is_some_and(of_port)
}

/// Settings that may hold a password and have no `…_file` setting of their own: their variables have
/// a second form that names a file.
const BY_FILE: [&str; 2] = ["RETRYSAFE_STORE", "RETRYSAFE_UPSTREAM"];

/// A setting that the environment can reach.
struct Setting {
    variable: String,
    table: Option<String>,
    name: String,
    kind: Kind,
}

impl Setting {
    /// Its name in the file, such as `defaults.ttl`.
    fn path(&self) -> String {
        match &self.table {
            Some(table) => format!("{table}.{}", self.name),
            None => self.name.clone(),
        }
    }
}

enum Kind {
    Text,
    Number,
    Truth,
    List,
    NumberList,
}

fn settings() -> Vec<Setting> {
    let schema = source::schema();
    let mut found = Vec::new();
    for name in source::members(&schema) {
        let Some(value) = source::member(&schema, name) else { continue };
        // A setting that may be a text or a table (`store`) is a text here.
        if let Some(setting) = setting(None, name, value) {
            found.push(setting);
            continue;
        }
        for member in source::members(value) {
            let Some(value) = source::member(value, member) else { continue };
            found.extend(setting(Some(name), member, value));
        }
    }
    found
}

fn setting(table: Option<&str>, name: &str, schema: &Value) -> Option<Setting> {
    let variable = match table {
        Some(table) => format!("{PREFIX}{table}_{name}"),
        None => format!("{PREFIX}{name}"),
    }
    .to_uppercase();
    Some(Setting { variable, table: table.map(Into::into), name: name.into(), kind: kind(schema)? })
}

/// What kind of value a schema asks for; none for tables and lists of tables.
fn kind(schema: &Value) -> Option<Kind> {
    let is = |name: &str| match schema.get("type") {
        Some(Value::String(kind)) => kind == name,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == name),
        Some(_) | None => false,
    };
    if is("array") {
        return match kind(schema.get("items")?)? {
            Kind::Text => Some(Kind::List),
            Kind::Number => Some(Kind::NumberList),
            Kind::Truth | Kind::List | Kind::NumberList => None,
        };
    }
    if is("boolean") {
        return Some(Kind::Truth);
    }
    if is("integer") {
        return Some(Kind::Number);
    }
    let named = schema.get("enum").is_some() || schema.get("oneOf").is_some();
    if is("string") || named {
        return Some(Kind::Text);
    }
    schema.get("anyOf")?.as_array()?.iter().find_map(kind)
}

fn value_of(
    setting: &Setting,
    variables: &BTreeMap<String, String>,
    complaints: &mut Vec<Complaint>,
) -> Option<(String, String)> {
    let variable = &setting.variable;
    if let Some(text) = variables.get(variable) {
        return Some((variable.clone(), text.clone()));
    }
    if !BY_FILE.contains(&variable.as_str()) {
        return None;
    }
    let by_file = format!("{variable}_FILE");
    let path = variables.get(&by_file)?;
    match std::fs::read_to_string(path) {
        Ok(text) => Some((by_file, text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => {
            let setting = setting.path();
            let what = unreadable(path, &error);
            complaints.push(Complaint { origin: Origin::Variable(by_file), setting, what });
            None
        }
    }
}

fn put(file: &mut toml::Table, setting: &Setting, text: &str) {
    let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let number = |text: &str| match text.trim().parse::<i64>() {
        Ok(number) => toml::Value::Integer(number),
        // Left as it is, so that the complaint shows what stands there.
        Err(_) => toml::Value::String(text.into()),
    };
    let value = match setting.kind {
        Kind::Text => toml::Value::String(text.into()),
        Kind::Number => number(text),
        Kind::Truth => match text.trim() {
            "true" | "1" | "yes" => toml::Value::Boolean(true),
            "false" | "0" | "no" => toml::Value::Boolean(false),
            other => toml::Value::String(other.into()),
        },
        Kind::List => toml::Value::Array(words().map(|word| word.into()).collect()),
        Kind::NumberList => toml::Value::Array(words().map(number).collect()),
    };
    match &setting.table {
        None => {
            file.insert(setting.name.clone(), value);
        }
        Some(table) => {
            let inner =
                file.entry(table.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let toml::Value::Table(inner) = inner {
                inner.insert(setting.name.clone(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn laid(pairs: &[(&str, &str)]) -> Result<File, Vec<Complaint>> {
        let variables =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut file = File::default();
        let complaints = overlay(&mut file, &variables, &mut Origins::default());
        if complaints.is_empty() { Ok(file) } else { Err(complaints) }
    }

    #[test]
    fn every_kind_of_setting_can_come_from_the_environment() {
        let file = laid(&[
            ("RETRYSAFE_UPSTREAM", "http://x"),
            ("RETRYSAFE_STORE", "tiered:postgres://x|redis://y"),
            ("RETRYSAFE_THREADS", "3"),
            ("RETRYSAFE_H2C", "true"),
            ("RETRYSAFE_ADMIN_TOKEN", "t"),
            ("RETRYSAFE_DEFAULTS_TTL", "48h"),
            ("RETRYSAFE_DEFAULTS_KEY", "required"),
            ("RETRYSAFE_DEFAULTS_METHODS", "POST, PUT"),
            ("RETRYSAFE_DEFAULTS_RETRYABLE_STATUSES", "401,429"),
            ("RETRYSAFE_UPKEEP_SWEEP_EVERY", "2s"),
            ("RETRYSAFE_SERVICE_HOST", "10.0.0.1"),
        ])
        .unwrap();
        assert_eq!(file.upstream.as_deref(), Some("http://x"));
        assert_eq!(file.store.as_deref(), Some("tiered:postgres://x|redis://y"));
        assert_eq!((file.threads, file.h2c), (Some(3), Some(true)));
        assert_eq!(file.admin.token.as_deref(), Some("t"));
        assert_eq!(file.defaults.ttl.map(|ttl| ttl.0), Some(Duration::from_secs(48 * 3_600)));
        assert_eq!(file.defaults.key, Some(crate::config::file::KeyRule::Required));
        assert_eq!(file.defaults.methods, Some(vec!["POST".into(), "PUT".into()]));
        assert_eq!(file.defaults.retryable_statuses, Some(vec![401, 429]));
        assert_eq!(file.upkeep.sweep_every.map(|every| every.0), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_value_that_does_not_fit_names_its_variable() {
        for (variable, value) in [
            ("RETRYSAFE_DEFAULTS_TTL", "soon"),
            ("RETRYSAFE_THREADS", "many"),
            ("RETRYSAFE_H2C", "perhaps"),
            ("RETRYSAFE_DEFAULTS_KEY", "please"),
        ] {
            let told = laid(&[(variable, value)]).unwrap_err();
            assert_eq!(told[0].origin, Origin::Variable(variable.into()), "{told:?}");
        }
    }

    #[test]
    fn a_variable_that_names_nothing_draws_a_warning() {
        let told = |name: &str| {
            let told = warnings(&[(name.to_owned(), String::new())].into());
            told.into_iter().next().unwrap_or_default()
        };
        for (variable, near) in [
            ("RETRYSAFE_UPSTRAEM", "RETRYSAFE_UPSTREAM"),
            ("RETRYSAFE_DEFAULT_TTL", "RETRYSAFE_DEFAULTS_TTL"),
            ("RETRYSAFE_STORE_FILES", "RETRYSAFE_STORE_FILE"),
            ("RETRYSAFE_CONFG", "RETRYSAFE_CONFIG"),
        ] {
            let told = told(variable);
            let wanted = format!("did you mean {near}?");
            assert!(told.starts_with(variable) && told.ends_with(&wanted), "{told}");
        }
        assert!(told("RETRYSAFE_COMPLETELY_DIFFERENT").contains("config schema"));
        for silent in [
            "RETRYSAFE_UPSTREAM",
            "RETRYSAFE_STORE_FILE",
            "RETRYSAFE_CONFIG",
            "RETRYSAFE_ADMIN_URL",
            "RETRYSAFE_ADMIN_TOKEN_FILE",
            "RETRYSAFE_SERVICE_HOST",
            "RETRYSAFE_ADMIN_SERVICE_PORT_METRICS",
            "RETRYSAFE_PORT",
            "RETRYSAFE_PORT_8080_TCP_ADDR",
            "RETRY",
        ] {
            assert_eq!(told(silent), "", "{silent}");
        }
    }

    #[test]
    fn secrets_come_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "s3cret\n").unwrap();
        let file = laid(&[("RETRYSAFE_JWT_SECRET_FILE", path.to_str().unwrap())]).unwrap();
        let jwt = file.jwt.unwrap();
        assert_eq!(jwt.secret_file.as_deref(), path.to_str());
        assert!(laid(&[("RETRYSAFE_STORE_FILE", "/nonexistent/x")]).is_err());
    }
}
