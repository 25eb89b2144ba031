//! Does the site of the documents build, and does every link in it lead somewhere?
//!
//! mdBook makes the site from `docs/`. Pages may link to files outside of that folder, which are not in the site: a copy of
//! the sources is made first, in which such links lead to the repository. Then every link of what was built is followed.

mod links;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::local::run;
use crate::{Error, cargo, root};

/// The version of mdBook that builds the site. It is compiled from its published source if it is not there yet.
const VERSION: &str = "0.5.4";

/// Where files of the repository can be read that are not in the site.
const REPOSITORY: &str = "https://github.com/retrysafe/retrysafe/blob/main/";

pub(crate) fn build() -> Result<ExitCode, Error> {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root().join("target"), PathBuf::from);
    let mdbook = installed(&target)?;
    let sources = target.join("site-sources");
    let site = target.join("site");
    empty(&sources)?;
    empty(&site)?;
    std::fs::copy(root().join("book.toml"), sources.join("book.toml"))?;
    let pages = copy(&root(), Path::new("docs"), &sources)?;
    list_the_others(&sources.join("docs/SUMMARY.md"), &pages)?;
    run(Command::new(&mdbook).arg("build").arg(&sources).arg("--dest-dir").arg(&site))?;
    let followed = links::follow(&site)?;
    for broken in &followed.broken {
        println!("{broken}");
    }
    println!(
        "{} pages, {} links, {} of them broken: {}",
        pages.len(),
        followed.count,
        followed.broken.len(),
        site.join("index.html").display()
    );
    // A site without links would be a site that was not read.
    let is_whole = followed.broken.is_empty() && followed.count > pages.len();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The program, compiled once for each target folder. An unoptimised one without its server is compiled in a minute and
/// builds the site in seconds.
fn installed(target: &Path) -> Result<PathBuf, Error> {
    let tools = target.join("tools").join(format!("mdbook-{VERSION}"));
    let program = tools.join("bin/mdbook");
    if !program.exists() {
        println!("== compiling mdbook {VERSION}, once");
        let work = tools.join("work");
        let mut install = cargo();
        install.args(["install", "mdbook", "--version", VERSION, "--locked", "--debug"]);
        install.args(["--no-default-features", "--features", "search", "--no-track", "--quiet"]);
        install.env("CARGO_PROFILE_DEV_DEBUG", "false");
        run(install.arg("--root").arg(&tools).arg("--target-dir").arg(&work))?;
        std::fs::remove_dir_all(work)?;
    }
    Ok(program)
}

fn empty(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(std::fs::create_dir_all(folder)?)
}

/// A page that the summary does not list would not be in the site. It is listed at the end, and named.
fn list_the_others(summary: &Path, pages: &[PathBuf]) -> Result<(), Error> {
    let mut text = std::fs::read_to_string(summary)?;
    let mut others = Vec::new();
    for page in pages.iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        let name = page.strip_prefix("docs")?.display().to_string();
        if !text.contains(&format!("]({name})")) {
            println!("docs/SUMMARY.md does not list {name}; it stands at the end");
            others.push(format!("- [{name}]({name})\n"));
        }
    }
    if !others.is_empty() {
        text.push_str("\n# More\n\n");
        text.extend(others);
        std::fs::write(summary, text)?;
    }
    Ok(())
}

/// Copies a folder below the root, and gives the pages in it, by their names from the root.
fn copy(root: &Path, folder: &Path, to: &Path) -> Result<Vec<PathBuf>, Error> {
    std::fs::create_dir_all(to.join(folder))?;
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            pages.extend(copy(root, &path, to)?);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            let text = std::fs::read_to_string(entry.path())?;
            std::fs::write(to.join(&path), links::for_the_site(&text, &path, REPOSITORY))?;
            pages.push(path);
        } else {
            std::fs::copy(entry.path(), to.join(&path))?;
        }
    }
    Ok(pages)
}
