//! What does a seed expand to?
//!
//! Swarm testing: every seed switches fault kinds on and off and draws its own sizes, so that rare
//! combinations occur and no kind drowns another one. The options are printed with every finding,
//! and a kind can be switched off by name to see whether the finding needs it.

use std::fmt;

use retrysafe_core::policy::{Absence, OnServerError};

use crate::chance::Chance;
use crate::effect_plan::EffectPlan;
use crate::fault::Fault;
use crate::flow_plan::FlowPlan;
use crate::provider_plan::ProviderPlan;

/// How many scopes there are.
pub const SCOPES: u8 = 2;

/// How many key names each scope has: four for the callers, four for a planted fault that makes
/// keys up.
pub const NAMES: u8 = 8;

/// The names that callers use in good faith.
pub const NAMES_USED: u8 = 4;

/// How many gateways there are at the most.
pub const GATEWAYS: u8 = 3;

/// How many histories of a hundred are about flows.
const FLOWS_PERCENT: u64 = 25;

/// How many histories of a hundred are about effects.
const EFFECTS_PERCENT: u64 = 15;

/// How many histories of a hundred that are about neither are about reconciliation over a month.
const PROVIDERS_PERCENT: u64 = 30;

/// Everything that one history is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// What all chance comes from.
    pub seed: u64,
    /// Which kind of store there is.
    pub profile: Profile,
    /// Which fault kinds may occur.
    pub kinds: Kinds,
    /// Whether this history is about owners that sleep until their record is somebody else's: one
    /// key, a short retention, long pauses right after a grant.
    pub sleepers: bool,
    /// How many gateways run.
    pub gateways: u8,
    /// How many scopes ask.
    pub scopes: u8,
    /// How many keys each scope uses.
    pub names: u8,
    /// How many calls are made while faults occur.
    pub calls: u8,
    /// How long an owner may be silent.
    pub lease_ms: u64,
    /// How long one execution may renew its lease.
    pub lease_max_ms: u64,
    /// How long a settled record is kept.
    pub ttl_ms: u64,
    /// How long a duplicate may wait.
    pub wait_max_ms: u64,
    /// Whether a begin goes on when its client has gone. In the product's own layer it does; an
    /// adapter of another framework may lose it.
    pub begins_on: bool,
    /// How long a gateway waits for its upstream.
    pub upstream_timeout_ms: u64,
    /// What a 5xx means.
    pub on_server_error: OnServerError,
    /// Whether an absence proves anything.
    pub absence: Absence,
    /// Whether the upstream can refuse a fence for good.
    pub burns: bool,
    /// Whether the upstream reports its effects by itself.
    pub webhooks: bool,
    /// Whether a person looks after what the reconciler could not decide.
    pub operator: bool,
    /// How often the reconciler asks before it gives up.
    pub lookups_max: u32,
    /// The flow as which requests are executed, where they are.
    pub flow: Option<FlowPlan>,
    /// The effects that are delivered, where the history is about those and not about requests.
    pub effects: Option<EffectPlan>,
    /// How the upstream tells what it did, where the history is about reconciliation over a month.
    pub provider: Option<ProviderPlan>,
    /// The planted fault, in the museum.
    pub fault: Option<Fault>,
}

/// A kind of store, with its weaknesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Durable and shared; its answers may be lost on the way.
    Durable,
    /// The same, behind a cache that may be stale, late or empty.
    Cached,
    /// One process owns it: what was running when it opens is unknown.
    SingleOwner,
    /// Its fail-over may forget the last writes, and the rules of the Redis store follow: nothing new
    /// is granted for a while. What they cannot cover is documented, and counted apart.
    FailOver,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:literal),* $(,)?) => {
        /// A kind of fault that a seed may switch on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($(#[doc = $doc])+ $kind),* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
        }
    };
}

