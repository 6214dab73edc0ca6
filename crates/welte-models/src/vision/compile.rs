//! Compiles an encoder of pictures: one pass without caches, whose rows are the patches of a tile.

use super::names::{VisionNames, ending};
use super::{VisionAct, VisionFamily, VisionSpec};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at};
use crate::names::{bias, weight};
use crate::weights::{Collector, NormWeights, OutputPart};
use welte_formats::checkpoint::{Checkpoint, Dialect, TensorInfo};
use welte_formats::quant;
use welte_table::{
    BufferRef, Class, Format, ModelPart, NO_WEIGHT, Op, Part, Pass, PassKind, Program, Sections,
    Source, Usage, WeightId, WeightSpec, cost, params as p,
};

/// A matrix with its bias.
struct Linear {
    pieces: Vec<OutputPart>,
    bias: Option<WeightId>,
    n: u32,
    k: u32,
}

struct Layer {
    norm1: NormWeights,
    norm2: NormWeights,
    qkv: Linear,
    o: Linear,
    up: Linear,
    down: Linear,
    scales: Option<[WeightId; 2]>,
}

/// What makes a further part of a feature: of the state after a layer.
struct Deep {
    layer: u32,
    norm: NormWeights,
    linear1: Linear,
    linear2: Linear,
}

struct Weights {
    nothing: WeightId,
    patch: Linear,
    /// The kernel of a second frame.
    patch2: Option<Linear>,
    first_norm: Option<NormWeights>,
    freqs: Option<WeightId>,
    layers: Vec<Layer>,
    deep: Vec<Deep>,
    last_norm: Option<NormWeights>,
    projector_norm: Option<NormWeights>,
    merging: Option<Linear>,
    linear1: Linear,
    linear2: Option<Linear>,
}

/// Takes the encoder's tensors by their names.
struct Taker<'a> {
    collector: Collector<'a>,
    spec: &'a VisionSpec,
    names: &'static VisionNames,
    prefix: String,
}

