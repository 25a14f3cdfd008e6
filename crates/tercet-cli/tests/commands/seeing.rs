//! `generate --image` and `chat --image` on small vision-language model folders.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Scratch, bad, data, demo, good, json, tercet, text};
use serde_json::Value;

fn reference(name: &str) -> Value {
    let path = format!("{}/reference.json", data(name));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

const A: &str = "vision-language/idefics3-a";

/// Arguments of a run on the CPU in F32 with these images.
fn on_cpu<'a>(command: &'a str, model: &'a str, pictures: &'a [String]) -> Vec<&'a str> {
    let mut args = vec![
        command, "-m", model, "--device", "cpu", "--dtype", "f32", "-n", "16",
    ];
    for picture in pictures {
        args.extend(["--image", picture]);
    }
    args
}

fn pictures(prompt: &Value) -> Vec<String> {
    let names = prompt["pictures"].as_array().unwrap().iter();
    let path = |name: &Value| data(&format!("vision/pictures/{}", name.as_str().unwrap()));
    names.map(path).collect()
}

#[test]
fn texts_go_on_after_pictures() {
    let model = data(A);
    for prompt in reference(A)["prompts"].as_array().unwrap() {
        let pictures = pictures(prompt);
        let text = match prompt["chat"].as_str() {
            Some(text) => text,
            None => prompt["prompt"].as_str().unwrap(),
        };
        let mut args = on_cpu("generate", &model, &pictures);
        args.extend(["--json", "-p", text]);
        if prompt["chat"].is_string() {
            args.push("--chat");
        }
        let v = json(&args);
        assert_eq!(v["prompt_tokens"], prompt["ids"]);
        // The reference was generated without an end-of-text token.
        let tokens = v["tokens"].as_array().unwrap();
        let want = prompt["greedy"].as_array().unwrap();
        assert_eq!(tokens[..], want[..tokens.len()], "{v}");
        assert!(tokens.len() == want.len() || v["stop"] == "end", "{v}");
    }
    // Without placeholders, images come first.
    let first = &reference(A)["prompts"][0];
    let own = pictures(first);
    let mut args = on_cpu("generate", &model, &own);
    args.extend(["--json", "-p", "What is this?"]);
    assert_eq!(json(&args)["prompt_tokens"], first["ids"]);
}

/// Output of a conversation with these input lines.
fn said(args: &[&str], lines: &str) -> crate::common::Run {
    let mut command = tercet(args);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    text(child.wait_with_output().unwrap())
}

#[test]
fn conversations_are_about_pictures() {
    let model = data(A);
    let wide = [data("vision/pictures/wide.png")];
    let mut args = on_cpu("generate", &model, &wide);
    args.extend(["--json", "--chat", "-p", "What is this?"]);
    let want = json(&args)["text"].as_str().unwrap().to_string();
    let given = said(&on_cpu("chat", &model, &wide), "What is this?\n");
    assert_eq!((given.code, given.out), (Some(0), format!("{want}\n")));
    // The same image through the `/image` command, after another conversation.
    let lines = format!("Hello\n/reset\n/image {}\nWhat is this?\n", wide[0]);
    let shown = said(&on_cpu("chat", &model, &[]), &lines);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.out.ends_with(&format!("{want}\n")), "{shown:?}");
}

#[test]
fn what_cannot_be_seen_is_refused() {
    let model = data(A);
    let picture = data("vision/pictures/wide.png");
    let blind = demo("tiny-rust-llama-q8_0.gguf");
    let asked = ["--image", &picture, "-p", "What is this?"];
    let args = [&["generate", "-m", &blind, "--device", "cpu"][..], &asked].concat();
    bad(&args, 2, &["--image", "does not accept images"]);
    let none = data("vision/pictures/resized.json");
    for (file, said) in [
        (&*none, "cannot decode as PNG, JPEG, WebP or GIF"),
        ("missing.png", "missing.png"),
    ] {
        let args = ["generate", "-m", &model, "--device", "cpu", "--image", file];
        bad(&args, 1, &[file, said]);
    }
    let args = [
        "generate",
        "-m",
        &model,
        "--device",
        "cpu",
        "--context",
        "30",
        "--image",
        &picture,
    ];
    bad(&args, 1, &["do not fit the context of 30"]);
    let two = ["-p", "<image> and <image>", "--image", &picture];
    let args = [&["generate", "-m", &model, "--device", "cpu"][..], &two].concat();
    bad(&args, 1, &["2 times `<image>` for 1 pictures"]);
    // In a conversation only the template has placeholders.
    let spelt = ["--chat", "-n", "1", "-p", "an <image>", "--image", &picture];
    let args = [&["generate", "-m", &model, "--device", "cpu"][..], &spelt].concat();
    good(&args);
    // Images with a side of 0, and with sides beyond the limit.
    let scratch = Scratch::new("seeing");
    let png = std::fs::read(&picture).unwrap();
    for (name, side) in [("zero.png", 0u32), ("vast.png", 1 << 30)] {
        let mut bytes = png.clone();
        bytes[16..20].copy_from_slice(&side.to_be_bytes());
        let file = scratch.file(name, bytes);
        let args = [
            "generate", "-m", &model, "--device", "cpu", "--image", &file,
        ];
        bad(&args, 1, &[name]);
    }
}

#[test]
fn folders_are_told_and_other_commands_refuse_them() {
    let model = data(A);
    let told = good(&["inspect", &model]).out;
    assert!(told.contains("idefics3"), "{told}");
    assert!(!told.contains("cannot run"), "{told}");
    let picture = data("vision/pictures/wide.png");
    bad(&["embed", "-m", &model, &picture], 1, &["idefics3"]);
    bad(&["classify", "-m", &model, &picture], 1, &["idefics3"]);
    bad(
        &["explain", "-m", &model],
        2,
        &["several graphs: tower, decoder"],
    );
}
