//! Tests of weights in shards with an index.

use std::path::Path;

use tercet_files::{FolderError, HfWeights};

use crate::common::{safetensors, temp_dir};

/// Writes tensors of one element each.
fn write_shard(dir: &Path, name: &str, tensors: &[&str]) {
    let sizes: Vec<_> = tensors.iter().map(|name| (*name, 1)).collect();
    write_sizes(dir, name, &sizes);
}

/// Writes tensors of one axis with their numbers of elements.
fn write_sizes(dir: &Path, name: &str, tensors: &[(&str, usize)]) {
    let mut end = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, len)| {
            let start = end;
            end += len;
            format!(r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let bytes: Vec<u8> = (0..end).map(|i| i as u8).collect();
    std::fs::write(dir.join(name), safetensors(&header, &bytes)).unwrap();
}

fn write_index(dir: &Path, map: &str) {
    let index = format!(r#"{{"metadata":{{"total_size":2}},"weight_map":{map}}}"#);
    std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn shards() {
    let dir = temp_dir("hf-shards");
    write_shard(&dir, "one.safetensors", &["a", "b"]);
    write_shard(&dir, "two.safetensors", &["c"]);
    write_index(
        &dir,
        r#"{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}"#,
    );
    let weights = HfWeights::open(&dir).unwrap();
    let (shard, b) = weights.tensor("b").unwrap();
    assert_eq!(shard.data(b), [1]);
    assert!(weights.find("c").is_some());
    assert_eq!((weights.tensors().count(), weights.shards().len()), (3, 2));
    assert!(matches!(
        weights.tensor("d"),
        Err(FolderError::NoSuchTensor { tensor }) if tensor == "d"
    ));

    type Check = fn(&FolderError) -> bool;
    let cases: &[(&str, Check)] = &[
        ("{}", |e| matches!(e, FolderError::EmptyIndex { .. })),
        ("[]", |e| matches!(e, FolderError::Json { .. })),
        (
            r#"{"a":"one.safetensors","a":"two.safetensors"}"#,
            |e| matches!(e, FolderError::DuplicateInIndex { tensor, .. } if tensor == "a"),
        ),
        (
            r#"{"a":"three.safetensors"}"#,
            |e| matches!(e, FolderError::MissingShard { path, .. } if path.ends_with("three.safetensors")),
        ),
        (
            r#"{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors"}"#,
            |e| matches!(e, FolderError::NotInShard { tensor, .. } if tensor == "d"),
        ),
        (
            r#"{"a":"one.safetensors","c":"two.safetensors"}"#,
            |e| matches!(e, FolderError::StrayTensor { tensor, elsewhere, .. } if tensor == "b" && elsewhere == "nowhere"),
        ),
    ];
    for (map, check) in cases {
        write_index(&dir, map);
        let error = HfWeights::open(&dir).unwrap_err();
        assert!(check(&error), "{map}: {error:?}");
    }
    for name in [
        "../one.safetensors",
        "/etc/passwd",
        "..",
        ".",
        "",
        "sub/one.safetensors",
        "one.safetensors/",
        "./one.safetensors",
        "..\\\\one.safetensors",
        "C:one.safetensors",
    ] {
        write_index(&dir, &format!(r#"{{"a":"{name}"}}"#));
        let error = HfWeights::open(&dir).unwrap_err();
        assert!(
            matches!(error, FolderError::UnsafeShardName { .. }),
            "{name}: {error:?}"
        );
    }
    // Two shards contain the same tensor, and the index names one of them.
    write_shard(&dir, "two.safetensors", &["c", "a"]);
    write_index(
        &dir,
        r#"{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}"#,
    );
    let error = HfWeights::open(&dir).unwrap_err();
    assert!(
        error.to_string().contains("in `one.safetensors`"),
        "{error}"
    );
}
