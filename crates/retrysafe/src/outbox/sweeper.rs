//! Who looks after effects whose workers are gone?
//!
//! Every worker does, a little: what is locked by another sweeper is left to it. No question is waited for without an
//! end: a sweeper that hangs in silence would leave the effects of dead workers to nobody.

use std::collections::BTreeSet;
use std::time::Duration;

use retrysafe_core::event;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::receiver::CRASHES_MAX;
use super::store::{EffectCount, EffectStore, EffectStoreError, within_time};

/// How often the sweeper looks.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How many effects one look changes at the most; what is left is there a second later.
const SWEPT_MAX: usize = 1_000;

/// How many lanes one look goes through.
const LANES_MAX: usize = 500;

/// For how many days effects are kept that are over, and their names with them.
const KEEP_DAYS: i32 = 14;

/// How often partitions are made and dropped, and effects are counted.
const DAYS_EVERY: Duration = Duration::from_secs(60 * 60);
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Looks after effects until it is told to stop.
pub(super) async fn sweep_until_stopped(
    store: impl EffectStore,
    mut stopping: watch::Receiver<bool>,
) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lane: Option<String> = None;
    let mut days_at = Instant::now();
    let mut count_at = Instant::now();
    let mut shown = BTreeSet::new();
    while !*stopping.borrow() {
        tokio::select! {
            biased;
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = sweep(&store, &mut lane).await {
            tracing::warn!(target: "retrysafe", %error, "effects_not_swept");
        }
        if Instant::now() >= days_at {
            days_at = Instant::now() + DAYS_EVERY;
            if let Err(error) = within_time(store.turn_days(KEEP_DAYS)).await {
                tracing::warn!(target: "retrysafe", %error, "effect_days_not_made");
            }
        }
        if Instant::now() >= count_at {
            count_at = Instant::now() + COUNT_EVERY;
            match within_time(store.count()).await {
                Ok(counts) => report(&counts, &mut shown),
                Err(error) => tracing::warn!(target: "retrysafe", %error, "effects_not_counted"),
            }
        }
    }
}

async fn sweep(
    store: &impl EffectStore,
    lane: &mut Option<String>,
) -> Result<(), EffectStoreError> {
    let swept = within_time(store.sweep(CRASHES_MAX, SWEPT_MAX)).await?;
    if swept.unknown > 0 {
        tracing::warn!(target: "retrysafe", effects = swept.unknown, "effects_unknown");
    }
    if swept.ready > 0 {
        tracing::info!(target: "retrysafe", effects = swept.ready, "effects_free_again");
    }
    *lane = within_time(store.sweep_lanes(lane.as_deref(), LANES_MAX)).await?;
    Ok(())
}

/// Shows how many effects there are. What was shown before and is not there any more is shown as none.
fn report(counts: &[EffectCount], shown: &mut BTreeSet<(String, &'static str)>) {
    let mut gone = shown.clone();
    for count in counts {
        let state = state_name(count.state);
        let name = (count.kind.clone(), state);
        gone.remove(&name);
        shown.insert(name);
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        show(&count.kind, state, count.effects as f64, count.oldest.as_secs_f64());
        show_pause(&count.kind, count.is_paused);
    }
    for (kind, state) in gone {
        show(&kind, state, 0.0, 0.0);
        if counts.iter().all(|count| count.kind != kind) {
            show_pause(&kind, false);
        }
    }
}

/// By itself, so that whoever watches for late effects can leave out what somebody has paused.
fn show_pause(kind: &str, is_paused: bool) {
    let paused = metrics::gauge!(event::EFFECT_PAUSED.name, "kind" => kind.to_owned());
    paused.set(if is_paused { 1.0 } else { 0.0 });
}

fn show(kind: &str, state: &'static str, effects: f64, oldest_seconds: f64) {
    let kind = kind.to_owned();
    metrics::gauge!(event::EFFECTS.name, "kind" => kind.clone(), "state" => state).set(effects);
    if state == READY {
        let oldest = metrics::gauge!(event::EFFECT_OLDEST_READY_SECONDS.name, "kind" => kind);
        oldest.set(oldest_seconds);
    }
}

const READY: &str = "ready";

/// What a state is called. The numbers are those of the migration.
fn state_name(state: i16) -> &'static str {
    match state {
        0 => "waiting",
        1 => READY,
        2 => "leased",
        3 => "unknown",
        _ => "dead",
    }
}
