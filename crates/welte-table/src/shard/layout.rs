//! Which columns of each web are dealt, and how. The same for every rank.

use super::forms::{Form, Strip, form};
use super::part::kv_heads;
use super::webs::{NO_WEB, Section, Webs, carried, meet};
use crate::{Command, Deal, Op, Pass, Program};
use std::collections::BTreeSet;
use std::ops::Range;

pub(super) struct Layout {
    pub(super) ranks: u32,
    /// By pass.
    pub(super) passes: Vec<PassLayout>,
    /// By cache: how its heads are dealt.
    pub(super) caches: Vec<Option<Deal>>,
}

pub(super) struct PassLayout {
    pub(super) webs: Webs,
    /// By command: how it can be cut.
    pub(super) cuts: Vec<Option<Vec<Cut>>>,
}

/// Units of a command that are dealt in one way. Most commands have one cut of all units.
#[derive(Clone)]
pub(super) struct Cut {
    /// The first unit.
    pub(super) first: u32,
    /// How the command's units are dealt.
    pub(super) deal: Deal,
    /// Where they lie, by strip.
    pub(super) places: Vec<Place>,
}

/// Where a strip's units lie.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// In a section that is dealt alike. The op's part of a unit begins `inner` floats after the unit.
    Section {
        web: usize,
        section: usize,
        inner: u32,
    },
    /// Anywhere: the values must be whole, and the rank takes its part.
    Whole,
}

impl Layout {
    pub(super) fn of(program: &Program, ranks: u32) -> Layout {
        let carried = carried(program);
        let mut passes: Vec<PassLayout> = program
            .passes
            .iter()
            .map(|pass| PassLayout {
                webs: Webs::of(program, pass, &carried),
                cuts: vec![None; pass.commands.len()],
            })
            .collect();
        let caches: Vec<Option<Deal>> = (0..program.caches.len())
            .map(|cache| dealt_cache(program, &passes, cache))
            .collect();
        for (pass, layout) in program.passes.iter().zip(&mut passes) {
            let mut sections = Sections {
                program,
                pass,
                ranks,
                caches: &caches,
                webs: &mut layout.webs,
            };
            sections.find();
            layout.cuts = sections.cuts();
        }
        Layout {
            ranks,
            passes,
            caches,
        }
    }
}

/// How a cache's heads are dealt. They are if every command that touches it can run on some heads alone.
fn dealt_cache(program: &Program, passes: &[PassLayout], cache: usize) -> Option<Deal> {
    let spec = &program.caches[cache];
    let heads = kv_heads(spec.kind).filter(|heads| *heads > 1)?;
    for (pass, layout) in program.passes.iter().zip(passes) {
        for (index, c) in pass.commands.iter().enumerate() {
            let touches = c.buffers.iter().any(|at| at.buffer == spec.buffer);
            let can_be_cut = match c.op {
                Op::Attention | Op::CrossAttention | Op::SparseAttention => {
                    let web = layout.webs.at(index, c.op.reads().len());
                    web != NO_WEB && layout.webs.all[web].is_regular
                }
                Op::KvAppend => true,
                _ => false,
            };
            if touches && !can_be_cut {
                return None;
            }
        }
    }
    Some(Deal {
        groups: heads,
        per: 1,
        unit: 1,
    })
}

/// How the heads of attention are dealt, in units of heads; `None`: they are not.
pub(super) fn heads_of(program: &Program, caches: &[Option<Deal>], c: &Command) -> Option<Deal> {
    let buffer = c.buffers.get(c.op.cache_operand()?)?.buffer;
    let cache = program
        .caches
        .iter()
        .position(|cache| cache.buffer == buffer)?;
    let kv = kv_heads(program.caches[cache].kind)?;
    let heads = c.word("heads").unwrap_or(kv);
    let dealt = caches[cache].is_some() || kv == 1;
    (dealt && heads.is_multiple_of(kv)).then_some(Deal {
        groups: kv,
        per: heads / kv,
        unit: 1,
    })
}

/// Looks for the sections of a pass.
struct Sections<'a> {
    program: &'a Program,
    pass: &'a Pass,
    ranks: u32,
    caches: &'a [Option<Deal>],
    webs: &'a mut Webs,
}

/// A column of an operand.
fn column(c: &Command, strip: &Strip) -> u32 {
    c.buffers[strip.operand].offset / 4 + strip.skip
}

fn is_attention(op: Op) -> bool {
    matches!(
        op,
        Op::Attention | Op::CrossAttention | Op::SparseAttention | Op::KvAppend
    )
}

