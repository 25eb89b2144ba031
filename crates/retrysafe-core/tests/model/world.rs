//! What is there, and how does the store of the model keep its contract?

use std::hash::{Hash, Hasher};

use http::StatusCode;
use retrysafe_core::fingerprint::{Fingerprint, RulesId};
use retrysafe_core::record::{
    About, Answer, Becomes, Fence, First, Record, Standing, State, Write,
};
use retrysafe_core::scope::CredentialMark;
use retrysafe_core::store::Inserted;
use retrysafe_core::time::Time;
use retrysafe_core::{Id, Key, Scope};

use crate::{
    Bounds, Broken, Everything, Holding, Kept, LEASE, Owner, Pending, Phase, Reached, TTL,
};

impl Hash for Kept {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.0.version, self.0.fence, self.0.attempts, self.0.mark).hash(hasher);
        match &self.0.state {
            State::InProgress { owner, begun_at, lease_until, head } => {
                (0, *owner, *begun_at, *lease_until, head).hash(hasher);
            }
            State::Completed { answer, expires_at, .. } => {
                (1, answer.status(), *expires_at).hash(hasher);
            }
            State::FailedRetryable { expires_at, .. } => (2, *expires_at).hash(hasher),
            State::Unknown { since, owner, head, .. } => (3, *since, *owner, head).hash(hasher),
        }
    }
}

impl Hash for Pending {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.key, self.version, self.write.new_fence).hash(hasher);
        match &self.write.becomes {
            Becomes::Begun { owner, mark, .. } => (0, *owner, *mark).hash(hasher),
            Becomes::Renewed { .. } => 1.hash(hasher),
            Becomes::HeadKept { head, .. } => (6, head).hash(hasher),
            Becomes::Completed(answer) => (2, answer.status()).hash(hasher),
            Becomes::FailedRetryable => 3.hash(hasher),
            Becomes::Unknown(_) => 4.hash(hasher),
            // The last two are of flows, which have a model of their own.
            Becomes::Same
            | Becomes::LookedUp
            | Becomes::Expired
            | Becomes::Advanced(_)
            | Becomes::LeaseEnded => 5.hash(hasher),
        }
    }
}

impl Pending {
    pub(super) fn new(key: u8, version: u64, mut write: Write) -> Self {
        write.what = None;
        Self { key, version, write }
    }
}

/// The answer of the execution that began with a fence: its status tells the fence.
pub(super) fn answer(fence: u8) -> Answer {
    let status = StatusCode::from_u16(200 + u16::from(fence)).unwrap();
    Answer::NotKept { status: Some(status), location: None }
}

/// The mark of a credential.
pub(super) fn mark_of(mark: u8) -> Option<CredentialMark> {
    Some(CredentialMark::from_bytes([mark; CredentialMark::LENGTH]))
}

fn first(key: u8, owner: u8, mark: u8) -> First {
    let scope = Scope::of([]);
    let digest = Key::new(&format!("k{key}")).unwrap().digest();
    First {
        id: Id::of(&scope, &digest),
        scope,
        key: digest,
        fingerprint: Fingerprint::from_parts(1, RulesId::from_bytes([0; 8]), [0; 32]),
        mark: mark_of(mark),
        about: About::default(),
        ttl: TTL,
        lease: LEASE,
        owner: u64::from(owner),
        request_id: None,
        flow: None,
    }
}

impl Everything {
    pub(super) fn clock(&self) -> Time {
        Time::from_ms(u64::from(self.now))
    }

    pub(super) fn record(&self, key: u8) -> Option<&Record> {
        self.places[usize::from(key)].record.as_ref().map(|kept| &kept.0)
    }

    /// The store's swap. The record after it, if the version had not changed.
    pub(super) fn swap(&mut self, pending: &Pending) -> Option<Record> {
        let now = self.clock();
        let before = self.record(pending.key).filter(|it| it.version == pending.version)?.clone();
        self.version += 1;
        let mut after = pending.write.onto(&before, now, u64::from(self.version));
        after.timeline.clear();
        let begun = matches!(pending.write.becomes, Becomes::Begun { .. });
        match before.standing() {
            Standing::Completed if after.state != before.state => {
                self.broken = Some(Broken::DecisionFlipped);
            }
            Standing::FailedRetryable if !begun => self.broken = Some(Broken::DecisionFlipped),
            Standing::InProgress | Standing::Unknown if begun => {
                self.broken = Some(Broken::RunningOrUnknownExecuted);
            }
            Standing::Completed
            | Standing::FailedRetryable
            | Standing::InProgress
            | Standing::Unknown => {}
        }
        let promised = after.expires_at().map_or(0, |at| at.as_ms() as u8);
        let place = &mut self.places[usize::from(pending.key)];
        if after.standing() == Standing::Completed {
            place.promised_until = promised;
        }
        place.record = Some(Kept(after.clone()));
        if begun {
            self.grant(pending.key, after.fence);
        }
        Some(after)
    }

