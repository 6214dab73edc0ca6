//! The program of one rank.

use super::banks::Banks;
use super::forms::{form, replaces, rows, set, set_units};
use super::layout::{Cut, Layout, PassLayout, Place, columns, heads_of};
use super::part::{Kept, Shard};
use super::webs::{NO_WEB, Section, Web, meet};
use crate::{
    Access, BufferId, BufferRef, BufferSpec, CacheKind, Chosen, Command, Deal, Extent, NO_WEIGHT,
    Op, Pass, Program, Source, Usage, WeightId, WeightSpec, accesses, cost, params as p,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// The program of a rank.
pub(super) fn shard(
    program: &Program,
    layout: &Layout,
    rank: u32,
    least: u64,
) -> Result<Shard, String> {
    let mut out = Program {
        weights: Vec::new(),
        passes: Vec::new(),
        ..program.clone()
    };
    for (cache, deal) in out.caches.iter_mut().zip(&layout.caches) {
        if let (Some(deal), CacheKind::Attention { kv_heads, .. }) = (deal, &mut cache.kind) {
            *kv_heads = deal.units(rank, layout.ranks).len() as u32;
        }
        let bytes = cache.bytes(program.page).ok_or("a cache is too large")?;
        out.buffers[cache.buffer as usize].bytes = bytes;
    }
    let (mut weights, mut banks) = (Weights::default(), Banks::default());
    let mut origins = Vec::new();
    let mut kept = vec![Kept::Whole; out.buffers.len()];
    for (cache, deal) in program.caches.iter().zip(&layout.caches) {
        if deal.is_some() {
            kept[cache.buffer as usize] = Kept::Part;
        }
    }
    for (pass, pass_layout) in program.passes.iter().zip(&layout.passes) {
        let mut builder = Builder {
            program,
            layout,
            pass,
            own: pass_layout,
            rank,
            least,
            weights: &mut weights,
            banks: &mut banks,
            buffers: &mut out.buffers,
            dealt: pass_layout
                .webs
                .all
                .iter()
                .map(|web| vec![false; web.sections.len()])
                .collect(),
            copies: BTreeMap::new(),
            out: Pass {
                commands: Vec::new(),
                labels: Vec::new(),
                ..*pass
            },
            origins: Vec::new(),
        };
        builder.run()?;
        for (web, dealt) in pass_layout.webs.all.iter().zip(&builder.dealt) {
            let kept = &mut kept[web.buffer as usize];
            if web.is_packed {
                *kept = Kept::Part;
            } else if dealt.contains(&true) && *kept == Kept::Whole {
                *kept = Kept::Partly;
            }
        }
        origins.push(builder.origins);
        out.passes.push(builder.out);
    }
    kept.resize(out.buffers.len(), Kept::Part);
    for part in &banks.parts {
        kept[part.of as usize] = Kept::Part;
    }
    out.adapters = banks.adapters(program);
    out.weights = weights.list;
    let embeds = |id: WeightId| {
        let commands = out.passes.iter().flat_map(|pass| &pass.commands);
        let mut uses = commands.filter(|c| c.weights.contains(&id)).peekable();
        uses.peek().is_some() && uses.all(|c| c.op == Op::Embed)
    };
    let alone: Vec<bool> = (0..out.weights.len() as u32).map(embeds).collect();
    for (weight, alone) in out.weights.iter_mut().zip(alone) {
        if weight.usage == Usage::Both && alone {
            weight.usage = Usage::Lookup;
        }
    }
    cost::fill(&mut out);
    Ok(Shard {
        program: out,
        origins,
        kept,
        banks: banks.parts,
    })
}

/// The first row of ranges, and the one after the last.
type Ends = Vec<(u32, u32)>;

/// The weights of a rank, each part once.
#[derive(Default)]
struct Weights {
    list: Vec<WeightSpec>,
    known: BTreeMap<(WeightId, Option<Ends>), WeightId>,
}

impl Weights {
    /// The number of rows of a weight, or of all of it.
    fn take(
        &mut self,
        program: &Program,
        id: WeightId,
        ranges: Option<Vec<Range<u32>>>,
    ) -> WeightId {
        let Some(spec) = program.weights.get(id as usize) else {
            return NO_WEIGHT;
        };
        let is_vector = spec.usage == Usage::Vector;
        let all = if is_vector { spec.k } else { spec.n };
        let is_all = |ranges: &Vec<Range<u32>>| matches!(&ranges[..], [one] if *one == (0..all));
        let ranges = ranges.filter(|ranges| !is_all(ranges));
        let key = ranges
            .as_ref()
            .map(|ranges| ranges.iter().map(|r| (r.start, r.end)).collect());
        *self.known.entry((id, key)).or_insert_with(|| {
            self.list.push(match ranges {
                None => spec.clone(),
                Some(ranges) => part(spec, ranges),
            });
            self.list.len() as WeightId - 1
        })
    }
}

/// Some rows of a weight.
fn part(spec: &WeightSpec, ranges: Vec<Range<u32>>) -> WeightSpec {
    let count: u32 = ranges.iter().map(|range| range.len() as u32).sum();
    let is_vector = spec.usage == Usage::Vector;
    WeightSpec {
        n: if is_vector { 1 } else { count },
        k: if is_vector { count } else { spec.k },
        usage: if is_vector {
            Usage::Vector
        } else {
            Usage::Matrix
        },
        source: Source::Chosen(Box::new(Chosen {
            of: spec.source.clone(),
            rows: if is_vector { spec.k } else { spec.n },
            ranges,
        })),
        ..spec.clone()
    }
}

/// Builds a pass of a rank.
struct Builder<'a> {
    program: &'a Program,
    layout: &'a Layout,
    pass: &'a Pass,
    own: &'a PassLayout,
    rank: u32,
    least: u64,
    weights: &'a mut Weights,
    banks: &'a mut Banks,
    buffers: &'a mut Vec<BufferSpec>,
    /// By web and section: this rank has its part alone.
    dealt: Vec<Vec<bool>>,
    /// By buffer: where a rank has its parts of several vectors.
    copies: BTreeMap<BufferId, BufferId>,
    out: Pass,
    origins: Vec<usize>,
}

