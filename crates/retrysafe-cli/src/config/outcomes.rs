//! What do the states of a provider's documents mean? (`outcomes` of a lookup or of a webhook)
//!
//! ```toml
//! [reconcile.outcomes]
//! pending.when = { "/status" = ["processing", "requires_action"] }
//! not_executed.when = { "/status" = "canceled", "/amount_received" = 0 }
//!
//! [reconcile.outcomes.executed]
//! when = { "/status" = "succeeded" }
//! status = 201
//! headers = { Location = "/charges/{/id}" }
//! body = "/charge"
//!
//! [reconcile.outcomes.declined]
//! when = [{ "/status" = "failed" }, { "/error/type" = "card_error" }]
//! status = 402
//! template = '{"error": {/error/code}}'
//! ```

use std::collections::BTreeMap;

use http::{HeaderName, StatusCode};
use retrysafe::evidence::{
    AnswerBody, AnswerRule, AnswerStatus, Condition, DocumentRules, RuleValue, RuledOutcome,
    TextTemplate, WantedValue,
};
use retrysafe_core::canonical::Pointer;
use retrysafe_core::response::is_stripped;

pub(crate) use super::outcomes_file::{
    AnsweredFile, OutcomesFile, StatusFile, ValueFile, WantedFile, WhenFile,
};
use super::source::Complaint;

impl OutcomesFile {
    /// The rules, and what is wrong with them. `at` is the table, such as `reconcile.outcomes`.
    pub(crate) fn read(&self, at: &str, wrong: &mut Vec<Complaint>) -> DocumentRules {
        let mut complain = |setting: &str, what: String| {
            wrong.push(Complaint::new(format!("{at}.{setting}"), what));
        };
        let mut rules = DocumentRules::default();
        for (outcome, when) in [
            (RuledOutcome::Executed, &self.executed.when),
            (RuledOutcome::Declined, &self.declined.when),
            (RuledOutcome::NotExecuted, &self.not_executed.when),
            (RuledOutcome::Pending, &self.pending.when),
        ] {
            let read = when.as_ref().map_or(Ok(Vec::new()), WhenFile::read);
            let read = read
                .map_err(|what| complain(&format!("{}.when", outcome.name()), what))
                .unwrap_or_default();
            match outcome {
                RuledOutcome::Executed => rules.executed = read,
                RuledOutcome::Declined => rules.declined = read,
                RuledOutcome::NotExecuted => rules.not_executed = read,
                RuledOutcome::Pending => rules.pending = read,
            }
        }
        rules.answer = read_answer("executed", &self.executed, &mut complain);
        rules.declined_answer = read_answer("declined", &self.declined, &mut complain);
        if self.declined.when.is_some() && !self.declined.has_answer() {
            let what = "is not set: what was declined is answered with that failure from now on, so say with which \
                        status, and with which `body` or `template`";
            complain("declined.status", what.into());
        }
        let is_empty = RuledOutcome::ALL.into_iter().all(|outcome| rules.of(outcome).is_empty());
        if is_empty && wrong.is_empty() {
            let what = "says nothing: without `executed.when`, `declined.when` or `not_executed.when` nothing is ever decided";
            wrong.push(Complaint::new(at, what));
        }
        if let Some((one, other, shared)) = rules.conflict() {
            let what = format!(
                "a document with {shared} fits `{}.when` too; a document means one thing",
                one.name()
            );
            wrong.push(Complaint::new(format!("{at}.{}.when", other.name()), what));
        }
        rules
    }
}

impl AnsweredFile {
    fn has_answer(&self) -> bool {
        self.status.is_some() || self.response.is_some()
    }
}

