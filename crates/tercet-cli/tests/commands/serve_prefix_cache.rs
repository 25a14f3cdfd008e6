//! `tercet serve` with `--cache-memory`, `--cache-dir` and `--cache-disk`.

use serde_json::json;

use crate::common::{Scratch, bad, serving};

#[test]
fn sizes_and_folders_are_checked() {
    bad(&["serve", "--cache-disk", "1GiB"], 2, &["--cache-dir"]);
    bad(&["serve", "--cache-memory", "some"], 2, &["512MiB"]);
}

/// A signal stops the server, which saves the prefixes of its slots first.
#[cfg(unix)]
#[test]
fn a_restarted_server_finds_the_prefixes_of_its_slots() {
    let scratch = Scratch::new("prefix-cache");
    let folder = scratch.path("prefixes");
    let prompt: Vec<usize> = (0..600).map(|at| 5 + at * 31 % 90).collect();
    let ask = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0});
    let mut texts = Vec::new();
    for want in [0, 512] {
        let server = serving(&[
            "serve",
            "--port",
            "0",
            "--device",
            "cpu",
            "--context",
            "1024",
            "--log-format",
            "none",
            "--cache-dir",
            &folder,
            "--cache-memory",
            "64MiB",
            "--cache-disk",
            "1GiB",
        ]);
        let answer = server.post("/v1/completions", &ask);
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(*cached, want, "{answer}");
        texts.push(answer["choices"][0]["text"].clone());
        server.terminate();
    }
    assert_eq!(texts[0], texts[1]);
}
