use tercet_models::internals::StopHoldback;

fn check(stop: &[&str], pieces: &[&str], given: &[&str], stopped: bool, held: &str) {
    let stop: Vec<String> = stop.iter().map(ToString::to_string).collect();
    let mut buffer = StopHoldback::new(&stop);
    let mut last = false;
    for (piece, want) in pieces.iter().zip(given) {
        assert!(!last);
        let (text, done) = buffer.push(piece);
        assert_eq!(text, *want, "{pieces:?}");
        last = done;
    }
    assert_eq!(
        (last, buffer.pending.as_str()),
        (stopped, held),
        "{pieces:?}"
    );
}

#[test]
fn stop_strings_match_special_tokens_as_a_whole() {
    let stop = |stop: &str| StopHoldback::new(&[stop.to_string()]);
    let mut alone = stop("<|end|>");
    assert_eq!(alone.push("a"), ("a".to_string(), false));
    assert_eq!(alone.push_hidden("<|pad|>"), (String::new(), false));
    assert_eq!(alone.push_hidden("<|end|>"), (String::new(), true));
    let mut mixed = stop("b<|end|>c");
    assert_eq!(mixed.push("ab"), ("a".to_string(), false));
    assert_eq!(mixed.push_hidden("<|end|>"), (String::new(), false));
    assert_eq!(mixed.push("cd"), (String::new(), true));
    let mut other = stop("b<|end|>c");
    assert_eq!(other.push("ab"), ("a".to_string(), false));
    assert_eq!(other.push_hidden("<|end|>"), (String::new(), false));
    assert_eq!(other.push("d"), ("bd".to_string(), false));
    // A stop string does not match inside the spelling of a special token, and does match text
    // that a special token interrupts.
    let mut part = stop(">");
    assert_eq!(part.push_hidden("<|end|>"), (String::new(), false));
    let mut around = stop("xy");
    assert_eq!(around.push("ax"), ("a".to_string(), false));
    assert_eq!(around.push_hidden("<|pad|>"), (String::new(), false));
    assert_eq!(around.push("yz"), (String::new(), true));
}

#[test]
fn stop_strings_are_held_back_and_found_over_pieces() {
    check(&[], &["a", "b"], &["a", "b"], false, "");
    check(
        &["\n\n"],
        &["a\n", "b\n", "\nc"],
        &["a", "\nb", ""],
        true,
        "",
    );
    check(&["END"], &["xE", "N", "Q"], &["x", "", "ENQ"], false, "");
    check(&["END"], &["xE", "N"], &["x", ""], false, "EN");
    check(&["abc", "b"], &["ab"], &["a"], true, "");
    check(&["", "é"], &["caf", "é!"], &["caf", ""], true, "");
    check(&["aab"], &["aaa", "b"], &["a", ""], true, "");
    check(&["ab"], &["日本a", "本"], &["日本", "a本"], false, "");
}
