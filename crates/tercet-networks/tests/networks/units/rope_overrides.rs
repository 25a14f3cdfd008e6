use tercet_networks::config::{RopeOverrides, RopeScaling, RopeScalingKind};
use tercet_networks::{DecoderDims, DecoderSpec};

fn model(scaling: RopeScaling) -> DecoderSpec {
    let mut spec = DecoderSpec::llama(DecoderDims {
        hidden: 64,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 300,
        context: 128,
    });
    spec.ropes[0].scaling = scaling;
    spec
}

#[test]
fn changes_apply_to_the_frequencies() {
    let plain = model(RopeScaling::None);
    let of = |spec: &DecoderSpec| spec.ropes[0].frequencies(16, 128);
    let none = RopeOverrides::default();
    assert_eq!(none.apply(&plain).unwrap(), plain);
    let base = RopeOverrides {
        theta: Some(1e6),
        ..none.clone()
    };
    let (frequencies, _) = of(&base.apply(&plain).unwrap());
    assert!((f64::from(frequencies[4]) - 1e6_f64.powf(-0.5)).abs() < 1e-9);
    let half = RopeOverrides {
        factor: Some(2.0),
        ..none.clone()
    };
    let halved: Vec<f32> = of(&plain).0.iter().map(|f| f / 2.0).collect();
    assert_eq!(of(&half.apply(&plain).unwrap()).0, halved);
    let divided = model(RopeScaling::Divisors(vec![1.0; 8]));
    assert_eq!(of(&half.apply(&divided).unwrap()).0, halved);
    let yarn = RopeOverrides {
        scaling: Some(RopeScalingKind::Yarn),
        factor: Some(4.0),
        ..none.clone()
    };
    let (frequencies, attention) = of(&yarn.apply(&plain).unwrap());
    assert_eq!(frequencies[0], 1.0);
    assert_eq!(frequencies[7], of(&plain).0[7] / 4.0);
    assert!((attention - (0.1 * 4.0_f32.ln() + 1.0)).abs() < 1e-6);
    let off = RopeOverrides {
        scaling: Some(RopeScalingKind::None),
        ..none
    };
    let scaled = yarn.apply(&plain).unwrap();
    assert_eq!(of(&off.apply(&scaled).unwrap()), of(&plain));
}

#[test]
fn changes_that_have_no_meaning_are_refused() {
    let none = RopeOverrides::default();
    let half = RopeOverrides {
        factor: Some(2.0),
        ..none.clone()
    };
    let llama3 = model(RopeScaling::Llama3 {
        factor: 8.0,
        low: 1.0,
        high: 4.0,
        original: 64,
    });
    let refused = |changes: &RopeOverrides, spec: &DecoderSpec, part: &str| {
        let e = changes.apply(spec).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    };
    refused(&half, &llama3, "name the scaling");
    let plain = model(RopeScaling::None);
    let beta = RopeOverrides {
        beta_fast: Some(8.0),
        ..none.clone()
    };
    refused(&beta, &plain, "`yarn`");
    let negative = RopeOverrides {
        factor: Some(-1.0),
        ..none.clone()
    };
    refused(&negative, &plain, "positive");
    let mut learned = plain;
    learned.ropes.clear();
    refused(&half, &learned, "no rotary positions");
}
