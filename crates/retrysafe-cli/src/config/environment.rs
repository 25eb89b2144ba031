//! Which settings come from the environment?
//!
//! Every plain setting has a variable: `RETRYSAFE_`, its table and its name, in capitals
//! (`RETRYSAFE_UPSTREAM`, `RETRYSAFE_DEFAULTS_TTL`). Lists are separated by commas. Whatever may hold
//! a secret can also come from a file: `RETRYSAFE_ADMIN_TOKEN_FILE`, `RETRYSAFE_JWT_SECRET_FILE`,
//! `RETRYSAFE_STORE_FILE`, `RETRYSAFE_UPSTREAM_FILE`. Variables that name no setting are ignored: orchestrators invent some of their own
//! (`RETRYSAFE_SERVICE_HOST`), and refusing those would keep the gateway from starting.

use std::collections::BTreeMap;

use serde_json::Value;

use super::file::File;
use super::source::{self, Complaint};

const PREFIX: &str = "RETRYSAFE_";

/// Lays the environment over a file.
///
/// # Errors
///
/// A variable whose value does not fit its setting, or whose file cannot be read.
pub(crate) fn overlay(
    file: File,
    variables: &BTreeMap<String, String>,
) -> Result<File, Vec<Complaint>> {
    let mut table = toml::Table::try_from(&file)
        .map_err(|error| vec![Complaint::new("", error.to_string())])?;
    let mut complaints = Vec::new();
    let mut current = file;
    for setting in settings() {
        let Some((variable, text)) = value_of(&setting.variable, variables, &mut complaints) else {
            continue;
        };
        let mut candidate = table.clone();
        put(&mut candidate, &setting, &text);
        match candidate.clone().try_into::<File>() {
            Ok(file) => (table, current) = (candidate, file),
            Err(error) => complaints.push(Complaint::new(variable, error.message())),
        }
    }
    if complaints.is_empty() { Ok(current) } else { Err(complaints) }
}

/// A setting that the environment can reach.
struct Setting {
    variable: String,
    table: Option<String>,
    name: String,
    kind: Kind,
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
        let inner = source::members(value);
        if inner.is_empty() {
            found.extend(setting(None, name, value));
        }
        for member in inner {
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
    variable: &str,
    variables: &BTreeMap<String, String>,
    complaints: &mut Vec<Complaint>,
) -> Option<(String, String)> {
    if let Some(text) = variables.get(variable) {
        return Some((variable.to_owned(), text.clone()));
    }
    // Tokens and secrets have a `…_file` setting of their own. These two may hold a password.
    if !matches!(variable, "RETRYSAFE_STORE" | "RETRYSAFE_UPSTREAM") {
        return None;
    }
    let by_file = format!("{variable}_FILE");
    let path = variables.get(&by_file)?;
    match std::fs::read_to_string(path) {
        Ok(text) => Some((by_file, text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => {
            complaints.push(Complaint::new(by_file, format!("{path}: {error}")));
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
        overlay(File::default(), &variables)
    }

    #[test]
    fn every_kind_of_setting_can_come_from_the_environment() {
        let file = laid(&[
            ("RETRYSAFE_UPSTREAM", "http://x"),
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
            assert_eq!(told[0].setting, variable, "{told:?}");
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
