//! How does a command reach the right server, once?
//!
//! A command that a server has refused before it wrote anything (it is not the master, the slot is
//! elsewhere, the script is unknown) is sent again, to whoever is right, while there is time. A write
//! whose answer did not come is never sent again: it may have been applied, and the error says so.
//! That is why the driver's own cluster client and connection manager are not used: they resend.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, ServerError, Value};
use retrysafe_core::store::{StoreError, StoreErrorKind};
use retrysafe_core::time::Time;
use tokio::time::Instant;

use super::error::{self, ConnectError, Refused};
use super::find;
use super::link::{Link, Reached, Routes};
use super::names::{BUCKETS, Names};
use super::script::{Answer, Script, read_answer};
use super::settings::{Address, Purpose, Settings};
use super::wire::{Durability, Wire};
use crate::stores::clock::Clock;
use crate::stores::quarantine::{HeldUntil, Server};

/// The pause before a server that is not ready is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// How often the routes are looked up at the most, however many callers find them wrong.
const FIND_PAUSE: Duration = Duration::from_millis(100);

/// All nodes, and what this process knows of them.
pub(super) struct Nodes {
    pub(super) settings: Settings,
    pub(super) names: Names,
    /// A clock that is turned by hand, in tests.
    clock: Option<Clock>,
    routes: RwLock<Arc<Routes>>,
    finding: tokio::sync::Mutex<Option<Instant>>,
    /// The highest version of each bucket that was acknowledged to this process.
    seen: Vec<AtomicU64>,
    /// The highest version of each bucket of which enough replicas are known to have it, where writes
    /// wait for replicas.
    replicated: Vec<AtomicU64>,
    /// Until when something is held, as far as this process knows.
    held_until: HeldUntil,
}

/// What became of one try.
enum Tried {
    Answered(Value),
    /// It was refused before anything was written.
    Again(StoreError),
}

/// What is to be sent.
struct Command<'a, B> {
    build: &'a B,
    is_write: bool,
    /// Whether the node is asked although the slot is not its own yet.
    is_asking: bool,
    deadline: Instant,
}

impl Nodes {
    pub(super) fn new(settings: Settings, clock: Option<Clock>) -> Self {
        Self {
            names: Names::new(&settings.prefix),
            settings,
            clock,
            routes: RwLock::default(),
            finding: tokio::sync::Mutex::default(),
            seen: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            replicated: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            held_until: HeldUntil::default(),
        }
    }

    /// What a script gets as the clock: nothing, for the server has one.
    pub(super) fn clock(&self) -> String {
        self.clock.as_ref().map(|clock| clock.now().as_ms().to_string()).unwrap_or_default()
    }

    /// The clock by hand, where there is one.
    pub(super) fn manual_now(&self) -> Option<Time> {
        self.clock.as_ref().map(Clock::now)
    }

    pub(super) fn seen(&self, bucket: usize) -> u64 {
        self.seen.get(bucket).map_or(0, |seen| seen.load(Ordering::Relaxed))
    }

