//! The weights of an encoder of pictures, and what the host reads of them.

use super::family::{Family, Pool, Projector, ProjectorNorm, Rotation};
use super::names::{LINE_END, SEPARATOR, VisionNames, ending};
use super::{VisionFamily, VisionSpec, granite};
use crate::Error;
use crate::names::{bias, weight};
use crate::weights::{Collector, NormWeights, OutputPart, Rows};
use welte_formats::checkpoint::{Checkpoint, TensorInfo};
use welte_formats::quant;
use welte_table::{Format, NO_WEIGHT, Part, Source, Usage, WeightId, WeightSpec};

/// The lowest and the highest value.
pub(super) type Limits = [f32; 2];

/// A matrix with its bias.
pub(super) struct Linear {
    /// Limits of what it reads: none, those of all pieces, or those of each.
    pub(super) reads: Vec<Limits>,
    /// Limits of what it makes, each with the first value and how many.
    pub(super) makes: Vec<(u32, u32, Limits)>,
    pub(super) pieces: Vec<OutputPart>,
    pub(super) biases: Vec<OutputPart>,
    pub(super) n: u32,
    pub(super) k: u32,
}

pub(super) struct Layer {
    pub(super) attention: Attention,
    pub(super) norm: NormWeights,
    pub(super) up: Linear,
    pub(super) down: Linear,
    /// A norm before the last matrix.
    pub(super) inner_norm: Option<NormWeights>,
    /// The factor of what it adds, and its norm.
    pub(super) scale: Option<WeightId>,
    pub(super) post_norm: Option<NormWeights>,
}

pub(super) struct Attention {
    pub(super) norm: NormWeights,
    pub(super) qkv: Linear,
    pub(super) o: Linear,
    /// Norms of a head's queries and keys.
    pub(super) head_norms: Option<[WeightId; 2]>,
    /// A norm of what heads find.
    pub(super) inner_norm: Option<NormWeights>,
    /// The factor of what it adds, and its norm.
    pub(super) scale: Option<WeightId>,
    pub(super) post_norm: Option<NormWeights>,
    /// What scores of a head add by distance, and the side of its table.
    pub(super) distances: Option<(Linear, u32)>,
    /// What stands for rows that a window lacks.
    pub(super) absent: WeightId,
}

impl Linear {
    /// It makes nothing.
    const NONE: Linear = Linear {
        reads: Vec::new(),
        makes: Vec::new(),
        pieces: Vec::new(),
        biases: Vec::new(),
        n: 0,
        k: 0,
    };

    /// The limits of what each piece reads, if they differ.
    pub(super) fn own_limits(&self) -> Option<&[Limits]> {
        (self.reads.len() > 1).then_some(&self.reads)
    }
}

impl Layer {
    /// Some of its matrices have parts that differ in the limits of what they read.
    pub(super) fn has_own_limits(&self) -> bool {
        let differ = |linear: &Linear| linear.own_limits().is_some();
        differ(&self.attention.qkv) || differ(&self.up)
    }
}

/// A rotation of queries and keys.
pub(super) struct Turn {
    pub(super) freqs: WeightId,
    /// The first value of a head, and how many turn.
    pub(super) at: u32,
    pub(super) rot: u32,
    /// How many pairs each axis turns.
    pub(super) pairs: [u8; 3],
}

/// What makes a further part of a feature: of the state after a layer.
pub(super) struct Deep {
    pub(super) layer: u32,
    pub(super) norm: NormWeights,
    pub(super) linear1: Linear,
    pub(super) linear2: Linear,
}

/// What queries need.
pub(super) struct Queries {
    pub(super) kv: Linear,
    /// Norms of queries, of keys and values, and of what they make.
    pub(super) norms: [NormWeights; 3],
    pub(super) qkv: [Linear; 3],
    /// Of all three, one after the other.
    pub(super) qkv_bias: WeightId,
    pub(super) o: Linear,
}

