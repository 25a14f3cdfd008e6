//! Links of HTML pages: each one leads to a file of the site, and its anchor to an element.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::error::{self, XtaskError};

/// Pages whose links mdBook makes relative to another page, or that repeat all pages.
const SKIPPED: [&str; 2] = ["404.html", "print.html"];

/// The links and anchors of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageLinks {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Checks all pages below a folder. Returns the number of internal links, and the dead ones.
pub(super) fn check(site: &Path) -> Result<(usize, Vec<String>), XtaskError> {
    let mut pages = BTreeMap::new();
    read_pages(site, &mut pages)?;
    let mut count = 0;
    let mut problems = Vec::new();
    for (path, page) in &pages {
        let name = path.strip_prefix(site).unwrap_or(path).display();
        for link in page.links.iter().filter(|link| is_internal(link)) {
            count += 1;
            if let Some(problem) = problem(site, path, link, &pages) {
                problems.push(format!("{name}: {link}: {problem}"));
            }
        }
    }
    problems.dedup();
    Ok((count, problems))
}

fn read_pages(folder: &Path, pages: &mut BTreeMap<PathBuf, PageLinks>) -> Result<(), XtaskError> {
    for entry in fs::read_dir(folder).map_err(error::file("read", folder))? {
        let path = entry.map_err(error::file("read", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if name.ends_with(".html") && !SKIPPED.contains(&name.as_ref()) {
            let text = fs::read_to_string(&path).map_err(error::file("read", &path))?;
            pages.insert(path, parse(&text));
        }
    }
    Ok(())
}

/// Whether a link stays in the site: it has no scheme and no host.
fn is_internal(link: &str) -> bool {
    let scheme = link.split_once(':').map(|(scheme, _)| scheme);
    !link.starts_with("//") && scheme.is_none_or(|s| s.contains(['/', '#', '?', '.']))
}

/// The reason why a link is dead.
fn problem(
    site: &Path,
    page: &Path,
    link: &str,
    pages: &BTreeMap<PathBuf, PageLinks>,
) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = decode(path.split('?').next().unwrap_or_default());
    let folder = page.parent().unwrap_or(site);
    let mut target = match path.is_empty() {
        true => page.to_path_buf(),
        false => normal(&folder.join(path)),
    };
    if target.is_dir() {
        target.push("index.html");
    }
    if !target.starts_with(site) {
        return Some("it leaves the site".to_string());
    }
    if !target.is_file() {
        return Some("no file".to_string());
    }
    let known = pages.get(&target)?;
    let anchor = decode(anchor);
    let is_dead = !anchor.is_empty() && !known.anchors.contains(&anchor);
    is_dead.then(|| "no element with this id".to_string())
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The attributes `href`, `src`, `id` and `name` of all elements; scripts and comments are left out.
fn parse(html: &str) -> PageLinks {
    let mut page = PageLinks::default();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        if rest.starts_with("<!--") {
            rest = after(rest, "-->");
            continue;
        }
        let tag = &rest[..end_of_tag(rest)];
        for (name, value) in attributes(tag) {
            match name {
                "href" | "src" => page.links.push(value),
                "id" | "name" => {
                    page.anchors.insert(value);
                }
                _ => {}
            }
        }
        rest = &rest[tag.len()..];
        if tag.starts_with("<script") {
            rest = after(rest, "</script>");
        }
    }
    page
}

fn after<'a>(text: &'a str, end: &str) -> &'a str {
    text.find(end)
        .map_or("", |index| &text[index + end.len()..])
}

/// The length of the tag at the start of `text`; `>` in quotes does not end it.
fn end_of_tag(text: &str) -> usize {
    let mut quote = None;
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '>') => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// The attributes of a tag with quoted values, which is the form that mdBook writes.
fn attributes(tag: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut rest = tag;
    while let Some(index) = rest.find('=') {
        let (before, value) = (&rest[..index], &rest[index + 1..]);
        let name = before
            .rsplit(|c: char| c.is_whitespace())
            .next()
            .unwrap_or_default();
        let Some(quote @ ('"' | '\'')) = value.chars().next() else {
            rest = value;
            continue;
        };
        let value = &value[1..];
        let end = value.find(quote).unwrap_or(value.len());
        found.push((name, unescape(&value[..end])));
        rest = value.get(end + 1..).unwrap_or_default();
    }
    found
}

fn unescape(text: &str) -> String {
    let text = text
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&#x27;", "'");
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

/// Replaces `%XX` by bytes.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::remove_dir;

    #[test]
    fn attributes_of_elements_are_found() {
        let page = parse(
            "<a class='x' href=\"a.html#b&amp;c\">t</a><!-- <a href=\"no\"> -->\n\
             <script src='s.js'>var a = '<a href=\"no\">';</script><h2 id=\"one\" data-x=\"a > b\">1 < 2</h2>",
        );
        assert_eq!(page.links, ["a.html#b&c", "s.js"]);
        assert_eq!(page.anchors.into_iter().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn dead_links_and_anchors_are_found() {
        let site = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        remove_dir(&site).unwrap();
        fs::create_dir_all(site.join("guide")).unwrap();
        let index = "<h1 id=\"top\">t</h1><a href=\"guide/a.html#one\"></a><a href=\"guide/\"></a>\
            <a href=\"https://x.example/\"></a><a href=\"mailto:a@b.example\"></a><a href=\"#top\"></a>";
        let good =
            "<h2 id=\"one\"></h2><a href=\"../index.html?x#top\"></a><img src=\"caf%C3%A9.svg\">";
        fs::write(site.join("index.html"), index).unwrap();
        fs::write(site.join("guide/a.html"), good).unwrap();
        fs::write(site.join("guide/index.html"), good).unwrap();
        fs::write(site.join("guide/caf\u{e9}.svg"), "").unwrap();
        assert_eq!(check(&site).unwrap(), (7, Vec::new()));
        let dead = ["../index.html#none", "b.html", "../../out.html", "#none"];
        let links: String = dead
            .iter()
            .map(|link| format!("<a href=\"{link}\"></a>"))
            .collect();
        fs::write(site.join("guide/dead.html"), links).unwrap();
        let (count, problems) = check(&site).unwrap();
        assert_eq!((count, problems.len()), (11, 4), "{problems:?}");
        assert!(
            dead.iter()
                .zip(&problems)
                .all(|(link, problem)| problem.contains(link))
        );
        remove_dir(&site).unwrap();
    }
}
