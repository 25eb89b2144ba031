//! What holds for a route, once defaults and its own table are laid over each other?

use std::fmt;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use retrysafe::stores::any::StoreUrl;
use retrysafe_core::Policy;
use retrysafe_core::fingerprint::Rules;
use retrysafe_core::policy::{KeyRule, OnServerError, OnStoreError};
use retrysafe_core::units::{show_duration, show_size};

use super::cors::Cors;
use super::file::{self, Anonymous, RouteSettings, Size};
use super::length::Length;
use super::names;
use super::source::Complaint;
use crate::paths::patterns::Pattern;

/// How long the upstream may take unless a route says otherwise.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// The label of requests that no `[[route]]` names.
pub(crate) const EVERYWHERE: &str = "/{*rest}";

/// What holds for one route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteRules {
    /// Its path, which is also its label in metrics and records.
    pub path: String,
    /// What its operator has decided.
    pub policy: Policy,
    /// Who is asking.
    pub scope: Vec<ScopePart>,
    /// What becomes of callers who show no credential.
    pub anonymous: Anonymous,
    /// How long the upstream may take.
    pub upstream_timeout: Duration,
    /// Which pages may read answers, where the operator decides it instead of the upstream.
    pub cors: Option<Cors>,
}

impl RouteRules {
    /// Which requests it stands for.
    pub(crate) fn pattern(&self) -> Pattern<'_> {
        Pattern { path: &self.path, methods: &self.policy.methods }
    }
}

/// One part of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScopePart {
    /// Whatever credentials the caller shows.
    Credential,
    /// A header's value.
    Header(HeaderName),
    /// A cookie's value.
    Cookie(String),
    /// A claim of a verified token.
    Claim(String),
    /// The route's label.
    Route,
    /// A text of the operator's.
    Const(String),
}

impl ScopePart {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const KINDS: &str = "credential, header:NAME, cookie:NAME, jwt:CLAIM, route or const:TEXT";
        match text.split_once(':') {
            None if text == "credential" => Ok(Self::Credential),
            None if text == "route" => Ok(Self::Route),
            Some(("header", name)) => names::read(name).map(Self::Header),
            Some(("cookie", name)) if HeaderName::from_bytes(name.as_bytes()).is_ok() => {
                Ok(Self::Cookie(name.into()))
            }
            Some(("cookie", name)) => Err(format!("{name:?} is not the name of a cookie")),
            Some(("jwt", claim)) if !claim.is_empty() => Ok(Self::Claim(claim.into())),
            Some(("const", text)) => Ok(Self::Const(text.into())),
            Some(_) | None => Err(format!("{text:?} is not {KINDS}")),
        }
    }
}

/// As it is written in the file.
impl fmt::Display for ScopePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential => f.write_str("credential"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Claim(claim) => write!(f, "jwt:{claim}"),
            Self::Route => f.write_str("route"),
            Self::Const(text) => write!(f, "const:{text}"),
        }
    }
}

macro_rules! layered {
    ($over:expr, $under:expr; $($field:ident),* $(,)?) => {
        RouteSettings { $($field: $over.$field.clone().or_else(|| $under.$field.clone())),* }
    };
}

/// One table laid over another.
fn layered(over: &RouteSettings, under: &RouteSettings) -> RouteSettings {
    layered!(over, under; path, upstream, strip_prefix, strict, dialect, methods, key, key_header, key_syntax, key_chars_min, ttl, lease,
        lease_max, wait_max, in_flight, upstream_timeout, request_bytes_max, request_time_max,
        response_bytes_max, answer_hold_max, on_server_error, on_store_error, retryable_statuses, absence, mode,
        scope, anonymous, keep_set_cookie, replay_marker, announce_expiry, cors,
        cors_credentials, first_sent_age_max)
}

/// The values that hold where nothing is set.
pub(crate) fn built_in() -> RouteSettings {
    let policy = Policy::default();
    RouteSettings {
        path: None,
        upstream: None,
        strip_prefix: None,
        strict: Some(false),
        dialect: Some(policy.dialect.into()),
        methods: Some(policy.methods.iter().map(ToString::to_string).collect()),
        key: Some(policy.key.into()),
        key_header: Some(policy.key_header.to_string()),
        key_syntax: Some(policy.key_syntax.into()),
        key_chars_min: Some(policy.key_chars_min),
        ttl: Some(Length(policy.ttl)),
        lease: Some(Length(policy.lease)),
        lease_max: Some(Length(policy.lease_max)),
        wait_max: Some(Length(policy.wait_max)),
        in_flight: Some(policy.in_flight.into()),
        upstream_timeout: Some(Length(UPSTREAM_TIMEOUT)),
        request_bytes_max: Some(Size(policy.request_bytes_max)),
        request_time_max: Some(Length(policy.request_time_max)),
        response_bytes_max: Some(Size(policy.response_bytes_max)),
        answer_hold_max: Some(Length(policy.answer_hold_max)),
        on_server_error: Some(policy.on_server_error.into()),
        on_store_error: Some(policy.on_store_error.into()),
        retryable_statuses: Some(
            policy.retryable_statuses.iter().map(StatusCode::as_u16).collect(),
        ),
        absence: Some(policy.absence.into()),
        mode: Some(policy.mode.into()),
        scope: Some(vec!["credential".into()]),
        anonymous: Some(Anonymous::Refused),
        keep_set_cookie: Some(policy.keep_set_cookie),
        replay_marker: Some(policy.replay_marker.to_string()),
        announce_expiry: Some(policy.announce_expiry),
        cors: Some(Vec::new()),
        cors_credentials: Some(false),
        first_sent_age_max: policy.first_sent_age_max.map(Length),
    }
}

