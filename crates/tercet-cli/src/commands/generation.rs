//! Text generation shared by `generate`, `chat` and `bench`: loading the model and streaming its
//! output.

mod answers;
mod load_request;
mod logits_file;
mod ollama;
mod other_models;
mod phase;
mod rope_args;
mod seeing;
mod speculative_args;
mod template_args;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tercet::Device;
use tercet_models::answer::AnswerFormat;
#[cfg(feature = "serve")]
use tercet_models::config::RopeOverrides;
#[cfg(feature = "grammar")]
use tercet_models::constraint::{Grammar, GrammarCompiler};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate};
use tercet_models::{
    ContextBound, ContextFit, ContextRequest, DecoderOptions, DecoderSpec, FinishReason,
    GenerateEvent, GenerateOptions, Generator, MAX_CONTEXT, ModelError, ModelFamily, ModelFiles,
    OllamaModel, SamplingOptions, ScaledAdapter, SourceEncoder, Tokenizer, end_ids,
    generate_past_context,
};

pub(crate) use self::answers::{AnswerPrinter, AnswerReport};
pub(crate) use self::load_request::LoadRequest;
pub(crate) use self::logits_file::LogitsRecorder;
pub(crate) use self::phase::PhaseTiming;
pub(crate) use self::rope_args::RopeArgs;
use self::seeing::ImageInputs;
pub(crate) use self::seeing::PromptEncoder;
pub(crate) use self::speculative_args::{SpeculationStats, SpeculativeArgs};
pub(crate) use self::template_args::ChatTemplateArgs;
use super::generate::adapters;
use super::open::check_family;
use super::sampling_args::SamplingArgs;
use super::{ComputePrecision, KvCacheDType, PlacementArgs};
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::{output, progress};

/// The model and its device: flags of every command that generates text.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// LoRA adapter: a PEFT folder or a GGUF file, optionally with a weight as PATH=SCALE;
    /// repeatable
    #[arg(long, value_name = "PATH[=SCALE]")]
    lora: Vec<String>,
    /// Context length in tokens, prompt included; 0 means as trained [default: what the memory
    /// holds, at most as trained, and at most 8192 on a CPU]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", allow_negative_numbers = true, value_parser = capacity)]
    context: Option<usize>,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    rope: RopeArgs,
    /// Float type for computation
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ComputePrecision::Auto)]
    dtype: ComputePrecision,
    /// KV cache type [default: the --dtype, f32 for auto]
    #[arg(long, value_name = "TYPE", value_enum)]
    cache_dtype: Option<KvCacheDType>,
    /// Stop at the first node that produces NaN or inf from finite inputs, and print its operands;
    /// slow
    #[arg(long)]
    first_nonfinite: bool,
}

pub(crate) fn capacity(text: &str) -> Result<usize, String> {
    let n: Option<usize> = text.parse().ok();
    n.filter(|n| *n <= MAX_CONTEXT)
        .ok_or_else(|| format!("expected a whole number from 0 (as trained) to {MAX_CONTEXT}"))
}

/// An opened model with its device and adapters, not compiled yet.
pub(super) struct ModelSource {
    pub(super) device: Device,
    pub(super) files: ModelFiles,
    /// Message for errors of the model.
    what: String,
    adapters: Vec<ScaledAdapter>,
}

/// A model for a server.
#[cfg(feature = "serve")]
pub(super) struct ServedModelSource {
    pub(super) files: ModelFiles,
    pub(super) config: tercet_serve::ModelConfig,
    /// Compute type, for result tables.
    pub(super) label: String,
    pub(super) vocab: usize,
    /// Name of the model in requests, with that of the adapter.
    pub(super) requested: String,
}

