//! Text generation shared by `generate`, `chat` and `bench`: loading the model and streaming its
//! output.

mod answers;
mod load_request;
pub(crate) mod logits_file;
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
use tercet_models::constraint::Grammar;
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate};
use tercet_models::{
    ContextBound, FinishReason, GenerateEvent, GenerateOptions, Generator, Image, LanguageModel,
    LanguageModelOptions, MAX_CONTEXT, ModelFamily, ModelFiles, OllamaModel, SamplingOptions,
    ScaledAdapter,
};

pub(crate) use self::answers::{AnswerPrinter, AnswerReport};
pub(crate) use self::load_request::LoadRequest;
pub(crate) use self::logits_file::LogitsRecorder;
pub(crate) use self::phase::PhaseTiming;
pub(crate) use self::rope_args::RopeArgs;
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
    /// KV cache type [default: that of --dtype; for auto f16 on GPUs that
    /// multiply f16 faster and with weights in f16 or quantized, else f32]
    #[arg(long, alias = "cache-type-k", value_name = "TYPE", value_enum)]
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
    pub(crate) model: LanguageModel,
    /// Compute type, for result tables.
    pub(crate) dtype: String,
    /// Whether the note about the precision fallback was printed.
    fallback_reported: bool,
    /// Whether the model has no tokenizer, so that the text of a token is its id.
    pub(crate) spells_ids: bool,
    /// Sampling settings of the flags.
    pub(crate) sampling: SamplingOptions,
    /// The images provided so far, if the model accepts images.
    images: Vec<Image>,
    /// Format of the answers of a conversation.
    answers: AnswerFormat,
    /// The manifest of a model of Ollama's store.
    ollama: Option<OllamaModel>,
    /// Special tokens of the format, whose text the parser of answers reads.
    spelled: Arc<[u32]>,
    /// Grammar that each generated text must match.
    #[cfg(feature = "grammar")]
    constrained: Option<Grammar>,
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
        let family = self.family()?;
        let is_text_to_text = family == Some(ModelFamily::TextToText);
        if drafting.is_enabled() && (is_text_to_text || family == Some(ModelFamily::VisionLanguage))
        {
            let text = "--draft requires a text-only decoder model; leave it out";
            return Err(CliError::Usage(text.into()));
        }
        if is_text_to_text {
            self.check_text_to_text()?;
        }
        let rows = drafting.rows().max(request.logit_rows());
        let mut writer = self.load_for(request, false, |_, options| {
            options.device_sampling(Some(compiled)).logit_rows(rows)
        })?;
        drafting.attach(&mut writer, self, compiled)?;
        writer.generator().set_seed(choosing.seed);
        writer.ollama = self.ollama()?;
        if let Some(ollama) = &writer.ollama {
            ollama::report_ignored(ollama);
        }
        let model = &mut writer.model;
        let options = choosing.options(model.tokenizer(), model.end_tokens())?;
        let vocab = model.vocab();
        let beyond = choosing
            .stop_token_id
            .iter()
            .find(|id| **id as usize >= vocab);
        if let Some(id) = beyond {
            let text = format!("--stop-token-id {id} is beyond the vocabulary of {vocab}");
            return Err(CliError::Usage(text));
        }
        model.add_end_tokens(&choosing.stop_token_id);
        let set = model.generator_mut().set_sampling(&options);
        writer.sampling = options;
        set.map_err(CliError::model("cannot use these sampling settings"))?;
        #[cfg(feature = "grammar")]
        {
            writer.constrained = choosing.grammar()?;
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

    /// Opens the device and compiles the text decoder of the model with `options`, which receives the
    /// trained context. Flags determine the other settings.
    pub(crate) fn load_with(
        &self,
        options: impl FnOnce(usize, LanguageModelOptions) -> LanguageModelOptions,
    ) -> Result<TextGenerator, CliError> {
        self.load_for(&LoadRequest::default(), true, |trained, given| {
            options(trained, given).text_only()
        })
    }

    /// Like [`Self::load_with`], for any request, and for models with encoders unless
    /// `is_decoder_only`.
    fn load_for(
        &self,
        request: &LoadRequest<'_>,
        is_decoder_only: bool,
        options: impl FnOnce(usize, LanguageModelOptions) -> LanguageModelOptions,
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
        let is_text_to_text = matches!(files.family(), Ok(ModelFamily::TextToText));
        let (trained, vocab, spec) = match is_text_to_text && !is_decoder_only {
            true => {
                let spec = files.seq2seq_spec().map_err(CliError::model(&*what))?;
                (spec.encoder.context, spec.encoder.vocab, None)
            }
            false => {
                let spec = files.decoder_spec().map_err(CliError::model(&*what))?;
                (spec.context, spec.vocab, Some(spec))
            }
        };
        let (tokenizer, spells_ids) = request.tokenizer(&files, vocab, &what)?;
        let longrope = spec.and_then(|spec| request.longrope(&spec, &tokenizer));
        let mut given = LanguageModelOptions::new()
            .device(device)
            .dtype(self.dtype.dtype())
            .matmul_precision(self.dtype.matmul_precision())
            .rope(rope)
            .tokenizer(Arc::new(tokenizer));
        given = options(trained, given);
        if let Some(context) = self.given_context() {
            given = given.context(context);
        }
        if let Some(cache) = self.cache() {
            given = given.cache(cache);
        }
        if let Some(length) = longrope.as_ref().and_then(|longrope| longrope.length) {
            given = given.text_length(length);
        }
        given = adapters
            .into_iter()
            .fold(given, LanguageModelOptions::opened_adapter);
        let model = given.open_files(&files);
        let model = model.map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        if let Some(longrope) = longrope {
            longrope.report(model.context());
        }
        if let Some(fit) = model.context_fit() {
            if fit.bound == ContextBound::Memory {
                output::print_note(format_args!("note: {}", fit.describe()));
            }
            if self.context.is_some_and(|c| c > fit.trained) {
                output::print_note(format_args!(
                    "note: the model was trained for a context of {}; output quality may drop beyond it",
                    fit.trained
                ));
            }
        }
        Ok(TextGenerator {
            dtype: self.dtype.label(model.matmul_dtype()),
            fallback_reported: false,
            spells_ids,
            model,
            sampling: SamplingOptions::default(),
            images: Vec::new(),
            answers: AnswerFormat::default(),
            spelled: Arc::default(),
            ollama: None,
            #[cfg(feature = "grammar")]
            constrained: None,
        })
    }
}

