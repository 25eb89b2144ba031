//! Who is reading?
//!
//! Whoever has logged in with an admin token. The browser keeps a random number in a cookie that scripts cannot read and other
//! sites cannot send; the token itself stays in this process and is asked for anew with every page, so a token that is taken out of the
//! configuration ends its sessions. A restart ends all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Form;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;

use super::error::{Trouble, page, refused_page};
use super::pages::LoginPage;
use super::{Dashboard, Shared};

/// The name of the cookie. The gateway takes it from requests on their way to an upstream.
pub(crate) const SESSION_COOKIE: &str = "retrysafe-session";

/// How long a session lasts after its last page.
const IDLE_MAX: Duration = Duration::from_secs(8 * 60 * 60);

/// How many sessions there may be: a few people with a few browsers. The one that was idle longest makes room.
const SESSIONS_MAX: usize = 64;

/// Everybody who is logged in.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, Kept>>);

struct Kept {
    session: Session,
    used_at: Instant,
}

/// One reader.
#[derive(Clone)]
pub(super) struct Session {
    /// The admin token, as it was typed.
    pub token: Arc<str>,
    /// What each form of this session carries.
    pub form_key: Arc<str>,
}

impl Sessions {
    fn open(&self, token: &str) -> String {
        let number = random();
        let session = Session { token: token.into(), form_key: random().into() };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, kept| kept.used_at.elapsed() < IDLE_MAX);
        if all.len() >= SESSIONS_MAX {
            let idle =
                all.iter().min_by_key(|(_, kept)| kept.used_at).map(|(number, _)| number.clone());
            idle.map(|number| all.remove(&number));
        }
        all.insert(number.clone(), Kept { session, used_at: Instant::now() });
        number
    }

    fn of(&self, headers: &HeaderMap) -> Option<Session> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.get_mut(shown_number(headers)?)?;
        if kept.used_at.elapsed() >= IDLE_MAX {
            return None;
        }
        kept.used_at = Instant::now();
        Some(kept.session.clone())
    }

    /// Whether a session is still open. A look from a stream is no use of it.
    pub(super) fn is_open(&self, session: &Session) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|kept| {
            kept.used_at.elapsed() < IDLE_MAX && kept.session.form_key == session.form_key
        })
    }

    fn end(&self, headers: &HeaderMap) {
        if let Some(number) = shown_number(headers) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(number);
        }
    }
}

impl Session {
    /// Whether a form comes from a page of this session.
    pub(super) fn check(&self, form_key: &str) -> Result<(), Trouble> {
        if form_key == &*self.form_key { Ok(()) } else { Err(Trouble::Foreign) }
    }
}

impl FromRequestParts<Arc<Dashboard>> for Session {
    type Rejection = Trouble;

    async fn from_request_parts(
        parts: &mut Parts,
        dashboard: &Arc<Dashboard>,
    ) -> Result<Self, Trouble> {
        let back_to = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        dashboard.sessions.of(&parts.headers).ok_or_else(|| Trouble::LoggedOut(back_to.to_owned()))
    }
}

/// A number that nobody can guess.
fn random() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

fn shown_number(headers: &HeaderMap) -> Option<&str> {
    headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok()).find_map(|line| {
        line.split(';').find_map(|pair| pair.trim().strip_prefix(SESSION_COOKIE)?.strip_prefix('='))
    })
}

fn cookie(value: &str, seconds: u64) -> Option<HeaderValue> {
    let text =
        format!("{SESSION_COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    HeaderValue::from_str(&text).ok()
}

#[derive(Deserialize)]
pub(super) struct Shown {
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
pub(super) struct Typed {
    token: String,
    #[serde(default)]
    next: String,
}

/// The page on which one logs in.
pub(super) async fn form(
    axum::extract::Query(Shown { next }): axum::extract::Query<Shown>,
) -> Response {
    page(&LoginPage { next: own_path(&next), is_wrong: false })
}

pub(super) async fn log_in(
    State(dashboard): Shared,
    Form(Typed { token, next }): Form<Typed>,
) -> Response {
    let token = token.trim();
    let next = own_path(&next);
    match dashboard.api.who(token).await {
        Ok(_) => {
            let mut answer = Redirect::to(next).into_response();
            let kept = cookie(&dashboard.sessions.open(token), IDLE_MAX.as_secs());
            answer.headers_mut().extend(kept.map(|kept| (header::SET_COOKIE, kept)));
            answer
        }
        Err(Trouble::TokenRefused) => {
            tracing::warn!(target: "audit", "dashboard_login_refused");
            refused_page(&LoginPage { next, is_wrong: true })
        }
        Err(trouble) => trouble.into_response(),
    }
}

#[derive(Deserialize)]
pub(super) struct Leaving {
    form_key: String,
}

pub(super) async fn log_out(
    State(dashboard): Shared,
    session: Session,
    headers: HeaderMap,
    Form(Leaving { form_key }): Form<Leaving>,
) -> Result<Response, Trouble> {
    session.check(&form_key)?;
    dashboard.sessions.end(&headers);
    let mut answer = Redirect::to("/login").into_response();
    answer.headers_mut().extend(cookie("", 0).map(|gone| (header::SET_COOKIE, gone)));
    Ok(answer)
}

/// Where to go after the log-in: a path of ours, never another site.
fn own_path(next: &str) -> &str {
    let is_own = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains('\\')
        && !next.chars().any(char::is_control);
    if is_own { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        assert_eq!(own_path("/keys?text=a"), "/keys?text=a");
        for foreign in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a\r\nb",
            "javascript:x",
        ] {
            assert_eq!(own_path(foreign), "/", "{foreign}");
        }
    }

    #[test]
    fn sessions_are_few_and_each_has_its_own_form_key() {
        let sessions = Sessions::default();
        let numbers: Vec<String> = (0..=SESSIONS_MAX).map(|_| sessions.open("token")).collect();
        let of = |number: &str| {
            let value =
                HeaderValue::from_str(&format!("other=1; {SESSION_COOKIE}={number}")).unwrap();
            sessions.of(&HeaderMap::from_iter([(header::COOKIE, value)]))
        };
        assert!(of(&numbers[0]).is_none());
        let one = of(&numbers[1]).unwrap();
        let other = of(&numbers[2]).unwrap();
        assert!(one.check(&one.form_key).is_ok());
        assert!(one.check(&other.form_key).is_err());
        assert!(of("").is_none());
    }
}
