//! Sampling flags of all commands that generate text.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use clap::parser::ValueSource;
use tercet_models::{
    DRY_BREAKERS, DryBreakers, DryOptions, MirostatOptions, OllamaParams, SamplerStep, Sampling,
    SamplingOptions, Tokenizer,
};

use super::{seed, within};
use crate::error::CliError;

const FINITE: std::ops::RangeInclusive<f64> = -1e6..=1e6;

/// The arguments that the command line has, as opposed to those with their default. As the first field
/// of a struct, it is read before the others take their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenArgs(BTreeSet<String>);

impl clap::Args for GivenArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

impl clap::FromArgMatches for GivenArgs {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<GivenArgs, clap::Error> {
        let ids = matches.ids().map(clap::Id::as_str);
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(GivenArgs(given.map(str::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = GivenArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl GivenArgs {
    fn has(&self, id: &str) -> bool {
        self.0.contains(id)
    }

    /// The maximum number of tokens: that of `--tokens`, or else of a model of Ollama's store.
    pub(crate) fn tokens(&self, tokens: usize, params: &OllamaParams) -> usize {
        match params.num_predict {
            Some(n) if !self.has("tokens") => usize::try_from(n).unwrap_or(usize::MAX),
            Some(_) | None => tokens,
        }
    }
}

#[derive(Clone, clap::Args)]
pub(crate) struct SamplingArgs {
    #[command(flatten)]
    pub(crate) given: GivenArgs,
    /// Sampling temperature; 0 is greedy [default: 0, or 0.8 with one of --typical, --top-n-sigma,
    /// --xtc-probability, --dynatemp-range and --mirostat]
    #[arg(long, visible_alias = "temperature", value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e6))]
    temp: Option<f64>,
    /// Sample from the K most likely tokens; 0 or -1 for all
    #[arg(long, alias = "top_k", default_value_t = 0, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    top_k: usize,
    /// Sample from the most likely tokens whose probabilities add up to P
    #[arg(long, alias = "top_p", default_value_t = 1.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    top_p: f64,
    /// Minimum probability relative to the most likely token
    #[arg(long, alias = "min_p", default_value_t = 0.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    min_p: f64,
    /// Repetition penalty; 1 disables it
    #[arg(long, alias = "repetition-penalty", default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = within(1e-3..=1e3))]
    repeat_penalty: f64,
    /// Number of recent tokens that --repeat-penalty covers; -1 for all
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true, value_parser = window)]
    repeat_last_n: usize,
    /// Subtract this from the logits of tokens that were already generated
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(FINITE))]
    presence_penalty: f64,
    /// Subtract this from the logit of a token for each time it was generated
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(FINITE))]
    frequency_penalty: f64,
    /// Keep logits at most N standard deviations below the greatest; 0 or -1 keeps all
    #[arg(long, visible_alias = "top-nsigma", default_value_t = 0.0, value_name = "N", allow_negative_numbers = true, value_parser = within(-1.0..=1e3))]
    top_n_sigma: f64,
    /// Locally typical sampling: keep this total probability of the tokens with typical surprise
    #[arg(long, visible_alias = "typical-p", default_value_t = 1.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    typical: f64,
    /// Probability of excluding all likely tokens but the least likely of them (XTC)
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    xtc_probability: f64,
    /// Probability from which on a token is likely for --xtc-probability; no effect above 0.5
    #[arg(long, default_value_t = 0.1, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    xtc_threshold: f64,
    /// Penalty of tokens that extend a repetition (DRY); 0 disables it
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e3))]
    dry_multiplier: f64,
    /// Factor of the DRY penalty for each further repeated token
    #[arg(long, default_value_t = 1.75, value_name = "X", allow_negative_numbers = true, value_parser = within(1.0..=1e3))]
    dry_base: f64,
    /// Repeated tokens from which on DRY penalizes a further one
    #[arg(long, default_value_t = 2, value_name = "N")]
    dry_allowed_length: usize,
    /// Number of recent tokens that DRY searches; -1 for all
    #[arg(long, default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = window)]
    dry_penalty_last_n: usize,
    /// Text at which repetitions end for DRY, instead of line ends, colons, quotes and asterisks;
    /// `none` for nowhere; repeatable
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Range of a dynamic temperature around --temp, by the entropy of the logits
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e3))]
    dynatemp_range: f64,
    /// Exponent of the entropy in the dynamic temperature
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e3))]
    dynatemp_exp: f64,
    /// Mirostat sampling: 1 or 2 for its version, 0 for none. It replaces all samplers but --temp and
    /// the penalties
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    mirostat: u8,
    /// Learning rate of Mirostat
    #[arg(long, default_value_t = 0.1, value_name = "X", value_parser = within(0.0..=1e3))]
    mirostat_lr: f64,
    /// Target surprise of Mirostat, in bits
    #[arg(long, default_value_t = 5.0, value_name = "X", value_parser = within(0.0..=1e3))]
    mirostat_ent: f64,
    /// Samplers in their order, with semicolons between them. llama.cpp has the temperature last
    /// [default: penalties;dry;top_n_sigma;top_k;temperature;typ_p;top_p;min_p;xtc]
    #[arg(long, value_name = "NAMES", value_parser = SamplerOrder::parse)]
    samplers: Option<SamplerOrder>,
    /// Add X to the logit of token id TOKEN, also as TOKEN+X and TOKEN-X; repeatable. -inf bans the
    /// token
    #[arg(short = 'l', long, value_name = "TOKEN=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Go on at the end of the text: ban the tokens that end it
    #[arg(long)]
    ignore_eos: bool,
    /// Ban the tokens that end the text until N tokens are generated
    #[arg(long, default_value_t = 0, value_name = "N")]
    min_tokens: usize,
    /// Token id that also ends the text; repeatable
    #[arg(long, value_name = "TOKEN")]
    pub(crate) stop_token_id: Vec<u32>,
    /// Stop string, excluded from the output; it may spell special tokens; repeatable
    #[arg(long, visible_alias = "reverse-prompt", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Generate JSON that matches this schema: a file, or the schema itself
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "FILE|SCHEMA", group = "grammar_of")]
    json_schema: Option<String>,
    /// Generate text that matches this regular expression as a whole
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "REGEX", group = "grammar_of")]
    regex: Option<String>,
    /// Generate text that matches the grammar in this file, in Lark or GBNF notation
    #[cfg(feature = "grammar")]
    #[arg(
        long,
        visible_alias = "grammar-file",
        value_name = "FILE",
        group = "grammar_of"
    )]
    grammar: Option<std::path::PathBuf>,
    /// Random seed; -1 draws one, which is printed
    #[arg(short, long, default_value = "-1", value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub(crate) seed: u64,
}

