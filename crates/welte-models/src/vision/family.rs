//! The families of encoders: everything that a family alone decides.

use super::names::{self, VisionNames, ending};
use super::{Places, VisionAct, VisionFamily, VisionSpec};
use welte_formats::checkpoint::{Checkpoint, Dialect};

/// What a family's encoder is made of.
pub(super) struct Family {
    pub(super) family: VisionFamily,
    /// Its name for a person.
    pub(super) title: &'static str,
    /// What configurations call it (`model_type`).
    pub(super) hugging_face: &'static [&'static str],
    /// What `mmproj` files call it (`clip.projector_type`).
    pub(super) gguf: &'static [&'static str],
    /// The names of its tensors in directories.
    pub(super) names: &'static VisionNames,
    /// Other names, of which the first that a directory has counts.
    pub(super) other_names: &'static [&'static VisionNames],
    /// Those in GGUF files.
    pub(super) gguf_names: &'static VisionNames,
    /// Neighbours attend to each other after the layers, and features are added to the mean of their patches.
    pub(super) merger: bool,
    /// What configurations leave out.
    pub(super) tower: Tower,
    /// Where the number of patches along a feature's side is, and what it is without it.
    pub(super) merge: Merge,
    /// The same number in GGUF files.
    pub(super) gguf_merge: Merge,
    /// What patches know of their places besides rotary positions.
    pub(super) places: Places,
    pub(super) rotation: Rotation,
    /// RMS norms in place of layer norms.
    pub(super) rms: bool,
    /// Gated feed-forward parts in place of plain ones.
    pub(super) gated: bool,
    /// A norm stands before the layers.
    pub(super) first_norm: bool,
    /// Queries and keys of each head are normed.
    pub(super) head_norms: bool,
    /// The encoder reads videos: patches have two frames.
    pub(super) video: bool,
    pub(super) pool: Pool,
    pub(super) projector_norm: ProjectorNorm,
    /// The projector's norm has torch's own epsilon, not the encoder's.
    pub(super) torch_eps: bool,
    /// A matrix merges the patches of a feature before the projector.
    pub(super) merging: bool,
    pub(super) projector: Projector,
}

