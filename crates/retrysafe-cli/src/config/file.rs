//! What may stand in `retrysafe.toml`?
//!
//! The file as it is written, before defaults, environment and flags. Its JSON schema is made from
//! these types, and the check for unknown settings walks that schema, so a setting is named once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

use retrysafe::layer::Limits;
use retrysafe_core::units;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::admin_token_file::AdminTokenFile;
use super::effect_file::EffectFile;
use super::length::Length;
use super::lookup_file::LookupFile;
use super::webhook_file::WebhookFile;

/// A store's URL, or a table of two.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoreText {
    One(String),
    Tiered { decide: String, answer: String },
}

fn store_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let expected = |_| {
        // Never what stands there: it may hold a password.
        de::Error::custom(
            "is neither a URL nor a table { decide = \"postgres://…\", answer = \"redis://…\" }",
        )
    };
    Ok(Some(match StoreText::deserialize(from).map_err(expected)? {
        StoreText::One(url) => url,
        StoreText::Tiered { decide, answer } => format!("tiered:{decide}|{answer}"),
    }))
}

fn store_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["string", "object", "null"],
        "properties": { "decide": { "type": "string" }, "answer": { "type": "string" } },
        "additionalProperties": false
    })
}

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where callers connect, such as `0.0.0.0:8080`.
    pub listen: Option<String>,
    /// The API behind the gateway, such as `http://127.0.0.1:3000`: `http://`, `https://`, `h2c://` (HTTP/2
    /// without TLS), `h2://` (HTTP/2 over TLS) or `unix:/path/to/socket`.
    pub upstream: Option<String>,
    /// Where records are kept: `disk:PATH`, `postgres://USER:PASSWORD@HOST/DATABASE`, `redis://…` or
    /// `memory:`; or a table of `decide`, a PostgreSQL, and `answer`, a Redis of copies. Changing it
    /// needs a restart.
    #[serde(deserialize_with = "store_text")]
    #[schemars(schema_with = "store_schema")]
    pub store: Option<String>,
    /// How long a start waits for a store that is out of reach, such as a database that starts at the
    /// same time.
    pub store_wait_max: Option<Length>,
    /// Where the gateway keeps what it needs across a restart beside its records, such as a token
    /// that it made: the folder of a disk store, else `./retrysafe-state`, unless it is set. Needs a
    /// restart.
    pub state_folder: Option<String>,
    /// How many threads serve requests; one per core unless it is set. Needs a restart.
    pub threads: Option<usize>,
    /// Whether plain-text connections may speak HTTP/2 with prior knowledge.
    pub h2c: Option<bool>,
    /// Networks whose `X-Forwarded-*` and `Forwarded` headers are believed, such as `10.0.0.0/8`.
    pub trusted_networks: Option<Vec<String>>,
    /// How long the head of a request may take to arrive, and an idle connection may be kept.
    pub head_time_max: Option<Length>,
    /// How long a caller that has an answer to take may take next to nothing of it.
    pub write_time_max: Option<Length>,
    /// How much memory the bodies and answers of keyed requests may hold. Past it new requests are
    /// refused with 503. At least twice `request_bytes_max` and four times `response_bytes_max`.
    pub held_bytes_max: Option<Size>,
    /// How many executions may go on at once after their callers were told to ask again. Past it the
    /// upstream's connection is closed and the outcome is unknown.
    pub late_answers_max: Option<usize>,
    /// How long a stop may wait for running requests before it gives up.
    pub drain_max: Option<Length>,
    /// How long to stay up, not ready, before no more connections are taken, so that a load
    /// balancer can look away first.
    pub drain_delay: Option<Length>,
    /// The operators' own listener.
    pub admin: AdminFile,
    /// TLS towards callers.
    pub tls: Option<TlsFile>,
    /// TLS and connections towards the upstream.
    pub upstream_tls: UpstreamTlsFile,
    /// How upstreams are asked how they are. Nobody asks unless it is set.
    pub health: Option<HealthFile>,
    /// How fast callers may be, each for itself. Nothing is limited unless it is set.
    pub limits: LimitsFile,
    /// How tokens are verified for `scope = ["jwt:CLAIM"]`.
    pub jwt: Option<JwtFile>,
    /// What is written, and how.
    pub log: LogFile,
    /// The tasks that keep the store tidy.
    pub upkeep: UpkeepFile,
    /// How unknown outcomes are looked up, where no table of `lookups` says otherwise.
    pub reconcile: Option<LookupFile>,
    /// How unknown outcomes of some routes, or of a flow's call, are looked up, by a name for whoever is asked.
    pub lookups: BTreeMap<String, LookupFile>,
    /// The webhooks of providers, by name: what they tell about unknown outcomes.
    pub webhooks: BTreeMap<String, WebhookFile>,
    /// How effects are delivered over HTTP, by kind; for `retrysafe worker`.
    pub effects: BTreeMap<String, EffectFile>,
    /// How a request's meaning is taken. Changing it needs a restart.
    pub fingerprint: FingerprintFile,
    /// Everything a `[[route]]` can set, for all routes.
    pub defaults: RouteSettings,
    /// Routes with rules of their own.
    pub route: Vec<RouteSettings>,
}

