//! Generating, chatting and measuring on the CPU: effects of flags and of chat commands.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Run, Scratch, bad, demo, good, json, tercet, text};

fn tokens(args: &[&str]) -> Vec<u64> {
    let base = ["generate", "--json", "--device", "cpu", "-n", "24"];
    let v = json(&[&base[..], args].concat());
    let tokens = v["tokens"].as_array().unwrap().iter();
    tokens.map(|t| t.as_u64().unwrap()).collect()
}

#[test]
fn stop_strings_end_a_text_and_are_no_part_of_it() {
    let whole = json(&["generate", "--json", "-n", "24"]);
    let whole = whole["text"].as_str().unwrap();
    // The stop string starts and ends inside words, so it spans tokens.
    let stop = &whole[10..16];
    let v = json(&[
        "generate",
        "--json",
        "-n",
        "24",
        "--stop",
        "no such text",
        "--stop",
        stop,
    ]);
    let at = whole.find(stop).unwrap();
    assert_eq!(
        (v["text"].as_str().unwrap(), v["stop"].as_str()),
        (&whole[..at], Some("stop"))
    );
    let plain = good(&["generate", "-n", "24", "--stop", stop]);
    assert_eq!(plain.out, format!("Ownership is{}\n", &whole[..at]));
    assert!(
        plain.err.ends_with("stopped: stop string\n"),
        "{}",
        plain.err
    );
}

#[test]
fn what_the_graph_was_not_built_with_draws_the_same_numbers() {
    // A bias without effect forces sampling on the host.
    for options in [
        &["--temp", "0"][..],
        &["--temp", "0.9", "--seed", "3"],
        &["--temp", "1.5", "--top-k", "7", "--seed", "4"],
        &["--temp", "1.2", "--top-p", "0.8", "--seed", "5"],
    ] {
        let on_host = [options, &["--logit-bias", "5=0"]].concat();
        assert_eq!(tokens(options), tokens(&on_host), "{options:?}");
    }
}

#[test]
fn penalties_and_biases_change_what_is_written() {
    let plain = tokens(&[]);
    let first = plain[0].to_string();
    let forbidden = tokens(&["--logit-bias", &format!("{first}=-inf")]);
    assert!(!forbidden.contains(&plain[0]));
    let wanted = tokens(&["--logit-bias", "77=1000"]);
    assert!(wanted.iter().all(|t| *t == 77));
    let distinct = |tokens: &[u64]| {
        let mut tokens = tokens.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        tokens.len()
    };
    // With this penalty no token repeats.
    assert!(distinct(&plain) < 24);
    assert_eq!(distinct(&tokens(&["--presence-penalty", "1000"])), 24);
    assert_eq!(distinct(&tokens(&["--frequency-penalty", "1000"])), 24);
    assert!(
        distinct(&tokens(&[
            "--repeat-penalty",
            "1.5",
            "--repeat-last-n",
            "-1"
        ])) > distinct(&plain)
    );
    assert_eq!(
        tokens(&["--repeat-penalty", "1.5", "--repeat-last-n", "0"]),
        plain
    );
    // Only the most likely token passes a minimum relative probability of 1.
    assert_eq!(tokens(&["--temp", "2", "--min-p", "1"]), plain);
}

#[test]
fn prompts_come_from_files() {
    let scratch = Scratch::new("prompt-file");
    let file = scratch.file("prompt.txt", "Ownership is");
    assert_eq!(
        good(&["generate", "-n", "8", "-f", &file]).out,
        good(&["generate", "-n", "8"]).out
    );
    bad(
        &["generate", "-f", "missing.txt"],
        1,
        &["cannot read missing.txt"],
    );
    bad(
        &["generate", "-f", &file, "-p", "x"],
        2,
        &["--file", "--prompt"],
    );
}

fn chat(args: &[&str], lines: &str) -> Run {
    let base = ["chat", "--device", "cpu"];
    let length: &[&str] = if args.contains(&"-n") {
        &[]
    } else {
        &["-n", "12"]
    };
    let mut command = tercet(&[&base[..], length, args].concat());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // If the process ended early, writing to its input fails.
    let _ = input.write_all(lines.as_bytes());
    drop(input);
    text(child.wait_with_output().unwrap())
}

