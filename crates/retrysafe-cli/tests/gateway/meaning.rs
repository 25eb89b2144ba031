//! Is a retry known as the same request, as clients really send it?

use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::kit::{Gateway, Message, Upstream, key, raw, send};

/// A caller by whose credential the keys are told from those of others.
const CALLER: &str = "X-Api-Key: tests\r\n";

fn post(gateway: &Gateway, target: &str, head: &str, body: &[u8]) -> Message {
    let length = body.len();
    let head = format!(
        "POST {target} HTTP/1.1\r\n{head}{CALLER}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    send(gateway.address, &[head.as_bytes(), body].concat())
}

// A retry that went to `localhost` instead of `127.0.0.1`, or through a second gateway's port, was refused as another
// request. A retry to another shop behind the same gateway still is.
#[test]
fn the_hosts_name_counts_and_its_spelling_does_not() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let ask = |key: &str, host: &str| {
        post(&gateway, "/h", &format!("Host: {host}\r\nIdempotency-Key: {key}\r\n"), b"{}")
    };
    let one = key();
    assert_eq!(ask(&one, "shop.test:8080").status(), 201);
    for same in ["shop.test", "SHOP.test", "shop.test:9090", "shop.test."] {
        assert!(ask(&one, same).is_replay(), "{same}");
    }
    for other in ["shop2.test", "localhost", "test"] {
        let refused = ask(&one, other);
        assert_eq!((refused.status(), refused.code().as_str()), (422, "idempotency_key_reused"));
    }
    let absolute = format!("Host: shop.test\r\nIdempotency-Key: {one}\r\n");
    assert!(post(&gateway, "http://shop.test/h", &absolute, b"{}").is_replay(), "absolute form");

    let two = key();
    assert_eq!(ask(&two, "127.0.0.1:8080").status(), 201);
    for same in ["localhost", "localhost:3000", "127.0.0.2", "[::1]:8080"] {
        assert!(ask(&two, same).is_replay(), "{same}");
    }
    let refused = ask(&two, "shop.localhost");
    assert_eq!(refused.code(), "idempotency_key_reused", "a site of its own");
    assert_eq!(upstream.count("/h"), 2);
}

#[test]
fn hosts_are_one_or_left_out_where_the_operator_says_so() {
    let upstream = Upstream::start();
    let ask = |gateway: &Gateway, key: &str, host: &str| {
        post(gateway, "/h", &format!("Host: {host}\r\nIdempotency-Key: {key}\r\n"), b"{}")
    };
    let one = key();
    let aliases = "[fingerprint]\nhost_aliases = [[\"api.test\", \"api.eu.test\"]]\n";
    let gateway = Gateway::start(&upstream, aliases);
    assert_eq!(ask(&gateway, &one, "api.test").status(), 201);
    assert!(ask(&gateway, &one, "API.eu.test:443").is_replay());
    assert_eq!(ask(&gateway, &one, "other.test").code(), "idempotency_key_reused");
    let gateway = Gateway::start(&upstream, "[fingerprint]\nhost = false\n");
    assert_eq!(ask(&gateway, &one, "api.test").status(), 201);
    assert!(ask(&gateway, &one, "other.test").is_replay());
    assert_eq!(upstream.count("/h"), 2);
}

#[test]
fn the_authority_of_http2_is_the_host() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "h2c = true\n---\n");
    let key = key();
    let first =
        post(&gateway, "/h", &format!("Host: shop.test\r\nIdempotency-Key: {key}\r\n"), b"{}");
    assert_eq!(first.status(), 201);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        for (authority, status) in [("Shop.test:8080", 201), ("other.test", 422)] {
            let request = Request::post(format!("http://{authority}/h"))
                .header("idempotency-key", &key)
                .header("x-api-key", "tests")
                .body(Full::new(bytes::Bytes::from_static(b"{}")))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), status, "{authority}");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body == first.body, status == 201, "{authority}");
        }
    });
    assert_eq!(upstream.count("/h"), 1);
}

