//! What may be executed, and what must follow from it?
//!
//! The rules about grants, sends, effects and settles.

use retrysafe_core::policy::OnServerError;
use retrysafe_core::record::Standing;

use super::records::is_decided;
use super::{Checker, Conn, Exec, Got, Grant, GrantEnd, Sometimes};
use crate::history::{Found, NONE, SaidSo, SettleHeard, TRUNCATED};
use crate::invariant::Invariant as I;

/// Answers that depend on the moment, by the project's own page; not taken from its code.
const MOMENTARY: [u16; 8] = [401, 403, 404, 407, 408, 421, 425, 429];

impl Checker {
    pub(super) fn booted(&mut self, gateway: u8, epoch: u16) {
        if let Some(gateway) = self.gateways.get_mut(usize::from(gateway)) {
            *gateway = super::Gateway { up: true, epoch, drained: false };
        }
    }

    pub(super) fn crashed(&mut self, gateway: u8) {
        let Some(crashed) = self.gateways.get_mut(usize::from(gateway)) else { return };
        crashed.up = false;
        let epoch = crashed.epoch;
        for at in 0..self.grants.len() {
            let Some(grant) = self.grants.get(at) else { continue };
            let open = grant.acknowledged && grant.end == GrantEnd::Open && grant.asked.is_none();
            if open && grant.gateway == gateway && grant.epoch == epoch {
                let reached = match (grant.sent, grant.effects) {
                    (false, _) => Sometimes::CrashBeforeSend,
                    (true, 0) => Sometimes::CrashBeforeEffect,
                    (true, _) => Sometimes::CrashAfterEffect,
                };
                self.reach(reached);
            }
        }
    }

    pub(super) fn begun(&mut self, conn: u16, gateway: u8, epoch: u16, fence: u32) {
        let key = self.conns.get(usize::from(conn)).map(|conn| conn.key);
        self.nothing_begins_after_a_drain(gateway, epoch, key);
        let Some(grant) = self.grant(None, fence).and_then(|at| self.grants.get_mut(at)) else {
            return self.violate(I::S3, key);
        };
        let again = std::mem::replace(&mut grant.acknowledged, true);
        let mine = grant.gateway == gateway && grant.epoch == epoch && grant.conn == conn;
        let key = grant.key;
        self.require(mine, I::S3, key);
        self.require(!again, I::S2, key);
    }

    pub(super) fn begin_failed(&mut self, conn: u16, ambiguous: bool) {
        if let Some(conn) = self.conns.get_mut(usize::from(conn)) {
            conn.failed = true;
            conn.ambiguous |= ambiguous;
        }
        self.reach(if ambiguous { Sometimes::AmbiguousBegin } else { Sometimes::BeginRefused });
        if !ambiguous && self.at < self.held_until() {
            self.reach(Sometimes::HeldRefusal);
        }
    }

    pub(super) fn unsent(&mut self, fence: u32, late: bool) {
        if late {
            self.reach(Sometimes::LeaseStopsSend);
        }
        if let Some(grant) = self.grant(None, fence).and_then(|at| self.grants.get_mut(at)) {
            grant.unsent = true;
        }
    }

    pub(super) fn sent(&mut self, conn: u16, fence: u32, gateway: u8, epoch: u16) {
        let opened = self.conns.get(usize::from(conn)).copied();
        let key = opened.map(|conn| conn.key);
        if opened.is_some_and(|conn| conn.failed) {
            return self.violate(I::S14, key);
        }
        let alive = self.is_alive(gateway, epoch);
        let Some(grant) = self.grant(None, fence).and_then(|at| self.grants.get_mut(at)) else {
            return self.violate(I::S3, key);
        };
        let again = std::mem::replace(&mut grant.sent, true);
        let (key, asked) = (grant.key, grant.asked.is_some());
        let mine = grant.acknowledged && grant.gateway == gateway && grant.epoch == epoch;
        let (withdrawn, unsent) = (grant.end == GrantEnd::Withdrawn, grant.unsent);
        self.require(mine && alive, I::S3, key);
        self.nothing_begins_after_a_drain(gateway, epoch, Some(key));
        let beside = self.runs_open(key, (gateway, epoch));
        self.require(!beside, I::S14, key);
        self.require(!withdrawn, I::S14, key);
        self.require(!unsent, I::S15, key);
        if again {
            self.violate(if asked { I::S15 } else { I::S2 }, Some(key));
        }
    }

