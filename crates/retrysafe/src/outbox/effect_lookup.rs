//! Who can be asked about an unknown effect, and what may be the answer?

use std::future::Future;
use std::time::Duration;

use retrysafe_core::policy::Absence;
use retrysafe_core::time::Time;

/// Finds out what became of an effect that is unknown.
///
/// ```
/// use retrysafe::outbox::{EffectLookup, EffectLookupAnswer, EffectReconciler, UnknownEffect};
///
/// struct AskMailer;
///
/// impl EffectReconciler for AskMailer {
///     async fn look_up(&self, unknown: &UnknownEffect) -> EffectLookupAnswer {
///         let found = match ask(&unknown.key).await {
///             Some(Some(id)) => EffectLookup::Delivered(Some(id)),
///             Some(None) => EffectLookup::NotFound,
///             None => EffectLookup::Inconclusive("the mailer does not answer".into()),
///         };
///         found.into()
///     }
/// }
/// # async fn ask(_: &str) -> Option<Option<String>> { None }
/// ```
pub trait EffectReconciler: Send + Sync + 'static {
    /// Asks whoever could know. A lookup that panics or takes too long is [`EffectLookup::Inconclusive`].
    fn look_up(&self, unknown: &UnknownEffect) -> impl Future<Output = EffectLookupAnswer> + Send;

    /// Whether [`EffectLookup::NotFound`] proves, after the settle time, that the effect was not done. It does not, unless you say so.
    fn absence(&self, unknown: &UnknownEffect) -> Absence {
        let _ = unknown;
        Absence::default()
    }
}

/// An effect that is unknown, as far as whoever asks about it needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownEffect {
    /// Its number.
    pub id: i64,
    /// The delivery that is in doubt.
    pub fence: i64,
    /// Its kind.
    pub kind: Box<str>,
    /// The key that its receiver was sent.
    pub key: Box<str>,
    /// Where it goes.
    pub destination: Option<Box<str>>,
    /// The application's own name for it.
    pub name: Option<Box<str>>,
    /// When it was staged.
    pub staged_at: Time,
    /// Since when it is unknown.
    pub since: Time,
    /// How often this delivery was asked about.
    pub lookups: u32,
    /// When it was asked about last.
    pub looked_up_at: Option<Time>,
    /// To whom it may have been sent, where its worker has said that: see
    /// [`Receiver::identity`](super::Receiver::identity).
    pub(super) sent_to: Option<i64>,
}

/// What a lookup of an effect found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectLookup {
    /// It was done; perhaps its receiver has a name for it.
    Delivered(Option<String>),
    /// Its receiver has declined it for good: it was not done, and is not sent again.
    Declined,
    /// It was not done and cannot be any more. It is sent again.
    NoEffect,
    /// Its receiver does not know it. It may still be on its way.
    NotFound,
    /// It is under way.
    Pending,
    /// Whoever was asked is asked too often, and wants to be asked again after so long, if it says so. That uses up no lookup of the
    /// schedule, a few times.
    AskedTooOften(Option<Duration>),
    /// Nothing was learned, for this reason.
    Inconclusive(Box<str>),
}

/// What a lookup of an effect found, and what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectLookupAnswer {
    /// What it found.
    pub found: EffectLookup,
    /// The beginning of what was answered, as text. No secrets: operators see it.
    pub excerpt: Option<Box<str>>,
}

impl From<EffectLookup> for EffectLookupAnswer {
    fn from(found: EffectLookup) -> Self {
        Self { found, excerpt: None }
    }
}
