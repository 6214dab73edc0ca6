//! The kernels: WGSL in pieces, specialised by constants in front.

use crate::layout::Layout;
use geometry::Geometry;
#[cfg(test)]
use products::{matmul_tile, unit_loader};
use welte_device::SlotState;
use welte_table::Format;

/// Invocations of a workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The most experts that `route` can rank.
pub(crate) const MOST_EXPERTS: u32 = 1024;

/// Words of a slot's settings of sampling before its biases.
pub(crate) const SETTINGS_HEAD: u32 = 12;
/// Words of a slot's settings of sampling.
pub(crate) const SETTINGS: u32 = SETTINGS_HEAD + 2 * SlotState::MOST_BIASES as u32;

/// A kernel: its name says everything that its source depends on.
pub(crate) struct Kernel {
    pub(crate) name: String,
    constants: String,
    pieces: Vec<&'static str>,
    /// Loops that are written out: their names and turns.
    loops: Vec<(&'static str, u32)>,
    /// The first dimension of its grid has the rows, otherwise the last one.
    pub(crate) rows_first: bool,
}

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/shaders/",
            $name,
            ".wgsl"
        ))
    };
}

pub(crate) mod cooperative;
pub(crate) mod geometry;
pub(crate) mod products;

impl Kernel {
    fn new(name: &str, pieces: &[&'static str]) -> Kernel {
        Kernel::of_workgroup(WORKGROUP, name, pieces)
    }

    fn of_workgroup(size: u32, name: &str, pieces: &[&'static str]) -> Kernel {
        let mut all = vec![shader!("common"), shader!("arena")];
        all.extend_from_slice(pieces);
        Kernel {
            name: name.to_string(),
            constants: format!("const WG = {size}u;\n"),
            pieces: all,
            loops: Vec::new(),
            rows_first: false,
        }
    }

    /// Sees the arena as quads of floats, not as words.
    fn in_quads(mut self) -> Kernel {
        self.pieces[1] = shader!("arena_quads");
        self
    }

    /// An op that computes every element by itself.
    pub(crate) fn each(name: &str, source: &'static str) -> Kernel {
        Kernel::new(name, &[source, shader!("elementwise")])
    }

    /// With a constant.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Kernel {
        self.name += &format!(" {name}={value}");
        self.constants += &format!("const {name} = {value};\n");
        self
    }

    /// With the loader of a weight format.
    pub(crate) fn loading(mut self, format: Format) -> Kernel {
        self.name += &format!(" {}", format.name());
        self.constants += &Layout::of(format).constants(format);
        self.pieces.push(shader!("format/common"));
        self.pieces.extend_from_slice(loader(format));
        self
    }

    /// With the addresses of a cache.
    pub(crate) fn caching(mut self, format: Format) -> Kernel {
        self.name += &format!(" cache {}", format.name());
        self.pieces.push(shader!("cache"));
        self.pieces.push(match format {
            Format::Q8_0 => shader!("cache_q8_0"),
            _ => shader!("cache_f16"),
        });
        self
    }

    /// The whole source.
    pub(crate) fn source(&self) -> String {
        let mut source = self.constants.clone();
        for piece in &self.pieces {
            source += "\n";
            source += piece;
        }
        self.loops.iter().fold(source, |source, (name, turns)| {
            written_out(&source, name, *turns)
        })
    }
}

/// Repeats the lines between `//for NAME` and `//end NAME` once per turn, with the turn's number for `$NAME`. A driver
/// that keeps a loop would keep arrays of registers in memory.
fn written_out(source: &str, name: &str, turns: u32) -> String {
    let (begin, end) = (format!("//for {name}\n"), format!("//end {name}\n"));
    let variable = format!("${name}");
    let mut out = String::new();
    let mut rest = source;
    while let Some((before, from)) = rest.split_once(&begin) {
        let (body, after) = from.split_once(&end).expect("a loop ends");
        out += before;
        for turn in 0..turns {
            out += &body.replace(&variable, &turn.to_string());
        }
        rest = after;
    }
    out + rest
}

/// What loads weights of a format.
fn loader(format: Format) -> &'static [&'static str] {
    match format {
        Format::F32 => &[shader!("format/f32")],
        Format::F16 => &[shader!("format/f16")],
        Format::BF16 => &[shader!("format/bf16")],
        Format::Q4_0 => &[shader!("format/q4_0")],
        Format::Q4_1 => &[shader!("format/q4_1")],
        Format::Q5_0 => &[shader!("format/fifth"), shader!("format/q5_0")],
        Format::Q5_1 => &[shader!("format/fifth"), shader!("format/q5_1")],
        Format::Q8_0 => &[shader!("format/q8_0")],
        Format::Q2_K => &[shader!("format/q2_k")],
        Format::Q3_K => &[shader!("format/q3_k")],
        Format::Q4_K => &[shader!("format/scale_min"), shader!("format/q4_k")],
        Format::Q5_K => &[shader!("format/scale_min"), shader!("format/q5_k")],
        Format::Q6_K => &[shader!("format/q6_k")],
        Format::IQ4_NL => &[shader!("format/uneven"), shader!("format/iq4_nl")],
        Format::IQ4_XS => &[shader!("format/uneven"), shader!("format/iq4_xs")],
        Format::MXFP4 => &[shader!("format/mxfp4")],
        Format::F8_E4M3 => &[shader!("format/f8_e4m3")],
        Format::IQ1_S
        | Format::IQ1_M
        | Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S
        | Format::TQ1_0
        | Format::TQ2_0
        | Format::Q1_0
        | Format::NVFP4
        | Format::NVFP4_F32 => &[shader!("format/coded")],
        Format::Affine(_) | Format::Integers(_) => &[shader!("format/integers")],
    }
}