    pub(super) fn ran(&mut self, exec: u16, key: u8, fence: u32, print: u8) {
        let at = self.grant(None, fence);
        let granted = at.and_then(|at| self.grants.get(at)).copied();
        match granted {
            None => self.violate(I::S3, Some(key)),
            Some(grant) => {
                self.require(grant.sent, I::S3, key);
                self.require(grant.key == key, I::S8, key);
                self.require(grant.exec.is_none(), I::S2, key);
                let print_of = self.generation(grant.generation).map(|generation| generation.print);
                self.require(print_of == Some(print), I::S7, key);
                let overlaps = self.grants.iter().any(|other| self.overlaps(other, &grant));
                self.require(!overlaps, I::S2, key);
            }
        }
        if let Some(grant) = at.and_then(|at| self.grants.get_mut(at)) {
            grant.exec = Some(exec);
        }
        if let Some(slot) = self.exec(exec) {
            *slot = Exec { key, fence, print, open: true, ..*slot };
        }
    }

    /// An execution, blank if nothing is known of it yet: a request may bounce, or be given up,
    /// without ever having run.
    fn exec(&mut self, exec: u16) -> Option<&mut Exec> {
        let at = usize::from(exec);
        if self.execs.len() <= at {
            self.execs.resize(at + 1, Exec::default());
        }
        self.execs.get_mut(at)
    }

    /// Whether another execution of the generation is going on that could still take effect, and
    /// that nobody has answered for.
    fn overlaps(&self, other: &Grant, grant: &Grant) -> bool {
        let harmless = |end| match end {
            GrantEnd::Judged(Found::Burnt | Found::OperatorSaysNot) => true,
            GrantEnd::Judged(
                Found::Effect
                | Found::Absence
                | Found::Declined
                | Found::NoRows
                | Found::OperatorSaysDone,
            )
            | GrantEnd::Open
            | GrantEnd::Settled(_)
            | GrantEnd::Withdrawn => false,
        };
        other.generation == grant.generation
            && other.fence != grant.fence
            && !harmless(other.end)
            && !harmless(grant.end)
            && other
                .exec
                .and_then(|exec| self.execs.get(usize::from(exec)))
                .is_some_and(|exec| exec.open)
    }

    pub(super) fn effect(&mut self, exec: u16) {
        let Some(ran) = self.execs.get_mut(usize::from(exec)) else {
            return self.violate(I::S3, None);
        };
        ran.effect = true;
        let (key, fence, got) = (ran.key, ran.fence, ran.got);
        if ran.unprotected.is_some() {
            // Nobody has promised anything about it.
            return;
        }
        if got == Got::TimedOut {
            self.reach(Sometimes::LateEffect);
        }
        let Some(grant) = self.grant(Some(key), fence).and_then(|at| self.grants.get_mut(at))
        else {
            return;
        };
        grant.effects = grant.effects.saturating_add(1);
        let (again, end) = (grant.effects > 1, grant.end);
        self.require(!again, I::S2, key);
        let contradicts = matches!(end, GrantEnd::Judged(Found::Burnt | Found::Absence));
        self.require(!contradicts, I::S12, key);
    }

    pub(super) fn replied(
        &mut self,
        exec: u16,
        replied: (u16, SaidSo, bool),
        slow: bool,
        head: u16,
    ) {
        if let Some(ran) = self.exec(exec) {
            ran.open = false;
            (ran.head, ran.slow) = (head, slow);
            ran.replied = Some(replied);
        }
    }

    pub(super) fn panicked(&mut self, exec: u16) {
        let Some(ran) = self.exec(exec) else { return };
        ran.open = false;
        let effect = ran.effect;
        self.reach(if effect { Sometimes::PanicAfterEffect } else { Sometimes::PanicBeforeEffect });
    }

