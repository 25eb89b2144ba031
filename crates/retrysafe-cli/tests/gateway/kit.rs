//! What do the tests share? A recording upstream, a raw client, and the gateway as a child.

use std::collections::HashMap;
use std::io::{PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails. Only a test that fails waits for it, so it is long
/// enough for the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A key that no other test uses.
pub(crate) fn key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("key-{}-{:08}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

// ------------------------------------------------------------------ messages

/// An HTTP/1 message as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) start: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads messages from a connection.
pub(crate) struct Reader {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, held: Vec::new() }
    }

    fn more(&mut self) -> Option<()> {
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) | Err(_) => None,
            Ok(n) => {
                self.held.extend_from_slice(&chunk[..n]);
                Some(())
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.held.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.held.drain(..end + 2).collect();
                // A character per byte, so that nothing is lost that is not ASCII.
                return Some(line[..end].iter().copied().map(char::from).collect());
            }
            self.more()?;
        }
    }

    fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.held.len() < count {
            self.more()?;
        }
        Some(self.held.drain(..count).collect())
    }

    /// The next message, or none at the end of the connection.
    pub(crate) fn message(&mut self, is_head_answer: bool) -> Option<Message> {
        let mut message = Message { start: self.line()?, ..Message::default() };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            message.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        let bare = is_head_answer || matches!(message.status(), 100..=199 | 204 | 304);
        if message.all("transfer-encoding").iter().any(|value| value.contains("chunked")) {
            loop {
                let size = self.line()?;
                let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
                let chunk = self.bytes(size)?;
                message.body.extend_from_slice(&chunk);
                if size == 0 {
                    while !self.line()?.is_empty() {}
                    break;
                }
                self.line()?;
            }
        } else if let Some(length) = message.header("content-length")
            && !bare
        {
            let length = length.parse().ok()?;
            message.body = self.bytes(length)?;
        }
        Some(message)
    }
}

// ------------------------------------------------------------------ upstream

/// What the upstream does with a request.
#[derive(Clone)]
pub(crate) enum Step {
    /// Answers.
    Reply(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Answers once the gate is open.
    Held(Gate, Box<Step>),
    /// Writes these bytes and closes.
    Raw(Vec<u8>),
    /// Writes these bytes, and closes once the gate is open.
    RawHeld(Vec<u8>, Gate),
    /// Closes without a word.
    Drop,
}

/// Holds answers back until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap());
    }
}

pub(crate) fn reply(status: u16, body: &str) -> Step {
    Step::Reply(status, vec![("Content-Type", "application/json".into())], body.into())
}

/// A request that reached the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) message: Message,
}

impl Seen {
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.message.header(name)
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.message.all("retrysafe-fence").len() == 1
    }
}

#[derive(Default)]
struct Book {
    steps: HashMap<String, Vec<Step>>,
    otherwise: Option<Step>,
    seen: Vec<Seen>,
}

