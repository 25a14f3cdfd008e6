//! Names of models in arguments, before they are parsed: `-hf NAME`, `serve NAME` and `run NAME`.

use std::ffi::OsString;
use std::path::Path;

use tercet_hub::HubName;

/// Marks the name of a model that may be downloaded.
pub(super) const PREFIX: &str = "hf:";

/// Commands whose model has no flag.
const WITHOUT_FLAG: [&str; 5] = ["inspect", "pull", "rm", "show", "list"];

/// Turns `-hf NAME` and `--hf-file FILE` into the model of the command, `serve NAME` into
/// `serve --model NAME`, and `run NAME` into a chat, unless NAME ends in `.onnx`. Arguments after
/// `--` stay.
pub fn rewritten(given: Vec<OsString>) -> Vec<OsString> {
    positional(flags(given))
}

/// The value of an option: after `=`, or the next argument.
fn value_of(
    given: &str,
    names: &[&str],
    rest: &mut std::iter::Peekable<std::vec::IntoIter<OsString>>,
) -> Option<String> {
    if let Some((name, value)) = given.split_once('=') {
        return names.contains(&name).then(|| value.to_string());
    }
    if !names.contains(&given) {
        return None;
    }
    let value = rest.next_if(|next| next.to_str().is_some_and(|next| !next.starts_with('-')))?;
    value.into_string().ok()
}

fn flags(given: Vec<OsString>) -> Vec<OsString> {
    let command = given.get(1).and_then(|command| command.to_str());
    let is_plain = command.is_some_and(|command| WITHOUT_FLAG.contains(&command));
    // Without a command the flag is not understood, and the parser says so.
    let has_command = command.is_some_and(|command| !command.starts_with('-'));
    if !has_command {
        return given;
    }
    let mut kept: Vec<OsString> = Vec::with_capacity(given.len() + 2);
    let (mut model, mut file) = (None, None);
    let mut rest = given.into_iter().peekable();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else {
            kept.push(argument);
            continue;
        };
        if text == "--" {
            kept.push(argument);
            break;
        }
        let repos = ["-hf", "-hfr", "--hf-repo"];
        if let Some(name) = value_of(text, &repos, &mut rest) {
            if !is_plain {
                kept.push("--model".into());
            }
            model = Some(kept.len());
            kept.push(format!("{PREFIX}{}", name.trim_start_matches(PREFIX)).into());
        } else if let Some(name) = value_of(text, &["-hff", "--hf-file"], &mut rest) {
            file = Some(name);
        } else if let Some(name) = value_of(text, &["-hfd", "-hfrd", "--hf-repo-draft"], &mut rest)
        {
            kept.push("--draft".into());
            kept.push(format!("{PREFIX}{name}").into());
        } else {
            // Without a value the parser reports the long name.
            kept.push(match text {
                "-hf" | "-hfr" => "--hf-repo".into(),
                "-hff" => "--hf-file".into(),
                _ => argument,
            });
        }
    }
    kept.extend(rest);
    match (model, file) {
        (Some(at), Some(file)) => {
            kept[at].push("/");
            kept[at].push(file);
        }
        (None, Some(file)) => kept.extend(["--hf-file".into(), file.into()]),
        (_, None) => {}
    }
    kept
}

fn positional(mut given: Vec<OsString>) -> Vec<OsString> {
    match given.get(1).and_then(|command| command.to_str()) {
        Some("serve") => {
            let count = given[2..]
                .iter()
                .take_while(|argument| !argument.to_string_lossy().starts_with('-'))
                .count();
            let models = given[2..2 + count].to_vec();
            let flagged = models.into_iter().flat_map(|model| {
                let model = downloadable(&model).map_or(model, Into::into);
                ["--model".into(), model]
            });
            given.splice(2..2 + count, flagged.collect::<Vec<OsString>>());
        }
        Some("run") => {
            let name = given.get(2).and_then(downloadable);
            let is_onnx = name.as_ref().is_some_and(|name| name.ends_with(".onnx"));
            match name {
                Some(name) if is_onnx => given[2] = name.into(),
                Some(name) => {
                    given.splice(1..3, ["chat".into(), "--model".into(), name.into()]);
                }
                None => {}
            }
        }
        _ => {}
    }
    given
}

/// The marked name, if an argument names a model of the hub and is no path.
fn downloadable(argument: &OsString) -> Option<String> {
    let text = argument.to_str().filter(|text| !text.starts_with('-'))?;
    let is_known = || {
        let found = super::hub().ok().and_then(|hub| hub.find(text).ok());
        found.flatten().is_some() && !Path::new(text).exists()
    };
    let name = text.strip_prefix(PREFIX).unwrap_or(text);
    let is_name = HubName::from_argument(text).is_some() || is_known();
    is_name.then(|| format!("{PREFIX}{name}"))
}
