//! The command line.

use std::fs;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::host::Host;
use crate::known::Known;
use crate::picture::{LARGEST, Picture};
use crate::report::{DeviceReport, PairKind, Report, Works};
use crate::text::{self, Paper};
use crate::{capture, diagnose};

/// The exit statuses.
pub mod status {
    /// Every pair has what was asked for.
    pub const ALL: u8 = 0;
    /// Some pair does not have it.
    pub const NOT_ALL: u8 = 1;
    /// The host, or its dump, cannot be read.
    pub const CANNOT_READ: u8 = 2;
    /// No pair is known to lack it, but some pairs are unknown.
    pub const UNKNOWN: u8 = 3;
    /// There is no pair.
    pub const NO_PAIR: u8 = 4;
    /// Bad usage (EX_USAGE).
    pub const USAGE: u8 = 64;
}

/// For `--help`.
pub const STATUS_HELP: &str = "\
Exit status:
  0   each pair that was looked at has what --require asks for
  1   a pair has not
  2   the host or its dump cannot be read
  3   no pair is without, but of some it is not known (as root, more is known)
  4   there is no pair
  64  bad usage

It only reads, and changes nothing. As root it can read ACS settings; without, it says
what depends on them. What --dump writes has no serial numbers, network addresses or names
of hosts.";

/// Options.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Print the report as JSON; `schema` and `version` say in which form.
    #[arg(long)]
    pub json: bool,
    /// Write what was read of this host to a file, which --from reads elsewhere ("-": to
    /// standard output, in place of the report).
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// Look at the host that another one's --dump has written ("-": standard input).
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Look only at pairs of these kinds.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<PairKind>,
    /// Look only at pairs with this device: a PCI address, or an RDMA device's name.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// What the exit status is about.
    #[arg(long, value_enum, default_value = "path")]
    pub require: Require,
    /// The host's files are below this folder; for tests.
    #[arg(long, default_value = "/", hide = true)]
    pub sysroot: PathBuf,
}

/// What the exit status is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Require {
    /// A path for DMA from one device to the other.
    Path,
    /// Pages of the GPU's reached in place by the NIC, as the series does; other pairs do
    /// not count.
    InPlace,
}

/// Examines a host, prints the report, and returns the exit status.
pub fn run(options: &Options) -> Result<u8> {
    let known = Known::read()?;
    let picture = match &options.from {
        Some(file) => Picture::parse(&read(file)?).with_context(|| file.display().to_string())?,
        None => {
            let sysfs = options.sysroot.join("sys/bus");
            ensure!(
                sysfs.is_dir(),
                "{}: not there: is sysfs mounted?",
                sysfs.display()
            );
            capture::take(&options.sysroot, &known)
        }
    };
    if let Some(file) = &options.dump {
        let dump = picture.dump()?;
        if file == Path::new("-") {
            // A report on standard output would corrupt the dump.
            std::io::stdout().write_all(dump.as_bytes())?;
            return Ok(status::ALL);
        }
        fs::write(file, dump).with_context(|| file.display().to_string())?;
    }
    let host = Host::new(picture);
    let mut report = diagnose::diagnose(&host, &known);
    let names = Vec::from_iter(report.devices.iter().flat_map(DeviceReport::names).cloned());
    if let Some(name) = options.device.iter().find(|name| !names.contains(name)) {
        let there = names.join(", ");
        eprintln!("p2p-doctor: --device {name}: no such device; there are: {there}");
        return Ok(status::USAGE);
    }
    report.keep(&options.only, &options.device);
    let said = if options.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        text::render(&host, &report, paper())
    };
    // The reader may have closed the pipe: `| head`.
    let _ = std::io::stdout().write_all(said.as_bytes());
    Ok(verdict(&report, options.require))
}

/// The output's width and colours.
fn paper() -> Paper {
    let terminal = console::Term::stdout();
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.parse().ok());
    let width = columns.or(terminal.size_checked().map(|(_, columns)| columns));
    Paper {
        width: usize::from(width.unwrap_or(100)).clamp(40, 140),
        colour: terminal.is_term() && console::colors_enabled(),
    }
}