/// Answers by script and writes everything down.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    book: Arc<(Mutex<Book>, Condvar)>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), book: Arc::default() };
        let serving = upstream.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        upstream
    }

    /// What to do with requests for a path, one after the other; the last one repeats.
    pub(crate) fn script(&self, path: &str, steps: Vec<Step>) {
        self.book.0.lock().unwrap().steps.insert(path.into(), steps);
    }

    /// What to do with requests for all other paths; none for an answer with the request's number.
    pub(crate) fn otherwise(&self, step: Option<Step>) {
        self.book.0.lock().unwrap().otherwise = step;
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.book.0.lock().unwrap().seen.clone()
    }

    pub(crate) fn seen_at(&self, path: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path() == path).collect()
    }

    pub(crate) fn count(&self, path: &str) -> usize {
        self.seen_at(path).len()
    }

    /// Waits until a path was asked for this often.
    pub(crate) fn wait(&self, path: &str, count: usize) {
        let book = self.book.0.lock().unwrap();
        let enough =
            |book: &Book| book.seen.iter().filter(|seen| seen.path() == path).count() >= count;
        let (book, _) =
            self.book.1.wait_timeout_while(book, PATIENCE, |book| !enough(book)).unwrap();
        assert!(enough(&book), "{path} did not reach the upstream {count} times");
    }

    fn serve(&self, stream: TcpStream) {
        let mut out = stream.try_clone().unwrap();
        let mut reader = Reader::new(stream);
        while let Some(message) = reader.message(false) {
            let mut words = message.start.split(' ');
            let method = words.next().unwrap_or_default().to_owned();
            let target = words.next().unwrap_or_default().to_owned();
            let seen = Seen { method, target, message };
            let path = seen.path().to_owned();
            let step = {
                let mut book = self.book.0.lock().unwrap();
                let count = book.seen.iter().filter(|seen| seen.path() == path).count();
                let step = match (book.steps.get(&path), &book.otherwise) {
                    (Some(steps), _) => steps[count.min(steps.len() - 1)].clone(),
                    (None, Some(step)) => step.clone(),
                    (None, None) => reply(201, &format!("{{\"n\":{}}}", count + 1)),
                };
                book.seen.push(seen.clone());
                self.book.1.notify_all();
                step
            };
            if !act(&mut out, step, &seen.method) {
                let _ = out.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

fn act(out: &mut TcpStream, step: Step, method: &str) -> bool {
    match step {
        Step::Drop => false,
        Step::Raw(bytes) => {
            let _ = out.write_all(&bytes);
            false
        }
        Step::RawHeld(bytes, gate) => {
            let _ = out.write_all(&bytes);
            gate.pass();
            false
        }
        Step::Held(gate, step) => {
            gate.pass();
            act(out, *step, method)
        }
        Step::Reply(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status} X\r\n");
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            let bare = matches!(status, 204 | 304);
            if !bare {
                head.push_str(&format!("Content-Length: {}\r\n", body.len()));
            }
            head.push_str("\r\n");
            let mut bytes = head.into_bytes();
            if !bare && method != "HEAD" {
                bytes.extend_from_slice(&body);
            }
            out.write_all(&bytes).is_ok()
        }
    }
}

// ------------------------------------------------------------------ client

/// Sends bytes as they are, and reads every answer until the connection closes.
pub(crate) fn raw(address: SocketAddr, bytes: &[u8], close_write: bool) -> Vec<Message> {
    let stream = TcpStream::connect(address).unwrap();
    let mut out = stream.try_clone().unwrap();
    let bytes = bytes.to_vec();
    // In a thread of its own: a refusal may come while a large request is still being written.
    let writer = std::thread::spawn(move || {
        let _ = out.write_all(&bytes);
        if close_write {
            let _ = out.shutdown(Shutdown::Write);
        }
    });
    let mut reader = Reader::new(stream);
    let answers = std::iter::from_fn(|| reader.message(false)).collect();
    let _ = reader.stream.shutdown(Shutdown::Both);
    writer.join().unwrap();
    answers
}

/// A request in bytes.
pub(crate) fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: api.test\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || method == "POST" {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("Connection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A token with these claims that nobody has signed.
pub(crate) fn token(claims: &serde_json::Value) -> String {
    use base64::Engine as _;
    let part = |part: &serde_json::Value| {
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(part.to_string())
    };
    let head = serde_json::json!({"alg": "RS256", "typ": "JWT"});
    format!("{}.{}.c2lnbmF0dXJl", part(&head), part(claims))
}

/// Sends one request and reads its final answer.
pub(crate) fn send(address: SocketAddr, bytes: &[u8]) -> Message {
    let answers = raw(address, bytes, false);
    answers.into_iter().rev().find(|answer| answer.status() >= 200).expect("an answer")
}

// ------------------------------------------------------------------ gateway

pub(crate) const TOKEN: &str = "token-of-the-tests";

/// `retrysafe serve` as a child.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) folder: PathBuf,
    upstream: SocketAddr,
    pub(crate) store: String,
    /// What its shell is told before it starts, such as `ulimit -n 100`.
    pub(crate) before: String,
    /// What takes its log instead of a file.
    pub(crate) pipe: Option<PipeWriter>,
    /// Configuration that needs to know the folder, beside what a test passes.
    pub(crate) toml: String,
    /// Whether nothing is said about callers without a credential.
    is_bare: bool,
    child: Option<Child>,
    _guard: tempfile::TempDir,
}

impl Gateway {
    /// A gateway that refuses callers who show no credential, as it does where nothing is set. Other
    /// tests are not about callers, and let all who show nothing be one.
    pub(crate) fn start_bare(upstream: &Upstream, toml: &str) -> Self {
        Self::start_as(upstream, toml, |gateway| gateway.is_bare = true)
    }

    /// A gateway with this much more configuration, on a disk store of its own.
    pub(crate) fn start(upstream: &Upstream, toml: &str) -> Self {
        Self::start_as(upstream, toml, |_| {})
    }

    /// The same, changed before it starts.
    pub(crate) fn start_as(
        upstream: &Upstream,
        toml: &str,
        change: impl FnOnce(&mut Self),
    ) -> Self {
        let mut gateway = Self::asleep_as(upstream, toml, change);
        gateway.restart();
        gateway
    }

    /// A gateway with this much more configuration, on this store.
    pub(crate) fn start_on(store: &str, upstream: &Upstream, toml: &str) -> Self {
        Self::start_as(upstream, toml, |gateway| gateway.store = store.to_owned())
    }

    /// A gateway on this store whose process does not run yet.
    pub(crate) fn asleep_on(store: &str, upstream: &Upstream, toml: &str) -> Self {
        Self::asleep_as(upstream, toml, |gateway| gateway.store = store.to_owned())
    }

    fn asleep_as(upstream: &Upstream, toml: &str, change: impl FnOnce(&mut Self)) -> Self {
        let guard = tempfile::tempdir().unwrap();
        let mut gateway = Self {
            address: free(),
            admin: free(),
            folder: guard.path().to_path_buf(),
            upstream: upstream.address,
            store: format!("disk:{}", guard.path().join("data").display()),
            before: "true".into(),
            pipe: None,
            toml: String::new(),
            is_bare: false,
            child: None,
            _guard: guard,
        };
        change(&mut gateway);
        gateway.configure(&format!("{toml}{}", gateway.toml));
        gateway
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.join("retrysafe.toml")
    }

    /// Writes the configuration file.
    pub(crate) fn configure(&self, toml: &str) {
        let head = format!(
            "listen = \"{}\"\nupstream = \"http://{}\"\nstore = \"{}\"\nstate_folder = \"{}\"\n",
            self.address,
            self.upstream,
            self.store,
            self.folder.join("state").display()
        );
        let (top, tables) = toml.split_once("\n---\n").unwrap_or(("", toml));
        let admin = format!("[admin]\nlisten = \"{}\"\ntoken = \"{TOKEN}\"\n", self.admin);
        std::fs::write(self.config(), format!("{head}{top}\n{admin}{tables}\n")).unwrap();
    }

    /// Starts it again, on the same store and addresses.
    pub(crate) fn restart(&mut self) {
        self.spawn();
        self.await_ready();
    }

    /// Starts its process.
    pub(crate) fn spawn(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .unwrap();
        let out = |file: &std::fs::File| match &self.pipe {
            Some(pipe) => Stdio::from(pipe.try_clone().unwrap()),
            None => Stdio::from(file.try_clone().unwrap()),
        };
        let child = Command::new("sh")
            .args(["-c", &format!("{} && exec \"$@\"", self.before), "sh"])
            .arg(env!("CARGO_BIN_EXE_retrysafe"))
            .args(["serve", "--config"])
            .arg(self.config())
            .args(if self.is_bare { &[][..] } else { &["--anonymous", "shared"] })
            .stdin(Stdio::null())
            .stdout(out(&log))
            .stderr(out(&log))
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Waits until it is ready.
    pub(crate) fn await_ready(&mut self) {
        let end = Instant::now() + PATIENCE;
        while !self.is_ready() {
            if let Some(status) = self.child().try_wait().unwrap() {
                panic!("the gateway ended with {status}: {}", self.log());
            }
            assert!(Instant::now() < end, "not ready: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        TcpStream::connect(self.admin).is_ok()
            && raw(self.admin, &request("GET", "/readyz", &[], b""), false)
                .first()
                .is_some_and(|answer| answer.status() == 200)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits until the log says something.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < end, "the log does not say {text:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.as_ref().unwrap().id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Stops it hard, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child().kill().unwrap();
        self.child().wait().unwrap();
    }

    /// Waits for its end and gives its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child().try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "did not stop: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn post(&self, path: &str, key: &str, body: &str) -> Message {
        self.post_with(path, key, body, &[])
    }

    pub(crate) fn post_with(
        &self,
        path: &str,
        key: &str,
        body: &str,
        more: &[(&str, &str)],
    ) -> Message {
        let mut headers = vec![("Idempotency-Key", key), ("Content-Type", "application/json")];
        headers.extend_from_slice(more);
        send(self.address, &request("POST", path, &headers, body.as_bytes()))
    }

    /// Asks the admin listener, with the token.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Message {
        let token = format!("Bearer {TOKEN}");
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        send(self.admin, &request(method, path, &headers, body.as_bytes()))
    }

    /// Decides about the attempt of a record that was seen.
    pub(crate) fn decide(&self, seen: &serde_json::Value, verb: &str, what: &str) -> Message {
        let mut body: serde_json::Value = serde_json::from_str(what).unwrap();
        body["fence"] = seen["fence"].clone();
        let id = seen["id"].as_str().unwrap();
        self.ask("POST", &format!("/api/v1/keys/{id}/{verb}"), &body.to_string())
    }

    pub(crate) fn records(&self) -> u64 {
        self.ask("GET", "/api/v1/stats", "").json()["all"]["records"].as_u64().unwrap()
    }

    /// The most memory that the process has had so far.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let id = self.child.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// How large a metric without labels is.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub(crate) fn metrics(&self) -> String {
        self.ask("GET", "/metrics", "").text()
    }

    /// The one unknown record of a path.
    pub(crate) fn unknown_at(&self, path: &str) -> serde_json::Value {
        let listed = self.ask("GET", "/api/v1/keys?state=unknown&limit=1000", "").json();
        let keys = listed["keys"].as_array().unwrap().clone();
        let mut here: Vec<_> = keys.into_iter().filter(|key| key["path"] == path).collect();
        assert_eq!(here.len(), 1, "{here:?}");
        here.remove(0)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How long the gateway keeps a connection to an upstream that nobody uses.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Plays something in which connections to an upstream are used again, and gives what it has counted. If
/// it took so long that an idle one may have been given up, that says nothing, and it is played anew.
pub(crate) fn without_stall<T>(mut play: impl FnMut() -> (Duration, T)) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let (took, counted) = play();
        if took < IDLE_MAX {
            return counted;
        }
        assert!(Instant::now() < end, "it always takes as long as {took:?}");
    }
}

/// An address that nobody else of this run gets: below the ports that the system gives out by
/// itself, one after the other.
pub(crate) fn free() -> SocketAddr {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 97;
        let port = u16::try_from(12_000 + number % 18_000).unwrap();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

/// Runs the program with arguments: exit code, standard output, standard error.
pub(crate) fn program(arguments: &[&str], folder: &Path) -> (i32, String, String) {
    program_with(arguments, folder, &[])
}

pub(crate) fn program_with(
    arguments: &[&str],
    folder: &Path,
    variables: &[(&str, &str)],
) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
