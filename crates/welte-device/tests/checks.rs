//! Every refusal of [`Checks`], with the words that a person reads.

use welte_device::{
    ChainStart, Checks, Choice, Error, Pick, Role, SlotState, Span, Stage, Step, StepOptions,
    StepPlan, Want,
};
use welte_table::{
    BufferRef, BufferSpec, CacheKind, CacheSpec, Class, Command, Format, Input, Op, Pass, PassKind,
    Program, Row, params,
};

/// A vocabulary of 10, a context of 8 in pages of 3, 2 slots; passes of 2, 4 and 4 rows; a cache of 5 pages.
fn program() -> Program {
    let pass = |kind, rows, outputs| Pass {
        kind,
        adapted: false,
        rows,
        outputs,
        width: 10,
        result: BufferRef::NONE,
        commands: Vec::new(),
        labels: Vec::new(),
    };
    Program {
        weights: Vec::new(),
        buffers: Vec::new(),
        caches: vec![CacheSpec {
            name: "kv".into(),
            buffer: 0,
            pages: 5,
            kind: CacheKind::Attention {
                format: Format::F16,
                layers: 1,
                kv_heads: 1,
                head_dim: 2,
                window: 0,
            },
        }],
        vocab: 10,
        context: 8,
        page: 3,
        slots: 2,
        tokens: 0,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: vec![
            pass(PassKind::Decode, 2, 2),
            pass(PassKind::Prompt, 4, 3),
            pass(PassKind::Embed, 4, 4),
        ],
    }
}

/// The same with recurrent state.
fn recurrent() -> Program {
    let mut program = program();
    program.caches.push(CacheSpec {
        name: "conv".into(),
        buffer: 1,
        pages: 3,
        kind: CacheKind::Recurrent {
            layers: 1,
            floats: 4,
        },
    });
    program
}

fn row(slot: u32, position: u32) -> Row {
    Row::new(1, position, slot)
}

fn start(slot: u32, position: u32, steps: u32) -> ChainStart {
    ChainStart {
        slot,
        token: 1,
        position,
        steps,
        shift: 0,
    }
}

/// The text of a refused request.
#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Request(text)) => text,
        other => panic!("not a refused request: {other:?}"),
    }
}

const GENERATED: Role = Role::Generated;
const PROMPT: Role = Role::Prompt;
const TEXT: Role = Role::Text;

#[track_caller]
fn step(role: Role, rows: &[Row], outputs: &[u32]) -> Result<StepPlan, Error> {
    let program = program();
    whole(
        &mut Checks::new(&program).taking_features(),
        &program,
        &Step::of(role, rows, outputs),
    )
}

fn whole(checks: &mut Checks, program: &Program, step: &Step) -> Result<StepPlan, Error> {
    checks.step(program, step, &StepOptions::default())
}

#[test]
fn good_steps_say_how_many_rows_they_yield() {
    let plan = |pass, rows, outputs| StepPlan {
        pass,
        rows,
        generated: if pass == 0 { rows } else { 0 },
        outputs,
    };
    let both = [row(0, 7), row(1, 7)];
    assert_eq!(step(GENERATED, &both, &[]).unwrap(), plan(0, 2, 2));
    let four = [row(0, 0), row(0, 1), row(1, 5), row(0, 2)];
    assert_eq!(step(PROMPT, &four, &[]).unwrap(), plan(1, 4, 0));
    assert_eq!(step(PROMPT, &four, &[0, 2, 3]).unwrap(), plan(1, 4, 3));
    assert_eq!(step(TEXT, &four, &[0, 1, 2, 3]).unwrap(), plan(2, 4, 4));
}

