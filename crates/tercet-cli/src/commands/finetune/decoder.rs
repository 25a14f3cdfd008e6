//! Fine-tuning of language models: documents and conversations in packed rows.

use std::collections::BTreeMap;

use tercet::{CompileOptions, Device};
use tercet_models::dataset::{ChatTemplate, Corpus, CorpusOptions, PackedCorpus};
use tercet_models::training::{DecoderTrainingOptions, TrainingGraph};
use tercet_models::{DecoderSpec, ModelFiles};

use super::FinetuneArgs;
use super::feed::{DataLoader, PackedTokenLoader};
use super::prepare::{TrainedModelKind, TrainingRun, TrainingSetup, hash, settings, tuning};
use crate::error::CliError;

/// Prepares the training of a language model.
pub(super) fn prepare(
    args: &FinetuneArgs,
    device: &Device,
    files: &ModelFiles,
    what: &str,
) -> Result<TrainingRun, CliError> {
    let config = files.decoder_spec();
    let config = config.map_err(CliError::model(what.to_string()))?;
    let seq = args.seq.unwrap_or(config.context.min(256));
    let corpus = read(args, files, &config, what)?;
    let mut notes = corpus.notes().to_vec();
    let no_data = || CliError::model(format!("cannot train on {}", args.data.display()));
    let tokens = corpus.documents().iter().flat_map(|d| d.tokens());
    let settings = settings(args, seq, hash(tokens.flat_map(|t| t.to_le_bytes())));
    let (train, held) = corpus.split(args.held_out, args.seed).map_err(no_data())?;
    let amounts = BTreeMap::from([
        ("train_tokens", train.tokens()),
        ("held_out_tokens", held.as_ref().map_or(0, Corpus::tokens)),
    ]);
    let data = PackedCorpus::new(train, seq, None).map_err(no_data())?;
    let held = held
        .map(|held| PackedCorpus::new(held, seq, None))
        .transpose();
    let held = held.map_err(no_data())?;
    if data.rows().len() < args.batch.saturating_mul(args.microbatches) {
        notes.push(format!(
            "the data fills only {} rows of {seq} tokens, fewer than one step uses; steps repeat rows",
            data.rows().len()
        ));
    }
    let weights = files.weights();
    let dtype = args.dtype.dtype(&weights, device);
    let options = DecoderTrainingOptions {
        dtype,
        checkpoints: args.recompute,
        dropout: args.dropout,
        ..DecoderTrainingOptions::new(args.batch, seq, tuning(args, args.lora_dropout))
    };
    let failed = || CliError::model(what.to_string());
    let training = TrainingGraph::decoder(&config, &weights, &options).map_err(failed())?;
    let held = match held {
        None => None,
        Some(held) => {
            let dropped = args.dropout > 0.0 || args.lora_dropout > 0.0;
            let graph = if dropped {
                let options = DecoderTrainingOptions {
                    dropout: 0.0,
                    tuning: tuning(args, 0.0),
                    ..options
                };
                let plain = TrainingGraph::decoder(&config, &weights, &options);
                plain.map_err(failed())?.graph
            } else {
                training.graph.clone()
            };
            let rows: Box<dyn DataLoader> = Box::new(PackedTokenLoader::new(args, held)?);
            Some((rows, graph))
        }
    };
    TrainingRun::new(
        args,
        device,
        TrainingSetup {
            training,
            dtype,
            bounds: CompileOptions::new(),
            feed: Box::new(PackedTokenLoader::new(args, data)?),
            held_out: held,
            amounts,
            notes,
            settings,
            kind: TrainedModelKind::Decoder(Box::new(config)),
        },
    )
}

/// Tokenizes the documents of the data.
fn read(
    args: &FinetuneArgs,
    files: &ModelFiles,
    config: &DecoderSpec,
    what: &str,
) -> Result<Corpus, CliError> {
    let tokenizer = files.tokenizer();
    let tokenizer = tokenizer.map_err(CliError::model(what.to_string()))?;
    let template = ChatTemplate::from_model(files, &tokenizer);
    let template = template.map_err(CliError::model(what.to_string()))?;
    let options = CorpusOptions {
        eos: config.eos.first().copied(),
        parses_special: args.parse_special,
        ..CorpusOptions::default()
    };
    let corpus = Corpus::read(&args.data, &tokenizer, Some(&template), options);
    corpus.map_err(CliError::model(format!(
        "cannot train on {}",
        args.data.display()
    )))
}
