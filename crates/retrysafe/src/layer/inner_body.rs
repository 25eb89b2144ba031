//! What does the inner service get in the place of a request's body?
//!
//! The layer reads the body of a guarded request, so it cannot hand on the same one. In axum every body
//! is an `axum::body::Body`, before the layer and behind it; so middleware made by `from_fn` may stand on
//! either side. Elsewhere the inner service gets a [`Body`] around the original one.

use bytes::Bytes;
use http_body::Body as HttpBody;

use super::body::Body;

/// A request's body that the layer can take.
///
/// Bodies of hyper, axum and `http-body-util` are such bodies. For one of your own:
///
/// ```
/// use retrysafe::layer::{Body, InnerBody};
/// # use bytes::Bytes;
/// # struct MyBody(http_body_util::Full<Bytes>);
/// # impl http_body::Body for MyBody {
/// #     type Data = Bytes;
/// #     type Error = std::convert::Infallible;
/// #     fn poll_frame(
/// #         mut self: std::pin::Pin<&mut Self>,
/// #         context: &mut std::task::Context<'_>,
/// #     ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
/// #         std::pin::Pin::new(&mut self.0).poll_frame(context)
/// #     }
/// # }
///
/// impl InnerBody for MyBody {
///     type Inner = Body<Self>;
///
///     fn inner(body: Body<Self>) -> Body<Self> {
///         body
///     }
/// }
/// ```
///
/// A body of somebody else's crate is put into a box first: `request.map(BodyExt::boxed_unsync)`.
pub trait InnerBody: HttpBody<Data = Bytes, Error: Send> + Send + Sized + 'static {
    /// What the inner service gets instead.
    type Inner: Send;

    /// The body for the inner service.
    fn inner(body: Body<Self>) -> Self::Inner;
}

macro_rules! stays_in_its_place {
    ($($body:ty $(, $error:ident)?;)*) => {
        $(impl$(<$error: Send + 'static>)? InnerBody for $body {
            type Inner = Body<Self>;

            fn inner(body: Body<Self>) -> Body<Self> {
                body
            }
        })*
    };
}

stays_in_its_place! {
    hyper::body::Incoming;
    http_body_util::Empty<Bytes>;
    http_body_util::Full<Bytes>;
    http_body_util::combinators::BoxBody<Bytes, E>, E;
    http_body_util::combinators::UnsyncBoxBody<Bytes, E>, E;
    String;
}

#[cfg(feature = "axum")]
impl InnerBody for axum::body::Body {
    type Inner = Self;

    fn inner(body: Body<Self>) -> Self {
        body.passed_or(Self::new)
    }
}
