//! What does a provider's JSON document say about what nobody knows?
//!
//! A provider that is asked, or that sends word by itself, speaks of its own states: `succeeded`, `void`, `2`. [`DocumentRules`] say
//! what they mean. Nothing here asks anybody: the rules take the bytes of a document and give a [`DocumentVerdict`].
//!
//! | outcome | meaning |
//! | --- | --- |
//! | executed | it was done; the document may hold the answer to replay |
//! | declined | it was done, and its end is a failure for good; that failure is the answer |
//! | not executed | it was not done and cannot be any more: the provider's own word is the proof |
//! | pending | it is under way |
//! | inconclusive | nothing was learned, for a reason that an operator can read |
//!
//! How values compare: a text equals the same text, byte by byte; a number equals a number of the same value, however it is
//! written (`1`, `1.0`, `10e-1`), without rounding; a boolean equals the same boolean; and a value never equals one of another type.
//! A pointer that meets nothing, or a member that stands there twice, is never a verdict. A document that fits the rules of two outcomes is
//! inconclusive.
//!
//! ```
//! use retrysafe::core::canonical::Pointer;
//! use retrysafe::evidence::{Condition, DocumentRules, DocumentVerdict, RuleValue, WantedValue};
//!
//! let status = |value: &str| {
//!     let pointer = Pointer::parse("/status").expect("a pointer");
//!     vec![vec![Condition { pointer, wanted: WantedValue::OneOf(vec![RuleValue::text(value)]) }]]
//! };
//! let rules = DocumentRules {
//!     executed: status("succeeded"),
//!     not_executed: status("void"),
//!     ..DocumentRules::default()
//! };
//! assert_eq!(rules.read(br#"{"status": "void"}"#), DocumentVerdict::NotExecuted);
//! assert!(matches!(rules.read(b"<html>"), DocumentVerdict::Inconclusive(_)));
//! ```

mod answer;
mod condition;
mod excerpt;
mod locate;
mod template;

use retrysafe_core::machine::{Evidence, Proof};
use retrysafe_core::record::Answer;
use retrysafe_core::response::StoredResponse;

pub use answer::{AnswerBody, AnswerRule, AnswerStatus};
pub use condition::{Condition, RuleValue, WantedValue};
pub use excerpt::{EXCERPT_BYTES_MAX, excerpt};
pub use locate::{JsonDocument, JsonItem};
pub use template::{TemplateError, TextTemplate};

/// How many values of a document a reason names.
const VALUES_SHOWN: usize = 3;

/// What the states of a provider's documents mean.
///
/// Each outcome has a list of alternatives, and each alternative a list of conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentRules {
    /// It was done.
    pub executed: Vec<Vec<Condition>>,
    /// How the answer is made of what was executed. None: the mere fact is known, and nothing can be replayed.
    pub answer: Option<AnswerRule>,
    /// It was done, and its end is a failure for good.
    pub declined: Vec<Vec<Condition>>,
    /// How the answer is made of what was declined. Without it nothing counts as declined.
    pub declined_answer: Option<AnswerRule>,
    /// It was not done and cannot be any more.
    pub not_executed: Vec<Vec<Condition>>,
    /// It is under way.
    pub pending: Vec<Vec<Condition>>,
}

/// What a document says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentVerdict {
    /// It was done: the answer where the rules make one, else the mere fact.
    Executed(Answer),
    /// It was done, and this failure is its answer.
    Declined(StoredResponse),
    /// It was not done and cannot be any more.
    NotExecuted,
    /// It is under way.
    Pending,
    /// Nothing was learned, for this reason.
    Inconclusive(Box<str>),
}

/// The outcomes that rules can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuledOutcome {
    /// See [`DocumentRules::executed`].
    Executed,
    /// See [`DocumentRules::declined`].
    Declined,
    /// See [`DocumentRules::not_executed`].
    NotExecuted,
    /// See [`DocumentRules::pending`].
    Pending,
}

impl RuledOutcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Executed, Self::Declined, Self::NotExecuted, Self::Pending];

    /// Its name, as settings write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Declined => "declined",
            Self::NotExecuted => "not_executed",
            Self::Pending => "pending",
        }
    }
}

impl DocumentRules {
    /// The alternatives of an outcome.
    pub fn of(&self, outcome: RuledOutcome) -> &[Vec<Condition>] {
        match outcome {
            RuledOutcome::Executed => &self.executed,
            RuledOutcome::Declined => &self.declined,
            RuledOutcome::NotExecuted => &self.not_executed,
            RuledOutcome::Pending => &self.pending,
        }
    }

