//! Compiles an encoder of pictures: one pass without caches, whose rows are the patches of a tile.

use super::family::{Family, Pool, ProjectorNorm};
use super::weights::{Attention, Layer, Limits, Linear, Queries, Weights, taker};
use super::{VisionAct, VisionFamily, VisionSpec, windows};
use crate::Error;
use crate::buffers::Buffers;
use crate::commands::{Commands, at, one_pass};
use crate::weights::NormWeights;
use welte_formats::checkpoint::Checkpoint;
use welte_table::{
    BufferRef, Class, ModelPart, NO_WEIGHT, Op, Pass, PassKind, Program, Sections, WeightId,
    params as p,
};

/// The program of an encoder whose tiles have at most `patches` patches, or features of the encoder before it. Its rows read features of
/// [`VisionSpec::row_values`] values.
pub fn compile_vision(
    spec: &VisionSpec,
    checkpoint: &dyn Checkpoint,
    patches: u32,
) -> Result<Program, Error> {
    let of_windows = spec.windows.as_ref().filter(|_| spec.first.is_some());
    if let Some(own) = of_windows {
        return windows::compile(spec, own, checkpoint, patches);
    }
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
    let (rows, outputs) = (patches + spec.class_rows(), spec.features_of(patches));
    let mut buffers = Buffers::default();
    let class = Class::ScratchPrompt;
    let tokens = buffers.add("tokens", Class::Tables, 4 * u64::from(rows));
    let features = 4 * u64::from(rows) * u64::from(spec.row_values());
    let features = buffers.add("features", class, features).buffer;
    let mut add = |name: &str, rows: u32, width: u32| {
        buffers.add(name, class, 4 * u64::from(rows) * u64::from(width))
    };
    let (dim, wide) = (spec.dim, spec.ffn * (1 + u32::from(spec.gated)));
    let joined = match Family::of(spec.family).pool {
        _ if spec.query_values() > 0 => spec.width,
        Pool::Mean => dim,
        _ => spec.tapped() * spec.group(),
    };
    let projected = spec.hidden.max(spec.width);
    let second = projected * (1 + u32::from(weights.gated.is_some()));
    let states = states(spec);
    let of_queries =
        |add: &mut dyn FnMut(&str, u32, u32) -> BufferRef, name: &str, times: u32| match spec
            .query_values()
        {
            0 => BufferRef::NONE,
            values => add(name, rows, times * values),
        };
    let read = add("prompt.read", rows, spec.row_values());
    let mut of_layers = |name: &str, width: u32| {
        if spec.has_layers() || weights.window.is_some() {
            add(name, rows, width)
        } else {
            BufferRef::NONE
        }
    };
    let set = Set {
        tokens,
        read,
        norm: of_layers("prompt.norm", dim),
        qkv: of_layers("prompt.qkv", qkv_stride(spec)),
        wide: of_layers("prompt.up", wide),
        // Without layers rows stay as they were read.
        x: match of_layers("prompt.x", dim) {
            BufferRef::NONE => read,
            x => x,
        },
        limited: if weights.layers.iter().any(|layer| layer.has_own_limits()) {
            add("prompt.limited", rows, dim)
        } else {
            BufferRef::NONE
        },
        h: if spec.gated {
            add("prompt.h", rows, spec.ffn)
        } else {
            BufferRef::NONE
        },
        states: match states {
            1 => BufferRef::NONE,
            states => add("prompt.states", rows, states * dim),
        },
        pooled: if spec.deep.is_empty() && !Family::of(spec.family).merger {
            BufferRef::NONE
        } else {
            add("prompt.pooled", outputs, states * joined)
        },
        kv: of_queries(&mut add, "prompt.kv", 1),
        asked: of_queries(&mut add, "prompt.asked", 1),
        query_rows: of_queries(&mut add, "prompt.queries", 3),
        joined: add("prompt.joined", outputs, joined.max(projected)),
        middle: if needs_middle(&weights) {
            add("prompt.middle", outputs, joined.max(second))
        } else {
            BufferRef::NONE
        },
        result: add("prompt.result", outputs, spec.feature_values()),
    };
    let emitter = Emitter {
        spec,
        weights: &weights,
        set: &set,
        out: Commands::new(&taker.collector.list),
    };
    let pass = emitter.pass(rows, outputs);
    Ok(one_pass(
        taker.collector.list,
        buffers.into_list(),
        (tokens, features),
        pass,
    ))
}

