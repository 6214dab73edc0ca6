//! Encoders of sound in files of their own: how they are found, and what else is there.

use super::*;

/// A file without ears that are known, asked for by name: the model says why it hears nothing, or the load fails.
#[test]
fn files_of_other_kinds_are_named() {
    let file = |name: &str| welte_goldens::Golden::new(name);
    let asked = |golden: &welte_goldens::Golden| Images::File(golden.path().to_path_buf());
    let model = |images: Images| {
        // The language model alone.
        let golden = with_vocabulary("qwen2_audio", TEXT);
        let config = golden.path().join("config.json");
        let text = std::fs::read_to_string(&config).expect("the configuration");
        let other = text.replace("\"qwen2_audio\"", "\"other_audio\"");
        std::fs::write(&config, other).expect("the configuration");
        let source = golden.path().to_str().expect("a path");
        let hears = welte::hears(source, &images).expect("an answer");
        let model = Model::load(source, &listening(images), &mut |_| ());
        (model.map_err(|e| e.to_string()), hears)
    };
    let fitting = file("hearing/qwen2_audio/mmproj.gguf");
    let (loaded, hears) = model(asked(&fitting));
    let loaded = loaded.expect("a model");
    assert!(hears && loaded.ears().is_some(), "{:?}", loaded.no_sounds());
    let blind = loaded.no_images().expect("no eyes");
    assert!(blind.contains("no encoder of images"), "{blind}");
    assert!(!model(Images::Beside).1);

    let unknown = file("hearing/qwen2_audio/mmproj.gguf");
    patched(unknown.path(), b"qwen2a", b"qwen9a");
    let (error, hears) = model(asked(&unknown));
    let error = error.expect_err("unknown");
    assert!(!hears && error.contains("mmproj.gguf"), "{error}");
    assert!(
        error.contains("(qwen9a) is not supported; known are Qwen2-Audio"),
        "{error}"
    );

    let images = file("vision/gemma3/mmproj.gguf");
    let (error, hears) = model(asked(&images));
    assert!(!hears && error.is_err());
    let found = Hearing::open(
        images.path().to_str().expect("a path"),
        &VisionOptions::default(),
    );
    assert!(found.expect("no fault").is_none());

    let narrow = file("hearing/qwen2_audio/mmproj.gguf");
    let error = {
        // Of a model whose embeddings have 128 values.
        let golden = file("phi3/hf");
        let from = with_vocabulary("qwen2_audio", TEXT);
        std::fs::copy(
            from.path().join("tokenizer.json"),
            golden.path().join("tokenizer.json"),
        )
        .expect("a vocabulary");
        let source = golden.path().to_str().expect("a path");
        let loaded = Model::load(source, &listening(asked(&narrow)), &mut |_| ());
        loaded.expect_err("another model").to_string()
    };
    assert!(
        error.contains("makes vectors of 64 values, and the model reads 128"),
        "{error}"
    );
}

/// The file beside a GGUF model is found.
#[test]
fn ears_beside_a_file_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    welte_goldens::write("qwen2/f16.gguf", &at("model.gguf"));
    let model = at("model.gguf");
    let source = model.to_str().expect("a path");
    let hears = |images: &Images| welte::hears(source, images).expect("an answer");
    assert!(!hears(&Images::Beside));
    welte_goldens::write("hearing/voxtral/mmproj.gguf", &at("mmproj-model-f16.gguf"));
    assert!(hears(&Images::Beside) && !hears(&Images::Off));
    let plan = Model::inspect(source, &listening(Images::Beside)).expect("a plan");
    let facts = plan.facts();
    let sounds = facts.iter().find(|(what, _)| what == "sounds");
    assert!(
        sounds.is_some_and(|(_, text)| text.contains("mmproj-model-f16.gguf")),
        "{facts:?}"
    );
}

/// What begins and ends a sound is written once, whether the template has it or not.
#[test]
fn sounds_have_their_marks_once() {
    let marks = [("<|AUDIO|>", 7), ("<|audio_bos|>", 8), ("<|audio_eos|>", 9)];
    for written in [
        "<|AUDIO|>",
        "<|audio_bos|><|AUDIO|><|audio_eos|>",
        "<|AUDIO|><|audio_eos|>",
    ] {
        let template = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'audio' %}MARK{% else %}{{ p.text }}\
            {% endif %}{% endfor %}{% endfor %}";
        let golden = with_vocabulary("qwen2_audio", &template.replace("MARK", written));
        let file = golden.path().join("tokenizer.json");
        let mut json: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).expect("a file")).expect("JSON");
        let added = json["added_tokens"].as_array_mut().expect("a list");
        let first = added[0].clone();
        added.clear();
        for (content, id) in marks {
            let mut token = first.clone();
            (token["content"], token["id"]) = (content.into(), id.into());
            added.push(token);
        }
        std::fs::write(&file, json.to_string()).expect("a file");
        let model = load(&golden, &listening(Images::Beside));
        let template = model.chat_template().expect("a template");
        let prompt = model.encode_conversation(&template, &[asked(&[1], &[sound(4962)])]);
        let tokenizer = model.tokenizer().expect("a vocabulary");
        let id = |mark: &str| tokenizer.id_of(mark).expect("a token");
        let mut wanted = vec![10, id("<|audio_bos|>")];
        wanted.extend(vec![0; 8]);
        wanted.extend([id("<|audio_eos|>"), 11, 13, 12]);
        assert_eq!(shape(&prompt.expect("a prompt")), wanted, "{written}");
    }
}
