//! A program as two programs: chosen commands run on one device, all others on another. Which bytes go from one to the
//! other, and when, is worked out here, once, as plain data.

use crate::access::apart;
use crate::{
    Access, BufferId, BufferRef, Command, Extent, NO_BUFFER, NO_WEIGHT, Pass, Program, WeightId,
    accesses,
};
use std::ops::Range;

/// Which of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It has the caches, and chooses tokens.
    Near,
    /// It has the chosen commands.
    Far,
}

/// A program in two halves. Both have the same passes by number; those of the far half are middles
/// ([`Pass::is_middle`]) and may be empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// All commands that were not chosen.
    pub near: Half,
    /// The chosen commands.
    pub far: Half,
    /// How a step runs, by pass.
    pub passes: Vec<Vec<Segment>>,
}

/// A program with only those weights that its commands name. The near half has all buffers but those that only far commands
/// name; the far half has those that its commands name.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// The program.
    pub program: Program,
    /// By buffer of the whole program: its number here, or [`NO_BUFFER`].
    pub buffers: Vec<BufferId>,
}

/// Neighbouring commands of a pass that run on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they run.
    pub side: Side,
    /// Their numbers in the pass of the whole program.
    pub commands: Range<usize>,
    /// Their numbers in the pass of their half.
    pub here: Range<usize>,
    /// What is copied from near to far before they run. None of a near segment.
    pub inputs: Vec<Region>,
    /// What they write and the near half has a place for. None of a near segment.
    pub outputs: Vec<Region>,
}

/// Floats of each input row in a buffer of the whole program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first row's first float.
    pub at: BufferRef,
    /// Floats of a row.
    pub width: u64,
    /// Floats from one row to the next.
    pub stride: u64,
    /// Later commands of the pass need it on the near side. True of all inputs.
    pub needed: bool,
}

impl Region {
    /// The bytes of `rows` rows in the buffer, run by run.
    pub fn runs(&self, rows: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        let (count, floats) = if self.width == self.stride {
            (rows.min(1), self.width * rows as u64)
        } else {
            (rows, self.width)
        };
        let (first, stride) = (u64::from(self.at.offset), 4 * self.stride);
        (0..count as u64).map(move |run| {
            let start = first + run * stride;
            start..start + 4 * floats
        })
    }

    /// Bytes of `rows` rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        4 * self.width * rows as u64
    }

    fn of(access: &Access) -> Option<Region> {
        match access.extent {
            Extent::Rows { width, stride } => Some(Region {
                at: access.at,
                width,
                stride,
                needed: true,
            }),
            _ => None,
        }
    }

    /// True if the access covers all of it.
    fn is_covered(&self, by: &Access) -> bool {
        let same = |width, stride| stride == self.stride && width >= self.width;
        by.at == self.at
            && matches!(by.extent, Extent::Rows { width, stride } if same(width, stride))
    }

    fn meets(&self, other: &Access) -> bool {
        let own = Access {
            role: "",
            at: self.at,
            extent: Extent::Rows {
                width: self.width,
                stride: self.stride,
            },
            writes: true,
        };
        self.at.buffer == other.at.buffer && !apart(&own, other)
    }
}

/// What a command needs to have been written before.
fn needs(c: &Command) -> impl Iterator<Item = Access> {
    let replaces = c.op.replaces();
    let all = accesses(c).into_iter();
    all.filter(move |access| !access.writes || !replaces)
}

/// True if a command runs on input rows.
fn is_on_inputs(pass: &Pass, index: usize) -> bool {
    pass.outputs_from().is_none_or(|from| index < from)
}

/// True if a command can run apart from its neighbours: it runs on input rows, takes and yields rows of floats, and does not
/// write the result of the pass.
fn can_move(pass: &Pass, index: usize) -> bool {
    let of_rows = |access: &Access| {
        let is_result = access.writes && access.at.buffer == pass.result.buffer;
        matches!(access.extent, Extent::Rows { .. }) && !is_result
    };
    is_on_inputs(pass, index) && accesses(&pass.commands[index]).iter().all(of_rows)
}

