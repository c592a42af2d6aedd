//! Reads settings from TOML files in the repository. An error names the file, line and
//! column, and quotes the line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Error, Result};
use serde::de::DeserializeOwned;

/// Reads the settings in a file.
pub fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    parse(file, &text)
}

/// Parses the settings in the text of a file.
pub fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count()
            + 1;
        Error::new(error).context(format!("{}:{line}:{column}", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Job {
        #[serde(rename = "name")]
        _name: String,
    }

    #[derive(Debug, Deserialize)]
    struct Jobs {
        #[serde(rename = "job")]
        _jobs: Vec<Job>,
    }

    #[test]
    fn an_error_names_the_place() {
        let place = |text: &str| {
            let error = parse::<Jobs>(Path::new("qemu/tests.toml"), text).unwrap_err();
            format!("{error:#}")
        };
        parse::<Jobs>(Path::new("x"), "[[job]]\nname = 'a'\n").unwrap();
        let unknown = place("[[job]]\nname = 'ä'\n\n[[job]]\nname = 'b'\nlimt = 1\n");
        assert!(unknown.starts_with("qemu/tests.toml:6:1: "), "{unknown}");
        assert!(unknown.contains("unknown field `limt`"), "{unknown}");
        assert!(unknown.contains("6 | limt = 1"), "{unknown}");
        let wrong = place("[[job]]\nname = 7\n");
        assert!(wrong.starts_with("qemu/tests.toml:2:8: "), "{wrong}");
        let broken = place("[[job]\n");
        assert!(broken.starts_with("qemu/tests.toml:1:"), "{broken}");
        let error = read::<Jobs>(Path::new("/nowhere/x.toml")).unwrap_err();
        assert!(format!("{error:#}").starts_with("/nowhere/x.toml: "));
    }
}
