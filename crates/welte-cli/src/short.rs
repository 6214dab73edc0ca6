//! Short names of common models, and what they are called on the hub.

/// A model: its short name, its name on the hub, and the size of its file in GB.
struct Short {
    name: &'static str,
    hub: &'static str,
    gigabytes: f32,
}

const fn short(name: &'static str, hub: &'static str, gigabytes: f32) -> Short {
    Short {
        name,
        hub,
        gigabytes,
    }
}

/// Checked on 2026-11-28 against public documentation and the code of other projects that download these files: the names of the
/// repositories, and that they have the file. Sizes are rounded. The smallest Qwen 3 and Gemma 3 models are there as Q8_0 only.
const MODELS: [Short; 44] = [
    short("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0", 0.6),
    short("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0", 1.8),
    short("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M", 2.5),
    short("qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M", 5.0),
    short("qwen3:14b", "Qwen/Qwen3-14B-GGUF:Q4_K_M", 9.0),
    short("qwen3:32b", "Qwen/Qwen3-32B-GGUF:Q4_K_M", 19.8),
    short("qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", 18.6),
    short(
        "qwen2.5:0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
        0.5,
    ),
    short(
        "qwen2.5:1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
        1.1,
    ),
    short("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M", 2.1),
    short(
        "qwen2.5:7b",
        "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
        4.7,
    ),
    short(
        "qwen2.5-coder:0.5b",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M",
        0.5,
    ),
    short(
        "qwen2.5-coder:1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M",
        1.1,
    ),
    short(
        "qwen2.5-coder:3b",
        "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF:Q4_K_M",
        2.1,
    ),
    short(
        "qwen2.5-coder:7b",
        "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M",
        4.7,
    ),
    short(
        "qwen2.5-coder:14b",
        "Qwen/Qwen2.5-Coder-14B-Instruct-GGUF:Q4_K_M",
        9.0,
    ),
    short(
        "qwen2.5-coder:32b",
        "Qwen/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M",
        19.9,
    ),
    short("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF:Q8_0", 0.3),
    short("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", 0.8),
    short("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", 2.5),
    short("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M", 7.3),
    short("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF:Q4_K_M", 16.5),
    short("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF:Q4_K_M", 1.7),
    short("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF:Q4_K_M", 5.8),
    short("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", 12.1),
    short("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", 63.4),
    short(
        "llama3.2:1b",
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        0.8,
    ),
    short(
        "llama3.2:3b",
        "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        2.0,
    ),
    short(
        "llama3.1:8b",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        4.9,
    ),
    short(
        "llama3.3:70b",
        "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M",
        42.5,
    ),
    short(
        "mistral:7b",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
        4.4,
    ),
    short(
        "mistral-nemo:12b",
        "bartowski/Mistral-Nemo-Instruct-2407-GGUF:Q4_K_M",
        7.5,
    ),
    short(
        "phi3.5:3.8b",
        "bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M",
        2.4,
    ),
    short("phi4:14b", "bartowski/phi-4-GGUF:Q4_K_M", 9.1),
    short(
        "deepseek-r1:1.5b",
        "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q4_K_M",
        1.1,
    ),
    short(
        "deepseek-r1:7b",
        "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M",
        4.7,
    ),
    short(
        "deepseek-r1:8b",
        "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF:Q4_K_M",
        4.9,
    ),
    short(
        "smollm2:135m",
        "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M",
        0.1,
    ),
    short(
        "smollm2:360m",
        "bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M",
        0.3,
    ),
    short(
        "smollm2:1.7b",
        "bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
        1.1,
    ),
    short("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF:Q4_K_M", 1.9),
    short(
        "tinyllama:1.1b",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:Q4_K_M",
        0.7,
    ),
    short(
        "qwen3-embedding:0.6b",
        "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0",
        0.6,
    ),
    short(
        "nomic-embed-text:v1.5",
        "nomic-ai/nomic-embed-text-v1.5-GGUF:Q4_K_M",
        0.1,
    ),
];

/// The name on the hub of a short name. A family's name alone is its first model in the list.
pub(crate) fn on_hub(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix(":latest").unwrap_or(name);
    let family = |model: &&Short| model.name.split(':').next() == Some(name);
    let exact = MODELS.iter().find(|model| model.name == name);
    let found = exact.or_else(|| MODELS.iter().find(family));
    found.map(|model| model.hub)
}

/// Every short name with the size of its file in GB and its name on the hub.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, f32, &'static str)> {
    MODELS
        .iter()
        .map(|model| (model.name, model.gigabytes, model.hub))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_different_and_lower_case() {
        let names: BTreeSet<&str> = all().map(|(name, _, _)| name).collect();
        assert_eq!(names.len(), MODELS.len());
        for (name, gigabytes, hub) in all() {
            assert!(name.contains(':') && !name.contains('/'), "{name}");
            assert_eq!(name, name.to_lowercase());
            assert!((0.1..100.0).contains(&gigabytes), "{name}");
            assert!(hub.contains("GGUF") && hub.contains('/'), "{hub}");
            #[cfg(feature = "hub")]
            assert!(hub.parse::<welte_hub::ModelName>().is_ok(), "{hub}");
        }
    }

    #[test]
    fn a_family_alone_is_its_first_model() {
        assert_eq!(on_hub("qwen3:4b"), Some("Qwen/Qwen3-4B-GGUF:Q4_K_M"));
        assert_eq!(on_hub("gemma3"), Some("ggml-org/gemma-3-270m-it-GGUF:Q8_0"));
        assert_eq!(on_hub("gemma3:latest"), on_hub("gemma3"));
        assert_eq!(on_hub("gpt-oss:20b"), Some("ggml-org/gpt-oss-20b-GGUF"));
        assert_eq!(on_hub("qwen3:5b"), None);
        assert_eq!(on_hub("hello"), None);
    }
}
