//! Tests of truncated, corrupted and malicious files: the result is a typed error or a graph, and
//! never a panic.

use std::path::Path;

use tercet_onnx::ImportOptions;
use tercet_onnx::proto::{StringStringEntryProto, TensorProto};

use crate::made::{Model, attr_int, node};

fn model() -> Model {
    Model::new(&["n", "2", "3"])
        .ints("target", &[2], &[0, -1])
        .ints("start", &[], &[0])
        .ints("end", &[], &[4])
        .ints("step", &[], &[1])
        .node(node("Reshape", &["x", "target"], &["flat"]))
        .node(node("Range", &["start", "end", "step"], &["idx"]))
        .node(node("Gather", &["flat", "idx"], &["y"]).with(attr_int("axis", 1)))
}

#[test]
fn bytes_that_are_cut_or_changed_do_not_panic() {
    let whole = model().bytes();
    tercet_onnx::import(whole.clone(), &ImportOptions::new()).expect("it is whole");
    for end in 0..whole.len() {
        let _ = tercet_onnx::import(whole[..end].to_vec(), &ImportOptions::new());
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let _ = tercet_onnx::import(bytes, &ImportOptions::new());
        }
    }
}

#[test]
fn sizes_that_the_file_does_not_hold_are_refused_where_they_are_used() {
    for dims in [vec![1 << 62, 1 << 62], vec![-1], vec![3], vec![1 << 40]] {
        let tensor = TensorProto {
            name: Some("w".into()),
            data_type: Some(1),
            dims,
            raw_data: Some(vec![0u8; 8].into()),
            ..TensorProto::default()
        };
        let model = Model::new(&["2"])
            .initializer(tensor)
            .node(node("Add", &["x", "w"], &["y"]));
        let e =
            tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("not that many");
        assert!(e.to_string().contains("initializer `w`"), "{e}");
    }
}

#[test]
fn a_small_file_does_not_make_large_tensors() {
    let mut model = Model::new(&["2"])
        .ints("zero", &[], &[0])
        .ints("most", &[], &[8_000_000])
        .ints("one", &[], &[1]);
    for i in 0..100 {
        model = model.node(node("Range", &["zero", "most", "one"], &[&format!("r{i}")]));
    }
    let model = model.node(node("Neg", &["x"], &["y"]));
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("too much");
    assert!(e.to_string().contains("too long"), "{e}");
}

#[test]
fn time_grows_with_the_number_of_nodes_and_no_faster() {
    let import = |n: usize| {
        let mut model = Model::new(&["n"]);
        let mut last = "x".to_string();
        for i in 0..n {
            let name = if i + 1 == n {
                "y".to_string()
            } else {
                format!("h{i}")
            };
            let op = ["Relu", "Neg", "Sigmoid"][i % 3];
            model = model.node(node(op, &[&last], &[&name]));
            last = name;
        }
        let bytes = model.bytes();
        let started = std::time::Instant::now();
        let imported = tercet_onnx::import(bytes, &ImportOptions::new()).expect("imports");
        assert!(imported.graph.len() > n);
        started.elapsed().as_secs_f64()
    };
    import(1_000);
    let (few, many) = (import(2_000), import(40_000));
    // Twenty times the nodes; a quadratic algorithm would take four hundred times as long.
    assert!(many < 150.0 * few.max(0.001), "{few} s, {many} s");
}

fn external(location: &str, offset: &str) -> Model {
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    let tensor = TensorProto {
        name: Some("w".into()),
        data_type: Some(1),
        dims: vec![2],
        data_location: Some(1),
        external_data: vec![entry("location", location), entry("offset", offset)],
        ..TensorProto::default()
    };
    Model::new(&["2"])
        .initializer(tensor)
        .node(node("Add", &["x", "w"], &["y"]))
}

