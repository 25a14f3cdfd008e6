use tercet_cli::internals::PromptIds;

#[test]
fn ids_have_commas_or_spaces_between_them() {
    let ids = |text: &str| PromptIds::parse(text).map(|ids| ids.0.unwrap_or_default());
    for text in ["1,2,33", "1 2 33", "[1, 2, 33]", " 1,\n2 33\n"] {
        assert_eq!(ids(text), Ok(vec![1, 2, 33]), "{text}");
    }
    assert_eq!(PromptIds::parse("-"), Ok(PromptIds(None)));
    for text in ["", "[]", "1,,2", "1,", "-1", "1.5", "[1", "a", "4294967296"] {
        assert!(ids(text).is_err(), "{text}");
    }
}
