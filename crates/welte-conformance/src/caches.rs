//! Caches: page lists, copies of pages, windows that reuse pages, recurrent state, layers of different shapes.

use super::case::{
    Case, Commands, Pair, bits, chain, difference, mixed_rows, poison, rows, set_slot, start,
    tokens_of, tolerance,
};
use super::made::Numbers;
use super::model::{ATTENTION, Attention, CONV, Conv, DELTA, DENSE, Delta, Layer, Model};
use welte_device::{Checks, Context, Control, Device, Emitted, Shelf, SlotState};
use welte_table::{CacheKind, CacheSpec, Format, PassKind, Row};

/// A layer over the whole context, and one with a window and a cache of its own.
fn two_caches(seed: u64, window: u32) -> Model {
    let windowed = Attention {
        window,
        window_cache: true,
        ..ATTENTION
    };
    Model {
        layers: vec![
            Layer::Attention(ATTENTION),
            Layer::Attention(windowed),
            Layer::Dense(DENSE),
        ],
        page: 4,
        context: 64,
        ..Model::small(seed)
    }
}

/// Where pages lie does not matter: lists in disorder, copied pages, shared pages, a pool smaller than all slots need.
pub fn pages(device: &dyn Device, oracle: &dyn Device) {
    let model = two_caches(5, 6);
    let case = Case::required(device, &model);
    assert_eq!(case.program.caches.len(), 2);
    disorder(&case, &model, device, oracle);
    copies(&case, &model, device, oracle);
    let small_pool = Model {
        pages: Some(7),
        ..model
    };
    let case = Case::required(device, &small_pool);
    small(&case, &small_pool, device, oracle);
}

/// The same logits, to the bit, with the default lists and with others in each cache.
fn disorder(case: &Case, model: &Model, device: &dyn Device, oracle: &dyn Device) {
    let mut pair = case.pair(device, oracle);
    let mut plain = case.open(device);
    let mut n = Numbers(15);
    let mut pages: Vec<u32> = (0..case.program.caches[0].pages).collect();
    for cache in 0..2 {
        for i in (1..pages.len()).rev() {
            pages.swap(i, n.below(i as u32 + 1) as usize);
        }
        for (slot, list) in pages.chunks_exact(16).enumerate() {
            // In two parts, as lists grow.
            pair.both(|c| {
                let set = c.set_pages(cache, slot as u32, 0, &list[..5]);
                set.expect("a valid list");
                let set = c.set_pages(cache, slot as u32, 5, &list[5..]);
                set.expect("a valid list");
            });
        }
    }
    let mut next = vec![0; 3];
    for count in [30, 40, 9] {
        let rows = mixed_rows(&mut n, &case.program, &mut next, count);
        let outputs = [0, count - 1];
        let most = tolerance(model, rows.len());
        let got = pair.step(PassKind::Prompt, &rows, &outputs, most);
        let prompt = case.pass(PassKind::Prompt);
        let want = plain
            .step_rows(prompt, &rows, &outputs)
            .expect("a valid step");
        assert!(bits(&got) == bits(want), "pages in disorder");
    }
    pair.assert_same_memory("pages in disorder", tolerance(model, 40));
}

