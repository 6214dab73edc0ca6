//! A checkpoint in the names, keys and layouts of the other dialect. Its tensors are made of the original's when they are read.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use welte_formats::checkpoint::{Checkpoint, Dialect, Metadata, TensorInfo};
use welte_formats::quant;
use welte_table::{Format, Part};

/// A checkpoint of the other dialect.
pub struct Translated {
    pub(crate) from: Box<dyn Checkpoint>,
    pub(crate) dialect: Dialect,
    pub(crate) metadata: Metadata,
    tensors: Vec<TensorInfo>,
    sources: Vec<Source>,
    by_name: HashMap<String, usize>,
    dimensions: HashMap<String, Vec<usize>>,
}

/// Where the rows of a tensor come from.
pub(crate) enum Source {
    Rows {
        /// Rows of tensors, one part after the other.
        parts: Vec<Part>,
        /// The order of the rows, or of a vector's elements.
        order: Option<Order>,
        /// The order of each row's elements.
        columns: Option<Order>,
        /// What a vector's elements become.
        change: Change,
    },
    /// The values of a tensor, one after the other.
    Flat(String),
    /// Columns of each of the matrices that lie one below the other in a tensor: the first, and how many. A matrix begins `step` rows after
    /// the one before.
    Transposed {
        tensor: String,
        first: usize,
        columns: usize,
        step: usize,
    },
    Constant(Vec<f32>),
}

/// What elements become.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Change {
    Add(f32),
    /// `-exp(x)`
    Decay,
}

impl Change {
    fn of(self, value: f32) -> f32 {
        match self {
            Change::Add(more) => value + more,
            Change::Decay => -value.exp(),
        }
    }
}

/// The order of rows or elements that belong to heads.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// The rows (i, i + rot/2) of each head become the rows (2i, 2i + 1). Rows from `end` on stay.
    Pairs { head: usize, rot: usize, end: usize },
    /// The rows (2i, 2i + 1) of each head become the rows (i, i + rot/2).
    Halves { head: usize, rot: usize },
    /// Each group of query heads, its key and its value become all queries, all keys and all values.
    Ungrouped {
        heads: usize,
        groups: usize,
        head: usize,
    },
    /// Heads of one group become `groups` places apart. They begin at `first`, and each has `size` rows.
    Tiled {
        first: usize,
        groups: usize,
        heads: usize,
        size: usize,
    },
    /// The values of a patch of three colours: pixel by pixel in the original, then colour by colour.
    Colours { pixels: usize },
    /// The values of one frame of a patch of three colours and several frames.
    Frame {
        frames: usize,
        at: usize,
        pixels: usize,
    },
    /// Neighbouring pairs of a head that turn by two axes in turns: first those of one axis, then those of the other.
    /// The others stay where they are.
    Axes { head: usize, rows: usize },
    /// What begins at a place.
    From { first: usize },
}

impl Order {
    /// The original's place of what is at `at`.
    fn place(self, at: usize) -> usize {
        match self {
            Order::Pairs { head, rot, end } => {
                let (start, within) = (at - at % head, at % head);
                if within < rot && at < end {
                    start + within % 2 * (rot / 2) + within / 2
                } else {
                    at
                }
            }
            Order::Halves { head, rot } => {
                let (start, within) = (at - at % head, at % head);
                match rot / 2 {
                    _ if within >= rot => at,
                    half if within < half => start + 2 * within,
                    half => start + 2 * (within - half) + 1,
                }
            }
            Order::Ungrouped {
                heads,
                groups,
                head,
            } => {
                let (number, within, each) = (at / head, at % head, heads / groups);
                let (group, place) = match number.checked_sub(heads) {
                    None => (number / each, number % each),
                    Some(number) => (number % groups, each + number / groups),
                };
                (group * (each + 2) + place) * head + within
            }
            Order::Tiled { first, .. } if at < first => at,
            Order::Tiled {
                first,
                groups,
                heads,
                size,
            } => {
                let (head, within) = ((at - first) / size, (at - first) % size);
                let original = head % groups * (heads / groups) + head / groups;
                first + original * size + within
            }
            Order::Colours { pixels } => at % pixels * 3 + at / pixels,
            Order::Frame {
                frames,
                at: frame,
                pixels,
            } => (at / pixels * frames + frame) * pixels + at % pixels,
            Order::From { first } => first + at,
            Order::Axes { rows, .. } if at >= rows => at,
            Order::Axes { head, .. } => {
                let (start, within) = (at - at % head, at % head);
                let (axis, within) = (within / (head / 2), within % (head / 2));
                start + (within / 2 * 2 + axis) * 2 + within % 2
            }
        }
    }
}

