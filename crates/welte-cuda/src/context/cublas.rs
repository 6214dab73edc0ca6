//! Choosing between cuBLASLt's algorithms and our own kernels when a context is made. Measured times decide, but an algorithm
//! is used only if its bits are those of our kernels. The choice therefore changes speed, and never results. It is kept on disk, so
//! that later processes need not wait for the library: our kernels compute until a long prompt has opened it.
#![allow(unsafe_code)]

use super::CudaContext;
use super::ready::Ready;
use super::recall::{Choices, of_bytes, to_bytes};
use crate::cublas::{self, Algorithm, Candidate, Plan, Product};
use crate::gpu::{Event, Gpu};
use crate::launch::{Either, Probe, bytes_of_all};
use crate::{Error, compile, disk};
use std::sync::Arc;
use welte_table::Row;

/// Values of the pattern that fills activations.
const PATTERN: usize = 1 << 16;
/// About the number of rows that are compared, evenly spread, so that every tile has some.
const COMPARED: u32 = 8;
/// Nanoseconds up to which a run is repeated to time it.
const SHORT: u64 = 100_000;

impl CudaContext {
    /// Decides for every product of cuBLASLt which algorithm runs, if any, by timing, unless an earlier load did. Then this
    /// returns what is to be recalled.
    pub(super) fn choose_algorithms(&mut self) -> Result<Option<Choices>, Error> {
        let open = self.open_plans();
        if open.is_empty() {
            return Ok(None);
        }
        let key: Vec<(&Product, u32)> = open
            .iter()
            .map(|(plan, least)| (plan.product(), *least))
            .collect();
        let file = compile::algorithms(&key, &self.gpu.info);
        let plans = || open.iter().map(|(plan, _)| &**plan);
        let kept = file.as_deref().and_then(disk::read_cached);
        let kept = kept.and_then(|bytes| of_bytes(&bytes));
        if let (Some(kept), Some(file)) = (kept, &file) {
            return Ok(Some(Choices {
                gpu: self.gpu.clone(),
                plans: open.into_iter().map(|(plan, _)| plan).collect(),
                kept,
                file: file.clone(),
            }));
        }
        self.time_algorithms()?;
        let chosen: Vec<Option<Algorithm>> = plans()
            .map(|plan| plan.chosen().flatten().map(|one| one.algorithm()))
            .collect();
        if let Some(file) = file {
            // What cannot be written is timed again at the next load.
            let _ = disk::write_cached(&file, &to_bytes(cublas::version(), &chosen));
        }
        Ok(None)
    }

    /// The plans that have not been decided, each once, with the fewest rows that they are used for.
    fn open_plans(&self) -> Vec<(Arc<Plan>, u32)> {
        let mut open: Vec<(Arc<Plan>, u32)> = Vec::new();
        for node in self
            .passes
            .iter()
            .flat_map(|pass| pass.commands.iter().flatten())
        {
            let Ready::ForRows { least, nodes, .. } = node else {
                continue;
            };
            let [Ready::Either(either)] = &nodes[..] else {
                continue;
            };
            for gemm in either
                .products()
                .filter(|gemm| gemm.plan.chosen().is_none())
            {
                if !open.iter().any(|(plan, _)| Arc::ptr_eq(plan, &gemm.plan)) {
                    open.push((gemm.plan.clone(), *least));
                }
            }
        }
        open
    }

    /// Times the candidates of every product that has not been decided.
    fn time_algorithms(&mut self) -> Result<(), Error> {
        let mut pattern = None;
        for pass in 0..self.passes.len() {
            let commands = std::mem::take(&mut self.passes[pass].commands);
            let decided = commands.iter().enumerate().try_for_each(|(index, nodes)| {
                nodes.iter().try_for_each(|node| match node {
                    Ready::ForRows { least, most, nodes } => match &nodes[..] {
                        [Ready::Either(either)] if is_open(either) => {
                            let pattern = pattern.get_or_insert_with(noise);
                            self.decide(pass, index, either, [*most, *least], pattern)
                        }
                        _ => Ok(()),
                    },
                    _ => Ok(()),
                })
            });
            self.passes[pass].commands = commands;
            decided?;
        }
        Ok(())
    }

