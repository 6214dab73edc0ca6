//! Sparse attention: every row sees the positions that an indexer chose for it.

use super::case::{Case, Commands, bits, tolerance};
use super::made::{Made, Numbers};
use super::model::{ATTENTION, Attention, DENSE, Layer, Model};
use std::sync::Arc;
use welte_device::{Checks, Context, Device};
use welte_table::*;

/// An indexer. What it computes with is looked up by token: whole numbers, of which every device makes the same scores. Many are equal.
#[derive(Clone, Copy, Debug)]
struct Index {
    heads: u32,
    head_dim: u32,
    used: u32,
}

impl Index {
    /// Values of a row: queries, the weights of heads, and a key.
    fn width(&self) -> u32 {
        (self.heads + 1) * self.head_dim + self.heads
    }

    /// The table of all tokens.
    fn table(&self, vocab: u32, format: Format, n: &mut Numbers) -> Vec<f32> {
        let mut small = |most: u32| n.below(2 * most + 1) as f32 - most as f32;
        let mut values = Vec::new();
        for _ in 0..vocab {
            values.extend((0..(self.heads * self.head_dim)).map(|_| small(2)));
            values.extend((0..self.heads).map(|_| small(2)));
            // Whole numbers stay what they are in a block whose largest is 127.
            values.extend((0..self.head_dim).map(|i| match format {
                Format::Q8_0 if i % 32 == 5 => 127.0,
                Format::Q8_0 => small(100),
                _ => small(3),
            }));
        }
        values
    }
}

/// Puts a choice of positions before all attention, which then sees only those.
fn sparse(program: &mut Program, checkpoint: &mut Made, index: Index, seed: u64) {
    let (width, half) = (index.width(), index.head_dim / 2);
    let CacheKind::Attention { format, .. } = program.caches[0].kind else {
        panic!("cache 0 holds keys and values");
    };
    let table = index.table(program.vocab, format, &mut Numbers(seed));
    checkpoint.add("index", Format::F32, program.vocab, width, &table);
    let weight = program.weights.len() as WeightId;
    program.weights.push(WeightSpec {
        name: "index".into(),
        format: Format::F32,
        n: program.vocab,
        k: width,
        usage: Usage::Lookup,
        add: 0.0,
        source: Source::Parts(vec![Part {
            tensor: "index".into(),
            first_row: 0,
            rows: program.vocab,
        }]),
    });
    let most = u64::from(program.most_rows());
    let mut buffer = |name: &str, class, bytes| {
        program.buffers.push(BufferSpec {
            name: name.into(),
            class,
            bytes,
        });
        BufferRef {
            buffer: program.buffers.len() as BufferId - 1,
            offset: 0,
        }
    };
    // Rows are further apart than they are wide.
    let (stride, chosen_stride) = (width + 3, index.used + 1);
    let inputs = buffer("inputs", Class::ScratchPrompt, 4 * most * u64::from(stride));
    // Compared as numbers, as that of experts.
    let chosen = buffer(
        "choice",
        Class::ScratchPrompt,
        4 * most * u64::from(chosen_stride),
    );
    let mut cache = CacheSpec {
        name: "index".into(),
        buffer: 0,
        pages: program.caches[0].pages,
        kind: CacheKind::Attention {
            format,
            layers: program.caches[0].layers(),
            kv_heads: 1,
            head_dim: half,
            window: 0,
        },
    };
    let bytes = cache.bytes(program.page).expect("a small cache");
    let keys = buffer("index", Class::Cache, bytes);
    cache.buffer = keys.buffer;
    program.caches.push(cache);
    let at = |values: u32| BufferRef {
        offset: 4 * values,
        ..inputs
    };
    let (gates, key) = (index.heads * index.head_dim, index.width() - index.head_dim);
    let (vocab, tokens) = (program.vocab, program.tokens);
    for pass in &mut program.passes {
        let before = std::mem::take(&mut pass.commands);
        for mut c in before {
            if c.op == Op::Attention {
                let p = params::Attention::of(&c.params);
                let look_up = params::Embed {
                    n: vocab,
                    k: width,
                    scale: 1.0,
                    x_stride: stride,
                };
                let append = params::KvAppend {
                    layer: p.layer,
                    kv_heads: 1,
                    head_dim: half,
                    k_stride: stride,
                    v_stride: stride,
                };
                let choose = params::ChoosePositions {
                    layer: p.layer,
                    heads: index.heads,
                    head_dim: index.head_dim,
                    used: index.used,
                    q_stride: stride,
                    gates_stride: stride,
                    y_stride: chosen_stride,
                };
                let attend = params::SparseAttention {
                    layer: p.layer,
                    heads: p.heads,
                    kv_heads: p.kv_heads,
                    head_dim: p.head_dim,
                    scale: p.scale,
                    used: index.used,
                    q_stride: p.q_stride,
                    chosen_stride,
                    y_stride: p.y_stride,
                };
                let tokens = BufferRef {
                    buffer: tokens,
                    offset: 0,
                };
                let f32 = Format::F32;
                let [q, kv, y, _] = c.buffers;
                let (embedded, stored) = ([tokens, inputs], [at(key), at(key + half), keys]);
                let chooses = [inputs, keys, at(gates), chosen];
                pass.commands.extend([
                    Command::new(Op::Embed, f32, &[weight], &embedded, look_up.words()),
                    Command::new(Op::KvAppend, f32, &[], &stored, append.words()),
                    Command::new(Op::ChoosePositions, f32, &[], &chooses, choose.words()),
                ]);
                c.op = Op::SparseAttention;
                c.weights = [NO_WEIGHT; 3];
                c.buffers = [q, kv, chosen, y];
                c.params = attend.words();
            }
            pass.commands.push(c);
        }
        let labels = pass.commands.iter().map(|c| c.op.name().to_string());
        pass.labels = labels.collect();
    }
    cost::fill(program);
    verify(program).unwrap_or_else(|e| panic!("the suite's program is wrong: {e}"));
}

