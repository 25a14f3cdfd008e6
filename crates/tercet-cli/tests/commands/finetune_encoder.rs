//! `tercet finetune` on a small encoder: classes and pairs, output files, rejected arguments.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::common::{Scratch, encoder, good, run};

const GREENS: [&str; 4] = ["", "green ", "green green ", "green green green "];

/// Texts that start with red or blue, followed by up to three greens, each possibly greenish.
fn labelled() -> String {
    let mut lines = String::new();
    for i in 0..60 {
        let (word, label) = [("red", "warm"), ("blue", "cold")][i % 2];
        let ish = ["", "ish"][i / 2 % 2];
        // The highest set bit determines the number of greens; the lower bits determine which are
        // greenish.
        let pattern = i / 4 + 1;
        let bits = (0..pattern.ilog2()).map(|bit| pattern >> bit & 1);
        let after: String = bits.map(|bit| [" green", " greenish"][bit]).collect();
        let text = format!("{word}{ish}{after}");
        writeln!(lines, "{}", json!({"text": text, "label": label})).unwrap();
    }
    lines
}

/// Pairs of a colour and a shade of it.
fn pairs() -> String {
    let mut lines = String::new();
    for i in 0..12 {
        let (word, after) = (["red", "blue", "green"][i % 3], GREENS[i / 3]);
        let (anchor, positive) = (format!("{word} {after}"), format!("{word}ish {after}"));
        let pair = json!({"anchor": anchor, "positive": positive});
        writeln!(lines, "{pair}").unwrap();
    }
    lines
}

fn finetune<'a>(model: &'a str, data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let own = [
        "finetune", "-m", model, "--data", data, "--out", out, "--device", "cpu", "--batch", "8",
    ];
    [&own[..], more].concat()
}

fn trained(args: &[&str]) -> Value {
    serde_json::from_str(&good(&[args, &["--json"]].concat()).out).unwrap()
}

