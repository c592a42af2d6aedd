//! Checks whether the recorded results in Documentation/ are for this series. results/ has
//! the same results as data.
//!
//! A page names the git tree of its series, `git rev-parse series^{tree}` in build/linux.
//! If that is another tree, the page is stale: the check fails and names the target that
//! records the page again. The check also fails if a page names this tree but lists other
//! patches, files or mutants.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::diff::Diff;
use host::git::ask;
use host::paths::Paths;
use host::proc::{capture, processors};
use kernel::build::Builder;
use kernel::tree::Tree;
use plan::arch::Arch;
use results::report::Outcome;

/// The check's name.
pub const NAME: &str = "recorded";

/// Writes results of hours to a file. Neither an interrupted run nor a full disk loses what
/// the runs before have found.
pub(crate) fn replace(file: &Path, text: &str) -> Result<()> {
    let partial = file.with_extension("json.partial");
    fs::write(&partial, text).with_context(|| partial.display().to_string())?;
    fs::rename(&partial, file).with_context(|| file.display().to_string())
}

/// A page, by what it is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Benchmarks,
    Bisect,
    Coverage,
    Mutants,
}

const PAGES: [Page; 4] = [
    Page::Benchmarks,
    Page::Bisect,
    Page::Coverage,
    Page::Mutants,
];

impl Page {
    fn file(self) -> &'static str {
        match self {
            Self::Benchmarks => "Documentation/benchmarks.md",
            Self::Bisect => "Documentation/bisect.md",
            Self::Coverage => "Documentation/coverage.md",
            Self::Mutants => "Documentation/mutants.md",
        }
    }

    /// The target that records it.
    fn target(self) -> &'static str {
        match self {
            Self::Benchmarks => "make bench",
            Self::Bisect => "make bisect",
            Self::Coverage => "make coverage",
            Self::Mutants => "make mutants",
        }
    }
}

/// The minimum number of digits of a tree's name on a page.
const DIGITS: usize = 12;

/// The start of a page's line, and its possible ends.
const RECORDED: &str = "Recorded on ";
const OF_TREE: &str = ", of the series with tree `";
const EARLIER: &str = "of an earlier form of the series";

/// The line for a page that is recorded now: date, series, kernel, machine, and the
/// versions of the main programs.
pub fn line(builder: &Builder<'_>, qemu: Option<&Path>) -> Result<String> {
    let tree = builder.tree;
    let mut date = Command::new("date");
    date.env("LC_ALL", "C").args(["-u", "+%-d %B %Y"]);
    let date = capture(&mut date)?.trim().to_owned();
    // The tree's name does not cover uncommitted changes.
    let of = match ask(&tree.dir, &["status", "--porcelain"])?.is_empty() {
        true => format!("{OF_TREE}{}`", &name(tree)?[..DIGITS]),
        false => format!(", {EARLIER}, with changes that no commit has"),
    };
    let (source, machine) = (&tree.source, machine());
    let versions = versions(builder, qemu)?.join(", ");
    Ok(format!(
        "{RECORDED}{date}{of}, on {source}, on {machine}, with {versions}."
    ))
}

/// This machine, in a few words. It has a name in no record.
pub fn machine() -> String {
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let mut lines = os.lines();
    let os = lines.find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let os = os.unwrap_or("Linux").trim_matches('"');
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    format!("{os}, {}, {} processors", model(&info), processors())
}

/// The processor's model. Not every architecture's /proc/cpuinfo has it.
fn model(info: &str) -> &str {
    let model = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then_some(value.trim())
    });
    model.unwrap_or(env::consts::ARCH)
}

/// The versions of the programs that build and run kernels: compilers, linker, and QEMU,
/// which is another one in parallel machines.
pub fn versions(builder: &Builder<'_>, qemu: Option<&Path>) -> Result<Vec<String>> {
    let path = setup::search_path(builder.tools)?;
    let mut said = [false, true]
        .map(|needs_llvm| builder.compiler.versions(needs_llvm, &path))
        .concat();
    let there = [
        setup::qemu::found(Arch::default(), qemu),
        setup::qemu::there(builder.paths, Arch::default(), qemu),
    ];
    for program in there.into_iter().flatten() {
        said.push_str(&capture(Command::new(program).arg("--version"))?);
    }
    Ok(versions_in(&said))
}

