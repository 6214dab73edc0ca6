//! The logits of draft layers: of the rows of a step, and of guesses that follow guesses.

use super::{Golden, Target, compare, cpu, goldens_in, reference};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use welte_device::{
    Context, Error, Guesses, Pick, Replay, Replaying, Role, SlotState, Step, StepOptions, Want,
    draft_by_steps,
};
use welte_formats::quantize::{Quantisation, Recipe, quantize};
use welte_formats::synthetic::Synthetic;
use welte_formats::{Checkpoint, Dialect, Metadata, TensorInfo, Value, WithDraft};
use welte_models::{CompileOptions, as_gguf};
use welte_table::{Format, PassKind, Program, Row, Sampling, Source};

/// The rounding of activations passes through the draft layer again with every guess.
pub(super) const MORE: f32 = 1.5;
/// Guesses after the first one at the end of each golden's prompt.
const GUESSES: usize = 2;

pub(super) fn program(checkpoint: &dyn Checkpoint, target: &Target, slots: u32) -> Arc<Program> {
    let options = CompileOptions {
        context: 64,
        page: 16,
        prompt_rows: 32,
        prompt_outputs: 32,
        decode_rows: 16,
        drafts: true,
        slots,
        ..CompileOptions::default()
    };
    let spec = welte_models::spec(checkpoint).expect("a known model");
    let program = welte_models::compile(&spec, checkpoint, &options).expect("a program");
    let program = welte_table::fuse(program, target.device.patterns());
    welte_table::verify(&program).expect("a valid program");
    Arc::new(program)
}

/// The rows of the draft layer after positions `first..end`. A drafter that attends to the model's keys and values is where its token is.
fn follow(program: &Program, tokens: &[u32], first: usize, end: usize) -> Vec<Row> {
    let ahead = i32::from(program.guesses_stay());
    let rows = (first..end).map(|at| Row::new(tokens[at + 1], at as u32, 0).shifted(ahead));
    rows.collect()
}

/// The draft logits of the last `rows` positions, and of the guesses after them. The last `decoded` positions are computed as
/// generated tokens are.
fn logits(
    context: &mut dyn Context,
    tokens: &[u32],
    rows: usize,
    decoded: usize,
) -> Result<Vec<f32>, Error> {
    let count = tokens.len() - 1 - GUESSES;
    let program = context.program().clone();
    let own: Vec<Row> = (0..count)
        .map(|at| Row::new(tokens[at], at as u32, 0))
        .collect();
    let pass = |context: &dyn Context, kind| context.program().pass(kind).expect("a pass");
    let guess = |context: &mut dyn Context, rows: &[Row], wanted: &[u32]| {
        let step = Step::of(Role::Draft, rows, wanted);
        context
            .step(&step, StepOptions::default())
            .map(<[f32]>::to_vec)
    };
    let mut got = Vec::new();
    let from = count - decoded;
    let last = decoded.max(rows);
    // The second time only the last position goes on.
    for wanted in [rows, 1] {
        let (prompt, decode) = (
            pass(context, PassKind::Prompt),
            pass(context, PassKind::Decode),
        );
        context.step_rows(prompt, &own[..from], &[])?;
        let (mut rows, mut numbers) = (follow(&program, tokens, 0, from), 0..from as u32);
        if decoded > 0 {
            guess(context, &rows, &[])?;
            context.step_rows(decode, &own[from..], &[])?;
            (rows, numbers) = (follow(&program, tokens, from, count), 0..decoded as u32);
        }
        assert!(last >= wanted && numbers.len() >= wanted);
        let numbers: Vec<u32> = numbers.rev().take(wanted).rev().collect();
        let values = guess(context, &rows, &numbers)?;
        if got.is_empty() {
            got = values;
        }
    }
    for at in count..count + GUESSES {
        let mut row = follow(&program, tokens, at, at + 1);
        if program.guesses_stay() {
            row[0] = Row {
                input: row[0].input,
                ..follow(&program, tokens, count - 1, count)[0]
            };
        }
        got.extend(guess(context, &row, &[0])?);
    }
    Ok(got)
}

