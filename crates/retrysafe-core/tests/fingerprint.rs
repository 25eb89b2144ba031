//! Do two requests have one fingerprint exactly when they mean the same?
//!
//! The judge in this file decides that without any code of the product: it reads JSON by plain recursive descent into values with
//! exact decimals, and asks the standard library, not `ryu-js`, how a double prints. Where it finds no lossless value, only
//! equal bytes are equal.
//!
//! A failing case is printed with its seed; proptest also writes it to a file beside this one and replays it first.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a broken judge should fail loudly"
)]

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue, header};
use proptest::collection::vec;
use proptest::prelude::*;
use retrysafe_core::canonical::{self, DEPTH_MAX};
use retrysafe_core::fingerprint::{Fingerprint, Pointer, Request, Rules};

fn print_with(rules: &Rules, body: &[u8]) -> Fingerprint {
    let headers = HeaderMap::from_iter([(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )]);
    rules.print(&Request {
        method: "POST",
        authority: "api.example",
        path_and_query: "/",
        headers: &headers,
        body,
    })
}

fn print(body: &[u8]) -> Fingerprint {
    print_with(&Rules::default(), body)
}

/// What a document says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(Vec<u16>),
    Array(Vec<Value>),
    Object(BTreeMap<Vec<u16>, Value>),
}

/// `digits * 10^power`; the digits neither begin nor end with a zero, and zero has none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: String,
    power: i128,
}

impl Decimal {
    /// Reads any decimal text, JSON's or Rust's.
    fn read(text: &str) -> Self {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let significant = all.trim_start_matches('0').trim_end_matches('0').to_owned();
        if significant.is_empty() {
            return Self { negative, digits: significant, power: 0 };
        }
        let ending_zeros = all.len() - all.trim_end_matches('0').len();
        // Texts of this file have powers that fit, except those meant to overflow everything.
        let power: i128 = power.parse().unwrap_or(i128::MAX / 2);
        let power = power + ending_zeros as i128 - fraction.len() as i128;
        Self { negative, digits: significant, power }
    }

    fn survives_a_double(&self) -> bool {
        if self.digits.is_empty() {
            return !self.negative;
        }
        let sign = if self.negative { "-" } else { "" };
        let double: f64 = format!("{sign}{}e{}", self.digits, self.power).parse().unwrap();
        double.is_finite() && Self::printed(double) == *self
    }

    /// The decimal as which ECMAScript prints a double: of the shortest that name it, the nearest to it.
    ///
    /// The standard library prints one of the shortest, but of two that are equally near it takes the larger one, where
    /// ECMAScript takes the even one: 1747189040345101.25 is printed with a final .2, not .3. Asked for so many digits, the standard
    /// library rounds the exact value to the even one, too.
    fn printed(double: f64) -> Self {
        let shortest = format!("{double:e}");
        let digits = Self::read(&shortest).digits.len();
        let nearest = format!("{double:.*e}", digits.saturating_sub(1));
        let names_it = nearest.parse() == Ok(double);
        Self::read(if names_it { &nearest } else { &shortest })
    }
}

/// The lossless value of a text, or `None`.
fn judge(text: &[u8]) -> Option<Value> {
    let mut judge = Judge { rest: str::from_utf8(text).ok()? };
    let value = judge.value(0)?;
    judge.rest.trim_start_matches(SPACES).is_empty().then_some(value)
}

const SPACES: [char; 4] = [' ', '\t', '\n', '\r'];

struct Judge<'a> {
    rest: &'a str,
}

