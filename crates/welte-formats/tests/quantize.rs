//! Recipes on a small made-up model: formats, values, and what is left after a failure.

use std::borrow::Cow;
use std::path::Path;
use welte_formats::gguf::{Gguf, Kind, Kinds, Writer};
use welte_formats::importance::{Importance, Squares};
use welte_formats::quant::decode;
use welte_formats::quantize::{Quantisation, Recipe, quantize, requantised};
use welte_formats::{Checkpoint, Dialect, Error, Metadata, TensorInfo, Value};
use welte_table::Format;

const LAYERS: usize = 16;

fn tensor(name: &str, n: usize, k: usize) -> TensorInfo {
    TensorInfo {
        name: name.to_string(),
        format: Format::F32,
        n,
        k,
        stack: 1,
    }
}

fn tensors(tied: bool) -> Vec<TensorInfo> {
    let mut all = vec![
        tensor("token_embd.weight", 12, 256),
        tensor("output_norm.weight", 1, 256),
    ];
    if !tied {
        all.push(tensor("output.weight", 12, 256));
    }
    for layer in 0..LAYERS {
        let mut add = |name: &str, n, k| all.push(tensor(&format!("blk.{layer}.{name}"), n, k));
        add("attn_norm.weight", 1, 256);
        add("attn_q.weight", 8, 256);
        add("attn_q.bias", 1, 8);
        add("attn_v.weight", 5, 256);
        add("attn_output.weight", 3, 256);
        add("ffn_up.weight", 3, 96);
        add("ffn_gate.weight", 3, 40);
        add("ffn_down.weight", 3, 256);
    }
    // Three experts of two rows.
    let experts = TensorInfo {
        stack: 3,
        ..tensor("blk.0.ffn_up_exps.weight", 6, 256)
    };
    all.insert(2, experts);
    all
}

/// Values of a tensor: smooth, of both signs, different in each.
fn values(tensor: &TensorInfo, index: usize) -> Vec<f32> {
    (0..tensor.n * tensor.k)
        .map(|i| ((i * 37 + index * 101) as f32 * 0.7).sin() * 0.05)
        .collect()
}

fn metadata() -> Metadata {
    Metadata::from([
        ("general.architecture".into(), Value::String("llama".into())),
        ("general.file_type".into(), Value::U64(0)),
        ("llama.attention.head_count".into(), Value::U64(8)),
        ("llama.attention.head_count_kv".into(), Value::U64(4)),
        ("llama.small".into(), Value::U64(7)),
    ])
}