    pub(super) fn grant(&mut self, key: u8, fence: Fence) {
        let place = &mut self.places[usize::from(key)];
        if fence.0 <= u64::from(place.fence_max) {
            self.broken = Some(Broken::FenceDidNotRise);
        }
        place.fence_max = fence.0 as u8;
    }

    /// The store's insert: the new record, or the one that is there.
    pub(super) fn insert(&mut self, key: u8, owner: u8, mark: u8, model: &Bounds) -> Inserted {
        let now = self.clock();
        if let Some(record) = self.record(key).filter(|record| !record.is_expired(now)) {
            return Inserted::Exists(record.clone());
        }
        self.version += 1;
        let mut record = first(key, owner, mark).record(now, u64::from(self.version));
        record.timeline.clear();
        let place = &mut self.places[usize::from(key)];
        place.record = Some(Kept(record.clone()));
        place.generation += 1;
        place.promised_until = 0;
        if place.generation > 1 {
            model.reach(Reached::SecondGeneration);
        }
        self.grant(key, record.fence);
        Inserted::New(record)
    }

    pub(super) fn holds(&mut self, key: u8, mark: u8, record: Record) -> Owner {
        if record.mark != mark_of(mark) {
            self.broken = Some(Broken::MarkNotKept);
        }
        let generation = self.places[usize::from(key)].generation;
        let (fence, seen) = (record.fence.0 as u8, Kept(record));
        let phase = Phase::Granted;
        Owner::Holding(Holding { key, generation, mark, fence, seen, phase, pending: None })
    }

    /// What an owner does with the answer to its swap.
    pub(super) fn answered(&mut self, owner: u8, acknowledged: bool, model: &Bounds) {
        let at = usize::from(owner);
        let was = std::mem::replace(&mut self.owners[at], Owner::Idle);
        self.owners[at] = match was {
            Owner::Idle => Owner::Idle,
            Owner::Beginning { number, mark, pending } => {
                let before = self.record(pending.key).and_then(|record| record.mark);
                match (self.swap(&pending), acknowledged) {
                    (Some(record), true) if record.standing() == Standing::InProgress => {
                        model.reach(Reached::ReleasedRuns);
                        if before != record.mark {
                            model.reach(Reached::AnotherMarkRuns);
                        }
                        self.holds(pending.key, mark, record)
                    }
                    (Some(_) | None, true) => Owner::Idle,
                    (_, false) => Owner::Doubtful { key: pending.key, number, pending: None },
                }
            }
            Owner::Doubtful { key, number, pending } => {
                let before = self.record(key).map(Record::standing);
                let done = pending.is_some_and(|pending| self.swap(&pending).is_some());
                if done {
                    model.reach(Reached::Withdrawn);
                }
                if done && before == Some(Standing::Unknown) {
                    model.reach(Reached::UnknownWithdrawn);
                }
                if done && acknowledged {
                    Owner::Idle
                } else {
                    Owner::Doubtful { key, number, pending: None }
                }
            }
            Owner::Holding(mut holding) => {
                let pending = holding.pending.take();
                let before = self.record(holding.key).map(Record::standing);
                let swapped = pending.as_ref().and_then(|pending| self.swap(pending));
                let renewal = matches!(
                    pending.map(|pending| pending.write.becomes),
                    Some(Becomes::Renewed { .. } | Becomes::HeadKept { .. })
                );
                match (swapped, acknowledged) {
                    (Some(_), true) if !renewal => {
                        if before == Some(Standing::Unknown) {
                            model.reach(Reached::LateSettle);
                        }
                        return;
                    }
                    (Some(record), true) => holding.seen = Kept(record),
                    // It looks again at what is there now.
                    (None, true) => match self.record(holding.key) {
                        Some(current) => holding.seen = Kept(current.clone()),
                        None => return,
                    },
                    (_, false) => {}
                }
                Owner::Holding(holding)
            }
        };
    }
}
