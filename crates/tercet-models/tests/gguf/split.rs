//! Tests of split models: opened by any part, equal to the unsplit model, and rejected if the parts
//! do not match.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tercet_models::gguf::{Gguf, GgufError};
use tercet_models::save::{SaveOptions, save_model};
use tercet_models::{DecoderSpec, ModelFiles, ModelWeight, SaveError, gguf_weight};

use super::common::{GgufWriter, data, string, temp_dir};
use super::parse;

fn part_of(writer: GgufWriter, number: u16, count: u16, tensors: i32) -> GgufWriter {
    writer
        .raw("split.no", 2, &number.to_le_bytes())
        .raw("split.count", 2, &count.to_le_bytes())
        .raw("split.tensors.count", 5, &tensors.to_le_bytes())
}

fn path_of(dir: &Path, number: u16, count: u16) -> PathBuf {
    dir.join(format!("m-{:05}-of-{count:05}.gguf", number + 1))
}

/// Three parts with two, zero and one tensors.
fn parts() -> [GgufWriter; 3] {
    let first = GgufWriter::default()
        .str("general.architecture", "llama")
        .tensor("a", &[4], 24, &[1, 2, 3, 4])
        .tensor("b", &[2], 24, &[5, 6]);
    let last = GgufWriter::default().tensor("c", &[3], 24, &[7, 8, 9]);
    [
        part_of(first, 0, 3, 3),
        part_of(GgufWriter::default(), 1, 3, 3),
        part_of(last, 2, 3, 3),
    ]
}

fn written(dir: &Path, parts: &[GgufWriter]) {
    for (number, part) in (0..).zip(parts) {
        let path = path_of(dir, number, parts.len() as u16);
        std::fs::write(path, part.bytes()).unwrap();
    }
}

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

/// Splits the bytes of a whole file into parts with these numbers of tensors.
fn split(bytes: &[u8], sizes: &[usize]) -> Vec<GgufWriter> {
    let whole = parse(bytes.to_vec()).unwrap();
    let tensors = whole.tensors();
    let table = string(tensors[0].name().as_bytes());
    let table = bytes.windows(table.len()).position(|w| w == table).unwrap();
    // The counts and all keys precede the tensor table.
    let mut entries = vec![Vec::new(); whole.metadata().len()];
    entries[0] = bytes[24..table].to_vec();
    let mut rest = tensors;
    let mut made = Vec::new();
    for (number, size) in (0..).zip(sizes) {
        let mut part = GgufWriter::default();
        if number == 0 {
            part.entries = std::mem::take(&mut entries);
        }
        let here;
        (here, rest) = rest.split_at(*size);
        for t in here {
            part = part.tensor(t.name(), t.dims(), t.ggml_type().id(), whole.data(t));
        }
        let (count, all) = (sizes.len() as u16, tensors.len() as i32);
        made.push(part_of(part, number, count, all));
    }
    assert!(rest.is_empty());
    made
}

fn bytes_of(weight: ModelWeight) -> Vec<u8> {
    match weight {
        ModelWeight::Dense(t) => t.bytes().to_vec(),
        ModelWeight::Packed { blocks, .. } => blocks.bytes().to_vec(),
    }
}

#[test]
fn a_split_model_is_the_whole_one() {
    let path = data("decoders/qwen3_moe-a/model.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let whole = Gguf::open(&path).unwrap();
    let dir = temp_dir("split-model");
    // The first part may have no tensors, as the splitter can write it.
    written(&dir, &split(&bytes, &[0, 7, whole.tensors().len() - 7]));
    let joined = Gguf::open(path_of(&dir, 1, 3)).unwrap();
    assert_eq!(
        DecoderSpec::from_gguf(&joined).unwrap(),
        DecoderSpec::from_gguf(&whole).unwrap()
    );
    assert_eq!(joined.tensors().len(), whole.tensors().len());
    for info in whole.tensors() {
        let same = joined.tensor(info.name()).unwrap();
        assert_eq!(same.shape(), info.shape());
        assert_eq!(
            bytes_of(gguf_weight(&joined, same).unwrap()),
            bytes_of(gguf_weight(&whole, info).unwrap()),
            "{}",
            info.name()
        );
    }

    // Saving writes one file, and refuses to overwrite any of the parts.
    let files = ModelFiles::open(path_of(&dir, 0, 3)).unwrap();
    let save = |to: &Path| save_model(&files, &BTreeMap::new(), to, &SaveOptions::default());
    for number in 0..3 {
        let over = save(&path_of(&dir, number, 3)).unwrap_err();
        assert!(matches!(over, SaveError::OverModel { .. }), "{over:?}");
    }
    let again = dir.join("again.gguf");
    save(&again).unwrap();
    let again = Gguf::open(&again).unwrap();
    assert!(again.metadata().get("split.count").is_none());
    for info in whole.tensors() {
        let same = again.tensor(info.name()).unwrap();
        assert_eq!(again.data(same), whole.data(info), "{}", info.name());
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

#[test]
fn special_tokens_that_do_not_exist_are_ignored() {
    let path = data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let whole = ModelFiles::open(&path).unwrap();
    let mut part = split(&bytes, &[38]).remove(0);
    // `llama-finetune` writes the u32 of -1 for each token that the vocabulary does not have.
    for name in [
        "eot",
        "eom",
        "unknown",
        "seperator",
        "padding",
        "cls",
        "mask",
        "fim_pre",
    ] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        part = part.u32(&key, u32::MAX);
    }
    part = part.raw(
        "tokenizer.ggml.fim_suf_token_id",
        5,
        &(-1_i32).to_le_bytes(),
    );
    let tuned = ModelFiles::from_gguf_bytes(&part.bytes()).unwrap();
    assert_eq!(tuned.decoder_spec().unwrap(), whole.decoder_spec().unwrap());
    let (tokenizer, same) = (tuned.tokenizer().unwrap(), whole.tokenizer().unwrap());
    assert_eq!(tokenizer.pad(), same.pad());
    let text = "fn main() {}";
    assert_eq!(
        tokenizer.encode(text, true).unwrap(),
        same.encode(text, true).unwrap()
    );
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