/// One field and one file, as a client writes them: the lines of each part's head, and what follows the last boundary.
struct Client {
    name: &'static str,
    boundaries: [&'static str; 2],
    quotes: bool,
    field_head: &'static str,
    file_head: &'static str,
    end: &'static str,
}

const CLIENTS: [Client; 4] = [
    Client {
        name: "curl -F",
        boundaries: [
            "------------------------d74496d66958873e",
            "------------------------1f0a63bb2c7799e2",
        ],
        quotes: false,
        field_head: "Content-Disposition: form-data; name=\"amount\"",
        file_head: "Content-Disposition: form-data; name=\"scan\"; filename=\"scan.pdf\"\r\nContent-Type: application/pdf",
        end: "\r\n",
    },
    Client {
        name: "Python requests",
        boundaries: ["0d4e2d0bd0a24c2b8f2a1b7d9e3c5f60", "b1946ac92492d2347c6235b4d2611184"],
        quotes: false,
        field_head: "Content-Disposition: form-data; name=\"amount\"",
        file_head: "Content-Disposition: form-data; name=\"scan\"; filename=\"scan.pdf\"",
        end: "\r\n",
    },
    Client {
        name: "Node FormData",
        boundaries: ["----formdata-undici-014673480651", "----formdata-undici-099812734451"],
        quotes: false,
        field_head: "Content-Disposition: form-data; name=\"amount\"",
        file_head: "Content-Disposition: form-data; name=\"scan\"; filename=\"scan.pdf\"\r\nContent-Type: application/octet-stream",
        end: "",
    },
    Client {
        name: ".NET HttpClient",
        boundaries: [
            "5ad8a0a8-9bd6-4b9e-8f54-1e9a6a2d9c11",
            "c0ffee00-1111-4222-8333-444455556666",
        ],
        quotes: true,
        field_head: "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=amount",
        file_head: "Content-Disposition: form-data; name=scan; filename=scan.pdf; filename*=utf-8''scan.pdf",
        end: "\r\n",
    },
];

impl Client {
    fn upload(&self, gateway: &Gateway, key: &str, boundary: &str, file: &[u8]) -> Message {
        let quote = if self.quotes { "\"" } else { "" };
        let head = format!(
            "Host: api.test\r\nIdempotency-Key: {key}\r\nContent-Type: multipart/form-data; boundary={quote}{boundary}{quote}\r\n"
        );
        let begin = format!(
            "--{boundary}\r\n{}\r\n\r\n499\r\n--{boundary}\r\n{}\r\n\r\n",
            self.field_head, self.file_head
        );
        let end = format!("\r\n--{boundary}--{}", self.end);
        post(gateway, "/form", &head, &[begin.as_bytes(), file, end.as_bytes()].concat())
    }
}

// Every client draws a new boundary for a retry, so every retried upload was refused as another request.
#[test]
fn a_repeated_upload_is_answered_from_its_record() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let file = b"%PDF-1.7\n\x00\xff\r\n--not-a-boundary\r\n";
    for (at, client) in CLIENTS.iter().enumerate() {
        let key = key();
        let [one, other] = client.boundaries;
        let first = client.upload(&gateway, &key, one, file);
        assert_eq!(first.status(), 201, "{}", client.name);
        let again = client.upload(&gateway, &key, other, file);
        assert!(again.is_replay() && again.body == first.body, "{}", client.name);
        let changed = client.upload(&gateway, &key, other, &file[1..]);
        assert_eq!(changed.code(), "idempotency_key_reused", "{}", client.name);
        assert_eq!(upstream.count("/form"), at + 1, "{}", client.name);
    }
    let seen = &upstream.seen_at("/form")[0].message;
    assert!(seen.header("content-type").unwrap().ends_with(CLIENTS[0].boundaries[0]), "as it came");
}

// What two servers could read differently is compared byte by byte, boundary and all.
#[test]
fn an_odd_form_is_compared_byte_by_byte() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let ask = |key: &str, boundary: &str, body: &str| {
        let body = body.replace("BOUNDARY", boundary);
        let head = format!(
            "Host: api.test\r\nIdempotency-Key: {key}\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n"
        );
        post(&gateway, "/odd", &head, body.as_bytes())
    };
    for (at, odd) in [
        "preamble\r\n--BOUNDARY\r\n\r\nx\r\n--BOUNDARY--\r\n",
        "--BOUNDARY\r\n\r\nx\r\n--BOUNDARY--\r\nepilogue",
        "--BOUNDARY\n\nx\n--BOUNDARY--\n",
        "--BOUNDARY\r\n\r\nx\r\n--BOUNDARY",
        "--BOUNDARY\r\nContent-Type: multipart/mixed; boundary=y\r\n\r\nx\r\n--BOUNDARY--\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let key = key();
        assert_eq!(ask(&key, "aaaaaaaa", odd).status(), 201, "{odd}");
        assert!(ask(&key, "aaaaaaaa", odd).is_replay(), "{odd}");
        assert_eq!(ask(&key, "bbbbbbbb", odd).code(), "idempotency_key_reused", "{odd}");
        assert_eq!(upstream.count("/odd"), at + 1, "{odd}");
    }
    // The same bytes are other parts under another boundary.
    let two = "--a\r\n\r\n--b\r\n\r\nx\r\n--b--\r\n--a--\r\n";
    let key = key();
    assert_eq!(ask(&key, "a", two).status(), 201);
    assert_eq!(ask(&key, "b", two).code(), "idempotency_key_reused");
}

#[test]
fn a_request_without_a_host_has_none() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let key = key();
    let ask = |host: &str| {
        let text = format!(
            "POST /old HTTP/1.0\r\n{host}Idempotency-Key: {key}\r\n{CALLER}Content-Length: 2\r\n\r\n{{}}"
        );
        raw(gateway.address, text.as_bytes(), false).remove(0)
    };
    assert_eq!(ask("").status(), 201);
    assert!(ask("").is_replay());
    assert_eq!(ask("Host: api.test\r\n").code(), "idempotency_key_reused");
}
