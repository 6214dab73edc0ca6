//! How the next token is chosen. Every setting is declared once, in the list below: the command line, the APIs, their
//! descriptions and the library's checks read it from there.

use crate::Range;

/// A number among the settings, as callers write it.
#[derive(Clone, Copy, Debug)]
pub struct SamplingOption {
    /// Its name in the APIs and in errors.
    pub name: &'static str,
    /// Other names in the APIs.
    pub aliases: &'static [&'static str],
    /// Its flag, without dashes, and other names of the flag.
    pub flags: &'static [&'static str],
    /// What stands for the value in the help of the flag.
    pub unit: &'static str,
    /// The command line's default. The library's and the APIs' is [`Sampling::GREEDY`]'s.
    pub default: &'static str,
    /// The numbers that a caller may write: a [type with a range](Range::of).
    pub kind: &'static str,
    /// What it does, for the help and the description of the APIs.
    pub meaning: &'static str,
    /// A number: the least value that makes sense. What a caller writes below it, such as -1 for "off", becomes it.
    least: f32,
    /// A count: what negative numbers stand for.
    negative: u32,
    /// A count: what numbers beyond 32 bits stand for.
    huge: u32,
    field: Field,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Real(fn(&mut Sampling) -> &mut f32),
    Count(fn(&mut Sampling) -> &mut u32),
}

impl SamplingOption {
    /// True for a whole number.
    pub const fn is_whole(&self) -> bool {
        matches!(self.field, Field::Count(..))
    }

    /// The numbers that a caller may write.
    pub fn range(&self) -> Range {
        Range::of(self.kind).1.unwrap_or_default()
    }

    /// Sets it to a number that a caller wrote, or returns what would be right. A whole number of any size is in order.
    pub fn set(&self, sampling: &mut Sampling, value: f64) -> Result<(), Range> {
        let range = self.range();
        if !value.is_finite() || !range.contains(value) {
            return Err(range);
        }
        match self.field {
            // A number may be too small for an f32: it must not become 0 where 0 is outside.
            Field::Real(field) => *field(sampling) = (value as f32).max(self.least),
            Field::Count(field) if value < 0.0 => *field(sampling) = self.negative,
            Field::Count(field) if value > f64::from(u32::MAX) => *field(sampling) = self.huge,
            Field::Count(field) => *field(sampling) = value as u32,
        }
        Ok(())
    }

    /// Its value.
    pub fn get(&self, sampling: &Sampling) -> f64 {
        let mut copy = *sampling;
        match self.field {
            Field::Real(field) => f64::from(*field(&mut copy)),
            Field::Count(field) => f64::from(*field(&mut copy)),
        }
    }

    /// Checks a value that a program set: it must be one that [`SamplingOption::set`] would leave as it is.
    pub fn check(&self, sampling: &Sampling) -> Result<(), Range> {
        if self.is_whole() {
            return Ok(());
        }
        let value = self.get(sampling);
        let written = self.range();
        let excludes_min = self.least == f32::MIN_POSITIVE;
        let range = Range {
            min: (self.least > f32::MIN).then_some(if excludes_min {
                0.0
            } else {
                f64::from(self.least)
            }),
            excludes_min,
            max: written.max,
        };
        if value.is_finite() && range.contains(value) {
            Ok(())
        } else {
            Err(range)
        }
    }
}

/// Declares [`Sampling`], [`Sampling::GREEDY`] and [`Sampling::OPTIONS`] from one list.
macro_rules! settings {
    ($($field:ident: $type:ident = $neutral:expr, $meaning:literal $({ $($key:ident: $value:expr),* $(,)? })?;)*) => {
        /// How the next token of a slot is chosen. The order is that of llama.cpp:
        ///
        /// 1. bias,
        /// 2. repeat, frequency and presence penalties,
        /// 3. DRY: penalties against repeating a run of tokens,
        /// 4. top-n-sigma,
        /// 5. top-k,
        /// 6. typical-p,
        /// 7. top-p,
        /// 8. min-p,
        /// 9. XTC,
        /// 10. temperature, fixed or dynamic,
        /// 11. Gumbel-max with noise keyed by (seed, position of the new token, vocabulary index).
        ///
        /// A greedy choice takes the largest logit after step 3. Each filter computes probabilities from the tokens that
        /// the steps before it have left, and leaves one token at least.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Sampling {
            $(#[doc = $meaning] pub $field: $type,)*
        }

        impl Sampling {
            /// The most likely token, without filters or penalties: the default.
            pub const GREEDY: Sampling = Sampling { $($field: $neutral),* };

            /// Every number among the settings.
            pub const OPTIONS: &[SamplingOption] = &[
                $($(SamplingOption {
                    name: stringify!($field),
                    $($key: $value,)*
                    meaning: $meaning,
                    field: settings!(@$type $field),
                    ..DEFAULTS
                },)?)*
            ];
        }
    };
    (@f32 $field:ident) => { Field::Real(|s| &mut s.$field) };
    (@u32 $field:ident) => { Field::Count(|s| &mut s.$field) };
}

