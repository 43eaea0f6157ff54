//! Text of other users, nodes and switches, made safe for the terminal of the reader.
//!
//! Control characters could forge lines or control the terminal, and characters that change the
//! direction of text could hide a part of it. Both are printed as escapes, such as `\u{1b}`.

use std::borrow::Cow;

/// Returns a text as one line without control characters.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// Returns lines of text without other control characters.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && !matches!(c, '\n' | '\t'))
}

/// Returns whether a character must not be printed: controls (C0, DEL, C1), separators of lines and
/// paragraphs, and marks, embeddings and isolates that change the direction.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, unsafe_char: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&unsafe_char) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match unsafe_char(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("train --name=caf\u{e9}"), "train --name=caf\u{e9}");
        assert_eq!(
            printable("\u{1b}]0;x\u{7}\r\na\u{9b}2J\u{202e}"),
            "\\u{1b}]0;x\\u{7}\\r\\na\\u{9b}2J\\u{202e}"
        );
        assert_eq!(printable_lines("a\n\tb\r\u{1b}c"), "a\n\tb\\r\\u{1b}c");
    }
}
