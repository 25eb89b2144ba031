//! How is the answer to replay made of a document?

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use retrysafe_core::canonical::Pointer;
use retrysafe_core::response::{StoredResponse, is_stripped};
use serde::Deserialize;

use super::locate::{JsonDocument, JsonItem};
use super::template::TextTemplate;

/// The largest body of an answer: what stores take without complaint.
const BODY_BYTES_MAX: usize = 1 << 20;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How an answer is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerRule {
    /// The document holds a whole answer at this place: `{"status": 201, "headers": [["A", "b"]], "body": "…"}`, with `body_base64`
    /// instead of `body` where it is no text. Where nothing or `null` stands there, nothing is made.
    Whole(Pointer),
    /// It is put together.
    Parts {
        /// Its status.
        status: AnswerStatus,
        /// Its headers. `Content-Type: application/json` is added to a body of JSON unless it is there.
        headers: Vec<(HeaderName, TextTemplate)>,
        /// Its body.
        body: AnswerBody,
    },
}

/// Where the status of an answer comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// It is always this one.
    Fixed(StatusCode),
    /// It stands there, as a number.
    At(Pointer),
}

/// Where the body of an answer comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// It has none.
    Empty,
    /// It is what stands there: a text without its quotes, anything else as the document has written it. The pointer to the
    /// root stands for the whole document.
    At(Pointer),
    /// It is this JSON, with the document's values in its places.
    Template(TextTemplate),
}

impl AnswerRule {
    /// The answer; none where the document has none to give.
    ///
    /// # Errors
    ///
    /// What the document lacks.
    pub(super) fn make(
        &self,
        document: &JsonDocument<'_>,
    ) -> Result<Option<StoredResponse>, String> {
        let made = match self {
            Self::Whole(pointer) => match whole(document, pointer)? {
                Some(answer) => answer,
                None => return Ok(None),
            },
            Self::Parts { status, headers, body } => {
                let status = status.read(document)?;
                let (body, is_json) = body.make(document)?;
                let mut filled = Vec::new();
                for (name, template) in headers {
                    let value = template.fill_plain(document)?;
                    let value = HeaderValue::from_str(&value);
                    let value =
                        value.map_err(|_| format!("{name} would hold what no header can"))?;
                    filled.push((name.clone(), value));
                }
                if is_json && !filled.iter().any(|(name, _)| *name == CONTENT_TYPE) {
                    filled.push((CONTENT_TYPE, JSON));
                }
                StoredResponse { status, headers: filled, body }
            }
        };
        let is_bodiless = matches!(made.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if is_bodiless && !made.body.is_empty() {
            return Err(format!("an answer of status {} has no body", made.status.as_u16()));
        }
        if made.body.len() > BODY_BYTES_MAX {
            return Err(format!("its answer is larger than {BODY_BYTES_MAX} bytes"));
        }
        Ok(Some(made))
    }
}

impl AnswerStatus {
    fn read(&self, document: &JsonDocument<'_>) -> Result<StatusCode, String> {
        let pointer = match self {
            Self::Fixed(status) => return Ok(*status),
            Self::At(pointer) => pointer,
        };
        let status = match document.at(pointer) {
            JsonItem::Value(value) => value.as_text().parse::<u16>().ok().and_then(final_status),
            JsonItem::Nothing | JsonItem::Ambiguous => None,
        };
        status.ok_or_else(|| format!("{}, which is no final status", document.describe(pointer)))
    }
}

impl AnswerBody {
    /// The body, and whether it is JSON.
    fn make(&self, document: &JsonDocument<'_>) -> Result<(Bytes, bool), String> {
        match self {
            Self::Empty => Ok((Bytes::new(), false)),
            Self::Template(template) => Ok((template.fill_json(document)?.into(), true)),
            Self::At(pointer) => match document.at(pointer) {
                JsonItem::Value(value) => match value.text() {
                    Some(text) => Ok((text.into(), false)),
                    None => Ok((Bytes::copy_from_slice(value.as_text().as_bytes()), true)),
                },
                JsonItem::Nothing | JsonItem::Ambiguous => Err(document.describe(pointer)),
            },
        }
    }
}

fn final_status(status: u16) -> Option<StatusCode> {
    StatusCode::from_u16(status).ok().filter(|status| (200..=599).contains(&status.as_u16()))
}

/// An answer as a document holds it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeAnswer {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
}

fn whole(document: &JsonDocument<'_>, pointer: &Pointer) -> Result<Option<StoredResponse>, String> {
    let value = match document.at(pointer) {
        JsonItem::Value(value) if !value.is_null() => value,
        JsonItem::Value(_) | JsonItem::Nothing => return Ok(None),
        JsonItem::Ambiguous => return Err(document.describe(pointer)),
    };
    let unreadable = |why: &dyn std::fmt::Display| {
        format!("what stands at {pointer} cannot be read as an answer: {why}")
    };
    let given: WholeAnswer =
        serde_json::from_str(value.as_text()).map_err(|error| unreadable(&error))?;
    let status = final_status(given.status)
        .ok_or_else(|| unreadable(&format!("{} is no final status", given.status)))?;
    let mut headers = Vec::new();
    for (name, value) in &given.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
        let pair = parsed.zip(HeaderValue::from_str(value).ok());
        let (name, value) = pair.ok_or_else(|| unreadable(&format!("{name:?} is no header")))?;
        if is_stripped(&name) {
            return Err(unreadable(&format!("{name} is never replayed")));
        }
        headers.push((name, value));
    }
    let body: Bytes = match (given.body, given.body_base64) {
        (Some(_), Some(_)) => {
            return Err(unreadable(&"it has both `body` and `body_base64`"));
        }
        (Some(text), None) => text.into(),
        (None, Some(text)) => STANDARD.decode(text).map_err(|error| unreadable(&error))?.into(),
        (None, None) => Bytes::new(),
    };
    Ok(Some(StoredResponse { status, headers, body }))
}
