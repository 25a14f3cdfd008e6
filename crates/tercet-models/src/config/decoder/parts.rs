//! Which parts a layer has.

use super::{
    DecoderSpec, FeedForward, LayerSpec, Mixer, NormPlacement, Part, Residual, StateKind,
    StateNorm, StateSpace,
};

impl Part {
    /// The projections of a layer that adapters may change; those of experts are none.
    pub(crate) fn projections(spec: &DecoderSpec, layer: usize) -> Vec<Part> {
        let of = spec.layers[layer];
        let mut parts = match (spec.latent, spec.fused_qkv) {
            _ if !of.mixer.attends() => Vec::new(),
            (Some(latent), _) => {
                let row = latent.query_rank.map(|_| Part::QueryRow);
                let row = row.into_iter();
                let kv = (!latent.split).then_some(Part::Kv);
                row.chain([Part::Query, Part::KvRow]).chain(kv).collect()
            }
            (None, true) => vec![Part::Qkv],
            (None, false) => vec![Part::Query, Part::Key, Part::Value],
        };
        if of.mixer.attends() {
            parts.push(Part::AttentionOutput);
        }
        if let (Some(states), true) = (&spec.states, of.mixer.scans()) {
            parts.extend(Part::into_states(states));
            parts.push(Part::StatesOut);
        }
        if of.experts || !of.feed_forward {
            return parts;
        }
        match (spec.feed_forward, spec.fused_gate_up) {
            (FeedForward::Gated(_), true) => parts.push(Part::GateUp),
            (FeedForward::Gated(_), false) => parts.extend([Part::Gate, Part::Up]),
            (FeedForward::Plain(_), _) => parts.push(Part::Up),
        }
        parts.push(Part::Down);
        parts
    }

    /// The projections into a scan, in the order in which it takes their results.
    pub(crate) fn into_states(states: &StateSpace) -> Vec<Part> {
        let mut parts = vec![Part::StatesIn];
        if let StateKind::Delta { rows, .. } = states.kind {
            if !rows.fused {
                parts.push(Part::StatesGate);
            }
            match rows.rates_fused {
                true => parts.push(Part::StatesRates),
                false => parts.extend([Part::StatesStrength, Part::StatesForget]),
            }
        }
        parts
    }

    /// What a scan has beside projections.
    fn of_states(states: &StateSpace) -> Vec<Part> {
        let mut parts = vec![Part::StatesConv, Part::StatesDecay];
        match states.kind {
            StateKind::Channels { .. } => {
                parts.extend([Part::StatesSkip, Part::StatesRow, Part::StatesStep]);
            }
            StateKind::Heads { norm, .. } => {
                parts.extend([Part::StatesSkip, Part::StatesStepBias]);
                match norm {
                    StateNorm::None => {}
                    StateNorm::AfterGate | StateNorm::BeforeGate => parts.push(Part::StatesNorm),
                }
            }
            StateKind::Delta { .. } => parts.extend([Part::StatesStepBias, Part::StatesNorm]),
        }
        parts
    }

    /// Everything of a layer that has tensors.
    pub(crate) fn of_layer(spec: &DecoderSpec, layer: usize) -> Vec<Part> {
        let mut parts = Part::projections(spec, layer);
        if let (Some(experts), true) = (spec.experts, spec.layers[layer].experts) {
            parts.extend([Part::Router, Part::ExpertDown]);
            let gated = matches!(spec.feed_forward, FeedForward::Gated(_));
            match (gated, experts.stored.joins_gates()) {
                (true, true) => parts.push(Part::ExpertGateUp),
                (true, false) => parts.extend([Part::ExpertGate, Part::ExpertUp]),
                (false, _) => parts.push(Part::ExpertUp),
            }
            if experts.latent.is_some() {
                parts.extend([Part::ExpertsIn, Part::ExpertsOut]);
            }
            if experts.choice_bias {
                parts.push(Part::RouterChoice);
            }
            if let Some(shared) = experts.shared {
                parts.push(Part::SharedDown);
                match (gated, shared.fused) {
                    (true, true) => parts.push(Part::SharedGateUp),
                    (true, false) => parts.extend([Part::SharedGate, Part::SharedUp]),
                    (false, _) => parts.push(Part::SharedUp),
                }
                if shared.scored {
                    parts.push(Part::SharedScore);
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
                Part::AttentionNorm,
                Part::AttentionPostNorm,
                mixer != Mixer::None,
            ),
            (Part::FfnNorm, Part::FfnPostNorm, feed_forward),
        ];
        for (before, after, _) in norms.into_iter().filter(|(.., has)| *has) {
            let has_one = before != Part::FfnNorm || spec.residual != Residual::Parallel;
            if spec.placement != NormPlacement::After && has_one {
                parts.push(before);
            }
            if spec.placement != NormPlacement::Before {
                parts.push(after);
            }
        }
        if let (Some(states), true) = (&spec.states, mixer.scans()) {
            parts.extend(Part::of_states(states));
        }
        if !mixer.attends() {
            return parts;
        }
        if spec.sinks {
            parts.push(Part::Sinks);
        }
        if let Some(latent) = spec.latent {
            parts.extend(latent.query_rank.map(|_| Part::QueryRowNorm));
            parts.push(Part::KvRowNorm);
            if latent.split {
                parts.extend([Part::KvKeys, Part::KvValues]);
            }
        }
        if spec.qk_norm.is_some() {
            parts.extend([Part::QueryNorm, Part::KeyNorm]);
        }
        parts
    }
}

/// The projections that adapters may change: those of the layers, then the output.
pub(crate) fn projections(spec: &DecoderSpec) -> impl Iterator<Item = (Part, usize)> {
    let layers = 0..spec.layers.len();
    let of_layers = layers.flat_map(|layer| {
        let parts = Part::projections(spec, layer);
        parts.into_iter().map(move |part| (part, layer))
    });
    of_layers.chain([(Part::Output, 0)])
}
