//! Finds the DFlash drafter of a model.

use std::fs::read_dir;
use std::path::Path;

/// The drafter beside a model's file or directory ([`LoadOptions::draft_beside`](crate::LoadOptions::draft_beside)), the first by name.
pub(super) fn beside(model: &Path) -> Option<String> {
    let model = std::path::absolute(model).ok()?;
    let own = model.file_name()?.to_str()?.to_lowercase();
    let is_directory = model.is_dir();
    let wanted = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().to_lowercase();
        let of_kind = match is_directory {
            true => name.starts_with(&own) && path.is_dir(),
            false => name.ends_with(".gguf") && path.is_file(),
        };
        of_kind && name.contains("dflash") && name != own
    };
    let paths = read_dir(model.parent()?).ok()?;
    let paths = paths.filter_map(|entry| Some(entry.ok()?.path()));
    let found = paths.filter(|path| wanted(path)).min()?;
    found.to_str().map(String::from)
}
