//! Where are records kept, which configuration holds, and what did the last comparison of ledgers find?

use axum::extract::State;
use axum::response::Response;

use super::Shared;
use super::error::{Trouble, page};
use super::pages::{LedgerPage, SettingsPage, StorePage};
use super::session::Session;
use super::shown_house::{LedgerList, ShownSettings, ShownStore};

pub(super) async fn store(State(dashboard): Shared, session: Session) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "store").await?;
    let store: ShownStore = dashboard.api.get(&session, "/api/v1/store").await?;
    let recent = dashboard.numbers().await?;
    let growth = dashboard.growth();
    let readiness = dashboard.api.readiness(&session).await?;
    Ok(page(&StorePage { head, store, recent, growth, readiness }))
}

pub(super) async fn ledger(
    State(dashboard): Shared,
    session: Session,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "ledger").await?;
    let list: LedgerList = dashboard.api.get(&session, "/api/v1/ledger").await?;
    Ok(page(&LedgerPage { head, list }))
}

pub(super) async fn settings(
    State(dashboard): Shared,
    session: Session,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "settings").await?;
    let settings: ShownSettings = dashboard.api.get(&session, "/api/v1/config").await?;
    Ok(page(&SettingsPage { head, settings }))
}
