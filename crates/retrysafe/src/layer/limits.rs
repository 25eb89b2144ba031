//! How fast may callers be?
//!
//! All limits are off by default. They hold per process and approximately: they guard against
//! guessing, spraying and impatience, not against a determined crowd.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};
use retrysafe_core::problem::Refusal;
use retrysafe_core::scope::{Caller, Id};
use tokio::time::Instant;

use super::deadline::after;

/// How often a limiter is asked between two clean-ups of what it remembers.
const ASKED_PER_CLEANING: u32 = 4_096;

/// What is limited. Every limit counts per process, and one of `n` per second permits `n` at once. Where
/// a caller has a credential mark, limits count per mark: a stranger who only claims a scope's name does
/// not use up its allowance.
///
/// ```
/// use std::num::NonZeroU32;
/// use retrysafe::layer::Limits;
///
/// let limits = Limits { keyed_per_scope_per_second: NonZeroU32::new(100), ..Limits::default() };
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// Keyed requests of one scope per second, against the guessing of keys.
    pub keyed_per_scope_per_second: Option<NonZeroU32>,
    /// Requests with one key per second, asked before the store is.
    pub retries_per_key_per_second: Option<NonZeroU32>,
    /// New keys of one scope per second. Costs a look into the store before each begin.
    pub new_keys_per_scope_per_second: Option<NonZeroU32>,
    /// Keys of one scope that were created here and have not expired. Costs the same look.
    pub live_keys_per_scope: Option<NonZeroU32>,
}

/// Counts requests against [`Limits`], which may change meanwhile. Clones count together.
///
/// ```
/// use retrysafe::layer::{IdempotencyLayer, Limiter, Limits};
/// use retrysafe::stores::memory::MemoryStore;
///
/// let limiter = Limiter::new(Limits::default());
/// let layer = IdempotencyLayer::new(MemoryStore::default()).limiter(limiter.clone());
/// // Later, while requests run:
/// limiter.set(Limits::default());
/// # let _ = layer;
/// ```
#[derive(Clone)]
pub struct Limiter(Arc<Shared>);

struct Shared {
    limits_anything: AtomicBool,
    counters: RwLock<Arc<Counters>>,
}

pub(super) struct Counters {
    limits: Limits,
    keyed: Option<Rate>,
    retries: Option<Rate>,
    new_keys: Option<Rate>,
    live_keys: Option<Live>,
    // Callers are remembered by a keyed digest, so that a stranger cannot choose two that collide.
    digests: RandomState,
}

struct Rate {
    limiter: DefaultKeyedRateLimiter<u64>,
    clock: DefaultClock,
    asked: AtomicU32,
}

/// For each scope, when its keys will expire, the earliest first as long as their time to live is
/// one and the same.
struct Live {
    max: usize,
    expiries: Mutex<HashMap<u64, VecDeque<Instant>>>,
    asked: AtomicU32,
}

impl Limiter {
    /// A limiter that has counted nothing yet.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared {
            limits_anything: AtomicBool::new(limits != Limits::default()),
            counters: RwLock::new(Arc::new(Counters::new(limits))),
        }))
    }

    /// Changes the limits. Other limits begin to count anew; the same ones go on.
    pub fn set(&self, limits: Limits) {
        let mut counters = self.0.counters.write().unwrap_or_else(PoisonError::into_inner);
        if counters.limits != limits {
            *counters = Arc::new(Counters::new(limits));
            self.0.limits_anything.store(limits != Limits::default(), Ordering::Release);
        }
    }

    /// What counts now; none where nothing is limited.
    pub(super) fn counters(&self) -> Option<Arc<Counters>> {
        if !self.0.limits_anything.load(Ordering::Acquire) {
            return None;
        }
        Some(Arc::clone(&self.0.counters.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}

impl Counters {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            keyed: limits.keyed_per_scope_per_second.map(Rate::new),
            retries: limits.retries_per_key_per_second.map(Rate::new),
            new_keys: limits.new_keys_per_scope_per_second.map(Rate::new),
            live_keys: limits.live_keys_per_scope.map(Live::new),
            digests: RandomState::new(),
        }
    }

    /// Whether a keyed request of a caller may go on to the store.
    pub(super) fn admit(&self, caller: &Caller, id: Id) -> Result<(), Refusal> {
        let too_fast = |retry_after| Refusal::RetryTooFast { retry_after };
        if let Some(keyed) = &self.keyed {
            keyed.take(self.digests.hash_one(caller)).map_err(too_fast)?;
        }
        if let Some(retries) = &self.retries {
            retries.take(self.digests.hash_one((id, caller.mark))).map_err(too_fast)?;
        }
        Ok(())
    }

    /// Whether it matters if a key is new.
    pub(super) fn counts_new_keys(&self) -> bool {
        self.new_keys.is_some() || self.live_keys.is_some()
    }

    /// Whether a caller may create another key, which then lives for `ttl`.
    pub(super) fn admit_new(&self, caller: &Caller, ttl: Duration) -> Result<(), Refusal> {
        let too_many = |retry_after| Refusal::KeyRateExceeded { retry_after };
        let caller = self.digests.hash_one(caller);
        if let Some(new_keys) = &self.new_keys {
            new_keys.take(caller).map_err(too_many)?;
        }
        match &self.live_keys {
            Some(live) => live.take(caller, ttl).map_err(too_many),
            None => Ok(()),
        }
    }
}

impl Rate {
    fn new(per_second: NonZeroU32) -> Self {
        Self {
            limiter: DefaultKeyedRateLimiter::keyed(Quota::per_second(per_second)),
            clock: DefaultClock::default(),
            asked: AtomicU32::new(0),
        }
    }

