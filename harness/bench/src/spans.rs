//! Counts instructions by function, in parts of the guest's program that the program marks
//! as spans. spans.c, a QEMU plugin, does the counting.

use std::collections::BTreeMap;
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

/// The instructions of one span, by function.
#[derive(Debug, PartialEq, Serialize)]
pub struct Span {
    name: String,
    /// How often the span began.
    began: u64,
    /// Instructions per span. The most expensive function comes first.
    functions: Vec<(String, f64)>,
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

/// Reads the results of a run. `names` are the names of the spans, starting at 1.
pub fn read(ran: &RunResult, names: &[String]) -> Result<Vec<Span>> {
    let file = |name| ran.file(name).unwrap_or_default();
    parse(&file(COUNTED), &file(SYMBOLS), names)
}

fn parse(counted: &str, kallsyms: &str, names: &[String]) -> Result<Vec<Span>> {
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
        let mut functions = Vec::from_iter(
            of_span
                .into_iter()
                .map(|(name, count)| (name, count as f64 / began as f64)),
        );
        functions.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        spans.push(Span {
            name: name.clone(),
            began,
            functions,
        });
    }
    Ok(spans)
}

/// A table for each span.
pub fn tables(spans: &[Span]) -> String {
    let tables = spans.iter().map(|span| {
        let all: f64 = span.functions.iter().map(|(_, count)| count).sum();
        let mut table = new_table();
        table.set_header([&span.name, "instructions each time"]);
        let (large, small): (Vec<_>, Vec<_>) = span
            .functions
            .iter()
            .partition(|(_, count)| *count >= all * SMALL);
        for (name, count) in &large {
            table.add_row([name.clone(), format!("{count:.1}")]);
        }
        let rest: f64 = small.iter().map(|(_, count)| count).sum();
        table.add_row([format!("{} others", small.len()), format!("{rest:.1}")]);
        table.add_row(["all".to_owned(), format!("{all:.1}")]);
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    });
    Vec::from_iter(tables).join("\n\n")
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
        let spans = parse(counted, KALLSYMS, &names).unwrap();
        let function = |name: &str, count| (name.to_owned(), count);
        assert_eq!(
            spans[0].functions,
            [
                function("first", 15.0),
                function("second [module]", 2.0),
                function("the program itself", 1.0)
            ]
        );
        assert_eq!(
            spans[1].functions,
            [function("example::run", 7.0), function("unknown", 1.0)]
        );
        let text = tables(&spans);
        assert!(text.contains("first") && text.contains("18.0"), "{text}");
    }

    #[test]
    fn a_span_that_never_begins_is_an_error() {
        let names = ["one".to_owned()];
        let error = parse("began 1 0\n", KALLSYMS, &names).unwrap_err();
        assert!(error.to_string().contains("the span one"), "{error}");
        assert!(parse("what\n", KALLSYMS, &names).is_err());
    }
}
