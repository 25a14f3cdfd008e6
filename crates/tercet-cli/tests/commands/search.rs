//! `tercet search`: building and updating an index of a folder, and queries.

use crate::common::{Scratch, bad, data, good, json};
use serde_json::{Value, json as of};

const MODEL: &str = "encoders/sentence-a";

/// A folder of texts, with the arguments that index it.
struct Folder {
    scratch: Scratch,
    model: String,
}

impl Folder {
    fn new(test: &str) -> Folder {
        let scratch = Scratch::new(test);
        std::fs::create_dir_all(scratch.path("texts/deep")).unwrap();
        std::fs::create_dir_all(scratch.path("texts/.hidden")).unwrap();
        scratch.file("texts/a.txt", "a cat sleeps\n\nthe dog\nsees a bird\n");
        scratch.file("texts/deep/b.md", "two birds fly\n");
        scratch.file("texts/empty.txt", "\n\n");
        scratch.file("texts/zeros.bin", b"a\0b");
        scratch.file("texts/.hidden/c.txt", "the old tree");
        Folder {
            scratch,
            model: data(MODEL),
        }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path(name)
    }

    fn index_with(&self, more: &[&str]) -> Value {
        json(&[&self.indexing()[..], &["--json"], more].concat())
    }

    fn indexing(&self) -> [&str; 7] {
        // The leaked paths live as long as the process; a test has only a few.
        let leak = |name: &str| -> &'static str { self.path(name).leak() };
        let (folder, output) = (leak("texts"), leak("i.safetensors"));
        ["search", "index", "-m", &self.model, folder, "-o", output]
    }

    fn search(&self, query: &str, more: &[&str]) -> Value {
        let index = self.path("i.safetensors");
        json(
            &[
                &["search", "-m", &self.model, &index, query, "--json"],
                more,
            ]
            .concat(),
        )
    }
}

#[test]
fn what_is_nearest_is_found_with_its_place() {
    let folder = Folder::new("search-found");
    let report = folder.index_with(&[]);
    let want =
        of!({"vectors": 3, "made": 3, "files": 3, "left_out": ["zeros.bin"], "finished": true});
    assert_eq!(report, want);
    // With the document prompt instead of the query prompt, a text is nearest to itself.
    let rows = folder.search("the dog\nsees a bird", &["--prompt", "document"]);
    let first = &rows[0];
    assert_eq!(
        (&first["file"], &first["lines"], &first["text"]),
        (&of!("a.txt"), &of!([3, 4]), &of!("the dog\nsees a bird"))
    );
    assert!(
        (first["score"].as_f64().unwrap() - 1.0).abs() < 1e-5,
        "{first}"
    );
    assert_eq!(rows.as_array().unwrap().len(), 3);
    // By default queries use the folder's query prompt.
    let own = folder.search("two birds fly", &[]);
    assert_eq!(own, folder.search("two birds fly", &["--prompt", "query"]));
    assert_ne!(
        own,
        folder.search("two birds fly", &["--prompt", "document"])
    );
    let scores: Vec<f64> = own
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["score"].as_f64().unwrap())
        .collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");

    let index = folder.path("i.safetensors");
    let out = good(&["search", "-m", &folder.model, &index, "a cat", "-n", "1"]).out;
    assert_eq!(out.lines().count(), 1, "{out}");
    folder.scratch.file("texts/deep/b.md", "two dogs\n");
    std::fs::remove_file(folder.path("texts/a.txt")).unwrap();
    let rows = folder.search("two birds fly", &[]);
    for row in rows.as_array().unwrap() {
        assert_eq!(
            (&row["changed"], row.get("text")),
            (&of!(true), None),
            "{row}"
        );
    }
}

