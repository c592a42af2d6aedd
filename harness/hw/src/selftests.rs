//! Builds the kernel's selftests of peer-to-peer DMA from the tree and runs them on the
//! host. One compares contents: it moves memory to the GPU, and the NIC writes and reads
//! it there. Another one measures how long that takes. Tests for the test devices of the
//! series skip here, with that reason. Tests of HMM need no hardware, but they need the
//! module test_hmm, which is loaded for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use doctor::rules::Verdict;

use super::checks::Pair;
use super::sysroot::Host;
use host::paths::Paths;
use host::proc::{interrupted, output, processors, tail};
use host::ui::{Step, Ui};
use results::report::Outcome;

const FOLDER: &str = "tools/testing/selftests";
const SUITE: &str = "hw/selftest";
const HMM: &str = "hmm-tests";
/// Compares contents, with any GPU and any NIC.
const CONTENTS: &str = "hmm_p2p_verbs_gpu_test";
/// Measures, with any GPU and any NIC.
const SPEED: &str = "hmm_p2p_verbs_speed_test";
const MODULE: &str = "test_hmm";
const LIMIT: &str = "900";

/// Builds and runs all selftests for a GPU and a NIC.
pub fn run(paths: &Paths, ui: &Ui, host: &Host, pair: &Pair) -> Result<Vec<Outcome>> {
    let trees = [Some(paths.tree()), paths.kdir.clone()];
    let tree = trees
        .into_iter()
        .flatten()
        .find(|tree| tree.join(FOLDER).join("p2pdma").is_dir());
    let Some(tree) = tree else {
        let why = "no kernel tree with the series: make tree, or KDIR=/path/to/linux";
        return Ok(vec![Outcome::skipped(SUITE, "all", why)]);
    };
    let step = ui.step("hw-test: selftests");
    let out = paths.build().join("run/hw");
    let built = Built { tree, out };
    let outcomes = match built.headers()? {
        Some(why) => vec![Outcome::failed(SUITE, "all", why)],
        None => {
            let mut outcomes = built.contents(&step, &environment(pair))?;
            outcomes.extend(built.p2pdma(&step)?);
            step.at(HMM);
            outcomes.extend(built.hmm(host)?);
            outcomes
        }
    };
    step.done(format!("{} tests", outcomes.len()));
    Ok(outcomes)
}

/// Environment variables that tell the selftests the devices and the path.
pub fn environment(pair: &Pair) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("P2PTEST_GPU", format!("{}@{}", pair.driver, pair.gpu)),
        ("P2P_VERBS_DEVICE", pair.nic.clone()),
        ("P2P_VERBS_PORT", pair.port.clone()),
    ];
    // The test registers memory without relaxed ordering.
    let is_asked = pair.reads.is_ok() && pair.limit().is_none_or(|reads| reads.strict);
    let path = match pair.verdict {
        Verdict::BusAddr if is_asked => "bus_addr",
        Verdict::ThruHostBridge if is_asked => "host_bridge",
        // The test then tries one page, and expects the same result for all other pages.
        _ => return environment,
    };
    environment.push(("P2PTEST_EXPECT", path.to_owned()));
    environment
}

/// The files that are built from a tree, below `out`.
struct Built {
    tree: PathBuf,
    out: PathBuf,
}

impl Built {
    /// Installs the kernel's headers. Returns the error, if there is one.
    fn headers(&self) -> Result<Option<String>> {
        let headers = self.out.join("headers");
        fs::create_dir_all(&headers)?;
        let mut make = Command::new("make");
        make.arg("-C")
            .arg(&self.tree)
            .arg(format!("O={}", headers.display()))
            .args(["-s", "headers_install"]);
        made(&mut make)
    }

    /// Builds a folder of selftests, or one program of it. Returns the error, if there is one.
    fn selftests(&self, folder: &str, to: &Path, program: Option<&Path>) -> Result<Option<String>> {
        fs::create_dir_all(to)?;
        let mut make = Command::new("make");
        make.arg("-C")
            .arg(self.tree.join(FOLDER).join(folder))
            .arg(format!("OUTPUT={}", to.display()))
            .arg(format!(
                "KHDR_INCLUDES=-isystem {}",
                self.out.join("headers/usr/include").display()
            ))
            .arg(format!("-j{}", processors()))
            .args(program);
        made(&mut make)
    }

