//! What does the upstream tell by itself, and when does it arrive?
//!
//! The upstream reports what it has done and what it refuses for good: by signed events, to the shipped receiver of webhooks in a process, over
//! the simulated store. A report is lost, late, doubled or out of order; it comes while its attempt still runs, after a verdict, or when
//! the key is used again. One that is not taken is sent again, to any process, as providers do. Some reports do not say which attempt
//! they are about, nor when they happened: they must decide nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;
use retrysafe::evidence::{Condition, RuleValue, WantedValue};
use retrysafe::webhooks::{
    EventStanding, NameRule, NamedBy, WebhookProvider, WebhookReceipt, WebhookScheme,
    WebhookSecret, Webhooks, standard,
};
use retrysafe_core::canonical::Pointer;

use super::process::Gateways;
use super::stage::Stage;
use super::store::SimStore;
use super::witness::Asker;
use crate::history::{STORE_EPOCH_MS, What};

/// Who reports, in the settings of the receiver.
const PROVIDER: &str = "upstream";

/// How often a report is sent that is not taken.
const TRIES_MAX: u64 = 30;

/// How many reports of a hundred are lost, are sent twice, and do not say which attempt they are about.
const LOST_PERCENT: u64 = 15;
const DOUBLED_PERCENT: u64 = 25;
const VAGUE_PERCENT: u64 = 20;

/// What the upstream has to tell about an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Report {
    key: u8,
    fence: u32,
    kind: ReportKind,
}

/// What a report says.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ReportKind {
    /// It took effect, in this execution.
    Done(u16),
    /// It is refused for good.
    Refused,
}

impl ReportKind {
    fn name(self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Refused => "refused",
        }
    }
}

/// Reports whatever the upstream does, until the history ends.
pub async fn report_again_and_again(stage: Stage, gateways: Gateways) {
    let mut told = HashSet::new();
    let step = (stage.options().lease_ms / 16).max(1);
    loop {
        for report in stage.with(|state| {
            let done = state.execs.iter().enumerate().filter(|(_, exec)| exec.took_effect);
            let done = done.filter_map(|(at, exec)| {
                let kind = ReportKind::Done(at as u16);
                Some(Report { key: exec.key, fence: exec.fence?, kind })
            });
            let refused = state.burnt.iter().map(|(key, fence)| Report {
                key: *key,
                fence: *fence,
                kind: ReportKind::Refused,
            });
            done.chain(refused).collect::<Vec<_>>()
        }) {
            if told.insert(report) {
                tokio::spawn(tell(stage.clone(), gateways.clone(), report));
            }
        }
        stage.sleep(step).await;
    }
}

/// Sends the copies of one report on their way.
async fn tell(stage: Stage, gateways: Gateways, report: Report) {
    let Report { key, fence, kind } = report;
    let lease = stage.options().lease_ms;
    let ttl = stage.options().ttl_ms;
    let mut chance =
        stage.chance(&[90, key.into(), fence.into(), (kind == ReportKind::Refused).into()]);
    if chance.percent(LOST_PERCENT) {
        if let ReportKind::Done(exec) = kind {
            stage.record(What::NoticeLost { exec });
        }
        return;
    }
    let is_vague = chance.percent(VAGUE_PERCENT);
    let copies = if chance.percent(DOUBLED_PERCENT) { 2 } else { 1 };
    for copy in 0..copies {
        let after = match chance.below(4) {
            0 => 0,
            1 => chance.below(lease),
            2 => chance.scaled(1, 8 * lease),
            _ => chance.scaled(1, 2 * ttl),
        };
        let (stage, gateways) = (stage.clone(), gateways.clone());
        tokio::spawn(async move {
            stage.sleep(after).await;
            send_until_taken(&stage, &gateways, report, copy, is_vague).await;
        });
    }
}

async fn send_until_taken(
    stage: &Stage,
    gateways: &Gateways,
    report: Report,
    copy: u64,
    is_vague: bool,
) {
    let Report { key, fence, kind } = report;
    for attempt in 0..TRIES_MAX {
        let gateway = ((attempt + copy) % u64::from(stage.options().gateways)) as u8;
        if let Some(life) = gateways.life(gateway) {
            let store = SimStore::new(stage, Asker::Upkeep(life.clone()));
            let receipt = receive(stage, store, report, copy, is_vague).await;
            // A process that died while it judged has acknowledged nothing.
            if let WebhookReceipt::Taken(standing) = receipt
                && !life.is_dead()
            {
                if kind != ReportKind::Refused {
                    stage.with(|state| {
                        let again = state.count(&[91, key.into(), fence.into()]) > 0;
                        state.record(What::NoticeKept { key, fence, again });
                        if standing == EventStanding::Applied {
                            state.record(What::NoticeDecided { key, fence });
                        }
                    });
                }
                return;
            }
        }
        stage.sleep(stage.options().lease_ms / 2 + attempt * 50).await;
    }
}

/// Hands an event to the shipped receiver.
async fn receive(
    stage: &Stage,
    store: SimStore,
    report: Report,
    copy: u64,
    is_vague: bool,
) -> WebhookReceipt {
    let Report { key, fence, kind } = report;
    let id = stage.with(|state| state.names.get(usize::from(key)).map(ToString::to_string));
    let id = id.unwrap_or_default();
    let event_id = format!("{}-{fence}-{copy}", kind.name());
    let says_fence = if is_vague { String::new() } else { format!(r#","fence":{fence}"#) };
    let body = format!(r#"{{"type":"{}","record":"{id}"{says_fence}}}"#, kind.name());
    let now = UNIX_EPOCH + Duration::from_millis(STORE_EPOCH_MS + stage.now_ms());
    let seconds = (STORE_EPOCH_MS + stage.now_ms()) / 1_000;
    let mut headers = HeaderMap::new();
    if let Some(secret) = secret() {
        let signature = standard::sign(&secret, &event_id, seconds, body.as_bytes());
        for (name, value) in [
            (standard::ID, event_id),
            (standard::TIMESTAMP, seconds.to_string()),
            (standard::SIGNATURE, signature),
        ] {
            headers.extend(value.parse().ok().map(|value| (name, value)));
        }
    }
    let webhooks = Webhooks::new(store, None, vec![provider()]);
    webhooks.receive(PROVIDER, &headers, Bytes::from(body), now).await
}

fn secret() -> Option<WebhookSecret> {
    WebhookSecret::standard("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").ok()
}

fn provider() -> WebhookProvider {
    let secrets = Arc::new(|| Ok(secret().into_iter().collect()));
    let mut provider = WebhookProvider::new(PROVIDER, WebhookScheme::Standard, secrets);
    let pointer = |text| Pointer::parse(text).ok();
    let says = |word: &str| {
        let wanted = WantedValue::OneOf(vec![RuleValue::text(word)]);
        pointer("/type").map(|pointer| vec![Condition { pointer, wanted }]).into_iter().collect()
    };
    provider.names = pointer("/record")
        .map(|pointer| NameRule { by: NamedBy::Id, pointer })
        .into_iter()
        .collect();
    provider.fence = pointer("/fence");
    provider.rules.executed = says("done");
    provider.rules.not_executed = says("refused");
    provider
}
