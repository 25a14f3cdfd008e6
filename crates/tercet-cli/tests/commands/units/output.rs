use tercet_cli::internals::output::{bytes, clip, count, escape_line, escape_lines};

#[test]
fn numbers_read_well() {
    assert_eq!(count(0), "0");
    assert_eq!(count(3_541_248), "3,541,248");
    assert_eq!(bytes(512), "512 B");
    assert_eq!(bytes(3 << 19), "1.5 MiB");
    assert_eq!(clip("a\nb", 10), "a b");
    assert_eq!(clip("abcdefgh", 6), "abc...");
}

#[test]
fn what_acts_on_a_terminal_is_escaped() {
    assert_eq!(
        escape_line("weights.0 \u{e9} \u{5d0}"),
        "weights.0 \u{e9} \u{5d0}"
    );
    assert_eq!(escape_line("\u{1b}[2J\r\u{7}"), "\\u{1b}[2J\\r\\u{7}");
    assert_eq!(escape_line("a\nb\u{9b}1m"), "a\\nb\\u{9b}1m");
    assert_eq!(
        escape_line("\u{202e}fdp.exe\u{2066}"),
        "\\u{202e}fdp.exe\\u{2066}"
    );
    assert_eq!(escape_lines("a\n  b\u{1b}"), "a\n  b\\u{1b}");
    assert_eq!(clip("\u{1b}\u{1b}\u{1b}", 9), "\\u{1b}...");
}