#[test]
fn a_conversation_remembers_what_was_said_until_it_is_reset() {
    let once = chat(&[], "What is a trait?\n");
    assert_eq!(once.code, Some(0), "{}", once.err);
    assert!(once.err.contains("no chat template"), "{}", once.err);
    let answer = good(&["generate", "--chat", "-n", "12", "-p", "What is a trait?"]);
    assert_eq!(answer.out, once.out);

    let reset = chat(&[], "What is a trait?\n/reset\nWhat is a trait?\n");
    assert_eq!(reset.out, once.out.repeat(2));
    // The second prompt counts the tokens of the first turn, which come from the KV cache.
    let twice = chat(&[], "What is a trait?\nAnd an enum?\n");
    let turn = |q: &str| format!("<|im_start|>user\n{q}<|endoftext|>\n<|im_start|>assistant\n");
    let (first, second) = (turn("What is a trait?"), turn("And an enum?"));
    let said = once.out.strip_suffix('\n').unwrap();
    let prompt = format!("{first}{said}<|endoftext|>\n{second}");
    let whole = good(&["generate", "-n", "12", "-p", &prompt]).out;
    let answer = whole.strip_prefix(&prompt).unwrap();
    assert_eq!(twice.out, format!("{}{answer}", once.out));

    let told = chat(&["--system", "Be brief."], "What is a trait?\n");
    let later = chat(
        &[],
        "/system Be brief.\nWhat is a trait?\n/quit\nnot read\n",
    );
    assert_eq!(told.out, later.out);
    assert_ne!(told.out, once.out);
}

#[test]
fn a_conversation_is_set_without_compiling_again() {
    let set = chat(
        &[],
        "/set temp 1.5\n/set seed 9\n/set tokens 5\nWhat is a trait?\n",
    );
    let args = chat(
        &["--temp", "1.5", "--seed", "9", "-n", "5"],
        "What is a trait?\n",
    );
    assert_eq!((set.code, &set.out), (Some(0), &args.out), "{}", set.err);
    assert_ne!(set.out, chat(&["-n", "5"], "What is a trait?\n").out);
    assert!(chat(&[], "/help\n").out.contains("/reset"));
}

#[test]
fn a_conversation_that_cannot_go_on_says_why() {
    for (lines, parts) in [
        ("/no\n", ["/no: unknown command", "/help"]),
        ("/set temp\n", ["/set temp", "a name and a value"]),
        ("/set temp warm\n", ["/set temp warm", "from 0 to"]),
        ("/set mood good\n", ["unknown setting", "min-p"]),
    ] {
        let run = chat(&[], lines);
        assert_eq!(
            (run.code, run.out.as_str()),
            (Some(2), ""),
            "{lines}: {}",
            run.err
        );
        assert!(
            parts.iter().all(|part| run.err.contains(part)),
            "{}",
            run.err
        );
    }
    let full = chat(&["-c", "8"], "What is a trait?\n");
    assert_eq!(full.code, Some(2));
    assert!(
        full.err.contains("the context of 8") && full.err.contains("--context"),
        "{}",
        full.err
    );
}

/// The text of a conversation up to the next answer, as the template without a model's own writes it.
fn rendered(system: &str, turns: &[(&str, &str)], question: &str) -> String {
    let user = |q: &str| format!("<|im_start|>user\n{q}<|endoftext|>\n<|im_start|>assistant\n");
    let mut text = format!("<|im_start|>system\n{system}<|endoftext|>\n");
    for (question, answer) in turns {
        text += &format!("{}{answer}<|endoftext|>\n", user(question));
    }
    text + &user(question)
}

