//! Counts instructions by function, in parts of the guest's program that the program marks
//! as spans. spans.c, a QEMU plugin, does the counting.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result};
use comfy_table::CellAlignment;
use serde::Serialize;

use host::paths::Paths;
use host::proc::capture;
use machine::vm::RunResult;

use super::table::new_table;

/// The plugin.
const SOURCE: &str = "harness/bench/src/spans.c";

/// Functions with a smaller share of a span share one row of its table.
const SMALL: f64 = 0.005;

/// The instructions of one span in one run, by function.
#[derive(Debug, PartialEq, Serialize)]
pub struct Span {
    run: String,
    name: String,
    /// How often the span began.
    began: u64,
    /// Instructions per span.
    functions: BTreeMap<String, f64>,
}

impl Span {
    fn all(&self) -> f64 {
        self.functions.values().sum()
    }

    fn of(&self, function: &str) -> f64 {
        self.functions.get(function).copied().unwrap_or_default()
    }
}

/// The plugin's output file and the file with the guest's symbols, in the guest's output
/// folder.
const COUNTED: &str = "spans";
const SYMBOLS: &str = "kallsyms";

/// Shell lines that save the guest's symbols.
pub fn job() -> String {
    format!("cat /proc/kallsyms >\"$out/{SYMBOLS}\"\n")
}

/// Compiles the plugin, and returns QEMU's arguments for the run with that name.
pub fn plugin(paths: &Paths, run: &str) -> Result<Vec<String>> {
    let plugin = paths.build().join("bench-spans.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg("-o")
        .arg(&plugin)
        .arg(paths.root.join(SOURCE));
    capture(&mut cc)?;
    let counted = paths.runs().join(run).join("out").join(COUNTED);
    let value = format!("{},out={}", plugin.display(), counted.display());
    Ok(vec!["-plugin".to_owned(), value])
}

/// Reads the results of the run with that name. `names` are the names of the spans,
/// starting at 1.
pub fn read(ran: &RunResult, run: &str, names: &[String]) -> Result<Vec<Span>> {
    let file = |name| ran.file(name).unwrap_or_default();
    parse(&file(COUNTED), &file(SYMBOLS), run, names)
}

fn parse(counted: &str, kallsyms: &str, run: &str, names: &[String]) -> Result<Vec<Span>> {
    let symbols = symbols(kallsyms)?;
    let mut began = BTreeMap::new();
    let mut ran: BTreeMap<usize, BTreeMap<String, u64>> = BTreeMap::new();
    for line in counted.lines() {
        let bad = || format!("no line of the plugin: {line}");
        let words = Vec::from_iter(line.split(' '));
        let number = |word: &str| word.parse::<u64>().with_context(bad);
        match words[..] {
            ["began", span, times] => {
                began.insert(span.parse::<usize>().with_context(bad)?, number(times)?);
            }
            ["ran", span, addr, instructions] => {
                let addr = u64::from_str_radix(addr, 16).with_context(bad)?;
                let functions = ran.entry(span.parse().with_context(bad)?).or_default();
                *functions.entry(function(&symbols, addr)).or_default() += number(instructions)?;
            }
            _ => anyhow::bail!(bad()),
        }
    }
    let mut spans = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let began = *began.get(&(index + 1)).unwrap_or(&0);
        anyhow::ensure!(began > 0, "the span {name} never began");
        let of_span = ran.remove(&(index + 1)).unwrap_or_default();
        let each = |(name, count)| (name, count as f64 / began as f64);
        spans.push(Span {
            run: run.to_owned(),
            name: name.clone(),
            began,
            functions: of_span.into_iter().map(each).collect(),
        });
    }
    Ok(spans)
}

/// A table for each name of a span, with a column for each run that has it. The function
/// that takes most in any of them comes first.
pub fn tables(spans: &[Span]) -> String {
    let mut names = Vec::new();
    for span in spans {
        if !names.contains(&&span.name) {
            names.push(&span.name);
        }
    }
    let tables = names.into_iter().map(|name| {
        let runs = Vec::from_iter(spans.iter().filter(|span| span.name == *name));
        table(name, &runs)
    });
    Vec::from_iter(tables).join("\n\n")
}

