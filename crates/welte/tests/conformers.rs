//! Models that hear with a conformer: their place in prompts, what they refuse, and the adapter of Granite Speech. Their features are
//! compared in `hearing.rs`.

use serde_json::{Value, json};
use std::path::Path;
use welte::{
    AdapterSource, DeviceChoice, Engine, EngineOptions, Image, ImageSource, Images, LoadOptions,
    Message, Model, Prompt, Request,
};

fn sound(count: u64) -> Vec<f32> {
    let sample = |n: u64| (n as f32 * 0.05).sin() * 0.4 + (n as f32 * 0.011).sin() * 0.2;
    (0..count).map(sample).collect()
}

/// A WAV file of floats at 16 kHz.
fn wav(samples: &[f32]) -> Vec<u8> {
    let size = 4 * samples.len() as u32;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + size).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    bytes.extend([3u16, 1].map(u16::to_le_bytes).concat());
    bytes.extend([16_000u32, 64_000].map(u32::to_le_bytes).concat());
    bytes.extend([4u16, 32].map(u16::to_le_bytes).concat());
    bytes.extend(b"data");
    bytes.extend(size.to_le_bytes());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes
}

/// A golden with a vocabulary of letters and of these marks.
fn golden(name: &str, marks: &[&str]) -> welte_goldens::Golden {
    let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
    let mark = |(number, content): (usize, &&str)| {
        json!({
            "id": 136 + number, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    // Letters of bytes: those that can be printed, a space and a line's end.
    let letters = (0x21..0x7f).map(|code: u8| char::from(code).to_string());
    let letters = letters.chain(["\u{120}".to_string(), "\u{10a}".to_string()]);
    let vocab: serde_json::Map<String, Value> = letters
        .zip(40..)
        .map(|(letter, id): (String, u32)| (letter, id.into()))
        .collect();
    let tokenizer = json!({
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        "added_tokens": marks.iter().enumerate().map(mark).collect::<Vec<_>>(),
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true },
    });
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for (file, text) in [
        ("tokenizer.json", tokenizer.to_string()),
        ("chat_template.jinja", template.to_string()),
    ] {
        std::fs::write(golden.path().join(file), text).expect("a file");
    }
    golden
}

const GRANITE: [&str; 4] = [
    "<|audio|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|end_of_text|>",
];

fn options() -> LoadOptions {
    let mut options = LoadOptions::default();
    (options.device, options.context) = (DeviceChoice::CPU, 512);
    options.images = Images::Beside;
    options
}

fn load(golden: &welte_goldens::Golden, options: &LoadOptions) -> Model {
    let source = golden.path().to_str().expect("a path");
    Model::load(source, options, &mut |_| ()).unwrap_or_else(|e| panic!("{source}: {e}"))
}

/// The tokens of letters and marks.
fn spelled(model: &Model, text: &str) -> Vec<u32> {
    let tokenizer = model.tokenizer().expect("a vocabulary");
    tokenizer.encode(text, false, true).expect("tokens")
}

/// A question with a sound after its first letter.
fn asked(model: &Model, samples: u64) -> Prompt {
    let image = Image {
        at: 1,
        source: ImageSource::Sound(wav(&sound(samples)).into()),
        name: "a sound".into(),
    };
    let message = Message {
        images: vec![image],
        ..Message::new("user", "abc")
    };
    let template = model.chat_template().expect("a template");
    let prompt = model.encode_conversation(&template, &[message]);
    prompt.expect("a prompt")
}

#[test]
fn conformers_have_their_marks_around_sounds() {
    let audio = ["<|audio|>", "<|audio>", "<audio|>"];
    let soft = ["<audio_soft_token>", "<start_of_audio>", "<end_of_audio>"];
    let around = [
        ("\n\n<start_of_audio>", "<end_of_audio>\n\n"),
        ("<|audio>", "<audio|>"),
        ("", ""),
    ];
    for ((name, marks, rows), (before, after)) in [
        ("gemma3n", &soft[..], 188),
        // 31 frames, every fourth of which becomes a row.
        ("gemma4", &audio[..], 8),
        // 16 states in three windows of two features.
        ("granite_speech", &GRANITE[..], 6),
    ]
    .into_iter()
    .zip(around)
    {
        let model = load(&golden(name, marks), &options());
        let prompt = asked(&model, 4962);
        let mut tokens = prompt.tokens.clone();
        for medium in &prompt.media {
            tokens[medium.at..medium.at + medium.medium.rows()].fill(0);
        }
        let wanted = [
            spelled(&model, &format!("a{before}")),
            vec![0; rows],
            spelled(&model, &format!("{after}bc")),
        ];
        assert_eq!(tokens, wanted.concat(), "{name}");
        let own = wanted.iter().map(Vec::len).sum::<usize>() - rows;
        assert_eq!(
            own,
            3 + if name == "granite_speech" {
                0
            } else if name == "gemma4" {
                2
            } else {
                6
            }
        );
    }
}

/// A configuration with another value for a key.
fn changed(path: &Path, key: &str, value: Value) {
    let file = path.join("config.json");
    let text = std::fs::read_to_string(&file).expect("a file");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    let pointer = format!("/{}", key.replace('.', "/"));
    match config.pointer_mut(&pointer) {
        Some(place) => *place = value,
        None => config[key] = value,
    }
    std::fs::write(&file, config.to_string()).expect("a file");
}

#[test]
fn configurations_that_are_not_supported_name_their_key() {
    for (name, key, value, said) in [
        (
            "gemma4",
            "audio_config.hidden_size",
            json!(0),
            "is 0; must be from 1",
        ),
        (
            "gemma4",
            "audio_config.num_attention_heads",
            json!(5),
            "5 heads of 48",
        ),
        (
            "gemma4",
            "audio_config.attention_context_right",
            json!(2),
            "must be 0",
        ),
        (
            "gemma4",
            "audio_config.attention_context_left",
            json!(2),
            "is 2 for chunks of 6",
        ),
        (
            "gemma4",
            "audio_config.hidden_act",
            json!("gelu"),
            "supported is silu",
        ),
        (
            "gemma4",
            "audio_config.gradient_clipping",
            json!(10.0),
            "limits values",
        ),
        (
            "gemma4",
            "audio_config.attention_logit_cap",
            json!(-1.0),
            "must be above 0",
        ),
        (
            "gemma4",
            "audio_config.subsampling_conv_channels",
            json!([16]),
            "two numbers",
        ),
        (
            "gemma4",
            "audio_config.subsampling_conv_channels",
            json!([3, 8]),
            "stands for 0 pitches",
        ),
        (
            "gemma3n",
            "audio_config.sscp_conv_stride_size",
            json!([[2, 2], [1, 2]]),
            "must be [2, 2]",
        ),
        (
            "gemma3n",
            "audio_config.conf_conv_kernel_size",
            json!(1000),
            "must be from 1 to 64",
        ),
        (
            "gemma3n",
            "audio_soft_tokens_per_image",
            json!(100),
            "has up to 188",
        ),
        (
            "granite_speech",
            "encoder_config.context_size",
            json!(25),
            "there are 24 distances",
        ),
        (
            "granite_speech",
            "encoder_config.input_dim",
            json!(33),
            "two frames",
        ),
        (
            "granite_speech",
            "downsample_rate",
            json!(4),
            "must divide a window of 6",
        ),
        (
            "granite_speech",
            "projector_config.hidden_size",
            json!(96),
            "the encoder makes 48",
        ),
        (
            "granite_speech",
            "projector_config.model_type",
            json!("bert"),
            "supported is blip_2_qformer",
        ),
        (
            "granite_speech",
            "projector_config.num_attention_heads",
            json!(5),
            "must divide 48",
        ),
    ] {
        let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
        changed(golden.path(), key, value);
        let error = welte::hears(
            golden.path().to_str().expect("a path"),
            &welte::Images::Beside,
        );
        let error = error.expect_err(key).to_string();
        let last = key.rsplit('.').next().expect("a name");
        assert!(error.contains(said), "{key}: {error}");
        let named = error.contains(last) || error.contains("audio_config.hidden_size");
        assert!(named, "{key}: {error}");
    }
}

/// Sizes that the tensors do not have.
#[test]
fn tensors_that_do_not_fit_are_named() {
    for (name, key, value, said) in [
        (
            "gemma4",
            "audio_config.num_hidden_layers",
            json!(3),
            "audio_tower.layers.2.",
        ),
        (
            "gemma4",
            "audio_config.conv_kernel_size",
            json!(3),
            "depthwise_conv1d",
        ),
        (
            "gemma3n",
            "audio_config.conf_num_hidden_layers",
            json!(3),
            "audio_tower.conformer.2.",
        ),
        (
            "gemma3n",
            "audio_config.vocab_size",
            json!(12),
            "embed_audio.embedding",
        ),
        (
            "granite_speech",
            "encoder_config.max_pos_emb",
            json!(30),
            "rel_pos_emb",
        ),
        (
            "granite_speech",
            "encoder_config.output_dim",
            json!(12),
            "encoder.out",
        ),
        ("granite_speech", "window_size", json!(9), "projector.query"),
    ] {
        let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
        changed(golden.path(), key, value);
        let source = golden.path().to_str().expect("a path");
        let error = welte::Hearing::open(source, &welte::VisionOptions::default());
        let error = error.expect_err(key).to_string();
        assert!(error.contains(said), "{key}: {error}");
    }
}

#[test]
fn processors_of_conformers_that_do_not_fit_are_refused() {
    for (name, settings, said) in [
        (
            "gemma4",
            json!({ "frame_length": 400 }),
            "frame_length: is 400; the encoder takes 320",
        ),
        (
            "gemma4",
            json!({ "feature_size": 128 }),
            "feature_size: is 128; the encoder takes 16",
        ),
        (
            "gemma4",
            json!({ "fft_overdrive": true }),
            "fft_overdrive: is true",
        ),
        (
            "gemma3n",
            json!({ "preemphasis": 0.0 }),
            "preemphasis: is 0.0; the encoder takes 0.97",
        ),
        (
            "gemma3n",
            json!({ "per_bin_mean": [1.0] }),
            "per_bin_mean: is not supported",
        ),
        (
            "granite_speech",
            json!({ "melspec_kwargs": { "n_fft": 400 } }),
            "melspec_kwargs.n_fft: is 400; the encoder takes 512",
        ),
    ] {
        let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
        let own = golden.path().join("preprocessor_config.json");
        std::fs::remove_file(&own).expect("the file");
        let source = golden.path().to_str().expect("a path");
        let open = || welte::Hearing::open(source, &welte::VisionOptions::default());
        assert!(open().expect("an encoder").is_some(), "{name}");
        let inner = json!({ "feature_extractor": settings });
        let other = golden.path().join("processor_config.json");
        for (file, text) in [(&own, &settings), (&other, &inner)] {
            std::fs::write(file, text.to_string()).expect("a file");
            let error = open().expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
            std::fs::remove_file(file).expect("the file");
        }
    }
}

#[test]
fn sounds_that_a_conformer_cannot_hear_are_refused() {
    for (name, short, long, most) in [
        ("gemma3n", 400, 480_001, 30),
        ("gemma4", 160, 480_001, 30),
        ("granite_speech", 150, 960_000, 59),
    ] {
        let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
        let source = golden.path().to_str().expect("a path");
        let hearing = welte::Hearing::open(source, &welte::VisionOptions::default());
        let hearing = hearing.expect("an encoder").expect("ears");
        let error = |count| hearing.hear(&sound(count)).expect_err(name).to_string();
        assert!(error(short).contains("too short"), "{}", error(short));
        let said = format!("the model hears {most} s at once");
        assert!(error(long).contains(&said), "{}", error(long));
    }
}

/// Granite Speech is asked in a chat.
#[test]
fn granite_speech_is_asked_for_a_transcript() {
    let model = load(&golden("granite_speech", &GRANITE), &options());
    let [before, after] = model.dictation(None, None).expect("a prompt");
    assert_eq!(
        before,
        spelled(&model, "<|start_of_role|>user<|end_of_role|>")
    );
    assert_eq!(before.len(), 2 + "user".len(), "marks are tokens");
    let wanted = "can you transcribe the speech into a written format?<|end_of_text|>\n\
        <|start_of_role|>assistant<|end_of_role|>";
    assert_eq!(after, spelled(&model, wanted));
    for (language, prompt, said) in [
        (
            Some("en"),
            None,
            "language: 'en' is not a language of this model",
        ),
        (None, Some("names"), "prompt: is not supported"),
    ] {
        let error = model.dictation(language, prompt).expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// A directory's adapter of rank 2 for the queries of the first layer.
fn write_adapter(folder: &Path) {
    let config = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", "bias": "none",
    });
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).expect("a file");
    let module = "base_model.model.language_model.model.layers.0.self_attn.q_proj";
    let values = |count: u32| (0..count).flat_map(|i| ((i % 7) as f32 * 0.2 - 0.5).to_le_bytes());
    let data: Vec<u8> = values(128).chain(values(128)).collect();
    let head = json!({
        format!("{module}.lora_A.weight"): { "dtype": "F32", "shape": [2, 64], "data_offsets": [0, 512] },
        format!("{module}.lora_B.weight"): { "dtype": "F32", "shape": [64, 2], "data_offsets": [512, 1024] },
    });
    let head = head.to_string();
    let head = format!("{head:width$}", width = head.len().next_multiple_of(8));
    let length = (head.len() as u64).to_le_bytes();
    let bytes = [&length, head.as_bytes(), &data].concat();
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).expect("a file");
}