/// Copies of pages: a sequence goes on in another slot, without a change to the first.
fn copies(case: &Case, model: &Model, device: &dyn Device, oracle: &dyn Device) {
    let mut pair = case.pair(device, oracle);
    let most = tolerance(model, 1);
    let mut n = Numbers(16);
    let prompt = rows(&mut n, model.vocab, 0, 0, 10);
    pair.step(PassKind::Prompt, &prompt, &[9], most);
    let program = case.program.clone();
    let lists: Vec<Vec<u32>> = (0..2).map(|c| Checks::first_pages(&program, c)).collect();
    for (cache, list) in lists.iter().enumerate() {
        for entry in 0..3 {
            pair.both(|c| {
                let copied = c.copy_page(cache, list[entry], list[16 + entry]);
                copied.expect("valid pages");
            });
        }
    }
    pair.assert_same_memory("copied pages", most);
    let row = |slot, position, token| Row::new(token, position, slot);
    // The copy goes on as the original would.
    let copied = pair.step(PassKind::Decode, &[row(1, 10, 7)], &[], most);
    let original = pair.step(PassKind::Decode, &[row(0, 10, 7)], &[], most);
    assert!(bits(&copied) == bits(&original), "a copied sequence");
    // They part. Neither sees the other's tokens.
    pair.step(PassKind::Decode, &[row(1, 11, 20)], &[], most);
    pair.step(PassKind::Decode, &[row(0, 11, 30)], &[], most);
    pair.step(PassKind::Decode, &[row(1, 12, 2), row(0, 12, 2)], &[], most);
    // Slot 2 shares the first two pages and computes the rest.
    for (cache, list) in lists.iter().enumerate() {
        pair.both(|c| {
            let set = c.set_pages(cache, 2, 0, &list[..2]);
            set.expect("a valid list");
        });
    }
    let rest: Vec<Row> = prompt[8..]
        .iter()
        .map(|r| Row::new(r.token(), r.position, 2))
        .collect();
    let shared = pair.step(PassKind::Prompt, &rest, &[1], most);
    let again = pair.step(PassKind::Prompt, &prompt[8..], &[1], most);
    assert!(bits(&shared) == bits(&again), "shared pages");
    pair.assert_same_caches("shared pages", most);
}

/// Pages leave the context and come back, to other places and other contexts: a page that is written equals one that is
/// copied, and a sequence goes on from written pages as from its own.
pub fn page_transfer(device: &dyn Device, _oracle: &dyn Device) {
    for kv_format in [Format::F16, Format::Q8_0] {
        let model = Model {
            kv_format,
            ..two_caches(7, 6)
        };
        transfer(device, &model);
        let with_state = Model {
            layers: [model.layers.clone(), vec![Layer::Conv(CONV)]].concat(),
            ..model
        };
        transfer(device, &with_state);
    }
}

fn transfer(device: &dyn Device, model: &Model) {
    let Some(case) = Case::new(device, model, Commands::Fused) else {
        return;
    };
    let loaded = case.load(device);
    assert_eq!(loaded.arithmetic(), case.load(device).arithmetic());
    assert!(!loaded.arithmetic().contains('\n'));
    let open = || case.open_loaded(&*loaded);
    let (mut first, mut second) = (open(), open());
    let prompt = case.pass(PassKind::Prompt);
    let mut n = Numbers(17);
    let begin = rows(&mut n, model.vocab, 0, 0, 10);
    first.step_rows(prompt, &begin, &[9]).expect("a valid step");
    let program = case.program.clone();
    for (cache, spec) in program.caches.iter().enumerate() {
        let list = Checks::first_pages(&program, cache);
        let entries = spec.entries(&program) as usize;
        // Slot 1 of the first context has copies, slot 2 of the second has the pages as they were read.
        for entry in 0..entries.min(3) {
            let [own, copy, other] = [0, 1, 2].map(|slot| list[slot * entries + entry]);
            let mut page = vec![0; case.page_bytes(cache)];
            first.read_page(cache, own, &mut page).expect("a page");
            assert!(page.iter().any(|b| *b != 0xff), "{}: nothing", spec.name);
            first.copy_page(cache, own, copy).expect("valid pages");
            let mut copied = vec![0; page.len()];
            first.read_page(cache, copy, &mut copied).expect("a page");
            assert!(copied == page, "{}: a copied page", spec.name);
            second.write_page(cache, other, &page).expect("a page");
            // In place of the copy: the whole cache is then as if the page had been copied.
            let before = first.read_buffer(spec.buffer).expect("a known buffer");
            first.write_page(cache, copy, &page).expect("a page");
            let after = first.read_buffer(spec.buffer).expect("a known buffer");
            assert!(before == after, "{}: a written page", spec.name);
            // Nothing but the page is written.
            let mut swapped = page.clone();
            swapped.reverse();
            first.write_page(cache, copy, &swapped).expect("a page");
            first.read_page(cache, copy, &mut copied).expect("a page");
            assert!(copied == swapped, "{}: a page in reverse", spec.name);
            first.write_page(cache, copy, &page).expect("a page");
            let after = first.read_buffer(spec.buffer).expect("a known buffer");
            assert!(before == after, "{}: a page beside others", spec.name);
        }
    }
    through_a_shelf(&case, first.as_mut());
    let goes_on = |context: &mut dyn Context, slot: u32| {
        let mut n = Numbers(19);
        let rest = rows(&mut n, model.vocab, slot, 10, 7);
        let logits = context.step_rows(prompt, &rest, &[0, 6]);
        bits(logits.expect("a valid step"))
    };
    let own = goes_on(first.as_mut(), 0);
    assert!(goes_on(first.as_mut(), 1) == own, "copied pages");
    assert!(goes_on(second.as_mut(), 2) == own, "written pages");
}