    /// Two outcomes that the same document would fit, and what it would have to hold; none if no such pair can be seen. Rules about
    /// different parts of a document may still both fit one: that document is inconclusive then.
    pub fn conflict(&self) -> Option<(RuledOutcome, RuledOutcome, String)> {
        for (at, one) in RuledOutcome::ALL.into_iter().enumerate() {
            for other in RuledOutcome::ALL.into_iter().skip(at + 1) {
                let mut pairs =
                    self.of(one).iter().flat_map(|a| self.of(other).iter().map(move |b| (a, b)));
                if let Some(shared) = pairs.find_map(|(a, b)| condition::shared(a, b)) {
                    return Some((one, other, shared));
                }
            }
        }
        None
    }

    /// What these bytes say.
    pub fn read(&self, document: &[u8]) -> DocumentVerdict {
        match JsonDocument::parse(document) {
            Some(document) => self.read_document(&document),
            None => DocumentVerdict::Inconclusive("the answer is not JSON".into()),
        }
    }

    /// What a document says.
    pub fn read_document(&self, document: &JsonDocument<'_>) -> DocumentVerdict {
        let is_fitting = |outcome: &RuledOutcome| fits(self.of(*outcome), document);
        let fitting: Vec<RuledOutcome> = RuledOutcome::ALL.into_iter().filter(is_fitting).collect();
        let made = match fitting.as_slice() {
            [] => Err(self.nothing_fits(document)),
            [RuledOutcome::Executed] => {
                let made = self.answer.as_ref().map_or(Ok(None), |rule| rule.make(document));
                let fact = Answer::NotKept { status: None, location: None };
                made.map(|answer| DocumentVerdict::Executed(answer.map_or(fact, Answer::Kept)))
                    .map_err(|why| format!("executed, but {why}"))
            }
            [RuledOutcome::Declined] => {
                let made =
                    self.declined_answer.as_ref().map_or(Ok(None), |rule| rule.make(document));
                let made =
                    made.and_then(|answer| answer.ok_or_else(|| "there is no answer".into()));
                made.map(DocumentVerdict::Declined).map_err(|why| format!("declined, but {why}"))
            }
            [RuledOutcome::NotExecuted] => Ok(DocumentVerdict::NotExecuted),
            [RuledOutcome::Pending] => Ok(DocumentVerdict::Pending),
            [one, other, ..] => Err(format!(
                "the rules of `{}` and of `{}` both fit the document",
                one.name(),
                other.name()
            )),
        };
        made.unwrap_or_else(|why| DocumentVerdict::Inconclusive(why.into()))
    }

    /// Why no rule fits: what stands where the rules look.
    fn nothing_fits(&self, document: &JsonDocument<'_>) -> String {
        let mut looked = Vec::new();
        let alternatives = RuledOutcome::ALL.into_iter().flat_map(|outcome| self.of(outcome));
        for condition in alternatives.flatten() {
            if !looked.contains(&&condition.pointer) {
                looked.push(&condition.pointer);
            }
        }
        let shown = looked.iter().take(VALUES_SHOWN).map(|pointer| document.describe(pointer));
        let shown: Vec<String> = shown.collect();
        format!("no rule fits: {}", shown.join(", "))
    }
}

impl DocumentVerdict {
    /// What is proven about a request, if the document is about that request as a whole.
    ///
    /// # Errors
    ///
    /// Why nothing is proven.
    pub fn about_request(self) -> Result<Evidence, Box<str>> {
        match self {
            Self::Executed(answer) => Ok(Evidence::Executed(answer)),
            Self::Declined(answer) => Ok(Evidence::Executed(Answer::Kept(answer))),
            Self::NotExecuted => Ok(Evidence::NotExecuted(Proof::burnt())),
            Self::Pending => Err("pending".into()),
            Self::Inconclusive(why) => Err(why),
        }
    }

    /// What is proven about the call that a flow was making, if the document is about that call. Its result is the body of the answer,
    /// and the flow goes on with it, declined or not. The flow is not completed: phases are missing.
    ///
    /// # Errors
    ///
    /// Why nothing is proven.
    pub fn about_call(self) -> Result<Evidence, Box<str>> {
        match self {
            Self::Executed(Answer::Kept(answer)) | Self::Declined(answer) => {
                Ok(Evidence::CallExecuted(answer.body))
            }
            Self::Executed(Answer::NotKept { .. }) => {
                Err("executed, but no rule takes the call's result from the document".into())
            }
            Self::NotExecuted => Ok(Evidence::NotExecuted(Proof::burnt())),
            Self::Pending => Err("pending".into()),
            Self::Inconclusive(why) => Err(why),
        }
    }
}

/// Whether a document fits one of these alternatives. No alternative at all fits nothing.
pub fn fits(alternatives: &[Vec<Condition>], document: &JsonDocument<'_>) -> bool {
    alternatives.iter().any(|all| condition::all_hold(all, document))
}

#[cfg(test)]
mod tests;
