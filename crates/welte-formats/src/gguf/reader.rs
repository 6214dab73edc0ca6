//! Opens GGUF files. The head is checked completely, so that reading rows never leaves the file.

use super::{
    ALIGNMENT, ALIGNMENT_KEY, ARRAY, Kind, Kinds, MAGIC, MAX_DEPTH, foreign_type, format_of,
    split_name, type_id,
};
use crate::checkpoint::TOKEN_MAP;
use crate::tensors::Tensors;
use crate::{Checkpoint, Dialect, Error, Metadata, Source, TensorInfo, Value, mapped};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use welte_table::Format;

/// The most array elements per file. The largest vocabularies need a twentieth.
const MAX_ELEMENTS: u64 = 1 << 24;

/// Of a source that is not mapped: bytes of the first read for the head, and of the last.
const FIRST_READ: u64 = 1 << 20;
const MOST_HEAD: u64 = 256 << 20;

/// The type id of integers of 64 bits.
const I64: u32 = 27;

/// An open GGUF file. A split file appears as one.
#[derive(Debug)]
pub struct Gguf {
    origin: String,
    files: Vec<Box<dyn Source>>,
    metadata: Metadata,
    kinds: Kinds,
    tensors: Tensors,
    places: Vec<Place>,
    kernels: Kernels,
}

/// The dimensions of tensors that have four: kernels of convolutions.
type Kernels = BTreeMap<String, [usize; 4]>;

/// Where the data of a tensor lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The part of a split file, and the first byte in it.
    part: usize,
    start: usize,
    /// Of NVFP4_F32, the place of the factors, which are a tensor of their own: one for each stacked matrix.
    factors: Option<(usize, usize)>,
}

