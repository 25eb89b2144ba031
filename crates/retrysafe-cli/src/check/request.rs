//! What is sent? A template, and the logical requests made from it.
//!
//! A logical request is one thing a caller wants: its placeholders are filled in once, so that every
//! retry of it has the same bytes.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Uri};
use retrysafe_core::key::IDEMPOTENCY_KEY;
use retrysafe_core::units;
use serde::Deserialize;

use super::CannotCheck;

/// Header pairs.
pub(crate) type Headers = Vec<(HeaderName, HeaderValue)>;

/// The operation, and the variations of it that some cases need.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) url: Uri,
    pub(crate) method: Method,
    pub(crate) key_header: HeaderName,
    pub(crate) headers: Headers,
    pub(crate) body: String,
    pub(crate) second_caller: Headers,
    pub(crate) other_path: Option<String>,
    pub(crate) slow: Headers,
    pub(crate) client_error: Option<String>,
    pub(crate) server_error: Headers,
    pub(crate) list: Option<String>,
    pub(crate) list_pointer: String,
    /// What the same caller shows once its credential was refreshed.
    pub(crate) refreshed_credential: Headers,
    /// The same operation at another node.
    pub(crate) second_url: Option<Uri>,
    /// How long a key is said to be remembered.
    pub(crate) ttl: Option<Duration>,
    /// What kills the server and starts it again.
    pub(crate) restart_command: Option<String>,
}

/// One request, ready to be sent any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    pub(crate) url: Uri,
    pub(crate) method: Method,
    /// The header that holds the key.
    pub(crate) key_header: HeaderName,
    pub(crate) headers: Headers,
    pub(crate) body: Bytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: String,
    #[serde(default = "post")]
    method: String,
    key_header: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    body: String,
    #[serde(default)]
    second_caller: std::collections::BTreeMap<String, String>,
    other_path: Option<String>,
    #[serde(default)]
    slow: std::collections::BTreeMap<String, String>,
    client_error: Option<String>,
    #[serde(default)]
    server_error: std::collections::BTreeMap<String, String>,
    list: Option<String>,
    #[serde(default)]
    list_pointer: String,
    #[serde(default)]
    refreshed_credential: std::collections::BTreeMap<String, String>,
    second_url: Option<String>,
    ttl: Option<String>,
    restart_command: Option<String>,
}

fn post() -> String {
    "POST".into()
}

impl Template {
    /// A template from its three essentials. A body of `@FILE` is read from that file.
    pub(crate) fn new(url: &str, method: &str, body: &str) -> Result<Self, CannotCheck> {
        let url = http_url(url)?;
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| CannotCheck(format!("{method:?} is not a method")))?;
        let body = match body.strip_prefix('@') {
            None => body.to_owned(),
            Some(file) => std::fs::read_to_string(file)
                .map_err(|error| CannotCheck(format!("{file}: {error}")))?,
        };
        let headers = if serde_json::from_str::<serde_json::Value>(&fill(&body)).is_ok() {
            vec![(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]
        } else {
            Vec::new()
        };
        Ok(Self {
            url,
            method,
            key_header: IDEMPOTENCY_KEY,
            headers,
            body,
            second_caller: Vec::new(),
            other_path: None,
            slow: Vec::new(),
            client_error: None,
            server_error: Vec::new(),
            list: None,
            list_pointer: String::new(),
            refreshed_credential: Vec::new(),
            second_url: None,
            ttl: None,
            restart_command: None,
        })
    }

