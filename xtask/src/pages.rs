//! The documents name files, headings and functions that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// Every dead link of the documents, and every name of [`WALKS`] that its file does not have.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let tree = files(root);
    let pages = tree.iter().filter(|name| name.ends_with(".md"));
    let mut problems = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let found = dead_links(root, page, &text);
        let found = found.into_iter().chain(dead_paths(&tree, &text));
        problems.extend(found.map(|problem| format!("{page}: {problem}")));
        if page == WALKS {
            let found = walk(root, &text).into_iter();
            problems.extend(found.map(|problem| format!("{page}: {problem}")));
        }
    }
    problems
}

/// The page of walks: lists of files, each with names that occur in it. A sentence before them says how many files there may be.
const WALKS: &str = "docs/architecture/walks.md";

/// All files but those that are built or downloaded, from the root on.
fn files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let skipped = ["target", "node_modules", "dist"]
                .iter()
                .any(|s| name == **s);
            if skipped || name.to_string_lossy().starts_with('.') {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let path = path.strip_prefix(root).unwrap_or(&path);
                files.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    files.sort();
    files
}

/// Links to files and headings of the repository that do not exist.
fn dead_links(root: &Path, page: &str, text: &str) -> Vec<String> {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let links = text.split("](").skip(1);
    let links = links.filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    let ours = links.filter(|link| !link.contains(':') && !link.contains(char::is_whitespace));
    let is_dead = |link: &&str| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => root.join(page),
            file => root.join(folder).join(file),
        };
        !target.exists() || !heading.is_empty() && !has_heading(&target, heading)
    };
    let dead = ours.filter(is_dead);
    dead.map(|link| format!("dead link {link}")).collect()
}

/// Whether a page has a heading with this anchor.
fn has_heading(page: &PathBuf, anchor: &str) -> bool {
    let text = fs::read_to_string(page).unwrap_or_default();
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-") == anchor
    })
}

/// Rust files and kernels that a page names with their crate, and that do not exist: `welte-cpu/src/team.rs`.
fn dead_paths(tree: &[String], text: &str) -> Vec<String> {
    let named = spans(text).filter(|span| span.starts_with("welte") && span.contains('/'));
    let exists = |path: &str| {
        let inside = format!("crates/{path}");
        tree.iter().any(|file| match inside.strip_suffix('/') {
            Some(folder) => file.starts_with(folder),
            None => *file == inside,
        })
    };
    let is_path = |span: &&str| {
        let source = [".rs", ".cu", ".cuh", ".wgsl", "/"];
        source.iter().any(|end| span.ends_with(end)) && !span.contains(['*', ' ', '{'])
    };
    let dead = named.filter(is_path).filter(|path| !exists(path));
    dead.map(|path| format!("there is no {path}")).collect()
}

/// The code spans of a page.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// What is wrong with the page of walks.
fn walk(root: &Path, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut most = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["At", "most", count, "files", ..] = words[..] {
            most = count.parse().unwrap_or(0);
        }
        let (mark, _) = line.trim_start().split_once(' ').unwrap_or_default();
        let number = mark.strip_suffix('.').unwrap_or(mark).parse::<u32>();
        if number.is_err() && mark != "-" {
            continue;
        }
        if let Some(number) = number.ok().filter(|number| *number > most) {
            problems.push(format!("file {number} of at most {most}"));
        }
        let mut spans = spans(line);
        let file = spans.next().unwrap_or_default();
        let source = fs::read_to_string(root.join("crates").join(file)).unwrap_or_default();
        for name in spans {
            let last = name.rsplit("::").next().unwrap_or(name);
            let mut words = source.split(|c: char| !c.is_alphanumeric() && c != '_');
            if !words.any(|word| word == last) {
                problems.push(format!("{file} has no {name}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::root;

    #[test]
    fn the_documents_name_what_exists() {
        let problems = check(&root());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn dead_names_are_found() {
        let text = "[a](walks.md) [b](walks.md#two-walks) [c](#there) [d](gone.md) [e](walks.md#gone)\n# There\n";
        let dead = dead_links(&root(), WALKS, text);
        assert_eq!(
            dead,
            [
                "dead link #there",
                "dead link gone.md",
                "dead link walks.md#gone"
            ]
        );
        let tree = ["crates/welte-cpu/src/team.rs".to_string()];
        let text = "`welte-cpu/src/team.rs` `welte-cpu/src/` `welte-cpu/src/gone.rs` `welte serve`";
        assert_eq!(
            dead_paths(&tree, text),
            ["there is no welte-cpu/src/gone.rs"]
        );
        let text = "At most 2 files from here.\n1. `welte-cpu/src/team.rs`: `Team::run`, `gone`\n- `welte-cpu/src/team.rs`: `Team`\n3. `welte-cpu/src/team.rs`\n";
        let wrong = ["welte-cpu/src/team.rs has no gone", "file 3 of at most 2"];
        assert_eq!(walk(&root(), text), wrong);
    }
}
