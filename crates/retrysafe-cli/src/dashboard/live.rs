//! How do numbers change while somebody looks at them?
//!
//! As server-sent events, every two seconds, for as long as the session lasts. The page is whole without them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header;
use http_body::Frame;
use http_body_util::StreamBody;

use super::error::Trouble;
use super::session::Session;
use super::{Dashboard, Shared};

/// How often numbers are sent.
const EVERY: Duration = Duration::from_secs(2);

pub(super) async fn events(
    State(dashboard): Shared,
    session: Session,
) -> Result<Response, Trouble> {
    // A token that is good no more is told so now, not in the stream.
    dashboard.api.who(&session.token).await?;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    tokio::spawn(send(dashboard, session, sender));
    let body = Body::new(StreamBody::new(Received(receiver)));
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// Sends until nobody listens, the reader has logged out, or the token is good no more.
async fn send(
    dashboard: Arc<Dashboard>,
    session: Session,
    sender: tokio::sync::mpsc::Sender<Bytes>,
) {
    // The numbers are shown to anybody; who is logged in is asked for each time.
    while dashboard.sessions.is_open(&session)
        && dashboard.api.who(&session.token).await.is_ok()
        && let Ok(numbers) = dashboard.numbers().await
    {
        let Ok(text) = serde_json::to_string(&numbers) else { return };
        if sender.send(Bytes::from(format!("data: {text}\n\n"))).await.is_err() {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// A channel as a stream of frames.
struct Received(tokio::sync::mpsc::Receiver<Bytes>);

impl futures_core::Stream for Received {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
