//! How does a batch of writes become arrays?
//!
//! One array per column, one element per record, sorted by record: `unnest` turns them into rows
//! again on the other side. The store's own connections and the application's transactions bind the
//! same arrays.

use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::key::KeyDigest;
use retrysafe_core::record::{
    About, Answer, AnswerHead, Becomes, First, Happened, LateResult, Record, State, Write,
    make_room,
};
use retrysafe_core::scope::{CredentialMark, Id, Scope};
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
            Self::OneFlag(value) => (value, Type::BOOL),
        }
    }
}

/// What never changes about a record, one array per column.
#[derive(Default)]
struct Fixed {
    ids: Vec<Vec<u8>>,
    scopes: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
    prints: Vec<Vec<u8>>,
    methods: Vec<String>,
    routes: Vec<String>,
    paths: Vec<String>,
    checksums: Vec<i64>,
}

impl Fixed {
    fn push(
        &mut self,
        id: &Id,
        scope: &Scope,
        key: &KeyDigest,
        print: &Fingerprint,
        about: &About,
    ) {
        let print = print_bytes(print);
        let (scope, key) = (scope.as_bytes(), key.as_bytes());
        self.checksums.push(checksum(id, scope, key, &print, about));
        self.ids.push(id.as_bytes().to_vec());
        self.scopes.push(scope.to_vec());
        self.keys.push(key.to_vec());
        self.prints.push(print);
        self.methods.push(about.method.to_string());
        self.routes.push(about.route.to_string());
        self.paths.push(about.path.to_string());
    }

    fn columns(self) -> [Column; 8] {
        [
            Column::Bytes(self.ids),
            Column::Bytes(self.scopes),
            Column::Bytes(self.keys),
            Column::Bytes(self.prints),
            Column::Texts(self.methods),
            Column::Texts(self.routes),
            Column::Texts(self.paths),
            Column::Numbers(self.checksums),
        ]
    }
}

/// The parameters of `insert_v1`.
pub(super) fn inserts<'a>(firsts: impl Iterator<Item = &'a First>, keep: bool) -> Vec<Column> {
    let mut fixed = Fixed::default();
    let (mut ttls, mut leases, mut owners) = (vec![], vec![], vec![]);
    let (mut marks, mut begans) = (vec![], vec![]);
    for first in firsts {
        fixed.push(&first.id, &first.scope, &first.key, &first.fingerprint, &first.about);
        ttls.push(length_ms(first.ttl));
        leases.push(length_ms(first.lease));
        owners.push(first.owner.cast_signed());
        marks.push(first.mark.map(|mark| mark.as_bytes().to_vec()));
        begans.push(Happened::Began(first.request_id.clone()).encode());
    }
    let changing = [
        Column::Numbers(ttls),
        Column::Numbers(leases),
        Column::Numbers(owners),
        Column::MaybeBytes(marks),
        Column::Bytes(begans),
        Column::OneFlag(keep),
    ];
    fixed.columns().into_iter().chain(changing).collect()
}

/// The parameters of `swap_v1`.
pub(super) fn swaps<'a>(writes: impl Iterator<Item = (&'a Record, &'a Write)>) -> Vec<Column> {
    let mut fixed = Fixed::default();
    let (mut created, mut froms, mut fences) = (vec![], vec![], vec![]);
    let (mut new_fences, mut ttls) = (vec![], vec![]);
    let (mut attempts, mut states, mut sinces, mut lengths) = (vec![], vec![], vec![], vec![]);
    let (mut untils, mut owners, mut doubts, mut lookups) = (vec![], vec![], vec![], vec![]);
    let (mut timelines, mut whats, mut labels) = (vec![], vec![], vec![]);
    let (mut answers, mut marks, mut heads) = (vec![], vec![], vec![]);
    for (from, write) in writes {
        let next = Next::of(from, write);
        fixed.push(&from.id, &from.scope, &from.key, &from.fingerprint, &from.about);
        created.push(ms(from.created_at));
        froms.push(from.version.cast_signed());
        fences.push(from.fence.0.cast_signed());
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
        marks.push(next.mark.map(|mark| mark.as_bytes().to_vec()));
        heads.push(next.head.map(AnswerHead::encode));
    }
    let changing = [
        Column::Numbers(created),
        Column::Numbers(froms),
        Column::Numbers(fences),
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
        Column::MaybeBytes(marks),
        Column::MaybeBytes(heads),
    ];
    fixed.columns().into_iter().chain(changing).collect()
}

