use tercet_cli::internals::arguments;

#[test]
fn a_model_alone_is_a_chat() {
    let of = |given: &[&str]| {
        let given = ["tercet"].iter().chain(given).map(Into::into).collect();
        let all = arguments(given).into_iter().skip(1);
        all.map(|argument| argument.into_string().unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(of(&["model.gguf"]), "chat --model model.gguf");
    assert_eq!(of(&["a/B.GGUF", "-c", "9"]), "chat --model a/B.GGUF -c 9");
    // The folder of the crate exists, as would that of a model.
    let folder = env!("CARGO_MANIFEST_DIR");
    assert_eq!(of(&[folder]), format!("chat --model {folder}"));
    for kept in ["chat", "help", "--version", "src-of-nothing", ""] {
        assert_eq!(of(&[kept, "x.gguf"]), format!("{kept} x.gguf"));
    }
    assert_eq!(of(&[]), "");
    assert_eq!(
        of(&["serve", "-ngl", "99", "-np", "2", "--", "-ngl"]),
        "serve --n-gpu-layers 99 --parallel 2 -- -ngl"
    );
}
