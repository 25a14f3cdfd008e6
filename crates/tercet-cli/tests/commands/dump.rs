//! Inspecting a graph with `run`: every value as a file, and the first non-finite value.

use crate::common::{Scratch, bad, good, json, usable_devices};

const GRAPH: &str = "graph {
  %x = input{name=\"x\", ty=f32[n]}()
  %e = unary{f=exp}(%x)
  %t = top_k{k=2, axis=0, largest=true}(%e)
  %h = cast{to=bf16}(%e)
  return %t as \"top\", %h as \"../half y\"
}
";

/// A `.npy` file, version 1.0.
fn npy(values: &[f32]) -> Vec<u8> {
    let mut header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}",
        values.len()
    );
    header += &" ".repeat((64 - (10 + header.len() + 1) % 64) % 64);
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    file
}

/// The values of an F32 file.
fn f32s(path: &str) -> Vec<f32> {
    let file = std::fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    let words = file[start..].as_chunks::<4>().0;
    words.iter().map(|w| f32::from_le_bytes(*w)).collect()
}

#[test]
fn run_dumps_what_every_node_computes() {
    let dir = Scratch::new("dump");
    let graph = dir.file("g.tercet", GRAPH);
    let x = format!("x={}", dir.file("x.npy", npy(&[0.0, 1.0, -1.0])));
    let to = dir.path("values");
    for device in ["cpu", "reference"] {
        let run = good(&["run", &graph, "-i", &x, "--device", device, "--dump", &to]);
        assert!(run.out.starts_with("top: f32[2]\n"), "{}", run.out);
        assert!(run.err.starts_with("4 values written to "), "{}", run.err);
        let mut files: Vec<String> = std::fs::read_dir(&to)
            .unwrap()
            .map(|f| f.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let want = [
            "1_unary.npy",
            "2.1_top_k.npy",
            "2_top_k_top.npy",
            "3_cast_.._half_y.npy",
        ];
        assert_eq!(files, want);
        let e = f32s(&format!("{to}/1_unary.npy"));
        assert!((e[1] - 1f32.exp()).abs() < 1e-6 && e.len() == 3);
        // NumPy has no bfloat16.
        assert_eq!(f32s(&format!("{to}/3_cast_.._half_y.npy"))[0], 1.0);
        std::fs::remove_dir_all(&to).unwrap();
    }
    let file = dir.file("taken", "");
    bad(
        &["run", &graph, "-i", &x, "--device", "cpu", "--dump", &file],
        1,
        &["cannot write", "taken"],
    );
}

/// A chain of functions that every executor fuses, before a matmul.
const CHAIN: &str = "graph {
  %x = input{name=\"x\", ty=f32[8, 8]}()
  %a = unary{f=exp}(%x)
  %b = unary{f=tanh}(%a)
  %c = mat_mul(%b, %x)
  %d = softmax{axis=1}(%c)
  return %d as \"d\"
}
";

#[test]
fn optimized_programs_show_the_values_that_they_write() {
    let dir = Scratch::new("dump-optimized");
    let graph = dir.file("g.tercet", CHAIN);
    let values: Vec<f32> = (0..64).map(|i| (i % 11) as f32 / 8.0 - 0.5).collect();
    let x = crate::common::npy("<f4", "(8, 8)", &crate::common::f32s(&values));
    let x = format!("x={}", dir.file("x.npy", x));
    for device in usable_devices() {
        let to = dir.path(&format!("values-{device}"));
        let run = ["run", &graph, "-i", &x, "--device", &device, "--dump", &to];
        for option in ["--optimized", "--optimised"] {
            let ran = good(&[&run[..], &[option]].concat());
            assert!(
                ran.err.starts_with("3 values written to "),
                "{device}: {}",
                ran.err
            );
            let mut files: Vec<String> = std::fs::read_dir(&to)
                .unwrap()
                .map(|f| f.unwrap().file_name().into_string().unwrap())
                .collect();
            files.sort();
            // `exp` is inside the kernel of `tanh`.
            assert_eq!(
                files,
                ["2_unary.npy", "3_mat_mul.npy", "4_softmax_d.npy"],
                "{device}"
            );
            std::fs::remove_dir_all(&to).unwrap();
        }
        let verified = json(&[
            "verify",
            &graph,
            "--device",
            &device,
            "--optimized",
            "--json",
        ]);
        let values = verified["values"].as_array().unwrap();
        let fused: Vec<usize> = values
            .iter()
            .map(|v| v["fused"].as_array().unwrap().len())
            .collect();
        assert_eq!(fused, [2, 1, 1], "{device}: {verified}");
    }
    bad(&["run", &graph, "-i", &x, "--optimized"], 2, &["--dump"]);
}

#[test]
fn run_names_the_first_node_that_is_not_finite() {
    let dir = Scratch::new("nonfinite");
    let graph = dir.file("g.tercet", GRAPH);
    let fine = format!("x={}", dir.file("x.npy", npy(&[0.0, 1.0, -1.0])));
    let large = format!("x={}", dir.file("y.npy", npy(&[0.0, 1.0, 200.0])));
    let check = |x: &str| {
        let args = [
            "run",
            &graph,
            "-i",
            x,
            "--device",
            "cpu",
            "--first-nonfinite",
        ];
        args.map(str::to_string)
    };
    let args = check(&fine);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let run = good(&args);
    assert!(run.err.starts_with("no node produces"), "{}", run.err);
    let args = check(&large);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    bad(
        &args,
        1,
        &[
            "%1 (unary) is inf at element 2 of f32[3]; 1 of 3 elements",
            "%0 (input `x`) f32[3] in [0e0, 2e2]",
        ],
    );
}

#[test]
fn generate_draws_by_its_seed_and_looks_for_what_is_not_finite() {
    let tokens = |seed: &str, more: &[&str]| {
        let mut args = vec!["generate", "--json", "-n", "6", "--device", "cpu"];
        args.extend(["--temp", "1.5", "--seed", seed]);
        args.extend(more);
        json(&args)["tokens"].clone()
    };
    let one = tokens("1", &[]);
    assert_eq!(one, tokens("1", &[]));
    assert_ne!(one, tokens("2", &[]));
    assert_eq!(one, tokens("1", &["--first-nonfinite"]));
}
