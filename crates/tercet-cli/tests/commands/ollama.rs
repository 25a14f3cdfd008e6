//! Models of Ollama's store: the effects of the layers besides the weights.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Run, Scratch, demo, good, tercet, text};

const TEMPLATE: &str =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";

/// A store of this test.
struct OllamaStore {
    scratch: Scratch,
    blobs: usize,
}

impl OllamaStore {
    fn new(name: &str) -> OllamaStore {
        let scratch = Scratch::new(name);
        std::fs::create_dir_all(scratch.path("store/blobs")).unwrap();
        OllamaStore { scratch, blobs: 0 }
    }

    /// Adds a model with these layers.
    fn add(&mut self, model: &str, layers: &[(&str, &[u8])]) {
        let mut listed = Vec::new();
        for (kind, bytes) in layers {
            let hex = format!("{:064x}", self.blobs);
            self.blobs += 1;
            let blob = self.scratch.path(&format!("store/blobs/sha256-{hex}"));
            std::fs::write(blob, bytes).unwrap();
            let media = format!("application/vnd.ollama.image.{kind}");
            listed.push(
                json!({"mediaType": media, "digest": format!("sha256:{hex}"), "size": bytes.len()}),
            );
        }
        let folder = "store/manifests/registry.ollama.ai/library";
        let manifest = PathBuf::from(self.scratch.path(&format!("{folder}/{model}/latest")));
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        let text = json!({"schemaVersion": 2, "config": {}, "layers": listed});
        std::fs::write(manifest, text.to_string()).unwrap();
    }

    fn run(&self, args: &[&str]) -> Run {
        let mut command = tercet(&[args, &["--device", "cpu"]].concat());
        let command = command.env("OLLAMA_MODELS", self.scratch.path("store"));
        text(command.output().unwrap())
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> (Value, String) {
        let run = self.run(&[args, &["--json"]].concat());
        assert_eq!(run.code, Some(0), "{args:?}: {}", run.err);
        (serde_json::from_str(&run.out).unwrap(), run.err)
    }

    #[track_caller]
    fn tokens(&self, args: &[&str]) -> Value {
        self.json(args).0["tokens"].clone()
    }

    #[track_caller]
    fn refused(&self, args: &[&str], code: i32, parts: &[&str]) {
        let run = self.run(args);
        assert_eq!(run.code, Some(code), "{args:?}: {}", run.err);
        for part in parts {
            assert!(run.err.contains(part), "{part}: {}", run.err);
        }
    }
}

fn plain() -> Vec<u8> {
    std::fs::read(demo("tiny-rust-llama-q8_0.gguf")).unwrap()
}

/// The model with a chat template. The new entry fills whole units of the file's alignment, so that the
/// tensors stay aligned.
fn with_template() -> Vec<u8> {
    const ALIGNMENT: usize = 32;
    const HEADER: usize = 24;
    const STRING: u32 = 8;
    let mut file = plain();
    let key = "tokenizer.chat_template";
    let mut value = format!("{TEMPLATE}{{# #}}");
    let whole = |value: &str| 8 + key.len() + 4 + 8 + value.len();
    let missing = whole(&value).next_multiple_of(ALIGNMENT) - whole(&value);
    value.insert_str(value.len() - 3, &" ".repeat(missing));
    let mut entry = Vec::new();
    entry.extend((key.len() as u64).to_le_bytes());
    entry.extend(key.as_bytes());
    entry.extend(STRING.to_le_bytes());
    entry.extend((value.len() as u64).to_le_bytes());
    entry.extend(value.as_bytes());
    let count = u64::from_le_bytes(file[16..HEADER].try_into().unwrap()) + 1;
    file[16..HEADER].copy_from_slice(&count.to_le_bytes());
    file.splice(HEADER..HEADER, entry);
    file
}

/// A generation with a model.
fn command<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", "-m", model, "-p", "Ownership is"], more].concat()
}