/// Writes the model, with one value replaced in the last tensor.
fn model(path: &Path, tied: bool, last: Option<f32>) {
    let tensors = tensors(tied);
    let kinds = Kinds::from([("llama.small".to_string(), Kind::U8)]);
    let mut writer = Writer::create(path, &metadata(), &kinds, &tensors).unwrap();
    for (index, tensor) in tensors.iter().enumerate() {
        let mut values = values(tensor, index);
        if let (Some(last), true) = (last, index + 1 == tensors.len()) {
            values[tensor.k + 3] = last;
        }
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// The part of an element's size that a format may be off by: half a step of its coarsest scale, with room.
fn tolerance(format: Format) -> f32 {
    match format {
        Format::F32 => 0.0,
        Format::F16 | Format::BF16 => 0.01,
        Format::Q8_0 => 0.01,
        Format::Q6_K => 0.05,
        Format::Q5_0 | Format::Q5_1 | Format::Q5_K => 0.09,
        Format::Q4_0 | Format::Q4_1 | Format::Q4_K => 0.18,
        Format::IQ4_NL | Format::IQ4_XS => 0.18,
        Format::MXFP4 => 0.26,
        Format::F8_E4M3 => 0.07,
        Format::Q3_K => 0.4,
        Format::Q2_K => 0.6,
        Format::IQ3_S | Format::IQ3_XXS => 0.5,
        Format::IQ2_S | Format::IQ2_XS | Format::IQ2_XXS => 0.9,
        // A small element may become zero, or the largest of its block.
        Format::TQ1_0 | Format::TQ2_0 | Format::IQ1_S | Format::IQ1_M => 1.0,
        other => panic!("no recipe makes {}", other.name()),
    }
}

fn run(input: &dyn Checkpoint, output: &Path, recipe: Recipe, threads: usize) {
    let mut heard = Vec::new();
    let to = Quantisation::new(recipe, threads);
    quantize(input, output, &to, &mut |done, total| {
        heard.push((done, total))
    })
    .unwrap();
    let total = heard[0].1;
    assert_eq!(heard.first(), Some(&(0, total)));
    assert_eq!(heard.last(), Some(&(total, total)));
}

#[test]
fn every_recipe_makes_a_file_that_opens_and_holds_the_values() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.gguf");
    model(&source, false, None);
    let input = Gguf::open(&source).unwrap();
    for recipe in Recipe::all() {
        assert_eq!(
            Recipe::from_name(&recipe.name().to_lowercase()),
            Some(recipe)
        );
        assert!(requantised(&input, &recipe.plan(&input)).is_empty());
        let path = dir.path().join(recipe.name());
        run(&input, &path, recipe, 3);
        let output = Gguf::open(&path).unwrap();
        let mut expected = metadata();
        expected.insert(
            "general.file_type".into(),
            Value::U64(recipe.file_type().into()),
        );
        if recipe.format().is_quantised() {
            expected.insert("general.quantization_version".into(), Value::U64(2));
        }
        assert_eq!(output.metadata(), &expected);
        assert_eq!(output.kinds()["llama.small"], Kind::U8);
        assert_eq!(output.tensors(), recipe.plan(&input));
        for (index, tensor) in output.tensors().iter().enumerate() {
            let bytes = output.rows(tensor, 0, tensor.n).unwrap();
            let mut got = vec![0.0; tensor.n * tensor.k];
            decode(tensor.format, &bytes, &mut got);
            for (i, (got, expected)) in got.iter().zip(values(tensor, index)).enumerate() {
                let off = (got - expected).abs();
                let name = &tensor.name;
                assert!(
                    off <= 0.05 * tolerance(tensor.format),
                    "{} {name} {i}: {got} {expected}",
                    recipe.name()
                );
            }
        }
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1 + Recipe::all().count()
    );
}

#[test]
fn a_file_does_not_depend_on_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.gguf");
    model(&source, true, None);
    let input = Gguf::open(&source).unwrap();
    let files = [0, 1, 2, 64].map(|threads| {
        let path = dir.path().join(format!("{threads}"));
        run(&input, &path, Recipe::Q4_K_M, threads);
        std::fs::read(path).unwrap()
    });
    assert!(files.iter().all(|f| *f == files[0]));
}

/// Format of one tensor by a recipe, for the model with or without its own output matrix.
fn chosen(input: &dyn Checkpoint, recipe: &str, name: &str) -> &'static str {
    let plan = Recipe::from_name(recipe).unwrap().plan(input);
    plan.iter().find(|t| t.name == name).unwrap().format.name()
}

