use serde_json::json;
#[cfg(any(feature = "hub", feature = "serve"))]
use tercet_cli::internals::mcp::event;
use tercet_cli::internals::mcp::{split_words, text_of};

#[test]
fn quotes_keep_spaces() {
    let words = |line| split_words(line).map(|words| words.join("|"));
    assert_eq!(words(" a  b "), Ok("a|b".into()));
    assert_eq!(words(r#"a "b c" 'd "e' """#), Ok(r#"a|b c|d "e|"#.into()));
    assert_eq!(words(r"a\ b c\\d"), Ok(r"a b|c\d".into()));
    assert_eq!(words(r"C:\tools\x.exe y"), Ok(r"C:\tools\x.exe|y".into()));
    assert!(words("a 'b").is_err());
}

#[test]
fn results_become_text() {
    let image = json!({"type": "image", "data": "", "mimeType": "image/png"});
    let content = json!([{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]);
    assert_eq!(text_of(&json!({"content": content})), "a\n[image]\nb");
    let structured = json!({"content": [], "structuredContent": {"x": 1}});
    assert_eq!(text_of(&structured), "{\"x\":1}");
    assert_eq!(text_of(&json!({})), "");
}

#[cfg(any(feature = "hub", feature = "serve"))]
#[test]
fn the_answer_is_found_among_events() {
    let stream = "event: message\ndata: {\"method\":\"ping\",\"id\":1}\n\n: note\ndata:\n\ndata: {\"id\":1,\ndata: \"result\":2}\n\n";
    let answer = event(stream.as_bytes(), &json!({"id": 1}));
    assert_eq!(answer, Ok(json!({"id": 1, "result": 2})));
    assert!(event(stream.as_bytes(), &json!({"id": 2})).is_err());
}
