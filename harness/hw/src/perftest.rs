//! Runs perftest on real hardware, with peer-to-peer DMA forbidden and allowed: the
//! kernel's counters, and the effect on speed.
//!
//! The NIC talks to itself. The server's buffer is in GPU memory. The GPU moves it back
//! all the time (`--gpu_touch=infinite`), so each fault of the NIC finds device private
//! pages, as in a job that uses both devices.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use doctor::capture::{POLICY, STATS};
use doctor::mlx5::Reads;
use serde::Serialize;

use super::checks::{Pair, chosen};
use super::sysroot::Host;
use host::proc::{background, interrupted, output, shown, tail};
use results::report::Outcome;

/// The measurements: program, column of its table, unit.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("ib_write_bw", "BW average", "MB/s"),
    ("ib_read_bw", "BW average", "MB/s"),
    ("ib_write_lat", "t_avg", "us"),
];

/// The policies in the order of the runs: before and after.
const POLICIES: [&str; 2] = ["never", "auto"];

/// Results of pages that were accessed in GPU memory.
const RESOLVED: [&str; 2] = ["bus_addr", "host_bridge"];

/// Makes perftest register memory without relaxed ordering. ib_write_lat always does that
/// and does not know the option. Neither does a perftest that was built without relaxed
/// ordering.
pub const STRICT: &str = "--disable_pcie_relaxed";

const PORT: u16 = 18515;
const START: Duration = Duration::from_secs(30);
const LIMIT: &str = "120";

/// The result of a program under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The program.
    pub program: String,
    /// The value of /sys/kernel/mm/hmm/p2p.
    pub policy: String,
    /// The figure. `None` if the program failed.
    pub figure: Option<f64>,
    /// Its unit.
    pub unit: String,
    /// The pages of this run, by result.
    pub pages: BTreeMap<String, u64>,
    /// The error, if there is one.
    pub error: Option<String>,
}

/// The original policy. Dropping it restores the policy, also after Ctrl-C.
pub struct Policy<'a> {
    host: &'a Host,
    before: String,
}

impl<'a> Policy<'a> {
    /// Saves the current policy.
    pub fn keep(host: &'a Host) -> Result<Self> {
        let text = host
            .read(POLICY)
            .with_context(|| format!("{POLICY} cannot be read"))?;
        let before = chosen(&text).with_context(|| format!("{POLICY}: {text:?}"))?;
        let policy = Self { host, before };
        // Fail now instead of during the tests if the file cannot be written.
        policy.set(&policy.before)?;
        Ok(policy)
    }

    /// Sets the policy.
    pub fn set(&self, choice: &str) -> Result<()> {
        fs::write(self.host.path(POLICY), choice)
            .with_context(|| format!("{POLICY} cannot be written (are you root?)"))
    }
}

impl Drop for Policy<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.set(&self.before) {
            host::errln!(
                "p2p: {error:#}; put it back: echo {} > {POLICY}",
                self.before
            );
        }
    }
}

/// Pages by result, since boot.
fn counters(host: &Host) -> BTreeMap<String, u64> {
    let names = host.list(STATS).into_iter();
    names
        .filter_map(|name| {
            let count = host.read(&format!("{STATS}/{name}"))?.parse().ok()?;
            Some((name, count))
        })
        .collect()
}

/// Runs all programs under both policies. Logs go to `dir`.
pub fn run(policy: &Policy<'_>, pair: &Pair, gpu: &[String], dir: &Path) -> Result<Vec<Measured>> {
    fs::create_dir_all(dir)?;
    let host = policy.host;
    let mut all = Vec::new();
    for choice in POLICIES {
        policy.set(choice)?;
        for (program, column, unit) in PROGRAMS {
            let before = counters(host);
            let result = one(host, pair, gpu, program, column, dir);
            if interrupted() {
                bail!("interrupted");
            }
            let mut pages = counters(host);
            for (name, count) in &mut pages {
                *count -= before.get(name).copied().unwrap_or_default().min(*count);
            }
            pages.retain(|_, count| *count > 0);
            let (figure, error) = match result {
                Ok(figure) => (Some(figure), None),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            all.push(Measured {
                program: program.to_owned(),
                policy: choice.to_owned(),
                figure,
                unit: unit.to_owned(),
                pages,
                error,
            });
        }
    }
    Ok(all)
}

/// Runs one program with its server.
fn one(
    host: &Host,
    pair: &Pair,
    gpu: &[String],
    program: &str,
    column: &str,
    dir: &Path,
) -> Result<f64> {
    let file = host
        .program(program)
        .with_context(|| format!("{program} is not there"))?;
    if listens(host, PORT) {
        bail!("somebody listens on TCP port {PORT}, which perftest uses");
    }
    let strict = pair.limit().is_some_and(Reads::only_strict)
        && host
            .output_of(program, &["--help"])
            .is_some_and(|help| help.contains(STRICT));
    let command = || {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT]).arg(&file);
        command.args([
            "-d",
            &pair.nic,
            "-i",
            &pair.port,
            "-p",
            &PORT.to_string(),
            "-F",
            "-s",
            "65536",
        ]);
        command.args(strict.then_some(STRICT));
        command
    };
    let log = dir.join(format!("{program}-server.log"));
    let mut server = command();
    server.arg("--odp").args(gpu);
    let mut running = background(&mut server, &log)?;
    let complaint = || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        format!("{}:\n{}", shown(&server), tail(&said, 15))
    };
    let start = Instant::now();
    while !listens(host, PORT) {
        if running.ended()?.is_some() {
            bail!("the server ended: {}", complaint());
        }
        if start.elapsed() > START {
            bail!("the server does not listen: {}", complaint());
        }
        thread::sleep(Duration::from_millis(50));
    }
    let mut client = command();
    client.arg("--odp").arg("localhost");
    let (status, out, err) = output(&mut client)?;
    fs::write(
        dir.join(format!("{program}-client.log")),
        format!("{out}{err}"),
    )?;
    if !status.success() {
        bail!(
            "{}:\n{}\n{}",
            shown(&client),
            tail(&format!("{out}{err}"), 15),
            complaint()
        );
    }
    figure(&out, column).with_context(|| format!("no {column:?} in:\n{}", tail(&out, 15)))
}

