//! What is decided about keys?
//!
//! A verb takes keys by name, or a filter that says which. Without names an empty filter is refused
//! unless `--all` says that it is meant: a slip must not release a whole store. What a filter lists
//! is shown, and done only to a yes.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::search::Found;
use super::{list, search};
use crate::Failure;
use crate::args::{ActionArgs, OutcomeArg};
use crate::commands::admin_client::AdminClient;
use crate::output;
use crate::percent::encoded;

/// How many of the keys that a filter lists are shown before it is asked.
const SHOWN_MAX: usize = 20;

/// Does a verb to every key that is meant.
pub(super) async fn run(
    caller: &AdminClient,
    action: &ActionArgs,
    verb: &str,
    document: &Value,
    fence: Option<u64>,
) -> Result<(), Failure> {
    let is_filtered = !action.filter.is_empty() || action.all;
    let chosen = match action.ids.as_slice() {
        [] if !is_filtered => {
            return Err("that would be every key: name keys or a filter, or say --all".into());
        }
        [] => listed(caller, action, verb).await?,
        _ if is_filtered => return Err("name keys or a filter, not both".into()),
        [_, _, ..] if fence.is_some() => return Err("--fence is for one id".into()),
        texts => named(caller, texts, fence).await?,
    };
    act(caller, verb, document, &chosen, action.admin.json).await
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
        chosen.push(Found { fence: fence.or(found.fence), ..found });
    }
    Ok(chosen)
}

/// The keys that a filter lists, with the fences that were listed, if it is a yes. What changes
/// between the listing and the verb is not decided about.
async fn listed(
    caller: &AdminClient,
    action: &ActionArgs,
    verb: &str,
) -> Result<Vec<Found>, Failure> {
    let keys = list::all(caller, &action.filter, usize::MAX).await?;
    if !keys.is_empty() && !action.yes {
        confirm(verb, &keys)?;
    }
    let found = |key: &Value| {
        let id = key.get("id")?.as_str()?.to_owned();
        Some(Found { id, fence: key.get("fence").and_then(Value::as_u64) })
    };
    Ok(keys.iter().filter_map(found).collect())
}

/// Shows what would be done, and asks.
fn confirm(verb: &str, keys: &[Value]) -> Result<(), Failure> {
    list::table(keys.get(..SHOWN_MAX).unwrap_or(keys));
    if keys.len() > SHOWN_MAX {
        output::say(&format!("and {} more", keys.len() - SHOWN_MAX));
    }
    let count = match keys.len() {
        1 => "this key".to_owned(),
        count => format!("these {count} keys"),
    };
    let effect = effect(verb);
    let mut asked = std::io::stderr();
    if !std::io::stdin().is_terminal() {
        let what = format!("this would {verb} {count}: {effect}. Nothing was done.");
        return Err(format!("{what} Say --yes to do it without being asked").into());
    }
    // If the question cannot be written, the answer is awaited all the same.
    let _ = write!(asked, "{verb} {count}? {effect}. [y/N] ").and_then(|()| asked.flush());
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if is_yes(&answer) { Ok(()) } else { Err("nothing was done".into()) }
}

/// What a verb means to the callers.
fn effect(verb: &str) -> &'static str {
    match verb {
        "release" => "The next retry of each runs again",
        "expire" => "Each is forgotten, and its next request runs",
        _ => "Each is decided for good",
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Does a verb to each key, and says how many took it.
async fn act(
    caller: &AdminClient,
    verb: &str,
    document: &Value,
    chosen: &[Found],
    as_json: bool,
) -> Result<(), Failure> {
    let bar = ProgressBar::new(chosen.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {eta}") {
        bar.set_style(style);
    }
    let mut done = Vec::new();
    let mut refused = Vec::new();
    for Found { id, fence } in chosen {
        let mut document = document.clone();
        // What is settled has no attempts to confuse.
        if let (Some(fence), Some(document), true) =
            (fence, document.as_object_mut(), verb != "expire")
        {
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
    if as_json {
        output::json(&json!({"verb": verb, "done": done, "refused": refused}));
    } else {
        for refusal in &refused {
            output::complain(&refusal.to_string());
        }
        output::say(&format!("{verb}: {} done, {} refused", done.len(), refused.len()));
    }
    if refused.is_empty() { Ok(()) } else { Err("not every key took it".into()) }
}

/// What is sent with a verb that needs nothing but a reason.
pub(super) fn because(reason: &str) -> Value {
    json!({ "reason": reason })
}

/// What is sent with `resolve`.
///
/// # Errors
///
/// If a header is not one.
pub(super) fn verdict(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for yes in ["y\n", "Y\n", " yes \n", "YES"] {
            assert!(is_yes(yes), "{yes}");
        }
        for no in ["", "\n", "n\n", "no\n", "yess\n", "release\n"] {
            assert!(!is_yes(no), "{no}");
        }
    }
}
