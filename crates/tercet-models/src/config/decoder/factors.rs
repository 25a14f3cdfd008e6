//! Factors of projections.

/// Factors with which a model's width was scaled in training (Yang and others, "Tensor Programs V", 2022), beside those of
/// embeddings, keys and logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of the rows that attention reads, and of what it gives.
    pub attention: [f32; 2],
    /// Of the rows that a scan reads, and of what it gives.
    pub states: [f32; 2],
    /// Of the parts of a projection into a scan by heads: the gate, the rows, what enters states, what leaves them, and step
    /// sizes.
    pub into_states: [f32; 5],
    /// Of gates before their nonlinearity, and of what the feed-forward network gives.
    pub feed_forward: [f32; 2],
}

impl Factors {
    /// None of them changes anything.
    pub const ONES: Factors = Factors {
        attention: [1.0; 2],
        states: [1.0; 2],
        into_states: [1.0; 5],
        feed_forward: [1.0; 2],
    };
}
