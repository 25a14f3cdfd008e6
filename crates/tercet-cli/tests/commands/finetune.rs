//! `tercet finetune` on the embedded model: results, rejected arguments, and bitwise identical
//! results of an interrupted and resumed run.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::common::{Scratch, good, run};

/// Sentences of a small artificial language.
fn texts() -> String {
    let mut text = String::new();
    for i in 0..60 {
        let (a, b) = (i * 7 % 10, i * 3 % 10);
        writeln!(
            text,
            "The red tercet {a} rhymes with the blue tercet {b}.\n"
        )
        .unwrap();
    }
    text
}

fn finetune<'a>(data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let own = ["finetune", "--data", data, "--out", out, "--device", "cpu"];
    let size = ["--batch", "2", "--seq", "48"];
    [&own[..], &size, more].concat()
}

fn trained(args: &[&str]) -> Value {
    serde_json::from_str(&good(&[args, &["--json"]].concat()).out).unwrap()
}

#[test]
fn the_held_out_part_gets_likelier() {
    let scratch = Scratch::new("finetune-perplexity");
    let (data, out) = (scratch.file("texts.txt", texts()), scratch.path("adapter"));
    let plot = scratch.path("loss.svg");
    let more = ["--steps", "30", "--lr", "3e-3", "--plot", &plot];
    let report = trained(&finetune(&data, &out, &more));
    let (before, after) = (&report["perplexity_before"], &report["perplexity"]);
    let (before, after) = (before.as_f64().unwrap(), after.as_f64().unwrap());
    assert!(after < 0.2 * before, "{before} to {after}");
    assert_eq!(report["unmoved"], json!([]));
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("held out"), "{svg}");
    let config = std::fs::read_to_string(format!("{out}/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(
        (&config["peft_type"], &config["r"]),
        (&json!("LORA"), &json!(16))
    );
}

#[test]
fn evaluations_compute_a_part_of_the_held_out_data() {
    let scratch = Scratch::new("finetune-share");
    let (data, out) = (scratch.file("texts.txt", texts()), scratch.path("adapter"));
    let batches = |share: &[&str]| {
        let more = ["--steps", "4", "--eval-every", "1", "--held-out", "0.5"];
        let report = trained(&finetune(&data, &out, &[&more, share].concat()));
        // Before the first step, and after each.
        assert_eq!(report["losses"]["held_out"].as_array().unwrap().len(), 5);
        report["evaluated_batches"].as_u64().unwrap()
    };
    let all = batches(&["--eval-share", "1"]);
    assert!(all > 2, "{all}");
    // Five evaluations of two batches would take more time than two of the four steps.
    assert_eq!(batches(&[]), 1);
    assert_eq!(batches(&["--eval-share", "0.6"]), 2);
}

#[test]
fn going_on_gives_the_same_bits() {
    let scratch = Scratch::new("finetune-resume");
    let data = scratch.file("texts.txt", texts());
    let (whole, parts) = (scratch.path("whole"), scratch.path("parts"));
    let bits = |dir: &str| std::fs::read(format!("{dir}/adapter_model.safetensors")).unwrap();
    let all = ["--steps", "6", "--save-every", "3", "--microbatches", "2"];
    good(&finetune(&data, &whole, &all));
    std::fs::create_dir_all(&parts).unwrap();
    let again = scratch.path("again");
    good(&finetune(&data, &again, &all));
    assert!(bits(&whole) == bits(&again), "two runs");

    // During warm-up the learning rate does not depend on the number of steps.
    let first = ["--steps", "3", "--lr", "1e-3", "--warmup", "1000"];
    let second = [
        "--steps", "6", "--lr", "1e-3", "--warmup", "1000", "--resume",
    ];
    good(&finetune(&data, &parts, &first));
    let report = trained(&finetune(&data, &parts, &second));
    assert_eq!(
        (&report["first_step"], &report["steps"]),
        (&json!(3), &json!(6))
    );
    let straight = ["--steps", "6", "--lr", "1e-3", "--warmup", "1000"];
    good(&finetune(&data, &whole, &straight));
    assert!(bits(&whole) == bits(&parts), "a run in two parts");
}

#[test]
fn answers_of_conversations_are_learnt() {
    let scratch = Scratch::new("finetune-chat");
    let line = |i: usize| {
        let user = format!("What rhymes with line {i}?");
        let messages = [
            ("user", user.as_str()),
            ("assistant", "The third line does."),
        ];
        let messages = messages.map(|(role, content)| json!({"role": role, "content": content}));
        format!("{}\n", json!({"messages": messages}))
    };
    let lines: String = (0..20).map(line).collect();
    let (data, out) = (
        scratch.file("chat.jsonl", lines),
        scratch.path("adapter.gguf"),
    );
    let report = trained(&finetune(
        &data,
        &out,
        &["--steps", "4", "--lora-rank", "4"],
    ));
    assert!(report["perplexity"].as_f64() < report["perplexity_before"].as_f64());
    assert!(std::fs::read(&out).unwrap().starts_with(b"GGUF"));
    good(&[
        "generate",
        "-n",
        "2",
        "--lora",
        &format!("{out}=0.5"),
        "--device",
        "cpu",
    ]);
}