/// The lines with versions in what programs print about themselves, each once.
fn versions_in(said: &str) -> Vec<String> {
    let has_version = |line: &&str| {
        let is =
            |part: &[u8]| matches!(part, [a, b'.', b] if a.is_ascii_digit() && b.is_ascii_digit());
        line.as_bytes().windows(3).any(is)
    };
    let mut versions = Vec::new();
    for line in said.lines().map(str::trim).filter(has_version) {
        if !versions.iter().any(|seen| seen == line) {
            versions.push(line.to_owned());
        }
    }
    versions
}

/// The series in a few words, for a report.
pub fn series(tree: &Tree) -> Result<String> {
    let range = format!("{}..{}", tree.base, tree.tip);
    let patches = ask(&tree.dir, &["rev-list", "--count", &range])?;
    let (name, source) = (name(tree)?, &tree.source);
    Ok(format!(
        "{} patches on {source}, tree {}",
        patches.trim(),
        &name[..DIGITS]
    ))
}

fn name(tree: &Tree) -> Result<String> {
    ask(&tree.dir, &["rev-parse", &format!("{}^{{tree}}", tree.tip)])
}

/// The series that a page names.
#[derive(Debug, PartialEq, Eq)]
enum Claim<'a> {
    /// The series with this tree.
    Tree(&'a str),
    /// Another series, in words.
    Earlier(&'a str),
    /// No series. A reader would take it for the current one.
    Nothing,
}

impl<'a> Claim<'a> {
    fn of(text: &'a str) -> Self {
        let lines = text.lines().map(|line| line.trim_start_matches('*'));
        let Some(line) = lines.into_iter().find(|line| line.starts_with(RECORDED)) else {
            return Self::Nothing;
        };
        let tree = line
            .split_once(OF_TREE)
            .and_then(|(_, rest)| rest.split_once('`'));
        match tree {
            Some((tree, _)) if is_name(tree) => Self::Tree(tree),
            _ if line.contains(EARLIER) => Self::Earlier(line),
            _ => Self::Nothing,
        }
    }
}

fn is_name(tree: &str) -> bool {
    tree.len() >= DIGITS && tree.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// The current series.
struct Series {
    tree: String,
    /// The subjects of its patches, in order.
    subjects: Vec<String>,
    /// The files that it touches.
    files: BTreeSet<String>,
    /// The existing mutants.
    mutants: BTreeSet<String>,
}

impl Series {
    fn of(paths: &Paths, tree: &Tree) -> Result<Self> {
        let range = format!("{}..{}", tree.base, tree.tip);
        let subjects = ask(&tree.dir, &["log", "--reverse", "--format=%s", &range])?;
        let mut mutants = BTreeSet::new();
        let dir = paths.root.join("qemu/mutants");
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let stem = entry?.path().file_stem().map(|stem| stem.to_owned());
            mutants.extend(stem.map(|stem| stem.to_string_lossy().into_owned()));
        }
        Ok(Self {
            tree: name(tree)?,
            subjects: subjects.lines().map(str::to_owned).collect(),
            files: Diff::of(tree)?.all().map(str::to_owned).collect(),
            mutants,
        })
    }

    /// What on a page contradicts this series.
    fn contradiction(&self, page: Page, text: &str) -> Option<String> {
        let cells = |column| Vec::from_iter(rows(text).filter_map(move |row| cell(row, column)));
        match page {
            Page::Benchmarks => None,
            Page::Bisect => {
                let said = cells(2);
                let is_same = said.iter().eq(self.subjects.iter());
                (!is_same).then(|| {
                    let there = self.subjects.len();
                    format!("it has {} patches, of {there} with other names", said.len())
                })
            }
            Page::Coverage => {
                let mut said = cells(1).into_iter().filter(|file| file.contains('/'));
                let foreign = said.find(|file| !self.files.contains(*file))?;
                Some(format!("the series does not touch {foreign}"))
            }
            Page::Mutants => {
                let said: BTreeSet<_> = cells(1).into_iter().map(str::to_owned).collect();
                let other = said.symmetric_difference(&self.mutants).next()?;
                Some(match said.contains(other) {
                    true => format!("there is no mutant {other}"),
                    false => format!("it has no mutant {other}"),
                })
            }
        }
    }

    fn outcome(&self, page: Page, text: &str) -> Outcome {
        let (file, target) = (page.file(), page.target());
        let stale = |of: &str| {
            let why = format!("stale: it is {of}; `{target}` records it anew");
            Outcome::failed(NAME, file, why)
        };
        match Claim::of(text) {
            Claim::Tree(tree) if self.tree.starts_with(tree) => {
                let trouble = self.contradiction(page, text);
                let trouble = trouble.map(|why| {
                    format!("it says that it is of this series, but {why}; `{target}` records it")
                });
                Outcome::unless(NAME, file, trouble)
            }
            Claim::Tree(tree) => {
                let now = &self.tree[..DIGITS];
                stale(&format!(
                    "of the series with tree {tree}, which is now {now}"
                ))
            }
            Claim::Earlier(_) => stale(EARLIER),
            Claim::Nothing => Outcome::failed(
                NAME,
                file,
                format!(
                    "it does not say which series it is of, and so it reads as of this one. \
                     It needs a line \"{RECORDED}DATE{OF_TREE}TREE`.\", as `{target}` writes it, \
                     or \"{RECORDED}DATE, {EARLIER}.\""
                ),
            ),
        }
    }
}

/// Checks each page.
pub fn check(paths: &Paths, tree: &Tree) -> Result<Vec<Outcome>> {
    if paths.kdir.is_some() {
        let why = "KDIR=: recorded results are of the kernel of patches/";
        return Ok(vec![Outcome::skipped(NAME, "all pages", why)]);
    }
    let series = Series::of(paths, tree)?;
    let outcome = |page: &Page| {
        let file = paths.root.join(page.file());
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(series.outcome(*page, &text))
    };
    PAGES.iter().map(outcome).collect()
}

/// The rows of the first table, after its header.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let table = text.lines().skip_while(|line| !line.starts_with('|'));
    table.take_while(|line| line.starts_with('|')).skip(2)
}

