//! The models of a store, each with an id that separates its entries from those of others.

use std::sync::{Arc, Mutex, Weak};

use tercet_ir::TensorIdentity;

use super::super::ModelGraph;
use super::fingerprint::{self, Sha256Digest};
use super::lock;

/// The id of a model in a store, for as long as a generator uses it.
#[derive(Clone)]
pub(crate) struct ModelTag {
    pub(crate) id: Sha256Digest,
    /// Counts the generators.
    _users: Arc<()>,
}

/// The models that use a store without a folder. Their weights are compared by the memory that holds
/// them, which takes no time.
#[derive(Default)]
pub(super) struct ModelTags {
    known: Mutex<Vec<KnownModel>>,
}

struct KnownModel {
    /// Digest of everything except the weights.
    facts: Sha256Digest,
    weights: Vec<TensorIdentity>,
    id: Sha256Digest,
    users: Weak<()>,
}

impl ModelTag {
    /// The id that a model has in the files of every store: a digest of all weights.
    pub(super) fn from_weights(facts: Sha256Digest, model: &ModelGraph) -> ModelTag {
        ModelTag {
            id: fingerprint::digest(&[&facts, &fingerprint::of_weights(model)]),
            _users: Arc::default(),
        }
    }
}

impl ModelTags {
    /// The tag of a model: that of a known one with the same weights in the same memory, or a new one.
    pub(super) fn tag(&self, facts: Sha256Digest, model: &ModelGraph) -> ModelTag {
        let mut known = lock(&self.known);
        known.retain(|own| own.users.strong_count() > 0);
        let is_same = |own: &&KnownModel| {
            let mut pairs = own.weights.iter().zip(&model.params);
            own.facts == facts
                && own.weights.len() == model.params.len()
                && pairs.all(|(known, (_, tensor))| known.is(tensor))
        };
        let found = known.iter().find(is_same);
        if let Some((id, users)) = found.and_then(|own| Some((own.id, own.users.upgrade()?))) {
            return ModelTag { id, _users: users };
        }
        let (id, users) = (fingerprint::random(), Arc::new(()));
        let weights = model.params.iter().map(|(_, tensor)| tensor.identity());
        known.push(KnownModel {
            facts,
            weights: weights.collect(),
            id,
            users: Arc::downgrade(&users),
        });
        ModelTag { id, _users: users }
    }

    /// True if a generator uses the model with this id.
    pub(super) fn is_used(&self, id: &Sha256Digest) -> bool {
        let known = lock(&self.known);
        let mut known = known.iter();
        known.any(|own| own.id == *id && own.users.strong_count() > 0)
    }
}