#[test]
fn only_what_changed_is_embedded_again() {
    let folder = Folder::new("search-changed");
    folder.index_with(&[]);
    let bytes = |folder: &Folder| std::fs::read(folder.path("i.safetensors")).unwrap();
    let before = bytes(&folder);
    let same = folder.index_with(&[]);
    assert_eq!((&same["made"], &same["vectors"]), (&of!(0), &of!(3)));
    assert_eq!(bytes(&folder), before);

    folder
        .scratch
        .file("texts/deep/b.md", "two birds fly\n\na red house\n");
    folder.scratch.file("texts/new.txt", "the green tree");
    std::fs::remove_file(folder.path("texts/a.txt")).unwrap();
    let changed = folder.index_with(&[]);
    assert_eq!((&changed["made"], &changed["vectors"]), (&of!(3), &of!(3)));
    let by = |query: &str| folder.search(query, &["--prompt", "document", "-n", "1"])[0].clone();
    assert_eq!(
        (&by("a red house")["file"], &by("a red house")["lines"]),
        (&of!("deep/b.md"), &of!([3, 3]))
    );
    assert_eq!(by("the green tree")["file"], "new.txt");
}

/// An index of one file after an interruption: it has only the first `rows` vectors.
fn half_done(bytes: &[u8], rows: usize) -> Vec<u8> {
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let note = header["__metadata__"]["tercet_search"].as_str().unwrap();
    let mut note: Value = serde_json::from_str(note).unwrap();
    note["files"][0]["count"] = of!(rows);
    note["files"][0]["whole"] = of!(false);
    let mut cut = of!({"__metadata__": {"tercet_search": note.to_string()}});
    let mut kept = Vec::new();
    for name in ["bytes", "lines", "vectors"] {
        let begin = data + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
        let width = header[name]["shape"][1].as_u64().unwrap() as usize;
        let (from, len) = (kept.len(), rows * width * 4);
        kept.extend(&bytes[begin..begin + len]);
        cut[name] = of!({
            "dtype": header[name]["dtype"], "shape": [rows, width], "data_offsets": [from, from + len],
        });
    }
    let cut = cut.to_string();
    let len = (cut.len() as u64).to_le_bytes();
    [&len[..], cut.as_bytes(), &kept].concat()
}

#[test]
fn a_file_that_was_half_done_goes_on() {
    let folder = Folder::new("search-half");
    for name in ["a.txt", "deep/b.md", "empty.txt", "zeros.bin"] {
        std::fs::remove_file(folder.path(&format!("texts/{name}"))).unwrap();
    }
    folder
        .scratch
        .file("texts/one.txt", "a cat\n\nthe dog\n\na bird\n");
    folder.index_with(&[]);
    let index = folder.path("i.safetensors");
    let whole = std::fs::read(&index).unwrap();
    let half = half_done(&whole, 2);
    std::fs::write(&index, &half).unwrap();
    assert_eq!(folder.search("a", &[]).as_array().map(Vec::len), Some(2));
    let report = folder.index_with(&[]);
    assert_eq!((&report["made"], &report["vectors"]), (&of!(1), &of!(3)));
    let vectors = |bytes: &[u8]| bytes[bytes.len() - 3 * 10 * 4..].to_vec();
    let now = std::fs::read(&index).unwrap();
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        let all = vectors(bytes);
        all.as_chunks::<4>()
            .0
            .iter()
            .map(|x| f32::from_le_bytes(*x))
            .collect()
    };
    for (x, y) in numbers(&now).iter().zip(numbers(&whole)) {
        assert!((x - y).abs() < 1e-5, "{x} {y}");
    }
    // If the file's content differs, indexing starts over.
    std::fs::write(&index, &half).unwrap();
    folder.scratch.file("texts/one.txt", "a bird\n\nthe dog\n");
    let report = folder.index_with(&[]);
    assert_eq!((&report["made"], &report["vectors"]), (&of!(2), &of!(2)));
}

