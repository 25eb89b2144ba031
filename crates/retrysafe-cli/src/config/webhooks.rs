//! Can the webhooks of a provider be received? (`[webhooks.NAME]`)

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderName;
use retrysafe::webhooks::{
    HmacScheme, NameRule, NamedBy, NamedCall, SecretSource, SignatureEncoding, SignedContent,
    WebhookProvider, WebhookScheme, WebhookSecret,
};
use retrysafe_core::canonical::Pointer;

use super::length::Length;
use super::outcomes::read_pointer;
use super::source::Complaint;
use super::webhook_file::{EncodingFile, SchemeFile, WebhookFile};
use super::{names, read_secret};

/// How many secrets verify at once: the old one and the new one.
const SECRETS_MAX: usize = 2;

/// The longest name of a provider, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// How long secrets count that were read. After that their files are read again, so that a new secret needs no restart.
const SECRETS_FRESH: Duration = Duration::from_secs(1);

/// Where a provider sends its events to, and what they mean.
#[derive(Clone, Debug)]
pub(crate) struct WebhookEndpoint {
    pub path: String,
    pub provider: WebhookProvider,
}

/// The endpoints of all providers, and what is wrong with their tables.
pub(super) fn endpoints(
    tables: &BTreeMap<String, WebhookFile>,
    wrong: &mut Vec<Complaint>,
) -> Vec<WebhookEndpoint> {
    let mut found: Vec<WebhookEndpoint> = Vec::new();
    for (name, table) in tables {
        let Some(endpoint) = endpoint(name, table, wrong) else { continue };
        if let Some(other) = found.iter().find(|other| other.path == endpoint.path) {
            let what =
                format!("is the path of {} too; each provider has its own", other.provider.name);
            wrong.push(Complaint::new(format!("webhooks.{name}.path"), what));
        }
        found.push(endpoint);
    }
    found
}

/// Routes that an endpoint names and that are not there: events about them would wait in vain.
pub(super) fn unknown_routes(endpoints: &[WebhookEndpoint], known: &[&str]) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    for WebhookEndpoint { provider, .. } in endpoints {
        for route in provider.routes.iter().flatten().filter(|route| !known.contains(&&***route)) {
            let what =
                format!("{route:?} is the path of no [[route]]; there are {}", known.join(", "));
            wrong.push(Complaint::new(format!("webhooks.{}.routes", provider.name), what));
        }
    }
    wrong
}

/// What is wrong with the files of secrets, all of it.
pub(crate) fn secret_complaints(tables: &BTreeMap<String, WebhookFile>) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    for (name, table) in tables {
        let Ok(scheme) = scheme(table) else { continue };
        for what in table.secret_files.iter().filter_map(|path| read(&scheme, path).err()) {
            wrong.push(Complaint::new(format!("webhooks.{name}.secret_files"), what));
        }
    }
    wrong
}

fn read(scheme: &WebhookScheme, path: &str) -> Result<WebhookSecret, String> {
    scheme.secret(&read_secret(path)?).map_err(|what| format!("{path} {what}"))
}

