//! Tests of split models: opened by any part, equal to the unsplit model, and rejected if the parts
//! do not match.

use tercet_files::gguf::{Gguf, GgufError};

use super::common::{GgufWriter, temp_dir};
use super::gguf::parse;
use super::parts::{part_of, parts, path_of, written};

#[test]
fn any_part_opens_the_whole() {
    let dir = temp_dir("split-any");
    written(&dir, &parts());
    for number in 0..3 {
        let gguf = Gguf::open(path_of(&dir, number, 3)).unwrap();
        let found: Vec<_> = gguf
            .tensors()
            .iter()
            .map(|t| (t.name(), t.part(), gguf.data(t)))
            .collect();
        assert_eq!(
            found,
            [
                ("a", 0, &[1, 2, 3, 4][..]),
                ("b", 0, &[5, 6][..]),
                ("c", 2, &[7, 8, 9][..])
            ]
        );
        let paths: Vec<_> = gguf.files().iter().filter_map(|f| f.path()).collect();
        assert_eq!(paths, [0, 1, 2].map(|n| path_of(&dir, n, 3)));
        let meta = gguf.metadata();
        assert_eq!(meta.get_str("general.architecture").unwrap(), "llama");
    }
}

/// The hub's cache layout: each part is a link to a blob without a name.
#[cfg(unix)]
#[test]
fn parts_may_be_links() {
    let dir = temp_dir("split-links");
    for (number, part) in (0..).zip(&parts()) {
        std::fs::write(dir.join(format!("blob{number}")), part.bytes()).unwrap();
        std::os::unix::fs::symlink(format!("blob{number}"), path_of(&dir, number, 3)).unwrap();
    }
    for number in 0..3 {
        let gguf = Gguf::open(path_of(&dir, number, 3)).unwrap();
        assert_eq!(gguf.tensors().len(), 3);
    }
    assert!(matches!(
        Gguf::open(dir.join("blob1")),
        Err(GgufError::PartName { .. })
    ));
}

#[test]
fn a_merged_model_is_a_whole_one() {
    // The merge keeps the first part's keys, and sets the count to 0.
    for (number, count) in [(0, 0), (0, 1), (2, 0)] {
        let [mut first, ..] = parts();
        first.entries.truncate(1);
        let bytes = part_of(first, number, count, 0).bytes();
        let dir = temp_dir(&format!("merged-{number}-{count}"));
        std::fs::write(dir.join("merged.gguf"), &bytes).unwrap();
        for gguf in [Gguf::open(dir.join("merged.gguf")), parse(bytes)] {
            let names: Vec<_> = gguf.as_ref().unwrap().tensors().iter().collect();
            let names: Vec<_> = names.iter().map(|t| t.name()).collect();
            assert_eq!(names, ["a", "b"]);
        }
    }
}

/// The error of opening these parts by part number `by`.
fn refused(test: &str, parts: &[GgufWriter], by: u16) -> GgufError {
    let dir = temp_dir(&format!("split-{test}"));
    written(&dir, parts);
    Gguf::open(path_of(&dir, by, parts.len() as u16)).unwrap_err()
}

#[test]
fn parts_that_are_not_found() {
    let dir = temp_dir("split-missing");
    written(&dir, &parts());
    std::fs::remove_file(path_of(&dir, 1, 3)).unwrap();
    for by in [0, 2] {
        let error = Gguf::open(path_of(&dir, by, 3)).unwrap_err();
        let GgufError::MissingPart { path, number, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!((path, *number), (&path_of(&dir, 1, 3), 2));
    }
    std::fs::write(path_of(&dir, 1, 3), b"GGUF").unwrap();
    let error = Gguf::open(path_of(&dir, 0, 3)).unwrap_err();
    assert!(
        matches!(&error, GgufError::Part { number: 2, source, .. } if matches!(**source, GgufError::Truncated { .. })),
        "{error:?}"
    );

    let renamed = dir.join("renamed.gguf");
    std::fs::copy(path_of(&dir, 0, 3), &renamed).unwrap();
    let error = Gguf::open(renamed).unwrap_err();
    assert!(matches!(error, GgufError::PartName { .. }), "{error:?}");
    let error = parse(parts()[2].bytes()).unwrap_err();
    assert!(
        matches!(
            error,
            GgufError::PartAlone {
                number: 3,
                count: 3
            }
        ),
        "{error:?}"
    );
    for (number, count) in [(3, 3), (7, 2)] {
        let part = part_of(GgufWriter::default(), number, count, 0);
        let error = parse(part.bytes()).unwrap_err();
        assert!(matches!(error, GgufError::BadSplit { .. }), "{error:?}");
    }
}

#[test]
fn parts_that_contradict_each_other() {
    let with = |at: usize, part: GgufWriter| {
        let mut all = parts();
        all[at] = part;
        all
    };
    let tensor = |name| GgufWriter::default().tensor(name, &[1], 24, &[0]);
    let cases = [
        (
            "number",
            with(1, part_of(tensor("d"), 2, 3, 3)),
            "part 3 of 3",
        ),
        (
            "count",
            with(1, part_of(tensor("d"), 1, 4, 3)),
            "part 2 of 4",
        ),
        ("whole", with(1, tensor("d")), "a whole file"),
        (
            "total",
            with(2, part_of(tensor("c"), 2, 3, 4)),
            "`split.tensors.count`",
        ),
        ("more", with(1, part_of(tensor("d"), 1, 3, 3)), "have 4"),
        (
            "less",
            with(2, part_of(GgufWriter::default(), 2, 3, 3)),
            "have 2",
        ),
        (
            "twice",
            with(2, part_of(tensor("b"), 2, 3, 3)),
            "tensor `b`, as part 1",
        ),
        (
            "key",
            with(
                2,
                part_of(tensor("c").str("general.architecture", "qwen2"), 2, 3, 3),
            ),
            "`general.architecture` differs",
        ),
        (
            "new-key",
            with(2, part_of(tensor("c").u32("llama.block_count", 2), 2, 3, 3)),
            "`llama.block_count`, which the first part",
        ),
    ];
    for (test, parts, reason) in cases {
        let error = refused(test, &parts, 0);
        assert!(
            matches!(error, GgufError::PartMismatch { .. }),
            "{test}: {error:?}"
        );
        let message = error.to_string();
        assert!(message.contains(reason), "{test}: {message}");
    }
}