/// The operators' own listener.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminFile {
    /// Where operators connect; loopback unless it is set. `off` switches it off.
    pub listen: Option<String>,
    /// The bearer token of actions and of the JSON API. Unless one is set, one is made and kept in
    /// the file `admin-token` of the `state_folder`.
    pub token: Option<String>,
    /// A file that holds the token.
    pub token_file: Option<String>,
    /// Tokens of single people and programs, by name, each with a role. The token above has every role, and the name `admin`.
    pub tokens: BTreeMap<String, AdminTokenFile>,
    /// Files in which `reconcile compare --report-file` leaves what it has found, for the dashboard to show.
    pub ledger_reports: Vec<String>,
}

/// TLS towards callers.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsFile {
    /// A PEM file with the certificate chain.
    pub certificate: String,
    /// A PEM file with the private key.
    pub key: String,
}

/// TLS and connections towards the upstream.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpstreamTlsFile {
    /// A PEM file with the authorities to trust; those of the system unless it is set.
    pub authorities: Option<String>,
}

/// How upstreams are asked how they are.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HealthFile {
    /// The path that each upstream is asked for, such as `/healthz`. Any 2xx or 3xx is a good answer.
    pub path: String,
    /// How long after one check the next one begins.
    pub every: Option<Length>,
    /// How long an answer may take.
    pub timeout: Option<Length>,
    /// After how many bad answers in a row requests are refused with 503.
    pub unhealthy_after: Option<NonZeroU32>,
    /// After how many good answers in a row requests are taken again.
    pub healthy_after: Option<NonZeroU32>,
}

/// How fast callers may be, each for itself: 429 past it. A limit of `n` per second permits `n` at once,
/// and counts in this process alone.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsFile {
    /// Keyed requests of one scope per second, against the guessing of keys.
    pub keyed_per_scope_per_second: Option<NonZeroU32>,
    /// Requests with one key per second.
    pub retries_per_key_per_second: Option<NonZeroU32>,
    /// New keys of one scope per second.
    pub new_keys_per_scope_per_second: Option<NonZeroU32>,
    /// Keys of one scope that were created here and have not expired.
    pub live_keys_per_scope: Option<NonZeroU32>,
}

impl From<LimitsFile> for Limits {
    fn from(file: LimitsFile) -> Self {
        Self {
            keyed_per_scope_per_second: file.keyed_per_scope_per_second,
            retries_per_key_per_second: file.retries_per_key_per_second,
            new_keys_per_scope_per_second: file.new_keys_per_scope_per_second,
            live_keys_per_scope: file.live_keys_per_scope,
        }
    }
}

/// How tokens are verified.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JwtFile {
    /// The accepted algorithms, such as `["RS256"]`. With a key set, all of its keys' own algorithms
    /// unless it is set.
    pub algorithms: Vec<String>,
    /// The shared secret of HS256, HS384 or HS512.
    pub secret: Option<String>,
    /// A file that holds the secret.
    pub secret_file: Option<String>,
    /// A PEM file with the public key of the RS, PS, ES and EdDSA algorithms.
    pub public_key_file: Option<String>,
    /// A file with a set of public keys (JWKS).
    pub jwks_file: Option<String>,
    /// Where a key server publishes its set of public keys (JWKS). It is read again as its keys change.
    pub jwks_url: Option<String>,
    /// A PEM file with the authorities to trust for `jwks_url`; those of the system unless it is set.
    pub authorities: Option<String>,
    /// How long the keys of `jwks_url` go on counting while it is out of reach.
    pub keys_max_age: Option<Length>,
    /// How far the clocks of issuer and gateway may differ.
    pub leeway: Option<Length>,
    /// The `iss` that tokens must have.
    pub issuer: Option<String>,
    /// The `aud` that tokens must have.
    pub audience: Option<String>,
}

