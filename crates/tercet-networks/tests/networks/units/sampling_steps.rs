//! Each sampler against its definition, written out in probabilities.

use tercet_networks::internals::SamplingState;
use tercet_networks::{MirostatOptions, SamplerStep, SamplingOptions};
const LOGITS: [f32; 8] = [0.5, -1.0, 2.0, 1.5, 0.5, f32::NEG_INFINITY, 1.0, -4.0];
/// Number of random numbers, evenly spaced.
const UNITS: u32 = 4000;

fn with(change: impl Fn(&mut SamplingOptions)) -> SamplingOptions {
    let mut options = SamplingOptions {
        temperature: 1.0,
        ..SamplingOptions::default()
    };
    change(&mut options);
    options
}

/// For each token, the share of the evenly spaced random numbers that sample it.
fn shares(options: &SamplingOptions, logits: &[f32], second: f64) -> Vec<f64> {
    let mut found = vec![0.0; logits.len()];
    for i in 0..UNITS {
        let units = [f64::from(i) / f64::from(UNITS), second];
        let mut state = SamplingState::default();
        let token = options.sample(logits, (&[], &[]), units, &mut state);
        found[token.expect("there are logits") as usize] += 1.0 / f64::from(UNITS);
    }
    found
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|x| x.exp()).sum();
    logits.iter().map(|x| x.exp() / total).collect()
}

/// Softmax of `logits` over the tokens for which `keeps` is true; the other tokens get 0.
fn over(logits: &[f64], keeps: impl Fn(usize) -> bool) -> Vec<f64> {
    let kept = logits.iter().enumerate();
    let kept: Vec<f64> = kept
        .map(|(i, x)| if keeps(i) { *x } else { f64::NEG_INFINITY })
        .collect();
    softmax(&kept)
}

fn assert_close(found: &[f64], want: &[f64], what: &str) {
    for (a, b) in found.iter().zip(want) {
        assert!(
            (a - b).abs() < 2.0 / f64::from(UNITS),
            "{what}: {found:?} {want:?}"
        );
    }
}

