//! What does an event name, and what does it say?
//!
//! It is read when it arrives, and again whenever it is applied: the rules may have changed meanwhile.

use retrysafe_core::canonical::Pointer;
use retrysafe_core::key::Key;
use retrysafe_core::scope::Id;
use retrysafe_core::time::Time;
use sha2::{Digest as _, Sha256};

use super::provider::{NamedBy, WebhookProvider};
use super::verify::VerifiedWebhook;
use crate::evidence::{DocumentVerdict, JsonDocument, JsonItem};

/// The longest id and the longest name of an event, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// An event that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadEvent {
    pub(super) event_id: String,
    /// When it happened, in its own words. The time of its signature does not stand in: a provider that sends an event again signs it anew.
    pub(super) happened_at: Option<Time>,
    pub(super) names: Vec<EventName>,
    pub(super) meaning: EventMeaning,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventMeaning {
    /// It is evidence.
    Evidence(DocumentVerdict),
    /// It says nothing that counts, for this reason.
    Nothing(String),
    /// It cannot be read, for this reason.
    Malformed(String),
}

/// What an event names: what it is, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventName {
    pub(super) by: NamedBy,
    pub(super) value: String,
}

impl EventName {
    fn new(by: NamedBy, text: &str) -> Option<Self> {
        let value = match by {
            NamedBy::Id => Id::parse(text)?.to_string(),
            // A key may be personal, so its digest stands for it, as everywhere.
            NamedBy::Key => digest_of(&Key::new(text).ok()?),
            NamedBy::Effect => text.parse::<u64>().ok()?.to_string(),
            NamedBy::RequestId | NamedBy::DownstreamKey | NamedBy::Reference => text.to_owned(),
        };
        (1..=NAME_BYTES_MAX).contains(&value.len()).then_some(Self { by, value })
    }

    /// The name as the inbox keeps it.
    pub(super) fn kept(&self) -> String {
        let kind = match self.by {
            NamedBy::Id => "id",
            NamedBy::Key => "key",
            NamedBy::RequestId => "request",
            NamedBy::DownstreamKey => "sent",
            NamedBy::Effect => "effect",
            NamedBy::Reference => "reference",
        };
        format!("{kind}:{}", self.value)
    }

    /// A name that the inbox has kept.
    pub(super) fn of_kept(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once(':')?;
        let by = match kind {
            "id" => NamedBy::Id,
            "key" => NamedBy::Key,
            "request" => NamedBy::RequestId,
            "sent" => NamedBy::DownstreamKey,
            "effect" => NamedBy::Effect,
            "reference" => NamedBy::Reference,
            _ => return None,
        };
        Some(Self { by, value: value.to_owned() })
    }
}

/// What stands for a key in the inbox.
fn digest_of(key: &Key) -> String {
    Id::from_bytes(*key.digest().as_bytes()).to_string()
}

/// Reads an event that was verified.
pub(super) fn read(
    provider: &WebhookProvider,
    verified: &VerifiedWebhook,
    body: &[u8],
) -> ReadEvent {
    let document = JsonDocument::parse(body);
    let text_at = |pointer: &Option<Pointer>| {
        document
            .as_ref()
            .zip(pointer.as_ref())
            .and_then(|(document, pointer)| plain(document, pointer))
    };
    let given = verified.id.clone().or_else(|| text_at(&provider.event_id));
    let digest = || format!("sha256:{}", Id::from_bytes(Sha256::digest(body).into()));
    let wants_id = verified.id.is_some() || provider.event_id.is_some();
    let usable = given.filter(|id| (1..=NAME_BYTES_MAX).contains(&id.len()) && !id.contains('\0'));
    let has_bad_id = wants_id && usable.is_none();
    let happened_at = document.as_ref().and_then(|document| happened_at(provider, document));
    let names = document.as_ref().map(|document| names(provider, document)).unwrap_or_default();
    let meaning = match &document {
        None => EventMeaning::Malformed("its body is not JSON".into()),
        Some(_) if has_bad_id => {
            EventMeaning::Malformed("it has no id, or one that is longer than 255 bytes".into())
        }
        Some(document) => meaning(provider, document, &names),
    };
    ReadEvent { event_id: usable.unwrap_or_else(digest), happened_at, names, meaning }
}

