//! Does a reader who follows a tutorial to the letter see what the page says?
//!
//! Each page is played from top to bottom in a new folder: its files are saved, its packages installed, its application
//! and its gateway started, and its `curl` lines run. A block of text after a command must be found in what the command
//! says. Only the ports are others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[path = "gateway/install.rs"]
mod install;
#[allow(dead_code, reason = "the tests of the gateway read more of a page")]
#[path = "gateway/pages.rs"]
mod pages;

/// How long a server may take to listen, and a lookup to decide, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What starts an application and does not end.
const SERVERS: [&str; 3] = ["node ", "venv/bin/uvicorn ", "venv/bin/python manage.py runserver "];

/// What downloads packages.
const INSTALLERS: [&str; 2] = ["npm install ", "venv/bin/pip install "];

#[test]
fn the_first_ten_minutes_go_as_the_page_says() {
    assert_eq!(play("docs/start.md"), 5);
}

#[test]
fn the_express_tutorial_goes_as_the_page_says() {
    assert_eq!(play("docs/tutorials/express.md"), 7);
}

#[test]
fn the_fastapi_tutorial_goes_as_the_page_says() {
    assert_eq!(play("docs/tutorials/fastapi.md"), 6);
}

#[test]
fn the_django_tutorial_goes_as_the_page_says() {
    assert_eq!(play("docs/tutorials/django.md"), 6);
}

/// The packages of Spring cannot be had everywhere. So the page is played in front of the application of the Express page,
/// which has the same paths and the same answers, and its Java is compiled against the signatures that it uses.
#[test]
fn the_spring_tutorial_goes_as_the_page_says_of_the_gateway() {
    assert_eq!(play("docs/tutorials/spring.md"), 4);
}

#[test]
fn the_application_of_the_spring_tutorial_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let page = pages::Page::read(Path::new("docs/tutorials/spring.md"));
    let java = page.blocks().into_iter().find(|block| block.language == "java").unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("shop/Shop.java", &java.text);
    for declared in include_str!("spring_signatures.txt").split("\n\n") {
        let package = declared.trim().strip_prefix("package ").unwrap().split(';').next().unwrap();
        let (_, named) = declared.split_once("public ").unwrap();
        let mut words = named.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let name = words.find(|word| !["class", "interface"].contains(word)).unwrap();
        write(&format!("{}/{name}.java", package.replace('.', "/")), declared);
    }
    let output = Command::new("javac")
        .args(["-proc:none", "-Xlint:all", "-Werror", "-d", "out", "shop/Shop.java"])
        .current_dir(folder.path())
        .output()
        .expect("javac is there: `cargo xtask test` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_axum_tutorial_shows_the_example_that_is_compiled_and_tested() {
    let page = pages::Page::read(Path::new("docs/tutorials/axum.md"));
    let example = pages::root().join("examples/axum-payments/src/main.rs");
    let example = std::fs::read_to_string(example).unwrap();
    let shown: Vec<_> =
        page.blocks().into_iter().filter(|block| block.language == "rust").collect();
    assert!(shown.len() > 3, "{}", shown.len());
    for block in shown {
        assert!(example.contains(block.text.trim_end()), "{}: not in the example", block.at);
    }
}

#[test]
#[should_panic(expected = "is not what the page says")]
fn a_page_that_promises_something_else_is_found() {
    let mut tutorial = Tutorial::open();
    tutorial.run("echo paid twice");
    tutorial.expect("made-up.md:1", "paid once\n", Duration::ZERO);
}

/// Plays a page, and gives how many of its promises were found to hold.
fn play(page: &str) -> usize {
    let page = pages::Page::read(Path::new(page));
    let mut tutorial = Tutorial::open();
    let mut kept = 0;
    for block in page.blocks() {
        match block.language.as_str() {
            "js" | "python" | "toml" | "java" | "xml" | "sql" => tutorial.save(&block.text),
            "sh" => block.commands().iter().for_each(|command| tutorial.run(command)),
            "text" => {
                tutorial.expect(&block.at, &block.text, PATIENCE);
                kept += 1;
            }
            other => panic!("{}: a block in {other:?}", block.at),
        }
    }
    kept
}

