//! Encoders of pictures: what a checkpoint's encoder is, and its program.
//!
//! A row reads the values of a patch and, if positions are learned, the vector of its place after them. Its axes are the number of
//! its window, its line and its column. The patches of one feature are neighbours, and the last of them is picked.

mod compile;
mod family;
mod names;
mod read;
mod weights;

pub use compile::compile_vision;
pub use read::{unknown_vision, vision_spec};
pub use weights::{learned_positions, learned_queries, line_end};

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
    /// PaddleOCR-VL: SigLIP with positions that are learned and rotary; a norm of each patch, the vectors side by side, two matrices.
    PaddleOcr,
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
    /// The encoder whose features this one reads in place of patches.
    pub first: Option<Box<VisionSpec>>,
    /// The first of its layers; those before it belong to the encoder before it.
    pub first_layer: u32,
}

impl VisionSpec {
    /// Values of a patch, or of a feature of the encoder before this one.
    pub fn patch_values(&self) -> u32 {
        match &self.first {
            Some(first) => first.feature_values(),
            None => 3 * self.frames * self.patch * self.patch,
        }
    }

    /// The encoder that reads patches: this one or the one before it.
    pub fn of_patches(&self) -> &VisionSpec {
        self.first.as_deref().unwrap_or(self)
    }

    /// Patches along a feature's side, of both encoders together.
    pub fn whole_merge(&self) -> u32 {
        self.merge * self.first.as_ref().map_or(1, |first| first.merge)
    }

    /// Values that a row reads: a patch, the vector of its place, and what its keys add or queries are.
    pub fn row_values(&self) -> u32 {
        let place = if self.positions > 0 { self.dim } else { 0 };
        self.patch_values() + place + self.query_values()
    }

    /// Values of a query.
    pub fn query_values(&self) -> u32 {
        if self.queries > 0 { self.width } else { 0 }
    }

    /// Values of a feature: of all its parts.
    pub fn feature_values(&self) -> u32 {
        self.width * (1 + self.deep.len() as u32)
    }

    /// Rows after the patches: that of the class, and the queries.
    pub fn class_rows(&self) -> u32 {
        u32::from(self.class) + self.queries
    }

    /// Features of a tile with this many patches.
    pub fn features_of(&self, patches: u32) -> u32 {
        match self.queries {
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