/// What `norm.wgsl` subtracts, and which of the command's weights multiplies. One workgroup has a whole row, so long rows have
/// large ones.
fn norm_of(centred: bool, weight: u32, dim: u32) -> Kernel {
    let size = match dim {
        ..1024 => WORKGROUP,
        _ => 256,
    };
    let pieces = [shader!("reduce"), shader!("norm")];
    Kernel::of_workgroup(size, &format!("norm of {size}"), &pieces)
        .with("CENTRED", flag(centred))
        .with("WEIGHT", &format!("{weight}u"))
}

/// `norm`, or `layer_norm` if it subtracts the mean.
pub(crate) fn norm(centred: bool, dim: u32) -> Kernel {
    norm_of(centred, 0, dim)
}

/// The norm before a product, whose weight is the command's second one.
pub(crate) fn norm_before(dim: u32) -> Kernel {
    norm_of(false, 1, dim)
}

/// Positions of the context that `attention_rows` takes at a time.
const ATTENTION_STEP: u32 = 32;

pub(crate) fn heads_matmul(format: Format) -> Kernel {
    Kernel::each("heads_matmul", shader!("heads_matmul")).loading(format)
}

pub(crate) fn embed(format: Format) -> Kernel {
    Kernel::each("embed", shader!("embed")).loading(format)
}

pub(crate) fn kv_append(format: Format) -> Kernel {
    let mut kernel = Kernel::each("kv_append", shader!("kv_append"));
    kernel.pieces.push(shader!("cache_write"));
    kernel.caching(format)
}

pub(crate) fn rope() -> Kernel {
    let mut kernel = Kernel::each("rope", shader!("rope"));
    kernel.pieces.push(shader!("rotate"));
    kernel
}

pub(crate) fn rope_append(format: Format) -> Kernel {
    let pieces = [
        shader!("rotate"),
        shader!("head_norm"),
        shader!("cache_write"),
        shader!("rope_append"),
    ];
    let kernel = Kernel::new("rope_append", &pieces).caching(format);
    kernel.with("NORMED_HEADS", "1u")
}

pub(crate) fn attention(format: Format, head_dim: u32) -> Kernel {
    let pieces = [shader!("attention_places"), shader!("attention_cached")];
    attention_over("attention", pieces, format, head_dim)
}

/// Attention over the same positions for every row.
pub(crate) fn cross_attention(format: Format, head_dim: u32) -> Kernel {
    let pieces = [shader!("attention_places"), shader!("attention_cross")];
    attention_over("cross_attention", pieces, format, head_dim)
}