/// A compiled model that is ready to generate text.
pub(crate) struct TextGenerator {
    pub(crate) device: Device,
    /// Compute type, for result tables.
    pub(crate) dtype: String,
    /// Whether the note about the precision fallback was printed.
    fallback_reported: bool,
    /// Whether the model has no tokenizer, so that the text of a token is its id.
    pub(crate) spells_ids: bool,
    files: ModelFiles,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) generator: Generator,
    /// Tokens that end the text.
    eos: Vec<u32>,
    /// Sampling settings of the flags.
    pub(crate) sampling: SamplingOptions,
    /// Vocabulary size of the model.
    pub(crate) vocab: usize,
    /// Encoder of an encoder-decoder model, which reads the prompt.
    reader: Option<SourceEncoder>,
    /// Image encoder and images, if the model accepts images.
    images: Option<ImageInputs>,
    /// Format of the answers of a conversation.
    answers: AnswerFormat,
    /// The manifest of a model of Ollama's store.
    ollama: Option<OllamaModel>,
    /// Special tokens of the format, whose text the parser of answers reads.
    spelled: Arc<[u32]>,
    /// Grammar that each generated text must match.
    #[cfg(feature = "grammar")]
    constrained: Option<GrammarConstraint>,
}

/// Constrained decoding by a grammar.
#[cfg(feature = "grammar")]
struct GrammarConstraint {
    grammar: Grammar,
    /// Grammar compiler for the model's end-of-text tokens. The compiler is created for the first
    /// constrained text.
    grammars: Option<GrammarCompiler>,
}

/// A generated text with its timings.
pub(crate) struct GenerationResult {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) finish: FinishReason,
    pub(crate) prefill: PhaseTiming,
    pub(crate) decode: PhaseTiming,
    /// Counts of proposed and accepted draft tokens, if decoding is speculative.
    pub(crate) drafts: Option<SpeculationStats>,
}

impl ModelArgs {
    /// Name of the model in result tables.
    pub(crate) fn name(&self) -> String {
        let path = self.model.as_deref();
        let name = path.map(|p| p.file_name().unwrap_or(p.as_os_str()));
        name.map_or("embedded".into(), |name| name.display().to_string())
    }

    /// Opens and compiles the model, with the sampling and draft settings of the flags. `prompt` is
    /// the text to continue, if it is known.
    pub(crate) fn load(
        &self,
        choosing: &SamplingArgs,
        drafting: &SpeculativeArgs,
        prompt: Option<&str>,
    ) -> Result<TextGenerator, CliError> {
        let request = LoadRequest {
            prompt,
            ..LoadRequest::default()
        };
        self.load_as(choosing, drafting, &request)
    }

    /// Like [`Self::load`], for any request.
    pub(crate) fn load_as(
        &self,
        choosing: &SamplingArgs,
        drafting: &SpeculativeArgs,
        request: &LoadRequest<'_>,
    ) -> Result<TextGenerator, CliError> {
        let compiled = choosing.compiled();
        let mut writer = match self.family()? {
            Some(ModelFamily::TextToText | ModelFamily::VisionLanguage)
                if drafting.is_enabled() =>
            {
                let text = "--draft requires a text-only decoder model; leave it out";
                return Err(CliError::Usage(text.into()));
            }
            Some(ModelFamily::TextToText) => self.load_text_to_text(compiled, request)?,
            Some(ModelFamily::VisionLanguage) => self.load_seeing(compiled, request)?,
            _ => self.load_for(request, |config| DecoderOptions {
                sampling: Some(compiled),
                logit_rows: drafting.rows().max(request.logit_rows()),
                ..DecoderOptions::new(config)
            })?,
        };
        drafting.attach(&mut writer, self, compiled)?;
        writer.generator.set_seed(choosing.seed);
        if !request.logits {
            writer.generator.skip_logits();
            writer.generator.run_ahead();
        }
        writer.ollama = self.ollama()?;
        if let Some(ollama) = &writer.ollama {
            ollama::report_ignored(ollama);
        }
        let options = choosing.options(&writer.tokenizer, &writer.eos)?;
        let beyond = choosing
            .stop_token_id
            .iter()
            .find(|id| **id as usize >= writer.vocab);
        if let Some(id) = beyond {
            let vocab = writer.vocab;
            let text = format!("--stop-token-id {id} is beyond the vocabulary of {vocab}");
            return Err(CliError::Usage(text));
        }
        writer.eos.extend(&choosing.stop_token_id);
        let set = writer.generator.set_sampling(&options);
        writer.sampling = options;
        set.map_err(CliError::model("cannot use these sampling settings"))?;
        #[cfg(feature = "grammar")]
        if let Some(grammar) = choosing.grammar()? {
            writer.constrained = Some(GrammarConstraint {
                grammar,
                grammars: None,
            });
        }
        Ok(writer)
    }

