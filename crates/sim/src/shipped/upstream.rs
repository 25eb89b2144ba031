//! What does the handler do with a request, and what does the upstream behind it?
//!
//! [`Upstream`] is the service that the layer wraps: a handler in the process, which sends a message
//! to an upstream outside of it. The message outlives the process. The upstream works, takes effect
//! and answers, each of which may be late, and the last of which may be lost, broken off, too long or
//! an error. Effects are written into the history as they happen: they are the ground truth.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use retrysafe::layer::{Attempt, Body, Failed};
use retrysafe_core::record::Answer;
use retrysafe_core::response::StoredResponse;
use tokio::sync::oneshot;
use tower_service::Service;

use super::answer::{HandlerError, Pieces, answer, body, headers, said};
use super::options::Kind;
use super::plan::{Execution, Handler, Plan, Says};
use super::stage::{CONN, Life, Stage, State};
use crate::history::{NONE, SaidSo, What};

/// The longest pause between two pieces of an answer. An answer that takes longer than the route
/// holds it is not kept, and the checker could not know which it was.
const PIECE_MS_MAX: u64 = 4_000;

/// A reload changes how long a gateway waits, by less than this.
#[cfg(feature = "gateway")]
const UNCLEAR_MS: u64 = 200;

/// The service that the layer wraps.
#[derive(Clone)]
pub struct Upstream {
    pub stage: Stage,
    pub life: Life,
}

/// A handler that runs. If it is dropped before its end, nobody waits for it any more.
struct Running<'a> {
    of: &'a Upstream,
    exec: u16,
    ended: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended && !self.of.life.is_dead() {
            self.of.stage.record(What::GaveUp { exec: self.exec });
        }
    }
}

type Answered = Result<Response<Pieces>, HandlerError>;

impl Service<Request<Body<Full<Bytes>>>> for Upstream {
    type Response = Response<Pieces>;
    type Error = HandlerError;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Full<Bytes>>>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.handle(&request).await })
    }
}

impl Upstream {
    async fn handle(&self, request: &Request<Body<Full<Bytes>>>) -> Answered {
        if self.life.is_dead() {
            std::future::pending::<()>().await;
        }
        let text = request.headers().get(CONN).and_then(|value| value.to_str().ok());
        let conn = text.and_then(|text| text.get(1..)).and_then(|text| text.parse().ok());
        let conn: u16 = conn.unwrap_or(NONE);
        let attempt = request.extensions().get::<Attempt>();
        let fence = attempt.map(|attempt| attempt.fence().0 as u32);
        let (exec, plan) = self.send(conn, fence);
        if let (Some(attempt), Some(fence)) = (attempt, fence) {
            self.wish(attempt, fence, plan);
        }
        let mut running = Running { of: self, exec, ended: plan.handler == Handler::Refuses };
        match plan.handler {
            Handler::Refuses => {
                let mut response = Response::new(Pieces::none());
                response.extensions_mut().insert(Failed::NotSent);
                return Ok(response);
            }
            Handler::Panics => {
                running.ended = true;
                self.run(exec, plan);
                self.stage.record(What::Panicked { exec });
                self.stage.record(What::GotPanic { exec });
                panic_quietly();
            }
            Handler::Errs => {
                running.ended = true;
                self.run(exec, plan);
                self.reply(exec, plan);
                self.stage.record(What::GaveUp { exec });
                return Err(HandlerError);
            }
            Handler::Busy => self.be_busy(plan).await,
            Handler::Proxy => {}
        }
        let lost = self.ask_upstream(exec, plan).await.err();
        self.life.pass(&self.stage).await;
        running.ended = true;
        if let Some(lost) = lost {
            self.stage.record(What::GaveUp { exec });
            let mut response = Response::new(Pieces::none());
            response.extensions_mut().insert(lost);
            return Ok(response);
        }
        self.stage.record(What::GotAnswer { exec, whole: plan.whole });
        Ok(answer(exec, plan))
    }

    /// The same for a request that leaves the process as bytes: whoever takes it can only be an upstream.
    #[cfg(feature = "gateway")]
    pub fn send_over_wire(&self, conn: u16, fence: Option<u32>) -> (u16, Plan) {
        let exec = self.stage.with(|state| state.execs.len() as u16);
        let drawn = self.plan(exec, fence);
        // A pause that is as long as a gateway waits would be either.
        let silence = self.silence_ms();
        let is_unclear = drawn.piece_ms.abs_diff(silence) < UNCLEAR_MS;
        let piece_ms = if is_unclear { silence - UNCLEAR_MS } else { drawn.piece_ms };
        let plan = Plan { handler: Handler::Proxy, says: Says::Header, piece_ms, ..drawn };
        self.note_sent(conn, fence, plan)
    }

    /// How long a gateway waits for the next piece of an answer; after that the answer has broken off.
    #[cfg(feature = "gateway")]
    pub fn silence_ms(&self) -> u64 {
        self.stage.options().upstream_timeout_ms
    }

