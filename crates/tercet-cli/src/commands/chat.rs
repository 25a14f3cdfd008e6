//! `tercet chat`: a conversation, line by line. What was said stays in the cache: a turn computes only what is new.

use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;

use tercet_models::dataset::{ChatTemplate, Message, Role};
use tercet_models::{Finish, SamplingOptions};

use super::choosing::{Choosing, set};
use super::writing::{Drafting, Loading, Writer};
use super::{seed, tokens};
use crate::error::{CliError, Outcome};
use crate::{error, interrupt, output};

/// Bytes of a line at most.
const MAX_LINE: u64 = 1 << 20;

const HELP: &str = "\
/help              this text
/reset             forgets what was said
/system TEXT       tells the model something first, and forgets what was said; without a text nothing
/image FILE        shows the model a PNG or JPEG file with the next message
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
    /// A PNG or JPEG file that the first message is about; as often as there are pictures
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// The most tokens of an answer; -1 until the model ends it or the context is full
    #[arg(short = 'n', long, default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    choosing: Choosing,
    #[command(flatten)]
    drafting: Drafting,
}

struct Conversation {
    writer: Writer,
    template: ChatTemplate,
    sampling: SamplingOptions,
    system: Option<String>,
    /// Turns, without the system's.
    turns: Vec<Message>,
    /// Pictures of these turns; those behind them go with the next message.
    seen: usize,
    tokens: usize,
    stop: Vec<String>,
}

/// What becomes of the conversation after a line.
enum Next {
    Line,
    Quit,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let mut writer = args.loading.load(&args.choosing, &args.drafting)?;
    let template = writer.chat()?;
    writer.look(&args.image)?;
    let mut conversation = Conversation {
        writer,
        template,
        sampling: args.choosing.options(),
        system: args.system.clone(),
        turns: Vec::new(),
        seen: 0,
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
            "reset" => self.forget(),
            "image" => self.writer.look(&[PathBuf::from(rest)])?,
            "system" => {
                self.system = (!rest.is_empty()).then(|| rest.to_string());
                self.forget();
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

    /// Forgets what was said and shown.
    fn forget(&mut self) {
        self.turns.clear();
        self.seen = 0;
        self.writer.keep_pictures(0);
    }

    /// Answers a message. One that cannot be answered is forgotten, with its pictures.
    fn answer(&mut self, line: &str) -> Result<(), CliError> {
        let before = self.seen;
        self.seen = self.writer.pictures();
        let message = self.writer.message(Role::User, self.seen - before, line);
        self.turns.push(message);
        let answered = self.written();
        if answered.is_err() {
            self.turns.pop();
            self.seen = before;
            self.writer.keep_pictures(before);
        }
        answered
    }

    fn written(&mut self) -> Result<(), CliError> {
        let system = self.system.iter();
        let system = system.map(|s| self.writer.message(Role::System, 0, s));
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
        let said = self.writer.message(Role::Assistant, 0, &written.text);
        self.turns.push(said);
        Ok(())
    }
}
