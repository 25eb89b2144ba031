//! How are records found that nobody names?
//!
//! Each bucket has its indexes, and a scan goes through the buckets in order, and through each of them
//! by name. A record's name does not change, so a record that moves from one index to another is met
//! all the same; the index of ended leases is read whole per bucket and sorted by name for that reason.

use redis::Value;
use retrysafe_core::record::{Record, Standing};
use retrysafe_core::scope::Id;
use retrysafe_core::store::{
    Census, Cursor, Filter, Page, Query, Stamped, StoreError, StoreErrorKind,
};
use retrysafe_core::time::Time;

use super::error::{ConnectError, nonsense};
use super::names::BUCKETS;
use super::script::{Answer, Script, number, read_answer, text};
use super::wire::Wire;
use super::{NOT_INITIALISED, RedisStore, refusal};

/// How many buckets are asked for names at once.
const BUCKETS_AT_ONCE: usize = 32;

/// How many records are read at once. Each may hold a large answer.
const RECORDS_AT_ONCE: usize = 64;

/// How many records one script deletes: it holds up everybody else meanwhile.
const REAPED_AT_ONCE: usize = 200;

/// After how long the reaper looks again at a record that it could not read.
const DAMAGED_AGAIN_MS: u64 = 60 * 60 * 1_000;

/// Where a scan stands: past this name in this bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    bucket: usize,
    after: Option<Id>,
}

/// Which index holds all that a filter can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    All,
    EndedLeases,
    Unknown,
}

/// Names to look at, in order, and where to go on after them.
struct Names {
    found: Vec<(usize, Id)>,
    next: Option<Place>,
}

impl RedisStore {
    pub(super) async fn scan_page(&self, query: Query) -> Result<Stamped<Page>, StoreError> {
        let mut place = Some(match &query.after {
            None => Place { bucket: 0, after: None },
            Some(cursor) => Place::parse(cursor)?,
        });
        let mut now = self.now().await?;
        let index = Index::of(&query.filter);
        let mut page = Page::default();
        while let Some(from) = place {
            let names = self.names_from(index, from, now, query.page_len()).await?;
            let mut found = names.found;
            // What is looked for by its name need not be read to be passed over.
            let may_match =
                |id: &Id| query.filter.id.is_none_or(|digits| digits.contains(id.as_bytes()));
            found.retain(|(_, id)| may_match(id));
            for some in found.chunks(RECORDS_AT_ONCE) {
                let (later, records) = self.read_some(some).await?;
                now = now.max(later);
                for ((bucket, id), record) in some.iter().zip(records) {
                    match record {
                        Ok(Some(record)) if query.filter.matches(&record, now) => {
                            page.records.push(record);
                        }
                        Ok(_) => {}
                        Err(_) => page.damaged.push(*id),
                    }
                    if page.records.len() + page.damaged.len() == query.page_len() {
                        page.next = Some(Place { bucket: *bucket, after: Some(*id) }.cursor());
                        return Ok(Stamped { now, value: page });
                    }
                }
            }
            place = names.next;
        }
        Ok(Stamped { now, value: page })
    }

    /// The next names of an index.
    async fn names_from(
        &self,
        index: Index,
        from: Place,
        now: Time,
        limit: usize,
    ) -> Result<Names, StoreError> {
        let end = (from.bucket + BUCKETS_AT_ONCE).min(BUCKETS);
        let buckets: Vec<usize> = (from.bucket..end).collect();
        let after_of = |bucket: usize| from.after.filter(|_| bucket == from.bucket);
        let answers = self
            .nodes
            .call_all(&buckets, |_, at| {
                let bucket = from.bucket + at;
                let Some(keys) = self.nodes.names.bucket(bucket) else { return redis::cmd("PING") };
                match index {
                    Index::All => {
                        let mut least = after_of(bucket).map_or(b"-".to_vec(), |_| b"(".to_vec());
                        least.extend(after_of(bucket).iter().flat_map(|id| *id.as_bytes()));
                        let mut command = redis::cmd("ZRANGEBYLEX");
                        command.arg(&keys.all).arg(least).arg("+");
                        command.arg("LIMIT").arg(0).arg(limit);
                        command
                    }
                    Index::EndedLeases => {
                        let mut command = redis::cmd("ZRANGEBYSCORE");
                        command.arg(&keys.leases).arg("-inf").arg(now.as_ms());
                        command
                    }
                    Index::Unknown => {
                        let mut command = redis::cmd("ZRANGE");
                        command.arg(&keys.unknown).arg(0).arg(-1);
                        command
                    }
                }
            })
            .await?;
        let mut names = Names { found: Vec::new(), next: None };
        for (bucket, answer) in buckets.into_iter().zip(answers) {
            let mut ids = ids_of(answer)?;
            let is_cut = index == Index::All && ids.len() == limit;
            ids.sort_unstable();
            ids.retain(|id| after_of(bucket).is_none_or(|after| *id > after));
            let last = ids.last().copied();
            names.found.extend(ids.into_iter().map(|id| (bucket, id)));
            if is_cut {
                names.next = Some(Place { bucket, after: last });
                return Ok(names);
            }
        }
        names.next = (end < BUCKETS).then_some(Place { bucket: end, after: None });
        Ok(names)
    }

