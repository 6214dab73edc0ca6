//! The kernels: WGSL in pieces, specialised by constants in front.

use crate::layout::Layout;
use welte_table::Format;

/// Invocations of a workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The most experts that `route` can rank.
pub(crate) const MOST_EXPERTS: u32 = 1024;

/// A kernel: its name says everything that its source depends on.
pub(crate) struct Kernel {
    pub(crate) name: String,
    constants: String,
    pieces: Vec<&'static str>,
}

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("../shaders/", $name, ".wgsl"))
    };
}

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
        }
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
        source
    }
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

/// Rows and outputs of a workgroup of `matmul_tile`.
pub(crate) const TILE_ROWS: u32 = 32;
pub(crate) const TILE_OUTPUTS: u32 = 64;

/// What multiplies 32 weights at once.
fn wide_loader(format: Format) -> Option<&'static str> {
    Some(match format {
        Format::F16 => shader!("wide/f16"),
        Format::BF16 => shader!("wide/bf16"),
        Format::Q4_0 => shader!("wide/q4_0"),
        Format::Q8_0 => shader!("wide/q8_0"),
        Format::Q4_K => shader!("wide/q4_k"),
        Format::Q6_K => shader!("wide/q6_k"),
        _ => return None,
    })
}

/// True if products of rows of `k` weights load 32 at once. Activations and outputs must begin at multiples of 16 bytes.
pub(crate) fn is_wide(format: Format, k: u32) -> bool {
    k.is_multiple_of(32) && wide_loader(format).is_some()
}

/// A product of rows of `k` weights. Where these are few, so are the invocations of a workgroup.
fn product(name: &str, source: &'static str, format: Format, wide: bool, k: u32) -> Kernel {
    let wide = wide_loader(format).filter(|_| wide);
    let units = match wide {
        Some(_) => k / 32,
        None => k.div_ceil(8),
    };
    let size = units.next_power_of_two().clamp(8, WORKGROUP);
    let name = &format!("{name} of {size}");
    // Rows of floats need not be whole units.
    let padded = flag(!format.is_quantised());
    let mut kernel = Kernel::of_workgroup(size, name, &[shader!("matmul"), source]);
    match wide {
        Some(loader) => {
            kernel.name += " wide";
            kernel.pieces[1] = shader!("arena_quads");
            kernel.pieces.extend([shader!("matmul_wide"), loader]);
        }
        None => kernel.pieces.push(shader!("matmul_units")),
    }
    kernel.with("PADDED", padded).loading(format)
}

/// `matmul`, or `matmul_add`.
pub(crate) fn matmul(format: Format, adds: bool, wide: bool, k: u32) -> Kernel {
    product("matmul", shader!("matmul_row"), format, wide, k).with("ADDS", flag(adds))
}

/// The same over many rows.
pub(crate) fn matmul_tile(format: Format, adds: bool) -> Kernel {
    let kernel = Kernel::new("matmul_tile", &[shader!("matmul_tile")]).loading(format);
    kernel.with("ADDS", flag(adds))
}

/// The product of `norm_matmul_act_mul`.
pub(crate) fn matmul_act_mul(format: Format, wide: bool, k: u32) -> Kernel {
    product("matmul_act_mul", shader!("matmul_act_mul"), format, wide, k)
}

pub(crate) fn experts_act_mul(format: Format, k: u32) -> Kernel {
    product(
        "experts_act_mul",
        shader!("experts_act_mul"),
        format,
        false,
        k,
    )
}

pub(crate) fn experts_add(format: Format, k: u32) -> Kernel {
    product("experts_add", shader!("experts_add"), format, false, k)
}

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
        shader!("reduce"),
        shader!("rotate"),
        shader!("cache_write"),
        shader!("rope_append"),
    ];
    Kernel::new("rope_append", &pieces).caching(format)
}

pub(crate) fn attention(format: Format, head_dim: u32) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("cache_read"),
        shader!("attention"),
        shader!("attention_cached"),
    ];
    let kernel = Kernel::new("attention", &pieces).caching(format);
    kernel.with("HEAD_DIM", &format!("{head_dim}u"))
}

/// Attention over an F16 cache, for heads of whole octets.
pub(crate) fn attention_wide(head_dim: u32) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("attention_split"),
        shader!("attention_wide"),
    ];
    let kernel = Kernel::new("attention_wide", &pieces).caching(Format::F16);
    kernel.with("HEAD_DIM", &format!("{head_dim}u"))
}

/// Joins the splits of `attention_wide`.
pub(crate) fn attention_merge() -> Kernel {
    Kernel::new(
        "attention_merge",
        &[shader!("attention_split"), shader!("attention_merge")],
    )
}

pub(crate) fn encode_attention(head_dim: u32) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("attention"),
        shader!("encode_attention"),
    ];
    Kernel::new("encode_attention", &pieces).with("HEAD_DIM", &format!("{head_dim}u"))
}