/// Attention over the positions that were chosen for each row.
pub(crate) fn sparse_attention(format: Format, head_dim: u32) -> Kernel {
    let pieces = [shader!("attention_chosen"), shader!("attention_sparse")];
    attention_over("sparse_attention", pieces, format, head_dim)
}

/// Scores for the choice of positions, with queries of `head_dim` elements.
pub(crate) fn choose_scores(format: Format, head_dim: u32) -> Kernel {
    let pieces = [shader!("cache_read"), shader!("choose_scores")];
    let kernel = Kernel::new("choose_scores", &pieces).caching(format);
    kernel.with("HEAD_DIM", &format!("{head_dim}u"))
}

/// The choice of positions.
pub(crate) fn choose_positions() -> Kernel {
    Kernel::of_workgroup(256, "choose_positions", &[shader!("choose_positions")])
}

/// `pieces`: which positions rows see, and the main function.
fn attention_over(name: &str, pieces: [&'static str; 2], format: Format, head_dim: u32) -> Kernel {
    let [places, main] = pieces;
    let pieces = [
        shader!("reduce"),
        shader!("cache_read"),
        shader!("attention"),
        places,
        main,
    ];
    let kernel = Kernel::new(name, &pieces).caching(format);
    kernel.with("HEAD_DIM", &format!("{head_dim}u"))
}

/// Attention over an F16 cache, for heads of whole octets. It takes `size` positions in a step.
pub(crate) fn attention_wide(head_dim: u32, size: u32) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("attention_split"),
        shader!("attention_octets"),
        shader!("attention_wide"),
    ];
    let name = format!("attention_wide of {size}");
    let kernel = Kernel::of_workgroup(size, &name, &pieces).caching(Format::F16);
    kernel.with("HEAD_DIM", &format!("{head_dim}u"))
}

/// Attention in decode steps over an F16 cache, for heads of whole octets, on an adapter whose subgroups hold a position. `joined`: with the
/// `rope_append` of a single row.
pub(crate) fn attention_lanes(geometry: Geometry, head_dim: u32, joined: bool) -> Option<Kernel> {
    let octets = head_dim / 8;
    let lanes = octets.next_power_of_two().min(32);
    let own = octets.div_ceil(lanes);
    // Two heads are rotated at a time, by 64 invocations each.
    let size = (16 * geometry.subgroup)
        .clamp(128, 512)
        .min(geometry.invocations);
    let subgroups = size.checked_div(geometry.subgroup)?;
    let memory = 4 * (subgroups * (head_dim + 2) + 2 * head_dim + 128);
    let fits = lanes <= geometry.subgroup && own <= 2 && size >= 128 && memory <= geometry.memory;
    if !fits {
        return None;
    }
    let mut pieces = vec![shader!("attention_split")];
    if joined {
        pieces.extend([shader!("rotate"), shader!("head_norm")]);
    }
    pieces.extend([shader!("attention_octets"), shader!("attention_lanes")]);
    let mut kernel = Kernel::of_workgroup(size, &format!("attention_lanes of {size}"), &pieces);
    kernel.loops = vec![
        ("joined", u32::from(joined)),
        ("alone", u32::from(!joined)),
        ("o", own),
        ("p", 4),
    ];
    let kernel = kernel
        .caching(Format::F16)
        .with("SUBGROUP", &format!("{}u", geometry.subgroup))
        .with("HEAD_DIM", &format!("{head_dim}u"));
    let kernel = kernel
        .with("LANES", &format!("{lanes}u"))
        .with("JOINED", flag(joined));
    // After the weights of `rope_append`.
    let sinks = if joined { 3 } else { 0 };
    let kernel = kernel.with("SINKS", &format!("{sinks}u"));
    Some(kernel.with("NORMED_HEADS", "2u"))
}

