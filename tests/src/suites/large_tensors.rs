//! Tests of tensors with more than 2^31 and more than 2^32 bytes: results must be correct or typed
//! errors. Devices with a smaller binding limit or too little memory are skipped with a message.
//! `binding_limit.rs` tests values above the binding limit.
//!
//! The values are small integers, so every sum is exact.

use crate::{SuiteTest, executors};
use tercet_ir::{CompileError, CompileOptions, DType, Graph, OpError, Tensor, Type, Value};

const COLUMNS: usize = 4096;
/// Sizes in bytes, and row counts that exceed them.
const SIZES: [(u64, usize); 2] = [(1 << 31, 131_080), (1 << 32, 262_150)];

/// The element at a row and column.
fn element(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 17) % 251) as f32 - 125.0
}

fn matrix(rows: usize) -> Tensor {
    // Columns repeat after 251 elements, so each row is a shifted copy of another one.
    let line: Vec<f32> = (0..COLUMNS + 251).map(|c| element(0, c)).collect();
    let mut all = Vec::with_capacity(rows * COLUMNS);
    for row in 0..rows {
        let shift = (0..251).find(|s| s * 17 % 251 == row * 31 % 251);
        let shift = shift.expect("251 is a prime");
        all.extend_from_slice(&line[shift..shift + COLUMNS]);
    }
    Tensor::from_slice(&[rows, COLUMNS], &all)
        .expect("the list has the number of elements of its shape")
}

/// An operator on `x [rows, COLUMNS]` with the expected values of some result rows.
struct LargeTensorCheck {
    name: &'static str,
    build: fn(&mut Graph, Value, usize) -> Result<Value, OpError>,
    looked_at: fn(usize) -> Vec<usize>,
    want: fn(rows: usize, row: usize) -> Vec<f32>,
}

fn ends(rows: usize) -> Vec<usize> {
    vec![0, rows / 2, rows - 1]
}

const CHECKS: &[LargeTensorCheck] = &[
    LargeTensorCheck {
        name: "elementwise",
        build: |g, x, _| {
            let half = g.scalar(DType::F32, 0.5)?;
            let y = g.mul(x, half)?;
            g.abs(y)
        },
        looked_at: ends,
        want: |_, row| {
            (0..COLUMNS)
                .map(|c| (element(row, c) * 0.5).abs())
                .collect()
        },
    },
    LargeTensorCheck {
        name: "sums of rows",
        build: |g, x, _| g.reduce_sum(x, &[1], false),
        looked_at: ends,
        want: |_, row| vec![(0..COLUMNS).map(|c| element(row, c)).sum()],
    },
    LargeTensorCheck {
        name: "sums of columns",
        build: |g, x, _| g.reduce_sum(x, &[0], true),
        looked_at: |_| vec![0],
        want: |rows, _| {
            let sum = |c| (0..rows).map(|r| element(r, c)).sum();
            (0..COLUMNS).map(sum).collect()
        },
    },
    LargeTensorCheck {
        name: "gather",
        build: |g, x, rows| {
            let at: Vec<i32> = ends(rows).iter().map(|r| *r as i32).collect();
            let at = Tensor::from_slice(&[3], &at).expect("three rows");
            let at = g.constant(at)?;
            g.gather(x, at, 0)
        },
        looked_at: |_| vec![0, 1, 2],
        want: |rows, row| (0..COLUMNS).map(|c| element(ends(rows)[row], c)).collect(),
    },
    LargeTensorCheck {
        name: "copy of the transpose",
        build: |g, x, _| g.transpose(x, &[1, 0]),
        looked_at: |_| ends(COLUMNS),
        want: |rows, row| (0..rows).map(|r| element(r, row)).collect(),
    },
];

