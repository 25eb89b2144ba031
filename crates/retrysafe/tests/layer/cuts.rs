//! Does the promise hold when the connection is cut at any byte? In memory, byte by byte.

use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
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

    /// The same in HTTP/2.
    fn connect_http2(&self) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(1 << 16);
        let router = shelves(&self.shop).layer(self.layer.clone());
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(server), TowerToHyperService::new(router));
        (client, tokio::spawn(async move { drop(connection.await) }))
    }

    /// Sends a request in HTTP/2 whose body ends like this, waits until the server has read it, and is gone.
    async fn send_http2(&self, length: Option<&str>, body: &[u8], ending: Ending) {
        let (mut client, server) = self.connect_http2();
        let mut fields = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "shop.example"),
            (":path", "/pay"),
            ("idempotency-key", "\"k-1\""),
            ("content-type", "application/json"),
        ];
        fields.extend(length.map(|length| ("content-length", length)));
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        let head: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
        bytes.extend(frame(HEADERS, END_HEADERS, 1, &head));
        match ending {
            Ending::Flag => bytes.extend(frame(DATA, END_STREAM, 1, body)),
            Ending::ResetWithoutError => {
                bytes.extend(frame(DATA, 0, 1, body));
                bytes.extend(frame(RST_STREAM, 0, 1, &[0; 4]));
            }
        }
        bytes.extend(frame(PING, 0, 0, b"are read"));
        client.write_all(&bytes).await.unwrap();
        let acknowledged = frame(PING, ACK, 0, b"are read");
        let mut heard = Vec::new();
        while !heard.windows(acknowledged.len()).any(|part| part == acknowledged) {
            let mut byte = [0];
            must("the ping is answered", client.read_exact(&mut byte)).await.unwrap();
            heard.extend_from_slice(&byte);
        }
        if ending == Ending::Flag {
            self.shop.began(1).await;
        }
        drop(client);
        must("the server notices", server).await.unwrap();
        self.layer.drain().wait(PATIENCE).await.unwrap();
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

/// How a body ends in HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Flag,
    /// "No error" is what the frame says. It is no end.
    ResetWithoutError,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A field as HPACK's literal that is not indexed. Names and values are short.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for text in [name, value] {
        field.push(u8::try_from(text.len()).unwrap());
        field.extend_from_slice(text.as_bytes());
    }
    field
}

/// The story: a caller that gives up resets its stream, and "no error" is the code that some libraries send. The part of the body that had
/// arrived was executed as if it were the whole, and the retry with the whole one was refused.
#[tokio::test]
async fn a_body_that_http2_resets_without_error_is_not_whole() {
    for length in [Some("14"), None] {
        let wire = Wire::new();
        wire.send_http2(length, b"{\"amount\":1", Ending::ResetWithoutError).await;
        assert_eq!((wire.store.len(), wire.shop.runs()), (0, 0), "{length:?}");
        let answer = wire.whole().await;
        assert!(answer.ends_with("paid 1 for 14 bytes"), "{length:?}: {answer}");
        // The same frames with an end run.
        let wire = Wire::new();
        wire.send_http2(length, b"{\"amount\":100}", Ending::Flag).await;
        assert_eq!((wire.store.len(), wire.shop.runs()), (1, 1), "{length:?}");
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