fn read_answer(
    outcome: &str,
    file: &AnsweredFile,
    complain: &mut impl FnMut(&str, String),
) -> Option<AnswerRule> {
    let AnsweredFile { when, status, headers, body, template, response } = file;
    let has_parts = status.is_some() || !headers.is_empty() || body.is_some() || template.is_some();
    if when.is_none() && (has_parts || response.is_some()) {
        complain(&format!("{outcome}.when"), "is not set: when is this the answer?".into());
    }
    if let Some(pointer) = response {
        if has_parts {
            let what = "is a whole answer; leave `status`, `headers`, `body` and `template` out, or leave this out";
            complain(&format!("{outcome}.response"), what.into());
        }
        let pointer = read_pointer(pointer);
        return pointer
            .map(AnswerRule::Whole)
            .map_err(|what| complain(&format!("{outcome}.response"), what))
            .ok();
    }
    if !has_parts {
        return None;
    }
    let status = match status {
        None => Some(AnswerStatus::Fixed(StatusCode::default())),
        Some(StatusFile::Fixed(number)) => {
            let status = StatusCode::from_u16(*number).ok();
            let status = status.filter(|status| (200..=599).contains(&status.as_u16()));
            if status.is_none() {
                complain(&format!("{outcome}.status"), format!("{number} is no final status"));
            }
            status.map(AnswerStatus::Fixed)
        }
        Some(StatusFile::At(pointer)) => read_pointer(pointer)
            .map(AnswerStatus::At)
            .map_err(|what| complain(&format!("{outcome}.status"), what))
            .ok(),
    };
    let mut read_headers = Vec::new();
    for (name, text) in headers {
        match read_header(name, text) {
            Ok(header) => read_headers.push(header),
            Err(what) => complain(&format!("{outcome}.headers.{name}"), what),
        }
    }
    let body = match (body, template) {
        (None, None) => Some(AnswerBody::Empty),
        (Some(_), Some(_)) => {
            complain(&format!("{outcome}.template"), "`body` is set as well".into());
            None
        }
        (Some(pointer), None) => read_pointer(pointer)
            .map(AnswerBody::At)
            .map_err(|what| complain(&format!("{outcome}.body"), what))
            .ok(),
        (None, Some(text)) => TextTemplate::parse_json(text)
            .map(AnswerBody::Template)
            .map_err(|error| complain(&format!("{outcome}.template"), error.to_string()))
            .ok(),
    };
    Some(AnswerRule::Parts { status: status?, headers: read_headers, body: body? })
}

fn read_header(name: &str, text: &str) -> Result<(HeaderName, TextTemplate), String> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is not a header name")?;
    if is_stripped(&name) {
        return Err("is never replayed; leave it out".into());
    }
    Ok((name, TextTemplate::parse(text).map_err(|error| error.to_string())?))
}

/// A JSON pointer, or why it is none.
pub(super) fn read_pointer(text: &str) -> Result<Pointer, String> {
    Pointer::parse(text)
        .map_err(|error| format!("{text:?} is not a JSON pointer such as /state: {error}"))
}

impl WhenFile {
    /// The conditions, or what is wrong with them.
    pub(super) fn read(&self) -> Result<Vec<Vec<Condition>>, String> {
        let tables = match self {
            Self::One(table) => std::slice::from_ref(table),
            Self::Several(tables) => tables,
        };
        if tables.is_empty() || tables.iter().any(BTreeMap::is_empty) {
            return Err("is empty: it would fit every document, or none".into());
        }
        let read = |table: &BTreeMap<String, WantedFile>| {
            table
                .iter()
                .map(|(place, wanted)| {
                    Ok(Condition { pointer: read_pointer(place)?, wanted: wanted.read(place)? })
                })
                .collect::<Result<Vec<_>, String>>()
        };
        tables.iter().map(read).collect()
    }
}

impl WantedFile {
    fn read(&self, place: &str) -> Result<WantedValue, String> {
        let values = match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
            Self::Presence { present: true } => return Ok(WantedValue::Present),
            Self::Presence { present: false } => {
                return Err(format!(
                    "{place}: that something is missing is no verdict; there is only {{ present = true }}"
                ));
            }
        };
        if values.is_empty() {
            return Err(format!("{place}: is an empty list, which nothing equals"));
        }
        values
            .iter()
            .map(|value| value.read(place))
            .collect::<Result<_, _>>()
            .map(WantedValue::OneOf)
    }
}

impl ValueFile {
    fn read(&self, place: &str) -> Result<RuleValue, String> {
        match self {
            Self::Boolean(value) => Ok(RuleValue::boolean(*value)),
            Self::Integer(number) => Ok(RuleValue::integer(*number)),
            Self::Text(text) => Ok(RuleValue::text(text)),
            Self::Fraction(number) => RuleValue::number(&number.to_string())
                .ok_or_else(|| format!("{place}: {number} is not a number that JSON has")),
        }
    }
}

