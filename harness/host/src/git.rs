//! Runs git so that the result depends only on the input. The user's configuration,
//! identity and clock have no effect.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::proc::capture;

/// The committer. Commits keep the authors of the patches.
const COMMITTER: &str = "p2p";
const COMMITTER_EMAIL: &str = "p2p@localhost";

/// A git command in `dir`.
pub fn git(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(dir)
        .args(args)
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_COMMITTER_NAME", COMMITTER)
        .env("GIT_COMMITTER_EMAIL", COMMITTER_EMAIL)
        .env("LC_ALL", "C");
    // The tree may belong to another user, e.g. in a container.
    let settings = [
        ("safe.directory", "*"),
        ("core.abbrev", "12"),
        ("core.quotePath", "false"),
        ("gc.auto", "0"),
        ("advice.detachedHead", "false"),
    ];
    command.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (number, (key, value)) in settings.iter().enumerate() {
        command
            .env(format!("GIT_CONFIG_KEY_{number}"), key)
            .env(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    command
}

/// The output of a git command, without the last newline.
pub fn ask(dir: &Path, args: &[&str]) -> Result<String> {
    Ok(capture(&mut git(dir, args))?.trim_end().to_owned())
}

/// The commit that the repository in `dir` is at. `None` if `dir` is only a subdirectory
/// of another repository.
pub fn head_of_repository(dir: &Path) -> Option<String> {
    let prefix = ask(dir, &["rev-parse", "--show-prefix"]).ok()?;
    prefix.is_empty().then(|| commit(dir, "HEAD")).flatten()
}

/// The commit that a name refers to, if there is one.
pub fn commit(dir: &Path, name: &str) -> Option<String> {
    let name = format!("{name}^{{commit}}");
    ask(dir, &["rev-parse", "--verify", "--quiet", &name]).ok()
}
