//! Switches of devices: results stay right with each feature off and each variant forced, and a
//! choice that does not exist is refused.

use tercet::{
    CompileError, CompileOptions, DType, Device, DeviceError, DeviceOptions, DeviceSwitches, Graph,
    SwitchError, SwitchableFeature, Tensor, Type, devices,
};

/// Rows, columns and reduction length of a matmul with many rows.
const SIZES: [usize; 3] = [40, 32, 64];

fn graph() -> Graph {
    let [m, n, k] = SIZES;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [m, k])).unwrap();
    let w = g.input("w", Type::new(DType::F32, [k, n])).unwrap();
    let y = g.matmul(x, w).unwrap();
    let y = g.softmax(y, 1).unwrap();
    g.output("y", y).unwrap();
    g
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(next).collect()
}

/// The results of the graph on a device.
fn results(device: &Device) -> Result<Vec<f32>, CompileError> {
    let [m, n, k] = SIZES;
    let mut exe = device.compile(&graph(), &CompileOptions::new())?;
    let x = Tensor::from_slice(&[m, k], &numbers(m * k, 1)).unwrap();
    let w = Tensor::from_slice(&[k, n], &numbers(k * n, 2)).unwrap();
    let y = exe.run(&[("x", &x), ("w", &w)]).unwrap();
    Ok(y[0].as_slice::<f32>().unwrap().to_vec())
}

fn open(name: &str, without: &str, force: &str) -> Result<Device, DeviceError> {
    let options = DeviceOptions {
        switches: DeviceSwitches::parse(without, force)?,
        ..DeviceOptions::default()
    };
    Device::open(name, &options)
}

/// The executors of this machine, each once.
fn names() -> Vec<String> {
    let usable = devices().into_iter().filter(|d| d.usable);
    usable
        .map(|d| d.name)
        .filter(|n| n != "reference" && !n.contains(':'))
        .collect()
}

fn check(device: &Device, what: &str) {
    let want = results(&Device::reference()).unwrap();
    let got = results(device).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (at, (a, b)) in got.iter().zip(&want).enumerate() {
        assert!(
            (a - b).abs() <= 1e-5,
            "{what}: element {at} is {a} instead of {b}"
        );
    }
}

#[test]
fn results_are_right_with_each_feature_off() {
    for name in names() {
        let all = SwitchableFeature::ALL.map(SwitchableFeature::name);
        for off in all.iter().copied().chain([all.join(",").as_str()]) {
            let device = open(&name, off, "").unwrap();
            check(&device, &format!("{name} without {off}"));
            let plan = device.explain(&graph(), &CompileOptions::new()).unwrap();
            assert!(
                plan.to_string().contains("switches        without "),
                "{plan}"
            );
        }
    }
}

#[test]
fn each_variant_can_be_forced_and_is_right_or_refused() {
    for name in names() {
        let family = if name == "cpu" { "simd" } else { "many" };
        let families = open(&name, "", "").unwrap().variant_families();
        let family = families.iter().find(|f| f.name == family).unwrap();
        let mut forced = 0;
        for variant in &family.variants {
            let choice = format!("{}={variant}", family.name);
            let device = match open(&name, "", &choice) {
                Ok(device) => device,
                Err(DeviceError::Switch(SwitchError::Unavailable { available, .. })) => {
                    assert!(!available.is_empty(), "{choice}");
                    continue;
                }
                Err(e) => panic!("{name}: {e}"),
            };
            match device.explain(&graph(), &CompileOptions::new()) {
                Ok(plan) if name != "cpu" => {
                    let is_forced = |line: &str| {
                        line.contains(&format!(" {variant} ")) && line.contains("(forced, cost")
                    };
                    assert!(plan.listing.lines().any(is_forced), "{}", plan.listing);
                    check(&device, &format!("{name} with {choice}"));
                    forced += 1;
                }
                Ok(plan) => {
                    assert!(
                        plan.switches[0].ends_with(&format!("(simd {variant})")),
                        "{plan}"
                    );
                    check(&device, &format!("{name} with {choice}"));
                    forced += 1;
                }
                Err(CompileError::Switch(SwitchError::Unsupported {
                    given, available, ..
                })) => {
                    assert!(given.to_string() == choice && !available.is_empty());
                }
                Err(e) => panic!("{name} with {choice}: {e}"),
            }
        }
        assert!(forced >= 1, "{name}: no variant of {family} ran");
    }
}

#[test]
fn forbidding_the_chosen_variant_takes_the_next() {
    for name in names() {
        if name == "cpu" {
            continue;
        }
        let chosen = |device: &Device| -> String {
            let plan = device.explain(&graph(), &CompileOptions::new()).unwrap();
            let line = plan
                .listing
                .lines()
                .find(|l| l.contains("mat_mul ") && l.contains("cost"));
            let mut words = line.unwrap().split_whitespace().skip(3);
            words.next().unwrap().to_string()
        };
        let first = chosen(&open(&name, "", "").unwrap());
        let device = open(&name, &format!("many={first}"), "").unwrap();
        assert_ne!(chosen(&device), first, "{name}");
        check(&device, &format!("{name} without {first}"));
    }
}

#[test]
fn a_choice_that_does_not_exist_is_refused_by_every_device() {
    for name in names()
        .iter()
        .map(String::as_str)
        .chain(["reference", "auto"])
    {
        let e = open(name, "", "nothing=here").unwrap_err();
        let is_named = matches!(&e, DeviceError::Switch(SwitchError::UnknownFamily { .. }));
        assert!(
            is_named && e.to_string().contains("`nothing=here`"),
            "{name}: {e}"
        );
    }
    let e = open("cpu", "", "simd=sse2").unwrap_err();
    assert!(matches!(
        &e,
        DeviceError::Switch(SwitchError::UnknownVariant { .. })
    ));
    assert!(e.to_string().contains("dotprod, neon, portable"), "{e}");
    let e = open("cpu", "avx2", "simd=avx2").unwrap_err();
    assert!(
        matches!(&e, DeviceError::Switch(SwitchError::Unavailable { .. })),
        "{e}"
    );
}