#[test]
fn mixtures_follow_the_known_rules() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.gguf");
    model(&source, false, None);
    let untied = Gguf::open(&source).unwrap();
    for (recipe, name, format) in [
        ("F16", "blk.0.attn_q.weight", "F16"),
        ("F16", "blk.0.attn_norm.weight", "F32"),
        ("Q4_K", "blk.3.attn_q.bias", "F32"),
        ("Q4_0", "token_embd.weight", "Q4_0"),
        ("Q4_0", "output.weight", "Q6_K"),
        ("Q8_0", "output.weight", "Q8_0"),
        ("Q4_K_M", "token_embd.weight", "Q4_K"),
        ("Q4_K_M", "output.weight", "Q6_K"),
        ("Q4_K_M", "blk.0.attn_v.weight", "Q6_K"),
        ("Q4_K_M", "blk.1.ffn_down.weight", "Q6_K"),
        ("Q4_K_M", "blk.2.ffn_down.weight", "Q4_K"),
        ("Q4_K_M", "blk.3.attn_v.weight", "Q4_K"),
        ("Q4_K_M", "blk.4.attn_v.weight", "Q6_K"),
        ("Q4_K_M", "blk.14.ffn_down.weight", "Q6_K"),
        ("Q4_K_M", "blk.4.attn_output.weight", "Q4_K"),
        ("Q4_K_S", "blk.3.attn_v.weight", "Q5_K"),
        ("Q4_K_S", "blk.4.attn_v.weight", "Q4_K"),
        ("Q4_K_S", "blk.1.ffn_down.weight", "Q5_K"),
        ("Q4_K_S", "blk.2.ffn_down.weight", "Q4_K"),
        ("Q5_K_S", "blk.0.ffn_down.weight", "Q5_K"),
        ("Q5_K_M", "blk.15.ffn_down.weight", "Q6_K"),
        ("Q6_K", "blk.7.ffn_down.weight", "Q6_K"),
        ("Q3_K_M", "blk.1.attn_v.weight", "Q5_K"),
        ("Q3_K_M", "blk.2.attn_v.weight", "Q4_K"),
        ("Q3_K_M", "blk.0.ffn_down.weight", "Q5_K"),
        ("Q3_K_M", "blk.1.ffn_down.weight", "Q4_K"),
        ("Q3_K_L", "blk.9.attn_output.weight", "Q5_K"),
        ("Q3_K_S", "blk.9.ffn_down.weight", "Q3_K"),
        ("Q2_K", "blk.9.attn_v.weight", "Q3_K"),
        ("Q2_K", "blk.9.ffn_down.weight", "Q3_K"),
        ("Q2_K_S", "blk.1.ffn_down.weight", "Q4_K"),
        // Widths that the K formats cannot have: 96 and 40.
        ("Q2_K", "blk.0.ffn_up.weight", "Q4_0"),
        ("Q3_K", "blk.0.ffn_up.weight", "Q4_0"),
        ("Q4_K", "blk.0.ffn_up.weight", "Q5_0"),
        ("Q5_K", "blk.0.ffn_up.weight", "Q5_1"),
        ("Q6_K", "blk.0.ffn_up.weight", "Q8_0"),
        ("Q6_K", "blk.0.ffn_gate.weight", "F16"),
        ("Q4_1", "blk.0.ffn_gate.weight", "F16"),
        ("IQ4_XS", "blk.0.ffn_up.weight", "IQ4_NL"),
        ("IQ4_NL", "blk.0.ffn_gate.weight", "F16"),
        ("IQ4_NL", "output.weight", "Q6_K"),
        ("IQ4_XS", "blk.1.ffn_down.weight", "Q5_K"),
        ("IQ4_XS", "blk.2.ffn_down.weight", "IQ4_XS"),
        ("IQ4_XS", "blk.9.attn_v.weight", "IQ4_XS"),
        ("IQ3_M", "output.weight", "Q6_K"),
        ("IQ3_M", "blk.9.attn_v.weight", "Q4_K"),
        ("IQ3_M", "blk.9.attn_output.weight", "Q4_K"),
        ("IQ3_M", "blk.9.ffn_down.weight", "IQ3_S"),
        ("IQ3_XS", "blk.9.attn_q.weight", "IQ3_XXS"),
        ("IQ3_XS", "blk.9.ffn_down.weight", "IQ3_S"),
        ("IQ3_XXS", "token_embd.weight", "IQ3_S"),
        ("IQ3_XXS", "output.weight", "Q5_K"),
        ("IQ3_XXS", "blk.9.attn_q.weight", "IQ2_S"),
        ("IQ3_XXS", "blk.9.attn_output.weight", "IQ3_S"),
        ("IQ2_XXS", "blk.9.ffn_down.weight", "IQ2_XXS"),
        ("IQ2_XXS", "blk.1.ffn_down.weight", "Q2_K"),
        ("IQ2_XXS", "blk.9.attn_v.weight", "Q2_K"),
        ("IQ2_XXS", "token_embd.weight", "Q2_K"),
        ("IQ2_XXS", "output.weight", "Q5_K"),
        ("IQ2_S", "blk.9.attn_q.weight", "IQ2_XS"),
        ("IQ2_M", "blk.9.attn_q.weight", "IQ2_S"),
        ("IQ2_M", "blk.1.ffn_down.weight", "IQ3_S"),
        ("IQ2_M", "token_embd.weight", "IQ3_S"),
        ("IQ2_M", "blk.9.attn_output.weight", "IQ3_S"),
        ("IQ1_M", "blk.9.attn_output.weight", "IQ2_XXS"),
        ("IQ1_S", "blk.9.ffn_down.weight", "IQ1_S"),
        ("IQ1_S", "blk.0.ffn_up.weight", "IQ4_NL"),
        ("TQ1_0", "blk.9.attn_v.weight", "TQ1_0"),
        ("TQ2_0", "blk.0.ffn_up.weight", "Q4_0"),
        ("TQ2_0", "token_embd.weight", "Q4_K"),
        ("TQ2_0", "output.weight", "Q6_K"),
        ("MXFP4_MOE", "output.weight", "Q8_0"),
        ("MXFP4_MOE", "blk.1.attn_v.weight", "Q8_0"),
    ] {
        assert_eq!(chosen(&untied, recipe, name), format, "{recipe} {name}");
    }
    model(&source, true, None);
    let tied = Gguf::open(&source).unwrap();
    assert_eq!(chosen(&tied, "Q4_K_M", "token_embd.weight"), "Q6_K");
    assert_eq!(chosen(&tied, "F16", "token_embd.weight"), "F16");
}

