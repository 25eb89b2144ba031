//! What may a record become?
//!
//! The rules about writes that the store has applied: from where to where, by whom, with which
//! fence, and by which clock.

use retrysafe_core::policy::Absence;
use retrysafe_core::record::Standing;

use super::{Checker, Generation, Grant, GrantEnd, Live, Sometimes};
use crate::history::{Act, Found, NONE, Role, STORE_EPOCH_MS, Wrote};
use crate::invariant::Invariant as I;
use crate::options::Profile;

impl Checker {
    /// Time has come to the present entry: the store's clock may have shown this much.
    pub(super) fn tick(&mut self) {
        self.clock_max = self.clock_max.max(self.store_clock());
    }

    /// What the store's clock shows. The one that lives on a disk never goes back.
    fn store_clock(&self) -> u64 {
        let reading = (STORE_EPOCH_MS + self.at).saturating_add_signed(self.clock_offset);
        match self.rules.profile {
            Profile::SingleOwner => reading.max(self.clock_max),
            Profile::Durable | Profile::Cached | Profile::FailOver => reading,
        }
    }

    pub(super) fn jumped(&mut self, by: i64) {
        let before = self.store_clock();
        self.clock_offset += by;
        let after = self.store_clock();
        self.clock_max = self.clock_max.max(after);
        self.clock_back_ms += before.saturating_sub(after);
        self.clock_turned_ms += by.min(0).unsigned_abs();
        let over = |live: Live| match live.standing {
            Standing::Unknown => false,
            Standing::InProgress | Standing::Completed | Standing::FailedRetryable => {
                (before < live.until) != (after < live.until)
            }
        };
        let moved = self.keys.iter().filter_map(|key| key.live).any(over);
        if moved {
            self.reach(if by < 0 {
                Sometimes::ClockBackOverExpiry
            } else {
                Sometimes::ClockForwardOverLease
            });
        }
    }

    pub(super) fn wrote(&mut self, wrote: &Wrote) {
        let key = wrote.key;
        let before = self.live(key);
        if wrote.act == Act::RolledBack {
            return self.rolled_back(wrote);
        }
        // The present version and fence of a record were never used before, by any record.
        let version_max = self.version_max_beside(wrote);
        self.require(wrote.version > version_max, I::S11, key);
        self.version_max = self.version_max.max(wrote.version);
        self.require(wrote.now <= self.clock_max, I::S24, key);
        match (wrote.act, before) {
            (Act::Inserted, before) => return self.inserted(wrote, before),
            (_, None) => return self.violate(I::S22, Some(key)),
            (_, Some(live)) if self.rules.flow.is_some() => self.flow_wrote(wrote, live),
            (Act::Advanced, Some(_)) => self.violate(I::F2, Some(key)),
            (Act::Began, Some(live)) => self.began(wrote, live),
            (Act::Renewed, Some(live)) => self.renewed(wrote, live),
            (Act::HeadKept, Some(live)) => self.head_kept(wrote, live),
            (Act::Settled, Some(live)) => self.settled(wrote, live),
            (Act::Doubted, Some(live)) => self.doubted(wrote, live),
            (Act::Resolved, Some(live)) => self.resolved(wrote, live),
            (Act::Remarked, Some(live)) => {
                self.require(wrote.standing == live.standing, I::S11, key);
            }
            (Act::LookedUp, Some(live)) => {
                self.require(live.standing == Standing::Unknown, I::S30, key);
                self.require(wrote.standing == live.standing, I::S30, key);
            }
            (Act::Expired, Some(live)) => {
                let decided = is_decided(live.standing);
                self.require(decided && wrote.by.role == Role::Expirer, I::S22, key);
            }
            (Act::RolledBack, Some(_)) => {}
        }
        if let Some(live) = before {
            let is_late = wrote.act == Act::Advanced && live.standing == Standing::Unknown;
            let raises = matches!(wrote.act, Act::Began | Act::Resolved) || is_late;
            self.require(raises || wrote.fence == live.fence, I::S11, key);
            self.require(self.print_of(live) == Some(wrote.print), I::S7, key);
            self.become_live(wrote, live.generation, live.unknown_since);
            self.left_in_progress(key, live);
        }
    }

    /// The highest version before a write. A transaction has got its version before it is committed,
    /// and others may have overtaken it; never on the same record.
    fn version_max_beside(&mut self, wrote: &Wrote) -> u32 {
        let Some(key) = self.keys.get_mut(usize::from(wrote.key)) else { return self.version_max };
        let of_record = std::mem::replace(&mut key.version_max, wrote.version);
        if self.rules.flow.is_some() { of_record } else { self.version_max }
    }