/// What a reader has in front of them.
struct Tutorial {
    folder: tempfile::TempDir,
    app: SocketAddr,
    gateway: SocketAddr,
    admin: SocketAddr,
    running_app: Option<Running>,
    running_gateway: Option<Running>,
    /// The last command that said something, and what it said.
    last: (String, String),
}

impl Tutorial {
    fn open() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            app: free(),
            gateway: free(),
            admin: free(),
            running_app: None,
            running_gateway: None,
            last: Default::default(),
        }
    }

    /// The text with our ports in place of the page's.
    fn with_ports(&self, text: &str) -> String {
        let app = self.app.port().to_string();
        text.replace("127.0.0.1:8080", &self.gateway.to_string())
            .replace("127.0.0.1:3000", &self.app.to_string())
            .replace("listen(3000", &format!("listen({app}"))
            .replace("--port 3000", &format!("--port {app}"))
    }

    /// Saves a file whose first line says how it is called, such as `// app.js: …`.
    fn save(&self, text: &str) {
        let name = text.split_whitespace().nth(1).unwrap().trim_end_matches(':');
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, self.with_ports(text)).unwrap();
    }

    /// The application of the Express page, in the place of one whose packages are not at hand.
    fn stand_in(&mut self) {
        let page = pages::Page::read(Path::new("docs/tutorials/express.md"));
        for block in page.blocks() {
            match block.language.as_str() {
                "js" => self.save(&block.text),
                "sh" => {
                    let commands = block.commands();
                    let of_the_application =
                        commands.iter().filter(|line| line.starts_with('n')).cloned();
                    of_the_application.for_each(|line| self.run(&line));
                }
                _ => {}
            }
        }
    }

    fn run(&mut self, command: &str) {
        let command = self.with_ports(command);
        if command.starts_with("cargo install ") {
            // The program is built already; that the folder exists is all there is to see.
            let folder = command.rsplit(' ').next().unwrap_or_default();
            assert!(pages::root().join(folder).join("Cargo.toml").exists(), "{command}");
        } else if command.starts_with("mvn ") {
            self.stand_in();
        } else if SERVERS.iter().any(|server| command.starts_with(server)) {
            self.running_app = Some(self.start(&command, self.app));
        } else if let Some(rest) = command.strip_prefix("retrysafe ") {
            let program = env!("CARGO_BIN_EXE_retrysafe");
            let line = format!("{program} {rest} --listen {} --admin {}", self.gateway, self.admin);
            // Whoever starts it a second time has killed the first one.
            drop(self.running_gateway.take());
            self.running_gateway = Some(self.start(&line, self.gateway));
        } else if INSTALLERS.iter().any(|installer| command.starts_with(installer)) {
            let mut shell = Command::new("sh");
            let said = install::run(shell.args(["-c", &command]).current_dir(self.folder.path()));
            self.last = (command, said);
        } else {
            let said = self.shell(&command);
            self.last = (command, said);
        }
    }

    /// The last command must say each of these lines somewhere. It is asked again until then: a retry is safe here.
    fn expect(&mut self, at: &str, lines: &str, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            let (command, said) = &self.last;
            let said = said.to_lowercase();
            let Some(missing) = lines.lines().find(|line| !said.contains(&line.to_lowercase()))
            else {
                return;
            };
            assert!(Instant::now() < end, "{at}: {missing:?} is not what the page says:\n{said}");
            std::thread::sleep(Duration::from_millis(200));
            self.last.1 = self.shell(&command.clone());
        }
    }

    fn shell(&self, command: &str) -> String {
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {}: {told}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a server by a command line, and waits until it listens.
    fn start(&self, line: &str, address: SocketAddr) -> Running {
        let mut running = Running(
            Command::new("sh")
                .args(["-c", &format!("exec {line}")])
                .current_dir(self.folder.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none(), "{line}: {ended:?}");
            assert!(Instant::now() < end, "{line}: does not listen at {address}");
            std::thread::sleep(Duration::from_millis(50));
        }
        running
    }
}

/// A server that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// An address that no other tutorial gets. It is used much later, so it lies below the ports that the system gives out by
/// itself: those may be somebody else's by then.
fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number =
            NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
        let port = u16::try_from(10_000 + number % 2_000).unwrap();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}
