//! What does an operator decide about a key?
//!
//! A decision names the attempt that it is about, has a reason, and is signed with the name of the token that was shown. It can be
//! previewed: the same rules are asked, and nothing is written. Of two that decide at once one is told that the other did.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use retrysafe_core::StoreError;
use retrysafe_core::engine::Ruled;
use retrysafe_core::event;
use retrysafe_core::machine::{self, Decision, Event, Expire, Verdict};
use retrysafe_core::record::{Fence, Judge, Record, Standing};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{Stamped, Store};
use retrysafe_core::time::Time;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Refused;
use super::evidence::{AnswerSource, Finding, late_successes, weigh};
use super::given::Given;
use super::keys::{parse, read};
use super::operators::Operator;
use super::signature::Signature;
use super::{Admin, Shared, view};

/// What stands for the reason in a preview that has none yet.
const PREVIEW_REASON: &str = "a preview";

/// The verb that is for settled records.
const EXPIRE: &str = "expire";

/// What every decision says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain {
    reason: Option<String>,
    operator: Option<String>,
    fence: Option<u64>,
    dead_lettered: Option<bool>,
    #[serde(default)]
    preview: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolve {
    outcome: String,
    response: Option<Given>,
    #[serde(rename = "use")]
    source: Option<AnswerSource>,
    late_fence: Option<u64>,
    reason: Option<String>,
    operator: Option<String>,
    fence: Option<u64>,
    dead_lettered: Option<bool>,
    #[serde(default)]
    preview: bool,
}

/// A decision that was read, and whose it is.
struct Asked {
    id: Id,
    verb: &'static str,
    signature: Signature,
    is_preview: bool,
    /// Only if its lookups have given up, or only if they have not.
    dead_lettered: Option<bool>,
}

pub(crate) async fn resolve<S: Store>(
    State(admin): Shared<S>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let Resolve {
        outcome,
        response,
        source,
        late_fence,
        reason,
        operator: claimed,
        fence,
        dead_lettered,
        preview,
    } = read(&body)?;
    let invalid = |why: &str| Refused::Invalid(why.into());
    if late_fence.is_some() && source.is_none() {
        return Err(invalid(
            "`late_fence` says which late result; say \"use\": \"late_result\" too",
        ));
    }
    let finding = match (outcome.as_str(), response, source) {
        ("completed", Some(given), None) => {
            Finding::Given(given.answer().map_err(Refused::Invalid)?)
        }
        ("completed", None, Some(AnswerSource::LateResult)) => Finding::LateResult(late_fence),
        ("completed", None, None) => Finding::Fact,
        ("completed", Some(_), Some(_)) => {
            return Err(invalid(
                "give the answer in `response`, or say with `use` where it is; not both",
            ));
        }
        ("failed_retryable", None, None) => Finding::NotExecuted,
        ("failed_retryable", ..) => {
            return Err(invalid(
                "what was not executed has no answer: leave out `response` and `use`",
            ));
        }
        _ => return Err(invalid("`outcome` is completed or failed_retryable")),
    };
    let plain = Plain { reason, operator: claimed, fence, dead_lettered, preview };
    let asked = Asked::new(&id, "resolve", &operator, &plain)?;
    decide(&admin, asked, &finding, plain.fence).await
}

pub(crate) async fn release<S: Store>(
    State(admin): Shared<S>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let plain: Plain = read(&body)?;
    let asked = Asked::new(&id, "release", &operator, &plain)?;
    decide(&admin, asked, &Finding::NotExecuted, plain.fence).await
}

pub(crate) async fn expire<S: Store>(
    State(admin): Shared<S>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let plain: Plain = read(&body)?;
    if plain.dead_lettered.is_some() {
        let why = "only what is unknown is dead-lettered, and that is not forgotten: leave out `dead_lettered`";
        return Err(Refused::Invalid(why.into()));
    }
    let asked = Asked::new(&id, EXPIRE, &operator, &plain)?;
    let fence = plain.fence.map(Fence);
    let text = asked.signature.text(None);
    if asked.is_preview {
        let Stamped { now, value } = admin.engine().look(asked.id).await?;
        let record = value.ok_or(Refused::NotFound)?;
        let after = would_be(&record, fence, &Expire { fence, reason: &text }, now);
        return Ok(Json(asked.preview(fence, &record, after, now, None)));
    }
    let ruled = admin.engine().expire(asked.id, fence, &text).await;
    asked.ruling(fence, None, ruled)
}

