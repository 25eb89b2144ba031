//! Did it happen? The ends of a call without a final answer, kept apart.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioExecutor;
use retrysafe::client::{Client, Error, Last, Loss, Patience, Retries};

use crate::server::*;

/// A client that makes two attempts.
fn twice() -> Retries {
    Retries::default().patience(Patience { attempts_max: 2, ..patience() })
}

fn nobody_listens() -> Request<Full<Bytes>> {
    // An address of its own, so that no other test is given the port meanwhile.
    let addr = TcpListener::bind("127.0.0.10:0").unwrap().local_addr().unwrap();
    Request::post(format!("http://{addr}/")).body(Full::default()).unwrap()
}

async fn end(steps: [Step; 2]) -> Error {
    let server = Server::scripted(steps);
    client_with(twice()).0.send(server.post()).await.unwrap_err()
}

#[tokio::test]
async fn a_call_that_never_left_is_given_up() {
    let error = client_with(twice()).0.send(nobody_listens()).await.unwrap_err();
    assert!(!error.may_have_run());
    let Error::GaveUp(ended) = error else { panic!("{error}") };
    assert_eq!(ended.receipt.attempts(), 2);
    assert_eq!(ended.receipt.key().unwrap().as_str().len(), 36);
    assert!(matches!(ended.last, Last::Error(_)));
}

#[tokio::test]
async fn a_name_that_does_not_resolve_sent_nothing() {
    let resolver = tower::service_fn(|_: Name| async {
        Err::<std::vec::IntoIter<SocketAddr>, _>(std::io::Error::other("no such host"))
    });
    let hyper = Hyper::builder(TokioExecutor::new())
        .build::<_, Full<Bytes>>(HttpConnector::new_with_resolver(resolver));
    let client = Client::new(hyper, twice());
    let request = Request::post("http://shop.test/").body(Full::<Bytes>::default()).unwrap();
    let error = client.send(request).await.unwrap_err();
    assert!(matches!(error, Error::GaveUp(_)), "{error}");
}

#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome() {
    for lost in [Step::Reset, cut(), Step::Answer(String::new())] {
        let error = end([lost.clone(), lost]).await;
        assert!(error.may_have_run());
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    }
}

#[tokio::test]
async fn a_refusal_to_run_is_given_up_with_its_answer() {
    let limited = || answer(429, "Content-Type: text/plain\r\n", "too many");
    let Error::GaveUp(ended) = end([limited(), limited()]).await else { panic!() };
    let Last::Answer(last) = ended.last else { panic!() };
    assert_eq!((last.status().as_u16(), last.body().as_ref()), (429, &b"too many"[..]));
}

#[tokio::test]
async fn a_server_error_is_an_unknown_outcome_with_its_answer() {
    let Error::OutcomeUnknown(ended) = end([answer(500, "", ""), answer(500, "", "oops")]).await
    else {
        panic!()
    };
    let Last::Answer(last) = ended.last else { panic!() };
    assert_eq!((last.status().as_u16(), last.body().as_ref()), (500, &b"oops"[..]));
}

#[tokio::test]
async fn a_store_out_of_reach_says_that_nothing_ran() {
    let down = || problem(503, "store_unavailable", "");
    assert!(matches!(end([down(), down()]).await, Error::GaveUp(_)));
    // But not about an attempt whose answer was lost.
    assert!(matches!(end([Step::Reset, down()]).await, Error::OutcomeUnknown(_)));
}

#[tokio::test]
async fn a_lost_attempt_stays_in_doubt_when_the_next_is_refused_or_barred() {
    // The server is gone after its one step.
    let server = Server::scripted_at(TcpListener::bind("127.0.0.11:0").unwrap(), [Step::Reset]);
    let error = client_with(twice()).0.send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    // A token that expired meanwhile bars the second attempt and says nothing about the first.
    let Error::OutcomeUnknown(ended) = end([Step::Reset, answer(401, "", "")]).await else {
        panic!()
    };
    assert!(matches!(ended.last, Last::Answer(last) if last.status() == 401));
}

