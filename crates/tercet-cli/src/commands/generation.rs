//! What commands that write text share: a model that is ready, and text as it comes.

mod drafting;
mod others;
mod phase;
mod seeing;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tercet::Device;
#[cfg(feature = "grammar")]
use tercet_models::ModelError;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{Grammar, Grammars};
use tercet_models::dataset::template::Value;
use tercet_models::dataset::{ChatTemplate, Message};
use tercet_models::{
    DecoderOptions, DecoderSpec, Event, Family, Finish, Generator, ModelFiles, ScaledAdapter,
    SourceReader, Tokenizer, WriteOptions, turn_ends, write,
};

pub(crate) use self::drafting::{Drafting, Drafts};
pub(crate) use self::phase::Phase;
use self::seeing::Seeing;
use super::choosing::Choosing;
use super::generate::{adapters, open_model};
use super::{Arithmetic, Cache, device};
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::{output, progress};

/// The model and where it runs: the arguments of every command that writes text.
#[derive(clap::Args)]
pub(crate) struct Loading {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// An adapter: a folder of PEFT or a GGUF file, with =SCALE behind it to weigh it; as often as there are adapters
    #[arg(long, value_name = "PATH[=SCALE]")]
    lora: Vec<String>,
    /// Capacity in tokens, prompt included [default: as trained]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = capacity)]
    context: Option<usize>,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// The float type to compute in
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Arithmetic::Auto)]
    dtype: Arithmetic,
    /// The type of the caches of keys and values [default: that of --dtype, f32 for auto]
    #[arg(long, value_name = "TYPE", value_enum)]
    cache_dtype: Option<Cache>,
    /// Fail at the first node whose result is not finite although its operands are, and say what they are: slow
    #[arg(long)]
    first_nonfinite: bool,
}

/// More than any model of today takes; tables and cache of a mistyped number would fill the memory.
const MAX_CONTEXT: usize = 1 << 20;

fn capacity(text: &str) -> Result<usize, String> {
    let n: Option<usize> = text.parse().ok();
    n.filter(|n| (1..=MAX_CONTEXT).contains(n))
        .ok_or_else(|| format!("expected a whole number from 1 to {MAX_CONTEXT}"))
}

/// What a model is compiled from.
pub(super) struct Opened {
    pub(super) device: Device,
    pub(super) files: ModelFiles,
    /// What failed, for errors of the model.
    what: String,
    adapters: Vec<ScaledAdapter>,
}

/// A model that is ready to write.
pub(crate) struct Writer {
    pub(crate) device: Device,
    /// What it computes in, for tables.
    pub(crate) dtype: String,
    /// Whether people know of what became of that.
    noted: bool,
    files: ModelFiles,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) generator: Generator,
    /// Tokens that end a text.
    eos: Vec<u32>,
    /// Of the model.
    pub(crate) vocab: usize,
    /// What reads a prompt, where the model writes about it rather than on.
    reader: Option<SourceReader>,
    /// What reads pictures, where the model sees, and those that it was given.
    seeing: Option<Seeing>,
    /// What each text has to be.
    #[cfg(feature = "grammar")]
    constrained: Option<Constrained>,
}

/// Texts of a grammar.
#[cfg(feature = "grammar")]
struct Constrained {
    grammar: Grammar,
    /// Made for the tokens that end a text when the first one is written.
    grammars: Option<Grammars>,
}

/// What was written.
pub(crate) struct Written {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) finish: Finish,
    pub(crate) prefill: Phase,
    pub(crate) decode: Phase,
    /// What became of proposed tokens, where some are.
    pub(crate) drafts: Option<Drafts>,
}

impl Loading {
    /// What the model is called in tables.
    pub(crate) fn name(&self) -> String {
        let path = self.model.as_deref();
        let name = path.map(|p| p.file_name().unwrap_or(p.as_os_str()));
        name.map_or("embedded".into(), |name| name.display().to_string())
    }

    /// The model, choosing tokens as the arguments say.
    pub(crate) fn load(
        &self,
        choosing: &Choosing,
        drafting: &Drafting,
    ) -> Result<Writer, CliError> {
        let compiled = choosing.compiled();
        let mut writer = match self.family()? {
            Some(Family::TextToText | Family::VisionLanguage) if drafting.is_asked() => {
                let text = "--draft is for language models of texts alone; leave it out";
                return Err(CliError::Usage(text.into()));
            }
            Some(Family::TextToText) => self.load_text_to_text(compiled)?,
            Some(Family::VisionLanguage) => self.load_seeing(compiled)?,
            _ => self.load_with(|config| DecoderOptions {
                sampling: Some(compiled),
                logit_rows: drafting.rows(),
                ..DecoderOptions::new(config)
            })?,
        };
        drafting.attach(&mut writer, self, compiled)?;
        writer.generator.set_seed(choosing.seed);
        writer.generator.skip_logits();
        writer.generator.run_ahead();
        let set = writer.generator.set_sampling(&choosing.options());
        set.map_err(CliError::model("cannot choose tokens in this way"))?;
        #[cfg(feature = "grammar")]
        if let Some(grammar) = choosing.grammar()? {
            writer.constrained = Some(Constrained {
                grammar,
                grammars: None,
            });
        }
        Ok(writer)
    }

