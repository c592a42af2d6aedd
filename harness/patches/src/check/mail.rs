//! Checks of patches as mails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::Checker;
use crate::export::COVER_MAIL;
use crate::recipients::{Directory, Recipients};
use host::git::{ask, git};
use host::proc::output;
use kernel::series::{Fit, How, name};
use results::report::Outcome;

/// The width of body lines by checkpatch's rules.
const WIDTH: usize = 75;

/// How many lines a patch may change that is not a test, so that reviewers can read it as one.
const MAX_CHANGED: usize = 500;

/// How many lines a patch that is a test may change in other files, such as `Kconfig`,
/// `Makefile` and `MAINTAINERS`.
const MAX_BESIDE_TEST: usize = 30;

/// Applies all patches to the base with `git am`, in a work tree that only has the files
/// they touch.
pub fn am(checker: &Checker<'_>) -> Result<Outcome> {
    let tree = checker.tree;
    let what = "git am of all patches";
    let missing = checker.series.without(&tree.found.patches).patches;
    if tree.found.differs || missing.is_empty() {
        return Ok(Outcome::skipped("am", what, "the tree has them already"));
    }
    let scratch = tempfile::tempdir_in(checker.paths.build())?;
    let dir = scratch.path().join("am");
    let shown = dir.to_string_lossy();
    // Removes what an interrupted run left.
    ask(&tree.dir, &["worktree", "prune"])?;
    ask(
        &tree.dir,
        &[
            "worktree",
            "add",
            "-q",
            "--no-checkout",
            "--detach",
            &shown,
            &tree.base,
        ],
    )?;
    let result = apply(checker, &missing, &dir);
    ask(&tree.dir, &["worktree", "remove", "--force", &shown])?;
    Ok(Outcome::unless("am", what, result?))
}

fn apply(checker: &Checker<'_>, patches: &[PathBuf], dir: &Path) -> Result<Option<String>> {
    let mut sparse = git(dir, &["sparse-checkout", "set", "--no-cone"]);
    sparse.args(checker.added.all().map(|file| format!("/{file}")));
    host::proc::capture(&mut sparse)?;
    ask(dir, &["checkout", "-q"])?;
    let mut am = git(dir, &["am", "-q"]);
    am.args(patches);
    let (status, out, err) = output(&mut am)?;
    if !status.success() {
        return Ok(Some(format!("{out}{err}")));
    }
    let made = ask(dir, &["rev-parse", "HEAD^{tree}"])?;
    let tip = format!("{}^{{tree}}", checker.tree.tip);
    let meant = ask(&checker.tree.dir, &["rev-parse", &tip])?;
    Ok((made != meant).then(|| "it applies, and gives another tree than the commits".to_owned()))
}

/// Checks each topic with only the topics that it needs, because its recipients have no
/// others.
pub fn topics(checker: &Checker<'_>) -> Result<Vec<Outcome>> {
    let tree = checker.tree;
    let (dir, there) = (&tree.dir, &tree.found.patches);
    let fits = checker.series.fits(dir, &tree.base, there, How::Exactly)?;
    let outcome = |(topic, fit): &(String, Fit)| {
        let trouble = (!fit.is_good()).then(|| format!("does not apply: {fit}"));
        Outcome::unless("topics", topic, trouble)
    };
    Ok(fits.iter().map(outcome).collect())
}

/// Runs the kernel's style check on each patch. The sender adds the sign-off, so that may
/// be missing. checkpatch always asks whether MAINTAINERS covers a new file, so that
/// message is ignored.
pub fn checkpatch(checker: &Checker<'_>) -> Result<Vec<Outcome>> {
    let series = &checker.series;
    // A base from a tar archive is a single commit, so it lacks the commits that messages
    // name.
    let (dir, base) = (&checker.tree.dir, &checker.tree.base);
    let parents = ask(dir, &["rev-list", "--parents", "-1", base])?;
    let ignored = if parents == *base {
        "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID"
    } else {
        "FILE_PATH_CHANGES"
    };
    let mut command = Command::new("perl");
    command
        .current_dir(dir)
        .args(["scripts/checkpatch.pl", "--strict", "--no-signoff"])
        .args(["--quiet", "--no-summary", "--terse"])
        .args(["--ignore", ignored])
        // Its Python modules come from the distribution.
        .env("PATH", "/usr/bin:/bin")
        .args(&series.patches);
    let (status, out, err) = output(&mut command)?;
    let mut said: Vec<&str> = out.lines().chain(err.lines()).collect();
    said.retain(|line| !line.trim().is_empty());
    // 1 stands for complaints, which are counted below.
    let broken = format!("checkpatch: {status}");
    if !matches!(status.code(), Some(0 | 1)) {
        said.push(&broken);
    }
    let mut outcomes = Vec::new();
    for patch in &series.patches {
        let about = format!("{}:", patch.display());
        let (of_it, others) = said.iter().partition(|line| line.starts_with(&about));
        said = others;
        let of_it: Vec<&str> = of_it;
        let of_it: Vec<_> = of_it.iter().map(|line| &line[about.len()..]).collect();
        let trouble = (!of_it.is_empty()).then(|| of_it.join("\n"));
        outcomes.push(Outcome::unless("checkpatch", &name(patch), trouble));
    }
    // Messages without a patch: checkpatch failed, or they are about all patches.
    let trouble = (!said.is_empty()).then(|| said.join("\n"));
    outcomes.push(Outcome::unless("checkpatch", "checkpatch itself", trouble));
    Ok(outcomes)
}