impl Gguf {
    /// Opens a file. Any part of a split file opens all parts.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        let first = open_part(path)?;
        let parts = parts_of(path, &first)?;
        let mut gguf = Gguf::empty(path.display().to_string());
        let mut opened = Some(first);
        let count = parts.len();
        for (number, part) in parts.iter().enumerate() {
            // This part is open already.
            let named = if part == path { opened.take() } else { None };
            let read = match named {
                Some(read) => read,
                None => open_part(part).map_err(|e| missing_part(e, part, number, count))?,
            };
            if count > 1 {
                check_part(part, &read, number, count)?;
            }
            gguf.add(part, read)?;
        }
        if let Some(total) = unsigned(&gguf.metadata, "split.tensors.count")
            && count > 1
            && total != gguf.tensors.list().len() as u64
        {
            let problem = format!(
                "is {total}, but the {count} parts contain {} tensors",
                gguf.tensors.list().len()
            );
            return Err(Error::malformed(path, "split.tensors.count", problem));
        }
        gguf.join_factors()?;
        Ok(gguf)
    }

    /// A file that is not split, read from a source. Only its head is read now.
    pub fn from_source(name: &str, source: Box<dyn Source>) -> Result<Gguf, Error> {
        let path = Path::new(name);
        let mut known = FIRST_READ;
        let (head, tensors) = loop {
            let all = source.size().min(MOST_HEAD);
            let bytes = source.read(0..known.min(all) as usize);
            let bytes = bytes.map_err(|error| Error::io(path, error))?;
            match read_head(path, &bytes, source.size()) {
                // The head may go on after the part that was read.
                Err(_) if known < all => known *= 4,
                Err(error) => return Err(error),
                Ok(found) => break found,
            }
        };
        let mut gguf = Gguf::empty(name.to_string());
        let file = source;
        gguf.add(
            path,
            Part {
                file,
                head,
                tensors,
            },
        )?;
        gguf.join_factors()?;
        Ok(gguf)
    }

    fn empty(origin: String) -> Gguf {
        Gguf {
            origin,
            files: Vec::new(),
            metadata: Metadata::new(),
            kinds: Kinds::new(),
            tensors: Tensors::default(),
            places: Vec::new(),
            kernels: Kernels::new(),
        }
    }

    /// Makes NVFP4_F32 of each NVFP4 matrix `X.weight` with factors in `X.scale`. Scales of activations are dropped.
    fn join_factors(&mut self) -> Result<(), Error> {
        let path = Path::new(&self.origin);
        let mut joined = Tensors::default();
        let mut places = Vec::new();
        let named = |name: &str, part: &str| {
            let stem = name.strip_suffix(part)?;
            let weight = self.tensors.get(&format!("{stem}.weight"))?;
            (weight.format == Format::NVFP4).then(|| format!("{stem}.scale"))
        };
        for (info, place) in self.tensors.list().iter().zip(&self.places) {
            if [".scale", ".input_scale"]
                .iter()
                .any(|part| named(&info.name, part).is_some())
            {
                continue;
            }
            let (mut info, mut place) = (info.clone(), *place);
            let scale = named(&info.name, ".weight").and_then(|name| self.tensors.get(&name));
            if let Some(scale) = scale {
                if scale.format != Format::F32 || scale.n * scale.k != info.stack {
                    let problem = format!("must be {} numbers in F32", info.stack);
                    return Err(scale.wrong(path, problem));
                }
                let number = self.tensors.number_of(&scale.name);
                let found = number.and_then(|number| self.places.get(number));
                let (part, start) = found.map_or((0, 0), |at| (at.part, at.start));
                let factors = self.files[part].read(start..start + 4 * info.stack);
                let factors = factors.map_err(|error| Error::io(path, error))?;
                let mut factors = factors.as_chunks().0.iter();
                if !factors.all(|factor| f32::from_le_bytes(*factor).is_finite()) {
                    return Err(scale.wrong(path, "has a number that is not finite"));
                }
                place.factors = Some((part, start));
                info.format = Format::NVFP4_F32;
            }
            if !joined.add(info.clone()) {
                return Err(info.wrong(path, "appears twice"));
            }
            places.push(place);
        }
        (self.tensors, self.places) = (joined, places);
        Ok(())
    }

    /// Rows of an NVFP4 matrix, each block after the factor of its matrix.
    fn with_factors(
        &self,
        tensor: &TensorInfo,
        place: Place,
        factors: (usize, usize),
        rows: Range<usize>,
    ) -> io::Result<Vec<u8>> {
        let (part, start) = factors;
        let stored = TensorInfo {
            format: Format::NVFP4,
            ..tensor.clone()
        };
        let bytes = mapped::places(&stored, place.start, 0..1).map_or(0, |row| row.len());
        let mut out = Vec::with_capacity(2 * rows.len() * bytes);
        for row in rows {
            let at = start + 4 * (row / (tensor.n / tensor.stack));
            let factor = self.files[part].read(at..at + 4)?;
            let from = place.start + row * bytes;
            let blocks = self.files[place.part].read(from..from + bytes)?;
            for block in blocks.chunks_exact(Format::NVFP4.block_bytes()) {
                out.extend_from_slice(&factor);
                out.extend_from_slice(block);
            }
        }
        Ok(out)
    }

    /// Adds the tensors of a part, and the metadata of the first.
    fn add(&mut self, path: &Path, part: Part) -> Result<(), Error> {
        let number = self.files.len();
        self.kernels.extend(part.head.kernels);
        for (info, start) in part.tensors {
            if !self.tensors.add(info.clone()) {
                return Err(info.wrong(path, "appears twice"));
            }
            self.places.push(Place {
                part: number,
                start,
                factors: None,
            });
        }
        if number == 0 {
            self.metadata = part.head.metadata;
            self.kinds = part.head.kinds;
        }
        self.files.push(part.file);
        Ok(())
    }
}

impl Checkpoint for Gguf {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn dialect(&self) -> Dialect {
        Dialect::Gguf
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.tensors.list()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    fn rows(&self, tensor: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let path = Path::new(&self.origin);
        let (number, rows) = self.tensors.rows(path, tensor, first, rows)?;
        let place = self.places[number];
        let found = match place.factors {
            Some(factors) => self
                .with_factors(tensor, place, factors, rows)
                .map(Cow::Owned),
            None => match mapped::places(tensor, place.start, rows) {
                Some(places) => self.files[place.part].read(places),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        };
        found.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => tensor.wrong(path, "is not completely in the file"),
            _ => Error::io(path, error),
        })
    }

