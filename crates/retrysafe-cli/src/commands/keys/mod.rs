//! What do `keys list`, `show`, `find`, `resolve`, `release` and `expire` do?
//!
//! `unknown …` has the same verbs, and does them here.

pub(super) mod act;
pub(super) mod list;
pub(super) mod search;
pub(super) mod show;

use std::collections::BTreeMap;

use serde_json::Map;

use super::admin_client::AdminClient;
use crate::Failure;
use crate::args::{AdminArgs, KeysCommand};

/// Does it.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run(
    command: KeysCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let caller = |admin: &AdminArgs| AdminClient::new(admin, variables);
    match command {
        KeysCommand::List { admin, filter, limit } => {
            list::run(&caller(&admin)?, &filter, limit, admin.json).await
        }
        KeysCommand::Show { admin, text } => show::run(&caller(&admin)?, &text, admin.json).await,
        KeysCommand::Find { admin, text, limit } => {
            search::run(&caller(&admin)?, &text, limit, admin.json).await
        }
        KeysCommand::Resolve(args) => {
            let verdict = act::verdict(&args)?;
            let caller = caller(&args.decision.admin)?;
            act::run(&caller, &args.decision, "resolve", verdict, variables).await
        }
        KeysCommand::Release(decision) => {
            act::run(&caller(&decision.admin)?, &decision, "release", Map::new(), variables).await
        }
        KeysCommand::Expire(decision) => {
            act::run(&caller(&decision.admin)?, &decision, "expire", Map::new(), variables).await
        }
    }
}
