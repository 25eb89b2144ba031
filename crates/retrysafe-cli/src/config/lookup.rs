//! Can a lookup ever find out anything?

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, StatusCode, Uri};
use retrysafe::evidence::{
    AnswerRule, Condition, DocumentRules, RuleValue, RuledOutcome, WantedValue,
};
use retrysafe::upkeep::Schedule;
use retrysafe_core::policy::Absence;

use super::list::ListRules;
use super::lookup_file::{CallFile, LookupFile};
use super::outcomes::read_pointer;
use super::{Complaint, File, RouteRules, Upstream, server};

/// Headers that the lookup sets itself.
const OWN_HEADERS: [HeaderName; 5] =
    [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, ACCEPT_ENCODING];

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupSubject {
    /// Requests, by their records.
    Requests,
    /// A call of a flow.
    Calls,
    /// Effects of one kind.
    Effects,
}

/// How something unknown is looked up.
#[derive(Clone, Debug)]
pub(crate) struct LookupRules {
    /// The table, such as `reconcile` or `lookups.stripe`.
    pub table: String,
    pub subject: LookupSubject,
    /// Where to ask; none for the upstream itself.
    pub server: Option<Upstream>,
    /// The path, with its placeholders.
    pub template: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Only these routes; none for all that no other table names.
    pub routes: Option<Vec<String>>,
    pub call: Option<CallFile>,
    pub documents: DocumentRules,
    pub absent_statuses: Vec<u16>,
    pub absent_when: Vec<Vec<Condition>>,
    pub list: Option<ListRules>,
    pub schedule: Schedule,
    pub absence: Absence,
}

impl LookupSubject {
    /// What stands for something of the subject in the URL of a lookup.
    const fn placeholders(self) -> &'static [&'static str] {
        match self {
            Self::Requests => &["id", "fence", "path"],
            Self::Calls => &["key", "id", "fence", "path"],
            Self::Effects => &["key", "id", "name"],
        }
    }

    /// What an item of a list must hold.
    pub(crate) const fn identity(self) -> &'static str {
        match self {
            Self::Requests => "id",
            Self::Calls | Self::Effects => "key",
        }
    }
}

/// What stands for a window of time in the URL of a list.
const WINDOW: [&str; 4] = ["from", "until", "from_iso", "until_iso"];

/// How unknown outcomes are looked up: by whom some routes or calls say so, and by `[reconcile]` for the rest.
pub(super) fn read_all(
    file: &File,
    routes: &[RouteRules],
    defaults: &RouteRules,
    wrong: &mut Vec<Complaint>,
) -> Vec<LookupRules> {
    let mut rules = Vec::new();
    let mut claimed: BTreeMap<String, String> = BTreeMap::new();
    for (name, table) in &file.lookups {
        let at = format!("lookups.{name}");
        if table.routes.is_none() && table.call.is_none() {
            let what = "needs `routes` or `call`: what is looked up here? [reconcile] is for everything else";
            wrong.push(Complaint::new(at.clone(), what));
        }
        for (place, path) in table.routes.iter().flatten().enumerate() {
            let setting = format!("{at}.routes[{place}]");
            if !routes.iter().any(|route| route.path == *path) {
                let what = format!("{path:?} is not the path of a [[route]]");
                wrong.push(Complaint::new(setting, what));
            } else if let Some(other) = claimed.insert(path.clone(), at.clone()) {
                let what = format!("{path:?} stands in `{other}.routes` too");
                wrong.push(Complaint::new(setting, what));
            }
        }
        let subject =
            if table.call.is_some() { LookupSubject::Calls } else { LookupSubject::Requests };
        // The route of a call's record is the application's word: it may be any of them.
        let own = routes.iter().chain([defaults]).filter(|route| {
            let is_named = table.routes.iter().flatten().any(|path| *path == route.path);
            is_named || table.call.is_some()
        });
        wrong.extend(own.filter_map(|route| unripe(&at, table.settle_time(), route)));
        rules.extend(read(table, &at, subject, wrong));
    }
    if let Some(table) = &file.reconcile {
        let misplaced = [("routes", table.routes.is_some()), ("call", table.call.is_some())];
        for (setting, _) in misplaced.iter().filter(|(_, is_set)| *is_set) {
            let what =
                "is for [lookups.NAME]; [reconcile] is for everything that no such table names";
            wrong.push(Complaint::new(format!("reconcile.{setting}"), what));
        }
        let rest = routes.iter().chain([defaults]);
        let rest = rest.filter(|route| !claimed.contains_key(&route.path));
        wrong.extend(rest.filter_map(|route| unripe("reconcile", table.settle_time(), route)));
        rules.extend(read(table, "reconcile", LookupSubject::Requests, wrong));
    }
    rules
}

