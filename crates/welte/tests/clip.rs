//! Vectors of jina-clip against a model in torch (`tools/goldens/clip.py`): of texts and of pictures, which share a space.

use serde_json::{Value, json};
use std::path::Path;
use welte::{Error, Image, ImageSource, Images, LoadOptions, Model};
use welte_goldens::Golden;

/// A device, and the furthest that a value of a text's vector, and of a picture's, may be off, as a part of the largest one. The CPU
/// rounds activations for weights in BF16: those of pictures on every processor, those of texts where it has the instructions for it.
type Tolerance = (&'static str, f32, f32);

const TOLERANCES: [Tolerance; 2] = [("reference", 2e-4, 2e-4), ("cpu", 3e-2, 3e-2)];
const CUDA: [Tolerance; 1] = [("cuda", 2e-2, 5e-2)];
const GPU: [Tolerance; 1] = [("gpu", 1e-3, 1e-3)];

fn golden() -> (Golden, Value) {
    let list = std::fs::read_to_string(welte_goldens::folder().join("clip.json"));
    let list: Value = serde_json::from_str(&list.expect("the index")).expect("JSON");
    (Golden::new(list["path"].as_str().expect("a path")), list)
}

fn try_load(path: &Path, device: &str) -> Result<Model, Error> {
    let mut options = LoadOptions::default();
    (options.device, options.threads) = (device.parse().expect("a device"), Some(2));
    (options.embeddings, options.slots) = (true, 2);
    options.images = Images::Beside;
    Model::load(&path.display().to_string(), &options, &mut |_| ())
}

fn load(path: &Path, device: &str) -> Model {
    try_load(path, device).unwrap_or_else(|e| panic!("{device}: {e}"))
}

fn picture(name: &str) -> Image {
    let folder = welte_goldens::folder().join("../../../welte-vision/tests/data/pictures");
    let bytes = std::fs::read(folder.join(name)).expect("the picture");
    Image {
        at: 0,
        source: ImageSource::Bytes(bytes.into()),
        name: name.to_string(),
    }
}

fn floats(list: &Value) -> Vec<f32> {
    let values = list.as_array().expect("a list").iter();
    values
        .map(|v| v.as_f64().expect("a number") as f32)
        .collect()
}

fn near(what: &str, got: &[f32], want: &Value, most: f32) {
    let want = floats(want);
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0f32, |most, v| most.max(v.abs()));
    let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
    let worst = off.fold(0f32, f32::max) / largest;
    println!("{what}: {worst:.1e} of the largest value");
    assert!(worst <= most, "{what}: off by {worst} of the largest value");
}

fn agree(devices: &[Tolerance]) {
    let (golden, index) = golden();
    for &(device, of_texts, of_pictures) in devices {
        let model = load(golden.path(), device);
        assert!(model.is_encoder() && model.eyes().is_some_and(|eyes| eyes.are_apart()));
        let engine = model.engine().expect("an engine");
        for one in index["texts"].as_array().expect("texts") {
            let text = one["text"].as_str().expect("a text");
            let encoded = model.encode_to_embed(None, text).expect("tokens");
            assert_eq!(json!(encoded.tokens), one["tokens"], "{text}");
            let vector = engine.embed(encoded, None).expect("a request");
            let vector = vector.unnormalised().wait().expect("a vector");
            near(
                &format!("{text}, {device}"),
                &vector,
                &one["vector"],
                of_texts,
            );
        }
        for one in index["pictures"].as_array().expect("pictures") {
            let name = one["picture"].as_str().expect("a name");
            let encoded = model.encode_image_to_embed(picture(name));
            let encoded = encoded.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(encoded.tokens.len(), 1, "{name}");
            let vector = engine.embed(encoded.clone(), None).expect("a request");
            let vector = vector.unnormalised().wait().expect("a vector");
            near(
                &format!("{name}, {device}"),
                &vector,
                &one["vector"],
                of_pictures,
            );
            // Of length 1, and shortened as those of texts.
            let short = engine
                .embed(encoded, None)
                .expect("a request")
                .shortened(16);
            let short = short.wait().expect("a vector");
            let length = vector[..16].iter().map(|v| v * v).sum::<f32>().sqrt();
            let own: Vec<f32> = vector[..16].iter().map(|v| v / length).collect();
            near(&format!("{name}, shortened"), &short, &json!(own), 1e-6);
        }
    }
}

#[test]
fn vectors_are_those_of_torch() {
    agree(&TOLERANCES);
}

#[test]
#[ignore = "needs a GPU"]
fn vectors_are_those_of_torch_on_cuda() {
    agree(&CUDA);
}

#[test]
#[ignore = "needs a GPU, or its driver in software"]
fn vectors_are_those_of_torch_on_gpu() {
    agree(&GPU);
}

#[test]
fn instructions_are_prompts() {
    let (golden, _) = golden();
    let model = load(golden.path(), "cpu");
    let prompted = model.encode_to_embed(Some("retrieval.query"), "two blue birds");
    let whole = model.encode("a query: two blue birds").expect("tokens");
    assert_eq!(prompted.expect("tokens").tokens, whole);
    assert!(matches!(
        model.encode_to_embed(Some("other"), "two"),
        Err(Error::NoSuchPrompt { .. })
    ));
}

