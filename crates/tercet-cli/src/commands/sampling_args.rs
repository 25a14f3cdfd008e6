//! How tokens are chosen: the arguments of every command that writes text.

use std::collections::HashMap;
use std::path::Path;

use tercet_models::{Sampling, SamplingOptions};

use super::{seed, within};
use crate::error::CliError;

const FINITE: std::ops::RangeInclusive<f64> = -1e6..=1e6;

#[derive(clap::Args)]
pub(crate) struct Choosing {
    /// 0 always takes the likeliest token; higher is more surprising
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(0.0..=1e6))]
    pub(crate) temp: f64,
    /// Choose among the K likeliest tokens; 0 or -1 for all
    #[arg(long, default_value_t = 0, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    top_k: usize,
    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    top_p: f64,
    /// Choose among tokens of at least this part of the likeliest one's probability
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true, value_parser = within(0.0..=1.0))]
    min_p: f64,
    /// Divides positive logits of tokens that occurred, multiplies negative ones; 1 changes nothing
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true, value_parser = within(1e-3..=1e3))]
    repeat_penalty: f64,
    /// How many of the last tokens --repeat-penalty looks at; -1 for all
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true, value_parser = window)]
    repeat_last_n: usize,
    /// Taken from the logits of tokens that were written
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(FINITE))]
    presence_penalty: f64,
    /// Taken from the logits of tokens for each time they were written
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true, value_parser = within(FINITE))]
    frequency_penalty: f64,
    /// Adds to the logit of a token, by its number; -inf forbids it; as often as there are tokens
    #[arg(long, value_name = "TOKEN=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// A text that ends what is written, and is not part of it; as often as there are such texts
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Write JSON of this schema: a file, or the schema itself
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "FILE|SCHEMA", group = "grammar_of")]
    json_schema: Option<String>,
    /// Write what this regular expression matches as a whole
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "REGEX", group = "grammar_of")]
    regex: Option<String>,
    /// Write a text of the grammar in this file, in Lark's notation
    #[cfg(feature = "grammar")]
    #[arg(long, value_name = "FILE", group = "grammar_of")]
    grammar: Option<std::path::PathBuf>,
    /// Seed of the random numbers; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub(crate) seed: u64,
}

impl Choosing {
    /// What the graph is built with.
    pub(crate) fn compiled(&self) -> Sampling {
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            ..Sampling::GREEDY
        }
    }

    /// What is set on the generator.
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
impl Choosing {
    /// What texts have to be.
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

/// The numbers that `/set` changes, by their names.
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
                return Err(failed(format!("no such setting; there are {known}")));
            };
            *number = within(range)(value).map_err(failed)?;
        }
    }
    Ok(())
}

/// A text from an argument, or from a file where one is named; `-` is standard input.
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
