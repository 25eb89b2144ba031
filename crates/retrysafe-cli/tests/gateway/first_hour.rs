//! What does somebody meet who starts the program for the first time?

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::kit::{free, program, program_with, raw, request, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_retrysafe");
const UPSTREAM: &str = "http://127.0.0.1:1";

/// The program on a terminal of its own: what is typed, and a file of everything that is shown.
fn on_terminal(line: &str, folder: &Path, variables: &[(&str, &str)]) -> Child {
    Command::new("script")
        .args(["-qefc", &format!("stty cols 100; {line}"), "shown"])
        .envs(variables.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn shown(folder: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(folder.join("shown")).unwrap_or_default()).into_owned()
}

/// Waits for a question and types the answer.
fn answer(child: &mut Child, folder: &Path, question: &str, answer: &str) {
    until(&format!("it asks {question:?}"), || shown(folder).contains(question));
    child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
}

#[test]
fn what_init_writes_by_flags_passes_the_check() {
    for callers in [
        &[][..],
        &["--callers", "credential"],
        &["--callers", "header:X-Tenant"],
        &["--callers", "cookie:session"],
        &["--callers", "jwt:sub", "--jwks-url", "https://id.example/keys"],
        &["--callers", "anyone"],
    ] {
        for routes in [&[][..], &["--route", "/payments", "--route", "/orders/{*rest}"]] {
            let folder = tempfile::tempdir().unwrap();
            let arguments = [&["init", "--upstream", UPSTREAM], callers, routes].concat();
            let (code, out, err) = program(&arguments, folder.path());
            assert!(code == 0 && out.contains("retrysafe serve"), "{arguments:?}: {out}{err}");
            let (code, out, err) = program(&["config", "check"], folder.path());
            let count = if routes.is_empty() { "0" } else { "2" };
            let valid = format!("valid: {count} routes and the defaults (retrysafe.toml)");
            assert!(code == 0 && out.contains(&valid), "{arguments:?}: {out}{err}");
            assert!(!err.contains("warning"), "{err}");
        }
    }
}

#[test]
fn init_overwrites_nothing_unless_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("retrysafe.toml");
    std::fs::write(&file, "mine").unwrap();
    let init =
        |more: &[&str]| program(&[&["init", "--upstream", UPSTREAM], more].concat(), folder.path());
    let (code, _, err) = init(&[]);
    assert!(code == 1 && err.contains("exists") && err.contains("--force"), "{err}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    // A link that leads nowhere is not followed.
    std::os::unix::fs::symlink("elsewhere.toml", folder.path().join("link.toml")).unwrap();
    assert_eq!(init(&["--output", "link.toml"]).0, 1);
    assert!(!folder.path().join("elsewhere.toml").exists());
    assert_eq!(init(&["--force"]).0, 0);
    assert!(std::fs::read_to_string(&file).unwrap().contains(UPSTREAM));
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 2, "nothing else is left behind");
}

#[test]
fn init_says_what_is_wrong_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, told) in [
        (&["--upstream", "http://127.0.0.1:3000/api"][..], "write http://127.0.0.1:3000"),
        (&["--upstream", "http://me:hunter2@127.0.0.1:3000"], "leave it out"),
        (&["--upstream", "127.0.0.1:3000"], "http://127.0.0.1:3000"),
        (&["--upstream", UPSTREAM, "--route", "payments"], "--route: \"payments\""),
        (&["--upstream", UPSTREAM, "--callers", "jwt:sub"], "--jwks-url is not set"),
        // Once it was written, and the check of the file refused it.
        (
            &["--upstream", UPSTREAM, "--callers", "jwt:sub", "--jwks-url", "/keys"],
            "--jwks-url: is",
        ),
        (&["--upstream", UPSTREAM, "--output", "C:\\retrysafe.toml"], "backslash"),
        (&["--upstream", UPSTREAM, "--output", "."], "is a folder"),
        (&["--upstream", UPSTREAM, "--output", "missing/r.toml"], "no such folder"),
        // Nobody may write there, not even root.
        (&["--upstream", UPSTREAM, "--output", "/sys/retrysafe.toml"], "cannot write /sys/"),
        (&[], "say --upstream URL"),
    ] {
        let (code, out, err) = program(&[&["init"], arguments].concat(), folder.path());
        assert!(code == 1 && err.contains(told), "{arguments:?}: {out}{err}");
        assert!(!err.contains("hunter2"), "{err}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?}");
    }
    let (code, _, err) = program(&["init", "--callers", "friends"], folder.path());
    assert!(code == 2 && err.contains("jwt:CLAIM"), "{err}");
}

