//! Progress on standard error; invisible when it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `len` of a unit: `prefill ####---- 512/2048 tokens`.
pub(crate) fn bar(what: &'static str, len: usize, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len as u64), target());
    let template = format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {unit} {{eta}}");
    styled(bar, &template, ProgressStyle::default_bar()).with_message(what)
}

/// What is done, and for how long, where nobody knows how much is left: `/ loading 3s`.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target());
    let style = ProgressStyle::default_spinner().tick_chars("|/-\\ ");
    let spinner = styled(spinner, "{spinner} {msg} {elapsed}", style).with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// Standard error as it is now: while drivers are heard (`drivers.rs`) what is drawn must not be taken for theirs.
#[cfg(unix)]
fn target() -> ProgressDrawTarget {
    use std::io::{stderr, stdin};
    use std::os::fd::AsFd;

    /// Drawings a second, as many as `indicatif` makes by itself.
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

/// A template that does not parse would only cost the looks.
fn styled(bar: ProgressBar, template: &str, style: ProgressStyle) -> ProgressBar {
    match style.template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
