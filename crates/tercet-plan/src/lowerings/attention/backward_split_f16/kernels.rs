//! The kernels of attention's gradients in F32 and BF16.

use tercet_ir::ops::AttentionGradOf;

use super::super::coop::Factors;
use super::super::training::{AttentionGradParams, module};
use crate::kernel::{Access, Kernel};

pub(super) static QUERIES: Kernel<AttentionGradParams> =
    module!("attention_grad_queries_f32", Access::Write, Access::Write);
pub(super) static KEYS: Kernel<AttentionGradParams> = module!(
    "attention_grad_keys_f32",
    Access::Write,
    Access::Write,
    Access::Write
);
pub(super) static CONVERT_QUERIES: Kernel<AttentionGradParams> = module!(
    "attention_grad_queries_convert_f32",
    Access::Write,
    Access::Write
);
pub(super) static CONVERT_KEYS: Kernel<AttentionGradParams> = module!(
    "attention_grad_keys_convert_f32",
    Access::Write,
    Access::Write,
    Access::Write
);

/// BF16 as F16 with a scale.
pub(super) static SCALED_QUERIES: Kernel<AttentionGradParams> =
    module!("attention_grad_queries_bf16", Access::Write, Access::Write);
pub(super) static SCALED_KEYS: Kernel<AttentionGradParams> = module!(
    "attention_grad_keys_bf16",
    Access::Write,
    Access::Write,
    Access::Write
);
pub(super) static SCALED_CONVERT_QUERIES: Kernel<AttentionGradParams> = module!(
    "attention_grad_queries_convert_bf16",
    Access::Write,
    Access::Write
);
pub(super) static SCALED_CONVERT_KEYS: Kernel<AttentionGradParams> = module!(
    "attention_grad_keys_convert_bf16",
    Access::Write,
    Access::Write,
    Access::Write
);

/// Of the key heads that the kernels above leave.
pub(super) static REST_QUERIES: Kernel<AttentionGradParams> = module!(
    "attention_grad_queries_rest_f32",
    Access::Write,
    Access::Read
);
pub(super) static REST_KEYS: Kernel<AttentionGradParams> = module!(
    "attention_grad_keys_rest_f32",
    Access::Write,
    Access::Write,
    Access::Read
);
pub(super) static REST_LSE: Kernel<AttentionGradParams> =
    module!("attention_lse_rest_f32", Access::Write, Access::Read);

/// The kernel of these gradients; `converts` where weights become factors by a conversion.
pub(super) fn of(
    of: AttentionGradOf,
    factors: Factors,
    converts: bool,
) -> &'static Kernel<AttentionGradParams> {
    use AttentionGradOf::{Keys, Queries};
    match (factors, of, converts) {
        (Factors::Scaled, Queries, false) => &SCALED_QUERIES,
        (Factors::Scaled, Queries, true) => &SCALED_CONVERT_QUERIES,
        (Factors::Scaled, Keys, false) => &SCALED_KEYS,
        (Factors::Scaled, Keys, true) => &SCALED_CONVERT_KEYS,
        (_, Queries, false) => &QUERIES,
        (_, Queries, true) => &CONVERT_QUERIES,
        (_, Keys, false) => &KEYS,
        (_, Keys, true) => &CONVERT_KEYS,
    }
}
