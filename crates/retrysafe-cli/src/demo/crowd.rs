//! What do customers do? They retry, double-click and hang up, as people and programs do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::header::{self, HeaderValue};
use indicatif::{ProgressBar, ProgressStyle};
use retrysafe_core::retry::{self, AnswerHead, Call, Next, Patience};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::gateway::Gateway;
use crate::check::probe::{Heard, Probe};
use crate::check::request::{Headers, Shot, Template};
use crate::output::say;

/// How many customers shop at the same time.
const AT_ONCE: usize = 32;

/// How long a customer waits before hanging up and trying again: with a key only the first time,
/// since a careful client gives a retry time to find the answer.
const IMPATIENCE: Duration = Duration::from_millis(600);
const PATIENCE: Duration = Duration::from_secs(5);

/// A crowd that behaves the same for the same seed.
pub(crate) struct Crowd {
    pub(crate) seed: u64,
    pub(crate) payments: u32,
}

/// What a customer was told about one payment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) payment: String,
    /// Bodies of the successes it saw, each once.
    pub(crate) answers: Vec<bytes::Bytes>,
    /// Whether it was told that it was executed, without the answer.
    pub(crate) executed: bool,
    /// Whether it was told that the outcome is unknown.
    pub(crate) unknown: bool,
    /// How many attempts it made.
    pub(crate) attempts: u32,
}

impl Crowd {
    /// Shops at the API itself, as clients without keys do: try again until it answers.
    pub(crate) async fn unprotected(&self, shop: SocketAddr) -> Vec<Told> {
        let url = format!("http://{shop}/payments");
        self.shop("without protection", naive, &url, None).await
    }

    /// Shops through the gateway, and kills it when two fifths of the payments are through.
    pub(crate) async fn protected(&self, gateway: &mut Gateway) -> Result<Vec<Told>, String> {
        let url = format!("http://{}/payments", gateway.address());
        let done = Arc::new(AtomicU32::new(0));
        let kill_at = self.payments * 2 / 5;
        let watch = done.clone();
        let shopping = self.shop("through retrysafe", careful, &url, Some(done));
        tokio::pin!(shopping);
        let mut killed = false;
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        loop {
            tokio::select! {
                told = &mut shopping => {
                    return if killed { Ok(told) } else { Err("the run ended before the kill".into()) };
                }
                _ = tick.tick(), if !killed => {
                    if watch.load(Ordering::Relaxed) >= kill_at {
                        killed = true;
                        gateway.kill_and_restart().await?;
                    }
                }
            }
        }
    }

    async fn shop<F, Fut>(
        &self,
        title: &str,
        how: F,
        url: &str,
        done: Option<Arc<AtomicU32>>,
    ) -> Vec<Told>
    where
        F: Fn(String, Shot) -> Fut + Copy + Send + 'static,
        Fut: Future<Output = Told> + Send + 'static,
    {
        let bar = ProgressBar::new(self.payments.into());
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:>20} {bar:40} {pos}/{len} payments")
        {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        if bar.is_hidden() {
            say(&format!("{title}: {} payments …", self.payments));
        }
        let done = done.unwrap_or_default();
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = Vec::new();
        for number in 0..self.payments {
            let payment = format!("p-{number}");
            let body = format!(
                r#"{{"payment":"{payment}","amount":{}}}"#,
                100 + chance(self.seed, &payment, 0) % 900
            );
            let Ok(template) = Template::new(url, "POST", &body) else { continue };
            // Every sixth customer clicks twice.
            let clicks = if chance(self.seed, &payment, 77).is_multiple_of(6) { 2 } else { 1 };
            let (places, bar, done, shot) =
                (places.clone(), bar.clone(), done.clone(), template.shot());
            running.push(tokio::spawn(async move {
                let _place = places.acquire_owned().await;
                let both = (0..clicks).map(|_| tokio::spawn(how(payment.clone(), shot.clone())));
                let mut told = Told { payment: payment.clone(), ..Told::default() };
                for click in both.collect::<Vec<_>>() {
                    if let Ok(heard) = click.await {
                        told.merge(heard);
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
                bar.inc(1);
                told
            }));
        }
        let mut told = Vec::new();
        for customer in running {
            told.extend(customer.await.ok());
        }
        bar.finish();
        told
    }
}

/// A client without a key: a lost answer, a slow one or a 5xx means trying again.
async fn naive(payment: String, shot: Shot) -> Told {
    let probe = Probe::new(IMPATIENCE, 1_000);
    let mut told = Told { payment, ..Told::default() };
    for _ in 0..5 {
        told.attempts += 1;
        match probe.send(&shot).await {
            Heard::Answer(answer) if answer.status.is_success() => {
                told.answers.push(answer.body);
                break;
            }
            Heard::Answer(answer) if !answer.status.is_server_error() => break,
            Heard::Answer(_) | Heard::Refused(_) | Heard::Broken(_) | Heard::Silence => {}
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    told
}

/// A client that names its request and follows the rules of `retrysafe_core::retry`. The two clicks
/// of one customer share the key, since they are one payment.
async fn careful(payment: String, shot: Shot) -> Told {
    // A credential says whose key it is.
    let mut credential = Headers::new();
    let bearer = HeaderValue::from_static("Bearer demo-customer");
    credential.push((header::AUTHORIZATION, bearer));
    let shot = shot.with(&credential).keyed(&format!("demo-{payment}"));
    let mut probe = Probe::new(IMPATIENCE, 1_000);
    let patient = Probe::new(PATIENCE, 1_000);
    let patience = Patience {
        attempts_max: 200,
        pause: Duration::from_millis(100),
        pause_max: Duration::from_secs(1),
        deadline: Duration::from_secs(60),
    };
    let mut call = Call::default();
    let began = Instant::now();
    let mut told = Told { payment, ..Told::default() };
    loop {
        told.attempts += 1;
        let heard = probe.send(&shot).await;
        probe = patient.clone();
        let code = heard.answer().and_then(|answer| answer.code());
        if code.as_deref() == Some("response_not_stored") {
            told.executed = true;
            return told;
        }
        let next = {
            let heard = match &heard {
                // The demo's outages last a second; its customers look again sooner than asked.
                Heard::Answer(answer) => retry::Heard::Answer(AnswerHead {
                    code: code.as_deref(),
                    is_replay: answer.is_marked(),
                    ..AnswerHead::new(answer.status.as_u16())
                }),
                Heard::Refused(_) => retry::Heard::NotSent,
                Heard::Broken(_) | Heard::Silence => retry::Heard::Lost,
            };
            call.next(&patience, heard, began.elapsed(), 1.0, 0)
        };
        match next {
            Next::Retry(pause) => tokio::time::sleep(pause).await,
            Next::Done => {
                told.answers.extend(heard.success().map(|answer| answer.body.clone()));
                return told;
            }
            Next::OutcomeUnknown => {
                told.unknown = true;
                return told;
            }
            Next::GiveUp => return told,
        }
    }
}

impl Told {
    fn merge(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.executed |= other.executed;
        self.unknown |= other.unknown;
        for answer in other.answers {
            if !self.answers.contains(&answer) {
                self.answers.push(answer);
            }
        }
    }
}

/// A number that depends on nothing but its arguments (FNV-1a, then mixed).
pub(crate) fn chance(seed: u64, name: &str, attempt: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in name.bytes().chain(attempt.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash ^ (hash >> 32)
}
