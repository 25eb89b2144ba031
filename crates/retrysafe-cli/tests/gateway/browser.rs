//! Can a person use the dashboard in a real browser?
//!
//! Every page at two widths and in both themes, with scripts and without, by mouse and by keyboard, and with markup in everything that others
//! can write.

use serde_json::{Value, json};

use super::browser_driver::{Browser, ENTER, LOOKS};
use super::kit::{Gateway, Step, TOKEN, Upstream, key, reply, until};
use super::night::{Night, STRIKE, Words};
use super::pages::{Page, root};

#[test]
fn an_operator_logs_in_finds_a_key_by_a_log_line_decides_and_sees_the_replay() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    upstream.script("/payments", vec![Step::Drop]);
    let key = key();
    assert_eq!(gateway.post("/payments", &key, "{\"amount\":1200}").status(), 502);
    let unknown = gateway.unknown_at("/payments");
    let digest = unknown["key"].as_str().unwrap();
    let browser = Browser::open();
    browser.go(gateway.admin, "/");
    browser.picture_page("login");
    browser.write("#token", TOKEN);
    browser.click("main button");
    browser.await_text("[data-number=unknown]", "1");
    browser.check_page("overview");
    browser.click("nav a[href='/unknown']");
    browser.await_text("tbody", "POST /payments");
    browser.check_page("unknown");
    // By what stands in a log line: the first digits of the key's digest.
    let digits: String = digest.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    browser.write("#text", &digits);
    browser.click(".search button");
    browser.await_text("h1", "Keys");
    browser.check_page("keys");
    browser.click("tbody a");
    browser.await_text("main", "Decide");
    browser.check_page("story");
    browser.choose("input[value=answer]");
    browser.write("input[name=status]", "201");
    browser.write("textarea[name=body]", "{\"paid\":true}");
    browser.write("#reason", "the provider shows it: <b>ch_1</b>");
    browser.click("form.decision button");
    browser.await_text("main", "a replay: status 201");
    browser.picture_page("preview");
    browser.click("button.serious");
    browser.await_text("h1", "completed");
    // Markup is text.
    browser.await_text("main", "<b>ch_1</b>");
    browser.check_page("decided");
    let replay = gateway.post("/payments", &key, "{\"amount\":1200}");
    assert_eq!((replay.status(), replay.text().as_str()), (201, "{\"paid\":true}"));
    assert_eq!(upstream.count("/payments"), 1);
}

/// Every page; then an operator's questions, by the keyboard. docs/dashboard.md has a table of how many steps each takes from the page on
/// which it comes up: a step is a key that is pressed on a link or a button, or a field that is filled in and sent.
#[test]
fn every_page_is_readable_and_answers_an_operators_question_within_three_steps() {
    let night = Night::fall(&Words::of_a_night());
    let browser = Browser::open();
    browser.log_in(night.gateway.admin);
    for page in night.pages() {
        browser.go(night.gateway.admin, &page.path);
        browser.await_text("main", &page.part);
        browser.picture_page(page.name);
    }
    let promised = StopwatchTable::read();
    browser.go(night.gateway.admin, "/");
    browser.take_steps();
    let answered = |question: &str, css: &str, parts: &[&str]| {
        for part in parts {
            browser.await_text(css, part);
        }
        assert_eq!(browser.take_steps(), promised.steps(question), "{question}");
    };
    answered("Is the store healthy?", "main", &["store: ok"]);
    browser.press("nav a[href='/unknown']");
    browser.await_path(|path| path == "/unknown");
    answered("Which payments are in doubt, and why?", "tbody", &["POST /payments", "answer_lost"]);
    // By its id from a log line, then the record.
    let request_id =
        night.gateway.unknown_at("/payments")["request_id"].as_str().unwrap().to_owned();
    browser.write("#text", &format!("{request_id}{ENTER}"));
    // The page before has the same row, and a key that is pressed there is lost with that page.
    browser.await_path(|path| path != "/unknown");
    browser.await_text("tbody", "POST /payments");
    browser.press("tbody a");
    answered("What happened to request X?", "main", &["Timeline", &request_id]);
    browser.press("nav a[href='/outbox']");
    answered("What could never be delivered?", "main", &["By kind", "refund"]);
    browser.press("nav a[href='/inbox']");
    browser.await_text("tbody", "bank");
    browser.press("tbody a");
    answered("What did the provider say?", "main", &["Payload"]);
    browser.press("nav a[href='/ledger']");
    answered("Do our ledger and theirs agree?", "main", &["only theirs has"]);
    browser.press("nav a[href='/settings']");
    answered("Which rules hold for this route?", "main", &["Policy, by route", "/payments"]);
    browser.go(night.gateway.admin, "/unknown");
    browser.press(&format!("tbody a.button[href^='/keys/{}']", night.payment));
    browser.await_text("main", "Decide");
    browser.choose("input[value=fact]");
    browser.write("#reason", "the provider shows it");
    browser.press("form.decision button");
    // The page before says it as well, beside what is chosen there.
    browser.await_path(|path| path.ends_with("/preview"));
    browser.await_text("main", "410");
    browser.press("button.serious");
    answered("This one was paid; tell the caller", "h1", &["completed"]);
}

