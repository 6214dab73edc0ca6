//! Typed access to metadata, with errors that name the key.

use crate::Error;
use std::cell::RefCell;
use std::collections::BTreeMap;
use welte_formats::checkpoint::{Checkpoint, Dialect, Value};

/// Where configurations of multimodal models have the keys of their language model. Qwen3-ASR's authors have one more section around it
/// and its encoder.
const SECTIONS: [&str; 5] = [
    "text_config",
    "language_config",
    "thinker_config.text_config",
    "thinker_config",
    // LFM2-Audio
    "lfm",
];

/// The metadata of a checkpoint.
pub(crate) struct Keys<'a> {
    pub(crate) checkpoint: &'a dyn Checkpoint,
    /// The architecture's prefix in GGUF keys; empty for Hugging Face.
    prefix: String,
    /// The name in configurations of each GGUF key that was asked for under both names.
    both: RefCell<BTreeMap<String, String>>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(checkpoint: &'a dyn Checkpoint, architecture: &str) -> Self {
        let prefix = match checkpoint.dialect() {
            Dialect::Gguf => format!("{architecture}."),
            Dialect::HuggingFace => String::new(),
        };
        Keys {
            checkpoint,
            prefix,
            both: RefCell::default(),
        }
    }

    pub(crate) fn is_gguf(&self) -> bool {
        self.checkpoint.dialect() == Dialect::Gguf
    }

    /// The full key in the checkpoint's dialect.
    pub(crate) fn name(&self, gguf: &str, hf: &str) -> String {
        if !gguf.is_empty() && !hf.is_empty() {
            self.both.borrow_mut().insert(gguf.into(), hf.into());
        }
        format!("{}{}", self.prefix, if self.is_gguf() { gguf } else { hf })
    }

    /// The same where configurations have several names for it: the first that this one has.
    pub(crate) fn first_name(&self, gguf: &str, hf: &[&str]) -> String {
        let known = hf.iter().find(|name| self.value(name).is_some());
        self.name(gguf, known.or(hf.first()).unwrap_or(&""))
    }

    /// The keys that were asked for under the names of both dialects: GGUF's, without prefix, and that of configurations.
    pub(crate) fn both_names(&self) -> BTreeMap<String, String> {
        self.both.take()
    }

    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::Key {
            origin: self.checkpoint.origin().into(),
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// A value. Multimodal models keep the keys of their language model in a section.
    pub(crate) fn value(&self, key: &str) -> Option<&'a Value> {
        let metadata = self.checkpoint.metadata();
        let mut sections = SECTIONS.into_iter();
        metadata
            .get(key)
            .or_else(|| sections.find_map(|section| metadata.get(&format!("{section}.{key}"))))
    }

    /// True if the checkpoint is multimodal.
    pub(crate) fn is_part(&self) -> bool {
        let has = |key: &str| self.checkpoint.metadata().contains_key(key);
        // Older checkpoints of Qwen have no section for their language model.
        let sections = [
            "text_config.hidden_size",
            "language_config.hidden_size",
            "vision_config.hidden_size",
            "audio_config.d_model",
            "thinker_config.text_config.hidden_size",
            "lfm.hidden_size",
            // jina-clip
            "vision_config.width",
        ];
        !self.is_gguf() && sections.into_iter().any(has)
    }

    /// An unsigned number. A list of equal numbers (one per layer) counts as one. Zeros in it stand for layers that lack
    /// the part.
    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let one = match value {
            Value::Array(list) => {
                let zero = |v: &&Value| matches!(v, Value::U64(0) | Value::I64(0));
                let mut rest = list.iter().filter(|v| !zero(v));
                match rest.next().or(list.first()) {
                    Some(first) if rest.all(|v| v == first) => first,
                    _ => {
                        return Err(
                            self.error(key, "differs from layer to layer, which is not supported")
                        );
                    }
                }
            }
            other => other,
        };
        let number = match one {
            Value::U64(v) => u32::try_from(*v).ok(),
            Value::I64(v) => u32::try_from(*v).ok(),
            _ => None,
        };
        number
            .map(Some)
            .ok_or_else(|| self.error(key, "is not a number from 0 to 4294967295"))
    }

    /// A list of one number from 1 to `max` per layer; `None` if the value is missing or no list.
    pub(crate) fn each(&self, key: &str, layers: u32, max: u32) -> Result<Option<Vec<u32>>, Error> {
        self.each_from(key, layers, 1, max)
    }

    /// The same from `least` on.
    pub(crate) fn each_from(
        &self,
        key: &str,
        layers: u32,
        least: u32,
        max: u32,
    ) -> Result<Option<Vec<u32>>, Error> {
        let Some(Value::Array(list)) = self.value(key) else {
            return Ok(None);
        };
        if list.len() != layers as usize {
            let problem = format!("has {} entries for {layers} layers", list.len());
            return Err(self.error(key, problem));
        }
        let number = |value: &Value| match value {
            Value::U64(v) => u32::try_from(*v).ok(),
            Value::I64(v) => u32::try_from(*v).ok(),
            _ => None,
        };
        let known = |value| number(value).filter(|v| (least..=max).contains(v));
        let all: Option<Vec<u32>> = list.iter().map(known).collect();
        all.map(Some).ok_or_else(|| {
            self.error(
                key,
                format!("has an entry that is not a number from {least} to {max}"),
            )
        })
    }

    /// A number from 1 to `max`; an error if it is missing and has no default.
    pub(crate) fn size(&self, key: &str, default: Option<u32>, max: u32) -> Result<u32, Error> {
        let number = self
            .u32(key)?
            .or(default)
            .ok_or_else(|| self.error(key, "is missing"))?;
        if number == 0 || number > max {
            return Err(self.error(key, format!("is {number}; must be from 1 to {max}")));
        }
        Ok(number)
    }

    /// A finite float.
    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        let number = match self.value(key) {
            None => return Ok(None),
            Some(Value::F64(v)) => *v,
            Some(Value::U64(v)) => *v as f64,
            Some(Value::I64(v)) => *v as f64,
            Some(_) => f64::NAN,
        };
        if number.is_finite() {
            Ok(Some(number))
        } else {
            Err(self.error(key, "is not a finite number"))
        }
    }

    /// A float above zero.
    pub(crate) fn positive(&self, key: &str, default: Option<f64>) -> Result<f64, Error> {
        let number = self
            .f64(key)?
            .or(default)
            .ok_or_else(|| self.error(key, "is missing"))?;
        if number > 0.0 && (number as f32).is_finite() && number as f32 > 0.0 {
            Ok(number)
        } else {
            Err(self.error(key, format!("is {number}; must be above 0")))
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(self.error(key, "is not a boolean")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(_) => Err(self.error(key, "is not text")),
        }
    }
}
