//! Does every event get its turn, however much is unknown and however many events wait before it?

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;
use retrysafe::core::Store;
use retrysafe::core::canonical::Pointer;
use retrysafe::core::conformance::{Fault, Faulty, Op};
use retrysafe::core::engine::{Begun, Engine};
use retrysafe::core::record::{Doubt, Outcome, Standing};
use retrysafe::core::scope::Id;
use retrysafe::evidence::{Condition, RuleValue, WantedValue};
use retrysafe::webhooks::{
    EventStanding, Inbox, NameRule, NamedBy, WebhookProvider, WebhookReceipt, WebhookScheme,
    WebhookSecret, Webhooks, standard,
};

use crate::kit::load::{begin, id};
use crate::kit::{database, store};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// More than one page of unknown records.
const UNKNOWN: usize = 257;

/// As many events as one round judges.
const AT_THE_FRONT: usize = 64;

fn bank() -> WebhookProvider {
    let secrets = Arc::new(|| Ok(vec![WebhookSecret::standard(SECRET).unwrap()]));
    let mut bank = WebhookProvider::new("bank", WebhookScheme::Standard, secrets);
    let pointer = |text| Pointer::parse(text).unwrap();
    // A key stands in no index: a record is found only among all that are unknown.
    bank.names = vec![NameRule { by: NamedBy::Key, pointer: pointer("/key") }];
    bank.scope = Some(pointer("/tenant"));
    let wanted = WantedValue::OneOf(vec![RuleValue::text("paid")]);
    bank.rules.executed = vec![vec![Condition { pointer: pointer("/type"), wanted }]];
    bank
}

async fn deliver<S: Store>(webhooks: &Webhooks<S>, event_id: &str, body: String) {
    let now = SystemTime::now();
    let seconds = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let secret = WebhookSecret::standard(SECRET).unwrap();
    let signature = standard::sign(&secret, event_id, seconds, body.as_bytes());
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", event_id.parse().unwrap());
    headers.insert("webhook-timestamp", seconds.into());
    headers.insert("webhook-signature", signature.parse().unwrap());
    let told = webhooks.receive("bank", &headers, Bytes::from(body), now).await;
    assert!(matches!(told, WebhookReceipt::Taken(EventStanding::Waiting)), "{told:?}");
}

/// 64 events that wait for a person name the first unknown record, and one event names the last: it was early, and its record is
/// unknown since. Each round judged the first 64 and never came to the last. A store that fails in between must not send the rounds
/// back to the beginning either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_not_held_up_by_those_that_wait_before_it() {
    let store = store(&database().await).await;
    let engine = Engine::new(store.clone());
    let mut keys: Vec<(Id, String)> =
        (0..UNKNOWN).map(|n| (id(&n.to_string()), n.to_string())).collect();
    keys.sort();
    let ((_, first), (last_id, last)) = (keys[0].clone(), keys[UNKNOWN - 1].clone());
    let mut held = None;
    for (_, key) in &keys {
        let Ok(Begun::Execute(lease)) = begin(&engine, key, 1).await else { panic!() };
        if *key == last {
            held = Some(lease);
        } else {
            engine.settle(lease, &Outcome::Unknown(Doubt::AnswerLost)).await.unwrap();
        }
    }
    let inbox = Inbox::new(store.clone());
    let faulty = Arc::new(Faulty::new(store.clone()));
    let webhooks = Webhooks::new(Arc::clone(&faulty), Some(inbox.clone()), vec![bank()]);
    let body = format!(
        r#"{{"type":"paid","tenant":"load","key":"{last}","timestamp":{}}}"#,
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
    );
    deliver(&webhooks, "early", body).await;
    let early = || async {
        let events = inbox.list(None, None, None, 100).await.unwrap();
        events.into_iter().find(|event| event.event_id == "early").unwrap()
    };
    // What looks at it at its arrival is over before its record is unknown.
    let is_judged = async {
        while early().await.reason.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_judged).await.unwrap();
    // Without a time they decide nothing.
    for number in 0..AT_THE_FRONT {
        let body = format!(r#"{{"type":"paid","tenant":"load","key":"{first}"}}"#);
        deliver(&webhooks, &format!("front-{number}"), body).await;
    }
    let lease = held.unwrap();
    engine.settle(lease, &Outcome::Unknown(Doubt::AnswerLost)).await.unwrap();
    webhooks.round().await.unwrap();
    faulty.arm(Op::Scan, Fault::Refused);
    webhooks.round().await.unwrap_err();
    webhooks.round().await.unwrap();
    assert_eq!(early().await.standing, EventStanding::Applied);
    let record = engine.look(last_id).await.unwrap().value.unwrap();
    assert_eq!(record.standing(), Standing::Completed);
}

/// 64 events that wait for a person, and then 64 that decide: each round drew 64 by chance, so that some of the latter had to wait for
/// luck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_of_one_page_gets_its_turn() {
    let store = store(&database().await).await;
    let engine = Engine::new(store.clone());
    let inbox = Inbox::new(store.clone());
    let webhooks = Webhooks::new(store.clone(), Some(inbox.clone()), vec![bank()]);
    for number in 0..AT_THE_FRONT {
        let body = r#"{"type":"paid","tenant":"load","key":"first"}"#.to_owned();
        deliver(&webhooks, &format!("front-{number}"), body).await;
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 60;
    for number in 0..AT_THE_FRONT {
        let body = format!(
            r#"{{"type":"paid","tenant":"load","key":"k-{number}","timestamp":{seconds}}}"#
        );
        deliver(&webhooks, &format!("event-{number}"), body).await;
    }
    let numbered = (0..AT_THE_FRONT).map(|number| format!("k-{number}"));
    for key in ["first".to_owned()].into_iter().chain(numbered) {
        let Ok(Begun::Execute(lease)) = begin(&engine, &key, 1).await else { panic!() };
        engine.settle(lease, &Outcome::Unknown(Doubt::AnswerLost)).await.unwrap();
    }
    webhooks.round().await.unwrap();
    webhooks.round().await.unwrap();
    for number in 0..AT_THE_FRONT {
        let record = engine.look(id(&format!("k-{number}"))).await.unwrap().value.unwrap();
        assert_eq!(record.standing(), Standing::Completed, "k-{number}");
    }
}