/// About how many bytes a write will send.
pub(super) fn size(from: &Record, write: &Write) -> usize {
    match Next::of(from, write).answer {
        Some(Answer::Kept(response)) => response.body.len() + 512,
        Some(Answer::NotKept { .. }) | None => 512,
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
    mark: Option<CredentialMark>,
    head: Option<&'a AnswerHead>,
}

impl<'a> Next<'a> {
    fn of(from: &'a Record, write: &'a Write) -> Self {
        let mark = match write.becomes {
            Becomes::Begun { mark, .. } => mark,
            Becomes::Same
            | Becomes::Renewed { .. }
            | Becomes::HeadKept { .. }
            | Becomes::Completed(_)
            | Becomes::FailedRetryable
            | Becomes::Unknown(_)
            | Becomes::LookedUp
            | Becomes::Expired => from.mark,
        };
        Self { mark, ..Self::state_of(from, write) }
    }

    fn state_of(from: &'a Record, write: &'a Write) -> Self {
        let attempts = i64::from(from.attempts);
        let ttl = Some(length_ms(write.ttl.unwrap_or(from.ttl)));
        let same = || Self { attempts, ..Self::same(&from.state) };
        match (&write.becomes, &from.state) {
            (Becomes::Begun { owner, lease, .. }, _) => Self {
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
            (Becomes::HeadKept { head, lease, lease_max }, State::InProgress { begun_at, .. }) => {
                Self {
                    length: Some(length_ms(*lease)),
                    until: Some(ms(begun_at.plus(*lease_max))),
                    head: Some(head),
                    ..same()
                }
            }
            (Becomes::Completed(answer), _) => {
                Self { attempts, state: 1, length: ttl, answer: Some(answer), ..Self::default() }
            }
            (Becomes::FailedRetryable, _) => {
                Self { attempts, state: 2, length: ttl, ..Self::default() }
            }
            (Becomes::Unknown(doubt), from) => Self {
                attempts,
                state: 3,
                doubt: Some(doubt_number(*doubt)),
                lookups: Some(0),
                owner: from.owner().map(u64::cast_signed),
                head: from.head(),
                ..Self::default()
            },
            (Becomes::LookedUp, State::Unknown { lookups, .. }) => {
                Self { lookups: Some(i64::from(lookups.saturating_add(1))), ..same() }
            }
            (Becomes::Expired, State::Completed { .. } | State::FailedRetryable { .. }) => {
                Self { length: Some(0), until: None, ..same() }
            }
            (
                Becomes::Same
                | Becomes::Renewed { .. }
                | Becomes::HeadKept { .. }
                | Becomes::LookedUp
                | Becomes::Expired,
                State::InProgress { .. }
                | State::Completed { .. }
                | State::FailedRetryable { .. }
                | State::Unknown { .. },
            ) => same(),
        }
    }

    fn same(state: &'a State) -> Self {
        match state {
            State::InProgress { owner, begun_at, lease_until, head } => Self {
                state: 0,
                since: Some(ms(*begun_at)),
                until: Some(ms(*lease_until)),
                owner: Some(owner.cast_signed()),
                head: head.as_ref(),
                ..Self::default()
            },
            State::Completed { answer, settled_at, expires_at } => Self {
                state: 1,
                since: Some(ms(*settled_at)),
                until: Some(ms(*expires_at)),
                answer: Some(answer),
                ..Self::default()
            },
            State::FailedRetryable { settled_at, expires_at } => Self {
                state: 2,
                since: Some(ms(*settled_at)),
                until: Some(ms(*expires_at)),
                ..Self::default()
            },
            State::Unknown { since, doubt, lookups, owner, head } => Self {
                state: 3,
                since: Some(ms(*since)),
                doubt: Some(doubt_number(*doubt)),
                lookups: Some(i64::from(*lookups)),
                owner: owner.map(u64::cast_signed),
                head: head.as_ref(),
                ..Self::default()
            },
        }
    }
}

/// The moments that stay when another one is added.
fn kept_moments(from: &Record, write: &Write) -> Vec<u8> {
    let mut moments = from.timeline.clone();
    if let Some(what) = &write.what {
        make_room(&mut moments, what);
    }
    moment_bytes(&moments)
}

/// What happened, for people who read the table of transitions.
fn label(what: &Happened) -> String {
    let code = |code: &Option<u16>| code.map(|code| format!(" {code}")).unwrap_or_default();
    let text = match what {
        Happened::Began(None) => "began".into(),
        Happened::Began(Some(request_id)) => format!("began request {request_id}"),
        Happened::Settled(standing, status) => {
            format!("settled {}{}", standing.name(), code(status))
        }
        Happened::Doubted(doubt) => format!("doubted {}", doubt.name()),
        Happened::LateResult(late) => {
            let LateResult { fence, standing, status, .. } = &**late;
            format!("late result of fence {}: {}{}", fence.0, standing.name(), code(status))
        }
        Happened::LookedUp(found) => format!("looked up: {found}"),
        Happened::Resolved(standing, judge, reason) => {
            format!("resolved {} by {}: {reason}", standing.name(), judge.name())
        }
        Happened::Expired(reason) => format!("expired: {reason}"),
    };
    text.replace('\0', "\u{fffd}")
}
