//! What does a receiver's status say about an effect?
//!
//! The defaults claim no more than a status means. A refusal is final only if the same bytes would be refused again: a
//! credential, a path or a rate can change, so 401, 403, 404, 407, 421, 425 and 429 say that nothing was done *now*. 408, 409 and 423 say
//! not even that: a request that was cut off may have been done, and "in conflict" or "locked" is what many receivers
//! answer while the same key is still being worked on. 307 and 308 name another place before anything is done; after the other
//! redirects it may have been done. A 5xx says nothing at all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use http::StatusCode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What a status means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusMeaning {
    /// It was done.
    Delivered,
    /// It was refused for good, and not done.
    Rejected,
    /// This delivery did nothing.
    NoEffect,
    /// Nobody knows.
    Unknown,
}

/// A status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatusPattern {
    One(u16),
    /// By its first digit.
    Class(u16),
}

/// What each status means.
#[derive(Clone, Debug)]
pub(crate) struct StatusRules {
    meanings: BTreeMap<StatusPattern, StatusMeaning>,
}

/// What statuses mean where nothing is configured.
const DEFAULTS: [(StatusPattern, StatusMeaning); 14] = [
    (StatusPattern::Class(2), StatusMeaning::Delivered),
    (StatusPattern::One(307), StatusMeaning::NoEffect),
    (StatusPattern::One(308), StatusMeaning::NoEffect),
    (StatusPattern::Class(4), StatusMeaning::Rejected),
    (StatusPattern::One(401), StatusMeaning::NoEffect),
    (StatusPattern::One(403), StatusMeaning::NoEffect),
    (StatusPattern::One(404), StatusMeaning::NoEffect),
    (StatusPattern::One(407), StatusMeaning::NoEffect),
    (StatusPattern::One(408), StatusMeaning::Unknown),
    (StatusPattern::One(409), StatusMeaning::Unknown),
    (StatusPattern::One(421), StatusMeaning::NoEffect),
    (StatusPattern::One(423), StatusMeaning::Unknown),
    (StatusPattern::One(425), StatusMeaning::NoEffect),
    (StatusPattern::One(429), StatusMeaning::NoEffect),
];

/// The lists of a table, in the order in which they are given, and what they mean.
const LISTS: [(&str, StatusMeaning); 4] = [
    ("delivered", StatusMeaning::Delivered),
    ("rejected", StatusMeaning::Rejected),
    ("no_effect", StatusMeaning::NoEffect),
    ("unknown", StatusMeaning::Unknown),
];

impl StatusRules {
    /// The defaults, and over them what a table's lists `delivered`, `rejected`, `no_effect` and `unknown` say.
    ///
    /// # Errors
    ///
    /// The list that contradicts another one, and where.
    pub(super) fn read(
        lists: [&Option<Vec<StatusPattern>>; 4],
    ) -> Result<Self, (&'static str, String)> {
        let mut meanings: BTreeMap<_, _> = DEFAULTS.into();
        let mut said: BTreeMap<StatusPattern, &'static str> = BTreeMap::new();
        for ((setting, meaning), list) in LISTS.into_iter().zip(lists) {
            for pattern in list.iter().flatten() {
                if let Some(other) =
                    said.insert(*pattern, setting).filter(|other| *other != setting)
                {
                    let what =
                        format!("{pattern} stands in `{other}` too; a status means one thing");
                    return Err((setting, what));
                }
                meanings.insert(*pattern, meaning);
            }
        }
        // Who says what a class means has spoken of all its statuses: a default of ours for one of them counts no more.
        meanings.retain(|pattern, _| match pattern {
            StatusPattern::One(status) => {
                let class = StatusPattern::Class(status / 100);
                said.contains_key(pattern) || !said.contains_key(&class)
            }
            StatusPattern::Class(_) => true,
        });
        Ok(Self { meanings })
    }

    /// What a status means: a rule for it alone wins over a rule for its class, and no rule at all means that nobody knows.
    pub(crate) fn meaning_of(&self, status: StatusCode) -> StatusMeaning {
        let status = status.as_u16();
        let one = self.meanings.get(&StatusPattern::One(status));
        let class = || self.meanings.get(&StatusPattern::Class(status / 100));
        one.or_else(class).copied().unwrap_or(StatusMeaning::Unknown)
    }
}