impl Taker<'_> {
    fn tower(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn linear(&mut self, label: &str, parts: &[(String, u32)], k: u32) -> Result<Linear, Error> {
        let named = |end: fn(&str, u32) -> String| {
            let each = parts.iter().map(|(name, n)| (end(name, 0), *n));
            each.collect::<Vec<_>>()
        };
        let pieces = self.collector.joined(label, &named(weight), k)?;
        let biases = named(bias);
        let has = biases.iter().all(|(name, _)| self.collector.has(name));
        let label = format!("{label} bias");
        Ok(Linear {
            pieces,
            bias: if has {
                Some(self.collector.vector(&label, &biases, 0.0)?)
            } else {
                None
            },
            n: parts.iter().map(|part| part.1).sum(),
            k,
        })
    }

    fn norm(&mut self, label: &str, name: &str, add: f32) -> Result<NormWeights, Error> {
        self.norm_of(label, name, self.spec.dim, add)
    }

    fn norm_of(
        &mut self,
        label: &str,
        name: &str,
        dim: u32,
        add: f32,
    ) -> Result<NormWeights, Error> {
        let shift = [(bias(name, 0), dim)];
        let weight = [(weight(name, 0), dim)];
        Ok(NormWeights {
            weight: self.collector.vector(label, &weight, add)?,
            bias: if self.collector.has(&shift[0].0) {
                Some(
                    self.collector
                        .vector(&format!("{label} bias"), &shift, 0.0)?,
                )
            } else {
                None
            },
        })
    }

    fn layer(&mut self, index: u32) -> Result<Layer, Error> {
        let (dim, ffn) = (self.spec.dim, self.spec.ffn);
        let name = |template: &str| self.tower(&template.replace("{}", &index.to_string()));
        let label = |what: &str| format!("layer {index} {what}");
        let names = self.names;
        let (norm1, norm2, o) = (name(names.norm1), name(names.norm2), name(names.o));
        let [fused, q, k, v] = [names.qkv, names.q, names.k, names.v].map(name);
        let fused = Some(fused)
            .filter(|name| !names.qkv.is_empty() && self.collector.has(&weight(name, 0)));
        let qkv = match fused {
            Some(fused) => vec![(fused, 3 * dim)],
            None => [q, k, v].map(|name| (name, dim)).to_vec(),
        };
        let [gate, mut up, mut down] = [names.gate, names.up, names.down].map(name);
        let swapped = |name: &str| {
            let info = self.collector.checkpoint.tensor(&weight(name, 0));
            info.is_some_and(|info| (info.n, info.k) == (dim as usize, ffn as usize))
        };
        // Older files call the first matrix "down" and the second one "up".
        if dim != ffn && self.collector.is_gguf() && swapped(&up) {
            std::mem::swap(&mut up, &mut down);
        }
        let scales = match self.spec.family {
            VisionFamily::InternVl => {
                let [first, second] = names.scales.map(name);
                let mut scale = |what: &str, name: String| {
                    self.collector.vector(&label(what), &[(name, dim)], 0.0)
                };
                let first = scale("attention scale", first)?;
                Some([first, scale("feed-forward scale", second)?])
            }
            _ => None,
        };
        let up = if self.spec.gated {
            vec![(gate, ffn), (up, ffn)]
        } else {
            vec![(up, ffn)]
        };
        Ok(Layer {
            norm1: self.norm(&label("attention norm"), &norm1, 0.0)?,
            norm2: self.norm(&label("feed-forward norm"), &norm2, 0.0)?,
            qkv: self.linear(&label("qkv"), &qkv, dim)?,
            o: self.linear(&label("attention output"), &[(o, dim)], dim)?,
            up: self.linear(&label("up"), &up, dim)?,
            down: self.linear(&label("down"), &[(down, dim)], ffn)?,
            scales,
        })
    }

    /// What makes the part of a feature from the state after a layer. GGUF files name it by the layer, others by its own number.
    fn deep(&mut self, number: u32, layer: u32) -> Result<Deep, Error> {
        let by = if self.collector.is_gguf() {
            layer
        } else {
            number
        };
        let (joined, width) = (self.spec.dim * self.spec.group(), self.spec.width);
        let name = |template: &str| self.tower(&template.replace("{}", &by.to_string()));
        let [norm, first, second] = self.names.deep.map(name);
        let label = |what: &str| format!("deep part {number} {what}");
        Ok(Deep {
            layer,
            norm: self.norm_of(&label("norm"), &norm, joined, 0.0)?,
            linear1: self.linear(&label("projection"), &[(first, joined)], joined)?,
            linear2: self.linear(&label("second projection"), &[(second, width)], joined)?,
        })
    }

    fn constant(&mut self, name: &str, values: Vec<f32>, usage: Usage) -> WeightId {
        self.collector.push(WeightSpec {
            name: name.into(),
            format: Format::F32,
            n: 1,
            k: values.len() as u32,
            usage,
            add: 0.0,
            source: Source::Constant(values),
        })
    }

    /// A tensor of the projector, whose prefix is its own.
    fn projector(&self, name: &str) -> String {
        let end = weight(name, 0);
        let found = ending(self.collector.checkpoint, &end);
        found.map_or(name.to_string(), |found| {
            found.trim_end_matches(".weight").to_string()
        })
    }

    /// Gemma's projection, which is stored transposed.
    fn transposed(&mut self, name: &str) -> Result<Linear, Error> {
        let (n, k) = (self.spec.width, self.spec.dim);
        let checkpoint = self.collector.checkpoint;
        let found = ending(checkpoint, name).or_else(|| ending(checkpoint, &weight(name, 0)));
        let info = self
            .collector
            .tensor(&found.unwrap_or(weight(name, 0)), k, n)?;
        if info.format.is_quantised() {
            let problem = "is quantised and transposed, which is not supported".into();
            return Err(self.collector.fault(&info.name, problem));
        }
        let weight = self.collector.push(WeightSpec {
            name: "projection".into(),
            format: info.format,
            n,
            k,
            usage: Usage::Matrix,
            add: 0.0,
            source: Source::Transposed(vec![Part {
                tensor: info.name,
                first_row: 0,
                rows: k,
            }]),
        });
        Ok(Linear {
            pieces: vec![OutputPart { weight, n, at: 0 }],
            bias: None,
            n,
            k,
        })
    }

    /// The table of places, if positions are learned.
    fn position(&mut self) -> Result<Option<TensorInfo>, Error> {
        let spec = self.spec;
        if spec.positions == 0 {
            return Ok(None);
        }
        let name = self.tower(self.names.position);
        let name = if self.collector.has(&name) {
            name
        } else {
            weight(&name, 0)
        };
        let places = spec.positions + spec.class_rows();
        self.collector.tensor(&name, places, spec.dim).map(Some)
    }

    /// The vector of the class, and the bias that every patch gets.
    fn class(&mut self) -> Result<[TensorInfo; 2], Error> {
        let dim = self.spec.dim;
        let class = self.tower(VisionNames::class(self.collector.is_gguf()));
        let bias = bias(&self.tower(self.names.patch), 0);
        Ok([
            self.collector.tensor(&class, 1, dim)?,
            self.collector.tensor(&bias, 1, dim)?,
        ])
    }

    fn all(&mut self) -> Result<Weights, Error> {
        let (spec, names) = (self.spec, self.names);
        let (dim, values) = (spec.dim, spec.patch_values());
        let gguf = self.collector.is_gguf();
        let nothing = vec![0.0; spec.row_values() as usize];
        let nothing = self.constant("nothing", nothing, Usage::Lookup);
        let patch = self.tower(names.patch);
        let second = format!("{patch}.weight.1");
        let (qwen, pixtral) = match spec.family {
            VisionFamily::Qwen2 | VisionFamily::Qwen2_5 | VisionFamily::Qwen3 => (true, false),
            VisionFamily::Pixtral | VisionFamily::Mistral3 => (false, true),
            _ => (false, false),
        };
        let patch2 = if qwen && gguf {
            Some(Linear {
                pieces: self.collector.joined(
                    "patch of a second frame",
                    &[(second, dim)],
                    values,
                )?,
                bias: None,
                n: dim,
                k: values,
            })
        } else {
            None
        };
        // The host reads them.
        self.position()?;
        if spec.class_rows() > 0 {
            self.class()?;
        }
        let first_norm = self.tower(names.first_norm);
        let first_norm = if pixtral {
            Some(self.norm("first norm", &first_norm, 0.0)?)
        } else {
            None
        };
        let patch = self.linear("patch", &[(patch, dim)], values)?;
        let freqs = spec.is_rotary().then(|| frequencies(spec));
        let freqs = freqs.map(|values| self.constant("rope", values, Usage::Vector));
        let mut layers = Vec::new();
        for index in 0..spec.layers {
            layers.push(self.layer(index)?);
        }
        let deep = (0..).zip(&spec.deep);
        let deep = deep.map(|(number, layer)| self.deep(number, *layer));
        let deep = deep.collect::<Result<_, Error>>()?;
        let last_norm = self.tower(names.last_norm);
        let last_norm = if pixtral || names.last_norm.is_empty() {
            None
        } else {
            Some(self.norm("last norm", &last_norm, 0.0)?)
        };
        let projector_norm = self.projector(names.projector_norm);
        let has_norm = matches!(spec.family, VisionFamily::Gemma3 | VisionFamily::Mistral3);
        let joined = dim * spec.group();
        let projector_norm = if has_norm {
            // Gemma stores the difference from 1. GGUF converters have added the 1.
            let add = spec.family == VisionFamily::Gemma3 && !gguf;
            Some(self.norm("projector norm", &projector_norm, u8::from(add).into())?)
        } else if spec.joined_norm {
            Some(self.norm_of("projector norm", &projector_norm, joined, 0.0)?)
        } else {
            None
        };
        let (width, first) = (spec.width, self.projector(names.linear1));
        let merging = match spec.family {
            VisionFamily::Mistral3 => {
                let name = self.projector(names.merging);
                Some(self.linear("merging", &[(name, dim)], joined)?)
            }
            _ => None,
        };
        let (linear1, n) = match spec.family {
            VisionFamily::Idefics3 => (self.linear("projection", &[(first, width)], joined)?, 0),
            VisionFamily::Gemma3 => (self.transposed(names.linear1)?, 0),
            VisionFamily::Qwen2 | VisionFamily::Qwen2_5 | VisionFamily::Qwen3 => (
                self.linear("projection", &[(first, joined)], joined)?,
                joined,
            ),
            VisionFamily::Pixtral | VisionFamily::Mistral3 => {
                (self.linear("projection", &[(first, width)], dim)?, width)
            }
            VisionFamily::Lfm2 | VisionFamily::InternVl => {
                let hidden = spec.hidden;
                let linear = self.linear("projection", &[(first, hidden)], joined)?;
                (linear, hidden)
            }
        };
        let linear2 = match n {
            0 => None,
            n => {
                let name = self.projector(names.linear2);
                Some(self.linear("second projection", &[(name, width)], n)?)
            }
        };
        Ok(Weights {
            nothing,
            patch,
            patch2,
            first_norm,
            freqs,
            layers,
            deep,
            last_norm,
            projector_norm,
            merging,
            linear1,
            linear2,
        })
    }
}

