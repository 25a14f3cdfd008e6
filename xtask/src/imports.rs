//! `cargo xtask tree --imports`: the arrows between the modules of each crate, and their rules.
//!
//! `xtask/layers.txt` has one section for each checked folder of modules. A section lists its
//! modules in layers, lowest first. An arrow from `a` to `b` says that a file of `a` names an item
//! of `b`. Paths are followed through re-exports to the module that defines the item.
//!
//! | rule | reason |
//! |---|---|
//! | each module of a section's folder stands in one layer | a new module needs a decision |
//! | no arrow to a higher layer | a lower layer can be read and tested alone |
//! | no circle that contains a folder | circles are acceptable between single files only |
//! | the crate roots are sections | no crate escapes |
//!
//! Code behind `cfg(test)` is not counted.

mod arrows;
mod layers;
mod resolve;
mod source;

use std::path::Path;

use crate::error::{self, XtaskError};
use crate::process;
use arrows::folder_arrows;
use resolve::SourceTree;

/// The committed rules, relative to the root of the repository.
const LAYERS: &str = "xtask/layers.txt";

/// Prints the arrows of each section and fails on those that break a rule.
pub(crate) fn run() -> Result<(), XtaskError> {
    let tree = read_tree(&process::root().join("crates"))?;
    let sections = read_layers()?;
    for section in &sections {
        println!("{}", section.folder);
        for (layer, modules) in section.layers.iter().rev() {
            println!("  {layer}: {}", modules.join(" "));
        }
        let Some(folder) = tree.find(&section.folder) else {
            continue;
        };
        for arrow in folder_arrows(&tree, &folder) {
            println!("    {} -> {} ({})", arrow.from, arrow.to, arrow.sites.len());
        }
    }
    finish(problems(&tree, &sections))
}

fn finish(problems: Vec<String>) -> Result<(), XtaskError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::Imports { problems }),
    }
}

/// Everything in the tree that breaks a rule of the sections.
fn problems(tree: &SourceTree, sections: &[layers::LayerSection]) -> Vec<String> {
    let mut problems = Vec::new();
    for name in tree.crates() {
        if !sections.iter().any(|s| s.folder == *name) {
            problems.push(format!("{LAYERS}: no section `[{name}]` for the crate"));
        }
    }
    for section in sections {
        let Some(folder) = tree.find(&section.folder) else {
            let folder = &section.folder;
            problems.push(format!("{LAYERS}: `[{folder}]` is not a folder of modules"));
            continue;
        };
        let arrows = folder_arrows(tree, &folder);
        problems.extend(section.unlisted(&tree.children(&folder)));
        problems.extend(section.upward(&arrows));
        let is_folder = |child: &str| tree.is_folder(&folder.child(child));
        problems.extend(section.circles(&arrows, is_folder));
    }
    problems
}

fn read_layers() -> Result<Vec<layers::LayerSection>, XtaskError> {
    let path = process::root().join(LAYERS);
    let text = std::fs::read_to_string(&path).map_err(error::file("read", &path))?;
    layers::parse(&text).map_err(|problem| XtaskError::Imports {
        problems: vec![format!("{LAYERS}:{problem}")],
    })
}

/// Reads the sources of all crates in the folder.
fn read_tree(crates: &Path) -> Result<SourceTree, XtaskError> {
    let mut tree = SourceTree::default();
    let entries = std::fs::read_dir(crates).map_err(error::file("list", crates))?;
    for entry in entries {
        let dir = entry.map_err(error::file("list", crates))?.path();
        let name = dir.file_name().and_then(|name| name.to_str());
        let source = dir.join("src");
        if let (Some(name), true) = (name, source.is_dir()) {
            read_folder(&mut tree, name, &source, &[])?;
        }
    }
    tree.drop_tests();
    Ok(tree)
}

