//! `ONLY=`: picks jobs, kernels and checks by name.

use anyhow::{Result, bail};
use glob::{MatchOptions, Pattern};

use host::status::Usage;

/// Comma-separated names: a job, a topology, or `job/topology`. A name may have wildcards.
/// A `!` before it excludes what it matches.
pub struct Only {
    text: String,
    words: Vec<Word>,
}

#[derive(Clone)]
struct Word {
    text: String,
    /// It begins with `!`.
    excludes: bool,
    /// Set if it has wildcards.
    pattern: Option<Pattern>,
}

/// How many names an error proposes, and how similar they must be.
const PROPOSED: usize = 5;
const LIKE: f64 = 0.8;

impl Only {
    /// `None` picks everything.
    pub fn new(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else {
            return Ok(Self {
                text: String::new(),
                words: Vec::new(),
            });
        };
        let words = text.split(',').map(str::trim);
        let words = words.filter(|word| !word.is_empty()).map(Word::new);
        let words = words.collect::<Result<Vec<_>>>()?;
        if words.is_empty() {
            bail!(Usage(
                "ONLY= is empty: name what to run, or leave ONLY= out to run everything".into()
            ));
        }
        Ok(Self {
            text: text.to_owned(),
            words,
        })
    }

    /// Takes out the words that match any of `names`. Returns the picked names and the
    /// remaining words.
    pub fn split(&self, names: &[&str]) -> Result<(Vec<String>, Self)> {
        let words = self.words.iter().cloned();
        let (about, rest): (Vec<_>, Vec<_>) =
            words.partition(|word| names.iter().any(|name| word.matches(name)));
        let about = self.with(about);
        if !about.all() && !about.has_names() {
            bail!(Usage(format!(
                "ONLY={}: nothing is named that this could be excluded from",
                about.words[0].shown()
            )));
        }
        let picked = names
            .iter()
            .filter(|name| !about.all() && about.picks(name));
        let picked = Vec::from_iter(picked.map(|&name| name.to_owned()));
        Ok((picked, self.with(rest)))
    }

    fn with(&self, words: Vec<Word>) -> Self {
        Self {
            text: self.text.clone(),
            words,
        }
    }

    /// Whether everything is picked.
    pub fn all(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether a word picks something. Words with `!` only exclude.
    fn has_names(&self) -> bool {
        self.words.iter().any(|word| !word.excludes)
    }

    /// Whether a name is picked: `job/topology`, or a name without a slash.
    pub fn picks(&self, name: &str) -> bool {
        let has = |excludes| {
            let mut words = self.words.iter().filter(|word| word.excludes == excludes);
            words.any(|word| word.matches(name))
        };
        (!self.has_names() || has(false)) && !has(true)
    }

    /// Whether a word without wildcards picks it.
    pub fn picks_by_name(&self, name: &str) -> bool {
        let is_name = |word: &&Word| !word.excludes && word.pattern.is_none();
        let mut names = self.words.iter().filter(is_name);
        names.any(|word| word.matches(name)) && self.picks(name)
    }

    /// Fails if a word matches none of these names, or if every name is excluded.
    pub fn check<S: AsRef<str>>(&self, names: &[S]) -> Result<()> {
        let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
        for word in &self.words {
            if !names.iter().any(|name| word.matches(name)) {
                let does = if word.excludes { "excludes" } else { "picks" };
                let near = near(&word.text, &names);
                let there = match near.is_empty() {
                    true => format!("there are: {}", the_first(&names)),
                    false => format!("did you mean {}?", near.join(", ")),
                };
                bail!(Usage(format!(
                    "ONLY={} {does} nothing; {there}",
                    word.shown()
                )));
            }
        }
        if !names.iter().any(|name| self.picks(name)) {
            return self.nothing("all that it names is excluded again");
        }
        Ok(())
    }

    /// The error if nothing is picked.
    pub fn nothing(&self, why: &str) -> Result<()> {
        bail!(Usage(format!("ONLY={} picks nothing: {why}", self.text)))
    }
}

/// The names, or the first of them if there are many.
fn the_first(names: &[&str]) -> String {
    const MANY: usize = 40;

    match names.len().checked_sub(MANY) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{}, and {more} more", names[..MANY].join(", ")),
    }
}

impl Word {
    fn new(word: &str) -> Result<Self> {
        let (excludes, text) = match word.strip_prefix('!') {
            Some(text) => (true, text.trim()),
            None => (false, word),
        };
        if text.is_empty() {
            bail!(Usage(format!("ONLY={word}: there is no name after the !")));
        }
        let pattern = if text.contains(['*', '?', '[']) {
            let pattern = Pattern::new(text);
            Some(pattern.map_err(|error| Usage(format!("ONLY={word}: {}", error.msg)))?)
        } else {
            None
        };
        Ok(Self {
            text: text.to_owned(),
            excludes,
            pattern,
        })
    }

    /// The word as the user wrote it.
    fn shown(&self) -> String {
        let not = if self.excludes { "!" } else { "" };
        format!("{not}{}", self.text)
    }

    /// A word with a slash matches the whole name. Another word matches a part of it.
    fn matches(&self, name: &str) -> bool {
        let options = MatchOptions {
            require_literal_separator: true,
            ..MatchOptions::default()
        };
        let is = |name: &str| match &self.pattern {
            Some(pattern) => pattern.matches_with(name, options),
            None => self.text == name,
        };
        is(name) || (!self.text.contains('/') && name.split('/').any(is))
    }
}

