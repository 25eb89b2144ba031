//! Why is a page not shown?

use askama::Template;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::StatusCode;
use serde_json::Value;

use crate::percent;

#[derive(Template)]
#[template(path = "trouble.html")]
struct TroublePage {
    title: String,
    text: String,
    /// Whether it was refused before anything was done.
    is_unchanged: bool,
}

/// Why a page is not shown.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nobody is logged in; after the log-in the reader wants to come back here.
    LoggedOut(String),
    /// The admin API does not know the token, or not any more.
    TokenRefused,
    /// The form does not come from a page of this session.
    Foreign,
    /// The admin API has refused, with this answer.
    Refused(StatusCode, Value),
    /// What was typed into a form makes no sense, for this reason.
    Mistyped(&'static str),
    /// What the API has answered cannot be shown.
    Unreadable(String),
}

impl Trouble {
    /// What is said where a store has no such thing at all, which is no failure; every other trouble stays one.
    pub(super) fn not_in_this_store(self) -> Result<String, Self> {
        match self {
            Self::Refused(StatusCode::NOT_IMPLEMENTED, answer) => {
                let detail = answer.get("detail").and_then(Value::as_str);
                Ok(detail.unwrap_or("This store has no such thing.").to_owned())
            }
            Self::LoggedOut(_)
            | Self::TokenRefused
            | Self::Foreign
            | Self::Refused(..)
            | Self::Mistyped(_)
            | Self::Unreadable(_) => Err(self),
        }
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let (status, title, text) = match self {
            Self::LoggedOut(back_to) => {
                return Redirect::to(&format!("/login?next={}", percent::encoded(&back_to))).into_response();
            }
            Self::TokenRefused => return Redirect::to("/login").into_response(),
            Self::Foreign => (
                StatusCode::FORBIDDEN,
                "Not from this page".to_owned(),
                "The form was not sent by a page of your session. Load the page again, and send the form again.".to_owned(),
            ),
            Self::Refused(status, answer) => {
                let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
                let title = text("title").or_else(|| text("code")).unwrap_or_else(|| status.to_string());
                (status, title, text("detail").unwrap_or_default())
            }
            Self::Mistyped(why) => {
                (StatusCode::BAD_REQUEST, "This form cannot be read".to_owned(), why.to_owned())
            }
            Self::Unreadable(why) => (StatusCode::INTERNAL_SERVER_ERROR, "This page could not be made".to_owned(), why),
        };
        let is_unchanged = status.is_client_error();
        let mut shown = page(&TroublePage { title, text, is_unchanged });
        *shown.status_mut() = status;
        shown
    }
}

/// A page as an answer.
pub(super) fn page(template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => Html(html).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The page on which one logs in, for whoever was not let in.
pub(super) fn refused_page(template: &impl Template) -> Response {
    let mut shown = page(template);
    *shown.status_mut() = StatusCode::UNAUTHORIZED;
    shown
}
