//! Verify refuses what has been tampered with.

mod common;

use common::Recipe;
use proptest::prelude::*;
use welte_models::{CompileOptions, compile, spec};
use welte_table::{
    BufferRef, CacheKind, Class, Command, Format, NO_WEIGHT, Op, Program, Usage, from_lines,
    to_lines, verify,
};

/// What is done to a good program.
type Tamper = fn(&mut Program);

fn program() -> Program {
    welte_table::fuse(compiled(), welte_table::PATTERNS)
}

/// In fine ops.
fn compiled() -> Program {
    let fake = Recipe {
        architecture: "qwen3",
        mlp_bias: true,
        ..Recipe::default()
    }
    .build();
    compile(&spec(&fake).unwrap(), &fake, &CompileOptions::default()).unwrap()
}

fn command(p: &mut Program, op: Op) -> &mut Command {
    p.passes[1]
        .commands
        .iter_mut()
        .find(|c| c.op == op)
        .unwrap()
}

/// The first command of the prompt pass that runs on output rows.
fn from(p: &Program) -> usize {
    p.passes[1].outputs_from().unwrap()
}

fn buffer(p: &Program, name: &str) -> usize {
    p.buffers.iter().position(|b| b.name == name).unwrap()
}

#[test]
fn tampered_programs_are_refused() {
    assert_eq!(verify(&program()), Ok(()));
    let cases: Vec<(&str, Tamper)> = vec![
        ("weight out of range", |p| {
            command(p, Op::NormMatmul).weights[0] = 9999
        }),
        ("weight missing", |p| {
            command(p, Op::NormMatmul).weights[1] = NO_WEIGHT
        }),
        ("weight too many", |p| {
            command(p, Op::Attention).weights[1] = 0
        }),
        ("sinks that are a matrix", |p| {
            command(p, Op::Attention).weights[0] = 0
        }),
        ("weight of another shape", |p| {
            command(p, Op::NormMatmul).weights[0] = 0
        }),
        ("buffer out of range", |p| {
            command(p, Op::MatmulAdd).buffers[0].buffer = 9999
        }),
        ("buffer missing", |p| {
            command(p, Op::MatmulAdd).buffers[1] = BufferRef::NONE
        }),
        ("buffer too many", |p| {
            command(p, Op::MatmulAdd).buffers[2] = BufferRef {
                buffer: 0,
                offset: 0,
            }
        }),
        ("write into the cache", |p| {
            let kv = buffer(p, "kv") as u32;
            command(p, Op::MatmulAdd).buffers[1].buffer = kv;
        }),
        ("offset beyond the end", |p| {
            command(p, Op::NormMatmul).buffers[1].offset = u32::MAX - 3
        }),
        ("offset shifts the last row out", |p| {
            command(p, Op::NormMatmul).buffers[1].offset = 4
        }),
        ("odd offset", |p| {
            command(p, Op::Attention).buffers[0].offset = 2
        }),
        ("reads what it writes", |p| {
            let c = command(p, Op::MatmulAdd);
            c.buffers[0] = c.buffers[1];
        }),
        ("n too large", |p| command(p, Op::NormMatmul).params[0] += 1),
        ("stride too large", |p| {
            command(p, Op::NormMatmul).params[4] *= 2
        }),
        ("stride too small", |p| {
            command(p, Op::NormMatmul).params[4] -= 1
        }),
        ("stride of zero", |p| {
            command(p, Op::MatmulAdd).params[3] = 0
        }),
        ("layer too high", |p| {
            command(p, Op::Attention).params[0] = 3
        }),
        ("heads that do not divide", |p| {
            command(p, Op::Attention).params[1] = 3
        }),
        ("no heads", |p| command(p, Op::Attention).params[2] = 0),
        ("rotates beyond the head", |p| {
            command(p, Op::RopeAppend).params[4] = 128
        }),
        ("scale is no number", |p| {
            command(p, Op::Attention).params[4] = f32::NAN.to_bits()
        }),
        ("unused words", |p| command(p, Op::Attention).params[15] = 1),
        ("another format", |p| {
            command(p, Op::NormMatmul).format = Format::F16
        }),
        ("wrong cost", |p| command(p, Op::NormMatmul).bytes += 1),
        ("unknown activation", |p| {
            command(p, Op::ActMul).params[1] = 4
        }),
        ("sample in a prompt", |p| {
            let sample = *p.passes[0].commands.last().unwrap();
            p.passes[1].commands.push(sample);
            p.passes[1].labels.push("sample".into());
        }),
        ("no sample in decode", |p| {
            p.passes[0].commands.pop();
            p.passes[0].labels.pop();
        }),
        ("labels missing", |p| drop(p.passes[0].labels.pop())),
        ("no rows", |p| p.passes[1].rows = 0),
        ("more rows than room", |p| p.passes[1].rows = 513),
        ("no outputs", |p| p.passes[1].outputs = 0),
        ("more outputs than room", |p| p.passes[1].outputs = 17),
        ("more outputs than rows", |p| {
            (p.passes[0].rows, p.passes[0].outputs) = (15, 16)
        }),
        ("fewer outputs than rows in decode", |p| {
            p.passes[0].outputs -= 1
        }),
        ("a wider result", |p| p.passes[1].width += 1),
        ("a result that nothing writes", |p| {
            p.passes[1].result.offset = 4
        }),
        ("positions on output rows", |p| {
            let (at, embed) = (from(p), p.passes[1].commands[0]);
            p.passes[1].commands.insert(at, embed);
            p.passes[1].labels.push("again".into());
        }),
        ("nothing selected", |p| {
            let select = from(p) - 1;
            p.passes[1].commands.remove(select);
            p.passes[1].labels.remove(select);
        }),
        ("two decode passes", |p| {
            let decode = p.passes[0].clone();
            p.passes.push(decode);
        }),
        ("decode not first", |p| p.passes.swap(0, 1)),
        ("no passes", |p| p.passes.clear()),
        ("cache of another size", |p| {
            let kv = buffer(p, "kv");
            p.buffers[kv].bytes -= 1;
        }),
        ("two caches", |p| {
            let kv = p.buffers[buffer(p, "kv")].clone();
            p.buffers.push(kv);
        }),
        ("two caches over one buffer", |p| {
            let kv = p.caches[0].clone();
            p.caches.push(kv);
        }),
        ("no cache", |p| p.caches.clear()),
        ("a cache without its buffer", |p| p.caches[0].buffer = 9999),
        ("a page too many", |p| p.caches[0].pages += 1),
        ("no context", |p| p.context = 0),
        ("no slots", |p| p.slots = 0),
        ("no page", |p| p.page = 0),
        ("cache overflows", |p| p.caches[0].pages = u32::MAX),
        ("a cache of another format", |p| {
            let CacheKind::Attention { format, .. } = &mut p.caches[0].kind else {
                panic!("the model has attention only")
            };
            *format = Format::F32;
        }),
        ("a window that the cache does not keep", |p| {
            let CacheKind::Attention { window, .. } = &mut p.caches[0].kind else {
                panic!("the model has attention only")
            };
            *window = 8;
        }),
        ("attention over a state", |p| {
            let floats = (p.buffers[p.caches[0].buffer as usize].bytes
                / u64::from(p.caches[0].pages)
                / 12) as u32;
            p.caches[0].kind = CacheKind::Recurrent { layers: 3, floats };
        }),
        ("tokens elsewhere", |p| p.tokens = 9999),
        ("tokens of another class", |p| {
            p.buffers[p.tokens as usize].class = Class::ScratchDecode
        }),
        ("tokens too small", |p| {
            p.buffers[p.tokens as usize].bytes = 4
        }),
        ("empty weight", |p| p.weights[0].n = 0),
        ("ragged weight", |p| p.weights[0].k = 255),
        ("lookup that is a vector", |p| {
            p.weights[0].usage = Usage::Vector
        }),
        ("another vocabulary", |p| p.vocab += 1),
    ];
    for (what, tamper) in cases {
        let mut p = program();
        tamper(&mut p);
        assert!(verify(&p).is_err(), "{what} was accepted");
    }
}