#[test]
fn a_full_context_drops_the_oldest_turns() {
    let questions = [
        "a trait",
        "an enum",
        "a lifetime",
        "a slice",
        "a crate",
        "a macro",
    ];
    let questions = questions.map(|what| format!("What is {what}?"));
    let lines = |count: usize| questions[..count].join("\n") + "\n";
    let args = ["--system", "Be brief."];
    let whole: Vec<Run> = (0..=questions.len())
        .map(|count| chat(&[&args[..], &["-c", "512"]].concat(), &lines(count)))
        .collect();
    assert!(whole.iter().all(|run| !run.err.contains("oldest")));
    let answers = whole.windows(2).map(|runs| {
        let answer = runs[1].out.strip_prefix(&*runs[0].out).unwrap();
        answer.strip_suffix('\n').unwrap()
    });
    let turns: Vec<(&str, &str)> = questions.iter().map(|q| &**q).zip(answers).collect();
    let generated = |from: usize| {
        let (question, _) = turns[turns.len() - 1];
        let prompt = rendered("Be brief.", &turns[from..turns.len() - 1], question);
        let v = json(&["generate", "--json", "-n", "12", "-c", "512", "-p", &prompt]);
        let tokens = v["prompt_tokens"].as_array().unwrap().len();
        (tokens, v["text"].as_str().unwrap().to_string())
    };
    let (all, text) = generated(0);
    assert_eq!(text, turns[turns.len() - 1].1);
    // One token less than the last question needs with the room for its answer.
    let context = all + 12 - 1;
    let kept = (1..)
        .map(generated)
        .find(|(tokens, _)| *tokens <= context / 2);
    let context = context.to_string();
    let full = chat(
        &[&args[..], &["-c", &context]].concat(),
        &lines(turns.len()),
    );
    assert_eq!(full.code, Some(0), "{}", full.err);
    let notes = full.err.matches("oldest turns leave").count();
    assert_eq!(notes, 1, "{}", full.err);
    let before = &whole[turns.len() - 1].out;
    let last = full.out.strip_prefix(&**before).unwrap();
    let kept = kept.map(|(_, text)| text + "\n");
    assert_eq!(Some(last), kept.as_deref());
    assert_ne!(full.out, whole[turns.len()].out);
}

#[test]
fn an_answer_goes_on_when_it_fills_the_context() {
    let (first, second) = ("What is a trait?", "And an enum?");
    let lines = format!("{first}\n/set tokens 60\n{second}\n");
    let args = ["--system", "Be brief.", "-c", "112", "-n", "24"];
    let once = chat(&args, &format!("{first}\n")).out;
    let answer = once.strip_suffix('\n').unwrap();
    let prompt = rendered("Be brief.", &[(first, answer)], second);
    let cut = json(&["generate", "--json", "-n", "60", "-c", "112", "-p", &prompt]);
    assert_eq!(cut["stop"], "context", "{cut}");
    let cut = cut["text"].as_str().unwrap();
    let full = chat(&args, &lines);
    assert_eq!(full.code, Some(0), "{}", full.err);
    let second = full.out.strip_prefix(&*once).unwrap();
    assert!(second.starts_with(cut), "{second:?} after {cut:?}");
    assert!(second.len() > cut.len() + 10, "{second:?} after {cut:?}");
    assert_eq!(
        full.err.matches("oldest turns leave").count(),
        1,
        "{}",
        full.err
    );
    assert!(!full.err.contains("answer ends"), "{}", full.err);

    // An answer that fills the context alone ends, and the conversation goes on.
    let args = ["-c", "64", "-n", "-1", "--ignore-eos"];
    let alone = chat(&args, &format!("{first}\n{first}\n"));
    assert_eq!(alone.code, Some(0), "{}", alone.err);
    assert_eq!(
        alone.err.matches("the answer ends").count(),
        2,
        "{}",
        alone.err
    );
    assert_eq!(
        alone.err.matches("oldest turns leave").count(),
        1,
        "{}",
        alone.err
    );
    let (one, two) = alone.out.split_at(alone.out.len() / 2);
    assert_eq!(one, two, "the same question after the drop");
}

#[test]
fn a_message_beyond_the_context_leaves_the_conversation_as_it_was() {
    // Without a terminal, an error ends the conversation.
    let long = "word ".repeat(80);
    let lines = format!("What is a trait?\n{long}\n");
    let run = chat(&["-c", "64"], &lines);
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(run.err.contains("the message takes"), "{}", run.err);
    assert!(!run.err.contains("oldest turns"), "{}", run.err);
}

