//! How is a value of the wrong kind written right?
//!
//! The reader says what it has found and what it expected, in its own words: "invalid type: integer `60`, expected a string". Whoever has written
//! `lease = 60` wants to know what to write instead.

use serde_json::Value;

/// What is wrong with a value, and what to write instead; none where the reader's own words are the best there are. `written` is the value as it
/// stands in the file, `schema` that of its setting.
pub(super) fn cure(
    message: &str,
    written: &str,
    setting: &str,
    schema: Option<&Value>,
) -> Option<String> {
    if message == "wanted string or table" {
        let choices = choices(schema?);
        return (!choices.is_empty()).then(|| format!("write one of {}", choices.join(", ")));
    }
    let (found, expected) = message.strip_prefix("invalid type: ")?.split_once(", expected ")?;
    let found = match found.split(' ').next()? {
        "integer" | "floating" => Found::Number,
        "string" => Found::Text,
        "boolean" => Found::Truth,
        "sequence" => Found::List,
        "map" => Found::Table,
        _ => return None,
    };
    let kind = found.name();
    // What is written in several lines is not repeated.
    let is_short = !written.is_empty() && !written.contains('\n');
    let plain = written.trim_matches(['"', '\'']);
    let whole = written.parse::<u64>().ok();
    Some(match expected {
        "a sequence" if is_short && found != Found::Table => {
            format!("is not a list: write [{written}]")
        }
        "a sequence" => "is not a list: write [\"…\", \"…\"]".into(),
        "a boolean" if matches!(plain, "true" | "false") => format!("is {kind}: write {plain}"),
        "a boolean" => format!("is {kind}: write true or false"),
        _ if expected.starts_with("struct ") || expected == "a map" => {
            format!("is not a table: write [{setting}]")
        }
        // A whole number with its unit is what such a setting takes. What another number may stand for, nobody knows.
        _ if expected.contains("string") => match (found, whole.and(schema).and_then(unit)) {
            (Found::Number, Some(unit)) => format!("is {kind}: write \"{written}{unit}\""),
            (Found::Number | Found::Truth | Found::Text | Found::List | Found::Table, _) => {
                format!("is {kind}: write a text in quotation marks")
            }
        },
        _ if is_number(expected) => match plain.parse::<u64>() {
            Ok(number) => format!("is {kind}: write {number}"),
            Err(_) => format!("is {kind}: write a whole number, such as 10"),
        },
        _ => return None,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Number,
    Text,
    Truth,
    List,
    Table,
}

impl Found {
    fn name(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Truth => "true or false",
            Self::List => "a list",
            Self::Table => "a table",
        }
    }
}

/// Whether the reader wanted a whole number, such as `usize` or `a nonzero u32`.
fn is_number(expected: &str) -> bool {
    let last = expected.rsplit(' ').next().unwrap_or_default();
    let digits = last.trim_start_matches(['u', 'i']);
    last != digits && (digits == "size" || digits.parse::<u8>().is_ok())
}

/// What may stand in a setting that takes one of a few words, each in quotes.
fn choices(schema: &Value) -> Vec<String> {
    let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
    let words = list("enum").chain(schema.get("const")).filter_map(Value::as_str);
    let own = words.map(|word| format!("{word:?}"));
    own.chain(list("anyOf").chain(list("oneOf")).flat_map(choices)).collect()
}

/// The unit that a number most likely has in a setting that wants one: the one of the schema's example.
fn unit(schema: &Value) -> Option<&'static str> {
    let alternatives = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    let mut schemas = std::iter::once(schema).chain(alternatives);
    let example = schemas.find_map(|schema| schema.get("examples")?.get(0)?.as_str());
    match example {
        Some("30s") => Some("s"),
        Some("1MiB") => Some("B"),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_reader_says_in_other_words_stays() {
        for message in [
            "unknown variant `maybe`, expected `optional` or `required`",
            "invalid value: integer `-1`, expected usize",
            "invalid type: datetime, expected a string",
            "invalid type: integer `1`, expected something that nobody knows",
            "",
        ] {
            assert_eq!(cure(message, "1", "a", None), None, "{message}");
        }
    }

    #[test]
    fn what_fills_several_lines_is_not_repeated() {
        let told =
            cure("invalid type: string \"a\", expected a sequence", "\'\'\'a\nb\'\'\'", "x", None);
        assert_eq!(told.as_deref(), Some("is not a list: write [\"…\", \"…\"]"));
        let told = cure("invalid type: map, expected a string", "x = 1\ny = 2", "x", None);
        assert_eq!(told.as_deref(), Some("is a table: write a text in quotation marks"));
    }

    #[test]
    fn only_numbers_are_numbers() {
        for expected in ["usize", "u16", "i64", "a nonzero u32"] {
            assert!(is_number(expected), "{expected}");
        }
        for expected in ["a string", "size", "unit", "", "f64"] {
            assert!(!is_number(expected), "{expected}");
        }
    }
}