/// Attention of the rows of prompts over an F16 cache, for heads of whole octets: a workgroup takes `rows` rows.
pub(crate) fn attention_rows(head_dim: u32, rows: u32) -> Kernel {
    let pieces = [shader!("attention_seen"), shader!("attention_rows")];
    let mut kernel = Kernel::new("attention_rows", &pieces).caching(Format::F16);
    kernel.loops = vec![
        ("r", rows / 8),
        ("s", ATTENTION_STEP / 8),
        ("o", head_dim.div_ceil(64)),
    ];
    kernel
        .with("ROWS", &format!("{rows}u"))
        .with("STEP", &format!("{ATTENTION_STEP}u"))
        .with("HEAD_DIM", &format!("{head_dim}u"))
}

/// Rows of a workgroup of `attention_rows`, whose arrays fit this much workgroup memory. None if they never do.
pub(crate) fn attention_together(head_dim: u32, memory: u32) -> Option<u32> {
    let octets = head_dim / 8;
    let bytes = |rows: u32| {
        let row = (2 * octets + 1) * 16 + (ATTENTION_STEP + 1) * 4 + 8 * 4;
        rows * row + ATTENTION_STEP * (octets + 1) * 16
    };
    // Sums of more rows of large heads do not fit registers.
    let most = if head_dim <= 128 { 32 } else { 16 };
    let fitting = |rows: &u32| *rows <= most && bytes(*rows) <= memory;
    [32, 16, 8]
        .into_iter()
        .find(fitting)
        .filter(|_| head_dim <= 256)
}

/// Joins the splits of `attention_wide`.
pub(crate) fn attention_merge() -> Kernel {
    Kernel::new(
        "attention_merge",
        &[shader!("attention_split"), shader!("attention_merge")],
    )
}

/// With or without places of rows.
pub(crate) fn encode_attention(head_dim: u32, places: bool) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("attention"),
        shader!("encode_attention"),
    ];
    let kernel = Kernel::new("encode_attention", &pieces);
    let kernel = kernel.with("HEAD_DIM", &format!("{head_dim}u"));
    kernel.with("PLACES", &places.to_string())
}

/// An op that walks over the rows of a slot with a matrix for each head, and the columns that a workgroup takes. `looks`: what a row adds
/// depends on the state.
fn state_rows(name: &str, op: &'static str, looks: bool, head: StateHead) -> (Kernel, u32) {
    let StateHead {
        key_dim,
        by_channel,
        ..
    } = head;
    // An invocation has eight quads of a column. Barriers of software adapters are slow, so there it has them all.
    let quads = key_dim.div_ceil(4);
    let lanes = if head.geometry.together {
        quads.div_ceil(8).next_power_of_two().min(8)
    } else {
        1
    };
    let each = quads.div_ceil(lanes);
    let parts = if looks && by_channel { 3 } else { 2 };
    let team = match head.geometry.subgroup {
        0 => shader!("team/memory"),
        _ => shader!("team/subgroup"),
    };
    let pieces = [
        shader!("recurrent"),
        op,
        shader!("state_rows"),
        shader!("team/tree"),
        team,
    ];
    let kernel = Kernel::new(name, &pieces)
        .with("SUBGROUP", &format!("{}u", head.geometry.subgroup))
        .with("KEY_DIM", &format!("{key_dim}u"))
        .with("LANES", &format!("{lanes}u"))
        .with("EACH", &format!("{each}u"))
        .with("PARTS", &format!("{parts}u"))
        .with("LOOKS", flag(looks))
        .with("BY_CHANNEL", flag(by_channel));
    let loops = vec![
        ("j", each),
        ("l", (parts * each * lanes).div_ceil(WORKGROUP)),
    ];
    (Kernel { loops, ..kernel }, WORKGROUP / lanes)
}

/// The state of a head of `gated_delta` or `mamba2`.
#[derive(Clone, Copy)]
pub(crate) struct StateHead {
    pub(crate) geometry: Geometry,
    pub(crate) key_dim: u32,
    pub(crate) by_channel: bool,
}

pub(crate) fn gated_delta(head: StateHead) -> (Kernel, u32) {
    state_rows("gated_delta", shader!("gated_delta"), true, head)
}

pub(crate) fn mamba2(head: StateHead) -> (Kernel, u32) {
    state_rows("mamba2", shader!("mamba2"), false, head)
}

