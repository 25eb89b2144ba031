//! Who renews the lease of a flow that no layer stands around?

use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::engine::{Renewal, Renewed};
use retrysafe_core::{Engine, Policy};
use tokio::task::AbortHandle;

use crate::stores::postgres::PostgresStore;

/// How many times a lease is renewed while it lasts: one renewal may fail, and there is time for another.
const RENEWALS_PER_LEASE: u32 = 3;

/// The shortest pause between two renewals.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Renews a lease until this is dropped, in a task of its own: a phase that blocks its thread must not
/// cost its own lease.
pub(super) struct Renewing(AbortHandle);

impl Renewing {
    pub(super) fn start(
        engine: Engine<PostgresStore>,
        held: Renewal,
        policy: &Arc<Policy>,
    ) -> Self {
        let policy = Arc::clone(policy);
        let renewing = async move {
            let pause = (policy.lease / RENEWALS_PER_LEASE).max(PAUSE_MIN);
            loop {
                tokio::time::sleep(pause).await;
                match engine.renew(held, policy.lease, policy.lease_max).await {
                    Ok(Renewed::For(_)) => {}
                    // The flow itself finds out, at its next commit.
                    Ok(Renewed::Lost) => return,
                    // The lease stands as it was, and there is time for another try before it ends.
                    Err(error) => tracing::warn!(target: "retrysafe", %error, "not_renewed"),
                }
            }
        };
        Self(tokio::spawn(renewing).abort_handle())
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}