#[test]
fn impossible_steps_are_refused() {
    let far = row(0, 8);
    let other = row(2, 0);
    let unknown = Row::new(10, 0, 0);
    let two = [row(0, 0), row(0, 1)];
    let five = [0, 1, 2, 3, 4].map(|position| row(0, position));
    let four = &five[..4];
    let cases: [(Role, &[Row], &[u32], &str); 11] = [
        (GENERATED, &[], &[], "0 rows; the decode pass takes 1 to 2"),
        (PROMPT, &five, &[], "5 rows; the prompt pass takes 1 to 4"),
        (
            GENERATED,
            &[unknown],
            &[],
            "token 10 is not in the vocabulary of 10",
        ),
        (
            GENERATED,
            &[far],
            &[],
            "position 8 is beyond the context of 8",
        ),
        (GENERATED, &[other], &[], "slot 2; there are 2"),
        (
            PROMPT,
            &[row(1, 4), row(0, 4), row(1, 4)],
            &[],
            "position 4 of slot 1 appears twice",
        ),
        (
            GENERATED,
            &two,
            &[0],
            "all generated rows are output rows; pick them for tokens only",
        ),
        (
            PROMPT,
            four,
            &[0, 1, 2, 3],
            "4 outputs; the prompt pass yields at most 3",
        ),
        (
            PROMPT,
            &two,
            &[2],
            "picks must be ascending row numbers below 2",
        ),
        (
            PROMPT,
            &two,
            &[1, 0],
            "picks must be ascending row numbers below 2",
        ),
        (
            TEXT,
            &two,
            &[1, 1],
            "picks must be ascending row numbers below 2",
        ),
    ];
    for (role, rows, outputs, text) in cases {
        assert_eq!(refusal(step(role, rows, outputs)), text);
    }
}

#[test]
fn recurrent_rows_follow_each_other() {
    let program = recurrent();
    let mut checks = Checks::new(&program);
    let mut step = |rows: &[Row]| whole(&mut checks, &program, &Step::of(PROMPT, rows, &[]));
    assert!(step(&[row(0, 3), row(1, 0), row(0, 4), row(1, 1)]).is_ok());
    let gap =
        "position 5 of slot 0 does not follow its last row; recurrent state needs consecutive rows";
    assert_eq!(refusal(step(&[row(0, 3), row(1, 4), row(0, 5)])), gap);
    let back =
        "position 3 of slot 0 does not follow its last row; recurrent state needs consecutive rows";
    assert_eq!(refusal(step(&[row(0, 4), row(0, 3)])), back);
    // Attention alone needs no order.
    let program = self::program();
    let rows = [row(0, 4), row(0, 3)];
    assert!(
        whole(
            &mut Checks::new(&program),
            &program,
            &Step::of(PROMPT, &rows, &[])
        )
        .is_ok()
    );
}

#[test]
fn impossible_chains_are_refused() {
    let program = program();
    let mut checks = Checks::new(&program);
    let mut chain = |starts: &[ChainStart], most| checks.chain(&program, starts, most);
    assert!(chain(&[start(0, 7, 1), start(1, 0, 8)], 2).is_ok());
    assert!(chain(&[start(1, 7, 0)], 1).is_ok());
    let unknown = ChainStart {
        token: 10,
        ..start(0, 0, 1)
    };
    let cases: [(&[ChainStart], usize, &str); 7] = [
        (&[], 2, "a chain of 0 slots; this device takes 1 to 2"),
        (
            &[start(0, 0, 1), start(1, 0, 1)],
            1,
            "a chain of 2 slots; this device takes 1 to 1",
        ),
        (&[unknown], 2, "token 10 is not in the vocabulary of 10"),
        (
            &[start(0, 8, 0)],
            2,
            "position 8 is beyond the context of 8",
        ),
        (&[start(2, 0, 1)], 2, "slot 2; there are 2"),
        (
            &[start(0, 7, 2)],
            2,
            "2 tokens from position 7 exceed the context of 8",
        ),
        (
            &[start(1, 0, u32::MAX)],
            2,
            "4294967295 tokens from position 0 exceed the context of 8",
        ),
    ];
    for (starts, most, text) in cases {
        assert_eq!(refusal(chain(starts, most)), text);
    }
    // One slot has one chain, wherever its two starts are.
    let twice = [start(1, 0, 1), start(1, 5, 1)];
    assert!(refusal(chain(&twice, 2)).contains("slot 1"));
}