    /// Reads a template file.
    pub(crate) fn read(path: &Path) -> Result<Self, CannotCheck> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| CannotCheck(format!("{name}: {error}")))?;
        let file: File =
            toml::from_str(&text).map_err(|error| CannotCheck(format!("{name}: {error}")))?;
        let pairs = |map: &std::collections::BTreeMap<String, String>| {
            headers(&map.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>())
        };
        let mut template = Self::new(&file.url, &file.method, &file.body)?;
        for (name, value) in pairs(&file.headers)? {
            template.headers.retain(|(other, _)| *other != name);
            template.headers.push((name, value));
        }
        if let Some(name) = &file.key_header {
            template.key_header = header_name(name).map_err(CannotCheck)?;
        }
        template.second_caller = pairs(&file.second_caller)?;
        template.slow = pairs(&file.slow)?;
        template.server_error = pairs(&file.server_error)?;
        template.other_path = file.other_path;
        template.client_error = file.client_error;
        template.list = file.list;
        template.list_pointer = file.list_pointer;
        template.refreshed_credential = pairs(&file.refreshed_credential)?;
        template.second_url = file.second_url.as_deref().map(http_url).transpose()?;
        template.ttl = file.ttl.as_deref().map(ttl).transpose().map_err(CannotCheck)?;
        template.restart_command = file.restart_command;
        Ok(template)
    }

    /// A new logical request.
    pub(crate) fn shot(&self) -> Shot {
        self.with_body(&self.body)
    }

    /// A new logical request with another body.
    pub(crate) fn with_body(&self, body: &str) -> Shot {
        Shot {
            url: self.url.clone(),
            method: self.method.clone(),
            key_header: self.key_header.clone(),
            headers: self.headers.clone(),
            body: fill(body).into(),
        }
    }

    /// The same URL with another path.
    pub(crate) fn at(&self, path: &str) -> Option<Uri> {
        let mut parts = self.url.clone().into_parts();
        parts.path_and_query = path.parse().ok();
        Uri::from_parts(parts).ok()
    }

    /// The request that lists what the operation has created.
    pub(crate) fn listing(&self) -> Option<Shot> {
        let url = self.at(self.list.as_deref()?)?;
        let mut headers = self.headers.clone();
        headers.retain(|(name, _)| *name != http::header::CONTENT_TYPE);
        let method = Method::GET;
        let key_header = self.key_header.clone();
        Some(Shot { url, method, key_header, headers, body: Bytes::new() })
    }
}

impl Shot {
    /// The same request with further headers, which replace those of the same name.
    pub(crate) fn with(&self, more: &Headers) -> Self {
        let mut shot = self.clone();
        shot.headers.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
        shot.headers.extend(more.iter().cloned());
        shot
    }

    /// The same request with this key.
    pub(crate) fn keyed(&self, key: &str) -> Self {
        let value = HeaderValue::from_str(key).unwrap_or(HeaderValue::from_static("unprintable"));
        self.with(&vec![(self.key_header.clone(), value)])
    }

    /// Another request of the same kind: one number or one member of its JSON differs, or one byte.
    pub(crate) fn altered(&self) -> Self {
        let mut shot = self.clone();
        shot.body = match serde_json::from_slice::<serde_json::Value>(&self.body) {
            Ok(mut json) => {
                if !bump(&mut json) {
                    json = serde_json::json!({ "altered": json });
                }
                json.to_string().into()
            }
            Err(_) => [&self.body[..], b"."].concat().into(),
        };
        shot
    }

    /// The same JSON in another spelling: members in the opposite order, with spaces.
    pub(crate) fn respelt(&self) -> Option<Self> {
        let serde_json::Value::Object(members) = serde_json::from_slice(&self.body).ok()? else {
            return None;
        };
        let spelt: Vec<String> = members
            .iter()
            .rev()
            .map(|(name, value)| format!(" {} : {value}", serde_json::Value::from(name.as_str())))
            .collect();
        let mut shot = self.clone();
        shot.body = format!("{{{} }}", spelt.join(" ,")).into();
        Some(shot)
    }

    /// The members of its JSON as the fields of a form, between lines with this boundary.
    pub(crate) fn as_form(&self, boundary: &str) -> Option<Self> {
        let serde_json::Value::Object(members) = serde_json::from_slice(&self.body).ok()? else {
            return None;
        };
        let mut body = String::new();
        for (name, value) in &members {
            let name = name.replace(['"', '\r', '\n'], "_");
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            body.push_str(&format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n"
            ));
        }
        body.push_str(&format!("--{boundary}--\r\n"));
        let kind = HeaderValue::from_str(&format!("multipart/form-data; boundary={boundary}"));
        let mut form = self.with(&vec![(http::header::CONTENT_TYPE, kind.ok()?)]);
        form.body = body.into();
        Some(form)
    }

    /// The same JSON with its whole numbers spelt as decimals: `5` as `5.0`.
    pub(crate) fn decimals(&self) -> Option<Self> {
        let serde_json::Value::Object(members) = serde_json::from_slice(&self.body).ok()? else {
            return None;
        };
        let mut changed = false;
        let spelt: Vec<String> = members
            .iter()
            .map(|(name, value)| {
                let whole = value.is_i64() || value.is_u64();
                changed |= whole;
                let name = serde_json::Value::from(name.as_str());
                if whole { format!("{name}:{value}.0") } else { format!("{name}:{value}") }
            })
            .collect();
        let mut shot = self.clone();
        shot.body = format!("{{{}}}", spelt.join(",")).into();
        changed.then_some(shot)
    }
}

