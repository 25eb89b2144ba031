//! What has the operator configured?
//!
//! Flag over environment over file over default, each under the same name. Reading ends in a
//! [`Config`] that is complete and valid, or in a list of everything that is wrong, with places.

mod access;
mod admin_token_file;
mod asked_upstream;
mod blot;
mod cors;
pub(crate) mod destinations;
pub(crate) mod effect_file;
pub(crate) mod effects;
pub(crate) mod environment;
pub(crate) mod file;
mod files;
mod fingerprint;
mod health;
mod length;
pub(crate) mod list;
mod load;
pub(crate) mod lookup;
pub(crate) mod lookup_file;
mod memory;
mod names;
mod operators;
mod outcomes;
mod outcomes_file;
mod path;
pub(crate) mod rules;
pub(crate) mod source;
pub(crate) mod statuses;
pub(crate) mod token;
pub(crate) mod upstream;
mod warnings;
mod webhook_file;
pub(crate) mod webhooks;
mod worker;
mod wrong_kind;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use retrysafe::layer::Limits;
use retrysafe::stores::any::{AnyError, StoreUrl};
use retrysafe_core::fingerprint::Rules;

pub(crate) use admin_token_file::Role;
pub(crate) use cors::Cors;
pub(crate) use file::{Anonymous, File, JwtFile, LogField, LogFile, LogFormat, Size, TlsFile};
pub(crate) use files::{read_secret, unreadable};
pub(crate) use health::Health;
pub(crate) use length::Length;
pub(crate) use load::{
    CONFIG_FILE, Loaded, Wrong, admin_access, complaints_of, load, store_url, worker_config,
};
pub(crate) use lookup::LookupRules;
pub(crate) use operators::{ADMIN_NAME, NAME_BYTES_MAX, OperatorToken};
pub(crate) use rules::{RouteRules, ScopePart};
pub(crate) use source::Complaint;
pub(crate) use upstream::{Target, Upstream, server};
pub(crate) use webhooks::WebhookEndpoint;
pub(crate) use worker::WorkerConfig;

use crate::paths::patterns;
use asked_upstream::AskedUpstreams;
use source::{Origin, Origins};

/// Where callers connect unless something else is said.
const LISTEN: &str = "127.0.0.1:8080";
/// Where operators connect unless something else is said: loopback, because it shows records.
const ADMIN: &str = "127.0.0.1:8081";
/// Where records are kept unless something else is said.
const STORE: &str = "disk:./retrysafe-data";
/// How long a start waits for its store: longer than a database takes to recover from a crash, and
/// short enough that an orchestrator hears of a wrong host.
const STORE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Where the gateway keeps its own files beside a store that has no folder.
const STATE_FOLDER: &str = "./retrysafe-state";
/// How long the head of a request may take, and an idle connection is kept: longer than the pauses of
/// common load balancers' health checks, short enough that slow writers go.
const HEAD_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a caller may take next to nothing of its answer: longer than a mobile network's pauses,
/// short enough that those who do not read give the memory back.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// How many executions go on after their callers were told to ask again: each holds a connection to
/// the upstream.
const LATE_ANSWERS_MAX: usize = 1_024;
/// How long a stop waits for running requests: longer than the longest upstream of most.
const DRAIN_MAX: Duration = Duration::from_secs(60);
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const REAP_EVERY: Duration = Duration::from_secs(60);

/// A complete, valid configuration.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub listen: SocketAddr,
    /// Where requests go that no target takes.
    pub upstream: Upstream,
    pub targets: Vec<Target>,
    pub health: Option<Health>,
    pub store: StoreUrl,
    pub store_wait_max: Duration,
    pub state_folder: PathBuf,
    pub threads: usize,
    pub h2c: bool,
    pub trusted_networks: Vec<IpNet>,
    pub head_time_max: Duration,
    pub write_time_max: Duration,
    pub held_bytes_max: usize,
    pub late_answers_max: usize,
    pub limits: Limits,
    pub drain_max: Duration,
    pub drain_delay: Duration,
    pub admin: Option<Admin>,
    pub tls: Option<TlsFile>,
    pub authorities: Option<PathBuf>,
    pub jwt: Option<JwtFile>,
    pub log: Log,
    pub sweep_every: Duration,
    pub reap_every: Duration,
    pub lookups: Vec<LookupRules>,
    pub webhooks: Vec<WebhookEndpoint>,
    pub fingerprint: Rules,
    pub defaults: RouteRules,
    pub routes: Vec<RouteRules>,
}

