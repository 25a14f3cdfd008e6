//! Chat templates in the files of models.

use std::path::Path;

use tercet_files::json::read_optional_json;
use tercet_files::mmap::read_small;
use tercet_files::{FileError, FolderError, Gguf, GgufError};

use super::error::DataError;
use super::template::MAX_TEMPLATE_BYTES;
use crate::tokenizer::Tokenizer;

const MAX_TEMPLATE_FILE: u64 = MAX_TEMPLATE_BYTES as u64;

/// The files of a model that contain its chat template.
///
/// ```
/// use tercet_text::Tokenizer;
/// use tercet_text::dataset::{ChatTemplate, TemplateFiles};
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-rust-llama");
/// # let folder = std::path::Path::new(data);
/// let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
/// let template = ChatTemplate::from_model(TemplateFiles::Folder(folder), &tokenizer)?;
/// assert!(template.warning().is_some()); // the model has no template
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum TemplateFiles<'a> {
    /// A Hugging Face folder.
    Folder(&'a Path),
    /// A GGUF file.
    Gguf(&'a Gguf),
}

impl TemplateFiles<'_> {
    pub(super) fn source(self, tokenizer: &Tokenizer) -> Result<TemplateSource, ChatTemplateError> {
        match self {
            TemplateFiles::Folder(folder) => folder_source(folder),
            TemplateFiles::Gguf(gguf) => gguf_source(gguf, tokenizer),
        }
    }
}

/// The reason why the chat template of a model cannot be loaded.
///
/// ```
/// use tercet_text::Tokenizer;
/// use tercet_text::dataset::{ChatTemplate, ChatTemplateError, TemplateFiles};
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-rust-llama");
/// # let folder = std::path::Path::new(data);
/// let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
/// let files = TemplateFiles::Folder(folder);
/// let error = ChatTemplate::from_model_with(files, &tokenizer, "unheard-of").unwrap_err();
/// assert!(matches!(error, ChatTemplateError::Data(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// The file of a template cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A JSON file of the folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The metadata of a GGUF file is invalid.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The template is invalid.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// The template-related data in a model's files.
pub(super) struct TemplateSource {
    pub(super) plain: Option<String>,
    pub(super) with_tools: Option<String>,
    pub(super) tokens: Vec<(String, String)>,
}

/// The sources of a folder's default chat template and of its template for tools.
///
/// # Errors
/// [`ChatTemplateError`]: a file cannot be read, or its content is of another type.
pub fn chat_templates(folder: &Path) -> Result<[Option<String>; 2], ChatTemplateError> {
    let TemplateSource {
        plain, with_tools, ..
    } = folder_source(folder)?;
    Ok([plain, with_tools])
}

fn folder_source(folder: &Path) -> Result<TemplateSource, ChatTemplateError> {
    const TOKENS: [&str; 6] = [
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "sep_token",
        "cls_token",
    ];
    let config = read_optional_json(&folder.join("tokenizer_config.json"))?;
    let config = config.unwrap_or_default();
    let text_of = |value: &serde_json::Value| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.map(str::to_owned)
    };
    let tokens = TOKENS.iter().filter_map(|name| {
        let token = text_of(config.get(*name)?)?;
        Some(((*name).to_owned(), token))
    });
    let tokens = tokens.collect();
    let path = folder.join("chat_template.jinja");
    if path.exists() {
        let with_tools = folder.join("additional_chat_templates/tool_use.jinja");
        let with_tools = with_tools.exists().then_some(with_tools);
        return Ok(TemplateSource {
            plain: Some(template_file(&path)?),
            with_tools: with_tools.map(|path| template_file(&path)).transpose()?,
            tokens,
        });
    }
    // Models with a processor: its template takes precedence over the tokenizer's.
    if let Some(own) = read_optional_json(&folder.join("chat_template.json"))? {
        let found = "something else";
        let plain = own.get("chat_template").and_then(|own| own.as_str());
        let plain = plain.ok_or(DataError::BadTemplateField { found })?;
        return Ok(TemplateSource {
            plain: Some(plain.to_owned()),
            with_tools: None,
            tokens,
        });
    }
    let (plain, with_tools) = match config.get("chat_template") {
        None | Some(serde_json::Value::Null) => (None, None),
        Some(serde_json::Value::String(source)) => (Some(source.clone()), None),
        Some(other) => {
            let found = "something else";
            let plain = named(other).ok_or(DataError::BadTemplateField { found })?;
            (Some(plain), called(other, "tool_use"))
        }
    };
    Ok(TemplateSource {
        plain,
        with_tools,
        tokens,
    })
}

fn template_file(path: &Path) -> Result<String, ChatTemplateError> {
    let bytes = read_small(path, MAX_TEMPLATE_FILE)?;
    let text = String::from_utf8(bytes).map_err(|_| DataError::BadTemplateField {
        found: "a file that is not UTF-8",
    })?;
    Ok(text)
}

/// The template called `default` in a list of named templates, else the first.
fn named(list: &serde_json::Value) -> Option<String> {
    let first = || list.as_array()?.first()?.get("template")?.as_str();
    called(list, "default").or_else(|| first().map(str::to_owned))
}

/// The template called `name` in a list of named templates.
fn called(list: &serde_json::Value, name: &str) -> Option<String> {
    let mut all = list.as_array()?.iter();
    let named = |entry: &&serde_json::Value| {
        entry.get("name").and_then(serde_json::Value::as_str) == Some(name)
    };
    all.find(named)?
        .get("template")?
        .as_str()
        .map(str::to_owned)
}

fn gguf_source(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<TemplateSource, ChatTemplateError> {
    const TOKENS: [(&str, &str); 4] = [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ];
    let meta = gguf.metadata();
    let mut tokens = Vec::new();
    for (name, key) in TOKENS {
        let id = meta.opt_token(key)?;
        if let Some(token) = id.and_then(|id| tokenizer.id_to_token(id)) {
            tokens.push((name.to_owned(), token));
        }
    }
    let source = meta.opt_str("tokenizer.chat_template")?;
    let with_tools = meta.opt_str("tokenizer.chat_template.tool_use")?;
    Ok(TemplateSource {
        plain: source.map(str::to_owned),
        with_tools: with_tools.map(str::to_owned),
        tokens,
    })
}
