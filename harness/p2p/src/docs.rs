//! Tests of this repository's pages: links lead somewhere, and make takes each call of make.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::cli::makefile::make_command;
use host::proc::output;

/// What a page has of interest here.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// Inline code, and the lines of indented code.
    code: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages.
fn pages() -> Vec<PathBuf> {
    let entries = |dir: PathBuf| {
        let entries = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        Vec::from_iter(entries)
    };
    let mut dirs = vec![root(), root().join("Documentation")];
    for parent in ["compat", "harness"] {
        dirs.push(root().join(parent));
        dirs.extend(
            entries(root().join(parent))
                .into_iter()
                .filter(|path| path.is_dir()),
        );
    }
    let mut pages = Vec::from_iter(dirs.into_iter().flat_map(entries));
    pages.retain(|path| path.extension().is_some_and(|end| end == "md"));
    assert!(pages.len() > 10, "{pages:?}");
    pages
}

fn read(page: &Path) -> Page {
    let text = fs::read_to_string(page).unwrap_or_else(|_| panic!("{}", page.display()));
    let mut page = Page::default();
    let mut heading = None;
    let mut in_block = false;
    for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => page.links.push(dest_url.into_string()),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                page.anchors
                    .extend(heading.take().map(|text| anchor(&text)));
            }
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Text(text) if in_block => page.code.extend(text.lines().map(str::to_owned)),
            Event::Text(text) => heading.iter_mut().for_each(|all| all.push_str(&text)),
            Event::Code(text) => {
                heading.iter_mut().for_each(|all| all.push_str(&text));
                page.code.push(text.into_string());
            }
            _ => {}
        }
    }
    page
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(kept)
        .collect::<String>();
    kept.replace(' ', "-")
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let mut dead = Vec::new();
    let mut count = 0;
    for page in pages() {
        for link in read(&page).links {
            if link.starts_with("https://") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.parent().unwrap().join(file),
            };
            if !target.exists() || (!anchor.is_empty() && !read(&target).anchors.contains(anchor)) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 10);
    assert_eq!(dead, [""; 0]);
}

#[test]
fn make_takes_each_call_in_the_pages() {
    let mut calls = BTreeSet::new();
    for page in pages()
        .into_iter()
        .filter(|page| !page.ends_with("Documentation/ci.md"))
    {
        for line in read(&page).code {
            let call = line.trim().strip_prefix("make ");
            let call = call.map(|call| call.split(" #").next().unwrap().trim());
            // Others are for the kernel's make, as all in ci.md.
            let call = call.filter(|call| !call.starts_with("-C ") && *call != "headers_install");
            calls.extend(call.map(str::to_owned));
        }
    }
    assert!(calls.len() > 40, "{calls:?}");
    let is_refused = |call: &String| {
        let mut make = make_command(&["-n"]);
        let (status, out, _) = output(make.args(shlex::split(call).unwrap())).unwrap();
        !status.success() || out.contains("no target")
    };
    let refused = Vec::from_iter(calls.into_iter().filter(is_refused));
    // An example of an error.
    assert_eq!(refused, ["demo REPEAT=3"]);
}

#[test]
fn the_first_page_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 120);
}
