//! What has an operator said in the form of a decision?

use serde::Deserialize;
use serde_json::{Value, json};

/// What can be known about a request whose outcome is unknown.
const FINDINGS: [&str; 4] = ["fact", "answer", "late_result", "not_executed"];

/// What stands in the form.
#[derive(Clone, Deserialize)]
pub(super) struct AskedDecision {
    pub form_key: String,
    /// What is known: `fact`, `answer`, `late_result` or `not_executed`.
    pub finding: String,
    pub fence: u64,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub content_type: String,
    #[serde(default)]
    pub body: String,
}

impl AskedDecision {
    /// The finding as a person would say it.
    pub(super) fn words(&self) -> &'static str {
        match self.finding.as_str() {
            "fact" => "it was executed; its answer is not known",
            "answer" => "it was executed; this is its answer",
            "late_result" => "it was executed; its late answer is the answer",
            _ => "it was not executed",
        }
    }

    /// As the admin API wants it; or what is wrong with it.
    pub(super) fn request(&self, is_preview: bool) -> Result<Value, &'static str> {
        if !FINDINGS.contains(&self.finding.as_str()) {
            return Err("say what you know: that it was executed, or that it was not");
        }
        let mut asked = json!({"fence": self.fence, "preview": is_preview});
        let is_executed = self.finding != "not_executed";
        let outcome = if is_executed { "completed" } else { "failed_retryable" };
        let mut put = |name: &str, value: Value| {
            asked.as_object_mut().map(|asked| asked.insert(name.to_owned(), value));
        };
        put("outcome", outcome.into());
        if !self.reason.trim().is_empty() {
            put("reason", self.reason.trim().into());
        }
        match self.finding.as_str() {
            "late_result" => put("use", "late_result".into()),
            "answer" => {
                let status: u16 = self
                    .status
                    .trim()
                    .parse()
                    .map_err(|_| "the status of the answer is a number, such as 201")?;
                let kind = self.content_type.trim();
                let headers: Vec<[&str; 2]> =
                    if kind.is_empty() { Vec::new() } else { vec![["content-type", kind]] };
                put("response", json!({"status": status, "headers": headers, "body": self.body}));
            }
            _ => {}
        }
        Ok(asked)
    }
}