/// The order of the samplers.
#[derive(Clone, Debug)]
struct SamplerOrder(Vec<SamplerStep>);

impl SamplerOrder {
    fn parse(names: &str) -> Result<SamplerOrder, String> {
        SamplerStep::parse_all(names).map(SamplerOrder)
    }
}

/// The temperature of samplers that have no effect on greedy decoding.
const SAMPLING_TEMPERATURE: f64 = 0.8;

impl SamplingArgs {
    /// The temperature.
    pub(crate) fn temperature(&self) -> f64 {
        let samples = self.typical < 1.0
            || self.top_n_sigma > 0.0
            || self.xtc_probability > 0.0
            || self.dynatemp_range > 0.0
            || self.mirostat > 0;
        let default = if samples { SAMPLING_TEMPERATURE } else { 0.0 };
        self.temp.unwrap_or(default)
    }

    /// The arguments with the defaults of a model of Ollama's store, for those that are not given.
    pub(crate) fn with_params(&self, params: &OllamaParams) -> SamplingArgs {
        let mut all = self.clone();
        let given = |id| self.given.has(id);
        let set = |id, value: &mut f64, default: Option<f64>| match default {
            Some(default) if !given(id) => *value = default,
            Some(_) | None => {}
        };
        if !given("temp") {
            // Ollama samples with this temperature if a model has none.
            let samples = [params.top_p, params.min_p].iter().any(Option::is_some);
            let samples = samples || params.top_k.is_some();
            let default = samples.then_some(SAMPLING_TEMPERATURE);
            all.temp = params.temperature.or(default).or(all.temp);
        }
        set("top_p", &mut all.top_p, params.top_p);
        set("min_p", &mut all.min_p, params.min_p);
        set("typical", &mut all.typical, params.typical_p);
        set(
            "repeat_penalty",
            &mut all.repeat_penalty,
            params.repeat_penalty,
        );
        let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
        set("presence_penalty", &mut all.presence_penalty, presence);
        set("frequency_penalty", &mut all.frequency_penalty, frequency);
        set("mirostat_lr", &mut all.mirostat_lr, params.mirostat_eta);
        set("mirostat_ent", &mut all.mirostat_ent, params.mirostat_tau);
        let count = |n: i64| usize::try_from(n).unwrap_or(0);
        if let Some(k) = params.top_k.filter(|_| !given("top_k")) {
            all.top_k = count(k);
        }
        if let Some(n) = params.repeat_last_n.filter(|_| !given("repeat_last_n")) {
            all.repeat_last_n = if n < 0 { usize::MAX } else { count(n) };
        }
        if let Some(version) = params.mirostat.filter(|_| !given("mirostat")) {
            all.mirostat = version;
        }
        if let Some(seed) = params.seed.filter(|seed| *seed >= 0 && !given("seed")) {
            all.seed = seed.unsigned_abs();
        }
        if !given("stop") {
            all.stop.clone_from(&params.stop);
        }
        all
    }

