//! Names of models in arguments, after they are parsed: they become paths.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use tercet_hub::{CachedModel, Hub, HubName, ModelFormat, PullOptions};

use super::arguments::PREFIX;
use super::pull_progress::BarProgress;
use crate::commands::DeviceArgs;
use crate::error::CliError;

/// Options whose values are models.
const MODELS: [&str; 3] = ["--model", "-m", "--draft"];
/// The option whose values are adapters.
const ADAPTER: &str = "--lora";
/// Commands whose first argument is a model.
const POSITIONAL: [&str; 2] = ["inspect", "run"];
/// Commands that read names themselves.
const OWN: [&str; 4] = ["pull", "list", "rm", "show"];

/// Replaces names of models by their paths; none if nothing changes. Names with `hf:` are downloaded
/// if the cache lacks them; other names only have a meaning if they are no paths.
///
/// # Errors
/// [`CliError::Hub`] if a model cannot be downloaded, and [`CliError::Usage`] if an adapter is given as
/// a model.
pub(crate) fn resolved(given: &[OsString]) -> Result<Option<Vec<OsString>>, CliError> {
    let command = given.get(1).and_then(|command| command.to_str());
    let Some(command) = command.filter(|command| !OWN.contains(command)) else {
        return Ok(None);
    };
    let mut changed = given.to_vec();
    let mut is_changed = false;
    let mut set = |at: usize, value: OsString| {
        is_changed = true;
        changed[at] = value;
    };
    let end = given.iter().position(|argument| argument == "--");
    let end = end.unwrap_or(given.len());
    let mut names = ModelNames { given, hub: None };
    let mut at = 2;
    while at < end {
        let (argument, text) = (at, given[at].to_str().unwrap_or_default());
        at += 1;
        let (option, value) = match text.split_once('=') {
            Some((option, value)) if text.starts_with('-') => (option, Some(value)),
            _ => (text, None),
        };
        let is_adapter = option == ADAPTER;
        if !is_adapter && !MODELS.contains(&option) {
            if POSITIONAL.contains(&command)
                && at == 3
                && !text.starts_with('-')
                && let Some(found) = names.model(text)?
            {
                set(argument, found);
            }
            continue;
        }
        let found = match (value, given.get(at).and_then(|next| next.to_str())) {
            (Some(value), _) => {
                let found = names.of_option(value, is_adapter)?;
                found.map(|found| (argument, joined(option, &found)))
            }
            (None, Some(next)) if at < end => {
                at += 1;
                let found = names.of_option(next, is_adapter)?;
                found.map(|found| (at - 1, found))
            }
            (None, _) => None,
        };
        if let Some((at, value)) = found {
            set(at, value);
        }
    }
    Ok(is_changed.then_some(changed))
}

fn joined(option: &str, value: &OsStr) -> OsString {
    let mut argument = OsString::from(option);
    argument.push("=");
    argument.push(value);
    argument
}

/// The names of one command line.
struct ModelNames<'a> {
    given: &'a [OsString],
    hub: Option<Hub>,
}

impl ModelNames<'_> {
    fn of_option(&mut self, value: &str, is_adapter: bool) -> Result<Option<OsString>, CliError> {
        match is_adapter {
            true => self.adapter(value),
            false => self.model(value),
        }
    }

    /// The argument for the model with a name; none if the text is no name of a model that is there.
    fn model(&mut self, text: &str) -> Result<Option<OsString>, CliError> {
        let Some(model) = self.find(text)? else {
            return Ok(None);
        };
        if model.format == ModelFormat::Adapter {
            let base = base_model(&model.path).unwrap_or_else(|| "its base model".to_string());
            return Err(CliError::Usage(format!(
                "{text} is an adapter of {base}; give that as the model, and the adapter as --lora {text}"
            )));
        }
        Ok(Some(argument(text, &model)))
    }

    /// The argument for an adapter, `[[MODEL:]NAME=]ADAPTER[=SCALE]`.
    fn adapter(&mut self, text: &str) -> Result<Option<OsString>, CliError> {
        let mut parts: Vec<OsString> = text.split('=').map(Into::into).collect();
        let mut is_changed = false;
        for part in &mut parts {
            let name = part.to_string_lossy().into_owned();
            if !name.contains('/') && !name.starts_with(PREFIX) {
                continue;
            }
            if let Some(model) = self.find(&name)? {
                *part = model.path.into_os_string();
                is_changed = true;
            }
        }
        Ok(is_changed.then(|| parts.join(OsStr::new("="))))
    }

    fn find(&mut self, text: &str) -> Result<Option<CachedModel>, CliError> {
        let name = text.strip_prefix(PREFIX);
        if name.is_none() && (text.is_empty() || Path::new(text).exists()) {
            return Ok(None);
        }
        if self.hub.is_none() {
            match (super::hub(), name) {
                (Ok(hub), _) => self.hub = Some(hub),
                // A path needs no hub.
                (Err(_), None) => return Ok(None),
                (Err(e), Some(_)) => return Err(e),
            }
        }
        let Some(hub) = &self.hub else {
            return Ok(None);
        };
        let Some(name) = name else {
            return Ok(hub.find(text)?);
        };
        let device = self.device();
        let free = || device.open().ok()?.free_memory_bytes();
        let options = PullOptions {
            free_bytes: Some(&free),
            ..PullOptions::default()
        };
        let progress = BarProgress::new(name);
        let opened = hub.open(name, &options, &progress);
        progress.finish();
        Ok(Some(opened?))
    }

    /// The device of the command. Opening it sets the number of threads, as the command does later.
    fn device(&self) -> DeviceArgs {
        let value = |names: [&str; 2]| {
            let mut all = self.given.iter().map(|argument| argument.to_str());
            while let Some(argument) = all.next() {
                let Some(argument) = argument else { continue };
                if names.contains(&argument) {
                    return all.next().flatten();
                }
                let inline = argument.split_once('=');
                if let Some((_, value)) = inline.filter(|(name, _)| names.contains(name)) {
                    return Some(value);
                }
            }
            None
        };
        let is_on_cpu = value(["--n-gpu-layers", "--gpu-layers"]) == Some("0");
        DeviceArgs {
            device: match value(["--device", "--device"]) {
                None | Some("auto") if is_on_cpu => "cpu".to_string(),
                device => device.unwrap_or("auto").to_string(),
            },
            threads: value(["--threads", "-t"]).and_then(|n| n.parse().ok().filter(|n| *n > 0)),
        }
    }
}

/// The path of a model, or its full name if that leads to the same folder: results and requests show
/// the name then.
fn argument(text: &str, model: &CachedModel) -> OsString {
    let plain = text.strip_prefix(PREFIX).unwrap_or(text);
    let has_revision = plain
        .parse::<HubName>()
        .is_ok_and(|name| name.revision() != "main");
    let is_folder = model.format == ModelFormat::Safetensors && model.path.is_dir();
    match is_folder && !has_revision && !Path::new(&model.repo).exists() {
        true => model.repo.clone().into(),
        false => model.path.clone().into_os_string(),
    }
}

/// The base model in the configuration of an adapter.
fn base_model(folder: &Path) -> Option<String> {
    let text = std::fs::read(folder.join("adapter_config.json")).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let base = json.get("base_model_name_or_path")?.as_str()?;
    Some(crate::output::clip(base, 200))
}
