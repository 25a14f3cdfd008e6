use std::f64::consts::PI;

use tercet_models::internals::Resampler;

/// Resamples a test tone in chunks of `piece` samples.
fn tone(hertz: f64, [from, to]: [usize; 2], piece: usize) -> Vec<f32> {
    let at = |i: usize| (2.0 * PI * hertz * i as f64 / from as f64).sin() as f32;
    let samples: Vec<f32> = (0..from).map(at).collect();
    let mut resampler = Resampler::new(from, to);
    let mut out = Vec::new();
    for piece in samples.chunks(piece) {
        resampler.push(piece, &mut out);
    }
    resampler.finish(&mut out);
    out
}

#[test]
fn tones_stay_where_they_are() {
    for from in [
        8_000, 11_025, 16_000, 22_050, 44_100, 44_101, 48_000, 96_000,
    ] {
        let out = tone(1_000.0, [from, 16_000], 1_000);
        assert_eq!(out.len(), 16_000, "{from}");
        let wanted = |i: usize| (2.0 * PI * 1_000.0 * i as f64 / 16_000.0).sin() as f32;
        // The ends are excluded: their filter windows are incomplete.
        let off = (500..15_500).map(|i| (out[i] - wanted(i)).abs());
        let worst = off.fold(0.0, f32::max);
        assert!(worst < 1e-4, "{from}: {worst}");
    }
}

#[test]
fn tones_above_the_rate_go() {
    for (hertz, from) in [(8_100.0, 22_050), (10_000.0, 44_100), (20_000.0, 48_000)] {
        let out = tone(hertz, [from, 16_000], 4_096);
        let most = out[500..15_500]
            .iter()
            .fold(0.0, |m: f32, x| m.max(x.abs()));
        assert!(most < 2e-4, "{hertz} of {from}: {most}");
    }
}

#[test]
fn pieces_make_no_difference() {
    let whole = tone(440.0, [44_100, 16_000], 44_100);
    for piece in [1, 7, 4_096] {
        assert_eq!(tone(440.0, [44_100, 16_000], piece), whole);
    }
}
