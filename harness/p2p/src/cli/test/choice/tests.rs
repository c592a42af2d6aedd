use super::*;

use std::path::{Path, PathBuf};

use clap::Parser;

use plan::topology::Topologies;
use results::report::Outcome;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn choice(arguments: &[&str]) -> Result<Choice> {
    let line = [&["test"], arguments].concat();
    Choice::new(&Line::try_parse_from(line)?.options)
}

/// The names that are picked from this repository's tests, after a last run.
fn picked(arguments: &[&str], previous: Option<&[Outcome]>) -> Result<BTreeSet<String>> {
    let topologies = Topologies::read(&root())?;
    let plan = Plan::read(&root())?;
    let selection = Selection {
        choice: &choice(arguments)?,
        kernels: &Kernels::read(&root())?,
        plan: &plan,
        jobs: &plan.jobs(&topologies)?,
        durations: &Durations::default(),
    };
    selection.names(|| match previous {
        Some(outcomes) => Ok(Report::from(outcomes.to_vec())),
        None => bail!("build/results/report.json: no such file"),
    })
}

fn names(arguments: &[&str]) -> Vec<String> {
    picked(arguments, None).unwrap().into_iter().collect()
}

fn usage(arguments: &[&str]) -> String {
    let error = picked(arguments, None).unwrap_err();
    assert!(
        error.downcast_ref::<Usage>().is_some(),
        "{arguments:?}: {error:#}"
    );
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn without_arguments_it_is_everything_that_is_not_on_demand() {
    let all = names(&[]);
    for name in ["harness", "am", "modules", "demo/switch", "hmm-base/switch"] {
        assert!(all.iter().any(|other| other == name), "{name}");
    }
    // An on-demand kernel, and a kernel whose build is not a test.
    for name in ["mlx5-built-in", "plain"] {
        assert!(!all.iter().any(|other| other == name), "{name}");
    }
    assert_eq!(names(&["--only", "mlx5-built-in"]), ["mlx5-built-in"]);
    assert_eq!(names(&["--only", "mlx5-built*"]), ["mlx5-built-in-no-odp"]);
    assert!(usage(&["--only", "mlx5-built-i?"]).contains("built on demand"));
}

#[test]
fn wildcards_and_exclusion_pick_jobs() {
    let without = names(&["--only", "mlx5*/switch,!*-debug/*"]);
    assert!(without.iter().any(|name| name == "mlx5/switch"));
    assert!(
        without
            .iter()
            .all(|name| name.starts_with("mlx5") && name.ends_with("/switch"))
    );
    assert!(without.iter().all(|name| !name.contains("-debug/")));
    let with = names(&["--only", "mlx5*/switch"]);
    assert!(
        with.iter().any(|name| name == "mlx5-debug/switch"),
        "{with:?}"
    );
}

#[test]
fn what_cannot_be_meant_is_bad_usage() {
    assert!(usage(&["--only", ""]).starts_with("ONLY= is empty"));
    assert!(usage(&["--only", "mlx5/swich"]).contains("did you mean mlx5/switch"));
    for shard in ["", "0/4", "5/4", "x", "1/0", "-1/4"] {
        assert!(usage(&["--shard", shard]).starts_with(&format!("SHARD={shard}: ")));
    }
    for repeat in ["", "0", "-1", "x", "1.5", "4294967296"] {
        assert!(usage(&["--repeat", repeat]).starts_with(&format!("REPEAT={repeat}: ")));
    }
    assert!(usage(&["--failed=-1"]).starts_with("FAILED=-1: "));
    assert!(usage(&["--failed"]).starts_with("FAILED=1: there are no results of a last run"));
    for test in ["", "a b", "$(x)", "a;b", "-x"] {
        assert!(usage(&["--only=mlx5", "--test", test]).starts_with(&format!("TEST={test}: ")));
    }
    assert!(usage(&["--test", "atomic"]).contains("ONLY=job TEST=atomic"));
    assert!(usage(&["--only=style", "--test", "atomic"]).contains("no job"));
}

#[test]
fn what_failed_is_picked_again() {
    let last = [
        Outcome::failed("mlx5/switch", "x", "no"),
        Outcome::passed("mlx5/iommu", "x"),
        Outcome::skipped("am", "x", "no"),
        Outcome::could_not_run("modules", "built without a warning", "no"),
        Outcome::failed("gone/switch", "x", "no"),
        // The jobs of a comparison repeat it.
        Outcome::failed("same/hmm-tests", "x", "no"),
    ];
    let picked = |arguments: &[&str]| {
        let names = picked(arguments, Some(&last)).unwrap();
        names.into_iter().collect::<Vec<_>>()
    };
    let again = [
        "hmm-base/switch",
        "hmm-series/switch",
        "mlx5/switch",
        "modules",
    ];
    assert_eq!(picked(&["--failed"]), again);
    assert_eq!(picked(&["--failed", "--only", "mlx5*"]), ["mlx5/switch"]);
    assert!(picked(&["--failed=1", "--only=style"]).is_empty());
    assert_eq!(picked(&["--failed=0", "--only=style"]), ["style"]);
    assert_eq!(picked(&["--failed", "--test=x"]), &again[..3]);
}

#[test]
fn shards_together_are_everything() {
    let all = names(&[]);
    let shard = |text: &str| names(&["--shard", text]);
    let shards = Vec::from_iter((1..=4).map(|number| shard(&format!("{number}/4"))));
    let mut together = shards.concat();
    together.sort_unstable();
    assert_eq!(together, all);
    assert!(
        shards.iter().all(|shard| shard.len() > all.len() / 20),
        "{shards:?}"
    );
    // Jobs that are compared are in the same shard.
    let plan = Plan::read(&root()).unwrap();
    assert!(!plan.same.is_empty());
    for same in &plan.same {
        let has_both = |shard: &Vec<String>| same.jobs.iter().all(|job| shard.contains(job));
        assert!(shards.iter().any(has_both), "{:?}", same.jobs);
    }
    assert_eq!(names(&["--shard", "1/1"]), all);
}

#[test]
fn one_test_is_of_jobs_with_programs() {
    let picked = names(&["--only", "switch", "--test", "odp.atomic"]);
    assert!(picked.iter().any(|name| name == "rdma/switch"));
    assert!(!picked.iter().any(|name| name == "demo/switch"));
    assert_eq!(
        choice(&["--only=x", "--test=a.b_1"]).unwrap().test.unwrap(),
        "a.b_1"
    );
}
