//! The memory floor: the time that a token needs at least, because its bytes must come from memory.

/// How fast a device reads memory, and whether a model is limited by that at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Bytes per second that the device reads from memory.
    pub speed: f64,
    /// The bytes of one token fit the device's last-level cache, so memory does not limit the model.
    pub in_cache: bool,
}

impl Floor {
    /// The floor of a model whose tokens read `token_bytes`, on a device with `cache_bytes` of cache (0: unknown).
    pub fn new(speed: f64, token_bytes: u64, cache_bytes: u64) -> Floor {
        Floor {
            speed,
            in_cache: token_bytes <= cache_bytes,
        }
    }

    /// The share of the floor that a speed in bytes per second reaches. `None` for a model in cache: there it may exceed
    /// 1 and means nothing.
    pub fn share(&self, speed: f64) -> Option<f64> {
        let share = speed / self.speed;
        (!self.in_cache && share <= 1.0).then_some(share)
    }

    /// `62 % of {whole}`, or `in cache`.
    pub fn describe(&self, speed: f64, whole: &str) -> String {
        match self.share(speed) {
            Some(share) => format!("{:.0} % of {whole}", 100.0 * share),
            None => "in cache".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_in_cache_has_no_share_of_the_floor() {
        let small = Floor::new(20e9, 7 << 20, 32 << 20);
        assert_eq!(small.share(40e9), None);
        assert_eq!(small.describe(40e9, "the floor"), "in cache");
        let large = Floor::new(20e9, 700 << 20, 32 << 20);
        assert_eq!(large.share(15e9), Some(0.75));
        assert_eq!(large.describe(15e9, "the floor"), "75 % of the floor");
        assert!(Floor::new(20e9, 8, 8).in_cache && !Floor::new(20e9, 9, 8).in_cache);
        // Nothing is read faster than memory gives it: what is above was in a cache.
        assert_eq!(large.share(21e9), None);
        assert_eq!(large.describe(21e9, "the floor"), "in cache");
        // An unknown cache holds nothing.
        assert!(!Floor::new(20e9, 1, 0).in_cache);
    }
}