pub(super) struct Weights {
    pub(super) nothing: WeightId,
    /// The product of patches. Without it rows read states.
    pub(super) patch: Option<Linear>,
    /// The kernel of a second frame.
    pub(super) patch2: Option<Linear>,
    pub(super) first_norm: Option<NormWeights>,
    pub(super) turns: Vec<Turn>,
    pub(super) layers: Vec<Layer>,
    pub(super) deep: Vec<Deep>,
    /// Attention of neighbours after the layers.
    pub(super) window: Option<Attention>,
    pub(super) last_norm: Option<NormWeights>,
    /// Factors of features before the projector, and what is added then.
    pub(super) standard: Option<[WeightId; 2]>,
    pub(super) queries: Option<Queries>,
    pub(super) projector_norm: Option<NormWeights>,
    pub(super) merging: Option<Linear>,
    pub(super) linear1: Linear,
    /// A gate and the other matrix between the two.
    pub(super) gated: Option<Linear>,
    pub(super) linear2: Option<Linear>,
    /// Norms of the states that projectors with windows read.
    pub(super) tap_norms: Vec<NormWeights>,
}

/// Takes the encoder's tensors by their names.
pub(super) struct Taker<'a> {
    pub(super) collector: Collector<'a>,
    pub(super) spec: &'a VisionSpec,
    pub(super) names: &'static VisionNames,
    pub(super) prefix: String,
}

