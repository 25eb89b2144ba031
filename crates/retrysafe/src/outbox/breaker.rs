//! When is a receiver left alone?
//!
//! A receiver that fails again and again would use up the attempts of every effect of its kind. After a few failures
//! in a row nothing is claimed for a while; then a single effect tries whether it is back.

use std::time::Duration;

use tokio::time::Instant;

/// How many failures in a row are too many.
const FAILURES_IN_A_ROW: u32 = 5;

/// The first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    open_until: Option<Instant>,
    /// How often it has opened without a success in between.
    openings: u32,
}

impl Breaker {
    /// How many effects may be claimed now, of as many as there is room for.
    pub(super) fn permits(&self, room: usize, in_flight: usize, now: Instant) -> usize {
        match self.open_until {
            None => room,
            Some(until) if now < until || in_flight > 0 => 0,
            Some(_) => room.min(1),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    /// When it may be tried again, if that is still to come.
    pub(super) fn opens_at(&self, now: Instant) -> Option<Instant> {
        self.open_until.filter(|until| now < *until)
    }

    /// A delivery came to an end that says that the receiver is there.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, now: Instant) {
        // Deliveries that were under way when it opened say nothing new.
        if self.opens_at(now).is_some() {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_IN_A_ROW {
            let doubled = 2_u32.checked_pow(self.openings).unwrap_or(u32::MAX);
            let pause = PAUSE_MIN.saturating_mul(doubled).min(PAUSE_MAX);
            self.openings = self.openings.saturating_add(1);
            self.open_until = Some(now + pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_fails_is_tried_by_one_effect_at_a_time() {
        let mut breaker = Breaker::default();
        let start = Instant::now();
        for _ in 0..FAILURES_IN_A_ROW - 1 {
            breaker.failed(start);
        }
        assert_eq!(breaker.permits(32, 0, start), 32);
        for _ in 0..20 {
            breaker.failed(start);
        }
        assert_eq!(breaker.permits(32, 0, start), 0);
        assert_eq!(
            breaker.opens_at(start),
            Some(start + PAUSE_MIN),
            "however many failed together"
        );
        assert_eq!(breaker.opens_at(start + PAUSE_MIN), None, "nobody waits for what is past");
        assert_eq!(breaker.permits(32, 0, start + PAUSE_MIN), 1);
        assert_eq!(breaker.permits(32, 1, start + PAUSE_MIN), 0, "one is trying");
        breaker.failed(start + PAUSE_MIN);
        assert_eq!(breaker.permits(32, 0, start + PAUSE_MIN * 2), 0, "twice as long");
        assert_eq!(breaker.permits(32, 0, start + PAUSE_MIN * 3), 1);
        breaker.succeeded();
        assert_eq!(breaker.permits(32, 0, start), 32);
    }
}
