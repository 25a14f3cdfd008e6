//! Sampling flags of all commands that generate text.

use std::collections::HashMap;
use std::path::Path;

use tercet_models::{Sampling, SamplingOptions};

use super::{seed, within};
use crate::error::CliError;

const FINITE: std::ops::RangeInclusive<f64> = -1e6..=1e6;

#[derive(clap::Args)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e6))]
    pub(crate) temp: f64,
    /// Sample from the K most likely tokens; 0 or -1 for all
    #[arg(long, default_value_t = 0, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    top_k: usize,
    /// Sample from the most likely tokens whose probabilities add up to P
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    top_p: f64,
    /// Minimum probability relative to the most likely token
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    min_p: f64,
    /// Repetition penalty; 1 disables it
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = within(1e-3..=1e3))]
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
    /// Add X to the logit of token id TOKEN; repeatable. -inf bans the token
    #[arg(long, value_name = "TOKEN=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Stop string, excluded from the output; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Generate JSON that matches this schema: a file, or the schema itself
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "FILE|SCHEMA", group = "grammar_of")]
    json_schema: Option<String>,
    /// Generate text that matches this regular expression as a whole
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "REGEX", group = "grammar_of")]
    regex: Option<String>,
    /// Generate text that matches the grammar in this file, in Lark notation
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "FILE", group = "grammar_of")]
    grammar: Option<std::path::PathBuf>,
    /// Random seed; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    /// Sampling settings that are compiled into the graph.
    pub(crate) fn compiled(&self) -> Sampling {
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            ..Sampling::GREEDY
        }
    }

    /// Sampling settings that can be changed at run time.
    pub(crate) fn options(&self) -> SamplingOptions {
        SamplingOptions {
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            repetition_window: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            ..SamplingOptions::from(self.compiled())
        }
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
        let grammar = self.grammar.as_deref().map(read).transpose()?;
        Ok(grammar.map(Grammar::Lark))
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
        logit_bias: _,
    } = options;
    let mut numbers = HashMap::from([
        ("temp", (temperature, 0.0..=1e6)),
        ("top-p", (top_p, 0.0..=1.0)),
        ("min-p", (min_p, 0.0..=1.0)),
        ("repeat-penalty", (repetition_penalty, 1e-3..=1e3)),
        ("presence-penalty", (presence_penalty, FINITE)),
        ("frequency-penalty", (frequency_penalty, FINITE)),
    ]);
    let failed = |reason: String| CliError::Usage(format!("/set {name} {value}: {reason}"));
    match name {
        "top-k" => *k = top_k(value).map_err(failed)?,
        "repeat-last-n" => *repetition_window = window(value).map_err(failed)?,
        name => {
            let Some((number, range)) = numbers.remove(name) else {
                let known = "temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, \
                    presence-penalty, frequency-penalty, seed, tokens";
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

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(token, bias)| {
        let bias: f32 = bias.parse().ok()?;
        let usable = bias.is_finite() || bias == f32::NEG_INFINITY;
        Some((token.parse().ok()?, usable.then_some(bias)?))
    });
    parsed.ok_or_else(|| "expected TOKEN=X, such as 13=-inf or 42=1.5".to_string())
}