#[test]
fn all_weights_are_trained_and_written() {
    let scratch = Scratch::new("finetune-full");
    let (data, out) = (
        scratch.file("texts.txt", texts()),
        scratch.path("model.gguf"),
    );
    let report = trained(&finetune(
        &data,
        &out,
        &["--full", "--steps", "3", "--lr", "1e-3"],
    ));
    assert!(report["perplexity"].as_f64() < report["perplexity_before"].as_f64());
    assert_eq!(report["unmoved"], json!([]));
    good(&["generate", "-n", "2", "-m", &out, "--device", "cpu"]);
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    let scratch = Scratch::new("finetune-recompute");
    let data = scratch.file("texts.txt", texts());
    let run = |name: &str, more: &[&str]| {
        let out = scratch.path(name);
        let all = ["--steps", "5", "--lr", "1e-3", "--dropout", "0.1"];
        let report = trained(&finetune(&data, &out, &[&all[..], more].concat()));
        let bits = std::fs::read(format!("{out}/adapter_model.safetensors")).unwrap();
        (report["losses"].clone(), bits)
    };
    // Layer checkpoints change the nodes of the graph, and dropout draws differently for different
    // nodes.
    for (name, base) in [("kept", &[][..]), ("layers", &["--checkpoint-layers"])] {
        let (losses, bits) = run(name, base);
        let more = [base, &["--remat-cheap"]].concat();
        let (again, bits_again) = run(&format!("{name}-again"), &more);
        assert_eq!(again, losses, "{name}");
        assert!(bits_again == bits, "{name}");
    }
}

/// The requested sizes exceed any address space, so nothing is allocated. Smaller sizes:
/// `commands/finetune/memory.rs`.
#[test]
fn batches_that_no_machine_holds_are_refused() {
    let scratch = Scratch::new("finetune-memory");
    let (data, out) = (scratch.file("texts.txt", texts()), scratch.path("out.gguf"));
    let cases: [(&str, &[&str]); 2] = [
        ("3000000000", &["3000000000", "at most 2^30 tokens in all"]),
        (
            "4000000000000000",
            &[
                "exceeds the available memory",
                "lower --batch from 4000000000000000",
                "lower --seq from 256",
                "without --full",
            ],
        ),
    ];
    for (batch, parts) in cases {
        let base = ["finetune", "--data", &data, "--out", &out, "--device"];
        let more = ["cpu", "--full", "--seq", "256", "--batch", batch];
        let refused = run(&[&base[..], &more[..]].concat());
        assert_eq!(refused.code, Some(1), "{}", refused.err);
        for part in parts {
            assert!(refused.err.contains(part), "{part}: {}", refused.err);
        }
    }
}

#[test]
fn what_cannot_be_trained_is_said() {
    let scratch = Scratch::new("finetune-refused");
    let good_data = scratch.file("texts.txt", texts());
    let bad_line = scratch.file("bad.jsonl", "{\"text\": \"a b c\"}\n{\"text\": 3\n");
    let empty = scratch.file("empty.txt", "");
    let missing = scratch.path("missing.txt");
    let out = scratch.path("out");
    let cases: [(&str, &[&str], &str); 6] = [
        (&bad_line, &[], "line 2"),
        (&empty, &[], "the file has no text"),
        (&missing, &[], "no such file"),
        (
            &good_data,
            &["--seq", "100000"],
            "do not fit the context of 512",
        ),
        (&good_data, &["--full"], "--out must end in .gguf"),
        (&good_data, &["--resume"], "checkpoint"),
    ];
    for (data, more, message) in cases {
        let base = ["finetune", "--data", data, "--out", &out, "--device", "cpu"];
        let refused = run(&[&base[..], more].concat());
        assert!(
            matches!(refused.code, Some(1 | 2)),
            "{more:?}: {:?}",
            refused.code
        );
        assert!(refused.err.contains(message), "{more:?}: {}", refused.err);
    }
    good(&finetune(&good_data, &out, &["--steps", "1"]));
    let other = run(&finetune(
        &good_data,
        &out,
        &["--steps", "2", "--resume", "--seed", "7"],
    ));
    assert!(
        other.err.contains("is a checkpoint for --seed 0, not 7"),
        "{}",
        other.err
    );
}
