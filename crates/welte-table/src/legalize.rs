//! Splits fused ops into fine ones where a backend lacks them.

use crate::{
    BufferId, BufferRef, BufferSpec, Class, Command, Format, NO_WEIGHT, Op, Pass, PassKind,
    Program, WeightId, cost, params as p,
};

/// Splits every command that `supports` refuses until only supported ones are left, adding the scratch buffers that
/// the pieces need. The error names the command that can be split no further. On an error the program is unchanged.
pub fn legalize(program: &mut Program, supports: &dyn Fn(&Command) -> bool) -> Result<(), String> {
    let mut out = program.clone();
    let shared = |pass: &&Pass| pass.kind != PassKind::Decode;
    let shared_rows = out.passes.iter().filter(shared).map(|pass| pass.rows).max();
    for i in 0..out.passes.len() {
        let old = &program.passes[i];
        let (set, class) = old.kind.scratch();
        let rows = match old.kind {
            PassKind::Decode => old.rows,
            _ => shared_rows.unwrap_or(1),
        };
        let mut scratch = Scratch {
            set,
            class,
            rows,
            buffers: &mut out.buffers,
        };
        let mut new = Pass {
            commands: Vec::new(),
            labels: Vec::new(),
            ..*old
        };
        for (c, label) in old.commands.iter().zip(&old.labels) {
            lower(*c, label, &mut new, &mut scratch, supports)?;
        }
        out.passes[i] = new;
    }
    cost::fill(&mut out);
    *program = out;
    Ok(())
}

fn lower(
    c: Command,
    label: &str,
    out: &mut Pass,
    scratch: &mut Scratch<'_>,
    supports: &dyn Fn(&Command) -> bool,
) -> Result<(), String> {
    if supports(&c) {
        out.commands.push(c);
        out.labels.push(label.to_string());
        return Ok(());
    }
    let pieces = split(&c, scratch);
    if pieces.is_empty() {
        return Err(format!(
            "{label}: this device has no {} for {}",
            c.op.name(),
            c.format.name()
        ));
    }
    // Every piece is finer than its whole, so this ends.
    for (piece, suffix) in pieces {
        lower(piece, &format!("{label}: {suffix}"), out, scratch, supports)?;
    }
    Ok(())
}

/// The scratch set of a pass. Buffers are added on demand.
struct Scratch<'a> {
    set: &'static str,
    class: Class,
    rows: u32,
    buffers: &'a mut Vec<BufferSpec>,
}

impl Scratch<'_> {
    /// The set's buffer of that name, with at least `width` floats per row.
    fn get(&mut self, name: &str, width: u32) -> BufferRef {
        let name = format!("{}.{name}", self.set);
        let bytes = u64::from(self.rows) * u64::from(width) * 4;
        let at = self
            .buffers
            .iter()
            .position(|b| b.name == name)
            .unwrap_or_else(|| {
                self.buffers.push(BufferSpec {
                    name,
                    class: self.class,
                    bytes,
                });
                self.buffers.len() - 1
            });
        self.buffers[at].bytes = self.buffers[at].bytes.max(bytes);
        BufferRef {
            buffer: at as BufferId,
            offset: 0,
        }
    }
}

fn make(
    like: &Command,
    op: Op,
    weights: &[WeightId],
    buffers: &[BufferRef],
    params: [u32; 16],
) -> Command {
    let mut c = Command {
        op,
        format: if op == Op::Matmul || op == Op::NormMatmul {
            like.format
        } else {
            Format::F32
        },
        weights: [NO_WEIGHT; 3],
        buffers: [BufferRef::NONE; 4],
        params,
        bytes: 0,
        flops: 0,
    };
    c.weights[..weights.len()].copy_from_slice(weights);
    c.buffers[..buffers.len()].copy_from_slice(buffers);
    c
}

