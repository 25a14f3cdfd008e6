//! `tercet chat`: an interactive conversation. The KV cache keeps the previous turns, so each turn
//! computes only its new tokens.

use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;

use tercet_models::dataset::{ChatMessage, ChatTemplate, Role};
use tercet_models::{FinishReason, SamplingOptions};

use super::generation::{ChatTemplateArgs, ModelArgs, SpeculativeArgs, TextGenerator};
use super::sampling_args::{SamplingArgs, set};
use super::{seed, tokens};
use crate::error::{CliError, CommandOutcome};
use crate::{error, interrupt, output};

/// Maximum length of an input line, in bytes.
const MAX_LINE: u64 = 1 << 20;

const HELP: &str = "\
/help              show this help
/reset             clear the conversation
/system TEXT       set the system prompt and clear the conversation; without TEXT, remove the system prompt
/image FILE        attach a PNG or JPEG file to the next message
/set NAME VALUE    change temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, presence-penalty,
                   frequency-penalty, top-n-sigma, typical, xtc-probability, xtc-threshold,
                   dynatemp-range, dynatemp-exp, dry-multiplier, dry-base, seed, tokens
/quit              exit; the end of the input exits too
Ctrl-C stops an answer; at the prompt it exits.";

#[derive(clap::Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    loading: ModelArgs,
    #[command(flatten)]
    template: ChatTemplateArgs,
    /// System prompt
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,
    /// PNG or JPEG file to attach to the first message; repeatable
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Maximum tokens per answer; -1: until end of turn or context
    #[arg(short = 'n', long, visible_aliases = ["n-predict", "predict", "max-tokens"], default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    choosing: SamplingArgs,
    #[command(flatten)]
    drafting: SpeculativeArgs,
}

struct ChatSession {
    writer: TextGenerator,
    template: ChatTemplate,
    sampling: SamplingOptions,
    system: Option<String>,
    /// User and assistant turns; the system prompt is a separate field.
    turns: Vec<ChatMessage>,
    /// Number of images that belong to `turns`. Later images are sent with the next message.
    image_count: usize,
    tokens: usize,
    stop: Vec<String>,
}

/// Whether the conversation continues after an input line.
enum ChatAction {
    Line,
    Quit,
}

pub(crate) fn run(args: &ChatArgs) -> Result<CommandOutcome, CliError> {
    let mut writer = args.loading.load(&args.choosing, &args.drafting, None)?;
    let template = writer.chat(&args.template)?;
    if args.choosing.temperature() > 0.0 {
        output::print_note(format_args!("seed {}", args.choosing.seed));
    }
    writer.add_images(&args.image)?;
    let sampling = writer.sampling.clone();
    let mut conversation = ChatSession {
        writer,
        template,
        sampling,
        system: args.system.clone(),
        turns: Vec::new(),
        image_count: 0,
        tokens: args.tokens,
        stop: args.choosing.stop.clone(),
    };
    interrupt::set_idle(true);
    interrupt::listen();
    let mut input = std::io::stdin().lock();
    let terminal = input.is_terminal();
    if terminal {
        output::print_note(format_args!("/help lists the commands"));
    }
    loop {
        if terminal {
            output::text("> ")?;
        }
        let Some(line) = read_line(&mut input)? else {
            return Ok(CommandOutcome::Done);
        };
        interrupt::set_idle(false);
        let next = conversation.line(line.trim());
        interrupt::set_idle(true);
        match next {
            Ok(ChatAction::Line) => {}
            Ok(ChatAction::Quit) => return Ok(CommandOutcome::Done),
            // On a terminal the user can correct the line, so the error does not end the
            // conversation.
            Err(e @ (CliError::Usage(_) | CliError::Template(_))) if terminal => error::report(&e),
            Err(e) => return Err(e),
        }
    }
}

/// Reads the next input line; `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> Result<Option<String>, CliError> {
    let failed = |source| CliError::File {
        path: "standard input".into(),
        source,
    };
    let mut line = Vec::new();
    let read = input.take(MAX_LINE + 1).read_until(b'\n', &mut line);
    let read = read.map_err(failed)?;
    if read as u64 > MAX_LINE {
        let text = format!("the message is longer than {MAX_LINE} bytes; shorten it");
        return Err(CliError::Usage(text));
    }
    let line = String::from_utf8(line)
        .map_err(|_| CliError::Usage("the message is not valid UTF-8".into()))?;
    Ok((read > 0).then_some(line))
}

impl ChatSession {
    fn line(&mut self, line: &str) -> Result<ChatAction, CliError> {
        let Some(command) = line.strip_prefix('/') else {
            if !line.is_empty() {
                self.answer(line)?;
            }
            return Ok(ChatAction::Line);
        };
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" => output::text(&format!("{HELP}\n"))?,
            "reset" => self.reset(),
            "image" => self.writer.add_images(&[PathBuf::from(rest)])?,
            "system" => {
                self.system = (!rest.is_empty()).then(|| rest.to_string());
                self.reset();
            }
            "set" => self.set(rest)?,
            "quit" | "exit" | "bye" => return Ok(ChatAction::Quit),
            _ => {
                let text = format!("/{name}: unknown command; /help lists the commands");
                return Err(CliError::Usage(text));
            }
        }
        Ok(ChatAction::Line)
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
                if value == "-1" {
                    output::print_note(format_args!("seed {seed}"));
                }
            }
            name => {
                let mut sampling = self.sampling.clone();
                set(&mut sampling, name, value)?;
                let set = self.writer.generator.set_sampling(&sampling);
                set.map_err(CliError::model("cannot use these sampling settings"))?;
                self.sampling = sampling;
            }
        }
        Ok(())
    }

    /// Clears the turns and the images.
    fn reset(&mut self) {
        self.turns.clear();
        self.image_count = 0;
        self.writer.truncate_images(0);
    }

    /// Answers a message. If the answer fails, the message and its images are removed from the
    /// conversation.
    fn answer(&mut self, line: &str) -> Result<(), CliError> {
        let before = self.image_count;
        self.image_count = self.writer.image_count();
        let message = self
            .writer
            .message(Role::User, self.image_count - before, line);
        self.turns.push(message);
        let answered = self.generate_reply();
        if answered.is_err() {
            self.turns.pop();
            self.image_count = before;
            self.writer.truncate_images(before);
        }
        answered
    }

    fn generate_reply(&mut self) -> Result<(), CliError> {
        let system = self.system.iter();
        let system = system.map(|s| self.writer.message(Role::System, 0, s));
        let messages: Vec<ChatMessage> = system.chain(self.turns.iter().cloned()).collect();
        let ids = self.writer.conversation(&self.template, &messages)?;
        let context = self.writer.generator.context();
        if ids.len() > context {
            let n = ids.len();
            return Err(CliError::Usage(format!(
                "the conversation has {n} tokens and exceeds the context of {context}; clear it with /reset, \
                 or set a larger --context"
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
            FinishReason::End | FinishReason::Stop | FinishReason::Length => {}
            FinishReason::Context => output::print_note(format_args!(
                "note: the context of {context} tokens is full; /reset clears the conversation"
            )),
            FinishReason::Cancelled => output::print_note(format_args!("note: interrupted")),
        }
        // An interrupted answer stays in the conversation as far as it was generated.
        let said = self.writer.message(Role::Assistant, 0, &written.text);
        self.turns.push(said);
        Ok(())
    }
}