/// What is written, and how.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogFile {
    /// `human` or `json`; `human` on a terminal and `json` elsewhere unless it is set.
    pub format: Option<LogFormat>,
    /// The level, or a filter such as `info,retrysafe=debug`.
    pub level: Option<String>,
    /// Whether each request leaves a line.
    pub requests: Option<bool>,
    /// What stands in the line of a request, beside the time.
    pub fields: Option<Vec<LogField>>,
}

/// What can stand in the line of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogField {
    Method,
    /// The path, without its query.
    Path,
    Status,
    /// How long it took.
    Duration,
    Outcome,
    Route,
    /// The digest of the key.
    Key,
    RequestId,
    /// The address that the request came from: the caller's, or that of a proxy in front.
    Peer,
    Host,
    UserAgent,
    /// Where the request went, or would have gone.
    Upstream,
}

impl LogField {
    /// What stands there unless something else is said.
    pub(crate) const USUAL: [Self; 8] = [
        Self::Method,
        Self::Path,
        Self::Status,
        Self::Duration,
        Self::Outcome,
        Self::Route,
        Self::Key,
        Self::RequestId,
    ];
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people.
    Human,
    /// For machines.
    Json,
}

/// The tasks that keep the store tidy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpkeepFile {
    /// How often ended leases are looked for.
    pub sweep_every: Option<Length>,
    /// How often expired records are deleted.
    pub reap_every: Option<Length>,
}

/// How a request's meaning is taken.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FingerprintFile {
    /// Further headers that belong to the meaning, such as `Api-Version`.
    pub headers: Option<Vec<String>>,
    /// Members of a JSON body that alone belong to the meaning, as JSON pointers.
    pub include: Option<Vec<String>>,
    /// Members of a JSON body that do not belong to the meaning, as JSON pointers.
    pub exclude: Option<Vec<String>>,
    /// Whether the host's name belongs to the meaning; it does unless this is `false`.
    pub host: Option<bool>,
    /// Groups of host names that are names of one API, such as `[["api.test", "api.eu.test"]]`.
    pub host_aliases: Option<Vec<Vec<String>>>,
    /// Whether every body counts byte by byte, JSON and forms too; for records that SQL functions share.
    pub raw_bodies: Option<bool>,
}

