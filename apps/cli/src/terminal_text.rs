//! Text of other users, nodes and switches, made safe for the terminal of the reader.
//!
//! Control characters could forge lines or control the terminal, and characters that change the
//! direction of text could hide a part of it. Both are printed as escapes, such as `\u{1b}`.

use serde_json::Value;
use std::borrow::Cow;

/// Returns a text as one line without control characters.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// Returns lines of text without other control characters.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && !matches!(c, '\n' | '\t'))
}

/// Returns a document as JSON on several lines.
pub(crate) fn json(document: &Value) -> String {
    printable_json(&format!("{document:#}\n")).into_owned()
}

/// Returns JSON without characters that would control the terminal. The document stays the same.
pub(crate) fn printable_json(text: &str) -> Cow<'_, str> {
    // JSON must escape the other control characters in strings, and has newlines outside of them.
    escape_by(text, |c| c >= '\u{7f}' && is_unsafe(c), |c| format!("\\u{:04x}", u32::from(c)))
}

/// Returns whether a character must not be printed: controls (C0, DEL, C1), separators of lines and
/// paragraphs, and marks, embeddings and isolates that change the direction.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, unsafe_char: impl Fn(char) -> bool) -> Cow<'_, str> {
    escape_by(text, unsafe_char, |c| c.escape_default().to_string())
}

fn escape_by(
    text: &str,
    unsafe_char: impl Fn(char) -> bool,
    escaped: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&unsafe_char) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match unsafe_char(c) {
            true => safe.push_str(&escaped(c)),
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

    #[test]
    fn json_contains_no_control_characters_either() {
        let document = serde_json::json!({ "name": "caf\u{e9}\u{9b}2J\u{7f}\u{1b}\u{202e}\n" });
        let text = json(&document);
        assert_eq!(text, "{\n  \"name\": \"caf\u{e9}\\u009b2J\\u007f\\u001b\\u202e\\n\"\n}\n");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }
}
