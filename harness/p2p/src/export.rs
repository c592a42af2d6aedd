//! Writes patches/ and the mirrors from the commits in the tree, and says
//! where they differ from them.
//!
//! What an export comes to is computed first, as a list of files and contents
//! ([`render`]); writing it and comparing with it are then the same for every
//! kind of file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::git::{ask, git};
use crate::proc::capture;
use crate::series::{COVER_TEXT, Series, Settings};
use crate::tree::Tree;

/// Files by their path in the repository.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The cover letter as a mail. It is no `.patch`, because `git am` stops at a
/// mail that changes nothing; `git send-email patches/0*` takes it.
pub const COVER_MAIL: &str = "0000-cover-letter.txt";

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

/// Whether the tree's commits are those in patches/; the rest is not looked at.
pub fn same_patches(tree: &Tree, series: &Series) -> Result<bool> {
    let mut wanted = Files::new();
    patches(tree, &series.settings, &mut wanted)?;
    let mut present = Files::new();
    for patch in &series.patches {
        let name = patch.file_name().expect("a patch has a name");
        present.insert(Path::new("patches").join(name), fs::read(patch)?);
    }
    Ok(wanted == present)
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
    let mut files = Files::new();
    patches(tree, &series.settings, &mut files)?;
    let cover = series.dir.join(COVER_TEXT);
    if cover.is_file() && tree.tip != tree.base {
        let text = fs::read_to_string(&cover)?;
        let mail = cover_mail(tree, &series.settings, &text)
            .with_context(|| cover.display().to_string())?;
        files.insert(Path::new("patches").join(COVER_MAIL), mail.into_bytes());
    }
    mirrors(tree, &series.settings, &mut files)?;
    Ok(files)
}

fn patches(tree: &Tree, settings: &Settings, files: &mut Files) -> Result<()> {
    if tree.tip == tree.base {
        return Ok(());
    }
    let dir = tempfile::tempdir_in(crate::series::git_dir(&tree.dir)?)?;
    let out = dir.path().to_string_lossy();
    let range = format!("{}..{}", tree.base, tree.tip);
    let prefix = format!("--subject-prefix={}", settings.subject_prefix);
    ask(
        &tree.dir,
        &[
            "format-patch",
            "--quiet",
            "--zero-commit",
            "--no-signature",
            "--numbered",
            &prefix,
            "-o",
            &out,
            &range,
        ],
    )?;
    for entry in fs::read_dir(dir.path())? {
        let path = entry?.path();
        let name = path.file_name().expect("a patch has a name");
        files.insert(Path::new("patches").join(name), fs::read(&path)?);
    }
    Ok(())
}

/// The author's text, then what git says of the series.
fn cover_mail(tree: &Tree, settings: &Settings, text: &str) -> Result<String> {
    let (subject, body) = text
        .trim()
        .split_once("\n\n")
        .context("it needs a subject, an empty line and a text")?;
    if subject.contains('\n') {
        bail!("its subject is more than a line");
    }
    let subject = subject.trim_start_matches("# ");
    let range = format!("{}..{}", tree.base, tree.tip);
    let count = ask(&tree.dir, &["rev-list", "--count", &range])?;
    let author = ask(
        &tree.dir,
        &[
            "log",
            "-1",
            "--format=From: %an <%ae>%nDate: %aD",
            &tree.tip,
        ],
    )?;
    let shortlog = capture(&mut git(&tree.dir, &["shortlog", "-w72,2,4", &range]))?;
    let stat = ask(
        &tree.dir,
        &["diff", "--stat=72", "--summary", &tree.base, &tree.tip],
    )?;
    Ok(format!(
        "From {zero} Mon Sep 17 00:00:00 2001\n{author}\n\
         Subject: [{prefix} {none:0>width$}/{count}] {subject}\n\
         MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n\
         Content-Transfer-Encoding: 8bit\n\n{body}\n\n{shortlog}\n{stat}\n",
        zero = "0".repeat(40),
        prefix = settings.subject_prefix,
        none = 0,
        width = count.len(),
        body = body.trim(),
        shortlog = shortlog.trim_end().to_owned() + "\n",
    ))
}

/// Files that the series adds, below the folders that are mirrored.
fn mirrors(tree: &Tree, settings: &Settings, files: &mut Files) -> Result<()> {
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
fn present(root: &Path, settings: &Settings) -> Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(root.join("patches"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".patch") || name == COVER_MAIL {
            files.insert(Path::new("patches").join(&*name), fs::read(&path)?);
        }
    }
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