/// What an option need not say.
const DEFAULTS: SamplingOption = SamplingOption {
    name: "",
    aliases: &[],
    flags: &[],
    unit: "X",
    default: "0",
    kind: "number[0,3.4e38]",
    meaning: "",
    least: f32::MIN,
    negative: 0,
    huge: u32::MAX,
    field: Field::Real(|s| &mut s.temperature),
};

settings! {
    temperature: f32 = 0.0, "Temperature; 0 chooses the most likely token" {
        flags: &["temp"], unit: "T", default: "0.8", least: 0.0,
    };
    top_k: u32 = 0, "Keep the N most likely tokens; 0 or less keeps all" {
        flags: &["top-k"], unit: "N", default: "40", kind: "integer", huge: 0,
    };
    top_p: f32 = 1.0, "Keep the most likely tokens with total probability P; 1 keeps all" {
        flags: &["top-p"], unit: "P", default: "0.95", kind: "number[0,1]", least: f32::MIN_POSITIVE,
    };
    min_p: f32 = 0.0, "Drop tokens less likely than P times the most likely; 0 drops none" {
        flags: &["min-p"], unit: "P", default: "0.05", kind: "number[0,1]", least: 0.0,
    };
    repeat_penalty: f32 = 1.0, "Divide the logits of recent tokens by X; 1 is none" {
        // vLLM's name.
        aliases: &["repetition_penalty"],
        flags: &["repeat-penalty"], default: "1", kind: "number(0,3.4e38]", least: f32::MIN_POSITIVE,
    };
    frequency_penalty: f32 = 0.0, "Subtract X for each occurrence of a recent token" {
        flags: &["frequency-penalty"], kind: "number[-3.4e38,3.4e38]",
    };
    presence_penalty: f32 = 0.0, "Subtract X from the logits of recent tokens" {
        flags: &["presence-penalty"], kind: "number[-3.4e38,3.4e38]",
    };
    repeat_last_n: u32 = 64, "Recent tokens that penalties apply to; negative: all" {
        flags: &["repeat-last-n"], unit: "N", default: "64", kind: "integer", negative: u32::MAX,
    };
    seed: u64 = 0, "Key of the noise";
    typical_p: f32 = 1.0, "Keep the tokens with the most typical information, of total probability P; 1 keeps all" {
        flags: &["typical", "typical-p"], unit: "P", default: "1", kind: "number[0,1]", least: f32::MIN_POSITIVE,
    };
    top_n_sigma: f32 = 0.0, "Keep the logits within N standard deviations of the largest; 0 or less keeps all" {
        flags: &["top-nsigma", "top-n-sigma"], unit: "N", kind: "number[-3.4e38,3.4e38]", least: 0.0,
    };
    xtc_probability: f32 = 0.0, "Drop the most likely tokens with this probability; 0 is never" {
        flags: &["xtc-probability"], unit: "P", kind: "number[0,1]", least: 0.0,
    };
    xtc_threshold: f32 = 0.1, "Tokens are dropped from this probability on, all but the least likely of them" {
        flags: &["xtc-threshold"], unit: "P", default: "0.1", kind: "number[0,1]", least: 0.0,
    };
    dynatemp_range: f32 = 0.0, "Vary the temperature by X in both directions, with the entropy; 0 keeps it" {
        flags: &["dynatemp-range"], least: 0.0,
    };
    dynatemp_exponent: f32 = 1.0, "How the temperature follows the entropy: relative entropy to this power" {
        flags: &["dynatemp-exp"], default: "1", kind: "number(0,3.4e38]", least: f32::MIN_POSITIVE,
    };
    dry_multiplier: f32 = 0.0, "Penalty against repeating a run of tokens (DRY); 0 is none" {
        flags: &["dry-multiplier"], least: 0.0,
    };
    dry_base: f32 = 1.75, "Growth of DRY's penalty with each token of the run" {
        flags: &["dry-base"], default: "1.75", kind: "number[1,3.4e38]", least: 1.0,
    };
    dry_allowed_length: u32 = 2, "Shortest repeated run that DRY penalises" {
        flags: &["dry-allowed-length"], unit: "N", default: "2", kind: "integer[0,]",
    };
    dry_penalty_last_n: u32 = u32::MAX, "Recent tokens that DRY looks at; negative: all" {
        flags: &["dry-penalty-last-n"], unit: "N", default: "-1", kind: "integer", negative: u32::MAX,
    };
}

