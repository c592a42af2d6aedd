//! A command with its settings. [`start`] has how a command begins and [`finish`] how it
//! ends. [`series`] and [`machines`] have the commands, and [`clean`] removes what they
//! leave. `make test` has its own file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Command, Options};
use host::paths::Paths;
use host::status::Verdict;
use host::ui::Ui;
use jobs::soak::Soak;
use kernel::compiler::Compiler;
use patches::mutants::Sample;

mod clean;
mod finish;
mod machines;
mod series;
mod start;

pub use finish::{aborted, broken, verdict};
pub use start::ON_DEMAND;

/// A command with its settings.
pub struct Run<'a> {
    /// The user's options.
    pub options: &'a Options,
    /// Shows progress.
    pub ui: &'a Ui,
    /// The directories.
    pub paths: &'a Paths,
    /// `QEMU=`
    pub qemu: Option<PathBuf>,
    /// `QEMU_ARGS=`
    pub qemu_args: Vec<String>,
    /// `KVM=1`
    pub kvm: bool,
    /// `LLVM=` and `CC=`
    pub compiler: Compiler,
    /// `FORCE=1`: ignore cached results.
    pub force: bool,
}

impl Run<'_> {
    /// Runs the command.
    pub fn command(&self, command: &Command) -> Result<Verdict> {
        match command {
            Command::Setup => self.setup()?,
            Command::Tree => self.tree()?,
            Command::Export => self.export()?,
            Command::Drift => return self.drift(),
            Command::Build(part) => return self.build_picked(&part.only()?),
            Command::Demo(part) => return self.demo(&part.only()?),
            Command::Test(options) => return self.test(options),
            Command::Mutants {
                part,
                generated,
                seed,
                minutes,
                list,
            } => {
                let only = part.only()?;
                let time = minutes.map(|minutes| Duration::from_secs(60 * minutes));
                let until = time.map(|time| Instant::now() + time);
                let sample = generated.map(|count| Sample {
                    count: count as usize,
                    seed: seed.unwrap_or(1),
                });
                match sample {
                    Some(sample) if *list => self.list_mutants(sample, &only)?,
                    sample => return self.mutants(sample, until, &only),
                }
            }
            Command::Coverage => return self.coverage(),
            Command::Bench(part) => return self.bench(&part.only()?),
            Command::Soak {
                part,
                minutes,
                seed,
            } => {
                let soak = Soak::new(*minutes, *seed)?;
                return self.soak(&soak, &part.only()?);
            }
            Command::Check(part) => return self.check(&part.only()?),
            Command::Bisect(part) => return self.bisect(&part.only()?),
            Command::HwTest { sysroot, perftest } => {
                return hw::run(self.paths, self.ui, sysroot, perftest);
            }
            Command::Doctor(_) => unreachable!("it was carried out without all this"),
            Command::Shell { only, debug } => {
                self.shell(only.as_deref().unwrap_or("switch"), *debug)?;
            }
            Command::Clean => self.clean()?,
        }
        Ok(Verdict::Passed)
    }
}
