//! Does `retrysafe reconcile compare` find every difference, in bounded memory, and refuse what cannot be read?

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "this is how a test fails, and how the large run reports"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

/// How many lines each side has where nobody says otherwise: `cargo xtask ledger COUNT` does.
const LINES: u64 = 50_000;

/// How many differences are planted among them.
const PLANTED: u64 = 1_000;

/// The most memory that a comparison may take, in kilobytes, whatever its length.
const MEMORY_KB_MAX: u64 = 200_000;

/// A prime, so that its multiples meet every line once.
const STRIDE: u64 = 7_919_317;

// ------------------------------------------------------------------ many lines

#[test]
fn a_thousand_planted_differences_are_found_in_bounded_memory() {
    let count = std::env::var("RETRYSAFE_LEDGER").map_or(LINES, |count| count.parse().unwrap());
    let program = std::env::var("RETRYSAFE_LEDGER_PROGRAM");
    let program = program.unwrap_or_else(|_| env!("CARGO_BIN_EXE_retrysafe").to_owned());
    assert!(count >= 4 * PLANTED && !count.is_multiple_of(STRIDE));
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours.csv");
    let mut file = BufWriter::new(File::create(&ours).unwrap());
    writeln!(file, "id,amount,currency,status").unwrap();
    for number in 0..count {
        if planted(number, count) != Some(Plant::MissingHere) {
            writeln!(file, "pay_{number:012},{},{},paid", amount(number), currency(number))
                .unwrap();
        }
    }
    file.into_inner().unwrap();
    let in_order = folder.path().join("theirs.jsonl");
    write_theirs(&in_order, count, |number| number);
    let shuffled = folder.path().join("shuffled.jsonl");
    write_theirs(&shuffled, count, |number| (number * STRIDE) % count);

    for (theirs, sort) in [(&in_order, &[][..]), (&shuffled, &["--sort", "theirs"])] {
        let all = folder.path().join("differences.jsonl");
        let mut compare = Command::new(&program);
        compare.args([
            "reconcile",
            "compare",
            "--key",
            "id=reference",
            "--amount",
            "amount=/money/value",
        ]);
        compare.args([
            "--currency",
            "currency=/money/currency",
            "--field",
            "status",
            "--format",
            "json",
        ]);
        compare.args(["--limit", "1000"]).args(sort);
        compare
            .arg("--ours")
            .arg(&ours)
            .arg("--theirs")
            .arg(theirs)
            .arg("--differences-file")
            .arg(&all);
        let began = Instant::now();
        let (code, report, memory) = run_and_weigh(&mut compare);
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(code, 3, "they differ");
        judge(&report, count);
        let listed = std::fs::read_to_string(&all).unwrap();
        assert_eq!(listed.lines().count() as u64, PLANTED, "every difference is in the file");
        assert!(memory < MEMORY_KB_MAX, "{memory} kB");
        println!(
            "{count} lines on each side{}: {seconds:.1} s, {:.0} lines/s, at most {} MB",
            if sort.is_empty() { "" } else { ", theirs sorted here" },
            2.0 * count as f64 / seconds,
            memory / 1_000
        );
    }
}

/// What is planted on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Plant {
    MissingHere,
    MissingThere,
    Amount,
    Status,
}

fn planted(number: u64, count: u64) -> Option<Plant> {
    let gap = count / PLANTED;
    let kinds = [Plant::MissingHere, Plant::MissingThere, Plant::Amount, Plant::Status];
    let is_planted = number % gap == gap / 2 && number / gap < PLANTED;
    is_planted.then(|| kinds[(number / gap % 4) as usize])
}

/// In cents, some of them paid back.
fn cents(number: u64) -> i64 {
    (number * 7_919 % 1_000_000) as i64 - 100_000
}

fn shown(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.abs() / 100, cents.abs() % 100)
}

fn amount(number: u64) -> String {
    shown(cents(number))
}

fn currency(number: u64) -> &'static str {
    ["EUR", "JPY", "USD"][(number % 3) as usize]
}

fn write_theirs(path: &Path, count: u64, order: impl Fn(u64) -> u64) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for number in (0..count).map(order) {
        let plant = planted(number, count);
        if plant == Some(Plant::MissingThere) {
            continue;
        }
        let cents = cents(number) + i64::from(plant == Some(Plant::Amount));
        let status = if plant == Some(Plant::Status) { "refunded" } else { "paid" };
        let currency = currency(number);
        writeln!(
            file,
            "{{\"reference\":\"pay_{number:012}\",\"money\":{{\"value\":{},\"currency\":\"{currency}\"}},\"status\":\"{status}\"}}",
            shown(cents)
        )
        .unwrap();
    }
    file.into_inner().unwrap();
}

