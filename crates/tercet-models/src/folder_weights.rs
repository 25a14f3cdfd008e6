//! The tensors of a Hugging Face folder, by name. [`hf`](crate::hf) opens them.

pub(crate) mod packing;

use std::collections::BTreeMap;

use tercet_files::MappedFile;
use crate::safetensors::{SafeTensorInfo, SafeTensors, SafeTensorsError};
use packing::Packing;

/// The weights of a folder: one safetensors file, or shards with an index.
///
/// ```
/// # let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
/// use tercet_models::{HfWeights, MappedFile};
/// let weights = HfWeights::parse(MappedFile::from_vec(bytes))?;
/// assert_eq!((weights.shards().len(), weights.tensors().count()), (1, 1));
/// assert!(weights.find("x").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HfWeights {
    pub(crate) shards: Vec<SafeTensors>,
    /// The shard index of each tensor; empty for a single file.
    pub(crate) shard_of: BTreeMap<String, usize>,
    /// The format of quantized matrices, if each is stored as several tensors.
    pub(crate) packing: Option<Packing>,
}

impl HfWeights {
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
}
