//! Selects the tests of `make test`.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::cli::run::ON_DEMAND;
use crate::cli::selfcheck;
use crate::cli::variables::flag;
use host::status::Usage;
use patches::check;
use plan::filter::Only;
use plan::job::{Job, Plan, Same};
use plan::kernels::Kernels;
use plan::shard::{Shard, Unit};
use results::durations::Durations;
use results::report::Report;

/// What the user gave.
#[derive(clap::Args)]
pub struct Options {
    /// Only these: `job/topology`, a job, a topology, or a check, with commas between; `*`
    /// and `?` are wildcards, `!` excludes (ONLY=).
    #[arg(long, value_name = "NAMES", allow_hyphen_values = true)]
    only: Option<String>,
    /// List what would be run, and run nothing (make list).
    #[arg(long)]
    pub list: bool,
    /// Run only what failed in the last run (FAILED=1).
    #[arg(long, value_name = "1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1")]
    failed: Option<String>,
    /// Run only this test of the jobs' programs, e.g. `odp.atomic` or `atomic` (TEST=).
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    test: Option<String>,
    /// Run everything so many times; stop at the first failure (REPEAT=).
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    repeat: Option<String>,
    /// Start nothing more after the first failure (FAIL_FAST=1).
    #[arg(long, value_name = "1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1")]
    fail_fast: Option<String>,
    /// Run a failed job up to so many times again; if it then passes, it is flaky (RETRIES=).
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    retries: Option<u32>,
    /// After so many minutes start nothing more and end builds; what is left is skipped
    /// (MINUTES=).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: Option<u32>,
    /// Print the results as KTAP, too (KTAP=1).
    #[arg(long, value_name = "1", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1")]
    ktap: Option<String>,
    /// Run one of so many parts, e.g. 1/4 (SHARD=).
    #[arg(long, value_name = "K/N", allow_hyphen_values = true)]
    shard: Option<String>,
}

/// The same options after validation.
pub struct Choice {
    only: Only,
    pub failed: bool,
    pub test: Option<String>,
    pub repeat: Option<u32>,
    pub shard: Option<Shard>,
    pub fail_fast: bool,
    pub retries: u32,
    pub minutes: Option<u32>,
    pub ktap: bool,
}

/// The assumed duration, in seconds, of a job or check that has not run yet, for shards.
const UNKNOWN: f64 = 60.0;

impl Choice {
    pub fn new(options: &Options) -> Result<Self> {
        let failed = flag("FAILED", options.failed.as_deref())?;
        let test = options.test.as_deref().map(one_test).transpose()?;
        if let (Some(test), None, false) = (&test, &options.only, failed) {
            bail!(Usage(format!(
                "TEST={test}: in which job? Name it as well: ONLY=job TEST={test}"
            )));
        }
        Ok(Self {
            only: Only::new(options.only.as_deref())?,
            failed,
            test,
            repeat: options.repeat.as_deref().map(count).transpose()?,
            fail_fast: flag("FAIL_FAST", options.fail_fast.as_deref())?,
            retries: options.retries.unwrap_or(0),
            minutes: options.minutes,
            ktap: flag("KTAP", options.ktap.as_deref())?,
            shard: options.shard.as_deref().map(Shard::new).transpose()?,
        })
    }

    /// Why a valid choice picks nothing.
    pub fn why_nothing(&self) -> &'static str {
        match self.shard {
            Some(_) => "nothing is left for this shard",
            None => "nothing that is picked failed in the last run",
        }
    }
}

fn one_test(name: &str) -> Result<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    if name.is_empty() || !name.chars().all(is_part) {
        bail!(Usage(format!(
            "TEST={name}: that is no name of a test, such as atomic or odp.atomic"
        )));
    }
    Ok(name.to_owned())
}

fn count(text: &str) -> Result<u32> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => bail!(Usage(format!(
            "REPEAT={text}: it is a number of rounds, 1 or more"
        ))),
    }
}

