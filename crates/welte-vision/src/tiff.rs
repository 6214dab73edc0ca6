//! What TIFF files claim. Their decoder makes room for the values of a tag before it reads them, and no limit holds for that.

/// Refuses a file with a tag of more values than the file has bytes.
pub(crate) fn check(file: &[u8]) -> Result<(), &'static str> {
    match claims_more(file) {
        Some(false) => Ok(()),
        Some(true) => Err("a tag has more values than the file"),
        None => Err("the file ends before its tags"),
    }
}

/// Looks at the tags of the first picture. `None`: the file ends before.
fn claims_more(file: &[u8]) -> Option<bool> {
    let little = file.starts_with(b"II");
    let number = |at: usize, bytes: usize| {
        let own = file.get(at..at.checked_add(bytes)?)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if little {
            own.iter().rev().fold(0, add)
        } else {
            own.iter().fold(0, add)
        })
    };
    // Where the offset of the tags stands and how long it is, the bytes of their number, and of a tag.
    let (at, long, count, tag) = match number(2, 2)? {
        43 => (8, 8, 8, 20),
        _ => (4, 4, 2, 12),
    };
    let first = usize::try_from(number(at, long)?).ok()?;
    let tags = usize::try_from(number(first, count)?).ok()?;
    for index in 0..tags {
        let tag = first
            .checked_add(count)?
            .checked_add(index.checked_mul(tag)?)?;
        if number(tag.checked_add(4)?, long)? > file.len() as u64 {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with a tag of `count` values.
    fn file(big: bool, little: bool, count: u64) -> Vec<u8> {
        let mut file = if little { b"II" } else { b"MM" }.to_vec();
        let mut add = |value: u64, bytes: usize| match little {
            true => file.extend(&value.to_le_bytes()[..bytes]),
            false => file.extend(&value.to_be_bytes()[8 - bytes..]),
        };
        let parts: &[(u64, usize)] = match big {
            true => &[
                (43, 2),
                (8, 2),
                (0, 2),
                (16, 8),
                (1, 8),
                (256, 2),
                (4, 2),
                (count, 8),
                (19, 8),
                (0, 8),
            ],
            false => &[
                (42, 2),
                (8, 4),
                (1, 2),
                (256, 2),
                (4, 2),
                (count, 4),
                (19, 4),
                (0, 4),
            ],
        };
        parts.iter().for_each(|(value, bytes)| add(*value, *bytes));
        file
    }

    #[test]
    fn a_tag_has_no_more_values_than_the_file_has_bytes() {
        for (big, little) in [(false, false), (false, true), (true, false), (true, true)] {
            let length = file(big, little, 1).len();
            assert_eq!(claims_more(&file(big, little, length as u64)), Some(false));
            assert_eq!(
                claims_more(&file(big, little, length as u64 + 1)),
                Some(true)
            );
            assert_eq!(claims_more(&file(big, little, u32::MAX.into())), Some(true));
            assert_eq!(claims_more(&file(big, little, 1)[..12]), None);
        }
    }
}
