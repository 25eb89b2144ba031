//! What is decided about keys?
//!
//! A verb takes keys by name, or a filter that says which. What a filter lists is shown, and done only to a yes; more keys
//! than `--max` are never touched, and not faster than `--rate`. Each decision names the attempt that was seen: what has gone on
//! meanwhile is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::search::Found;
use super::{list, search};
use crate::Failure;
use crate::args::{DecisionArgs, FilterArgs, ResolveArgs, StateArg, UnknownFilterArgs};
use crate::commands::admin_client::{AdminClient, claimed_name};
use crate::harmless::harmless;
use crate::output;
use crate::percent::encoded;

/// How many of the keys that a filter lists are shown.
const SHOWN_MAX: usize = 20;

/// Does a verb to every key that is meant.
pub(crate) async fn run(
    caller: &AdminClient,
    decision: &DecisionArgs,
    verb: &str,
    more: Map<String, Value>,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let is_filtered = !decision.filter.is_empty() || decision.dead_lettered.is_some();
    if verb == "expire" && decision.dead_lettered.is_some() {
        return Err("only what is unknown is dead-lettered, and that is not forgotten: leave out --dead-lettered".into());
    }
    let chosen = match decision.ids.as_slice() {
        [] if !is_filtered => {
            let why = "that would be every key: name keys, or a filter such as --state, --route, --scope, --older-than or --dead-lettered";
            return Err(why.into());
        }
        [] => listed(caller, decision, verb).await?,
        _ if is_filtered => return Err("name keys or a filter, not both".into()),
        [_, _, ..] if decision.fence.is_some() => return Err("--fence is for one id".into()),
        texts => named(caller, texts, decision.fence).await?,
    };
    let mut document = more;
    document.insert("reason".into(), decision.reason.as_deref().into());
    document.insert("operator".into(), claimed_name(variables).into());
    document.insert("preview".into(), decision.preview.into());
    // It is asked once more at each decision: the list may come from another process, or be old by then.
    if let Some(dead_lettered) = decision.dead_lettered {
        document.insert("dead_lettered".into(), dead_lettered.into());
    }
    let act = Act { caller, verb, document: &document, as_json: decision.admin.json };
    if decision.preview {
        return act.preview(&chosen).await;
    }
    let pause = is_filtered.then(|| Duration::from_secs(1) / decision.rate);
    act.decide(&chosen, pause).await
}

/// The keys that are named, and the attempt that is meant.
async fn named(
    caller: &AdminClient,
    texts: &[String],
    fence: Option<u64>,
) -> Result<Vec<Found>, Failure> {
    let mut chosen = Vec::new();
    for text in texts {
        let found = search::one(caller, text).await?;
        let fence = match fence.or(found.fence) {
            Some(fence) => Some(fence),
            None => {
                let record = caller.get(&format!("/api/v1/keys/{}", encoded(&found.id))).await?;
                record.get("fence").and_then(Value::as_u64)
            }
        };
        chosen.push(Found { fence, ..found });
    }
    Ok(chosen)
}

/// The keys that a filter lists, with the fences that were listed. What changes between the listing and the verb is not decided about.
async fn listed(
    caller: &AdminClient,
    decision: &DecisionArgs,
    verb: &str,
) -> Result<Vec<Found>, Failure> {
    let max = usize::try_from(decision.max).unwrap_or(usize::MAX);
    let keys = match decision.dead_lettered {
        None => list::all(caller, &decision.filter, max.saturating_add(1)).await?,
        Some(_) => dead_letters(caller, decision, max.saturating_add(1)).await?,
    };
    if keys.len() > max {
        return Err(format!(
            "more than {max} keys match, and nothing was done: choose fewer, or say --max"
        )
        .into());
    }
    if !keys.is_empty() && !decision.yes && !decision.preview {
        list::table(keys.get(..SHOWN_MAX).unwrap_or(&keys));
        if keys.len() > SHOWN_MAX {
            output::say(&format!("and {} more", keys.len() - SHOWN_MAX));
        }
        let count = match keys.len() {
            1 => "this key".to_owned(),
            count => format!("these {count} keys"),
        };
        let effect = effect(verb);
        output::confirm(&format!("{verb} {count}? {effect}."))?;
    }
    let found = |key: &Value| {
        let id = key.get("id")?.as_str()?.to_owned();
        Some(Found { id, fence: key.get("fence").and_then(Value::as_u64) })
    };
    Ok(keys.iter().filter_map(found).collect())
}

/// What is unknown, by whether its lookups have given up, the oldest first.
async fn dead_letters(
    caller: &AdminClient,
    decision: &DecisionArgs,
    limit: usize,
) -> Result<Vec<Value>, Failure> {
    let FilterArgs { state, route, path, scope, older_than } = decision.filter.clone();
    match state {
        None | Some(StateArg::Unknown) => {}
        Some(StateArg::InProgress | StateArg::Completed | StateArg::FailedRetryable) => {
            return Err("only what is unknown is dead-lettered: leave out --state".into());
        }
    }
    let dead_lettered = decision.dead_lettered;
    let filter = UnknownFilterArgs { route, path, scope, older_than, dead_lettered };
    let mut keys = Vec::new();
    let mut cursor = None;
    while keys.len() < limit {
        let page = list::unknown_page(caller, &filter, cursor, limit - keys.len()).await?;
        keys.extend(page.get("unknown").and_then(Value::as_array).into_iter().flatten().cloned());
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok(keys)
}

/// What a verb means to the callers.
fn effect(verb: &str) -> &'static str {
    match verb {
        "release" => "The next retry of each runs again",
        "expire" => "Each is forgotten, and its next request runs",
        _ => "Each is decided for good",
    }
}