    /// The float type of a model that is no language model.
    pub(super) fn dtype(&self) -> tercet::DType {
        self.dtype.dtype()
    }

    /// The type of caches, where it is another.
    pub(super) fn cache(&self) -> Option<tercet_models::CacheFormat> {
        self.cache_dtype.map(Cache::format)
    }

    /// What its rows may be rounded to.
    pub(super) fn products(&self) -> tercet_models::Products {
        self.dtype.products()
    }

    /// The family of a model that does not write texts of its own; `None` for one that does, or that cannot be told.
    pub(super) fn family_of_encoders(&self) -> Result<Option<Family>, CliError> {
        let (files, _) = open_model(self.model.as_deref())?;
        let family = match files.family() {
            Ok(Family::Decoder | Family::TextToText) | Err(_) => return Ok(None),
            Ok(family) => family,
        };
        let refused = match (self.lora.is_empty(), self.context, self.cache_dtype) {
            (true, None, None) => return Ok(Some(family)),
            (false, ..) => "adapters are for language models; leave out --lora",
            (true, Some(_), _) => {
                "--context is for language models; --prompt is the length of a text"
            }
            (true, None, Some(_)) => "--cache-dtype is for language models; leave it out",
        };
        Err(CliError::Usage(refused.into()))
    }

    /// The device, the model's files and the adapters.
    pub(super) fn open(&self) -> Result<Opened, CliError> {
        let device = match (device(&self.device)?, self.first_nonfinite) {
            (device, true) => device.with_finite_check(),
            (device, false) => device,
        };
        let (files, what) = open_model(self.model.as_deref())?;
        let adapters = match self.lora.is_empty() {
            true => Vec::new(),
            false => {
                let config = files.decoder_spec().map_err(CliError::model(&*what))?;
                adapters(&self.lora, Some(&config))?
            }
        };
        Ok(Opened {
            device,
            files,
            what,
            adapters,
        })
    }

    /// The model's family. What cannot be told is said where the model is loaded.
    fn family(&self) -> Result<Option<Family>, CliError> {
        let (files, _) = open_model(self.model.as_deref())?;
        Ok(files.family().ok())
    }

    /// Opens the device and compiles the model for it, with options but for what arguments say.
    pub(crate) fn load_with(
        &self,
        options: impl FnOnce(&DecoderSpec) -> DecoderOptions,
    ) -> Result<Writer, CliError> {
        let spinner = progress::spinner("loading");
        let Opened {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        let decoder = files
            .decoder(|config| {
                let options = options(config);
                let context = self.context.unwrap_or(options.context);
                DecoderOptions {
                    context,
                    chunk: options.chunk.min(context),
                    dtype: self.dtype.dtype(),
                    cache: self.cache(),
                    products: self.dtype.products(),
                    adapters,
                    ..options
                }
            })
            .map_err(CliError::model(&*what))?;
        let tokenizer = files.tokenizer().map_err(CliError::model(&*what))?;
        let generator = decoder.generator(&device);
        let generator = generator.map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        let trained = decoder.config.context;
        if self.context.is_some_and(|c| c > trained) {
            output::note(format_args!(
                "note: the model was trained for a context of {trained}; beyond it, it may ramble"
            ));
        }
        Ok(Writer {
            dtype: self.dtype.shown(&decoder, &device),
            noted: false,
            device,
            files,
            tokenizer,
            generator,
            eos: decoder.config.eos.clone(),
            vocab: decoder.config.vocab,
            reader: None,
            seeing: None,
            #[cfg(feature = "grammar")]
            constrained: None,
        })
    }
}

impl Writer {
    /// Whether the model writes about a prompt rather than on.
    pub(crate) fn reads_sources(&self) -> bool {
        self.reader.is_some()
    }

    /// Says, once, that the model went on in another type.
    pub(crate) fn note(&mut self) {
        if let (Some(note), false) = (self.generator.note(), self.noted) {
            output::note(format_args!("note: {note}"));
            self.noted = true;
        }
    }

    /// The chat template of the model. From now on texts end where turns do as well.
    pub(crate) fn chat(&mut self) -> Result<ChatTemplate, CliError> {
        if self.reader.is_some() {
            let text = "the model writes a text for a text and has no conversations; leave out --chat, or use `tercet generate`";
            return Err(CliError::Usage(text.into()));
        }
        let template = ChatTemplate::of(&self.files, &self.tokenizer);
        let template = template.map_err(CliError::model("cannot use the chat template"))?;
        if let Some(note) = template.note() {
            output::note(format_args!("note: {note}"));
        }
        self.eos = turn_ends(&self.eos, &self.tokenizer);
        Ok(template)
    }