impl StatusPattern {
    fn parse(text: &str) -> Option<Self> {
        if let Some(digit) = text.strip_suffix("xx") {
            return digit.parse().ok().filter(|digit| (2..=5).contains(digit)).map(Self::Class);
        }
        text.parse().ok().and_then(Self::of_number)
    }

    fn of_number(number: u16) -> Option<Self> {
        (200..=599).contains(&number).then_some(Self::One(number))
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(status) => write!(f, "{status}"),
            Self::Class(digit) => write!(f, "{digit}xx"),
        }
    }
}

impl<'de> Deserialize<'de> for StatusPattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NumberOrText {
            Number(u16),
            Text(String),
        }
        let read = match NumberOrText::deserialize(from) {
            Ok(NumberOrText::Number(number)) => Self::of_number(number),
            Ok(NumberOrText::Text(text)) => Self::parse(&text),
            Err(_) => None,
        };
        read.ok_or_else(|| {
            de::Error::custom("is not a status such as 409, nor a class such as \"4xx\"")
        })
    }
}

impl Serialize for StatusPattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One(status) => to.serialize_u16(*status),
            Self::Class(_) => to.collect_str(self),
        }
    }
}

impl JsonSchema for StatusPattern {
    fn schema_name() -> Cow<'static, str> {
        "StatusPattern".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["integer", "string"],
            "minimum": 200,
            "maximum": 599,
            "pattern": "^([2-5][0-9]{2}|[2-5]xx)$",
            "examples": [409, "2xx"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(rules: &StatusRules, status: u16) -> StatusMeaning {
        rules.meaning_of(StatusCode::from_u16(status).unwrap())
    }

    #[test]
    fn no_status_claims_more_than_it_means() {
        let rules = StatusRules::read([&None, &None, &None, &None]).unwrap();
        for (meant, statuses) in [
            (StatusMeaning::Delivered, &[200, 201, 202, 204, 299][..]),
            (StatusMeaning::Rejected, &[400, 402, 405, 406, 410, 413, 414, 415, 422, 451]),
            (StatusMeaning::NoEffect, &[401, 403, 404, 407, 421, 425, 429, 307, 308]),
            (StatusMeaning::Unknown, &[300, 301, 302, 303, 304, 408, 409, 423]),
            (StatusMeaning::Unknown, &[500, 501, 502, 503, 504, 599, 101, 600, 999]),
        ] {
            for status in statuses {
                assert_eq!(meaning(&rules, *status), meant, "{status}");
            }
        }
    }

    #[test]
    fn a_rule_for_a_status_wins_over_one_for_its_class() {
        let delivered = Some(vec![StatusPattern::One(409)]);
        let rejected = Some(vec![StatusPattern::Class(5), StatusPattern::One(404)]);
        let unknown = Some(vec![StatusPattern::Class(4)]);
        let rules = StatusRules::read([&delivered, &rejected, &None, &unknown]).unwrap();
        for (status, meant) in [
            (409, StatusMeaning::Delivered),
            (404, StatusMeaning::Rejected),
            (422, StatusMeaning::Unknown),
            // A default of ours does not win over what was said of its class.
            (429, StatusMeaning::Unknown),
            (503, StatusMeaning::Rejected),
            (307, StatusMeaning::NoEffect),
        ] {
            assert_eq!(meaning(&rules, status), meant, "{status}");
        }
    }

    #[test]
    fn a_status_means_one_thing() {
        let both = Some(vec![StatusPattern::One(409)]);
        let (setting, what) = StatusRules::read([&both, &None, &None, &both]).unwrap_err();
        assert_eq!(setting, "unknown");
        assert!(what.contains("409") && what.contains("`delivered`"), "{what}");
    }

    #[test]
    fn patterns_are_read_as_people_write_them() {
        for (text, pattern) in [
            ("2xx", Some(StatusPattern::Class(2))),
            ("409", Some(StatusPattern::One(409))),
            ("1xx", None),
            ("6xx", None),
            ("99", None),
            ("4XX", None),
            ("40x", None),
            ("", None),
        ] {
            assert_eq!(StatusPattern::parse(text), pattern, "{text}");
        }
    }
}
