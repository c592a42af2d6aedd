//! Checks that need a configured kernel tree: compilers with more warnings than
//! usual, sparse, clippy, rustdoc, Sphinx.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Checker;
use super::messages::{folded, outcome};
use host::proc::{interrupted, output};
use host::ui::Step;
use kernel::build::{Builder, Make};
use kernel::config;
use results::report::Outcome;

/// Every call of make has these, so that no call invalidates the work of another.
const MODES: [&str; 5] = [
    "W=1",
    "C=2",
    // For sparse 0.6.4, the newest version. It lacks the operator, and without it Kbuild runs no
    // sparse. The length of a string is no constant for it, which is an error in each
    // MODULE_*(), and after an error it gives no warnings.
    r#"CHECK=sparse -D__typeof_unqual__=__typeof__ -D"__builtin_strlen(s)=(sizeof(s)-1)""#,
    "CLIPPY=1",
    "CLIPPY_DRIVER=/usr/bin/clippy-driver",
];

/// Builds the touched files and the kernel's crates with W=1, sparse and clippy.
pub fn objects(
    checker: &Checker<'_>,
    builder: &Builder<'_>,
    step: &Step<'_>,
) -> Result<Vec<Outcome>> {
    let output = checker.output();
    let make = configured(checker, builder, "check", &output, step)?;
    let files = checker.touched(&[".c", ".rs"]);
    let (targets, left_out) = targets(&checker.tree.dir, &files, &checker.settings.targets);
    let mut outcomes: Vec<_> = left_out
        .iter()
        .map(|file| {
            let trouble = "nothing that is built has it: name a target in qemu/check.toml";
            Outcome::unless("objects", file, Some(trouble.to_owned()))
        })
        .collect();
    forget(&output, &targets)?;
    // `prepare` builds rust/. With -k, one error does not hide another.
    let jobs = format!("-j{}", builder.jobs);
    let mut arguments = vec![jobs.as_str(), "-k"];
    arguments.extend(MODES);
    arguments.push("prepare");
    let prepared = make.run(&arguments, step);
    let mut said = fs::read_to_string(make.log())?;
    let mut result = prepared;
    if result.is_ok() {
        arguments.pop();
        arguments.extend(targets.iter().map(String::as_str));
        result = make.run(&arguments, step);
        said.push_str(&fs::read_to_string(make.log())?);
    }
    if interrupted() {
        bail!("interrupted");
    }
    let without_sparse = said.contains(NO_SPARSE).then(|| NO_SPARSE.to_owned());
    outcomes.push(Outcome::unless("objects", "sparse runs", without_sparse));
    let mut about = checker.about(&said);
    about.retain(|text| !checker.settings.sparse.iter().any(|known| known.has(text)));
    for target in &targets {
        let object = folded(target);
        // The message may name the .c or the .rs file.
        let source = object.strip_suffix('o').unwrap_or(&object);
        let (of_it, others) = about
            .into_iter()
            .partition::<Vec<_>, _>(|text| folded(text).contains(source));
        about = others;
        let trouble = (!of_it.is_empty()).then(|| of_it.join("\n"));
        outcomes.push(Outcome::unless("objects", target, trouble));
    }
    // The remaining messages are about headers and the kernel's crates.
    let trouble = match (about.is_empty(), result) {
        (_, Err(error)) => Some(format!("{error:#}")),
        (false, Ok(())) => Some(about.join("\n")),
        (true, Ok(())) => None,
    };
    outcomes.push(Outcome::unless(
        "objects",
        "headers, rust/, and all of it",
        trouble,
    ));
    Ok(outcomes)
}

/// Kbuild's warning that it does not run sparse.
const NO_SPARSE: &str = "is not available or not up to date";

/// The crates of rust/ and its helpers in C.
const RUST: [&str; 3] = ["bindings.o", "helpers/helpers.o", "kernel.o"];

