//! LFM2-Audio and GLM-ASR: how they are asked, what their configurations may say, and where answers end.

use super::*;

const CHAT: [&str; 4] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|reserved_123|>",
];

/// The configuration of a golden with a change.
fn edited(name: &str, edit: impl FnOnce(&mut Value)) -> welte_goldens::Golden {
    let golden = welte_goldens::Golden::new(&format!("hearing/{name}/hf"));
    let file = golden.path().join("config.json");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    edit(&mut config);
    std::fs::write(&file, config.to_string()).expect("the configuration");
    golden
}

fn refused(name: &str, path: [&str; 2], value: Value, said: &str) {
    let golden = edited(name, |config| config[path[0]][path[1]] = value);
    let source = golden.path().to_str().expect("a path");
    let error = Hearing::open(source, &VisionOptions::default());
    let error = error.expect_err(said).to_string();
    let key = path.join(".");
    assert!(error.contains(&key) && error.contains(said), "{error}");
}

/// What would make another spectrogram, or another encoder, is refused by its key.
#[test]
fn settings_that_are_not_supported_are_named() {
    let preprocessor =
        |key, value: Value, said| refused("lfm2_audio", ["preprocessor", key], value, said);
    preprocessor("pad_to", 16.into(), "is 16; the encoder takes 0");
    preprocessor("features", 80.into(), "the encoder takes 24");
    preprocessor("normalize", "all_features".into(), "takes per_feature");
    preprocessor("window_stride", 0.02.into(), "takes 0.01");
    let encoder = |key, value: Value, said| refused("lfm2_audio", ["encoder", key], value, said);
    encoder("subsampling", "striding".into(), "supported is dw_striding");
    encoder("subsampling_factor", 4.into(), "is 4; supported is 8");
    encoder("causal_downsampling", true.into(), "must be false");
    encoder("untie_biases", false.into(), "must be true");
    encoder(
        "att_context_size",
        serde_json::json!([70, 13]),
        "limits what rows see",
    );
    encoder(
        "att_context_size",
        serde_json::json!([[70, 13]]),
        "limits what rows see",
    );
    encoder(
        "conv_context_size",
        serde_json::json!([4, 0]),
        "is not supported",
    );
    encoder("d_model", 50.into(), "3 heads of 50 values");
    let glm = |key, value: Value, said| refused("glm_asr", ["audio_config", key], value, said);
    glm("num_key_value_heads", 1.into(), "is 1; must be 2");
    glm("hidden_act", "relu".into(), "supported is gelu");
}

/// A sound of LFM2-Audio stands where transformers writes its token, and a sound that lasts too long is refused.
#[test]
fn lfm2_audio_hears_two_minutes() {
    let golden = welte_goldens::Golden::new("hearing/lfm2_audio/hf");
    let hearing = open(golden.path(), "reference", 1280);
    assert_eq!(hearing.placeholder(), "<|reserved_123|>");
    let count = |samples: u64| Ok::<_, welte::Error>(hearing.hear(&sound(samples))?.features());
    // A frame more than steps, eight of which become a feature.
    assert_eq!(
        [160, 1119, 1120].map(|n| count(n).expect("a sound")),
        [1, 1, 1]
    );
    assert_eq!([1279, 1280].map(|n| count(n).expect("a sound")), [1, 2]);
    let error = count(159).expect_err("too short").to_string();
    assert!(error.contains("too short"), "{error}");
    let error = count(121 * 16_000).expect_err("too long").to_string();
    assert!(error.contains("hears 120 s at once"), "{error}");
}

/// LFM2-Audio would go on in sound after a token, at which answers end.
#[test]
fn answers_of_lfm2_audio_end_where_sound_begins() {
    let golden = with_letters("lfm2_audio", TEXT, &CHAT);
    let model = load(&golden, &listening(Images::Beside));
    let tokenizer = model.tokenizer().expect("a vocabulary");
    let token = tokenizer.id_of("<|audio_start|>").expect("a token");
    assert!(
        model.end_tokens().contains(&token),
        "{:?}",
        model.end_tokens()
    );
    // It is a mark of prompts for others.
    let golden = with_letters("qwen3_asr", TEXT, &CHAT);
    let model = load(&golden, &listening(Images::Beside));
    assert!(
        !model.end_tokens().contains(&token),
        "{:?}",
        model.end_tokens()
    );
}

#[test]
fn both_are_asked_for_a_transcript() {
    let golden = with_letters("lfm2_audio", TEXT, &CHAT);
    let model = load(&golden, &listening(Images::Beside));
    let around = model.dictation(None, None).expect("a prompt");
    let [before, after] = around.map(|tokens| spelled(&model, &tokens));
    assert_eq!(
        [before.as_str(), after.as_str()],
        [
            "<|im_start|>system\nPerform ASR.<|im_end|>\n<|im_start|>user\n",
            "<|im_end|>\n<|im_start|>assistant\n"
        ]
    );
    for (language, prompt, field) in [
        (Some("en"), None, "language"),
        (None, Some("names"), "prompt"),
    ] {
        let error = model
            .dictation(language, prompt)
            .expect_err(field)
            .to_string();
        assert!(error.contains(field), "{error}");
    }
    let marks = [
        "<|user|>",
        "<|assistant|>",
        "<|begin_of_audio|>",
        "<|end_of_audio|>",
        "<|pad|>",
    ];
    let golden = with_letters("glm_asr", TEXT, &marks);
    let model = load(&golden, &listening(Images::Beside));
    let around = model.dictation(None, None).expect("a prompt");
    let [before, after] = around.map(|tokens| spelled(&model, &tokens));
    assert_eq!(
        [before.as_str(), after.as_str()],
        [
            "<|user|>\n",
            "<|user|>\nPlease transcribe this audio into text<|assistant|>\n"
        ]
    );
    // The sound itself has marks of its own.
    let template = model.chat_template().expect("a template");
    let prompt = model.encode_conversation(&template, &[asked(&[1], &[sound(7001)])]);
    let prompt = prompt.expect("a prompt");
    let tokenizer = model.tokenizer().expect("a vocabulary");
    let [begin, end] = [marks[2], marks[3]].map(|mark| tokenizer.id_of(mark).expect("a token"));
    let [a, b, c, space] =
        ["a", "b", "c", "\u{120}"].map(|one| tokenizer.id_of(one).expect("a letter"));
    let wanted = [vec![a, begin], vec![0; 5], vec![end, b, space, c]].concat();
    assert_eq!(shape(&prompt), wanted);
}

/// A directory that says what its class is, and one that says its kind as MLX does.
#[test]
fn lfm2_audio_has_two_names() {
    let spec = |golden: &welte_goldens::Golden| {
        let checkpoint = welte_formats::open(golden.path()).expect("a checkpoint");
        let spec = welte_models::spec(&*checkpoint).expect("a language model");
        let program = welte_models::compile(&spec, &*checkpoint, &CompileOptions::default());
        let hearing = welte_models::hearing_spec(&*checkpoint).expect("an encoder");
        (
            spec.layers,
            program.expect("a program").weights.len(),
            hearing.is_some(),
        )
    };
    let golden = welte_goldens::Golden::new("hearing/lfm2_audio/hf");
    let other = edited("lfm2_audio", |config| {
        config["model_type"] = "lfm_audio".into()
    });
    assert_eq!(spec(&golden), spec(&other));
    assert_eq!((spec(&golden).0, spec(&golden).2), (3, true));
}
