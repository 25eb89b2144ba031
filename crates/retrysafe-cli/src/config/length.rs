//! How is a length of time written?

use std::borrow::Cow;
use std::time::Duration;

use retrysafe_core::units;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time as people write it: `500ms`, `30s`, `24h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length(pub Duration);

/// The longest length of time that may be set: a hundred years. More is a slip of the hand, and no
/// clock or calendar shows its end.
const LENGTH_MAX: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        match units::parse_duration(&text) {
            Ok(length) if length > LENGTH_MAX => {
                let longest = units::show_duration(LENGTH_MAX);
                Err(de::Error::custom(format!("{text:?} is longer than {longest}")))
            }
            Ok(length) => Ok(Self(length)),
            Err(error) => Err(de::Error::custom(error)),
        }
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&units::show_duration(self.0))
    }
}

impl JsonSchema for Length {
    fn schema_name() -> Cow<'static, str> {
        "Length".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^ *[0-9]+ *(ms|s|m|h|d) *$", "examples": ["30s"]})
    }
}