/// The endpoint of a table; none if something is wrong with it.
fn endpoint(
    name: &str,
    table: &WebhookFile,
    wrong: &mut Vec<Complaint>,
) -> Option<WebhookEndpoint> {
    let before = wrong.len();
    let mut complain = |setting: &str, what: &str| {
        wrong.push(Complaint::new(format!("webhooks.{name}.{setting}"), what));
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
        complain(
            "path",
            "belongs to a provider whose name is not 1 to 64 letters, digits, `-` and `_`",
        );
    }
    if !is_path(&table.path) {
        complain(
            "path",
            "is not a path such as /webhooks/stripe, without `{`, `%`, `?`, `//` and `.` segments",
        );
    }
    if !(1..=SECRETS_MAX).contains(&table.secret_files.len()) {
        complain(
            "secret_files",
            "takes one file, or two while a secret is exchanged for another one",
        );
    }
    let scheme = scheme(table).map_err(|(setting, what)| complain(setting, &what));
    if table.matches.is_empty() {
        complain(
            "match",
            "is not set: by what does an event name what it is about, such as [{ by = \"id\", at = \"/metadata/retrysafe_id\" }]?",
        );
    }
    let mut rules = Vec::new();
    for rule in &table.matches {
        let by = NamedBy::ALL.into_iter().find(|by| by.name() == rule.by);
        match (by, read_pointer(&rule.at)) {
            (Some(by), Ok(pointer)) => rules.push(NameRule { by, pointer }),
            (None, _) => {
                let names = NamedBy::ALL.map(NamedBy::name).join(", ");
                complain("match", &format!("{:?} is none of {names}", rule.by));
            }
            (Some(_), Err(what)) => complain("match", &what),
        }
    }
    let has = |by: NamedBy| rules.iter().any(|rule| rule.by == by);
    let kinds = table.effects.clone().unwrap_or_default();
    if (has(NamedBy::Effect) || has(NamedBy::Reference)) && kinds.is_empty() {
        complain("effects", "is not set: of which kinds of effects may the provider speak?");
    }
    if has(NamedBy::DownstreamKey) && kinds.is_empty() && table.calls.is_empty() {
        complain(
            "match",
            "names downstream_key, which is the key of an effect or of a flow's call: set `effects` or `calls`",
        );
    }
    // Stripe and Standard Webhooks say where the time of an event stands.
    let is_dated = table.created.is_some() || table.scheme != Some(SchemeFile::Hmac);
    let is_of_request = has(NamedBy::Id) || has(NamedBy::Key) || has(NamedBy::RequestId);
    if is_of_request && !is_dated && table.fence.is_none() {
        complain(
            "created",
            "is not set, and neither is `fence`: an event about a request decides only if it says when it happened, or which attempt it is about",
        );
    }
    let mut pointer = |setting: &str, text: &Option<String>| match text.as_deref().map(read_pointer)
    {
        Some(Ok(pointer)) => Some(pointer),
        Some(Err(what)) => {
            complain(setting, &what);
            None
        }
        None => None,
    };
    let created = pointer("created", &table.created);
    let fence = pointer("fence", &table.fence);
    let scope = pointer("scope", &table.scope);
    let reference = pointer("reference", &table.reference);
    let body_id = table.event_id.clone().filter(|text| !text.starts_with(HEADER));
    let event_id = pointer("event_id", &body_id);
    for (setting, length) in
        [("tolerance", table.tolerance), ("wait", table.wait), ("keep", table.keep)]
    {
        if length.is_some_and(|Length(length)| length.is_zero()) {
            wrong.push(Complaint::new(
                format!("webhooks.{name}.{setting}"),
                "must be longer than nothing",
            ));
        }
    }
    let outcomes = table.outcomes.read(&format!("webhooks.{name}.outcomes"), wrong);
    let scheme = scheme.ok().filter(|_| wrong.len() == before)?;
    let secrets = secret_source(scheme.clone(), table.secret_files.clone());
    let mut provider = WebhookProvider::new(name, scheme, secrets);
    let boxed =
        |list: &[String]| list.iter().map(|text| text.as_str().into()).collect::<Vec<Box<str>>>();
    let or = |set: Option<Length>, usual: Duration| set.map_or(usual, |length| length.0);
    let replace = |usual: Option<Pointer>, set: Option<Pointer>| set.or(usual);
    provider.verifier.tolerance = or(table.tolerance, provider.verifier.tolerance);
    provider.event_id = replace(provider.event_id.take(), event_id);
    provider.happened_at = replace(provider.happened_at.take(), created);
    provider.names = rules;
    provider.fence = fence;
    provider.scope = scope;
    provider.rules = outcomes;
    provider.reference = reference;
    provider.routes = table.routes.as_deref().map(boxed);
    provider.kinds = boxed(&kinds);
    provider.calls = table.calls.iter().map(named_call).collect();
    provider.wait = or(table.wait, provider.wait);
    provider.keep = or(table.keep, provider.keep);
    Some(WebhookEndpoint { path: table.path.clone(), provider })
}

