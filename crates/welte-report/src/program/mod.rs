//! A program as text, JSON, dot or HTML.

mod dot;
mod fold;
mod html;
mod json;
mod text;

pub use dot::dot;
pub use fold::{Fold, fold};
pub use html::html;
pub use json::json;
pub use text::text;

use crate::{count, human};
use welte_table::{
    Access, CacheKind, CacheSpec, Command, MemoryPlan, Pass, PassKind, Program, accesses,
};

/// What a view shows besides the program itself.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The model's name or path.
    pub title: String,
    /// Facts about the model, in order.
    pub facts: Vec<(String, String)>,
    /// The memory plan.
    pub plan: MemoryPlan,
    /// Memory that can be allocated now, if known.
    pub available: Option<u64>,
}

/// `decode.qkv+4096`: where an operand is.
fn operand(program: &Program, access: &Access) -> String {
    let name = buffer_name(program, access);
    match access.at.offset {
        0 => name.to_string(),
        offset => format!("{name}+{offset}"),
    }
}

fn buffer_name<'p>(program: &'p Program, access: &Access) -> &'p str {
    let buffer = program.buffers.get(access.at.buffer as usize);
    buffer.map_or("?", |b| b.name.as_str())
}

/// `a, b → c`: what a command reads and writes.
fn operands(program: &Program, command: &Command) -> String {
    let all = accesses(command);
    let side = |writes| {
        let names: Vec<String> = all
            .iter()
            .filter(|a| a.writes == writes)
            .map(|a| operand(program, a))
            .collect();
        names.join(", ")
    };
    format!("{} → {}", side(false), side(true))
        .trim_start()
        .to_string()
}

/// The parameters without strides, the layer, and zeros.
fn parameters(command: &Command) -> String {
    let all = command.op.show_params(&command.params).into_iter();
    let shown = all.filter(|(name, value)| {
        !name.ends_with("_stride") && *name != "layer" && value != "0" && value != "0.0"
    });
    let list: Vec<String> = shown
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    list.join(" ")
}

/// The format of the first weight; empty if the command has none.
fn format_name(program: &Program, command: &Command) -> &'static str {
    match program.weights.get(command.weights[0] as usize) {
        Some(_) => command.format.name(),
        None => "",
    }
}

/// The heading of a fold, if it is a layer or a run of layers.
fn fold_title(pass: &Pass, fold: &Fold) -> Option<String> {
    let first = pass.layer_of(fold.first)?;
    Some(match fold.times {
        1 => format!("layer {first}"),
        n => format!(
            "layers {first} to {} ({n} times)",
            u64::from(first) + n as u64 - 1
        ),
    })
}

/// `decode: up to 16 rows, 51 commands, 7.4 MiB and 0.01 GFLOP for one row`
fn pass_title(pass: &Pass) -> String {
    // A decode pass yields an output for every row.
    let outputs = match pass.kind {
        PassKind::Decode => String::new(),
        _ => format!("{}, ", count(pass.outputs.into(), "output")),
    };
    format!(
        "{}: up to {}, {outputs}{}, {} and {:.2} GFLOP for one row",
        pass.kind.name(),
        count(pass.rows.into(), "row"),
        count(pass.commands.len() as u64, "command"),
        human(pass.row_bytes()),
        pass.row_flops() as f64 / 1e9
    )
}

/// `context of 4096 positions, pages of 16, 1 slot`
fn context_title(program: &Program) -> String {
    format!(
        "context of {}, pages of {}, {}",
        count(program.context.into(), "position"),
        program.page,
        count(program.slots.into(), "slot")
    )
}

/// What a cache holds: `F16 keys and values, 8 layers, 2 heads of 32, window of 512`
fn cache_content(cache: &CacheSpec) -> String {
    match cache.kind {
        CacheKind::Attention {
            format,
            layers,
            kv_heads,
            head_dim,
            window,
        } => {
            let window = match window {
                0 => String::new(),
                window => format!(", window of {window}"),
            };
            format!(
                "{} keys and values, {}, {} of {head_dim}{window}",
                format.name(),
                count(layers.into(), "layer"),
                count(kv_heads.into(), "head"),
            )
        }
        CacheKind::Recurrent { layers, floats } => format!(
            "recurrent state, {}, {} each",
            count(layers.into(), "layer"),
            count(floats.into(), "float"),
        ),
    }
}

#[cfg(test)]
mod tests;
