//! Tests that need no machine: the tool's own, its style, the patches' style,
//! and whether patches, tree and mirrors are the same.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::export;
use crate::git::ask;
use crate::paths::Paths;
use crate::proc::{output, tail};
use crate::report::Outcome;
use crate::series::Series;
use crate::tree::Tree;
use crate::ui::Ui;

/// Their names, for `ONLY=`.
pub const NAMES: [&str; 4] = ["harness", "style", "drift", "checkpatch"];

/// Runs the one of that name.
pub fn run(name: &str, paths: &Paths, ui: &Ui, tree: &Tree) -> Result<Vec<Outcome>> {
    let step = ui.step(format!("run: {name}"));
    let outcomes = match name {
        "harness" => harness(paths)?,
        "style" => style(paths)?,
        "drift" => vec![drift(paths, tree)?],
        _ => checkpatch(paths, tree)?,
    };
    step.done(format!("{} tests", outcomes.len()));
    Ok(outcomes)
}

fn cargo(paths: &Paths, args: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/cargo");
    command
        .args(args)
        .current_dir(paths.root.join("harness"))
        .env("PATH", "/usr/bin:/bin")
        .env("CARGO_HOME", paths.cache.join("cargo"))
        .env("CARGO_TARGET_DIR", paths.build().join("harness"))
        .env("RUSTC", "/usr/bin/rustc");
    command
}

/// The tool's unit tests, each by its name.
fn harness(paths: &Paths) -> Result<Vec<Outcome>> {
    let (status, out, err) = output(&mut cargo(
        paths,
        &[
            "test",
            "--quiet",
            "--locked",
            "--workspace",
            "--no-fail-fast",
            "--",
            "--format",
            "pretty",
        ],
    ))?;
    let mut outcomes: Vec<_> = out
        .lines()
        .filter_map(|line| unit_test(line, &out))
        .collect();
    let none_failed = outcomes
        .iter()
        .all(|outcome| outcome.status != ktap::Status::Failed);
    if outcomes.is_empty() || (!status.success() && none_failed) {
        outcomes.push(Outcome::failed("harness", "cargo test", tail(&err, 20)));
    }
    Ok(outcomes)
}

/// Reads `test path::name ... ok`.
fn unit_test(line: &str, all: &str) -> Option<Outcome> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some(match result.split(',').next()?.trim() {
        "ok" => Outcome::passed("harness", name),
        "ignored" => Outcome::skipped("harness", name, "ignored"),
        _ => {
            let said = all
                .split(&format!("---- {name} stdout ----"))
                .nth(1)
                .map(|text| text.split("\n\n").next().unwrap_or_default().trim())
                .unwrap_or_default();
            Outcome::failed("harness", name, said)
        }
    })
}

/// rustfmt and clippy, where they are installed.
fn style(paths: &Paths) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (name, program, args) in [
        (
            "rustfmt",
            "/usr/bin/rustfmt",
            &["fmt", "--all", "--check"][..],
        ),
        (
            "clippy",
            "/usr/bin/clippy-driver",
            &[
                "clippy",
                "--quiet",
                "--locked",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
        ),
    ] {
        outcomes.push(if Path::new(program).is_file() {
            let (status, out, err) = output(&mut cargo(paths, args))?;
            let trouble = (!status.success()).then(|| tail(&format!("{out}{err}"), 30));
            Outcome::unless("style", name, trouble)
        } else {
            Outcome::skipped("style", name, format!("{program} is not installed"))
        });
    }
    Ok(outcomes)
}

/// Whether an export would change anything.
pub fn drift(paths: &Paths, tree: &Tree) -> Result<Outcome> {
    let series = Series::read(&paths.root)?;
    let changes = export::drift(&paths.root, tree, &series)?;
    let trouble = (!changes.is_empty()).then(|| {
        format!(
            "patches/, {} and the mirrors differ; `make export` writes what is in the tree:\n{}",
            paths.short(&tree.dir),
            changes.join("\n")
        )
    });
    Ok(Outcome::unless(
        "drift",
        "patches, tree and mirrors",
        trouble,
    ))
}

/// The kernel's own style check, on each patch. Who sends a patch signs it off:
/// that is the one thing that may be missing. Whether MAINTAINERS covers a new
/// file is a question it always asks.
fn checkpatch(paths: &Paths, tree: &Tree) -> Result<Vec<Outcome>> {
    let series = Series::read(&paths.root)?;
    if series.patches.is_empty() {
        return Ok(Vec::new());
    }
    // A base out of a tar archive is one commit: those that messages name cannot
    // be found there.
    let parents = ask(&tree.dir, &["rev-list", "--parents", "-1", &tree.base])?;
    let ignored = if parents == tree.base {
        "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID"
    } else {
        "FILE_PATH_CHANGES"
    };
    let mut command = Command::new("perl");
    command
        .current_dir(&tree.dir)
        .args(["scripts/checkpatch.pl", "--strict", "--no-signoff"])
        .args(["--quiet", "--no-summary", "--terse"])
        .args(["--ignore", ignored])
        // Its Python modules are the distribution's.
        .env("PATH", "/usr/bin:/bin")
        .args(&series.patches);
    let (_, out, err) = output(&mut command)?;
    let mut said: Vec<&str> = out.lines().chain(err.lines()).collect();
    said.retain(|line| !line.trim().is_empty());
    let mut outcomes = Vec::new();
    for patch in &series.patches {
        let name = patch.file_name().unwrap_or_default().to_string_lossy();
        let about = format!("{}:", patch.display());
        let (of_it, others) = said.iter().partition(|line| line.starts_with(&about));
        said = others;
        let of_it: Vec<&str> = of_it;
        let of_it: Vec<_> = of_it.iter().map(|line| &line[about.len()..]).collect();
        let trouble = (!of_it.is_empty()).then(|| of_it.join("\n"));
        outcomes.push(Outcome::unless("checkpatch", &name, trouble));
    }
    // What names no patch: it could not work, or looks at all of them.
    let trouble = (!said.is_empty()).then(|| tail(&said.join("\n"), 20));
    outcomes.push(Outcome::unless("checkpatch", "checkpatch itself", trouble));
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktap::Status;

    #[test]
    fn lines_of_cargo_test() {
        let all =
            "test a::b ... ok\ntest c ... FAILED\n\n---- c stdout ----\npanicked at x\n\nrest";
        assert_eq!(
            unit_test("test a::b ... ok", all).unwrap().status,
            Status::Passed
        );
        let failed = unit_test("test c ... FAILED", all).unwrap();
        assert_eq!(failed.status, Status::Failed);
        assert_eq!(failed.reason, "panicked at x");
        assert!(unit_test("test result: ok. 1 passed", all).is_none());
        let ignored = unit_test("test d ... ignored, why", all).unwrap();
        assert_eq!(ignored.status, Status::Skipped);
    }
}
