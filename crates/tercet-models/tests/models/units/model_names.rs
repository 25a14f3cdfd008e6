//! Tests of model names, in stores that the tests write.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tercet_models::ModelPathError;
use tercet_models::internals::{ModelPlace, ModelStores};

/// A new empty folder for the test of this name.
fn temp_dir(test: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tercet-path-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn hub(cache: &Path) -> ModelStores {
    ModelStores {
        hub: Some(cache.to_path_buf()),
        ollama: None,
    }
}

fn gguf(path: impl Into<PathBuf>) -> ModelPlace {
    ModelPlace::Gguf(path.into())
}

#[test]
fn the_variables_of_the_tools_select_the_stores() {
    let stores = |vars: &[(&str, &str)]| {
        let found = ModelStores::from_vars(&|name| {
            let value = vars.iter().find(|(n, _)| *n == name)?.1;
            Some(OsString::from(value))
        });
        let text = |path: Option<PathBuf>| path.map(|p| p.to_str().unwrap().replace('\\', "/"));
        (text(found.hub), text(found.ollama))
    };
    let some = |hub: &str, ollama: &str| (Some(hub.to_string()), Some(ollama.to_string()));
    assert_eq!(stores(&[]), (None, None));
    let home = ("HOME", "/h");
    let ollama = "/h/.ollama/models";
    assert_eq!(stores(&[home]), some("/h/.cache/huggingface/hub", ollama));
    let xdg = ("XDG_CACHE_HOME", "/x");
    assert_eq!(stores(&[home, xdg]), some("/x/huggingface/hub", ollama));
    let own = ("HF_HOME", "~/hf");
    assert_eq!(stores(&[home, xdg, own]), some("/h/hf/hub", ollama));
    let all = [
        home,
        xdg,
        own,
        ("HF_HUB_CACHE", "/c"),
        ("OLLAMA_MODELS", "/o"),
    ];
    assert_eq!(stores(&all), some("/c", "/o"));
}

#[test]
fn a_folder_of_one_gguf_model_is_that_model() {
    let dir = temp_dir("folder");
    let locate = || ModelStores::default().locate(&dir);
    // The reader of folders reports what is missing.
    assert_eq!(locate().unwrap(), ModelPlace::Folder(dir.clone()));
    for other in [
        "config.json",
        "README.md",
        "mmproj-model-f16.gguf",
        "sub/x.gguf",
    ] {
        write(&dir.join(other), "");
    }
    assert_eq!(locate().unwrap(), ModelPlace::Folder(dir.clone()));
    for part in ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"] {
        write(&dir.join(part), "");
    }
    assert_eq!(locate().unwrap(), gguf(dir.join("m-00001-of-00002.gguf")));
    // The parts of another split are another model.
    for more in ["m-00001-of-00003.gguf", "n-00001-of-00002.gguf", "b.GGUF"] {
        write(&dir.join(more), "");
        let Err(ModelPathError::SeveralGguf { count, names, .. }) = locate() else {
            panic!("{more}");
        };
        assert!(names.contains("`m-00001-of-00002.gguf`") && names.contains(more));
        assert!(!names.contains("m-00002") && !names.contains("mmproj"));
        assert!(count >= 2);
    }
    write(&dir.join("model.safetensors"), "");
    assert_eq!(locate().unwrap(), ModelPlace::Folder(dir.clone()));
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn names_of_the_hub_are_snapshots_of_its_cache() {
    let cache = temp_dir("hub");
    let locate = |name: &str| hub(&cache).locate(Path::new(name));
    let Err(error) = locate("org/m") else {
        panic!("there is no model");
    };
    let message = error.to_string();
    assert!(message.contains(cache.to_str().unwrap()), "{message}");
    assert!(message.contains("tercet pull org/m"), "{message}");

    let model = cache.join("models--org--m");
    let snapshots = model.join("snapshots");
    fs::create_dir_all(&model).unwrap();
    let incomplete = |name: &str, reason: &str| {
        let error = locate(name).unwrap_err();
        assert!(matches!(error, ModelPathError::IncompleteInHub { .. }));
        assert!(error.to_string().contains(reason), "{error}");
    };
    incomplete("org/m", "no snapshot");
    write(&snapshots.join("abc/config.json"), "{}");
    let first = ModelPlace::Folder(snapshots.join("abc"));
    assert_eq!(locate("org/m").unwrap(), first);
    write(&snapshots.join("def/q4.gguf"), "");
    write(&snapshots.join("def/q8.gguf"), "");
    incomplete("org/m", "2 snapshots");
    write(&model.join("refs/main"), "abc\n");
    assert_eq!(locate("org/m").unwrap(), first);
    write(&model.join("refs/main"), "def");
    assert!(matches!(
        locate("org/m"),
        Err(ModelPathError::SeveralGguf { count: 2, .. })
    ));
    assert_eq!(
        locate("org/m/q8.gguf").unwrap(),
        gguf(snapshots.join("def/q8.gguf"))
    );
    incomplete("org/m/q5.gguf", "no such file");
    write(
        &model.join("refs/main"),
        "../../models--org--m/snapshots/def",
    );
    incomplete("org/m", "no name of a revision");
    write(&model.join("refs/main"), "123");
    incomplete("org/m", "no such snapshot");

    write(&cache.join("models--gpt2/snapshots/1/config.json"), "{}");
    let found = ModelPlace::Folder(cache.join("models--gpt2/snapshots/1"));
    assert_eq!(locate("gpt2").unwrap(), found);
    // Other paths that do not exist keep the error of the reader.
    for path in [
        "../m",
        "/no/such",
        "a/b.gguf",
        "m.gguf",
        "no-model",
        "a/b/c/d.gguf",
    ] {
        assert_eq!(locate(path).unwrap(), gguf(path), "{path}");
    }
    fs::remove_dir_all(&cache).unwrap();
}

#[test]
fn names_of_ollama_are_blobs_of_its_store() {
    let store = temp_dir("ollama");
    let stores = ModelStores {
        hub: None,
        ollama: Some(store.clone()),
    };
    let locate = |name: &str| stores.locate(Path::new(name));
    let digest = "ab".repeat(32);
    let layer = |kind: &str, digest: &str| {
        format!(
            r#"{{"mediaType":"application/vnd.ollama.image.{kind}","digest":"{digest}","size":4}}"#
        )
    };
    let manifest = |path: &str, layers: &[String]| {
        let layers = layers.join(",");
        let text = format!(r#"{{"schemaVersion":2,"config":{{}},"layers":[{layers}]}}"#);
        write(&store.join("manifests").join(path), &text);
    };
    let good = layer("model", &format!("sha256:{digest}"));
    let params = layer("params", &format!("sha256:{}", "cd".repeat(32)));
    let library = "registry.ollama.ai/library";
    manifest(
        &format!("{library}/llama3.2/1b"),
        &[params.clone(), good.clone()],
    );
    manifest(
        &format!("{library}/tiny/latest"),
        std::slice::from_ref(&good),
    );
    manifest("registry.ollama.ai/me/own/v1", std::slice::from_ref(&good));
    manifest("hf.co/org/repo/Q4_K_M", std::slice::from_ref(&good));
    let blob = store.join("blobs").join(format!("sha256-{digest}"));

    let missing = locate("ollama:tiny").unwrap_err().to_string();
    assert!(
        missing.contains("is missing") && missing.contains("ollama pull tiny"),
        "{missing}"
    );
    write(&blob, "GGUF");
    let options = store
        .join("blobs")
        .join(format!("sha256-{}", "cd".repeat(32)));
    let missing = locate("llama3.2:1b").unwrap_err().to_string();
    assert!(missing.contains("the file of the params"), "{missing}");
    write(&options, r#"{"temperature": 0.25}"#);
    for name in [
        "llama3.2:1b",
        "ollama:llama3.2:1b",
        "tiny",
        "tiny:latest",
        "ollama:tiny",
        "ollama:me/own:v1",
        "ollama:hf.co/org/repo:Q4_K_M",
    ] {
        assert_eq!(locate(name).unwrap(), gguf(blob.clone()), "{name}");
    }
    for name in [
        "ollama:other",
        "ollama:tiny:2",
        "ollama:../x",
        "ollama:",
        "ollama:a/b/c/d",
    ] {
        let error = locate(name).unwrap_err();
        assert!(
            matches!(error, ModelPathError::NotInOllama { .. }),
            "{name}: {error}"
        );
        assert!(error.to_string().contains("ollama pull"), "{error}");
    }

    let bad = |layers: &[String], reason: &str| {
        manifest(&format!("{library}/bad/latest"), layers);
        let error = locate("ollama:bad").unwrap_err();
        assert!(
            matches!(error, ModelPathError::BadManifest { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(reason), "{error}");
    };
    bad(&[], "no layer is a GGUF file");
    bad(&[layer("tensor", "sha256:00")], "image.tensor");
    bad(
        &[layer("model", "sha256:../../../etc/passwd")],
        "64 hex digits",
    );
    bad(
        &[good.clone(), layer("adapter", &format!("sha256:{digest}"))],
        "--lora",
    );
    bad(&["{".to_string()], "not a manifest");
    write(&options, r#"{"temperature": "warm"}"#);
    bad(&[good, params], "not options of Ollama");
    fs::remove_dir_all(&store).unwrap();
}

#[test]
fn the_layers_of_a_manifest_are_the_parts_of_the_model() {
    let store = temp_dir("ollama-layers");
    let stores = ModelStores {
        hub: None,
        ollama: Some(store.clone()),
    };
    let blobs = [
        ("model", "GGUF"),
        ("projector", "GGUF"),
        ("adapter", "GGUF"),
        ("template", "{{ .System }} {{ .Prompt }}"),
        ("system", "Be brief."),
        (
            "params",
            r#"{"stop": ["<a>", "<b>"], "temperature": 0.5, "num_ctx": 64, "num_gpu": 1}"#,
        ),
        ("license", "MIT"),
    ];
    let mut layers = Vec::new();
    for (i, (kind, text)) in blobs.iter().enumerate() {
        let hex = format!("{i:064x}");
        write(&store.join("blobs").join(format!("sha256-{hex}")), text);
        layers.push(format!(
            r#"{{"mediaType":"application/vnd.ollama.image.{kind}","digest":"sha256:{hex}"}}"#
        ));
    }
    let manifest = store.join("manifests/registry.ollama.ai/library/all/latest");
    write(
        &manifest,
        &format!(r#"{{"layers":[{}]}}"#, layers.join(",")),
    );
    let blob = |i: usize| store.join("blobs").join(format!("sha256-{i:064x}"));
    for name in ["all", "ollama:all", "all:latest"] {
        let model = stores.ollama_model(Path::new(name)).unwrap().unwrap();
        assert_eq!(model.weights, blob(0));
        assert_eq!(model.projectors, [blob(1)]);
        assert_eq!(model.adapters, [blob(2)]);
        assert_eq!(
            model.template.as_deref(),
            Some("{{ .System }} {{ .Prompt }}")
        );
        assert_eq!(model.system.as_deref(), Some("Be brief."));
        let params = model.params;
        assert_eq!((params.temperature, params.num_ctx), (Some(0.5), Some(64)));
        assert_eq!(params.stop, ["<a>", "<b>"]);
        assert_eq!(params.other.keys().collect::<Vec<_>>(), ["num_gpu"]);
    }
    for name in ["other", "all.gguf", "org/all", "./all"] {
        assert!(stores.ollama_model(Path::new(name)).unwrap().is_none());
    }
    // The template of models without one.
    write(&blob(3), "{{ .Prompt }}\n");
    let model = stores.ollama_model(Path::new("all")).unwrap().unwrap();
    assert_eq!(model.template, None);
    fs::remove_dir_all(&store).unwrap();
}
