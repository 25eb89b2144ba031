//! Whose requests are repeated the most, and whose keys are misused?
//!
//! There may be millions of scopes, so not each has a counter: a table of [`SCOPES_MAX`] counts by the algorithm "space saving" (Metwally,
//! Agrawal, El Abbadi, 2005). A scope that is not in a full table takes the place of the one with the smallest count, and goes
//! on from that count. So whoever has more than the share of one place is surely in the table, and no count is too small;
//! by how much it may be too large stands beside it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use retrysafe_core::Scope;
use retrysafe_core::event::Met;

/// How many scopes are counted at once, for each thing that is counted.
const SCOPES_MAX: usize = 256;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tallied {
    /// Requests whose key was there already, for the same request: replayed, in progress, unknown, or executed with an answer
    /// that was not kept.
    Duplicate,
    /// Keys that were used for another request, or with another credential.
    Misuse,
}

impl Tallied {
    /// What a request counts as, if it counts.
    fn of(met: Met) -> Option<Self> {
        match met {
            Met::Replay | Met::NotReplayable | Met::InProgress | Met::Unknown => {
                Some(Self::Duplicate)
            }
            Met::KeyMisuse | Met::CredentialChanged => Some(Self::Misuse),
            Met::Created | Met::FailedRetry | Met::StoreError | Met::Unprotected => None,
        }
    }
}

/// Counts duplicates and misuses by scope, in bounded memory, since it was made. Clones count together.
///
/// ```
/// use retrysafe::layer::{IdempotencyLayer, ScopeTally, Tallied};
/// use retrysafe::stores::memory::MemoryStore;
///
/// let tally = ScopeTally::default();
/// let layer = IdempotencyLayer::new(MemoryStore::default()).tally(tally.clone());
/// # let _ = layer;
/// assert!(tally.top(Tallied::Duplicate, 10).is_empty());
/// ```
#[derive(Clone, Default)]
pub struct ScopeTally(Arc<Tables>);

#[derive(Default)]
struct Tables {
    duplicates: Mutex<ScopeTable>,
    misuses: Mutex<ScopeTable>,
}

/// How often something was counted for one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeCount {
    /// Whose it is.
    pub scope: Scope,
    /// How often, at most.
    pub count: u64,
    /// By how much that may be too large.
    pub excess_max: u64,
}

impl ScopeTally {
    /// The scopes with the most, the greatest first.
    pub fn top(&self, what: Tallied, count_max: usize) -> Vec<ScopeCount> {
        let table = self.table(what).lock().unwrap_or_else(PoisonError::into_inner);
        let mut top = table.counts.clone();
        drop(table);
        top.sort_by_key(|entry| std::cmp::Reverse(entry.count));
        top.truncate(count_max);
        top
    }

    /// A request of this scope met this.
    pub(super) fn met(&self, met: Met, scope: &Scope) {
        if let Some(what) = Tallied::of(met) {
            self.table(what).lock().unwrap_or_else(PoisonError::into_inner).count(scope);
        }
    }

    fn table(&self, what: Tallied) -> &Mutex<ScopeTable> {
        match what {
            Tallied::Duplicate => &self.0.duplicates,
            Tallied::Misuse => &self.0.misuses,
        }
    }
}

impl fmt::Debug for ScopeTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeTally").finish_non_exhaustive()
    }
}

/// The counts, and where each scope stands among them.
#[derive(Default)]
struct ScopeTable {
    counts: Vec<ScopeCount>,
    places: HashMap<Scope, usize>,
}

impl ScopeTable {
    fn count(&mut self, scope: &Scope) {
        if let Some(entry) = self.places.get(scope).and_then(|place| self.counts.get_mut(*place)) {
            entry.count = entry.count.saturating_add(1);
            return;
        }
        let scope = scope.clone();
        if self.counts.len() < SCOPES_MAX {
            self.places.insert(scope.clone(), self.counts.len());
            self.counts.push(ScopeCount { scope, count: 1, excess_max: 0 });
            return;
        }
        let least = self.counts.iter_mut().enumerate().min_by_key(|(_, entry)| entry.count);
        if let Some((place, entry)) = least {
            self.places.remove(&entry.scope);
            self.places.insert(scope.clone(), place);
            let excess_max = entry.count;
            *entry = ScopeCount { scope, count: excess_max.saturating_add(1), excess_max };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str) -> Scope {
        Scope::of([("tenant", name.as_bytes())])
    }

    fn counts(tally: &ScopeTally, what: Tallied) -> Vec<(String, u64)> {
        let top = tally.top(what, 10).into_iter();
        top.map(|entry| (entry.scope.to_string(), entry.count)).collect()
    }

    #[test]
    fn each_meeting_counts_as_what_it_is() {
        let tally = ScopeTally::default();
        for met in Met::ALL {
            tally.met(met, &scope("a"));
        }
        tally.met(Met::Replay, &scope("b"));
        assert_eq!(
            counts(&tally, Tallied::Duplicate),
            [("tenant=a".to_owned(), 4), ("tenant=b".to_owned(), 1)]
        );
        assert_eq!(counts(&tally, Tallied::Misuse), [("tenant=a".to_owned(), 2)]);
    }

    #[test]
    fn whoever_has_the_most_is_found_among_many_in_bounded_memory() {
        let tally = ScopeTally::default();
        // A tenth of 100,000 duplicates is of one scope; all others have one each.
        for at in 0..100_000_u32 {
            let name = if at % 10 == 0 { "loud".to_owned() } else { at.to_string() };
            tally.met(Met::Replay, &scope(&name));
        }
        let top = tally.top(Tallied::Duplicate, 1);
        let loud = top.first().unwrap();
        assert_eq!(loud.scope, scope("loud"));
        assert!(loud.count >= 10_000 && loud.count - loud.excess_max <= 10_000, "{loud:?}");
        let table = tally.0.duplicates.lock().unwrap();
        assert_eq!((table.counts.len(), table.places.len()), (SCOPES_MAX, SCOPES_MAX));
    }
}
