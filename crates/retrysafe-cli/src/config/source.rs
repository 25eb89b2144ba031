//! Where in the file does a setting stand, and is there such a setting at all?
//!
//! The text is read twice: once into the typed [`File`], and once into a tree that keeps every
//! key's place. The second is walked along the JSON schema of the first, so that an unknown setting
//! is reported with line, column and the nearest name, and all of them at once.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::file::File;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// Line and column in the file, if it stands there.
    pub place: Option<(usize, usize)>,
    /// The setting, such as `defaults.lease`.
    pub setting: String,
    /// What is wrong with it.
    pub what: String,
}

/// The places of all settings of one file.
#[derive(Debug, Default)]
pub(crate) struct Places {
    at: BTreeMap<String, (usize, usize)>,
}

impl Complaint {
    /// Something wrong with a setting, to be located later.
    pub(crate) fn new(setting: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: None, setting: setting.into(), what: what.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line}, column {column}: ")?;
        }
        if !self.setting.is_empty() {
            write!(f, "`{}`: ", self.setting)?;
        }
        f.write_str(&self.what)
    }
}

impl Places {
    /// Gives complaints the places of their settings.
    pub(crate) fn locate(&self, complaints: Vec<Complaint>) -> Vec<Complaint> {
        let find = |complaint: Complaint| {
            let place = complaint.place.or_else(|| self.at.get(&complaint.setting).copied());
            Complaint { place, ..complaint }
        };
        complaints.into_iter().map(find).collect()
    }
}

/// Reads a file's text.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn read(text: &str) -> Result<(File, Places), Vec<Complaint>> {
    let tree = DeTable::parse(text).map_err(|error| vec![located(&error, text)])?;
    let mut places = Places::default();
    let mut unknown = Vec::new();
    walk(tree.get_ref(), &schema(), "", text, &mut places, &mut unknown);
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let file = toml::from_str(text).map_err(|error| vec![located(&error, text)])?;
    Ok((file, places))
}

/// The JSON schema of the file, with everything in place and nothing by reference.
pub(crate) fn schema() -> Value {
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<File>().to_value()
}

/// The schema of a member, through whatever says that it may be absent.
pub(crate) fn member<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    alternatives(schema).find_map(|schema| schema.get("properties")?.get(name))
}

/// The names of all members.
pub(crate) fn members(schema: &Value) -> Vec<&str> {
    alternatives(schema)
        .filter_map(|schema| schema.get("properties")?.as_object())
        .flat_map(|members| members.keys().map(String::as_str))
        .collect()
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let several = schema.get("anyOf").and_then(Value::as_array);
    std::iter::once(schema).chain(several.into_iter().flatten())
}

fn walk(
    table: &DeTable<'_>,
    schema: &Value,
    prefix: &str,
    text: &str,
    places: &mut Places,
    unknown: &mut Vec<Complaint>,
) {
    let names = members(schema);
    // A table without named members, such as the headers of a lookup, takes any name.
    if names.is_empty() {
        return;
    }
    for (key, value) in table.iter() {
        let name = key.get_ref().as_ref();
        let setting = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let place = place(text, key.span());
        places.at.insert(setting.clone(), place);
        let Some(schema) = member(schema, name) else {
            let what = match nearest(name, &names) {
                Some(near) => format!("there is no such setting; did you mean `{near}`?"),
                None => format!("there is no such setting; there are {}", names.join(", ")),
            };
            unknown.push(Complaint { place: Some(place), setting, what });
            continue;
        };
        match value.get_ref() {
            DeValue::Table(table) => walk(table, schema, &setting, text, places, unknown),
            DeValue::Array(array) => {
                let Some(item) = schema.get("items") else { continue };
                for (at, value) in array.iter().enumerate() {
                    if let DeValue::Table(table) = value.get_ref() {
                        walk(table, item, &format!("{setting}[{at}]"), text, places, unknown);
                    }
                }
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
    }
}

fn located(error: &toml::de::Error, text: &str) -> Complaint {
    Complaint {
        place: error.span().map(|span| place(text, span)),
        setting: String::new(),
        what: error.message().to_owned(),
    }
}

/// Line and column, counted from one.
fn place(text: &str, span: Range<usize>) -> (usize, usize) {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

/// The name that a misspelt one most likely stands for: at most a third of its letters away.
pub(crate) fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let distances = names.iter().map(|candidate| (distance(name, candidate), *candidate));
    let (far, near) = distances.min()?;
    (far <= name.len().max(3) / 3 + 1).then_some(near)
}

/// How many letters must be put in, taken out or exchanged.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (y, up) in b.chars().zip(row.iter().skip(1)) {
            let cost = (diagonal + usize::from(x != y)).min(left + 1).min(up + 1);
            diagonal = *up;
            left = cost;
            next.push(cost);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        read(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_settings_are_named_with_place_and_neighbour() {
        let text = "upstream = 'http://x'\n[defaults]\nleese = '3s'\n\n[[route]]\npath='/a'\n  tll = '1s'\n";
        let told = complaints(text);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("line 3, column 1") && told[0].contains("`lease`"), "{told:?}");
        assert!(told[1].contains("line 7, column 3") && told[1].contains("`ttl`"), "{told:?}");
        assert!(told[1].contains("route[0].tll"), "{told:?}");
    }

    #[test]
    fn wrong_values_are_named_with_their_place() {
        for (text, place, part) in [
            ("[defaults]\nttl = '3 parsecs'\n", "line 2, column 7", "length of time"),
            ("[defaults]\ndialect = 'klingon'\n", "line 2, column 11", "stripe"),
            ("listen = 3\n", "line 1, column 10", "string"),
            ("[[route]]\npath = '/x'\nkey = 'maybe'\n", "line 3, column 7", "optional"),
            ("listen = \n", "line 1", ""),
        ] {
            let told = complaints(text).join("\n");
            assert!(told.contains(place) && told.contains(part), "{text}: {told}");
        }
    }

    #[test]
    fn a_far_name_is_not_guessed() {
        assert_eq!(nearest("leese", &["lease", "ttl"]), Some("lease"));
        assert_eq!(nearest("completely_other", &["lease", "ttl"]), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn free_tables_take_any_name() {
        let text = "[reconcile]\nurl='http://x/{id}'\n[reconcile.headers]\nAnything='1'\n";
        assert!(read(text).is_ok(), "{:?}", complaints(text));
    }
}
