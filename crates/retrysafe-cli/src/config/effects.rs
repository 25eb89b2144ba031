//! How are the effects of one kind delivered over HTTP? (`[effects.KIND]`)
//!
//! What the file says, and whether it can be done. What a receiver remembers must be said: it decides whether an effect whose answer
//! was lost is sent again, and no default of ours could be right for everybody.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use retrysafe::outbox::Receiver;
use retrysafe_core::units::show_duration;

use super::destinations::{Destinations, Reference};
use super::effect_file::{EffectFile, ReceiverTlsFile};
use super::length::Length;
use super::lookup::{self, LookupRules, LookupSubject};
use super::lookup_file::{LookupAbsence, LookupFile};
use super::source::Complaint;
use super::statuses::StatusRules;
use super::{names, networks};

/// How the effects of one kind are delivered.
#[derive(Clone, Debug)]
pub(crate) struct EffectRules {
    pub kind: String,
    pub destinations: Destinations,
    pub method: Method,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub key_header: HeaderName,
    pub remembers_keys_for: Option<Duration>,
    pub receiver: Receiver,
    pub at_once_per_destination: Option<NonZeroU32>,
    pub per_second_per_destination: Option<NonZeroU32>,
    pub statuses: StatusRules,
    pub reference: Option<Reference>,
    pub lookup: Option<LookupRules>,
    pub allow_networks: Vec<IpNet>,
    pub secret_files: Vec<String>,
    pub tls: ReceiverTlsFile,
}

/// Headers that the worker sets itself.
const OWN_HEADERS: [HeaderName; 4] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION];

/// How the headers of a signature begin.
const SIGNATURE_HEADERS: &str = "webhook-";

/// The one among them that holds the key anyway.
const SIGNATURE_ID: &str = "webhook-id";

/// How many secrets may sign at once: the old one and the new one.
const SECRETS_MAX: usize = 2;

/// The longest deadline: the library's own.
const DEADLINE_MAX: Duration = Duration::from_secs(60 * 60);

/// The pauses of the library, unless they are set.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60 * 60);

/// The rules of all kinds, and what is wrong with their tables.
pub(super) fn effects(
    tables: &BTreeMap<String, EffectFile>,
    wrong: &mut Vec<Complaint>,
) -> Vec<EffectRules> {
    tables.iter().filter_map(|(kind, table)| rules(kind, table, wrong)).collect()
}

/// The rules of a kind; none if something is wrong with its table.
fn rules(kind: &str, table: &EffectFile, wrong: &mut Vec<Complaint>) -> Option<EffectRules> {
    let before = wrong.len();
    let at = |setting: &str| format!("effects.{kind}.{setting}");
    let destinations = Destinations::read(table.url.as_deref(), table.destinations.as_deref())
        .map_err(|(setting, what)| wrong.push(Complaint::new(at(setting), what)));
    let method = read_method(table.method.as_deref().unwrap_or("POST"))
        .map_err(|what| wrong.push(Complaint::new(at("method"), what)));
    let key_header =
        read_key_header(table).map_err(|what| wrong.push(Complaint::new(at("key_header"), what)));
    let headers = headers(table, key_header.as_ref().ok(), &at, wrong);
    let receiver =
        receiver(table).map_err(|(setting, what)| wrong.push(Complaint::new(at(setting), what)));
    let lists = [&table.delivered, &table.rejected, &table.no_effect, &table.unknown];
    let statuses = StatusRules::read(lists)
        .map_err(|(setting, what)| wrong.push(Complaint::new(at(setting), what)));
    let reference = table.reference.as_deref().map(Reference::read).transpose();
    let reference = reference.map_err(|what| wrong.push(Complaint::new(at("reference"), what)));
    let lookup = table.lookup.as_ref().and_then(|lookup| {
        let receiver = receiver.as_ref().ok();
        wrong.extend(receiver.and_then(|receiver| unripe(lookup, receiver, &at("lookup"))));
        lookup::read(lookup, &at("lookup"), LookupSubject::Effects, wrong)
    });
    let allow_networks = networks(table.allow_networks.as_deref(), &at("allow_networks"), wrong);
    let secret_files = table.signing.as_ref().map(|signing| signing.secret_files.clone());
    if secret_files.as_ref().is_some_and(|files| !(1..=SECRETS_MAX).contains(&files.len())) {
        let what = "takes one file, or two while a secret is exchanged for another one";
        wrong.push(Complaint::new(at("signing.secret_files"), what));
    }
    if table.tls.certificate.is_some() != table.tls.key.is_some() {
        let what = "needs both `certificate` and `key`, or neither";
        wrong.push(Complaint::new(at("tls.certificate"), what));
    }
    if wrong.len() > before {
        return None;
    }
    let destinations = destinations.ok()?;
    let method = method.ok()?;
    let key_header = key_header.ok()?;
    let receiver = identified(receiver.ok()?, &destinations, &method, &key_header);
    Some(EffectRules {
        kind: kind.to_owned(),
        destinations,
        method,
        headers,
        key_header,
        remembers_keys_for: table.remembers_keys_for.map(|length| length.0),
        receiver,
        at_once_per_destination: table.at_once_per_destination,
        per_second_per_destination: table.per_second_per_destination,
        statuses: statuses.ok()?,
        reference: reference.ok()?,
        lookup,
        allow_networks,
        secret_files: secret_files.unwrap_or_default(),
        tls: table.tls.clone(),
    })
}

