//! A program as JSON: everything, unfolded.

use super::{Header, buffer_name, format_name};
use serde_json::{Map, Value, json};
use welte_table::{
    Access, BufferSpec, CacheKind, CacheSpec, Class, Command, NO_WEIGHT, Part, Pass, Program,
    Source, WeightSpec, accesses,
};

/// The program and its header as one object, on one line.
pub fn json(program: &Program, header: &Header) -> String {
    format!("{}\n", value(program, header))
}

fn value(program: &Program, header: &Header) -> Value {
    let facts: Map<String, Value> = header
        .facts
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let mut memory: Map<String, Value> = Class::ALL
        .iter()
        .map(|class| (class.name().to_string(), header.plan.bytes(*class).into()))
        .collect();
    memory.insert("total".to_string(), header.plan.total().into());
    if let Some(available) = header.available {
        memory.insert("available".to_string(), available.into());
    }
    json!({
        "title": header.title,
        "facts": facts,
        "memory": memory,
        "vocab": program.vocab,
        "context": program.context,
        "page": program.page,
        "slots": program.slots,
        "caches": list(&program.caches, |cache| cache_value(program, cache)),
        "buffers": list(&program.buffers, buffer_value),
        "weights": list(&program.weights, weight_value),
        "passes": list(&program.passes, |pass| pass_value(program, pass)),
    })
}

fn list<T>(items: &[T], value: impl FnMut(&T) -> Value) -> Value {
    items.iter().map(value).collect()
}

fn cache_value(program: &Program, cache: &CacheSpec) -> Value {
    let mut value = match cache.kind {
        CacheKind::Attention {
            format,
            layers,
            kv_heads,
            head_dim,
            window,
        } => json!({
            "name": cache.name, "kind": "attention", "format": format.name(), "layers": layers, "kv_heads": kv_heads,
            "head_dim": head_dim, "window": window,
        }),
        CacheKind::Recurrent { layers, floats } => json!({
            "name": cache.name, "kind": "recurrent", "layers": layers, "floats": floats,
        }),
    };
    value["pages"] = cache.pages.into();
    value["entries_per_slot"] = cache.entries(program).into();
    value["bytes"] = cache.bytes(program.page).into();
    value
}

fn buffer_value(buffer: &BufferSpec) -> Value {
    json!({"name": buffer.name, "class": buffer.class.name(), "bytes": buffer.bytes})
}

fn weight_value(weight: &WeightSpec) -> Value {
    let part = |part: &Part| json!({"tensor": part.tensor, "first_row": part.first_row, "rows": part.rows});
    fn value(source: &Source, part: impl Fn(&Part) -> Value) -> Value {
        match source {
            Source::Parts(parts) => list(parts, part),
            Source::Transposed(parts) => json!({"transposed": list(parts, part)}),
            Source::Constant(_) => "constant".into(),
            Source::Chosen(chosen) => {
                let ranges = chosen.ranges.iter().map(|r| json!([r.start, r.end]));
                json!({"of": value(&chosen.of, part), "rows": ranges.collect::<Value>()})
            }
        }
    }
    let source = value(&weight.source, part);
    json!({
        "name": weight.name, "format": weight.format.name(), "n": weight.n, "k": weight.k,
        "usage": format!("{:?}", weight.usage).to_lowercase(), "source": source,
    })
}

fn pass_value(program: &Program, pass: &Pass) -> Value {
    let commands = pass.commands.iter().enumerate();
    let commands: Value = commands
        .map(|(i, command)| command_value(program, command, &pass.full_label(i)))
        .collect();
    json!({
        "pass": pass.kind.name(), "rows": pass.rows, "outputs": pass.outputs, "width": pass.width, "commands": commands,
    })
}

fn command_value(program: &Program, command: &Command, label: &str) -> Value {
    let weights = command.weights.iter().filter(|id| **id != NO_WEIGHT);
    let params: Map<String, Value> = command
        .op
        .show_params(&command.params)
        .into_iter()
        .map(|(name, value)| (name.to_string(), number_or_text(&value)))
        .collect();
    let operand = |access: &Access| {
        json!({
            "role": access.role, "buffer": buffer_name(program, access), "offset": access.at.offset,
            "writes": access.writes,
        })
    };
    json!({
        "label": label, "op": command.op.name(), "format": format_name(program, command),
        "weights": weights.collect::<Vec<_>>(), "buffers": list(&accesses(command), operand), "params": params,
        "bytes": command.bytes, "flops": command.flops,
    })
}

/// JSON has no infinities: they stay text.
fn number_or_text(value: &str) -> Value {
    match value.parse::<serde_json::Number>() {
        Ok(number) => number.into(),
        Err(_) => value.into(),
    }
}
