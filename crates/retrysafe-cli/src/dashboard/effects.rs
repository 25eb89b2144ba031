//! Which effects wait, are in doubt or are dead?

use axum::Form;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::error::{Trouble, page};
use super::pages::{EffectPage, OutboxPage};
use super::session::Session;
use super::shown::{EffectList, ShownEffect, ShownKinds};
use crate::percent::encoded;

/// How many effects a page shows.
const EFFECTS: usize = 100;

#[derive(Deserialize)]
pub(super) struct Chosen {
    #[serde(default)]
    state: String,
    #[serde(default)]
    kind: String,
    cursor: Option<i64>,
}

pub(super) async fn kinds(
    State(dashboard): Shared,
    session: Session,
    Query(Chosen { state, kind, cursor }): Query<Chosen>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "outbox").await?;
    // What a person must look at comes first.
    let state = if state.is_empty() { "dead".to_owned() } else { state };
    let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    let of_kind = if kind.is_empty() { String::new() } else { format!("&kind={}", encoded(&kind)) };
    let path = format!("/api/v1/outbox?state={}&limit={EFFECTS}{of_kind}{cursor}", encoded(&state));
    let (kinds, list, absent) =
        match dashboard.api.get::<ShownKinds>(&session, "/api/v1/outbox/stats").await {
            Ok(kinds) => (kinds, dashboard.api.get::<EffectList>(&session, &path).await?, None),
            Err(trouble) => {
                let why = trouble.not_in_this_store()?;
                (ShownKinds::default(), EffectList::default(), Some(why))
            }
        };
    Ok(page(&OutboxPage { head, kinds, list, absent, state, kind }))
}

pub(super) async fn one(
    State(dashboard): Shared,
    session: Session,
    Path(id): Path<i64>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "outbox").await?;
    let effect: ShownEffect = dashboard.api.get(&session, &format!("/api/v1/outbox/{id}")).await?;
    Ok(page(&EffectPage { head, effect }))
}

#[derive(Deserialize)]
pub(super) struct AskedVerb {
    form_key: String,
    reason: String,
}

/// `retry` or `cancel`. The API says what else there is, and who may.
pub(super) async fn decide(
    State(dashboard): Shared,
    session: Session,
    Path((id, verb)): Path<(i64, String)>,
    Form(AskedVerb { form_key, reason }): Form<AskedVerb>,
) -> Result<Response, Trouble> {
    session.check(&form_key)?;
    let path = format!("/api/v1/outbox/{id}/{}", encoded(&verb));
    let _: Value = dashboard.api.post(&session, &path, &json!({"reason": reason})).await?;
    Ok(Redirect::to(&format!("/outbox/{id}")).into_response())
}
