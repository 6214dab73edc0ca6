//! The ops: declared once, here. Names, operands and parameters of every backend, profile and dump come from this file.

/// A value that fits one parameter word.
pub trait Word: Copy {
    /// The word that carries it.
    fn to_word(self) -> u32;
    /// The value that a word carries.
    fn from_word(word: u32) -> Self;
    /// As a person reads it.
    fn show(self) -> String;
}

impl Word for u32 {
    fn to_word(self) -> u32 {
        self
    }
    fn from_word(word: u32) -> Self {
        word
    }
    fn show(self) -> String {
        self.to_string()
    }
}

impl Word for f32 {
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    fn from_word(word: u32) -> Self {
        f32::from_bits(word)
    }
    fn show(self) -> String {
        format!("{self:?}")
    }
}

/// 64 bytes of parameters, as each op's own struct lays them out.
pub type Params = [u32; 16];

macro_rules! ops {
    ($( $(#[$doc:meta])* $op:ident $name:literal : weights [$($weight:literal),*] reads [$($read:literal),*] writes [$($write:literal),*]
        { $( $(#[$fdoc:meta])* $field:ident : $ty:ty ),* $(,)? } )*) => {
        /// What a command does.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op { $( $(#[$doc])* $op, )* }

        impl Op {
            /// Every op, in declaration order.
            pub const ALL: &'static [Op] = &[$(Op::$op),*];
            /// The one name of the op: in tables, CPU functions, CUDA kernels, profiles, documents.
            pub fn name(self) -> &'static str { match self { $(Op::$op => $name),* } }
            /// The op of that name.
            pub fn from_name(name: &str) -> Option<Op> { Op::ALL.iter().copied().find(|op| op.name() == name) }
            /// Roles of the command's weights, in order.
            pub fn weights(self) -> &'static [&'static str] { match self { $(Op::$op => &[$($weight),*]),* } }
            /// Roles of the buffers it reads; they are the first of the command's buffers.
            pub fn reads(self) -> &'static [&'static str] { match self { $(Op::$op => &[$($read),*]),* } }
            /// Roles of the buffers it writes; they follow those it reads.
            pub fn writes(self) -> &'static [&'static str] { match self { $(Op::$op => &[$($write),*]),* } }
            /// Names of its parameters, in the order of their words.
            pub fn params(self) -> &'static [&'static str] { match self { $(Op::$op => &[$(stringify!($field)),*]),* } }
            /// Parameter names with their values as a person reads them.
            pub fn show_params(self, words: &Params) -> Vec<(&'static str, String)> {
                match self { $(Op::$op => params::$op::show(words)),* }
            }
        }

        /// One parameter struct per op, named like the op.
        #[allow(missing_docs)] // The fields are explained where the op is declared.
        pub mod params {
            use super::{Params, Word};
            $(
                #[doc = concat!("Parameters of `", $name, "`.")]
                #[derive(Clone, Copy, Debug, PartialEq)]
                pub struct $op { $( $(#[$fdoc])* pub $field: $ty, )* }
                impl $op {
                    /// Into the command's parameter words.
                    #[allow(unused_mut, unused_assignments, unused_variables)]
                    pub fn words(self) -> Params {
                        let mut words = [0u32; 16];
                        let mut i = 0;
                        $( words[i] = self.$field.to_word(); i += 1; )*
                        words
                    }
                    /// Out of the command's parameter words.
                    #[allow(unused_mut, unused_assignments, unused_variables)]
                    pub fn of(words: &Params) -> Self {
                        let mut i = 0;
                        $( let $field = <$ty as Word>::from_word(words[i]); i += 1; )*
                        $op { $($field),* }
                    }
                    #[allow(unused_variables)]
                    pub(super) fn show(words: &Params) -> Vec<(&'static str, String)> {
                        let p = Self::of(words);
                        vec![$((stringify!($field), p.$field.show())),*]
                    }
                }
            )*
        }
    };
}

// Conventions. Every activation buffer holds rows of f32; `*_stride` is the distance of two rows in elements; a
// buffer reference's byte offset points into the first row. The number of rows comes from the step. A matrix has
// `n` output rows of `k` elements. Optional weights may be `NO_WEIGHT`. Act: 0 SiLU, 1 GELU (tanh), 2 GELU (erf);
// 3 is clamped: with gate at most 7 and up within 7 of 0, `gate * sigmoid(1.702 gate) * (up + 1)` in place of `act(gate) * up`.
// `act` has no gate: it takes 0 to 2, 4: `relu(y)^2`, and 5, xIELU: `a y^2 + c y` if y > 0, else `b (e^min(y, d) - 1 - y) + c y`; 6: tanh;
// 7 limits y to `a` to `b`.
ops! {
    /// `x[r] = scale * table[token[r]]`. A row that reads a feature gets it from the first `embed` of the pass, unscaled, and token
    /// 0 from others.
    Embed "embed": weights ["table"] reads ["tokens"] writes ["x"] { n: u32, k: u32, scale: f32, x_stride: u32 }
    /// RMS norm of `groups` vectors of `dim` per row: `y = x / sqrt(mean(x^2) + eps) * weight` (`y` may be `x`; `weight` is
    /// optional)
    Norm "norm": weights ["weight"] reads ["x"] writes ["y"] { dim: u32, groups: u32, eps: f32, x_stride: u32, y_stride: u32 }
    /// Layer norm of `groups` vectors of `dim` per row: `y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` (`y` may
    /// be `x`; `bias` is optional).
    LayerNorm "layer_norm": weights ["weight", "bias"] reads ["x"] writes ["y"] { dim: u32, groups: u32, eps: f32, x_stride: u32, y_stride: u32 }
    /// `y[r] = W x[r]`
    Matmul "matmul": weights ["matrix"] reads ["x"] writes ["y"] { n: u32, k: u32, x_stride: u32, y_stride: u32 }
    /// A matrix for each of `heads` heads. Head `h` of a row of `x` begins at `h * x_head` with `k` values, then `tail` values;
    /// head `h` of `y` begins at `h * y_head` with the tail, then `W_h` times the `k` values. `matrices` holds `n` rows of `k` for
    /// each head, one head below the other.
    HeadsMatmul "heads_matmul": weights ["matrices"] reads ["x"] writes ["y"] { heads: u32, n: u32, k: u32, tail: u32, x_head: u32, y_head: u32, x_stride: u32, y_stride: u32 }
    /// `y[r] += bias`
    Bias "bias": weights ["bias"] reads [] writes ["y"] { n: u32, y_stride: u32 }
    /// Rotates the first `rot` elements of each of `heads` heads in place by the row's position times the constant
    /// inverse frequencies (`freqs`, rot/2 values, already scaled). `interleaved` 1: pairs (2i, 2i+1); 0: (i, i + rot/2).
    /// `sections` ([`Sections`](crate::Sections)) says which of the row's axes takes the place of the position; 0: none does.
    Rope "rope": weights ["freqs"] reads [] writes ["y"] { heads: u32, head_dim: u32, rot: u32, interleaved: u32, magnitude: f32, y_stride: u32, sections: u32 }
    /// `y *= 1 + beta * ln(1 + floor((position + ahead) / original))`
    PositionScale "position_scale": weights [] reads [] writes ["y"] { n: u32, beta: f32, original: u32, y_stride: u32, ahead: u32 }
    /// Stores each row's keys and values at its slot and position.
    KvAppend "kv_append": weights [] reads ["k", "v"] writes ["kv"] { layer: u32, kv_heads: u32, head_dim: u32, k_stride: u32, v_stride: u32 }
    /// Causal attention of each row over its own sequence: positions 0..=reach, without those that are `window` or more before its
    /// own if `window` is not 0; with `chunked` 1, without those before the last multiple of `window` that is not after its own. `causal` 1: a row attends to nothing after itself, whatever its reach. `layer` counts within the cache. `sinks` (optional) adds one score per head to the softmax
    /// that has no value.
    Attention "attention": weights ["sinks"] reads ["q", "kv"] writes ["y"] { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, softcap: f32, q_stride: u32, y_stride: u32, causal: u32, chunked: u32 }
    /// Attention of each row over the first `positions` positions of its slot, whatever its own position: what an encoder made of
    /// speech, whose keys and values an `embed` pass stored. `layer` counts within the cache.
    CrossAttention "cross_attention": weights [] reads ["q", "kv"] writes ["y"] { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, positions: u32, q_stride: u32, y_stride: u32 }
    /// Chooses for each row the `used` best of the positions 0..=reach of its own sequence; all of them, if they are no more. A position's
    /// score is the sum over the heads of `gates[h] * max(q[h] . key, 0)`, with one key for all heads; on a tie the lower position is better. `y` gets
    /// the numbers (as bits) of the chosen positions in ascending order, then zeros up to `used`. The cache keeps the first half of a key as
    /// a head's key and the second half as its value. `layer` counts within the cache.
    ChoosePositions "choose_positions": weights [] reads ["q", "kv", "gates"] writes ["y"] { layer: u32, heads: u32, head_dim: u32, used: u32, q_stride: u32, gates_stride: u32, y_stride: u32 }
    /// Attention of each row over the positions that `choose_positions` wrote to `chosen`: the first `used` numbers, or positions 0..=reach if they are
    /// no more than `used`. `layer` counts within the cache.
    SparseAttention "sparse_attention": weights [] reads ["q", "kv", "chosen"] writes ["y"] { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, scale: f32, used: u32, q_stride: u32, chosen_stride: u32, y_stride: u32 }
    /// Attention without a cache: each row sees all rows of its run, or those at most `window` rows away if `window` is not
    /// 0. A run is neighbouring rows of one slot, and of one first axis if `by_axis` is 1. No row sees the last `unseen` rows of a run
    /// that has more of them. `by_reach` 1: a row sees none that follow its reach. `qkv` rows hold q (heads), k (kv_heads), v
    /// (kv_heads) one after the other.
    ///
    /// With `places` (P), the rows of a run are places of a rectangle by their axes 1 (line) and 2 (column); its first and its last row
    /// that are seen are its corners. After v, a row has for each head what its scores add by distance: 2P - 1 values for lines, then
    /// 2P - 1 for columns. A key of the same line gets the middle one, one of the line before it the next one. If the rectangle has
    /// other sides than P, the values are resized to them linearly. `absent` (optional; q, k and v of a row) stands for the rows that
    /// a rectangle whose rows go line by line lacks to the right and below to have P x P. A row's reach does not change the corners.
    ///
    /// `softcap` limits the scaled products of queries and keys to `softcap * tanh(product / softcap)`; 0: it does not.
    ///
    /// `slopes` (optional, one per head, not with `places`) takes `slope * |i - j|` from the score of row `i` and the key of row `j`
    /// (ALiBi, both ways).
    EncodeAttention "encode_attention": weights ["absent", "slopes"] reads ["qkv"] writes ["y"] { heads: u32, kv_heads: u32, head_dim: u32, scale: f32, window: u32, qkv_stride: u32, y_stride: u32, by_axis: u32, unseen: u32, by_reach: u32, places: u32, softcap: f32 }
    /// Convolution of each channel, without a cache: `y[r][c] = bias[c] + sum over j of kernel[c][j] * x[r - before + j][c]`, `bias` being
    /// optional. A run is neighbouring rows of one slot; rows beyond a row's run count as zeros.
    EncodeConv "encode_conv": weights ["kernel", "bias"] reads ["x"] writes ["y"] { n: u32, taps: u32, before: u32, x_stride: u32, y_stride: u32 }
    /// `x[r] += positions[offset + position % period] + types[position / period]`: tables of `k` values per entry, as vectors.
    /// `types` is optional.
    AddPosition "add_position": weights ["positions", "types"] reads [] writes ["x"] { k: u32, period: u32, offset: u32, x_stride: u32 }
    /// `x[r] += ` part `part` (from 1 on) of the feature that the row reads. A feature has parts of `n` values; part 0 takes the place of
    /// the embedding. Rows that read tokens stay as they are.
    AddFeature "add_feature": weights [] reads [] writes ["x"] { n: u32, part: u32, x_stride: u32 }
    /// `y = act(gate) * up`, gate being the first `n` of the row of `x` and up the next `n`
    ActMul "act_mul": weights [] reads ["x"] writes ["y"] { n: u32, act: u32, x_stride: u32, y_stride: u32 }
    /// `y = act(y)`; `a` to `d` are the constants of xIELU and of limits, otherwise 0.
    Act "act": weights [] reads [] writes ["y"] { n: u32, act: u32, a: f32, b: f32, c: f32, d: f32, y_stride: u32 }
    /// `y = x * weight` (`y` may be `x`; without a weight it is a copy).
    Multiply "multiply": weights ["weight"] reads ["x"] writes ["y"] { n: u32, x_stride: u32, y_stride: u32 }
    /// `y = max(y - (mean(y) + deviations * standard deviation(y)), 0)`: keeps what stands out.
    Cutoff "cutoff": weights [] reads [] writes ["y"] { n: u32, deviations: f32, y_stride: u32 }
    /// Gives each of `groups` vectors of `dim` in a row of `y` the mean square of the row's `x`:
    /// `y *= sqrt(mean(x^2) / max(mean(y^2), 1e-5))`.
    MatchSquares "match_squares": weights [] reads ["x"] writes ["y"] { dim: u32, groups: u32, x_stride: u32, y_stride: u32 }
    /// AltUp's prediction. A row of `y` holds `streams` vectors of `dim`, a row of `x` a value for each of them:
    /// `y[i] += sum over j of c[i][j] * y[j]`, with `c = coefficients * tanh(scale * x)`.
    AltUpPredict "altup_predict": weights ["coefficients"] reads ["x"] writes ["y"] { dim: u32, streams: u32, scale: f32, x_stride: u32, y_stride: u32 }
    /// AltUp's correction by the row `now`: `y[i] += (1 + c[i]) * (now - y[0])`, with `c = coefficients * tanh(scale * x)`.
    AltUpCorrect "altup_correct": weights ["coefficients"] reads ["now", "x"] writes ["y"] { dim: u32, streams: u32, scale: f32, now_stride: u32, x_stride: u32, y_stride: u32 }
    /// `y[i] = x[map[i]]` for `n` values of `k`; where the map is negative, the lowest float.
    Spread "spread": weights ["map"] reads ["x"] writes ["y"] { n: u32, k: u32, x_stride: u32, y_stride: u32 }
    /// `y += x`
    Add "add": weights [] reads ["x"] writes ["y"] { n: u32, x_stride: u32, y_stride: u32 }
    /// `y *= scale`, then `y = cap * tanh(y / cap)` if cap is not 0. A scale of 0 gives 0 whatever `y` was.
    Scale "scale": weights [] reads [] writes ["y"] { n: u32, scale: f32, cap: f32, y_stride: u32 }
    /// Copies the rows that the step chose as outputs, in their order, to the first rows of `y`. Later commands run on
    /// these output rows.
    SelectRows "select_rows": weights [] reads ["x"] writes ["y"] { n: u32, x_stride: u32, y_stride: u32 }
    /// Output `i` of `y` pools the rows of the step that share the slot of the i-th chosen row, up to that row. `kind` 0: the
    /// last, 1: the mean, 2: the first, 5: the largest of each value. `normalise` 1: divided by its Euclidean length (at least 1e-12). Later commands run on output rows.
    /// With `group`, the rows are the `group` neighbours that end with the chosen row, of whatever slot (row 0 stands for those
    /// before it), and there are two more kinds of `group * n` values: 3: the rows one after the other, 4: the first values of all
    /// rows, then the second ones, and so on. Kind 5 has no groups.
    Pool "pool": weights [] reads ["x"] writes ["y"] { n: u32, kind: u32, normalise: u32, x_stride: u32, y_stride: u32, group: u32 }
    /// Causal convolution of each channel over its own sequence: `y[r][c] = act(bias[c] + sum over j of kernel[c][j] *
    /// x[position - (taps - 1) + j][c])`. `state` holds the last `taps - 1` inputs of a sequence, oldest first, as rows of `n`.
    /// Inputs before position 0 are zero. `act` 0: none, 1: SiLU. `layer` counts within the cache.
    ShortConv "short_conv": weights ["kernel", "bias"] reads ["x"] writes ["y", "state"] { layer: u32, n: u32, taps: u32, act: u32, x_stride: u32, y_stride: u32 }
    /// `y[i] *= act(x[i / (n / gates)])`: each of `gates` values scales `n / gates` neighbours. Act as above, and 4 sigmoid, 5 none,
    /// 6 softplus; not 3.
    Gate "gate": weights [] reads ["x"] writes ["y"] { n: u32, gates: u32, act: u32, x_stride: u32, y_stride: u32 }
    /// Gated delta rule of `heads` value heads over their own sequence. A row of `x` holds queries and keys of `key_heads` heads,
    /// then values; a row of `gates` holds b, then a, of every value head. Queries and keys are divided by
    /// `sqrt(sum of squares + eps)`, queries also by `sqrt(key_dim)`. The state S of a head is a matrix of `key_dim` rows of
    /// `value_dim`. Each position does `S *= exp(decay * softplus(a + dt_bias))`, then `S += k (sigmoid(b) * (v - k S))`, and
    /// yields `y = q S`. S is zero before position 0. Value head `h` has key head `h % key_heads` if `tiled`, otherwise
    /// `h / (heads / key_heads)`. `layer` counts within the cache. `by_channel` 1: every value head has an a and a bias for each
    /// of the `key_dim` rows of S, which decay apart from each other.
    GatedDelta "gated_delta": weights ["decay", "dt_bias"] reads ["x", "gates"] writes ["y", "state"] { layer: u32, key_heads: u32, heads: u32, key_dim: u32, value_dim: u32, tiled: u32, eps: f32, x_stride: u32, gates_stride: u32, y_stride: u32, by_channel: u32 }
    /// State space model (Mamba-2) of `heads` heads over their own sequence. A row of `x` holds the inputs of all heads, `value_dim`
    /// each, then keys and queries (B and C) of `groups` groups, `key_dim` each; a row of `dt` holds a value of every head. The
    /// state S of a head is a matrix of `key_dim` rows of `value_dim`. Each position computes `t = softplus(dt + dt_bias)`, does
    /// `S = exp(decay * t) S + k (t * x)`, and yields `y = q S + skip * x`. S is zero before position 0. Neighbouring heads
    /// share a group. `layer` counts within the cache. `by_channel` 1 (Mamba-1): every column of S has a dt, a bias and a skip of its
    /// own, and every element of S a decay.
    Mamba2 "mamba2": weights ["decay", "dt_bias", "skip"] reads ["x", "dt"] writes ["y", "state"] { layer: u32, groups: u32, heads: u32, key_dim: u32, value_dim: u32, x_stride: u32, dt_stride: u32, y_stride: u32, by_channel: u32 }
    /// Replaces each row's token by its next one, chosen by the sampling state of the row's slot (temperature 0: argmax, the
    /// lowest index on a tie). The last command of a decode pass.
    Sample "sample": weights [] reads ["logits"] writes ["tokens"] { n: u32, logits_stride: u32 }
    /// Chooses the `used` best of `experts` by their scores: `scoring` 0: softmax of the logits `x` over all experts, 1: their
    /// sigmoid, 2: softmax over the experts not yet chosen whose logit is within `margin * max(|x|, m)` of the best one's, `m`
    /// (SparseMixer; without bias, groups and `renormalise`). `bias` (optional) is added to the scores for the choice only. With `groups` above 1, only experts of the
    /// `used_groups` best groups can be chosen. A group's score is the sum of its `group_top` (1 or 2) best. `y` gets the
    /// experts' numbers (as bits), best first, the lowest number on a tie; then their weights: the scores, divided by the sum of
    /// the chosen ones if `renormalise`, times `scale`, times the expert's value in `scales` (optional).
    Route "route": weights ["bias", "scales"] reads ["x"] writes ["y"] { experts: u32, used: u32, renormalise: u32, scale: f32, x_stride: u32, y_stride: u32, scoring: u32, groups: u32, used_groups: u32, group_top: u32, margin: f32 }
    /// `y[r][i] = act(gate x[r]) * up x[r]` for the `used` experts that `choice` names; the matrix holds for each expert
    /// `n` rows of gate, then `n` of up, and `bias` (optional) as many values, which are added before `act`. Activation 4 has
    /// no gate: `y[r][i] = relu(up x[r])^2`, and the matrix holds `n` rows for each expert.
    ExpertsActMul "experts_act_mul": weights ["matrix", "bias"] reads ["x", "choice"] writes ["y"] { n: u32, k: u32, experts: u32, used: u32, act: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }
    /// `y[r] += sum over i of weight_i * (W_i x[r][i] + bias_i)` for the `used` experts that `choice` names; the matrix
    /// holds `n` rows for each expert, `bias` (optional) as many values.
    ExpertsAdd "experts_add": weights ["matrix", "bias"] reads ["x", "choice"] writes ["y"] { n: u32, k: u32, experts: u32, used: u32, x_stride: u32, choice_stride: u32, y_stride: u32 }
    /// First half of the low-rank part of a product: `h[r] = scale * A x[r]`, with the A of each of `parts` parts from the place
    /// of `bank` ([`Bank`](crate::Bank)) that belongs to the adapter of the row's slot. 0 if it has none, or it leaves the part as it is.
    AdaptDown "adapt_down": weights [] reads ["x", "bank"] writes ["h"] { n: u32, k: u32, parts: u32, rank: u32, x_stride: u32, h_stride: u32 }
    /// The same for a look-up: `h[r] = scale * A[token[r]]`; 0 of a row that reads a feature.
    AdaptLookup "adapt_lookup": weights [] reads ["tokens", "bank"] writes ["h"] { n: u32, k: u32, rank: u32, scale: f32, h_stride: u32 }
    /// Second half: `y[r] += B h[r]`. Row `i` of the matrix takes the `rank` values of part `parts[i]`; of part 0 without the weight.
    /// Rows whose slot has no adapter stay as they are, and so do those of parts that it leaves as they are.
    AdaptUp "adapt_up": weights ["parts"] reads ["h", "bank"] writes ["y"] { n: u32, k: u32, parts: u32, rank: u32, h_stride: u32, y_stride: u32 }
    /// As `adapt_down` for each of the `used` experts that `choice` names, one after the other. `own` 1: each has `k` values of
    /// its own in `x`; 0: all have the same.
    AdaptExpertsDown "adapt_experts_down": weights [] reads ["x", "choice", "bank"] writes ["h"] { n: u32, k: u32, parts: u32, rank: u32, experts: u32, used: u32, own: u32, x_stride: u32, choice_stride: u32, h_stride: u32 }
    /// As `adapt_up` for each expert. `sum` 1: `y[r] += sum over i of weight_i * B_i h[r][i]`; 0: expert `i` has its own `n` values
    /// in `y`.
    AdaptExpertsUp "adapt_experts_up": weights ["parts"] reads ["h", "choice", "bank"] writes ["y"] { n: u32, k: u32, parts: u32, rank: u32, experts: u32, used: u32, sum: u32, h_stride: u32, choice_stride: u32, y_stride: u32 }
    /// Ranks give each other their parts of a row: each of `vectors` vectors is dealt to `ranks` ranks as
    /// [`Deal`](crate::Deal) says (`groups`, `per`, `unit`). `part` holds the part of rank `rank` of each vector, one after the
    /// other; `y` gets the whole vectors, one after the other. A single vector's `part` may lie at its own place in `y`.
    Exchange "exchange": weights [] reads ["part"] writes ["y"] { rank: u32, ranks: u32, groups: u32, per: u32, unit: u32, vectors: u32, part_stride: u32, y_stride: u32 }
    /// Fused: `norm` (one group of k) into a private buffer, then `matmul`.
    NormMatmul "norm_matmul": weights ["matrix", "weight"] reads ["x"] writes ["y"] { n: u32, k: u32, eps: f32, x_stride: u32, y_stride: u32 }
    /// Fused: `y[r] += W x[r]`
    MatmulAdd "matmul_add": weights ["matrix"] reads ["x"] writes ["y"] { n: u32, k: u32, x_stride: u32, y_stride: u32 }
    /// Fused: `norm`, `matmul` with 2n rows (gate then up), `act_mul`: `y` gets n values.
    NormMatmulActMul "norm_matmul_act_mul": weights ["matrix", "weight"] reads ["x"] writes ["y"] { n: u32, k: u32, eps: f32, act: u32, x_stride: u32, y_stride: u32 }
    /// Fused: q and k norms per head (where weights are given), rope of q and k in place, append of k and v.
    /// `qkv` rows hold q (heads), k (kv_heads), v (kv_heads) one after the other.
    RopeAppend "rope_append": weights ["freqs", "q_norm", "k_norm"] reads [] writes ["qkv", "kv"] { layer: u32, heads: u32, kv_heads: u32, head_dim: u32, rot: u32, interleaved: u32, magnitude: f32, eps: f32, qkv_stride: u32, sections: u32 }
}

impl params::ExpertsActMul {
    /// Matrices of an expert: gate and up, or up alone.
    pub fn matrices(&self) -> u32 {
        if matches!(self.act, 4 | 6) { 1 } else { 2 }
    }

    /// Values that an expert yields.
    pub fn width(&self) -> u32 {
        if self.act == 5 {
            self.n.saturating_mul(2)
        } else {
            self.n
        }
    }
}

impl params::SparseAttention {
    /// Attention that sees all positions.
    pub fn dense(&self) -> params::Attention {
        params::Attention {
            layer: self.layer,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: self.scale,
            window: 0,
            softcap: 0.0,
            q_stride: self.q_stride,
            y_stride: self.y_stride,
            causal: 0,
            chunked: 0,
        }
    }
}

impl params::GatedDelta {
    /// Decays of a head at each position.
    pub fn decays(&self) -> u32 {
        if self.by_channel == 0 {
            1
        } else {
            self.key_dim
        }
    }
}

impl params::Mamba2 {
    /// Time steps of a head at each position.
    pub fn times(&self) -> u32 {
        if self.by_channel == 0 {
            1
        } else {
            self.value_dim
        }
    }
}

impl params::EncodeAttention {
    /// What the scores of a head's query add by distance: values of a row.
    pub fn of_places(&self) -> u32 {
        let distances = self.places.saturating_mul(2).saturating_sub(1);
        distances.saturating_mul(2)
    }
}

impl params::Pool {
    /// Values of an output row.
    pub fn width(&self) -> u64 {
        let rows = match self.kind {
            3 | 4 => self.group,
            _ => 1,
        };
        u64::from(self.n) * u64::from(rows)
    }
}

impl Op {
    /// True if the op is half of the low-rank part of a product.
    pub fn is_low_rank(self) -> bool {
        matches!(
            self,
            Op::AdaptDown
                | Op::AdaptLookup
                | Op::AdaptUp
                | Op::AdaptExpertsDown
                | Op::AdaptExpertsUp
        )
    }

    /// Which of the command's buffers is a cache, if one is.
    pub fn cache_operand(self) -> Option<usize> {
        let roles = self.reads().iter().chain(self.writes());
        roles
            .into_iter()
            .position(|role| matches!(*role, "kv" | "state"))
    }

    /// True if the op replaces all that it writes. Others may need what was there before.
    pub fn replaces(self) -> bool {
        matches!(
            self,
            Op::Embed
                | Op::Norm
                | Op::LayerNorm
                | Op::Matmul
                | Op::Attention
                | Op::CrossAttention
                | Op::ChoosePositions
                | Op::SparseAttention
                | Op::EncodeAttention
                | Op::EncodeConv
                | Op::ActMul
                | Op::Multiply
                | Op::Route
                | Op::Exchange
                | Op::ExpertsActMul
                | Op::AdaptDown
                | Op::AdaptLookup
                | Op::AdaptExpertsDown
                | Op::NormMatmul
                | Op::NormMatmulActMul
        )
    }

    /// True if the op uses the row's token, position or slot. Output rows have none of them.
    pub fn needs_position(self) -> bool {
        matches!(
            self,
            Op::Embed
                | Op::Rope
                | Op::RopeAppend
                | Op::PositionScale
                | Op::KvAppend
                | Op::Attention
                | Op::CrossAttention
                | Op::ChoosePositions
                | Op::SparseAttention
                | Op::EncodeAttention
                | Op::EncodeConv
                | Op::AddPosition
                | Op::AddFeature
                | Op::AdaptLookup
                | Op::ShortConv
                | Op::GatedDelta
                | Op::Mamba2
                | Op::SelectRows
                | Op::Pool
        )
    }
}
