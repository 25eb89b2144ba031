//! How is a request written for the HTTP that a connection speaks?
//!
//! In HTTP/1.1 its host is a field and its length may be told by a transfer coding; in HTTP/2 its host stands in its target, and its length in
//! its frames. A request that a closed connection hands back unsent may go out over a connection that speaks the other one, so each form can
//! be made of the other.

use http::header::{self, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri, Version};
use http_body::Body;

/// The host that a request names cannot be said in HTTP/2.
#[derive(Debug)]
pub(super) struct NoHost;

/// A request in the form of HTTP/2. Taking a request that has this form already changes nothing.
pub(super) fn in_http2<B>(mut request: Request<B>, is_tls: bool) -> Result<Request<B>, NoHost> {
    if let Some(host) = request.headers_mut().remove(header::HOST) {
        let authority: Authority = host.as_bytes().try_into().map_err(|_| NoHost)?;
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(authority);
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| NoHost)?;
    }
    // Another protocol cannot be asked for within this one.
    for name in [header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE] {
        request.headers_mut().remove(name);
    }
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// A request in the form of HTTP/1.1. Taking a request that has this form already changes nothing. One that has been in the form of HTTP/2
/// asks for no other protocol any more.
pub(super) fn in_http1<B: Body>(mut request: Request<B>) -> Request<B> {
    if request.version() != Version::HTTP_2 {
        return request;
    }
    *request.version_mut() = Version::HTTP_11;
    if let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
        let target = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(target.unwrap_or(PathAndQuery::from_static("/")));
    }
    // The form of HTTP/2 has lost nothing else: a length that is known stands in its field.
    let is_empty = request.body().is_end_stream();
    if !is_empty && !request.headers().contains_key(header::CONTENT_LENGTH) {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(header::TRANSFER_ENCODING, chunked);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Empty, Full};

    /// A body whose length nobody knows beforehand.
    type Streamed = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

    struct OfNoLength(Full<Bytes>);

    impl Body for OfNoLength {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::pin::Pin::new(&mut self.0).poll_frame(context)
        }
    }

    fn requests() -> Vec<Request<Streamed>> {
        let with = |name: header::HeaderName, value: &'static str, body: Streamed| {
            Request::put("/pay?x=1")
                .header(header::HOST, "api.test:8443")
                .header("x-other", "1")
                .header(name, value)
                .body(body)
                .unwrap()
        };
        vec![
            with(header::CONTENT_LENGTH, "2", Full::new(Bytes::from_static(b"{}")).boxed_unsync()),
            with(
                header::TRANSFER_ENCODING,
                "chunked",
                OfNoLength(Full::new(Bytes::from_static(b"{}"))).boxed_unsync(),
            ),
            with(header::ACCEPT, "text/html", Empty::new().boxed_unsync()),
        ]
    }

    #[test]
    fn a_request_that_comes_back_unsent_gets_its_first_form_again() {
        for (request, wanted) in requests().into_iter().zip(requests()) {
            let request = in_http2(request, true).unwrap();
            assert_eq!(request.uri(), "https://api.test:8443/pay?x=1");
            assert!(!request.headers().contains_key(header::HOST));
            assert!(!request.headers().contains_key(header::TRANSFER_ENCODING));
            // Twice is as good as once, in both directions.
            let request = in_http2(request, true).unwrap();
            let request = in_http1(in_http1(request));
            assert_eq!(request.uri(), wanted.uri());
            assert_eq!(request.version(), wanted.version());
            assert_eq!(request.headers(), wanted.headers());
        }
    }

    #[test]
    fn a_host_that_http2_cannot_say_is_refused() {
        let request = Request::get("/").header(header::HOST, "a b").body(Empty::<Bytes>::new());
        assert!(in_http2(request.unwrap(), false).is_err());
    }
}
