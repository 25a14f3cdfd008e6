//! The tensors of a Hugging Face folder by name: one safetensors file, or shards with an index.
//!
//! Shards in `model.safetensors.index.json` must be plain file names inside the folder. Each tensor
//! must be in exactly the shard that the index names.

mod packing;
mod shards;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use crate::folder_error::FolderError;
use crate::foreign::clip;
use crate::mmap::MappedFile;
use crate::safetensors::{SafeTensorInfo, SafeTensors, SafeTensorsError};
use packing::Packing;
use shards::{open_shard, open_sharded};

pub use packing::{UnsupportedQuantization, check_quantization};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of a folder without the expected files, for an error message.
fn other_weights(dir: &Path) -> String {
    const LISTED: usize = 3;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<String> = names
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    found.sort();
    let Some(first) = found.first() else {
        return match dir.join("pytorch_model.bin").exists() {
            true => "; pytorch_model.bin is not supported, convert it to safetensors".to_string(),
            false => String::new(),
        };
    };
    let is_shard = first.contains("-of-");
    let remedy = match (is_shard, found.len()) {
        (true, _) => "download the index of these shards",
        (false, 1) => "rename it to model.safetensors if it has the model's weights",
        (false, _) => "rename the file with the model's weights to model.safetensors",
    };
    let listed: Vec<String> = found.iter().take(LISTED).map(|name| clip(name)).collect();
    let more = match found.len() - listed.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; it has {}{more}: {remedy}", listed.join(", "))
}

/// The weights of a folder: one safetensors file, or shards with an index.
///
/// ```
/// # let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
/// use tercet_files::{HfWeights, MappedFile};
/// let weights = HfWeights::parse(MappedFile::from_vec(bytes))?;
/// assert_eq!((weights.shards().len(), weights.tensors().count()), (1, 1));
/// assert!(weights.find("x").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HfWeights {
    shards: Vec<SafeTensors>,
    /// The shard index of each tensor; empty for a single file.
    shard_of: BTreeMap<String, usize>,
    /// The format of quantized matrices, if each is stored as several tensors.
    packing: Option<Packing>,
}

impl HfWeights {
    /// Maps the weights in the folder `dir`. `model.safetensors` takes precedence over an index.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, FolderError> {
        let dir = dir.as_ref();
        let single = dir.join(SINGLE);
        if single.exists() {
            return Ok(Self {
                shards: vec![open_shard(single)?],
                shard_of: BTreeMap::new(),
                packing: None,
            });
        }
        let index = dir.join(INDEX);
        if index.exists() {
            return open_sharded(dir, &index);
        }
        Err(FolderError::NoWeights {
            path: dir.to_path_buf(),
            hint: other_weights(dir),
        })
    }

    /// The weights of one safetensors file in memory, as in a browser. Quantized weights are not
    /// supported, because their format is in the configuration of the folder.
    ///
    /// # Errors
    /// [`SafeTensorsError`] of the file.
    pub fn parse(file: MappedFile) -> Result<Self, SafeTensorsError> {
        Ok(Self {
            shards: vec![SafeTensors::parse(file)?],
            shard_of: BTreeMap::new(),
            packing: None,
        })
    }

    /// The weight files.
    #[must_use]
    pub fn shards(&self) -> &[SafeTensors] {
        &self.shards
    }

    /// The tensor called `name` and its file.
    ///
    /// # Errors
    /// [`FolderError::NoSuchTensor`].
    pub fn tensor(&self, name: &str) -> Result<(&SafeTensors, &SafeTensorInfo), FolderError> {
        self.find(name)
            .ok_or_else(|| FolderError::NoSuchTensor { tensor: clip(name) })
    }

    /// Sets the format of quantized weights from `quantization_config` of `config.json`. An
    /// unsupported format is ignored; [`check_quantization`] reports it.
    #[must_use]
    pub fn with_quantization(mut self, config: &Map<String, Value>) -> Self {
        self.packing = Packing::read(config).ok();
        self
    }

    /// All tensors, each with its file.
    pub fn tensors(&self) -> impl Iterator<Item = (&SafeTensors, &SafeTensorInfo)> {
        self.shards
            .iter()
            .flat_map(|shard| shard.tensors().iter().map(move |info| (shard, info)))
    }

    /// The tensor called `name` and its file, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(&SafeTensors, &SafeTensorInfo)> {
        let shard = if self.shard_of.is_empty() {
            self.shards.first()?
        } else {
            self.shards.get(*self.shard_of.get(name)?)?
        };
        Some((shard, shard.find(name)?))
    }

    /// Whether these are the weights of a decoder without LM head, whose tensor names lack the
    /// usual `model.`.
    #[must_use]
    pub fn is_bare_decoder(&self) -> bool {
        self.find("embed_tokens.weight").is_some()
    }

    /// All tensor names as a builder requests them. Names of a bare decoder get `model.`; the parts
    /// of a quantized weight appear as that weight.
    #[must_use]
    pub fn read_names(&self) -> BTreeSet<String> {
        let before = if self.is_bare_decoder() { "model." } else { "" };
        let read = |name: &str| match self.is_packed_part(name) {
            Some(weight) => format!("{before}{weight}"),
            None => format!("{before}{name}"),
        };
        self.tensors().map(|(_, info)| read(info.name())).collect()
    }

    /// Like [`Self::find`]; in a bare decoder, it also finds names with `model.`.
    #[must_use]
    pub fn find_as_read(&self, name: &str) -> Option<(&SafeTensors, &SafeTensorInfo)> {
        let bare = || {
            name.strip_prefix("model.")
                .filter(|_| self.is_bare_decoder())
        };
        self.find(name).or_else(|| self.find(bare()?))
    }
}
