//! Whether modules would link of which only some objects are compiled.
//!
//! A symbol that an object lacks, and that the series names, must be exported by
//! somebody or be defined in the module's own folders. modpost knows it exactly, but
//! wants all of the kernel for it: `make build ONLY=modules`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::git::{ask, git};
use crate::proc::{capture, output, shown, tail};
use crate::tree::Tree;

/// What is compiled of a module.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// The object, from where the kernel is built.
    object: String,
    /// Where the rest of the module is, from the top of the tree.
    folders: Vec<String>,
}

/// A line for each symbol that the modules which `targets` are parts of would not find.
pub fn missing(tree: &Tree, output: &Path, targets: &[String]) -> Result<Vec<String>> {
    let parts = parts(output, targets)?;
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let named = named(tree)?;
    let exported = exported(&tree.dir)?;
    let mut missing = Vec::new();
    for part in parts {
        let object = output.join(&part.object);
        let nm = ["--undefined-only", "--just-symbols"];
        let lacks = capture(Command::new("nm").args(nm).arg(object))?;
        let lacks = lacks.lines().filter(|symbol| named.contains(*symbol));
        let lacks: Vec<_> = lacks.filter(|symbol| !exported.contains(*symbol)).collect();
        let own = defined(&tree.dir, &part.folders, &lacks)?;
        let lost = lacks.iter().filter(|symbol| !own.contains(**symbol));
        missing.extend(lost.map(|symbol| {
            let folders = part.folders.join(", ");
            format!(
                "{} needs {symbol}: neither exported nor in {folders}",
                part.object
            )
        }));
    }
    Ok(missing)
}

/// A target that is an object is a part of a module; one that is a folder has whole
/// modules, if any.
fn parts(output: &Path, targets: &[String]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for target in targets {
        if target.ends_with('/') {
            let order = output.join(target).join("modules.order");
            let list = fs::read_to_string(&order).with_context(|| order.display().to_string())?;
            parts.extend(list.lines().map(|object| Part {
                object: object.to_owned(),
                folders: vec![target.clone()],
            }));
        } else {
            // `amdgpu/../amdkfd/a.o`: amdkfd is compiled as a part of amdgpu.
            let folder = target.rsplit_once('/').map_or("", |(folder, _)| folder);
            let ways = folder.match_indices("/..").map(|(at, _)| &folder[..at]);
            parts.push(Part {
                object: target.clone(),
                folders: ways.chain([folder]).map(str::to_owned).collect(),
            });
        }
    }
    Ok(parts)
}

