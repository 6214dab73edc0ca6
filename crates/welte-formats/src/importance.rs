//! Importance matrices: how much each column of a matrix matters, as the mean square of its inputs over a text. Files are those of
//! llama.cpp's `llama-imatrix`: GGUF, and its older format, which is only read.

use crate::gguf::{Gguf, Kinds, Writer};
use crate::{Checkpoint, Error, Metadata, TensorInfo, Value};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use welte_table::Format;

/// The endings of a tensor's two entries in a GGUF file.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// The least weight of a column, as a share of the mean: a column without inputs in the text may have some in another.
const LEAST: f32 = 1e-4;

/// No file needs more entries, or longer names.
const MOST_ENTRIES: u32 = 1 << 20;
const LONGEST_NAME: u32 = 1 << 10;

/// The squares of the inputs of one tensor: of each expert, if it is a stack of matrices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Squares {
    /// Sums by column, one expert after the other.
    pub sums: Vec<f32>,
    /// Inputs seen, by expert.
    pub counts: Vec<f32>,
}

/// The importance matrices of a model, by the names of its tensors in GGUF.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// The tensors.
    pub tensors: BTreeMap<String, Squares>,
    /// The texts.
    pub datasets: Vec<String>,
    /// Chunks of text that were computed, and the tokens of each.
    pub chunks: u32,
    /// See there.
    pub chunk: u32,
}

impl Squares {
    /// Adds one input of an expert.
    pub fn add(&mut self, expert: usize, x: &[f32]) {
        let sums = self.sums.chunks_exact_mut(x.len().max(1)).nth(expert);
        if let (Some(sums), Some(count)) = (sums, self.counts.get_mut(expert)) {
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x);
            *count += 1.0;
        }
    }

    /// The mean squares of an expert's columns. An expert that saw nothing has the same for all.
    fn means(&self, expert: usize) -> Vec<f32> {
        let columns = self.sums.len() / self.counts.len().max(1);
        let sums = &self.sums[expert * columns..][..columns];
        let count = self.counts[expert];
        let least = LEAST * sums.iter().sum::<f32>() / columns.max(1) as f32;
        if count > 0.0 && least > 0.0 {
            sums.iter().map(|sum| sum.max(least) / count).collect()
        } else {
            vec![1.0; columns]
        }
    }
}

impl Importance {
    /// The mean squares of a tensor's columns, for each matrix of its stack; `None` without an entry.
    pub(crate) fn of(&self, tensor: &TensorInfo) -> Result<Option<Vec<Vec<f32>>>, String> {
        let Some(squares) = self.tensors.get(&tensor.name) else {
            return Ok(None);
        };
        let experts = squares.counts.len();
        let stack = tensor.stack.max(1);
        // Older files count an expert's columns without saying how many experts there are.
        let fits = squares.sums.len() == stack * tensor.k && (experts == stack || experts == 1);
        if !fits {
            return Err(format!(
                "the importance matrix has {} columns for {experts} matrices, the tensor {} for {stack}",
                squares.sums.len(),
                stack * tensor.k
            ));
        }
        let spread = Squares {
            sums: squares.sums.clone(),
            counts: (0..stack).map(|i| squares.counts[i % experts]).collect(),
        };
        Ok(Some((0..stack).map(|i| spread.means(i)).collect()))
    }

    /// Reads a file of either format.
    pub fn read(path: &Path) -> Result<Importance, Error> {
        let bytes = std::fs::File::open(path).and_then(|mut file| {
            let mut head = [0; 4];
            file.read_exact(&mut head).map(|()| head)
        });
        let head = bytes.map_err(|source| Error::io(path, source))?;
        if head == crate::gguf::MAGIC {
            from_gguf(path)
        } else {
            from_old(path)
        }
    }

