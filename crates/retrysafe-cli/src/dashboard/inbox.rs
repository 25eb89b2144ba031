//! Which events have providers sent, and what became of them?

use axum::Form;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::error::{Trouble, page};
use super::pages::{EventPage, InboxPage};
use super::session::Session;
use super::shown_house::{EventList, ShownEvent};
use crate::percent::encoded;

/// How many events a page shows.
const EVENTS: usize = 100;

#[derive(Deserialize)]
pub(super) struct Chosen {
    #[serde(default)]
    state: String,
    #[serde(default)]
    provider: String,
    cursor: Option<i64>,
}

pub(super) async fn list(
    State(dashboard): Shared,
    session: Session,
    Query(Chosen { state, provider, cursor }): Query<Chosen>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "inbox").await?;
    let mut path = format!("/api/v1/inbox?limit={EVENTS}");
    let cursor = cursor.map(|cursor| cursor.to_string()).unwrap_or_default();
    for (name, value) in [("state", &state), ("provider", &provider), ("cursor", &cursor)] {
        if !value.is_empty() {
            path.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    let listed = dashboard.api.get::<EventList>(&session, &path).await;
    let (list, absent) = match listed {
        Ok(list) => (list, None),
        Err(trouble) => (EventList::default(), Some(trouble.not_in_this_store()?)),
    };
    Ok(page(&InboxPage { head, list, absent, state, provider }))
}

pub(super) async fn one(
    State(dashboard): Shared,
    session: Session,
    Path(id): Path<i64>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "inbox").await?;
    let event: ShownEvent = dashboard.api.get(&session, &format!("/api/v1/inbox/{id}")).await?;
    Ok(page(&EventPage { head, event }))
}

#[derive(Deserialize)]
pub(super) struct AskedReplay {
    form_key: String,
    reason: String,
}

/// Has an event judged once more. The API says who may, and whether there is anything to judge.
pub(super) async fn replay(
    State(dashboard): Shared,
    session: Session,
    Path(id): Path<i64>,
    Form(AskedReplay { form_key, reason }): Form<AskedReplay>,
) -> Result<Response, Trouble> {
    session.check(&form_key)?;
    let path = format!("/api/v1/inbox/{id}/replay");
    let _: Value = dashboard.api.post(&session, &path, &json!({"reason": reason})).await?;
    Ok(Redirect::to(&format!("/inbox/{id}")).into_response())
}