/// The worst error, and how chains are replayed afterwards.
fn check(golden: &Golden, target: &Target) -> (f32, Option<Replaying>) {
    let file = welte_goldens::Golden::new(&golden.path);
    let checkpoint = welte_formats::open(file.path()).expect("a checkpoint");
    check_file(golden, checkpoint, target)
}

/// A model with a head that drafts for it.
pub(super) fn with_head(model: &str, head: &str) -> Box<dyn Checkpoint> {
    let [model, head] = [model, head].map(|name| {
        let golden = welte_goldens::Golden::new(name);
        welte_formats::open(golden.path()).expect("a checkpoint")
    });
    Box::new(WithDraft::new(model.into(), head.into()))
}

/// The same of another form of the golden's model.
fn check_file(
    golden: &Golden,
    mut checkpoint: Box<dyn Checkpoint>,
    target: &Target,
) -> (f32, Option<Replaying>) {
    // A golden of another model's name is a head that drafts for it.
    if !golden.path.starts_with(&golden.name) {
        checkpoint = with_head(&golden.path, &golden.name);
    }
    let program = program(checkpoint.as_ref(), target, 1);
    let plan = target.device.plan(program).expect("a plan");
    let loaded = target.device.load(plan, checkpoint.as_ref(), &mut |_| ());
    let mut context = loaded.expect("weights").context().expect("a context");
    let rows = golden.prompt.len() - golden.first;
    let mut worst = 0.0f32;
    for decoded in [0, rows - GUESSES, 9] {
        let got = logits(context.as_mut(), &golden.prompt, rows - GUESSES, decoded);
        let mut got = got.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        // Of tokens that a head does not know.
        got.retain(|logit| *logit != f32::MIN);
        assert_eq!(got.len(), golden.logits.len());
        let pairs = got
            .chunks(golden.vocabulary)
            .zip(golden.logits.chunks(golden.vocabulary));
        for (row, (got, want)) in pairs.enumerate() {
            let error = compare(got, want, MORE * (target.tolerance)(golden.format));
            let error = error.unwrap_or_else(|problem| {
                let (name, device) = (&golden.name, &target.name);
                panic!("{name} on {device}, {decoded} decoded, row {row}: {problem}")
            });
            worst = worst.max(error);
        }
    }
    (worst, context.replays().map(|tools| tools.replaying()))
}

fn all(targets: &[Target]) {
    let goldens = goldens_in(&["drafts.json"], |_, _| true);
    assert!(goldens.len() >= 10);
    for target in targets {
        let mut replayed = Vec::new();
        for golden in &goldens {
            let (worst, replaying) = check(golden, target);
            let how = replaying
                .as_ref()
                .map_or(String::new(), |how| format!(", {how}"));
            println!("{} on {}{how}: {worst:.1e}", golden.name, target.name);
            replayed.extend(replaying.map(|how| how.replay));
        }
        // Two of latents go by the graph.
        let as_asked = |how: &&Replay| target.replay.is_none_or(|asked| **how == asked);
        let expected = if target.replay.is_some() {
            goldens.len() - 2
        } else {
            replayed.len()
        };
        assert_eq!(replayed.iter().filter(as_asked).count(), expected);
    }
}