impl Judge<'_> {
    /// Takes this token, after any spaces, if it is next.
    fn take(&mut self, token: &str) -> bool {
        let trimmed = self.rest.trim_start_matches(SPACES);
        match trimmed.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        for (word, value) in
            [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))]
        {
            if self.take(word) {
                return Some(value);
            }
        }
        if self.take("\"") {
            return self.text().map(Value::Text);
        }
        if self.take("[") {
            return self.array(depth + 1);
        }
        if self.take("{") {
            return self.object(depth + 1);
        }
        self.number()
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        let mut elements = Vec::new();
        if depth > DEPTH_MAX {
            return None;
        }
        if self.take("]") {
            return Some(Value::Array(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            if self.take("]") {
                return Some(Value::Array(elements));
            }
            self.take(",").then_some(())?;
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        let mut members = BTreeMap::new();
        if depth > DEPTH_MAX {
            return None;
        }
        if self.take("}") {
            return Some(Value::Object(members));
        }
        loop {
            self.take("\"").then_some(())?;
            let name = self.text()?;
            self.take(":").then_some(())?;
            let value = self.value(depth)?;
            members.insert(name, value).is_none().then_some(())?;
            if self.take("}") {
                return Some(Value::Object(members));
            }
            self.take(",").then_some(())?;
        }
    }

    fn text(&mut self) -> Option<Vec<u16>> {
        let mut units = Vec::new();
        let mut rest = self.rest.chars();
        loop {
            match rest.next()? {
                '"' => break,
                '\\' => units.push(match rest.next()? {
                    'b' => 8,
                    't' => 9,
                    'n' => 10,
                    'f' => 12,
                    'r' => 13,
                    'u' => {
                        let mut unit = 0;
                        for _ in 0..4 {
                            unit = unit * 16 + rest.next()?.to_digit(16)?;
                        }
                        unit as u16
                    }
                    same @ ('"' | '\\' | '/') => same as u16,
                    _ => return None,
                }),
                control if control < ' ' => return None,
                plain => units.extend_from_slice(plain.encode_utf16(&mut [0; 2])),
            }
        }
        self.rest = rest.as_str();
        String::from_utf16(&units).is_ok().then_some(units)
    }

    fn number(&mut self) -> Option<Value> {
        let trimmed = self.rest.trim_start_matches(SPACES);
        let end = trimmed
            .find(|next: char| !next.is_ascii_digit() && !"+-.eE".contains(next))
            .unwrap_or(trimmed.len());
        let (text, rest) = trimmed.split_at(end);
        self.rest = rest;

        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, power) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
        let is_json = digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && digits(fraction)
            && digits(power.strip_prefix(['+', '-']).unwrap_or(power));
        let decimal = Decimal::read(text);
        (is_json && decimal.survives_a_double()).then_some(Value::Number(decimal))
    }
}

/// Whether two bodies are the same request, as the judge sees it.
fn same(left: &[u8], right: &[u8]) -> bool {
    match (judge(left), judge(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// Choices made from one number, so that a spelling can be replayed.
struct Whims(u64);

impl Whims {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Writes a value down in one of the many ways JSON allows.
fn spell(value: &Value, whims: &mut Whims, out: &mut String) {
    space(whims, out);
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(&value.to_string()),
        Value::Number(decimal) => spell_number(decimal, whims, out),
        Value::Text(units) => spell_text(units, whims, out),
        Value::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                spell(element, whims, out);
            }
            space(whims, out);
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for last in (1..members.len()).rev() {
                members.swap(last, whims.below(last + 1));
            }
            out.push('{');
            for (at, (name, member)) in members.into_iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                space(whims, out);
                spell_text(name, whims, out);
                space(whims, out);
                out.push(':');
                spell(member, whims, out);
            }
            space(whims, out);
            out.push('}');
        }
    }
    space(whims, out);
}

fn space(whims: &mut Whims, out: &mut String) {
    while whims.below(3) == 0 {
        out.push(SPACES[whims.below(4)]);
    }
}

fn spell_text(units: &[u16], whims: &mut Whims, out: &mut String) {
    out.push('"');
    for character in String::from_utf16(units).unwrap().chars() {
        let must_escape = character < ' ' || character == '"' || character == '\\';
        let short = match character {
            '\u{8}' => Some("\\b"),
            '\t' => Some("\\t"),
            '\n' => Some("\\n"),
            '\u{c}' => Some("\\f"),
            '\r' => Some("\\r"),
            '"' => Some("\\\""),
            '\\' => Some("\\\\"),
            '/' => Some("\\/"),
            _ => None,
        };
        match (whims.below(3), short) {
            (0, _) if !must_escape => out.push(character),
            (0 | 1, Some(short)) => out.push_str(short),
            (1, None) if !must_escape => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let lower = whims.below(2) == 0;
                    let hex = if lower { format!("{unit:04x}") } else { format!("{unit:04X}") };
                    out.push_str(&format!("\\u{hex}"));
                }
            }
        }
    }
    out.push('"');
}

