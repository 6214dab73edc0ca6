//! A model that gives one answer, whatever it is asked. It tests how answers of a known text are handed on.
//!
//! Every piece of the answer is a token of its own, and the weights make each token choose its successor: the layer adds
//! nothing, so the state is the embedding of the last token.

use super::load_options;
use std::collections::HashSet;
use welte::Model;

/// Writes tools and calls as Hermes and Qwen do. The last token of a prompt is that before the answer's first.
pub(crate) const TEMPLATE: &str = r#"{%- if tools %}Call one by <tool_call>{"name": NAME, "arguments": {}}</tool_call>
{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|turn|>{% endif %}"#;

/// Control tokens.
const IMAGE: usize = 256;
const END: usize = 257;
const TURN: usize = 258;

pub(crate) fn scripted(answer: &str) -> Model {
    scripted_with(answer, 0)
}

/// The same with room for features of images, whose place in the prompt is `<|image|>`.
pub(crate) fn scripted_with(answer: &str, features: u32) -> Model {
    scripted_after(answer, features, "")
}

/// The same, and the answer also follows prompts that end in one of these bytes.
pub(crate) fn scripted_after(answer: &str, features: u32, ends: &str) -> Model {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    std::fs::write(file.path(), gguf(answer, ends)).unwrap();
    let path = file.path().to_str().unwrap();
    let mut options = load_options(2048);
    options.features = features;
    Model::load(path, &options, &mut |_| ()).unwrap()
}

/// The printable character that stands for a byte in the vocabulary.
fn letter(byte: u8) -> char {
    let is_printable = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if is_printable(&byte) {
        char::from(byte)
    } else {
        let before = (0..byte).filter(|b| !is_printable(b)).count() as u32;
        char::from_u32(256 + before).unwrap()
    }
}

/// Cuts an answer into pieces of which no two are equal.
fn pieces(answer: &str) -> Vec<String> {
    let letters: Vec<char> = answer.bytes().map(letter).collect();
    let (mut all, mut seen) = (Vec::<String>::new(), HashSet::new());
    let mut piece = String::new();
    for letter in letters {
        piece.push(letter);
        if piece.chars().count() > 4 && seen.insert(piece.clone()) {
            all.push(std::mem::take(&mut piece));
        }
    }
    all.last_mut().unwrap().push_str(&piece);
    all
}

fn gguf(answer: &str, ends: &str) -> Vec<u8> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).collect();
    tokens.extend(["<|image|>", "<|end|>", "<|turn|>"].map(String::from));
    tokens.extend(pieces(answer));
    let vocab = tokens.len();
    // Each token of the answer and the next one.
    let mut follows: Vec<(usize, usize)> = (TURN..vocab).map(|at| (at, at + 1)).collect();
    follows.last_mut().unwrap().1 = END;
    follows.extend(ends.bytes().map(|end| (end.into(), TURN + 1)));
    let width = follows.len().next_multiple_of(32);
    let mut embedding = vec![0.0f32; vocab * width];
    let mut output = embedding.clone();
    for (place, (token, next)) in follows.into_iter().enumerate() {
        embedding[token * width + place] = 1.0;
        output[next * width + place] = 20.0;
    }
    let mut tensors = vec![
        (
            "token_embd.weight".to_string(),
            vec![width, vocab],
            embedding,
        ),
        ("output.weight".to_string(), vec![width, vocab], output),
        (
            "output_norm.weight".to_string(),
            vec![width],
            vec![1.0; width],
        ),
    ];
    for (name, shape) in [
        ("attn_q", [width, 32]),
        ("attn_k", [width, 32]),
        ("attn_v", [width, 32]),
        ("attn_output", [32, width]),
        ("ffn_gate", [width, 32]),
        ("ffn_up", [width, 32]),
        ("ffn_down", [32, width]),
    ] {
        let nothing = vec![0.0; shape[0] * shape[1]];
        tensors.push((format!("blk.0.{name}.weight"), shape.to_vec(), nothing));
    }
    for (name, size) in [
        ("attn_norm", width),
        ("ffn_norm", width),
        ("attn_q_norm", 32),
        ("attn_k_norm", 32),
    ] {
        tensors.push((format!("blk.0.{name}.weight"), vec![size], vec![1.0; size]));
    }
    let mut meta = Metadata::default();
    meta.text("general.architecture", "qwen3");
    for (name, value) in [
        ("context_length", 2048),
        ("embedding_length", width),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 1),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("vocab_size", vocab),
    ] {
        meta.number(&format!("qwen3.{name}"), value as u32);
    }
    meta.float("qwen3.rope.freq_base", 10000.0);
    meta.float("qwen3.attention.layer_norm_rms_epsilon", 1e-6);
    meta.text("tokenizer.ggml.model", "gpt2");
    meta.text("tokenizer.ggml.pre", "qwen2");
    meta.texts("tokenizer.ggml.tokens", &tokens);
    let kind = |at: usize| if (IMAGE..=TURN).contains(&at) { 3 } else { 1 };
    let kinds: Vec<i32> = (0..vocab).map(kind).collect();
    meta.integers("tokenizer.ggml.token_type", &kinds);
    meta.texts("tokenizer.ggml.merges", &[]);
    meta.number("tokenizer.ggml.eos_token_id", END as u32);
    meta.text("tokenizer.chat_template", TEMPLATE);
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((meta.count as u64).to_le_bytes());
    file.extend(meta.bytes);
    let mut offset = 0;
    for (name, shape, data) in &tensors {
        put_text(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        for size in shape {
            file.extend((*size as u64).to_le_bytes());
        }
        file.extend(0u32.to_le_bytes());
        file.extend((offset as u64).to_le_bytes());
        offset += (4 * data.len()).next_multiple_of(32);
    }
    for (_, _, data) in &tensors {
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data.iter().flat_map(|value| value.to_le_bytes()));
    }
    file
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The pairs of a file's head.
#[derive(Default)]
struct Metadata {
    bytes: Vec<u8>,
    count: usize,
}

impl Metadata {
    /// Begins a pair with a value of this kind.
    fn pair(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.count += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        &mut self.bytes
    }

    fn number(&mut self, key: &str, value: u32) {
        self.pair(key, 4).extend(value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.pair(key, 6).extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        put_text(self.pair(key, 8), value);
    }

    fn list(&mut self, key: &str, kind: u32, count: usize) -> &mut Vec<u8> {
        let bytes = self.pair(key, 9);
        bytes.extend(kind.to_le_bytes());
        bytes.extend((count as u64).to_le_bytes());
        bytes
    }

    fn integers(&mut self, key: &str, values: &[i32]) {
        let bytes = self.list(key, 5, values.len());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        let bytes = self.list(key, 8, values.len());
        values.iter().for_each(|value| put_text(bytes, value));
    }
}
