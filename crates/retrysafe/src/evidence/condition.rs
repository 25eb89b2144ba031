//! Does a value stand where a rule wants it?

use std::fmt;

use retrysafe_core::canonical::Pointer;

use super::locate::{JsonDocument, JsonItem};

/// One thing that must hold of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Where to look.
    pub pointer: Pointer,
    /// What must stand there.
    pub wanted: WantedValue,
}

/// What must stand at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedValue {
    /// One of these.
    OneOf(Vec<RuleValue>),
    /// Anything but `null`.
    Present,
}

/// A value that is compared with a document's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleValue(Comparable);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Comparable {
    Text(Box<str>),
    Number(DecimalNumber),
    Boolean(bool),
}

/// A number by its value: 0.`digits` × 10^`exponent`, without leading and trailing zeros. Zero has no digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DecimalNumber {
    is_negative: bool,
    digits: Box<str>,
    exponent: i64,
}

impl RuleValue {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self(Comparable::Text(text.into()))
    }

    /// A whole number.
    pub fn integer(number: i64) -> Self {
        let text = number.to_string();
        Self(DecimalNumber::read(&text).map_or(Comparable::Text(text.into()), Comparable::Number))
    }

    /// A number in decimal digits, such as `1.5`; none if it is not one.
    pub fn number(text: &str) -> Option<Self> {
        DecimalNumber::read(text).map(|number| Self(Comparable::Number(number)))
    }

    /// A boolean.
    pub const fn boolean(value: bool) -> Self {
        Self(Comparable::Boolean(value))
    }

    fn equals(&self, value: &JsonDocument<'_>) -> bool {
        match &self.0 {
            Comparable::Text(text) => value.text().as_deref() == Some(text),
            Comparable::Number(number) => {
                DecimalNumber::read(value.as_text()).as_ref() == Some(number)
            }
            Comparable::Boolean(wanted) => {
                value.as_text() == if *wanted { "true" } else { "false" }
            }
        }
    }
}

impl fmt::Display for RuleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Comparable::Text(text) => write!(f, "{text:?}"),
            Comparable::Number(number) => number.fmt(f),
            Comparable::Boolean(value) => value.fmt(f),
        }
    }
}

impl DecimalNumber {
    fn read(text: &str) -> Option<Self> {
        let (is_negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        if whole.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_start_matches('0');
        let leading = i64::try_from(all.len() - digits.len()).ok()?;
        let digits: Box<str> = digits.trim_end_matches('0').into();
        if digits.is_empty() {
            return Some(Self { is_negative: false, digits, exponent: 0 });
        }
        let whole = i64::try_from(whole.len()).ok()?;
        let exponent = exponent.checked_add(whole)?.checked_sub(leading)?;
        Some(Self { is_negative, digits, exponent })
    }
}

impl fmt::Display for DecimalNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_negative { "-" } else { "" };
        let length = i64::try_from(self.digits.len()).unwrap_or(i64::MAX);
        match (self.digits.is_empty(), usize::try_from(self.exponent.saturating_sub(length))) {
            (true, _) => f.write_str("0"),
            (false, Ok(zeros)) if zeros < 20 => {
                write!(f, "{sign}{}{}", self.digits, "0".repeat(zeros))
            }
            (false, _) => write!(f, "{sign}0.{}e{}", self.digits, self.exponent),
        }
    }
}

impl Condition {
    fn holds(&self, document: &JsonDocument<'_>) -> bool {
        match (document.at(&self.pointer), &self.wanted) {
            (JsonItem::Value(value), WantedValue::OneOf(values)) => {
                values.iter().any(|wanted| wanted.equals(&value))
            }
            (JsonItem::Value(value), WantedValue::Present) => !value.is_null(),
            (JsonItem::Nothing | JsonItem::Ambiguous, _) => false,
        }
    }
}

/// Whether all of them hold. No condition at all is no rule.
pub(super) fn all_hold(conditions: &[Condition], document: &JsonDocument<'_>) -> bool {
    !conditions.is_empty() && conditions.iter().all(|condition| condition.holds(document))
}

/// What a document would hold that fits both, where the places of one are among the places of the other. None if no document
/// can, or if that cannot be seen.
pub(super) fn shared(one: &[Condition], other: &[Condition]) -> Option<String> {
    let has_place = |list: &[Condition], place: &Pointer| {
        list.iter().any(|condition| condition.pointer == *place)
    };
    let is_within = |inner: &[Condition], outer: &[Condition]| {
        inner.iter().all(|condition| has_place(outer, &condition.pointer))
    };
    if one.is_empty() || other.is_empty() || !(is_within(one, other) || is_within(other, one)) {
        return None;
    }
    let mut held = Vec::new();
    for condition in one.iter().chain(other) {
        let mut here = one.iter().chain(other).filter(|also| also.pointer == condition.pointer);
        let all: Vec<&WantedValue> = here.by_ref().map(|also| &also.wanted).collect();
        held.push(format!("{} = {}", condition.pointer, common(&all)?));
    }
    held.sort();
    held.dedup();
    Some(held.join(" and "))
}

/// A value that is wanted by all of these, in words.
fn common(all: &[&WantedValue]) -> Option<String> {
    let lists = all.iter().filter_map(|wanted| match wanted {
        WantedValue::OneOf(values) => Some(values),
        WantedValue::Present => None,
    });
    let lists: Vec<&Vec<RuleValue>> = lists.collect();
    let Some((first, rest)) = lists.split_first() else { return Some("anything".into()) };
    let in_all = |value: &&RuleValue| rest.iter().all(|list| list.contains(value));
    first.iter().find(in_all).map(ToString::to_string)
}
