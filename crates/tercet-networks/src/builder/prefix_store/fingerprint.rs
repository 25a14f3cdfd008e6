//! Digests that separate models, scopes and files.

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use tercet::{CompileOptions, Device};

use super::super::{ModelError, ModelGraph};

/// A SHA-256 digest.
pub(crate) type Sha256Digest = [u8; 32];

/// Bytes of a parameter that one thread digests.
const BLOCK_BYTES: usize = 4 << 20;

/// Digest of these parts and their lengths.
pub(crate) fn digest(parts: &[&[u8]]) -> Sha256Digest {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// Digest of everything that the bits of a model's caches depend on, except its weights: its description,
/// the device, and the kernels that run on it.
///
/// # Errors
/// [`ModelError::Compile`] of the device.
pub(super) fn of_facts(
    description: &str,
    model: &ModelGraph,
    device: &Device,
    options: &CompileOptions,
) -> Result<Sha256Digest, ModelError> {
    let plan = device.explain(&model.graph, options)?;
    let facts = format!(
        "{description}\n{}\n{}\n{}\n{:?}\n{:?}\n{options:?}",
        tercet::BUILD,
        device.name(),
        device.backend().description(),
        plan.kernels,
        plan.switches,
    );
    Ok(digest(&[b"model", facts.as_bytes()]))
}

/// Digest of the names, types and bytes of all parameters.
pub(super) fn of_weights(model: &ModelGraph) -> Sha256Digest {
    let mut all = Vec::with_capacity(model.params.len());
    for (name, tensor) in &model.params {
        let blocks: Vec<Sha256Digest> = tensor
            .loose_bytes()
            .par_chunks(BLOCK_BYTES)
            .map(|block| digest(&[block]))
            .collect();
        let ty = tensor.ty().to_string();
        let blocks = blocks.as_flattened();
        all.push(digest(&[name.as_bytes(), ty.as_bytes(), blocks]));
    }
    digest(&[all.as_flattened()])
}

/// Bytes that cannot be guessed. The standard library takes the keys of its hash maps from the random
/// numbers of the system.
pub(super) fn random() -> Sha256Digest {
    use std::hash::BuildHasher;
    let keys = std::hash::RandomState::new();
    let words: [[u8; 8]; 8] =
        std::array::from_fn(|at| keys.hash_one((at, std::process::id())).to_le_bytes());
    digest(&[b"random", words.as_flattened()])
}

/// A digest in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of 64 hexadecimal digits.
pub(super) fn from_hex(text: &str) -> Option<Sha256Digest> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(digest)
}
