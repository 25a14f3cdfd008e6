//! `tercet classify`: the classes of texts, or of their tokens.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;
use tercet_models::{Classifier, TokenLabel};

use super::texts::Reading;
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// The texts
    texts: Vec<String>,
    /// Print one JSON document with the scores of all classes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OfText<'a> {
    text: &'a str,
    label: &'a str,
    score: f32,
    scores: BTreeMap<&'a str, f32>,
}

#[derive(Serialize)]
struct OfTokens<'a> {
    text: &'a str,
    tokens: Vec<OfToken<'a>>,
}

#[derive(Serialize)]
struct OfToken<'a> {
    token: &'a str,
    label: &'a str,
    score: f32,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let texts = args.reading.texts(&args.texts, "texts")?;
    let options = args.reading.options();
    let (mut classifier, of_tokens) = args.reading.load(|files, device| {
        let of_tokens = files.class_head()?.of_tokens;
        Ok((files.classifier(device, &options)?, of_tokens))
    })?;
    interrupt::listen();
    match of_tokens {
        true => tokens(args, &texts, &mut classifier),
        false => whole(args, &texts, &mut classifier),
    }
}

fn whole(args: &Args, texts: &[String], of: &mut Classifier) -> Result<Outcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let scores = of.classify(texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model("cannot classify the texts"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(Outcome::Interrupted);
    }
    let labels = of.labels();
    let best = |own: &[f32]| {
        let greatest = own.iter().copied().enumerate();
        greatest.reduce(|a, b| if b.1 > a.1 { b } else { a })
    };
    let mut rows = Vec::new();
    for (text, own) in texts.iter().zip(&scores) {
        if let Some((class, score)) = best(own) {
            rows.push(OfText {
                text,
                label: &labels[class],
                score,
                scores: labels
                    .iter()
                    .map(String::as_str)
                    .zip(own.iter().copied())
                    .collect(),
            });
        }
    }
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    output::people(|out| {
        for row in &rows {
            let (label, text) = (output::shown(row.label), output::shown(row.text));
            writeln!(out, "{:>7.4}  {label}  {text}", row.score)?;
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}

fn tokens(args: &Args, texts: &[String], of: &mut Classifier) -> Result<Outcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let found = of.classify_tokens(texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let found = found.map_err(CliError::model("cannot classify the tokens"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(Outcome::Interrupted);
    }
    let labels = of.labels();
    let rows = texts.iter().zip(&found).map(|(text, own)| OfTokens {
        text,
        tokens: own.iter().map(|token| spelled(token, labels)).collect(),
    });
    let rows: Vec<OfTokens<'_>> = rows.collect();
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    output::people(|out| {
        for row in &rows {
            writeln!(out, "{}", output::shown(row.text))?;
            for of in &row.tokens {
                let (label, token) = (output::shown(of.label), output::shown(of.token));
                writeln!(out, "  {:>7.4}  {label}  {token}", of.score)?;
            }
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}

fn spelled<'a>(of: &'a TokenLabel, labels: &'a [String]) -> OfToken<'a> {
    OfToken {
        token: &of.token,
        label: &labels[of.label.class],
        score: of.label.score,
    }
}