    fn release(&self) {
        self.files.iter().for_each(|file| file.release());
    }

    fn dimensions(&self, tensor: &TensorInfo) -> Option<&[usize]> {
        self.kernels.get(&tensor.name).map(|own| own.as_slice())
    }

    fn kinds(&self) -> &Kinds {
        &self.kinds
    }
}

/// One opened file.
struct Part {
    file: Box<dyn Source>,
    head: Head,
    /// Tensors and the start of their data in the file.
    tensors: Vec<(TensorInfo, usize)>,
}

/// The description of a tensor.
enum Read {
    /// A tensor, its offset in the data, its size in bytes, and its dimensions if it has kernels.
    Tensor(TensorInfo, u64, u64, Option<[usize; 4]>),
    /// The name of a tensor with an unsupported type, and the type's id.
    Foreign(String, u32),
}

/// Everything before the data.
#[derive(Default)]
struct Head {
    metadata: Metadata,
    kinds: Kinds,
    /// Tensors, their offset in the data and their size in bytes.
    tensors: Vec<(TensorInfo, u64, u64)>,
    kernels: Kernels,
}

fn open_part(path: &Path) -> Result<Part, Error> {
    let map = mapped::map(path)?;
    let (head, tensors) = read_head(path, &map, map.len() as u64)?;
    let file = Box::new(map);
    Ok(Part {
        file,
        head,
        tensors,
    })
}

/// The head at the start of a file of `size` bytes, and where the tensors' data begin.
fn read_head(
    path: &Path,
    bytes: &[u8],
    size: u64,
) -> Result<(Head, Vec<(TensorInfo, usize)>), Error> {
    let mut cursor = Cursor {
        path,
        bytes,
        at: 0,
        elements: 0,
    };
    let head = cursor.head()?;
    let tensors = place(path, &head, cursor.at as u64, size)?;
    Ok((head, tensors))
}

/// The position of each tensor's data. All must lie within the file without overlap.
fn place(
    path: &Path,
    head: &Head,
    head_end: u64,
    file: u64,
) -> Result<Vec<(TensorInfo, usize)>, Error> {
    let alignment = match head.metadata.get(ALIGNMENT_KEY) {
        None => ALIGNMENT,
        Some(Value::U64(a)) if a.is_power_of_two() && *a <= 1 << 30 => *a,
        Some(_) => {
            let problem = "must be an unsigned power of two, at most 2^30";
            return Err(Error::malformed(path, ALIGNMENT_KEY, problem));
        }
    };
    let data = head_end.next_multiple_of(alignment);
    let mut placed = Vec::with_capacity(head.tensors.len());
    for (info, offset, bytes) in &head.tensors {
        let wrong = |problem: String| info.wrong(path, problem);
        if !offset.is_multiple_of(alignment) {
            return Err(wrong(format!(
                "starts at {offset}, which is not a multiple of the alignment {alignment}"
            )));
        }
        let start = data.checked_add(*offset);
        let end = start.and_then(|s| s.checked_add(*bytes));
        match (start.and_then(|s| usize::try_from(s).ok()), end) {
            (Some(start), Some(end)) if end <= file => placed.push((info.clone(), start)),
            _ => {
                let problem = format!(
                    "needs {bytes} bytes at offset {offset} of the data, past the end of the file ({file} bytes); \
                     the download may be incomplete: download it again"
                );
                return Err(wrong(problem));
            }
        }
    }
    let mut order: Vec<&(TensorInfo, u64, u64)> = head.tensors.iter().collect();
    order.sort_by_key(|(_, offset, _)| *offset);
    for pair in order.windows(2) {
        let ((a, offset, bytes), (b, next, _)) = (pair[0], pair[1]);
        // Both lie within the file, so this cannot overflow.
        if offset + bytes > *next {
            return Err(b.wrong(path, format!("overlaps tensor {}", a.name)));
        }
    }
    Ok(placed)
}

fn unsigned(metadata: &Metadata, key: &str) -> Option<u64> {
    match metadata.get(key)? {
        Value::U64(v) => Some(*v),
        Value::I64(v) => u64::try_from(*v).ok(),
        _ => None,
    }
}

