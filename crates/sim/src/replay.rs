//! What happened in this one?
//!
//! Runs one seed again and shows the events of the offending key, up to the first breach. To explain a failure, fault kinds
//! are switched off one after the other while the same promise is still broken: what remains is
//! what it takes.

use std::fmt;
use std::io::{self, Write};

use crate::checker::{Checker, Rules, Violation};
use crate::fault::Fault;
use crate::history::{Entry, FlowSeen, What, Wrote};
use crate::invariant::Invariant;
use crate::options::{Kinds, Options, Profile};
use crate::runner::Runner;
use crate::world::Executor;

/// The most events that are shown unasked: a screen or two.
const SHOWN_MAX: usize = 120;

/// One history: a seed and what was prescribed beside it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub seed: u64,
    pub profile: Option<Profile>,
    pub fault: Option<Fault>,
    pub without: Kinds,
}

impl Case {
    pub fn options(&self) -> Options {
        let mut options = Options::of(self.seed, self.profile, self.fault);
        for kind in self.without.iter() {
            options.kinds = options.kinds.without(kind);
        }
        options
    }

    /// The same promise broken with as few fault kinds as possible.
    fn shrunk(mut self, invariant: Invariant) -> Self {
        let mut runner = Runner::new();
        let mut breaks = |case: &Self| {
            let (violations, _) = runner.run(&case.options());
            violations.iter().any(|violation| violation.invariant == invariant)
        };
        // Two rounds: a kind may become dispensable once another one is gone.
        for _ in 0..2 {
            for kind in self.options().kinds.iter() {
                let smaller = Self { without: self.without.with(kind), ..self };
                if breaks(&smaller) {
                    self = smaller;
                }
            }
        }
        self
    }
}

/// The command that shows it again.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cargo run --release -p sim -- replay --seed {}", self.seed)?;
        if let Some(profile) = self.profile {
            write!(f, " --profile {}", profile.name())?;
        }
        if let Some(fault) = self.fault {
            write!(f, " --plant {}", fault.name())?;
        }
        for (at, kind) in self.without.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { " --without " } else { "," }, kind.name())?;
        }
        Ok(())
    }
}

/// Explains a failure: how to see it again, and its shortest history.
pub fn explain(case: Case, invariant: Invariant, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nseed {} breaks {invariant}\n  {case}", case.seed)?;
    let shrunk = case.shrunk(invariant);
    if shrunk.without != case.without {
        writeln!(out, "with fewer faults:\n  {shrunk}")?;
    }
    show(shrunk, false, out)?;
    Ok(())
}

/// Runs a case and shows it. True if nothing was broken.
pub fn show(case: Case, all: bool, out: &mut dyn Write) -> io::Result<bool> {
    let options = case.options();
    let (log, _) = Executor::new().run(&options, |log| log.to_vec());
    writeln!(out, "{options}")?;
    show_log(Rules::of(&options), &log, all, out)
}

/// Judges a history and shows it: the events of the offending key up to the breach, or all. True if
/// nothing was broken.
pub fn show_log(rules: Rules, log: &[Entry], all: bool, out: &mut dyn Write) -> io::Result<bool> {
    let mut checker = Checker::new();
    let violations = checker.judge(rules, log).violations.to_vec();
    let key = violations.first().and_then(|violation| violation.key);
    let last = violations.first().map_or(usize::MAX, |violation| violation.entry);
    let keys = keys_of(log);
    let told: Vec<_> = (log.iter().zip(&keys).enumerate())
        .filter(|(number, (_, owner))| {
            let of_key = key.is_none() || owner.is_none() || **owner == key;
            all || of_key && *number <= last
        })
        .collect();
    let skipped = if all { 0 } else { told.len().saturating_sub(SHOWN_MAX) };
    if skipped > 0 {
        writeln!(out, "  ... {skipped} earlier events; --all shows them")?;
    }
    for (number, (entry, _)) in told.into_iter().skip(skipped) {
        writeln!(out, "{entry}")?;
        for violation in violations.iter().filter(|violation| violation.entry == number) {
            writeln!(out, "    ^^^ breaks {}", Named(violation))?;
        }
    }
    Ok(violations.is_empty())
}

struct Named<'a>(&'a Violation);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.invariant)?;
        match self.0.key {
            Some(key) => write!(f, " of key {key}"),
            None => Ok(()),
        }
    }
}

