use std::ops::Range;

use tercet_networks::ClassScore;
use tercet_networks::internals::joined;

#[test]
fn neighbours_of_one_class_are_joined() {
    let labels = ["O", "B-PER", "I-PER", "LOC"].map(String::from);
    let classes = [0, 1, 2, 1, 2, 2, 0, 0, 3, 3, 2];
    let tokens = classes.iter().enumerate().map(|(i, &class)| {
        let score = i as f32;
        (ClassScore { class, score }, i * 10..i * 10 + 5)
    });
    let found = joined(tokens, &labels);
    let found: Vec<(&str, f32, Range<usize>)> = (found.iter())
        .map(|e| (e.name.as_str(), e.score, e.span.clone()))
        .collect();
    let want = [
        ("PER", 1.5, 10..25),
        ("PER", 4.0, 30..55),
        ("LOC", 8.5, 80..95),
        ("PER", 10.0, 100..105),
    ];
    assert_eq!(found, want);
}