impl Split {
    /// Splits a program. `is_far` chooses commands by their pass and number there. A command that touches tokens or a
    /// cache, runs on output rows or writes the result of its pass stays near.
    pub fn of(program: &Program, is_far: &dyn Fn(&Pass, usize) -> bool) -> Split {
        let sides: Vec<Vec<Side>> = program
            .passes
            .iter()
            .map(|pass| {
                let side = |index| {
                    if is_far(pass, index) && can_move(pass, index) {
                        Side::Far
                    } else {
                        Side::Near
                    }
                };
                (0..pass.commands.len()).map(side).collect()
            })
            .collect();
        let near = Half::of(program, &sides, Side::Near);
        let far = Half::of(program, &sides, Side::Far);
        let passes = program.passes.iter().zip(&sides);
        let passes = passes.map(|(pass, sides)| {
            let mut segments = segments(pass, sides);
            // What the near side has no place for has never left the far side.
            for segment in &mut segments {
                let inputs = &mut segment.inputs;
                inputs.retain(|input| near.buffers[input.at.buffer as usize] != NO_BUFFER);
            }
            find_outputs(pass, &mut segments, &near);
            segments
        });
        Split {
            passes: passes.collect(),
            near,
            far,
        }
    }

    /// True if any command is far.
    pub fn has_far(&self) -> bool {
        let passes = &self.far.program.passes;
        passes.iter().any(|pass| !pass.commands.is_empty())
    }

