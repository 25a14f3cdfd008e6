use std::fs;
use std::path::Path;

use tercet_cli::internals::{HistoryFile, MAX_ENTRIES};

fn scratch(test: &str) -> HistoryFile {
    let name = format!("tercet-history-{}-{test}", std::process::id());
    let path = std::env::temp_dir().join(name).join("deep/chat-history");
    HistoryFile { path }
}

fn remove(file: &HistoryFile) {
    let folder = file.path.parent().and_then(Path::parent).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn messages_keep_their_line_ends() {
    let file = scratch("lines");
    assert_eq!(file.load().unwrap(), Vec::<String>::new());
    let messages = ["a", "b\nc\n\\n", "\\", "d\r\né \\x"];
    for message in messages {
        file.append(message).unwrap();
    }
    assert_eq!(file.load().unwrap(), messages);
    let text = fs::read_to_string(&file.path).unwrap();
    assert_eq!(text.lines().count(), messages.len(), "{text}");
    remove(&file);
}

#[cfg(unix)]
#[test]
fn other_users_cannot_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let file = scratch("mode");
    file.append("a").unwrap();
    let mode = fs::metadata(&file.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    remove(&file);
}

#[test]
fn a_long_file_is_shortened() {
    let file = scratch("long");
    file.append("first").unwrap();
    let line = |number: usize| format!("message {number}");
    let all: String = (0..2 * MAX_ENTRIES)
        .map(|number| line(number) + "\n")
        .collect();
    fs::write(&file.path, all).unwrap();
    file.append("last").unwrap();
    let loaded = file.load().unwrap();
    assert_eq!(
        (
            loaded.len(),
            loaded[0].as_str(),
            loaded[MAX_ENTRIES - 1].as_str()
        ),
        (MAX_ENTRIES, line(MAX_ENTRIES + 1).as_str(), "last")
    );
    let text = fs::read_to_string(&file.path).unwrap();
    assert_eq!(text.lines().count(), MAX_ENTRIES);
    assert_eq!(file.load().unwrap(), loaded);
    remove(&file);
}
