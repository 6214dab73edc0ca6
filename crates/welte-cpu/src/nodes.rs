//! Which memory node holds which part of the weights. Threads have fixed shares of each matrix, so each share lies in the
//! memory of the node whose threads multiply it.
//!
//! Tests feed made-up nodes. The binding itself has not run on a machine with several nodes.
#![allow(unsafe_code)]

use crate::machine::Place;
use crate::memory::{Block, HUGE};
use crate::team::share;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Pieces of a block that the threads of a team share evenly, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    start: usize,
    piece: usize,
    pieces: usize,
}

impl Segment {
    /// `pieces` pieces of `piece` bytes from `start` on.
    pub(crate) fn whole(start: usize, piece: usize, pieces: usize) -> Segment {
        Segment {
            start,
            piece,
            pieces,
        }
    }

    /// Its two halves, each of which is shared.
    pub(crate) fn halves(self) -> Vec<Segment> {
        let pieces = self.pieces / 2;
        let second = self.start + pieces * self.piece;
        vec![
            Segment { pieces, ..self },
            Segment::whole(second, self.piece, self.pieces - pieces),
        ]
    }

    /// The bytes that thread `nth` of `threads` takes.
    fn share(&self, nth: usize, threads: usize) -> Range<usize> {
        let at = |nth| self.start + share(self.pieces as u32, nth, threads) as usize * self.piece;
        at(nth)..at(nth + 1)
    }
}

/// The node of each range of a block of `len` bytes, in whole huge pages: the node whose threads read most of a page. Pages
/// that no thread has a share of take turns. Nothing if all threads are on one node.
fn ranges(len: usize, segments: &[Segment], places: &[Place]) -> Vec<(Range<usize>, usize)> {
    let nodes: BTreeSet<usize> = places.iter().map(|place| place.node).collect();
    if nodes.len() < 2 {
        return Vec::new();
    }
    let mut votes: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); len.div_ceil(HUGE)];
    for segment in segments {
        for (nth, place) in places.iter().enumerate() {
            let Range { mut start, end } = segment.share(nth, places.len());
            while start < end {
                let page = start / HUGE;
                let stop = end.min((page + 1) * HUGE);
                *votes[page].entry(place.node).or_default() += stop - start;
                start = stop;
            }
        }
    }
    let in_turn: Vec<usize> = nodes.into_iter().collect();
    let mut ranges: Vec<(Range<usize>, usize)> = Vec::new();
    for (page, votes) in votes.iter().enumerate() {
        let most = votes.iter().max_by_key(|(_, bytes)| **bytes);
        let node = most.map_or(in_turn[page % in_turn.len()], |(node, _)| *node);
        let end = len.min((page + 1) * HUGE);
        match ranges.last_mut() {
            Some((range, last)) if *last == node => range.end = end,
            _ => ranges.push((page * HUGE..end, node)),
        }
    }
    ranges
}

/// Asks the system to place the pages of a block, which nobody has touched yet, on the nodes of the threads that will read
/// them. A refusal affects only speed.
pub(crate) fn bind(block: &Block, segments: &[Segment], places: &[Place]) {
    for (range, node) in ranges(block.len(), segments, places) {
        system::prefer(&block.as_slice()[range], node);
    }
}

#[cfg(target_os = "linux")]
mod system {
    /// The kernel's `MPOL_PREFERRED`: another node gives the page if this one is full.
    const PREFERRED: libc::c_long = 1;
    const WORD: usize = libc::c_ulong::BITS as usize;

    pub(super) fn prefer(bytes: &[u8], node: usize) {
        let mut mask: [libc::c_ulong; 16] = [0; 16];
        let Some(word) = mask.get_mut(node / WORD) else {
            return;
        };
        *word |= 1 << (node % WORD);
        // SAFETY: the range is our own memory, the mask has the bits that are named, and a policy changes no contents. An
        // address that is not at a page's start is refused.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                bytes.as_ptr(),
                bytes.len(),
                PREFERRED,
                mask.as_ptr(),
                mask.len() * WORD,
                0,
            );
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn prefer(_: &[u8], _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(nodes: &[usize]) -> Vec<Place> {
        let place = |&node| Place {
            cpus: Vec::new(),
            node,
        };
        nodes.iter().map(place).collect()
    }

    #[test]
    fn one_node_needs_no_binding() {
        let segment = Segment::whole(0, HUGE, 8);
        assert_eq!(ranges(8 * HUGE, &[segment], &places(&[0, 0])), []);
        assert_eq!(ranges(8 * HUGE, &[segment], &places(&[1])), []);
    }

    #[test]
    fn each_node_holds_what_its_threads_multiply() {
        // A matrix of 8 pages, then gate and up of 4 pages each, then 3 pages that nobody shares.
        let segments = [
            vec![Segment::whole(0, HUGE / 4, 32)],
            Segment::whole(8 * HUGE, HUGE / 2, 16).halves(),
        ]
        .concat();
        let expected = [
            (0..4, 0),
            (4..8, 2),
            (8..10, 0),
            (10..12, 2),
            (12..14, 0),
            (14..16, 2),
            (16..17, 0),
            (17..18, 2),
            (18..19, 0),
        ];
        let expected = expected.map(|(pages, node)| (pages.start * HUGE..pages.end * HUGE, node));
        for nodes in [[0, 0, 2, 2].as_slice(), &[0, 2]] {
            assert_eq!(ranges(19 * HUGE, &segments, &places(nodes)), expected);
        }
        // Three of four threads on node 0.
        let ranges = ranges(8 * HUGE, &segments[..1], &places(&[0, 0, 0, 1]));
        assert_eq!(ranges, [(0..6 * HUGE, 0), (6 * HUGE..8 * HUGE, 1)]);
    }

    #[test]
    fn a_page_goes_to_the_node_that_reads_most_of_it() {
        let segment = Segment::whole(0, HUGE / 8, 20);
        let ranges = ranges(HUGE * 5 / 2, &[segment], &places(&[0, 1]));
        assert_eq!(ranges, [(0..HUGE, 0), (HUGE..HUGE * 5 / 2, 1)]);
    }

    #[test]
    fn bound_memory_can_be_used() {
        let mut block = Block::new(4 * HUGE as u64, "test").unwrap();
        bind(&block, &[Segment::whole(0, HUGE, 4)], &places(&[0, 1]));
        block.as_mut_slice().fill(1);
        assert!(block.as_slice().iter().all(|byte| *byte == 1));
    }
}
