//! Small models: any mix of layers, in shapes as ugly as the contract allows.
#![allow(missing_docs)] // Fields and methods are named after what they fill in.

use super::made::Numbers;
use welte_table::Format;

/// A model to make a program of.
#[derive(Clone, Debug)]
pub struct Model {
    pub seed: u64,
    /// Of all matrices whose rows are whole blocks; the others are F32.
    pub format: Format,
    pub kv_format: Format,
    pub dim: u32,
    pub layers: Vec<Layer>,
    pub vocab: u32,
    pub tied: bool,
    pub page: u32,
    pub context: u32,
    pub slots: u32,
    /// Pages of each attention cache; `None`: all that the slots need, and two.
    pub pages: Option<u32>,
    pub decode_rows: u32,
    pub prompt_rows: u32,
    pub prompt_outputs: u32,
    /// 0: no embed pass.
    pub embed_rows: u32,
    /// `kind` and `normalise` of the embed pass.
    pub pool: (u32, u32),
}

/// What is added to the stream of hidden states.
#[derive(Clone, Copy, Debug)]
pub enum Layer {
    Attention(Attention),
    /// Attention of whole texts without a cache, and learned positions of two segments.
    Encode(Attention),
    Dense(Dense),
    Ungated(Ungated),
    Heads(Heads),
    Conv(Conv),
    /// A convolution without a cache.
    EncodeConv(EncodeConv),
    Delta(Delta),
    Streams(Streams),
    Experts(Experts),
}

#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub rot: u32,
    pub interleaved: u32,
    pub window: u32,
    /// A window begins at a multiple of its size.
    pub chunked: bool,
    /// The cache keeps no more than the window.
    pub window_cache: bool,
    pub softcap: f32,
    pub sinks: bool,
    pub bias: bool,
    pub qk_norm: bool,
    /// Queries grow with the position.
    pub position_scale: bool,
    /// In encoders: the side of the table of places.
    pub places: u32,
    /// In encoders with places: rows stand for those that a rectangle lacks.
    pub absent: bool,
    /// In encoders without places: scores fall with the distance.
    pub slopes: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Dense {
    pub hidden: u32,
    pub act: u32,
}

/// A layer norm, a matrix, an activation without a gate, and a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Ungated {
    pub hidden: u32,
    pub act: u32,
    pub bias: bool,
}

/// A projection, a matrix for each head, and a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: u32,
    pub n: u32,
    pub k: u32,
    pub tail: u32,
}

/// A projection to several streams, which predict each other and are corrected by a sparse vector.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    pub streams: u32,
    pub deviations: f32,
    /// The vector is multiplied by a weight.
    pub weighted: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub channels: u32,
    pub taps: u32,
    pub act: u32,
    pub bias: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct EncodeConv {
    pub channels: u32,
    pub taps: u32,
    pub before: u32,
    pub bias: bool,
}

/// The gated delta rule, gated after a norm of each head.
#[derive(Clone, Copy, Debug)]
pub struct Delta {
    pub key_heads: u32,
    pub heads: u32,
    pub key_dim: u32,
    pub value_dim: u32,
    pub tiled: u32,
    /// Activation of the gate, and values that share one.
    pub act: u32,
    pub shared: u32,
    /// The state space model of Mamba-2 in place of the delta rule.
    pub mamba: bool,
    /// The rows of a state decay apart from each other; the columns of a state space model have time steps of their own, and its
    /// elements decays.
    pub by_channel: bool,
}

/// The experts' logits are looked up by token, so that every device has the same bits and makes the same choice.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub hidden: u32,
    pub experts: u32,
    pub used: u32,
    pub renormalise: u32,
    pub act: u32,
    pub bias: bool,
    /// Shares are multiplied by a value per expert, and the norm has no weight.
    pub scales: bool,
    /// 0: softmax, 1: sigmoid, 2: SparseMixer, which has no bias, no groups and no `renormalise`.
    pub scoring: u32,
    /// A bias of the choice.
    pub choice_bias: bool,
    /// Groups, used groups, and the experts that rate a group.
    pub groups: (u32, u32, u32),
}

pub const ATTENTION: Attention = Attention {
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    rot: 32,
    interleaved: 0,
    window: 0,
    chunked: false,
    window_cache: false,
    softcap: 0.0,
    sinks: false,
    bias: false,
    qk_norm: true,
    position_scale: false,
    places: 0,
    absent: false,
    slopes: false,
};

pub const DENSE: Dense = Dense { hidden: 96, act: 0 };

pub const CONV: Conv = Conv {
    channels: 48,
    taps: 4,
    act: 1,
    bias: true,
};

pub const DELTA: Delta = Delta {
    key_heads: 2,
    heads: 4,
    key_dim: 32,
    value_dim: 24,
    tiled: 0,
    act: 0,
    shared: 1,
    mamba: false,
    by_channel: false,
};