/// What the defaults say, complete.
pub(crate) fn defaults(table: &RouteSettings, complaints: &mut Vec<Complaint>) -> RouteSettings {
    if table.path.is_some() {
        complaints.push(Complaint::new("defaults.path", "a path belongs to a [[route]]"));
    }
    let mut own = table.clone();
    if own.strict == Some(true) {
        make_strict(&mut own, "defaults", complaints);
    }
    layered(&own, &built_in())
}

/// What a route's table says, complete. `at` is its place in the file, such as `route[2]`.
pub(crate) fn route(
    table: &RouteSettings,
    defaults: &RouteSettings,
    at: &str,
    complaints: &mut Vec<Complaint>,
) -> RouteSettings {
    let mut own = table.clone();
    if own.strict.or(defaults.strict) == Some(true) {
        make_strict(&mut own, at, complaints);
    }
    layered(&own, defaults)
}

/// Sets what `strict` stands for, and complains where the same table says the opposite.
fn make_strict(table: &mut RouteSettings, at: &str, complaints: &mut Vec<Complaint>) {
    let mut contradicts = |setting: &str, contradiction: bool| {
        if contradiction {
            let what = "contradicts `strict = true`; set `strict = false` here or leave it out";
            complaints.push(Complaint::new(format!("{at}.{setting}"), what));
        }
    };
    let key = file::KeyRule::Required;
    contradicts("key", table.key.is_some_and(|set| set != key));
    let on_server_error = file::OnServerError::Unknown;
    contradicts("on_server_error", table.on_server_error.is_some_and(|set| set != on_server_error));
    let on_store_error = file::OnStoreError::Closed;
    contradicts("on_store_error", table.on_store_error.is_some_and(|set| set != on_store_error));
    table.key = Some(key);
    table.on_server_error = Some(on_server_error);
    table.on_store_error = Some(on_store_error);
}

/// Turns complete settings into rules.
pub(crate) fn rules(
    complete: &RouteSettings,
    fingerprint: &Rules,
    at: &str,
    has_jwt: bool,
    complaints: &mut Vec<Complaint>,
) -> RouteRules {
    let mut complain = |setting: &str, what: String| {
        complaints.push(Complaint::new(format!("{at}.{setting}"), what));
    };
    let mut policy = Policy { fingerprint: fingerprint.clone(), ..Policy::default() };
    let mut methods = Vec::new();
    for name in complete.methods.iter().flatten() {
        match Method::from_bytes(name.as_bytes()) {
            Ok(method) if method.is_safe() => {
                complain("methods", format!("{name} is a safe method and is never covered"));
            }
            Ok(method) if name.bytes().all(|b| b.is_ascii_uppercase()) => methods.push(method),
            Ok(_) | Err(_) => complain("methods", format!("{name:?} is not a method")),
        }
    }
    policy.methods = methods;
    let mut statuses = Vec::new();
    for number in complete.retryable_statuses.iter().flatten() {
        match StatusCode::from_u16(*number) {
            Ok(status) => statuses.push(status),
            Err(_) => complain("retryable_statuses", format!("{number} is not a status")),
        }
    }
    policy.retryable_statuses = statuses;
    if let Some(name) = &complete.key_header {
        match names::read(name) {
            Ok(name) => {
                if let Some(what) = names::unfit_as_key(&name) {
                    complain("key_header", what);
                }
                policy.key_header = name;
            }
            Err(what) => complain("key_header", what),
        }
    }
    if let Some(name) = &complete.replay_marker {
        match names::read(name) {
            Ok(name) => {
                if let Some(what) = names::unfit_as_marker(&name, &policy.key_header) {
                    complain("replay_marker", what);
                }
                policy.replay_marker = name;
            }
            Err(what) => complain("replay_marker", what),
        }
    }
    let mut scope = Vec::new();
    for text in complete.scope.iter().flatten() {
        match ScopePart::parse(text) {
            Ok(ScopePart::Claim(_)) if !has_jwt => {
                complain("scope", format!("{text:?} needs a [jwt] table to verify tokens with"));
            }
            Ok(part) => {
                if let ScopePart::Header(name) = &part
                    && let Some(what) = names::unfit_as_scope(name, &policy.key_header)
                {
                    complain("scope", what);
                }
                scope.push(part);
            }
            Err(what) => complain("scope", what),
        }
    }
    if complete.scope.as_ref().is_some_and(Vec::is_empty) {
        complain("scope", "names nobody; use const:TEXT if all callers are one".into());
    }
    let cors = Cors::read(complete).unwrap_or_else(|what| {
        complain("cors", what);
        None
    });
    copy(complete, &mut policy);
    let upstream_timeout = complete.upstream_timeout.map_or(UPSTREAM_TIMEOUT, |length| length.0);
    for (setting, wrong, what) in [
        ("lease", policy.lease.is_zero(), "must be longer than nothing"),
        ("lease_max", policy.lease_max < policy.lease, "must be at least `lease`"),
        ("ttl", policy.ttl.is_zero(), "must be longer than nothing"),
        ("request_time_max", policy.request_time_max.is_zero(), "must be longer than nothing"),
        ("upstream_timeout", upstream_timeout.is_zero(), "must be longer than nothing"),
        ("key_chars_min", policy.key_chars_min > 255, "keys have at most 255 characters"),
    ] {
        if wrong {
            complain(setting, what.into());
        }
    }
    RouteRules {
        path: complete.path.clone().unwrap_or_else(|| EVERYWHERE.into()),
        policy,
        scope,
        anonymous: complete.anonymous.unwrap_or(Anonymous::Refused),
        upstream_timeout,
        cors,
    }
}