/// A verb and what is sent with it.
struct Act<'a> {
    caller: &'a AdminClient,
    verb: &'a str,
    document: &'a Map<String, Value>,
    as_json: bool,
}

impl Act<'_> {
    async fn send(&self, Found { id, fence }: &Found) -> Result<Value, Failure> {
        let mut document = self.document.clone();
        document.insert("fence".into(), (*fence).into());
        let path = format!("/api/v1/keys/{}/{}", encoded(id), self.verb);
        self.caller.post(&path, &Value::Object(document)).await
    }

    /// The same, unless something speaks against it. Whoever decides about many has not looked at each.
    async fn send_unless_warned(&self, key: &Found) -> Result<Value, Failure> {
        let mut document = self.document.clone();
        document.insert("preview".into(), true.into());
        let preview = Act { document: &document, ..*self }.send(key).await?;
        let warnings = preview.get("warnings").and_then(Value::as_array);
        let warnings = warnings.into_iter().flatten().filter_map(Value::as_str);
        let warnings = warnings.collect::<Vec<_>>().join("; ");
        if warnings.is_empty() {
            return self.send(key).await;
        }
        Err(format!("{warnings}. Name it by itself to do it all the same").into())
    }

    /// Shows what would change.
    async fn preview(&self, chosen: &[Found]) -> Result<(), Failure> {
        let mut previews = Vec::new();
        for key in chosen {
            previews.push(self.send(key).await?);
        }
        if self.as_json {
            output::json(&json!({"verb": self.verb, "previews": previews}));
            return Ok(());
        }
        for preview in &previews {
            say_preview(preview);
        }
        output::say("Nothing was changed.");
        Ok(())
    }

    /// Does it to each key, with this pause between two, and says how many took it.
    async fn decide(&self, chosen: &[Found], pause: Option<Duration>) -> Result<(), Failure> {
        let bar = ProgressBar::new(chosen.len() as u64);
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {eta}") {
            bar.set_style(style);
        }
        let mut done = Vec::new();
        let mut refused = Vec::new();
        for (number, key) in chosen.iter().enumerate() {
            if let Some(pause) = pause.filter(|_| number > 0) {
                tokio::time::sleep(pause).await;
            }
            let sent = match pause {
                None => self.send(key).await,
                Some(_) => self.send_unless_warned(key).await,
            };
            match sent {
                Ok(_) => done.push(json!({"id": key.id, "about_fence": key.fence})),
                Err(error) => refused.push(json!({"id": key.id, "why": error.to_string()})),
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let verb = self.verb;
        if self.as_json {
            output::json(&json!({"verb": verb, "done": done, "refused": refused}));
        } else {
            for refusal in &refused {
                let part = |name: &str| refusal.get(name).and_then(Value::as_str).unwrap_or("-");
                output::complain(&harmless(&format!("{}: {}", part("id"), part("why")), false));
            }
            if let ([key], [_]) = (chosen, &done[..])
                && let Some(fence) = key.fence
            {
                output::say(&format!("decided about fence {fence}"));
            }
            output::say(&format!("{verb}: {} done, {} refused", done.len(), refused.len()));
        }
        if refused.is_empty() { Ok(()) } else { Err("not every key took it".into()) }
    }
}

fn say_preview(preview: &Value) {
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => harmless(text, false),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => harmless(&other.to_string(), false),
    };
    let (id, state) = (text(preview.get("id")), text(preview.get("state")));
    output::say(&format!("{id}  fence {}", text(preview.get("fence"))));
    match preview.pointer("/would/state") {
        Some(then) => output::say(&format!("  {state} would become {}", text(Some(then)))),
        None => {
            let why = text(preview.pointer("/refused/detail"));
            output::say(&format!("  {state} would stay: {why}"));
        }
    }
    if let Some(Value::String(evidence)) = preview.pointer("/would/evidence") {
        output::say(&format!("  evidence: {}", harmless(evidence, false)));
    }
    output::say(&format!("  a retry then gets: {}", text(preview.get("retry_gets"))));
    for warning in preview.get("warnings").and_then(Value::as_array).into_iter().flatten() {
        output::say(&format!("  WARNING: {}", text(Some(warning))));
    }
}

/// What is sent with `resolve` beside its reason.
///
/// # Errors
///
/// If a header is not one, or the body's file cannot be read.
pub(crate) fn verdict(args: &ResolveArgs) -> Result<Map<String, Value>, Failure> {
    let mut document = Map::new();
    document.insert("outcome".into(), args.outcome.name().into());
    if let Some(source) = args.source {
        document.insert("use".into(), source.name().into());
        document.insert("late_fence".into(), args.late_fence.into());
    }
    if let Some(status) = args.status {
        let mut pairs = Vec::new();
        for line in &args.headers {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("{line:?} is not a header such as `Name: value`"))?;
            pairs.push(json!([name.trim(), value.trim()]));
        }
        let mut response = json!({"status": status, "headers": pairs});
        let (member, body) = match (&args.body_file, &args.body) {
            (Some(path), _) => {
                let bytes =
                    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
                ("body_base64", STANDARD.encode(bytes))
            }
            (None, Some(body)) => ("body", body.clone()),
            (None, None) => ("body", String::new()),
        };
        if let Some(response) = response.as_object_mut() {
            response.insert(member.into(), body.into());
        }
        document.insert("response".into(), response);
    }
    Ok(document)
}
