//! Does the layer keep its promise, over real sockets?
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail"
)]

#[path = "layer/answers.rs"]
mod answers;
#[path = "layer/axum_users.rs"]
mod axum_users;
#[path = "layer/bytes.rs"]
mod bytes;
#[path = "layer/callers.rs"]
mod callers;
#[path = "layer/crowd.rs"]
mod crowd;
#[path = "layer/cuts.rs"]
mod cuts;
#[path = "layer/gate.rs"]
mod gate;
#[path = "layer/known_replays.rs"]
mod known_replays;
#[path = "layer/leaving.rs"]
mod leaving;
#[path = "layer/observed.rs"]
mod observed;
#[path = "layer/outcomes.rs"]
mod outcomes;
#[path = "layer/schedules.rs"]
mod schedules;
#[path = "layer/stage.rs"]
mod stage;
#[path = "layer/storms.rs"]
mod storms;
#[path = "layer/streams.rs"]
mod streams;