#[test]
fn impossible_picks_are_refused() {
    let program = program();
    let checks = Checks::new(&program);
    let choice = |output, slot| Choice {
        output,
        slot,
        position: 99,
        draft: None,
    };
    let choices =
        |all: &[Choice], tokens: usize| checks.choices(&program, all, &vec![0; tokens], 3);
    assert!(choices(&[choice(2, 1), choice(2, 0), choice(0, 1)], 3).is_ok());
    assert!(choices(&[], 0).is_ok());
    assert_eq!(
        refusal(choices(&[choice(0, 0)], 2)),
        "1 choices and room for 2 tokens"
    );
    assert_eq!(
        refusal(choices(&[choice(3, 0)], 1)),
        "output 3; the last step yielded 3"
    );
    assert_eq!(refusal(choices(&[choice(0, 2)], 1)), "slot 2; there are 2");
}

#[test]
fn impossible_pages_are_refused() {
    let program = recurrent();
    let checks = Checks::new(&program);
    let pages =
        |cache, slot, first, pages: &[u32]| checks.pages(&program, cache, slot, first, pages);
    // Three entries per slot, one of them in part.
    assert_eq!(pages(0, 0, 0, &[4, 4, 0]).unwrap(), 0);
    assert_eq!(pages(0, 1, 2, &[3]).unwrap(), 5);
    assert_eq!(pages(1, 1, 0, &[2]).unwrap(), 1);
    assert_eq!(refusal(pages(0, 2, 0, &[0])), "slot 2; there are 2");
    assert_eq!(refusal(pages(2, 0, 0, &[0])), "cache 2; the program has 2");
    assert_eq!(
        refusal(pages(0, 0, 0, &[0, 5])),
        "page 5 of cache 'kv', which has 5"
    );
    assert_eq!(
        refusal(pages(0, 0, 2, &[0, 1])),
        "entries 2 to 4 of cache 'kv', which has 3 per slot"
    );
    assert_eq!(
        refusal(pages(1, 0, 1, &[0])),
        "entries 1 to 2 of cache 'conv', which has 1 per slot"
    );
    assert_eq!(
        refusal(checks.cache(&program, 1, [0, 3])),
        "page 3 of cache 'conv', which has 3"
    );
    assert_eq!(checks.cache(&program, 1, [0, 2]).unwrap().name, "conv");
    assert_eq!(refusal(checks.slot(&program, 2)), "slot 2; there are 2");
    assert!(checks.slot(&program, 1).is_ok());
}

#[test]
fn a_slot_takes_lists_up_to_their_bounds() {
    let program = program();
    let mut checks = Checks::new(&program);
    let mut state = |slot, biases, ends| {
        let (bias, ends) = (vec![(1, 0.5); biases], vec![1; ends]);
        let state = SlotState {
            bias: &bias,
            ends: &ends,
            ..SlotState::default()
        };
        checks.slot_state(&program, slot, &state)
    };
    assert!(state(1, 1024, 256).is_ok());
    assert_eq!(
        refusal(state(1, 1025, 0)),
        "1025 biases; a slot takes at most 1024"
    );
    assert_eq!(
        refusal(state(1, 0, 257)),
        "257 end tokens; a slot takes at most 256"
    );
    assert_eq!(refusal(state(2, 0, 0)), "slot 2; there are 2");
}

#[test]
fn pages_are_read_and_written_whole() {
    let program = recurrent();
    let checks = Checks::new(&program);
    let page = |cache, page, bytes| checks.page(&program, cache, page, bytes);
    // Three positions of keys and values, two halves each.
    assert_eq!(page(0, 4, 24).unwrap().name, "kv");
    // Four floats.
    assert_eq!(page(1, 2, 16).unwrap().name, "conv");
    assert_eq!(
        refusal(page(0, 4, 23)),
        "23 bytes for a page of cache 'kv', which has 24"
    );
    assert_eq!(
        refusal(page(1, 0, 24)),
        "24 bytes for a page of cache 'conv', which has 16"
    );
    assert_eq!(refusal(page(0, 5, 24)), "page 5 of cache 'kv', which has 5");
    assert_eq!(refusal(page(2, 0, 24)), "cache 2; the program has 2");
}

