use tercet::DType;
use tercet_models::config::{DecoderDims, DecoderSpec};
use tercet_models::internals::{CONTEXT_STEP, MemoryUse};
use tercet_models::{CacheFormat, ContextBound, ContextFit, ContextRequest, ModelError};

/// A model of the size of Llama 3.1 8B: 256 KiB of F32 cache per token.
fn spec() -> DecoderSpec {
    DecoderSpec::llama(DecoderDims {
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14336,
        vocab: 128_256,
        context: 131_072,
    })
}

fn fit(request: ContextRequest, free: Option<u64>, on_cpu: bool) -> Result<ContextFit, ModelError> {
    let spec = spec();
    let of = MemoryUse {
        spec: &spec,
        request: &request,
        weight_bytes: 4_920_000_000,
    };
    of.fit(free, on_cpu)
}

#[test]
fn the_default_is_what_the_memory_holds_at_most_the_trained_context() {
    let one = ContextRequest::default();
    let large = fit(one, Some(139 << 30), false).expect("139 GiB hold 32 GiB of cache");
    assert_eq!(
        (large.context, large.bound),
        (131_072, ContextBound::Training)
    );
    let small = fit(one, Some(8 << 30), false).expect("8 GiB hold some context");
    assert_eq!(small.bound, ContextBound::Memory);
    assert_eq!(small.context % CONTEXT_STEP, 0);
    let used = small.weight_bytes + small.cache_bytes + small.workspace_bytes;
    assert!(used <= 8 << 30, "{used}");
    let next = small.context + CONTEXT_STEP;
    let more = fit(
        ContextRequest {
            context: Some(next),
            ..one
        },
        Some(8 << 30),
        false,
    );
    assert!(more.is_err(), "{next} tokens fit as well");
}

#[test]
fn slots_share_the_memory_and_narrow_caches_hold_more() {
    let one = ContextRequest::default();
    let context = |request| fit(request, Some(8 << 30), false).expect("8 GiB").context;
    let shared = context(ContextRequest { slots: 4, ..one });
    assert!(shared <= context(one) / 4 + CONTEXT_STEP, "{shared}");
    let narrow = ContextRequest {
        cache: Some(CacheFormat::Float(DType::F16)),
        ..one
    };
    assert!(context(narrow) >= 2 * context(one) - CONTEXT_STEP);
}

#[test]
fn a_cpu_has_a_lower_default_and_zero_requests_the_trained_context() {
    let one = ContextRequest::default();
    let cpu = fit(one, Some(64 << 30), true).expect("64 GiB");
    assert_eq!((cpu.context, cpu.bound), (8192, ContextBound::CpuDefault));
    let unknown = fit(one, None, false).expect("an unknown size passes");
    assert_eq!(unknown.context, 8192);
    let all = ContextRequest {
        context: Some(0),
        ..one
    };
    let all = fit(all, Some(64 << 30), true).expect("64 GiB");
    assert_eq!((all.context, all.bound), (131_072, ContextBound::Request));
}

#[test]
fn an_error_names_the_options_and_the_missing_memory() {
    let e = fit(ContextRequest::default(), Some(4 << 30), false)
        .unwrap_err()
        .to_string();
    for part in [
        "`-c`",
        "`--cache-dtype f16`",
        "GiB are missing",
        "512 tokens",
    ] {
        assert!(e.contains(part), "{part} is not in: {e}");
    }
    let wide = ContextRequest {
        context: Some(0),
        slots: 4,
        ..ContextRequest::default()
    };
    let e = fit(wide, Some(64 << 30), true).unwrap_err().to_string();
    assert!(e.contains("4 sequences of 131072 tokens"), "{e}");
}
