//! Did it happen? The ends of a call without a final answer, kept apart.

use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use http::Request;
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
