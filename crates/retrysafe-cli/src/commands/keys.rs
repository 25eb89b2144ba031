//! What do `keys list`, `show`, `find`, `resolve`, `release` and `expire` do?
//!
//! A verb takes ids, or a filter that says which keys. Without ids an empty filter is refused unless
//! `--all` says that it is meant: a slip must not release a whole store.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::call::{Caller, encoded};
use crate::args::{ActionArgs, AdminArgs, FilterArgs, KeysCommand, OutcomeArg};
use crate::gateway::serve::Failure;
use crate::output;

/// How many keys are read at once.
const PAGE: usize = 500;

const COLUMNS: &[(&str, &str)] = &[
    ("STATE", "state"),
    ("METHOD", "method"),
    ("PATH", "path"),
    ("SCOPE", "scope"),
    ("KEY", "key"),
    ("ATTEMPTS", "attempts"),
    ("FENCE", "fence"),
    ("CREATED", "created_at"),
    ("EXPIRES", "expires_at"),
    ("ID", "id"),
];

/// Does it.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run(command: KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::List { admin, filter, limit } => list(&admin, &filter, limit).await,
        KeysCommand::Show { admin, id } => {
            let shown = Caller::new(&admin)?.get(&format!("/api/v1/keys/{}", encoded(&id))).await?;
            show(&shown, admin.json);
            Ok(())
        }
        KeysCommand::Find { admin, key } => {
            let found =
                Caller::new(&admin)?.post("/api/v1/keys/find", &json!({"key": key})).await?;
            print(&found, admin.json);
            Ok(())
        }
        KeysCommand::Resolve { action, outcome, status, headers, body, fence } => {
            let document = verdict(&action.reason, outcome, status, &headers, body)?;
            let chosen = chosen(&action, fence).await?;
            act(&action.admin, "resolve", &document, &chosen).await
        }
        KeysCommand::Release { action, fence } => {
            let chosen = chosen(&action, fence).await?;
            act(&action.admin, "release", &json!({"reason": action.reason}), &chosen).await
        }
        KeysCommand::Expire { action } => {
            let mut chosen = chosen(&action, None).await?;
            // What is settled has no attempts to confuse.
            chosen.iter_mut().for_each(|key| key.fence = None);
            act(&action.admin, "expire", &json!({"reason": action.reason}), &chosen).await
        }
    }
}

async fn list(admin: &AdminArgs, filter: &FilterArgs, limit: usize) -> Result<(), Failure> {
    let caller = Caller::new(admin)?;
    let mut keys = Vec::new();
    let mut cursor = None;
    while keys.len() < limit {
        let page = page(&caller, filter, cursor, PAGE.min(limit - keys.len())).await?;
        keys.extend(page.get("keys").and_then(Value::as_array).into_iter().flatten().cloned());
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    keys.truncate(limit);
    print(&json!({"keys": keys}), admin.json);
    Ok(())
}

async fn page(
    caller: &Caller,
    filter: &FilterArgs,
    cursor: Option<String>,
    limit: usize,
) -> Result<Value, Failure> {
    let mut path = format!("/api/v1/keys?limit={limit}");
    for (name, value) in [
        ("state", filter.state.map(|state| state.name().to_owned())),
        ("route", filter.route.clone()),
        ("scope", filter.scope.clone()),
        ("older_than", filter.older_than.clone()),
        ("cursor", cursor),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encoded(&value)));
        }
    }
    caller.get(&path).await
}

/// A key that a verb is meant for, and the attempt that was seen of it.
struct Chosen {
    id: String,
    fence: Option<u64>,
}

