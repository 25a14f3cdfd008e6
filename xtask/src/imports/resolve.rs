//! All modules of the workspace, and the modules that define the items of paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::source::{self, ModuleSource};

/// A limit for chains of re-exports, which may be circular.
const MAX_STEPS: usize = 32;

/// A module by its crate and path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModuleId {
    pub(super) package: String,
    pub(super) path: Vec<String>,
}

impl ModuleId {
    pub(super) fn child(&self, name: &str) -> Self {
        let mut child = self.clone();
        child.path.push(name.to_string());
        child
    }

    /// The child of this folder that contains the module.
    pub(super) fn child_with<'m>(&self, module: &'m Self) -> Option<&'m str> {
        let inside = self.package == module.package && module.path.starts_with(&self.path);
        let child = module.path.get(self.path.len()).filter(|_| inside);
        child.map(String::as_str)
    }
}

impl fmt::Display for ModuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.package)?;
        self.path.iter().try_for_each(|name| write!(f, "::{name}"))
    }
}

/// The end of a path: a module, or an item that a module defines.
enum PathTarget {
    Module(ModuleId),
    ItemIn(ModuleId),
}

/// The modules of all crates.
#[derive(Default)]
pub(super) struct SourceTree {
    modules: BTreeMap<ModuleId, ModuleSource>,
    tests: BTreeSet<ModuleId>,
    /// Names of crates in code, with their packages.
    packages: BTreeMap<String, String>,
}

impl SourceTree {
    /// Adds a file, whose module path is `module`.
    pub(super) fn add(
        &mut self,
        package: &str,
        module: &[String],
        file: &str,
        text: &str,
    ) -> syn::Result<()> {
        self.packages
            .insert(package.replace('-', "_"), package.to_string());
        let id = |path| ModuleId {
            package: package.to_string(),
            path,
        };
        let (modules, tests) = (&mut self.modules, &mut self.tests);
        source::read_modules(
            module,
            file,
            text,
            |path, mut source| {
                let entry = modules.entry(id(path)).or_default();
                // A file that is read before may have added children.
                source.children.append(&mut entry.children);
                *entry = source;
            },
            |path| {
                tests.insert(id(path));
            },
        )?;
        // The folder decides the parent of a file, even if another file includes it with `#[path]`.
        if let Some((name, parent)) = module.split_last() {
            let parent = self.modules.entry(id(parent.to_vec())).or_default();
            parent.children.insert(name.clone());
        }
        Ok(())
    }

    /// Removes modules behind `cfg(test)`.
    pub(super) fn drop_tests(&mut self) {
        let tests = std::mem::take(&mut self.tests);
        let in_test = |id: &ModuleId| {
            let mut id = id.clone();
            loop {
                if tests.contains(&id) {
                    return true;
                }
                if id.path.pop().is_none() {
                    return false;
                }
            }
        };
        self.modules.retain(|id, _| !in_test(id));
        let ids: BTreeSet<ModuleId> = self.modules.keys().cloned().collect();
        for (id, module) in &mut self.modules {
            module.children.retain(|name| ids.contains(&id.child(name)));
        }
    }

    pub(super) fn crates(&self) -> impl Iterator<Item = &String> {
        self.packages.values()
    }

    /// The module that is written `tercet-a::b::c`, if it has child modules or is a crate.
    pub(super) fn find(&self, name: &str) -> Option<ModuleId> {
        let mut parts = name.split("::").map(String::from);
        let id = ModuleId {
            package: parts.next()?,
            path: parts.collect(),
        };
        let module = self.modules.get(&id)?;
        (id.path.is_empty() || !module.children.is_empty()).then_some(id)
    }

    pub(super) fn children(&self, id: &ModuleId) -> Vec<&str> {
        let module = self.modules.get(id);
        let children = module.into_iter().flat_map(|module| &module.children);
        children.map(String::as_str).collect()
    }

    /// True if the module has child modules in other files.
    pub(super) fn is_folder(&self, id: &ModuleId) -> bool {
        let file = self.modules.get(id).map(|module| &module.file);
        let children = self.children(id);
        let mut ids = children.iter().map(|name| id.child(name));
        ids.any(|child| self.modules.get(&child).map(|module| &module.file) != file)
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = (&ModuleId, &ModuleSource)> {
        self.modules.iter()
    }

    /// The module that defines the item, or the module itself; `None` for items of other crates
    /// and for local names.
    pub(super) fn resolve(&self, at: &ModuleId, path: &[String]) -> Option<ModuleId> {
        self.target(at, path, MAX_STEPS).map(|target| match target {
            PathTarget::Module(id) | PathTarget::ItemIn(id) => id,
        })
    }

    fn target(&self, at: &ModuleId, path: &[String], steps: usize) -> Option<PathTarget> {
        let steps = steps.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let root = |package: &String| ModuleId {
            package: package.clone(),
            path: Vec::new(),
        };
        match first.as_str() {
            "crate" => self.walk(root(&at.package), rest, steps),
            "self" => self.walk(at.clone(), rest, steps),
            "super" => {
                let mut parent = at.clone();
                parent.path.pop()?;
                match rest.first().is_some_and(|name| name == "super") {
                    true => self.target(&parent, rest, steps),
                    false => self.walk(parent, rest, steps),
                }
            }
            name => match self.lookup(at, name, steps) {
                Some(PathTarget::Module(module)) => self.walk(module, rest, steps),
                Some(item) => Some(item),
                None if self.is_item(at, name) => Some(PathTarget::ItemIn(at.clone())),
                None => self.walk(root(self.packages.get(name)?), rest, steps),
            },
        }
    }

    fn is_item(&self, at: &ModuleId, name: &str) -> bool {
        let module = self.modules.get(at);
        module.is_some_and(|module| module.items.contains(name))
    }

    fn walk(&self, module: ModuleId, path: &[String], steps: usize) -> Option<PathTarget> {
        let steps = steps.checked_sub(1)?;
        let Some((first, rest)) = path.split_first() else {
            return Some(PathTarget::Module(module));
        };
        match self.lookup(&module, first, steps) {
            Some(PathTarget::Module(inner)) => self.walk(inner, rest, steps),
            Some(item) => Some(item),
            None => Some(PathTarget::ItemIn(module)),
        }
    }

    /// A child module, an import or a name of a glob import; `None` for the module's own items.
    fn lookup(&self, at: &ModuleId, name: &str, steps: usize) -> Option<PathTarget> {
        let steps = steps.checked_sub(1)?;
        let module = self.modules.get(at)?;
        if module.children.contains(name) {
            return Some(PathTarget::Module(at.child(name)));
        }
        if let Some(path) = module.names.get(name) {
            return self.target(at, path, steps);
        }
        if module.items.contains(name) {
            return None;
        }
        module.globs.iter().find_map(|glob| {
            let PathTarget::Module(from) = self.target(at, glob, steps)? else {
                return None;
            };
            if from == *at {
                return None;
            }
            match self.is_item(&from, name) {
                true => Some(PathTarget::ItemIn(from)),
                false => self.lookup(&from, name, steps / 2),
            }
        })
    }
}
