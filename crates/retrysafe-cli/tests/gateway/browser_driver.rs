//! How is a real browser told what to do?
//!
//! Chromium without a window, through its driver's own protocol. With `RETRYSAFE_SCREENSHOTS=FOLDER` every page that is pictured is kept
//! there, under a name that no other page has.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

use super::kit::{Message, Reader, TOKEN, free, until};

/// How long a browser may take for one step, on a busy machine.
const BROWSER_PATIENCE: Duration = Duration::from_secs(120);

/// The key that sends a form and follows a link, in the driver's protocol.
pub(crate) const ENTER: &str = "\u{e007}";

/// The name under which the driver's protocol passes elements on.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The widths and themes at which a page is looked at.
pub(crate) const LOOKS: [(u32, &str); 4] =
    [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")];

/// How high a picture may be: past this a reader of the documentation would scroll over it.
const PICTURE_HEIGHTS: std::ops::RangeInclusive<u64> = 420..=1_500;

/// A browser. It ends with this value.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    /// How many links were followed, buttons pressed and fields sent since somebody asked.
    steps: Cell<usize>,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn open() -> Self {
        let address = free();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={}", address.port()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver; `cargo xtask test` installs it");
        until("the driver listens", || TcpStream::connect(address).is_ok());
        let profile = tempfile::tempdir().unwrap();
        let session = String::new();
        let steps = Cell::default();
        let mut browser = Self { driver, address, session, steps, _profile: profile };
        let open = |turn: u8| {
            let profile = browser._profile.path().join(turn.to_string());
            let folder = format!("--user-data-dir={}", profile.display());
            let arguments = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                &folder,
            ];
            let options = json!({"goog:chromeOptions": {"args": arguments}});
            browser.told("POST", "/session", &json!({"capabilities": {"alwaysMatch": options}}))
        };
        // The driver gives a browser a minute to start, and from a cold disk that may be too short: it is started three times.
        let mut opened = open(0);
        for turn in 1..3 {
            if opened.0 != 200 {
                opened = open(turn);
            }
        }
        let (status, opened) = opened;
        assert_eq!(status, 200, "{opened}");
        browser.session =
            opened["sessionId"].as_str().unwrap_or_else(|| panic!("{opened}")).to_owned();
        browser
    }

    /// Tells the driver something, and gives the value of its answer.
    fn tell(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, value) = self.told(method, path, body);
        assert_eq!(status, 200, "{path} {body}: {value}");
        value
    }

    /// The same with the status of the answer, which may say that it could not be done.
    fn told(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let text = if method == "GET" { String::new() } else { body.to_string() };
        // The driver serves nobody who calls it by another name.
        let asked = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            self.address,
            text.len()
        );
        let stream = TcpStream::connect(self.address).unwrap();
        let waiting = stream.try_clone().unwrap();
        let mut reader = Reader::new(stream);
        waiting.set_read_timeout(Some(BROWSER_PATIENCE)).unwrap();
        std::io::Write::write_all(&mut &waiting, asked.as_bytes()).unwrap();
        let answer: Message =
            reader.message(false).unwrap_or_else(|| panic!("no answer to {path}"));
        (answer.status(), answer.json()["value"].clone())
    }

    fn of_session(&self, method: &str, path: &str, body: &Value) -> Value {
        self.tell(method, &format!("/session/{}{path}", self.session), body)
    }

    pub(crate) fn go(&self, address: SocketAddr, path: &str) {
        self.of_session("POST", "/url", &json!({"url": format!("http://{address}{path}")}));
    }

    fn find(&self, css: &str) -> String {
        let found =
            self.of_session("POST", "/element", &json!({"using": "css selector", "value": css}));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// How many steps a person has made since this was asked last.
    pub(crate) fn take_steps(&self) -> usize {
        self.steps.take()
    }

    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// Clicks on a link or a button.
    pub(crate) fn click(&self, css: &str) {
        self.step();
        self.choose(css);
    }

    /// Chooses something in a form. That is a part of filling it in.
    pub(crate) fn choose(&self, css: &str) {
        let element = self.find(css);
        self.of_session("POST", &format!("/element/{element}/click"), &json!({}));
    }

    /// Puts the focus on an element that a keyboard can reach, and presses Enter there.
    pub(crate) fn press(&self, css: &str) {
        self.step();
        let reachable = format!(
            "const node = document.querySelector(\"{css}\"); node.focus(); return document.activeElement === node && node.tabIndex >= 0"
        );
        assert_eq!(self.ask(&reachable), true, "{css} cannot be reached by a keyboard");
        let press = json!([{"type": "keyDown", "value": ENTER}, {"type": "keyUp", "value": ENTER}]);
        let keyboard = json!({"actions": [{"type": "key", "id": "keyboard", "actions": press}]});
        self.of_session("POST", "/actions", &keyboard);
    }

    /// Writes into a field, and sends it if the text ends with the key for that.
    pub(crate) fn write(&self, css: &str, text: &str) {
        if text.ends_with(ENTER) {
            self.step();
        }
        let element = self.find(css);
        self.of_session("POST", &format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// What a person reads in a part of the page, while one page may give way to the next.
    pub(crate) fn text(&self, css: &str) -> String {
        let script = format!("return document.querySelector(\"{css}\")?.innerText ?? ''");
        self.ask(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a part of the page says this.
    pub(crate) fn await_text(&self, css: &str, part: &str) {
        until(&format!("{css} says {part}"), || self.text(css).contains(part));
    }

    /// Waits until the page is one whose path is as wanted.
    pub(crate) fn await_path(&self, is_wanted: impl Fn(&str) -> bool) {
        until("the page has given way to the next", || {
            self.ask("return location.pathname").as_str().is_some_and(&is_wanted)
        });
    }

    /// What a script of the driver finds out.
    pub(crate) fn ask(&self, script: &str) -> Value {
        self.of_session("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// A command of the browser itself.
    fn command(&self, name: &str, parameters: Value) {
        self.of_session("POST", "/goog/cdp/execute", &json!({"cmd": name, "params": parameters}));
    }

    /// From the next page on no script of a page runs, or they do again. What this driver asks for is answered all the same.
    pub(crate) fn forbid_scripts(&self, is_forbidden: bool) {
        self.command("Emulation.setScriptExecutionDisabled", json!({"value": is_forbidden}));
    }

    pub(crate) fn log_in(&self, admin: SocketAddr) {
        self.go(admin, "/");
        self.write("#token", TOKEN);
        self.click("main button");
        self.await_text("h1", "Overview");
    }

    /// Whatever others have written that has become a part of the page instead of a text on it.
    pub(crate) fn alive(&self, name: &str) -> Vec<String> {
        let found = self.ask(ALIVE);
        let mut alive: Vec<String> = found
            .as_array()
            .unwrap_or_else(|| panic!("{name}: {found}"))
            .iter()
            .map(|node| format!("{name}: markup of others: {node}"))
            .collect();
        if self.ask("return window.struck ?? null") != Value::Null {
            alive.push(format!("{name}: a script of others ran"));
        }
        alive
    }

    fn look(&self, width: u32, height: u64, theme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.command("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.command("Emulation.setEmulatedMedia", feature);
    }

    /// Checks a page at two widths and in both themes.
    pub(crate) fn check_page(&self, name: &str) {
        for (width, theme) in LOOKS {
            self.check_look(name, width, theme);
        }
        self.look(1280, 900, "light");
    }

    /// Checks a page, and keeps its pictures if somebody wants them.
    pub(crate) fn picture_page(&self, name: &str) {
        /// Two tests that keep pictures under one name would overwrite each other's.
        static PICTURED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let is_first = PICTURED.lock().unwrap().insert(name.to_owned());
        assert!(is_first, "another test keeps pictures of {name}");
        for (width, theme) in LOOKS {
            self.check_look(name, width, theme);
            let Some(folder) = std::env::var_os("RETRYSAFE_SCREENSHOTS") else { continue };
            let height = self.ask("return document.documentElement.scrollHeight").as_u64().unwrap();
            let height = height.clamp(*PICTURE_HEIGHTS.start(), *PICTURE_HEIGHTS.end());
            self.look(width, height, theme);
            let picture = self.of_session("GET", "/screenshot", &Value::Null);
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(picture.as_str().unwrap())
                .unwrap();
            let file = Path::new(&folder).join(format!("{name}-{width}-{theme}.png"));
            std::fs::write(file, bytes).unwrap();
        }
        self.look(1280, 900, "light");
    }

    /// Nothing is cut off at the side, and every text can be read.
    fn check_look(&self, name: &str, width: u32, theme: &str) {
        self.look(width, 200, theme);
        let overflow = self.ask(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth",
        );
        assert_eq!(overflow, 0, "{name} is wider than {width}");
        let weak = self.ask(CONTRAST);
        assert_eq!(weak, json!([]), "{name}, {theme}: texts that are hard to read");
        if width < 600 {
            assert_eq!(
                self.ask(HIDDEN_CELLS),
                json!([]),
                "{name}: cells that a telephone cuts off"
            );
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.of_session("DELETE", "", &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Every text whose contrast is below 4.5 to 1 (WCAG AA), with what it is.
const CONTRAST: &str = r#"
const light = ([r, g, b]) => {
  const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const read = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const paper = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const color = read(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const weak = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.getClientRects().length || node.closest("svg, .hidden, .skip")) continue;
  const one = light(read(getComputedStyle(node).color)) + 0.05;
  const other = light(paper(node)) + 0.05;
  const ratio = Math.max(one, other) / Math.min(one, other);
  if (ratio < 4.5) weak.push(`${node.tagName}.${node.className} "${node.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
}
return weak;
"#;

/// Every cell of a table that begins to the right of the screen.
const HIDDEN_CELLS: &str = r#"
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll("main td")]
  .filter((cell) => cell.getClientRects().length && cell.getBoundingClientRect().right > edge + 1)
  .map((cell) => cell.textContent.trim().slice(0, 40));
"#;

/// Every element and every attribute that no template of ours writes, and every link that leads elsewhere.
const ALIVE: &str = r#"
const own = new Set(("class href id name value type action method for required maxlength autocomplete placeholder selected role "
  + "tabindex rows inputmode size viewBox width height x y x1 x2 y1 y2 cx cy r rx accesskey autofocus lang charset content rel "
  + "http-equiv src defer datetime scope open title").split(" "));
const foreign = ["img", "iframe", "object", "embed", "style", "base", "i", "u", "video", "audio", "math"];
const isOwn = (attribute) => own.has(attribute.name) || /^(aria|data)-[a-z-]+$/.test(attribute.name);
const isForeign = (node) => foreign.includes(node.localName)
  || (node.localName === "b" && !node.closest(".tile"))
  || (node.localName === "script" && node.getAttribute("src") !== "/assets/live.js")
  || (node.localName === "input" && node.hasAttribute("autofocus") && node.id !== "token")
  || [...node.attributes].some((attribute) => !isOwn(attribute))
  || (node.hasAttribute("href") && !/^(\/(?!\/)|#)/.test(node.getAttribute("href")))
  || (node.hasAttribute("action") && !/^\/(?!\/)/.test(node.getAttribute("action")));
return [...document.querySelectorAll("html *")].filter(isForeign).map((node) => node.outerHTML.slice(0, 300));
"#;
