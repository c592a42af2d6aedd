//! Describes a run for its report: the user's command, the host, and what was tested.

use std::env;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use host::proc::quote;
use kernel::build::Builder;
use patches::recorded;
use results::report::{self, Report};

/// Adds the command, the host and the duration.
pub fn note(report: &mut Report, start: Instant) {
    report.command = command(env::args().skip(1));
    report.host = report::host();
    report.taken = start.elapsed().as_secs_f64();
}

/// What is tested, and with what.
pub fn facts(builder: &Builder<'_>, qemu: Option<&Path>) -> Result<Vec<(String, String)>> {
    let versions = recorded::versions(builder, qemu)?.join(", ");
    Ok(vec![
        ("machine".to_owned(), recorded::machine()),
        ("series".to_owned(), recorded::series(builder.tree)?),
        ("programs".to_owned(), versions),
    ])
}

/// Variables that say what is tested, and with what, such as KDIR. They belong to a command
/// that repeats something.
const GIVEN: [&str; 8] = [
    "KDIR",
    "O",
    "QEMU",
    "QEMU_ARGS",
    "KVM",
    "CC",
    "LLVM",
    "CONFIG",
];

/// The user's values of these variables, each after a space.
pub fn given() -> String {
    given_in(env::args().skip(1))
}

fn given_in(arguments: impl IntoIterator<Item = String>) -> String {
    let (_, variables) = words(arguments);
    let is_given = |word: &&String| {
        GIVEN
            .iter()
            .any(|name| word.starts_with(&format!("{name}=")))
    };
    variables
        .iter()
        .filter(is_given)
        .map(|word| format!(" {word}"))
        .collect()
}

/// Options whose names differ from make's variables.
pub const NAMES: [(&str, &str); 3] = [("output", "O"), ("jobs", "J"), ("verbose", "V")];

/// Reconstructs make's target and variables from the arguments after the program's name.
fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let (mut command, variables) = words(arguments);
    command.insert(0, "make".to_owned());
    command.extend(variables);
    command.join(" ")
}

/// Make's target, and `VARIABLE=value` for each option.
fn words(arguments: impl IntoIterator<Item = String>) -> (Vec<String>, Vec<String>) {
    let mut words = Vec::new();
    let mut variables = Vec::new();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(option) = argument.strip_prefix("--") else {
            words.push(argument);
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None if matches!(option, "verbose" | "force" | "kvm") => (option, "1".to_owned()),
            None => (option, arguments.next().unwrap_or_default()),
        };
        if name == "root" {
            continue;
        }
        let known = NAMES.iter().find(|(option, _)| *option == name);
        let variable = known.map_or(name.to_uppercase().replace('-', "_"), |(_, variable)| {
            (*variable).to_owned()
        });
        variables.push(format!("{variable}={}", quote(&value)));
    }
    (words, variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(arguments: &str) -> String {
        command(arguments.split(' ').map(str::to_owned))
    }

    #[test]
    fn targets_and_variables() {
        assert_eq!(typed("--root /a test"), "make test");
        assert_eq!(
            typed("--root /a --output /b --verbose --force=1 test --only x/y --repeat 3"),
            "make test O=/b V=1 FORCE=1 ONLY=x/y REPEAT=3"
        );
        assert_eq!(
            typed("test --fail-fast=1 --retries 2"),
            "make test FAIL_FAST=1 RETRIES=2"
        );
        let quoted = ["test", "--only", "mlx5*/switch,!x"].map(str::to_owned);
        assert_eq!(command(quoted), "make test ONLY='mlx5*/switch,!x'");
        let all = "--root /a --output /b --kdir /k --llvm=-19 --verbose test --only x";
        let all = all.split(' ').map(str::to_owned);
        assert_eq!(given_in(all), " O=/b KDIR=/k LLVM=-19");
    }
}
