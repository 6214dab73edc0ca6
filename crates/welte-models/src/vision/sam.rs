//! The encoders that begin with SAM: DeepSeek-OCR and DeepSeek-OCR 2. Sizes are those of the tensors.
//!
//! They are four programs: SAM up to its first norm, a convolution with a norm, one that leaves a quarter of the places, and one that
//! does the same for the patches of a second encoder.

use super::family::Family;
use super::names::{VisionNames, ending};
use super::{MOST_DIM, MOST_PATCH, MOST_QUERIES, MOST_SIDE, VisionAct, VisionFamily, VisionSpec};
use crate::Error;
use crate::keys::Keys;
use crate::names::weight;
use crate::spec::{MOST_FFN, MOST_HEADS, MOST_LAYERS};

/// Whether a checkpoint has such an encoder.
pub(super) fn is_there(keys: &Keys<'_>) -> bool {
    let known = [VisionFamily::DeepSeekOcr, VisionFamily::DeepSeekOcr2];
    let said = ["general.architecture", "clip.vision.projector_type"];
    let said = said.into_iter().chain(["clip.projector_type"]);
    let said: Vec<&str> = said
        .filter_map(|key| keys.text(key).ok().flatten())
        .collect();
    let named = |family: &VisionFamily| {
        let own = Family::of(*family);
        said.iter()
            .any(|said| own.gguf.contains(said) || own.hugging_face.contains(said))
    };
    known.iter().any(named) || said.contains(&"deepseek_vl_v2") && hub_tensor(keys)
}

/// The files of DeepSeek-OCR call themselves a larger family.
fn hub_tensor(keys: &Keys<'_>) -> bool {
    ending(keys.checkpoint, "sam_model.net_3.weight").is_some()
}

/// Tensors by the names of a family.
struct Tensors<'a> {
    keys: &'a Keys<'a>,
    names: &'static VisionNames,
}

impl<'a> Tensors<'a> {
    fn of(keys: &'a Keys<'a>, family: VisionFamily) -> Tensors<'a> {
        let names = Family::of(family).names_in(keys.checkpoint);
        Tensors { keys, names }
    }

    /// Rows and elements of a tensor, each at most as many as allowed.
    fn shape(&self, name: &str, most: [u32; 2]) -> Result<[u32; 2], Error> {
        let found = ending(self.keys.checkpoint, name);
        let found = found.and_then(|name| self.keys.checkpoint.tensor(&name));
        let info = found.ok_or_else(|| self.keys.error(name, "is missing"))?;
        let sizes = [info.n, info.k].map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        if sizes[0] <= most[0] && sizes[1] <= most[1] {
            return Ok(sizes);
        }
        let problem = format!("is {} x {}, which is not supported", info.n, info.k);
        Err(self.keys.error(name, problem))
    }

    fn matrix(&self, template: &str, layer: u32) -> Result<[u32; 2], Error> {
        self.shape(&weight(template, layer), [1 << 17; 2])
    }

    /// How many layers have any tensor.
    fn layers(&self, template: &str) -> u32 {
        let (before, _) = template.split_once("{}").unwrap_or((template, ""));
        let has = |layer: &u32| {
            let place = format!("{before}{layer}.");
            let mut all = self.keys.checkpoint.tensors().iter();
            all.any(|tensor| tensor.name.contains(&place))
        };
        (0..MOST_LAYERS).take_while(has).count() as u32
    }

    /// A tensor whose name ends in `.weight` in GGUF files only.
    fn plain(&self, name: &str) -> String {
        if self.keys.is_gguf() {
            format!("{name}.weight")
        } else {
            name.to_string()
        }
    }
}

/// Reads the encoder of a checkpoint that has one ([`is_there`]).
pub(super) fn read(keys: &Keys<'_>) -> Result<VisionSpec, Error> {
    let sets = Family::of(VisionFamily::DeepSeekOcr2).names_in(keys.checkpoint);
    let has_queries = sets.queries.queries.iter();
    let has_queries = has_queries.filter(|name| ending(keys.checkpoint, name).is_some());
    let (clip, base) = (has_queries.count() == 0, sam(keys)?);
    let neck = convolution(keys, VisionFamily::SamNeck, base, 1)?;
    let half = convolution(keys, VisionFamily::SamHalf, neck, 2)?;
    if clip {
        with_clip(keys, half)
    } else {
        with_language_model(keys, half)
    }
}