/// The inverse frequencies of a head's pairs: the first half turns by the line, the second by the column.
fn frequencies(spec: &VisionSpec) -> Vec<f32> {
    let head = spec.dim / spec.heads;
    let power = |i: u32, of: u32| {
        let exponent = f64::from(i) / f64::from(of);
        (1.0 / f64::from(spec.theta).powf(exponent)) as f32
    };
    let quarter = 0..head / 4;
    match spec.family {
        // Lines have the even powers, columns the odd ones.
        VisionFamily::Pixtral | VisionFamily::Mistral3 => {
            let lines = quarter.clone().map(|i| power(4 * i, head));
            lines
                .chain(quarter.map(|i| power(4 * i + 2, head)))
                .collect()
        }
        _ => {
            let each = quarter.map(|i| power(2 * i, head / 2));
            each.clone().chain(each).collect()
        }
    }
}

fn taker<'a>(spec: &'a VisionSpec, checkpoint: &'a dyn Checkpoint) -> Taker<'a> {
    let gguf = checkpoint.dialect() == Dialect::Gguf;
    let names = VisionNames::of(spec.family, gguf);
    let patch = weight(names.patch, 0);
    let prefix = ending(checkpoint, &patch);
    let prefix = prefix.and_then(|name| name.strip_suffix(&patch).map(String::from));
    Taker {
        collector: Collector::new(checkpoint),
        spec,
        names,
        prefix: prefix.unwrap_or_default(),
    }
}

