//! How fast stored pages are read and prompts are computed. The rates are kept beside the pages, so that a new process
//! knows the faster way from its first prompt on.
//!
//! ```text
//! 0   magic, with the version of this layout
//! 8   SHA-256 over the identity of the pages and the device's name
//! 40  bytes of pages read per second, as a 64-bit float
//! 48  tokens of prompts computed per second, as a 64-bit float
//! 56  SHA-256 of all bytes before
//! ```

use super::file::{Layout, Sha256, sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"WELTERT1";
const SUM_AT: usize = 56;
/// Rates that were kept longer ago are measured anew: the disk or the load of the machine may be another one.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// Bytes and tokens per second, as measured; 0 where nothing has been measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Bytes of stored pages read and checked per second.
    pub(crate) read: f64,
    /// Tokens of a prompt computed per second.
    pub(crate) compute: f64,
}

impl Rates {
    /// True if both have been measured.
    pub(super) fn are_known(&self) -> bool {
        [self.read, self.compute]
            .iter()
            .all(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// True if reading these tokens is expected to be faster than computing them, or if nobody knows.
    pub(crate) fn reading_is_faster(&self, bytes: u64, tokens: usize) -> bool {
        !self.are_known() || bytes as f64 / self.read < tokens as f64 / self.compute
    }
}

/// The file that keeps the rates of a model on a device.
pub(super) struct RatesFile {
    path: PathBuf,
    key: Sha256,
}

impl RatesFile {
    pub(super) fn new(folder: &Path, layout: &Layout, device: &str) -> RatesFile {
        let key = sha256([layout.start().name.as_slice(), device.as_bytes()]);
        let name: String = key[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        RatesFile {
            path: folder.join(format!("{name}.rates")),
            key,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The rates of the file. Without a valid file that is new enough, nothing is known.
    pub(super) fn read(&self) -> Rates {
        let age = fs::metadata(&self.path).and_then(|data| data.modified());
        let fresh = |time: SystemTime| time.elapsed().is_ok_and(|age| age <= VALID);
        match fs::read(&self.path) {
            Ok(bytes) if age.is_ok_and(fresh) => self.decode(&bytes).unwrap_or_default(),
            _ => Rates::default(),
        }
    }

    pub(super) fn encode(&self, rates: Rates) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.key);
        bytes.extend(rates.read.to_le_bytes());
        bytes.extend(rates.compute.to_le_bytes());
        bytes.extend(sha256([bytes.as_slice()]));
        bytes
    }

    fn decode(&self, bytes: &[u8]) -> Option<Rates> {
        let (body, sum) = bytes.split_at_checked(SUM_AT)?;
        let number = |at: usize| Some(f64::from_le_bytes(body[at..at + 8].try_into().ok()?));
        let rates = Rates {
            read: number(40)?,
            compute: number(48)?,
        };
        let valid = sum == sha256([body]) && body.starts_with(MAGIC) && body[8..40] == self.key;
        (valid && rates.are_known()).then_some(rates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_must_be_faster_than_computing() {
        let rates = Rates {
            read: 100.0,
            compute: 10.0,
        };
        let faster = [99, 100, 101].map(|bytes| rates.reading_is_faster(bytes, 10));
        assert_eq!(faster, [true, false, false]);
        for unknown in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            let read = Rates {
                read: unknown,
                ..rates
            };
            let compute = Rates {
                compute: unknown,
                ..rates
            };
            for rates in [read, compute] {
                assert!(
                    !rates.are_known() && rates.reading_is_faster(u64::MAX, 1),
                    "{unknown}"
                );
            }
        }
    }
}
