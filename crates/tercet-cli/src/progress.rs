//! Progress bars on standard error; invisible when it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `len` of a unit: `prefill ####---- 512/2048 tokens`.
pub(crate) fn bar(what: &'static str, len: usize, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len as u64), ProgressDrawTarget::stderr());
    let template = format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {unit} {{eta}}");
    // A template that does not parse would only cost the looks of the bar.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.with_message(what)
}

/// A spinner for work of unknown length.
pub(crate) fn spinner(what: impl Into<std::borrow::Cow<'static, str>>) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    spinner.set_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
