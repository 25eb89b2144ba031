//! What became of a request that nobody knows about?
//!
//! A [`Reconciler`] asks whoever could know: the provider, a ledger, the application's own tables.
//! It is asked on a [`Schedule`], counted from the moment at which the record became unknown. What
//! it finds decides the record once, and raises its fence, so that the former owner loses. "Not
//! found" proves nothing by itself; see [`Proof::absence`](retrysafe_core::machine::Proof::absence). When the schedule is used up,
//! the record stays unknown and is dead-lettered: a person must decide.
//!
//! Two clocks. When to ask goes by the store's clock: a leap of it costs a lookup. How long an
//! absence has lasted goes by this process's monotonic clock, from its own first sight of the
//! record: a leap there would turn "not yet" into "never", and execute twice.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::machine::Proof;
use retrysafe_core::policy::Absence;
use retrysafe_core::record::{Answer, Record};

/// Finds out what became of an unknown request.
///
/// ```
/// use retrysafe::core::record::{Answer, Record};
/// use retrysafe::upkeep::{Lookup, Reconciler};
///
/// struct AskProvider;
///
/// impl Reconciler for AskProvider {
///     async fn lookup(&self, unknown: &Record) -> Lookup {
///         // Ask by the key that the downstream call was made with.
///         match ask(&format!("{}-charge", unknown.id)).await {
///             Some(true) => Lookup::Executed(Answer::NotKept { status: None, location: None }),
///             Some(false) => Lookup::NotFound,
///             None => Lookup::Inconclusive("the provider does not answer".into()),
///         }
///     }
/// }
/// # async fn ask(_: &str) -> Option<bool> { None }
/// ```
///
/// A record may be a [flow](retrysafe_core::flow) that was making a call. Then ask with the call's own key
/// ([`downstream_key`](retrysafe_core::flow::downstream_key)), and answer [`Lookup::CallExecuted`] or [`Lookup::NotExecuted`]: the flow
/// goes on after the call, or before it.
pub trait Reconciler: Send + Sync + 'static {
    /// Asks whoever could know. A lookup that panics or takes too long is [`Lookup::Inconclusive`].
    fn lookup(&self, unknown: &Record) -> impl Future<Output = Lookup> + Send;

    /// The same, with what was answered, for an operator who decides by hand.
    fn look_up_closely(&self, unknown: &Record) -> impl Future<Output = LookupAnswer> + Send {
        async { self.lookup(unknown).await.into() }
    }

    /// Whether this reconciler can be asked about a record. Others are left to other reconcilers; a panic leaves it to them, too.
    fn concerns(&self, unknown: &Record) -> bool {
        let _ = unknown;
        true
    }

    /// Who is asked about a record, by a name of your own, where this reconciler asks several. One that is [asked too
    /// often](Lookup::AskedTooOften) is left alone for a while, and the others are not. A panic names the one that has no name.
    fn provider(&self, unknown: &Record) -> Box<str> {
        let _ = unknown;
        Box::default()
    }

    /// Whether [`Lookup::NotFound`] proves, after the settle time, that this request was not
    /// executed. It does not, unless you say so; a panic does not say so either.
    fn absence(&self, unknown: &Record) -> Absence {
        let _ = unknown;
        Absence::default()
    }
}

/// What a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It was executed: the answer itself where it can be told, else the mere fact.
    Executed(Answer),
    /// The call that a flow was making was executed, and this is its result, as the phase would have left it.
    CallExecuted(Bytes),
    /// It was not executed, and cannot be any more.
    NotExecuted(Proof),
    /// Nobody has heard of it. It may still be on its way.
    NotFound,
    /// It is under way.
    Pending,
    /// Whoever was asked is asked too often, and wants to be asked again after so long, if it says so. That uses up no lookup of the
    /// schedule, a few times; the same [provider](Reconciler::provider) is asked nothing else meanwhile.
    AskedTooOften(Option<Duration>),
    /// Nothing was learned, for this reason: a status, a failed connection.
    Inconclusive(Box<str>),
}

/// What a lookup found, and what it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupAnswer {
    /// What it found.
    pub found: Lookup,
    /// The beginning of what was answered, as text. No secrets: it is kept on the record's timeline, and shown to operators.
    pub excerpt: Option<Box<str>>,
}

impl From<Lookup> for LookupAnswer {
    fn from(found: Lookup) -> Self {
        Self { found, excerpt: None }
    }
}
