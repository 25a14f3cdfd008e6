//! Scale factors of projections and of queries.

/// Scale factors of width-scaled training (muP; Yang and others, "Tensor Programs V", 2022). The
/// factors of embeddings, keys and logits are fields of [`DecoderScales`](super::DecoderScales).
///
/// ```
/// use tercet_networks::config::Multipliers;
/// let multipliers = Multipliers { attention: [0.5, 1.0], ..Multipliers::ONES };
/// assert_eq!(multipliers.feed_forward, [1.0, 1.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Factors of the input and of the output of attention.
    pub attention: [f32; 2],
    /// Factors of the input and of the output of a state-space scan.
    pub states: [f32; 2],
    /// Factors of the parts of a multi-head scan's input projection: gate, `x`, `B` (input matrix),
    /// `C` (output matrix), and step sizes `dt`.
    pub into_states: [f32; 5],
    /// Factors of the gate before its activation, and of the feed-forward network's output.
    pub feed_forward: [f32; 2],
}

impl Multipliers {
    /// All factors are 1, which changes nothing.
    pub const ONES: Multipliers = Multipliers {
        attention: [1.0; 2],
        states: [1.0; 2],
        into_states: [1.0; 5],
        feed_forward: [1.0; 2],
    };
}

/// Position-dependent scale of queries, which keeps attention weights sharp over long contexts
/// ("temperature tuning" of Llama 4, 2025).
///
/// ```
/// use tercet_networks::config::AttentionTemperature;
/// let temperature = AttentionTemperature { beta: 0.1, original: 8192 };
/// assert_eq!(temperature.at(100), 1.0);
/// assert!(temperature.at(20_000) > 1.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionTemperature {
    /// The coefficient of the logarithmic growth.
    pub beta: f32,
    /// Context length of the original training. The scale is 1 at positions below it.
    pub original: usize,
}

impl AttentionTemperature {
    /// The scale of a query at `position`: `1 + beta ln(1 + floor(position / original))`, computed
    /// in F32 as in the reference implementation.
    pub fn at(self, position: usize) -> f32 {
        let turns = position / self.original.max(1);
        1.0 + self.beta * (1.0 + turns as f32).ln()
    }
}
