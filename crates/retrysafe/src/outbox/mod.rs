//! How is something done outside the database, once, if and only if a transaction commits?
//!
//! Write first, call second. The application *stages* an [`Effect`] in the transaction of its own rows: both are
//! committed, or neither. A [`Worker`] delivers it: a receipt, a webhook, a message to another service.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use retrysafe::outbox::{Delivered, Delivery, DeliveryEnd, Effect, Outbox, Receiver, Worker};
//!
//! # async fn send_mail(key: &str, body: &[u8]) -> Result<String, std::io::Error> { todo!() }
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! // In a request: the receipt is staged with the ride.
//! let outbox = Outbox::new(pool.clone());
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO ride (place) VALUES ('Kotti')").execute(&mut *tx).await?;
//! let receipt = Effect::new("receipt").json(&serde_json::json!({ "ride": 7 }))?.name("ride 7");
//! outbox.stage(&mut tx, receipt).await?;
//! tx.commit().await?;
//! outbox.wake();
//!
//! // In a worker, in the same process or another one; any number of them.
//! let mails = Receiver::remembers_keys_for(Duration::from_secs(24 * 60 * 60));
//! let working = Worker::new(pool)
//!     .deliver("receipt", mails, async |delivery: Delivery| {
//!         match send_mail(delivery.key(), delivery.payload()).await {
//!             Ok(id) => Ok(DeliveryEnd::Delivered(Delivered::known_as(id))),
//!             Err(error) => Ok(DeliveryEnd::unknown(error)),
//!         }
//!     })
//!     .start();
//! working.stop(Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Contract
//!
//! * An effect that is committed is delivered, or it is listed as unknown or dead. None is lost.
//! * A receiver that remembers our key sees one effect per key. One that takes no key gets an effect once at the most;
//!   what nobody can know is unknown, and only evidence decides it.
//! * Effects of one [lane](Effect::lane) are delivered one after the other, in the order of their transactions. A
//!   lane stops at an effect that is unknown or dead; other lanes go on.
//!
//! The rules are [`retrysafe_core::effect`]; the server carries them out in batches.
//!
//! # Caveats
//!
//! * Between the check before the first byte and the first packet a process may be paused for any time; the
//!   [margin](Receiver::margin) is there for it.
//! * Staging into a lane holds the lane until the transaction ends: transactions that stage into the same lane wait
//!   for each other.

mod backoff;
mod breaker;
mod claim_floor;
mod delivery;
mod effect;
mod effect_lookup;
mod kind;
mod listen;
mod operator;
mod pace;
mod receiver;
mod reconcile;
mod shown;
mod stage;
mod statements;
#[doc(hidden)]
pub mod store;
mod sweeper;
mod tell;
mod worker;

pub use delivery::{Delivered, Delivery, DeliveryEnd, DeliveryError};
pub use effect::Effect;
pub use effect_lookup::{EffectLookup, EffectLookupAnswer, EffectReconciler, UnknownEffect};
pub use operator::{Operator, PAGE_MAX};
pub use receiver::Receiver;
pub use reconcile::{EffectAskedNow, EffectReconciliation, EffectsReconciled};
pub use shown::{
    BulkEnd, EffectDecision, EffectDetails, EffectFilter, EffectPage, EffectStanding, EffectVerb,
    KindStats, OldestSnapshot, OutboxHealth, OutboxStats, ShownEffect, TableHealth,
};
pub use stage::{EffectSearch, Outbox, OutboxError, Staged};
pub use statements::PooledEffects;
pub use worker::{Worker, Working};

/// The examples of the page about the outbox compile.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/outbox.md")]
struct Page;
