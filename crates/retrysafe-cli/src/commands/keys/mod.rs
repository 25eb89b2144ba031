//! What do `keys list`, `show`, `find`, `resolve`, `release` and `expire` do?

mod act;
mod list;
mod search;
mod show;

use std::collections::BTreeMap;

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
        KeysCommand::Show { admin, text } => {
            let caller = caller(&admin)?;
            let id = search::one(&caller, &text).await?.id;
            show::run(&caller, &id, admin.json).await
        }
        KeysCommand::Find { admin, text, limit } => {
            search::run(&caller(&admin)?, &text, limit, admin.json).await
        }
        KeysCommand::Resolve { action, outcome, status, headers, body, fence } => {
            let document = act::verdict(&action.reason, outcome, status, &headers, body)?;
            act::run(&caller(&action.admin)?, &action, "resolve", &document, fence).await
        }
        KeysCommand::Release { action, fence } => {
            let document = act::because(&action.reason);
            act::run(&caller(&action.admin)?, &action, "release", &document, fence).await
        }
        KeysCommand::Expire { action } => {
            let document = act::because(&action.reason);
            act::run(&caller(&action.admin)?, &action, "expire", &document, None).await
        }
    }
}
