use tercet::ops::Sample;
use tercet_networks::SamplingOptions;
use tercet_networks::internals::SamplingState;

const LOGITS: [f32; 7] = [0.5, -1.0, 2.0, 1.5, 0.5, f32::NAN, 1.0];

fn drawn(temperature: f64) -> SamplingOptions {
    SamplingOptions {
        temperature,
        ..SamplingOptions::default()
    }
}

fn sampled(options: &SamplingOptions, context: &[u32], written: &[u32], unit: f64) -> Option<u32> {
    let mut state = SamplingState::default();
    options.sample(&LOGITS, (context, written), [unit, 0.0], &mut state)
}

/// The operator and the options of the host with the same parameters.
fn operator_and_options(temperature: f64, top_k: usize, top_p: f64) -> (Sample, SamplingOptions) {
    let op = Sample {
        top_k,
        top_p: tercet::attr::FloatAttr(top_p),
        temperature: tercet::attr::FloatAttr(temperature),
        seed: 0,
        stream: 0,
    };
    let options = SamplingOptions {
        top_k,
        top_p,
        ..drawn(temperature)
    };
    (op, options)
}

#[test]
fn without_what_only_the_host_does_tokens_are_those_of_the_operator() {
    let logits: Vec<f64> = LOGITS.iter().map(|x| f64::from(*x)).collect();
    for temperature in [0.0, 0.3, 1.0, 4.0] {
        for top_k in [0, 1, 3, 7, 99] {
            for top_p in [0.0, 0.5, 0.9, 1.0] {
                let (op, options) = operator_and_options(temperature, top_k, top_p);
                for unit in (0..200).map(|i| f64::from(i) / 200.0) {
                    let want = op.sample_index(&logits, unit).map(|i| i as u32);
                    assert_eq!(sampled(&options, &[], &[], unit), want, "{op:?} {unit}");
                }
            }
        }
    }
}

/// All tokens that sampling can return with these options.
fn possible(options: &SamplingOptions) -> Vec<u32> {
    let units = (0..1000).map(|i| f64::from(i) / 1000.0);
    let mut tokens: Vec<u32> = units
        .filter_map(|unit| sampled(options, &[], &[], unit))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[test]
fn tokens_of_a_large_vocabulary_are_those_of_the_operator() {
    // Weights that fall slowly, so that the drawn token is often beyond those sorted at first.
    let logits: Vec<f32> = (0..20_000u32)
        .map(|i| -((i.wrapping_mul(2_654_435_761) % 20_011) as f32) / 4_000.0)
        .collect();
    let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    for (temperature, top_k, top_p) in [
        (1.0, 0, 1.0),
        (0.2, 0, 1.0),
        (1.0, 0, 0.9),
        (0.05, 0, 0.5),
        (1.0, 5_000, 1.0),
        (1.0, 5_000, 0.7),
        (1.0, 40, 0.95),
    ] {
        let (op, options) = operator_and_options(temperature, top_k, top_p);
        for unit in (0..40).map(|i| f64::from(i) / 40.0) {
            let want = op.sample_index(&wide, unit).map(|i| i as u32);
            let mut state = SamplingState::default();
            let got = options.sample(&logits, (&[], &[]), [unit, 0.0], &mut state);
            assert_eq!(got, want, "{op:?} {unit}");
        }
    }
}

#[test]
fn min_p_keeps_what_is_likely_beside_the_likeliest() {
    let with = |min_p, top_p| SamplingOptions {
        min_p,
        top_p,
        ..drawn(1.0)
    };
    // Weights relative to token 2: exp(-0.5) = 0.61, exp(-1) = 0.37, exp(-1.5) = 0.22 twice,
    // exp(-3) = 0.05.
    assert_eq!(possible(&with(0.0, 1.0)), [0, 1, 2, 3, 4, 6]);
    assert_eq!(possible(&with(0.5, 1.0)), [2, 3]);
    assert_eq!(possible(&with(0.3, 1.0)), [2, 3, 6]);
    assert_eq!(possible(&with(0.3, 0.999)), [2, 3, 6]);
    assert_eq!(possible(&with(1.0, 1.0)), [2]);
    assert_eq!(possible(&with(0.3, 0.5)), [2, 3]);
}

#[test]
fn penalties_and_biases_change_logits() {
    let check = |options: &SamplingOptions, context: &[u32], written: &[u32], want| {
        assert_eq!(sampled(options, context, written, 0.0), Some(want));
    };
    let base = SamplingOptions::default();
    check(&base, &[2], &[2], 2);
    let repetition = SamplingOptions {
        repetition_penalty: 2.0,
        repetition_window: 2,
        ..base.clone()
    };
    check(&repetition, &[2], &[], 3);
    check(&repetition, &[2, 9, 9], &[], 2); // outside the window; 9 is outside the logits
    let presence = SamplingOptions {
        presence_penalty: 0.6,
        ..base.clone()
    };
    check(&presence, &[2, 2], &[], 2); // not written
    check(&presence, &[], &[2, 2], 3);
    let frequency = SamplingOptions {
        frequency_penalty: 0.3,
        ..base.clone()
    };
    check(&frequency, &[], &[2], 2);
    check(&frequency, &[], &[2, 2], 3);
    let bias = SamplingOptions {
        logit_bias: vec![(2, f32::NEG_INFINITY), (1, 9.0)],
        ..base
    };
    check(&bias, &[], &[], 1);
}

#[test]
fn ends_are_banned_up_to_the_minimum() {
    let options = SamplingOptions {
        min_tokens: 2,
        ends: vec![2, 99],
        ..SamplingOptions::default()
    };
    let of = |written: &[u32]| sampled(&options, written, written, 0.0);
    assert_eq!(
        (of(&[]), of(&[3]), of(&[3, 3])),
        (Some(3), Some(3), Some(2))
    );
    // Nothing else is allowed.
    let only = [f32::NEG_INFINITY, 0.0];
    let options = SamplingOptions {
        min_tokens: usize::MAX,
        ends: vec![1],
        ..SamplingOptions::default()
    };
    let mut state = SamplingState::default();
    let chosen = options.sample(&only, (&[], &[]), [0.0; 2], &mut state);
    assert_eq!(chosen, Some(1));
}

#[test]
fn what_is_out_of_range_is_refused_by_name() {
    let refused = |options: SamplingOptions, name: &str| {
        let e = options.check(7).unwrap_err().to_string();
        assert!(e.contains(name), "{e}");
    };
    refused(drawn(f64::NAN), "temperature");
    refused(drawn(-1.0), "temperature");
    let base = SamplingOptions::default();
    let with = |f: &dyn Fn(&mut SamplingOptions)| {
        let mut options = base.clone();
        f(&mut options);
        options
    };
    refused(with(&|o| o.min_p = 1.5), "min_p");
    refused(with(&|o| o.repetition_penalty = 0.0), "repetition_penalty");
    refused(
        with(&|o| o.frequency_penalty = f64::INFINITY),
        "frequency_penalty",
    );
    refused(with(&|o| o.logit_bias = vec![(7, 0.0)]), "token 7");
    refused(with(&|o| o.logit_bias = vec![(1, f32::NAN)]), "token 1");
    assert!(base.check(7).is_ok());
}
