//! Writes an encoder of pictures as an `mmproj` file has it: the tables of names that readers use, read the other way.

use super::family::{Family, Merge, Projector, ProjectorNorm, Rotation};
use super::granite::{self, ProjectorNames};
use super::names::{LINE_END, SEPARATOR, VisionNames, ending};
use super::weights::taker;
use super::{Places, VisionAct, VisionFamily, VisionSpec};
use crate::Error;
use crate::convert::translated::{Change, Order, Source, Tensors};
use crate::names::{bias, weight};
use welte_formats::checkpoint::{Checkpoint, Metadata, TensorInfo, Value};
use welte_table::Format;

/// Ends of names of tensors that no reader takes: they belong to what a checkpoint's encoder was trained with, or follow from sizes.
const UNREAD: [&str; 7] = [
    "mask_token",
    "resampler.pos_embed",
    "rotary_pos_emb.inv_freq",
    "rotary_emb.inv_freq",
    "position_ids",
    "time_weight",
    "logit_scale",
];

/// The tensors and keys of an encoder. `None`: `mmproj` files have no such family.
/// `line_end` is the token after a line of patches, if files have its embedding.
pub(crate) fn write(
    from: &dyn Checkpoint,
    spec: &VisionSpec,
    line_end: Option<u32>,
    tensors: &mut Tensors,
    metadata: &mut Metadata,
) -> Option<()> {
    let name = projector_name(from, spec)?;
    for part in spec.chain() {
        Writer::of(from, part, tensors).part();
    }
    if let Some(token) = line_end {
        let table = ending(from, "embed_tokens.weight").and_then(|name| from.tensor(&name));
        if let Some(table) = table.filter(|table| (token as usize) < table.n).cloned() {
            let row = vec![tensors.part(&table, token as usize, 1)];
            tensors.push("v.token_embd.img_break", &table, 1, 1, row);
        }
    }
    keys(spec, name, metadata);
    if matches!(spec.family, VisionFamily::MiniCpmV) {
        let version = match from.metadata().get("version") {
            Some(Value::F64(version)) if *version >= 4.5 => 6,
            Some(Value::F64(version)) if *version >= 4.0 => 5,
            Some(Value::U64(4..) | Value::I64(4..)) => 5,
            _ => 3,
        };
        let mut set = |key: &str, value| metadata.insert(format!("clip.minicpmv_{key}"), value);
        set("version", Value::I64(version));
        set("query_num", Value::U64(spec.queries.into()));
        tensors.table(
            "resampler.pos_embed_k",
            sines(spec.width as usize),
            spec.width as usize,
        );
    }
    Some(())
}

/// Sines and cosines of places in a square, those of columns first. llama.cpp wants them in files of MiniCPM-V.
fn sines(width: usize) -> Vec<f32> {
    const SIDE: usize = 70;
    let quarter = width / 4;
    let mut values = Vec::with_capacity(SIDE * SIDE * width);
    for place in 0..SIDE * SIDE {
        for at in [place % SIDE, place / SIDE] {
            let angle = |i: usize| at as f64 / 1e4f64.powf(i as f64 / quarter as f64);
            values.extend((0..quarter).map(|i| angle(i).sin() as f32));
            values.extend((0..quarter).map(|i| angle(i).cos() as f32));
        }
    }
    values
}

/// What files call the family's projector.
fn projector_name(from: &dyn Checkpoint, spec: &VisionSpec) -> Option<&'static str> {
    let own = Family::of(spec.family);
    let said = match from.metadata().get("general.architecture") {
        Some(Value::String(said)) => said.replace('_', ""),
        _ => String::new(),
    };
    let same = own.gguf.iter().find(|name| **name == said);
    same.or(own.gguf.first()).copied()
}

/// Whether nothing reads a tensor of the encoder.
pub(crate) fn is_unread(name: &str, spec: &VisionSpec) -> bool {
    let layer = spec.chain().into_iter().find_map(|part| {
        let own = Family::of(part.family).names;
        let (before, after) = own.norm1.split_once("{}")?;
        let (_, rest) = name.split_once(before)?;
        let (number, rest) = rest.split_once('.')?;
        let is_layer = !before.is_empty() && (after.is_empty() || !rest.is_empty());
        number.parse::<u32>().ok().filter(|_| is_layer)
    });
    UNREAD.iter().any(|end| name.ends_with(end))
        // What makes one vector of a picture, and the norm before it where projectors read states of earlier layers.
        || name.contains(".head.")
        || !spec.line_end && name.ends_with(LINE_END[0])
        || name.contains("post_layernorm.") && Family::of(spec.of_patches().family).names.last_norm.is_empty()
        || layer.is_some_and(|layer| layer >= spec.layers.max(spec.of_patches().layers))
}