#[test]
fn benches_are_tables_of_markdown() {
    let out = good(&["bench", "-p", "4", "-n", "2", "-r", "2", "--device", "cpu"]).out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "| model | device | dtype | test | tokens/s |");
    // CPUs with fast 16-bit matmuls use them for prompt rows.
    let is_row = |line: &str, test: &str| {
        let dtypes = ["f32", "f32 (f16 matmuls)"];
        let starts = dtypes.map(|dtype| format!("| embedded | cpu | {dtype} | {test} | "));
        starts.iter().any(|start| line.starts_with(start))
    };
    assert!(is_row(lines[2], "prompt 4"), "{out}");
    assert!(is_row(lines[3], "decode 2"), "{out}");
    assert_eq!(lines.len(), 4);
    let args = ["bench", "-p", "4", "-n", "2", "-r", "2", "--batch", "3"];
    let out = good(&[&args[..], &["--device", "cpu"]].concat()).out;
    let last = out.lines().last().unwrap_or_default();
    assert!(is_row(last, "decode 2 x 3"), "{out}");
    let tests = json(&[&args[..], &["--device", "cpu", "--json"]].concat())["tests"].clone();
    let sequences = [0, 1, 2].map(|at| tests[at]["sequences"].as_u64());
    assert_eq!(sequences, [Some(1), Some(1), Some(3)]);
    let (rate, seconds) = (&tests[2]["tokens_per_second"], &tests[2]["seconds"]);
    let rates = [0, 1].map(|at| 6.0 / seconds[at].as_f64().unwrap());
    let mean = (rates[0] + rates[1]) / 2.0;
    assert!(
        (rate.as_f64().unwrap() / mean - 1.0).abs() < 1e-6,
        "{tests}"
    );
    let args = [
        "bench", "-p", "4", "-n", "2", "-r", "1", "--batch", "2", "--depth", "100",
    ];
    let out = good(&[&args[..], &["--device", "cpu"]].concat()).out;
    for test in [
        "prompt 4 at depth 100",
        "decode 2 at depth 100",
        "decode 2 at depth 100 x 2",
    ] {
        assert!(out.lines().any(|line| is_row(line, test)), "{out}");
    }
    let tests = json(&[&args[..], &["--device", "cpu", "--json"]].concat())["tests"].clone();
    assert!((0..3).all(|at| tests[at]["depth"] == 100), "{tests}");
    bad(&["bench", "-b", "0"], 2, &["--batch", "of at least 1"]);
    bad(
        &["bench", "-r", "0"],
        2,
        &["--repetitions", "of at least 1"],
    );
}

#[test]
#[cfg(feature = "serve")]
fn benches_of_a_server_have_rates_and_latencies() {
    let args = [
        "bench",
        "--serve",
        "1,3",
        "--parallel",
        "2",
        "-p",
        "5",
        "-n",
        "6",
        "-r",
        "2",
        "--device",
        "cpu",
    ];
    let out = good(&args).out;
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("| model | device | dtype | slots | clients | tokens/s |"));
    assert!(
        lines[2].starts_with("| embedded | cpu | f32 | 2 | 1 | "),
        "{out}"
    );
    assert!(
        lines[3].starts_with("| embedded | cpu | f32 | 2 | 3 | "),
        "{out}"
    );
    assert_eq!(lines.len(), 4);
    let report = json(&[&args[..], &["--json"]].concat());
    for (at, clients) in [(0, 1), (1, 3)] {
        let test = &report["tests"][at];
        assert_eq!(test["clients"], clients);
        assert_eq!(test["requests"], 2 * clients);
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let rate = f64::from(2 * clients * 6) / number(&test["seconds"]);
        assert!((number(&test["tokens_per_second"]) / rate - 1.0).abs() < 1e-6);
        let first = &test["first_token_seconds"];
        assert!(number(&first["median"]) > 0.0);
        assert!(number(&first["median"]) <= number(&first["most"]));
        assert!(number(&first["most"]) < number(&test["seconds"]));
    }
    bad(
        &["bench", "--serve", "0"],
        2,
        &["--serve", "numbers of clients"],
    );
    bad(
        &["bench", "--serve", "2", "-b", "2"],
        2,
        &["leave out", "--batch"],
    );
    // An answer that is shorter than asked for is no measurement.
    let short = [
        "bench", "--serve", "1", "-p", "30", "-n", "9", "-c", "32", "--device", "cpu",
    ];
    bad(&short, 2, &["context"]);
}

#[test]
fn perplexity_is_that_of_the_likelihoods() {
    let scratch = Scratch::new("perplexity");
    let texts = "The borrow checker makes sure that references are valid. ".repeat(8);
    let file = scratch.file("text.txt", &texts);
    let of = |extra: &[&str]| {
        let base = ["perplexity", "--json", "-c", "32", "--file", &file];
        json(&[&base[..], extra].concat())
    };
    let v = of(&[]);
    let (windows, perplexity) = (
        v["windows"].as_u64().unwrap(),
        v["perplexity"].as_f64().unwrap(),
    );
    assert!(windows > 1 && v["tokens"] == windows * 15, "{v}");
    assert!(perplexity > 1.0 && perplexity < 100.0, "{v}");
    assert!(v["error"].as_f64().unwrap() > 0.0);
    assert_eq!(of(&["--windows", "1"])["tokens"], 15);
    // Noise has a higher perplexity.
    let noise = scratch.file("noise.txt", "qz jx 93 %% vv kq wpf zzt ".repeat(20));
    let worse = json(&[
        "perplexity",
        "--json",
        "-c",
        "32",
        "--windows",
        "1",
        "--file",
        &noise,
    ]);
    assert!(
        worse["perplexity"].as_f64().unwrap() > perplexity,
        "{worse}"
    );
    let short = scratch.file("short.txt", "too short");
    bad(
        &["perplexity", "--file", &short],
        2,
        &[&short, "shorter than one window"],
    );
}