    /// Notes a version that was acknowledged.
    pub(super) fn note_seen(&self, bucket: usize, version: u64) {
        if let Some(seen) = self.seen.get(bucket) {
            seen.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Makes sure that enough replicas have a record of this version, where writes wait for replicas.
    ///
    /// Whoever wrote it may have waited in vain, and a replica that takes over would not have what is
    /// answered here. A write of our own comes after all writes of this server before it, so waiting for
    /// that one is enough; and versions of a bucket rise, so older ones need no wait any more.
    pub(super) async fn ensure_replicated(
        &self,
        bucket: usize,
        version: u64,
    ) -> Result<(), StoreError> {
        let Some(replicated) = self.replicated.get(bucket) else { return Ok(()) };
        if self.settings.wait.is_none() || version <= replicated.load(Ordering::Relaxed) {
            return Ok(());
        }
        let meta = self.names.bucket(bucket).map(|keys| &keys.meta);
        let probe = |wire: &Wire| {
            let mut command = wire.run(Script::Probe);
            command.arg(1).arg(meta).arg(self.clock());
            command
        };
        let answer = self.call(bucket, true, probe).await;
        // What was written means nothing: for whoever asked, nothing was applied.
        let unknown = |error| StoreError::not_applied(StoreErrorKind::Unavailable).because(error);
        match read_answer(answer.map_err(unknown)?)? {
            (_, Answer::Done(_)) => self.note_replicated(bucket, version),
            (_, other) => return Err(super::refusal(&other)),
        }
        Ok(())
    }

    /// Notes a version that enough replicas have.
    pub(super) fn note_replicated(&self, bucket: usize, version: u64) {
        if let Some(replicated) = self.replicated.get(bucket) {
            replicated.fetch_max(version, Ordering::Relaxed);
        }
    }

    pub(super) fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Until when nothing new is granted, if this process has found out.
    pub(super) fn held_until(&self) -> Time {
        self.held_until.get()
    }

    /// Looks up who has which bucket, unless somebody has just done so.
    pub(super) async fn find(&self) -> Result<(), ConnectError> {
        let mut last = self.finding.lock().await;
        if last.is_some_and(|last| last.elapsed() < FIND_PAUSE) {
            return Ok(());
        }
        let routes = find::routes(&self.settings, &self.routes()).await;
        *last = Some(Instant::now());
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes?);
        Ok(())
    }

    /// A connection to a node. If it is a new one, its buckets are told who it is first.
    pub(super) async fn reach(&self, link: &Arc<Link>) -> Result<Wire, ConnectError> {
        let Reached { wire, is_new } = link.reach(&self.settings).await?;
        if is_new && self.settings.purpose == Purpose::Records {
            self.observe(link, &wire).await?;
        }
        Ok(wire)
    }

    /// Tells the buckets of a node which server it is. If that has changed, their grants are held from
    /// now on, not from the next grant of each on.
    async fn observe(&self, link: &Arc<Link>, wire: &Wire) -> Result<(), ConnectError> {
        let mut commands = redis::pipe();
        for bucket in self.routes().buckets(link) {
            let Some(keys) = self.names.bucket(bucket) else { continue };
            let mut command = wire.run(Script::Observe);
            command.arg(1).arg(&keys.meta).arg(self.clock()).arg(&wire.facts().identity);
            command.arg(self.seen(bucket)).arg(self.hold_ms());
            commands.add_command(command);
        }
        let answers = tokio::time::timeout(self.settings.deadline, wire.send_all(&commands)).await;
        let answers = match answers {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => {
                link.give_up(wire);
                return Err(ConnectError::passing("the connection broke").because(error));
            }
            Err(_) => {
                link.give_up(wire);
                return Err(ConnectError::passing("the server does not answer in time"));
            }
        };
        for answer in answers {
            // Whatever else it is (moved meanwhile, not initialised), a grant will find it again.
            if let Ok((_, Answer::Held { until, is_new })) = read_answer(answer) {
                self.note_held(until, is_new);
            }
        }
        Ok(())
    }

    pub(super) fn hold_ms(&self) -> u64 {
        super::due::ms(self.settings.quarantine)
    }

    /// Says once that grants are held.
    pub(super) fn note_held(&self, until: Time, is_new: bool) {
        self.held_until.note(until, is_new, Server::Redis);
    }

    /// Sends a command about a bucket, and gives its answer.
    pub(super) async fn call(
        &self,
        bucket: usize,
        is_write: bool,
        build: impl Fn(&Wire) -> Cmd + Sync,
    ) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.settings.deadline;
        // What is sent late could only be answered late.
        let send_until = Instant::now() + self.settings.deadline / 2;
        let mut asked = None;
        loop {
            let is_asking = asked.is_some();
            let tried = match asked.take().or_else(|| self.routes().link(bucket)) {
                None => Tried::Again(absent_node()),
                Some(link) => {
                    let command = Command { build: &build, is_write, is_asking, deadline };
                    self.try_call(&link, command, &mut asked).await?
                }
            };
            match tried {
                Tried::Answered(value) => return Ok(value),
                Tried::Again(error) if Instant::now() >= send_until => return Err(error),
                Tried::Again(_) if asked.is_some() => {}
                Tried::Again(_) => {
                    // If nobody can be found now, the next try says so.
                    let _ = tokio::time::timeout_at(deadline, self.find()).await;
                }
            }
        }
    }

