//! Does the promise hold when the connection is cut at any byte? In memory, byte by byte.

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use retrysafe::layer::IdempotencyLayer;
use retrysafe::stores::memory::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use crate::stage::{PATIENCE, Shop, must, shelves};

const REQUEST: &[u8] = b"POST /pay HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: \"k-1\"\r\n\
    content-type: application/json\r\ncontent-length: 14\r\n\r\n{\"amount\":100}";

struct Wire {
    shop: Shop,
    layer: IdempotencyLayer<Arc<MemoryStore>>,
    store: Arc<MemoryStore>,
}

impl Wire {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        Self { shop: Shop::new(), layer: IdempotencyLayer::new(store.clone()), store }
    }

    /// A connection of its own, to a server that serves until the client is gone.
    fn connect(&self) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(64);
        let router = shelves(&self.shop).layer(self.layer.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), TowerToHyperService::new(router));
        (client, tokio::spawn(async move { drop(connection.await) }))
    }

    /// Sends the request, reads this much of the answer, and is gone.
    async fn cut(&self, sent: usize, read: usize) -> Vec<u8> {
        let (mut client, server) = self.connect();
        client.write_all(&REQUEST[..sent]).await.unwrap();
        let mut answer = vec![0; read];
        must("an answer", client.read_exact(&mut answer)).await.unwrap();
        drop(client);
        must("the server notices", server).await.unwrap();
        self.layer.drain().wait(PATIENCE).await.unwrap();
        answer
    }

    /// The whole exchange, without its `date`.
    async fn whole(&self) -> String {
        let (mut client, _server) = self.connect();
        client.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        // The answer ends with its body, and the body with "bytes".
        while !answer.ends_with(b"bytes") {
            let mut byte = [0];
            must("an answer", client.read_exact(&mut byte)).await.unwrap();
            answer.extend_from_slice(&byte);
        }
        String::from_utf8(answer).unwrap()
    }
}

#[tokio::test]
async fn a_request_cut_at_any_byte_runs_at_most_once() {
    for sent in 0..=REQUEST.len() {
        let wire = Wire::new();
        wire.cut(sent, 0).await;
        let arrived = wire.store.len();
        assert_eq!(arrived, wire.shop.runs(), "cut after {sent}");
        if sent < REQUEST.len() {
            assert_eq!(arrived, 0, "half a request leaves nothing behind, cut after {sent}");
        }
        let answer = wire.whole().await;
        assert!(answer.starts_with("HTTP/1.1 201"), "cut after {sent}: {answer}");
        assert!(answer.ends_with("paid 1 for 14 bytes"), "cut after {sent}: {answer}");
        assert_eq!(wire.shop.runs(), 1, "cut after {sent}");
    }
}

#[tokio::test]
async fn an_answer_cut_at_any_byte_is_replayed_whole() {
    let length = Wire::new().whole().await.len();
    for read in 0..=length {
        let wire = Wire::new();
        let seen = wire.cut(REQUEST.len(), read).await;
        let answer = wire.whole().await;
        assert_eq!(wire.shop.runs(), 1, "cut after {read}");
        assert!(answer.ends_with("\r\n\r\npaid 1 for 14 bytes"), "cut after {read}: {answer}");
        if read > 0 {
            assert!(answer.contains("idempotent-replayed: true"), "cut after {read}");
        }
        if let Some(status) = seen.get(..12) {
            assert_eq!(status, answer.as_bytes()[..12].to_vec(), "cut after {read}");
        }
    }
}
