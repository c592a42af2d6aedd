//! Commands that examine each patch: export and drift, check, bisect, mutants, coverage.

use std::time::Instant;

use anyhow::{Result, bail};
use ktap::Status;

use super::Run;
use super::finish::forget;
use crate::cli::{about, selfcheck};
use host::status::Verdict;
use kernel::series::Series;
use kernel::tree;
use patches::bisect::{self, Bisect};
use patches::check::{self, Checker};
use patches::coverage::{self, Coverage};
use patches::mutants::{self, Mutants, Sample};
use patches::{export, recorded};
use plan::filter::Only;
use results::report::{Outcome, Report};

/// Checks of this repository that `make test` does not run.
const OF_REPOSITORY: [&str; 2] = [recorded::NAME, selfcheck::DENY];

/// Checks that cannot run on a single topic.
const NOT_OF_TOPICS: [&str; 7] = [
    "harness",
    "style",
    "drift",
    recorded::NAME,
    selfcheck::DENY,
    check::PROSE,
    check::TREES,
];

impl Run<'_> {
    pub fn export(&self) -> Result<()> {
        let tree = tree::open(self.paths)?;
        let series = Series::read(&self.paths.root)?;
        if !tree.found.patches.is_empty() {
            bail!(
                "the tree has these patches already, and no commits of them to write: {}.\n\
                 `make export` works in a tree with the whole series, or with nothing of it.",
                series.shortened(&tree.found.patches)
            );
        }
        let changes = export::write(&self.paths.root, &tree, &series)?;
        tree.remember(&Series::read(&self.paths.root)?)?;
        for change in &changes {
            self.ui.say(format!("wrote   {change}"));
        }
        if changes.is_empty() {
            self.ui.say("nothing to export: all of it is there");
        }
        Ok(())
    }

    pub fn drift(&self) -> Result<Verdict> {
        let outcome = selfcheck::drift(self.paths, &tree::ensure(self.paths, self.ui)?)?;
        match outcome.status {
            Status::Passed => self
                .ui
                .say("patches/, the tree and the mirrors are the same"),
            Status::Skipped => self.ui.say(format!("not compared: {}", outcome.reason)),
            Status::Failed => {
                host::outln!("{}", outcome.reason);
                return Ok(Verdict::Failed);
            }
        }
        Ok(Verdict::Passed)
    }

    pub fn check(&self, only: &Only) -> Result<Verdict> {
        let dir = self.paths.results().join("check");
        Report::put_aside(&dir);
        let series = Series::read(&self.paths.root)?;
        let folders = series.settings.folders();
        let names = check::QUICK.iter().chain(&check::BUILDING);
        let others = [&check::PROSE, &check::TREES];
        let of_repository = selfcheck::NAMES.iter().chain(&OF_REPOSITORY);
        let names = of_repository.chain(names).chain(others);
        let names = Vec::from_iter(names.copied());
        only.check(&[names.as_slice(), &folders].concat())?;
        let (topics, only) = only.split(&folders)?;
        if !topics.is_empty() {
            of_topics(&names, &only)?;
        }
        let start = Instant::now();
        let mut report = Report::default();
        let picked = Vec::from_iter(names.into_iter().filter(|name| only.picks(name)));
        let result = self.look(series, &topics, &picked, &mut report);
        let repeat = |outcome: &Outcome| {
            let words = topics.iter().chain([&outcome.suite]);
            format!(
                "make check ONLY={}",
                Vec::from_iter(words.cloned()).join(",")
            )
        };
        self.conclude(&mut report, &dir, start, result, repeat)
    }

    /// Runs these checks on the topics, or on the whole series if there are none.
    fn look(
        &self,
        series: Series,
        topics: &[String],
        names: &[&str],
        report: &mut Report,
    ) -> Result<()> {
        let (tools, tree) = self.tools_and_tree()?;
        let builder = self.builder(&tools, &tree, &self.compiler);
        report.of = about::facts(&builder, self.qemu.as_deref())?;
        let mut look = |tree: &tree::Tree, series: Series, left_out: &[&str]| {
            let builder = self.builder(&tools, tree, &self.compiler);
            let checker = Checker::new(self.paths, tree, series, self.force)?;
            for name in names.iter().filter(|name| !left_out.contains(name)) {
                let start = Instant::now();
                report.outcomes.extend(if check::QUICK.contains(name) {
                    checker.quick(self.ui, name)?.0
                } else if check::BUILDING.contains(name) {
                    checker.building(&builder, name)?
                } else if **name == *check::PROSE {
                    checker.prose(self.ui)?
                } else if **name == *check::TREES {
                    checker.trees(self.ui)?
                } else {
                    selfcheck::run(name, self.paths, self.ui, tree, self.force)?.0
                });
                // The times of several topics add up.
                let taken = report.seconds.entry((*name).to_owned()).or_default();
                *taken += start.elapsed().as_secs_f64();
            }
            anyhow::Ok(())
        };
        let picked = series.settings.picked(topics);
        for topic in &picked {
            let alone = tree.topic(&series, topic, self.ui)?;
            let what = "tree: one for single topics";
            let alone = alone.aside(self.paths, self.ui, "topic/linux", what)?;
            look(&alone, series.part(&[topic]), &NOT_OF_TOPICS)?;
        }
        if picked.is_empty() {
            look(&tree, series, &[])?;
        }
        Ok(())
    }

    pub fn bisect(&self, only: &Only) -> Result<Verdict> {
        let topologies = self.topologies()?;
        let series = Series::read(&self.paths.root)?;
        let (topics, only) = only.split(&series.settings.folders())?;
        let picked = series.settings.picked(&topics);
        // A topic takes hours, so names are checked for all of them before the first begins.
        for topic in &picked {
            let patches = series.part(&[topic]).patches.len();
            bisect::check(&self.paths.root, patches, &only)?;
        }
        if picked.is_empty() && !self.paths.tree().exists() {
            // A new tree will have these patches. An existing tree may have others.
            bisect::check(&self.paths.root, series.patches.len(), &only)?;
        }
        let (tools, tree) = self.tools_and_tree()?;
        let mut passed = true;
        let mut walk = |tree: &tree::Tree, scope: &str| {
            let bisect = Bisect {
                paths: self.paths,
                builder: &self.builder(&tools, tree, &self.compiler),
                booter: &self.booter(&tools, &topologies),
                topologies: &topologies,
                scope,
                force: self.force,
            };
            let mut rows = bisect.run(&only)?;
            let table = bisect::table(&rows);
            rows.retain(|row| only.picks(&row.name()));
            let failures = bisect.failures(&rows);
            host::outln!("\n{table}{failures}");
            host::outln!("table: {}", self.paths.short(&bisect.table_file()));
            passed &= rows.iter().all(bisect::StepResult::passed);
            anyhow::Ok(())
        };
        for topic in &picked {
            walk(&tree.topic(&series, topic, self.ui)?, &topic.folder)?;
        }
        if picked.is_empty() {
            walk(&tree, "")?;
        }
        Ok(if passed {
            Verdict::Passed
        } else {
            Verdict::Failed
        })
    }

    /// Tests a sample of generated mutants, or those of qemu/mutants.
    pub fn mutants(
        &self,
        sample: Option<Sample>,
        until: Option<Instant>,
        only: &Only,
    ) -> Result<Verdict> {
        let topologies = self.topologies()?;
        if sample.is_none() {
            mutants::check(&self.paths.root, only)?;
        }
        let (tools, tree) = self.tools_and_tree()?;
        let mutants = Mutants {
            builder: &self.builder(&tools, &tree, &self.compiler),
            booter: &self.booter(&tools, &topologies),
            force: self.force,
            until,
        };
        match sample {
            Some(sample) => mutants.generated(sample, only, &topologies),
            None => mutants.run(only, &topologies),
        }
    }

    pub fn list_mutants(&self, sample: Sample, only: &Only) -> Result<()> {
        let tree = tree::open(self.paths)?;
        host::outln!("{}", mutants::list(&self.paths.root, &tree, sample, only)?);
        Ok(())
    }

    pub fn coverage(&self) -> Result<Verdict> {
        let topologies = self.topologies()?;
        forget(&self.paths.results(), &coverage::RESULTS);
        let (tools, tree) = self.tools_and_tree()?;
        Coverage {
            builder: &self.builder(&tools, &tree, &self.compiler),
            booter: &self.booter(&tools, &topologies),
        }
        .run(&topologies)
    }
}

/// Fails if none of these checks can run on a topic.
fn of_topics(names: &[&str], only: &Only) -> Result<()> {
    let mut looks = names.iter().filter(|name| !NOT_OF_TOPICS.contains(name));
    if !looks.any(|name| only.picks(name)) {
        only.nothing("these checks are of all topics together")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::status::Usage;

    #[test]
    fn a_topic_wants_a_check_that_looks_at_it() {
        let names = ["style", "drift", "am", "docs"];
        let looks = |text| {
            let (topics, only) = Only::new(Some(text)).unwrap().split(&["07-rdma"]).unwrap();
            assert_eq!(topics, ["07-rdma"]);
            of_topics(&names, &only)
        };
        for text in [
            "07-rdma",
            "07-rdma,am",
            "07-rdma,drift,docs",
            "07-rdma,!drift",
        ] {
            looks(text).unwrap();
        }
        for text in ["07-rdma,drift", "07-rdma,!am,!docs"] {
            let error = looks(text).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some(), "{text}");
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("ONLY={text} picks nothing"))
            );
        }
    }
}
