//! How does an operation that writes to its own database *and* calls the outside world take effect once?
//!
//! As a [`Flow`]: a named, versioned list of phases. After each phase a *recovery point* is committed. An
//! operation that is killed, wherever that is, goes on from its last recovery point: by the next retry of
//! its caller, or by the completer of [`upkeep`](crate::upkeep).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use bytes::Bytes;
//! use http::Response;
//! use retrysafe::core::{Key, Scope};
//! use retrysafe::phases::{CallEnd, Flow, FlowEnd, Flows, Next, Provider};
//! use retrysafe::stores::postgres::PostgresStore;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct RideRequest {
//!     from: String,
//!     cents: i64,
//! }
//!
//! #[derive(Serialize)]
//! struct Charge {
//!     ride: i64,
//!     cents: i64,
//! }
//!
//! # async fn charge_card(key: &str, charge: &Charge) -> Result<String, std::io::Error> { todo!() }
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let payments = Provider::remembers_keys_for(Duration::from_secs(24 * 60 * 60));
//!
//! let create_ride = Flow::named("create_ride", 1)
//!     // A transaction. Its writes, its output and the recovery point are one commit.
//!     .tx("ride_created", async |mut tx, request: RideRequest, ()| {
//!         let insert = sqlx::query_scalar("INSERT INTO ride (place) VALUES ($1) RETURNING id");
//!         let ride: i64 = insert.bind(request.from).fetch_one(&mut *tx).await?;
//!         Ok(Next::Done(ride))
//!     })
//!     // One call, and no transaction in reach. First: what is sent.
//!     .call(
//!         "charge_created",
//!         payments,
//!         |request, (ride,)| Ok(Charge { ride, cents: request.cents }),
//!         // Then: how it is sent, and how that ended.
//!         async |call, charge| match charge_card(call.key(), &charge).await {
//!             Ok(id) => Ok(CallEnd::Done(id)),
//!             Err(error) => Ok(CallEnd::Unknown(error.into())),
//!         },
//!     )
//!     // The last phase answers, and its commit makes the answer durable.
//!     .respond("ride_booked", async |mut tx, _, (ride, charge)| {
//!         let update = sqlx::query("UPDATE ride SET charge = $2 WHERE id = $1");
//!         update.bind(ride).bind(&charge).execute(&mut *tx).await?;
//!         Ok(Response::builder().status(201).body(Bytes::from(format!("ride {ride}")))?)
//!     })?;
//!
//! let store = PostgresStore::connect("postgres://…").await?;
//! let flows = Flows::new(pool, store).with(&create_ride);
//!
//! // For a queue or a timer. Behind the layer it is `flows.answer(&create_ride, &attempt, &request)`.
//! let request = RideRequest { from: "Kotti".into(), cents: 1_200 };
//! let print = create_ride.fingerprint(&request)?;
//! let (scope, key) = (Scope::of([("account", &b"7"[..])]), Key::new("job-4711")?);
//! match flows.run(&create_ride, &scope, &key, print, &request).await? {
//!     FlowEnd::Answered(response) => println!("{}", response.status),
//!     FlowEnd::Unknown => println!("the charge may have been made: ask the provider"),
//!     later => println!("not yet: {later:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Contract
//!
//! * The rows of a `.tx` phase, its output and the recovery point are visible all or none. A phase that has
//!   committed is never run again.
//! * A call is sent with the same key and the same content on every attempt; a second attempt is made only while the
//!   [`Provider`] remembers the key. Where that cannot be, the record is unknown and nobody sends.
//! * An owner that is too late changes nothing: its transaction is rolled back, and the result of its call is kept as
//!   evidence.
//! * The answer is in the record before anybody sees it, and everybody is given the same bytes.
//!
//! # Caveats
//!
//! * A `.tx` phase runs at READ COMMITTED, the only level at which a record can join a transaction. Lock what
//!   must not change: `SELECT … FOR UPDATE`.
//! * Between the check before the wire and the first packet a process may be paused for any time. What lies
//!   between is one system call and no wait of ours; the margin of a [`Provider`] is there for it.
//! * A flow has at most 13 phases, and its input and outputs together at most 256 KiB.
//! * A flow with a committed phase is kept until it is completed. A phase that always fails is tried once an hour and is a warning in the log.

mod call;
mod commit;
mod completer;
mod drive;
mod end;
mod flow;
mod flows;
mod in_flight;
mod outputs;
mod persist;
mod provider;
mod renewal;
mod runner;
mod transaction;

pub use completer::Completed;
pub use end::FlowEnd;
pub use flow::{Flow, FlowBuilder, InvalidFlow, Next};
pub use flows::Flows;
pub use outputs::{AddOutput, PastOutputs};
pub use provider::{Call, CallEnd, Provider};
pub use transaction::PhaseTx;

/// The examples of the page about phases compile.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../../docs/phases.md")]
struct Page;

/// Whatever a phase may fail with.
pub type PhaseError = Box<dyn std::error::Error + Send + Sync>;
