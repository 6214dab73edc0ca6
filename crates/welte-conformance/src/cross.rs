//! Cross attention: every row sees the first positions of its slot, whatever its own position.

use super::case::{Case, Commands, bits, tolerance};
use super::made::Numbers;
use super::model::{ATTENTION, Attention, DENSE, Layer, Model};
use std::sync::Arc;
use welte_device::Device;
use welte_table::{Format, NO_WEIGHT, Op, PassKind, Program, Row, cost, params, verify};

/// Turns all attention into cross attention over `positions` positions.
fn crossed(program: &mut Program, positions: u32) {
    let commands = program
        .passes
        .iter_mut()
        .flat_map(|pass| &mut pass.commands);
    for c in commands.filter(|c| c.op == Op::Attention) {
        let p = params::Attention::of(&c.params);
        c.op = Op::CrossAttention;
        c.weights = [NO_WEIGHT; 3];
        let crossed = params::CrossAttention {
            layer: p.layer,
            heads: p.heads,
            kv_heads: p.kv_heads,
            head_dim: p.head_dim,
            scale: p.scale,
            positions,
            q_stride: p.q_stride,
            y_stride: p.y_stride,
        };
        c.params = crossed.words();
    }
    cost::fill(program);
    verify(program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}"));
}

/// Rows before and after the last position that all see, in all shapes of heads. A row has the same bits alone and beside others.
pub fn cross_attention(device: &dyn Device, oracle: &dyn Device) {
    // Heads, heads of keys, their size, the positions.
    let shapes = [
        (4, 4, 16, 1, Format::F16),
        (3, 3, 64, 19, Format::F16),
        (6, 2, 10, 64, Format::F16),
        (2, 2, 64, 300, Format::F16),
        (2, 1, 32, 70, Format::Q8_0),
    ];
    for (seed, (heads, kv_heads, head_dim, positions, kv_format)) in shapes.into_iter().enumerate()
    {
        let attention = Attention {
            heads,
            kv_heads,
            head_dim,
            rot: head_dim,
            ..ATTENTION
        };
        let model = Model {
            kv_format,
            layers: vec![Layer::Attention(attention), Layer::Dense(DENSE)],
            dim: 40,
            context: 320,
            page: 16,
            slots: 3,
            decode_rows: 3,
            prompt_rows: 310,
            prompt_outputs: 4,
            ..Model::small(seed as u64 + 40)
        };
        let Some(mut case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let mut program = (*case.program).clone();
        crossed(&mut program, positions);
        assert_eq!(device.missing(&program), None, "cross attention");
        case.program = Arc::new(program);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(seed as u64 + 21);
        let mut row = |position, slot| Row::new(n.below(model.vocab), position, slot);
        // All positions are stored before any is read.
        for slot in 0..model.slots {
            let rows: Vec<Row> = (0..positions).map(|position| row(position, slot)).collect();
            let most = tolerance(&model, rows.len());
            let ends = [0, positions - 1];
            pair.step(
                PassKind::Prompt,
                &rows,
                &ends[usize::from(positions == 1)..],
                most,
            );
        }
        let next: Vec<Row> = (0..model.slots)
            .map(|slot| row(positions + slot, slot))
            .collect();
        let most = tolerance(&model, next.len());
        let together = pair.step(PassKind::Decode, &next, &[], most);
        for (row, want) in next.iter().zip(together.chunks(model.vocab as usize)) {
            let alone = pair.step(PassKind::Decode, &[*row], &[], most);
            assert!(bits(&alone) == bits(want), "slot {}", row.slot);
        }
        let rows: Vec<Row> = (0..5).map(|at| row(positions + 1 + at, 0)).collect();
        pair.step(
            PassKind::Prompt,
            &rows,
            &[2, 4],
            tolerance(&model, rows.len()),
        );
        pair.assert_same_caches("after all steps", tolerance(&model, 300));
    }
}
