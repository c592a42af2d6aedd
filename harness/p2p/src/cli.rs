//! The commands behind the Makefile's targets.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use host::paths::Paths;
use host::proc;
use host::status::{Usage, Verdict};
use host::ui::Ui;
use kernel::compiler::Compiler;
use plan::filter::Only;
use run::Run;
use variables::{flag, has_kvm, program, words};

mod about;
#[cfg(test)]
pub mod makefile;
mod run;
mod selfcheck;
mod test;
mod variables;

/// Builds the series, boots it in every topology, and judges the result.
#[derive(Parser)]
#[command(name = "p2p", version)]
struct Cli {
    #[command(flatten, next_help_heading = "Options of every command")]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Args)]
struct Options {
    /// The repository.
    #[arg(long, global = true, default_value = ".")]
    root: PathBuf,
    /// A kernel tree to base the series on (KDIR=).
    #[arg(long, global = true)]
    kdir: Option<PathBuf>,
    /// Where kernels are built (O=).
    #[arg(long, global = true)]
    output: Option<PathBuf>,
    /// The qemu-system-x86_64 to use (QEMU=).
    #[arg(long, global = true)]
    qemu: Option<PathBuf>,
    /// Added to QEMU's arguments in each machine, as a shell splits words (QEMU_ARGS=).
    #[arg(long, global = true, allow_hyphen_values = true)]
    qemu_args: Option<String>,
    /// Use KVM in machines whose clock does not count instructions (KVM=1).
    #[arg(long, global = true, value_name = "1", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "1")]
    kvm: Option<String>,
    /// The C compiler (CC=).
    #[arg(long, global = true)]
    cc: Option<String>,
    /// Compile with LLVM, as the kernel's make does (LLVM=).
    #[arg(long, global = true, allow_hyphen_values = true)]
    llvm: Option<String>,
    /// A file of options for each kernel; they win over its own (CONFIG=).
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Jobs at a time (J=).
    #[arg(long, global = true)]
    jobs: Option<usize>,
    /// Run again what is cached: checks, jobs, mutants, steps of bisect (FORCE=1).
    #[arg(long, global = true, value_name = "1", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "1")]
    force: Option<String>,
    /// Show every command (V=1).
    #[arg(long, global = true)]
    verbose: bool,
}

impl Options {
    fn compiler(&self) -> Compiler {
        Compiler {
            llvm: self.llvm.clone(),
            cc: self.cc.clone(),
            config: self.config.clone(),
        }
    }
}

/// Which part of a command is carried out.
#[derive(clap::Args)]
struct Part {
    /// Only these, with commas between; `*` and `?` are wildcards, `!` excludes (ONLY=).
    #[arg(long, value_name = "NAMES", allow_hyphen_values = true)]
    only: Option<String>,
}

impl Part {
    fn only(&self) -> Result<Only> {
        Only::new(self.only.as_deref())
    }
}

#[derive(Subcommand)]
enum Command {
    /// Get the programs and the base kernel.
    Setup,
    /// Make or update build/linux.
    Tree,
    /// Write patches/ and the mirrors.
    Export,
    /// Fail if patches/, the tree and the mirrors differ.
    Drift,
    /// Build kernels.
    Build(Part),
    /// Play every scenario; ends with a table.
    Demo(Part),
    /// Run everything; ends with the closing line.
    Test(test::Options),
    /// Plant defects; ends with a table of which test noticed which.
    Mutants {
        #[command(flatten)]
        part: Part,
        /// Not those of qemu/mutants: generate some, until tests have judged so many
        /// (GENERATED=).
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        generated: Option<u32>,
        /// The seed that draws the generated ones (SEED=); 1 by default.
        #[arg(long, requires = "generated")]
        seed: Option<u64>,
        /// Begin with no other mutant after so many minutes (MINUTES=).
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        minutes: Option<u64>,
        /// Only print the generated ones.
        #[arg(long, requires = "generated")]
        list: bool,
    },
    /// List the added lines that no test reaches, and why.
    Coverage,
    /// Count instructions, and judge what they come to.
    Bench(Part),
    /// Run the stress tests; ends with the closing line.
    Soak {
        #[command(flatten)]
        part: Part,
        /// Run for so many minutes, and not for a number of steps (MINUTES=).
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        minutes: Option<u64>,
        /// Repeat the random choices of this seed; each run has another by default (SEED=).
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Ask a maintainer's tools about the patches, all or a topic's; ends with the
    /// closing line.
    Check(Part),
    /// Build and boot after each patch, all or a topic's, in each configuration.
    Bisect(Part),
    /// Say what this host has and lacks, and test its GPU and NIC.
    HwTest {
        /// The host's files are below this folder; for the tool's own tests.
        #[arg(long, default_value = "/", hide = true)]
        sysroot: PathBuf,
        /// Options of perftest that put its buffer into the GPU (PERFTEST=).
        #[arg(long, default_value = hw::GPU_OPTIONS, allow_hyphen_values = true)]
        perftest: String,
    },
    /// Say for each pair of devices of this host why peer-to-peer DMA is off.
    #[command(after_help = doctor::cli::STATUS_HELP)]
    Doctor(doctor::cli::Options),
    /// A shell in the machine of a topology or of a job.
    Shell {
        /// A topology, or `job/topology` (ONLY=).
        #[arg(long)]
        only: Option<String>,
        /// Let gdb attach to the kernel, and write crash dumps of it.
        #[arg(long)]
        debug: bool,
    },
    /// Remove kernels and results.
    Clean,
}

/// Runs the command that the arguments name.
pub fn run() -> Result<Verdict> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => bail!(Usage(in_a_line(&error))),
        // The user asked for help or for the version.
        Err(help) => {
            host::out!("{help}");
            return Ok(Verdict::Passed);
        }
    };
    if let Command::Doctor(options) = &cli.command {
        // The doctor needs no repository, and has more exit statuses.
        std::process::exit(doctor::cli::run(options)?.into());
    }
    proc::watch_signals()?;
    let options = &cli.options;
    if options.jobs == Some(0) {
        bail!(Usage("J=0: at least one job at a time".into()));
    }
    let force = flag("FORCE", options.force.as_deref())?;
    let kvm = flag("KVM", options.kvm.as_deref())? && has_kvm(Path::new("/dev/kvm"))?;
    let qemu = options.qemu.as_deref().map(program).transpose()?;
    let compiler = options.compiler();
    compiler.check(&setup::search_dirs())?;
    let paths = Paths::new(
        &options.root,
        options.kdir.as_deref(),
        options.output.as_deref(),
    )?;
    // Listing needs no lock.
    let _lock = match &cli.command {
        Command::Test(options) if options.list => None,
        Command::Mutants { list: true, .. } => None,
        _ => Some(lock(&paths)?),
    };
    Run {
        options,
        ui: &Ui::new(options.verbose),
        paths: &paths,
        qemu,
        kvm,
        qemu_args: words("QEMU_ARGS", options.qemu_args.as_deref())?,
        compiler,
        force,
    }
    .command(&cli.command)
}