/// Slot 1's pages go to a shelf, are overwritten, and come back from it.
fn through_a_shelf(case: &Case, context: &mut dyn Context) {
    let program = case.program.clone();
    let pages = |slot: usize, entry: usize| -> Vec<u32> {
        let page = |(cache, spec): (usize, &CacheSpec)| {
            Checks::first_pages(&program, cache)[slot * spec.entries(&program) as usize + entry]
        };
        program.caches.iter().enumerate().map(page).collect()
    };
    let entries = |spec: &CacheSpec| spec.entries(&program) as usize;
    let count = program.caches.iter().map(entries).min().unwrap_or(0).min(3);
    let mut shelf = Shelf::new(context, 2 + count as u32).expect("a shelf");
    for entry in 0..count {
        let place = (count - entry) as u32;
        let own = pages(1, entry);
        shelf.put(context, place, &own).expect("a place");
        for (cache, page) in own.iter().enumerate() {
            let mut bytes = vec![0; case.page_bytes(cache)];
            context.read_page(cache, *page, &mut bytes).expect("a page");
            let mut kept = vec![0; bytes.len()];
            shelf
                .read(context, place, cache, &mut kept)
                .expect("a page");
            assert!(kept == bytes, "a page on the shelf");
            bytes.fill(0xee);
            context.write_page(cache, *page, &bytes).expect("a page");
        }
    }
    for entry in 0..count {
        let place = (count - entry) as u32;
        shelf
            .fetch(context, place, &pages(1, entry))
            .expect("a place");
        // A place may be written as soon as it was asked for.
        shelf
            .put(context, place, &pages(2, entry))
            .expect("a place");
    }
    assert!(shelf.has_fetched(context, true).expect("copies end"));
}

/// A pool of 7 pages for 3 slots of 16: the default lists wrap around, and other lists share it out.
fn small(case: &Case, model: &Model, device: &dyn Device, oracle: &dyn Device) {
    let mut pair = case.pair(device, oracle);
    let mut n = Numbers(18);
    let few = tolerance(model, 1);
    for slot in 0..3 {
        let rows = rows(&mut n, model.vocab, slot, 0, 3);
        pair.step(PassKind::Prompt, &rows, &[2], few);
    }
    // The first page of each slot is where the contract says.
    pair.assert_same_caches("the lists at the start", few);
    pair.both(poison);
    let shares = [&[6, 1][..], &[3], &[0, 5, 2, 4]];
    for cache in 0..2 {
        for (slot, share) in shares.into_iter().enumerate() {
            pair.set_pages(cache, slot as u32, share);
        }
    }
    let all: Vec<Row> = [(0, 8), (1, 4), (2, 16)]
        .into_iter()
        .flat_map(|(slot, count)| rows(&mut n, model.vocab, slot, 0, count))
        .collect();
    let many = tolerance(model, all.len());
    pair.step(PassKind::Prompt, &all, &[7, 11, 27], many);
    pair.assert_same_caches("a pool that is shared out", many);
    // Slot 1 takes over the pages of slot 0.
    for cache in 0..2 {
        pair.set_pages(cache, 1, &[3, 1, 6]);
    }
    let more = rows(&mut n, model.vocab, 1, 4, 8);
    pair.step(PassKind::Prompt, &more, &[7], many);
    pair.assert_same_caches("pages that change hands", many);
}