/// The operators' own listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    pub listen: SocketAddr,
    pub token: Option<Secret>,
    pub tokens: Vec<OperatorToken>,
    pub ledger_reports: Vec<PathBuf>,
}

/// What is written, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub format: Option<LogFormat>,
    pub level: String,
    pub requests: bool,
    pub fields: Vec<LogField>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub config: Option<PathBuf>,
    pub listen: Option<String>,
    pub upstream: Option<String>,
    pub admin: Option<String>,
    pub store: Option<String>,
    pub require_key: bool,
    pub anonymous: Option<Anonymous>,
}

impl Flags {
    fn overlay(&self, file: &mut File, origins: &mut Origins) {
        for (said, value, setting, flag) in [
            (&self.listen, &mut file.listen, "listen", "--listen"),
            (&self.upstream, &mut file.upstream, "upstream", "--upstream"),
            (&self.admin, &mut file.admin.listen, "admin.listen", "--admin"),
            (&self.store, &mut file.store, "store", "--store"),
        ] {
            if said.is_some() {
                value.clone_from(said);
                origins.replace(setting, Origin::Flag(flag));
            }
        }
        if self.anonymous.is_some() {
            file.defaults.anonymous = self.anonymous;
        }
        if self.require_key {
            file.defaults.key = Some(file::KeyRule::Required);
            origins.replace("defaults.key", Origin::Flag("--require-key"));
        }
    }
}