#[tokio::test]
async fn a_safe_request_is_never_in_doubt() {
    let server = Server::scripted([Step::Reset, answer(500, "", "")]);
    let request = Request::get(server.url("/")).body(Full::<Bytes>::default()).unwrap();
    let error = client_with(twice()).0.send(request).await.unwrap_err();
    assert!(matches!(error, Error::GaveUp(_)), "{error}");
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_the_key_stays_here() {
    let other = Server::scripted([created()]);
    for status in [301, 302, 303, 307, 308] {
        let location = format!("Location: {}\r\n", other.url("/"));
        let server = Server::scripted([answer(status, &location, "")]);
        let (client, _) = client();
        assert_eq!(client.send(server.post()).await.unwrap().status(), status);
    }
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn the_judge_of_errors_can_be_replaced() {
    let server = Server::scripted([Step::Reset, Step::Reset]);
    let retries = twice().classify(|_| Loss::Unsendable);
    let error = Client::new(hyper(), retries).send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::GaveUp(_)), "{error}");
    assert_eq!(server.seen().len(), 1);
}

/// The answer to a call whose first attempt was lost and whose next ones went like this, and how
/// many attempts the server saw.
async fn after_a_loss(then: impl IntoIterator<Item = Step>) -> (Result<u16, Error>, usize) {
    let steps: Vec<Step> = [Step::Reset].into_iter().chain(then).collect();
    let retries =
        Retries::default().patience(Patience { attempts_max: steps.len() as u32, ..patience() });
    let server = Server::scripted(steps);
    let answer = client_with(retries).0.send(server.post()).await;
    (answer.map(|answer| answer.status().as_u16()), server.seen().len())
}

// The first attempt was still running when the second arrived, and the server said so with a 409
// that named neither a code nor a time. The caller was told "conflict", though it was paying.
#[tokio::test]
async fn a_bare_conflict_after_a_lost_attempt_is_asked_about_again() {
    let conflict = || answer(409, "", "still running");
    let (end, seen) = after_a_loss([conflict(), conflict(), created()]).await;
    assert_eq!((end.unwrap(), seen), (201, 4));
    let (end, _) = after_a_loss([conflict(), conflict()]).await;
    assert!(matches!(end, Err(Error::OutcomeUnknown(_))), "{end:?}");
}

#[tokio::test]
async fn a_refusal_after_a_lost_attempt_is_final_once_it_is_kept() {
    for status in [302, 307, 400, 402, 409, 410, 422] {
        let refusal = |headers: &str| answer(status, headers, "");
        let kept = refusal("Idempotent-Replayed: true\r\n");
        let (end, seen) = after_a_loss([refusal(""), kept, created()]).await;
        assert_eq!((end.unwrap(), seen), (status, 3));
        // Nobody says that it is the key's own answer: a proxy may have said it.
        let (end, _) = after_a_loss([refusal(""), refusal("")]).await;
        assert!(matches!(end, Err(Error::OutcomeUnknown(_))), "{status}: {end:?}");
    }
}

#[tokio::test]
async fn what_a_proxy_says_is_no_verdict_about_a_lost_attempt() {
    for status in [401, 403, 404, 405, 407, 411, 412, 413, 414, 415, 417, 421, 426, 431, 451, 501] {
        let (end, seen) = after_a_loss([answer(status, "", ""), created()]).await;
        assert!(matches!(end, Err(Error::OutcomeUnknown(_))), "{status}: {end:?}");
        assert_eq!(seen, 2, "asking again would get the same");
    }
    // The rules by which requests are compared may have changed since the first attempt.
    let (end, seen) = after_a_loss([problem(422, "idempotency_key_reused", ""), created()]).await;
    assert!(matches!(end, Err(Error::OutcomeUnknown(_))) && seen == 2, "{end:?}");
    let stripe = r#"{"error":{"type":"idempotency_error","code":null,"message":"other"}}"#;
    let stripe = answer(400, "Content-Type: application/json\r\n", stripe);
    let (end, seen) = after_a_loss([stripe, created()]).await;
    assert!(matches!(end, Err(Error::OutcomeUnknown(_))) && seen == 2, "{end:?}");
    // This one says that it was executed.
    let (end, _) = after_a_loss([problem(410, "response_not_stored", "")]).await;
    assert_eq!(end.unwrap(), 410);
}

