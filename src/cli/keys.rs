//! `penstock keys`: makes, shows, rotates and revokes the client keys of `auth.store`. Works on the
//! file, with or without a running penstock, which sees the change within two seconds.

mod arguments;
mod attributes;
mod text;
mod values;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use penstock_clock::unix_seconds;
use penstock_config::UnixTime;
use serde_json::{Value, json};

use super::error::{CliError, FAILED, USAGE};
use super::output::Output;
use super::source::ConfigArgs;
use crate::key_store::{KeyStore, KeyStoreError, StoreLimits, unknown_names};
use arguments::{CreateArgs, RestoreTokenArgs, RevokeTokenArgs, RotateArgs};
use attributes::SetArgs;
use text::{revoked_table, to_lines, to_table};

const AFTER_HELP: &str = "\
A secret is printed once, when its key is made or rotated: the file keeps its SHA-256 alone.

Examples:
  penstock keys create --name team-a --team research --models 'llama3:*' --expires 90d
  TEAM_A_KEY=$(penstock keys create --name team-a --team research --quiet)
  penstock keys list
  penstock keys set key_3f9c2a1b7d40e85566aa0b1c --budget research --unset models,expires_at
  penstock keys rotate key_3f9c2a1b7d40e85566aa0b1c --overlap 24h
  penstock keys revoke key_3f9c2a1b7d40e85566aa0b1c
  penstock keys revoke-token --jti 8f2c… --issuer https://login.example.com --expires 1h
  penstock keys restore-token --jti 8f2c… --issuer https://login.example.com

Exit codes: 0 success, 1 there is no such key or revocation, or the file cannot be used, 2 the
arguments or the configuration are wrong.";

#[derive(Debug, Subcommand)]
#[command(after_help = AFTER_HELP)]
pub(super) enum KeysCommand {
    /// Make a key, and print its secret
    Create(CreateArgs),
    /// List the keys, the newest first
    List(ListArgs),
    /// Show a key
    Show(OneArgs),
    /// Change what a key allows; attributes that are not named stay
    Set(SetArgs),
    /// Make a new secret for a key; the old one stays valid for a while
    Rotate(RotateArgs),
    /// Revoke a key, at once
    Revoke(OneArgs),
    /// Revoke a token of an identity provider by its `jti`, at once
    RevokeToken(RevokeTokenArgs),
    /// Take back the revocation of a token
    RestoreToken(RestoreTokenArgs),
    /// List the revoked tokens, the newest first
    RevokedTokens(ListArgs),
}

/// The arguments of every command: the file, and the form of the output.
#[derive(Debug, Args)]
struct StoreArgs {
    /// The file of the keys [default: auth.store of the configuration]
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    /// The id of the key, as `penstock keys list` shows it
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    common: StoreArgs,
}

/// The reason why there is no store to work on.
#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error("there is no store of keys: set auth.store, or pass --store FILE")]
    NoStore,
    #[error(
        "there is no file {}: penstock makes it when it starts, and so does `keys create`",
        path.display()
    )]
    NoFile { path: PathBuf },
    #[error("cannot use {}: {source}", path.display())]
    Store { path: PathBuf, source: KeyStoreError },
}

pub(super) fn run(command: &KeysCommand, output: &mut Output) -> Result<(), CliError> {
    let now = UnixTime(unix_seconds());
    match command {
        KeysCommand::Create(args) => {
            let described = args.to_json(now);
            args.common.warn_of_unknown(&described, output);
            let made = args.common.work_or_make(|store| store.create(described, now))?;
            args.common.print_made(&made.to_json(now), args.quiet, output)
        }
        KeysCommand::List(args) => list(args, now, output),
        KeysCommand::Show(args) => {
            let key = args.common.work(|store| store.show(&args.id))?;
            args.common.print(&key.to_json(now), output)
        }
        KeysCommand::Set(args) => {
            let key = args.common.work(|store| {
                // A change replaces the limits as a whole: those that no flag names have to be
                // passed along.
                let held = json!(store.show(&args.id)?.attributes.limits);
                let changes = args.to_json(now, &held);
                args.common.warn_of_unknown(&changes, output);
                store.change(&args.id, &changes)
            })?;
            args.common.print(&key.to_json(now), output)
        }
        KeysCommand::Rotate(args) => {
            let made = args.common.work(|store| store.rotate(&args.id, args.overlap, now))?;
            args.common.print_made(&made.to_json(now), args.quiet, output)
        }
        KeysCommand::Revoke(args) => {
            let key = args.common.work(|store| store.revoke(&args.id, now))?;
            args.common.print(&key.to_json(now), output)
        }
        KeysCommand::RevokeToken(args) => {
            let described = args.to_json(now);
            args.common.warn_of_unknown(&described, output);
            let token = args.common.work(|store| store.revoke_token(described, now))?;
            args.common.print(&json!(token), output)
        }
        KeysCommand::RestoreToken(args) => {
            let issuer = args.issuer.as_deref();
            let token = args.common.work(|store| store.restore_token(&args.jti, issuer, now))?;
            args.common.print(&json!(token), output)
        }
        KeysCommand::RevokedTokens(args) => {
            let tokens = args.common.work(KeyStore::revoked_tokens)?;
            let tokens: Vec<Value> = tokens.iter().map(|token| json!(token)).collect();
            args.common.print_list("revoked_tokens", &tokens, revoked_table, output)
        }
    }
}