/// A difference between two specs that is none of an encoder that is written and read back: places where the dialects store alike what
/// they describe otherwise.
pub(crate) fn expected(spec: &VisionSpec, read_back: &VisionSpec) -> VisionSpec {
    let own = Family::of(spec.family);
    let first = spec.first.as_deref().zip(read_back.first.as_deref());
    let mut expected = VisionSpec {
        by_pixel: read_back.by_pixel,
        interleaved: read_back.interleaved,
        by_halves: read_back.by_halves,
        first: first
            .map(|(spec, read_back)| Box::new(self::expected(spec, read_back)))
            .or(spec.first.clone()),
        ..spec.clone()
    };
    if spec.positions == 0 {
        // Sizes mean something where places are learned.
        expected.image = read_back.image;
    }
    if matches!(
        own.projector,
        Projector::One | Projector::Transposed | Projector::Queries | Projector::Nothing
    ) {
        expected.hidden = read_back.hidden;
        expected.projector_act = read_back.projector_act;
    }
    if own.projector_norm == ProjectorNorm::None {
        expected.projector_eps = read_back.projector_eps;
    }
    if let (Some(windows), Some(other)) = (&mut expected.windows, &read_back.windows) {
        for (one, other) in windows.projectors.iter_mut().zip(&other.projectors) {
            // The language model's file has the layers, and projectors are numbered in the order of theirs.
            (one.own, one.before) = (other.own, other.before);
        }
    }
    expected
}

/// Writes the tensors of one encoder of a chain.
struct Writer<'a> {
    from: &'a dyn Checkpoint,
    spec: &'a VisionSpec,
    own: &'static Family,
    names: &'static VisionNames,
    /// What the names of the encoder's tensors begin with.
    prefix: String,
    tensors: &'a mut Tensors,
}