/// Removes objects, because a compiler only warns while it makes them. Otherwise what failed
/// would pass the next time.
fn forget(output: &Path, targets: &BTreeSet<String>) -> Result<()> {
    let of_rust = RUST.map(|object| format!("rust/{object}"));
    for object in targets.iter().chain(&of_rust) {
        let file = output.join(object);
        if file.exists() {
            fs::remove_file(&file).with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

/// The kernel's make in `output`, with the configuration for checks. `name` names its log.
fn configured<'a>(
    checker: &'a Checker<'_>,
    builder: &'a Builder<'_>,
    name: &'a str,
    output: &'a Path,
    step: &Step<'_>,
) -> Result<Make<'a>> {
    let make = Make {
        builder,
        name,
        source: &checker.tree.dir,
        output,
        arch: None,
        llvm: true,
    };
    let mut wanted = config::wanted(&checker.paths.root, &checker.settings.fragments)?;
    if !checker.has_all() {
        wanted = config::defined(make.source, &checker.tree.tip, &wanted)?;
    }
    fs::create_dir_all(make.output)?;
    let refused = make.configure(&config::text(&wanted), &wanted, step)?;
    if !refused.is_empty() {
        bail!("check: Kconfig refuses {}", refused.join(", "));
    }
    Ok(make)
}

/// The make targets for these files, and the files without a target. `named` lists targets
/// whose names differ from their files'. The root of a crate builds all its modules. Files
/// in rust/ and tools/ are built in another way.
pub fn targets<'a>(
    tree: &Path,
    files: &[&'a str],
    named: &[String],
) -> (BTreeSet<String>, Vec<&'a str>) {
    let mut targets = BTreeSet::new();
    let mut others = Vec::new();
    for file in files {
        if file.starts_with("rust/") || file.starts_with("tools/") {
            continue;
        }
        let is_its = |target: &&String| stem(&folded(target)) == stem(file);
        match object(tree, file).or_else(|| named.iter().find(is_its).cloned()) {
            Some(target) => {
                targets.insert(target);
            }
            None => others.push(*file),
        }
    }
    let is_root = |file: &&&str| file.ends_with(".rs") && object(tree, file).is_some();
    let roots = files.iter().filter(is_root);
    let crates: Vec<_> = roots.filter_map(|root| Path::new(root).parent()).collect();
    others.retain(|file| {
        let is_in = |folder: &&Path| Path::new(file).starts_with(folder);
        !(file.ends_with(".rs") && crates.iter().any(is_in))
    });
    (targets, others)
}

fn stem(file: &str) -> &str {
    file.rsplit_once('.').map_or(file, |(stem, _)| stem)
}

/// The make target of a file's object. `None` if the file is part of another object.
fn object(tree: &Path, file: &str) -> Option<String> {
    let object = format!("{}.o", stem(file));
    // A folder's parent may build its objects.
    let named = Path::new(&object).ancestors().skip(1).any(|dir| {
        let name = Path::new(&object).strip_prefix(dir).ok();
        ["Makefile", "Kbuild"].iter().any(|makefile| {
            let text = fs::read_to_string(tree.join(dir).join(makefile)).unwrap_or_default();
            text.split(|c: char| c.is_whitespace() || "=:".contains(c))
                .any(|word| name == Some(Path::new(word)))
        })
    });
    named.then_some(object)
}

/// Builds the documentation of the kernel's crates.
pub fn rustdoc(checker: &Checker<'_>, builder: &Builder<'_>, step: &Step<'_>) -> Result<Outcome> {
    let output = checker.output();
    let make = configured(checker, builder, "check-rustdoc", &output, step)?;
    let jobs = format!("-j{}", builder.jobs);
    let mut arguments = vec![jobs.as_str()];
    arguments.extend(MODES);
    arguments.push("rustdoc");
    let result = make.run(&arguments, step);
    if interrupted() {
        bail!("interrupted");
    }
    let about = checker.about(&fs::read_to_string(make.log())?);
    let trouble = match (about.is_empty(), result) {
        (false, _) => Some(about.join("\n")),
        (true, Err(error)) => Some(format!("{error:#}")),
        (true, Ok(())) => None,
    };
    Ok(Outcome::unless("rustdoc", "what is new", trouble))
}

/// Runs Sphinx on the folders of the touched pages.
pub fn docs(checker: &Checker<'_>) -> Result<Vec<Outcome>> {
    let mut folders = BTreeSet::new();
    for file in checker.touched(&[".rst"]) {
        let ancestors = Path::new(file).ancestors().skip(1);
        let mut with_index =
            ancestors.filter(|dir| checker.tree.dir.join(dir).join("index.rst").is_file());
        let folder = with_index
            .next()
            .and_then(|dir| dir.strip_prefix("Documentation").ok());
        if let Some(folder) = folder {
            folders.insert(folder.to_string_lossy().into_owned());
        }
    }
    let mut outcomes = Vec::new();
    for folder in folders {
        let out = checker.paths.output.join("check-docs").join(&folder);
        // Sphinx reads only what has changed, and is silent about the rest.
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        fs::create_dir_all(&out)?;
        let mut command = Command::new("make");
        command
            .current_dir(&checker.tree.dir)
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .arg("-s")
            .arg(format!("O={}", out.display()))
            .arg(format!("SPHINXDIRS={folder}"))
            .arg("htmldocs");
        let (status, said, err) = output(&mut command)?;
        let mut about = checker.about(&format!("{said}{err}"));
        // References to pages in other folders cannot be resolved.
        about.retain(|line| !is_elsewhere(line));
        if !status.success() {
            about.push(err.trim_end().to_owned());
        }
        outcomes.push(outcome("docs", &folder, about, &command));
    }
    Ok(outcomes)
}

/// Whether the message is about a page that a build of one folder cannot find.
fn is_elsewhere(line: &str) -> bool {
    line.contains("unknown document: '/")
        || line.contains("unknown document: '../")
        || line.contains("undefined label: ")
}
