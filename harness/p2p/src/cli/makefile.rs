//! Tests that the Makefile matches the tool. Each target is a command, and each variable
//! is an option. `make help` and `--help` each describe it once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{ArgMatches, CommandFactory};

use super::Cli;
use super::about::NAMES;
use host::proc::{capture, output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The output of make.
fn make(arguments: &[&str]) -> String {
    capture(&mut make_command(arguments)).unwrap()
}

/// A call of make, without the variables of a make that runs this test.
pub fn make_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("make");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MAKE")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(root());
    command
}

/// The variables of the Makefile, each with a test value.
fn variables() -> BTreeMap<String, &'static str> {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let line = makefile
        .lines()
        .find_map(|line| line.strip_prefix("variables := "));
    let value = |name: &str| match name {
        "J" | "REPEAT" | "RETRIES" | "MINUTES" | "GENERATED" | "SEED" => "3",
        "V" | "KVM" | "FAILED" | "FAIL_FAST" | "KTAP" | "FORCE" => "1",
        "SHARD" => "1/4",
        "QEMU_ARGS" | "PERFTEST" => "-d two --words",
        _ => "/a,b",
    };
    let names = line.unwrap().split(' ');
    names.map(|name| (name.to_owned(), value(name))).collect()
}

/// Variables that some targets accept and others refuse.
const SOME: [&str; 13] = [
    "ONLY",
    "TEST",
    "FAILED",
    "REPEAT",
    "RETRIES",
    "SHARD",
    "FAIL_FAST",
    "KTAP",
    "MINUTES",
    "GENERATED",
    "SEED",
    "PERFTEST",
    "DOCTOR",
];

/// The targets that `make help` lists.
fn targets() -> Vec<String> {
    let help = make(&["help"]);
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter_map(|line| line.split(' ').next());
    let is_target = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
    names.filter(is_target).map(str::to_owned).collect()
}

/// Whether make refuses the variable for the target.
fn is_refused(target: &str, name: &str, value: &str) -> bool {
    let given = format!("{name}={value}");
    let (status, _, err) = output(&mut make_command(&["-n", target, &given])).unwrap();
    assert!(status.success() || err.contains(&format!("make {target} does not take {name}")));
    !status.success()
}

/// The tool's arguments for a target with all variables that it accepts. `None` if the
/// target does not call the tool.
fn call(target: &str, variables: &BTreeMap<String, &str>) -> Option<ArgMatches> {
    let given = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let given = Vec::from_iter(given);
    let mut arguments = vec!["-n", target];
    arguments.extend(given.iter().map(String::as_str));
    let recipe = make(&arguments).replace("\\\n", "");
    let (_, words) = recipe.split_once("exec build/p2p ")?;
    let words = words.split([';', '\n']).next()?;
    let words = shlex::split(&format!("p2p {words}")).unwrap();
    let matches = Cli::command().try_get_matches_from(&words);
    Some(matches.unwrap_or_else(|error| panic!("make {target}: {error}")))
}

#[test]
fn each_target_is_a_command_and_each_variable_arrives() {
    let variables = variables();
    let mut arrived = BTreeSet::new();
    let mut commands = BTreeSet::new();
    for target in targets() {
        let mut taken = variables.clone();
        taken.retain(|name, value| !is_refused(&target, name, value));
        let Some(matches) = call(&target, &taken) else {
            assert!(["help", "doctor"].contains(&&*target), "{target}");
            continue;
        };
        let (command, options) = matches.subcommand().unwrap();
        commands.insert(command.to_owned());
        for (name, value) in &variables {
            let known = NAMES.iter().find(|(_, variable)| variable == name);
            let id = known.map_or(name.to_lowercase(), |(id, _)| (*id).to_owned());
            let has = |matches: &ArgMatches| {
                let raw = matches.try_get_raw(&id).ok().flatten();
                let mut raw = raw.into_iter().flatten();
                raw.any(|raw| raw == *value || (id == "verbose" && raw == "true"))
            };
            if has(&matches) || has(options) {
                arrived.insert(name.clone());
            } else if SOME.contains(&name.as_str()) {
                assert!(!taken.contains_key(name), "make {target} ignores {name}");
            }
        }
    }
    // The doctor is a separate program.
    let mut missing = Vec::from_iter(variables.keys().filter(|name| !arrived.contains(*name)));
    missing.retain(|name| *name != "DOCTOR");
    assert!(missing.is_empty(), "{missing:?}");
    let all = Cli::command();
    let all = all
        .get_subcommands()
        .map(|command| command.get_name().to_owned());
    let unused = Vec::from_iter(all.filter(|name| !commands.contains(name)));
    assert_eq!(unused, ["doctor"]);
}

#[test]
fn each_variable_and_each_option_is_described_once() {
    let help = make(&["help"]);
    // A line may begin with several variables: `LLVM=, CC=`.
    let is_variable = |word: &&str| word.contains('=') && word.starts_with(char::is_uppercase);
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let words = lines.flat_map(|line| line.split(' ').take_while(is_variable));
    let described = Vec::from_iter(words.map(|word| word.split('=').next().unwrap()));
    let variables = variables();
    assert_eq!(described.len(), variables.len(), "{described:?}");
    assert!(
        variables
            .keys()
            .all(|name| described.contains(&name.as_str()))
    );

    let mut named = BTreeSet::new();
    let root = Cli::command();
    for command in root.get_subcommands().chain([&root]) {
        let mut seen = BTreeSet::new();
        for option in command
            .get_arguments()
            .filter(|option| !option.is_hide_set())
        {
            let place = format!("{} --{}", command.get_name(), option.get_id());
            let text = option.get_help().map(ToString::to_string);
            let text = text.unwrap_or_else(|| panic!("{place} is not described"));
            assert!(seen.insert(text.clone()), "{place}: {text}");
            named.extend(
                variables
                    .keys()
                    .filter(|name| text.contains(&format!("({name}="))),
            );
        }
    }
    let mut missing = Vec::from_iter(variables.keys().filter(|name| !named.contains(name)));
    missing.retain(|name| *name != "DOCTOR");
    assert!(missing.is_empty(), "{missing:?}");
}
