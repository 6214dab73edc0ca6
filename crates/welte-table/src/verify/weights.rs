//! What the weights and numbers of a command must be.

use crate::{Command, NO_WEIGHT, Program, Usage, WeightSpec};

pub(super) fn ensure(ok: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(problem()) }
}

pub(super) fn weight<'a>(program: &'a Program, c: &Command, i: usize) -> Option<&'a WeightSpec> {
    program.weights.get(*c.weights.get(i)? as usize)
}

pub(super) fn finite(values: &[f32]) -> Result<(), String> {
    ensure(values.iter().all(|v| v.is_finite()), || {
        "a parameter is not finite".into()
    })
}

pub(super) fn shape(w: &WeightSpec, n: u32, k: u32) -> Result<(), String> {
    ensure((w.n, w.k) == (n, k), || {
        format!(
            "weight '{}' is {} x {}, the command wants {n} x {k}",
            w.name, w.n, w.k
        )
    })
}

pub(super) fn matrix(program: &Program, c: &Command, n: u32, k: u32) -> Result<(), String> {
    let w = weight(program, c, 0).ok_or("no matrix")?;
    ensure(matches!(w.usage, Usage::Matrix | Usage::Both), || {
        format!("weight '{}' is not a matrix", w.name)
    })?;
    shape(w, n, k)
}

pub(super) fn vector(program: &Program, c: &Command, i: usize, k: u32) -> Result<(), String> {
    let w = weight(program, c, i).ok_or("no vector")?;
    ensure(w.usage == Usage::Vector, || {
        format!("weight '{}' is not a vector", w.name)
    })?;
    shape(w, 1, k)
}

pub(super) fn optional_vector(
    program: &Program,
    c: &Command,
    i: usize,
    k: u32,
) -> Result<(), String> {
    match c.weights[i] {
        NO_WEIGHT => Ok(()),
        _ => vector(program, c, i, k),
    }
}