    pub(super) fn got(&mut self, exec: u16, got: Got) {
        if got == Got::Part {
            self.reach(Sometimes::TruncatedAnswer);
        }
        let at = self.at;
        if let Some(ran) = self.exec(exec) {
            (ran.got, ran.got_at) = (got, at);
            // Whoever stops waiting does not know what goes on.
            ran.open &= ran.unprotected.is_none();
        }
    }

    /// Whether an owner need not wait for an answer any more, because its time is used up. That it has an answer by now
    /// changes nothing: it may have come while the last one was being written down as unknown. A shutdown is no reason: it waits.
    fn may_give_up(&self, grant: &Grant) -> bool {
        let invoked_at = self.conns.get(usize::from(grant.conn)).map_or(0, |conn| conn.invoked_at);
        self.at >= invoked_at.saturating_add(self.rules.lease_max_ms)
    }

    /// The upstream refuses a request whose fence it has burnt.
    pub(super) fn bounced(&mut self, key: u8, fence: u32) {
        self.reach(Sometimes::BurntRequestBounces);
        if let Some(grant) = self.grant(Some(key), fence).and_then(|at| self.grants.get_mut(at)) {
            grant.bounced = true;
        }
    }

    /// A process says that nothing is open any more: so it is, and so it stays.
    pub(super) fn drained(&mut self, gateway: u8, epoch: u16, open: u16) {
        if open > 0 {
            // After the healing everything ends.
            let is_late = self.healed_at.is_some();
            self.reach(Sometimes::DrainCutShort);
            return if is_late {
                self.violate(I::L8, None)
            };
        }
        self.reach(Sometimes::Drain);
        for at in 0..self.grants.len() {
            let Some(grant) = self.grants.get(at).copied() else { continue };
            let is_mine = (grant.gateway, grant.epoch) == (gateway, epoch);
            let is_open = grant.acknowledged && grant.sent && self.is_executing(&grant);
            self.require(!(is_mine && is_open), I::L8, grant.key);
        }
        if let Some(gateway) = self.gateways.get_mut(usize::from(gateway)) {
            gateway.drained = gateway.epoch == epoch;
        }
    }

    fn nothing_begins_after_a_drain(&mut self, gateway: u8, epoch: u16, key: Option<u8>) {
        let is_drained = self
            .gateways
            .get(usize::from(gateway))
            .is_some_and(|gateway| gateway.drained && gateway.epoch == epoch);
        if is_drained {
            self.violate(I::L8, key);
        }
    }

    /// A process executes without protection: where the route says so, after a begin that surely was
    /// not applied, and not beside what it knows to run or to be settled here.
    pub(super) fn ran_open(&mut self, exec: u16, conn: u16, key: u8, print: u8, by: (u8, u16)) {
        let opened = self.conns.get(usize::from(conn)).copied();
        let applied = self.grants.iter().any(|grant| grant.conn == conn);
        let refused = opened.is_some_and(|conn| !conn.ambiguous) && !applied;
        self.require(self.rules.fails_open && refused, I::S14, key);
        let beside = self.runs_open(key, by) || self.owes_settle(key, by);
        self.require(!beside, I::S14, key);
        self.reach(Sometimes::RunsUnprotected);
        if let Some(conn) = self.conns.get_mut(usize::from(conn)) {
            conn.failed = true;
        }
        if let Some(slot) = self.exec(exec) {
            *slot = Exec { key, print, open: true, unprotected: Some(by), ..*slot };
        }
    }

    /// Whether a process runs a key without protection now.
    fn runs_open(&self, key: u8, by: (u8, u16)) -> bool {
        self.execs.iter().any(|exec| exec.key == key && exec.open && exec.unprotected == Some(by))
    }

    /// Whether the key of a connection was run without protection while the connection was open.
    pub(super) fn ran_beside_open(&self, conn: Conn) -> bool {
        self.execs.iter().any(|exec| {
            let ends_later = exec.open || exec.got_at >= conn.invoked_at;
            exec.key == conn.key && exec.unprotected.is_some() && ends_later
        })
    }

