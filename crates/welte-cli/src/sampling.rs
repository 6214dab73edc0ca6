//! Flags of sampling and stopping.

use crate::constraint::ConstraintArgs;
use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use welte::{GenerateOptions, Sampling, SamplingOption};

/// Sampling and stopping.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Tokens to generate (-1: until an end token or the end of the context) [default: -1]
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    predict: Option<i64>,
    /// Random seed (-1: from the clock) [default: -1]
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    seed: Option<i64>,
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
    /// What a created model has in place of the defaults.
    #[arg(skip)]
    under: Option<GenerateOptions>,
}

/// A flag for every number among the [settings](Sampling::OPTIONS): those that the user gave.
#[derive(Default)]
struct Numbers(Vec<(&'static SamplingOption, f64)>);

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
        let mut numbers = Numbers::default();
        numbers.update_from_arg_matches(matches)?;
        Ok(numbers)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in Sampling::OPTIONS {
            let given = matches.value_source(option.name) == Some(ValueSource::CommandLine);
            if let Some(value) = matches.get_one(option.name).filter(|_| given) {
                self.0.push((option, *value));
            }
        }
        Ok(())
    }
}

fn clock() -> u64 {
    let time = std::time::UNIX_EPOCH.elapsed();
    time.map_or(0, |time| time.as_nanos() as u64)
}

impl SamplingArgs {
    /// Settings that hold where no flag says otherwise.
    pub(crate) fn underlay(&mut self, mut options: GenerateOptions, has_seed: bool) {
        if !has_seed {
            options.sampling.seed = clock();
        }
        self.under = Some(options);
    }

    /// The numbers among the settings that the user gave.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static SamplingOption, f64)> {
        self.numbers.0.iter().copied()
    }

    /// The seed that the user gave, if it is not that of the clock.
    pub(crate) fn fixed_seed(&self) -> Option<u64> {
        u64::try_from(self.seed?).ok()
    }

    pub(crate) fn sampling(&self) -> Sampling {
        let under = self.under.as_ref().map(|under| under.sampling);
        let mut sampling = under.unwrap_or_default();
        for (option, value) in &self.numbers.0 {
            // The flag's parser accepts only what is in range.
            let _ = option.set(&mut sampling, *value);
        }
        if under.is_none() || self.seed.is_some() {
            sampling.seed = self.fixed_seed().unwrap_or_else(clock);
        }
        sampling
    }

    /// How answers are generated that must look as the constraint says.
    pub(crate) fn constrained(&self, by: &ConstraintArgs) -> anyhow::Result<GenerateOptions> {
        let mut options = self.options();
        options.constraint = by.constraint()?;
        Ok(options)
    }

    pub(crate) fn options(&self) -> GenerateOptions {
        let mut options = self.under.clone().unwrap_or_default();
        if let Some(most) = self.predict {
            options.max_tokens = usize::try_from(most).unwrap_or(usize::MAX);
        } else if self.under.is_none() {
            options.max_tokens = usize::MAX;
        }
        options.sampling = self.sampling();
        if !self.stop.is_empty() {
            options.stop = self.stop.clone().into();
        }
        options.ignore_end |= self.ignore_eos;
        options.min_tokens = self.min_tokens.max(options.min_tokens);
        match &self.dry_sequence_breaker[..] {
            [] => {}
            [none] if none == "none" => options.dry_breakers.clear(),
            breakers => options.dry_breakers = breakers.to_vec(),
        }
        options
    }
}