#[test]
fn spans_cover_the_rows_in_order() {
    let program = program();
    let mut checks = Checks::new(&program).mixing(true);
    let mut mixed = Step::of(GENERATED, &[row(0, 3)], &[]);
    mixed.add_all(PROMPT, &[row(1, 0), row(1, 1)]);
    let token = Want::Token { draft: None };
    mixed.picks = [0, 2].map(|row| Pick { row, want: token }).to_vec();
    let plan = whole(&mut checks, &program, &mixed).unwrap();
    assert_eq!((plan.pass, plan.rows), (1, 3));
    assert_eq!((plan.generated, plan.outputs), (1, 2));
    let choices: Vec<_> = mixed.choices().map(|one| (one.output, one.slot)).collect();
    assert_eq!(choices, [(0, 0), (1, 1)]);
    let no_mixing = whole(&mut Checks::new(&program), &program, &mixed);
    assert!(refusal(no_mixing).contains("one after the other"));
    let mut refused = |change: &dyn Fn(&mut Step)| {
        let mut step = mixed.clone();
        change(&mut step);
        refusal(whole(&mut checks, &program, &step))
    };
    assert_eq!(refused(&|s| s.spans[1].rows = 1), "spans of 2 rows for 3");
    assert_eq!(
        refused(&|s| s.spans.reverse()),
        "spans in disorder; generated rows come first, then prompts"
    );
    assert_eq!(
        refused(&|s| s.spans[1].role = TEXT),
        "a step of texts and of other rows"
    );
    assert_eq!(
        refused(&|s| s.rows[1].slot = 0),
        "span 1; it must have rows of one slot"
    );
    let (rows, role) = (0, PROMPT);
    assert_eq!(
        refused(&|s| s.spans.push(Span { role, rows })),
        "span 2; it must have rows of one slot"
    );
}

#[test]
fn a_row_reaches_to_the_end_of_its_span() {
    let rows = [0, 1, 2].map(|position| row(0, position));
    let reaching = |nth: usize, reach| {
        let mut rows = rows;
        rows[nth].reach = reach;
        step(PROMPT, &rows, &[])
    };
    assert!(reaching(0, 2).is_ok());
    assert_eq!(
        refusal(reaching(0, 3)),
        "reach 3 of position 0; it must be from its position to the span's last, 2"
    );
    assert_eq!(
        refusal(reaching(2, 1)),
        "reach 1 of position 2; it must be from its position to the span's last, 2"
    );
}

#[test]
fn rows_that_are_not_text_need_a_device_for_them() {
    let text = row(0, 3);
    let input = Input::Feature(2);
    let rows = [
        Row { input, ..text },
        Row {
            axes: [3, 3, 4],
            ..text
        },
        Row { reach: 4, ..text },
    ];
    let mut program = program();
    for row in rows {
        let step = Step::of(PROMPT, &[row, self::row(0, 4)], &[]);
        let refused = refusal(whole(&mut Checks::new(&program), &program, &step));
        assert!(refused.contains("takes tokens of texts only"), "{refused}");
    }
    assert_eq!(
        refusal(step(PROMPT, &rows[..1], &[])),
        "feature 2; the program has 0"
    );
    let embed = params::Embed {
        n: 10,
        k: 3,
        scale: 1.0,
        x_stride: 3,
    };
    let embed = Command::new(Op::Embed, Format::F32, &[0], &[], embed.words());
    program.passes[0].commands.push(embed);
    program.features = program.buffers.len() as u32;
    program.buffers.push(BufferSpec {
        name: "features".into(),
        class: Class::ScratchPrompt,
        bytes: 3 * 3 * 4,
    });
    let mut checks = Checks::new(&program).taking_features();
    let mut of = |number| {
        let input = Input::Feature(number);
        let step = Step::of(PROMPT, &[Row { input, ..text }], &[]);
        whole(&mut checks, &program, &step)
    };
    assert!(of(2).is_ok());
    assert_eq!(refusal(of(3)), "feature 3; the program has 3");
}