/// Guesses of three slots in one call, which want different numbers of them, are those that steps give one by one. Some slots choose at
/// random, look back, or are left to the host by the device.
fn in_one_call(targets: &[Target]) {
    let own = welte_goldens::Golden::new("drafts/glm4_moe/hf");
    let own = welte_formats::open(own.path()).expect("a checkpoint");
    // Guesses of the other one stay at their position.
    let assistant = with_head("gemma4/effective", "drafts/gemma4_assistant/hf");
    for (checkpoint, target) in [own, assistant]
        .iter()
        .flat_map(|checkpoint| targets.iter().map(move |target| (checkpoint, target)))
    {
        let program = program(checkpoint.as_ref(), target, 3);
        let plan = target.device.plan(program.clone()).expect("a plan");
        let loaded = target.device.load(plan, checkpoint.as_ref(), &mut |_| ());
        let mut context = loaded.expect("weights").context().expect("a context");
        let random = |seed| Sampling {
            temperature: 2.0,
            top_k: 20,
            seed,
            ..Sampling::default()
        };
        let penalised = Sampling {
            repeat_penalty: 1.5,
            repeat_last_n: 64,
            ..Sampling::default()
        };
        let on_host = Sampling {
            xtc_probability: 0.5,
            ..random(3)
        };
        let mut seen = BTreeSet::new();
        for (nth, wanted) in [[4, 4, 4], [1, 5, 3], [6, 1, 1]].into_iter().enumerate() {
            let samplings = [random(7 + nth as u64), penalised, on_host];
            for slots in [&[0u32, 1][..], &[0, 1, 2], &[1]] {
                let prompts = |context: &mut dyn Context| {
                    let mut all = Vec::new();
                    for slot in slots {
                        let state = SlotState {
                            sampling: samplings[*slot as usize],
                            history: &[1, 2, 3],
                            ends: &[5, 6, 7, 8],
                            masked: true,
                            ..SlotState::default()
                        };
                        context.set_slot(*slot, &state).expect("a slot");
                        let own = 5 + *slot;
                        all.extend((0..own).map(|at| Row::new(at * 7 % 90 + slot, at, *slot)));
                    }
                    let prompt = context.program().pass(PassKind::Prompt).expect("a pass");
                    context.step_rows(prompt, &all, &[]).expect("a prompt");
                    // Each row reads the next token; the last one of each slot guesses.
                    let stays = context.program().guesses_stay();
                    let next =
                        |row: &Row| row.later((row.token() + 7) % 90, 0).shifted(stays.into());
                    let rows: Vec<Row> = all.iter().map(next).collect();
                    let mut step = Step {
                        guesses: match stays {
                            true => Guesses::Staying(0),
                            false => Guesses::Moving,
                        },
                        ..Step::default()
                    };
                    for rows in rows.chunk_by(|a, b| a.slot == b.slot) {
                        let row = step.add(Role::Draft, rows.iter().copied()).end - 1;
                        let want = Want::Token { draft: None };
                        step.picks.push(Pick { row, want });
                    }
                    step
                };
                let wanted = &wanted[..slots.len()];
                let most = *wanted.iter().max().expect("slots") as usize;
                let guesses = |one_call: bool, context: &mut dyn Context| {
                    let mut step = prompts(context);
                    let mut tokens = vec![0; most * slots.len()];
                    if one_call {
                        context.draft(&mut step, wanted, &mut tokens)?;
                    } else {
                        draft_by_steps(&mut step, wanted, &mut tokens, &mut |step, tokens| {
                            context.step(step, StepOptions::tokens(tokens)).map(drop)
                        })?;
                    }
                    let wanted = (0..).zip(&tokens).filter(|(at, _)| {
                        let [nth, pick] = [at / slots.len(), at % slots.len()];
                        nth < wanted[pick] as usize
                    });
                    let wanted = wanted.map(|(_, token)| *token).collect();
                    // What was left behind is the same: keys and values, and hidden states in the order of the picks.
                    let next = slots.iter().map(|slot| Row::new(9, 30, *slot));
                    let next: Vec<Row> = next.collect();
                    let all: Vec<u32> = (0..slots.len() as u32).collect();
                    let step = Step::of(Role::Draft, &next, &all);
                    let after = context.step(&step, StepOptions::default())?;
                    Ok::<(Vec<u32>, Vec<f32>), Error>((wanted, after.to_vec()))
                };
                let one_by_one = guesses(false, context.as_mut()).expect("guesses");
                let together = guesses(true, context.as_mut()).expect("guesses");
                let name = &target.name;
                assert_eq!(one_by_one.0, together.0, "{wanted:?} on {name}");
                let same = one_by_one.1 == together.1;
                assert!(same, "{wanted:?} on {name} leave something else behind");
                seen.extend(one_by_one.0);
            }
        }
        assert!(seen.len() > 8, "{seen:?}");
        // Without a pick nothing is guessed; and what cannot be is refused.
        let rows = [Row::new(1, 0, 0), Row::new(2, 1, 0)];
        let mut step = Step::of(Role::Draft, &rows, &[]);
        context.draft(&mut step, &[], &mut []).expect("a step");
        let refused = |context: &mut dyn Context, wanted: &[u32], room: usize| {
            let mut step = Step::of(Role::Draft, &[Row::new(1, 60, 0)], &[]);
            let want = Want::Token { draft: None };
            step.picks.push(Pick { row: 0, want });
            let drafted = context.draft(&mut step, wanted, &mut vec![0; room]);
            drafted.expect_err("a refusal").to_string()
        };
        let why = refused(context.as_mut(), &[2], 3);
        assert!(why.contains("room for 3"), "{why}");
        let why = refused(context.as_mut(), &[0], 0);
        assert!(why.contains("at least one"), "{why}");
        if !program.guesses_stay() {
            let why = refused(context.as_mut(), &[5], 5);
            assert!(why.contains("beyond the context of 64"), "{why}");
        }
    }
}