/// `init`, `config check` and `serve` say the same of an upstream that cannot be one.
#[test]
fn an_upstream_that_does_not_fit_is_refused_with_its_cure_by_every_command() {
    for (upstream, told) in [
        ("http://127.0.0.1:99999", "has a port that is not from 1 to 65535"),
        ("http://127.0.0.1:0", "has a port that is not from 1 to 65535"),
        ("127.0.0.1:99999", "has a port that is not from 1 to 65535"),
        ("127.0.0.1:3000", "lacks its beginning: write http://127.0.0.1:3000"),
        (
            "localhost:3000/api",
            "has a path or a query; a request's path is passed on as it comes, so write http://localhost:3000",
        ),
        (
            "http://127.0.0.1:3000/api",
            "has a path or a query; a request's path is passed on as it comes, so write http://127.0.0.1:3000",
        ),
        ("http://me:hunter2@127.0.0.1:3000", "so leave it out"),
        ("3000", "is only a port: write http://127.0.0.1:3000"),
    ] {
        for command in [&["init"][..], &["config", "check"], &["serve"]] {
            let folder = tempfile::tempdir().unwrap();
            let arguments = [command, &["--upstream", upstream]].concat();
            let (code, out, err) = program(&arguments, folder.path());
            assert!(code == 1 && err.contains("--upstream: "), "{arguments:?}: {out}{err}");
            assert!(err.contains(told) && !err.contains("hunter2"), "{arguments:?}: {out}{err}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?}");
        }
    }
}

#[test]
fn a_start_without_an_upstream_says_how_to_name_one() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = program(&["serve"], folder.path());
    assert!(code == 1 && err.contains("--upstream http://127.0.0.1:3000"), "{err}");
    assert!(err.contains("retrysafe init"), "{err}");
}

// The store was made first: 193 MB stayed behind although nobody was ever served.
#[test]
fn a_start_whose_address_is_taken_leaves_nothing_behind() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let other = free().to_string();
    for (listen, admin, flag) in [(&taken, &other, "--listen"), (&other, &taken, "--admin")] {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["serve", "--upstream", UPSTREAM, "--listen", listen, "--admin", admin];
        let (code, out, err) = program(&arguments, folder.path());
        assert!(code == 1 && err.contains(&taken) && err.contains(flag), "{out}{err}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{flag}");
    }
    // Neither socket listens before the store is open, so nobody else would find this out in time.
    let everywhere = other.replace("127.0.0.1", "0.0.0.0");
    for (listen, admin) in [(&other, &other), (&everywhere, &other), (&other, &everywhere)] {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["serve", "--upstream", UPSTREAM, "--listen", listen, "--admin", admin];
        let (code, out, err) = program(&arguments, folder.path());
        assert!(code == 1 && err.contains("a port of their own"), "{out}{err}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{listen} {admin}");
    }
}

#[test]
fn init_says_once_what_is_wrong_with_callers_and_names_only_what_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["init", "--upstream", UPSTREAM, "--callers", "header:X Bad"];
    let (code, _, err) = program(&arguments, folder.path());
    assert!(code == 1 && err.contains("\"X Bad\" is not a header name"), "{err}");
    assert!(err.lines().count() == 1 && !err.contains("const:"), "{err}");
}

#[test]
fn one_route_is_not_told_of_as_several() {
    let folder = tempfile::tempdir().unwrap();
    let init = ["init", "--upstream", UPSTREAM, "--route", "/payments"];
    assert_eq!(program(&init, folder.path()).0, 0);
    let (_, out, _) = program(&["config", "check"], folder.path());
    assert_eq!(out, "valid: 1 route and the defaults (retrysafe.toml)\n");
}

#[test]
fn a_command_that_is_looked_for_in_the_wrong_place_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = program(&["doctor"], folder.path());
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("retrysafe store doctor") && err.contains("retrysafe healthcheck"),
        "{err}"
    );
}

