//! A shell in a topology, for the bad day: the drivers' modules are in
//! `$P2PTEST_MODDIR` of build/run/shell/job.sh.

use std::time::Duration;

use anyhow::Result;

use crate::kernel::Built;
use crate::paths::Paths;
use crate::topology::Topology;
use crate::vm::{Boot, Booter};

/// Boots with a shell on this terminal.
pub fn run(booter: &Booter<'_>, paths: &Paths, topology: &Topology) -> Result<()> {
    let kernel = Built::at(paths, &topology.kernel);
    booter.ui.say(format!(
        "modules: {}\nselftests: {}\nleave with `poweroff -f` or Ctrl-A X",
        kernel.modules().display(),
        kernel.selftests("p2pdma").display()
    ));
    booter.shell(&Boot {
        name: "shell",
        kernel: &kernel,
        topology,
        append: &[],
        icount: None,
        coverage: false,
        job: String::new(),
        limit: Duration::MAX,
    })
}