impl Asked {
    fn new(
        id: &str,
        verb: &'static str,
        operator: &Operator,
        plain: &Plain,
    ) -> Result<Self, Refused> {
        let is_preview = plain.preview;
        let reason = plain.reason.as_deref().or(is_preview.then_some(PREVIEW_REASON));
        let signature = Signature::new(operator, plain.operator.as_deref(), reason)?;
        let dead_lettered = plain.dead_lettered;
        Ok(Self { id: parse(id)?, verb, signature, is_preview, dead_lettered })
    }

    /// Audits a decision, and says what became of it. Reason, operator and evidence are on the record's timeline too.
    fn ruling(
        &self,
        about: Option<Fence>,
        evidence: Option<&str>,
        ruled: Result<Ruled, StoreError>,
    ) -> Result<Json<Value>, Refused> {
        let (result, answer) = match ruled {
            Ok(Ruled::Done(record)) => ("done", Ok(Json(view::whole(&record)))),
            Ok(Ruled::Refused(record)) => ("refused", Err(self.refusal(&record, about))),
            Ok(Ruled::Absent) => ("absent", Err(Refused::NotFound)),
            Err(error) => ("failed", Err(error.into())),
        };
        self.audit(about, evidence, result);
        answer
    }

    /// Why the verb was not for this record. A settled record may be forgotten, if it is the one that was seen.
    fn refusal(&self, record: &Record, about: Option<Fence>) -> Refused {
        if self.verb == EXPIRE && about.is_some_and(|about| about != record.fence) {
            return Refused::AnotherAttempt(record.fence);
        }
        refusal(record, about)
    }

    fn audit(&self, about: Option<Fence>, evidence: Option<&str>, result: &'static str) {
        let verb = self.verb;
        tracing::info!(
            target: "audit",
            verb,
            id = %self.id,
            operator = self.signature.who(),
            fence = about.map(|fence| fence.0),
            reason = self.signature.reason(),
            evidence,
            result,
            "admin_action"
        );
        metrics::counter!(event::ADMIN_ACTIONS.name, "verb" => verb, "result" => result)
            .increment(1);
    }

    /// What would change, what a retry would get then, and what speaks against it.
    fn preview(
        &self,
        about: Option<Fence>,
        record: &Record,
        after: Result<Record, Refused>,
        now: Time,
        evidence: Option<&str>,
    ) -> Value {
        let (after, refused) = match after {
            Ok(after) => (Some(after), None),
            Err(refused) => (None, Some(refused.told())),
        };
        let would = after.as_ref().map(|after| {
            json!({
                "state": after.standing().name(),
                "evidence": evidence,
                "expires_at": view::expires_at(after).map(view::time),
            })
        });
        let refused = refused.map(|(status, code, detail)| {
            json!({"status": status.as_u16(), "code": code, "detail": detail})
        });
        json!({
            "preview": true,
            "id": self.id.to_string(),
            "verb": self.verb,
            "state": record.standing().name(),
            "fence": record.fence.0,
            "about_fence": about.map(|about| about.0),
            "would": would,
            "refused": refused,
            "retry_gets": view::retry_gets(after.as_ref().unwrap_or(record), now),
            "warnings": warnings(record, after.as_ref()),
        })
    }
}

