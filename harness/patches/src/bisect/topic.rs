//! After a topic's last patch, jobs of qemu/tests.toml run in the kernel that has booted.
//! The tree has only the topics that this one needs, so a job runs the programs that are
//! in the tree, and no job runs that has none.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use ktap::Status;

use plan::job::{Job, Plan, words};
use plan::topology::Topologies;
use results::report::Outcome;

/// The jobs with these names. Each gets this kernel.
pub fn jobs<'t>(
    root: &Path,
    topologies: &'t Topologies,
    kernel: &str,
    names: &[String],
) -> Result<Vec<Job<'t>>> {
    let mut jobs = Plan::read(root)?.jobs(topologies)?;
    jobs.retain(|job| names.contains(&job.name));
    if let Some(name) = names
        .iter()
        .find(|name| !jobs.iter().any(|job| job.name == **name))
    {
        bail!("qemu/bisect.toml: there is no job {name} in qemu/tests.toml");
    }
    for job in &mut jobs {
        job.name = format!("{kernel}/{}", job.name);
        job.kernel = kernel.to_owned();
        // The programs are this tree's, and it has fewer tests than the series.
        job.spec.from = None;
        job.spec.at_least = None;
    }
    Ok(jobs)
}

/// The jobs that have a test in this tree, each with its programs that are there.
pub fn there<'t>(jobs: &[Job<'t>], tree: &Path) -> Vec<Job<'t>> {
    let selftests = tree.join("tools/testing/selftests");
    let has = |program: &String| {
        let source = selftests.join(words(program).0).with_extension("c");
        source.is_file()
    };
    let there = jobs.iter().filter_map(|job| {
        let mut spec = job.spec.clone();
        spec.programs.retain(has);
        let has_tests = !spec.programs.is_empty() || spec.kunit.is_some();
        has_tests.then(|| Job::alone(job.name.clone(), &job.kernel, job.topology, spec))
    });
    there.collect()
}

/// The programs of these jobs, each once.
pub fn programs<'j>(jobs: &'j [Job<'_>]) -> BTreeSet<&'j str> {
    let all = jobs.iter().flat_map(|job| &job.spec.programs);
    all.map(|program| words(program).0).collect()
}

/// How many tests passed, and the failures.
pub fn judged(outcomes: &[Outcome]) -> (usize, Option<String>) {
    let of = |status| {
        outcomes
            .iter()
            .filter(move |outcome| outcome.status == status)
    };
    let failures = of(Status::Failed).map(|outcome| {
        let log = outcome.log_file.as_deref().unwrap_or("-");
        let (suite, name, reason) = (&outcome.suite, &outcome.name, &outcome.reason);
        format!("{suite}: {name}: {reason}\n(log: {log})")
    });
    let failures = Vec::from_iter(failures).join("\n");
    let trouble = (!failures.is_empty()).then_some(failures);
    (of(Status::Passed).count(), trouble)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use plan::topology::Kind;

    #[test]
    fn jobs_have_what_is_in_the_tree_and_the_kernel_that_booted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let of = |names: &[&str]| {
            let names = Vec::from_iter(names.iter().map(|&name| name.to_owned()));
            jobs(&root, &topologies, "bisect/default", &names)
        };
        assert!(of(&["selftest/nowhere"]).is_err());
        let all = of(&["kunit/switch", "hmm-series/switch", "selftest/switch"]).unwrap();
        assert_eq!(all.len(), 3);
        for job in &all {
            assert_eq!(job.needs(), ["bisect/default"], "{}", job.name);
            assert!(job.name.starts_with("bisect/default/"), "{}", job.name);
            assert_eq!(job.spec.at_least, None, "{}", job.name);
        }
        let tree = tempfile::tempdir().unwrap();
        let add = |file: &str| {
            let file = tree.path().join("tools/testing/selftests").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        };
        let names = || {
            let there = there(&all, tree.path());
            let mut names = Vec::from_iter(there.iter().map(|job| job.name.clone()));
            names.sort();
            (
                names,
                programs(&there)
                    .into_iter()
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
            )
        };
        let [hmm, kunit, selftest] =
            ["hmm-series", "kunit", "selftest"].map(|name| format!("bisect/default/{name}/switch"));
        assert_eq!(names(), (vec![kunit.clone()], vec![]));
        add("mm/hmm-tests.c");
        let programs = vec!["mm/hmm-tests".to_owned()];
        assert_eq!(
            names(),
            (vec![hmm.clone(), kunit.clone()], programs.clone())
        );
        add("p2pdma/hmm_p2p_test.c");
        let programs = [programs, vec!["p2pdma/hmm_p2p_test".to_owned()]].concat();
        assert_eq!(names(), (vec![hmm, kunit, selftest], programs));
    }

    #[test]
    fn the_jobs_of_this_repository_need_no_models() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topologies = Topologies::read(&root).unwrap();
        let mut count = 0;
        for configuration in super::super::recipe::read(&root).unwrap().values() {
            let named = &configuration.jobs;
            assert!(named.is_empty() || configuration.boot.is_some());
            // A result's key has nothing of the models.
            let jobs = jobs(&root, &topologies, "x", named).unwrap();
            assert!(jobs.iter().all(|job| job.spec.machine == Kind::Counting));
            count += jobs.len();
        }
        assert!(count > 0);
    }

    #[test]
    fn failures_have_their_logs() {
        let passed = Outcome::passed("a", "x");
        let failed = Outcome::failed("a", "y", "no").with_log("L".to_owned());
        let skipped = Outcome::skipped("a", "z", "why");
        let all = [passed.clone(), failed, skipped, passed];
        let (passed, trouble) = judged(&all);
        assert_eq!(
            (passed, trouble.as_deref()),
            (2, Some("a: y: no\n(log: L)"))
        );
        assert_eq!(judged(&all[2..]), (1, None));
    }
}
