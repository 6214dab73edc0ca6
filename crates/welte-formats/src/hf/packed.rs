//! Integers with scales by group, as AWQ, GPTQ and compressed-tensors store them. A module `X` has several tensors, which
//! become one `X.weight`:
//!
//! | | integers | scales | zero points | groups of inputs |
//! |---|---|---|---|---|
//! | AWQ | `qweight` `[k, n / 8]` | `scales` `[groups, n]` | `qzeros` `[groups, n / 8]` | |
//! | GPTQ | `qweight` `[k / 8, n]` | `scales` `[groups, n]` | `qzeros` `[groups, n / 8]` | `g_idx` `[k]` |
//! | pack-quantized | `weight_packed` `[n, k / 8]` | `weight_scale` `[n, groups]` | `weight_zero_point` `[n / 8, groups]` | `weight_g_idx` `[k]` |
//! | int-quantized | `weight` `[n, k]`, I8 | `weight_scale` `[n, 1]` or `[1]` | | |
//!
//! An I32 holds eight integers of 4 bits (or four of 8), the first in the lowest bits; in AWQ, columns 0 2 4 6 1 3 5 7.
//!
//! If the inputs of a group are not neighbours ("act order"), the weight becomes F16 or BF16: each element has its own scale.

use super::files::{Files, Place, Stored};
use crate::quant::{self, integers::joined_head};
use crate::{Error, Metadata, TensorInfo, Value};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::Dtype;
use std::ops::Range;
use std::path::Path;
use welte_table::{Format, GroupScale, Integers};

/// The place of AWQ's column among the eight of an I32.
const AWQ_PLACES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Suffixes of the parts of a module, by the suffix of its integers.
const PARTS: [(&str, &[&str]); 3] = [
    ("qweight", &["qzeros", "scales", "g_idx"]),
    (
        "weight_packed",
        &[
            "weight_scale",
            "weight_zero_point",
            "weight_g_idx",
            "weight_shape",
        ],
    ),
    ("weight", &["weight_scale", "weight_zero_point"]),
];

/// How integers lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// `[k, n / 8]`, columns in AWQ's order.
    Awq,
    /// `[k / 8, n]`.
    Gptq,
    /// `[n, k / 8]`.
    Rows,
    /// `[n, k]`, signed bytes.
    Bytes,
}

/// The location of a weight's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    order: Order,
    bits: usize,
    n: usize,
    /// I32 (or bytes) from one row of the file to the next.
    width: usize,
    integers: Place,
    scales: Place,
    dtype: Dtype,
    /// Groups of a row, and elements of a group.
    groups: usize,
    group: usize,
    zeros: Option<Place>,
    /// Added to a stored zero point.
    above: u32,
    /// The group of each element, if they are not in order.
    members: Option<Place>,
}

/// The configuration beside the tensors.
pub(super) struct Quantised<'a> {
    pub(super) config: &'a Path,
    pub(super) metadata: &'a Metadata,
    pub(super) files: &'a Files,
}