/// All parts of the split file that `path` belongs to, in order.
fn parts_of(path: &Path, part: &Part) -> Result<Vec<PathBuf>, Error> {
    let said = unsigned(&part.head.metadata, "split.count").unwrap_or(0);
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    match split_name(name) {
        None if said <= 1 => Ok(vec![path.to_path_buf()]),
        None => {
            let problem = format!(
                "is {said}, so this is part of a split model; name its parts like x-00001-of-{said:05}.gguf"
            );
            Err(Error::malformed(path, "split.count", problem))
        }
        // The name alone does not make a split file: some whole files have such a name.
        Some((_, 1, 1)) if said <= 1 => Ok(vec![path.to_path_buf()]),
        Some((prefix, _, parts)) if u64::from(parts) == said => Ok((1..=parts)
            .map(|i| path.with_file_name(format!("{prefix}-{i:05}-of-{parts:05}.gguf")))
            .collect()),
        Some((_, _, parts)) => {
            let problem = format!(
                "is {said}, but the name says {parts} parts; give the file its original name"
            );
            Err(Error::malformed(path, "split.count", problem))
        }
    }
}

fn missing_part(error: Error, part: &Path, number: usize, count: usize) -> Error {
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let problem = format!(
                "part {} of {count} is missing; put all parts into one directory",
                number + 1
            );
            Error::unsupported(part, problem)
        }
        other => other,
    }
}

fn check_part(path: &Path, part: &Part, number: usize, count: usize) -> Result<(), Error> {
    let metadata = &part.head.metadata;
    let said = unsigned(metadata, "split.count").unwrap_or(0);
    if said != count as u64 {
        return Err(Error::malformed(
            path,
            "split.count",
            format!("is {said}, but the other parts say {count}"),
        ));
    }
    match unsigned(metadata, "split.no") {
        Some(no) if no == number as u64 => Ok(()),
        no => {
            let found = no.map_or("missing".to_string(), |n| n.to_string());
            let problem =
                format!("is {found}, but the name says {number}; give the file its original name");
            Err(Error::malformed(path, "split.no", problem))
        }
    }
}

/// Reads the head. Every count is compared with the rest of the file before memory is allocated for it.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// Array elements read so far.
    elements: u64,
}

impl<'a> Cursor<'a> {
    fn head(&mut self) -> Result<Head, Error> {
        if self.take(4, "magic")? != MAGIC {
            return Err(Error::unsupported(
                self.path,
                "is not a GGUF file: it does not start with \"GGUF\"",
            ));
        }
        let version = self.u32("version")?;
        match version {
            2 | 3 => {}
            1 => {
                let problem =
                    "is GGUF version 1; versions 2 and 3 are supported: convert the model again";
                return Err(Error::unsupported(self.path, problem));
            }
            v if v.swap_bytes() <= 0xffff => {
                let problem = "is a big-endian GGUF file; only little-endian is supported: convert the model again";
                return Err(Error::unsupported(self.path, problem));
            }
            v => {
                let problem = format!("is GGUF version {v}; versions 2 and 3 are supported");
                return Err(Error::unsupported(self.path, problem));
            }
        }
        let tensors = self.u64("tensor count")?;
        let keys = self.u64("key count")?;
        // A tensor takes at least 32 bytes (empty name, one dimension), a key 13.
        self.enough("tensor count", tensors, 32)?;
        self.enough("key count", keys, 13)?;
        let mut head = Head::default();
        for number in 0..keys {
            let key = self.text(&format!("key {number}"))?;
            let id = self.u32(&key)?;
            let (value, kind) = self.value(&key, id, 0)?;
            if head.metadata.insert(key.clone(), value).is_some() {
                return Err(self.wrong(&key, "appears twice"));
            }
            head.kinds.insert(key, kind);
        }
        self.enough("tensor count", tensors, 32)?;
        head.tensors.reserve_exact(tensors as usize);
        let mut foreign: Vec<(String, u32)> = Vec::new();
        for number in 0..tensors {
            match self.tensor(number)? {
                Read::Tensor(info, offset, bytes, kernel) => {
                    head.kernels
                        .extend(kernel.map(|kernel| (info.name.clone(), kernel)));
                    head.tensors.push((info, offset, bytes));
                }
                Read::Foreign(name, id) => foreign.push((name, id)),
            }
        }
        if foreign.is_empty() {
            Ok(head)
        } else {
            Err(self.foreign(&foreign, tensors))
        }
    }