#[test]
fn indices_of_others_are_refused() {
    let folder = Folder::new("search-refused");
    folder.index_with(&[]);
    let index = folder.path("i.safetensors");
    let other = data("encoders/sentence-c");
    bad(
        &["search", "-m", &other, &index, "a"],
        1,
        &["another model"],
    );
    let mut args = folder.indexing();
    args[3] = &other;
    bad(&args, 1, &["another model"]);
    bad(
        &[&folder.indexing()[..], &["--by", "lines"]].concat(),
        1,
        &["paragraphs", "lines"],
    );
    bad(
        &[&folder.indexing()[..], &["--dims", "4"]].concat(),
        1,
        &["4 dimensions"],
    );
    let mut args = folder.indexing();
    let deep = folder.path("texts/deep");
    args[4] = &deep;
    bad(&args, 1, &["the index belongs to", "use another file"]);
    bad(
        &["search", "-m", &folder.model, "/nowhere/i", "a"],
        1,
        &["/nowhere/i"],
    );
    bad(&["search"], 2, &[]);
}

#[test]
fn damaged_indices_are_refused_and_stay() {
    let folder = Folder::new("search-damaged");
    folder.index_with(&[]);
    let bytes = std::fs::read(folder.path("i.safetensors")).unwrap();
    let damage = |name: &str, bytes: &[u8], said: &[&str]| {
        let path = folder.scratch.file(name, bytes);
        bad(&["search", "-m", &folder.model, &path, "a"], 1, said);
        bad(
            &[
                "search",
                "index",
                "-m",
                &folder.model,
                &folder.path("texts"),
                "-o",
                &path,
            ],
            1,
            said,
        );
        assert_eq!(
            std::fs::read(&path).unwrap(),
            bytes,
            "an index that is refused stays"
        );
    };
    damage("cut", &bytes[..bytes.len() - 8], &["not a readable index"]);
    let model = std::fs::read(format!("{}/model.safetensors", data(MODEL))).unwrap();
    damage("model", &model, &["invalid index", "tercet_search"]);
    // In the file, the ranges of bytes and of lines of the three passages precede their vectors.
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut backwards = bytes.clone();
    backwards[header + 28..header + 32].fill(0);
    damage("backwards", &backwards, &["invalid index", "line numbers"]);
    let mut negative = bytes.clone();
    negative[header + 3] = 0x80;
    damage("negative", &negative, &["invalid index", "byte positions"]);
    let mut far = bytes.clone();
    let last = far.len() - 4;
    far[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let text = String::from_utf8_lossy(&bytes[8..header]).into_owned();
    assert!(text.contains("vectors"), "{text}");
    damage("nan", &far, &["invalid index"]);
    let changed = |from: &str, to: &str| {
        let new = text.replace(from, to);
        assert_eq!(new.len(), text.len(), "{from}");
        [&bytes[..8], new.as_bytes(), &bytes[header..]].concat()
    };
    damage(
        "version",
        &changed("version\\\":2", "version\\\":7"),
        &["version 7"],
    );
    damage(
        "counts",
        &changed("count\\\":1", "count\\\":9"),
        &["invalid index", "vectors"],
    );
    damage(
        "field",
        &changed("whole", "wheel"),
        &["invalid index", "wheel"],
    );
}

#[test]
fn long_passages_are_cut_into_overlapping_pieces() {
    let folder = Folder::new("search-long");
    // A paragraph and a line that the model, which reads nine tokens, cannot read at once.
    let paragraph = "a cat sleeps\r\nthe dog sees a bird\ntwo birds fly\nthe old tree";
    let line = "a red house the green tree a cat a bird the old dog sees two cats fly";
    folder
        .scratch
        .file("texts/long.txt", format!("\n{paragraph}\n\n{line}\n"));
    let whole = format!("\n{paragraph}\n\n{line}\n");
    let report = folder.index_with(&[]);
    assert_eq!(report["finished"], of!(true), "{report}");
    let rows = folder.search("a cat", &["-n", "100"]);
    assert_eq!(
        report["vectors"].as_u64().map(|n| n as usize),
        rows.as_array().map(Vec::len)
    );
    let mut pieces: Vec<(usize, usize, Value)> = Vec::new();
    for row in rows.as_array().unwrap() {
        assert_eq!(row["changed"], of!(false), "{row}");
        if row["file"] == "long.txt" {
            let byte = |at: usize| row["bytes"][at].as_u64().unwrap() as usize;
            pieces.push((byte(0), byte(1), row.clone()));
        }
    }
    pieces.sort_by_key(|(start, ..)| *start);
    assert!(pieces.len() >= 5, "{rows}");
    for (start, end, row) in &pieces {
        let text = &whole[*start..*end];
        assert_eq!(row["text"], text.replace("\r\n", "\n"));
        let first = whole[..*start].matches('\n').count() + 1;
        let last = first + text.matches('\n').count();
        assert_eq!(row["lines"], of!([first, last]), "{row}");
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphabetic);
        let cut =
            |at: usize| is_word(whole[..at].chars().last()) && is_word(whole[at..].chars().next());
        assert!(!cut(*start) && !cut(*end), "a word is cut: {row}");
    }
    // The pieces of a passage cover it, and each begins in the one before.
    for passage in [paragraph, line] {
        let begin = whole.find(passage).unwrap();
        let own = pieces
            .iter()
            .filter(|(start, ..)| (begin..begin + passage.len()).contains(start));
        let own: Vec<_> = own.collect();
        assert!(own.len() >= 2, "{rows}");
        assert_eq!(
            (own[0].0, own[own.len() - 1].1),
            (begin, begin + passage.len())
        );
        assert!(
            own.windows(2).all(|w| w[1].0 < w[0].1 && w[0].1 < w[1].1),
            "{own:?}"
        );
    }
    // A piece is as near as the same text alone.
    let (_, _, piece) = &pieces[1];
    let nearest = &folder.search(piece["text"].as_str().unwrap(), &["--prompt", "document"])[0];
    assert!(
        (nearest["score"].as_f64().unwrap() - 1.0).abs() < 1e-5,
        "{nearest}"
    );
    assert_eq!(nearest["bytes"], piece["bytes"]);
    // The same index again changes nothing.
    assert_eq!(folder.index_with(&[])["made"], of!(0));

    // Truncated passages stay whole.
    let mut args = folder.indexing().to_vec();
    let other = folder.path("other");
    args[6] = &other;
    args.extend(["--truncate", "--by", "lines", "--json"]);
    let report = json(&args);
    assert_eq!(
        (&report["finished"], &report["vectors"]),
        (&of!(true), &of!(9))
    );
}