    /// The tokens of a conversation up to where the answer begins.
    ///
    /// What a message says is read together with what the template puts around it: one that spells a special token of
    /// the model, which could end its turn, is refused.
    pub(crate) fn conversation(
        &mut self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Vec<u32>, CliError> {
        let what = "cannot process the conversation";
        if let Some(last) = messages.last() {
            let spells = self.tokenizer.spells_special(last.content());
            if spells.map_err(CliError::model(what))? {
                let text = "the message spells a special token of the model, which could end its turn; leave it out";
                return Err(CliError::Usage(text.into()));
            }
        }
        let rendered = template.render(messages, &Value::None, true);
        let rendered = rendered.map_err(|e| {
            CliError::Usage(format!(
                "the chat template refuses the conversation: {}",
                tercet::one_line(&e)
            ))
        })?;
        self.encode(&rendered.text, false, what)
    }

    /// The next text is of the grammar that was asked for.
    #[cfg(feature = "grammar")]
    fn constrain(&mut self) -> Result<(), CliError> {
        let what = "cannot write a text of this kind";
        let Some(Constrained { grammar, grammars }) = &mut self.constrained else {
            return Ok(());
        };
        let grammars = match grammars {
            Some(grammars) => grammars,
            None => {
                let made = Grammars::new(&self.tokenizer, &self.eos, self.vocab);
                grammars.insert(
                    made.map_err(ModelError::from)
                        .map_err(CliError::model(what))?,
                )
            }
        };
        let constraint = grammars.constraint(grammar);
        let constraint = constraint
            .map_err(ModelError::from)
            .map_err(CliError::model(what))?;
        let set = self.generator.set_constraint(Some(Box::new(constraint)));
        set.map_err(CliError::model(what))
    }

    /// What is fed for a prompt of these tokens: those that the cache lacks; where a reader reads them, the token that texts
    /// begin with.
    fn fed_for(&mut self, ids: &[u32]) -> Result<Vec<u32>, CliError> {
        if let Some(reader) = &mut self.reader {
            let read = reader.read(ids, &mut self.generator);
            read.map_err(CliError::model("cannot process the prompt"))?;
            return Ok(vec![reader.start()]);
        }
        let cached = self.generator.cached().iter().zip(ids);
        let same = cached.take_while(|(a, b)| a == b).count();
        // The last token is always fed: its logits are wanted.
        let same = same.min(ids.len().saturating_sub(1));
        let same = self.generator.truncate(same);
        Ok(ids[same..].to_vec())
    }

    /// Writes after `ids`, of which what the cache has already is not computed again. `show` gets the text as it comes,
    /// first of all nothing when the prompt is done.
    pub(crate) fn write(
        &mut self,
        ids: &[u32],
        limit: usize,
        stop: &[String],
        show: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Written, CliError> {
        let started = Instant::now();
        let before = self.generator.draft_counts();
        let new = &self.fed_for(ids)?[..];
        #[cfg(feature = "grammar")]
        self.constrain()?;
        let options = WriteOptions {
            max_tokens: limit,
            stop,
            eos: &self.eos,
        };
        let bar = progress::bar("prefill", new.len(), "tokens");
        let (mut fed, mut prefilled, mut ready) = (0, Duration::ZERO, false);
        let (mut text, mut failed) = (String::new(), None);
        let written = write(
            &mut self.generator,
            &self.tokenizer,
            new,
            &options,
            &mut |event| {
                let piece = match event {
                    Event::Prompt(done) => {
                        bar.set_position(done as u64);
                        (fed, prefilled) = (done, started.elapsed());
                        ready = done == new.len();
                        match ready {
                            true => bar.finish_and_clear(),
                            false => return !interrupted(),
                        }
                        ""
                    }
                    Event::Text(piece, _) => piece,
                };
                text += piece;
                failed = show(piece).err();
                failed.is_none() && !interrupted()
            },
        );
        if let Some(e) = failed {
            return Err(e);
        }
        let what = match ready {
            true => "cannot compute the next token",
            false => "cannot process the prompt",
        };
        let written = written.map_err(CliError::model(what))?;
        self.note();
        // The first token came with the prefill.
        let decoded = written.tokens.len().saturating_sub(1);
        let drafts = before.zip(self.generator.draft_counts());
        Ok(Written {
            text,
            drafts: drafts.map(|(before, now)| Drafts::between(before, now)),
            finish: written.finish,
            prefill: match self.reader {
                Some(_) => Phase::new(ids.len(), prefilled),
                None => Phase::new(fed, prefilled),
            },
            decode: Phase::new(decoded, started.elapsed().saturating_sub(prefilled)),
            tokens: written.tokens,
        })
    }
}
