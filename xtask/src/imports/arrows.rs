//! Arrows between the child modules of a folder, and their circles.

use std::collections::{BTreeMap, BTreeSet};

use super::resolve::{ModuleId, SourceTree};

/// The imports of one child module from another.
#[derive(Debug)]
pub(super) struct Arrow {
    pub(super) from: String,
    pub(super) to: String,
    /// Files with lines, one for each file and imported module.
    pub(super) sites: Vec<String>,
}

/// Lines of the first reference, by the file that contains it and its target.
type ArrowLines<'a> = BTreeMap<(&'a str, ModuleId), usize>;

/// The arrows between the children of a folder, in alphabetical order. The folder's own file is no
/// child: it may use all children, and all children may use it.
pub(super) fn folder_arrows(tree: &SourceTree, folder: &ModuleId) -> Vec<Arrow> {
    let mut arrows: BTreeMap<(&str, String), ArrowLines<'_>> = BTreeMap::new();
    for (id, module) in tree.modules() {
        let Some(from) = folder.child_with(id) else {
            continue;
        };
        for (path, line) in &module.paths {
            let Some(target) = tree.resolve(id, path) else {
                continue;
            };
            let to = folder.child_with(&target).filter(|to| *to != from);
            if let Some(to) = to.map(String::from) {
                let sites = arrows.entry((from, to)).or_default();
                sites.entry((&module.file, target)).or_insert(*line);
            }
        }
    }
    let arrows = arrows.into_iter().map(|((from, to), sites)| Arrow {
        from: from.to_string(),
        to,
        sites: sites
            .into_iter()
            .map(|((file, target), line)| format!("{file}:{line} uses {target}"))
            .collect(),
    });
    arrows.collect()
}

/// The sets of modules that reach each other, each in alphabetical order.
pub(super) fn circles<'a>(arrows: &[(&'a str, &'a str)]) -> Vec<Vec<&'a str>> {
    let nodes: BTreeSet<&str> = arrows.iter().map(|(from, _)| *from).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = nodes
        .iter()
        .map(|node| (*node, reached_from(arrows, node)))
        .collect();
    let mut circles = BTreeSet::new();
    for node in &nodes {
        let circle = reached[node].iter().copied();
        let circle: Vec<&str> = circle
            .filter(|other| reached.get(other).is_some_and(|r| r.contains(node)))
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reached_from<'a>(arrows: &[(&'a str, &'a str)], node: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![node];
    while let Some(at) = open.pop() {
        for (_, to) in arrows.iter().filter(|(from, _)| *from == at) {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}