pub const EXPERTS: Experts = Experts {
    hidden: 48,
    experts: 6,
    used: 2,
    renormalise: 1,
    act: 0,
    bias: false,
    scales: false,
    scoring: 0,
    choice_bias: false,
    groups: (1, 1, 1),
};

impl Model {
    /// An architecture that no checkpoint has, of ops that devices know: windows and sinks beside a soft cap, and in every
    /// second layer a dense part after the experts. Devices have no line about it.
    pub fn made_up() -> Model {
        let attention = Attention {
            head_dim: 64,
            rot: 48,
            ..ATTENTION
        };
        let windowed = Attention {
            window: 9,
            sinks: true,
            bias: true,
            qk_norm: false,
            ..attention
        };
        let capped = Attention {
            softcap: 20.0,
            kv_heads: 1,
            ..attention
        };
        let dense = Dense {
            hidden: 256,
            act: 1,
        };
        Model {
            dim: 256,
            layers: vec![
                Layer::Experts(EXPERTS),
                Layer::Attention(windowed),
                Layer::Dense(dense),
                Layer::Attention(capped),
                Layer::Experts(EXPERTS),
                Layer::Dense(dense),
            ],
            ..Model::small(42)
        }
    }

    /// Two plain transformer layers in F32.
    pub fn small(seed: u64) -> Model {
        let layer = [Layer::Attention(ATTENTION), Layer::Dense(DENSE)];
        Model {
            seed,
            format: Format::F32,
            kv_format: Format::F16,
            dim: 64,
            layers: [layer, layer].concat(),
            vocab: 101,
            tied: true,
            page: 16,
            context: 640,
            slots: 3,
            pages: None,
            decode_rows: 8,
            prompt_rows: 40,
            prompt_outputs: 3,
            embed_rows: 0,
            pool: (0, 1),
        }
    }

    /// One attention layer and one feed-forward layer.
    pub fn of_attention(attention: Attention, seed: u64) -> Model {
        Model {
            layers: vec![Layer::Attention(attention), Layer::Dense(DENSE)],
            ..Model::small(seed)
        }
    }

    /// Any model that a program may hold.
    pub fn ugly(seed: u64) -> Model {
        let n = &mut Numbers(seed);
        let kv_format = n.pick(&[Format::F16, Format::Q8_0]);
        let layers = (0..n.pick(&[1, 2, 4]))
            .map(|i| match (i, n.below(8)) {
                (0, _) | (_, 0..=2) => Layer::Attention(Attention::ugly(n, kv_format)),
                (_, 3) => Layer::Conv(Conv {
                    channels: n.pick(&[1, 19, 48]),
                    taps: n.pick(&[2, 3, 5]),
                    act: n.pick(&[0, 1]),
                    bias: n.pick(&[false, true]),
                }),
                (_, 6) => Layer::Heads(Heads {
                    heads: n.pick(&[1, 3, 8]),
                    n: n.pick(&[1, 37, 130]),
                    k: n.pick(&[1, 20, 33, 64]),
                    tail: n.pick(&[0, 0, 6]),
                }),
                (_, 4) => Layer::Experts(Experts::ugly(n)),
                (_, 5) => Layer::Ungated(Ungated {
                    hidden: n.pick(&[1, 30, 48]),
                    act: n.pick(&[0, 1, 2, 4, 5, 7]),
                    bias: n.pick(&[false, true]),
                }),
                _ => Layer::Dense(Dense {
                    hidden: n.pick(&[1, 30, 48]),
                    act: n.pick(&[0, 1, 2, 3]),
                }),
            })
            .collect();
        Model {
            kv_format,
            dim: n.pick(&[1, 17, 40, 72]),
            layers,
            vocab: n.pick(&[2, 37, 160]),
            tied: n.pick(&[false, true]),
            page: n.pick(&[1, 3, 16, 100]),
            context: n.pick(&[9, 64, 515]),
            slots: n.pick(&[1, 2, 5]),
            decode_rows: n.pick(&[1, 3, 8]),
            prompt_rows: n.pick(&[1, 3, 37]),
            prompt_outputs: n.pick(&[1, 2, 30]),
            embed_rows: n.pick(&[0, 1, 20]),
            pool: (n.below(3), n.below(2)),
            ..Model::small(seed)
        }
    }

    /// Sequences have recurrent state.
    pub fn has_state(&self) -> bool {
        let state = |l: &Layer| matches!(l, Layer::Conv(_) | Layer::Delta(_));
        self.layers.iter().any(state)
    }

    /// A device may begin without these features. It says so in `Device::missing`.
    pub fn is_optional(&self) -> bool {
        let optional = |layer: &Layer| match layer {
            Layer::Attention(a) => a.sinks,
            Layer::Dense(d) => d.act == 3,
            Layer::Ungated(_) | Layer::Heads(_) => false,
            Layer::Conv(_) | Layer::Delta(_) | Layer::Streams(_) => true,
            Layer::Encode(_) | Layer::EncodeConv(_) => true,
            // Experts may need widths divisible by 16.
            Layer::Experts(e) => e.bias || e.act == 3 || !self.dim.is_multiple_of(16),
        };
        self.embed_rows > 0 || self.layers.iter().any(optional)
    }
}

