//! Does reqwest retry like the rest, and keep the key at home?

use ::reqwest::Client as Plain;
use http::HeaderMap;
use retrysafe::client::reqwest::{client, ended, resume};
use retrysafe::client::{Error, Journal, Patience, Receipt, Retries};

use crate::server::*;

fn retrying(retries: Retries) -> reqwest_middleware::ClientWithMiddleware {
    client(Plain::builder(), watched(retries).0).unwrap()
}

fn default() -> reqwest_middleware::ClientWithMiddleware {
    retrying(Retries::default().patience(patience()))
}

#[tokio::test]
async fn reqwest_sends_one_key_on_all_attempts() {
    let script = [
        answer(500, "", ""),
        Step::Reset,
        cut(),
        problem(409, "request_in_progress", "Retry-After: 9\r\n"),
        created(),
    ];
    let server = Server::scripted(script);
    let url = server.url("/payments");
    let answer = default().post(&url).body("{}").send().await.unwrap();
    assert_eq!(answer.url().as_str(), url);
    let receipt = answer.extensions().get::<Receipt>().unwrap().clone();
    assert_eq!(receipt.attempts(), 5);
    assert_eq!(answer.text().await.unwrap(), "made");
    let seen = server.seen();
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|seen| seen.key() == receipt.key().unwrap().as_str()));
    assert!(seen.iter().all(|seen| seen.body == b"{}"));
}

#[tokio::test]
async fn reqwest_does_not_retry_what_will_not_change() {
    for status in [400, 401, 404, 409, 422] {
        let server = Server::scripted([problem(status, "of_its_own", ""), created()]);
        let answer = default().post(server.url("/")).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text().await.unwrap(), "{\"title\":\"no\",\"code\":\"of_its_own\"}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn reqwests_ends_are_told_apart() {
    let once = || Retries::default().patience(Patience { attempts_max: 1, ..patience() });
    let addr = std::net::TcpListener::bind("127.0.0.12:0").unwrap().local_addr().unwrap();
    let error = retrying(once()).post(format!("http://{addr}/")).send().await.unwrap_err();
    assert!(matches!(ended(&error), Some(Error::GaveUp(_))), "{error}");
    let server = Server::scripted([Step::Reset]);
    let error = retrying(once()).post(server.url("/")).body("{}").send().await.unwrap_err();
    assert!(matches!(ended(&error), Some(Error::OutcomeUnknown(_))), "{error}");
}

#[tokio::test]
async fn the_key_is_not_carried_to_another_origin() {
    let other = Server::scripted([created()]);
    for status in [301, 302, 303, 307, 308] {
        let location = format!("Location: {}\r\n", other.url("/steal"));
        let server = Server::scripted([answer(status, &location, "")]);
        let answer = default().post(server.url("/")).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(server.seen()[0].key().len(), 36);
    }
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn the_key_is_carried_within_its_origin_with_the_request() {
    for status in [307, 308] {
        let server = Server::scripted([answer(status, "Location: /there\r\n", ""), created()]);
        let answer = default().post(server.url("/here")).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), 201);
        assert!(answer.url().as_str().ends_with("/there"));
        let seen = server.seen();
        assert_eq!(seen[1].line, "POST /there HTTP/1.1");
        assert_eq!(seen[0].key(), seen[1].key());
        assert_eq!(seen[1].body, b"{}");
    }
    // "See there" is the answer to a call, not a place to repeat it.
    let server = Server::scripted([answer(303, "Location: /there\r\n", ""), created()]);
    let answer = default().post(server.url("/here")).body("{}").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), server.seen().len()), (303, 1));
}

#[tokio::test]
async fn a_request_without_a_key_is_redirected_as_usual() {
    let other = Server::scripted([answer(200, "", "there")]);
    let location = format!("Location: {}\r\n", other.url("/there"));
    let server = Server::scripted([answer(302, &location, "")]);
    let answer = default().get(server.url("/here")).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "there");
    // With a key of the caller's own it is not.
    let server = Server::scripted([answer_to(&location)]);
    let request = default().get(server.url("/here")).header("idempotency-key", "k");
    assert_eq!(request.send().await.unwrap().status(), 302);
    assert_eq!(other.seen().len(), 1);
}

fn answer_to(location: &str) -> Step {
    answer(302, location, "")
}

#[tokio::test]
async fn reqwest_resumes_from_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::scripted([created(), Step::Reset, created()]);
    let client = retrying(Retries::default().patience(patience()).journal(journal.clone()));
    drop(client.post(server.url("/")).body("{}").send().await.unwrap());
    let pending = journal.pending().await.unwrap().calls.remove(0);
    let answer = resume(&client, pending, HeaderMap::new()).await.unwrap();
    assert_eq!(answer.status(), 201);
    answer.extensions().get::<Receipt>().unwrap().acknowledge().await.unwrap();
    let seen = server.seen();
    assert!(seen.iter().all(|each| each.key() == seen[0].key() && each.body == b"{}"));
    assert_eq!(seen.len(), 3);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
