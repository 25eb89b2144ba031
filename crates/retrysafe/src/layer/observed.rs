//! Which requests were seen lately where nothing is enforced?
//!
//! Observe mode remembers ids and fingerprints in a table of its own, which forgets in every state, so
//! that nothing of it is ever read when the rules are enforced.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::scope::{CredentialMark, Id};
use tokio::time::Instant;

use super::deadline::after;

/// How many requests are remembered: about 20 MB. Past it the oldest are forgotten first.
const REMEMBERED_MAX: usize = 100_000;

/// What was seen lately.
#[derive(Debug, Default)]
pub(super) struct Observed(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    seen: HashMap<Id, (Fingerprint, Option<CredentialMark>, Instant)>,
    order: VecDeque<Id>,
}

impl Observed {
    /// Remembers a request for `ttl`, and says what it would have met: a `duplicate`, a `mismatch`, a
    /// `credential_changed` or nothing.
    pub(super) fn see(
        &self,
        id: Id,
        print: Fingerprint,
        mark: Option<CredentialMark>,
        ttl: Duration,
    ) -> Option<&'static str> {
        let now = Instant::now();
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match table.seen.get(&id) {
            Some((seen, seen_mark, until)) if *until > now => {
                return Some(match (*seen == print, *seen_mark == mark) {
                    (true, true) => "duplicate",
                    (true, false) => "credential_changed",
                    (false, _) => "mismatch",
                });
            }
            Some(_) => {}
            None => table.order.push_back(id),
        }
        table.seen.insert(id, (print, mark, after(now, ttl)));
        while table.order.len() > REMEMBERED_MAX {
            let oldest = table.order.pop_front();
            oldest.and_then(|oldest| table.seen.remove(&oldest));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::fingerprint::RulesId;
    use retrysafe_core::{Key, Scope};

    fn id(key: usize) -> Id {
        Id::of(&Scope::anonymous(), &Key::new(&key.to_string()).unwrap().digest())
    }

    fn print(digest: u8) -> Fingerprint {
        Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [digest; 32])
    }

    #[tokio::test(start_paused = true)]
    async fn duplicates_and_mismatches_are_told_apart_until_they_expire() {
        let observed = Observed::default();
        let ttl = Duration::from_secs(9);
        assert_eq!(observed.see(id(1), print(1), None, ttl), None);
        assert_eq!(observed.see(id(1), print(1), None, ttl), Some("duplicate"));
        assert_eq!(observed.see(id(1), print(2), None, ttl), Some("mismatch"));
        assert_eq!(observed.see(id(2), print(2), None, ttl), None);
        let mark = Some(CredentialMark::of(b"token"));
        assert_eq!(observed.see(id(2), print(2), mark, ttl), Some("credential_changed"));
        tokio::time::advance(ttl).await;
        assert_eq!(observed.see(id(1), print(2), None, ttl), None);
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let observed = Observed::default();
        let ttl = Duration::from_secs(9);
        for key in 0..=REMEMBERED_MAX {
            observed.see(id(key), print(1), None, ttl);
        }
        assert_eq!(observed.0.lock().unwrap().seen.len(), REMEMBERED_MAX);
        assert_eq!(observed.see(id(REMEMBERED_MAX), print(1), None, ttl), Some("duplicate"));
        assert_eq!(observed.see(id(0), print(1), None, ttl), None);
    }
}