fn spell_number(decimal: &Decimal, whims: &mut Whims, out: &mut String) {
    if decimal.negative {
        out.push('-');
    }
    let zeros = "0".repeat(whims.below(4));
    if decimal.digits.is_empty() {
        out.push_str(
            &["0".to_owned(), format!("0.0{zeros}"), format!("0E+{zeros}7")][whims.below(3)],
        );
        return;
    }
    // The digits, with needless zeros behind, and the point at some place among them.
    let digits = format!("{}{zeros}", decimal.digits);
    let power = decimal.power - zeros.len() as i128;
    let fraction = whims.below(digits.len() + 3);
    let (whole, fraction_digits) = if fraction >= digits.len() {
        let filled = format!("{}{digits}", "0".repeat(fraction - digits.len()));
        ("0".to_owned(), filled)
    } else {
        let (whole, rest) = digits.split_at(digits.len() - fraction);
        (whole.to_owned(), rest.to_owned())
    };
    let power = power + fraction_digits.len() as i128;
    out.push_str(&whole);
    if !fraction_digits.is_empty() {
        out.push('.');
        out.push_str(&fraction_digits);
    }
    if power != 0 || whims.below(2) == 0 {
        let sign = if power < 0 { "-" } else { ["", "+"][whims.below(2)] };
        let zeros = "0".repeat(whims.below(3));
        out.push_str(&format!("{}{sign}{zeros}{}", ["e", "E"][whims.below(2)], power.abs()));
    }
}

fn spelt(value: &Value, seed: u64) -> String {
    let mut out = String::new();
    spell(value, &mut Whims(seed | 1), &mut out);
    out
}

/// Few characters, so that names collide and share prefixes, among them all that sort or print unusually.
fn texts() -> impl Strategy<Value = Vec<u16>> {
    let character = prop_oneof![
        6 => prop::sample::select("aab/ \"\\\n\t\r\u{0}\u{1f}\u{8}\u{c}\u{7f}é\u{2028}\u{d7ff}\u{e000}\u{fb33}\u{ffff}😀\u{10ffff}".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ];
    prop_oneof![vec(character.clone(), 0..4), vec(character, 6..14)]
        .prop_map(|characters| String::from_iter(characters).encode_utf16().collect())
}

fn numbers() -> impl Strategy<Value = Decimal> {
    prop_oneof![
        (-20i64..20).prop_map(|n| Decimal::read(&n.to_string())),
        any::<i64>().prop_map(|n| Decimal::read(&(n >> 11).to_string())),
        (any::<i32>(), -30i32..30).prop_map(|(n, power)| Decimal::read(&format!("{n}e{power}"))),
        any::<f64>().prop_map(Decimal::printed),
        // Around 10^15 the doubles lie a quarter apart, and many of them halfway between two of the shortest decimals.
        (1e15..9e15).prop_map(Decimal::printed),
        Just(Decimal::read("9007199254740992")),
        Just(Decimal::read("5e-324")),
        Just(Decimal::read("1e21")),
    ]
    .prop_filter("lossless", Decimal::survives_a_double)
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        numbers().prop_map(Value::Number),
        texts().prop_map(Value::Text),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(texts(), inner, 0..8).prop_map(Value::Object),
        ]
    })
}

