//! A shell in a machine for debugging, with a job's modules loaded. All modules are in
//! `$P2PTEST_MODDIR`.

use std::time::Duration;

use anyhow::Result;
use kernel::Built;
use machine::vm::{Boot, Booter};
use plan::job::Job;

use crate::run::{append, prepare};

/// Boots with a shell on this terminal. `debug`: gdb may attach, from another terminal.
pub fn shell(job: &Job<'_>, booter: &Booter<'_>, debug: bool) -> Result<()> {
    let paths = booter.paths;
    let boot = Boot {
        name: "shell",
        kernel: &Built::at(paths, &job.kernel),
        topology: job.topology,
        kind: job.spec.machine,
        models: job.spec.models(),
        append: &append(job, booter.machine),
        icount: job.spec.icount.as_deref(),
        cpus: job.spec.cpus,
        coverage: false,
        job: prepare(job, booter),
        limit: Duration::MAX,
    };
    booter.ui.say(format!(
        "modules: {}\nselftests: {}\nleave with `poweroff -f` or Ctrl-A X",
        boot.kernel.modules().display(),
        boot.kernel.selftests("p2pdma").display()
    ));
    if debug {
        let vng = booter.tools.vng_dir.join("vng");
        booter.ui.say(format!(
            "from another terminal: cd {} && {vng} --gdb\na crash dump: {vng} --dump FILE",
            boot.kernel.dir.display(),
            vng = vng.display(),
        ));
    }
    booter.shell(&boot, debug)
}
