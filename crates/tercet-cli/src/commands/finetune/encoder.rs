//! Fine-tuning of BERT encoders: labelled texts for a classifier, pairs of texts for embeddings.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use serde_json::Value as Json;
use tercet::train::EvaluationSample;
use tercet::{CompileOptions, Device, Dim, Tensor};
use tercet_models::dataset::{
    BatchSampler, EncoderBatch, LabelledTexts, LastBatchPolicy, ReadLimits, TextLabel, TextPairs,
};
use tercet_models::training::{BertTask, BertTrainingOptions, ClassPooling, TrainingGraph};
use tercet_models::{EncoderSpec, ModelFiles, Tokenizer};

use super::FinetuneArgs;
use super::feed::{DataLoader, EpochIter, TrainingBatch, no_tensor};
use super::prepare::{TrainedModelKind, TrainingRun, TrainingSetup, hash, settings, tuning};
use crate::error::CliError;

/// Temperature of the contrastive loss: cosine similarities are divided by it.
const TEMPERATURE: f64 = 0.05;

/// Prepares the training of an encoder.
pub(super) fn prepare(
    args: &FinetuneArgs,
    device: &Device,
    files: &ModelFiles,
    what: &str,
) -> Result<TrainingRun, CliError> {
    let failed = || CliError::model(what.to_string());
    let config = files.encoder_spec().map_err(failed())?;
    let tokenizer = Rc::new(files.tokenizer().map_err(failed())?);
    let refused = || CliError::model(what.to_string());
    let seq = longest(args, files, &config)?;
    let data = EncoderDataset::read(args, files)?;
    let settings = settings(args, seq, data.hash());
    let labels = data.labels();
    let (task, unit) = (data.task(files), data.unit());
    let (train, held) = data.split(args)?;
    let amounts = BTreeMap::from([
        (unit.0, train.len()),
        (unit.1, held.as_ref().map_or(0, EncoderDataset::len)),
    ]);
    let mut notes = Vec::new();
    let batch = match &train {
        // With in-batch negatives, a pair must not occur twice in a batch.
        EncoderDataset::Pairs(pairs) if pairs.len() < args.batch => {
            let own = pairs.len();
            notes.push(format!(
                "only {own} pairs to train on: the batch size is reduced to {own}"
            ));
            own
        }
        EncoderDataset::Classes(_) | EncoderDataset::Pairs(_) => args.batch,
    };
    let weights = files.weights();
    let dtype = args.dtype.dtype(&weights, device);
    let options = BertTrainingOptions {
        dtype,
        checkpoints: args.recompute,
        dropout: args.dropout,
        seed: args.seed,
        ..BertTrainingOptions::new(
            batch,
            Dim::sym("len"),
            tuning(args, args.lora_dropout),
            task,
        )
    };
    let training = TrainingGraph::bert(&config, &weights, &options).map_err(refused())?;
    let texts = |data| PaddedTextLoader::new(data, Rc::clone(&tokenizer), batch, seq, args);
    let held = match held {
        None => None,
        Some(held) => {
            // The last batch of the held-out data may be smaller.
            let options = BertTrainingOptions {
                batch: Dim::sym("batch"),
                dropout: 0.0,
                tuning: tuning(args, 0.0),
                ..options
            };
            let plain = TrainingGraph::bert(&config, &weights, &options).map_err(refused())?;
            let feed: Box<dyn DataLoader> = Box::new(texts(held));
            Some((feed, plain.graph))
        }
    };
    TrainingRun::new(
        args,
        device,
        TrainingSetup {
            training,
            dtype,
            bounds: CompileOptions::new()
                .bound("len", seq)
                .bound("batch", batch),
            feed: Box::new(texts(train)),
            held_out: held,
            amounts,
            notes,
            settings,
            kind: TrainedModelKind::Encoder { labels },
        },
    )
}

/// Maximum tokens of a text.
fn longest(
    args: &FinetuneArgs,
    files: &ModelFiles,
    config: &EncoderSpec,
) -> Result<usize, CliError> {
    let said = match files {
        ModelFiles::Hf(folder) => folder.max_seq_length(),
        ModelFiles::Gguf(_) => Ok(None),
    };
    let said = said.map_err(CliError::model("cannot load the model"))?;
    let positions = config.context;
    match args.seq {
        Some(seq) if seq > positions => Err(CliError::Usage(format!(
            "--seq {seq} exceeds the model's {positions} positions"
        ))),
        Some(seq) => Ok(seq),
        None => Ok(said.unwrap_or(128).min(positions)),
    }
}

/// Training data of an encoder.
enum EncoderDataset {
    Classes(LabelledTexts),
    Pairs(TextPairs),
}