#[test]
fn only_declared_patterns_are_fused() {
    let some: &[_] = &[welte_table::PATTERNS[0], welte_table::PATTERNS[2]];
    let p = welte_table::fuse(compiled(), some);
    assert_eq!(verify(&p), Ok(()));
    let ops: Vec<Op> = p.passes[0].commands.iter().map(|c| c.op).collect();
    assert!(
        ops.contains(&Op::RopeAppend) && ops.contains(&Op::NormMatmul) && ops.contains(&Op::Add)
    );
    assert!(!ops.contains(&Op::MatmulAdd) && !ops.contains(&Op::KvAppend));
    assert!(p.buffers.iter().any(|b| b.name == "decode.sum"));
    // The last command of a prompt still runs on output rows.
    assert_eq!(p.passes[1].commands.len() - from(&p), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_damage_to_a_dump_never_panics(at in 0usize..100_000, with in "[ -~\n]{0,3}") {
        let text = to_lines(&program());
        let at = at % text.len();
        let end = (at + with.len()).min(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(end) {
            let damaged = format!("{}{with}{}", &text[..at], &text[end..]);
            if let Ok(p) = from_lines(&damaged) {
                let _ = verify(&p);
            }
        }
    }

    #[test]
    fn random_words_never_panic(
        index in 0usize..200, word in 0usize..23, value in prop::sample::select(vec![0, 1, 3, 1 << 31, u32::MAX]),
    ) {
        let mut p = program();
        let n = p.passes[1].commands.len();
        let c = &mut p.passes[1].commands[index % n];
        match word {
            0..16 => c.params[word] = value,
            16..19 => c.weights[word - 16] = value,
            _ => c.buffers[word - 19] = BufferRef { buffer: value & 7, offset: value },
        }
        welte_table::cost::fill(&mut p);
        let _ = verify(&p);
        let _ = verify(&welte_table::fuse(p, welte_table::PATTERNS));
    }
}
