//! Downloads that succeed: the choice of files, the layout of the cache, tokens.

use std::sync::atomic::{AtomicUsize, Ordering};

use tercet_hub::{Hub, HubSettings, ModelFormat, PullOptions};

use crate::server::{LocalHub, TOKEN};
use crate::{Scratch, bytes, folder, hub, names, pull, quiet, settings, watched};

#[test]
fn a_model_arrives_in_parallel_ranges_and_has_the_layout_of_the_cache() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let weights = bytes(1, 95_000);
    server.add(
        "org/tiny-GGUF",
        &[
            ("README.md", b"text"),
            ("tiny-Q8_0.gguf", b"no"),
            ("tiny-Q4_K_M.gguf", &weights),
        ],
    );
    let with_token = Hub::new(HubSettings {
        token: Some(TOKEN.to_string()),
        ..settings(&server, &scratch.0)
    });
    let (model, events) = watched(&with_token, "org/tiny-GGUF");
    let model = model.unwrap();
    assert_eq!(
        (model.format, model.quant.as_deref()),
        (ModelFormat::Gguf, Some("Q4_K_M"))
    );
    assert_eq!(std::fs::read(&model.path).unwrap(), weights);
    assert_eq!(events[0], "Started { files: 1, bytes: 95000 }");
    let written = events
        .iter()
        .filter(|event| event.starts_with("Bytes"))
        .count();
    assert_eq!(written, 10, "{events:?}");

    // One request per chunk, and the token is for the hub alone.
    let log = server.requests();
    let (to_hub, to_storage): (Vec<_>, Vec<_>) = log.iter().partition(|logged| logged.is_hub);
    assert_eq!(to_storage.len(), 10, "{log:?}");
    assert!(to_storage.iter().all(|logged| logged.token.is_none()));
    let is_signed = |path: &str| path.ends_with("?signature=1");
    assert!(
        to_storage
            .iter()
            .all(|logged| logged.method == "GET" && is_signed(&logged.path))
    );
    assert!(
        to_hub.iter().all(|logged| logged.token.is_some()),
        "{log:?}"
    );

    let dir = folder(&scratch, "org/tiny-GGUF");
    let (commit, digest) = (
        server.commit("org/tiny-GGUF"),
        server.digest("org/tiny-GGUF", "tiny-Q4_K_M.gguf"),
    );
    assert_eq!(names(&dir.join("blobs")), std::slice::from_ref(&digest));
    assert_eq!(
        std::fs::read_to_string(dir.join("refs/main")).unwrap(),
        commit
    );
    let at = dir.join("snapshots").join(&commit).join("tiny-Q4_K_M.gguf");
    assert_eq!(model.path, at);
    #[cfg(unix)]
    {
        let link = std::fs::read_link(&at).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("../../blobs/{digest}"));
    }

    // It is found without the network, under its full and short names.
    let offline = Hub::new(HubSettings {
        is_offline: true,
        ..settings(&server, &scratch.0)
    });
    for name in [
        "org/tiny-GGUF",
        "org/tiny-GGUF:q4_k_m",
        "tiny",
        "Tiny-gguf",
        "tiny:Q4_K_M",
    ] {
        let found = offline.find(name).unwrap();
        assert_eq!(found.as_ref(), Some(&model), "{name}");
    }
    for name in [
        "org/tiny-GGUF:Q8_0",
        "org/other",
        "tin",
        "tiny:Q8_0",
        "a b",
        "tiny.gguf",
    ] {
        assert_eq!(offline.find(name).unwrap(), None, "{name}");
    }
    assert_eq!(pull(&offline, "org/tiny-GGUF").unwrap(), model);
    assert!(server.requests().is_empty());

    // A second pull asks for the list only, and writes nothing.
    std::fs::remove_dir_all(scratch.0.join(".locks")).unwrap();
    assert_eq!(pull(&with_token, "org/tiny-GGUF").unwrap(), model);
    assert_eq!(server.requests().len(), 1);
    assert!(!scratch.0.join(".locks").exists());
}

