//! The licence of a model: the front matter of a directory's README, and keys of GGUF files.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use welte_formats::checkpoint::{Metadata, Value};

/// The most bytes of a README that are read for its front matter.
const README: u64 = 64 << 10;

/// The texts that a directory's README says before its first heading, between lines of three dashes. It is where licences are named.
pub(crate) fn front_matter(origin: &str) -> BTreeMap<String, String> {
    let mut text = Vec::new();
    let file = Path::new(origin).join("README.md");
    let read = std::fs::File::open(file).and_then(|file| file.take(README).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    if read.is_err() || lines.next().is_none_or(|first| first.trim_end() != "---") {
        return BTreeMap::new();
    }
    let fields = lines.take_while(|line| line.trim_end() != "---");
    let fields = fields.filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        let value = value.trim().trim_matches(['"', '\'']);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_text = !value.is_empty() && !key.is_empty() && key.chars().all(plain);
        is_text.then(|| {
            (
                key.to_string(),
                value
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(256)
                    .collect(),
            )
        })
    });
    fields.collect()
}

/// The keys of a licence in GGUF, and its fields in a README.
const LICENCE: [(&str, &str); 3] = [
    ("general.license", "license"),
    ("general.license.name", "license_name"),
    ("general.license.link", "license_link"),
];

/// The licence of a directory, by its keys in GGUF.
pub(crate) fn licence_keys(origin: &str) -> Metadata {
    let said = front_matter(origin);
    let keys = LICENCE.into_iter().filter_map(|(key, field)| {
        let text = said.get(field)?.clone();
        Some((key.to_string(), Value::String(text)))
    });
    keys.collect()
}

/// A README that names the licence of a GGUF file, if the file does.
pub(crate) fn readme_of_licence(metadata: &Metadata) -> Option<String> {
    let fields = LICENCE.into_iter().filter_map(|(key, field)| {
        let Some(Value::String(text)) = metadata.get(key) else {
            return None;
        };
        let plain = !text.is_empty() && !text.contains(['\n', '\r', '"']);
        plain.then(|| format!("{field}: \"{text}\"\n"))
    });
    let fields: String = fields.collect();
    (!fields.is_empty()).then(|| format!("---\n{fields}---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_read_from_a_readme() {
        let folder = tempfile::tempdir().unwrap();
        let origin = folder.path().to_str().unwrap();
        assert!(front_matter(origin).is_empty());
        let write = |text: &str| std::fs::write(folder.path().join("README.md"), text).unwrap();
        write(
            "---\nlicense: other\nlicense_name: \"fox-1\"\ntags:\n- x\n  license_link: no\n---\nlicense: mit\n",
        );
        let said = front_matter(origin);
        assert_eq!(said["license"], "other");
        assert_eq!(said["license_name"], "fox-1");
        assert_eq!(said.len(), 2);
        // Written for another directory, it says the same.
        let text = readme_of_licence(&licence_keys(origin)).unwrap();
        write(&text);
        assert_eq!(front_matter(origin), said);
        write("# A model\nlicense: mit\n");
        assert!(front_matter(origin).is_empty());
        assert_eq!(readme_of_licence(&licence_keys(origin)), None);
    }
}
