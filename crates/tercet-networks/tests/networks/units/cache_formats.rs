use tercet::{DType, Scheme};
use tercet_networks::{CacheFormat, DummyWeights, MatmulPrecision, Weights};

#[test]
fn caches_are_f16_where_products_round_to_f16() {
    let of = |scheme: Option<Scheme>, faster: &[DType], dtype, precision| {
        let weights = Weights::Dummy(scheme.map_or_else(DummyWeights::dense, DummyWeights::packed));
        CacheFormat::choose_from(&weights, faster, dtype, precision)
    };
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::BF16);
    let auto = MatmulPrecision::Auto;
    let gpu = [f16, bf16];
    for (scheme, faster, dtype, precision, expected) in [
        (Some(Scheme::Q4K), &gpu[..], f32, auto, f16),
        (Some(Scheme::F16), &gpu[..], f32, auto, f16),
        (
            Some(Scheme::Q4K),
            &gpu[..],
            f32,
            MatmulPrecision::Fixed(f16),
            f16,
        ),
        (
            Some(Scheme::Q4K),
            &gpu[..],
            f32,
            MatmulPrecision::Fixed(bf16),
            f32,
        ),
        (Some(Scheme::Q4K), &gpu[..], f32, MatmulPrecision::Full, f32),
        (Some(Scheme::Q4K), &gpu[1..], f32, auto, f32),
        (Some(Scheme::Q4K), &[], f32, auto, f32),
        (Some(Scheme::BF16), &gpu[..], f32, auto, f32),
        (None, &gpu[..], f32, auto, f32),
        (
            Some(Scheme::Q4K),
            &gpu[..],
            bf16,
            MatmulPrecision::Full,
            bf16,
        ),
    ] {
        let found = of(scheme, faster, dtype, precision);
        assert_eq!(
            found,
            CacheFormat::Float(expected),
            "{scheme:?} {dtype} {precision:?}"
        );
    }
}
