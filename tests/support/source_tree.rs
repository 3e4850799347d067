//! The files of the workspace as modules: the paths each names, tests left out, relative ones
//! resolved. Modules begin with the name of their crate: `penstock_scan::json`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A file of a crate, without its tests.
pub struct Source {
    /// Its path below the repository's root.
    pub name: String,
    pub text: String,
    /// Its module, as in `penstock_core::fleet::load`.
    pub module: String,
    /// Every path that its code names, from the name of a crate on.
    pub paths: BTreeSet<String>,
    /// The re-exported names, and the paths they stand for.
    reexports: Vec<(String, String)>,
}

impl Source {
    /// The folder of its crate that it belongs to: `fleet` for `penstock_core::fleet::load`.
    pub fn room(&self) -> &str {
        self.module.split("::").nth(1).unwrap_or("lib")
    }

    /// Its crate.
    pub fn package(&self) -> &str {
        self.module.split("::").next().unwrap_or_default()
    }

    /// The module that its folder stands for: `penstock_core::fleet` for
    /// `penstock_core::fleet::load`.
    pub fn folder(&self) -> String {
        self.module.rsplit_once("::").map_or(self.package(), |(folder, _)| folder).to_owned()
    }
}

/// Every file of the workspace that is not a test.
pub fn sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(read_all);
    &SOURCES
}

fn read_all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    for folder in fs::read_dir(root.join("crates")).unwrap() {
        let sources = folder.unwrap().path().join("src");
        if sources.is_dir() {
            collect(&sources, &mut files);
        }
    }
    files.sort();
    files.iter().map(|path| read(path, root)).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" {
                collect(&path, files);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
}

fn read(path: &Path, root: &Path) -> Source {
    let text = fs::read_to_string(path).unwrap();
    let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
    let (package, inner) = match name.strip_prefix("crates/").and_then(|rest| rest.split_once('/'))
    {
        Some((package, inner)) => (format!("penstock_{package}"), inner),
        None => ("penstock".to_owned(), name.as_str()),
    };
    let inner = inner.trim_start_matches("src/").trim_end_matches(".rs").replace('/', "::");
    let module = if inner == "lib" { package } else { format!("{package}::{inner}") };
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut names = Names { module: module.clone(), ..Names::default() };
    names.children = file
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Mod(inner) if inner.content.is_none() => Some(inner.ident.to_string()),
            _ => None,
        })
        .collect();
    names.visit_file(&file);
    Source { name, text, module, paths: names.paths, reexports: names.reexports }
}

/// Returns the target of a path whose last module only re-exports the item.
pub fn follow_reexport(path: &str, sources: &[Source]) -> String {
    let mut path = path.to_owned();
    // Bounded: a chain of re-exports is short, and a circle of them would not compile.
    for _ in 0..4 {
        let Some((module, item)) = split_item(&path, sources) else { return path };
        let source = sources.iter().find(|one| one.module == module);
        let found = source.and_then(|one| one.reexports.iter().find(|(name, _)| *name == item));
        match found {
            Some((_, target)) => path.clone_from(target),
            None => return path,
        }
    }
    path
}

/// The longest module a path begins with, and the name after it.
fn split_item(path: &str, sources: &[Source]) -> Option<(String, String)> {
    let parts: Vec<&str> = path.split("::").collect();
    (1..parts.len()).rev().find_map(|length| {
        let module = parts[..length].join("::");
        sources.iter().any(|one| one.module == module).then(|| (module, parts[length].to_owned()))
    })
}

#[derive(Default)]
struct Names {
    module: String,
    children: BTreeSet<String>,
    paths: BTreeSet<String>,
    reexports: Vec<(String, String)>,
}

impl Names {
    /// The path from the crate on, if it is one of this crate.
    fn resolve(&self, path: &str) -> String {
        let mut base: Vec<&str> = self.module.split("::").collect();
        let mut parts = path.split("::").peekable();
        match parts.peek().copied() {
            Some("super") => {
                while parts.next_if_eq(&"super").is_some() {
                    base.pop();
                }
            }
            Some("self") => {
                parts.next();
            }
            Some("crate") => {
                parts.next();
                base.truncate(1);
            }
            Some(first) if self.children.contains(first) => {}
            _ => return path.to_owned(),
        }
        base.into_iter().chain(parts).collect::<Vec<_>>().join("::")
    }

    fn add_tree(&mut self, tree: &UseTree, before: &str, is_public: bool) {
        match tree {
            UseTree::Path(path) => {
                self.add_tree(&path.tree, &format!("{before}{}::", path.ident), is_public);
            }
            UseTree::Name(name) if name.ident == "self" => {
                self.add(before.trim_end_matches("::"), None);
            }
            UseTree::Name(name) => {
                let ident = name.ident.to_string();
                self.add(&format!("{before}{ident}"), is_public.then_some(ident));
            }
            UseTree::Rename(rename) => {
                let alias = is_public.then(|| rename.rename.to_string());
                self.add(&format!("{before}{}", rename.ident), alias);
            }
            UseTree::Glob(_) => self.add(before.trim_end_matches("::"), None),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(tree, before, is_public);
                }
            }
        }
    }

    fn add(&mut self, path: &str, reexported_as: Option<String>) {
        let path = self.resolve(path);
        if let Some(name) = reexported_as {
            // A re-export is a name for outsiders, and no use of the item.
            self.reexports.push((name, path));
        } else {
            self.paths.insert(path);
        }
    }

    /// Paths among the tokens of a macro: `a :: b :: c`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (String::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 => path = format!("{path}::{ident}"),
                TokenTree::Ident(ident) => {
                    self.add_named(&path);
                    path = ident.to_string();
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            colons = 0;
        }
        self.add_named(&path);
    }

    fn add_named(&mut self, path: &str) {
        if path.contains("::") {
            self.add(path, None);
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|one| {
        let is_cfg = one.path().is_ident("cfg");
        is_cfg && one.parse_args::<syn::Ident>().is_ok_and(|inner| inner == "test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_tree(&item.tree, "", is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts = path.segments.iter().map(|part| part.ident.to_string());
        self.add_named(&parts.collect::<Vec<_>>().join("::"));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.add_tokens(item.tokens.clone());
    }
}
