//! How is the gateway doing, what is in doubt, and what happened to one key?

use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{Trouble, page};
use super::meters::Numbers;
use super::pages::{Head, OverviewPage, SearchPage, StoryPage, UnknownPage};
use super::picture::Picture;
use super::session::Session;
use super::shown::{KeyList, Reader, ShownKey};
use super::shown_house::{ShownStore, ShownUpstream};
use super::{Dashboard, Shared};
use crate::percent::encoded;

/// How many keys a page shows.
const KEYS: usize = 100;

/// How many unknown records are read for the board. No store keeps them by age, so the oldest are found by reading; more than a
/// person looks through, and few enough that a page comes at once.
const UNKNOWN_READ_MAX: usize = 5_000;

impl Dashboard {
    pub(super) async fn head(
        &self,
        session: &Session,
        here: &'static str,
    ) -> Result<Head, Trouble> {
        let reader: Reader = self.api.get(session, "/api/v1/whoami").await?;
        Ok(Head { reader, form_key: session.form_key.to_string(), here })
    }
}

pub(super) async fn overview(
    State(dashboard): Shared,
    session: Session,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "overview").await?;
    let recent = dashboard.numbers().await?;
    let ready = dashboard.api.readiness(&session).await?;
    let is = |name: &str| ready.get(name).and_then(Value::as_bool).unwrap_or(false);
    let store_word = ready.get("store").and_then(Value::as_str).unwrap_or("no answer").to_owned();
    // A store that does not answer is told of in a word; the rest of the page is worth reading all the more.
    let store: Option<ShownStore> = dashboard.api.get(&session, "/api/v1/store").await.ok();
    Ok(page(&OverviewPage {
        head,
        recent,
        is_ready: is("ready"),
        store_word,
        store,
        upstreams: ShownUpstream::all(&ready),
        is_stopping: is("stopping"),
    }))
}

#[derive(Deserialize)]
pub(super) struct Turned {
    cursor: Option<String>,
    #[serde(default)]
    dead_lettered: bool,
}

pub(super) async fn unknown(
    State(dashboard): Shared,
    session: Session,
    Query(Turned { cursor, dead_lettered: is_for_people }): Query<Turned>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "unknown").await?;
    let cursor = cursor.map(|cursor| format!("&cursor={}", encoded(&cursor))).unwrap_or_default();
    let chosen = if is_for_people { "&dead_lettered=true" } else { "" };
    let path = |chosen: &str| {
        format!("/api/v1/unknown?limit={KEYS}&read_max={UNKNOWN_READ_MAX}{chosen}{cursor}")
    };
    let list: KeyList = match dashboard.api.get(&session, &path(chosen)).await {
        Ok(list) => list,
        // Nothing is looked up by this process, so all of it waits for a person.
        Err(trouble) => {
            trouble.not_in_this_store()?;
            dashboard.api.get(&session, &path("")).await?
        }
    };
    let Numbers { unknown: gauged, dead_lettered, .. } = dashboard.numbers().await?.now;
    let ShownStore { unknown, now, .. } = dashboard.api.get(&session, "/api/v1/store").await?;
    let read_max = UNKNOWN_READ_MAX as f64;
    Ok(page(&UnknownPage {
        head,
        list,
        unknown,
        gauged,
        dead_lettered,
        read_max,
        now,
        is_for_people,
    }))
}

#[derive(Deserialize)]
pub(super) struct Sought {
    #[serde(default)]
    text: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    route: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    cursor: String,
}

/// By a text that stands in a log line or in a mail; or by state, route, caller and path.
pub(super) async fn search(
    State(dashboard): Shared,
    session: Session,
    Query(sought): Query<Sought>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "keys").await?;
    let Sought { text, state, route, scope, path, cursor } = sought;
    let text = text.trim().to_owned();
    let chosen = [("state", &state), ("route", &route), ("scope", &scope), ("path", &path)];
    let chosen: String = chosen
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("&{name}={}", encoded(value)))
        .collect();
    let list: KeyList = if text.is_empty() {
        let after =
            if cursor.is_empty() { String::new() } else { format!("&cursor={}", encoded(&cursor)) };
        let path = format!("/api/v1/keys?limit={KEYS}{chosen}{after}");
        dashboard.api.get(&session, &path).await?
    } else {
        let cursor = Some(&cursor).filter(|cursor| !cursor.is_empty());
        dashboard
            .api
            .post(&session, "/api/v1/keys/find", &json!({"text": text, "cursor": cursor}))
            .await?
    };
    let next = list
        .cursor
        .as_ref()
        .map(|cursor| format!("/keys?text={}{chosen}&cursor={}", encoded(&text), encoded(cursor)));
    Ok(page(&SearchPage { head, text, state, route, scope, path, list, next }))
}

pub(super) async fn story(
    State(dashboard): Shared,
    session: Session,
    Path(id): Path<String>,
) -> Result<Response, Trouble> {
    let head = dashboard.head(&session, "keys").await?;
    let key: ShownKey =
        dashboard.api.get(&session, &format!("/api/v1/keys/{}", encoded(&id))).await?;
    let picture = Picture::of(&key);
    Ok(page(&StoryPage { head, key, picture }))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Json;
    use axum::Router;
    use axum::routing::get;

    use super::super::api::AdminApi;
    use super::super::session::Sessions;
    use super::*;

    /// A board over an admin API that has read too few of what is unknown, and what it was asked.
    async fn board(cut: bool) -> (String, String) {
        let asked = Arc::<Mutex<String>>::default();
        let noted = Arc::clone(&asked);
        let unknown = get(async move |uri: http::Uri| {
            *noted.lock().unwrap() = uri.query().unwrap_or_default().to_owned();
            Json(json!({"unknown": [], "damaged": [], "cursor": null, "cut": cut}))
        });
        let who = get(async || Json(json!({"name": "anna", "role": "read"})));
        let store = get(async || {
            Json(json!({
                "kind": "disk", "url": "", "durable": "", "now": "", "unknown": 7_000,
                "sweep_every_seconds": 1, "reap_every_seconds": 1,
                "at_start": {"at": "", "left_running": 0, "unknown": 0},
            }))
        });
        let admin = Router::new()
            .route("/api/v1/unknown", unknown)
            .route("/api/v1/whoami", who)
            .route("/api/v1/store", store)
            .route("/metrics", get(async || ""));
        let dashboard = Arc::new(Dashboard {
            api: AdminApi::new(admin),
            sessions: Sessions::default(),
            history: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        });
        let session = Session { token: "token".into(), form_key: "key".into() };
        let turned = Turned { cursor: None, dead_lettered: false };
        let shown = super::unknown(State(dashboard), session, Query(turned)).await.unwrap();
        let bytes = axum::body::to_bytes(shown.into_body(), 1 << 20).await.unwrap();
        let asked = asked.lock().unwrap().clone();
        (asked, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// The board read every unknown record of the store for its first page.
    #[tokio::test]
    async fn the_board_says_how_much_may_be_read_for_it_and_whether_that_was_too_little() {
        let (asked, shown) = board(true).await;
        assert!(asked.split('&').any(|part| part == "read_max=5000"), "{asked}");
        assert!(shown.contains("5\u{202f}000 of them were read"), "{shown}");
        let (_, whole) = board(false).await;
        assert!(whole.contains("Nothing is in doubt") && !whole.contains("were read"), "{whole}");
    }
}