/// Everything that can be set for a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RouteSettings {
    /// The path of a `[[route]]`, such as `/payments/{id}` or `/payments/{*rest}`.
    pub path: Option<String>,
    /// The API of a `[[route]]`, for all methods of its path, if it is not the one at the top.
    pub upstream: Option<String>,
    /// Whether the part of the path before `{*rest}` is taken off before a request is sent on.
    pub strip_prefix: Option<bool>,
    /// A second effect would cost money: key required, a 5xx proves nothing, no store no execution.
    pub strict: Option<bool>,
    /// How refusals look.
    pub dialect: Option<Dialect>,
    /// Which methods are covered.
    pub methods: Option<Vec<String>>,
    /// Whether a key is demanded.
    pub key: Option<KeyRule>,
    /// The header that holds the key, such as `X-Idempotency-Key`. Changing it needs no restart.
    pub key_header: Option<String>,
    /// Which spellings of the key are accepted.
    pub key_syntax: Option<KeySyntax>,
    /// The fewest characters a key may have.
    pub key_chars_min: Option<usize>,
    /// How long a settled record is kept.
    pub ttl: Option<Length>,
    /// How long an owner may be silent before it is believed to be gone.
    pub lease: Option<Length>,
    /// How long one execution may renew its lease in all.
    pub lease_max: Option<Length>,
    /// How long a duplicate may wait for the running one.
    pub wait_max: Option<Length>,
    /// What a duplicate is told while the first is running.
    pub in_flight: Option<InFlight>,
    /// How long the upstream may take before it answers, and between two pieces of its answer. Then
    /// the caller of a keyed request is told to ask again, and the execution goes on until `lease_max`.
    pub upstream_timeout: Option<Length>,
    /// The largest request body that is read.
    pub request_bytes_max: Option<Size>,
    /// How long reading the request body may take.
    pub request_time_max: Option<Length>,
    /// The largest response body that is kept.
    pub response_bytes_max: Option<Size>,
    /// How long an answer may take after its head before it is passed on as it comes, and not kept.
    pub answer_hold_max: Option<Length>,
    /// What a 5xx of the upstream's own means.
    pub on_server_error: Option<OnServerError>,
    /// What happens when the store is out of reach.
    pub on_store_error: Option<OnStoreError>,
    /// Statuses that may change on the next try, so they are not kept.
    pub retryable_statuses: Option<Vec<u16>>,
    /// Whether "the upstream does not know it" proves that it was not executed.
    pub absence: Option<Absence>,
    /// Whether the rules are enforced or only observed.
    pub mode: Option<Mode>,
    /// Who is asking: `credential`, `header:NAME`, `cookie:NAME`, `jwt:CLAIM`, `route`, `const:TEXT`;
    /// several combine. Changing it needs a restart.
    pub scope: Option<Vec<String>>,
    /// Whether callers who show no credential are refused, or share their keys and answers. Changing
    /// it needs a restart.
    pub anonymous: Option<Anonymous>,
    /// Whether `Set-Cookie` is kept and replayed.
    pub keep_set_cookie: Option<bool>,
    /// The header that marks a replay.
    pub replay_marker: Option<String>,
    /// Whether keyed answers say when their record expires.
    pub announce_expiry: Option<bool>,
    /// Origins whose pages may read answers, such as `https://shop.example`, or `*`. With none listed the upstream decides.
    pub cors: Option<Vec<String>>,
    /// Whether the listed origins may send cookies along.
    pub cors_credentials: Option<bool>,
    /// Requests first sent longer ago than this are refused; they must say when that was.
    pub first_sent_age_max: Option<Length>,
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident => $core:path { $($(#[$vdoc:meta])* $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name { $($(#[$vdoc])* $variant),* }

        impl From<$name> for $core {
            fn from(choice: $name) -> Self {
                match choice { $($name::$variant => Self::$variant),* }
            }
        }

        impl From<$core> for $name {
            fn from(choice: $core) -> Self {
                match choice { $(<$core>::$variant => Self::$variant),* }
            }
        }
    };
}

choice! {
    /// How refusals look.
    Dialect => retrysafe_core::policy::Dialect { Ietf, Stripe, Conflict }
}
choice! {
    /// Whether a key is demanded.
    KeyRule => retrysafe_core::policy::KeyRule { Required, Optional, Off }
}
choice! {
    /// Which spellings of the key are accepted.
    KeySyntax => retrysafe_core::key::KeySyntax { Lenient, Quoted, Uuid }
}
choice! {
    /// What a duplicate is told while the first is running.
    InFlight => retrysafe_core::policy::InFlight { Conflict, Accepted }
}
choice! {
    /// What a 5xx of the upstream's own means.
    OnServerError => retrysafe_core::policy::OnServerError { Release, Store, Unknown }
}
choice! {
    /// What happens when the store is out of reach.
    OnStoreError => retrysafe_core::policy::OnStoreError { Closed, Open }
}
choice! {
    /// Whether an absence proves anything.
    Absence => retrysafe_core::policy::Absence { Inconclusive, Proof }
}
choice! {
    /// Whether the rules are enforced or only observed.
    Mode => retrysafe_core::policy::Mode { Enforce, Observe }
}

/// What becomes of callers who show no credential.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Anonymous {
    /// Their keyed requests are refused: they could not be told apart.
    Refused,
    /// They are one caller, with one set of keys and answers.
    Shared,
}

/// A size as people write it: `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub usize);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        units::parse_size(&text).map(Self).map_err(de::Error::custom)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&units::show_size(self.0))
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^ *[0-9]+ *(B|KiB|MiB|GiB|kB|KB|MB|GB) *$",
            "examples": ["1MiB"],
        })
    }
}
