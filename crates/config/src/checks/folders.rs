//! The files that a process creates: two settings may not name the same one. Their folders, and
//! folders in their place, matter to `check` and a start alone: other commands read the
//! configuration on machines where penstock does not run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Soundness;
use crate::sections::Config;
use crate::sections::access_log::LogTarget;
use crate::syntax::document::Node;
use crate::syntax::errors::{ConfigError, ConfigFault, Problem, UnusablePath};
use crate::syntax::reader::Reader;

impl Config {
    /// Refuses files in folders that do not exist, and folders in place of files.
    ///
    /// # Errors
    /// [`ConfigError`] with each of them.
    pub fn check_folders(&self) -> Result<(), ConfigError> {
        let fault = |path: &UnusablePath| {
            let UnusablePath { place, key, folder, is_there } = path.clone();
            let problem = match is_there {
                true => Problem::NoFile { key, folder },
                false => Problem::NoFolder { key, folder },
            };
            ConfigFault { place, problem }
        };
        let faults: Vec<ConfigFault> = self.unusable_paths.iter().map(fault).collect();
        match faults.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Invalid { faults, warnings: Vec::new() }),
        }
    }
}

/// Refuses a file that two settings name: each would destroy what the other one writes.
pub(super) fn check_same_files(
    config: &Config,
    root: &Node,
    sound: &Soundness,
    reader: &mut Reader,
) {
    let files = [
        ("access_log", "path", "access_log.path", log_file(config)),
        ("ledger", "path", "ledger.path", config.ledger.path.as_deref()),
        ("auth", "store", "auth.store", config.auth.store.as_deref()),
    ];
    let mut seen: Vec<(&'static str, PathBuf)> = Vec::new();
    for (section, name, key, file) in files {
        let Some(file) = file.filter(|_| sound.holds_at(root, section)) else { continue };
        let file = in_real_folder(file);
        match seen.iter().find(|(_, other)| *other == file) {
            Some((other, _)) => {
                let place = &root.at(section).at(name).place;
                reader.fault(place, Problem::SameFile { key, other });
            }
            None => seen.push((key, file)),
        }
    }
}

/// Returns a path in the spelling that all paths to its file share, if its folder exists.
fn in_real_folder(file: &Path) -> PathBuf {
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    folder.zip(file.file_name()).map_or_else(|| file.to_owned(), |(folder, name)| folder.join(name))
}

fn log_file(config: &Config) -> Option<&Path> {
    match &config.access_log.path {
        LogTarget::File(path) => Some(path.as_path()),
        LogTarget::Off | LogTarget::Stdout => None,
    }
}

/// Returns the files of `config` that are folders or in folders that do not exist, in the order of
/// the document. The ledger's is none of them: without it, counts stay in memory, and no request
/// fails.
pub(crate) fn unusable_paths(config: &Config, root: &Node, sound: &Soundness) -> Vec<UnusablePath> {
    let files = [
        ("access_log", "path", "access_log.path", log_file(config)),
        ("auth", "store", "auth.store", config.auth.store.as_deref()),
    ];
    let mut unusable: Vec<UnusablePath> = files
        .into_iter()
        .filter(|(section, ..)| sound.holds_at(root, section))
        .filter_map(|(section, name, key, file)| {
            let file = file?;
            let is_there = file.is_dir();
            let missing = || file.parent().filter(|folder| is_missing(folder));
            let folder = if is_there { file } else { missing()? }.to_owned();
            let place = root.at(section).at(name).place.clone();
            Some(UnusablePath { place, key, folder, is_there })
        })
        .collect();
    unusable.sort_by(|one, other| one.place.cmp(&other.place));
    unusable
}

/// Returns whether a folder does not exist. One that this user may not see may exist for others.
fn is_missing(folder: &Path) -> bool {
    match std::fs::metadata(folder) {
        Ok(found) => !found.is_dir(),
        Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}