/// What a document says by today's rules.
pub(super) fn meaning(
    provider: &WebhookProvider,
    document: &JsonDocument<'_>,
    names: &[EventName],
) -> EventMeaning {
    match provider.rules.read_document(document) {
        DocumentVerdict::Inconclusive(why) => EventMeaning::Nothing(why.into()),
        DocumentVerdict::Pending => EventMeaning::Nothing("it says that it is under way".into()),
        verdict @ (DocumentVerdict::Executed(_)
        | DocumentVerdict::Declined(_)
        | DocumentVerdict::NotExecuted) => {
            if names.is_empty() {
                return EventMeaning::Nothing("it names nothing where the rules look".into());
            }
            EventMeaning::Evidence(verdict)
        }
    }
}

/// When it happened, in its own words, by today's rules.
pub(super) fn happened_at(provider: &WebhookProvider, document: &JsonDocument<'_>) -> Option<Time> {
    moment(&plain(document, provider.happened_at.as_ref()?)?)
}

/// What a document names by today's rules.
pub(super) fn names(provider: &WebhookProvider, document: &JsonDocument<'_>) -> Vec<EventName> {
    let named = provider
        .names
        .iter()
        .filter_map(|rule| EventName::new(rule.by, &plain(document, &rule.pointer)?));
    // PostgreSQL keeps no text with this character, so nothing of ours has such a name.
    named.filter(|name| !name.value.contains('\0')).collect()
}

/// A text or a number. A boolean names nothing, and neither does a member that is there twice.
pub(super) fn plain(document: &JsonDocument<'_>, pointer: &Pointer) -> Option<String> {
    let JsonItem::Value(value) = document.at(pointer) else { return None };
    value.plain().filter(|_| !matches!(value.as_text(), "true" | "false"))
}

/// A time in seconds since 1970, or as RFC 3339 writes it.
fn moment(text: &str) -> Option<Time> {
    if let Ok(seconds) = text.parse::<f64>() {
        let is_sound = (0.0..1e11).contains(&seconds);
        return is_sound.then(|| Time::from_ms((seconds * 1_000.0) as u64));
    }
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let east = minutes_east(text.get(19..)?)?;
    let is_sound = (1..=12).contains(&month)
        && (1970..=9999).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !is_sound {
        return None;
    }
    // Days since 1970 in the Gregorian calendar, with the year beginning in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    let minutes = ((days * 24 + hour) * 60 + minute).checked_add_signed(-east)?;
    Some(Time::from_ms((minutes * 60 + second) * 1_000))
}