#[test]
fn init_asks_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = on_terminal(&format!("{PROGRAM} init"), folder.path(), &[]);
    answer(&mut child, folder.path(), "upstream [http://127.0.0.1:3000]: ", "localhost:3000\n");
    answer(&mut child, folder.path(), "write http://localhost:3000", "http://localhost:3000\n");
    answer(&mut child, folder.path(), "1 to 5 [1]: ", "4\n");
    answer(&mut child, folder.path(), "name: ", "session\n");
    answer(&mut child, folder.path(), "paths: ", "/payments\n");
    assert!(child.wait().unwrap().success(), "{}", shown(folder.path()));
    let written = std::fs::read_to_string(folder.path().join("retrysafe.toml")).unwrap();
    for part in ["\"http://localhost:3000\"", "[\"cookie:session\"]", "path = \"/payments\""] {
        assert!(written.contains(part), "{written}");
    }
    assert_eq!(program(&["config", "check"], folder.path()).0, 0);
}

#[test]
fn who_leaves_in_the_middle_of_the_questions_leaves_nothing_behind() {
    for goodbye in ["\u{3}", "\u{4}"] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = on_terminal(&format!("{PROGRAM} init"), folder.path(), &[]);
        answer(
            &mut child,
            folder.path(),
            "upstream [http://127.0.0.1:3000]: ",
            "http://localhost:3000\n",
        );
        answer(&mut child, folder.path(), "1 to 5 [1]: ", goodbye);
        assert!(!child.wait().unwrap().success(), "{}", shown(folder.path()));
        assert!(!folder.path().join("retrysafe.toml").exists());
    }
}

/// A gateway in a folder that has a configuration file, on a terminal or not. It is stopped before its words are returned.
fn start_up(folder: &Path, more: &str, variables: &[(&str, &str)]) -> String {
    start_up_after("true", folder, more, variables)
}

/// The same, after a command on its terminal.
fn start_up_after(command: &str, folder: &Path, more: &str, variables: &[(&str, &str)]) -> String {
    let admin = free();
    let toml = format!(
        "upstream = \"{UPSTREAM}\"\nlisten = \"{}\"\n[admin]\nlisten = \"{admin}\"\n",
        free()
    );
    std::fs::write(folder.join("retrysafe.toml"), format!("{toml}{more}")).unwrap();
    let line = format!("{command}; echo $$ > pid; exec {PROGRAM} serve");
    let mut child = on_terminal(&line, folder, variables);
    until("it is ready", || is_ready(admin));
    let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
    assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success());
    assert!(child.wait().unwrap().success(), "{}", shown(folder));
    shown(folder)
}

fn is_ready(admin: SocketAddr) -> bool {
    std::net::TcpStream::connect(admin).is_ok()
        && raw(admin, &request("GET", "/readyz", &[], b""), false)
            .first()
            .is_some_and(|answer| answer.status() == 200)
}

#[test]
fn a_start_in_a_terminal_says_what_holds_in_a_few_lines() {
    let folder = tempfile::tempdir().unwrap();
    let told = start_up(folder.path(), "", &[("NO_COLOR", "1")]);
    let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "callers connect to",
        "retrysafe.toml",
        "records are kept in",
        "disk:./retrysafe-data",
        "every answer is flushed before it leaves",
        "callers by credential",
        "a 5xx means: not done",
        "operators connect to",
        "dashboard http://127.0.0.1:",
        "admin-token",
    ] {
        assert!(words.contains(part), "lacks {part:?}: {told}");
    }
    let lines = told.lines().take_while(|line| !line.contains("stopping"));
    assert!(lines.count() < 25, "{told}");
    assert!(!told.contains("\u{1b}["), "NO_COLOR: {told:?}");
    assert!(!told.contains("{\"timestamp\""), "{told}");
}

#[test]
fn a_terminal_that_does_not_know_its_width_gets_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let told = start_up_after("stty cols 0", folder.path(), "", &[("NO_COLOR", "1")]);
    let part = "every answer is flushed before it leaves";
    assert!(told.lines().any(|line| line.contains(part)), "{told}");
}

