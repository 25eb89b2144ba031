//! Which key is meant by a text from a log line or a mail?
//!
//! The admin listener searches for a while at a time and says from where on it may go on, so a large
//! store is searched in several steps, and how long it takes is shown meanwhile.

use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::list;
use crate::Failure;
use crate::commands::admin_client::AdminClient;
use crate::output;

/// How many digits an id has.
const ID_DIGITS: usize = 64;

/// How many keys are named where one was meant.
const NAMED_MAX: usize = 20;

/// A key that was found, and the attempt that was seen of it.
pub(crate) struct Found {
    pub id: String,
    /// None where only the id is known.
    pub fence: Option<u64>,
}

pub(super) async fn run(
    caller: &AdminClient,
    text: &str,
    limit: usize,
    as_json: bool,
) -> Result<(), Failure> {
    let (keys, is_cut) = find(caller, text, limit).await?;
    if as_json {
        output::json(&json!({"keys": keys, "more": is_cut}));
    }
    if keys.is_empty() {
        return Err(nothing(text).into());
    }
    if as_json {
        return Ok(());
    }
    list::table(&keys);
    if is_cut {
        output::complain(&format!("There may be more than these {limit}: --limit shows more."));
    }
    Ok(())
}

/// The one key that is meant.
///
/// # Errors
///
/// If there is none, or more than one.
pub(crate) async fn one(caller: &AdminClient, text: &str) -> Result<Found, Failure> {
    if text.len() == ID_DIGITS && text.chars().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(Found { id: text.to_ascii_lowercase(), fence: None });
    }
    let (keys, _) = find(caller, text, NAMED_MAX).await?;
    let found = |key: &Value| {
        let id = key.get("id")?.as_str()?.to_owned();
        Some(Found { id, fence: key.get("fence").and_then(Value::as_u64) })
    };
    match &keys[..] {
        [] => Err(nothing(text).into()),
        [key] => found(key).ok_or_else(|| "the admin listener named no id".into()),
        [_, _, ..] => {
            list::table(&keys);
            Err(format!("{text:?} means more than one key: name one by its id").into())
        }
    }
}

fn nothing(text: &str) -> String {
    format!(
        "no key is known by {text:?}: not as a key, as the first digits (6 at least) of an id or a \
         digest, or as the id of a request that began. A replay leaves no id: look for the key's \
         digest in its log line."
    )
}

/// The keys that a text may mean, at most `limit`, and whether there may be more.
async fn find(
    caller: &AdminClient,
    text: &str,
    limit: usize,
) -> Result<(Vec<Value>, bool), Failure> {
    let bar = ProgressBar::new_spinner();
    bar.set_message("searching");
    let mut keys = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let asked = json!({"text": text, "cursor": cursor});
        let mut page = caller.post("/api/v1/keys/find", &asked).await?;
        keys.extend(page.get("keys").and_then(Value::as_array).into_iter().flatten().cloned());
        cursor = page.get_mut("cursor").map(Value::take).unwrap_or_default();
        bar.set_message(format!("searching for {:?}: {} found", bar.elapsed(), keys.len()));
        bar.tick();
        if cursor.is_null() || keys.len() >= limit {
            bar.finish_and_clear();
            let is_cut = !cursor.is_null() || keys.len() > limit;
            keys.truncate(limit);
            return Ok((keys, is_cut));
        }
    }
}