/// Names, and parts of names, that are similar to `word`. The most similar comes first.
fn near<'a>(word: &str, names: &[&'a str]) -> Vec<&'a str> {
    let word = word.replace(['*', '?', '[', ']'], "").to_lowercase();
    let mut found: Vec<(f64, &str)> = Vec::new();
    let parts = names.iter().flat_map(|name| name.split('/'));
    for name in names.iter().copied().chain(parts) {
        let like = strsim::jaro_winkler(&word, name);
        // A part of the name counts as well: `register` of `debug-register`.
        let is_in = word.len() > 2 && name.contains(&word);
        if (like >= LIKE || is_in) && found.iter().all(|(_, other)| *other != name) {
            found.push((like, name));
        }
    }
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    found.truncate(PROPOSED);
    found.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] = [
        "demo/switch",
        "selftest/switch",
        "selftest/iommu",
        "mlx5/switch",
        "mlx5-debug/switch",
        "mlx5-built-in",
        "drift",
    ];

    fn picked(text: &str) -> Vec<&'static str> {
        let only = Only::new(Some(text)).unwrap();
        only.check(&NAMES).unwrap();
        NAMES.into_iter().filter(|name| only.picks(name)).collect()
    }

    fn error(text: &str) -> String {
        let only = Only::new(Some(text));
        let error = only.and_then(|only| only.check(&NAMES)).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some(), "{error}");
        let text = error.to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    #[test]
    fn names_and_parts_of_names() {
        let all = Only::new(None).unwrap();
        assert!(all.all() && NAMES.iter().all(|name| all.picks(name)));
        assert_eq!(picked("switch").len(), 4);
        assert_eq!(picked("selftest"), ["selftest/switch", "selftest/iommu"]);
        assert_eq!(picked("selftest/iommu"), ["selftest/iommu"]);
        assert_eq!(picked("drift, demo,"), ["demo/switch", "drift"]);
    }

    #[test]
    fn wildcards_and_exclusion() {
        let mlx5 = ["mlx5/switch", "mlx5-debug/switch"];
        assert_eq!(picked("mlx5*/switch"), mlx5);
        assert_eq!(picked("mlx5*/switch,!*-debug/*"), ["mlx5/switch"]);
        assert_eq!(picked("mlx5*").len(), 3);
        assert_eq!(picked("*"), NAMES);
        assert_eq!(picked("mlx?/[a-s]*"), ["mlx5/switch"]);
        assert_eq!(
            picked("!switch"),
            ["selftest/iommu", "mlx5-built-in", "drift"]
        );
        assert_eq!(
            picked("!mlx5*,self*"),
            ["selftest/switch", "selftest/iommu"]
        );
        // A wildcard does not match a slash.
        assert!(error("mlx5*switch").contains("picks nothing"));
    }

    #[test]
    fn what_matches_nothing_is_an_error() {
        assert!(error("it").starts_with("ONLY=it picks nothing; there are: demo/switch, "));
        for empty in ["", ",", " , "] {
            assert!(error(empty).starts_with("ONLY= is empty"));
        }
        assert!(error("!").contains("no name after the !"));
        assert!(error("[a").starts_with("ONLY=[a: "), "{}", error("[a"));
        assert!(error("drift,!swich").starts_with("ONLY=!swich excludes nothing; "));
        assert_eq!(
            error("drift,!drift"),
            "ONLY=drift,!drift picks nothing: all that it names is excluded again"
        );
        assert!(error("!*").contains("excluded again"));
    }

    #[test]
    fn an_error_does_not_list_thousands_of_names() {
        let names = Vec::from_iter((1..=3000).map(|number| format!("default/{number}")));
        let error = Only::new(Some("zzz")).unwrap().check(&names).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("default/40, and 2960 more"), "{text}");
    }

    #[test]
    fn an_error_names_what_is_near() {
        assert_eq!(
            error("swich"),
            "ONLY=swich picks nothing; did you mean switch?"
        );
        assert!(error("selftset/swich").contains("did you mean selftest/switch"));
        assert!(error("mlx5_debug*").contains("mlx5-debug"));
        assert!(error("debug").contains("mlx5-debug"));
        assert!(error("DRIFT").contains("did you mean drift"));
    }

    #[test]
    fn by_name_is_not_by_pattern() {
        let by_name = |text, name| Only::new(Some(text)).unwrap().picks_by_name(name);
        assert!(by_name("mlx5-built-in", "mlx5-built-in"));
        assert!(by_name("bench", "base/bench"));
        assert!(!by_name("mlx5*", "mlx5-built-in"));
        assert!(!by_name("!drift", "mlx5-built-in"));
        assert!(!by_name("mlx5-built-in,!*-in", "mlx5-built-in"));
        assert!(!Only::new(None).unwrap().picks_by_name("mlx5-built-in"));
    }

    #[test]
    fn topics_are_split_off() {
        let topics = ["06-hmm", "07-rdma", "08-xe"];
        let split = |text| Only::new(Some(text)).unwrap().split(&topics);
        let (picked, rest) = split("07-rdma,drift").unwrap();
        assert_eq!(picked, ["07-rdma"]);
        assert!(rest.picks("drift") && !rest.picks("am"));
        let (picked, rest) = split("07-rdma").unwrap();
        assert!(picked == ["07-rdma"] && rest.all());
        let (picked, rest) = split("0*,!08-xe,!docs").unwrap();
        assert_eq!(picked, ["06-hmm", "07-rdma"]);
        assert!(rest.picks("drift") && !rest.picks("docs"));
        let (picked, rest) = split("drift").unwrap();
        assert!(picked.is_empty() && rest.picks("drift"));
        let error = split("!07-rdma").err().unwrap();
        assert!(error.downcast_ref::<Usage>().is_some());
        assert!(
            Only::new(None)
                .unwrap()
                .split(&topics)
                .unwrap()
                .0
                .is_empty()
        );
    }
}