impl Taker<'_> {
    fn tower(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn linear(
        &mut self,
        label: &str,
        parts: &[(String, u32)],
        k: u32,
    ) -> Result<Linear, Error> {
        let named = |end: fn(&str, u32) -> String| {
            let each = parts.iter().map(|(name, n)| (end(name, 0), *n));
            each.collect::<Vec<_>>()
        };
        let matrices = named(weight);
        let limits = parts.iter().map(|part| self.limits(&part.0));
        let limits: Vec<[Limits; 2]> = limits.collect::<Result<_, Error>>()?;
        let mut reads: Vec<Limits> = limits.iter().map(|[reads, _]| *reads).collect();
        let limited = |limits: &Limits| *limits != NO_LIMITS;
        let pieces = if reads.windows(2).all(|pair| pair[0] == pair[1]) {
            reads.truncate(1);
            self.collector.joined(label, &matrices, k)?
        } else {
            let mut pieces = Vec::new();
            for one in matrices.chunks(1) {
                let at = pieces.last().map_or(0, |p: &OutputPart| p.at + p.n);
                let own = self.collector.joined(label, one, k)?;
                pieces.extend(own.into_iter().map(|piece| OutputPart { at, ..piece }));
            }
            pieces
        };
        if !reads.iter().any(limited) {
            reads.clear();
        }
        let mut at = 0;
        let makes = parts.iter().zip(&limits).map(|((_, n), [_, makes])| {
            at += n;
            (at - n, *n, *makes)
        });
        let makes = makes.filter(|(_, _, makes)| limited(makes)).collect();
        let named = named(bias);
        let has = named.iter().all(|(name, _)| self.collector.has(name));
        let biases = named.into_iter().map(|(name, n)| (has, name, n));
        let label = format!("{label} bias");
        Ok(Linear {
            reads,
            makes,
            pieces,
            biases: self.collector.biases(&label, &biases.collect::<Vec<_>>())?,
            n: parts.iter().map(|part| part.1).sum(),
            k,
        })
    }

    /// The limits of what a matrix of Gemma 4 reads and makes.
    fn limits(&mut self, name: &str) -> Result<[Limits; 2], Error> {
        let stem = name.strip_suffix(".linear").unwrap_or(name);
        let first = format!("{stem}.input_min");
        if self.spec.family != VisionFamily::Gemma4 || !self.collector.has(&first) {
            return Ok([NO_LIMITS; 2]);
        }
        let mut limits = |part: &str| {
            let [low, high] = ["min", "max"].map(|end| format!("{stem}.{part}_{end}"));
            let mut read = |name: &str| {
                let info = self.collector.tensor(name, 1, 1)?;
                let values = floats(self.collector.checkpoint, &info)?;
                // Infinite ones are no limits.
                Ok::<_, Error>(values[0].clamp(f32::MIN, f32::MAX))
            };
            let own = [read(&low)?, read(&high)?];
            if own[0] <= own[1] {
                return Ok(own);
            }
            let problem = format!("is {}, above {high}, which is {}", own[0], own[1]);
            Err(self.collector.fault(&low, problem))
        };
        Ok([limits("input")?, limits("output")?])
    }

    fn norm(&mut self, label: &str, name: &str, add: f32) -> Result<NormWeights, Error> {
        self.norm_of(label, name, self.spec.dim, add)
    }

    pub(super) fn norm_of(
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
        let kv = self.spec.kv_heads * (dim / self.spec.heads);
        let qkv = match fused {
            Some(fused) => vec![(fused, self.spec.qkv())],
            None => vec![(q, dim), (k, kv), (v, kv)],
        };
        let [gate, mut up, mut down] = [names.gate, names.up, names.down].map(name);
        let [of_scales, of_heads, of_posts, inner] = [
            names.scales,
            names.head_norms,
            names.post_norms,
            names.inner_norms,
        ]
        .map(|pair| pair.map(name));
        let qkv_biases = names.qkv_biases.map(name);
        let swapped = |name: &str| {
            let info = self.collector.checkpoint.tensor(&weight(name, 0));
            info.is_some_and(|info| (info.n, info.k) == (dim as usize, ffn as usize))
        };
        // Older files call the first matrix "down" and the second one "up".
        if dim != ffn && self.collector.is_gguf() && swapped(&up) {
            std::mem::swap(&mut up, &mut down);
        }
        let mut scale = [None; 2];
        if self.spec.family == VisionFamily::InternVl {
            let whats = ["attention scale", "feed-forward scale"];
            for ((scale, what), name) in scale.iter_mut().zip(whats).zip(of_scales) {
                let vector = self.collector.vector(&label(what), &[(name, dim)], 0.0)?;
                *scale = Some(vector);
            }
        }
        let (mut head_norms, mut post_norm) = (None, [None; 2]);
        if Family::of(self.spec.family).head_norms {
            let head = dim / self.spec.heads;
            let [q, k] = of_heads;
            let mut norm = |what: &str, name: &str| {
                let part = [(weight(name, 0), head)];
                self.collector.vector(&label(what), &part, 0.0)
            };
            head_norms = Some([norm("query norm", &q)?, norm("key norm", &k)?]);
        }
        if self.spec.family == VisionFamily::Gemma4 {
            let [first, second] = of_posts;
            let first = self.norm(&label("norm after attention"), &first, 0.0)?;
            let second = self.norm(&label("norm after feed-forward"), &second, 0.0)?;
            post_norm = [Some(first), Some(second)];
        }
        let mut qkv = self.linear(&label("qkv"), &qkv, dim)?;
        if names.qkv_biases != [""; 3] {
            let own = names.qkv_biases.iter().zip(qkv_biases).zip([dim, kv, kv]);
            let own = own.map(|((template, name), n)| (!template.is_empty(), name, n));
            let own: Vec<_> = own.collect();
            qkv.biases = self.collector.biases(&label("qkv bias"), &own)?;
        }
        let mut inner_norm = [None; 2];
        if !names.inner_norms[0].is_empty() {
            let [first, second] = inner;
            let first = self.norm(&label("norm within attention"), &first, 0.0)?;
            let label = label("norm within feed-forward");
            inner_norm = [Some(first), Some(self.norm_of(&label, &second, ffn, 0.0)?)];
        }
        let windowed = self.spec.window.is_some() && !self.spec.whole.contains(&index);
        let distances = self.distances(index, windowed)?;
        let absent = if distances.is_some() && windowed {
            // Converted and original files alike have a bias.
            let problem = "lacks a bias, which is not supported".to_string();
            let fault = self.collector.fault(&label("qkv"), problem);
            qkv.biases.first().ok_or(fault)?.weight
        } else {
            NO_WEIGHT
        };
        let up = if self.spec.gated {
            vec![(gate, ffn), (up, ffn)]
        } else {
            vec![(up, ffn)]
        };
        Ok(Layer {
            attention: Attention {
                norm: self.norm(&label("attention norm"), &norm1, 0.0)?,
                qkv,
                o: self.linear(&label("attention output"), &[(o, dim)], dim)?,
                head_norms,
                inner_norm: inner_norm[0],
                scale: scale[0],
                post_norm: post_norm[0],
                distances,
                absent,
            },
            norm: self.norm(&label("feed-forward norm"), &norm2, 0.0)?,
            up: self.linear(&label("up"), &up, dim)?,
            down: self.linear(&label("down"), &[(down, dim)], ffn)?,
            inner_norm: inner_norm[1],
            scale: scale[1],
            post_norm: post_norm[1],
        })
    }

    /// The tables of what scores add by distance: of lines, then of columns.
    fn distances(&mut self, index: u32, windowed: bool) -> Result<Option<(Linear, u32)>, Error> {
        let side = self.spec.distances(windowed);
        if side == 0 {
            return Ok(None);
        }
        let (k, gguf) = (self.spec.dim / self.spec.heads, self.collector.is_gguf());
        let tables = self.names.distances.map(|template| {
            let name = self.tower(&template.replace("{}", &index.to_string()));
            (if gguf { weight(&name, 0) } else { name }, 2 * side - 1)
        });
        let n = 2 * (2 * side - 1);
        let pieces = self
            .collector
            .joined(&format!("layer {index} distances"), &tables, k)?;
        let linear = Linear {
            reads: Vec::new(),
            makes: Vec::new(),
            pieces,
            biases: Vec::new(),
            n,
            k,
        };
        Ok(Some((linear, side)))
    }

    /// Attention of neighbours.
    fn window(&mut self) -> Result<Attention, Error> {
        let dim = self.spec.dim;
        let [norm, q, k, v, o] = self.names.window.map(|name| self.tower(name));
        let qkv = [q, k, v].map(|name| (name, dim));
        Ok(Attention {
            norm: self.norm("norm of neighbours", &norm, 0.0)?,
            qkv: self.linear("qkv of neighbours", &qkv, dim)?,
            o: self.linear("output of neighbours", &[(o, dim)], dim)?,
            head_norms: None,
            inner_norm: None,
            scale: None,
            post_norm: None,
            distances: None,
            absent: NO_WEIGHT,
        })
    }

    /// Gemma 4's factors of features and what is added then, if it has them. They include the factor that the mean of patches gets.
    fn standard(&mut self) -> Result<Option<[WeightId; 2]>, Error> {
        let (names, dim) = (self.names, self.spec.dim);
        let [bias, scale] = names.standard.map(|name| self.tower(name));
        if self.spec.family != VisionFamily::Gemma4 || !self.collector.has(&bias) {
            return Ok(None);
        }
        let mut read = |name: &str| {
            let info = self.collector.tensor(name, 1, dim)?;
            floats(self.collector.checkpoint, &info)
        };
        let (bias, scale) = (read(&bias)?, read(&scale)?);
        let shift = bias.iter().zip(&scale).map(|(b, s)| -b * s).collect();
        let root = (dim as f32).sqrt();
        let scale = scale.iter().map(|s| root * s).collect();
        let scale = self.constant("feature scale", scale, Usage::Vector);
        Ok(Some([
            scale,
            self.constant("feature shift", shift, Usage::Vector),
        ]))
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

    /// The rotations of queries and keys.
    fn turns(&mut self) -> Vec<Turn> {
        let spec = self.spec;
        let head = spec.dim / spec.heads;
        let quarter = (head / 4) as u8;
        let values = frequencies(spec);
        let freqs = self.constant("rope", values, Usage::Vector);
        let turn = |at: u32, rot: u32, pairs: [u8; 3]| Turn {
            freqs,
            at,
            rot,
            pairs,
        };
        let rotation = rotation(spec);
        if rotation == Rotation::Turns {
            // Even pairs turn by the column, odd ones by the line. Nothing turns where the frequency is 0.
            let shifted = frequencies(spec);
            let shifted = [0.0].into_iter().chain(shifted).take(head as usize / 2);
            let shifted = self.constant("rope by line", shifted.collect(), Usage::Vector);
            let by_line = Turn {
                freqs: shifted,
                ..turn(0, head, [0, 2 * quarter, 0])
            };
            return vec![turn(0, head, [0, 0, 2 * quarter]), by_line];
        }
        match rotation {
            // The first half of a head turns by the column, the second one by the line.
            Rotation::Halves => vec![
                turn(0, head / 2, [0, 0, quarter]),
                turn(head / 2, head / 2, [0, quarter, 0]),
            ],
            Rotation::Row => vec![turn(0, head, [0; 3])],
            _ => vec![turn(0, head, [0, quarter, quarter])],
        }
    }

    pub(super) fn constant(&mut self, name: &str, values: Vec<f32>, usage: Usage) -> WeightId {
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

    /// What queries need, if there are some.
    fn queries(&mut self) -> Result<Option<Queries>, Error> {
        let (spec, names) = (self.spec, &self.names.queries);
        let width = spec.width;
        if spec.query_values() == 0 {
            return Ok(None);
        }
        let kv = self.linear(
            "keys and values of patches",
            &[(names.kv.into(), width)],
            spec.dim,
        )?;
        let labels = [
            "query norm",
            "norm of keys and values",
            "norm after queries",
        ];
        let mut norms = Vec::new();
        for (label, name) in labels.into_iter().zip(names.norms) {
            norms.push(self.norm_of(label, name, width, 0.0)?);
        }
        let mut qkv = Vec::new();
        let of = width * if names.qkv.len() == 1 { 3 } else { 1 };
        for (number, label) in (0..).zip(["queries", "keys", "values"]) {
            let rows = Rows {
                tensor: names.qkv[number % names.qkv.len()].into(),
                of,
                first: (number as u32 * width) % of,
                rows: width,
            };
            qkv.push(Linear {
                reads: Vec::new(),
                makes: Vec::new(),
                pieces: self.collector.joined_rows(label, &[rows], width)?,
                biases: Vec::new(),
                n: width,
                k: width,
            });
        }
        let biases = names.qkv_bias.iter().map(|name| (name.to_string(), of));
        let biases: Vec<(String, u32)> = biases.collect();
        let qkv_bias = self.collector.vector("bias of queries", &biases, 0.0)?;
        let o = self.linear("output of queries", &[(names.o.into(), width)], width)?;
        let (Ok(norms), Ok(qkv)) = (norms.try_into(), qkv.try_into()) else {
            unreachable!("three of each");
        };
        Ok(Some(Queries {
            kv,
            norms,
            qkv,
            qkv_bias,
            o,
        }))
    }

    /// A projection that is stored transposed.
    fn transposed(&mut self, name: &str, k: u32) -> Result<Linear, Error> {
        let n = self.spec.width;
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
            reads: Vec::new(),
            makes: Vec::new(),
            pieces: vec![OutputPart { weight, n, at: 0 }],
            biases: Vec::new(),
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
        let places = spec.positions + u32::from(spec.class);
        let line = self.collector.columns(&name) != Some(spec.dim as usize);
        let (n, k) = if line {
            (1, places.saturating_mul(spec.dim))
        } else {
            (places, spec.dim)
        };
        self.collector.tensor(&name, n, k).map(Some)
    }

    /// The vector of the class, and the bias that every patch gets, if there is one.
    fn class(&mut self) -> Result<(TensorInfo, Option<TensorInfo>), Error> {
        let dim = self.spec.dim;
        let class = self.tower(self.names.class);
        let bias = Some(bias(&self.tower(self.names.patch), 0));
        let bias = bias.filter(|name| self.collector.has(name));
        let bias = bias.map(|name| self.collector.tensor(&name, 1, dim));
        Ok((self.collector.tensor(&class, 1, dim)?, bias.transpose()?))
    }

    /// A feature of its own, which has one of these names.
    fn feature(&mut self, names: &[&str]) -> Result<TensorInfo, Error> {
        let checkpoint = self.collector.checkpoint;
        let found = names.iter().find_map(|name| ending(checkpoint, name));
        let name = found.unwrap_or(names.concat());
        self.collector.tensor(&name, 1, self.spec.width)
    }

    /// The features that end lines and pictures.
    fn ends(&mut self) -> Result<[Option<TensorInfo>; 2], Error> {
        let (line_end, separator) = (self.spec.line_end, self.spec.separator);
        let line_end = line_end.then(|| self.feature(LINE_END)).transpose()?;
        let separator = separator.then(|| self.feature(SEPARATOR)).transpose()?;
        Ok([line_end, separator])
    }

    /// The sets of queries.
    fn query_sets(&mut self) -> Result<Vec<TensorInfo>, Error> {
        let width = match self.spec.query_values() {
            0 => self.spec.dim,
            width => width,
        };
        let names = self.names.queries.queries.iter().zip(&self.spec.query_sets);
        let sets = names.map(|(name, count)| {
            let full = ending(self.collector.checkpoint, name);
            self.collector
                .tensor(&full.unwrap_or(name.to_string()), *count, width)
        });
        sets.collect()
    }

    pub(super) fn all(&mut self) -> Result<Weights, Error> {
        let (spec, names) = (self.spec, self.names);
        let dim = spec.dim;
        let gguf = self.collector.is_gguf();
        let nothing = vec![0.0; spec.row_values() as usize];
        let nothing = self.constant("nothing", nothing, Usage::Lookup);
        let patch = self.tower(names.patch);
        let second = format!("{patch}.weight.1");
        let own = Family::of(spec.family);
        let frames_apart = own.video && gguf;
        let values = spec.patch_values() / if frames_apart { spec.frames } else { 1 };
        let patch2 = if frames_apart {
            let label = "patch of a second frame";
            let pieces = self.collector.joined(label, &[(second, dim)], values)?;
            Some(Linear {
                reads: Vec::new(),
                makes: Vec::new(),
                pieces,
                biases: Vec::new(),
                n: dim,
                k: values,
            })
        } else {
            None
        };
        // The host reads them.
        self.position()?;
        if spec.class {
            self.class()?;
        }
        self.ends()?;
        self.query_sets()?;
        let first_norm = self.tower(names.first_norm);
        // Of the encoders that LLaVA may have, only CLIP has one.
        let first_norm = if own.first_norm && (spec.family != VisionFamily::Llava || spec.class) {
            Some(self.norm("first norm", &first_norm, 0.0)?)
        } else {
            None
        };
        let reads_states = spec.first.is_some() && (spec.step == 0 || !spec.has_layers());
        let patch = if reads_states {
            None
        } else {
            Some(self.linear("patch", &[(patch, dim)], values)?)
        };
        let turns = if spec.is_rotary() {
            self.turns()
        } else {
            Vec::new()
        };
        let mut layers = Vec::new();
        for index in spec.first_layer..spec.layers {
            layers.push(self.layer(index)?);
        }
        let deep = (0..).zip(&spec.deep);
        let deep = deep.map(|(number, layer)| self.deep(number, *layer));
        let deep = deep.collect::<Result<_, Error>>()?;
        let window = if own.merger {
            Some(self.window()?)
        } else {
            None
        };
        let last_norm = self.tower(names.last_norm);
        let last_norm = if names.last_norm.is_empty() {
            None
        } else {
            Some(self.norm("last norm", &last_norm, 0.0)?)
        };
        let mut tap_norms = Vec::new();
        for one in spec.windows.iter().flat_map(|windows| &windows.projectors) {
            let checkpoint = self.collector.checkpoint;
            let before = granite::prefix(checkpoint, one);
            let name = format!("{before}{}", granite::ProjectorNames::of(checkpoint).norm);
            tap_norms.push(self.norm("norm of a state", &name, 0.0)?);
        }
        let projector_norm = self.projector(names.projector_norm);
        let (width, joined) = (spec.width, spec.tapped() * spec.group());
        let norm_of = match own.projector_norm {
            ProjectorNorm::None => None,
            ProjectorNorm::Mean | ProjectorNorm::Patches => Some(dim),
            ProjectorNorm::Joined => spec.joined_norm.then_some(joined),
            ProjectorNorm::Projected => Some(width),
        };
        let projector_norm = match norm_of {
            Some(n) => {
                // Gemma stores the difference from 1. GGUF converters have added the 1.
                let add = own.projector_norm == ProjectorNorm::Mean && !gguf;
                Some(self.norm_of("projector norm", &projector_norm, n, u8::from(add).into())?)
            }
            None => None,
        };
        let gated = matches!(own.projector, Projector::Gated(..));
        let mut k = match own.pool {
            _ if spec.query_values() > 0 => width,
            Pool::Mean => dim,
            _ => joined,
        };
        let merging = if own.merging {
            let name = self.projector(names.merging);
            let merging = self.linear("merging", &[(name, if gated { width } else { dim })], k)?;
            k = merging.n;
            Some(merging)
        } else {
            None
        };
        let first = self.projector(names.linear1);
        // What the first matrix makes, if another one follows.
        let n = match own.projector {
            Projector::One | Projector::Transposed | Projector::Queries | Projector::Nothing => {
                None
            }
            Projector::Gated(..) => Some(width),
            _ => Some(spec.hidden),
        };
        let queries = self.queries()?;
        let linear1 = if names.linear1.is_empty() {
            Linear::NONE
        } else if own.projector == Projector::Transposed {
            self.transposed(names.linear1, dim)?
        } else if queries.is_some() && !gguf {
            self.transposed(names.linear1, width)?
        } else {
            self.linear("projection", &[(first, n.unwrap_or(width))], k)?
        };
        let parts = names.gated.map(|name| (self.projector(name), spec.hidden));
        let gated = if gated {
            Some(self.linear("projector gate and up", &parts, width)?)
        } else {
            None
        };
        let linear2 = if n.is_some() {
            let name = self.projector(names.linear2);
            Some(self.linear("second projection", &[(name, width)], spec.hidden)?)
        } else {
            None
        };
        Ok(Weights {
            nothing,
            patch,
            patch2,
            first_norm,
            turns,
            layers,
            deep,
            window,
            last_norm,
            standard: self.standard()?,
            queries,
            projector_norm,
            merging,
            linear1,
            gated,
            linear2,
            tap_norms,
        })
    }
}

const NO_LIMITS: Limits = [f32::MIN, f32::MAX];

/// How queries and keys turn.
fn rotation(spec: &VisionSpec) -> Rotation {
    if spec.by_halves {
        Rotation::Halves
    } else {
        Family::of(spec.family).rotation
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
    match rotation(spec) {
        // Lines have the even powers, columns the odd ones.
        Rotation::Alternating => {
            let lines = quarter.clone().map(|i| power(4 * i, head));
            lines
                .chain(quarter.map(|i| power(4 * i + 2, head)))
                .collect()
        }
        Rotation::Turns => quarter
            .flat_map(|i| [power(2 * i, head / 2), 0.0])
            .collect(),
        Rotation::Halves => quarter.map(|i| power(2 * i, head / 2)).collect(),
        Rotation::Row => (0..head / 2).map(|i| power(2 * i, head)).collect(),
        _ => {
            let each = quarter.map(|i| spec.pace * power(2 * i, head / 2));
            each.clone().chain(each).collect()
        }
    }
}

pub(super) fn taker<'a>(spec: &'a VisionSpec, checkpoint: &'a dyn Checkpoint) -> Taker<'a> {
    let names = Family::of(spec.family).names_in(checkpoint);
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
    if spec.class {
        // The table begins with the class.
        values.rotate_left(spec.dim as usize);
        let (class, bias) = taker.class()?;
        let mut class = floats(checkpoint, &class)?;
        if let Some(bias) = bias {
            let bias = floats(checkpoint, &bias)?;
            class.iter_mut().zip(bias).for_each(|(c, b)| *c -= b);
        }
        let place = values.len() - spec.dim as usize;
        let values = values[place..].iter_mut();
        values.zip(class).for_each(|(value, class)| *value += class);
    }
    Ok(values)
}

/// The queries of all sets, one after the other; empty if there are none.
pub fn learned_queries(spec: &VisionSpec, checkpoint: &dyn Checkpoint) -> Result<Vec<f32>, Error> {
    let sets = taker(spec, checkpoint).query_sets()?;
    let sets = sets.iter().map(|set| floats(checkpoint, set));
    Ok(sets.collect::<Result<Vec<_>, Error>>()?.concat())
}

/// What is added to queries and patches of a window: for each of its queries, then for each of its patches, the values of all projectors;
/// empty without windows.
pub fn learned_windows(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
) -> Result<[Vec<f32>; 2], Error> {
    let Some(own) = &spec.windows else {
        return Ok([Vec::new(), Vec::new()]);
    };
    let mut taker = taker(spec, checkpoint);
    let mut read = |name: &str, side: u32| {
        let mut each = Vec::new();
        for one in &own.projectors {
            let name = format!("{}{name}", granite::prefix(checkpoint, one));
            let info = taker.collector.tensor(&name, side * side, spec.dim)?;
            each.push(floats(checkpoint, &info)?);
        }
        let dim = spec.dim as usize;
        let rows = 0..(side * side) as usize;
        let row = rows.flat_map(|row| each.iter().map(move |table| &table[row * dim..][..dim]));
        Ok::<_, Error>(row.flatten().copied().collect())
    };
    let names = granite::ProjectorNames::of(checkpoint);
    Ok([
        read(names.queries, own.queries)?,
        read(names.positions, own.patches)?,
    ])
}

/// The features that end the lines of pictures that are cut, and pictures, if there are such.
pub fn learned_ends(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
) -> Result<[Option<Vec<f32>>; 2], Error> {
    let [line_end, separator] = taker(spec, checkpoint).ends()?;
    let read = |info: Option<TensorInfo>| info.map(|info| floats(checkpoint, &info)).transpose();
    Ok([read(line_end)?, read(separator)?])
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
