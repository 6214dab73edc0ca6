//! The architectures, one file each, and their list.

mod afmoe;
mod apertus;
mod architecture;
mod bailing;
mod bert;
mod cohere2;
mod deci;
mod deepseek;
mod deepseek2;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone4;
mod falcon_h1;
mod flint;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_hybrid;
mod granite_swa;
mod hunyuan;
mod hy_v3;
mod hy_v4;
mod internlm2;
mod jamba;
mod kimi_linear;
mod laguna;
mod lfm2;
mod lfm3;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod mellum;
mod mimo2;
mod minicpm;
mod minimax_m2;
mod minimax_m3;
mod ministral3;
mod mixtral;
mod modernbert;
mod muse_glimmer;
mod nemotron_h;
mod olmo2;
mod paddleocr;
mod phi2;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl;
mod seed_oss;
mod smollm3;
mod squared_relu;
mod stablelm;
mod starcoder2;
mod step35;

pub(crate) use architecture::{Architecture, layer_types, window_pattern};
pub(crate) use deepseek2::has_indexer;
pub(crate) use gemma4::GEMMA4_ASSISTANT;

use crate::Error;
use crate::keys::Keys;
use welte_formats::checkpoint::{Checkpoint, Dialect};

const ALL: [&Architecture; 98] = [
    &llama::LLAMA,
    &llama::IQUEST_CODER,
    &llama4::LLAMA4,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3_moe::QWEN3_MOE,
    &qwen3_next::QWEN3_NEXT,
    &qwen3_next::QWEN3_5,
    &qwen3_vl::QWEN3_VL,
    &qwen3_vl::QWEN3_VL_MOE,
    &paddleocr::PADDLEOCR,
    &lfm2::LFM2,
    &lfm2::LFM2_MOE,
    &lfm3::LFM3,
    &granite_hybrid::GRANITE_HYBRID,
    &nemotron_h::NEMOTRON_H,
    &kimi_linear::KIMI_LINEAR,
    &mamba::MAMBA,
    &jamba::JAMBA,
    &mixtral::MIXTRAL,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::VAULT_GEMMA,
    &gemma::GEMMA3,
    &gemma3n::GEMMA3N,
    &gemma4::GEMMA4,
    &gemma4::EMBEDDING_GEMMA2,
    &phi3::PHI3,
    &phimoe::PHIMOE,
    &olmo2::OLMO2,
    &smollm3::SMOLLM3,
    &gpt_oss::GPT_OSS,
    &bert::BERT,
    &bert::ROBERTA,
    &bert::DISTILBERT,
    &bert::NOMIC_BERT,
    &bert::NOMIC_BERT_MOE,
    &bert::JINA_V3,
    &bert::JINA_V2,
    &bert::JINA_V2_CODE,
    &eurobert::EUROBERT,
    &eurobert::LLAMA_EMBED,
    &modernbert::MODERNBERT,
    &gemma::EMBEDDING_GEMMA,
    &ministral3::MINISTRAL3,
    &cohere2::COHERE2,
    &starcoder2::STARCODER2,
    &gptneox::GPTNEOX,
    &exaone4::EXAONE4,
    &seed_oss::SEED_OSS,
    &ernie4_5::ERNIE4_5,
    &hunyuan::HUNYUAN,
    &apertus::APERTUS,
    &granite::GRANITE,
    &granite::HYPERCLOVAX,
    &glm4::GLM4,
    &glm4_moe::GLM4_MOE,
    &ernie4_5_moe::ERNIE4_5_MOE,
    &deepseek::DEEPSEEK,
    &deepseek2::DEEPSEEK2,
    &deepseek2::DEEPSEEK32,
    &deepseek::DOTS1,
    &qwen3_moe::QWEN2_MOE,
    &olmo2::OLMOE,
    &olmo2::OLMO,
    &olmo2::FLEX_OLMO,
    &granite::GRANITE_MOE,
    &minicpm::MINICPM,
    &minicpm::MINICPM3,
    &squared_relu::ARCEE,
    &squared_relu::NEMOTRON,
    &squared_relu::JAIS2,
    &minimax_m2::MINIMAX_M2,
    &minimax_m3::MINIMAX_M3,
    &bailing::BAILING,
    &bailing::BAILING2,
    &hunyuan::HUNYUAN_MOE,
    &exaone4::EXAONE_MOE,
    &exaone4::EXAONE,
    &glm4::GLM,
    &falcon_h1::FALCON_H1,
    &afmoe::AFMOE,
    &laguna::LAGUNA,
    &step35::STEP35,
    &mimo2::MIMO2,
    &mamba2::MAMBA2,
    &hy_v3::HY_V3,
    &hy_v4::HY_V4,
    &deci::DECI,
    &mellum::MELLUM,
    &stablelm::STABLELM,
    &phi2::PHI2,
    &internlm2::INTERNLM2,
    &cohere2::COHERE,
    &cohere2::COHERE2_MOE,
    &muse_glimmer::MUSE_GLIMMER,
    &granite_swa::GRANITE_SWA,
    &flint::FLINT,
];