#[tokio::test]
async fn a_timeout_that_the_server_tells_may_have_been_executed() {
    // Not only unread requests are answered with 408: handlers that took too long are, too.
    let error = end([answer(408, "", ""), answer(408, "", "")]).await;
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
}

#[tokio::test]
async fn an_answer_that_leaves_its_outcome_unknown_is_not_final() {
    let unknown = |status| answer(status, "Retrysafe-Outcome: unknown\r\n", "");
    for status in [200, 400, 500] {
        let server = Server::scripted([unknown(status), created()]);
        assert_eq!(client().0.send(server.post()).await.unwrap().status(), 201);
        let error = end([unknown(status), unknown(status)]).await;
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{status}: {error}");
    }
}

#[tokio::test]
async fn what_stripe_says_about_retrying_is_heard() {
    let says = |status, word: &str| answer(status, &format!("Stripe-Should-Retry: {word}\r\n"), "");
    let server = Server::scripted([says(400, "true"), created()]);
    assert_eq!(client().0.send(server.post()).await.unwrap().status(), 201);
    for (status, word) in [(429, "false"), (400, "false"), (400, "perhaps"), (200, "true")] {
        let server = Server::scripted([says(status, word), created()]);
        assert_eq!(client().0.send(server.post()).await.unwrap().status(), status, "{word}");
        assert_eq!(server.seen().len(), 1);
    }
    let server = Server::scripted([says(500, "false"), created()]);
    let error = client().0.send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    assert_eq!(server.seen().len(), 1, "asking again would not help, it says");
}

// A proxy sent the request twice. The first copy was executed, the second was refused with 429, and
// the caller was promised that nothing had happened.
#[tokio::test]
async fn giving_up_promises_no_more_than_is_known() {
    let limited = || answer(429, "", "");
    let error = end([limited(), limited()]).await;
    assert!(error.to_string().starts_with("gave up, every attempt was refused"), "{error}");
    assert!(matches!(error, Error::GaveUp(ended) if ended.was_sent));
    let error = client_with(twice()).0.send(nobody_listens()).await.unwrap_err();
    assert!(error.to_string().starts_with("gave up, nothing was sent"), "{error}");
    assert!(matches!(error, Error::GaveUp(ended) if !ended.was_sent));
}

#[tokio::test(start_paused = true)]
async fn no_attempt_is_made_after_the_server_may_have_forgotten_the_key() {
    let sent = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = std::sync::Arc::clone(&sent);
    let begun = tokio::time::Instant::now();
    let breaks = tower::service_fn(move |_: Request<Full<Bytes>>| {
        log.lock().unwrap().push(begun.elapsed());
        async { Err::<Response<Full<Bytes>>, _>(std::io::Error::other("reset")) }
    });
    let hour = Duration::from_secs(3_600);
    let patience =
        Patience { attempts_max: 1_000, pause: hour, pause_max: hour, deadline: Duration::MAX };
    let retries = Retries::default().patience(patience).resend_within(hour * 5);
    let request = Request::post("http://shop.test/").body(Full::<Bytes>::default()).unwrap();
    let error = Client::new(breaks, retries).send(request).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    let sent = sent.lock().unwrap();
    assert!(sent.len() > 1 && sent.iter().all(|at| *at <= hour * 5), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn the_longest_lengths_of_time_are_fine() {
    let breaks = tower::service_fn(|_: Request<Full<Bytes>>| async {
        Err::<Response<Full<Bytes>>, _>(std::io::Error::other("reset"))
    });
    let patience = Patience {
        attempts_max: 3,
        pause: Duration::MAX,
        pause_max: Duration::MAX,
        deadline: Duration::MAX,
    };
    let retries = Retries::default().attempt_timeout(Duration::MAX).resend_within(Duration::MAX);
    let client = Client::new(breaks, retries.clone().patience(patience));
    let request = || Request::post("http://shop.test/").body(Full::<Bytes>::default()).unwrap();
    // The pause is longer than anybody lives; what counts is that it is one.
    assert!(tokio::time::timeout(Duration::from_secs(60), client.send(request())).await.is_err());
    let client =
        Client::new(breaks, retries.patience(Patience { pause: Duration::ZERO, ..patience }));
    assert!(matches!(client.send(request()).await, Err(Error::OutcomeUnknown(_))));
}
