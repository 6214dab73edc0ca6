//! Finds the DFlash drafter of a model.

use crate::Error;
use std::cmp::Reverse;
use std::fs::read_dir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use welte_formats::WithDraft;
use welte_formats::checkpoint::Checkpoint;
use welte_models::HeadKind;

/// A model with the drafter beside it ([`LoadOptions::draft_beside`](crate::LoadOptions::draft_beside)): of those that fit it, the one whose name
/// has most in common with the model's. If none fits, the first is returned: its reader says why.
pub(super) fn with_one_beside(model: Arc<dyn Checkpoint>) -> Result<Arc<dyn Checkpoint>, Error> {
    let spec = welte_models::spec(&*model)?;
    let mut first = None;
    for path in beside(Path::new(model.origin())) {
        let both = match welte_formats::open(Path::new(&path)) {
            Ok(head) if welte_models::head_kind(&*head) != Some(HeadKind::Dflash) => continue,
            Ok(head) => Ok(WithDraft::new(model.clone(), head.into())),
            Err(error) => Err(Error::from(error)),
        };
        match both {
            Ok(both) if spec.has_draft_layer(&both) => return Ok(Arc::new(both)),
            other => first = first.or(Some(other)),
        }
    }
    let none = || Error::NoDrafter {
        origin: model.origin().to_string(),
    };
    Ok(Arc::new(first.ok_or_else(none)??))
}

/// What is called so beside a model's file or directory, best first.
fn beside(model: &Path) -> Vec<String> {
    let Ok(model) = std::path::absolute(model) else {
        return Vec::new();
    };
    let named = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default().to_lowercase()
    };
    let own = named(&model);
    let is_directory = model.is_dir();
    let common = |name: &str| {
        own.chars()
            .zip(name.chars())
            .take_while(|(a, b)| a == b)
            .count()
    };
    let rank = |path: PathBuf| {
        let name = named(&path);
        let of_kind = match is_directory {
            true => name.starts_with(&own) && path.is_dir(),
            false => name.ends_with(".gguf") && path.is_file(),
        };
        let wanted = of_kind && name.contains("dflash") && name != own;
        let path = path.to_str().filter(|_| wanted)?.to_string();
        Some((Reverse(common(&name)), name.len(), path))
    };
    let paths = model.parent().and_then(|folder| read_dir(folder).ok());
    let paths = paths.into_iter().flatten();
    let paths = paths.filter_map(|entry| rank(entry.ok()?.path()));
    let mut ranked: Vec<_> = paths.collect();
    ranked.sort();
    ranked.into_iter().map(|(.., path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_is_most_like_the_models_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = at("Qwen3-8B-Q4_K_M.gguf");
        for name in [
            "Qwen3-4B-DFlash.gguf",
            "Qwen3-8B-DFlash-b16.gguf",
            "qwen3-8b-dflash.gguf",
            "another-DFlash.gguf",
            "Qwen3-8B-DFlash.txt",
            "Qwen3-8B-Q8_0.gguf",
        ] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::write(&own, "").unwrap();
        let wanted = [
            "qwen3-8b-dflash.gguf",
            "Qwen3-8B-DFlash-b16.gguf",
            "Qwen3-4B-DFlash.gguf",
            "another-DFlash.gguf",
        ];
        let wanted = wanted.map(|name| at(name).to_str().unwrap().to_string());
        assert_eq!(beside(&own), wanted);
        for name in [
            "Qwen3-8B",
            "Qwen3-8B-Coder-DFlash",
            "Qwen3-8B-DFlash",
            "Qwen3-4B-DFlash",
        ] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let wanted = ["Qwen3-8B-DFlash", "Qwen3-8B-Coder-DFlash"];
        let wanted = wanted.map(|name| at(name).to_str().unwrap().to_string());
        assert_eq!(beside(&at("Qwen3-8B")), wanted);
    }
}
