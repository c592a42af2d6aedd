//! Recorded results that take hours: benchmarks, coverage, mutants. Results of this
//! machine take precedence over the ones in `Documentation/`.

use std::fs;

use anyhow::Result;

use crate::Source;
use crate::markdown;

/// A heading, the target that records it, the file in the results, and the file in the
/// documents.
const PAGES: [(&str, &str, &str, &str); 3] = [
    ("Benchmarks", "make bench", "bench.md", "benchmarks.md"),
    ("Coverage", "make coverage", "coverage.md", "coverage.md"),
    ("Mutants", "make mutants", "mutants.md", "mutants.md"),
];

/// A recorded page.
pub struct Recorded {
    pub id: String,
    pub title: &'static str,
    pub target: &'static str,
    /// When it was recorded, and of which series, in the page's words.
    pub when: String,
    /// A one-line summary.
    pub totals: String,
    /// The whole page, as HTML.
    pub html: String,
}

impl Recorded {
    /// All pages that exist.
    pub fn all(source: Source<'_>) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        let documents = source.root.join("Documentation");
        for (title, target, here, there) in PAGES {
            let files = [(source.results, here), (&documents, there)];
            let Some((dir, name)) = files.iter().find(|(dir, name)| dir.join(name).is_file())
            else {
                continue;
            };
            let text = fs::read_to_string(dir.join(name))?;
            all.push(Self {
                id: title.to_lowercase(),
                title,
                target,
                when: when(&text),
                totals: totals(&text),
                html: markdown::render(&text, dir),
            });
        }
        Ok(all)
    }
}

/// The words "Recorded on ..." up to the end of the sentence or the paragraph.
fn when(text: &str) -> String {
    let Some(from) = text.find("Recorded on ") else {
        return "It does not say when it was recorded".to_owned();
    };
    let said = text[from..].split("\n\n").next().unwrap_or_default();
    let said = said.split(". ").next().unwrap_or_default();
    let said = said.replace(['\n', '*', '`'], " ");
    let words = Vec::from_iter(said.split_whitespace()).join(" ");
    words
        .trim_end_matches('.')
        .replace(" ,", ",")
        .replace(" )", ")")
}

/// How many rows of the tables have each result.
fn totals(text: &str) -> String {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let rows = Vec::from_iter(rows.map(|row| {
        let cells = row.trim_matches('|').split('|').map(str::trim);
        Vec::from_iter(cells)
    }));
    if let Some(all) = rows.iter().find(|row| row[0] == "all" && row.len() == 4) {
        return format!("{} of {} lines reached", all[2], all[1]);
    }
    let count = |begin: &str| {
        let last = rows.iter().filter_map(|row| row.last());
        last.filter(|cell| cell.to_lowercase().starts_with(begin))
            .count()
    };
    let words = [
        ("caught by", "caught"),
        ("survived", "survived"),
        ("not run", "not run"),
        ("met", "goals met"),
        ("missed", "missed"),
    ];
    let counts = words.map(|(begin, word)| (count(begin), word));
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    Vec::from_iter(counts.map(|(count, word)| format!("{count} {word}"))).join(", ")
}