fn raw() -> Vec<f64> {
    LOGITS.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn typical_keeps_tokens_near_the_entropy() {
    let p = softmax(&raw());
    let expected: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    let mut order: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
    let distance = |i: usize| (-p[i].ln() - expected).abs();
    order.sort_by(|a, b| {
        distance(*a)
            .total_cmp(&distance(*b))
            .then(p[*b].total_cmp(&p[*a]))
    });
    for typical_p in [0.0, 0.2, 0.5, 0.8, 0.99] {
        let mut kept = Vec::new();
        let mut total = 0.0;
        for i in &order {
            kept.push(*i);
            total += p[*i];
            if total > typical_p {
                break;
            }
        }
        let options = with(|o| o.typical_p = typical_p);
        let want = over(&raw(), |i| kept.contains(&i));
        assert_close(&shares(&options, &LOGITS, 0.0), &want, "typical");
    }
}

#[test]
fn top_n_sigma_keeps_logits_near_the_greatest() {
    let finite: Vec<f64> = raw().into_iter().filter(|x| x.is_finite()).collect();
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let variance = finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / finite.len() as f64;
    for n in [0.1, 0.5, 1.0, 2.0, 5.0] {
        let options = with(|o| o.top_n_sigma = n);
        let want = over(&raw(), |i| raw()[i] >= 2.0 - n * variance.sqrt());
        assert_close(&shares(&options, &LOGITS, 0.0), &want, "top-n-sigma");
    }
}

#[test]
fn xtc_removes_all_but_the_least_of_the_likely() {
    let p = softmax(&raw());
    for threshold in [0.05, 0.1, 0.2, 0.3, 0.5] {
        let options = with(|o| {
            o.xtc_probability = 0.5;
            o.xtc_threshold = threshold;
        });
        let likely = (0..p.len()).filter(|i| p[*i] >= threshold);
        let least = likely.min_by(|a, b| p[*a].total_cmp(&p[*b]).then(b.cmp(a)));
        let removed =
            |i: usize| least.is_some_and(|least| p[i] > p[least] || p[i] == p[least] && i < least);
        let want = over(&raw(), |i| !removed(i));
        assert_close(&shares(&options, &LOGITS, 0.49), &want, "xtc");
        assert_close(&shares(&options, &LOGITS, 0.5), &p, "xtc by chance");
    }
    let off = with(|o| {
        o.xtc_probability = 1.0;
        o.xtc_threshold = 0.51;
    });
    assert_close(&shares(&off, &LOGITS, 0.0), &p, "xtc above one half");
}

#[test]
fn the_dynamic_temperature_follows_the_entropy() {
    let p = softmax(&raw());
    let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    for (temperature, range, exponent) in [(1.0, 0.5, 1.0), (0.8, 0.3, 2.0), (0.2, 0.5, 0.5)] {
        let options = with(|o| {
            o.temperature = temperature;
            o.dynatemp_range = range;
            o.dynatemp_exponent = exponent;
        });
        let (least, most) = (f64::max(0.0, temperature - range), temperature + range);
        let own = least + (most - least) * (entropy / 7_f64.ln()).powf(exponent);
        let scaled: Vec<f64> = raw().iter().map(|x| x / own).collect();
        assert_close(
            &shares(&options, &LOGITS, 0.0),
            &softmax(&scaled),
            "dynatemp",
        );
    }
}

#[test]
fn mirostat_learns_from_the_surprise_of_each_token() {
    let p = softmax(&raw());
    let mut order: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
    for v1 in [true, false] {
        let mirostat = MirostatOptions {
            estimates_exponent: v1,
            tau: 1.2,
            eta: 0.3,
        };
        let options = with(|o| o.mirostat = Some(mirostat));
        let mut state = SamplingState::default();
        let mut mu = 2.4;
        for step in 0..60 {
            let unit = f64::from(step * 37 % 60) / 60.0;
            let count = match v1 {
                true => {
                    let pairs = order.windows(2).enumerate();
                    let pairs: Vec<(f64, f64)> = pairs
                        .map(|(i, w)| {
                            let t = ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
                            (t, (p[w[0]] / p[w[1]]).ln())
                        })
                        .collect();
                    let s = pairs.iter().map(|(t, b)| t * b).sum::<f64>()
                        / pairs.iter().map(|(t, _)| t * t).sum::<f64>();
                    let e = s - 1.0;
                    let k = (e * 2_f64.powf(mu) / (1.0 - 8_f64.powf(-e))).powf(1.0 / s);
                    k as usize
                }
                false => order.iter().filter(|i| -p[**i].log2() <= mu).count(),
            };
            let kept = &order[..count.clamp(1, order.len())];
            let total: f64 = kept.iter().map(|i| p[*i]).sum();
            let mut running = 0.0;
            let drawn = kept.iter().find(|i| {
                running += p[**i] / total;
                running > unit
            });
            let drawn = *drawn.unwrap_or(&kept[kept.len() - 1]);
            mu -= 0.3 * (-(p[drawn] / total).log2() - 1.2);
            let found = options.sample(&LOGITS, (&[], &[]), [unit, 0.0], &mut state);
            assert_eq!(found, Some(drawn as u32), "step {step}, version 1: {v1}");
            assert!((state.mu.unwrap() - mu).abs() < 1e-9);
        }
    }
}

#[test]
fn the_order_of_the_steps_matters() {
    let steps = |names: &str| SamplerStep::parse_all(names).unwrap();
    let p = softmax(&raw());
    // The tokens that top-p keeps, computed from the probabilities before or after the temperature.
    let nucleus = |p: &[f64], most: f64| {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
        let mut total = 0.0;
        let reached = order.iter().position(|i| {
            total += p[*i];
            total >= most
        });
        order[..=reached.unwrap_or(order.len() - 1)].to_vec()
    };
    let hot: Vec<f64> = raw().iter().map(|x| x / 3.0).collect();
    let options = |names: &str| {
        with(|o| {
            o.temperature = 3.0;
            o.top_p = 0.7;
            o.samplers = steps(names);
        })
    };
    let early = nucleus(&p, 0.7);
    let late = nucleus(&softmax(&hot), 0.7);
    assert_ne!(early, late);
    let found = shares(&options("top_p;temperature"), &LOGITS, 0.0);
    assert_close(
        &found,
        &over(&hot, |i| early.contains(&i)),
        "top_p;temperature",
    );
    let found = shares(&options("temperature;top-p"), &LOGITS, 0.0);
    assert_close(
        &found,
        &over(&hot, |i| late.contains(&i)),
        "temperature;top-p",
    );
    // Only the named steps apply: without `temperature`, a temperature of 0 has no effect.
    let mut none = options("min_p");
    none.temperature = 0.0;
    assert_close(&shares(&none, &LOGITS, 0.0), &p, "no steps");
    let mut greedy = options("temperature");
    greedy.temperature = 0.0;
    assert_eq!(shares(&greedy, &LOGITS, 0.0)[2].round(), 1.0);
}

#[test]
fn steps_in_the_default_order_choose_as_without_them() {
    for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (3, 1.0, 0.0), (5, 0.8, 0.1), (0, 0.5, 0.3)] {
        let plain = with(|o| {
            o.temperature = 0.7;
            (o.top_k, o.top_p, o.min_p) = (top_k, top_p, min_p);
            o.repetition_penalty = 1.3;
            o.logit_bias = vec![(1, 2.0)];
        });
        // These values change no probability, but select the implementation by steps.
        let steps = SamplingOptions {
            typical_p: 1.0,
            top_n_sigma: 1e9,
            ..plain.clone()
        };
        for unit in (0..500).map(|i| f64::from(i) / 500.0) {
            let of = |options: &SamplingOptions| {
                let mut state = SamplingState::default();
                options.sample(&LOGITS, (&[2, 3], &[3]), [unit, 0.0], &mut state)
            };
            assert_eq!(of(&plain), of(&steps), "{top_k} {top_p} {min_p} {unit}");
        }
    }
}