/// Decides about the attempt that the operator has seen.
async fn decide<S: Store>(
    admin: &Admin<S>,
    asked: Asked,
    finding: &Finding,
    seen: Option<u64>,
) -> Result<Json<Value>, Refused> {
    let Stamped { now, value } = admin.engine().look(asked.id).await?;
    let Some(record) = value else {
        return asked.ruling(seen.map(Fence), None, Ok(Ruled::Absent));
    };
    // A record that had one attempt leaves no doubt which one is meant.
    let only = (record.attempts <= 1).then_some(record.fence);
    let fence = seen.map(Fence).or(only).ok_or_else(|| {
        let why = "say in `fence` which of several attempts you mean: the list and the record show its fence. A decision \
                   about a record that has gone on meanwhile is refused";
        Refused::Invalid(why.into())
    })?;
    let is_about_it = record.standing() == Standing::Unknown && record.fence == fence;
    let weighed = if is_about_it {
        let checked = admin.check_lookups(&record, asked.dead_lettered);
        checked.and_then(|()| weigh(finding, &record))
    } else {
        Err(refusal(&record, Some(fence)))
    };
    let (evidence, used) = match weighed {
        Ok(weighed) => weighed,
        Err(refused) if asked.is_preview => {
            return Ok(Json(asked.preview(Some(fence), &record, Err(refused), now, None)));
        }
        Err(refused) => {
            asked.audit(Some(fence), None, "refused");
            return Err(refused);
        }
    };
    let standing = evidence.standing();
    let reason = asked.signature.text(Some(&used)).into();
    let verdict = Verdict { fence, evidence, judge: Judge::Operator, reason };
    if asked.is_preview {
        let after = would_be(&record, Some(fence), &machine::Resolve(&verdict), now);
        return Ok(Json(asked.preview(Some(fence), &record, after, now, Some(&used))));
    }
    let ruled = admin.engine().resolve(asked.id, &verdict).await;
    if let Ok(Ruled::Done(_)) = &ruled {
        let labels = [("standing", standing.name()), ("judge", Judge::Operator.name())];
        metrics::counter!(event::RECONCILE_RESOLVED.name, &labels).increment(1);
    }
    asked.ruling(Some(fence), Some(&used), ruled)
}

/// What a decision would make of a record. The rules are asked, and the store is not.
fn would_be<E: Event>(
    record: &Record,
    about: Option<Fence>,
    event: &E,
    now: Time,
) -> Result<Record, Refused> {
    if about.is_some_and(|about| about != record.fence) {
        return Err(refusal(record, about));
    }
    match machine::decide(Some(record), event, now) {
        // A store would give it a later number; which one is not known before.
        Some(Decision::Write(write)) => {
            Ok(write.onto(record, now, record.version.saturating_add(1)))
        }
        Some(Decision::Stands(_)) | None => Err(refusal(record, about)),
    }
}

/// What speaks against a decision. It is not refused for that: the operator may know more.
fn warnings(before: &Record, after: Option<&Record>) -> Vec<String> {
    let runs_again = after.is_some_and(|after| after.standing() == Standing::FailedRetryable);
    if !runs_again {
        return Vec::new();
    }
    let mut told = Vec::new();
    if late_successes(before).next().is_some() {
        told.push("a late result on the timeline says that it was executed".to_owned());
    }
    if let Some(head) = before.state.head() {
        let status = head.status.as_u16();
        told.push(format!(
            "the beginning of an answer had come, with status {status}: it was executed"
        ));
    }
    told
}

/// Why a verb was not for a record: it is settled, it is about another attempt by now, or the evidence says too little about it.
fn refusal(record: &Record, about: Option<Fence>) -> Refused {
    let standing = record.standing();
    let is_open = match standing {
        Standing::InProgress | Standing::Unknown => true,
        Standing::Completed | Standing::FailedRetryable => false,
    };
    if is_open && about.is_some_and(|about| about != record.fence) {
        Refused::AnotherAttempt(record.fence)
    } else if standing == Standing::Unknown && about.is_some() && record.flow.is_some() {
        Refused::NoEvidence(
            "this request is a flow, and the mere fact that it was executed says nothing about the phases after its call. Give \
             the whole answer, or use the late result of the call itself"
                .into(),
        )
    } else {
        Refused::Conflict(standing.name())
    }
}
