use super::*;
use welte_table::{
    BufferRef, BufferSpec, Class, Format, NO_WEIGHT, Op, Params, Source, Usage, WeightSpec,
    params as p,
};

const TOKENS: u32 = 0;
const X: u32 = 1;
const KV: u32 = 2;
const WINDOW: u32 = 3;
const STATE: u32 = 4;
const LOGITS: u32 = 5;

fn command(op: Op, params: Params, weight: u32, buffers: &[u32]) -> Command {
    let at = |buffer: &u32| BufferRef {
        buffer: *buffer,
        offset: 0,
    };
    let buffers: Vec<BufferRef> = buffers.iter().map(at).collect();
    Command {
        bytes: 2048,
        flops: 1_000_000,
        ..Command::new(op, Format::Q8_0, &[weight], &buffers, params)
    }
}

fn attention(layer: u32, cache: u32) -> Command {
    let params = p::Attention {
        layer,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        scale: 0.125,
        window: 0,
        softcap: 0.0,
        q_stride: 256,
        y_stride: 128,
        causal: 0,
        chunked: 0,
    };
    command(Op::Attention, params.words(), NO_WEIGHT, &[X, cache, X])
}

fn append(layer: u32, cache: u32) -> Command {
    let params = p::KvAppend {
        layer,
        kv_heads: 2,
        head_dim: 32,
        k_stride: 256,
        v_stride: 256,
    };
    command(Op::KvAppend, params.words(), NO_WEIGHT, &[X, X, cache])
}

fn conv() -> Command {
    let params = p::ShortConv {
        layer: 0,
        n: 128,
        taps: 3,
        act: 0,
        x_stride: 128,
        y_stride: 128,
    };
    command(Op::ShortConv, params.words(), 1, &[X, X, STATE])
}

fn head() -> Command {
    let params = p::Matmul {
        n: 1000,
        k: 128,
        x_stride: 128,
        y_stride: 1000,
    };
    command(Op::Matmul, params.words(), 0, &[X, LOGITS])
}

fn pass(
    kind: PassKind,
    rows: u32,
    outputs: u32,
    commands: Vec<(Option<u32>, &str, Command)>,
) -> Pass {
    Pass {
        kind,
        adapted: false,
        rows,
        outputs,
        width: 1000,
        result: BufferRef {
            buffer: LOGITS,
            offset: 0,
        },
        labels: commands.iter().map(|c| c.1.to_string()).collect(),
        commands: commands
            .into_iter()
            .map(|(layer, _, command)| Command { layer, ..command })
            .collect(),
    }
}

/// Two layers with full attention, one with a window, one recurrent; the prompt pass is the head alone.
fn program() -> Program {
    let buffer = |name: &str, class, bytes| BufferSpec {
        name: name.to_string(),
        class,
        bytes,
    };
    let weight = |name: &str| WeightSpec {
        name: name.to_string(),
        format: Format::Q8_0,
        n: 1000,
        k: 128,
        usage: Usage::Matrix,
        add: 0.0,
        source: Source::Constant(Vec::new()),
    };
    let attention_cache = |name: &str, buffer, layers, window| CacheSpec {
        name: name.to_string(),
        buffer,
        pages: 4,
        kind: CacheKind::Attention {
            format: Format::F16,
            layers,
            kv_heads: 2,
            head_dim: 32,
            window,
        },
    };
    let layers = vec![
        (Some(0), "append", append(0, KV)),
        (Some(0), "attention", attention(0, KV)),
        (Some(1), "append", append(1, KV)),
        (Some(1), "attention", attention(1, KV)),
        (Some(2), "append", append(0, WINDOW)),
        (Some(2), "attention", attention(0, WINDOW)),
        (Some(3), "convolution", conv()),
        (None, "head", head()),
    ];
    Program {
        weights: vec![weight("head"), weight("kernel")],
        buffers: vec![
            buffer("tokens", Class::Tables, 64),
            buffer("decode.x", Class::ScratchDecode, 8192),
            buffer("kv", Class::Cache, 32 << 10),
            buffer("kv window 16", Class::Cache, 16 << 10),
            buffer("conv", Class::Cache, 2048),
            buffer("logits", Class::ScratchDecode, 64_000),
        ],
        caches: vec![
            attention_cache("kv", KV, 2, 0),
            attention_cache("kv window 16", WINDOW, 1, 16),
            CacheSpec {
                name: "conv".to_string(),
                buffer: STATE,
                pages: 2,
                kind: CacheKind::Recurrent {
                    layers: 1,
                    floats: 256,
                },
            },
        ],
        vocab: 1000,
        context: 64,
        page: 16,
        slots: 1,
        tokens: TOKENS,
        features: welte_table::NO_BUFFER,
        adapters: None,
        block: None,
        passes: vec![
            pass(PassKind::Decode, 16, 16, layers),
            pass(PassKind::Prompt, 512, 1, vec![(None, "head", head())]),
        ],
    }
}