    /// Reads records, those of one bucket in one script. A record that cannot be read is an error of
    /// its own.
    async fn read_some(
        &self,
        names: &[(usize, Id)],
    ) -> Result<(Time, Vec<Result<Option<Record>, StoreError>>), StoreError> {
        let runs: Vec<&[(usize, Id)]> = names.chunk_by(|one, two| one.0 == two.0).collect();
        let buckets: Vec<usize> =
            runs.iter().filter_map(|run| run.first()).map(|(bucket, _)| *bucket).collect();
        let answers = self
            .nodes
            .call_all(&buckets, |wire, at| {
                let run = runs.get(at).copied().unwrap_or_default();
                let mut command = wire.run(Script::Read);
                command.arg(run.len());
                for (bucket, id) in run {
                    command.arg(self.nodes.names.bucket(*bucket).map(|keys| keys.record(id)));
                }
                command.arg(self.nodes.clock());
                for (_, id) in run {
                    command.arg(id.as_bytes().as_slice());
                }
                command
            })
            .await?;
        let (mut now, mut records) = (Time::default(), Vec::with_capacity(names.len()));
        for (run, answer) in runs.into_iter().zip(answers) {
            let Value::Array(parts) = answer else { return Err(nonsense()) };
            let mut parts = parts.into_iter();
            let read = parts.next().as_ref().and_then(number).ok_or_else(nonsense)?;
            now = now.max(Time::from_ms(read));
            for ((_, id), part) in run.iter().zip(parts) {
                let is_gone = number(&part) == Some(0);
                records.push(match text(part) {
                    Some(value) => self.record_of(id, value).map(Some),
                    None if is_gone => Ok(None),
                    None => Err(StoreError::not_applied(StoreErrorKind::Damaged)),
                });
            }
        }
        if records.len() == names.len() { Ok((now, records)) } else { Err(nonsense()) }
    }

    /// The store's clock.
    async fn now(&self) -> Result<Time, StoreError> {
        if let Some(now) = self.nodes.manual_now() {
            return Ok(now);
        }
        let answer = self.nodes.call(0, false, |_| redis::cmd("TIME")).await?;
        let Value::Array(parts) = answer else { return Err(nonsense()) };
        let number = |value: Value| String::from_utf8(text(value)?).ok()?.parse::<u64>().ok();
        let mut parts = parts.into_iter().filter_map(number);
        match (parts.next(), parts.next()) {
            (Some(seconds), Some(micros)) => Ok(Time::from_ms(seconds * 1_000 + micros / 1_000)),
            _ => Err(nonsense()),
        }
    }

    pub(super) async fn reap_some(&self, limit: usize) -> Result<Stamped<usize>, StoreError> {
        let mut now = self.now().await?;
        let buckets: Vec<usize> = (0..BUCKETS).collect();
        let due = self
            .nodes
            .call_all(&buckets, |_, bucket| {
                let mut command = redis::cmd("ZCOUNT");
                let key = self.nodes.names.bucket(bucket).map(|keys| &keys.expiries);
                command.arg(key).arg("-inf").arg(now.as_ms());
                command
            })
            .await?;
        let mut reaped = 0;
        for bucket in buckets {
            let mut left = due.get(bucket).and_then(number).unwrap_or(0);
            while left > 0 && reaped < limit {
                let (later, looked_at, more) = self.reap_bucket(bucket, limit - reaped).await?;
                now = now.max(later);
                reaped += more;
                left = if looked_at == 0 { 0 } else { left.saturating_sub(looked_at) };
            }
        }
        Ok(Stamped { now, value: reaped })
    }

    /// Deletes what is expired in one bucket. Gives the clock, how many it has looked at, and how many
    /// are gone.
    async fn reap_bucket(
        &self,
        bucket: usize,
        limit: usize,
    ) -> Result<(Time, u64, usize), StoreError> {
        let keys = self.nodes.names.bucket(bucket).ok_or_else(nonsense)?;
        let limit = limit.min(REAPED_AT_ONCE);
        let reap = |wire: &Wire| {
            let mut command = wire.run(Script::Reap);
            command.arg(3).arg(&keys.meta).arg(&keys.all).arg(&keys.expiries);
            command.arg(self.nodes.clock()).arg(&keys.record_prefix);
            command.arg(limit).arg(DAMAGED_AGAIN_MS);
            command
        };
        let Value::Array(parts) = self.nodes.call(bucket, true, reap).await? else {
            return Err(nonsense());
        };
        match parts.iter().filter_map(number).collect::<Vec<u64>>().as_slice() {
            [now, looked_at, reaped] => Ok((Time::from_ms(*now), *looked_at, *reaped as usize)),
            _ => Err(nonsense()),
        }
    }