    /// Writes a GGUF file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = |text: &str| Value::String(text.into());
        let metadata: Metadata = [
            ("general.type", text("imatrix")),
            (
                "imatrix.datasets",
                Value::Array(self.datasets.iter().map(|name| text(name)).collect()),
            ),
            ("imatrix.chunk_count", Value::U64(self.chunks.into())),
            ("imatrix.chunk_size", Value::U64(self.chunk.into())),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .into();
        let mut infos = Vec::new();
        for (name, squares) in &self.tensors {
            let experts = squares.counts.len();
            let mut info = |ending: &str, k: usize| {
                infos.push(TensorInfo {
                    name: format!("{name}{ending}"),
                    format: Format::F32,
                    n: experts,
                    k,
                    stack: 1,
                });
            };
            info(SUMS, squares.sums.len() / experts.max(1));
            info(COUNTS, 1);
        }
        let mut writer = Writer::create(path, &metadata, &Kinds::new(), &infos)?;
        for squares in self.tensors.values() {
            for values in [&squares.sums, &squares.counts] {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                writer.write(&bytes)?;
            }
        }
        writer.finish()
    }
}

fn from_gguf(path: &Path) -> Result<Importance, Error> {
    let file = Gguf::open(path)?;
    let metadata = file.metadata();
    if metadata.get("general.type") != Some(&Value::String("imatrix".into())) {
        return Err(Error::malformed(
            path,
            "general.type",
            "is not 'imatrix': this is no importance matrix",
        ));
    }
    let number = |key: &str| match metadata.get(key) {
        Some(Value::U64(v)) => u32::try_from(*v).unwrap_or(0),
        _ => 0,
    };
    let datasets = match metadata.get("imatrix.datasets") {
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|value| match value {
                Value::String(name) => Some(name.clone()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    let mut tensors = BTreeMap::new();
    for info in file.tensors() {
        let Some(name) = info.name.strip_suffix(SUMS) else {
            continue;
        };
        let counts = format!("{name}{COUNTS}");
        let Some(counts) = file.tensor(&counts) else {
            return Err(Error::malformed(path, counts, "is missing"));
        };
        let squares = Squares {
            sums: floats(&file, info, path)?,
            counts: floats(&file, counts, path)?,
        };
        if squares.counts.is_empty() || !squares.sums.len().is_multiple_of(squares.counts.len()) {
            let problem = format!(
                "has {} values for {} matrices",
                squares.sums.len(),
                squares.counts.len()
            );
            return Err(info.wrong(path, problem));
        }
        tensors.insert(name.to_string(), squares);
    }
    Ok(Importance {
        tensors,
        datasets,
        chunks: number("imatrix.chunk_count"),
        chunk: number("imatrix.chunk_size"),
    })
}

/// All values of a tensor of floats, which must be squares or counts.
fn floats(file: &Gguf, info: &TensorInfo, path: &Path) -> Result<Vec<f32>, Error> {
    if info.format != Format::F32 {
        let problem = format!("is {}, expected F32", info.format.name());
        return Err(info.wrong(path, problem));
    }
    let bytes = file.rows(info, 0, info.n)?;
    let (values, _) = bytes.as_chunks::<4>();
    let values: Vec<f32> = values.iter().map(|v| f32::from_le_bytes(*v)).collect();
    checked(values).map_err(|problem| info.wrong(path, problem))
}

fn checked(values: Vec<f32>) -> Result<Vec<f32>, String> {
    match values.iter().find(|v| !v.is_finite() || **v < 0.0) {
        Some(value) => Err(format!("has {value}, which is no sum of squares")),
        None => Ok(values),
    }
}

/// The older format: entries of a name, a number of calls and sums as if each call had one input, then the dataset.
fn from_old(path: &Path) -> Result<Importance, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::io(path, source))?;
    let mut rest = &bytes[..];
    let short = || {
        Error::malformed(
            path,
            "file",
            "ends early; write it again with welte imatrix",
        )
    };
    let number = |rest: &mut &[u8]| -> Result<u32, Error> {
        let (value, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        *rest = after;
        Ok(u32::from_le_bytes(*value))
    };
    let entries = number(&mut rest)?;
    if entries == 0 || entries > MOST_ENTRIES {
        let problem = format!("lists {entries} tensors: this is no importance matrix");
        return Err(Error::malformed(path, "file", problem));
    }
    let mut all = Importance::default();
    for _ in 0..entries {
        let length = number(&mut rest)?;
        if length > LONGEST_NAME {
            let problem = format!("a name has {length} bytes: this is no importance matrix");
            return Err(Error::malformed(path, "file", problem));
        }
        let (name, after) = rest.split_at_checked(length as usize).ok_or_else(short)?;
        rest = after;
        let name = String::from_utf8_lossy(name).into_owned();
        let calls = number(&mut rest)?;
        let values = number(&mut rest)? as usize;
        let size = values.checked_mul(4).ok_or_else(short)?;
        let (sums, after) = rest.split_at_checked(size).ok_or_else(short)?;
        rest = after;
        let (sums, _) = sums.as_chunks::<4>();
        let sums = sums.iter().map(|v| f32::from_le_bytes(*v)).collect();
        let sums = checked(sums)
            .map_err(|problem| Error::malformed(path, format!("tensor {name}"), problem))?;
        let squares = Squares {
            sums,
            counts: vec![calls as f32],
        };
        all.tensors.insert(name, squares);
    }
    if let Ok(chunks) = number(&mut rest) {
        all.chunks = chunks;
        let length = number(&mut rest).unwrap_or(0) as usize;
        if let Some((name, _)) = rest.split_at_checked(length) {
            all.datasets = vec![String::from_utf8_lossy(name).into_owned()];
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Importance {
        let mut squares = Squares {
            sums: vec![0.0; 6],
            counts: vec![0.0; 2],
        };
        squares.add(0, &[1.0, 2.0, 3.0]);
        squares.add(0, &[3.0, 0.0, 1.0]);
        Importance {
            tensors: [("blk.0.ffn_up_exps.weight".to_string(), squares)].into(),
            datasets: vec!["a text".into()],
            chunks: 2,
            chunk: 512,
        }
    }

    fn tensor(stack: usize, k: usize) -> TensorInfo {
        TensorInfo {
            name: "blk.0.ffn_up_exps.weight".into(),
            format: Format::F32,
            n: 8 * stack,
            k,
            stack,
        }
    }

    #[test]
    fn a_written_file_is_read_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("imatrix.gguf");
        sample().write(&path).expect("written");
        assert_eq!(Importance::read(&path).expect("read"), sample());
    }

    #[test]
    fn means_are_of_each_expert_and_even_for_one_that_saw_nothing() {
        let means = sample().of(&tensor(2, 3)).expect("fits").expect("an entry");
        assert_eq!(means, [vec![5.0, 2.0, 5.0], vec![1.0, 1.0, 1.0]]);
        let problem = sample().of(&tensor(2, 4)).expect_err("other columns");
        assert!(problem.contains("6 columns for 2 matrices"), "{problem}");
        let mut other = tensor(2, 3);
        other.name = "output.weight".into();
        assert_eq!(sample().of(&other), Ok(None));
    }

    #[test]
    fn old_files_are_read_and_damaged_ones_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("imatrix.dat");
        let mut file = 1u32.to_le_bytes().to_vec();
        let name = "blk.0.ffn_up.weight";
        file.extend((name.len() as u32).to_le_bytes());
        file.extend(name.bytes());
        file.extend(4u32.to_le_bytes());
        file.extend(2u32.to_le_bytes());
        file.extend([8.0f32, 2.0].into_iter().flat_map(f32::to_le_bytes));
        let whole = file.len();
        file.extend(7u32.to_le_bytes());
        file.extend(3u32.to_le_bytes());
        file.extend(b"wik");
        std::fs::write(&path, &file).expect("written");
        let read = Importance::read(&path).expect("read");
        assert_eq!((read.chunks, read.datasets), (7, vec!["wik".to_string()]));
        let mut info = tensor(1, 2);
        info.name = name.into();
        let all = Importance::read(&path).expect("read");
        assert_eq!(all.of(&info), Ok(Some(vec![vec![2.0, 0.5]])));
        for length in 0..whole {
            std::fs::write(&path, &file[..length]).expect("written");
            Importance::read(&path).expect_err("a part of a file");
        }
        file[12 + name.len() + 3] = 0x80;
        file[8 + name.len() + 8 + 3] = 0xff;
        std::fs::write(&path, &file).expect("written");
        assert!(Importance::read(&path).is_err());
    }
}
