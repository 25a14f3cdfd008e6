use tercet_networks::internals::repeated;

#[test]
fn what_followed_the_last_tokens_is_proposed() {
    let check = |text: &[u32], most: usize, want: &[u32]| {
        let (next, before) = text.split_last().unwrap_or((&0, &[]));
        assert_eq!(repeated(before, *next, most), want, "{text:?}");
    };
    check(&[7], 3, &[]);
    check(&[1, 2, 3, 4], 3, &[]);
    // A single matching token is too short for an n-gram.
    check(&[1, 2, 3, 1], 3, &[]);
    check(&[1, 2, 9, 8, 7, 1, 2], 3, &[9, 8, 7]);
    // The longest n-gram takes precedence over the last occurrence.
    check(&[1, 2, 9, 1, 2, 5, 6, 1, 2], 2, &[5, 6]);
    check(&[3, 1, 2, 9, 1, 2, 5, 3, 1, 2], 1, &[9]);
    // The draft continues past the end of the sequence.
    check(&[4, 4, 4], 4, &[4, 4, 4, 4]);
    check(&[1, 2, 3, 1, 2, 3, 1, 2], 5, &[3, 1, 2, 3, 1]);
    check(&[1, 2, 9, 1, 2], 0, &[]);
}