impl Attention {
    fn ugly(n: &mut Numbers, kv_format: Format) -> Attention {
        let kv_heads = n.pick(&[1, 2, 3]);
        let head_dim = match kv_format {
            Format::F16 => n.pick(&[2, 10, 24, 40]),
            _ => n.pick(&[32, 64]),
        };
        Attention {
            heads: kv_heads * n.pick(&[1, 2, 5]),
            kv_heads,
            head_dim,
            rot: (head_dim / n.pick(&[1, 2]) / 2 * 2).max(2),
            interleaved: n.pick(&[0, 1]),
            window: n.pick(&[0, 0, 1, 7, 300]),
            chunked: false,
            window_cache: n.pick(&[false, true]),
            softcap: n.pick(&[0.0, 5.0]),
            sinks: n.pick(&[false, false, true]),
            bias: n.pick(&[false, true]),
            qk_norm: n.pick(&[false, true]),
            position_scale: n.pick(&[false, false, true]),
            places: 0,
            absent: false,
            slopes: false,
        }
    }

    /// Floats of a row of queries, keys and values, and of what places add.
    pub fn width(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim + self.of_places()
    }

    /// Floats of a row that say what places add.
    pub fn of_places(&self) -> u32 {
        self.heads * 2 * (2 * self.places).saturating_sub(1)
    }
}

impl Streams {
    pub fn ugly(n: &mut Numbers) -> Streams {
        Streams {
            streams: n.pick(&[1, 2, 4, 8]),
            deviations: n.pick(&[-0.5, 0.0, 0.7, 1.6]),
            weighted: n.pick(&[false, true]),
        }
    }
}

impl Heads {
    /// Floats from one head to the next, before and after the product.
    pub fn distances(&self) -> (u32, u32) {
        (self.k + self.tail + 1, self.n + self.tail)
    }
}

impl Delta {
    pub fn ugly(n: &mut Numbers) -> Delta {
        let key_heads = n.pick(&[1, 2, 3]);
        let heads = key_heads * n.pick(&[1, 2, 3]);
        let value_dim = n.pick(&[1, 7, 32, 80, 130]);
        let act = n.pick(&[0, 1, 2, 4, 5]);
        Delta {
            key_heads,
            heads,
            key_dim: n.pick(&[1, 6, 33, 64, 128]),
            value_dim,
            tiled: n.below(2),
            act,
            shared: n.pick(&[1, value_dim, heads * value_dim]),
            mamba: n.pick(&[false, true]),
            by_channel: n.pick(&[false, true]),
        }
    }

    /// Floats of a row of a, or of time steps.
    pub fn times(&self) -> u32 {
        self.heads
            * match (self.by_channel, self.mamba) {
                (false, _) => 1,
                (true, false) => self.key_dim,
                (true, true) => self.value_dim,
            }
    }

    /// Floats of a row of b and a.
    pub fn rates(&self) -> u32 {
        self.heads + self.times()
    }

    /// Floats of a row of queries, keys and values.
    pub fn width(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.heads * self.value_dim
    }

    /// Values of a row of the result.
    pub fn values(&self) -> u32 {
        self.heads * self.value_dim
    }
}

impl Experts {
    pub fn ugly(n: &mut Numbers) -> Experts {
        let experts = n.pick(&[1, 3, 8, 33, 130]);
        let groups = match experts {
            8 => n.pick(&[(1, 1, 1), (2, 1, 2), (4, 3, 1)]),
            33 => n.pick(&[(1, 1, 1), (3, 2, 2), (11, 7, 1)]),
            130 => n.pick(&[(1, 1, 1), (13, 4, 2), (26, 7, 1)]),
            _ => (1, 1, 1),
        };
        let most = experts / groups.0 * groups.1;
        let plain = groups == (1, 1, 1);
        let scoring = n.pick(&[0, 1, if plain { 2 } else { 1 }]);
        let mixer = scoring == 2;
        Experts {
            hidden: n.pick(&[16, 48, 80]),
            experts,
            used: n.pick(&[1, 2, 5, 8]).min(most),
            renormalise: if mixer { 0 } else { n.pick(&[0, 1]) },
            act: n.pick(&[0, 1, 2, 4, 6]),
            bias: false,
            scales: experts.is_multiple_of(3),
            scoring,
            choice_bias: !mixer && n.pick(&[false, true]),
            groups,
        }
    }

    /// The experts' logits of one token. Every token chooses expert 1. None chooses the last one, if there are more
    /// than are used. Some logits are equal.
    pub fn logits(&self, numbers: &mut Numbers) -> Vec<f32> {
        let logit = |expert: u32| {
            let some = numbers.below(24) as f32 / 8.0;
            match expert {
                1 => some + 4.0,
                e if e + 1 == self.experts => some - 4.0,
                _ => some,
            }
        };
        (0..self.experts).map(logit).collect()
    }
}
