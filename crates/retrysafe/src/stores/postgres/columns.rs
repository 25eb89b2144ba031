//! How does a batch of writes become arrays?
//!
//! One array per column, one element per record, sorted by record: `unnest` turns them into rows
//! again on the other side. The store's own connections and the application's transactions bind the
//! same arrays.

use retrysafe_core::record::{Answer, Becomes, First, Happened, MOMENTS_MAX, Record, State, Write};
use tokio_postgres::types::{ToSql, Type};

use super::row::{checksum, doubt_number, length_ms, moment_bytes, ms, print_bytes};

/// A parameter of one of our statements.
#[derive(Debug)]
pub(super) enum Column {
    Bytes(Vec<Vec<u8>>),
    MaybeBytes(Vec<Option<Vec<u8>>>),
    Texts(Vec<String>),
    MaybeTexts(Vec<Option<String>>),
    Numbers(Vec<i64>),
    MaybeNumbers(Vec<Option<i64>>),
    Shorts(Vec<i16>),
    MaybeShorts(Vec<Option<i16>>),
    Flags(Vec<bool>),
    OneBytes(Vec<u8>),
    OneFlag(bool),
}

impl Column {
    /// The value and the type that the store's own driver sends.
    pub(super) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Bytes(values) => (values, Type::BYTEA_ARRAY),
            Self::MaybeBytes(values) => (values, Type::BYTEA_ARRAY),
            Self::Texts(values) => (values, Type::TEXT_ARRAY),
            Self::MaybeTexts(values) => (values, Type::TEXT_ARRAY),
            Self::Numbers(values) => (values, Type::INT8_ARRAY),
            Self::MaybeNumbers(values) => (values, Type::INT8_ARRAY),
            Self::Shorts(values) => (values, Type::INT2_ARRAY),
            Self::MaybeShorts(values) => (values, Type::INT2_ARRAY),
            Self::Flags(values) => (values, Type::BOOL_ARRAY),
            Self::OneBytes(value) => (value, Type::BYTEA),
            Self::OneFlag(value) => (value, Type::BOOL),
        }
    }
}

/// The parameters of `sql/insert.sql`.
pub(super) fn inserts<'a>(firsts: impl Iterator<Item = &'a First>, keep: bool) -> Vec<Column> {
    let (mut ids, mut scopes, mut keys, mut prints) = (vec![], vec![], vec![], vec![]);
    let (mut methods, mut routes, mut paths) = (vec![], vec![], vec![]);
    let (mut checksums, mut ttls, mut leases, mut owners) = (vec![], vec![], vec![], vec![]);
    for first in firsts {
        let print = print_bytes(&first.fingerprint);
        let (scope, key) = (first.scope.as_bytes(), first.key.as_bytes());
        checksums.push(checksum(&first.id, scope, key, &print, &first.about));
        ids.push(first.id.as_bytes().to_vec());
        scopes.push(scope.to_vec());
        keys.push(key.to_vec());
        prints.push(print);
        methods.push(first.about.method.to_string());
        routes.push(first.about.route.to_string());
        paths.push(first.about.path.to_string());
        ttls.push(length_ms(first.ttl));
        leases.push(length_ms(first.lease));
        owners.push(first.owner.cast_signed());
    }
    vec![
        Column::Bytes(ids),
        Column::Bytes(scopes),
        Column::Bytes(keys),
        Column::Bytes(prints),
        Column::Texts(methods),
        Column::Texts(routes),
        Column::Texts(paths),
        Column::Numbers(checksums),
        Column::Numbers(ttls),
        Column::Numbers(leases),
        Column::Numbers(owners),
        Column::OneBytes(Happened::Began.encode()),
        Column::OneFlag(keep),
    ]
}

/// The parameters of `sql/swap.sql`.
pub(super) fn swaps<'a>(writes: impl Iterator<Item = (&'a Record, &'a Write)>) -> Vec<Column> {
    let (mut ids, mut froms, mut new_fences, mut ttls) = (vec![], vec![], vec![], vec![]);
    let (mut attempts, mut states, mut sinces, mut lengths) = (vec![], vec![], vec![], vec![]);
    let (mut untils, mut owners, mut doubts, mut lookups) = (vec![], vec![], vec![], vec![]);
    let (mut timelines, mut whats, mut labels) = (vec![], vec![], vec![]);
    let mut answers = vec![];
    for (from, write) in writes {
        let next = Next::of(from, write);
        ids.push(from.id.as_bytes().to_vec());
        froms.push(from.version.cast_signed());
        new_fences.push(write.new_fence);
        ttls.push(length_ms(write.ttl.unwrap_or(from.ttl)));
        attempts.push(next.attempts);
        states.push(next.state);
        sinces.push(next.since);
        lengths.push(next.length);
        untils.push(next.until);
        owners.push(next.owner);
        doubts.push(next.doubt);
        lookups.push(next.lookups);
        timelines.push(kept_moments(from, write));
        whats.push(write.what.as_ref().map(Happened::encode));
        labels.push(write.what.as_ref().map(label));
        answers.push(next.answer.map(|answer| answer.encode(&from.id)));
    }
    vec![
        Column::Bytes(ids),
        Column::Numbers(froms),
        Column::Flags(new_fences),
        Column::Numbers(ttls),
        Column::Numbers(attempts),
        Column::Shorts(states),
        Column::MaybeNumbers(sinces),
        Column::MaybeNumbers(lengths),
        Column::MaybeNumbers(untils),
        Column::MaybeNumbers(owners),
        Column::MaybeShorts(doubts),
        Column::MaybeNumbers(lookups),
        Column::Bytes(timelines),
        Column::MaybeBytes(whats),
        Column::MaybeTexts(labels),
        Column::MaybeBytes(answers),
    ]
}

