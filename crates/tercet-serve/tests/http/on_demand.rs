//! Models that are loaded on demand, and unloaded by memory, by age and on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercet_models::ModelFiles;
use tercet_serve::{ModelConfig, ModelRegistry, ResidencyLimits, ServeError, ServeOptions};

use crate::adapters::adapter;
use crate::server::{Running, data, placement, run};

const TINY: &str = "tiny-rust-llama/tiny-rust-llama-q8_0.gguf";

/// Adds a model that is loaded on demand, and counts its loads with that of the registration.
fn add(
    models: &mut ModelRegistry,
    name: &str,
    path: &str,
    options: &ServeOptions,
) -> Result<Arc<AtomicUsize>, ServeError> {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let path = data(path);
    let config: ModelConfig = placement(Some(96));
    let opener = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok((ModelFiles::open(&path)?, config.clone()))
    });
    models.add_on_demand(name, opener, options)?;
    Ok(opened)
}

fn registry(limits: ResidencyLimits) -> ModelRegistry {
    ModelRegistry::new().with_limits(limits)
}

/// Bytes of one loaded model by `/metrics`.
fn model_bytes() -> u64 {
    let options = ServeOptions::default();
    let mut models = registry(ResidencyLimits::default());
    add(&mut models, "a", TINY, &options).unwrap();
    let server = run(models, options);
    complete(&server, "a");
    server.metric("tercet_model_bytes{model=\"a\"}") as u64
}

fn complete(server: &Running, model: &str) -> String {
    let request = json!({"model": model, "prompt": "fn", "max_tokens": 4, "temperature": 0});
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    answer.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_string()
}

fn loaded(server: &Running) -> Vec<String> {
    let models = server.get("/v1/models").json();
    let models = models["data"].as_array().unwrap().iter();
    let loaded = models.filter(|model| model["loaded"] == true);
    loaded
        .map(|model| model["id"].as_str().unwrap().to_string())
        .collect()
}

/// Bytes of all loaded models by `/metrics`.
fn used_bytes(server: &Running) -> u64 {
    let page = server.get("/metrics").text();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("tercet_model_bytes{"));
    let bytes = rows.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    bytes.sum::<f64>() as u64
}

#[test]
fn five_models_take_turns_within_the_memory_of_three() {
    let one = model_bytes();
    let limit = one * 3 + one / 2;
    let options = ServeOptions::default();
    let mut models = registry(ResidencyLimits {
        memory_bytes: Some(limit),
        idle: None,
    });
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        add(&mut models, name, TINY, &options).unwrap();
    }
    let server = run(models, options);
    assert_eq!(loaded(&server), Vec::<String>::new());
    let want = complete(&server, "a");
    let next = AtomicUsize::new(0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(used_bytes(&server));
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= 500 {
                            return;
                        }
                        assert_eq!(complete(&server, names[at % 5]), want);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_done.store(true, Ordering::Relaxed);
        let most = watch.join().unwrap();
        assert!(ended.iter().all(Result::is_ok));
        assert!(most <= limit && most > one * 2, "{most} of {limit}");
    });
    assert!(loaded(&server).len() <= 3);
    let loads = server.metric("tercet_model_loads_total");
    let unloads = server.metric("tercet_model_unloads_total");
    assert!(loads > 5.0 && loads - unloads <= 3.0, "{loads} {unloads}");
    // The model that was used the longest ago leaves.
    for name in ["a", "b", "c"] {
        complete(&server, name);
    }
    complete(&server, "a");
    complete(&server, "d");
    assert_eq!(loaded(&server), ["a", "c", "d"]);
}

#[test]
fn a_model_stays_loaded_while_a_request_runs() {
    let one = model_bytes();
    let options = ServeOptions::default();
    let mut models = registry(ResidencyLimits {
        memory_bytes: Some(one + one / 2),
        idle: Some(Duration::from_millis(20)),
    });
    add(&mut models, "a", TINY, &options).unwrap();
    add(&mut models, "b", TINY, &options).unwrap();
    let server = run(models, options);
    let long = json!({"model": "a", "prompt": "fn", "max_tokens": 90, "temperature": 0, "ignore_eos": true});
    std::thread::scope(|scope| {
        let answers: Vec<_> = ["a", "b", "a", "b"]
            .map(|model| {
                let mut request = long.clone();
                request["model"] = model.into();
                let server = &server;
                scope.spawn(move || server.post("/v1/completions", &request))
            })
            .into_iter()
            .collect();
        for answer in answers {
            let answer = answer.join().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["usage"]["completion_tokens"], 90);
        }
    });
}

