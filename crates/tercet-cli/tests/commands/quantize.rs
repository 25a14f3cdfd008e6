//! `tercet quantize`: formats and errors of the output, and rejected inputs.

use serde_json::Value;

use crate::common::{Scratch, bad, demo, good, json};

/// Name, format and error of each output tensor.
fn rows(args: &[&str]) -> Vec<(String, String, f64)> {
    let v = json(&[&["quantize", "--json"], args].concat());
    let row = |row: &Value| {
        let of = |name: &str| row[name].as_str().unwrap().to_string();
        (
            of("tensor"),
            of("after"),
            row["relative_error"].as_f64().unwrap(),
        )
    };
    v.as_array().unwrap().iter().map(row).collect()
}

fn tokens(model: &str) -> Value {
    json(&[
        "generate", "--json", "-n", "24", "--device", "cpu", "-m", model,
    ])["tokens"]
        .clone()
}

#[test]
fn every_format_errs_as_its_bits_let_it() {
    let scratch = Scratch::new("quantize-formats");
    let wide = scratch.path("wide.gguf");
    let all = rows(&["-t", "f32", "-o", &wide]);
    assert!(
        all.iter()
            .all(|(_, after, error)| after == "F32" && *error == 0.0)
    );
    let original = demo("tiny-rust-llama-q8_0.gguf");
    assert_eq!(tokens(&wide), tokens(&original));
    for (format, most) in [
        ("q8_0", 0.01),
        ("q6_k", 0.025),
        ("q5_k", 0.05),
        ("q5_1", 0.05),
        ("q5_0", 0.05),
        ("q4_k", 0.09),
        ("q4_1", 0.09),
        ("q4_0", 0.1),
        ("mxfp4", 0.14),
        ("q3_k", 0.2),
        ("q2_k", 0.35),
    ] {
        let out = scratch.path(&format!("{format}.gguf"));
        let all = rows(&["-m", &wide, "-t", format, "-o", &out]);
        let matrices = all.iter().filter(|(name, ..)| !name.contains("norm"));
        for (name, after, error) in matrices {
            assert!(after.eq_ignore_ascii_case(format), "{name}: {after}");
            assert!(
                (if format == "q8_0" { 0.0 } else { 1e-4 }..most).contains(error),
                "{name} as {format}: {error}"
            );
        }
        assert!(
            all.iter()
                .filter(|(name, ..)| name.contains("norm"))
                .all(|(_, after, _)| after == "F32")
        );
        let bytes = |path: &str| std::fs::metadata(path).unwrap().len();
        assert!(3 * bytes(&out) < bytes(&wide), "{format}: {}", bytes(&out));
        assert_eq!(tokens(&out).as_array().unwrap().len(), 24, "{format}");
    }
    // Weights that come from Q8_0 are exactly representable.
    assert_eq!(tokens(&scratch.path("q8_0.gguf")), tokens(&original));
}

#[test]
fn a_mix_gives_more_bits_to_what_errs_most() {
    let scratch = Scratch::new("quantize-mix");
    let out = scratch.path("mixed.gguf");
    let all = rows(&["-t", "q4_k_m", "-o", &out]);
    let of = |name: &str| all.iter().find(|(n, ..)| n == name).unwrap().1.as_str();
    // The embedding is also the output matrix.
    assert_eq!(of("token_embd.weight"), "Q6_K");
    assert_eq!(
        (of("blk.0.attn_q.weight"), of("blk.2.attn_v.weight")),
        ("Q4_K", "Q6_K")
    );
    let inspected = json(&["inspect", &out, "--json"]);
    assert!(inspected.to_string().contains("Q4_K"), "{inspected}");
    let said = good(&[
        "quantize",
        "-m",
        &out,
        "-t",
        "f16",
        "-o",
        &scratch.path("again.gguf"),
    ]);
    assert!(
        said.out.contains("Q4_K to F16") && said.err.contains("bits per weight"),
        "{said:?}"
    );
}

#[test]
fn what_cannot_be_written_is_refused() {
    let scratch = Scratch::new("quantize-refused");
    let out = scratch.path("out.gguf");
    bad(
        &["quantize", "-t", "iq2_xs", "-o", &out],
        1,
        &["quantizing to IQ2_XS"],
    );
    bad(&["quantize", "-t", "q9", "-o", &out], 2, &["q4_k_m"]);
    let model = demo("tiny-rust-llama-q8_0.gguf");
    bad(
        &["quantize", "-m", &model, "-o", &model],
        1,
        &["is the model"],
    );
    bad(
        &["quantize", "-o", "/nowhere/at/all.gguf"],
        1,
        &["cannot be written"],
    );
    let folder = crate::common::encoder(&scratch);
    bad(
        &["quantize", "-m", &folder, "-o", &out],
        1,
        &["cannot be converted to GGUF"],
    );
    assert!(!std::path::Path::new(&out).exists());
}