/// SAM: its layers, a matrix and a norm.
fn sam(keys: &Keys<'_>) -> Result<VisionSpec, Error> {
    let own = Tensors::of(keys, VisionFamily::Sam);
    let names = own.names;
    let fault = |problem: String| Err(keys.error("vision encoder", problem));
    let [dim, values] = own.shape(&weight(names.patch, 0), [MOST_DIM, 3 * MOST_PATCH.pow(2)])?;
    let patch = (values / 3).isqrt();
    let [a, b] = own.shape(&own.plain(names.position), [MOST_SIDE.pow(2), u32::MAX])?;
    let side = (u64::from(a) * u64::from(b) / u64::from(dim)).isqrt() as u32;
    let table = |layer: u32| {
        let name = names.distances[0].replace("{}", &layer.to_string());
        own.shape(&own.plain(&name), [2 * MOST_SIDE, 1 << 12])
    };
    let layers = own.layers(names.norm1);
    let tables: Vec<[u32; 2]> = (0..layers).map(table).collect::<Result<_, _>>()?;
    let Some(&[_, head]) = tables.first() else {
        return fault("SAM has no layers".into());
    };
    let sides: Vec<u32> = tables.iter().map(|table| table[0].div_ceil(2)).collect();
    let whole = (0..layers).filter(|layer| sides[*layer as usize] == side);
    let whole: Vec<u32> = whole.collect();
    let mut windows = sides.iter().copied().filter(|own| *own != side);
    let window = windows.next();
    if windows.any(|other| Some(other) != window) || patch == 0 || !side.is_multiple_of(4) {
        return fault(format!(
            "tables of distances of {sides:?}, {side} patches to a side"
        ));
    }
    if head == 0 || !dim.is_multiple_of(head) || dim / head > MOST_HEADS {
        return fault(format!("heads of {head} of {dim} values"));
    }
    let [ffn, _] = own.matrix(names.up, 0)?;
    let [width, _] = own.matrix(names.linear1, 0)?;
    Ok(VisionSpec {
        family: VisionFamily::Sam,
        layers,
        dim,
        heads: dim / head,
        kv_heads: dim / head,
        ffn: ffn.min(MOST_FFN),
        eps: 1e-6,
        projector_eps: 1e-6,
        rms: false,
        gated: false,
        act: VisionAct::Gelu,
        projector_act: VisionAct::Gelu,
        patch,
        frames: 1,
        ticks: None,
        image: side * patch,
        merge: 1,
        positions: side * side,
        theta: 10000.0,
        pace: 1.0,
        interleaved: false,
        by_halves: false,
        window,
        whole,
        deep: Vec::new(),
        taps: Vec::new(),
        class: false,
        line_end: false,
        width,
        hidden: width,
        joined_norm: false,
        by_pixel: false,
        queries: 0,
        query_sets: Vec::new(),
        windows: None,
        separator: false,
        first: None,
        first_layer: 0,
        step: 0,
    })
}

/// A convolution over the features of an encoder. Its rows read squares of them, `step` apart.
fn convolution(
    keys: &Keys<'_>,
    family: VisionFamily,
    first: VisionSpec,
    step: u32,
) -> Result<VisionSpec, Error> {
    let own = Tensors::of(keys, family);
    let [width, _] = own.matrix(own.names.linear1, 0)?;
    Ok(VisionSpec {
        family,
        layers: 0,
        dim: 9 * first.width,
        heads: 1,
        kv_heads: 1,
        ffn: 1,
        positions: 0,
        window: None,
        whole: Vec::new(),
        width,
        hidden: width,
        step,
        first: Some(Box::new(first.clone())),
        ..first
    })
}

/// What both kinds of a second encoder have in common. `hugging_face` is the key of the number of heads.
fn second(
    keys: &Keys<'_>,
    family: VisionFamily,
    (hugging_face, heads): (&str, u32),
    first: VisionSpec,
) -> Result<VisionSpec, Error> {
    let own = Tensors::of(keys, family);
    let names = own.names;
    let [dim, _] = own.shape(&weight(names.patch, 0), [MOST_DIM, u32::MAX])?;
    let key = if keys.is_gguf() {
        "clip.vision.attention.head_count"
    } else {
        hugging_face
    };
    let heads = keys.size(key, Some(heads), MOST_HEADS)?;
    let [ffn, _] = own.matrix(names.up, 0)?;
    let [width, _] = own.matrix(names.linear1, 0)?;
    Ok(VisionSpec {
        family,
        layers: own.layers(names.norm1),
        dim,
        heads,
        kv_heads: heads,
        ffn: ffn.min(MOST_FFN),
        separator: true,
        width,
        hidden: width,
        step: 2,
        first: Some(Box::new(first.clone())),
        ..first
    })
}

/// The second encoder is CLIP, whose class becomes no feature.
fn with_clip(keys: &Keys<'_>, first: VisionSpec) -> Result<VisionSpec, Error> {
    let family = VisionFamily::DeepSeekOcr;
    let heads = ("vision_config.width.clip-l-14-224.heads", 16);
    let spec = second(keys, family, heads, first)?;
    let own = Tensors::of(keys, family);
    let [places, _] = own.matrix(own.names.position, 0)?;
    let side = places.saturating_sub(1).isqrt();
    Ok(VisionSpec {
        eps: 1e-5,
        act: VisionAct::QuickGelu,
        image: side * spec.patch,
        positions: side * side,
        taps: vec![spec.layers, 0],
        class: true,
        line_end: true,
        ..spec
    })
}

/// The second encoder is a language model, whose queries become features.
fn with_language_model(keys: &Keys<'_>, first: VisionSpec) -> Result<VisionSpec, Error> {
    let family = VisionFamily::DeepSeekOcr2;
    let heads = ("vision_config.encoder_config.num_attention_heads", 14);
    let spec = second(keys, family, heads, first)?;
    let own = Tensors::of(keys, family);
    let [k, _] = own.matrix(own.names.k, 0)?;
    let (dim, heads) = (spec.dim, spec.heads);
    let kv_heads = (k / (dim / heads).max(1)).max(1);
    if !dim.is_multiple_of(heads) || !heads.is_multiple_of(kv_heads) {
        let problem = format!("{heads} heads over {kv_heads} of {dim} values");
        return Err(keys.error("vision encoder", problem));
    }
    let sets = own.names.queries.queries.iter();
    let sets = sets.map(|name| Ok(own.shape(name, [MOST_QUERIES, MOST_DIM])?[0]));
    let query_sets = sets.collect::<Result<Vec<u32>, Error>>()?;
    let number = |key: &str, default: f64| {
        let key = format!("vision_config.encoder_config.{key}");
        keys.positive(&key, Some(default))
    };
    Ok(VisionSpec {
        kv_heads,
        eps: number("rms_norm_eps", 1e-6)? as f32,
        rms: true,
        gated: true,
        act: VisionAct::Silu,
        theta: number("rope_parameters.rope_theta", 1e6)? as f32,
        queries: query_sets.iter().copied().max().unwrap_or(0),
        query_sets,
        ..spec
    })
}
