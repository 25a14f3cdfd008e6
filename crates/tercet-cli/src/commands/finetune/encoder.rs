//! BERT encoders: labelled texts for a classifier, pairs of texts for embeddings.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use serde_json::Value as Json;
use tercet::{CompileOptions, Device, Dim, Tensor};
use tercet_models::dataset::{
    EncoderBatch, Label, LabelledTexts, Last, Order, ReadLimits, TextPairs,
};
use tercet_models::training::{BertTask, BertTrainingOptions, ClassPooling, Training};
use tercet_models::{EncoderSpec, ModelFiles, Tokenizer};

use super::Args;
use super::feed::{Feed, Given, Once, no_tensor};
use super::prepare::{Kind, Prepared, Ready, hash, settings, tuning};
use crate::error::CliError;

/// What cosines are divided by.
const TEMPERATURE: f64 = 0.05;

/// Makes an encoder ready.
pub(super) fn prepare(
    args: &Args,
    device: &Device,
    files: &ModelFiles,
    what: &str,
) -> Result<Prepared, CliError> {
    let failed = || CliError::model(what.to_string());
    let config = files.encoder_spec().map_err(failed())?;
    let tokenizer = Rc::new(files.tokenizer().map_err(failed())?);
    let refused = || CliError::model(what.to_string());
    let seq = longest(args, files, &config)?;
    let data = Data::read(args, files)?;
    let settings = settings(args, seq, data.hash());
    let labels = data.labels();
    let (task, unit) = (data.task(files), data.unit());
    let (train, held) = data.split(args)?;
    let amounts = BTreeMap::from([
        (unit.0, train.len()),
        (unit.1, held.as_ref().map_or(0, Data::len)),
    ]);
    let mut notes = Vec::new();
    let batch = match &train {
        // No text may stand against itself.
        Data::Pairs(pairs) if pairs.len() < args.batch => {
            let own = pairs.len();
            notes.push(format!(
                "there are {own} pairs to train on: a batch has as many"
            ));
            own
        }
        Data::Classes(_) | Data::Pairs(_) => args.batch,
    };
    let weights = files.weights();
    let options = BertTrainingOptions {
        dtype: args.dtype.dtype(),
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
    let training = Training::bert(&config, &weights, &options).map_err(refused())?;
    let texts = |data| Texts::new(data, Rc::clone(&tokenizer), batch, seq, args);
    let held = match held {
        None => None,
        Some(held) => {
            // Its last batch may be shorter.
            let options = BertTrainingOptions {
                batch: Dim::sym("batch"),
                dropout: 0.0,
                tuning: tuning(args, 0.0),
                ..options
            };
            let plain = Training::bert(&config, &weights, &options).map_err(refused())?;
            let feed: Box<dyn Feed> = Box::new(texts(held));
            Some((feed, plain.graph))
        }
    };
    Prepared::new(
        args,
        device,
        Ready {
            training,
            bounds: CompileOptions::new()
                .bound("len", seq)
                .bound("batch", batch),
            feed: Box::new(texts(train)),
            held,
            amounts,
            notes,
            settings,
            kind: Kind::Encoder { labels },
        },
    )
}

/// Tokens of a text.
fn longest(args: &Args, files: &ModelFiles, config: &EncoderSpec) -> Result<usize, CliError> {
    let said = match files {
        ModelFiles::Hf(folder) => folder.max_seq_length(),
        ModelFiles::Gguf(_) => Ok(None),
    };
    let said = said.map_err(CliError::model("cannot load the model"))?;
    let positions = config.context;
    match args.seq {
        Some(seq) if seq > positions => Err(CliError::Usage(format!(
            "--seq {seq}: the model has {positions} positions"
        ))),
        Some(seq) => Ok(seq),
        None => Ok(said.unwrap_or(128).min(positions)),
    }
}

/// What an encoder learns from.
enum Data {
    Classes(LabelledTexts),
    Pairs(TextPairs),
}

impl Data {
    fn read(args: &Args, files: &ModelFiles) -> Result<Data, CliError> {
        let (path, limits) = (&args.data, ReadLimits::default());
        let no_data = || CliError::model(format!("cannot train on {}", path.display()));
        if is_of_pairs(path) {
            let pairs = TextPairs::read(path, limits).map_err(no_data())?;
            if pairs.len() < 2 {
                let path = path.display();
                return Err(CliError::Usage(format!(
                    "{path}: one pair alone has nothing to be told from; give two or more"
                )));
            }
            return Ok(Data::Pairs(pairs));
        }
        let known = known_labels(files);
        let texts = LabelledTexts::read(path, known.as_deref(), limits);
        Ok(Data::Classes(texts.map_err(no_data())?))
    }

    fn len(&self) -> usize {
        match self {
            Data::Classes(texts) => texts.len(),
            Data::Pairs(pairs) => pairs.len(),
        }
    }

    /// What the parts are called in the report.
    fn unit(&self) -> (&'static str, &'static str) {
        match self {
            Data::Classes(_) => ("train_texts", "held_out_texts"),
            Data::Pairs(_) => ("train_pairs", "held_out_pairs"),
        }
    }

    fn labels(&self) -> Option<Vec<String>> {
        match self {
            Data::Classes(texts) => Some(texts.names().iter().map(spelled).collect()),
            Data::Pairs(_) => None,
        }
    }

    fn task(&self, files: &ModelFiles) -> BertTask {
        let weights = files.weights();
        let pooler = |prefix: &str| weights.has(&format!("{prefix}pooler.dense.weight"));
        match self {
            Data::Classes(texts) => BertTask::Classes {
                classes: texts.names().len(),
                pooling: match pooler("") || pooler("bert.") {
                    true => ClassPooling::Pooler,
                    false => ClassPooling::First,
                },
            },
            Data::Pairs(_) => BertTask::Pairs {
                temperature: TEMPERATURE,
                negatives: 0,
            },
        }
    }

    /// By all texts, and by what they belong to.
    fn hash(&self) -> u64 {
        match self {
            Data::Classes(texts) => {
                let classes = texts.classes().iter().flat_map(|class| class.to_le_bytes());
                let all = (0..texts.len()).filter_map(|at| texts.text(at));
                hash(all.flat_map(str::bytes).chain(classes))
            }
            Data::Pairs(pairs) => {
                let both = pairs.pairs().iter().flat_map(|(a, b)| [a, b]);
                hash(both.flat_map(|text| text.bytes()))
            }
        }
    }

    fn split(self, args: &Args) -> Result<(Data, Option<Data>), CliError> {
        let no_data = || CliError::model(format!("cannot train on {}", args.data.display()));
        let (share, seed) = (args.held_out, args.seed);
        Ok(match self {
            Data::Classes(texts) => {
                let (train, held) = texts.split(share, seed).map_err(no_data())?;
                (Data::Classes(train), held.map(Data::Classes))
            }
            Data::Pairs(pairs) => {
                let (train, held) = pairs.split(share, seed).map_err(no_data())?;
                (Data::Pairs(train), held.map(Data::Pairs))
            }
        })
    }
}

/// As it stands in a configuration.
fn spelled(label: &Label) -> String {
    match label {
        Label::Int(label) => label.to_string(),
        Label::Name(label) => label.clone(),
    }
}

/// Whether the first object of a file has a field that pairs have. What cannot be read is for the reader of labels to say.
fn is_of_pairs(path: &Path) -> bool {
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

/// The classes of a model that has a classifier, in its order; integers where all are.
fn known_labels(files: &ModelFiles) -> Option<Vec<Label>> {
    let ModelFiles::Hf(folder) = files else {
        return None;
    };
    folder.weights().find("classifier.weight")?;
    let names = folder.config().get("id2label")?.as_object()?;
    let by_id = (0..names.len()).map(|i| names.get(&i.to_string())?.as_str());
    let names: Vec<&str> = by_id.collect::<Option<_>>()?;
    let integers: Result<Vec<i64>, _> = names.iter().map(|name| name.parse()).collect();
    Some(match integers {
        Ok(integers) => integers.into_iter().map(Label::Int).collect(),
        Err(_) => names
            .iter()
            .map(|name| Label::Name(name.to_string()))
            .collect(),
    })
}

/// Texts in batches that are padded to their longest.
struct Texts {
    data: Data,
    tokenizer: Rc<Tokenizer>,
    order: Order,
    batch: usize,
    microbatches: usize,
    seq: usize,
}

impl Texts {
    fn new(data: Data, tokenizer: Rc<Tokenizer>, batch: usize, seq: usize, args: &Args) -> Texts {
        let last = match data {
            Data::Classes(_) => Last::Wraps,
            Data::Pairs(_) => Last::Short,
        };
        Texts {
            order: Order::new(data.len(), batch, args.seed, last),
            data,
            tokenizer,
            batch,
            microbatches: args.microbatches,
            seq,
        }
    }

    /// The items of a batch. Of pairs, what does not fill one at the end of an epoch is left to the next epoch's order.
    fn items(&mut self, batch: u64) -> Vec<usize> {
        let step = match self.data {
            Data::Classes(_) => batch,
            Data::Pairs(_) => {
                let full = ((self.data.len() / self.batch) as u64).max(1);
                self.order.step_of(batch / full, batch % full)
            }
        };
        self.order.batch(step)
    }

    /// The inputs of these microbatches, whose sizes are the same, behind `leading` axes.
    fn given(&self, parts: &[Vec<usize>], leading: &[usize]) -> Result<Given, CliError> {
        let no_batch = || CliError::model("cannot make a batch");
        let (batch, labels) = match &self.data {
            Data::Classes(texts) => {
                let (batch, labels) = texts
                    .batch(&self.tokenizer, &parts.concat(), self.seq)
                    .map_err(no_batch())?;
                (batch, Some(labels))
            }
            Data::Pairs(pairs) => {
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
        Ok(Given { inputs, filled })
    }
}

impl Feed for Texts {
    fn step(&mut self, step: u64) -> Result<Given, CliError> {
        let first = step * self.microbatches as u64;
        let batches = (0..self.microbatches as u64).map(|i| first + i);
        let parts: Vec<Vec<usize>> = batches.map(|batch| self.items(batch)).collect();
        match self.microbatches {
            1 => self.given(&parts, &[]),
            n => self.given(&parts, &[n]),
        }
    }

    fn once(&self) -> Result<Once<'_>, CliError> {
        let all: Vec<usize> = (0..self.data.len()).collect();
        let parts = all.chunks(self.batch).map(<[usize]>::to_vec);
        let parts: Vec<Vec<usize>> = parts.collect();
        Ok(Box::new(
            parts.into_iter().map(|part| self.given(&[part], &[])),
        ))
    }
}