/// A cache with a window needs pages for the window only: they are reused in turn, and entries outside the window may
/// name pages of others.
pub fn windows(device: &dyn Device, oracle: &dyn Device) {
    for window in [1, 3, 6, 17] {
        let model = two_caches(6, window);
        let case = Case::required(device, &model);
        let windowed = case
            .program
            .caches
            .iter()
            .position(|c| matches!(c.kind, CacheKind::Attention { window, .. } if window > 0));
        let windowed = windowed.expect("a window");
        let mut pair = case.pair(device, oracle);
        let mut plain = case.open(device);
        let mut n = Numbers(20 + u64::from(window));
        let entries = case.program.caches[windowed].entries(&case.program);
        // Entries outside the window name a page of huge values.
        fill_page(&mut pair, windowed, 0, 1000.0);
        let mut at = 0u32;
        for count in [5, 1, 1, 7, 3, 1, 8, 8, 1, 1, 6, 8, 7, 1] {
            let last = at + count - 1;
            let first = (at + 1).saturating_sub(window);
            let live = first / model.page..=last / model.page;
            // Pages 1 to 7 in turn; 7 pages hold a window of 17 and 8 new positions.
            assert!(live.clone().count() <= 7);
            let list: Vec<u32> = (0..entries)
                .map(|e| if live.contains(&e) { 1 + e % 7 } else { 0 })
                .collect();
            pair.set_pages(windowed, 2, &list);
            let rows = rows(&mut n, model.vocab, 2, at, count);
            let (kind, outputs) = match count {
                1 => (PassKind::Decode, vec![]),
                _ => (PassKind::Prompt, vec![0, count - 1]),
            };
            let got = pair.step(kind, &rows, &outputs, tolerance(&model, 1));
            let pass = case.pass(kind);
            let want = plain
                .step_rows(pass, &rows, &outputs)
                .expect("a valid step");
            assert!(bits(&got) == bits(want), "window {window} at {at}");
            at += count;
        }
        assert!(at > 50, "every page was used twice");
    }
}

/// Fills a page of both with one value.
fn fill_page(pair: &mut Pair<'_>, cache: usize, page: u32, value: f32) {
    let program = pair.case.program.clone();
    let spec = &program.caches[cache];
    let runs = spec.page_runs(program.page, page).expect("a small cache");
    let mut half = [0; 2];
    welte_formats::quant::encode(Format::F16, &[value], &mut half);
    pair.both(|c| {
        let mut bytes = c.read_buffer(spec.buffer).expect("a known buffer");
        for run in 0..runs.count {
            let from = (runs.first + run * runs.stride) as usize;
            for cell in bytes[from..from + runs.bytes as usize].chunks_exact_mut(2) {
                cell.copy_from_slice(&half);
            }
        }
        c.write_buffer(spec.buffer, &bytes).expect("a known buffer");
    });
}

