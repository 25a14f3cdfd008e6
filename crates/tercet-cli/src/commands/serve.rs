//! `tercet serve`: serves models and graphs over HTTP.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tercet::{CompileError, CompileOptions};
use tercet_models::{ModelFamily, ModelFiles, ScaledAdapter};
use tercet_serve::{
    GraphParts, HttpServer, LogFormat, ModelConfig, ModelRegistry, RequestLog, ServeError,
    ServeOptions, TlsIdentity, stop_signal,
};

use super::generate::{open_model, scaled_adapter};
use super::generation::{ChatTemplateArgs, RopeArgs, SpeculativeArgs, capacity};
use super::sampling_args::text_of;
use super::source::{bound, read_graph};
use super::texts::PoolingArgs;
use super::{ComputePrecision, KvCacheDType, PlacementArgs, onnx, positive};
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

/// Name of the embedded model.
const EMBEDDED: &str = "tiny-rust-llama";
/// Environment variable of the API key.
const KEY: &str = "TERCET_API_KEY";

#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// GGUF file, folder with safetensors, ONNX model (.onnx), or graph in text form (.tercet);
    /// repeatable [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Vec<PathBuf>,
    /// Adapter that requests select as `model:NAME`: a PEFT folder or a GGUF file, optionally with
    /// a weight as PATH=SCALE; repeatable. MODEL is required if several models are served
    #[arg(long, value_name = "[MODEL:]NAME=PATH")]
    lora: Vec<String>,
    /// Address to listen on; the default accepts only connections from this machine
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    host: String,
    /// Port to listen on; 0 selects a free port and prints it
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,
    /// Sequences that each language model generates in parallel, and parallel runs of each graph; 1
    /// with --draft
    #[arg(long, visible_alias = "slots", default_value_t = 4, value_name = "N", value_parser = positive)]
    parallel: usize,
    /// Maximum requests waiting for a slot of a model; more are rejected
    #[arg(long, default_value_t = 1024, value_name = "N")]
    queue: usize,
    /// Time limit of a request in seconds, queueing included
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    deadline: u64,
    /// Maximum size of a request body in bytes
    #[arg(long, default_value_t = 16 << 20, value_name = "BYTES", value_parser = positive)]
    body_bytes: usize,
    /// Maximum tokens of a sequence, prompt included; 0 means as trained [default: what the memory
    /// holds for all slots, at most as trained, and at most 8192 on a CPU]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = capacity)]
    context: Option<usize>,
    /// Upper bound of a symbol of the graphs and ONNX models, as NAME=N; repeatable
    #[arg(short, long, value_name = "NAME=N", value_parser = bound)]
    bound: Vec<(String, usize)>,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Float type for computation; for encoders auto means f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ComputePrecision::Auto)]
    dtype: ComputePrecision,
    /// KV cache type of language models [default: the --dtype, f32 for auto]
    #[arg(long, value_name = "TYPE", value_enum)]
    cache_dtype: Option<KvCacheDType>,
    /// Name of the model for requests [default: its file name without the extension]
    #[arg(short, long, value_name = "NAME")]
    alias: Option<String>,
    /// Key that requests must send, or one of several; repeatable. Other users of this machine can
    /// read it in the list of processes: prefer the variable TERCET_API_KEY or --api-key-file
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with one key per line; requests must send one of the keys. Empty lines and lines that
    /// begin with # are ignored
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
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
    #[command(flatten)]
    pooling: PoolingArgs,
    #[command(flatten)]
    template: ChatTemplateArgs,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    drafting: SpeculativeArgs,
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
    let device = args.placement.open()?;
    let options = ServeOptions {
        slots: args.parallel,
        queue: args.queue,
        deadline: Duration::from_secs(args.deadline),
        body_bytes: args.body_bytes,
        api_keys: keys(args)?,
        allowed_origins: args.allow_origin.clone(),
        tls: tls(args)?,
        chat_template: args.template.source()?,
        rope: args.rope.overrides()?,
        pooling: args.pooling.mode(),
        log: args.log_format.log(),
        ..ServeOptions::default()
    };
    let placement = ModelConfig {
        device,
        dtype: args.dtype.dtype(),
        cache: args.cache_dtype.map(KvCacheDType::format),
        matmul_precision: args.dtype.matmul_precision(),
        context: args.context,
        adapters: Vec::new(),
        draft: None,
    };
    let spinner = progress::spinner("loading");
    let models = load(args, &placement, &options)?;
    spinner.finish_and_clear();
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
    let server = HttpServer::bind(&args.host, args.port, models, options)?;
    let address = server.address();
    output::print_note(format_args!(
        "serving {} on {scheme}://{address}",
        names.join(", ")
    ));
    for context in contexts {
        output::print_note(format_args!("note: {context}"));
    }
    if open && !address.ip().is_loopback() {
        output::print_note(format_args!(
            "note: {address} accepts requests without a key; set {KEY} to require one"
        ));
    }
    server.run(stop_signal())?;
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

