//! Errors, each with its place and a remedy.

use std::path::{Path, PathBuf};

/// An error of the hub or of its cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a model's name.
    #[error(
        "{text}: {problem}; a model is named ORG/NAME, ORG/NAME:QUANT or ORG/NAME:FILE, with @REVISION if it is not main"
    )]
    Name {
        /// The text.
        text: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An environment variable has an unusable value.
    #[error("{variable}: {problem}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The name selects no file of the model, or more than one.
    #[error("{repo}: {problem}")]
    Choice {
        /// The model.
        repo: String,
        /// What is missing, and what is available.
        problem: String,
    },
    /// The model is not cached, and the hub must not be asked.
    #[error("{what} is not in the cache ({}), and HF_HUB_OFFLINE is set; unset it, or pull the model first", .cache.display())]
    Offline {
        /// The model.
        what: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The model is not in the cache.
    #[error("{what} is not in the cache ({}); `welte list` shows the cached models", .cache.display())]
    NotCached {
        /// The model.
        what: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub refused.
    #[error("{what}: {remedy} (HTTP {status} from {host})")]
    Refused {
        /// The model or file.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The host that answered.
        host: String,
        /// What the refusal means and what to do.
        remedy: String,
    },
    /// The host did not answer, or the connection broke off.
    #[error(
        "{what}: no answer from {host}: {problem}; check the network, HTTPS_PROXY and HF_ENDPOINT, then try again: downloaded parts are kept"
    )]
    Unreachable {
        /// The model or file.
        what: String,
        /// The host.
        host: String,
        /// What happened.
        problem: String,
    },
    /// The answer is unusable.
    #[error("{what}: {problem} (from {host})")]
    Answer {
        /// The model or file.
        what: String,
        /// The host that answered.
        host: String,
        /// What is wrong.
        problem: String,
    },
    /// The downloaded bytes do not have the hub's checksum.
    #[error(
        "{file}: the checksum is {found}, expected {expected}; the download was deleted, pull it again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The hub's checksum.
        expected: String,
        /// The checksum of the bytes.
        found: String,
    },
    /// The disk is too full.
    #[error("{what}: needs {} more, but {} has {} free; free some space (`welte rm`), or set HF_HUB_CACHE to a larger disk", human(*.needed), .folder.display(), human(*.free))]
    Space {
        /// The model.
        what: String,
        /// Bytes still to be downloaded.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// The cache.
        folder: PathBuf,
    },
    /// Another process is downloading the model.
    #[error("{repo}: another process is downloading it; wait until it is done, or end it")]
    Busy {
        /// The model.
        repo: String,
    },
    /// A file operation in the cache failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    }

    /// True if the cause is the network or a busy hub, so that a cached copy may be used instead.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Error::Unreachable { .. } => true,
            Error::Refused { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

/// A byte count for people.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_in_the_largest_unit_that_fits() {
        for (bytes, said) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (3 << 29, "1.5 GiB"),
            (5 << 40, "5.0 TiB"),
            (1 << 52, "4096.0 TiB"),
        ] {
            assert_eq!(human(bytes), said);
        }
    }

    /// A cached copy serves while the hub is busy, not where the hub says that there is no such model.
    #[test]
    fn a_busy_hub_is_temporary() {
        for (status, temporary) in [
            (429, true),
            (500, true),
            (503, true),
            (401, false),
            (404, false),
            (499, false),
        ] {
            let refused = Error::Refused {
                what: "m".into(),
                status,
                host: "hub".into(),
                remedy: String::new(),
            };
            assert_eq!(refused.is_temporary(), temporary, "{status}");
        }
    }
}
