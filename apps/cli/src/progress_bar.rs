//! Progress bars on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Returns a bar of this template, which is hidden unless standard error is a terminal.
pub(crate) fn progress_bar(template: &str) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    // Templates are constants, so this does not fail; if it did, the bar would have the default
    // style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
