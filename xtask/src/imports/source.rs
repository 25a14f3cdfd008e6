//! The names and paths of one Rust file.

use std::collections::{BTreeSet, HashMap};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A module: its items, its imports and the paths that its code contains.
#[derive(Default, Debug)]
pub(super) struct ModuleSource {
    /// The file, for messages.
    pub(super) file: String,
    pub(super) children: BTreeSet<String>,
    /// Items that the module defines.
    pub(super) items: BTreeSet<String>,
    /// Imported and re-exported names with their paths.
    pub(super) names: HashMap<String, Vec<String>>,
    /// Paths of `use PATH::*`.
    pub(super) globs: Vec<Vec<String>>,
    /// The paths with their line numbers.
    pub(super) paths: Vec<(Vec<String>, usize)>,
}

/// Calls `add` with the path and content of each module of the file, including inline modules, and
/// `test` with the path of each module behind `cfg(test)`.
pub(super) fn read_modules(
    module: &[String],
    file: &str,
    text: &str,
    add: impl FnMut(Vec<String>, ModuleSource),
    test: impl FnMut(Vec<String>),
) -> syn::Result<()> {
    let source = ModuleSource {
        file: file.to_string(),
        ..ModuleSource::default()
    };
    let mut reader = FileReader {
        path: module.to_vec(),
        source,
        add,
        test,
    };
    reader.visit_file(&syn::parse_file(text)?);
    (reader.add)(reader.path, reader.source);
    Ok(())
}

struct FileReader<A, T> {
    path: Vec<String>,
    source: ModuleSource,
    add: A,
    test: T,
}

impl<A: FnMut(Vec<String>, ModuleSource), T: FnMut(Vec<String>)> FileReader<A, T> {
    fn read_use(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>, line: usize) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.read_use(&path.tree, prefix, line);
                prefix.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.read_use(tree, prefix, line);
                }
            }
            syn::UseTree::Glob(_) => {
                self.source.globs.push(prefix.clone());
                self.source.paths.push((prefix.clone(), line));
            }
            syn::UseTree::Name(name) => self.read_name(&name.ident, &name.ident, prefix, line),
            syn::UseTree::Rename(name) => self.read_name(&name.ident, &name.rename, prefix, line),
        }
    }

    fn read_name(&mut self, item: &syn::Ident, name: &syn::Ident, prefix: &[String], line: usize) {
        let mut path = prefix.to_vec();
        let mut name = name.to_string();
        // `use a::{self}` imports `a`.
        if item != "self" {
            path.push(item.to_string());
        } else if name == "self" {
            name = path.last().cloned().unwrap_or_default();
        }
        self.source.paths.push((path.clone(), line));
        if path.len() > 1 || path.first() != Some(&name) {
            self.source.names.entry(name).or_insert(path);
        }
    }

    /// The paths in the tokens of a macro.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons) = (Vec::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut path, line);
                    }
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path, line);
                    colons = 0;
                    self.read_tokens(group.stream());
                }
                _ => {
                    self.end_path(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.end_path(&mut path, line);
    }

    fn end_path(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.source.paths.push((path, line));
        }
    }
}

impl<A: FnMut(Vec<String>, ModuleSource), T: FnMut(Vec<String>)> Visit<'_> for FileReader<A, T> {
    fn visit_item(&mut self, item: &syn::Item) {
        let (attributes, name) = attributes_and_name(item);
        if is_test(attributes) {
            if let syn::Item::Mod(module) = item {
                let mut path = self.path.clone();
                path.push(module.ident.to_string());
                (self.test)(path);
            }
            return;
        }
        self.source.items.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        let name = module.ident.to_string();
        self.source.children.insert(name.clone());
        if module.content.is_none() {
            return;
        }
        let inline = ModuleSource {
            file: self.source.file.clone(),
            ..ModuleSource::default()
        };
        let outer = std::mem::replace(&mut self.source, inline);
        self.path.push(name);
        visit::visit_item_mod(self, module);
        let inline = std::mem::replace(&mut self.source, outer);
        (self.add)(self.path.clone(), inline);
        self.path.pop();
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        let line = item.use_token.span.start().line;
        self.read_use(&item.tree, &mut Vec::new(), line);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if names.len() > 1 && path.leading_colon.is_none() {
            let line = path.segments[0].ident.span().start().line;
            self.source.paths.push((names, line));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &syn::Attribute) {}
}

/// The attributes of an item, and its name if other modules can refer to it.
fn attributes_and_name(item: &syn::Item) -> (&[syn::Attribute], Option<&syn::Ident>) {
    match item {
        syn::Item::Const(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Enum(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
        syn::Item::Impl(i) => (&i.attrs, None),
        syn::Item::Macro(i) => (&i.attrs, i.ident.as_ref()),
        syn::Item::Mod(i) => (&i.attrs, None),
        syn::Item::Static(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Struct(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Trait(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Type(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Union(i) => (&i.attrs, Some(&i.ident)),
        syn::Item::Use(i) => (&i.attrs, None),
        _ => (&[], None),
    }
}

/// True for `cfg(test)`, `cfg(doctest)` and `cfg(all(test, ..))`.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => requires_test(list.tokens.clone()),
        _ => false,
    })
}

fn requires_test(tokens: TokenStream) -> bool {
    let mut tokens = tokens.into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(name)), Some(TokenTree::Group(group))) if name == "all" => {
            requires_test(group.stream())
        }
        (Some(TokenTree::Ident(name)), _) => name == "test" || name == "doctest",
        _ => false,
    }
}
