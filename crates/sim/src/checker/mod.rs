//! Did anything happen that must not?
//!
//! Judges one history from its log alone, entry by entry, in one pass. It shares no code with the
//! actors and asks nothing of the product: its own tables say what may follow what. Each rule names
//! the invariant that it judges. What belongs to one record is in [`records`], to one execution in
//! [`executions`], to one flow in [`flows`], to one effect of the outbox in [`effects`], to a provider's word in [`evidence`], to one caller in [`answers`]; [`ending`] asks what must hold when all is over.

mod answers;
mod effects;
mod ending;
mod evidence;
mod executions;
mod flows;
mod reached;
mod records;
#[cfg(test)]
mod tests;

pub use reached::{Reached, Sometimes, Where};

use retrysafe_core::policy::{Absence, OnServerError};
use retrysafe_core::record::Standing;

use crate::effect_plan::EffectPlan;
use crate::flow_plan::FlowPlan;
use crate::history::{Entry, FlowSeen, Found, SaidSo, What};
use crate::invariant::Invariant;
use crate::options::{GATEWAYS, NAMES, Options, Profile, SCOPES};

/// What the history was promised to obey.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub profile: Profile,
    pub on_server_error: OnServerError,
    pub absence: Absence,
    pub settle_ms: u64,
    pub lease_ms: u64,
    pub ttl_ms: u64,
    pub operator: bool,
    /// Whether the route runs what the store refuses to begin.
    pub fails_open: bool,
    /// How long one execution is waited for.
    pub lease_max_ms: u64,
    /// How long an owner tries to settle, and its process knows of what it did.
    pub settles_for_ms: u64,
    /// How long after a fail-over nothing new may be granted.
    pub quarantine_ms: u64,
    /// Whether whole gateways run, which hand a request to a connection before it leaves.
    pub by_gateways: bool,
    /// The flow as which requests are executed, where they are.
    pub flow: Option<FlowPlan>,
    /// The effects that are delivered, where the history is about those.
    pub effects: Option<EffectPlan>,
}

/// A broken invariant, where it broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub key: Option<u8>,
    /// The number of the entry at which it showed.
    pub entry: usize,
}

/// The checker, with memory that it uses again.
pub struct Checker {
    rules: Rules,
    /// The present entry.
    at: u64,
    entry: usize,
    keys: Vec<Key>,
    generations: Vec<Generation>,
    grants: Vec<Grant>,
    execs: Vec<Exec>,
    conns: Vec<Conn>,
    calls: Vec<Call>,
    gateways: Vec<Gateway>,
    burnt: Vec<(u8, u32)>,
    dead_letters: Vec<u32>,
    /// What reports of the provider that were acknowledged are about.
    kept_notices: Vec<(u8, u32)>,
    /// Of which attempts a lookup has shown the effect.
    shown: Vec<(u8, u32)>,
    charges: Vec<flows::ChargeSeen>,
    /// How far a flow has come after the write that follows.
    next_flow: Option<FlowSeen>,
    pending_rows: Option<flows::RowsSeen>,
    outbox: effects::OutboxSeen,
    clock_offset: i64,
    clock_max: u64,
    clock_back_ms: u64,
    /// By how much the clock was turned back; the one that lives on a disk stands still for as long.
    clock_turned_ms: u64,
    version_max: u32,
    healed_at: Option<u64>,
    failed_over_at: Option<u64>,
    violations: Vec<Violation>,
    documented: u32,
    reached: Reached,
}

/// What is known of one record, present or not.
#[derive(Clone, Copy, Default)]
struct Key {
    live: Option<Live>,
    fence_max: u32,
    /// The generation that was taken away before its time.
    robbed: Option<u16>,
    /// Whether a fail-over has forgotten some of it.
    tainted: bool,
    /// The highest version that it has had.
    version_max: u32,
    /// How far its flow has come.
    flow: Option<FlowSeen>,
}

/// A record that exists.
#[derive(Clone, Copy)]
struct Live {
    generation: u16,
    standing: Standing,
    fence: u32,
    until: u64,
    /// Since when it is unknown, by the recorder's clock.
    unknown_since: u64,
}

