//! Does each fault fail the case that names it?

use retrysafe_core::conformance as suite;
use retrysafe_core::record::{Answer, Record, State};
use retrysafe_core::time::Time;

use crate::plain::PlainBench;

/// One way in which a store can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// An insert overwrites what is there.
    InsertPretendsNew,
    /// An insert looks first and writes later.
    InsertChecksThenActs,
    /// An insert is acknowledged and not written.
    InsertIsNotKept,
    /// A swap writes whatever the version is.
    SwapIgnoresVersion,
    /// A swap compares first and writes later.
    SwapChecksThenActs,
    /// A swap brings a reaped record back.
    SwapRaisesTheDead,
    /// A losing swap does not say what it lost to.
    LosersLearnNothing,
    /// Ownership changes under the same fence.
    FencesStay,
    /// Records are found by their key alone.
    ScopeIsDropped,
    /// Versions count the writes of one generation.
    VersionsRestart,
    /// Versions come from what is stored, and begin anew when nothing is.
    VersionsRestartAfterReaping,
    /// The sequence begins anew with the process.
    SequenceIsNotDurable,
    /// An ended lease counts as an ended record.
    LeasesFreeTheKey,
    /// An unknown record ends with its time to live.
    UnknownsExpire,
    /// Retention counts from the birth of a record.
    ExpiryCountsFromBirth,
    /// A record is kept for a millisecond longer.
    ExpiryIsLate,
    /// The reaper takes abandoned records in progress.
    ReapTakesRunning,
    /// The reaper takes old unknown records.
    ReapTakesUnknown,
    /// The reaper takes all there is.
    ReapIgnoresLimit,
    /// Time is read from the machine of whoever asks.
    ClockIsTheCallers,
    /// Two readings, and the second is earlier.
    ClockGoesBack,
    /// The clock begins anew with the process.
    ClockIsNotDurable,
    /// A record that cannot be read is none.
    DamageIsAbsence,
    /// Bodies are kept as text.
    BodiesAreText,
    /// Headers are kept as a map.
    HeadersAreAMap,
    /// Scans count how many records they have passed.
    ScansCountPlaces,
    /// What was in progress when the process ended is left so.
    OwnersAreForgotten,
    /// The timeline is not kept.
    TimelineIsCut,
    /// Credential marks are not kept.
    MarksAreDropped,
    /// A probe is a record like any other.
    ProbesAreRecords,
    /// The heads of answers are not kept.
    HeadsAreDropped,
    /// What is in doubt has no owner any more.
    UnknownsForgetTheirOwner,
    /// A record that has changed is said to be as it was known.
    ChangesGoUnnoticed,
    /// A hint is promised and never comes.
    HintsNeverCome,
    /// How far a flow has come is not kept.
    FlowsAreDropped,
    /// A released flow is reaped like any other record.
    ReapTakesFlows,
}

impl Flaw {
    /// All of them; a bench names its flaw by the place in this list.
    pub(crate) const ALL: [Self; 36] = [
        Self::InsertPretendsNew,
        Self::InsertChecksThenActs,
        Self::InsertIsNotKept,
        Self::SwapIgnoresVersion,
        Self::SwapChecksThenActs,
        Self::SwapRaisesTheDead,
        Self::LosersLearnNothing,
        Self::FencesStay,
        Self::ScopeIsDropped,
        Self::VersionsRestart,
        Self::VersionsRestartAfterReaping,
        Self::SequenceIsNotDurable,
        Self::LeasesFreeTheKey,
        Self::UnknownsExpire,
        Self::ExpiryCountsFromBirth,
        Self::ExpiryIsLate,
        Self::ReapTakesRunning,
        Self::ReapTakesUnknown,
        Self::ReapIgnoresLimit,
        Self::ClockIsTheCallers,
        Self::ClockGoesBack,
        Self::ClockIsNotDurable,
        Self::DamageIsAbsence,
        Self::BodiesAreText,
        Self::HeadersAreAMap,
        Self::ScansCountPlaces,
        Self::OwnersAreForgotten,
        Self::TimelineIsCut,
        Self::MarksAreDropped,
        Self::ProbesAreRecords,
        Self::HeadsAreDropped,
        Self::UnknownsForgetTheirOwner,
        Self::ChangesGoUnnoticed,
        Self::HintsNeverCome,
        Self::FlowsAreDropped,
        Self::ReapTakesFlows,
    ];

