//! Models whose experts are on the CPU while the rest is on another device, from load to text.

mod common;

use common::*;
use welte::{DeviceChoice, Error, LoadOptions, Model};
use welte_table::Class;

/// Three layers of experts.
const MIXTURE: &str = "synthetic:custom,arch=qwen3moe,layers=3:q8_0";

/// On the reference device, with the experts of `cpu_experts` layers on the CPU.
fn with_experts(cpu_experts: u32) -> LoadOptions {
    with(options("reference".parse().unwrap()), |o| {
        o.cpu_experts = cpu_experts;
        o.context = 64;
        o.slots = 2;
    })
}

fn fact<'a>(facts: &'a [(String, String)], name: &str) -> &'a str {
    let found = facts.iter().find(|fact| fact.0 == name);
    found.map_or("", |fact| &fact.1)
}

#[test]
fn the_plan_says_what_each_memory_holds() {
    let inspect = |layers| Model::inspect(MIXTURE, &with_experts(layers)).unwrap();
    let weights = |layers, place: Option<&str>| {
        let inspection = inspect(layers);
        let entries = inspection.plan().entries.iter();
        let name = place.map_or("weights".to_string(), |place| format!("weights on {place}"));
        let bytes = entries.filter(|e| e.class == Class::Weights && e.name == name);
        bytes.map(|e| e.bytes).sum::<u64>()
    };
    // Four experts of 3 x 256 x 512 weights in a layer: as floats on the reference device.
    let layer = 4 * 3 * 256 * 512 * 4;
    for layers in 0..=3 {
        let moved = weights(0, None) - weights(layers, None);
        assert_eq!(moved, u64::from(layers) * layer, "{layers} layers");
        // In eight bits and a little on the CPU.
        let packed = weights(layers, Some("cpu"));
        assert_eq!(packed, u64::from(layers) * weights(1, Some("cpu")));
        assert!((moved / 4..moved / 3).contains(&packed) || layers == 0);
    }
    let experts = |layers| fact(&inspect(layers).facts(), "experts").to_string();
    assert_eq!(experts(0), "");
    assert_eq!(experts(1), "1 of 3 layers on cpu, the rest on reference");
    assert_eq!(experts(3), "all 3 layers on cpu, the rest on reference");
    // More layers than there are.
    assert_eq!(experts(4), experts(3));
    assert_eq!(inspect(u32::MAX).plan(), inspect(3).plan());
    let both = inspect(2);
    assert_eq!(both.available(), None, "there are two memories");
    let memory = |place| fact(&both.facts(), &format!("memory on {place}")).to_string();
    assert!(memory("cpu").contains("available"), "{}", memory("cpu"));
    assert!(memory("reference").ends_with("iB"));
}

#[test]
fn a_model_answers_as_long_as_its_memory_is_what_was_planned() {
    for layers in [1, u32::MAX] {
        let model = load(MIXTURE, &with_experts(layers));
        let mut stepper = model.stepper().unwrap();
        assert_eq!(model.plan().by_class(), stepper.context().allocated());
        // A chain gives what steps give.
        let tokens = prompt(9, &model);
        stepper.feed(&tokens).unwrap();
        let first = stepper.sample().unwrap();
        let mut chained = vec![first];
        let mut take = |token| {
            chained.push(token);
            true
        };
        stepper.chain(first, 8, &mut take).unwrap();
        let mut stepped = vec![first];
        stepper.clear();
        stepper.feed(&tokens).unwrap();
        stepper.sample().unwrap();
        for _ in 0..8 {
            stepper.feed(&[stepped[stepped.len() - 1]]).unwrap();
            stepped.push(stepper.sample().unwrap());
        }
        assert_eq!(chained, stepped, "{layers} layers");
        // The engine, twice: the second time from its prefix cache.
        let text = |tokens: &[u32]| {
            let options = with(welte::GenerateOptions::default(), |o| {
                o.max_tokens = 8;
                o.ignore_end = true;
                o.sampling = welte::Sampling::default();
            });
            generate(&mut model.session().unwrap(), tokens, &options)
                .0
                .tokens
        };
        let once = text(&tokens);
        assert_eq!(once, chained[..8]);
        assert_eq!(text(&tokens), once);
    }
}

#[test]
fn experts_that_are_not_there_are_refused() {
    let refused = |source, options: &LoadOptions| Model::inspect(source, options).err().unwrap();
    let dense = refused(TINY, &with_experts(1));
    assert!(matches!(dense, Error::NoExperts { .. }), "{dense}");
    assert_eq!(
        dense.to_string(),
        format!("{}: has no experts that could be on the CPU", TINY)
    );
    let on_cpu = with(with_experts(1), |o| o.device = DeviceChoice::CPU);
    assert!(matches!(refused(MIXTURE, &on_cpu), Error::ExpertsOnCpu));
    // None is as if nothing had been said.
    let none = with(options(DeviceChoice::CPU), |o| o.cpu_experts = 0);
    assert!(Model::inspect(TINY, &none).is_ok());
}
