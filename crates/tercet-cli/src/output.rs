//! Standard output and standard error: text output, JSON documents, readable numbers.
//!
//! Names come from untrusted files. Characters that move the cursor, change colours or reverse the
//! text direction are printed as escapes: `\u{1b}` in text output, `\u001b` in JSON. Every printer
//! here is flushed before it returns, so that a failed write is reported.

pub(crate) mod compact_numbers;

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use serde::Serialize;

use self::compact_numbers::CompactNumberFormatter;
use crate::error::CliError;

/// Whether a character changes the text around it on a terminal: controls, line separators, and the
/// marks, embeddings and isolates of bidirectional text.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether the lines contain characters that [`print_note`] would escape.
pub(crate) fn acts_on_terminals(lines: &str) -> bool {
    lines.contains(|c| acts(c) && c != '\n')
}

/// Escapes a one-line text for the terminal.
pub fn escape_line(text: &str) -> String {
    escaped(text, acts)
}

/// Escapes lines for the terminal; line ends stay.
pub fn escape_lines(text: &str) -> String {
    escaped(text, |c| acts(c) && c != '\n')
}

fn escaped(text: &str, bad: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match bad(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Buffered standard output that escapes characters with an effect on the terminal, except line
/// ends.
pub(crate) struct EscapingStdout {
    out: BufWriter<StdoutLock<'static>>,
    escape: fn(char) -> String,
}

impl EscapingStdout {
    fn new(escape: fn(char) -> String) -> EscapingStdout {
        let out = BufWriter::new(io::stdout().lock());
        EscapingStdout { out, escape }
    }
}

/// Each call must contain whole characters, as formatting produces them.
impl Write for EscapingStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut rest: &str = &text;
        while let Some(at) = rest.find(|c| acts(c) && c != '\n') {
            let (head, tail) = rest.split_at(at);
            self.out.write_all(head.as_bytes())?;
            let mut tail = tail.chars();
            if let Some(c) = tail.next() {
                self.out.write_all((self.escape)(c).as_bytes())?;
            }
            rest = tail.as_str();
        }
        self.out.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Prints text output.
pub(crate) fn print_for_humans(
    print: impl FnOnce(&mut EscapingStdout) -> Result<(), io::Error>,
) -> Result<(), CliError> {
    let mut out = EscapingStdout::new(|c| c.escape_default().to_string());
    print(&mut out)?;
    out.flush()?;
    Ok(())
}

/// Prints one JSON document. An array of numbers is one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), CliError> {
    // In JSON, the characters to escape occur only inside strings. The code points of these
    // characters have at most four hexadecimal digits.
    let mut out = EscapingStdout::new(|c| format!("\\u{:04x}", u32::from(c)));
    let formatter = CompactNumberFormatter::default();
    let mut writer = serde_json::Serializer::with_formatter(&mut out, formatter);
    value.serialize(&mut writer).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Prints and flushes generated text: unchanged to files and pipes; on a terminal without control
/// characters other than line ends and tabs.
pub(crate) fn text(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        let safe = escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'));
        out.write_all(safe.as_bytes())?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.flush()?;
    Ok(())
}

/// Prints and flushes a piece of a thought, dimmed on a terminal unless `NO_COLOR` is set. Without a
/// terminal as standard output, thoughts go to standard error: a file then has only the answer.
pub(crate) fn thought(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        write_dimmed(&mut out, text)?;
        return Ok(());
    }
    let mut out = io::stderr().lock();
    // A closed standard error is ignored, as for notes.
    let _ = match out.is_terminal() {
        true => write_dimmed(&mut out, text),
        false => out.write_all(text.as_bytes()).and_then(|()| out.flush()),
    };
    Ok(())
}

fn write_dimmed(out: &mut impl Write, text: &str) -> io::Result<()> {
    const DIM: &str = "\u{1b}[2m";
    const NORMAL: &str = "\u{1b}[22m";
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let has_styles = var("NO_COLOR").is_none() && var("TERM").is_none_or(|term| term != "dumb");
    let safe = escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'));
    match has_styles {
        // Each piece ends its style, because the user may interrupt the answer.
        true => write!(out, "{DIM}{safe}{NORMAL}")?,
        false => out.write_all(safe.as_bytes())?,
    }
    out.flush()
}

/// Prints a line to standard error; a closed standard error is ignored.
pub(crate) fn print_note(line: fmt::Arguments<'_>) {
    let line = escape_lines(&line.to_string());
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints the notes of libraries, such as that a driver refuses a kernel, to standard error.
pub(crate) fn print_library_notes() {
    /// Target of events that are notes for users.
    const TARGET: &str = "tercet::notes";
    let notes = Targets::new().with_target(TARGET, Level::WARN);
    let subscriber = tracing_subscriber::registry().with(NotesLayer.with_filter(notes));
    // If the process has another subscriber, that one receives the notes.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Prints the message of each event.
struct NotesLayer;

impl<S: tracing::Subscriber> Layer<S> for NotesLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut NoteMessage);
    }
}

/// The message of an event.
struct NoteMessage;

impl Visit for NoteMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            print_note(format_args!("note: {value:?}"));
        }
    }
}

/// Bytes with a binary unit: `1.5 MiB`
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// An integer with thousands separators: `3,541,248`
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped
}

/// Shortens a text to one line of at most `max` characters. Every white-space character becomes a
/// space.
pub fn clip(text: &str, max: usize) -> String {
    let spaced = |c: char| if c.is_whitespace() { ' ' } else { c };
    // Shorten before escaping, so that no escape sequence of up to eight characters is cut.
    let line: String = text.chars().take(max + 1).map(spaced).collect();
    let line = escape_line(&line);
    if line.chars().count() <= max {
        return line;
    }
    let head: String = line.chars().take(max.saturating_sub(3)).collect();
    format!("{head}...")
}