/// A cell of a row. The first one is number 1.
fn cell(row: &str, number: usize) -> Option<&str> {
    row.split('|').nth(number).map(str::trim)
}

#[cfg(test)]
mod tests {
    use ktap::Status;

    use super::*;
    use kernel::compiler::Compiler;

    const TREE: &str = "cdafa752db8665d9e2aa930e8b8621f700d23e50";

    fn series() -> Series {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Series {
            tree: TREE.to_owned(),
            subjects: vec!["mm: a".to_owned(), "mm: b".to_owned()],
            files: names(&["mm/a.c", "mm/b.c"]),
            mutants: names(&["a-lost", "b-lost"]),
        }
    }

    fn status(page: Page, said: &str, table: &str) -> (Status, String) {
        let outcome = series().outcome(page, &format!("# Title\n\n{said}\n\n{table}\n\nend\n"));
        assert_eq!(outcome.name, page.file());
        (outcome.status, outcome.reason)
    }

    const THIS: &str = "Recorded on 26 November 2026, of the series with tree `cdafa752db86`.";
    const MUTANTS: &str = "| mutant | x |\n|---|---|\n| a-lost | y |\n| b-lost | y |";

    #[test]
    fn a_page_of_this_series_is_well() {
        let bisect = "|   | patch | a |\n|---|---|---|\n| 1 | mm: a | x |\n| 2 | mm: b | x |";
        let coverage = "| file | n |\n|---|---|\n| mm/a.c | 3 |\n| all | 3 |";
        let pages = [
            (Page::Benchmarks, ""),
            (Page::Bisect, bisect),
            (Page::Coverage, coverage),
            (Page::Mutants, MUTANTS),
        ];
        for (page, table) in pages {
            assert_eq!(status(page, THIS, table), (Status::Passed, String::new()));
            // People may write it in bold.
            let bold = format!("**{THIS}** And more.");
            assert_eq!(status(page, &bold, table).0, Status::Passed);
        }
    }

    #[test]
    fn a_page_of_another_series_fails() {
        let other = THIS.replace("cdafa752db86", "0123456789ab");
        let earlier = "**Recorded on 24 November 2026, of an earlier form of the series with 46 \
                       patches**, before it";
        for said in [&*other, earlier] {
            let (status, reason) = status(Page::Mutants, said, "");
            assert_eq!(status, Status::Failed);
            assert!(reason.starts_with("stale: it is of "), "{reason}");
            assert!(reason.contains("`make mutants`"), "{reason}");
        }
    }