impl Translated {
    /// The tensors of `from` in another dialect.
    pub(crate) fn new(
        from: Box<dyn Checkpoint>,
        dialect: Dialect,
        metadata: Metadata,
        tensors: Tensors,
    ) -> Translated {
        let names = tensors.infos.iter().map(|info| info.name.clone());
        Translated {
            from,
            dialect,
            metadata,
            by_name: names.zip(0..).collect(),
            tensors: tensors.infos,
            sources: tensors.sources,
            dimensions: tensors.dimensions,
        }
    }

    pub(crate) fn source_mut(&mut self, name: &str) -> Option<&mut Source> {
        let at = *self.by_name.get(name)?;
        self.sources.get_mut(at)
    }

    /// Elements of a vector, or rows of a matrix, after the changes of their source.
    fn made(
        &self,
        tensor: &TensorInfo,
        source: &Source,
        first: usize,
        rows: usize,
    ) -> Result<Vec<u8>, welte_formats::Error> {
        let (parts, order, columns, change) = match source {
            Source::Constant(values) => {
                let own = &values[first * tensor.k..(first + rows) * tensor.k];
                return Ok(own.iter().flat_map(|v| v.to_le_bytes()).collect());
            }
            Source::Flat(name) => {
                let (info, all) = self.whole(tensor, name)?;
                let each = info.format.bytes(1).unwrap_or(0);
                let bytes = &all[first * tensor.k * each..(first + rows) * tensor.k * each];
                if info.format == tensor.format {
                    return Ok(bytes.to_vec());
                }
                let mut values = vec![0.0; rows * tensor.k];
                quant::decode(info.format, bytes, &mut values);
                return Ok(values.into_iter().flat_map(f32::to_le_bytes).collect());
            }
            Source::Transposed {
                tensor: name,
                first: column,
                columns,
                step,
            } => {
                let (info, all) = self.whole(tensor, name)?;
                let each = info.format.bytes(1).unwrap_or(0);
                let places = (first..first + rows).flat_map(|row| {
                    let (matrix, column) = (row / columns, column + row % columns);
                    let from = matrix * step;
                    (0..tensor.k).map(move |at| ((from + at) * info.k + column) * each)
                });
                return Ok(places.flat_map(|at| &all[at..at + each]).copied().collect());
            }
            Source::Rows {
                parts,
                order,
                columns,
                change,
            } => (parts, *order, *columns, *change),
        };
        let place = |at| order.map_or(at, |order| order.place(at));
        if tensor.n == 1 {
            let values = self.values(tensor, &parts[0], 0)?;
            let changed = (0..tensor.k).map(|at| change.of(values[place(at)]));
            return Ok(changed.flat_map(f32::to_le_bytes).collect());
        }
        let mut bytes = Vec::new();
        for row in first..first + rows {
            let mut at = place(row);
            for part in parts {
                if at < part.rows as usize {
                    let row = self.row(tensor, part, at)?;
                    match columns {
                        Some(columns) => reordered(tensor, &row, columns, &mut bytes),
                        None => bytes.extend_from_slice(&row),
                    }
                    break;
                }
                at -= part.rows as usize;
            }
        }
        Ok(bytes)
    }

