//! Whether modules would link of which only some objects are compiled.
//!
//! A symbol that an object lacks must be exported by somebody or be defined in the
//! module's own folders. Who exports is known from the source, and where a macro does it
//! from a kernel that was built. modpost knows all of it exactly, but wants the whole
//! kernel for it: `make build ONLY=modules`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::git::{ask, git};
use crate::proc::{capture, output, shown, tail};

/// What is compiled of a module.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// The object, from where the kernel is built.
    object: String,
    /// Where the rest of the module is, from the top of the tree. None: it is whole.
    folders: Vec<String>,
}

/// A line for each symbol that the modules which `targets` are parts of would not find.
/// Nothing if they are parts of no modules. `symvers`: Module.symvers of a kernel.
pub fn missing(
    tree: &Path,
    output: &Path,
    targets: &[String],
    symvers: &Path,
) -> Result<Option<Vec<String>>> {
    let parts = parts(output, targets)?;
    if parts.is_empty() {
        return Ok(None);
    }
    let exported = exported(tree, symvers)?;
    let mut missing = Vec::new();
    for part in parts {
        let object = output.join(&part.object);
        let nm = ["--undefined-only", "--just-symbols"];
        let lacks = capture(Command::new("nm").args(nm).arg(object))?;
        // modpost adds it.
        let lacks = lacks.lines().filter(|symbol| *symbol != "__this_module");
        let lacks: Vec<_> = lacks.filter(|symbol| !exported.contains(*symbol)).collect();
        let own = defined(tree, &part.folders, &lacks)?;
        let lost = lacks.iter().filter(|symbol| !own.contains(**symbol));
        missing.extend(lost.map(|symbol| {
            let nor: String = part
                .folders
                .iter()
                .map(|f| format!(", nor in {f}"))
                .collect();
            format!("{} needs {symbol}: not exported{nor}", part.object)
        }));
    }
    Ok(Some(missing))
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
                folders: Vec::new(),
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
    // What one part knows of its module's folders holds for others of the module.
    let known: Vec<_> = parts.iter().map(|part| part.folders.clone()).collect();
    for part in &mut parts {
        let own: BTreeSet<_> = part.folders.iter().cloned().collect();
        let others = known.iter().filter(|f| f.iter().any(|f| own.contains(f)));
        let all: BTreeSet<_> = others.flatten().chain(&own).cloned().collect();
        part.folders = all.into_iter().collect();
    }
    Ok(parts)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The symbols that the tree exports in any configuration, or a kernel of it does.
fn exported(tree: &Path, symvers: &Path) -> Result<BTreeSet<String>> {
    let pattern = r"\bEXPORT_[A-Z_]+\([A-Za-z0-9_]+";
    let grep = ["grep", "-hoE", pattern, "--", "*.c", "*.S", "*.h"];
    let found = ask(tree, &grep)?;
    let names = found.lines().filter_map(|line| line.split_once('('));
    let names = names.map(|(_, name)| name);
    let built = fs::read_to_string(symvers).with_context(|| symvers.display().to_string())?;
    let built = built.lines().filter_map(|line| line.split('\t').nth(1));
    Ok(names.chain(built).map(str::to_owned).collect())
}

/// Those of the symbols that files in these folders define.
fn defined(tree: &Path, folders: &[String], symbols: &[&str]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    if symbols.is_empty() || folders.is_empty() {
        return Ok(found);
    }
    // At the beginning of a line: a function's head or a variable. Not a prototype.
    let names = symbols.join("|");
    let pattern = format!(r"^([A-Za-z_].*)?\b({names})\b([^;]*|[^(]*)$");
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
    let is_elsewhere = |head: &&str| head.starts_with("static ") || head.starts_with("extern ");
    for head in heads.lines().filter(|head| !is_elsewhere(head)) {
        let own = words(head).filter(|word| symbols.contains(word));
        found.extend(own.map(str::to_owned));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A tree that has these files.
    fn tree(dir: PathBuf, files: &[(&str, &str)]) -> PathBuf {
        fs::create_dir(&dir).unwrap();
        ask(&dir, &["init", "-q"]).unwrap();
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        ask(&dir, &["add", "-A"]).unwrap();
        dir
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
        let declared = "extern int declared;\nextern int also(int a,\n\tint b);\n";
        let files = [
            (
                "mm/a.c",
                "EXPORT_SYMBOL_GPL(given);\nvoid kept(void)\n{\n}\n",
            ),
            (
                "drivers/x/b.c",
                "int own(int a,\n\tint b)\n{\n\tkept();\n}\n",
            ),
            ("drivers/x/type.c", "int\nbelow(void)\n{\n}\n"),
            ("drivers/x/sub/c.rs", "pub extern \"C\" fn ours() {\n"),
            ("drivers/x/d.c", declared),
            ("drivers/x/e.c", "static int hidden(void)\n{\n}\n"),
            ("drivers/x/g.c", "int counter;\nint other = 1;\n"),
        ];
        let tree = tree(dir.path().join("linux"), &files);
        let calls = [
            "given", "own", "ours", "below", "older", "kept", "declared", "also", "hidden",
            "counter", "other",
        ];
        let calls: String = calls.map(|name| format!("{name}();")).concat();
        compile(
            &output,
            "drivers/x/f.o",
            &format!("int main() {{ {calls} }}"),
        );
        let symvers = output.join("Module.symvers");
        fs::write(&symvers, "0x0\tolder\tvmlinux\tEXPORT_SYMBOL\t\n").unwrap();
        let missing = |target: &str| missing(&tree, &output, &[target.to_owned()], &symvers);
        let lines = |symbols: &[&str], nor: &str| -> Vec<_> {
            let line = |symbol| format!("drivers/x/f.o needs {symbol}: not exported{nor}");
            symbols.iter().map(line).collect()
        };
        let not_own = lines(
            &["also", "declared", "hidden", "kept"],
            ", nor in drivers/x",
        );
        assert_eq!(missing("drivers/x/f.o").unwrap(), Some(not_own));

        // A folder has whole modules, or none.
        let order = output.join("drivers/x/modules.order");
        assert!(missing("drivers/x/").is_err());
        fs::write(&order, "").unwrap();
        assert_eq!(missing("drivers/x/").unwrap(), None);
        fs::write(&order, "drivers/x/f.o\n").unwrap();
        let all = lines(
            &[
                "also", "below", "counter", "declared", "hidden", "kept", "other", "ours", "own",
            ],
            "",
        );
        assert_eq!(missing("drivers/x/").unwrap(), Some(all));
    }

    #[test]
    fn a_module_that_has_another_folder_too() {
        let targets = ["gpu/amdgpu/../kfd/a.o", "gpu/amdgpu/b.o", "gpu/xe/c.o"].map(str::to_owned);
        let parts = parts(Path::new("/"), &targets).unwrap();
        let folders: Vec<_> = parts.iter().map(|part| &part.folders[..]).collect();
        let amd = ["gpu/amdgpu", "gpu/amdgpu/../kfd"];
        assert_eq!(folders, [&amd[..], &amd, &["gpu/xe"]]);
    }
}