    #[test]
    fn a_page_that_claims_to_be_of_this_series_and_is_not_fails() {
        let failed = |page, said: &str, table: &str| {
            let (status, reason) = status(page, said, table);
            assert_eq!(status, Status::Failed, "{reason}");
            reason
        };
        // A reader would take such a page for one of this series.
        let silent = [
            "",
            "Recorded on 24 November 2026.",
            &THIS.replace("cdafa", "x"),
        ];
        for said in silent {
            assert!(failed(Page::Bisect, said, "").contains("It needs a line"));
        }
        let short = THIS.replace("cdafa752db86", "cdaf");
        assert!(failed(Page::Benchmarks, &short, "").contains("It needs a line"));
        let gone = MUTANTS.replace("b-lost", "c-lost");
        assert!(failed(Page::Mutants, THIS, &gone).contains("it has no mutant b-lost"));
        let more = format!("{MUTANTS}\n| c-lost | y |");
        assert!(failed(Page::Mutants, THIS, &more).contains("there is no mutant c-lost"));
        let bisect = "|   | patch | a |\n|---|---|---|\n| 1 | mm: b | x |\n| 2 | mm: a | x |";
        assert!(failed(Page::Bisect, THIS, bisect).contains("with other names"));
        let coverage = "| file | n |\n|---|---|\n| mm/c.c | 3 |\n| all | 3 |";
        assert!(failed(Page::Coverage, THIS, coverage).contains("does not touch mm/c.c"));
    }

    #[test]
    fn what_is_recorded_now_is_of_this_series() {
        let dir = tempfile::tempdir().unwrap();
        ask(dir.path(), &["init", "-q"]).unwrap();
        fs::write(dir.path().join("a.c"), "1").unwrap();
        ask(dir.path(), &["add", "-A"]).unwrap();
        let who = ["-c", "user.name=p2p", "-c", "user.email=p2p@localhost"];
        ask(
            dir.path(),
            &[&who[..], &["commit", "-q", "-m", "a"]].concat(),
        )
        .unwrap();
        let tree = Tree {
            dir: dir.path().to_owned(),
            base: "HEAD".to_owned(),
            tip: "HEAD".to_owned(),
            source: "Linux 9.9-rc1".to_owned(),
            found: kernel::tree::Found::default(),
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let paths = Paths::new(&root, None, None).unwrap();
        let builder = Builder {
            paths: &paths,
            ui: &host::ui::Ui::new(false),
            tools: &setup::places(&paths),
            tree: &tree,
            compiler: &Compiler::default(),
            jobs: 1,
            until: None,
        };
        let said = line(&builder, Some(Path::new("/bin/true"))).unwrap();
        let name = name(&tree).unwrap();
        assert_eq!(Claim::of(&said), Claim::Tree(&name[..DIGITS]), "{said}");
        for part in ["`, on Linux 9.9-rc1, on ", " processors, with ", "rustc 1."] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // Uncommitted changes are part of no series.
        fs::write(dir.path().join("a.c"), "2").unwrap();
        let said = line(&builder, Some(Path::new("/bin/true"))).unwrap();
        assert!(matches!(Claim::of(&said), Claim::Earlier(_)), "{said}");
    }

    #[test]
    fn a_record_has_the_processor_and_the_version_of_each_program_once() {
        let info = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) Gold\n";
        assert_eq!(model(info), "Intel(R) Xeon(R) Gold");
        assert_eq!(model("processor\t: 0\n"), env::consts::ARCH);
        let gcc = "gcc (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022 Free Software \
                   Foundation, Inc.\nThis is free software; there is NO warranty.\n\n";
        let clang = "Debian clang version 19.1.7\nTarget: x86_64-pc-linux-gnu\n\
                     InstalledDir: /usr/lib/llvm-19/bin\n";
        let rustc = "rustc 1.89.0 (29483883e 2025-08-04)\n";
        let versions = versions_in(&[gcc, rustc, clang, rustc].concat());
        let lines = [gcc, rustc, clang].map(|said| said.lines().next().unwrap());
        assert_eq!(versions, lines);
    }

    #[test]
    fn the_pages_of_this_repository_say_what_they_are_of() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for page in PAGES {
            let text = fs::read_to_string(root.join(page.file())).unwrap();
            assert_ne!(Claim::of(&text), Claim::Nothing, "{}", page.file());
        }
    }
}
