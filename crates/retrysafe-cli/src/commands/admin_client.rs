//! How does a command ask the admin listener?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Failure;
use crate::args::AdminArgs;
use crate::config::{Flags, admin_access, read_secret};
use crate::harmless::harmless;

/// How long one answer may take. Statistics of a large store are the slowest.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Where the name of whoever is at the terminal is found.
const USER: &str = "USER";

/// Asks the admin listener.
pub(crate) struct AdminClient {
    base: Uri,
    token: Option<String>,
    /// Where the token was looked for, if there is none.
    missing: Option<PathBuf>,
}

impl AdminClient {
    /// A caller of this listener. What is not said stands in the gateway's configuration.
    ///
    /// # Errors
    ///
    /// If the URL is not one, or the token or the configuration cannot be read.
    pub(crate) fn new(
        args: &AdminArgs,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        let token = match &args.token_file {
            Some(path) => Some(read_secret(path)?),
            None => args.token.clone(),
        };
        if let (Some(url), Some(token)) = (&args.admin, &token) {
            return Self::at(url, Some(token.clone()));
        }
        let flags = Flags { config: args.config.clone(), ..Flags::default() };
        let access = admin_access(&flags, variables)?;
        let url = args.admin.as_ref().unwrap_or(&access.url);
        let is_missing = token.is_none() && access.token.is_none();
        let mut caller = Self::at(url, token.or(access.token))?;
        caller.missing = access.token_file.filter(|_| is_missing);
        Ok(caller)
    }

    /// A caller at this URL.
    ///
    /// # Errors
    ///
    /// If it is not a URL that can be asked.
    pub(crate) fn at(url: &str, token: Option<String>) -> Result<Self, Failure> {
        let base: Uri = url.parse().map_err(|_| format!("{url:?} is not a URL"))?;
        if base.scheme_str() != Some("http") || base.authority().is_none() {
            return Err(format!("{url:?} is not an http URL").into());
        }
        Ok(Self { base, token, missing: None })
    }

    /// Asks for a document.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is a refusal.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, None).await
    }

    /// Asks for an action.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is a refusal.
    pub(crate) async fn post(&self, path: &str, document: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, Some(document)).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        document: Option<&Value>,
    ) -> Result<Value, Failure> {
        let (status, body) = tokio::time::timeout(ANSWER_MAX, self.send(method, path, document))
            .await
            .map_err(|_| "the admin listener does not answer")??;
        let answer: Value = serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).trim().into());
        if status.is_success() {
            return Ok(answer);
        }
        if let (StatusCode::UNAUTHORIZED, Some(path)) = (status, &self.missing) {
            return Err(format!(
                "401: the admin token is needed, and it is not in {}. The gateway's log says where it \
                 is: name that file with --token-file, or the gateway's configuration with --config",
                path.display()
            )
            .into());
        }
        let detail = answer.get("detail").unwrap_or(&answer);
        let detail = harmless(detail.as_str().unwrap_or_default(), false);
        Err(format!("{}: {detail}", status.as_u16()).into())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        document: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let host = self.base.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.base.port_u16().unwrap_or(80);
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(|error| format!("{}: {error}; is the gateway running?", self.base))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Whatever goes wrong here is told to whoever waits for the answer.
            let _ = connection.await;
        });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.base.authority().map(|a| a.as_str()).unwrap_or_default())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = document.map(Value::to_string).unwrap_or_default();
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}

/// The name of whoever is at the terminal, as far as that can be told. The token's own name counts; this one is shown beside it.
pub(crate) fn claimed_name(variables: &BTreeMap<String, String>) -> Option<&str> {
    let is_plain = |name: &&str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        (1..=32).contains(&name.len()) && name.bytes().all(is_letter)
    };
    variables.get(USER).map(String::as_str).filter(is_plain)
}