    /// What the machine of whoever asks believes the time to be.
    #[expect(clippy::disallowed_methods, reason = "this is the flaw")]
    pub(crate) fn callers_time() -> Time {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Time::from_ms(wall.as_millis() as u64)
    }

    /// What this flaw makes of a record on its way to the disk.
    pub(crate) fn spoil(self, record: &mut Record) {
        if self == Self::TimelineIsCut {
            record.timeline.truncate(2);
        }
        if self == Self::MarksAreDropped {
            record.mark = None;
        }
        if self == Self::FlowsAreDropped {
            record.flow = None;
        }
        if let State::InProgress { head, .. } | State::Unknown { head, .. } = &mut record.state
            && self == Self::HeadsAreDropped
        {
            *head = None;
        }
        if let State::Unknown { owner, .. } = &mut record.state
            && self == Self::UnknownsForgetTheirOwner
        {
            *owner = None;
        }
        let State::Completed { answer: Answer::Kept(response), .. } = &mut record.state else {
            return;
        };
        if self == Self::BodiesAreText {
            response.body = String::from_utf8_lossy(&response.body).into_owned().into();
        }
        if self == Self::HeadersAreAMap {
            response.headers.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
            response.headers.dedup_by(|a, b| a.0 == b.0);
        }
    }
}

/// Runs a case that must fail.
fn fails(name: &str, case: impl FnOnce(&str)) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(name)));
    let failure = outcome.expect_err(&format!("{name} does not notice"));
    let message = failure.downcast_ref::<String>().map_or("", String::as_str);
    assert!(!message.starts_with("there is no case"), "{message}");
}

/// How a theme's cases are run.
macro_rules! runner {
    (boundaries, $bench:ty) => {
        suite::run_still::<$bench>
    };
    (damage, $bench:ty) => {
        suite::run_damage::<$bench>
    };
    (reopening, $bench:ty) => {
        suite::run_reopen::<$bench>
    };
    ($theme:ident, $bench:ty) => {
        suite::run::<$bench>
    };
}

/// One test per flaw: the cases, by name, that must notice it.
macro_rules! broken {
    ($($test:ident: $flaw:ident => $($theme:ident::$case:ident),+;)+) => {
        $(
            #[test]
            fn $test() {
                $(fails(
                    concat!(stringify!($theme), "::", stringify!($case)),
                    runner!($theme, PlainBench<{ Flaw::$flaw as usize }>),
                );)+
            }
        )+

        #[test]
        fn every_flaw_has_a_case_that_notices_it() {
            let mut noticed = [$(Flaw::$flaw as usize),+];
            noticed.sort_unstable();
            assert_eq!(noticed.to_vec(), (0..Flaw::ALL.len()).collect::<Vec<_>>());
            for (at, flaw) in Flaw::ALL.into_iter().enumerate() {
                assert_eq!(flaw as usize, at);
            }
        }
    };
}

