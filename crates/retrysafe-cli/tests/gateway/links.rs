//! Does every link of the documents lead somewhere?
//!
//! Files and headings must exist. A link whose text is the name of a test, such as those of SECURITY.md, must lead to
//! the file that has this test.

use std::path::Path;

use super::pages::{self, Link, Page};

/// Pages at the root that no command line is read from, and whose links count all the same.
const MORE: [&str; 3] = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];

#[test]
fn every_link_leads_to_a_file_a_heading_or_a_test_that_exists() {
    let mut pages = pages::all();
    pages.extend(MORE.map(|name| Page::read(Path::new(name))));
    let links: Vec<Link> = pages.iter().flat_map(Page::links).collect();
    let faults: Vec<String> = links.iter().filter_map(broken).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let tests = links.iter().filter(|link| named_test(link).is_some()).count();
    assert!(links.len() > 100 && tests > 30, "{} links, {tests} to tests", links.len());
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    for text in [
        "See [this](docs/made-up.md).",
        "See [this](docs/gateway.md#made-up).",
        "See [this](#made-up).",
        "Shown by [`a_made_up_test`](crates/retrysafe-cli/tests/gateway/kit.rs).",
    ] {
        let page = Page { name: "made-up.md".into(), text: text.into() };
        let faults: Vec<String> = page.links().iter().filter_map(broken).collect();
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
    }
}

/// Why a link is broken.
fn broken(link: &Link) -> Option<String> {
    let Link { at, text, file, heading } = link;
    let shown = file.display();
    let Ok(content) = std::fs::read_to_string(pages::root().join(file)) else {
        let is_folder = pages::root().join(file).is_dir();
        return (!is_folder)
            .then(|| format!("{at}: [{text}] leads to {shown}, which is not there"));
    };
    if let Some(heading) = heading {
        let page = Page { name: shown.to_string(), text: content };
        let is_there = page.headings().contains(heading);
        return (!is_there).then(|| format!("{at}: {shown} has no heading #{heading}"));
    }
    let test = named_test(link)?;
    let mut words = content.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_there = words.any(|word| word == test);
    (!is_there).then(|| format!("{at}: {shown} has no test {test}"))
}

/// The test that a link names: one word in backticks that leads to a file of Rust.
fn named_test(link: &Link) -> Option<&str> {
    let name = link.text.strip_prefix('`')?.strip_suffix('`')?;
    let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    (is_name && link.file.extension()? == "rs").then_some(name)
}
