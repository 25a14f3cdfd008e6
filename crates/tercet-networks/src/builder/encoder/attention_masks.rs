//! Values shared by all layers of an encoder: attention masks and RoPE tables.

use tercet::ops::{AttentionMask, ReduceFn};
use tercet::{DType, Dim, Value};

use super::super::decoder::layer::rope_table;
use super::super::{ModelBuilder, ModelError};
use super::layer::{EncoderContext, EncoderTexts, counted};
use super::relative::relative_bias;
use crate::config::encoder::{AttentionPattern, EncoderLayer};

/// Attention mask and key lengths of a layer.
#[derive(Clone, Copy)]
pub(super) struct AttentionMasks {
    pub(super) mask: AttentionMask,
    pub(super) kv_len: Option<Value>,
}

/// Values computed once per run and read by every layer.
pub(super) struct EncoderForwardContext {
    full: AttentionMasks,
    /// Masks by window size.
    windows: Vec<(usize, AttentionMasks)>,
    pub(super) ropes: Vec<[Value; 2]>,
    pub(super) rows: Dim,
    pub(super) len: Dim,
}

impl EncoderForwardContext {
    /// Values for image patches: full bidirectional attention.
    pub(super) fn for_patches(rows: Dim, len: Dim) -> EncoderForwardContext {
        EncoderForwardContext {
            full: AttentionMasks {
                mask: AttentionMask::None,
                kv_len: None,
            },
            windows: Vec::new(),
            ropes: Vec::new(),
            rows,
            len,
        }
    }

    /// Attention masks of this layer.
    pub(super) fn attention_masks(&self, layer: &EncoderLayer) -> AttentionMasks {
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

impl EncoderContext<'_> {
    /// Computes the shared values for a batch of texts.
    pub(super) fn forward_context(
        &self,
        b: &mut ModelBuilder<'_>,
        texts: &EncoderTexts,
    ) -> Result<EncoderForwardContext, ModelError> {
        let spec = self.spec;
        let shape = &b.graph.ty(texts.ids).shape;
        let (rows, len) = (shape[0].clone(), shape[1].clone());
        let windowed = spec.layers.iter().any(|layer| layer.window.is_some());
        // Masks of shape `[len, len]` are shared by all texts, and padding is excluded by text
        // lengths. One such mask per text would be the largest tensor of the model.
        let by_count = windowed || spec.relative_position_bias.is_some();
        let kv_len = match texts.mask {
            Some(mask) if by_count => {
                let tokens = b.graph.cast(mask, DType::I32)?;
                Some(b.graph.reduce(ReduceFn::Sum, tokens, &[1], false)?)
            }
            Some(_) | None => None,
        };
        let full = match spec.relative_position_bias {
            Some(terms) => AttentionMasks {
                mask: AttentionMask::Bias(relative_bias(b, self, terms, &len)?),
                kv_len,
            },
            None => AttentionMasks {
                mask: match (spec.attention_pattern, texts.mask) {
                    (AttentionPattern::Tokens, Some(mask)) => AttentionMask::Keep(mask),
                    (AttentionPattern::Causal, _) => AttentionMask::Causal,
                    (AttentionPattern::Tokens, None) | (AttentionPattern::All, _) => {
                        AttentionMask::None
                    }
                },
                kv_len: None,
            },
        };
        let mut windows: Vec<(usize, AttentionMasks)> = Vec::new();
        for EncoderLayer { window, .. } in &spec.layers {
            if let Some(window) = *window
                && !windows.iter().any(|(known, _)| *known == window)
            {
                let mask = AttentionMask::Keep(near(b, window, &len)?);
                windows.push((window, AttentionMasks { mask, kv_len }));
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
        Ok(EncoderForwardContext {
            full,
            windows,
            ropes,
            rows,
            len,
        })
    }
}

/// Mask of positions at most `window` apart, Bool `[1, len, len]`.
pub(super) fn near(
    b: &mut ModelBuilder<'_>,
    window: usize,
    len: &Dim,
) -> Result<Value, ModelError> {
    let g = &mut b.graph;
    let all = g.scalar(DType::Bool, 1.0)?;
    let all = g.expand(all, [len.clone(), len.clone()])?;
    let window = i64::try_from(window).unwrap_or(i64::MAX);
    let below = g.trilu(all, false, window)?;
    let both = g.trilu(below, true, -window)?;
    Ok(g.unsqueeze(both, 0)?)
}
