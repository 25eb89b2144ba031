//! How is a decision made in a browser?
//!
//! In two steps: a preview by the same rules, then the decision about the very attempt that was shown. Both are the admin API's; the form
//! only carries what the operator has said.

use axum::Form;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde_json::Value;

use super::Shared;
use super::error::{Trouble, page};
use super::form::AskedDecision;
use super::pages::PreviewPage;
use super::session::Session;
use crate::percent::encoded;

pub(super) async fn preview(
    State(dashboard): Shared,
    session: Session,
    Path(id): Path<String>,
    Form(asked): Form<AskedDecision>,
) -> Result<Response, Trouble> {
    session.check(&asked.form_key)?;
    let head = dashboard.head(&session, "unknown").await?;
    let path = format!("/api/v1/keys/{}/resolve", encoded(&id));
    let preview = dashboard
        .api
        .post(&session, &path, &asked.request(true).map_err(Trouble::Mistyped)?)
        .await?;
    Ok(page(&PreviewPage { head, id, asked, preview }))
}

pub(super) async fn decide(
    State(dashboard): Shared,
    session: Session,
    Path(id): Path<String>,
    Form(asked): Form<AskedDecision>,
) -> Result<Response, Trouble> {
    session.check(&asked.form_key)?;
    let path = format!("/api/v1/keys/{}/resolve", encoded(&id));
    let _: Value = dashboard
        .api
        .post(&session, &path, &asked.request(false).map_err(Trouble::Mistyped)?)
        .await?;
    Ok(Redirect::to(&format!("/keys/{}", encoded(&id))).into_response())
}
