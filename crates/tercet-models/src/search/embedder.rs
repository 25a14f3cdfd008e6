//! The embedding model of an index, and the digest that identifies it.

use std::path::Path;

use sha2::{Digest, Sha256};
use tercet::Device;

use super::files::hexadecimal;
use super::{Hit, SearchError, SearchIndex};
use crate::error::Error;
use crate::family::ModelFamily;
use crate::open::{EmbeddingPrompt, EncoderOptions, ModelFiles};
use tercet_networks::{Embedder, ImageEmbedder, ModelError, PoolingMode, SentenceModule};

/// Number of bytes from each end of a tensor that are part of the model's digest.
const ENDS: usize = 2048;

/// The folder's names of query prompts and of document prompts.
const QUERY: [&str; 1] = ["query"];
const DOCUMENT: [&str; 3] = ["document", "passage", "corpus"];

/// A digest of a model: its configuration, tokenizer and modules. For each tensor, the digest
/// includes the name, dtype, shape, and both ends of its bytes.
pub(super) fn digest_of(files: &ModelFiles) -> Result<String, Error> {
    let ModelFiles::Hf(folder) = files else {
        let reason = "an index requires the folder of an encoder, not a GGUF file";
        return Err(ModelError::Unsupported(reason.into()).into());
    };
    let mut digest = Sha256::new();
    let mut add = |part: &[u8]| {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    };
    let config = serde_json::Value::Object(folder.config().clone());
    add(config.to_string().as_bytes());
    for name in [
        "tokenizer.json",
        "tokenizer.model",
        "preprocessor_config.json",
    ] {
        let path = folder.dir().join(name);
        let bytes = match path.exists() {
            true => std::fs::read(&path).map_err(|source| SearchError::Folder { path, source })?,
            false => Vec::new(),
        };
        add(&bytes);
    }
    for (file, info) in folder.weights().tensors() {
        add(info.name().as_bytes());
        add(format!("{} {:?}", info.dtype().name(), info.shape()).as_bytes());
        let bytes = file.data(info);
        add(&bytes[..bytes.len().min(ENDS)]);
        add(&bytes[bytes.len().saturating_sub(ENDS)..]);
    }
    if files.family()? != ModelFamily::Vision {
        let said = files.sentence()?;
        let modules = &said.modules;
        let pooling = (&modules.modes, modules.include_prompt, said.lower_case);
        add(format!("{pooling:?}").as_bytes());
        for module in &modules.then {
            match module {
                SentenceModule::Dense(dense) => {
                    add(format!("dense {:?}", dense.activation).as_bytes());
                    add(dense.weight.bytes());
                    add(dense.bias.as_ref().map_or(&[], |bias| bias.bytes()));
                }
                SentenceModule::Normalize => add(b"normalize"),
                SentenceModule::Truncate(dims) => add(format!("truncate {dims}").as_bytes()),
            }
        }
    }
    Ok(hexadecimal(&digest.finalize()))
}

/// The text of a prompt. By default the prompt is the folder's prompt of one of these names, else
/// the folder's default prompt.
fn prompt(files: &ModelFiles, asked: &EmbeddingPrompt, names: &[&str]) -> Result<String, Error> {
    if files.family()? == ModelFamily::Vision {
        if *asked != EmbeddingPrompt::Default {
            let reason = "prompts are supported only for text encoders";
            return Err(ModelError::Unsupported(reason.into()).into());
        }
        return Ok(String::new());
    }
    let prompts = files.sentence()?.prompts;
    let named = names.iter().find(|name| prompts.named.contains_key(**name));
    let text = match (asked, named, &prompts.default) {
        (EmbeddingPrompt::Text(text), ..) => text,
        (EmbeddingPrompt::Named(name), ..) | (EmbeddingPrompt::Default, None, Some(name)) => {
            prompts.get(name)?
        }
        (EmbeddingPrompt::Default, Some(name), _) => prompts.get(name)?,
        (EmbeddingPrompt::Default, None, None) => "",
    };
    Ok(text.to_string())
}

/// Rejects a pooling for image-text models, whose vectors have only one.
pub(super) fn check_pooling(files: &ModelFiles, asked: Option<PoolingMode>) -> Result<(), Error> {
    if asked.is_some() && files.family()? == ModelFamily::Vision {
        let reason = "a pooling requires a text encoder or a language model; leave it out";
        return Err(ModelError::Unsupported(reason.into()).into());
    }
    Ok(())
}

/// The prompt for passages.
pub(super) fn document_prompt(
    files: &ModelFiles,
    asked: &EmbeddingPrompt,
) -> Result<String, Error> {
    prompt(files, asked, &DOCUMENT)
}

/// The encoder of texts or of images.
pub(super) enum EmbedderKind {
    Text(Box<Embedder>),
    Image(Box<ImageEmbedder>),
}

