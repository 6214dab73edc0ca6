//! Chains by the persistent kernel: one launch for many tokens, and the way back to the graph when the kernel gives up.
#![allow(unsafe_code)]

use super::persistent_kernel::upload;
use super::{CudaContext, DECODE};
use crate::Error;
use crate::gpu::DeviceBlock;
use crate::persistent::{FAULT_BYTES, Fault, Recording, Tuning};
use welte_device::timeline::{Span, Timed, Timeline, median};
use welte_device::{ChainStart, Control, Replay};
use welte_table::Row;

/// The last turn, from four stamps per block and instruction. Each multiprocessor has a clock of its own. So the times of a block
/// count from its first instruction, which follows the meeting of all blocks. Clocks differ in pace too (16 of an H200's were
/// 1.6 % slow). So ticks are scaled by the number that a block counted until the last input that all blocks waited for.
fn lanes(ticks: &[u64], instructions: usize, khz: u64) -> Vec<Vec<Span>> {
    let blocks: Vec<&[[u64; 4]]> = ticks
        .chunks_exact(instructions.max(1) * 4)
        .map(|block| block.as_chunks().0)
        .collect();
    // Ticks until the input of an instruction arrived, if the block waited for one in this turn.
    let until = |block: &[[u64; 4]], i: usize| {
        let [begin, ready, ..] = block[i];
        (block[0][0] <= begin && begin < ready).then(|| ready - block[0][0])
    };
    let until_all = |i| blocks.iter().map(|block| until(block, i)).collect();
    let paces: Option<Vec<u64>> = (0..instructions).rev().find_map(until_all);
    let paces = paces.unwrap_or_else(|| vec![1; blocks.len()]);
    let usual = u128::from(median(paces.clone()));
    let lane = |(block, pace): (&&[[u64; 4]], &u64)| {
        let ns = |tick: u64| {
            let since = u128::from(tick.saturating_sub(block[0][0]));
            let ticks = since * usual / u128::from(*pace);
            (ticks * 1_000_000 / u128::from(khz.max(1))) as u64
        };
        let spans = block.iter().enumerate();
        spans
            .filter_map(|(i, stamps)| Span::of_stamps(i as u32, stamps.map(ns)))
            .collect()
    };
    blocks.iter().zip(&paces).map(lane).collect()
}

impl CudaContext {
    /// Decodes a chain by a persistent kernel with clocks. Returns the work of its blocks in the last turn, a lane per block.
    /// Nanoseconds are clock ticks at the GPU's highest clock.
    pub(super) fn timed_chain(&mut self, start: &ChainStart) -> Result<Timeline, Error> {
        if self.stores_for_blocks() {
            let why = "graphs replay the chains of a model with a DFlash drafter";
            return Err(Error::Program(why.to_string()));
        }
        let loaded = self.loaded.clone();
        let recording = loaded.recording.as_ref();
        let recording = recording.map_err(|why| Error::Program(why.clone()))?;
        let unit = recording.timed_unit();
        loaded.add_modules(std::slice::from_ref(&unit))?;
        let timing = loaded.persistent_kernel(&unit, recording)?;
        let words = recording.blocks as usize * recording.program.len() * 4;
        let times = DeviceBlock::zeroed(&self.gpu, words as u64 * 8, "the timeline")?;
        let before = (self.replay, self.note.take());
        self.use_replay(Replay::Persistent)?;
        let persistent = self.persistent.as_mut();
        let persistent =
            persistent.ok_or_else(|| Error::Program("it has no persistent replay".to_string()))?;
        let plain = persistent.kernel.replace(timing);
        persistent.arguments.times = times.start();
        let result = self.decode(start, &Control::default(), &mut |_| true);
        if let Some(persistent) = &mut self.persistent {
            persistent.kernel = plain;
            persistent.arguments.times = 0;
            persistent.turn = None;
        }
        let gave_up = self.note.clone();
        self.use_replay(before.0)?;
        self.note = before.1;
        let made = result?;
        if let Some(why) = gave_up {
            return Err(Error::Kernel(why));
        }
        let mut bytes = vec![0; words * 8];
        // SAFETY: the block has these bytes; we wait before they are used.
        unsafe { self.gpu.download(times.start(), &mut bytes)? };
        self.gpu.synchronise()?;
        let (words, _) = bytes.as_chunks();
        let ticks: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let row = Row::new(
            start.token,
            (start.position + made as u32).saturating_sub(1),
            start.slot,
        );
        let commands = recording.commands.iter();
        let commands =
            commands.filter_map(|command| Timed::of(&loaded.program, DECODE, *command, &[row]));
        let timeline = Timeline {
            commands: commands.collect(),
            lanes: lanes(&ticks, recording.program.len(), self.gpu.info.clock_khz),
            position: row.position,
            rows: 1,
        };
        Ok(timeline)
    }

    /// Uses these tuning parameters from now on.
    pub(super) fn set_tuning(&mut self, tuning: &Tuning) {
        let loaded = &self.loaded;
        if let (Some(persistent), Ok(recording)) = (&mut self.persistent, &loaded.recording) {
            persistent.arguments.params = tuning.params(&recording.in_flight);
        }
        if let (Some(rows), Ok(recording)) = (&mut self.rows, &loaded.rows) {
            rows.set_tuning(tuning, recording);
        }
    }

