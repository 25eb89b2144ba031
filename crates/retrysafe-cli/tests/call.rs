//! Does `retrysafe call` take effect once, wherever it is killed?
//!
//! A server that knows keys and counts its effects, and that can be told where to stall: the call is
//! killed there with SIGKILL, resumed, and must have had one effect and get the one answer.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// Where the server stalls on its first request, for as long as the connection lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    Never,
    /// Before it has read anything.
    Unread,
    /// With the request read, and nothing done.
    BeforeEffect,
    /// With the effect made, and nothing answered.
    AfterEffect,
    /// In the middle of the answer.
    HalfAnswered,
}

/// How the first request is answered, apart from stalling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Plain,
    /// The effect is made and the connection closed.
    Drops,
    /// With this status and nothing done.
    Says(u16),
    /// With more than a pipe can hold.
    Long,
}

#[derive(Debug)]
struct Seen {
    method: String,
    headers: HashMap<String, String>,
}

/// The running server.
struct Server {
    address: SocketAddr,
    /// The answers by key: one effect each.
    effects: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    requests: Arc<Mutex<Vec<Seen>>>,
    /// Says that the stall has been reached.
    stalled: Receiver<()>,
}

impl Server {
    fn start(stall: Stall, manner: Manner) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), stall, manner)
    }

    fn on(listener: TcpListener, stall: Stall, manner: Manner) -> Self {
        let address = listener.local_addr().unwrap();
        let effects: Arc<Mutex<HashMap<String, Vec<u8>>>> = Arc::default();
        let requests: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (tell, stalled) = channel();
        let (books, log) = (effects.clone(), requests.clone());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (stall, manner) =
                    if number == 0 { (stall, manner) } else { (Stall::Never, Manner::Plain) };
                let manner =
                    if manner == Manner::Plain && is_long(&books) { Manner::Long } else { manner };
                let (books, log, tell) = (books.clone(), log.clone(), tell.clone());
                std::thread::spawn(move || exchange(stream, stall, manner, &books, &log, &tell));
            }
        });
        Self { address, effects, requests, stalled }
    }

    fn url(&self) -> String {
        format!("http://{}/payments", self.address)
    }

    fn effects(&self) -> HashMap<String, Vec<u8>> {
        self.effects.lock().unwrap().clone()
    }
}

fn is_long(books: &Mutex<HashMap<String, Vec<u8>>>) -> bool {
    books.lock().unwrap().values().any(|body| body.len() > 1000)
}

fn exchange(
    mut stream: TcpStream,
    stall: Stall,
    manner: Manner,
    books: &Mutex<HashMap<String, Vec<u8>>>,
    log: &Mutex<Vec<Seen>>,
    tell: &Sender<()>,
) -> Option<()> {
    // Holds the connection until the caller is gone.
    let wait = |stream: &mut TcpStream| {
        tell.send(()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    };
    if stall == Stall::Unread {
        wait(&mut stream);
        return None;
    }
    let seen = read(&stream)?;
    let key = seen.headers.get("idempotency-key").cloned().unwrap_or_default();
    log.lock().unwrap().push(seen);
    if stall == Stall::BeforeEffect {
        wait(&mut stream);
        return None;
    }
    if let Manner::Says(status) = manner {
        let head =
            format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
        return stream.write_all(head.as_bytes()).ok();
    }
    let body = {
        let mut books = books.lock().unwrap();
        let number = books.len() + 1;
        let fill = if manner == Manner::Long { "x".repeat(1 << 20) } else { String::new() };
        books.entry(key).or_insert_with(|| format!("payment {number}{fill}").into_bytes()).clone()
    };
    if manner == Manner::Drops {
        return None;
    }
    if stall == Stall::AfterEffect {
        wait(&mut stream);
        return None;
    }
    let head = format!(
        "HTTP/1.1 201 Created\r\ncontent-length: {}\r\nx-kind: payment\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    if stall == Stall::HalfAnswered {
        stream.write_all(&body[..body.len() / 2]).ok()?;
        wait(&mut stream);
        return None;
    }
    stream.write_all(&body).ok()
}

fn read(stream: &TcpStream) -> Option<Seen> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let method = line.split_whitespace().next()?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(Seen { method, headers })
}