impl Sampling {
    /// The option of this name.
    pub fn option(name: &str) -> Option<&'static SamplingOption> {
        Self::OPTIONS.iter().find(|option| option.name == name)
    }

    /// True if tokens that occurred before are penalised one by one.
    pub fn has_penalties(&self) -> bool {
        let neutral = (1.0, 0.0, 0.0);
        let penalties = (
            self.repeat_penalty,
            self.frequency_penalty,
            self.presence_penalty,
        );
        self.repeat_last_n > 0 && penalties != neutral
    }

    /// True if runs of tokens that occurred before are penalised.
    pub fn has_dry(&self) -> bool {
        self.dry_multiplier != 0.0 && self.dry_penalty_last_n > 0
    }

    /// True if any of these is on: DRY, typical-p, top-n-sigma, XTC, dynamic temperature.
    pub fn is_extended(&self) -> bool {
        let filters = self.typical_p < 1.0
            || self.top_n_sigma > 0.0
            || self.xtc_probability > 0.0
            || self.dynatemp_range > 0.0;
        self.has_dry() || filters && self.temperature > 0.0
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: f64) -> Result<Sampling, Range> {
        let mut sampling = Sampling::GREEDY;
        let option = Sampling::option(name).unwrap();
        option.set(&mut sampling, value)?;
        assert_eq!(option.check(&sampling), Ok(()), "{name} {value}");
        Ok(sampling)
    }

    #[test]
    fn the_neutral_settings_and_the_defaults_are_in_range() {
        for option in Sampling::OPTIONS {
            assert_eq!(option.check(&Sampling::GREEDY), Ok(()), "{}", option.name);
            set(option.name, option.default.parse().unwrap()).unwrap();
            assert!(!option.flags.is_empty() && !option.meaning.is_empty());
        }
        let names = Sampling::OPTIONS.iter().map(|option| option.name);
        assert_eq!(names.collect::<std::collections::BTreeSet<_>>().len(), 18);
    }

    #[test]
    fn numbers_at_the_borders() {
        assert_eq!(set("top_k", -1.0).unwrap().top_k, 0);
        assert_eq!(set("top_k", 1e30).unwrap().top_k, 0);
        assert_eq!(set("repeat_last_n", -1.0).unwrap().repeat_last_n, u32::MAX);
        assert_eq!(set("repeat_last_n", 0.0).unwrap().repeat_last_n, 0);
        assert_eq!(
            set("dry_allowed_length", 1e30).unwrap().dry_allowed_length,
            u32::MAX
        );
        assert!(set("dry_allowed_length", -1.0).is_err());
        assert_eq!(set("top_p", 0.0).unwrap().top_p, f32::MIN_POSITIVE);
        assert_eq!(set("top_n_sigma", -1.0).unwrap().top_n_sigma, 0.0);
        assert_eq!(
            set("repeat_penalty", 1e-300).unwrap().repeat_penalty,
            f32::MIN_POSITIVE
        );
        assert!(set("repeat_penalty", 0.0).is_err());
        let above = set("top_p", 1.5).unwrap_err();
        assert_eq!(above.to_string(), "at least 0 and at most 1");
        for option in Sampling::OPTIONS {
            for value in [f64::NAN, f64::INFINITY] {
                assert!(
                    option.set(&mut Sampling::GREEDY.clone(), value).is_err(),
                    "{}",
                    option.name
                );
            }
        }
    }

    #[test]
    fn a_programs_own_values_are_checked() {
        let s = Sampling {
            top_p: 0.0,
            temperature: -1.0,
            dry_base: 0.5,
            presence_penalty: f32::NAN,
            ..Sampling::GREEDY
        };
        let wrong: Vec<(&str, String)> = Sampling::OPTIONS
            .iter()
            .filter_map(|option| Some((option.name, option.check(&s).err()?.to_string())))
            .collect();
        let expected = [
            ("temperature", "at least 0"),
            ("top_p", "above 0 and at most 1"),
            ("presence_penalty", "a finite number"),
            ("dry_base", "at least 1"),
        ];
        assert_eq!(wrong, expected.map(|(name, text)| (name, text.to_string())));
    }
}