/// The receiver, and which one it is. Another URL, another method or another header for the key is another receiver: it has never
/// seen the keys of what was sent before.
fn identified(
    receiver: Receiver,
    destinations: &Destinations,
    method: &Method,
    key_header: &HeaderName,
) -> Receiver {
    let url = destinations.otherwise().map(|destination| destination.uri.to_string());
    receiver.identity(&format!("{method} {key_header}"), url.as_deref())
}

/// What is wrong with the settle time of a lookup whose absence is proof: a worker may send until its lease ends, and what it sent is on
/// its way for a while.
fn unripe(lookup: &LookupFile, receiver: &Receiver, at: &str) -> Option<Complaint> {
    let needed = receiver.doubt_lasts();
    let is_short = lookup.absence == Some(LookupAbsence::Proof) && lookup.settle_time() < needed;
    is_short.then(|| {
        let needed = show_duration(needed);
        let what = format!(
            "is shorter than {needed}: the lease of a delivery (three times `deadline`), `deadline` and `margin` together. An \
             effect that may still arrive would be sent again"
        );
        Complaint::new(format!("{at}.settle_time"), what)
    })
}

/// The header that holds the key. One that the worker sets itself would replace the key, and nobody would notice.
fn read_key_header(table: &EffectFile) -> Result<HeaderName, String> {
    let name = names::read(table.key_header.as_deref().unwrap_or("Idempotency-Key"))?;
    if let Some(why) = names::unfit_as_key(&name) {
        return Err(why);
    }
    let is_signature = name.as_str().starts_with(SIGNATURE_HEADERS);
    if table.signing.is_some() && is_signature && name != SIGNATURE_ID {
        return Err(format!(
            "{name} is a part of the signature; use Idempotency-Key or {SIGNATURE_ID}"
        ));
    }
    Ok(name)
}

fn read_method(text: &str) -> Result<Method, String> {
    // Methods are told apart by their case: `post` is none that a receiver knows.
    let is_upper = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let method = Method::from_bytes(text.as_bytes()).ok();
    let method = method.filter(|method| is_upper && *method != Method::CONNECT);
    let method = method.ok_or_else(|| format!("{text:?} is not a method such as POST"))?;
    if method.is_safe() {
        return Err(format!(
            "{text} changes nothing at a receiver, so it cannot deliver an effect"
        ));
    }
    Ok(method)
}

fn headers(
    table: &EffectFile,
    key_header: Option<&HeaderName>,
    at: &impl Fn(&str) -> String,
    wrong: &mut Vec<Complaint>,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    for (name, value) in &table.headers {
        match read_header(name, value, key_header, table.signing.is_some()) {
            Ok(header) => headers.push(header),
            Err(what) => wrong.push(Complaint::new(at(&format!("headers.{name}")), what)),
        }
    }
    headers
}

