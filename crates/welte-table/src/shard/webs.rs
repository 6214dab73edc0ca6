//! Webs: the values of a buffer between two points where nothing in it is needed. Within a web, columns keep their meaning,
//! so each web can be dealt in its own way.

use super::forms::replaces;
use crate::{Access, BufferId, Class, Command, Deal, Extent, Pass, Program, accesses};
use std::collections::BTreeSet;
use std::ops::Range;

/// No web: an operand that is a cache, or tokens.
pub(super) const NO_WEB: usize = usize::MAX;

/// The values of a buffer between two such points.
pub(super) struct Web {
    pub(super) buffer: BufferId,
    /// Floats from one row to the next.
    pub(super) stride: u32,
    /// All its operands have that distance and lie in the first row. Others stay whole.
    pub(super) is_regular: bool,
    /// It is what the pass yields.
    pub(super) is_result: bool,
    /// The columns that are dealt, in order.
    pub(super) sections: Vec<Section>,
    /// Nobody needs it whole: a rank has its parts only, one after the other.
    pub(super) is_packed: bool,
}

/// Columns that are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) first: u32,
    /// How each vector is dealt.
    pub(super) deal: Deal,
    /// Vectors that follow each other. More than 1: a rank has its parts of them in another buffer.
    pub(super) vectors: u32,
}

impl Section {
    pub(super) fn columns(&self) -> Range<u32> {
        self.first..self.first + self.vectors * self.deal.width()
    }
}

impl Web {
    /// True if no section has any of these columns, and all lie in a row.
    pub(super) fn is_free(&self, columns: &Range<u32>) -> bool {
        let mut sections = self.sections.iter();
        self.is_regular
            && columns.end <= self.stride
            && !sections.any(|s| meet(&s.columns(), columns))
    }

    /// Adds a section, if its columns are free.
    pub(super) fn add(&mut self, section: Section) -> bool {
        let free = self.is_free(&section.columns());
        if free {
            let at = self.sections.partition_point(|s| s.first < section.first);
            self.sections.insert(at, section);
        }
        free
    }
}