/// From one insert of a record to its end.
#[derive(Clone, Copy)]
struct Generation {
    key: u8,
    print: u8,
    ended: Option<usize>,
    completed: Option<usize>,
    not_kept: bool,
    /// Status, body and head of the last final answer.
    last_final: Option<(u16, u16, u16)>,
    ttl_ms: u64,
    /// The phases of a flow whose rows are there, as bits.
    rows: u8,
    /// Status and body of the answer that its flow has come to.
    kept: Option<(u16, u16)>,
}

/// One right to execute.
#[derive(Clone, Copy)]
struct Grant {
    fence: u32,
    key: u8,
    generation: u16,
    gateway: u8,
    epoch: u16,
    conn: u16,
    acknowledged: bool,
    sent: bool,
    unsent: bool,
    /// Whether the upstream has refused it.
    bounced: bool,
    exec: Option<u16>,
    effects: u8,
    asked: Option<(Standing, u16)>,
    asked_at: u64,
    /// Whether the head of its answer is durable.
    head_kept: bool,
    /// Whether its process knows that the settle is over.
    closed: bool,
    /// The retention that its handler asks for.
    ttl_ms: Option<u64>,
    /// How long, by the recorder's clock, the owner of a flow may believe in its lease.
    lease_ends_at: u64,
    end: GrantEnd,
}

/// How a right to execute ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantEnd {
    Open,
    Settled(Standing),
    Withdrawn,
    Judged(Found),
}

/// What the upstream did.
#[derive(Clone, Copy, Default)]
struct Exec {
    key: u8,
    fence: u32,
    print: u8,
    open: bool,
    effect: bool,
    replied: Option<(u16, SaidSo, bool)>,
    slow: bool,
    head: u16,
    got: Got,
    got_at: u64,
    durable: bool,
    /// The process that runs it without protection.
    unprotected: Option<(u8, u16)>,
}

/// What a gateway had from its upstream.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Got {
    #[default]
    Nothing,
    Whole,
    Part,
    Panic,
    TimedOut,
}

/// One attempt of a client.
#[derive(Clone, Copy)]
struct Conn {
    call: u16,
    key: u8,
    print: u8,
    gateway: u8,
    invoked: usize,
    invoked_at: u64,
    failed: bool,
    /// Whether its begin may have been applied all the same.
    ambiguous: bool,
    answered: bool,
    known: bool,
}

/// One call of a client.
#[derive(Clone, Copy)]
struct Call {
    key: u8,
    print: u8,
    began_at: u64,
    /// Whether it was told that no further attempt will change anything.
    told: bool,
    /// Whether an attempt may have been executed and nobody has told it so.
    in_doubt: bool,
    answered: bool,
    /// Whether an attempt was lost: then a refusal may come from anybody on the way.
    lost: bool,
    /// Whether the last thing it heard can be an end of the call.
    may_end: bool,
    end: Option<crate::history::CallEnd>,
}

#[derive(Clone, Copy, Default)]
struct Gateway {
    up: bool,
    epoch: u16,
    /// Whether it has said that nothing is open any more.
    drained: bool,
}

impl Rules {
    pub fn of(options: &Options) -> Self {
        Self {
            profile: options.profile,
            on_server_error: options.on_server_error,
            absence: options.absence,
            settle_ms: options.settle_ms(),
            lease_ms: options.lease_ms,
            ttl_ms: options.ttl_ms,
            operator: options.operator,
            fails_open: false,
            lease_max_ms: u64::MAX,
            settles_for_ms: u64::MAX,
            quarantine_ms: options.quarantine_ms(),
            by_gateways: false,
            flow: options.flow,
            effects: options.effects,
        }
    }
}

/// What became of a history.
#[derive(Clone, Copy, Debug)]
pub struct Judgement<'a> {
    pub violations: &'a [Violation],
    /// Findings that the weaker promise of a profile documents.
    pub documented: u32,
    pub reached: Reached,
}

impl Checker {
    pub fn new() -> Self {
        Self {
            rules: Rules::of(&Options::of(0, None, None)),
            at: 0,
            entry: 0,
            keys: Vec::new(),
            generations: Vec::with_capacity(32),
            grants: Vec::with_capacity(64),
            execs: Vec::with_capacity(64),
            conns: Vec::with_capacity(64),
            calls: Vec::with_capacity(32),
            gateways: Vec::new(),
            burnt: Vec::new(),
            dead_letters: Vec::new(),
            kept_notices: Vec::new(),
            shown: Vec::new(),
            charges: Vec::new(),
            next_flow: None,
            pending_rows: None,
            outbox: effects::OutboxSeen::default(),
            clock_offset: 0,
            clock_max: 0,
            clock_back_ms: 0,
            clock_turned_ms: 0,
            version_max: 0,
            healed_at: None,
            failed_over_at: None,
            violations: Vec::new(),
            documented: 0,
            reached: Reached::default(),
        }
    }

