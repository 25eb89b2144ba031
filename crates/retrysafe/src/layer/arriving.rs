//! Is the body of a request that has ended also whole?
//!
//! A caller may reset its stream of HTTP/2 "without error" in the middle of a body. To the body's reader that looks like an end, and a part
//! would be executed in the place of the whole. A body that promised more bytes than it gave is not whole. Where no length was promised,
//! only the server knows of the reset, and it drops a request that waits: so the reader waits for one turn, unless the body says itself that
//! it has ended.

use http::Version;
use http_body::Body as HttpBody;

/// What the end of a request's body means.
pub(super) enum BodyEnd {
    /// It is whole.
    Whole,
    /// It is whole, unless the request is dropped within [one turn](crate::wait_a_turn).
    WholeAfterATurn,
    /// It was cut off.
    Cut,
}

impl BodyEnd {
    /// The end of a body that came in this version of HTTP. The body is not asked for more.
    pub(super) fn of<B: HttpBody>(body: &B, version: Version) -> Self {
        if body.size_hint().lower() > 0 {
            Self::Cut
        } else if version == Version::HTTP_2 && !body.is_end_stream() {
            Self::WholeAfterATurn
        } else {
            Self::Whole
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http_body::{Frame, SizeHint};

    use super::super::body::{Read, read};
    use super::super::memory::Hold;
    use super::*;

    /// A body that does not say that it has ended, must not be asked again when it has, and has promised so many bytes more.
    struct Once {
        bytes: Option<Bytes>,
        has_ended: bool,
        promised: u64,
    }

    impl HttpBody for Once {
        type Data = Bytes;
        type Error = ();

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, ()>>> {
            assert!(!self.has_ended, "asked after its end");
            let bytes = self.bytes.take();
            self.has_ended = bytes.is_none();
            Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(self.promised);
            hint
        }
    }

    #[tokio::test]
    async fn a_body_that_has_ended_is_not_asked_again_and_keeps_what_it_promised() {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            for promised in [0, 5] {
                let bytes = Some(Bytes::from_static(b"{}"));
                let body = Once { bytes, has_ended: false, promised };
                match read(body, Some(version), 100, None, Hold::of_body(None, None)).await {
                    Read::Whole(body, ..) => assert_eq!((&*body, promised), (&b"{}"[..], 0)),
                    Read::Broken(_) => assert_eq!(promised, 5),
                    Read::Over(_) | Read::NoRoom(_) | Read::Late(_) => panic!("{promised}"),
                }
            }
        }
    }
}