    /// A row of a part, in the tensor's format.
    fn row(
        &self,
        tensor: &TensorInfo,
        part: &Part,
        at: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        let info = self.stored(tensor, part)?;
        if info.format == tensor.format {
            return self.from.rows(info, part.first_row as usize + at, 1);
        }
        let values = self.values(tensor, part, at)?;
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    fn values(
        &self,
        tensor: &TensorInfo,
        part: &Part,
        at: usize,
    ) -> Result<Vec<f32>, welte_formats::Error> {
        let info = self.stored(tensor, part)?;
        let bytes = self.from.rows(info, part.first_row as usize + at, 1)?;
        let mut values = vec![0.0; info.k];
        quant::decode(info.format, &bytes, &mut values);
        Ok(values)
    }

    /// A tensor of the original whose values can be taken one by one.
    fn whole(
        &self,
        tensor: &TensorInfo,
        name: &str,
    ) -> Result<(&TensorInfo, Cow<'_, [u8]>), welte_formats::Error> {
        let info = self.from.tensor(name);
        let info = info.ok_or_else(|| self.missing(tensor, name))?;
        Ok((info, self.from.rows(info, 0, info.n)?))
    }

    fn stored(
        &self,
        tensor: &TensorInfo,
        part: &Part,
    ) -> Result<&TensorInfo, welte_formats::Error> {
        let info = self.from.tensor(&part.tensor);
        info.ok_or_else(|| self.missing(tensor, &part.tensor))
    }

    fn is_stored_so(&self, tensor: &TensorInfo, part: &Part) -> bool {
        self.stored(tensor, part)
            .is_ok_and(|info| info.format == tensor.format)
    }

    fn missing(&self, tensor: &TensorInfo, name: &str) -> welte_formats::Error {
        welte_formats::Error::Weight {
            origin: self.origin().into(),
            weight: tensor.name.clone(),
            problem: format!("{name} is missing"),
        }
    }
}

impl Checkpoint for Translated {
    fn origin(&self) -> &str {
        self.from.origin()
    }
    fn dialect(&self) -> Dialect {
        self.dialect
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }
    fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        rows: usize,
    ) -> Result<Cow<'_, [u8]>, welte_formats::Error> {
        let at = self.by_name.get(&tensor.name).copied();
        let source = at.ok_or_else(|| self.missing(tensor, &tensor.name))?;
        match &self.sources[source] {
            Source::Rows {
                parts,
                order: None,
                columns: None,
                ..
            } if parts.len() == 1 && tensor.n > 1 && self.is_stored_so(tensor, &parts[0]) => {
                let info = self.stored(tensor, &parts[0])?;
                self.from
                    .rows(info, parts[0].first_row as usize + first, rows)
            }
            source => self.made(tensor, source, first, rows).map(Cow::Owned),
        }
    }
    fn dimensions(&self, tensor: &TensorInfo) -> Option<&[usize]> {
        self.dimensions.get(&tensor.name).map(Vec::as_slice)
    }
    fn release(&self) {
        self.from.release();
    }
}

/// Appends a row whose elements change places. The heads are whole blocks of the format.
fn reordered(tensor: &TensorInfo, row: &[u8], columns: Order, bytes: &mut Vec<u8>) {
    let step = match columns {
        Order::Tiled { size, .. } => size,
        _ => 1,
    };
    let Some(unit) = tensor.format.bytes(step) else {
        return;
    };
    for at in (0..tensor.k).step_by(step) {
        let from = columns.place(at) / step * unit;
        bytes.extend_from_slice(&row[from..from + unit]);
    }
}

/// The tensors of the other dialect and their sources.
#[derive(Default)]
pub(crate) struct Tensors {
    pub(crate) infos: Vec<TensorInfo>,
    pub(crate) sources: Vec<Source>,
    /// The original's tensors that became part of one.
    pub(crate) used: HashSet<String>,
    /// Dimensions of tensors where rows do not say them, those of a row first.
    pub(crate) dimensions: HashMap<String, Vec<usize>>,
}

impl Tensors {
    /// A tensor that has the rows of another one; nothing if the original lacks that, or if it is part of another tensor already.
    pub(crate) fn copy(&mut self, from: &dyn Checkpoint, name: &str, own: &str) -> bool {
        let info = from
            .tensor(name)
            .filter(|info| !self.used.contains(&info.name));
        let Some(info) = info else {
            return false;
        };
        let parts = vec![self.part(info, 0, info.n)];
        self.push(own, info, info.n, info.stack, parts);
        true
    }

    pub(crate) fn part(&mut self, info: &TensorInfo, first: usize, rows: usize) -> Part {
        self.used.insert(info.name.clone());
        Part {
            tensor: info.name.clone(),
            first_row: first as u32,
            rows: rows as u32,
        }
    }

    /// Vectors and norms are F32 in GGUF.
    pub(crate) fn push(
        &mut self,
        name: &str,
        like: &TensorInfo,
        n: usize,
        stack: usize,
        parts: Vec<Part>,
    ) {
        self.infos.push(TensorInfo {
            name: name.into(),
            format: if n == 1 || name.ends_with("_norm.weight") {
                Format::F32
            } else {
                like.format
            },
            n,
            k: like.k,
            stack,
        });
        self.sources.push(Source::Rows {
            parts,
            order: None,
            columns: None,
            change: Change::Add(0.0),
        });
    }

    /// The last tensor and its source.
    pub(crate) fn last(&mut self) -> Option<(&mut TensorInfo, &mut Source)> {
        self.infos.last_mut().zip(self.sources.last_mut())
    }

    pub(crate) fn constant(&mut self, name: &str, values: Vec<f32>) {
        let width = values.len();
        self.table(name, values, width);
    }

    /// Constant rows.
    pub(crate) fn table(&mut self, name: &str, values: Vec<f32>, width: usize) {
        self.infos.push(TensorInfo {
            name: name.into(),
            format: Format::F32,
            n: values.len() / width.max(1),
            k: width,
            stack: 1,
        });
        self.sources.push(Source::Constant(values));
    }
}