impl<'a> Writer<'a> {
    fn of(from: &'a dyn Checkpoint, spec: &'a VisionSpec, tensors: &'a mut Tensors) -> Writer<'a> {
        let taker = taker(spec, from);
        Writer {
            from,
            spec,
            own: Family::of(spec.family),
            names: taker.names,
            prefix: taker.prefix,
            tensors,
        }
    }

    /// A tensor by its full names.
    fn one(&mut self, name: &str, own: &str) -> bool {
        self.tensors.copy(self.from, name, own)
    }

    /// Weight and bias of the encoder.
    fn pair(&mut self, name: &str, own: &str) {
        if !name.is_empty() && !own.is_empty() {
            let name = format!("{}{name}", self.prefix);
            self.one(&weight(&name, 0), &weight(own, 0));
            self.one(&bias(&name, 0), &bias(own, 0));
        }
    }

    /// Weight and bias of a projector, whose prefix is its own.
    fn outer(&mut self, name: &str, own: &str) {
        if name.is_empty() || own.is_empty() {
            return;
        }
        for end in [weight, bias] {
            if let Some(name) = ending(self.from, &end(name, 0)) {
                self.one(&name, &end(own, 0));
            }
        }
    }

    fn part(&mut self) {
        let (names, own) = (self.names, self.own.gguf_names);
        self.patch();
        self.position();
        let class = format!("{}{}", self.prefix, names.class);
        self.one(&class, own.class);
        self.pair(names.first_norm, own.first_norm);
        for layer in self.spec.first_layer..self.spec.layers {
            self.layer(layer);
        }
        for (number, layer) in (0u32..).zip(&self.spec.deep) {
            for (name, own) in names.deep.into_iter().zip(own.deep) {
                let name = name.replace("{}", &number.to_string());
                self.pair(&name, &own.replace("{}", &layer.to_string()));
            }
        }
        for (name, own) in names.window.into_iter().zip(own.window) {
            self.pair(name, own);
        }
        self.pair(names.last_norm, own.last_norm);
        for (name, own) in names.standard.into_iter().zip(own.standard) {
            let name = format!("{}{name}", self.prefix);
            self.one(&name, own);
        }
        self.projector();
        self.queries();
        let deepseek = self.spec.step > 0;
        let line_end = if deepseek {
            "v.image_newline"
        } else {
            "model.image_newline"
        };
        let ends = [
            (self.spec.line_end, LINE_END, line_end),
            (self.spec.separator, SEPARATOR, "v.view_seperator"),
        ];
        for (_, list, own) in ends.into_iter().filter(|(has, ..)| *has) {
            let found = list.iter().find_map(|name| ending(self.from, name));
            if let Some(name) = found {
                self.one(&name, own);
            }
        }
    }

    /// The product of patches. The kernel of a convolution has four dimensions.
    fn patch(&mut self) {
        let (names, own) = (self.names, self.own.gguf_names);
        let name = weight(&format!("{}{}", self.prefix, names.patch), 0);
        let Some(info) = self.from.tensor(&name).cloned() else {
            return;
        };
        let target = weight(own.patch, 0);
        let (side, frames) = (self.spec.patch as usize, self.spec.frames as usize);
        let pixels = side * side;
        if self.own.video && info.k == 3 * frames * pixels && frames > 1 {
            for frame in 0..frames {
                let suffix = match frame {
                    0 => String::new(),
                    frame => format!(".{frame}"),
                };
                let target = format!("{target}{suffix}");
                let parts = vec![self.tensors.part(&info, 0, info.n)];
                self.tensors.push(&target, &info, info.n, 1, parts);
                if let Some((info, Source::Rows { columns, .. })) = self.tensors.last() {
                    info.k = 3 * pixels;
                    *columns = Some(Order::Frame {
                        frames,
                        at: frame,
                        pixels,
                    });
                }
                self.dimensions(&target, &[side, side, 3, info.n]);
            }
        } else if self.one(&name, &target) {
            if let Some((info, Source::Rows { columns, .. })) = self.tensors.last() {
                info.stack = 1;
                if self.spec.by_pixel {
                    *columns = Some(Order::Colours { pixels });
                }
            }
            match self.spec.step {
                0 => self.dimensions(&target, &[side, side, 3, info.n]),
                _ => self.kernel(&target, 3),
            }
        }
        self.pair(names.patch, own.patch);
    }

    fn dimensions(&mut self, name: &str, dimensions: &[usize]) {
        let all = &mut self.tensors.dimensions;
        all.insert(name.to_string(), dimensions.to_vec());
    }

    /// Says that a tensor has kernels of this side.
    fn kernel(&mut self, name: &str, side: usize) {
        let info = self.tensors.infos.iter().find(|info| info.name == name);
        if let Some(TensorInfo { n, k, .. }) = info {
            let dimensions = [side, side, k / side / side, *n];
            self.dimensions(name, &dimensions);
        }
    }

    /// The table of places.
    fn position(&mut self) {
        let name = format!("{}{}", self.prefix, self.names.position);
        let name = if self.from.tensor(&name).is_some() {
            name
        } else {
            weight(&name, 0)
        };
        let found = self.from.tensor(&name).cloned();
        let Some(info) = found.filter(|_| self.spec.positions > 0) else {
            return;
        };
        let own = weight(self.own.gguf_names.position, 0);
        let rows = (self.spec.positions + u32::from(self.spec.class)) as usize;
        if !self.one(&name, &own) {
            return;
        }
        let stack = match self.own.places {
            // One table for lines, one for columns.
            Places::Sums => 2,
            // llama.cpp has a square of places for Kimi K2.5, and a list for Kimi-VL.
            Places::Cubic if self.by_axes() => info.stack,
            Places::CubicAreas if !self.spec.class => (rows.isqrt()).max(1),
            _ => 1,
        };
        if let Some((made, source)) = self.tensors.last() {
            (made.n, made.k) = (rows, self.spec.dim as usize);
            (made.stack, made.format) = (stack, Format::F32);
            if made.n * made.k == info.n * info.k {
                *source = Source::Flat(name);
            }
        }
    }

    fn layer(&mut self, layer: u32) {
        let (names, own) = (self.names, self.own.gguf_names);
        let number = layer.to_string();
        let of = |name: &str| name.replace("{}", &number);
        let mut pairs = vec![
            (names.norm1, own.norm1),
            (names.norm2, own.norm2),
            (names.q, own.q),
            (names.k, own.k),
            (names.v, own.v),
            (names.o, own.o),
            (names.gate, own.gate),
            (names.up, own.up),
            (names.down, own.down),
        ];
        pairs.extend(names.head_norms.into_iter().zip(own.head_norms));
        pairs.extend(names.post_norms.into_iter().zip(own.post_norms));
        self.qkv(layer);
        for (name, own) in pairs.into_iter().filter(|(name, _)| !name.is_empty()) {
            self.pair(&of(name), &of(own));
            self.limits(&of(name), &of(own));
        }
        let head = (self.spec.dim / self.spec.heads) as usize;
        if self.own.rotation == Rotation::Alternating {
            let pairs = Order::Pairs {
                head,
                rot: head,
                end: usize::MAX,
            };
            for stem in [own.q, own.k].map(of) {
                self.order(&stem, pairs);
            }
        }
        let scales = names.scales.into_iter().zip(own.scales);
        for (name, own) in scales.filter(|(name, _)| !name.is_empty()) {
            let name = format!("{}{}", self.prefix, of(name));
            self.one(&name, &of(own));
        }
        let distances = names.distances.into_iter().zip(own.distances);
        for (name, own) in distances.filter(|(name, _)| !name.is_empty()) {
            let name = format!("{}{}", self.prefix, of(name));
            self.one(&name, &weight(&of(own), 0));
        }
    }

    /// Puts rows of a weight and values of its bias into an order.
    fn order(&mut self, stem: &str, by: Order) {
        let names = [weight(stem, 0), bias(stem, 0)];
        let all = self.tensors.infos.iter().zip(&mut self.tensors.sources);
        for (_, source) in all.filter(|(info, _)| names.contains(&info.name)) {
            if let Source::Rows { order, .. } = source {
                *order = Some(by);
            }
        }
    }

    /// Queries, keys and values as one tensor. llama.cpp reads those of Qwen2-VL and Qwen2.5-VL apart only.
    fn qkv(&mut self, layer: u32) {
        let number = layer.to_string();
        let (names, own) = (self.names, self.own.gguf_names);
        if names.qkv.is_empty() {
            return;
        }
        let name = format!("{}{}", self.prefix, names.qkv.replace("{}", &number));
        let family = self.spec.family;
        let apart = matches!(family, VisionFamily::Qwen2 | VisionFamily::Qwen2_5);
        let dim = self.spec.dim as usize;
        for end in [weight, bias] {
            let Some(info) = self.from.tensor(&end(&name, 0)).cloned() else {
                continue;
            };
            if !apart {
                self.one(&info.name, &end(&own.qkv.replace("{}", &number), 0));
                continue;
            }
            for (at, part) in [own.q, own.k, own.v].into_iter().enumerate() {
                self.third(&info, at, dim, &end(&part.replace("{}", &number), 0));
            }
        }
        if self.by_axes() {
            let head = (self.spec.dim / self.spec.heads) as usize;
            let rows = 2 * dim;
            self.order(&own.qkv.replace("{}", &number), Order::Axes { head, rows });
        }
    }

    /// Whether files of the model have those pairs of queries and keys together that turn by one axis.
    fn by_axes(&self) -> bool {
        projector_name(self.from, self.spec) == Some("kimik25")
    }

    /// One of three tensors that lie in one, one after the other.
    fn third(&mut self, info: &TensorInfo, at: usize, dim: usize, name: &str) {
        let vector = info.n == 1;
        let (first, rows) = if vector { (0, 1) } else { (at * dim, dim) };
        let parts = vec![self.tensors.part(info, first, rows)];
        self.tensors.push(name, info, rows, 1, parts);
        if let Some((info, Source::Rows { order, .. })) = self.tensors.last()
            && vector
        {
            info.k = dim;
            *order = Some(Order::From { first: at * dim });
        }
    }

    /// The limits of what a matrix of Gemma 4 reads and makes.
    fn limits(&mut self, name: &str, own: &str) {
        if self.spec.family != VisionFamily::Gemma4 {
            return;
        }
        let stem = format!("{}{name}", self.prefix);
        let stem = stem.strip_suffix(".linear").unwrap_or(&stem).to_string();
        for end in ["input_min", "input_max", "output_min", "output_max"] {
            self.one(&format!("{stem}.{end}"), &format!("{own}.{end}"));
        }
    }

    fn projector(&mut self) {
        let (names, own) = (self.names, self.own.gguf_names);
        self.outer(names.projector_norm, own.projector_norm);
        if self.own.projector_norm == ProjectorNorm::Mean {
            let name = weight(own.projector_norm, 0);
            let last = self.tensors.last();
            if let Some((_, Source::Rows { change, .. })) =
                last.filter(|(info, _)| info.name == name)
            {
                *change = Change::Add(1.0);
            }
        }
        self.outer(names.merging, own.merging);
        let merging = weight(own.merging, 0);
        if matches!(self.own.projector, Projector::Gated(..)) {
            self.kernel(&merging, self.spec.merge as usize);
        }
        let full = ending(self.from, names.linear1).filter(|_| !names.linear1.is_empty());
        let linear1 = weight(own.linear1, 0);
        match full {
            // Stored transposed in both kinds of files.
            Some(name) if self.own.projector == Projector::Transposed => {
                self.one(&name, &linear1);
            }
            // Stored transposed in directories.
            Some(name) => {
                if let Some(info) = self.from.tensor(&name).cloned()
                    && self.one(&name, &linear1)
                    && let Some((made, source)) = self.tensors.last()
                {
                    (made.n, made.k) = (info.k, info.n);
                    *source = Source::Transposed {
                        tensor: name,
                        first: 0,
                        columns: info.k,
                        step: info.n,
                    };
                }
            }
            None => self.outer(names.linear1, own.linear1),
        }
        match self.spec.family {
            VisionFamily::Sam => self.kernel(&linear1, 1),
            VisionFamily::SamNeck | VisionFamily::SamHalf => self.kernel(&linear1, 3),
            _ => {}
        }
        self.outer(names.linear2, own.linear2);
        for (name, own) in names.gated.into_iter().zip(own.gated) {
            self.outer(name, own);
        }
        self.windows();
    }

    /// The projectors of Granite Vision 4.
    fn windows(&mut self) {
        let Some(windows) = self.spec.windows.clone() else {
            return;
        };
        let [hf, gguf] = ProjectorNames::both();
        for (number, one) in windows.projectors.iter().enumerate() {
            let before = granite::prefix(self.from, one);
            let own = format!("v.proj_blk.{number}.");
            let full = [(hf.queries, gguf.queries), (hf.positions, gguf.positions)];
            for (name, part) in full {
                if self.one(&format!("{before}{name}"), &format!("{own}{part}"))
                    && let Some((info, _)) = self.tensors.last()
                {
                    info.stack = 1;
                }
            }
            let stems = [
                (hf.norm, gguf.norm),
                (hf.first_norm, gguf.first_norm),
                (hf.up, gguf.up),
                (hf.down, gguf.down),
                (hf.last_norm, gguf.last_norm),
                (hf.out, gguf.out),
            ];
            let among = hf.among.into_iter().zip(gguf.among);
            let across = hf.across.into_iter().zip(gguf.across);
            for (name, part) in stems.into_iter().chain(among).chain(across) {
                for end in [weight, bias] {
                    let (name, part) = (end(name, 0), end(part, 0));
                    self.one(&format!("{before}{name}"), &format!("{own}{part}"));
                }
            }
        }
    }

    /// The queries and what they read patches with.
    fn queries(&mut self) {
        let (names, own) = (&self.names.queries, &self.own.gguf_names.queries);
        for (name, own) in names.queries.iter().zip(own.queries) {
            if let Some(name) = ending(self.from, name) {
                self.one(&name, own);
            }
        }
        if self.spec.query_values() == 0 {
            return;
        }
        self.outer(names.kv, own.kv);
        for (name, own) in names.norms.into_iter().zip(own.norms) {
            self.outer(name, own);
        }
        self.outer(names.o, own.o);
        let width = self.spec.width as usize;
        let sets = [(names.qkv, own.qkv), (names.qkv_bias, own.qkv_bias)];
        for (name, own) in sets {
            let [name] = name else { continue };
            let found = ending(self.from, name);
            let Some(info) = found.and_then(|name| self.from.tensor(&name)).cloned() else {
                continue;
            };
            for (at, own) in own.iter().enumerate() {
                self.third(&info, at, width, own);
            }
        }
    }
}

/// The keys of an encoder.
fn keys(spec: &VisionSpec, name: &str, metadata: &mut Metadata) {
    let own = Family::of(spec.family);
    let patches = spec.of_patches();
    metadata.insert("clip.has_vision_encoder".into(), Value::Bool(true));
    metadata.insert(
        "clip.vision.projector_type".into(),
        Value::String(name.into()),
    );
    let act = if own.family == VisionFamily::DeepSeekOcr2 {
        VisionAct::Gelu
    } else {
        spec.act
    };
    let silu = act == VisionAct::Silu;
    metadata.insert("clip.use_silu".into(), Value::Bool(silu));
    let gelu = matches!(act, VisionAct::Gelu | VisionAct::GeluTanh);
    metadata.insert("clip.use_gelu".into(), Value::Bool(gelu));
    let mut set = |key: &str, value: Value| metadata.insert(format!("clip.vision.{key}"), value);
    let number = |value: u32| Value::U64(value.into());
    let tower = match spec.family {
        VisionFamily::Granite4 => patches,
        _ => spec,
    };
    let image = match own.places {
        // It has no meaning there.
        Places::Sums => 224,
        Places::None if own.video => 560,
        _ => tower.image,
    };
    set("image_size", number(image));
    set("patch_size", number(spec.patch));
    set("block_count", number(tower.layers));
    set("embedding_length", number(tower.dim));
    set("feed_forward_length", number(tower.ffn));
    set("attention.head_count", number(tower.heads));
    if own.family == VisionFamily::DeepSeekOcr2 {
        set("attention.head_count_kv", number(tower.kv_heads));
    }
    set("projection_dim", number(spec.width));
    set("attention.layer_norm_epsilon", Value::F64(tower.eps.into()));
    match own.gguf_merge {
        // The convolutions say it.
        _ if patches.family == VisionFamily::Sam => {}
        Merge::Encoder(key, _) => {
            set(key, number(spec.whole_merge()));
        }
        _ if own.merging => {
            set("spatial_merge_size", number(spec.merge));
        }
        _ => {}
    }
    if own.family == VisionFamily::Qwen2_5 {
        let every = spec.whole.first().map_or(spec.layers, |first| first + 1);
        set("n_wa_pattern", number(every));
    }
    if own.family == VisionFamily::Qwen3 {
        let flags = (0..spec.layers).map(|layer| Value::Bool(spec.deep.contains(&layer)));
        set("is_deepstack_layers", Value::Array(flags.collect()));
    }
    if own.family == VisionFamily::Llava {
        let taps = match spec.taps.as_slice() {
            [] => vec![spec.layers],
            all => all.to_vec(),
        };
        let list = taps.into_iter().map(number).collect();
        set("feature_layer", Value::Array(list));
        if spec.line_end {
            let kind = Value::String("spatial_unpad".into());
            set("mm_patch_merge_type", kind);
        }
    }
    if own.family == VisionFamily::MiniCpmV46 && spec.first.is_some() {
        let list = vec![number(patches.layers - 1)];
        set("wa_layer_indexes", Value::Array(list));
    }
    if let Some(windows) = &spec.windows {
        set("projector.query_side", number(windows.queries));
        set("projector.window_side", number(windows.patches));
        let all = &windows.projectors;
        let layers = all.iter().map(|one| Value::I64(i64::from(one.after) - 1));
        set("feature_layer", Value::Array(layers.collect()));
        let offset = |offset: [u32; 2]| i64::from(2 * offset[0] + offset[1]);
        let offsets = all
            .iter()
            .map(|one| Value::I64(one.offset.map_or(-1, offset)));
        set("projector.spatial_offsets", Value::Array(offsets.collect()));
    }
    if patches.family == VisionFamily::Sam {
        set("sam.block_count", number(patches.layers));
        set("sam.embedding_length", number(patches.dim));
        set("sam.head_count", number(patches.heads));
        if let Some(window) = patches.window {
            set("window_size", number(window));
        }
        set("image_size", number(patches.image));
    }
}

/// An error that names a family that cannot be written.
pub(crate) fn refused(origin: &str, spec: &VisionSpec) -> Error {
    let title = Family::of(spec.family).title;
    Error::Key {
        origin: origin.into(),
        key: "vision_config".into(),
        problem: format!("{title}: `mmproj` files have no encoder of images of this family"),
    }
}