/// Checks what `b4 prep --check` and reviewers expect from a mail.
pub fn mail(checker: &Checker<'_>) -> Result<Vec<Outcome>> {
    let series = &checker.series;
    let prefix = &series.settings.subject_prefix;
    let mut outcomes = Vec::new();
    let mut senders = BTreeSet::new();
    for topic in &series.settings.topics {
        let patches = series.part(&[topic]).patches;
        for (number, patch) in patches.iter().enumerate() {
            let text = fs::read_to_string(patch)?;
            senders.extend(sender(&text));
            let mut trouble = faults(&text, prefix, number + 1, patches.len());
            trouble.extend(size(&numstat(&checker.tree.dir, patch)?));
            let trouble = (!trouble.is_empty()).then(|| trouble.join("\n"));
            outcomes.push(Outcome::unless("mail", &name(patch), trouble));
        }
        let cover = series.dir.join(&topic.folder).join(COVER_MAIL);
        let trouble = match fs::read_to_string(&cover) {
            Err(error) => Some(format!("{}: {error}", checker.paths.short(&cover))),
            Ok(text) => ["EDITME", "*** SUBJECT HERE ***", "*** BLURB HERE ***"]
                .iter()
                .find(|word| text.contains(**word))
                .map(|word| format!("it says {word}")),
        };
        outcomes.push(Outcome::unless("mail", &name(&cover), trouble));
    }
    let trouble = (senders.len() > 1).then(|| Vec::from_iter(senders).join("\n"));
    outcomes.push(Outcome::unless(
        "mail",
        "all patches are from one person",
        trouble,
    ));
    Ok(outcomes)
}

/// Who a mail is from, without what may follow in a folded header.
fn sender(text: &str) -> Option<String> {
    let mut lines = text.lines();
    lines
        .find(|line| line.starts_with("From: "))
        .map(str::to_owned)
}

/// The errors in a mail.
pub fn faults(text: &str, prefix: &str, number: usize, count: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let message = text.split("\n---\n").next().unwrap_or_default();
    let (head, body) = message.split_once("\n\n").unwrap_or((message, ""));
    let width = count.to_string().len();
    let begins = format!("Subject: [{prefix} {number:0width$}/{count}] ");
    if !head.lines().any(|line| line.starts_with(&begins)) {
        faults.push(format!("no line begins with {begins:?}"));
    }
    if body.trim().lines().all(is_trailer) {
        faults.push("the message says nothing".to_owned());
    }
    for (at, line) in body.lines().enumerate() {
        let quoted = line.starts_with([' ', '\t', '>']) || line.contains("://");
        if line.chars().count() > WIDTH && !quoted && !is_trailer(line) {
            faults.push(format!(
                "line {} of the message has over {WIDTH} characters",
                at + 1
            ));
        }
    }
    if !body.lines().any(|line| line.starts_with("Assisted-by: ")) {
        faults.push("no Assisted-by:".to_owned());
    }
    // For example, an editor's template became part of the message.
    let last = body.trim_end().rsplit("\n\n").next().unwrap_or_default();
    if !last.lines().all(is_trailer) {
        faults.push("text comes after the trailers, or with them".to_owned());
    }
    for word in ["Signed-off-by:", "Change-Id:"] {
        if body.lines().any(|line| line.starts_with(word)) {
            faults.push(format!("{word} is for people who send it, or for nobody"));
        }
    }
    faults
}

