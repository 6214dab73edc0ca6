//! The part of the persistent kernel's source that is made from a table: a struct with the constants of each kind of
//! instruction, and the cases of its switches. Names and values of the constants are those of the ops' declarations.

use std::collections::BTreeMap;
use welte_table::{Affine, Command, Format};

/// The macros that say which members of the affine family a model has.
pub(crate) const AFFINE: [[&str; 3]; 4] = [
    ["AFFINE_0_BITS", "AFFINE_0_GROUP", "AFFINE_0_BF16"],
    ["AFFINE_1_BITS", "AFFINE_1_GROUP", "AFFINE_1_BF16"],
    ["AFFINE_2_BITS", "AFFINE_2_GROUP", "AFFINE_2_BF16"],
    ["AFFINE_3_BITS", "AFFINE_3_GROUP", "AFFINE_3_BF16"],
];

/// Kinds of instructions whose streams are told apart (`KINDS`).
pub(crate) const KINDS: usize = 16;

/// Which of them a variant is; should there be more variants, the last ones are alike.
pub(crate) fn kind(variant: u32) -> usize {
    (variant as usize).min(KINDS - 1)
}

/// What a variant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Embed,
    Product,
    Logits,
    Attention,
}

/// The kinds of instructions of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variants {
    bodies: Vec<(Case, String)>,
    pub(crate) affine: Vec<Affine>,
    /// A variant that knows each rope.
    ropes: BTreeMap<usize, u32>,
    /// Rows that are handed on together.
    pub(crate) outputs: u32,
    /// Slots that are gone through together.
    pub(crate) span: u32,
    /// The largest slot, and what splits of attention leave, in bytes and floats.
    pub(crate) slot: u32,
    pub(crate) partial: u32,
    pub(crate) work: Work,
}

/// Bytes of the largest workplace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Of any step.
    pub(crate) any: u32,
    /// Of the inputs of two rows that lie together, and of one row.
    pub(crate) pair: u32,
    pub(crate) row: u32,
}

impl Work {
    /// For a step of so many rows.
    pub(crate) fn of(&self, rows: u32) -> u32 {
        let inputs = (rows.div_ceil(2) * self.pair).max(rows * self.row);
        inputs.max(self.any).next_multiple_of(128)
    }
}

impl Variants {
    /// The number of a variant: an equal one's if there is one.
    pub(crate) fn add(&mut self, case: Case, format: Format, fields: &str) -> u32 {
        let body = format!("using Format = {}::Format; {fields}", self.place(format));
        let known = self.bodies.iter().position(|b| *b == (case, body.clone()));
        known.unwrap_or_else(|| {
            self.bodies.push((case, body));
            self.bodies.len() - 1
        }) as u32
    }

    /// The namespace of a format in `persistent/formats.cuh`.
    fn place(&mut self, format: Format) -> String {
        let Format::Affine(affine) = format else {
            return format.name().to_lowercase();
        };
        let known = self.affine.iter().position(|a| *a == affine);
        let place = known.unwrap_or_else(|| {
            self.affine.push(affine);
            self.affine.len() - 1
        });
        format!("affine_{place}")
    }

    /// Says which variant knows a rope's width and magnitude.
    pub(crate) fn fill(&mut self, rope: usize, variant: u32) {
        self.ropes.entry(rope).or_insert(variant);
    }

    /// The macros that `persistent.cu` and `persistent_rows.cu` are made with; each says what becomes of a kind.
    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let (mut structs, mut streamed, mut replayed) =
            (String::new(), String::new(), String::new());
        for (i, (case, body)) in self.bodies.iter().enumerate() {
            structs += &format!("struct V{i} {{ {body} }}; ");
            if matches!(case, Case::Product | Case::Logits) {
                let kind = kind(i as u32);
                streamed += &format!(
                    "case {i}: on = streamer.feed<V{i}>(in, share, a.ahead[{kind}]); break; "
                );
            }
            let kind = match case {
                Case::Embed => "EMBED",
                Case::Product => "MULTIPLY",
                Case::Logits => "LOGITS",
                Case::Attention => "ATTEND",
            };
            replayed += &format!("case {i}: {kind}_BY(V{i}); break; ");
        }
        let ropes = self.ropes.iter();
        let angles = ropes.map(|(rope, variant)| format!("TURN_BY(V{variant}, {rope}); "));
        let macros = AFFINE.iter().zip(&self.affine);
        let affine = macros.flat_map(|(names, a)| {
            let values = [a.bits(), a.group(), usize::from(a.bf16())];
            names.iter().copied().zip(values.map(|v| v.to_string()))
        });
        let mut defines = vec![
            ("VARIANTS", structs),
            ("STREAMED", streamed),
            ("REPLAYED", replayed),
            ("FILL_ANGLES", angles.collect()),
        ];
        defines.extend(affine);
        defines
    }
}

/// The op's parameters as constants, but for distances of rows and the fields named.
pub(crate) fn constants(command: &Command, without: &[&str]) -> String {
    let named = command.op.show_params(&command.params);
    let wanted = named
        .into_iter()
        .filter(|(name, _)| !name.ends_with("_stride") && !without.contains(name));
    wanted
        .map(|(name, value)| {
            if value.parse::<u32>().is_ok() {
                format!("static constexpr u32 {name} = {value}u; ")
            } else {
                format!("static constexpr float {name} = {value}f; ")
            }
        })
        .collect()
}