/// Reads the Rust files of a folder and of the folders in it; `path` is the folder's module path.
fn read_folder(
    tree: &mut SourceTree,
    name: &str,
    dir: &Path,
    path: &[String],
) -> Result<(), XtaskError> {
    let entries = std::fs::read_dir(dir).map_err(error::file("list", dir))?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(error::file("list", dir))?.path());
    }
    files.sort();
    for file in files {
        let stem = file.file_stem().and_then(|stem| stem.to_str());
        let stem = stem.unwrap_or_default().to_string();
        let is_root = path.is_empty() && (stem == "lib" || stem == "main");
        let mut module = path.to_vec();
        if !is_root {
            module.push(stem);
        }
        if file.is_dir() {
            read_folder(tree, name, &file, &module)?;
        } else if file.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&file).map_err(error::file("read", &file))?;
            let shown = file.strip_prefix(process::root()).unwrap_or(&file);
            tree.add(name, &module, &shown.to_string_lossy(), &text)
                .map_err(|source| XtaskError::Rust { path: file, source })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_tree_keeps_its_layers() {
        let tree = read_tree(&process::root().join("crates")).unwrap();
        finish(problems(&tree, &read_layers().unwrap())).unwrap();
    }

    /// The problems of a crate `tercet-a` with these files under these rules.
    fn found(files: &[(&str, &str)], rules: &str) -> Vec<String> {
        let mut tree = SourceTree::default();
        for (name, text) in files {
            let module: Vec<String> = match *name {
                "" => Vec::new(),
                name => name.split("::").map(String::from).collect(),
            };
            tree.add("tercet-a", &module, &format!("{name}.rs"), text)
                .unwrap();
        }
        tree.drop_tests();
        problems(&tree, &layers::parse(rules).unwrap())
    }

    const FILES: [(&str, &str); 4] = [
        ("", "mod low; mod high; pub use high::inner::Top;"),
        ("low", "pub struct Low;"),
        ("high", "pub mod inner; use crate::low::Low;"),
        ("high::inner", "pub struct Top;"),
    ];
    const RULES: &str = "[tercet-a]\nbase: low\nroof: high\n";

    fn with<'a>(module: &'a str, text: &'static str) -> Vec<(&'a str, &'a str)> {
        let mut files = FILES.to_vec();
        files.retain(|(name, _)| *name != module);
        files.push((module, text));
        files
    }

    #[test]
    fn arrows_down_are_accepted() {
        assert_eq!(found(&FILES, RULES), [""; 0]);
    }

    #[test]
    fn arrows_up_are_found_in_uses_paths_macros_and_re_exports() {
        for text in [
            "use crate::high::inner::Top;",
            "use crate::{Top as T};",
            "use super::high::inner;",
            "fn f() -> crate::Top { todo() }",
            "fn f() { println!(\"{}\", crate::high::inner::text()); }",
            "use super::*; fn f() { high::inner::g() }",
            "mod part { fn f() { super::super::high::inner::g() } }",
        ] {
            let files = with("low", text);
            let problems = found(&files, RULES);
            assert!(
                problems[0].contains("`low` (base) -> `high` (roof)"),
                "{text}: {problems:?}"
            );
            assert!(problems[0].contains("low.rs:1"), "{problems:?}");
            // The arrow back makes it a circle too.
            assert!(problems[1].contains("circle"), "{problems:?}");
        }
    }

    #[test]
    fn tests_and_local_names_are_no_arrows() {
        for text in [
            "#[cfg(test)] mod tests { use crate::high::inner::Top; }",
            "#[cfg(test)] use crate::high::inner::Top;",
            "enum Top { A } fn f() { let _ = Top::A; }",
            "/// [`crate::high::inner::Top`]\npub struct Low;",
        ] {
            assert_eq!(found(&with("low", text), RULES), [""; 0], "{text}");
        }
    }

    #[test]
    fn circles_between_files_of_a_layer_are_accepted_but_not_with_folders() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use crate::a::A; pub struct B;"),
        ];
        let rules = "[tercet-a]\none: a b\n";
        assert_eq!(found(&files, rules), [""; 0]);
        let mut folder = files.to_vec();
        folder.push(("b::part", ""));
        assert_eq!(found(&folder, rules), ["tercet-a: circle of modules: a b"]);
    }

    #[test]
    fn allowances_bound_existing_arrows() {
        let files = with("low", "use crate::Top;");
        let allowed = |count: usize| {
            let problems = found(&files, &format!("{RULES}allow low -> high {count}\n"));
            problems.len()
        };
        assert_eq!([allowed(0), allowed(1), allowed(2)], [2, 0, 0]);
        let none = found(&FILES, &format!("{RULES}allow low -> high 1\n"));
        assert!(none[0].contains("found 0"), "{none:?}");
    }

    #[test]
    fn rules_name_every_module() {
        let missing = found(&FILES, "[tercet-a]\nbase: low\n");
        assert_eq!(
            missing,
            ["xtask/layers.txt: [tercet-a] has no layer for `high`"]
        );
        let unknown = found(&FILES, "[tercet-a]\nbase: low old\nroof: high\n");
        assert_eq!(
            unknown,
            ["xtask/layers.txt: [tercet-a] names `old`, which is no module"]
        );
        assert!(
            found(&FILES, "")
                .contains(&"xtask/layers.txt: no section `[tercet-a]` for the crate".to_string())
        );
    }
}
