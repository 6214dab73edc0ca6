//! Flags of sampling and stopping.

use clap::Args;
use welte::Sampling;

/// Sampling and stopping.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Tokens to generate (-1: until an end token or the end of the context)
    #[arg(short = 'n', long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) predict: i64,
    /// Seed of the noise (-1: from the clock)
    #[arg(short, long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) seed: i64,
    /// Temperature; 0 is greedy
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    pub(crate) temp: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 40, value_name = "N")]
    pub(crate) top_k: u32,
    /// Keep the most likely tokens with total probability P; 1 keeps all
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than P times the most likely; 0 drops none
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    pub(crate) min_p: f32,
    /// Keep the tokens with the most typical information, of total probability P; 1 keeps all
    #[arg(long, alias = "typical-p", default_value_t = 1.0, value_name = "P")]
    pub(crate) typical: f32,
    /// Keep the logits within N standard deviations of the largest; 0 keeps all
    #[arg(
        long,
        alias = "top-n-sigma",
        default_value_t = 0.0,
        value_name = "N",
        allow_hyphen_values = true
    )]
    pub(crate) top_nsigma: f32,
    /// Drop the most likely tokens with this probability; 0 is never
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub(crate) xtc_probability: f32,
    /// Tokens are dropped from this probability on, all but the least likely of them
    #[arg(long, default_value_t = 0.1, value_name = "P")]
    pub(crate) xtc_threshold: f32,
    /// Vary the temperature by X in both directions, with the entropy; 0 keeps it
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub(crate) dynatemp_range: f32,
    /// How the temperature follows the entropy
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub(crate) dynatemp_exp: f32,
    /// Penalty against repeating runs of tokens (DRY); 0 is none
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub(crate) dry_multiplier: f32,
    /// Growth of the penalty with each token of the run
    #[arg(long, default_value_t = 1.75, value_name = "X")]
    pub(crate) dry_base: f32,
    /// Shortest repeated run that is penalised
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(crate) dry_allowed_length: u32,
    /// Recent tokens that DRY looks at (-1: all)
    #[arg(long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) dry_penalty_last_n: i64,
    /// Text at which a run ends, in place of newline, colon, quote and asterisk (repeatable; none: no text)
    #[arg(long, value_name = "TEXT")]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Divide the logits of recent tokens by X; 1 is none
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub(crate) repeat_penalty: f32,
    /// Recent tokens that penalties apply to
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) repeat_last_n: u32,
    /// Subtract X for each occurrence of a recent token
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub(crate) frequency_penalty: f32,
    /// Subtract X from the logits of recent tokens
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        allow_hyphen_values = true
    )]
    pub(crate) presence_penalty: f32,
    /// Choose no end token before N tokens
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) min_tokens: usize,
    /// Never choose an end token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Stop at this text (repeatable)
    #[arg(short = 'r', long = "stop", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    pub(crate) fn sampling(&self) -> Sampling {
        let clock = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(0, |d| d.as_nanos() as u64)
        };
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_last_n: self.repeat_last_n,
            seed: if self.seed < 0 {
                clock()
            } else {
                self.seed as u64
            },
            typical_p: self.typical,
            // llama.cpp switches it off with -1.
            top_n_sigma: match self.top_nsigma == -1.0 {
                true => 0.0,
                false => self.top_nsigma,
            },
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_last_n: u32::try_from(self.dry_penalty_last_n).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn options(&self) -> welte::GenerateOptions {
        let mut options = welte::GenerateOptions::default();
        options.max_tokens = usize::try_from(self.predict).unwrap_or(usize::MAX);
        options.sampling = self.sampling();
        options.stop = self.stop.clone().into();
        options.ignore_end = self.ignore_eos;
        options.min_tokens = self.min_tokens;
        match &self.dry_sequence_breaker[..] {
            [] => {}
            [none] if none == "none" => options.dry_breakers.clear(),
            breakers => options.dry_breakers = breakers.to_vec(),
        }
        options
    }
}
