//! What does a provider tell us by itself?
//!
//! A provider's webhooks are evidence: they say what became of requests, calls and effects of which nobody here knows. [`Webhooks`]
//! verifies an event, keeps it in an [`Inbox`] before its sender is told that it has arrived, finds what it is about, and decides
//! about that if nobody has. An event may come early, late, twice, out of order, malformed, or say the opposite of another one: it is
//! kept and shown, and nothing is decided twice.
//!
//! * [`WebhookVerifier`] says whether an event is from its provider and fresh; it is pure.
//! * [`WebhookProvider`] says what events name and mean.
//! * [`WebhookService`] is what an application mounts in axum; the gateway serves the same.
//! * [`Upkeep::webhooks`](crate::upkeep::Upkeep::webhooks) judges the events that had to wait.
//!
//! ```no_run
//! # async fn example(providers: Vec<retrysafe::webhooks::WebhookProvider>) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use retrysafe::stores::postgres::PostgresStore;
//! use retrysafe::upkeep::Upkeep;
//! use retrysafe::webhooks::{Inbox, Webhooks};
//!
//! let store = PostgresStore::connect("postgres://app@db.internal/payments").await?;
//! let webhooks = Webhooks::new(store.clone(), Some(Inbox::new(store.clone())), providers);
//! let upkeep = Upkeep::new(store).webhooks(webhooks.clone(), Duration::from_secs(1)).start();
//! let stripe = webhooks.service("stripe").ok_or("no such provider")?;
//! let router: axum::Router = axum::Router::new().route_service("/webhooks/stripe", stripe);
//! # let _ = (router, upkeep);
//! # Ok(())
//! # }
//! ```
//!
//! Over another store than PostgreSQL there is no inbox: an event that finds nothing is answered with 503, so that its provider sends it
//! again, until it is older than [`WebhookProvider::wait`].

mod about;
mod end;
mod event;
mod inbox;
mod judge;
mod provider;
mod receiver;
mod scheme;
mod secret;
mod service;
pub mod standard;
mod verify;

pub use about::EventAbout;
pub use end::EventStanding;
pub use inbox::{EVENTS_PAGE_MAX, EventDetails, Inbox, ShownEvent};
pub use provider::{KEEP, NameRule, NamedBy, NamedCall, SecretSource, WAIT, WebhookProvider};
pub use receiver::{ReplayError, WebhookReceipt, Webhooks};
pub use scheme::{HmacScheme, SignatureEncoding, SignedContent, TOLERANCE, WebhookScheme};
pub use secret::WebhookSecret;
pub use service::{EVENT_BYTES_MAX, WebhookService};
pub use verify::{VerifiedWebhook, WebhookFault, WebhookVerifier};