/// Recurrent state: any cut of a prompt, rows of several slots, a checkpoint that is restored, a new sequence in a
/// used slot.
pub fn recurrent(device: &dyn Device, oracle: &dyn Device) {
    let convolutions = [2, 3, 4, 9].map(|taps| Layer::Conv(Conv { taps, ..CONV }));
    let deltas = [
        Delta { ..DELTA },
        Delta {
            tiled: 1,
            key_dim: 68,
            ..DELTA
        },
        Delta {
            mamba: true,
            key_dim: 72,
            ..DELTA
        },
        Delta {
            by_channel: true,
            key_dim: 128,
            ..DELTA
        },
        Delta {
            mamba: true,
            by_channel: true,
            key_dim: 6,
            ..DELTA
        },
    ];
    let deltas = deltas.map(Layer::Delta);
    for (seed, state) in (32..).zip(convolutions.into_iter().chain(deltas)) {
        let model = Model {
            layers: vec![
                state,
                Layer::Attention(ATTENTION),
                state,
                Layer::Dense(DENSE),
            ],
            slots: 3,
            ..Model::small(seed)
        };
        let Some(case) = Case::new(device, &model, Commands::Fused) else {
            return;
        };
        let mut n = Numbers(22);
        let whole = rows(&mut n, model.vocab, 1, 0, 12);
        let mut wanted: Option<Vec<f32>> = None;
        for pieces in [&[12][..], &[5, 1, 6], &[1; 12], &[11, 1], &[2, 10]] {
            let mut pair = case.pair(device, oracle);
            let mut last = Vec::new();
            let mut at = 0;
            for &piece in pieces {
                last = step(&mut pair, &whole[at..at + piece], &model);
                at += piece;
            }
            pair.assert_same_caches(&format!("pieces {pieces:?}"), tolerance(&model, 12));
            let wanted = wanted.get_or_insert_with(|| last.clone());
            // Pieces of one row are decode steps, whose arithmetic is another one.
            let (off, most) = (difference(&last, wanted), tolerance(&model, 12));
            assert!(off <= most, "{state:?} in pieces {pieces:?}: off by {off}");
        }
        let mut pair = case.pair(device, oracle);
        let mut next = vec![0; 3];
        // Few rows leave memory that many rows wrote before, with the error of those.
        let mut most = 0.0f32;
        for count in [20, 3, 40] {
            let mixed = mixed_rows(&mut n, &case.program, &mut next, count);
            let outputs = [0, count - 1];
            most = most.max(tolerance(&model, mixed.len()));
            pair.step(PassKind::Prompt, &mixed, &outputs, most);
            pair.assert_same_memory("several slots", most);
        }
        let each: Vec<Row> = (0..3)
            .flat_map(|slot| rows(&mut n, model.vocab, slot, next[slot as usize], 1))
            .collect();
        pair.step(PassKind::Decode, &each, &[], tolerance(&model, 3));
        checkpoints(&mut pair, &model, &whole);
        stopped_slots(device, &case);
        cut_chains(device, &case);
    }
}

/// A slot that stops in a chain keeps the state after its last token, while the other slots go on.
fn stopped_slots(device: &dyn Device, case: &Case) {
    let mut context = case.open(device);
    if context.chain_slots() < 2 {
        return;
    }
    let cache = case.recurrent();
    let starts = [start(0, 3, 0, 6), start(1, 9, 0, 6)];
    let alone = tokens_of(&chain(context.as_mut(), &starts[..1]), 0, 1);
    // The first slot ends at the first token that it has not made before.
    let fresh = |i: &usize| *i > 0 && !alone[..*i].contains(&alone[*i]);
    let Some(last) = (0..4).find(fresh) else {
        return;
    };
    let shorter = start(0, 3, 0, last as u32 + 1);
    chain(context.as_mut(), &[shorter]);
    let mut page = vec![0; case.page_bytes(cache)];
    let mut state = |context: &mut dyn Context| {
        let read = context.read_page(cache, 0, &mut page);
        read.expect("a page");
        page.clone()
    };
    let want = state(context.as_mut());
    let mut together = case.open(device);
    let ends = SlotState {
        ends: &[alone[last]],
        ..SlotState::default()
    };
    set_slot(together.as_mut(), 0, ends);
    let emitted = chain(together.as_mut(), &starts);
    assert_eq!(tokens_of(&emitted, 0, 1), alone[..=last]);
    assert!(state(together.as_mut()) == want, "a state that went on");
}

/// A chain that is cut leaves the state after the last token that it emitted, less the one that is fed next.
fn cut_chains(device: &dyn Device, case: &Case) {
    let cache = case.recurrent();
    let mut page = vec![0; case.page_bytes(cache)];
    let mut state = |context: &mut dyn Context| {
        let read = context.read_page(cache, 0, &mut page);
        read.expect("a page");
        page.clone()
    };
    for slots in 1..=2 {
        for stops in [false, true] {
            let mut context = case.open(device);
            if context.chain_slots() < slots {
                return;
            }
            let all = [start(0, 3, 0, 12), start(1, 9, 0, 12)];
            let (control, mut made) = (Control::default(), 0);
            let mut emit = |one: Emitted| {
                made += u32::from(one.slot == 0);
                if stops && made == 3 {
                    control.stop();
                }
                stops || made < 3
            };
            let done = context.chain(&all[..slots], &control, &mut emit);
            done.expect("a valid chain");
            assert!((3..=4).contains(&made), "{made} tokens");
            let got = state(context.as_mut());
            let mut whole = case.open(device);
            chain(whole.as_mut(), &[start(0, 3, 0, made)]);
            assert!(got == state(whole.as_mut()), "a state that went on");
        }
    }
}

