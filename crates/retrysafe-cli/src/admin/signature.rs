//! Who decided, why, and by which evidence?
//!
//! A record's timeline keeps one text for a decision. It holds the operator's reason and then, in brackets, the name of the token
//! that was shown, the name that was merely claimed beside it, and the evidence. The brackets are written here and nowhere else, so
//! the last pair of an operator's decision is never the operator's own words.

use retrysafe_core::record::REASON_BYTES_MAX;
use serde_json::{Value, json};

use super::error::Refused;
use super::operators::Operator;
use crate::config::NAME_BYTES_MAX;
use crate::harmless::is_harmless;

/// The longest reason that an operator may give, in bytes. Names and evidence stand behind it, and nothing of them is ever cut.
pub(crate) const OWN_REASON_BYTES_MAX: usize = 300;

/// What every decision needs at the most beside the reason: two names, the evidence, and the words between.
const REST_BYTES_MAX: usize = 2 * NAME_BYTES_MAX + 70;

const _: () = assert!(OWN_REASON_BYTES_MAX + REST_BYTES_MAX <= REASON_BYTES_MAX);

/// A decision's reason, signed.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    reason: String,
    who: String,
}

impl Signature {
    /// The reason that is given, with the name of whoever gives it.
    ///
    /// # Errors
    ///
    /// If there is no reason, or one that cannot be kept.
    pub(crate) fn new(
        operator: &Operator,
        claimed: Option<&str>,
        reason: Option<&str>,
    ) -> Result<Self, Refused> {
        let reason = reason.map(str::trim).filter(|reason| !reason.is_empty());
        let reason = reason.ok_or_else(|| Refused::Invalid("say why, in `reason`".into()))?;
        check("reason", reason, OWN_REASON_BYTES_MAX)?;
        let claimed = claimed.map(str::trim).filter(|name| !name.is_empty());
        let who = match claimed {
            Some(claimed) => {
                check("operator", claimed, NAME_BYTES_MAX)?;
                if claimed.contains([';', '[', ']']) {
                    let why = "`operator` has a bracket or a semicolon; leave it out";
                    return Err(Refused::Invalid(why.into()));
                }
                format!("{}, says {claimed}", operator.name)
            }
            None => operator.name.to_string(),
        };
        Ok(Self { reason: reason.to_owned(), who })
    }

    /// The reason as it was given.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// Who decides: the token's name, and what is claimed beside it.
    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    /// What a timeline keeps.
    pub(crate) fn text(&self, evidence: Option<&str>) -> String {
        match evidence {
            Some(evidence) => format!("{} [{}; {evidence}]", self.reason, self.who),
            None => format!("{} [{}]", self.reason, self.who),
        }
    }
}

/// Members that tell a kept text apart again. A text without brackets is a reason alone.
pub(crate) fn parts(text: &str) -> Value {
    let signed = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
    match signed {
        None => json!({ "reason": text }),
        Some((reason, signed)) => {
            let (who, evidence) = match signed.split_once("; ") {
                Some((who, evidence)) => (who, Some(evidence)),
                None => (signed, None),
            };
            json!({"reason": reason, "operator": who, "evidence": evidence})
        }
    }
}

fn check(name: &str, text: &str, bytes_max: usize) -> Result<(), Refused> {
    if text.len() > bytes_max {
        return Err(Refused::Invalid(format!("`{name}` is longer than {bytes_max} bytes")));
    }
    if !text.chars().all(is_harmless) {
        let why = format!("`{name}` has a character that a terminal would obey; leave it out");
        return Err(Refused::Invalid(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

    fn alice() -> Operator {
        Operator { name: "alice".into(), role: Role::Decide }
    }

    #[test]
    fn a_kept_text_tells_reason_operator_and_evidence_apart() {
        let signed = Signature::new(&alice(), Some("root"), Some(" it is there [x; y] ")).unwrap();
        let text = signed.text(Some("the mere fact"));
        assert_eq!(text, "it is there [x; y] [alice, says root; the mere fact]");
        assert_eq!(
            parts(&text),
            json!({"reason": "it is there [x; y]", "operator": "alice, says root", "evidence": "the mere fact"})
        );
        let plain = Signature::new(&alice(), Some(" "), Some("gone")).unwrap();
        assert_eq!(parts(&plain.text(None))["operator"], "alice");
        assert_eq!(parts("found as executed"), json!({"reason": "found as executed"}));
    }

    #[test]
    fn whatever_could_not_be_kept_or_shown_is_refused() {
        let long = "x".repeat(OWN_REASON_BYTES_MAX + 1);
        let megabyte = "x".repeat(1 << 20);
        for reason in
            [None, Some(""), Some("  \n"), Some(&*long), Some(&*megabyte), Some("a\u{1b}[2Jb")]
        {
            assert!(Signature::new(&alice(), None, reason).is_err(), "{reason:?}");
        }
        for claimed in ["a\u{202e}b", "a\nb", "x]", "[x", "a;b", &"x".repeat(65)] {
            assert!(Signature::new(&alice(), Some(claimed), Some("x")).is_err(), "{claimed:?}");
        }
        let longest = "x".repeat(OWN_REASON_BYTES_MAX);
        let name = Operator { name: "n".repeat(NAME_BYTES_MAX).into(), role: Role::Decide };
        let signed = Signature::new(&name, Some(&"c".repeat(NAME_BYTES_MAX)), Some(&longest));
        let text =
            signed.unwrap().text(Some("answer: the late result of fence 18446744073709551615"));
        assert!(text.len() <= REASON_BYTES_MAX, "{}", text.len());
    }
}