/// Does a verb to each key, and says how many took it.
async fn act(
    admin: &AdminArgs,
    verb: &str,
    document: &Value,
    chosen: &[Chosen],
) -> Result<(), Failure> {
    let caller = Caller::new(admin)?;
    let bar = ProgressBar::new(chosen.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {eta}") {
        bar.set_style(style);
    }
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for Chosen { id, fence } in chosen {
        let mut document = document.clone();
        if let (Some(fence), Some(document)) = (fence, document.as_object_mut()) {
            document.insert("fence".into(), (*fence).into());
        }
        let path = format!("/api/v1/keys/{}/{verb}", encoded(id));
        match caller.post(&path, &document).await {
            Ok(_) => done.push(id.clone()),
            Err(error) => refused.push(json!({"id": id, "why": error.to_string()})),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if admin.json {
        output::json(&json!({"verb": verb, "done": done, "refused": refused}));
    } else {
        for refusal in &refused {
            output::complain(&refusal.to_string());
        }
        output::say(&format!("{verb}: {} done, {} refused", done.len(), refused.len()));
    }
    if refused.is_empty() { Ok(()) } else { Err("not every key took it".into()) }
}

/// The keys that a verb is meant for: those that are named, or those that a filter lists, with the
/// fences that were listed. What changes between the listing and the verb is not decided about.
async fn chosen(action: &ActionArgs, fence: Option<u64>) -> Result<Vec<Chosen>, Failure> {
    let is_filtered = !action.filter.is_empty() || action.all;
    match action.ids.as_slice() {
        [] if !is_filtered => {
            return Err("that would be every key: name ids or a filter, or say --all".into());
        }
        [] => {}
        _ if is_filtered => return Err("name ids or a filter, not both".into()),
        [_, _, ..] if fence.is_some() => return Err("--fence is for one id".into()),
        ids => return Ok(ids.iter().map(|id| Chosen { id: id.clone(), fence }).collect()),
    }
    let caller = Caller::new(&action.admin)?;
    let (mut chosen, mut cursor) = (Vec::new(), None);
    loop {
        let page = page(&caller, &action.filter, cursor, PAGE).await?;
        let keys = page.get("keys").and_then(Value::as_array).into_iter().flatten();
        chosen.extend(keys.filter_map(|key| {
            let id = key.get("id")?.as_str()?.to_owned();
            Some(Chosen { id, fence: key.get("fence").and_then(Value::as_u64) })
        }));
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            return Ok(chosen);
        }
    }
}

fn verdict(
    reason: &str,
    outcome: OutcomeArg,
    status: Option<u16>,
    headers: &[String],
    body: Option<String>,
) -> Result<Value, Failure> {
    let mut document = json!({"outcome": outcome.name(), "reason": reason});
    if let Some(status) = status {
        let mut pairs = Vec::new();
        for line in headers {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("{line:?} is not a header such as `Name: value`"))?;
            pairs.push(json!([name.trim(), value.trim()]));
        }
        let response =
            json!({"status": status, "headers": pairs, "body": body.unwrap_or_default()});
        if let Some(document) = document.as_object_mut() {
            document.insert("response".into(), response);
        }
    }
    Ok(document)
}

fn print(found: &Value, as_json: bool) {
    let empty = Vec::new();
    let keys = found.get("keys").and_then(Value::as_array).unwrap_or(&empty);
    match (as_json, keys.is_empty()) {
        (true, _) => output::json(found),
        (false, true) => output::say("no keys"),
        (false, false) => output::table(keys, COLUMNS),
    }
}

fn show(record: &Value, as_json: bool) {
    if as_json {
        return output::json(record);
    }
    let empty = serde_json::Map::new();
    for (name, value) in record.as_object().unwrap_or(&empty) {
        match value {
            Value::Array(_) => {}
            Value::String(text) => output::say(&format!("{name:<18} {text}")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                output::say(&format!("{name:<18} {value}"));
            }
        }
    }
    if let Some(timeline) = record.get("timeline").and_then(Value::as_array) {
        output::say("");
        let columns = [
            ("AT", "at"),
            ("WHAT", "what"),
            ("FENCE", "fence"),
            ("STATE", "state"),
            ("STATUS", "status"),
            ("JUDGE", "judge"),
            ("REASON", "reason"),
        ];
        output::table(timeline, &columns);
    }
}
