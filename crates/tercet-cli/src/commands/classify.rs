//! `tercet classify`: classes of texts, tokens or images.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use serde::Serialize;
use tercet_models::{
    Classifier, Embedder, Entity, ImageClassifier, ImageEmbedder, ModelFamily, SimilarityHead,
    TokenLabel,
};

use super::texts::TextInputArgs;
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    reading: TextInputArgs,
    /// Texts to classify, or PNG and JPEG files if the model classifies images
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
    let loaded = args.reading.load(|files, device| match files.family()? {
        ModelFamily::Vision if args.label.is_empty() => Ok(LoadedClassifier::Pictures(
            files.image_classifier(device, &options)?,
        )),
        ModelFamily::Vision => Ok(LoadedClassifier::Described {
            likeness: files.similarity_head()?,
            texts: files.embedder(device, &options)?,
            pictures: files.image_embedder(device, &options)?,
        }),
        ModelFamily::Decoder
        | ModelFamily::Encoder
        | ModelFamily::VisionLanguage
        | ModelFamily::TextToText
        | ModelFamily::Speech => {
            let of_tokens = files.class_head()?.per_token;
            Ok(LoadedClassifier::Texts(
                files.classifier(device, &options)?,
                of_tokens,
            ))
        }
    })?;
    interrupt::listen();
    match loaded {
        LoadedClassifier::Texts(..) if !args.label.is_empty() => Err(CliError::Usage(
            "--label is for image-text models (zero-shot); this model has fixed classes; leave it out"
                .into(),
        )),
        LoadedClassifier::Texts(mut of, true) if args.join => pieces(args, &texts, &mut of),
        LoadedClassifier::Texts(mut of, true) => tokens(args, &texts, &mut of),
        _ if args.join => Err(CliError::Usage(
            "--join is for token classifiers; this model classifies whole texts or images; leave it out".into(),
        )),
        LoadedClassifier::Texts(mut of, false) => whole(args, &texts, &mut of),
        LoadedClassifier::Pictures(mut of) => {
            let labels = of.labels().to_vec();
            pictures(args, (&texts, &labels), &mut |progress| {
                of.classify(&texts, progress)
            })
        }
        LoadedClassifier::Described {
            likeness,
            texts: mut embedder,
            pictures: mut encoder,
        } => {
            let labels = &args.label;
            let described = embedder.embed(labels, &mut |_| true);
            let described = described.map_err(CliError::model("cannot read the labels"))?;
            pictures(args, (&texts, labels), &mut |progress| {
                let rows = encoder.embed_files(&texts, progress)?;
                let known = rows.iter().filter(|row| !row.is_empty());
                Ok(known.map(|row| likeness.scores(row, &described)).collect())
            })
        }
    }
}

/// The loaded classifier.
#[allow(
    clippy::large_enum_variant,
    reason = "a command creates only one value"
)]
enum LoadedClassifier {
    /// Classifies texts, or tokens if the flag is true.
    Texts(Classifier, bool),
    /// Classifies images into the classes of the model.
    Pictures(ImageClassifier),
    /// Classifies images by text descriptions (zero-shot).
    Described {
        likeness: SimilarityHead,
        texts: Embedder,
        pictures: ImageEmbedder,
    },
}

/// Called with the number of finished items; returning false cancels the work.
type ClassifyProgress<'a> = &'a mut dyn FnMut(usize) -> bool;

type ClassScores = Result<Vec<Vec<f32>>, tercet_models::Error>;

fn pictures(
    args: &ClassifyArgs,
    (files, labels): (&[String], &[String]),
    classify: &mut dyn FnMut(ClassifyProgress<'_>) -> ClassScores,
) -> Result<CommandOutcome, CliError> {
    let bar = progress::bar("classify", files.len(), "images");
    let scores = classify(&mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model("cannot classify the images"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    let rows = report_classes(files, &scores, labels).map(|row| InputClassRow {
        picture: row.text,
        text: None,
        ..row
    });
    print(args, &rows.collect::<Vec<_>>())
}

fn whole(
    args: &ClassifyArgs,
    texts: &[String],
    of: &mut Classifier,
) -> Result<CommandOutcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let scores = of.classify(texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model("cannot classify the texts"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    let rows: Vec<InputClassRow<'_>> = report_classes(texts, &scores, of.labels()).collect();
    print(args, &rows)
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
    of: &mut Classifier,
) -> Result<CommandOutcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let found = of.classify_tokens(texts, &mut |done| {
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
    of: &mut Classifier,
) -> Result<CommandOutcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let found = of.entities(texts, &mut |done| {
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