/// The rules of a table, and what is wrong with it. None if something is.
pub(crate) fn read(
    file: &LookupFile,
    table: &str,
    subject: LookupSubject,
    wrong: &mut Vec<Complaint>,
) -> Option<LookupRules> {
    let before = wrong.len();
    let mut complain = |setting: &str, what: String| {
        wrong.push(Complaint::new(format!("{table}.{setting}"), what));
    };
    let place = read_url(file, subject).map_err(|what| complain("url", what)).ok();
    let mut headers = Vec::new();
    for (name, value) in &file.headers {
        match read_header(name, value) {
            Ok(header) => headers.push(header),
            Err(what) => complain(&format!("headers.{name}"), what),
        }
    }
    for status in file.absent_statuses.iter().flatten() {
        match StatusCode::from_u16(*status) {
            Ok(status) if status.is_client_error() || status.is_server_error() => {}
            Ok(_) | Err(_) => complain(
                "absent_statuses",
                format!("{status} does not say that the upstream lacks something; use 404 or 410"),
            ),
        }
    }
    let absent_when = file.absent_when.as_ref().map_or(Ok(Vec::new()), |when| when.read());
    let absent_when = absent_when.map_err(|what| complain("absent_when", what)).unwrap_or_default();
    for (setting, length) in [("timeout", file.timeout), ("every", file.every)] {
        if length.is_some_and(|length| length.0.is_zero()) {
            complain(setting, "must be longer than nothing".into());
        }
    }
    let list = file.list.as_ref().and_then(|list| {
        ListRules::read(list)
            .map_err(|(setting, what)| complain(&format!("list.{setting}"), what))
            .ok()
    });
    misplaced(file, subject, &mut complain);
    let documents = read_documents(file, table, wrong);
    if wrong.len() > before {
        return None;
    }
    let (server, template) = place?;
    Some(LookupRules {
        table: table.to_owned(),
        subject,
        server,
        template,
        headers,
        routes: file.routes.clone(),
        call: file.call.clone(),
        documents,
        absent_statuses: file.absent_statuses.clone().unwrap_or_else(|| vec![404]),
        absent_when,
        list,
        schedule: file.schedule(),
        absence: file.absence.map_or(Absence::default(), Into::into),
    })
}

/// Settings that belong to lookups of another subject.
fn misplaced(file: &LookupFile, subject: LookupSubject, complain: &mut impl FnMut(&str, String)) {
    let is_of_effects = subject == LookupSubject::Effects;
    if file.absence.is_some() && !is_of_effects {
        complain("absence", "is a setting of the route: write it there, or in [defaults]".into());
    }
    if is_of_effects && (file.routes.is_some() || file.call.is_some()) {
        let setting = if file.routes.is_some() { "routes" } else { "call" };
        complain(setting, "makes no sense here: this lookup is for effects".into());
    }
    if file.routes.is_some() && file.call.is_some() {
        complain(
            "call",
            "`routes` is set as well: a lookup is about requests or about a call".into(),
        );
    }
    if let Some(call) = &file.call {
        for (setting, text) in [("flow", &call.flow), ("phase", &call.phase)] {
            if text.is_empty() {
                complain(&format!("call.{setting}"), "is not set".into());
            }
        }
    }
}

/// What the answers mean: by one pointer and three lists, or by rules.
fn read_documents(file: &LookupFile, table: &str, wrong: &mut Vec<Complaint>) -> DocumentRules {
    let LookupFile { pointer, executed, not_executed, pending, response, outcomes, .. } = file;
    let short = [
        ("pointer", pointer.is_some()),
        ("executed", executed.is_some()),
        ("not_executed", not_executed.is_some()),
        ("pending", pending.is_some()),
        ("response", response.is_some()),
    ];
    if let Some(outcomes) = outcomes {
        let rules = outcomes.read(&format!("{table}.outcomes"), wrong);
        if let Some((setting, _)) = short.iter().find(|(_, is_set)| *is_set) {
            let what = format!("`{table}.outcomes` says what answers mean; leave this out");
            wrong.push(Complaint::new(format!("{table}.{setting}"), what));
        }
        return rules;
    }
    let mut complain = |setting: &str, what: String| {
        wrong.push(Complaint::new(format!("{table}.{setting}"), what));
    };
    let place = read_pointer(pointer.as_deref().unwrap_or("/state"))
        .map_err(|what| complain("pointer", what));
    let Ok(place) = place else { return DocumentRules::default() };
    let values = |list: &Option<Vec<String>>, default: RuledOutcome| {
        let texts = list.clone().unwrap_or_else(|| vec![default.name().to_owned()]);
        let values: Vec<RuleValue> = texts.iter().flat_map(|text| values_of(text)).collect();
        let wanted = WantedValue::OneOf(values);
        vec![vec![Condition { pointer: place.clone(), wanted }]]
    };
    let rules = DocumentRules {
        executed: values(executed, RuledOutcome::Executed),
        not_executed: values(not_executed, RuledOutcome::NotExecuted),
        pending: values(pending, RuledOutcome::Pending),
        answer: response.as_deref().and_then(|pointer| {
            read_pointer(pointer)
                .map(AnswerRule::Whole)
                .map_err(|what| complain("response", what))
                .ok()
        }),
        ..DocumentRules::default()
    };
    if let Some((one, other, shared)) = rules.conflict() {
        let what = format!("{shared} stands in `{}` too; a state means one thing", one.name());
        complain(other.name(), what);
    }
    rules
}

