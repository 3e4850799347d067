//! The parts of a page of documentation, and the form of a table there.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A fenced block: its language and its text.
pub struct Block {
    pub language: String,
    pub text: String,
}

/// The fenced blocks of a page.
pub fn blocks(markdown: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for line in markdown.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(language), None) => {
                open = Some(Block { language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some(block)) => found.push(block),
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block has no end");
    found
}

/// Inline code, outside of code blocks.
pub fn spans(prose: &str) -> Vec<&str> {
    prose.split('`').skip(1).step_by(2).collect()
}

/// Returns the targets of a page's links, images included.
pub fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1);
    targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target)).collect()
}

/// The anchors of a page's headings.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let heading = |line: &str| -> Option<String> {
        let title = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        Some(title.chars().filter(kept).collect::<String>().replace(' ', "-"))
    };
    page.lines().filter_map(heading).collect()
}

/// The separators of words and commands, except within quotes.
const SEPARATORS: &str = " <>|;&";

/// The same line, without quotes and with other characters for separators within them.
fn hide_quoted(line: &str) -> String {
    if line.matches('\'').count() % 2 == 1 {
        return line.to_owned();
    }
    let parts = line.split('\'').enumerate().map(|(index, part)| {
        let hidden = |one: char| match SEPARATORS.find(one) {
            Some(place) if index % 2 == 1 => char::from(u8::try_from(place).unwrap() + 1),
            _ => one,
        };
        part.chars().map(hidden).collect::<String>()
    });
    parts.collect()
}

fn shown(word: &str) -> String {
    let shown = |one: char| SEPARATORS.chars().nth((one as usize).wrapping_sub(1)).unwrap_or(one);
    word.chars().map(shown).collect()
}

/// The arguments of every `penstock` in a line of a shell.
pub fn calls(line: &str) -> Vec<Vec<String>> {
    let line = hide_quoted(&line.replace("cargo run --release -- ", "penstock "));
    let commands = line.split(['|', ';', '&']);
    commands
        .filter_map(|command| {
            let mut words = command.split_whitespace().skip_while(|word| *word == "sudo");
            let program = words.next()?;
            let is_ours = program == "penstock" || program.ends_with("/penstock");
            let is_redirection =
                |word: &str| word.trim_start_matches(char::is_numeric).starts_with(['<', '>']);
            let until_redirection = words.take_while(|word| !is_redirection(word));
            is_ours.then(|| until_redirection.map(shown).collect())
        })
        .collect()
}

/// A table, with the bars in its cells escaped.
pub fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    }
    text
}