fn read(file: &Path) -> Result<String> {
    let mut reader: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let file_of = fs::File::open(file).with_context(|| file.display().to_string())?;
        Box::new(file_of)
    };
    let mut text = Vec::new();
    let count = (&mut reader).take(LARGEST + 1).read_to_end(&mut text);
    let count = count.with_context(|| file.display().to_string())?;
    ensure!(
        u64::try_from(count)? <= LARGEST,
        "{}: too large for a dump",
        file.display()
    );
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The exit status of a report.
pub fn verdict(report: &Report, require: Require) -> u8 {
    let all: Vec<_> = report
        .pairs
        .iter()
        .filter_map(|pair| match require {
            Require::Path => Some(pair.works),
            Require::InPlace => pair.in_place,
        })
        .collect();
    if all.is_empty() {
        status::NO_PAIR
    } else if all.contains(&Works::No) {
        status::NOT_ALL
    } else if all.contains(&Works::Unknown) {
        status::UNKNOWN
    } else {
        status::ALL
    }
}

impl Report {
    /// Keeps pairs of these kinds and with these devices. An empty list keeps all.
    fn keep(&mut self, kinds: &[PairKind], devices: &[String]) {
        let named: Vec<_> = self
            .devices
            .iter()
            .filter(|device| device.names().any(|name| devices.contains(name)))
            .map(|device| device.address.clone())
            .collect();
        self.pairs.retain(|pair| {
            (kinds.is_empty() || kinds.contains(&pair.kind))
                && (devices.is_empty()
                    || named.contains(&pair.provider)
                    || named.contains(&pair.client))
        });
        let names: Vec<_> = self
            .pairs
            .iter()
            .map(|pair| format!("{} {}", pair.provider, pair.client))
            .collect();
        if kinds.is_empty() && devices.is_empty() {
            return;
        }
        // Those of no pair are why there is none of a GPU and a NIC.
        let of_none = devices.is_empty() && kinds.contains(&PairKind::GpuNic);
        self.obstacles.retain_mut(|obstacle| {
            let keeps = of_none && obstacle.pairs.is_empty();
            obstacle.pairs.retain(|pair| names.contains(pair));
            keeps || !obstacle.pairs.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn report(dump: &str) -> Report {
        let host = Host::new(Picture::parse(dump).unwrap());
        diagnose::diagnose(&host, &Known::read().unwrap())
    }

    /// The options in `arguments`.
    fn options(arguments: &[&str]) -> Options {
        let command = Options::augment_args(clap::Command::new("p2p-doctor"));
        let all = ["p2p-doctor"].iter().chain(arguments);
        Options::from_arg_matches(&command.get_matches_from(all)).unwrap()
    }

    #[test]
    fn a_device_is_named_as_in_the_report() {
        let dump = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/switch.toml");
        let report = report(include_str!("../tests/hosts/switch.toml"));
        let nic = report.devices.iter().find(|d| !d.verbs.is_empty()).unwrap();
        let status = |name: &str| run(&options(&["--from", dump, "--device", name])).unwrap();
        for name in nic.names() {
            assert_eq!(status(name), status::ALL, "{name}");
        }
        for name in ["", "mlx5_9", nic.address.trim_start_matches("0000:")] {
            assert_eq!(status(name), status::USAGE, "{name:?}");
        }
    }

    #[test]
    fn pairs_of_a_gpu_and_a_nic_keep_the_reason_that_there_is_none() {
        let alone = || report(include_str!("../tests/hosts/h100-alone.toml"));
        let mut all = alone();
        all.keep(&[], &[]);
        assert!(!all.obstacles.is_empty());
        let mut asked = alone();
        asked.keep(&[PairKind::GpuNic], &[]);
        assert_eq!(asked.obstacles, all.obstacles);
        let mut other = alone();
        other.keep(&[PairKind::GpuGpu], &[]);
        assert!(other.obstacles.is_empty());
    }
}