pub(crate) fn short_conv(taps: u32) -> Kernel {
    let mut kernel = Kernel::each("short_conv", shader!("short_conv"));
    kernel.pieces.push(shader!("recurrent"));
    kernel.loops = vec![("t", taps - 1)];
    kernel.with("TAPS", &format!("{taps}u"))
}

/// The first half of a low-rank part.
pub(crate) fn adapt_down() -> Kernel {
    let pieces = [shader!("reduce"), shader!("adapt"), shader!("adapt_down")];
    Kernel::new("adapt_down", &pieces)
}

/// The second half, or a look-up.
pub(crate) fn adapt(name: &str, source: &'static str) -> Kernel {
    let mut kernel = Kernel::each(name, source);
    kernel.pieces.push(shader!("adapt"));
    kernel
}

pub(crate) fn route(geometry: Geometry, experts: u32) -> Kernel {
    // An invocation compares its experts with all others.
    let size = if geometry.together && experts > WORKGROUP {
        256
    } else {
        WORKGROUP
    };
    let pieces = [shader!("reduce"), shader!("route")];
    let kernel = Kernel::of_workgroup(size, &format!("route of {size}"), &pieces);
    kernel.with("MOST_EXPERTS", &format!("{MOST_EXPERTS}u"))
}

/// An op of AltUp, over every element of a stream.
pub(crate) fn altup(name: &str, source: &'static str) -> Kernel {
    let mut kernel = Kernel::each(name, source);
    kernel.pieces.push(shader!("altup"));
    kernel
}

pub(crate) fn cutoff() -> Kernel {
    Kernel::new("cutoff", &[shader!("reduce"), shader!("cutoff")])
}

pub(crate) fn match_squares() -> Kernel {
    Kernel::new(
        "match_squares",
        &[shader!("reduce"), shader!("match_squares")],
    )
}

/// The most parts into which the logits of a row are divided, each with a workgroup: one for each invocation of `argmax`.
pub(crate) const MOST_PARTS: u32 = WORKGROUP;

/// The most tokens that a part of a row's logits lists for filters.
pub(crate) const LIST_CAPACITY: u32 = 512;

/// Words that a row of sampling takes for each part of its logits (`sampling.wgsl`).
pub(crate) const PART_WORDS: u32 = 6 + LIST_CAPACITY;

/// Parts of a row of `n` logits, and the elements of each.
pub(crate) fn parts(n: u32) -> (u32, u32) {
    let parts = n.div_ceil(256).clamp(1, MOST_PARTS);
    (parts, n.div_ceil(parts))
}

pub(crate) fn argmax_part(geometry: Geometry) -> Kernel {
    let (size, pieces) = (
        geometry.workgroup,
        [shader!("best"), shader!("argmax_part")],
    );
    Kernel::of_workgroup(size, &format!("argmax_part of {size}"), &pieces)
}

pub(crate) fn argmax() -> Kernel {
    let pieces = [shader!("best"), shader!("advance"), shader!("argmax")];
    Kernel::of_workgroup(MOST_PARTS, "argmax", &pieces)
}

fn sampling_of(geometry: Geometry, name: &str, pieces: &[&'static str]) -> Kernel {
    let size = geometry.workgroup;
    let mut all = vec![shader!("best"), shader!("sampling")];
    all.extend_from_slice(pieces);
    Kernel::of_workgroup(size, &format!("{name} of {size}"), &all)
        .with("PARTS", &format!("{MOST_PARTS}u"))
        .with("CAPACITY", &format!("{LIST_CAPACITY}u"))
        .with("SETTINGS", &format!("{}u", SETTINGS))
        .with("SETTINGS_HEAD", &format!("{}u", SETTINGS_HEAD))
}

pub(crate) fn sample_adjust(geometry: Geometry) -> Kernel {
    let pieces = [shader!("rounded"), shader!("sample_adjust")];
    sampling_of(geometry, "sample_adjust", &pieces)
}

pub(crate) fn sample_gather(geometry: Geometry) -> Kernel {
    let pieces = [shader!("reduce"), shader!("draw"), shader!("sample_gather")];
    sampling_of(geometry, "sample_gather", &pieces)
}

pub(crate) fn sample_choose(geometry: Geometry) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("draw"),
        shader!("advance"),
        shader!("sample_choose"),
    ];
    sampling_of(geometry, "sample_choose", &pieces)
}

