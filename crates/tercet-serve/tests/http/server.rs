//! A server for one test, and a client for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tercet::{CompileOptions, DType, Device};
use tercet_models::{MatmulPrecision, ModelFiles, ScaledAdapter};
use tercet_serve::{HttpServer, ModelConfig, ModelRegistry, ServeError, ServeOptions};
use tokio::sync::oneshot;

pub(crate) const MODEL: &str = "tiny";
pub(crate) const GRAPH: &str = "rows";

const TEXT: &str = r#"graph {
  %x = input{name="x", ty=f32[rows, 3]}()
  %k = input{name="k", ty=i32[]}()
  %y = softmax{axis=1}(%x)
  %z = cast{to=f32}(%k)
  %w = binary{f=mul}(%x, %z)
  %b = compare{f=gt}(%w, %x)
  return %y as "y", %w as "w", %b as "b"
}"#;

/// A running server. Dropping it stops the server after all responses are complete.
pub(crate) struct Running {
    pub(crate) address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A response: status, the headers that tests check, and the body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) header_length: Option<usize>,
    pub(crate) body: Vec<u8>,
    headers: ureq::http::HeaderMap,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let value = self.headers.get(name)?;
        Some(value.to_str().unwrap().to_string())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Error message in either protocol's form.
    pub(crate) fn error(&self) -> String {
        let json = self.json();
        let error = &json["error"];
        error["message"]
            .as_str()
            .or(error.as_str())
            .unwrap()
            .to_string()
    }
}

pub(crate) fn start(options: ServeOptions) -> Running {
    start_adapted(options, Vec::new())
}

/// Like [`start`], with adapters of the model.
pub(crate) fn start_adapted(
    options: ServeOptions,
    adapters: Vec<(String, ScaledAdapter)>,
) -> Running {
    start_placed(options, |placement| placement.adapters = adapters)
}

/// Like [`start`], with changed model options.
pub(crate) fn start_placed(
    options: ServeOptions,
    change: impl FnOnce(&mut ModelConfig),
) -> Running {
    let mut models = ModelRegistry::new();
    add_placed(&mut models, &options, change).unwrap();
    let graph = tercet::parse(TEXT).unwrap();
    let compile = CompileOptions::new().bound("rows", 8);
    models
        .add_graph(GRAPH, &graph, &compile, &placement(None), &options)
        .unwrap();
    run(models, options)
}

/// A server of the model alone.
pub(crate) fn start_only(options: ServeOptions) -> Running {
    let mut models = ModelRegistry::new();
    add_placed(&mut models, &options, |_| {}).unwrap();
    run(models, options)
}

/// Adds the model with changed options.
pub(crate) fn add_placed(
    models: &mut ModelRegistry,
    options: &ServeOptions,
    change: impl FnOnce(&mut ModelConfig),
) -> Result<(), ServeError> {
    let files = ModelFiles::open(data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf")).unwrap();
    let mut placement = placement(Some(192));
    change(&mut placement);
    models.add_model(MODEL, files, placement, options)
}

/// CPU, F32.
pub(crate) fn placement(context: Option<usize>) -> ModelConfig {
    ModelConfig {
        device: Device::cpu(),
        dtype: DType::F32,
        cache: None,
        matmul_precision: MatmulPrecision::Full,
        context,
        adapters: Vec::new(),
        draft: None,
    }
}

/// A server of these test data folders, each under its folder name.
pub(crate) fn start_folders(folders: &[&str], options: ServeOptions) -> Running {
    let paths: Vec<String> = folders.iter().map(|folder| data(folder)).collect();
    start_paths(&paths, options)
}

/// A server of these folders, each under its folder name.
pub(crate) fn start_paths(paths: &[String], options: ServeOptions) -> Running {
    let placement = placement(None);
    let mut models = ModelRegistry::new();
    for path in paths {
        let files = ModelFiles::open(path).unwrap();
        let (_, name) = path.rsplit_once('/').unwrap();
        models
            .add_model(name, files, placement.clone(), &options)
            .unwrap();
    }
    run(models, options)
}

/// Path of a test data file.
pub(crate) fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn run(models: ModelRegistry, options: ServeOptions) -> Running {
    let server = HttpServer::bind("127.0.0.1", 0, models, options).unwrap();
    let address = server.address().to_string();
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let until = async {
            let _ = stopped.await;
        };
        server.run(until).unwrap();
    });
    Running {
        address,
        stop: Some(stop),
        thread: Some(thread),
    }
}

impl Running {
    fn agent() -> ureq::Agent {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        config
            .timeout_global(Some(Duration::from_secs(120)))
            .build()
            .into()
    }

    fn answer(response: ureq::http::Response<ureq::Body>) -> Answer {
        let length = response.headers().get("inference-header-content-length");
        let header_length = length.map(|v| v.to_str().unwrap().parse().unwrap());
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = response.into_body().read_to_vec().unwrap();
        Answer {
            status,
            header_length,
            body,
            headers,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        Self::answer(Self::agent().get(self.url(path)).call().unwrap())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(
            path,
            &[("content-type", "application/json")],
            body.to_string().as_bytes(),
        )
    }

    pub(crate) fn send(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = Self::agent().post(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::answer(request.send(body).unwrap())
    }

    /// A GET request with headers.
    pub(crate) fn fetch(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Running::agent().get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Running::answer(request.call().unwrap())
    }

    /// Value of a metric; 0 if the page does not contain it yet.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text();
        let row = page
            .lines()
            .find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
        row.map_or(0.0, |l| l.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until all slots are free and the queue is empty.
    pub(crate) fn wait_until_free(&self) {
        let busy = format!("tercet_slots_busy{{model=\"{MODEL}\"}}");
        let queue = format!("tercet_requests_queued{{model=\"{MODEL}\"}}");
        for _ in 0..600 {
            if self.metric(&busy) + self.metric(&queue) == 0.0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!(
            "slots are not free after 30 s:\n{}",
            self.get("/metrics").text()
        );
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// One server shared by all tests that do not change it.
pub(crate) fn shared() -> Arc<Running> {
    static SHARED: std::sync::Mutex<std::sync::Weak<Running>> =
        std::sync::Mutex::new(std::sync::Weak::new());
    let mut shared = SHARED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(running) = shared.upgrade() {
        return running;
    }
    let running = Arc::new(start(ServeOptions::default()));
    *shared = Arc::downgrade(&running);
    running
}

/// The events of a stream without the last one, which must be `[DONE]`.
pub(crate) fn events(body: &str) -> Vec<Value> {
    let mut data: Vec<&str> = body
        .split("\n\n")
        .filter(|e| !e.is_empty())
        .map(|e| e.strip_prefix("data: ").unwrap())
        .collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{body}");
    data.iter()
        .map(|e| serde_json::from_str(e).unwrap())
        .collect()
}

/// The events of a stream without `[DONE]`.
pub(crate) fn events_of(body: &str) -> Vec<Value> {
    let events = body.split("\n\n").filter_map(|e| e.strip_prefix("data: "));
    events.map(|e| serde_json::from_str(e).unwrap()).collect()
}

/// The events of a stream whose events have names.
pub(crate) fn named_events(body: &str) -> Vec<(String, Value)> {
    let events = body.split("\n\n").filter(|e| !e.is_empty());
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let name = name.strip_prefix("event: ").unwrap();
        let data = data.strip_prefix("data: ").unwrap();
        (name.to_string(), serde_json::from_str(data).unwrap())
    };
    events.map(event).collect()
}