/// A checkpoint of names and shapes without data, which is all that a plan reads.
struct Names {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Names {
    /// One value matrix and one down matrix in each layer.
    fn new(layers: usize, heads: u64, kv_heads: u64) -> Names {
        let mut metadata = metadata();
        let mut set = |key: &str, value| metadata.insert(key.into(), Value::U64(value));
        set("llama.attention.head_count", heads);
        set("llama.attention.head_count_kv", kv_heads);
        let of_layer = |layer: usize| {
            ["attn_v", "ffn_down"].map(|part| tensor(&format!("blk.{layer}.{part}.weight"), 8, 256))
        };
        Names {
            metadata,
            tensors: (0..layers).flat_map(of_layer).collect(),
        }
    }
}

impl Checkpoint for Names {
    fn origin(&self) -> &str {
        "names"
    }
    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }
    fn rows(&self, _: &TensorInfo, _: usize, _: usize) -> Result<Cow<'_, [u8]>, Error> {
        panic!("a plan reads no rows")
    }
}

#[test]
fn value_matrices_of_80_layers_with_8_queries_each_get_five_bits() {
    // The shape of the 70B models.
    let large = Names::new(80, 64, 8);
    let format =
        |recipe: &str, layer: usize| chosen(&large, recipe, &format!("blk.{layer}.attn_v.weight"));
    for (recipe, layer, expected) in [
        ("Q2_K", 40, "Q5_K"),
        ("Q2_K_S", 40, "Q5_K"),
        ("Q3_K_S", 40, "Q5_K"),
        ("Q3_K_M", 1, "Q5_K"),
        ("Q3_K_M", 40, "Q5_K"),
        ("Q3_K_L", 40, "Q5_K"),
        ("Q4_K_S", 40, "Q5_K"),
        // Layers that the mixture gives six bits keep them: the first and last ten, and every third between.
        ("Q4_K_M", 9, "Q6_K"),
        ("Q4_K_M", 10, "Q5_K"),
        ("Q4_K_M", 11, "Q5_K"),
        ("Q4_K_M", 12, "Q6_K"),
        ("Q4_K_M", 69, "Q6_K"),
        ("Q4_K_M", 68, "Q5_K"),
        ("Q4_K_M", 70, "Q6_K"),
        ("Q5_K_S", 40, "Q5_K"),
        ("Q6_K", 40, "Q6_K"),
        ("Q4_0", 40, "Q4_0"),
    ] {
        assert_eq!(format(recipe, layer), expected, "{recipe} {layer}");
    }
    // Only value matrices.
    assert_eq!(chosen(&large, "Q4_K_S", "blk.40.ffn_down.weight"), "Q4_K");
    // One layer less or more, or other numbers of heads.
    for other in [
        Names::new(79, 64, 8),
        Names::new(81, 64, 8),
        Names::new(80, 32, 8),
        Names::new(80, 64, 4),
    ] {
        assert_eq!(chosen(&other, "Q4_K_S", "blk.40.attn_v.weight"), "Q4_K");
        assert_eq!(chosen(&other, "Q3_K_S", "blk.40.attn_v.weight"), "Q3_K");
    }
}

