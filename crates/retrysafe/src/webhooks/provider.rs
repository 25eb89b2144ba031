//! Who sends webhooks, and what do its events mean?

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retrysafe_core::canonical::Pointer;

use super::scheme::{TOLERANCE, WebhookScheme};
use super::secret::WebhookSecret;
use super::verify::WebhookVerifier;
use crate::evidence::DocumentRules;

/// How long an event waits for what it names, unless it is set: longer than any lease.
pub const WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an event is remembered after its end, unless it is set: longer than any provider sends an event again.
pub const KEEP: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Where the secrets are that verify. It is asked for each event, so that a new secret counts at once.
pub type SecretSource = Arc<dyn Fn() -> Result<Vec<WebhookSecret>, String> + Send + Sync>;

/// Somebody who sends webhooks, and what they mean.
///
/// ```
/// use std::sync::Arc;
/// use retrysafe::core::canonical::Pointer;
/// use retrysafe::evidence::{Condition, RuleValue, WantedValue};
/// use retrysafe::webhooks::{NamedBy, NameRule, WebhookProvider, WebhookScheme, WebhookSecret};
///
/// let secret = WebhookSecret::plain("whsec_of_the_endpoint").expect("a secret");
/// let secrets = Arc::new(move || Ok(vec![secret.clone()]));
/// let mut stripe = WebhookProvider::new("stripe", WebhookScheme::Stripe, secrets);
/// let pointer = |text| Pointer::parse(text).expect("a pointer");
/// stripe.names = vec![NameRule { by: NamedBy::Id, pointer: pointer("/data/object/metadata/retrysafe_id") }];
/// let wanted = WantedValue::OneOf(vec![RuleValue::text("charge.succeeded")]);
/// stripe.rules.executed = vec![vec![Condition { pointer: pointer("/type"), wanted }]];
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct WebhookProvider {
    /// Its name, at most 64 bytes.
    pub name: Box<str>,
    /// How its events are verified.
    pub verifier: WebhookVerifier,
    /// Where the secrets are.
    pub secrets: SecretSource,
    /// Where in the body an event's id stands, if no signed header holds it. Without one, the digest of the body is the id.
    pub event_id: Option<Pointer>,
    /// Where in the body it stands when the event happened, in seconds since 1970 or as RFC 3339 has it. A key may be used again once its
    /// record is gone, so an event that does not say when it happened decides about a request only if it repeats the request's
    /// [fence](Self::fence).
    pub happened_at: Option<Pointer>,
    /// By what an event names what it is about. The first that finds something counts.
    pub names: Vec<NameRule>,
    /// Where in the body it stands whose key or request it is, such as a tenant's name. Names that a caller chooses itself find a record
    /// only in that scope, or in the one that all callers share: somebody else may have chosen the same.
    pub scope: Option<Pointer>,
    /// Where in the body the fence stands that went with the request (`Retrysafe-Fence`), if the provider repeats it.
    pub fence: Option<Pointer>,
    /// What its events say.
    pub rules: DocumentRules,
    /// Where in the body it stands what the provider calls an effect. It is kept with the effect.
    pub reference: Option<Pointer>,
    /// The routes of which it may speak, by their labels; all of them unless this is set.
    pub routes: Option<Vec<Box<str>>>,
    /// The calls of flows of which it may speak.
    pub calls: Vec<NamedCall>,
    /// The kinds of effects of which it may speak.
    pub kinds: Vec<Box<str>>,
    /// How long an event waits for what it names.
    pub wait: Duration,
    /// How long an event is remembered after its end.
    pub keep: Duration,
}

/// By what an event names what it is about, and where in its body that stands: a text or a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRule {
    /// What stands there.
    pub by: NamedBy,
    /// Where.
    pub pointer: Pointer,
}

/// What a name in an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The name of a record, as the gateway sends it in `Retrysafe-Id`.
    Id,
    /// The key that the caller sent. It finds unknown requests only.
    Key,
    /// The id of a request, as the gateway sends it in `X-Request-Id`. It finds unknown requests only.
    RequestId,
    /// The key that a call of a flow, or an effect, was sent with.
    DownstreamKey,
    /// The number of an effect.
    Effect,
    /// What the provider calls an effect that was delivered.
    Reference,
}

/// A call of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCall {
    /// The flow's name.
    pub flow: Box<str>,
    /// The name of the phase that makes the call.
    pub phase: Box<str>,
    /// The how-manieth phase of its flow it is, from zero.
    pub place: u16,
}

impl NamedBy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Id, Self::Key, Self::RequestId, Self::DownstreamKey, Self::Effect, Self::Reference];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Key => "key",
            Self::RequestId => "request_id",
            Self::DownstreamKey => "downstream_key",
            Self::Effect => "effect",
            Self::Reference => "reference",
        }
    }
}

impl WebhookProvider {
    /// A provider whose events mean nothing yet.
    pub fn new(name: &str, scheme: WebhookScheme, secrets: SecretSource) -> Self {
        let at = |text: &str| Pointer::parse(text).ok();
        let is_stripe = scheme == WebhookScheme::Stripe;
        // Standard Webhooks recommend `timestamp` for when an event happened.
        let happened_at = match &scheme {
            WebhookScheme::Stripe => at("/created"),
            WebhookScheme::Standard => at("/timestamp"),
            WebhookScheme::Hmac(_) => None,
        };
        Self {
            name: name.into(),
            verifier: WebhookVerifier { scheme, tolerance: TOLERANCE },
            secrets,
            event_id: at("/id").filter(|_| is_stripe),
            happened_at,
            names: Vec::new(),
            scope: None,
            fence: None,
            rules: DocumentRules::default(),
            reference: None,
            routes: None,
            calls: Vec::new(),
            kinds: Vec::new(),
            wait: WAIT,
            keep: KEEP,
        }
    }
}

impl fmt::Debug for WebhookProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookProvider").field("name", &self.name).finish_non_exhaustive()
    }
}