/// Checks a file and fills in what it leaves out.
pub(crate) fn resolve(file: &File) -> Result<Config, Vec<Complaint>> {
    let mut wrong = Vec::new();
    let listen = address(file.listen.as_deref().unwrap_or(LISTEN), "listen", &mut wrong);
    let upstream = top_upstream(file.upstream.as_deref(), &mut wrong);
    let targets = upstream::targets(file, upstream.as_ref(), &mut wrong);
    let health = health::health(file, &mut wrong);
    let admin = admin(file, &mut wrong);
    if let (Some(listen), Some(admin)) = (listen, &admin)
        && is_one_place(listen, admin.listen)
    {
        let what =
            "callers connect there (`listen`); operators need an address or a port of their own";
        wrong.push(Complaint::new("admin.listen", what));
    }
    let trusted_networks =
        networks(file.trusted_networks.as_deref(), "trusted_networks", &mut wrong);
    effects::effects(&file.effects, &mut wrong);
    let webhooks = webhooks::endpoints(&file.webhooks, &mut wrong);
    let fingerprint = fingerprint::rules(&file.fingerprint, &mut wrong);
    let has_jwt = file.jwt.is_some();
    let default_settings = rules::defaults(&file.defaults, &mut wrong);
    let defaults = rules::rules(&default_settings, &fingerprint, "defaults", has_jwt, &mut wrong);
    let mut routes = Vec::new();
    for (at, table) in file.route.iter().enumerate() {
        let at = format!("route[{at}]");
        match &table.path {
            Some(path) => {
                let what = path::check(path).err();
                wrong.extend(what.map(|what| Complaint::new(format!("{at}.path"), what)));
            }
            None => {
                wrong
                    .push(Complaint::new(format!("{at}.path"), "is not set: a route needs a path"));
            }
        }
        let settings = rules::route(table, &default_settings, &at, &mut wrong);
        let mut of_route = Vec::new();
        routes.push(rules::rules(&settings, &fingerprint, &at, has_jwt, &mut of_route));
        of_route.retain(|complaint| !rules::is_inherited(complaint, table, &at, &wrong));
        wrong.extend(of_route);
    }
    let lookups = lookup::read_all(file, &routes, &defaults, &mut wrong);
    let labels: Vec<&str> = routes.iter().chain([&defaults]).map(|route| &*route.path).collect();
    wrong.extend(webhooks::unknown_routes(&webhooks, &labels));
    let is_deaf = upstream.as_ref().is_some_and(|upstream| upstream.http2);
    for lookup in lookups.iter().filter(|lookup| is_deaf && lookup.server.is_none()) {
        let setting = format!("{}.url", lookup.table);
        wrong.push(Complaint::new(setting, upstream::DEAF_TO_LOOKUPS));
    }
    if let Some(top) = &upstream {
        let upstreams =
            AskedUpstreams { top, targets: &targets, routes: &routes, defaults: &defaults };
        wrong.extend(upstreams.check(&lookups));
    }
    for (setting, length) in [
        ("head_time_max", file.head_time_max),
        ("write_time_max", file.write_time_max),
        ("upkeep.sweep_every", file.upkeep.sweep_every),
        ("upkeep.reap_every", file.upkeep.reap_every),
    ] {
        if length.is_some_and(|length| length.0.is_zero()) {
            wrong.push(Complaint::new(setting, "must be longer than nothing"));
        }
    }
    let held_bytes_max = file.held_bytes_max.map_or(memory::HELD_BYTES_MAX, |size| size.0);
    wrong.extend(memory::too_large(held_bytes_max, &defaults));
    for route in routes.iter().filter(|route| !memory::is_alike(route, &defaults)) {
        wrong.extend(memory::too_large(held_bytes_max, route));
    }
    let store = store(file, &mut wrong).map(|store| {
        let all = routes.iter().chain([&defaults]);
        rules::outlasting(store, all.map(|route| route.policy.lease_max).max().unwrap_or_default())
    });
    if let Some(store) = &store {
        wrong.extend(rules::too_large(&default_settings, store, "defaults"));
        for (at, table) in file.route.iter().enumerate() {
            wrong.extend(rules::too_large(table, store, &format!("route[{at}]")));
        }
        let all = routes.iter().chain([&defaults]);
        wrong.extend(all.filter_map(|route| rules::outlives_quarantine(route, store)).next());
    }
    let patterns: Vec<_> = routes.iter().map(RouteRules::pattern).collect();
    for (at, what) in patterns::check(&patterns) {
        let setting = format!("route[{at}].path");
        if wrong.iter().all(|complaint| complaint.setting != setting) {
            wrong.push(Complaint::new(setting, what));
        }
    }
    let (Some(listen), Some(upstream), Some(store), true) =
        (listen, upstream, store, wrong.is_empty())
    else {
        return Err(wrong);
    };
    Ok(Config {
        listen,
        upstream,
        targets,
        health,
        state_folder: state_folder(file, &store),
        store,
        store_wait_max: file.store_wait_max.map_or(STORE_WAIT_MAX, |length| length.0),
        threads: file.threads.unwrap_or_else(cores).max(1),
        h2c: file.h2c.unwrap_or(false),
        trusted_networks,
        head_time_max: file.head_time_max.map_or(HEAD_TIME_MAX, |length| length.0),
        write_time_max: file.write_time_max.map_or(WRITE_TIME_MAX, |length| length.0),
        held_bytes_max,
        late_answers_max: file.late_answers_max.unwrap_or(LATE_ANSWERS_MAX),
        limits: file.limits.into(),
        drain_max: file.drain_max.map_or(DRAIN_MAX, |length| length.0),
        drain_delay: file.drain_delay.map_or(Duration::ZERO, |length| length.0),
        admin,
        tls: file.tls.clone(),
        authorities: file.upstream_tls.authorities.as_ref().map(Into::into),
        jwt: file.jwt.clone(),
        log: log(file),
        sweep_every: file.upkeep.sweep_every.map_or(SWEEP_EVERY, |length| length.0),
        reap_every: file.upkeep.reap_every.map_or(REAP_EVERY, |length| length.0),
        lookups,
        webhooks,
        fingerprint,
        defaults,
        routes,
    })
}

