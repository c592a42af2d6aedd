//! Tests a random sample of generated mutants ([`generate`](super::generate)) by the jobs of
//! qemu/mutants-generated.toml, and reports which share of them the tests notice.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::file::Mutant;
use super::generate::{Site, shuffled, sites};
use super::plant::Plant;
use super::record::{GENERATED, MutantOutcome, MutantResult, Record};
use super::score::Score;
use super::settings::{GeneratedConfig, MutantsConfig};
use super::{Mutants, NONE};
use crate::recorded;
use host::git::ask;
use host::paths::digest;
use host::status::Verdict;
use kernel::build::Builder;
use kernel::tree::Tree;
use plan::filter::Only;
use plan::job::{Plan, Spec};
use plan::topology::Topologies;

/// Where the diffs are written.
const DIFFS: &str = "mutants/generated";

/// How many are sorted by file, so that builds are short. A run that ends early has tested
/// whole batches, each of which is a sample.
const BATCH: usize = 25;

/// Which of the generated mutants are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How many mutants tests must judge. Those that do not compile, or that change no
    /// code, do not count.
    pub count: usize,
    /// What draws them.
    pub seed: u64,
}

/// All generated mutants, in the order in which they are drawn.
struct Drawn {
    sites: Vec<Site>,
    mutants: Vec<Mutant>,
}

impl Drawn {
    fn new(tree: &Tree, config: &GeneratedConfig, seed: u64, diffs: &Path) -> Result<Self> {
        let sites = shuffled(sites(tree, |file| config.takes(file))?, seed);
        let mutants = sites.iter().map(|site| site.mutant(diffs)).collect();
        Ok(Self { sites, mutants })
    }

    /// Fails if `only` names what was not drawn.
    fn check(&self, only: &Only) -> Result<()> {
        only.check(&Vec::from_iter(self.mutants.iter().map(|m| &m.name)))
    }

    /// The first `count`, and as many more as are in vain according to `known`.
    fn sample<'k>(
        &self,
        count: usize,
        known: impl Fn(&Mutant) -> Option<&'k MutantOutcome>,
    ) -> &[Mutant] {
        let mut left = count;
        let mut end = 0;
        for mutant in &self.mutants {
            if left == 0 {
                break;
            }
            end += 1;
            if known(mutant).is_none_or(MutantOutcome::is_judged) {
                left -= 1;
            }
        }
        &self.mutants[..end]
    }
}

/// What results depend on besides the mutant.
struct Keys {
    /// The kernel.
    kernel: String,
    /// The kernel and its tests.
    all: String,
}

impl Keys {
    /// A mutant stays caught when tests are added. One that survived is tested again.
    fn of(&self, mutant: &Mutant, end: &MutantOutcome) -> String {
        let base = match end {
            MutantOutcome::Survived => &self.all,
            _ => &self.kernel,
        };
        digest(format!("{base}\n{}", mutant.text).as_bytes())
    }
}

/// The sample as lines of text: names, places and changes.
pub fn list(root: &Path, tree: &Tree, sample: Sample, only: &Only) -> Result<String> {
    let config = GeneratedConfig::read(root)?;
    let drawn = Drawn::new(tree, &config, sample.seed, Path::new(""))?;
    drawn.check(only)?;
    let count = match only.all() {
        true => sample.count,
        false => drawn.sites.len(),
    };
    let mut text = String::new();
    let picked = drawn.sites.iter().take(count);
    for site in picked.filter(|site| only.picks(&site.name)) {
        let (line, becomes) = (site.line.trim(), site.change.becomes.trim());
        text.push_str(&format!(
            "{}\n    {}:{}: {}()\n    - {line}\n    + {becomes}\n",
            site.name, site.file, site.number, site.function
        ));
    }
    Ok(format!(
        "{text}{} of {}",
        count.min(drawn.sites.len()),
        drawn.sites.len()
    ))
}

