//! What does a client change that goes away? Nothing: FIN, RST and half-close at six points.

use std::sync::Arc;

use retrysafe_core::policy::Policy;
use retrysafe_core::record::Standing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::stage::{Fault, On, Stage, must};

#[derive(Clone, Copy, Debug)]
enum Manner {
    Fin,
    Rst,
    HalfClose,
}

const MANNERS: [Manner; 3] = [Manner::Fin, Manner::Rst, Manner::HalfClose];

const HEAD: &str = "POST /slow HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: k\r\n\
                    content-length: 5\r\n\r\n";

/// A client that has sent this much. It stays until it leaves.
async fn client(stage: &Stage, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(stage.address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

/// Leaves. A half-closed stream stays open for reading as long as it is held.
async fn leave(mut stream: TcpStream, manner: Manner) -> Option<TcpStream> {
    match manner {
        Manner::Fin => None,
        Manner::Rst => {
            stream.set_zero_linger().unwrap();
            None
        }
        Manner::HalfClose => {
            stream.shutdown().await.unwrap();
            Some(stream)
        }
    }
}

/// The next attempts: in progress while the first is held, then its answer.
async fn next_attempts_see_one_execution(stage: &Stage, release: &Semaphore, manner: Manner) {
    stage.post("/slow", "k", "hello").await.refuses(409, "request_in_progress");
    release.add_permits(1);
    stage.settled().await;
    let answer = stage.post("/slow", "k", "hello").await;
    assert!(answer.is_replay(), "{manner:?}");
    assert_eq!((answer.text(), stage.shop.runs()), ("slow 1", 1), "{manner:?}");
}

/// Before the request has arrived whole there is nothing to change.
#[tokio::test]
async fn leaving_within_the_head_or_the_body_leaves_nothing_behind() {
    for manner in MANNERS {
        for sent in [&HEAD[..30], &format!("{HEAD}he")] {
            let stage = Stage::open(Policy::default()).await;
            let gone = leave(client(&stage, sent).await, manner).await;
            // The server answers a half-closed client, and drops the others.
            if let Some(mut half) = gone {
                let mut rest = Vec::new();
                let _ = must("the server hangs up", half.read_to_end(&mut rest)).await;
            }
            assert_eq!((stage.shop.runs(), stage.records().await.len()), (0, 0));
            stage.shop.gate.add_permits(1);
            assert_eq!(stage.post("/slow", "k", "hello").await.text(), "slow 1");
        }
    }
}

#[tokio::test]
async fn leaving_while_the_begin_is_under_way_changes_nothing() {
    for manner in MANNERS {
        let stage = Stage::open(Policy::default()).await;
        let gate = Arc::new(Semaphore::new(0));
        stage.store.next(On::Insert, Fault::Hold(gate.clone()));
        let stream = client(&stage, &format!("{HEAD}hello")).await;
        stage.store.asked(1, 0).await;
        let _gone = leave(stream, manner).await;
        stage.shop.left(1).await;
        gate.add_permits(1);
        stage.shop.began(1).await;
        next_attempts_see_one_execution(&stage, &stage.shop.gate, manner).await;
    }
}

#[tokio::test]
async fn leaving_while_the_handler_runs_changes_nothing() {
    for manner in MANNERS {
        let stage = Stage::open(Policy::default()).await;
        let stream = client(&stage, &format!("{HEAD}hello")).await;
        stage.shop.began(1).await;
        let _gone = leave(stream, manner).await;
        stage.shop.left(1).await;
        next_attempts_see_one_execution(&stage, &stage.shop.gate, manner).await;
    }
}

#[tokio::test]
async fn leaving_while_the_answer_is_settled_changes_nothing() {
    for manner in MANNERS {
        let stage = Stage::open(Policy::default()).await;
        let gate = Arc::new(Semaphore::new(0));
        stage.store.next(On::Swap, Fault::Hold(gate.clone()));
        stage.shop.gate.add_permits(1);
        let stream = client(&stage, &format!("{HEAD}hello")).await;
        stage.store.asked(1, 1).await;
        let _gone = leave(stream, manner).await;
        stage.shop.left(1).await;
        next_attempts_see_one_execution(&stage, &gate, manner).await;
    }
}

#[tokio::test]
async fn leaving_within_the_answer_changes_nothing() {
    for manner in MANNERS {
        let stage = Stage::open(Policy::default()).await;
        stage.shop.gate.add_permits(1);
        let mut stream = client(&stage, &format!("{HEAD}hello")).await;
        let mut few = [0; 9];
        must("an answer", stream.read_exact(&mut few)).await.unwrap();
        let _gone = leave(stream, manner).await;
        assert!(stage.post("/slow", "k", "hello").await.is_replay());
        assert_eq!(stage.shop.runs(), 1);
    }
}

/// A duplicate that waits holds nothing but its seat.
#[tokio::test]
async fn a_waiter_that_leaves_gives_up_its_seat_and_nothing_else() {
    let wait_max = std::time::Duration::from_secs(600);
    let policy = Policy { wait_max, ..Policy::default() };
    let stage = Stage::open_with(|layer| layer.policy(policy).waiters_max(1, 1)).await;
    let first = stage.begin(stage.request("/slow", "k", "hello"));
    stage.shop.began(1).await;
    let waiter = client(&stage, &format!("{HEAD}hello")).await;
    stage.store.asked(2, 0).await;
    let _gone = leave(waiter, Manner::Rst).await;
    stage.shop.left(1).await;
    assert_eq!(stage.standing().await, Standing::InProgress);
    let waiter = stage.begin(stage.request("/slow", "k", "hello"));
    stage.store.asked(3, 0).await;
    stage.shop.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "slow 1");
    assert!(must("woken", waiter).await.unwrap().is_replay());
}

/// A timeout further out drops the answer just as a server does.
#[tokio::test]
async fn a_timeout_around_the_layer_changes_nothing() {
    use axum::body::Body;
    use tower::{Layer, ServiceExt};

    let (store, shop) = (crate::stage::Faulty::new(Default::default()), crate::stage::Shop::new());
    let layer = retrysafe::layer::IdempotencyLayer::new(store);
    let service = layer.layer(crate::stage::shelves(&shop));
    let request =
        || http::Request::post("/slow").header("idempotency-key", "k").body(Body::empty()).unwrap();
    let call = service.clone().oneshot(request());
    assert!(tokio::time::timeout(std::time::Duration::from_millis(1), call).await.is_err());
    shop.gate.add_permits(1);
    layer.drain().wait(crate::stage::PATIENCE).await.unwrap();
    let again = service.oneshot(request()).await.unwrap();
    assert_eq!(again.headers().get("idempotent-replayed").unwrap(), "true");
    assert_eq!(shop.runs(), 1);
}