    /// Judges a history.
    pub fn judge(&mut self, rules: Rules, log: &[Entry]) -> Judgement<'_> {
        self.reset(rules);
        for (number, entry) in log.iter().enumerate() {
            (self.at, self.entry) = (entry.at, number);
            self.tick();
            self.rows_are_followed(&entry.what);
            self.see(&entry.what);
        }
        Judgement {
            violations: &self.violations,
            documented: self.documented,
            reached: self.reached,
        }
    }

    fn reset(&mut self, rules: Rules) {
        self.rules = rules;
        self.keys.clear();
        self.keys.resize(usize::from(SCOPES * NAMES), Key::default());
        self.gateways.clear();
        self.gateways.resize(usize::from(GATEWAYS), Gateway::default());
        self.generations.clear();
        self.grants.clear();
        self.execs.clear();
        self.conns.clear();
        self.calls.clear();
        self.burnt.clear();
        self.dead_letters.clear();
        self.kept_notices.clear();
        self.shown.clear();
        self.charges.clear();
        (self.next_flow, self.pending_rows) = (None, None);
        self.outbox.clear();
        (self.clock_offset, self.clock_max, self.clock_back_ms) = (0, 0, 0);
        self.clock_turned_ms = 0;
        self.version_max = 0;
        (self.healed_at, self.failed_over_at) = (None, None);
        self.violations.clear();
        self.documented = 0;
        self.reached = Reached::default();
    }

    fn see(&mut self, what: &What) {
        match *what {
            What::Booted { gateway, epoch } => self.booted(gateway, epoch),
            What::Crashed { gateway } => {
                self.worker_crashed(gateway);
                self.crashed(gateway);
            }
            What::Jumped { by } => {
                self.outbox.jumped_at = Some(self.at);
                self.jumped(by);
            }
            What::Healed => self.healed_at = Some(self.at),
            What::Ended => {
                self.ended();
                self.effects_ended();
            }
            What::FailedOver => {
                self.reach(Sometimes::FailOver);
                self.failed_over_at = Some(self.at);
            }
            What::Forgotten { key } => self.forgotten(key),
            What::Paused { gateway } => self.outbox.pauses(gateway, true, self.at),
            What::Resumed { gateway } => self.outbox.pauses(gateway, false, self.at),
            What::Outbox(event) => self.effect_event(&event),
            What::Strayed { .. } | What::CutOff { .. } | What::Drains { .. } | What::Flushed => {}
            What::Reloaded { .. } => self.reach(Sometimes::Reload),
            What::Drained { gateway, epoch, open } => self.drained(gateway, epoch, open),

            What::Called { call, key, print } => self.called(call, key, print),
            What::Invoked { call, conn, key, print, gateway } => {
                self.invoked(call, conn, key, print, gateway);
            }
            What::Heard { call, class, status, .. } => self.heard(call, class, status),
            What::NotConnected { .. } => {}
            What::NotHeard { call, .. } => self.not_heard(call),
            What::CallResumed { call } => self.call_resumed(call),
            What::CallEnded { call, end } => self.call_ended(call, end),
            What::Disconnected { conn } => self.disconnected(conn),

            What::Begun { conn, gateway, epoch, fence } => self.begun(conn, gateway, epoch, fence),
            What::BeginFailed { conn, ambiguous } => self.begin_failed(conn, ambiguous),
            What::Unsent { fence, late } => self.unsent(fence, late),
            What::Sent { conn, fence, gateway, epoch, .. } => {
                self.sent(conn, fence, gateway, epoch);
            }
            What::RanOpen { exec, conn, key, print, gateway, epoch } => {
                self.ran_open(exec, conn, key, print, (gateway, epoch));
            }
            What::KeepFor { fence, ttl_ms } => self.keep_for(fence, ttl_ms),
            What::GotAnswer { exec, whole } => {
                self.got(exec, if whole { Got::Whole } else { Got::Part });
            }
            What::GotPanic { exec } => self.got(exec, Got::Panic),
            What::GaveUp { exec } => self.got(exec, Got::TimedOut),
            What::SettleAsked { fence, standing, body } => self.settle_asked(fence, standing, body),
            What::SettleHeard { fence, heard } => self.settle_heard(fence, heard),
            What::Answered { conn, class, status, body, retry_after, head } => {
                self.answered(conn, class, (status, body, head), retry_after);
            }
            What::CacheServed { .. } => self.reach(Sometimes::CacheServes),
            What::CacheRefused { .. } => self.reach(Sometimes::CacheStale),

            What::Ran { exec, key, fence, print } => self.ran(exec, key, fence, print),
            What::Effect { exec } => self.effect(exec),
            What::Replied { exec, status, said, large, slow, head } => {
                self.replied(exec, (status, said, large), slow, head);
            }
            What::Panicked { exec } => self.panicked(exec),
            What::Bounced { key, fence } => self.bounced(key, fence),
            What::Burnt { key, fence } => self.burnt.push((key, fence)),

            What::Rows { key, phase, rows } => self.rows_written(key, phase, rows),
            What::Flow(seen) => self.flow_seen(seen),
            What::FlowHeld { .. } => self.reach(Sometimes::FlowHeld),
            What::ChargeSent { charge, key, phase, fence, digest, gateway, epoch } => {
                self.charge_sent(charge, key, phase, fence, digest, (gateway, epoch));
            }
            What::ChargeMade { charge } => self.charge_made(charge),
            What::ChargeDeclined { charge } => self.charge_declined(charge),
            What::ChargeNotSent { key, phase, fence } => self.charge_not_sent(key, phase, fence),
            What::OtherBytesRefused { .. } => self.reach(Sometimes::FlowOtherBytes),
            What::AdvanceRepeated { .. } => self.reach(Sometimes::FlowAdvanceRepeated),
            What::FlowStopped { .. } => self.reach(Sometimes::FlowStopped),
            What::Wrote(wrote) => self.wrote(&wrote),
            What::Reaped { key, now } => self.reaped(key, now),
            What::Deleted { key } => self.deleted(key),
            What::Ruled { done, .. } => {
                if !done {
                    self.reach(Sometimes::VerdictRefused);
                }
            }
            What::Looked { key, fence, found } => self.looked(key, fence, found),
            What::NoticeLost { .. } => self.reach(Sometimes::NoticeLost),
            What::NoticeKept { key, fence, again } => self.notice_kept(key, fence, again),
            What::NoticeDecided { .. } => self.reach(Sometimes::NoticeDecides),
            What::DeadLettered { fence, .. } => {
                self.reach(Sometimes::DeadLetter);
                self.dead_letters.push(fence);
            }
        }
    }

    fn reach(&mut self, what: Sometimes) {
        self.reached.add(what);
    }

    /// Notes a broken invariant. What a fail-over has forgotten is documented, except for the
    /// promises that do not depend on memory.
    fn violate(&mut self, invariant: Invariant, key: Option<u8>) {
        let tainted =
            key.and_then(|key| self.keys.get(usize::from(key))).is_some_and(|key| key.tainted);
        if tainted && invariant.rests_on_memory() {
            self.documented += 1;
        } else {
            self.violations.push(Violation { invariant, key, entry: self.entry });
        }
    }

    fn require(&mut self, holds: bool, invariant: Invariant, key: u8) {
        if !holds {
            self.violate(invariant, Some(key));
        }
    }

    fn live(&self, key: u8) -> Option<Live> {
        self.keys.get(usize::from(key)).and_then(|key| key.live)
    }

    fn generation(&self, number: u16) -> Option<&Generation> {
        self.generations.get(usize::from(number))
    }

    /// The grant of a fence. Fences rise, so the latest is the last.
    fn grant(&self, key: Option<u8>, fence: u32) -> Option<usize> {
        self.grants
            .iter()
            .rposition(|grant| grant.fence == fence && key.is_none_or(|key| key == grant.key))
    }

    fn is_alive(&self, gateway: u8, epoch: u16) -> bool {
        self.gateways
            .get(usize::from(gateway))
            .is_some_and(|gateway| gateway.up && gateway.epoch == epoch)
    }
}
