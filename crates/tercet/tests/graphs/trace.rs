//! Execution traces of graphs and training steps by [`DeviceOptions::trace`].

use std::path::PathBuf;

use serde_json::Value;
use tercet::train::{AdamW, LearningRateSchedule, StepOptions, TrainStep, Trainer};
use tercet::{
    CompileOptions, DType, Device, DeviceError, DeviceOptions, Graph, Tensor, Type, devices,
};

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tercet-{name}-{}.json", std::process::id()))
}

fn open(device: &str, path: &std::path::Path) -> Device {
    let options = DeviceOptions {
        trace: Some(path.to_path_buf()),
        ..DeviceOptions::default()
    };
    Device::open(device, &options).unwrap()
}

/// The events of a closed file.
fn events(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["name"] == name).collect()
}

/// A linear layer with a softmax, and its loss.
fn layer(g: &mut Graph) -> tercet::Value {
    let x = g.input("x", Type::new(DType::F32, [8, 16])).unwrap();
    let w = g.state("w", Type::new(DType::F32, [16, 4])).unwrap();
    let y = g.matmul(x, w).unwrap();
    let y = g.softmax(y, 1).unwrap();
    let y = g.mul(y, y).unwrap();
    g.reduce_mean(y, &[0, 1], false).unwrap()
}

#[test]
fn training_steps_are_recorded_on_every_device() {
    let x = Tensor::from_slice(&[8, 16], &[0.5f32; 128]).unwrap();
    for device in devices().into_iter().filter(|d| d.usable) {
        let (name, path) = (device.name, path("trace-train"));
        let device = open(&name, &path);
        let mut g = Graph::new();
        let loss = layer(&mut g);
        let step = TrainStep::build(
            &g,
            loss,
            &["w".into()],
            &AdamW::default(),
            &StepOptions::default(),
        );
        let rate = LearningRateSchedule::constant(0.1);
        let options = CompileOptions::new();
        let mut trainer = Trainer::new(&device, step.unwrap(), rate, &options).unwrap();
        let w = Tensor::from_slice(&[16, 4], &[0.1f32; 64]).unwrap();
        trainer.set_state("w", &w).unwrap();
        for _ in 0..3 {
            trainer.step(&[("x", &x)]).unwrap();
        }
        drop((trainer, device));
        let events = events(&path);
        assert_eq!(named(&events, "open device").len(), 1, "{name}");
        assert!(!named(&events, "compile and load").is_empty(), "{name}");
        let runs = named(&events, "run").len() + named(&events, "submit").len();
        assert_eq!(runs, 3, "{name}");
        if name == "vulkan" || name == "wgpu" {
            let steps = events.iter().filter(|e| e["args"]["kernel"].is_string());
            assert!(steps.count() >= 9, "{name}");
            // Two products forwards and backwards.
            assert!(named(&events, "mat_mul").len() >= 6, "{name}");
        }
        let times = events.iter().filter(|e| e["ph"] == "X");
        assert!(times.clone().all(|e| e["dur"].as_f64().unwrap() >= 0.0));
    }
}

#[test]
fn devices_with_a_path_share_the_file_until_the_last_is_dropped() {
    let path = path("trace-shared");
    let run = |device: &Device| {
        let mut g = Graph::new();
        let y = layer(&mut g);
        g.output("y", y).unwrap();
        let mut exe = device.compile(&g, &CompileOptions::new()).unwrap();
        let x = Tensor::from_slice(&[8, 16], &[1f32; 128]).unwrap();
        exe.run(&[("x", &x)]).unwrap();
        let mut clone = exe.try_clone().unwrap();
        clone.run(&[("x", &x)]).unwrap();
    };
    let first = open("cpu", &path);
    run(&first);
    let second = open("reference", &path);
    drop(first);
    run(&second);
    // A file that is still written has all finished runs.
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("\"name\":\"run\"").count(), 4);
    drop(second);
    let events = events(&path);
    assert_eq!(named(&events, "run").len(), 4);
    let threads: std::collections::BTreeSet<u64> = named(&events, "run")
        .iter()
        .map(|e| e["tid"].as_u64().unwrap())
        .collect();
    assert_eq!(threads.len(), 4);
}

#[test]
fn a_file_that_cannot_be_created_is_an_error() {
    let path = path("no-folder").join("trace.json");
    let options = DeviceOptions {
        trace: Some(path.clone()),
        ..DeviceOptions::default()
    };
    let e = Device::open("cpu", &options).unwrap_err();
    assert!(matches!(&e, DeviceError::Trace { path: p, .. } if *p == path));
    assert!(e.to_string().contains("choose another file"), "{e}");
}
