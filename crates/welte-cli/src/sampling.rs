//! Flags of sampling and stopping.

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use welte::{Sampling, SamplingOption};

/// Sampling and stopping.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Tokens to generate (-1: until an end token or the end of the context)
    #[arg(short = 'n', long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) predict: i64,
    /// Random seed (-1: from the clock)
    #[arg(short, long, default_value_t = -1, value_name = "N", allow_hyphen_values = true)]
    pub(crate) seed: i64,
    #[command(flatten)]
    numbers: Numbers,
    /// Text at which a run ends, instead of newline, colon, quote and asterisk (repeatable; none: no text)
    #[arg(long, value_name = "TEXT")]
    pub(crate) dry_sequence_breaker: Vec<String>,
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

/// A flag for every number among the [settings](Sampling::OPTIONS).
struct Numbers(Sampling);

impl Args for Numbers {
    fn augment_args(command: Command) -> Command {
        command.args(Sampling::OPTIONS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(option: &'static SamplingOption) -> Arg {
    let parse = |text: &str| -> Result<f64, String> {
        let value = match (option.is_whole(), text.parse::<i64>(), text.parse()) {
            (true, Ok(whole), _) => whole as f64,
            (true, Err(_), _) => return Err("must be a whole number".into()),
            (false, _, Ok(number)) => number,
            (false, _, Err(_)) => return Err("must be a number".into()),
        };
        let set = option.set(&mut Sampling::default(), value);
        set.map_err(|range| format!("must be {range}"))?;
        Ok(value)
    };
    Arg::new(option.name)
        .long(option.flags[0])
        .aliases(&option.flags[1..])
        .value_name(option.unit)
        .value_parser(ValueParser::from(parse))
        .allow_negative_numbers(true)
        .default_value(option.default)
        .action(ArgAction::Set)
        .help(option.meaning)
}

impl FromArgMatches for Numbers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut numbers = Numbers(Sampling::default());
        numbers.update_from_arg_matches(matches)?;
        Ok(numbers)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in Sampling::OPTIONS {
            if let Some(value) = matches.get_one(option.name) {
                // The flag's parser accepts only what is in range.
                let _ = option.set(&mut self.0, *value);
            }
        }
        Ok(())
    }
}

impl SamplingArgs {
    pub(crate) fn sampling(&self) -> Sampling {
        let clock = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(0, |d| d.as_nanos() as u64)
        };
        Sampling {
            seed: u64::try_from(self.seed).unwrap_or_else(|_| clock()),
            ..self.numbers.0
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