fn split(c: &Command, scratch: &mut Scratch<'_>) -> Vec<(Command, &'static str)> {
    let [w0, w1, w2] = c.weights;
    let [b0, b1, ..] = c.buffers;
    match c.op {
        Op::NormMatmul => {
            let q = p::NormMatmul::of(&c.params);
            let t = scratch.get("norm", q.k);
            let norm = p::Norm {
                dim: q.k,
                groups: 1,
                eps: q.eps,
                x_stride: q.x_stride,
                y_stride: q.k,
            };
            let mul = p::Matmul {
                n: q.n,
                k: q.k,
                x_stride: q.k,
                y_stride: q.y_stride,
            };
            vec![
                (make(c, Op::Norm, &[w1], &[b0, t], norm.words()), "norm"),
                (make(c, Op::Matmul, &[w0], &[t, b1], mul.words()), "matmul"),
            ]
        }
        Op::MatmulAdd => {
            let q = p::MatmulAdd::of(&c.params);
            let t = scratch.get("sum", q.n);
            let mul = p::Matmul {
                n: q.n,
                k: q.k,
                x_stride: q.x_stride,
                y_stride: q.n,
            };
            let add = p::Add {
                n: q.n,
                x_stride: q.n,
                y_stride: q.y_stride,
            };
            vec![
                (make(c, Op::Matmul, &[w0], &[b0, t], mul.words()), "matmul"),
                (make(c, Op::Add, &[], &[t, b1], add.words()), "add"),
            ]
        }
        Op::NormMatmulActMul => {
            let q = p::NormMatmulActMul::of(&c.params);
            let Some(n2) = q.n.checked_mul(2) else {
                return Vec::new();
            };
            let t = scratch.get("gate_up", n2);
            let mul = p::NormMatmul {
                n: n2,
                k: q.k,
                eps: q.eps,
                x_stride: q.x_stride,
                y_stride: n2,
            };
            let act = p::ActMul {
                n: q.n,
                act: q.act,
                x_stride: n2,
                y_stride: q.y_stride,
            };
            vec![
                (
                    make(c, Op::NormMatmul, &[w0, w1], &[b0, t], mul.words()),
                    "gate and up",
                ),
                (
                    make(c, Op::ActMul, &[], &[t, b1], act.words()),
                    "activation",
                ),
            ]
        }
        Op::RopeAppend => split_rope_append(c, [w0, w1, w2], b0, b1),
        _ => Vec::new(),
    }
}

fn split_rope_append(
    c: &Command,
    [freqs, q_norm, k_norm]: [WeightId; 3],
    qkv: BufferRef,
    kv: BufferRef,
) -> Vec<(Command, &'static str)> {
    let q = p::RopeAppend::of(&c.params);
    let step = |heads: u32| {
        heads
            .checked_mul(q.head_dim)?
            .checked_mul(4)?
            .checked_add(qkv.offset)
    };
    let (Some(k_at), Some(v_at)) = (
        step(q.heads),
        q.heads.checked_add(q.kv_heads).and_then(step),
    ) else {
        return Vec::new();
    };
    let (k, v) = (
        BufferRef {
            offset: k_at,
            ..qkv
        },
        BufferRef {
            offset: v_at,
            ..qkv
        },
    );
    let norm = |groups| {
        p::Norm {
            dim: q.head_dim,
            groups,
            eps: q.eps,
            x_stride: q.qkv_stride,
            y_stride: q.qkv_stride,
        }
        .words()
    };
    let mut out = Vec::new();
    if q_norm != NO_WEIGHT {
        out.push((
            make(c, Op::Norm, &[q_norm], &[qkv, qkv], norm(q.heads)),
            "query norm",
        ));
    }
    if k_norm != NO_WEIGHT {
        out.push((
            make(c, Op::Norm, &[k_norm], &[k, k], norm(q.kv_heads)),
            "key norm",
        ));
    }
    // Queries and keys lie side by side, so one command turns both.
    let rope = p::Rope {
        heads: q.heads + q.kv_heads,
        head_dim: q.head_dim,
        rot: q.rot,
        interleaved: q.interleaved,
        magnitude: q.magnitude,
        y_stride: q.qkv_stride,
    };
    let append = p::KvAppend {
        layer: q.layer,
        kv_heads: q.kv_heads,
        head_dim: q.head_dim,
        k_stride: q.qkv_stride,
        v_stride: q.qkv_stride,
    };
    out.push((make(c, Op::Rope, &[freqs], &[qkv], rope.words()), "rope"));
    out.push((
        make(c, Op::KvAppend, &[], &[k, v, kv], append.words()),
        "append",
    ));
    out
}
