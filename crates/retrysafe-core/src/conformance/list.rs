//! Which cases are there?
//!
//! One list, by theme, for what every store must do and for what only some can do. The suite makes a
//! table of it, and a store's tests make a test of each entry. A case that is not listed is a
//! function that nobody calls, so the compiler names it.

/// Makes every case a test for one store: its name, its [`Bench`](crate::conformance::Bench), and
/// behind a colon what it can do.
///
/// See [the module](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($name:ident, $bench:ty $(: $can:ident $(+ $more:ident)*)?) => {
        mod $name {
            #[allow(unused_imports, reason = "the bench may be named by a whole path")]
            use super::*;

            $crate::conformance!(@Bench @tests $bench, run);
            $crate::conformance!(@compare $bench, model, compare);
            $(
                $crate::conformance!(@can $can $bench);
                $($crate::conformance!(@can $more $bench);)*
            )?
        }
    };
    (@can Still $bench:ty) => {
        $crate::conformance!(@Still @tests $bench, run_still);
    };
    (@can Damage $bench:ty) => {
        $crate::conformance!(@Damage @tests $bench, run_damage);
    };
    (@can Reopen $bench:ty) => {
        $crate::conformance!(@Reopen @tests $bench, run_reopen);
        $crate::conformance!(@compare $bench, model_across_restarts, compare_across_restarts);
    };
    (@Bench $($then:tt)*) => {
        $crate::conformance! {
            $($then)*;
            inserts:
                an_insert_into_nothing_is_new
                an_inserted_record_is_loaded_as_it_was_returned
                a_load_of_nothing_is_none
                a_second_insert_returns_the_first_record
                of_32_inserts_one_is_new_and_all_see_its_record
                of_32_inserts_of_32_keys_all_are_new
                crossing_races_on_many_keys_have_one_winner_each
                an_insert_over_an_expired_record_is_new
                of_32_inserts_over_an_expired_record_one_is_new
                an_insert_over_a_live_settled_record_returns_it
                an_insert_over_an_unknown_record_returns_it_at_any_age
                an_insert_over_an_ended_lease_returns_it_at_any_age
                losing_inserts_change_nothing
                an_expired_record_has_one_heir;
            swaps:
                a_swap_from_the_current_version_is_done
                a_swap_from_a_stale_version_loses_and_returns_the_current_record
                of_32_swaps_from_one_version_one_is_done
                a_swap_of_an_absent_record_is_lost_to_none
                a_swap_of_a_reaped_record_is_lost_to_none
                a_swap_from_a_former_generation_loses
                a_swap_from_a_reaped_generation_loses
                a_record_that_looks_as_before_has_another_version
                a_sweeper_that_read_before_never_overwrites_a_settled_record
                losing_swaps_change_nothing
                no_update_is_lost
                a_swap_of_one_record_leaves_the_others_alone
                the_fence_changes_with_ownership_only
                a_swap_keeps_what_it_does_not_name
                a_swap_of_an_expired_record_is_done
                mixed_writers_have_one_winner
                every_standing_is_kept;
            numbers:
                versions_rise_with_every_write
                numbers_rise_while_no_time_passes
                numbers_rise_across_expiry
                numbers_rise_across_reaping
                a_reader_never_sees_a_version_go_back
                versions_rise_in_the_order_of_the_writes;
            clocks:
                readings_never_go_back
                readings_never_go_back_between_tasks
                an_advance_moves_the_stores_clock
                a_write_is_stamped_with_the_time_of_the_write
                a_settled_record_expires_its_ttl_after_the_settle
                a_settle_may_change_the_ttl
                retention_counts_from_the_verdict_not_from_the_birth
                a_lease_counts_from_its_write
                an_expired_record_is_loaded_until_it_is_reaped
                a_record_may_be_kept_for_no_time
                a_record_may_be_kept_for_a_century
                an_insert_agrees_with_its_own_reading;
            reaping:
                reap_takes_expired_records_of_both_settled_states
                reap_leaves_live_records
                reap_never_touches_in_progress_and_unknown_at_any_age
                reap_honours_its_limit
                concurrent_reapers_count_each_record_once
                reap_beside_inserts_never_takes_a_new_generation
                reap_beside_loads_shows_all_or_nothing
                reap_beside_a_begin_never_takes_what_is_running
                a_reaped_key_may_be_used_again
                a_new_generation_is_reaped_at_its_own_time
                a_record_begun_again_is_not_reaped_at_its_former_expiry
                a_record_whose_retention_was_ended_is_reaped
                reap_gets_through_a_backlog
                a_replaced_record_is_not_reaped_as_well;
            payloads:
                an_empty_body_comes_back
                bodies_of_one_byte_come_back
                a_body_of_all_256_bytes_comes_back
                bodies_around_64_kib_come_back
                a_body_of_1_mib_comes_back
                a_body_of_5_mib_comes_back
                large_bodies_settled_together_do_not_mix
                repeated_headers_come_back_in_order
                empty_and_high_header_values_come_back
                many_and_large_headers_come_back
                statuses_come_back
                answers_that_were_not_kept_come_back
                what_the_operator_sees_comes_back
                extreme_numbers_come_back
                every_part_of_the_fingerprint_comes_back
                every_doubt_comes_back
                every_kind_of_moment_comes_back;
            names:
                one_key_in_two_scopes_is_two_records
                existence_in_one_scope_changes_nothing_in_another
                scopes_with_shifted_borders_are_different
                scopes_of_any_bytes_come_back
                keys_that_differ_in_case_or_spaces_are_different
                long_keys_are_different_to_the_last_character
                a_thousand_keys_of_one_scope_are_a_thousand_records;
            scans:
                a_scan_of_nothing_is_one_empty_page
                pages_of_one_show_each_record_once
                pages_of_seven_show_each_record_once
                pages_of_the_maximum_show_each_record_once
                odd_limits_are_bounded_not_refused
                a_cursor_may_be_used_again
                a_scan_finds_by_standing
                a_scan_finds_ended_leases
                a_scan_finds_by_scope
                a_scan_finds_by_route
                a_scan_finds_by_key_in_every_scope
                a_scan_finds_by_path
                a_scan_finds_by_the_first_digits_of_the_id
                a_scan_finds_what_a_person_mentions
                a_scan_finds_by_creation
                conditions_of_a_scan_add_up
                a_scan_shows_expired_records_until_they_are_reaped
                a_scan_beside_inserts_meets_all_old_records
                a_scan_beside_swaps_meets_each_record
                a_scan_of_ended_leases_meets_each_while_they_move
                a_scan_beside_settles_meets_what_still_runs
                a_scan_beside_reaping_meets_what_stays
                a_scan_goes_on_after_its_last_record_was_reaped
                a_scan_finds_all_while_its_pages_stop_matching
                concurrent_scans_are_independent
                a_cursor_of_another_kind_does_no_harm
                a_probe_is_answered_and_leaves_no_record;
            sights:
                the_latest_records_come_first
                the_latest_records_are_filtered_like_any
                a_record_that_is_written_again_is_the_latest
                a_census_counts_unknown_records
                a_census_knows_since_when_the_oldest_is_unknown;
            changes:
                a_load_unless_it_changed_says_what_is_known
                a_load_unless_it_changed_sees_another_generation
                whoever_waits_for_a_change_sees_it
                a_hint_comes_after_a_write
                a_hint_that_nobody_waits_for_does_no_harm
                a_voucher_knows_what_is_there_and_nothing_else;
            drops:
                a_dropped_insert_is_applied_whole_or_not_at_all
                a_dropped_swap_is_applied_whole_or_not_at_all
                dropped_reads_and_reaps_do_no_harm
                a_race_with_dropped_callers_has_one_winner
                aborted_tasks_leave_the_store_usable;
            verbs:
                a_first_request_executes_and_its_retries_replay
                of_32_begins_one_executes
                duplicates_beside_a_settle_see_it_running_or_its_answer
                of_32_begins_after_a_retryable_end_one_executes
                another_request_under_the_key_is_a_mismatch_in_every_state
                another_request_does_not_move_an_ended_lease
                an_expired_key_may_name_another_request
                of_32_begins_on_an_ended_lease_none_executes
                an_unknown_request_never_executes
                a_late_owner_settles_what_is_unknown
                a_settle_after_the_lease_counts_if_nobody_has_looked
                an_overtaken_owner_loses_and_leaves_evidence
                a_late_no_contradicts_no_other_attempt
                a_settle_of_a_reaped_record_is_lost_to_none
                a_settle_never_reaches_the_next_generation
                a_key_lives_through_its_whole_story
                an_answer_that_was_not_kept_replays_as_such;
            marks:
                a_mark_comes_back_from_every_write
                a_new_attempt_replaces_the_mark
                another_mark_is_refused_unless_the_record_was_released
                another_mark_does_not_move_an_ended_lease
                of_32_marks_on_a_released_record_one_executes;
            leases:
                a_renewed_lease_outlives_its_first_length
                a_renewal_changes_only_version_and_lease
                past_lease_max_the_owner_is_in_doubt_and_its_settle_counts
                an_unknown_record_is_not_renewed
                an_overtaken_owner_renews_nothing
                a_reaped_record_is_not_renewed
                lease_max_counts_from_the_attempt
                a_withdrawn_begin_frees_its_key
                only_the_owner_withdraws
                renewals_beside_a_sweeper_never_lose_the_answer
                a_lease_may_carry_another_ttl;
            heads:
                a_head_comes_back_from_every_write
                an_unknown_record_keeps_its_owner
                keeping_a_head_renews_the_lease
                a_caller_learns_the_head_of_an_answer_that_broke_off
                an_answer_that_came_whole_replaces_its_head
                only_a_believed_owner_keeps_a_head
                an_ambiguous_head_is_read_back
                an_unknown_record_is_withdrawn_by_its_owner
                a_record_with_a_head_is_not_withdrawn
                a_withdrawal_beside_a_verdict_is_decided_once;
            flows:
                a_flow_comes_back_from_every_write
                a_begin_carries_the_start_of_its_flow
                a_flow_goes_on_from_its_recovery_point
                of_32_begins_on_a_resumable_flow_one_goes_on
                an_overtaken_owner_advances_nothing
                an_advance_starts_where_it_says
                a_call_is_resumed_until_its_provider_forgets
                an_unkeyed_call_is_unknown_when_its_owner_dies
                under_a_first_sent_mark_nothing_is_released
                only_the_owner_of_a_mark_clears_it
                a_withdrawn_takeover_only_ends_the_lease
                an_unfinished_flow_is_neither_expired_nor_reaped
                evidence_about_a_call_moves_its_flow
                a_late_result_moves_an_unknown_flow
                a_flow_of_another_version_is_held
                an_ambiguous_advance_is_repeated
                a_sweep_leaves_resumable_flows
                the_largest_flow_comes_back;
            given_up:
                a_flow_without_a_call_in_flight_is_never_unknown
                a_lease_that_was_given_back_is_not_renewed
                the_calls_of_another_generation_have_other_keys;
            verdicts:
                evidence_of_execution_is_replayed
                evidence_of_the_mere_fact_is_final
                proof_of_no_execution_frees_the_key
                a_late_no_against_the_evidence_is_a_contradiction
                of_32_verdicts_one_is_decided
                a_verdict_beside_a_late_settle_is_decided_once
                a_late_owner_is_not_told_of_another_request
                a_verdict_decides_the_attempt_that_it_is_about
                a_second_verdict_is_refused
                only_unknown_requests_are_decided
                lookups_are_counted
                an_ended_retention_frees_the_key
                running_and_unknown_records_are_not_expired
                a_look_shows_live_records_only;
            upkeep:
                a_sweep_doubts_ended_leases_only
                a_sweep_honours_its_limit
                concurrent_sweepers_count_each_lease_once
                a_sweep_beside_settles_never_loses_an_answer
                upkeep_beside_begins_permits_no_second_execution
                a_replay_beside_the_reaper_is_whole_or_a_new_generation
                reap_deletes_what_has_expired
                a_timeline_is_bounded;
            faults:
                a_refused_begin_leaves_nothing
                an_ambiguous_begin_is_withdrawn
                an_ambiguous_begin_that_was_not_applied_leaves_nothing
                an_ambiguous_begin_that_is_not_withdrawn_becomes_unknown
                a_begin_that_lands_late_executes_nothing
                a_begin_that_lands_late_disturbs_nobody
                an_ambiguous_second_attempt_is_withdrawn
                an_ambiguous_withdrawal_is_repeated
                an_ambiguous_settle_is_repeated
                a_settle_that_changes_its_word_is_refused
                a_settle_that_lands_late_changes_nothing
                a_settle_repeated_after_the_lease_holds
                a_late_result_that_cannot_be_kept_does_no_harm
                an_ambiguous_renewal_keeps_the_lease
                an_ambiguous_verdict_is_decided_once
                an_ambiguous_expire_is_repeated
                a_sweep_goes_on_past_failures
                upkeep_says_when_it_cannot_work
                a_begin_that_was_dropped_is_withdrawn
                a_settle_that_was_dropped_permits_no_second_execution;
            storms:
                a_storm_permits_no_second_effect;
        }
    };
    (@Still $($then:tt)*) => {
        $crate::conformance! {
            $($then)*;
            boundaries:
                the_clock_stands_still_until_it_is_advanced
                a_record_is_live_until_the_millisecond_of_its_expiry
                a_record_is_reaped_from_the_millisecond_of_its_expiry
                a_lease_is_over_at_the_millisecond_of_its_end
                a_begin_sees_the_last_millisecond_of_a_lease
                a_replay_names_the_millisecond_of_expiry
                a_lease_is_renewed_up_to_lease_max_exactly
                created_before_leaves_out_the_millisecond_itself;
        }
    };
    (@Damage $($then:tt)*) => {
        $crate::conformance! {
            $($then)*;
            damage:
                a_load_of_a_damaged_record_is_an_error
                an_insert_over_a_damaged_record_is_refused
                a_begin_on_a_damaged_record_never_executes
                a_swap_of_a_damaged_record_is_refused_or_mends_it
                a_scan_lists_damaged_records_and_goes_on
                other_records_are_unaffected
                a_sweep_goes_on_past_damage
                the_reaper_does_not_take_damage_for_expiry;
        }
    };
    (@Reopen $($then:tt)*) => {
        $crate::conformance! {
            $($then)*;
            reopening:
                settled_and_unknown_records_survive
                answers_replay_after_a_restart
                credential_marks_survive
                heads_and_owners_survive
                flows_survive_and_go_on
                running_records_are_in_doubt_where_their_owners_are_gone
                a_lease_from_before_the_restart_still_settles
                numbers_rise_across_restarts
                numbers_rise_across_reaping_and_restarts
                the_clock_does_not_go_back_over_a_restart
                reaped_records_stay_gone
                the_last_generation_is_the_one_that_survives
                a_swap_from_before_the_restart_loses_to_a_later_one
                restarts_in_a_row_change_nothing_more
                scans_are_whole_after_a_restart
                upkeep_goes_on_after_a_restart;
        }
    };
    (@table; $($theme:ident: $($case:ident)+;)+) => {
        &[$($((
            concat!(stringify!($theme), "::", stringify!($case)),
            |bench| Box::pin($theme::$case(bench)),
        ),)+)+]
    };
    (@tests $bench:ty, $run:ident; $($theme:ident: $($case:ident)+;)+) => {
        $(
            mod $theme {
                #[allow(unused_imports, reason = "the bench may be named by a whole path")]
                use super::*;

                $(
                    #[test]
                    fn $case() {
                        let case = concat!(stringify!($theme), "::", stringify!($case));
                        $crate::conformance::$run::<$bench>(case);
                    }
                )+
            }
        )+
    };
    (@compare $bench:ty, $theme:ident, $run:ident) => {
        mod $theme {
            #[allow(unused_imports, reason = "the bench may be named by a whole path")]
            use super::*;

            #[test]
            fn the_store_does_what_a_plain_map_does() {
                $crate::conformance::$run::<$bench>();
            }
        }
    };
}