fn named_call(call: &super::webhook_file::CallFile) -> NamedCall {
    NamedCall {
        flow: call.flow.as_str().into(),
        phase: call.phase.as_str().into(),
        place: call.place,
    }
}

/// A path that is spelt in one way.
fn is_path(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./~".contains(&byte);
    let is_segment = |part: &str| !part.is_empty() && !part.starts_with('.');
    let rest = text.strip_prefix('/');
    rest.is_some_and(|rest| rest.bytes().all(is_plain) && rest.split('/').all(is_segment))
}

/// How an id in a header is written.
const HEADER: &str = "header:";

type Wrong = (&'static str, String);

fn scheme(table: &WebhookFile) -> Result<WebhookScheme, Wrong> {
    let of_hmac = [
        ("signature_header", table.signature_header.is_some()),
        ("prefix", table.prefix.is_some()),
        ("encoding", table.encoding.is_some()),
        ("timestamp_header", table.timestamp_header.is_some()),
        ("signed", table.signed.is_some()),
    ];
    let stray = of_hmac.into_iter().find(|(_, is_set)| *is_set).map(|(setting, _)| setting);
    let id_header = table.event_id.as_deref().and_then(|text| text.strip_prefix(HEADER));
    match (table.scheme, stray, id_header) {
        (None, _, _) => Err(("scheme", "is not set: stripe, standard or hmac?".into())),
        (Some(SchemeFile::Stripe | SchemeFile::Standard), Some(setting), _) => {
            Err((setting, "is for scheme = \"hmac\" alone; leave it out".into()))
        }
        (Some(SchemeFile::Stripe | SchemeFile::Standard), None, Some(_)) => {
            Err(("event_id", "names a header that this scheme does not sign; leave it out".into()))
        }
        (Some(SchemeFile::Stripe), None, None) => Ok(WebhookScheme::Stripe),
        (Some(SchemeFile::Standard), None, None) => Ok(WebhookScheme::Standard),
        (Some(SchemeFile::Hmac), _, id) => hmac(table, id).map(WebhookScheme::Hmac),
    }
}

fn hmac(table: &WebhookFile, id: Option<&str>) -> Result<HmacScheme, Wrong> {
    let name = |setting: &'static str, text: &str| -> Result<HeaderName, Wrong> {
        names::read(text).map_err(|what| (setting, what))
    };
    let signature = table.signature_header.as_deref();
    let signature = signature
        .ok_or(("signature_header", "is not set: where does the signature stand?".to_owned()))?;
    let timestamp = table.timestamp_header.as_deref();
    let timestamp = timestamp.map(|text| name("timestamp_header", text)).transpose()?;
    let usual = if timestamp.is_some() { "{timestamp}.{body}" } else { "{body}" };
    let signed = SignedContent::parse(table.signed.as_deref().unwrap_or(usual));
    let scheme = HmacScheme {
        signature: name("signature_header", signature)?,
        prefix: table.prefix.as_deref().unwrap_or_default().into(),
        encoding: match table.encoding {
            None | Some(EncodingFile::Hex) => SignatureEncoding::Hex,
            Some(EncodingFile::Base64) => SignatureEncoding::Base64,
        },
        timestamp,
        id: id.map(|text| name("event_id", text)).transpose()?,
        signed: signed.map_err(|what| ("signed", what.to_owned()))?,
    };
    scheme.check().map_err(|what| ("signed", what.to_owned()))?;
    Ok(scheme)
}

