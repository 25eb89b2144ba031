//! What is known of an upstream while the gateway runs?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use retrysafe::layer::ExecutionGate;
use retrysafe_core::problem::Refusal;
use retrysafe_core::wire::ASK_AGAIN_SOON;

use super::connect::Connector;
use crate::config::{Health, Upstream};

/// An upstream, how it is reached, and how it is.
pub(crate) struct LiveUpstream {
    pub upstream: Upstream,
    pub connector: Connector,
    pub health: Arc<UpstreamHealth>,
}

/// How an upstream is, as far as the checks know.
#[derive(Debug, Default)]
pub(crate) struct UpstreamHealth {
    is_unhealthy: AtomicBool,
}

/// How many checks in a row contradict what is believed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doubts(u32);

impl UpstreamHealth {
    /// Whether requests may begin.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.is_unhealthy.load(Ordering::Relaxed)
    }

    /// Takes the result of a check, and says whether that changed anything.
    pub(crate) fn checked(&self, doubts: &mut Doubts, is_well: bool, health: &Health) -> bool {
        if is_well == self.is_healthy() {
            *doubts = Doubts::default();
            return false;
        }
        doubts.0 = doubts.0.saturating_add(1);
        let enough = if is_well { health.healthy_after } else { health.unhealthy_after };
        if doubts.0 < enough.get() {
            return false;
        }
        *doubts = Doubts::default();
        self.is_unhealthy.store(!is_well, Ordering::Relaxed);
        true
    }
}

/// Requests with a key are refused before they begin, so that they leave nothing behind.
impl ExecutionGate for UpstreamHealth {
    fn closed(&self) -> Option<Refusal> {
        let refusal = Refusal::UpstreamUnhealthy { retry_after: ASK_AGAIN_SOON };
        (!self.is_healthy()).then_some(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    use std::time::Duration;

    #[test]
    fn only_several_checks_in_a_row_change_what_is_believed() {
        let after = |count| NonZeroU32::new(count).unwrap();
        let settings = Health {
            path: "/".into(),
            every: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            unhealthy_after: after(3),
            healthy_after: after(2),
        };
        let health = UpstreamHealth::default();
        let mut doubts = Doubts::default();
        let mut told = |results: &[bool]| {
            results
                .iter()
                .map(|is_well| {
                    health.checked(&mut doubts, *is_well, &settings);
                    health.is_healthy()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&[false, false, true, false, false]), [true; 5]);
        assert_eq!(told(&[false, true, false, true]), [false; 4]);
        assert_eq!(told(&[true, false, true, true]), [true; 4]);
    }
}
