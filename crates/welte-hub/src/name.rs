//! Model names: `ORG/NAME`, with `@REVISION` and `:QUANT` or `:FILE` in any order.

use crate::Error;
use std::fmt;
use std::str::FromStr;

/// A model, a revision of it and a file or quantisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// `ORG/NAME`; a few old models are a plain `NAME`.
    pub repo: String,
    /// A branch, a tag or a commit; `main` by default.
    pub revision: Option<String>,
    /// A quantisation or a file.
    pub choice: Option<String>,
}

impl ModelName {
    /// The revision, or `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl FromStr for ModelName {
    type Err = Error;

    fn from_str(text: &str) -> Result<ModelName, Error> {
        let bad = |problem| Error::Name {
            text: text.to_string(),
            problem,
        };
        let end = text.find([':', '@']).unwrap_or(text.len());
        let (repo, mut rest) = text.split_at(end);
        if !is_repo(repo) {
            return Err(bad("is not the name of a model on the hub"));
        }
        let mut name = ModelName {
            repo: repo.to_string(),
            revision: None,
            choice: None,
        };
        while let Some(mark) = rest.chars().next() {
            let (field, other) = match mark {
                '@' => (&mut name.revision, ':'),
                _ => (&mut name.choice, '@'),
            };
            let end = rest.find(other).unwrap_or(rest.len());
            let word = &rest[1..end];
            if field.replace(word.to_string()).is_some() {
                return Err(bad("gives the revision or the file twice"));
            }
            rest = &rest[end..];
        }
        if !name.revision.as_deref().is_none_or(is_path) {
            return Err(bad("has no usable revision after @"));
        }
        if !name.choice.as_deref().is_none_or(is_path) {
            return Err(bad("has no usable quantisation or file after :"));
        }
        Ok(name)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.choice {
            Some(choice) => write!(f, ":{choice}"),
            None => Ok(()),
        }
    }
}

/// True for a valid model name on the hub.
pub(crate) fn is_repo(text: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty()
            && part.len() <= 96
            && part.chars().all(plain)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("--")
            && !part.contains("..")
    };
    text.split('/').count() <= 2 && text.split('/').all(part)
}

/// True for a relative path that cannot leave its folder on any system. Names from the hub become local paths.
pub(crate) fn is_path(text: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    text.len() <= 1024
        && text.split('/').all(part)
        && !text.chars().any(|c| c.is_control() || "\\:".contains(c))
}

/// True for a commit's full hash.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, Option<String>, Option<String>) {
        let name: ModelName = text.parse().unwrap_or_else(|e| panic!("{e}"));
        (name.repo, name.revision, name.choice)
    }

    #[test]
    fn names_with_revision_and_file_in_any_order() {
        let some = |text: &str| Some(text.to_string());
        let repo = "Org/Name-1.5_x".to_string();
        assert_eq!(parts("Org/Name-1.5_x"), (repo.clone(), None, None));
        assert_eq!(
            parts("Org/Name-1.5_x:Q4_K_M"),
            (repo.clone(), None, some("Q4_K_M"))
        );
        for text in [
            "Org/Name-1.5_x@refs/pr/1:a/b.gguf",
            "Org/Name-1.5_x:a/b.gguf@refs/pr/1",
        ] {
            assert_eq!(
                parts(text),
                (repo.clone(), some("refs/pr/1"), some("a/b.gguf"))
            );
        }
        assert_eq!(parts("gpt2"), ("gpt2".to_string(), None, None));
        assert_eq!(
            "a/b:c@d".parse::<ModelName>().unwrap().to_string(),
            "a/b@d:c"
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a--b/c",
            "a b/c",
            "a/b:",
            "a/b@",
            "a/b:../x",
            "a/b@/etc",
            "a/b:x\\y",
            "a/b:c:d",
            "a/b:x@y:z",
            "ä/b",
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text:?}");
        }
    }
}
