//! Is a key one caller's own?

use super::samples::*;
use super::stand::Stand;
use crate::scope::Scope;
use crate::store::Filter;

/// Two callers may choose the same key.
pub(super) async fn one_key_in_two_scopes_is_two_records(bench: Stand) {
    let store = bench.store();
    let mine = new(&store, first_in(&scope("a"), "k")).await;
    let theirs = new(&store, first_in(&scope("b"), "k")).await;
    assert_ne!(mine.id, theirs.id);
    swapped(&store, &mine, complete(answer("mine"))).await;
    assert_eq!(load(&store, theirs.id).await, Some(theirs));
}

/// What one scope does is not to be seen from another, in any state.
pub(super) async fn existence_in_one_scope_changes_nothing_in_another(bench: Stand) {
    let store = bench.store();
    for n in 0..20 {
        let record = new(&store, first_in(&scope("a"), &format!("k{n}"))).await;
        if n % 2 == 0 {
            swapped(&store, &record, complete(answer("secret"))).await;
        }
    }
    for n in 0..20 {
        new(&store, first_in(&scope("b"), &format!("k{n}"))).await;
    }
}

/// The border between the parts of a scope is part of it.
pub(super) async fn scopes_with_shifted_borders_are_different(bench: Stand) {
    let store = bench.store();
    let scopes = [
        Scope::of([("a", &b"bc"[..])]),
        Scope::of([("ab", &b"c"[..])]),
        Scope::of([("a", &b"b"[..]), ("c", &b""[..])]),
        Scope::of([("a", &b""[..]), ("bc", &b""[..])]),
        Scope::of([("a", &b"bc1:d,0:,"[..])]),
        Scope::of([("a", &b"bc"[..]), ("d", &b""[..])]),
    ];
    for scope in &scopes {
        new(&store, first_in(scope, "k")).await;
    }
    for scope in &scopes {
        assert_eq!(existing(&store, first_in(scope, "k")).await.scope, *scope);
    }
}

/// A scope may be any bytes, none at all, or many.
pub(super) async fn scopes_of_any_bytes_come_back(bench: Stand) {
    let store = bench.store();
    let every: Vec<u8> = (0..=255).collect();
    let long = vec![0xff; 4_096];
    let scopes = [
        Scope::of([]),
        Scope::of([("", &b""[..])]),
        Scope::of([("n", &b"\0"[..])]),
        Scope::of([("n", &every[..])]),
        Scope::of([("n", &long[..])]),
        Scope::anonymous(),
    ];
    for scope in &scopes {
        let record = new(&store, first_in(scope, "k")).await;
        assert_eq!(record.scope, *scope);
        assert_eq!(load(&store, record.id).await.as_ref(), Some(&record));
        let filter = Filter { scope: Some(scope.clone()), ..Filter::default() };
        assert_eq!(all(&store, filter, 10).await, [record]);
    }
}

/// Keys are compared byte by byte: no folding of case, no trimming.
pub(super) async fn keys_that_differ_in_case_or_spaces_are_different(bench: Stand) {
    let store = bench.store();
    let keys = ["order-1", "Order-1", "ORDER-1", "order-1 ", " order-1", "order-01", "order_1"];
    for key in keys {
        new(&store, first(key)).await;
    }
    assert_eq!(all(&store, Filter::default(), 100).await.len(), keys.len());
}

/// The longest key there is, and one that differs from it in its last character.
pub(super) async fn long_keys_are_different_to_the_last_character(bench: Stand) {
    let store = bench.store();
    let long = "k".repeat(crate::key::KEY_CHARS_MAX - 1);
    new(&store, first(&format!("{long}a"))).await;
    new(&store, first(&format!("{long}b"))).await;
    existing(&store, first(&format!("{long}a"))).await;
}

/// A caller may have many keys.
pub(super) async fn a_thousand_keys_of_one_scope_are_a_thousand_records(bench: Stand) {
    const KEYS: usize = 1_000;
    let store = bench.store();
    race(RACERS, |task| {
        let store = store.clone();
        async move {
            for n in (task..KEYS).step_by(RACERS) {
                new(&store, first(&format!("k{n}"))).await;
            }
        }
    })
    .await;
    assert_eq!(all(&store, Filter::default(), 300).await.len(), KEYS);
}
