//! Hashes and bytes beside those that vLLM's own libraries make (cbor2, hashlib, msgspec).

use super::*;

fn stored(node: u32, parent: Option<u32>, tokens: &[u32]) -> PrefixChange {
    PrefixChange::Stored {
        node,
        parent,
        tokens: tokens.to_vec(),
    }
}

fn events(blocks: &mut Blocks, changes: impl IntoIterator<Item = PrefixChange>) -> Vec<Event> {
    let mut events = Vec::new();
    changes
        .into_iter()
        .for_each(|change| blocks.take(change, &mut events));
    events
}

#[test]
fn hashes_are_those_of_vllm() {
    for (seed, first, second) in [
        ("0", 1161399574445167279, 15552530227555931050),
        ("42", 8747078794441798037, 7703790838321642444),
        (
            "a seed of more than twenty-three letters",
            3164803948205540366,
            2465134345288208878,
        ),
    ] {
        let mut blocks = Blocks::new(seed);
        let changes = [
            stored(7, None, &[1, 2, 300, 70000]),
            stored(3, Some(7), &[5, 23, 24, 255]),
        ];
        let expected = Event::Stored {
            hashes: vec![first, second],
            parent: None,
            tokens: vec![1, 2, 300, 70000, 5, 23, 24, 255],
        };
        assert_eq!(events(&mut blocks, changes), [expected], "{seed}");
        let expected = Event::Stored {
            hashes: vec![second],
            parent: Some(first),
            tokens: vec![5, 23, 24, 255],
        };
        let changes = [
            PrefixChange::Removed { node: 3 },
            stored(9, Some(7), &[5, 23, 24, 255]),
        ];
        assert_eq!(
            events(&mut blocks, changes),
            [Event::Removed(vec![second]), expected]
        );
    }
    let all: Vec<u32> = (0..300).collect();
    let told = events(&mut Blocks::new("0"), [stored(0, None, &all)]);
    let Event::Stored { hashes, .. } = &told[0] else {
        panic!("{told:?}")
    };
    assert_eq!(hashes, &[8975674034513133538]);
}

/// A text that is cached in two roles is one block, until both are gone.
#[test]
fn a_block_is_told_once() {
    let mut blocks = Blocks::new("0");
    let twice = [stored(1, None, &[1, 2]), stored(2, None, &[1, 2])];
    assert_eq!(events(&mut blocks, twice).len(), 1);
    assert_eq!(events(&mut blocks, [PrefixChange::Removed { node: 1 }]), []);
    assert_eq!(
        events(&mut blocks, [PrefixChange::Removed { node: 2 }]).len(),
        1
    );
    events(&mut blocks, [stored(1, None, &[1, 2])]);
    assert_eq!(
        events(&mut blocks, [PrefixChange::Cleared]),
        [Event::Cleared]
    );
    assert_eq!(events(&mut blocks, [stored(5, None, &[1, 2])]).len(), 1);
}

#[test]
fn batches_are_written_as_msgspec_writes_them() {
    let all = [
        Event::Stored {
            hashes: vec![(1 << 63) + 1, 5],
            parent: None,
            tokens: [1, 200, 70000].repeat(6),
        },
        Event::Removed(vec![1]),
        Event::Cleared,
    ];
    let hex: String = batch(1.5, 16, &all)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let tokens = "01ccc8ce00011170".repeat(6);
    assert_eq!(
        hex,
        format!(
            "93cb3ff80000000000009397ab426c6f636b53746f72656492cf800000000000000105c0dc0012{tokens}10c0a3475055\
             93ac426c6f636b52656d6f7665649101a347505591b0416c6c426c6f636b73436c6561726564c0"
        )
    );
}