    /// Notes an execution, and draws what becomes of it.
    fn send(&self, conn: u16, fence: Option<u32>) -> (u16, Plan) {
        let exec = self.stage.with(|state| state.execs.len() as u16);
        self.note_sent(conn, fence, self.plan(exec, fence))
    }

    fn note_sent(&self, conn: u16, fence: Option<u32>, plan: Plan) -> (u16, Plan) {
        let Life { gateway, epoch, .. } = self.life;
        let exec = self.stage.with(|state| {
            let (key, print) = state.conn(conn).map_or((0, 0), |conn| (conn.key, conn.print));
            let exec = state.execs.len() as u16;
            state.execs.push(Execution {
                key,
                fence,
                plan,
                took_effect: false,
                to_settle: None,
                settled: None,
            });
            state.record(match fence {
                Some(fence) if plan.handler == Handler::Refuses => {
                    What::Unsent { fence, late: false }
                }
                Some(fence) => What::Sent { conn, key, fence, gateway, epoch },
                None => What::RanOpen { exec, conn, key, print, gateway, epoch },
            });
            exec
        });
        (exec, plan)
    }

    fn plan(&self, exec: u16, fence: Option<u32>) -> Plan {
        let stage = &self.stage;
        let options = stage.options();
        let mut chance = stage.chance(&[20, exec.into()]);
        let mut plan = Plan {
            way_ms: chance.between(1, 10),
            work_ms: chance.between(1, 60),
            rest_ms: chance.between(0, 10),
            arrives: true,
            answers: true,
            effect: true,
            status: 201,
            said: SaidSo::Nothing,
            long: false,
            whole: true,
            piece_ms: 0,
            handler: Handler::Proxy,
            ttl_ms: None,
            says: chance.pick(Says::Header, &[Says::Extension, Says::Attempt]),
        };
        let strikes = |chance: &mut _, kind, percent| stage.strikes(chance, kind, percent);
        if strikes(&mut chance, Kind::UpstreamSlow, 20) {
            plan.way_ms = chance.scaled(10, options.upstream_way_max_ms());
        }
        if strikes(&mut chance, Kind::UpstreamSlow, 25) {
            plan.work_ms = chance.scaled(50, options.upstream_work_max_ms());
        }
        if strikes(&mut chance, Kind::UpstreamSlow, 15) {
            plan.rest_ms = chance.scaled(50, 2 * options.lease_ms);
        }
        plan.arrives = !strikes(&mut chance, Kind::UpstreamLost, 6);
        plan.answers = !strikes(&mut chance, Kind::UpstreamLost, 8);
        plan.long = strikes(&mut chance, Kind::LongAnswer, 20);
        plan.whole = !strikes(&mut chance, Kind::Truncated, 12);
        if strikes(&mut chance, Kind::LongAnswer, 20) {
            plan.piece_ms = chance.scaled(20, options.lease_ms.min(PIECE_MS_MAX));
        }
        if strikes(&mut chance, Kind::UpstreamErrors, 35) {
            (plan.status, plan.effect, plan.said) = errors(&mut chance);
        }
        if strikes(&mut chance, Kind::HandlerTtl, 30) {
            plan.ttl_ms = Some(chance.scaled(options.lease_ms, 2 * options.ttl_ms));
        }
        let kinds = [
            (Kind::Panic, Handler::Panics, 8),
            (Kind::Panic, Handler::Errs, 5),
            (Kind::Busy, Handler::Busy, 20),
            (Kind::UpstreamRefuses, Handler::Refuses, 12),
        ];
        for (kind, handler, percent) in kinds {
            if strikes(&mut chance, kind, percent) {
                plan.handler = handler;
            }
        }
        if matches!(plan.handler, Handler::Panics | Handler::Errs) {
            (plan.effect, plan.status) = (chance.percent(50), 201);
        }
        if fence.is_none() {
            // What nothing protects has nobody to tell its ends apart.
            (plan.handler, plan.said, plan.answers, plan.arrives) =
                (Handler::Proxy, SaidSo::Nothing, true, true);
        }
        plan
    }

    /// What the handler asks for while it runs.
    fn wish(&self, attempt: &Attempt, fence: u32, plan: Plan) {
        if let Some(ttl_ms) = plan.ttl_ms {
            attempt.keep_for(Duration::from_millis(ttl_ms));
            self.stage.record(What::KeepFor { fence, ttl_ms });
        }
        if let (Says::Attempt, Some(said)) = (plan.says, said(plan.said)) {
            attempt.say(said);
        }
    }

    /// The upstream works on a request, from its arrival to its answer. False if it does not take it.
    pub async fn work(&self, exec: u16, plan: Plan) -> bool {
        self.stage.sleep(plan.way_ms).await;
        if !self.arrive(exec) {
            return false;
        }
        self.stage.sleep(plan.work_ms).await;
        self.take_effect(exec, plan);
        self.stage.sleep(plan.rest_ms).await;
        self.reply(exec, plan);
        true
    }

