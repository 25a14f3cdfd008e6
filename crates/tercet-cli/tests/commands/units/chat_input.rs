use tercet_cli::internals::{ChatInput, CliError, MAX_MESSAGE, read_line};

#[test]
fn plain_lines_have_a_limit_and_an_encoding() {
    let read = |bytes: &[u8]| read_line(&mut std::io::BufReader::new(bytes));
    assert_eq!(read(b"a\nb").unwrap(), ChatInput::Line("a\n".into()));
    assert_eq!(read(b"").unwrap(), ChatInput::End);
    let long = "a".repeat(MAX_MESSAGE + 1);
    assert!(matches!(read(long.as_bytes()), Err(CliError::Usage(_))));
    assert!(read(&long.as_bytes()[1..]).is_ok());
    assert!(matches!(read(b"a\xff\n"), Err(CliError::Usage(_))));
}