#[cfg(test)]
mod tests {
    use retrysafe::evidence::DocumentVerdict;
    use retrysafe_core::record::Answer;

    use super::*;

    fn read(text: &str) -> (DocumentRules, String) {
        let file: OutcomesFile = toml::from_str(text).unwrap();
        let mut wrong = Vec::new();
        let rules = file.read("reconcile.outcomes", &mut wrong);
        (rules, wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    const TABLE: &str = r#"
        pending.when = { "/status" = ["processing", 3] }
        not_executed.when = { "/status" = "canceled", "/received" = 0.0 }
        [executed]
        when = { "/status" = "succeeded" }
        status = 201
        headers = { Location = "/charges/{/id}" }
        body = "/charge"
        [declined]
        when = [{ "/status" = "failed" }, { "/error" = { present = true } }]
        status = "/http/status"
        template = '{"error": {/error/code}}'
    "#;

    #[test]
    fn a_table_reads_as_people_write_it_and_is_written_back() {
        let (rules, told) = read(TABLE);
        assert_eq!(told, "");
        let paid = rules.read(br#"{"status":"succeeded","id":7,"charge":{"id":7}}"#);
        let DocumentVerdict::Executed(Answer::Kept(answer)) = paid else { panic!("{paid:?}") };
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (201, &br#"{"id":7}"#[..]));
        let declined = rules.read(br#"{"error":{"code":"x"},"http":{"status":402}}"#);
        let DocumentVerdict::Declined(answer) = declined else { panic!("{declined:?}") };
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (402, &br#"{"error": "x"}"#[..]));
        assert_eq!(rules.read(br#"{"status":3}"#), DocumentVerdict::Pending);
        let void = rules.read(br#"{"status":"canceled","received":0}"#);
        assert_eq!(void, DocumentVerdict::NotExecuted);
        let file: OutcomesFile = toml::from_str(TABLE).unwrap();
        let written = toml::to_string(&file).unwrap();
        assert_eq!(toml::from_str::<OutcomesFile>(&written).unwrap(), file, "{written}");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, parts) in [
            ("", &["`reconcile.outcomes`: says nothing"][..]),
            ("pending.when = { status = 1 }", &["pending.when", "not a JSON pointer"]),
            ("pending.when = {}", &["pending.when", "is empty"]),
            ("pending.when = []", &["pending.when", "is empty"]),
            ("pending.when = { \"/s\" = [] }", &["/s: is an empty list"]),
            ("pending.when = { \"/s\" = { present = false } }", &["missing is no verdict"]),
            ("pending.when = { \"/s\" = inf }", &["not a number that JSON has"]),
            ("declined.when = { \"/s\" = 1 }", &["declined.status", "is not set"]),
            ("executed.status = 201", &["executed.when", "is not set"]),
            ("executed = { when = { \"/s\" = 1 }, status = 99 }", &["executed.status", "99"]),
            (
                "executed = { when = { \"/s\" = 1 }, status = \"x\" }",
                &["executed.status", "pointer"],
            ),
            (
                "executed = { when = { \"/s\" = 1 }, body = \"/a\", template = '1' }",
                &["executed.template", "`body`"],
            ),
            (
                "executed = { when = { \"/s\" = 1 }, response = \"/a\", status = 200 }",
                &["executed.response", "whole answer"],
            ),
            (
                "executed = { when = { \"/s\" = 1 }, template = '{\"a\": \"{/b}\"}' }",
                &["executed.template", "inside a text"],
            ),
            (
                "executed = { when = { \"/s\" = 1 }, headers = { Date = \"x\" } }",
                &["executed.headers.Date", "never replayed"],
            ),
            (
                "executed.when = { \"/s\" = [1, 2] }\npending.when = { \"/s\" = 2 }",
                &["pending.when", "/s = 2 fits `executed.when` too"],
            ),
        ] {
            let (_, told) = read(text);
            for part in parts {
                assert!(told.contains(part), "{text}: {told:?}");
            }
        }
        for unreadable in [
            "pending.when = 1",
            "pending.when = [1]",
            "pending.when = { \"/s\" = { present = 1 } }",
            "pending.when = { \"/s\" = [[1]] }",
            "executed.status = true",
            "executed.stats = 1",
        ] {
            assert!(toml::from_str::<OutcomesFile>(unreadable).is_err(), "{unreadable}");
        }
    }
}
