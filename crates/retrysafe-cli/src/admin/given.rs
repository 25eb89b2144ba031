//! Which answer is given by hand?

use axum::body::Bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue, StatusCode};
use retrysafe_core::record::Answer;
use retrysafe_core::response::{StoredResponse, is_stripped};
use serde::Deserialize;

/// The largest answer an operator may give, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// An answer that an operator gives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
}

impl Given {
    /// The answer as it is kept.
    ///
    /// # Errors
    ///
    /// Why it cannot be replayed.
    pub(crate) fn answer(self) -> Result<Answer, String> {
        let status = StatusCode::from_u16(self.status)
            .ok()
            .filter(|status| status.as_u16() >= 200)
            .ok_or_else(|| format!("{} is not a final status", self.status))?;
        let mut headers = Vec::new();
        for (name, value) in &self.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
            let pair = parsed.zip(HeaderValue::from_str(value).ok());
            let (name, value) = pair.ok_or_else(|| format!("{name:?} is no header"))?;
            if is_stripped(&name) {
                return Err(format!("{name} is never replayed"));
            }
            headers.push((name, value));
        }
        let body: Bytes = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err("give `body` or `body_base64`, not both".into());
            }
            (Some(text), None) => text.into(),
            (None, Some(text)) => STANDARD.decode(text).map_err(|error| error.to_string())?.into(),
            (None, None) => Bytes::new(),
        };
        let is_bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if is_bodiless && !body.is_empty() {
            return Err(format!("an answer of status {status} has no body"));
        }
        if body.len() > ANSWER_BYTES_MAX {
            return Err(format!("the body is larger than {ANSWER_BYTES_MAX} bytes"));
        }
        Ok(Answer::Kept(StoredResponse { status, headers, body }))
    }
}
