//! Tests that the modules of a crate have no circular dependencies. For crates, cargo
//! prevents them. Also tests that a crate uses only crates that come before it in
//! README.md.
//!
//! A file and the folder with the same name are one module here. So the test compares
//! siblings, at each level, by which of them uses which.
//!
//! A child may use the types, traits and constants of its parent, and may have a part of
//! `impl Parent`. It may not call a function of its parent if the parent uses the child:
//! otherwise calls go down and up again. Methods are not compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::slice;

use serde_json::Value;

/// A module as the list of its names from the crate's root. The root is empty.
type Module = Vec<String>;

/// The items of a file itself, without those of its children, are a module with this
/// name.
const OWN: &str = "self";

/// The modules that each module uses.
type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// The code of a file, without comments and tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next();
    let text = text.unwrap_or_default();
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// All paths that begin with this word. A grouped `use` has several: `crate::{a, b::c}`.
fn paths(code: &str, start: &str) -> Vec<Module> {
    let mut found = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in code.match_indices(start) {
        let before = code[..at].chars().next_back();
        let Some(rest) = code[at + start.len()..].strip_prefix("::") else {
            continue;
        };
        if !before.is_some_and(|c| is_name(c) || c == ':') {
            expand(rest, &Vec::new(), &mut found);
        }
    }
    found
}

/// Parses the path after a `::`, and returns the rest.
fn expand<'c>(text: &'c str, before: &Module, found: &mut Vec<Module>) -> &'c str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest.trim_start(), before, found).trim_start();
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let path = [before.as_slice(), &[name.to_owned()]].concat();
    match rest.strip_prefix("::") {
        Some(rest) => expand(rest, &path, found),
        None => {
            found.push(path);
            rest
        }
    }
}

/// The modules of a crate, found by their files.
fn files(src: &Path) -> Vec<(Module, PathBuf)> {
    let mut all = Vec::new();
    let mut folders = vec![(Module::new(), src.to_owned())];
    while let Some((module, folder)) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let below = [module.as_slice(), slice::from_ref(&name)].concat();
            if path.is_dir() {
                folders.push((below, path));
            } else if ["lib", "main"].contains(&&*name) && module.is_empty() {
                all.push((Module::new(), path));
            } else if path.extension().is_some_and(|end| end == "rs") && name != "tests" {
                all.push((below, path));
            }
        }
    }
    all
}

fn uses(src: &Path) -> Uses {
    let mut uses = Uses::new();
    let files = files(src);
    let modules = BTreeSet::from_iter(files.iter().map(|(module, _)| module.as_slice()));
    for (module, file) in &files {
        let code = code(&fs::read_to_string(file).unwrap());
        let mut named = paths(&code, "crate");
        let mut add = |parent: &[String], start| {
            let found = paths(&code, start).into_iter();
            named.extend(found.map(|path| [parent, &path].concat()));
        };
        if let Some((_, parent)) = module.split_last() {
            add(parent, "super");
        }
        add(module, OWN);
        let is_child = |other: &&&[String]| {
            let parent = other.split_last().map(|(_, parent)| parent);
            parent == Some(module)
        };
        for child in modules.iter().filter(is_child) {
            add(child, &child[module.len()]);
        }
        // A function is an item of its file.
        for path in &mut named {
            if let Some((name, parent)) = path.split_last_mut()
                && modules.contains(&*parent)
                && !modules.contains(&*[&*parent, slice::from_ref(name)].concat())
                && !name.starts_with(char::is_uppercase)
            {
                OWN.clone_into(name);
            }
        }
        let own = [module.as_slice(), &[OWN.to_owned()]].concat();
        uses.entry(own).or_default().extend(named);
    }
    uses
}

/// A cycle among siblings, if there is one, as the names of its modules.
fn circle(uses: &Uses) -> Option<String> {
    let mut edges = BTreeMap::<Module, BTreeSet<Module>>::new();
    for (module, named) in uses {
        for path in named {
            let same = module.iter().zip(path).take_while(|(a, b)| a == b).count();
            // Where the two paths differ, their modules are siblings.
            let (Some(from), Some(to)) = (module.get(..=same), path.get(..=same)) else {
                continue;
            };
            if uses.keys().any(|module| module.starts_with(to)) {
                edges.entry(from.to_vec()).or_default().insert(to.to_vec());
            }
        }
    }
    // Removes modules that use no remaining module, until only cycles are left.
    loop {
        let left = BTreeSet::from_iter(edges.keys().cloned());
        let is_done = |to: &BTreeSet<Module>| to.is_disjoint(&left);
        let before = edges.len();
        edges.retain(|_, to| !is_done(to));
        if edges.is_empty() {
            return None;
        }
        if edges.len() == before {
            let names = edges.iter().map(|(from, to)| {
                let to = to.intersection(&left).map(|to| to.join("::"));
                format!(
                    "{} -> {}",
                    from.join("::"),
                    to.collect::<Vec<_>>().join(", ")
                )
            });
            return Some(names.collect::<Vec<_>>().join("\n"));
        }
    }
}