fn command(journal: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
    command.arg("call").args(args).arg("--journal").arg(journal);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn call(journal: &Path, args: &[&str]) -> Output {
    command(journal, args).output().unwrap()
}

fn kill(mut child: Child) {
    // SIGKILL: nothing in the process gets to run.
    child.kill().unwrap();
    child.wait().unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entries(journal: &Path) -> usize {
    std::fs::read_dir(journal).map_or(0, Iterator::count)
}

#[test]
fn an_answer_is_printed_and_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::Never, Manner::Plain);
    let done = call(folder.path(), &[&server.url(), "-d", r#"{"amount":5}"#]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "payment 1");
    assert!(text(&done.stderr).contains("attempt 1: 201; final"), "{}", text(&done.stderr));
    assert_eq!(entries(folder.path()), 0);
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests[0].method, "POST");
    assert_eq!(requests[0].headers["content-type"], "application/json");
    assert_eq!(requests[0].headers["idempotency-key"].len(), 36);
}

#[test]
fn the_key_travels_in_the_header_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::Never, Manner::Drops);
    let named = ["--key-header", "PayPal-Request-Id", "--key", "k-1"];
    let done = call(folder.path(), &[&[server.url().as_str()][..], &named].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    for request in requests.iter() {
        assert_eq!(request.headers["paypal-request-id"], "k-1");
        assert!(!request.headers.contains_key("idempotency-key"));
    }
    let wrong = call(folder.path(), &[&server.url(), "--key-header", "no name"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
}

#[test]
fn a_lost_answer_is_fetched_with_the_same_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::Never, Manner::Drops);
    let done = call(folder.path(), &[&server.url(), "-i", "--key", "k-1"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let shown = text(&done.stdout);
    assert!(shown.starts_with("HTTP/1.1 201 Created\n") && shown.contains("\nx-kind: payment\n"));
    assert!(shown.ends_with("\n\npayment 1"), "{shown}");
    assert!(text(&done.stderr).contains("attempt 1: no answer"), "{}", text(&done.stderr));
    assert_eq!(server.effects().len(), 1);
    assert!(server.requests.lock().unwrap().iter().all(|r| r.headers["idempotency-key"] == "k-1"));
}

#[test]
fn a_call_killed_at_any_step_is_resumed_with_one_effect_and_the_same_answer() {
    let steps = [Stall::Unread, Stall::BeforeEffect, Stall::AfterEffect, Stall::HalfAnswered];
    for stall in steps {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(stall, Manner::Plain);
        let child = command(folder.path(), &[&server.url(), "--key", "k"]).spawn().unwrap();
        server.stalled.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(entries(folder.path()), 1, "{stall:?}: journalled before it was sent");
        kill(child);
        let resumed = call(folder.path(), &["--resume"]);
        assert_eq!(resumed.status.code(), Some(0), "{stall:?}: {}", text(&resumed.stderr));
        assert_eq!(text(&resumed.stdout), "payment 1", "{stall:?}");
        assert_eq!(server.effects().len(), 1, "{stall:?}");
        assert_eq!(entries(folder.path()), 0, "{stall:?}");
        let again = call(folder.path(), &["--resume"]);
        assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 0), "{stall:?}");
        assert!(text(&again.stderr).contains("nothing to resume"));
    }
}

#[tokio::test]
async fn a_call_killed_before_it_could_connect_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    // A port that is held without listening refuses connections, and goes to nobody else.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/payments", held.local_addr().unwrap());
    let mut child = command(folder.path(), &[&url, "--attempts", "100"]).spawn().unwrap();
    let errors = BufReader::new(child.stderr.take().unwrap());
    let refused = errors.lines().map_while(Result::ok).find(|line| line.contains("attempt 1"));
    assert!(refused.unwrap().contains("not sent"));
    kill(child);
    let listener = held.listen(16).unwrap().into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    let server = Server::on(listener, Stall::Never, Manner::Plain);
    let resumed = call(folder.path(), &["--resume"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    assert_eq!((text(&resumed.stdout).as_str(), server.effects().len()), ("payment 1", 1));
}

#[test]
fn a_call_killed_while_its_answer_is_written_out_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::Never, Manner::Long);
    let mut child = command(folder.path(), &[&server.url()]).spawn().unwrap();
    // One byte has come out, and the rest does not fit into a pipe that nobody empties.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert_eq!(entries(folder.path()), 1);
    kill(child);
    let resumed = call(folder.path(), &["--resume"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    let answers: Vec<_> = server.effects().into_values().collect();
    assert_eq!(answers.len(), 1);
    assert!(resumed.stdout == answers[0]);
    assert_eq!(entries(folder.path()), 0);
}

/// Whenever the kill comes, also while the journal is written or cleared: what is in the journal
/// is finished by resuming, what is not in it was answered or never sent, and no key has two effects.
#[test]
fn calls_killed_at_random_have_one_effect_each() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::Never, Manner::Plain);
    let rounds = 40;
    for round in 0..rounds {
        let key = format!("k-{round}");
        let child = command(folder.path(), &[&server.url(), "--key", &key]).spawn().unwrap();
        // From before its first line to after its end.
        std::thread::sleep(Duration::from_micros(500 * round));
        kill(child);
        let resumed = call(folder.path(), &["--resume"]);
        assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
        // A caller that has seen no answer asks again with its key.
        let again = call(folder.path(), &[&server.url(), "--key", &key]);
        assert_eq!(text(&again.stdout), format!("payment {}", round + 1), "round {round}");
    }
    assert_eq!(server.effects().len(), rounds as usize);
    let left = std::fs::read_dir(folder.path()).unwrap().flatten();
    assert!(left.into_iter().all(|file| file.path().extension().unwrap() == "tmp"));
}