    /// Takes the fastest candidate whose bits are those of our kernels for the most and for the fewest rows. None if our
    /// kernels are faster, or no candidate agrees.
    fn decide(
        &mut self,
        pass: usize,
        command: usize,
        either: &Either<Ready>,
        rows: [u32; 2],
        pattern: &[f32],
    ) -> Result<(), Error> {
        let most = rows[0];
        self.prepare_trial(pass, command, &either.probe, most, pattern)?;
        let own_time = self.time(|| self.run_own(either, most))?;
        let mut faster = Vec::new();
        for candidate in 0..self.candidates(either) {
            // An algorithm that does not run is left out.
            if let Ok(time) = self.time(|| self.run_candidate(either, most, candidate)) {
                faster.push((time, candidate));
            }
        }
        faster.retain(|(time, _)| *time < own_time);
        faster.sort_unstable();
        let mut agreeing = None;
        for (_, candidate) in faster {
            if self.agrees(pass, command, either, candidate, rows, pattern)? {
                agreeing = Some(candidate);
                break;
            }
        }
        for gemm in either.products() {
            let chosen = agreeing.map(|one| self.candidate(&gemm.plan, one));
            gemm.plan.choose(chosen.transpose()?);
        }
        Ok(())
    }

    /// Whether a candidate gives the bits of our kernels, for these numbers of rows.
    fn agrees(
        &mut self,
        pass: usize,
        command: usize,
        either: &Either<Ready>,
        candidate: usize,
        rows: [u32; 2],
        pattern: &[f32],
    ) -> Result<bool, Error> {
        for live in rows {
            self.prepare_trial(pass, command, &either.probe, live, pattern)?;
            self.run_own(either, live)?;
            let wanted = result(&self.gpu, &either.probe, live)?;
            self.prepare_trial(pass, command, &either.probe, live, pattern)?;
            let ran = self.run_candidate(either, live, candidate);
            if ran.is_err() || result(&self.gpu, &either.probe, live)? != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Nanoseconds of one run; of short ones the mean of a few.
    fn time(&self, run: impl Fn() -> Result<(), Error>) -> Result<u64, Error> {
        let (begin, end) = (Event::new(&self.gpu)?, Event::new(&self.gpu)?);
        let of = |turns: u64| {
            begin.record()?;
            (0..turns).try_for_each(|_| run())?;
            end.record()?;
            end.wait()?;
            Ok::<_, Error>(end.since(&begin)? / turns)
        };
        // The first run is slower.
        of(1)?;
        match of(1)? {
            long if long > SHORT => Ok(long),
            _ => of(4),
        }
    }

    fn run_own(&self, either: &Either<Ready>, live: u32) -> Result<(), Error> {
        let mut nodes = either.own.iter();
        nodes.try_for_each(|node| self.enqueue(node, live))
    }

    /// Enqueues the library's way with one candidate for all its products.
    fn run_candidate(
        &self,
        either: &Either<Ready>,
        live: u32,
        candidate: usize,
    ) -> Result<(), Error> {
        either.library.iter().try_for_each(|node| match node {
            Ready::Gemm(gemm) => {
                let candidate = self.candidate(&gemm.plan, candidate)?;
                gemm.run_by(&self.gpu, live, candidate)
            }
            node => self.enqueue(node, live),
        })
    }

    /// The most candidates of a product of it.
    fn candidates(&self, either: &Either<Ready>) -> usize {
        let products = either.products();
        let each = products.map(|gemm| gemm.plan.candidates(&self.gpu).len());
        each.max().unwrap_or(0)
    }

    /// The nth candidate of a product, or its last one if it has fewer.
    fn candidate(&self, plan: &Plan, nth: usize) -> Result<Candidate, Error> {
        let all = plan.candidates(&self.gpu);
        let found = all.get(nth).or(all.last()).copied();
        found.ok_or_else(|| Error::Library("it has no algorithm for a product".to_string()))
    }

    /// Uploads the step state and fills what the product reads, and what it may add to.
    fn prepare_trial(
        &mut self,
        pass: usize,
        command: usize,
        probe: &Probe,
        live: u32,
        pattern: &[f32],
    ) -> Result<(), Error> {
        let is_output = command >= self.passes[pass].outputs_from;
        let outputs: Vec<u32> = (0..live).filter(|_| is_output).collect();
        let rows = vec![Row::default(); live as usize];
        self.upload_step(pass, &rows, &outputs, 0)?;
        fill(
            &self.gpu,
            probe.x,
            values(live, probe.x_stride, probe.k),
            pattern,
        )?;
        fill(
            &self.gpu,
            probe.y,
            values(live, probe.y_stride, probe.columns),
            pattern,
        )
    }
}

/// Whether a product of it has not been decided.
fn is_open(either: &Either<Ready>) -> bool {
    either.products().any(|gemm| gemm.plan.chosen().is_none())
}

/// Values from the first row to the end of the last one.
fn values(rows: u32, stride: u32, row: u32) -> usize {
    (rows as usize - 1) * stride as usize + row as usize
}

/// Numbers between -1 and 1.
fn noise() -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..PATTERN).map(next).collect()
}

