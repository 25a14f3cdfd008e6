//! The model of an index: what it makes vectors of, and by what an index knows it again.

use std::path::Path;

use sha2::{Digest, Sha256};
use tercet::Device;

use super::files::hexadecimal;
use super::{Found, SearchError, SearchIndex};
use crate::builder::{Embedder, ModelError, PictureEncoder, SentenceModule};
use crate::error::Error;
use crate::open::{EncoderOptions, Family, ModelFiles, Prompt};

/// Bytes at either end of a tensor that take part in the digest of a model.
const ENDS: usize = 2048;

/// What the folder of a sentence encoder calls prompts of queries and of documents.
const QUERY: [&str; 1] = ["query"];
const DOCUMENT: [&str; 3] = ["document", "passage", "corpus"];

/// A digest of a model: its configuration, tokenizer and modules, and of each tensor name, form, and both ends of its bytes.
pub(super) fn digest_of(files: &ModelFiles) -> Result<String, Error> {
    let ModelFiles::Hf(folder) = files else {
        let reason = "an index is made with a folder of an encoder, not with a GGUF file";
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
    if files.family()? != Family::Vision {
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
            }
        }
    }
    Ok(hexadecimal(&digest.finalize()))
}

/// The text of a prompt; where none is asked for, the folder's prompt of one of these names, or its default.
fn prompt(files: &ModelFiles, asked: &Prompt, names: &[&str]) -> Result<String, Error> {
    if files.family()? == Family::Vision {
        if *asked != Prompt::Default {
            let reason = "prompts are for encoders of texts alone";
            return Err(ModelError::Unsupported(reason.into()).into());
        }
        return Ok(String::new());
    }
    let prompts = files.sentence()?.prompts;
    let named = names.iter().find(|name| prompts.named.contains_key(**name));
    let text = match (asked, named, &prompts.default) {
        (Prompt::Text(text), ..) => text,
        (Prompt::Named(name), ..) | (Prompt::Default, None, Some(name)) => prompts.get(name)?,
        (Prompt::Default, Some(name), _) => prompts.get(name)?,
        (Prompt::Default, None, None) => "",
    };
    Ok(text.to_string())
}

/// The prompt of passages.
pub(super) fn document_prompt(files: &ModelFiles, asked: &Prompt) -> Result<String, Error> {
    prompt(files, asked, &DOCUMENT)
}

/// What makes vectors: of texts, or of pictures.
pub(super) enum Side {
    Texts(Box<Embedder>),
    Pictures(Box<PictureEncoder>),
}

impl Side {
    pub(super) fn width(&self) -> usize {
        match self {
            Side::Texts(embedder) => embedder.width(),
            Side::Pictures(encoder) => encoder.width(),
        }
    }

    /// Vectors of texts or of files of pictures, divided by their length; those that could not be are none.
    pub(super) fn unit_vectors(
        &mut self,
        items: &[String],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Option<Vec<f32>>>, Error> {
        let rows = match self {
            Side::Texts(embedder) => embedder.embed(items, progress)?,
            Side::Pictures(encoder) => encoder.of_files(items, progress)?,
        };
        Ok(rows.into_iter().map(unit).collect())
    }
}

/// A vector over its length, where it has a direction.
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

/// What a query is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// A text.
    Text,
    /// A file of a picture, for models of pictures.
    Picture,
}

/// An index and the model that made it.
pub struct Searcher {
    index: SearchIndex,
    side: Side,
}

impl Searcher {
    /// Opens an index for queries of a kind with this model. Of `options` the prompt is that of queries: the folder's own
    /// for them where none is asked for; dimensions are the index's.
    ///
    /// # Errors
    /// [`Error::Search`] for an index that is damaged or of another model; [`Error`] of the model.
    pub fn open(
        path: impl AsRef<Path>,
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        query: Query,
    ) -> Result<Searcher, Error> {
        let path = path.as_ref();
        let index = SearchIndex::open(path)?;
        index.check(path, &digest_of(files)?, None)?;
        let prompt = prompt(files, &options.prompt, &QUERY)?;
        let options = EncoderOptions {
            prompt: Prompt::Text(prompt),
            dims: index.settings.dims,
            ..options.clone()
        };
        let side = match query {
            Query::Text => Side::Texts(Box::new(files.embedder(device, &options)?)),
            Query::Picture => Side::Pictures(Box::new(files.picture_encoder(device, &options)?)),
        };
        let (own, width) = (side.width(), index.width);
        if own != width {
            return Err(ModelError::Unsupported(format!(
                "the model's vectors have {own} elements, those of the index {width}"
            ))
            .into());
        }
        Ok(Searcher { index, side })
    }

    /// The index.
    pub fn index(&self) -> &SearchIndex {
        &self.index
    }

    /// The `n` nearest to a text or to the file of a picture, the nearest first.
    ///
    /// # Errors
    /// [`Error`] of the model; [`Error::Search`] for a query without a direction.
    pub fn find(&mut self, query: &str, n: usize) -> Result<Vec<Found>, Error> {
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
