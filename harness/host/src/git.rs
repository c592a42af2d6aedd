//! Calls git so that the result depends on its input alone: the user's
//! configuration, identity and clock are left out.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::proc::capture;

/// Who commits; authors are those of the patches.
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
    // The tree may belong to somebody else, e.g. in a container.
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

/// What a git command prints, without the last newline.
pub fn ask(dir: &Path, args: &[&str]) -> Result<String> {
    Ok(capture(&mut git(dir, args))?.trim_end().to_owned())
}

/// The commit that the repository in `dir` is at. A directory that merely lies
/// in somebody else's repository has none.
pub fn head_of_repository(dir: &Path) -> Option<String> {
    let prefix = ask(dir, &["rev-parse", "--show-prefix"]).ok()?;
    prefix.is_empty().then(|| commit(dir, "HEAD")).flatten()
}

/// The commit that a name stands for, if it stands for one.
pub fn commit(dir: &Path, name: &str) -> Option<String> {
    let name = format!("{name}^{{commit}}");
    ask(dir, &["rev-parse", "--verify", "--quiet", &name]).ok()
}
