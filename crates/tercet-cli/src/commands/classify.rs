//! `tercet classify`: the classes of texts, of their tokens, or of pictures.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use serde::Serialize;
use tercet_models::{
    Classifier, Embedder, Entity, Family, Likeness, PictureClassifier, PictureEncoder, TokenLabel,
};

use super::texts::Reading;
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// The texts, or the pictures (PNG or JPEG files) for a model of pictures
    texts: Vec<String>,
    /// A class by its description, as often as there are classes, for a model of pictures and texts
    #[arg(long, value_name = "TEXT")]
    label: Vec<String>,
    /// Join tokens of one class that stand side by side to pieces of the text, leaving out those of class `O`
    #[arg(long)]
    join: bool,
    /// Print one JSON document with the scores of all classes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OfText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<&'a str>,
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
struct OfPieces<'a> {
    text: &'a str,
    entities: Vec<Piece<'a>>,
}

#[derive(Serialize)]
struct Piece<'a> {
    text: &'a str,
    label: &'a str,
    score: f32,
    /// Characters of the text.
    start: usize,
    end: usize,
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
    let loaded = args.reading.load(|files, device| match files.family()? {
        Family::Vision if args.label.is_empty() => Ok(Loaded::Pictures(
            files.picture_classifier(device, &options)?,
        )),
        Family::Vision => Ok(Loaded::Described {
            likeness: files.likeness()?,
            texts: files.embedder(device, &options)?,
            pictures: files.picture_encoder(device, &options)?,
        }),
        Family::Decoder
        | Family::Encoder
        | Family::VisionLanguage
        | Family::TextToText
        | Family::Speech => {
            let of_tokens = files.class_head()?.of_tokens;
            Ok(Loaded::Texts(
                files.classifier(device, &options)?,
                of_tokens,
            ))
        }
    })?;
    interrupt::listen();
    match loaded {
        Loaded::Texts(..) if !args.label.is_empty() => Err(CliError::Usage(
            "--label describes classes to models of pictures and texts; this one has its own"
                .into(),
        )),
        Loaded::Texts(mut of, true) if args.join => pieces(args, &texts, &mut of),
        Loaded::Texts(mut of, true) => tokens(args, &texts, &mut of),
        _ if args.join => Err(CliError::Usage(
            "--join is for models that tell classes of tokens; this one tells those of texts or pictures".into(),
        )),
        Loaded::Texts(mut of, false) => whole(args, &texts, &mut of),
        Loaded::Pictures(mut of) => {
            let labels = of.labels().to_vec();
            pictures(args, (&texts, &labels), &mut |progress| {
                of.classify(&texts, progress)
            })
        }
        Loaded::Described {
            likeness,
            texts: mut embedder,
            pictures: mut encoder,
        } => {
            let labels = &args.label;
            let described = embedder.embed(labels, &mut |_| true);
            let described = described.map_err(CliError::model("cannot read the labels"))?;
            pictures(args, (&texts, labels), &mut |progress| {
                let rows = encoder.of_files(&texts, progress)?;
                let known = rows.iter().filter(|row| !row.is_empty());
                Ok(known.map(|row| likeness.scores(row, &described)).collect())
            })
        }
    }
}

/// What tells classes.
#[allow(clippy::large_enum_variant, reason = "a command has one of them")]
enum Loaded {
    /// Of texts, or of their tokens.
    Texts(Classifier, bool),
    /// Of pictures, its own.
    Pictures(PictureClassifier),
    /// Of pictures, by descriptions.
    Described {
        likeness: Likeness,
        texts: Embedder,
        pictures: PictureEncoder,
    },
}

/// Is told how many are done; false ends it.
type Progress<'a> = &'a mut dyn FnMut(usize) -> bool;

type Scored = Result<Vec<Vec<f32>>, tercet_models::Error>;

fn pictures(
    args: &Args,
    (files, labels): (&[String], &[String]),
    classify: &mut dyn FnMut(Progress<'_>) -> Scored,
) -> Result<Outcome, CliError> {
    let bar = progress::bar("classify", files.len(), "pictures");
    let scores = classify(&mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let scores = scores.map_err(CliError::model("cannot classify the pictures"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(Outcome::Interrupted);
    }
    let rows = told(files, &scores, labels).map(|row| OfText {
        picture: row.text,
        text: None,
        ..row
    });
    print(args, &rows.collect::<Vec<_>>())
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
    let rows: Vec<OfText<'_>> = told(texts, &scores, of.labels()).collect();
    print(args, &rows)
}

/// The likeliest class of each text, the first among equals, with the scores of all.
fn told<'a>(
    texts: &'a [String],
    scores: &'a [Vec<f32>],
    labels: &'a [String],
) -> impl Iterator<Item = OfText<'a>> {
    let rows = texts.iter().zip(scores);
    rows.filter_map(|(text, own)| {
        let all = own.iter().copied().enumerate();
        let (class, score) = all.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        let named = labels.iter().map(String::as_str);
        Some(OfText {
            text: Some(text),
            picture: None,
            label: &labels[class],
            score,
            scores: named.zip(own.iter().copied()).collect(),
        })
    })
}

fn print(args: &Args, rows: &[OfText<'_>]) -> Result<Outcome, CliError> {
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    output::people(|out| {
        for row in rows {
            let named = row.text.or(row.picture).unwrap_or_default();
            let (label, named) = (output::shown(row.label), output::shown(named));
            writeln!(out, "{:>7.4}  {label}  {named}", row.score)?;
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

fn pieces(args: &Args, texts: &[String], of: &mut Classifier) -> Result<Outcome, CliError> {
    let bar = progress::bar("classify", texts.len(), "texts");
    let found = of.entities(texts, &mut |done| {
        bar.set_position(done as u64);
        !interrupted()
    });
    let found = found.map_err(CliError::model("cannot classify the tokens"))?;
    bar.finish_and_clear();
    if interrupted() {
        return Ok(Outcome::Interrupted);
    }
    let rows = texts.iter().zip(&found).map(|(text, own)| OfPieces {
        text,
        entities: own.iter().map(|entity| piece(text, entity)).collect(),
    });
    let rows: Vec<OfPieces<'_>> = rows.collect();
    if args.json {
        output::json(&rows)?;
        return Ok(Outcome::Done);
    }
    output::people(|out| {
        for row in &rows {
            writeln!(out, "{}", output::shown(row.text))?;
            for of in &row.entities {
                let (label, text) = (output::shown(of.label), output::shown(of.text));
                writeln!(out, "  {:>7.4}  {label}  {text}", of.score)?;
            }
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}

fn piece<'a>(text: &'a str, entity: &'a Entity) -> Piece<'a> {
    let Range { start, end } = entity.span.clone();
    let count = |to: usize| text.get(..to).map_or(0, |before| before.chars().count());
    Piece {
        text: text.get(start..end).unwrap_or_default(),
        label: &entity.name,
        score: entity.score,
        start: count(start),
        end: count(end),
    }
}

fn spelled<'a>(of: &'a TokenLabel, labels: &'a [String]) -> OfToken<'a> {
    OfToken {
        token: &of.token,
        label: &labels[of.label.class],
        score: of.label.score,
    }
}