#[test]
fn an_idle_model_is_unloaded_and_loaded_again() {
    let options = ServeOptions::default();
    let mut models = registry(ResidencyLimits {
        memory_bytes: None,
        idle: Some(Duration::from_millis(200)),
    });
    let opened = add(&mut models, "a", TINY, &options).unwrap();
    let server = run(models, options);
    let first = complete(&server, "a");
    assert_eq!(loaded(&server), ["a"]);
    let until = Instant::now() + Duration::from_secs(20);
    while !loaded(&server).is_empty() {
        assert!(Instant::now() < until, "still loaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    assert_eq!(complete(&server, "a"), first);
    assert_eq!(opened.load(Ordering::Relaxed), 3);
}

#[test]
fn models_are_loaded_and_unloaded_on_request() {
    let options = ServeOptions::default();
    let mut models = registry(ResidencyLimits::default());
    add(&mut models, "a", TINY, &options).unwrap();
    add(&mut models, "words", "encoders/sentence-c", &options).unwrap();
    let server = run(models, options);
    let post = |route: &str, model: &str| server.post(route, &json!({"model": model})).status;
    assert_eq!(post("/models/load", "a"), 200);
    assert_eq!(loaded(&server), ["a"]);
    assert_eq!(post("/models/unload", "a"), 200);
    assert_eq!(loaded(&server), Vec::<String>::new());
    assert_eq!(post("/models/unload", "a"), 200);
    assert_eq!(post("/models/load", "none"), 404);
    // A route of another kind of model does not load it.
    let wrong = server.post("/v1/embeddings", &json!({"model": "a", "input": "x"}));
    assert_eq!(wrong.status, 404, "{}", wrong.text());
    assert_eq!(loaded(&server), Vec::<String>::new());
    let answer = server.post("/v1/embeddings", &json!({"model": "words", "input": "x"}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(loaded(&server), ["words"]);
    let fixed = crate::server::shared();
    let refused = fixed.post("/models/unload", &json!({"model": "tiny"}));
    assert_eq!(refused.status, 400, "{}", refused.text());
}

/// When `/api/ps` says that a model is unloaded.
fn expires_at(server: &Running, name: &str) -> Option<String> {
    let listed = server.get("/api/ps").json();
    let models = listed["models"].as_array().unwrap();
    let model = models.iter().find(|model| model["name"] == name)?;
    Some(model["expires_at"].as_str().unwrap().to_string())
}

#[test]
fn keep_alive_sets_how_long_a_model_stays() {
    let options = ServeOptions::default();
    let mut models = registry(ResidencyLimits::default());
    for name in ["a", "b"] {
        add(&mut models, name, TINY, &options).unwrap();
    }
    let server = run(models, options);
    let ask = |path: &str, mut more: Value| {
        more["stream"] = json!(false);
        let answer = server.post(path, &more);
        assert_eq!(answer.status, 200, "{more}: {}", answer.text());
        answer.json()
    };
    let few = json!({"num_predict": 2});
    let first = ask(
        "/api/generate",
        json!({"model": "a", "prompt": "fn", "options": few}),
    );
    assert!(first["load_duration"].as_u64().unwrap() > 0, "{first}");
    assert!(expires_at(&server, "a").unwrap().starts_with("2318"));
    for (time, year_is_never) in [
        (json!("24h"), false),
        (json!("1h30m0.5s"), false),
        (json!(600), false),
        (json!("600"), false),
        (json!(-1), true),
        (json!("-1m"), true),
        (json!(1e300), true),
    ] {
        let load = json!({"model": "a", "keep_alive": time});
        assert_eq!(ask("/api/chat", load)["done_reason"], "load");
        let end = expires_at(&server, "a").unwrap();
        assert_eq!(end.starts_with("2318"), year_is_never, "{time}: {end}");
    }
    // No time: after the request that uses the model, or at once without one.
    complete(&server, "b");
    let last = json!({"model": "a", "prompt": "fn", "options": few, "keep_alive": 0});
    assert_eq!(ask("/api/generate", last)["done"], true);
    let until = Instant::now() + Duration::from_secs(20);
    while loaded(&server) != ["b"] {
        assert!(Instant::now() < until, "{:?}", loaded(&server));
        std::thread::sleep(Duration::from_millis(20));
    }
    for name in ["b", "a"] {
        let loads = server.metric("tercet_model_loads_total");
        let unload = json!({"model": name, "keep_alive": "0s"});
        assert_eq!(ask("/api/generate", unload)["done_reason"], "unload");
        assert_eq!(loaded(&server), Vec::<String>::new());
        assert_eq!(server.metric("tercet_model_loads_total"), loads);
    }
    for wrong in [
        json!("soon"),
        json!("5"),
        json!("5 m"),
        json!([1]),
        json!("m"),
    ] {
        let request = json!({"model": "a", "keep_alive": wrong, "prompt": "fn"});
        let answer = server.post("/api/generate", &request);
        let is_number = wrong == "5";
        assert_eq!(
            answer.status == 200,
            is_number,
            "{wrong}: {}",
            answer.text()
        );
        assert!(is_number || answer.text().contains("keep_alive"));
    }
}

#[test]
fn a_model_above_the_limit_and_a_broken_one_are_errors() {
    let options = ServeOptions::default();
    let limits = ResidencyLimits {
        memory_bytes: Some(1 << 20),
        idle: None,
    };
    let refused = add(&mut registry(limits), "a", TINY, &options).unwrap_err();
    assert!(
        matches!(refused, ServeError::ModelMemory { .. }),
        "{refused}"
    );
    // The files change after the start of the server.
    let folder = ModelsFolder::new("broken");
    let path = folder.0.join("model.gguf");
    std::fs::copy(data(TINY), &path).unwrap();
    let mut models = registry(ResidencyLimits::default());
    let (config, own) = (placement(Some(96)), path.clone());
    let opener = Arc::new(move || Ok((ModelFiles::open(&own)?, config.clone())));
    models.add_on_demand("a", opener, &options).unwrap();
    add(&mut models, "b", TINY, &options).unwrap();
    let server = run(models, options);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"GGUF, but no model").unwrap();
    let ask = json!({"model": "a", "prompt": "fn", "max_tokens": 2});
    let answer = server.post("/v1/completions", &ask);
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(
        answer.error().contains("cannot serve `a`"),
        "{}",
        answer.error()
    );
    complete(&server, "b");
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(data(TINY), &path).unwrap();
    assert_eq!(complete(&server, "a"), complete(&server, "b"));
}

/// A folder of a test, which is removed on drop.
struct ModelsFolder(PathBuf);

impl ModelsFolder {
    fn new(name: &str) -> ModelsFolder {
        let name = format!("tercet-serve-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        ModelsFolder(path)
    }
}

impl Drop for ModelsFolder {
    fn drop(&mut self) {
        // The system removes leftovers.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn save(folder: &Path, name: &str, seed: u32) {
    let path = folder.join(name);
    adapter(seed).adapter.write_peft(&path).unwrap();
}

#[test]
fn adapters_come_and_go_while_requests_run() {
    let folder = ModelsFolder::new("adapters");
    save(&folder.0, "first", 1);
    save(&folder.0, "second", 2);
    std::fs::create_dir_all(folder.0.join("broken")).unwrap();
    let options = ServeOptions {
        adapter_folder: Some(folder.0.clone()),
        ..ServeOptions::default()
    };
    let mut models = registry(ResidencyLimits::default());
    add(&mut models, "a", TINY, &options).unwrap();
    let server = run(models, options);
    let base = complete(&server, "a");
    let load = |name: &str, path: &str| {
        let ask = json!({"lora_name": name, "lora_path": path, "base_model_name": "a"});
        server.post("/v1/load_lora_adapter", &ask)
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Requests to the base model have the same answer all the time.
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut count = 0;
                    while !is_done.load(Ordering::Relaxed) {
                        assert_eq!(complete(&server, "a"), base);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        assert_eq!(load("x", "first").status, 200);
        let first = complete(&server, "a:x");
        assert_ne!(first, base);
        let listed = server.get("/v1/models/a:x").json();
        assert_eq!(listed["parent"], "a");
        // The same name with other weights.
        assert_eq!(load("x", "second").status, 200);
        let second = complete(&server, "a:x");
        assert!(second != base && second != first);
        assert_eq!(load("y", "first").status, 200);
        assert_eq!(
            (complete(&server, "a:x"), complete(&server, "a:y")),
            (second, first)
        );
        let ask = json!({"lora_name": "x"});
        assert_eq!(server.post("/v1/unload_lora_adapter", &ask).status, 200);
        assert_eq!(server.post("/v1/unload_lora_adapter", &ask).status, 404);
        let gone = json!({"model": "a:x", "prompt": "fn", "max_tokens": 1});
        assert_eq!(server.post("/v1/completions", &gone).status, 404);
        complete(&server, "a:y");
        for (name, path, status) in [
            ("z", "none", 400),
            ("z", "broken", 400),
            ("z", "../first", 400),
            ("a:b", "first", 400),
            ("", "first", 400),
        ] {
            let answer = load(name, path);
            assert_eq!(answer.status, status, "{name} {path}: {}", answer.text());
        }
        complete(&server, "a:y");
        is_done.store(true, Ordering::Relaxed);
        let counts: Vec<usize> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    });
    let none = crate::server::shared();
    let ask: Value = json!({"lora_name": "x", "lora_path": "first"});
    assert_eq!(none.post("/v1/load_lora_adapter", &ask).status, 403);
}