/// About how many bytes a write will send.
pub(super) fn size(write: &Write) -> usize {
    match &write.becomes {
        Becomes::Completed(Answer::Kept(response)) => response.body.len() + 512,
        Becomes::Completed(Answer::NotKept { .. })
        | Becomes::Same
        | Becomes::Begun { .. }
        | Becomes::Renewed { .. }
        | Becomes::FailedRetryable
        | Becomes::Unknown(_)
        | Becomes::LookedUp
        | Becomes::Expired => 512,
    }
}

/// The state that [`Write::onto`] makes, with the times that only the server knows left open.
#[derive(Default)]
struct Next<'a> {
    attempts: i64,
    state: i16,
    /// None is the moment of the write.
    since: Option<i64>,
    /// Counts from the moment of the write, up to `until`.
    length: Option<i64>,
    until: Option<i64>,
    owner: Option<i64>,
    doubt: Option<i16>,
    lookups: Option<i64>,
    answer: Option<&'a Answer>,
}

impl<'a> Next<'a> {
    fn of(from: &Record, write: &'a Write) -> Self {
        let attempts = i64::from(from.attempts);
        let ttl = Some(length_ms(write.ttl.unwrap_or(from.ttl)));
        let same = || Self { attempts, ..Self::same(&from.state) };
        match (&write.becomes, &from.state) {
            (Becomes::Begun { owner, lease }, _) => Self {
                attempts: i64::from(from.attempts.saturating_add(1)),
                length: Some(length_ms(*lease)),
                owner: Some(owner.cast_signed()),
                ..Self::default()
            },
            (Becomes::Renewed { lease, lease_max }, State::InProgress { begun_at, .. }) => Self {
                length: Some(length_ms(*lease)),
                until: Some(ms(begun_at.plus(*lease_max))),
                ..same()
            },
            (Becomes::Completed(answer), _) => {
                Self { attempts, state: 1, length: ttl, answer: Some(answer), ..Self::default() }
            }
            (Becomes::FailedRetryable, _) => {
                Self { attempts, state: 2, length: ttl, ..Self::default() }
            }
            (Becomes::Unknown(doubt), _) => Self {
                attempts,
                state: 3,
                doubt: Some(doubt_number(*doubt)),
                lookups: Some(0),
                ..Self::default()
            },
            (Becomes::LookedUp, State::Unknown { lookups, .. }) => {
                Self { lookups: Some(i64::from(lookups.saturating_add(1))), ..same() }
            }
            (Becomes::Expired, State::Completed { .. } | State::FailedRetryable { .. }) => {
                Self { length: Some(0), until: None, ..same() }
            }
            (
                Becomes::Same | Becomes::Renewed { .. } | Becomes::LookedUp | Becomes::Expired,
                State::InProgress { .. }
                | State::Completed { .. }
                | State::FailedRetryable { .. }
                | State::Unknown { .. },
            ) => same(),
        }
    }

    fn same(state: &State) -> Self {
        match state {
            State::InProgress { owner, begun_at, lease_until } => Self {
                state: 0,
                since: Some(ms(*begun_at)),
                until: Some(ms(*lease_until)),
                owner: Some(owner.cast_signed()),
                ..Self::default()
            },
            State::Completed { settled_at, expires_at, .. } => Self {
                state: 1,
                since: Some(ms(*settled_at)),
                until: Some(ms(*expires_at)),
                ..Self::default()
            },
            State::FailedRetryable { settled_at, expires_at } => Self {
                state: 2,
                since: Some(ms(*settled_at)),
                until: Some(ms(*expires_at)),
                ..Self::default()
            },
            State::Unknown { since, doubt, lookups } => Self {
                state: 3,
                since: Some(ms(*since)),
                doubt: Some(doubt_number(*doubt)),
                lookups: Some(i64::from(*lookups)),
                ..Self::default()
            },
        }
    }
}

/// The moments that stay when another one is added: the oldest but the first make room for it.
fn kept_moments(from: &Record, write: &Write) -> Vec<u8> {
    let mut moments = from.timeline.clone();
    if write.what.is_some() {
        while moments.len() >= MOMENTS_MAX {
            moments.remove(1);
        }
    }
    moment_bytes(&moments)
}

/// What happened, for people who read the table of transitions.
fn label(what: &Happened) -> String {
    let code = |code: &Option<u16>| code.map(|code| format!(" {code}")).unwrap_or_default();
    let text = match what {
        Happened::Began => "began".into(),
        Happened::Settled(standing, status) => {
            format!("settled {}{}", standing.name(), code(status))
        }
        Happened::Doubted(doubt) => format!("doubted {}", doubt.name()),
        Happened::LateResult(fence, standing, status) => {
            format!("late result of fence {}: {}{}", fence.0, standing.name(), code(status))
        }
        Happened::LookedUp => "looked up".into(),
        Happened::Resolved(standing, judge, reason) => {
            format!("resolved {} by {}: {reason}", standing.name(), judge.name())
        }
        Happened::Expired(reason) => format!("expired: {reason}"),
    };
    text.replace('\0', "\u{fffd}")
}
