//! Adapters selected by requests: each request has its own adapter, independent of others in the
//! batch.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tercet::{DType, Tensor, TensorType};
use tercet_models::{Adapter, LowRank, ScaledAdapter};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, shared, start_adapted};

/// Widths of the model and of its feed-forward network.
const SHAPE: [usize; 2] = [768, 256];

/// An adapter for one projection in each of two layers.
pub(crate) fn adapter(seed: u32) -> ScaledAdapter {
    let drawn = |shape: [usize; 2], seed: u32| {
        let numbers = (0..shape[0] * shape[1]).map(|i| {
            let x = (i as u32).wrapping_add(seed).wrapping_mul(2_654_435_761);
            f64::from(x >> 16) / f64::from(1u32 << 16) - 0.5
        });
        let ty = TensorType::new(DType::F32, &shape);
        Tensor::from_f64s(ty, &numbers.collect::<Vec<_>>()).unwrap()
    };
    let [rows, cols] = SHAPE;
    let modules = (0..2u32).map(|layer| {
        let module = format!("model.layers.{layer}.mlp.up_proj");
        let (a, b) = (
            drawn([4, cols], seed + layer),
            drawn([rows, 4], seed + 7 + layer),
        );
        let low = LowRank::new(&module, a, b, 4.0).unwrap();
        (module, low)
    });
    ScaledAdapter::new(Adapter::new(modules.collect::<BTreeMap<_, _>>()))
}

fn text(server: &Running, model: &str) -> String {
    let request =
        json!({"model": model, "prompt": "Ownership is", "max_tokens": 16, "temperature": 0});
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["model"], model);
    answer.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_string()
}

#[test]
fn a_request_takes_the_adapter_that_it_names() {
    let adapters = vec![
        ("one".to_string(), adapter(1)),
        ("two".to_string(), adapter(2)),
    ];
    let options = ServeOptions {
        slots: 3,
        ..ServeOptions::default()
    };
    let server = start_adapted(options, adapters);
    let names = [
        MODEL.to_string(),
        format!("{MODEL}:one"),
        format!("{MODEL}:two"),
    ];
    let alone = names.clone().map(|name| text(&server, &name));
    assert_eq!(alone[0], text(&shared(), MODEL));
    assert!(alone[0] != alone[1] && alone[0] != alone[2] && alone[1] != alone[2]);
    std::thread::scope(|scope| {
        for client in 0..12 {
            let (server, name, want) = (&server, &names[client % 3], &alone[client % 3]);
            scope.spawn(move || assert_eq!(&text(server, name), want, "{name}"));
        }
    });
    server.wait_until_free();

    let listed = server.get("/v1/models").json();
    let listed = listed["data"].as_array().unwrap();
    for (name, parent) in [
        (&names[0], Value::Null),
        (&names[1], MODEL.into()),
        (&names[2], MODEL.into()),
    ] {
        let found = listed.iter().find(|m| m["id"] == **name).unwrap();
        assert_eq!(found["parent"], parent);
        assert_eq!(&server.get(&format!("/v1/models/{name}")).json(), found);
    }
    let chat = json!({"model": names[1], "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 2});
    assert_eq!(server.post("/v1/chat/completions", &chat).status, 200);
    for name in ["tiny:three", "tiny:", "tinyone", ":one", "rows:one"] {
        let answer = server.post("/v1/completions", &json!({"model": name, "prompt": "x"}));
        assert_eq!(answer.status, 404, "{name}");
        assert!(
            answer
                .error()
                .contains("available: tiny, tiny:one, tiny:two"),
            "{}",
            answer.error()
        );
    }
}