#[test]
fn a_classifier_is_trained_and_written() {
    let scratch = Scratch::new("finetune-classes");
    let (model, data) = (encoder(&scratch), scratch.file("data.jsonl", labelled()));
    let out = scratch.path("tuned");
    let more = [
        "--full",
        "--steps",
        "250",
        "--lr",
        "1e-2",
        "--held-out",
        "0.2",
        "--dropout",
        "0.05",
    ];
    let report = trained(&finetune(&model, &data, &out, &more));
    assert!(report["accuracy"].as_f64().unwrap() > 0.9, "{report}");
    assert_eq!(report["labels"], json!(["cold", "warm"]));
    assert_eq!(report["unmoved"], json!([]));
    assert_eq!(report["perplexity"], Value::Null);
    let texts = ["train_texts", "held_out_texts"].map(|part| report[part].as_u64().unwrap());
    assert_eq!(texts.iter().sum::<u64>(), 60);
    let config = std::fs::read_to_string(format!("{out}/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["id2label"], json!({"0": "cold", "1": "warm"}));
    assert_eq!(config["label2id"], json!({"cold": 0, "warm": 1}));
    let architectures = json!(["BertForSequenceClassification"]);
    assert_eq!(config["architectures"], architectures);

    // The output folder opens again, has its classes, and can be trained further.
    good(&["embed", "-m", &out, "red", "blue", "--device", "cpu"]);
    let again = scratch.path("again");
    let few = ["redish", "redish green"].map(|text| json!({"text": text, "label": "warm"}));
    let few = few.map(|line| format!("{line}\n")).concat();
    let few = scratch.file("few.jsonl", few);
    let more = ["--full", "--steps", "1", "--held-out", "0.5"];
    let report = trained(&finetune(&out, &few, &again, &more));
    assert_eq!(report["accuracy_before"], json!(1.0), "{report}");
    let other = json!({"text": "green", "label": "mild"});
    let other = scratch.file("other.jsonl", format!("{other}\n"));
    let refused = run(&finetune(&out, &other, &again, &more));
    let message = "the label on line 1 is `mild`, which is none of: cold, warm";
    assert!(refused.err.contains(message), "{}", refused.err);
}

#[test]
fn an_adapter_of_a_classifier_is_merged() {
    let scratch = Scratch::new("finetune-classes-lora");
    let (model, data) = (encoder(&scratch), scratch.file("data.jsonl", labelled()));
    let (out, merged) = (scratch.path("adapter"), scratch.path("merged"));
    let size = ["--lora-rank", "2", "--steps", "150", "--lr", "2e-2"];
    let more = [
        "--lora-dropout",
        "0.1",
        "--microbatches",
        "2",
        "--held-out",
        "0.2",
    ];
    let more = [&size[..], &more].concat();
    let report = trained(&finetune(&model, &data, &out, &more));
    let losses = report["losses"]["held_out"].as_array().unwrap();
    let (first, last) = (&losses[0][1], &losses[losses.len() - 1][1]);
    assert!(last.as_f64().unwrap() < first.as_f64().unwrap(), "{report}");
    let config = std::fs::read_to_string(format!("{out}/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["modules_to_save"], json!(["classifier"]));
    assert_eq!(config["task_type"], json!("SEQ_CLS"));
    good(&["merge", "-m", &model, "--lora", &out, "-o", &merged]);
    good(&["embed", "-m", &merged, "red", "blue", "--device", "cpu"]);
}

#[test]
fn pairs_come_nearer() {
    let scratch = Scratch::new("finetune-pairs");
    let (model, data) = (encoder(&scratch), scratch.file("pairs.jsonl", pairs()));
    let (whole, parts) = (scratch.path("whole"), scratch.path("parts"));
    let with = |steps: &'static str| {
        [
            "--full",
            "--lr",
            "1e-3",
            "--warmup",
            "1000",
            "--held-out",
            "0.25",
            "--steps",
            steps,
        ]
    };
    let report = trained(&finetune(&model, &data, &whole, &with("30")));
    let losses = report["losses"]["train"].as_array().unwrap();
    assert_eq!(losses.len(), 30);
    assert_eq!(report["labels"], Value::Null);
    assert_eq!(
        (&report["train_pairs"], &report["held_out_pairs"]),
        (&json!(9), &json!(3))
    );
    let mean = |part: &[Value]| part.iter().map(|l| l[1].as_f64().unwrap()).sum::<f64>();
    assert!(mean(&losses[20..]) < mean(&losses[..10]), "{report}");
    good(&finetune(&model, &data, &parts, &with("11")));
    let resumed = [&with("30")[..], &["--resume"]].concat();
    good(&finetune(&model, &data, &parts, &resumed));
    let bits = |dir: &str| std::fs::read(format!("{dir}/model.safetensors")).unwrap();
    assert!(bits(&whole) == bits(&parts), "a run in two parts");
}

#[test]
fn what_an_encoder_cannot_learn_from_is_said() {
    let scratch = Scratch::new("finetune-encoder-refused");
    let model = encoder(&scratch);
    let good_data = scratch.file("data.jsonl", labelled());
    let out = scratch.path("out");
    let file = |name: &str, lines: &[Value]| {
        let lines = lines.iter().map(|line| format!("{line}\n"));
        scratch.file(name, lines.collect::<String>())
    };
    let red = json!({"text": "red", "label": "warm"});
    let unlabelled = file("unlabelled.jsonl", &[red.clone(), json!({"text": "blue"})]);
    let number = json!({"text": "blue", "label": 0});
    let mixed = file("mixed.jsonl", &[red.clone(), number]);
    let one = file("one.jsonl", &[red.clone(), red.clone()]);
    let pair = json!({"anchor": "red", "positive": "redish"});
    let half = file("half.jsonl", &[pair.clone(), json!({"anchor": "red"})]);
    let alone = file("alone.jsonl", &[pair]);
    let plain = scratch.file("plain.txt", "red green blue\n");
    let chat = file("chat.jsonl", &[json!({"messages": []})]);
    let gguf = scratch.path("out.gguf");
    let cases: [(&str, &str, &[&str], &[&str]); 9] = [
        (
            &unlabelled,
            &out,
            &[],
            &["line 2", "field `label` is missing"],
        ),
        (&mixed, &out, &[], &["line 2", "an integer"]),
        (&one, &out, &[], &["every text has the label `warm`"]),
        (&half, &out, &[], &["line 2", "field `positive` is missing"]),
        (&alone, &out, &[], &["one pair has no negatives"]),
        (&plain, &out, &[], &["line 1", "not JSON"]),
        (&chat, &out, &[], &["line 1", "`text` and `label`"]),
        (&good_data, &gguf, &[], &["written as folders"]),
        (&good_data, &out, &["--seq", "9"], &["model's 8 positions"]),
    ];
    for (data, out, more, messages) in cases {
        let refused = run(&finetune(&model, data, out, more));
        assert!(matches!(refused.code, Some(1 | 2)), "{data}: {refused:?}");
        for message in messages {
            assert!(refused.err.contains(message), "{data}: {}", refused.err);
        }
    }
}