/// Looks whether the report is what was planted, difference by difference and sum by sum.
fn judge(report: &Value, count: u64) {
    let of_each = PLANTED / 4;
    assert_eq!(report["lines"], json!({"ours": count - of_each, "theirs": count - of_each}));
    assert_eq!(report["missing_here"], of_each);
    assert_eq!(report["missing_there"], of_each);
    assert_eq!(report["different"], 2 * of_each);
    assert_eq!(report["same"], count - PLANTED);
    let mut expected = BTreeMap::new();
    let mut sums: BTreeMap<&str, [i64; 2]> = BTreeMap::new();
    for number in 0..count {
        let plant = planted(number, count);
        let [ours, theirs] = sums.entry(currency(number)).or_default();
        *ours += if plant == Some(Plant::MissingHere) { 0 } else { cents(number) };
        *theirs += if plant == Some(Plant::MissingThere) { 0 } else { cents(number) };
        *theirs += i64::from(plant == Some(Plant::Amount));
        expected.extend(plant.map(|plant| (format!("pay_{number:012}"), plant)));
    }
    let told = report["differences"].as_array().unwrap().iter().map(|it| {
        let plant = match (it["kind"].as_str().unwrap(), &it["columns"]) {
            ("missing_here", Value::Null) => Plant::MissingHere,
            ("missing_there", Value::Null) => Plant::MissingThere,
            ("different", columns) if *columns == json!(["amount"]) => Plant::Amount,
            ("different", columns) if *columns == json!(["status"]) => Plant::Status,
            _ => panic!("{it}"),
        };
        (it["key"].as_str().unwrap().to_owned(), plant)
    });
    assert_eq!(told.collect::<BTreeMap<_, _>>(), expected);
    // Amounts are exact: whole cents are shown without a point if they are none.
    let plain =
        |cents: i64| if cents % 100 == 0 { (cents / 100).to_string() } else { shown(cents) };
    let sums = sums.iter().map(|(currency, [ours, theirs])| {
        json!({"currency": currency, "ours": plain(*ours), "theirs": plain(*theirs), "ours_minus_theirs": plain(ours - theirs)})
    });
    assert_eq!(report["sums"], json!(sums.collect::<Vec<_>>()));
}

/// Runs a comparison: its exit code, its report, and the most memory that it took, in kilobytes. The report is longer than a
/// pipe holds, so the program waits for us with its work done, and can be looked at.
fn run_and_weigh(command: &mut Command) -> (i32, Value, u64) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut report = vec![0];
    out.read_exact(&mut report).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or_else(|| panic!("{status}"));
    let peak = peak.trim().trim_end_matches(" kB").parse().unwrap();
    out.read_to_end(&mut report).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    (code, serde_json::from_slice(&report).unwrap(), peak)
}

// ------------------------------------------------------------------ files

