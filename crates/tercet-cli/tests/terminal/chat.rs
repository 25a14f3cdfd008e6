//! A conversation on a terminal: editing, history, pasted texts, Ctrl-C at any moment, a full context.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{Scratch, good, tercet};
use nix::pty::{Winsize, openpty};

const CTRL_C: &str = "\u{3}";
const LEFT: &str = "\u{1b}[D";
const UP: &str = "\u{1b}[A";
const DOWN: &str = "\u{1b}[B";
/// The editor turns bracketed paste on when it begins to read.
const READS: &str = "\u{1b}[?2004h";
/// It turns it off at the end of a line.
const ENTERED: &str = "\u{1b}[?2004l";
const INTERRUPTED: &str = "note: interrupted";
const LEAVE: &str = "Ctrl-C again";

/// Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// `tercet chat` on its own terminal, which controls it: Ctrl-C is a signal unless the editor reads.
struct ChatTerminal {
    child: Child,
    terminal: File,
    bytes: Receiver<Vec<u8>>,
    /// The output that no expectation has consumed.
    rest: String,
    /// All output.
    seen: String,
}

impl ChatTerminal {
    fn start(scratch: &Scratch, args: &[&str]) -> ChatTerminal {
        let size = Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // A program that another test starts meanwhile would inherit this terminal.
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let pty = openpty(&size, None).unwrap();
        let own = tercet(&[]);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(own.get_program());
        command.args(["chat", "--device", "cpu"]).args(args);
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        command.env_remove("XDG_RUNTIME_DIR");
        command.env("XDG_STATE_HOME", scratch.path("state"));
        command.stdin(pty.slave.try_clone().unwrap());
        command.stdout(pty.slave.try_clone().unwrap());
        let child = command.stderr(pty.slave).spawn().unwrap();
        // The duplicate is closed in programs that are started later.
        let terminal = File::from(pty.master.try_clone().unwrap());
        drop(pty.master);
        drop(alone);
        let (sender, bytes) = channel();
        let mut reader = terminal.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Reading a pseudo-terminal fails after the last writer has closed it.
            while let Ok(n @ 1..) = reader.read(&mut part) {
                if sender.send(part[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        ChatTerminal {
            child,
            terminal,
            bytes,
            rest: String::new(),
            seen: String::new(),
        }
    }

    /// Starts a conversation and waits for its prompt.
    fn at_prompt(scratch: &Scratch, args: &[&str]) -> ChatTerminal {
        let mut chat = ChatTerminal::start(scratch, args);
        chat.expect(READS);
        chat
    }

    fn send(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a part of the output and returns the output up to its end.
    #[track_caller]
    fn expect(&mut self, part: &str) -> String {
        match self.find(part, PATIENCE) {
            Some(shown) => shown,
            None => panic!("no {part:?} in {:?}; before: {:?}", self.rest, self.seen),
        }
    }

    /// Like [`Self::expect`], but `None` if the part does not come in time.
    fn find(&mut self, part: &str, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        loop {
            if let Some(at) = self.rest.find(part) {
                let later = self.rest.split_off(at + part.len());
                return Some(std::mem::replace(&mut self.rest, later));
            }
            let left = until.saturating_duration_since(Instant::now());
            let bytes = self.bytes.recv_timeout(left).ok()?;
            let text = String::from_utf8_lossy(&bytes);
            self.seen += &text;
            self.rest += &text;
        }
    }

    /// Waits until everything that was sent is handled. Keys right after Ctrl-C may be lost, as on any
    /// terminal, so the command is repeated.
    #[track_caller]
    fn synchronize(&mut self) {
        for attempt in 0..60 {
            let name = format!("/no-command-{attempt}");
            self.send(&format!("{name}\r"));
            let unknown = format!("{name}: unknown command");
            if self.find(&unknown, Duration::from_secs(3)).is_some() {
                self.expect(READS);
                return;
            }
        }
        panic!("no answer: {:?}", self.seen);
    }

    /// Sends a message and returns the output up to the next prompt.
    #[track_caller]
    fn ask(&mut self, message: &str) -> String {
        self.send(message);
        self.send("\r");
        self.expect(READS)
    }

    /// Ends the conversation and returns its exit code and everything it has shown.
    #[track_caller]
    fn end(mut self, keys: &str) -> (Option<i32>, String) {
        self.send(keys);
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it does not end: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(20));
        };
        while let Ok(bytes) = self.bytes.recv_timeout(Duration::from_secs(5)) {
            self.seen += &String::from_utf8_lossy(&bytes);
        }
        let code = status.code().or(status.signal().map(|s| 128 + s));
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for ChatTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answer to `message` as the only message of a conversation, with the line ends that a
/// terminal shows.
fn answer(message: &str) -> String {
    let args = ["generate", "--chat", "-n", "12", "--device", "cpu", "-p"];
    let answer = good(&[&args[..], &[message]].concat()).out;
    assert!(answer.trim().len() > 8, "{answer:?}");
    answer.trim_end().replace('\n', "\r\n")
}

const TRAIT: &str = "What is a trait?";

#[test]
fn a_line_is_edited_and_recalled() {
    let scratch = Scratch::new("chat-edited");
    let (own, other) = (answer(TRAIT), answer("And an enum?"));
    assert_ne!(own, other);
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12"]);
    // Two letters are missing, which the arrow keys insert; one is too many, which is deleted.
    chat.send("What is trait?");
    chat.send(&LEFT.repeat(6));
    chat.send("a Xt\u{7f}");
    chat.send("\u{7f}\u{7f} ");
    let shown = chat.ask("");
    assert!(shown.contains(&own), "no {own:?} in {shown:?}");
    chat.ask("/clear");
    assert!(chat.ask("And an enum?").contains(&other));
    chat.ask("/reset");
    // Back over both messages and the commands, one too far, and forth again.
    chat.send(&UP.repeat(5));
    chat.send(DOWN);
    chat.send(UP);
    let shown = chat.ask("");
    assert!(shown.contains(&own), "{shown:?}");
    let (code, shown) = chat.end("/quit\r");
    assert_eq!(code, Some(0), "{shown:?}");
    for raw in ["^[[", "^C", "unknown command"] {
        assert!(!shown.contains(raw), "{raw}: {shown:?}");
    }

    // The next conversation has the messages too.
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12"]);
    chat.send(&UP.repeat(2));
    let shown = chat.ask("");
    assert!(shown.contains(&own), "{shown:?}");
    // Ctrl-D at an empty prompt is the end of the input.
    assert_eq!(chat.end("\u{4}").0, Some(0));
}

#[test]
fn a_pasted_text_is_one_message() {
    let scratch = Scratch::new("chat-paste");
    let text = "fn main() {\n    println!(\"a\\n\");\n}";
    let own = answer(text);
    assert_ne!(own, answer("fn main() {"));
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12"]);
    // Terminals send line ends of a paste as carriage returns.
    for ends in ["\r", "\n", "\r\n"] {
        let pasted = text.replace('\n', ends);
        let shown = chat.ask(&format!("\u{1b}[200~{pasted}\u{1b}[201~"));
        assert!(shown.contains(&own), "no {own:?} in {shown:?}");
        chat.ask("/clear");
    }
    // A pasted text may begin like a command.
    let path = "/usr/lib/x.rs:3: error\nexpected `;`";
    let shown = chat.ask(&format!("\u{1b}[200~{path}\u{1b}[201~"));
    assert!(shown.contains(&answer(path)), "{shown:?}");
    assert_eq!(chat.end("/quit\r").0, Some(0));
    let history = std::fs::read_to_string(scratch.path("state/tercet/chat-history")).unwrap();
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    let first = history.lines().next().unwrap();
    assert_eq!(first, escaped, "{history}");

    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12", "--no-history"]);
    assert!(chat.ask(&format!("{UP}{TRAIT}")).contains(&answer(TRAIT)));
    assert_eq!(chat.end("/quit\r").0, Some(0));
    let same = std::fs::read_to_string(scratch.path("state/tercet/chat-history")).unwrap();
    assert_eq!(same, history);
}

#[test]
fn ctrl_c_at_any_moment_stops_what_is_there_and_nothing_else() {
    let scratch = Scratch::new("chat-ctrl-c");
    let own = answer(TRAIT);
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12"]);
    let goes_on = |chat: &mut ChatTerminal, moment: &str| {
        chat.ask("/clear");
        chat.ask("/set tokens 12");
        let shown = chat.ask(TRAIT);
        assert!(shown.contains(&own), "{moment}: {shown:?}");
    };

    // At the prompt: once, and after a line was written, which is discarded.
    chat.send(CTRL_C);
    chat.expect(LEAVE);
    chat.expect(READS);
    goes_on(&mut chat, "empty prompt");
    chat.send("a message that nobody wants");
    chat.expect("wants");
    chat.send(CTRL_C);
    let shown = chat.expect(READS);
    assert!(!shown.contains(LEAVE), "{shown:?}");
    // The discarded line does not count as an empty prompt.
    chat.send(CTRL_C);
    chat.expect(LEAVE);
    chat.expect(READS);
    goes_on(&mut chat, "discarded line");

    // While a prompt is processed. On a fast machine the signal comes later, which is right too.
    let long = "the borrow checker ".repeat(40);
    chat.ask("/set tokens 400");
    chat.send(&format!("{long}\r"));
    chat.expect("prefill");
    chat.send(CTRL_C);
    chat.expect(INTERRUPTED);
    chat.expect(READS);
    chat.synchronize();
    goes_on(&mut chat, "prefill");

    // Between the end of the line and the answer.
    chat.ask("/set tokens 400");
    chat.send(&format!("{TRAIT}\r"));
    chat.send(CTRL_C);
    chat.expect(READS);
    chat.synchronize();
    goes_on(&mut chat, "end of the line");

    // Ctrl-C comes with the first word of an answer, after some words, or twice.
    let words: Vec<&str> = own.split_whitespace().collect();
    let later = words[words.len() / 2];
    for (moment, shown, keys) in [
        ("first word", words[0], CTRL_C.to_string()),
        ("some words", later, CTRL_C.to_string()),
        ("twice", later, CTRL_C.repeat(2)),
    ] {
        chat.ask("/clear");
        chat.ask("/set tokens 400");
        chat.send(&format!("{TRAIT}\r"));
        chat.expect(ENTERED);
        chat.expect(shown);
        chat.send(&keys);
        chat.expect(INTERRUPTED);
        chat.expect(READS);
        chat.synchronize();
        goes_on(&mut chat, moment);
    }

    // Just after an answer, as the prompt appears, five times. The key reaches the answer, or the prompt
    // after it, which then appears twice.
    for _ in 0..5 {
        chat.ask("/clear");
        chat.send(&format!("{TRAIT}\r"));
        chat.expect(&own);
        chat.send(CTRL_C);
        chat.expect(READS);
        chat.synchronize();
    }
    // A command in between is no second press.
    goes_on(&mut chat, "just after an answer");
    chat.send(CTRL_C);
    chat.expect(LEAVE);
    chat.expect(READS);
    let (code, shown) = chat.end(CTRL_C);
    assert_eq!(code, Some(130), "{shown:?}");
}

#[test]
fn ctrl_c_while_a_conversation_loads_ends_it() {
    let scratch = Scratch::new("chat-loading");
    // On a busy machine the key may come after loading, so the run is repeated.
    let ended = std::iter::repeat_with(|| {
        // The position tables of a million tokens take long enough to interrupt.
        let mut chat = ChatTerminal::start(&scratch, &["-c", "1048576"]);
        chat.expect("loading");
        chat.send(CTRL_C);
        chat.end("")
    });
    let (code, shown) = ended
        .take(5)
        .find(|(_, shown)| !shown.contains(READS))
        .expect("a signal that comes while a model is loaded");
    assert_eq!(code, Some(130), "{shown:?}");
}

#[test]
fn a_full_context_goes_on() {
    let scratch = Scratch::new("chat-full");
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "24", "-c", "96"]);
    let ask = |chat: &mut ChatTerminal| {
        let shown = chat.ask("What is a trait, and what is an enum?");
        // Words of the message, of the notes and of the answer.
        assert!(shown.split_whitespace().count() > 12, "{shown:?}");
    };
    for _ in 0..8 {
        ask(&mut chat);
    }
    chat.ask("/clear");
    ask(&mut chat);
    let (code, shown) = chat.end("/quit\r");
    assert_eq!(code, Some(0), "{shown:?}");
    assert_eq!(shown.matches("oldest turns leave").count(), 1, "{shown:?}");
    assert!(!shown.contains("\nerror: "), "{shown:?}");
}

#[test]
fn lines_that_are_typed_ahead_are_not_lost() {
    let scratch = Scratch::new("chat-ahead");
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12"]);
    chat.send(&format!("/clear\r/set tokens 12\r{TRAIT}\r/quit\r"));
    let (code, shown) = chat.end("");
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(shown.contains(&answer(TRAIT)), "{shown:?}");
}

#[test]
fn an_error_does_not_end_a_conversation() {
    let scratch = Scratch::new("chat-errors");
    let own = answer(TRAIT);
    let mut chat = ChatTerminal::at_prompt(&scratch, &["-n", "12"]);
    for (line, said) in [
        ("/nothing", "unknown command"),
        ("/set mood good", "unknown setting"),
        ("/image none.png", "does not accept images"),
    ] {
        let shown = chat.ask(line);
        assert!(shown.contains(said), "{line}: {shown:?}");
    }
    let long = "word ".repeat(20_000);
    let shown = chat.ask(&format!("\u{1b}[200~{long}\u{1b}[201~"));
    assert!(
        shown.contains("exceeds the context"),
        "{line}",
        line = &shown[shown.len() - 300..]
    );
    assert!(chat.ask(TRAIT).contains(&own));
    assert_eq!(chat.end("/quit\r").0, Some(0));
}

/// Thoughts are dimmed and apart from the answer, calls are named, and no marker is shown.
#[test]
fn thoughts_are_dimmed_and_markers_are_not_shown() {
    let scratch = Scratch::new("chat-thoughts");
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let thinks = r#"start: "<think>Because.\n</think>\n\nYes.\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>""#;
    let grammar = scratch.path("answer.lark");
    std::fs::write(&grammar, thinks).unwrap();

    let args = [
        "-n",
        "100",
        "--chat-template",
        template,
        "--grammar",
        &grammar,
    ];
    let mut chat = ChatTerminal::at_prompt(&scratch, &args);
    let shown = chat.ask("Why?");
    let dimmed = "\u{1b}[2mthoughts: \u{1b}[22m";
    let (_, thought) = shown
        .split_once(dimmed)
        .unwrap_or_else(|| panic!("{shown:?}"));
    let (thought, said) = thought
        .split_once("Yes.")
        .unwrap_or_else(|| panic!("{shown:?}"));
    let plain = thought.replace("\u{1b}[2m", "").replace("\u{1b}[22m", "");
    assert_eq!(plain, "Because.\r\n\r\n");
    assert!(thought.ends_with("\u{1b}[22m"), "{shown:?}");
    assert!(said.starts_with("\r\ncall now {}\r\n"), "{shown:?}");
    let (code, all) = chat.end("/quit\r");
    assert_eq!(code, Some(0));
    for marker in ["<think>", "</think>", "tool_call"] {
        assert!(!all.contains(marker), "{all:?}");
    }
}
