//! Weights in one file, or in shards with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::HfWeights;
use crate::folder_error::FolderError;
use crate::foreign::clip;
use crate::json::MAX_JSON_BYTES;
use crate::mmap::read_small;
use crate::safetensors::SafeTensors;

pub(super) fn open_shard(path: PathBuf) -> Result<SafeTensors, FolderError> {
    SafeTensors::open(&path).map_err(|source| FolderError::Weights { path, source })
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: WeightMap,
}

/// Pairs of tensor and shard names as a list, so that duplicate names are detected.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;

        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of shard names by tensor name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(WeightMap(pairs))
            }
        }

        deserializer.deserialize_map(WeightMapVisitor)
    }
}

pub(super) fn open_sharded(dir: &Path, index_path: &Path) -> Result<HfWeights, FolderError> {
    let bytes = read_small(index_path, MAX_JSON_BYTES)?;
    let index: ShardIndex = serde_json::from_slice(&bytes).map_err(|source| FolderError::Json {
        path: index_path.to_path_buf(),
        source,
    })?;
    let WeightMap(pairs) = index.weight_map;
    if pairs.is_empty() {
        return Err(FolderError::EmptyIndex {
            path: index_path.to_path_buf(),
        });
    }
    for (tensor, shard) in &pairs {
        check_shard_name(index_path, tensor, shard)?;
    }
    let names: BTreeSet<String> = pairs.iter().map(|(_, shard)| shard.clone()).collect();
    let names: Vec<String> = names.into_iter().collect();

    let mut shard_of = BTreeMap::new();
    for (tensor, shard) in pairs {
        let at = names
            .binary_search(&shard)
            .expect("invariant: the names were collected from these pairs");
        if !dir.join(&shard).exists() {
            return Err(FolderError::MissingShard {
                path: dir.join(shard),
                tensor: clip(&tensor),
            });
        }
        if let Some(_first) = shard_of.insert(tensor.clone(), at) {
            return Err(FolderError::DuplicateInIndex {
                path: index_path.to_path_buf(),
                tensor: clip(&tensor),
            });
        }
    }
    let shards = names
        .iter()
        .map(|name| open_shard(dir.join(name)))
        .collect::<Result<Vec<_>, _>>()?;
    check_shards(dir, &names, &shards, &shard_of)?;
    Ok(HfWeights {
        shards,
        shard_of,
        packing: None,
    })
}

/// Checks that a shard name is a plain file name on every operating system, so it cannot leave the
/// folder.
fn check_shard_name(index: &Path, tensor: &str, shard: &str) -> Result<(), FolderError> {
    let mut components = Path::new(shard).components();
    let plain = matches!(components.next(), Some(Component::Normal(name)) if name == shard)
        && components.next().is_none()
        && !shard.contains(['/', '\\', ':', '\0']);
    if plain {
        Ok(())
    } else {
        Err(FolderError::UnsafeShardName {
            path: index.to_path_buf(),
            shard: clip(shard),
            tensor: clip(tensor),
        })
    }
}

fn check_shards(
    dir: &Path,
    names: &[String],
    shards: &[SafeTensors],
    shard_of: &BTreeMap<String, usize>,
) -> Result<(), FolderError> {
    for (tensor, at) in shard_of {
        if shards[*at].find(tensor).is_none() {
            return Err(FolderError::NotInShard {
                path: dir.join(&names[*at]),
                tensor: clip(tensor),
            });
        }
    }
    for (at, shard) in shards.iter().enumerate() {
        for info in shard.tensors() {
            let elsewhere = match shard_of.get(info.name()) {
                Some(indexed) if *indexed == at => continue,
                Some(indexed) => format!("in `{}`", names[*indexed]),
                None => "nowhere".to_owned(),
            };
            return Err(FolderError::StrayTensor {
                path: dir.join(&names[at]),
                tensor: clip(info.name()),
                elsewhere,
            });
        }
    }
    Ok(())
}
