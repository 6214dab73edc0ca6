//! The weights of a program as stored in a checkpoint. Devices read them when they load.

use crate::{Checkpoint, Error, TensorInfo, quant};
use std::borrow::Cow;
use std::ops::Range;
use welte_table::{Format, Part, Source, Usage, WeightSpec};

/// The rows of a weight in the spec's format.
pub struct WeightRows<'a> {
    /// The weight's spec.
    pub spec: &'a WeightSpec,
    /// The checkpoint with its values.
    pub checkpoint: &'a dyn Checkpoint,
}

impl WeightRows<'_> {
    /// An error about this weight.
    pub fn wrong(&self, problem: impl Into<String>) -> Error {
        Error::Weight {
            origin: self.checkpoint.origin().to_string(),
            weight: self.spec.name.clone(),
            problem: problem.into(),
        }
    }

    /// Rows `first..first + count` in the spec's format: one byte range per part.
    pub fn encoded(&self, first: usize, count: usize) -> Result<Vec<Cow<'_, [u8]>>, Error> {
        let k = self.spec.k as usize;
        let row_bytes = self
            .spec
            .format
            .bytes(k)
            .ok_or_else(|| self.wrong("its rows are not whole blocks"))?;
        self.encoded_of(
            &self.spec.source,
            self.spec.n as usize,
            row_bytes,
            first..first + count,
        )
    }

    /// Rows of a source that has `n` rows.
    fn encoded_of(
        &self,
        source: &Source,
        n: usize,
        row_bytes: usize,
        rows: Range<usize>,
    ) -> Result<Vec<Cow<'_, [u8]>>, Error> {
        let k = self.spec.k as usize;
        let (first, count) = (rows.start, rows.len());
        let parts = match source {
            Source::Parts(parts) => parts,
            Source::Chosen(chosen) => {
                let mut found = Vec::new();
                let mut at = 0;
                for range in &chosen.ranges {
                    let start = range.start as usize;
                    let end = at + range.len();
                    let (from, to) = (first.max(at), (first + count).min(end));
                    if from < to {
                        let (n, rows) = (chosen.rows as usize, start + from - at..start + to - at);
                        found.extend(self.encoded_of(&chosen.of, n, row_bytes, rows)?);
                    }
                    at = end;
                }
                return Ok(found);
            }
            Source::Transposed(parts) => {
                let values = self.transposed(parts, n, rows)?;
                return Ok(vec![Cow::Owned(self.encode(values, count * row_bytes))]);
            }
            Source::Constant(values) => {
                let values = values
                    .get(first * k..(first + count) * k)
                    .ok_or_else(|| self.wrong("it has fewer constants than its shape needs"))?;
                return Ok(vec![Cow::Owned(
                    self.encode(values.to_vec(), count * row_bytes),
                )]);
            }
        };
        let mut found = Vec::new();
        let mut at = 0;
        for part in parts {
            let end = at + part.rows as usize;
            let (from, to) = (first.max(at), (first + count).min(end));
            if from < to {
                let start = part.first_row as usize + from - at;
                let info = self.tensor(&part.tensor, start, to - from)?;
                if info.k != k {
                    return Err(self.wrong(format!(
                        "{} has rows of {} elements, not {k}",
                        info.name, info.k
                    )));
                }
                let bytes = self.bytes(info, start, to - from)?;
                if info.format == self.spec.format && self.spec.add == 0.0 {
                    found.push(bytes);
                } else if !quant::has_encoder(self.spec.format) {
                    let problem = format!(
                        "{} cannot become {}",
                        info.format.name(),
                        self.spec.format.name()
                    );
                    return Err(self.wrong(problem));
                } else {
                    let values = decode(info.format, &bytes, (to - from) * k);
                    found.push(Cow::Owned(self.encode(values, (to - from) * row_bytes)));
                }
            }
            at = end;
        }
        if at < first + count {
            return Err(self.wrong("its parts have fewer rows than its shape needs"));
        }
        Ok(found)
    }

    /// All values as floats, in the order of the parts.
    pub fn values(&self) -> Result<Vec<f32>, Error> {
        let spec = self.spec;
        let mut all = self.values_of(&spec.source, spec.n as usize, spec.k as usize)?;
        for value in &mut all {
            *value += spec.add;
        }
        Ok(all)
    }

    /// All values of a source that has `n` rows of `k`.
    fn values_of(&self, source: &Source, n: usize, k: usize) -> Result<Vec<f32>, Error> {
        let mut all = Vec::new();
        match source {
            Source::Constant(values) => all.extend_from_slice(values),
            Source::Transposed(parts) => all = self.transposed(parts, n, 0..n)?,
            Source::Parts(parts) => {
                for part in parts {
                    let info =
                        self.tensor(&part.tensor, part.first_row as usize, part.rows as usize)?;
                    let bytes = self.bytes(info, part.first_row as usize, part.rows as usize)?;
                    all.extend(decode(info.format, &bytes, info.k * part.rows as usize));
                }
            }
            Source::Chosen(chosen) => {
                let rows = chosen.rows as usize;
                let (whole, row) = match self.spec.usage {
                    Usage::Vector => (self.values_of(&chosen.of, 1, rows)?, 1),
                    _ => (self.values_of(&chosen.of, rows, k)?, k),
                };
                for range in &chosen.ranges {
                    let values = whole.get(range.start as usize * row..range.end as usize * row);
                    all.extend(
                        values.ok_or_else(|| self.wrong("it has fewer rows than its parts"))?,
                    );
                }
            }
        }
        if all.len() != n * k {
            let wanted = n * k;
            return Err(self.wrong(format!(
                "it has {} values, its shape needs {wanted}",
                all.len()
            )));
        }
        Ok(all)
    }

    /// Rows of matrices that are stored transposed: columns of the parts.
    fn transposed(&self, parts: &[Part], n: usize, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let k = self.spec.k as usize;
        let (first, count) = (rows.start, rows.len());
        let each = n / parts.len().max(1);
        let mut all = vec![0.0; count * k];
        for (part, start) in parts.iter().zip((0..n).step_by(each.max(1))) {
            let (from, to) = (first.max(start), (first + count).min(start + each));
            if from >= to {
                continue;
            }
            let info = self.tensor(&part.tensor, part.first_row as usize, k)?;
            if info.k != each {
                return Err(self.wrong(format!(
                    "{} has rows of {} elements, not {each}",
                    info.name, info.k
                )));
            }
            let bytes = self.bytes(info, part.first_row as usize, k)?;
            let columns = decode(info.format, &bytes, k * each);
            for (i, column) in columns.chunks_exact(each).enumerate() {
                for row in from..to {
                    all[(row - first) * k + i] = column[row - start];
                }
            }
        }
        // A float format of the file holds its own values. Those of a block format may be too large for F16.
        let largest = all.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        if self.spec.format == Format::F16 && largest > 65504.0 && largest.is_finite() {
            return Err(self.wrong(format!("its value {largest} is too large for F16")));
        }
        Ok(all)
    }

    fn tensor(&self, name: &str, first: usize, rows: usize) -> Result<&TensorInfo, Error> {
        let info = self
            .checkpoint
            .tensor(name)
            .ok_or_else(|| self.wrong(format!("there is no tensor {name}")))?;
        if first.checked_add(rows).is_none_or(|end| end > info.n) {
            return Err(self.wrong(format!(
                "{name} has {} rows, {} are needed",
                info.n,
                first + rows
            )));
        }
        Ok(info)
    }

    fn bytes(&self, info: &TensorInfo, first: usize, rows: usize) -> Result<Cow<'_, [u8]>, Error> {
        let bytes = self.checkpoint.rows(info, first, rows)?;
        if info
            .format
            .bytes(info.k)
            .and_then(|row| row.checked_mul(rows))
            != Some(bytes.len())
        {
            return Err(self.wrong(format!(
                "the checkpoint gave {} bytes for {rows} rows",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    fn encode(&self, mut values: Vec<f32>, bytes: usize) -> Vec<u8> {
        for value in &mut values {
            *value += self.spec.add;
        }
        let mut out = vec![0; bytes];
        quant::encode(self.spec.format, &values, &mut out);
        out
    }
}

fn decode(format: Format, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    quant::decode(format, bytes, &mut values);
    values
}