    /// Sampling settings that are compiled into the graph.
    pub(crate) fn compiled(&self) -> Sampling {
        Sampling {
            temperature: self.temperature(),
            top_k: self.top_k,
            top_p: self.top_p,
            ..Sampling::GREEDY
        }
    }

    /// Sampling settings that can be changed at run time, for a model whose texts end with `ends`.
    pub(crate) fn options(
        &self,
        tokenizer: &Tokenizer,
        ends: &[u32],
    ) -> Result<SamplingOptions, CliError> {
        let defaults = SamplingOptions::from(self.compiled());
        let mut dry = DryOptions {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            window: self.dry_penalty_last_n,
            ..DryOptions::default()
        };
        if dry.multiplier > 0.0 {
            let breakers = match self.dry_sequence_breaker.as_slice() {
                [] => DryBreakers::from_texts(&DRY_BREAKERS, tokenizer),
                [none] if none == "none" => Ok(DryBreakers::default()),
                texts => DryBreakers::from_texts(texts, tokenizer),
            };
            let breakers =
                breakers.map_err(CliError::model("cannot use --dry-sequence-breaker"))?;
            dry.breakers = Arc::new(breakers);
        }
        let mirostat = match self.mirostat {
            0 => None,
            1 => Some(MirostatOptions::V1),
            _ => Some(MirostatOptions::V2),
        };
        let is_stop = |id: &u32| self.stop_token_id.contains(id);
        let ends = ends.iter().copied();
        let (min_tokens, ends) = match self.ignore_eos {
            true => (usize::MAX, ends.filter(|id| !is_stop(id)).collect()),
            false => (
                self.min_tokens,
                ends.chain(self.stop_token_id.clone()).collect(),
            ),
        };
        let samplers = self.samplers.as_ref().map(|order| order.0.clone());
        Ok(SamplingOptions {
            top_n_sigma: self.top_n_sigma.max(0.0),
            typical_p: self.typical,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            dry,
            mirostat: mirostat.map(|version| MirostatOptions {
                tau: self.mirostat_ent,
                eta: self.mirostat_lr,
                ..version
            }),
            samplers: samplers.unwrap_or_else(|| defaults.samplers.clone()),
            min_tokens,
            ends,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            repetition_window: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            ..defaults
        })
    }
}

#[cfg(feature = "grammar")]
impl SamplingArgs {
    /// Grammar that constrains the output, if a flag requests one.
    pub(crate) fn grammar(&self) -> Result<Option<tercet_models::constraint::Grammar>, CliError> {
        use tercet_models::constraint::Grammar;
        let read = |path: &Path| {
            let failed = |source| CliError::File {
                path: path.to_path_buf(),
                source,
            };
            std::fs::read_to_string(path).map_err(failed)
        };
        if let Some(schema) = &self.json_schema {
            let text = match schema.trim_start().starts_with(['{', '[']) {
                true => schema.clone(),
                false => read(Path::new(schema))?,
            };
            let grammar = Grammar::json_schema(&text);
            return grammar
                .map(Some)
                .map_err(|e| CliError::Usage(format!("--json-schema: {e}")));
        }
        if let Some(regex) = &self.regex {
            return Ok(Some(Grammar::Regex(regex.clone())));
        }
        let Some(path) = &self.grammar else {
            return Ok(None);
        };
        let grammar = Grammar::from_text(&read(path)?);
        grammar
            .map(Some)
            .map_err(|e| CliError::Usage(format!("{}: {e}", path.display())))
    }
}