kinds! {
    /// A gateway process dies and comes back with a new epoch.
    Crash "crash",
    /// A gateway process stands still for a while.
    Pause "pause",
    /// A gateway's clocks freeze or jump, even the monotonic one.
    GatewayClock "gateway-clock",
    /// The store's clock jumps forward.
    StoreForward "store-forward",
    /// Somebody turns the store's clock back.
    StoreBack "store-back",
    /// A gateway cannot reach the store for a while.
    CutOff "cut-off",
    /// A request to the store, or its acknowledgement, is lost.
    StoreLost "store-lost",
    /// A request to the store arrives after its sender has given up.
    StoreLate "store-late",
    /// A request to the store arrives twice.
    StoreTwice "store-twice",
    /// The upstream cannot be reached: nothing is sent.
    UpstreamRefuses "upstream-refuses",
    /// A request to the upstream, or its answer, is lost.
    UpstreamLost "upstream-lost",
    /// The upstream receives late, or works for longer than a lease.
    UpstreamSlow "upstream-slow",
    /// The upstream answers with errors, with and without effect.
    UpstreamErrors "upstream-errors",
    /// An answer of the upstream breaks off.
    Truncated "truncated",
    /// An answer is too large to be kept.
    TooLarge "too-large",
    /// The handler panics.
    Panic "panic",
    /// An answer to a client is lost.
    AnswerLost "answer-lost",
    /// A client disconnects.
    Disconnect "disconnect",
    /// A client uses a key for another request.
    OtherRequest "other-request",
    /// An operator ends the retention of a record.
    Expire "expire",
    /// The cache is flushed.
    Flush "flush",
}

/// A set of fault kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Kinds(u32);

impl Kinds {
    /// Whether a kind is in it.
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }

    /// The set with a kind.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | (1 << kind as u32))
    }

    /// The set without a kind.
    #[must_use]
    pub const fn without(self, kind: Kind) -> Self {
        Self(self.0 & !(1 << kind as u32))
    }

    /// What is in it.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(move |kind| self.has(*kind))
    }
}

impl Profile {
    /// The profile in which a fault is looked for: the reference, or the only one where it can show.
    fn showing(fault: Fault) -> Self {
        if matches!(fault, Fault::CacheGrants | Fault::CacheOutlives) {
            Self::Cached
        } else if fault == Fault::NoQuarantine {
            Self::FailOver
        } else {
            Self::Durable
        }
    }

    /// All of them.
    pub const ALL: [Self; 4] = [Self::Durable, Self::Cached, Self::SingleOwner, Self::FailOver];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Cached => "cached",
            Self::SingleOwner => "single-owner",
            Self::FailOver => "fail-over",
        }
    }

    fn draw(chance: &mut Chance) -> Self {
        match chance.below(100) {
            0..50 => Self::Durable,
            50..68 => Self::Cached,
            68..88 => Self::SingleOwner,
            _ => Self::FailOver,
        }
    }
}