#[test]
fn params_and_system_are_defaults_that_flags_override() {
    let mut store = OllamaStore::new("ollama-params");
    let params = json!({"temperature": 0.9, "top_k": 7, "top_p": 0.95, "seed": 3, "repeat_penalty": 1.2,
        "stop": ["the", "zzz"], "num_predict": 40, "num_ctx": 64, "num_gpu": 1});
    let params = params.to_string();
    let file = with_template();
    store.add(
        "own",
        &[
            ("model", &file),
            ("params", params.as_bytes()),
            ("system", b"Be brief."),
            ("template", b"{{ .System }}{{ .Prompt }}"),
            ("license", b"MIT"),
        ],
    );
    let path = store.scratch.file("own.gguf", file);
    let flags = "--temp 0.9 --top-k 7 --top-p 0.95 --seed 3 --repeat-penalty 1.2 --stop the --stop zzz -n 40 -c 64";
    let flags: Vec<&str> = flags.split(' ').collect();
    let (own, notes) = store.json(&command("ollama:own", &[]));
    let expected = store.json(&command(&path, &flags)).0;
    assert_eq!(own["tokens"], expected["tokens"]);
    assert_eq!(
        (&own["seed"], &own["stop"]),
        (&expected["seed"], &expected["stop"])
    );
    assert!(!own["text"].as_str().unwrap().contains("the"), "{own}");
    assert!(notes.contains("without effect here: num_gpu"), "{notes}");
    let greedy = "--temp 0 --top-k 0 --repeat-penalty 1 --stop yyy -n 12";
    let greedy: Vec<&str> = greedy.split(' ').collect();
    let given = [&greedy[..], &["--top-p", "1"]].concat();
    assert_eq!(
        store.tokens(&command("ollama:own", &given)),
        store.tokens(&command(&path, &given))
    );
    assert_ne!(
        store.tokens(&command("ollama:own", &given)),
        store.tokens(&command("ollama:own", &["-n", "12"]))
    );
    // The context of the manifest is full after 64 tokens.
    let long = ["--temp", "0", "--stop", "yyy", "--ignore-eos", "-n", "500"];
    assert_eq!(
        store.json(&command("ollama:own", &long)).0["stop"],
        "context"
    );
    let longer: Vec<&str> = "--temp 0 --stop yyy --ignore-eos -n 100 -c 128"
        .split(' ')
        .collect();
    assert_eq!(
        store.json(&command("ollama:own", &longer)).0["stop"],
        "length"
    );

    let asked = |more: &[&str]| {
        store.json(&command(
            "ollama:own",
            &[&["--chat", "-n", "2"], more].concat(),
        ))
    };
    let prompt_of = |(report, _): (Value, String)| report["prompt_tokens"].clone();
    let chat_of = |more: &[&str]| {
        prompt_of(store.json(&command(&path, &[&["--chat", "-n", "2"], more].concat())))
    };
    let (report, notes) = asked(&[]);
    assert!(
        notes.contains("the one of Ollama's manifest is not used"),
        "{notes}"
    );
    assert_eq!(report["prompt_tokens"], chat_of(&["--system", "Be brief."]));
    assert_ne!(report["prompt_tokens"], chat_of(&[]));
    let other = ["--system", "Be long."];
    assert_eq!(prompt_of(asked(&other)), chat_of(&other));
}

#[test]
fn a_template_in_another_language_is_refused_if_it_is_the_only_one() {
    let mut store = OllamaStore::new("ollama-template");
    let layers: [(&str, &[u8]); 3] = [
        ("model", &plain()),
        (
            "template",
            b"{{ if .System }}[{{ .System }}]{{ end }}{{ .Prompt }}",
        ),
        ("projector", b"GGUF"),
    ];
    store.add("go", &layers);
    let chat = [
        "generate",
        "-m",
        "ollama:go",
        "--chat",
        "-p",
        "x",
        "-n",
        "2",
    ];
    store.refused(
        &chat,
        2,
        &[
            "Go's template language",
            "library/go/latest",
            "--chat-template",
        ],
    );
    let (report, notes) = store.json(&[&chat[..], &["--chat-template", TEMPLATE]].concat());
    assert_eq!(report["tokens"].as_array().unwrap().len(), 2);
    assert!(notes.contains("image projector"), "{notes}");
    store.json(&["generate", "-m", "go", "-p", "x", "-n", "2"]);
    // The template of models without one.
    store.add(
        "none",
        &[("model", &plain()), ("template", b"{{ .Prompt }}")],
    );
    let (_, notes) = store.json(&["generate", "-m", "none", "--chat", "-p", "x", "-n", "2"]);
    assert!(notes.contains("no chat template"), "{notes}");
}

#[test]
fn adapters_are_applied_or_the_model_is_refused() {
    let mut store = OllamaStore::new("ollama-adapter");
    let texts = "The red tercet rhymes with the blue one.\n".repeat(40);
    let data = store.scratch.file("texts.txt", texts);
    let adapter = store.scratch.path("adapter.gguf");
    let tune = [
        "finetune", "--data", &data, "--out", &adapter, "--device", "cpu",
    ];
    let size = [
        "--batch", "1", "--seq", "16", "--steps", "4", "--lr", "1e-2",
    ];
    good(&[&tune[..], &size].concat());
    let bytes = std::fs::read(&adapter).unwrap();
    store.add("tuned", &[("model", &plain()), ("adapter", &bytes)]);
    let of =
        |more: &[&str]| store.tokens(&[&["generate", "-p", "The red", "-n", "12"], more].concat());
    let (tuned, base) = (of(&["-m", "tuned"]), of(&[]));
    assert_eq!(tuned, of(&["--lora", &adapter]));
    assert_ne!(tuned, base);
    // This command does not apply adapters.
    let run = tercet(&["inspect", "ollama:tuned"])
        .env("OLLAMA_MODELS", store.scratch.path("store"))
        .output();
    let run = text(run.unwrap());
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("--lora"), "{}", run.err);
    store.add("broken", &[("model", &plain()), ("adapter", b"GGUF")]);
    store.refused(
        &["generate", "-m", "broken", "-p", "x"],
        1,
        &["of the manifest"],
    );
}