#[test]
fn credentials_stay_out_of_the_journal_and_are_given_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::AfterEffect, Manner::Plain);
    let headers = ["-H", "Authorization: Bearer s3cr3t", "-H", "X-Api-Key: s3cr3t"];
    let url = server.url();
    let args = [&[&*url, "-d", "{}"][..], &headers].concat();
    let child = command(folder.path(), &args).spawn().unwrap();
    server.stalled.recv_timeout(Duration::from_secs(30)).unwrap();
    kill(child);
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert!(!text(&std::fs::read(file).unwrap()).contains("s3cr3t"));

    let refused = call(folder.path(), &["--resume"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("authorization"), "{}", text(&refused.stderr));
    let strange = call(folder.path(), &["--resume", "-H", "X-Other: 1"]);
    assert_eq!(strange.status.code(), Some(2), "a call is resumed as it was");
    let other = call(folder.path(), &["http://127.0.0.1:1/", "--resume"]);
    assert!(text(&other.stderr).contains("nothing to resume"), "{}", text(&other.stderr));

    let args = [&["--resume"][..], &headers].concat();
    let resumed = call(folder.path(), &args);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    assert_eq!((text(&resumed.stdout).as_str(), server.effects().len()), ("payment 1", 1));
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.last().unwrap().headers["authorization"], "Bearer s3cr3t");
    assert_eq!(requests.last().unwrap().headers["content-type"], "application/json");
}

#[test]
fn one_servers_credentials_are_not_given_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [(), ()].map(|()| Server::start(Stall::BeforeEffect, Manner::Plain));
    for server in &servers {
        let args = [&*server.url(), "-H", "Authorization: Bearer a"];
        let child = command(folder.path(), &args).spawn().unwrap();
        server.stalled.recv_timeout(Duration::from_secs(30)).unwrap();
        kill(child);
    }
    let both = call(folder.path(), &["--resume", "-H", "Authorization: Bearer a"]);
    assert_eq!(both.status.code(), Some(2), "{}", text(&both.stderr));
    assert!(text(&both.stderr).contains("several servers"), "{}", text(&both.stderr));
    for server in &servers {
        let args = [&*server.url(), "--resume", "-H", "Authorization: Bearer a"];
        assert_eq!(call(folder.path(), &args).status.code(), Some(0));
        assert_eq!(server.effects().len(), 1);
    }
}

#[test]
fn every_end_has_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let run = |manner, args: &[&str]| {
        let server = Server::start(Stall::Never, manner);
        call(folder.path(), &[&[&*server.url(), "--attempts", "1"][..], args].concat())
    };
    assert_eq!(run(Manner::Says(302), &[]).status.code(), Some(0));
    assert_eq!(run(Manner::Says(422), &[]).status.code(), Some(1));
    assert_eq!(run(Manner::Says(422), &["--key", ""]).status.code(), Some(2));
    assert_eq!(run(Manner::Says(422), &["-d", "@/nowhere"]).status.code(), Some(2));
    assert_eq!(entries(folder.path()), 0);
    let unknown = run(Manner::Drops, &["--key", "k"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(text(&unknown.stderr).contains("--key k"), "{}", text(&unknown.stderr));
    assert_eq!(entries(folder.path()), 1, "an unknown outcome can be asked about again");
    let gone = call(folder.path(), &["http://127.0.0.1:1/", "--attempts", "2", "--deadline", "5s"]);
    assert_eq!(gone.status.code(), Some(4), "{}", text(&gone.stderr));
    assert_eq!(entries(folder.path()), 1, "what did not happen is not resumed");
}

#[test]
fn json_holds_the_answer_and_every_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Stall::Never, Manner::Drops);
    let done = call(folder.path(), &[&server.url(), "--json", "--key", "k"]);
    assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&report["outcome"], &report["key"]), (&"answer".into(), &"k".into()));
    assert_eq!((&report["status"], &report["body"]), (&201.into(), &"payment 1".into()));
    let attempts = report["attempts"].as_array().unwrap();
    assert_eq!(
        (attempts[0]["next"].as_str(), attempts[1]["next"].as_str()),
        (Some("retry"), Some("done"))
    );

    let server = Server::start(Stall::Never, Manner::Drops);
    let unknown = call(folder.path(), &[&server.url(), "--json", "--attempts", "1"]);
    let report: Value = serde_json::from_slice(&unknown.stdout).unwrap();
    assert_eq!(
        (unknown.status.code(), report["outcome"].as_str()),
        (Some(3), Some("outcome_unknown"))
    );
}

#[test]
fn the_journal_lies_in_the_state_folder_and_may_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let server = Server::start(Stall::Never, Manner::Drops);
        let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
        command.env("XDG_STATE_HOME", folder.path());
        command.args(["call", &server.url(), "--attempts", "1"]).args(args).output().unwrap()
    };
    assert_eq!(run(&["--no-journal"]).status.code(), Some(3));
    assert_eq!(entries(folder.path()), 0);
    assert_eq!(run(&[]).status.code(), Some(3));
    assert_eq!(entries(&folder.path().join("retrysafe/calls")), 1);
}