impl Options {
    /// The options of a seed. A profile or a planted fault may be prescribed.
    pub fn of(seed: u64, profile: Option<Profile>, fault: Option<Fault>) -> Self {
        let mut chance = Chance::of(seed, 1);
        let drawn = Profile::draw(&mut chance);
        let profile = profile.or(fault.map(Profile::showing)).unwrap_or(drawn);
        // One history in sixteen is quiet: the rules must also hold when nothing goes wrong.
        let quiet = chance.below(16) == 0;
        let mask =
            if quiet { 0 } else { chance.next() as u32 | chance.next() as u32 & 0x5555_5555 };
        let mut kinds = Kinds(mask & ((1 << Kind::ALL.len()) - 1));
        let lease_ms = chance.scaled(1_000, 30_000);
        let absence = if chance.percent(30) { Absence::Proof } else { Absence::Inconclusive };
        if absence == Absence::Proof {
            // An absence is proof only after a settle time, and a settle time is measured. This
            // is the one place where a gateway's monotonic clock is trusted.
            kinds = kinds.without(Kind::GatewayClock);
        }
        let sleepers = !quiet && chance.percent(12);
        if sleepers {
            for kind in [Kind::Pause, Kind::OtherRequest, Kind::UpstreamLost] {
                kinds = kinds.with(kind);
            }
        }
        if profile == Profile::FailOver {
            // Servers take turns, and how long the new one grants nothing is measured on its clock.
            // That one is behind the former's at times; nobody turns it while it is waited for.
            kinds = kinds.without(Kind::StoreForward).without(Kind::StoreBack);
        }
        if profile == Profile::Cached {
            // A cached answer cannot hear of an early end of its retention.
            kinds = kinds.without(Kind::Expire);
        }
        let options = Self {
            seed,
            profile,
            kinds,
            sleepers,
            gateways: match profile {
                Profile::SingleOwner => 1,
                Profile::Durable | Profile::Cached | Profile::FailOver => {
                    chance.between(2, u64::from(GATEWAYS)) as u8
                }
            },
            scopes: if sleepers { 1 } else { chance.between(1, u64::from(SCOPES)) as u8 },
            // Most histories are about few keys: what is rare needs many calls for the same one.
            names: if sleepers { 1 } else { chance.pick(1, &[1, 2, 3]) },
            calls: chance.between(if sleepers { 8 } else { 4 }, 12) as u8,
            lease_ms,
            lease_max_ms: lease_ms * chance.between(1, 4),
            ttl_ms: lease_ms * chance.scaled(2, if sleepers { 4 } else { 2_000 }),
            wait_max_ms: if chance.percent(40) { chance.scaled(100, 2 * lease_ms) } else { 0 },
            begins_on: chance.percent(50),
            upstream_timeout_ms: chance.between(lease_ms / 2, lease_ms * 5 / 2),
            on_server_error: chance
                .pick(OnServerError::Release, &[OnServerError::Store, OnServerError::Unknown]),
            absence,
            burns: chance.percent(50),
            webhooks: chance.percent(40),
            operator: chance.percent(60),
            lookups_max: chance.between(1, 3) as u32,
            flow: None,
            effects: None,
            provider: None,
            fault,
        };
        options.with_flow().with_effects().with_provider()
    }

    /// Draws whether this history is about flows, and about which one. Never over a store that forgets
    /// what it has acknowledged: flows are not for it.
    fn with_flow(mut self) -> Self {
        let mut chance = Chance::of(self.seed, 3);
        let drawn = chance.percent(FLOWS_PERCENT);
        let wanted = self.fault.map_or(drawn, Fault::is_about_flows);
        if wanted && self.profile != Profile::FailOver {
            self.flow = Some(FlowPlan::draw(&mut chance, self.lease_ms, self.lease_max_ms));
            // The check before the wire counts on a clock that runs on.
            self.kinds = self.kinds.without(Kind::GatewayClock);
        }
        self
    }

    /// Draws whether this history is about effects, and about which.
    fn with_effects(mut self) -> Self {
        let mut chance = Chance::of(self.seed, 4);
        let drawn = chance.percent(EFFECTS_PERCENT);
        if self.fault.map_or(drawn, Fault::is_about_effects) {
            self.flow = None;
            self.effects = Some(EffectPlan::draw(&mut chance, self.lease_ms));
        }
        self
    }

    /// Draws whether this history is about reconciliation over a month. Never over a store that forgets what it has
    /// acknowledged: events are kept in PostgreSQL, or nowhere.
    fn with_provider(mut self) -> Self {
        let mut chance = Chance::of(self.seed, 5);
        let drawn = chance.percent(PROVIDERS_PERCENT);
        let wanted = self.fault.map_or(drawn, Fault::is_about_provider);
        let is_of_requests = self.flow.is_none() && self.effects.is_none();
        if wanted && is_of_requests && self.profile != Profile::FailOver {
            let plan = ProviderPlan::draw(&mut chance, self.lease_ms, self.absence);
            if !plan.has_lookups {
                // Whom nobody can ask shows no absence.
                self.absence = Absence::Inconclusive;
            }
            // The plan's reports take the place of the simple ones.
            self.webhooks = false;
            (self.ttl_ms, self.lookups_max) = (plan.ttl_ms, plan.lookups_max);
            self.provider = Some(plan);
        }
        self
    }

