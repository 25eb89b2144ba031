//! Which breakages of webhooks must be caught?

use super::catcher::Catcher::Test;
use super::table::Mutant;

/// The tests of the gateway, on the disk and on a real server.
const GATEWAY: &[&str] = &["-p", "retrysafe-cli", "--test", "gateway"];

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "webhook-stale-believed",
        file: "crates/retrysafe/src/webhooks/verify.rs",
        old: "is_none_or(|end| end < now)",
        new: "is_none_or(|end| end < UNIX_EPOCH && end < now)",
        breaks: "an event that somebody has overheard counts for ever",
        caught: Test(GATEWAY, "forged_stale_and_foreign_events_are_refused"),
    },
    Mutant {
        name: "webhook-releases-another-attempt",
        file: "crates/retrysafe/src/webhooks/judge.rs",
        old: "fence.is_none() && record.attempts > 1",
        new: "fence.is_none() && record.attempts > 9",
        breaks: "proof about a former attempt lets a request run again that may have been executed",
        caught: Test(GATEWAY, "an_event_about_a_former_attempt_does_not_release_a_later_one"),
    },
    Mutant {
        name: "webhook-of-a-former-request",
        file: "crates/retrysafe/src/webhooks/judge.rs",
        old: "at.plus(SKEW) < record.created_at",
        new: "at.plus(SKEW * 9_999) < record.created_at",
        breaks: "an event about a former request with the same key decides about the present one",
        caught: Test(GATEWAY, "an_event_that_never_matches_is_listed_or_ends"),
    },
    Mutant {
        name: "webhook-of-another-tenant",
        file: "crates/retrysafe/src/webhooks/judge.rs",
        old: "[(_, value)] => whose == Some(value.as_str()),",
        new: "[(_, value)] => whose.is_some() || value.is_empty(),",
        breaks: "a caller that has chosen another tenant's key gets that tenant's answer",
        caught: Test(GATEWAY, "a_key_finds_a_request_of_its_own_tenant_only"),
    },
    Mutant {
        name: "webhook-acknowledged-not-kept",
        file: "crates/retrysafe/src/webhooks/receiver.rs",
        old: "Ok(Err(error)) => WebhookReceipt::NotKept(error.to_string()),",
        new: "Ok(Err(_)) => WebhookReceipt::Doubled,",
        breaks: "an event is acknowledged and lost",
        caught: Test(GATEWAY, "an_event_that_cannot_be_kept_is_not_taken"),
    },
    Mutant {
        name: "webhook-of-another-provider",
        file: "crates/retrysafe/src/stores/postgres/migrations/0005_inbox.sql",
        old: "WHERE e.state = 3 AND e.downstream_key = value AND e.kind = ANY (kinds)",
        new: "WHERE e.state = 3 AND e.downstream_key = value",
        breaks: "a provider decides about another provider's effects",
        caught: Test(GATEWAY, "an_event_decides_about_an_unknown_effect_of_its_provider_alone"),
    },
    Mutant {
        name: "webhook-own-decision-forgotten",
        file: "crates/retrysafe/src/webhooks/judge/decided.rs",
        old: "**why == *retrysafe_core::record::reason(reason)",
        new: "why.is_empty() && **why == *retrysafe_core::record::reason(reason)",
        breaks: "after a crash nobody knows which event has decided",
        caught: Test(GATEWAY, "an_event_that_a_dead_process_has_left_is_applied_by_the_next"),
    },
];
