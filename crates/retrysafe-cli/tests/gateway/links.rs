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

/// What the summary leaves out stands at the end of the site. What it has twice, or what is not there, stops mdBook.
#[test]
fn the_summary_lists_pages_that_exist_and_none_twice() {
    let summary = Page::read(Path::new("docs/SUMMARY.md"));
    let mut listed: Vec<String> =
        summary.links().iter().map(|link| link.file.display().to_string()).collect();
    listed.sort();
    let count = listed.len();
    listed.dedup();
    assert_eq!(listed.len(), count, "docs/SUMMARY.md lists a page twice");
    let written: Vec<String> = pages::all().into_iter().map(|page| page.name).collect();
    for page in &listed {
        assert!(written.contains(page), "docs/SUMMARY.md lists {page}, which is not there");
    }
    assert!(count > 60, "{count}");
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
        // A folder, or a picture.
        let is_there = pages::root().join(file).exists();
        return (!is_there).then(|| format!("{at}: [{text}] leads to {shown}, which is not there"));
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