fn header() -> Header {
    Header {
        title: "a <model> \"quoted\"".to_string(),
        facts: vec![("layers\u{1}".to_string(), "4 <b>".to_string())],
        plan: MemoryPlan::of(&program(), &|_| 1024),
        available: Some(1 << 20),
    }
}

#[test]
fn only_layers_with_the_same_commands_and_caches_fold() {
    let folds = fold(&program().passes[0]);
    let shape: Vec<_> = folds.iter().map(|f| (f.first, f.len, f.times)).collect();
    assert_eq!(shape, [(0, 2, 2), (4, 2, 1), (6, 1, 1), (7, 1, 1)]);
    // Layers whose commands differ in more than the layer stay apart.
    let mut odd = program();
    odd.passes[0].commands[3].format = Format::Q6_K;
    assert!(fold(&odd.passes[0]).iter().all(|f| f.times == 1));
}

#[test]
fn text_names_rows_outputs_and_every_cache() {
    let text = text(&program(), &header());
    for line in [
        "decode: up to 16 rows, 8 commands, 16.0 KiB and 0.01 GFLOP for one row\n",
        "prompt: up to 512 rows, 1 output, 1 command, 2.0 KiB and 0.00 GFLOP for one row\n",
        "context of 64 positions, pages of 16, 1 slot\n",
        "  kv                  32.0 KiB  4 pages: F16 keys and values, 2 layers, 2 heads of 32\n",
        "  kv window 16        16.0 KiB  4 pages: F16 keys and values, 1 layer, 2 heads of 32, window of 16\n",
        "  conv                 2.0 KiB  2 pages: recurrent state, 1 layer, 256 floats each\n",
        "  layers 0 to 1 (2 times)\n",
        "        1  attention              attention                     2.0 KiB  decode.x, kv → decode.x  \
         [heads 4 kv_heads 2 head_dim 32 scale 0.125]\n",
        "  total              122.6 KiB  of 1.0 MiB\n",
    ] {
        assert!(text.contains(line), "{line:?} is missing in\n{text}");
    }
}

#[test]
fn json_holds_everything() {
    let value: serde_json::Value = serde_json::from_str(&json(&program(), &header())).unwrap();
    assert_eq!(value["title"], "a <model> \"quoted\"");
    assert_eq!(value["facts"]["layers\u{1}"], "4 <b>");
    assert_eq!(value["memory"]["available"], 1 << 20);
    assert_eq!(value["caches"][1]["window"], 16);
    assert_eq!(value["caches"][1]["bytes"], 16 << 10);
    assert_eq!(value["caches"][1]["entries_per_slot"], 4);
    assert_eq!(value["caches"][2]["kind"], "recurrent");
    assert_eq!(value["caches"][2]["floats"], 256);
    assert_eq!(value["passes"][1]["pass"], "prompt");
    assert_eq!(value["passes"][1]["outputs"], 1);
    let command = &value["passes"][0]["commands"][3];
    assert_eq!(command["label"], "layer 1 attention");
    assert_eq!(command["params"]["layer"], 1);
    assert_eq!(command["params"]["scale"], 0.125);
    assert_eq!(command["weights"], serde_json::json!([]));
    assert_eq!(command["buffers"][1]["buffer"], "kv");
    assert_eq!(command["buffers"][2]["writes"], true);
}

#[test]
fn numbers_that_json_lacks_stay_text() {
    let mut program = program();
    let mut params = p::Attention::of(&program.passes[0].commands[1].params);
    params.scale = f32::INFINITY;
    program.passes[0].commands[1].params = params.words();
    let value: serde_json::Value = serde_json::from_str(&json(&program, &header())).unwrap();
    assert_eq!(value["passes"][0]["commands"][1]["params"]["scale"], "inf");
}

#[test]
fn the_page_is_escaped_and_has_no_script() {
    let page = html(&program(), &header());
    assert!(page.contains("a &lt;model&gt;") && !page.contains("<model>"));
    assert!(page.contains("4 &lt;b&gt;") && !page.contains("<script"));
    assert!(page.contains("<summary>decode: up to 16 rows"));
    assert!(page.contains("<td>F16 keys and values, 1 layer, 2 heads of 32, window of 16"));
    assert_eq!(
        page.matches("<table").count(),
        page.matches("</table>").count()
    );
}

#[test]
fn the_graph_shows_caches_beside_commands() {
    let dot = dot(&program(), &header());
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    for line in [
        "  label=\"a <model> \\\"quoted\\\"\";\n",
        "  cache1 [shape=cylinder, label=\"kv window 16\\nF16 keys and values, 1 layer, 2 heads of 32, window of 16\"];\n",
        "    c1 [label=\"attention\\nattention \\n2.0 KiB\"];\n",
        "  c0 -> cache0;\n",
        "  cache0 -> c1;\n",
        "  cache1 -> c5;\n",
        "  c6 -> cache2 [dir=both];\n",
        "  c6 -> c7 [label=\"decode.x\"];\n",
    ] {
        assert!(dot.contains(line), "{line:?} is missing in\n{dot}");
    }
    // The second of the folded layers is not drawn.
    assert!(!dot.contains("c2 ") && !dot.contains("c3 "));
}