#[test]
fn a_folder_has_all_its_files_and_a_new_commit_replaces_only_what_changed() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    let weights = bytes(2, 30_000);
    let with = |config: &'static [u8]| {
        server.add(
            "org/bert",
            &[
                ("config.json", config),
                ("tokenizer.json", b"{}"),
                ("1_Pooling/config.json", b"{\"a\":1}"),
                ("empty.txt", b""),
                ("model.safetensors", &weights),
                ("pytorch_model.bin", b"never"),
            ],
        );
    };
    with(b"{\"v\":1}");
    let first = pull(&hub, "org/bert").unwrap();
    assert_eq!(first.format, ModelFormat::Safetensors);
    assert_eq!(
        std::fs::read(first.path.join("1_Pooling/config.json")).unwrap(),
        b"{\"a\":1}"
    );
    assert_eq!(
        std::fs::read(first.path.join("model.safetensors")).unwrap(),
        weights
    );
    assert_eq!(std::fs::read(first.path.join("empty.txt")).unwrap(), b"");
    assert!(!first.path.join("pytorch_model.bin").exists());
    server.requests();

    with(b"{\"v\":22}");
    let second = pull(&hub, "org/bert").unwrap();
    assert_ne!(second.commit, first.commit);
    assert_eq!(server.sent(), 0);
    assert_eq!(
        std::fs::read(second.path.join("config.json")).unwrap(),
        b"{\"v\":22}"
    );
    assert_eq!(hub.find("bert").unwrap().unwrap(), second);
    // The old commit is still there for tools that name it.
    let old = format!("org/bert@{}", first.commit);
    assert_eq!(hub.find(&old).unwrap().unwrap().path, first.path);
}

#[test]
fn split_models_and_projectors_are_found() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    server.add(
        "org/big",
        &[
            ("Q8_0/big Q8_0-00001-of-00002.gguf", &bytes(3, 12_000)),
            ("Q8_0/big Q8_0-00002-of-00002.gguf", &bytes(4, 700)),
            ("mmproj-big-f32.gguf", &bytes(5, 80)),
            ("mmproj-big-f16.gguf", &bytes(6, 40)),
        ],
    );
    let model = pull(&hub, "org/big").unwrap();
    assert!(model.path.ends_with("Q8_0/big Q8_0-00001-of-00002.gguf"));
    assert_eq!(
        (model.files.len(), model.bytes, model.projector),
        (2, 12_700, None)
    );
    assert_eq!(std::fs::read(&model.files[1]).unwrap(), bytes(4, 700));
    let options = PullOptions {
        has_projector: true,
        ..PullOptions::default()
    };
    let model = hub
        .pull(&"org/big".parse().unwrap(), &options, &quiet)
        .unwrap();
    let projector = model.projector.unwrap();
    assert_eq!(std::fs::read(projector).unwrap(), bytes(6, 40));
}

#[test]
fn memory_is_asked_only_if_it_decides() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    server.add("org/one", &[("m-Q8_0.gguf", &bytes(7, 100))]);
    server.add(
        "org/two",
        &[
            ("m-Q8_0.gguf", &bytes(7, 100)),
            ("m-Q2_K.gguf", &bytes(8, 50)),
        ],
    );
    let asked = AtomicUsize::new(0);
    let free = || {
        asked.fetch_add(1, Ordering::Relaxed);
        // The reserve of a model, and 60 bytes.
        Some((256 << 20) + 60)
    };
    let options = PullOptions {
        free_bytes: Some(&free),
        ..PullOptions::default()
    };
    let of = |name: &str| hub.pull(&name.parse().unwrap(), &options, &quiet).unwrap();
    assert_eq!(of("org/one").quant.as_deref(), Some("Q8_0"));
    assert_eq!(of("org/two:Q8_0").quant.as_deref(), Some("Q8_0"));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert_eq!(of("org/two").quant.as_deref(), Some("Q2_K"));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn mirrors_without_sizes_and_digests_in_lists_announce_them_in_headers() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    let weights = bytes(9, 25_000);
    server.add(
        "org/m",
        &[("config.json", b"{}"), ("model.safetensors", &weights)],
    );
    server.state().faults.bare_lists = true;
    let model = pull(&hub, "org/m").unwrap();
    assert_eq!(
        std::fs::read(model.path.join("model.safetensors")).unwrap(),
        weights
    );
    let blobs = names(&folder(&scratch, "org/m").join("blobs"));
    let mut expected =
        ["config.json", "model.safetensors"].map(|path| server.digest("org/m", path));
    expected.sort();
    assert_eq!(blobs, expected);
}
