//! Runs the kernel's scripts/get_maintainer.pl on patches. Cover letters go to the people
//! that it names, and the check `maintainers` requires at least one.
//!
//! The script takes up to a second per patch, so answers are cached until patch, script or
//! MAINTAINERS change. Both users of this module run at the same time in a test run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use tempfile::NamedTempFile;

use host::git::ask;
use host::paths::digest;
use host::proc::capture;
use kernel::series::git_dir;
use kernel::tree::Tree;

/// The recipients of a mail.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recipients {
    to: BTreeSet<String>,
    cc: BTreeSet<String>,
}

impl Recipients {
    /// Parses the output of get_maintainer.pl: `Name <address> (maintainer:SECTION)`.
    /// Leaves out the maintainers of the rest of the kernel.
    pub fn add(&mut self, said: &str) {
        for line in said.lines() {
            let end = line.find("> (").map(|at| at + 1);
            let Some(end) = end.or_else(|| line.find(" (")) else {
                continue;
            };
            let (address, roles) = line.split_at(end);
            let roles = roles.trim_matches([' ', '(', ')']);
            let mut named = roles.split(',').filter_map(|role| role.split_once(':'));
            let is_list = roles
                .split(':')
                .next()
                .is_some_and(|role| role.ends_with("list"));
            if is_list {
                self.cc.insert(address.to_owned());
            } else if named
                .clone()
                .any(|(role, of)| role != "reviewer" && of != REST)
            {
                self.to.insert(address.to_owned());
            } else if named.any(|(role, _)| role == "reviewer") {
                self.cc.insert(address.to_owned());
            }
        }
    }

    /// Whether a maintainer is among them.
    pub fn has_maintainer(&self) -> bool {
        !self.to.is_empty()
    }

    /// The header lines of a mail.
    pub fn head(&self) -> String {
        let cc = &self.cc - &self.to;
        let mut head = String::new();
        for (field, addresses) in [("To", &self.to), ("Cc", &cc)] {
            let mut addresses = Vec::from_iter(addresses.iter().map(String::as_str));
            addresses.sort_by_key(|address| address.trim_start_matches('"').to_lowercase());
            if !addresses.is_empty() {
                head.push_str(&format!("{field}: {}\n", addresses.join(",\n    ")));
            }
        }
        head
    }
}

/// The section for files that have no other maintainer.
const REST: &str = "THE REST";

const SCRIPT: &str = "scripts/get_maintainer.pl";

/// The other files that the script reads.
const READ: [&str; 2] = [".mailmap", ".get_maintainer.ignore"];

/// Runs a tree's script with the MAINTAINERS of its last commit.
pub struct Directory<'a> {
    tree: &'a Tree,
    /// `None` if the tree has no script. Then there are no recipients.
    maintainers: Option<NamedTempFile>,
    /// A digest of everything that answers depend on besides the patch.
    digest: String,
    file: PathBuf,
    kept: BTreeMap<String, String>,
    used: BTreeMap<String, String>,
    _others_wait: MutexGuard<'static, ()>,
}

static ONE: Mutex<()> = Mutex::new(());

impl<'a> Directory<'a> {
    /// The directory of a tree.
    pub fn of(tree: &'a Tree) -> Result<Self> {
        let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = git_dir(&tree.dir)?;
        let file = dir.join("p2p-maintainers.json");
        // A cache that cannot be read counts as empty.
        let kept = fs::read(&file).ok();
        let kept = kept.and_then(|text| serde_json::from_slice(&text).ok());
        let mut known = Vec::new();
        let mut maintainers = None;
        if tree.dir.join(SCRIPT).is_file() {
            let object = format!("{}:MAINTAINERS", tree.tip);
            let list = ask(&tree.dir, &["cat-file", "blob", &object])?;
            known.extend(list.as_bytes());
            maintainers = Some(NamedTempFile::new_in(&dir)?);
            maintainers
                .as_mut()
                .map_or(Ok(()), |file| file.write_all(list.as_bytes()))?;
            for name in READ.iter().chain([&SCRIPT]) {
                known.extend(fs::read(tree.dir.join(name)).unwrap_or_default());
            }
        }
        Ok(Self {
            tree,
            maintainers,
            digest: digest(&known),
            file,
            kept: kept.unwrap_or_default(),
            used: BTreeMap::new(),
            _others_wait: guard,
        })
    }

    /// The script's output for a patch.
    pub fn ask(&mut self, patch: &str) -> Result<&str> {
        let key = digest(format!("{}{patch}", self.digest).as_bytes());
        let said = match (self.kept.remove(&key), &self.maintainers) {
            (Some(said), _) => said,
            (None, Some(maintainers)) => self.run(patch, maintainers)?,
            (None, None) => String::new(),
        };
        Ok(self.used.entry(key).or_insert(said))
    }

    fn run(&self, patch: &str, maintainers: &NamedTempFile) -> Result<String> {
        let mut file = NamedTempFile::new_in(git_dir(&self.tree.dir)?)?;
        file.write_all(patch.as_bytes())?;
        let mut command = Command::new("perl");
        command
            .current_dir(&self.tree.dir)
            .arg(SCRIPT)
            .arg("--mpath")
            .arg(maintainers.path())
            // The result must not depend on the git history, which not every tree has.
            .args(["--nogit", "--nogit-fallback", "--nofixes"])
            .arg(file.path())
            // It must not depend on the user's settings either.
            .env("HOME", "/nonexistent");
        capture(&mut command)
    }

    /// Saves the answers that were used.
    pub fn close(self) -> Result<()> {
        fs::write(&self.file, serde_json::to_string(&self.used)?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
\"Björn Roy Baron\" <b@example.org> (reviewer:RUST)
Ann (Annie) Other <a@example.org> (maintainer:PCI PEER-TO-PEER DMA (P2PDMA),reviewer:MISC)
Linus <l@example.org> (maintainer:THE REST)
mm@example.org (open list:MEMORY, AND MORE)
all@example.org (open list)
members@example.org (moderated list:DRM: X)
Odd <o@example.org> (odd fixer:OLD)
";

    #[test]
    fn maintainers_get_it_and_others_a_copy() {
        let mut recipients = Recipients::default();
        recipients.add(SAID);
        assert_eq!(
            recipients.head(),
            "To: Ann (Annie) Other <a@example.org>,\n    Odd <o@example.org>\n\
             Cc: all@example.org,\n    \"Björn Roy Baron\" <b@example.org>,\n    \
             members@example.org,\n    mm@example.org\n"
        );
        // A recipient in To: needs no copy.
        recipients.add("\"Björn Roy Baron\" <b@example.org> (maintainer:MISC)\n");
        let head = recipients.head();
        assert_eq!(head.matches("Björn").count(), 1, "{head}");
        assert!(head.find("Björn") < head.find("Cc:"), "{head}");
    }

    #[test]
    fn who_is_there_for_the_rest_is_nobody() {
        let is_somebody = |said: &str| {
            let mut recipients = Recipients::default();
            recipients.add(said);
            recipients.has_maintainer()
        };
        let rest = "Linus <l@example.org> (maintainer:THE REST)\nall@example.org (open list)\n";
        assert!(!is_somebody(rest));
        assert!(!is_somebody(""));
        assert!(is_somebody(&format!("A <a@b> (maintainer:HMM)\n{rest}")));
    }
}
