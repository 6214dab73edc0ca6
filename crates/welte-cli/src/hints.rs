//! What a user can do about an error, in terms of flags. The engine's errors name numbers and no flags.

use welte::{Error, Sampling};
use welte_device::Error as DeviceError;

/// The error with its causes and a hint, on one line.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    // A cause that the text already contains is not repeated.
    let causes = error.chain().map(ToString::to_string);
    let text = causes.fold(String::new(), |text, cause| match text {
        _ if text.is_empty() => cause,
        _ if text.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    });
    let engine = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Error>());
    match engine.and_then(hint) {
        Some(hint) => format!("{text}; {hint}"),
        None => text,
    }
}

/// What a user can do about an error of the engine.
pub(crate) fn hint(error: &Error) -> Option<String> {
    let text = match error {
        Error::Device(error) => return device_hint(error),
        Error::Fault(error) => return device_hint(error),
        Error::UnknownDevice { .. } => "choose one with --device",
        Error::Unsupported { device, .. } if device.kind != "cpu" => "try --device cpu",
        Error::Memory {
            fits_context,
            fits_cpu_experts,
            ..
        } if fits_context.is_some() || fits_cpu_experts.is_some() => {
            let experts = fits_cpu_experts.map(|layers| format!("--cpu-experts {layers}"));
            let context = fits_context.map(|context| format!("-c {context}"));
            let flags: Vec<String> = context.into_iter().chain(experts).collect();
            return Some(format!("try {}", flags.join(" or ")));
        }
        Error::NoExperts { .. } => "leave --cpu-experts out",
        Error::ExpertsOnCpu => "leave --cpu-experts out, or name a GPU with --device",
        Error::Memory { .. } => "use a smaller quantisation, or --ignore-memory to load it anyway",
        Error::CacheFormat { .. } => "use -ctk and -ctv with f16 or q8_0",
        Error::Sampling { field, .. } => {
            let flag = Sampling::option(field)?.flags[0];
            return Some(format!("change --{flag}"));
        }
        Error::EmptyStopString => "remove the empty --stop",
        Error::EmptyBreaker => "remove the empty --dry-sequence-breaker",
        Error::NoText { .. } => "use `welte embed` or `welte rerank`",
        Error::NoScores { .. } => "name a reranker; `welte embed` has vectors of any model",
        Error::ContextFull { prompt, .. } => {
            let enough = prompt.saturating_add(256).next_multiple_of(256);
            return Some(format!("shorten the prompt, or try -c {enough}"));
        }
        Error::EmptyPrompt => "give a prompt of at least one token",
        Error::Token { .. } => "the tokenizer may belong to another model",
        Error::NoTokenizer { .. } => {
            "use a file with a vocabulary; only `welte bench` and `welte profile` need none"
        }
        Error::NoChatTemplate { .. } => {
            "give one with --chat-template-file, or complete the raw text with --no-chat"
        }
        Error::ChunkSize { context, .. } => return Some(format!("use -c with 4 to {context}")),
        Error::TooShort { .. } => "use a longer text or a smaller -c",
        Error::VocabularyMismatch { .. } => "name a model of the same vocabulary with --kl-to",
        _ => return None,
    };
    Some(text.to_string())
}