    fn become_live(&mut self, wrote: &Wrote, generation: u16, unknown_since: u64) {
        if wrote.standing == Standing::Completed {
            let entry = self.entry;
            if let Some(generation) = self.generations.get_mut(usize::from(generation)) {
                generation.completed.get_or_insert(entry);
                generation.not_kept |= wrote.body == NONE;
            }
        }
        let unknown_since = match wrote.act {
            Act::Doubted | Act::Settled => self.at,
            Act::Inserted
            | Act::Began
            | Act::Renewed
            | Act::HeadKept
            | Act::Advanced
            | Act::Remarked
            | Act::LookedUp
            | Act::Resolved
            | Act::Expired
            | Act::RolledBack => unknown_since,
        };
        let Some(key) = self.keys.get_mut(usize::from(wrote.key)) else { return };
        key.fence_max = key.fence_max.max(wrote.fence);
        key.live = Some(Live {
            generation,
            standing: wrote.standing,
            fence: wrote.fence,
            until: wrote.until,
            unknown_since,
        });
    }

    fn print_of(&self, live: Live) -> Option<u8> {
        self.generation(live.generation).map(|generation| generation.print)
    }

    /// A new generation.
    fn inserted(&mut self, wrote: &Wrote, before: Option<Live>) {
        let key = wrote.key;
        if let Some(live) = before {
            let over = live.until <= wrote.now;
            match live.standing {
                Standing::Completed | Standing::FailedRetryable => {
                    self.require(over, I::S22, key);
                }
                Standing::Unknown => self.violate(I::S9, Some(key)),
                Standing::InProgress if over => self.violate(I::S10, Some(key)),
                Standing::InProgress => self.violate(I::S22, Some(key)),
            }
            let holds_work = self.holds_work(key);
            self.require(!holds_work, I::F7, key);
            self.end_generation(key, live, is_decided(live.standing) && over && !holds_work);
        }
        if self.generations.iter().any(|generation| generation.key == key) {
            self.reach(Sometimes::NextGeneration);
        }
        // Effects go on to be counted where a generation had no right to end.
        let robbed = self.keys.get_mut(usize::from(key)).and_then(|key| key.robbed.take());
        let number = robbed.unwrap_or_else(|| self.new_generation(wrote));
        self.grants_to(wrote, number);
        self.lease_lasts(wrote);
        self.become_live(wrote, number, 0);
    }

    fn new_generation(&mut self, wrote: &Wrote) -> u16 {
        self.generations.push(Generation {
            key: wrote.key,
            print: wrote.print,
            ended: None,
            completed: None,
            not_kept: false,
            last_final: None,
            ttl_ms: self.rules.ttl_ms,
            rows: 0,
            kept: None,
        });
        self.generations.len() as u16 - 1
    }

    /// A new owner of a record that was there.
    fn began(&mut self, wrote: &Wrote, live: Live) {
        match live.standing {
            Standing::FailedRetryable => {}
            Standing::Unknown => self.violate(I::S9, Some(wrote.key)),
            Standing::InProgress => self.violate(I::S10, Some(wrote.key)),
            Standing::Completed => self.violate(I::S30, Some(wrote.key)),
        }
        // A verdict has raised the fence to its own number: the last grant is who was judged.
        let judged = self
            .grants
            .iter()
            .rfind(|grant| grant.key == wrote.key)
            .is_some_and(|grant| matches!(grant.end, GrantEnd::Judged(_)));
        self.reach(if judged { Sometimes::UnknownToExecution } else { Sometimes::ReleasedRuns });
        self.grants_to(wrote, live.generation);
    }

    pub(super) fn grants_to(&mut self, wrote: &Wrote, generation: u16) {
        let key = wrote.key;
        let fence_max = self.keys.get(usize::from(key)).map(|key| key.fence_max).unwrap_or(0);
        self.require(wrote.fence > fence_max, I::S11, key);
        self.require(self.at >= self.held_until(), I::S25, key);
        let conn = if let Role::Begin { conn } = wrote.by.role {
            conn
        } else {
            self.require(wrote.by.role == Role::Completer, I::S9, key);
            NONE
        };
        let waiting = |conn: &super::Conn| conn.known && !conn.answered && conn.key == key;
        if self.conns.iter().any(|conn| waiting(conn) && conn.gateway != wrote.by.gateway) {
            self.reach(Sometimes::Race);
        }
        if self.conns.get(usize::from(conn)).is_some_and(|conn| conn.failed) {
            self.reach(Sometimes::LateInsert);
        }
        self.grants.push(Grant {
            fence: wrote.fence,
            key,
            generation,
            gateway: wrote.by.gateway,
            epoch: wrote.by.epoch,
            conn,
            acknowledged: false,
            sent: false,
            unsent: false,
            bounced: false,
            exec: None,
            effects: 0,
            asked: None,
            asked_at: 0,
            head_kept: false,
            closed: false,
            ttl_ms: None,
            lease_ends_at: 0,
            end: GrantEnd::Open,
        });
    }