impl Quantised<'_> {
    /// The tensor that the integers of a module become; nothing for its other parts; `None` for other tensors.
    pub(super) fn taken(&self, tensor: &Stored) -> Result<Option<Vec<(TensorInfo, Parts)>>, Error> {
        let Some((module, part)) = tensor.name.rsplit_once('.') else {
            return Ok(None);
        };
        if let Some(order) = self.order(module, part)? {
            return Ok(Some(vec![self.joined(module, tensor, order)?]));
        }
        for (integers, parts) in PARTS {
            if parts.contains(&part) && self.order(module, integers)?.is_some() {
                return Ok(Some(Vec::new()));
            }
        }
        // Some tools add a bias to every module.
        let zero =
            part == "bias" && self.order(module, "qweight")?.is_some() && self.is_zero(tensor);
        Ok(zero.then(Vec::new))
    }

    /// How the integers of a module lie in the file, if `part` is their tensor.
    fn order(&self, module: &str, part: &str) -> Result<Option<Order>, Error> {
        let Some(tensor) = self.files.tensor(&format!("{module}.{part}")) else {
            return Ok(None);
        };
        Ok(match (part, tensor.dtype) {
            ("qweight", _) => Some(self.method(tensor)?),
            ("weight_packed", Dtype::I32) => Some(Order::Rows),
            ("weight", Dtype::I8) => Some(Order::Bytes),
            _ => None,
        })
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(&format!("quantization_config.{key}")) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    fn wrong(&self, key: &str, problem: String) -> Error {
        Error::malformed(self.config, format!("quantization_config.{key}"), problem)
    }

    /// AWQ's or GPTQ's order, by the configuration.
    fn method(&self, tensor: &Stored) -> Result<Order, Error> {
        let one_of = |key: &str, known: &[&str]| match self.text(key) {
            Some(name) if !known.contains(&name) => {
                let problem = format!("is {name}; supported are {}", known.join(", "));
                Err(self.wrong(key, problem))
            }
            _ => Ok(()),
        };
        match self.text("quant_method") {
            Some("awq") => {
                one_of("version", &["gemm", "GEMM"])?;
                Ok(Order::Awq)
            }
            Some("gptq") => {
                one_of("checkpoint_format", &["gptq", "gptq_v2"])?;
                Ok(Order::Gptq)
            }
            _ => {
                let problem = format!(
                    "is missing, but {} exists; it must be awq or gptq",
                    tensor.name
                );
                Err(self.wrong("quant_method", problem))
            }
        }
    }

    fn is_zero(&self, tensor: &Stored) -> bool {
        let size = tensor.shape.iter().product::<usize>() * tensor.dtype.bitsize() / 8;
        let Place { file, start } = tensor.place;
        let bytes = self.files.maps[file].get(start..start + size);
        bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
    }

    /// Bits of an integer, as the configuration says.
    fn bits(&self, known: &[u64]) -> Result<usize, Error> {
        let listed: Vec<String> = known.iter().map(u64::to_string).collect();
        let problem = match self.metadata.get("quantization_config.bits") {
            Some(Value::U64(bits)) if known.contains(bits) => return Ok(*bits as usize),
            Some(Value::U64(bits)) => format!("is {bits}; supported are {}", listed.join(", ")),
            _ => format!("must be one of {}", listed.join(", ")),
        };
        Err(self.wrong("bits", problem))
    }

    fn joined(
        &self,
        module: &str,
        integers: &Stored,
        order: Order,
    ) -> Result<(TensorInfo, Parts), Error> {
        let files = self.files;
        let wrong = |tensor: &Stored, problem: String| Err(files.wrong(tensor, problem));
        let ints = [Dtype::I32, Dtype::U32];
        let [down, width] = integers.shape[..] else {
            let problem = format!("has {} dimensions; 2 are supported", integers.shape.len());
            return wrong(integers, problem);
        };
        if order != Order::Bytes && !ints.contains(&integers.dtype) {
            let problem = format!("has type {:?}, expected I32", integers.dtype);
            return wrong(integers, problem);
        }
        let (bits, n, k) = match order {
            Order::Awq => (self.bits(&[4])?, width.saturating_mul(8), down),
            Order::Gptq => {
                let bits = self.bits(&[4, 8])?;
                (bits, width, down.saturating_mul(32 / bits))
            }
            Order::Rows => self.shape(module, integers, down, width)?,
            Order::Bytes => (8, down, width),
        };
        let per = 32 / bits;
        if n == 0 || k == 0 {
            return wrong(integers, format!("is empty ({n} x {k})"));
        }
        let by_rows = matches!(order, Order::Rows | Order::Bytes);
        let names = if by_rows {
            ["weight_scale", "weight_zero_point", "weight_g_idx"]
        } else {
            ["scales", "qzeros", "g_idx"]
        };
        let [scales, zeros, members] = names.map(|name| files.tensor(&format!("{module}.{name}")));
        let Some(scales) = scales else {
            let problem = format!("has no scales: {module}.{} is missing", names[0]);
            return wrong(integers, problem);
        };
        let dtype = scales.dtype;
        if !matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32) {
            return wrong(
                scales,
                format!("has type {dtype:?}, expected F16, BF16 or F32"),
            );
        }
        let groups = match (by_rows, &scales.shape[..]) {
            (false, [groups, rows]) if *rows == n => *groups,
            (true, [rows, groups]) if *rows == n => *groups,
            (true, [] | [1]) => 0,
            (true, [rows]) if *rows == n => 1,
            (_, shape) => {
                let meant = if by_rows {
                    format!("[{n}, groups]")
                } else {
                    format!("[groups, {n}]")
                };
                return wrong(scales, format!("has shape {shape:?}, expected {meant}"));
            }
        };
        // No groups: one scale for the whole matrix.
        let group = k / groups.max(1);
        if group * groups.max(1) != k {
            let problem = format!("has {groups} groups, which do not divide {k} inputs evenly");
            return wrong(scales, problem);
        }
        let zeros_shape = if by_rows {
            [n.div_ceil(per), groups]
        } else {
            [groups, n.div_ceil(per)]
        };
        if let Some(zeros) = zeros
            && (order == Order::Bytes || !ints.contains(&zeros.dtype) || zeros.shape != zeros_shape)
        {
            let problem = match order {
                Order::Bytes => "is not supported beside 8-bit weights".to_string(),
                _ => format!(
                    "has type {:?} and shape {:?}, expected I32 and {zeros_shape:?}",
                    zeros.dtype, zeros.shape
                ),
            };
            return wrong(zeros, problem);
        }
        if zeros.is_none() && !by_rows {
            let problem = format!("has no zero points: {module}.qzeros is missing");
            return wrong(integers, problem);
        }
        let is_v1 = order == Order::Gptq && self.text("checkpoint_format") != Some("gptq_v2");
        let mut parts = Parts {
            order,
            bits,
            n,
            width,
            integers: integers.place,
            scales: scales.place,
            dtype,
            groups,
            group,
            zeros: zeros.map(|zeros| zeros.place),
            above: u32::from(is_v1),
            members: None,
        };
        if let Some(members) = members.filter(|_| order != Order::Awq) {
            parts.members = self.members(members, k, groups, group)?;
        }
        let format = match parts.members {
            Some(_) if dtype == Dtype::F32 => Format::F32,
            Some(_) if dtype == Dtype::BF16 => Format::BF16,
            Some(_) => Format::F16,
            None => self.format(&parts, scales)?,
        };
        let info = TensorInfo {
            name: format!("{module}.weight"),
            format,
            n,
            k,
            stack: 1,
        };
        Ok((info, parts))
    }

    /// Bits, rows and elements per row, from a tensor with the last two. Rows of I32 may end with unused integers.
    fn shape(
        &self,
        module: &str,
        integers: &Stored,
        rows: usize,
        width: usize,
    ) -> Result<(usize, usize, usize), Error> {
        let name = format!("{module}.weight_shape");
        let Some(shape) = self.files.tensor(&name) else {
            let problem = format!("has no shape: {name} is missing");
            return Err(self.files.wrong(integers, problem));
        };
        let size = shape.dtype.bitsize() / 8;
        let Place { file, start } = shape.place;
        let read = |i: usize| {
            let at = start + i * size;
            let bytes = self.files.maps[file].get(at..at + size)?.iter().rev();
            usize::try_from(bytes.fold(0, |n, byte| n << 8 | u64::from(*byte))).ok()
        };
        let is_shape = matches!(shape.dtype, Dtype::I32 | Dtype::I64) && shape.shape == [2];
        let sizes = is_shape.then(|| Some((read(0)?, read(1)?))).flatten();
        let found = sizes.filter(|(n, _)| *n == rows).and_then(|(n, k)| {
            let fits = |bits: &usize| k.div_ceil(32 / bits) == width;
            Some((Integers::BITS.into_iter().find(fits)?, n, k))
        });
        found.ok_or_else(|| {
            let problem = format!(
                "must be two integers: {rows} rows, and as many elements of 4 or 8 bits as {width} I32 hold"
            );
            self.files.wrong(shape, problem)
        })
    }

    /// The place of the groups of all inputs, unless the inputs of each group are neighbours and in order.
    fn members(
        &self,
        tensor: &Stored,
        k: usize,
        groups: usize,
        group: usize,
    ) -> Result<Option<Place>, Error> {
        if tensor.dtype != Dtype::I32 || tensor.shape != [k] {
            let problem = format!(
                "has type {:?} and shape {:?}, expected I32 and [{k}]",
                tensor.dtype, tensor.shape
            );
            return Err(self.files.wrong(tensor, problem));
        }
        let map = &self.files.maps[tensor.place.file];
        let all = (0..k).map(|i| word(map, tensor.place, i));
        let mut in_order = true;
        for (i, member) in all.enumerate() {
            match member {
                Some(member) if (member as usize) < groups.max(1) => {
                    in_order &= member as usize == i / group;
                }
                _ => {
                    let problem = format!("names a group for input {i} that is not below {groups}");
                    return Err(self.files.wrong(tensor, problem));
                }
            }
        }
        Ok((!in_order).then_some(tensor.place))
    }

    /// The format for groups in order.
    fn format(&self, parts: &Parts, scales: &Stored) -> Result<Format, Error> {
        let kind = match (parts.zeros, parts.dtype) {
            (None, _) => GroupScale::F32,
            (_, Dtype::F16) => GroupScale::F16,
            (_, Dtype::BF16) => GroupScale::BF16,
            _ => {
                let problem = "is F32 beside zero points; F16 and BF16 are supported";
                return Err(self.files.wrong(scales, problem));
            }
        };
        let sizes = Integers::GROUPS.into_iter().rev();
        let fitting = sizes.clone().find(|size| parts.group.is_multiple_of(*size));
        let found = fitting.and_then(|group| Integers::new(parts.bits, group, kind));
        found.map(Format::Integers).ok_or_else(|| {
            let listed: Vec<String> = sizes.map(|size| size.to_string()).collect();
            let problem = format!(
                "means groups of {} inputs; supported are multiples of {}",
                parts.group,
                listed.join(", ")
            );
            self.files.wrong(scales, problem)
        })
    }
}

