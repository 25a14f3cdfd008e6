//! `tercet serve`: serves models and graphs over HTTP.

pub(crate) mod catalog;
mod prefix_cache;
mod served_models;

use std::io::Write;
use std::path::PathBuf;

use tercet_models::PrefixStore;
use tercet_serve::{
    HttpServer, LogFormat, RequestLog, ServeOptions, TlsIdentity, serve_mcp, stop_signal,
};

use self::served_models::ServedModelArgs;
use super::sampling_args::text_of;
use super::{memory_size, positive};
use crate::error::{CliError, CommandOutcome};
use crate::output;

/// Environment variable of the API key.
const KEY: &str = "TERCET_API_KEY";

#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    models: ServedModelArgs,
    /// Address to listen on; the default accepts only connections from this machine
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    host: String,
    /// Port to listen on; 0 selects a free port and prints it
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,
    /// Maximum size of a request body in bytes
    #[arg(long, default_value_t = 16 << 20, value_name = "BYTES", value_parser = positive)]
    body_bytes: usize,
    /// Key that requests must send, or one of several; repeatable. Other users of this machine can
    /// read it in the list of processes: prefer the variable TERCET_API_KEY or --api-key-file
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with one key per line; requests must send one of the keys. Empty lines and lines that
    /// begin with # are ignored
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Reuse cached prefixes only for requests of the same API key, so that no key can find out by
    /// times or token counts what another one has sent
    #[arg(long)]
    isolate: bool,
    /// Origin of other web pages whose scripts may call the server, such as https://app.example; `*`
    /// means all; repeatable
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// PEM file with the certificates of the server, for HTTPS
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        visible_alias = "ssl-cert-file"
    )]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        visible_alias = "ssl-key-file"
    )]
    tls_key: Option<PathBuf>,
    /// Format of the log on standard error, which has a line for each request
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ServeLog::Text)]
    log_format: ServeLog,
}

/// Bytes of a flag.
fn size(text: &str) -> Result<u64, String> {
    memory_size(text).ok_or_else(|| {
        "expected a size in bytes, or with a unit such as 512MiB or 8GiB".to_string()
    })
}

/// Values of `--log-format`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ServeLog {
    /// Time, client, method, path, status, seconds, and NAME=VALUE pairs
    Text,
    /// A JSON object
    Json,
    /// No log
    None,
}

impl ServeLog {
    fn log(self) -> Option<RequestLog> {
        let format = match self {
            ServeLog::Text => LogFormat::Text,
            ServeLog::Json => LogFormat::Json,
            ServeLog::None => return None,
        };
        // The lines of requests that end at the same time must not mix, so each is one call. If
        // standard error is closed, they are lost.
        let print = |line: &str| drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
        Some(RequestLog::new(format, print))
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<CommandOutcome, CliError> {
    let options = ServeOptions {
        body_bytes: args.body_bytes,
        api_keys: keys(args)?,
        isolate: args.isolate,
        allowed_origins: args.allow_origin.clone(),
        tls: tls(args)?,
        log: args.log_format.log(),
        ..args.models.options()?
    };
    if options.isolate && options.api_keys.is_empty() {
        return Err(CliError::Usage(format!(
            "--isolate separates API keys, and the server has none; set {KEY} or --api-key-file"
        )));
    }
    let models = args.models.load(&options)?;
    let open = options.api_keys.is_empty();
    let scheme = if options.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let names: Vec<String> = models.names().map(output::escape_line).collect();
    let contexts: Vec<String> = models
        .contexts()
        .map(|(name, fit)| format!("{}: {}", output::escape_line(name), fit.describe()))
        .collect();
    let has_folder = |store: &PrefixStore| store.options().folder.is_some();
    let prefixes: Vec<String> = match options.prefix_store.as_ref().is_some_and(has_folder) {
        true => models.stored_prefixes().map(found_prefixes).collect(),
        false => Vec::new(),
    };
    let server = HttpServer::bind(&args.host, args.port, models, options)?;
    let address = server.address();
    output::print_note(format_args!(
        "serving {} on {scheme}://{address}",
        names.join(", ")
    ));
    for note in contexts.into_iter().chain(prefixes) {
        output::print_note(format_args!("note: {note}"));
    }
    if open && !address.ip().is_loopback() {
        output::print_note(format_args!(
            "note: {address} accepts requests without a key; set {KEY} to require one"
        ));
    }
    server.run(stop_signal())?;
    Ok(CommandOutcome::Done)
}

/// The stored prefixes of a model, and those that it ignores.
fn found_prefixes((name, [own, others]): (&str, [usize; 2])) -> String {
    let own = tercet::counted(own, "stored prefix", "stored prefixes");
    let name = output::escape_line(name);
    match others {
        0 => format!("{name}: {own}"),
        _ => format!("{name}: {own}; {others} of other models or options are ignored"),
    }
}

#[derive(clap::Args)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    models: ServedModelArgs,
}

/// `tercet mcp`: an MCP server on standard input and output.
pub(crate) fn run_mcp(args: &McpArgs) -> Result<CommandOutcome, CliError> {
    let options = args.models.options()?;
    let models = args.models.load(&options)?;
    let input = std::io::BufReader::new(std::io::stdin());
    serve_mcp(models, options, input, &mut std::io::stdout())?;
    Ok(CommandOutcome::Done)
}

/// The API keys of the flags, or else that of the environment, if set.
fn keys(args: &ServeArgs) -> Result<Vec<String>, CliError> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = text_of("-", Some(path))?;
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(str::to_string));
        if keys.len() == before {
            return Err(CliError::Usage(format!(
                "`{}` has no API key; write one per line",
                path.display()
            )));
        }
    }
    if keys.iter().any(String::is_empty) {
        return Err(CliError::Usage("the API key is empty; leave it out".into()));
    }
    if !keys.is_empty() {
        return Ok(keys);
    }
    match std::env::var(KEY) {
        Ok(key) if key.is_empty() => Ok(Vec::new()),
        Ok(key) => Ok(vec![key]),
        Err(std::env::VarError::NotPresent) => Ok(Vec::new()),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(CliError::Usage(format!("{KEY} is not UTF-8")))
        }
    }
}

/// The certificate and private key of the flags.
fn tls(args: &ServeArgs) -> Result<Option<TlsIdentity>, CliError> {
    match (&args.tls_cert, &args.tls_key) {
        (Some(certificates), Some(key)) => {
            Ok(Some(TlsIdentity::from_pem_files(certificates, key)?))
        }
        (None, None) | (Some(_), None) | (None, Some(_)) => Ok(None),
    }
}