fn log(file: &File) -> Log {
    Log {
        format: file.log.format,
        level: file.log.level.clone().unwrap_or_else(|| "info".into()),
        requests: file.log.requests.unwrap_or(true),
        fields: file.log.fields.clone().unwrap_or_else(|| LogField::USUAL.to_vec()),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn address(text: &str, setting: &str, wrong: &mut Vec<Complaint>) -> Option<SocketAddr> {
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    if found.is_none() {
        let what = format!("{text:?} is not an address such as 127.0.0.1:8080");
        wrong.push(Complaint::new(setting, what));
    }
    found
}

/// Whether two listeners would be in each other's way.
fn is_one_place(one: SocketAddr, other: SocketAddr) -> bool {
    // A listener on all addresses of IPv6 takes those of IPv4 as well.
    let covers = |any: SocketAddr, address: SocketAddr| {
        any.ip().is_unspecified() && (any.is_ipv6() || address.is_ipv4())
    };
    // Zero stands for any port that is free.
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}

/// Where the gateway keeps its own files: where the setting says, or beside the records.
fn state_folder(file: &File, store: &StoreUrl) -> PathBuf {
    match (&file.state_folder, store) {
        (Some(folder), _) => folder.into(),
        (None, StoreUrl::Disk { folder, .. }) => folder.clone(),
        (
            None,
            StoreUrl::Memory | StoreUrl::Postgres(_) | StoreUrl::Redis(_) | StoreUrl::Tiered(_),
        ) => STATE_FOLDER.into(),
    }
}

fn store(file: &File, wrong: &mut Vec<Complaint>) -> Option<StoreUrl> {
    let url = file.store.as_deref().unwrap_or(STORE);
    url.parse()
        .map_err(|error: AnyError| wrong.push(Complaint::new("store", error.to_string())))
        .ok()
}

fn top_upstream(text: Option<&str>, wrong: &mut Vec<Complaint>) -> Option<Upstream> {
    let Some(text) = text else {
        let what = "is not set: which API is to be protected? Say --upstream http://127.0.0.1:3000, or let `retrysafe init` write a file";
        wrong.push(Complaint::new("upstream", what));
        return None;
    };
    upstream::read(text).map_err(|what| wrong.push(Complaint::new("upstream", what))).ok()
}

fn admin(file: &File, wrong: &mut Vec<Complaint>) -> Option<Admin> {
    let listen = file.admin.listen.as_deref().unwrap_or(ADMIN);
    if listen == "off" {
        return None;
    }
    let token = match (&file.admin.token, &file.admin.token_file) {
        (Some(_), Some(_)) => {
            wrong.push(Complaint::new("admin.token_file", "`token` is set as well"));
            None
        }
        (Some(token), None) => Some(token.clone()),
        (None, Some(path)) => match read_secret(path) {
            Ok(token) => Some(token),
            Err(what) => {
                wrong.push(Complaint::new("admin.token_file", what));
                None
            }
        },
        (None, None) => None,
    };
    let setting = if file.admin.token.is_some() { "admin.token" } else { "admin.token_file" };
    let what = token.as_deref().and_then(weak_token);
    wrong.extend(what.map(|what| Complaint::new(setting, what)));
    let tokens = operators::named_tokens(&file.admin.tokens, token.as_deref(), wrong);
    let listen = address(listen, "admin.listen", wrong)?;
    let ledger_reports = file.admin.ledger_reports.iter().map(Into::into).collect();
    Some(Admin { listen, token: token.map(Secret), tokens, ledger_reports })
}

/// The fewest characters of an admin token: 16 random letters and digits cannot be guessed through a
/// network.
const TOKEN_CHARS_MIN: usize = 16;

/// Why a text cannot serve as the admin token.
fn weak_token(token: &str) -> Option<String> {
    if token.chars().any(|c| !c.is_ascii_graphic()) {
        return Some("has a space or a letter that is not ASCII; no header can carry it".into());
    }
    (token.len() < TOKEN_CHARS_MIN).then(|| {
        format!(
            "is shorter than {TOKEN_CHARS_MIN} characters; make one with `openssl rand -hex 16`"
        )
    })
}

fn networks(list: Option<&[String]>, setting: &str, wrong: &mut Vec<Complaint>) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for text in list.unwrap_or_default() {
        let whole = text.parse::<IpNet>();
        match whole.or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from)) {
            Ok(network) => networks.push(network),
            Err(_) => wrong.push(Complaint::new(
                setting,
                format!("{text:?} is not a network such as 10.0.0.0/8"),
            )),
        }
    }
    networks
}