/// A directory whose configuration was changed.
fn changed(golden: &Golden, file: &str, change: impl FnOnce(&mut Value)) {
    let path = golden.path().join(file);
    let text = std::fs::read_to_string(&path).expect("the file");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut json);
    std::fs::write(path, json.to_string()).expect("the file");
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let text =
        |key: &'static str, value: Value| move |json: &mut Value| json["text_config"][key] = value;
    let vision = |key: &'static str, value: Value| {
        move |json: &mut Value| json["vision_config"][key] = value
    };
    type Change = Box<dyn FnOnce(&mut Value)>;
    let cases: [(Change, &[&str]); 10] = [
        (
            Box::new(text(
                "hf_model_name_or_path",
                json!("jinaai/jina-bert-flash-implementation"),
            )),
            &[
                "hf_model_name_or_path",
                "jina-bert-flash",
                "jina-embeddings-v3",
            ],
        ),
        (
            Box::new(text("hf_model_name_or_path", Value::Null)),
            &["hf_model_name_or_path", "is missing"],
        ),
        (
            Box::new(text("default_lora_task", json!("classification"))),
            &["default_lora_task", "lora_adaptations"],
        ),
        (
            Box::new(text("pooler_type", json!("max_pooler"))),
            &["pooler_type", "mean_pooler"],
        ),
        (
            Box::new(text("proj_type", json!("linear"))),
            &["proj_type", "null"],
        ),
        (
            Box::new(text("embed_dim", json!(32))),
            &["embed_dim", "width of the text model"],
        ),
        (
            Box::new(|json: &mut Value| json["truncate_dim"] = json!(16)),
            &["truncate_dim", "null"],
        ),
        (
            Box::new(|json: &mut Value| json["add_projections"] = json!(true)),
            &["add_projections", "false"],
        ),
        (
            Box::new(|json: &mut Value| {
                let tasks = json!(["a", "b", "text-matching"]);
                json["text_config"]["hf_model_config_kwargs"]["lora_adaptations"] = tasks;
            }),
            &["lora_A", "[2, ", "for 3 tasks"],
        ),
        (
            Box::new(|json: &mut Value| {
                json["text_config"]["hf_model_config_kwargs"]["num_hidden_layers"] = json!(2);
            }),
            &["encoder.layers.2", "2 layers"],
        ),
    ];
    for (change, said) in cases {
        let (golden, _) = golden();
        changed(&golden, "config.json", change);
        let error = try_load(golden.path(), "cpu")
            .expect_err(said[0])
            .to_string();
        for said in said {
            assert!(error.contains(said), "{said}: {error}");
        }
    }
    // A fault of the encoder leaves the texts, and says why there are no images.
    let cases: [(Change, &[&str]); 6] = [
        (
            Box::new(vision("subln", json!(false))),
            &["vision_config.subln", "must be true"],
        ),
        (
            Box::new(vision("head_width", json!(20))),
            &["vision encoder", "heads"],
        ),
        (
            Box::new(vision("embed_dim", json!(64))),
            &["vision_config.embed_dim", "64", "48"],
        ),
        (
            Box::new(vision("image_size", json!(48))),
            &["size: is 33; the encoder takes 48"],
        ),
        (
            Box::new(vision("layers", json!(4))),
            &["vision_model.blocks.3."],
        ),
        (
            Box::new(vision("ls_init_value", json!(0.1))),
            &["ls_init_value", "null"],
        ),
    ];
    for (change, said) in cases {
        let (golden, _) = golden();
        changed(&golden, "config.json", change);
        let model = load(golden.path(), "cpu");
        let why = model.no_images().expect(said[0]);
        for said in said {
            assert!(why.contains(said), "{said}: {why}");
        }
    }
    for (key, value, said) in [
        (
            "resize_mode",
            json!("longest"),
            "resize_mode: is not supported",
        ),
        ("size", json!(40), "size: is 40; the encoder takes 33"),
        ("std", json!([0.5, 0, 0.5]), "must not be 0"),
    ] {
        let (golden, _) = golden();
        changed(&golden, "preprocessor_config.json", |json| {
            json[key] = value
        });
        let model = load(golden.path(), "cpu");
        let why = model.no_images().expect(said);
        assert!(why.contains(said), "{said}: {why}");
    }
}

/// A change of low rank must be complete.
#[test]
fn a_missing_half_of_a_change_is_refused() {
    let (golden, _) = golden();
    let file = golden.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("the weights");
    let name = b"layers.1.mixer.Wqkv.parametrizations.weight.0.lora_B";
    let at = bytes.windows(name.len()).position(|found| found == name);
    bytes[at.expect("the name") + name.len() - 1] = b'C';
    std::fs::write(file, bytes).expect("the weights");
    let error = try_load(golden.path(), "cpu")
        .expect_err("a half")
        .to_string();
    assert!(
        error.contains("layers.1.mixer.Wqkv") && error.contains("lora_B is missing"),
        "{error}"
    );
}
