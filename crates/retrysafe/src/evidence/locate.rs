//! Where in a JSON document does a pointer lead?
//!
//! The document stays text: numbers keep their digits and members their order, so that what is taken from it is what the provider
//! wrote. A member that stands there twice is no value: readers disagree about which of the two counts.

use std::borrow::Cow;
use std::fmt;

use retrysafe_core::canonical::Pointer;
use serde::de::{DeserializeSeed, Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A document that is JSON.
#[derive(Clone, Copy, Debug)]
pub struct JsonDocument<'a>(&'a RawValue);

/// What a pointer meets.
#[derive(Clone, Copy, Debug)]
pub enum JsonItem<'a> {
    /// This value.
    Value(JsonDocument<'a>),
    /// Nothing.
    Nothing,
    /// A member on the way stands there twice.
    Ambiguous,
}

impl<'a> JsonDocument<'a> {
    /// Reads a document; none if it is not JSON, or more than one value.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        serde_json::from_slice::<&RawValue>(bytes).ok().map(Self)
    }

    /// The document as it is written.
    pub fn as_text(&self) -> &'a str {
        self.0.get()
    }

    /// What a pointer meets.
    pub fn at(&self, pointer: &Pointer) -> JsonItem<'a> {
        let mut value = self.0;
        for step in pointer.steps() {
            match step_into(value, step) {
                JsonItem::Value(JsonDocument(next)) => value = next,
                none @ (JsonItem::Nothing | JsonItem::Ambiguous) => return none,
            }
        }
        JsonItem::Value(Self(value))
    }

    /// The value as a text, if it is a JSON text.
    pub fn text(&self) -> Option<String> {
        self.as_text().starts_with('"').then(|| serde_json::from_str(self.as_text()).ok())?
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.as_text() == "null"
    }

    /// Whether it is an object or a list.
    pub fn is_compound(&self) -> bool {
        self.as_text().starts_with(['{', '['])
    }

    /// The items of a list, if it is one.
    pub fn items(&self) -> Option<Vec<JsonDocument<'a>>> {
        let items = serde_json::from_str::<Vec<&RawValue>>(self.0.get()).ok()?;
        Some(items.into_iter().map(JsonDocument).collect())
    }

    /// A text, a number or a boolean as people write it, without quotes.
    pub fn plain(&self) -> Option<String> {
        match self.text() {
            Some(text) => Some(text),
            None if self.is_compound() || self.is_null() || self.as_text().starts_with('"') => None,
            None => Some(self.as_text().to_owned()),
        }
    }

    /// What kind of value stands where a pointer leads, in words. Not the value itself: it is the provider's, may be personal, and these
    /// words reach the log. Whoever may see it finds it in the excerpt of the answer, or in the event.
    pub(super) fn describe(&self, pointer: &Pointer) -> String {
        let place = if pointer.is_root() { "the document".into() } else { pointer.to_string() };
        match self.at(pointer) {
            JsonItem::Nothing => format!("{place} is not there"),
            JsonItem::Ambiguous => format!("a member of {place} is there twice"),
            JsonItem::Value(value) if value.as_text().starts_with('{') => {
                format!("{place} is an object")
            }
            JsonItem::Value(value) if value.as_text().starts_with('[') => {
                format!("{place} is a list")
            }
            JsonItem::Value(value) => {
                let kind = match value.as_text().as_bytes().first() {
                    Some(b'"') => "a text",
                    Some(b't' | b'f') => "a boolean",
                    Some(b'n') => "null",
                    Some(_) | None => "a number",
                };
                format!("{place} is {kind}")
            }
        }
    }
}

fn step_into<'a>(value: &'a RawValue, step: &str) -> JsonItem<'a> {
    let text = value.get();
    if text.starts_with('{') {
        let found = serde_json::Deserializer::from_str(text).deserialize_map(MemberVisitor(step));
        return found.unwrap_or(JsonItem::Nothing);
    }
    let is_index = step == "0" || !step.starts_with(['0', '+']);
    let index = step.parse::<usize>().ok().filter(|_| is_index);
    let items = JsonDocument(value).items();
    let item = items.zip(index).and_then(|(items, index)| items.get(index).copied());
    item.map_or(JsonItem::Nothing, JsonItem::Value)
}

/// Looks for the member of this name.
struct MemberVisitor<'n>(&'n str);

impl<'de> Visitor<'de> for MemberVisitor<'_> {
    type Value = JsonItem<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<JsonItem<'de>, A::Error> {
        let mut found = JsonItem::Nothing;
        while let Some(is_it) = members.next_key_seed(NameIs(self.0))? {
            let value: &'de RawValue = members.next_value()?;
            found = match (is_it, found) {
                (true, JsonItem::Nothing) => JsonItem::Value(JsonDocument(value)),
                (true, JsonItem::Value(_) | JsonItem::Ambiguous) => JsonItem::Ambiguous,
                (false, found) => found,
            };
        }
        Ok(found)
    }
}

/// Whether a member's name is this one.
struct NameIs<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for NameIs<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        let name: Cow<'de, str> = serde::Deserialize::deserialize(from)?;
        Ok(name == self.0)
    }
}