#[test]
fn a_step_that_is_run_in_parts_begins_and_ends_once() {
    let program = program();
    let mut checks = Checks::new(&program);
    let good = Step::of(PROMPT, &[row(0, 0)], &[]);
    let far = Step::of(PROMPT, &[row(0, 8)], &[]);
    let mut part = |step: &Step, part| checks.step(&program, step, &StepOptions::stage(part));
    let run = || Stage::run(0..1);
    assert_eq!(refusal(part(&good, run())), "no step was begun");
    assert_eq!(refusal(part(&good, Stage::End)), "no step was begun");
    part(&good, Stage::Begin).unwrap();
    assert_eq!(part(&good, run()).unwrap().pass, 1);
    assert_eq!(part(&good, Stage::End).unwrap().pass, 1);
    assert_eq!(refusal(part(&good, run())), "no step was begun");
    // Another step ends it, refused or not.
    for step in [&good, &far] {
        part(&good, Stage::Begin).unwrap();
        assert_eq!(part(step, Stage::Whole).is_ok(), step == &good);
        assert_eq!(refusal(part(&good, run())), "no step was begun");
    }
    let two = Step::of(PROMPT, &[row(0, 0), row(0, 1)], &[]);
    part(&good, Stage::Begin).unwrap();
    assert_eq!(
        refusal(part(&two, run())),
        "a step of 2 rows goes on; the one that was begun has 1"
    );
    part(&far, Stage::Begin).unwrap_err();
    assert_eq!(refusal(part(&good, run())), "no step was begun");
    part(&good, Stage::Begin).unwrap();
    checks.chain(&program, &[start(0, 0, 1)], 1).unwrap();
    let run = StepOptions::stage(run());
    assert_eq!(
        refusal(checks.step(&program, &good, &run)),
        "no step was begun"
    );
}

#[test]
fn tokens_have_room() {
    let program = program();
    let mut checks = Checks::new(&program);
    let step = Step::choosing(&[row(0, 0), row(1, 0)]);
    let mut room = |room: usize| {
        let mut tokens = vec![0; room];
        checks.step(&program, &step, &StepOptions::tokens(&mut tokens))
    };
    assert!(room(2).is_ok());
    assert_eq!(
        refusal(room(1)),
        "2 picks want a token, and there is room for 1"
    );
    let mut text = Step::of(TEXT, &[row(0, 0)], &[0]);
    text.picks[0].want = Want::Token { draft: None };
    assert_eq!(
        refusal(whole(&mut checks, &program, &text)),
        "a text yields no tokens"
    );
}

#[test]
fn the_middle_of_a_pass_yields_nothing() {
    let mut middle = program();
    middle.passes[0].outputs = 0;
    let mut checks = Checks::new(&middle);
    let plan = whole(
        &mut checks,
        &middle,
        &Step::of(GENERATED, &[row(0, 0)], &[]),
    );
    assert_eq!(plan.unwrap().outputs, 0);
    assert_eq!(
        refusal(checks.chain(&middle, &[start(0, 0, 1)], 1)),
        "the middle of a pass yields no tokens"
    );
}

#[test]
fn bytes_of_buffers_lie_inside_them() {
    let mut program = program();
    program.buffers.push(BufferSpec {
        name: "x".into(),
        class: Class::ScratchDecode,
        bytes: 8,
    });
    let checks = Checks::new(&program);
    let buffer = |id, first, bytes| checks.buffer(&program, id, first, bytes).map(|b| &b.name);
    assert_eq!(buffer(0, 0, 8).unwrap(), "x");
    assert_eq!(buffer(0, 8, 0).unwrap(), "x");
    assert_eq!(refusal(buffer(1, 0, 0)), "buffer 1; the program has 1");
    let beyond = "4 bytes from byte 5 of buffer 'x', which has 8";
    assert_eq!(refusal(buffer(0, 5, 4)), beyond);
    assert!(refusal(buffer(0, u64::MAX, 1)).contains("which has 8"));
}

#[test]
fn first_pages_wrap_around_a_small_pool() {
    let program = recurrent();
    assert_eq!(Checks::first_pages(&program, 0), [0, 1, 2, 3, 4, 0]);
    assert_eq!(Checks::first_pages(&program, 1), [0, 1]);
    assert_eq!(Checks::first_pages(&program, 2), Vec::<u32>::new());
}

/// Bytes of a slot's adapter.
const SLOT: usize = 12;

#[test]
fn checks_take_as_much_memory_as_they_say() {
    // The widest pass has 4 rows of 8 bytes each.
    assert_eq!(Checks::bytes(&program()), 32 + 2 * SLOT);
    let mut many = program();
    many.slots = 9;
    assert_eq!(Checks::bytes(&many), 72 + 9 * SLOT);
}
