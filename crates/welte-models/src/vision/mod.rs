//! Encoders of pictures: what a checkpoint's encoder is, and its program.
//!
//! A row reads the values of a patch and, if positions are learned, the vector of its place after them. Its axes are the number of
//! its window, its line and its column. The patches of one feature are neighbours, and the last of them is picked.

mod compile;
mod family;
mod granite;
mod names;
mod read;
mod sam;
mod weights;
mod windows;
pub(crate) mod write;

pub use compile::compile_vision;
pub(crate) use granite::{layers_in_gguf, projectors};
pub use read::{unknown_vision, vision_spec};
pub use weights::{learned_ends, learned_positions, learned_queries, learned_windows};

// Sizes that a file may name.
const MOST_DIM: u32 = 1 << 14;
const MOST_SIDE: u32 = 1 << 14;
const MOST_PATCH: u32 = 256;
const MOST_QUERIES: u32 = 4096;

/// The family of an encoder: what stands between patches and the embeddings of the language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionFamily {
    /// Idefics 3 and SmolVLM: SigLIP, the vectors of a feature's patches side by side, one matrix.
    Idefics3,
    /// Gemma 3: SigLIP, the mean of a feature's patches, a norm and a matrix.
    Gemma3,
    /// Gemma 4: rotary positions by halves of a head, and learned vectors of lines and columns; norms of queries, keys and values, and
    /// after each part; the mean of a feature's patches, a norm and a matrix. Matrices may have limits.
    Gemma4,
    /// Qwen2-VL: rotary positions; a norm, the vectors side by side, two matrices.
    Qwen2,
    /// Qwen2.5-VL: the same with windows.
    Qwen2_5,
    /// Qwen3-VL and Qwen3.5: positions that are learned and rotary, full attention; the states of some layers become further parts of
    /// a feature.
    Qwen3,
    /// GLM-4V: positions that are learned and rotary; a matrix of the vectors side by side, a norm, and a gated feed-forward part.
    Glm4V,
    /// GLM-OCR: the same with rotary positions alone, and norms of queries and keys.
    GlmOcr,
    /// Kimi-VL and Kimi K2.5: learned positions, and rotary ones whose pairs follow column and line in turns; a norm of each patch, the
    /// vectors side by side, two matrices.
    Kimi,
    /// Pixtral: rotary positions, two matrices.
    Pixtral,
    /// Mistral 3: Pixtral whose features consist of several patches.
    Mistral3,
    /// LightOnOCR: Mistral 3 whose features stand in one line.
    LightOnOcr,
    /// LFM2-VL: SigLIP 2, whose positions are resized to the picture; the vectors side by side, a norm, two matrices.
    Lfm2,
    /// InternVL: a row of its own for the class, scaled layers; the vectors side by side, a norm, two matrices.
    InternVl,
    /// LLaVA 1.5, LLaVA-NeXT and Granite Vision: CLIP or SigLIP; the states of some layers side by side, two matrices. All but LLaVA 1.5
    /// have a learned feature that ends the lines of a picture that is cut.
    Llava,
    /// MiniCPM-V 2.6 to 4.5: SigLIP; learned queries, as many for every tile, attend to its patches, then a norm and a matrix.
    MiniCpmV,
    /// MiniCPM-V 4.6: SigLIP, in the middle of which four patches become one; a norm of the vectors side by side, two matrices.
    MiniCpmV46,
    /// What MiniCPM-V 4.6 has up to that place: at last neighbours attend to each other, and two matrices add to their mean.
    MiniCpmMerger,
    /// Granite Vision 4: queries of windows, which have attended to each other, attend to patches; several projectors make parts of
    /// features.
    Granite4,
    /// What it has before that: queries attend to each other.
    Granite4Queries,
    /// What it has before that: SigLIP, and norms of its states.
    Granite4Tower,
    /// DeepSeek-OCR: SAM whose features are the patches of CLIP; the states of both side by side, one matrix.
    DeepSeekOcr,
    /// DeepSeek-OCR 2: SAM whose features are read by a causal language model; its learned queries become features, by one matrix.
    DeepSeekOcr2,
    /// SAM: attention within windows and of the whole picture, with learned distances; one matrix, a norm.
    Sam,
    /// What SAM has after that: a convolution and a norm.
    SamNeck,
    /// A convolution with a quarter of its places.
    SamHalf,
    /// PaddleOCR-VL: SigLIP with positions that are learned and rotary; a norm of each patch, the vectors side by side, two matrices.
    PaddleOcr,
    /// jina-clip: EVA-02, with positions that are learned and rotary and norms within attention and feed-forward parts. The class's row
    /// is the only feature, and no language model reads it: it is a vector beside those of texts.
    JinaClip,
}