impl Builder<'_> {
    fn run(&mut self) -> Result<(), String> {
        for (index, c) in self.pass.commands.iter().enumerate() {
            match &self.own.cuts[index] {
                Some(cuts) if self.pays(c, cuts) => self.part(index, c, cuts),
                _ if self.has_some_heads(c) => {
                    let (label, kind) = (self.pass.full_label(index), self.pass.kind.name());
                    return Err(format!("the heads of {label} ({kind}) cannot be dealt"));
                }
                _ => self.whole(index, c),
            }
        }
        let last = self.pass.commands.len().saturating_sub(1);
        for web in 0..self.own.webs.all.len() {
            if self.own.webs.all[web].is_result {
                self.complete(web, &(0..u32::MAX), last);
            }
        }
        Ok(())
    }

    /// Whether the rank has only some heads of a command's cache.
    fn has_some_heads(&self, c: &Command) -> bool {
        let at = c.op.cache_operand().map(|at| c.buffers[at].buffer);
        let caches = self.program.caches.iter().zip(&self.layout.caches);
        let mut own = caches.filter(|(cache, _)| Some(cache.buffer) == at);
        own.any(|(_, deal)| deal.is_some())
    }

    /// Whether a command runs on the rank's part: it must, or an operand is dealt already, or its matrix is large.
    fn pays(&self, c: &Command, cuts: &[Cut]) -> bool {
        let of_part = |place: &Place| match *place {
            Place::Section { web, section, .. } => {
                self.own.webs.all[web].is_packed || self.dealt[web][section]
            }
            Place::Whole => false,
        };
        let must = matches!(
            c.op,
            Op::Attention | Op::CrossAttention | Op::SparseAttention | Op::KvAppend
        );
        let has_matrix = matches!(
            c.op,
            Op::Matmul | Op::HeadsMatmul | Op::ExpertsActMul | Op::ExpertsAdd
        );
        let matrix = self.program.weights.get(c.weights[0] as usize);
        let large = has_matrix && matrix.is_some_and(|spec| cost::stored_bytes(spec) >= self.least);
        must || large || cuts.iter().flat_map(|cut| &cut.places).any(of_part)
    }

    /// Runs the rank's part of a command.
    fn part(&mut self, index: usize, c: &Command, cuts: &[Cut]) {
        let Some(form) = form(c) else { return };
        for (operand, access) in accesses(c).iter().enumerate() {
            let strips = form.strips.iter().enumerate();
            let mut own = strips
                .filter(|(_, strip)| strip.operand == operand)
                .peekable();
            if own.peek().is_none() {
                self.needs(index, operand, access, index);
                continue;
            }
            for (strip, at) in own {
                if cuts
                    .iter()
                    .any(|cut| matches!(cut.places[strip], Place::Whole))
                {
                    let web = self.own.webs.at(index, operand);
                    self.complete(web, &columns(c, at, form.units), index);
                }
            }
        }
        // Neighbours in a packed web are one run.
        let is_packed = |cut: &Cut| matches!(cut.places[0], Place::Section { web, .. } if self.own.webs.all[web].is_packed);
        let runs: Vec<&[Cut]> = match cuts.iter().all(is_packed) {
            true => vec![cuts],
            false => cuts.chunks(1).collect(),
        };
        for run in runs {
            let units = |cut: &Cut| {
                let part = cut.deal.part(self.rank, self.layout.ranks);
                cut.first + part.start..cut.first + part.end
            };
            let units: Vec<Range<u32>> = run.iter().map(units).collect();
            self.push_part(index, c, &run[0], &units);
        }
        for cut in cuts {
            for (strip, place) in form.strips.iter().zip(&cut.places) {
                if let (true, Place::Section { web, section, .. }) = (strip.writes, *place) {
                    self.dealt[web][section] = true;
                }
            }
        }
    }

    /// Adds a command over these units of `c`, whose strips lie where those of `cut` do.
    fn push_part(&mut self, index: usize, c: &Command, cut: &Cut, units: &[Range<u32>]) {
        let Some(form) = form(c) else { return };
        let mut part = *c;
        set_units(
            &mut part,
            units.iter().map(|units| units.len() as u32).sum(),
        );
        // The last strip of an operand is not where the operand begins.
        for (strip, place) in form.strips.iter().zip(&cut.places).rev() {
            let at = &mut part.buffers[strip.operand];
            match *place {
                Place::Section {
                    web,
                    section,
                    inner,
                } => {
                    let stride;
                    (*at, stride) = self.place(web, section);
                    at.offset += 4 * inner;
                    set(&mut part, strip.stride, stride);
                }
                Place::Whole => at.offset += 4 * (strip.skip + units[0].start * strip.distance),
            }
        }
        if let Some(kv) =
            heads_of(self.program, &self.layout.caches, c).filter(|_| c.word("kv_heads").is_some())
        {
            let kv = Deal { per: 1, ..kv };
            set(
                &mut part,
                "kv_heads",
                kv.units(self.rank, self.layout.ranks).len() as u32,
            );
        }
        for (id, rows) in part.weights.iter_mut().zip(rows(c, units)) {
            *id = self.weights.take(self.program, *id, rows);
        }
        self.push(part, self.pass.labels[index].clone(), index);
        self.place_bank(Some(units));
    }

    /// Gives the last command its part of a bank, if it reads one.
    fn place_bank(&mut self, rows: Option<&[Range<u32>]>) {
        let (commands, buffers) = (&mut self.out.commands, &mut *self.buffers);
        let last = commands.len() - 1;
        self.banks
            .place(self.program, buffers, commands, last, rows);
    }

    /// Where a rank's part of a section begins, and its distance of rows.
    fn place(&mut self, web: usize, section: usize) -> (BufferRef, u32) {
        let own = &self.own.webs.all[web];
        let s = own.sections[section];
        let place = |buffer, first: u32| BufferRef {
            buffer,
            offset: 4 * first,
        };
        let part = |s: &Section| s.deal.part(self.rank, self.layout.ranks);
        if own.is_packed {
            let widths = own.sections.iter().map(|s| part(s).len() as u32);
            let first = widths.clone().take(section).sum();
            return (place(own.buffer, first), widths.sum());
        }
        if s.vectors > 1 {
            let width = s.vectors * part(&s).len() as u32;
            return (place(self.copy_of(web), 0), width);
        }
        (place(own.buffer, s.first + part(&s).start), own.stride)
    }

    /// The buffer that holds the rank's parts of several vectors.
    fn copy_of(&mut self, web: usize) -> BufferId {
        let buffer = self.own.webs.all[web].buffer;
        let buffers = &mut *self.buffers;
        *self.copies.entry(buffer).or_insert_with(|| {
            let whole = &buffers[buffer as usize];
            buffers.push(BufferSpec {
                name: format!("{} part", whole.name),
                ..whole.clone()
            });
            buffers.len() as BufferId - 1
        })
    }

    /// Runs all of a command.
    fn whole(&mut self, index: usize, c: &Command) {
        let replaces = replaces(c);
        for (operand, access) in accesses(c).iter().enumerate() {
            if !(access.writes && replaces) {
                self.needs(index, operand, access, index);
                continue;
            }
            let Some((web, columns)) = self.touched(index, operand, access) else {
                continue;
            };
            for section in 0..self.dealt[web].len() {
                let own = self.own.webs.all[web].sections[section].columns();
                if columns.start <= own.start && own.end <= columns.end {
                    self.dealt[web][section] = false;
                }
            }
            self.complete(web, &columns, index);
        }
        let mut all = *c;
        for id in &mut all.weights {
            *id = self.weights.take(self.program, *id, None);
        }
        self.push(all, self.pass.labels[index].clone(), index);
        self.place_bank(None);
    }

    /// The web and the columns of an operand.
    fn touched(
        &self,
        index: usize,
        operand: usize,
        access: &Access,
    ) -> Option<(usize, Range<u32>)> {
        let web = self.own.webs.at(index, operand);
        let (Extent::Rows { width, .. } | Extent::Outputs { width, .. }) = access.extent else {
            return None;
        };
        let first = access.at.offset / 4;
        (web != NO_WEB).then_some((web, first..first.saturating_add(width as u32)))
    }

    /// Makes an operand whole before command `before`.
    fn needs(&mut self, index: usize, operand: usize, access: &Access, before: usize) {
        if let Some((web, columns)) = self.touched(index, operand, access) {
            self.complete(web, &columns, before);
        }
    }

    /// Exchanges all sections of these columns of which the rank has its part alone.
    fn complete(&mut self, web: usize, columns: &Range<u32>, before: usize) {
        for section in 0..self.dealt.get(web).map_or(0, Vec::len) {
            let s = self.own.webs.all[web].sections[section];
            if self.dealt[web][section] && meet(&s.columns(), columns) {
                self.exchange(web, section, before);
                self.dealt[web][section] = false;
            }
        }
    }

    fn exchange(&mut self, web: usize, section: usize, before: usize) {
        let Web { buffer, stride, .. } = self.own.webs.all[web];
        let s = self.own.webs.all[web].sections[section];
        let (part, part_stride) = self.place(web, section);
        let params = p::Exchange {
            rank: self.rank,
            ranks: self.layout.ranks,
            groups: s.deal.groups,
            per: s.deal.per,
            unit: s.deal.unit,
            vectors: s.vectors,
            part_stride,
            y_stride: stride,
        };
        let whole = BufferRef {
            buffer,
            offset: 4 * s.first,
        };
        let made = self.out.commands.last();
        let (model_part, layer) =
            made.map_or((crate::ModelPart::Other, None), |c| (c.part, c.layer));
        let after = self.out.labels.last().map_or("", String::as_str);
        let label = format!("exchange after {after}");
        let command = Command {
            part: model_part,
            layer,
            ..Command::new(
                Op::Exchange,
                crate::Format::F32,
                &[],
                &[part, whole],
                params.words(),
            )
        };
        self.push(command, label, before);
    }

    fn push(&mut self, command: Command, label: String, origin: usize) {
        self.out.commands.push(command);
        self.out.labels.push(label);
        self.origins.push(origin);
    }
}