    /// By how much a lookup may be behind what was done, where an absence is proof.
    fn lag_max_ms(&self) -> u64 {
        let plan = self.provider.filter(|_| self.absence == Absence::Proof);
        plan.map_or(0, |plan| plan.lag_max_ms)
    }

    /// How far the clocks of two servers that take turns may be apart.
    pub fn clock_apart_max_ms(&self) -> u64 {
        self.lease_ms / 2
    }

    /// How long after a fail-over nothing new may be granted, by the recorder's clock.
    pub fn quarantine_ms(&self) -> u64 {
        self.lease_max_ms
    }

    /// How long the new server holds its grants, by its own clock.
    pub fn hold_ms(&self) -> u64 {
        self.quarantine_ms() + 2 * self.clock_apart_max_ms()
    }

    /// The longest that a request may be under way to the upstream.
    pub fn upstream_way_max_ms(&self) -> u64 {
        2 * self.lease_ms
    }

    /// The longest that the upstream works before its effect.
    pub fn upstream_work_max_ms(&self) -> u64 {
        2 * self.lease_ms
    }

    /// How long after a record became unknown nothing of it can still arrive: its owner believes
    /// in its lease, its request is under way, the upstream works, a lookup is behind, and a second for
    /// good measure.
    pub fn settle_ms(&self) -> u64 {
        self.settle_without_lag_ms() + self.lag_max_ms()
    }

    /// The same for a provider whose lookups are never behind.
    pub fn settle_without_lag_ms(&self) -> u64 {
        self.lease_ms + self.upstream_way_max_ms() + self.upstream_work_max_ms() + 1_000
    }

    /// How long after everything has healed each record must have been decided.
    pub fn liveness_ms(&self) -> u64 {
        24 * self.lease_ms + self.settle_ms() + 60_000
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.effects {
            Some(effects) => effects.fmt(f)?,
            None => self.write_requests(f)?,
        }
        if let Some(fault) = self.fault {
            write!(f, " planted={}", fault.name())?;
        }
        f.write_str(" faults=")?;
        for (at, kind) in self.kinds.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { "," }, kind.name())?;
        }
        Ok(())
    }
}

impl Options {
    fn write_requests(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "profile={} sleepers={} gateways={} scopes={} names={} calls={} lease={}ms lease_max={}ms ttl={}ms \
             wait_max={}ms begins_on={} upstream_timeout={}ms on_server_error={:?} absence={:?} burns={} \
             webhooks={} operator={} lookups_max={}",
            self.profile.name(),
            self.sleepers,
            self.gateways,
            self.scopes,
            self.names,
            self.calls,
            self.lease_ms,
            self.lease_max_ms,
            self.ttl_ms,
            self.wait_max_ms,
            self.begins_on,
            self.upstream_timeout_ms,
            self.on_server_error,
            self.absence,
            self.burns,
            self.webhooks,
            self.operator,
            self.lookups_max,
        )?;
        if let Some(provider) = self.provider {
            write!(f, " {provider}")?;
        }
        match self.flow {
            Some(flow) => write!(f, " {flow}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_reach_every_profile_and_switch_every_kind_on_and_off() {
        let all: Vec<_> = (0..2_000).map(|seed| Options::of(seed, None, None)).collect();
        for profile in Profile::ALL {
            assert!(all.iter().any(|options| options.profile == profile), "{profile:?}");
        }
        for kind in Kind::ALL {
            let on = all.iter().filter(|options| options.kinds.has(*kind)).count();
            assert!(on > 500 && on < 1_700, "{}: {on}", kind.name());
        }
        assert!(all.iter().any(|options| options.kinds == Kinds::default()));
    }

    #[test]
    fn a_kind_can_be_taken_out() {
        let kinds = Kinds::default().with(Kind::Crash).with(Kind::Pause);
        assert!(kinds.has(Kind::Crash) && !kinds.has(Kind::Panic));
        assert!(kinds.without(Kind::Crash).iter().eq([Kind::Pause]));
    }
}
