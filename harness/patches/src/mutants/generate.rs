//! Generates mutants: every way in which a line that the series adds can be wrong, and a
//! random sample of them.
//!
//! A seed gives the same sample of the same lines in each clone. Each file has its share of
//! every beginning of the sample, so a run that ends early says something of all of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::file::Mutant;
use crate::diff::Diff;
use host::git::ask;
use host::paths::digest;
use kernel::tree::Tree;

mod operators;
mod source;

use operators::{Change, changes};
use source::{Language, lines};

/// Names of files and folders with tests.
const TESTS: [&str; 3] = ["tests", "_test", "kunit"];

/// How many lines of a diff are around the changed one.
const CONTEXT: usize = 3;

/// A way in which the series can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The file.
    pub file: String,
    /// The line's number.
    pub number: usize,
    /// The function with the line.
    pub function: String,
    /// The line as it is.
    pub line: String,
    /// The line as it becomes, and how.
    pub change: Change,
    /// Unique, with file, number and kind of change.
    pub name: String,
    /// `git apply` makes the change of this.
    pub diff: String,
}

impl Site {
    /// The mutant, of which `dir` gets the diff.
    pub fn mutant(&self, dir: &Path) -> Mutant {
        let Self { function, line, .. } = self;
        let breaks = match self.change.becomes.trim() {
            "" | ";" => format!("{function}() lacks `{}`", line.trim()),
            becomes => format!("{function}() has `{becomes}` for `{}`", line.trim()),
        };
        Mutant {
            name: self.name.clone(),
            path: dir.join(format!("{}.diff", self.name)),
            text: format!("{breaks}\n\n{}", self.diff),
            breaks,
            changes: self.file.clone(),
            ..Mutant::default()
        }
    }
}

/// The files of the series that can be wrong: without tests, and only those that `takes`.
pub fn sites(tree: &Tree, takes: impl Fn(&str) -> bool) -> Result<Vec<Site>> {
    let added = Diff::of(tree)?;
    let mut all = Vec::new();
    for file in added.files(&[".c", ".h", ".rs"]) {
        if is_test(file) || !takes(file) {
            continue;
        }
        let text = ask(&tree.dir, &["show", &format!("{}:{file}", tree.tip)])?;
        all.extend(sites_of(file, &text, |number| added.has(file, number)));
    }
    Ok(all)
}

fn is_test(file: &str) -> bool {
    let parts = Path::new(file).with_extension("");
    let mut parts = parts.iter().map(|part| part.to_string_lossy());
    parts.any(|part| part == TESTS[0] || part.ends_with(TESTS[1]) || part.contains(TESTS[2]))
}

/// All sites in the lines of a file that `is_added`.
pub fn sites_of(file: &str, text: &str, is_added: impl Fn(usize) -> bool) -> Vec<Site> {
    let language = match file.ends_with(".rs") {
        true => Language::Rust,
        false => Language::C,
    };
    let all = Vec::from_iter(text.lines());
    let mut names = BTreeMap::<String, usize>::new();
    let mut sites = Vec::new();
    for line in lines(text, language) {
        if !is_added(line.number) {
            continue;
        }
        let old = all[line.number - 1];
        for change in changes(old, &line, language) {
            let (place, operator) = (place(file), change.operator);
            let mut name = format!("gen-{place}-{}-{operator}", line.number);
            let same = names.entry(name.clone()).or_default();
            *same += 1;
            if *same > 1 {
                name = format!("{name}-{same}");
            }
            sites.push(Site {
                file: file.to_owned(),
                number: line.number,
                function: line.function.clone(),
                line: old.to_owned(),
                diff: diff(file, &all, line.number, &change.becomes),
                change,
                name,
            });
        }
    }
    sites
}

/// A short name for a file: with its folder, because several are called `file.rs`.
fn place(file: &str) -> String {
    let mut parts = file.rsplit('/');
    let (name, folder) = (parts.next().unwrap_or_default(), parts.next());
    folder.map_or(name.to_owned(), |folder| format!("{folder}-{name}"))
}

