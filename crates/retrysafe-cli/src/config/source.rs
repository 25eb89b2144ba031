//! Where does a setting stand, and is there such a setting at all?
//!
//! The text is read into a tree that keeps the place of every setting. The tree is walked along the
//! JSON schema of the typed [`File`], so that an unknown setting is reported with its line, its column
//! and the nearest name. Then the tree is read into the [`File`]. A value that does not fit is reported
//! and taken out, and the rest is read again, so that one reading reports everything that is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize as _;
use serde_json::Value;
use toml::de::{DeTable, DeValue, Deserializer};

use super::file::File;
use super::wrong_kind;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// Who has said it.
    pub origin: Origin,
    /// The setting, such as `defaults.lease`.
    pub setting: String,
    /// What is wrong with it, and how it is mended.
    pub what: String,
}

/// Who has said something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody: it is missing. Or it was not looked up yet.
    Nobody,
    /// The file, at this line and column.
    File(usize, usize),
    /// A variable of the environment.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

/// Who has said which setting.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    of: BTreeMap<String, Origin>,
    /// Where in the text the values stand.
    values: BTreeMap<String, Range<usize>>,
}

/// What a text says, as far as it can be read.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub file: File,
    pub origins: Origins,
    pub complaints: Vec<Complaint>,
    /// Whether parts of the text could not be read at all.
    pub has_gaps: bool,
}

impl Complaint {
    /// Something wrong with a setting, to be located later.
    pub(crate) fn new(setting: impl Into<String>, what: impl Into<String>) -> Self {
        Self { origin: Origin::Nobody, setting: setting.into(), what: what.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Nobody => {}
            Origin::File(line, column) => write!(f, "line {line}, column {column}: ")?,
            Origin::Variable(name) => write!(f, "{name}: ")?,
            Origin::Flag(name) => write!(f, "{name}: ")?,
        }
        if !self.setting.is_empty() {
            write!(f, "`{}`: ", self.setting)?;
        }
        f.write_str(&self.what)
    }
}

impl Origins {
    /// Notes that something else than the file has said a setting.
    pub(crate) fn replace(&mut self, setting: &str, origin: Origin) {
        self.of.insert(setting.to_owned(), origin);
    }

    /// Gives complaints the origins of their settings. A member that is missing is looked for where
    /// its table stands.
    pub(crate) fn locate(&self, complaints: Vec<Complaint>) -> Vec<Complaint> {
        let find = |complaint: Complaint| {
            let table = complaint.setting.rsplit_once('.').map_or("", |(table, _)| table);
            let found = self.of.get(&complaint.setting).or_else(|| self.of.get(table));
            match (&complaint.origin, found) {
                (Origin::Nobody, Some(origin)) => Complaint { origin: origin.clone(), ..complaint },
                (_, _) => complaint,
            }
        };
        complaints.into_iter().map(find).collect()
    }

    /// The innermost setting whose value holds a place in the text.
    fn holder(&self, at: usize) -> Option<&str> {
        let holders = self.values.iter().filter(|(_, span)| span.contains(&at));
        holders.min_by_key(|(_, span)| span.len()).map(|(setting, _)| setting.as_str())
    }
}

/// Reads a file's text, and everything that is wrong with it.
pub(crate) fn read(text: &str) -> Source {
    let (mut tree, errors) = DeTable::parse_recoverable(text);
    let broken = errors.iter().map(|error| complaint(error, &Origins::default(), text));
    let mut complaints: Vec<Complaint> = broken.collect();
    let broken_lines: Vec<usize> = complaints.iter().filter_map(Complaint::line).collect();
    let mut has_gaps = !complaints.is_empty();
    let mut walk = Walk { text, broken_lines, origins: Origins::default(), complaints: Vec::new() };
    let schema = schema();
    walk.table(tree.get_mut(), &schema, "");
    let Walk { origins, complaints: unknown, .. } = walk;
    complaints.extend(unknown);
    let file = loop {
        match File::deserialize(Deserializer::from(tree.clone())) {
            Ok(file) => break file,
            Err(error) => {
                let mut told = complaint(&error, &origins, text);
                let written = error.span().and_then(|span| text.get(span)).unwrap_or_default();
                let of_setting = at(&schema, &told.setting);
                let cure = wrong_kind::cure(&told.what, written, &told.setting, of_setting);
                told.what = cure.unwrap_or(told.what);
                let is_out = take_out(tree.get_mut(), "", &told.setting);
                complaints.push(told);
                if !is_out {
                    has_gaps = true;
                    break File::default();
                }
            }
        }
    };
    Source { file, origins, complaints, has_gaps }
}

