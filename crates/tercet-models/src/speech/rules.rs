//! Rules that restrict Whisper's next token.

use tercet_networks::config::SpeechTokens;

/// Sets the logits of tokens that must not follow `text`, the tokens of the window so far, to minus
/// infinity.
///
/// With timestamps (Radford et al. 2022) these rules apply:
///
/// - A text begins with a timestamp, at most [`SpeechTokens::latest_first`].
/// - Timestamps come in pairs: the end of a segment and the start of the next one. The text may end
///   between them.
/// - Timestamps increase; the second one of a pair may equal the first.
/// - If the total probability of timestamps exceeds that of every other token, only timestamps are
///   allowed.
pub fn restrict(logits: &mut [f32], tokens: &SpeechTokens, text: &[u32], timestamps: bool) {
    if text.is_empty() {
        refuse(logits, &tokens.suppressed_first);
    }
    refuse(logits, &tokens.suppressed);
    if timestamps {
        restrict_times(logits, tokens, text);
    }
}

fn refuse(logits: &mut [f32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn restrict_times(logits: &mut [f32], tokens: &SpeechTokens, text: &[u32]) {
    let first = tokens.first_timestamp() as usize;
    let time = |token: &u32| *token as usize >= first;
    refuse(logits, &[tokens.no_timestamps]);
    let last = text.last().is_some_and(time);
    let before = text.len() < 2 || time(&text[text.len() - 2]);
    let refused = match (last, before) {
        (true, true) => first..logits.len(),
        (true, false) => 0..tokens.end as usize,
        (false, _) => 0..0,
    };
    logits[refused].fill(f32::NEG_INFINITY);
    if let Some(&latest) = text.iter().rfind(|token| time(token)) {
        let least = match last && !before {
            true => latest as usize,
            false => latest as usize + 1,
        };
        let least = least.min(logits.len());
        logits[first..least].fill(f32::NEG_INFINITY);
    }
    if text.is_empty() {
        logits[..first].fill(f32::NEG_INFINITY);
        if let Some(latest) = tokens.latest_first {
            let beyond = first.saturating_add(latest).saturating_add(1);
            let beyond = beyond.min(logits.len());
            logits[beyond..].fill(f32::NEG_INFINITY);
        }
    }
    let (words, times) = logits.split_at_mut(first);
    let likeliest = words.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if log_sum(times) > f64::from(likeliest) {
        words.fill(f32::NEG_INFINITY);
    }
}

/// Independent accumulators of the vectorized sum.
const LANES: usize = 16;
/// Number of terms accumulated in F32 before the F64 sum.
const PART: usize = 64 * LANES;

/// Log-sum-exp of the logits, accurate to a few millionths. The exponentials are F32 for speed: the
/// function runs over the whole vocabulary for each token.
pub fn log_sum(logits: &[f32]) -> f64 {
    let top = greatest_of(logits);
    if top == f32::NEG_INFINITY {
        return f64::from(top);
    }
    let mut sum = 0.0;
    for part in logits.chunks(PART) {
        let mut sums = [0.0; LANES];
        let lanes = part.chunks_exact(LANES);
        let rest = lanes.remainder();
        for own in lanes {
            for (sum, x) in sums.iter_mut().zip(own) {
                *sum += exp(x - top);
            }
        }
        let rest: f32 = rest.iter().map(|x| exp(x - top)).sum();
        sum += f64::from(sums.iter().sum::<f32>() + rest);
    }
    f64::from(top) + sum.ln()
}

/// Greatest logit; minus infinity if there are none.
fn greatest_of(logits: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    let lanes = logits.chunks_exact(LANES);
    let rest = lanes.remainder().iter().copied();
    for own in lanes {
        for (most, x) in most.iter_mut().zip(own) {
            *most = if *x > *most { *x } else { *most };
        }
    }
    most.into_iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, f32::max)
}

/// `e^x` for `x <= 0`, accurate to two millionths; written so that compilers vectorize it.
pub fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding and subtracting this constant rounds to an integer.
    const WHOLE: f32 = 12_582_912.0;
    // Smaller inputs give subnormal powers of two, which are negligible beside the greatest term,
    // 1.
    let x = if x > -87.0 { x } else { -87.0 };
    let n = (x * std::f32::consts::LOG2_E + WHOLE) - WHOLE;
    // ln 2 split in two parts; the first has few mantissa bits, so its product with `n` is exact.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let terms = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let y = terms.iter().fold(0.0, |sum, term| sum * r + term);
    y * f32::from_bits(((n as i32 + 127) << 23) as u32)
}