    pub(super) fn renewed(&mut self, wrote: &Wrote, live: Live) {
        let mine = wrote.by.role == Role::Owner { fence: live.fence }
            && self.is_of_owner(wrote, live.fence);
        self.require(mine && live.standing == Standing::InProgress, I::S11, wrote.key);
        self.require(wrote.standing == Standing::InProgress, I::S11, wrote.key);
        self.reach(Sometimes::Renewal);
    }

    fn head_kept(&mut self, wrote: &Wrote, live: Live) {
        self.renewed(wrote, live);
        let grant = self.grant(Some(wrote.key), live.fence);
        if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
            grant.head_kept = true;
        }
    }

    fn settled(&mut self, wrote: &Wrote, live: Live) {
        let key = wrote.key;
        let grant = self.grant(Some(key), live.fence);
        match wrote.by.role {
            Role::Owner { fence } => {
                let mine = fence == live.fence && self.is_of_owner(wrote, live.fence);
                self.require(mine, I::S11, key);
                let ttl_ms = grant.and_then(|at| self.grants.get(at)).and_then(|it| it.ttl_ms);
                if let (Some(ttl_ms), Some(generation)) =
                    (ttl_ms, self.generations.get_mut(usize::from(live.generation)))
                {
                    generation.ttl_ms = ttl_ms;
                }
                if live.standing == Standing::Unknown && wrote.standing == Standing::Completed {
                    self.reach(Sometimes::LateSettleAccepted);
                }
                let end = GrantEnd::Settled(wrote.standing);
                if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
                    grant.end = end;
                }
            }
            Role::Withdraw => {
                self.reach(Sometimes::Withdrawal);
                // Also from unknown: who has not sent anything knows that.
                if live.standing == Standing::Unknown {
                    self.reach(Sometimes::UnknownWithdrawn);
                }
                let undecided = !is_decided(live.standing);
                self.require(undecided && wrote.standing == Standing::FailedRetryable, I::S14, key);
                if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
                    grant.end = GrantEnd::Withdrawn;
                    let sent = grant.sent;
                    self.require(!sent, I::S14, key);
                }
            }
            Role::Begin { .. }
            | Role::Completer
            | Role::Sweeper
            | Role::Reaper
            | Role::Reader
            | Role::Judge { .. }
            | Role::Expirer
            | Role::Opening
            | Role::FailOver => self.violate(I::S11, Some(key)),
        }
        self.require(!is_decided(live.standing), I::S30, key);
        self.kept_for_its_time(wrote, live.generation);
        self.now_durable(wrote, grant);
    }

    /// Whether a write comes from the process to which the fence was granted.
    pub(super) fn is_of_owner(&self, wrote: &Wrote, fence: u32) -> bool {
        let grant = self.grant(Some(wrote.key), fence).and_then(|at| self.grants.get(at));
        grant.is_some_and(|it| (it.gateway, it.epoch) == (wrote.by.gateway, wrote.by.epoch))
    }

    /// What a completed record holds may be told from now on.
    fn now_durable(&mut self, wrote: &Wrote, grant: Option<usize>) {
        if wrote.standing != Standing::Completed {
            return;
        }
        let of_grant = grant.and_then(|at| self.grants.get(at)).and_then(|grant| grant.exec);
        let exec = if wrote.body == NONE { of_grant } else { Some(wrote.body) };
        if let Some(exec) = exec.and_then(|exec| self.execs.get_mut(usize::from(exec))) {
            exec.durable = true;
        }
    }

    pub(super) fn kept_for_its_time(&mut self, wrote: &Wrote, generation: u16) {
        let ttl_ms = self.generation(generation).map_or(0, |generation| generation.ttl_ms);
        if is_decided(wrote.standing) {
            self.require(wrote.until >= wrote.now + ttl_ms, I::S22, wrote.key);
        }
    }

    pub(super) fn doubted(&mut self, wrote: &Wrote, live: Live) {
        let key = wrote.key;
        self.require(wrote.standing == Standing::Unknown, I::S30, key);
        self.require(live.standing == Standing::InProgress, I::S30, key);
        match wrote.by.role {
            Role::Opening => {
                self.reach(Sometimes::StoreReopened);
                self.require(self.rules.profile == Profile::SingleOwner, I::S24, key);
            }
            Role::Sweeper | Role::Begin { .. } | Role::Completer => {
                self.require(live.until <= self.clock_max, I::S24, key);
                let owner = self.grant(Some(key), live.fence).and_then(|at| self.grants.get(at));
                if owner.is_some_and(|it| it.acknowledged && self.is_alive(it.gateway, it.epoch)) {
                    self.reach(Sometimes::LeaseEndsUnderOwner);
                }
            }
            Role::Withdraw
            | Role::Owner { .. }
            | Role::Reaper
            | Role::Reader
            | Role::Judge { .. }
            | Role::Expirer
            | Role::FailOver => self.violate(I::S24, Some(key)),
        }
    }

    fn resolved(&mut self, wrote: &Wrote, live: Live) {
        let key = wrote.key;
        self.require(live.standing == Standing::Unknown, I::S30, key);
        // From now on the former owner loses.
        self.require(wrote.fence > live.fence, I::S12, key);
        let Role::Judge { fence, evidence } = wrote.by.role else {
            return self.violate(I::S13, Some(key));
        };
        self.require(fence == live.fence, I::S13, key);
        let waited = self.at.saturating_sub(live.unknown_since);
        let effect = |exec: &super::Exec| exec.key == key && exec.fence == fence && exec.effect;
        let holds = match evidence {
            Found::Effect => self.execs.iter().any(effect),
            Found::Burnt => self.burnt.contains(&(key, fence)),
            Found::Absence => {
                self.reach(Sometimes::AbsenceProves);
                self.rules.absence == Absence::Proof && waited >= self.rules.settle_ms
            }
            Found::OperatorSaysDone | Found::OperatorSaysNot => true,
            // Only of flows.
            Found::Declined | Found::NoRows => false,
        };
        self.require(holds, I::S13, key);
        if evidence == Found::Effect {
            self.decided_by_effect(key, fence);
        }
        let (standing, reached) = match evidence {
            Found::Effect => (Standing::Completed, Sometimes::UnknownToCompleted),
            Found::OperatorSaysDone => (Standing::Completed, Sometimes::OperatorConfirms),
            Found::OperatorSaysNot => (Standing::FailedRetryable, Sometimes::OperatorReleases),
            Found::Burnt | Found::Absence | Found::Declined | Found::NoRows => {
                (Standing::FailedRetryable, Sometimes::UnknownToCompleted)
            }
        };
        if standing == Standing::Completed || evidence == Found::OperatorSaysNot {
            self.reach(reached);
        }
        self.require(wrote.standing == standing, I::S13, key);
        let grant = self.grant(Some(key), live.fence);
        if let Some(grant) = grant.and_then(|at| self.grants.get_mut(at)) {
            grant.end = GrantEnd::Judged(evidence);
        }
        self.kept_for_its_time(wrote, live.generation);
        self.now_durable(wrote, grant);
    }

    pub(super) fn reaped(&mut self, key: u8, now: u64) {
        let Some(live) = self.live(key) else { return self.violate(I::S22, Some(key)) };
        let holds_work = self.holds_work(key);
        self.require(!holds_work, I::F7, key);
        let lawful = is_decided(live.standing) && live.until <= now && !holds_work;
        self.require(lawful, I::S22, key);
        self.end_generation(key, live, lawful);
        self.left_in_progress(key, live);
    }

    /// Nobody may ask for this.
    pub(super) fn deleted(&mut self, key: u8) {
        if let Some(live) = self.live(key) {
            self.violate(I::S22, Some(key));
            self.end_generation(key, live, false);
        }
    }

    fn end_generation(&mut self, key: u8, live: Live, lawful: bool) {
        let entry = self.entry;
        if lawful && let Some(generation) = self.generations.get_mut(usize::from(live.generation)) {
            generation.ended = Some(entry);
        }
        if let Some(key) = self.keys.get_mut(usize::from(key)) {
            (key.live, key.flow) = (None, None);
            key.robbed = (!lawful).then_some(live.generation);
        }
        if self.conns.iter().any(|conn| conn.known && !conn.answered && conn.key == key) {
            self.reach(Sometimes::EndsUnderRequest);
        }
    }

    /// Until when nothing new may be granted.
    pub(super) fn held_until(&self) -> u64 {
        self.failed_over_at.map_or(0, |at| at.saturating_add(self.rules.quarantine_ms))
    }

    pub(super) fn forgotten(&mut self, key: u8) {
        if let Some(live) = self.live(key) {
            self.end_generation(key, live, true);
        }
        if let Some(key) = self.keys.get_mut(usize::from(key)) {
            key.tainted = true;
        }
    }

    fn rolled_back(&mut self, wrote: &Wrote) {
        if let Some(key) = self.keys.get_mut(usize::from(wrote.key)) {
            key.tainted = true;
        }
        let generation = (self.generations.iter())
            .rposition(|generation| generation.key == wrote.key && generation.print == wrote.print);
        if let Some(number) = generation {
            self.become_live(wrote, number as u16, 0);
        }
    }
}

pub(super) fn is_decided(standing: Standing) -> bool {
    match standing {
        Standing::Completed | Standing::FailedRetryable => true,
        Standing::InProgress | Standing::Unknown => false,
    }
}
