//! Tests of file formats, and of line numbers in errors.

use std::path::Path;

use tercet_text::dataset::{
    ChatRecord, Corpus, CorpusOptions, DataError, DatasetRecord, DatasetTask, LineError,
    ReadLimits, RecordReader,
};

use crate::common::temp_dir;
use crate::dataset::{TOKENIZER, file};

fn records(path: &Path, task: DatasetTask) -> Result<Vec<(u64, DatasetRecord)>, DataError> {
    RecordReader::open(path, task, ReadLimits::default())?.collect()
}

/// The line number and the cause of an error.
fn line_error(error: DataError) -> (u64, LineError) {
    match error {
        DataError::Line { line, source, path } => {
            assert!(path.ends_with("x.jsonl") || path.ends_with("x.txt"));
            (line, source)
        }
        other => panic!("no line: {other:?}"),
    }
}

type Wrong = (DatasetTask, &'static [u8], u64, fn(&LineError) -> bool);

const WRONG: &[Wrong] = &[
    (DatasetTask::Language, b"{\"text\": \"a\"}\n{\"text\": \"b\n", 2, |e| {
        matches!(e, LineError::NotJson { column: 11, .. })
    }),
    (DatasetTask::Language, b"plain words\n", 1, |e| {
        matches!(e, LineError::NotJson { .. })
    }),
    (DatasetTask::Language, b"\n\n[1]\n", 3, |e| {
        matches!(e, LineError::NotAnObject { found: "a list", .. })
    }),
    (DatasetTask::Language, b"{\"prompt\": 1, \"body\": 2}", 1, |e| {
        matches!(e, LineError::NoKnownField { found, .. } if found == "prompt, body")
    }),
    (DatasetTask::Language, b"{}", 1, |e| matches!(e, LineError::NoKnownField { .. })),
    (DatasetTask::Language, b"{\"text\": \"a\"}\r\n\r\n{\"text\": 5}", 3, |e| {
        matches!(e, LineError::WrongType { field, found: "an integer", .. } if field == "text")
    }),
    (DatasetTask::Language, b"{\"text\": null}", 1, |e| {
        matches!(e, LineError::WrongType { found: "null", .. })
    }),
    (DatasetTask::Language, b"{\"messages\": \"hi\"}", 1, |e| {
        matches!(e, LineError::WrongType { field, .. } if field == "messages")
    }),
    (DatasetTask::Language, b"{\"messages\": [\"hi\"]}", 1, |e| {
        matches!(e, LineError::WrongType { field, .. } if field == "messages[0]")
    }),
    (DatasetTask::Language, b"{\"messages\": [{\"role\": \"user\"}]}", 1, |e| {
        matches!(e, LineError::WrongType { field, .. } if field == "messages[0].content")
    }),
    (DatasetTask::Language, b"{\"messages\": [{\"content\": \"a\"}]}", 1, |e| {
        matches!(e, LineError::WrongType { field, .. } if field == "messages[0].role")
    }),
    (
        DatasetTask::Language,
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"gpt\", \"content\": \"b\"}]}",
        1,
        |e| matches!(e, LineError::UnknownRole { index: 1, role } if role == "gpt"),
    ),
    (DatasetTask::Language, b"{\"messages\": []}", 1, |e| matches!(e, LineError::NoMessages)),
    (
        DatasetTask::Language,
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
        1,
        |e| matches!(e, LineError::NoAnswer),
    ),
    (
        DatasetTask::Language,
        b"{\"text\": \"a\"}\n\n{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n",
        3,
        |e| matches!(e, LineError::MixedKinds { first: "a text", first_line: 1, .. }),
    ),
    (DatasetTask::Language, b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}", 2, |e| {
        matches!(e, LineError::NotUtf8 { offset: 24 })
    }),
    (DatasetTask::Labels, b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\"}", 2, |e| {
        matches!(e, LineError::MissingField { field: "label" })
    }),
    (DatasetTask::Labels, b"{\"text\": \"a\", \"label\": 1.5}", 1, |e| {
        matches!(e, LineError::WrongType { field, .. } if field == "label")
    }),
    (DatasetTask::Labels, b"{\"text\": \" \", \"label\": 1}", 1, |e| {
        matches!(e, LineError::NoText { field: "text" })
    }),
    (DatasetTask::Labels, b"{\"label\": 1}", 1, |e| {
        matches!(e, LineError::MissingField { field: "text" })
    }),
    (DatasetTask::Pairs, b"{\"anchor\": \"a\"}", 1, |e| {
        matches!(e, LineError::MissingField { field: "positive" })
    }),
    (DatasetTask::Pairs, b"{\"text\": \"a\"}", 1, |e| matches!(e, LineError::NoKnownField { .. })),
];