pub(super) fn meet(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The webs of a pass.
pub(super) struct Webs {
    pub(super) all: Vec<Web>,
    /// By command and operand.
    of: Vec<[usize; 4]>,
}

/// Buffers of which a pass reads what an earlier pass, or the host, has left there.
pub(super) fn carried(program: &Program) -> BTreeSet<BufferId> {
    let mut all = BTreeSet::from([program.features]);
    for pass in &program.passes {
        all.extend(scratch(program).filter(|buffer| lives(pass, *buffer).begins_live));
    }
    all
}

/// The buffers that have webs.
fn scratch(program: &Program) -> impl Iterator<Item = BufferId> {
    let all = (0..).zip(&program.buffers);
    all.filter(|(_, spec)| matches!(spec.class, Class::ScratchDecode | Class::ScratchPrompt))
        .map(|(id, _)| id)
}

impl Webs {
    /// The webs of a pass. Buffers in `carried` outlive it, so each has one web that stays whole.
    pub(super) fn of(program: &Program, pass: &Pass, carried: &BTreeSet<BufferId>) -> Webs {
        let mut webs = Webs {
            all: Vec::new(),
            of: vec![[NO_WEB; 4]; pass.commands.len()],
        };
        for buffer in scratch(program) {
            webs.add(pass, buffer, !carried.contains(&buffer));
        }
        webs
    }

    /// The web of an operand.
    pub(super) fn at(&self, command: usize, operand: usize) -> usize {
        self.of[command][operand]
    }

    /// Finds the webs of a buffer.
    fn add(&mut self, pass: &Pass, buffer: BufferId, regular: bool) {
        let Lives {
            starts, irregular, ..
        } = lives(pass, buffer);
        let is_regular = regular && !irregular;
        let mut current = None;
        for (index, command) in touching(pass, buffer) {
            if current.is_none() || is_regular && starts.contains(&index) {
                current = Some(self.all.len());
                self.all.push(Web {
                    buffer,
                    stride: 0,
                    is_regular,
                    is_result: false,
                    sections: Vec::new(),
                    is_packed: false,
                });
            }
            let web = current.unwrap_or(NO_WEB);
            for (operand, access) in accesses(command).iter().enumerate() {
                if access.at.buffer != buffer {
                    continue;
                }
                self.of[index][operand] = web;
                if let Extent::Rows { stride, .. } | Extent::Outputs { stride, .. } = access.extent
                {
                    self.all[web].stride = stride as u32;
                }
            }
        }
        if let Some(last) = current.filter(|_| is_result(pass, buffer)) {
            self.all[last].is_result = true;
        }
    }
}

/// The commands of a pass that touch a buffer.
fn touching(pass: &Pass, buffer: BufferId) -> impl DoubleEndedIterator<Item = (usize, &Command)> {
    let commands = pass.commands.iter().enumerate();
    commands.filter(move |(_, c)| c.buffers.iter().any(|at| at.buffer == buffer))
}

fn is_result(pass: &Pass, buffer: BufferId) -> bool {
    !pass.is_middle() && pass.result.buffer == buffer
}

/// When a pass needs what is in a buffer.
struct Lives {
    /// Commands before which nothing in it is needed.
    starts: Vec<usize>,
    /// Something is needed before the first command.
    begins_live: bool,
    /// Its operands do not have one distance of rows.
    irregular: bool,
}

fn lives(pass: &Pass, buffer: BufferId) -> Lives {
    let mut live = Live::default();
    if is_result(pass, buffer) {
        let width = pass.width.into();
        live.add(columns(pass.result.offset, width, width));
    }
    let mut starts = Vec::new();
    let mut reads = false;
    for (index, command) in touching(pass, buffer).rev() {
        let list = accesses(command);
        let own = list.iter().filter(|a| a.at.buffer == buffer);
        let replaces = replaces(command);
        let (replaced, needed): (Vec<&Access>, Vec<&Access>) =
            own.partition(|a| a.writes && replaces);
        reads = !needed.is_empty();
        for (accesses, is_needed) in [(replaced, false), (needed, true)] {
            for access in accesses {
                let (Extent::Rows { width, stride } | Extent::Outputs { width, stride }) =
                    access.extent
                else {
                    live.irregular = true;
                    continue;
                };
                let columns = columns(access.at.offset, width, stride);
                if is_needed {
                    live.add(columns);
                } else {
                    live.remove(columns);
                }
            }
        }
        if live.columns.is_empty() {
            starts.push(index);
        }
    }
    Lives {
        starts,
        begins_live: !live.columns.is_empty() || live.irregular && reads,
        irregular: live.irregular,
    }
}

/// Columns of rows of a stride; `None` if they do not lie in the first row.
fn columns(offset: u32, width: u64, stride: u64) -> Option<(Range<u64>, u64)> {
    let first = u64::from(offset) / 4;
    let fits = offset.is_multiple_of(4) && first + width <= stride && stride <= u32::MAX.into();
    fits.then_some((first..first + width, stride))
}

/// Columns that are needed later.
#[derive(Default)]
struct Live {
    columns: Vec<Range<u64>>,
    stride: u64,
    irregular: bool,
}

impl Live {
    fn check(&mut self, place: Option<(Range<u64>, u64)>) -> Option<Range<u64>> {
        let (columns, stride) = place?;
        if !self.columns.is_empty() && self.stride != stride {
            return None;
        }
        self.stride = stride;
        Some(columns)
    }

    fn add(&mut self, place: Option<(Range<u64>, u64)>) {
        match self.check(place) {
            Some(columns) => {
                self.remove_columns(&columns);
                self.columns.push(columns);
            }
            None => self.irregular = true,
        }
    }

    fn remove(&mut self, place: Option<(Range<u64>, u64)>) {
        match self.check(place) {
            Some(columns) => self.remove_columns(&columns),
            None => self.irregular = true,
        }
    }

    fn remove_columns(&mut self, columns: &Range<u64>) {
        let before = std::mem::take(&mut self.columns);
        for own in before {
            for rest in [
                own.start..own.end.min(columns.start),
                own.start.max(columns.end)..own.end,
            ] {
                if rest.start < rest.end {
                    self.columns.push(rest);
                }
            }
        }
    }
}