    /// Writes something that means nothing to every master.
    pub(super) async fn probe_masters(&self) -> Result<Stamped<()>, StoreError> {
        let mut latest = Time::default();
        for (bucket, _) in self.nodes.routes().nodes() {
            let keys = self.nodes.names.bucket(bucket).ok_or_else(nonsense)?;
            let probe = |wire: &Wire| {
                let mut command = wire.run(Script::Probe);
                command.arg(1).arg(&keys.meta).arg(self.nodes.clock());
                command
            };
            match read_answer(self.nodes.call(bucket, true, probe).await?)? {
                (now, Answer::Done(_)) => latest = latest.max(now),
                (_, other) => return Err(refusal(&other)),
            }
        }
        Ok(Stamped { now: latest, value: () })
    }

    pub(super) async fn count(&self) -> Result<Stamped<Census>, StoreError> {
        let now = self.now().await?;
        let buckets: Vec<usize> = (0..BUCKETS * 3).map(|at| at / 3).collect();
        let answers = self
            .nodes
            .call_all(&buckets, |_, at| {
                let Some(keys) = self.nodes.names.bucket(at / 3) else { return redis::cmd("PING") };
                match at % 3 {
                    0 => redis::cmd("ZCARD").arg(&keys.all).take(),
                    1 => redis::cmd("ZCARD").arg(&keys.unknown).take(),
                    _ => redis::cmd("ZRANGE")
                        .arg(&keys.unknown)
                        .arg(0)
                        .arg(0)
                        .arg("WITHSCORES")
                        .take(),
                }
            })
            .await?;
        let mut census = Census { records: Some(0), ..Census::default() };
        for bucket in answers.chunks(3) {
            let [records, unknown, oldest] = bucket else { return Err(nonsense()) };
            census.records = census.records.zip(number(records)).map(|(sum, more)| sum + more);
            census.unknown += number(unknown).ok_or_else(nonsense)?;
            let since = oldest_of(oldest);
            census.unknown_since = match (census.unknown_since, since) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            };
        }
        Ok(Stamped { now, value: census })
    }

    /// Refuses a Redis that nobody has initialised.
    pub(super) async fn check_initialised(&self) -> Result<(), ConnectError> {
        let buckets: Vec<usize> = (0..BUCKETS).collect();
        let answers = self.nodes.call_all(&buckets, |_, bucket| {
            let key = self.nodes.names.bucket(bucket).map(|keys| &keys.meta);
            redis::cmd("EXISTS").arg(key).take()
        });
        let failed = |error| ConnectError::passing("the server cannot be read").because(error);
        let answers = answers.await.map_err(failed)?;
        if answers.iter().all(|answer| number(answer) == Some(1)) {
            Ok(())
        } else {
            Err(ConnectError::new(NOT_INITIALISED))
        }
    }
}

impl Index {
    fn of(filter: &Filter) -> Self {
        match filter {
            Filter { lease_over: true, .. } => Self::EndedLeases,
            Filter { standing: Some(Standing::Unknown), .. } => Self::Unknown,
            Filter { .. } => Self::All,
        }
    }
}

impl Place {
    fn cursor(self) -> Cursor {
        let mut bytes = vec![self.bucket as u8];
        bytes.extend(self.after.iter().flat_map(|id| *id.as_bytes()));
        Cursor(bytes)
    }

    fn parse(cursor: &Cursor) -> Result<Self, StoreError> {
        let foreign = || {
            StoreError::not_applied(StoreErrorKind::Broken)
                .because("the cursor is of another store")
        };
        let (bucket, id) = cursor.0.split_first().ok_or_else(foreign)?;
        let id: [u8; 32] = id.try_into().map_err(|_| foreign())?;
        Ok(Self { bucket: usize::from(*bucket), after: Some(Id::from_bytes(id)) })
    }
}

fn ids_of(answer: Value) -> Result<Vec<Id>, StoreError> {
    let Value::Array(members) = answer else { return Err(nonsense()) };
    // Whatever else stands in an index is nobody's name.
    let ids = members.into_iter().filter_map(text).filter_map(|bytes| bytes.try_into().ok());
    Ok(ids.map(Id::from_bytes).collect())
}

/// The score of the only member in an answer.
fn oldest_of(answer: &Value) -> Option<Time> {
    let Value::Array(pair) = answer else { return None };
    let score = match pair.as_slice() {
        [_, score] => score,
        [Value::Array(pair)] => pair.get(1)?,
        _ => return None,
    };
    if let Value::Double(ms) = score {
        return Some(Time::from_ms(*ms as u64));
    }
    let Value::BulkString(text) = score else { return None };
    let ms: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(Time::from_ms(ms as u64))
}