    /// Changes of the rotary positions.
    #[cfg(feature = "serve")]
    pub(super) fn rope(&self) -> Result<RopeOverrides, CliError> {
        self.rope.overrides()
    }

    /// The model for a server, with at most one adapter.
    #[cfg(feature = "serve")]
    pub(super) fn served(&self) -> Result<ServedModelSource, CliError> {
        let ModelSource {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        check_family(&files, &what, &[ModelFamily::Decoder])?;
        if adapters.len() > 1 {
            let text = "a request to a server selects one adapter; give --lora once";
            return Err(CliError::Usage(text.into()));
        }
        let spec = files.decoder_spec().map_err(CliError::model(&*what))?;
        let adapters: Vec<_> = adapters
            .into_iter()
            .map(|adapter| ("adapter".to_string(), adapter))
            .collect();
        Ok(ServedModelSource {
            requested: match adapters.is_empty() {
                true => "bench".into(),
                false => "bench:adapter".into(),
            },
            vocab: spec.vocab,
            label: self.dtype.dtype().to_string(),
            files,
            config: tercet_serve::ModelConfig {
                device,
                dtype: self.dtype.dtype(),
                cache: self.cache(),
                matmul_precision: self.dtype.matmul_precision(),
                context: self.context,
                adapters,
                draft: None,
            },
        })
    }

    /// Compute type of a model that is not a language model.
    pub(super) fn dtype(&self) -> tercet::DType {
        self.dtype.dtype()
    }

    /// KV cache format, if it differs from the compute type.
    pub(super) fn cache(&self) -> Option<tercet_models::CacheFormat> {
        self.cache_dtype.map(KvCacheDType::format)
    }

    /// Precision of the matmuls.
    pub(super) fn matmul_precision(&self) -> tercet_models::MatmulPrecision {
        self.dtype.matmul_precision()
    }

    /// Family of a model without generated text, such as an encoder. `None` for generative models,
    /// and if the family is unknown.
    pub(super) fn family_of_encoders(&self) -> Result<Option<ModelFamily>, CliError> {
        let (files, _) = self.model_files()?;
        let family = match files.family() {
            Ok(ModelFamily::Decoder | ModelFamily::TextToText) | Err(_) => return Ok(None),
            Ok(family) => family,
        };
        let refused = match (self.lora.is_empty(), self.context, self.cache_dtype) {
            (true, None, None) => return Ok(Some(family)),
            (false, ..) => "adapters are for language models; leave out --lora",
            (true, Some(_), _) => "--context is for language models; --prompt sets the text length",
            (true, None, Some(_)) => "--cache-dtype is for language models; leave it out",
        };
        Err(CliError::Usage(refused.into()))
    }

    /// Opens the device, the model's files and the adapters.
    pub(super) fn open(&self) -> Result<ModelSource, CliError> {
        let device = match (self.placement.open()?, self.first_nonfinite) {
            (device, true) => device.with_finite_check(),
            (device, false) => device,
        };
        let (files, what) = self.model_files()?;
        let mut all = self.own_adapters(&files)?;
        if !self.lora.is_empty() {
            let config = files.decoder_spec().map_err(CliError::model(&*what))?;
            all.extend(adapters(&self.lora, Some(&config))?);
        }
        Ok(ModelSource {
            device,
            files,
            what,
            adapters: all,
        })
    }

    /// The model's family. An invalid configuration gives `None`; loading the model reports the
    /// error later.
    fn family(&self) -> Result<Option<ModelFamily>, CliError> {
        self.placement.set_threads()?;
        let (files, _) = self.model_files()?;
        Ok(files.family().ok())
    }

    /// Opens the device and compiles the model with `options`, except for settings that flags
    /// determine.
    pub(crate) fn load_with(
        &self,
        options: impl FnOnce(&DecoderSpec) -> DecoderOptions,
    ) -> Result<TextGenerator, CliError> {
        self.load_for(&LoadRequest::default(), options)
    }

    /// Like [`Self::load_with`], for any request.
    fn load_for(
        &self,
        request: &LoadRequest<'_>,
        options: impl FnOnce(&DecoderSpec) -> DecoderOptions,
    ) -> Result<TextGenerator, CliError> {
        let rope = self.rope.overrides()?;
        let spinner = progress::spinner("loading");
        let ModelSource {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        check_family(
            &files,
            &what,
            &[
                ModelFamily::Decoder,
                ModelFamily::VisionLanguage,
                ModelFamily::TextToText,
            ],
        )?;
        let spec = files.decoder_spec().map_err(CliError::model(&*what))?;
        let (tokenizer, spells_ids) = request.tokenizer(&files, spec.vocab, &what)?;
        let options = options(&spec);
        let context = self.fit(&files, &spec, &device, options.context);
        let context = context.map_err(CliError::model(&*what))?;
        let decoder = files
            .decoder(|_| DecoderOptions {
                context,
                logit_rows: options.logit_rows.min(context),
                text_length: request.longrope_length(&spec, &tokenizer, context),
                chunk: options.chunk.min(context),
                dtype: self.dtype.dtype(),
                cache: self.cache(),
                matmul_precision: self.dtype.matmul_precision(),
                adapters,
                rope,
                ..options
            })
            .map_err(CliError::model(&*what))?;
        let generator = decoder.generator(&device);
        let generator = generator.map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        let trained = decoder.config.context;
        if self.context.is_some_and(|c| c > trained) {
            output::print_note(format_args!(
                "note: the model was trained for a context of {trained}; output quality may drop beyond it"
            ));
        }
        Ok(TextGenerator {
            dtype: self.dtype.label(&decoder, &device),
            fallback_reported: false,
            spells_ids,
            device,
            files,
            eos: end_ids(&decoder.config.eos, &tokenizer),
            tokenizer,
            generator,
            sampling: SamplingOptions::default(),
            vocab: decoder.config.vocab,
            reader: None,
            images: None,
            answers: AnswerFormat::default(),
            spelled: Arc::default(),
            ollama: None,
            #[cfg(feature = "grammar")]
            constrained: None,
        })
    }
}

impl ModelArgs {
    /// The context length of a decoder: that of the flags, or else `wanted` if it is not the
    /// trained one, or else what fits the memory. Prints a note if the memory determines it.
    fn fit(
        &self,
        files: &ModelFiles,
        spec: &DecoderSpec,
        device: &Device,
        wanted: usize,
    ) -> Result<usize, ModelError> {
        let wanted = (wanted != spec.context).then_some(wanted);
        let request = ContextRequest {
            context: self.given_context().or(wanted),
            dtype: self.dtype.dtype(),
            cache: self.cache(),
            ..ContextRequest::default()
        };
        let fit = ContextFit::new(files, spec, device, &request)?;
        if fit.bound == ContextBound::Memory {
            output::print_note(format_args!("note: {}", fit.describe()));
        }
        Ok(fit.context)
    }
}

/// Makes room in a full context in the middle of a text; see [`TextGenerator::write_past_context`].
type RefillContext<'a> =
    dyn FnMut(&mut PromptEncoder<'_>, &[u32]) -> Result<Option<Vec<u32>>, CliError> + 'a;

/// Truncates the KV cache to its common prefix with `ids` and returns the other tokens.
fn uncached(generator: &mut Generator, ids: &[u32]) -> Vec<u32> {
    let same = generator.truncate_to_prefix(ids);
    ids[same..].to_vec()
}

impl TextGenerator {
    /// Whether the model is an encoder-decoder: it reads the prompt with an encoder and does not
    /// continue it.
    pub(crate) fn reads_sources(&self) -> bool {
        self.reader.is_some()
    }

    /// The text of a prompt of token ids, up to the first generated character.
    ///
    /// # Errors
    /// [`CliError::Usage`] for an id beyond the vocabulary.
    pub(crate) fn text_of_ids(&self, ids: &[u32]) -> Result<String, CliError> {
        let vocab = self.vocab;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(CliError::Usage(format!(
                "--ids: token id {id} is beyond the vocabulary of {vocab}"
            )));
        }
        // A padded vocabulary has ids without text.
        let mut text = self.tokenizer.decode(ids).unwrap_or_default();
        if self.spells_ids {
            text.push(' ');
        }
        Ok(text)
    }

    /// Writes the logits after each token to a file, until [`Self::finish_logits`].
    pub(crate) fn record_logits(&mut self, path: &Path) -> Result<LogitsRecorder, CliError> {
        let recorder = LogitsRecorder::create(path, self.vocab)?;
        let set = self
            .generator
            .set_logit_observer(Some(Box::new(recorder.observer())));
        set.map_err(CliError::model("cannot write the logits"))?;
        Ok(recorder)
    }

    /// Computes the logits after the last generated token, which generation does not need, and
    /// completes the file. A full context has no place for that token.
    pub(crate) fn finish_logits(
        &mut self,
        recorder: LogitsRecorder,
        ids: &[u32],
        written: &[u32],
    ) -> Result<[usize; 2], CliError> {
        let before = if self.reads_sources() { 1 } else { ids.len() };
        let position = self.generator.position();
        let what = "cannot compute the logits of the last token";
        let is_pending = position + 1 == before + written.len();
        if let Some(last) = written.last().filter(|_| is_pending)
            && position < self.generator.context()
        {
            self.generator
                .set_constraint(None)
                .map_err(CliError::model(what))?;
            let fed = self.generator.forward(&[*last]);
            fed.map_err(CliError::model(what))?;
        }
        let ended = self.generator.set_logit_observer(None);
        ended.map_err(CliError::model(what))?;
        recorder.finish()
    }

    /// Prints a note, once, if the generator fell back to another precision.
    pub(crate) fn report_fallback(&mut self) {
        if let (Some(note), false) = (self.generator.fallback_message(), self.fallback_reported) {
            output::print_note(format_args!("note: {note}"));
            self.fallback_reported = true;
        }
    }

    /// Loads the chat template of the flags, or the model's, and the format of its answers.
    pub(crate) fn chat(&mut self, of: &ChatTemplateArgs) -> Result<ChatTemplate, CliError> {
        if self.reader.is_some() {
            let text = "an encoder-decoder model has no chat mode; leave out --chat, or use `tercet generate`";
            return Err(CliError::Usage(text.into()));
        }
        let template = match of.source()? {
            Some(source) => ChatTemplate::from_model_with(&self.files, &self.tokenizer, &source),
            None => {
                self.check_go_template()?;
                ChatTemplate::from_model(&self.files, &self.tokenizer)
            }
        };
        let template = template.map_err(CliError::model("cannot use the chat template"))?;
        if let Some(note) = template.warning() {
            output::print_note(format_args!("note: {note}"));
        }
        self.answers = AnswerFormat::from_template(&template);
        self.spelled = self.answers.special_tokens(&self.tokenizer);
        Ok(template)
    }

    /// Returns the tokens of a conversation up to the start of the next answer, and their text. Only
    /// the text of the chat template spells special tokens; those in messages are ordinary text.
    pub(crate) fn conversation(
        &mut self,
        template: &ChatTemplate,
        messages: &[ChatMessage],
    ) -> Result<(Vec<u32>, String), CliError> {
        let what = "cannot process the conversation";
        let rendered = template.render(messages, &TemplateValue::None, true);
        let rendered = rendered.map_err(|e| CliError::Template(tercet::one_line(&e)))?;
        let ids = self.encode((&rendered.text, &rendered.literal), false, what)?;
        Ok((ids, rendered.text))
    }

    /// Constrains the next text by the requested grammar.
    #[cfg(feature = "grammar")]
    fn constrain(&mut self) -> Result<(), CliError> {
        let what = "cannot constrain the output";
        let Some(GrammarConstraint { grammar, grammars }) = &mut self.constrained else {
            return Ok(());
        };
        let grammars = match grammars {
            Some(grammars) => grammars,
            None => {
                let made = GrammarCompiler::new(&self.tokenizer, &self.eos, self.vocab);
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

    /// Returns the tokens to process for a prompt: those that are not in the KV cache. For an
    /// encoder-decoder, runs the encoder and returns the decoder's start token.
    fn tokens_to_feed(&mut self, ids: &[u32]) -> Result<Vec<u32>, CliError> {
        if let Some(reader) = &mut self.reader {
            let read = reader.read(ids, &mut self.generator);
            read.map_err(CliError::model("cannot process the prompt"))?;
            return Ok(vec![reader.start()]);
        }
        Ok(uncached(&mut self.generator, ids))
    }

    /// Generates text after the prompt `ids`, reusing the KV cache for their common prefix. `show`
    /// receives the text as it is generated. The first call has empty text and means that the
    /// prefill is done.
    pub(crate) fn write(
        &mut self,
        ids: &[u32],
        limit: usize,
        stop: &[String],
        show: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<GenerationResult, CliError> {
        self.write_past_context(ids, (limit, stop), show, &mut |_, _| Ok(None))
    }

    /// Like [`Self::write`], but can go on when the context is full. `refill` receives the generated
    /// tokens and returns a shorter prompt that ends with them, or `None` to end the text.
    pub(crate) fn write_past_context(
        &mut self,
        ids: &[u32],
        (limit, stop): (usize, &[String]),
        show: &mut dyn FnMut(&str) -> Result<(), CliError>,
        refill: &mut RefillContext<'_>,
    ) -> Result<GenerationResult, CliError> {
        let started = Instant::now();
        let before = self.generator.draft_counts();
        let new = &self.tokens_to_feed(ids)?[..];
        #[cfg(feature = "grammar")]
        self.constrain()?;
        let options = GenerateOptions {
            max_tokens: limit,
            stop,
            eos: &self.eos,
            spelled: &self.spelled,
        };
        let bar = progress::bar("prefill", new.len(), "tokens");
        let (mut fed, mut prefilled, mut ready) = (0, Duration::ZERO, false);
        let (mut text, mut failed, mut refused) = (String::new(), None, None);
        let written = generate_past_context(
            &mut self.generator,
            &self.tokenizer,
            new,
            &options,
            &mut |event| {
                let piece = match event {
                    // The prompt of a full context is processed again.
                    GenerateEvent::Prompt(_) if ready => return !interrupted(),
                    GenerateEvent::Prompt(done) => {
                        bar.set_position(done as u64);
                        (fed, prefilled) = (done, started.elapsed());
                        ready = done == new.len();
                        match ready {
                            true => bar.finish_and_clear(),
                            false => return !interrupted(),
                        }
                        ""
                    }
                    GenerateEvent::Text(piece, _) => piece,
                };
                text += piece;
                failed = show(piece).err();
                failed.is_none() && !interrupted()
            },
            &mut |generator, tokens| {
                let mut encoder = PromptEncoder {
                    tokenizer: &self.tokenizer,
                    images: self.images.as_mut(),
                    generator: &mut *generator,
                    reads_sources: self.reader.is_some(),
                };
                let ids = refill(&mut encoder, tokens);
                let ids = ids.unwrap_or_else(|e| {
                    refused = Some(e);
                    None
                });
                ids.map(|ids| uncached(generator, &ids))
            },
        );
        if let Some(e) = failed.or(refused) {
            return Err(e);
        }
        let what = match ready {
            true => "cannot compute the next token",
            false => "cannot process the prompt",
        };
        let written = written.map_err(CliError::model(what))?;
        self.report_fallback();
        // The prefill produced the first token.
        let decoded = written.tokens.len().saturating_sub(1);
        let drafts = before.zip(self.generator.draft_counts());
        Ok(GenerationResult {
            text,
            drafts: drafts.map(|(before, now)| SpeculationStats::since(before, now)),
            finish: written.finish,
            prefill: match self.reader {
                Some(_) => PhaseTiming::new(ids.len(), prefilled),
                None => PhaseTiming::new(fed, prefilled),
            },
            decode: PhaseTiming::new(decoded, started.elapsed().saturating_sub(prefilled)),
            tokens: written.tokens,
        })
    }
}
