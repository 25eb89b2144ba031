//! How do file, environment and command line become one configuration?
//!
//! A flag wins over a variable, and that over the file. Whatever is wrong is collected on the way, so
//! that one reading names all of it: what the text says wrongly, what does not fit together, and the
//! files that cannot be used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use retrysafe::stores::any::StoreUrl;

use super::access::AdminAccess;
use super::environment::CONFIG_VARIABLE;
use super::source::{self, Complaint, Origin, Source};
use super::warnings::warnings;
use super::worker::WorkerConfig;
use super::{Config, File, Flags, environment, files, resolve};

/// The file that is read where nobody names one, if it is in the working folder.
pub(crate) const CONFIG_FILE: &str = "retrysafe.toml";

/// A configuration that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub config: Config,
    /// The file that was read, if there is one.
    pub file: Option<PathBuf>,
    /// The file that would say all of it, with secrets blotted out.
    pub whole: File,
    /// What is not wrong, and yet most likely not meant.
    pub warnings: Vec<String>,
}

/// Everything that is wrong with a configuration.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The file, if there is one.
    file: Option<PathBuf>,
    complaints: Vec<Complaint>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, complaint) in self.complaints.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            match (&self.file, &complaint.origin) {
                (Some(file), Origin::Nobody | Origin::File(..)) => {
                    write!(f, "{}: {complaint}", file.display())?;
                }
                (Some(_), Origin::Variable(_) | Origin::Flag(_)) | (None, _) => {
                    write!(f, "{complaint}")?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for Wrong {}

/// Reads the whole configuration. `try_files` says what is wrong with the files that it names.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn load(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    try_files: impl Fn(&File) -> Vec<Complaint>,
) -> Result<Loaded, Wrong> {
    let path = path(flags, variables);
    let source = gather(path.as_deref(), flags, variables)?;
    let resolved = resolve(&source.file);
    let mut found = resolved.as_ref().err().cloned().unwrap_or_default();
    found.extend(try_files(&source.file));
    let complaints = together(source.complaints, source.origins.locate(found), source.has_gaps);
    match resolved {
        Ok(config) if complaints.is_empty() => {
            let whole = super::whole(&source.file, &config);
            let warnings = warnings(&source.file, variables);
            Ok(Loaded { config, file: path, whole, warnings })
        }
        Ok(_) | Err(_) => Err(Wrong { file: path, complaints }),
    }
}

/// Reads where records are kept, and nothing else: whoever looks after a store needs no upstream, and
/// no certificate.
///
/// # Errors
///
/// What is wrong with the text of the file, with a variable, or with this setting.
pub(crate) fn store_url(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
) -> Result<StoreUrl, Wrong> {
    part(flags, variables, super::store)
}

/// Reads how the admin listener is reached, and nothing else.
///
/// # Errors
///
/// What is wrong with the text of the file, with a variable, or with the store's URL.
pub(crate) fn admin_access(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
) -> Result<AdminAccess, Wrong> {
    part(flags, variables, |file, wrong| {
        super::store(file, wrong).map(|store| AdminAccess::of(file, &store))
    })
}

/// Reads what a worker needs, and nothing else: it stands in front of no API. `try_files` says what is wrong with the files that it
/// names.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn worker_config(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    try_files: impl Fn(&File) -> Vec<Complaint>,
) -> Result<WorkerConfig, Wrong> {
    part(flags, variables, |file, wrong| {
        let config = WorkerConfig::read(file, wrong);
        wrong.extend(try_files(file));
        config
    })
}

/// Reads a part of the configuration.
fn part<T>(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    read: impl FnOnce(&File, &mut Vec<Complaint>) -> Option<T>,
) -> Result<T, Wrong> {
    let path = path(flags, variables);
    let source = gather(path.as_deref(), flags, variables)?;
    let mut found = Vec::new();
    let part = read(&source.file, &mut found);
    let complaints = together(source.complaints, source.origins.locate(found), source.has_gaps);
    match part {
        Some(part) if complaints.is_empty() => Ok(part),
        Some(_) | None => Err(Wrong { file: path, complaints }),
    }
}

/// Everything that is wrong with a file's text taken alone: without environment, flags and the files that it names.
pub(crate) fn complaints_of(text: &str) -> Vec<Complaint> {
    let source = source::read(text);
    let found = resolve(&source.file).err().unwrap_or_default();
    together(source.complaints, source.origins.locate(found), source.has_gaps)
}

/// The configuration file's name: what the flag says, or the variable, or else the usual one if there is such a file here.
fn path(flags: &Flags, variables: &BTreeMap<String, String>) -> Option<PathBuf> {
    let named = flags.config.clone().or_else(|| variables.get(CONFIG_VARIABLE).map(Into::into));
    // Where nobody may look, reading says why. A file that is there and does not count would be worse.
    let is_here = || Path::new(CONFIG_FILE).try_exists().unwrap_or(true);
    named.or_else(|| is_here().then(|| CONFIG_FILE.into()))
}

/// File, environment and flags in one, and what is wrong with each of them.
fn gather(
    path: Option<&Path>,
    flags: &Flags,
    variables: &BTreeMap<String, String>,
) -> Result<Source, Wrong> {
    let mut source = match path {
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => source::read(&text),
            Err(error) => {
                let what = files::unreadable(path, &error);
                let complaints = vec![Complaint::new("", what)];
                return Err(Wrong { file: None, complaints });
            }
        },
        None => Source::default(),
    };
    let Source { file, origins, complaints, .. } = &mut source;
    complaints.extend(environment::overlay(file, variables, origins));
    flags.overlay(file, origins);
    Ok(source)
}

/// All complaints, without those that only follow from others: a setting whose value was wrong is not
/// missing, and what is missing may stand where the text could not be read.
fn together(read: Vec<Complaint>, found: Vec<Complaint>, has_gaps: bool) -> Vec<Complaint> {
    let wrong: BTreeSet<String> = read.iter().map(|complaint| complaint.setting.clone()).collect();
    let follows = |complaint: &Complaint| {
        wrong.contains(&complaint.setting) || (has_gaps && complaint.origin == Origin::Nobody)
    };
    let found = found.into_iter().filter(|complaint| !follows(complaint));
    let mut all: Vec<Complaint> = read.into_iter().chain(found).collect();
    all.sort_by_key(|complaint| match complaint.origin {
        Origin::File(line, column) => (0, line, column),
        Origin::Nobody => (1, 0, 0),
        Origin::Variable(_) | Origin::Flag(_) => (2, 0, 0),
    });
    all
}
