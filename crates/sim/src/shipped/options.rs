//! What does a seed expand to, where shipped code runs?
//!
//! As in the fast simulator, every seed switches fault kinds on and off and draws its own sizes. The
//! lengths are shorter here: upkeep runs at its real pace, and each of its rounds costs time.

use std::fmt;

use retrysafe_core::execution::SETTLE_MAX;
use retrysafe_core::policy::{Absence, OnServerError};

use crate::chance::Chance;
use crate::checker::Rules;
use crate::effect_plan::EffectPlan;
use crate::options::{GATEWAYS, Profile, SCOPES};

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
    /// A process dies and is started anew.
    Crash "crash",
    /// Nothing enters or leaves a process for a while.
    Pause "pause",
    /// A process is told to stop, drains, and is started anew.
    Drain "drain",
    /// The rules of a process are replaced while requests run.
    Reload "reload",
    /// A process cannot reach the store for a while.
    CutOff "cut-off",
    /// The store's clock jumps forward.
    StoreForward "store-forward",
    /// Somebody turns the store's clock back.
    StoreBack "store-back",
    /// A request to the store, or its acknowledgement, is lost.
    StoreLost "store-lost",
    /// The store answers with an error, of every kind, having written or not.
    StoreErrors "store-errors",
    /// The store takes long, also for longer than anybody waits.
    StoreSlow "store-slow",
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
    /// An answer is too large to be kept, or comes in slow pieces.
    LongAnswer "long-answer",
    /// The handler panics, or returns an error of its own.
    Panic "panic",
    /// The handler uses up its task's budget again and again.
    Busy "busy",
    /// The handler asks for another retention.
    HandlerTtl "handler-ttl",
    /// A request or an answer between client and gateway is lost.
    ClientLost "client-lost",
    /// A request reaches the gateways twice.
    RequestTwice "request-twice",
    /// A client disconnects.
    Disconnect "disconnect",
    /// A client process dies; what stands in its journal is resumed.
    ClientCrash "client-crash",
    /// A client uses a key for another request.
    OtherRequest "other-request",
    /// An operator ends the retention of a record.
    Expire "expire",
    /// A reconciler panics, hangs or learns nothing.
    BadLookup "bad-lookup",
}

/// A set of fault kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Kinds(u32);

impl Kinds {
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }

    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | (1 << kind as u32))
    }

    #[must_use]
    pub const fn without(self, kind: Kind) -> Self {
        Self(self.0 & !(1 << kind as u32))
    }

    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(move |kind| self.has(*kind))
    }
}

/// The set above has room for thirty-two.
const _: () = assert!(Kind::ALL.len() <= 32);

/// Everything that one history is made of.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub kinds: Kinds,
    pub gateways: u8,
    pub scopes: u8,
    pub names: u8,
    pub calls: u8,
    pub lease_ms: u64,
    pub lease_max_ms: u64,
    pub ttl_ms: u64,
    pub wait_max_ms: u64,
    pub store_timeout_ms: u64,
    /// How long a settle is tried while its caller waits.
    pub settle_max_ms: u64,
    pub upstream_timeout_ms: u64,
    pub on_server_error: OnServerError,
    pub absence: Absence,
    /// Whether the route runs what the store refuses to begin.
    pub fails_open: bool,
    /// Whether the upstream can refuse a fence for good.
    pub burns: bool,
    /// Whether a person looks after what the reconcilers could not decide.
    pub operator: bool,
    /// How many reconcilers each process runs.
    pub reconcilers: u8,
    /// How often a record is asked about before it is left to a person.
    pub lookups_max: u32,
    /// Whether the clients keep a journal.
    pub journal: bool,
    /// Whether the processes are gateways, in front of an upstream.
    pub is_gateway: bool,
    /// Whether the upstream reports by itself what it has done.
    pub reports: bool,
    /// The effects that are delivered, where the processes are workers and nobody makes requests.
    pub effects: Option<EffectPlan>,
}

/// How many histories of a hundred have an upstream that reports by itself. Drawn apart, so that former seeds draw what they drew.
const REPORTS_PERCENT: u64 = 40;

/// How many histories of a hundred are about effects.
const EFFECTS_PERCENT: u64 = 15;