#[test]
fn the_documentation_can_be_indexed() {
    let folder = Folder::new("search-docs");
    let docs = format!("{}/../../docs/guide", env!("CARGO_MANIFEST_DIR"));
    let index = folder.path("docs.index");
    let args = [
        "search",
        "index",
        "-m",
        &folder.model,
        &docs,
        "-o",
        &index,
        "--json",
    ];
    let report = json(&args);
    assert_eq!(report["finished"], of!(true), "{report}");
    let files = std::fs::read_dir(&docs).unwrap().count();
    assert!(
        report["vectors"].as_u64().unwrap() as usize > 10 * files,
        "{report}"
    );
}

#[test]
fn a_missing_index_names_the_command_that_creates_it() {
    let folder = Folder::new("search-missing");
    let index = folder.path("none.index");
    bad(
        &["search", "-m", &folder.model, &index, "a cat"],
        1,
        &[
            "cannot use the index",
            "no such index",
            "`tercet search index",
        ],
    );
}

#[test]
fn pictures_are_found_by_texts_and_pictures() {
    let scratch = Scratch::new("search-pictures");
    std::fs::create_dir_all(scratch.path("all")).unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(data("vision/pictures")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if ["gray.png", "photo.jpg", "tall.png", "wide.png"].contains(&&*name) {
            std::fs::copy(&path, scratch.path(&format!("all/{name}"))).unwrap();
            names.push(name);
        }
    }
    names.sort();
    scratch.file("all/notes.txt", "no picture");
    let (model, folder, index) = (
        data("vision/clip-a"),
        scratch.path("all"),
        scratch.path("i"),
    );
    let report = json(&[
        "search", "index", "-m", &model, &folder, "-o", &index, "--json",
    ]);
    assert_eq!(report["vectors"], of!(names.len()));
    assert_eq!(report["left_out"], of!(["notes.txt"]));
    let query = format!("{folder}/{}", names[0]);
    let rows = json(&["search", "-m", &model, &index, &query, "--json"]);
    assert!(
        (rows[0]["score"].as_f64().unwrap() - 1.0).abs() < 1e-5,
        "{rows}"
    );
    assert!(
        rows[0].get("lines").is_none() && rows[0].get("text").is_none(),
        "{rows}"
    );
    bad(
        &[
            "search",
            "index",
            "-m",
            &model,
            &folder,
            "-o",
            &scratch.path("l"),
            "--by",
            "lines",
        ],
        1,
        &["index of pictures"],
    );
}