#[test]
fn errors_name_the_line() {
    for (at, (task, bytes, line, is)) in WRONG.iter().enumerate() {
        let path = file("errors_name_the_line", "x.jsonl", bytes);
        let (found, error) = line_error(records(&path, *task).unwrap_err());
        assert!(is(&error), "{at}: {error:?}");
        assert_eq!(found, *line, "{at}: {error}");
    }
}

#[test]
fn what_is_no_text() {
    let path = file("what_is_no_text", "x.txt", b"ab\ncd\xff");
    let (line, error) = line_error(records(&path, DatasetTask::Language).unwrap_err());
    assert!(line == 2 && matches!(error, LineError::NotUtf8 { offset: 5 }));
    let read = |path: &Path| Corpus::read(path, &TOKENIZER, None, CorpusOptions::default());
    for bytes in ["", " \n\r\n\t", "\u{feff}", "\u{feff}\n"] {
        for name in ["x.txt", "x.jsonl"] {
            let error = read(&file("what_is_no_text", name, bytes)).unwrap_err();
            assert!(
                matches!(error, DataError::Empty { .. }),
                "{bytes:?}: {error:?}"
            );
        }
    }
    let none = read(&file(
        "what_is_no_text",
        "x.jsonl",
        "{\"text\": \"\"}\n{\"text\": \"\"}",
    ));
    assert!(matches!(
        none,
        Err(DataError::NothingLeft { skipped: 2, .. })
    ));
    let chat = "\n{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}";
    let error = read(&file("what_is_no_text", "x.jsonl", chat)).unwrap_err();
    assert!(matches!(line_error(error), (2, LineError::NoTemplate)));
    assert!(matches!(
        read(Path::new("no/such/file")),
        Err(DataError::File(_))
    ));
    assert!(matches!(
        read(&temp_dir("a_folder")),
        Err(DataError::File(_))
    ));
}

#[test]
fn bounds_of_lines_and_files() {
    let limits = ReadLimits {
        line_bytes: 13,
        text_bytes: 5,
    };
    let path = file(
        "bounds",
        "x.jsonl",
        "{\"text\": \"a\"}\r\n{\"text\": \"ab\"}\n",
    );
    let read: Result<Vec<_>, _> = RecordReader::open(&path, DatasetTask::Language, limits)
        .unwrap()
        .collect();
    assert!(matches!(
        line_error(read.unwrap_err()),
        (2, LineError::TooLong { max: 13 })
    ));
    for (text, fits) in [("12345", true), ("123456", false)] {
        let path = file("bounds", "x.txt", text);
        let mut read = RecordReader::open(&path, DatasetTask::Language, limits).unwrap();
        assert_eq!(read.next().unwrap().is_ok(), fits);
        assert!(read.next().is_none());
    }
}

#[test]
fn forms_of_files() {
    let lines = "\u{feff}{\"text\": \"a\\nb\"}\r\n\r\n  {\"text\": \"\u{e9}\", \"label\": 3}";
    let found = records(&file("forms", "x.jsonl", lines), DatasetTask::Language).unwrap();
    let texts: Vec<_> = found
        .iter()
        .map(|(line, record)| match record {
            DatasetRecord::Text(text) => (*line, text.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, [(1, "a\nb"), (3, "\u{e9}")]);
    // Blank lines do not split a text.
    let text = "\u{feff}one\r\n\r\ntwo\n";
    let found = records(&file("forms", "x.txt", text), DatasetTask::Language).unwrap();
    assert!(matches!(&found[..], [(1, DatasetRecord::Text(t))] if t == "one\n\ntwo\n"));
    let chat = r#"{"messages": [{"role": "assistant", "tool_calls": []}], "tools": [1]}"#;
    let found = records(&file("forms", "x.jsonl", chat), DatasetTask::Language).unwrap();
    assert!(
        matches!(&found[..], [(1, DatasetRecord::Chat(ChatRecord { tools, .. }))] if tools.as_list().is_some())
    );
}