    /// Loads the persistent kernel and uploads its program and shares.
    pub(super) fn prepare_persistent(&mut self) -> Result<(), Error> {
        let loaded = &self.loaded;
        let recording = loaded.recording.as_ref();
        let recording = recording.map_err(|why| Error::Program(why.clone()))?;
        let persistent = self.persistent.as_mut();
        let persistent =
            persistent.ok_or_else(|| Error::Program("it has no persistent replay".to_string()))?;
        if persistent.kernel.is_none() {
            upload(&self.gpu, recording, &persistent.block)?;
            let unit = recording.unit();
            loaded.add_modules(std::slice::from_ref(&unit))?;
            persistent.kernel = Some(loaded.persistent_kernel(&unit, recording)?);
        }
        Ok(())
    }

    /// Why the kernel left without a token: the command, block and token where a block waited too long.
    pub(super) fn fault(&self) -> Result<Option<String>, Error> {
        let (Some(persistent), Ok(recording)) = (&self.persistent, &self.loaded.recording) else {
            return Ok(None);
        };
        let mut bytes = [0u8; FAULT_BYTES];
        // SAFETY: the block has these bytes; we wait before they are used.
        unsafe { self.gpu.download(persistent.arguments.fault, &mut bytes)? };
        self.gpu.synchronise()?;
        let fault = self.describe_fault(recording, &bytes);
        Ok(fault.map(|(what, turn)| {
            format!("{what}, {turn} tokens into the chain; going on with the graph")
        }))
    }

    /// Which block waited for what, as a person reads it, and in which turn. `None` where no fault was raised.
    pub(super) fn describe_fault(
        &self,
        recording: &Recording,
        fault: &[u8; FAULT_BYTES],
    ) -> Option<(String, u32)> {
        // SAFETY: any bytes are a valid `Fault`.
        let fault: Fault = unsafe { std::ptr::read_unaligned(fault.as_ptr().cast()) };
        if fault.raised == 0 {
            return None;
        }
        let pass = &self.loaded.program.passes[DECODE];
        let command = recording.commands.get(fault.instruction as usize);
        let label = command.map(|command| pass.full_label(*command));
        let label = label.unwrap_or_else(|| "the end of a token".to_string());
        let what = match fault.place {
            1 => "its input",
            2 => "its weights",
            4 => "another rank",
            _ => "the other blocks",
        };
        let block = fault.block;
        let text = format!(
            "the persistent kernel gave up: block {block} waited too long for {what} at {label}"
        );
        Some((text, fault.turn))
    }

    /// Replays by the graph from now on, for the reason `why`.
    pub(super) fn fall_back(&mut self, why: String) -> Result<(), Error> {
        self.use_replay(Replay::Graph)?;
        self.note = Some(why);
        Ok(())
    }

    /// The tuning parameters, where chains are replayed by the persistent kernel.
    pub(super) fn tuning_in_words(&self) -> Option<String> {
        if self.replay != Replay::Persistent {
            return None;
        }
        Some(format!("{:?}", self.persistent.as_ref()?.arguments.params))
    }

    /// For tests: a block of the persistent kernels publishes nothing, and the others wait `patience` clock ticks for it.
    #[doc(hidden)]
    pub fn stall_block(&mut self, block: u32, patience: i64) {
        if let Some(persistent) = &mut self.persistent {
            persistent.arguments.stalled_block = block;
            persistent.arguments.patience = patience;
        }
        if let Some(rows) = &mut self.rows {
            rows.stall(block, patience);
        }
    }
}

impl CudaContext {
    /// Lets the states be those after the steps that gave `tokens`, of a launch that began with `row`.
    pub(super) fn rewind(&mut self, mut row: Row, tokens: &[u32]) -> Result<(), Error> {
        if let Some(persistent) = &self.persistent {
            persistent.states().restore(&self.gpu)?;
        }
        for token in tokens {
            self.run_step(DECODE, &[row], &[], 1)?;
            row = row.later(*token, 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_all_blocks_count_from_their_own_first_instruction() {
        // Two instructions, two blocks with clocks far apart at 2 GHz; the second block skips the second instruction,
        // whose stamps are of an earlier turn.
        let ticks = [
            [1_000, 0, 0, 3_000, 3_000, 4_000, 7_000, 8_000],
            [
                u64::MAX - 9_000,
                0,
                0,
                u64::MAX - 8_000,
                u64::MAX - 8_000,
                17,
                20,
                0,
            ],
        ];
        let lanes = lanes(ticks.as_flattened(), 2, 2_000_000);
        let times = |lane: &[Span]| -> Vec<[u64; 5]> {
            let of = |s: &Span| [s.index.into(), s.begin, s.ready, s.done, s.end];
            lane.iter().map(of).collect()
        };
        assert_eq!(
            times(&lanes[0]),
            [[0, 0, 0, 1_000, 1_000], [1, 1_000, 1_500, 3_000, 3_500]]
        );
        assert_eq!(times(&lanes[1]), [[0, 0, 0, 500, 500]]);
        // The second block's clock goes at two thirds of the others' pace.
        let ticks = [
            [0, 100, 400, 500, 500, 900, 1_200, 1_300],
            [5_000, 5_060, 5_200, 5_300, 5_300, 5_600, 5_700, 5_720],
            [10, 111, 408, 510, 511, 910, 1_209, 1_310],
        ];
        let paced = super::lanes(ticks.as_flattened(), 2, 1_000_000);
        assert_eq!(
            times(&paced[0]),
            [[0, 0, 100, 400, 500], [1, 500, 900, 1_200, 1_300]]
        );
        assert_eq!(
            times(&paced[1]),
            [[0, 0, 90, 300, 450], [1, 450, 900, 1_050, 1_080]]
        );
        // A kernel that never ran.
        assert!(
            super::lanes(&[0; 16], 2, 2_000_000)
                .iter()
                .all(Vec::is_empty)
        );
        assert!(super::lanes(&[], 0, 0).is_empty());
    }
}