#[cfg(feature = "grammar")]
#[test]
fn texts_are_what_they_have_to_be() {
    let scratch = Scratch::new("constrained");
    let written = |args: &[&str]| -> (String, String) {
        let v = json(&[&["generate", "--json", "-n", "200"], args].concat());
        let of = |name: &str| v[name].as_str().unwrap().to_string();
        (of("text"), of("stop"))
    };
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2}},
        "required": ["n", "tags"], "additionalProperties": false}"#;
    let file = scratch.file("schema.json", schema);
    for schema in [schema, &file] {
        for more in [&["--temp", "0"][..], &["--temp", "2", "--seed", "9"]] {
            let (text, stop) = written(&[&["--json-schema", schema], more].concat());
            assert_eq!(stop, "end", "{text}");
            let found: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!((1..=12).contains(&found["n"].as_i64().unwrap()), "{text}");
            assert_eq!(found["tags"].as_array().unwrap().len(), 2);
        }
    }
    let (time, _) = written(&["--regex", "[01][0-9]:[0-5]0"]);
    assert!(
        time.len() == 5 && time.ends_with('0') && &time[2..3] == ":",
        "{time}"
    );
    let lark = scratch.file(
        "pairs.lark",
        "start: pair pair\npair: \"<\" /[a-c]/ \">\"\n",
    );
    let (pairs, stop) = written(&["--grammar", &lark]);
    assert_eq!((pairs.len(), stop.as_str()), (6, "end"), "{pairs}");
    let gbnf = scratch.file(
        "pairs.gbnf",
        "root ::= pair (\" \" root)? \".\" # recursive\npair ::= \"<\" [a-c]{3} \">\"\n",
    );
    let (pairs, _) = written(&["--grammar-file", &gbnf]);
    assert!(
        pairs.starts_with('<') && pairs[4..].starts_with('>'),
        "{pairs}"
    );
    let bad_gbnf = scratch.file("bad.gbnf", "root ::= (\"a\"\n  | [b]\n");
    bad(
        &["generate", "-n", "4", "--grammar", &bad_gbnf],
        2,
        &["bad.gbnf", "expected an item, `|`"],
    );
}

