//! `tercet chat`: an interactive conversation. The KV cache keeps the previous turns, so each turn
//! computes only its new tokens.

pub(crate) mod history;
pub(crate) mod input;
pub(crate) mod mcp;
mod turns;

use std::path::PathBuf;

use tercet_models::answer::{AnswerTool, ToolCall};
use tercet_models::dataset::{ChatTemplate, Role};
use tercet_models::{FinishReason, SamplingOptions};

use self::input::{ChatInput, ChatReader};
use self::mcp::{McpClientArgs, McpTools};
use self::turns::{ChatTurns, ShownTools};
use super::generation::{ChatTemplateArgs, ModelArgs, SpeculativeArgs, TextGenerator};
use super::sampling_args::{GivenArgs, SamplingArgs, set};
use super::{seed, tokens};
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, InterruptAction};
use crate::{error, output};

const HELP: &str = "\
/help              show this help
/clear, /reset     clear the conversation
/system TEXT       set the system prompt and clear the conversation; without TEXT, remove the system prompt
/image FILE        attach a PNG, JPEG, WebP or GIF file to the next message
/set NAME VALUE    change temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, presence-penalty,
                   frequency-penalty, top-n-sigma, typical, xtc-probability, xtc-threshold,
                   dynatemp-range, dynatemp-exp, dry-multiplier, dry-base, seed, tokens
/quit              exit; the end of the input exits too
Up and Down recall earlier messages, Ctrl-R searches them. A pasted text is one message, line ends included.
Ctrl-C stops an answer or discards the line; twice at an empty prompt it exits.";

#[derive(clap::Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    given: GivenArgs,
    #[command(flatten)]
    loading: ModelArgs,
    #[command(flatten)]
    template: ChatTemplateArgs,
    /// System prompt
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,
    /// PNG, JPEG, WebP or GIF file to attach to the first message; repeatable
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Maximum tokens per answer; -1: until end of turn or context
    #[arg(short = 'n', long, visible_aliases = ["n-predict", "predict", "max-tokens"], default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    choosing: SamplingArgs,
    #[command(flatten)]
    drafting: SpeculativeArgs,
    #[command(flatten)]
    mcp: McpClientArgs,
    /// Keep the messages out of the history file, tercet/chat-history in the user's state folder
    #[arg(long)]
    no_history: bool,
}

/// Maximum answers in a row that call tools.
const MAX_ROUNDS: usize = 16;

struct ChatSession {
    writer: TextGenerator,
    template: ChatTemplate,
    sampling: SamplingOptions,
    /// The messages. Images beyond theirs are sent with the next message.
    turns: ChatTurns,
    tools: McpTools,
    /// The tools for the parser of answers.
    parsed_tools: Vec<AnswerTool>,
    /// Whether the note about dropped turns was printed.
    is_drop_reported: bool,
    tokens: usize,
    stop: Vec<String>,
}

/// Whether the conversation continues after an input line.
enum ChatAction {
    Line,
    Quit,
}

pub(crate) fn run(args: &ChatArgs) -> Result<CommandOutcome, CliError> {
    let ollama = args.loading.ollama()?.unwrap_or_default();
    let choosing = args.choosing.with_params(&ollama.params);
    let mut writer = args.loading.load(&choosing, &args.drafting, None)?;
    let template = writer.chat(&args.template)?;
    if choosing.temperature() > 0.0 {
        output::print_note(format_args!("seed {}", choosing.seed));
    }
    writer.add_images(&args.image)?;
    let sampling = writer.sampling.clone();
    let tools = McpTools::open(&args.mcp)?;
    let mut conversation = ChatSession {
        writer,
        template,
        sampling,
        turns: ChatTurns::default(),
        parsed_tools: tools.for_parser(),
        tools,
        is_drop_reported: false,
        tokens: args.given.tokens(args.tokens, &ollama.params),
        stop: choosing.stop,
    };
    conversation.set_tools()?;
    conversation.set_system(args.system.as_deref().or(ollama.system.as_deref()));
    let mut input = ChatReader::open(!args.no_history)?;
    let terminal = input.is_terminal();
    interrupt::listen();
    if terminal {
        output::print_note(format_args!("/help lists the commands"));
    }
    loop {
        let next = match input.read() {
            Ok(ChatInput::Line(line)) => {
                interrupt::set_action(match terminal {
                    true => InterruptAction::StopAnswer,
                    false => InterruptAction::Stop,
                });
                conversation.line(line.trim(), &mut input)
            }
            Ok(ChatInput::End) => return Ok(CommandOutcome::Done),
            Ok(ChatInput::Interrupted) => return Ok(CommandOutcome::Interrupted),
            Err(e) => Err(e),
        };
        match next {
            Ok(ChatAction::Line) => {}
            Ok(ChatAction::Quit) => return Ok(CommandOutcome::Done),
            // On a terminal the user can go on. Without input or output the conversation is over.
            Err(e) if terminal && !e.is_of_terminal() => error::report(&e),
            Err(e) => return Err(e),
        }
    }
}

