//! Circles between the files of a crate: files that import each other, directly or by way of others. Tests do not count, and neither
//! do re-exports: an import of a name that a module hands on is an import of the file that has it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// A module's place in its crate.
type Place = Vec<String>;

/// A file without comments, texts and tests, as words.
#[derive(Default)]
struct Module {
    file: String,
    words: Vec<String>,
    /// What it hands on: a name, and the path that it stands for.
    exports: HashMap<String, Place>,
    /// Paths that it names.
    paths: Vec<Place>,
}

/// The circles of a crate, each as the names of its files.
pub(crate) fn circles(source: &Path) -> Vec<Vec<String>> {
    let mut modules = BTreeMap::new();
    let root = ["lib.rs", "main.rs"].map(|name| source.join(name));
    for file in root.iter().filter(|file| file.exists()).take(1) {
        read(source, file, Vec::new(), &mut modules);
    }
    let imports: Vec<BTreeSet<usize>> = modules
        .iter()
        .map(|(place, module)| {
            let targets = module.paths.iter();
            let targets = targets.filter_map(|path| resolve(&modules, place, path, 8));
            let other = targets.filter(|target| target != place);
            other
                .filter_map(|target| modules.keys().position(|known| *known == target))
                .collect()
        })
        .collect();
    let reached: Vec<BTreeSet<usize>> = (0..imports.len())
        .map(|from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(at) = open.pop() {
                open.extend(imports[at].iter().filter(|next| seen.insert(**next)));
            }
            seen
        })
        .collect();
    let files: Vec<&str> = modules.values().map(|module| &*module.file).collect();
    let mut circles = BTreeSet::new();
    for (from, all) in reached.iter().enumerate() {
        let back = all.iter().filter(|at| reached[**at].contains(&from));
        let circle: Vec<String> = back.map(|at| files[*at].to_string()).collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// Reads a module's file and those of its children.
fn read(source: &Path, file: &Path, place: Place, modules: &mut BTreeMap<Place, Module>) {
    let text = fs::read_to_string(file).unwrap_or_default();
    let name = file.strip_prefix(source).unwrap_or(file);
    let mut module = Module {
        file: name.display().to_string().replace('\\', "/"),
        words: without_tests(words(&text)),
        ..Module::default()
    };
    let stem = file.file_stem().unwrap_or_default();
    let is_folder = ["lib", "main", "mod"].iter().any(|known| stem == *known);
    let folder = if is_folder {
        file.parent().unwrap_or(file).to_path_buf()
    } else {
        file.with_extension("")
    };
    let mut children: Vec<(String, PathBuf)> = Vec::new();
    for three in module.words.windows(3) {
        if three[0] == "mod" && three[2] == ";" {
            let name = three[1].clone();
            let files = [
                folder.join(format!("{name}.rs")),
                folder.join(&name).join("mod.rs"),
            ];
            let found = files.into_iter().find(|file| file.exists());
            children.extend(found.map(|file| (name, file)));
        }
    }
    module.find_paths();
    modules.insert(place.clone(), module);
    for (name, file) in children {
        let place = [&place[..], &[name]].concat();
        read(source, &file, place, modules);
    }
}

impl Module {
    /// Takes the paths of imports, and those in the code.
    fn find_paths(&mut self) {
        let mut at = 0;
        // Where modules inside the file begin, as the depth of their braces.
        let (mut depth, mut inner) = (0, Vec::new());
        while at < self.words.len() {
            match self.words[at].as_str() {
                "{" => {
                    let opens = |back: usize| at >= back && self.words[at - back] == "mod";
                    // The name of a module may be a macro's parameter, which is two words.
                    if opens(2) || opens(3) {
                        inner.push(depth);
                    }
                    depth += 1;
                }
                "}" => {
                    depth -= 1;
                    inner.pop_if(|begin| *begin == depth);
                }
                _ => {}
            }
            if self.words[at] != "use" {
                at += self.take_path(at, inner.len());
                continue;
            }
            let rest = &self.words[at + 1..];
            let end = rest.iter().position(|word| word == ";");
            let tree = &rest[..end.unwrap_or(rest.len())];
            let before = at.checked_sub(1).map(|at| self.words[at].as_str());
            let handed_on = matches!(before, Some("pub" | ")")) && inner.is_empty();
            let mut paths = Vec::new();
            expand(tree, &[], &mut paths);
            at += 1 + tree.len();
            for (path, name) in paths {
                if handed_on {
                    self.exports.insert(name, path);
                } else {
                    self.paths.extend(from_file(path, inner.len()));
                }
            }
        }
    }

    /// Takes a path of the code, inside `inner` modules of the file. Returns its length in words.
    fn take_path(&mut self, at: usize, inner: usize) -> usize {
        let is_name = |word: &String| word.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut path: Place = Vec::new();
        let mut length = 0;
        let follows = at > 0 && self.words[at - 1] == "::";
        while let Some(word) = self.words.get(at + length).filter(|word| is_name(word)) {
            path.push(word.clone());
            length += 1;
            if self.words.get(at + length).is_none_or(|word| word != "::") {
                break;
            }
            length += 1;
        }
        if path.len() > 1 && !follows {
            self.paths.extend(from_file(path, inner));
        }
        length.max(1)
    }
}

/// A path in `inner` nested modules of a file, as the file itself would write it; `None` if it stays in the file.
fn from_file(path: Place, inner: usize) -> Option<Place> {
    let supers = path.iter().take_while(|word| *word == "super").count();
    if supers == path.len() {
        // As in `pub(in super::super)`.
        return None;
    }
    if inner == 0 || supers > inner || !matches!(path[0].as_str(), "self" | "super") {
        return Some(path[inner.min(supers)..].to_vec());
    }
    (supers == inner).then(|| path[inner..].to_vec())
}

/// The paths of an import, each with the name that it has here.
fn expand(tree: &[String], prefix: &[String], out: &mut Vec<(Place, String)>) {
    if let Some(open) = tree.iter().position(|word| word == "{") {
        let own = tree[..open].iter().filter(|word| *word != "::").cloned();
        let prefix: Place = prefix.iter().cloned().chain(own).collect();
        let inner = &tree[open + 1..tree.len().saturating_sub(1).max(open + 1)];
        let mut depth = 0;
        let parts = inner.split(|word| {
            depth += i32::from(word == "{") - i32::from(word == "}");
            depth == 0 && word == ","
        });
        for part in parts.filter(|part| !part.is_empty()) {
            expand(part, &prefix, out);
        }
        return;
    }
    let named = tree.iter().position(|word| word == "as");
    let own = &tree[..named.unwrap_or(tree.len())];
    let own = own.iter().filter(|word| *word != "::").cloned();
    let mut path: Place = prefix.iter().cloned().chain(own).collect();
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let name = if named.is_some() {
        tree.last()
    } else {
        path.last()
    };
    let name = name.cloned().unwrap_or_default();
    out.push((path, name));
}

/// The module whose file has what a path names.
fn resolve(
    modules: &BTreeMap<Place, Module>,
    at: &Place,
    path: &[String],
    depth: usize,
) -> Option<Place> {
    let (first, mut rest) = path.split_first()?;
    let mut place = match first.as_str() {
        "crate" => Vec::new(),
        "self" => at.clone(),
        "super" => {
            let more = rest.iter().take_while(|word| *word == "super").count();
            rest = &rest[more..];
            at[..at.len().checked_sub(1 + more)?].to_vec()
        }
        name => {
            let child = [&at[..], &[name.to_string()]].concat();
            modules.get(&child)?;
            child
        }
    };
    while let Some((name, others)) = rest.split_first() {
        let child = [&place[..], std::slice::from_ref(name)].concat();
        if modules.contains_key(&child) {
            (place, rest) = (child, others);
            continue;
        }
        let handed_on = modules.get(&place)?.exports.get(name);
        return match handed_on {
            Some(path) if depth > 0 => {
                resolve(modules, &place, path, depth - 1).or(Some(place.clone()))
            }
            _ => Some(place),
        };
    }
    Some(place)
}

/// The words of a source, without comments and texts.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(marks) = raw_text(rest) {
            let end = format!("\"{}", "#".repeat(marks));
            let start = marks + 2;
            let found = rest[start..].find(&end);
            found.map_or(rest.len(), |at| start + at + end.len())
        } else if c == '"' {
            text_length(rest)
        } else if c == '\'' {
            letter_length(rest)
        } else if rest.starts_with("::") {
            words.push("::".to_string());
            2
        } else if is_part(c) {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            words.push(rest[..end].to_string());
            end
        } else {
            if !c.is_whitespace() {
                words.push(c.to_string());
            }
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    words
}