/// Selects from all tests.
pub struct Selection<'a> {
    pub choice: &'a Choice,
    pub kernels: &'a Kernels,
    pub plan: &'a Plan,
    pub jobs: &'a [Job<'a>],
    pub durations: &'a Durations,
}

impl Selection<'_> {
    /// All names that `ONLY=` accepts.
    pub fn all(&self) -> Vec<String> {
        let looks = selfcheck::NAMES.iter().chain(&check::QUICK);
        let looks = looks.copied().chain(self.kernels.tests());
        let jobs = self.jobs.iter().map(|job| job.name.as_str());
        looks.chain(jobs).map(str::to_owned).collect()
    }

    /// The picked names. `previous` returns the last run's results.
    pub fn names(&self, previous: impl FnOnce() -> Result<Report>) -> Result<BTreeSet<String>> {
        let Choice {
            only,
            failed,
            test,
            shard,
            ..
        } = self.choice;
        let mut names = self.all();
        only.check(&names)?;
        // Kernels that only jobs need are not names here.
        let kernels = self.kernels.picked(only);
        let is_kernel = |name: &str| self.kernels.is_test(name);
        names.retain(|name| match is_kernel(name) {
            true => kernels.contains(&name.as_str()),
            false => only.picks(name),
        });
        if names.is_empty() {
            only.nothing(ON_DEMAND)?;
        }
        if let Some(test) = test {
            let has_programs = |name: &String| {
                let mut jobs = self.jobs.iter();
                jobs.any(|job| job.name == *name && job.has_programs())
            };
            names.retain(has_programs);
            if names.is_empty() {
                bail!(Usage(format!(
                    "TEST={test}: no job that ONLY= picks has programs of the selftests"
                )));
            }
        }
        if *failed {
            let again = self.unfinished(previous)?;
            names.retain(|name| again.contains(name));
        }
        let Some(shard) = shard else {
            return Ok(names.into_iter().collect());
        };
        Ok(shard.picked(self.units(&names)))
    }

    /// The names that failed or are missing in the last run.
    fn unfinished(&self, previous: impl FnOnce() -> Result<Report>) -> Result<BTreeSet<String>> {
        let previous = previous().map_err(|error| {
            Usage(format!(
                "FAILED=1: there are no results of a last run ({error:#})"
            ))
        })?;
        let mut names: BTreeSet<String> = BTreeSet::new();
        for suite in previous.unfinished() {
            names.extend(suites(suite, &self.plan.same));
        }
        Ok(names)
    }

    /// The units of shards. Jobs whose results are compared stay together.
    fn units(&self, names: &[String]) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        for name in names {
            let job = self.jobs.iter().find(|job| job.name == *name);
            let needs = match job {
                Some(job) => job.needs(),
                None if self.kernels.is_test(name) => vec![name.as_str()],
                None => Vec::new(),
            };
            let same = self.plan.same.iter().find(|same| same.jobs.contains(name));
            let is_same = |unit: &Unit| {
                let mut others = unit.names.iter();
                same.is_some_and(|same| others.any(|other| same.jobs.contains(other)))
            };
            let at = units.iter().position(is_same);
            let at = at.unwrap_or_else(|| {
                units.push(Unit::default());
                units.len() - 1
            });
            let unit = &mut units[at];
            unit.names.push(name.clone());
            unit.kernels.extend(needs.into_iter().map(str::to_owned));
            unit.seconds += match self.kernels.is_test(name) {
                true => 0.0,
                false => self.durations.get(name).unwrap_or(UNKNOWN),
            };
        }
        units
    }
}

/// The names to give `ONLY=` for the results of a suite. For a comparison, its jobs.
pub fn suites(suite: &str, same: &[Same]) -> Vec<String> {
    let is_it = |same: &&Same| suite == same.suite();
    match same.iter().find(is_it) {
        Some(same) => same.jobs.to_vec(),
        None => vec![suite.to_owned()],
    }
}

#[cfg(test)]
mod tests;