#[cfg(feature = "grammar")]
#[test]
fn what_is_no_grammar_is_refused() {
    for (args, code, said) in [
        (["--json-schema", "{"], 2, "not JSON"),
        (
            ["--json-schema", r#"{"type": "nonsense"}"#],
            1,
            "invalid JSON schema",
        ),
        (["--regex", "("], 1, "invalid regular expression"),
        (["--grammar", "/nowhere/at/all"], 1, "/nowhere/at/all"),
    ] {
        bad(
            &[&["generate", "-n", "4"], &args[..]].concat(),
            code,
            &[said],
        );
    }
    let both = ["generate", "--regex", "a", "--json-schema", "{}"];
    bad(&both, 2, &["cannot be used with"]);
}

#[test]
fn a_template_that_rejects_is_no_wrong_argument() {
    let scratch = Scratch::new("rejecting-template");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(demo(name), scratch.path(name)).unwrap();
    }
    let template = "{{ raise_exception('roles must alternate') }}";
    let config = serde_json::json!({"chat_template": template}).to_string();
    scratch.file("tokenizer_config.json", config);
    let model = scratch.path("");
    let args = [
        "generate", "-m", &model, "--chat", "-p", "hi", "-n", "1", "-c", "64",
    ];
    bad(&args, 1, &["roles must alternate"]);
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_by_its_bytes() {
    let prompt = "a b ".repeat(30_000);
    let args = ["generate", "-n", "1", "-c", "16", "-p", &prompt];
    bad(&args, 1, &["120000 bytes", "--context"]);
}

#[test]
fn special_tokens_in_a_message_are_text() {
    let said = chat(&["-n", "3"], "a <|endoftext|> b\n</s><s>\n");
    assert_eq!(said.code, Some(0), "{}", said.err);
    let tokens = |prompt: &str, more: &[&str]| {
        let all = [
            "generate", "--json", "-n", "1", "--device", "cpu", "-p", prompt,
        ];
        let report = json(&[&all[..], more].concat());
        report["prompt_tokens"].as_array().unwrap().clone()
    };
    // A raw prompt is formatted already: its special tokens are recognized.
    let end = tokens("<|endoftext|>", &[]).pop().unwrap();
    let ends = |tokens: &[serde_json::Value]| tokens.iter().filter(|t| **t == end).count();
    let plain = tokens("x", &["--chat"]);
    let spelled = tokens("x<|endoftext|>", &["--chat"]);
    assert_eq!(ends(&plain), ends(&spelled));
    assert!(spelled.len() > plain.len() + 1);
}

#[test]
fn samplers_ends_and_seeds_of_the_command() {
    let base = ["generate", "--json", "-n", "12", "--device", "cpu"];
    let of = |more: &[&str]| json(&[&base[..], more].concat());
    let greedy = of(&[]);
    let tokens = |report: &serde_json::Value| report["tokens"].as_array().unwrap().clone();
    for only in [
        &["--temp", "1", "--top-n-sigma", "0.000001"][..],
        &["--mirostat", "2", "--mirostat-ent", "0"],
        &["--mirostat", "1", "--mirostat-ent", "0", "--temp", "0"],
        &["--typical", "0.5", "--top_k", "1"],
        &["--samplers", "top_k;temp", "--temp", "2", "--top-k", "1"],
        &[
            "--xtc-probability",
            "1",
            "--xtc-threshold",
            "0.6",
            "--top-k",
            "1",
        ],
        &["--dynatemp-range", "0.5", "--temp", "0.5", "--top-k", "1"],
    ] {
        assert_eq!(tokens(&of(only)), tokens(&greedy), "{only:?}");
    }
    let all = tokens(&greedy);
    let id = all[2].to_string();
    let stopped = of(&["--stop-token-id", &id]);
    let first = tokens(&greedy).iter().position(|t| *t == all[2]).unwrap();
    assert_eq!(
        (tokens(&stopped).len(), &stopped["stop"]),
        (first, &serde_json::json!("end"))
    );
    let later = of(&["--stop-token-id", &id, "--min-tokens", "6"]);
    assert!(tokens(&later).len() >= 6, "{later}");
    assert_eq!(tokens(&of(&["-l", &format!("{id}-inf")])).len(), 12);
    assert!(!tokens(&of(&["-l", &format!("{id}-100")])).contains(&tokens(&greedy)[2]));
    // Seeds are drawn, and printed.
    let drawn = || of(&["--temp", "3"]);
    let (one, other) = (drawn(), drawn());
    assert_ne!(one["seed"], other["seed"]);
    let again = of(&["--temperature", "3", "-s", &one["seed"].to_string()]);
    assert_eq!(tokens(&one), tokens(&again));
    bad(
        &["generate", "--samplers", "beam"],
        2,
        &["beam", "top_n_sigma"],
    );
    bad(
        &["generate", "--stop-token-id", "999999"],
        2,
        &["999999", "vocabulary"],
    );
    // Flags as llama.cpp has them.
    let flags = [
        "generate",
        "--n-predict",
        "1",
        "--ctx-size",
        "64",
        "-ngl",
        "0",
        "-t",
        "2",
    ];
    good(&flags);
    let noted = good(&["generate", "-n", "1", "--device", "cpu", "-ngl", "9"]).err;
    assert!(noted.contains("all layers run on"), "{noted}");
    let template = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let own = of(&["--chat", "--chat-template", template, "-p", "x"]);
    let spelled = of(&["-p", "[x]"]);
    let length = |report: &serde_json::Value| report["prompt_tokens"].as_array().unwrap().len();
    assert!(length(&spelled) - length(&own) <= 1, "{own} {spelled}");
    bad(
        &["generate", "--chat", "--chat-template", "llama9"],
        1,
        &["llama9", "chatml"],
    );
}

#[test]
fn rotary_positions_are_those_of_the_flags() {
    let base = ["generate", "--json", "-n", "12", "--device", "cpu"];
    let of = |more: &[&str]| json(&[&base[..], more].concat())["tokens"].clone();
    let plain = of(&[]);
    let half = of(&["--rope-scale", "8"]);
    assert_ne!(half, plain);
    assert_eq!(of(&["--rope-freq-scale", "0.125"]), half);
    assert_eq!(of(&["--rope-scaling", "linear", "--rope-scale", "8"]), half);
    assert_eq!(
        of(&["--rope-scaling", "none", "--rope-freq-base", "0"]),
        plain
    );
    assert_ne!(of(&["--rope-freq-base", "100"]), plain);
    let yarn = [
        "--rope-scaling",
        "yarn",
        "--rope-scale",
        "8",
        "--yarn-orig-ctx",
        "16",
    ];
    assert_ne!(of(&yarn), half);
    assert_eq!(
        of(&[&yarn[2..4], &["--yarn-ext-factor", "0"]].concat()),
        half
    );
    bad(&["generate", "--yarn-beta-fast", "8"], 1, &["yarn"]);
    bad(
        &["generate", "--yarn-ext-factor", "0.5"],
        2,
        &["-1, 0 or 1"],
    );
}

/// A template of a model with thoughts, and a grammar of its answer: a thought, a text and a call.
/// Thoughts of earlier answers are the field `thinking`; the third message is refused without it.
fn thinking_model(scratch: &Scratch) -> [String; 4] {
    let template = "{% if messages | length > 2 and (messages[1].thinking != 'Because.' \
        or messages[1].content != 'Yes.' or messages[1].tool_calls[0].function.arguments.a != 1) %}\
        {{ raise_exception('the answer has lost a part') }}{% endif %}\
        {% for m in messages %}<{{ m.role }}>{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}\
        {{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\
        {% endfor %}{% endfor %}<assistant>";
    let answer = r#"start: "<think>\nBecause.\n</think>\n\nYes.\n<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>""#;
    let grammar = scratch.path("answer.lark");
    std::fs::write(&grammar, answer).unwrap();
    ["--chat-template", template, "--grammar", &grammar].map(str::to_string)
}

#[test]
fn thoughts_and_calls_are_apart_from_the_answer() {
    let scratch = Scratch::new("language-thoughts");
    let model = thinking_model(&scratch);
    let model = model.each_ref().map(String::as_str);
    let base = [
        "generate", "--chat", "-n", "200", "-p", "Why?", "--device", "cpu",
    ];
    let shown = good(&[&base[..], &model].concat());
    assert_eq!(shown.out, "Yes.\ncall add {\"a\":1}\n");
    assert!(
        shown.err.contains("thoughts: Because.\n\n"),
        "{}",
        shown.err
    );
    let report = json(&[&base[..], &model, &["--json"]].concat());
    assert_eq!(report["text"], "Yes.");
    assert_eq!(report["reasoning_content"], "Because.");
    let call = &report["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "add");
    assert_eq!(call["function"]["arguments"], "{\"a\":1}");
    let plain = json(&["generate", "--chat", "-n", "4", "-p", "Why?", "--json"]);
    assert_eq!(
        (&plain["reasoning_content"], &plain["tool_calls"]),
        (&Value::Null, &Value::Null)
    );
    // The template begins the thought.
    let open = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>";
    let begun = [
        &[
            "generate",
            "--chat",
            "-n",
            "6",
            "-p",
            "Why?",
            "--chat-template",
            open,
        ],
        &["--json"][..],
    ];
    let begun = json(&begun.concat());
    assert_eq!(begun["text"], "");
    assert!(
        !begun["reasoning_content"].as_str().unwrap().is_empty(),
        "{begun}"
    );
    // A text that is no answer stays as it is.
    let raw = [
        &["generate", "-n", "200", "-p", "Why?", "--json"],
        &model[2..],
    ]
    .concat();
    assert!(
        json(&raw)["text"]
            .as_str()
            .unwrap()
            .contains("<think>\nBecause.")
    );
    // The second answer needs the parts of the first in their fields.
    let args = [&["-n", "200", "-c", "512"], &model[..]].concat();
    let twice = chat(&args, "Why?\nAnd?\n");
    assert_eq!(twice.code, Some(0), "{}", twice.err);
    assert_eq!(twice.out, shown.out.repeat(2));
    assert_eq!(
        twice.err.matches("thoughts: Because.").count(),
        2,
        "{}",
        twice.err
    );
}