    /// The half of a side.
    pub fn half(&self, side: Side) -> &Half {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// The most bytes that are copied at a time.
    pub fn most_bytes(&self) -> u64 {
        let segments = self.passes.iter().zip(&self.far.program.passes);
        let bytes = segments.flat_map(|(segments, pass)| {
            let regions = segments
                .iter()
                .flat_map(|s| s.inputs.iter().chain(&s.outputs));
            regions.map(|region| region.bytes(pass.rows as usize))
        });
        bytes.max().unwrap_or(0)
    }
}

/// The segments of a pass with their inputs.
fn segments(pass: &Pass, sides: &[Side]) -> Vec<Segment> {
    let mut done = [0; 2];
    let mut segments: Vec<Segment> = Vec::new();
    for (index, side) in sides.iter().enumerate() {
        let here = done[*side as usize];
        done[*side as usize] += 1;
        match segments.last_mut() {
            Some(last) if last.side == *side => {
                (last.commands.end, last.here.end) = (index + 1, here + 1);
            }
            _ => segments.push(Segment {
                side: *side,
                commands: index..index + 1,
                here: here..here + 1,
                inputs: Vec::new(),
                outputs: Vec::new(),
            }),
        }
    }
    for segment in segments.iter_mut().filter(|s| s.side == Side::Far) {
        let mut written: Vec<Access> = Vec::new();
        for command in &pass.commands[segment.commands.clone()] {
            for region in needs(command).filter_map(|access| Region::of(&access)) {
                let made = written.iter().any(|access| region.is_covered(access));
                if !made && !segment.inputs.contains(&region) {
                    segment.inputs.push(region);
                }
            }
            written.extend(accesses(command).into_iter().filter(|a| a.writes));
        }
    }
    segments
}

/// Finds the outputs of far segments, and which of them are needed: a later command reads them on the near side, or they
/// are copied to the far side again.
fn find_outputs(pass: &Pass, segments: &mut [Segment], near: &Half) {
    for index in 0..segments.len() {
        let (earlier, later) = segments.split_at_mut(index + 1);
        let segment = &mut earlier[index];
        if segment.side == Side::Near {
            continue;
        }
        let commands = pass.commands[segment.commands.clone()].iter();
        let written = commands.flat_map(accesses).filter(|a| a.writes);
        for mut region in written.filter_map(|access| Region::of(&access)) {
            let is_known = |known: &Region| (known.at, known.width) == (region.at, region.width);
            let known = segment.outputs.iter().any(is_known);
            if known || near.buffers[region.at.buffer as usize] == NO_BUFFER {
                continue;
            }
            region.needed = is_needed(pass, &region, later);
            segment.outputs.push(region);
        }
    }
}

/// Whether anything in these segments takes the region from the near side.
fn is_needed(pass: &Pass, region: &Region, later: &[Segment]) -> bool {
    for segment in later {
        if segment.side == Side::Far {
            let meets = |input: &Region| input.at.buffer == region.at.buffer;
            if segment.inputs.iter().any(meets) {
                return true;
            }
            continue;
        }
        for index in segment.commands.clone() {
            let command = &pass.commands[index];
            if needs(command).any(|access| region.meets(&access)) {
                return true;
            }
            let mut written = accesses(command).into_iter().filter(|a| a.writes);
            let replaced = command.op.replaces() && is_on_inputs(pass, index);
            if replaced && written.any(|access| region.is_covered(&access)) {
                return false;
            }
        }
    }
    false
}

impl Half {
    fn of(program: &Program, sides: &[Vec<Side>], side: Side) -> Half {
        let passes: Vec<Pass> = program
            .passes
            .iter()
            .zip(sides)
            .map(|(pass, sides)| part(pass, sides, side))
            .collect();
        let commands = || passes.iter().flat_map(|pass| &pass.commands);
        let weights = commands().flat_map(|c| c.weights);
        let weights = numbering(program.weights.len(), weights);
        let of_commands = |passes: &[Pass]| -> Vec<BufferId> {
            let commands = passes.iter().flat_map(|pass| &pass.commands);
            commands
                .flat_map(|c| c.buffers.map(|at| at.buffer))
                .collect()
        };
        let mut kept = of_commands(&passes);
        kept.push(program.tokens);
        if side == Side::Near {
            // All but those that the far side alone uses.
            let used = of_commands(&program.passes);
            kept.extend((0..program.buffers.len() as u32).filter(|id| !used.contains(id)));
            kept.extend(program.caches.iter().map(|cache| cache.buffer));
            kept.extend(passes.iter().map(|pass| pass.result.buffer));
        }
        let buffers = numbering(program.buffers.len(), kept.into_iter());
        let mut half = Program {
            weights: chosen(&program.weights, &weights),
            buffers: chosen(&program.buffers, &buffers),
            caches: match side {
                Side::Near => program.caches.clone(),
                Side::Far => Vec::new(),
            },
            tokens: at(&buffers, program.tokens),
            features: NO_BUFFER,
            adapters: None,
            block: None,
            passes,
            ..*program
        };
        for cache in &mut half.caches {
            cache.buffer = at(&buffers, cache.buffer);
        }
        for pass in &mut half.passes {
            pass.result.buffer = at(&buffers, pass.result.buffer);
            for command in &mut pass.commands {
                command.weights = command.weights.map(|id| at(&weights, id));
                for operand in &mut command.buffers {
                    operand.buffer = at(&buffers, operand.buffer);
                }
            }
        }
        Half {
            program: half,
            buffers,
        }
    }
}

/// The commands of a pass that are on this side.
fn part(pass: &Pass, sides: &[Side], side: Side) -> Pass {
    let here = |index: &usize| sides[*index] == side;
    let numbers = || (0..pass.commands.len()).filter(here);
    let part = Pass {
        commands: numbers().map(|i| pass.commands[i]).collect(),
        labels: numbers().map(|i| pass.labels[i].clone()).collect(),
        ..*pass
    };
    match side {
        Side::Near => part,
        Side::Far => Pass {
            outputs: 0,
            width: 0,
            result: BufferRef::NONE,
            ..part
        },
    }
}

/// New numbers for those that are used, in their old order; the others have none.
fn numbering(count: usize, used: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut kept = vec![false; count];
    for id in used {
        if let Some(kept) = kept.get_mut(id as usize) {
            *kept = true;
        }
    }
    let mut next = 0;
    let number = |kept: bool| {
        if kept {
            next += 1;
            next - 1
        } else {
            NONE
        }
    };
    kept.into_iter().map(number).collect()
}

/// [`NO_WEIGHT`] and [`NO_BUFFER`] alike.
const NONE: u32 = u32::MAX;
const _: () = assert!(NONE == NO_WEIGHT && NONE == NO_BUFFER);

fn at(numbers: &[u32], id: WeightId) -> u32 {
    numbers.get(id as usize).copied().unwrap_or(NONE)
}

fn chosen<T: Clone>(all: &[T], numbers: &[u32]) -> Vec<T> {
    let kept = all
        .iter()
        .zip(numbers)
        .filter(|(_, number)| **number != NONE);
    kept.map(|(one, _)| one.clone()).collect()
}