    async fn try_call<B: Fn(&Wire) -> Cmd + Sync>(
        &self,
        link: &Arc<Link>,
        command: Command<'_, B>,
        asked: &mut Option<Arc<Link>>,
    ) -> Result<Tried, StoreError> {
        let Command { build, is_write, is_asking, deadline } = command;
        let unreached = StoreError::not_applied(StoreErrorKind::Unavailable);
        let wire = match tokio::time::timeout_at(deadline, self.reach(link)).await {
            Ok(Ok(wire)) => wire,
            Ok(Err(error)) => {
                tokio::time::sleep(PAUSE).await;
                return Ok(Tried::Again(unreached.because(error)));
            }
            Err(_) => return Err(unreached.because("too slow")),
        };
        let exchange = self.exchange(&wire, build(&wire), is_write, is_asking);
        let value = match tokio::time::timeout_at(deadline, exchange).await {
            Ok(Ok(value)) => value?,
            Ok(Err(error)) => {
                link.give_up(&wire);
                let told = error::broken_off(is_write, error);
                return if is_write { Err(told) } else { Ok(Tried::Again(told)) };
            }
            Err(_) => {
                // It may hang for good: the next one gets a connection of its own.
                link.give_up(&wire);
                return Err(error::unavailable(is_write).because("too slow"));
            }
        };
        let Value::ServerError(error) = value else {
            if is_newly_held(&value) {
                // The server is not who this connection took it for. If it was a replica for a while
                // and is a master again, another connection knows it by another name, and the two
                // would hold each other's grants for ever.
                link.give_up(&wire);
            }
            return Ok(Tried::Answered(value));
        };
        let refused = Refused::of(&error);
        let told = error::refusal(refused, &error);
        match refused {
            Refused::ScriptUnknown => {
                // If that fails, so does the next try.
                let _ = wire.load_scripts().await;
            }
            Refused::Asked => *asked = self.node_of(&error),
            Refused::Moved => {}
            Refused::Divided => tokio::time::sleep(PAUSE).await,
            Refused::NotNow => {
                // It may be a replica now, or have been promoted: whoever it is, it is asked again.
                link.give_up(&wire);
                tokio::time::sleep(PAUSE).await;
            }
            Refused::Full | Refused::Damaged | Refused::Denied | Refused::Unclear => {
                return Err(told);
            }
        }
        Ok(Tried::Again(told))
    }

    /// The node that an error points to.
    fn node_of(&self, error: &ServerError) -> Option<Arc<Link>> {
        let (host, port) = error.details()?.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
        let address = Address::Tcp(host.trim_matches(['[', ']']).into(), port.parse().ok()?);
        let nodes = self.routes().nodes();
        let known = nodes.into_iter().map(|(_, link)| link).find(|link| link.address == address);
        Some(known.unwrap_or_else(|| Arc::new(Link::new(address, &self.settings))))
    }

    /// Sends a command and what must go with it on the same connection.
    async fn exchange(
        &self,
        wire: &Wire,
        command: Cmd,
        is_write: bool,
        is_asking: bool,
    ) -> Result<Result<Value, StoreError>, redis::RedisError> {
        let wait = self.settings.wait.filter(|_| is_write);
        if wait.is_none() && !is_asking {
            return wire.send(&command).await.map(Ok);
        }
        let mut commands = redis::pipe();
        if is_asking {
            commands.cmd("ASKING");
        }
        commands.add_command(command);
        let facts = wire.facts();
        // A replica has it on its disk, and so has the master, if it keeps a log at all.
        let own_flushes = i64::from(facts.durability != Durability::Nothing);
        if let Some(wait) = wait {
            let within_ms = super::due::ms(wait.within);
            if facts.knows_waitaof {
                commands.cmd("WAITAOF").arg(own_flushes).arg(wait.replicas).arg(within_ms);
            } else {
                commands.cmd("WAIT").arg(wait.replicas).arg(within_ms);
            }
        }
        let mut answers = wire.send_all(&commands).await?;
        let acknowledged = wait.and_then(|_| answers.pop());
        let value = answers.pop().unwrap_or_default();
        if let Some(wait) = wait.filter(|_| is_written(&value))
            && replicas_of(acknowledged.as_ref(), own_flushes) < u64::from(wait.replicas)
        {
            let why = if facts.knows_waitaof {
                "too few replicas have flushed it in time (wait=): this server is asked to wait for \
                 their disks, so they need appendonly yes, and with appendfsync everysec the wait must \
                 be longer than a second"
            } else {
                "too few replicas have acknowledged it in time (wait=)"
            };
            return Ok(Err(StoreError::maybe_applied(StoreErrorKind::Unavailable).because(why)));
        }
        Ok(Ok(value))
    }

