//! Figures of the engine page.

use super::*;

/// A slot of a request, with pages of one cache.
fn slot(request: u64, position: usize, pages: &[u32]) -> SlotSnapshot {
    let mut slot = SlotSnapshot::default();
    (slot.request, slot.position) = (Some(request), position);
    slot.pages = vec![pages.to_vec()];
    slot
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