/// One line about a wrong or missing value, without the usage. Other errors are complete.
fn in_a_line(error: &clap::Error) -> String {
    use ErrorKind::{InvalidValue, MissingRequiredArgument, ValueValidation};

    let text = error.render().to_string();
    let about_a_value = [InvalidValue, MissingRequiredArgument, ValueValidation];
    match text.strip_prefix("error: ") {
        Some(rest) if about_a_value.contains(&error.kind()) => {
            let lines = rest.lines().take_while(|line| !line.is_empty());
            Vec::from_iter(lines.map(str::trim)).join(" ")
        }
        _ => text,
    }
}

/// Takes the lock: two runs in one repository would overwrite each other's work.
fn lock(paths: &Paths) -> Result<File> {
    let path = paths.build().join("lock");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("another make runs in this repository: wait for it"),
        Err(TryLockError::Error(error)) => Err(error).context(path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_soak_takes_is_a_number_of_minutes() {
        let soak = |arguments: &[&str]| {
            let all = [&["p2p", "soak"], arguments].concat();
            match Cli::try_parse_from(all).map(|cli| cli.command) {
                Ok(Command::Soak { minutes, seed, .. }) => Some((minutes, seed)),
                _ => None,
            }
        };
        assert_eq!(soak(&[]), Some((None, None)));
        let both = ["--minutes", "90", "--seed", "7"];
        assert_eq!(soak(&both), Some((Some(90), Some(7))));
        for minutes in ["0", "-1", "an hour"] {
            assert_eq!(soak(&["--minutes", minutes]), None);
        }
    }

    #[test]
    fn a_seed_is_of_generated_mutants() {
        let mutants = |arguments: &[&str]| {
            let all = [&["p2p", "mutants"], arguments].concat();
            match Cli::try_parse_from(all).map(|cli| cli.command) {
                Ok(Command::Mutants {
                    generated, seed, ..
                }) => Some((generated, seed)),
                _ => None,
            }
        };
        assert_eq!(mutants(&[]), Some((None, None)));
        let generated = ["--generated", "300"];
        assert_eq!(mutants(&generated), Some((Some(300), None)));
        let both = [&generated[..], &["--seed", "7"]].concat();
        assert_eq!(mutants(&both), Some((Some(300), Some(7))));
        for wrong in [&["--seed", "7"][..], &["--list"], &["--generated", "0"]] {
            assert_eq!(mutants(wrong), None);
        }
    }

    #[test]
    fn what_is_wrong_with_a_value_is_told_in_a_line() {
        let told = |arguments: &[&str]| {
            let error = Cli::try_parse_from(arguments).err().unwrap();
            in_a_line(&error)
        };
        let line = told(&["p2p", "--jobs", "x", "test"]);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.starts_with("invalid value 'x' for '--jobs"), "{line}");
        assert!(told(&["p2p", "test", "--bogus"]).contains("Usage: "));
        let line = told(&["p2p", "doctor", "--require", "x"]);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("[possible values: path, in-place]"), "{line}");
        let line = told(&["p2p", "mutants", "--seed", "7"]);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("--generated"), "{line}");
    }

    #[test]
    fn the_version_is_told() {
        let said = Cli::try_parse_from(["p2p", "--version"]).err().unwrap();
        assert!(!said.use_stderr());
        let version = format!("p2p {}", env!("CARGO_PKG_VERSION"));
        assert_eq!(said.to_string().trim(), version);
    }

    #[test]
    fn the_arguments_are_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