#[test]
fn penalties_apply_at_their_place() {
    let options = |names: &str| {
        with(|o| {
            o.top_k = 2;
            o.presence_penalty = 9.0;
            o.dry.multiplier = 9.0;
            o.samplers = SamplerStep::parse_all(names).unwrap();
        })
    };
    let shares = |names: &str, context: &[u32], written: &[u32]| {
        let mut found = vec![0; LOGITS.len()];
        for i in 0..200 {
            let units = [f64::from(i) / 200.0, 0.0];
            let mut state = SamplingState::default();
            let token = options(names).sample(&LOGITS, (context, written), units, &mut state);
            found[token.unwrap() as usize] += 1;
        }
        found.iter().map(|n| *n > 1).collect::<Vec<bool>>()
    };
    let tokens = |all: &[usize]| {
        (0..LOGITS.len())
            .map(|i| all.contains(&i))
            .collect::<Vec<_>>()
    };
    assert_eq!(shares("top_k", &[], &[2]), tokens(&[2, 3]));
    assert_eq!(shares("penalties;top_k", &[], &[2]), tokens(&[3, 6]));
    assert_eq!(shares("top_k;penalties", &[], &[2]), tokens(&[3]));
    let context = [0, 1, 2, 7, 0, 1];
    assert_eq!(shares("dry;top_k", &context, &[]), tokens(&[3, 6]));
    assert_eq!(shares("top_k;dry", &context, &[]), tokens(&[3]));
}

#[test]
fn names_of_llama_cpp_are_known() {
    let all = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    assert_eq!(SamplerStep::parse_all(all).unwrap().len(), 9);
    let others = "top-k;nucleus;typical;typ-p;temp;top-n-sigma;min-p;";
    assert_eq!(SamplerStep::parse_all(others).unwrap().len(), 7);
    let wrong = SamplerStep::parse_all("top_k;beam").unwrap_err();
    assert!(
        wrong.contains("`beam`") && wrong.contains("top_n_sigma"),
        "{wrong}"
    );
}