/// Requests with a sound have the directory's adapter, and others have none.
#[test]
fn the_adapter_of_granite_speech_is_for_sounds() {
    let plain = golden("granite_speech", &GRANITE);
    let own = golden("granite_speech", &GRANITE);
    write_adapter(own.path());
    let elsewhere = golden("granite_speech", &GRANITE);
    write_adapter(elsewhere.path());
    let mut named = options();
    named.adapters = vec![AdapterSource {
        name: "other".into(),
        path: elsewhere.path().into(),
        scale: 1.0,
        for_all: false,
    }];
    let answer = |model: &Model, adapter: Option<&str>, samples: Option<u64>| {
        let engine = Engine::new(model, &EngineOptions::default()).expect("an engine");
        let mut request = match samples {
            Some(samples) => {
                let prompt = asked(model, samples);
                let mut request = Request::new(prompt.tokens);
                request.media = prompt.media;
                request
            }
            None => Request::new(spelled(model, "ab")),
        };
        (request.options.max_tokens, request.options.ignore_end) = (4, true);
        request.options.logprobs = Some(0);
        request.options.adapter = adapter.map(|name| engine.adapter(name).expect("the adapter"));
        let mut stream = engine.submit(request).expect("a stream");
        let mut all = Vec::new();
        while let Some(token) = stream.next_token() {
            let token = token.expect("a token");
            let known = stream.take_logprobs();
            all.extend(known.iter().map(|known| (token, known.logprob().to_bits())));
        }
        all
    };
    let [plain, own, named] = [
        load(&plain, &options()),
        load(&own, &options()),
        load(&plain, &named),
    ];
    let with_sound = answer(&own, None, Some(4962));
    assert_eq!(with_sound, answer(&named, Some("other"), Some(4962)));
    assert_ne!(with_sound, answer(&plain, None, Some(4962)));
    assert_eq!(answer(&own, None, None), answer(&plain, None, None));
    assert_ne!(
        answer(&own, Some("speech"), None),
        answer(&plain, None, None)
    );
}
