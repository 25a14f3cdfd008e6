//! Models seen from outside: prompts of token ids, logits in files, poolings, and exported graphs.

use serde_json::Value;

use crate::common::{Run, Scratch, bad, data, demo, f32s, good, json, npy, tercet, text};

/// The shape and the elements of a `.npy` file of F32.
fn read(path: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    assert!(
        header.contains("'<f4'") && header.contains("False"),
        "{header}"
    );
    let shape = header.split_once("'shape': (").unwrap().1;
    let shape = shape.split_once(')').unwrap().0.split(',');
    let shape: Vec<usize> = shape.filter_map(|n| n.trim().parse().ok()).collect();
    let chunks = bytes[start..].chunks_exact(4);
    let values: Vec<f32> = chunks
        .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect();
    assert_eq!(values.len(), shape.iter().product::<usize>());
    (shape, values)
}

fn reference(model: &str) -> Value {
    let path = data(&format!("{model}/reference.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn integers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn greatest(row: &[f32]) -> u32 {
    let better = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (0..row.len()).reduce(better).unwrap() as u32
}

#[track_caller]
fn near(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
    let off = off.fold(0f32, f32::max);
    assert!(off <= tolerance, "{what}: off by {off}");
}

fn listed(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[test]
fn ids_are_a_prompt_as_their_text_is() {
    let of = |more: &[&str]| json(&[&["generate", "--json", "-n", "9"], more].concat());
    let by_text = of(&["-p", "Ownership is"]);
    let ids = integers(&by_text["prompt_tokens"]);
    let by_ids = of(&["--ids", &listed(&ids)]);
    for key in ["prompt_tokens", "tokens", "text"] {
        assert_eq!(by_ids[key], by_text[key], "{key}");
    }
    assert_eq!(by_ids["prompt"], "Ownership is");
    let plain = ["generate", "-n", "9", "--ids", &listed(&ids)];
    assert_eq!(
        good(&plain).out,
        good(&["generate", "-n", "9", "-p", "Ownership is"]).out
    );
    // Lists as JSON has them, and from standard input.
    let spaced = format!("{ids:?}");
    assert_eq!(of(&["--ids", &spaced])["tokens"], by_text["tokens"]);
    let mut command = tercet(&["generate", "--json", "-n", "9", "--ids", "-"]);
    let scratch = Scratch::new("outside-ids");
    let file = scratch.file("ids", spaced);
    let piped = command.stdin(std::fs::File::open(file).unwrap()).output();
    let Run { code, out, err } = text(piped.unwrap());
    assert_eq!(code, Some(0), "{err}");
    let piped: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(piped["tokens"], by_text["tokens"]);

    bad(&["generate", "--ids", "1,x"], 2, &["token ids", "`x`"]);
    bad(&["generate", "--ids", ""], 2, &["token ids"]);
    bad(
        &["generate", "--ids", "5,99999"],
        2,
        &["99999", "vocabulary"],
    );
    bad(
        &["generate", "--ids", "5", "-p", "a"],
        2,
        &["--ids", "--prompt"],
    );
    bad(
        &["generate", "--ids", "5", "--chat"],
        2,
        &["--ids", "--chat"],
    );
}

#[test]
fn folders_without_a_tokenizer_read_and_write_ids() {
    let scratch = Scratch::new("outside-logits");
    let file = scratch.path("logits.npy");
    // Attention, windows, recurrent states, experts and latent attention.
    for model in [
        "llama-a",
        "gemma3-a",
        "mamba-a",
        "qwen3_5-a",
        "deepseek_v3-a",
    ] {
        let name = format!("decoders/{model}");
        let of = reference(&name);
        let (prompt, greedy) = (integers(&of["prompt"]), integers(&of["greedy"]));
        let model = data(&name);
        let args = [
            "generate",
            "-m",
            &model,
            "--device",
            "cpu",
            "--ids",
            &listed(&prompt),
            "-n",
            "8",
            "--ignore-eos",
            "--temp",
            "0",
            "--json",
            "--logits",
            &file,
        ];
        let run = good(&args);
        assert!(run.err.contains("tokenizer"), "{}", run.err);
        let report: Value = serde_json::from_str(&run.out).unwrap();
        let tokens = integers(&report["tokens"]);
        assert_eq!(tokens, greedy[..8], "{name}");
        assert_eq!(report["text"], listed(&tokens).replace(',', " "), "{name}");
        let (shape, values) = read(&file);
        let (rows, want) = (prompt.len() + tokens.len(), floats(&of["logits"]));
        let vocab = want.len();
        assert_eq!(shape, [rows, vocab], "{name}");
        assert_eq!(report["logits"]["shape"], serde_json::json!([rows, vocab]));
        let row = |at: usize| &values[vocab * at..][..vocab];
        near(row(prompt.len() - 1), &want, 2e-3, &name);
        for (at, token) in tokens.iter().enumerate() {
            assert_eq!(greatest(row(prompt.len() - 1 + at)), *token, "{name}");
        }
        // The logits of a position do not depend on where the prompt ends.
        let whole = listed(&[&prompt[..], &tokens].concat());
        good(&[
            "generate", "-m", &model, "--device", "cpu", "--ids", &whole, "-n", "0", "--json",
            "--logits", &file,
        ]);
        let (again, fed) = read(&file);
        assert_eq!(again, shape, "{name}");
        near(&fed, &values, 1e-3, &name);
    }
}

#[test]
fn logits_of_encoder_decoders_begin_with_the_start_token() {
    let scratch = Scratch::new("outside-t5");
    let file = scratch.path("logits.npy");
    let of = reference("text-to-text/t5-a");
    let ids = integers(&of["texts"][0]["ids"]);
    let model = data("text-to-text/t5-a");
    let report = json(&[
        "generate",
        "-m",
        &model,
        "--device",
        "cpu",
        "--ids",
        &listed(&ids),
        "-n",
        "5",
        "--ignore-eos",
        "--json",
        "--logits",
        &file,
    ]);
    let tokens = integers(&report["tokens"]);
    let (shape, values) = read(&file);
    assert_eq!(shape[0], 1 + tokens.len());
    for (at, token) in tokens.iter().enumerate() {
        assert_eq!(greatest(&values[shape[1] * at..][..shape[1]]), *token);
    }
}

#[test]
fn logits_follow_long_prompts_a_full_context_and_samplers() {
    let scratch = Scratch::new("outside-long");
    let file = scratch.path("logits.npy");
    // A prompt of several runs.
    let prompt: Vec<u32> = (0..200).map(|i| 5 + i * 7 % 2000).collect();
    let base = ["generate", "--json", "--device", "cpu", "--logits", &file];
    let of = |more: &[&str]| json(&[&base[..], &["--ids", &listed(&prompt)], more].concat());
    let report = of(&["-n", "4"]);
    let written = integers(&report["tokens"]).len();
    let (shape, values) = read(&file);
    assert_eq!(shape, [prompt.len() + written, 2048]);
    // Without the file, the same tokens are written, sampled ones too.
    let drawn = ["-n", "4", "--temp", "1.5", "--seed", "11"];
    for (with, more) in [(report, &["-n", "4"][..]), (of(&drawn), &drawn)] {
        let plain = ["generate", "--json", "--device", "cpu", "--ids"];
        let plain = json(&[&plain[..], &[&listed(&prompt)], more].concat());
        assert_eq!(plain["tokens"], with["tokens"], "{more:?}");
    }
    // The last token of a full context has no place in it.
    let full = of(&["-n", "-1", "-c", "210", "--ignore-eos"]);
    assert_eq!(full["stop"], "context");
    assert_eq!(read(&file).0, [210, 2048]);
    // Logits are those of the model, before samplers change them.
    of(&[
        "-n",
        "1",
        "--temp",
        "0.7",
        "--top-k",
        "5",
        "--logit-bias",
        "9+50",
    ]);
    near(
        &read(&file).1[..200 * 2048],
        &values[..200 * 2048],
        1e-6,
        "bias",
    );
    bad(
        &["generate", "--logits", &file, "--draft", "ngram"],
        2,
        &["--draft"],
    );
    bad(
        &["generate", "--logits", "/no/such/folder/x.npy"],
        1,
        &["cannot write", "does not exist"],
    );
}

#[test]
fn a_language_model_embeds_with_a_pooling() {
    let file = demo("tiny-rust-llama-q8_0.gguf");
    let vector = |model: &str, more: &[&str]| -> Vec<f32> {
        let base = [
            "embed",
            "--device",
            "cpu",
            "--json",
            "-m",
            model,
            "a vector of strings",
        ];
        floats(&json(&[&base[..], more].concat())[0]["embedding"])
    };
    bad(&["embed", "-m", &file, "a"], 1, &["--pooling"]);
    let all: Vec<Vec<f32>> = [
        "mean",
        "cls",
        "last",
        "max",
        "weighted-mean",
        "mean-sqrt-len",
    ]
    .map(|mode| vector(&file, &["--pooling", mode]))
    .to_vec();
    for (at, one) in all.iter().enumerate() {
        let length: f32 = one.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        // The scale of a sum vanishes in the normalization; all others differ.
        let others = all.iter().enumerate().filter(|(other, _)| *other != at);
        let same: Vec<usize> = others.filter(|(_, o)| *o == one).map(|(o, _)| o).collect();
        assert!(same.iter().all(|o| [0, 5].contains(o)), "{at}: {same:?}");
    }
    // The last token's state depends on all before it; with one token, all poolings are equal.
    let base = [
        "embed",
        "-m",
        &file,
        "--json",
        "--device",
        "cpu",
        "--pooling",
    ];
    let of = |mode: &str, text: &str| {
        floats(&json(&[&base[..], &[mode, text]].concat())[0]["embedding"])
    };
    assert_ne!(of("last", "red green"), of("last", "blue green"));
    assert_eq!(of("cls", "red green"), of("cls", "blue green"));
    // The encoders' own poolings are the default; the flag replaces them.
    let encoder = data("encoders/sentence-a");
    assert_ne!(
        vector(&encoder, &["--pooling", "max"]),
        vector(&encoder, &["--pooling", "cls"])
    );
    bad(
        &["embed", "-m", &file, "--pooling", "median", "a"],
        2,
        &["median", "mean", "last"],
    );
    bad(
        &[
            "embed",
            "-m",
            &data("vision/clip-a"),
            "--pooling",
            "mean",
            "a",
        ],
        1,
        &["--pooling"],
    );
}

/// Runs an exported graph on arrays and returns its outputs by name.
fn run_graph(scratch: &Scratch, graph: &str, inputs: &[(&str, &str, &str, Vec<u8>)]) -> Vec<Value> {
    let mut args = vec!["run".to_string(), graph.to_string(), "--json".to_string()];
    args.extend(["--device", "cpu"].map(String::from));
    for (name, descr, shape, bytes) in inputs {
        let file = scratch.file(&format!("{name}.npy"), npy(descr, shape, bytes));
        args.extend(["-i".to_string(), format!("{name}={file}")]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    json(&args).as_array().unwrap().clone()
}

fn output<'a>(outputs: &'a [Value], name: &str) -> &'a Value {
    let found = outputs.iter().find(|output| output["name"] == name);
    found.unwrap_or_else(|| panic!("no output {name}"))
}

fn i32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn exported_classifiers_have_their_heads() {
    let scratch = Scratch::new("outside-heads");
    let graph = scratch.path("graph.onnx");
    for (model, shape) in [
        ("encoders/tagger-a", serde_json::json!([1, 4, 5])),
        ("encoders/reranker-a", serde_json::json!([1, 1])),
    ] {
        good(&["export", "-m", &data(model), "-o", &graph]);
        let outputs = run_graph(
            &scratch,
            &graph,
            &[
                ("ids", "<i4", "(1, 4)", i32s(&[2, 5, 6, 3])),
                ("type_ids", "<i4", "(1, 4)", i32s(&[0; 4])),
                ("mask", "|b1", "(1, 4)", vec![1; 4]),
            ],
        );
        assert_eq!(output(&outputs, "logits")["shape"], shape, "{model}");
    }
    // The labels of each token are those that `classify` finds.
    let model = data("encoders/tagger-a");
    let found = json(&[
        "classify",
        "-m",
        &model,
        "--json",
        "the dog sees a red bird",
    ]);
    assert!(found.to_string().contains("ANIMAL"), "{found}");
    // An encoder without a head, and a sentence encoder, still embed.
    for model in [
        "encoders/bert-c",
        "encoders/sentence-a",
        "encoders/embedding_gemma-a",
    ] {
        good(&["export", "-m", &data(model), "-o", &graph]);
        let about = json(&["inspect", &graph, "--json"]);
        assert_eq!(about["outputs"][0]["name"], "embedding", "{model}");
    }
}

/// A step of an exported decoder: its token inputs, and its states from the last step.
fn step(
    scratch: &Scratch,
    graph: &str,
    tokens: &[u32],
    start: u32,
    states: &mut Vec<(String, Vec<usize>, Vec<f32>)>,
) -> Vec<f32> {
    let n = tokens.len() as u32;
    let positions: Vec<u32> = (start..start + n).collect();
    let shape = |n: u32| format!("({n},)");
    let mut inputs = vec![
        ("tokens".to_string(), "<i4", shape(n), i32s(tokens)),
        ("positions".to_string(), "<i4", shape(n), i32s(&positions)),
        (
            "start".to_string(),
            "<i4",
            shape(4),
            i32s(&[0, start, 0, 0]),
        ),
        (
            "kv_len".to_string(),
            "<i4",
            "()".to_string(),
            i32s(&[start + n]),
        ),
        ("rows".to_string(), "<i4", shape(1), i32s(&[n - 1])),
    ];
    for (name, sizes, values) in &*states {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        inputs.push((
            name.clone(),
            "<f4",
            format!("({},)", sizes.join(", ")),
            f32s(values),
        ));
    }
    let declared = json(&["inspect", graph, "--json"]);
    let declared = declared["inputs"].as_array().unwrap().clone();
    inputs.retain(|(name, ..)| declared.iter().any(|input| input["name"] == **name));
    let inputs: Vec<(&str, &str, &str, Vec<u8>)> = inputs
        .iter()
        .map(|(name, descr, shape, bytes)| (&**name, *descr, &**shape, bytes.clone()))
        .collect();
    let outputs = run_graph(scratch, graph, &inputs);
    for (name, _, values) in states {
        *values = floats(&output(&outputs, &format!("{name}.next"))["values"]);
    }
    floats(&output(&outputs, "logits")["values"])
}

/// The states that an exported decoder starts from: zeros.
fn zeros(graph: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let about = json(&["inspect", graph, "--json"]);
    let states = about["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|input| {
            let name = input["name"].as_str()?.to_string();
            let outputs = about["outputs"].as_array()?.iter();
            let next = format!("{name}.next");
            outputs.into_iter().find(|output| output["name"] == *next)?;
            assert_eq!(input["dtype"], "float", "{name}");
            let sizes = input["shape"].as_array()?.iter();
            let sizes: Vec<usize> = sizes
                .map(|n| n.as_str().unwrap().parse().unwrap())
                .collect();
            let n = sizes.iter().product();
            Some((name, sizes, vec![0.0; n]))
        });
    states.collect()
}

#[test]
fn exported_decoders_with_states_go_on_from_them() {
    let scratch = Scratch::new("outside-states");
    let graph = scratch.path("graph.onnx");
    for model in [
        "mamba-a",
        "mamba2-a",
        "qwen3_5-a",
        "falcon_h1-a",
        "nemotron_h-a",
    ] {
        let name = format!("decoders/{model}");
        good(&["export", "-m", &data(&name), "-o", &graph]);
        let of = reference(&name);
        let prompt = integers(&of["prompt"]);
        let mut states = zeros(&graph);
        assert!(!states.is_empty(), "{name}");
        step(&scratch, &graph, &prompt[..13], 0, &mut states);
        let logits = step(&scratch, &graph, &prompt[13..], 13, &mut states);
        near(&logits, &floats(&of["logits"]), 2e-3, &name);
    }
}

#[test]
fn bf16_graphs_have_inputs_that_numpy_has() {
    let scratch = Scratch::new("outside-bf16");
    let graph = scratch.path("graph.onnx");
    for dtype in ["bf16", "f16"] {
        let model = data("decoders/llama-a");
        good(&["export", "-m", &model, "--dtype", dtype, "-o", &graph]);
        let about = json(&["inspect", &graph, "--json"]);
        let all = about["inputs"].as_array().unwrap().iter();
        for port in all.chain(about["outputs"].as_array().unwrap()) {
            assert_ne!(port["dtype"], "bfloat16", "{port}");
        }
    }
    good(&[
        "export",
        "-m",
        &data("decoders/llama-a"),
        "--dtype",
        "bf16",
        "-o",
        &graph,
    ]);
    let of = reference("decoders/llama-a");
    let prompt = integers(&of["prompt"]);
    let mut states = zeros(&graph);
    assert!(!states.is_empty());
    step(&scratch, &graph, &prompt[..9], 0, &mut states);
    let logits = step(&scratch, &graph, &prompt[9..], 9, &mut states);
    near(&logits, &floats(&of["logits"]), 0.2, "bf16");
}

#[test]
fn models_of_several_graphs_export_all_of_them() {
    let scratch = Scratch::new("outside-parts");
    let out = scratch.path("model.onnx");
    for (model, parts) in [
        ("text-to-text/t5-a", &["encoder", "decoder"][..]),
        ("speech/whisper-a", &["features", "encoder", "decoder"]),
        ("speech/moonshine-a", &["encoder", "decoder"]),
        ("vision-language/smolvlm-b", &["tower", "decoder"]),
    ] {
        let said = good(&["export", "-m", &data(model), "-o", &out]).err;
        for part in parts {
            let file = scratch.path(&format!("model.{part}.onnx"));
            assert!(said.contains(&file), "{model}: {said}");
            let about = json(&["inspect", &file, "--json"]);
            assert_eq!(
                about["unsupported"],
                serde_json::json!([]),
                "{model} {part}"
            );
            std::fs::remove_file(&file).unwrap();
            good(&["export", "-m", &data(model), "--part", part, "-o", &out]);
            std::fs::remove_file(&out).unwrap();
        }
        bad(
            &["export", "-m", &data(model), "--part", "head", "-o", &out],
            2,
            &["--part head", parts[0]],
        );
        bad(
            &["explain", "-m", &data(model), "--device", "cpu"],
            2,
            &["--part", parts[1]],
        );
    }
    // `--part text` exports the text tower.
    good(&[
        "export",
        "-m",
        &data("vision/clip-a"),
        "--part",
        "text",
        "-o",
        &out,
    ]);
    assert_eq!(
        json(&["inspect", &out, "--json"])["outputs"][0]["name"],
        "embedding"
    );
}

#[test]
fn an_exported_encoder_decoder_writes_what_the_model_writes() {
    let scratch = Scratch::new("outside-pair");
    let out = scratch.path("model.onnx");
    let model = data("text-to-text/t5-a");
    good(&["export", "-m", &model, "-o", &out]);
    let ids = integers(&reference("text-to-text/t5-a")["texts"][0]["ids"]);
    let file = scratch.path("logits.npy");
    json(&[
        "generate",
        "-m",
        &model,
        "--device",
        "cpu",
        "--ids",
        &listed(&ids),
        "-n",
        "1",
        "--ignore-eos",
        "--json",
        "--logits",
        &file,
    ]);
    let (shape, want) = read(&file);
    let shown = format!("(1, {})", ids.len());
    let encoder = scratch.path("model.encoder.onnx");
    let hidden = run_graph(&scratch, &encoder, &[("ids", "<i4", &shown, i32s(&ids))]);
    let decoder = scratch.path("model.decoder.onnx");
    let mut states = zeros(&decoder);
    let crossed = hidden
        .iter()
        .filter(|o| o["name"].as_str().unwrap().starts_with("cross"));
    for output in crossed {
        let name = output["name"].as_str().unwrap().to_string();
        let sizes: Vec<usize> = serde_json::from_value(output["shape"].clone()).unwrap();
        let values = floats(&output["values"]);
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let shape = format!("({},)", sizes.join(", "));
        scratch.file(&format!("{name}.npy"), npy("<f4", &shape, &f32s(&values)));
    }
    let mut args = vec![
        "run".to_string(),
        decoder.clone(),
        "--json".into(),
        "--device".into(),
        "cpu".into(),
    ];
    let config = std::fs::read_to_string(format!("{model}/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let start = config["decoder_start_token_id"].as_u64().unwrap() as u32;
    for (name, shape, values) in [
        ("tokens", "(1,)", i32s(&[start])),
        ("positions", "(1,)", i32s(&[0])),
        ("start", "(4,)", i32s(&[0; 4])),
        ("kv_len", "()", i32s(&[1])),
        ("rows", "(1,)", i32s(&[0])),
    ] {
        scratch.file(&format!("{name}.npy"), npy("<i4", shape, &values));
    }
    for (name, sizes, values) in states.drain(..) {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let shape = format!("({},)", sizes.join(", "));
        scratch.file(&format!("{name}.npy"), npy("<f4", &shape, &f32s(&values)));
    }
    let about = json(&["inspect", &decoder, "--json"]);
    for input in about["inputs"].as_array().unwrap() {
        let name = input["name"].as_str().unwrap();
        args.extend([
            "-i".to_string(),
            format!("{name}={}", scratch.path(&format!("{name}.npy"))),
        ]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outputs = json(&args);
    let logits = floats(&output(outputs.as_array().unwrap(), "logits")["values"]);
    near(&logits, &want[..shape[1]], 1e-3, "the start token");
}

#[test]
fn an_unknown_family_is_said_shortly() {
    let scratch = Scratch::new("outside-family");
    std::fs::create_dir_all(scratch.path("m")).unwrap();
    for (name, nearest) in [
        ("qwen3_nexxt", "qwen3_next"),
        ("llama7", "llama"),
        ("rwkv9", ""),
    ] {
        scratch.file("m/config.json", format!("{{\"model_type\": \"{name}\"}}"));
        let header = b"{}";
        let len = (header.len() as u64).to_le_bytes();
        scratch.file("m/model.safetensors", [&len[..], header].concat());
        for command in [
            &["generate", "-m"][..],
            &["embed", "a", "-m"],
            &["export", "-o", "x.onnx", "-m"],
        ] {
            let folder = scratch.path("m");
            let args = [command, &[&folder]].concat();
            let Run { code, err, .. } = crate::common::run(&args);
            assert_eq!(code, Some(1), "{args:?}: {err}");
            let families = err.matches(", ").count();
            assert!(
                families < 8 && err.contains("`tercet models`"),
                "{args:?}: {err}"
            );
            assert!(
                err.contains(name) && err.contains(nearest),
                "{args:?}: {err}"
            );
        }
    }
    let listed = good(&["models"]).out;
    assert!(listed.lines().all(|line| line.len() <= 100), "{listed}");
    for name in [
        "llama",
        "qwen3_next",
        "bert",
        "whisper",
        "siglip",
        "t5",
        "smolvlm",
    ] {
        assert!(listed.contains(name), "no {name} in {listed}");
    }
    let kinds = json(&["models", "--json"]);
    assert!(kinds[0]["gguf_architectures"].as_array().unwrap().len() > 20);
}

#[test]
fn threads_are_a_flag_of_encoders_too() {
    let model = data("encoders/sentence-a");
    let args = [
        "embed", "-m", &model, "--device", "cpu", "--json", "a cat", "-t",
    ];
    let of = |threads: &str| json(&[&args[..], &[threads]].concat());
    assert_eq!(of("1"), of("2"));
    bad(&[&args[..], &["0"]].concat(), 2, &["--threads"]);
}
