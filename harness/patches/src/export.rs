//! Writes patches/ and the mirrors from the commits in the tree, and says
//! where they differ from them.
//!
//! What an export comes to is computed first, as a list of files and contents
//! ([`render`]); writing it and comparing with it are then the same for every
//! kind of file.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::recipients::{Directory, Recipients};
use host::git::{ask, git};
use host::proc::{capture, capture_from};
use kernel::commits::{Files, Part, parts};
use kernel::series::{COVER_TEXT, Series, SeriesConfig, git_dir};
use kernel::tree::Tree;

/// A topic's cover letter as a mail. It is no `.patch`, because `git am` stops at
/// a mail that changes nothing; `git send-email patches/TOPIC/0*` takes it.
pub const COVER_MAIL: &str = "0000-cover-letter.txt";

/// What a cover letter says of its base until somebody looks it up.
fn unknown_base() -> String {
    let version = setup::source::BASE_VERSION.replace('~', "-");
    format!("(v{version}: who sends this sets base_commit in patches/series.toml)")
}

/// Writes everything; gives the paths that changed.
pub fn write(root: &Path, tree: &Tree, series: &Series) -> Result<Vec<String>> {
    let wanted = render(tree, series)?;
    let present = present(root, &series.settings)?;
    let changes = compare(&present, &wanted);
    for path in present.keys().filter(|path| !wanted.contains_key(*path)) {
        fs::remove_file(root.join(path))?;
    }
    for (path, content) in &wanted {
        let file = root.join(path);
        if present.get(path) != Some(content) {
            fs::create_dir_all(file.parent().expect("a file has a folder"))?;
            fs::write(&file, content).with_context(|| file.display().to_string())?;
        }
    }
    Ok(changes)
}

/// What an export would change now.
pub fn drift(root: &Path, tree: &Tree, series: &Series) -> Result<Vec<String>> {
    Ok(compare(
        &present(root, &series.settings)?,
        &render(tree, series)?,
    ))
}

fn compare(present: &Files, wanted: &Files) -> Vec<String> {
    let mut changes = Vec::new();
    for (path, content) in wanted {
        match present.get(path) {
            None => changes.push(format!("missing:  {}", path.display())),
            Some(old) if old != content => changes.push(format!("differs:  {}", path.display())),
            Some(_) => {}
        }
    }
    for path in present.keys().filter(|path| !wanted.contains_key(*path)) {
        changes.push(format!("too much: {}", path.display()));
    }
    changes
}

fn render(tree: &Tree, series: &Series) -> Result<Files> {
    let settings = &series.settings;
    let mut files = Files::new();
    let mut ids = BTreeMap::new();
    let mut directory = Directory::of(tree)?;
    for part in &parts(tree.branch(), settings)? {
        part.patches(tree.branch(), settings, &mut files)?;
        let id = patch_ids(part, tree, &files)?;
        ids.insert(part.topic.folder.as_str(), id);
        let cover = series.dir.join(&part.topic.folder).join(COVER_TEXT);
        if cover.is_file() {
            let text = fs::read_to_string(&cover)?;
            let needed = settings.prerequisites(part.topic).into_iter();
            let needed = needed.flat_map(|topic| &ids[topic.folder.as_str()]);
            let recipients = recipients(part, &mut directory, &files)?;
            let mail = cover_mail(part, tree, settings, &text, &recipients, needed)
                .with_context(|| cover.display().to_string())?;
            files.insert(part.file(COVER_MAIL), mail.into_bytes());
        }
    }
    directory.close()?;
    mirrors(tree, settings, &mut files)?;
    Ok(files)
}

/// What names the patches among `files` wherever they are applied.
fn patch_ids(part: &Part<'_>, tree: &Tree, files: &Files) -> Result<Vec<String>> {
    let mut patches = tempfile::NamedTempFile::new_in(git_dir(&tree.dir)?)?;
    for patch in patches_among(part, files) {
        patches.write_all(patch)?;
    }
    let mut ids = git(&tree.dir, &["patch-id", "--stable"]);
    let ids = capture_from(&mut ids, patches.path())?;
    let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    Ok(ids.lines().map(first).collect())
}

fn patches_among<'f>(part: &Part<'_>, files: &'f Files) -> impl Iterator<Item = &'f Vec<u8>> {
    let folder = part.file("");
    let is_in = move |path: &Path| path.starts_with(&folder);
    let those = files.iter().filter(move |(path, _)| is_in(path));
    those.map(|(_, patch)| patch)
}

