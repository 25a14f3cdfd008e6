//! Tools of MCP servers in a conversation. <https://modelcontextprotocol.io/specification>

pub(crate) mod client;
#[cfg(any(feature = "hub", feature = "serve"))]
pub(crate) mod http;
pub(crate) mod stdio;

use serde_json::{Value, json};
use tercet_models::answer::{AnswerTool, ToolCall};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, Role};

use self::client::McpClient;
use crate::error::CliError;
use crate::output;

/// Maximum bytes of a result that the model reads.
const MAX_RESULT_BYTES: usize = 64 << 10;

/// MCP servers of a conversation.
#[derive(clap::Args)]
pub struct McpClientArgs {
    /// MCP server whose tools the model may call: a command line, or the URL of a server; repeatable. Each
    /// call is shown, and runs only if you agree
    #[arg(long, value_name = "COMMAND|URL")]
    pub mcp: Vec<String>,
    /// Tool that runs without asking; `*` means all; repeatable
    #[arg(long, value_name = "TOOL", requires = "mcp")]
    pub mcp_allow: Vec<String>,
    /// Key that is sent to MCP servers with a URL, as a bearer token; prefer the variable TERCET_MCP_KEY
    #[arg(long, value_name = "KEY", requires = "mcp")]
    pub mcp_key: Option<String>,
}

/// Environment variable of the key.
const KEY: &str = "TERCET_MCP_KEY";

/// Reads a line of the user; `None` at the end of the input.
type AskUser<'a> = &'a mut dyn FnMut() -> Result<Option<String>, CliError>;

/// A tool of a server.
struct OfferedTool {
    name: String,
    /// Index of the server.
    server: usize,
    /// The function as templates read it.
    function: Value,
}

/// The tools of all servers.
#[derive(Default)]
pub struct McpTools {
    servers: Vec<McpClient>,
    tools: Vec<OfferedTool>,
    allowed: Vec<String>,
}

impl McpTools {
    /// Starts or opens the servers, and lists their tools.
    ///
    /// # Errors
    /// [`CliError::Mcp`] if a server does not answer as the protocol says.
    pub fn open(args: &McpClientArgs) -> Result<McpTools, CliError> {
        let key = args.mcp_key.clone().or_else(|| std::env::var(KEY).ok());
        let key = key.filter(|key| !key.is_empty());
        let mut all = McpTools {
            allowed: args.mcp_allow.clone(),
            ..McpTools::default()
        };
        for server in &args.mcp {
            let mut client = McpClient::open(server, key.as_deref())?;
            let listed = client.tools()?;
            let at = all.servers.len();
            for tool in listed {
                all.add(at, &tool, server);
            }
            all.servers.push(client);
        }
        if !args.mcp.is_empty() {
            let names: Vec<String> = all.tools.iter().map(|tool| shown(&tool.name)).collect();
            output::print_note(format_args!("tools: {}", names.join(", ")));
        }
        Ok(all)
    }