impl Complaint {
    fn line(&self) -> Option<usize> {
        match self.origin {
            Origin::File(line, _) => Some(line),
            Origin::Nobody | Origin::Variable(_) | Origin::Flag(_) => None,
        }
    }
}

/// The JSON schema of the file, with everything in place and nothing by reference.
pub(crate) fn schema() -> Value {
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<File>().to_value()
}

/// The schema of a member, through whatever says that it may be absent. A table that takes any name, such as `effects`, has one
/// schema for all its members.
pub(crate) fn member<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let named = alternatives(schema).find_map(|schema| schema.get("properties")?.get(name));
    let any = || schema.get("additionalProperties").filter(|any| any.is_object());
    named.or_else(any)
}

/// The schema of a setting by its whole name, such as `route[1].lease`.
fn at<'a>(schema: &'a Value, setting: &str) -> Option<&'a Value> {
    setting.split('.').try_fold(schema, |schema, name| match name.split_once('[') {
        None => member(schema, name),
        Some((list, _)) => {
            alternatives(member(schema, list)?).find_map(|schema| schema.get("items"))
        }
    })
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

/// One walk through a tree.
struct Walk<'a> {
    text: &'a str,
    /// What was made of the rest of such a line says nothing.
    broken_lines: Vec<usize>,
    origins: Origins,
    complaints: Vec<Complaint>,
}