/// I32 number `i` from a place.
fn word(map: &Mmap, place: Place, i: usize) -> Option<u32> {
    let at = place.start + 4 * i;
    let bytes = map.get(at..at + 4)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

impl Parts {
    /// The integers of one I32, in order: those of elements `i * 32 / bits ..` of a row. `None` beyond the file.
    fn integers(&self, maps: &[Mmap], row: usize, i: usize) -> Option<u32> {
        let map = &maps[self.integers.file];
        match self.order {
            Order::Gptq => word(map, self.integers, i * self.width + row),
            Order::Rows => word(map, self.integers, row * self.width + i),
            Order::Bytes => {
                let at = self.integers.start + row * self.width + 4 * i;
                let bytes = map.get(at..at + 4)?.first_chunk()?;
                Some(u32::from_le_bytes(*bytes) ^ 0x8080_8080)
            }
            Order::Awq => {
                let shift = 4 * AWQ_PLACES[row % 8];
                (0..8).try_fold(0, |all, j| {
                    let word = word(map, self.integers, (8 * i + j) * self.width + row / 8)?;
                    Some(all | (word >> shift & 15) << (4 * j))
                })
            }
        }
    }

    /// A finite scale.
    fn scale(&self, maps: &[Mmap], row: usize, group: usize) -> Option<f32> {
        let index = match self.order {
            Order::Awq | Order::Gptq => group * self.n + row,
            Order::Rows | Order::Bytes => row * self.groups + group,
        };
        let size = self.dtype.bitsize() / 8;
        let at = self.scales.start + index * size;
        let bytes = maps[self.scales.file].get(at..at + size)?;
        let scale = match self.dtype {
            Dtype::F32 => f32::from_le_bytes(*bytes.first_chunk()?),
            Dtype::F16 => f16::from_le_bytes(*bytes.first_chunk()?).to_f32(),
            _ => bf16::from_le_bytes(*bytes.first_chunk()?).to_f32(),
        };
        Some(scale).filter(|scale| scale.is_finite())
    }

    fn zero(&self, maps: &[Mmap], row: usize, group: usize) -> Option<u32> {
        let Some(zeros) = self.zeros else {
            return Some(1 << (self.bits - 1));
        };
        let per = 32 / self.bits;
        let across = self.n.div_ceil(per);
        let (index, place) = match self.order {
            Order::Awq => (group * across + row / per, AWQ_PLACES[row % 8]),
            Order::Gptq => (group * across + row / per, (row % per) as u32),
            Order::Rows | Order::Bytes => (row / per * self.groups + group, (row % per) as u32),
        };
        let word = word(&maps[zeros.file], zeros, index)?;
        let mask = 0xff >> (8 - self.bits);
        let stored = word >> (place * self.bits as u32) & mask;
        Some((stored + self.above) & mask)
    }
}

/// Rows of a tensor as blocks, or as floats. `None` if a scale is not finite, or the file ends before.
pub(super) fn rows(
    maps: &[Mmap],
    parts: Parts,
    tensor: &TensorInfo,
    rows: Range<usize>,
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(rows.len() * tensor.format.bytes(tensor.k)?);
    let per = 32 / parts.bits;
    for row in rows {
        let Format::Integers(integers) = tensor.format else {
            floats(maps, &parts, tensor, row, &mut out)?;
            continue;
        };
        for first in (0..tensor.k).step_by(integers.group()) {
            let group = first / parts.group;
            let (scale, zero) = (
                parts.scale(maps, row, group)?,
                parts.zero(maps, row, group)?,
            );
            out.extend_from_slice(&joined_head(integers, scale, zero as f32));
            for i in first / per..(first + integers.group()) / per {
                out.extend_from_slice(&parts.integers(maps, row, i)?.to_le_bytes());
            }
        }
    }
    Some(out)
}

/// One row whose groups are not in order.
fn floats(
    maps: &[Mmap],
    parts: &Parts,
    tensor: &TensorInfo,
    row: usize,
    out: &mut Vec<u8>,
) -> Option<()> {
    let per = 32 / parts.bits;
    let mask = 0xff >> (8 - parts.bits);
    let members = parts.members?;
    let mut values = vec![0.0; tensor.k];
    for (i, value) in values.iter_mut().enumerate() {
        let group = word(&maps[members.file], members, i)? as usize;
        let q = parts.integers(maps, row, i / per)? >> (i % per * parts.bits) & mask;
        let zero = parts.zero(maps, row, group)?;
        *value = parts.scale(maps, row, group)? * (q as f32 - zero as f32);
    }
    let from = out.len();
    out.resize(from + tensor.format.bytes(tensor.k)?, 0);
    quant::encode(tensor.format, &values, &mut out[from..]);
    Some(())
}
