//! The drawing of the layers in `docs/architecture.md`: the folders of the program from the table
//! in `tests/architecture.rs`, the crates below them from their `Cargo.toml`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::pages::{page, root};

const FILE: &str = "docs/images/layers.svg";
const ROW: usize = 40;
const WIDTH: usize = 600;
const GAP: usize = 10;

/// Rewrites the drawing with `PENSTOCK_BLESS`, else compares it.
pub(super) fn hold() {
    let source = page("tests/architecture.rs").text;
    let crates = crate_rows();
    let mut rows = folder_rows(&source);
    rows.extend(crates.iter().map(|row| row.iter().map(String::as_str).collect()));
    let drawn = draw(&rows, &names(list(&source, "PURE")));
    if std::env::var_os("PENSTOCK_BLESS").is_some() {
        std::fs::write(root().join(FILE), drawn).unwrap();
    } else {
        assert!(page(FILE).text == drawn, "{FILE} is out of date: set PENSTOCK_BLESS=1");
    }
}

/// The text of a constant list.
fn list<'a>(source: &'a str, name: &str) -> &'a str {
    let (_, from) = source.split_once(&format!("const {name}: ")).unwrap();
    let (_, value) = from.split_once('=').unwrap();
    value.split_once("];").unwrap().0
}

fn names(list: &str) -> Vec<&str> {
    list.split('"').skip(1).step_by(2).collect()
}

/// The layers of the program, the topmost first; `main` and `lib` are above all and not drawn.
fn folder_rows(source: &str) -> Vec<Vec<&str>> {
    let layers = list(source, "LAYERS").split("\"penstock_core\"").next().unwrap();
    let rows = layers.split("&[").map(names);
    let mut rows: Vec<Vec<&str>> = rows
        .filter(|row| !row.is_empty() && row != &["penstock"] && !row.contains(&"main"))
        .collect();
    rows.reverse();
    rows
}

/// The crates by the length of the longest chain of crates below each, the topmost first.
fn crate_rows() -> Vec<Vec<String>> {
    let mut below: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = folder.unwrap().path();
        let Ok(manifest) = std::fs::read_to_string(path.join("Cargo.toml")) else { continue };
        let lines = manifest.lines().filter_map(|line| line.strip_prefix("penstock-"));
        let names = lines.filter_map(|line| line.split('.').next()).map(str::to_owned).collect();
        below.insert(path.file_name().unwrap().to_string_lossy().into_owned(), names);
    }
    let mut rows: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for name in below.keys() {
        rows.entry(depth(name, &below)).or_default().push(name.clone());
    }
    rows.into_values().rev().collect()
}

fn depth(name: &str, below: &BTreeMap<String, Vec<String>>) -> usize {
    let parts = below.get(name).into_iter().flatten();
    parts.map(|part| 1 + depth(part, below)).max().unwrap_or(0)
}

fn draw(rows: &[Vec<&str>], pure: &[&str]) -> String {
    let title = "The layers: each imports only from those below";
    let height = ROW * rows.len() + 60;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {height}\" width=\"640\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"14\" text-anchor=\"middle\">\n<title>{title}</title>\n\
         <rect width=\"640\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (index, row) in rows.iter().enumerate() {
        let y = 20 + ROW * index;
        let width = (WIDTH - GAP * (row.len() - 1)) / row.len();
        for (column, name) in row.iter().enumerate() {
            let x = 20 + column * (width + GAP);
            let fill = if pure.contains(name) { "#e3efd5" } else { "#e8f0fb" };
            writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"32\" rx=\"6\" fill=\"{fill}\" \
                 stroke=\"#3b5b8c\"/>\n<text x=\"{}\" y=\"{}\" font-weight=\"600\" \
                 fill=\"#1c2b45\">{name}</text>",
                x + width / 2,
                y + 21,
            )
            .unwrap();
        }
    }
    let y = height - 20;
    writeln!(
        svg,
        "<text x=\"320\" y=\"{y}\" font-size=\"12\" fill=\"#43526b\">green: crates without I/O and \
         clock; each layer imports only from those below</text>\n</svg>"
    )
    .unwrap();
    svg
}