#[test]
fn json_on_a_terminal_and_silence_are_as_they_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let told = start_up(folder.path(), "[log]\nformat = \"json\"\n", &[]);
    assert!(
        told.contains("\"config\":\"retrysafe.toml\"") && !told.contains("callers connect to"),
        "{told}"
    );
    assert!(told.contains("\"dashboard\":\"http://127.0.0.1:"), "{told}");
    let folder = tempfile::tempdir().unwrap();
    let told = start_up(folder.path(), "[log]\nlevel = \"error\"\n", &[]);
    assert!(!told.contains("callers connect to"), "{told}");
}

#[test]
fn the_file_of_the_working_folder_counts_unless_another_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("retrysafe.toml", "upstream = \"http://here:1\"\n");
    write("other.toml", "upstream = \"http://other:1\"\n");
    let upstream = |arguments: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["config", "print"], arguments].concat();
        let (code, out, err) = program_with(&arguments, folder.path(), variables);
        assert_eq!(code, 0, "{err}");
        out.parse::<toml::Table>().unwrap()["upstream"].as_str().unwrap().to_owned()
    };
    assert_eq!(upstream(&[], &[]), "http://here:1");
    assert_eq!(upstream(&["--config", "other.toml"], &[]), "http://other:1");
    assert_eq!(upstream(&[], &[("RETRYSAFE_CONFIG", "other.toml")]), "http://other:1");
    assert_eq!(upstream(&["--upstream", "http://flag:1"], &[]), "http://flag:1");
    write("retrysafe.toml", "upstrem = 1\n");
    let (code, _, err) = program(&["config", "check"], folder.path());
    assert!(code == 1 && err.contains("retrysafe.toml: line 1"), "{err}");
}

#[test]
fn the_version_tells_commit_and_features() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, _) = program(&["--version"], folder.path());
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(code, 0);
    assert_eq!(lines[0], concat!("retrysafe ", env!("CARGO_PKG_VERSION")));
    assert!(lines[1].starts_with("commit: ") && lines[2].starts_with("features: "), "{out}");
    assert_eq!(program(&["-V"], folder.path()).1.lines().count(), 1);
}

/// The build script, in a clone, in a package, in somebody else's repository, and nowhere.
#[test]
fn a_release_knows_its_commit_where_anybody_does() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let made = Command::new(rustc)
        .args(["--edition", "2024", "-o"])
        .arg(at("build"))
        .arg(&script)
        .status();
    assert!(made.unwrap().success());
    let run = |name: &str, profile: &str| {
        let output = Command::new(at("build"))
            .env("PROFILE", profile)
            .env("GIT_CEILING_DIRECTORIES", folder.path())
            .current_dir(at(name))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let git = |name: &str, arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b.test"])
            .args(arguments)
            .current_dir(at(name))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for name in ["clone", "package", "stranger", "nowhere"] {
        std::fs::create_dir(at(name)).unwrap();
        std::fs::write(at(name).join("build.rs"), "").unwrap();
    }
    git("clone", &["init", "-q"]);
    git("clone", &["add", "build.rs"]);
    git("clone", &["commit", "-q", "-m", "one"]);
    let commit = git("clone", &["rev-parse", "HEAD"]);
    git("stranger", &["init", "-q"]);
    let notes = format!("{{\"git\": {{\"sha1\": \"{commit}\"}}, \"path_in_vcs\": \"x\"}}");
    std::fs::write(at("package").join(".cargo_vcs_info.json"), notes).unwrap();

    let known = format!("BUILT_FROM_COMMIT={commit}\n");
    let unknown = "BUILT_FROM_COMMIT=unknown\n";
    let told = run("clone", "release");
    assert!(told.contains(&known) && told.contains("rerun-if-changed=.git/logs/HEAD"), "{told}");
    assert!(run("package", "release").contains(&known));
    for name in ["stranger", "nowhere"] {
        let told = run(name, "release");
        assert!(told.contains(unknown), "{told}");
        // What is not there may not be watched: cargo would run the script every time.
        assert_eq!(told.matches("rerun-if-changed=").count(), 1, "{told}");
    }
    assert!(
        !run("clone", "debug").contains(&commit),
        "a commit does not rebuild what is being worked on"
    );
}