/// Something stands between pooled patches and features.
fn needs_middle(weights: &Weights) -> bool {
    let many = weights.linear2.is_some() || weights.merging.is_some();
    many || weights.queries.is_some() || !weights.deep.is_empty()
}

/// Values of queries, keys and values of a row, and of what scores add by distance.
fn qkv_stride(spec: &VisionSpec) -> u32 {
    let side = spec.distances(false).max(spec.distances(true));
    spec.qkv() + spec.heads * 2 * (2 * side).saturating_sub(1)
}

/// How many states of a row are kept side by side; 1: none is.
fn states(spec: &VisionSpec) -> u32 {
    match spec.taps.len() {
        0 => 1 + spec.deep.len() as u32,
        taps => taps as u32,
    }
}

/// The buffers.
struct Set {
    tokens: BufferRef,
    /// Patches, and the vectors of their places.
    read: BufferRef,
    x: BufferRef,
    /// A normed row, then what is added to `x`.
    norm: BufferRef,
    /// A normed row within the limits of a matrix.
    limited: BufferRef,
    qkv: BufferRef,
    /// Gate and up, or up alone.
    wide: BufferRef,
    h: BufferRef,
    /// The states that become parts of features, side by side, and those of a feature's patches one after the other.
    states: BufferRef,
    pooled: BufferRef,
    /// What keys and values of queries are made of, the queries and then what they find, and all three.
    kv: BufferRef,
    asked: BufferRef,
    query_rows: BufferRef,
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
        match &weights.patch {
            Some(patch) => self.linear("patch", patch, (set.read, read), (set.x, dim)),
            None if set.x == set.read => {}
            None => self.copy("states", (set.read, read), (set.x, dim), dim),
        }
        self.tap(0);
        if let Some(second) = &weights.patch2 {
            let later = (at(set.read, second.k), read);
            self.linear("second patch", second, later, (set.norm, dim));
            self.add("sum of patches", (set.norm, dim));
        }
        let positions = (at(set.read, spec.patch_values()), read);
        let norm_first = spec.family == VisionFamily::Glm4V;
        if spec.place_values() > 0 && !norm_first {
            self.add("positions", positions);
        }
        if let Some(norm) = weights.first_norm {
            self.norm("first norm", norm, spec.eps, set.x, set.x);
        }
        if norm_first {
            self.add("positions", positions);
        }
        for (index, layer) in (spec.first_layer..).zip(&weights.layers) {
            self.out.layer = Some(index);
            self.out.part = ModelPart::Attention;
            let windowed = spec.window.is_some() && !spec.whole.contains(&index);
            self.attention(&layer.attention, windowed);
            self.out.part = ModelPart::FeedForward;
            self.feed_forward(layer);
            let deep = weights.deep.iter().position(|d| d.layer == index);
            if let Some(number) = deep {
                self.keep_state(1 + number as u32);
            }
            self.tap(index + 1);
        }
        self.out.layer = None;
        if let Some(window) = &weights.window {
            self.attention(window, true);
        }
        self.out.part = ModelPart::Head;
        if let Some(norm) = weights.last_norm {
            self.norm("last norm", norm, spec.eps, set.x, set.x);
        }
        if let Some(queries) = &weights.queries {
            self.ask(queries);
        } else if weights.linear1.n == 0 {
            let n = spec.tapped();
            let x = if spec.taps.is_empty() {
                set.x
            } else {
                set.states
            };
            let pool = p::Pool {
                n,
                kind: 3,
                normalise: 0,
                x_stride: n,
                y_stride: n,
                group: 1,
            };
            let buffers = [x, set.result];
            self.out
                .push("features", Op::Pool, &[], &buffers, pool.words());
        } else if weights.deep.is_empty() {
            self.projector();
        } else {
            self.keep_state(0);
            self.deep_parts();
        }
        let result = (spec.feature_values(), set.result);
        self.out.pass(PassKind::Embed, (rows, outputs), result)
    }

    fn attention(&mut self, own: &Attention, windowed: bool) {
        let (spec, set, weights) = (self.spec, self.set, self.weights);
        let (dim, heads, stride) = (spec.dim, spec.heads, qkv_stride(spec));
        let head = dim / heads;
        self.norm("attention norm", own.norm, spec.eps, set.x, set.norm);
        self.linear("qkv", &own.qkv, (set.norm, dim), (set.qkv, stride));
        if let Some((tables, _)) = &own.distances {
            for number in 0..heads {
                let query = (at(set.qkv, number * head), stride);
                let to = (at(set.qkv, spec.qkv() + number * tables.n), stride);
                self.linear("distances", tables, query, to);
            }
        }
        if let Some([q, k]) = own.head_norms {
            self.head_norm("query norm", q, 0);
            self.head_norm("key norm", k, dim);
            if spec.family == VisionFamily::Gemma4 {
                self.head_norm("value norm", NO_WEIGHT, 2 * dim);
            }
        }
        for turn in &weights.turns {
            let params = p::Rope {
                heads: heads + spec.kv_heads,
                head_dim: head,
                rot: turn.rot,
                interleaved: spec.interleaved.into(),
                magnitude: 1.0,
                y_stride: stride,
                sections: Sections {
                    pairs: turn.pairs,
                    interleaved: false,
                }
                .word(),
            };
            let buffers = [at(set.qkv, turn.at)];
            self.out
                .push("rope", Op::Rope, &[turn.freqs], &buffers, params.words());
        }
        let params = p::EncodeAttention {
            heads,
            kv_heads: spec.kv_heads,
            head_dim: head,
            // The norms of queries and keys are all the scale that Gemma 4 has.
            scale: match spec.family {
                VisionFamily::Gemma4 => 1.0,
                _ => 1.0 / (head as f32).sqrt(),
            },
            window: 0,
            qkv_stride: stride,
            y_stride: dim,
            by_axis: windowed.into(),
            unseen: if spec.has_causal_queries() {
                0
            } else {
                spec.queries
            },
            by_reach: spec.has_causal_queries().into(),
            places: own.distances.as_ref().map_or(0, |(_, side)| *side),
            softcap: 0.0,
        };
        let buffers = [set.qkv, set.norm];
        self.out.push(
            "attention",
            Op::EncodeAttention,
            &[own.absent],
            &buffers,
            params.words(),
        );
        if let Some(norm) = own.inner_norm {
            self.norm("norm within attention", norm, spec.eps, set.norm, set.norm);
        }
        // The queries are not read again.
        self.linear("attention output", &own.o, (set.norm, dim), (set.qkv, dim));
        self.scale("attention scale", own.scale, set.qkv);
        if let Some(norm) = own.post_norm {
            self.norm("norm after attention", norm, spec.eps, set.qkv, set.qkv);
        }
        self.add("attention sum", (set.qkv, dim));
    }

    /// Norms each head of the queries, keys or values, which begin at this value of a row.
    fn head_norm(&mut self, what: &str, weight: WeightId, first: u32) {
        let (spec, x) = (self.spec, at(self.set.qkv, first));
        let params = p::Norm {
            dim: spec.dim / spec.heads,
            groups: spec.heads,
            eps: spec.eps,
            x_stride: qkv_stride(spec),
            y_stride: qkv_stride(spec),
        };
        self.out
            .push(what, Op::Norm, &[weight], &[x, x], params.words());
    }

    fn feed_forward(&mut self, layer: &Layer) {
        let (spec, set) = (self.spec, self.set);
        let (dim, ffn) = (spec.dim, spec.ffn);
        self.norm("feed-forward norm", layer.norm, spec.eps, set.x, set.norm);
        let wide = layer.up.n;
        self.linear("up", &layer.up, (set.norm, dim), (set.wide, wide));
        let h = if spec.gated {
            self.act_mul("activation", (set.wide, wide), (set.h, ffn));
            set.h
        } else {
            self.act("activation", spec.act, set.wide, ffn);
            set.wide
        };
        if let Some(norm) = layer.inner_norm {
            let norm = (norm, spec.rms);
            let what = "norm within feed-forward";
            self.out.norm(what, norm, (ffn, spec.eps), [h, h]);
        }
        self.linear("down", &layer.down, (h, ffn), (set.norm, dim));
        self.scale("feed-forward scale", layer.scale, set.norm);
        if let Some(norm) = layer.post_norm {
            self.norm(
                "norm after feed-forward",
                norm,
                spec.eps,
                set.norm,
                set.norm,
            );
        }
        self.add("down sum", (set.norm, dim));
    }

    /// Queries attend to patches. Rows of patches have queries, too, and those of queries have keys, which nothing reads.
    fn ask(&mut self, queries: &Queries) {
        let (spec, set) = (self.spec, self.set);
        let (width, heads) = (spec.width, spec.query_heads());
        let all = 3 * width;
        // Of a query itself, of a patch what its keys add.
        let own = spec.row_values() - width;
        let own = (at(set.read, own), spec.row_values());
        let [of_queries, of_kv, after] = queries.norms;
        let norm = |out: &mut Commands<'_>, what: &str, norm, x| {
            out.norm(what, (norm, false), (width, spec.eps), [x, x]);
        };
        self.linear(
            "keys and values",
            &queries.kv,
            (set.x, spec.dim),
            (set.kv, width),
        );
        norm(&mut self.out, "norm of keys and values", of_kv, set.kv);
        self.copy("queries", own, (set.asked, width), width);
        norm(&mut self.out, "query norm", of_queries, set.asked);
        let [q, k, v] = &queries.qkv;
        let part = |number: u32| (at(set.query_rows, number * width), all);
        self.linear("queries", q, (set.asked, width), part(0));
        self.linear("values", v, (set.kv, width), part(2));
        let params = p::Add {
            n: width,
            x_stride: own.1,
            y_stride: width,
        };
        self.out.push(
            "places of keys",
            Op::Add,
            &[],
            &[own.0, set.kv],
            params.words(),
        );
        self.linear("keys", k, (set.kv, width), part(1));
        self.bias(
            "bias of queries",
            queries.qkv_bias,
            set.query_rows,
            (all, all),
        );
        let head_dim = width / heads;
        let params = p::EncodeAttention {
            heads,
            kv_heads: heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: 0,
            qkv_stride: all,
            y_stride: width,
            by_axis: 0,
            unseen: spec.queries,
            by_reach: 0,
            places: 0,
            softcap: 0.0,
        };
        let buffers = [set.query_rows, set.asked];
        self.out.push(
            "attention of queries",
            Op::EncodeAttention,
            &[],
            &buffers,
            params.words(),
        );
        let pool = p::Pool {
            n: width,
            kind: 3,
            normalise: 0,
            x_stride: width,
            y_stride: width,
            group: 1,
        };
        self.out.push(
            "features",
            Op::Pool,
            &[],
            &[set.asked, set.joined],
            pool.words(),
        );
        self.linear(
            "output of queries",
            &queries.o,
            (set.joined, width),
            (set.middle, width),
        );
        norm(&mut self.out, "norm after queries", after, set.middle);
        let linear = &self.weights.linear1;
        self.linear(
            "projection",
            linear,
            (set.middle, width),
            (set.result, width),
        );
    }

    fn projector(&mut self) {
        let (spec, set, weights) = (self.spec, self.set, self.weights);
        let (dim, width) = (spec.dim, spec.width);
        let own = Family::of(spec.family);
        let of_patches = own.projector_norm == ProjectorNorm::Patches;
        if let (true, Some(norm)) = (of_patches, weights.projector_norm) {
            self.norm("projector norm", norm, spec.projector_eps, set.x, set.x);
        }
        let kind = match own.pool {
            Pool::Mean => 1,
            Pool::Joined => 3,
            Pool::ByValue => 4,
        };
        let wide = spec.tapped();
        let x = if spec.taps.is_empty() {
            set.x
        } else {
            set.states
        };
        let mut pool = p::Pool {
            n: wide,
            kind,
            normalise: 0,
            x_stride: wide,
            y_stride: 0,
            group: spec.group(),
        };
        pool.y_stride = pool.width() as u32;
        let joined = pool.y_stride;
        let buffers = [x, set.joined];
        self.out
            .push("features", Op::Pool, &[], &buffers, pool.words());
        if let Some([scale, shift]) = weights.standard {
            self.scale("feature scale", Some(scale), set.joined);
            self.bias("feature shift", shift, set.joined, (dim, dim));
        }
        if kind == 1 {
            let params = p::Norm {
                dim,
                groups: 1,
                // Gemma 4 multiplies features by the root of the width first.
                eps: match (spec.family, weights.standard) {
                    (VisionFamily::Gemma4, None) => spec.projector_eps / dim as f32,
                    _ => spec.projector_eps,
                },
                x_stride: dim,
                y_stride: dim,
            };
            let weight = weights.projector_norm.map_or(NO_WEIGHT, |norm| norm.weight);
            let (buffers, words) = ([set.joined, set.joined], params.words());
            self.out
                .push("projector norm", Op::Norm, &[weight], &buffers, words);
        }
        if own.merger {
            self.copy(
                "patches",
                (set.joined, joined),
                (set.pooled, joined),
                joined,
            );
        }
        if let (true, Some(norm)) = (spec.joined_norm, weights.projector_norm) {
            self.projector_norm(norm, joined);
        }
        let (mut from, mut to) = ((set.joined, joined), set.middle);
        if let Some(merging) = &weights.merging {
            self.linear("merging", merging, from, (to, merging.n));
            (from, to) = ((to, merging.n), set.joined);
        }
        if let (Some(gated), Some(norm)) = (&weights.gated, weights.projector_norm) {
            self.linear("projection", &weights.linear1, from, (to, width));
            self.projector_norm(norm, width);
            self.act("projector activation", spec.projector_act, to, width);
            let wide = (from.0, gated.n);
            self.linear("projector gate and up", gated, (to, width), wide);
            self.act_mul("projector gate", wide, (to, spec.hidden));
            if let Some(second) = &weights.linear2 {
                let result = (set.result, width);
                self.linear("second projection", second, (to, spec.hidden), result);
            }
            return;
        }
        match &weights.linear2 {
            None => {
                self.linear("projection", &weights.linear1, from, (set.result, width));
                let projected = own.projector_norm == ProjectorNorm::Projected;
                if let (true, Some(norm)) = (projected, weights.projector_norm) {
                    let how = (width, spec.projector_eps);
                    let buffers = [set.result; 2];
                    self.out.norm("projector norm", (norm, false), how, buffers);
                }
            }
            Some(second) => {
                let n = weights.linear1.n;
                self.linear("projection", &weights.linear1, from, (to, n));
                self.act("projector activation", spec.projector_act, to, n);
                self.linear("second projection", second, (to, n), (set.result, width));
            }
        }
        if own.merger {
            self.add_mean(joined);
        }
    }

    /// Adds the mean of their patches to features.
    fn add_mean(&mut self, joined: u32) {
        let (dim, set) = (self.spec.dim, self.set);
        let scale = p::Scale {
            n: joined,
            scale: 1.0 / self.spec.group() as f32,
            cap: 0.0,
            y_stride: joined,
        };
        self.out.push(
            "part of the mean",
            Op::Scale,
            &[],
            &[set.pooled],
            scale.words(),
        );
        let params = p::Add {
            n: dim,
            x_stride: joined,
            y_stride: dim,
        };
        for patch in 0..self.spec.group() {
            let buffers = [at(set.pooled, patch * dim), set.result];
            self.out
                .push("sum of patches", Op::Add, &[], &buffers, params.words());
        }
    }

    /// Norms the joined vectors.
    fn projector_norm(&mut self, norm: NormWeights, dim: u32) {
        let x = self.set.joined;
        let how = (dim, self.spec.projector_eps);
        self.out.norm("projector norm", (norm, false), how, [x, x]);
    }

    /// y = act(gate) * up
    fn act_mul(&mut self, what: &str, (x, x_stride): (BufferRef, u32), (y, n): (BufferRef, u32)) {
        let params = p::ActMul {
            n,
            act: word(self.spec.act),
            x_stride,
            y_stride: n,
        };
        self.out
            .push(what, Op::ActMul, &[], &[x, y], params.words());
    }

    /// Keeps the state after so many layers, if it is wanted.
    fn tap(&mut self, layers: u32) {
        let (dim, set) = (self.spec.dim, self.set);
        let taps = (0..)
            .zip(&self.spec.taps)
            .filter(|(_, tap)| **tap == layers);
        for (number, _) in taps {
            match self.weights.tap_norms.get(number as usize) {
                None => self.keep_state(number),
                Some(norm) => {
                    let buffers = [set.x, at(set.states, number * dim)];
                    let (how, strides) = ((dim, self.spec.eps), [dim, self.states() * dim]);
                    let norm = (*norm, false);
                    self.out
                        .norm_strided("norm of a state", norm, how, buffers, strides);
                }
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
        states(self.spec)
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

    fn bias(&mut self, what: &str, bias: WeightId, y: BufferRef, (n, y_stride): (u32, u32)) {
        let params = p::Bias { n, y_stride };
        self.out.push(what, Op::Bias, &[bias], &[y], params.words());
    }

    /// Brings values within limits.
    fn limit(&mut self, what: &str, [a, b]: Limits, y: BufferRef, (n, y_stride): (u32, u32)) {
        let params = p::Act {
            n,
            act: 7,
            a,
            b,
            c: 0.0,
            d: 0.0,
            y_stride,
        };
        let what = format!("limits of {what}");
        self.out.push(&what, Op::Act, &[], &[y], params.words());
    }

    /// y = W x + bias. Limits change x, which nothing else reads.
    fn linear(
        &mut self,
        what: &str,
        linear: &Linear,
        (x, x_stride): (BufferRef, u32),
        (y, y_stride): (BufferRef, u32),
    ) {
        let k = linear.k;
        if let [limits] = linear.reads[..] {
            self.limit(what, limits, x, (k, x_stride));
        }
        for (index, piece) in linear.pieces.iter().enumerate() {
            let (x, x_stride) = match linear.own_limits() {
                None => (x, x_stride),
                Some(limits) => {
                    let own = self.set.limited;
                    self.copy("copy within limits", (x, x_stride), (own, k), k);
                    self.limit(what, limits[index], own, (k, k));
                    (own, k)
                }
            };
            let params = p::Matmul {
                n: piece.n,
                k,
                x_stride,
                y_stride,
            };
            let buffers = [x, at(y, piece.at)];
            self.out
                .push(what, Op::Matmul, &[piece.weight], &buffers, params.words());
        }
        for own in &linear.biases {
            let what = format!("{what} bias");
            self.bias(&what, own.weight, at(y, own.at), (own.n, y_stride));
        }
        for (first, n, limits) in &linear.makes {
            self.limit(what, *limits, at(y, *first), (*n, y_stride));
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