    /// Whether a process knows that it has executed a key, and has not made that durable yet.
    fn owes_settle(&self, key: u8, by: (u8, u16)) -> bool {
        self.grants.iter().any(|grant| {
            grant.key == key
                && (grant.gateway, grant.epoch) == by
                && grant.sent
                && grant.end == GrantEnd::Open
                && !grant.closed
                && (self.is_executing(grant) || !self.has_given_up(grant))
        })
    }

    /// Whether a handler still runs.
    fn is_executing(&self, grant: &Grant) -> bool {
        let exec = grant.exec.and_then(|exec| self.execs.get(usize::from(exec)));
        grant.asked.is_none() && exec.is_some_and(|exec| exec.got == Got::Nothing)
    }

    /// Whether an owner has tried to settle for as long as it tries. It may never have reached the
    /// store.
    pub(super) fn has_given_up(&self, grant: &Grant) -> bool {
        let exec = grant.exec.and_then(|exec| self.execs.get(usize::from(exec)));
        let ended_at = exec.filter(|exec| exec.got != Got::Nothing).map(|exec| exec.got_at);
        let since = ended_at.map_or(grant.asked_at, |at| at.max(grant.asked_at));
        self.at >= since.saturating_add(self.rules.settles_for_ms)
    }

    /// A handler asks for another retention.
    pub(super) fn keep_for(&mut self, fence: u32, ttl_ms: u64) {
        self.reach(Sometimes::HandlerTtl);
        if let Some(grant) = self.grant(None, fence).and_then(|at| self.grants.get_mut(at)) {
            grant.ttl_ms = Some(ttl_ms);
        }
    }

    /// The owner says how it ended: that must be what it saw, judged by the policy.
    pub(super) fn settle_asked(&mut self, fence: u32, standing: Standing, body: u16) {
        let Some(at) = self.grant(None, fence) else { return self.violate(I::S3, None) };
        let Some(grant) = self.grants.get_mut(at) else { return };
        let asked = grant.asked.replace((standing, body));
        if asked.is_none() {
            grant.asked_at = self.at;
        }
        let grant = *grant;
        let Grant { key, sent, unsent, exec, .. } = grant;
        let gives_up = self.may_give_up(&grant);
        if let Some(asked) = asked {
            return self.require(asked == (standing, body), I::S15, key);
        }
        if !sent {
            // What a gateway has handed to its connection may have left, for all it knows; a pause may keep it there.
            if self.rules.by_gateways && !unsent && standing == Standing::Unknown {
                return;
            }
            if !unsent {
                self.reach(Sometimes::LeaseStopsSend);
            }
            return self.require(standing == Standing::FailedRetryable, I::S21, key);
        }
        let Some(ran) = exec.and_then(|exec| self.execs.get(usize::from(exec))).copied() else {
            // Sent and never arrived: nobody can know that. Or refused by an upstream that says so. Either way there is no body
            // to keep.
            self.require(body == NONE, I::S6, key);
            let refused = grant.bounced && standing == Standing::FailedRetryable;
            return self.require(standing == Standing::Unknown || refused, I::S21, key);
        };
        self.require(body == NONE || body & TRUNCATED == 0, I::S16, key);
        let large = ran.replied.is_some_and(|(_, _, large)| large);
        match ran.got {
            Got::Panic => self.require(standing == Standing::Unknown, I::S20, key),
            Got::Part => self.require(standing == Standing::Unknown, I::S16, key),
            Got::TimedOut | Got::Nothing => {
                self.require(standing == Standing::Unknown, I::S21, key);
            }
            Got::Whole => {
                let want = ran.replied.map(|(status, said, _)| self.means(status, said));
                let rule = if large { I::S17 } else { I::S21 };
                // An answer that is passed on needs its head in the record first.
                let cannot_pass_on = (large || ran.slow) && !grant.head_kept;
                // A gateway that is paused for longer than its upstream may be silent takes a stream for one that broke off.
                let may_break_off = ran.slow && self.rules.by_gateways;
                if standing == Standing::Unknown && (gives_up || cannot_pass_on || may_break_off) {
                    return;
                }
                self.require(want == Some(standing), rule, key);
                if standing == Standing::Completed && large {
                    self.require(body == NONE, I::S17, key);
                } else if standing == Standing::Completed {
                    let may_drop = ran.slow && body == NONE;
                    self.require(Some(body) == exec || may_drop, I::S6, key);
                }
            }
        }
    }

