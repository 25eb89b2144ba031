//! Where do the links of a page lead, and is there something?

use std::path::{Component, Path, PathBuf};

use crate::Error;

/// The folder that becomes the site.
const PAGES: &str = "docs";

/// What was found when all links were followed.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// How many links lead to a place of the site.
    pub(crate) count: usize,
    /// Those that lead nowhere.
    pub(crate) broken: Vec<String>,
}

/// The text of a page as it stands in the site. Links that leave the folder of the pages lead to the repository instead, and a
/// `README.md` is called `index.html` there. `page` is named from the root.
pub(crate) fn for_the_site(text: &str, page: &Path, repository: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (target, after) = after.split_once(')').unwrap_or((after, ""));
        out.push_str(before);
        out.push_str("](");
        let folder = page.parent().unwrap_or(Path::new(""));
        let file = resolved(folder, target.split('#').next().unwrap_or_default());
        if is_of_the_site(target) && !target.starts_with('#') && !file.starts_with(PAGES) {
            out.push_str(repository);
            out.push_str(&file.to_string_lossy());
            out.extend(target.find('#').and_then(|at| target.get(at..)));
        } else if file.ends_with("README.md") && !page.ends_with("SUMMARY.md") {
            out.push_str(&target.replace("README.md", "index.html"));
        } else {
            out.push_str(target);
        }
        out.push(')');
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Follows every link of a site.
pub(crate) fn follow(site: &Path) -> Result<Followed, Error> {
    let mut followed = Followed::default();
    for page in html_below(site)? {
        let text = std::fs::read_to_string(&page)?;
        for target in targets(&text).filter(|target| is_of_the_site(target)) {
            followed.count += 1;
            if !leads_somewhere(&page, &text, target) {
                let page = page.strip_prefix(site)?;
                followed.broken.push(format!("{}: {target} leads nowhere", page.display()));
            }
        }
    }
    Ok(followed)
}

/// Every page below a folder, but the one that is shown instead of those that are missing: its links are absolute.
fn html_below(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages.extend(html_below(&path)?);
        } else if path.extension().is_some_and(|kind| kind == "html") && !path.ends_with("404.html")
        {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(pages)
}

fn targets(html: &str) -> impl Iterator<Item = &str> {
    let attributes = [" href=\"", " src=\""];
    attributes.into_iter().flat_map(|attribute| {
        html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
    })
}

/// Whether a link leads to a place of the same site.
fn is_of_the_site(target: &str) -> bool {
    !target.contains("://") && !target.starts_with("mailto:") && !target.starts_with("data:")
}

fn leads_somewhere(page: &Path, text: &str, target: &str) -> bool {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let has = |text: &str| heading.is_empty() || text.contains(&format!("id=\"{heading}\""));
    if file.is_empty() {
        return has(text);
    }
    let file = resolved(page.parent().unwrap_or(Path::new("")), file);
    let file = if file.is_dir() { file.join("index.html") } else { file };
    if file.extension().is_some_and(|kind| kind == "html") {
        std::fs::read_to_string(file).is_ok_and(|text| has(&text))
    } else {
        file.exists()
    }
}

/// A path from a folder, without `.` and `..` in it where they can be resolved.
fn resolved(folder: &Path, target: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(path.pop()),
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_pages_lead_to_the_repository() {
        let text = "See [a](config.md#top), [b](../SECURITY.md#what-remains), [c](https://x.test/) and [d](#here).";
        let expected = "See [a](config.md#top), [b](R/SECURITY.md#what-remains), [c](https://x.test/) and [d](#here).";
        assert_eq!(for_the_site(text, Path::new("docs/faq.md"), "R/"), expected);
        let text =
            "[e](../gateway.md) [f](../../SECURITY.md) [g](README.md#all) [h](../../README.md)";
        let expected = "[e](../gateway.md) [f](R/SECURITY.md) [g](index.html#all) [h](R/README.md)";
        assert_eq!(for_the_site(text, Path::new("docs/problems/x.md"), "R/"), expected);
    }

    #[test]
    fn a_link_of_the_site_that_leads_nowhere_is_found() {
        let site = std::env::temp_dir().join(format!("retrysafe-site-{}", std::process::id()));
        std::fs::create_dir_all(site.join("below")).unwrap();
        let page = "<h1 id=\"top\">x</h1><a href=\"#top\"></a><a href=\"below/b.html#far\"></a>";
        std::fs::write(site.join("a.html"), page).unwrap();
        let other = "<i id=\"far\"></i><a href=\"../a.html\"></a><img src=\"gone.png\"><a href=\"../a.html#low\"></a>";
        std::fs::write(site.join("below/b.html"), other).unwrap();
        let followed = follow(&site).unwrap();
        std::fs::remove_dir_all(&site).unwrap();
        assert_eq!(followed.count, 5);
        assert_eq!(followed.broken.len(), 2, "{:?}", followed.broken);
    }
}
