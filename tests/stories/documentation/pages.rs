//! The pages of the documentation: the README and its neighbours, and everything in `docs`.

use std::path::Path;

use crate::support::markdown::blocks;

pub(super) struct Page {
    /// Its path from the repository's root.
    pub(super) name: String,
    pub(super) text: String,
}

impl Page {
    /// The text outside of code blocks.
    pub(super) fn prose(&self) -> String {
        self.text.split("\n```").step_by(2).collect()
    }

    /// The prose about penstock: on the pages about migration, the first column of a table is about
    /// the other program.
    pub(super) fn own_prose(&self) -> String {
        let prose = self.prose();
        if !self.name.starts_with("docs/migration/") {
            return prose;
        }
        let own = |line: &str| match line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) {
            Some((_theirs, ours)) => format!("{ours}\n"),
            None => format!("{line}\n"),
        };
        prose.lines().map(own).collect()
    }
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn page(name: &str) -> Page {
    let text = std::fs::read_to_string(root().join(name)).unwrap();
    Page { name: name.to_owned(), text }
}

pub(super) fn pages() -> Vec<Page> {
    let mut names: Vec<String> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(str::to_owned).into();
    collect("docs", &["md"], &mut names);
    names.iter().map(|name| page(name)).collect()
}

/// The text of everything in which a name may be defined.
pub(super) fn sources() -> String {
    let mut names = vec!["Cargo.toml".to_owned()];
    for folder in ["src", "crates", "conf", "tests"] {
        collect(folder, &["rs", "html", "json", "yaml"], &mut names);
    }
    names.iter().map(|name| page(name).text).collect()
}

fn collect(folder: &str, extensions: &[&str], names: &mut Vec<String>) {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let mut entries: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    entries.sort();
    for entry in entries {
        let path = format!("{folder}/{entry}");
        if root().join(&path).is_dir() {
            collect(&path, extensions, names);
        } else if extensions.iter().any(|one| path.ends_with(&format!(".{one}"))) {
            names.push(path);
        }
    }
}

/// The one block in `language` on any page whose text starts like this.
pub(super) fn block(language: &str, start: &str) -> String {
    let all: Vec<_> = pages().iter().flat_map(|page| blocks(&page.text)).collect();
    let mut fitting =
        all.iter().filter(|one| one.language == language && one.text.starts_with(start));
    let found = fitting.next().unwrap_or_else(|| panic!("no {language} block starts {start}"));
    assert!(fitting.next().is_none(), "several {language} blocks start {start}");
    found.text.clone()
}
