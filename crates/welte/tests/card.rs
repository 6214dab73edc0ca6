//! Cards of models: what is read from headers, and what a loaded model says.

use welte::{Card, DeviceChoice, Images, LoadOptions, Model};

fn read(source: &str) -> Card {
    Card::read(source, &Images::Beside, None).unwrap_or_else(|e| panic!("{source}: {e}"))
}

fn golden(name: &str) -> Card {
    let golden = welte_goldens::Golden::new(name);
    read(golden.path().to_str().expect("a path"))
}

#[test]
fn a_file_and_its_loaded_model_have_one_card() {
    let demo = welte_goldens::folder().join("../../../../models/demo.gguf");
    let source = demo.to_str().expect("a path");
    let card = read(source);
    assert_eq!(card.capabilities, ["completion", "chat", "embedding"]);
    assert!(card.parameters > 0 && card.bytes > 0 && card.context > Some(0));
    let mut options = LoadOptions::default();
    (options.context, options.embeddings) = (64, true);
    options.device = "reference".parse::<DeviceChoice>().expect("a device");
    let model = Model::load(source, &options, &mut |_| ()).expect("a model");
    assert_eq!(model.card().as_json(), card.as_json());
}

#[test]
fn capabilities_are_those_of_the_kind() {
    for (name, capabilities) in [
        (
            "drafts/glm4_moe/hf",
            &["completion", "embedding", "draft"][..],
        ),
        ("drafts/eagle3/hf", &["drafter"]),
        ("drafts/gemma4_assistant/f16.gguf", &["drafter"]),
        ("encoders/bert", &["embedding"]),
        ("encoders/bert-classifier", &["rerank"]),
        ("vision/gemma3/hf", &["completion", "embedding", "vision"]),
        ("vision/gemma3/mmproj.gguf", &["vision"]),
        ("hearing/ultravox/mmproj.gguf", &["audio"]),
        ("hearing/voxtral/hf", &["completion", "embedding", "audio"]),
        ("speech/f16", &["transcription"]),
    ] {
        let found = golden(name).capabilities;
        let own: Vec<&str> = found
            .iter()
            .copied()
            .filter(|one| !OF_TEXT.contains(one))
            .collect();
        assert_eq!(own, capabilities, "{name}");
    }
}

/// What depends on a template and a vocabulary, which most goldens lack.
const OF_TEXT: [&str; 4] = ["chat", "tools", "thinking", "insert"];

#[test]
fn a_directory_has_the_keys_of_a_file_and_the_licence_of_its_readme() {
    let golden = welte_goldens::Golden::new("qwen3/hf");
    let text = "---\nlicense: other\nlicense_name: fox-1\nlicense_link: LICENSE\n---\n# Fox\n";
    std::fs::write(golden.path().join("README.md"), text).expect("a file");
    let card = read(golden.path().to_str().expect("a path"));
    assert_eq!(card.license.as_deref(), Some("fox-1"));
    assert_eq!(card.license_link.as_deref(), Some("LICENSE"));
    let info = card.info_as_json();
    assert_eq!(info["general.architecture"], "qwen3");
    assert_eq!(info["qwen3.block_count"], card.layers.expect("layers"));
    assert_eq!(
        info["qwen3.context_length"],
        card.context.expect("a context")
    );
}

#[test]
fn what_a_template_supports_is_tried() {
    let demo = welte_goldens::folder().join("../../../../models/demo.gguf");
    let source = demo.to_str().expect("a path");
    let card = |template: &str| Card::read(source, &Images::Off, Some(template)).expect("a card");
    let plain = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}";
    let plain = card(plain);
    assert_eq!(plain.capabilities, ["completion", "chat", "embedding"]);
    assert!(plain.template.expect("a template").lines().is_empty());
    let rich = "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\": </tool_call>{% endif %}{% for m in messages %}\
{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}\
{% endif %}{% endfor %}{% if enable_thinking %}<think>{% endif %}";
    let rich = card(rich);
    assert_eq!(
        rich.capabilities,
        ["completion", "chat", "embedding", "tools", "thinking"]
    );
    let lines = rich.template.expect("a template").lines();
    let wanted = [
        "system messages",
        "tools (calls as ",
        "thinking, switched by enable_thinking",
        "images",
    ];
    assert_eq!(lines.len(), wanted.len(), "{lines:?}");
    for (line, wanted) in lines.iter().zip(wanted) {
        assert!(line.starts_with(wanted), "{lines:?}");
    }
}