impl EncoderDataset {
    fn read(args: &FinetuneArgs, files: &ModelFiles) -> Result<EncoderDataset, CliError> {
        let (path, limits) = (&args.data, ReadLimits::default());
        let no_data = || CliError::model(format!("cannot train on {}", path.display()));
        if has_pairs(path) {
            let pairs = TextPairs::read(path, limits).map_err(no_data())?;
            if pairs.len() < 2 {
                let path = path.display();
                return Err(CliError::Usage(format!(
                    "{path}: one pair has no negatives to train against; provide at least two"
                )));
            }
            return Ok(EncoderDataset::Pairs(pairs));
        }
        let known = known_labels(files);
        let texts = LabelledTexts::read(path, known.as_deref(), limits);
        Ok(EncoderDataset::Classes(texts.map_err(no_data())?))
    }

    fn len(&self) -> usize {
        match self {
            EncoderDataset::Classes(texts) => texts.len(),
            EncoderDataset::Pairs(pairs) => pairs.len(),
        }
    }

    /// Names of the training and held-out counts in the report.
    fn unit(&self) -> (&'static str, &'static str) {
        match self {
            EncoderDataset::Classes(_) => ("train_texts", "held_out_texts"),
            EncoderDataset::Pairs(_) => ("train_pairs", "held_out_pairs"),
        }
    }

    fn labels(&self) -> Option<Vec<String>> {
        match self {
            EncoderDataset::Classes(texts) => {
                Some(texts.names().iter().map(label_string).collect())
            }
            EncoderDataset::Pairs(_) => None,
        }
    }

    fn task(&self, files: &ModelFiles) -> BertTask {
        let weights = files.weights();
        let pooler = |prefix: &str| weights.has(&format!("{prefix}pooler.dense.weight"));
        match self {
            EncoderDataset::Classes(texts) => BertTask::Classes {
                classes: texts.names().len(),
                pooling: match pooler("") || pooler("bert.") {
                    true => ClassPooling::Pooler,
                    false => ClassPooling::First,
                },
            },
            EncoderDataset::Pairs(_) => BertTask::Pairs {
                temperature: TEMPERATURE,
                negatives: 0,
            },
        }
    }

    /// Hash of all texts and their classes.
    fn hash(&self) -> u64 {
        match self {
            EncoderDataset::Classes(texts) => {
                let classes = texts.classes().iter().flat_map(|class| class.to_le_bytes());
                let all = (0..texts.len()).filter_map(|at| texts.text(at));
                hash(all.flat_map(str::bytes).chain(classes))
            }
            EncoderDataset::Pairs(pairs) => {
                let both = pairs.pairs().iter().flat_map(|(a, b)| [a, b]);
                hash(both.flat_map(|text| text.bytes()))
            }
        }
    }

    fn split(
        self,
        args: &FinetuneArgs,
    ) -> Result<(EncoderDataset, Option<EncoderDataset>), CliError> {
        let no_data = || CliError::model(format!("cannot train on {}", args.data.display()));
        let (share, seed) = (args.held_out, args.seed);
        Ok(match self {
            EncoderDataset::Classes(texts) => {
                let (train, held) = texts.split(share, seed).map_err(no_data())?;
                (
                    EncoderDataset::Classes(train),
                    held.map(EncoderDataset::Classes),
                )
            }
            EncoderDataset::Pairs(pairs) => {
                let (train, held) = pairs.split(share, seed).map_err(no_data())?;
                (
                    EncoderDataset::Pairs(train),
                    held.map(EncoderDataset::Pairs),
                )
            }
        })
    }
}

/// The label as the model configuration spells it.
fn label_string(label: &TextLabel) -> String {
    match label {
        TextLabel::Int(label) => label.to_string(),
        TextLabel::Name(label) => label.clone(),
    }
}

/// Whether the first object of a file has a field of text pairs. If the file cannot be read, the
/// reader of labelled texts reports the error.
fn has_pairs(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else {
        return false;
    };
    let limit = ReadLimits::default().line_bytes as u64;
    let lines = BufReader::new(file.take(limit)).lines();
    let mut texts = lines.map_while(Result::ok);
    let first = texts.find(|line| !line.trim().is_empty());
    let first: Option<Json> = first.and_then(|line| serde_json::from_str(&line).ok());
    let has = |field| first.as_ref().is_some_and(|f| f.get(field).is_some());
    ["anchor", "query", "sentence1"].into_iter().any(has)
}

