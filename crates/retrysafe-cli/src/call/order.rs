//! What is sent, and which of the journalled calls are meant?

use std::io::Read as _;
use std::path::PathBuf;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use retrysafe::client::Pending;
use retrysafe_core::Key;

use super::Call;
use crate::check::request::headers;

/// The largest body. It is held in memory and written to the journal.
pub(super) const BODY_BYTES_MAX: usize = 2 << 20;

/// A call as it was ordered on the command line.
pub(super) struct Order {
    pub(super) request: Request<Bytes>,
    /// The headers that must not be written to disk.
    pub(super) secrets: Vec<HeaderName>,
}

impl Order {
    pub(super) fn new(call: &Call) -> Result<Self, String> {
        let url = url(call.url.as_deref().unwrap_or_default())?;
        let method = Method::from_bytes(call.method.as_bytes())
            .map_err(|_| format!("{:?} is not a method", call.method))?;
        let mut request = Request::new(body(&call.data)?);
        *request.method_mut() = method;
        *request.uri_mut() = url;
        let mut secrets = Vec::new();
        for (name, value) in headers(&call.header).map_err(|why| why.to_string())? {
            if is_secret(&name) && !secrets.contains(&name) {
                secrets.push(name.clone());
            }
            request.headers_mut().append(name, value);
        }
        if let Some(key) = &call.key {
            if request.headers().contains_key(&call.key_header) {
                return Err("the key is given twice, by --key and by -H".into());
            }
            let key = Key::new(key).map_err(|error| format!("--key: {error}"))?;
            let value = HeaderValue::from_str(key.as_str())
                .map_err(|_| "--key: not fit for a header".to_owned())?;
            request.headers_mut().insert(&call.key_header, value);
        }
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(request.body()).is_ok();
        let defaults = [
            (USER_AGENT, Some(concat!("retrysafe/", env!("CARGO_PKG_VERSION")))),
            (CONTENT_TYPE, is_json.then_some("application/json")),
        ];
        for (name, value) in defaults {
            if let Some(value) = value {
                request.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
            }
        }
        Ok(Self { request, secrets })
    }
}

/// Where calls are journalled when nobody says where.
pub(super) fn default_journal() -> Result<PathBuf, String> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("retrysafe/calls"))
        .ok_or_else(|| "neither XDG_STATE_HOME nor HOME is set: say --journal FOLDER".to_owned())
}

/// The journalled calls that are meant: to this origin, with this key. The others are let go.
pub(super) fn chosen(
    calls: Vec<Pending>,
    origin_of: Option<&str>,
    key: Option<&str>,
) -> Result<Vec<Pending>, String> {
    let origin = origin_of.map(url).transpose()?.map(|url| origin(&url));
    Ok(calls
        .into_iter()
        .filter(|call| key.is_none_or(|key| call.key().as_str() == key))
        .filter(|call| origin.as_ref().is_none_or(|wanted| of_call(call) == *wanted))
        .collect())
}

/// The headers that are supplied again. A credential is meant for one server, so it is not given to
/// calls that go to several; and one that no call has asked for would change the call.
pub(super) fn credentials(calls: &[Pending], lines: &[String]) -> Result<HeaderMap, String> {
    let mut supplied = HeaderMap::new();
    for (name, value) in headers(lines).map_err(|why| why.to_string())? {
        if !calls.is_empty() && !calls.iter().any(|call| call.withheld().contains(&name)) {
            return Err(format!(
                "no call to be resumed asks for {name}: a call is resumed as it was, but for its credentials"
            ));
        }
        supplied.append(name, value);
    }
    let mut origins: Vec<_> = calls.iter().map(of_call).collect();
    origins.sort();
    origins.dedup();
    if !supplied.is_empty() && origins.len() > 1 {
        return Err(
            "the calls go to several servers: say with a URL or --key whose credentials these are"
                .into(),
        );
    }
    Ok(supplied)
}

fn of_call(call: &Pending) -> String {
    origin(call.request().uri())
}

fn origin(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or_default();
    let port = url.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    format!("{scheme}://{}:{port}", url.host().unwrap_or_default().to_ascii_lowercase())
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| format!("{text:?} is not a URL"))?;
    if url.host().is_none_or(str::is_empty) || !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(format!("{text:?} is not an http:// or https:// URL"));
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        // The journal holds the URL.
        return Err(
            "a URL with a password in it would be journalled: use -H 'Authorization: …'".into()
        );
    }
    Ok(url)
}

fn body(data: &str) -> Result<Bytes, String> {
    let Some(file) = data.strip_prefix('@') else { return Ok(data.to_owned().into()) };
    let mut bytes = Vec::new();
    // One byte more than may be sent: the client then says that it is too long.
    let bytes_max = BODY_BYTES_MAX as u64 + 1;
    let read = match file {
        "-" => std::io::stdin().lock().take(bytes_max).read_to_end(&mut bytes),
        file => std::fs::File::open(file)
            .and_then(|opened| opened.take(bytes_max).read_to_end(&mut bytes)),
    };
    read.map_err(|error| format!("{file}: {error}"))?;
    Ok(bytes.into())
}

/// Whether a header looks like a credential. Too many is harmless: they are supplied again.
fn is_secret(name: &HeaderName) -> bool {
    const MARKS: [&str; 8] =
        ["auth", "cookie", "token", "secret", "password", "api-key", "apikey", "signature"];
    MARKS.iter().any(|mark| name.as_str().contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_recognised() {
        for name in ["authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token"]
        {
            assert!(is_secret(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["content-type", "idempotency-key", "x-request-id"] {
            assert!(!is_secret(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn urls_that_cannot_be_called_are_refused() {
        for text in ["", "/payments", "ftp://x/", "http://", "http://user:secret@x/"] {
            assert!(url(text).is_err(), "{text}");
        }
        assert_eq!(origin(&url("http://Example.test/a").unwrap()), "http://example.test:80");
        assert_eq!(origin(&url("https://x/a").unwrap()), "https://x:443");
    }
}