impl ChatSession {
    fn line(&mut self, line: &str, input: &mut ChatReader) -> Result<ChatAction, CliError> {
        let Some(command) = line.strip_prefix('/') else {
            if !line.is_empty() {
                self.answer(line, input)?;
            }
            return Ok(ChatAction::Line);
        };
        let words = command.split_once(char::is_whitespace);
        let (name, rest) = words.unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" => output::text(&format!("{HELP}\n"))?,
            "clear" | "reset" => self.reset(),
            "image" => self.writer.add_images(&[PathBuf::from(rest)])?,
            "system" => {
                self.set_system((!rest.is_empty()).then_some(rest));
                self.reset();
            }
            "set" => self.set(rest)?,
            "quit" | "exit" | "bye" => return Ok(ChatAction::Quit),
            // A pasted text, such as one that begins with a path.
            _ if line.contains('\n') => self.answer(line, input)?,
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
                self.writer.generator().set_seed(seed);
                if value == "-1" {
                    output::print_note(format_args!("seed {seed}"));
                }
            }
            name => {
                let mut sampling = self.sampling.clone();
                set(&mut sampling, name, value)?;
                let set = self.writer.generator().set_sampling(&sampling);
                set.map_err(CliError::model("cannot use these sampling settings"))?;
                self.sampling = sampling;
            }
        }
        Ok(())
    }

    fn set_system(&mut self, system: Option<&str>) {
        let system = system.map(|text| self.writer.message(Role::System, 0, text));
        self.turns.set_system(system);
    }

    /// Clears the turns and the images.
    fn reset(&mut self) {
        self.turns.clear();
        self.is_drop_reported = false;
        self.writer.truncate_images(0);
    }

    /// Answers a message. If the answer fails, or if it is stopped before the first word, the message
    /// and its images are removed from the conversation.
    fn answer(&mut self, line: &str, input: &mut ChatReader) -> Result<(), CliError> {
        let images = self.writer.image_count() - self.turns.image_count();
        let message = self.writer.message(Role::User, images, line);
        self.turns.push(Role::User, message, images);
        let answered = self.generate_reply();
        if !matches!(answered, Ok(Some(_))) {
            self.turns.pop();
            self.writer.truncate_images(self.turns.image_count());
        }
        let calls = answered?.unwrap_or_default();
        self.run_calls(calls, input)
    }

    /// Tells the template and the parser about the tools.
    fn set_tools(&mut self) -> Result<(), CliError> {
        if !self.tools.is_empty() {
            let shown = match self.writer.shows_tools() {
                true => ShownTools::Template(self.tools.for_template()?),
                false => ShownTools::Prompt(self.tools.functions()),
            };
            self.turns.set_tools(shown);
        }
        Ok(())
    }

    /// Calls the tools of an answer as far as the user agrees, and answers again with their results, until
    /// an answer calls none.
    fn run_calls(
        &mut self,
        mut calls: Vec<ToolCall>,
        input: &mut ChatReader,
    ) -> Result<(), CliError> {
        for _ in 0..MAX_ROUNDS {
            if calls.is_empty() || self.tools.is_empty() {
                return Ok(());
            }
            for call in &calls {
                let ask = &mut || match input.read()? {
                    ChatInput::Line(line) => Ok(Some(line)),
                    ChatInput::End | ChatInput::Interrupted => Ok(None),
                };
                let result = self.tools.call(call, ask)?;
                self.turns.push(Role::Tool, result, 0);
            }
            interrupt::set_action(match input.is_terminal() {
                true => InterruptAction::StopAnswer,
                false => InterruptAction::Stop,
            });
            calls = self.generate_reply()?.unwrap_or_default();
        }
        output::print_note(format_args!(
            "note: the model called tools {MAX_ROUNDS} times in a row; write a message to go on"
        ));
        Ok(())
    }

    /// Writes the answer to the last message, and returns its calls; `None` if there is no answer,
    /// because the user stopped it.
    fn generate_reply(&mut self) -> Result<Option<Vec<ToolCall>>, CliError> {
        let ChatSession {
            writer,
            template,
            turns,
            ..
        } = self;
        let context = writer.model.context();
        let room = self.tokens.min(context / 4).max(1);
        let (ids, mut is_dropped) = turns.tokens(&mut writer.prompt_encoder(), template, room)?;
        if ids.len() > context {
            let n = ids.len();
            return Err(CliError::Usage(format!(
                "the message takes {n} tokens, with the system prompt and the template, and exceeds the context of \
                 {context}; shorten it, or set a larger --context"
            )));
        }
        if is_dropped {
            self.report_drop(context);
        }
        let ChatSession {
            writer,
            template,
            turns,
            parsed_tools,
            ..
        } = self;
        let end = turns.prompt_end();
        let mut printer = writer.answer_printer_with(parsed_tools, end, false);
        let written = writer.write_past_context(
            &ids,
            (self.tokens, &self.stop),
            &mut |piece| printer.push(piece),
            &mut |encoder, answer| {
                let ids = turns.tokens_within_answer(encoder, template, answer)?;
                is_dropped |= ids.is_some();
                Ok(ids)
            },
        );
        let answer = printer.finish(false)?.clone();
        let written = written?;
        if is_dropped {
            self.report_drop(context);
        }
        match written.finish {
            FinishReason::End | FinishReason::Stop | FinishReason::Length => {}
            FinishReason::Context => output::print_note(format_args!(
                "note: the context of {context} tokens is full, and the answer ends; --context sets a larger one"
            )),
            FinishReason::Cancelled => output::print_note(format_args!("note: interrupted")),
        }
        if written.finish == FinishReason::Cancelled && written.text.is_empty() {
            return Ok(None);
        }
        // An interrupted answer stays in the conversation as far as it was generated.
        let said = self.writer.answer_message(&answer);
        self.turns.push(Role::Assistant, said, 0);
        // The calls of an interrupted answer do not run.
        Ok(Some(match written.finish {
            FinishReason::Cancelled => Vec::new(),
            _ => answer.calls,
        }))
    }

    /// Prints a note, once, that the oldest turns were dropped.
    fn report_drop(&mut self, context: usize) {
        if !std::mem::replace(&mut self.is_drop_reported, true) {
            output::print_note(format_args!(
                "note: the context of {context} tokens is full, so the oldest turns leave it; --context sets a larger \
                 one"
            ));
        }
    }
}