/// Texts that are nearly always wrong, lossy, or close to each other.
fn odd_texts() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "0",
        "-0",
        "-0.0",
        "0.0",
        "1",
        "1.0",
        "1e0",
        "10e-1",
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "9007199254740994",
        "1e400",
        "-1e400",
        "1e-400",
        "0e400",
        "0.1",
        "0.10000000000000000555",
        "0.1e0",
        "1E1",
        "01",
        "1.",
        "123456789012345678",
        "4.35",
        "4.350",
        "\"\"",
        "\"a\"",
        "\"\\u0061\"",
        "\"\\ud800\"",
        "\"\\ud83d\\ude00\"",
        "\"😀\"",
        "\"\\n\"",
        "\"\\u000a\"",
        "\"\n\"",
        "\"\\x\"",
        "null",
        "true",
        "false",
        "nul",
        "\u{feff}",
        "[]",
        "{}",
        "[",
        "]",
        ",",
        " ",
    ]);
    let leaf = odd.prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 4, |inner| {
        let names =
            prop::sample::select(vec!["\"a\"", "\"b\"", "\"\\u0061\"", "\"\\ud800\"", "\"\"", "a"]);
        let spaces = prop::sample::select(vec!["", " ", "\n"]);
        prop_oneof![
            vec((spaces.clone(), inner.clone()), 0..3).prop_map(|elements| {
                let elements: Vec<_> =
                    elements.iter().map(|(space, inner)| format!("{space}{inner}")).collect();
                format!("[{}]", elements.join(","))
            }),
            vec((spaces, names, inner), 0..3).prop_map(|members| {
                let members: Vec<_> = members
                    .iter()
                    .map(|(space, name, inner)| format!("{space}{name}:{inner}"))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

/// Members in another order, if the text is an object without nesting; a near miss otherwise.
fn reversed(text: &str) -> String {
    match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(inside) => {
            let mut members: Vec<_> = inside.split(',').collect();
            members.reverse();
            format!("{{{}}}", members.join(","))
        }
        None => text.to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn one_value_has_one_fingerprint_however_it_is_spelt(value in values(), one: u64, other: u64) {
        let (one, other) = (spelt(&value, one), spelt(&value, other));
        prop_assert_eq!(judge(one.as_bytes()), Some(value), "the judge reads what was written");
        prop_assert_eq!(print(one.as_bytes()), print(other.as_bytes()), "{}\n{}", one, other);
        prop_assert!(canonical::canonicalise(one.as_bytes()).is_some());
    }

    #[test]
    fn other_values_have_other_fingerprints(left in values(), right in values(), seed: u64) {
        let (one, other) = (spelt(&left, seed), spelt(&right, !seed));
        prop_assert_eq!(print(one.as_bytes()) == print(other.as_bytes()), left == right);
    }

    #[test]
    fn odd_texts_are_equal_exactly_when_the_judge_says_so(left in odd_texts(), right in odd_texts()) {
        let variants = [left.clone(), right, reversed(&left), format!("{left} "), format!("{left}x"), left.replace(' ', ""), left.replace("\\u0061", "a")];
        for other in &variants {
            prop_assert_eq!(
                print(left.as_bytes()) == print(other.as_bytes()),
                same(left.as_bytes(), other.as_bytes()),
                "{:?} {:?}", left, other
            );
        }
        prop_assert_eq!(canonical::canonicalise(left.as_bytes()).is_some(), judge(left.as_bytes()).is_some(), "{:?}", left);
    }

    #[test]
    fn one_changed_byte_is_judged_right(value in values(), seed: u64, at: prop::sample::Index, to: u8) {
        let text = spelt(&value, seed).into_bytes();
        let mut other = text.clone();
        let at = at.index(other.len());
        other[at] = to;
        prop_assert_eq!(print(&text) == print(&other), same(&text, &other), "{:?}", other.escape_ascii().to_string());
    }

    #[test]
    fn any_bytes_are_judged_right(text in vec(prop_oneof![prop::sample::select(b"{}[]:,\"\\u0eE-.+1 tnf\n\x00\xff".to_vec()), any::<u8>()], 0..24)) {
        prop_assert_eq!(canonical::canonicalise(&text).is_some(), judge(&text).is_some());
    }

    #[test]
    fn the_canonical_form_is_its_own(value in values(), seed: u64) {
        let text = spelt(&value, seed);
        let form = canonical::canonicalise(text.as_bytes()).unwrap();
        prop_assert_eq!(canonical::canonicalise(&form), Some(form.clone()));
        prop_assert_eq!(judge(&form), Some(value), "the form says what the text says");
        // Rounding changes nothing where nothing is lost.
        prop_assert_eq!(canonical::canonicalise_rounding(text.as_bytes()), Some(form));
    }

    /// Dropping a member by pointer is the same as never having sent it.
    #[test]
    fn an_excluded_member_might_as_well_be_absent(value in values(), drop in texts(), seed: u64) {
        let Value::Object(mut members) = value else { return Ok(()) };
        let rules = |name: &[u16]| {
            let name = String::from_utf16(name).unwrap().replace('~', "~0").replace('/', "~1");
            Rules::default().exclude(Pointer::parse(&format!("/{name}")).unwrap())
        };
        let drop = members.keys().nth(seed as usize % (members.len() + 1)).cloned().unwrap_or(drop);
        let whole = spelt(&Value::Object(members.clone()), seed);
        members.remove(&drop);
        let rest = spelt(&Value::Object(members), !seed);
        prop_assert_eq!(print_with(&rules(&drop), whole.as_bytes()), print_with(&rules(&drop), rest.as_bytes()));
    }

    /// Keeping only one member by pointer is the same as having sent nothing else.
    #[test]
    fn what_is_not_included_might_as_well_be_absent(value in values(), seed: u64) {
        let Value::Object(mut members) = value else { return Ok(()) };
        let Some(keep) = members.keys().nth(seed as usize % members.len().max(1)).cloned() else { return Ok(()) };
        let name = String::from_utf16(&keep).unwrap().replace('~', "~0").replace('/', "~1");
        let rules = Rules::default().include(Pointer::parse(&format!("/{name}")).unwrap());
        let whole = spelt(&Value::Object(members.clone()), seed);
        members.retain(|name, _| *name == keep);
        let rest = spelt(&Value::Object(members), !seed);
        prop_assert_eq!(print_with(&rules, whole.as_bytes()), print_with(&rules, rest.as_bytes()));
    }
}

/// Every lossy or broken text counts byte by byte: the same bytes are the same request, and one more space is another.
#[test]
fn texts_without_a_lossless_form_count_byte_by_byte() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let mut texts: Vec<Vec<u8>> = [
        "",
        " ",
        "9007199254740993",
        "-9007199254740993",
        "18446744073709551615",
        "1e400",
        "-0",
        "-0.0",
        "-0e1",
        "0.10000000000000000555",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"b\":2,\"\\u0061\":1}",
        "\"\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\u{feff}{}",
        "{}x",
        "{}{}",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\":-0}",
        "{a:1}",
        "// {}",
        "{\"a\":[1e400]}",
        "{\"b\":1,\"a\":{\"x\":1,\"x\":1}}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    texts.push(deep(DEPTH_MAX + 1).into_bytes());
    texts.push(b"\"\xff\"".to_vec());
    texts.push(b"\xff\xfe{\0}\0".to_vec());
    for text in texts {
        assert_eq!(judge(&text), None, "{}", text.escape_ascii());
        assert_eq!(canonical::canonicalise(&text), None, "{}", text.escape_ascii());
        assert_eq!(print(&text), print(&text.clone()));
        let spaced = [text.as_slice(), b" "].concat();
        assert_ne!(print(&text), print(&spaced), "{}", text.escape_ascii());
    }
    assert_eq!(
        print(deep(DEPTH_MAX).as_bytes()),
        print(format!("{} ", deep(DEPTH_MAX)).as_bytes())
    );
}

/// Not a measurement: whatever takes more than linear time (but for sorting) on ten megabytes does not end within a test run.
#[test]
fn ten_hostile_megabytes_are_read_at_once() {
    const SIZE: usize = 10 << 20;
    let object = |members: &mut dyn Iterator<Item = String>| {
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    };
    let million = 1_000_000u64;
    let nested_backwards = {
        // Every level has its members the wrong way round, so that moving them on the spot would copy it all 127 times.
        let levels = DEPTH_MAX - 1;
        format!(
            "{}{}{}",
            "{\"z\":".repeat(levels),
            "\"x\"".replace('x', &"x".repeat(SIZE)),
            ",\"a\":0}".repeat(levels)
        )
    };
    let lossless = [
        object(&mut (0..million).rev().map(|n| format!("\"{n:07}\":0"))),
        object(&mut (0..200_000u64).map(|n| format!("\"{:07}\":0", n * 7_919 % 200_000))),
        object(
            &mut (0..200_000)
                .rev()
                .map(|n| format!("\"the same long beginning of a name {n}\":{n}")),
        ),
        object(
            &mut (0..200_000).rev().map(|n| format!("\"\\u0061\\u0061\\u0061\\u0061{n:07}\":0")),
        ),
        object(&mut (0..1_000).rev().map(|n| format!("\"{}{n}\":0", "n".repeat(SIZE / 1_000)))),
        format!("[{}]", vec!["{\"b\":0,\"a\":0}"; 500_000].join(",")),
        format!("[{}1]", "1e20,".repeat(SIZE / 25)),
        format!("[1.{}]", "0".repeat(SIZE)),
        format!("[{}1]", format!("1.{},", "0".repeat(10_000)).repeat(SIZE / 10_000)),
        format!("\"{}\"", "\\u0020".repeat(SIZE / 6)),
        format!("{}0{}", " ".repeat(SIZE / 2), "\n".repeat(SIZE / 2)),
        nested_backwards,
    ];
    for text in &lossless {
        let start: String = text.chars().take(40).collect();
        assert!(canonical::canonicalise(text.as_bytes()).is_some(), "{start}");
    }
    let lossy = [
        object(&mut (0..million).rev().map(|n| format!("\"{:07}\":0", n / 2))),
        object(&mut (0..2 * million).map(|n| format!("\"{n:07}\":0"))),
        "[".repeat(SIZE),
        "{\"a\":".repeat(SIZE / 5),
        "9".repeat(SIZE),
        format!("1e{}", "9".repeat(SIZE)),
        format!("[{}1]", format!("{},", "9".repeat(10_000)).repeat(SIZE / 10_000)),
        format!("\"{}", "\\\\".repeat(SIZE / 2)),
        format!("[{}", "\"\",".repeat(SIZE / 3)),
        " ".repeat(SIZE),
    ];
    for text in &lossy {
        let start: String = text.chars().take(40).collect();
        assert_eq!(canonical::canonicalise(text.as_bytes()), None, "{start}");
        let dropped = format!("{{\"drop\":{text}}}");
        let _ = print_with(
            &Rules::default().exclude(Pointer::parse("/drop").unwrap()),
            dropped.as_bytes(),
        );
    }
}
