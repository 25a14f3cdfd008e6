//! Tests of losses, gradients and adapters of BERT encoders, compared to the inference encoder.

use std::path::Path;

use serde_json::json;
use tercet::{CompileOptions, DType, Device, Executable, Tensor};
use tercet_models::adapter::merge;
use tercet_models::save::save_model;
use tercet_models::training::{
    BertTask, BertTrainingOptions, ClassPooling, FineTuneMode, IGNORED, LoraOptions, TrainingGraph,
};
use tercet_models::{
    Adapter, EncoderOutput, ModelError, ModelFiles, PoolingMode, SafeTensors, SaveOptions,
    ScaledAdapter,
};

use crate::adapters::drawn;
use crate::common::{safetensors, temp_dir};
use crate::gradients::{agree_with_differences, stir};
use crate::rows::near;

const HIDDEN: usize = 16;
const FFN: usize = 24;
const LAYERS: usize = 2;
const ROWS: usize = 4;
const LEN: usize = 6;

/// The folder of a small random encoder, with this prefix in its tensor names.
fn encoder(dir: &Path, prefix: &str) -> ModelFiles {
    std::fs::create_dir_all(dir).unwrap();
    let config = json!({
        "model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "intermediate_size": FFN, "vocab_size": 50,
        "max_position_embeddings": 8, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "hidden_act": "gelu", "pad_token_id": 0, "torch_dtype": "float32",
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: String, shape: &[usize]| tensors.push((name, shape.to_vec()));
    for (name, rows) in [("word", 50), ("position", 8), ("token_type", 2)] {
        add(
            format!("embeddings.{name}_embeddings.weight"),
            &[rows, HIDDEN],
        );
    }
    let mut norms = vec!["embeddings.LayerNorm".to_string()];
    let mut dense = vec![("pooler.dense".to_string(), HIDDEN, HIDDEN)];
    for layer in 0..LAYERS {
        let at = format!("encoder.layer.{layer}");
        for name in ["self.query", "self.key", "self.value", "output.dense"] {
            dense.push((format!("{at}.attention.{name}"), HIDDEN, HIDDEN));
        }
        dense.push((format!("{at}.intermediate.dense"), FFN, HIDDEN));
        dense.push((format!("{at}.output.dense"), HIDDEN, FFN));
        norms.extend(["attention.output", "output"].map(|n| format!("{at}.{n}.LayerNorm")));
    }
    for name in norms {
        add(format!("{name}.weight"), &[HIDDEN]);
        add(format!("{name}.bias"), &[HIDDEN]);
    }
    for (name, rows, cols) in dense {
        add(format!("{name}.weight"), &[rows, cols]);
        add(format!("{name}.bias"), &[rows]);
    }
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, shape) in tensors {
        let start = data.len();
        data.extend(drawn(&name, &shape, 0.5).bytes());
        let end = data.len();
        header.push(format!(
            r#""{prefix}{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        ));
    }
    let file = safetensors(&format!("{{{}}}", header.join(",")), &data);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    ModelFiles::open(dir).unwrap()
}

/// `ids`, `type_ids` and `mask` of four texts of different lengths.
fn texts() -> [(&'static str, Tensor); 3] {
    let lens = [6, 3, 5, 2];
    let at = |i: usize| (i / LEN, i % LEN);
    let kept = |i: usize| at(i).1 < lens[at(i).0];
    let of = |f: &dyn Fn(usize) -> i32| {
        let values: Vec<i32> = (0..ROWS * LEN).map(f).collect();
        Tensor::from_slice(&[ROWS, LEN], &values).unwrap()
    };
    let mask: Vec<bool> = (0..ROWS * LEN).map(kept).collect();
    [
        (
            "ids",
            of(&|i| if kept(i) { (7 * i as i32 + 3) % 50 } else { 0 }),
        ),
        ("type_ids", of(&|i| i32::from(at(i).1 > 2 && kept(i)))),
        ("mask", Tensor::from_bools(&[ROWS, LEN], &mask).unwrap()),
    ]
}

/// The output of the inference encoder for the texts, one row per text.
fn encoded(files: &ModelFiles, output: &EncoderOutput) -> Vec<Vec<f64>> {
    let bert = files.encoder(output, DType::F32).unwrap();
    let mut exe = bert.compile(&Device::cpu(), ROWS, LEN).unwrap();
    let texts = texts();
    let inputs: Vec<(&str, &Tensor)> = texts.iter().map(|(n, t)| (*n, t)).collect();
    let all = exe.run(&inputs).unwrap().remove(0).to_f64s();
    all.chunks(all.len() / ROWS).map(<[f64]>::to_vec).collect()
}

fn lora() -> FineTuneMode {
    FineTuneMode::Lora(LoraOptions::new(2))
}

fn classes(pooling: ClassPooling) -> BertTask {
    BertTask::Classes {
        classes: 3,
        pooling,
    }
}

fn pairs(negatives: usize) -> BertTask {
    BertTask::Pairs {
        temperature: 0.05,
        negatives,
    }
}

fn training(files: &ModelFiles, tuning: FineTuneMode, task: BertTask) -> TrainingGraph {
    let batch = match task {
        BertTask::Classes { .. } => ROWS,
        BertTask::Pairs { negatives, .. } => ROWS / (2 + negatives),
    };
    let options = BertTrainingOptions::new(batch, LEN, tuning, task);
    TrainingGraph::bert(&files.encoder_spec().unwrap(), &files.weights(), &options).unwrap()
}

fn losses(exe: &mut dyn Executable, labels: Option<&[i32]>) -> Result<[f64; 3], String> {
    let mut all = texts().to_vec();
    if let Some(labels) = labels {
        let tensor = Tensor::from_slice(&[labels.len()], labels).unwrap();
        all.push(("labels", tensor));
    }
    let inputs: Vec<(&str, &Tensor)> = all.iter().map(|(n, t)| (*n, t)).collect();
    let outputs = exe.run_outputs(&inputs, &["loss", "loss_sum", "tokens"]);
    let outputs = outputs.map_err(|e| format!("{:?}", std::error::Error::source(&e)))?;
    Ok([0, 1, 2].map(|i| outputs[i].to_f64s()[0]))
}

fn run(own: &TrainingGraph, labels: Option<&[i32]>) -> [f64; 3] {
    let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
    losses(&mut *exe, labels).unwrap()
}

fn minus_log_p(scores: &[f64], own: usize) -> f64 {
    let most = scores.iter().fold(f64::MIN, |m, x| m.max(*x));
    let sum: f64 = scores.iter().map(|x| (x - most).exp()).sum();
    sum.ln() - (scores[own] - most)
}

fn tensor(own: &TrainingGraph, name: &str) -> Vec<f64> {
    let found = own.trainables.iter().find(|(n, _)| n == name);
    found.unwrap().1.to_f64s()
}

#[test]
fn class_losses_follow_from_hidden_states() {
    let files = encoder(&temp_dir("bert-classes"), "");
    let hidden = encoded(&files, &EncoderOutput::Hidden);
    let lens = [6, 3, 5, 2];
    let labels = [2, 0, IGNORED, 1];
    for pooling in [
        ClassPooling::First,
        ClassPooling::Mean,
        ClassPooling::Pooler,
    ] {
        let own = training(&files, FineTuneMode::Full, classes(pooling));
        let (w, b) = (
            tensor(&own, "classifier.weight"),
            tensor(&own, "classifier.bias"),
        );
        let dense = |x: &[f64], w: &[f64], b: &[f64]| -> Vec<f64> {
            let rows = w.chunks(x.len()).zip(b);
            rows.map(|(w, b)| b + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>())
                .collect()
        };
        let pooled = |row: usize| -> Vec<f64> {
            let states: Vec<&[f64]> = hidden[row].chunks(HIDDEN).collect();
            match pooling {
                ClassPooling::First => states[0].to_vec(),
                ClassPooling::Mean => (0..HIDDEN)
                    .map(|i| {
                        states[..lens[row]].iter().map(|s| s[i]).sum::<f64>() / lens[row] as f64
                    })
                    .collect(),
                ClassPooling::Pooler => {
                    let (w, b) = (
                        tensor(&own, "pooler.dense.weight"),
                        tensor(&own, "pooler.dense.bias"),
                    );
                    dense(states[0], &w, &b)
                        .into_iter()
                        .map(f64::tanh)
                        .collect()
                }
            }
        };
        let want: f64 = [0, 1, 3]
            .into_iter()
            .map(|row| minus_log_p(&dense(&pooled(row), &w, &b), labels[row] as usize))
            .sum();
        let [loss, sum, count] = run(&own, Some(&labels));
        assert_eq!(count, 3.0);
        assert!(
            near(sum, want, 1e-5) && near(loss, want / 3.0, 1e-5),
            "{pooling:?}: {sum}, want {want}"
        );
        let low = training(&files, lora(), classes(pooling));
        assert!(near(run(&low, Some(&labels))[1], want, 1e-5), "{pooling:?}");
    }
    let own = training(&files, lora(), classes(ClassPooling::First));
    let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
    for label in [3, -1] {
        let error = losses(&mut *exe, Some(&[0, label, 1, 2])).unwrap_err();
        assert!(error.contains("Index"), "{error}");
    }
}

#[test]
fn folders_say_how_texts_are_pooled() {
    let dir = temp_dir("bert-pooling");
    let files = encoder(&dir, "");
    let modes = || files.sentence().unwrap().modules.modes;
    assert_eq!(modes(), [PoolingMode::Mean]);
    std::fs::create_dir_all(dir.join("1_Pooling")).unwrap();
    let say = |json: serde_json::Value| {
        std::fs::write(dir.join("1_Pooling/config.json"), json.to_string()).unwrap();
    };
    say(
        json!({"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": true,
        "pooling_mode_mean_tokens": false}),
    );
    assert_eq!(modes(), [PoolingMode::Cls]);
    let hidden = encoded(&files, &EncoderOutput::Hidden);
    let pooled = encoded(&files, &EncoderOutput::cls_normalized());
    for (all, own) in hidden.iter().zip(&pooled) {
        let first = &all[..HIDDEN];
        let norm = first.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert_eq!(own.len(), HIDDEN);
        assert!(own.iter().zip(first).all(|(x, y)| near(*x, y / norm, 1e-5)));
    }
    let other = files.encoder(&EncoderOutput::mean_normalized(), DType::F32);
    let other = other.unwrap_err().to_string();
    assert!(other.contains("by cls, not by mean"), "{other}");
    for (json, want) in [
        (
            json!({"pooling_mode_max_tokens": true}),
            vec![PoolingMode::Max],
        ),
        (
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}),
            vec![PoolingMode::Cls, PoolingMode::Mean],
        ),
        (
            json!({"pooling_mode": ["lasttoken", "weightedmean"]}),
            vec![PoolingMode::LastToken, PoolingMode::WeightedMean],
        ),
        (json!({}), vec![PoolingMode::Mean]),
    ] {
        say(json);
        assert_eq!(modes(), want);
    }
    for (json, named) in [
        (json!({"pooling_mode": "median"}), "median"),
        (json!({"pooling_mode": []}), "pooling_mode"),
        (
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_median_tokens": true}),
            "pooling_mode_median_tokens",
        ),
    ] {
        say(json);
        let refused = files.sentence().unwrap_err();
        let refused = format!("{:?}", refused);
        assert!(refused.contains(named), "{refused}");
    }
}

#[test]
fn pair_losses_follow_from_embeddings() {
    let files = encoder(&temp_dir("bert-pairs"), "bert.");
    let vectors = encoded(&files, &EncoderOutput::mean_normalized());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    for (negatives, batch) in [(0, 2), (2, 1)] {
        let want: f64 = (0..batch)
            .map(|anchor| {
                let scores: Vec<f64> = vectors[batch..]
                    .iter()
                    .map(|other| dot(&vectors[anchor], other) / 0.05)
                    .collect();
                minus_log_p(&scores, anchor)
            })
            .sum();
        for tuning in [FineTuneMode::Full, lora()] {
            let own = training(&files, tuning, pairs(negatives));
            let [loss, sum, count] = run(&own, None);
            assert_eq!(count, batch as f64);
            assert!(near(sum, want, 1e-4), "{negatives}: {sum}, want {want}");
            assert!(near(loss, want / batch as f64, 1e-4));
        }
    }
    let mut options = BertTrainingOptions::new(
        tercet::Dim::sym("b"),
        tercet::Dim::sym("s"),
        lora(),
        pairs(0),
    );
    (options.checkpoints, options.dtype) = (true, DType::F16);
    let own =
        TrainingGraph::bert(&files.encoder_spec().unwrap(), &files.weights(), &options).unwrap();
    let bounds = CompileOptions::new().bound("b", 2).bound("s", 8);
    let mut exe = own.compile(&Device::cpu(), &bounds).unwrap();
    let exact = run(&training(&files, lora(), pairs(0)), None)[0];
    let loss = losses(&mut *exe, None).unwrap()[0];
    assert!((loss - exact).abs() < 0.05, "{loss}, in F32 {exact}");
}

#[test]
fn gradients_agree_with_differences_of_the_loss() {
    let files = encoder(&temp_dir("bert-gradients"), "");
    let labels = Tensor::from_slice(&[ROWS], &[2, 0, IGNORED, 1]).unwrap();
    for (what, tuning, task) in [
        ("classes", FineTuneMode::Full, classes(ClassPooling::Pooler)),
        ("classes, lora", lora(), classes(ClassPooling::Mean)),
        (
            "pairs",
            FineTuneMode::Full,
            BertTask::Pairs {
                temperature: 0.05,
                negatives: 0,
            },
        ),
        (
            "pairs, lora",
            lora(),
            BertTask::Pairs {
                temperature: 0.05,
                negatives: 2,
            },
        ),
    ] {
        let mut own = training(&files, tuning, task.clone());
        stir(&mut own);
        let mut all = texts().to_vec();
        if matches!(task, BertTask::Classes { .. }) {
            all.push(("labels", labels.clone()));
        }
        let inputs: Vec<(&str, &Tensor)> = all.iter().map(|(n, t)| (*n, t)).collect();
        // A constant added to all scores of a query does not change the softmax.
        agree_with_differences(what, &mut own, &inputs, |name| name.ends_with("key.bias"));
    }
}

#[test]
fn a_trained_classifier_goes_with_its_adapter_and_into_the_model() {
    let dir = temp_dir("bert-adapters");
    let labels = [2, 0, 1, 1];
    for (i, prefix) in ["", "bert."].into_iter().enumerate() {
        let files = encoder(&dir.join(format!("model{i}")), prefix);
        let mut own = training(&files, lora(), classes(ClassPooling::Mean));
        stir(&mut own);
        let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
        let [_, want, _] = losses(&mut *exe, Some(&labels)).unwrap();
        let adapter = own
            .adapter(|name| exe.read_state(name).map_err(ModelError::from))
            .unwrap();
        let folder = dir.join(format!("adapter{i}"));
        adapter.write_peft(&folder).unwrap();
        let tensors = SafeTensors::open(folder.join("adapter_model.safetensors")).unwrap();
        for name in [
            "base_model.model.bert.encoder.layer.1.attention.self.query.lora_B.weight",
            "base_model.model.classifier.bias",
        ] {
            assert!(tensors.find(name).is_some(), "{name}");
        }
        let again = Adapter::from_peft(&folder).unwrap();
        assert_eq!(again.modules().len(), 6 * LAYERS);
        assert_eq!(again.saved().len(), 2);
        let to = dir.join(format!("merged{i}"));
        let saved = merge(
            &files,
            &[ScaledAdapter::new(again)],
            &to,
            &SaveOptions::default(),
        )
        .unwrap();
        assert_eq!(saved.changed.len(), 6 * LAYERS + 2);
        let merged = ModelFiles::open(&to).unwrap();
        let low = training(&merged, lora(), classes(ClassPooling::Mean));
        let [_, sum, _] = run(&low, Some(&labels));
        assert!(near(sum, want, 1e-4), "{sum}, want {want}");

        let mut full = training(&files, FineTuneMode::Full, classes(ClassPooling::Pooler));
        stir(&mut full);
        let mut exe = full
            .compile(&Device::cpu(), &CompileOptions::new())
            .unwrap();
        let [_, want, _] = losses(&mut *exe, Some(&labels)).unwrap();
        let weights = full
            .weights(|name| exe.read_state(name).map_err(ModelError::from))
            .unwrap();
        let to = dir.join(format!("full{i}"));
        save_model(&files, &weights, &to, &SaveOptions::default()).unwrap();
        let again = ModelFiles::open(&to).unwrap();
        assert!(
            again
                .weights()
                .has("bert.encoder.layer.0.output.dense.weight")
        );
        let low = training(&again, lora(), classes(ClassPooling::Pooler));
        let [_, sum, _] = run(&low, Some(&labels));
        assert!(near(sum, want, 1e-5), "{sum}, want {want}");
    }
}

#[test]
fn what_is_not_possible_is_refused() {
    let files = encoder(&temp_dir("bert-refused"), "");
    let refused = |task: BertTask, change: fn(&mut BertTrainingOptions)| {
        let mut options = BertTrainingOptions::new(2, 4, lora(), task);
        change(&mut options);
        TrainingGraph::bert(&files.encoder_spec().unwrap(), &files.weights(), &options)
            .expect_err("refused")
            .to_string()
    };
    let first = || classes(ClassPooling::First);
    let none = BertTask::Classes {
        classes: 0,
        pooling: ClassPooling::First,
    };
    assert!(refused(none, |_| {}).contains("no classes"));
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let task = BertTask::Pairs {
            temperature,
            negatives: 0,
        };
        assert!(refused(task, |_| {}).contains("temperature"));
    }
    assert!(refused(pairs(usize::MAX), |o| o.batch = usize::MAX.into()).contains("too large"));
    assert!(refused(first(), |o| o.len = 9.into()).contains("context"));
    assert!(refused(first(), |o| o.label_smoothing = -0.1).contains("smoothing"));
    let of_llama = |o: &mut BertTrainingOptions| {
        let targets = vec!["q_proj".to_string()];
        o.tuning = FineTuneMode::Lora(LoraOptions {
            targets,
            ..LoraOptions::new(2)
        });
    };
    let text = refused(first(), of_llama);
    assert!(text.contains("q_proj") && text.contains("query"), "{text}");
}