/// Reads the URL of an operation.
pub(crate) fn http_url(text: &str) -> Result<Uri, CannotCheck> {
    let url = text.parse().ok().filter(|url: &Uri| {
        url.host().is_some() && matches!(url.scheme_str(), Some("http" | "https"))
    });
    url.ok_or_else(|| CannotCheck(format!("{text:?} is not an http:// or https:// URL")))
}

/// The longest time that a check waits for a key to be forgotten.
const TTL_MAX: Duration = Duration::from_secs(600);

/// Reads how long a key is remembered.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = units::parse_duration(text).map_err(|error| error.to_string())?;
    if ttl < Duration::from_secs(1) || ttl > TTL_MAX {
        return Err(format!("{text:?} is not between 1s and 10m: the check waits for it to end"));
    }
    Ok(ttl)
}

/// Reads the name of a header.
pub(crate) fn header_name(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("{text:?} is no header's name"))
}

/// Reads `Name: value` pairs.
pub(crate) fn headers(lines: &[String]) -> Result<Headers, CannotCheck> {
    lines
        .iter()
        .map(|line| {
            let (name, value) = line.split_once(':')?;
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value.trim()).ok()?))
        })
        .zip(lines)
        .map(|(pair, line)| {
            pair.ok_or_else(|| {
                CannotCheck(format!("{line:?} is not a header such as 'Name: value'"))
            })
        })
        .collect()
}

/// A new random key.
pub(crate) fn new_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Fills in the placeholders.
fn fill(text: &str) -> String {
    let mut out = text.to_owned();
    while out.contains("{{uuid}}") {
        out = out.replacen("{{uuid}}", &uuid::Uuid::new_v4().to_string(), 1);
    }
    let random = uuid::Uuid::new_v4().as_u128();
    let now = jiff::Timestamp::now();
    out.replace("{{int}}", &(random % 1_000_000 + 1).to_string())
        .replace("{{now}}", &now.to_string())
}

/// Changes the first number in a JSON value, or adds a member.
fn bump(json: &mut serde_json::Value) -> bool {
    use serde_json::Value;
    match json {
        Value::Number(number) => {
            let next = number.as_i64().unwrap_or_default().wrapping_add(1);
            *json = Value::from(next);
            true
        }
        Value::Array(items) => items.iter_mut().any(bump),
        Value::Object(members) => {
            if !members.values_mut().any(bump) {
                members.insert("altered".into(), Value::Bool(true));
            }
            true
        }
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(body: &str) -> Template {
        Template::new("http://127.0.0.1:1/p", "POST", body).unwrap()
    }

    #[test]
    fn placeholders_are_filled_once_per_logical_request() {
        let template = template(r#"{"a":"{{uuid}}","b":"{{uuid}}","n":{{int}}}"#);
        let one = template.shot();
        let two = template.shot();
        assert_ne!(one.body, two.body);
        let json: serde_json::Value = serde_json::from_slice(&one.body).unwrap();
        assert_ne!(json["a"], json["b"]);
        assert_eq!(one.keyed("k").body, one.body);
    }

    #[test]
    fn variations_mean_what_they_say() {
        let shot = template(r#"{"n":1,"s":"x"}"#).shot();
        let json = |shot: &Shot| serde_json::from_slice::<serde_json::Value>(&shot.body).unwrap();
        assert_ne!(json(&shot.altered()), json(&shot));
        assert_eq!(json(&shot.respelt().unwrap()), json(&shot));
        assert_ne!(shot.respelt().unwrap().body, shot.body);
        assert_eq!(shot.decimals().unwrap().body, r#"{"n":1.0,"s":"x"}"#);
        assert!(template("plain").shot().respelt().is_none());
        assert_ne!(template("plain").shot().altered().body, "plain");
        assert_ne!(template(r#"{"s":"x"}"#).shot().altered().body, r#"{"s":"x"}"#);
    }

    #[test]
    fn nonsense_is_refused_with_a_word() {
        assert!(Template::new("ftp://x/", "POST", "").is_err());
        assert!(Template::new("/path", "POST", "").is_err());
        assert!(Template::new("http://x/", "PO ST", "").is_err());
        assert!(headers(&["no colon".into()]).is_err());
    }
}