/// The file that would say everything that holds, with secrets blotted out.
fn whole(file: &File, config: &Config) -> File {
    let mut unheard = Vec::new();
    let defaults = rules::defaults(&file.defaults, &mut unheard);
    let mut whole = file.clone();
    let hide = |secret: &mut Option<String>| {
        if secret.is_some() {
            *secret = Some("…".into());
        }
    };
    hide(&mut whole.admin.token);
    whole.admin.tokens.values_mut().for_each(|table| hide(&mut table.token));
    if let Some(jwt) = &mut whole.jwt {
        hide(&mut jwt.secret);
        jwt.jwks_url = jwt.jwks_url.as_deref().map(blot::without_values);
    }
    for lookup in whole.reconcile.iter_mut().chain(whole.lookups.values_mut()) {
        lookup.show_whole();
    }
    whole.effects.values_mut().for_each(effect_file::EffectFile::blot);
    whole.route =
        file.route.iter().map(|table| rules::route(table, &defaults, "", &mut unheard)).collect();
    whole.defaults = defaults;
    whole.listen = Some(config.listen.to_string());
    whole.store = Some(config.store.to_string());
    whole.store_wait_max = Some(Length(config.store_wait_max));
    whole.state_folder = Some(config.state_folder.display().to_string());
    whole.threads = Some(config.threads);
    whole.h2c = Some(config.h2c);
    whole.head_time_max = Some(Length(config.head_time_max));
    whole.write_time_max = Some(Length(config.write_time_max));
    whole.held_bytes_max = Some(Size(config.held_bytes_max));
    whole.late_answers_max = Some(config.late_answers_max);
    whole.drain_max = Some(Length(config.drain_max));
    whole.drain_delay = Some(Length(config.drain_delay));
    whole.admin.listen =
        Some(config.admin.as_ref().map_or_else(|| "off".into(), |admin| admin.listen.to_string()));
    whole.upkeep.sweep_every = Some(Length(config.sweep_every));
    whole.upkeep.reap_every = Some(Length(config.reap_every));
    whole.log.level = Some(config.log.level.clone());
    whole.log.requests = Some(config.log.requests);
    whole.log.fields = Some(config.log.fields.clone());
    whole.health = config.health.as_ref().map(Health::whole);
    whole
}

impl Config {
    /// Every upstream once, the one at the top first.
    pub(crate) fn upstreams(&self) -> Vec<&Upstream> {
        let mut all = vec![&self.upstream];
        for Target { upstream, .. } in &self.targets {
            if !all.contains(&upstream) {
                all.push(upstream);
            }
        }
        all
    }
}

/// What may not change while the gateway runs, and did.
pub(crate) fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let admin_address = |config: &Config| config.admin.as_ref().map(|admin| admin.listen);
    let asked_of = |route: &RouteRules| (route.scope.clone(), route.anonymous);
    let scopes = |config: &Config| -> BTreeMap<String, (Vec<ScopePart>, Anonymous)> {
        let routes = config.routes.iter().chain([&config.defaults]);
        routes.map(|route| (route.path.clone(), asked_of(route))).collect()
    };
    // A route that is new or gone takes its scope with it: its callers move from or to the
    // defaults' scope, and a retry that crosses the reload would run again.
    let scope_of = |config: &Config, path: &str| {
        scopes(config).get(path).cloned().unwrap_or_else(|| asked_of(&config.defaults))
    };
    let paths: Vec<String> = scopes(old).into_keys().chain(scopes(new).into_keys()).collect();
    let scope_changed = paths.iter().any(|path| scope_of(old, path) != scope_of(new, path));
    [
        ("store", old.store != new.store),
        ("state_folder", old.state_folder != new.state_folder),
        ("scope", scope_changed),
        ("fingerprint", old.fingerprint != new.fingerprint),
        ("listen", old.listen != new.listen),
        ("threads", old.threads != new.threads),
        ("admin.listen", admin_address(old) != admin_address(new)),
    ]
    .into_iter()
    .filter_map(|(name, changed)| changed.then_some(name))
    .collect()
}
