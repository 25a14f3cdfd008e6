//! The models of `tercet serve` and `tercet mcp`: their flags, and loading.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tercet::{CompileError, CompileOptions};
use tercet_models::{ModelFamily, ModelFiles, ScaledAdapter};
use tercet_serve::{GraphParts, ModelConfig, ModelRegistry, ServeError, ServeOptions};

use super::super::generate::{open_model, scaled_adapter};
use super::super::generation::{ChatTemplateArgs, RopeArgs, SpeculativeArgs, capacity};
use super::super::source::{bound, read_graph};
use super::super::texts::PoolingArgs;
use super::super::{ComputePrecision, KvCacheDType, PlacementArgs, onnx, positive};
use super::catalog::{OnDemandArgs, OnDemandDefaults, name};
use super::prefix_cache::PrefixCacheArgs;
use crate::error::CliError;
use crate::{output, progress};

/// Name of the embedded model.
const EMBEDDED: &str = "tiny-rust-llama";

/// The models that a server has, and their options.
#[derive(clap::Args)]
pub(crate) struct ServedModelArgs {
    /// GGUF file, folder with safetensors, ONNX model (.onnx), or graph in text form (.tercet), which
    /// stays loaded; repeatable [default: the embedded model, if no other flag serves models]
    #[arg(short, long, value_name = "PATH")]
    model: Vec<PathBuf>,
    /// Adapter that requests select as `model:NAME`: a PEFT folder or a GGUF file, optionally with
    /// a weight as PATH=SCALE; repeatable. MODEL is required if several models are served
    #[arg(long, value_name = "[MODEL:]NAME=PATH")]
    lora: Vec<String>,
    /// Sequences that each language model generates in parallel, and parallel runs of each graph
    #[arg(long, visible_alias = "slots", default_value_t = 4, value_name = "N", value_parser = positive)]
    parallel: usize,
    /// Maximum requests waiting for a slot of a model; more are rejected
    #[arg(long, default_value_t = 1024, value_name = "N")]
    queue: usize,
    /// Maximum seconds that a request waits for a slot; after that it is rejected [default: its
    /// deadline]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86400))]
    queue_seconds: Option<u64>,
    /// Time limit of a request in seconds, queueing included
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    deadline: u64,
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
    /// KV cache type of language models [default: that of --dtype; for auto f16 on GPUs that
    /// multiply f16 faster and with weights in f16 or quantized, else f32]
    #[arg(long, alias = "cache-type-k", value_name = "TYPE", value_enum)]
    cache_dtype: Option<KvCacheDType>,
    /// Name of the model for requests [default: its file name without the extension]
    #[arg(short, long, value_name = "NAME")]
    alias: Option<String>,
    #[command(flatten)]
    pooling: PoolingArgs,
    #[command(flatten)]
    template: ChatTemplateArgs,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    drafting: SpeculativeArgs,
    #[command(flatten)]
    prefix_cache: PrefixCacheArgs,
    #[command(flatten)]
    on_demand: OnDemandArgs,
}

impl ServedModelArgs {
    /// The options of a server that the flags set.
    pub(super) fn options(&self) -> Result<ServeOptions, CliError> {
        Ok(ServeOptions {
            slots: self.parallel,
            queue: self.queue,
            queue_time: self.queue_seconds.map(Duration::from_secs),
            deadline: Duration::from_secs(self.deadline),
            chat_template: self.template.source()?,
            rope: self.rope.overrides()?,
            pooling: self.pooling.mode(),
            adapter_folder: self.on_demand.adapter_folder()?,
            prefix_store: self.prefix_cache.open(),
            ..ServeOptions::default()
        })
    }

    /// Opens the device and loads the models, except those that are loaded on demand.
    pub(super) fn load(&self, options: &ServeOptions) -> Result<ModelRegistry, CliError> {
        let placement = ModelConfig {
            device: self.placement.open()?,
            dtype: self.dtype.dtype(),
            cache: self.cache_dtype.map(KvCacheDType::format),
            matmul_precision: self.dtype.matmul_precision(),
            context: self.context,
            adapters: Vec::new(),
            draft: None,
        };
        let spinner = progress::spinner("loading");
        let models = load(self, &placement, options)?;
        spinner.finish_and_clear();
        Ok(models)
    }
}

fn load(
    args: &ServedModelArgs,
    placement: &ModelConfig,
    options: &ServeOptions,
) -> Result<ModelRegistry, CliError> {
    let catalog = args.on_demand.read()?;
    let mut models = ModelRegistry::new().with_limits(catalog.limits);
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
    if args.model.is_empty() && !args.on_demand.serves_models() {
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
    let defaults = OnDemandDefaults {
        config: placement,
        options,
    };
    catalog.add(&mut models, &defaults)?;
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
    fn new(args: &'a ServedModelArgs) -> Result<AdapterAliases<'a>, CliError> {
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
