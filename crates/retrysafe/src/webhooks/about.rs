//! Which events are about a record?
//!
//! Those that were matched to it, and those that name it by what only it has: its id, or the key of its call. A key and a request's id are
//! chosen by callers, so two callers may have chosen the same. An event that names nothing else is about this record if it says that it is
//! this caller's, and is left out if it says that it is another one's. Where nobody can tell, it is shown and marked.

use std::collections::BTreeMap;

use retrysafe_core::record::Record;
use retrysafe_core::scope::Scope;
use retrysafe_core::store::StoreError;

use super::event::plain;
use super::inbox::{Inbox, ShownEvent};
use super::judge::{names_of, record_name};
use super::provider::WebhookProvider;
use crate::evidence::JsonDocument;

/// How many events are looked at that name a key or a request's id which callers have chosen: another caller may have many.
const CANDIDATES_MAX: usize = 200;

/// How many bytes of their payloads are read to find out whose they are. Past this nobody can tell.
const PAYLOAD_BYTES_MAX: u64 = 4 << 20;

/// The part of a scope that is a digest. No event can name it.
const CREDENTIAL: &str = "credential";

/// An event about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventAbout {
    /// The event.
    pub event: ShownEvent,
    /// Whether it surely is about this record. Otherwise it names a key or a request's id that another caller may have chosen, too, and does
    /// not say whose it is.
    pub is_sure: bool,
}

/// Whose an event is that names a record by what its caller has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    Own,
    Unclear,
    Foreign,
}

/// The events about a record, the newest first.
pub(super) async fn events_about(
    inbox: &Inbox,
    providers: &[WebhookProvider],
    record: &Record,
    most: usize,
) -> Result<Vec<EventAbout>, StoreError> {
    let matched = record_name(record);
    let (chosen, own): (Vec<String>, Vec<String>) =
        names_of(providers, record).into_iter().partition(|name| is_chosen_by_caller(name));
    let surely = inbox.about(&matched, &own, most).await?;
    let mut found: BTreeMap<i64, EventAbout> = BTreeMap::new();
    found.extend(surely.into_iter().map(|event| (event.id, EventAbout { event, is_sure: true })));
    let candidates = inbox.about(&matched, &chosen, CANDIDATES_MAX).await?;
    let mut bytes_left = PAYLOAD_BYTES_MAX;
    for event in candidates {
        if found.contains_key(&event.id) || is_of_another(&event, &matched) {
            continue;
        }
        let whose = whose(inbox, providers, record, &event, &mut bytes_left).await?;
        let is_sure = match ownership(&record.scope, whose.as_deref()) {
            Ownership::Own => true,
            Ownership::Unclear => false,
            Ownership::Foreign => continue,
        };
        found.insert(event.id, EventAbout { event, is_sure });
    }
    Ok(found.into_values().rev().take(most).collect())
}

fn is_chosen_by_caller(name: &str) -> bool {
    name.starts_with("key:") || name.starts_with("request:")
}

/// Whether it was matched to something else, or names another record by its id. Those that name this one by its id are found already.
fn is_of_another(event: &ShownEvent, matched: &str) -> bool {
    event.matched.as_deref().is_some_and(|other| other != matched)
        || event.names.iter().any(|name| name.starts_with("id:"))
}

/// Whose an event says that it is, if it says so.
async fn whose(
    inbox: &Inbox,
    providers: &[WebhookProvider],
    record: &Record,
    event: &ShownEvent,
    bytes_left: &mut u64,
) -> Result<Option<String>, StoreError> {
    let provider = providers.iter().find(|provider| *provider.name == *event.provider);
    let pointer = provider.and_then(|provider| provider.scope.as_ref());
    let (Some(pointer), Some(left)) = (pointer, bytes_left.checked_sub(event.payload_bytes)) else {
        return Ok(None);
    };
    if record.scope == Scope::anonymous() {
        return Ok(None);
    }
    *bytes_left = left;
    let kept = inbox.event(event.id).await?;
    let document = kept.as_ref().and_then(|kept| JsonDocument::parse(&kept.payload));
    Ok(document.and_then(|document| plain(&document, pointer)))
}

/// Whether a record of this scope is meant by an event that says this.
fn ownership(scope: &Scope, whose: Option<&str>) -> Ownership {
    if *scope == Scope::anonymous() {
        return Ownership::Own;
    }
    let Some(whose) = whose else { return Ownership::Unclear };
    let parts = scope.parts();
    let is_named = parts.iter().any(|(_, value)| value == whose);
    let is_comparable = parts.iter().all(|(name, _)| name != CREDENTIAL);
    if is_named && parts.len() == 1 {
        Ownership::Own
    } else if is_comparable && !is_named {
        Ownership::Foreign
    } else {
        Ownership::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_another_callers_name_is_not_shown_and_what_says_none_is_unclear() {
        let acme = Scope::of([("x-tenant", &b"acme"[..])]);
        assert_eq!(ownership(&acme, Some("acme")), Ownership::Own);
        assert_eq!(ownership(&acme, Some("other")), Ownership::Foreign);
        assert_eq!(ownership(&acme, None), Ownership::Unclear);
        assert_eq!(ownership(&Scope::anonymous(), Some("acme")), Ownership::Own);
        let both = Scope::of([("x-tenant", &b"acme"[..]), ("x-user", b"7")]);
        assert_eq!(ownership(&both, Some("acme")), Ownership::Unclear, "which of its users?");
        assert_eq!(ownership(&both, Some("other")), Ownership::Foreign);
        let digest = Scope::of([(CREDENTIAL, &b"0123"[..])]);
        assert_eq!(ownership(&digest, Some("acme")), Ownership::Unclear);
    }
}
