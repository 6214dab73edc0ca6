//! Formats: sizes and properties, written out.

use welte_table::{Class, Format, MemoryPlan, Op, params as p};

#[test]
fn blocks_are_as_large_as_their_definition_says() {
    use Format::*;
    for (format, elements, bytes) in [
        (F32, 1, 4),
        (F16, 1, 2),
        (BF16, 1, 2),
        (Q4_0, 32, 18),
        (Q4_1, 32, 20),
        (Q5_0, 32, 22),
        (Q5_1, 32, 24),
        (Q8_0, 32, 34),
        (Q2_K, 256, 84),
        (Q3_K, 256, 110),
        (Q4_K, 256, 144),
        (Q5_K, 256, 176),
        (Q6_K, 256, 210),
        (IQ4_NL, 32, 18),
        (IQ4_XS, 256, 136),
        (MXFP4, 32, 17),
        (F8_E4M3, 128, 132),
        (IQ1_S, 256, 50),
        (IQ1_M, 256, 56),
        (IQ2_XXS, 256, 66),
        (IQ2_XS, 256, 74),
        (IQ2_S, 256, 82),
        (IQ3_XXS, 256, 98),
        (IQ3_S, 256, 110),
        (TQ1_0, 256, 54),
        (TQ2_0, 256, 66),
        (Q1_0, 128, 18),
        (NVFP4, 64, 36),
        (NVFP4_F32, 64, 40),
    ] {
        let name = format.name();
        assert_eq!(
            (format.block(), format.block_bytes()),
            (elements, bytes),
            "{name}"
        );
        assert_eq!(format.bytes(3 * elements), Some(3 * bytes), "{name}");
        assert_eq!(format.bytes(0), Some(0), "{name}");
        if elements > 1 {
            assert_eq!(format.bytes(elements + 1), None, "{name}");
        }
        assert_eq!(format.is_quantised(), elements > 1, "{name}");
        let floats = matches!(format, F32 | F16 | BF16 | F8_E4M3);
        assert_eq!(format.rounds_activations(), !floats, "{name}");
    }
    assert_eq!(F32.bytes(usize::MAX), None);
    // Four bits in groups of 64: a scale, a bias, 32 bytes.
    let mlx = Format::from_name("MLX4_64").unwrap();
    assert_eq!((mlx.block(), mlx.block_bytes()), (64, 36));
    assert!(mlx.is_quantised() && mlx.rounds_activations());
}

#[test]
fn parameters_are_shown_as_a_person_reads_them() {
    let norm = p::Norm {
        dim: 8,
        groups: 3,
        eps: 1e-6,
        x_stride: 24,
        y_stride: 48,
    };
    let shown: Vec<String> = Op::Norm
        .show_params(&norm.words())
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        shown,
        [
            "dim=8",
            "groups=3",
            "eps=1e-6",
            "x_stride=24",
            "y_stride=48"
        ]
    );
    assert_eq!(Op::Norm.name(), "norm");
    assert_eq!(Op::Norm.weights(), ["weight"]);
    assert_eq!(
        (Op::Norm.reads(), Op::Norm.writes()),
        (&["x"][..], &["y"][..])
    );
    assert_eq!(Op::from_name("nothing"), None);
}

#[test]
fn a_plan_adds_up_by_class() {
    let mut plan = MemoryPlan::default();
    assert_eq!((plan.total(), plan.by_class().len()), (0, 0));
    plan.add("a", Class::Cache, 3);
    plan.add("b", Class::Weights, 5);
    plan.add("c", Class::Cache, 4);
    assert_eq!(
        (plan.bytes(Class::Cache), plan.bytes(Class::Tables)),
        (7, 0)
    );
    assert_eq!(plan.total(), 12);
    let by_class: Vec<_> = plan.by_class().into_iter().collect();
    assert_eq!(by_class, [(Class::Weights, 5), (Class::Cache, 7)]);
    plan.add("d", Class::Cache, u64::MAX);
    assert_eq!(plan.total(), u64::MAX);
}
