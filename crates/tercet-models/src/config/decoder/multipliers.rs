//! Factors of projections and of queries.

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

/// How queries grow with their positions, so that the weights of attention stay sharp where there are many keys ("temperature
/// tuning" of Llama 4, 2025).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// How much.
    pub beta: f32,
    /// Positions of the first training, below which nothing grows.
    pub original: usize,
}

impl QueryGrowth {
    /// The factor of a query at this position: `1 + beta ln(1 + floor(position / original))`, in F32 as the reference has it.
    pub fn at(self, position: usize) -> f32 {
        let turns = position / self.original.max(1);
        1.0 + self.beta * (1.0 + turns as f32).ln()
    }
}