/// The names of supported architectures in checkpoints.
pub fn supported() -> Vec<&'static str> {
    let mut names: Vec<_> = ALL
        .iter()
        .flat_map(|a| a.gguf.iter().chain(a.hugging_face))
        .copied()
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Architecture {
    pub(crate) fn all() -> impl Iterator<Item = &'static Architecture> {
        ALL.into_iter()
    }

    /// The architecture with this name in a [`ModelSpec`].
    pub(crate) fn by_name(name: &str) -> Option<&'static Architecture> {
        ALL.into_iter().find(|a| a.name == name)
    }

    /// The checkpoint's architecture, and its name in the checkpoint.
    pub(crate) fn of(
        checkpoint: &dyn Checkpoint,
    ) -> Result<(&'static Architecture, String), Error> {
        let keys = Keys::new(checkpoint, "");
        let Some(said) = keys.text("general.architecture")? else {
            let key = match checkpoint.dialect() {
                Dialect::Gguf => "general.architecture",
                Dialect::HuggingFace => "model_type in config.json",
            };
            return Err(keys.error(key, "is missing; it must name the architecture"));
        };
        let said = match said {
            "bailing_moe" if keys.bool("use_qk_norm")? == Some(true) => "bailing_moe_v2",
            "nomic_bert" if keys.u32("moe_every_n_layers")?.unwrap_or(0) > 0 => "nomic_bert_moe",
            // Jina v3, as it was published.
            "xlm-roberta" if keys.text("position_embedding_type")? == Some("rotary") => {
                "jina_embeddings_v3"
            }
            "bert" if checkpoint.dialect() == Dialect::HuggingFace => bert::kind_of(&keys)?,
            other => other,
        };
        let known = |said: &str| {
            ALL.into_iter().find(|a| match checkpoint.dialect() {
                Dialect::Gguf => a.gguf.contains(&said),
                Dialect::HuggingFace => a.hugging_face.contains(&said),
            })
        };
        // A multimodal model may say what its language model is.
        let text = match said {
            "minicpmv" => Some(minicpm_v(&keys)?),
            "qwen3_asr" => Some("qwen3"),
            "glmasr" => Some("llama"),
            "lfm2_audio" | "lfm_audio" => Some("lfm2"),
            // DeepSeek-OCR. DeepSeek-VL2 has latents.
            "deepseek_vl_v2" if keys.bool("use_mla")? == Some(false) => Some("deepseek"),
            _ => keys.text("text_config.model_type")?,
        };
        match known(said).or_else(|| known(text?)) {
            Some(a) => Ok((a, said.to_string())),
            None => Err(unsupported(checkpoint, said)),
        }
    }
}

/// The language model of a MiniCPM-V, whose configuration has its keys.
fn minicpm_v(keys: &Keys<'_>) -> Result<&'static str, Error> {
    let version = keys.f64("version")?;
    let known = [(2.6, "qwen2"), (4.0, "llama"), (4.5, "qwen3")];
    let found = known.into_iter().find(|(own, _)| Some(*own) == version);
    let problem = "is not supported; supported are 2.6, 4.0 and 4.5";
    found
        .map(|(_, name)| name)
        .ok_or_else(|| keys.error("version", problem))
}

pub(crate) fn unsupported(checkpoint: &dyn Checkpoint, name: &str) -> Error {
    if name == crate::speech::ARCHITECTURE {
        return Error::Speech {
            origin: checkpoint.origin().into(),
        };
    }
    // A hostile name must not fill the terminal.
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    Error::Architecture {
        origin: checkpoint.origin().into(),
        name,
        supported: supported().join(", "),
    }
}
