//! `make list`: the tests that would run, as a table.

use std::time::Duration;

use anyhow::Result;
use comfy_table::{Table, presets};

use super::choice::{Choice, Selection};
use crate::cli::run::Run;
use crate::cli::selfcheck;
use host::status::Verdict;
use host::ui::seconds;
use kernel::series::Series;
use kernel::tree;
use patches::check::{self, Checker};
use plan::job::{Job, Plan};
use plan::kernels::Kernels;
use results::cache::Cache;
use results::durations::Durations;
use results::report::Report;

impl Run<'_> {
    /// Prints the tests that would run.
    pub fn list(&self, choice: &Choice) -> Result<Verdict> {
        let root = &self.paths.root;
        let topologies = self.topologies()?;
        let kernels = Kernels::read(root)?;
        let plan = Plan::read(root)?;
        let mut jobs = plan.jobs(&topologies)?;
        let durations = Durations::read(&self.paths.results());
        let selection = Selection {
            choice,
            kernels: &kernels,
            plan: &plan,
            jobs: &jobs,
            durations: &durations,
        };
        let picked = selection.names(|| Report::previous(&self.paths.results()))?;
        if picked.is_empty() {
            host::outln!("{}", choice.why_nothing());
            return Ok(Verdict::Passed);
        }
        let all = selection.all();
        if let Some(test) = &choice.test {
            jobs.iter_mut().for_each(|job| job.pick_test(test));
        }
        let checks = self.cached_checks().unwrap_or_default();
        let tools = setup::places(self.paths);
        let booter = self.booter(&tools, &topologies);
        let is_cached = |job: &Job<'_>| -> Result<&str> {
            if job.boots_series(&kernels)? || choice.test.is_some() || choice.repeat.is_some() {
                return Ok("never");
            }
            let arch = job.topology.arch;
            let has_qemu = || setup::qemu::there(self.paths, arch, self.qemu.as_deref()).is_some();
            if job.is_parallel() && !has_qemu() {
                return Ok("no");
            }
            // Without its kernel, the job's key cannot be computed.
            let inputs = jobs::inputs(job, &booter).ok();
            let cache = Cache::new(self.paths, self.force);
            Ok(
                match inputs.is_some_and(|inputs| cache.has(&job.name, inputs)) {
                    true => "yes",
                    false => "no",
                },
            )
        };
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["name", "topology", "kernel", "runs", "cached", "last time"]);
        // In the order of the names for ONLY=: checks, kernels, jobs.
        for name in all.iter().filter(|name| picked.contains(*name)) {
            let last = durations.get(name).map(Duration::from_secs_f64);
            let last = last.map_or("-".to_owned(), seconds);
            let mut row = vec![name.clone()];
            if let Some(job) = jobs.iter().find(|job| job.name == *name) {
                let runs = job.runs().join(", ");
                row.extend([job.topology.name.clone(), job.needs().join(", "), runs]);
                row.push(is_cached(job)?.to_owned());
            } else if kernels.is_test(name) {
                row.extend(["-", name, "a build without a warning", "-"].map(str::to_owned));
            } else {
                let cached = match name.as_str() {
                    name if checks.contains(&name) => "yes",
                    name if check::QUICK.contains(&name) || selfcheck::CACHED.contains(&name) => {
                        "no"
                    }
                    _ => "never",
                };
                row.extend(["-", "-", "a check", cached].map(str::to_owned));
            }
            row.push(last);
            table.add_row(row);
        }
        host::outln!("{table}");
        Ok(Verdict::Passed)
    }

    /// The checks with cached results. Empty without a tree.
    fn cached_checks(&self) -> Result<Vec<&'static str>> {
        let tree = tree::open(self.paths)?;
        let series = Series::read(&self.paths.root)?;
        let mut names = selfcheck::cached(self.paths, &tree, self.force)?;
        names.extend(Checker::new(self.paths, &tree, series, self.force)?.cached()?);
        Ok(names)
    }
}
