//! Switches for diagnosis: results stay right, and commands and inputs are not reused.

use tercet::{
    Backend, CompileOptions, DType, DebugSwitches, Device, DeviceOptions, DeviceSwitches,
    Executable, Graph, Tensor, Type, devices,
};

/// Length of the input, above the size that is compared byte by byte.
const LEN: usize = 4096;

/// A graph of several dependent steps.
fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [LEN / 64, 64])).unwrap();
    let y = g.softmax(x, 1).unwrap();
    let y = g.matmul(x, y).unwrap();
    let y = g.softmax(y, 0).unwrap();
    g.output("y", y).unwrap();
    g
}

fn switches(debug: &str) -> DeviceSwitches {
    DeviceSwitches::default().with_debug(debug.parse::<DebugSwitches>().unwrap())
}

fn input() -> Tensor {
    let values: Vec<f32> = (0..LEN).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
    Tensor::from_slice(&[LEN / 64, 64], &values).unwrap()
}

fn run(exe: &mut dyn Executable, x: &Tensor) -> Vec<f32> {
    let y = exe.run(&[("x", x)]).unwrap();
    y[0].as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn results_equal_those_without_the_switches() {
    let usable = devices().into_iter().filter(|d| d.usable);
    for name in usable.map(|d| d.name).filter(|n| n != "reference") {
        let results = |debug: &str| -> Vec<Vec<f32>> {
            let options = DeviceOptions {
                switches: switches(debug),
                ..DeviceOptions::default()
            };
            let device = Device::open(&name, &options).unwrap();
            let mut exe = device.compile(&graph(), &CompileOptions::new()).unwrap();
            let x = input();
            (0..3).map(|_| run(&mut *exe, &x)).collect()
        };
        let want = results("");
        for debug in [
            "barriers=all",
            "record",
            "upload",
            "barriers=all,record,upload",
        ] {
            assert_eq!(results(debug), want, "{name} with {debug}");
        }
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn commands_are_recorded_and_inputs_are_uploaded_in_each_run() {
    use tercet_vulkan::{VulkanBackend, VulkanOptions};
    let Ok(backend) = VulkanBackend::new(VulkanOptions::default()) else {
        return;
    };
    let growth = |debug: &str| {
        let backend = backend.switched(&switches(debug)).unwrap();
        let mut exe = backend.compile(&graph(), &CompileOptions::new()).unwrap();
        let x = input();
        run(&mut *exe, &x);
        run(&mut *exe, &x);
        let before = backend.counters();
        for _ in 0..4 {
            run(&mut *exe, &x);
        }
        let after = backend.counters();
        let recorded = after.recorded - before.recorded;
        (recorded, after.upload_bytes - before.upload_bytes)
    };
    assert_eq!(growth(""), (0, 0));
    let (recorded, uploaded) = growth("record");
    assert!(recorded >= 4 && uploaded == 0, "{recorded} {uploaded}");
    let (recorded, uploaded) = growth("upload");
    assert!(
        recorded == 0 && uploaded >= 4 * 4 * LEN as u64,
        "{recorded} {uploaded}"
    );
}