/// Whether a process listens on a local TCP port.
fn listens(host: &Host, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let text = host.read(file).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&suffix) && words.nth(1) == Some("0A")
        })
    })
}

/// The figure in a column of perftest's table.
fn figure(text: &str, column: &str) -> Option<f64> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim().starts_with("#bytes"));
    let heading = lines.next()?;
    // A heading contains single spaces: "BW peak[MB/sec]".
    let at = heading
        .split(']')
        .flat_map(|part| part.split("  "))
        .flat_map(|part| part.split('#'))
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .position(|part| part.starts_with(column))?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// Checks that do not depend on speed.
pub fn judge(measured: &[Measured], not_asked: Option<&str>) -> Vec<Outcome> {
    let not_asked = not_asked.map_or(String::new(), |why| {
        format!(", or mlx5 did not ask for pages of peers because {why}")
    });
    let mut outcomes = Vec::new();
    for m in measured {
        let suite = format!("hw/{}", m.policy);
        let resolved: u64 = RESOLVED.iter().filter_map(|name| m.pages.get(*name)).sum();
        let met: u64 = m.pages.values().sum();
        let trouble = if let Some(error) = &m.error {
            Some(error.clone())
        } else if met == 0 {
            Some(format!(
                "the NIC met no device private page: the buffer was not in the GPU{not_asked}"
            ))
        } else if m.policy == "never" && resolved > 0 {
            Some(format!(
                "{resolved} pages were reached in the GPU, which the policy forbids"
            ))
        } else if m.policy != "never" && resolved == 0 {
            Some(format!(
                "no page was reached in the GPU; pages by result: {:?}",
                m.pages
            ))
        } else {
            None
        };
        outcomes.push(Outcome::unless(&suite, &m.program, trouble));
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    const BW: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             11600.10            11500.20            0.184";
    const LAT: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 65536   1000          9.20           14.09        9.30               9.41           0.12            9.80                   14.09";

    #[test]
    fn figures_of_perftest() {
        assert_eq!(figure(BW, "BW average"), Some(11500.20));
        assert_eq!(figure(LAT, "t_avg"), Some(9.41));
        assert_eq!(figure("no table", "t_avg"), None);
        assert_eq!(figure(BW, "t_avg"), None);
    }

    fn measured(policy: &str, pages: &[(&str, u64)]) -> Measured {
        Measured {
            program: "ib_write_bw".into(),
            policy: policy.into(),
            figure: Some(1.0),
            unit: "MB/s".into(),
            pages: pages.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect(),
            error: None,
        }
    }

    #[test]
    fn counters_decide() {
        use ktap::Status::{Failed, Passed};
        let cases = [
            ("never", &[("policy", 9)][..], Passed),
            ("never", &[("policy", 9), ("bus_addr", 1)], Failed),
            ("never", &[], Failed),
            ("auto", &[("host_bridge", 9)], Passed),
            ("auto", &[("bus_addr", 9), ("no_alias", 3)], Passed),
            ("auto", &[("topology", 9)], Failed),
            ("auto", &[], Failed),
        ];
        for (policy, pages, status) in cases {
            let outcome = &judge(&[measured(policy, pages)], None)[0];
            assert_eq!(
                outcome.status, status,
                "{policy} {pages:?}: {}",
                outcome.reason
            );
        }
    }

    #[test]
    fn both_causes_of_no_page_are_named() {
        let none = [measured("auto", &[])];
        let why = &judge(&none, None)[0].reason;
        assert!(why.ends_with("the buffer was not in the GPU"), "{why}");
        let why = &judge(&none, Some("ACS redirects at 0000:02:01.0"))[0].reason;
        assert!(why.contains("the buffer was not in the GPU"), "{why}");
        assert!(why.contains("ACS redirects at 0000:02:01.0"), "{why}");
    }
}
