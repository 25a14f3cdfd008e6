//! `tercet classify`: classes of texts, tokens or images.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use serde::Serialize;
use tercet_models::{Classifier, Entity, ModelFamily, TextClassifier, TokenLabel};

use super::texts::TextInputArgs;
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    reading: TextInputArgs,
    /// Texts to classify, or PNG, JPEG, WebP and GIF files if the model classifies images
    texts: Vec<String>,
    /// Description of a class, for zero-shot classification with an image-text model; repeatable
    #[arg(long, value_name = "TEXT")]
    label: Vec<String>,
    /// Merge adjacent tokens of the same class into spans of the text, without class `O`
    #[arg(long)]
    join: bool,
    /// Print JSON with the scores of all classes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct InputClassRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<&'a str>,
    label: &'a str,
    score: f32,
    scores: BTreeMap<&'a str, f32>,
}

#[derive(Serialize)]
struct TokenClassesRow<'a> {
    text: &'a str,
    tokens: Vec<TokenClassRow<'a>>,
}

#[derive(Serialize)]
struct EntitiesRow<'a> {
    text: &'a str,
    entities: Vec<EntitySpan<'a>>,
}

#[derive(Serialize)]
struct EntitySpan<'a> {
    text: &'a str,
    label: &'a str,
    score: f32,
    /// Range in the text, in characters.
    start: usize,
    end: usize,
}

#[derive(Serialize)]
struct TokenClassRow<'a> {
    token: &'a str,
    label: &'a str,
    score: f32,
}

pub(crate) fn run(args: &ClassifyArgs) -> Result<CommandOutcome, CliError> {
    let texts = args.reading.texts(&args.texts, "texts")?;
    let options = args.reading.options();
    let loaded = args.reading.load(|files, device| {
        let is_vision = files.family()? == ModelFamily::Vision;
        if !is_vision && files.class_head()?.per_token {
            return Ok(LoadedClassifier::Tokens(
                files.classifier(device, &options)?,
            ));
        }
        let labels = &args.label;
        let classifier = match is_vision && !labels.is_empty() {
            true => Classifier::from_files_with_labels(files, device, &options, labels)?,
            false => Classifier::from_files(files, device, &options)?,
        };
        Ok(LoadedClassifier::Whole(classifier))
    })?;
    let is_of_images =
        matches!(&loaded, LoadedClassifier::Whole(classifier) if classifier.is_of_images());
    if !is_of_images && !args.label.is_empty() {
        return Err(CliError::Usage(
            "--label is for image-text models (zero-shot); this model has fixed classes; leave it out"
                .into(),
        ));
    }
    interrupt::listen();
    match loaded {
        LoadedClassifier::Tokens(mut of) if args.join => pieces(args, &texts, &mut of),
        LoadedClassifier::Tokens(mut of) => tokens(args, &texts, &mut of),
        LoadedClassifier::Whole(_) if args.join => Err(CliError::Usage(
            "--join is for token classifiers; this model classifies whole texts or images; leave it out".into(),
        )),
        LoadedClassifier::Whole(mut of) => whole(args, &texts, &mut of),
    }
}

/// The loaded classifier.
#[allow(
    clippy::large_enum_variant,
    reason = "a command creates only one value"
)]
enum LoadedClassifier {
    /// Classifies texts or images.
    Whole(Classifier),
    /// Classifies the tokens of texts.
    Tokens(TextClassifier),
}

fn whole(
    args: &ClassifyArgs,
    inputs: &[String],
    of: &mut Classifier,
) -> Result<CommandOutcome, CliError> {
    let unit = match of.is_of_images() {
        true => "images",
        false => "texts",
    };
    let bar = progress::bar("classify", inputs.len(), unit);
    let scores = of.scores_with_progress(inputs, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model(format!("cannot classify the {unit}")))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    let rows = report_classes(inputs, &scores, of.labels());
    let rows = rows.map(|row| match unit {
        "images" => InputClassRow {
            picture: row.text,
            text: None,
            ..row
        },
        _ => row,
    });
    print(args, &rows.collect::<Vec<_>>())
}

/// The class with the highest score of each text, together with all scores. Ties go to the first
/// class.
fn report_classes<'a>(
    texts: &'a [String],
    scores: &'a [Vec<f32>],
    labels: &'a [String],
) -> impl Iterator<Item = InputClassRow<'a>> {
    let rows = texts.iter().zip(scores);
    rows.filter_map(|(text, own)| {
        let all = own.iter().copied().enumerate();
        let (class, score) = all.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        let named = labels.iter().map(String::as_str);
        Some(InputClassRow {
            text: Some(text),
            picture: None,
            label: &labels[class],
            score,
            scores: named.zip(own.iter().copied()).collect(),
        })
    })
}

fn print(args: &ClassifyArgs, rows: &[InputClassRow<'_>]) -> Result<CommandOutcome, CliError> {
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for row in rows {
            let named = row.text.or(row.picture).unwrap_or_default();
            let (label, named) = (output::escape_line(row.label), output::escape_line(named));
            writeln!(out, "{:>7.4}  {label}  {named}", row.score)?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}

fn tokens(
    args: &ClassifyArgs,
    texts: &[String],
    of: &mut TextClassifier,
) -> Result<CommandOutcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let found = of.classify_tokens_with_progress(texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let found = found.map_err(CliError::model("cannot classify the tokens"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    let labels = of.labels();
    let rows = texts.iter().zip(&found).map(|(text, own)| TokenClassesRow {
        text,
        tokens: own.iter().map(|token| token_row(token, labels)).collect(),
    });
    let rows: Vec<TokenClassesRow<'_>> = rows.collect();
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for row in &rows {
            writeln!(out, "{}", output::escape_line(row.text))?;
            for of in &row.tokens {
                let (label, token) = (output::escape_line(of.label), output::escape_line(of.token));
                writeln!(out, "  {:>7.4}  {label}  {token}", of.score)?;
            }
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}

fn pieces(
    args: &ClassifyArgs,
    texts: &[String],
    of: &mut TextClassifier,
) -> Result<CommandOutcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let found = of.entities_with_progress(texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let found = found.map_err(CliError::model("cannot classify the tokens"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    let rows = texts.iter().zip(&found).map(|(text, own)| EntitiesRow {
        text,
        entities: own.iter().map(|entity| piece(text, entity)).collect(),
    });
    let rows: Vec<EntitiesRow<'_>> = rows.collect();
    if args.json {
        output::json(&rows)?;
        return Ok(CommandOutcome::Done);
    }
    output::print_for_humans(|out| {
        for row in &rows {
            writeln!(out, "{}", output::escape_line(row.text))?;
            for of in &row.entities {
                let (label, text) = (output::escape_line(of.label), output::escape_line(of.text));
                writeln!(out, "  {:>7.4}  {label}  {text}", of.score)?;
            }
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}

fn piece<'a>(text: &'a str, entity: &'a Entity) -> EntitySpan<'a> {
    let Range { start, end } = entity.span.clone();
    let count = |to: usize| text.get(..to).map_or(0, |before| before.chars().count());
    EntitySpan {
        text: text.get(start..end).unwrap_or_default(),
        label: &entity.name,
        score: entity.score,
        start: count(start),
        end: count(end),
    }
}

fn token_row<'a>(of: &'a TokenLabel, labels: &'a [String]) -> TokenClassRow<'a> {
    TokenClassRow {
        token: &of.token,
        label: &labels[of.label.class],
        score: of.label.score,
    }
}