#[test]
fn a_failure_leaves_no_index_and_an_index_without_vectors_is_refused() {
    let folder = Folder::new("search-failed");
    let index = folder.path("i.safetensors");
    let long = "a cat ".repeat(50);
    for name in ["texts/a.txt", "texts/deep/b.md"] {
        folder.scratch.file(name, &long);
    }
    let prompt = "a cat ".repeat(9);
    let failing = [&folder.indexing()[..], &["--prompt-text", &prompt]].concat();
    bad(&failing, 1, &["a.txt", "shorten the prompt"]);
    assert!(!std::path::Path::new(&index).exists());
    for name in ["texts/a.txt", "texts/deep/b.md"] {
        std::fs::remove_file(folder.path(name)).unwrap();
    }
    bad(&folder.indexing(), 1, &["to index"]);
    assert!(!std::path::Path::new(&index).exists());

    // An index without passages. Older versions wrote such an index in a failed run.
    folder.scratch.file("texts/a.txt", "a cat sleeps");
    folder.index_with(&[]);
    let bytes = std::fs::read(&index).unwrap();
    let len = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let note = header["__metadata__"]["tercet_search"].as_str().unwrap();
    let mut note: Value = serde_json::from_str(note).unwrap();
    note["files"] = of!([]);
    header["__metadata__"]["tercet_search"] = note.to_string().into();
    for name in ["bytes", "lines", "vectors"] {
        header[name]["shape"][0] = 0.into();
        header[name]["data_offsets"] = of!([0, 0]);
    }
    let header = header.to_string();
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let empty = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(&index, empty).unwrap();
    let args = ["search", "-m", &folder.model, &index, "a cat"];
    bad(&args, 1, &["no vectors", "search index"]);
}

#[test]
fn the_pooling_is_that_of_the_index() {
    let folder = Folder::new("search-pooling");
    let plain = {
        folder.index_with(&[]);
        let rows = folder.search("the dog", &[]);
        // A query takes the pooling of the index.
        let index = folder.path("i.safetensors");
        let query = [
            "search",
            "-m",
            &folder.model,
            &index,
            "the dog",
            "--pooling",
            "max",
        ];
        bad(&query, 1, &["the model's pooling", "max", "leave out"]);
        std::fs::remove_file(index).unwrap();
        rows
    };
    folder.index_with(&["--pooling", "max"]);
    let rows = folder.search("the dog", &[]);
    assert_eq!(rows, folder.search("the dog", &["--pooling", "max"]));
    let scores = |rows: &Value| -> Vec<String> {
        let rows = rows.as_array().unwrap();
        rows.iter().map(|row| row["score"].to_string()).collect()
    };
    assert_ne!(scores(&rows), scores(&plain));
    let index = folder.path("i.safetensors");
    let query = [
        "search",
        "-m",
        &folder.model,
        &index,
        "the dog",
        "--pooling",
        "cls",
    ];
    bad(
        &query,
        1,
        &["i.safetensors", "max pooling", "cls", "leave out"],
    );
    // Another pooling would mix vectors in one index.
    bad(
        &folder.indexing(),
        1,
        &["max pooling", "create the index again"],
    );
}
