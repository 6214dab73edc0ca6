//! The time, and times as Ollama writes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970.
pub(crate) fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// A time in whole nanoseconds, as counters and Ollama's answers have it.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a model stays loaded. Reads `300` (seconds), `5m`, `1h30m`, `500ms`. A negative time means forever, which is `None`.
pub fn keep_alive(text: &str) -> Result<Option<Duration>, String> {
    let wrong = || format!("{text:?} is not a time; use seconds or a time such as 5m or 24h");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if let Ok(seconds) = rest.parse::<u64>() {
        return Ok((!negative).then(|| Duration::from_secs(seconds)));
    }
    let mut time = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = rest.split_at(digits);
        let end = unit
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(unit.len());
        let milliseconds: u64 = match &unit[..end] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let part = number.checked_mul(milliseconds).map(Duration::from_millis);
        time = part
            .and_then(|part| time.checked_add(part))
            .ok_or_else(wrong)?;
        rest = &unit[end..];
    }
    if text.trim_start_matches('-').is_empty() {
        Err(wrong())
    } else {
        Ok((!negative).then_some(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_ollama() {
        for (text, seconds) in [
            ("300", Some(300.0)),
            ("0", Some(0.0)),
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("500ms", Some(0.5)),
            ("-1", None),
            ("-1m", None),
        ] {
            let time = keep_alive(text).unwrap();
            assert_eq!(time.map(|time| time.as_secs_f64()), seconds, "{text}");
        }
        for text in ["", "-", "m", "5x", "5", "1.5h", "99999999999999999h", "5m3"] {
            assert_eq!(keep_alive(text).is_ok(), text == "5", "{text}");
        }
    }
}
