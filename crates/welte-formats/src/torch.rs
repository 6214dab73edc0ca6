//! Files that `torch.save` writes for a state dict: a zip archive of raw storages, and a pickle that says which tensors lie in them.
//!
//! A pickle is a program for a stack machine, which may call any function of Python. The machine here knows the instructions that
//! a dict of tensors needs, and three functions that it does not call but understands. Anything else is an error, so no code of a
//! file ever runs.

mod pickle;
mod zip;

use crate::Error;
use safetensors::Dtype;
use std::path::Path;

/// The largest pickle that is read, in bytes.
const MAX_PICKLE: usize = 64 << 20;

/// True if a file has the name of one that `torch.save` writes.
pub(crate) fn is_name(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ending| ending == "bin" || ending == "pt")
}

/// A tensor of an archive, whose elements lie one after the other.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// The byte of the file where its data begin.
    pub(crate) start: usize,
}

/// The tensors of a file, in the order of their data.
pub(crate) fn tensors(path: &Path, bytes: &[u8]) -> Result<Vec<Tensor>, Error> {
    if bytes.starts_with(&[0x80, 2]) {
        let problem = "is a pickle of PyTorch before 1.6, which is not supported: save it with a newer version, or convert it to safetensors";
        return Err(Error::unsupported(path, problem));
    }
    let archive = zip::Archive::read(path, bytes)?;
    if let Some(order) = archive.file("byteorder")
        && &bytes[order.clone()] != b"little"
    {
        let problem = "is not `little`: the file was written on a machine with another order of bytes; save it again";
        return Err(Error::malformed(path, "byteorder", problem));
    }
    let program = archive.file("data.pkl").ok_or_else(|| {
        Error::unsupported(
            path,
            "has no data.pkl: it is not a file that `torch.save` wrote",
        )
    })?;
    if program.len() > MAX_PICKLE {
        let problem = format!("is larger than the limit of {MAX_PICKLE} bytes");
        return Err(Error::malformed(path, "data.pkl", problem));
    }
    let read = pickle::read(path, &bytes[program.clone()])?;
    let mut found = Vec::with_capacity(read.len());
    for (name, tensor) in read {
        let wrong = |problem: &str| Error::malformed(path, format!("tensor {name}"), problem);
        let storage = format!("data/{}", tensor.storage);
        let data = archive
            .file(&storage)
            .ok_or_else(|| wrong(&format!("lies in {storage}, which the file lacks")))?;
        let (size, start) = tensor
            .bytes()
            .ok_or_else(|| wrong("has a size beyond all memory"))?;
        if start
            .checked_add(size)
            .is_none_or(|end| end > data.end - data.start)
        {
            return Err(wrong(&format!("does not fit in {storage}")));
        }
        found.push(Tensor {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            start: data.start + start,
            name,
        });
    }
    found.sort_by_key(|tensor| tensor.start);
    Ok(found)
}
