//! Text between a prefix and a suffix.

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, data, events_of, shared, start_paths};

const PREFIX: &str = "<|fim_prefix|>";
const SUFFIX: &str = "<|fim_suffix|>";
const MIDDLE: &str = "<|fim_middle|>";
const SEPARATOR: &str = "<|file_sep|>";

/// A server of the tiny model, some of whose rare tokens are renamed to those for filling in the middle.
fn server() -> Running {
    let folder = std::env::temp_dir().join(format!("tercet-infill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(data(&format!("tiny-rust-llama/{file}")), folder.join(file)).unwrap();
    }
    let path = data("tiny-rust-llama/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let last = u64::try_from(vocab.len()).unwrap();
    let names = [PREFIX, SUFFIX, MIDDLE, SEPARATOR];
    let ids: Vec<u64> = (last - 4..last).collect();
    let gone: Vec<String> = vocab
        .iter()
        .filter(|(_, id)| ids.contains(&id.as_u64().unwrap()))
        .map(|(name, _)| name.clone())
        .collect();
    for name in &gone {
        vocab.remove(name);
    }
    for (name, id) in names.into_iter().zip(&ids) {
        vocab.insert(name.into(), json!(id));
    }
    // Merges that make the renamed tokens are removed, and those that need them.
    let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|merge| {
        let parts: Vec<String> = match merge {
            Value::String(text) => text.split(' ').map(str::to_string).collect(),
            other => other
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_str().unwrap().to_string())
                .collect(),
        };
        let made = parts.concat();
        !gone
            .iter()
            .any(|name| *name == made || parts.contains(name))
    });
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for (name, id) in names.into_iter().zip(&ids) {
        added.push(json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}));
    }
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let running = start_paths(
        &[folder.to_str().unwrap().to_string()],
        ServeOptions::default(),
    );
    std::fs::remove_dir_all(&folder).unwrap();
    running
}

fn post(server: &Running, path: &str, body: Value) -> Value {
    let answer = server.post(path, &body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
    answer.json()
}

#[test]
fn the_middle_is_the_continuation_of_the_special_tokens() {
    let server = server();
    let limit = json!({"temperature": 0, "max_tokens": 12, "ignore_eos": true});
    let of = |more: Value| {
        let mut body = limit.clone();
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let raw = |prompt: String| post(&server, "/v1/completions", of(json!({"prompt": prompt})));
    let expected = raw(format!("{PREFIX}fn main() {{{SUFFIX}}}{MIDDLE}"));
    let text = &expected["choices"][0]["text"];

    let body = of(
        json!({"input_prefix": "fn main() {", "input_suffix": "}", "cache_prompt": true, "t_max_prompt_ms": 500,
        "samplers": ["top_k", "top_p", "temperature", "infill"]}),
    );
    let filled = post(&server, "/infill", body.clone());
    assert_eq!(
        (&filled["content"], &filled["stop"], &filled["stop_type"]),
        (text, &json!(true), &json!("limit"))
    );
    assert_eq!(
        filled["tokens_evaluated"],
        expected["usage"]["prompt_tokens"]
    );
    assert_eq!(filled["tokens_predicted"], 12);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let streamed = events_of(&server.post("/infill", &streamed).text());
    let said: String = streamed
        .iter()
        .map(|e| e["content"].as_str().unwrap())
        .collect();
    assert_eq!(&json!(said), text);
    assert_eq!(streamed.last().unwrap()["stop"], true);

    // The start of the middle, and files of the same project.
    let expected = raw(format!(
        "{SEPARATOR}a.rs\nmod a;{PREFIX}fn {SUFFIX}}}{MIDDLE}main"
    ));
    let more = json!({"input_prefix": "fn ", "input_suffix": "}", "prompt": "main",
        "input_extra": [{"filename": "a.rs", "text": "mod a;"}]});
    assert_eq!(
        post(&server, "/infill", of(more))["content"],
        expected["choices"][0]["text"]
    );

    // The same through routes of other APIs.
    let more = json!({"prompt": "fn main() {", "suffix": "}"});
    assert_eq!(
        &post(&server, "/v1/completions", of(more))["choices"][0]["text"],
        text
    );
    let options =
        json!({"temperature": 0, "num_predict": 12, "ignore_eos": true, "repeat_penalty": 1});
    let more = json!({"prompt": "fn main() {", "suffix": "}", "stream": false, "options": options});
    assert_eq!(&post(&server, "/api/generate", more)["response"], text);
    let shown = post(&server, "/api/show", json!({}));
    assert!(
        shown["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("insert")),
        "{shown}"
    );
    // Texts spell no special tokens.
    let literal = json!({"input_prefix": MIDDLE, "input_suffix": ""});
    let literal = post(&server, "/infill", of(literal));
    assert!(
        literal["tokens_evaluated"].as_u64().unwrap() > 8,
        "{literal}"
    );
}

#[test]
fn what_is_refused_names_the_field() {
    let server = server();
    let cases = [
        (
            json!({"input_suffix": "a"}),
            "input_prefix",
            "`input_prefix` is missing",
        ),
        (
            json!({"input_prefix": 1, "input_suffix": "a"}),
            "input_prefix",
            "is 1; expected a string",
        ),
        (
            json!({"input_prefix": "a", "input_suffix": "a", "input_extra": [{"filename": "a"}]}),
            "input_extra[0].text",
            "`input_extra[0].text` is missing",
        ),
    ];
    for (body, param, part) in cases {
        let answer = server.post("/infill", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(answer.error().contains(part), "{}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param);
    }
    // A vocabulary without the tokens.
    let plain = shared();
    let body = json!({"model": MODEL, "input_prefix": "a", "input_suffix": "b"});
    let answer = plain.post("/infill", &body);
    assert_eq!(answer.status, 400);
    assert!(
        answer.error().contains("<|fim_prefix|>"),
        "{}",
        answer.error()
    );
}