    /// Tests the GPU alone, then the NIC's access to its memory, and how fast that is.
    fn contents(&self, step: &Step<'_>, environment: &[(&str, String)]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for (folder, name) in [
            ("gpu", "hmm_p2p_gpu_plugin_test"),
            ("verbs", CONTENTS),
            ("verbs", SPEED),
        ] {
            step.at(name);
            let programs = self.out.join(format!("selftests-{folder}"));
            let program = programs.join(name);
            let folder = format!("p2pdma/{folder}");
            outcomes.extend(match self.selftests(&folder, &programs, Some(&program))? {
                Some(why) => vec![Outcome::failed(SUITE, name, why)],
                None => self.outcomes(name, &program, &[], environment)?,
            });
        }
        Ok(outcomes)
    }

    fn p2pdma(&self, step: &Step<'_>) -> Result<Vec<Outcome>> {
        let programs = self.out.join("selftests");
        if let Some(why) = self.selftests("p2pdma", &programs, None)? {
            return Ok(vec![Outcome::failed(SUITE, "p2pdma", why)]);
        }
        let mut names: Vec<_> = fs::read_dir(&programs)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .filter(|name| name.ends_with("_test"))
            .collect();
        names.sort();
        let mut outcomes = Vec::new();
        for name in names {
            step.at(&name);
            outcomes.extend(self.outcomes(&name, &programs.join(&name), &[], &[])?);
        }
        Ok(outcomes)
    }

    /// Runs the tests that the series adds to the selftests of HMM.
    fn hmm(&self, host: &Host) -> Result<Vec<Outcome>> {
        let module = Module::load(host);
        if let Err(why) = &module
            && !interrupted()
        {
            return Ok(vec![Outcome::skipped(SUITE, HMM, format!("{why:#}"))]);
        }
        let _taken_out_later = module?;
        let programs = self.out.join("selftests-mm");
        let program = programs.join(HMM);
        if let Some(why) = self.selftests("mm", &programs, Some(&program))? {
            return Ok(vec![Outcome::failed(SUITE, HMM, why)]);
        }
        let fixtures = ["-f", "hmm_p2p", "-f", "hmm_p2p_refused"];
        self.outcomes(HMM, &program, &fixtures, &[])
    }

    /// Runs a program and returns its outcomes.
    fn outcomes(
        &self,
        name: &str,
        program: &Path,
        args: &[&str],
        environment: &[(&str, String)],
    ) -> Result<Vec<Outcome>> {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", LIMIT])
            .arg(program)
            .args(args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.out);
        let (status, said, err) = output(&mut command)?;
        let log = self.out.join(format!("{name}.log"));
        fs::write(&log, format!("{said}{err}")).with_context(|| log.display().to_string())?;
        let cases = ktap::parse(&said);
        let failed = cases.iter().any(|case| case.status == ktap::Status::Failed);
        let mut outcomes: Vec<_> = cases
            .into_iter()
            .map(|case| Outcome::from_ktap(SUITE, name, case))
            .collect();
        // Status 4: everything was skipped.
        if !failed && !matches!(status.code(), Some(0 | 4)) {
            let why = format!("{status}:\n{}", tail(&(said + &err), 10));
            outcomes.push(Outcome::failed(SUITE, name, why));
        }
        Ok(outcomes)
    }
}

/// Runs make. Returns the error, if there is one.
fn made(make: &mut Command) -> Result<Option<String>> {
    let (status, said, err) = output(make)?;
    Ok((!status.success()).then(|| format!("cannot be built:\n{}", tail(&(said + &err), 15))))
}

/// The loaded test_hmm. Dropping it unloads the module, also after Ctrl-C, unless it was
/// loaded before.
struct Module {
    /// modprobe, if the module must be unloaded.
    loaded_by: Option<PathBuf>,
}

impl Module {
    fn load(host: &Host) -> Result<Self> {
        if host.path(&format!("/sys/module/{MODULE}")).is_dir() {
            return Ok(Self { loaded_by: None });
        }
        let modprobe = host
            .program("modprobe")
            .context("modprobe is not there: install kmod")?;
        let (status, _, err) = output(Command::new(&modprobe).arg(MODULE))?;
        if !status.success() {
            bail!(
                "{MODULE} cannot be loaded: build the kernel with CONFIG_TEST_HMM=m\n{}",
                err.trim()
            );
        }
        Ok(Self {
            loaded_by: Some(modprobe),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let Some(modprobe) = &self.loaded_by else {
            return;
        };
        // output() starts no program after Ctrl-C, so do not use it here.
        let status = Command::new(modprobe).args(["-r", MODULE]).status();
        if !status.is_ok_and(|status| status.success()) {
            host::errln!("p2p: {MODULE} is still loaded; take it out: modprobe -r {MODULE}");
        }
    }
}
