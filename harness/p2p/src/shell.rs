//! A shell in a machine, for the bad day: of a topology with no module loaded, or of a
//! job of the plan with its modules. All modules are in `$P2PTEST_MODDIR`.

use anyhow::Result;

use crate::vm::{Boot, Booter};

/// Boots with a shell on this terminal.
pub fn run(booter: &Booter<'_>, boot: &Boot<'_>) -> Result<()> {
    booter.ui.say(format!(
        "modules: {}\nselftests: {}\nleave with `poweroff -f` or Ctrl-A X",
        boot.kernel.modules().display(),
        boot.kernel.selftests("p2pdma").display()
    ));
    booter.shell(boot)
}
