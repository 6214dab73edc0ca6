//! Every kernel, compiled for tests.

use crate::compile::in_parallel;
use crate::compiler::Compiler;
use crate::disk::{read_cached, write_cached};
use crate::launch::{Listed, Unit};
use crate::mirror::Layout;
use crate::ops::{
    adapters, altup, attention, basic, batched_matmul, conv, eighths, embed, encode, exchange,
    experts, gated_delta, gemm, heads, hidden, logprobs, mamba2, matmul, rope, sample, sparse,
    tile,
};
use crate::sources::{source, title};
use crate::{Error, floor, layout, persistent};
use std::collections::BTreeSet;
use std::path::Path;

/// A compiled unit, for tests.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The file and its macros.
    pub name: String,
    /// Whether decoding spends its time here.
    pub hot: bool,
    /// How much of it was compiled.
    pub depth: Depth,
    /// Bytes of code.
    pub bytes: usize,
    /// Bytes of registers spilled to memory, over all kernels of the file.
    pub spills: u64,
    /// The assembler's output.
    pub log: String,
}

/// How much of the kernels is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every file once per format, by the compiler's front end, which makes no code.
    Syntax,
    /// Every file once per common format, and once with each combination of its other macros. Of the other formats the front end reads it.
    Cover,
    /// Every listed variant.
    Variants,
}

/// The formats that [`Depth::Cover`] makes code of.
const COMMON: [&str; 9] = [
    "bf16", "f16", "f8_e4m3", "iq4_xs", "mxfp4", "q4_0", "q4_k", "q6_k", "q8_0",
];

/// Whether a header's name, in quotes, is that of a common format.
fn is_common(file: &str) -> bool {
    let name = file.trim_matches('"').strip_prefix("format/");
    name.and_then(|name| name.strip_suffix(".cuh"))
        .is_some_and(|name| COMMON.contains(&name))
}

/// Compiles every kernel file for an architecture such as `sm_90a`. Needs the run-time compiler but no GPU. The error names
/// file and line. What compiles is noted in the folder `notes`, and not compiled again while sources, options and compiler
/// are the same.
pub fn compile_all(arch: &str, depth: Depth, notes: &Path) -> Result<Vec<Compiled>, Error> {
    let compiler = Compiler::find().map_err(Error::NoCompiler)?;
    let mut listed = catalogue();
    listed.retain(|l| tile::is_for(&l.unit, arch));
    if arch == "sm_89" {
        // It differs from sm_80 in the conversion of 8-bit floats alone.
        let converts = |define: &(&str, String)| define.1.contains("f8_e4m3");
        listed.retain(|l| l.unit.defines.iter().any(converts));
    }
    let mut chosen = Vec::new();
    if depth == Depth::Variants {
        chosen.extend(listed.into_iter().map(|listed| (listed, depth)));
    } else {
        let is_format = |key| ["FORMAT_FILE", "BITS", "GROUP", "BF16"].contains(&key);
        let mut seen = BTreeSet::new();
        for one in listed {
            let Unit { file, defines, .. } = &one.unit;
            let (format, rest): (Vec<_>, Vec<_>) = defines
                .iter()
                .cloned()
                .partition(|(key, _)| is_format(*key));
            let common = format.first().is_none_or(|(_, file)| is_common(file));
            let new_format = seen.insert((*file, true, format));
            if seen.insert((*file, false, rest)) && depth == Depth::Cover || new_format && common {
                chosen.push((one, depth));
            } else if new_format {
                chosen.push((one, Depth::Syntax));
            }
        }
    }
    let results = in_parallel(&chosen, &|(Listed { unit, .. }, depth)| {
        noted(&compiler, &checked(unit.file), unit, arch, *depth, notes)
    });
    let hot = chosen.iter().map(|(listed, _)| listed.hot);
    hot.zip(results)
        .map(|(hot, result)| Ok(Compiled { hot, ..result? }))
        .collect()
}

/// The structs of launches, as Rust has them. (Those of the persistent kernels are checked by their own sources.)
const MIRRORS: [&[Layout]; 22] = [
    adapters::MIRRORS,
    altup::MIRRORS,
    attention::MIRRORS,
    basic::MIRRORS,
    batched_matmul::MIRRORS,
    conv::MIRRORS,
    eighths::MIRRORS,
    embed::MIRRORS,
    encode::MIRRORS,
    exchange::MIRRORS,
    experts::MIRRORS,
    floor::MIRRORS,
    gated_delta::MIRRORS,
    gemm::MIRRORS,
    heads::MIRRORS,
    hidden::MIRRORS,
    layout::MIRRORS,
    mamba2::MIRRORS,
    matmul::MIRRORS,
    rope::MIRRORS,
    sample::MIRRORS,
    sparse::MIRRORS,
];