broken! {
    an_insert_that_overwrites_is_noticed: InsertPretendsNew =>
        inserts::a_second_insert_returns_the_first_record,
        inserts::an_insert_over_a_live_settled_record_returns_it,
        inserts::of_32_inserts_one_is_new_and_all_see_its_record,
        verbs::of_32_begins_one_executes,
        verbs::a_first_request_executes_and_its_retries_replay,
        storms::a_storm_permits_no_second_effect;
    an_insert_that_checks_then_acts_is_noticed: InsertChecksThenActs =>
        inserts::of_32_inserts_one_is_new_and_all_see_its_record,
        inserts::crossing_races_on_many_keys_have_one_winner_each,
        verbs::of_32_begins_one_executes;
    an_insert_that_is_not_kept_is_noticed: InsertIsNotKept =>
        inserts::an_inserted_record_is_loaded_as_it_was_returned,
        inserts::of_32_inserts_one_is_new_and_all_see_its_record;
    a_swap_that_ignores_the_version_is_noticed: SwapIgnoresVersion =>
        swaps::a_swap_from_a_stale_version_loses_and_returns_the_current_record,
        swaps::of_32_swaps_from_one_version_one_is_done,
        swaps::a_sweeper_that_read_before_never_overwrites_a_settled_record,
        swaps::no_update_is_lost,
        verdicts::of_32_verdicts_one_is_decided,
        upkeep::a_sweep_beside_settles_never_loses_an_answer;
    a_swap_that_checks_then_acts_is_noticed: SwapChecksThenActs =>
        swaps::of_32_swaps_from_one_version_one_is_done,
        swaps::no_update_is_lost,
        verbs::of_32_begins_after_a_retryable_end_one_executes;
    a_swap_that_raises_the_dead_is_noticed: SwapRaisesTheDead =>
        swaps::a_swap_of_a_reaped_record_is_lost_to_none,
        swaps::a_swap_of_an_absent_record_is_lost_to_none,
        verbs::a_settle_of_a_reaped_record_is_lost_to_none;
    losers_that_learn_nothing_are_noticed: LosersLearnNothing =>
        swaps::a_swap_from_a_stale_version_loses_and_returns_the_current_record,
        faults::an_ambiguous_settle_is_repeated;
    fences_that_stay_are_noticed: FencesStay =>
        swaps::the_fence_changes_with_ownership_only,
        leases::an_overtaken_owner_renews_nothing,
        verdicts::evidence_of_execution_is_replayed;
    a_dropped_scope_is_noticed: ScopeIsDropped =>
        names::one_key_in_two_scopes_is_two_records,
        names::existence_in_one_scope_changes_nothing_in_another,
        names::scopes_with_shifted_borders_are_different;
    versions_that_restart_are_noticed: VersionsRestart =>
        numbers::numbers_rise_across_reaping,
        swaps::a_swap_from_a_reaped_generation_loses;
    versions_that_restart_after_reaping_are_noticed: VersionsRestartAfterReaping =>
        numbers::numbers_rise_across_reaping,
        swaps::a_swap_from_a_reaped_generation_loses,
        verbs::a_settle_never_reaches_the_next_generation;
    a_sequence_that_is_not_durable_is_noticed: SequenceIsNotDurable =>
        reopening::numbers_rise_across_restarts,
        reopening::numbers_rise_across_reaping_and_restarts;
    leases_that_free_the_key_are_noticed: LeasesFreeTheKey =>
        inserts::an_insert_over_an_ended_lease_returns_it_at_any_age,
        verbs::of_32_begins_on_an_ended_lease_none_executes,
        storms::a_storm_permits_no_second_effect;
    unknowns_that_expire_are_noticed: UnknownsExpire =>
        inserts::an_insert_over_an_unknown_record_returns_it_at_any_age,
        verbs::an_unknown_request_never_executes,
        storms::a_storm_permits_no_second_effect;
    expiry_that_counts_from_birth_is_noticed: ExpiryCountsFromBirth =>
        clocks::retention_counts_from_the_verdict_not_from_the_birth;
    expiry_that_is_late_is_noticed: ExpiryIsLate =>
        boundaries::a_record_is_live_until_the_millisecond_of_its_expiry,
        boundaries::a_record_is_reaped_from_the_millisecond_of_its_expiry;
    a_reaper_that_takes_running_records_is_noticed: ReapTakesRunning =>
        reaping::reap_never_touches_in_progress_and_unknown_at_any_age,
        reaping::a_record_begun_again_is_not_reaped_at_its_former_expiry;
    a_reaper_that_takes_unknown_records_is_noticed: ReapTakesUnknown =>
        reaping::reap_never_touches_in_progress_and_unknown_at_any_age,
        verbs::an_unknown_request_never_executes;
    a_reaper_that_ignores_its_limit_is_noticed: ReapIgnoresLimit =>
        reaping::reap_honours_its_limit;
    a_clock_of_the_callers_is_noticed: ClockIsTheCallers =>
        clocks::an_advance_moves_the_stores_clock,
        inserts::an_insert_over_an_expired_record_is_new;
    a_clock_that_goes_back_is_noticed: ClockGoesBack =>
        clocks::readings_never_go_back,
        clocks::readings_never_go_back_between_tasks;
    a_clock_that_is_not_durable_is_noticed: ClockIsNotDurable =>
        reopening::the_clock_does_not_go_back_over_a_restart;
    damage_taken_for_absence_is_noticed: DamageIsAbsence =>
        damage::a_load_of_a_damaged_record_is_an_error,
        damage::an_insert_over_a_damaged_record_is_refused,
        damage::a_begin_on_a_damaged_record_never_executes,
        damage::a_scan_lists_damaged_records_and_goes_on,
        damage::a_swap_of_a_damaged_record_is_refused_or_mends_it;
    bodies_kept_as_text_are_noticed: BodiesAreText =>
        payloads::a_body_of_all_256_bytes_comes_back,
        payloads::bodies_of_one_byte_come_back;
    headers_kept_as_a_map_are_noticed: HeadersAreAMap =>
        payloads::repeated_headers_come_back_in_order;
    scans_that_count_places_are_noticed: ScansCountPlaces =>
        scans::a_scan_finds_all_while_its_pages_stop_matching,
        scans::a_scan_goes_on_after_its_last_record_was_reaped;
    forgotten_owners_are_noticed: OwnersAreForgotten =>
        reopening::running_records_are_in_doubt_where_their_owners_are_gone;
    a_timeline_that_is_cut_is_noticed: TimelineIsCut =>
        payloads::every_kind_of_moment_comes_back;
    marks_that_are_dropped_are_noticed: MarksAreDropped =>
        marks::a_mark_comes_back_from_every_write,
        marks::a_new_attempt_replaces_the_mark,
        marks::another_mark_is_refused_unless_the_record_was_released,
        marks::another_mark_does_not_move_an_ended_lease,
        marks::of_32_marks_on_a_released_record_one_executes,
        reopening::credential_marks_survive;
    heads_that_are_dropped_are_noticed: HeadsAreDropped =>
        heads::a_head_comes_back_from_every_write,
        heads::keeping_a_head_renews_the_lease,
        heads::a_caller_learns_the_head_of_an_answer_that_broke_off,
        heads::an_ambiguous_head_is_read_back,
        heads::a_record_with_a_head_is_not_withdrawn,
        reopening::heads_and_owners_survive;
    unknowns_without_an_owner_are_noticed: UnknownsForgetTheirOwner =>
        heads::an_unknown_record_keeps_its_owner,
        heads::an_unknown_record_is_withdrawn_by_its_owner,
        reopening::heads_and_owners_survive;
    changes_that_go_unnoticed_are_noticed: ChangesGoUnnoticed =>
        changes::a_load_unless_it_changed_says_what_is_known,
        changes::a_load_unless_it_changed_sees_another_generation;
    hints_that_never_come_are_noticed: HintsNeverCome =>
        changes::a_hint_comes_after_a_write,
        changes::a_hint_that_nobody_waits_for_does_no_harm;
    flows_that_are_dropped_are_noticed: FlowsAreDropped =>
        flows::a_flow_comes_back_from_every_write,
        flows::a_flow_goes_on_from_its_recovery_point,
        flows::an_unfinished_flow_is_neither_expired_nor_reaped,
        reopening::flows_survive_and_go_on;
    a_reaper_that_takes_flows_is_noticed: ReapTakesFlows =>
        flows::an_unfinished_flow_is_neither_expired_nor_reaped;
    probes_that_are_records_are_noticed: ProbesAreRecords =>
        scans::a_probe_is_answered_and_leaves_no_record;
}

/// The random comparison finds faults too, without being told where to look.
#[test]
fn the_model_notices_what_it_was_not_told() {
    fn disagrees<const FLAW: usize>() {
        let outcome = std::panic::catch_unwind(suite::compare::<PlainBench<FLAW>>);
        assert!(outcome.is_err(), "{:?} goes unnoticed", Flaw::ALL[FLAW]);
    }
    disagrees::<{ Flaw::SwapIgnoresVersion as usize }>();
    disagrees::<{ Flaw::VersionsRestart as usize }>();
    disagrees::<{ Flaw::UnknownsExpire as usize }>();
    disagrees::<{ Flaw::ExpiryIsLate as usize }>();
    disagrees::<{ Flaw::ReapIgnoresLimit as usize }>();
    disagrees::<{ Flaw::ReapTakesRunning as usize }>();
    disagrees::<{ Flaw::MarksAreDropped as usize }>();
    disagrees::<{ Flaw::HeadsAreDropped as usize }>();
    disagrees::<{ Flaw::UnknownsForgetTheirOwner as usize }>();
    disagrees::<{ Flaw::FlowsAreDropped as usize }>();
}
