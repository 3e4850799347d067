//! Tests of loading, rules, shipped files and the schema.

mod files;
mod foreign;
mod listeners;
mod loading;
mod mistakes;
mod rules;
mod schema;
mod scorers;
mod shadow;
mod spellings;

use std::path::Path;

use super::{Config, Environment};

/// Loads `text` in an environment of `NAME=value` pairs.
fn load_with(text: &str, variables: &[&str]) -> Result<Config, String> {
    let split = |pair: &&str| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    let environment: Environment = variables.iter().map(split).collect();
    Config::parse(text, "penstock.yaml", Path::new(""), &environment)
        .map_err(|error| error.to_string())
}

fn load(text: &str) -> Result<Config, String> {
    load_with(text, &[])
}

/// Loads `text` after a line with one backend.
fn load_more(text: &str) -> Result<Config, String> {
    load(&format!("backends: [http://a:1]\n{text}"))
}

/// Returns the errors of `text`, after a line with one backend.
fn refusal(text: &str) -> String {
    load_more(text).unwrap_err()
}

fn warnings(text: &str) -> Vec<String> {
    load(text).unwrap().warnings.iter().map(ToString::to_string).collect()
}
