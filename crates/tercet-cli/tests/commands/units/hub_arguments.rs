use tercet_cli::internals::rewritten;

fn of(given: &str) -> String {
    let given = format!("tercet {given}");
    let given = given.split(' ').map(Into::into).collect();
    let all = rewritten(given).into_iter().skip(1);
    let all: Vec<String> = all
        .map(|argument| argument.into_string().unwrap())
        .collect();
    all.join(" ")
}

#[test]
fn names_become_the_model_of_the_command() {
    for (given, expected) in [
        ("chat -hf a/b:Q8_0 -c 9", "chat --model hf:a/b:Q8_0 -c 9"),
        ("embed --hf-repo=a/b x", "embed --model hf:a/b x"),
        (
            "chat -hff x/y.gguf -hfr a/b",
            "chat --model hf:a/b/x/y.gguf",
        ),
        (
            "generate -hf a/b -hfd c/d",
            "generate --model hf:a/b --draft hf:c/d",
        ),
        ("inspect -hf a/b --json", "inspect hf:a/b --json"),
        (
            "serve a/b c.gguf --port 0",
            "serve --model hf:a/b --model c.gguf --port 0",
        ),
        ("run a/b:Q4_0 -n 3", "chat --model hf:a/b:Q4_0 -n 3"),
        ("run hf:a/b", "chat --model hf:a/b"),
        ("run a/b/x/m.onnx -i x.npy", "run hf:a/b/x/m.onnx -i x.npy"),
    ] {
        assert_eq!(of(given), expected, "{given}");
    }
}

#[test]
fn other_arguments_stay() {
    for given in [
        "",
        "chat",
        "chat -m a/b",
        "generate -p x -- -hf a/b",
        "run graph.tercet",
        "run models/graph.tercet",
        "run src/graph",
        "run missing-model",
        "serve --port 0 --model x",
        "chat --hf-repo",
        "--version",
    ] {
        assert_eq!(of(given), given);
    }
    assert_eq!(of("chat -hf"), "chat --hf-repo");
    assert_eq!(of("chat -hf --json"), "chat --hf-repo --json");
    assert_eq!(of("chat --hf-file x"), "chat --hf-file x");
}
