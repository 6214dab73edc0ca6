//! Which device a model runs on.

use crate::Error;
use crate::devices::KINDS;
use std::fmt;
use std::str::FromStr;
use welte_device::DeviceId;

/// The choice of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first device that is present, runs the model and has the memory for it. The CPU comes last.
    #[default]
    Auto,
    /// This device, or an error.
    Named(DeviceId),
    /// Several devices of a kind, which share the model as ranks: those whose bits are set.
    Ranks {
        /// The kind.
        kind: &'static str,
        /// Their numbers.
        numbers: u64,
    },
    /// A device of this name that may not be here: for planning alone.
    Assumed(&'static str),
}

impl DeviceChoice {
    /// The CPU.
    pub const CPU: DeviceChoice = DeviceChoice::Named(DeviceId::only("cpu"));
}

impl FromStr for DeviceChoice {
    type Err = Error;

    /// Reads `auto`, the name of a kind of device, a name and a number (`cuda:1`) or numbers (`cuda:0,1`: ranks), or the name of a device to plan for (`h200`).
    fn from_str(name: &str) -> Result<Self, Error> {
        if name == "auto" {
            return Ok(DeviceChoice::Auto);
        }
        let mut models = KINDS.iter().flat_map(|kind| kind.models);
        if let Some(model) = models.find(|model| **model == name) {
            return Ok(DeviceChoice::Assumed(model));
        }
        let unknown = || Error::unknown_device(name);
        let (kind, number) = match name.split_once(':') {
            Some((kind, number)) => (kind, Some(number)),
            None => (name, None),
        };
        let kind = KINDS.iter().find(|k| k.name == kind).ok_or_else(unknown)?;
        if let Some(list) = number.filter(|list| list.contains(',') && kind.numbered) {
            let mut numbers = 0;
            for number in list.split(',') {
                let digits = Some(number).filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
                let number: u32 = digits.and_then(|n| n.parse().ok()).ok_or_else(unknown)?;
                let bit = 1u64.checked_shl(number).ok_or_else(unknown)?;
                if numbers & bit != 0 {
                    return Err(unknown());
                }
                numbers |= bit;
            }
            let kind = kind.name;
            return Ok(DeviceChoice::Ranks { kind, numbers });
        }
        let ordinal = match number {
            None => 0,
            // `parse` alone would also take a sign.
            Some(digits) if kind.numbered && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| unknown())?
            }
            Some(_) => return Err(unknown()),
        };
        Ok(DeviceChoice::Named(kind.id(ordinal)))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Named(id) => id.fmt(f),
            DeviceChoice::Ranks { kind, numbers } => {
                let numbers: Vec<String> = bits(*numbers).map(|n| n.to_string()).collect();
                write!(f, "{kind}:{}", numbers.join(","))
            }
            DeviceChoice::Assumed(model) => f.write_str(model),
        }
    }
}

/// The numbers of the bits that are set.
pub(crate) fn bits(set: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| set >> bit & 1 == 1)
}

/// What starts the device of a choice while a model's description is read; `None` if no device of the choice takes long to start.
pub(crate) fn starter(choice: DeviceChoice) -> Option<impl FnOnce() + Send> {
    let (kind, ordinal) = match choice {
        DeviceChoice::Named(id) => (KINDS.iter().find(|kind| kind.name == id.kind)?, id.ordinal),
        DeviceChoice::Auto => (KINDS.iter().find(|kind| kind.is_automatic())?, 0),
        DeviceChoice::Assumed(_) | DeviceChoice::Ranks { .. } => return None,
    };
    let start = kind.start?;
    Some(move || start(ordinal))
}

/// A device that an automatic choice did not take.
#[derive(Debug)]
pub struct Skipped {
    /// Which device.
    pub device: DeviceId,
    /// Why not.
    pub why: Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (name, device) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::CPU),
            ("cuda", DeviceChoice::Named(DeviceId::numbered("cuda", 0))),
            ("cuda:3", DeviceChoice::Named(DeviceId::numbered("cuda", 3))),
            (
                "reference",
                DeviceChoice::Named(DeviceId::only("reference")),
            ),
            ("h200", DeviceChoice::Assumed("h200")),
            (
                "cuda:0,3",
                DeviceChoice::Ranks {
                    kind: "cuda",
                    numbers: 0b1001,
                },
            ),
        ] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap(), device);
        }
        assert_eq!(
            "cuda".parse::<DeviceChoice>().unwrap().to_string(),
            "cuda:0"
        );
        let ranks = "cuda:3,0".parse::<DeviceChoice>().unwrap();
        assert_eq!(ranks.to_string(), "cuda:0,3");
        assert_eq!("cpu".parse::<DeviceChoice>().unwrap().to_string(), "cpu");
    }

    #[test]
    fn an_unknown_device_is_refused_with_the_names_there_are() {
        for name in [
            "",
            "npu",
            "cpu:0",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "cuda:1,",
            "cuda:1,1",
            "cuda:0,64",
            "cpu:0,1",
            "cuda:99999999999",
            "CPU",
        ] {
            let error = name.parse::<DeviceChoice>().unwrap_err();
            let Error::UnknownDevice { name: said, known } = error else {
                panic!("{error}")
            };
            assert_eq!(said, name);
            let portable = [
                "gpu", "gpu:N", "vulkan", "vulkan:N", "metal", "metal:N", "dx12", "dx12:N",
            ];
            let portable = portable.into_iter().filter(|_| cfg!(feature = "gpu"));
            let first = ["auto", "cuda", "cuda:N"].into_iter();
            let planned = KINDS.iter().flat_map(|kind| kind.models).copied();
            let first = first.chain(planned).chain(portable);
            let wanted: Vec<&str> = first.chain(["cpu", "reference"]).collect();
            assert_eq!(known, wanted);
        }
    }
}