/// The values that a text of the short lists stands for: itself, and the number or the boolean that is written like it.
fn values_of(text: &str) -> Vec<RuleValue> {
    let boolean = text.parse::<bool>().ok().map(RuleValue::boolean);
    [Some(RuleValue::text(text)), RuleValue::number(text), boolean].into_iter().flatten().collect()
}

/// The URL's server, none for the upstream itself, and its path with placeholders.
fn split(url: &str) -> Result<(Option<Upstream>, String), String> {
    if url.starts_with('/') {
        return Ok((None, url.to_owned()));
    }
    let end = url.find("://").and_then(|at| {
        let rest = url.get(at + 3..)?;
        rest.find('/').map(|slash| at + 3 + slash)
    });
    let (base, path) = url.split_at(end.unwrap_or(url.len()));
    let path = if path.is_empty() { "/" } else { path };
    match server(base) {
        Some(base) => Ok((Some(base), path.to_owned())),
        None => Err("is neither a path of the upstream such as /requests/{id} nor a URL".into()),
    }
}

fn read_url(
    file: &LookupFile,
    subject: LookupSubject,
) -> Result<(Option<Upstream>, String), String> {
    let url = &file.url;
    let known = subject.placeholders();
    let first = subject.identity();
    if url.is_empty() {
        return Err(format!("is not set: what is to be asked, such as /requests/{{{first}}}?"));
    }
    let (server, path) = split(url)?;
    if server.is_none() && subject == LookupSubject::Effects {
        return Err("is a path, and a worker has no upstream: write the whole URL".into());
    }
    let mut filled = String::new();
    let mut names = Vec::new();
    let mut rest = path.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or("has a brace that is not closed")?;
        let is_window = file.list.is_some() && WINDOW.contains(&name);
        if !known.contains(&name) && !is_window {
            let known: Vec<String> = known.iter().map(|name| format!("{{{name}}}")).collect();
            let (last, others) = known.split_last().ok_or("has a placeholder")?;
            let window =
                if WINDOW.contains(&name) { "; a window of time is for a `list`" } else { "" };
            return Err(format!(
                "there is no {{{name}}}; there are {} and {last}{window}",
                others.join(", ")
            ));
        }
        names.push(name);
        filled.push_str(before);
        filled.push('1');
        rest = after;
    }
    filled.push_str(rest);
    let is_one = names.iter().any(|name| matches!(*name, "id" | "key"));
    if !is_one && file.list.is_none() {
        return Err(format!("has no {{{first}}}: every lookup would ask the same question"));
    }
    match filled.parse::<Uri>() {
        Ok(_) => Ok((server, path)),
        Err(error) => Err(format!("is not a path: {error}")),
    }
}

fn read_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is not a header name")?;
    if OWN_HEADERS.contains(&name) {
        return Err("is set by the lookup itself; leave it out".into());
    }
    // The value may be a credential, so it is not shown.
    let mut value =
        HeaderValue::from_str(value).map_err(|_| "has a value that no header can carry")?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// What is wrong with the settle time of a route on which an absence is proof: its owner may send
/// until its lease ends, and what it sent is on its way for as long as the upstream may take.
pub(super) fn unripe(table: &str, settle_time: Duration, route: &RouteRules) -> Option<Complaint> {
    let needed = route.policy.lease.saturating_add(route.upstream_timeout);
    let is_short = route.policy.absence == Absence::Proof && settle_time < needed;
    is_short.then(|| {
        let what = format!(
            "is shorter than `lease` and `upstream_timeout` together ({needed:?}) on {}, where an absence \
             is proof: a request that may still arrive would be run again",
            route.path
        );
        Complaint::new(format!("{table}.settle_time"), what)
    })
}