fn table(name: &str, runs: &[&Span]) -> String {
    let mut table = new_table();
    let title = format!("{name}: instructions each time");
    table.set_header(
        [&title]
            .into_iter()
            .chain(runs.iter().map(|span| &span.run)),
    );
    let mut row = |name: &str, count: &dyn Fn(&Span) -> f64| {
        let counts = runs.iter().map(|span| format!("{:.1}", count(span)));
        table.add_row([name.to_owned()].into_iter().chain(counts));
    };
    let most = |function: &str| {
        runs.iter()
            .map(|span| span.of(function))
            .fold(0.0, f64::max)
    };
    let functions: BTreeSet<_> = runs.iter().flat_map(|span| span.functions.keys()).collect();
    let (mut large, small): (Vec<_>, Vec<_>) = functions
        .into_iter()
        .partition(|name| runs.iter().any(|span| span.of(name) >= span.all() * SMALL));
    large.sort_by(|one, other| most(other).total_cmp(&most(one)));
    for function in large {
        row(function, &|span| span.of(function));
    }
    row(&format!("{} others", small.len()), &|span| {
        small.iter().map(|function| span.of(function)).sum()
    });
    row("all", &Span::all);
    for column in 1..=runs.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// Functions by their first address.
fn symbols(kallsyms: &str) -> Result<BTreeMap<u64, String>> {
    let mut symbols = BTreeMap::new();
    for line in kallsyms.lines() {
        let mut words = line.split_whitespace();
        let (Some(addr), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !kind.eq_ignore_ascii_case("t") {
            continue;
        }
        let addr = u64::from_str_radix(addr, 16).with_context(|| format!("kallsyms: {line}"))?;
        let module = words.next().unwrap_or_default();
        let name = format!("{:#}", rustc_demangle::demangle(name));
        symbols.insert(addr, format!("{name} {module}").trim_end().to_owned());
    }
    Ok(symbols)
}

/// The function that contains `addr`.
fn function(symbols: &BTreeMap<u64, String>, addr: u64) -> String {
    // User addresses are below kernel addresses.
    if addr >> 63 == 0 {
        return "the program itself".to_owned();
    }
    let before = symbols.range(..=addr).next_back();
    before.map_or_else(|| "unknown".to_owned(), |(_, name)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000000 T first
ffffffff81000100 t second\t[module]
ffffffff81000180 D data
ffffffff81000200 T _RNvCs1234_7example3run
";

    #[test]
    fn instructions_are_counted_by_function_and_span() {
        let counted = "\
began 1 2
ran 1 ffffffff81000000 10
ran 1 ffffffff810000ff 20
ran 1 ffffffff81000190 4
ran 1 401000 2
began 2 1
ran 2 ffffffff81000204 7
ran 2 ffffffff80000000 1
";
        let names = ["one".to_owned(), "two".to_owned()];
        let spans = parse(counted, KALLSYMS, "series", &names).unwrap();
        let functions = |counts: &[(&str, f64)]| {
            let owned = |(name, count): &(&str, f64)| ((*name).to_owned(), *count);
            BTreeMap::from_iter(counts.iter().map(owned))
        };
        assert_eq!(
            spans[0].functions,
            functions(&[
                ("first", 15.0),
                ("second [module]", 2.0),
                ("the program itself", 1.0)
            ])
        );
        assert_eq!(
            spans[1].functions,
            functions(&[("example::run", 7.0), ("unknown", 1.0)])
        );
    }

    /// Cells of the table's rows, without the line below the head.
    fn rows(text: &str) -> Vec<Vec<&str>> {
        let rows = text.lines().filter(|line| !line.starts_with("|--"));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
            .collect()
    }

    #[test]
    fn runs_are_compared() {
        let names = ["one".to_owned()];
        let parse = |counted, run| parse(counted, KALLSYMS, run, &names).unwrap();
        let mut spans = parse(
            "began 1 1\nran 1 ffffffff81000000 900\nran 1 ffffffff81000204 1\n",
            "base",
        );
        spans.extend(parse(
            "began 1 2\nran 1 ffffffff81000000 1800\nran 1 ffffffff81000100 4000\n",
            "series",
        ));
        let text = tables(&spans);
        assert_eq!(
            rows(&text),
            [
                ["one: instructions each time", "base", "series"],
                ["second [module]", "0.0", "2000.0"],
                ["first", "900.0", "900.0"],
                ["1 others", "1.0", "0.0"],
                ["all", "901.0", "2900.0"],
            ]
        );
    }

    #[test]
    fn a_span_that_never_begins_is_an_error() {
        let names = ["one".to_owned()];
        let error = parse("began 1 0\n", KALLSYMS, "x", &names).unwrap_err();
        assert!(error.to_string().contains("the span one"), "{error}");
        assert!(parse("what\n", KALLSYMS, "x", &names).is_err());
    }
}
