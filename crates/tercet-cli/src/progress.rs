//! Progress bars on standard error; hidden if it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar over `len` units: `prefill ####---- 512/2048 tokens`.
pub(crate) fn bar(what: &'static str, len: usize, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len as u64), target());
    let template = format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {unit} {{eta}}");
    styled(bar, &template, ProgressStyle::default_bar()).with_message(what)
}

/// A spinner with the elapsed time, for work of unknown length: `/ loading 3s`.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target());
    let style = ProgressStyle::default_spinner().tick_chars("|/-\\ ");
    let spinner = styled(spinner, "{spinner} {msg} {elapsed}", style).with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A duplicate of the current standard error. While driver messages are redirected (`drivers.rs`),
/// progress output must not go through that pipe.
#[cfg(unix)]
fn target() -> ProgressDrawTarget {
    use std::io::{stderr, stdin};
    use std::os::fd::AsFd;

    /// Redraws per second; `indicatif` has the same default.
    const RATE: u8 = 20;
    match stderr().as_fd().try_clone_to_owned() {
        Ok(own) => {
            let term = console::Term::read_write_pair(stdin(), std::fs::File::from(own));
            ProgressDrawTarget::term(term, RATE)
        }
        Err(_) => ProgressDrawTarget::stderr(),
    }
}

#[cfg(not(unix))]
fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr()
}

/// If the template does not parse, only the style is lost.
fn styled(bar: ProgressBar, template: &str, style: ProgressStyle) -> ProgressBar {
    match style.template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