/// Runs a comparison in a folder: exit code, standard output, standard error.
fn compare(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["reconcile", "compare"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_exit_code_tells_a_timer_whether_ledgers_agree_differ_or_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ours.csv", "id,amount,day\na,1,2026-11-15T23:00:00Z\nb,2.50,2026-11-16T09:00:00Z\n");
    write(
        "same.jsonl",
        "{\"id\":\"a\",\"amount\":1.00,\"day\":1794783600}\n{\"id\":\"b\",\"amount\":\"2.5\",\"day\":1794819600}\n",
    );
    write("other.csv", "amount;id;day\n9;A|1;2026-11-16T10:00:00Z\n2.51;b;2026-11-16T09:00:00Z\n");
    let basic = ["--ours", "ours.csv", "--key", "id", "--amount", "amount"];
    let run = |more: &[&str]| compare(folder.path(), &[&basic, more].concat());

    let metrics = ["--metrics-file", "ledger.prom", "--name", "bank"];
    let (code, out, err) = run(&[&["--theirs", "same.jsonl"][..], &metrics].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("The ledgers say the same: 2 lines.\n"), "{out}");
    assert!(out.contains("all       3.50  3.50    0"), "{out}");
    let written = std::fs::read_to_string(folder.path().join("ledger.prom")).unwrap();
    let expected = "retrysafe_ledger_differences{ledger=\"bank\",kind=\"missing_here\"} 0";
    assert!(written.lines().any(|line| line == expected), "{written}");

    // Theirs is separated otherwise, and so ours must be: a file of each kind.
    write("ours.jsonl", "{\"id\":\"a\",\"amount\":1}\n{\"id\":\"b\",\"amount\":2.5}\n");
    let different = [
        "--ours",
        "ours.jsonl",
        "--theirs",
        "other.csv",
        "--delimiter",
        ";",
        "--key",
        "id",
        "--amount",
        "amount",
    ];
    let (code, out, err) = compare(folder.path(), &[&different[..], &["--limit", "2"]].concat());
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("A|1  missing here") && out.contains("a    missing there  1"), "{out}");
    assert!(err.contains("1 further differences"), "{err}");
    let (code, out, _) =
        compare(folder.path(), &[&different[..], &["--format", "markdown"]].concat());
    assert_eq!(code, 3);
    assert!(out.contains("| A\\|1 | missing here | - | 9 |"), "{out}");
    assert!(out.contains("| b | amount | 2.50 | 2.51 |"), "{out}");

    let (code, _, err) = run(&["--theirs", "absent.csv", "--metrics-file", "absent.prom"]);
    assert!(code == 1 && err.contains("theirs (absent.csv)"), "{err}");
    assert!(!folder.path().join("absent.prom").exists(), "no counts of what was not compared");

    // Only one day; and both sides must know what that is.
    let day = ["--theirs", "same.jsonl", "--since", "2026-11-16", "--until", "2026-11-17"];
    let (code, out, err) = run(&[&day[..], &["--time", "day", "--format", "json"]].concat());
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["lines"]), (0, &json!({"ours": 1, "theirs": 1})), "{out}{err}");
    let (code, _, err) = run(&day);
    assert!(code == 1 && err.contains("--time"), "{err}");
}

#[test]
fn what_is_out_of_order_or_twice_is_refused_with_its_line_and_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ours.csv", "id\na\nb\n");
    let run = |more: &[&str]| {
        compare(
            folder.path(),
            &[&["--ours", "ours.csv", "--theirs", "theirs.csv", "--key", "id"], more].concat(),
        )
    };
    // A locale sorts so: a, B, b.
    write("theirs.csv", "id\na\nB\nb\n");
    let (code, _, err) = run(&[]);
    assert!(code == 1 && err.contains("theirs (theirs.csv): line 3: the key \"B\""), "{err}");
    assert!(
        err.contains("(line 2)") && err.contains("LC_ALL=C sort") && err.contains("--sort"),
        "{err}"
    );
    let (code, out, _) = run(&["--sort", "theirs"]);
    assert!(code == 3 && out.contains("B    missing here"), "{out}");

    write("theirs.csv", "id\na\nb\nb\n");
    for sort in [&[][..], &["--sort", "theirs"]] {
        let (code, _, err) = run(sort);
        assert!(
            code == 1 && err.contains("line 4: the key \"b\" was there before, on line 3"),
            "{err}"
        );
    }
    // What is wrong further down is found, also behind the last difference.
    write("theirs.csv", "id\na\nb\nc\nB\n");
    assert!(run(&[]).2.contains("line 5"));
    // Flags that make no sense together say so.
    for (flags, told) in [
        (&["--query", "SELECT 1"][..], "--query is for"),
        (&["--delimiter", "é"], "--delimiter"),
        (&["--since", "tomorrow"], "--since \"tomorrow\""),
    ] {
        let (code, _, err) = run(flags);
        assert!(code == 1 && err.contains(told), "{err}");
    }
    let (code, _, err) =
        compare(folder.path(), &["--ours", "ours.csv", "--theirs", "x.xml", "--key", "id"]);
    assert!(code == 1 && err.contains("csv:PATH"), "{err}");
}

// ------------------------------------------------------------------ pages

/// A server of pages: what it answers to each request, by its target, in their order.
struct PageServer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

/// How a request is answered.
#[derive(Clone)]
enum Answer {
    Page(String),
    Says(u16),
    /// Says that it is longer than it is, and ends.
    BreaksOff(String),
}

impl PageServer {
    fn start(answers: Vec<(&'static str, Answer)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = asked.clone();
        let answers = Arc::new(Mutex::new(answers));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &answers, &log);
            }
        });
        Self { address, asked }
    }

    fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }
}