/// The error of a device that cannot bind all rows at once, found with an operator that requires
/// it.
fn binds_less(device: &tercet::Device, rows: usize) -> Result<Option<String>, String> {
    let mut g = Graph::new();
    let built = g
        .state("x", Type::new(DType::F32, [rows, COLUMNS]))
        .and_then(|x| g.cum_sum(x, 0))
        .and_then(|y| g.output("y", y));
    built.map_err(|e| tercet::one_line(&e))?;
    match device.compile(&g, &CompileOptions::new()) {
        Err(e @ CompileError::TooLarge { .. }) => Ok(Some(tercet::one_line(&e))),
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Runs a check on a device. Returns the reason if the device cannot run it because of its limits.
fn run(
    device: &tercet::Device,
    check: &LargeTensorCheck,
    rows: usize,
    x: &mut Option<Tensor>,
) -> Result<Option<String>, String> {
    let mut g = Graph::new();
    let built = g
        .state("x", Type::new(DType::F32, [rows, COLUMNS]))
        .and_then(|x| (check.build)(&mut g, x, rows))
        .and_then(|y| g.output("y", y));
    built.map_err(|e| tercet::one_line(&e))?;
    let mut exe = match device.compile(&g, &CompileOptions::new()) {
        Ok(exe) => exe,
        Err(e @ CompileError::TooLarge { .. }) => return Ok(Some(tercet::one_line(&e))),
        Err(e) => return Err(tercet::one_line(&e)),
    };
    let x = x.get_or_insert_with(|| matrix(rows));
    let ran = exe
        .write_state("x", x)
        .and_then(|()| exe.submit(&[], tercet::OutputSelection::Only(&[])))
        .and_then(|()| exe.wait(&mut Vec::new()));
    if let Err(e) = ran {
        // Out-of-memory is not a failure of the test.
        let e = tercet::one_line(&e);
        return match e.contains("memory") {
            true => Ok(Some(e)),
            false => Err(e),
        };
    }
    for row in (check.looked_at)(rows) {
        let got = exe.read_output_rows("y", row..row + 1);
        let got = got.map_err(|e| tercet::one_line(&e))?.to_f64s();
        let want = (check.want)(rows, row);
        let pairs = got.iter().zip(&want).enumerate();
        let mut wrong = pairs.filter(|(_, (got, want))| **got != f64::from(**want));
        if got.len() != want.len() {
            return Err(format!("row {row} has {} elements", got.len()));
        }
        if let Some((at, (got, want))) = wrong.next() {
            return Err(format!(
                "element {at} of row {row} is {got}, expected {want}"
            ));
        }
    }
    Ok(None)
}

fn tensors_beyond_two_and_four_gigabytes_are_right_or_refused() {
    let mut wrong = Vec::new();
    for (bytes, rows) in SIZES {
        assert!((rows * COLUMNS * 4) as u64 > bytes);
        let mut x = None;
        // Skip the CPU, because the machine may have little memory.
        for executor in executors().iter().filter(|e| e.name != "cpu") {
            let Ok(device) = executor.device() else {
                assert!(!executor.is_required(), "{} is missing", executor.name);
                continue;
            };
            match binds_less(device, rows) {
                Ok(None) => {}
                Ok(Some(why)) => {
                    eprintln!("{}, {rows} x {COLUMNS}: not run: {why}", executor.name);
                    continue;
                }
                Err(e) => {
                    wrong.push(format!("{}: {e}", executor.name));
                    continue;
                }
            }
            for check in CHECKS {
                let name = format!("{}, {rows} x {COLUMNS}, {}", executor.name, check.name);
                match run(device, check, rows, &mut x) {
                    Ok(None) => eprintln!("{name}: right"),
                    Ok(Some(why)) => eprintln!("{name}: not run: {why}"),
                    Err(e) => wrong.push(format!("{name}: {e}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![SuiteTest::asserting(
        "huge/tensors_beyond_two_and_four_gigabytes_are_right_or_refused",
        tensors_beyond_two_and_four_gigabytes_are_right_or_refused,
    )]
}