fn import_at(
    folder: &Path,
    model: &Model,
) -> Result<tercet_onnx::ImportedModel, tercet_onnx::OnnxError> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.bytes()).expect("writes");
    tercet_onnx::import(path.as_path(), &ImportOptions::new())
}

/// The hub's cache layout: every file of a snapshot links to a blob of the same model.
#[cfg(unix)]
#[test]
fn external_data_of_a_hub_snapshot_is_a_link_to_a_blob() {
    use std::os::unix::fs::symlink;
    let hub = std::env::temp_dir().join(format!("tercet-onnx-hub-{}", std::process::id()));
    let model = hub.join("models--o--m");
    let folder = model.join("snapshots/abc/onnx");
    std::fs::create_dir_all(&folder).expect("makes a folder");
    for blobs in [model.join("blobs"), hub.join("models--o--other/blobs")] {
        std::fs::create_dir_all(&blobs).expect("makes a folder");
        std::fs::write(blobs.join("2222"), [0u8; 16]).expect("writes");
    }
    std::fs::create_dir_all(model.join("refs")).expect("makes a folder");
    std::fs::write(model.join("refs/main"), [0u8; 16]).expect("writes");
    let import = |location: &str| {
        let blob = model.join("blobs/1111");
        std::fs::write(&blob, external(location, "8").bytes()).expect("writes");
        let path = folder.join("model.onnx");
        if !path.exists() {
            symlink("../../../blobs/1111", &path).expect("links");
        }
        tercet_onnx::import(path.as_path(), &ImportOptions::new())
    };
    symlink("../../../blobs/2222", folder.join("a.data")).expect("links");
    import("a.data").expect("a blob of the model");
    for (at, target) in [
        "../../../../models--o--other/blobs/2222",
        "../../../refs/main",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("out{at}.data");
        symlink(target, folder.join(&name)).expect("links");
        let e = import(&name).expect_err(target);
        assert!(e.to_string().contains("outside the model's folder"), "{e}");
    }
    let e = import("../../../blobs/2222").expect_err("a path with ..");
    assert!(e.to_string().contains("outside the model's folder"), "{e}");
    // The same links outside of a hub cache leave the folder.
    let plain = hub.join("plain/snapshots/abc");
    std::fs::create_dir_all(&plain).expect("makes a folder");
    symlink(model.join("blobs/2222"), plain.join("a.data")).expect("links");
    let e = import_at(&plain, &external("a.data", "8")).expect_err("no hub cache");
    assert!(e.to_string().contains("outside the model's folder"), "{e}");
    std::fs::remove_dir_all(&hub).expect("cleans up");
}

#[test]
fn external_data_stays_inside_the_folder() {
    let outer = std::env::temp_dir().join(format!("tercet-onnx-{}", std::process::id()));
    let folder = outer.join("model");
    std::fs::create_dir_all(&folder).expect("makes a folder");
    std::fs::write(folder.join("w.bin"), [0u8; 16]).expect("writes");
    std::fs::write(outer.join("secret.bin"), [0u8; 16]).expect("writes");
    import_at(&folder, &external("w.bin", "8")).expect("inside");
    let absolute = outer.join("secret.bin");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&absolute, folder.join("link.bin")).expect("links");
    let refused = [
        (absolute.to_string_lossy().into_owned(), "0"),
        ("../secret.bin".into(), "0"),
        ("link.bin".into(), "0"),
        ("w.bin".into(), "9"),
        ("w.bin".into(), "18446744073709551615"),
        (".".into(), "0"),
        ("gone.bin".into(), "0"),
    ];
    for (location, offset) in refused {
        let e = import_at(&folder, &external(&location, offset)).expect_err(&location);
        assert!(e.to_string().contains("external data"), "{e}");
    }
    let e = tercet_onnx::import(external("w.bin", "0").bytes(), &ImportOptions::new())
        .expect_err("no folder");
    assert!(e.to_string().contains("by its path"), "{e}");
    std::fs::remove_dir_all(&outer).expect("cleans up");
}