impl EmbedderKind {
    pub(super) fn width(&self) -> usize {
        match self {
            EmbedderKind::Text(embedder) => embedder.width(),
            EmbedderKind::Image(encoder) => encoder.width(),
        }
    }

    /// Normalized vectors of texts or image files; `None` for vectors that cannot be normalized.
    pub(super) fn unit_vectors(
        &mut self,
        items: &[String],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Option<Vec<f32>>>, Error> {
        let rows = match self {
            EmbedderKind::Text(embedder) => embedder.embed_with_progress(items, progress)?,
            EmbedderKind::Image(encoder) => encoder.embed_files_with_progress(items, progress)?,
        };
        Ok(rows.into_iter().map(unit).collect())
    }
}

/// Normalizes a vector; `None` if it has no direction.
fn unit(mut row: Vec<f32>) -> Option<Vec<f32>> {
    let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
    let length = squares.sqrt();
    if !(length.is_finite() && length > 0.0) {
        return None;
    }
    for x in &mut row {
        *x = (f64::from(*x) / length) as f32;
    }
    Some(row)
}

/// The type of a query.
///
/// ```no_run
/// use tercet_models::search::{SearchQuery, Searcher};
/// use tercet_models::{EncoderOptions, ModelFiles};
/// let (files, device) = (ModelFiles::open("clip-vit-base-patch32")?, tercet::Device::cpu());
/// let options = EncoderOptions::default();
/// let mut by_image =
///     Searcher::open("photos.index", &files, &device, &options, SearchQuery::Image)?;
/// assert!(by_image.find("cat.jpg", 5)?.len() <= 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SearchQuery {
    /// A text.
    Text,
    /// An image file, for vision models.
    Image,
}

/// An index with the model that produced it.
///
/// ```no_run
/// use tercet_models::search::{SearchQuery, Searcher};
/// use tercet_models::{EncoderOptions, ModelFiles};
/// let (files, device) = (ModelFiles::open("all-MiniLM-L6-v2")?, tercet::Device::cpu());
/// let options = EncoderOptions::default();
/// let mut searcher = Searcher::open("notes.index", &files, &device, &options, SearchQuery::Text)?;
/// let hits = searcher.find("how to cook rice", 5)?;
/// assert!(hits.len() <= 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Searcher {
    index: SearchIndex,
    side: EmbedderKind,
}

impl Searcher {
    /// Opens an index for queries of this type. The prompt in `options` applies to queries; by
    /// default it is the folder's query prompt. The query vectors are cut to the width of the
    /// vectors that the index stores, and have its pooling.
    ///
    /// # Errors
    /// [`Error::Search`] for an index that is damaged, belongs to another model or has another
    /// pooling than `options`; [`Error`] of the model.
    pub fn open(
        path: impl AsRef<Path>,
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        query: SearchQuery,
    ) -> Result<Searcher, Error> {
        let path = path.as_ref();
        let index = SearchIndex::open(path)?;
        index.check(path, &digest_of(files)?, None)?;
        if index.is_empty() {
            let path = path.to_path_buf();
            return Err(SearchError::NoVectors { path }.into());
        }
        check_pooling(files, options.pooling)?;
        let made = index.settings.pooling;
        if options.pooling.is_some() && options.pooling != made {
            return Err(SearchError::OtherPooling {
                path: path.to_path_buf(),
                made: made.map_or("the model's", PoolingMode::name),
                asked: options.pooling.map_or("", PoolingMode::name),
            }
            .into());
        }
        let prompt = prompt(files, &options.prompt, &QUERY)?;
        let options = EncoderOptions {
            prompt: EmbeddingPrompt::Text(prompt),
            dims: index.settings.dims,
            pooling: made,
            ..options.clone()
        };
        let side = match query {
            SearchQuery::Text => EmbedderKind::Text(Box::new(files.embedder(device, &options)?)),
            SearchQuery::Image => {
                EmbedderKind::Image(Box::new(files.image_embedder(device, &options)?))
            }
        };
        let (own, width) = (side.width(), index.width);
        if own != width {
            return Err(ModelError::Unsupported(format!(
                "the model's vectors have {own} elements, but the index has {width}"
            ))
            .into());
        }
        Ok(Searcher { index, side })
    }

    /// The index.
    pub fn index(&self) -> &SearchIndex {
        &self.index
    }

    /// The `n` nearest results for a text or an image file, best first.
    ///
    /// # Errors
    /// [`Error`] of the model; [`Error::Search`] for a query without a direction.
    pub fn find(&mut self, query: &str, n: usize) -> Result<Vec<Hit>, Error> {
        let mut rows = self
            .side
            .unit_vectors(&[query.to_string()], &mut |_| true)?;
        let row = rows
            .pop()
            .flatten()
            .ok_or_else(|| SearchError::NoDirection {
                what: format!("the query {query:?}"),
            })?;
        Ok(self.index.nearest(&row, n))
    }
}
