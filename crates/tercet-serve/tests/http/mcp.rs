//! The MCP server: messages over HTTP and on streams, and its tools.

use std::io::BufReader;

use serde_json::{Value, json};
use tercet_models::ModelFiles;
use tercet_serve::{ModelRegistry, ServeOptions, serve_mcp};

use crate::server::{Running, data, placement, shared, start_folders};

fn call(server: &Running, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let answer = server.post("/mcp", &message);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(
        (&answer["jsonrpc"], &answer["id"]),
        (&json!("2.0"), &json!(7))
    );
    answer
}

fn tool(server: &Running, name: &str, arguments: Value) -> Value {
    let answer = call(
        server,
        "tools/call",
        json!({"name": name, "arguments": arguments}),
    );
    answer["result"].clone()
}

fn names(server: &Running) -> Vec<String> {
    let tools = call(server, "tools/list", json!({}));
    let tools = tools["result"]["tools"].as_array().unwrap().iter();
    tools
        .map(|tool| tool["name"].as_str().unwrap().to_string())
        .collect()
}

#[test]
fn a_client_initializes_and_lists_the_tools_of_the_models() {
    let server = shared();
    for (asked, given) in [("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")] {
        let params = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = call(&server, "initialize", params);
        assert_eq!(answer["result"]["protocolVersion"], given);
        assert_eq!(answer["result"]["serverInfo"]["name"], "tercet");
    }
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(server.post("/mcp", &note).status, 202);
    assert_eq!(call(&server, "ping", json!({}))["result"], json!({}));
    // The server has a language model and no encoder.
    assert_eq!(names(&server), ["generate"]);
    assert_eq!(server.get("/mcp").status, 405);
}

