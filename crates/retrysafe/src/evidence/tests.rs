//! Does a document say what its rules make of it, and never more?

use http::StatusCode;
use http::header::{CONTENT_TYPE, LOCATION};
use retrysafe_core::canonical::Pointer;

use super::*;

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

fn wants(place: &str, values: &[RuleValue]) -> Condition {
    Condition { pointer: pointer(place), wanted: WantedValue::OneOf(values.to_vec()) }
}

fn is(place: &str, value: &str) -> Condition {
    wants(place, &[RuleValue::text(value)])
}

fn rules() -> DocumentRules {
    DocumentRules {
        executed: vec![vec![is("/status", "succeeded")], vec![is("/status", "captured")]],
        declined: vec![vec![is("/status", "failed"), is("/error/kind", "card")]],
        declined_answer: Some(AnswerRule::Parts {
            status: AnswerStatus::Fixed(StatusCode::PAYMENT_REQUIRED),
            headers: vec![],
            body: AnswerBody::Template(
                TextTemplate::parse_json(r#"{"error": {/error/code}}"#).unwrap(),
            ),
        }),
        not_executed: vec![vec![is("/status", "void")]],
        pending: vec![vec![is("/status", "processing")]],
        ..DocumentRules::default()
    }
}

fn reason(verdict: &DocumentVerdict) -> &str {
    match verdict {
        DocumentVerdict::Inconclusive(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_outcome_is_read_and_what_no_rule_names_says_nothing() {
    let fact = DocumentVerdict::Executed(Answer::NotKept { status: None, location: None });
    assert_eq!(rules().read(br#"{"status":"succeeded"}"#), fact);
    assert_eq!(rules().read(br#"{"status":"captured"}"#), fact);
    assert_eq!(rules().read(br#"{"status":"void"}"#), DocumentVerdict::NotExecuted);
    assert_eq!(rules().read(br#"{"status":"processing"}"#), DocumentVerdict::Pending);
    let declined =
        rules().read(br#"{"status":"failed","error":{"kind":"card","code":"no funds"}}"#);
    let DocumentVerdict::Declined(answer) = declined else { panic!("{declined:?}") };
    assert_eq!(answer.status, StatusCode::PAYMENT_REQUIRED);
    assert_eq!(answer.body, &br#"{"error": "no funds"}"#[..]);
    for (document, why) in [
        (&b"<html>"[..], "not JSON"),
        (b"", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"\xff", "not JSON"),
        (b"{}", "/status is not there"),
        (b"[]", "/status is not there"),
        (br#"{"status":"odd"}"#, "/status is a text"),
        (br#"{"status":null}"#, "/status is null"),
        (br#"{"status":{"a":1}}"#, "/status is an object"),
        (br#"{"status":"failed"}"#, "/error/kind is not there"),
        (
            br#"{"status":"failed","error":{"kind":"card"}}"#,
            "declined, but /error/code is not there",
        ),
        // Readers disagree about which of the two counts.
        (br#"{"status":"void","status":"succeeded"}"#, "twice"),
    ] {
        let verdict = rules().read(document);
        assert!(
            reason(&verdict).contains(why),
            "{}: {verdict:?}",
            String::from_utf8_lossy(document)
        );
    }
}

#[test]
fn values_compare_by_type_and_numbers_without_rounding() {
    let fits = |value: RuleValue, document: &str| {
        let executed = vec![vec![wants("/v", &[value])]];
        let rules = DocumentRules { executed, ..DocumentRules::default() };
        let document = format!("{{\"v\": {document} }}");
        matches!(rules.read(document.as_bytes()), DocumentVerdict::Executed(_))
    };
    for (value, document, is_equal) in [
        (RuleValue::integer(2), "2", true),
        (RuleValue::integer(2), "2.0", true),
        (RuleValue::integer(200), "2e2", true),
        (RuleValue::integer(2), "0.2E+1", true),
        (RuleValue::integer(0), "-0.0", true),
        (RuleValue::integer(-2), "-2", true),
        (RuleValue::integer(-2), "2", false),
        (RuleValue::integer(2), "\"2\"", false),
        (RuleValue::integer(1), "true", false),
        (RuleValue::integer(9_007_199_254_740_993), "9007199254740992", false),
        (RuleValue::integer(9_007_199_254_740_993), "9007199254740993", true),
        (RuleValue::number("1.50").unwrap(), "1.5", true),
        (RuleValue::number("0.001").unwrap(), "1e-3", true),
        (RuleValue::number("0.001").unwrap(), "0.0010000000000000000001", false),
        (RuleValue::text("2"), "2", false),
        (RuleValue::text("paid"), "\"p\\u0061id\"", true),
        (RuleValue::text("paid"), "\"Paid\"", false),
        (RuleValue::text("null"), "null", false),
        (RuleValue::boolean(true), "true", true),
        (RuleValue::boolean(false), "true", false),
        (RuleValue::boolean(true), "\"true\"", false),
        (RuleValue::integer(1), "1e99999999999999999999", false),
    ] {
        assert_eq!(fits(value.clone(), document), is_equal, "{value} and {document}");
    }
    assert_eq!(RuleValue::number("1.5.2"), None);
    assert_eq!(RuleValue::number("x"), None);
}

#[test]
fn presence_is_no_null_and_lists_are_read_by_their_index() {
    let at = |place: &str| {
        let present = Condition { pointer: pointer(place), wanted: WantedValue::Present };
        DocumentRules { executed: vec![vec![present]], ..DocumentRules::default() }
    };
    let is_executed = |place: &str, document: &str| {
        matches!(at(place).read(document.as_bytes()), DocumentVerdict::Executed(_))
    };
    assert!(is_executed("/data/1/id", r#"{"data":[{"id":1},{"id":2}]}"#));
    assert!(is_executed("/a~1b/c~0d", r#"{"a/b":{"c~d":0}}"#));
    for (place, document) in [
        ("/data/0/id", r#"{"data":[]}"#),
        ("/data/01/id", r#"{"data":[{"id":1},{"id":2}]}"#),
        ("/data/+1/id", r#"{"data":[{"id":1},{"id":2}]}"#),
        ("/data/-/id", r#"{"data":[{"id":1}]}"#),
        ("/id", r#"{"id":null}"#),
        ("/id/x", r#"{"id":"text"}"#),
    ] {
        assert!(!is_executed(place, document), "{place} {document}");
    }
}

#[test]
fn a_document_that_fits_two_outcomes_is_inconclusive() {
    let rules = DocumentRules {
        executed: vec![vec![is("/status", "succeeded")]],
        not_executed: vec![vec![wants("/voided", &[RuleValue::boolean(true)])]],
        ..DocumentRules::default()
    };
    assert_eq!(rules.conflict(), None, "it cannot be seen");
    let verdict = rules.read(br#"{"status":"succeeded","voided":true}"#);
    assert!(reason(&verdict).contains("`executed` and of `not_executed` both fit"), "{verdict:?}");
}

#[test]
fn rules_that_contradict_each_other_are_seen() {
    let of = |executed: Vec<Condition>, pending: Vec<Condition>| {
        let rules = DocumentRules {
            executed: vec![executed],
            pending: vec![pending],
            ..DocumentRules::default()
        };
        rules.conflict().map(|(one, other, shared)| (one.name(), other.name(), shared))
    };
    let both = |shared: &str| Some(("executed", "pending", shared.to_owned()));
    let paid = || is("/s", "paid");
    assert_eq!(of(vec![paid()], vec![paid()]), both("/s = \"paid\""));
    let many = wants("/s", &[RuleValue::text("x"), RuleValue::text("paid")]);
    assert_eq!(of(vec![paid()], vec![many]), both("/s = \"paid\""));
    // Whatever is pending by this is executed too.
    let more = vec![paid(), wants("/n", &[RuleValue::integer(1)])];
    assert_eq!(of(vec![paid()], more), both("/n = 1 and /s = \"paid\""));
    let there = Condition { pointer: pointer("/s"), wanted: WantedValue::Present };
    assert_eq!(of(vec![there], vec![paid()]), both("/s = \"paid\""));
    assert_eq!(of(vec![paid()], vec![is("/s", "open")]), None);
    assert_eq!(of(vec![wants("/s", &[RuleValue::integer(1)])], vec![is("/s", "1")]), None);
    assert_eq!(of(vec![paid(), is("/t", "a")], vec![paid(), is("/t", "b")]), None);
}

#[test]
fn an_answer_is_what_the_provider_wrote() {
    let made = |rule: AnswerRule, document: &str| {
        let executed = vec![vec![is("/s", "paid")]];
        let rules = DocumentRules { executed, answer: Some(rule), ..DocumentRules::default() };
        rules.read(document.as_bytes())
    };
    let parts = |body: AnswerBody| AnswerRule::Parts {
        status: AnswerStatus::At(pointer("/code")),
        headers: vec![(LOCATION, TextTemplate::parse("/p/{/id}").unwrap())],
        body,
    };
    let document = r#"{"s":"paid","code":201,"id":7,"sum": 10.10 ,"note":"a \"b\"","big":12345678901234567890.10}"#;
    let answer = |verdict: DocumentVerdict| match verdict {
        DocumentVerdict::Executed(Answer::Kept(answer)) => answer,
        other => panic!("{other:?}"),
    };
    // Digits, order and spaces stay.
    let whole = answer(made(parts(AnswerBody::At(pointer(""))), document));
    assert_eq!((whole.status.as_u16(), &whole.body[..]), (201, document.as_bytes()));
    assert_eq!(whole.headers[0], (LOCATION, "/p/7".parse().unwrap()));
    assert_eq!(whole.headers[1].0, CONTENT_TYPE);
    let big = answer(made(parts(AnswerBody::At(pointer("/big"))), document));
    assert_eq!(big.body, &b"12345678901234567890.10"[..]);
    let text = answer(made(parts(AnswerBody::At(pointer("/note"))), document));
    assert_eq!((&text.body[..], text.headers.len()), (&b"a \"b\""[..], 1));
    let template = TextTemplate::parse_json(r#"{"n": {/note}, "s": [{/sum}]}"#).unwrap();
    let filled = answer(made(parts(AnswerBody::Template(template)), document));
    assert_eq!(filled.body, &br#"{"n": "a \"b\"", "s": [10.10]}"#[..]);

    for (rule, document, why) in [
        (parts(AnswerBody::Empty), r#"{"s":"paid","id":1}"#, "/code is not there"),
        (parts(AnswerBody::Empty), r#"{"s":"paid","id":1,"code":100}"#, "no final status"),
        (parts(AnswerBody::Empty), r#"{"s":"paid","id":1,"code":"201"}"#, "no final status"),
        (parts(AnswerBody::Empty), r#"{"s":"paid","id":{},"code":201}"#, "/id is an object"),
        (parts(AnswerBody::Empty), r#"{"s":"paid","id":"a\nb","code":201}"#, "no header can"),
        (parts(AnswerBody::At(pointer("/x"))), r#"{"s":"paid","id":1,"code":201}"#, "/x is not"),
        (parts(AnswerBody::At(pointer("/s"))), r#"{"s":"paid","id":1,"code":204}"#, "has no body"),
    ] {
        let verdict = made(rule, document);
        assert!(reason(&verdict).starts_with("executed, but"), "{verdict:?}");
        assert!(reason(&verdict).contains(why), "{document}: {verdict:?}");
    }
}

#[test]
fn a_whole_answer_in_the_document_is_replayed_or_decides_nothing() {
    let says = |answer: &str| {
        let executed = vec![vec![is("/s", "paid")]];
        let whole = Some(AnswerRule::Whole(pointer("/answer")));
        let rules = DocumentRules { executed, answer: whole, ..DocumentRules::default() };
        rules.read(format!(r#"{{"s":"paid"{answer}}}"#).as_bytes())
    };
    let full = says(r#","answer":{"status":201,"headers":[["X-A","1"]],"body_base64":"aGk="}"#);
    let DocumentVerdict::Executed(Answer::Kept(answer)) = full else { panic!("{full:?}") };
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (201, &b"hi"[..]));
    for none in ["", r#","answer":null"#] {
        let fact = DocumentVerdict::Executed(Answer::NotKept { status: None, location: None });
        assert_eq!(says(none), fact, "{none}");
    }
    for (answer, why) in [
        (r#"{"status":201,"body":{"id":7}}"#, "expected a string"),
        (r#"{"status":"x"}"#, "expected u16"),
        (r#"{"status":99}"#, "no final status"),
        (r#"{"status":201,"headers":[["a b","c"]]}"#, "is no header"),
        (r#"{"status":201,"headers":[["Date","c"]]}"#, "never replayed"),
        (r#"{"status":201,"body":"a","body_base64":"aGk="}"#, "both"),
        (r#"{"status":204,"body":"a"}"#, "has no body"),
        (r#""paid""#, "expected struct"),
    ] {
        let verdict = says(&format!(",\"answer\":{answer}"));
        assert!(reason(&verdict).contains(why), "{answer}: {verdict:?}");
    }
}

#[test]
fn templates_are_read_as_people_write_json() {
    for (text, why) in [
        (r#"{"url": "/p/{/id}"}"#, "inside a text"),
        (r#"{"id": {/id}"#, "is not JSON"),
        (r#"{"id": {/id"#, "not closed"),
        (r#"{"id": {/a~2}}"#, "`~`"),
    ] {
        let error = TextTemplate::parse_json(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert!(TextTemplate::parse_json(r#"{"a": {}, "b": [{/x/0}, {/y}]}"#).is_ok());
}

#[test]
fn an_excerpt_is_short_readable_and_without_secrets() {
    assert_eq!(excerpt(b"{\"a\":\n1}\x1b[31m\xff", &[]), "{\"a\": 1}\u{fffd}[31m\u{fffd}");
    let echo = b"you sent Authorization: Bearer sk_live_1 and x";
    let shown = excerpt(echo, &["Bearer sk_live_1", "x"]);
    assert_eq!(shown, "you sent Authorization: … and x");
    assert!(excerpt(&[b'a'; 5_000], &[]).len() == EXCERPT_BYTES_MAX);
    // A secret across the cut is not kept in half.
    let mut long = vec![b'a'; EXCERPT_BYTES_MAX - 4];
    long.extend_from_slice(b"sk_live_1 and more");
    assert!(!excerpt(&long, &["sk_live_1"]).contains("sk_"), "half a secret");
    let wide = "漢".repeat(1_000);
    assert!(excerpt(wide.as_bytes(), &[]).len() <= EXCERPT_BYTES_MAX);
}
