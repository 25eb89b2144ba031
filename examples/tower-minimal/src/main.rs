//! A counter behind plain hyper, without a framework.
//!
//! ```sh
//! cargo run -p tower-minimal
//!
//! curl -i -X POST localhost:3001/count -H 'idempotency-key: first'   # 200, "1"
//! curl -i -X POST localhost:3001/count -H 'idempotency-key: first'   # 200, "1", Idempotent-Replayed: true
//! curl -i -X POST localhost:3001/count -H 'idempotency-key: second'  # 200, "2"
//! curl -i -X POST localhost:3001/count                               # 200, "3": no key, no promise
//! ```

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use retrysafe::layer::{Attempt, IdempotencyLayer};
use retrysafe::stores::memory::MemoryStore;
use tokio::net::TcpListener;
use tower::{Layer, service_fn};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The handler. It takes any body, because the layer hands it one that was read before.
async fn count<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let mut response = Response::new(Full::from(count.to_string()));
    // Without axum the attempt is an extension of the request.
    if let Some(attempt) = request.extensions().get::<Attempt>() {
        response.headers_mut().insert("x-fence", attempt.fence().0.into());
    }
    Ok(response)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let layer = IdempotencyLayer::new(MemoryStore::default());
    let service = TowerToHyperService::new(layer.layer(service_fn(count)));
    let listener = TcpListener::bind("127.0.0.1:3001").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let connection =
            http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone());
        // A connection that breaks is its client's affair; what it began is settled all the same.
        tokio::spawn(async move { drop(connection.await) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tower::{Service, ServiceBuilder, ServiceExt};

    async fn ask<S, B>(service: S, key: Option<&str>) -> (String, bool)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
        B: http_body::Body<Data = Bytes, Error = Infallible>,
    {
        let mut request = Request::post("/count");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = service.oneshot(request.body(Full::default()).unwrap()).await.unwrap();
        let replayed = response.headers().contains_key("idempotent-replayed");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (String::from_utf8(body.to_vec()).unwrap(), replayed)
    }

    #[tokio::test]
    async fn the_curl_lines_do_what_they_say() {
        let layer = IdempotencyLayer::new(MemoryStore::default());
        let service = ServiceBuilder::new().layer(layer).service(service_fn(count));
        assert_eq!(ask(service.clone(), Some("first")).await, ("1".into(), false));
        assert_eq!(ask(service.clone(), Some("first")).await, ("1".into(), true));
        assert_eq!(ask(service.clone(), Some("second")).await, ("2".into(), false));
        assert_eq!(ask(service, None).await, ("3".into(), false));
    }
}