#[test]
fn generate_answers_as_the_chat_route() {
    let server = shared();
    let arguments = json!({"prompt": "What is a trait?", "max_tokens": 8, "temperature": 0});
    let result = tool(&server, "generate", arguments);
    let messages = json!([{"role": "user", "content": "What is a trait?"}]);
    let ask = json!({"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0});
    let want = server.post("/v1/chat/completions", &ask).json();
    let want = &want["choices"][0]["message"]["content"];
    assert_eq!(result["isError"], false);
    assert_eq!(&result["content"][0]["text"], want);
    assert_eq!(&result["structuredContent"]["text"], want);
}

#[test]
fn encoders_embed_and_search() {
    let server = start_folders(&["encoders/sentence-c"], ServeOptions::default());
    assert_eq!(names(&server), ["embed", "search"]);
    let texts = json!(["a river", "the house"]);
    let result = tool(&server, "embed", json!({"texts": texts}));
    let want = server.post(
        "/v1/embeddings",
        &json!({"model": "sentence-c", "input": texts}),
    );
    let want = want.json();
    assert_eq!(
        result["structuredContent"]["embeddings"][1],
        want["data"][1]["embedding"]
    );
    let documents = json!(["the house", "a river", "write"]);
    let arguments = json!({"query": "a river", "documents": documents, "top": 2});
    let found = tool(&server, "search", arguments);
    let results = found["structuredContent"]["results"].as_array().unwrap();
    assert_eq!(
        (results.len(), &results[0]["document"]),
        (2, &json!("a river"))
    );
    assert!(results[0]["score"].as_f64().unwrap() > 0.999, "{found}");
}

#[test]
fn rerankers_search_as_the_rerank_route() {
    let server = start_folders(&["encoders/reranker-a"], ServeOptions::default());
    assert_eq!(names(&server), ["search"]);
    let documents = json!(["the house", "a river", "write"]);
    let found = tool(
        &server,
        "search",
        json!({"query": "water", "documents": documents}),
    );
    let ask = json!({"model": "reranker-a", "query": "water", "documents": documents});
    let want = server.post("/v1/rerank", &ask).json();
    let results = found["structuredContent"]["results"].as_array().unwrap();
    for (got, want) in results.iter().zip(want["results"].as_array().unwrap()) {
        assert_eq!(got["index"], want["index"]);
        assert_eq!(got["score"], want["relevance_score"]);
    }
}

#[cfg(feature = "audio")]
#[test]
fn speech_is_transcribed() {
    use base64::Engine;
    let server = start_folders(&["speech/whisper-c"], ServeOptions::default());
    let audio = std::fs::read(data("speech/speech.flac")).unwrap();
    let audio = base64::engine::general_purpose::STANDARD.encode(audio);
    let result = tool(&server, "transcribe", json!({"audio": audio}));
    assert_eq!(result["isError"], false, "{result}");
    assert!(result["structuredContent"]["seconds"].as_f64().unwrap() > 0.0);
    let wrong = tool(&server, "transcribe", json!({"audio": "*"}));
    assert_eq!(wrong["isError"], true, "{wrong}");
}

#[test]
fn bad_messages_and_bad_arguments_are_errors() {
    let server = shared();
    for (body, code) in [
        ("{", -32700),
        ("[]", -32600),
        (r#"{"id": 1, "method": "ping"}"#, -32600),
        (r#"{"jsonrpc": "2.0", "id": [1], "method": "ping"}"#, -32600),
    ] {
        let json = [("content-type", "application/json")];
        let answer = server.send("/mcp", &json, body.as_bytes());
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["code"], code, "{body}");
    }
    let unknown = call(&server, "server/discover", json!({}));
    assert_eq!(unknown["error"]["code"], -32601);
    let unknown = call(
        &server,
        "tools/call",
        json!({"name": "embed", "arguments": {}}),
    );
    assert_eq!(unknown["error"]["code"], -32602);
    for arguments in [
        json!({}),
        json!({"prompt": 1}),
        json!({"prompt": "x", "model": "none"}),
        json!({"prompt": "x", "other": 1}),
        json!({"prompt": "x", "temperature": "hot"}),
    ] {
        let result = tool(&server, "generate", arguments.clone());
        assert_eq!(result["isError"], true, "{arguments}");
    }
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let of = |name, value| {
        let headers = [("content-type", "application/json"), (name, value)];
        server.send("/mcp", &headers, ping.as_bytes()).status
    };
    assert_eq!(of("mcp-protocol-version", "2025-06-18"), 200);
    assert_eq!(of("mcp-protocol-version", "1999-01-01"), 400);
    // A page of another origin may not call it, even under a name that resolves to this machine.
    assert_eq!(of("origin", "http://evil.example"), 403);
}

#[test]
fn a_client_on_streams_gets_an_answer_to_each_request() {
    let options = ServeOptions {
        body_bytes: 1 << 16,
        ..ServeOptions::default()
    };
    let mut models = ModelRegistry::new();
    let files = ModelFiles::open(data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf")).unwrap();
    models
        .add_model("tiny", files, placement(Some(96)), &options)
        .unwrap();
    let ask = |id: u64| {
        let arguments = json!({"prompt": "fn", "max_tokens": 4, "temperature": 0});
        let params = json!({"name": "generate", "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    let long = "x".repeat(1 << 17);
    let lines = [
        json!({"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}).to_string(),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
        String::new(),
        ask(1).to_string(),
        long,
        "no JSON".to_string(),
        ask(2).to_string(),
    ];
    let input = BufReader::new(std::io::Cursor::new(lines.join("\n")));
    let mut output = Vec::new();
    serve_mcp(models, options, input, &mut output).unwrap();
    let output = String::from_utf8(output).unwrap();
    let answers: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 5, "{output}");
    let of = |id: Value| answers.iter().find(|answer| answer["id"] == id).unwrap();
    assert_eq!(of(json!("i"))["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(of(json!(1))["result"], of(json!(2))["result"]);
    assert_eq!(of(json!(1))["result"]["isError"], false);
    let codes: Vec<i64> = answers
        .iter()
        .filter_map(|answer| answer["error"]["code"].as_i64())
        .collect();
    assert_eq!(codes, [-32600, -32700]);
}
