//! How many of a sample of mutants the tests notice, and what that says of all of them.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::{Table, presets};
use serde::Serialize;

use super::generate::Site;
use super::record::{MutantOutcome, Record};
use super::settings::GeneratedConfig;

/// The number of standard deviations of 95 %.
const Z: f64 = 1.959_964;

/// The results of a sample.
#[derive(Debug, Serialize)]
pub struct Score {
    seed: u64,
    caught: usize,
    survived: usize,
    /// They change something that no test could notice, for a reason that somebody wrote.
    equal: usize,
    /// They change no code.
    same_code: usize,
    /// The compiler rejects them.
    void: usize,
    not_run: usize,
    /// The part of those that tests judged, without the equal ones, that was caught.
    score: Option<f64>,
    /// The 95 % confidence interval (Wilson) for all mutants that could be generated.
    interval: Option<(f64, f64)>,
    sample: Vec<Sampled>,
}

/// A mutant of the sample.
#[derive(Debug, Serialize)]
struct Sampled {
    name: String,
    file: String,
    line: usize,
    function: String,
    operator: &'static str,
    old: String,
    new: String,
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    equal: Option<String>,
    #[serde(skip)]
    group: Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Caught,
    Survived,
    Equal,
    SameCode,
    Void,
    NotRun,
}

impl Score {
    /// The score of these sites, of which `record` has the results.
    pub fn new(config: &GeneratedConfig, sites: &[Site], seed: u64, record: &Record) -> Self {
        let row = |site: &Site| {
            let end = record.end(&site.name);
            let equal = config.equal(site);
            Sampled {
                name: site.name.clone(),
                file: site.file.clone(),
                line: site.number,
                function: site.function.clone(),
                operator: site.change.operator,
                old: site.line.trim().to_owned(),
                new: site.change.becomes.trim().to_owned(),
                result: end.map_or("not run".to_owned(), MutantOutcome::to_string),
                equal: equal.map(str::to_owned),
                group: match end {
                    None => Group::NotRun,
                    Some(MutantOutcome::Survived) if equal.is_some() => Group::Equal,
                    Some(MutantOutcome::Survived) => Group::Survived,
                    Some(MutantOutcome::Caught { .. }) => Group::Caught,
                    Some(MutantOutcome::SameCode) => Group::SameCode,
                    Some(_) => Group::Void,
                },
            }
        };
        let sample = Vec::from_iter(sites.iter().map(row));
        let count = |group| sample.iter().filter(|row| row.group == group).count();
        let (caught, survived) = (count(Group::Caught), count(Group::Survived));
        let judged = caught + survived;
        Self {
            seed,
            caught,
            survived,
            equal: count(Group::Equal),
            same_code: count(Group::SameCode),
            void: count(Group::Void),
            not_run: count(Group::NotRun),
            score: (judged > 0).then(|| caught as f64 / judged as f64),
            interval: wilson(caught, judged),
            sample,
        }
    }

    /// Whether no mutant survived without a reason.
    pub fn is_explained(&self) -> bool {
        self.survived == 0
    }

    /// In Markdown.
    pub fn page(&self) -> String {
        let mut text = format!("{}\n", self.closing_line());
        text.push_str("\n## By file\n\n");
        text.push_str(&self.table("file", |row| &row.file));
        text.push_str("\n## By kind of change\n\n");
        text.push_str(&self.table("change", |row| row.operator));
        for (group, head) in [
            (Group::Survived, "Survivors: tests are missing"),
            (Group::Equal, "Survivors that are no defects"),
            (Group::Void, "Not compiled"),
        ] {
            let mut rows = self
                .sample
                .iter()
                .filter(|row| row.group == group)
                .peekable();
            if rows.peek().is_some() {
                let _ = writeln!(text, "\n## {head}\n");
            }
            for row in rows {
                let _ = writeln!(
                    text,
                    "- `{}`, `{}:{}`, `{}()`:\n\n      - {}\n      + {}\n",
                    row.name, row.file, row.line, row.function, row.old, row.new
                );
                if let Some(reason) = row.equal.as_ref().filter(|_| group == Group::Equal) {
                    let _ = writeln!(text, "  {reason}\n");
                }
            }
        }
        text
    }

    /// The numbers of mutants, and the score.
    pub fn closing_line(&self) -> String {
        let share = match (self.score, self.interval) {
            (Some(score), Some((low, high))) => format!(
                "{:.1} % (95 % interval: {:.1} to {:.1} %)",
                score * 100.0,
                low * 100.0,
                high * 100.0
            ),
            _ => "no score yet".to_owned(),
        };
        format!(
            "seed {}: {share}; {} caught, {} survived, {} equal, {} same code, {} void, {} not run",
            self.seed,
            self.caught,
            self.survived,
            self.equal,
            self.same_code,
            self.void,
            self.not_run
        )
    }