/// The sizes of an encoder, with the keys that a configuration has for them under `vision_config`.
#[derive(Clone, Copy)]
pub(super) struct Tower {
    pub(super) layers: (&'static str, u32),
    /// A key that ends in `width` has the values of a head.
    pub(super) heads: (&'static str, u32),
    pub(super) dim: (&'static str, u32),
    /// The width of the feed-forward parts. A key that ends in `ratio` has their part of `dim`.
    pub(super) ffn: (&'static str, u32),
    pub(super) patch: u32,
    pub(super) image: Image,
    pub(super) act: VisionAct,
    pub(super) act_key: &'static str,
    /// The key is empty where the epsilon is fixed.
    pub(super) eps: (&'static str, f64),
    /// Values of a patch go pixel by pixel.
    pub(super) by_pixel: bool,
}

/// What a configuration says about the pictures that the encoder was trained with.
#[derive(Clone, Copy)]
pub(super) enum Image {
    /// Nothing: positions are rotary.
    Any,
    /// The side in pixels.
    Pixels(u32),
    /// The number of places of a square, under this key.
    Places(&'static str, u32),
    /// The number of places of a line, under this key.
    Line(&'static str, u32),
    /// Lines and columns of places, each under its key, which may also begin with `init_`.
    Sides([&'static str; 2], u32),
}

/// How many patches make a feature's side.
#[derive(Clone, Copy)]
pub(super) enum Merge {
    /// Always this.
    Fixed(u32),
    /// A key of the encoder.
    Encoder(&'static str, u32),
    /// A key of the whole model.
    Model(&'static str, u32),
    /// A key with 1 divided by it.
    Inverse(&'static str, f64),
    /// A key with the features of a picture.
    Features(&'static str, u32),
}

/// How queries and keys turn with the place of their patch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rotation {
    None,
    /// The first half of the pairs by the line, the second one by the column.
    Axes,
    /// The same with alternating powers of the base.
    Alternating,
    /// Each half of a head by itself: the first by the column, the second by the line.
    Halves,
    /// Neighbouring pairs by column and line in turns.
    Turns,
    /// All pairs by the number of the row.
    Row,
}

/// How the patches of a feature become one vector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pool {
    /// Their mean, which is normed.
    Mean,
    /// Side by side.
    Joined,
    /// The first values of all patches first.
    ByValue,
}

/// What the projector's norm is taken of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProjectorNorm {
    None,
    /// Each feature's mean of patches; weights are stored as differences from 1 in directories.
    Mean,
    /// Each patch.
    Patches,
    /// The joined vectors, unless a file says otherwise.
    Joined,
    /// What the first matrix makes.
    Projected,
}

/// The matrices between pooled patches and the language model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Projector {
    One,
    /// One that is stored transposed.
    Transposed,
    /// Two with an activation between them. The hidden width is that of the joined vectors.
    Two,
    /// The same with the hidden width of the features.
    Wide,
    /// The same with a hidden width of its own, under this key.
    Hidden(&'static str, u32),
    /// Queries that attend to patches, then one that is stored transposed in directories.
    Queries,
    /// One, then a gated feed-forward part whose width has this key of the encoder.
    Gated(&'static str, u32),
    /// None.
    Nothing,
}

const SIGLIP: Tower = Tower {
    layers: ("num_hidden_layers", 12),
    heads: ("num_attention_heads", 12),
    dim: ("hidden_size", 768),
    ffn: ("intermediate_size", 3072),
    patch: 16,
    image: Image::Pixels(224),
    act: VisionAct::GeluTanh,
    act_key: "hidden_act",
    eps: ("layer_norm_eps", 1e-6),
    by_pixel: false,
};

/// Where a family has SigLIP or CLIP.
pub(super) const CLIP: Tower = Tower {
    patch: 32,
    act: VisionAct::QuickGelu,
    eps: ("layer_norm_eps", 1e-5),
    ..SIGLIP
};

const PIXTRAL_TOWER: Tower = Tower {
    layers: ("num_hidden_layers", 24),
    heads: ("num_attention_heads", 16),
    dim: ("hidden_size", 1024),
    ffn: ("intermediate_size", 4096),
    image: Image::Pixels(1024),
    act: VisionAct::Gelu,
    eps: ("", 1e-5),
    ..SIGLIP
};

const QWEN_TOWER: Tower = Tower {
    layers: ("depth", 32),
    heads: ("num_heads", 16),
    dim: ("hidden_size", 1280),
    ffn: ("intermediate_size", 3420),
    patch: 14,
    image: Image::Any,
    act: VisionAct::Silu,
    eps: ("", 1e-6),
    ..SIGLIP
};

const GLM_TOWER: Tower = Tower {
    layers: ("depth", 24),
    eps: ("rms_norm_eps", 1e-5),
    ..QWEN_TOWER
};

/// SigLIP, the vectors of a feature's patches side by side, one matrix.
const IDEFICS3: Family = Family {
    family: VisionFamily::Idefics3,
    title: "Idefics 3 and SmolVLM",
    hugging_face: &["idefics3", "smolvlm"],
    gguf: &["idefics3"],
    names: &names::SIGLIP,
    other_names: &[],
    gguf_names: &names::GGUF_IDEFICS3,
    merger: false,
    tower: Tower {
        patch: 32,
        ..SIGLIP
    },
    merge: Merge::Model("scale_factor", 2),
    gguf_merge: Merge::Encoder("projector.scale_factor", 2),
    places: Places::Fixed,
    rotation: Rotation::None,
    rms: false,
    gated: false,
    first_norm: false,
    head_norms: false,
    video: false,
    pool: Pool::Joined,
    projector_norm: ProjectorNorm::None,
    torch_eps: false,
    merging: false,
    projector: Projector::One,
};

const QWEN2: Family = Family {
    family: VisionFamily::Qwen2,
    title: "Qwen2-VL",
    hugging_face: &["qwen2_vl"],
    gguf: &["qwen2vl_merger"],
    names: &names::QWEN2,
    gguf_names: &names::GGUF_QWEN2,
    tower: Tower {
        // Its `hidden_size` is that of the language model.
        dim: ("embed_dim", 1280),
        ffn: ("mlp_ratio", 4),
        act: VisionAct::QuickGelu,
        ..QWEN_TOWER
    },
    merge: Merge::Encoder("spatial_merge_size", 2),
    gguf_merge: Merge::Encoder("spatial_merge_size", 2),
    places: Places::None,
    rotation: Rotation::Axes,
    video: true,
    projector: Projector::Two,
    ..IDEFICS3
};

const PIXTRAL: Family = Family {
    family: VisionFamily::Pixtral,
    title: "Pixtral",
    // LLaVA with Pixtral's encoder.
    hugging_face: &[],
    gguf: &["pixtral"],
    names: &names::PIXTRAL,
    gguf_names: &names::GGUF_PIXTRAL,
    tower: PIXTRAL_TOWER,
    merge: Merge::Fixed(1),
    gguf_merge: Merge::Fixed(1),
    places: Places::None,
    rotation: Rotation::Alternating,
    rms: true,
    gated: true,
    first_norm: true,
    projector: Projector::Wide,
    ..IDEFICS3
};

const MISTRAL3: Family = Family {
    family: VisionFamily::Mistral3,
    title: "Mistral 3",
    hugging_face: &["mistral3"],
    names: &names::MISTRAL3,
    merge: Merge::Model("spatial_merge_size", 2),
    gguf_merge: Merge::Encoder("spatial_merge_size", 2),
    pool: Pool::ByValue,
    projector_norm: ProjectorNorm::Patches,
    merging: true,
    ..PIXTRAL
};

const GLM4V: Family = Family {
    family: VisionFamily::Glm4V,
    title: "GLM-4V",
    hugging_face: &["glm4v", "glm4v_moe", "glm46v"],
    gguf: &["glm4v"],
    names: &names::GLM,
    gguf_names: &names::GGUF_GLM,
    tower: Tower {
        heads: ("num_heads", 12),
        dim: ("hidden_size", 1536),
        // Its `intermediate_size` is that of the projector.
        ffn: ("out_hidden_size", 4096),
        image: Image::Pixels(336),
        ..GLM_TOWER
    },
    places: Places::Cubic,
    rms: true,
    gated: true,
    first_norm: true,
    pool: Pool::ByValue,
    projector_norm: ProjectorNorm::Projected,
    torch_eps: true,
    merging: true,
    projector: Projector::Gated("intermediate_size", 13696),
    ..QWEN2
};

const MINICPM_V46: Family = Family {
    family: VisionFamily::MiniCpmV46,
    title: "MiniCPM-V 4.6",
    hugging_face: &["minicpmv4_6"],
    gguf: &["minicpmv4_6"],
    names: &names::MINICPM_V46,
    gguf_names: &names::GGUF_MINICPM_V46,
    merge: Merge::Fixed(4),
    gguf_merge: Merge::Encoder("projector.scale_factor", 4),
    places: Places::Buckets,
    projector_norm: ProjectorNorm::Joined,
    projector: Projector::Two,
    tower: SIGLIP,
    ..IDEFICS3
};

const GRANITE4: Family = Family {
    family: VisionFamily::Granite4,
    title: "Granite Vision 4",
    hugging_face: &["granite4_vision"],
    gguf: &["granite4_vision"],
    names: &names::GRANITE4,
    gguf_names: &names::GGUF_GRANITE4,
    tower: SIGLIP,
    merge: Merge::Fixed(1),
    gguf_merge: Merge::Fixed(1),
    places: Places::None,
    ..IDEFICS3
};

const JINA_CLIP: Family = Family {
    family: VisionFamily::JinaClip,
    title: "jina-clip",
    hugging_face: &["jina_clip"],
    gguf: &[],
    names: &names::JINA_CLIP,
    tower: Tower {
        layers: ("layers", 12),
        heads: ("head_width", 64),
        dim: ("width", 768),
        ffn: ("mlp_ratio", 4),
        act: VisionAct::Silu,
        eps: ("", 1e-6),
        ..SIGLIP
    },
    merge: Merge::Fixed(1),
    gguf_merge: Merge::Fixed(1),
    rotation: Rotation::Axes,
    gated: true,
    projector: Projector::Nothing,
    ..IDEFICS3
};

const SAM: Family = Family {
    family: VisionFamily::Sam,
    // Only a part of an encoder.
    title: "",
    hugging_face: &[],
    gguf: &[],
    names: &names::SAM,
    other_names: &[&names::SAM_HUB],
    gguf_names: &names::GGUF_SAM,
    places: Places::CubicAreas,
    projector_norm: ProjectorNorm::Projected,
    ..IDEFICS3
};

/// In the order in which a person reads them.
static ALL: &[Family] = &[
    IDEFICS3,
    Family {
        family: VisionFamily::Gemma3,
        title: "Gemma 3",
        hugging_face: &["gemma3"],
        gguf: &["gemma3"],
        names: &names::GEMMA3,
        gguf_names: &names::GGUF_GEMMA3,
        tower: SIGLIP,
        merge: Merge::Features("mm_tokens_per_image", 256),
        gguf_merge: Merge::Encoder("projector.scale_factor", 4),
        pool: Pool::Mean,
        projector_norm: ProjectorNorm::Mean,
        projector: Projector::Transposed,
        ..IDEFICS3
    },
    Family {
        family: VisionFamily::Gemma4,
        title: "Gemma 4",
        hugging_face: &["gemma4"],
        gguf: &["gemma4v"],
        names: &names::GEMMA4,
        gguf_names: &names::GGUF_GEMMA4,
        tower: Tower {
            layers: ("num_hidden_layers", 16),
            image: Image::Line("position_embedding_size", 10240),
            act_key: "hidden_activation",
            eps: ("rms_norm_eps", 1e-6),
            by_pixel: true,
            ..SIGLIP
        },
        merge: Merge::Encoder("pooling_kernel_size", 3),
        gguf_merge: Merge::Encoder("projector.scale_factor", 3),
        places: Places::Sums,
        rotation: Rotation::Halves,
        rms: true,
        gated: true,
        head_norms: true,
        pool: Pool::Mean,
        ..IDEFICS3
    },
    QWEN2,
    Family {
        family: VisionFamily::Qwen2_5,
        title: "Qwen2.5-VL",
        hugging_face: &["qwen2_5_vl"],
        gguf: &["qwen2.5vl_merger"],
        names: &names::QWEN2_5,
        tower: QWEN_TOWER,
        rms: true,
        gated: true,
        ..QWEN2
    },
    Family {
        family: VisionFamily::Qwen3,
        title: "Qwen3-VL and Qwen3.5",
        hugging_face: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
        gguf: &["qwen3vl_merger"],
        names: &names::QWEN3,
        tower: Tower {
            layers: ("depth", 27),
            dim: ("hidden_size", 1152),
            ffn: ("intermediate_size", 4304),
            patch: 16,
            image: Image::Places("num_position_embeddings", 2304),
            act: VisionAct::GeluTanh,
            ..QWEN_TOWER
        },
        places: Places::Corners,
        ..QWEN2
    },
    PIXTRAL,
    MISTRAL3,
    Family {
        family: VisionFamily::LightOnOcr,
        title: "LightOnOCR",
        hugging_face: &["lighton_ocr"],
        gguf: &["lightonocr"],
        names: &names::LIGHT_ON_OCR,
        ..MISTRAL3
    },
    Family {
        family: VisionFamily::Lfm2,
        title: "LFM2-VL",
        hugging_face: &["lfm2_vl", "lfm2-vl"],
        gguf: &["lfm2"],
        names: &names::LFM2,
        gguf_names: &names::GGUF_LFM2,
        tower: Tower {
            patch: 14,
            image: Image::Places("num_patches", 256),
            by_pixel: true,
            ..SIGLIP
        },
        merge: Merge::Model("downsample_factor", 2),
        places: Places::Areas,
        projector_norm: ProjectorNorm::Joined,
        torch_eps: true,
        projector: Projector::Hidden("projector_hidden_size", 2560),
        ..IDEFICS3
    },
    Family {
        family: VisionFamily::InternVl,
        title: "InternVL",
        hugging_face: &["internvl"],
        gguf: &["internvl"],
        names: &names::INTERN_VL,
        gguf_names: &names::GGUF_INTERN_VL,
        tower: Tower {
            patch: 14,
            act: VisionAct::Gelu,
            ..SIGLIP
        },
        merge: Merge::Inverse("downsample_ratio", 0.5),
        projector_norm: ProjectorNorm::Joined,
        torch_eps: true,
        projector: Projector::Wide,
        ..IDEFICS3
    },
    Family {
        family: VisionFamily::Llava,
        title: "LLaVA 1.5, LLaVA-NeXT and Granite Vision 3",
        hugging_face: &["llava", "llava_next"],
        gguf: &["mlp"],
        names: &names::LLAVA,
        gguf_names: &names::GGUF_LLAVA,
        tower: SIGLIP,
        merge: Merge::Fixed(1),
        gguf_merge: Merge::Fixed(1),
        // Of its encoders only CLIP has one.
        first_norm: true,
        projector: Projector::Wide,
        ..IDEFICS3
    },
    Family {
        family: VisionFamily::MiniCpmV,
        title: "MiniCPM-V 2.6 to 4.5",
        hugging_face: &["minicpmv"],
        gguf: &["resampler"],
        names: &names::MINICPM_V,
        gguf_names: &names::GGUF_MINICPM_V,
        tower: Tower {
            layers: ("num_hidden_layers", 27),
            heads: ("num_attention_heads", 16),
            dim: ("hidden_size", 1152),
            ffn: ("intermediate_size", 4304),
            patch: 14,
            image: Image::Pixels(980),
            ..SIGLIP
        },
        merge: Merge::Fixed(1),
        gguf_merge: Merge::Fixed(1),
        places: Places::Buckets,
        projector: Projector::Queries,
        ..IDEFICS3
    },
    MINICPM_V46,
    Family {
        family: VisionFamily::MiniCpmMerger,
        // Only a part of an encoder.
        title: "",
        hugging_face: &[],
        gguf: &[],
        names: &names::MINICPM_MERGER,
        gguf_names: &names::GGUF_MINICPM_MERGER,
        merger: true,
        ..MINICPM_V46
    },
    Family {
        family: VisionFamily::PaddleOcr,
        title: "PaddleOCR-VL",
        hugging_face: &["paddleocr_vl"],
        gguf: &["paddleocr"],
        names: &names::PADDLE_OCR,
        gguf_names: &names::GGUF_LFM2,
        tower: Tower {
            patch: 14,
            ..SIGLIP
        },
        merge: Merge::Encoder("spatial_merge_size", 2),
        places: Places::Middles,
        rotation: Rotation::Axes,
        projector_norm: ProjectorNorm::Patches,
        torch_eps: true,
        projector: Projector::Two,
        ..IDEFICS3
    },
    JINA_CLIP,
    GRANITE4,
    Family {
        family: VisionFamily::Granite4Queries,
        title: "",
        hugging_face: &[],
        gguf: &[],
        ..GRANITE4
    },
    Family {
        family: VisionFamily::Granite4Tower,
        title: "",
        hugging_face: &[],
        gguf: &[],
        places: Places::Fixed,
        ..GRANITE4
    },
    Family {
        family: VisionFamily::DeepSeekOcr,
        title: "DeepSeek-OCR",
        // Their configurations name a larger family.
        hugging_face: &[],
        gguf: &["deepseekocr"],
        names: &names::DEEPSEEK_OCR,
        gguf_names: &names::GGUF_DEEPSEEK_OCR,
        first_norm: true,
        places: Places::CubicAreas,
        ..IDEFICS3
    },
    Family {
        family: VisionFamily::DeepSeekOcr2,
        title: "DeepSeek-OCR 2",
        hugging_face: &["deepseek_ocr2"],
        gguf: &["deepseekocr2"],
        names: &names::DEEPSEEK_OCR2,
        other_names: &[&names::DEEPSEEK_OCR2_HUB],
        gguf_names: &names::GGUF_DEEPSEEK_OCR2,
        places: Places::None,
        rotation: Rotation::Row,
        rms: true,
        gated: true,
        ..IDEFICS3
    },
    SAM,
    Family {
        family: VisionFamily::SamNeck,
        names: &names::SAM_NECK,
        other_names: &[&names::SAM_NECK_HUB],
        gguf_names: &names::GGUF_SAM_NECK,
        places: Places::None,
        ..SAM
    },
    Family {
        family: VisionFamily::SamHalf,
        names: &names::SAM_HALF,
        other_names: &[&names::SAM_HALF_HUB],
        gguf_names: &names::GGUF_SAM_HALF,
        places: Places::None,
        projector_norm: ProjectorNorm::None,
        ..SAM
    },
    GLM4V,
    Family {
        family: VisionFamily::GlmOcr,
        title: "GLM-OCR",
        hugging_face: &["glm_ocr"],
        tower: Tower {
            dim: ("hidden_size", 1024),
            ffn: ("intermediate_size", 4096),
            ..GLM_TOWER
        },
        places: Places::None,
        first_norm: false,
        head_norms: true,
        // Three times the width of features.
        projector: Projector::Gated("", 3),
        ..GLM4V
    },
    Family {
        family: VisionFamily::Kimi,
        title: "Kimi-VL and Kimi K2.5",
        hugging_face: &["kimi_vl", "kimi_k25"],
        gguf: &["kimivl", "kimik25"],
        names: &names::KIMI,
        other_names: &[&names::KIMI_VL],
        gguf_names: &names::GGUF_LFM2,
        tower: Tower {
            layers: ("num_hidden_layers", 27),
            heads: ("num_attention_heads", 16),
            dim: ("hidden_size", 1152),
            ffn: ("intermediate_size", 4304),
            patch: 14,
            image: Image::Sides(["pos_emb_height", "pos_emb_width"], 64),
            eps: ("", 1e-5),
            ..SIGLIP
        },
        merge: Merge::Encoder("merge_kernel_size", 2),
        places: Places::Cubic,
        rotation: Rotation::Turns,
        projector_norm: ProjectorNorm::Patches,
        torch_eps: true,
        projector: Projector::Two,
        ..IDEFICS3
    },
];

impl Family {
    pub(super) fn of(family: VisionFamily) -> &'static Family {
        let found = ALL.iter().find(|one| one.family == family);
        found.expect("every family has an entry")
    }

    /// The family that configurations call so.
    pub(super) fn in_configuration(name: &str) -> Option<&'static Family> {
        ALL.iter().find(|one| one.hugging_face.contains(&name))
    }

    /// The families that `mmproj` files call so.
    pub(super) fn in_gguf(name: &str) -> impl Iterator<Item = &'static Family> {
        ALL.iter().filter(move |one| one.gguf.contains(&name))
    }

    /// The names of its tensors in a checkpoint.
    pub(super) fn names_in(&self, checkpoint: &dyn Checkpoint) -> &'static VisionNames {
        if checkpoint.dialect() == Dialect::Gguf {
            return self.gguf_names;
        }
        let fits = |names: &&&VisionNames| {
            let first = format!("{}.weight", names.linear1);
            ending(checkpoint, &first).is_some()
        };
        let mut all = [self.names]
            .into_iter()
            .chain(self.other_names.iter().copied());
        match self.other_names {
            [] => self.names,
            _ => all.find(|names| fits(&names)).unwrap_or(self.names),
        }
    }

    /// Learned vectors of places, if there are this many along a side.
    pub(super) fn positions(&self, side: u32) -> u32 {
        match self.places {
            // The first encoder has them.
            Places::None if self.family == VisionFamily::Granite4 => side.saturating_mul(side),
            Places::None => 0,
            Places::Sums => side.saturating_mul(2),
            _ => side.saturating_mul(side),
        }
    }

    /// The default base of rotary positions.
    pub(super) fn theta(&self) -> f32 {
        match self.rotation {
            Rotation::Halves => 100.0,
            _ => 10000.0,
        }
    }

    /// The epsilon of the projector's norm, where the encoder's would be this.
    pub(super) fn projector_eps(&self, eps: f32) -> f32 {
        if self.torch_eps { 1e-5 } else { eps }
    }
}

impl VisionSpec {
    /// The families, for a person.
    pub fn families() -> String {
        let titles = ALL.iter().map(|one| one.title);
        let titles: Vec<&str> = titles.filter(|title| !title.is_empty()).collect();
        titles.join(", ")
    }

    /// What patches know of their places.
    pub fn places(&self) -> Places {
        Family::of(self.family).places
    }

    /// Queries and keys are rotated.
    pub fn is_rotary(&self) -> bool {
        Family::of(self.family).rotation != Rotation::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_one_family() {
        for one in ALL {
            assert!(std::ptr::eq(Family::of(one.family), one), "{}", one.title);
            for name in one.hugging_face {
                let found = Family::in_configuration(name).expect("a family");
                assert_eq!(found.family, one.family, "{name}");
            }
        }
    }
}
