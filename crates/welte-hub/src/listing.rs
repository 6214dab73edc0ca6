//! The hub's list of a model's files, and the address of each.

use crate::http::{Client, Failure, location, quoted, tag};
use crate::{Error, name};
use serde_json::Value;

/// The largest JSON file that is read, in bytes.
pub(crate) const MOST_JSON: u64 = 64 << 20;
/// The largest size that is accepted for a file.
const MOST_BYTES: u64 = 1 << 44;

/// A model's files at one commit.
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<Listed>,
}

/// A file in the list. Some mirrors give neither size nor tag.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) size: Option<u64>,
    pub(crate) tag: Option<String>,
}

/// Where to download a file.
pub(crate) struct Source {
    pub(crate) url: String,
    pub(crate) size: u64,
    pub(crate) tag: String,
}

impl Client {
    pub(crate) fn listing(&self, repo: &str, revision: &str) -> Result<Listing, Error> {
        let what = match revision {
            "main" => repo.to_string(),
            _ => format!("{repo}@{revision}"),
        };
        let url = self.address(&format!(
            "api/models/{repo}/revision/{}?blobs=true",
            quoted(revision, "")
        ));
        let json = self.with_retries(|| {
            let (at, mut answer) = self.follow(&what, false, &url, None, &|_| false)?;
            let body = answer
                .body_mut()
                .with_config()
                .limit(MOST_JSON)
                .read_to_vec();
            let broken = |error| format!("the list of files is incomplete: {error}");
            body.map_err(|error| Failure::broken(&what, &at, broken(error)))
        })?;
        parse(&json).map_err(|problem| self.bad_answer(&what, problem))
    }

    /// Asks where a file is. The address may expire within minutes.
    pub(crate) fn source(
        &self,
        repo: &str,
        commit: &str,
        file: &Listed,
    ) -> Result<Source, Failure> {
        let what = format!("{repo}: {}", file.name);
        let url = self.address(&format!(
            "{repo}/resolve/{commit}/{}",
            quoted(&file.name, "/")
        ));
        let linked = |answer: &ureq::http::Response<ureq::Body>| {
            answer.headers().contains_key("x-linked-etag")
        };
        let (at, answer) = self.follow(&what, true, &url, None, &linked)?;
        let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let bad = |problem: String| Failure::Final(self.bad_answer(&what, problem));
        let redirected = answer.status().is_redirection();
        let length = header("content-length").filter(|_| !redirected);
        let size = header("x-linked-size")
            .or(length)
            .and_then(|s| s.trim().parse().ok());
        let found = header("x-linked-etag").or(header("etag")).and_then(tag);
        // The tag of a mirror may say nothing about the bytes.
        let tags = [found, file.tag.clone()].into_iter().flatten();
        let is_checksum = |tag: &String| crate::checksum::Kind::of(tag).is_some();
        let tag = tags.clone().find(is_checksum).or(tags.clone().next());
        let source = Source {
            url: if redirected {
                location(&at, &answer)
                    .ok_or_else(|| bad("redirects without a valid target".to_string()))?
            } else {
                at
            },
            size: size
                .or(file.size)
                .ok_or_else(|| bad("the answer gives no size".to_string()))?,
            tag: tag.ok_or_else(|| {
                bad(
                    "the answer has no ETag, so there is nothing to check the file against"
                        .to_string(),
                )
            })?,
        };
        let differs = |a: &str, b: &str| {
            let kind = crate::checksum::Kind::of;
            kind(a).is_some() && kind(a) == kind(b) && a != b
        };
        if source.size > MOST_BYTES {
            return Err(bad(too_large(source.size)));
        }
        if let Some(listed) = file.size.filter(|size| *size != source.size) {
            return Err(bad(format!(
                "the server reports {} bytes, the list of files {listed}",
                source.size
            )));
        }
        if file
            .tag
            .as_deref()
            .is_some_and(|tag| differs(tag, &source.tag))
        {
            return Err(bad(
                "its checksum differs between the list of files and the server".to_string(),
            ));
        }
        Ok(source)
    }
}

fn too_large(size: u64) -> String {
    format!("has {size} bytes, more than 16 TiB")
}

fn parse(json: &[u8]) -> Result<Listing, String> {
    let json: Value =
        serde_json::from_slice(json).map_err(|e| format!("the list of files is not JSON: {e}"))?;
    let commit = json["sha"].as_str().filter(|s| name::is_commit(s));
    let commit = commit.ok_or("the list of files names no commit (sha)")?;
    let siblings = json["siblings"]
        .as_array()
        .ok_or("the answer has no list of files (siblings)")?;
    let files = siblings.iter().map(|file| {
        let name = file["rfilename"]
            .as_str()
            .ok_or("a file without a name (rfilename)")?;
        if !name::is_path(name) {
            return Err(format!(
                "the file name {name:?} is not a path inside the model's folder"
            ));
        }
        let large = file["lfs"]["sha256"]
            .as_str()
            .or(file["lfs"]["oid"].as_str());
        let size = file["lfs"]["size"].as_u64().or(file["size"].as_u64());
        if let Some(size) = size.filter(|size| *size > MOST_BYTES) {
            return Err(format!("{name} {}", too_large(size)));
        }
        Ok(Listed {
            name: name.to_string(),
            size,
            tag: large.or(file["blobId"].as_str()).and_then(tag),
        })
    });
    Ok(Listing {
        commit: commit.to_string(),
        files: files.collect::<Result<_, String>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_files_of_a_list() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let json = format!(
            r#"{{"sha":"{commit}","siblings":[{{"rfilename":"a/b.gguf","size":7,"blobId":"p","lfs":{{"sha256":"s","size":7}}}},
            {{"rfilename":"config.json","size":3,"blobId":"g"}},{{"rfilename":"x"}}]}}"#
        );
        let listing = parse(json.as_bytes()).unwrap();
        let told: Vec<_> = listing
            .files
            .iter()
            .map(|f| (f.name.as_str(), f.size, f.tag.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("a/b.gguf", Some(7), Some("s")),
                ("config.json", Some(3), Some("g")),
                ("x", None, None)
            ]
        );
        for bad in [
            "",
            "[]",
            r#"{"sha":"main","siblings":[]}"#,
            &json.replace("a/b.gguf", "../b.gguf"),
            &json.replace("a/b.gguf", "/etc/passwd"),
            &json.replace("siblings", "files"),
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
