//! Byte-pair merging over a vocabulary that is built fast.
//!
//! The backend's model keeps three copies of all spellings and looks every merge up by its text, which takes longer than
//! reading the weights of a small model. This one shares the spellings with the tokenizer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

/// A fast hash. The seed differs in every process, so a file cannot be made of texts that collide.
#[derive(Clone, Copy)]
struct Seed(u64);

/// An odd number without structure.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Seed {
    fn new() -> Seed {
        Seed(RandomState::new().hash_one(0))
    }

    fn mix(a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ MIXER) * u128::from(b | 1);
        (product >> 64) as u64 ^ product as u64
    }

    fn hash(self, bytes: &[u8]) -> u64 {
        let mut hash = self.0 ^ bytes.len() as u64;
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            hash = Seed::mix(hash ^ u64::from_le_bytes(word), self.0);
        }
        Seed::mix(hash, MIXER)
    }
}

impl BuildHasher for Seed {
    type Hasher = Pairs;

    fn build_hasher(&self) -> Pairs {
        Pairs {
            seed: self.0,
            hash: 0,
        }
    }
}

/// Hashes pairs of ids.
struct Pairs {
    seed: u64,
    hash: u64,
}

impl Hasher for Pairs {
    fn write(&mut self, bytes: &[u8]) {
        self.hash = Seed(self.seed ^ self.hash).hash(bytes);
    }

    fn write_u64(&mut self, pair: u64) {
        self.hash = Seed::mix(self.seed ^ self.hash ^ pair, self.seed);
    }

    fn finish(&self) -> u64 {
        Seed::mix(self.hash, MIXER)
    }
}

/// Finds ids by their spellings. Ids with an empty spelling are gaps.
pub(crate) struct Table {
    /// Id + 1, or 0. The place follows from the hash of the spelling.
    slots: Vec<u32>,
    seed: Seed,
}

impl Table {
    /// The table of these spellings, and two ids with the same one, if there are any. The last one is found.
    pub(crate) fn new(texts: &[String]) -> (Table, Option<(u32, u32)>) {
        let size = (texts.len() * 2).next_power_of_two().max(2);
        let mut table = Table {
            slots: vec![0; size],
            seed: Seed::new(),
        };
        let mut twice = None;
        for (id, text) in (0..).zip(texts) {
            if text.is_empty() {
                continue;
            }
            let (slot, found) = table.find(texts, text);
            if let Some(first) = found {
                twice = twice.or(Some((first, id)));
            }
            table.slots[slot] = id + 1;
        }
        (table, twice)
    }

    /// The slot of a text, and the id in it.
    fn find(&self, texts: &[String], text: &str) -> (usize, Option<u32>) {
        let mask = self.slots.len() - 1;
        let mut slot = self.seed.hash(text.as_bytes()) as usize & mask;
        loop {
            let Some(id) = self.slots[slot].checked_sub(1) else {
                return (slot, None);
            };
            if texts[id as usize] == text {
                return (slot, Some(id));
            }
            slot = (slot + 1) & mask;
        }
    }

    /// The id of a spelling. `texts` are those of the table.
    pub(crate) fn id(&self, texts: &[String], text: &str) -> Option<u32> {
        self.find(texts, text).1
    }
}

/// The spellings of all ids.
pub(crate) struct Spellings {
    pub(crate) texts: Vec<String>,
    table: Table,
}

impl Spellings {
    pub(crate) fn new(texts: Vec<String>, table: Option<Table>) -> Spellings {
        let table = table.unwrap_or_else(|| Table::new(&texts).0);
        Spellings { texts, table }
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.table.id(&self.texts, text)
    }
}

/// Two neighbours, and what they become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merge {
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) joined: u32,
}

/// The order of a merge and its result.
type Joined = (u32, u32);

/// A model of merges. The spellings of its tokens are kept by the tokenizer.
pub(crate) struct Bpe {
    merges: HashMap<u64, Joined, Seed>,
    /// A word in the vocabulary is one token.
    whole_words: bool,
    /// What unknown characters become: their bytes, or else one token for a run of them, or else nothing.
    bytes: Option<Vec<u32>>,
    unknown: Option<u32>,
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A token in a word that is being merged. Tokens form a list.
struct Symbol {
    id: u32,
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

impl Bpe {
    /// Merges are in order. Of those with the same neighbours the first one counts.
    pub(crate) fn new(merges: &[Merge], whole_words: bool) -> Bpe {
        let mut map = HashMap::with_capacity_and_hasher(merges.len(), Seed::new());
        for (rank, merge) in merges.iter().enumerate() {
            let joined = (rank as u32, merge.joined);
            map.entry(pair(merge.left, merge.right)).or_insert(joined);
        }
        Bpe {
            merges: map,
            whole_words,
            bytes: None,
            unknown: None,
        }
    }

    /// Unknown characters become bytes, or else this token.
    pub(crate) fn with_unknown(self, bytes: Option<Vec<u32>>, unknown: Option<u32>) -> Bpe {
        Bpe {
            bytes,
            unknown,
            ..self
        }
    }

