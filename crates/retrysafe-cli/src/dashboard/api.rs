//! How does a page ask the admin API?
//!
//! In the same process, without a socket, with the reader's own token: whatever the API refuses is refused here too.

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower_service::Service as _;

use super::error::Trouble;
use super::session::Session;

/// The largest answer that is made into a page. A page of keys is smaller.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The admin API.
pub(super) struct AdminApi(Router);

impl AdminApi {
    pub(super) const fn new(admin: Router) -> Self {
        Self(admin)
    }

    /// Whose token this is.
    pub(super) async fn who(&self, token: &str) -> Result<Value, Trouble> {
        self.ask(Method::GET, "/api/v1/whoami", token, None).await
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        session: &Session,
        path: &str,
    ) -> Result<T, Trouble> {
        read(self.ask(Method::GET, path, &session.token, None).await?)
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        session: &Session,
        path: &str,
        body: &Value,
    ) -> Result<T, Trouble> {
        read(self.ask(Method::POST, path, &session.token, Some(body)).await?)
    }

    /// The metrics, which anybody may read.
    pub(super) async fn metrics(&self) -> Result<String, Trouble> {
        let (_, bytes) = self.exchange(Method::GET, "/metrics", "", None).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether the gateway is ready, and why not. Both answers are pages, none is a failure.
    pub(super) async fn readiness(&self, session: &Session) -> Result<Value, Trouble> {
        let (_, bytes) = self.exchange(Method::GET, "/readyz", &session.token, None).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: &str,
        body: Option<&Value>,
    ) -> Result<Value, Trouble> {
        let (status, bytes) = self.exchange(method, path, token, body).await?;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match status {
            status if status.is_success() => Ok(answer),
            StatusCode::UNAUTHORIZED => Err(Trouble::TokenRefused),
            status => Err(Trouble::Refused(status, answer)),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        token: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, bytes::Bytes), Trouble> {
        let unreadable = |why: &dyn std::fmt::Display| Trouble::Unreadable(why.to_string());
        // A token with a character that no header may have is nobody's.
        let bearer =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Trouble::TokenRefused)?;
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, bearer)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| unreadable(&error))?;
        // A router is always ready, and never fails: its error type has no values.
        let response = match self.0.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let bytes = to_bytes(response.into_body(), ANSWER_BYTES_MAX)
            .await
            .map_err(|error| unreadable(&error))?;
        Ok((status, bytes))
    }
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, Trouble> {
    serde_json::from_value(answer)
        .map_err(|error| Trouble::Unreadable(format!("the answer of the admin API: {error}")))
}