/// How many lines a patch adds to and removes from each file: a line `added removed file`
/// for each. The message and the signature of a mail do not count. `tree` must be the top of a
/// repository: below it, git leaves out all other files.
pub fn numstat(tree: &Path, patch: &Path) -> Result<String> {
    ask(tree, &["apply", "--numstat", &patch.to_string_lossy()])
}

/// Says why a patch is too large, if it is, from its [`numstat`].
pub fn size(numstat: &str) -> Option<String> {
    if numstat.is_empty() {
        return Some("git finds no diff in it".to_owned());
    }
    let (mut all, mut beside_tests) = (0, 0);
    for line in numstat.lines() {
        let mut fields = line.splitn(3, '\t');
        let mut count = || fields.next().and_then(|field| field.parse().ok());
        // A binary file has no lines.
        let changed = count().unwrap_or(0_usize) + count().unwrap_or(0);
        all += changed;
        if !fields.next().is_some_and(is_test) {
            beside_tests += changed;
        }
    }
    (all > MAX_CHANGED && beside_tests > MAX_BESIDE_TEST).then(|| {
        format!(
            "it changes {all} lines, {beside_tests} of them not in test files. \
             Split it: only a test may change more than {MAX_CHANGED}"
        )
    })
}

/// Whether a file is a test. A driver of a test device is code as any other.
fn is_test(file: &str) -> bool {
    let (dir, name) = file.rsplit_once('/').unwrap_or(("", file));
    let stem = name.split('.').next().unwrap_or_default();
    file.starts_with("tools/testing/")
        || dir.split('/').any(|dir| dir == "tests")
        || stem == "tests"
        || stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_kunit")
}

/// `Fixes: ...`, `Assisted-by: ...`
fn is_trailer(line: &str) -> bool {
    line.is_empty()
        || line.split_once(": ").is_some_and(|(key, _)| {
            key.starts_with(|c: char| c.is_ascii_uppercase())
                && key.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
                && (key.contains('-') || matches!(key, "Fixes" | "Link" | "Closes" | "Cc"))
        })
}

/// get_maintainer.pl must find somebody for every patch.
pub fn maintainers(checker: &Checker<'_>) -> Result<Vec<Outcome>> {
    let mut directory = Directory::of(checker.tree)?;
    let mut outcomes = Vec::new();
    for patch in &checker.series.patches {
        let said = directory.ask(&fs::read_to_string(patch)?)?;
        let mut recipients = Recipients::default();
        recipients.add(said);
        let trouble = (!recipients.has_maintainer())
            .then(|| format!("nobody is responsible for what it touches\n{said}"));
        outcomes.push(Outcome::unless("maintainers", &name(patch), trouble));
    }
    directory.close()?;
    Ok(outcomes)
}

/// Runs codespell on messages and new lines. Other lines are empty, so that line numbers
/// match the patch.
pub fn codespell(checker: &Checker<'_>) -> Result<Vec<Outcome>> {
    let scratch = tempfile::tempdir_in(checker.paths.build())?;
    for patch in &checker.series.patches {
        let text = ours(&fs::read_to_string(patch)?);
        let file = scratch.path().join(name(patch));
        fs::create_dir_all(file.parent().expect("it has a folder"))?;
        fs::write(file, text)?;
    }
    let mut command = Command::new("codespell");
    command
        .current_dir(scratch.path())
        .env("PATH", "/usr/bin:/bin")
        .arg(format!(
            "--ignore-words-list={}",
            checker.settings.words.join(",")
        ))
        .args(checker.series.patches.iter().map(|patch| name(patch)));
    let (status, out, err) = output(&mut command)?;
    let mut outcomes = Vec::new();
    for patch in &checker.series.patches {
        let name = name(patch);
        let said: Vec<_> = out.lines().filter(|line| line.starts_with(&name)).collect();
        let trouble = (!said.is_empty()).then(|| said.join("\n"));
        outcomes.push(Outcome::unless("codespell", &name, trouble));
    }
    // codespell exits with 65 if it finds something.
    let trouble = (!matches!(status.code(), Some(0 | 65))).then_some(err);
    outcomes.push(Outcome::unless("codespell", "codespell itself", trouble));
    Ok(outcomes)
}

/// The message and the lines that a patch adds.
pub fn ours(patch: &str) -> String {
    let mut in_diff = false;
    let mut text = String::new();
    for line in patch.lines() {
        in_diff |= line.starts_with("diff --git ");
        let added = line.strip_prefix('+').filter(|_| !line.starts_with("+++ "));
        text.push_str(if in_diff {
            added.unwrap_or_default()
        } else {
            line
        });
        text.push('\n');
    }
    text
}