/// Enqueues filling `count` floats with the pattern, over and over.
fn fill(gpu: &Gpu, start: u64, count: usize, pattern: &[f32]) -> Result<(), Error> {
    let mut done = count.min(pattern.len());
    // SAFETY: the floats are a product's operand in a buffer of this context, whose contents nothing needs yet.
    unsafe { gpu.upload(start, bytes_of_all(&pattern[..done]))? };
    while done < count {
        let next = done.min(count - done);
        // SAFETY: as above; the copy begins where the filled part ends.
        unsafe { gpu.copy(start + 4 * done as u64, start, 4 * next as u64)? };
        done += next;
    }
    Ok(())
}

/// Some rows of a product's result.
fn result(gpu: &Gpu, probe: &Probe, live: u32) -> Result<Vec<u8>, Error> {
    let row = 4 * probe.columns as usize;
    let step = live.div_ceil(COMPARED) as usize;
    let chosen: Vec<u32> = (0..live).step_by(step).chain([live - 1]).collect();
    let mut bytes = vec![0; row * chosen.len()];
    for (out, at) in bytes.chunks_exact_mut(row).zip(chosen) {
        let at = probe.y + 4 * u64::from(at) * u64::from(probe.y_stride);
        // SAFETY: the row lies in the product's buffer; we wait before the bytes are used.
        unsafe { gpu.download(at, out)? };
    }
    gpu.synchronise()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaDevice;
    use welte_device::{DeviceOptions, Replay};
    use welte_formats::synthetic::Synthetic;
    use welte_models::CompileOptions;

    #[test]
    fn choices_are_read_as_they_were_written() {
        let chosen = [Some([1, 2, 3, 4, 5, 6, 7, u64::MAX]), None, Some([0; 8])];
        let bytes = to_bytes(130_001, &chosen);
        let kept = of_bytes(&bytes).unwrap();
        assert_eq!((kept.version, &kept.chosen[..]), (130_001, &chosen[..]));
        assert_eq!(of_bytes(&bytes[1..]), None);
        let mut other = bytes.clone();
        other[8] = 2;
        assert_eq!(of_bytes(&other), None);
        assert_eq!(of_bytes(&bytes[..8]).unwrap().chosen, []);
        assert_eq!(of_bytes(&[]), None);
    }

    fn open(shape: &str) -> CudaContext {
        let checkpoint = Synthetic::parse(shape).unwrap();
        let spec = welte_models::spec(&checkpoint).unwrap();
        let compile = CompileOptions {
            context: 1024,
            prompt_outputs: 128,
            ..CompileOptions::default()
        };
        let program = welte_table::fuse(
            welte_models::compile(&spec, &checkpoint, &compile).unwrap(),
            welte_table::PATTERNS,
        );
        let mut options = DeviceOptions::default();
        options.replay = Some(Replay::Graph);
        let device = CudaDevice::open(0, &options).unwrap();
        let loaded = device.load_program(Arc::new(program), &checkpoint);
        loaded.unwrap().cuda_context().unwrap()
    }

    fn either(node: &Ready) -> Option<&Either<Ready>> {
        let Ready::ForRows { nodes, .. } = node else {
            return None;
        };
        match &nodes[..] {
            [Ready::Either(either)] => Some(either),
            _ => None,
        }
    }

    /// Microseconds of a list of nodes.
    fn time(context: &CudaContext, nodes: &[Ready], live: u32) -> f64 {
        let run = || {
            nodes
                .iter()
                .try_for_each(|node| context.enqueue(node, live))
        };
        let turns = || (0..20).try_for_each(|_| run());
        context.time(turns).unwrap() as f64 / 20e3
    }

    /// Prints, per product and number of rows, the chosen algorithm and the time of both ways.
    #[test]
    #[ignore = "needs a GPU with cuBLASLt"]
    fn an_algorithm_agrees_for_every_product() {
        let named = std::env::var("WELTE_SHAPES").ok();
        let named = named.as_deref().unwrap_or(
            "qwen3-4b,layers=1,vocab=32000:bf16 qwen3-4b,layers=1,vocab=32000:q4_0 qwen3-4b,layers=1,vocab=32000:q4_k \
             llama-8b,layers=1,vocab=32000:bf16 llama-8b,layers=1,vocab=32000:f16 llama-1b,layers=1,vocab=32000:q8_0",
        );
        let mut disagree = Vec::new();
        let pattern = noise();
        for shape in named.split_whitespace() {
            let mut context = open(shape);
            for pass in 1..context.passes.len() {
                let commands = std::mem::take(&mut context.passes[pass].commands);
                for (index, nodes) in commands.iter().enumerate() {
                    let Some(probe) = nodes.iter().find_map(|node| Some(either(node)?.probe))
                    else {
                        continue;
                    };
                    for node in nodes {
                        let Ready::ForRows { least, most, .. } = node else {
                            continue;
                        };
                        let what = format!(
                            "{shape} {} x {}, {least} to {most} rows:",
                            probe.columns, probe.k
                        );
                        let Some(ways) = either(node) else {
                            continue;
                        };
                        let mut line = String::new();
                        for live in [*least, *most] {
                            let made = context.prepare_trial(pass, index, &probe, live, &pattern);
                            made.unwrap();
                            let own = time(&context, &ways.own, live);
                            let chosen = time(&context, ways.chosen(), live);
                            line +=
                                &format!(" {live} rows: own {own:.1} us, chosen {chosen:.1} us;");
                        }
                        let rows = [*most, *least];
                        let all = 0..context.candidates(ways);
                        let agree: Vec<usize> = all
                            .filter(|one| {
                                let agrees =
                                    context.agrees(pass, index, ways, *one, rows, &pattern);
                                agrees.unwrap()
                            })
                            .collect();
                        let chosen: Vec<_> = ways
                            .products()
                            .map(|gemm| Some(gemm.plan.chosen()??.algorithm()))
                            .collect();
                        eprintln!(
                            "{what}{line} {agree:?} of {} agree, {chosen:?} chosen",
                            context.candidates(ways)
                        );
                        if agree.is_empty() {
                            disagree.push(what);
                        }
                    }
                }
                context.passes[pass].commands = commands;
            }
        }
        assert!(disagree.is_empty(), "{}", disagree.join("\n"));
    }
}
