//! What is done under load, and what must hold afterwards?
//!
//! Callers begin, execute and settle as the layer does: a begin that may have been applied is
//! withdrawn and asked again, a settle that failed is repeated with its lease. Every execution is counted where
//! the effect would be, and every acknowledged answer is written down.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use retrysafe::core::engine::{Ask, Begun, Engine, Settled};
use retrysafe::core::fingerprint::{Fingerprint, RulesId};
use retrysafe::core::record::{About, Answer, Outcome, Standing};
use retrysafe::core::response::StoredResponse;
use retrysafe::core::store::Transactional;
use retrysafe::core::{Id, Key, Scope, Store};

/// A history of executions and answers.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// How often the effect of a key happened.
    executed: Mutex<HashMap<String, u32>>,
    /// What callers were told.
    acknowledged: Mutex<HashMap<String, String>>,
    owners: AtomicU64,
    /// What its keys begin with.
    prefix: &'static str,
}

pub(crate) fn scope() -> Scope {
    Scope::of([("tenant", &b"load"[..])])
}

pub(crate) fn id(key: &str) -> Id {
    Id::of(&scope(), &Key::new(key).expect("a key").digest())
}

pub(crate) fn completed(body: &str) -> Outcome {
    Outcome::Completed(Answer::Kept(StoredResponse {
        status: http::StatusCode::CREATED,
        headers: vec![],
        body: body.to_owned().into(),
    }))
}

/// Begins as caller number `owner`, with a lease of a minute.
pub(crate) async fn begin<S: Store>(
    engine: &Engine<S>,
    key: &str,
    owner: u64,
) -> Result<Begun, retrysafe::core::StoreError> {
    begin_for(engine, key, owner, Duration::from_secs(60)).await
}

pub(crate) async fn begin_for<S: Store>(
    engine: &Engine<S>,
    key: &str,
    owner: u64,
    lease: Duration,
) -> Result<Begun, retrysafe::core::StoreError> {
    let (print, about) = request();
    engine.begin(&ask(key, owner, lease, &print, &about)).await
}

/// Begins as caller number `owner` inside a transaction, with a lease of a minute.
pub(crate) async fn begin_in<S: Transactional<T>, T: Send>(
    engine: &Engine<S>,
    tx: &mut T,
    key: &str,
    owner: u64,
) -> Result<Begun, retrysafe::core::StoreError> {
    let (print, about) = request();
    engine.begin_in(tx, &ask(key, owner, Duration::from_secs(60), &print, &about)).await
}

fn request() -> (Fingerprint, About) {
    let print = Fingerprint::from_parts(1, RulesId::from_bytes([1; 8]), [2; 32]);
    (print, About { method: "POST".into(), route: "/load".into(), path: "/load".into() })
}

fn ask<'a>(
    key: &str,
    owner: u64,
    lease: Duration,
    print: &'a Fingerprint,
    about: &'a About,
) -> Ask<'a, Fingerprint> {
    static SCOPE: LazyLock<Scope> = LazyLock::new(scope);
    Ask {
        scope: &SCOPE,
        mark: None,
        key: Key::new(key).expect("a key").digest(),
        prints: print,
        about,
        ttl: Duration::from_secs(3_600),
        lease,
        owner,
        request_id: None,
    }
}

impl History {
    /// A history of keys that begin so.
    pub(crate) fn named(prefix: &'static str) -> Self {
        Self { prefix, ..Self::default() }
    }

    /// One caller's request for a key, up to an answer or the end of its patience. Says whether it
    /// was answered for good.
    pub(crate) async fn request<S: Store>(&self, engine: &Engine<S>, key: &str) -> bool {
        let owner = self.owners.fetch_add(1, Ordering::Relaxed) + 1;
        match begin(engine, key, owner).await {
            Ok(Begun::Execute(lease)) => {
                *self.executed.lock().expect("unpoisoned").entry(key.into()).or_default() += 1;
                let body = format!("{key} by {owner}");
                let (mut lease, outcome) = (lease, completed(&body));
                for _ in 0..100 {
                    match engine.settle(lease, &outcome).await {
                        Ok(Settled::Done(_)) => {
                            self.acknowledge(key, &body);
                            return true;
                        }
                        Ok(Settled::Lost { current, .. }) => panic!("lost {key}: {current:?}"),
                        Err(unsettled) => lease = unsettled.lease,
                    }
                }
                panic!("{key} could not be settled for good");
            }
            Ok(Begun::Replay(Answer::Kept(response), _)) => {
                self.acknowledge(key, std::str::from_utf8(&response.body).expect("text"));
                true
            }
            Ok(Begun::InProgress(_)) => false,
            Ok(other) => panic!("{key}: {other:?}: {:?}", engine.look(id(key)).await),
            Err(error) => {
                if error.may_have_applied() {
                    for _ in 0..100 {
                        if engine.withdraw(id(key), owner).await.is_ok() {
                            return false;
                        }
                    }
                    panic!("{key} could not be withdrawn");
                }
                false
            }
        }
    }

    fn acknowledge(&self, key: &str, body: &str) {
        let mut acknowledged = self.acknowledged.lock().expect("unpoisoned");
        let before = acknowledged.insert(key.into(), body.into());
        assert!(before.is_none_or(|before| before == body), "{key} was answered in two ways");
    }

    /// Runs callers over fresh keys until told to stop: each key is wanted by two of them.
    pub(crate) fn run<S: Store + Clone>(
        self: &Arc<Self>,
        store: &S,
        callers: usize,
        stop: &Arc<AtomicBool>,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let next = Arc::new(AtomicU64::new(0));
        (0..callers)
            .map(|_| {
                let (history, engine) = (Arc::clone(self), Engine::new(store.clone()));
                let (next, stop) = (Arc::clone(&next), Arc::clone(stop));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let key = format!(
                            "{}k{}",
                            history.prefix,
                            next.fetch_add(1, Ordering::Relaxed) / 2
                        );
                        while !history.request(&engine, &key).await {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                    }
                })
            })
            .collect()
    }

    pub(crate) fn answers(&self) -> usize {
        self.acknowledged.lock().expect("unpoisoned").len()
    }

    /// Every key was executed once, and what was acknowledged is what is stored.
    pub(crate) async fn check<S: Store>(&self, store: &S) -> usize {
        let executed = self.executed.lock().expect("unpoisoned").clone();
        let acknowledged = self.acknowledged.lock().expect("unpoisoned").clone();
        for (key, count) in &executed {
            assert_eq!(*count, 1, "{key} was executed {count} times");
        }
        for (key, body) in &acknowledged {
            let record = store.load(id(key)).await.expect("it can be read").value;
            let record = record.unwrap_or_else(|| panic!("{key} was acknowledged and is gone"));
            assert_eq!(record.standing(), Standing::Completed, "{key}");
            let retrysafe::core::record::State::Completed { answer, .. } = record.state else {
                panic!("{key}");
            };
            assert_eq!(Outcome::Completed(answer), completed(body), "{key}");
        }
        acknowledged.len()
    }
}
