use tercet_cli::internals::{McpClientArgs, McpTools};
use tercet_models::answer::ToolCall;
use tercet_models::dataset::Role;

/// A server that answers four requests and names its last one.
const SERVER: &str = r#"read a; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}'
read b; read c
echo '{"jsonrpc":"2.0","id":"s","method":"ping"}'; read pong
echo '{"jsonrpc":"2.0","method":"notifications/message","params":{}}'
echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"add","inputSchema":{"type":"object"}},{"name":"add"}]}}'
read d; echo '{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"3"}]}}'
read e; echo '{"jsonrpc":"2.0","id":4,"result":{"isError":true,"content":[{"type":"text","text":"no"}]}}'
read f; echo 'no JSON'
"#;

fn tools(allowed: &[&str]) -> McpTools {
    let name = format!("tercet-mcp-{}-{}", std::process::id(), allowed.len());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, SERVER).unwrap();
    let tools = McpTools::open(&McpClientArgs {
        mcp: vec![format!("sh {}", path.display())],
        mcp_allow: allowed.iter().map(|name| name.to_string()).collect(),
        mcp_key: None,
    });
    std::fs::remove_file(&path).unwrap();
    tools.unwrap()
}

fn add(arguments: &str) -> ToolCall {
    ToolCall {
        id: "1".into(),
        name: "add".into(),
        arguments: arguments.into(),
    }
}

#[test]
fn a_call_runs_only_if_the_user_agrees() {
    let mut tools = tools(&[]);
    assert_eq!(tools.functions().len(), 1);
    let mut answers = vec![None, Some("a"), Some("n"), Some("")];
    let mut asked = 0;
    let mut call = |call: &ToolCall| {
        let mut ask = || {
            asked += 1;
            Ok(answers.pop().unwrap().map(str::to_string))
        };
        let message = tools.call(call, &mut ask).unwrap();
        assert_eq!(message.role(), Role::Tool);
        message.content().to_string()
    };
    let refused = "error: the user refused the call";
    assert_eq!([call(&add("{}")), call(&add("{}"))], [refused; 2]);
    // Always: the next calls run without a question.
    assert_eq!(call(&add("{}")), "3");
    assert!(call(&add("{}")).ends_with("failed: no"));
    assert!(call(&add("{}")).contains("no JSON"));
    assert!(call(&add("{}")).contains("has ended"));
    assert!(call(&add("[]")).contains("no JSON object"));
    let other = ToolCall {
        name: "sub".into(),
        ..add("{}")
    };
    assert!(call(&other).contains("unknown tool"));
    assert_eq!(asked, 3);
}

#[test]
fn an_allowed_tool_runs_without_a_question() {
    let mut tools = tools(&["add"]);
    let message = tools.call(&add("{}"), &mut || unreachable!("not asked"));
    assert_eq!(message.unwrap().content(), "3");
}

#[test]
fn servers_that_do_not_speak_mcp_are_errors() {
    for (server, named) in [
        ("/missing/program", "cannot be started"),
        ("true", "the MCP server `true`"),
        ("echo {}", "the MCP server"),
        ("'", "open quote"),
        ("http://127.0.0.1:9/mcp", "does not answer"),
    ] {
        let args = McpClientArgs {
            mcp: vec![server.to_string()],
            mcp_allow: Vec::new(),
            mcp_key: None,
        };
        let error = McpTools::open(&args).err().unwrap().to_string();
        assert!(error.contains(named), "{server}: {error}");
    }
}
