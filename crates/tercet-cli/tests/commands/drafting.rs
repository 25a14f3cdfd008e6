//! Speculative decoding and KV cache types on the CPU: generated text, measurements, rejected
//! arguments.

use std::io::Write;
use std::process::Stdio;

#[cfg(feature = "serve")]
use crate::common::serving;
use crate::common::{bad, data, demo, good, json, tercet, text};

#[test]
fn drafts_change_no_text_and_say_what_became_of_them() {
    let base = ["generate", "--json", "--device", "cpu", "-n", "48"];
    let prompt = "let x = 5; let y = 6; let x = 5; let y = 6; let";
    let model = demo("tiny-rust-llama-f16.gguf");
    for options in [&["-p", prompt][..], &["--temp", "0.9", "--seed", "3"]] {
        let want = json(&[&base[..], options].concat());
        assert!(want["drafts"].is_null());
        for draft in ["ngram", &model] {
            let got = json(&[&base[..], options, &["--draft", draft]].concat());
            assert_eq!(got["tokens"], want["tokens"], "{draft} {options:?}");
            let of = |name: &str| got["drafts"][name].as_u64().unwrap();
            assert!(of("accepted") <= of("proposed"), "{got}");
        }
    }
    let said = good(&[
        "generate",
        "--device",
        "cpu",
        "-n",
        "32",
        "-p",
        prompt,
        "--draft",
        &model,
        "--draft-tokens",
        "3",
    ]);
    assert!(said.err.contains("draft tokens accepted"), "{}", said.err);
}

#[test]
fn conversations_and_measurements_take_drafts() {
    let talk = |draft: &[&str]| {
        let base = ["chat", "--device", "cpu", "-n", "12", "--seed", "3"];
        let mut child = tercet(&[&base[..], draft].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input
            .write_all(b"hello hello hello\nagain again\n/set temp 0.8\nand again\n")
            .unwrap();
        drop(input);
        text(child.wait_with_output().unwrap())
    };
    let (want, got) = (talk(&[]), talk(&["--draft", "ngram"]));
    assert_eq!((want.code, &want.out), (got.code, &got.out));
    let v = json(&[
        "bench", "--device", "cpu", "--json", "-p", "16", "-n", "24", "-r", "1", "--draft", "ngram",
    ]);
    let tests = v["tests"].as_array().unwrap();
    assert_eq!(tests[2]["test"], "drafted");
    assert!(tests[2]["drafts"]["proposed"].as_u64().is_some(), "{v}");
    assert!(tests[1]["drafts"].is_null());
}

#[test]
fn drafts_that_cannot_be_are_refused() {
    let mamba = data("decoders/mamba-a");
    let t5 = data("text-to-text/t5-a");
    for (args, code, want) in [
        (&["--draft-tokens", "3"][..], 2, "--draft"),
        (
            &["--draft", "ngram", "--draft-tokens", "8"],
            2,
            "from 1 to 7",
        ),
        (&["--draft", "no such file"], 1, "no such file"),
        (&["-m", &t5, "--draft", "ngram"], 2, "text-only"),
        (&["--draft", &mamba], 1, "draft"),
    ] {
        let all = [&["generate", "--device", "cpu", "-n", "4"][..], args].concat();
        bad(&all, code, &[want]);
    }
}

/// A server with a draft answers with the same text as `generate`.
#[cfg(feature = "serve")]
#[test]
fn servers_take_drafts() {
    let model = demo("tiny-rust-llama-f16.gguf");
    let prompt = "let x = 5; let y = 6; let x = 5; let y = 6; let";
    let written = good(&["generate", "--device", "cpu", "-n", "32", "-p", prompt]).out;
    let expected = written.strip_prefix(prompt).unwrap().trim_end_matches('\n');
    let base = ["serve", "--port", "0", "--device", "cpu", "--draft"];
    for (draft, slots) in [("ngram", "4"), (&*model, "1")] {
        let server = serving(&[&base[..], &[draft, "--parallel", slots]].concat());
        let ask = serde_json::json!({"model": "tiny-rust-llama", "prompt": prompt, "max_tokens": 32, "temperature": 0});
        let answer = server.post("/v1/completions", &ask);
        assert_eq!(answer["choices"][0]["text"], expected, "{draft}");
    }
    let scratch = crate::common::Scratch::new("drafting-serve");
    let graph = scratch.file("rows.tercet", crate::common::GRAPH);
    for (more, code, want) in [
        (&["ngram", "--draft-tokens", "8"][..], 2, "from 1 to 7"),
        (&["no such file"], 1, "no such file"),
        (&["ngram", "-m", &graph, "-b", "n=4"], 2, "none is served"),
    ] {
        bad(&[&base[..], more].concat(), code, &[want]);
    }
}

#[test]
fn caches_have_the_type_that_was_asked_for() {
    let base = ["generate", "--json", "--device", "cpu", "-n", "8"];
    let narrow = json(&[&base[..], &["--cache-dtype", "f16"]].concat());
    assert_eq!(narrow["tokens"].as_array().unwrap().len(), 8);
    let all = [&base[..], &["--cache-dtype", "bf16", "--dtype", "f16"]].concat();
    bad(&all, 1, &["caches of"]);
}
