//! Writes patches/ and the mirrors from the tree's commits, and reports where they differ.
//!
//! [`render`] first computes the result of an export, as a list of files and contents. So
//! writing and comparing are the same for every kind of file.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::recipients::{Directory, Recipients};
use host::git::{ask, git};
use host::proc::{capture, capture_from};
use kernel::commits::{COVER, Files, Part, parts};
use kernel::series::{COVER_TEXT, Series, SeriesConfig, git_dir};
use kernel::tree::Tree;

/// A topic's cover letter as a mail. Its name does not end in `.patch`, because `git am`
/// stops at a mail that changes nothing. `git send-email patches/TOPIC/0*` includes it.
pub const COVER_MAIL: &str = "0000-cover-letter.txt";

/// The header lines for a mail in UTF-8.
const UTF_8: &str = "MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n\
    Content-Transfer-Encoding: 8bit\n";

/// The base line of a cover letter until somebody adds the commit.
fn unknown_base() -> String {
    let version = setup::source::BASE_VERSION.replace('~', "-");
    format!("(v{version}: who sends this sets base_commit in patches/series.toml)")
}

/// Writes all files. Returns the paths that changed.
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

/// The changes that an export would make now.
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
        let file = series.dir.join(&part.topic.folder).join(COVER_TEXT);
        let of_file = || file.display().to_string();
        let text = cover_text(&file).with_context(of_file)?;
        part.patches(tree.branch(), settings, text.as_deref(), &mut files)?;
        let letter = files.remove(&part.file(COVER));
        let id = patch_ids(part, tree, &files)?;
        ids.insert(part.topic.folder.as_str(), id);
        if let Some(letter) = letter {
            let needed = settings.prerequisites(part.topic).into_iter();
            let needed = needed.flat_map(|topic| &ids[topic.folder.as_str()]);
            let recipients = recipients(part, &mut directory, &files)?;
            let mail = addressed(letter, settings, &recipients, needed).with_context(of_file)?;
            files.insert(part.file(COVER_MAIL), mail.into_bytes());
        }
    }
    directory.close()?;
    mirrors(tree, settings, &mut files)?;
    Ok(files)
}

/// The patch IDs of the patches among `files`. They do not depend on the base.
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

/// The topic's recipients: everybody that get_maintainer.pl names for one of its patches.
fn recipients(part: &Part<'_>, directory: &mut Directory<'_>, files: &Files) -> Result<Recipients> {
    let mut recipients = Recipients::default();
    for patch in patches_among(part, files) {
        recipients.add(directory.ask(&String::from_utf8_lossy(patch))?);
    }
    Ok(recipients)
}

/// The source of a cover letter, if the file exists: a subject, an empty line, a text.
fn cover_text(file: &Path) -> Result<Option<String>> {
    if !file.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(file)?;
    let text = text.trim().trim_start_matches("# ");
    let is_whole = text.contains("\n\n");
    ensure!(is_whole, "it needs a subject, an empty line and a text");
    Ok(Some(text.to_owned()))
}

/// Adds recipients and base to a letter that git has made. git cannot name the base,
/// because this tree may not have that commit.
fn addressed<'i>(
    letter: Vec<u8>,
    settings: &SeriesConfig,
    recipients: &Recipients,
    needed: impl Iterator<Item = &'i String>,
) -> Result<String> {
    let letter = String::from_utf8(letter)?;
    let (head, body) = letter.split_once("\n\n").context("it has no body")?;
    // git declares a character set only if a commit needs it.
    let mime = match head.contains("\nMIME-Version: ") {
        true => "",
        false => UTF_8,
    };
    let base = settings.base_commit.clone().unwrap_or_else(unknown_base);
    let mut mail = format!(
        "{head}\n{}{mime}\n{body}base-commit: {base}\n",
        recipients.head()
    );
    for id in needed {
        mail.push_str(&format!("prerequisite-patch-id: {id}\n"));
    }
    Ok(mail)
}

/// The files that the series adds in mirrored folders.
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

/// The existing files of the kind that an export writes.
fn present(root: &Path, settings: &SeriesConfig) -> Result<Files> {
    let mut files = Files::new();
    walk(root, Path::new("patches"), &mut files)?;
    // The other files there are written by people.
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
