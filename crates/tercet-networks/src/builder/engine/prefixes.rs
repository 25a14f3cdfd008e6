//! Stored prefixes: an engine saves the prefix of a slot before another sequence takes the slot, and
//! restores it for a sequence that begins with it.
//!
//! Only the rows of the filled positions move. Models with window caches or recurrent states move those
//! of the slot's checkpoint.

use std::ops::Range;

use tercet::Bindings;

use super::super::ModelError;
use super::super::decoder::windows::BANKS;
use super::super::prefix_store::{
    FoundPrefix, ModelTag, PrefixKey, PrefixRows, PrefixRule, PrefixStore, Sha256Digest,
    StoredPrefix, fingerprint,
};
use super::Engine;
use super::checkpoints::STATES;
use super::sequence::{CacheSlot, PrefixCheckpoint, Sequence};

/// A prefix store, and the digest of the model whose entries this engine uses.
pub(crate) struct PrefixTier {
    pub(crate) store: PrefixStore,
    /// The model as it was compiled first.
    compiled: ModelTag,
    /// The id of the model with its precision.
    model: Sha256Digest,
}

/// Consecutive elements of a cache state that belong to a prefix in a slot.
struct CachePart {
    state: String,
    elements: Range<usize>,
}

impl PrefixTier {
    pub(crate) fn new(store: PrefixStore, model: ModelTag) -> PrefixTier {
        PrefixTier {
            store,
            model: model.id,
            compiled: model,
        }
    }

    /// Number of stored prefixes of this model, and of other models.
    pub(crate) fn count(&self) -> [usize; 2] {
        self.store.count(&self.model)
    }

    /// Separates entries of the model in a wider dtype, whose bits differ.
    fn set_widened(&mut self, precision: &str) {
        self.model = fingerprint::digest(&[b"widened", &self.compiled.id, precision.as_bytes()]);
    }

    fn key(&self, scope: &str, adapter: Option<usize>) -> PrefixKey {
        self.store.key(self.model, scope, adapter)
    }
}

impl Engine {
    /// The part of a stored prefix that this model can reuse.
    fn prefix_rule(&self) -> PrefixRule {
        match self.goes_back() {
            true => PrefixRule::WholeChunks(self.chunk),
            false => PrefixRule::AllTokens,
        }
    }

    /// Number of tokens of a slot that a stored prefix can have. Ids above the vocabulary stand for
    /// images, which the tokens do not identify.
    fn storable(&self, slot: &CacheSlot) -> usize {
        let tokens = match (self.goes_back(), &slot.checkpoint) {
            (true, _) => slot.chunk_aligned,
            (false, Some(kept)) => kept.at,
            (false, None) => 0,
        };
        let texts = slot.cached_tokens.iter().take(tokens);
        let texts = texts.take_while(|id| (**id as usize) < self.vocab).count();
        match self.goes_back() {
            true => texts - texts % self.chunk,
            false if texts == tokens => tokens,
            false => 0,
        }
    }

    /// Notes after a change of the precision that earlier entries have other bits.
    pub(super) fn separate_widened_prefixes(&mut self) {
        let precision = format!("{:?}", self.compiled.fallback_precision());
        if let Some(tier) = &mut self.prefixes {
            tier.set_widened(&precision);
        }
    }

    /// The longest common prefix of a sequence and the stored ones in whole chunks, and whether it is all
    /// of a stored one.
    pub(super) fn longest_stored(&self, sequence: &Sequence) -> Option<(usize, bool)> {
        let tier = self.prefixes.as_ref()?;
        let key = tier.key(&sequence.cache_scope, sequence.adapter);
        tier.store
            .longest_common(&key, &sequence.prompt, self.chunk)
    }

    /// The free slot that was used the longest ago.
    pub(crate) fn oldest_free_slot(&self) -> Option<usize> {
        let slots = self.slots.iter().enumerate();
        let free = slots.filter(|(_, slot)| slot.active.is_none());
        free.min_by_key(|(_, slot)| slot.last_used)
            .map(|(at, _)| at)
    }

