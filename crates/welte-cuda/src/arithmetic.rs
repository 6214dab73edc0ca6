//! What decides the bits of a pass.

use welte_table::PassKind;

/// The arithmetic of a pass. The bits of a row depend on its arithmetic, and not on the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    /// Decode passes: matrix-vector kernels and flash decoding, for any number of rows.
    Generated,
    /// Decode passes of programs for several slots: products on tensor cores, otherwise as above.
    Batched,
    /// Prompt and embed passes: 16-bit activations on tensor cores and flash attention, for any number of rows.
    Prompt,
}

impl Arithmetic {
    /// The arithmetic of a pass. `decode` is that of decode passes, which the plan chooses.
    pub(crate) fn of(pass: PassKind, decode: Arithmetic) -> Arithmetic {
        match pass {
            PassKind::Decode => decode,
            PassKind::Prompt | PassKind::Embed | PassKind::Draft => Arithmetic::Prompt,
        }
    }
}

/// How the floats of an exchange between ranks travel: `ROUNDING` of `exchange.cu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rounding {
    #[default]
    Whole = 0,
    Bf16 = 1,
    F16 = 2,
}
