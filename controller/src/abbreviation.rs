//! Abbreviates texts of users and agents before they are logged, listed or forwarded.

use std::borrow::Cow;

/// Maximum length of an abbreviated name of a program in the log, in bytes.
pub const LOGGED_BYTES_MAX: usize = 256;

/// Maximum length of a reason that an agent gives for a failure, in bytes.
pub const REASON_BYTES_MAX: usize = 1 << 10;

/// Text that replaces the middle of a longer one.
const ELLIPSIS: &str = " ... ";

/// Returns a text of at most `bytes` bytes. The beginning and the end are kept, because the end
/// often contains the remedy.
pub fn abbreviate(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        return Cow::Borrowed(text);
    }
    let half = bytes.saturating_sub(ELLIPSIS.len()) / 2;
    let (begin, end) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    Cow::Owned([&text[..begin], ELLIPSIS, &text[end..]].concat())
}

/// Abbreviates a text in place.
pub fn shorten(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        *text = abbreviate(text, bytes).into_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_of_a_long_text_are_kept() {
        assert_eq!(abbreviate("short", 5), "short");
        assert_eq!(abbreviate("begin and the end", 13), "begi ...  end");
        let umlauts = "\u{e4}".repeat(1000);
        let shortened = abbreviate(&umlauts, 100);
        assert!(shortened.len() <= 100 && shortened.contains(" ... "), "{shortened}");
    }
}