impl Options {
    /// The options of a seed.
    pub fn of(seed: u64, without: Kinds) -> Self {
        let mut chance = Chance::of(seed, 1);
        // One history in sixteen is quiet: the rules must also hold when nothing goes wrong.
        let quiet = chance.below(16) == 0;
        let mask = if quiet { 0 } else { chance.next() as u32 & chance.next() as u32 };
        let mut kinds = Kinds(mask & ((1 << Kind::ALL.len()) - 1));
        for kind in without.iter() {
            kinds = kinds.without(kind);
        }
        if kinds.has(Kind::ClientCrash) {
            // A handler that never waits moves time by itself, also while a journal is written.
            kinds = kinds.without(Kind::Busy);
        }
        let lease_ms = chance.scaled(1_000, 8_000);
        let drawn = Self {
            seed,
            kinds,
            gateways: chance.between(2, u64::from(GATEWAYS)) as u8,
            scopes: chance.between(1, u64::from(SCOPES)) as u8,
            names: chance.pick(1, &[1, 1, 2]),
            calls: chance.between(3, 8) as u8,
            lease_ms,
            lease_max_ms: lease_ms * chance.between(1, 4),
            ttl_ms: lease_ms * chance.scaled(2, 24),
            wait_max_ms: if chance.percent(40) { chance.scaled(100, 2 * lease_ms) } else { 0 },
            store_timeout_ms: chance.scaled(200, 2 * lease_ms),
            settle_max_ms: chance.scaled(200, 2 * lease_ms),
            upstream_timeout_ms: chance.between(lease_ms / 2, lease_ms * 5 / 2),
            on_server_error: chance
                .pick(OnServerError::Release, &[OnServerError::Store, OnServerError::Unknown]),
            absence: if chance.percent(30) { Absence::Proof } else { Absence::Inconclusive },
            fails_open: chance.percent(25),
            burns: chance.percent(50),
            operator: chance.percent(60),
            reconcilers: chance.between(1, 2) as u8,
            lookups_max: chance.between(1, 3) as u32,
            journal: kinds.has(Kind::ClientCrash),
            is_gateway: chance.percent(25) && cfg!(feature = "gateway"),
            reports: Chance::of(seed, 5).percent(REPORTS_PERCENT),
            effects: None,
        }
        .with_effects();
        if drawn.is_gateway { drawn.of_gateway() } else { drawn }
    }

    /// Draws whether this history is about effects, and about which.
    fn with_effects(self) -> Self {
        let mut chance = Chance::of(self.seed, 4);
        if chance.percent(EFFECTS_PERCENT) {
            let effects = Some(EffectPlan::draw_shipped(&mut chance));
            Self { effects, is_gateway: false, ..self }
        } else {
            self
        }
    }

    /// A gateway has no handler that could panic, compute or ask for anything, and some settings are its own.
    fn of_gateway(self) -> Self {
        let kinds = [Kind::Panic, Kind::Busy, Kind::HandlerTtl];
        let kinds = kinds.into_iter().fold(self.kinds, Kinds::without);
        Self { kinds, settle_max_ms: SETTLE_MAX.as_millis() as u64, ..self }
    }

    /// The longest that a request may be under way to the upstream.
    pub fn upstream_way_max_ms(&self) -> u64 {
        2 * self.lease_ms
    }

    /// The longest that the upstream works before its effect.
    pub fn upstream_work_max_ms(&self) -> u64 {
        2 * self.lease_ms
    }

    /// How long after a record became unknown nothing of it can still arrive.
    pub fn settle_ms(&self) -> u64 {
        self.lease_ms + self.upstream_way_max_ms() + self.upstream_work_max_ms() + 1_000
    }

    /// How long after everything has healed each record must have been decided.
    pub fn liveness_ms(&self) -> u64 {
        24 * self.lease_ms + self.lease_max_ms + self.settle_ms() + 60_000
    }

    /// What the checker judges by.
    pub fn rules(&self) -> Rules {
        Rules {
            profile: Profile::Durable,
            on_server_error: self.on_server_error,
            absence: self.absence,
            settle_ms: self.settle_ms(),
            lease_ms: self.lease_ms,
            ttl_ms: self.ttl_ms,
            operator: self.operator,
            fails_open: self.fails_open,
            lease_max_ms: self.lease_max_ms,
            settles_for_ms: self.lease_max_ms.max(self.settle_max_ms),
            quarantine_ms: 0,
            by_gateways: self.is_gateway,
            flow: None,
            effects: self.effects,
        }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.effects {
            Some(effects) => write!(f, "seed={} {effects} faults=", self.seed)?,
            None => self.write_requests(f)?,
        }
        for (at, kind) in self.kinds.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { "," }, kind.name())?;
        }
        Ok(())
    }
}

impl Options {
    fn write_requests(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        write!(
            f,
            "seed={seed} gateways={} scopes={} names={} calls={} lease={}ms lease_max={}ms ttl={}ms \
             wait_max={}ms store_timeout={}ms settle_max={}ms upstream_timeout={}ms on_server_error={:?} \
             absence={:?} fails_open={} burns={} operator={} reconcilers={} lookups_max={} journal={} gateway={} reports={} faults=",
            self.gateways,
            self.scopes,
            self.names,
            self.calls,
            self.lease_ms,
            self.lease_max_ms,
            self.ttl_ms,
            self.wait_max_ms,
            self.store_timeout_ms,
            self.settle_max_ms,
            self.upstream_timeout_ms,
            self.on_server_error,
            self.absence,
            self.fails_open,
            self.burns,
            self.operator,
            self.reconcilers,
            self.lookups_max,
            self.journal,
            self.is_gateway,
            self.reports,
        )
    }
}