    /// An error about tensors with types that are not supported.
    fn foreign(&self, foreign: &[(String, u32)], tensors: u64) -> Error {
        let ours = Format::ALL.into_iter().filter(|f| type_id(*f).is_some());
        let ours: Vec<&str> = ours.map(Format::name).collect();
        let (name, id) = &foreign[0];
        let mut others: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, id) in foreign {
            *others.entry(*id).or_default() += 1;
        }
        let others: Vec<String> = others
            .iter()
            .map(|(id, count)| format!("{count} of {tensors} are {}", foreign_type(*id)))
            .collect();
        let problem = format!(
            "has type {}; supported are {} ({})",
            foreign_type(*id),
            ours.join(", "),
            others.join(", ")
        );
        self.wrong(&format!("tensor {name}"), problem)
    }

    /// The description of a tensor. Its position is checked later.
    fn tensor(&mut self, number: u64) -> Result<Read, Error> {
        let name = self.text(&format!("tensor {number}"))?;
        let field = format!("tensor {name}");
        let dimensions = self.u32(&field)?;
        if !(1..=4).contains(&dimensions) {
            return Err(self.wrong(
                &field,
                format!("has {dimensions} dimensions; 1 to 4 are supported"),
            ));
        }
        let mut size = [1u64; 4];
        for s in &mut size[..dimensions as usize] {
            *s = self.u64(&field)?;
        }
        let id = self.u32(&field)?;
        let offset = self.u64(&field)?;
        let format = match format_of(id) {
            Some(format) => format,
            None if id == I64 && name == TOKEN_MAP => {
                size[0] = size[0].saturating_mul(2);
                Format::F32
            }
            None => return Ok(Read::Foreign(name, id)),
        };
        // Stacked matrices (experts) become one matrix with the rows of all, the kernels of a convolution one row each.
        let [k, n, stack, kernels] = size;
        let (k, n, stack) = if kernels > 1 {
            let size = k.checked_mul(n).and_then(|size| size.checked_mul(stack));
            (size.unwrap_or(0), kernels, 1)
        } else {
            (k, n.checked_mul(stack).unwrap_or(0), stack)
        };
        if k == 0 || n == 0 {
            return Err(self.wrong(&field, format!("is empty ({n} x {k})")));
        }
        let row = usize::try_from(k).ok().and_then(|k| format.bytes(k));
        let bytes = row
            .and_then(|row| u64::try_from(row).ok()?.checked_mul(n))
            .ok_or_else(|| {
                let block = format.block();
                let problem = format!(
                    "{n} x {k} cannot be {}: rows must be multiples of {block}",
                    format.name()
                );
                self.wrong(&field, problem)
            })?;
        // Fits: k * n is at most a few times the number of bytes, and the file is mapped.
        let (n, k) = (
            usize::try_from(n).unwrap_or(usize::MAX),
            usize::try_from(k).unwrap_or(usize::MAX),
        );
        // The stack divides n, so it fits too.
        let stack = usize::try_from(stack).unwrap_or(1);
        let info = TensorInfo {
            name,
            format,
            n,
            k,
            stack,
        };
        let kernel = size.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let kernel = (kernels > 1).then_some(kernel);
        Ok(Read::Tensor(info, offset, bytes, kernel))
    }

    fn value(&mut self, key: &str, id: u32, depth: u32) -> Result<(Value, Kind), Error> {
        if id == ARRAY {
            return self.array(key, depth);
        }
        let kind = Kind::plain(id).ok_or_else(|| {
            self.wrong(
                key,
                format!("has value type {id}, which GGUF does not define (0 to 12)"),
            )
        })?;
        Ok((self.plain(key, &kind)?, kind))
    }

    fn plain(&mut self, key: &str, kind: &Kind) -> Result<Value, Error> {
        Ok(match kind {
            Kind::U8 => Value::U64(self.fixed::<1>(key)?[0].into()),
            Kind::I8 => Value::I64(i8::from_le_bytes(self.fixed(key)?).into()),
            Kind::U16 => Value::U64(u16::from_le_bytes(self.fixed(key)?).into()),
            Kind::I16 => Value::I64(i16::from_le_bytes(self.fixed(key)?).into()),
            Kind::U32 => Value::U64(u32::from_le_bytes(self.fixed(key)?).into()),
            Kind::I32 => Value::I64(i32::from_le_bytes(self.fixed(key)?).into()),
            Kind::U64 => Value::U64(u64::from_le_bytes(self.fixed(key)?)),
            Kind::I64 => Value::I64(i64::from_le_bytes(self.fixed(key)?)),
            Kind::F32 => Value::F64(f32::from_le_bytes(self.fixed(key)?).into()),
            Kind::F64 => Value::F64(f64::from_le_bytes(self.fixed(key)?)),
            Kind::Bool => match self.fixed::<1>(key)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => {
                    return Err(self.wrong(
                        key,
                        format!("is a boolean with the value {other}; it must be 0 or 1"),
                    ));
                }
            },
            Kind::String => Value::String(self.text(key)?),
            Kind::Array(_) | Kind::Arrays(_) => {
                return Err(self.wrong(key, "is an array, expected a plain value"));
            }
        })
    }

    fn array(&mut self, key: &str, depth: u32) -> Result<(Value, Kind), Error> {
        if depth >= MAX_DEPTH {
            return Err(self.wrong(key, format!("has arrays nested more than {MAX_DEPTH} deep")));
        }
        let id = self.u32(key)?;
        let count = self.u64(key)?;
        self.enough(key, count, Kind::least_bytes(id))?;
        self.elements += count;
        if self.elements > MAX_ELEMENTS {
            return Err(self.wrong(
                key,
                format!("exceeds the limit of {MAX_ELEMENTS} array elements per file"),
            ));
        }
        let mut values = Vec::with_capacity(count as usize);
        if id == ARRAY {
            let mut kinds = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let (value, kind) = self.array(key, depth + 1)?;
                values.push(value);
                kinds.push(kind);
            }
            return Ok((Value::Array(values), Kind::Arrays(kinds)));
        }
        let kind = Kind::plain(id).ok_or_else(|| {
            self.wrong(
                key,
                format!("has elements of type {id}, which GGUF does not define (0 to 12)"),
            )
        })?;
        for _ in 0..count {
            values.push(self.plain(key, &kind)?);
        }
        Ok((Value::Array(values), Kind::Array(Box::new(kind))))
    }

    /// Fails if the rest of the file cannot hold `count` entries.
    fn enough(&self, field: &str, count: u64, each: u64) -> Result<(), Error> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left / each {
            return Err(self.wrong(
                field,
                format!("declares {count} entries, but only {left} bytes are left"),
            ));
        }
        Ok(())
    }

    fn text(&mut self, field: &str) -> Result<String, Error> {
        let length = self.u64(field)?;
        let bytes = self.take(length, field)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| self.wrong(field, "contains text that is not UTF-8"))?;
        Ok(text.to_string())
    }

    fn u32(&mut self, field: &str) -> Result<u32, Error> {
        self.fixed(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, Error> {
        self.fixed(field).map(u64::from_le_bytes)
    }

    fn fixed<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    fn take(&mut self, count: u64, field: &str) -> Result<&'a [u8], Error> {
        let left = &self.bytes[self.at..];
        match usize::try_from(count)
            .ok()
            .and_then(|count| left.get(..count))
        {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => {
                let problem = format!(
                    "needs {count} bytes, but the file ends after {}; download it again",
                    left.len()
                );
                Err(self.wrong(field, problem))
            }
        }
    }

    fn wrong(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::malformed(self.path, shorten(field), problem)
    }
}

/// Shortens a field name for errors. Names in a file may have any length.
fn shorten(field: &str) -> String {
    match field.char_indices().nth(120) {
        Some((at, _)) => format!("{}...", &field[..at]),
        None => field.to_string(),
    }
}