fn load(
    args: &ServeArgs,
    placement: &ModelConfig,
    options: &ServeOptions,
) -> Result<ModelRegistry, CliError> {
    let mut models = ModelRegistry::new();
    let adapters = AdapterAliases::new(args)?;
    let mut draft = DraftModelOption::new(&args.drafting)?;
    let mut add = |models: &mut ModelRegistry, name: &str, path: Option<&Path>| {
        let (files, what) = open_model(path)?;
        let placement = ModelConfig {
            adapters: adapters.open(name, &files, &what)?,
            draft: draft.for_model(&files),
            ..placement.clone()
        };
        Ok::<(), CliError>(models.add_model(name, files, placement, options)?)
    };
    if args.alias.is_some() && args.model.len() > 1 {
        let text = "--alias names one model, and several are served; leave it out";
        return Err(CliError::Usage(text.into()));
    }
    if args.model.is_empty() {
        add(&mut models, args.alias.as_deref().unwrap_or(EMBEDDED), None)?;
    }
    for path in &args.model {
        let name = args.alias.clone().unwrap_or_else(|| name(path));
        if path.extension().is_some_and(|e| e == "tercet") {
            let graph = read_graph(path)?;
            let bounds = args.bound.iter();
            let compile = bounds.fold(CompileOptions::new(), |o, (symbol, n)| o.bound(symbol, *n));
            let added = models.add_graph(&name, &graph, &compile, placement, options);
            added.map_err(graph_error)?;
        } else if onnx::is_onnx(path) {
            let (parts, compile) = onnx_parts(path, &args.bound)?;
            let added = models.add_graph_parts(&name, &parts, &compile, placement, options);
            added.map_err(graph_error)?;
        } else {
            add(&mut models, &name, Some(path))?;
        }
    }
    draft.check()?;
    Ok(models)
}

/// The command's remedy for a symbol without a bound.
fn graph_error(e: ServeError) -> CliError {
    match &e {
        ServeError::Graph {
            name,
            source: CompileError::Unbounded { symbol },
        } => CliError::Usage(format!(
            "the size `{symbol}` of `{}` has no upper bound; set it with --bound {symbol}=N",
            output::escape_line(name)
        )),
        _ => e.into(),
    }
}

/// Imports an ONNX model. Symbols that import cannot express are replaced by their bounds.
fn onnx_parts(
    path: &Path,
    bounds: &[(String, usize)],
) -> Result<(GraphParts, CompileOptions), CliError> {
    let model = onnx::read(path)?.describe();
    let is_text = |ports: &[tercet_onnx::OnnxPort]| ports.iter().any(|p| p.dtype == "string");
    if is_text(&model.inputs) || is_text(&model.outputs) {
        let path = output::escape_line(&path.display().to_string());
        return Err(CliError::Usage(format!(
            "{path} has inputs or outputs of strings, which the server does not support; run it with `tercet run`"
        )));
    }
    let onnx::OpenedOnnxModel {
        imported, fixed, ..
    } = onnx::open(path, &[], bounds)?;
    let mut compile = CompileOptions {
        bounds: imported.bounds.clone(),
        ..CompileOptions::new()
    };
    for (symbol, n) in bounds {
        if !fixed.iter().any(|s| s.name() == symbol) {
            compile = compile.bound(symbol, *n);
        }
    }
    let counted = imported.counted;
    let parts = GraphParts {
        params: imported.params,
        visible_outputs: Some(imported.outputs.len()),
        trim: match counted.is_empty() {
            true => None,
            false => Some(Arc::new(move |outputs| tercet_onnx::cut(&counted, outputs))),
        },
        ..GraphParts::from(imported.graph)
    };
    Ok((parts, compile))
}

