//! The input of a conversation: a line editor on a terminal, plain lines otherwise.

use std::cell::Cell;
use std::io::{BufRead, ErrorKind, IsTerminal, Read, StdinLock};

use rustyline::completion::Completer;
use rustyline::config::{Behavior, BellStyle};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};

use super::history::{HistoryFile, MAX_ENTRIES};
use crate::error::{CliError, STANDARD_INPUT};
use crate::interrupt::{self, InterruptAction};
use crate::output;

/// Maximum length of a message, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;

const PROMPT: &str = "> ";

/// Values of `TERM` whose terminals cannot move the cursor.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// The next input of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatInput {
    /// A message or a command. A pasted text is one message, with its line ends.
    Line(String),
    /// The end of the input.
    End,
    /// The user pressed Ctrl-C twice at an empty prompt.
    Interrupted,
}

/// Reads the messages of a conversation.
pub(super) enum ChatReader {
    Editor(Box<MessageEditor>),
    /// Plain lines, with a prompt on a terminal.
    Lines {
        input: StdinLock<'static>,
        is_terminal: bool,
    },
}

impl ChatReader {
    /// Opens standard input. On a terminal the earlier messages are loaded, if `keeps_history`.
    pub(super) fn open(keeps_history: bool) -> Result<ChatReader, CliError> {
        let is_terminal = std::io::stdin().is_terminal();
        let term = std::env::var("TERM").unwrap_or_default();
        let is_plain = PLAIN_TERMINALS
            .iter()
            .any(|plain| plain.eq_ignore_ascii_case(&term));
        if is_terminal && !is_plain {
            let editor = MessageEditor::open(keeps_history)?;
            return Ok(ChatReader::Editor(Box::new(editor)));
        }
        let input = std::io::stdin().lock();
        Ok(ChatReader::Lines { input, is_terminal })
    }

    /// Whether a person at a terminal writes the messages.
    pub(super) fn is_terminal(&self) -> bool {
        match self {
            ChatReader::Editor(_) => true,
            ChatReader::Lines { is_terminal, .. } => *is_terminal,
        }
    }

    /// Waits for the next input. Ctrl-C acts as the kind of input requires.
    pub(super) fn read(&mut self) -> Result<ChatInput, CliError> {
        match self {
            ChatReader::Editor(editor) => {
                interrupt::set_action(InterruptAction::Ignore);
                editor.read()
            }
            ChatReader::Lines { input, is_terminal } => {
                if *is_terminal {
                    output::text(PROMPT)?;
                }
                interrupt::set_action(match is_terminal {
                    true => InterruptAction::Confirm,
                    false => InterruptAction::Exit,
                });
                read_line(input)
            }
        }
    }
}

/// Reads the next plain line.
pub fn read_line(input: &mut impl BufRead) -> Result<ChatInput, CliError> {
    let mut line = Vec::new();
    let read = input
        .take(MAX_MESSAGE as u64 + 1)
        .read_until(b'\n', &mut line);
    let read = read.map_err(failed)?;
    check_length(read)?;
    let line = String::from_utf8(line).map_err(|_| not_text())?;
    Ok(match read {
        0 => ChatInput::End,
        _ => ChatInput::Line(line),
    })
}

fn check_length(bytes: usize) -> Result<(), CliError> {
    if bytes <= MAX_MESSAGE {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "the message is longer than {MAX_MESSAGE} bytes; shorten it"
    )))
}

fn not_text() -> CliError {
    CliError::Usage("the message is not valid UTF-8".into())
}

fn failed(source: std::io::Error) -> CliError {
    CliError::File {
        path: STANDARD_INPUT.into(),
        source,
    }
}

/// The line editor with the history of messages.
pub(super) struct MessageEditor {
    editor: Editor<LineObserver, MemHistory>,
    /// `None` without a state folder.
    history: Option<HistoryFile>,
}

impl MessageEditor {
    fn open(keeps_history: bool) -> Result<MessageEditor, CliError> {
        // If standard output is a file, the prompt and the edited line belong on the terminal.
        let behavior = match std::io::stdout().is_terminal() {
            true => Behavior::Stdio,
            false => Behavior::PreferTerm,
        };
        let config = Config::builder()
            .behavior(behavior)
            .bell_style(BellStyle::None)
            .history_ignore_space(true)
            .max_history_size(MAX_ENTRIES)
            .map_err(error_of)?
            .build();
        let history = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history).map_err(error_of)?;
        editor.set_helper(Some(LineObserver::default()));
        let mut history = keeps_history.then(HistoryFile::of_user).flatten();
        match history.as_ref().map(HistoryFile::load) {
            Some(Ok(entries)) => {
                for entry in entries {
                    editor.add_history_entry(entry).map_err(error_of)?;
                }
            }
            Some(Err(e)) => {
                output::print_note(format_args!("note: no history of earlier messages: {e}"));
                history = None;
            }
            None => {}
        }
        Ok(MessageEditor { editor, history })
    }

    fn read(&mut self) -> Result<ChatInput, CliError> {
        let mut warned = false;
        loop {
            let line = match self.editor.readline(PROMPT) {
                Ok(line) => line,
                Err(ReadlineError::Eof) => return Ok(ChatInput::End),
                Err(ReadlineError::Interrupted) => {
                    let is_empty = self.editor.helper().is_none_or(|seen| seen.is_empty.get());
                    match (is_empty, warned) {
                        // The key discards the line.
                        (false, _) => warned = false,
                        (true, true) => return Ok(ChatInput::Interrupted),
                        (true, false) => {
                            output::print_note(format_args!("{}", interrupt::LEAVE));
                            warned = true;
                        }
                    }
                    continue;
                }
                // A signal or a change of the window's size interrupts the wait.
                Err(ReadlineError::Signal(_)) => continue,
                Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::Interrupted => continue,
                Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => {
                    return Err(not_text());
                }
                Err(e) => return Err(error_of(e)),
            };
            check_length(line.len())?;
            self.remember(&line)?;
            return Ok(ChatInput::Line(line));
        }
    }

    /// Adds a message to the history. As in shells, one that starts with a space is not added.
    fn remember(&mut self, line: &str) -> Result<(), CliError> {
        if line.trim().is_empty() || !self.editor.add_history_entry(line).map_err(error_of)? {
            return Ok(());
        }
        if let Some(history) = &self.history
            && let Err(e) = history.append(line)
        {
            output::print_note(format_args!("note: the message is not in the history: {e}"));
            self.history = None;
        }
        Ok(())
    }
}

fn error_of(e: ReadlineError) -> CliError {
    failed(match e {
        ReadlineError::Io(e) => e,
        e => std::io::Error::other(e),
    })
}

/// Observes whether the edited line is empty. The editor discards the line when it reports Ctrl-C, and
/// asks for hints whenever the line changes.
struct LineObserver {
    is_empty: Cell<bool>,
}

impl Default for LineObserver {
    fn default() -> LineObserver {
        LineObserver {
            is_empty: Cell::new(true),
        }
    }
}

impl Hinter for LineObserver {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Completer for LineObserver {
    type Candidate = String;
}

impl Highlighter for LineObserver {}

impl Validator for LineObserver {}

impl Helper for LineObserver {}
