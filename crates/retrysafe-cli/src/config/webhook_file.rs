//! What does the file say about a provider's webhooks? (`[webhooks.NAME]`)

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::length::Length;
use super::outcomes_file::OutcomesFile;

/// A provider's webhooks, and what they mean.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebhookFile {
    /// Where the provider sends its events to, such as `/webhooks/stripe`. The upstream never sees that path.
    pub path: String,
    /// How the provider signs: `stripe`, `standard` (Standard Webhooks) or `hmac`.
    pub scheme: Option<SchemeFile>,
    /// Files that hold a secret each. Two while a secret is exchanged for another one: either verifies.
    pub secret_files: Vec<String>,
    /// How far the time of an event may be from ours; 5 minutes unless it is set.
    pub tolerance: Option<Length>,
    /// With `hmac`: the header that holds the signature, such as `X-Signature`.
    pub signature_header: Option<String>,
    /// With `hmac`: what stands before the signature in its header, such as `sha256=`.
    pub prefix: Option<String>,
    /// With `hmac`: how the signature is written; `hex` unless it is set.
    pub encoding: Option<EncodingFile>,
    /// With `hmac`: the header that holds the time in seconds since 1970. It must be signed.
    pub timestamp_header: Option<String>,
    /// With `hmac`: what is signed, such as `v0:{timestamp}:{body}`; `{timestamp}.{body}` or `{body}` unless it is set.
    pub signed: Option<String>,
    /// Where an event's id stands: a JSON pointer into its body, or `header:NAME`, where the header is signed. The digest of the body
    /// unless the scheme or this says otherwise.
    pub event_id: Option<String>,
    /// Where in the body it stands when the event happened, as a JSON pointer: seconds since 1970, or RFC 3339. The time of a
    /// signature does not stand in: it is that of a delivery.
    pub created: Option<String>,
    /// By what an event names what it is about, such as `[{ by = "id", at = "/metadata/retrysafe_id" }]`. The first that finds
    /// something counts.
    #[serde(rename = "match")]
    pub matches: Vec<MatchFile>,
    /// Where in the body it stands whose key or request it is, such as a tenant's name, as the `scope` of its route has it. `key` and
    /// `request_id` find a request of that scope, or of the scope that all callers share.
    pub scope: Option<String>,
    /// Where in the body the `Retrysafe-Fence` of the request stands, if the provider repeats it.
    pub fence: Option<String>,
    /// Where in the body it stands what the provider calls an effect. It is kept with the effect.
    pub reference: Option<String>,
    /// Routes of which the provider may speak, by their paths; all of them unless it is set.
    pub routes: Option<Vec<String>>,
    /// Kinds of effects of which the provider may speak; none unless it is set.
    pub effects: Option<Vec<String>>,
    /// Calls of flows of which the provider may speak; none unless it is set.
    pub calls: Vec<CallFile>,
    /// How long an event waits for what it names; 24 hours unless it is set.
    pub wait: Option<Length>,
    /// How long an event is remembered after its end; 30 days unless it is set.
    pub keep: Option<Length>,
    /// What events mean. Whatever no rule names means nothing.
    pub outcomes: OutcomesFile,
}

/// How a provider signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SchemeFile {
    /// `Stripe-Signature: t=…,v1=…`.
    Stripe,
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    Standard,
    /// An HMAC-SHA256 in a header.
    Hmac,
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EncodingFile {
    /// In hexadecimal digits.
    Hex,
    /// In base64.
    Base64,
}

/// By what an event names what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchFile {
    /// What stands there: `id` (`Retrysafe-Id`), `key`, `request_id`, `downstream_key`, `effect` or `reference`.
    pub by: String,
    /// Where in the body, as a JSON pointer.
    pub at: String,
}

/// A call of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallFile {
    /// The flow's name.
    pub flow: String,
    /// The name of the phase that makes the call.
    pub phase: String,
    /// The how-manieth phase of its flow it is, from zero.
    pub place: u16,
}