    /// Adds a tool. Names are unique: the first server that has a name goes before.
    fn add(&mut self, server: usize, tool: &Value, of: &str) {
        let Some(name) = tool.get("name").and_then(Value::as_str) else {
            return;
        };
        if self.tools.iter().any(|known| known.name == name) {
            output::print_note(format_args!(
                "note: {} has another tool {}, which is left out",
                shown(of),
                shown(name)
            ));
            return;
        }
        let parameters = tool.get("inputSchema").cloned();
        let parameters = parameters.unwrap_or(json!({"type": "object", "properties": {}}));
        let description = tool.get("description").cloned().unwrap_or(json!(""));
        self.tools.push(OfferedTool {
            name: name.to_string(),
            server,
            function: json!({"name": name, "description": description, "parameters": parameters}),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// The JSON of each tool's function.
    pub fn functions(&self) -> Vec<String> {
        self.tools.iter().map(|t| t.function.to_string()).collect()
    }

    /// The tools as chat templates read them; `None` without tools.
    ///
    /// # Errors
    /// [`CliError::Template`] if a schema cannot be a value of a template.
    pub(super) fn for_template(&self) -> Result<Option<TemplateValue>, CliError> {
        if self.tools.is_empty() {
            return Ok(None);
        }
        let tools = self.tools.iter();
        let tools = tools.map(|tool| json!({"type": "function", "function": tool.function}));
        let text = Value::from_iter(tools).to_string();
        let value = TemplateValue::from_json(&text);
        value
            .map(Some)
            .map_err(|e| CliError::Template(tercet::one_line(&e)))
    }

    /// The tools as the parser of answers reads them.
    pub(super) fn for_parser(&self) -> Vec<AnswerTool> {
        let tool = |tool: &OfferedTool| {
            let parameters = tool.function.get("parameters").cloned();
            AnswerTool::new(&tool.name, parameters)
        };
        self.tools.iter().map(tool).collect()
    }

    /// Calls a tool if the user agrees, and returns the message with its result. Errors of the call are
    /// results, which the model can read.
    ///
    /// # Errors
    /// [`CliError`] of the terminal.
    pub fn call(&mut self, call: &ToolCall, ask: AskUser<'_>) -> Result<ChatMessage, CliError> {
        let mut text = match self.result(call, ask)? {
            Ok(text) => text,
            Err(reason) => format!("error: {reason}"),
        };
        if text.len() > MAX_RESULT_BYTES {
            let end = (0..=MAX_RESULT_BYTES).rev();
            let end = end.into_iter().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
            text += "\n[cut]";
        }
        output::print_note(format_args!(
            "{} returned {}",
            shown(&call.name),
            brief(&text)
        ));
        let fields = vec![
            ("content", TemplateValue::text(&text)),
            ("tool_call_id", TemplateValue::text(&call.id)),
            ("name", TemplateValue::text(&call.name)),
        ];
        Ok(ChatMessage::from_fields(Role::Tool, fields))
    }

    /// The result of a call, or why there is none.
    fn result(
        &mut self,
        call: &ToolCall,
        ask: AskUser<'_>,
    ) -> Result<Result<String, String>, CliError> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.name) else {
            return Ok(Err(format!("unknown tool `{}`", call.name)));
        };
        let server = tool.server;
        let arguments: Value = match serde_json::from_str(&call.arguments) {
            Ok(arguments @ Value::Object(_)) => arguments,
            Ok(_) => return Ok(Err("the arguments are no JSON object".into())),
            Err(e) => return Ok(Err(format!("the arguments are no JSON: {e}"))),
        };
        if !self.is_allowed(&call.name) && !self.asked(call, ask)? {
            return Ok(Err("the user refused the call".into()));
        }
        Ok(match self.servers[server].call(&call.name, arguments) {
            Ok(text) => Ok(text),
            Err(e) => Err(tercet::one_line(&e)),
        })
    }

    fn is_allowed(&self, tool: &str) -> bool {
        let mut allowed = self.allowed.iter();
        allowed.any(|known| known == "*" || known == tool)
    }

    /// Asks the user whether a call may run.
    fn asked(&mut self, call: &ToolCall, ask: AskUser<'_>) -> Result<bool, CliError> {
        output::print_note(format_args!(
            "run {} with {}? y: yes, a: always, anything else: no",
            shown(&call.name),
            output::escape_line(&call.arguments)
        ));
        let Some(line) = ask()? else {
            return Ok(false);
        };
        match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(true),
            "a" | "always" => {
                self.allowed.push(call.name.clone());
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

fn shown(name: &str) -> String {
    output::escape_line(name)
}

/// The start of a text on one line.
fn brief(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    let start: String = text.chars().take(MAX_CHARS).collect();
    let end = if start.len() < text.len() { " ..." } else { "" };
    format!("{}{end}", output::escape_line(&start))
}