fn serve(
    stream: TcpStream,
    answers: &Mutex<Vec<(&'static str, Answer)>>,
    log: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or_default() == 0 {
                return;
            }
        }
        let target = head.split(' ').nth(1).unwrap().to_owned();
        log.lock()
            .unwrap()
            .push(format!("{target} {}", head.contains("authorization: Bearer s3cret")));
        let mut answers = answers.lock().unwrap();
        let (expected, answer) = if answers.is_empty() { return } else { answers.remove(0) };
        assert_eq!(target, expected);
        let (status, length, body) = match answer {
            Answer::Page(body) => (200, body.len(), body),
            Answer::Says(status) => (status, 2, "no".to_owned()),
            Answer::BreaksOff(body) => (200, body.len() + 10, body),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nretry-after: 0\r\n\r\n{body}"
        );
        if stream.write_all(head.as_bytes()).is_err() || length > body.len() {
            return;
        }
    }
}

fn page(items: &str, more: &str) -> Answer {
    Answer::Page(format!("{{\"data\":[{items}],{more}}}"))
}

#[test]
fn pages_are_read_to_the_end_and_asked_for_again_where_they_break_off() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ours.csv"), "id,amount\nc1,1\nc2,2\nc3,3\n").unwrap();
    std::fs::write(folder.path().join("headers"), "# ours\nAuthorization: Bearer s3cret\n")
        .unwrap();
    let first =
        page("{\"id\":\"c3\",\"amount\":3},{\"id\":\"c2\",\"amount\":2}", "\"has_more\":true");
    let last = page("{\"id\":\"c1\",\"amount\":1}", "\"has_more\":false");
    let half =
        Answer::BreaksOff("{\"data\":[{\"id\":\"c3\",\"amount\":3}],\"has_more\":false}".into());
    let server = PageServer::start(vec![
        ("/charges?limit=2", half),
        ("/charges?limit=2", Answer::Says(503)),
        ("/charges?limit=2", Answer::Says(429)),
        ("/charges?limit=2", first),
        ("/charges?limit=2&starting_after=c2", last),
    ]);
    let url = server.url("/charges?limit=2");
    let stripe =
        ["--cursor-item", "/id", "--more", "/has_more", "--cursor-parameter", "starting_after"];
    let basic = ["--ours", "ours.csv", "--theirs", &url, "--key", "id", "--amount", "amount"];
    let more = ["--headers", "headers", "--sort", "theirs"];
    let (code, out, err) = compare(folder.path(), &[&basic[..], &stripe, &more].concat());
    assert_eq!(code, 0, "{out}{err}");
    let asked = server.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 5, "{asked:?}");
    assert!(asked.iter().all(|asked| asked.ends_with(" true")), "{asked:?}");
}

#[test]
fn pages_that_go_round_break_off_or_are_refused_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ours.csv"), "id\na\n").unwrap();
    let half = || Answer::BreaksOff("{\"data\":[]".into());
    for (answers, told) in [
        (
            vec![
                ("/l", page("{\"id\":\"a\"}", "\"next\":\"x\"")),
                ("/l?cursor=x", page("{\"id\":\"b\"}", "\"next\":\"y\"")),
                ("/l?cursor=y", page("{\"id\":\"c\"}", "\"next\":\"x\"")),
            ],
            "page 3: its cursor \"x\" was there before",
        ),
        ((0..5).map(|_| ("/l", half())).collect(), "page 1: it broke off"),
        (vec![("/l", Answer::Says(401))], "page 1: the server answered 401"),
        (vec![("/l", Answer::Page("{\"data\":[{\"id\":".into()))], "page 1: it is no JSON"),
        (
            vec![("/l", page("{\"id\":\"b\"},{\"id\":\"a\"}", "\"next\":null"))],
            "page 1, item 2: the key \"a\"",
        ),
        (vec![("/l", page("{\"id\":\"a\"},{}", "\"next\":null"))], "page 1, item 2: it has no key"),
    ] {
        let server = PageServer::start(answers);
        let url = server.url("/l");
        let (code, out, err) = compare(
            folder.path(),
            &["--ours", "ours.csv", "--theirs", &url, "--key", "id", "--cursor", "/next"],
        );
        assert!(code == 1 && err.contains(told), "{told}: {code} {out}{err}");
    }
}