/// The draft logits after generated rows of two slots, which come in the order of neither slots nor positions.
fn of_two_slots(context: &mut dyn Context) -> Result<Vec<f32>, Error> {
    let pass = |context: &dyn Context, kind| context.program().pass(kind).expect("a pass");
    let row = |slot: u32, at: u32| Row::new((at * 37 + slot * 11) % 1000, at, slot);
    let (prompt, decode) = (
        pass(context, PassKind::Prompt),
        pass(context, PassKind::Decode),
    );
    let past: Vec<Row> = (0..5)
        .map(|at| row(0, at))
        .chain((0..9).map(|at| row(1, at)))
        .collect();
    context.step_rows(prompt, &past, &[])?;
    let generated = [row(1, 9), row(1, 10), row(0, 5), row(0, 6), row(0, 7)];
    context.step_rows(decode, &generated, &[])?;
    let next = generated.map(|at| at.later(row(at.slot, at.position + 1).token(), 0));
    let step = Step::of(Role::Draft, &next, &[0, 1, 2, 3, 4]);
    context
        .step(&step, StepOptions::default())
        .map(<[f32]>::to_vec)
}

/// A dense model's draft layer agrees with the reference. Of such models persistent kernels compute several rows at once.
fn dense(targets: &[Target]) {
    let checkpoint = Synthetic::parse("tiny,arch=qwen3,draft=true:q8_0").expect("a model");
    let prompt: Vec<u32> = (0..20).map(|at| at * 37 % 1000).collect();
    let rows = 12;
    let on = |target: &Target| {
        let program = program(&checkpoint, target, 2);
        let plan = target.device.plan(program).expect("a plan");
        let loaded = target.device.load(plan, &checkpoint, &mut |_| ());
        let mut context = loaded.expect("weights").context().expect("a context");
        let mut all = vec![of_two_slots(context.as_mut()).expect("logits")];
        all.extend([0, rows, 3].map(|decoded| {
            // As many rows are compared.
            let rows = if decoded == 0 { rows } else { decoded };
            logits(context.as_mut(), &prompt, rows, decoded).expect("logits")
        }));
        if let (Some(asked), Some(tools)) = (target.replay, context.replays()) {
            let Replaying { replay, note } = tools.replaying();
            assert_eq!((replay, note), (asked, None));
        }
        all
    };
    let [oracle] = &reference()[..] else {
        panic!("one reference");
    };
    let wanted = on(oracle);
    for target in targets {
        for (got, want) in on(target).iter().zip(&wanted) {
            assert_eq!(got.len(), want.len());
            for (row, (got, want)) in got.chunks(1024).zip(want.chunks(1024)).enumerate() {
                let error = compare(got, want, MORE * (target.tolerance)(Format::Q8_0));
                let error =
                    error.unwrap_or_else(|why| panic!("row {row} on {}: {why}", target.name));
                println!("row {row} on {}: {error:.1e}", target.name);
            }
        }
    }
}

#[test]
fn draft_layers_on_the_reference() {
    all(&reference());
    in_one_call(&reference());
}

#[test]
fn draft_layers_on_the_cpu() {
    all(&cpu());
    in_one_call(&super::best_cpu());
    dense(&cpu());
}

/// Ranks agree too, two on the reference and three on the CPU, and each goes on from its own guesses.
#[test]
fn draft_layers_on_ranks() {
    let dealt = [(2, reference()), (3, super::best_cpu())];
    let targets = dealt.map(|(count, mut targets)| {
        let one = targets.remove(0);
        let devices = vec![one.device; count];
        Target {
            name: format!("{count} x {}", one.name),
            device: welte_ranks::device_by(devices, 0, Duration::from_secs(60)),
            ..one
        }
    });
    all(&targets);
    in_one_call(&targets);
}