/// The learned vectors of all places, line by line, which follow the patches in the rows; empty if positions are rotary. Then that of
/// the class, if it has a row: what its row must read so that the patch product makes the class's vector of it.
pub fn learned_positions(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
) -> Result<Vec<f32>, Error> {
    let mut taker = taker(spec, checkpoint);
    let Some(info) = taker.position()? else {
        return Ok(Vec::new());
    };
    let mut values = floats(checkpoint, &info)?;
    if spec.class_rows() > 0 {
        // The table begins with the class.
        values.rotate_left(info.k);
        let [class, bias] = taker.class()?;
        let (class, bias) = (floats(checkpoint, &class)?, floats(checkpoint, &bias)?);
        let place = values.len() - info.k;
        for ((value, class), bias) in values[place..].iter_mut().zip(class).zip(bias) {
            *value += class - bias;
        }
    }
    Ok(values)
}

/// A tensor's values.
fn floats(checkpoint: &dyn Checkpoint, info: &TensorInfo) -> Result<Vec<f32>, Error> {
    let bytes = checkpoint.rows(info, 0, info.n)?;
    let mut values = vec![0.0; info.n * info.k];
    let row = info.format.bytes(info.k).unwrap_or(1);
    let rows = values.chunks_exact_mut(info.k);
    for (bytes, values) in bytes.chunks_exact(row).zip(rows) {
        quant::decode(info.format, bytes, values);
    }
    Ok(values)
}

