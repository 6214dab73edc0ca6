//! Nodes in the order of their last use.

const NONE: u32 = u32::MAX;

/// A doubly linked list of node numbers, oldest first. All operations take constant time and allocate nothing.
#[derive(Debug)]
pub(super) struct Lru {
    /// Older and newer neighbour of each node; the last entry holds the newest and the oldest.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
    listed: bool,
}

impl Lru {
    /// An empty list of nodes `0..nodes`.
    pub(super) fn new(nodes: usize) -> Lru {
        let end = nodes as u32;
        let mut links = vec![
            Link {
                older: NONE,
                newer: NONE,
                listed: false
            };
            nodes + 1
        ];
        links[nodes] = Link {
            older: end,
            newer: end,
            listed: true,
        };
        Lru { links }
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    /// The node that has not been used for the longest time.
    pub(super) fn oldest(&self) -> Option<u32> {
        let oldest = self.links[self.end() as usize].newer;
        (oldest != self.end()).then_some(oldest)
    }

    /// Whether a node is in the list.
    pub(super) fn contains(&self, node: u32) -> bool {
        self.links[node as usize].listed
    }

    /// All nodes, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let newer = |node: &u32| Some(self.links[*node as usize].newer);
        std::iter::successors(self.oldest(), newer).take_while(|node| *node != self.end())
    }

    /// Makes a node the newest, whether or not it was in the list.
    pub(super) fn touch(&mut self, node: u32) {
        self.remove(node);
        let end = self.end();
        let newest = self.links[end as usize].older;
        self.links[node as usize] = Link {
            older: newest,
            newer: end,
            listed: true,
        };
        self.links[newest as usize].newer = node;
        self.links[end as usize].older = node;
    }

    /// Takes a node out of the list, if it is in it.
    pub(super) fn remove(&mut self, node: u32) {
        let Link {
            older,
            newer,
            listed,
        } = self.links[node as usize];
        if listed {
            self.links[older as usize].newer = newer;
            self.links[newer as usize].older = older;
            self.links[node as usize].listed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(lru: &mut Lru) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(node) = lru.oldest() {
            lru.remove(node);
            order.push(node);
        }
        order
    }

    #[test]
    fn the_oldest_comes_first() {
        let mut lru = Lru::new(5);
        for node in [3, 0, 4, 1, 0, 3] {
            lru.touch(node);
        }
        lru.remove(1);
        lru.remove(2);
        assert_eq!(lru.iter().collect::<Vec<_>>(), [4, 0, 3]);
        assert_eq!(drain(&mut lru), [4, 0, 3]);
        assert_eq!(lru.oldest(), None);
        lru.touch(2);
        assert_eq!(drain(&mut lru), [2]);
    }
}
