//! Progress on standard error: a bar or a spinner on a terminal. Otherwise long work prints a line now
//! and then, so that a log shows that it goes on.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};

/// Interval at which the elapsed time of a bar is redrawn, and before which it is not shown.
const BAR_TICK: Duration = Duration::from_millis(500);
/// Time after which work without a terminal prints its first line, and the time between its lines.
const LINE_AFTER: Duration = Duration::from_secs(10);
const LINE_EVERY: Duration = Duration::from_secs(30);

/// A progress bar over `len` units: `prefill ####---- 512/2048 tokens`.
pub(crate) fn bar(what: &'static str, len: usize, unit: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len as u64), target());
    let template = format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {unit} {{eta}}");
    let bar = styled(bar, &template, ProgressStyle::default_bar()).with_message(what);
    match bar.is_hidden() {
        true => print_lines(&bar, what, Some(unit)),
        // The first units may take long.
        false => bar.enable_steady_tick(BAR_TICK),
    }
    bar
}

/// A progress bar over `len` bytes, with sizes and the rate.
#[cfg(feature = "hub")]
pub(crate) fn bytes_bar(what: &'static str, len: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len), target());
    let template =
        "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let bar = styled(bar, template, ProgressStyle::default_bar()).with_message(what);
    match bar.is_hidden() {
        true => print_lines(&bar, what, Some("bytes")),
        false => bar.enable_steady_tick(BAR_TICK),
    }
    bar
}

/// A spinner with the elapsed time, for work of unknown length: `/ loading 3s`.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target());
    let style = ProgressStyle::default_spinner().tick_chars("|/-\\ ");
    let spinner = styled(spinner, "{spinner} {msg} {elapsed}", style).with_message(what);
    match spinner.is_hidden() {
        true => print_lines(&spinner, what, None),
        false => {
            // The first one at once, because the thread of the others may come late.
            spinner.tick();
            spinner.enable_steady_tick(Duration::from_millis(100));
        }
    }
    spinner
}

/// Work that prints lines.
pub struct WatchedWork {
    pub bar: WeakProgressBar,
    pub what: &'static str,
    pub unit: Option<&'static str>,
    pub started: Instant,
    pub next: Duration,
    pub out: File,
}

impl WatchedWork {
    /// Prints a line if it is time; false if the work is done.
    pub fn poll(&mut self) -> bool {
        let Some(bar) = self.bar.upgrade().filter(|bar| !bar.is_finished()) else {
            return false;
        };
        let elapsed = self.started.elapsed();
        if elapsed >= self.next {
            self.next = elapsed + LINE_EVERY;
            let done = self.unit.map(|unit| (bar.position(), bar.length(), unit));
            // A closed standard error is ignored.
            let _ = writeln!(self.out, "{}", line(self.what, done, elapsed));
        }
        true
    }
}

/// A line of progress: `index: 120 of 3400 files, 40 s`.
pub fn line(what: &str, done: Option<(u64, Option<u64>, &str)>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match done {
        Some((done, Some(all), unit)) => format!("{what}: {done} of {all} {unit}, {seconds} s"),
        Some((done, None, unit)) => format!("{what}: {done} {unit}, {seconds} s"),
        None => format!("{what}: {seconds} s"),
    }
}

/// Prints lines for this bar until it is finished or dropped. One thread serves all bars.
fn print_lines(bar: &ProgressBar, what: &'static str, unit: Option<&'static str>) {
    static WATCHED: Mutex<Vec<WatchedWork>> = Mutex::new(Vec::new());
    static THREAD: Once = Once::new();
    let (Some(out), Ok(mut watched)) = (own_stderr(), WATCHED.lock()) else {
        return;
    };
    watched.push(WatchedWork {
        bar: bar.downgrade(),
        what,
        unit,
        started: Instant::now(),
        next: LINE_AFTER,
        out,
    });
    drop(watched);
    THREAD.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                if let Ok(mut watched) = WATCHED.lock() {
                    watched.retain_mut(WatchedWork::poll);
                }
            }
        });
    });
}

/// A duplicate of the current standard error. While driver messages are redirected (`drivers.rs`),
/// progress output must not go through that pipe.
#[cfg(unix)]
fn own_stderr() -> Option<File> {
    use std::os::fd::AsFd;
    let own = std::io::stderr().as_fd().try_clone_to_owned();
    own.ok().map(File::from)
}

#[cfg(not(unix))]
fn own_stderr() -> Option<File> {
    use std::os::windows::io::AsHandle;
    let own = std::io::stderr().as_handle().try_clone_to_owned();
    own.ok().map(File::from)
}

#[cfg(unix)]
fn target() -> ProgressDrawTarget {
    /// Redraws per second; `indicatif` has the same default.
    const RATE: u8 = 20;
    match own_stderr() {
        Some(own) => {
            let term = console::Term::read_write_pair(std::io::stdin(), own);
            ProgressDrawTarget::term(term, RATE)
        }
        None => ProgressDrawTarget::stderr(),
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
