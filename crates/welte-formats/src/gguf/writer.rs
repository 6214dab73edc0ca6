//! Writes GGUF version 3: the head, then each tensor's bytes in order. The file gets its name when it is complete.

use super::{ALIGNMENT, ALIGNMENT_KEY, Kind, Kinds, MAGIC, type_id};
use crate::{Error, Metadata, TensorInfo, Value};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes one file. Bytes go to `NAME.part-PID` in the same directory. [`Writer::finish`] renames it; dropping the
/// writer before that removes it.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
    /// Name and size of each tensor.
    tensors: Vec<(String, u64)>,
    /// The current tensor, and its bytes written so far.
    current: usize,
    written: u64,
}

impl Writer {
    /// Starts a file with this metadata and these tensors. Keys without a type in `kinds` get the usual one: u32 or i32
    /// for integers that fit, otherwise 64 bits, and f32 for floats. The alignment is 32; `general.alignment` and
    /// `split.*` are left out.
    pub fn create(
        path: &Path,
        metadata: &Metadata,
        kinds: &Kinds,
        tensors: &[TensorInfo],
    ) -> Result<Writer, Error> {
        Writer::create_like(path, metadata, kinds, tensors, &|_| None)
    }

    /// The same with tensors that have other dimensions than those of their rows and stacked matrices
    /// ([`Checkpoint::dimensions`](crate::Checkpoint::dimensions)).
    pub fn create_like<'a>(
        path: &Path,
        metadata: &Metadata,
        kinds: &Kinds,
        tensors: &[TensorInfo],
        dimensions: &dyn Fn(&TensorInfo) -> Option<&'a [usize]>,
    ) -> Result<Writer, Error> {
        let head = head(path, metadata, kinds, tensors, dimensions)?;
        let sizes = tensors
            .iter()
            .map(|t| Ok((t.name.clone(), bytes_of(path, t)?)))
            .collect::<Result<_, Error>>()?;
        if path.is_dir() {
            return Err(Error::unsupported(
                path,
                "is a directory; name a file to write",
            ));
        }
        let temporary = beside(path);
        let file = File::create(&temporary).map_err(|source| Error::io(&temporary, source))?;
        let mut writer = Writer {
            target: path.to_path_buf(),
            temporary,
            file: Some(BufWriter::with_capacity(1 << 20, file)),
            tensors: sizes,
            current: 0,
            written: 0,
        };
        writer.put(&head)?;
        writer.pad(head.len() as u64)?;
        Ok(writer)
    }

    /// Writes the next bytes of the data, in the order of the tensors. Pieces may have any size, but must not cross
    /// from one tensor into the next.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some((name, size)) = self.tensors.get(self.current) else {
            return Err(self.wrong("data", "more bytes than the tensors need"));
        };
        let size = *size;
        if bytes.len() as u64 > size - self.written {
            let problem = format!(
                "got {} bytes, but only {} are left",
                bytes.len(),
                size - self.written
            );
            return Err(self.wrong(&format!("tensor {name}"), &problem));
        }
        self.put(bytes)?;
        self.written += bytes.len() as u64;
        if self.written == size {
            self.pad(size)?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Completes the file, syncs it to disk and gives it its name. Fails if data is missing.
    pub fn finish(mut self) -> Result<(), Error> {
        if let Some((name, size)) = self.tensors.get(self.current) {
            let problem = format!("only {} of {size} bytes were written", self.written);
            return Err(self.wrong(&format!("tensor {name}"), &problem));
        }
        let temporary = self.temporary.clone();
        let io = |source| Error::io(&temporary, source);
        if let Some(buffered) = &mut self.file {
            buffered.flush().map_err(io)?;
            buffered.get_ref().sync_all().map_err(io)?;
        }
        std::fs::rename(&self.temporary, &self.target)
            .map_err(|source| Error::io(&self.target, source))?;
        self.file = None;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        file.write_all(bytes)
            .map_err(|source| Error::io(&self.temporary, source))
    }

    fn pad(&mut self, after: u64) -> Result<(), Error> {
        let missing = after.next_multiple_of(ALIGNMENT) - after;
        self.put(&[0; ALIGNMENT as usize][..missing as usize])
    }

    fn wrong(&self, field: &str, problem: &str) -> Error {
        Error::malformed(&self.target, field, problem)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Discard buffered bytes, since the file is removed.
            drop(file.into_parts());
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// A temporary name in the same directory, so that renaming stays on one disk.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".part-{}", std::process::id()));
    path.with_file_name(name)
}

fn bytes_of(path: &Path, tensor: &TensorInfo) -> Result<u64, Error> {
    let bytes = tensor
        .format
        .bytes(tensor.k)
        .and_then(|row| row.checked_mul(tensor.n));
    bytes.filter(|b| *b > 0).map(|b| b as u64).ok_or_else(|| {
        let (n, k, format) = (tensor.n, tensor.k, tensor.format.name());
        tensor.wrong(path, format!("{n} x {k} cannot be stored as {format}"))
    })
}

/// Everything before the data, without padding.
fn head<'a>(
    path: &Path,
    metadata: &Metadata,
    kinds: &Kinds,
    tensors: &[TensorInfo],
    dimensions: &dyn Fn(&TensorInfo) -> Option<&'a [usize]>,
) -> Result<Vec<u8>, Error> {
    let kept = || {
        metadata
            .iter()
            .filter(|(key, _)| *key != ALIGNMENT_KEY && !key.starts_with("split."))
    };
    let mut out = MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((kept().count() as u64).to_le_bytes());
    for (key, value) in kept() {
        let guess;
        let kind = match kinds.get(key) {
            Some(kind) => kind,
            None => {
                guess = customary(value);
                &guess
            }
        };
        put_text(&mut out, key);
        out.extend(kind.id().to_le_bytes());
        put_value(&mut out, value, kind).ok_or_else(|| {
            Error::malformed(
                path,
                key.as_str(),
                format!("the value does not fit its type {kind:?}"),
            )
        })?;
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_text(&mut out, &tensor.name);
        let TensorInfo { n, k, stack, .. } = *tensor;
        let own = dimensions(tensor);
        let own = own.filter(|own| own.iter().product::<usize>() == n * k);
        let dimensions: &[usize] = match stack {
            _ if own.is_some() => own.unwrap_or_default(),
            0 | 1 if n == 1 => &[k],
            0 | 1 => &[k, n],
            _ if n.is_multiple_of(stack) => &[k, n / stack, stack],
            _ => {
                let problem = format!("{n} rows cannot be a stack of {stack} matrices");
                return Err(tensor.wrong(path, problem));
            }
        };
        out.extend((dimensions.len() as u32).to_le_bytes());
        dimensions
            .iter()
            .for_each(|d| out.extend((*d as u64).to_le_bytes()));
        let id = type_id(tensor.format).ok_or_else(|| {
            let problem = format!("GGUF has no type for {}", tensor.format.name());
            tensor.wrong(path, problem)
        })?;
        out.extend(id.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = bytes_of(path, tensor)?
            .checked_next_multiple_of(ALIGNMENT)
            .and_then(|bytes| offset.checked_add(bytes))
            .ok_or_else(|| tensor.wrong(path, "is too large"))?;
    }
    Ok(out)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The usual type of a value.
fn customary(value: &Value) -> Kind {
    match value {
        Value::U64(v) if *v <= u32::MAX.into() => Kind::U32,
        Value::U64(_) => Kind::U64,
        Value::I64(v) if i32::try_from(*v).is_ok() => Kind::I32,
        Value::I64(_) => Kind::I64,
        Value::F64(_) => Kind::F32,
        Value::Bool(_) => Kind::Bool,
        Value::String(_) => Kind::String,
        Value::Array(values) => customary_array(values),
    }
}

/// The usual type of all elements: the widest that any of them needs.
fn customary_array(values: &[Value]) -> Kind {
    if matches!(values.first(), Some(Value::Array(_))) {
        return Kind::Arrays(values.iter().map(customary).collect());
    }
    let widest = values.iter().map(customary).reduce(|a, b| match (&a, &b) {
        (Kind::U32, Kind::U64) | (Kind::I32, Kind::I64) => b,
        (Kind::I32 | Kind::I64, Kind::U32 | Kind::U64)
        | (Kind::U32 | Kind::U64, Kind::I32 | Kind::I64) => Kind::I64,
        _ => a,
    });
    Kind::Array(Box::new(widest.unwrap_or(Kind::String)))
}

/// Writes a value as `kind`, or returns `None` if it does not fit.
fn put_value(out: &mut Vec<u8>, value: &Value, kind: &Kind) -> Option<()> {
    if let Value::Array(values) = value {
        return put_array(out, values, kind);
    }
    let integer = match value {
        Value::U64(v) => Some(i128::from(*v)),
        Value::I64(v) => Some(i128::from(*v)),
        _ => None,
    };
    match (kind, value) {
        (Kind::U8, _) => out.extend(u8::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::I8, _) => out.extend(i8::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::U16, _) => out.extend(u16::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::I16, _) => out.extend(i16::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::U32, _) => out.extend(u32::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::I32, _) => out.extend(i32::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::U64, _) => out.extend(u64::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::I64, _) => out.extend(i64::try_from(integer?).ok()?.to_le_bytes()),
        (Kind::F32, Value::F64(v)) => out.extend((*v as f32).to_le_bytes()),
        (Kind::F64, Value::F64(v)) => out.extend(v.to_le_bytes()),
        (Kind::Bool, Value::Bool(v)) => out.push(u8::from(*v)),
        (Kind::String, Value::String(v)) => put_text(out, v),
        _ => return None,
    }
    Some(())
}

fn put_array(out: &mut Vec<u8>, values: &[Value], kind: &Kind) -> Option<()> {
    let id = match kind {
        Kind::Array(element) => element.id(),
        Kind::Arrays(kinds) if kinds.len() == values.len() => super::ARRAY,
        _ => return None,
    };
    out.extend(id.to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    match kind {
        Kind::Arrays(kinds) => values
            .iter()
            .zip(kinds)
            .try_for_each(|(value, kind)| put_value(out, value, kind)),
        Kind::Array(element) => values
            .iter()
            .try_for_each(|value| put_value(out, value, element)),
        _ => None,
    }
}