/// The golden's head as a GGUF file of llama.cpp has it: pairs of rope are neighbours, and the map has tokens in place of distances.
fn head_in_gguf(head: &dyn Checkpoint, path: &std::path::Path) {
    let key = |name: &str| format!("eagle3.{name}");
    let number = |name: &str, n: u64| (key(name), Value::U64(n));
    let taps = [1, 0, 2].map(Value::U64);
    let mut metadata = Metadata::from([
        (
            "general.architecture".to_string(),
            Value::String("eagle3".to_string()),
        ),
        number("context_length", 512),
        number("embedding_length", 64),
        number("block_count", 1),
        number("feed_forward_length", 96),
        number("attention.head_count", 4),
        number("attention.head_count_kv", 2),
        number("attention.key_length", 32),
        number("attention.value_length", 32),
        number("vocab_size", 251),
        (key("target_layers"), Value::Array(taps.into())),
    ]);
    metadata.insert(key("attention.layer_norm_rms_epsilon"), Value::F64(1e-5));
    metadata.insert(key("rope.freq_base"), Value::F64(1e4));
    let names = [
        ("fc", "fc"),
        ("norm", "output_norm"),
        ("lm_head", "output"),
        ("midlayer.input_layernorm", "blk.0.attn_norm"),
        ("midlayer.hidden_norm", "blk.0.attn_norm_2"),
        ("midlayer.post_attention_layernorm", "blk.0.ffn_norm"),
        ("midlayer.self_attn.q_proj", "blk.0.attn_q"),
        ("midlayer.self_attn.k_proj", "blk.0.attn_k"),
        ("midlayer.self_attn.v_proj", "blk.0.attn_v"),
        ("midlayer.self_attn.o_proj", "blk.0.attn_output"),
        ("midlayer.mlp.gate_proj", "blk.0.ffn_gate"),
        ("midlayer.mlp.up_proj", "blk.0.ffn_up"),
        ("midlayer.mlp.down_proj", "blk.0.ffn_down"),
    ];
    let map = head.tensor("d2t").expect("a map").clone();
    let mut tensors = vec![map.clone()];
    let words = head.rows(&map, 0, 1).expect("its numbers");
    let (words, _) = words.as_chunks::<8>();
    let distances = words.iter().map(|word| i64::from_le_bytes(*word));
    let tokens = (0i64..)
        .zip(distances)
        .map(|(own, distance)| own + distance);
    let mut data = vec![tokens.flat_map(i64::to_le_bytes).collect::<Vec<u8>>()];
    for (hf, gguf) in names {
        let info = head.tensor(&format!("{hf}.weight")).expect("a tensor");
        let rows = head.rows(info, 0, info.n).expect("its rows");
        let each = rows.len() / info.n;
        let is_rotated = hf.ends_with("q_proj") || hf.ends_with("k_proj");
        // Of each head of 32 rows, row i and row 16 + i.
        let from = |at: usize| match is_rotated {
            true => at / 32 * 32 + at % 2 * 16 + at % 32 / 2,
            false => at,
        };
        let bytes = (0..info.n).flat_map(|at| rows[from(at) * each..][..each].to_vec());
        let mut bytes: Vec<u8> = bytes.collect();
        let mut info = TensorInfo {
            name: format!("{gguf}.weight"),
            ..info.clone()
        };
        if info.n == 1 {
            let mut floats = vec![0.0; info.k];
            welte_formats::quant::decode(info.format, &bytes, &mut floats);
            bytes = floats
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            info.format = Format::F32;
        }
        tensors.push(info);
        data.push(bytes);
    }
    let mut writer = welte_formats::gguf::Writer::create(path, &metadata, head.kinds(), &tensors)
        .expect("a file");
    for bytes in &data {
        writer.write(bytes).expect("its bytes");
    }
    writer.finish().expect("a file");
    // The writer knows no integers: the map's entry has its size and its type changed.
    let mut file = std::fs::read(path).expect("a file");
    let name = b"d2t";
    let at = file
        .windows(3)
        .position(|bytes| bytes == name)
        .expect("the map")
        + 3;
    let dims = u32::from_le_bytes(file[at..at + 4].try_into().expect("a number")) as usize;
    file[at + 4..at + 12].copy_from_slice(&(words.len() as u64).to_le_bytes());
    let kind = at + 4 + 8 * dims;
    assert_eq!(file[kind..kind + 4], [0; 4], "F32");
    file[kind..kind + 4].copy_from_slice(&27u32.to_le_bytes());
    std::fs::write(path, file).expect("a file");
}

