//! A unit as one text that compiles on its own: its macros, and its file with every header in place.

use crate::launch::Unit;
use crate::sources::source;
use std::collections::BTreeSet;

/// The name by which kernels include what is written for one model.
const GENERATED: &str = "generated.cuh";

/// The unit's source. CUDA's own headers stay `#include`s.
pub(crate) fn standalone(unit: &Unit) -> String {
    let mut text = format!("// {} for one model, in one file.\n", unit.file);
    for (name, value) in &unit.defines {
        text += &format!("#define {name} {value}\n");
    }
    let mut seen = BTreeSet::new();
    inline(unit, unit.file, &mut seen, &mut text);
    text
}

/// Adds a file to the text; one with `#pragma once` only the first time.
fn inline(unit: &Unit, file: &str, seen: &mut BTreeSet<String>, text: &mut String) {
    let body = match file {
        GENERATED => unit.generated.as_str(),
        _ => source(file).unwrap_or_default(),
    };
    let once = body.lines().any(|line| line == "#pragma once");
    if once && !seen.insert(file.to_string()) {
        return;
    }
    *text += &format!("\n// ======== {file} ========\n");
    for line in body.lines().filter(|line| *line != "#pragma once") {
        let included = line.strip_prefix("#include \"");
        match included.and_then(|rest| rest.strip_suffix('"')) {
            Some(included) => inline(unit, included, seen, text),
            None => {
                *text += line;
                text.push('\n');
            }
        }
    }
}