impl Mutants<'_> {
    /// Tests a sample of generated mutants, or those that `only` names.
    pub fn generated(
        &self,
        sample: Sample,
        only: &Only,
        topologies: &Topologies,
    ) -> Result<Verdict> {
        let Builder {
            paths, ui, tree, ..
        } = *self.builder;
        let root = &paths.root;
        let (settings, config) = (MutantsConfig::read(root)?, GeneratedConfig::read(root)?);
        let plan = Plan::read(root)?;
        let diffs = paths.work.join(DIFFS);
        let drawn = Drawn::new(tree, &config, sample.seed, &diffs)?;
        drawn.check(only)?;
        let recorded = recorded::line(self.builder, self.booter.qemu)?;
        let machines = |jobs: &[String]| config.machines(jobs, &settings, &plan, topologies);
        let every = machines(&config.all_jobs())?;
        let keys = self.keys(&settings, &every, topologies)?;

        let mut record = Record::read(&paths.results(), &paths.recorded(), GENERATED)?;
        if self.force && only.all() {
            record = Record::default();
        }
        let by_name: BTreeMap<_, _> = drawn.mutants.iter().map(|m| (&m.name, m)).collect();
        record.keep(|known| {
            let mutant = by_name.get(&known.name);
            mutant.is_some_and(|mutant| known.key == keys.of(mutant, &known.end))
        });
        let write = |record: &mut Record| -> Result<Score> {
            let wanted = drawn.sample(sample.count, |m| record.end(&m.name));
            let score = Score::new(&config, &drawn.sites[..wanted.len()], sample.seed, record);
            record.write_with(&paths.results(), &recorded, &score, &score.page())?;
            Ok(score)
        };

        let suite = |mutant: &Mutant| machines(&config.jobs(&mutant.changes));
        let mut plant = None;
        loop {
            let mut batch = Vec::from_iter(match only.all() {
                true => drawn.sample(sample.count, |m| record.end(&m.name)).iter(),
                false => drawn.mutants.iter(),
            });
            batch.retain(|m| match only.all() {
                true => record.end(&m.name).is_none(),
                // What the user names is tested once more.
                false => plant.is_none() && only.picks(&m.name),
            });
            if batch.is_empty() || self.is_late() {
                break;
            }
            if only.all() {
                batch.truncate(BATCH);
            }
            batch.sort_by(|a, b| (&a.changes, &a.name).cmp(&(&b.changes, &b.name)));
            let plant = match &plant {
                Some(plant) => plant,
                None => {
                    let new = Plant::new(self, &settings.kernel, topologies, &suite)?;
                    let objects = Some(new.objects()?);
                    let new = Plant {
                        fail_fast: true,
                        objects,
                        ..new
                    };
                    if !record.knows(NONE, &keys.all) {
                        let known = new.without_defect(every.clone())?;
                        let key = keys.all.clone();
                        record.add(MutantResult { key, ..known });
                        write(&mut record)?;
                    }
                    &*plant.insert(new)
                }
            };
            write_diffs(&diffs, &batch)?;
            plant.all(&batch, |mutant, known| {
                ui.say(format!("{}: {}: {}", mutant.name, mutant.breaks, known.end));
                let key = keys.of(mutant, &known.end);
                record.add(MutantResult { key, ..known });
                write(&mut record).map(drop)
            })?;
            ui.say(write(&mut record)?.closing_line());
        }
        let score = write(&mut record)?;
        host::outln!("\n{}", score.page());
        Ok(match score.is_explained() {
            true => Verdict::Passed,
            false => Verdict::Failed,
        })
    }

    fn keys(&self, settings: &MutantsConfig, jobs: &[Spec], all: &Topologies) -> Result<Keys> {
        let tree = self.builder.tree;
        let diff = |of: &[&str]| {
            let range = ["diff", &tree.base, &tree.tip, "--"];
            ask(&tree.dir, &[&range, of].concat())
        };
        let code = diff(&[".", ":!Documentation", ":!tools"])?;
        let kernel = self.inputs(settings, &format!("{}\n{code}", tree.base), all)?;
        let mut tests = format!("{kernel}\n{}\n{jobs:?}", diff(&["tools"])?);
        for spec in jobs {
            for topology in &spec.topologies {
                tests.push_str(&format!("\n{:?}", all.get(topology)?));
            }
        }
        let all = digest(tests.as_bytes());
        Ok(Keys { kernel, all })
    }
}

fn write_diffs(dir: &Path, mutants: &[&Mutant]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    for mutant in mutants {
        let path: &PathBuf = &mutant.path;
        fs::write(path, &mutant.text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Mutant {
        Mutant {
            name: name.to_owned(),
            text: name.to_owned(),
            ..Mutant::default()
        }
    }

    #[test]
    fn a_name_that_was_not_drawn_is_an_error() {
        let drawn = Drawn {
            sites: Vec::new(),
            mutants: ["hmm-1", "hmm-2"].map(named).into(),
        };
        let check = |only| drawn.check(&Only::new(only).unwrap());
        check(None).unwrap();
        check(Some("hmm-*")).unwrap();
        assert!(check(Some("hmm-1,hmm-3")).is_err());
    }

    #[test]
    fn what_is_in_vain_is_replaced_by_the_next() {
        let drawn = Drawn {
            sites: Vec::new(),
            mutants: ["a", "b", "c", "d", "e"].map(named).into(),
        };
        let void = MutantOutcome::DoesNotBuild { why: String::new() };
        let sample = |count, known: &[(&str, &MutantOutcome)]| {
            let known = |mutant: &Mutant| {
                let found = known.iter().find(|(name, _)| *name == mutant.name);
                found.map(|(_, end)| *end)
            };
            drawn.sample(count, known).len()
        };
        let (survived, same) = (MutantOutcome::Survived, MutantOutcome::SameCode);
        assert_eq!(sample(2, &[]), 2);
        assert_eq!(sample(2, &[("a", &survived)]), 2);
        assert_eq!(sample(2, &[("a", &void)]), 3);
        assert_eq!(sample(2, &[("a", &void), ("c", &same)]), 4);
        // It does not matter to the sample how others ended.
        assert_eq!(sample(2, &[("a", &void), ("e", &same)]), 3);
        assert_eq!(sample(9, &[]), 5);
        assert_eq!(sample(5, &[("a", &void)]), 5);
    }

    #[test]
    fn new_tests_are_for_survivors() {
        let keys = |all: &str| Keys {
            kernel: "kernel".to_owned(),
            all: all.to_owned(),
        };
        let caught = MutantOutcome::Caught {
            by: vec!["t".to_owned()],
            as_expected: true,
        };
        let (before, after) = (keys("before"), keys("after"));
        let mutant = named("a");
        for end in [caught, MutantOutcome::SameCode] {
            assert_eq!(before.of(&mutant, &end), after.of(&mutant, &end));
            assert_ne!(before.of(&mutant, &end), before.of(&named("b"), &end));
        }
        let survived = MutantOutcome::Survived;
        assert_ne!(before.of(&mutant, &survived), after.of(&mutant, &survived));
    }
}