fn list(args: &ListArgs, now: UnixTime, output: &mut Output) -> Result<(), CliError> {
    let (keys, damage) = args.common.work(|store| Ok((store.list()?, store.damage())))?;
    if let Some(damage) = damage {
        output.complain("warning", format_args!("{damage}"));
    }
    let keys: Vec<Value> = keys.iter().map(|key| key.to_json(now)).collect();
    args.common.print_list("keys", &keys, to_table, output)
}

impl StoreArgs {
    /// Does something with the store, whose file exists.
    // A running penstock takes a new file for the one in use: an empty one would end all keys.
    fn work<T>(
        &self,
        work: impl FnOnce(&KeyStore) -> Result<T, KeyStoreError>,
    ) -> Result<T, CliError> {
        let (path, limits) = self.place()?;
        if !path.exists() {
            let error = Box::new(KeysError::NoFile { path });
            return Err(CliError::Command { code: FAILED, error });
        }
        Self::work_at(&path, limits, work)
    }

    /// Runs `work` with the store, and makes its file if there is none.
    fn work_or_make<T>(
        &self,
        work: impl FnOnce(&KeyStore) -> Result<T, KeyStoreError>,
    ) -> Result<T, CliError> {
        let (path, limits) = self.place()?;
        Self::work_at(&path, limits, work)
    }

    /// Returns the file, and the most that it holds.
    fn place(&self) -> Result<(PathBuf, StoreLimits), CliError> {
        let fail = |code, error: KeysError| CliError::Command { code, error: Box::new(error) };
        Ok(match &self.store {
            Some(path) => {
                // Without a configuration no limit is known, and a running penstock checks its own.
                (path.clone(), StoreLimits { keys: usize::MAX, revoked_tokens: usize::MAX })
            }
            None => {
                let auth = self.config.load()?.auth;
                let limits = StoreLimits::of(&auth);
                (auth.store.ok_or_else(|| fail(USAGE, KeysError::NoStore))?, limits)
            }
        })
    }

    fn work_at<T>(
        path: &Path,
        limits: StoreLimits,
        work: impl FnOnce(&KeyStore) -> Result<T, KeyStoreError>,
    ) -> Result<T, CliError> {
        KeyStore::open(path, limits).and_then(|store| work(&store)).map_err(|source| {
            let code = if matches!(source, KeyStoreError::Invalid(_)) { USAGE } else { FAILED };
            let error = Box::new(KeysError::Store { path: path.to_owned(), source });
            CliError::Command { code, error }
        })
    }

    /// Warns of names that the configuration does not have. Without a configuration none is known.
    fn warn_of_unknown(&self, described: &Value, output: &mut Output) {
        if let Some(config) = self.store.is_none().then(|| self.config.load().ok()).flatten() {
            for name in unknown_names(described, &config) {
                output.complain("warning", format_args!("{name}"));
            }
        }
    }

    fn print(&self, key: &Value, output: &mut Output) -> Result<(), CliError> {
        match self.json {
            true => output.line(format!("{key:#}")),
            false => output.text(to_lines(key)),
        }
    }

    fn print_list(
        &self,
        name: &str,
        rows: &[Value],
        to_table: fn(&[Value]) -> String,
        output: &mut Output,
    ) -> Result<(), CliError> {
        match self.json {
            true => output.line(format!("{:#}", json!({ name: rows }))),
            false => output.text(to_table(rows)),
        }
    }

    fn print_made(&self, key: &Value, is_quiet: bool, output: &mut Output) -> Result<(), CliError> {
        if is_quiet {
            // For `$(…)`: the secret alone, on one line.
            return output.line(key["key"].as_str().unwrap_or_default());
        }
        self.print(key, output)?;
        if !self.json {
            output.line("\nKeep the key now: it cannot be shown again.")?;
        }
        Ok(())
    }
}