/// The number of `#` before a raw text, if one begins here.
fn raw_text(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let marks = after.len() - after.trim_start_matches('#').len();
    after[marks..].starts_with('"').then_some(marks)
}

/// Bytes of a text in quotation marks.
fn text_length(rest: &str) -> usize {
    let mut escaped = true;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Bytes of a character, or of the mark that begins a lifetime.
fn letter_length(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            let after = letters.nth(1).map_or(rest.len(), |(at, _)| at);
            rest[after.min(rest.len())..]
                .find('\'')
                .map_or(1, |at| after + at + 1)
        }
        Some(_) => match letters.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// Leaves out what is there for tests only: the item after such an attribute.
fn without_tests(words: Vec<String>) -> Vec<String> {
    const ONLY: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < words.len() {
        if words[at..].len() < ONLY.len() || words[at..at + ONLY.len()] != ONLY {
            kept.push(words[at].clone());
            at += 1;
            continue;
        }
        at += ONLY.len();
        let mut depth = 0;
        while at < words.len() {
            match words[at].as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            at += 1;
            let closed = words[at - 1] == "}" || words[at - 1] == ";";
            if depth == 0 && closed {
                break;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder =
            std::env::temp_dir().join(format!("circles-{}-{}", std::process::id(), files.len()));
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let found = circles(&folder);
        fs::remove_dir_all(folder).expect("the folder");
        found
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let root = "mod a; mod b; mod c; #[cfg(test)] mod d; pub use b::Thing;";
        let found = of(&[
            ("lib.rs", root),
            (
                "a.rs",
                "mod part; use crate::{Other, Thing}; // use crate::c;",
            ),
            (
                "a/part.rs",
                "fn f(text: &'static str) -> char { super::g(\"crate::c\"); 'c' }",
            ),
            (
                "b.rs",
                "fn f() { crate::c::g() } #[cfg(test)] mod tests { use crate::a; }",
            ),
            ("c.rs", "use crate::a::part::{self, f};"),
        ]);
        assert_eq!(found, [["a.rs", "a/part.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn modules_inside_a_file_are_the_file() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; mod c; pub const D: u32 = 0;"),
            (
                "a.rs",
                "mod x { use super::*; use super::super::b::B; mod y { use super::super::super::D; } }",
            ),
            ("b.rs", "mod $x { use super::super::c::C; }"),
            ("c.rs", "fn f() { mod x { super::super::b::g() } }"),
        ]);
        assert_eq!(found, [["b.rs", "c.rs"]]);
    }

    #[test]
    fn what_only_goes_down_is_no_circle() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use std::a::A; fn f() -> char { '\\'' }"),
        ]);
        assert_eq!(found, Vec::<Vec<String>>::new());
    }
}
