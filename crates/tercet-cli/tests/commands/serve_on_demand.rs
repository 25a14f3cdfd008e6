//! `tercet serve --models-dir` and `--models`, and `tercet mcp`.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{Scratch, bad, data, demo, serving, tercet};

const TINY: &str = "tiny-rust-llama-q8_0.gguf";

fn complete(server: &crate::common::Serving, model: &str) -> Value {
    let ask = json!({"model": model, "prompt": "fn", "max_tokens": 2, "temperature": 0});
    server.post("/v1/completions", &ask)["choices"][0]["text"].clone()
}

#[test]
fn a_folder_and_a_list_of_models_are_loaded_by_requests() {
    let scratch = Scratch::new("on-demand");
    std::fs::create_dir_all(scratch.path("models")).unwrap();
    for name in ["one", "two"] {
        std::fs::copy(demo(TINY), scratch.path(&format!("models/{name}.gguf"))).unwrap();
    }
    // A file that is no model, and one that is a part of another, do not stop the server.
    scratch.file("models/broken.gguf", b"GGUF");
    scratch.file("models/one-00002-of-00002.gguf", b"GGUF");
    std::fs::copy(demo(TINY), scratch.path("listed.gguf")).unwrap();
    let list = "memory = \"900MiB\"\nunload_after = 3600\n\
                [models.listed]\npath = \"listed.gguf\"\ncontext = 64\nparallel = 2\n\
                [models.words]\npath = \"WORDS\"\n";
    let words = data("encoders/sentence-c").replace('\\', "/");
    let list = scratch.file("models.toml", list.replace("WORDS", &words));
    let folder = scratch.path("models");
    let server = serving(&[
        "serve",
        "--models-dir",
        &folder,
        "--models",
        &list,
        "--port",
        "0",
        "--device",
        "cpu",
        "--log-format",
        "none",
    ]);
    let text = complete(&server, "one");
    for name in ["two", "listed", "one"] {
        assert_eq!(complete(&server, name), text, "{name}");
    }
    let embed = json!({"model": "words", "input": "a river"});
    assert!(server.post("/v1/embeddings", &embed)["data"][0]["embedding"].is_array());
    let long = json!({"model": "listed", "prompt": "a ".repeat(200), "max_tokens": 1});
    let (status, answer) = server.try_post("/v1/completions", &long);
    assert_eq!(status, 400, "{answer}");
    let none = json!({"model": "broken", "prompt": "fn"});
    let (status, answer) = server.try_post("/v1/completions", &none);
    assert_eq!(status, 404, "{answer}");
    assert!(answer.contains("listed, one, two"), "{answer}");
}

#[test]
fn a_wrong_list_of_models_names_the_place() {
    let scratch = Scratch::new("on-demand-wrong");
    for (text, code, named) in [
        ("[models.a]\npath = \"a\"\ncontxt = 1\n", 2, "contxt"),
        ("[models.a]\npath = \"a\"\ndtype = \"f8\"\n", 2, "dtype"),
        (
            "[models.a]\npath = \"a\"\npooling = \"most\"\n",
            2,
            "pooling",
        ),
        ("[models.a]\npath = \"a\"\nparallel = 0\n", 2, "parallel"),
        ("memory = \"much\"\n[models.a]\npath = \"a\"\n", 2, "memory"),
        ("[models.a]\npath = \"none.gguf\"\n", 1, "none.gguf"),
        ("", 2, "no model"),
        ("[models", 2, "models.toml"),
    ] {
        let list = scratch.file("models.toml", text);
        let args = ["serve", "--models", &list, "--port", "0", "--device", "cpu"];
        bad(&args, code, &[named]);
    }
    let empty = scratch.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let args = [
        "serve",
        "--models-dir",
        &empty,
        "--port",
        "0",
        "--device",
        "cpu",
    ];
    bad(&args, 2, &["no GGUF file"]);
}

/// Standard error of a chat of one line with the tools of a server.
fn chat_with(server: &str) -> String {
    let model = demo(TINY);
    let args = [
        "chat", "-m", &model, "--device", "cpu", "-c", "512", "-n", "4", "--mcp", server,
    ];
    let mut command = tercet(&args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "fn").unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    assert!(!ended.stdout.is_empty(), "{said}");
    said
}

#[test]
fn a_chat_lists_the_tools_of_a_process_and_of_a_url() {
    let program = env!("CARGO_BIN_EXE_tercet");
    let model = demo(TINY);
    let process = format!("'{program}' mcp -m '{model}' --device cpu -c 64");
    let server = serving(&[
        "serve", "-m", &model, "--port", "0", "--device", "cpu", "-c", "64",
    ]);
    let url = format!("http://{}/mcp", server.address());
    for server in [process, url] {
        let said = chat_with(&server);
        assert!(said.contains("tools: generate"), "{server}: {said}");
    }
}

#[test]
fn an_mcp_client_calls_tools_over_standard_input() {
    let model = demo(TINY);
    let mut command = tercet(&["mcp", "-m", &model, "--device", "cpu", "-c", "128"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |message: Value| {
        writeln!(input, "{message}").unwrap();
        let line = lines.next().unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    let params = json!({"protocolVersion": "2025-06-18"});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    assert_eq!(ask(hello)["result"]["serverInfo"]["name"], "tercet");
    let listed = ask(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    assert_eq!(listed["result"]["tools"][0]["name"], "generate");
    let arguments = json!({"prompt": "fn", "max_tokens": 2});
    let params = json!({"name": "generate", "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params});
    assert_eq!(ask(call)["result"]["isError"], false);
    drop(input);
    assert!(child.wait().unwrap().success());
}
