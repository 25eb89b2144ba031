//! How is one page fetched, whole or not at all?
//!
//! Reading changes nothing, so a page that fails on its way is asked for again, a few times and ever more slowly. What
//! the server refuses is not asked for again.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::quote::quoted;
use crate::dial::Dialler;

/// How long a page may take, connecting included.
const PAGE_TIME_MAX: Duration = Duration::from_secs(60);

/// The largest page, in bytes.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// How often a page is asked for.
const ATTEMPTS_MAX: u32 = 5;

/// The first pause before a page is asked for again; each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest time that a server may ask us to wait.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Fetches pages, over one connection while that lasts.
#[derive(Debug)]
pub(super) struct PageClient {
    dialler: Dialler,
    headers: HeaderMap,
    sender: Option<SendRequest<Empty<Bytes>>>,
}

/// Why a page did not come.
struct PageFailure {
    why: String,
    /// Whether it may come next time, and what pause the server wants.
    again: Option<Option<Duration>>,
}

impl PageFailure {
    fn passing(why: String) -> Self {
        Self { why, again: Some(None) }
    }

    fn lasting(why: String) -> Self {
        Self { why, again: None }
    }
}

impl PageClient {
    pub(super) fn new(mut headers: HeaderMap) -> Self {
        let agent = HeaderValue::from_static(concat!("retrysafe/", env!("CARGO_PKG_VERSION")));
        headers.entry(USER_AGENT).or_insert(agent);
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        Self { dialler: Dialler::default(), headers, sender: None }
    }

    /// The text of a page.
    ///
    /// # Errors
    ///
    /// Why it did not come, after every attempt.
    pub(super) async fn get(&mut self, url: &str) -> Result<String, String> {
        let url: Uri = url.parse().map_err(|error| format!("its URL cannot be read: {error}"))?;
        let mut pause = PAUSE_MIN;
        let mut attempt = 1;
        loop {
            let fetched = tokio::time::timeout(PAGE_TIME_MAX, self.fetch(&url)).await;
            let failure = match fetched {
                Ok(Ok(text)) => return Ok(text),
                Ok(Err(failure)) => failure,
                Err(_) => PageFailure::passing(format!("it did not come within {PAGE_TIME_MAX:?}")),
            };
            // What is left of it belongs to an answer that nobody reads.
            self.sender = None;
            match failure.again {
                Some(wanted) if attempt < ATTEMPTS_MAX => {
                    tokio::time::sleep(wanted.unwrap_or(pause).min(PAUSE_MAX)).await;
                    pause *= 2;
                    attempt += 1;
                }
                Some(_) => return Err(format!("{} (asked for {attempt} times)", failure.why)),
                None => return Err(failure.why),
            }
        }
    }

    async fn fetch(&mut self, url: &Uri) -> Result<String, PageFailure> {
        let mut sender = match self.sender.take().filter(|sender| sender.is_ready()) {
            Some(sender) => sender,
            None => self.connect(url).await?,
        };
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let host = url.authority().map_or("", |authority| authority.as_str());
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let mut request =
            Request::get(path).header(HOST, host).body(Empty::new()).map_err(|error| {
                PageFailure::lasting(format!("its URL cannot be asked for: {error}"))
            })?;
        request.headers_mut().extend(self.headers.clone());
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| PageFailure::passing(format!("no answer: {error}")))?;
        let text = read_answer(answer).await?;
        self.sender = Some(sender);
        Ok(text)
    }

    async fn connect(&self, url: &Uri) -> Result<SendRequest<Empty<Bytes>>, PageFailure> {
        let failed =
            |what: &dyn std::fmt::Display| PageFailure::passing(format!("no connection: {what}"));
        let stream = self.dialler.dial(url).await.map_err(|error| failed(&error))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // It ends with its sender; what goes wrong on it is told to whoever waits for an answer.
        tokio::spawn(connection);
        Ok(sender)
    }
}

async fn read_answer(answer: Response<Incoming>) -> Result<String, PageFailure> {
    let status = answer.status();
    let wait = answer.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|wait| wait.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    let body =
        Limited::new(answer.into_body(), PAGE_BYTES_MAX).collect().await.map_err(|error| {
            PageFailure::passing(format!(
                "it broke off, or is larger than {PAGE_BYTES_MAX} bytes: {error}"
            ))
        })?;
    let body = body.to_bytes();
    if status != StatusCode::OK {
        let said = quoted(&String::from_utf8_lossy(&body));
        let why = format!("the server answered {status}: {said}");
        let may_pass = status.is_server_error()
            || status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::REQUEST_TIMEOUT;
        return Err(PageFailure { why, again: may_pass.then_some(wait) });
    }
    String::from_utf8(body.into()).map_err(|_| PageFailure::lasting("it is not UTF-8".into()))
}