    /// Sends commands that may be sent twice, each to the node of its bucket, and gives their answers in
    /// order. Those of one node go in one piece.
    pub(super) async fn call_all(
        &self,
        buckets: &[usize],
        build: impl Fn(&Wire, usize) -> Cmd + Sync,
    ) -> Result<Vec<Value>, StoreError> {
        let mut answers: Vec<Option<Value>> = vec![None; buckets.len()];
        let routes = self.routes();
        for (_, link) in routes.nodes() {
            let its: Vec<usize> = (0..buckets.len())
                .filter(|at| {
                    let node = buckets.get(*at).and_then(|bucket| routes.link(*bucket));
                    node.is_some_and(|node| Arc::ptr_eq(&node, &link))
                })
                .collect();
            let sending = async {
                let wire = self.reach(&link).await.ok()?;
                let mut commands = redis::pipe();
                for at in &its {
                    commands.add_command(build(&wire, *at));
                }
                match wire.send_all(&commands).await {
                    Ok(values) => Some(values),
                    Err(_) => {
                        link.give_up(&wire);
                        None
                    }
                }
            };
            let sent = tokio::time::timeout(self.settings.deadline, sending).await;
            for (at, value) in its.into_iter().zip(sent.ok().flatten().unwrap_or_default()) {
                if let Some(answer) = answers.get_mut(at) {
                    *answer = Some(value).filter(|value| !matches!(value, Value::ServerError(_)));
                }
            }
        }
        // What was redirected, or went to a node that is gone, is asked for one by one.
        let mut whole = Vec::with_capacity(answers.len());
        for (at, answer) in answers.into_iter().enumerate() {
            whole.push(match (answer, buckets.get(at)) {
                (Some(value), _) => value,
                (None, Some(bucket)) => self.call(*bucket, false, |wire| build(wire, at)).await?,
                (None, None) => Value::Nil,
            });
        }
        Ok(whole)
    }
}

fn absent_node() -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable).because("no node has this slot now")
}

/// Whether a script has found just now that the server has changed.
fn is_newly_held(answer: &Value) -> bool {
    let Value::Array(parts) = answer else { return false };
    matches!(parts.as_slice(), [Value::BulkString(word), _, _, Value::Int(1)] if word == b"held")
}

/// Whether a script has written something. What it only found, or refused, no replica needs.
fn is_written(answer: &Value) -> bool {
    let Value::Array(parts) = answer else { return false };
    matches!(parts.first(), Some(Value::BulkString(word)) if word == b"done")
}

/// How many replicas have acknowledged, by the answer to WAIT or WAITAOF.
fn replicas_of(answer: Option<&Value>, own_flushes: i64) -> u64 {
    match answer {
        Some(Value::Int(count)) => u64::try_from(*count).unwrap_or(0),
        // What this server has flushed, then how many replicas have.
        Some(Value::Array(counts)) => match counts.as_slice() {
            [Value::Int(own), Value::Int(count)] if *own >= own_flushes => {
                u64::try_from(*count).unwrap_or(0)
            }
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_replicas_have_said_counts() {
        let flushed = |own, replicas| Value::Array(vec![Value::Int(own), Value::Int(replicas)]);
        assert_eq!(replicas_of(Some(&Value::Int(2)), 1), 2);
        assert_eq!(replicas_of(Some(&flushed(1, 3)), 1), 3);
        // The server itself has not flushed it, though it keeps a log; or it keeps none.
        assert_eq!(replicas_of(Some(&flushed(0, 3)), 1), 0);
        assert_eq!(replicas_of(Some(&flushed(0, 3)), 0), 3);
        for answer in [None, Some(&Value::Nil), Some(&Value::Int(-1)), Some(&Value::Okay)] {
            assert_eq!(replicas_of(answer, 0), 0);
        }
    }
}
