//! Are the programs right that the pages show beside the tutorials?
//!
//! JavaScript and Python are parsed by their own programs, SQL by PostgreSQL. Rust that no documentation test compiles is a
//! sketch with gaps: each function and method that it calls must be one that users can name.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use super::pages::{self, Block, Page};
use super::postgres::{new_database, server};

/// Languages of blocks that are read here, or run by a test of their own.
const LANGUAGES: [&str; 8] =
    ["js", "python", "sql", "java", "xml", "rust", "rust,no_run", "rust,ignore"];

/// Pages whose Rust is compiled: by the documentation tests of the library, or as a part of an example.
const COMPILED: [&str; 3] = ["docs/phases.md", "docs/outbox.md", "docs/tutorials/axum.md"];

/// What sketches in Rust call that is not ours.
const OF_OTHERS: &str = "Arc Client Duration Err Ok Router TokioExecutor Some await build build_http \
    builder clone credentials default from_secs layer map_err match new open post route route_service send serve start unwrap use \
    with_graceful_shutdown pay";

/// Whether blocks in this language are read.
pub(crate) fn is_read(language: &str) -> bool {
    LANGUAGES.contains(&language)
}

#[test]
fn every_program_on_a_page_can_be_read() {
    let mut count = 0;
    let mut faults = Vec::new();
    for page in pages::all() {
        for block in page.blocks().into_iter().filter(|block| is_read(&block.language)) {
            count += 1;
            faults.extend(fault(&page, &block).map(|why| format!("{}: {why}", block.at)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 20, "{count}");
}

#[test]
fn a_program_that_cannot_be_read_is_found() {
    let page = Page { name: "made-up.md".into(), text: String::new() };
    for (language, text) in [
        ("js", "const answer = await fetch("),
        ("python", "def handle(message:\n    pass\n"),
        ("sql", "SELEC 1;"),
        ("sql", "CREATE TABLE t (id text PRIMARY);"),
        ("rust", "let layer = IdempotencyLayer::made_up(store);"),
        ("rust", "layer.polish();"),
    ] {
        let block = Block { at: "here".into(), language: language.into(), text: text.into() };
        assert!(fault(&page, &block).is_some(), "{language}: {text}");
    }
}

/// Why a block cannot be read.
fn fault(page: &Page, block: &Block) -> Option<String> {
    match block.language.as_str() {
        "js" => javascript(&block.text),
        "python" => python(&block.text),
        "sql" => sql(&block.text),
        "rust" | "rust,ignore" if !COMPILED.contains(&page.name.as_str()) => rust(&block.text),
        _ => None,
    }
}

fn javascript(text: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    // As a module, where `await` may stand anywhere.
    std::fs::write(folder.path().join("block.mjs"), text).unwrap();
    failed(
        Command::new("node")
            .args(["--check", "block.mjs"])
            .current_dir(folder.path())
            .output()
            .unwrap(),
    )
}

fn python(text: &str) -> Option<String> {
    let parse = "import ast, sys; ast.parse(sys.argv[1])";
    failed(Command::new("python3").args(["-c", parse, text]).output().unwrap())
}

fn failed(output: Output) -> Option<String> {
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// PostgreSQL parses the statements of a function when it is created, and looks up no name in them.
fn sql(text: &str) -> Option<String> {
    static DATABASE: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let database = DATABASE.get_or_init(new_database);
    let statements = text.lines().filter(|line| !["BEGIN;", "COMMIT;"].contains(line));
    let statements = statements.collect::<Vec<_>>().join("\n");
    // A line of a table stands for its table.
    let is_statement = statements.trim_end().ends_with(';');
    let statements =
        if is_statement { statements } else { format!("CREATE TABLE t ({statements});") };
    let function = format!(
        "CREATE OR REPLACE FUNCTION block() RETURNS void LANGUAGE plpgsql AS $block$ BEGIN {statements} END $block$"
    );
    let output = Command::new("psql")
        .args(["--quiet", "--set=ON_ERROR_STOP=1", "--command", &function, &server().url(database)])
        .output()
        .unwrap();
    failed(output)
}

/// Every word before a parenthesis must be a name of ours, or one that is listed.
fn rust(text: &str) -> Option<String> {
    static NAMES: std::sync::OnceLock<BTreeSet<String>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names: BTreeSet<String> = words(OF_OTHERS).map(str::to_owned).collect();
        for folder in ["crates/retrysafe/src", "crates/retrysafe-core/src"] {
            declared(&pages::root().join(folder), &mut names);
        }
        names
    });
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let before_calls = code.rsplit_once('(').map_or("", |(before, _)| before).split('(');
    let called = before_calls.filter_map(|before| words(before).last().map(str::to_owned));
    let unknown: Vec<String> = called.filter(|name| !names.contains(name)).collect();
    (!unknown.is_empty()).then(|| format!("nobody can name {}", unknown.join(", ")))
}

/// The words of all lines of a folder's sources that declare something for others, or a variant of it.
fn declared(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            declared(&path, names);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            let lines = text.lines().map(str::trim_start);
            let public = lines.filter(|line| {
                line.starts_with("pub ") || line.starts_with(|c: char| c.is_ascii_uppercase())
            });
            public.for_each(|line| names.extend(words(line).map(str::to_owned)));
        }
    }
}

fn words(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
