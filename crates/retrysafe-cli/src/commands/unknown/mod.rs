//! What do `unknown list`, `show`, `poll`, `resolve` and `release` do?
//!
//! The list and the poll are its own; the rest is what `keys …` does.

mod list;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::admin_client::AdminClient;
use super::keys::{act, search, show};
use crate::Failure;
use crate::args::{AdminArgs, DecisionArgs, StateArg, UnknownCommand};
use crate::harmless::harmless;
use crate::output;
use crate::percent::encoded;

/// Does it.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run(
    command: UnknownCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let caller = |admin: &AdminArgs| AdminClient::new(admin, variables);
    match command {
        UnknownCommand::List { admin, filter, limit, cursor } => {
            list::run(&caller(&admin)?, &filter, limit, cursor, admin.json).await
        }
        UnknownCommand::Show { admin, text } => {
            show::run(&caller(&admin)?, &text, admin.json).await
        }
        UnknownCommand::Poll { admin, text } => poll(&caller(&admin)?, &text, admin.json).await,
        UnknownCommand::Resolve(mut args) => {
            only_unknown(&mut args.decision)?;
            let verdict = act::verdict(&args)?;
            let caller = caller(&args.decision.admin)?;
            act::run(&caller, &args.decision, "resolve", verdict, variables).await
        }
        UnknownCommand::Release(mut decision) => {
            only_unknown(&mut decision)?;
            act::run(&caller(&decision.admin)?, &decision, "release", Map::new(), variables).await
        }
    }
}

/// A filter of these verbs lists what is unknown, and nothing else.
fn only_unknown(decision: &mut DecisionArgs) -> Result<(), Failure> {
    match decision.filter.state {
        Some(StateArg::Unknown) => {}
        Some(StateArg::InProgress | StateArg::Completed | StateArg::FailedRetryable) => {
            return Err("only what is unknown can be decided: leave out --state".into());
        }
        None if decision.filter.is_empty() => {}
        None => decision.filter.state = Some(StateArg::Unknown),
    }
    Ok(())
}

/// Has the upstream asked about one key, and shows what came of it.
async fn poll(caller: &AdminClient, text: &str, as_json: bool) -> Result<(), Failure> {
    let found = search::one(caller, text).await?;
    let path = format!("/api/v1/keys/{}/poll", encoded(&found.id));
    let polled = caller.post(&path, &json!({"fence": found.fence})).await?;
    if as_json {
        output::json(&polled);
        return Ok(());
    }
    let part = |name: &str| polled.get(name).and_then(Value::as_str).unwrap_or("-");
    output::say(&harmless(&format!("{}: {}\n", part("result"), part("found")), true));
    if let Some(record) = polled.get("record") {
        show::say(record);
    }
    Ok(())
}
