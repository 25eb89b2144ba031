//! What does the file say about the effects of one kind? (`[effects.KIND]`)

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::blot;
use super::length::Length;
use super::lookup_file::LookupFile;
use super::statuses::StatusPattern;

/// How effects of one kind are delivered over HTTP, by `retrysafe worker`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EffectFile {
    /// Where effects go that were staged without a destination.
    pub url: Option<String>,
    /// Which destinations an effect may name itself: those that begin with one of these URLs. `https:` alone stands for
    /// every host. None unless it is set.
    pub destinations: Option<Vec<String>>,
    /// The method; `POST` unless it is set.
    pub method: Option<String>,
    /// Headers to send along, such as an `Authorization`.
    pub headers: BTreeMap<String, String>,
    /// The header that holds the effect's key; `Idempotency-Key` unless it is set.
    pub key_header: Option<String>,
    /// For how long, from its first use on, a second delivery with the same key has no second effect at the receiver.
    pub remembers_keys_for: Option<Length>,
    /// A second delivery is a second effect: an effect that may have been done is not sent again, it is unknown.
    pub takes_no_key: Option<bool>,
    /// How long one delivery may take in all.
    pub deadline: Option<Length>,
    /// How long a packet may be on its way, and the clocks be apart. It is taken off `remembers_keys_for`.
    pub margin: Option<Length>,
    /// How many deliveries one worker has under way.
    pub at_once: Option<NonZeroU32>,
    /// How many deliveries one worker begins in a second. As many as there are unless it is set.
    pub per_second: Option<NonZeroU32>,
    /// How many deliveries one worker has under way to one host and port. As many as there are unless it is set.
    pub at_once_per_destination: Option<NonZeroU32>,
    /// How many deliveries one worker begins in a second to one host and port. As many as there are unless it is set.
    pub per_second_per_destination: Option<NonZeroU32>,
    /// After how many failed deliveries an effect is given up.
    pub failures_max: Option<NonZeroU32>,
    /// The longest pause after the first failure; it doubles with each further one.
    pub backoff: Option<Length>,
    /// The longest pause of all.
    pub backoff_max: Option<Length>,
    /// Statuses (`409`) and classes (`"2xx"`) that mean that it was done.
    pub delivered: Option<Vec<StatusPattern>>,
    /// Statuses and classes that mean that it was refused for good, and not done.
    pub rejected: Option<Vec<StatusPattern>>,
    /// Statuses and classes that mean that this delivery did nothing, and a later one may.
    pub no_effect: Option<Vec<StatusPattern>>,
    /// Statuses and classes that say nothing.
    pub unknown: Option<Vec<StatusPattern>>,
    /// What the receiver calls it: a JSON pointer into the answer's body, such as `/id`, or `header:NAME`. It is kept with
    /// the effect.
    pub reference: Option<String>,
    /// Networks that are not public and may be connected to all the same, such as `10.0.0.0/8`.
    pub allow_networks: Option<Vec<String>>,
    /// How effects are looked up that may have been done.
    pub lookup: Option<LookupFile>,
    /// Signatures by Standard Webhooks.
    pub signing: Option<SigningFile>,
    /// TLS towards the receiver.
    pub tls: ReceiverTlsFile,
}

/// Signatures by Standard Webhooks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SigningFile {
    /// Files that hold a secret each, `whsec_…`. Two while a secret is exchanged for another one: both sign.
    pub secret_files: Vec<String>,
}

/// TLS towards a receiver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReceiverTlsFile {
    /// A PEM file with the certificate chain that is shown to the receiver.
    pub certificate: Option<String>,
    /// A PEM file with its private key.
    pub key: Option<String>,
    /// A PEM file with the authorities to trust; those of the system unless it is set.
    pub authorities: Option<String>,
}

impl EffectFile {
    /// Without what may be a credential.
    pub(super) fn blot(&mut self) {
        self.headers.values_mut().for_each(|value| *value = "…".into());
        self.lookup.iter_mut().for_each(LookupFile::show_whole);
        self.url = self.url.as_deref().map(blot::server_only);
        for destination in self.destinations.iter_mut().flatten() {
            *destination = blot::server_only(destination);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_credential_is_not_shown() {
        let url = "https://hooks.example/T0/secret?x=1".to_owned();
        let mut table = EffectFile {
            url: Some(url.clone()),
            destinations: Some(vec![url]),
            headers: BTreeMap::from([("Authorization".to_owned(), "secret".to_owned())]),
            ..EffectFile::default()
        };
        table.blot();
        assert_eq!(table.url.as_deref(), Some("https://hooks.example/…"));
        assert_eq!(table.destinations, Some(vec!["https://hooks.example/…".to_owned()]));
        assert_eq!(table.headers["Authorization"], "…");
    }
}