#[test]
fn few_value_heads_get_more_bits() {
    let format = |heads, kv_heads, recipe| {
        chosen(
            &Names::new(16, heads, kv_heads),
            recipe,
            "blk.9.attn_v.weight",
        )
    };
    for (recipe, grouped, plain) in [
        ("Q2_K", "Q4_K", "Q3_K"),
        ("Q2_K_S", "Q4_K", "Q2_K"),
        ("IQ4_NL", "Q5_K", "IQ4_NL"),
        ("IQ4_XS", "Q5_K", "IQ4_XS"),
        ("Q4_K_S", "Q4_K", "Q4_K"),
    ] {
        assert_eq!(format(8, 2, recipe), grouped, "{recipe}");
        assert_eq!(format(6, 2, recipe), plain, "{recipe}");
    }
}

#[test]
fn block_formats_can_be_requantised_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let (source, eight, four) = (
        dir.path().join("f32"),
        dir.path().join("q8"),
        dir.path().join("q4"),
    );
    model(&source, true, None);
    run(&Gguf::open(&source).unwrap(), &eight, Recipe::Q8_0, 1);
    let input = Gguf::open(&eight).unwrap();
    assert!(requantised(&input, &Recipe::Q8_0.plan(&input)).is_empty());
    assert!(
        requantised(&input, &Recipe::Q4_0.plan(&input))
            .iter()
            .any(|t| t.name == "blk.0.attn_q.weight")
    );
    run(&input, &four, Recipe::Q4_0, 1);
    let output = Gguf::open(&four).unwrap();
    let query = output.tensor("blk.0.attn_q.weight").unwrap();
    let mut row = vec![0.0; query.k];
    decode(query.format, &output.rows(query, 2, 1).unwrap(), &mut row);
    let index = output.tensors().iter().position(|t| t == query).unwrap();
    for (got, expected) in row.iter().zip(&values(query, index)[2 * query.k..]) {
        assert!((got - expected).abs() < 0.012, "{got} {expected}");
    }
    // The same format again is a copy, byte for byte.
    let copy = dir.path().join("copy");
    run(&input, &copy, Recipe::Q8_0, 2);
    assert!(std::fs::read(&copy).unwrap() == std::fs::read(&eight).unwrap());
}