impl Walk<'_> {
    /// Notes where every setting of a table stands, and takes out those that do not exist or could
    /// not be read.
    fn table(&mut self, table: &mut DeTable<'_>, schema: &Value, prefix: &str) {
        let names = members(schema);
        let mut unfit = Vec::new();
        for (key, value) in table.iter_mut() {
            let name = key.get_ref().as_ref();
            let setting = join(prefix, name);
            let (line, column) = place(self.text, key.span());
            let is_plain = !matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_));
            if is_plain && self.broken_lines.contains(&line) {
                unfit.push(key.clone());
                continue;
            }
            self.origins.of.insert(setting.clone(), Origin::File(line, column));
            self.origins.values.insert(setting.clone(), value.span());
            let what = match member(schema, name) {
                Some(inner) => self.value(value.get_mut(), inner, &setting).err(),
                None if names.is_empty() => None,
                None => Some(match nearest(name, &names) {
                    Some(near) => format!("there is no such setting; did you mean `{near}`?"),
                    None => format!("there is no such setting; there are {}", names.join(", ")),
                }),
            };
            if let Some(what) = what {
                unfit.push(key.clone());
                // After a broken line the reader may take a list of tables for a table.
                if self.broken_lines.is_empty() || is_plain {
                    let origin = Origin::File(line, column);
                    self.complaints.push(Complaint { origin, setting, what });
                }
            }
        }
        for key in unfit {
            table.remove(&key);
        }
    }

    /// Goes into a value.
    ///
    /// # Errors
    ///
    /// If it is a table where a list of tables belongs, or the other way.
    fn value(
        &mut self,
        value: &mut DeValue<'_>,
        schema: &Value,
        setting: &str,
    ) -> Result<(), String> {
        let item = alternatives(schema).find_map(|schema| schema.get("items"));
        let takes_tables = item.is_some_and(|item| !members(item).is_empty());
        match value {
            DeValue::Table(_) if takes_tables => {
                return Err(format!("there may be several of these: write [[{setting}]]"));
            }
            DeValue::Array(_) if !members(schema).is_empty() => {
                return Err(format!("there is only one of these: write [{setting}]"));
            }
            DeValue::Table(table) => self.table(table, schema, setting),
            DeValue::Array(array) => {
                for (at, value) in array.iter_mut().enumerate() {
                    let setting = format!("{setting}[{at}]");
                    let (line, column) = place(self.text, value.span());
                    if let (DeValue::Table(table), Some(item)) = (value.get_mut(), item) {
                        self.origins.of.insert(setting.clone(), Origin::File(line, column));
                        self.table(table, item, &setting);
                    }
                }
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
        Ok(())
    }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// Takes a setting out of a tree, and says whether it was there.
fn take_out(table: &mut DeTable<'_>, prefix: &str, setting: &str) -> bool {
    let found = table.keys().find(|key| join(prefix, key.get_ref()) == setting).cloned();
    if let Some(key) = found {
        return table.remove(&key).is_some();
    }
    table.iter_mut().any(|(key, value)| {
        let name = join(prefix, key.get_ref());
        match value.get_mut() {
            DeValue::Table(inner) => take_out(inner, &name, setting),
            DeValue::Array(array) => {
                array.iter_mut().enumerate().any(|(at, value)| match value.get_mut() {
                    DeValue::Table(inner) => take_out(inner, &format!("{name}[{at}]"), setting),
                    DeValue::String(_)
                    | DeValue::Integer(_)
                    | DeValue::Float(_)
                    | DeValue::Boolean(_)
                    | DeValue::Datetime(_)
                    | DeValue::Array(_) => false,
                })
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => false,
        }
    })
}

/// An error of the reader, with the setting that it is about.
fn complaint(error: &toml::de::Error, origins: &Origins, text: &str) -> Complaint {
    let span = error.span();
    let setting = span.as_ref().and_then(|span| origins.holder(span.start)).unwrap_or_default();
    let origin = match span {
        Some(span) => {
            let (line, column) = place(text, span);
            Origin::File(line, column)
        }
        None => Origin::Nobody,
    };
    Complaint { origin, setting: setting.to_owned(), what: error.message().to_owned() }
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
        let mut all = read(text).complaints;
        all.sort_by_key(Complaint::line);
        all.iter().map(ToString::to_string).collect()
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
            ("listen = 3\n", "line 1, column 10", "write a text"),
            ("[[route]]\npath = '/x'\nlease = 5\n", "line 3, column 9", "write \"5s\""),
            ("held_bytes_max = 1024\n", "line 1, column 18", "write \"1024B\""),
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
        assert_eq!(complaints(text), Vec::<String>::new());
    }

    #[test]
    fn a_table_of_tables_is_looked_into() {
        let text = "[effects.mail]\nurl = 'https://x'\nfailure_max = 3\n[effects.mail.signing]\nsecret = 'x'\n\
                    [effects.mail.headers]\nAnything = '1'\n";
        let told = complaints(text);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("line 3") && told[0].contains("`failures_max`"), "{told:?}");
        assert!(told[1].contains("`effects.mail.signing.secret`"), "{told:?}");
    }

    #[test]
    fn one_reading_reports_everything() {
        let text = "lisen = '1'\nthreads = 'many'\n[defaults]\nttl = 'soon'\nleese = '3s'\nkey = 3\n\
                    [[route]]\npath = '/a'\n[[route]]\npath = '/b'\nlease = 5\ntll = '1s'\n\
                    [reconcile]\nurl = '/l/{id}'\n[reconcile.headers]\nAny = 1\n";
        let told = complaints(text);
        let wanted = [
            (1, "lisen"),
            (2, "threads"),
            (4, "defaults.ttl"),
            (5, "defaults.leese"),
            (6, "defaults.key"),
            (11, "route[1].lease"),
            (12, "route[1].tll"),
            (16, "reconcile.headers.Any"),
        ];
        assert_eq!(told.len(), wanted.len(), "{told:#?}");
        for ((line, setting), told) in wanted.into_iter().zip(&told) {
            let place = format!("line {line},");
            let name = format!("`{setting}`");
            assert!(told.starts_with(&place) && told.contains(&name), "{setting}: {told}");
        }
        let source = read(text);
        assert!(!source.has_gaps);
        assert_eq!(source.file.route.len(), 2, "what is right is read");
        assert_eq!(source.file.route[1].path.as_deref(), Some("/b"));
    }

    #[test]
    fn a_broken_line_does_not_hide_the_others() {
        let text = "listen = \nthreads = 'many'\n[defaults]\nttl = = '1h'\n[[route]]\ntll = '1s'\n";
        let told = complaints(text).join("\n");
        assert!(read(text).has_gaps && !told.contains("`listen`"), "{told}");
        for line in ["line 1,", "line 2,", "line 4,", "line 6,"] {
            assert!(told.contains(line), "{line}: {told}");
        }
        let told = complaints("[defaults\nttl = 'soon'\n[[route]]\npath = '/a'\n").join("\n");
        assert!(told.starts_with("line 1,") && !told.contains("[[route]]"), "{told}");
    }

    #[test]
    fn a_table_is_not_a_list_of_tables() {
        let told = complaints("[route]\npath = '/a'\n[[admin]]\nlisten = 'off'\n");
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("[[route]]") && told[1].contains("write [admin]"), "{told:?}");
    }
}