    /// Sends a message to the upstream and waits for its answer. It may break off, or not come in time.
    async fn ask_upstream(&self, exec: u16, plan: Plan) -> Result<(), Failed> {
        let (reply, answer) = oneshot::channel();
        if plan.arrives {
            let this = self.clone();
            tokio::spawn(async move {
                if this.work(exec, plan).await && plan.answers {
                    // The process may be gone.
                    let _ = reply.send(());
                }
            });
        }
        let patience = Duration::from_millis(self.stage.options().upstream_timeout_ms);
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failed::Lost { timed_out: false }),
            Err(_) => Err(Failed::Lost { timed_out: true }),
        }
    }

    /// Everything at once, in the process itself.
    fn run(&self, exec: u16, plan: Plan) {
        if self.arrive(exec) {
            self.take_effect(exec, plan);
        }
    }

    /// Whether the upstream works on it: a burnt fence bounces.
    fn arrive(&self, exec: u16) -> bool {
        self.stage.with(|state| {
            let Some(it) = state.exec(exec).cloned() else { return false };
            let Some(fence) = it.fence else { return true };
            if state.is_burnt(it.key, fence) {
                state.record(What::Bounced { key: it.key, fence });
                return false;
            }
            let print = state.print_of(it.key, fence);
            state.record(What::Ran { exec, key: it.key, fence, print });
            true
        })
    }

    fn take_effect(&self, exec: u16, plan: Plan) {
        if !plan.effect {
            return;
        }
        self.stage.with(|state| {
            let Some(it) = state.exec(exec).cloned() else { return };
            // The burn is checked in the same step as the effect, or it would be no proof.
            if it.fence.is_some_and(|fence| state.is_burnt(it.key, fence)) {
                return;
            }
            if let Some(it) = state.exec(exec) {
                it.took_effect = true;
            }
            state.record(What::Effect { exec });
        });
    }

    fn reply(&self, exec: u16, plan: Plan) {
        let Plan { status, said, long, .. } = plan;
        let headers = headers(exec);
        self.stage.with(|state| {
            let head = state.head_number(&headers);
            state.record(What::Replied {
                exec,
                status,
                said,
                large: long,
                slow: plan.piece_ms > 0,
                head,
            });
        });
    }

    /// Computes for as long as the plan says, and never waits. Others get their turns, but whatever
    /// shares this task finds its budget used up.
    async fn be_busy(&self, plan: Plan) {
        let step = Duration::from_millis(self.stage.options().lease_ms / 8);
        let steps = 4 + plan.work_ms % 12;
        for _ in 0..steps {
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::consume_budget().await;
            }
            tokio::time::advance(step).await;
        }
    }
}

/// Panics on purpose. Nobody wants to read of it, so the panic hook is passed by.
pub fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("a simulated panic"))
}

/// Answers that are not the usual one: status, effect, and what the handler says of it.
fn errors(chance: &mut crate::chance::Chance) -> (u16, bool, SaidSo) {
    chance.pick(
        (500, false, SaidSo::Nothing),
        &[
            (500, true, SaidSo::Nothing),
            (503, false, SaidSo::Nothing),
            (402, false, SaidSo::Nothing),
            (409, false, SaidSo::Nothing),
            (404, false, SaidSo::Nothing),
            (429, false, SaidSo::Nothing),
            (502, true, SaidSo::Nothing),
            (504, false, SaidSo::Nothing),
            (500, true, SaidSo::Completed),
            (200, false, SaidSo::Retryable),
            (200, true, SaidSo::Unknown),
        ],
    )
}

impl State {
    /// What the request of a fence means, by who began it.
    fn print_of(&self, key: u8, fence: u32) -> u8 {
        let begun = self.log.iter().rev().find_map(|entry| {
            let What::Sent { conn, key: of, fence: sent, .. } = entry.what else { return None };
            (of == key && sent == fence).then_some(conn)
        });
        begun.and_then(|conn| self.conns.get(usize::from(conn))).map_or(u8::MAX, |conn| conn.print)
    }

    pub fn is_burnt(&self, key: u8, fence: u32) -> bool {
        self.burnt.iter().any(|(of, burnt)| *of == key && fence <= *burnt)
    }

    /// The execution in which a fence took effect, if it did.
    pub fn effect_of(&self, key: u8, fence: u32) -> Option<u16> {
        self.execs
            .iter()
            .position(|it| it.key == key && it.fence == Some(fence) && it.took_effect)
            .map(|at| at as u16)
    }

    /// What the upstream would tell about an execution that took effect.
    pub fn remembered(&self, exec: u16) -> Answer {
        let plan = self.execs.get(usize::from(exec)).map(|it| it.plan);
        let status = plan.map(|plan| plan.status).filter(|status| *status < 500).unwrap_or(201);
        let status = StatusCode::from_u16(status).unwrap_or_default();
        if plan.is_some_and(|plan| plan.long) {
            Answer::NotKept { status: Some(status), location: None }
        } else {
            let body = body(exec, false, true);
            Answer::Kept(StoredResponse::keep(status, &headers(exec), body, false))
        }
    }
}
