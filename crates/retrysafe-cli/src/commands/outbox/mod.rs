//! What do `outbox …` and `dlq …` do?

mod act;
mod dead;
mod list;
mod show;

use std::collections::BTreeMap;

use serde_json::json;

use super::admin_client::AdminClient;
use crate::Failure;
use crate::args::{AdminArgs, DlqCommand, OutboxCommand};
use act::Signature;

/// Does what is asked about effects.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run(
    command: OutboxCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let caller = |admin: &AdminArgs| AdminClient::new(admin, variables);
    match command {
        OutboxCommand::List { admin, state, filter, lane, limit } => {
            let state = state.map(|state| state.name());
            let lane = lane.as_deref();
            list::run(&caller(&admin)?, state, &filter, lane, limit, admin.json).await
        }
        OutboxCommand::Show { admin, id } => show::run(&caller(&admin)?, id, admin.json).await,
        OutboxCommand::Retry(action) => {
            let signature = Signature::new(&action.reason, variables);
            act::run(&caller(&action.admin)?, "retry", &action, &signature).await
        }
        OutboxCommand::Cancel(action) => {
            let signature = Signature::new(&action.reason, variables);
            act::run(&caller(&action.admin)?, "cancel", &action, &signature).await
        }
        OutboxCommand::Resolve { admin, id, outcome, reference, settle_time, fence, reason } => {
            let verdict = json!({
                "outcome": outcome.name(), "reference": reference, "settle_time": settle_time, "fence": fence,
            });
            let signature = Signature::new(&reason, variables);
            act::resolve(&caller(&admin)?, id, &signature.on(verdict), admin.json).await
        }
        OutboxCommand::Pause(action) => {
            let signature = Signature::new(&action.reason, variables);
            act::change_kind(&caller(&action.admin)?, "pause", &action, &signature).await
        }
        OutboxCommand::Resume(action) => {
            let signature = Signature::new(&action.reason, variables);
            act::change_kind(&caller(&action.admin)?, "resume", &action, &signature).await
        }
        OutboxCommand::Stats { admin } => show::stats(&caller(&admin)?, admin.json).await,
    }
}

/// Does what is asked about dead effects.
///
/// # Errors
///
/// If the admin listener cannot be asked, or refuses.
pub(crate) async fn run_dead(
    command: DlqCommand,
    variables: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let caller = |admin: &AdminArgs| AdminClient::new(admin, variables);
    match command {
        DlqCommand::List { admin, filter, limit } => {
            list::run(&caller(&admin)?, Some("dead"), &filter, None, limit, admin.json).await
        }
        DlqCommand::Show { admin, id } => show::run(&caller(&admin)?, id, admin.json).await,
        DlqCommand::Requeue { bulk, rate } => {
            dead::run(&caller(&bulk.admin)?, "requeue", &bulk, Some(rate), variables).await
        }
        DlqCommand::Purge { bulk } => {
            dead::run(&caller(&bulk.admin)?, "purge", &bulk, None, variables).await
        }
    }
}