/// Classes of a model that already has a classifier, in the model's order. The classes are integers
/// if all class names parse as integers.
fn known_labels(files: &ModelFiles) -> Option<Vec<TextLabel>> {
    let ModelFiles::Hf(folder) = files else {
        return None;
    };
    folder.weights().find("classifier.weight")?;
    let names = folder.config().get("id2label")?.as_object()?;
    let by_id = (0..names.len()).map(|i| names.get(&i.to_string())?.as_str());
    let names: Vec<&str> = by_id.collect::<Option<_>>()?;
    let integers: Result<Vec<i64>, _> = names.iter().map(|name| name.parse()).collect();
    Some(match integers {
        Ok(integers) => integers.into_iter().map(TextLabel::Int).collect(),
        Err(_) => names
            .iter()
            .map(|name| TextLabel::Name(name.to_string()))
            .collect(),
    })
}

/// Texts in batches, padded to the longest text of the batch.
struct PaddedTextLoader {
    data: EncoderDataset,
    tokenizer: Rc<Tokenizer>,
    order: BatchSampler,
    batch: usize,
    microbatches: usize,
    seq: usize,
}

impl PaddedTextLoader {
    fn new(
        data: EncoderDataset,
        tokenizer: Rc<Tokenizer>,
        batch: usize,
        seq: usize,
        args: &FinetuneArgs,
    ) -> PaddedTextLoader {
        let last = match data {
            EncoderDataset::Classes(_) => LastBatchPolicy::Wraps,
            EncoderDataset::Pairs(_) => LastBatchPolicy::Short,
        };
        PaddedTextLoader {
            order: BatchSampler::new(data.len(), batch, args.seed, last),
            data,
            tokenizer,
            batch,
            microbatches: args.microbatches,
            seq,
        }
    }

    /// Items of a batch. For pairs, an incomplete batch at the end of an epoch is skipped; the next
    /// epoch has a different order.
    fn items(&mut self, batch: u64) -> Vec<usize> {
        let step = match self.data {
            EncoderDataset::Classes(_) => batch,
            EncoderDataset::Pairs(_) => {
                let full = ((self.data.len() / self.batch) as u64).max(1);
                self.order.step_of(batch / full, batch % full)
            }
        };
        self.order.batch(step)
    }

    /// Inputs of microbatches of equal size, stacked along the `leading` axes.
    fn batch_inputs(
        &self,
        parts: &[Vec<usize>],
        leading: &[usize],
    ) -> Result<TrainingBatch, CliError> {
        let no_batch = || CliError::model("cannot make a batch");
        let (batch, labels) = match &self.data {
            EncoderDataset::Classes(texts) => {
                let (batch, labels) = texts
                    .batch(&self.tokenizer, &parts.concat(), self.seq)
                    .map_err(no_batch())?;
                (batch, Some(labels))
            }
            EncoderDataset::Pairs(pairs) => {
                let all = pairs.pairs();
                let texts = parts.iter().flat_map(|items| {
                    let anchors = items.iter().map(|at| all[*at].0.as_str());
                    anchors.chain(items.iter().map(|at| all[*at].1.as_str()))
                });
                let texts: Vec<&str> = texts.collect();
                let batch = EncoderBatch::new(&self.tokenizer, &texts, self.seq);
                (batch.map_err(no_batch())?, None)
            }
        };
        let filled = batch.mask.to_i64s().into_iter().sum::<i64>() as usize;
        let shaped = |tensor: Tensor| {
            let shape = tensor.shape();
            let rows = shape[0] / leading.iter().product::<usize>().max(1);
            let shape = [leading, &[rows], &shape[1..]].concat();
            tensor.reshaped(&shape).map_err(no_tensor)
        };
        let mut inputs = vec![
            ("ids", shaped(batch.ids)?),
            ("type_ids", shaped(batch.type_ids)?),
            ("mask", shaped(batch.mask)?),
        ];
        if let Some(labels) = labels {
            inputs.push(("labels", shaped(labels)?));
        }
        Ok(TrainingBatch { inputs, filled })
    }
}

impl DataLoader for PaddedTextLoader {
    fn step(&mut self, step: u64) -> Result<TrainingBatch, CliError> {
        let first = step * self.microbatches as u64;
        let batches = (0..self.microbatches as u64).map(|i| first + i);
        let parts: Vec<Vec<usize>> = batches.map(|batch| self.items(batch)).collect();
        match self.microbatches {
            1 => self.batch_inputs(&parts, &[]),
            n => self.batch_inputs(&parts, &[n]),
        }
    }

    fn batches(&self) -> usize {
        self.data.len().div_ceil(self.batch.max(1))
    }

    fn once(&self, sample: EvaluationSample) -> Result<EpochIter<'_>, CliError> {
        let all: Vec<usize> = (0..self.data.len()).collect();
        let parts = all.chunks(self.batch.max(1)).enumerate();
        let parts = parts.filter(|(at, _)| sample.contains(*at));
        let parts: Vec<Vec<usize>> = parts.map(|(_, part)| part.to_vec()).collect();
        Ok(Box::new(
            parts
                .into_iter()
                .map(|part| self.batch_inputs(&[part], &[])),
        ))
    }
}
