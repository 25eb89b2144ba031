//! Is a request seen to be running?
//!
//! A case that does something to a running request shows nothing unless the request had arrived and was not over. On a busy machine no
//! pause is long enough for that, so the API itself has to show it.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Bench, is_running};
use crate::check::probe::Heard;
use crate::check::request::Shot;

/// How long a slow request has where duplicates wait, so that nobody is told that it runs: long enough to arrive, far shorter than the
/// second that it takes.
const HEAD_START: Duration = Duration::from_millis(300);

/// A request that has been sent, and was not answered so far.
pub(super) struct InFlight {
    pub(super) running: JoinHandle<Heard>,
    /// Whether the API has shown that it has the request.
    pub(super) is_seen: bool,
}

/// Sends a request that is slow, and waits until the API has it. Two are sent: whichever comes second is told to wait, which shows that the other one
/// has arrived and is not over.
pub(super) async fn send_slow(
    bench: &Bench<'_>,
    shot: &Shot,
    key: &str,
    duplicates_wait: bool,
) -> InFlight {
    let start = || {
        let probe = bench.probe.clone();
        let keyed = bench.keyed(shot, key);
        tokio::spawn(async move { probe.send(&keyed).await })
    };
    let mut one = start();
    if duplicates_wait {
        tokio::time::sleep(HEAD_START).await;
        return InFlight { running: one, is_seen: true };
    }
    let mut two = start();
    let (told, is_two_running) = tokio::select! {
        told = &mut one => (told, true),
        told = &mut two => (told, false),
    };
    let is_seen = told.is_ok_and(|told| told.answer().is_some_and(is_running));
    InFlight { running: if is_two_running { two } else { one }, is_seen }
}
