//! The stress tests (qemu/soak.toml), for any length of time.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use plan::job::{Job, Plan};
use plan::topology::Topologies;
use results::report::{Outcome, Report};

/// The user's choices.
pub struct Soak {
    minutes: Option<u64>,
    seed: u64,
}

impl Soak {
    /// `minutes` limits the time. Without it, the amount of work is fixed.
    pub fn new(minutes: Option<u64>, seed: Option<u64>) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self {
            minutes,
            seed: seed.unwrap_or(now.as_secs()),
        })
    }

    /// The jobs. Each gets the time and the seed.
    pub fn jobs<'t>(&self, root: &Path, topologies: &'t Topologies) -> Result<Vec<Job<'t>>> {
        let mut plan = Plan::read_file(root, "qemu/soak.toml")?;
        for spec in plan.specs() {
            let env = &mut spec.env;
            env.insert("P2P_STRESS_SEED".to_owned(), self.seed.to_string());
            // The machine has a limit of its own.
            env.insert("P2PTEST_TIMEOUT".to_owned(), "36000".to_owned());
            if let Some(minutes) = self.minutes {
                env.insert("P2P_STRESS_MINUTES".to_owned(), minutes.to_string());
                spec.limit += 60 * minutes;
            }
        }
        plan.jobs(topologies)
    }

    /// The command that repeats an outcome.
    pub fn repeat(&self, outcome: &Outcome) -> String {
        let minutes = self.minutes.map(|minutes| format!(" MINUTES={minutes}"));
        format!(
            "make soak ONLY={} SEED={}{}",
            outcome.suite,
            self.seed,
            minutes.unwrap_or_default()
        )
    }
}

/// The totals that the programs print.
pub fn totals(report: &Report) -> String {
    let mut text = String::new();
    for outcome in &report.outcomes {
        let said = outcome.log.iter().rev();
        let mut said = said.filter_map(|line| line.split_once("stress: "));
        if let Some((_, totals)) = said.next() {
            text.push_str(&format!("{}: {totals}\n", outcome.suite));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::filter::Only;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn each_job_knows_for_how_long_and_with_what_seed() {
        let topologies = Topologies::read(&root()).unwrap();
        let limits = |minutes| {
            let soak = Soak::new(minutes, Some(7)).unwrap();
            let jobs = soak.jobs(&root(), &topologies).unwrap();
            let limit = |job: &Job<'_>| {
                let spec = &job.spec;
                assert_eq!(spec.env["P2P_STRESS_SEED"], "7");
                let said = spec.env.get("P2P_STRESS_MINUTES");
                assert_eq!(said.cloned(), minutes.map(|n: u64| n.to_string()));
                (job.name.clone(), spec.limit)
            };
            jobs.iter().map(limit).collect::<Vec<_>>()
        };
        let (short, long) = (limits(None), limits(Some(20)));
        assert!(short.iter().any(|(name, _)| name == "stress/switch"));
        for ((name, short), (same, long)) in short.iter().zip(&long) {
            assert_eq!((name, short + 20 * 60), (same, *long));
        }
    }

    #[test]
    fn another_seed_each_time() {
        assert!(Soak::new(None, None).unwrap().seed > 1_700_000_000);
    }

    #[test]
    fn a_failure_is_repeated_with_its_seed() {
        let outcome = Outcome::failed("stress/switch", "all", "");
        let topologies = Topologies::read(&root()).unwrap();
        let jobs = Soak::new(None, None)
            .unwrap()
            .jobs(&root(), &topologies)
            .unwrap();
        let picks = |job: &Job<'_>| Only::new(Some("stress/switch")).unwrap().picks(&job.name);
        assert_eq!(jobs.iter().filter(|job| picks(job)).count(), 1);
        let command = |minutes| Soak::new(minutes, Some(7)).unwrap().repeat(&outcome);
        let short = "make soak ONLY=stress/switch SEED=7";
        assert_eq!(command(None), short);
        assert_eq!(command(Some(5)), format!("{short} MINUTES=5"));
    }

    #[test]
    fn the_last_that_a_program_says_are_its_totals() {
        let mut outcome = Outcome::passed("stress/switch", "all");
        let log = ["# stress: seed 7", "# stress: seed 7, 9 steps", "# OK"];
        outcome.log = log.map(str::to_owned).to_vec();
        let other = Outcome::passed("stress/switch", "a quiet kernel log");
        let outcomes = vec![outcome, other];
        let totals = totals(&Report::from(outcomes));
        assert_eq!(totals, "stress/switch: seed 7, 9 steps\n");
    }
}