    /// What a whole answer means, by the project's own page.
    fn means(&self, status: u16, said: SaidSo) -> Standing {
        match said {
            SaidSo::Completed => return Standing::Completed,
            SaidSo::Retryable => return Standing::FailedRetryable,
            SaidSo::Unknown => return Standing::Unknown,
            SaidSo::Nothing => {}
        }
        match status {
            502 | 504 => Standing::Unknown,
            500.. => match self.rules.on_server_error {
                OnServerError::Release => Standing::FailedRetryable,
                OnServerError::Store => Standing::Completed,
                OnServerError::Unknown => Standing::Unknown,
            },
            status if MOMENTARY.contains(&status) => Standing::FailedRetryable,
            _ => Standing::Completed,
        }
    }

    pub(super) fn settle_heard(&mut self, fence: u32, heard: SettleHeard) {
        let Some(grant) = self.grant(None, fence).and_then(|at| self.grants.get(at)).copied()
        else {
            return self.violate(I::S3, None);
        };
        // A retention that has ever been over may have been over when the settle looked.
        let live = self.live(grant.key).filter(|live| {
            live.fence == fence && (!is_decided(live.standing) || self.clock_max < live.until)
        });
        let mine_holds = grant.asked.is_some_and(|(standing, _)| {
            live.is_some_and(|live| live.standing == standing && is_decided(standing))
        });
        match heard {
            SettleHeard::Done => self.close(fence),
            SettleHeard::Lost { contradiction } => {
                self.reach(Sometimes::LateSettleRefused);
                self.close(fence);
                if contradiction {
                    self.reach(Sometimes::Contradiction);
                }
                // The truth may be refused only where somebody else has decided.
                let undecided = live.is_some_and(|live| !is_decided(live.standing));
                self.require(!undecided, I::S12, grant.key);
                // What was said before and holds is not lost.
                self.require(!mine_holds, I::S15, grant.key);
            }
            SettleHeard::Failed { ambiguous } => {
                if ambiguous && mine_holds {
                    self.reach(Sometimes::AmbiguousSettle);
                }
            }
        }
    }

    /// The owner knows that its settle is over.
    fn close(&mut self, fence: u32) {
        if let Some(grant) = self.grant(None, fence).and_then(|at| self.grants.get_mut(at)) {
            grant.closed = true;
        }
    }

    /// Whether an effect under this grant does not count: policy, handler or operator let the
    /// request run again though it may have taken effect.
    pub(super) fn was_released(&self, grant: &Grant) -> bool {
        let replied = grant
            .exec
            .and_then(|exec| self.execs.get(usize::from(exec)))
            .and_then(|exec| exec.replied);
        match (grant.end, replied) {
            (GrantEnd::Judged(Found::OperatorSaysNot), _) => true,
            (GrantEnd::Settled(Standing::FailedRetryable), Some((_, SaidSo::Retryable, _))) => true,
            (GrantEnd::Settled(Standing::FailedRetryable), Some((500.., SaidSo::Nothing, _))) => {
                self.rules.on_server_error == OnServerError::Release
            }
            (
                GrantEnd::Settled(_)
                | GrantEnd::Open
                | GrantEnd::Withdrawn
                | GrantEnd::Judged(
                    Found::Effect
                    | Found::Burnt
                    | Found::Absence
                    | Found::Declined
                    | Found::NoRows
                    | Found::OperatorSaysDone,
                ),
                _,
            ) => false,
        }
    }
}
