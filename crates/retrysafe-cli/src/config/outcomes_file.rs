//! What does the file say about the states of a provider's documents? (`outcomes` of a lookup or of a webhook)

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// What the states of a provider's documents mean. Whatever no rule names means nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OutcomesFile {
    /// It was done.
    pub executed: AnsweredFile,
    /// It was done, and its end is a failure for good: that failure is the answer from now on.
    pub declined: AnsweredFile,
    /// It was not done and cannot be any more: the provider's own word is the proof.
    pub not_executed: RuledFile,
    /// It is under way.
    pub pending: RuledFile,
}

/// Which documents have an outcome, and which answer is replayed then.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AnsweredFile {
    /// What stands where in the document, such as `{ "/status" = ["paid", 2] }`. All of it must hold. A list of such tables is a list of
    /// alternatives.
    pub when: Option<WhenFile>,
    /// The answer's status, such as `201`, or where it stands in the document, such as `"/http/status"`; 200 unless it is set.
    pub status: Option<StatusFile>,
    /// The answer's headers. `{/id}` stands for what the document holds there.
    pub headers: BTreeMap<String, String>,
    /// Where in the document the answer's body stands, as a JSON pointer; `""` is the whole document.
    pub body: Option<String>,
    /// The answer's body as JSON, with `{/id}` for what the document holds there.
    pub template: Option<String>,
    /// Where in the document a whole answer stands, as a JSON pointer, in the form of the admin interface.
    pub response: Option<String>,
}

/// Which documents have an outcome.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RuledFile {
    /// What stands where in the document, such as `{ "/status" = "void" }`. All of it must hold. A list of such tables is a list of
    /// alternatives.
    pub when: Option<WhenFile>,
}

/// Alternatives; in each, what must stand where.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum WhenFile {
    One(BTreeMap<String, WantedFile>),
    Several(Vec<BTreeMap<String, WantedFile>>),
}

/// What must stand at a place.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum WantedFile {
    One(ValueFile),
    Several(Vec<ValueFile>),
    Presence { present: bool },
}

/// A value to compare with.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum ValueFile {
    Boolean(bool),
    Integer(i64),
    Fraction(f64),
    Text(String),
}

/// A status, or where it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum StatusFile {
    Fixed(u16),
    At(String),
}

const WHEN: &str =
    "is not a table such as { \"/status\" = [\"paid\", 2] }, nor a list of such tables";

impl<'de> Deserialize<'de> for WhenFile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct WhenVisitor;
        impl<'de> de::Visitor<'de> for WhenVisitor {
            type Value = WhenFile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table such as { \"/status\" = \"paid\" }, or a list of such tables")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WhenFile, A::Error> {
                let read = BTreeMap::deserialize(de::value::MapAccessDeserializer::new(map));
                read.map(WhenFile::One)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<WhenFile, A::Error> {
                let read = Vec::deserialize(de::value::SeqAccessDeserializer::new(list));
                read.map(WhenFile::Several).map_err(|_| de::Error::custom(WHEN))
            }
        }
        from.deserialize_any(WhenVisitor)
    }
}

impl<'de> Deserialize<'de> for WantedFile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, deny_unknown_fields)]
        enum Read {
            One(ValueFile),
            Several(Vec<ValueFile>),
            Presence { present: bool },
        }
        match Read::deserialize(from) {
            Ok(Read::One(value)) => Ok(Self::One(value)),
            Ok(Read::Several(values)) => Ok(Self::Several(values)),
            Ok(Read::Presence { present }) => Ok(Self::Presence { present }),
            Err(_) => Err(de::Error::custom(
                "is neither a text, a number or a boolean, nor a list of them, nor { present = true }",
            )),
        }
    }
}

impl<'de> Deserialize<'de> for StatusFile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Read {
            Fixed(u16),
            At(String),
        }
        match Read::deserialize(from) {
            Ok(Read::Fixed(status)) => Ok(Self::Fixed(status)),
            Ok(Read::At(pointer)) => Ok(Self::At(pointer)),
            Err(_) => Err(de::Error::custom(
                "is neither a status such as 201 nor a JSON pointer such as \"/http/status\"",
            )),
        }
    }
}

impl JsonSchema for WhenFile {
    fn schema_name() -> Cow<'static, str> {
        "When".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["object", "array"],
            "examples": [{ "/status": ["paid", 2] }, [{ "/status": "paid" }, { "/captured": true }]],
        })
    }
}

impl JsonSchema for StatusFile {
    fn schema_name() -> Cow<'static, str> {
        "AnswerStatus".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["integer", "string"], "minimum": 200, "maximum": 599, "examples": [201, "/http/status"],
        })
    }
}