impl Sections<'_> {
    /// Heads decide first, since they cannot be dealt otherwise. Then ops with several operands, so that all of them are
    /// dealt alike, and the others last.
    fn find(&mut self) {
        let commands = &self.pass.commands;
        for (index, c) in commands.iter().enumerate() {
            if let Some(deal) =
                heads_of(self.program, self.caches, c).filter(|_| is_attention(c.op))
            {
                if c.op == Op::KvAppend && deal.groups == 1 {
                    continue;
                }
                self.deal_all(index, c, deal);
            }
        }
        self.spread();
        let structured = |op: Op| {
            matches!(
                op,
                Op::HeadsMatmul
                    | Op::Gate
                    | Op::ActMul
                    | Op::ExpertsActMul
                    | Op::Norm
                    | Op::LayerNorm
            )
        };
        let plain = |op: Op| matches!(op, Op::Add | Op::Multiply | Op::SelectRows);
        let single = |op: Op| matches!(op, Op::Matmul | Op::ExpertsAdd);
        for of_class in [&structured as &dyn Fn(Op) -> bool, &plain, &single] {
            for (index, c) in commands.iter().enumerate().filter(|(_, c)| of_class(c.op)) {
                let Some(form) = form(c) else { continue };
                if self.known(index, c, &form).is_none() && self.are_free(index, c, &form) {
                    let rows = form.strips.iter().all(|strip| strip.distance == 1);
                    let size = if rows { 1 } else { 2 };
                    let deal = Deal::even(form.units, size, self.ranks);
                    self.deal_all(index, c, deal.with_unit(deal.unit / size));
                    self.spread();
                }
            }
        }
    }

    /// Gives all strips of a command sections, where they are free.
    fn deal_all(&mut self, index: usize, c: &Command, deal: Deal) {
        let Some(form) = form(c) else { return };
        for strip in &form.strips {
            let web = self.webs.at(index, strip.operand);
            // Units that are not filled have no neighbours in the same row of memory.
            if web != NO_WEB && strip.used == strip.distance {
                self.webs.all[web].add(Section {
                    first: column(c, strip),
                    deal: deal.with_unit(deal.unit * strip.distance),
                    vectors: form.vectors,
                });
            }
        }
    }

    /// True if every strip may become a section.
    fn are_free(&self, index: usize, c: &Command, form: &Form) -> bool {
        form.strips.iter().all(|strip| {
            let web = self.webs.at(index, strip.operand);
            let first = column(c, strip);
            let columns = first..first + form.vectors * form.units * strip.distance;
            web != NO_WEB && self.webs.all[web].is_free(&columns)
        })
    }

    /// The section that a strip fills, and how far into its units the strip begins.
    fn section(
        &self,
        index: usize,
        c: &Command,
        form: &Form,
        strip: &Strip,
    ) -> Option<(usize, usize, u32)> {
        let web = self.webs.at(index, strip.operand);
        let first = column(c, strip);
        let sections = self.webs.all.get(web)?.sections.iter().enumerate();
        let found = sections.filter(|(_, s)| {
            let same = s.deal.width() == form.units * strip.distance && s.vectors == form.vectors;
            let inside = s.first <= first && first + strip.used <= s.first + strip.distance;
            same && inside && s.deal.unit.is_multiple_of(strip.distance)
        });
        found.map(|(at, s)| (web, at, first - s.first)).next()
    }

    /// How the units of a command are dealt, by the sections of its strips, those it writes first.
    fn known(&self, index: usize, c: &Command, form: &Form) -> Option<Deal> {
        let mut strips: Vec<&Strip> = form.strips.iter().collect();
        strips.sort_by_key(|strip| !strip.writes);
        strips.into_iter().find_map(|strip| {
            let (web, section, _) = self.section(index, c, form, strip)?;
            let deal = self.webs.all[web].sections[section].deal;
            Some(deal.with_unit(deal.unit / strip.distance))
        })
    }

    /// Deals operands like others of the same command, as long as any can be.
    fn spread(&mut self) {
        let several = |c: &&Command| form(c).is_some_and(|form| form.strips.len() > 1);
        let count = |webs: &Webs| webs.all.iter().map(|web| web.sections.len()).sum::<usize>();
        loop {
            let before = count(self.webs);
            for (index, c) in self.pass.commands.iter().enumerate() {
                if is_attention(c.op) || !several(&c) {
                    continue;
                }
                let Some(form) = form(c) else { continue };
                if let Some(deal) = self.known(index, c, &form) {
                    self.deal_all(index, c, deal);
                }
            }
            if count(self.webs) == before {
                return;
            }
        }
    }

    /// How every command can be cut, and which webs are packed.
    fn cuts(&mut self) -> Vec<Option<Vec<Cut>>> {
        let commands = &self.pass.commands;
        let mut cuts: Vec<Option<Vec<Cut>>> = commands
            .iter()
            .enumerate()
            .map(|(index, c)| self.cut(index, c))
            .collect();
        loop {
            let whole = self.whole_webs(&cuts);
            for (id, web) in self.webs.all.iter_mut().enumerate() {
                web.is_packed = !web.sections.is_empty() && !whole.contains(&id);
            }
            // Gate and up are neighbours in a packed web only.
            let apart = |(index, c): (usize, &Command)| {
                let web = self.webs.all.get(self.webs.at(index, 0));
                let packed = web.is_some_and(|web| web.is_packed);
                (c.op == Op::ActMul && !packed && cuts[index].is_some()).then_some(index)
            };
            let broken: Vec<usize> = commands.iter().enumerate().filter_map(apart).collect();
            if broken.is_empty() {
                return cuts;
            }
            broken.into_iter().for_each(|index| cuts[index] = None);
        }
    }

    /// Webs that somebody needs whole, or that a rank could not keep in parts.
    fn whole_webs(&self, cuts: &[Option<Vec<Cut>>]) -> BTreeSet<usize> {
        let mut whole = BTreeSet::new();
        for (id, web) in self.webs.all.iter().enumerate() {
            if web.is_result || !web.is_regular || web.sections.iter().any(|s| s.vectors > 1) {
                whole.insert(id);
            }
        }
        for (index, c) in self.pass.commands.iter().enumerate() {
            for operand in 0..c.buffers.len() {
                let in_sections = |cuts: &Vec<Cut>| {
                    cuts.iter().all(|cut| {
                        let form = form(c);
                        let strips = form.iter().flat_map(|form| &form.strips).zip(&cut.places);
                        let mut own = strips
                            .filter(|(strip, _)| strip.operand == operand)
                            .peekable();
                        own.peek().is_some()
                            && own.all(|(_, place)| matches!(place, Place::Section { .. }))
                    })
                };
                if !cuts[index].as_ref().is_some_and(in_sections) {
                    whole.insert(self.webs.at(index, operand));
                }
            }
        }
        whole
    }

    /// How a command can be cut; `None`: every rank runs all of it.
    fn cut(&self, index: usize, c: &Command) -> Option<Vec<Cut>> {
        let form = form(c)?;
        if let ([strip], false) = (&form.strips[..], form.vectors > 1) {
            return self.cut_columns(index, c, &form, strip);
        }
        let deal = match is_attention(c.op) {
            true => heads_of(self.program, self.caches, c)?,
            false => self.known(index, c, &form)?,
        };
        if deal.groups * deal.per == 1 {
            return None;
        }
        let mut places = Vec::new();
        for strip in &form.strips {
            let found = self
                .section(index, c, &form, strip)
                .filter(|(web, section, _)| {
                    let known = self.webs.all[*web].sections[*section].deal;
                    known == deal.with_unit(deal.unit * strip.distance)
                });
            places.push(match found {
                Some((web, section, inner)) => Place::Section {
                    web,
                    section,
                    inner,
                },
                None if strip.writes || c.op == Op::ActMul => return None,
                None => Place::Whole,
            });
        }
        Some(vec![Cut {
            first: 0,
            deal,
            places,
        }])
    }

    /// Cuts a command with a single operand of units, which may cover several sections.
    fn cut_columns(
        &self,
        index: usize,
        c: &Command,
        form: &Form,
        strip: &Strip,
    ) -> Option<Vec<Cut>> {
        let id = self.webs.at(index, strip.operand);
        let web = self.webs.all.get(id)?;
        let first = column(c, strip);
        let columns = first..first + form.units * strip.distance;
        let mut cuts = Vec::new();
        let mut at = first;
        for (section, s) in web.sections.iter().enumerate() {
            if !meet(&s.columns(), &columns) {
                continue;
            }
            let unit = s.deal.unit;
            let whole_units = (s.first - first.min(s.first)).is_multiple_of(strip.distance)
                && unit.is_multiple_of(strip.distance);
            if s.first != at || s.columns().end > columns.end || s.vectors > 1 || !whole_units {
                return None;
            }
            cuts.push(Cut {
                first: (s.first - first) / strip.distance,
                deal: s.deal.with_unit(unit / strip.distance),
                places: vec![Place::Section {
                    web: id,
                    section,
                    inner: 0,
                }],
            });
            at = s.columns().end;
        }
        (at == columns.end && !cuts.is_empty()).then_some(cuts)
    }
}

/// The columns that a strip covers.
pub(super) fn columns(c: &Command, strip: &Strip, units: u32) -> Range<u32> {
    let first = c.buffers[strip.operand].offset / 4;
    first + strip.skip..first + strip.width(units)
}