    /// Saves the prefix of a slot, unless its first `kept` tokens stay in the slot and are all of it. A
    /// prefix that cannot be read from the device is lost, with a warning.
    pub(crate) fn save_prefix(&mut self, at: usize, kept: usize) {
        let Some(tier) = &self.prefixes else {
            return;
        };
        let (store, rule) = (tier.store.clone(), self.prefix_rule());
        let slot = &self.slots[at];
        let tokens = self.storable(slot);
        if tokens <= kept || tokens < self.chunk {
            return;
        }
        let key = tier.key(&slot.cache_scope, slot.adapter);
        let tokens = slot.cached_tokens[..tokens].to_vec();
        if store.covers(&key, &tokens, rule) {
            return;
        }
        let kept = slot.checkpoint.as_ref();
        let is_branch = kept.is_some_and(|kept| kept.is_branch);
        match self.read_prefix(at, tokens.len(), &store) {
            Ok(Some(rows)) => store.insert(key, &tokens, (rows, is_branch), rule),
            Ok(None) => {}
            Err(e) => store.warn(&format!(
                "a prefix of {} tokens is not stored: {}",
                tokens.len(),
                tercet::one_line(&e)
            )),
        }
    }

    /// The stored prefix from which a sequence can reuse the most tokens, if these are more than
    /// `more_than`, with its rows.
    pub(crate) fn load_prefix(
        &self,
        sequence: &Sequence,
        more_than: usize,
    ) -> Option<(FoundPrefix, StoredPrefix)> {
        let tier = self.prefixes.as_ref()?;
        let key = tier.key(&sequence.cache_scope, sequence.adapter);
        loop {
            let found = (tier.store).find(&key, &sequence.prompt, self.prefix_rule(), more_than)?;
            // An entry whose file is damaged is gone; the next one may be usable.
            if let Some(stored) = tier.store.load(found) {
                return Some((found, stored));
            }
        }
    }

    /// Writes a stored prefix to a slot without a sequence. Returns the number of its tokens that are
    /// cached then: 0, after a warning, if that is impossible.
    pub(crate) fn restore_prefix(
        &mut self,
        at: usize,
        (found, stored): (FoundPrefix, StoredPrefix),
    ) -> usize {
        self.slots[at].cut(0);
        let written = self.write_prefix(at, found.tokens, &stored);
        let Some(tier) = &self.prefixes else {
            return 0;
        };
        let store = tier.store.clone();
        let states = match written {
            Ok(states) => states,
            Err(e) => {
                let e = tercet::one_line(&e);
                store.warn(&format!("a stored prefix is not used: {e}"));
                store.remove(found);
                return 0;
            }
        };
        store.count_restored(found.tokens);
        let goes_back = self.goes_back();
        let slot = &mut self.slots[at];
        slot.cached_tokens = stored.tokens[..found.tokens].to_vec();
        slot.chunk_aligned = found.tokens;
        slot.buffer_index = 0;
        slot.checkpoint = (!goes_back).then_some(PrefixCheckpoint {
            at: found.tokens,
            bank: 0,
            states,
            is_branch: false,
        });
        found.tokens
    }

    /// The rows of a slot's first `tokens` tokens, or those of its checkpoint; `None` if they do not fit
    /// the store or the model has states of another kind.
    fn read_prefix(
        &mut self,
        at: usize,
        tokens: usize,
        store: &PrefixStore,
    ) -> Result<Option<PrefixRows>, ModelError> {
        let bank = self.slots[at].checkpoint.as_ref().map_or(0, |c| c.bank);
        let Some(caches) = self.cache_parts([at, bank], tokens)? else {
            return Ok(None);
        };
        let own = format!(".{at}");
        let states = self.slots[at].checkpoint.iter();
        let states: Vec<_> = states.flat_map(|kept| kept.states.clone()).collect();
        let exe = self.compiled.exe()?;
        let size = |part: &CachePart| {
            let port = (exe.signature().states.iter()).find(|port| port.name == part.state);
            port.map_or(0, |port| port.ty.dtype.size_bytes()) * part.elements.len()
        };
        let bytes: usize = caches.iter().map(size).sum();
        if !store.fits(bytes as u64) {
            return Ok(None);
        }
        let mut rows = PrefixRows::default();
        for CachePart { state, elements } in caches {
            let values = exe.read_state_elements(&state, elements)?;
            rows.parts.push((state, values));
        }
        for (name, state) in states {
            let name = name.strip_suffix(&own).unwrap_or(&name).to_string();
            let flat = state.reshaped(&[state.numel()]);
            rows.parts
                .push((name, flat.map_err(tercet::RunError::from)?));
        }
        Ok(Some(rows))
    }