/// Reads secrets from their files, at most once a second.
fn secret_source(scheme: WebhookScheme, files: Vec<String>) -> SecretSource {
    let held: Mutex<Option<(Instant, Vec<WebhookSecret>)>> = Mutex::new(None);
    Arc::new(move || {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, secrets)) = held.as_ref()
            && at.elapsed() < SECRETS_FRESH
        {
            return Ok(secrets.clone());
        }
        let secrets =
            files.iter().map(|path| read(&scheme, path)).collect::<Result<Vec<_>, _>>()?;
        *held = Some((Instant::now(), secrets.clone()));
        Ok(secrets)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        path = "/webhooks/stripe"
        scheme = "stripe"
        secret_files = ["/run/secrets/stripe"]
        match = [{ by = "id", at = "/data/object/metadata/retrysafe_id" }]
        outcomes.executed.when = { "/type" = "charge.succeeded" }
    "#;

    fn told(text: &str) -> String {
        let table: WebhookFile = toml::from_str(text).unwrap();
        let mut wrong = Vec::new();
        endpoints(&[("stripe".to_owned(), table)].into(), &mut wrong);
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_table_is_read_and_everything_wrong_with_it_is_named() {
        assert_eq!(told(WHOLE), "");
        let undated = "scheme = \"hmac\"\nsignature_header = \"X-Signature\"";
        let hmac = format!("{undated}\ncreated = \"/at\"");
        for dated in [&hmac, &format!("{undated}\nfence = \"/fence\"")] {
            assert_eq!(told(&WHOLE.replace("scheme = \"stripe\"", dated)), "");
        }
        for (from, to, what) in [
            ("\"/webhooks/stripe\"", "\"webhooks\"", "webhooks.stripe.path"),
            ("\"/webhooks/stripe\"", "\"/a/../b\"", "webhooks.stripe.path"),
            ("\"/webhooks/stripe\"", "\"/a%2fb\"", "webhooks.stripe.path"),
            ("[\"/run/secrets/stripe\"]", "[]", "secret_files"),
            ("scheme = \"stripe\"", "", "`webhooks.stripe.scheme`: is not set"),
            ("scheme = \"stripe\"", "scheme = \"hmac\"", "signature_header"),
            ("scheme = \"stripe\"", "scheme = \"stripe\"\nprefix = \"x\"", "hmac\" alone"),
            (
                "scheme = \"stripe\"",
                "scheme = \"stripe\"\nevent_id = \"header:X-Id\"",
                "does not sign",
            ),
            (
                "scheme = \"stripe\"",
                &format!("{hmac}\ntimestamp_header = \"X-Time\"\nsigned = \"{{body}}\""),
                "must be a part",
            ),
            (
                "scheme = \"stripe\"",
                &format!("{hmac}\nevent_id = \"header:X-Id\""),
                "must be a part",
            ),
            ("scheme = \"stripe\"", undated, "webhooks.stripe.created"),
            ("by = \"id\"", "by = \"name\"", "is none of id, key"),
            ("by = \"id\"", "by = \"reference\"", "effects"),
            ("by = \"id\"", "by = \"downstream_key\"", "set `effects` or `calls`"),
            ("\"/data", "\"data", "not a JSON pointer"),
            (
                "outcomes.executed.when = { \"/type\" = \"charge.succeeded\" }",
                "",
                "webhooks.stripe.outcomes",
            ),
            ("scheme = \"stripe\"", "scheme = \"stripe\"\nwait = \"0s\"", "longer than nothing"),
        ] {
            let told = told(&WHOLE.replace(from, to));
            assert!(told.contains(what), "{from} → {to}: {told:?}");
        }
    }

    #[test]
    fn a_new_secret_counts_without_a_restart_and_a_missing_one_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret").display().to_string();
        let source = secret_source(WebhookScheme::Stripe, vec![path.clone()]);
        assert!(source().unwrap_err().contains("no such file"));
        std::fs::write(&path, "whsec_0123456789abcdef\n").unwrap();
        assert_eq!(source().unwrap().len(), 1);
    }
}