fn read_header(
    name: &str,
    value: &str,
    key_header: Option<&HeaderName>,
    is_signed: bool,
) -> Result<(HeaderName, HeaderValue), String> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is not a header name")?;
    let is_signature = is_signed && name.as_str().starts_with(SIGNATURE_HEADERS);
    if OWN_HEADERS.contains(&name) || Some(&name) == key_header || is_signature {
        return Err("is set by the worker itself; leave it out".into());
    }
    // The value may be a credential, so it is not shown.
    let mut value =
        HeaderValue::from_str(value).map_err(|_| "has a value that no header can carry")?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// What is known of the receiver; or the setting that is wrong, and why.
fn receiver(table: &EffectFile) -> Result<Receiver, (&'static str, String)> {
    let takes_no_key = table.takes_no_key.unwrap_or(false);
    let mut receiver = match (table.remembers_keys_for, takes_no_key) {
        (Some(_), true) => {
            let what =
                "`remembers_keys_for` is set as well: a receiver remembers keys, or takes none";
            return Err(("takes_no_key", what.into()));
        }
        (None, false) => {
            let what = "is not set, and nobody else can know it. Say remembers_keys_for = \"24h\" if the receiver does \
                        nothing a second time for the same key within that time; an effect whose answer was lost is then \
                        sent again. Else say takes_no_key = true; such an effect is then unknown, and a person decides";
            return Err(("remembers_keys_for", what.into()));
        }
        (Some(Length(window)), false) => Receiver::remembers_keys_for(window),
        (None, true) => Receiver::takes_no_key(),
    };
    if let Some(Length(deadline)) = table.deadline {
        if deadline.is_zero() || deadline > DEADLINE_MAX {
            let longest = show_duration(DEADLINE_MAX);
            return Err((
                "deadline",
                format!("must be longer than nothing and {longest} at the most"),
            ));
        }
        receiver = receiver.deadline(deadline);
    }
    if let Some(Length(margin)) = table.margin {
        receiver = receiver.margin(margin);
    }
    if !takes_no_key && receiver.resend_for().is_none() {
        let what = "is too short: the lease of a delivery (three times `deadline`), `deadline` and `margin` are taken off \
                    it, and nothing is left in which an effect could be sent again. Lower `deadline` or `margin`, or say \
                    takes_no_key = true";
        return Err(("remembers_keys_for", what.into()));
    }
    if let Some(number) = table.at_once {
        receiver = receiver.at_once(usize::try_from(number.get()).unwrap_or(usize::MAX));
    }
    if let Some(number) = table.per_second {
        receiver = receiver.per_second(number.get());
    }
    if let Some(number) = table.failures_max {
        receiver = receiver.failures_max(number.get());
    }
    let base = table.backoff.map_or(BACKOFF, |length| length.0);
    let cap = table.backoff_max.map_or(BACKOFF_MAX.max(base), |length| length.0);
    if cap < base {
        return Err(("backoff_max", "is shorter than `backoff`".into()));
    }
    Ok(receiver.backoff(base, cap))
}

#[cfg(test)]
mod tests {
    use super::super::effect_file::SigningFile;
    use super::*;

    #[test]
    fn a_key_is_not_put_where_the_signature_stands() {
        let name = |name: &str, is_signed: bool| {
            let signing = is_signed.then(SigningFile::default);
            let key_header = Some(name.to_owned());
            read_key_header(&EffectFile { key_header, signing, ..EffectFile::default() })
        };
        assert!(name("webhook-signature", true).unwrap_err().contains("webhook-id"));
        assert!(name("webhook-timestamp", true).is_err());
        assert!(name("webhook-id", true).is_ok(), "the id of a signed effect is its key");
        assert!(name("webhook-signature", false).is_ok());
        for taken in ["Host", "Content-Type", "Connection"] {
            assert!(name(taken, false).is_err(), "{taken}");
        }
    }
}