/// Whether a route is only wrong because the defaults are, whose complaint stands among those `told`. `at` is the place of the route.
pub(crate) fn is_inherited(
    complaint: &Complaint,
    table: &RouteSettings,
    at: &str,
    told: &[Complaint],
) -> bool {
    let Some(name) = complaint.setting.strip_prefix(at).and_then(|rest| rest.strip_prefix('.'))
    else {
        return false;
    };
    let own = serde_json::to_value(table).unwrap_or_default();
    let is_own = own.get(name).is_some_and(|value| !value.is_null());
    let setting = format!("defaults.{name}");
    let is_same = |other: &Complaint| other.setting == setting && other.what == complaint.what;
    !is_own && told.iter().any(is_same)
}

/// What is wrong with a table that would keep larger answers than its store can hold: they would be
/// executed, and could never be settled.
pub(crate) fn too_large(table: &RouteSettings, store: &StoreUrl, at: &str) -> Option<Complaint> {
    let Size(bytes) = table.response_bytes_max?;
    let most = store.answer_bytes_max();
    (bytes > most).then(|| {
        let what = format!("is more than this store can hold in one record, {}", show_size(most));
        Complaint::new(format!("{at}.response_bytes_max"), what)
    })
}

/// A PostgreSQL whose quarantine is not given has one that no execution outlives.
pub(crate) fn outlasting(store: StoreUrl, lease_max: Duration) -> StoreUrl {
    match store {
        StoreUrl::Postgres(url) => StoreUrl::Postgres(url.outlasting(lease_max)),
        StoreUrl::Tiered(mut url) => {
            url.decide = url.decide.outlasting(lease_max);
            StoreUrl::Tiered(url)
        }
        StoreUrl::Memory | StoreUrl::Disk { .. } | StoreUrl::Redis(_) => store,
    }
}

/// What is wrong with a server whose quarantine ends before an execution may: after a fail-over, a
/// retry would run beside it.
pub(crate) fn outlives_quarantine(route: &RouteRules, store: &StoreUrl) -> Option<Complaint> {
    let quarantine = match store {
        StoreUrl::Memory | StoreUrl::Disk { .. } => return None,
        StoreUrl::Postgres(url) => url.quarantine()?,
        StoreUrl::Tiered(url) => url.decide.quarantine()?,
        StoreUrl::Redis(url) => url.quarantine(),
    };
    (quarantine < route.policy.lease_max).then(|| {
        let lease_max = show_duration(route.policy.lease_max);
        let what = format!(
            "has a quarantine that is shorter than the lease_max of {}, {lease_max}: write \
             ?quarantine={lease_max} or longer",
            route.path
        );
        Complaint::new("store", what)
    })
}

/// Copies the settings that need no check.
fn copy(complete: &RouteSettings, policy: &mut Policy) {
    macro_rules! copy {
        ($($field:ident),*) => { $(if let Some(value) = complete.$field { policy.$field = value.into(); })* };
    }
    copy!(
        dialect,
        key,
        key_syntax,
        key_chars_min,
        in_flight,
        on_server_error,
        on_store_error,
        absence,
        mode,
        keep_set_cookie,
        announce_expiry
    );
    macro_rules! copy_inner {
        ($($field:ident),*) => { $(if let Some(value) = complete.$field { policy.$field = value.0; })* };
    }
    copy_inner!(
        ttl,
        lease,
        lease_max,
        wait_max,
        request_bytes_max,
        request_time_max,
        response_bytes_max,
        answer_hold_max
    );
    policy.first_sent_age_max = complete.first_sent_age_max.map(|length| length.0);
}

impl RouteRules {
    /// Whether a second effect on this route would cost money.
    pub(crate) fn is_strict(&self) -> bool {
        self.policy.key == KeyRule::Required
            && self.policy.on_server_error == OnServerError::Unknown
            && self.policy.on_store_error == OnStoreError::Closed
    }
}