    /// The neighbours of all merges, in order.
    pub(crate) fn merges(&self) -> Vec<[u32; 2]> {
        let mut merges: Vec<(Joined, u64)> = self
            .merges
            .iter()
            .map(|(pair, joined)| (*joined, *pair))
            .collect();
        merges.sort_unstable();
        merges
            .iter()
            .map(|(_, pair)| [(pair >> 32) as u32, *pair as u32])
            .collect()
    }

    pub(crate) fn takes_whole_words(&self) -> bool {
        self.whole_words
    }

    /// Whether unknown characters become bytes.
    pub(crate) fn has_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// What unknown characters become if not bytes.
    pub(crate) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// The number of merges with different neighbours.
    pub(crate) fn len(&self) -> usize {
        self.merges.len()
    }

    fn merge(&self, left: u32, right: u32) -> Option<Joined> {
        self.merges.get(&pair(left, right)).copied()
    }

    fn symbols(&self, spellings: &Spellings, word: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(word.len());
        // Where a run of unknown characters begins.
        let mut run = None;
        let mut add = |id: u32, start: usize, end: usize| {
            let at = symbols.len();
            symbols.push(Symbol {
                id,
                start,
                end,
                previous: at.wrapping_sub(1),
                next: at + 1,
            });
        };
        let mut text = [0; 4];
        for (start, c) in word.char_indices() {
            let text: &str = c.encode_utf8(&mut text);
            let end = start + text.len();
            let known = spellings.id(text);
            let bytes = self.bytes.as_ref().filter(|_| known.is_none());
            if let (Some(from), true, Some(unknown)) = (run, known.is_some(), self.unknown) {
                add(unknown, from, start);
                run = None;
            }
            match (known, bytes) {
                (Some(id), _) => add(id, start, end),
                (None, Some(bytes)) => {
                    for (i, byte) in text.bytes().enumerate() {
                        add(bytes[usize::from(byte)], start + i, start + i + 1);
                    }
                }
                (None, None) => run = run.or(Some(start)),
            }
        }
        if let (Some(from), Some(unknown)) = (run, self.unknown) {
            add(unknown, from, word.len());
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        symbols
    }

    /// The tokens of a word.
    pub(crate) fn tokens(&self, spellings: &Spellings, word: &str) -> Vec<Token> {
        let token = |id, start, end| Token::new(id, String::new(), (start, end));
        if self.whole_words
            && let Some(id) = spellings.id(word)
        {
            return vec![token(id, 0, word.len())];
        }
        let mut symbols = self.symbols(spellings, word);
        let mut waiting = BinaryHeap::with_capacity(symbols.len());
        let wait = |waiting: &mut BinaryHeap<_>, symbols: &[Symbol], at: usize| {
            let Some(right) = symbols.get(at).and_then(|left| symbols.get(left.next)) else {
                return;
            };
            if let Some((rank, joined)) = self.merge(symbols[at].id, right.id) {
                waiting.push(Reverse((rank, at, joined)));
            }
        };
        for at in 0..symbols.len() {
            wait(&mut waiting, &symbols, at);
        }
        while let Some(Reverse((_, at, joined))) = waiting.pop() {
            // A neighbour may have become part of another token since.
            let (left, next) = (symbols[at].id, symbols[at].next);
            if symbols[at].end == symbols[at].start || next == NONE {
                continue;
            }
            if self
                .merge(left, symbols[next].id)
                .is_none_or(|(_, id)| id != joined)
            {
                continue;
            }
            let after = symbols[next].next;
            symbols[at].id = joined;
            symbols[at].end = symbols[next].end;
            symbols[at].next = after;
            symbols[next].end = symbols[next].start;
            if after != NONE {
                symbols[after].previous = at;
            }
            wait(&mut waiting, &symbols, symbols[at].previous);
            wait(&mut waiting, &symbols, at);
        }
        let left = symbols.iter().filter(|symbol| symbol.end > symbol.start);
        left.map(|symbol| token(symbol.id, symbol.start, symbol.end))
            .collect()
    }
}

/// What the backend's list of added tokens asks of a model.
pub(crate) struct Known<'a>(pub(crate) &'a Spellings);

impl Model for Known<'_> {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, _: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(Vec::new())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.texts.get(id as usize).cloned()
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let all = self.0.texts.iter().zip(0..);
        all.map(|(text, id)| (text.clone(), id)).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.texts.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("this vocabulary is not written".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        TrainerWrapper::BpeTrainer(BpeTrainer::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_found() {
        let texts: Vec<String> = (0..5000)
            .map(|id| "x".repeat(id % 40) + &id.to_string())
            .collect();
        let mut all = texts.clone();
        all[7].clear();
        let (table, twice) = Table::new(&all);
        assert_eq!(twice, None);
        for (id, text) in (0..).zip(&texts) {
            assert_eq!(
                table.id(&all, text),
                Some(id).filter(|id| *id != 7),
                "{text}"
            );
        }
        assert_eq!(table.id(&all, ""), None);
        assert_eq!(table.id(&all, "y"), None);
        all[4000] = all[3].clone();
        assert_eq!(Table::new(&all).1, Some((3, 4000)));
        assert_eq!(Table::new(&[]).0.id(&[], "x"), None);
    }

    /// The order of merges decides, not their place in the word, and what is left over stays.
    #[test]
    fn better_merges_come_first() {
        let texts = ["a", "b", "c", "ab", "bc", "abc", "?"]
            .map(str::to_owned)
            .to_vec();
        let spellings = Spellings::new(texts, None);
        let merge = |left, right, joined| Merge {
            left,
            right,
            joined,
        };
        let ids = |merges: &[Merge], word: &str| {
            let model = Bpe::new(merges, false).with_unknown(None, Some(6));
            let tokens = model.tokens(&spellings, word);
            tokens.iter().map(|token| token.id).collect::<Vec<u32>>()
        };
        assert_eq!(ids(&[merge(1, 2, 4), merge(0, 1, 3)], "abcab"), [0, 4, 3]);
        assert_eq!(ids(&[merge(0, 1, 3), merge(1, 2, 4)], "abcab"), [3, 2, 3]);
        assert_eq!(ids(&[merge(0, 1, 3), merge(3, 2, 5)], "abcabc"), [5, 5]);
        assert_eq!(ids(&[merge(0, 1, 3), merge(0, 1, 4)], "ab"), [3]);
        // A run of unknown characters is one token.
        assert_eq!(ids(&[], "xyazé"), [6, 0, 6]);
        assert!(ids(&[], "").is_empty());
    }

    /// The backend's list of added tokens sees all spellings.
    #[test]
    fn the_backend_sees_the_vocabulary() {
        let spellings = Spellings::new(["a", "b"].map(str::to_owned).to_vec(), None);
        let known = Known(&spellings);
        let all = HashMap::from([("a".to_owned(), 0), ("b".to_owned(), 1)]);
        assert_eq!((known.get_vocab(), known.get_vocab_size()), (all, 2));
        assert_eq!(
            (known.token_to_id("b"), known.token_to_id("c")),
            (Some(1), None)
        );
        assert_eq!(known.id_to_token(1).as_deref(), Some("b"));
        assert_eq!(known.id_to_token(2), None);
        assert!(known.tokenize("a").unwrap().is_empty());
        assert!(known.save(Path::new("x"), None).is_err());
    }

    /// Equal hashes would make every look-up a search of the whole vocabulary.
    #[test]
    fn hashes_differ_and_depend_on_the_seed() {
        let distinct = |all: &mut Vec<u64>| {
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        let seeds = [Seed(0x1234_5678_9abc_def1), Seed(0x0fed_cba9_8765_4321)];
        let pairs = |seed: Seed| (0..1000_u64).map(move |pair| seed.hash_one(pair));
        let texts = |seed: Seed| (0..1000_u64).map(move |n| seed.hash(&n.to_le_bytes()[..3]));
        assert_eq!(
            distinct(&mut seeds.iter().flat_map(|seed| pairs(*seed)).collect()),
            2000
        );
        assert_eq!(
            distinct(&mut seeds.iter().flat_map(|seed| texts(*seed)).collect()),
            2000
        );
        // The table is indexed by the low bits.
        let low = distinct(&mut texts(seeds[0]).map(|hash| hash % 1024).collect());
        assert!(low > 500, "{low}");
    }

    /// What unknown characters become, and where tokens lie.
    #[test]
    fn unknown_characters_become_bytes_or_one_token_or_nothing() {
        let texts = ["a", "é", "?"].map(str::to_owned).to_vec();
        let spellings = Spellings::new(texts, None);
        let tokens = |bytes: Option<Vec<u32>>, unknown, word: &str| {
            let model = Bpe::new(&[], false).with_unknown(bytes, unknown);
            let tokens = model.tokens(&spellings, word).into_iter();
            tokens
                .map(|token| (token.id, token.offsets.0, token.offsets.1))
                .collect::<Vec<_>>()
        };
        assert_eq!(tokens(None, None, "aüé"), [(0, 0, 1), (1, 3, 5)]);
        assert_eq!(
            tokens(None, Some(2), "üüaü"),
            [(2, 0, 4), (0, 4, 5), (2, 5, 7)]
        );
        let bytes: Vec<u32> = (100..356).collect();
        let expected = [(0, 0, 1), (100 + 0xc3, 1, 2), (100 + 0xbc, 2, 3), (1, 3, 5)];
        assert_eq!(tokens(Some(bytes.clone()), None, "aüé"), expected);
        // Bytes come before the unknown token.
        assert_eq!(tokens(Some(bytes), Some(2), "aüé"), expected);
        let whole = Bpe::new(&[], true);
        assert_eq!(whole.tokens(&spellings, "é").len(), 1);
        assert_eq!((whole.len(), whole.tokens(&spellings, "aé").len()), (0, 2));
    }
}