/// One step of one slot's rows: a single row in the decode pass, several in the prompt pass. Returns the last logits.
fn step(pair: &mut Pair<'_>, rows: &[Row], model: &Model) -> Vec<f32> {
    let most = tolerance(model, rows.len());
    match rows.len() {
        1 => pair.step(PassKind::Decode, rows, &[], most),
        n => pair.step(PassKind::Prompt, rows, &[n as u32 - 1], most),
    }
}

/// The slot of `rows` holds the state of another sequence. A sequence begins, is kept aside, and goes on from there
/// twice: after the state was copied back, and through the page list.
fn checkpoints(pair: &mut Pair<'_>, model: &Model, rows: &[Row]) {
    let cache = pair.case.recurrent();
    let (own, spare) = (1, 3);
    // Position 0 begins with the state zero, whatever the slot's page holds.
    let begin = step(pair, &rows[..5], model);
    pair.both(|c| c.copy_page(cache, own, spare).expect("valid pages"));
    let (next, rest) = (&rows[5..6], &rows[6..]);
    let first = [step(pair, next, model), step(pair, rest, model)];
    pair.both(|c| c.copy_page(cache, spare, own).expect("valid pages"));
    let again = [step(pair, next, model), step(pair, rest, model)];
    assert!(bits(&first.concat()) == bits(&again.concat()), "a copy");
    pair.set_pages(cache, 1, &[spare]);
    let listed = [step(pair, next, model), step(pair, rest, model)];
    assert!(bits(&first.concat()) == bits(&listed.concat()), "a list");
    let anew = step(pair, &rows[..5], model);
    assert!(bits(&begin) == bits(&anew), "a new sequence in a used slot");
}

/// Layers with other numbers and sizes of heads, each kind in a cache of its own with its own page lists.
pub fn per_layer_heads(device: &dyn Device, oracle: &dyn Device) {
    let attention = |heads, kv_heads, head_dim, window| {
        Layer::Attention(Attention {
            heads,
            kv_heads,
            head_dim,
            rot: head_dim,
            window,
            window_cache: true,
            ..ATTENTION
        })
    };
    for kv_format in [Format::F16, Format::Q8_0] {
        let model = Model {
            kv_format,
            layers: vec![
                attention(4, 2, 32, 0),
                attention(6, 1, 64, 0),
                attention(3, 3, 96, 9),
                attention(4, 2, 32, 0),
                attention(6, 1, 64, 20),
                Layer::Dense(DENSE),
                attention(6, 1, 64, 0),
            ],
            page: 8,
            context: 100,
            ..Model::small(40)
        };
        let case = Case::required(device, &model);
        let layers: Vec<u32> = case.program.caches.iter().map(|c| c.layers()).collect();
        assert_eq!(layers, [2, 2, 1, 1]);
        let mut pair = case.pair(device, oracle);
        let mut n = Numbers(41);
        for cache in 0..4 {
            for slot in 0..3 {
                let shift = |i: u32| (i * 5 + cache as u32) % 39;
                let list: Vec<u32> = (0..13).map(|i| shift(i + 13 * slot)).collect();
                pair.set_pages(cache, slot, &list);
            }
        }
        let pass = case.pass(PassKind::Prompt);
        let commands = case.program.passes[pass].commands.len();
        let slot_rows = rows(&mut n, model.vocab, 2, 0, 30);
        let most = tolerance(&model, slot_rows.len());
        for until in 1..=commands {
            pair.both(|c: &mut dyn Context| {
                poison(c);
                let done = c.step_until(pass, &slot_rows, &[29], until);
                done.expect("a valid step");
            });
            pair.assert_same_memory(&format!("after {until} commands"), most);
        }
        let mut next = vec![0, 0, 30];
        for count in [40, 8, 33] {
            let mixed = mixed_rows(&mut n, &case.program, &mut next, count);
            let outputs = [count / 2, count - 1];
            pair.step(PassKind::Prompt, &mixed, &outputs, most);
        }
        pair.assert_same_memory("four caches", most);
    }
}
