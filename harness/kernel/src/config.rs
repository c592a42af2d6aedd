//! Kernel configurations: merges fragments, and compares the wanted options with what
//! Kconfig made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use host::git::ask;

/// Options and their values. `n` means "is not set".
pub type Options = BTreeMap<String, String>;

/// The options of one file of qemu/kernel/.
pub fn fragment(root: &Path, name: &str) -> Result<Options> {
    read(&root.join("qemu/kernel").join(format!("{name}.config")))
}

/// The options of a file.
pub fn read(file: &Path) -> Result<Options> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    parse(&text).with_context(|| file.display().to_string())
}

/// All options that a kernel wants. A later fragment overrides an earlier one.
pub fn wanted(root: &Path, fragments: &[String]) -> Result<Options> {
    let mut options = Options::new();
    for name in fragments {
        options.extend(fragment(root, name)?);
    }
    Ok(options)
}

/// The wanted options that exist in the tree at a commit. Later patches add others.
pub fn defined(tree: &Path, commit: &str, wanted: &Options) -> Result<Options> {
    let pattern = "^[[:space:]]*(menu)?config[[:space:]]+[A-Za-z0-9_]+";
    let args = ["grep", "-hoE", pattern, commit, "--", "*Kconfig*"];
    let there = ask(tree, &args)?;
    let there: BTreeSet<_> = there
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    Ok(wanted
        .iter()
        .filter(|(name, _)| there.contains(name.trim_start_matches("CONFIG_")))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect())
}

/// The options in Kconfig's syntax.
pub fn text(options: &Options) -> String {
    options
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect()
}

/// The options that Kconfig changed, each with Kconfig's value.
pub fn refused(wanted: &Options, config: &str) -> Result<Vec<String>> {
    let config = parse(config)?;
    Ok(wanted
        .iter()
        .filter_map(|(name, value)| {
            let is = config.get(name).map_or("n", String::as_str);
            (is != value).then(|| format!("{name}={value} (is {is})"))
        })
        .collect())
}

fn parse(text: &str) -> Result<Options> {
    let mut options = Options::new();
    for line in text.lines().map(str::trim) {
        let off = line
            .strip_prefix("# ")
            .and_then(|line| line.strip_suffix(" is not set"));
        let (name, value) = if let Some(name) = off {
            (name, "n")
        } else if line.is_empty() || line.starts_with('#') {
            continue;
        } else if let Some(option) = line.split_once('=') {
            option
        } else {
            bail!("not an option: {line}");
        };
        if !name.starts_with("CONFIG_") {
            bail!("not an option: {line}");
        }
        options.insert(name.to_owned(), value.to_owned());
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kconfig_drops_is_seen() {
        let wanted = parse("# why\nCONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=n\n");
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=y\n";
        let refused = refused(&wanted.unwrap(), config).unwrap();
        assert_eq!(refused, ["CONFIG_B=m (is n)", "CONFIG_C=n (is y)"]);
    }

    #[test]
    fn junk_is_an_error() {
        assert!(parse("CONFIG_A\n").is_err());
        assert!(parse("KASAN=y\n").is_err());
    }
}
