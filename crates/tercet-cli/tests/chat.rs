//! Conversations: what is computed, what ends them, what is refused.
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{Run, Scratch, bad, json, tercet, text};
use serde_json::Value;

/// Turns that end with the one special token of the embedded model.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>\\n' }}\
    {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// `tercet chat` on the embedded model, with lines as its input.
fn chat(template: &str, args: &[&str], lines: &str) -> Run {
    let own = ["chat", "--device", "cpu", "--template", template];
    let mut command = tercet(&[&own[..], args].concat());
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines.as_bytes()).unwrap();
    drop(stdin);
    text(child.wait_with_output().unwrap())
}

fn turns(run: &Run) -> Vec<Value> {
    assert_eq!(run.code, Some(0), "{}", run.err);
    let v: Value = serde_json::from_str(&run.out).unwrap();
    v["turns"].as_array().unwrap().clone()
}

fn number(turn: &Value, field: &str) -> u64 {
    turn[field].as_u64().unwrap()
}

#[test]
fn a_turn_computes_only_what_is_new() {
    let scratch = Scratch::new("chat-cache");
    let template = scratch.file("t.jinja", TEMPLATE);
    let lines = "What is ownership?\nAnd a borrow?\n/reset\nWhat is ownership?\n";
    let run = chat(&template, &["-n", "8", "--json"], lines);
    let turns = turns(&run);
    assert_eq!(turns.len(), 3);
    assert_eq!(number(&turns[0], "cached_tokens"), 0);
    for turn in &turns {
        let read = turn["prefill"]["tokens"].as_u64().unwrap();
        let all = number(turn, "prompt_tokens");
        assert_eq!(read, all - number(turn, "cached_tokens"), "{turn}");
    }
    // All of the first turn is there, but for a last token that nothing followed.
    let written = turns[0]["tokens"].as_array().unwrap().len() as u64;
    let held = number(&turns[0], "prompt_tokens") + written;
    let cached = number(&turns[1], "cached_tokens");
    assert!(cached == held || cached == held - 1, "{cached} of {held}");
    // Begun anew it answers as at first.
    assert_eq!(turns[2]["tokens"], turns[0]["tokens"]);
    // One turn is what `generate --chat` writes.
    let one = [
        "generate",
        "--chat",
        "--template",
        &template,
        "-p",
        "What is ownership?",
        "-n",
        "8",
        "--device",
        "cpu",
        "--json",
    ];
    assert_eq!(json(&one)["tokens"], turns[0]["tokens"]);
}

#[test]
fn the_system_message_is_set_by_argument_or_command() {
    let scratch = Scratch::new("chat-system");
    let template = scratch.file("t.jinja", TEMPLATE);
    let args = ["-n", "4", "--json"];
    let command = turns(&chat(&template, &args, "/system Be brief.\nHello\n"));
    let with = [&args[..], &["--system", "Be brief."]].concat();
    let argument = turns(&chat(&template, &with, "Hello\n"));
    let without = turns(&chat(&template, &args, "Hello\n"));
    assert_eq!(command[0]["tokens"], argument[0]["tokens"]);
    let tokens = |turns: &[Value]| number(&turns[0], "prompt_tokens");
    assert_eq!(tokens(&command), tokens(&argument));
    assert!(tokens(&without) < tokens(&command));
}

#[test]
fn commands_are_not_messages() {
    let scratch = Scratch::new("chat-commands");
    let template = scratch.file("t.jinja", TEMPLATE);
    let lines = "/help\n\n/resett\nan end <|endoftext|> inside\n/quit\nHello\n";
    let run = chat(&template, &[], lines);
    assert_eq!((run.code, run.out.as_str()), (Some(0), ""), "{}", run.err);
    for part in [
        "/system TEXT",
        "no command /resett",
        "spells a special token",
    ] {
        assert!(run.err.contains(part), "{part}: {}", run.err);
    }
}

#[test]
fn a_message_that_does_not_fit_is_left_out() {
    let scratch = Scratch::new("chat-long");
    let template = scratch.file("t.jinja", TEMPLATE);
    let lines = format!("{}\nHello\n", "many words ".repeat(100));
    let run = chat(&template, &["-n", "2", "-c", "64", "--json"], &lines);
    assert!(run.err.contains("left out"), "{}", run.err);
    let turns = turns(&run);
    assert_eq!(turns.len(), 1);
    assert_eq!(turns[0]["user"], "Hello");
}

#[test]
fn refusals_say_what_to_do() {
    let scratch = Scratch::new("chat-refusals");
    let none = &["no chat template", "--template"];
    bad(&["chat"], 1, none);
    bad(&["generate", "--chat"], 1, none);
    let broken = scratch.file("broken.jinja", "{% for m in messages %}");
    bad(
        &["chat", "--template", &broken],
        1,
        &["broken.jinja", "because"],
    );
    let missing = scratch.path("none.txt");
    bad(&["generate", "--file", &missing], 1, &["none.txt"]);
    bad(&["generate", "-f", &missing, "-p", "x"], 2, &["--prompt"]);
}

#[test]
fn a_prompt_may_be_a_file() {
    let scratch = Scratch::new("prompt-file");
    let file = scratch.file("p.txt", "A trait\nis\n");
    let rest = ["-n", "3", "--device", "cpu", "--json"];
    let of = |from: [&str; 2]| json(&[&["generate"][..], &from, &rest].concat());
    let (file, argument) = (of(["--file", &file]), of(["-p", "A trait\nis"]));
    assert_eq!(file["prompt"], "A trait\nis");
    assert_eq!(file["tokens"], argument["tokens"]);
}

/// Ctrl-C stops the answer; the conversation goes on.
#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_only() {
    use std::io::Read;
    let scratch = Scratch::new("chat-interrupt");
    let template = scratch.file("t.jinja", TEMPLATE);
    // Nothing ends an answer before 100,000 tokens but the one special token.
    let args = [
        "chat",
        "--template",
        &template,
        "--device",
        "cpu",
        "-c",
        "100000",
        "--temp",
        "1",
    ];
    let mut command = tercet(&args);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Tell me all of it.\n").unwrap();
    let mut byte = [0];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut byte).unwrap();
    let mut kill = std::process::Command::new("kill");
    let kill = kill.args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    stdin.write_all(b"/help\n/quit\n").unwrap();
    drop(stdin);
    let run = text(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let (_, after) = run.err.split_once("stopped: interrupted").unwrap();
    assert!(after.contains("/system TEXT"), "{}", run.err);
}