/// The program of an encoder whose tiles have at most `patches` patches. Its rows read features of [`VisionSpec::row_values`] values.
pub fn compile_vision(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    patches: u32,
) -> Result<Program, Error> {
    if patches == 0 || patches > 1 << 16 || !patches.is_multiple_of(spec.group()) {
        let group = spec.group();
        return Err(Error::Option {
            option: "most_features",
            problem: format!(
                "makes {patches} patches; must be at most 65536, in groups of {group}"
            ),
        });
    }
    let mut taker = taker(spec, checkpoint);
    let weights = taker.all()?;
    let (rows, outputs) = (patches + spec.class_rows(), patches / spec.group());
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = 4 * u64::from(rows) * u64::from(spec.row_values());
    let features = buffers.add("features", class, features).buffer;
    let mut add = |name: &str, rows: u32, width: u32| {
        buffers.add(name, class, 4 * u64::from(rows) * u64::from(width))
    };
    let (dim, wide) = (spec.dim, spec.ffn * (1 + u32::from(spec.gated)));
    let joined = match spec.family {
        VisionFamily::Gemma3 => dim,
        _ => dim * spec.group(),
    };
    let states = 1 + spec.deep.len() as u32;
    let set = Set {
        tokens,
        read: add("prompt.read", rows, spec.row_values()),
        x: add("prompt.x", rows, dim),
        norm: add("prompt.norm", rows, dim),
        qkv: add("prompt.qkv", rows, 3 * dim),
        wide: add("prompt.up", rows, wide),
        h: if spec.gated {
            add("prompt.h", rows, spec.ffn)
        } else {
            BufferRef::NONE
        },
        states: match states {
            1 => BufferRef::NONE,
            states => add("prompt.states", rows, states * dim),
        },
        pooled: match states {
            1 => BufferRef::NONE,
            states => add("prompt.pooled", outputs, states * joined),
        },
        joined: add("prompt.joined", outputs, joined.max(spec.width)),
        middle: add(
            "prompt.middle",
            outputs,
            joined.max(spec.hidden).max(spec.width),
        ),
        result: add("prompt.result", outputs, spec.feature_values()),
    };
    let emitter = Emitter {
        spec,
        weights: &weights,
        set: &set,
        out: Commands::new(&taker.collector.list),
    };
    let pass = emitter.pass(rows, outputs);
    let mut program = Program {
        weights: taker.collector.list,
        buffers: buffers.into_list(),
        caches: Vec::new(),
        vocab: 1,
        context: rows,
        page: 64,
        slots: 1,
        tokens: tokens.buffer,
        features,
        passes: vec![pass],
    };
    cost::fill(&mut program);
    Ok(program)
}

/// The buffers.
struct Set {
    tokens: BufferRef,
    /// Patches, and the vectors of their places.
    read: BufferRef,
    x: BufferRef,
    /// A normed row, then what is added to `x`.
    norm: BufferRef,
    qkv: BufferRef,
    /// Gate and up, or up alone.
    wide: BufferRef,
    h: BufferRef,
    /// The states that become parts of features, side by side, and those of a feature's patches one after the other.
    states: BufferRef,
    pooled: BufferRef,
    joined: BufferRef,
    middle: BufferRef,
    result: BufferRef,
}

struct Emitter<'a> {
    spec: &'a VisionSpec,
    weights: &'a Weights,
    set: &'a Set,
    out: Commands<'a>,
}