/// What patches know of their places besides rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Nothing.
    None,
    /// A learned vector for each place.
    Fixed,
    /// Learned vectors that are resized to the lines and columns of each tile: values are those of areas; a smaller table has means
    /// without gaps.
    Areas,
    /// The same with values of points, of which the first and last ones stay.
    Corners,
    /// The same with points in the middle of equal parts.
    Middles,
    /// The same by a cubic curve through four of them.
    Cubic,
    /// The same by a cubic curve; a smaller table has means without gaps.
    CubicAreas,
    /// The learned vector of the part of the table that each patch begins in.
    Buckets,
    /// The sum of a vector of the column and one of the line: the first and the second half of the learned vectors.
    Sums,
}

/// The activation of an encoder's feed-forward parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionAct {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by tanh.
    GeluTanh,
    /// GELU by erf.
    Gelu,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
}

/// How queries attend to windows of patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    /// Patches along the side of a window.
    pub patches: u32,
    /// Queries along it.
    pub queries: u32,
    /// What makes the parts of features.
    pub projectors: Vec<WindowProjector>,
}

/// A projector with queries in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowProjector {
    /// Its number among those of its kind.
    pub own: u32,
    /// The layers of the encoder after which it reads the states.
    pub after: u32,
    /// Line and column of the patch of each square of 2 x 2 that queries get; `None`: the mean of their patches.
    pub offset: Option<[u32; 2]>,
    /// The layer of the language model before which its part is added.
    pub before: u32,
}

/// What an encoder of pictures is.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionSpec {
    /// Its family.
    pub family: VisionFamily,
    /// Layers.
    pub layers: u32,
    /// Width of a hidden state.
    pub dim: u32,
    /// Heads of attention.
    pub heads: u32,
    /// Those of keys and values.
    pub kv_heads: u32,
    /// Width of the feed-forward parts.
    pub ffn: u32,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Epsilon of the norm between encoder and projector, where the family has one.
    pub projector_eps: f32,
    /// RMS norms in place of layer norms.
    pub rms: bool,
    /// The feed-forward parts have a gate.
    pub gated: bool,
    /// Their activation.
    pub act: VisionAct,
    /// The projector's activation.
    pub projector_act: VisionAct,
    /// The side of a patch in pixels.
    pub patch: u32,
    /// Frames of a patch.
    pub frames: u32,
    /// Steps of the time axis in a second of a video; `None`: every picture of it is a step.
    pub ticks: Option<f64>,
    /// The side of a picture that the encoder was trained with.
    pub image: u32,
    /// Patches along a feature's side.
    pub merge: u32,
    /// Places that have a learned vector; 0: positions are only rotary.
    pub positions: u32,
    /// The base of rotary positions.
    pub theta: f32,
    /// What lines and columns are multiplied by before patches turn.
    pub pace: f32,
    /// Rotated pairs are neighbours.
    pub interleaved: bool,
    /// Each half of a head turns by itself.
    pub by_halves: bool,
    /// Features along a window's side.
    pub window: Option<u32>,
    /// With windows: the layers whose rows see the whole picture.
    pub whole: Vec<u32>,
    /// Layers whose states become further parts of a feature.
    pub deep: Vec<u32>,
    /// Layers after which states are taken, side by side; none: after the last one.
    pub taps: Vec<u32>,
    /// A row of its own for the class.
    pub class: bool,
    /// A learned feature ends the lines of pictures that are cut. Without it pictures are not cut.
    pub line_end: bool,
    /// Width of a part of a feature.
    pub width: u32,
    /// Width between the projector's two matrices, where it has two and the width is its own.
    pub hidden: u32,
    /// The projector begins with a norm of the joined vectors.
    pub joined_norm: bool,
    /// A patch's values go pixel by pixel.
    pub by_pixel: bool,
    /// Queries that attend to the patches of a tile and become its features; 0: patches become features.
    pub queries: u32,
    /// How many queries each set has; a tile has the first set that has one for each of its patches. The last set is the largest.
    pub query_sets: Vec<u32>,
    /// Projectors with queries in windows.
    pub windows: Option<Windows>,
    /// A learned feature ends each picture.
    pub separator: bool,
    /// The encoder whose features this one reads in place of patches.
    pub first: Option<Box<VisionSpec>>,
    /// The first of its layers; those before it belong to the encoder before it.
    pub first_layer: u32,
    /// How many features of the encoder before it lie between two squares of 3 x 3 that rows read; 0: a row reads one feature.
    pub step: u32,
}

