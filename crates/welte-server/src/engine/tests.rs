//! Figures of the engine page.

use super::*;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn totals(prompt: u64, generated: u64, steps: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    (snapshot.prompt_tokens, snapshot.generated_tokens) = (prompt, generated);
    snapshot.decode_steps = steps;
    snapshot
}

/// A slot of a request, with pages of one cache.
fn slot(request: u64, position: usize, pages: &[u32]) -> SlotSnapshot {
    let mut slot = SlotSnapshot::default();
    (slot.request, slot.position) = (Some(request), position);
    slot.pages = vec![pages.to_vec()];
    slot
}

/// Rates look back one second where there is a look so old, and no longer than five.
#[test]
fn rates_look_back_a_second() {
    let begun = Instant::now();
    let mut history = History::default();
    let mut look = |after: f64| {
        let mut snapshot = totals(0, 0, 0);
        snapshot.slots = vec![slot(7, 3, &[]), SlotSnapshot::default()];
        let found = history.add(&snapshot, begun + seconds(after))?;
        assert_eq!(found.positions, [(7, 3)]);
        Some((found.at - begun).as_millis())
    };
    assert_eq!(look(0.0), None);
    assert_eq!(look(0.25), Some(0));
    assert_eq!(look(1.0), Some(0));
    assert_eq!(look(1.125), Some(0));
    assert_eq!(look(1.25), Some(250));
    assert_eq!(look(2.125), Some(1125));
    assert_eq!(look(7.125), Some(2125));
    assert_eq!(look(13.125), None);
    assert_eq!(look(13.25), Some(13125));
}

#[test]
fn rates_are_changes_per_second() {
    let begun = Instant::now();
    let moment = |prompt, generated, steps| Moment {
        at: begun,
        prompt,
        generated,
        steps,
        positions: Vec::new(),
    };
    let now = begun + seconds(2.0);
    let of = |rates: Rates| {
        let Rates {
            prompt,
            decode,
            rows,
            steps,
            seconds,
        } = rates;
        [prompt, decode, rows, steps, seconds]
    };
    let snapshot = totals(400, 60, 15);
    let rates = Rates::since(Some(&moment(100, 20, 5)), &snapshot, now);
    assert_eq!(of(rates), [150.0, 20.0, 4.0, 5.0, 2.0]);
    // Nothing was decoded, or the engine has begun anew.
    let rates = Rates::since(Some(&moment(100, 60, 15)), &snapshot, now);
    assert_eq!(of(rates), [150.0, 0.0, 0.0, 0.0, 2.0]);
    let rates = Rates::since(Some(&moment(500, 70, 20)), &snapshot, now);
    assert_eq!(of(rates), [0.0, 0.0, 0.0, 0.0, 2.0]);
    assert_eq!(of(Rates::since(None, &snapshot, now)), [0.0; 5]);
}

#[test]
fn a_request_has_a_speed_while_it_decodes() {
    let mut one = slot(7, 30, &[]);
    assert_eq!(speed(&one, &[(6, 1), (7, 10)], 2.0), Some(10.0));
    assert_eq!(speed(&one, &[(6, 1)], 2.0), None);
    assert_eq!(speed(&one, &[(7, 10)], 0.0), None);
    // It was preempted: its positions are computed again.
    assert_eq!(speed(&one, &[(7, 40)], 2.0), Some(0.0));
    one.in_prompt = true;
    assert_eq!(speed(&one, &[(7, 10)], 2.0), None);
    assert_eq!(
        speed(&SlotSnapshot::default(), &[(0, 0), (7, 1)], 2.0),
        None
    );
}

#[test]
fn the_floor_is_the_time_to_read_the_weights() {
    let share = |steps, bandwidth, in_cache| floor_share(steps, 50.0, bandwidth, in_cache);
    assert_eq!(share(4.0, Some(400.0), false), Some(0.5));
    assert_eq!(share(0.0, Some(400.0), false), None);
    assert_eq!(share(4.0, None, false), None);
    assert_eq!(share(4.0, Some(400.0), true), None);
    // Nothing is read faster than memory gives it.
    assert_eq!(share(8.0, Some(400.0), false), Some(1.0));
    assert_eq!(share(8.5, Some(400.0), false), None);
    assert_eq!(share(f64::INFINITY, Some(400.0), false), None);
}

#[test]
fn adjacent_pages_are_runs() {
    assert_eq!(runs(&[]), []);
    assert_eq!(
        runs(&[3, 4, 5, 9, 8, 0, 1]),
        [(3, 3), (9, 1), (8, 1), (0, 2)]
    );
}

#[test]
fn a_page_is_free_owned_shared_or_cached() {
    let mut snapshot = Snapshot::default();
    snapshot.references = vec![vec![], vec![0, 1, 2, 1, 1, 0, 3]];
    let mut left = slot(0, 0, &[]);
    left.request = None;
    snapshot.slots = vec![slot(1, 0, &[]), slot(2, 0, &[]), left, slot(3, 0, &[])];
    // The free slot still lists what it had; a list may be newer than the pool.
    let pages: [&[u32]; 4] = [&[1, 2, 6], &[2, 6, 99], &[3], &[6]];
    for (slot, pages) in snapshot.slots.iter_mut().zip(pages) {
        slot.pages.push(pages.to_vec());
    }
    assert_eq!(letters(&snapshot, 1), ".oscc.s");
    assert_eq!(letters(&snapshot, 0), "");
}

fn node(id: u32, parent: Option<u32>, page: u32) -> NodeSnapshot {
    let mut node = NodeSnapshot::default();
    (node.id, node.parent) = (id, parent);
    (node.tokens, node.page) = (16, Some((0, page)));
    node
}

#[test]
fn branches_are_runs_between_forks() {
    let mut snapshot = Snapshot::default();
    let mut end = node(6, Some(5), 16);
    (end.tokens, end.page) = (3, None);
    // 1 - 2 - 3, from which 4 and 5 - 6 go on; and 8.
    snapshot.nodes = vec![
        end,
        node(2, Some(1), 12),
        node(1, None, 11),
        node(4, Some(3), 14),
        node(3, Some(2), 13),
        node(5, Some(3), 15),
        node(8, None, 18),
    ];
    let mut left = slot(0, 0, &[11, 18]);
    left.request = None;
    snapshot.slots = vec![slot(1, 0, &[11, 12]), slot(2, 0, &[11, 14]), left];
    let branches = branches(&snapshot);
    let branch = |id: usize, parent: Option<usize>, start: usize, tokens: usize, users: usize| {
        json!({
            "id": id, "parent": parent, "start": start, "tokens": tokens, "sequences": users, "idle_ms": null,
        })
    };
    let roots = [branch(0, None, 0, 48, 2), branch(1, None, 0, 16, 0)];
    assert_eq!(branches[..2], roots);
    let mut leaves = branches[2..].to_vec();
    leaves.sort_by_key(|branch| branch["tokens"].as_u64());
    for (at, leaf) in leaves.iter_mut().enumerate() {
        leaf["id"] = (2 + at).into();
    }
    let expected = [branch(2, Some(0), 48, 16, 1), branch(3, Some(0), 48, 19, 0)];
    assert_eq!(leaves, expected);
}

#[test]
fn a_wide_tree_is_cut() {
    let mut snapshot = Snapshot::default();
    snapshot.nodes = (0..2 * MOST_BRANCHES as u32)
        .map(|id| node(id, None, id))
        .collect();
    assert_eq!(branches(&snapshot).len(), MOST_BRANCHES);
}
