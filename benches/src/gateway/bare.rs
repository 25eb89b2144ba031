//! What is the least that a proxy does? And an upstream that answers at once.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpSocket};

/// As large as the answers of the project's other measurements.
const ANSWER_BYTES: usize = 1_024;

/// Starts an upstream that answers everything with the same kilobyte.
pub fn upstream() -> SocketAddr {
    let (tell, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let body = Bytes::from(vec![b'x'; ANSWER_BYTES]);
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let body = body.clone();
                let answer = service_fn(move |_: Request<Incoming>| {
                    std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(body.clone()))))
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
    });
    address.recv().unwrap()
}

/// A proxy on hyper with one runtime per core, and nothing else. Never returns.
pub fn serve(listen: SocketAddr, upstream: SocketAddr) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads: Vec<_> = (0..cores).map(|_| std::thread::spawn(move || one(listen, upstream))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn one(listen: SocketAddr, upstream: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.set_reuseport(true).unwrap();
        socket.bind(listen).unwrap();
        let listener = socket.listen(1_024).unwrap();
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: Arc<Client<HttpConnector, Incoming>> =
            Arc::new(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1_024).build(connector));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let client = Arc::clone(&client);
            let pass = service_fn(move |mut request: Request<Incoming>| {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = format!("http://{upstream}{path}").parse::<Uri>().unwrap();
                client.request(request)
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), pass));
        }
    });
}
