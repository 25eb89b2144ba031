//! Does the code that ships keep the promise, whatever happens?
//!
//! The fast simulator runs the rules; this one runs the crate `retrysafe` as it is published: the
//! tower layer, upkeep with sweeper, reaper and reconcilers, and the client with its journal. In one history of four
//! the processes are gateways of the program `retrysafe`, over pipes of bytes. All
//! live in one tokio runtime per history, on one thread, with a paused clock. Around them stand a
//! simulated store behind the `Store` trait, a network at the level of tower services, handlers and
//! an upstream. The same checker judges the same kind of log.
//!
//! * [`options`]: what a seed expands to. [`nemesis`]: what happens when.
//! * [`process`] and `gateway`: what runs in a process that serves. [`caller`]: what runs in a client, and [`at_once`] its files.
//! * [`store`] over [`records`], which [`apply`] changes: the store. [`network`], [`upstream`] with its [`plan`] and
//!   [`answer`]s: what else stands around them.
//! * [`effects`]: histories in which the shipped outbox worker delivers effects.
//! * [`reports`]: what the upstream tells by itself, to the shipped receiver of webhooks.
//! * [`stage`]: what all share. [`witness`]: who asks the store.
//! * [`run`]: very many histories, and one.

mod answer;
mod apply;
mod at_once;
mod caller;
mod effects;
#[cfg(feature = "gateway")]
mod gateway;
mod nemesis;
mod network;
mod options;
mod outbox;
mod plan;
mod process;
mod records;
mod reports;
mod run;
mod stage;
mod store;
mod upstream;
mod witness;

pub use options::{Kind, Kinds};
pub use run::{Plan, show};