/// How far a clock is ahead of UTC, by what follows the seconds: `Z`, `.123Z`, `+02:00`.
fn minutes_east(text: &str) -> Option<i64> {
    let fraction =
        text.strip_prefix('.').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    let zone = fraction.unwrap_or(text);
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let number = |text: &str, below: i64| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| is_number && *number < below)
    };
    let minutes = number(hours, 24)? * 60 + number(minutes, 60)?;
    match zone.get(..1)? {
        "+" => Some(minutes),
        "-" => Some(-minutes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::super::provider::NameRule;
    use super::super::scheme::WebhookScheme;
    use super::*;

    fn provider(by: NamedBy) -> WebhookProvider {
        let secrets = Arc::new(|| Ok(Vec::new()));
        let mut provider = WebhookProvider::new("stripe", WebhookScheme::Stripe, secrets);
        let pointer = Pointer::parse("/data/name").unwrap();
        provider.names = vec![NameRule { by, pointer }];
        provider
    }

    fn named(by: NamedBy, value: &str) -> Vec<String> {
        let body = format!(r#"{{"id":"evt_1","data":{{"name":{value}}}}}"#);
        let event = read(&provider(by), &VerifiedWebhook::default(), body.as_bytes());
        event.names.iter().map(EventName::kept).collect()
    }

    #[test]
    fn a_name_is_a_text_or_a_number_of_its_kind() {
        let id = "ab".repeat(32);
        assert_eq!(named(NamedBy::Id, &format!("{id:?}")), [format!("id:{id}")]);
        assert_eq!(named(NamedBy::Id, &format!("{:?}", id.to_uppercase())), [format!("id:{id}")]);
        assert_eq!(named(NamedBy::Effect, "17"), ["effect:17"]);
        assert_eq!(named(NamedBy::Effect, "\"17\""), ["effect:17"]);
        assert_eq!(named(NamedBy::DownstreamKey, "12.50"), ["sent:12.50"], "as it is written");
        assert!(!named(NamedBy::Key, "\"secret-key\"")[0].contains("secret"));
        for (by, value) in [
            (NamedBy::Id, "\"abc\""),
            (NamedBy::Effect, "1.5"),
            (NamedBy::Effect, "\"-1\""),
            (NamedBy::Reference, "true"),
            (NamedBy::Reference, "null"),
            (NamedBy::Reference, "{}"),
            (NamedBy::Reference, "\"\""),
            (NamedBy::Reference, &format!("{:?}", "x".repeat(256))),
        ] {
            assert_eq!(named(by, value), [""; 0], "{by:?} {value}");
        }
        for by in NamedBy::ALL {
            let name = EventName { by, value: "a:b".into() };
            assert_eq!(EventName::of_kept(&name.kept()), Some(name));
        }
    }

    /// Standard Webhooks sign each delivery anew. An event of last week that is delivered once more did not happen today.
    #[test]
    fn the_time_of_a_signature_is_not_the_time_of_an_event() {
        let verified = VerifiedWebhook { signed_at: Some(SystemTime::now()), id: Some("e".into()) };
        let secrets = Arc::new(|| Ok(Vec::new()));
        let standard = WebhookProvider::new("bank", WebhookScheme::Standard, secrets);
        assert_eq!(read(&standard, &verified, b"{}").happened_at, None);
        let dated = br#"{"timestamp":"2023-11-14T22:13:20Z"}"#;
        let told = Some(Time::from_ms(1_700_000_000_000));
        assert_eq!(read(&standard, &verified, dated).happened_at, told);
    }

    #[test]
    fn an_event_without_a_usable_id_is_malformed_and_known_by_its_bytes() {
        let provider = provider(NamedBy::Id);
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(10_000));
        for body in [&b"{"[..], b"{}", br#"{"id":""}"#, br#"{"id":1,"id":2}"#, long.as_bytes()] {
            let event = read(&provider, &VerifiedWebhook::default(), body);
            assert!(matches!(event.meaning, EventMeaning::Malformed(_)), "{event:?}");
            assert_eq!(event.event_id.len(), "sha256:".len() + 64);
        }
    }

    #[test]
    fn a_time_is_read_in_seconds_and_in_words() {
        for (text, ms) in [
            ("1700000000", 1_700_000_000_000),
            ("1700000000.5", 1_700_000_000_500),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000),
            ("2023-11-14T22:13:20.123Z", 1_700_000_000_000),
            ("1970-01-01T00:00:00+00:00", 0),
            ("2023-11-15T00:13:20.5+02:00", 1_700_000_000_000),
            ("2023-11-14T20:43:20-01:30", 1_700_000_000_000),
            ("2024-02-29T12:00:00Z", 1_709_208_000_000),
        ] {
            assert_eq!(moment(text), Some(Time::from_ms(ms)), "{text}");
        }
        for text in [
            "",
            "soon",
            "-1",
            "1e30",
            "2023-11-14",
            "2023-13-14T22:13:20Z",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20+2:00",
            "2023-11-14T22:13:20+02:60",
            "2023-11-14T22:13:20 02:00",
            "1970-01-01T00:00:00+00:01",
        ] {
            assert_eq!(moment(text), None, "{text}");
        }
    }
}
