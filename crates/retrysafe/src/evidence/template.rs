//! How is a text made with values of a document in it?
//!
//! `{/payment/id}` stands for the value at that pointer. A brace that is not followed by `/` stands for itself, so JSON can be
//! written as it is: `{"id": {/payment/id}, "paid": true}`.

use std::error::Error;
use std::fmt;

use retrysafe_core::canonical::Pointer;

use super::locate::{JsonDocument, JsonItem};

/// A text with pointers in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTemplate {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    At(Pointer),
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError(String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for TemplateError {}

impl TextTemplate {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// If a place is not closed, or is not a pointer.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{/") {
            let (steps, after) = after
                .split_once('}')
                .ok_or_else(|| TemplateError("has a {/… that is not closed".into()))?;
            let pointer = Pointer::parse(&format!("/{steps}"))
                .map_err(|error| TemplateError(format!("{{/{steps}}}: {error}")))?;
            pieces.push(Piece::Text(before.into()));
            pieces.push(Piece::At(pointer));
            rest = after;
        }
        pieces.push(Piece::Text(rest.into()));
        Ok(Self { pieces })
    }

    /// Reads a template whose text is JSON.
    ///
    /// # Errors
    ///
    /// If it is no template, is not JSON, or has a place inside a text: values are put in with their quotes.
    pub fn parse_json(text: &str) -> Result<Self, TemplateError> {
        let template = Self::parse(text)?;
        let is_json = |value: &str| {
            let filled = template.pieces.iter().map(|piece| match piece {
                Piece::Text(text) => text,
                Piece::At(_) => value,
            });
            let filled: String = filled.collect();
            serde_json::from_str::<serde::de::IgnoredAny>(&filled).is_ok()
        };
        match (is_json("\"x\""), is_json("0")) {
            (true, true) => Ok(template),
            (false, true) => Err(TemplateError(
                "has a place inside a text; leave the quotes around it out, they come with the value".into(),
            )),
            (_, false) => Err(TemplateError("is not JSON, even with values in its places".into())),
        }
    }

    /// The text with plain values in its places: a text without its quotes, a number, a boolean.
    ///
    /// # Errors
    ///
    /// The place at which there is no such value.
    pub(super) fn fill_plain(&self, document: &JsonDocument<'_>) -> Result<String, String> {
        self.fill(document, |value| value.plain())
    }

    /// The text with values in its places, as the document has written them.
    ///
    /// # Errors
    ///
    /// The place at which there is none.
    pub(super) fn fill_json(&self, document: &JsonDocument<'_>) -> Result<String, String> {
        self.fill(document, |value| Some(value.as_text().to_owned()))
    }

    fn fill(
        &self,
        document: &JsonDocument<'_>,
        shown: impl Fn(&JsonDocument<'_>) -> Option<String>,
    ) -> Result<String, String> {
        let mut filled = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::At(pointer) => {
                    let value = match document.at(pointer) {
                        JsonItem::Value(value) => shown(&value),
                        JsonItem::Nothing | JsonItem::Ambiguous => None,
                    };
                    filled.push_str(&value.ok_or_else(|| document.describe(pointer))?);
                }
            }
        }
        Ok(filled)
    }
}