/// To which key each entry belongs, if to one.
fn keys_of(log: &[Entry]) -> Vec<Option<u8>> {
    let mut conns = vec![];
    let mut execs = vec![];
    let mut calls = vec![];
    let mut fences = vec![];
    let mut charges = vec![];
    let find = |table: &[(u32, u8)], number: u32| {
        table.iter().rfind(|(known, _)| *known == number).map(|(_, key)| *key)
    };
    log.iter()
        .map(|entry| match entry.what {
            What::Called { call, key, .. } => {
                calls.push((u32::from(call), key));
                Some(key)
            }
            What::Invoked { conn, key, .. } => {
                conns.push((u32::from(conn), key));
                Some(key)
            }
            What::Sent { key, fence, .. } => {
                fences.push((fence, key));
                Some(key)
            }
            What::Ran { exec, key, .. } => {
                execs.push((u32::from(exec), key));
                Some(key)
            }
            What::Wrote(Wrote { key, fence, .. }) => {
                fences.push((fence, key));
                Some(key)
            }
            What::Forgotten { key }
            | What::CacheServed { key, .. }
            | What::CacheRefused { key }
            | What::Bounced { key, .. }
            | What::Burnt { key, .. }
            | What::Reaped { key, .. }
            | What::Deleted { key }
            | What::Ruled { key, .. }
            | What::Rows { key, .. }
            | What::Flow(FlowSeen { key, .. })
            | What::FlowHeld { key, .. }
            | What::ChargeNotSent { key, .. }
            | What::OtherBytesRefused { key, .. }
            | What::AdvanceRepeated { key, .. }
            | What::FlowStopped { key, .. }
            | What::Looked { key, .. }
            | What::NoticeKept { key, .. }
            | What::NoticeDecided { key, .. }
            | What::DeadLettered { key, .. } => Some(key),
            What::Outbox(event) => event.effect(),
            What::ChargeSent { charge, key, .. } => {
                charges.push((u32::from(charge), key));
                Some(key)
            }
            What::ChargeMade { charge } | What::ChargeDeclined { charge } => {
                find(&charges, u32::from(charge))
            }
            What::RanOpen { exec, key, .. } => {
                execs.push((u32::from(exec), key));
                Some(key)
            }
            What::NotConnected { call }
            | What::CallResumed { call }
            | What::Heard { call, .. }
            | What::NotHeard { call, .. }
            | What::CallEnded { call, .. } => find(&calls, u32::from(call)),
            What::Disconnected { conn }
            | What::Begun { conn, .. }
            | What::BeginFailed { conn, .. }
            | What::Answered { conn, .. } => find(&conns, u32::from(conn)),
            What::Unsent { fence, .. }
            | What::KeepFor { fence, .. }
            | What::SettleAsked { fence, .. }
            | What::SettleHeard { fence, .. } => find(&fences, fence),
            What::GotAnswer { exec, .. }
            | What::GotPanic { exec }
            | What::GaveUp { exec }
            | What::Effect { exec }
            | What::Replied { exec, .. }
            | What::NoticeLost { exec }
            | What::Panicked { exec } => find(&execs, u32::from(exec)),
            What::Booted { .. }
            | What::Crashed { .. }
            | What::Paused { .. }
            | What::Resumed { .. }
            | What::Strayed { .. }
            | What::CutOff { .. }
            | What::Reloaded { .. }
            | What::Drains { .. }
            | What::Drained { .. }
            | What::Jumped { .. }
            | What::Flushed
            | What::FailedOver
            | What::Healed
            | What::Ended => None,
        })
        .collect()
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10} ms  ", self.at)?;
        if let What::Outbox(event) = &self.what {
            return write!(f, "{event:?}");
        }
        let What::Wrote(wrote) = &self.what else { return write!(f, "{:?}", self.what) };
        let Wrote { key, by, act, standing, version, fence, .. } = wrote;
        write!(f, "Wrote {{ key: {key}, {act:?} -> {standing:?}, version: {version}, ")?;
        write!(f, "fence: {fence}, by: {:?} on gateway {}", by.role, by.gateway)?;
        write!(f, ", clock: {}, until: {} }}", wrote.now, wrote.until)
    }
}
