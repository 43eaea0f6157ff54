//! Sizes such as 1K (1024 bytes), 1M and 1G.

/// Parses a size in bytes. The text must be a whole number, optionally followed by K, M or G.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 10),
        Some((i, 'M' | 'm')) => (&text[..i], 20),
        Some((i, 'G' | 'g')) => (&text[..i], 30),
        _ => (text, 0),
    };
    let wrong = || format!("{text:?} is not a size; write a number of bytes, or for example 1K, 8M, 1G");
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Returns the shortest text that [`parse`] reads as `bytes`.
pub(crate) fn show(bytes: u64) -> String {
    [(30, "G"), (20, "M"), (10, "K")]
        .iter()
        .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift))
        .map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Returns a size in words, such as "64 bytes" or "256 KiB".
pub(crate) fn named(bytes: u64) -> String {
    let text = show(bytes);
    match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) => format!("{number} {}iB", &text[number.len()..]),
        None => format!("{text} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!([0, 1000, 1024, 8 << 20].map(named), ["0 bytes", "1000 bytes", "1 KiB", "8 MiB"]);
    }

    #[test]
    fn k_is_1024() {
        assert_eq!(parse("1K"), Ok(1024));
        assert_eq!(parse("8m"), Ok(8 << 20));
        assert_eq!(parse("0"), Ok(0));
        for wrong in ["", "K", "1.5M", "-1", "1KB", "99999999999G", "1é"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_size_that_is_shown_can_be_parsed(bytes in any::<u64>(), shift in 0u32..40) {
            let bytes = bytes >> 24 << shift;
            prop_assert_eq!(parse(&show(bytes)), Ok(bytes));
        }
    }
}