impl Emitter<'_> {
    fn pass(mut self, rows: u32, outputs: u32) -> Pass {
        let (spec, weights, set) = (self.spec, self.weights, self.set);
        let (dim, read) = (spec.dim, spec.row_values());
        let embed = p::Embed {
            n: 1,
            k: read,
            scale: 1.0,
            x_stride: read,
        };
        let buffers = [set.tokens, set.read];
        self.out.push(
            "patches",
            Op::Embed,
            &[weights.nothing],
            &buffers,
            embed.words(),
        );
        self.linear("patch", &weights.patch, (set.read, read), (set.x, dim));
        if let Some(second) = &weights.patch2 {
            self.linear("second patch", second, (set.read, read), (set.norm, dim));
            self.add("sum of patches", (set.norm, dim));
        }
        if spec.positions > 0 {
            self.add("positions", (at(set.read, spec.patch_values()), read));
        }
        if let Some(norm) = weights.first_norm {
            self.norm("first norm", norm, spec.eps, set.x, set.x);
        }
        for (index, layer) in weights.layers.iter().enumerate() {
            self.out.layer = Some(index as u32);
            self.out.part = ModelPart::Attention;
            self.attention(index as u32, layer);
            self.out.part = ModelPart::FeedForward;
            self.feed_forward(layer);
            let deep = weights.deep.iter().position(|d| d.layer == index as u32);
            if let Some(number) = deep {
                self.keep_state(1 + number as u32);
            }
        }
        self.out.layer = None;
        self.out.part = ModelPart::Head;
        if let Some(norm) = weights.last_norm {
            self.norm("last norm", norm, spec.eps, set.x, set.x);
        }
        if weights.deep.is_empty() {
            self.projector();
        } else {
            self.keep_state(0);
            self.deep_parts();
        }
        let result = (spec.feature_values(), set.result);
        self.out.pass(PassKind::Embed, (rows, outputs), result)
    }

    fn attention(&mut self, index: u32, layer: &Layer) {
        let (spec, set, weights) = (self.spec, self.set, self.weights);
        let (dim, heads) = (spec.dim, spec.heads);
        self.norm("attention norm", layer.norm1, spec.eps, set.x, set.norm);
        self.linear("qkv", &layer.qkv, (set.norm, dim), (set.qkv, 3 * dim));
        if let Some(freqs) = weights.freqs {
            let pairs = (dim / heads / 4) as u8;
            let params = p::Rope {
                heads: 2 * heads,
                head_dim: dim / heads,
                rot: dim / heads,
                interleaved: spec.interleaved.into(),
                magnitude: 1.0,
                y_stride: 3 * dim,
                sections: Sections {
                    pairs: [0, pairs, pairs],
                    interleaved: false,
                }
                .word(),
            };
            self.out
                .push("rope", Op::Rope, &[freqs], &[set.qkv], params.words());
        }
        let windowed = spec.window.is_some() && !spec.whole.contains(&index);
        let params = p::EncodeAttention {
            heads,
            kv_heads: heads,
            head_dim: dim / heads,
            scale: 1.0 / ((dim / heads) as f32).sqrt(),
            window: 0,
            qkv_stride: 3 * dim,
            y_stride: dim,
            by_axis: windowed.into(),
        };
        let buffers = [set.qkv, set.norm];
        self.out.push(
            "attention",
            Op::EncodeAttention,
            &[],
            &buffers,
            params.words(),
        );
        // The queries are not read again.
        self.linear(
            "attention output",
            &layer.o,
            (set.norm, dim),
            (set.qkv, dim),
        );
        self.scale("attention scale", layer.scales.map(|s| s[0]), set.qkv);
        self.add("attention sum", (set.qkv, dim));
    }

    fn feed_forward(&mut self, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (dim, ffn) = (spec.dim, spec.ffn);
        self.norm("feed-forward norm", layer.norm2, spec.eps, set.x, set.norm);
        let wide = layer.up.n;
        self.linear("up", &layer.up, (set.norm, dim), (set.wide, wide));
        let h = if spec.gated {
            let act = p::ActMul {
                n: ffn,
                act: word(spec.act),
                x_stride: wide,
                y_stride: ffn,
            };
            let buffers = [set.wide, set.h];
            self.out
                .push("activation", Op::ActMul, &[], &buffers, act.words());
            set.h
        } else {
            self.act("activation", spec.act, set.wide, ffn);
            set.wide
        };
        self.linear("down", &layer.down, (h, ffn), (set.norm, dim));
        self.scale("feed-forward scale", layer.scales.map(|s| s[1]), set.norm);
        self.add("down sum", (set.norm, dim));
    }

    fn projector(&mut self) {
        let (spec, set, weights) = (self.spec, self.set, self.weights);
        let (dim, width) = (spec.dim, spec.width);
        if let (VisionFamily::Mistral3, Some(norm)) = (spec.family, weights.projector_norm) {
            self.norm("projector norm", norm, spec.projector_eps, set.x, set.x);
        }
        // Mistral's merging matrix takes the first values of all patches first.
        let kind = match spec.family {
            VisionFamily::Gemma3 => 1,
            VisionFamily::Mistral3 => 4,
            _ => 3,
        };
        let mut pool = p::Pool {
            n: dim,
            kind,
            normalise: 0,
            x_stride: dim,
            y_stride: 0,
            group: spec.group(),
        };
        pool.y_stride = pool.width() as u32;
        let joined = pool.y_stride;
        let buffers = [set.x, set.joined];
        self.out
            .push("features", Op::Pool, &[], &buffers, pool.words());
        if let (VisionFamily::Gemma3, Some(norm)) = (spec.family, weights.projector_norm) {
            let params = p::Norm {
                dim,
                groups: 1,
                eps: spec.projector_eps,
                x_stride: dim,
                y_stride: dim,
            };
            let buffers = [set.joined, set.joined];
            self.out.push(
                "projector norm",
                Op::Norm,
                &[norm.weight],
                &buffers,
                params.words(),
            );
        }
        if let (true, Some(norm)) = (spec.joined_norm, weights.projector_norm) {
            let params = p::LayerNorm {
                dim: joined,
                groups: 1,
                eps: spec.projector_eps,
                x_stride: joined,
                y_stride: joined,
            };
            let weights = [norm.weight, norm.bias.unwrap_or(NO_WEIGHT)];
            let buffers = [set.joined, set.joined];
            self.out.push(
                "projector norm",
                Op::LayerNorm,
                &weights,
                &buffers,
                params.words(),
            );
        }
        let (mut from, mut to) = ((set.joined, joined), set.middle);
        if let Some(merging) = &weights.merging {
            self.linear("merging", merging, from, (to, dim));
            (from, to) = ((to, dim), set.joined);
        }
        match &weights.linear2 {
            None => self.linear("projection", &weights.linear1, from, (set.result, width)),
            Some(second) => {
                let n = weights.linear1.n;
                self.linear("projection", &weights.linear1, from, (to, n));
                self.act("projector activation", spec.projector_act, to, n);
                self.linear("second projection", second, (to, n), (set.result, width));
            }
        }
    }

    /// Copies the rows beside the other states.
    fn keep_state(&mut self, number: u32) {
        let (dim, set) = (self.spec.dim, self.set);
        let to = (at(set.states, number * dim), self.states() * dim);
        self.copy("kept state", (set.x, dim), to, dim);
    }

    fn states(&self) -> u32 {
        1 + self.spec.deep.len() as u32
    }

    fn copy(
        &mut self,
        what: &str,
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
        n: u32,
    ) {
        let params = p::Multiply {
            n,
            x_stride,
            y_stride,
        };
        self.out
            .push(what, Op::Multiply, &[NO_WEIGHT], &[x, y], params.words());
    }

    /// The parts of features: each of a state of a feature's patches, one after the other.
    fn deep_parts(&mut self) {
        let (spec, set, weights) = (self.spec, self.set, self.weights);
        let (dim, states, group) = (spec.dim, self.states(), spec.group());
        let (joined, wide, values) = (dim * group, states * dim, spec.feature_values());
        let pool = p::Pool {
            n: wide,
            kind: 3,
            normalise: 0,
            x_stride: wide,
            y_stride: wide * group,
            group,
        };
        let buffers = [set.states, set.pooled];
        self.out
            .push("features", Op::Pool, &[], &buffers, pool.words());
        let (x, middle) = (set.joined, set.middle);
        // The first part comes last: a pass ends where its result begins.
        for state in (1..states).chain([0]) {
            for patch in 0..group {
                let from = at(set.pooled, patch * wide + state * dim);
                let to = at(x, patch * dim);
                self.copy("state of a patch", (from, wide * group), (to, joined), dim);
            }
            let part = state
                .checked_sub(1)
                .map(|deep| &weights.deep[deep as usize]);
            if let Some(deep) = part {
                let norm = (deep.norm, false);
                self.out.norm("deep norm", norm, (joined, spec.eps), [x, x]);
            }
            let (first, second) = match part {
                Some(deep) => (&deep.linear1, Some(&deep.linear2)),
                None => (&weights.linear1, weights.linear2.as_ref()),
            };
            self.linear("projection", first, (x, joined), (middle, first.n));
            if let Some(second) = second {
                self.act("projector activation", spec.projector_act, middle, first.n);
                let to = (at(set.result, state * spec.width), values);
                self.linear("second projection", second, (middle, first.n), to);
            }
        }
    }

    /// y = W x + bias
    fn linear(
        &mut self,
        what: &str,
        linear: &Linear,
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
    ) {
        for piece in &linear.pieces {
            let params = p::Matmul {
                n: piece.n,
                k: linear.k,
                x_stride,
                y_stride,
            };
            let buffers = [x, at(y, piece.at)];
            self.out
                .push(what, Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        if let Some(bias) = linear.bias {
            let params = p::Bias {
                n: linear.n,
                y_stride,
            };
            let what = format!("{what} bias");
            self.out
                .push(&what, Op::Bias, &[bias], &[y], params.words());
        }
    }

    /// y *= a vector, if there is one.
    fn scale(&mut self, what: &str, scale: Option<WeightId>, y: BufferRef) {
        let Some(scale) = scale else { return };
        let params = p::Multiply {
            n: self.spec.dim,
            x_stride: self.spec.dim,
            y_stride: self.spec.dim,
        };
        self.out
            .push(what, Op::Multiply, &[scale], &[y, y], params.words());
    }

    /// x += what a buffer holds.
    fn add(&mut self, what: &str, (from, x_stride): (BufferRef, u32)) {
        let params = p::Add {
            n: self.spec.dim,
            x_stride,
            y_stride: self.spec.dim,
        };
        self.out
            .push(what, Op::Add, &[], &[from, self.set.x], params.words());
    }

    fn norm(&mut self, what: &str, norm: NormWeights, eps: f32, x: BufferRef, y: BufferRef) {
        let norm = (norm, self.spec.rms);
        self.out.norm(what, norm, (self.spec.dim, eps), [x, y]);
    }

    /// y = act(y)
    fn act(&mut self, what: &str, act: VisionAct, y: BufferRef, n: u32) {
        const QUICK: f32 = 1.702;
        let scale = |scale: f32| {
            let params = p::Scale {
                n,
                scale,
                cap: 0.0,
                y_stride: n,
            };
            params.words()
        };
        let params = p::Act {
            n,
            act: word(act),
            a: 0.0,
            b: 0.0,
            c: 0.0,
            d: 0.0,
            y_stride: n,
        };
        // x * sigmoid(1.702 x) is SiLU of 1.702 x, divided by 1.702.
        let quick = act == VisionAct::QuickGelu;
        if quick {
            self.out
                .push(&format!("{what} scale"), Op::Scale, &[], &[y], scale(QUICK));
        }
        self.out.push(what, Op::Act, &[], &[y], params.words());
        if quick {
            let scale = scale(1.0 / QUICK);
            self.out
                .push(&format!("{what} scale back"), Op::Scale, &[], &[y], scale);
        }
    }
}

/// The number of an activation in commands. QuickGELU is SiLU between two scales.
fn word(act: VisionAct) -> u32 {
    match act {
        VisionAct::Silu | VisionAct::QuickGelu => 0,
        VisionAct::GeluTanh => 1,
        VisionAct::Gelu => 2,
    }
}
