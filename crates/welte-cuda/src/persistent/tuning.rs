//! The tuning parameters of the persistent kernels: they change speed, never results. `replay/tune.rs` finds the best ones.

use super::TUNABLE_EXTRA_SLOTS;
use super::instruction::KernelParams;
use super::instruction::TUNED_VARIANTS;

/// How a block waits for its input, and how far its stream of weights runs ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Clock ticks after a product before the block polls for the next one's input.
    poll_delay: u32,
    pause: Pause,
    /// Slots of weights in flight beyond the usual number.
    extra_slots: u8,
    /// The same by variant, added to `extra_slots`.
    variant_slots: [i8; TUNED_VARIANTS],
}

/// When the weights of a block wait (`AWAITS_*` of `persistent/block.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Never = 0,
    /// All of them, while a product's input is awaited.
    Input = 1,
    /// All but two slots, while attention is awaited. Steps of several rows have no such pause.
    Attention = 2,
}

const POLL_DELAYS: [u32; 5] = [500, 1000, 1500, 2000, 2500];
const PAUSES: [Pause; 3] = [Pause::Never, Pause::Input, Pause::Attention];
const EXTRA_SLOTS: [u8; 2] = [0, 1];
/// Copies in flight while attention is awaited delay it; elsewhere too few copies stall the stream.
const VARIANT_SLOTS: [i8; 3] = [-1, -2, 1];
/// Fewer slots in flight are not tried. With one slot in flight the stream stalls after every copy; at some positions that is
/// faster, at others far slower.
const MIN_IN_FLIGHT: u8 = 2;
/// Bytes of a tuning on disk.
const BYTES: usize = 6 + TUNED_VARIANTS;

const _: () = assert!(EXTRA_SLOTS[1] as i8 + VARIANT_SLOTS[2] == TUNABLE_EXTRA_SLOTS as i8);

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            poll_delay: 1500,
            pause: Pause::Never,
            extra_slots: 0,
            variant_slots: [0; TUNED_VARIANTS],
        }
    }
}

impl Tuning {
    /// All combinations for all variants together: whether a pause helps depends on how much is in flight.
    pub(crate) fn candidates() -> impl Iterator<Item = Tuning> {
        POLL_DELAYS.into_iter().flat_map(|poll_delay| {
            EXTRA_SLOTS.into_iter().flat_map(move |extra_slots| {
                PAUSES.map(|pause| Tuning {
                    poll_delay,
                    pause,
                    extra_slots,
                    variant_slots: [0; TUNED_VARIANTS],
                })
            })
        })
    }

    /// Changes for one variant, which usually has `usual` slots in flight.
    pub(crate) fn variant_candidates(
        self,
        usual: u8,
        variant: usize,
    ) -> impl Iterator<Item = Tuning> {
        let all = VARIANT_SLOTS.into_iter().map(move |slots| {
            let mut tuning = self;
            tuning.variant_slots[variant] = slots;
            tuning
        });
        all.filter(move |tuning| tuning.slots(usual, variant) >= MIN_IN_FLIGHT)
    }

    /// The most candidates that a variant has.
    pub(crate) const VARIANT_CANDIDATES: usize = VARIANT_SLOTS.len();

    /// The kernel's parameters, given the usual number of slots in flight of each variant.
    pub(crate) fn params(&self, usual: &[u8; TUNED_VARIANTS]) -> KernelParams {
        KernelParams {
            poll_delay: self.poll_delay,
            pause: self.pause as u32,
            in_flight: std::array::from_fn(|variant| match usual[variant] {
                0 => 0,
                usual => self.slots(usual, variant).max(MIN_IN_FLIGHT),
            }),
        }
    }

    /// The parameters for a step of several rows. Its variants are others, so what was found for one variant does not apply.
    pub(crate) fn params_for_rows(&self, usual: &[u8; TUNED_VARIANTS]) -> KernelParams {
        let same = Tuning {
            variant_slots: [0; TUNED_VARIANTS],
            ..*self
        };
        same.params(usual)
    }

    fn slots(&self, usual: u8, variant: usize) -> u8 {
        (usual + self.extra_slots).saturating_add_signed(self.variant_slots[variant])
    }

    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&self.poll_delay.to_le_bytes());
        bytes[4] = self.pause as u8;
        bytes[5] = self.extra_slots;
        for (byte, slots) in bytes[6..].iter_mut().zip(self.variant_slots) {
            *byte = slots as u8;
        }
        bytes
    }

    /// `None` where the bytes are not those of a candidate.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Tuning> {
        let (first, rest) = bytes.split_at_checked(BYTES - TUNED_VARIANTS)?;
        let mut candidates = Tuning::candidates();
        let mut tuning = candidates.find(|known| known.to_bytes()[..first.len()] == *first)?;
        let rest: [u8; TUNED_VARIANTS] = rest.try_into().ok()?;
        tuning.variant_slots = rest.map(|byte| byte as i8);
        let tried = |slots: &i8| *slots == 0 || VARIANT_SLOTS.contains(slots);
        let tried = tuning.variant_slots.iter().all(tried);
        tried.then_some(tuning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuning_is_read_back_and_other_bytes_are_refused() {
        assert!(Tuning::candidates().any(|tuning| tuning == Tuning::default()));
        assert_eq!(Tuning::candidates().count(), 30);
        for (i, mut tuning) in Tuning::candidates().enumerate() {
            tuning.variant_slots[i % TUNED_VARIANTS] = VARIANT_SLOTS[i % VARIANT_SLOTS.len()];
            let bytes = tuning.to_bytes();
            assert_eq!(Tuning::of_bytes(&bytes), Some(tuning));
            for place in 0..bytes.len() {
                let mut other = bytes;
                other[place] ^= 0x80;
                assert_eq!(Tuning::of_bytes(&other), None);
            }
        }
        assert_eq!(Tuning::of_bytes(&[]), None);
        let bytes = Tuning::default().to_bytes();
        assert_eq!(Tuning::of_bytes(&bytes[1..]), None);
        assert_eq!(Tuning::of_bytes(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn at_least_two_slots_are_in_flight() {
        let mut usual = [0; TUNED_VARIANTS];
        usual[..4].copy_from_slice(&[0, 2, 3, 16]);
        let default = Tuning::default();
        assert_eq!(default.params(&usual).in_flight[..5], [0, 2, 3, 16, 0]);
        let mut more = Tuning {
            extra_slots: 1,
            ..default
        };
        assert_eq!(more.params(&usual).in_flight[..5], [0, 3, 4, 17, 0]);
        let tried = |tuning: Tuning, variant: usize| -> Vec<u8> {
            let all = tuning.variant_candidates(usual[variant], variant);
            all.map(|tuning| tuning.params(&usual).in_flight[variant])
                .collect()
        };
        assert_eq!(tried(default, 1), [3]);
        assert_eq!(tried(more, 1), [2, 4]);
        assert_eq!(tried(more, 2), [3, 2, 5]);
        // A tuning from disk may ask for less.
        more.variant_slots[1] = -2;
        assert_eq!(more.params(&usual).in_flight[1], 2);
        assert_eq!(more.params_for_rows(&usual).in_flight[1], 3);
    }
}