#[cfg(test)]
mod tests {
    use super::super::length::Length;
    use super::*;

    fn told_of(table: &LookupFile, subject: LookupSubject) -> String {
        let mut wrong = Vec::new();
        let rules = read(table, "reconcile", subject, &mut wrong);
        assert_eq!(rules.is_some(), wrong.is_empty());
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    fn told(table: &LookupFile) -> String {
        told_of(table, LookupSubject::Requests)
    }

    fn asking(url: &str) -> LookupFile {
        LookupFile { url: url.into(), ..LookupFile::default() }
    }

    #[test]
    fn a_lookup_asks_about_one_request() {
        for (url, what) in [
            ("", "is not set"),
            ("/lookup", "has no {id}"),
            ("/lookup/{fence}", "has no {id}"),
            ("/lookup/{key}/{id}", "there is no {key}; there are {id}, {fence} and {path}"),
            ("/lookup/{ID}", "there is no {ID}"),
            ("/lookup/{id}/{from}", "a window of time is for a `list`"),
            ("/lookup/{id", "not closed"),
            ("lookup/{id}", "neither a path"),
            ("ftp://x/{id}", "neither a path"),
            ("/look up/{id}", "is not a path"),
        ] {
            let told = told(&asking(url));
            assert!(told.contains("reconcile.url") && told.contains(what), "{url}: {told}");
        }
        for url in ["/l/{id}", "https://api.test:8443/l?id={id}&fence={fence}&path={path}"] {
            assert_eq!(told(&asking(url)), "", "{url}");
        }
        assert_eq!(told_of(&asking("/l/{key}"), LookupSubject::Calls), "");
        let told = told_of(&asking("/l/{key}"), LookupSubject::Effects);
        assert!(told.contains("write the whole URL"), "{told}");
        assert_eq!(told_of(&asking("https://r.test/l/{key}"), LookupSubject::Effects), "");
    }

    #[test]
    fn everything_wrong_with_a_lookup_is_named_and_no_credential_is_shown() {
        let texts = |list: &[&str]| Some(list.iter().map(|text| (*text).to_owned()).collect());
        let table = LookupFile {
            headers: [("Host", "x"), ("a b", "y"), ("Authorization", "sk_live\n")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            executed: texts(&["done", "pending"]),
            not_executed: texts(&["done"]),
            absent_statuses: Some(vec![200, 404, 999]),
            timeout: Some(Length(Duration::ZERO)),
            absence: Some(super::super::lookup_file::LookupAbsence::Proof),
            ..asking("/l/{id}")
        };
        let told = told(&table);
        for part in [
            "headers.Host",
            "headers.a b",
            "headers.Authorization",
            "`reconcile.not_executed`: /state = \"done\" stands in `executed` too",
            "200 does not",
            "999 does not",
            "reconcile.timeout",
            "reconcile.absence",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(told.lines().count(), 8, "{told}");
        assert!(!told.contains("sk_live"), "{told}");
    }

    #[test]
    fn rules_and_lists_do_not_mix() {
        let text =
            "url = \"/l/{id}\"\npointer = \"/s\"\n[outcomes]\npending.when = { \"/s\" = 1 }\n";
        let told = told(&toml::from_str(text).unwrap());
        assert!(told.contains("`reconcile.pointer`: `reconcile.outcomes` says"), "{told}");
        let text = "url = \"/l/{id}\"\npointer = \"s\"\n";
        assert!(self::told(&toml::from_str(text).unwrap()).contains("not a JSON pointer"));
        let schedule = |text: &str| {
            let file: LookupFile =
                toml::from_str(&format!("url = \"/l/{{id}}\"\nschedule = {text}\n")).unwrap();
            file.schedule().pauses.to_string()
        };
        assert_eq!(schedule("\"0s, 2x5m\""), "0s, 2×5m");
        assert_eq!(schedule("[\"0s\", \"2×5m\"]"), "0s, 2×5m");
        let text = "url = \"/l/{id}\"\nschedule = \"5m, 1m\"\n";
        let error = toml::from_str::<LookupFile>(text).unwrap_err().to_string();
        assert!(error.contains("pauses do not become shorter"), "{error}");
    }

    #[test]
    fn urls_are_split_before_their_placeholders() {
        let (base, path) = split("https://api.test:8443/by-id/{id}?f={fence}").unwrap();
        let base = base.unwrap();
        assert_eq!((base.authority.as_str(), base.port, base.tls), ("api.test:8443", 8443, true));
        assert_eq!(path, "/by-id/{id}?f={fence}");
        assert!(split("ftp://x/y").is_err() && split("x/y").is_err());
    }
}
