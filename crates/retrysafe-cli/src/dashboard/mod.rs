//! What does an operator see in a browser? (`/` of the admin listener)
//!
//! Pages are made on the server and can be read without scripts. The dashboard has no rules of its own: it asks the admin API in the
//! same process, with the token that its reader has logged in with, and shows what that answers. So roles, fences, previews and audits
//! hold here as they hold for the command line.
//!
//! | path | what |
//! | --- | --- |
//! | `/` | how the gateway is doing |
//! | `/unknown` | what is in doubt, oldest first |
//! | `/keys`, `/keys/{id}` | a search; one key's story, and what may be decided about it |
//! | `/outbox`, `/outbox/{id}` | effects by kind, and one effect |
//! | `/inbox`, `/inbox/{id}` | events of webhooks, and one event |
//! | `/store` | where records are kept, how safely, how many, how fast they grow |
//! | `/ledger` | what the last comparisons of ledgers found |
//! | `/settings` | the configuration that holds, route by route |
//! | `/events` | the numbers of `/`, live |

mod api;
mod decide;
mod effects;
mod error;
mod form;
mod guard;
mod history;
mod inbox;
mod live;
mod meters;
mod pages;
mod picture;
mod session;
mod settings;
mod shown;
mod shown_house;
mod tour;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http::header;

use api::AdminApi;
use history::History;
pub(crate) use session::SESSION_COOKIE;
use session::Sessions;

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/live.js");
const ICON: &str = include_str!("assets/icon.svg");

/// What all pages share.
struct Dashboard {
    api: AdminApi,
    sessions: Sessions,
    history: Mutex<History>,
    /// Held by the one reader who looks at the metrics; others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
}

type Shared = axum::extract::State<Arc<Dashboard>>;

/// All pages, over the admin API that answers them.
pub(crate) fn router(admin: Router) -> Router {
    let dashboard = Arc::new(Dashboard {
        api: AdminApi::new(admin),
        sessions: Sessions::default(),
        history: Mutex::default(),
        looking: tokio::sync::Mutex::default(),
    });
    tokio::spawn(history::watch(Arc::downgrade(&dashboard)));
    Router::new()
        .route("/", get(tour::overview))
        .route("/login", get(session::form).post(session::log_in))
        .route("/logout", post(session::log_out))
        .route("/unknown", get(tour::unknown))
        .route("/keys", get(tour::search))
        .route("/keys/{id}", get(tour::story))
        .route("/keys/{id}/preview", post(decide::preview))
        .route("/keys/{id}/decide", post(decide::decide))
        .route("/outbox", get(effects::kinds))
        .route("/outbox/{id}", get(effects::one))
        .route("/outbox/{id}/{verb}", post(effects::decide))
        .route("/inbox", get(inbox::list))
        .route("/inbox/{id}", get(inbox::one))
        .route("/inbox/{id}/replay", post(inbox::replay))
        .route("/store", get(settings::store))
        .route("/ledger", get(settings::ledger))
        .route("/settings", get(settings::settings))
        .route("/events", get(live::events))
        .route("/assets/style.css", get(async || asset("text/css; charset=utf-8", STYLE)))
        .route("/assets/live.js", get(async || asset("text/javascript; charset=utf-8", SCRIPT)))
        .route("/assets/icon.svg", get(async || asset("image/svg+xml", ICON)))
        .layer(middleware::from_fn(guard::harden))
        .with_state(dashboard)
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