#[test]
fn a_head_in_gguf_knows_a_part_of_the_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("head.gguf");
    let open = |path: &std::path::Path| welte_formats::open(path).expect("a checkpoint");
    let golden = goldens_in(&["drafts.json"], |of, _| of == "eagle3").remove(0);
    let (file, own) = (
        welte_goldens::Golden::new(&golden.path),
        welte_goldens::Golden::new(&golden.name),
    );
    head_in_gguf(open(own.path()).as_ref(), &path);
    let known = |head: &std::path::Path| {
        let both = WithDraft::new(open(file.path()).into(), open(head).into());
        let program = program(&both, &reference()[0], 1);
        let map = program.weights.iter().find(|w| w.name == "draft tokens");
        map.expect("a map").source.clone()
    };
    let map = known(&path);
    assert_eq!(map, known(own.path()));
    let Source::Constant(places) = map else {
        panic!("{map:?}");
    };
    assert_eq!(places.iter().filter(|place| **place >= 0.0).count(), 96);
    let golden = Golden {
        name: golden.path.clone(),
        ..golden
    };
    for target in reference().iter().chain(&super::best_cpu()) {
        let both = WithDraft::new(open(file.path()).into(), open(&path).into());
        check_file(&golden, Box::new(both), target);
    }
}

/// A directory that is written as a GGUF file keeps its draft layer, and so does a file in another format.
#[test]
fn draft_layers_are_written() {
    are_written("glm4_moe");
}

#[test]
fn draft_layers_of_recurrent_models_are_written() {
    are_written("qwen35");
}

#[test]
fn draft_layers_that_differ_are_written() {
    are_written("exaone_moe");
    are_written("bailingmoe2");
}

fn are_written(architecture: &str) {
    // Rounded activations may choose other experts than rounded weights do: the same arithmetic on every machine.
    let target = &super::cpu()[0];
    let folder = tempfile::tempdir().expect("a folder");
    for golden in goldens_in(&["drafts.json"], |of, _| of == architecture) {
        let file = welte_goldens::Golden::new(&golden.path);
        let opened = welte_formats::open(file.path()).expect("a checkpoint");
        let written = opened.dialect() == Dialect::Gguf;
        let gguf: Box<dyn Checkpoint> = match opened.dialect() {
            Dialect::Gguf => opened,
            Dialect::HuggingFace => {
                Box::new(as_gguf(opened, Metadata::new()).expect("a form in GGUF"))
            }
        };
        let path = folder.path().join("model.gguf");
        let to = Quantisation {
            recipe: Recipe::from_name("Q8_0").expect("a recipe"),
            overrides: Vec::new(),
            importance: None,
            threads: 1,
        };
        quantize(gguf.as_ref(), &path, &to, &mut |_, _| ()).expect("a file");
        if !written {
            check_file(&golden, gguf, target);
        }
        let file = welte_formats::open(&path).expect("a file");
        let spec = welte_models::spec(file.as_ref()).expect("a model");
        assert!(spec.has_draft_layer(file.as_ref()), "{}", golden.name);
        let rounded = Golden {
            format: Format::Q8_0,
            ..golden
        };
        check_file(&rounded, file, target);
    }
}

#[test]
fn draft_layers_on_portable() {
    all(&super::gpu());
    in_one_call(&super::gpu());
    dense(&super::gpu());
}

#[test]
#[ignore = "needs a GPU"]
fn draft_layers_on_cuda() {
    all(&super::cuda());
    in_one_call(&super::cuda());
    dense(&super::cuda());
}

#[test]
#[ignore = "needs a GPU"]
fn draft_layers_on_cuda_by_the_persistent_kernel() {
    dense(&super::persistent());
    all(&super::persistent());
    in_one_call(&super::persistent());
}