/// Makes room in a full context in the middle of a text; see [`TextGenerator::write_past_context`].
type RefillContext<'a> =
    dyn FnMut(&mut PromptEncoder<'_>, &[u32]) -> Result<Option<Vec<u32>>, CliError> + 'a;

impl TextGenerator {
    /// The compiled graph with its KV cache.
    pub(crate) fn generator(&mut self) -> &mut Generator {
        self.model.generator_mut()
    }

    /// The text of a prompt of token ids, up to the first generated character.
    ///
    /// # Errors
    /// [`CliError::Usage`] for an id beyond the vocabulary.
    pub(crate) fn text_of_ids(&self, ids: &[u32]) -> Result<String, CliError> {
        let vocab = self.model.vocab();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(CliError::Usage(format!(
                "--ids: token id {id} is beyond the vocabulary of {vocab}"
            )));
        }
        // A padded vocabulary has ids without text.
        let mut text = self.model.tokenizer().decode(ids).unwrap_or_default();
        if self.spells_ids {
            text.push(' ');
        }
        Ok(text)
    }

    /// Writes the logits after each token to a file, until [`Self::finish_logits`].
    pub(crate) fn record_logits(&mut self, path: &Path) -> Result<LogitsRecorder, CliError> {
        let recorder = LogitsRecorder::create(path, self.model.vocab())?;
        let set = self
            .generator()
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
        let before = match self.model.has_source_encoder() {
            true => 1,
            false => ids.len(),
        };
        let generator = self.generator();
        let position = generator.position();
        let what = "cannot compute the logits of the last token";
        let is_pending = position + 1 == before + written.len();
        if let Some(last) = written.last().filter(|_| is_pending)
            && position < generator.context()
        {
            generator
                .set_constraint(None)
                .map_err(CliError::model(what))?;
            let fed = generator.forward(&[*last]);
            fed.map_err(CliError::model(what))?;
        }
        let ended = generator.set_logit_observer(None);
        ended.map_err(CliError::model(what))?;
        recorder.finish()
    }

    /// Prints a note, once, if the generator fell back to another precision.
    pub(crate) fn report_fallback(&mut self) {
        let note = self.generator().fallback_message();
        if let (Some(note), false) = (note, self.fallback_reported) {
            output::print_note(format_args!("note: {note}"));
            self.fallback_reported = true;
        }
    }

    /// Loads the chat template of the flags, or the model's, and the format of its answers.
    pub(crate) fn chat(&mut self, of: &ChatTemplateArgs) -> Result<ChatTemplate, CliError> {
        if self.model.has_source_encoder() {
            let text = "an encoder-decoder model has no chat mode; leave out --chat, or use `tercet generate`";
            return Err(CliError::Usage(text.into()));
        }
        let (files, tokenizer) = (self.model.files(), self.model.tokenizer());
        let template = match of.source()? {
            Some(source) => ChatTemplate::from_model_with(files, tokenizer, &source),
            None => {
                self.check_go_template()?;
                ChatTemplate::from_model(files, tokenizer)
            }
        };
        let template = template.map_err(CliError::model("cannot use the chat template"))?;
        if let Some(note) = template.warning() {
            output::print_note(format_args!("note: {note}"));
        }
        self.answers = AnswerFormat::from_template(&template);
        self.spelled = self.answers.special_tokens(self.model.tokenizer());
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
        let before = self.generator().draft_counts();
        let new = self.model.begin(ids);
        let new = &new.map_err(CliError::model("cannot process the prompt"))?[..];
        #[cfg(feature = "grammar")]
        if let Some(grammar) = &self.constrained {
            let set = self.model.set_grammar(Some(grammar));
            set.map_err(CliError::model("cannot constrain the output"))?;
        }
        let eos = self.model.end_tokens().to_vec();
        let options = GenerateOptions {
            max_tokens: limit,
            stop,
            eos: &eos,
            spelled: &self.spelled,
        };
        let bar = progress::bar("prefill", new.len(), "tokens");
        let (mut fed, mut prefilled, mut ready) = (0, Duration::ZERO, false);
        let (mut text, mut failed, mut refused) = (String::new(), None, None);
        let written = self.model.generate_tokens(
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
            &mut |prompts, tokens| {
                let mut encoder = PromptEncoder {
                    prompts: prompts.reborrow(),
                    images: &mut self.images,
                };
                let ids = refill(&mut encoder, tokens);
                ids.unwrap_or_else(|e| {
                    refused = Some(e);
                    None
                })
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
        let drafts = before.zip(self.generator().draft_counts());
        Ok(GenerationResult {
            text,
            drafts: drafts.map(|(before, now)| SpeculationStats::since(before, now)),
            finish: written.finish,
            prefill: match self.model.has_source_encoder() {
                true => PhaseTiming::new(ids.len(), prefilled),
                false => PhaseTiming::new(fed, prefilled),
            },
            decode: PhaseTiming::new(decoded, started.elapsed().saturating_sub(prefilled)),
            tokens: written.tokens,
        })
    }
}
