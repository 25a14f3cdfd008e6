//! What all layers of an encoder read: which tokens see each other, and rotations.

use tercet::ops::{AttentionMask, ReduceFn};
use tercet::{DType, Dim, Value};

use super::super::decoder::layer::rope_table;
use super::super::{Builder, ModelError};
use super::layer::{Model, Texts, counted};
use super::relative::relative_bias;
use crate::config::encoder::{EncoderLayer, Visible};

/// Which keys queries see.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) mask: AttentionMask,
    pub(super) kv_len: Option<Value>,
}

/// Values that every layer reads.
pub(super) struct Shared {
    full: Seen,
    /// By window.
    windows: Vec<(usize, Seen)>,
    pub(super) ropes: Vec<[Value; 2]>,
    pub(super) rows: Dim,
    pub(super) len: Dim,
}

impl Shared {
    /// Of patches, which see each other.
    pub(super) fn of_patches(rows: Dim, len: Dim) -> Shared {
        Shared {
            full: Seen {
                mask: AttentionMask::None,
                kv_len: None,
            },
            windows: Vec::new(),
            ropes: Vec::new(),
            rows,
            len,
        }
    }

    /// What this layer's queries see.
    pub(super) fn seen(&self, layer: &EncoderLayer) -> Seen {
        let of_window = |window| self.windows.iter().find(|(known, _)| *known == window);
        match layer.window {
            Some(window) => {
                let (_, seen) =
                    of_window(window).expect("invariant: there is a mask for every window");
                *seen
            }
            None => self.full,
        }
    }
}

impl Model<'_> {
    /// What the layers of texts read.
    pub(super) fn shared(&self, b: &mut Builder<'_>, texts: &Texts) -> Result<Shared, ModelError> {
        let spec = self.spec;
        let shape = &b.graph.ty(texts.ids).shape;
        let (rows, len) = (shape[0].clone(), shape[1].clone());
        let windowed = spec.layers.iter().any(|layer| layer.window.is_some());
        // Masks of every pair of positions are the same for all texts, whose ends are counted: they would be the largest
        // values of a model otherwise.
        let by_count = windowed || spec.relative.is_some();
        let kv_len = match texts.mask {
            Some(mask) if by_count => {
                let tokens = b.graph.cast(mask, DType::I32)?;
                Some(b.graph.reduce(ReduceFn::Sum, tokens, &[1], false)?)
            }
            Some(_) | None => None,
        };
        let full = match spec.relative {
            Some(terms) => Seen {
                mask: AttentionMask::Bias(relative_bias(b, self, terms, &len)?),
                kv_len,
            },
            None => Seen {
                mask: match (spec.visible, texts.mask) {
                    (Visible::Tokens, Some(mask)) => AttentionMask::Keep(mask),
                    (Visible::Causal, _) => AttentionMask::Causal,
                    (Visible::Tokens, None) | (Visible::All, _) => AttentionMask::None,
                },
                kv_len: None,
            },
        };
        let mut windows: Vec<(usize, Seen)> = Vec::new();
        for EncoderLayer { window, .. } in &spec.layers {
            if let Some(window) = *window
                && !windows.iter().any(|(known, _)| *known == window)
            {
                let mask = AttentionMask::Keep(near(b, window, &len)?);
                windows.push((window, Seen { mask, kv_len }));
            }
        }
        let mut ropes = Vec::new();
        if !spec.ropes.is_empty() {
            let positions = counted(b, spec.context, &len)?;
            for rope in &spec.ropes {
                ropes.push(rope_table(
                    b,
                    rope,
                    [spec.head_dim, spec.context],
                    positions,
                )?);
            }
        }
        Ok(Shared {
            full,
            windows,
            ropes,
            rows,
            len,
        })
    }
}

/// Which positions are at most `window` apart, Bool `[1, len, len]`.
pub(super) fn near(b: &mut Builder<'_>, window: usize, len: &Dim) -> Result<Value, ModelError> {
    let g = &mut b.graph;
    let all = g.scalar(DType::Bool, 1.0)?;
    let all = g.expand(all, [len.clone(), len.clone()])?;
    let window = i64::try_from(window).unwrap_or(i64::MAX);
    let below = g.trilu(all, false, window)?;
    let both = g.trilu(below, true, -window)?;
    Ok(g.unsqueeze(both, 0)?)
}
