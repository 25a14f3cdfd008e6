//! `tercet chat`: a conversation with a language model, turn by turn.
//!
//! A turn is a line of standard input: of a person at a terminal, or of a file or a pipe. Lines that begin with `/` are
//! commands; see [`HELP`].

mod dialogue;

use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;

use serde::Serialize;
use tercet_models::ModelError;

use self::dialogue::{Answer, Dialogue};
use super::language::{self, Loaded, load};
use super::prompt::{SPELLS, spells_special, template};
use super::{device, tokens};
use crate::error::{self, CliError, Outcome};
use crate::interrupt;
use crate::output;

const HELP: &str = "\
/help         shows this
/reset        forgets the conversation; what /system said stays
/system TEXT  tells the model TEXT before the conversation; without TEXT nothing
/quit         leaves, as Ctrl-D does
Ctrl-C stops an answer. A message that begins with / needs a space before it.";

/// Bytes of a line at most: what is longer fits no context.
const MAX_LINE: u64 = 16 << 20;

#[derive(clap::Args)]
#[command(after_help = format!("Lines of standard input are turns; those with / in front are commands:\n{HELP}"))]
pub(crate) struct Args {
    /// A chat template in place of the model's, in Jinja
    #[arg(long, value_name = "PATH")]
    template: Option<PathBuf>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The most tokens of an answer; -1 until the model ends it or the context is full
    #[arg(short = 'n', long, default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    model: language::Args,
    /// Say after each answer how much was computed, and how fast
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON document at the end instead of streaming
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    seed: u64,
    context: usize,
    turns: Vec<Answer>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let device = device(&args.model.device)?;
    let Loaded {
        files,
        llama,
        tokenizer,
        generator,
    } = load(&args.model, &device)?;
    let model = args.model.model.as_deref();
    let template = template(args.template.as_deref(), &files, &tokenizer, model)?;
    let ends = template.ends(&tokenizer, &llama.config.eos);
    if let Some(system) = &args.system
        && spells_special(&tokenizer, system)?
    {
        return Err(CliError::Usage(format!("--system: {SPELLS}")));
    }
    let context = generator.context();
    let mut dialogue = Dialogue::new(generator, &tokenizer, &template, ends);
    dialogue.set_system(args.system.as_deref());
    interrupt::listen();
    let person = std::io::stdin().is_terminal();
    if person {
        output::note(format_args!("/help shows the commands, /quit leaves"));
    }
    let mut turns = Vec::new();
    while let Some(line) = next_line(person)? {
        match Line::of(&line) {
            Line::Empty => {}
            Line::Quit => break,
            Line::Help => output::note(format_args!("{HELP}")),
            Line::Reset => dialogue.reset(),
            Line::System(text) if spells_special(&tokenizer, text)? => refuse(SPELLS),
            Line::System(text) => dialogue.set_system(Some(text).filter(|t| !t.is_empty())),
            Line::Unknown(name) => refuse(&format!(
                "there is no command {name}; /help shows them, and a space before / makes it a message"
            )),
            Line::Say(text) if spells_special(&tokenizer, text)? => refuse(SPELLS),
            Line::Say(text) => {
                if let Some(answer) = turn(&mut dialogue, text, args)? {
                    turns.push(answer);
                }
            }
        }
    }
    if args.json {
        output::json(&Report {
            device: device.name(),
            seed: args.model.seed,
            context,
            turns,
        })?;
    }
    Ok(Outcome::Done)
}

/// An answer, shown as it comes; none to a message that did not fit or that the template refused: the conversation is as
/// before it.
fn turn(dialogue: &mut Dialogue<'_>, text: &str, args: &Args) -> Result<Option<Answer>, CliError> {
    let shown = !args.json;
    let answer = dialogue.say(text, args.tokens, &mut |piece| match shown {
        true => output::text(piece),
        false => Ok(()),
    });
    // Whatever follows begins a line.
    if shown {
        output::text("\n")?;
    }
    let answer = match answer {
        Ok(answer) => answer,
        Err(e) if is_of_the_message(&e) => {
            error::report(&e);
            output::note(format_args!(
                "the message was left out; /reset begins a new conversation, -c N gives it more room"
            ));
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    if args.verbose {
        output::note(format_args!("{}", answer.summary()));
    } else if let Some(why) = answer.cut_short() {
        output::note(format_args!("{why}"));
    }
    Ok(Some(answer))
}

/// Whether an error is the message's and not the model's or the device's.
fn is_of_the_message(e: &CliError) -> bool {
    use tercet_models::Error as Models;
    let CliError::Model { source, .. } = e else {
        return false;
    };
    matches!(
        source,
        Models::Data(_) | Models::Model(ModelError::Context { .. } | ModelError::NoTokens)
    )
}

fn refuse(why: &str) {
    output::note(format_args!("note: {why}"));
}

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Empty,
    Help,
    Reset,
    System(&'a str),
    Quit,
    Unknown(&'a str),
    Say(&'a str),
}

impl Line<'_> {
    fn of(line: &str) -> Line<'_> {
        let text = line.trim();
        if text.is_empty() {
            return Line::Empty;
        }
        if !line.starts_with('/') {
            return Line::Say(text);
        }
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (name, rest.trim()) {
            ("/help" | "/?", "") => Line::Help,
            ("/reset" | "/clear", "") => Line::Reset,
            ("/quit" | "/exit" | "/bye", "") => Line::Quit,
            ("/system", text) => Line::System(text),
            (name, _) => Line::Unknown(name),
        }
    }
}

/// The next line, without its end; none at the end of the input.
fn next_line(person: bool) -> Result<Option<String>, CliError> {
    if person {
        output::text("> ")?;
    }
    interrupt::clear();
    let mut line = Vec::new();
    let read = interrupt::waiting(|| {
        let stdin = std::io::stdin().lock();
        stdin.take(MAX_LINE + 1).read_until(b'\n', &mut line)
    });
    interrupt::clear();
    let failed = |source| CliError::File {
        path: "standard input".into(),
        source,
    };
    if read.map_err(failed)? == 0 {
        if person {
            output::text("\n")?;
        }
        return Ok(None);
    }
    if line.len() as u64 > MAX_LINE {
        let limit = MAX_LINE >> 20;
        return Err(CliError::Usage(format!(
            "standard input: a line has more than {limit} MiB, which fits no context; give less"
        )));
    }
    let text = String::from_utf8(line)
        .map_err(|e| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, e)))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        for (line, want) in [
            ("\n", Line::Empty),
            ("  \t\r\n", Line::Empty),
            ("Hello there\r\n", Line::Say("Hello there")),
            (" /usr/bin\n", Line::Say("/usr/bin")),
            ("/help\n", Line::Help),
            ("/system  be brief \n", Line::System("be brief")),
            ("/system", Line::System("")),
            ("/quit", Line::Quit),
            ("/reset\n", Line::Reset),
            ("/resets\n", Line::Unknown("/resets")),
            ("/quit now\n", Line::Unknown("/quit")),
            ("/\n", Line::Unknown("/")),
        ] {
            assert_eq!(Line::of(line), want, "{line:?}");
        }
    }
}