#[test]
fn what_cannot_be_stored_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, output) = (
        dir.path().join("source.gguf"),
        dir.path().join("output.gguf"),
    );
    for (value, recipe, says) in [
        (f32::NAN, Recipe::Q4_K_M, "NaN"),
        (f32::INFINITY, Recipe::F16, "inf"),
        (1e9, Recipe::F16, "too large"),
        (-1e9, Recipe::Q4_0, "too large"),
    ] {
        model(&source, true, Some(value));
        let input = Gguf::open(&source).unwrap();
        let error = quantize(
            &input,
            &output,
            &Quantisation::new(recipe, 2),
            &mut |_, _| {},
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.contains(says) && error.contains("blk.15.ffn_down.weight"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    let input = Gguf::open(&source).unwrap();
    let error = quantize(
        &input,
        &source,
        &Quantisation::new(Recipe::Q8_0, 1),
        &mut |_, _| {},
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("is the input"), "{error}");
}

#[test]
fn overrides_go_before_the_recipe_and_must_fit() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.gguf");
    model(&source, true, None);
    let input = Gguf::open(&source).unwrap();
    let planned = |overrides: &[(&str, Format)]| {
        let overrides = overrides
            .iter()
            .map(|(part, format)| (part.to_string(), *format));
        let to = Quantisation {
            overrides: overrides.collect(),
            ..Quantisation::new(Recipe::Q4_K_S, 1)
        };
        to.plan(&input)
    };
    let plan = planned(&[("blk.7.ffn_down", Format::F16), ("ffn_down", Format::Q8_0)]).unwrap();
    let plain = Recipe::Q4_K_S.plan(&input);
    for (tensor, plain) in plan.iter().zip(&plain) {
        let expected = match tensor.name.as_str() {
            "blk.7.ffn_down.weight" => Format::F16,
            name if name.contains("ffn_down") => Format::Q8_0,
            _ => plain.format,
        };
        assert_eq!(tensor.format, expected, "{}", tensor.name);
    }
    let problem = planned(&[("nothing", Format::F16)])
        .unwrap_err()
        .to_string();
    assert!(problem.contains("no tensor has 'nothing'"), "{problem}");
    let problem = planned(&[("blk.3.ffn_gate", Format::Q4_K)])
        .unwrap_err()
        .to_string();
    assert!(
        problem.contains("blk.3.ffn_gate.weight") && problem.contains("40"),
        "{problem}"
    );
}

/// With an importance matrix the columns that matter are stored more exactly, each expert's by its own.
#[test]
fn errors_weigh_as_the_importance_matrix_says() {
    let dir = tempfile::tempdir().unwrap();
    let (source, output) = (
        dir.path().join("source.gguf"),
        dir.path().join("output.gguf"),
    );
    model(&source, true, None);
    let input = Gguf::open(&source).unwrap();
    let name = "blk.0.ffn_up_exps.weight";
    let tensor = input.tensor(name).unwrap();
    // The columns that matter: every eighth, beginning at the expert's number.
    let weight = |expert: usize, column: usize| if column % 8 == expert { 100.0 } else { 1.0 };
    let squares = Squares {
        sums: (0..3 * 256).map(|i| weight(i / 256, i % 256)).collect(),
        counts: vec![1.0; 3],
    };
    let importance = Importance {
        tensors: [(name.to_string(), squares)].into(),
        ..Importance::default()
    };
    let original = values_of(&input, tensor);
    for recipe in [
        Recipe::Q2_K_S,
        Recipe::Q3_K_S,
        Recipe::Q4_K_S,
        Recipe::Q5_K_S,
        Recipe::Q6_K,
        Recipe::IQ4_XS,
        Recipe::IQ4_NL,
        Recipe::IQ3_S,
        Recipe::IQ3_XXS,
        Recipe::IQ2_M,
        Recipe::IQ2_XS,
        Recipe::IQ2_XXS,
        Recipe::IQ1_M,
        Recipe::IQ1_S,
    ] {
        let mut errors = Vec::new();
        for importance in [None, Some(importance.clone())] {
            let to = Quantisation {
                importance,
                ..Quantisation::new(recipe, 2)
            };
            quantize(&input, &output, &to, &mut |_, _| ()).unwrap();
            let written = Gguf::open(&output).unwrap();
            let stored = values_of(&written, written.tensor(name).unwrap());
            let error = original.iter().zip(&stored).enumerate().map(|(i, (a, b))| {
                let (row, column) = (i / 256, i % 256);
                weight(row / 2, column) * (a - b) * (a - b)
            });
            errors.push(error.sum::<f32>());
        }
        assert!(errors[1] < 0.9 * errors[0], "{}: {errors:?}", recipe.name());
    }
    let other = Importance {
        tensors: [(
            name.to_string(),
            Squares {
                sums: vec![1.0; 10],
                counts: vec![1.0],
            },
        )]
        .into(),
        ..Importance::default()
    };
    let to = Quantisation {
        importance: Some(other),
        ..Quantisation::new(Recipe::Q4_K_S, 1)
    };
    let problem = quantize(&input, &output, &to, &mut |_, _| ())
        .unwrap_err()
        .to_string();
    assert!(
        problem.contains(name) && problem.contains("10 columns"),
        "{problem}"
    );
}

fn values_of(file: &Gguf, tensor: &TensorInfo) -> Vec<f32> {
    let mut values = vec![0.0; tensor.n * tensor.k];
    decode(
        tensor.format,
        &file.rows(tensor, 0, tensor.n).unwrap(),
        &mut values,
    );
    values
}

/// The directory for the child process of the test below.
const DIRECTORY: &str = "WELTE_TEST_FULL_DISK";

/// Not a test: what runs with a limit on the size of files.
#[test]
fn full_disk_child() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let dir = Path::new(&dir);
    let input = Gguf::open(&dir.join("source.gguf")).unwrap();
    let error = quantize(
        &input,
        &dir.join("output.gguf"),
        &Quantisation::new(Recipe::Q8_0, 1),
        &mut |_, _| {},
    )
    .unwrap_err();
    assert!(error.to_string().contains("output.gguf"), "{error}");
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("source.gguf"), true, None);
    // A file may have 16 blocks of 512 or 1024 bytes; with the signal ignored, a write beyond that is an error.
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            r#"trap '' XFSZ; ulimit -f 16; exec "$0" --exact full_disk_child"#,
        ])
        .arg(std::env::current_exe().unwrap())
        .env(DIRECTORY, dir.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
