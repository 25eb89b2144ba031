//! When may somebody be asked again who said that we ask too often?
//!
//! A lookup that is refused has learned nothing, and the schedule has few lookups. So the turn is kept, and whoever has refused is not asked
//! until the time that was named; others are. A turn that is refused again and again is used up all the same: else a provider that refuses for ever would keep
//! a record from ever being shown as one that a person must decide about.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often one turn may be refused before it is used up.
const REFUSALS_MAX: u32 = 8;

/// How long a provider is not asked if it has named no time.
const PAUSE: Duration = Duration::from_secs(30);

/// The longest pause that may be asked for: a wrong date must not end the lookups of a day.
const PAUSE_MAX: Duration = Duration::from_secs(15 * 60);

/// Which turns were refused, and until when a provider is not asked. `T` names a turn: what is asked about, and the how-manieth time.
#[derive(Debug)]
pub(crate) struct LookupThrottle<T> {
    state: Mutex<ThrottleState<T>>,
}

#[derive(Debug)]
struct ThrottleState<T> {
    /// By the providers' names.
    closed_until: HashMap<Box<str>, Instant>,
    refusals: HashMap<T, u32>,
}

impl<T> Default for LookupThrottle<T> {
    fn default() -> Self {
        let state = ThrottleState { closed_until: HashMap::new(), refusals: HashMap::new() };
        Self { state: Mutex::new(state) }
    }
}

impl<T: Eq + Hash> LookupThrottle<T> {
    /// Whether this provider is not to be asked now.
    pub(crate) fn is_closed(&self, provider: &str) -> bool {
        self.state().closed_until.get(provider).is_some_and(|until| Instant::now() < *until)
    }

    /// Notes that a provider has refused a turn, and says whether the turn is used up by that.
    pub(crate) fn refuse(&self, provider: &str, turn: T, pause: Option<Duration>) -> bool {
        let pause = pause.unwrap_or(PAUSE).min(PAUSE_MAX);
        let mut state = self.state();
        let until = Instant::now() + pause;
        let closed_until = state.closed_until.entry(provider.into()).or_insert(until);
        *closed_until = until.max(*closed_until);
        let refusals = state.refusals.entry(turn).or_default();
        *refusals += 1;
        *refusals > REFUSALS_MAX
    }

    /// Forgets turns and pauses that are over.
    pub(crate) fn keep_turns(&self, is_open: impl Fn(&T) -> bool) {
        let now = Instant::now();
        let mut state = self.state();
        state.refusals.retain(|turn, _| is_open(turn));
        state.closed_until.retain(|_, until| now < *until);
    }

    fn state(&self) -> MutexGuard<'_, ThrottleState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refused_turn_is_kept_a_few_times_and_who_refused_is_not_asked_meanwhile() {
        let throttle = LookupThrottle::default();
        assert!(!throttle.is_closed("a"));
        assert!(!throttle.refuse("a", "first", Some(Duration::from_secs(7))));
        assert!(throttle.is_closed("a") && !throttle.is_closed("b"), "only who said so");
        // A shorter pause does not open what a longer one has closed.
        assert!(!throttle.refuse("a", "second", Some(Duration::ZERO)));
        throttle.keep_turns(|_| true);
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(throttle.is_closed("a"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!throttle.is_closed("a"));
        for _ in 1..REFUSALS_MAX {
            assert!(!throttle.refuse("a", "first", None));
        }
        assert!(throttle.refuse("a", "first", Some(Duration::from_secs(1 << 40))), "it is used up");
        tokio::time::advance(PAUSE_MAX).await;
        assert!(!throttle.is_closed("a"), "nobody can close it for days");
        throttle.keep_turns(|turn| *turn != "first");
        assert!(!throttle.refuse("a", "first", None), "another turn");
    }
}