impl VisionSpec {
    /// Values of a patch, or of a feature of the encoder before this one.
    pub fn patch_values(&self) -> u32 {
        match &self.first {
            Some(first) if self.step > 0 => 9 * first.feature_values(),
            Some(first) => first.feature_values(),
            None => 3 * self.frames * self.patch * self.patch,
        }
    }

    /// All encoders, the one that reads patches first.
    pub fn chain(&self) -> Vec<&VisionSpec> {
        let mut all = self
            .first
            .as_ref()
            .map_or(Vec::new(), |first| first.chain());
        all.push(self);
        all
    }

    /// The encoder that reads patches: this one or the first before it.
    pub fn of_patches(&self) -> &VisionSpec {
        self.first.as_ref().map_or(self, |first| first.of_patches())
    }

    /// Patches along a feature's side, of all encoders together.
    pub fn whole_merge(&self) -> u32 {
        let chain = self.chain();
        chain
            .iter()
            .map(|spec| spec.merge * spec.step.max(1))
            .product()
    }

    /// Whether rows of the first encoder are patches that only later ones merge.
    pub fn merges_later(&self) -> bool {
        self.step > 0 || self.windows.is_some()
    }

    /// Rows that an encoder has for so many of the one before it.
    pub fn rows_of(&self, features: u32) -> u32 {
        let Some(windows) = &self.windows else {
            return features / self.step.max(1).pow(2);
        };
        let [queries, patches] = [windows.queries, windows.patches].map(|side| side * side);
        match self.family {
            VisionFamily::Granite4Queries => features / patches * queries,
            VisionFamily::Granite4 => features / queries * (queries + patches),
            _ => features,
        }
    }

    /// Queries go through all layers, and see the patches and those before them. Otherwise they read patches after the layers.
    pub fn has_causal_queries(&self) -> bool {
        self.family == VisionFamily::DeepSeekOcr2
    }

    /// Values that a row reads: a patch, the vector of its place, and what its keys add or queries are.
    pub fn row_values(&self) -> u32 {
        self.patch_values() + self.place_values() + self.query_values()
    }

    /// Values of the vector of a place, or of a query in its stead.
    pub fn place_values(&self) -> u32 {
        if self.positions > 0 || self.has_causal_queries() {
            self.dim
        } else {
            0
        }
    }

    /// Values of a query that reads patches.
    pub fn query_values(&self) -> u32 {
        if self.queries > 0 && !self.has_causal_queries() {
            self.width
        } else {
            0
        }
    }

    /// The queries of a tile with this many patches: how many, and how many stand before them among those of all sets.
    pub fn queries_of(&self, patches: u32) -> (u32, u32) {
        let mut before = 0;
        for (number, count) in self.query_sets.iter().enumerate() {
            if patches <= *count || number + 1 == self.query_sets.len() {
                return (*count, before);
            }
            before += count;
        }
        (0, 0)
    }

    /// Layers that this encoder has of its own.
    pub fn has_layers(&self) -> bool {
        self.layers > self.first_layer
    }

    /// Values of queries, keys and values of a row.
    pub fn qkv(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * (self.dim / self.heads)
    }

    /// The side of the table of distances that a layer's scores add; 0: they add nothing.
    pub fn distances(&self, windowed: bool) -> u32 {
        match self.window {
            _ if self.family != VisionFamily::Sam => 0,
            Some(window) if windowed => window,
            _ => self.image / self.patch,
        }
    }

    /// Values of a feature: of all its parts.
    pub fn feature_values(&self) -> u32 {
        self.width * (1 + self.deep.len() as u32)
    }

    /// Rows after the patches: that of the class, and the queries.
    pub fn class_rows(&self) -> u32 {
        u32::from(self.class) + self.queries
    }

    /// The class's row is the only feature of a tile.
    pub fn is_of_class(&self) -> bool {
        self.family == VisionFamily::JinaClip
    }

    /// Features of a tile with this many patches.
    pub fn features_of(&self, patches: u32) -> u32 {
        match self.queries {
            _ if self.is_of_class() => 1,
            0 => patches / self.group(),
            queries => queries,
        }
    }

    /// Heads of the queries.
    pub fn query_heads(&self) -> u32 {
        (self.width / 128).max(1)
    }

    /// Values of all states of a row that the projector reads.
    pub fn tapped(&self) -> u32 {
        self.dim * self.taps.len().max(1) as u32
    }

    /// Patches of a feature.
    pub fn group(&self) -> u32 {
        self.merge * self.merge
    }
}
