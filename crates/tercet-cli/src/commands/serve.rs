//! `tercet serve`: models and graphs behind HTTP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tercet::CompileOptions;
use tercet_models::{Family, ModelFiles, ScaledAdapter};
use tercet_serve::{Models, Placement, ServeOptions, Server, stop_signal};

use super::generate::{open_model, scaled_adapter};
use super::source::{bound, read_graph};
use super::writing::Drafting;
use super::{Arithmetic, Cache, device, positive};
use crate::error::{CliError, Outcome};
use crate::{output, progress};

/// The name of the embedded model.
const EMBEDDED: &str = "tiny-rust-llama";
/// The variable that a key is read from, as arguments can be seen by others on a machine.
const KEY: &str = "TERCET_API_KEY";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, a folder with safetensors, or a graph in text form (.tercet); as often as there are models [default:
    /// the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Vec<PathBuf>,
    /// An adapter that requests may name behind a language model's name, as `model:NAME`: a folder of PEFT or a GGUF file,
    /// with a scale as PATH=0.5. MODEL is needed where there are several models
    #[arg(long, value_name = "[MODEL:]NAME=PATH")]
    lora: Vec<String>,
    /// The address to listen on: by default only this machine reaches it
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    host: String,
    /// The port to listen on; 0 takes a free one, which is said
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,
    /// Texts written side by side for each language model, in one run; as many runs of each graph. One with --draft
    #[arg(long, visible_alias = "slots", default_value_t = 4, value_name = "N", value_parser = positive)]
    parallel: usize,
    /// Requests that wait for a slot of a model; more are refused
    #[arg(long, default_value_t = 64, value_name = "N")]
    queue: usize,
    /// The most seconds for a request, waiting included
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    deadline: u64,
    /// The most bytes of a request
    #[arg(long, default_value_t = 16 << 20, value_name = "BYTES", value_parser = positive)]
    body_bytes: usize,
    /// Tokens of a text at most, prompt included [default: as trained]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    context: Option<usize>,
    /// The upper bound of a symbol of the graphs, as NAME=N
    #[arg(short, long, value_name = "NAME=N", value_parser = bound)]
    bound: Vec<(String, usize)>,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// The float type that models are computed in; encoders take auto for f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Arithmetic::Auto)]
    dtype: Arithmetic,
    /// The type of the caches of language models [default: that of --dtype, f32 for auto]
    #[arg(long, value_name = "TYPE", value_enum)]
    cache_dtype: Option<Cache>,
    #[command(flatten)]
    drafting: Drafting,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let device = device(&args.device)?;
    let options = ServeOptions {
        slots: args.parallel,
        queue: args.queue,
        deadline: Duration::from_secs(args.deadline),
        body_bytes: args.body_bytes,
        api_key: key()?,
        ..ServeOptions::default()
    };
    let placement = Placement {
        device,
        dtype: args.dtype.dtype(),
        cache: args.cache_dtype.map(Cache::format),
        products: args.dtype.products(),
        context: args.context,
        adapters: Vec::new(),
        draft: None,
    };
    let spinner = progress::spinner("loading");
    let models = load(args, &placement, &options)?;
    spinner.finish_and_clear();
    let open = options.api_key.is_none();
    let names: Vec<String> = models.names().map(output::shown).collect();
    let server = Server::bind(&args.host, args.port, models, options)?;
    let address = server.address();
    output::note(format_args!(
        "serving {} on http://{address}",
        names.join(", ")
    ));
    if open && !address.ip().is_loopback() {
        output::note(format_args!(
            "note: anybody who reaches {address} is served; set {KEY} to ask for a key"
        ));
    }
    server.run(stop_signal())?;
    Ok(Outcome::Done)
}

/// The key of the environment, if there is one.
fn key() -> Result<Option<String>, CliError> {
    match std::env::var(KEY) {
        Ok(key) if key.is_empty() => Ok(None),
        Ok(key) => Ok(Some(key)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(CliError::Usage(format!("{KEY} is not UTF-8")))
        }
    }
}

fn load(args: &Args, placement: &Placement, options: &ServeOptions) -> Result<Models, CliError> {
    let mut models = Models::new();
    let adapters = Adapters::of(args)?;
    let mut draft = Offered::of(&args.drafting)?;
    let mut add = |models: &mut Models, name: &str, path: Option<&Path>| {
        let (files, what) = open_model(path)?;
        let placement = Placement {
            adapters: adapters.open(name, &files, &what)?,
            draft: draft.for_model(&files),
            ..placement.clone()
        };
        Ok::<(), CliError>(models.add_model(name, files, placement, options)?)
    };
    if args.model.is_empty() {
        add(&mut models, EMBEDDED, None)?;
    }
    for path in &args.model {
        let name = name(path);
        if path.extension().is_some_and(|e| e == "tercet") {
            let graph = read_graph(path)?;
            let bounds = args.bound.iter();
            let compile = bounds.fold(CompileOptions::new(), |o, (symbol, n)| o.bound(symbol, *n));
            models.add_graph(&name, &graph, &compile, placement, options)?;
        } else {
            add(&mut models, &name, Some(path))?;
        }
    }
    draft.check()?;
    Ok(models)
}

/// What `--draft` says, for language models.
struct Offered {
    draft: Option<tercet_serve::Drafting>,
    is_taken: bool,
}

impl Offered {
    fn of(drafting: &Drafting) -> Result<Offered, CliError> {
        let draft = drafting.served()?;
        let is_taken = draft.is_none();
        Ok(Offered { draft, is_taken })
    }

    /// Nothing for models that do not write; files that cannot be read are refused where they are compiled.
    fn for_model(&mut self, files: &ModelFiles) -> Option<tercet_serve::Drafting> {
        let writes =
            matches!(files.family(), Ok(Family::Decoder)) && !files.embeds_texts().unwrap_or(false);
        self.is_taken |= writes;
        self.draft.clone().filter(|_| writes)
    }

    /// # Errors
    /// [`CliError::Usage`] where no model is one that writes.
    fn check(&self) -> Result<(), CliError> {
        match self.is_taken {
            true => Ok(()),
            false => Err(CliError::Usage(
                "--draft is for language models of texts, and none is served; leave it out".into(),
            )),
        }
    }
}

/// The adapters of `--lora`: of each the model, its own name, and what is behind the `=`.
struct Adapters<'a>(Vec<(String, &'a str, &'a str)>);

impl<'a> Adapters<'a> {
    /// # Errors
    /// [`CliError::Usage`] where an argument has no name, or is for no model that is served.
    fn of(args: &'a Args) -> Result<Adapters<'a>, CliError> {
        let models: Vec<String> = match args.model.is_empty() {
            true => vec![EMBEDDED.to_string()],
            false => args.model.iter().map(|path| name(path)).collect(),
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
                    let why = "there are several models; say whose it is, as MODEL:NAME=PATH";
                    return Err(refused(why.into()));
                }
            };
            if !models.contains(&model) {
                let models = models.join(", ");
                let why = format!("there is no model `{model}`; there is: {models}");
                return Err(refused(why));
            }
            Ok((model, own, path))
        };
        let all = args.lora.iter().map(one);
        Ok(Adapters(all.collect::<Result<_, _>>()?))
    }

    /// Those of a model, read.
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

/// A model is called as its file or folder, without an ending.
fn name(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let stem = if whole.is_dir() {
        whole.file_name()
    } else {
        whole.file_stem()
    };
    stem.map_or_else(|| "model".to_string(), |s| s.to_string_lossy().into_owned())
}
