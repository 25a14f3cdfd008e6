use tercet_cli::internals::arguments;

fn of(given: &[&str]) -> String {
    let given = ["tercet"].iter().chain(given).map(Into::into).collect();
    let all = arguments(given).into_iter().skip(1);
    all.map(|argument| argument.into_string().unwrap())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn options_of_llama_cpp_without_effect_are_left_out() {
    for (given, expected) in [
        (
            "serve -m a --jinja -fa -ub 512 --port 1",
            "serve -m a --port 1",
        ),
        ("serve -fa on --flash-attn=off -m a", "serve -m a"),
        ("chat --no-mmap --mlock --batch-size 9 -m a", "chat -m a"),
        ("generate --batch-size=9 -p --jinja", "generate -p"),
        ("serve -ctk q8_0 -ctv q8_0", "serve --cache-type-k q8_0"),
        ("serve -m a -ub", "serve -m a"),
        ("serve -- --jinja", "serve -- --jinja"),
        ("bench --jinja", "bench --jinja"),
        ("run a.gguf --jinja", "chat --model a.gguf"),
        ("run a.onnx --jinja", "run a.onnx --jinja"),
    ] {
        let given: Vec<&str> = given.split(' ').collect();
        assert_eq!(of(&given), expected);
    }
}

#[test]
fn a_model_alone_is_a_chat() {
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
