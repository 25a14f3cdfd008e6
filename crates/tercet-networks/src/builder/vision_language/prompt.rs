//! Expansion of `<image>` placeholders in prompts, in the format of the reference processor.

use std::ops::Range;

use crate::hf::{AROUND, IMAGE, WHOLE};
use crate::image::ImageTiles;

/// Minimum number of marker tokens for an image with these tiles: markers before each tile and
/// after the last.
pub fn tokens_around(tiles: ImageTiles) -> usize {
    2 * tiles.count() + 1
}

/// The prompt with the placeholders at `places` expanded to `rows` placeholders per tile, and its
/// literal ranges. There are as many places as images, or there are no images.
pub fn expand_image_tokens(
    (prompt, literal): (&str, &[Range<usize>]),
    places: &[usize],
    pictures: &[ImageTiles],
    rows: usize,
) -> (String, Vec<Range<usize>>) {
    let mut text = String::new();
    // For each placeholder: its end in `prompt`, and the number of bytes by which the expanded text
    // up to there is longer.
    let mut gains = vec![(0, 0)];
    let mut start = 0;
    for (tiles, place) in pictures.iter().zip(places) {
        text.push_str(&prompt[start..*place]);
        push_picture(&mut text, *tiles, &IMAGE.repeat(rows));
        start = place + IMAGE.len();
        gains.push((start, text.len() - start));
    }
    text.push_str(&prompt[start..]);
    let shifted = literal.iter().map(|range| {
        let at = gains.partition_point(|(end, _)| *end <= range.start);
        let gain = gains[at - 1].1;
        range.start + gain..range.end + gain
    });
    (text, shifted.collect())
}

/// The positions of the `<image>` placeholders in a prompt, outside of its literal ranges.
pub fn places(prompt: &str, literal: &[Range<usize>]) -> Vec<usize> {
    let found = prompt.match_indices(IMAGE).map(|(at, _)| at);
    let is_literal = |at: &usize| {
        let mut ranges = literal.iter();
        ranges.any(|range| range.start < at + IMAGE.len() && *at < range.end)
    };
    found.filter(|at| !is_literal(at)).collect()
}

fn push_picture(text: &mut String, tiles: ImageTiles, places: &str) {
    let ImageTiles { rows, columns } = tiles;
    for row in 1..=rows {
        for column in 1..=columns {
            text.push_str(&format!("{AROUND}<row_{row}_col_{column}>{places}"));
        }
        text.push('\n');
    }
    if tiles.count() > 1 {
        text.push('\n');
    }
    text.push_str(&format!("{AROUND}{WHOLE}{places}{AROUND}"));
}