    fn take(&self, who: u64) -> Result<(), Duration> {
        if is_time_to_clean(&self.asked) {
            self.limiter.retain_recent();
        }
        let refused = |not_until: governor::NotUntil<_>| not_until.wait_time_from(self.clock.now());
        self.limiter.check_key(&who).map_err(refused)
    }
}

impl Live {
    fn new(max: NonZeroU32) -> Self {
        Self { max: max.get() as usize, expiries: Mutex::default(), asked: AtomicU32::new(0) }
    }

    fn take(&self, who: u64, ttl: Duration) -> Result<(), Duration> {
        let now = Instant::now();
        let mut scopes = self.expiries.lock().unwrap_or_else(PoisonError::into_inner);
        if is_time_to_clean(&self.asked) {
            scopes.retain(|_, expiries| expiries.back().is_some_and(|last| *last > now));
        }
        let expiries = scopes.entry(who).or_default();
        while expiries.front().is_some_and(|first| *first <= now) {
            expiries.pop_front();
        }
        match expiries.front() {
            Some(first) if expiries.len() >= self.max => Err(*first - now),
            _ => {
                expiries.push_back(after(now, ttl));
                Ok(())
            }
        }
    }
}

fn is_time_to_clean(asked: &AtomicU32) -> bool {
    asked.fetch_add(1, Ordering::Relaxed) % ASKED_PER_CLEANING == ASKED_PER_CLEANING - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::scope::CredentialMark;
    use retrysafe_core::{Key, Scope};

    fn id(key: &str) -> Id {
        Id::of(&Scope::anonymous(), &Key::new(key).unwrap().digest())
    }

    #[test]
    fn each_scope_and_each_key_has_its_own_allowance() {
        let two = NonZeroU32::new(2);
        let limits = Limits { retries_per_key_per_second: two, ..Limits::default() };
        let limiter = Limiter::new(limits).counters().unwrap();
        let caller = Caller::from(Scope::anonymous());
        assert_eq!(limiter.admit(&caller, id("a")), Ok(()));
        assert_eq!(limiter.admit(&caller, id("a")), Ok(()));
        assert!(matches!(limiter.admit(&caller, id("a")), Err(Refusal::RetryTooFast { .. })));
        assert_eq!(limiter.admit(&caller, id("b")), Ok(()));
        assert!(!limiter.counts_new_keys());
    }

    /// Anybody can write a token that claims Alice's name. What it asks for is not counted as hers.
    #[test]
    fn each_credential_mark_has_its_own_allowance() {
        let one = NonZeroU32::new(1);
        let limiter = Limiter::new(Limits {
            keyed_per_scope_per_second: one,
            retries_per_key_per_second: one,
            new_keys_per_scope_per_second: one,
            live_keys_per_scope: one,
        });
        let limiter = limiter.counters().unwrap();
        let ttl = Duration::from_secs(60);
        let scope = Scope::anonymous();
        let caller = |token: &[u8]| Caller {
            mark: Some(CredentialMark::of(token)),
            ..Caller::from(scope.clone())
        };
        for token in [&b"forged"[..], b"hers"] {
            assert_eq!(limiter.admit(&caller(token), id("a")), Ok(()));
            assert!(limiter.admit(&caller(token), id("a")).is_err());
            assert_eq!(limiter.admit_new(&caller(token), ttl), Ok(()));
            assert!(limiter.admit_new(&caller(token), ttl).is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_key_makes_room_when_it_expires() {
        let one = NonZeroU32::new(1);
        let limits = Limits { live_keys_per_scope: one, ..Limits::default() };
        let limiter = Limiter::new(limits).counters().unwrap();
        let caller = Caller::from(Scope::anonymous());
        let ttl = Duration::from_secs(60);
        assert_eq!(limiter.admit_new(&caller, ttl), Ok(()));
        let full = Refusal::KeyRateExceeded { retry_after: ttl };
        assert_eq!(limiter.admit_new(&caller, ttl), Err(full));
        tokio::time::advance(ttl).await;
        assert_eq!(limiter.admit_new(&caller, ttl), Ok(()));
    }

    #[test]
    fn what_is_remembered_is_cleaned_up() {
        let limits = Limits { live_keys_per_scope: NonZeroU32::new(9), ..Limits::default() };
        let limiter = Limiter::new(limits).counters().unwrap();
        let live = limiter.live_keys.as_ref().unwrap();
        for who in 0..u64::from(ASKED_PER_CLEANING) * 3 {
            live.take(who, Duration::ZERO).unwrap();
        }
        assert!(live.expiries.lock().unwrap().len() <= ASKED_PER_CLEANING as usize);
    }

    #[test]
    fn the_same_limits_go_on_counting_and_others_begin_anew() {
        let one = |count| Limits { new_keys_per_scope_per_second: count, ..Limits::default() };
        let limiter = Limiter::new(one(None));
        assert!(limiter.counters().is_none());
        let caller = Caller::from(Scope::anonymous());
        let admit = || limiter.counters().unwrap().admit_new(&caller, Duration::ZERO);
        limiter.set(one(NonZeroU32::new(1)));
        assert_eq!(admit(), Ok(()));
        limiter.set(one(NonZeroU32::new(1)));
        assert!(admit().is_err());
        limiter.set(one(NonZeroU32::new(2)));
        assert_eq!((admit(), admit()), (Ok(()), Ok(())), "a burst of as many");
        assert!(admit().is_err());
    }
}