/// Changes the sampling setting `name`, for `/set` of `tercet chat`.
pub(crate) fn set(options: &mut SamplingOptions, name: &str, value: &str) -> Result<(), CliError> {
    let SamplingOptions {
        temperature,
        top_k: k,
        top_p,
        min_p,
        repetition_penalty,
        repetition_window,
        presence_penalty,
        frequency_penalty,
        top_n_sigma,
        typical_p,
        xtc_probability,
        xtc_threshold,
        dynatemp_range,
        dynatemp_exponent,
        dry,
        ..
    } = options;
    let mut numbers = HashMap::from([
        ("temp", (temperature, 0.0..=1e6)),
        ("top-p", (top_p, 0.0..=1.0)),
        ("min-p", (min_p, 0.0..=1.0)),
        ("repeat-penalty", (repetition_penalty, 1e-3..=1e3)),
        ("presence-penalty", (presence_penalty, FINITE)),
        ("frequency-penalty", (frequency_penalty, FINITE)),
        ("top-n-sigma", (top_n_sigma, 0.0..=1e3)),
        ("typical", (typical_p, 0.0..=1.0)),
        ("xtc-probability", (xtc_probability, 0.0..=1.0)),
        ("xtc-threshold", (xtc_threshold, 0.0..=1.0)),
        ("dynatemp-range", (dynatemp_range, 0.0..=1e3)),
        ("dynatemp-exp", (dynatemp_exponent, 0.0..=1e3)),
        ("dry-multiplier", (&mut dry.multiplier, 0.0..=1e3)),
        ("dry-base", (&mut dry.base, 1.0..=1e3)),
    ]);
    let failed = |reason: String| CliError::Usage(format!("/set {name} {value}: {reason}"));
    match name {
        "top-k" => *k = top_k(value).map_err(failed)?,
        "repeat-last-n" => *repetition_window = window(value).map_err(failed)?,
        name => {
            let Some((number, range)) = numbers.remove(name) else {
                let known = "temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, \
                    presence-penalty, frequency-penalty, top-n-sigma, typical, xtc-probability, \
                    xtc-threshold, dynatemp-range, dynatemp-exp, dry-multiplier, dry-base, seed, tokens";
                return Err(failed(format!("unknown setting; expected one of {known}")));
            };
            *number = within(range)(value).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns the text of an argument, or reads it from `file` if that is set; `-` is standard input.
pub(crate) fn text_of(text: &str, file: Option<&Path>) -> Result<String, CliError> {
    let read = match (file, text) {
        (Some(path), _) if path != Path::new("-") => std::fs::read_to_string(path),
        (None, text) if text != "-" => return Ok(text.to_string()),
        _ => std::io::read_to_string(std::io::stdin()),
    };
    let path = file.filter(|f| *f != Path::new("-"));
    read.map_err(|source| CliError::File {
        path: path.unwrap_or(Path::new("standard input")).to_path_buf(),
        source,
    })
}

fn top_k(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(0),
        text => text
            .parse()
            .map_err(|_| "expected a whole number; 0 or -1 for all tokens".to_string()),
    }
}

fn window(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        text => text
            .parse()
            .map_err(|_| "expected a whole number, or -1 for all tokens".to_string()),
    }
}

pub fn bias(text: &str) -> Result<(u32, f32), String> {
    // llama.cpp writes TOKEN+X and TOKEN-X.
    let signed = |text: &'_ str| {
        let at = text.find(['+', '-'])?;
        Some((text[..at].to_string(), text[at..].to_string()))
    };
    let parts = match text.split_once('=') {
        Some((token, bias)) => Some((token.to_string(), bias.to_string())),
        None => signed(text),
    };
    let parsed = parts.and_then(|(token, bias)| {
        let bias: f32 = bias.parse().ok()?;
        let usable = bias.is_finite() || bias == f32::NEG_INFINITY;
        Some((token.parse().ok()?, usable.then_some(bias)?))
    });
    parsed.ok_or_else(|| "expected TOKEN=X, such as 13=-inf or 42=1.5, or TOKEN+X".to_string())
}