/// Replaces each number of the arena by a function of it: for tests of what the sampler computes with.
#[cfg(test)]
pub(crate) fn mapped(function: &'static str) -> Kernel {
    const MAIN: &str = "struct Params { n: u32 }
        @compute @workgroup_size(WG)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            mem[id.x] = bitcast<u32>(function_of(mem[id.x]));
        }";
    let pieces = [
        shader!("best"),
        shader!("draw"),
        shader!("rounded"),
        function,
        MAIN,
    ];
    Kernel::new(function, &pieces)
}

pub(crate) fn pool() -> Kernel {
    Kernel::new("pool", &[shader!("reduce"), shader!("pool")])
}

/// Sums up a buffer: reads it as fast as the GPU can.
pub(crate) fn read() -> Kernel {
    Kernel {
        name: "read".to_string(),
        constants: format!("const WG = {WORKGROUP}u;\n"),
        pieces: vec![shader!("read")],
        loops: Vec::new(),
        rows_first: false,
    }
}

/// Every kernel, with each format and a few sizes: for tests of translations.
#[cfg(test)]
pub(crate) fn every() -> Vec<Kernel> {
    use source::*;
    let each = [
        ("act", ACT),
        ("add", ADD),
        ("add_position", ADD_POSITION),
        ("add_feature", ADD_FEATURE),
        ("bias", BIAS),
        ("encode_conv", ENCODE_CONV),
        ("gate", GATE),
        ("multiply", MULTIPLY),
        ("position_scale", POSITION_SCALE),
        ("scale", SCALE),
        ("select_rows", SELECT_ROWS),
        ("spread", SPREAD),
    ];
    let mut all: Vec<Kernel> = each.map(|(name, text)| Kernel::each(name, text)).into();
    for dim in [64, 1024] {
        all.extend([norm(false, dim), norm(true, dim), norm_before(dim)]);
    }
    all.extend([argmax(), rope()]);
    all.extend([32, 256].map(|experts| route(Geometry::HARDWARE, experts)));
    all.extend([true, false].map(|aligned| act_mul(64, aligned).0));
    for geometry in [Geometry::HARDWARE, Geometry::SOFTWARE] {
        all.push(argmax_part(geometry));
        all.extend([sample_adjust, sample_gather, sample_choose].map(|kernel| kernel(geometry)));
    }
    all.extend([pool(), read(), attention_merge(), choose_positions()]);
    all.push(altup("altup_predict", ALTUP_PREDICT));
    all.push(altup("altup_correct", ALTUP_CORRECT));
    all.extend([cutoff(), match_squares(), adapt_down()]);
    all.extend([true, false].map(cooperative::experts_end));
    all.push(cooperative::experts_group(cooperative::Tile::LARGE));
    all.push(adapt("adapt_lookup", ADAPT_LOOKUP));
    all.push(adapt("adapt_up", ADAPT_UP));
    all.extend([2, 4].map(short_conv));
    for format in Format::ALL {
        all.extend([embed(format), heads_matmul(format)]);
        for packed in [false, true] {
            if packed && unit_loader(format).is_empty() {
                continue;
            }
            all.extend(products::every(format, packed));
        }
        all.push(matmul_tile(Geometry::HARDWARE, format, true, false));
        all.push(matmul_tile(Geometry::SOFTWARE, format, false, true));
        all.extend(cooperative::every(format).0);
    }
    for geometry in [Geometry::HARDWARE, Geometry::SOFTWARE] {
        for (key_dim, by_channel) in [
            (16, true),
            (30, false),
            (128, false),
            (128, true),
            (256, false),
        ] {
            let head = StateHead {
                geometry,
                key_dim,
                by_channel,
            };
            all.extend([gated_delta(head).0, mamba2(head).0]);
        }
    }
    for format in [Format::F16, Format::Q8_0] {
        all.push(kv_append(format));
        all.push(rope_append(format));
    }
    for size in [32, 64, 80, 128, 256] {
        for format in [Format::F16, Format::Q8_0] {
            all.extend([attention(format, size), sparse_attention(format, size)]);
            all.push(choose_scores(format, size));
        }
        all.extend([WORKGROUP, 256].map(|positions| attention_wide(size, positions)));
        all.extend(attention_together(size, 16 << 10).map(|rows| attention_rows(size, rows)));
        all.extend([false, true].map(|places| encode_attention(size, places)));
    }
    all
}

