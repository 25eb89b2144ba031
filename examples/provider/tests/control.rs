//! Does the provider do to its callers what it was told to?

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use payment_provider::{PaymentProvider, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

async fn start() -> PaymentProvider {
    PaymentProvider::start("127.0.0.1:0".parse().unwrap(), Settings::default()).await.unwrap()
}

/// Status and body of an answer; none if the connection was reset.
async fn ask(at: SocketAddr, line: &str, key: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(at).await.ok()?;
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split("\r\n\r\n").nth(1)?.to_owned()))
}

async fn charge(at: SocketAddr, ride: &str, key: &str) -> Option<u16> {
    let body = format!("{{\"ride\":\"{ride}\",\"cents\":1200}}");
    Some(ask(at, "POST /charges", key, &body).await?.0)
}

#[tokio::test]
async fn a_key_is_charged_once_until_it_is_forgotten() {
    let provider = start().await;
    let at = provider.address();
    for _ in 0..3 {
        assert_eq!(charge(at, "r", "k").await, Some(201));
    }
    assert_eq!(provider.ride("r").charges, 1);
    let other = "{\"ride\":\"r\",\"cents\":1}";
    assert_eq!(ask(at, "POST /charges", "k", other).await.unwrap().0, 422, "other content");
    assert_eq!(ask(at, "POST /forget", "", "").await.unwrap().0, 200);
    assert_eq!(charge(at, "r", "k").await, Some(201));
    assert_eq!(provider.totals().charged_twice, ["r"], "and it says so");
    for settings in ["{\"takes_keys\":true,\"remembers_ms\":0}", "{\"takes_keys\":false}"] {
        ask(at, "PUT /settings", "", settings).await.unwrap();
        let before = provider.ride("r").charges;
        assert_eq!(charge(at, "r", "k").await, Some(201));
        assert_eq!(provider.ride("r").charges, before + 1, "{settings}");
    }
}

#[tokio::test]
async fn each_mode_does_what_it_says_and_is_used_up() {
    let provider = start().await;
    let at = provider.address();
    for (mode, told, charges) in [
        ("well", Some(201), 1),
        ("slow\",\"ms\":10,\"x\":\"", Some(201), 1),
        ("fail_before_charging", Some(503), 0),
        ("fail_after_charging", Some(500), 1),
        ("reset_before_charging", None, 0),
        ("reset_after_charging", None, 1),
        ("decline", Some(402), 0),
        ("key_in_use", Some(409), 0),
    ] {
        let ride = format!("ride-{}", mode.split('"').next().unwrap());
        let change = format!("{{\"mode\":\"{mode}\",\"times\":1}}");
        let changed = ask(at, &format!("PUT /modes/{ride}"), "", &change).await.unwrap();
        assert_eq!(changed.0, 200, "{changed:?}");
        assert_eq!(charge(at, &ride, &ride).await, told, "{mode}");
        assert_eq!(provider.ride(&ride).charges, charges, "{mode}");
        let again = charge(at, &ride, &ride).await;
        assert_eq!(again, Some(if mode == "decline" { 402 } else { 201 }), "{mode}");
        let (_, told) = ask(at, &format!("GET /charges/{ride}"), "", "").await.unwrap();
        assert!(told.contains("\"requests\":2"), "{told}");
    }
    assert_eq!(ask(at, "PUT /modes/r", "", "{\"mode\":\"polite\"}").await.unwrap().0, 400);
}

#[tokio::test]
async fn a_request_is_held_until_it_is_released_and_a_connection_is_reset_unread() {
    let provider = start().await;
    let at = provider.address();
    for (mode, charges) in [("hold_before_charging", 0), ("hold_after_charging", 1)] {
        let change = format!("{{\"mode\":\"{mode}\",\"times\":1}}");
        ask(at, &format!("PUT /modes/{mode}"), "", &change).await.unwrap();
        let charging = tokio::spawn(async move { charge(at, mode, mode).await });
        assert_eq!(ask(at, &format!("GET /held/{mode}"), "", "").await.unwrap().0, 200);
        assert_eq!(provider.ride(mode).charges, charges, "{mode}");
        assert_eq!(ask(at, &format!("POST /release/{mode}"), "", "").await.unwrap().0, 200);
        assert_eq!(charging.await.unwrap(), Some(201));
        assert_eq!(provider.ride(mode).charges, 1, "{mode}");
    }
    ask(at, "PUT /connections", "", "{\"reset\":1}").await.unwrap();
    assert_eq!(charge(at, "r", "k").await, None);
    assert_eq!(provider.ride("r").requests, 0);
    assert_eq!(charge(at, "r", "k").await, Some(201));
}
