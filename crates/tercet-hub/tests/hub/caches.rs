//! Caches of other tools, folders that cannot be written, and removal.

use std::fs;

use tercet_hub::{Hub, HubError, ModelFormat};

use crate::server::LocalHub;
use crate::{Scratch, bytes, folder, hub, names, pull, settings};

#[test]
fn caches_without_links_and_branches_are_read() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    let weights = bytes(1, 20_000);
    server.add(
        "org/old",
        &[("config.json", b"{}"), ("model.safetensors", &weights)],
    );
    // A tool on a system without links has copied the files; there is no `refs`.
    let commit = server.commit("org/old");
    let snapshot = folder(&scratch, "org/old").join("snapshots").join(&commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("config.json"), b"{}").unwrap();
    fs::write(snapshot.join("model.safetensors"), &weights).unwrap();
    assert_eq!(hub.find("org/old").unwrap().unwrap().path, snapshot);
    let model = pull(&hub, "org/old").unwrap();
    assert_eq!(
        (model.path.as_path(), server.sent()),
        (snapshot.as_path(), 0)
    );
    assert_eq!(
        hub.repos().unwrap()[0].models,
        [(ModelFormat::Safetensors, None)]
    );

    // Another tool has loaded one shard of two: the model is not there, and a pull completes it.
    let index = br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    server.add(
        "org/shards",
        &[
            ("config.json", b"{}"),
            ("model.safetensors.index.json", index),
            ("model-00001-of-00002.safetensors", b"one"),
            ("model-00002-of-00002.safetensors", b"two"),
        ],
    );
    let all = pull(&hub, "org/shards").unwrap();
    fs::remove_file(all.path.join("model-00002-of-00002.safetensors")).unwrap();
    assert_eq!(hub.find("org/shards").unwrap(), None);
    assert_eq!(pull(&hub, "org/shards").unwrap(), all);
    assert_eq!(hub.find("org/shards").unwrap(), Some(all));

    // Links without contents: the blobs were removed by hand.
    fs::remove_dir_all(folder(&scratch, "org/shards").join("blobs")).unwrap();
    assert_eq!(hub.find("org/shards").unwrap(), None);
    pull(&hub, "org/shards").unwrap();
    assert!(hub.find("org/shards").unwrap().is_some());

    fs::write(folder(&scratch, "org/old").join("refs/main"), "../../x").unwrap();
    let error = hub.find("org/old").unwrap_err();
    assert!(matches!(error, HubError::DamagedCache { .. }), "{error}");
    assert!(error.to_string().contains("tercet rm org/old"), "{error}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    server.add("org/m", &[("m-Q8_0.gguf", b"x")]);
    let file = scratch.0.join("file");
    fs::write(&file, "").unwrap();
    let hub = Hub::new(settings(&server, &file.join("cache")));
    let error = pull(&hub, "org/m").unwrap_err();
    assert!(matches!(error, HubError::Write { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("set HF_HUB_CACHE") && text.contains("cannot create the folder"),
        "{text}"
    );
    assert_eq!(fs::read(&file).unwrap(), b"");
    // A cache that does not exist has no models.
    let none = Hub::new(settings(&server, &scratch.0.join("none")));
    assert!(none.repos().unwrap().is_empty() && none.find("org/m").unwrap().is_none());
    assert!(matches!(
        none.remove("org/m"),
        Err(HubError::NotCached { .. })
    ));
}

#[test]
fn models_are_listed_and_removed_one_by_one() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    let files = [
        ("m-Q8_0.gguf", bytes(1, 900)),
        ("m-Q4_0.gguf", bytes(2, 500)),
    ];
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(path, bytes)| (*path, &**bytes))
        .collect();
    server.add("org/m-GGUF", &files);
    server.add(
        "other/m",
        &[("config.json", b"{}"), ("model.safetensors", b"w")],
    );
    for name in ["org/m-GGUF:Q8_0", "org/m-GGUF:Q4_0", "other/m"] {
        pull(&hub, name).unwrap();
    }
    let repos = hub.repos().unwrap();
    let listed: Vec<_> = repos.iter().map(|repo| (&*repo.repo, repo.bytes)).collect();
    assert_eq!(listed, [("org/m-GGUF", 1_400), ("other/m", 3)]);
    let quants: Vec<_> = repos[0]
        .models
        .iter()
        .map(|(_, quant)| quant.as_deref())
        .collect();
    assert_eq!(quants, [Some("Q4_0"), Some("Q8_0")]);
    assert_eq!(
        repos[0].commit.as_deref(),
        Some(&*server.commit("org/m-GGUF"))
    );

    // Both repositories have this short name.
    let error = hub.find("m").unwrap_err();
    assert!(
        error.to_string().contains("org/m-GGUF or other/m"),
        "{error}"
    );
    assert!(matches!(
        hub.remove("m"),
        Err(HubError::AmbiguousShortName { .. })
    ));

    assert_eq!(hub.remove("org/m-GGUF:Q8_0").unwrap(), 900);
    assert_eq!(
        hub.find("org/m-GGUF").unwrap().unwrap().quant.as_deref(),
        Some("Q4_0")
    );
    assert!(matches!(
        hub.remove("org/m-GGUF:Q8_0"),
        Err(HubError::NotCached { .. })
    ));
    // The last model takes the repository along.
    assert_eq!(hub.remove("m-gguf:Q4_0").unwrap(), 500);
    assert_eq!(hub.remove("other/m").unwrap(), 3);
    assert_eq!(names(&scratch.0), [".locks"]);
    assert_eq!(names(&scratch.0.join(".locks")), [""; 0]);
    assert!(hub.repos().unwrap().is_empty());
}

#[test]
fn what_is_being_downloaded_is_not_removed() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let weights = bytes(1, 50_000);
    server.add("org/m", &[("m-Q8_0.gguf", &weights)]);
    server.state().faults.delay = std::time::Duration::from_millis(200);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| pull(&hub(&server, &scratch), "org/m"));
        let locks = scratch.0.join(".locks/models--org--m");
        while names(&locks).is_empty() || server.state().log.len() < 2 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let error = hub(&server, &scratch).remove("org/m").unwrap_err();
        assert!(matches!(error, HubError::Busy { .. }), "{error}");
        assert_eq!(
            fs::read(one.join().unwrap().unwrap().path).unwrap(),
            weights
        );
    });
    assert_eq!(hub(&server, &scratch).remove("org/m").unwrap(), 50_000);
}
