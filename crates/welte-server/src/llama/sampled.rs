//! Probabilities after sampling: of the tokens that were left when one of them was drawn.

use crate::ask::Ask;
use crate::error::Failure;
use crate::fields::Fields;
use welte::{Logprobs, Sampling};

/// Makes sure that the tokens that are left are among the likeliest ones, whose probabilities are known.
pub(crate) fn restrict(fields: &Fields, ask: &mut Ask, asked_top_k: bool) -> Result<(), Failure> {
    let most = Logprobs::MOST as u32;
    let s = &mut ask.options.sampling;
    if !asked_top_k {
        s.top_k = match s.top_k {
            0 => most,
            k => k.min(most),
        };
    }
    let is_off = [
        ("repeat_penalty", s.repeat_penalty == 1.0),
        ("frequency_penalty", s.frequency_penalty == 0.0),
        ("presence_penalty", s.presence_penalty == 0.0),
        ("dry_multiplier", s.dry_multiplier == 0.0),
        ("top_n_sigma", s.top_n_sigma == 0.0),
        ("typical_p", s.typical_p == 1.0),
        ("xtc_probability", s.xtc_probability == 0.0),
        ("dynatemp_range", s.dynatemp_range == 0.0),
        ("logit_bias", ask.options.bias.is_empty()),
        ("grammar", ask.options.constraint.is_none()),
    ];
    if let Some((name, _)) = is_off.into_iter().find(|(_, off)| !off) {
        let problem = format!("does not go with {name}");
        return Err(fields.wrong("post_sampling_probs", problem));
    }
    if s.temperature > 0.0 && (s.top_k == 0 || s.top_k > most) {
        let problem = format!("needs a top_k of 1 to {most}");
        return Err(fields.wrong("post_sampling_probs", problem));
    }
    Ok(())
}

/// The tokens that were left, with their probabilities, the likeliest first.
pub(crate) fn left(one: &Logprobs, s: &Sampling) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f64)> = one.top().iter().map(|t| (t.0, f64::from(t.1))).collect();
    if s.temperature == 0.0 {
        return vec![(one.token(), 1.0)];
    }
    all.truncate(s.top_k as usize);
    share(&mut all, 1.0);
    // As few as have the probability together.
    let mut sum = 0.0;
    let mut before = |(_, p): &(u32, f64)| {
        sum += p;
        sum < f64::from(s.top_p)
    };
    let kept = all.iter().take_while(|one| before(one)).count() + 1;
    all.truncate(kept);
    let likeliest = all.first().map_or(0.0, |one| one.1);
    all.retain(|(_, p)| *p >= f64::from(s.min_p) * likeliest);
    all.iter_mut().for_each(|one| one.1 = one.1.ln());
    share(&mut all, f64::from(s.temperature));
    all.into_iter().map(|(id, p)| (id, p as f32)).collect()
}

/// Turns logarithms into probabilities that sum to 1.
fn share(all: &mut [(u32, f64)], temperature: f64) {
    let highest = all.first().map_or(0.0, |one| one.1);
    let mut sum = 0.0;
    for (_, value) in all.iter_mut() {
        *value = ((*value - highest) / temperature).exp();
        sum += *value;
    }
    all.iter_mut().for_each(|(_, value)| *value /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_sums_to_one() {
        let mut one = Logprobs::new(7, 0.2f32.ln());
        for (id, p) in [(3, 0.5f32), (7, 0.2), (1, 0.1), (9, 0.02)] {
            one.push(id, p.ln());
        }
        let mut s = Sampling {
            temperature: 1.0,
            top_k: 4,
            top_p: 1.0,
            min_p: 0.0,
            ..Sampling::default()
        };
        let ids = |s: &Sampling| left(&one, s).iter().map(|t| t.0).collect::<Vec<_>>();
        let sum = |s: &Sampling| left(&one, s).iter().map(|t| t.1).sum::<f32>();
        assert_eq!(ids(&s), [3, 7, 1, 9]);
        assert!((sum(&s) - 1.0).abs() < 1e-6);
        s.min_p = 0.1;
        assert_eq!(ids(&s), [3, 7, 1]);
        s.top_p = 0.6;
        assert_eq!(ids(&s), [3]);
        assert_eq!(left(&one, &s), [(3, 1.0)]);
        (s.top_p, s.top_k) = (1.0, 2);
        let halves = left(&one, &s);
        assert!((halves[0].1 - 5.0 / 7.0).abs() < 1e-6, "{halves:?}");
        s.temperature = 0.5;
        let squares = left(&one, &s);
        assert!((squares[0].1 - 25.0 / 29.0).abs() < 1e-6, "{squares:?}");
        s.temperature = 0.0;
        assert_eq!(left(&one, &s), [(7, 1.0)]);
    }
}
