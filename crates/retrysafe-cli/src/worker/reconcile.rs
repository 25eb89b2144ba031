//! Who is asked about an effect that may have been done?
//!
//! Whoever is named by `[effects.KIND.lookup]`, with the key that the effect was sent with. What is found decides the effect, or is kept
//! beside it for an operator.

use std::io;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use retrysafe::evidence::{DocumentVerdict, JsonDocument};
use retrysafe::outbox::{
    EffectLookup, EffectLookupAnswer, EffectReconciler, EffectReconciliation, Outbox, UnknownEffect,
};
use retrysafe_core::policy::Absence;
use sqlx::PgPool;
use tokio::task::JoinSet;

use super::deliver::HttpReceiver;
use crate::config::Upstream;
use crate::config::lookup::LookupRules;
use crate::dial::Dialler;
use crate::lookup::{self, Dialling, LookupFound, LookupQuestion, LookupServer, ProviderAnswer};

/// Asks about the effects of one kind.
struct EffectLookups {
    rules: LookupRules,
    way: WayTo,
}

/// The way to whoever is asked.
struct WayTo {
    dialler: Dialler,
    url: Uri,
}

impl LookupServer for WayTo {
    fn dial(&self) -> Dialling<'_> {
        Box::pin(self.dialler.dial(&self.url))
    }

    fn host(&self) -> io::Result<HeaderValue> {
        let authority = self.url.authority().map_or("", |authority| authority.as_str());
        HeaderValue::from_str(authority).map_err(io::Error::other)
    }
}

/// Starts the lookups of all kinds that have some. Dropped, they end.
pub(super) fn start(pool: &PgPool, receivers: &[Arc<HttpReceiver>]) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for receiver in receivers {
        let rules = receiver.rules.lookup.as_ref();
        let Some((rules, server)) = rules.and_then(|rules| Some((rules, rules.server.as_ref()?)))
        else {
            continue;
        };
        let Some(url) = base(server) else { continue };
        let way = WayTo { dialler: Dialler::default(), url };
        let lookups = EffectLookups { rules: rules.clone(), way };
        let outbox = Outbox::new(pool.clone());
        let (kind, known) = (&receiver.rules.kind, receiver.rules.receiver);
        let schedule = rules.schedule.clone();
        let rounds = EffectReconciliation::new(&outbox, kind, known, lookups, schedule);
        tasks.spawn(async move { rounds.run().await });
    }
    tasks
}

fn base(server: &Upstream) -> Option<Uri> {
    let scheme = if server.tls { "https" } else { "http" };
    format!("{scheme}://{}/", server.authority).parse().ok()
}

impl EffectReconciler for EffectLookups {
    async fn look_up(&self, unknown: &UnknownEffect) -> EffectLookupAnswer {
        let id = unknown.id.to_string();
        let name = unknown.name.as_deref().unwrap_or_default();
        let values = vec![("key", &*unknown.key), ("id", &*id), ("name", name)];
        let question =
            LookupQuestion { values, identity: &unknown.key, began_at: unknown.staged_at };
        let ProviderAnswer { found, excerpt } =
            lookup::ask(&self.rules, &question, &self.way).await;
        let found = match found {
            LookupFound::Absent => EffectLookup::NotFound,
            LookupFound::TooOften(pause) => EffectLookup::AskedTooOften(pause),
            LookupFound::Document(DocumentVerdict::Executed(answer)) => {
                EffectLookup::Delivered(reference(&answer))
            }
            LookupFound::Document(DocumentVerdict::Declined(_)) => EffectLookup::Declined,
            LookupFound::Document(DocumentVerdict::NotExecuted) => EffectLookup::NoEffect,
            LookupFound::Document(DocumentVerdict::Pending) => EffectLookup::Pending,
            LookupFound::Document(DocumentVerdict::Inconclusive(why)) => {
                EffectLookup::Inconclusive(why)
            }
        };
        EffectLookupAnswer { found, excerpt }
    }

    fn absence(&self, _: &UnknownEffect) -> Absence {
        self.rules.absence
    }
}

/// What its receiver calls it: the body that the rules take from the document, if that is a text or a number.
fn reference(answer: &retrysafe_core::record::Answer) -> Option<String> {
    let retrysafe_core::record::Answer::Kept(answer) = answer else { return None };
    let text = match JsonDocument::parse(&answer.body) {
        Some(document) => document.plain(),
        None => String::from_utf8(answer.body.to_vec()).ok(),
    };
    text.filter(|text| (1..=255).contains(&text.len()))
}