/// A file with a check of each struct in it that Rust has too.
fn checked(file: &str) -> String {
    let mut text = source(file).unwrap_or_default().to_string();
    let seen = MIRRORS.into_iter().flatten();
    let seen = seen.filter(|layout| sees(file, &format!("struct {} {{", layout.name)));
    let checks: String = seen.map(Layout::static_assert).collect();
    text += &checks;
    text
}

/// Whether a file or one that it includes has this text.
fn sees(file: &str, text: &str) -> bool {
    let Some(source) = source(file) else {
        return false;
    };
    let lines = source.lines();
    let mut included = lines.filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    source.contains(text) || included.any(|inner| sees(inner, text))
}

/// Compiles a unit with this source, unless that has been done.
fn noted(
    compiler: &Compiler,
    source: &str,
    unit: &Unit,
    arch: &str,
    depth: Depth,
    notes: &Path,
) -> Result<Compiled, Error> {
    let syntax = depth == Depth::Syntax;
    let path = notes.join(compiler.name_of_result(source, unit, arch, syntax));
    let known = read_cached(&path).and_then(|note| {
        let note = String::from_utf8(note).ok()?;
        let (bytes, log) = note.split_once('\n')?;
        Some((bytes.parse().ok()?, log.to_string()))
    });
    let (bytes, log) = match known {
        Some(known) => known,
        None => {
            let (image, log) = if syntax {
                compiler.check_text(source, unit, arch)?;
                Default::default()
            } else {
                compiler.compile_text(source, unit, arch, true)?
            };
            // Without a note the next run compiles again.
            let _ = write_cached(&path, format!("{}\n{log}", image.len()).as_bytes());
            (image.len(), log)
        }
    };
    Ok(Compiled {
        name: title(unit),
        hot: false,
        depth,
        bytes,
        spills: spills(&log),
        log,
    })
}

/// Compiles a self-contained source, such as the text from
/// [`CudaDevice::persistent_source`](crate::CudaDevice::persistent_source). Needs the run-time compiler but no GPU. Notes are
/// as in [`compile_all`].
pub fn compile_alone(
    source: &str,
    arch: &str,
    depth: Depth,
    notes: &Path,
) -> Result<Compiled, Error> {
    let unit = Unit {
        file: "standalone.cu",
        generated: String::new(),
        defines: Vec::new(),
    };
    let compiler = Compiler::find().map_err(Error::NoCompiler)?;
    noted(&compiler, source, &unit, arch, depth, notes)
}

/// The units that tests compile for every architecture.
fn catalogue() -> Vec<Listed> {
    let families = [
        embed::catalogue(),
        basic::catalogue(),
        conv::catalogue(),
        encode::catalogue(),
        heads::catalogue(),
        hidden::catalogue(),
        adapters::catalogue(),
        altup::catalogue(),
        gated_delta::catalogue(),
        mamba2::catalogue(),
        matmul::catalogue(),
        gemm::catalogue(),
        batched_matmul::catalogue(),
        rope::catalogue(),
        attention::catalogue(),
        sparse::catalogue(),
        sample::catalogue(),
        logprobs::catalogue(),
        exchange::catalogue(),
        experts::catalogue(),
        floor::catalogue(),
        persistent::catalogue(),
    ];
    families.into_iter().flatten().collect()
}

/// Bytes of spilled registers, from the assembler's output.
fn spills(log: &str) -> u64 {
    log.split(" bytes spill")
        .zip(log.split(" bytes spill").skip(1))
        .filter_map(|(before, _)| before.rsplit([' ', ',']).next()?.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels' test compiles the checks.
    #[test]
    fn every_struct_of_a_launch_is_checked_in_a_kernel() {
        let listed = catalogue();
        for layout in MIRRORS.into_iter().flatten() {
            let declares = format!("sizeof({}) ==", layout.name);
            let mut files = listed.iter().map(|listed| checked(listed.unit.file));
            assert!(
                files.any(|text| text.contains(&declares)),
                "{}",
                layout.name
            );
        }
    }

    #[test]
    fn spills_are_counted() {
        let log = "info: 0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\ninfo: 0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads";
        assert_eq!(spills(log), 24);
        assert_eq!(spills("nothing"), 0);
    }
}
