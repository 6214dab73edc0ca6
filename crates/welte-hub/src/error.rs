//! What can go wrong, with the place and the remedy.

use std::path::{Path, PathBuf};

/// An error of the hub or of its cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that is not a model's.
    #[error(
        "{text}: {problem}; a model is named ORG/NAME, ORG/NAME:QUANT or ORG/NAME:FILE, with @REVISION if it is not main"
    )]
    Name {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A variable of the environment that cannot be used.
    #[error("{variable}: {problem}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// No file of the model is meant by what was asked for.
    #[error("{repo}: {problem}")]
    Choice {
        /// The model.
        repo: String,
        /// What is missing, and what there is.
        problem: String,
    },
    /// Nothing may be asked, and the cache does not have it.
    #[error("{what} is not in the cache ({}), and HF_HUB_OFFLINE is set; unset it, or pull the model first", .cache.display())]
    Offline {
        /// The model.
        what: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The cache does not have it.
    #[error("{what} is not in the cache ({}); `welte list` shows what is", .cache.display())]
    NotCached {
        /// The model.
        what: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The hub said no.
    #[error("{what}: {remedy} (HTTP {status} from {host})")]
    Refused {
        /// The model or file.
        what: String,
        /// The status of the answer.
        status: u16,
        /// Who answered.
        host: String,
        /// What it means and what to do.
        remedy: String,
    },
    /// No answer came.
    #[error(
        "{what}: no answer from {host}: {problem}; check the network, HTTPS_PROXY and HF_ENDPOINT, then ask again: what is there already is kept"
    )]
    Unreachable {
        /// The model or file.
        what: String,
        /// Who was asked.
        host: String,
        /// What happened.
        problem: String,
    },
    /// An answer that makes no sense.
    #[error("{what}: {problem} (from {host})")]
    Answer {
        /// The model or file.
        what: String,
        /// Who answered.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What came is not what the hub said it would be.
    #[error(
        "{file}: the checksum is {found} and should be {expected}; what was downloaded has been deleted, pull it again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// What the hub says.
        expected: String,
        /// What the bytes give.
        found: String,
    },
    /// It would not fit.
    #[error("{what}: needs {} more and {} has {} free; make room (`welte rm`), or set HF_HUB_CACHE to a larger disk", human(*.needed), .folder.display(), human(*.free))]
    Space {
        /// The model.
        what: String,
        /// Bytes still to come.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// The cache.
        folder: PathBuf,
    },
    /// Somebody else is at it.
    #[error("{repo}: another process is downloading it; wait until it is done, or end it")]
    Busy {
        /// The model.
        repo: String,
    },
    /// A file or folder of the cache.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    }

    /// True if asking again, or elsewhere, may help: nobody answered, or not now.
    pub(crate) fn is_about_the_way(&self) -> bool {
        match self {
            Error::Unreachable { .. } => true,
            Error::Refused { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

/// A number of bytes for people.
pub fn human(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ => format!("{value:.1} {unit}"),
    }
}