fn diff(file: &str, lines: &[&str], number: usize, becomes: &str) -> String {
    let first = number.saturating_sub(CONTEXT + 1);
    let last = lines.len().min(number + CONTEXT);
    let count = last - first;
    let start = first + 1;
    let mut text = format!("--- a/{file}\n+++ b/{file}\n@@ -{start},{count} +{start},{count} @@\n");
    for (index, line) in lines[first..last].iter().enumerate() {
        if first + index + 1 == number {
            text.push_str(&format!("-{line}\n+{becomes}\n"));
        } else {
            text.push_str(&format!(" {line}\n"));
        }
    }
    text
}

/// All sites in the order in which this seed draws them. A site keeps its place when other
/// lines change.
pub fn shuffled(sites: Vec<Site>, seed: u64) -> Vec<Site> {
    let mut files = BTreeMap::<String, Vec<(String, Site)>>::new();
    let mut seen = BTreeMap::<String, usize>::new();
    for site in sites {
        let Site { file, function, .. } = &site;
        let (line, becomes) = (&site.line, &site.change.becomes);
        let text = format!("{seed}\n{file}\n{function}\n{line}\n{becomes}");
        let again = seen.entry(text.clone()).or_default();
        *again += 1;
        let lot = digest(format!("{text}\n{again}").as_bytes());
        files.entry(file.clone()).or_default().push((lot, site));
    }
    let mut all = Vec::new();
    for (file, mut sites) in files {
        sites.sort_by(|(a, _), (b, _)| a.cmp(b));
        let first = fraction(&digest(format!("{seed}\n{file}").as_bytes()));
        let count = sites.len() as f64;
        let places = sites.into_iter().enumerate();
        all.extend(places.map(|(place, (_, site))| ((place as f64 + first) / count, site)));
    }
    // The sort is stable, and files are in order.
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    all.into_iter().map(|(_, site)| site).collect()
}

