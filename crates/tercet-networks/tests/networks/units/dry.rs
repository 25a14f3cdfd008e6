use std::collections::HashMap;
use std::sync::Arc;

use tercet_networks::{DryBreakers, DryOptions};

/// The penalties by their definition: for each token, that of the longest repetition that it
/// would extend.
fn expected(options: &DryOptions, context: &[u32], breakers: &[Vec<u32>]) -> HashMap<u32, f64> {
    let from = context.len().saturating_sub(options.window);
    let text = &context[from..];
    let mut most = text.len();
    'ends: for at in (0..text.len()).rev() {
        let mut lens = breakers.iter().filter(|b| text[at..].starts_with(b));
        if let Some(first) = lens.next() {
            let longest = lens.fold(first.len(), |a, b| a.max(b.len()));
            most = text.len() - at - longest;
            break 'ends;
        }
    }
    let mut found = HashMap::new();
    for next in 1..text.len() {
        let len = (0..next).take_while(|n| text[next - 1 - n] == text[text.len() - 1 - n]);
        let len = len.count().min(most);
        let alone = breakers.contains(&vec![text[next]]);
        if len >= options.allowed_length && text.len() > options.allowed_length && !alone {
            let penalty =
                options.multiplier * options.base.powi((len - options.allowed_length) as i32);
            let own: &mut f64 = found.entry(text[next]).or_insert(0.0);
            *own = own.max(penalty);
        }
    }
    found
}

#[test]
fn penalties_are_those_of_the_definition() {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 33) % below) as u32
    };
    for round in 0..400 {
        let context: Vec<u32> = (0..round % 40).map(|_| random(3)).collect();
        let breakers = match round % 4 {
            0 => vec![],
            1 => vec![vec![2]],
            2 => vec![vec![2, 1]],
            _ => vec![vec![0, 1], vec![0]],
        };
        let options = DryOptions {
            multiplier: 0.5,
            base: 2.0,
            allowed_length: 1 + round % 3,
            window: [usize::MAX, 9][round % 2],
            breakers: Arc::new(DryBreakers::from_tokens(&breakers)),
        };
        let want = expected(&options, &context, &breakers);
        assert_eq!(options.penalties(&context), want, "{context:?} {options:?}");
    }
}

#[test]
fn a_longer_repetition_costs_more() {
    // The context is `a b c .. a b`: a following `c` would repeat three tokens.
    let options = DryOptions {
        multiplier: 1.0,
        ..DryOptions::default()
    };
    assert_eq!(
        options.penalties(&[1, 2, 3, 9, 1, 2]),
        HashMap::from([(3, 1.0)])
    );
    let four = options.penalties(&[7, 1, 2, 3, 9, 7, 1, 2]);
    assert_eq!(four, HashMap::from([(3, 1.75)]));
    assert!(options.penalties(&[1, 2, 3, 9, 2]).is_empty());
    assert!(
        DryOptions::default()
            .penalties(&[1, 2, 3, 9, 1, 2])
            .is_empty()
    );
    let long = vec![5; 5000];
    assert_eq!(options.penalties(&long), HashMap::from([(5, 1e30)]));
}
