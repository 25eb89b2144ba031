//! What does a client do?
//!
//! It makes one call through the shipped client: one key, as many attempts as it takes. Some clients
//! keep the shipped journal and die in the middle of a call; another process then finds the call in
//! the journal and finishes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use retrysafe::client::{Answer, Client, Error, Journal, Next, Notice, Patience, Receipt, Retries};

use super::at_once::AtOnce;
use super::network::Network;
use super::options::{Kind, Options};
use super::process::Gateways;
use super::stage::{CALL, HOST, SCOPE, Stage, key_name, scope_name};
use crate::history::{CallEnd, What};

/// One call to make.
#[derive(Clone, Copy)]
pub struct Call {
    pub number: u16,
    pub key: u8,
    pub print: u8,
    pub patience: Patience,
    pub attempt_ms: u64,
}

impl Call {
    /// The same call, which tries on for as long as an answer may take once everything has healed.
    pub fn without_end(self, options: &Options) -> Self {
        let lease = options.lease_ms;
        let patience = Patience {
            attempts_max: u32::MAX,
            pause: Duration::from_millis(lease / 4),
            pause_max: Duration::from_millis(lease),
            deadline: Duration::from_millis(options.liveness_ms()),
        };
        Self { patience, attempt_ms: 6 * lease, ..self }
    }
}

type Ended = Result<Response<Answer<Full<Bytes>>>, Error>;

/// Makes a call, and says how it ended.
pub async fn make(stage: &Stage, gateways: &Gateways, call: Call) {
    let Call { number, key, print, .. } = call;
    stage.record(What::Called { call: number, key, print });
    let mut chance = stage.chance(&[60, number.into()]);
    let crashes = stage.strikes(&mut chance, Kind::ClientCrash, 50);
    let crash_ms = chance.scaled(1, 2 * stage.options().lease_ms);
    let down_ms = chance.scaled(1, stage.options().lease_ms);
    let folder = if stage.options().journal { folder() } else { None };
    let journal = folder.as_ref().and_then(|folder| Journal::open(folder.path()).ok());
    // The first thing that a call with a journal waits for is its file.
    let stops = Arc::new(AtomicBool::new(journal.is_some()));
    let network = Network { stage: stage.clone(), gateways: gateways.clone(), key, print };
    let client = client(stage, network, call, journal.clone(), &stops);
    let Some(request) = request(call) else { return };
    let ended = match (crashes, journal) {
        (true, Some(journal)) => {
            let sending = AtOnce::new(client.send(request), stops);
            match tokio::time::timeout(Duration::from_millis(crash_ms), sending).await {
                Ok(ended) => Some(ended),
                Err(_) => {
                    stage.sleep(down_ms).await;
                    resume(stage, &client, &journal, number).await
                }
            }
        }
        (true, None) | (false, _) => Some(AtOnce::new(client.send(request), stops).await),
    };
    let Some(ended) = ended else { return };
    if let Ok(answer) = &ended
        && let Some(receipt) = Receipt::of(answer)
    {
        // The journal is thrown away with its folder in any case.
        let _ = AtOnce::whole(receipt.acknowledge()).await;
    }
    let end = match ended {
        Ok(_) => CallEnd::Done,
        Err(Error::OutcomeUnknown(_)) => CallEnd::OutcomeUnknown,
        // What was sent may have reached two gateways.
        Err(Error::GaveUp(ended))
            if ended.was_sent && stage.options().kinds.has(Kind::RequestTwice) =>
        {
            CallEnd::Refused
        }
        Err(Error::GaveUp(_) | Error::Refused(_)) => CallEnd::GaveUp,
    };
    stage.record(What::CallEnded { call: number, end });
}

/// Another process finds the call in the journal, if it was there, and finishes it.
async fn resume(
    stage: &Stage,
    client: &Client<Network>,
    journal: &Journal,
    call: u16,
) -> Option<Ended> {
    let pending = AtOnce::whole(journal.pending()).await.ok()?.calls.pop()?;
    stage.record(What::CallResumed { call });
    Some(client.resume(pending, HeaderMap::new()).await)
}

fn client(
    stage: &Stage,
    network: Network,
    call: Call,
    journal: Option<Journal>,
    stops: &Arc<AtomicBool>,
) -> Client<Network> {
    let Call { number, patience, attempt_ms, .. } = call;
    let of = stage.clone();
    let stops = Arc::clone(stops);
    let has_journal = journal.is_some();
    let retries = Retries::default()
        .patience(patience)
        .attempt_timeout(Duration::from_millis(attempt_ms))
        .observe(move |notice| {
            // A call that gives up removes its file.
            let gives_up = matches!(notice, Notice::Heard { next: Next::GiveUp, .. });
            stops.store(gives_up && has_journal, Ordering::Release);
        })
        .jitter(move || {
            let draw = of.with(|state| state.count(&[61, number.into()]));
            of.chance(&[61, number.into(), draw]).unit()
        });
    Client::new(
        network,
        match journal {
            Some(journal) => retries.journal(journal),
            None => retries,
        },
    )
}

fn request(call: Call) -> Option<Request<Full<Bytes>>> {
    let body = format!("{{\"amount\":{}}}", 100 + u32::from(call.print));
    Request::post(format!("http://{HOST}/payments"))
        .header("host", HOST)
        .header("content-type", "application/json")
        .header("idempotency-key", key_name(call.key))
        .header(SCOPE, scope_name(call.key))
        .header(CALL, call.number)
        .body(Full::from(body))
        .ok()
}

/// A folder for a journal, in memory where the system has such a place: flushing a disk thousands of
/// times would take longer than everything else.
fn folder() -> Option<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).ok()
}
