//! Does a report of the checker look as its schema says?
//!
//! A validator of as much of JSON Schema as the schema uses. What it does not know is an error, so that no word of the schema is
//! passed over.

use serde_json::Value;

/// Panics unless a report is what the schema says.
pub(crate) fn check(report: &Value) {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/check-report.schema.json")).unwrap();
    let mut wrong = Vec::new();
    look(&schema, report, "report", &mut wrong);
    assert!(wrong.is_empty(), "{}\n{report:#}", wrong.join("\n"));
    let mut broken = report.clone();
    broken["findings"][0]["verdict"] = "perhaps".into();
    look(&schema, &broken, "report", &mut wrong);
    assert_eq!(wrong.len(), 1, "a word that is no verdict is found");
}

fn look(schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    for (word, rule) in schema.as_object().unwrap() {
        let is_right = match word.as_str() {
            "$schema" | "$id" | "title" | "description" => true,
            "type" => match rule.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "integer" => value.is_u64(),
                other => panic!("the type {other:?}"),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_i64() >= rule.as_i64(),
            "minItems" => {
                value.as_array().map(Vec::len) >= rule.as_u64().map(|least| least as usize)
            }
            "required" => rule
                .as_array()
                .unwrap()
                .iter()
                .all(|name| value.get(name.as_str().unwrap()).is_some()),
            "additionalProperties" => {
                assert_eq!(rule, &Value::Bool(false));
                let known = schema["properties"].as_object().unwrap();
                value
                    .as_object()
                    .is_none_or(|members| members.keys().all(|name| known.contains_key(name)))
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(member) = value.get(name) {
                        look(rule, member, &format!("{at}.{name}"), wrong);
                    }
                }
                true
            }
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    look(rule, item, &format!("{at}[{place}]"), wrong);
                }
                true
            }
            other => panic!("the schema says {other:?}, which this test does not know"),
        };
        if !is_right {
            wrong.push(format!("{at}: not as {word} says"));
        }
    }
}
