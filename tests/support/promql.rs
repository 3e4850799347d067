//! Reads just enough PromQL to know the metrics of an expression, with their labels and functions.

use std::collections::BTreeSet;

/// Labels that PromQL or Grafana adds.
const OF_THE_SCRAPE: &[&str] = &["instance", "job"];
const FUNCTIONS: &[&str] = &[
    "rate",
    "increase",
    "changes",
    "histogram_quantile",
    "vector",
    "label_values",
    "sum",
    "max",
    "min",
    "avg",
    "count",
    "topk",
];
const GROUPING: &[&str] = &["by", "without", "on", "ignoring"];
const WORDS: &[&str] = &["and", "or", "unless", "bool", "offset", "group_left", "group_right"];

/// A selector: a metric and its label matchers.
#[derive(Debug, Default)]
pub struct Selector {
    pub metric: String,
    /// The function right around it.
    pub within: String,
    /// Label and value, which may be a regular expression.
    pub matchers: Vec<(String, String)>,
}

/// An expression taken apart.
#[derive(Debug, Default)]
pub struct Expression {
    pub selectors: Vec<Selector>,
    /// Labels named in `by` and `without`.
    pub grouped: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// Takes an expression apart; panics where it is not one.
pub fn parse(expression: &str) -> Expression {
    let tokens = tokens(expression);
    let mut found = Expression::default();
    let (mut at, mut functions) = (0, Vec::<String>::new());
    while at < tokens.len() {
        match &tokens[at] {
            Token::Word(word) if GROUPING.contains(&word.as_str()) => {
                let list = labels(&tokens, at + 1);
                at += list.len() * 2 + 1;
                found.grouped.extend(list);
            }
            Token::Word(word) if WORDS.contains(&word.as_str()) => {}
            Token::Word(word) if FUNCTIONS.contains(&word.as_str()) => {
                functions.push(word.clone());
                // An aggregation may say how it groups before its argument.
                if let Some(Token::Word(next)) = tokens.get(at + 1) {
                    assert!(GROUPING.contains(&next.as_str()), "{word} {next} in {expression}");
                } else {
                    assert_eq!(tokens.get(at + 1), Some(&Token::Sign('(')), "{expression}");
                }
            }
            Token::Word(metric) => {
                let within = functions.last().cloned().unwrap_or_default();
                let (matchers, read) = matchers(&tokens, at + 1);
                at += read;
                found.selectors.push(Selector { metric: metric.clone(), within, matchers });
            }
            Token::Sign(')') => {
                functions.pop();
            }
            Token::Sign('(') if at == 0 || !is_call(&tokens, at) => functions.push(String::new()),
            Token::Sign(_) | Token::Text(_) => {}
        }
        at += 1;
    }
    assert!(functions.is_empty(), "brackets in {expression}");
    found
}

/// Returns whether the bracket at `at` opens the arguments of a function that was pushed already.
fn is_call(tokens: &[Token], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|at| tokens.get(at));
    match before(1) {
        Some(Token::Word(word)) => FUNCTIONS.contains(&word.as_str()),
        // `sum by (…) (`
        Some(Token::Sign(')')) => {
            let open = tokens[..at].iter().rposition(|token| *token == Token::Sign('('));
            let word = |back| open.and_then(|open: usize| tokens.get(open.checked_sub(back)?));
            let is = |token: Option<&Token>, words: &[&str]| matches!(token, Some(Token::Word(word)) if words.contains(&word.as_str()));
            is(word(1), &["by", "without"]) && is(word(2), FUNCTIONS)
        }
        _ => false,
    }
}

fn labels(tokens: &[Token], from: usize) -> Vec<String> {
    assert_eq!(tokens.get(from), Some(&Token::Sign('(')), "a list of labels");
    let inner = tokens[from + 1..].iter().take_while(|token| **token != Token::Sign(')'));
    inner
        .filter_map(|token| if let Token::Word(word) = token { Some(word.clone()) } else { None })
        .collect()
}

fn matchers(tokens: &[Token], from: usize) -> (Vec<(String, String)>, usize) {
    if tokens.get(from) != Some(&Token::Sign('{')) {
        return (Vec::new(), 0);
    }
    let length = tokens[from..].iter().position(|token| *token == Token::Sign('}')).unwrap();
    let inner = &tokens[from + 1..from + length];
    let mut found = Vec::new();
    for (index, token) in inner.iter().enumerate() {
        if let Token::Word(label) = token {
            let text = inner[index + 1..].iter().find_map(|token| match token {
                Token::Text(text) => Some(text.clone()),
                Token::Word(_) | Token::Sign(_) => None,
            });
            found.push((label.clone(), text.expect("a label has a value")));
        }
    }
    (found, length + 1)
}

fn tokens(expression: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = expression.trim_start();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' {
            let end = rest[1..].find('"').expect("a text ends") + 1;
            found.push(Token::Text(rest[1..end].to_owned()));
            end + 1
        } else if first == '[' {
            rest.find(']').expect("a range ends") + 1
        } else if first.is_ascii_digit() || first == '.' {
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len())
        } else if is_word(first) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            found.push(Token::Word(rest[..end].to_owned()));
            end
        } else {
            assert!("(){},=~!<>+-*/".contains(first), "{first} in {expression}");
            found.push(Token::Sign(first));
            first.len_utf8()
        };
        rest = rest[length..].trim_start();
    }
    found
}

/// Returns whether a label comes from the scrape and not from the page.
pub fn is_of_the_scrape(label: &str) -> bool {
    OF_THE_SCRAPE.contains(&label)
}