pub(crate) fn gated_delta(key_dim: u32) -> Kernel {
    let pieces = [
        shader!("reduce"),
        shader!("recurrent"),
        shader!("gated_delta"),
    ];
    Kernel::new("gated_delta", &pieces).with("KEY_DIM", &format!("{key_dim}u"))
}

/// An op over every element whose state lies in a recurrent cache.
pub(crate) fn recurrent(name: &str, source: &'static str) -> Kernel {
    let mut kernel = Kernel::each(name, source);
    kernel.pieces.push(shader!("recurrent"));
    kernel
}

pub(crate) fn route() -> Kernel {
    let most = format!("{MOST_EXPERTS}u");
    Kernel::new("route", &[shader!("reduce"), shader!("route")]).with("MOST_EXPERTS", &most)
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

/// Workgroups that look for the largest logit of a row: one for each invocation of `argmax`.
pub(crate) const ARGMAX_PARTS: u32 = WORKGROUP;

fn argmax_of(name: &str, size: u32, source: &'static str) -> Kernel {
    let parts = format!("{ARGMAX_PARTS}u");
    Kernel::of_workgroup(size, name, &[shader!("best"), source]).with("PARTS", &parts)
}

pub(crate) fn argmax_part() -> Kernel {
    argmax_of("argmax_part", 256, shader!("argmax_part"))
}

pub(crate) fn argmax() -> Kernel {
    argmax_of("argmax", ARGMAX_PARTS, shader!("argmax"))
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
    }
}

/// Every kernel, with each format and a few sizes: for tests of translations.
#[cfg(test)]
pub(crate) fn every() -> Vec<Kernel> {
    use source::*;
    let each = [
        ("act", ACT),
        ("act_mul", ACT_MUL),
        ("add", ADD),
        ("add_position", ADD_POSITION),
        ("bias", BIAS),
        ("gate", GATE),
        ("multiply", MULTIPLY),
        ("position_scale", POSITION_SCALE),
        ("scale", SCALE),
        ("select_rows", SELECT_ROWS),
    ];
    let mut all: Vec<Kernel> = each.map(|(name, text)| Kernel::each(name, text)).into();
    for dim in [64, 1024] {
        all.extend([norm(false, dim), norm(true, dim), norm_before(dim)]);
    }
    all.extend([argmax_part(), argmax(), rope(), route()]);
    all.extend([pool(), read(), attention_merge()]);
    all.push(altup("altup_predict", ALTUP_PREDICT));
    all.push(altup("altup_correct", ALTUP_CORRECT));
    all.extend([cutoff(), match_squares()]);
    all.push(recurrent("mamba2", MAMBA2));
    all.push(recurrent("short_conv", SHORT_CONV));
    for format in Format::ALL {
        all.extend([embed(format), heads_matmul(format)]);
        all.push(experts_act_mul(format, 256));
        all.push(experts_add(format, 2048));
        for wide in [false, true] {
            if !wide || wide_loader(format).is_some() {
                all.push(matmul_act_mul(format, wide, 256));
                all.extend([false, true].map(|adds| matmul(format, adds, wide, 2048)));
            }
        }
        all.extend([false, true].map(|adds| matmul_tile(format, adds)));
    }
    for format in [Format::F16, Format::Q8_0] {
        all.push(kv_append(format));
        all.push(rope_append(format));
    }
    for size in [32, 64, 80, 128, 256] {
        all.extend([Format::F16, Format::Q8_0].map(|format| attention(format, size)));
        all.push(attention_wide(size));
        all.push(encode_attention(size));
        all.push(gated_delta(size));
    }
    all
}

fn flag(is: bool) -> &'static str {
    match is {
        true => "true",
        false => "false",
    }
}

/// Sources of the ops that compute every element by itself.
pub(crate) mod source {
    pub(crate) const ACT: &str = shader!("act");
    pub(crate) const ACT_MUL: &str = shader!("act_mul");
    pub(crate) const ADD: &str = shader!("add");
    pub(crate) const ADD_POSITION: &str = shader!("add_position");
    pub(crate) const ALTUP_CORRECT: &str = shader!("altup_correct");
    pub(crate) const ALTUP_PREDICT: &str = shader!("altup_predict");
    pub(crate) const BIAS: &str = shader!("bias");
    pub(crate) const GATE: &str = shader!("gate");
    pub(crate) const MAMBA2: &str = shader!("mamba2");
    pub(crate) const MULTIPLY: &str = shader!("multiply");
    pub(crate) const POSITION_SCALE: &str = shader!("position_scale");
    pub(crate) const SCALE: &str = shader!("scale");
    pub(crate) const SELECT_ROWS: &str = shader!("select_rows");
    pub(crate) const SHORT_CONV: &str = shader!("short_conv");
}