    /// Writes the rows of the first `tokens` tokens of a stored prefix to the caches of a slot. Returns the
    /// recurrent states, which the checkpoint of the slot keeps.
    fn write_prefix(
        &mut self,
        at: usize,
        tokens: usize,
        stored: &StoredPrefix,
    ) -> Result<Vec<(String, tercet::Tensor)>, ModelError> {
        let unfit = || {
            let reason = "the rows of a stored prefix differ from those of the model";
            ModelError::Unsupported(reason.into())
        };
        let whole = self.cache_parts([at, 0], stored.tokens.len())?;
        let wanted = self.cache_parts([at, 0], tokens)?;
        let (whole, wanted) = whole.zip(wanted).ok_or_else(unfit)?;
        let parts = &stored.rows.parts;
        let (caches, states) = parts.split_at_checked(whole.len()).ok_or_else(unfit)?;
        let exe = self.compiled.exe()?;
        let own: Vec<String> = {
            let end = format!(".{at}");
            let names = exe.signature().states.iter().map(|port| &port.name);
            let own = names.filter(|name| name.starts_with(STATES) && name.ends_with(&end));
            own.cloned().collect()
        };
        let is_state = |(own, (name, _)): (&String, &(String, _))| *own == format!("{name}.{at}");
        if own.len() != states.len() || !own.iter().zip(states).all(is_state) {
            return Err(unfit());
        }
        for ((whole, wanted), (name, rows)) in whole.iter().zip(wanted).zip(caches) {
            if whole.state != *name || whole.elements.len() != rows.numel() {
                return Err(unfit());
            }
            let first = wanted.elements.start;
            if wanted.elements.len() == rows.numel() {
                exe.write_state_elements(name, first, rows)?;
                continue;
            }
            let ty = tercet::TensorType::new(rows.dtype(), &[wanted.elements.len()]);
            let bytes = &rows.bytes()[..ty.size_bytes()];
            let part = tercet::Tensor::from_bytes(ty, bytes).map_err(tercet::RunError::from)?;
            exe.write_state_elements(name, first, &part)?;
        }
        let states = own.into_iter().zip(states);
        Ok(states
            .map(|(name, (_, state))| (name, state.clone()))
            .collect())
    }

    /// The elements of all cache states that belong to the first `tokens` tokens of a slot, with its
    /// window caches in this bank. `None` if a state is neither a cache of slots nor recurrent.
    fn cache_parts(
        &mut self,
        [slot, bank]: [usize; 2],
        tokens: usize,
    ) -> Result<Option<Vec<CachePart>>, ModelError> {
        let slots = self.slots.len();
        let windows = &self.windows;
        let exe = self.compiled.exe()?;
        let mut parts = Vec::new();
        for port in &exe.signature().states {
            if port.name.starts_with(STATES) {
                continue;
            }
            let shape = port.ty.shape.eval(&Bindings::new());
            let shape = shape.map_err(tercet::RunError::from)?;
            let window = windows.iter().find_map(|own| own.window_of(&port.name));
            let (first, index, rows) = match window {
                Some(window) => (BANKS * slots, bank * slots + slot, tokens.min(window)),
                None => (slots, slot, tokens),
            };
            let [own_first, positions, rest @ ..] = shape.as_slice() else {
                return Ok(None);
            };
            if *own_first != first || rows > *positions {
                return Ok(None);
            }
            let row: usize = rest.iter().product();
            let start = index * positions * row;
            parts.push(CachePart {
                state: port.name.clone(),
                elements: start..start + rows * row,
            });
        }
        Ok(Some(parts))
    }
}