/// A number from 0 to 1 from the first digits of a digest.
fn fraction(digest: &str) -> f64 {
    let digits = u32::from_str_radix(&digest[..8], 16).unwrap_or_default();
    f64::from(digits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
int f(int a)
{
	if (a == 1)
		return -EINVAL;
	g(a);
	return 0;
}
";

    fn named(sites: &[Site]) -> Vec<&str> {
        sites.iter().map(|site| site.name.as_str()).collect()
    }

    #[test]
    fn sites_are_in_added_lines_and_have_names_of_their_own() {
        let all = sites_of("mm/f.c", FILE, |_| true);
        assert_eq!(
            named(&all),
            [
                "gen-mm-f.c-3-compare",
                "gen-mm-f.c-3-up",
                "gen-mm-f.c-3-zero",
                "gen-mm-f.c-4-succeed",
                "gen-mm-f.c-4-go-on",
                "gen-mm-f.c-5-call",
                "gen-mm-f.c-6-up",
            ]
        );
        let some = sites_of("mm/f.c", FILE, |number| number == 5);
        assert_eq!(named(&some), ["gen-mm-f.c-5-call"]);
        let twice = "int f(void)\n{\n\tx = a == b && c == d;\n}\n";
        let twice = sites_of("f.c", twice, |_| true);
        let names = [
            "gen-f.c-3-compare",
            "gen-f.c-3-logic",
            "gen-f.c-3-compare-2",
        ];
        assert_eq!(named(&twice), names);
    }

    #[test]
    fn a_mutant_says_what_it_breaks() {
        let all = sites_of("mm/f.c", FILE, |number| number > 3);
        let says = Vec::from_iter(all.iter().map(|site| site.mutant(Path::new("d")).breaks));
        assert_eq!(
            says[..2],
            [
                "f() has `return 0;` for `return -EINVAL;`",
                "f() lacks `return -EINVAL;`"
            ]
        );
        let mutant = all[0].mutant(Path::new("d"));
        assert_eq!(mutant.path, Path::new("d/gen-mm-f.c-4-succeed.diff"));
    }

    #[test]
    fn git_applies_the_diff_of_each() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.c");
        ask(dir.path(), &["init", "--quiet"]).unwrap();
        let all = sites_of("f.c", FILE, |_| true);
        assert_eq!(all.len(), 7);
        for site in &all {
            std::fs::write(&file, FILE).unwrap();
            let mutant = site.mutant(dir.path());
            std::fs::write(&mutant.path, &mutant.text).unwrap();
            ask(dir.path(), &["apply", &mutant.path.to_string_lossy()]).unwrap();
            let mut expected = Vec::from_iter(FILE.lines());
            expected[site.number - 1] = &site.change.becomes;
            let changed = std::fs::read_to_string(&file).unwrap();
            assert_eq!(Vec::from_iter(changed.lines()), expected, "{}", site.name);
        }
    }

    #[test]
    fn tests_are_no_sites() {
        for file in [
            "drivers/pci/p2pdma_kunit.c",
            "mm/tests/hmm.c",
            "rust/kernel/mm/hmm/tests.rs",
            "drivers/gpu/drm/nouveau/nouveau_window_test.rs",
            "drivers/iommu/generic_pt/kunit_iommu_pt.h",
        ] {
            assert!(is_test(file), "{file}");
        }
        for file in ["drivers/misc/p2ptest/gpu/file.rs", "mm/hmm.c"] {
            assert!(!is_test(file), "{file}");
        }
    }

    /// A file with so many sites.
    fn file(name: &str, count: usize) -> Vec<Site> {
        let body: String = (0..count).map(|n| format!("\tx = a{n} == b;\n")).collect();
        let all = sites_of(name, &format!("int f(void)\n{{\n{body}}}\n"), |_| true);
        assert_eq!(all.len(), count);
        all
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_seed_does_not() {
        let order = |seed| {
            let all = [file("a.c", 40), file("b.c", 40)].concat();
            let all = shuffled(all, seed);
            all.into_iter().map(|site| site.name).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = [order(1), order(2)];
        sorted.iter_mut().for_each(|names| names.sort());
        assert_eq!(sorted[0], sorted[1]);
    }

    #[test]
    fn each_file_has_its_share_of_a_sample() {
        for seed in 0..20 {
            let all = shuffled([file("a.c", 90), file("b.c", 30)].concat(), seed);
            for end in [20, 40, 100] {
                let of_a = all[..end].iter().filter(|site| site.file == "a.c").count();
                assert!(of_a.abs_diff(end * 3 / 4) <= 1, "{seed}: {of_a} of {end}");
            }
        }
    }

    #[test]
    fn a_small_file_is_hit_as_often_as_its_size_says() {
        let hits = (0..200).filter(|seed| {
            let all = shuffled([file("a.c", 38), file("b.c", 2)].concat(), *seed);
            all[..10].iter().any(|site| site.file == "b.c")
        });
        // Each of its two sites is one of 40, of which 10 are drawn: one half.
        let hits = hits.count();
        assert!((75..=125).contains(&hits), "{hits}");
    }

    #[test]
    fn what_is_drawn_does_not_change_with_other_lines() {
        let order = |text: &str| {
            let all = shuffled(sites_of("f.c", text, |_| true), 1);
            all.into_iter().map(|site| site.change.becomes).collect()
        };
        let before: Vec<String> = order(FILE);
        let mut after: Vec<String> = order(&FILE.replace("\tg(a);\n", "\tg(a);\n\tputs(a);\n"));
        after.retain(|becomes| before.contains(becomes));
        // Both removed calls become the same line.
        let calls = |all: &[String]| all.iter().filter(|line| *line == "\t;").count();
        assert_eq!((calls(&before), calls(&after)), (1, 2));
        let rest = |all: Vec<String>| {
            let is_call = |line: &String| line != "\t;";
            all.into_iter().filter(is_call).collect::<Vec<_>>()
        };
        assert_eq!(rest(before), rest(after));
    }
}