#[test]
fn no_crate_has_modules_in_a_circle() {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = fs::read_dir(harness).unwrap();
    let sources = crates.map(|entry| entry.unwrap().path().join("src"));
    let sources: Vec<_> = sources.filter(|src| src.is_dir()).collect();
    assert!(sources.len() > 10, "{sources:?}");
    let circles = sources.iter().filter_map(|src| {
        let circle = circle(&uses(src))?;
        Some(format!("{}:\n{circle}", src.display()))
    });
    let circles: Vec<_> = circles.collect();
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

#[test]
fn crates_use_only_those_above_them_in_the_readme() {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| host::settings::read::<Value>(&harness.join(file)).unwrap();
    let readme = fs::read_to_string(harness.join("README.md")).unwrap();
    let (_, table) = readme.split_once("| crate | what |\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let order = Vec::from_iter(rows.filter_map(|row| row.split('`').nth(1)));
    let members = read("Cargo.toml")["workspace"]["members"].clone();
    let members: BTreeSet<String> = serde_json::from_value(members).unwrap();
    assert!(
        members
            .iter()
            .eq(&BTreeSet::from_iter(order.iter().copied()))
    );
    for (place, name) in order.iter().enumerate() {
        let manifest = read(&format!("{name}/Cargo.toml"));
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let below = order[place..]
                .iter()
                .find(|other| manifest[kind].get(**other).is_some());
            assert_eq!(below, None, "{name} uses it");
        }
        // Only a crate itself can ask rustc for this warning.
        let root = ["lib.rs", "main.rs"].map(|file| harness.join(name).join("src").join(file));
        let root = root.iter().find(|file| file.is_file()).unwrap();
        let text = fs::read_to_string(root).unwrap();
        assert!(text.contains("warn(unused_crate_dependencies)"), "{name}");
    }
}

#[test]
fn circles_are_seen() {
    let circle_of = |files: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        circle(&uses(dir.path()))
    };
    let (a, c) = ("use crate::{b::B, x};\n", "fn f() {}\n");
    let row = [("a.rs", a), ("b.rs", "use crate::c::f;\n"), ("c.rs", c)];
    assert_eq!(circle_of(&row), None);
    let back = "/// Not `crate::b`.\nfn f() { crate::a::g() }\n";
    let all = [row[0], row[1], ("c.rs", back)];
    let told = circle_of(&all).unwrap();
    assert!(told.contains("c -> a") && told.contains("b -> c"), "{told}");
    // Tests may use any module, and a child may use its parent's types and constants.
    let tests = "fn f() {}\n#[cfg(test)]\nmod tests {\nuse crate::a;\n}\n";
    assert_eq!(circle_of(&[row[0], row[1], ("c.rs", tests)]), None);
    let types = "use super::{A, MAX, c};\nimpl super::A {}\n";
    let uses = "mod b;\nmod c;\nfn f() { b::g() }\n";
    let family = [("a.rs", uses), ("a/b.rs", types), ("a/c.rs", c)];
    assert_eq!(circle_of(&family), None);
    // It may not call its parent's functions, in any spelling.
    for call in [
        "use super::{A, f};",
        "fn g() { super::f() }",
        "use crate::a::*;",
    ] {
        let told = circle_of(&[family[0], ("a/b.rs", call), family[2]]).unwrap();
        assert_eq!(told, "a::b -> a::self\na::self -> a::b");
    }
    // Neither may a sibling that the child uses, nor a grandchild.
    let calls = [("a/b.rs", "use super::c::g;"), ("a/c.rs", "use super::f;")];
    assert!(circle_of(&[family[0], calls[0], calls[1]]).is_some());
    let deep = [("a/b.rs", ""), ("a/b/d.rs", "use crate::a::f;")];
    assert!(circle_of(&[family[0], deep[0], deep[1]]).is_some());
    // What a file has for tests may stand before its code.
    let testing = "#[cfg(test)]\nmod testing;\nuse self::b::g;\nfn f() {}\n";
    assert!(circle_of(&[("a.rs", testing), ("a/b.rs", "use super::f;")]).is_some());
    // The parent may leave the child to others.
    let apart = [("a.rs", "mod b;\nfn f() {}\n"), ("a/b.rs", "use super::f;")];
    assert_eq!(circle_of(&apart), None);
    // Siblings at a deeper level, and uses from there.
    let below = [
        ("a/b.rs", "use super::c::C;"),
        ("a/c.rs", "use crate::a::{b::B};"),
    ];
    assert!(circle_of(&below).is_some());
    let deep = [("a/b.rs", "use crate::d::D;"), ("d.rs", "use crate::a::A;")];
    assert!(circle_of(&deep).is_some());
}
