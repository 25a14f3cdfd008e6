//! `tercet chat`: a conversation, line by line. What was said stays in the cache: a turn computes only what is new.

use std::io::{BufRead, IsTerminal, Read};

use tercet_models::dataset::{ChatTemplate, Message, Role};
use tercet_models::{Finish, SamplingOptions};

use super::choosing::{Choosing, set};
use super::writing::{Loading, Writer};
use super::{seed, tokens};
use crate::error::{CliError, Outcome};
use crate::{error, interrupt, output};

/// Bytes of a line at most.
const MAX_LINE: u64 = 1 << 20;

const HELP: &str = "\
/help              this text
/reset             forgets what was said
/system TEXT       tells the model something first, and forgets what was said; without a text nothing
/set NAME VALUE    temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, presence-penalty,
                   frequency-penalty, seed, tokens
/quit              ends, as the end of the input does
Ctrl-C stops an answer; while no answer is written it ends the conversation.";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    loading: Loading,
    /// What the model is told first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The most tokens of an answer; -1 until the model ends it or the context is full
    #[arg(short = 'n', long, default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    choosing: Choosing,
}

struct Conversation {
    writer: Writer,
    template: ChatTemplate,
    sampling: SamplingOptions,
    system: Option<String>,
    /// Turns, without the system's.
    turns: Vec<Message>,
    tokens: usize,
    stop: Vec<String>,
}

/// What becomes of the conversation after a line.
enum Next {
    Line,
    Quit,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let mut writer = args.loading.load(&args.choosing)?;
    let template = writer.chat()?;
    let mut conversation = Conversation {
        writer,
        template,
        sampling: args.choosing.options(),
        system: args.system.clone(),
        turns: Vec::new(),
        tokens: args.tokens,
        stop: args.choosing.stop.clone(),
    };
    interrupt::set_idle(true);
    interrupt::listen();
    let mut input = std::io::stdin().lock();
    let terminal = input.is_terminal();
    if terminal {
        output::note(format_args!("/help tells what there is besides talking"));
    }
    loop {
        if terminal {
            output::text("> ")?;
        }
        let Some(line) = read_line(&mut input)? else {
            return Ok(Outcome::Done);
        };
        interrupt::set_idle(false);
        let next = conversation.line(line.trim());
        interrupt::set_idle(true);
        match next {
            Ok(Next::Line) => {}
            Ok(Next::Quit) => return Ok(Outcome::Done),
            // Somebody who types can type something else.
            Err(e @ CliError::Usage(_)) if terminal => error::report(&e),
            Err(e) => return Err(e),
        }
    }
}

/// The next line of the input, if there is one.
fn read_line(input: &mut impl BufRead) -> Result<Option<String>, CliError> {
    let failed = |source| CliError::File {
        path: "standard input".into(),
        source,
    };
    let mut line = Vec::new();
    let read = input.take(MAX_LINE + 1).read_until(b'\n', &mut line);
    let read = read.map_err(failed)?;
    if read as u64 > MAX_LINE {
        let text = format!("a line of the conversation has more than {MAX_LINE} bytes; shorten it");
        return Err(CliError::Usage(text));
    }
    let line = String::from_utf8(line).map_err(|_| {
        CliError::Usage("a line of the conversation is not UTF-8; write it as UTF-8".into())
    })?;
    Ok((read > 0).then_some(line))
}

impl Conversation {
    fn line(&mut self, line: &str) -> Result<Next, CliError> {
        let Some(command) = line.strip_prefix('/') else {
            if !line.is_empty() {
                self.answer(line)?;
            }
            return Ok(Next::Line);
        };
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" => output::text(&format!("{HELP}\n"))?,
            "reset" => self.turns.clear(),
            "system" => {
                self.system = (!rest.is_empty()).then(|| rest.to_string());
                self.turns.clear();
            }
            "set" => self.set(rest)?,
            "quit" | "exit" | "bye" => return Ok(Next::Quit),
            _ => {
                let text = format!("/{name}: no such command; /help tells what there is");
                return Err(CliError::Usage(text));
            }
        }
        Ok(Next::Line)
    }

    fn set(&mut self, rest: &str) -> Result<(), CliError> {
        let Some((name, value)) = rest.split_once(' ') else {
            let text = format!("/set {rest}: expected a name and a value, such as /set temp 0.7");
            return Err(CliError::Usage(text));
        };
        let value = value.trim();
        let failed = |reason| CliError::Usage(format!("/set {name} {value}: {reason}"));
        match name {
            "tokens" => self.tokens = tokens(value).map_err(failed)?,
            "seed" => {
                let seed = seed(value).map_err(failed)?;
                self.writer.generator.set_seed(seed);
            }
            name => {
                let mut sampling = self.sampling.clone();
                set(&mut sampling, name, value)?;
                let set = self.writer.generator.set_sampling(&sampling);
                set.map_err(CliError::model("cannot choose tokens in this way"))?;
                self.sampling = sampling;
            }
        }
        Ok(())
    }

    /// Answers a message. One that cannot be answered is forgotten.
    fn answer(&mut self, line: &str) -> Result<(), CliError> {
        self.turns.push(Message::new(Role::User, line));
        let answered = self.written();
        if answered.is_err() {
            self.turns.pop();
        }
        answered
    }

    fn written(&mut self) -> Result<(), CliError> {
        let system = self.system.iter().map(|s| Message::new(Role::System, s));
        let messages: Vec<Message> = system.chain(self.turns.iter().cloned()).collect();
        let ids = self.writer.conversation(&self.template, &messages)?;
        let context = self.writer.generator.context();
        if ids.len() > context {
            let n = ids.len();
            return Err(CliError::Usage(format!(
                "the conversation has {n} tokens, which do not fit the context of {context}; /reset forgets it, \
                 --context makes room"
            )));
        }
        let mut shown = false;
        let written = self
            .writer
            .write(&ids, self.tokens, &self.stop, &mut |piece| {
                shown = true;
                output::text(piece)
            });
        if shown {
            output::text("\n")?;
        }
        let written = written?;
        match written.finish {
            Finish::End | Finish::Stop | Finish::Length => {}
            Finish::Context => output::note(format_args!(
                "note: the context of {context} tokens is full; /reset forgets what was said"
            )),
            Finish::Cancelled => output::note(format_args!("note: interrupted")),
        }
        // What was answered until then was said.
        self.turns
            .push(Message::new(Role::Assistant, &written.text));
        Ok(())
    }
}
