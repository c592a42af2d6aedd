//! The kernel's selftests of peer-to-peer DMA, built from the tree and run on
//! the host. Those that need the test devices of the series skip, and say so.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::proc::{output, tail};
use crate::report::Outcome;
use crate::setup::processors;
use crate::ui::Ui;

const FOLDER: &str = "tools/testing/selftests/p2pdma";
const LIMIT: &str = "900";

/// Builds and runs all of them.
pub fn run(paths: &Paths, ui: &Ui) -> Result<Vec<Outcome>> {
    let suite = "hw/selftest";
    let trees = [Some(paths.tree()), paths.kdir.clone()];
    let tree = trees
        .into_iter()
        .flatten()
        .find(|tree| tree.join(FOLDER).is_dir());
    let Some(tree) = tree else {
        let why = "no kernel tree with the series: make tree, or KDIR=/path/to/linux";
        return Ok(vec![Outcome::skipped(suite, "all", why)]);
    };
    let step = ui.step("hw-test: selftests");
    let out = paths.build().join("run/hw");
    let programs = out.join("selftests");
    fs::create_dir_all(&programs)?;
    let mut headers = Command::new("make");
    headers
        .arg("-C")
        .arg(&tree)
        .arg(format!("O={}", out.join("headers").display()))
        .args(["-s", "headers_install"]);
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(tree.join(FOLDER))
        .arg(format!("OUTPUT={}", programs.display()))
        .arg(format!(
            "KHDR_INCLUDES=-isystem {}",
            out.join("headers/usr/include").display()
        ))
        .arg(format!("-j{}", processors()));
    for mut command in [headers, make] {
        let (status, said, err) = output(&mut command)?;
        if !status.success() {
            let why = format!("they cannot be built:\n{}", tail(&(said + &err), 15));
            return Ok(vec![Outcome::failed(suite, "all", why)]);
        }
    }
    let mut names: Vec<_> = fs::read_dir(&programs)?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.ends_with("_test"))
        .collect();
    names.sort();
    let mut outcomes = Vec::new();
    for name in names {
        step.at(&name);
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", LIMIT])
            .arg(programs.join(&name))
            .current_dir(&out);
        let (status, said, err) = output(&mut command)?;
        let log = out.join(format!("{name}.log"));
        fs::write(&log, format!("{said}{err}")).with_context(|| log.display().to_string())?;
        let cases = ktap::parse(&said);
        let failed = cases.iter().any(|case| case.status == ktap::Status::Failed);
        outcomes.extend(
            cases
                .into_iter()
                .map(|case| Outcome::from_ktap(suite, &name, case)),
        );
        // 4: everything was skipped.
        if !failed && !matches!(status.code(), Some(0 | 4)) {
            let why = format!("{status}:\n{}", tail(&(said + &err), 10));
            outcomes.push(Outcome::failed(suite, &name, why));
        }
    }
    step.done(format!("{} tests", outcomes.len()));
    Ok(outcomes)
}
