//! The parts of each layer.

use super::{
    DecoderPart, DecoderSpec, FeedForward, LayerSpec, Mixer, NormPlacement, ResidualOrder, SsmSpec,
    StateKind, StateNorm,
};

impl DecoderPart {
    /// The projections of a layer that adapters can modify, without those of experts.
    pub(crate) fn projections(spec: &DecoderSpec, layer: usize) -> Vec<DecoderPart> {
        let of = spec.layers[layer];
        let mut parts = match (spec.attention.latent, spec.storage.fused_qkv) {
            _ if !of.mixer.attends() => Vec::new(),
            (Some(latent), _) => {
                let row = latent.query_rank.map(|_| DecoderPart::QueryRow);
                let row = row.into_iter();
                let kv = (!latent.split).then_some(DecoderPart::Kv);
                row.chain([DecoderPart::Query, DecoderPart::KvRow])
                    .chain(kv)
                    .collect()
            }
            (None, true) => vec![DecoderPart::Qkv],
            (None, false) => vec![DecoderPart::Query, DecoderPart::Key, DecoderPart::Value],
        };
        if of.mixer.attends() {
            parts.push(DecoderPart::AttentionOutput);
        }
        if let (Some(states), true) = (&spec.states, of.mixer.scans()) {
            parts.extend(DecoderPart::into_states(states));
            parts.push(DecoderPart::StatesOut);
        }
        if of.experts || !of.feed_forward {
            return parts;
        }
        match (spec.feed_forward, spec.storage.fused_gate_up) {
            (FeedForward::Gated(_), true) => parts.push(DecoderPart::GateUp),
            (FeedForward::Gated(_), false) => parts.extend([DecoderPart::Gate, DecoderPart::Up]),
            (FeedForward::Plain(_), _) => parts.push(DecoderPart::Up),
        }
        parts.push(DecoderPart::Down);
        parts
    }

    /// The input projections of a scan, in the order of the scan's inputs.
    pub(crate) fn into_states(states: &SsmSpec) -> Vec<DecoderPart> {
        let mut parts = vec![DecoderPart::StatesIn];
        if let StateKind::Delta { rows, .. } = states.kind {
            if !rows.fused {
                parts.push(DecoderPart::StatesGate);
            }
            match rows.rates_fused {
                true => parts.push(DecoderPart::StatesRates),
                false => parts.extend([DecoderPart::StatesStrength, DecoderPart::StatesForget]),
            }
        }
        parts
    }

    /// The parts of a scan other than input projections.
    fn for_states(states: &SsmSpec) -> Vec<DecoderPart> {
        let mut parts = vec![DecoderPart::StatesConv, DecoderPart::StatesDecay];
        match states.kind {
            StateKind::Channels { .. } => {
                parts.extend([
                    DecoderPart::StatesSkip,
                    DecoderPart::StatesRow,
                    DecoderPart::StatesStep,
                ]);
            }
            StateKind::Heads { norm, .. } => {
                parts.extend([DecoderPart::StatesSkip, DecoderPart::StatesStepBias]);
                match norm {
                    StateNorm::None => {}
                    StateNorm::AfterGate | StateNorm::BeforeGate => {
                        parts.push(DecoderPart::StatesNorm)
                    }
                }
            }
            StateKind::Delta { .. } => {
                parts.extend([DecoderPart::StatesStepBias, DecoderPart::StatesNorm])
            }
        }
        parts
    }

    /// All parts of a layer that have tensors.
    #[must_use]
    pub fn for_layer(spec: &DecoderSpec, layer: usize) -> Vec<DecoderPart> {
        let mut parts = DecoderPart::projections(spec, layer);
        if let (Some(experts), true) = (spec.experts, spec.layers[layer].experts) {
            parts.extend([DecoderPart::Router, DecoderPart::ExpertDown]);
            let gated = matches!(spec.feed_forward, FeedForward::Gated(_));
            match (gated, experts.stored.joins_gates()) {
                (true, true) => parts.push(DecoderPart::ExpertGateUp),
                (true, false) => parts.extend([DecoderPart::ExpertGate, DecoderPart::ExpertUp]),
                (false, _) => parts.push(DecoderPart::ExpertUp),
            }
            if experts.latent.is_some() {
                parts.extend([DecoderPart::ExpertsIn, DecoderPart::ExpertsOut]);
            }
            if experts.router_bias {
                parts.push(DecoderPart::RouterBias);
            }
            if let Some(shared) = experts.shared {
                parts.push(DecoderPart::SharedDown);
                match (gated, shared.fused) {
                    (true, true) => parts.push(DecoderPart::SharedGateUp),
                    (true, false) => parts.extend([DecoderPart::SharedGate, DecoderPart::SharedUp]),
                    (false, _) => parts.push(DecoderPart::SharedUp),
                }
                if shared.scored {
                    parts.push(DecoderPart::SharedScore);
                }
            }
        }
        let LayerSpec {
            mixer,
            feed_forward,
            ..
        } = spec.layers[layer];
        let norms = [
            (
                DecoderPart::AttentionNorm,
                DecoderPart::AttentionPostNorm,
                mixer != Mixer::None,
            ),
            (DecoderPart::FfnNorm, DecoderPart::FfnPostNorm, feed_forward),
        ];
        for (before, after, _) in norms.into_iter().filter(|(.., has)| *has) {
            let has_one =
                before != DecoderPart::FfnNorm || spec.residual != ResidualOrder::Parallel;
            if spec.placement != NormPlacement::After && has_one {
                parts.push(before);
            }
            if spec.placement != NormPlacement::Before {
                parts.push(after);
            }
        }
        if let (Some(states), true) = (&spec.states, mixer.scans()) {
            parts.extend(DecoderPart::for_states(states));
        }
        if !mixer.attends() {
            return parts;
        }
        if spec.attention.sinks {
            parts.push(DecoderPart::Sinks);
        }
        if let Some(latent) = spec.attention.latent {
            parts.extend(latent.query_rank.map(|_| DecoderPart::QueryRowNorm));
            parts.push(DecoderPart::KvRowNorm);
            if latent.split {
                parts.extend([DecoderPart::KvKeys, DecoderPart::KvValues]);
            }
        }
        if spec.attention.qk_norm.is_some() {
            parts.extend([DecoderPart::QueryNorm, DecoderPart::KeyNorm]);
        }
        parts
    }
}

/// The projections that adapters can modify: those of the layers, then the output projection.
pub fn projections(spec: &DecoderSpec) -> impl Iterator<Item = (DecoderPart, usize)> {
    let layers = 0..spec.layers.len();
    let of_layers = layers.flat_map(|layer| {
        let parts = DecoderPart::projections(spec, layer);
        parts.into_iter().map(move |part| (part, layer))
    });
    of_layers.chain([(DecoderPart::Output, 0)])
}