/// Rows that see fewer positions than are chosen and more, in all shapes of heads. A row has the same bits alone and beside others, and
/// whatever the cut of its prompt; and it sees what was chosen for it alone.
pub fn sparse_attention(device: &dyn Device, oracle: &dyn Device) {
    // Heads, heads of keys, their size; heads of the indexer, their size, what they choose; the context, a page.
    let shapes = [
        (4, 2, 32, 3, 16, 9, 70, 16, Format::F16),
        (2, 1, 24, 1, 6, 1, 40, 1, Format::F16),
        (5, 1, 64, 5, 64, 40, 100, 7, Format::Q8_0),
        (3, 3, 48, 17, 32, 20, 60, 16, Format::F16),
        (10, 1, 576, 3, 128, 260, 330, 64, Format::F16),
        (4, 4, 64, 4, 128, 50, 110, 100, Format::Q8_0),
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        let (heads, kv_heads, head_dim, index_heads, index_dim, used, context, page, kv_format) =
            shape;
        let attention = Attention {
            heads,
            kv_heads,
            head_dim,
            rot: head_dim,
            ..ATTENTION
        };
        let layers = [Layer::Attention(attention), Layer::Dense(DENSE)];
        let model = Model {
            kv_format,
            layers: [layers, layers].concat(),
            dim: 40,
            vocab: 70,
            context,
            page,
            slots: 3,
            decode_rows: 3,
            prompt_rows: if context > 300 { 290 } else { 50 },
            prompt_outputs: 4,
            ..Model::small(seed as u64 + 80)
        };
        let Some(mut case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let index = Index {
            heads: index_heads,
            head_dim: index_dim,
            used,
        };
        case.what = format!("{index:?} {}", case.what);
        let mut program = (*case.program).clone();
        sparse(&mut program, &mut case.checkpoint, index, seed as u64);
        assert_eq!(device.missing(&program), None, "sparse attention");
        case.program = Arc::new(program);
        check(&case, &model, device, oracle);
    }
}

fn check(case: &Case, model: &Model, device: &dyn Device, oracle: &dyn Device) {
    let mut pair = case.pair(device, oracle);
    let mut n = Numbers(model.seed + 21);
    let mut pages: Vec<Vec<u32>> = (0..2)
        .map(|cache| Checks::first_pages(&case.program, cache))
        .collect();
    // Pages in disorder, another one in each cache.
    let entries = model.context.div_ceil(model.page) as usize;
    pages[0].reverse();
    pages[1].rotate_left(1);
    let mut place = |c: &mut dyn Context| {
        for (cache, pages) in pages.iter().enumerate() {
            for (slot, list) in pages.chunks_exact(entries).enumerate() {
                let set = c.set_pages(cache, slot as u32, 0, list);
                set.expect("a valid list");
            }
        }
    };
    pair.both(&mut place);
    // All of the context of slot 0 but some positions that are decoded, and less of the others.
    let left = 6;
    let lengths = [model.context - left, model.context / 2, 1];
    let texts: Vec<Vec<Row>> = (0..)
        .zip(lengths)
        .map(|(slot, length)| {
            let mut row = |position| Row::new(n.below(model.vocab), position, slot);
            (0..length + left).map(&mut row).collect()
        })
        .collect();
    let most = model.prompt_rows as usize;
    let of_prompt = tolerance(model, most);
    // The last row of each step has logits.
    let mut whole: Vec<Vec<u32>> = Vec::new();
    for (text, length) in texts.iter().zip(lengths) {
        for rows in text[..length as usize].chunks(most) {
            let last = rows.len() as u32 - 1;
            let got = pair.step(PassKind::Prompt, rows, &[last], of_prompt);
            whole.push(bits(&got));
        }
    }
    pair.assert_same_memory("after the prompts", of_prompt);
    let next: Vec<Row> = texts
        .iter()
        .zip(lengths)
        .map(|(text, length)| text[length as usize])
        .collect();
    let some = tolerance(model, next.len());
    let together = pair.step(PassKind::Decode, &next, &[], some);
    for (row, want) in next.iter().zip(together.chunks(model.vocab as usize)) {
        let alone = pair.step(PassKind::Decode, &[*row], &[], some);
        assert!(
            bits(&alone) == bits(want),
            "slot {}: {}",
            row.slot,
            case.what
        );
    }
    for row in &texts[0][lengths[0] as usize + 1..] {
        pair.step(PassKind::Decode, &[*row], &[], some);
    }
    pair.assert_same_caches("after all steps", of_prompt);
    // The same in other pieces, beside rows of another slot.
    let mut pieces = case.open(device);
    place(pieces.as_mut());
    let prompt = case.pass(PassKind::Prompt);
    let mut wanted = whole.iter();
    let mut others = texts[1][..lengths[1] as usize].iter();
    for rows in texts[0][..lengths[0] as usize].chunks(most) {
        let want = wanted.next().expect("logits of each step");
        let mut got = Vec::new();
        for (i, piece) in rows.chunks(most - most / 3).enumerate() {
            let beside = others.by_ref().take((most - piece.len()).min(7 * i + 3));
            let mut step: Vec<Row> = beside.copied().collect();
            step.extend(piece);
            let last = step.len() as u32 - 1;
            let logits = pieces.step_rows(prompt, &step, &[last]);
            got = bits(logits.expect("a valid step"));
        }
        assert!(got == *want, "in pieces: {}", case.what);
    }
}