/// Speculative decoding options of `--draft`, for the served language models.
struct DraftModelOption {
    draft: Option<tercet_serve::SpeculativeOptions>,
    is_used: bool,
}

impl DraftModelOption {
    fn new(drafting: &SpeculativeArgs) -> Result<DraftModelOption, CliError> {
        let draft = drafting.served()?;
        let is_taken = draft.is_none();
        Ok(DraftModelOption {
            draft,
            is_used: is_taken,
        })
    }

    /// Returns the draft options for generative language models and `None` for other models.
    /// Unreadable files are treated as other models here; compiling them reports the error.
    fn for_model(&mut self, files: &ModelFiles) -> Option<tercet_serve::SpeculativeOptions> {
        let writes = matches!(files.family(), Ok(ModelFamily::Decoder))
            && !files.embeds_texts().unwrap_or(false);
        self.is_used |= writes;
        self.draft.clone().filter(|_| writes)
    }

    /// # Errors
    /// [`CliError::Usage`] if `--draft` is set and no served model generates text.
    fn check(&self) -> Result<(), CliError> {
        match self.is_used {
            true => Ok(()),
            false => Err(CliError::Usage(
                "--draft requires a text-only language model, and none is served; leave it out"
                    .into(),
            )),
        }
    }
}

/// Adapters of `--lora`: model name, adapter name, and the text after `=`.
struct AdapterAliases<'a>(Vec<(String, &'a str, &'a str)>);

impl<'a> AdapterAliases<'a> {
    /// # Errors
    /// [`CliError::Usage`] if an argument has no adapter name or names a model that is not served.
    fn new(args: &'a ServeArgs) -> Result<AdapterAliases<'a>, CliError> {
        let models: Vec<String> = match (&args.alias, args.model.is_empty()) {
            (Some(alias), _) => vec![alias.clone()],
            (None, true) => vec![EMBEDDED.to_string()],
            (None, false) => args.model.iter().map(|path| name(path)).collect(),
        };
        let one = |argument: &'a String| {
            let refused = |why: String| CliError::Usage(format!("--lora {argument}: {why}"));
            let (who, path) = argument
                .split_once('=')
                .ok_or_else(|| refused("expected [MODEL:]NAME=PATH".into()))?;
            let (model, own) = match (who.rsplit_once(':'), models.as_slice()) {
                (Some((model, own)), _) => (model.to_string(), own),
                (None, [model]) => (model.clone(), who),
                (None, _) => {
                    let why =
                        "several models are served; name the adapter's model as MODEL:NAME=PATH";
                    return Err(refused(why.into()));
                }
            };
            if !models.contains(&model) {
                let models = models.join(", ");
                let why = format!("unknown model `{model}`; served: {models}");
                return Err(refused(why));
            }
            Ok((model, own, path))
        };
        let all = args.lora.iter().map(one);
        Ok(AdapterAliases(all.collect::<Result<_, _>>()?))
    }

    /// Reads the adapters of one model.
    fn open(
        &self,
        model: &str,
        files: &ModelFiles,
        what: &str,
    ) -> Result<Vec<(String, ScaledAdapter)>, CliError> {
        let own = self.0.iter().filter(|(of, ..)| of == model);
        let read = |(_, name, path): &(String, &str, &str)| {
            let config = files.decoder_spec().map_err(CliError::model(what))?;
            Ok((name.to_string(), scaled_adapter(path, Some(&config))?))
        };
        own.map(read).collect()
    }
}

/// Name of a served model: its file name without the extension, its folder name, or the last part
/// of a name in a store.
fn name(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let stem = if whole.is_file() {
        whole.file_stem()
    } else {
        whole.file_name()
    };
    stem.map_or_else(|| "model".to_string(), |s| s.to_string_lossy().into_owned())
}