/// Who gets the topic: all whom get_maintainer.pl names for one of its patches.
fn recipients(part: &Part<'_>, directory: &mut Directory<'_>, files: &Files) -> Result<Recipients> {
    let mut recipients = Recipients::default();
    for patch in patches_among(part, files) {
        recipients.add(directory.ask(&String::from_utf8_lossy(patch))?);
    }
    Ok(recipients)
}

/// The author's text, then what git says of the topic.
fn cover_mail<'i>(
    part: &Part<'_>,
    tree: &Tree,
    settings: &SeriesConfig,
    text: &str,
    recipients: &Recipients,
    needed: impl Iterator<Item = &'i String>,
) -> Result<String> {
    let (subject, body) = text
        .trim()
        .split_once("\n\n")
        .context("it needs a subject, an empty line and a text")?;
    if subject.contains('\n') {
        bail!("its subject is more than a line");
    }
    let subject = subject.trim_start_matches("# ");
    let range = part.range();
    let count = ask(&tree.dir, &["rev-list", "--count", &range])?;
    let author = [
        "log",
        "-1",
        "--format=From: %an <%ae>%nDate: %aD",
        &part.tip,
    ];
    let author = ask(&tree.dir, &author)?;
    let shortlog = capture(&mut git(&tree.dir, &["shortlog", "-w72,2,4", &range]))?;
    let stat = ["diff", "--stat=72", "--summary", &part.base, &part.tip];
    let stat = ask(&tree.dir, &stat)?;
    let base = settings.base_commit.clone().unwrap_or_else(unknown_base);
    let mut based_on = format!("\nbase-commit: {base}\n");
    for id in needed {
        based_on.push_str(&format!("prerequisite-patch-id: {id}\n"));
    }
    Ok(format!(
        "From {zero} Mon Sep 17 00:00:00 2001\n{author}\n\
         Subject: [{prefix} {none:0>width$}/{count}] {subject}\n{recipients}\
         MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n\
         Content-Transfer-Encoding: 8bit\n\n{body}\n\n{shortlog}\n{stat}\n{based_on}",
        zero = "0".repeat(40),
        prefix = settings.subject_prefix,
        recipients = recipients.head(),
        none = 0,
        width = count.len(),
        body = body.trim(),
        shortlog = shortlog.trim_end().to_owned() + "\n",
    ))
}

/// Files that the series adds, below the folders that are mirrored.
fn mirrors(tree: &Tree, settings: &SeriesConfig, files: &mut Files) -> Result<()> {
    let added = ask(
        &tree.dir,
        &[
            "diff",
            "--name-only",
            "--no-renames",
            "--diff-filter=A",
            &tree.base,
            &tree.tip,
        ],
    )?;
    for path in added.lines() {
        let longest = settings
            .mirrors
            .iter()
            .filter(|mirror| path.starts_with(&mirror.from))
            .max_by_key(|mirror| mirror.from.len());
        if let Some(mirror) = longest {
            let place = Path::new(&mirror.to).join(&path[mirror.from.len()..]);
            let object = format!("{}:{path}", tree.tip);
            let mut show = git(&tree.dir, &["cat-file", "blob", &object]);
            files.insert(place, capture(&mut show)?.into_bytes());
        }
    }
    Ok(())
}

/// What lies here of the files that an export writes.
fn present(root: &Path, settings: &SeriesConfig) -> Result<Files> {
    let mut files = Files::new();
    walk(root, Path::new("patches"), &mut files)?;
    // What people write there.
    files.retain(|path, _| {
        path.extension().is_some_and(|end| end == "patch") || path.ends_with(COVER_MAIL)
    });
    for mirror in &settings.mirrors {
        walk(root, Path::new(&mirror.to), &mut files)?;
    }
    for mirror in &settings.mirrors {
        for keep in &mirror.keep {
            files.remove(&Path::new(&mirror.to).join(keep));
        }
    }
    Ok(files)
}

fn walk(root: &Path, dir: &Path, files: &mut Files) -> Result<()> {
    let full = root.join(dir);
    if !full.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(&full)? {
        let entry = entry?;
        let path = dir.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            walk(root, &path, files)?;
        } else {
            files.insert(path, fs::read(entry.path())?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
