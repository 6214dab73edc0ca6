//! What is reported of a checkpoint whose architecture is not known.

mod common;

use common::{Fake, Recipe};
use welte_formats::checkpoint::{Dialect, Value};
use welte_models::{spec, survey};
use welte_table::Format;

/// Llama's keys and tensors under another name, without norms of the feed-forward part, with gates.
fn other(dialect: Dialect) -> Fake {
    let recipe = Recipe {
        architecture: "nimbus",
        dialect,
        ..Recipe::default()
    };
    let mut fake = recipe.build();
    fake.tensors.retain(|t| !t.name.contains("ffn_norm"));
    for layer in 0..3 {
        let name = match dialect {
            Dialect::Gguf => format!("blk.{layer}.attn_blend.weight"),
            Dialect::HuggingFace => format!("model.layers.{layer}.self_attn.gate.weight"),
        };
        fake.add(&name, Format::Q4_K, 4, 256);
    }
    fake.set("nimbus.decay", Value::F64(0.5));
    fake
}

#[test]
fn tensors_are_told_apart_by_the_nearest_architecture() {
    let found = survey(&other(Dialect::Gguf));
    assert_eq!(found.architecture, "nimbus");
    let nearest = found.nearest.as_ref().expect("a similar architecture");
    assert_eq!(nearest.name, "llama");
    let pattern = |name: &str| found.tensors.iter().find(|t| t.name == name).expect(name);
    let gates = pattern("blk.{}.attn_blend.weight");
    assert_eq!((gates.count, gates.known), (3, false));
    assert!(gates.kinds.iter().eq(["4 x 256 Q4_K"]));
    let queries = pattern("blk.{}.attn_q.weight");
    assert_eq!((queries.count, queries.known), (3, true));
    let missing = &nearest.missing;
    assert!(
        missing.contains(&"blk.{}.ffn_norm.weight".to_string()),
        "{missing:?}"
    );
    let obstacle = nearest.obstacle.as_deref().expect("an obstacle");
    assert!(obstacle.contains("blk.0.ffn_norm.weight"), "{obstacle}");
    let decay = ("nimbus.decay".to_string(), "0.5".to_string());
    assert!(found.keys.contains(&decay), "{:?}", found.keys);
    let text = found.to_string();
    for part in [
        "nimbus",
        "llama",
        "3 x blk.{}.attn_blend.weight",
        "nimbus.decay = 0.5",
        "ARCHITECTURE.md",
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn directories_are_surveyed_too() {
    let found = survey(&other(Dialect::HuggingFace));
    let unknown: Vec<&str> = found
        .tensors
        .iter()
        .filter(|t| !t.known)
        .map(|t| t.name.as_str())
        .collect();
    assert_eq!(unknown, ["model.layers.{}.self_attn.gate.weight"]);
    assert!(found.keys.iter().any(|(key, _)| key == "hidden_size"));
}

#[test]
fn hostile_names_are_cut() {
    let mut fake = other(Dialect::Gguf);
    fake.set(
        "general.architecture",
        Value::String("\u{1b}[31m".repeat(1000)),
    );
    fake.add(&"\n1.".repeat(5000), Format::F32, 1, 1);
    let text = survey(&fake).to_string();
    assert!(!text.contains('\u{1b}'));
    assert!(
        text.lines().all(|line| line.chars().count() < 400),
        "{text}"
    );
}

#[test]
fn a_known_model_has_no_obstacle() {
    let found = survey(&Recipe::default().build());
    let nearest = found.nearest.as_ref().expect("a similar architecture");
    assert_eq!(nearest.name, "llama");
    assert_eq!(nearest.obstacle, None);
    let text = found.to_string();
    assert!(!text.contains("does not have"), "an empty list: {text}");
    assert!(found.tensors.iter().all(|t| t.known));
}

#[test]
fn without_a_shared_name_no_architecture_is_similar() {
    for dialect in [Dialect::Gguf, Dialect::HuggingFace] {
        let mut fake = other(dialect);
        fake.tensors.clear();
        let text = survey(&fake).to_string();
        assert!(text.contains("most similar  none"), "{text}");
        assert!(text.contains("It has no tensors."), "{text}");
        assert!(!text.contains("\ntensors"), "an empty list: {text}");
        fake.add("unet.0.kernel", Format::F32, 2, 3);
        let found = survey(&fake);
        assert!(found.nearest.is_none());
        let text = found.to_string();
        assert!(text.contains("most similar  none"), "{text}");
        assert!(
            text.contains("\ntensors\n     1 x unet.{}.kernel  (2 x 3 F32)\n"),
            "{text}"
        );
        assert!(
            !text.contains("llama") && !text.contains("names of"),
            "{text}"
        );
    }
}

#[test]
fn a_checkpoint_that_names_no_architecture_is_surveyed() {
    let keys = [
        (Dialect::Gguf, "nimbus.decay", "general.architecture"),
        (
            Dialect::HuggingFace,
            "hidden_size",
            "model_type in config.json",
        ),
    ];
    for (dialect, key, missing) in keys {
        let mut fake = other(dialect);
        fake.metadata.remove("general.architecture");
        fake.metadata.remove("model_type");
        let error = spec(&fake).expect_err("it names no architecture");
        let says = format!("{missing}: is missing; it must name the architecture");
        assert!(error.is_of_contents(), "{error}");
        assert!(error.to_string().contains(&says), "{error}");
        let found = survey(&fake);
        assert!(found.keys.iter().any(|(found, _)| found == key), "{found}");
        let text = found.to_string();
        assert!(text.contains("architecture  (not named)"), "{text}");
        assert!(text.contains("most similar  llama"), "{text}");
    }
}