/// Kernels with extensions of WGSL that only some adapters have.
#[cfg(test)]
pub(crate) fn extended() -> Vec<Kernel> {
    let of = |format| cooperative::every(format).1;
    let mut all: Vec<Kernel> = Format::ALL.into_iter().flat_map(of).collect();
    all.extend(cooperative::attention());
    all.extend(with_subgroups());
    all
}

/// Kernels whose invocations exchange numbers within a subgroup.
#[cfg(test)]
pub(crate) fn with_subgroups() -> Vec<Kernel> {
    let mut all = Vec::new();
    for (subgroup, memory) in [(8, 16 << 10), (32, 48 << 10)] {
        let geometry = Geometry {
            subgroup,
            memory,
            invocations: 1024,
            ..Geometry::HARDWARE
        };
        all.extend(products::with_subgroups(geometry));
        let head = StateHead {
            geometry,
            key_dim: 128,
            by_channel: true,
        };
        all.extend([gated_delta(head).0, mamba2(head).0]);
        let sizes = [32, 64, 80, 128, 256, 512];
        let both = sizes.map(|size| [false, true].map(|joined| (size, joined)));
        let both = both.into_iter().flatten();
        all.extend(both.filter_map(|(size, joined)| attention_lanes(geometry, size, joined)));
    }
    all
}

fn flag(is: bool) -> &'static str {
    if is { "true" } else { "false" }
}

/// `act_mul`, and its invocations. `aligned`: rows begin at multiples of 16 bytes and are whole quads.
pub(crate) fn act_mul(n: u32, aligned: bool) -> (Kernel, u32) {
    let kernel = Kernel::each("act_mul", shader!("act_mul")).with("ALIGNED", flag(aligned));
    if aligned {
        (kernel.in_quads(), n / 4)
    } else {
        (kernel, n)
    }
}

/// Sources of the ops that compute every element by itself.
pub(crate) mod source {
    pub(crate) const ACT: &str = shader!("act");
    pub(crate) const ADAPT_LOOKUP: &str = shader!("adapt_lookup");
    pub(crate) const ADAPT_UP: &str = shader!("adapt_up");
    pub(crate) const ADD: &str = shader!("add");
    pub(crate) const ADD_POSITION: &str = shader!("add_position");
    pub(crate) const ADD_FEATURE: &str = shader!("add_feature");
    pub(crate) const ALTUP_CORRECT: &str = shader!("altup_correct");
    pub(crate) const ALTUP_PREDICT: &str = shader!("altup_predict");
    pub(crate) const BIAS: &str = shader!("bias");
    pub(crate) const ENCODE_CONV: &str = shader!("encode_conv");
    pub(crate) const GATE: &str = shader!("gate");
    pub(crate) const MULTIPLY: &str = shader!("multiply");
    pub(crate) const POSITION_SCALE: &str = shader!("position_scale");
    pub(crate) const SCALE: &str = shader!("scale");
    pub(crate) const SELECT_ROWS: &str = shader!("select_rows");
    pub(crate) const SPREAD: &str = shader!("spread");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_written_out() {
        let source = "a\n//for r\nb$r $m\n//end r\nc\n";
        assert_eq!(written_out(source, "r", 2), "a\nb0 $m\nb1 $m\nc\n");
        for kernel in every().into_iter().chain(extended()) {
            let source = kernel.source();
            assert!(
                !source.contains("//for ") && !source.contains('$'),
                "{}",
                kernel.name
            );
        }
    }

    #[test]
    fn names_say_everything_that_sources_depend_on() {
        let mut sources = std::collections::HashMap::new();
        for kernel in every().into_iter().chain(extended()) {
            let source = kernel.source();
            if let Some(other) = sources.insert(kernel.name.clone(), source.clone()) {
                assert!(other == source, "two kernels are '{}'", kernel.name);
            }
        }
    }
}