    /// Caught ones and survivors by a property.
    fn table<'s>(&'s self, head: &str, of: impl Fn(&'s Sampled) -> &'s str) -> String {
        let mut counts = BTreeMap::<_, [usize; 2]>::new();
        for row in &self.sample {
            match row.group {
                Group::Caught => counts.entry(of(row)).or_default()[0] += 1,
                Group::Survived => counts.entry(of(row)).or_default()[1] += 1,
                _ => {}
            }
        }
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([head, "caught", "survived"]);
        for (name, [caught, survived]) in counts {
            table.add_row([name, &caught.to_string(), &survived.to_string()]);
        }
        format!("{table}\n")
    }
}

/// The 95 % confidence interval of a share, after Wilson.
fn wilson(part: usize, whole: usize) -> Option<(f64, f64)> {
    if whole == 0 {
        return None;
    }
    let n = whole as f64;
    let (p, z2) = (part as f64 / n, Z * Z);
    let middle = p + z2 / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let all = 1.0 + z2 / n;
    Some((
        ((middle - half) / all).max(0.0),
        ((middle + half) / all).min(1.0),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::generate::sites_of;
    use super::super::record::MutantResult;
    use super::*;

    const FILE: &str = "\
int f(int a)
{
	if (a == b || c)
		g(a);
	h(a);
	return ret;
}
";

    #[test]
    fn what_somebody_gave_a_reason_for_does_not_count() {
        let sites = sites_of("mm/f.c", FILE, |_| true);
        let names = Vec::from_iter(sites.iter().map(|site| site.name.as_str()));
        let [compare, logic, negate, g, h, ret] = names[..] else {
            panic!("{names:?}");
        };
        let mut record = Record::default();
        let caught = MutantOutcome::Caught {
            by: vec!["a test".to_owned()],
            as_expected: true,
        };
        for (name, end) in [
            (compare, caught.clone()),
            (logic, caught),
            (negate, MutantOutcome::SameCode),
            (g, MutantOutcome::Survived),
            (h, MutantOutcome::DoesNotBuild { why: String::new() }),
        ] {
            record.add(MutantResult::new(name, end));
        }
        let score = |equal: &str| {
            let config = format!("limit = 1\n[jobs]\n{equal}");
            let config = toml::from_str(&config).unwrap();
            Score::new(&config, &sites, 7, &record)
        };
        let without = score("");
        assert_eq!(
            without.closing_line(),
            "seed 7: 66.7 % (95 % interval: 20.8 to 93.9 %); \
             2 caught, 1 survived, 0 equal, 1 same code, 1 void, 1 not run"
        );
        assert!(!without.is_explained());
        let page = without.page();
        for part in [
            "| mm/f.c | 2      | 1        |",
            "## Survivors: tests are missing\n\n- `gen-mm-f.c-4-call`, `mm/f.c:4`, `f()`:\n\n      \
             - g(a);\n      + ;\n",
            "## Not compiled",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let data = serde_json::to_value(&without).unwrap();
        assert_eq!(data["sample"][5]["result"], "not run");
        assert_eq!(data["sample"][5]["name"], ret);
        assert_eq!(data["survived"], 1);

        let equal = "[[equal]]\nfile = \"mm/f.c\"\nfunction = \"f\"\nline = \"g(a);\"\n\
                     becomes = \";\"\nreason = \"g() does nothing\"\n";
        let with = score(equal);
        let line = with.closing_line();
        assert!(line.contains("2 caught, 0 survived, 1 equal"), "{line}");
        assert!(with.is_explained());
        let page = with.page();
        assert!(page.contains("## Survivors that are no defects"), "{page}");
        assert!(page.contains("  g() does nothing\n"), "{page}");
        // It is of this line in this function, and of no other change.
        for (old, new) in [("\"f\"", "\"e\""), ("g(a)", "h(a)"), ("\";\"", "\"\"")] {
            assert!(!score(&equal.replace(old, new)).is_explained(), "{old}");
        }
    }

    #[test]
    fn the_interval_has_the_values_of_the_textbook() {
        for (part, whole, low, high) in [
            (0, 10, 0.0, 0.2775),
            (8, 10, 0.4902, 0.9433),
            (10, 10, 0.7225, 1.0),
            (50, 100, 0.4038, 0.5962),
            (285, 300, 0.9192, 0.9695),
        ] {
            let (a, b) = wilson(part, whole).unwrap();
            assert!((a - low).abs() < 1e-4, "{part}/{whole}: {a}");
            assert!((b - high).abs() < 1e-4, "{part}/{whole}: {b}");
        }
        assert_eq!(wilson(0, 0), None);
    }
}