/// The words of all lines that the series adds: what else an object lacks, it did before.
fn named(tree: &Tree) -> Result<BTreeSet<String>> {
    let diff = ask(&tree.dir, &["diff", "-U0", &tree.base, &tree.tip])?;
    let added = diff.lines().filter_map(|line| line.strip_prefix('+'));
    Ok(added.flat_map(words).map(str::to_owned).collect())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The symbols that the tree exports, in any configuration.
fn exported(tree: &Path) -> Result<BTreeSet<String>> {
    let pattern = r"\bEXPORT_[A-Z_]+\([A-Za-z0-9_]+";
    let grep = ["grep", "-hoE", pattern, "--", "*.c", "*.S", "*.h"];
    let found = ask(tree, &grep)?;
    let words = found.lines().filter_map(|line| line.split_once('('));
    Ok(words.flat_map(|(by, name)| symbols(by, name)).collect())
}

/// What `by(name)` exports.
fn symbols(by: &str, name: &str) -> Vec<String> {
    let prefixes: &[&str] = if by.starts_with("EXPORT_TRACEPOINT_SYMBOL") {
        &[
            "__tracepoint_",
            "__traceiter_",
            "__SCK__tp_func_",
            "__SCT__tp_func_",
        ]
    } else if by.starts_with("EXPORT_STATIC_CALL") {
        &["__SCK__", "__SCT__"]
    } else if by == "EXPORT_THUNK" {
        &["__x86_indirect_thunk_"]
    } else {
        &[""]
    };
    prefixes
        .iter()
        .map(|prefix| format!("{prefix}{name}"))
        .collect()
}

/// Those of the symbols that files in these folders define.
fn defined(tree: &Path, folders: &[String], symbols: &[&str]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    if symbols.is_empty() {
        return Ok(found);
    }
    // At the beginning of a line and not declared: a function's or a variable's head.
    let names = symbols.join("|");
    let pattern = format!(r"^[A-Za-z_].*\b({names})\b[^;]*$");
    let mut grep = git(tree, &["grep", "-hE", &pattern, "--"]);
    for folder in folders {
        for kind in ["*.c", "*.rs"] {
            grep.arg(format!(":(glob){}/**/{kind}", folder.trim_end_matches('/')));
        }
    }
    let (status, heads, err) = output(&mut grep)?;
    if status.code().is_none_or(|code| code > 1) {
        bail!("{}: {}", shown(&grep), tail(&err, 5));
    }
    for head in heads.lines() {
        let own = words(head).filter(|word| symbols.contains(word));
        found.extend(own.map(str::to_owned));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A tree with a commit that has these files, and its parent that has not.
    fn tree(dir: PathBuf, files: &[(&str, &str)]) -> Tree {
        fs::create_dir(&dir).unwrap();
        ask(&dir, &["init", "-q"]).unwrap();
        let commit = || {
            ask(&dir, &["add", "-A"]).unwrap();
            let who = ["-c", "user.name=p2p", "-c", "user.email=p2p@localhost"];
            let commit = ["commit", "-q", "--allow-empty", "-m", "files"];
            ask(&dir, &[&who[..], &commit].concat()).unwrap();
            ask(&dir, &["rev-parse", "HEAD"]).unwrap()
        };
        let base = commit();
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tip = commit();
        Tree {
            dir,
            base,
            tip,
            source: String::new(),
        }
    }

    fn compile(output: &Path, object: &str, text: &str) {
        let object = output.join(object);
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        let source = object.with_extension("c");
        fs::write(&source, text).unwrap();
        let gcc = ["-c", "-w", "-o"];
        capture(Command::new("gcc").args(gcc).args([&object, &source])).unwrap();
    }

    #[test]
    fn what_nobody_exports_and_the_module_does_not_have() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("kernel");
        let files = [
            (
                "mm/a.c",
                "EXPORT_SYMBOL_GPL(given);\nvoid kept(void)\n{\n}\n",
            ),
            (
                "drivers/x/b.c",
                "int own(int a,\n\tint b)\n{\n\tkept();\n}\n",
            ),
            ("drivers/x/sub/c.rs", "pub extern \"C\" fn ours() {\n"),
            ("drivers/x/d.c", "extern int declared;\n"),
        ];
        let tree = tree(dir.path().join("linux"), &files);
        let calls = "int main() { given(); own(); ours(); older(); kept(); declared(); }";
        compile(&output, "drivers/x/e.o", calls);
        let targets = ["drivers/x/e.o".to_owned()];
        let found = missing(&tree, &output, &targets).unwrap();
        let needs = |symbol: &str| {
            format!("drivers/x/e.o needs {symbol}: neither exported nor in drivers/x")
        };
        assert_eq!(found, [needs("declared"), needs("kept")]);

        // A folder has whole modules, or none.
        let folder = ["drivers/x/".to_owned()];
        let order = output.join("drivers/x/modules.order");
        assert!(missing(&tree, &output, &folder).is_err());
        fs::write(&order, "").unwrap();
        assert!(missing(&tree, &output, &folder).unwrap().is_empty());
        fs::write(&order, "drivers/x/e.o\n").unwrap();
        assert_eq!(missing(&tree, &output, &folder).unwrap().len(), 2);
    }

    #[test]
    fn a_module_that_has_another_folder_too() {
        let target = ["gpu/amdgpu/../kfd/a.o".to_owned()];
        let expected = Part {
            object: target[0].clone(),
            folders: vec!["gpu/amdgpu".into(), "gpu/amdgpu/../kfd".into()],
        };
        assert_eq!(parts(Path::new("/"), &target).unwrap(), [expected]);
    }

    #[test]
    fn macros_that_export() {
        assert_eq!(symbols("EXPORT_SYMBOL_NS_GPL", "a"), ["a"]);
        assert_eq!(symbols("EXPORT_THUNK", "rax"), ["__x86_indirect_thunk_rax"]);
        assert!(symbols("EXPORT_TRACEPOINT_SYMBOL", "a").contains(&"__tracepoint_a".into()));
        assert!(symbols("EXPORT_STATIC_CALL_TRAMP_GPL", "a").contains(&"__SCT__a".into()));
    }
}