fn device_hint(error: &DeviceError) -> Option<String> {
    let text = match error {
        DeviceError::Unavailable { device, .. } | DeviceError::Program { device, .. }
            if device.kind != "cpu" =>
        {
            "try --device cpu, or --device auto to use what is present; `welte doctor` shows what is missing"
        }
        DeviceError::OutOfMemory { .. } => "try a smaller -c, or -ctk q8_0 -ctv q8_0",
        DeviceError::Request(_) => "please report this as a bug",
        DeviceError::Failed { device, .. } if device.kind == "cuda" => {
            "if it happens again, try --replay graph or --device cpu"
        }
        _ => return None,
    };
    Some(text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use welte::{DeviceId, Format};

    const CPU: DeviceId = DeviceId::only("cpu");
    const CUDA: DeviceId = DeviceId::numbered("cuda", 1);

    /// The hint of an error, and nothing else.
    fn of(error: Error) -> String {
        let text = error.to_string();
        let explained = explain(&error.into());
        let hint = explained.strip_prefix(&text).unwrap();
        hint.strip_prefix("; ").unwrap_or(hint).to_string()
    }

    fn memory(fits_context: Option<u32>, fits_cpu_experts: Option<u32>) -> Error {
        Error::Memory {
            origin: "m.gguf".into(),
            device: CPU,
            need: 9 << 30,
            have: 8 << 30,
            fits_context,
            fits_cpu_experts,
            dealt: None,
        }
    }

    #[test]
    fn errors_of_the_engine_have_remedies() {
        let origin = || "m.gguf".to_string();
        for (error, hint) in [
            (
                "abacus".parse::<welte::DeviceChoice>().unwrap_err(),
                "choose one with --device",
            ),
            (
                Error::Unsupported {
                    origin: origin(),
                    device: CUDA,
                    what: "experts".into(),
                },
                "try --device cpu",
            ),
            (
                Error::Unsupported {
                    origin: origin(),
                    device: CPU,
                    what: "experts".into(),
                },
                "",
            ),
            (
                Error::Program {
                    origin: origin(),
                    problem: "a cycle".into(),
                },
                "",
            ),
            (
                Error::File {
                    path: "a.json".into(),
                    problem: "is not JSON".into(),
                },
                "",
            ),
            (memory(Some(2048), None), "try -c 2048"),
            (memory(None, Some(23)), "try --cpu-experts 23"),
            (
                memory(Some(2048), Some(23)),
                "try -c 2048 or --cpu-experts 23",
            ),
            (
                Error::NoExperts { origin: origin() },
                "leave --cpu-experts out",
            ),
            (
                Error::ExpertsOnCpu,
                "leave --cpu-experts out, or name a GPU with --device",
            ),
            (
                memory(None, None),
                "use a smaller quantisation, or --ignore-memory to load it anyway",
            ),
            (
                Error::CacheFormat {
                    format: Format::Q4_0,
                },
                "use -ctk and -ctv with f16 or q8_0",
            ),
            (Error::Bias { token: 1 }, ""),
            (Error::EmptyStopString, "remove the empty --stop"),
            (
                Error::ContextFull {
                    prompt: 300,
                    context: 256,
                },
                "shorten the prompt, or try -c 768",
            ),
            (Error::EmptyPrompt, "give a prompt of at least one token"),
            (
                Error::Token { token: 9, vocab: 8 },
                "the tokenizer may belong to another model",
            ),
            (
                Error::NoTokenizer { origin: origin() },
                "use a file with a vocabulary; only `welte bench` and `welte profile` need none",
            ),
            (
                Error::NoChatTemplate { origin: origin() },
                "give one with --chat-template-file, or complete the raw text with --no-chat",
            ),
            (
                Error::ChunkSize {
                    chunk: 2,
                    context: 512,
                },
                "use -c with 4 to 512",
            ),
            (
                Error::TooShort {
                    tokens: 3,
                    chunk: 512,
                },
                "use a longer text or a smaller -c",
            ),
            (
                Error::VocabularyMismatch { own: 1, base: 2 },
                "name a model of the same vocabulary with --kl-to",
            ),
        ] {
            assert_eq!(of(error), hint);
        }
    }

    #[test]
    fn sampling_parameters_have_their_flags() {
        for (field, flag) in [("temperature", "--temp"), ("typical_p", "--typical")] {
            let error = Error::Sampling {
                field,
                value: f32::NAN,
                range: welte::Range::default(),
            };
            assert_eq!(of(error), format!("change {flag}"));
        }
    }

    #[test]
    fn errors_of_devices_have_remedies() {
        let missing = |device| DeviceError::Unavailable {
            device,
            why: "no driver".into(),
        };
        let elsewhere = "try --device cpu, or --device auto to use what is present; `welte doctor` shows what is missing";
        let failed = |device| DeviceError::Failed {
            device,
            source: "stuck".into(),
        };
        for (error, hint) in [
            (missing(CUDA), elsewhere),
            (missing(CPU), ""),
            (
                DeviceError::Program {
                    device: CUDA,
                    why: "too many heads".into(),
                },
                elsewhere,
            ),
            (
                DeviceError::OutOfMemory {
                    device: CUDA,
                    what: "the cache".into(),
                    bytes: 1,
                    free: None,
                },
                "try a smaller -c, or -ctk q8_0 -ctv q8_0",
            ),
            (
                DeviceError::Request("slot 3".into()),
                "please report this as a bug",
            ),
            (
                failed(CUDA),
                "if it happens again, try --replay graph or --device cpu",
            ),
            (failed(CPU), ""),
        ] {
            assert_eq!(of(Error::Device(error)), hint);
        }
    }

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::Error::from(Error::EmptyPrompt).context("reading p.txt");
        assert_eq!(
            explain(&error),
            "reading p.txt: the prompt has no tokens; give a prompt of at least one token"
        );
        let same = anyhow::anyhow!("a: b is wrong");
        assert_eq!(explain(&same), "a: b is wrong");
        let same = anyhow::anyhow!("b is wrong").context("a: b is wrong");
        assert_eq!(explain(&same), "a: b is wrong");
    }
}