/// The table of docs/dashboard.md that says how many steps a question takes.
struct StopwatchTable(Vec<(String, usize)>);

impl StopwatchTable {
    fn read() -> Self {
        let page = Page::read("docs/dashboard.md".as_ref());
        let mut rows = Vec::new();
        for line in page.text.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, question, clicks, commands, _] = cells[..] else { continue };
            let number = |cell: &str| {
                cell.split_once(':').and_then(|(number, _)| number.parse::<usize>().ok())
            };
            let (Some(clicks), Some(commands)) = (number(clicks), number(commands)) else {
                continue;
            };
            assert!(clicks <= 3 && commands <= 3, "more than three steps: {line}");
            rows.push((question.to_owned(), clicks));
        }
        Self(rows)
    }

    fn steps(&self, question: &str) -> usize {
        let row = self.0.iter().find(|(asked, _)| asked == question);
        row.unwrap_or_else(|| panic!("docs/dashboard.md has no row for {question:?}")).1
    }
}

#[test]
fn markup_of_others_is_text_with_scripts_and_without_them_and_a_decision_needs_none() {
    let night = Night::fall(&Words::of_an_attacker());
    let browser = Browser::open();
    browser.log_in(night.gateway.admin);
    let mut alive = Vec::new();
    for is_forbidden in [false, true] {
        browser.forbid_scripts(is_forbidden);
        for page in night.pages().into_iter().chain(night.odd_pages()) {
            browser.go(night.gateway.admin, &page.path);
            until("a page is there", || !browser.text("main").is_empty());
            alive.extend(browser.alive(page.name));
            // What others have written is there, as text.
            assert_eq!(alive, Vec::<String>::new());
            browser.await_text("main", &page.part);
        }
    }
    browser.go(night.gateway.admin, &format!("/keys/{}", night.payment));
    browser.choose("input[value=not_executed]");
    browser.write("#reason", STRIKE);
    browser.click("form.decision button");
    browser.await_text("main", "it is executed again");
    alive.extend(browser.alive("preview"));
    browser.click("button.serious");
    browser.await_text("h1", "failed_retryable");
    browser.await_text("main", STRIKE);
    alive.extend(browser.alive("decided"));
    assert_eq!(alive, Vec::<String>::new());
    night.upstream.script("/payments", vec![reply(201, "{}")]);
    let tenant = [("X-Tenant", STRIKE)];
    let again = night.gateway.post_with("/payments", &night.key, STRIKE, &tenant);
    assert_eq!(again.status(), 201, "{}", again.text());
}

/// What docs/dashboard.md shows: each page, and those of a bad night also in the dark and on a telephone.
#[test]
fn every_page_has_a_picture_and_every_picture_is_shown() {
    let text = Page::read("docs/dashboard.md".as_ref()).text;
    let mut bytes = 0;
    let mut pictures: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(root().join("docs/dashboard")).unwrap().flatten() {
        bytes += entry.metadata().unwrap().len();
        pictures.push(entry.file_name().into_string().unwrap());
    }
    for picture in &pictures {
        assert!(text.contains(&format!("(dashboard/{picture})")), "{picture} is not shown");
        let is_look = |(width, theme)| picture.ends_with(&format!("-{width}-{theme}.png"));
        assert!(LOOKS.into_iter().any(is_look), "{picture}: which width and theme?");
    }
    let has = |name: &str, look: &str| {
        pictures.iter().any(|it| it.starts_with(&format!("{name}-")) && it.contains(look))
    };
    for name in Night::PAGES.into_iter().chain(["login", "preview"]) {
        assert!(has(name, ""), "no picture of {name}");
    }
    for name in ["overview", "unknown", "story"] {
        for look in ["-1280-", "-390-", "-light.", "-dark."] {
            assert!(has(name, look), "no picture of {name} with {look}");
        }
    }
    assert!(bytes < 2_000_000, "{bytes} bytes of pictures");
}

/// A page that was asked for with markup in its own address.
#[test]
fn markup_in_an_address_is_text() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let browser = Browser::open();
    browser.log_in(gateway.admin);
    let strike: String = STRIKE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut alive = Vec::new();
    for path in [
        format!("/keys?text={strike}&state={strike}&route={strike}&scope={strike}&path={strike}"),
        format!("/keys?route={strike}&path={strike}"),
        format!("/keys/{strike}"),
        format!("/unknown?cursor={strike}"),
        format!("/outbox?state={strike}&kind={strike}"),
        format!("/inbox?state={strike}&provider={strike}"),
        format!("/login?next={strike}"),
    ] {
        browser.go(gateway.admin, &path);
        until("a page is there", || !browser.text("main").is_empty());
        alive.extend(browser.alive(&path));
    }
    assert_eq!(alive, Vec::<String>::new());
    let told: Value = gateway.ask("GET", "/api/v1/keys", "").json();
    assert_eq!(told["keys"], json!([]));
}
