//! The folders of the files that a process creates. Only `check` and a start need them: other
//! commands read the configuration on machines where penstock does not run.

use std::io::ErrorKind;
use std::path::Path;

use super::Soundness;
use crate::sections::Config;
use crate::sections::access_log::LogTarget;
use crate::syntax::document::Node;
use crate::syntax::errors::{ConfigError, Fault, MissingFolder, Problem};

impl Config {
    /// Refuses files in folders that do not exist.
    ///
    /// # Errors
    /// [`ConfigError`] with each of them.
    pub fn check_folders(&self) -> Result<(), ConfigError> {
        let fault = |missing: &MissingFolder| {
            let MissingFolder { place, key, folder } = missing.clone();
            Fault { place, problem: Problem::NoFolder { key, folder } }
        };
        let faults: Vec<Fault> = self.missing_folders.iter().map(fault).collect();
        match faults.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Invalid { faults, warnings: Vec::new() }),
        }
    }
}

/// Returns the files of `config` in folders that do not exist, in the order of the document. The
/// ledger's is none of them: without it, counts stay in memory, and no request fails.
pub(crate) fn missing_folders(
    config: &Config,
    root: &Node,
    sound: &Soundness,
) -> Vec<MissingFolder> {
    let log = match &config.access_log.path {
        LogTarget::File(path) => Some(path.as_path()),
        LogTarget::Off | LogTarget::Stdout => None,
    };
    let files = [
        ("access_log", "path", "access_log.path", log),
        ("auth", "store", "auth.store", config.auth.store.as_deref()),
    ];
    let mut missing: Vec<MissingFolder> = files
        .into_iter()
        .filter(|(section, ..)| sound.holds_at(root, section))
        .filter_map(|(section, name, key, file)| {
            let folder = file?.parent().filter(|folder| is_missing(folder))?.to_owned();
            let place = root.at(section).at(name).place.clone();
            Some(MissingFolder { place, key, folder })
        })
        .collect();
    missing.sort_by(|one, other| one.place.cmp(&other.place));
    missing
}

/// Returns whether a folder does not exist. One that this user may not see may exist for others.
fn is_missing(folder: &Path) -> bool {
    match std::fs::metadata(folder) {
        Ok(found) => !found.is_dir(),
        Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}
