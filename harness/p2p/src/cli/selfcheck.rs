//! Tests of this repository: the tool's tests, its style, and whether patches, tree and
//! mirrors match.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use host::paths::Paths;
use host::proc::output;
use host::ui::Ui;
use kernel::series::Series;
use kernel::tree::Tree;
use patches::{export, recorded};
use results::cache::{self, Cache, Inputs};
use results::report::Outcome;
use setup::packages;

/// The names of these tests in `make test`, for `ONLY=`.
pub const NAMES: [&str; 3] = ["harness", "style", "drift"];

/// Checks licences, sources and versions of the tool's crates. It needs cargo-deny, which
/// may have to be downloaded.
pub const DENY: &str = "deny";

/// The tests whose results are cached.
pub const CACHED: [&str; 2] = ["harness", "style"];

/// Runs the test with that name. Also returns whether the results came from the cache.
pub fn run(
    name: &str,
    paths: &Paths,
    ui: &Ui,
    tree: &Tree,
    force: bool,
) -> Result<(Vec<Outcome>, bool)> {
    let step = ui.step(format!("run: {name}"));
    let look = || match name {
        "harness" => harness(paths),
        "style" => style(paths),
        recorded::NAME => recorded::check(paths, tree),
        DENY => deny(paths, ui),
        _ => Ok(vec![drift(paths, tree)?]),
    };
    let (outcomes, was_cached) = if CACHED.contains(&name) {
        Cache::new(paths, force).or_find(name, inputs(paths, tree)?, look)?
    } else {
        (look()?, false)
    };
    step.done(cache::counted(outcomes.len(), was_cached));
    Ok((outcomes, was_cached))
}

/// The names of [`CACHED`] with cached results.
pub fn cached(paths: &Paths, tree: &Tree, force: bool) -> Result<Vec<&'static str>> {
    let (cache, inputs) = (Cache::new(paths, force), inputs(paths, tree)?);
    let mut names = CACHED.to_vec();
    names.retain(|name| cache.has(name, inputs.clone()));
    Ok(names)
}

/// The inputs of the results of [`CACHED`].
fn inputs(paths: &Paths, tree: &Tree) -> Result<Inputs> {
    let mut inputs = Inputs::new()?;
    inputs.repository(&paths.root)?;
    inputs.tree(&tree.dir, &[&tree.base, &tree.tip])?;
    Ok(inputs)
}

fn cargo(paths: &Paths, args: &[&str]) -> Command {
    with_cargo(paths, Path::new("/usr/bin/cargo"), args)
}

/// A command for cargo, or for a program that calls cargo.
fn with_cargo(paths: &Paths, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(paths.root.join("harness"))
        .env("PATH", "/usr/bin:/bin")
        .env("CARGO_HOME", paths.cache.join("cargo"))
        .env("CARGO_TARGET_DIR", paths.build().join("harness"))
        .env("RUSTC", "/usr/bin/rustc")
        // Tests must install nothing, and their directories have no packages/.
        .env_remove(packages::TARGET);
    command
}

/// Ignored tests open the results page in this browser.
const BROWSER: &str = "/usr/bin/chromium";

/// Runs the tool's unit tests. Each is an outcome with its name.
fn harness(paths: &Paths) -> Result<Vec<Outcome>> {
    let mut arguments = vec![
        "test",
        "--quiet",
        "--locked",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--format",
        "pretty",
    ];
    if Path::new(BROWSER).exists() {
        arguments.push("--include-ignored");
    }
    let mut command = cargo(paths, &arguments);
    let mut outcomes = Vec::new();
    // A KDIR= may be of another version than the one that the tests know.
    if !paths.build().join("linux").exists() {
        command.env("LINUX_TREE", "");
        let why = "no kernel in build/linux: run `make tree`";
        outcomes.push(Outcome::skipped("harness", "tests of kernel sources", why));
    }
    let (status, out, err) = output(&mut command)?;
    let tests: Vec<_> = out
        .lines()
        .filter_map(|line| unit_test(line, &out))
        .collect();
    let none_failed = tests
        .iter()
        .all(|outcome| outcome.status != ktap::Status::Failed);
    if tests.is_empty() || (!status.success() && none_failed) {
        outcomes.push(Outcome::failed("harness", "cargo test", err));
    }
    outcomes.extend(tests);
    Ok(outcomes)
}

/// Parses `test path::name ... ok`.
fn unit_test(line: &str, all: &str) -> Option<Outcome> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (word, why) = result.split_once(", ").unwrap_or((result, "ignored"));
    Some(match word.split(',').next()?.trim() {
        "ok" => Outcome::passed("harness", name),
        "ignored" => Outcome::skipped("harness", name, why.trim()),
        _ => {
            let said = all
                .split(&format!("---- {name} stdout ----"))
                .nth(1)
                .map(|text| {
                    text.trim_start()
                        .split("\n\n")
                        .next()
                        .unwrap_or_default()
                        .trim()
                })
                .unwrap_or_default();
            Outcome::failed("harness", name, said)
        }
    })
}

/// Runs rustfmt and clippy, if they are installed.
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
            let trouble = (!status.success()).then(|| format!("{out}{err}"));
            Outcome::unless("style", name, trouble)
        } else {
            Outcome::skipped("style", name, format!("{program} is not installed"))
        });
    }
    Ok(outcomes)
}

/// Runs the checks of cargo-deny that need no database. harness/deny.toml has its settings.
fn deny(paths: &Paths, ui: &Ui) -> Result<Vec<Outcome>> {
    let program = match setup::cargo_deny(paths, ui) {
        Ok(program) => program,
        Err(error) => return Ok(vec![Outcome::skipped(DENY, "all", format!("{error:#}"))]),
    };
    let mut outcomes = Vec::new();
    for name in ["licenses", "bans", "sources"] {
        let args = [
            "--locked",
            "--color=never",
            "check",
            "--hide-inclusion-graph",
            name,
        ];
        let (status, out, err) = output(&mut with_cargo(paths, &program, &args))?;
        let trouble = (!status.success()).then(|| format!("{out}{err}"));
        outcomes.push(Outcome::unless(DENY, name, trouble));
    }
    Ok(outcomes)
}

/// Whether an export would change anything.
pub fn drift(paths: &Paths, tree: &Tree) -> Result<Outcome> {
    let name = "patches, tree and mirrors";
    let series = Series::read(&paths.root)?;
    if !tree.found.patches.is_empty() {
        let why = "the tree has some of the patches already: it has no commits of them";
        return Ok(Outcome::skipped("drift", name, why));
    }
    let changes = export::drift(&paths.root, tree, &series)?;
    if !changes.is_empty() && paths.kdir.is_some() && tree.is_as_made(&series) {
        let why = "the commits are as `make tree KDIR=` found or made them, on another kernel \
                   than that of patches/";
        return Ok(Outcome::skipped("drift", name, why));
    }
    let trouble = (!changes.is_empty()).then(|| {
        format!(
            "patches/, {} and the mirrors differ; `make export` writes what is in the tree:\n{}",
            paths.short(&tree.dir),
            changes.join("\n")
        )
    });
    Ok(Outcome::unless("drift", name, trouble))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktap::Status;

    #[test]
    fn lines_of_cargo_test() {
        let all =
            "test a::b ... ok\ntest c ... FAILED\n\n---- c stdout ----\n\npanicked at x\n\nrest";
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
        assert_eq!(ignored.reason, "why");
    }
}
