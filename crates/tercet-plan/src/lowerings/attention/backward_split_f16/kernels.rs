//! Kernels of the attention backward pass in F32 and BF16.

use tercet_ir::ops::AttentionGradOf;

use super::super::backward::{AttentionGradParams, module};
use super::super::coop::MmaPrecision;
use tercet_program::{ArgAccess, TypedKernel};

pub(super) static QUERIES: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_queries_f32",
    ArgAccess::Write,
    ArgAccess::Write
);
pub(super) static KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_f32",
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Write
);
pub(super) static CONVERT_QUERIES: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_queries_convert_f32",
    ArgAccess::Write,
    ArgAccess::Write
);
pub(super) static CONVERT_KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_convert_f32",
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Write
);

/// BF16 as scaled F16.
pub(super) static SCALED_QUERIES: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_queries_bf16",
    ArgAccess::Write,
    ArgAccess::Write
);
pub(super) static SCALED_KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_bf16",
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Write
);
pub(super) static SCALED_CONVERT_QUERIES: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_queries_convert_bf16",
    ArgAccess::Write,
    ArgAccess::Write
);
pub(super) static SCALED_CONVERT_KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_convert_bf16",
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Write
);

/// F32 fallback kernels for the KV heads that the split-F16 kernels skip.
pub(super) static REST_QUERIES: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_queries_rest_f32",
    ArgAccess::Write,
    ArgAccess::Read
);
pub(super) static REST_KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_rest_f32",
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Read
);
pub(super) static REST_LSE: TypedKernel<AttentionGradParams> =
    module!("attention_lse_rest_f32", ArgAccess::Write, ArgAccess::Read);

/// The kernel that computes the gradients of queries, or of keys and values. If `converts`, the
/// kernel converts accumulators with softmax weights directly into matmul operands.
pub(super) fn kernel_for(
    of: AttentionGradOf,
    factors: MmaPrecision,
    converts: bool,
) -> &'static TypedKernel<AttentionGradParams> {
    use AttentionGradOf::{Keys, Queries};
    match (factors, of, converts) {
        (MmaPrecision::Scaled, Queries, false) => &SCALED_QUERIES,
        (MmaPrecision::Scaled, Queries, true) => &SCALED_CONVERT_QUERIES,
        (MmaPrecision::Scaled, Keys, false) => &SCALED_KEYS,
        (MmaPrecision::Scaled, Keys, true) => &SCALED_CONVERT_KEYS,
        (_, Queries, false) => &QUERIES,
        (_, Queries, true) => &CONVERT_QUERIES,
        (_, Keys, false) => &KEYS,
        (_, Keys, true) => &CONVERT_KEYS,
    }
}
