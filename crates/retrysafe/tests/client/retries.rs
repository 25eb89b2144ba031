//! What is tried again, with which key, and after which pause?

use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use retrysafe::client::{Client, Error, Last, Notice, Receipt, Refused, Retries, RetryLayer};
use retrysafe::core::key::{Key, KeySyntax};
use retrysafe::core::retry::show_http_date;
use tower::{Layer as _, ServiceExt as _};

use crate::server::*;

/// The first attempt ends like this; the second is answered. Both are the same request.
async fn is_retried(first: Step) {
    let server = Server::scripted([first, created()]);
    let (client, _) = client();
    let answer = client.send(server.post()).await.unwrap();
    assert_eq!(Receipt::of(&answer).unwrap().attempts(), 2);
    assert_eq!(read(answer).await, (201, "made".into()));
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].key(), seen[1].key());
    assert_eq!(seen[0].body, b"{\"amount\":5}");
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(seen[0].line, seen[1].line);
}

macro_rules! retried {
    ($($name:ident: $first:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            is_retried($first).await;
        }
    )*};
}

retried! {
    request_in_progress_is_retried: problem(409, "request_in_progress", "Retry-After: 1\r\n");
    stripes_key_in_use_is_retried: answer(409, "Content-Type: application/json\r\n",
        r#"{"error":{"type":"idempotency_error","code":"idempotency_key_in_use"}}"#);
    a_conflict_that_names_a_time_is_retried: answer(409, "Retry-After: 1\r\n", "running");
    in_progress_as_202_is_retried: problem(202, "request_in_progress", "");
    an_unknown_outcome_is_asked_again: problem(409, "outcome_unknown", "Retry-After: 1\r\n");
    too_many_requests_is_retried: answer(429, "", "");
    internal_error_is_retried: answer(500, "", "oops");
    bad_gateway_is_retried: answer(502, "", "");
    unavailable_with_retry_after_is_retried: answer(503, "Retry-After: 3\r\n", "");
    a_reset_after_the_request_is_retried: Step::Reset;
    a_truncated_answer_is_retried: cut();
    a_broken_head_is_retried: Step::Answer("HTTP/1.1 201 X\r\nContent-Le".into());
    a_closed_connection_is_retried: Step::Answer(String::new());
}

async fn is_final(first: Step, status: u16) {
    let server = Server::scripted([first, created()]);
    let (client, heard) = client();
    let answer = client.send(server.post()).await.unwrap();
    assert_eq!(answer.status(), status);
    assert_eq!(server.seen().len(), 1);
    assert!(heard.pauses().is_empty());
    let Step::Answer(sent) = problem(status, "of_its_own", "") else { unreachable!() };
    let (_, body) = read(answer).await;
    // The code was read from the body, and the body is still whole.
    assert!(body.is_empty() || sent.ends_with(&body), "{body}");
}

macro_rules! not_retried {
    ($($name:ident: $status:literal;)*) => {$(
        #[tokio::test]
        async fn $name() {
            is_final(problem($status, "of_its_own", ""), $status).await;
        }
    )*};
}

not_retried! {
    a_success_is_final: 200;
    a_redirect_is_final: 303;
    a_bad_request_is_final: 400;
    unauthorized_is_final: 401;
    forbidden_is_final: 403;
    not_found_is_final: 404;
    an_applications_conflict_is_final: 409;
    gone_is_final: 410;
    a_reused_key_is_final: 422;
    not_implemented_is_final: 501;
}

#[tokio::test]
async fn a_kept_failure_is_final() {
    let kept = answer(500, "Idempotent-Replayed: true\r\n", "{}");
    let server = Server::scripted([answer(500, "", ""), kept, created()]);
    assert_eq!(client().0.send(server.post()).await.unwrap().status(), 500);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn the_header_that_marks_a_replay_can_have_another_name() {
    let marked = || answer(500, "Idempotency-Replayed: true\r\n", "{}");
    let server = Server::scripted([marked(), created()]);
    let name = http::HeaderName::from_static("idempotency-replayed");
    let (client, _) = client_with(Retries::default().patience(patience()).replay_marker(name));
    assert_eq!(client.send(server.post()).await.unwrap().status(), 500);
    assert_eq!(server.seen().len(), 1);
    // Another name alone is not taken for it.
    is_retried(marked()).await;
    is_retried(answer(500, "Idempotent-Replayed: false\r\n", "")).await;
}

#[tokio::test]
async fn a_success_is_final_whatever_its_body_says() {
    let server = Server::scripted([problem(200, "outcome_unknown", ""), created()]);
    assert_eq!(client().0.send(server.post()).await.unwrap().status(), 200);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn one_key_for_all_attempts_and_a_new_one_for_each_call() {
    let script = [answer(500, "", ""), Step::Reset, cut(), problem(409, "request_in_progress", "")];
    let server = Server::scripted(script.into_iter().chain([created(), created()]));
    let (client, _) = client();
    let answer = client.send(server.post()).await.unwrap();
    let key = Receipt::of(&answer).unwrap().key().unwrap().as_str().to_owned();
    Key::parse_lines([key.as_bytes()], KeySyntax::Uuid).unwrap();
    client.send(server.post()).await.unwrap();
    let seen = server.seen();
    assert!(seen[..5].iter().all(|seen| seen.key() == key));
    assert_ne!(seen[5].key(), key);
    for seen in seen {
        assert_eq!(seen.headers.iter().filter(|(name, _)| name == "idempotency-key").count(), 1);
    }
}

#[tokio::test]
async fn the_callers_own_key_is_sent_as_it_stands() {
    let server = Server::scripted([answer(500, "", ""), created()]);
    let (client, _) = client();
    let mut request = server.post();
    request.headers_mut().insert("idempotency-key", "\"order-7\"".parse().unwrap());
    let answer = client.send(request).await.unwrap();
    assert_eq!(Receipt::of(&answer).unwrap().key().unwrap().as_str(), "order-7");
    assert!(server.seen().iter().all(|seen| seen.key() == "\"order-7\""));
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_refused_before_anything_is_sent() {
    let server = Server::scripted([created()]);
    let (client, _) = client();
    let mut request = server.post();
    request.headers_mut().append("idempotency-key", "one".parse().unwrap());
    request.headers_mut().append("idempotency-key", "two".parse().unwrap());
    let error = client.send(request).await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::Key(_))), "{error}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn keys_can_be_quoted_and_have_another_header() {
    let server = Server::scripted([created()]);
    let retries = Retries::default()
        .quote_keys()
        .key_header(http::HeaderName::from_static("paypal-request-id"));
    let (client, _) = client_with(retries);
    client.send(server.post()).await.unwrap();
    let seen = server.seen();
    let key = seen[0].header("paypal-request-id").unwrap();
    assert!(key.starts_with('"') && key.ends_with('"') && key.len() == 38, "{key}");
    assert_eq!(seen[0].header("idempotency-key"), None);
}

#[tokio::test]
async fn safe_methods_are_retried_without_a_key() {
    for method in [http::Method::GET, http::Method::HEAD] {
        let server = Server::scripted([Step::Reset, answer(503, "", ""), answer(200, "", "")]);
        let (client, _) = client();
        let request = Request::builder().method(method).uri(server.url("/x"));
        let answer = client.send(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(Receipt::of(&answer).unwrap().key().is_none());
        assert_eq!(server.seen().len(), 3);
        assert!(server.seen().iter().all(|seen| seen.header("idempotency-key").is_none()));
    }
}

#[tokio::test]
async fn every_unsafe_method_gets_a_key() {
    for method in ["POST", "PATCH", "PUT", "DELETE"] {
        let server = Server::scripted([created()]);
        let (client, _) = client();
        let request = Request::builder().method(method).uri(server.url("/x"));
        client.send(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(server.seen()[0].key().len(), 36);
    }
}

#[tokio::test]
async fn a_refused_connection_is_tried_until_the_server_is_up() {
    // An address of its own, so that no other test is given the port meanwhile.
    let listener = TcpListener::bind("127.0.0.9:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let server = std::sync::Arc::new(Mutex::new(None));
    let starts = std::sync::Arc::clone(&server);
    let retries = Retries::default().patience(patience()).observe(move |notice| {
        if let Notice::Heard { attempt: 2, .. } = notice {
            let listener = TcpListener::bind(addr).unwrap();
            *starts.lock().unwrap() = Some(Server::scripted_at(listener, [created()]));
        }
    });
    let client = Client::new(hyper(), retries);
    let request = Request::post(format!("http://{addr}/x")).body(Full::<Bytes>::default()).unwrap();
    let answer = client.send(request).await.unwrap();
    assert_eq!(answer.status(), 201);
    assert_eq!(Receipt::of(&answer).unwrap().attempts(), 3);
    assert_eq!(server.lock().unwrap().as_ref().unwrap().seen().len(), 1);
}

/// The pause after a 503 with this header.
async fn pause_after(retry_after: &str) -> Duration {
    let first = answer(503, &format!("Retry-After: {retry_after}\r\n"), "");
    let server = Server::scripted([first, created()]);
    let (client, heard) = client();
    let begun = tokio::time::Instant::now();
    assert_eq!(client.send(server.post()).await.unwrap().status(), 201);
    let [pause] = heard.pauses()[..] else { panic!("{:?}", heard.lines()) };
    // What was decided is also what was waited.
    assert!(begun.elapsed() >= pause);
    pause
}

#[tokio::test]
async fn retry_after_in_seconds_is_waited_for() {
    assert_eq!(pause_after("7").await, Duration::from_secs(7));
    assert_eq!(pause_after(" 7 ").await, Duration::from_secs(7));
}

#[tokio::test]
async fn retry_after_as_a_date_is_waited_for() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let pause = pause_after(&show_http_date(now + 60)).await;
    assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&pause), "{pause:?}");
    assert!(pause_after(&show_http_date(now - 60)).await <= Duration::from_millis(1));
}

#[tokio::test]
async fn a_senseless_retry_after_is_ignored() {
    for value in ["soon", "-3", "1.5", "0x10", "", "Sun, 99 Nov 1994 08:49:37 GMT"] {
        assert!(pause_after(value).await <= Duration::from_millis(1), "{value}");
    }
}

#[tokio::test]
async fn a_retry_after_past_the_deadline_ends_the_call() {
    for value in ["99999", "99999999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let first = answer(503, &format!("Retry-After: {value}\r\n"), "");
        let server = Server::scripted([first, created()]);
        let (client, _) = client();
        let error = client.send(server.post()).await.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn the_whole_call_ends_at_its_deadline() {
    let busy = || answer(503, "Retry-After: 4\r\n", "");
    let server = Server::scripted([busy(), busy(), busy(), created()]);
    let patience = retrysafe::client::Patience {
        deadline: Duration::from_secs(11),
        pause: Duration::from_millis(1),
        ..patience()
    };
    let (client, heard) = client_with(Retries::default().patience(patience));
    let error = client.send(server.post()).await.unwrap_err();
    // Attempts at 0, 4 and 8 seconds; the next would be at 12.
    assert_eq!(heard.pauses().len(), 2);
    assert_eq!(server.seen().len(), 3);
    assert!(error.to_string().ends_with("503 Service Unavailable (3 attempts)"), "{error}");
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_lost_and_tried_again() {
    let server = Server::scripted([Step::Silence, created()]);
    // Long enough for the second attempt on a busy machine.
    let retries = Retries::default().patience(patience()).attempt_timeout(Duration::from_secs(3));
    let (client, heard) = client_with(retries);
    assert_eq!(client.send(server.post()).await.unwrap().status(), 201);
    assert!(heard.lines()[1].starts_with("1 Lost"), "{:?}", heard.lines());
    let seen = server.seen();
    assert_eq!(seen[0].key(), seen[1].key());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_does_not_outlive_the_deadline() {
    // No socket here, so that the clock can stand still throughout.
    let silent = tower::service_fn(|_: Request<Full<Bytes>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, std::convert::Infallible>>()
    });
    let patience = retrysafe::client::Patience { deadline: Duration::from_secs(40), ..patience() };
    let retries = Retries::default().patience(patience).attempt_timeout(Duration::from_secs(3_600));
    let begun = tokio::time::Instant::now();
    let request = Request::post("http://shop.test/").body(Full::<Bytes>::default()).unwrap();
    let error = Client::new(silent, retries).send(request).await.unwrap_err();
    let Error::OutcomeUnknown(ended) = error else { panic!("{error}") };
    assert!(matches!(ended.last, Last::TimedOut));
    // The timer's grain is a millisecond.
    assert_eq!(begun.elapsed().as_secs(), 40);
}

#[tokio::test]
async fn the_observer_hears_of_every_attempt() {
    let server = Server::scripted([Step::Reset, problem(503, "store_unavailable", ""), created()]);
    let patience = retrysafe::client::Patience { pause: Duration::ZERO, ..patience() };
    let (client, heard) = client_with(Retries::default().patience(patience));
    client.send(server.post()).await.unwrap();
    assert_eq!(
        heard.lines(),
        [
            "sending 1",
            "1 Lost true Retry(0ns)",
            "sending 2",
            "2 Answer(AnswerHead { status: 503, code: Some(\"store_unavailable\"), \
             retry_after: None, is_replay: false, leaves_unknown: false, should_retry: None }) \
             false Retry(0ns)",
            "sending 3",
            "3 Answer(AnswerHead { status: 201, code: None, retry_after: None, is_replay: false, \
             leaves_unknown: false, should_retry: None }) false Done",
        ]
    );
}

#[tokio::test]
async fn a_body_that_comes_in_parts_is_sent_whole_each_time() {
    let server = Server::scripted([answer(500, "", ""), created()]);
    let (client, _) = client();
    let parts = ["one ", "two ", "three"].map(|part| {
        Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(part.as_bytes())))
    });
    let body = StreamBody::new(futures_stream(parts));
    let request = Request::post(server.url("/x")).body(body).unwrap();
    client.send(request).await.unwrap();
    assert!(server.seen().iter().all(|seen| seen.body == b"one two three"));
}

/// A stream over what is there already.
fn futures_stream<T: Unpin, const N: usize>(
    items: [T; N],
) -> impl futures_core::Stream<Item = T> + Unpin {
    struct Items<T>(std::vec::IntoIter<T>);
    impl<T: Unpin> futures_core::Stream for Items<T> {
        type Item = T;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<T>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Items(Vec::from(items).into_iter())
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_anything_is_sent() {
    let server = Server::scripted([created(), created()]);
    let (client, _) = client_with(Retries::default().body_bytes_max(12));
    client.send(server.post()).await.unwrap();
    let (client, _) = client_with(Retries::default().body_bytes_max(11));
    let error = client.send(server.post()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::BodyTooLarge(11))), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_long_answer_is_handed_over_whole() {
    let long = "x".repeat(300_000);
    for (status, bytes_max) in [(200, 10), (200, 0), (200, 1 << 20), (422, 10), (422, 0)] {
        let server =
            Server::scripted([answer(status, "Content-Type: application/json\r\n", &long)]);
        let (client, _) = client_with(Retries::default().answer_bytes_max(bytes_max));
        let answer = client.send(server.post()).await.unwrap();
        assert_eq!(http_body::Body::size_hint(answer.body()).exact(), Some(300_000));
        assert_eq!(read(answer).await, (status, long.clone()));
    }
}

#[tokio::test]
async fn an_answer_longer_than_is_read_breaks_off_in_the_callers_hands() {
    let server = Server::scripted([cut(), created()]);
    let (client, _) = client_with(Retries::default().answer_bytes_max(1));
    let answer = client.send(server.post()).await.unwrap();
    assert_eq!(answer.status(), 201);
    assert!(answer.into_body().collect().await.is_err());
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn the_layer_wraps_any_service() {
    let attempts = std::sync::Arc::new(Mutex::new(Vec::new()));
    let log = std::sync::Arc::clone(&attempts);
    let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
        let mut log = log.lock().unwrap();
        log.push(request.headers()["idempotency-key"].clone());
        let status = if log.len() < 3 { StatusCode::BAD_GATEWAY } else { StatusCode::CREATED };
        let mut answer = Response::new(Full::<Bytes>::default());
        *answer.status_mut() = status;
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let client = RetryLayer::new(Retries::default().patience(patience())).layer(service);
    let request = Request::post("http://shop.test/").body(Full::<Bytes>::default()).unwrap();
    let answer = client.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let attempts = attempts.lock().unwrap();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|key| key == attempts[0]));
}
